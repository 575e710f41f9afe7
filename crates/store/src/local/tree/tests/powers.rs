//! Setuid, setgid and capabilities come to new files alone: who has an older one open, or mapped, would have them.

use std::os::unix::fs::FileExt;

use dray_core::tree::Xattr;
use rustix::fs::{XattrFlags, setxattr};

use super::overwriting::{begun_with, bring, in_place, inode, told_time};
use super::syncing::filled;
use super::*;
use crate::local::tree::{BasisOptions, BasisUse, Beside, Planned, Preview};

const PROGRAM: &[u8] = b"a program";

/// The program with these bits, of whoever runs this.
fn program(mode: u32) -> Entry {
    let mut entry = file("f", PROGRAM);
    (entry.metadata.mode, entry.metadata.uid, entry.metadata.gid) =
        (mode, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    entry
}

/// The program with these bits at `path`, of the time that is told.
fn have(path: &Path, mode: u32) {
    let _ = fs::remove_file(path);
    fs::write(path, PROGRAM).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(told_time()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Has `writer` place `entry`, and bring what of it is wanted; true if its content came.
fn place(writer: &mut TreeWriter, entry: &Entry) -> bool {
    match writer.entry(entry).unwrap() {
        Placed::Unchanged => false,
        Placed::Wanted(target, None) => {
            bring(writer, target, PROGRAM).unwrap();
            true
        }
        Placed::Wanted(mut target, Some(_)) => {
            let kept = writer.keep_same(&mut target, &finished(PROGRAM)).unwrap();
            writer.settle(*target, Some(kept));
            false
        }
        placed => panic!("{placed:?}"),
    }
}

/// S86, threat model: a file that has the content and not the powers is replaced, be it found the same by size and time or by its hash: who has it open, or mapped, would write to a
/// file with powers. So is one that lacks nothing but bits without which nobody could use them. What has all of them stays, and so does what is to have none; what would be done is told
/// before.
#[test]
fn what_has_the_content_gets_no_powers() {
    let default = SyncOptions::default;
    for (number, sync) in [
        default(),
        SyncOptions { checksum: true, ..default() },
        SyncOptions { size_only: true, ..default() },
        in_place(),
        SyncOptions { checksum: true, ..in_place() },
    ]
    .into_iter()
    .enumerate()
    {
        for (had, told, stays) in [
            (0o775, 0o4755, false),
            (0o755, 0o2755, false),
            (0o4755, 0o6755, false),
            (0o4644, 0o4755, false),
            (0o4775, 0o4755, true),
            (0o4755, 0o4711, true),
            (0o4755, 0o755, true),
            (0o777, 0o1755, true),
        ] {
            let what = format!("{number} {had:o} {told:o}");
            let dir = filled(&["f"]);
            let to = dir.path().join("to");
            let f = to.join("f");
            have(&f, had);
            let held = fs::File::options().write(true).open(&f).unwrap();
            let was = inode(&f);
            let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
            let changes = Changes { sync: Some(sync.clone()), ..Changes::default() };
            let mut preview = Preview::new(landing, MINE, changes);
            preview.root(0, &directory(None)).unwrap();
            let planned = preview.entry(&program(told)).unwrap().unwrap();
            assert_eq!(planned == Planned::Replace, !stays, "{what} {planned:?}");
            assert_eq!(place(&mut begun_with(&to, sync.clone(), MINE), &program(told)), !stays, "{what}");
            assert_eq!(
                (inode(&f) == was, fs::metadata(&f).unwrap().mode() & 0o7777),
                (stays, told),
                "{what}"
            );
            if !stays {
                held.write_all_at(b"m", 0).unwrap();
                assert_eq!(fs::read(&f).unwrap(), PROGRAM, "{what}");
            }
            // And then nothing is to be done.
            let was = inode(&f);
            assert!(!place(&mut begun_with(&to, sync.clone(), MINE), &program(told)), "{what}");
            assert_eq!(inode(&f), was, "{what}");
        }
    }
}

/// The same of a file that loses its powers between its comparison and its end.
#[test]
fn what_was_compared_gets_no_powers_later() {
    let dir = filled(&["f"]);
    let (to, other) = (dir.path().join("to"), dir.path().join("other"));
    have(&to.join("f"), 0o4755);
    fs::hard_link(to.join("f"), &other).unwrap();
    let mut writer = begun_with(&to, SyncOptions { checksum: true, ..in_place() }, MINE);
    let Placed::Wanted(mut target, Some(_)) = writer.entry(&program(0o4755)).unwrap() else { panic!() };
    fs::set_permissions(&other, fs::Permissions::from_mode(0o775)).unwrap();
    let error = writer.keep_same(&mut target, &finished(PROGRAM)).unwrap_err();
    assert_eq!((error.kind(), fs::metadata(&other).unwrap().mode() & 0o7777), (ErrorKind::Changed, 0o775));
    writer.settle(*target, None);
}

/// The same of an owner whom the powers are to be of, and of capabilities, where another one is told than the file has, or somebody else may run it.
#[test]
fn owners_and_capabilities_come_to_new_files() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("it needs root");
    }
    // Two of capabilities(7), in their second format.
    let [one, other] = [4, 8].map(|bit| [1, 0, 0, 2, 0, bit, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let options = WriteOptions { xattrs: true, owners: true, numeric_ids: true, ..MINE };
    let sync = || SyncOptions { users: true, groups: true, ..SyncOptions::default() };
    for (had, uid, has, told, stays) in [
        (0o4755, 1234, None, (0o4755, None), false),
        (0o755, 1234, None, (0o755, None), true),
        (0o755, 0, None, (0o755, Some(one)), false),
        (0o755, 0, Some(other), (0o755, Some(one)), false),
        (0o600, 0, Some(one), (0o755, Some(one)), false),
        (0o755, 0, Some(one), (0o744, Some(one)), true),
    ] {
        let dir = filled(&["f"]);
        let to = dir.path().join("to");
        let f = to.join("f");
        have(&f, 0o600);
        std::os::unix::fs::chown(&f, Some(uid), Some(0)).unwrap();
        fs::set_permissions(&f, fs::Permissions::from_mode(had)).unwrap();
        has.iter().for_each(|it| setxattr(&f, "security.capability", it, XattrFlags::empty()).unwrap());
        let _held = fs::File::open(&f).unwrap();
        let was = inode(&f);
        let mut entry = program(told.0);
        (entry.metadata.uid, entry.metadata.gid) = (0, 0);
        let told_attribute =
            |value: [u8; 20]| Xattr { name: b"security.capability".to_vec(), value: value.into() };
        entry.metadata.xattrs = told.1.map(told_attribute).into_iter().collect();
        for (again, came) in [(false, !stays), (true, false)] {
            let mut writer = begun_with(&to, sync(), options);
            assert_eq!(place(&mut writer, &entry), came, "{had:o} {told:?} {again}");
            assert!(writer.failures().attributes.is_empty(), "{told:?}");
        }
        assert_eq!(inode(&f) == was, stays, "{had:o} {told:?}");
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(&f, "security.capability", &mut value[..]).unwrap_or(0);
        assert_eq!(value[..len], told.1.map(|it| it.to_vec()).unwrap_or_default(), "{told:?}");
    }
}

/// The same of what another directory has (`--link-dest` and its kin): it is no copy of that, as who has that open may have written to it and left its time as it is.
#[test]
fn what_lies_elsewhere_is_no_source_of_powers() {
    for (usage, checksum) in [BasisUse::Link, BasisUse::Copy, BasisUse::Compare]
        .into_iter()
        .flat_map(|usage| [(usage, false), (usage, true)])
    {
        for (had, told, is_wanted) in [(0o775, 0o4755, true), (0o4775, 0o4755, false), (0o775, 0o755, false)]
        {
            let dir = filled(&["other"]);
            let (to, kept) = (dir.path().join("to"), dir.path().join("kept"));
            fs::create_dir(&kept).unwrap();
            have(&kept.join("f"), had);
            let basis = Some(BasisOptions { places: vec![Beside::anywhere(kept.clone())], usage });
            let sync = SyncOptions { basis, checksum, ..SyncOptions::default() };
            let came = place(&mut begun_with(&to, sync, MINE), &program(told));
            assert_eq!(came, is_wanted, "{usage:?} {checksum} {had:o} {told:o}");
            assert_eq!(fs::metadata(to.join("f")).unwrap().mode() & 0o7777, told);
            assert_eq!(fs::metadata(kept.join("f")).unwrap().mode() & 0o7777, had, "not touched");
        }
    }
}
