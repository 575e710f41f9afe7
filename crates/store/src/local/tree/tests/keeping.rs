//! What a copy keeps and what it must not: owners, setuid, ACLs, attributes, the bits of directories.

use dray_core::tree::Xattr;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::super::opened::Devices;
use super::hostile::{as_nobody, become_nobody, shared};
use super::*;

const PLAIN: WriteOptions = WriteOptions { times: false, modes: false, special_modes: false, ..MINE };

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An ACL as Linux keeps it: tag, bits and number of each entry.
pub(super) fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, bits, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    [&2u32.to_le_bytes()[..], &entries].concat()
}

fn open(path: &Path, options: WriteOptions) -> TreeWriter {
    let mut writer = writer(path, options);
    writer.root(0, &directory(None)).unwrap();
    writer
}

/// Review B3: new bytes do not get the setuid of the file that they replace; other bits of it stay.
#[test]
fn setuid_is_not_given_to_new_bytes() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("tree/f");
    fs::create_dir(temporary.path().join("tree")).unwrap();
    fs::write(&path, b"old").unwrap();
    set_mode(&path, 0o6751);
    put(&mut open(temporary.path(), PLAIN), &file("f", b"newer"), b"newer").unwrap();
    assert_eq!(mode_of(&path), 0o751);
}

/// Review M2 and M3: a file whose owner cannot be set arrives without setuid and setgid, and that is told once for all of them.
#[test]
fn an_owner_that_cannot_be_set_costs_the_owner_alone() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("it needs root");
    }
    let temporary = tempfile::tempdir().unwrap();
    shared(&temporary.path().join("tree"));
    let to = temporary.path().to_owned();
    let told = std::thread::scope(|scope| {
        let work = || {
            // It begins as one that may set owners, and then may not: as root on a server that trusts no root.
            let mut writer = open(&to, ARCHIVE);
            become_nobody();
            for name in ["a", "b"] {
                let mut entry = file(name, b"x");
                (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) = (0o6755, 1234, 1234);
                put(&mut writer, &entry, b"x").unwrap();
            }
            let mut link = entry(Some("c"), Kind::Symlink { target: b"x".to_vec() }, 0o777);
            (link.metadata.uid, link.metadata.gid) = (1234, 1234);
            put(&mut writer, &link, b"").unwrap();
            writer.failures()
        };
        scope.spawn(work).join().unwrap()
    });
    assert_eq!(fs::read(temporary.path().join("tree/b")).unwrap(), b"x");
    assert_eq!(mode_of(&temporary.path().join("tree/a")), 0o755);
    let counts: Vec<_> = told.attributes.iter().collect();
    assert!(matches!(&counts[..], [(what, 3)] if what.starts_with("owner: ")), "{counts:?}");
}

/// Review M3: a user who may not give files away keeps setuid on what was his alone.
#[test]
fn setuid_stays_with_its_owner() {
    let temporary = tempfile::tempdir().unwrap();
    shared(&temporary.path().join("tree"));
    as_nobody(|uid| {
        let mut writer = open(temporary.path(), ARCHIVE);
        for (name, uid) in [("mine", uid), ("root's", 0), ("another's", 1234)] {
            let mut entry = file(name, b"x");
            (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) = (0o4711, uid, 1234);
            put(&mut writer, &entry, b"x").unwrap();
        }
        assert!(writer.failures().attributes.is_empty());
    });
    let modes =
        ["mine", "root's", "another's"].map(|name| mode_of(&temporary.path().join("tree").join(name)));
    let other = if rustix::process::geteuid().is_root() { 0o711 } else { modes[1] };
    assert_eq!(modes, [0o4711, other, 0o711]);
}

/// Review M4: a default ACL of the directory does not change the bits that are kept, and decides where none are.
#[test]
fn a_default_acl_does_not_disturb_the_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let tree = temporary.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let none = u32::MAX;
    let default = acl(&[(1, 7, none), (4, 4, none), (32, 0, none)]);
    if let Err(error) = setxattr(&tree, "system.posix_acl_default", &default, XattrFlags::empty()) {
        return dray_testkit::say_skip(&format!("no ACLs here: {error}"));
    }
    let mut keeping = open(temporary.path(), WriteOptions { modes: true, ..PLAIN });
    put(&mut keeping, &file("kept", b"x"), b"x").unwrap();
    put(&mut keeping, &directory(Some("kept directory")), b"").unwrap();
    keeping.leave();
    let mut archive = open(temporary.path(), WriteOptions { xattrs: true, ..MINE });
    put(&mut archive, &file("archived", b"x"), b"x").unwrap();
    let mut plain = open(temporary.path(), PLAIN);
    put(&mut plain, &entry(Some("plain"), Kind::File { size_bytes: 1, oid: None }, 0o666), b"x").unwrap();
    put(&mut plain, &entry(Some("plain directory"), Kind::Directory { entries: None }, 0o777), b"").unwrap();
    plain.leave();
    let mode = |name: &str| mode_of(&tree.join(name));
    assert_eq!((mode("kept"), mode("kept directory"), mode("archived")), (0o644, 0o755, 0o644));
    assert_eq!((mode("plain"), mode("plain directory")), (0o640, 0o740));
    let mut value = [0; 64];
    let found = getxattr(tree.join("archived"), "system.posix_acl_access", &mut value[..]);
    assert_eq!(found.unwrap_err(), rustix::io::Errno::NODATA, "the source had no ACL");
}

/// Review M10: attributes that only root may set are no failure for a user; they are summed up.
#[test]
fn attributes_of_root_are_left_out_for_a_user() {
    let temporary = tempfile::tempdir().unwrap();
    shared(&temporary.path().join("tree"));
    let not_kept = as_nobody(|_| {
        let mut writer = open(temporary.path(), ARCHIVE);
        let mut entry = file("f", b"x");
        let xattr = |name: &str| Xattr { name: name.into(), value: b"v".to_vec() };
        entry.metadata.xattrs = vec![xattr("security.capability"), xattr("trusted.x"), xattr("user.x")];
        put(&mut writer, &entry, b"x").unwrap();
        writer.failures()
    });
    assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
    let names: Vec<_> = not_kept.left_out.keys().map(|what| what.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["security.*", "trusted.*"]);
    let mut value = [0; 8];
    assert_eq!(getxattr(temporary.path().join("tree/f"), "user.x", &mut value[..]), Ok(1));
}

/// Review "a failed xattr read is told as a failure, never as none": what is there stays where it is not known what there
/// should be.
#[test]
fn attributes_that_could_not_be_read_are_left_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("tree/f");
    fs::create_dir(temporary.path().join("tree")).unwrap();
    fs::write(&path, b"x").unwrap();
    setxattr(&path, "user.note", b"kept", XattrFlags::empty()).unwrap();
    let mut entry = file("f", b"x");
    entry.metadata.xattrs_unread = true;
    let options = WriteOptions { xattrs: true, ..MINE };
    let mut first = open(temporary.path(), options);
    let Placed::Wanted(mut target, Some(_)) = first.entry(&entry).unwrap() else { panic!("same bytes") };
    first.keep_same(&mut target, &finished(b"x")).unwrap();
    first.settle(*target, None);
    let mut value = [0; 8];
    assert_eq!(getxattr(&path, "user.note", &mut value[..]), Ok(4));
    entry.metadata.xattrs_unread = false;
    assert!(matches!(open(temporary.path(), options).entry(&entry).unwrap(), Placed::Unchanged));
    assert_eq!(getxattr(&path, "user.note", &mut value[..]), Err(rustix::io::Errno::NODATA));
}

/// Review "hard-linked symlinks": names of one link are names of one link.
#[test]
fn symbolic_links_of_several_names_stay_so() {
    let temporary = tempfile::tempdir().unwrap();
    let from = temporary.path().join("from");
    fs::create_dir_all(from.join("sub")).unwrap();
    symlink("nowhere", from.join("a")).unwrap();
    for name in ["sub/b", "sub/c"] {
        fs::hard_link(from.join("a"), from.join(name)).unwrap();
    }
    for _ in 0..2 {
        assert!(copy(&from, temporary.path(), walk_options(), ARCHIVE).is_empty());
        let inode =
            |name: &str| fs::symlink_metadata(temporary.path().join("tree").join(name)).unwrap().ino();
        assert_eq!((inode("sub/b"), inode("sub/c")), (inode("a"), inode("a")));
        assert_eq!(fs::read_link(temporary.path().join("tree/a")).unwrap(), Path::new("nowhere"));
    }
}

/// Review "widened directory modes": bits that are there for the time of a copy alone go when that is stopped, and with the next
/// run when it was killed, whether the directory was there before or was made.
#[test]
fn bits_for_the_time_of_a_copy_do_not_stay() {
    let temporary = tempfile::tempdir().unwrap();
    let tree = temporary.path().join("tree");
    shared(&tree);
    as_nobody(|_| {
        let narrow = entry(Some("made"), Kind::Directory { entries: None }, 0o555);
        let old = tree.join("old");
        fs::create_dir(&old).unwrap();
        set_mode(&old, 0o500);
        let begin = || {
            let mut writer = open(temporary.path(), PLAIN);
            put(&mut writer, &narrow, b"").unwrap();
            put(&mut writer, &file("x", b"x"), b"x").unwrap();
            writer.leave();
            put(&mut writer, &directory(Some("old")), b"").unwrap();
            put(&mut writer, &file("x", b"x"), b"x").unwrap();
            writer
        };
        // Stopped in the middle.
        drop(begin());
        assert_eq!(mode_of(&old), 0o500);
        fs::remove_file(tree.join("made/x")).unwrap_err();
        // Killed in the middle, of both.
        set_mode(&tree.join("made"), 0o755);
        fs::remove_dir_all(tree.join("made")).unwrap();
        let mut killed = open(temporary.path(), PLAIN);
        put(&mut killed, &narrow, b"").unwrap();
        std::mem::forget(killed);
        let mut killed = open(temporary.path(), PLAIN);
        put(&mut killed, &directory(Some("old")), b"").unwrap();
        std::mem::forget(killed);
        assert_eq!((mode_of(&tree.join("made")), mode_of(&old)), (0o755, 0o700));
        let mut again = begin();
        again.leave();
        again.leave();
        drop(again);
        assert_eq!((mode_of(&tree.join("made")), mode_of(&old)), (0o555, 0o500));
        let marks = |path: &Path| rustix::fs::listxattr(path, &mut [0; 256][..]).unwrap();
        assert_eq!((marks(&tree.join("made")), marks(&old)), (0, 0));
        set_mode(&tree.join("made"), 0o755);
        set_mode(&old, 0o755);
    });
}

/// The mark of a killed run only takes bits away from a directory that was there: whoever may write to it gains nothing by it.
#[test]
fn a_mark_gives_no_rights() {
    let temporary = tempfile::tempdir().unwrap();
    let tree = temporary.path().join("tree");
    fs::create_dir(&tree).unwrap();
    set_mode(&tree, 0o750);
    for mark in [&b"777"[..], b"7777", b"99", b"", b"0777 and more"] {
        setxattr(&tree, "user.dray.unfinished", mark, XattrFlags::empty()).unwrap();
        let mut writer = open(temporary.path(), PLAIN);
        writer.leave();
        assert_eq!(mode_of(&tree), 0o750, "{mark:?}");
    }
}

/// Review "-p strips setgid and sticky of existing directories".
#[test]
fn a_directory_keeps_setgid_and_sticky() {
    let temporary = tempfile::tempdir().unwrap();
    let tree = temporary.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    set_mode(&tree.join("sub"), 0o3770);
    let mut writer = open(temporary.path(), WriteOptions { modes: true, ..PLAIN });
    put(&mut writer, &directory(Some("sub")), b"").unwrap();
    writer.leave();
    assert_eq!(mode_of(&tree.join("sub")), 0o3755);
    // With all bits they are the sender's.
    let mut writer = open(temporary.path(), MINE);
    put(&mut writer, &directory(Some("sub")), b"").unwrap();
    writer.leave();
    assert_eq!(mode_of(&tree.join("sub")), 0o755);
}

/// A directory that others may write to in the end is the copying user's alone until then.
#[test]
fn nobody_writes_into_an_unfinished_directory() {
    let temporary = tempfile::tempdir().unwrap();
    let mut writer = open(temporary.path(), MINE);
    let shared = entry(Some("shared"), Kind::Directory { entries: None }, 0o1777);
    put(&mut writer, &shared, b"").unwrap();
    assert_eq!(mode_of(&temporary.path().join("tree/shared")) & 0o022, 0);
    writer.leave();
    assert_eq!(mode_of(&temporary.path().join("tree/shared")), 0o1777);
}

/// Review M7: each file system that is written to is remembered once, to be made durable.
#[test]
fn every_file_system_is_made_durable() {
    let temporary = tempfile::tempdir().unwrap();
    let mut devices = Devices::default();
    let mut remember = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        devices.remember(device, &Directory::open(path).unwrap(), 0)
    };
    for path in [temporary.path(), temporary.path(), Path::new("/proc")] {
        remember(path).unwrap();
    }
    assert_eq!(devices.len(), 2);
    devices.sync().unwrap();
}

/// A file that its owner may not read gets its metadata all the same.
#[test]
fn an_unreadable_file_is_kept_up_to_date() {
    let temporary = tempfile::tempdir().unwrap();
    shared(&temporary.path().join("tree"));
    as_nobody(|_| {
        let unreadable = entry(Some("f"), Kind::File { size_bytes: 1, oid: None }, 0o200);
        put(&mut open(temporary.path(), MINE), &unreadable, b"x").unwrap();
        let again = entry(Some("f"), Kind::File { size_bytes: 1, oid: None }, 0o240);
        assert!(matches!(open(temporary.path(), MINE).entry(&again).unwrap(), Placed::Unchanged));
    });
    assert_eq!(mode_of(&temporary.path().join("tree/f")), 0o240);
}
