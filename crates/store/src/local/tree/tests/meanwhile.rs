//! Deleting while names change: links of one file, directories that are moved, what a killed run left, and names that are one.

use super::syncing::{deleting, filled, finish, set};
use super::*;

/// Issue "nothing is deleted wrongly", and what is to be deleted is: of a file of several names each goes, also where this run itself
/// took another name from it.
#[test]
fn each_name_of_a_file_is_deleted() {
    let dir = filled(&["a", "keep", "old/x"]);
    let to = dir.path().join("to");
    for (from, name) in [("a", "b"), ("keep", "z"), ("old/x", "old-too")] {
        fs::hard_link(to.join(from), to.join(name)).unwrap();
    }
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("keep", b"new bytes"), b"new bytes").unwrap();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["a", "b", "old-too", "old/", "old/x", "z"]));
}

/// Issue "nothing is deleted wrongly": a directory or file, however old, that is moved to a candidate's name, or in place of a directory that
/// makes way, stays.
#[test]
fn what_is_moved_to_a_candidates_name_stays() {
    let dir = filled(&["old/x", "file", "way/x"]);
    let (to, project) = (dir.path().join("to"), dir.path().join("project"));
    for name in ["a", "b"] {
        fs::create_dir_all(project.join(name)).unwrap();
        fs::write(project.join(name).join("work"), b"mine").unwrap();
    }
    fs::write(project.join("c"), b"mine").unwrap();
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("way", b"new"), b"new").unwrap();
    writer.leave();
    for (name, other) in [("old", "a"), ("way", "b"), ("file", "c")] {
        fs::rename(to.join(name), dir.path().join(name)).unwrap();
        fs::rename(project.join(other), to.join(name)).unwrap();
    }
    let (deleted, failed) = finish(&mut writer);
    assert!(deleted.is_empty(), "{deleted:?}");
    let told: Vec<_> = failed.iter().map(|(path, _)| &path[..]).collect();
    assert_eq!(told, [&b"file"[..], b"old", b"way"]);
    for name in ["old/work", "way/work", "file"] {
        assert_eq!(fs::read(to.join(name)).unwrap(), b"mine", "{name}");
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3);
}

/// Issue "kill -9 at any moment": what waits for a directory to make way is left by a killed run; the next one does all, and nothing failed.
#[test]
fn the_run_after_a_killed_one_does_all() {
    let dir = filled(&["x/1"]);
    let to = dir.path().join("to");
    let tell = || {
        let mut writer = deleting(&to, SyncOptions::default());
        writer.root(0, &directory(None)).unwrap();
        put(&mut writer, &file("x", b"new"), b"new").unwrap();
        writer.leave();
        writer
    };
    std::mem::forget(tell());
    assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
    let (_, failed) = finish(&mut tell());
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(fs::read(to.join("x")).unwrap(), b"new");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
}

/// Issue "nothing is deleted wrongly": two roots whose names lead to one directory (letter case, a mount) would each delete what the other has.
#[test]
fn roots_that_are_one_directory_delete_nothing() {
    let dir = filled(&["Photos/extra"]);
    let to = dir.path().join("to");
    let names = [b"Photos".to_vec(), b"photos".to_vec()];
    let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &names).unwrap();
    let sync = SyncOptions { delete: Some(DeleteOptions::default()), ..SyncOptions::default() };
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = TreeWriter::new(landing, MINE).with_changes(changes);
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("1", b"new"), b"new").unwrap();
    writer.leave();
    fs::rename(to.join("Photos"), to.join("photos")).unwrap();
    writer.root(1, &directory(None)).unwrap();
    put(&mut writer, &file("2", b"new"), b"new").unwrap();
    writer.leave();
    assert_eq!(writer.delete_some(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Refused);
    for name in ["1", "2", "extra"] {
        assert!(to.join("photos").join(name).exists(), "{name}");
    }
}

/// Issue "nothing is deleted wrongly": a source in the destination that an entry of its own name leads into is not emptied.
#[test]
fn a_source_that_is_told_as_a_directory_stays() {
    let dir = filled(&["pkg/f", "extra"]);
    let to = dir.path().join("to");
    let found = fs::metadata(to.join("pkg")).unwrap();
    let sources = vec![(found.dev(), found.ino())];
    let mut writer = deleting(&to, SyncOptions { sources, ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    writer.entry(&directory(Some("pkg"))).unwrap();
    writer.leave();
    writer.leave();
    assert_eq!(writer.delete_some(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Refused);
    assert!(to.join("pkg/f").exists() && to.join("extra").exists());
}
