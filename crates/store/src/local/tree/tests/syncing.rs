//! Deleting what the source has not: what is, what never is, and whoever works against it.

use std::collections::BTreeSet;

use dray_core::limits::SYNC_CANDIDATES_BYTES_MAX;

use super::*;
use crate::local::tree::Planned;

/// A run that deletes, into `to` itself.
pub(super) fn deleting(to: &Path, sync: SyncOptions) -> TreeWriter {
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
pub(super) fn finish(writer: &mut TreeWriter) -> (BTreeSet<String>, Vec<(Vec<u8>, dray_core::Error)>) {
    let mut failed = Vec::new();
    while writer.delete_some(&mut failed).unwrap() {}
    let deleted = writer.take_done().into_iter().filter(|done| done.letters.is_none());
    (deleted.map(|done| String::from_utf8(done.path).unwrap()).collect(), failed)
}

pub(super) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A destination with files `names`.
pub(super) fn filled(names: &[&str]) -> tempfile::TempDir {
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
    assert!(incomplete.delete_nothing(&mut Vec::new()));
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
        failed.len() == 1 && failed[0].1.to_string().contains("3 entries were not deleted"),
        "{failed:?}"
    );
    // These, and `d`.
    assert!(to.join("d/3").exists() && to.join("e").exists());
}

/// S83: what is said to stay is what does, directories included that only a limit keeps: not those of which something is protected. A plan says the same.
#[test]
fn what_a_limit_spares_is_counted() {
    let names = ["a/b/c/1", "a/b/c/2", "a/b/3", "a/4", "a/5", "kept/6", "kept/x.o", "z"];
    for (max, counted) in [(0, 10), (1, 9), (3, 7), (9, 1), (10, 0)] {
        let dir = filled(&names);
        let to = dir.path().join("to");
        // Without `kept` and `kept/x.o`.
        let count = || entries_below(&to) - 2;
        let delete = Some(DeleteOptions { max: Some(max), ..DeleteOptions::default() });
        let sync = SyncOptions { delete, itemize: true, ..excluding(&["-*.o"]) };
        let said = |failed: &[(Vec<u8>, dray_core::Error)]| {
            let said = failed.iter().map(|(_, error)| error.to_string());
            said.map(|text| text.split(' ').next().unwrap().parse::<usize>().unwrap()).collect::<Vec<_>>()
        };
        let expected = if counted > 0 { vec![counted] } else { Vec::new() };

        let changes = Changes { sync: Some(sync.clone()), ..Changes::default() };
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let mut preview = Preview::new(landing, MINE, changes);
        preview.root(0, &directory(None)).unwrap();
        preview.leave();
        let mut failed = Vec::new();
        while preview.delete_some(&mut failed).unwrap() {}
        assert_eq!(said(&failed), expected, "a plan with {max}: {failed:?}");
        assert_eq!(count(), 10);

        let mut writer = deleting(&to, sync);
        writer.root(0, &directory(None)).unwrap();
        writer.leave();
        let (deleted, failed) = finish(&mut writer);
        assert_eq!(said(&failed), expected, "{max}: {failed:?}");
        assert_eq!((deleted.len(), count()), (10 - counted, counted));
    }
}

/// Entries below a directory.
fn entries_below(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| if entry.file_type().unwrap().is_dir() { 1 + entries_below(&entry.path()) } else { 1 })
        .sum()
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

/// A run that deletes, of sources that go below `names`.
fn below(to: &Path, names: &[&str]) -> (Landing, Changes) {
    let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let delete = Some(DeleteOptions::default());
    let sync = SyncOptions { links: true, delete, itemize: true, ..SyncOptions::default() };
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    (Landing::resolve_sync(&Origin::Anywhere, to, &names).unwrap(), changes)
}

/// Issue "nothing is deleted wrongly": two sources whose names lead to one directory do not delete what the other brought, be it that
/// the second name was not there before, or that it was and leads to the same by now (as where it is mounted twice); and neither does a plan.
#[test]
fn roots_that_fold_delete_nothing() {
    for is_other_there in [false, true] {
        let dir = filled(&["Photos/1", "Photos/2", "Photos/old"]);
        let to = dir.path().join("to");
        if is_other_there {
            fs::create_dir(to.join("photos")).unwrap();
        }
        let fold = || {
            let _ = fs::remove_dir(to.join("photos"));
            fs::rename(to.join("Photos"), to.join("photos")).unwrap();
        };
        let (landing, changes) = below(&to, &["Photos", "photos"]);
        let mut writer = TreeWriter::new(landing, MINE).with_changes(changes);
        writer.root(0, &directory(Some("Photos"))).unwrap();
        put(&mut writer, &file("1", b"new"), b"new").unwrap();
        writer.leave();
        fold();
        let second = writer.root(1, &directory(Some("photos")));
        if second.is_ok() {
            put(&mut writer, &file("2", b"new"), b"new").unwrap();
        }
        writer.leave();
        assert_eq!(writer.delete_some(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Refused);
        for name in ["1", "2", "old"] {
            assert!(to.join("photos").join(name).exists(), "{name}");
        }

        fs::rename(to.join("photos"), to.join("Photos")).unwrap();
        if is_other_there {
            fs::create_dir(to.join("photos")).unwrap();
        }
        let (landing, changes) = below(&to, &["Photos", "photos"]);
        let mut preview = Preview::new(landing, MINE, changes);
        preview.root(0, &directory(Some("Photos"))).unwrap();
        preview.leave();
        fold();
        let _ = preview.root(1, &directory(Some("photos")));
        preview.leave();
        assert_eq!(preview.delete_some(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Refused);
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

/// Issue "--delete --max-delete": what two sources lack counts once, in a plan as in a run, and whether it goes or stays.
#[test]
fn what_two_sources_lack_counts_once() {
    for (max, deleted, told) in [(None, 2, None), (Some(1), 1, Some("1 entries were not deleted"))] {
        let dir = filled(&["old", "older"]);
        let to = dir.path().join("to");
        let sync = || {
            let delete = Some(DeleteOptions { max, ..DeleteOptions::default() });
            Changes {
                sync: Some(SyncOptions { delete, itemize: true, ..SyncOptions::default() }),
                ..Changes::default()
            }
        };
        let landing = || Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new(), Vec::new()]).unwrap();
        let is_told = |failed: &[(Vec<u8>, dray_core::Error)]| {
            let texts: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
            assert!(texts.len() == usize::from(told.is_some()), "{texts:?}");
            assert!(texts.iter().zip(told).all(|(text, told)| text.starts_with(told)), "{texts:?}");
        };
        let mut preview = Preview::new(landing(), MINE, sync());
        let mut writer = TreeWriter::new(landing(), MINE).with_changes(sync());
        for index in 0..2 {
            preview.root(index, &directory(None)).unwrap();
            preview.leave();
            writer.root(index, &directory(None)).unwrap();
            writer.leave();
        }
        let mut failed = Vec::new();
        while preview.delete_some(&mut failed).unwrap() {}
        assert_eq!(preview.take_done().into_iter().filter(|done| done.letters.is_none()).count(), deleted);
        is_told(&failed);
        let (names, failed) = finish(&mut writer);
        assert_eq!(names.len(), deleted);
        is_told(&failed);
    }
}

/// rsync's habit: an empty directory makes way for a file once that is whole, a full one only where what is in it is deleted.
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
        assert_eq!(put(&mut writer, &file("full", b"new"), b"new").is_ok(), deletes);
        writer.leave();
        assert!(to.join("empty").is_file());
        assert!(to.join("full/x").exists(), "not before the end");
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(to.join("full").is_file(), deletes);
    }
}

/// Entries of every kind in whose places directories stand, with hard links of the first, between which all of `to` is told.
fn tell_in_the_way(writer: &mut TreeWriter) {
    let linked = |name: &str| {
        let mut entry = file(name, b"new");
        (entry.metadata.link_group, entry.metadata.link_names) = (Some([7; 16]), 3);
        entry
    };
    writer.root(0, &directory(None)).unwrap();
    put(writer, &linked("a"), b"new").unwrap();
    put(writer, &linked("b"), b"new").unwrap();
    writer.entry(&entry(Some("l"), Kind::Symlink { target: b"a".to_vec() }, 0o777)).unwrap();
    writer.entry(&entry(Some("p"), Kind::Fifo, 0o600)).unwrap();
    put(writer, &linked("z"), b"new").unwrap();
    writer.leave();
}

/// Issue "Nothing is deleted unless the listing was complete", for what makes way, too: nothing of it before the end, nothing without the
/// sender's word or when the run is dropped, and then each entry that did not come is told; and nothing is left under another name.
#[test]
fn what_makes_way_is_deleted_at_the_end() {
    use std::os::unix::fs::FileTypeExt;
    let names = ["a/1", "a/sub/2", "b/1", "l/1", "p/1"];
    let all_there = |to: &Path| names.iter().all(|name| to.join(name).exists());
    let tops = |to: &Path| -> BTreeSet<String> {
        fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let begun = || {
        let dir = filled(&names);
        let to = dir.path().join("to");
        let mut writer = deleting(&to, SyncOptions { specials: true, ..SyncOptions::default() });
        tell_in_the_way(&mut writer);
        assert!(all_there(&to));
        (dir, to, writer)
    };
    let (_dir, to, mut writer) = begun();
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["a/1", "a/sub/", "a/sub/2", "b/1", "l/1", "p/1"]));
    let is_one = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert!(is_one("a") == is_one("b") && is_one("a") == is_one("z"));
    assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("a"));
    assert!(fs::metadata(to.join("p")).unwrap().file_type().is_fifo());
    assert_eq!(tops(&to), set(&["a", "b", "l", "p", "z"]));

    let (_dir, to, mut writer) = begun();
    let mut failed = Vec::new();
    assert!(writer.delete_nothing(&mut failed));
    let told: Vec<_> = failed.iter().map(|(path, _)| &path[..]).collect();
    assert_eq!(told, [b"a", b"b", b"l", b"p"]);
    assert_eq!(writer.take_unplaced(), 0, "one file under three names, of which one is in place");
    assert!(all_there(&to));
    assert_eq!(tops(&to), set(&["a", "b", "l", "p", "z"]));

    let (_dir, to, writer) = begun();
    drop(writer);
    assert!(all_there(&to));
    assert_eq!(tops(&to), set(&["a", "b", "l", "p", "z"]));
}

/// A directory of which something is protected, or was spared, makes no way; that is told, and a source of the run stays as it is.
#[test]
fn what_is_not_empty_makes_no_way() {
    let cases = [
        (excluding(&["-*.o"]), &["x/keep.o"][..]),
        (
            SyncOptions {
                delete: Some(DeleteOptions { max: Some(1), ..DeleteOptions::default() }),
                ..SyncOptions::default()
            },
            &["x/keep.o"],
        ),
    ];
    for (sync, stays) in cases {
        let dir = filled(&["x/1", "x/keep.o"]);
        let to = dir.path().join("to");
        let mut writer = deleting(&to, sync);
        writer.root(0, &directory(None)).unwrap();
        put(&mut writer, &file("x", b"new"), b"new").unwrap();
        writer.leave();
        let (deleted, failed) = finish(&mut writer);
        assert_eq!(deleted, set(&["x/1"]));
        assert!(failed.iter().any(|(path, _)| path == b"x"), "{failed:?}");
        assert_eq!(writer.take_unplaced(), 1, "it does not count as copied");
        stays.iter().for_each(|name| assert!(to.join(name).exists(), "{name}"));
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }
    let dir = filled(&["x/1"]);
    let to = dir.path().join("to");
    let found = fs::metadata(to.join("x")).unwrap();
    let sources = vec![(found.dev(), found.ino())];
    let mut writer = deleting(&to, SyncOptions { sources, ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("x", b"new"), b"new").unwrap();
    writer.leave();
    assert_eq!(finish(&mut writer).0, set(&[]));
    assert!(to.join("x/1").exists());
}

/// Issue "--dry-run": a plan tells what would make way, and of a full directory where nothing is deleted that it would not.
#[test]
fn a_plan_tells_what_makes_way() {
    let dir = filled(&["x/1", "x/sub/2", "gone"]);
    let to = dir.path().join("to");
    for deletes in [true, false] {
        let delete = deletes.then(|| DeleteOptions { max: Some(2), ..DeleteOptions::default() });
        let sync = SyncOptions { delete, itemize: true, ..SyncOptions::default() };
        let changes = Changes { sync: Some(sync), ..Changes::default() };
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let mut preview = Preview::new(landing, MINE, changes);
        preview.root(0, &directory(None)).unwrap();
        let planned = preview.entry(&file("x", b"new")).unwrap();
        assert_eq!(planned.is_ok(), deletes);
        preview.leave();
        let mut failed = Vec::new();
        while preview.delete_some(&mut failed).unwrap() {}
        let deleted = preview.take_done().into_iter().filter(|done| done.letters.is_none());
        let deleted: BTreeSet<String> = deleted.map(|done| String::from_utf8(done.path).unwrap()).collect();
        assert_eq!(deleted, if deletes { set(&["gone", "x/1"]) } else { set(&[]) });
        // What is spared, and that `x` makes no way.
        assert_eq!(failed.len(), if deletes { 2 } else { 0 }, "{failed:?}");
        assert!(to.join("x/1").exists() && to.join("x/sub/2").exists() && to.join("gone").exists());
    }
}

/// `-u` with hard links: what is newer here stays, under whichever name of a group it stands, in a plan as in a run.
#[test]
fn what_is_newer_becomes_no_hard_link() {
    for (there, has) in [("a", [&b"old"[..], b"new"]), ("b", [b"new", b"old"])] {
        let dir = filled(&[there]);
        let to = dir.path().join("to");
        let sync = SyncOptions { update: true, itemize: true, ..SyncOptions::default() };
        let names = ["a", "b"].map(|name| {
            let mut entry = file(name, b"new");
            (entry.metadata.link_group, entry.metadata.link_names) = (Some([7; 16]), 2);
            entry
        });
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let changes = Changes { sync: Some(sync.clone()), ..Changes::default() };
        let mut preview = Preview::new(landing, MINE, changes);
        preview.root(0, &directory(None)).unwrap();
        for entry in &names {
            let stays = entry.name.as_ref().unwrap().as_bytes() == there.as_bytes();
            let planned = preview.entry(entry).unwrap().unwrap();
            assert_eq!(planned, if stays { Planned::Keep } else { Planned::Create }, "{entry:?}");
        }
        preview.leave();

        let mut writer = deleting(&to, sync);
        writer.root(0, &directory(None)).unwrap();
        names.iter().for_each(|entry| put(&mut writer, entry, b"new").unwrap());
        writer.leave();
        assert_eq!(["a", "b"].map(|name| fs::read(to.join(name)).unwrap()), has);
    }
}

/// Issue "memory bounded", "ends soon when it is told to": one directory of many entries is deleted in steps, and a stop is heard between
/// any two entries.
#[test]
fn one_large_directory_is_deleted_in_steps() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = filled(&["old/sub/x"]);
    let to = dir.path().join("to");
    for number in 0..1000 {
        fs::File::create(to.join("old").join(format!("{number}"))).unwrap();
    }
    let mut writer = deleting(&to, SyncOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    writer.stop_with(stop.clone());
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    let mut failed = Vec::new();
    let mut deleted = 0;
    for _ in 0..5 {
        assert!(writer.delete_some(&mut failed).unwrap());
        let done = writer.take_done().into_iter().filter(|done| done.letters.is_none()).count();
        assert!(done <= 64, "{done}");
        deleted += done;
    }
    assert!(deleted > 64);
    stop.store(true, Ordering::Release);
    assert_eq!(writer.delete_some(&mut failed).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(writer.take_done().is_empty());
    stop.store(false, Ordering::Release);
    assert_eq!(deleted + finish(&mut writer).0.len(), 1003);
    assert!(failed.is_empty() && !to.join("old").exists());
}

/// Issue "nothing is deleted wrongly": what came to the destination while the run went on stays, in directories that the source has not,
/// and under names that it has not; and that is told.
#[test]
fn what_came_meanwhile_stays() {
    let dir = filled(&["incoming/old", "incoming/sub/old", "replaced", "plain/old"]);
    let to = dir.path().join("to");
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    // However soon after.
    for name in ["incoming/new", "incoming/sub/new", "replaced"] {
        let _ = fs::remove_file(to.join(name));
        fs::write(to.join(name), b"late").unwrap();
    }
    let (deleted, failed) = finish(&mut writer);
    assert_eq!(deleted, set(&["incoming/old", "plain/", "plain/old"]));
    let mut told: Vec<_> =
        failed.iter().map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect();
    told.sort();
    // All of `sub` may have come.
    assert_eq!(told, ["incoming/new", "incoming/sub", "replaced"]);
    assert_eq!(fs::read(to.join("incoming/sub/new")).unwrap(), b"late");
    // A directory that was removed and made again, which may get the same number.
    let dir = filled(&["d/x"]);
    let to = dir.path().join("to");
    let mut writer = told_of_d(&to);
    fs::remove_dir_all(to.join("d")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d/x"), b"late").unwrap();
    let (deleted, failed) = finish(&mut writer);
    assert!(deleted.is_empty() && failed.len() == 1 && failed[0].0 == b"d", "{deleted:?} {failed:?}");
    assert_eq!(fs::read(to.join("d/x")).unwrap(), b"late");
}

/// A run that deletes, of a source that has an empty directory `d` and nothing else.
fn told_of_d(to: &Path) -> TreeWriter {
    let mut writer = deleting(to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    writer.entry(&directory(Some("d"))).unwrap();
    writer.leave();
    writer.leave();
    writer
}

/// A directory that somebody else deleted meanwhile is no failure; what another run is writing stays.
#[test]
fn what_others_do_is_respected() {
    let dir = filled(&["d/x", ".dray-0123456789abcdef", ".dray-fedcba9876543210"]);
    let to = dir.path().join("to");
    let mut writer = told_of_d(&to);
    fs::remove_dir_all(to.join("d")).unwrap();
    let other = fs::File::open(to.join(".dray-0123456789abcdef")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (deleted, failed) = finish(&mut writer);
    assert_eq!(deleted, set(&[".dray-fedcba9876543210"]));
    assert!(failed.len() == 1 && failed[0].0 == b".dray-0123456789abcdef", "{failed:?}");
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

/// Issue "nothing is deleted wrongly": a name that was listed and is gone when its turn comes may be had under another one that was passed by,
/// so a walk for a synchronisation says so. A copy takes it for one that was not there.
#[test]
fn a_name_that_vanishes_is_told() {
    for tells_vanished in [true, false] {
        let dir = filled(&["a", "m", "z"]);
        let from = dir.path().join("to");
        let options = WalkOptions { tells_vanished, ..walk_options() };
        let mut walker = Walker::new(vec![from.clone()], options);
        assert!(matches!(walker.step(), Some(Walked::Entry(entry, _)) if entry.is_directory()));
        fs::rename(from.join("m"), from.join("b")).unwrap();
        let steps: Vec<Walked> = std::iter::from_fn(|| walker.step()).collect();
        let failed: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Walked::Failed(path, error) => Some((path.clone(), error.kind())),
                _ => None,
            })
            .collect();
        let expected = if tells_vanished { vec![(from.join("m"), ErrorKind::NotFound)] } else { Vec::new() };
        assert_eq!(failed, expected);
    }
}

/// Issue 7 "vanished-source runs delete nothing wrongly": a directory that was scanned, and is alike at the destination, is missed if it is gone when its turn comes; so is a source that is another
/// directory by then, as where a disk was unmounted.
#[test]
fn what_was_scanned_is_missed() {
    let failures = |walker: &mut Walker| -> Vec<ErrorKind> {
        let steps: Vec<Walked> = std::iter::from_fn(|| walker.step()).collect();
        let kind = |step: &Walked| match step {
            Walked::Failed(_, error) => Some(error.kind()),
            _ => None,
        };
        steps.iter().filter_map(kind).collect()
    };
    for (tells_vanished, is_there) in [(true, true), (true, false), (false, false)] {
        let dir = filled(&["a/f", "z/f"]);
        let from = dir.path().join("to");
        let options = WalkOptions { tells_vanished, names: vec![Vec::new()], ..walk_options() };
        let mut walker = Walker::new(vec![from.clone()], options);
        walker.pass_by([digest::place(b"a")].into());
        if !is_there {
            fs::remove_dir_all(from.join("a")).unwrap();
        }
        let expected = if tells_vanished && !is_there { vec![ErrorKind::Changed] } else { Vec::new() };
        assert_eq!(failures(&mut walker), expected, "{tells_vanished} {is_there}");
    }
    for is_replaced in [false, true] {
        let dir = filled(&["a/f", "z/f"]);
        let from = dir.path().join("to");
        let mut walker = Walker::new(vec![from.clone()], walk_options());
        let found = fs::metadata(&from).unwrap();
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        walker.expect([(0, (device.0, device.1, found.ino()))].into());
        if is_replaced {
            fs::rename(&from, dir.path().join("away")).unwrap();
            fs::create_dir(&from).unwrap();
        }
        let expected = if is_replaced { vec![ErrorKind::Changed] } else { Vec::new() };
        assert_eq!(failures(&mut walker), expected, "{is_replaced}");
    }
}
