//! The account that a sender gives of its walk, on the wire: nothing is deleted without it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::FrameHead;
use dray_core::message::{
    Backup, CopyRole, Entries, EntryFailed, FakeWish, Hello, InPlace, InPlaceRun, Listed, Message,
    PROTOCOL_VERSION, Removed, Tree, TreeDone, feature, sync_flag, tree_flag,
};
use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::negotiate;
use dray_store::local::tree::{Changes, DeleteOptions, Landing, Origin, SyncOptions, TreeWriter};
use dray_transfer::transport::{Channel, push_control, read_exact};
use dray_transfer::tree::{TreeSource, send, take};

use super::copies::{channels, keeping};
use super::near::required;
use super::removal::{Arrivals, Removal};
use super::sink::Writing;
use super::source::WalkSource;
use super::sync::{add_near, require_outside};
use super::{Confirm, SyncBackup, TreeOptions, TreeRequest, sync, tree_message, walk_options};
use crate::{Config, ConfigFile, Location, Node, Paths, Stop, lock};

const LONG: Duration = Duration::from_secs(60);

fn directory(name: Option<&str>) -> Vec<u8> {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    let metadata = Metadata { mode: 0o755, ..Metadata::default() };
    Entry { name, kind: Kind::Directory { entries: None }, metadata }.to_bytes()
}

/// What a receiver makes of a tree with one empty directory `d`, where `d/x` and `y` stand: which of them are left, and what it told.
fn received(batches: Vec<Entries>) -> (Vec<&'static str>, Vec<EntryFailed>, Result<TreeDone>) {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir_all(to.join("d")).unwrap();
    for name in ["d/x", "y"] {
        fs::write(to.join(name), b"old").unwrap();
    }
    let (mut near, mut far) = channels(64 * 1024);
    let sender = thread::spawn(move || {
        let mut out = Vec::new();
        let is_whole = batches.last().is_some_and(|batch| batch.is_last);
        batches.into_iter().for_each(|batch| push_control(&mut out, &Message::Entries(batch)));
        near.write_all(&out).unwrap();
        let mut head = [0; 8];
        while is_whole && read_exact(&mut near, &mut head, Instant::now() + LONG).is_ok() {
            let mut body = vec![0; FrameHead::decode(head).unwrap().body_bytes];
            read_exact(&mut near, &mut body, Instant::now() + LONG).unwrap();
            if matches!(Message::from_bytes(&body).unwrap(), Message::TreeDone(_)) {
                return;
            }
        }
    });
    let failed = std::sync::Mutex::new(Vec::new());
    let on_failed = |entry: &EntryFailed| lock(&failed).push(entry.clone());
    let make = || {
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()])?;
        let sync = SyncOptions { delete: Some(DeleteOptions::default()), ..SyncOptions::default() };
        let changes = Changes { sync: Some(sync), ..Changes::default() };
        Ok(Writing::new(TreeWriter::new(landing, keeping()).with_changes(changes), 1, false, &on_failed))
    };
    let done = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), LONG);
    drop(far);
    sender.join().unwrap();
    let left = ["d/x", "y"].into_iter().filter(|name| to.join(name).exists()).collect();
    (left, failed.into_inner().unwrap(), done)
}

fn batch(items: Vec<Vec<u8>>, is_last: bool, listed: Option<Listed>) -> Entries {
    Entries { items: items.into_iter().map(Into::into).collect(), owners: None, is_last, listed }
}

fn whole() -> Vec<Vec<u8>> {
    vec![directory(None), directory(Some("d")), Vec::new(), Vec::new()]
}

/// Issue "Nothing is deleted unless the listing was complete": the sender's word, or its lack, decides, and a stream that is cut has none.
#[test]
fn nothing_is_deleted_without_the_senders_word() {
    let listed = |unlisted: &[u16], is_complete| Some(Listed { unlisted: unlisted.to_vec(), is_complete });
    for (words, left, fails) in [
        (listed(&[], true), &[][..], false),
        (None, &["d/x", "y"], true),
        (listed(&[], false), &["d/x", "y"], true),
        // Before the item that ends `d`: `d` was not looked into.
        (listed(&[2], true), &["d/x"], false),
        (listed(&[1], true), &["y"], false),
    ] {
        let (found, failed, done) = received(vec![batch(whole(), true, words.clone())]);
        assert_eq!(found, left, "{words:?}");
        assert_eq!(done.unwrap().failed, u64::from(fails), "{words:?}");
        assert_eq!(failed.iter().any(|entry| entry.text.contains("nothing was deleted")), fails, "{words:?}");
    }
    // The mark may come in a batch of its own.
    let mut items = whole();
    let rest = items.split_off(2);
    let batches = vec![batch(items, false, listed(&[2], false)), batch(rest, true, listed(&[], true))];
    assert_eq!(received(batches).0, ["d/x"]);
    // Cut in the middle, with a word that came too early.
    let (found, _, done) = received(vec![batch(whole(), false, listed(&[], true))]);
    assert!(found.len() == 2 && done.is_err(), "{found:?} {done:?}");
}

/// Issue "old peers give a clear error": a peer that does not know how to synchronise, at either end, is refused by the name of that.
#[test]
fn an_old_peer_is_refused_by_name() {
    let hello = |features: &[&str], required| Hello {
        version: PROTOCOL_VERSION,
        features: features.iter().map(|&feature| feature.to_owned()).collect(),
        required,
        agent: "test".into(),
    };
    let old = hello(&[feature::TREE, feature::TREE_LANES], Vec::new());
    let sync = super::SyncOptions::default();
    let new = |is_sync| {
        let known = [feature::TREE, feature::TREE_LANES, feature::SYNC];
        hello(&known, required(Some(&sync).filter(|_| is_sync)))
    };
    for (ours, theirs) in [(&new(true), &old), (&old, &new(true))] {
        let error = negotiate(ours, theirs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("sync"), "{error}");
    }
    assert!(negotiate(&new(false), &old).is_ok() && negotiate(&new(true), &new(true)).is_ok());
    // What came later each has a name of its own.
    let chosen = super::SyncOptions { chosen: Some(Arc::default()), ..super::SyncOptions::default() };
    let rules = super::SyncOptions { rules: vec![b": .rules".to_vec()], ..super::SyncOptions::default() };
    let backup = super::SyncOptions { backup: Some(SyncBackup::default()), ..super::SyncOptions::default() };
    let removing = super::SyncOptions { remove_sources: true, ..super::SyncOptions::default() };
    let directories = super::SyncOptions { directories: true, ..super::SyncOptions::default() };
    let patient = super::SyncOptions { timeout_s: Some(0), ..super::SyncOptions::default() };
    let fake = super::SyncOptions { fake_super: Some(FakeWish::Users), ..super::SyncOptions::default() };
    let atomic = super::SyncOptions { atomic: true, ..super::SyncOptions::default() };
    let in_place = super::SyncOptions { in_place: true, ..super::SyncOptions::default() };
    for (later, name) in [
        (fake, feature::SYNC_FAKE_SUPER),
        (chosen, feature::SYNC_LIST),
        (atomic, feature::SYNC_ATOMIC),
        (in_place, feature::SYNC_IN_PLACE),
        (rules, feature::SYNC_RULES),
        (backup, feature::SYNC_BACKUP),
        (removing, feature::SYNC_REMOVE),
        (directories, feature::SYNC_DIRS),
        (patient, feature::SYNC_TIMEOUT),
    ] {
        let error =
            negotiate(&hello(&[feature::TREE, feature::SYNC, name], required(Some(&later))), &new(true));
        assert!(error.unwrap_err().to_string().contains(name));
    }
}

/// Issue "nothing is deleted wrongly": directories of the near end count where both ends are one machine, and there alone; a source that lies in
/// the destination is not sent.
#[test]
fn directories_of_the_near_end_are_known_here() {
    let place = tempfile::tempdir().unwrap();
    let inner = place.path().join("d/inner");
    fs::create_dir_all(&inner).unwrap();
    let options = TreeOptions {
        sync: Some(super::SyncOptions { delete: true, ..super::SyncOptions::default() }),
        ..TreeOptions::default()
    };
    let mut tree = tree_message(CopyRole::Send, vec![b"x".to_vec()], Vec::new(), &options, false).unwrap();
    let refused =
        |tree: &Tree, path: &Path| require_outside(tree, &[path.to_owned()], &Origin::Anywhere).is_err();
    assert!(!refused(&tree, &inner));
    add_near(&mut tree, [place.path(), Path::new("/nowhere")].into_iter());
    let found = fs::metadata(place.path()).unwrap();
    let sources = |tree: &Tree| sync::options(tree, &sync::beside_here).unwrap().unwrap().sources;
    assert!(sources(&tree).is_empty(), "the destination is no source");
    let upload = Tree { role: CopyRole::Receive, ..tree.clone() };
    assert_eq!(sources(&upload), [(found.dev(), found.ino())]);
    assert!(refused(&tree, &inner) && !refused(&tree, place.path()) && !refused(&tree, Path::new("/")));
    let near = tree.sync.as_mut().unwrap().near.as_mut().unwrap();
    near.boot = vec![7; 16].into();
    assert!(!refused(&tree, &inner), "of another machine");
    assert!(sources(&Tree { role: CopyRole::Receive, ..tree }).is_empty());
}

/// A wish to bring all of a directory, and to remove it there, or not.
fn removing(is_on: bool, is_dry: bool) -> Tree {
    let sync = super::SyncOptions { remove_sources: is_on, ..super::SyncOptions::default() };
    let options =
        TreeOptions { recursive: true, dry_run: is_dry, sync: Some(sync), ..TreeOptions::default() };
    tree_message(CopyRole::Send, vec![b"x".to_vec()], vec![Vec::new()], &options, false).unwrap()
}

/// S84: what might lose what a run moved is refused at this end, and by either end that is asked for it by one that does not refuse it.
#[test]
fn sources_do_not_go_with_what_is_not_safe() {
    let usage = |error: Error, said: &str| {
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(said), "{error}");
    };
    let sync = |change: &dyn Fn(&mut super::SyncOptions)| {
        let mut sync = super::SyncOptions { remove_sources: true, ..super::SyncOptions::default() };
        change(&mut sync);
        sync.wish(false, false, false)
    };
    assert!(sync(&|_| {}).is_ok());
    usage(sync(&|sync| sync.delete = true).unwrap_err(), "--delete");
    usage(sync(&|sync| sync.delete_excluded = true).unwrap_err(), "--delete");
    usage(sync(&|sync| sync.hard_links = true).unwrap_err(), "-H");
    usage(sync(&|sync| sync.backup = Some(SyncBackup::default())).unwrap_err(), "--backup");
    usage(sync(&|sync| sync.fake_super = Some(FakeWish::Sender)).unwrap_err(), "--fake-super");
    let asked = |change: &dyn Fn(&mut Tree), said: &str| {
        for is_on in [true, false] {
            let mut tree = removing(is_on, false);
            change(&mut tree);
            let names: Vec<Vec<u8>> = tree.names.iter().map(|name| name.to_vec()).collect();
            let ends = [
                sync::options(&tree, &sync::beside_here).map(|_| ()),
                walk_options(&tree, &names).map(|_| ()),
            ];
            for end in ends {
                match is_on {
                    true => usage(end.unwrap_err(), said),
                    false => end.unwrap(),
                }
            }
        }
    };
    let flag = |tree: &mut Tree, flag| tree.sync.as_mut().unwrap().flags |= flag;
    asked(&|tree| flag(tree, sync_flag::DELETE), "--delete");
    asked(&|tree| flag(tree, sync_flag::DELETE_EXCLUDED), "--delete");
    asked(&|tree| tree.flags |= tree_flag::HARD_LINKS, "-H");
    let backup = Backup { directory: None, suffix: b"~".to_vec().into() };
    asked(&|tree| tree.sync.as_mut().unwrap().backup = Some(Box::new(backup.clone())), "--backup");
    for wish in FAKE_WISHES {
        asked(&|tree| tree.sync.as_mut().unwrap().fake = Some(wish), "--fake-super");
    }
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
    for several in [&["", ""][..], &["a", ""], &["a", "b", "a"]] {
        asked(&|tree| (tree.role, tree.names) = (CopyRole::Receive, names(several)), "several SRC");
    }
    // Names of their own go anywhere.
    let mut apart = removing(true, false);
    (apart.role, apart.names) = (CopyRole::Receive, names(&["a", "b"]));
    assert!(sync::options(&apart, &sync::beside_here).is_ok());
}

const FAKE_WISHES: [FakeWish; 4] = [FakeWish::Users, FakeWish::Sender, FakeWish::Receiver, FakeWish::Both];

/// S88: an ACL, which could let others write to what stands for an entry, is refused at this end, and by either end that is asked for it by one that does not refuse it.
#[test]
fn acls_do_not_go_with_attributes_for_owners() {
    let usage = |error: Error| {
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("-A"), "{error}");
    };
    for fake in FAKE_WISHES {
        for (acls, attributes) in [(true, false), (true, true), (false, true), (false, false)] {
            let sync = super::SyncOptions { acls, attributes, ..super::SyncOptions::default() };
            let wanted = super::SyncOptions { fake_super: Some(fake), ..sync.clone() };
            match acls {
                true => usage(wanted.wish(false, false, false).unwrap_err()),
                false => assert!(wanted.wish(false, false, false).is_ok()),
            }
            for role in [CopyRole::Send, CopyRole::Receive] {
                let options =
                    TreeOptions { recursive: true, sync: Some(sync.clone()), ..TreeOptions::default() };
                let mut tree =
                    tree_message(role, vec![b"x".to_vec()], vec![Vec::new()], &options, false).unwrap();
                let asked = |tree: &Tree| match role {
                    CopyRole::Receive => sync::options(tree, &sync::beside_here).map(|_| ()),
                    CopyRole::Send => walk_options(tree, &[Vec::new()]).map(|_| ()),
                };
                asked(&tree).unwrap();
                tree.sync.as_mut().unwrap().fake = Some(fake);
                match acls {
                    true => usage(asked(&tree).unwrap_err()),
                    false => asked(&tree).unwrap(),
                }
            }
        }
        // Attributes of no sort are of all sorts.
        let mut tree = removing(false, false);
        tree.flags |= tree_flag::XATTRS;
        let wish = tree.sync.as_mut().unwrap();
        (wish.fake, wish.flags) = (Some(fake), wish.flags & !(sync_flag::ACLS | sync_flag::ATTRIBUTES));
        usage(walk_options(&tree, &[Vec::new()]).unwrap_err());
    }
}

/// S89: what would make something else of a destination that is switched as a whole than what its one source has is refused by either end that is asked for it, also by
/// one that does not refuse it itself; what keeps to the source is taken.
#[test]
fn what_is_switched_goes_alone() {
    let sync = super::SyncOptions { delete: true, atomic: true, ..super::SyncOptions::default() };
    let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
    let asked = |role, change: &dyn Fn(&mut Tree)| {
        let mut tree = tree_message(role, vec![b"x".to_vec()], vec![Vec::new()], &options, false).unwrap();
        change(&mut tree);
        let names: Vec<Vec<u8>> = tree.names.iter().map(|name| name.to_vec()).collect();
        match role {
            CopyRole::Receive => sync::options(&tree, &sync::beside_here).map(|_| ()),
            CopyRole::Send => walk_options(&tree, &names).map(|_| ()),
        }
    };
    let wish = |change: &'static dyn Fn(&mut dray_core::message::SyncWish)| {
        move |tree: &mut Tree| change(tree.sync.as_deref_mut().unwrap())
    };
    let backup = Backup { directory: None, suffix: b"~".to_vec().into() };
    let basis = dray_core::message::Basis {
        usage: dray_core::message::BasisUsage::Link,
        places: vec![b"../other".to_vec().into()],
    };
    let names = |tree: &mut Tree, names: &[&str]| {
        tree.names = names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
    };
    let rules = |tree: &mut Tree, flags: u64, rule: &[u8]| {
        let wish = tree.sync.as_mut().unwrap();
        (wish.rules, wish.flags) = (Some(vec![rule.to_vec().into()]), wish.flags | flags);
    };
    let excluded = sync_flag::DELETE_EXCLUDED;
    type Change = Box<dyn Fn(&mut Tree)>;
    let refused: Vec<(&str, Change)> = vec![
        ("--delete", Box::new(wish(&|wish| wish.flags &= !sync_flag::DELETE))),
        ("-u", Box::new(wish(&|wish| wish.flags |= sync_flag::UPDATE))),
        ("--inplace", Box::new(wish(&|wish| wish.flags |= sync_flag::IN_PLACE))),
        ("--existing", Box::new(wish(&|wish| wish.flags |= sync_flag::EXISTING))),
        ("--ignore-existing", Box::new(wish(&|wish| wish.flags |= sync_flag::IGNORE_EXISTING))),
        ("--files-from", Box::new(wish(&|wish| wish.flags |= sync_flag::CHOSEN))),
        ("directories alone", Box::new(wish(&|wish| wish.flags |= sync_flag::DIRECTORIES))),
        ("--max-size", Box::new(wish(&|wish| wish.max_size_bytes = Some(1)))),
        ("--min-size", Box::new(wish(&|wish| wish.min_size_bytes = Some(1)))),
        ("--fake-super", Box::new(wish(&|wish| wish.fake = Some(FakeWish::Users)))),
        (
            "--backup",
            Box::new(move |tree| tree.sync.as_mut().unwrap().backup = Some(Box::new(backup.clone()))),
        ),
        (
            "--link-dest",
            Box::new(move |tree| tree.sync.as_mut().unwrap().basis = Some(Box::new(basis.clone()))),
        ),
        ("directories alone", Box::new(|tree| tree.flags &= !tree_flag::RECURSIVE)),
        ("slash", Box::new(move |tree| names(tree, &["a"]))),
        ("slash", Box::new(move |tree| names(tree, &["", ""]))),
        ("--delete-excluded", Box::new(move |tree| rules(tree, 0, b"-x"))),
        ("protect", Box::new(move |tree| rules(tree, excluded, b"=-r x"))),
        ("protect", Box::new(move |tree| rules(tree, excluded, b"=-sr x"))),
        ("protect", Box::new(move |tree| rules(tree, excluded, b": .rules"))),
        ("protect", Box::new(move |tree| rules(tree, excluded, b":-r .rules"))),
    ];
    for (said, change) in &refused {
        for role in [CopyRole::Receive, CopyRole::Send] {
            let error = asked(role, change).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{said}: {error}");
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }
    for rule in [&b"-x"[..], b"+x", b"=-s x", b"=+r x", b":g .gitignore", b":- .rules", b":s .rules"] {
        for role in [CopyRole::Receive, CopyRole::Send] {
            asked(role, &|tree| rules(tree, excluded, rule)).unwrap();
        }
    }
}

/// What a sender with files `a` and `b` makes of what a receiver says once it was told all: what is left, how it ended, and its answers.
fn told_in_place(tree: &Tree, words: Vec<Message>) -> (Vec<String>, Result<TreeDone>, Vec<Removed>) {
    let place = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(place.path().join(name), b"content").unwrap();
    }
    let (mut near, far) = channels(64 * 1024);
    let receiver = thread::spawn(move || {
        let (mut head, mut removed, mut words) = ([0; 8], Vec::new(), Some(words));
        while read_exact(&mut near, &mut head, Instant::now() + LONG).is_ok() {
            let mut body = vec![0; FrameHead::decode(head).unwrap().body_bytes];
            read_exact(&mut near, &mut body, Instant::now() + LONG).unwrap();
            let mut out = Vec::new();
            match Message::from_bytes(&body).unwrap() {
                Message::Entries(entries) if entries.is_last => {
                    words.take().into_iter().flatten().for_each(|word| push_control(&mut out, &word));
                }
                Message::Removed(word) => {
                    removed.push(word);
                    if word.is_last {
                        push_control(
                            &mut out,
                            &Message::TreeDone(TreeDone { entries: 3, ..TreeDone::default() }),
                        );
                    }
                }
                _ => {}
            }
            if near.write_all(&out).is_err() {
                break;
            }
        }
        removed
    });
    let mut source = place.path().as_os_str().to_owned();
    source.push("/");
    let walk = walk_options(tree, &[Vec::new()]).unwrap();
    let mut source = WalkSource::new(vec![source.into()], walk, false, Stop::new())
        .removing(Removal::of(tree, Origin::Anywhere));
    let done = send(Box::new(far), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| LONG);
    let mut left: Vec<String> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    (left, done, receiver.join().unwrap())
}

/// Issue "--remove-source-files", on the wire: only what was told, and asked to go, goes; each time once; a receiver that names anything else breaks the protocol.
#[test]
fn a_receiver_names_what_goes() {
    let in_place = |runs: &[(u64, u64)], settled, is_last| {
        let runs = runs.iter().map(|(first, count)| InPlaceRun { first: *first, count: *count }).collect();
        Message::InPlace(InPlace { runs, settled, is_last })
    };
    let on = removing(true, false);
    // The root is the first entry.
    let (left, done, removed) =
        told_in_place(&on, vec![in_place(&[(1, 1)], 1, false), in_place(&[(1, 1)], 3, true)]);
    assert_eq!((left, done.unwrap().entries), (vec!["b".to_owned()], 3));
    assert_eq!(removed, [Removed { count: 1, is_last: false }, Removed { count: 0, is_last: true }]);
    // What was settled without being named stays, and so does a directory.
    let (left, _, removed) =
        told_in_place(&on, vec![in_place(&[], 3, false), in_place(&[(0, 1), (2, 1)], 3, true)]);
    assert_eq!((left.len(), removed.iter().map(|it| it.count).sum::<u64>()), (2, 0));
    for (tree, word) in [
        (&on, in_place(&[(1, 3)], 3, true)),
        (&on, in_place(&[(1, 1)], 4, true)),
        (&removing(false, false), in_place(&[(1, 1)], 3, true)),
        (&removing(true, true), in_place(&[(1, 1)], 3, true)),
    ] {
        let (left, done, _) = told_in_place(tree, vec![word.clone()]);
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Protocol, "{word:?}");
        assert_eq!(left, ["a", "b"], "{word:?}");
    }
    assert!(!Arrivals::of(&removing(true, true)).is_on() && Arrivals::of(&on).is_on());
}

/// Issue "nothing is deleted wrongly": whoever is to confirm that the sources are what they were is asked when they have been read; with an error nothing
/// is deleted, neither within a machine nor by a receiver, who is not told that all was listed.
#[test]
fn what_is_not_confirmed_is_not_deleted() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from/"), place.path().join("to"));
    for (dir, file) in [(&from, "new"), (&to, "old")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join(file), file).unwrap();
    }
    let config = Config::new(Paths::below(&place.path().join("data")), &ConfigFile::default()).unwrap();
    let node = Node::passing(config).unwrap();
    for is_there in [false, true] {
        let confirm = Confirm::new(move || match is_there {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Changed, "it was unmounted")),
        });
        let sync = super::SyncOptions {
            delete: true,
            confirm: Some(confirm.clone()),
            ..super::SyncOptions::archive()
        };
        let options = TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() };
        let sources = vec![Location::Local(from.clone())];
        let request = TreeRequest { sources, destination: Location::Local(to.clone()), options };
        let copied = node.copy_trees(&request, &|_| {}, &Stop::new()).unwrap();
        assert_eq!((copied.deleted, copied.failed > 0), (u64::from(is_there), !is_there), "{copied:?}");
        assert_eq!((to.join("old").exists(), to.join("new").exists()), (!is_there, true));
        let walk = walk_options(&removing(false, false), &[Vec::new()]).unwrap();
        let mut walk = WalkSource::new(vec![from.clone()], walk, false, Stop::new())
            .telling_listed(true)
            .confirming(Some(confirm));
        let batch = walk.next_batch().unwrap();
        let listed = batch.entries.unwrap().listed;
        assert_eq!(listed.is_some_and(|listed| listed.is_complete), is_there);
        assert_eq!(batch.failed.len(), usize::from(!is_there));
    }
}
