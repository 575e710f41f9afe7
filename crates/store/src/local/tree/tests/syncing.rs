//! Deleting what the source has not: what is, what never is, and whoever works against it.

use std::collections::BTreeSet;

use dray_core::limits::SYNC_CANDIDATES_BYTES_MAX;

use super::*;

/// A run that deletes, into `to` itself.
fn deleting(to: &Path, sync: SyncOptions) -> TreeWriter {
    let delete = sync.delete.or_else(|| Some(DeleteOptions::default()));
    let sync = SyncOptions { links: true, delete, itemize: true, ..sync };
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    TreeWriter::new(landing, MINE).with_changes(changes)
}

fn excluding(rules: &[&str]) -> SyncOptions {
    let rules = Excludes::of_rules(rules.iter().map(|rule| rule.as_bytes())).unwrap();
    SyncOptions { rules, ..SyncOptions::default() }
}

/// Deletes to the end: what was deleted, and what failed.
fn finish(writer: &mut TreeWriter) -> (BTreeSet<String>, Vec<(Vec<u8>, dray_core::Error)>) {
    let mut failed = Vec::new();
    while writer.delete_some(&mut failed).unwrap() {}
    let deleted = writer.take_done().into_iter().filter(|done| done.letters.is_none());
    (deleted.map(|done| String::from_utf8(done.path).unwrap()).collect(), failed)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A destination with files `names`.
fn filled(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join("to").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"old").unwrap();
    }
    dir
}

/// Issue "`--delete`": names between those that are told, before and behind them, at every level, and whole directories; what the rules
/// leave out stays, and the directory with it.
#[test]
fn what_the_source_has_not_is_deleted() {
    let names =
        ["a", "d/1", "d/5", "d/9", "d/sub/x", "d/sub/y", "gone/x/y", "keep.o", "old/keep.o", "old/z", "z"];
    let dir = filled(&names);
    let to = dir.path().join("to");
    let mut writer = deleting(&to, excluding(&["-*.o"]));
    writer.root(0, &directory(None)).unwrap();
    writer.entry(&directory(Some("d"))).unwrap();
    put(&mut writer, &file("5", b"new"), b"new").unwrap();
    writer.entry(&directory(Some("sub"))).unwrap();
    put(&mut writer, &file("x", b"new"), b"new").unwrap();
    writer.leave();
    writer.leave();
    writer.leave();
    assert!(to.join("z").exists(), "nothing goes before the end");
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    let expected = ["a", "d/1", "d/9", "d/sub/y", "gone/", "gone/x/", "gone/x/y", "old/z", "z"];
    assert_eq!(deleted, set(&expected));
    for name in ["d/5", "d/sub/x", "keep.o", "old/keep.o"] {
        assert!(to.join(name).exists(), "{name}");
    }
    // The time of a directory in which something was deleted is that of the source.
    assert_eq!(fs::metadata(to.join("d")).unwrap().mtime(), 1_000_000_000);
}

/// Issue "Nothing is deleted unless the listing was complete": not before it is said, not where the sender did not look, not below what is
/// new, and nothing if the run is dropped.
#[test]
fn what_was_not_looked_at_is_not_deleted() {
    let dir = filled(&["mount/x", "seen/x", "z"]);
    let to = dir.path().join("to");
    let tell = |writer: &mut TreeWriter| {
        writer.root(0, &directory(None)).unwrap();
        writer.entry(&directory(Some("mount"))).unwrap();
        writer.unlisted();
        writer.leave();
        writer.entry(&directory(Some("seen"))).unwrap();
        writer.leave();
        writer.leave();
    };
    let mut dropped = deleting(&to, SyncOptions::default());
    tell(&mut dropped);
    drop(dropped);
    let mut incomplete = deleting(&to, SyncOptions::default());
    tell(&mut incomplete);
    assert!(incomplete.delete_nothing());
    assert_eq!(finish(&mut incomplete).0, set(&[]));
    for name in ["mount/x", "seen/x", "z"] {
        assert!(to.join(name).exists(), "{name}");
    }
    let mut writer = deleting(&to, SyncOptions::default());
    tell(&mut writer);
    assert_eq!(finish(&mut writer).0, set(&["seen/x", "z"]));
    assert!(to.join("mount/x").exists());
}

/// S52 for deletion: a link is deleted itself, a directory that was swapped for another or for a link keeps what is in it, and what came
/// after the listing stays.
#[test]
fn nothing_outside_is_deleted() {
    let dir = filled(&["d/x", "d/y", "swapped/x", "gone/x"]);
    let (to, outside) = (dir.path().join("to"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x"), b"mine").unwrap();
    symlink(&outside, to.join("link")).unwrap();
    symlink(&outside, to.join("gone/link")).unwrap();
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    for name in ["d", "swapped"] {
        writer.entry(&directory(Some(name))).unwrap();
        writer.leave();
    }
    writer.leave();
    // Between the listing and the end.
    fs::rename(to.join("swapped"), dir.path().join("moved")).unwrap();
    symlink(&outside, to.join("swapped")).unwrap();
    fs::rename(to.join("d"), dir.path().join("other")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d/x"), b"somebody else's").unwrap();
    fs::write(to.join("late"), b"late").unwrap();
    let (deleted, failed) = finish(&mut writer);
    assert_eq!(deleted, set(&["gone/", "gone/link", "gone/x", "link"]));
    let mut told: Vec<_> =
        failed.iter().map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect();
    told.sort();
    assert_eq!(told, ["d", "swapped"]);
    assert_eq!(fs::read(outside.join("x")).unwrap(), b"mine");
    assert!(to.join("d/x").exists() && to.join("late").exists() && dir.path().join("moved/x").exists());
}

/// The same while somebody swaps the directory for a link all the time.
#[test]
fn a_racing_swap_deletes_nothing_outside() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = filled(&["keep"]);
    let (to, outside) = (dir.path().join("to"), dir.path().join("outside"));
    let inner = to.join("gone/inner");
    fs::create_dir(&outside).unwrap();
    for number in 0..200 {
        fs::write(outside.join(format!("{number}")), b"mine").unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let aside = dir.path().join("aside");
            while !is_over.load(Ordering::Acquire) {
                if fs::rename(&inner, &aside).is_ok() {
                    let _ = symlink(&outside, &inner);
                    let _ = fs::remove_file(&inner);
                    let _ = fs::rename(&aside, &inner);
                }
            }
        });
        for _ in 0..50 {
            let _ = fs::create_dir_all(&inner);
            for number in 0..200 {
                let _ = fs::write(to.join("gone").join(format!("{number}")), b"old");
            }
            let mut writer = deleting(&to, SyncOptions::default());
            writer.root(0, &directory(None)).unwrap();
            put(&mut writer, &file("keep", b"new"), b"new").unwrap();
            writer.leave();
            let _ = finish(&mut writer);
        }
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 200);
}

/// Issue "`--max-delete`": so many, what is spared is told, and a directory of which something is spared stays.
#[test]
fn deletion_has_a_limit() {
    let dir = filled(&["d/1", "d/2", "d/3", "e"]);
    let to = dir.path().join("to");
    let delete = Some(DeleteOptions { max: Some(2), ..DeleteOptions::default() });
    let mut writer = deleting(&to, SyncOptions { delete, ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert_eq!(deleted, set(&["d/1", "d/2"]));
    assert!(
        failed.len() == 1 && failed[0].1.to_string().contains("2 entries were not deleted"),
        "{failed:?}"
    );
    assert!(to.join("d/3").exists() && to.join("e").exists());
}

/// Issue "memory bounded (a directory of a million names)": more candidates than memory is for wait in a file, and all go.
#[test]
fn many_candidates_wait_in_a_file() {
    let dir = filled(&["d/keep"]);
    let to = dir.path().join("to");
    let count = SYNC_CANDIDATES_BYTES_MAX / 200 + 100;
    for number in 0..count {
        fs::File::create(to.join("d").join(format!("{number:0200}"))).unwrap();
    }
    fs::write(to.join("z"), b"z").unwrap();
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    writer.entry(&directory(Some("d"))).unwrap();
    put(&mut writer, &file("keep", b"new"), b"new").unwrap();
    writer.leave();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted.len(), count + 1);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    assert_eq!(fs::read_dir(to.join("d")).unwrap().count(), 1);
}

/// rsync's habit with several sources for one place: what one of them has is not deleted because another has it not.
#[test]
fn sources_that_meet_protect_each_other() {
    let dir = filled(&["a", "b", "c", "d/a", "d/b", "d/c"]);
    let to = dir.path().join("to");
    let mut writer = merging(&to);
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        writer.root(index, &directory(None)).unwrap();
        put(&mut writer, &file(name, b"new"), b"new").unwrap();
        writer.entry(&directory(Some("d"))).unwrap();
        put(&mut writer, &file(name, b"new"), b"new").unwrap();
        writer.leave();
        writer.leave();
    }
    assert_eq!(finish(&mut writer).0, set(&["c", "d/c"]));
}

/// Issue "nothing is deleted wrongly": where two names are one (here: a name that was not there when the directory was listed, and is),
/// nobody can tell what the source has not, so all stays.
#[test]
fn names_that_fold_delete_nothing() {
    for told in [directory(Some("photos")), file("photos", b"new")] {
        let dir = filled(&["Photos/1", "extra"]);
        let to = dir.path().join("to");
        let mut writer = deleting(&to, SyncOptions::default());
        writer.root(0, &directory(None)).unwrap();
        // As `photos` would lead to `Photos`.
        fs::create_dir(to.join("photos")).unwrap();
        assert_eq!(writer.entry(&told).unwrap_err().kind(), ErrorKind::Refused);
        if told.is_directory() {
            writer.leave();
        }
        writer.leave();
        assert_eq!(writer.delete_some(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Refused);
        assert!(to.join("Photos/1").exists() && to.join("extra").exists());
    }
}

/// A run of two sources whose entries go into `to` itself.
fn merging(to: &Path) -> TreeWriter {
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new(), Vec::new()]).unwrap();
    let delete = Some(DeleteOptions::default());
    let sync = SyncOptions { links: true, delete, itemize: true, ..SyncOptions::default() };
    TreeWriter::new(landing, MINE).with_changes(Changes { sync: Some(sync), ..Changes::default() })
}

/// Issue "nothing is deleted wrongly": what one source brought makes no way for what a later one has under its name, whichever of them is
/// a directory, and also where that is empty.
#[test]
fn what_one_source_brought_makes_no_way_for_another() {
    let link = || entry(Some("x"), Kind::Symlink { target: b"f".to_vec() }, 0o777);
    for other in [file("x", b"new"), link()] {
        for inner in [&["1", "2"][..], &[]] {
            let dir = filled(&["keep"]);
            let to = dir.path().join("to");
            let mut writer = merging(&to);
            writer.root(0, &directory(None)).unwrap();
            writer.entry(&directory(Some("x"))).unwrap();
            inner.iter().for_each(|name| put(&mut writer, &file(name, b"new"), b"new").unwrap());
            writer.leave();
            writer.leave();
            writer.root(1, &directory(None)).unwrap();
            let error = put(&mut writer, &other, b"new").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            writer.leave();
            finish(&mut writer);
            assert!(to.join("x").is_dir());
            inner.iter().for_each(|name| assert!(to.join("x").join(name).exists(), "{name}"));
        }
        // The other way round.
        let dir = filled(&["keep"]);
        let to = dir.path().join("to");
        let mut writer = merging(&to);
        writer.root(0, &directory(None)).unwrap();
        put(&mut writer, &other, b"new").unwrap();
        writer.leave();
        writer.root(1, &directory(None)).unwrap();
        assert_eq!(writer.entry(&directory(Some("x"))).unwrap_err().kind(), ErrorKind::Refused);
        writer.entry(&file("f", b"new")).unwrap();
        writer.leave();
        writer.leave();
        finish(&mut writer);
        assert!(fs::symlink_metadata(to.join("x")).is_ok_and(|found| !found.is_dir()));
    }
}

/// rsync's habit: a directory makes way for a file once that is whole, with what is in it only where that is deleted.
#[test]
fn a_directory_makes_way_when_the_file_is_whole() {
    for deletes in [false, true] {
        let dir = filled(&["empty/x", "full/x"]);
        let to = dir.path().join("to");
        fs::remove_file(to.join("empty/x")).unwrap();
        let delete = deletes.then(DeleteOptions::default);
        let changes =
            Changes { sync: Some(SyncOptions { delete, ..SyncOptions::default() }), ..Changes::default() };
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let mut writer = TreeWriter::new(landing, MINE).with_changes(changes);
        writer.root(0, &directory(None)).unwrap();
        put(&mut writer, &file("empty", b"new"), b"new").unwrap();
        let Placed::Wanted(target, _) = writer.entry(&file("full", b"new")).unwrap() else { panic!() };
        let mut new = target.create().unwrap();
        new.write(b"new").unwrap();
        assert!(to.join("full/x").exists(), "not before the file is whole");
        assert_eq!(target.finish(new, &finished(b"new")).is_ok(), deletes);
        writer.settle(*target, None);
        assert!(to.join("empty").is_file());
        assert_eq!(to.join("full").is_file(), deletes);
    }
}

/// What rsync does not do: a source that lies in the destination is not deleted, be it as deep as it may.
#[test]
fn a_source_in_the_destination_stays() {
    let dir = filled(&["a/b/source/f", "a/b/x", "z"]);
    let to = dir.path().join("to");
    let found = fs::metadata(to.join("a/b/source")).unwrap();
    let sources = vec![(found.dev(), found.ino())];
    let mut writer = deleting(&to, SyncOptions { sources, ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert_eq!(deleted, set(&["a/b/x", "z"]));
    assert!(failed.len() == 1 && failed[0].0 == b"a/b/source", "{failed:?}");
    assert!(to.join("a/b/source/f").exists());
}
