//! Files that are there are changed, not replaced (`--inplace`).

use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FlockOperation;

use super::syncing::filled;
use super::*;
use crate::local::tree::BackupOptions;
use crate::local::tree::overwrite::left_whole;

fn in_place() -> SyncOptions {
    SyncOptions { in_place: true, ..SyncOptions::default() }
}

fn begun(to: &Path, sync: SyncOptions) -> TreeWriter {
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = TreeWriter::new(landing, MINE).with_changes(changes);
    writer.root(0, &directory(None)).unwrap();
    writer
}

fn wanted(writer: &mut TreeWriter, entry: &Entry) -> Box<FileTarget> {
    match writer.entry(entry).unwrap() {
        Placed::Wanted(target, _) => target,
        placed => panic!("{placed:?}"),
    }
}

/// Brings `content` in as that of `target`.
fn bring(writer: &mut TreeWriter, target: Box<FileTarget>, content: &[u8]) -> dray_core::Result<()> {
    let mut new = target.create().unwrap();
    new.write(content).unwrap();
    let result = target.finish(new, &finished(content));
    writer.settle(*target, result.as_ref().ok().copied());
    result.map(|_| ())
}

fn names(to: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn backup() -> Option<BackupOptions> {
    Some(BackupOptions { directory: None, suffix: b"~".to_vec() })
}

/// S86: the inode stays, with every other name and every open descriptor of it; bits and time are those that were told, and nothing is left beside it.
#[test]
fn a_file_that_is_there_stays_the_same_file() {
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::hard_link(to.join("f"), &other).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    let mut reader = fs::File::open(&other).unwrap();
    let was = fs::metadata(&other).unwrap().ino();
    let long: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    for content in [&b"other bytes"[..], &long, b"short", b""] {
        let mut writer = begun(&to, SyncOptions { checksum: true, ..in_place() });
        let target = wanted(&mut writer, &file("f", content));
        bring(&mut writer, target, content).unwrap();
        assert!(fs::read(to.join("f")).unwrap() == content);
        assert!(fs::read(&other).unwrap() == content);
        let found = fs::metadata(to.join("f")).unwrap();
        assert_eq!((found.ino(), found.mode() & 0o7777, found.mtime()), (was, 0o644, 1_000_000_000));
        assert_eq!(names(&to), ["f"]);
    }
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert!(read.is_empty(), "who has it open reads what it is now");
    // What is the same but for its bits is no other file either.
    fs::write(&other, "same").unwrap();
    fs::File::open(&other).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let mut writer = begun(&to, SyncOptions { size_only: true, ..in_place() });
    assert!(matches!(writer.entry(&file("f", b"same")).unwrap(), Placed::Unchanged));
    assert_eq!(fs::metadata(to.join("f")).unwrap().ino(), was);
    assert_eq!(fs::metadata(to.join("f")).unwrap().mtime(), 1_000_000_000);
}

/// S86: with other directories that may have what comes, a file of several names is replaced: its other names may lie in those.
#[test]
fn a_name_in_another_directory_keeps_what_it_has() {
    use crate::local::tree::{BasisOptions, BasisUse};
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::hard_link(to.join("f"), &other).unwrap();
    let was = fs::read(&other).unwrap();
    let basis = Some(BasisOptions { places: Vec::new(), usage: BasisUse::Link });
    let mut writer = begun(&to, SyncOptions { basis, ..in_place() });
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!(fs::read(&other).unwrap(), was);
    assert_eq!(fs::read(to.join("f")).unwrap(), b"other bytes");
}

/// S86: what is kept of a file that is changed is a copy, also where that was another name of it; bits that nobody may use are no obstacle to that.
#[test]
fn what_is_changed_is_kept_as_a_copy() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let was = (fs::read(to.join("f")).unwrap(), fs::metadata(to.join("f")).unwrap().ino());
    fs::hard_link(to.join("f"), to.join("f~")).unwrap();
    let mut writer = begun(&to, SyncOptions { backup: backup(), ..in_place() });
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!(fs::read(to.join("f~")).unwrap(), was.0);
    assert_ne!(fs::metadata(to.join("f~")).unwrap().ino(), was.1);
    assert_eq!(
        (fs::read(to.join("f")).unwrap(), fs::metadata(to.join("f")).unwrap().ino()),
        (b"other bytes".to_vec(), was.1)
    );
    assert_eq!(names(&to), ["f", "f~"]);
}

/// S86: a run that is cut off while it changes a file leaves the whole content beside it; the next one takes that, whatever size and time say, keeps nothing of what is
/// half there, and leaves nothing.
#[test]
fn what_was_cut_off_waits_as_a_whole() {
    let (old, new) = (vec![1_u8; 200_000], vec![2_u8; 200_000]);
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    fs::write(to.join("f"), &old).unwrap();
    let was = fs::metadata(to.join("f")).unwrap().ino();
    // The first run kept it.
    fs::copy(to.join("f"), to.join("f~")).unwrap();
    let mut writer = begun(&to, in_place());
    let stop = Arc::new(AtomicBool::new(false));
    writer.stop_with(stop.clone());
    let target = wanted(&mut writer, &file("f", &new));
    stop.store(true, Ordering::Release);
    let error = bring(&mut writer, target, &new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    drop(writer);
    let left: Vec<String> = names(&to).into_iter().filter(|name| name.starts_with(".dray-")).collect();
    let [left] = &left[..] else { panic!("{left:?}") };
    assert!(fs::read(to.join(left)).unwrap() == new);
    // As one that was killed leaves it.
    fs::OpenOptions::new().write(true).open(to.join("f")).unwrap().write_all_at(&new[..100_000], 0).unwrap();
    for sync in [
        SyncOptions { update: true, ..in_place() },
        SyncOptions { size_only: true, ..in_place() },
        SyncOptions { backup: backup(), ..in_place() },
    ] {
        let is_last = sync.backup.is_some();
        let mut writer = begun(&to, sync);
        let mut target = wanted(&mut writer, &file("f", &new));
        target.find_left();
        let basis = target.basis().expect("what waits is taken from");
        let mut bytes = Vec::new();
        (&basis.file).read_to_end(&mut bytes).unwrap();
        assert!(bytes == new);
        if is_last {
            bring(&mut writer, target, &bytes).unwrap();
        } else {
            writer.settle(*target, None);
        }
    }
    assert!(fs::read(to.join("f")).unwrap() == new);
    assert!(fs::read(to.join("f~")).unwrap() == old, "what was half there is not kept");
    assert_eq!((names(&to), fs::metadata(to.join("f")).unwrap().ino()), (vec!["f".into(), "f~".into()], was));
    // With nothing left the time decides again.
    let mut writer = begun(&to, SyncOptions { update: true, ..in_place() });
    fs::write(to.join("f"), &old).unwrap();
    assert!(matches!(writer.entry(&file("f", &new)).unwrap(), Placed::Passed));
}

/// S86: what was put in its place meanwhile, and what another run is changing, is not written to.
#[test]
fn what_is_another_file_by_now_is_not_touched() {
    let dir = filled(&["f", "g"]);
    let to = dir.path().join("to");
    let mut writer = begun(&to, in_place());
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    fs::write(to.join("x"), "somebody's").unwrap();
    fs::rename(to.join("x"), to.join("f")).unwrap();
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("f")).unwrap()), (ErrorKind::Changed, b"somebody's".to_vec()));
    assert_eq!(names(&to), ["f", "g"]);

    let was = fs::read(to.join("g")).unwrap();
    let target = wanted(&mut writer, &file("g", b"other bytes"));
    // As that of another run.
    let mut other = begun(&to, in_place());
    other.stop_with(Arc::new(AtomicBool::new(true)));
    let theirs = wanted(&mut other, &file("g", b"what another run brings"));
    bring(&mut other, theirs, b"what another run brings").unwrap_err();
    let whole = left_whole(&target.directory, &target.name).unwrap();
    let path = to.join(std::str::from_utf8(&whole).unwrap());
    let held = fs::File::open(&path).unwrap();
    rustix::fs::flock(held.as_fd(), FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("g")).unwrap()), (ErrorKind::Refused, was));
    assert_eq!(fs::read(&path).unwrap(), b"what another run brings");
    drop(held);
    // Once that has ended it is this one's turn, and nothing is left.
    let target = wanted(&mut writer, &file("g", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!(
        (names(&to), fs::read(to.join("g")).unwrap()),
        (vec!["f".into(), "g".into()], b"other bytes".to_vec())
    );
}
