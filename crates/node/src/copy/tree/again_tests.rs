//! A copy that was cut off, said again: far ends that receive, told what senders of this and of older versions tell, and copies within this
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::FrameHead;
use dray_core::message::{CopyRole, Entries, EntryFailed, Message, Tree};
use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind};
use dray_store::local::tree::{Landed, Landing, Origin, TreeWriter};
use dray_transfer::transport::{Channel, push_control, read_exact};

use super::again::{Whereabouts, source_here, source_there};
use super::copies::{channels, keeping};
use super::near::named;
use super::{AskedTrees, Knows, SyncOptions, TreeOptions, TreeRequest, tree_message};
use crate::{
    AddressFamily, Config, ConfigFile, Confinement, Event, Location, Node, Paths, SshOptions, Stop, lock,
};

const LONG: Duration = Duration::from_secs(60);
const SOURCE: [u8; 32] = [7; 32];
const MARK: &str = "user.dray.unfinished-tree";

fn node(dir: &Path) -> Node {
    Node::passing(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap()
}

fn is_marked(path: &Path) -> bool {
    rustix::fs::lgetxattr(path, MARK, &mut [0; 64][..]).is_ok()
}

fn directory(name: Option<&str>) -> Vec<u8> {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    let metadata = Metadata { mode: 0o755, ..Metadata::default() };
    Entry { name, kind: Kind::Directory { entries: None }, metadata }.to_bytes()
}

/// How much a sender tells before it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    /// The root and one directory, and no end.
    Some,
    /// All of it.
    All,
    /// All of it, and that something of it could not be read.
    Failure,
}

/// What a far end makes of a tree with one directory `sub` that `tree` asks it to take, and what it says of its landing.
fn upload(tree: &Tree, tells: Tells, within: Option<&Path>) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let far_node = node(place.path());
    let (mut near, far) = channels(64 * 1024);
    let within = within.map(|dir| Confinement::new(dir, false).unwrap());
    thread::scope(|scope| {
        let knows = Knows { again: true, ..Knows::default() };
        let (far_node, within) = (&far_node, within.as_ref());
        scope.spawn(move || {
            far_node.far_trees(
                far,
                AskedTrees { tree, chosen: None },
                Vec::new(),
                knows,
                within,
                &Stop::new(),
            )
        });
        let mut out = Vec::new();
        let mut items = vec![directory(None).into(), directory(Some("sub")).into(), Vec::new().into()];
        if tells == Tells::Failure {
            let (path, kind, text) = (b"x".to_vec().into(), ErrorKind::Refused.wire_code(), "no".into());
            push_control(
                &mut out,
                &Message::EntryFailed(EntryFailed { path, kind, text, unnamed: None, left_out: None }),
            );
        }
        let is_last = tells != Tells::Some;
        if is_last {
            items.push(Vec::new().into());
        }
        push_control(&mut out, &Message::Entries(Entries { items, owners: None, is_last, listed: None }));
        near.write_all(&out).unwrap();
        let (mut head, mut landed) = ([0; 8], Vec::new());
        // Who is cut off has gone when all that was told is taken in: that is heard of, or else awaited by the scope.
        while is_last || (tree.origin.is_some() && landed.is_empty()) {
            read_exact(&mut near, &mut head, Instant::now() + LONG).unwrap();
            let mut body = vec![0; FrameHead::decode(head).unwrap().body_bytes];
            read_exact(&mut near, &mut body, Instant::now() + LONG).unwrap();
            match Message::from_bytes(&body).unwrap() {
                Message::Landed(at) => landed.push(at.place),
                Message::Fault(fault) => panic!("{}", fault.text),
                Message::TreeDone(_) => break,
                _ => {}
            }
        }
        drop(near);
        landed
    })
}

/// A near end's wish to have `tree` taken to `to`.
fn wish(to: &Path, origin: Option<[u8; 32]>, options: &TreeOptions) -> Tree {
    let to = vec![to.to_str().unwrap().as_bytes().to_vec()];
    let tree = tree_message(CopyRole::Receive, to, vec![b"tree".to_vec()], options, false).unwrap();
    Tree { origin: origin.map(|known| Box::new(known.into())), ..tree }
}

fn recursive() -> TreeOptions {
    TreeOptions { recursive: true, ..TreeOptions::default() }
}

/// Issue "kill -9 in mid-tree, again", over the wire: goes on until a run came to its end, be it with failures; then, and for another
/// source of the same name, scp's rule. An older sender gets that always, and hears nothing that it does not know.
#[test]
fn where_it_goes_on_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("new");
    let options = recursive();
    let (ours, others, old) =
        (wish(&to, Some(SOURCE), &options), wish(&to, Some([8; 32]), &options), wish(&to, None, &options));
    for ends in [Tells::All, Tells::Failure] {
        assert_eq!(upload(&ours, Tells::Some, None), [1]);
        assert!(is_marked(&to));
        assert_eq!(upload(&ours, Tells::Some, None), [3]);
        // A dry run says so, too, and changes nothing.
        let dry = TreeOptions { dry_run: true, ..recursive() };
        assert_eq!(upload(&wish(&to, Some(SOURCE), &dry), Tells::All, None), [3]);
        assert!(is_marked(&to) && !to.join("tree").exists());
        assert_eq!(upload(&others, Tells::All, None), [0], "another host's");
        assert!(is_marked(&to) && to.join("tree/sub").exists());
        fs::remove_dir_all(to.join("tree")).unwrap();
        assert_eq!(upload(&ours, ends, None), [3]);
        assert!(!is_marked(&to) && !to.join("tree").exists());
        assert_eq!(upload(&ours, ends, None), [0]);
        assert!(to.join("tree/sub").exists(), "as scp has it");
        fs::remove_dir_all(&to).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(upload(&old, Tells::Some, None), [0; 0]);
        assert!(!is_marked(&to) && to.join("sub").exists());
    }
    assert!(to.join("tree/sub").exists());
}

/// The same for a key that is confined, and with what takes the mark without the same words: what is in SRC, and `sync`.
#[test]
fn other_ways_to_the_end_take_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("new");
    let confined = wish(Path::new("new"), Some(SOURCE), &recursive());
    let contents = Tree { names: vec![Vec::new().into()], ..wish(&to, None, &recursive()) };
    let sync = TreeOptions { sync: Some(SyncOptions::default()), ..recursive() };
    let sync = Tree { names: vec![Vec::new().into()], ..wish(&to, None, &sync) };
    for (way, within) in [(&contents, None), (&sync, None), (&confined, Some(dir.path()))] {
        assert_eq!(upload(&confined, Tells::Some, Some(dir.path())), [1]);
        assert!(is_marked(&to));
        upload(way, Tells::Some, within);
        assert!(is_marked(&to), "cut off");
        upload(way, Tells::All, within);
        assert!(!is_marked(&to) && !to.join("tree").exists());
        fs::remove_dir_all(&to).unwrap();
    }
}

/// The same within this machine, where a note says so; a dry run changes nothing, and the whole copy said again goes into itself.
#[test]
fn it_goes_on_here() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("tree"), dir.path().join("new"));
    fs::create_dir_all(from.join("sub")).unwrap();
    let node = node(&dir.path().join("data"));
    let known = source_here(&node, &from);
    let landing = Landing::resolve(&to, &[b"tree".to_vec()], false).unwrap();
    let mut writer = TreeWriter::new(landing.of_source(&Origin::Anywhere, &to, known), keeping());
    let metadata = Metadata { mode: 0o755, ..Metadata::default() };
    writer.root(0, &Entry { name: None, kind: Kind::Directory { entries: None }, metadata }).unwrap();
    drop(writer);
    // An identity that was made since changes nothing.
    let config = Config::new(Paths::below(&dir.path().join("data")), &ConfigFile::default()).unwrap();
    drop(Node::open(config).unwrap());
    let node = self::node(&dir.path().join("data"));
    let copy = |to: &Path, options: TreeOptions| {
        let told = std::sync::Mutex::new(Vec::new());
        let observer = |event: Event| {
            if let Event::Note(text) = event {
                lock(&told).push(text);
            }
        };
        let sources = vec![Location::Local(from.clone())];
        let request = TreeRequest { sources, destination: Location::Local(to.to_owned()), options };
        let copied = node.copy_trees(&request, &observer, &Stop::new());
        (copied.map(|copied| copied.made_destination), told.into_inner().unwrap())
    };
    let goes_on = |told: &[String]| matches!(told, [note] if note.starts_with("goes on in"));
    let (made, told) = copy(&to, TreeOptions { dry_run: true, ..recursive() });
    assert!(!made.unwrap() && goes_on(&told) && is_marked(&to) && !to.join("sub").exists(), "{told:?}");
    let (made, told) = copy(&to, recursive());
    assert!(made.unwrap() && goes_on(&told) && !is_marked(&to) && to.join("sub").exists(), "{told:?}");
    let (made, told) = copy(&to, recursive());
    assert!(!made.unwrap() && told.is_empty() && to.join("tree/sub").exists(), "{told:?}");
    // Into itself is refused as ever.
    assert_eq!(copy(&from.join("sub"), recursive()).0.unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(copy(dir.path(), recursive()).0.unwrap_err().kind(), ErrorKind::Usage);
}

/// Issue "another host's SRC of the same name is another": what knows a source is the same for the same words and the same user, and differs
/// with each of them; with the directory itself, too.
#[test]
fn a_source_is_known_by_all_that_leads_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("tree");
    fs::create_dir_all(from.join("sub")).unwrap();
    std::os::unix::fs::symlink("tree", dir.path().join("link")).unwrap();
    let (one, lasting) = (node(&dir.path().join("one")), dir.path().join("two"));
    let open = |data: &Path| Node::open(Config::new(Paths::below(data), &ConfigFile::default()).unwrap());
    drop(open(&lasting).unwrap());
    let two = node(&lasting);
    let here = |node: &Node, name: &str| source_here(node, &dir.path().join(name));
    assert_eq!(
        here(&one, "link/"),
        here(&node(&dir.path().join("three")), "tree"),
        "no identity, the same user"
    );
    assert_eq!(here(&two, "tree"), here(&node(&lasting), "link/sub/.."));
    assert_eq!(here(&one, "gone"), Vec::<[u8; 32]>::new());
    let there = |node: &Node, host: &str, port, path: &str| {
        let ssh = SshOptions { port, ..SshOptions::default() };
        source_there(node, host.as_ref(), &ssh, Some(Path::new(path)))
    };
    let with = |ssh: SshOptions| source_there(&one, "web1".as_ref(), &ssh, Some(Path::new("/etc")));
    let key = |name: &str| SshOptions { identities: vec![name.into()], ..SshOptions::default() };
    let family = |family| SshOptions { family: Some(family), ..SshOptions::default() };
    let all = [
        here(&one, "tree"),
        here(&two, "tree"),
        here(&open(&dir.path().join("four")).unwrap(), "tree"),
        here(&one, "tree/sub"),
        there(&one, "web1", None, "/etc"),
        there(&two, "web1", None, "/etc"),
        there(&one, "web2", None, "/etc"),
        there(&one, "me@web1", None, "/etc"),
        there(&one, "web1", Some(22), "/etc"),
        there(&one, "web1", None, "etc"),
        with(SshOptions { jump: Some("web2".into()), ..SshOptions::default() }),
        with(key("shop1")),
        with(key("shop2")),
        with(SshOptions { program: Some("web2".into()), ..SshOptions::default() }),
        with(SshOptions { options: vec!["shop1".into()], ..SshOptions::default() }),
        with(family(AddressFamily::Inet)),
        with(family(AddressFamily::Inet6)),
        {
            fs::rename(&from, dir.path().join("first")).unwrap();
            fs::create_dir(&from).unwrap();
            here(&one, "tree")
        },
    ];
    assert_eq!(there(&one, "web1", None, "/etc"), all[4]);
    let firsts: Vec<_> = all.iter().map(|known| known[0]).collect();
    for (at, known) in firsts.iter().enumerate() {
        assert!(!firsts[..at].contains(known), "{at}");
    }
    // Who had no identity when the copy was cut off is known by that, too.
    assert!(all[1][1] == all[0][0] && all[2][1] == all[0][0] && all[0].len() == 1);
}

/// The same: where a pattern led through is not told, so that what it found is no source that is known.
#[test]
fn a_pattern_on_the_way_is_no_source() {
    for (path, known) in [
        ("h/release-*", Some("h/release-1")),
        ("release-*", Some("release-1")),
        ("h/release-1/", Some("h/release-1/")),
        ("*/release-1", None),
        ("h/[ab]/release-?", None),
    ] {
        assert_eq!(named(Path::new(path), b"release-1"), known.map(PathBuf::from), "{path}");
    }
    let ssh = SshOptions::default();
    let node = node(Path::new("/proc/nowhere"));
    assert!(source_there(&node, "h".as_ref(), &ssh, None).is_empty());
}

/// Issue "the message after an interruption is true": the same command where that goes on, `SRC/.` where it does not, and both where an older
/// far end does not say.
#[test]
fn what_goes_on_is_said() {
    let nobody = |_: Event| {};
    let source = Location::Local(PathBuf::from("a/tree/"));
    let destination = Location::parse("host:new".into()).unwrap();
    let advice = |landed, kind, is_old| {
        let whereabouts = Whereabouts::new(&source, &destination, &nobody);
        whereabouts.hear(landed);
        if is_old {
            whereabouts.nobody_says();
        }
        let error = whereabouts.advise(Error::new(kind, "it ended").advise("the same command again goes on"));
        error.advice().unwrap().to_owned()
    };
    for landed in [Landed::There, Landed::Made, Landed::Again] {
        assert_eq!(advice(landed, ErrorKind::Interrupted, false), "the same command again goes on");
    }
    for kind in [ErrorKind::Interrupted, ErrorKind::Unreachable, ErrorKind::TimedOut, ErrorKind::NoSpace] {
        let told = advice(Landed::MadeUnmarked, kind, false);
        assert!(told.contains("write a/tree/. for a/tree/"), "{told}");
        assert_eq!(told.contains("free some space"), kind == ErrorKind::NoSpace, "{told}");
        let told = advice(Landed::There, kind, true);
        assert!(told.contains("if not, write a/tree/."), "{told}");
    }
    assert_eq!(advice(Landed::MadeUnmarked, ErrorKind::Refused, false), "the same command again goes on");
}
