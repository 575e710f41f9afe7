//! What a receiver takes for in place where sources lose what is: all that was to be kept of it, and the bytes that were compared.

use crate::local::file_systems::{KIND, XFS};
use dray_core::tree::Xattr;

use super::syncing::filled;
use super::*;

/// Into `to` itself, keeping owners and attributes, too.
fn moving(to: &Path, write: WriteOptions, sync: SyncOptions) -> TreeWriter {
    let sync = SyncOptions { links: true, specials: true, removes_sources: true, ..sync };
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    TreeWriter::new(landing, write).with_changes(Changes { sync: Some(sync), ..Changes::default() })
}

/// S84, ADR 23: a file here that has another name is held to what was hashed, too, whether sources go or not: bytes that somebody wrote since, under either name, are not taken for
/// what the source has.
#[test]
fn a_file_of_two_names_is_held_to_what_was_compared() {
    // Without a journal all comes anew.
    KIND.set(Some(XFS));
    for (removes_sources, is_written) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        fs::hard_link(to.join("f"), dir.path().join("other")).unwrap();
        let mut writer = moving(&to, MINE, SyncOptions::default());
        let settings = std::rc::Rc::get_mut(&mut writer.settings).expect("nobody else has them yet");
        settings.changes.sync.as_mut().expect("a sync").removes_sources = removes_sources;
        writer.root(0, &directory(None)).unwrap();
        let wanted =
            Entry { metadata: Metadata { mtime_s: 7, ..file("f", b"old").metadata }, ..file("f", b"old") };
        let Ok(Placed::Wanted(mut target, Some(hash))) = writer.entry(&wanted) else { panic!() };
        assert_eq!(hash, *blake3::hash(b"old").as_bytes());
        if is_written {
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::write(dir.path().join("other"), b"NEW").unwrap();
        } else {
            // Another name more or less, or another time, is no change.
            fs::hard_link(to.join("f"), dir.path().join("third")).unwrap();
            fs::File::open(dir.path().join("other")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        match writer.keep_same(&mut target, &finished(b"old")) {
            Err(error) => assert!(is_written && error.kind() == ErrorKind::Changed, "{error}"),
            Ok(_) => assert!(!is_written, "what was written since is taken for what the source has"),
        }
        writer.settle(*target, None);
    }
}

/// S84: what a receiver may not keep (attributes that only root sets, a setuid bit of another owner) counts as lacking where the source would go with the only one, each time: when the file
/// comes, and when a later run finds it in place; where no source goes it is no failure.
#[test]
fn what_may_not_be_kept_is_lacking() {
    // Without a journal all comes anew.
    KIND.set(Some(XFS));
    let confined = WriteOptions { harmless: true, xattrs: true, ..MINE };
    let with = |name: &[u8], mut entry: Entry| {
        entry.metadata.xattrs = vec![Xattr { name: name.to_vec(), value: b"x".to_vec() }];
        entry
    };
    let attributed = |entry: Entry| with(b"trusted.dray", entry);
    let setuid = |entry: Entry| Entry { metadata: Metadata { mode: 0o4755, ..entry.metadata }, ..entry };
    let fifo = || entry(Some("f"), Kind::Fifo, 0o644);
    let wants: [(&str, Entry); 5] = [
        ("attributes", attributed(file("f", b"old"))),
        ("setuid", setuid(file("f", b"old"))),
        ("attributes of a fifo", attributed(fifo())),
        ("nothing", file("f", b"old")),
        // A label is the host's, and not the file's.
        ("nothing", with(b"security.selinux", file("f", b"old"))),
    ];
    for (what, wanted) in wants {
        let dir = filled(&["other"]);
        let to = dir.path().join("to");
        for again in [false, true] {
            let mut writer = moving(&to, confined, SyncOptions::default());
            writer.root(0, &directory(None)).unwrap();
            match writer.entry(&wanted).unwrap() {
                Placed::Wanted(mut target, known) => {
                    assert_eq!(known.is_some(), again, "{what}");
                    let identity = if again {
                        writer.keep_same(&mut target, &finished(b"old")).unwrap()
                    } else {
                        let mut new = target.create().unwrap();
                        new.write(b"old").unwrap();
                        target.finish(new, &finished(b"old")).unwrap()
                    };
                    writer.settle(*target, Some(identity));
                }
                Placed::Done | Placed::Unchanged => {}
                placed => panic!("{what}: {placed:?}"),
            }
            assert_eq!(writer.troubles() > 0, what != "nothing", "{what}, again: {again}");
        }
    }
    let dir = filled(&["other"]);
    let mut writer = moving(&dir.path().join("to"), confined, SyncOptions::default());
    if let Some(sync) = std::rc::Rc::get_mut(&mut writer.settings).and_then(|it| it.changes.sync.as_mut()) {
        sync.removes_sources = false;
    }
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &attributed(file("f", b"old")), b"old").unwrap();
    assert_eq!(writer.troubles(), 0);
}
