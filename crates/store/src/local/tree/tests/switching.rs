//! A destination that is switched as a whole: it is all old or all new, whoever fails or interferes, and nothing is left beside it.

use std::collections::BTreeSet;

use dray_core::tree::Xattr;

use super::mounting::run_with_mounts;
use super::syncing::{deleting, filled, finish, set};
use super::*;

fn landing(to: &Path) -> dray_core::Result<Landing> {
    Landing::resolve_sync(&Origin::Anywhere, to, &[Vec::new()])?.as_a_whole(&Origin::Anywhere, to)
}

fn begun(to: &Path, sync: SyncOptions) -> dray_core::Result<TreeWriter> {
    begun_with(to, MINE, sync)
}

fn begun_with(to: &Path, options: WriteOptions, sync: SyncOptions) -> dray_core::Result<TreeWriter> {
    begun_durably(to, options, sync, false)
}

/// The same; with `fsync` what is switched is on disk.
fn begun_durably(
    to: &Path,
    options: WriteOptions,
    sync: SyncOptions,
    fsync: bool,
) -> dray_core::Result<TreeWriter> {
    let delete = sync.delete.or(Some(DeleteOptions { excluded: true, max: None }));
    let sync = SyncOptions { links: true, specials: true, delete, itemize: true, ..sync };
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    TreeWriter::new(landing(to)?, options).with_changes(changes).staged(fsync)
}

fn switching(to: &Path) -> TreeWriter {
    begun(to, SyncOptions::default()).unwrap()
}

/// A destination with files of these names and contents, as they are told of: what is told with the same is the same.
fn standing(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = filled(&[]);
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    for (name, content) in files {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        settle(&path);
    }
    for (name, _) in files {
        let above = Path::new(name).ancestors().skip(1);
        above.for_each(|above| settle(&to.join(above)));
    }
    dir
}

/// Bits and time as entries are told with them here.
fn settle(path: &Path) {
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 7);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Tells the source's `files`, and a directory `d` behind them with a file of it; which of them were wanted.
fn tell(writer: &mut TreeWriter, files: &[(&str, &[u8])], in_d: &[(&str, &[u8])]) -> BTreeSet<String> {
    tell_below(writer, &directory(None), files, in_d)
}

/// The same with this root.
fn tell_below(
    writer: &mut TreeWriter,
    root: &Entry,
    files: &[(&str, &[u8])],
    in_d: &[(&str, &[u8])],
) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    let mut bring = |writer: &mut TreeWriter, name: &str, content: &[u8]| match writer
        .entry(&file(name, content))
        .unwrap()
    {
        Placed::Wanted(target, _) => {
            wanted.insert(name.to_owned());
            let mut new = target.create().unwrap();
            new.write(content).unwrap();
            let identity = target.finish(new, &finished(content)).unwrap();
            writer.settle(*target, Some(identity));
        }
        Placed::Unchanged => {}
        other => panic!("{other:?}"),
    };
    writer.root(0, root).unwrap();
    files.iter().for_each(|(name, content)| bring(writer, name, content));
    if !in_d.is_empty() {
        writer.entry(&directory(Some("d"))).unwrap();
        in_d.iter().for_each(|(name, content)| bring(writer, name, content));
        writer.leave();
    }
    writer.leave();
    wanted
}

/// A run that is told the new tree, at the moment in which the trees have just changed places; what could not be done by then.
fn switched(to: &Path) -> (TreeWriter, Vec<(Vec<u8>, dray_core::Error)>) {
    let mut writer = switching(to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let mut failed = Vec::new();
    while names(to) != ["a", "b", "c", "d"] {
        assert!(writer.delete_some(&mut failed).unwrap());
    }
    (writer, failed)
}

/// All that is in the directory: path, inode, bits, time and content. Not the number of names, which what is made beside it adds to.
fn state(to: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![to.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let facts = (found.ino(), found.mode(), found.mtime(), found.mtime_nsec());
        lines.push(format!("{:?} {facts:?} {content:?}", path.strip_prefix(to).unwrap()));
        if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    lines.sort();
    lines
}

/// Names beside the destination.
fn beside(dir: &Path) -> Vec<String> {
    names(dir).into_iter().filter(|name| name != "to").collect()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// The error of a run that is told all and does not switch.
fn fails(writer: &mut TreeWriter) -> dray_core::Error {
    let mut failed = Vec::new();
    loop {
        match writer.delete_some(&mut failed) {
            Ok(true) => {}
            Ok(false) => panic!("it was switched: {failed:?}"),
            Err(error) => return error,
        }
    }
}

const OLD: [(&str, &[u8]); 5] =
    [("a", b"same"), ("b", b"old"), ("d/gone", b"gone"), ("d/kept", b"kept"), ("gone/x", b"x")];
const NEW: [(&str, &[u8]); 3] = [("a", b"same"), ("b", b"newer"), ("c", b"new")];
const NEW_IN_D: [(&str, &[u8]); 1] = [("kept", b"kept")];

/// S89: until the end nothing in the destination changes; then it has what the source has, what did not change is the same file, what it has not is told, and
/// nothing is left beside it.
#[test]
fn a_destination_is_switched_as_a_whole() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let (before, top) = (state(&to), inode(&to));
    let inodes = [inode(&to.join("a")), inode(&to.join("d/kept"))];
    let mut writer = switching(&to);
    assert_eq!(tell(&mut writer, &NEW, &NEW_IN_D), set(&["b", "c"]));
    assert_eq!((state(&to), inode(&to)), (before, top), "nothing is touched before the end");
    assert_eq!(beside(dir.path()).len(), 1);
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["d/gone", "gone/", "gone/x"]));
    assert_eq!(names(&to), ["a", "b", "c", "d"]);
    assert_eq!(fs::read(to.join("b")).unwrap(), b"newer");
    assert_eq!([inode(&to.join("a")), inode(&to.join("d/kept"))], inodes);
    assert_ne!(inode(&to), top);
    assert_eq!(fs::metadata(to.join("a")).unwrap().nlink(), 1);
    let found = fs::metadata(&to).unwrap();
    assert_eq!((found.mode() & 0o7777, found.mtime()), (0o755, 1_000_000_000));
    drop(writer);
    assert_eq!(beside(dir.path()), [""; 0]);
}

/// The same again: where nothing changed nothing is switched, and so where a directory alone changed.
#[test]
fn what_is_the_same_is_not_switched() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    finish(&mut writer);
    drop(writer);
    for (changes, is_switched) in [(None, false), (Some("d"), true), (None, false), (Some(""), true)] {
        if let Some(name) = changes {
            fs::set_permissions(to.join(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let (top, file) = (inode(&to), inode(&to.join("d/kept")));
        let mut writer = switching(&to);
        assert_eq!(tell(&mut writer, &NEW, &NEW_IN_D), set(&[]));
        let (deleted, failed) = finish(&mut writer);
        assert!(deleted.is_empty() && failed.is_empty(), "{deleted:?} {failed:?}");
        assert_eq!(inode(&to) != top, is_switched, "{changes:?}");
        assert_eq!(inode(&to.join("d/kept")), file);
        assert_eq!(fs::metadata(to.join("d")).unwrap().mode() & 0o777, 0o755);
        drop(writer);
        assert_eq!(beside(dir.path()), [""; 0]);
    }
}

/// S89: an entry that failed, and a run that is cut off, leave the destination; the next run goes on with what came, and takes away what the source lost since.
#[test]
fn what_was_not_switched_goes_on() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let before = state(&to);
    let mut cut_off = switching(&to);
    let more = [&NEW[..], &[("lost", b"lost")]].concat();
    assert_eq!(tell(&mut cut_off, &more, &[]), set(&["b", "c", "lost"]));
    drop(cut_off);
    assert_eq!((state(&to), beside(dir.path()).len()), (before.clone(), 1));
    let mut failing = switching(&to);
    assert_eq!(tell(&mut failing, &more, &[]), set(&[]), "all of it came before");
    assert!(failing.delete_nothing(&mut Vec::new()));
    let waits = failing.unswitched().unwrap();
    assert!(waits.contains(&beside(dir.path())[0]), "{waits}");
    drop(failing);
    assert_eq!((state(&to), beside(dir.path()).len()), (before, 1));
    let mut writer = switching(&to);
    assert_eq!(tell(&mut writer, &NEW, &NEW_IN_D), set(&[]));
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["d/gone", "gone/", "gone/x"]));
    assert_eq!(names(&to), ["a", "b", "c", "d"]);
    drop(writer);
    assert_eq!(beside(dir.path()), [""; 0]);
}

/// S89, S17: with `--fsync` a run goes on with what waits if that was written since the machine was started, or was on disk before; else files have their sizes and times, and perhaps not their bytes,
/// and all of it is made anew. Without it size and time are believed, as ever.
#[test]
fn what_waits_of_an_earlier_boot_is_made_anew() {
    const MARK: &str = "user.dray.unfinished.boot";
    let said = |path: &Path| {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(path, MARK, &mut value[..]);
        len.map(|len| value[..len].to_vec()).ok()
    };
    let say = |path: &Path, value: &[u8]| {
        rustix::fs::setxattr(path, MARK, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    let durable = |to: &Path, fsync| begun_durably(to, MINE, SyncOptions::default(), fsync).unwrap();
    let here = crate::local::boot_id().unwrap();
    let other = here.map(|byte| byte ^ 1);
    for (value, fsync, goes_on, has_left) in [
        (Some(&here[..]), true, true, false),
        (Some(&b"on disk"[..]), true, true, false),
        (Some(&other[..]), true, false, false),
        (Some(&other[..]), true, false, true),
        (None, true, false, false),
        (Some(&other[..]), false, true, false),
        (None, false, true, true),
    ] {
        let what = format!("{value:?} {fsync} {has_left}");
        let dir = standing(&OLD);
        let to = dir.path().join("to");
        let aside = dir.path().join("aside");
        let left = has_left.then(|| {
            let left = dir.path().join(cut_off_behind_the_switch(dir.path()));
            fs::rename(&left, &aside).unwrap();
            fs::remove_dir_all(&to).unwrap();
            fs::rename(standing(&OLD).path().join("to"), &to).unwrap();
            left
        });
        tell(&mut durable(&to, !fsync), &NEW, &[]);
        let hidden = beside(dir.path()).into_iter().find(|name| name != "aside").unwrap();
        let stage = dir.path().join(hidden);
        assert_eq!(said(&stage).as_deref(), Some(&here[..]), "{what}");
        // What was to come reached the disk in size and time alone.
        fs::write(stage.join("b"), [0; 5]).unwrap();
        settle(&stage.join("b"));
        match value {
            Some(value) => say(&stage, value),
            None => rustix::fs::removexattr(&stage, MARK).unwrap(),
        }
        left.iter().for_each(|left| fs::rename(&aside, left).unwrap());
        let mut writer = durable(&to, fsync);
        let wanted = tell(&mut writer, &NEW, &NEW_IN_D);
        assert_eq!(wanted, if goes_on { set(&[]) } else { set(&["b", "c"]) }, "{what}");
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{what} {failed:?}");
        assert_eq!(fs::read(to.join("b")).unwrap() == b"newer", !goes_on, "{what}");
        assert_eq!(
            (names(&to), said(&to)),
            (["a", "b", "c", "d"].map(String::from).to_vec(), None),
            "{what}"
        );
        drop(writer);
        assert_eq!(beside(dir.path()), [""; 0], "{what}");
    }
    // What was brought to the disk and not switched is believed by the next boot, until something is written to it.
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let mut writer = durable(&to, true);
    tell(&mut writer, &NEW, &NEW_IN_D);
    fs::write(to.join("mine"), b"mine").unwrap();
    assert_eq!(fails(&mut writer).kind(), ErrorKind::Changed);
    drop(writer);
    let stage = dir.path().join(&beside(dir.path())[0]);
    assert_eq!(said(&stage).as_deref(), Some(&b"on disk"[..]));
    for (fsync, value, expected) in
        [(true, b"on disk".to_vec(), &here[..]), (false, other.to_vec(), &other[..])]
    {
        say(&stage, &value);
        drop(durable(&to, fsync));
        assert_eq!(said(&stage).as_deref(), Some(expected));
    }
}

/// S89: more than may be deleted, a directory that was not looked into, an attribute that could not be kept and a source without a root switch nothing.
#[test]
fn what_is_not_whole_is_not_switched() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let before = state(&to);
    let is_old = |error: dray_core::Error, said: &str| {
        assert!(
            error.to_string().contains(said) && error.to_string().contains("nothing was switched"),
            "{error}"
        );
        assert_eq!(state(&to), before, "{said}");
    };
    let limited = |max| {
        let delete = Some(DeleteOptions { excluded: true, max: Some(max) });
        let mut writer = begun(&to, SyncOptions { delete, ..SyncOptions::default() }).unwrap();
        tell(&mut writer, &NEW, &NEW_IN_D);
        writer
    };
    is_old(fails(&mut limited(2)), "3 entries would be deleted");
    let mut writer = switching(&to);
    writer.root(0, &directory(None)).unwrap();
    writer.entry(&directory(Some("mount"))).unwrap();
    writer.unlisted();
    writer.leave();
    writer.leave();
    is_old(fails(&mut writer), "-x");
    drop(writer);
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    writer.settings.count_what("ACLs: not here");
    is_old(fails(&mut writer), "not everything could be kept");
    drop(writer);
    is_old(fails(&mut switching(&to)), "told no directory");
    finish(&mut limited(3));
    assert_eq!(names(&to), ["a", "b", "c", "d"]);
}

/// S89: what another program made, wrote, renamed or swapped in the destination meanwhile is not lost: nothing is switched.
#[test]
fn what_others_did_meanwhile_stays() {
    type Deed = (&'static str, &'static dyn Fn(&Path));
    let deeds: [Deed; 14] = [
        ("made", &|to| fs::write(to.join("d/made"), b"mine").unwrap()),
        ("made in a directory that goes", &|to| fs::write(to.join("gone/made"), b"mine").unwrap()),
        ("made a directory", &|to| fs::create_dir(to.join("mine")).unwrap()),
        ("wrote", &|to| fs::write(to.join("b"), b"mine").unwrap()),
        ("wrote what goes", &|to| fs::write(to.join("gone/x"), b"mine").unwrap()),
        ("wrote, and put its time back", &|to| {
            fs::write(to.join("b"), b"mine").unwrap();
            settle(&to.join("b"));
        }),
        ("wrote what goes, and put its time back", &|to| {
            fs::write(to.join("gone/x"), b"mine").unwrap();
            settle(&to.join("gone/x"));
        }),
        ("replaced what was linked", &|to| {
            fs::write(to.join("other"), b"mine").unwrap();
            fs::rename(to.join("other"), to.join("a")).unwrap();
        }),
        ("moved a file in", &|to| fs::rename(to.with_file_name("file"), to.join("mine")).unwrap()),
        ("moved a file into a directory", &|to| {
            fs::rename(to.with_file_name("file"), to.join("d/mine")).unwrap()
        }),
        ("moved a directory in", &|to| fs::rename(to.with_file_name("long"), to.join("gone/mine")).unwrap()),
        ("linked a file", &|to| fs::hard_link(to.with_file_name("file"), to.join("gone/mine")).unwrap()),
        ("deleted a file", &|to| fs::remove_file(to.join("d/gone")).unwrap()),
        ("replaced the destination", &|to| {
            fs::rename(to, to.with_file_name("moved")).unwrap();
            fs::create_dir(to).unwrap();
            fs::write(to.join("mine"), b"mine").unwrap();
        }),
    ];
    for (what, deed) in deeds {
        let dir = standing(&OLD);
        let to = dir.path().join("to");
        // Written long before, as far as times tell.
        fs::create_dir(dir.path().join("long")).unwrap();
        for name in ["long/file", "file", "long"] {
            let path = dir.path().join(name);
            if name != "long" {
                fs::write(&path, b"mine").unwrap();
            }
            settle(&path);
        }
        let mut writer = switching(&to);
        tell(&mut writer, &NEW, &NEW_IN_D);
        deed(&to);
        let after = state(&to);
        let error = fails(&mut writer);
        assert_eq!(error.kind(), ErrorKind::Changed, "{what}: {error}");
        assert!(error.to_string().starts_with("nothing was switched"), "{what}: {error}");
        assert_eq!(state(&to), after, "{what}");
        drop(writer);
        let stage = beside(dir.path()).into_iter().find(|name| name.starts_with(".dray-")).unwrap();
        let found = fs::metadata(dir.path().join(stage)).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o700, "{what}: what waits is this user's alone");
    }
    // Where nothing stood, something may.
    let dir = filled(&[]);
    let to = dir.path().join("to");
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &[]);
    fs::create_dir(&to).unwrap();
    assert_eq!(fails(&mut writer).kind(), ErrorKind::Changed);
    assert_eq!(names(&to), [""; 0]);
}

/// S89: what an earlier run linked, and this one replaces, makes anew or removes, loses a name by that, and so does what is in the tree that a killed run left behind the switch. That
/// changes the file in the destination, and is not taken for what others did.
#[test]
fn names_that_a_run_takes_are_its_own_changes() {
    for is_switched in [false, true] {
        let dir = standing(&[("a", b"same"), ("bits", b"bits"), ("lost", b"lost"), ("z", b"z")]);
        let to = dir.path().join("to");
        let told = |is_later: bool| {
            let content: &[u8] = if is_later { b"other" } else { b"same" };
            let mut bits = file("bits", b"bits");
            bits.metadata.mode = if is_later { 0o600 } else { 0o644 };
            let mut writer = switching(&to);
            writer.root(0, &directory(None)).unwrap();
            put(&mut writer, &file("a", content), content).unwrap();
            put(&mut writer, &bits, b"bits").unwrap();
            if !is_later {
                put(&mut writer, &file("lost", b"lost"), b"lost").unwrap();
            }
            writer.leave();
            writer
        };
        let mut cut_off = told(false);
        while is_switched && to.join("z").exists() {
            assert!(cut_off.delete_some(&mut Vec::new()).unwrap());
        }
        drop(cut_off);
        for name in ["a", "bits", "lost"] {
            assert_eq!(fs::metadata(to.join(name)).unwrap().nlink(), 2, "{name}");
        }
        let mut writer = told(true);
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{is_switched} {failed:?}");
        assert_eq!(names(&to), ["a", "bits"]);
        assert_eq!(fs::read(to.join("a")).unwrap(), b"other");
        assert_eq!(fs::metadata(to.join("bits")).unwrap().mode() & 0o777, 0o600);
        drop(writer);
        assert_eq!(beside(dir.path()), [""; 0]);
    }
}

/// What has a time that is to come is no file that somebody writes to.
#[test]
fn times_to_come_are_no_changes() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(100_000);
    for name in ["b", "gone/x"] {
        fs::File::open(to.join(name)).unwrap().set_modified(later).unwrap();
    }
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let (_, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(fs::read(to.join("b")).unwrap(), b"newer");
}

/// S89: two runs for one destination: the second is refused, and one that deletes in the directory above spares what the first is making.
#[test]
fn one_run_switches_a_destination() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let mut first = switching(&to);
    tell(&mut first, &NEW, &NEW_IN_D);
    let error = begun(&to, SyncOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("another run"), "{error}");
    let mut above = deleting(dir.path(), SyncOptions::default());
    above.root(0, &directory(None)).unwrap();
    above.entry(&directory(Some("to"))).unwrap();
    above.unlisted();
    above.leave();
    above.leave();
    let (_, failed) = finish(&mut above);
    assert!(failed.len() == 1 && failed[0].1.to_string().contains("another run"), "{failed:?}");
    let (_, failed) = finish(&mut first);
    assert!(failed.is_empty(), "{failed:?}");
    drop(first);
    assert_eq!((names(&to).len(), beside(dir.path()).len()), (4, 0));
}

/// S89, "killed between the switch and the removal": what bears the name of an old tree is removed by the next run, also where nothing else is to be done, and is
/// nobody's while a run holds it.
#[test]
fn what_is_left_of_an_old_tree_goes() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let stage = switching(&to);
    let new = beside(dir.path()).remove(0);
    drop(stage);
    assert_eq!(beside(dir.path()), [""; 0], "a run that brought nothing leaves nothing");
    assert!(landing(&to).unwrap().places().is_some());
    let (writer, _) = switched(&to);
    let old = beside(dir.path()).remove(0);
    assert_ne!(old, new);
    let held = begun(&to, SyncOptions::default()).unwrap_err();
    assert!(held.to_string().contains("another run"), "{held}");
    drop(writer);
    assert_eq!(names(&dir.path().join(&old)), ["a", "b", "d", "gone"]);
    assert!(landing(&to).unwrap().places().is_none(), "all is told, so that it goes");
    let mut next = switching(&to);
    assert!(dir.path().join(&old).exists(), "nothing goes before a source is there");
    next.root(0, &directory(None)).unwrap();
    assert!(!dir.path().join(&old).exists(), "it makes room for what comes");
    tell(&mut next, &NEW, &NEW_IN_D);
    let (deleted, failed) = finish(&mut next);
    assert!(deleted.is_empty() && failed.is_empty(), "{deleted:?} {failed:?}");
    drop(next);
    assert_eq!((names(&to).len(), beside(dir.path()).len()), (4, 0));
}

/// A run that stops as soon as the trees have changed places, and the name that the old one has then.
fn cut_off_behind_the_switch(dir: &Path) -> String {
    let to = dir.join("to");
    let (writer, _) = switched(&to);
    drop(writer);
    beside(dir).remove(0)
}

/// S89: as root, of a source whose own directory is another user's: the new tree gets that owner and its bits with the switch, so that a run that does not switch leaves it to this
/// user alone, and the next one goes on.
#[test]
fn a_root_of_another_owner_comes_with_the_switch() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("only root gives files away: roots of other owners are not tested");
    }
    const OTHER: u32 = 65_534;
    let owning = WriteOptions { owners: true, ..MINE };
    let mut root = directory(None);
    (root.metadata.uid, root.metadata.gid) = (OTHER, OTHER);
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let run = |max| {
        let delete = Some(DeleteOptions { excluded: true, max });
        let sync = SyncOptions { delete, users: true, groups: true, ..SyncOptions::default() };
        let mut writer = begun_with(&to, owning, sync).unwrap();
        tell_below(&mut writer, &root, &NEW, &NEW_IN_D);
        writer
    };
    let facts = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    let before = state(&to);
    let is_private = |what: &str| {
        let stage = dir.path().join(&beside(dir.path())[0]);
        assert_eq!(facts(&stage), (0, facts(dir.path()).1, 0o700), "{what}");
    };
    let mut writer = run(Some(0));
    is_private("while it is made");
    fails(&mut writer);
    drop(writer);
    is_private("more would go than may");
    // What fails with the last touch, and at the switch itself.
    let mut odd = root.clone();
    odd.metadata.xattrs = vec![Xattr { name: b"user.".to_vec(), value: b"no name".to_vec() }];
    let sync = SyncOptions { users: true, groups: true, ..SyncOptions::default() };
    let mut writer = begun_with(&to, WriteOptions { xattrs: true, ..owning }, sync).unwrap();
    tell_below(&mut writer, &odd, &NEW, &NEW_IN_D);
    let error = fails(&mut writer);
    assert!(error.to_string().contains("could be kept"), "{error}");
    drop(writer);
    is_private("an attribute");
    let mut writer = run(None);
    fs::rename(&to, dir.path().join("moved")).unwrap();
    fails(&mut writer);
    drop(writer);
    fs::rename(dir.path().join("moved"), &to).unwrap();
    let stage = dir.path().join(&beside(dir.path())[0]);
    assert_eq!(facts(&stage), (0, facts(dir.path()).1, 0o700), "the destination was away");
    assert_eq!(state(&to), before);
    let mut writer = run(None);
    let (_, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    drop(writer);
    assert_eq!((facts(&to), beside(dir.path()).len()), ((OTHER, OTHER, 0o755), 0));
    // Nor is it switched where it is the same.
    let top = inode(&to);
    let mut writer = run(None);
    let (_, failed) = finish(&mut writer);
    drop(writer);
    assert!(failed.is_empty() && inode(&to) == top && beside(dir.path()).is_empty(), "{failed:?}");
}

/// S89: where others may write to the directory that holds the destination, they may have put there what bears the name of something left: it is named, and
/// nothing of it is touched.
#[test]
fn what_others_may_have_left_is_not_believed() {
    for mode in [0o777, 0o1777, 0o775, 0o755] {
        for is_old in [false, true] {
            let dir = standing(&OLD);
            let to = dir.path().join("to");
            let name = if is_old {
                cut_off_behind_the_switch(dir.path())
            } else {
                tell(&mut switching(&to), &NEW, &NEW_IN_D);
                beside(dir.path()).remove(0)
            };
            let left = dir.path().join(&name);
            fs::write(left.join("mine"), b"mine").unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let before = (state(&to), state(&left));
            let mut writer = switching(&to);
            let told = writer.root(0, &directory(None));
            if mode == 0o755 {
                told.unwrap();
                writer.leave();
                continue;
            }
            let error = told.unwrap_err();
            assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(&name), "{error}");
            assert!(error.to_string().contains("another user"), "{error}");
            writer.delete_nothing(&mut Vec::new());
            drop(writer);
            assert_eq!((state(&to), state(&left)), before, "{mode:o} {is_old}");
        }
    }
    // Nor if it is another user's.
    if rustix::process::geteuid().is_root() {
        let dir = standing(&OLD);
        let to = dir.path().join("to");
        tell(&mut switching(&to), &NEW, &NEW_IN_D);
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        assert!(switching(&to).root(0, &directory(None)).is_err());
    }
}

/// S89: a directory of the user's own that somebody moves to one of our names while a run goes on is not taken for what this run made, or replaced: nothing of it is lost.
#[test]
fn what_takes_our_names_is_not_removed() {
    let important = |dir: &Path| {
        fs::create_dir_all(dir.join("important/d")).unwrap();
        fs::write(dir.join("important/d/file"), b"mine").unwrap();
    };
    let is_there = |path: &Path| fs::read(path.join("d/file")).is_ok_and(|found| found == b"mine");
    // Before the switch, in the place of the new tree.
    let dir = standing(&OLD);
    important(dir.path());
    let to = dir.path().join("to");
    let before = state(&to);
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let stage = dir.path().join(beside_of(&to));
    fs::rename(&stage, dir.path().join("away")).unwrap();
    fs::rename(dir.path().join("important"), &stage).unwrap();
    assert_eq!(fails(&mut writer).kind(), ErrorKind::Changed);
    drop(writer);
    let held: Vec<bool> = beside(dir.path()).iter().map(|name| is_there(&dir.path().join(name))).collect();
    assert_eq!((state(&to), held.iter().filter(|is_it| **is_it).count()), (before, 1));
    // After it, in the place of the old one.
    let dir = standing(&OLD);
    important(dir.path());
    let to = dir.path().join("to");
    let (mut writer, mut failed) = switched(&to);
    let old = dir.path().join(beside_of(&to));
    fs::rename(&old, dir.path().join("away")).unwrap();
    fs::rename(dir.path().join("important"), &old).unwrap();
    while writer.delete_some(&mut failed).unwrap() {}
    assert!(is_there(&old), "{failed:?}");
    assert!(failed.len() == 1, "{failed:?}");
    assert!(failed[0].1.to_string().starts_with("the new tree is in place"), "{failed:?}");
}

/// S89: whatever goes wrong says whether the destination is the old one or the new one.
#[test]
fn errors_say_what_was_switched() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let first = switching(&to);
    let error = begun(&to, SyncOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("nothing was switched"), "{error}");
    drop(first);
    let stop = |writer: &mut TreeWriter| {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        writer.stop_with(stop);
        fails(writer).to_string()
    };
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let waits = format!("{:?}", beside(dir.path())[0]);
    let error = stop(&mut writer);
    assert!(error.starts_with("nothing was switched") && error.contains(&waits), "{error}");
    assert_eq!(error.matches("nothing was switched").count(), 1, "{error}");
    drop(writer);
    let (mut writer, _) = switched(&to);
    let error = stop(&mut writer);
    assert!(error.starts_with("the new tree is in place") && !error.contains("nothing"), "{error}");
}

/// S89: where another run is about to switch a directory in the destination, nothing is switched; what it makes in the old tree in the last moment is not
/// removed.
#[test]
fn another_run_within_the_destination_keeps_its_tree() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let mut inner = switching(&to.join("gone"));
    tell(&mut inner, &NEW, &[]);
    let before = state(&to);
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let error = fails(&mut writer);
    assert!(error.to_string().contains("another run"), "{error}");
    drop(writer);
    assert_eq!(state(&to), before);
    let (_, failed) = finish(&mut inner);
    assert!(failed.is_empty(), "{failed:?}");
    drop(inner);
    assert_eq!(names(&to.join("gone")), ["a", "b", "c"]);
    // One that was cut off is at it again in the last moment.
    tell(&mut switching(&to.join("gone")), &[("z", b"z")], &[]);
    let (mut writer, mut failed) = switched(&to);
    let old = beside(dir.path()).remove(0);
    let inner = dir.path().join(&old).join("gone");
    let late = switching(&inner);
    let stage = beside_of(&inner);
    while writer.delete_some(&mut failed).unwrap() {}
    let stage = dir.path().join(&beside(dir.path())[0]).join(stage);
    assert!(stage.join("z").exists() && !failed.is_empty(), "{failed:?}");
    drop(late);
}

/// The hidden name beside a directory.
fn beside_of(path: &Path) -> String {
    let found = names(path.parent().unwrap());
    found.into_iter().find(|name| name.starts_with(".dray-")).unwrap()
}

/// S89: what an earlier run left and cannot be removed stands in nobody's way: it gets another name, which is told, and the trees change places.
#[test]
fn what_cannot_be_removed_is_set_aside() {
    const PLACE: &str = "DRAY_TEST_SWITCHING_LEFT";
    let Some(place) = std::env::var_os(PLACE) else {
        let dir = standing(&OLD);
        let left = cut_off_behind_the_switch(dir.path());
        fs::create_dir(dir.path().join(&left).join("mounted")).unwrap();
        fs::write(dir.path().join("to/b"), b"another").unwrap();
        let mount = format!("cd \"${PLACE}\" && mount -t tmpfs tmpfs .dray-*/mounted");
        return run_with_mounts(
            "local::tree::tests::switching::what_cannot_be_removed_is_set_aside",
            (PLACE, dir.path()),
            &mount,
        );
    };
    let place = Path::new(&place);
    let (to, left) = (place.join("to"), beside(place).remove(0));
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    let (_, failed) = finish(&mut writer);
    drop(writer);
    let aside = beside(place).remove(0);
    assert_ne!(aside, left);
    assert_eq!(
        (names(&place.join(&aside)), fs::read(to.join("b")).unwrap()),
        (vec!["mounted".into()], b"newer".to_vec())
    );
    let said: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
    assert!(said.len() == 2 && said[0].contains("mounted there") && said[1].contains(&aside), "{said:?}");
}

/// S89: a user's own directories that he may not read, enter or write to, here and at the source, are switched as any others.
#[test]
fn closed_directories_change_places() {
    let run = || {
        const BITS: [u32; 4] = [0o000, 0o300, 0o400, 0o100];
        let dir =
            standing(&[("a", b"a"), ("c0/x", b"old"), ("c1/x", b"old"), ("c2/x", b"old"), ("c3/x", b"old")]);
        let to = dir.path().join("to");
        let set = |root: &Path, bits: &dyn Fn(u32) -> u32| {
            for (number, mode) in BITS.iter().enumerate() {
                let path = root.join(format!("c{number}"));
                fs::set_permissions(path, fs::Permissions::from_mode(bits(*mode))).unwrap();
            }
        };
        set(&to, &|bits| bits);
        let tell = |more: bool, max: Option<u64>| {
            let delete = Some(DeleteOptions { excluded: true, max });
            let mut writer = begun(&to, SyncOptions { delete, ..SyncOptions::default() }).unwrap();
            writer.root(0, &directory(None)).unwrap();
            put(&mut writer, &file("a", b"a"), b"a").unwrap();
            for (number, mode) in BITS.iter().enumerate() {
                let closed = entry(Some(&format!("c{number}")), Kind::Directory { entries: None }, *mode);
                writer.entry(&closed).unwrap();
                if more {
                    put(&mut writer, &file("lost", b"lost"), b"lost").unwrap();
                }
                put(&mut writer, &file("x", b"newer"), b"newer").unwrap();
                writer.leave();
            }
            writer.leave();
            writer
        };
        // What it left is finished, and has something that the source loses.
        drop(tell(true, None));
        // Nobody can count what is in them.
        let error = fails(&mut tell(false, Some(100)));
        assert!(error.to_string().contains("--max-delete"), "{error}");
        for _ in 0..2 {
            let mut writer = tell(false, None);
            let (_, failed) = finish(&mut writer);
            assert!(failed.is_empty(), "{failed:?}");
            drop(writer);
            assert_eq!(beside(dir.path()), [""; 0]);
            for (number, mode) in BITS.iter().enumerate() {
                let found = fs::metadata(to.join(format!("c{number}"))).unwrap();
                assert_eq!(found.mode() & 0o7777, *mode);
            }
        }
        set(&to, &|_| 0o700);
        for number in 0..BITS.len() {
            let path = to.join(format!("c{number}"));
            assert_eq!(
                (names(&path), fs::read(path.join("x")).unwrap()),
                (vec!["x".into()], b"newer".to_vec())
            );
        }
    };
    if rustix::process::geteuid().is_root() {
        hostile::as_nobody(|_| run());
    } else {
        run();
    }
}

/// S89: where the file system keeps no attributes, what a run that was cut off left gets the bits that a new directory has, not those that it had while it was made.
#[test]
fn bits_come_without_attributes() {
    const PLACE: &str = "DRAY_TEST_SWITCHING_RAMFS";
    let Some(place) = std::env::var_os(PLACE) else {
        let place = tempfile::tempdir().unwrap();
        let mount = format!("mount -t ramfs ramfs \"${PLACE}\"");
        return run_with_mounts(
            "local::tree::tests::switching::bits_come_without_attributes",
            (PLACE, place.path()),
            &mount,
        );
    };
    let to = Path::new(&place).join("to");
    let bare = WriteOptions { modes: false, special_modes: false, ..MINE };
    let granted = 0o755 & !super::super::super::delivery::umask();
    let mut cut_off = begun_with(&to, bare, SyncOptions::default()).unwrap();
    cut_off.root(0, &directory(None)).unwrap();
    cut_off.entry(&directory(Some("d"))).unwrap();
    put(&mut cut_off, &file("kept", b"kept"), b"kept").unwrap();
    drop(cut_off);
    let mut writer = begun_with(&to, bare, SyncOptions::default()).unwrap();
    tell(&mut writer, &NEW, &NEW_IN_D);
    let (_, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    drop(writer);
    for name in ["", "d"] {
        assert_eq!(fs::metadata(to.join(name)).unwrap().mode() & 0o7777, granted, "{name:?}");
    }
    assert_eq!(beside(Path::new(&place)), [""; 0]);
}

/// What is made in the old tree once it is replaced, by whoever has it open, is not removed unseen.
#[test]
fn what_comes_into_the_old_tree_stays() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    let (mut writer, mut failed) = switched(&to);
    // Until the removal begins, its moment is that of the switch.
    while writer.delete_some(&mut failed).unwrap() && beside(dir.path()).len() == 1 {
        let late = dir.path().join(&beside(dir.path())[0]).join("d/late");
        if !late.exists() && late.parent().unwrap().exists() {
            fs::write(&late, b"late").unwrap();
        }
    }
    drop(writer);
    assert_eq!(names(&to).len(), 4);
    stays_for_good(dir.path(), "d/late", &failed);
}

/// What came into the old tree is told with the name that it has now, which no run takes for its own: others leave it alone.
fn stays_for_good(dir: &Path, path: &str, failed: &[(Vec<u8>, dray_core::Error)]) {
    let (to, aside) = (dir.join("to"), beside(dir));
    assert_eq!(aside.len(), 1, "{aside:?} {failed:?}");
    let told: Vec<String> =
        failed.iter().map(|(path, error)| format!("{}: {error}", String::from_utf8_lossy(path))).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with(&format!("{}/{path}: the new tree is in place", aside[0])), "{told:?}");
    assert!(told[1].contains(&format!("stays as {:?}", aside[0])), "{told:?}");
    let before = state(&dir.join(&aside[0]));
    assert!(before.iter().any(|line| line.starts_with(&format!("{path:?} "))), "{before:?}");
    for content in [&b"newer still"[..], b"newer still", b"the newest of all"] {
        let mut writer = switching(&to);
        tell(&mut writer, &[("b", content)], &[]);
        let (_, failed) = finish(&mut writer);
        assert!(failed.is_empty(), "{failed:?}");
        drop(writer);
        assert_eq!(fs::read(to.join("b")).unwrap(), content);
        assert_eq!((beside(dir), state(&dir.join(&aside[0]))), (aside.clone(), before.clone()));
    }
}

/// A file of several names in the old tree goes with all of them, though the first that is removed changes it and somebody moved something beside it.
#[test]
fn names_of_one_file_go_together() {
    let dir = standing(&[&OLD[..], &[("gone/a", b"two names")]].concat());
    let (to, file) = (dir.path().join("to"), dir.path().join("file"));
    fs::hard_link(to.join("gone/a"), to.join("gone/b")).unwrap();
    fs::write(&file, b"mine").unwrap();
    settle(&file);
    let (mut writer, mut failed) = switched(&to);
    let old = beside(dir.path()).into_iter().find(|name| name != "file").unwrap();
    fs::rename(&file, dir.path().join(&old).join("gone/mine")).unwrap();
    while writer.delete_some(&mut failed).unwrap() {}
    drop(writer);
    assert_eq!(names(&dir.path().join(&beside(dir.path())[0]).join("gone")), ["mine"], "{failed:?}");
    stays_for_good(dir.path(), "gone/mine", &failed);
}

/// S89: what is moved into the old tree keeps its own times, and stays all the same: after the switch, and before it where that had been looked at already.
#[test]
fn what_is_moved_into_the_old_tree_stays() {
    for is_early in [false, true] {
        for into in ["mine", "d/mine", "gone/mine"] {
            let many: Vec<String> = (0..200).map(|number| format!("many/{number:03}")).collect();
            let many: Vec<(&str, &[u8])> = many.iter().map(|name| (&name[..], &b"x"[..])).collect();
            let dir = standing(&[&OLD[..], &many[..]].concat());
            let (to, file) = (dir.path().join("to"), dir.path().join("file"));
            fs::write(&file, b"mine").unwrap();
            settle(&file);
            let mut writer = switching(&to);
            tell(&mut writer, &NEW, &NEW_IN_D);
            let mut failed = Vec::new();
            let is_new = || names(&to) == ["a", "b", "c", "d"];
            let move_in = |tree: &Path| fs::rename(&file, tree.join(into)).unwrap();
            let mut is_moved = false;
            let mut steps = 0;
            let mut deleted = BTreeSet::new();
            loop {
                let goes_on = writer.delete_some(&mut failed);
                steps += 1;
                let (goes_on, is_refused) = match goes_on {
                    Ok(goes_on) => (goes_on, false),
                    Err(error) => (false, error.kind() == ErrorKind::Changed),
                };
                let done = writer.take_done().into_iter().filter(|done| done.letters.is_none());
                deleted.extend(done.map(|done| String::from_utf8(done.path).unwrap()));
                if is_refused || !goes_on {
                    // The destination itself is looked at last, and what is in it first.
                    assert_eq!(is_refused, is_early && into == "mine", "{into}");
                }
                if is_refused {
                    assert!(to.join(into).exists() && deleted.is_empty());
                    break;
                }
                if is_early && !is_moved && steps == LOOKING {
                    move_in(&to);
                    is_moved = true;
                }
                if !is_early && !is_moved && is_new() {
                    let old = beside(dir.path()).into_iter().find(|name| name != "file").unwrap();
                    move_in(&dir.path().join(old));
                    is_moved = true;
                }
                if !goes_on {
                    drop(writer);
                    stays_for_good(dir.path(), into, &failed);
                    // What stays is not told as deleted, nor is a directory that it is in.
                    let mut told = set(&["d/gone", "gone/x", "many/"]);
                    told.extend(many.iter().map(|(name, _)| (*name).to_owned()));
                    told.extend((into != "gone/mine").then(|| "gone/".to_owned()));
                    assert_eq!(deleted, told, "{into}");
                    break;
                }
            }
            assert!(is_moved, "{into}");
        }
    }
}

/// Calls until the look is under way.
const LOOKING: u32 = 3;

/// Links of one file, symbolic links, pipes, and a file and a directory that change places.
#[test]
fn everything_is_switched() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let dir = standing(&[("hard", b"hard"), ("file", b"file"), ("directory/x", b"x"), ("directory/y", b"y")]);
    let to = dir.path().join("to");
    fs::hard_link(to.join("hard"), to.join("hard2")).unwrap();
    symlink("target", to.join("link")).unwrap();
    mknodat(CWD, to.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let before: Vec<u64> = ["hard", "hard2"].iter().map(|name| inode(&to.join(name))).collect();
    let mut writer = switching(&to);
    writer.root(0, &directory(None)).unwrap();
    put(&mut writer, &file("directory", b"a file now"), b"a file now").unwrap();
    writer.entry(&directory(Some("file"))).unwrap();
    put(&mut writer, &file("z", b"z"), b"z").unwrap();
    writer.leave();
    for name in ["hard", "hard2"] {
        let mut linked = file(name, b"hard");
        (linked.metadata.link_group, linked.metadata.link_names) = (Some([1; 16]), 2);
        put(&mut writer, &linked, b"hard").unwrap();
    }
    writer.entry(&entry(Some("link"), Kind::Symlink { target: b"target".to_vec() }, 0o777)).unwrap();
    writer.entry(&entry(Some("pipe"), Kind::Fifo, 0o644)).unwrap();
    writer.leave();
    let (deleted, failed) = finish(&mut writer);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(deleted, set(&["directory/x", "directory/y"]), "what makes way does not count");
    let after: Vec<u64> = ["hard", "hard2"].iter().map(|name| inode(&to.join(name))).collect();
    assert_eq!(before, after);
    assert_eq!(fs::read(to.join("directory")).unwrap(), b"a file now");
    assert!(to.join("file/z").exists() && fs::read_link(to.join("link")).unwrap() == Path::new("target"));
    drop(writer);
    assert_eq!(beside(dir.path()), [""; 0]);
}

/// A destination that is not there is made in one step, and its first name is its last.
#[test]
fn a_new_destination_comes_as_a_whole() {
    let dir = filled(&[]);
    let to = dir.path().join("to");
    let mut writer = switching(&to);
    tell(&mut writer, &NEW, &NEW_IN_D);
    assert!(!to.exists());
    let (deleted, failed) = finish(&mut writer);
    assert!(deleted.is_empty() && failed.is_empty(), "{deleted:?} {failed:?}");
    assert_eq!(names(&to), ["a", "b", "c", "d"]);
    drop(writer);
    assert_eq!(beside(dir.path()), [""; 0]);
}

/// What has no name of its own cannot change places, nor what a link leads to, nor what somebody else left under our name.
#[test]
fn what_cannot_be_switched_is_refused() {
    let dir = standing(&OLD);
    let to = dir.path().join("to");
    symlink("to", dir.path().join("link")).unwrap();
    fs::write(dir.path().join("file"), b"file").unwrap();
    for path in [dir.path().join("link"), to.join("."), to.join("d/.."), "/".into(), dir.path().join("file")]
    {
        let error = landing(&path).unwrap_err();
        assert!(error.to_string().contains("director") || error.to_string().contains("--atomic"), "{error}");
    }
    assert!(landing(&to.join("")).is_ok(), "a slash at the end is nothing");
    if rustix::process::geteuid().is_root() {
        let stage = switching(&to);
        let name = dir.path().join(&beside(dir.path())[0]);
        drop(stage);
        fs::create_dir(&name).unwrap();
        std::os::unix::fs::chown(&name, Some(65_534), None).unwrap();
        let error = begun(&to, SyncOptions::default()).unwrap_err();
        assert!(error.to_string().contains("somebody else"), "{error}");
        assert!(name.exists());
    }
}

/// What is mounted is not taken out of the destination with the old tree, nor is a destination switched that is mounted itself.
#[test]
fn what_is_mounted_is_not_switched() {
    const PLACE: &str = "DRAY_TEST_SWITCHING_MOUNTS";
    let Some(place) = std::env::var_os(PLACE) else {
        let place = tempfile::tempdir().unwrap();
        for name in ["mounted", "has/mount", "has file"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        fs::write(place.path().join("has file/f"), b"f").unwrap();
        let mount = format!(
            "cd \"${PLACE}\" && mount -t tmpfs tmpfs mounted && mount -t tmpfs tmpfs has/mount && mount --bind /etc/hostname 'has file/f'"
        );
        return run_with_mounts(
            "local::tree::tests::switching::what_is_mounted_is_not_switched",
            (PLACE, place.path()),
            &mount,
        );
    };
    let place = Path::new(&place);
    assert!(landing(&place.join("mounted")).unwrap_err().to_string().contains("mounted"));
    for name in ["has", "has file"] {
        let to = place.join(name);
        let mut writer = switching(&to);
        tell(&mut writer, &NEW, &[]);
        let error = fails(&mut writer);
        assert!(error.to_string().contains("mounted on"), "{error}");
        assert!(!to.join("a").exists());
    }
}

/// A directory that its owner may not write to changes places all the same, whoever runs it, and its old one is removed.
#[test]
fn read_only_directories_change_places() {
    let run = || {
        let dir = standing(&OLD);
        let to = dir.path().join("to");
        for name in ["d", ""] {
            fs::set_permissions(to.join(name), fs::Permissions::from_mode(0o555)).unwrap();
        }
        let root = entry(None, Kind::Directory { entries: None }, 0o555);
        let cut_off = |is_cut: bool| {
            let mut writer = switching(&to);
            writer.root(0, &root).unwrap();
            put(&mut writer, &file("b", b"newer"), b"newer").unwrap();
            writer.leave();
            if !is_cut {
                let (_, failed) = finish(&mut writer);
                assert!(failed.is_empty(), "{failed:?}");
            }
        };
        cut_off(true);
        cut_off(false);
        assert_eq!(names(&to), ["b"]);
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o555);
        assert_eq!(beside(dir.path()), [""; 0]);
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    };
    if rustix::process::geteuid().is_root() {
        hostile::as_nobody(|_| run());
    } else {
        run();
    }
}
