//! Files that are there are changed, not replaced (`--inplace`).

use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, XattrFlags, setxattr};

use super::hostile::{become_nobody, shared};
use super::keeping::acl;
use super::syncing::{deleting, filled, finish, set};
use super::*;
use crate::local::tree::backup::Away;
use crate::local::tree::directory::Directory;
use crate::local::tree::look::is_overlay;
use crate::local::tree::overwrite::{FACTS, Which, left_whole, name_of_claim};
use crate::local::tree::{BackupOptions, Beside};

pub(super) fn in_place() -> SyncOptions {
    SyncOptions { in_place: true, ..SyncOptions::default() }
}

fn begun(to: &Path, sync: SyncOptions) -> TreeWriter {
    begun_with(to, sync, MINE)
}

pub(super) fn begun_with(to: &Path, sync: SyncOptions, options: WriteOptions) -> TreeWriter {
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = TreeWriter::new(landing, options).with_changes(changes);
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
pub(super) fn bring(
    writer: &mut TreeWriter,
    target: Box<FileTarget>,
    content: &[u8],
) -> dray_core::Result<()> {
    let mut new = target.create().unwrap();
    new.write(content).unwrap();
    let result = target.finish(new, &finished(content));
    writer.settle(*target, result.as_ref().ok().copied());
    result.map(|_| ())
}

/// Leaves what a run leaves that is killed right before the first byte of `content` is written to what is to become `entry`.
pub(super) fn kill_at_first_byte(writer: &mut TreeWriter, entry: &Entry, content: &[u8]) {
    let target = wanted(writer, entry);
    let mut new = target.create().unwrap();
    new.write(content).unwrap();
    let existing = target.existing.unwrap();
    let there = target.open_existing(&existing).unwrap();
    let begun = target.begin(&existing, &mut new, &there.found, &|_| Ok(())).unwrap();
    target.begin_to_write(&existing, &there, &mut new, &begun, entry.metadata.mode).unwrap();
    drop(new);
    writer.settle(*target, None);
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

/// S86: a run that is cut off while it changes a file leaves the whole content beside it; the next one takes that, whatever size and time say, keeps what is half there
/// beside the backup, and leaves nothing else.
#[test]
fn what_was_cut_off_waits_as_a_whole() {
    let (old, new) = (vec![1_u8; 200_000], vec![2_u8; 200_000]);
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    fs::write(to.join("f"), &old).unwrap();
    let was = fs::metadata(to.join("f")).unwrap().ino();
    // The first run kept it.
    fs::copy(to.join("f"), to.join("f~")).unwrap();
    leave_whole(&to, &mut begun(&to, in_place()), "f", &new);
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
        // A plan says so, too.
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        let changes = Changes { sync: Some(sync.clone()), ..Changes::default() };
        let mut preview = Preview::new(landing, MINE, changes);
        preview.root(0, &directory(None)).unwrap();
        let planned = preview.entry(&file("f", &new)).unwrap().unwrap();
        assert!(matches!(planned, Planned::Replace | Planned::Compare), "{planned:?}");
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
    assert!(fs::read(to.join("f~")).unwrap() == old, "what was half there does not take its place");
    assert!(fs::read(to.join("f~~")).unwrap() == [&new[..100_000], &old[100_000..]].concat());
    let all = ["f", "f~", "f~~"].map(String::from).to_vec();
    assert_eq!((names(&to), fs::metadata(to.join("f")).unwrap().ino()), (all, was));
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
    leave_whole(&to, &mut begun(&to, in_place()), "g", b"what another run brings");
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

pub(super) fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// S49, S86: who is confined to a directory changes nothing outside of it: a file of several names is replaced, and one that gets another name meanwhile fails.
#[test]
fn a_confined_login_changes_no_other_name() {
    let dir = filled(&["f", "g"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::hard_link(to.join("f"), &other).unwrap();
    let was = (fs::read(&other).unwrap(), inode(&to.join("g")));
    let confined = WriteOptions { harmless: true, confined: Some((0, 0, 0)), ..MINE };
    let mut writer = begun_with(&to, in_place(), confined);
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!(
        (fs::read(&other).unwrap(), fs::read(to.join("f")).unwrap()),
        (was.0, b"other bytes".to_vec())
    );
    // What is nowhere else is changed.
    let target = wanted(&mut writer, &file("g", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!(inode(&to.join("g")), was.1);
    let target = wanted(&mut writer, &file("g", b"more bytes"));
    fs::hard_link(to.join("g"), dir.path().join("late")).unwrap();
    let error = bring(&mut writer, target, b"more bytes").unwrap_err();
    assert_eq!(
        (error.kind(), fs::read(dir.path().join("late")).unwrap()),
        (ErrorKind::Changed, b"other bytes".to_vec())
    );
    assert_eq!(names(&to), ["f", "g"]);
}

/// S86: when the first byte comes the file has no bit that it is not to have, and where it gets another owner nobody has it: neither who had it reads what comes, nor who is to have it what
/// was there. Neither group has more than others.
#[test]
fn an_owner_of_before_reads_nothing_of_what_comes() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("it needs root");
    }
    let options = WriteOptions { owners: true, numeric_ids: true, ..MINE };
    for (had, told, meanwhile) in [
        ((4711, 4711, 0o644), (0, 0, 0o600), (0, 0, 0o600)),
        ((4711, 4711, 0o600), (1234, 1234, 0o600), (0, 1234, 0o600)),
        ((0, 4711, 0o4764), (0, 1234, 0o664), (0, 1234, 0o744)),
        ((4711, 0, 0o666), (4711, 0, 0o640), (4711, 0, 0o640)),
    ] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        std::os::unix::fs::chown(to.join("f"), Some(had.0), Some(had.1)).unwrap();
        fs::set_permissions(to.join("f"), fs::Permissions::from_mode(had.2)).unwrap();
        let sync = || SyncOptions { users: true, groups: true, ..in_place() };
        let mut entry = file("f", b"for nobody else");
        (entry.metadata.uid, entry.metadata.gid, entry.metadata.mode) = told;
        let now = || {
            let found = fs::metadata(to.join("f")).unwrap();
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        kill_at_first_byte(&mut begun_with(&to, sync(), options), &entry, b"for nobody else");
        assert_eq!(now(), meanwhile, "{had:?} {told:?}");
        assert_eq!(fs::read(to.join("f")).unwrap(), b"old");
        let mut writer = begun_with(&to, sync(), options);
        let target = wanted(&mut writer, &entry);
        bring(&mut writer, target, b"for nobody else").unwrap();
        assert_eq!((now(), fs::read(to.join("f")).unwrap()), (told, b"for nobody else".to_vec()));
    }
}

/// S86 "what is stopped before the first byte leaves the old file and nothing that says otherwise": its owner, bits and ACL are those of before; so they are where the file was moved away, or
/// another put in its place, while it was compared.
#[test]
fn what_was_only_compared_keeps_its_owner_and_bits() {
    let is_root = rustix::process::geteuid().is_root();
    let options = WriteOptions { owners: is_root, numeric_ids: true, xattrs: true, ..MINE };
    for is_moved in [false, true] {
        let dir = filled(&["f"]);
        let (to, moved) = (dir.path().join("to"), dir.path().join("moved"));
        if is_root {
            std::os::unix::fs::chown(to.join("f"), Some(4711), Some(4712)).unwrap();
        }
        let none = u32::MAX;
        let named = acl(&[(1, 6, none), (2, 4, 4713), (4, 4, none), (16, 6, none), (32, 4, none)]);
        if let Err(error) = setxattr(to.join("f"), "system.posix_acl_access", &named, XattrFlags::empty()) {
            return dray_testkit::say_skip(&format!("no ACLs here: {error}"));
        }
        let facts = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            let mut acl = [0_u8; 64];
            let len = rustix::fs::getxattr(path, "system.posix_acl_access", &mut acl[..]).unwrap();
            (found.uid(), found.gid(), found.mode(), acl[..len].to_vec(), fs::read(path).unwrap())
        };
        let was = facts(&to.join("f"));
        let mut writer =
            begun_with(&to, SyncOptions { users: is_root, groups: is_root, ..in_place() }, options);
        let mut entry = file("f", b"other bytes");
        (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) = (0o600, 1234, 1234);
        let target = wanted(&mut writer, &entry);
        let mut new = target.create().unwrap();
        new.write(b"other bytes").unwrap();
        if is_moved {
            let existing = target.existing.unwrap();
            let there = target.open_existing(&existing).unwrap();
            let begun = target.begin(&existing, &mut new, &there.found, &|_| Ok(())).unwrap();
            fs::rename(to.join("f"), &moved).unwrap();
            target.begin_to_write(&existing, &there, &mut new, &begun, 0o600).unwrap_err();
        } else {
            writer.stop_with(Arc::new(AtomicBool::new(true)));
            target.finish(new, &finished(b"other bytes")).unwrap_err();
        }
        assert_eq!(facts(&if is_moved { moved } else { to.join("f") }), was, "{is_moved}");
        writer.settle(*target, None);
    }
}

/// S86: of two runs that come to one file at the same moment one writes; the other keeps no copy, and takes no name that is not its own away.
#[test]
fn one_run_alone_changes_a_file() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let was = fs::read(to.join("f")).unwrap();
    let mut writer = begun(&to, SyncOptions { backup: backup(), ..in_place() });
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    let found = target.directory.directory.stat_for(b"f", FACTS).unwrap();
    let claim = name_of_claim(&target.directory, &target.name, &found);
    let path = to.join(std::str::from_utf8(&claim).unwrap());
    fs::write(&path, "theirs").unwrap();
    let held = fs::File::open(&path).unwrap();
    rustix::fs::flock(held.as_fd(), FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("f")).unwrap()), (ErrorKind::Refused, was.clone()));
    assert_eq!((names(&to).len(), fs::read(&path).unwrap()), (2, b"theirs".to_vec()), "no copy");
    drop(held);
    // What a run that was killed there left is in nobody's way.
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    bring(&mut writer, target, b"other bytes").unwrap();
    assert_eq!((names(&to), fs::read(to.join("f~")).unwrap()), (vec!["f".into(), "f~".into()], was));

    let target = wanted(&mut writer, &file("f", b"more bytes"));
    let mut new = target.create().unwrap();
    new.wait_as(&target.name, claim, false).unwrap();
    assert!(target.create().unwrap().wait_as(&target.name, claim, false).is_err(), "the name is taken");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    new.forget();
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    // Nor does a copy of another file come about.
    let another = Which::of(&target.directory.directory.stat_self_for(FACTS).unwrap());
    let other = target.directory.back_up(&target.name, Away::Changed(another)).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Changed);
    target.directory.back_up(&target.name, Away::Changed(Which::of(&found))).unwrap();
}

/// S86: two names of one file are no two files: of two runs that come to it by one name each, one writes.
#[test]
fn one_run_alone_changes_a_file_of_two_names() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let was = fs::read(to.join("f")).unwrap();
    fs::create_dir(dir.path().join("other")).unwrap();
    fs::hard_link(to.join("f"), dir.path().join("other/f")).unwrap();
    let mut theirs = begun(&dir.path().join("other"), in_place());
    let their_target = wanted(&mut theirs, &file("f", b"their bytes"));
    let there = their_target.open_existing(their_target.existing.as_ref().unwrap()).unwrap();
    their_target.hold_names(&there).unwrap();

    let mut writer = begun(&to, in_place());
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("f")).unwrap()), (ErrorKind::Refused, was));
    assert_eq!(names(&to), ["f"]);
    // Who is through within a moment is waited for.
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(there);
        });
        bring(&mut writer, target, b"other bytes").unwrap();
    });
    assert_eq!(fs::read(dir.path().join("other/f")).unwrap(), b"other bytes");
    theirs.settle(*their_target, None);
}

/// S86: what waited beside a file that is whole by now goes, so that nothing later takes the file for half changed.
#[test]
fn what_waits_goes_with_a_file_that_is_whole() {
    let new = vec![2_u8; 100_000];
    for checksum in [false, true] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        leave_whole(&to, &mut begun(&to, in_place()), "f", &new);
        fs::write(to.join("f"), &new).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 7);
        fs::OpenOptions::new().write(true).open(to.join("f")).unwrap().set_modified(time).unwrap();
        let mut writer = begun(&to, SyncOptions { checksum, ..in_place() });
        match writer.entry(&file("f", &new)).unwrap() {
            Placed::Unchanged => assert!(!checksum),
            Placed::Wanted(mut target, _) => {
                assert!(checksum);
                target.find_left();
                writer.keep_same(&mut target, &finished(&new)).unwrap();
                writer.settle(*target, None);
            }
            placed => panic!("{placed:?}"),
        }
        assert_eq!(names(&to), ["f"], "{checksum}");
    }
}

/// S86, S49: powers come with a file that nobody else has open or mapped, whatever the bits of the old one are now. What has none before and after is changed.
#[test]
fn powers_are_given_to_new_files() {
    let dir = filled(&["open", "own"]);
    let to = dir.path().join("to");
    fs::set_permissions(to.join("open"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(to.join("own"), fs::Permissions::from_mode(0o644)).unwrap();
    let options = WriteOptions { special_modes: true, ..MINE };
    for (name, powers, stays) in [("open", 0o4755, false), ("own", 0o755, true), ("own", 0o2755, false)] {
        // It would get the same inode again.
        let _held = fs::File::open(to.join(name)).unwrap();
        let was = inode(&to.join(name));
        let mut writer = begun_with(&to, in_place(), options);
        let content = format!("other bytes of a program with {powers:o}");
        let mut entry = file(name, content.as_bytes());
        (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) =
            (powers, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let target = wanted(&mut writer, &entry);
        bring(&mut writer, target, content.as_bytes()).unwrap();
        assert_eq!(
            (inode(&to.join(name)) == was, fs::metadata(to.join(name)).unwrap().mode() & 0o7777),
            (stays, powers)
        );
    }
}

/// S84, S86: what is changed is marked, so that a source that is the same file stays.
#[test]
fn what_is_changed_is_marked_for_its_source() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let content = fs::read(to.join("f")).unwrap();
    let mode = fs::metadata(to.join("f")).unwrap().mode() & 0o777;
    let options = WriteOptions { times: false, whole_file: true, ..MINE };
    let mut writer = begun_with(&to, SyncOptions { removes_sources: true, ..in_place() }, options);
    let mut entry = file("f", &content);
    entry.metadata.mode = mode;
    let target = wanted(&mut writer, &entry);
    let ctime = |found: fs::Metadata| (found.ctime(), found.ctime_nsec());
    let was = ctime(fs::metadata(to.join("f")).unwrap());
    bring(&mut writer, target, &content).unwrap();
    assert_ne!(ctime(fs::metadata(to.join("f")).unwrap()), was);
}

/// S86: a file that gets another name after it was looked at is not written to where that name may lie in another directory that counts.
#[test]
fn a_late_name_in_another_directory_keeps_what_it_has() {
    use crate::local::tree::{BasisOptions, BasisUse};
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    let was = fs::read(to.join("f")).unwrap();
    let basis = Some(BasisOptions { places: Vec::new(), usage: BasisUse::Link });
    let mut writer = begun(&to, SyncOptions { basis, ..in_place() });
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    fs::hard_link(to.join("f"), &other).unwrap();
    assert_eq!(bring(&mut writer, target, b"other bytes").unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(fs::read(&other).unwrap(), was);
}

/// S86: two files that are one inode here become two, also where size and time are the same; what is the same stays one.
#[test]
fn names_of_one_file_become_what_they_are_to_be() {
    for second in [&b"BBBB"[..], b"AAAA"] {
        let dir = filled(&["a"]);
        let to = dir.path().join("to");
        fs::hard_link(to.join("a"), to.join("b")).unwrap();
        let was = inode(&to.join("a"));
        let mut writer = begun(&to, in_place());
        let first = wanted(&mut writer, &file("a", b"AAAA"));
        let other = wanted(&mut writer, &file("b", second));
        bring(&mut writer, first, b"AAAA").unwrap();
        bring(&mut writer, other, second).unwrap();
        assert_eq!(
            (fs::read(to.join("a")).unwrap(), fs::read(to.join("b")).unwrap()),
            (b"AAAA".to_vec(), second.to_vec())
        );
        assert_eq!((inode(&to.join("a")), inode(&to.join("b")) == was), (was, second == b"AAAA"));
    }
    // Whichever is kept is not changed by the name of the other one, in either order.
    for order in [["a", "b"], ["b", "a"]] {
        let dir = filled(&["a"]);
        let to = dir.path().join("to");
        fs::write(to.join("a"), "BBBB").unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 7);
        fs::OpenOptions::new().write(true).open(to.join("a")).unwrap().set_modified(time).unwrap();
        fs::hard_link(to.join("a"), to.join("b")).unwrap();
        let sync = || SyncOptions { checksum: true, ..in_place() };
        let mut writer = begun(&to, sync());
        for name in order {
            let content: &[u8] = if name == "a" { b"AAAA" } else { b"BBBB" };
            let mut target = wanted(&mut writer, &file(name, content));
            if fs::read(to.join(name)).unwrap() == content {
                writer.keep_same(&mut target, &finished(content)).unwrap();
                writer.settle(*target, None);
            } else {
                bring(&mut writer, target, content).unwrap();
            }
        }
        assert_eq!(
            (fs::read(to.join("a")).unwrap(), fs::read(to.join("b")).unwrap()),
            (b"AAAA".to_vec(), b"BBBB".to_vec()),
            "{order:?}"
        );
    }
}

/// S86: what was moved away, or got another in its place, between its opening and the first byte is not written to, and nothing is left beside it.
#[test]
fn what_was_moved_away_is_not_touched() {
    for (is_replaced, is_compared) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        let was = fs::read(to.join("f")).unwrap();
        let mut writer = begun(&to, in_place());
        let target = wanted(&mut writer, &file("f", b"other bytes"));
        let found = target.directory.directory.stat_for(b"f", FACTS).unwrap();
        let mut new = target.create().unwrap();
        new.write(b"other bytes").unwrap();
        let existing = target.existing.unwrap();
        // Before it is compared, or while it is.
        let begun = is_compared.then(|| target.begin(&existing, &mut new, &found, &|_| Ok(())).unwrap());
        fs::rename(to.join("f"), to.join("g")).unwrap();
        if is_replaced {
            fs::write(to.join("f"), "somebody's").unwrap();
        }
        let result = match begun {
            Some(begun) => target.name_whole(&existing, &mut new, &begun),
            None => target.begin(&existing, &mut new, &found, &|_| Ok(())).map(|_| ()),
        };
        let error = result.unwrap_err();
        drop(new);
        assert_eq!((error.kind(), fs::read(to.join("g")).unwrap()), (ErrorKind::Changed, was));
        assert_eq!(names(&to), if is_replaced { vec!["f", "g"] } else { vec!["g"] });
        writer.settle(*target, None);
    }
}

/// S86: what is kept of the second name of a changed file is a file of its own, too.
#[test]
fn a_second_name_is_kept_as_a_copy() {
    let dir = filled(&["a"]);
    let to = dir.path().join("to");
    fs::hard_link(to.join("a"), to.join("b")).unwrap();
    let was = fs::read(to.join("a")).unwrap();
    let mut writer = begun(&to, SyncOptions { backup: backup(), ..in_place() });
    let targets = [("a", &b"AAAA"[..]), ("b", b"BBBB")]
        .map(|(name, content)| (wanted(&mut writer, &file(name, content)), content));
    for (target, content) in targets {
        bring(&mut writer, target, content).unwrap();
    }
    let inodes: Vec<u64> = ["a", "b", "a~", "b~"].iter().map(|name| inode(&to.join(name))).collect();
    assert!(!inodes[2..].contains(&inodes[0]) && !inodes[2..].contains(&inodes[1]), "{inodes:?}");
    assert_eq!(fs::read(to.join("a~")).unwrap(), was);
}

static OLD: [u8; 100_000] = [1; 100_000];
static NEW: [u8; 100_000] = [2; 100_000];

/// The time that entries and contents are told to have.
pub(super) fn told_time() -> std::time::SystemTime {
    std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 7)
}

/// What a run into `to` leaves beside the file `name` that is killed right before the first byte of `content` is written to that.
fn leave_whole(to: &Path, writer: &mut TreeWriter, name: &str, content: &[u8]) {
    let target = wanted(writer, &file(Path::new(name).file_name().unwrap().to_str().unwrap(), content));
    let mut new = target.create().unwrap();
    new.write(content).unwrap();
    new.file().set_modified(told_time()).unwrap();
    let found = target.directory.directory.stat_for(target.name.as_bytes(), FACTS).unwrap();
    let existing = target.existing.unwrap();
    let begun = target.begin(&existing, &mut new, &found, &|_| Ok(())).unwrap();
    target.name_whole(&existing, &mut new, &begun).unwrap();
    drop(new);
    writer.settle(*target, None);
    assert_eq!(names_of_ours(to.join(name).parent().unwrap()).len(), 1);
}

/// What a run into `to` leaves that kept the file `name`, which had the bytes `OLD`, and was killed while it gave it `NEW`.
fn leave_half(to: &Path, writer: &mut TreeWriter, name: &str) {
    fs::write(to.join(name), OLD).unwrap();
    fs::copy(to.join(name), to.join(format!("{name}~"))).unwrap();
    leave_whole(to, writer, name, &NEW);
    let half = fs::OpenOptions::new().write(true).open(to.join(name)).unwrap();
    half.write_all_at(&NEW[..50_000], 0).unwrap();
}

/// A destination with a file `f` that was left so, and more files.
fn half(names: &[&str]) -> tempfile::TempDir {
    let dir = filled(&[&["f"], names].concat());
    let to = dir.path().join("to");
    leave_half(&to, &mut begun(&to, in_place()), "f");
    assert_eq!(names_of_ours(&to).len(), 1);
    dir
}

/// Hidden names of ours.
fn names_of_ours(to: &Path) -> Vec<String> {
    names(to).into_iter().filter(|name| name.starts_with(".dray-")).collect()
}

fn protecting(rules: &[&str]) -> Excludes {
    Excludes::of_rules(rules.iter().map(|rule| rule.as_bytes())).unwrap()
}

/// S86: what is neither old nor new takes the place of no backup, whatever takes its own place, with the option or without, and whoever left it: it is kept beside that, as it may be
/// somebody's work by now.
#[test]
fn what_is_half_there_is_kept_beside_the_backup() {
    let kept = |sync: SyncOptions| SyncOptions { backup: backup(), links: true, ..sync };
    let newer = b"what the source has by now";
    let powers = WriteOptions { special_modes: true, ..MINE };
    let link = entry(Some("f"), Kind::Symlink { target: b"elsewhere".to_vec() }, 0o777);
    let mut powerful = file("f", newer);
    (powerful.metadata.mode, powerful.metadata.uid) = (0o4755, rustix::process::geteuid().as_raw());
    powerful.metadata.gid = rustix::process::getegid().as_raw();
    for (what, sync, options, entry) in [
        ("without the option", kept(SyncOptions::default()), MINE, file("f", newer)),
        ("with powers", kept(in_place()), powers, powerful),
        ("the same command", kept(in_place()), MINE, file("f", newer)),
        ("a link", kept(in_place()), MINE, link),
        ("left by another user", kept(in_place()), MINE, file("f", newer)),
        ("left by another user, without the option", kept(SyncOptions::default()), MINE, file("f", newer)),
    ] {
        let dir = half(&[]);
        let to = dir.path().join("to");
        let is_others = what.starts_with("left by another");
        if is_others {
            if !rustix::process::geteuid().is_root() {
                continue;
            }
            let whole = to.join(&names_of_ours(&to)[0]);
            std::os::unix::fs::chown(whole, Some(65534), Some(65534)).unwrap();
        }
        fs::set_permissions(to.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
        let was = fs::read(to.join("f")).unwrap();
        let mut writer = begun_with(&to, sync, options);
        put(&mut writer, &entry, newer).unwrap();
        let names: Vec<String> =
            names(&to).into_iter().filter(|it| !is_others || !it.starts_with('.')).collect();
        assert_eq!(names, ["f", "f~", "f~~"], "{what}");
        assert!(fs::read(to.join("f~")).unwrap() == OLD, "{what}");
        assert!(fs::read(to.join("f~~")).unwrap() == was, "{what}");
        if entry.kind == (Kind::File { size_bytes: newer.len() as u64, oid: None }) {
            assert_eq!(fs::read(to.join("f")).unwrap(), newer, "{what}");
        }
    }
    // Nor does it take the place of anything else; and what was put right by hand is kept, too.
    let dir = half(&["f~~"]);
    let to = dir.path().join("to");
    fs::write(to.join("f"), "a week of work").unwrap();
    put(&mut begun(&to, kept(SyncOptions::default())), &file("f", newer), newer).unwrap();
    assert_eq!(names(&to), ["f", "f~", "f~~", "f~~~"]);
    assert_eq!(fs::read(to.join("f~~")).unwrap(), b"old");
    assert_eq!(fs::read(to.join("f~~~")).unwrap(), b"a week of work");
    // What was kept so already is kept once.
    let dir = half(&[]);
    let to = dir.path().join("to");
    for _ in 0..2 {
        leave_whole(&to, &mut begun(&to, kept(in_place())), "f", &NEW);
    }
    assert_eq!(names(&to).len(), 4, "{:?}", names(&to));
    // Where there is no name left for it nothing is touched, and that is told.
    let long = "n".repeat(254);
    let dir = filled(&[&long]);
    let to = dir.path().join("to");
    leave_half(&to, &mut begun(&to, in_place()), &long);
    let was = fs::read(to.join(&long)).unwrap();
    for sync in [kept(in_place()), kept(SyncOptions::default())] {
        let mut writer = begun(&to, sync);
        let target = wanted(&mut writer, &file(&long, newer));
        let error = bring(&mut writer, target, newer).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.advice().unwrap().contains("without --backup")
        );
        assert!(fs::read(to.join(&long)).unwrap() == was && names(&to).len() == 3);
        assert!(fs::read(to.join(format!("{long}~"))).unwrap() == OLD);
    }
    // So it is in a directory of backups, also without a suffix.
    for (suffix, first, second) in [("", "f", "f~~"), (".old", "f.old", "f.old.old")] {
        let dir = half(&[]);
        let (to, kept_in) = (dir.path().join("to"), dir.path().join("kept"));
        fs::create_dir(&kept_in).unwrap();
        fs::write(kept_in.join(first), OLD).unwrap();
        let was = fs::read(to.join("f")).unwrap();
        let directory = Some(Beside::anywhere(kept_in.clone()));
        let backup = Some(BackupOptions { directory, suffix: suffix.as_bytes().to_vec() });
        put(&mut begun(&to, SyncOptions { backup, ..in_place() }), &file("f", newer), newer).unwrap();
        assert_eq!(names(&kept_in), [first, second]);
        assert!(fs::read(kept_in.join(first)).unwrap() == OLD);
        assert!(fs::read(kept_in.join(second)).unwrap() == was);
    }
    // So it is where it is deleted.
    let dir = half(&[]);
    let to = dir.path().join("to");
    let was = fs::read(to.join("f")).unwrap();
    let mut writer = deleting(&to, SyncOptions { rules: protecting(&["=-r *~"]), ..kept(in_place()) });
    writer.root(0, &directory(None)).unwrap();
    writer.leave();
    assert_eq!(finish(&mut writer).1.len(), 0);
    assert_eq!(names(&to), ["f~", "f~~"]);
    assert!(fs::read(to.join("f~")).unwrap() == OLD && fs::read(to.join("f~~")).unwrap() == was);
    // What has come to its end is the next backup, although what was to be its content still waits.
    for sync in [kept(SyncOptions::default()), kept(in_place())] {
        let dir = half(&[]);
        let to = dir.path().join("to");
        fs::write(to.join("f"), NEW).unwrap();
        fs::OpenOptions::new().write(true).open(to.join("f")).unwrap().set_modified(told_time()).unwrap();
        put(&mut begun(&to, sync), &file("f", newer), newer).unwrap();
        assert_eq!(names(&to), ["f", "f~"]);
        assert!(fs::read(to.join("f~")).unwrap() == NEW);
    }
}

/// S86, "whoever left it": who may not take the place of what another user's run left is told whose it is, and what to remove; nothing is touched.
#[test]
fn what_another_user_left_is_told() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("it needs root");
    }
    let dir = half(&[]);
    let to = dir.path().join("to");
    shared(&to);
    fs::set_permissions(to.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
    let (was, left) = (fs::read(to.join("f")).unwrap(), names_of_ours(&to));
    let error = std::thread::scope(|scope| {
        let work = || {
            let mut writer = begun(&to, in_place());
            become_nobody();
            let target = wanted(&mut writer, &file("f", b"other bytes"));
            bring(&mut writer, target, b"other bytes").unwrap_err()
        };
        scope.spawn(work).join().unwrap()
    });
    let advice = error.advice().unwrap_or_default().to_owned();
    assert!(advice.contains("user 0") && advice.contains(&left[0]), "{error} {advice}");
    assert!(fs::read(to.join("f")).unwrap() == was);
    assert_eq!(names_of_ours(&to), left);
}

/// S86: a run that is stopped while it compares leaves the old file, and nothing that says otherwise: what is done to that later is kept, and passed by with `-u`.
#[test]
fn what_was_only_compared_is_the_old_file() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    for sync in [SyncOptions { backup: backup(), ..SyncOptions::default() }, in_place()] {
        fs::write(to.join("f"), OLD).unwrap();
        let mut writer = begun(&to, in_place());
        let stop = Arc::new(AtomicBool::new(false));
        writer.stop_with(stop.clone());
        let target = wanted(&mut writer, &file("f", &NEW));
        stop.store(true, Ordering::Release);
        let error = bring(&mut writer, target, &NEW).unwrap_err();
        assert_eq!((error.kind(), names(&to)), (ErrorKind::Interrupted, vec!["f".into()]));
        assert!(fs::read(to.join("f")).unwrap() == OLD);
        fs::write(to.join("f"), "a week of work").unwrap();
        if sync.in_place {
            let mut writer = begun(&to, SyncOptions { update: true, ..sync });
            assert!(matches!(writer.entry(&file("f", &NEW)).unwrap(), Placed::Passed));
        } else {
            put(&mut begun(&to, sync), &file("f", &NEW), &NEW).unwrap();
            assert_eq!(fs::read(to.join("f~")).unwrap(), b"a week of work");
            assert_eq!(names(&to), ["f", "f~"]);
            fs::remove_file(to.join("f~")).unwrap();
        }
    }
    // Where nothing differs but the time nothing is left either.
    fs::write(to.join("f"), NEW).unwrap();
    let mut writer = begun(&to, in_place());
    let target = wanted(&mut writer, &file("f", &NEW));
    bring(&mut writer, target, &NEW).unwrap();
    assert_eq!(names(&to), ["f"]);
    // What came of a run that was killed before the first byte is taken from.
    fs::write(to.join("f"), OLD).unwrap();
    let mut writer = begun(&to, in_place());
    let target = wanted(&mut writer, &file("f", &NEW));
    let mut new = target.create().unwrap();
    new.write(&NEW).unwrap();
    let found = target.directory.directory.stat_for(b"f", FACTS).unwrap();
    target.begin(&target.existing.unwrap(), &mut new, &found, &|_| Ok(())).unwrap();
    new.stay();
    drop(new);
    writer.settle(*target, None);
    let mut target = wanted(&mut writer, &file("f", &NEW));
    target.find_left();
    let mut bytes = Vec::new();
    (&target.basis().expect("what came is found").file).read_to_end(&mut bytes).unwrap();
    assert!(bytes == NEW);
    bring(&mut writer, target, &bytes).unwrap();
    assert_eq!(names(&to), ["f"]);
}

/// S86: what waits for a file that is neither old nor new is not deleted as long as that is there; with it, or once it has come to its end, it is.
#[test]
fn what_waits_stays_as_long_as_its_file() {
    let size = Some(1000);
    for (what, sync, tells) in [
        ("too large", SyncOptions { max_size_bytes: size, ..in_place() }, true),
        ("left out", SyncOptions { rules: protecting(&["-f"]), ..in_place() }, false),
        ("protected", SyncOptions { rules: protecting(&["=-r f"]), ..in_place() }, false),
        ("newer", SyncOptions { update: true, ..SyncOptions::default() }, true),
    ] {
        let dir = half(&["z"]);
        let to = dir.path().join("to");
        fs::write(to.join(".dray-0123456789abcdef"), "nobody waits for this").unwrap();
        let mut writer = deleting(&to, SyncOptions { backup: backup(), ..sync });
        writer.root(0, &directory(None)).unwrap();
        if tells {
            assert!(matches!(writer.entry(&file("f", &NEW)).unwrap(), Placed::Passed), "{what}");
        }
        writer.leave();
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{what} {failed:?}");
        assert!(names(&to).contains(&"f".to_owned()) && !names(&to).contains(&"z".to_owned()), "{what}");
        assert_eq!(names_of_ours(&to).len(), 1, "{what}: {:?}", names(&to));
        // The same command as the first ends it.
        let mut writer = begun(&to, SyncOptions { update: true, ..in_place() });
        let target = wanted(&mut writer, &file("f", &NEW));
        bring(&mut writer, target, &NEW).unwrap();
        assert!(fs::read(to.join("f")).unwrap() == NEW && names_of_ours(&to).is_empty(), "{what}");
    }
    // With the file it goes, be it here or in a directory that goes.
    for (rules, left_in_d) in [(&[][..], None), (&["=-r f"][..], Some(2))] {
        let dir = filled(&["f", "d/f"]);
        let to = dir.path().join("to");
        leave_half(&to, &mut begun(&to, in_place()), "f");
        let mut writer = begun(&to, in_place());
        writer.entry(&directory(Some("d"))).unwrap();
        leave_half(&to, &mut writer, "d/f");
        drop(writer);
        let mut writer = deleting(&to, SyncOptions { rules: protecting(rules), ..in_place() });
        writer.root(0, &directory(None)).unwrap();
        writer.leave();
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(to.join("d").exists().then(|| names(&to.join("d")).len()), left_in_d);
        let top = if left_in_d.is_some() { 3 } else { 0 };
        assert_eq!(names(&to).len(), top, "{:?}", names(&to));
    }
    // So it does beside what has come to its end.
    let dir = half(&[]);
    let to = dir.path().join("to");
    fs::write(to.join("f"), NEW).unwrap();
    fs::OpenOptions::new().write(true).open(to.join("f")).unwrap().set_modified(told_time()).unwrap();
    let mut writer = deleting(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    assert!(matches!(writer.entry(&file("f", &NEW)).unwrap(), Placed::Unchanged));
    writer.leave();
    let (deleted, _) = finish(&mut writer);
    assert_eq!(names(&to), ["f"]);
    assert!(deleted.is_superset(&set(&["f~"])), "{deleted:?}");
}

/// S86: what waits goes with whatever takes the file's place, be it a directory, or that another directory has the file.
#[test]
fn what_waits_goes_with_what_takes_the_place() {
    use crate::local::tree::{BasisOptions, BasisUse};
    for backup in [None, backup()] {
        let dir = half(&[]);
        let to = dir.path().join("to");
        let mut writer = begun(&to, SyncOptions { backup: backup.clone(), ..SyncOptions::default() });
        assert!(matches!(writer.entry(&directory(Some("f"))).unwrap(), Placed::Done));
        writer.leave();
        assert!(to.join("f").is_dir() && names_of_ours(&to).is_empty(), "{:?}", names(&to));
        let (dir, kept) = (half(&[]), tempfile::tempdir().unwrap());
        let to = dir.path().join("to");
        fs::write(kept.path().join("f"), NEW).unwrap();
        fs::set_permissions(kept.path().join("f"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::File::open(kept.path().join("f")).unwrap().set_modified(told_time()).unwrap();
        let places = vec![Beside::anywhere(kept.path().to_owned())];
        let basis = Some(BasisOptions { places, usage: BasisUse::Compare });
        let mut writer = begun(&to, SyncOptions { basis, backup, ..SyncOptions::default() });
        assert!(matches!(writer.entry(&file("f", &NEW)).unwrap(), Placed::Unchanged));
        assert!(!to.join("f").exists() && names_of_ours(&to).is_empty(), "{:?}", names(&to));
    }
}

/// S86: whom an ACL names that makes way reads nothing of what comes either; the bits that are told come with the end.
#[test]
fn whom_an_acl_names_reads_nothing_of_what_comes() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let none = u32::MAX;
    let named = acl(&[(1, 6, none), (2, 4, 4711), (4, 4, none), (16, 4, none), (32, 0, none)]);
    if let Err(error) = setxattr(to.join("f"), "system.posix_acl_access", &named, XattrFlags::empty()) {
        return dray_testkit::say_skip(&format!("no ACLs here: {error}"));
    }
    let mode = || fs::metadata(to.join("f")).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o640);
    let mut entry = file("f", b"for nobody else");
    entry.metadata.mode = 0o640;
    let options = WriteOptions { xattrs: true, ..MINE };
    kill_at_first_byte(&mut begun_with(&to, in_place(), options), &entry, b"for nobody else");
    assert_eq!(mode(), 0o600);
    let mut writer = begun_with(&to, in_place(), options);
    let target = wanted(&mut writer, &entry);
    bring(&mut writer, target, b"for nobody else").unwrap();
    assert_eq!(mode(), 0o640);
    let found = rustix::fs::getxattr(to.join("f"), "system.posix_acl_access", &mut [0_u8; 64][..]);
    assert_eq!(found, Err(rustix::io::Errno::NODATA), "the source has none");
    assert_eq!(fs::read(to.join("f")).unwrap(), b"for nobody else");
}

/// S86: where owners cannot be set, as by root on a server that trusts no root, a file of somebody else's, or of another group, gets nothing that is not for everybody.
#[test]
fn what_cannot_be_given_away_is_not_written() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("it needs root");
    }
    let options = WriteOptions { owners: true, numeric_ids: true, ..MINE };
    for (owner, mode, is_written) in [
        ((4711, 4711), 0o602, false),
        ((65534, 4711), 0o660, false),
        ((65534, 4711), 0o600, true),
        ((4711, 4711), 0o666, true),
    ] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        shared(&to);
        std::os::unix::fs::chown(to.join("f"), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(to.join("f"), fs::Permissions::from_mode(mode)).unwrap();
        let mut entry = file("f", b"not for all");
        (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) = (mode, 1234, 1234);
        let result = std::thread::scope(|scope| {
            let work = || {
                let mut writer =
                    begun_with(&to, SyncOptions { users: true, groups: true, ..in_place() }, options);
                become_nobody();
                let target = wanted(&mut writer, &entry);
                bring(&mut writer, target, b"not for all").map_err(|error| error.kind())
            };
            scope.spawn(work).join().unwrap()
        });
        let expected: &[u8] = if is_written { b"not for all" } else { b"old" };
        assert_eq!(fs::read(to.join("f")).unwrap(), expected, "{owner:?} {mode:o}");
        assert_eq!(result, if is_written { Ok(()) } else { Err(ErrorKind::Refused) }, "{owner:?} {mode:o}");
        assert_eq!(names(&to), ["f"]);
    }
}

/// S86: with `--fsync` nothing that is read of a file counts whose change was cut off, as the disk may have refused it: its content is wanted, and what was found the
/// same before is not kept.
#[test]
fn what_a_disk_may_have_refused_is_wanted() {
    let begun = |to: &Path, durable| {
        begun_with(to, SyncOptions { checksum: true, ..in_place() }, WriteOptions { durable, ..MINE })
    };
    for durable in [false, true] {
        let dir = half(&[]);
        let to = dir.path().join("to");
        fs::write(to.join("f"), NEW).unwrap();
        let mut writer = begun(&to, durable);
        let Placed::Wanted(target, known) = writer.entry(&file("f", &NEW)).unwrap() else { panic!() };
        assert_eq!(known, (!durable).then(|| *blake3::hash(&NEW).as_bytes()));
        bring(&mut writer, target, &NEW).unwrap();
        assert_eq!(names(&to), ["f", "f~"]);
    }
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    fs::write(to.join("f"), NEW).unwrap();
    let mut writer = begun(&to, true);
    let Placed::Wanted(mut target, Some(_)) = writer.entry(&file("f", &NEW)).unwrap() else { panic!() };
    // Another run comes to it, and is cut off.
    leave_whole(&to, &mut begun_with(&to, in_place(), MINE), "f", b"short");
    let error = writer.keep_same(&mut target, &finished(&NEW)).unwrap_err();
    assert_eq!((error.kind(), names_of_ours(&to).len()), (ErrorKind::Changed, 1));
    writer.settle(*target, None);
}

/// S86: a number of an inode that was given out again is another file, which is neither written to nor kept as that which was there.
#[test]
fn a_number_that_was_given_out_again_is_another_file() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let at = Directory::open(&to).unwrap();
    if is_overlay(&at) {
        return dray_testkit::say_skip("on an overlay a file that is opened may get another birth");
    }
    let mut writer = begun(&to, in_place());
    let mut target = wanted(&mut writer, &file("f", b"other bytes"));
    let found = at.stat_for(b"f", FACTS).unwrap();
    let mut existing = target.existing.unwrap();
    assert_eq!(existing.which, Which::of(&found), "its birth was asked for");
    if existing.which.made.is_none() {
        return dray_testkit::say_skip("the file system does not tell when a file was made");
    }
    // As if another file had had its number.
    existing.which.made = Some((1, 1));
    let mut new = target.create().unwrap();
    new.write(b"other bytes").unwrap();
    let error = target.begin(&existing, &mut new, &found, &|_| Ok(())).unwrap_err();
    drop(new);
    assert_eq!((error.kind(), names(&to)), (ErrorKind::Changed, vec!["f".into()]));
    target.existing = Some(existing);
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("f")).unwrap()), (ErrorKind::Changed, b"old".to_vec()));
    let mut writer = begun(&to, SyncOptions { backup: backup(), ..in_place() });
    let target = wanted(&mut writer, &file("f", b"other bytes"));
    let kept = target.directory.back_up(&target.name, Away::Changed(existing.which)).unwrap_err();
    assert_eq!((kept.kind(), names(&to)), (ErrorKind::Changed, vec!["f".into()]));
    // And where the file system gives it out again in earnest.
    let was = inode(&to.join("f"));
    let is_again = (0..100).any(|_| {
        fs::remove_file(to.join("f")).unwrap();
        fs::write(to.join("f"), "somebody's").unwrap();
        inode(&to.join("f")) == was
    });
    let error = bring(&mut writer, target, b"other bytes").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{is_again}");
    assert_eq!((names(&to), fs::read(to.join("f")).unwrap()), (vec!["f".into()], b"somebody's".to_vec()));
}

/// S86, "`--partial` is implied": what came is not lost where what is there cannot be kept.
#[test]
fn what_came_waits_if_what_is_there_cannot_be_kept() {
    let new: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let dir = filled(&["f", "f~/in the way"]);
    let to = dir.path().join("to");
    let sync = || SyncOptions { backup: backup(), partial: true, ..in_place() };
    let mut writer = begun(&to, sync());
    let target = wanted(&mut writer, &file("f", &new));
    let error = bring(&mut writer, target, &new).unwrap_err();
    assert_eq!((error.kind(), fs::read(to.join("f")).unwrap()), (ErrorKind::Refused, b"old".to_vec()));
    assert_eq!(names_of_ours(&to).len(), 1, "{:?}", names(&to));
    fs::remove_dir_all(to.join("f~")).unwrap();
    let mut writer = begun(&to, sync());
    let mut target = wanted(&mut writer, &file("f", &new));
    target.find_left();
    let mut bytes = Vec::new();
    (&target.basis().expect("what came is found").file).read_to_end(&mut bytes).unwrap();
    assert!(bytes == new);
    bring(&mut writer, target, &bytes).unwrap();
    assert!(fs::read(to.join("f")).unwrap() == new);
    assert_eq!(
        (names(&to), fs::read(to.join("f~")).unwrap()),
        (vec!["f".into(), "f~".into()], b"old".to_vec())
    );
}
