//! What a synchronisation spares besides: other names of a file, what backups would take the place of, files of rules and what they protect.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use dray_core::limits::SYNC_CANDIDATES_BYTES_MAX;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, mknodat};

use super::syncing::{deleting, filled, finish, set};
use super::*;

fn syncing(to: &Path, sync: SyncOptions) -> TreeWriter {
    let sync = SyncOptions { links: true, devices: true, specials: true, itemize: true, ..sync };
    let landing = Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()]).unwrap();
    TreeWriter::new(landing, MINE).with_changes(Changes { sync: Some(sync), ..Changes::default() })
}

fn tops(to: &Path) -> BTreeSet<String> {
    fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Gives what stands there the time of the entries.
fn age(path: &Path, mtime_s: i64) {
    use rustix::fs::{AtFlags, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: mtime_s, tv_nsec: 7 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// `to/f` and a link, each with another name outside.
fn shared(mtime_s: i64) -> tempfile::TempDir {
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::create_dir(&other).unwrap();
    fs::set_permissions(to.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("f", to.join("link")).unwrap();
    for name in ["f", "link"] {
        age(&to.join(name), mtime_s);
        fs::hard_link(to.join(name), other.join(name)).unwrap();
    }
    dir
}

fn facts(path: &Path) -> (u32, i64, u64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.mode() & 0o777, found.mtime(), found.ino())
}

/// Issue "a second run into a --link-dest DST changes the old backup": what has another name gets a file of its own before anything of it is changed, be it kept
/// by size and time or found the same by its hash; where nothing differs it stays the same file.
#[test]
fn other_names_keep_what_they_have() {
    for (was, is_compared) in [(1_000_000_000, false), (900_000_000, true)] {
        let dir = shared(was);
        let (to, other) = (dir.path().join("to"), dir.path().join("other"));
        let before = ["f", "link"].map(|name| facts(&other.join(name)));
        let link = entry(Some("link"), Kind::Symlink { target: b"f".to_vec() }, 0o777);
        for again in [false, true] {
            let mut writer = syncing(&to, SyncOptions::default());
            writer.root(0, &directory(None)).unwrap();
            match writer.entry(&file("f", b"old")).unwrap() {
                Placed::Unchanged => assert!(again || !is_compared),
                Placed::Wanted(mut target, Some(hash)) => {
                    assert!(is_compared && hash == *blake3::hash(b"old").as_bytes());
                    let identity = writer.keep_same(&mut target, &finished(b"old")).unwrap();
                    writer.settle(*target, Some(identity));
                }
                placed => panic!("{placed:?}"),
            }
            writer.entry(&link).unwrap();
            writer.leave();
            assert!(writer.failures().attributes.is_empty());
            let now = ["f", "link"].map(|name| facts(&to.join(name)));
            let is_link_changed = was != 1_000_000_000;
            assert_eq!(["f", "link"].map(|name| facts(&other.join(name))), before);
            assert_eq!((now[0].0, now[0].1), (0o644, 1_000_000_000));
            assert_eq!(now[1].1, 1_000_000_000);
            assert_ne!(now[0].2, before[0].2, "a file of its own");
            assert_eq!(now[1].2 != before[1].2, is_link_changed);
            assert_eq!(fs::read(to.join("f")).unwrap(), b"old");
            assert_eq!(tops(&to), set(&["f", "link"]));
        }
    }
}

/// S51 for that: a file that has several names in the source gets its attributes, and its names stay names of one file.
#[test]
fn names_of_one_file_change_together() {
    let dir = filled(&["a"]);
    let (to, outside) = (dir.path().join("to"), dir.path().join("outside"));
    age(&to.join("a"), 1_000_000_000);
    fs::set_permissions(to.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
    for name in [to.join("b"), outside.clone()] {
        fs::hard_link(to.join("a"), name).unwrap();
    }
    let mut writer = syncing(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    for name in ["a", "b"] {
        let mut entry = file(name, b"old");
        (entry.metadata.link_group, entry.metadata.link_names) = (Some([7; 16]), 2);
        put(&mut writer, &entry, b"old").unwrap();
    }
    writer.leave();
    let (a, b) = (facts(&to.join("a")), facts(&to.join("b")));
    assert_eq!(a, b);
    assert_eq!(a.0, 0o644);
    assert_eq!(facts(&outside).0, 0o600);
}

fn beside() -> SyncOptions {
    let backup = BackupOptions { directory: None, suffix: b"~".to_vec() };
    let rules = Excludes::of_rules([&b"=-r *~"[..]].into_iter()).unwrap();
    SyncOptions { backup: Some(backup), rules, ..SyncOptions::default() }
}

/// Issue "a backup replaces what SRC has": an entry of the source that has the name of a backup is the source's at the end, whether it came before what is kept, after it,
/// or stayed; what is kept has the suffix once more.
#[test]
fn backups_spare_what_the_source_has() {
    // Deleted: the source has `f~` and no `f`.
    let dir = filled(&["f", "f~"]);
    let to = dir.path().join("to");
    fs::write(to.join("f~"), b"source").unwrap();
    age(&to.join("f~"), 1_000_000_000);
    let mut writer = deleting(&to, beside());
    writer.root(0, &directory(None)).unwrap();
    assert!(matches!(writer.entry(&file("f~", b"source")), Ok(Placed::Unchanged)));
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["f"]));
    assert_eq!(fs::read(to.join("f~")).unwrap(), b"source");
    assert_eq!(fs::read(to.join("f~~")).unwrap(), b"old");
    // Replaced: its content comes before that of `f~`, and after it was found to be right.
    for stays in [false, true] {
        let dir = filled(&["f", "f~"]);
        let to = dir.path().join("to");
        if stays {
            fs::write(to.join("f~"), b"source").unwrap();
            age(&to.join("f~"), 1_000_000_000);
        }
        let mut writer = syncing(&to, beside());
        writer.root(0, &directory(None)).unwrap();
        let Ok(Placed::Wanted(first, _)) = writer.entry(&file("f", b"content")) else { panic!() };
        let second = writer.entry(&file("f~", b"source")).unwrap();
        let mut place = |target: Box<FileTarget>, content: &[u8]| {
            let mut new = target.create().unwrap();
            new.write(content).unwrap();
            let identity = target.finish(new, &finished(content)).unwrap();
            writer.settle(*target, Some(identity));
        };
        place(first, b"content");
        match second {
            Placed::Wanted(target, _) => place(target, b"source"),
            _ => assert!(stays),
        }
        writer.leave();
        assert_eq!(fs::read(to.join("f")).unwrap(), b"content");
        assert_eq!(fs::read(to.join("f~")).unwrap(), b"source", "stays {stays}");
        assert_eq!(fs::read(to.join("f~~")).unwrap(), b"old", "stays {stays}");
    }
}

/// Issue "a way that stays says nothing": the directory of the backups makes no way for a file of its name; that is told, and nothing of the file is left.
#[test]
fn the_directory_of_backups_makes_no_way() {
    let dir = filled(&["bak/x"]);
    let to = dir.path().join("to");
    let backup = BackupOptions { directory: Some(Beside::anywhere("bak".into())), suffix: Vec::new() };
    let mut writer = deleting(&to, SyncOptions { backup: Some(backup), ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("bak", b"new"), b"new").unwrap();
    writer.leave();
    let (_, failed) = finish(&mut writer);
    assert!(failed.iter().any(|(path, _)| path == b"bak"), "{failed:?}");
    assert_eq!(tops(&to), set(&["bak"]));
    assert!(to.join("bak/x").exists());
}

/// Issue 7 "--backup": the directory of the backups that one source's files made in the destination is nothing that a later source lacks.
#[test]
fn the_directory_of_backups_is_no_candidate_of_a_later_source() {
    let dir = filled(&["f"]);
    let to = dir.path().join("to");
    let backup = BackupOptions { directory: Some(Beside::anywhere("bak".into())), suffix: Vec::new() };
    let delete = Some(DeleteOptions::default());
    let sync = SyncOptions { delete, backup: Some(backup), itemize: true, ..SyncOptions::default() };
    let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new(), Vec::new()]).unwrap();
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = TreeWriter::new(landing, MINE).with_changes(changes);
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("f", b"new"), b"new").unwrap();
    writer.leave();
    writer.root(1, &directory(None)).unwrap();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert!(deleted.is_empty() && failed.is_empty(), "{deleted:?} {failed:?}");
    assert!(to.join("bak/f").is_file());
    assert_eq!(tops(&to), set(&["bak", "f"]));
}

/// Rules that the files `.r` of directories have.
fn ruled() -> SyncOptions {
    let rules = Excludes::of_rules([&b": .r"[..]].into_iter()).unwrap();
    SyncOptions { rules, ..SyncOptions::default() }
}

/// Two directories with as large files of rules as there may be, and full directories in which files are to come: told, and their contents settled in turns.
fn ways_in_turns(bytes_max: Option<u64>) -> (tempfile::TempDir, usize, u64) {
    const WAYS: usize = 60;
    let names: Vec<String> =
        ["a", "b"].iter().flat_map(|top| (0..WAYS).map(move |way| format!("{top}/{way:02}/x"))).collect();
    let dir = filled(&names.iter().map(|name| &name[..]).collect::<Vec<_>>());
    let to = dir.path().join("to");
    for top in ["a", "b"] {
        fs::write(to.join(top).join(".r"), "#---------\n".repeat(5_500)).unwrap();
    }
    let mut writer = deleting(&to, ruled());
    if let Some(bytes_max) = bytes_max {
        *writer.candidates().unwrap().notes().1 = bytes_max;
    }
    writer.root(0, &directory(None)).unwrap();
    let mut targets = [Vec::new(), Vec::new()];
    for (top, targets) in ["a", "b"].into_iter().zip(&mut targets) {
        writer.entry(&directory(Some(top))).unwrap();
        writer.entry(&file(".r", b"x")).unwrap();
        for way in 0..WAYS {
            let Placed::Wanted(target, _) = writer.entry(&file(&format!("{way:02}"), b"new")).unwrap() else {
                panic!()
            };
            targets.push(target);
        }
        writer.leave();
    }
    let mut most = 0;
    let [a, b] = targets;
    for target in a.into_iter().zip(b).flat_map(|(a, b)| [a, b]) {
        let mut new = target.create().unwrap();
        new.write(b"new").unwrap();
        let identity = target.finish(new, &finished(b"new")).unwrap();
        writer.settle(*target, Some(identity));
        most = most.max(writer.candidates().unwrap().notes().0);
    }
    writer.leave();
    let mut failed = Vec::new();
    while writer.delete_some(&mut failed).is_ok_and(|goes_on| goes_on) {}
    let told = writer.failures();
    failed.extend(told.directories);
    // Named one by one, and those beyond.
    let failed = failed.iter().filter(|(path, _)| path.len() == "a/00".len()).count() as u64;
    (dir, most, failed + told.attributes.values().sum::<u64>())
}

/// Issue "memory bounded": what is noted of directories that make way, with the rules that stood above them, waits in a file too; and where that would be too much they stay, which is
/// told of each, and nothing is left beside them.
#[test]
fn notes_of_ways_are_bounded() {
    let (dir, most, failed) = ways_in_turns(None);
    assert_eq!(failed, 0);
    assert!(most < SYNC_CANDIDATES_BYTES_MAX + (1 << 17), "{most} bytes in memory");
    assert!(dir.path().join("to/a/59").is_file() && dir.path().join("to/b/59").is_file());
    let (dir, _, failed) = ways_in_turns(Some(1 << 20));
    let to = dir.path().join("to");
    assert_eq!(failed, 120, "each way is told");
    for top in ["a", "b"] {
        assert!(to.join(top).join("00/x").exists() && to.join(top).join("59/x").exists());
        assert!(!tops(&to.join(top)).iter().any(|name| name.starts_with(".dray-")));
    }
}

/// Issue "a file of rules in DST protects for one run only": one that the source has not stays as long as something is protected by it, run after run; where nothing
/// is, it goes, and so does a directory that is left with it alone.
#[test]
fn a_file_of_rules_stays_for_what_it_protects() {
    let names = ["keep.o", "d/keep.o", "d/z", "gone/keep.o", "gone/z", "left/z", "old/deep/keep.o"];
    let dir = filled(&names);
    let to = dir.path().join("to");
    for (file, rules) in [
        ("d/.r", "P *.o"),
        (".r", "P /keep.o"),
        ("gone/.r", "P *.o"),
        ("left/.r", "P *.o"),
        ("old/.r", "- *.o"),
    ] {
        fs::write(to.join(file), rules).unwrap();
    }
    let run = |excluded| {
        let delete = Some(DeleteOptions { excluded, ..DeleteOptions::default() });
        let mut writer = deleting(&to, SyncOptions { delete, ..ruled() });
        writer.root(0, &directory(None)).unwrap();
        writer.entry(&directory(Some("d"))).unwrap();
        writer.leave();
        writer.leave();
        let (deleted, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{failed:?}");
        deleted
    };
    assert_eq!(run(false), set(&["d/z", "gone/z", "left/", "left/.r", "left/z"]));
    assert_eq!(run(false), set(&[]), "again");
    // What protects only what is left out does not count then.
    assert_eq!(run(true), set(&["old/", "old/.r", "old/deep/", "old/deep/keep.o"]));
    fs::remove_file(to.join("d/keep.o")).unwrap();
    fs::remove_file(to.join("gone/keep.o")).unwrap();
    assert_eq!(run(false), set(&["d/.r", "gone/", "gone/.r"]));
    assert!(to.join("keep.o").exists() && to.join(".r").exists());
}

/// Issue "--partial": what another run has open stays its own: it is neither replaced nor removed, whatever this run finds beside it.
#[test]
fn what_another_run_left_and_holds_stays() {
    const SIZE: u64 = 2 << 20;
    let dir = filled(&["other"]);
    let to = dir.path().join("to");
    let mut writer = syncing(&to, SyncOptions { partial: true, ..SyncOptions::default() });
    writer.root(0, &directory(None)).unwrap();
    let large = entry(Some("large"), Kind::File { size_bytes: SIZE, oid: None }, 0o644);
    let Ok(Placed::Wanted(mut target, _)) = writer.entry(&large) else { panic!() };
    let name = Name::new(b"large").unwrap();
    let path = |name: temporary::Temporary| to.join(String::from_utf8(name.to_vec()).unwrap());
    let kept = path(temporary::kept(&target.directory, &name));
    let usual = path(temporary::usual(&target.directory, &name));
    fs::write(&kept, b"of another run").unwrap();
    fs::write(&usual, b"of a run that was killed").unwrap();
    let theirs = fs::File::open(&kept).unwrap();
    rustix::fs::flock(theirs.as_fd(), FlockOperation::NonBlockingLockExclusive).unwrap();
    target.find_left();
    assert_eq!(fs::read(&kept).unwrap(), b"of another run");
    assert!(target.basis().is_some(), "and this one takes what it may");
    let mut new = target.create().unwrap();
    new.skip(SIZE).unwrap();
    // Somebody puts another file under the name that this run would remove at the end.
    fs::remove_file(&usual).unwrap();
    fs::write(&usual, b"of a third run").unwrap();
    target.finish(new, &Finished { size_bytes: SIZE, ..finished(b"") }).unwrap();
    assert_eq!(fs::read(&usual).unwrap(), b"of a third run");
    assert!(to.join("large").exists() && kept.exists());
}

/// Issue "--partial": each run goes on where the one before it was cut off, however many there were, and the last one leaves nothing but the file.
#[test]
fn what_was_cut_off_again_and_again_goes_on() {
    const PIECE: u64 = 1 << 20;
    let dir = filled(&["other"]);
    let to = dir.path().join("to");
    for run in 1..=4 {
        let mut writer = syncing(&to, SyncOptions { partial: true, ..SyncOptions::default() });
        writer.root(0, &directory(None)).unwrap();
        let large = entry(Some("large"), Kind::File { size_bytes: 4 * PIECE, oid: None }, 0o644);
        let Ok(Placed::Wanted(mut target, _)) = writer.entry(&large) else { panic!() };
        target.find_left();
        let left = target.basis().map_or(0, |left| left.size_bytes);
        assert_eq!(left, (run - 1) * PIECE, "run {run}");
        let mut new = target.create().unwrap();
        (0..run).for_each(|piece| new.write(&vec![piece as u8 + 1; PIECE as usize]).unwrap());
        if run < 4 {
            drop(new);
            writer.settle(*target, None);
            continue;
        }
        let whole = Finished { size_bytes: 4 * PIECE, ..finished(b"") };
        let identity = target.finish(new, &whole).unwrap();
        writer.settle(*target, Some(identity));
    }
    assert_eq!(tops(&to), set(&["large", "other"]));
}

/// A login that is confined to a directory gets no device, be it as another name of one that lies in another directory.
#[test]
fn a_confined_login_gets_no_name_of_a_device() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = filled(&["x"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::create_dir(&other).unwrap();
    for name in ["null", "pipe"] {
        let kind = if name == "null" { FileType::CharacterDevice } else { FileType::Fifo };
        mknodat(CWD, other.join(name), kind, Mode::from_raw_mode(0o600), rustix::fs::makedev(1, 3)).unwrap();
        fs::set_permissions(other.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        age(&other.join(name), 1_000_000_000);
    }
    let usage = BasisUse::Link;
    let basis = Some(BasisOptions { places: vec![Beside::anywhere("../other".into())], usage });
    let sync = SyncOptions { devices: true, specials: true, basis, ..SyncOptions::default() };
    let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
    let options = WriteOptions { harmless: true, ..MINE };
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    let mut writer = TreeWriter::new(landing, options).with_changes(changes);
    writer.root(0, &directory(None)).unwrap();
    let device = entry(Some("null"), Kind::CharacterDevice { major: 1, minor: 3 }, 0o600);
    assert_eq!(writer.entry(&device).unwrap_err().kind(), ErrorKind::Refused);
    assert!(matches!(writer.entry(&entry(Some("pipe"), Kind::Fifo, 0o600)), Ok(Placed::Unchanged)));
    assert!(!to.join("null").exists());
    assert_eq!(facts(&to.join("pipe")).2, facts(&other.join("pipe")).2, "what it may have is linked");
}

/// Issue "--compare-dest": an older version in the destination goes, as with rsync, and that is told, in a dry run too.
#[test]
fn what_another_directory_spares_goes_and_is_told() {
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("f"), b"new bytes").unwrap();
    age(&other.join("f"), 1_000_000_000);
    fs::set_permissions(other.join("f"), fs::Permissions::from_mode(0o644)).unwrap();
    let changes = || {
        let usage = BasisUse::Compare;
        let basis = Some(BasisOptions { places: vec![Beside::anywhere("../other".into())], usage });
        let sync = SyncOptions { basis, itemize: true, ..SyncOptions::default() };
        Changes { sync: Some(sync), ..Changes::default() }
    };
    let landing = || Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
    let deleted = |done: std::collections::VecDeque<Done>| {
        done.into_iter().filter(|done| done.letters.is_none() && done.path == b"f").count()
    };
    let mut preview = Preview::new(landing(), MINE, changes());
    preview.root(0, &directory(None)).unwrap();
    preview.entry(&file("f", b"new bytes")).unwrap().unwrap();
    assert_eq!(deleted(preview.take_done()), 1);
    assert!(to.join("f").exists());
    let mut writer = TreeWriter::new(landing(), MINE).with_changes(changes());
    writer.root(0, &directory(None)).unwrap();
    assert!(matches!(writer.entry(&file("f", b"new bytes")), Ok(Placed::Unchanged)));
    assert_eq!(deleted(writer.take_done()), 1);
    assert!(!to.join("f").exists());
}

/// Issue "Ctrl-C waits for a copy": what is kept on another file system, or copied from another directory, is given up once nobody waits; what was to be replaced
/// stays, and nothing else is left.
#[test]
fn copies_beside_are_given_up() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    let dir = filled(&["x"]);
    let to = dir.path().join("to");
    // On another file system, so that no blocks are shared.
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(other.path().join("f"), b"content").unwrap();
    age(&other.path().join("f"), 1_000_000_000);
    for is_stopped in [true, false] {
        let usage = BasisUse::Copy;
        let basis = Some(BasisOptions { places: vec![Beside::anywhere(other.path().to_owned())], usage });
        let mut writer = syncing(&to, SyncOptions { basis, ..SyncOptions::default() });
        writer.stop_with(Arc::new(AtomicBool::new(is_stopped)));
        writer.root(0, &directory(None)).unwrap();
        match writer.entry(&file("f", b"content")) {
            Err(error) => assert!(is_stopped && error.kind() == ErrorKind::Interrupted, "{error}"),
            placed => assert!(!is_stopped && matches!(placed, Ok(Placed::Unchanged))),
        }
        assert_eq!(tops(&to).len(), if is_stopped { 1 } else { 2 });
    }
}

/// Issue "contents of a 0700 DST become reachable": a directory of backups that is made has the bits of the destination, also on the way to what is kept.
#[test]
fn backups_are_no_more_open_than_the_destination() {
    let dir = filled(&["d/f"]);
    let to = dir.path().join("to");
    for top in [to.clone(), to.join("d")] {
        fs::set_permissions(top, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let backup = BackupOptions { directory: Some(Beside::anywhere("../kept/to".into())), suffix: Vec::new() };
    let mut writer = deleting(&to, SyncOptions { backup: Some(backup), ..SyncOptions::default() });
    writer.root(0, &entry(None, Kind::Directory { entries: None }, 0o700)).unwrap();
    writer.leave();
    assert!(finish(&mut writer).1.is_empty());
    let kept = dir.path().join("kept/to");
    assert_eq!([kept.clone(), kept.join("d")].map(|path| facts(&path).0), [0o700, 0o700]);
    assert_eq!(fs::read(kept.join("d/f")).unwrap(), b"old");
}

/// A file of several names that is made anew keeps the capabilities and the setuid bit that nobody asked to change: a change of its owner, which takes both away, comes first. Only
/// root may set them.
#[test]
fn a_file_made_anew_keeps_its_capabilities() {
    use rustix::fs::{XattrFlags, chown, getxattr, setxattr};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = shared(1_000_000_000);
    let to = dir.path().join("to");
    // cap_net_bind_service, effective: the second format of capabilities(7).
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let user = rustix::fs::Uid::from_raw(1234);
    chown(to.join("f"), Some(user), None).unwrap();
    setxattr(to.join("f"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    let before = facts(&to.join("f"));
    let mut writer = syncing(&to, SyncOptions::default());
    writer.root(0, &directory(None)).unwrap();
    assert!(matches!(writer.entry(&file("f", b"old")).unwrap(), Placed::Unchanged));
    writer.leave();
    assert!(writer.failures().attributes.is_empty());
    assert_ne!(facts(&to.join("f")).2, before.2, "a file of its own");
    assert_eq!(fs::metadata(to.join("f")).unwrap().uid(), 1234);
    let mut found = [0; 64];
    let len = getxattr(to.join("f"), "security.capability", &mut found[..]).unwrap();
    assert_eq!(found[..len], capability);
}

/// S84: where sources lose what came, names in a directory that was there are listed on every file system: one that takes two for the same need not be known.
#[test]
fn names_are_known_where_sources_lose_them() {
    for removes_sources in [false, true] {
        let dir = filled(&["f"]);
        let mut writer =
            syncing(&dir.path().join("to"), SyncOptions { removes_sources, ..SyncOptions::default() });
        writer.root(0, &directory(None)).unwrap();
        let top = writer.stack.last().unwrap();
        let check = |name: &[u8]| top.check_own(&Name::new(name).unwrap()).is_err();
        assert_eq!((check(b"F"), check(b"f")), (removes_sources, false));
    }
}
