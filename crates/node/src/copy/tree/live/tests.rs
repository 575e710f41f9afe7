//! Directories by ticket, between two nodes of one process.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dray_core::message::{Backup, CopyRole, FakeWish, Near, SyncWish, Tree, sync_flag, tree_flag};
use dray_core::rights::Secret;
use dray_core::ticket::{DirectoryId, DirectoryTicket};
use dray_core::{ErrorKind, Result};

use super::super::{SyncOptions, TreeCopied, TreeOptions, tree_message};
use super::DirectoryWish;
use super::places::Places;
use super::wish::{as_told, check};
use crate::{Config, ConfigFile, Event, Node, Paths, Stop, lock};

const LONG: Duration = Duration::from_secs(60);

fn node(dir: &Path) -> Node {
    Node::open(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap()
}

/// A directory that is shared until this is dropped, and a place for what comes of it.
struct Bed {
    place: tempfile::TempDir,
    ticket: DirectoryTicket,
    heard: Arc<Mutex<Vec<Event>>>,
    places: Arc<Places>,
    stop: Stop,
    serving: Option<JoinHandle<Result<()>>>,
}

impl Bed {
    fn new(make: impl FnOnce(&Path)) -> Bed {
        Bed::with(make, None)
    }

    fn with(make: impl FnOnce(&Path), expires_in: Option<Duration>) -> Bed {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        fs::create_dir(&from).unwrap();
        make(&from);
        let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
        let hearing = heard.clone();
        let observer: Arc<dyn crate::Observer> = Arc::new(move |event| lock(&hearing).push(event));
        let holder = node(&place.path().join("holder"));
        let shared = holder.put_directory(&from, false, expires_in, &|_| {}).unwrap();
        let mut ticket = shared.ticket.clone();
        // Whatever addresses this machine has.
        let port = ticket.hints[0].uri.to_string().rsplit(':').next().unwrap().to_owned();
        ticket.hints.truncate(1);
        ticket.hints[0].uri = format!("dray://127.0.0.1:{port}").parse().unwrap();
        let stop = Stop::new();
        let stopping = stop.clone();
        let places = Places::of(2);
        let among = places.clone();
        let serving = thread::spawn(move || shared.serve_among(among, &stopping, &observer));
        Bed { place, ticket, heard, places, stop, serving: Some(serving) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn wish(&self, to: &str) -> DirectoryWish {
        DirectoryWish {
            ticket: self.ticket.clone(),
            hints: Vec::new(),
            allow_local: true,
            destination: self.path(to),
        }
    }

    fn get(&self, to: &str) -> Result<TreeCopied> {
        node(&self.path("receiver")).get_directory(&self.wish(to), false, None, false, &|_| {}, &Stop::new())
    }

    fn sync(&self, to: &str, sync: SyncOptions) -> Result<TreeCopied> {
        let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
        node(&self.path("receiver")).sync_directory(&self.wish(to), &options, &|_| {}, &Stop::new())
    }

    /// What the holder sent to the receiver that came last, once that has gone.
    fn sent_bytes(&self) -> u64 {
        let began = Instant::now();
        loop {
            let last = lock(&self.heard).iter().rev().find_map(|event| match event {
                Event::ServedDirectory { sent_bytes, .. } => Some(*sent_bytes),
                _ => None,
            });
            match last {
                Some(sent) => {
                    lock(&self.heard).clear();
                    return sent;
                }
                None => {
                    assert!(began.elapsed() < LONG, "{:?}", lock(&self.heard));
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

impl Bed {
    /// Shares it no longer.
    fn end(&mut self) {
        self.stop.set();
        let _ = self.serving.take().map(JoinHandle::join);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end();
    }
}

/// Everything below a directory: path, bits, and content or where a link points.
fn listing(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let content = if found.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else if found.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let mode = if found.is_symlink() { 0 } else { found.mode() & 0o7777 };
            all.push((path.strip_prefix(root).unwrap().to_owned(), mode, content));
        }
    }
    all.sort();
    all
}

fn sample(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("one"), b"one").unwrap();
    fs::write(root.join("sub/large"), vec![7; 300_000]).unwrap();
    symlink("../one", root.join("sub/link")).unwrap();
}

/// Issue "daemon to daemon by ticket": what is in a directory comes whole, what changed comes later, and what is gone goes if that is asked for.
#[test]
fn a_directory_comes_and_is_brought_up_to_date() {
    let bed = Bed::new(sample);
    let copied = bed.get("to").unwrap();
    assert_eq!((copied.files, copied.failed), (2, 0));
    assert_eq!(listing(&bed.path("from")), listing(&bed.path("to")));
    // It is there, and complete: the same again would not know whether it is meant.
    let error = bed.get("to").unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.advice().unwrap().contains("dray sync"), "{error}");
    fs::write(bed.path("from/one"), b"another").unwrap();
    fs::remove_file(bed.path("from/sub/link")).unwrap();
    fs::write(bed.path("from/sub/new"), b"new").unwrap();
    fs::write(bed.path("to/own"), b"the user's").unwrap();
    let copied = bed.sync("to", SyncOptions::archive()).unwrap();
    assert_eq!((copied.files, copied.deleted), (2, 0));
    assert!(bed.path("to/own").exists() && bed.path("to/sub/link").is_symlink());
    let copied = bed.sync("to", SyncOptions { delete: true, ..SyncOptions::archive() }).unwrap();
    assert_eq!((copied.files, copied.deleted), (0, 2));
    assert_eq!(listing(&bed.path("from")), listing(&bed.path("to")));
}

/// Design 14: who has no right, or none any more, is told so, alike whatever he lacks, and gets nothing.
#[test]
fn who_has_no_right_gets_nothing() {
    let bed = Bed::new(sample);
    let asked = |change: &dyn Fn(&mut DirectoryTicket)| {
        let mut wish = bed.wish("none");
        change(&mut wish.ticket);
        let got = node(&bed.path("receiver")).get_directory(&wish, false, None, false, &|_| {}, &Stop::new());
        assert!(!bed.path("none").exists());
        let error = got.unwrap_err();
        (error.kind(), error.to_string())
    };
    let wrong = asked(&|ticket| ticket.secret = Some(Secret::from_bytes([1; 16])));
    assert_eq!(wrong.0, ErrorKind::Refused);
    assert_eq!(wrong, asked(&|ticket| ticket.secret = None));
    assert_eq!(wrong, asked(&|ticket| ticket.id = DirectoryId::from_bytes([1; 32])));
    let expired = Bed::with(sample, Some(Duration::from_secs(1)));
    thread::sleep(Duration::from_millis(2100));
    let error = expired.get("none").unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("expired"), "{error}");
}

/// Threat model "modes and fifos of a stranger": what comes has no powers, lets nobody else in, and waits for nobody.
#[test]
fn what_comes_from_a_stranger_is_harmless() {
    let bed = Bed::new(|root| {
        fs::write(root.join("program"), b"x").unwrap();
        fs::set_permissions(root.join("program"), fs::Permissions::from_mode(0o6777)).unwrap();
        fs::create_dir(root.join("open")).unwrap();
        fs::set_permissions(root.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, mode, 0).unwrap();
        fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    });
    bed.get("got").unwrap();
    bed.sync("synced", SyncOptions::archive()).unwrap();
    for to in ["got", "synced"] {
        let mode = |name: &str| bed.path(to).join(name).metadata().unwrap().mode() & 0o7777;
        for name in ["program", "open", "."] {
            assert_eq!(mode(name) & 0o7022, 0, "{to}/{name}: {:o}", mode(name));
        }
        assert_eq!(mode("program") & 0o700, 0o700);
        assert!(bed.path(to).join("fifo").symlink_metadata().is_err());
        // SAFETY of the figure: this process may be root, and nothing of a stranger's is given to others.
        let owner = bed.path(to).join("program").metadata().unwrap().uid();
        assert_eq!(owner, rustix::process::geteuid().as_raw());
    }
    // The same where the user changes some bits himself: the others are the sender's, as far as the umask lets them.
    let options = TreeOptions {
        recursive: true,
        sync: Some(SyncOptions::archive()),
        chmod: Some(b"F-x".to_vec()),
        ..TreeOptions::default()
    };
    let receiver = node(&bed.path("receiver"));
    let told = Mutex::new(Vec::new());
    let observer = |event| lock(&told).push(format!("{event:?}"));
    receiver.sync_directory(&bed.wish("changed"), &options, &observer, &Stop::new()).unwrap();
    let told = lock(&told);
    assert!(told.iter().any(|event| event.contains("fifos and sockets (a ticket brings none)")), "{told:?}");
    for (name, bits) in [("program", 0o644), ("open", 0o755), (".", 0o755)] {
        let mode = bed.path("changed").join(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode, bits, "{name}: {mode:o}");
    }
    // What he names himself is meant.
    let options = TreeOptions { chmod: Some(b"Fg+w".to_vec()), ..options };
    receiver.sync_directory(&bed.wish("meant"), &options, &|_| {}, &Stop::new()).unwrap();
    let mode = bed.path("meant/program").metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o775, "{mode:o}");
}

/// Threat model "the node's own directories": they are not shared, by whatever name, nor what holds them or lies in them; and where they are
/// moved to later, nothing of them is told, nor deleted at the other end.
#[test]
fn the_nodes_own_directories_are_not_shared() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("home/data");
    fs::create_dir_all(&data).unwrap();
    symlink("home", place.path().join("link")).unwrap();
    for path in ["home", "home/data", "home/data/store", "link", "link/data", "."] {
        let holder = node(&data);
        let refused = holder.put_directory(&place.path().join(path), false, None, &|_| {}).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Usage, "{path}: {refused}");
        assert!(refused.to_string().contains("keeps its keys"), "{refused}");
    }
    let bed = Bed::new(sample);
    fs::rename(bed.path("holder"), bed.path("from/sub/moved")).unwrap();
    fs::create_dir_all(bed.path("to/sub/moved")).unwrap();
    fs::write(bed.path("to/sub/moved/mine"), b"mine").unwrap();
    let copied = bed.sync("to", SyncOptions { delete: true, ..SyncOptions::archive() }).unwrap();
    assert_eq!((copied.files, copied.failed, copied.deleted), (2, 0, 0));
    let names = |path: PathBuf| fs::read_dir(path).unwrap().count();
    assert_eq!(
        names(bed.path("to/sub/moved")),
        1,
        "nothing of it came, and nothing in its place was deleted"
    );
    assert!(names(bed.path("from/sub/moved")) > 1);
}

/// Threat model "another directory at the same place": it is given to nobody, and no path of the holder's is told.
#[test]
fn another_directory_at_the_same_place_is_not_given() {
    let bed = Bed::new(sample);
    bed.get("before").unwrap();
    fs::rename(bed.path("from"), bed.path("aside")).unwrap();
    let gone = bed.get("after").unwrap_err();
    fs::create_dir(bed.path("from")).unwrap();
    fs::write(bed.path("from/secret"), b"secret").unwrap();
    let error = bed.get("after").unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (gone.kind(), gone.to_string()));
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(!error.to_string().contains("from\"") && !bed.path("after").exists(), "{error}");
    fs::remove_dir_all(bed.path("from")).unwrap();
    symlink("aside", bed.path("from")).unwrap();
    assert_eq!(bed.get("after").unwrap_err().kind(), ErrorKind::Changed, "a link is not what was shared");
    fs::remove_file(bed.path("from")).unwrap();
    fs::rename(bed.path("aside"), bed.path("from")).unwrap();
    bed.get("after").unwrap();
}

/// P3: bringing what is up to date up to date costs a constant: two thousand files in the directory itself, without a directory of their own.
#[test]
fn what_is_the_same_costs_next_to_nothing() {
    let bed = Bed::new(|root| {
        for number in 0..2000 {
            fs::write(root.join(format!("file-{number:04}")), b"x").unwrap();
        }
    });
    bed.get("to").unwrap();
    assert!(bed.sent_bytes() > 20_000);
    let copied = bed.sync("to", SyncOptions::archive()).unwrap();
    assert_eq!((copied.entries, copied.files, copied.unchanged), (2001, 0, 2000));
    let sent = bed.sent_bytes();
    assert!(sent < 1500, "{sent}");
    // One file of them is told with those beside it, and comes alone.
    fs::write(bed.path("from/file-0007"), b"longer").unwrap();
    assert_eq!(bed.sync("to", SyncOptions::archive()).unwrap().files, 1);
}

/// Design 10: a fetch that was cut off goes on in the directory that it made, with what came; for this ticket alone.
#[test]
fn a_fetch_that_was_cut_off_goes_on() {
    // Many times what comes until a stop is heard (a fifth of a second).
    const FILES: usize = 24_000;
    let bed = Bed::new(|root| {
        for number in 0..FILES {
            fs::write(root.join(format!("file-{number:05}")), b"x").unwrap();
        }
    });
    let stop = Stop::new();
    let receiver = node(&bed.path("receiver"));
    let count = || fs::read_dir(bed.path("to")).map_or(0, Iterator::count);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            while count() == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            stop.set();
        });
        receiver.get_directory(&bed.wish("to"), false, None, false, &|_| {}, &stop).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let came = count();
    assert!((1..FILES).contains(&came), "{came}");
    let other = DirectoryWish {
        ticket: DirectoryTicket { id: DirectoryId::from_bytes([3; 32]), ..bed.ticket.clone() },
        ..bed.wish("to")
    };
    let refused = receiver.get_directory(&other, false, None, false, &|_| {}, &Stop::new()).unwrap_err();
    assert!(refused.to_string().contains("no fetch of this ticket"), "{refused}");
    let copied = bed.get("to").unwrap();
    assert!(copied.unchanged > 0 && copied.files + copied.unchanged == FILES as u64, "{copied:?}");
    assert_eq!(listing(&bed.path("from")).len(), listing(&bed.path("to")).len());
    assert!(bed.get("to").is_err(), "it has come to its end");
}

fn told(change: impl FnOnce(&mut Tree)) -> Tree {
    // As `sync_directory` has it.
    let sync = SyncOptions {
        users: false,
        groups: false,
        devices: false,
        specials: false,
        ..SyncOptions::archive()
    };
    let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
    let mut tree =
        tree_message(CopyRole::Send, vec![b".".to_vec()], vec![Vec::new()], &options, false).unwrap();
    tree.flags &= !tree_flag::OWNERS;
    change(&mut tree);
    tree
}

fn told_sync(change: impl FnOnce(&mut SyncWish)) -> Tree {
    told(|tree| change(tree.sync.as_mut().unwrap()))
}

/// Threat model "receiver of a shared directory": a wish for anything but the directory, or to change it, is refused.
#[test]
fn hostile_wishes_are_refused() {
    check(&told(|_| {})).unwrap();
    let near = || Some(Box::new(Near { boot: vec![0; 16].into(), places: Vec::new() }));
    let backup = || Some(Box::new(Backup { directory: None, suffix: b"~".to_vec().into() }));
    let hostile = [
        told(|tree| tree.role = CopyRole::Receive),
        told(|tree| tree.paths = vec![b"..".to_vec().into()]),
        told(|tree| tree.paths = vec![b"/etc".to_vec().into()]),
        told(|tree| tree.paths.push(b"sub".to_vec().into())),
        told(|tree| tree.names = vec![b"a/a/a".to_vec().into()]),
        told(|tree| tree.names = Vec::new()),
        told(|tree| tree.flags |= tree_flag::PATTERNS),
        told(|tree| tree.flags |= tree_flag::FOLLOW_SOURCES),
        told(|tree| tree.flags |= tree_flag::MORE_SOURCES),
        told(|tree| tree.flags |= tree_flag::COMPRESSED),
        told(|tree| tree.modes = Some(b"a+w".to_vec().into())),
        told(|tree| tree.owner = Some(b"root".to_vec().into())),
        told(|tree| tree.origin = Some(Box::new([0; 32].into()))),
        told(|tree| tree.excludes = Some(vec![b"*".to_vec().into()])),
        told(|tree| tree.sync = None),
        told_sync(|wish| wish.near = near()),
        told_sync(|wish| wish.backup = backup()),
        told_sync(|wish| wish.timeout_s = Some(0)),
        told_sync(|wish| wish.flags |= sync_flag::REMOVE_SOURCES),
        told_sync(|wish| wish.flags |= sync_flag::CHOSEN),
        told_sync(|wish| wish.flags |= sync_flag::CHECKSUM),
        told_sync(|wish| wish.flags |= sync_flag::ACLS),
        told_sync(|wish| wish.flags |= sync_flag::DEVICES),
        told_sync(|wish| wish.flags |= sync_flag::ALL + 1),
        told_sync(|wish| wish.rules = Some(vec![b": .rules".to_vec().into()])),
    ];
    for tree in hostile {
        assert_eq!(check(&tree).unwrap_err().kind(), ErrorKind::Protocol, "{tree:?}");
    }
    // What the user's own command asks for is none of them, and tells nothing of where it goes to.
    let own = told(|tree| {
        tree.modes = Some(b"go-w".to_vec().into());
        tree.owner = Some(b"me".to_vec().into());
        let wish = tree.sync.as_mut().unwrap();
        (wish.near, wish.backup, wish.max_delete) = (near(), backup(), Some(3));
    });
    assert!(check(&own).is_err());
    check(&as_told(&own)).unwrap();
}

/// What does not go with a ticket is said before anybody is dialled.
#[test]
fn options_that_do_not_go_with_tickets_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let receiver = node(&place.path().join("receiver"));
    let ticket = DirectoryTicket {
        protocol: dray_core::message::PROTOCOL_VERSION,
        id: DirectoryId::from_bytes([0; 32]),
        secret: None,
        expires_unix_s: None,
        hints: Vec::new(),
    };
    let destination = place.path().join("to");
    let wish = DirectoryWish { ticket, hints: Vec::new(), allow_local: false, destination };
    for (change, word) in [
        (SyncOptions { checksum: true, ..SyncOptions::archive() }, "-c"),
        (SyncOptions { acls: true, ..SyncOptions::archive() }, "-A"),
        (SyncOptions { remove_sources: true, ..SyncOptions::archive() }, "--remove-source-files"),
        (SyncOptions { fake_super: Some(FakeWish::Users), ..SyncOptions::archive() }, "--fake-super"),
    ] {
        let options = TreeOptions { recursive: true, sync: Some(change), ..TreeOptions::default() };
        let error = receiver.sync_directory(&wish, &options, &|_| {}, &Stop::new()).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().starts_with(word), "{word}: {error}");
    }
}

/// Something large. What compresses would be there before it is cut off.
fn noise(root: &Path, bytes: usize) {
    let mut noise = vec![0; bytes];
    getrandom::fill(&mut noise).unwrap();
    fs::write(root.join("large"), noise).unwrap();
}

/// A receiver that fetches something large, and what becomes of it when `meanwhile` is done.
fn fetched_while(bed: &mut Bed, meanwhile: impl FnOnce(&mut Bed)) -> dray_core::Error {
    let sync = SyncOptions { times: true, ..SyncOptions::default() };
    let options = TreeOptions {
        recursive: true,
        rate_bytes: Some(10_000_000),
        sync: Some(sync),
        ..TreeOptions::default()
    };
    let (receiver, wish) = (node(&bed.path("receiver")), bed.wish("to"));
    let (begun, has_begun) = std::sync::mpsc::channel();
    let fetching = thread::spawn(move || {
        let observer = move |event: Event| {
            if matches!(event, Event::TreeProgress { done_bytes: 1.. }) {
                let _ = begun.send(());
            }
        };
        receiver.sync_directory(&wish, &options, &observer, &Stop::new())
    });
    has_begun.recv_timeout(LONG).unwrap();
    meanwhile(bed);
    fetching.join().unwrap().unwrap_err()
}

/// D10: who is cut off because the directory is not shared any more is told so, whatever is on its way.
#[test]
fn who_is_cut_off_hears_why() {
    let mut bed = Bed::new(|root| noise(root, 60_000_000));
    let error = fetched_while(&mut bed, |bed| bed.end());
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("no longer shared"), "{error}");
}

/// Threat model "receiver of a shared directory": whoever gives way hears that others had no turn, and that the same command goes on.
#[test]
fn who_gives_way_hears_why() {
    let mut bed = Bed::new(|root| noise(root, 60_000_000));
    let mut others = Vec::new();
    others.push(bed.places.take(bed.ticket.id, Some([127, 0, 0, 1].into())).unwrap());
    let error = fetched_while(&mut bed, |bed| {
        others.push(bed.places.take(bed.ticket.id, Some([10, 0, 0, 9].into())).unwrap());
    });
    assert!(error.kind() == ErrorKind::TimedOut && error.advice().unwrap().contains("goes on"), "{error}");
    assert!(error.to_string().contains("others fetch") && !others[0].stop.is_set(), "{error}");
}

/// Threat model "same host": what a directory lies in is not cleared of it.
#[test]
fn what_is_shared_here_deletes_nothing_here() {
    let bed = Bed::new(sample);
    let receiver = node(&bed.path("holder"));
    let sync = |to: &str, delete: bool| {
        let sync = SyncOptions { delete, ..SyncOptions::archive() };
        let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
        receiver.sync_directory(&bed.wish(to), &options, &|_| {}, &Stop::new())
    };
    for to in ["to", "."] {
        let error = sync(to, true).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.advice().unwrap().contains("path"), "{error}");
    }
    assert!(bed.path("from/sub/large").exists() && !bed.path("to").exists());
    sync("to", false).unwrap();
    assert_eq!(listing(&bed.path("from")), listing(&bed.path("to")));
}

/// Of what the receiver does alone the sender hears nothing, and it is done.
#[test]
fn what_is_replaced_is_kept_if_that_is_wished() {
    let bed = Bed::new(sample);
    bed.get("to").unwrap();
    fs::write(bed.path("to/one"), b"an older one").unwrap();
    for name in ["a", "b", "c"] {
        fs::write(bed.path("to").join(name), name).unwrap();
    }
    let kept = bed.path("kept");
    fs::create_dir(&kept).unwrap();
    let directory = Some(kept.as_os_str().as_encoded_bytes().to_vec());
    let backup = Some(super::super::SyncBackup { directory, suffix: Vec::new() });
    let copied = bed
        .sync("to", SyncOptions { delete: true, max_delete: Some(2), backup, ..SyncOptions::archive() })
        .unwrap();
    assert_eq!((copied.files, copied.deleted, copied.failed), (1, 2, 1));
    assert_eq!(fs::read(kept.join("one")).unwrap(), b"an older one");
    assert_eq!(fs::read(bed.path("to/one")).unwrap(), b"one");
    let left = |path: PathBuf| ["a", "b", "c"].iter().filter(|name| path.join(name).exists()).count();
    assert_eq!((left(kept), left(bed.path("to"))), (2, 1));
}

/// D10: a right that ends while a tree comes ends there, and the receiver is told why.
#[test]
fn a_right_that_ends_stops_a_fetch() {
    let bed = Bed::with(|root| noise(root, 20_000_000), Some(Duration::from_secs(2)));
    let sync = SyncOptions { times: true, ..SyncOptions::default() };
    let options = TreeOptions {
        recursive: true,
        rate_bytes: Some(2_000_000),
        sync: Some(sync),
        ..TreeOptions::default()
    };
    let receiver = node(&bed.path("receiver"));
    let error = receiver.sync_directory(&bed.wish("to"), &options, &|_| {}, &Stop::new()).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("expired"), "{error}");
    assert!(!bed.path("to/large").exists());
}
