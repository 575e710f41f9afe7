//! The account that a sender gives of its walk, on the wire: nothing is deleted without it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::FrameHead;
use dray_core::message::{
    CopyRole, Entries, EntryFailed, Hello, Listed, Message, PROTOCOL_VERSION, Tree, TreeDone, feature,
};
use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{ErrorKind, Result};
use dray_engine::session::negotiate;
use dray_store::local::tree::{Changes, DeleteOptions, Landing, Origin, SyncOptions, TreeWriter};
use dray_transfer::transport::{Channel, push_control, read_exact};
use dray_transfer::tree::take;

use super::copies::{channels, keeping};
use super::near::required;
use super::sink::Writing;
use super::sync::{add_near, require_outside};
use super::{TreeOptions, sync, tree_message};
use crate::lock;

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
    for (later, name) in [(chosen, feature::SYNC_LIST), (rules, feature::SYNC_RULES)] {
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
    let sources = |tree: &Tree| sync::options(tree).unwrap().unwrap().sources;
    assert!(sources(&tree).is_empty(), "the destination is no source");
    let upload = Tree { role: CopyRole::Receive, ..tree.clone() };
    assert_eq!(sources(&upload), [(found.dev(), found.ino())]);
    assert!(refused(&tree, &inner) && !refused(&tree, place.path()) && !refused(&tree, Path::new("/")));
    let near = tree.sync.as_mut().unwrap().near.as_mut().unwrap();
    near.boot = vec![7; 16].into();
    assert!(!refused(&tree, &inner), "of another machine");
    assert!(sources(&Tree { role: CopyRole::Receive, ..tree }).is_empty());
}
