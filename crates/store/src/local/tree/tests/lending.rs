//! What others could have set in attributes that stand for owners and bits (ADR 32): by another name of a file, while it is open, or while its directory is being written.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{XattrFlags, removexattr, setxattr};

use super::faking::{
    KEEPING, attribute, faking, open_place, owned, set_attribute, told_of, write_all, writer_of,
};
use super::overwriting::{kill_at_first_byte, told_time};
use super::*;
use crate::local::tree::fake::ATTRIBUTE;
use crate::local::tree::{BasisOptions, BasisUse, Beside};

fn bits(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn inode_of(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// S88, threat model: others come to a file by a name that it has elsewhere, whatever the directory lets in that is read: of a file that they may write to the attribute lends
/// no powers then. What it says of others is told all the same.
#[test]
fn another_name_of_a_file_lends_it_no_powers() {
    let place = open_place();
    let (from, elsewhere) = (place.path().join("day2"), place.path().join("day1"));
    for directory in [&from, &elsewhere] {
        fs::create_dir(directory).unwrap();
    }
    let cases = [
        ("setuid, of a group", 0o664, "104755 0,0 0:0", false),
        ("disk", 0o660, "60660 259,7 0:6", false),
        ("owner", 0o664, "100664 0,0 7:8", true),
        ("su", 0o755, "104755 0,0 0:0", true),
    ];
    for (name, mode, value, _) in cases {
        fs::write(from.join(name), b"content").unwrap();
        bits(&from.join(name), mode);
        set_attribute(&from.join(name), value.as_bytes());
    }
    bits(&from, 0o700);
    let told = || {
        let (told, failed) = told_of(&from, FakeSuper::On);
        (told.into_iter().map(|(name, ..)| String::from_utf8(name).unwrap()).collect::<Vec<_>>(), failed)
    };
    let mut all: Vec<String> = cases.iter().map(|(name, ..)| (*name).to_owned()).collect();
    all.sort();
    assert_eq!(told(), (all.clone(), 0));
    for name in &all {
        fs::hard_link(from.join(name), elsewhere.join(name)).unwrap();
    }
    assert_eq!(told(), (vec!["owner".to_owned(), "su".to_owned()], 2));
    for name in &all {
        fs::remove_file(elsewhere.join(name)).unwrap();
    }
    assert_eq!(told(), (all, 0));
}

/// The same at the destination: there it counts for nothing, and is made right.
#[test]
fn another_name_at_the_destination_lends_no_powers() {
    let place = open_place();
    let (to, elsewhere) = (place.path().join("to"), place.path().join("elsewhere"));
    for directory in [&to, &elsewhere] {
        fs::create_dir(directory).unwrap();
    }
    write_all(&to, faking());
    bits(&to.join("powers"), 0o775);
    bits(&to, 0o700);
    // What the root is to be lets others in: here it is theirs that lets nobody in.
    let run = || {
        let (_, told, not_kept) = write_all(&to, faking());
        assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
        bits(&to, 0o700);
        told.iter().filter(|done| done.path == b"powers").count()
    };
    assert_eq!((run(), mode_of(&to.join("powers"))), (0, 0o775));
    fs::hard_link(to.join("powers"), elsewhere.join("powers")).unwrap();
    assert_eq!((run(), mode_of(&to.join("powers"))), (1, 0o755));
    assert_eq!(attribute(&to.join("powers")).as_deref(), Some("104755 0,0 7:8"));
    assert_eq!(run(), 0);
}

/// S88 "others cannot write to what stands for an entry": what rsync kept in another directory so that others may write to it is copied, not linked (`--link-dest`): they would
/// say by its name there what it is here. What they may not write to is linked.
#[test]
fn what_others_may_write_to_is_not_linked() {
    let place = open_place();
    let [to, kept] = ["to", "kept"].map(|name| place.path().join(name));
    for directory in [&to, &kept] {
        fs::create_dir(directory).unwrap();
    }
    write_all(&kept, faking());
    let as_rsync_does = [("powers", 0o775), ("wide", 0o666), ("console", 0o622), ("link", 0o777)];
    for (name, mode) in as_rsync_does {
        bits(&kept.join(name), mode);
    }
    bits(&to, 0o700);
    let usage = BasisUse::Link;
    let basis = Some(BasisOptions { places: vec![Beside::anywhere(kept.clone())], usage });
    let (_, _, not_kept) = write_all(&to, SyncOptions { basis, ..faking() });
    assert!(not_kept.attributes.is_empty(), "{not_kept:?}");
    let is_linked = |name: &str| inode_of(&to.join(name)) == inode_of(&kept.join(name));
    for (name, mode) in as_rsync_does {
        assert!(!is_linked(name), "{name}");
        assert_eq!(mode_of(&to.join(name)) & 0o022, 0, "{name}");
        assert_eq!(mode_of(&kept.join(name)), mode, "{name}: not touched");
        assert_eq!(attribute(&to.join(name)), attribute(&kept.join(name)), "{name}");
    }
    assert_eq!(fs::read(to.join("powers")).unwrap(), b"program");
    for name in ["narrow", "disk", "pipe", "socket", "plain"] {
        assert!(is_linked(name), "{name}");
    }
}

/// S86, S88: where owners and bits are in attributes, powers come with a new file, as another user may have that one open, whatever its bits are now; so it goes with a file that
/// had some: until the attribute is another one they would be those of what comes. What has none before and after is changed.
#[test]
fn powers_in_attributes_are_given_to_new_files() {
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let f = to.join("f");
    for (mode, had, told, stays) in [
        (0o666, "100666 0,0 7:8", 0o4755, false),
        (0o755, "104755 0,0 7:8", 0o644, false),
        (0o755, "102755 0,0 7:8", 0o2755, false),
        (0o644, "100666 0,0 7:8", 0o640, true),
        // It counts for nothing.
        (0o666, "104755 0,0 7:8", 0o640, true),
    ] {
        fs::write(&f, b"old").unwrap();
        bits(&f, mode);
        set_attribute(&f, had.as_bytes());
        // It would get the same inode again.
        let held = fs::File::open(&f).unwrap();
        let was = inode_of(&f);
        let mut writer = writer_of(&to, SyncOptions { in_place: true, ..faking() });
        writer.root(0, &directory(None)).unwrap();
        let entry = owned(file("f", b"other bytes"), told, 7, 8);
        put(&mut writer, &entry, b"other bytes").unwrap();
        writer.leave();
        assert_eq!(inode_of(&f) == was, stays, "{had} {told:o}");
        assert_eq!(attribute(&f), Some(format!("10{told:04o} 0,0 7:8")));
        assert_eq!(fs::read(&f).unwrap(), b"other bytes");
        drop(held);
        fs::remove_file(&f).unwrap();
    }
}

/// S88, threat model: so it is with what has the content: who has it open would write to what root restores with powers, which the attribute gives it from now on. What had just these
/// powers, and was believed, stays.
#[test]
fn an_attribute_gives_no_powers_to_what_has_the_content() {
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let f = to.join("f");
    for sync in [
        faking(),
        SyncOptions { checksum: true, ..faking() },
        SyncOptions { in_place: true, ..faking() },
        SyncOptions { in_place: true, checksum: true, ..faking() },
    ] {
        for (mode, had, stays) in [
            (0o775, Some("104755 0,0 7:8"), false),
            (0o666, Some("100666 0,0 7:8"), false),
            (0o755, Some("104755 0,0 9:8"), false),
            (0o664, None, false),
            (0o755, Some("104755 0,0 7:8"), true),
        ] {
            fs::write(&f, b"program").unwrap();
            let held = fs::File::options().write(true).open(&f).unwrap();
            held.set_modified(told_time()).unwrap();
            bits(&f, mode);
            had.iter().for_each(|had| set_attribute(&f, had.as_bytes()));
            let was = inode_of(&f);
            let mut writer = writer_of(&to, sync.clone());
            writer.root(0, &directory(None)).unwrap();
            match writer.entry(&owned(file("f", b"program"), 0o4755, 7, 8)).unwrap() {
                Placed::Unchanged => {}
                Placed::Wanted(target, None) => {
                    let mut new = target.create().unwrap();
                    new.write(b"program").unwrap();
                    let came = target.finish(new, &finished(b"program")).unwrap();
                    writer.settle(*target, Some(came));
                }
                Placed::Wanted(mut target, Some(_)) => {
                    let kept = writer.keep_same(&mut target, &finished(b"program")).unwrap();
                    writer.settle(*target, Some(kept));
                }
                other => panic!("{other:?}"),
            }
            writer.leave();
            assert_eq!(inode_of(&f) == was, stays, "{had:?} {sync:?}");
            assert_eq!((attribute(&f).as_deref(), mode_of(&f)), (Some("104755 0,0 7:8"), 0o755), "{had:?}");
            if !stays {
                held.write_all_at(b"evil", 0).unwrap();
                assert_eq!(fs::read(&f).unwrap(), b"program", "{had:?}");
            }
            fs::remove_file(&f).unwrap();
        }
    }
}

/// S86 "nobody may open what comes who may not have it", S88: before the first byte of what comes is in a file its attribute says that it is root's, where it is to be another one's than it was, and
/// no powers, be it that others set them: a run that is killed right then leaves what would be restored for nobody else. One that is stopped before leaves what was said.
#[test]
fn what_was_said_of_other_bytes_is_not_said_of_what_comes() {
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let f = to.join("f");
    for (mode, had, told, left, bits_left) in [
        (0o644, Some("100644 0,0 7:8"), 0o600, "100600 0,0 0:10", 0o600),
        (0o600, Some("100440 0,0 7:8"), 0o644, "100400 0,0 0:10", 0o600),
        (0o600, Some("100440 0,0 9:10"), 0o644, "100440 0,0 9:10", 0o600),
        (0o666, Some("104755 0,0 0:0"), 0o644, "100644 0,0 0:10", 0o644),
        (0o640, None, 0o600, "100600 0,0 0:10", 0o600),
    ] {
        fs::write(&f, b"old").unwrap();
        bits(&f, mode);
        had.iter().for_each(|had| set_attribute(&f, had.as_bytes()));
        let mut writer = writer_of(&to, SyncOptions { in_place: true, ..faking() });
        let stop = Arc::new(AtomicBool::new(false));
        writer.stop_with(stop.clone());
        writer.root(0, &directory(None)).unwrap();
        let entry = owned(file("f", b"for nobody else"), told, 9, 10);
        let Placed::Wanted(target, _) = writer.entry(&entry).unwrap() else { panic!("it is there") };
        let mut new = target.create().unwrap();
        new.write(b"for nobody else").unwrap();
        stop.store(true, Ordering::Release);
        let error = target.finish(new, &finished(b"for nobody else")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        assert_eq!((attribute(&f).as_deref(), mode_of(&f)), (had, mode), "{had:?}");
        drop((target, writer));
        let mut writer = writer_of(&to, SyncOptions { in_place: true, ..faking() });
        writer.root(0, &directory(None)).unwrap();
        kill_at_first_byte(&mut writer, &entry, b"for nobody else");
        assert_eq!((attribute(&f).as_deref(), mode_of(&f)), (Some(left), bits_left), "{had:?}");
        assert_eq!(fs::read(&f).unwrap(), b"old");
        // The same command again ends it.
        drop(writer);
        let mut writer = writer_of(&to, SyncOptions { in_place: true, ..faking() });
        writer.root(0, &directory(None)).unwrap();
        put(&mut writer, &entry, b"for nobody else").unwrap();
        writer.leave();
        assert_eq!(attribute(&f), Some(format!("10{told:04o} 0,0 9:10")));
        assert_eq!(fs::read(&f).unwrap(), b"for nobody else");
        fs::remove_file(&f).unwrap();
    }
}

/// Attributes that leave no room for a value of `len` bytes; false if the file system has no such bound.
fn fill_attributes(path: &Path, len: usize) -> bool {
    let set = |name: String, len: usize| setxattr(path, name, &vec![b'x'; len], XattrFlags::empty());
    let mut number = 0;
    for size in [3000, 1000, 300, 100, 30, 10, 3, 1, 0] {
        while set(format!("user.p{number}"), size).is_ok() {
            number += 1;
            if number > 1000 {
                return false;
            }
        }
    }
    for number in 0..number {
        let name = format!("user.p{number}");
        let mut len = rustix::fs::getxattr(path, &name, &mut [0_u8; 4096][..]).unwrap();
        while set(name.clone(), len + 4).is_ok() {
            len += 4;
        }
    }
    let is_full = set("user.rsync.%stax".into(), len).is_err();
    let _ = removexattr(path, "user.rsync.%stax");
    is_full
}

/// S88: an attribute that another user set, and for whose overwriting he left no room, is not believed once the file is nobody else's to write to: it goes before, with
/// `--inplace` and without, whatever is told of the file.
#[test]
fn what_cannot_be_overwritten_is_removed_before_it_would_be_believed() {
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let f = to.join("f");
    for (in_place, content) in [(false, &b"the same"[..]), (true, b"the same"), (true, b"other bytes")] {
        let _ = fs::remove_file(&f);
        fs::write(&f, b"the same").unwrap();
        fs::File::options().write(true).open(&f).unwrap().set_modified(told_time()).unwrap();
        bits(&f, 0o777);
        set_attribute(&f, b"104755 0,0 0:0");
        if !fill_attributes(&f, 40) {
            return dray_testkit::say_skip("attributes have no bound here");
        }
        let landing = Landing::resolve_sync(&Origin::Anywhere, &to, &[Vec::new()]).unwrap();
        // With attributes of files those that fill the room would go.
        let options = WriteOptions { xattrs: false, ..KEEPING };
        let sync = Some(SyncOptions { in_place, ..faking() });
        let mut writer =
            TreeWriter::new(landing, options).with_changes(Changes { sync, ..Changes::default() });
        writer.root(0, &directory(None)).unwrap();
        let entry = owned(file("f", content), 0o755, 1_000_000_000, 1_000_000_000);
        match writer.entry(&entry).unwrap() {
            Placed::Unchanged => assert_eq!(content, b"the same"),
            Placed::Wanted(target, _) => {
                let mut new = target.create().unwrap();
                new.write(content).unwrap();
                let error = target.finish(new, &finished(content)).unwrap_err();
                assert!(error.to_string().contains(ATTRIBUTE), "{error}");
                assert_eq!(error.kind(), ErrorKind::Refused, "others do not end a run");
                writer.settle(*target, None);
                assert_eq!(fs::read(&f).unwrap(), b"the same");
            }
            other => panic!("{other:?}"),
        }
        writer.leave();
        assert_ne!(attribute(&f).as_deref(), Some("104755 0,0 0:0"), "{in_place}");
        if content == b"the same" {
            assert_eq!(mode_of(&f), 0o755);
            assert!(writer.failures().attributes.keys().any(|it| it.contains(ATTRIBUTE)));
        }
        bits(&f, 0o755);
        bits(&to, 0o755);
        let (told, failed) = told_of(&to, FakeSuper::On);
        assert!(failed == 0 && told.iter().all(|told| !format!("{told:?}").contains("2541")), "{told:?}");
    }
}

/// S86, S88: root writes no byte into a file whose owner is not believed before it is root's.
#[test]
fn what_is_anothers_is_roots_before_the_first_byte() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("not root, who alone gives files away");
    }
    let place = open_place();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let f = to.join("f");
    fs::write(&f, b"hers").unwrap();
    bits(&f, 0o600);
    set_attribute(&f, b"104755 0,0 0:0");
    std::os::unix::fs::chown(&f, Some(65534), Some(65534)).unwrap();
    let mut writer = writer_of(&to, SyncOptions { in_place: true, ..faking() });
    writer.root(0, &directory(None)).unwrap();
    kill_at_first_byte(&mut writer, &owned(file("f", b"for root alone"), 0o600, 0, 0), b"for root alone");
    assert_eq!((fs::metadata(&f).unwrap().uid(), fs::read(&f).unwrap()), (0, b"hers".to_vec()));
    assert_ne!(attribute(&f).as_deref(), Some("104755 0,0 0:0"));
}

/// S88, ADR 32: what a group may read the group that stands for it may not, also while what is in a directory is still to come, which is when a run is killed.
#[test]
fn a_directory_lets_no_other_group_in_while_it_is_written() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::create_dir(&to).unwrap();
    let mine = fs::metadata(&to).unwrap();
    let mut writer = writer_of(&to, faking());
    writer.root(0, &owned(directory(None), 0o755, mine.uid(), mine.gid())).unwrap();
    for (name, mode, gid, meanwhile, finally) in [
        ("theirs", 0o750, mine.gid() + 1, 0o700, 0o700),
        ("some", 0o751, mine.gid() + 1, 0o711, 0o711),
        ("all", 0o755, mine.gid() + 1, 0o755, 0o755),
        ("mine", 0o750, mine.gid(), 0o700, 0o750),
    ] {
        writer.entry(&owned(directory(Some(name)), mode, mine.uid(), gid)).unwrap();
        let entry = owned(file("f", b"x"), 0o644, mine.uid(), gid);
        let Placed::Wanted(target, _) = writer.entry(&entry).unwrap() else { panic!("it is there") };
        assert_eq!(mode_of(&to.join(name)), meanwhile, "{name}");
        let mut new = target.create().unwrap();
        new.write(b"x").unwrap();
        let came = target.finish(new, &finished(b"x")).unwrap();
        writer.settle(*target, Some(came));
        writer.leave();
        assert_eq!(mode_of(&to.join(name)), finally, "{name}");
    }
}

/// S88, threat model: root believes who owns a source about what lies there, as he could put anything there, where it is his place, or one that root gave him; not about a directory or
/// file that he made where everybody may.
#[test]
fn who_owns_a_source_is_believed_in_his_own_place() {
    if !rustix::process::geteuid().is_root() {
        return dray_testkit::say_skip("not root, who alone gives files away");
    }
    let place = open_place();
    let [shared, account] = ["shared", "account"].map(|name| place.path().join(name));
    let give = |path: &Path| std::os::unix::fs::chown(path, Some(1234), Some(1234)).unwrap();
    for directory in [&shared, &account, &shared.join("his"), &shared.join("his/own"), &account.join("day")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("sh"), b"program").unwrap();
        bits(&directory.join("sh"), 0o755);
        set_attribute(&directory.join("sh"), b"104755 0,0 0:0");
        give(&directory.join("sh"));
        if *directory != shared {
            give(directory);
        }
    }
    let said = std::cell::RefCell::new(Vec::new());
    // How many are told with powers, and how many not at all.
    let tells = |source: PathBuf| {
        let options = WalkOptions { fake: FakeSuper::On, ..walk_options() };
        let mut walker = Walker::new(vec![source], options);
        let (mut told, mut failed) = (0, 0);
        while let Some(step) = walker.step() {
            match step {
                Walked::Entry(entry, _) => told += usize::from(entry.metadata.mode & 0o6000 != 0),
                Walked::Failed(_, error) => {
                    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                    said.borrow_mut().push(error.to_string());
                    failed += 1;
                }
                _ => {}
            }
        }
        (told, failed)
    };
    for mode in [0o1777, 0o775] {
        bits(&shared, mode);
        for (source, failed) in [("sh", 1), ("his", 2), ("his/", 2), ("his/own", 1), ("his/own/sh", 1)] {
            assert_eq!(tells(shared.join(source)), (0, failed), "{source} {mode:o}");
            // Where his own directory is at fault that is said.
            let is_his = source != "sh";
            let said = said.take();
            assert!(said.iter().all(|it| it.contains("owns the source") == is_his), "{source}: {said:?}");
        }
    }
    for (source, expected) in
        [("", 2), ("sh", 1), ("day", 1), ("day/", 1), ("day/sh", 1)].map(|(name, told)| (name, (told, 0)))
    {
        assert_eq!(tells(account.join(source)), expected, "{source}");
    }
    // Only root puts anything there.
    bits(&shared, 0o755);
    assert_eq!((tells(shared.join("his")), tells(shared.join("sh"))), ((2, 0), (0, 1)));
}
