//! The account that a sender gives of its walk, on the wire: nothing is deleted without it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::Result;
use dray_core::frame::FrameHead;
use dray_core::message::{Entries, EntryFailed, Listed, Message, TreeDone};
use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_store::local::tree::{Changes, DeleteOptions, Landing, Origin, SyncOptions, TreeWriter};
use dray_transfer::transport::{Channel, push_control, read_exact};
use dray_transfer::tree::take;

use super::copies::{channels, keeping};
use super::sink::Writing;
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
