//! Trees against somebody who works against them: other users of the directory, racing processes, senders that lie.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dray_core::limits::{TREE_HELD_BYTES_MAX, TREE_LINK_GROUPS_MAX};
use dray_core::tree::{Item, Order, Xattr};

use super::super::temporary;
use super::*;

/// Runs `work` in a thread without any rights, if this process may give its own up; `work` hears who it is.
pub(super) fn as_nobody<T: Send>(work: impl FnOnce(u32) -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(|| work(become_nobody())).join().unwrap())
}

/// Gives up the rights of this thread.
pub(super) fn become_nobody() -> u32 {
    use rustix::process::{Gid, Uid, geteuid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
    }
    geteuid().as_raw()
}

/// A directory that everybody may write to and nobody may remove the files of others from, as `/tmp`.
pub(super) fn shared(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Review B1: in a shared directory another user waits with files of his own under the names that will be used: none of them is
/// opened, and what is delivered belongs to the copying user alone.
#[test]
fn a_file_in_the_way_is_never_written_to() {
    let temporary_dir = tempfile::tempdir().unwrap();
    let tree = temporary_dir.path().join("tree");
    shared(&tree);
    let content = b"secret";
    for is_unnamed in [true, false] {
        for is_there in [false, true] {
            let name = format!("f {is_unnamed} {is_there}");
            let path = tree.join(&name);
            if is_there {
                fs::write(&path, b"older than that").unwrap();
            }
            let mut writer = writer(temporary_dir.path(), MINE);
            writer.root(0, &directory(None)).unwrap();
            let Placed::Wanted(target, _) = writer.entry(&file(&name, content)).unwrap() else { panic!() };
            target.directory.may_be_unnamed.set(is_unnamed);
            // What a run leaves to be seen is what another user can make first.
            let before = names(&tree);
            let first = target.create().unwrap();
            let mut seen: Vec<_> = names(&tree).into_iter().filter(|name| !before.contains(name)).collect();
            drop(first);
            let made = temporary::make(&target.directory, &target.name, &mut |_| Ok(())).unwrap().0;
            seen.push(String::from_utf8(made.to_vec()).unwrap());
            for squat in &seen {
                fs::write(tree.join(squat), b"mine").unwrap();
                fs::set_permissions(tree.join(squat), fs::Permissions::from_mode(0o666)).unwrap();
            }
            // The other one looks on.
            let spies: Vec<_> = seen.iter().map(|name| fs::File::open(tree.join(name)).unwrap()).collect();
            if rustix::process::geteuid().is_root() {
                for squat in &seen {
                    std::os::unix::fs::chown(tree.join(squat), Some(1234), Some(1234)).unwrap();
                }
            }
            let mut new = target.create().unwrap();
            new.write(content).unwrap();
            assert_eq!(
                new.file().metadata().unwrap().mode() & 0o777,
                0o600,
                "nobody else's until it is whole"
            );
            target.finish(new, &finished(content)).unwrap();
            let found = fs::symlink_metadata(&path).unwrap();
            assert_eq!(found.uid(), rustix::process::geteuid().as_raw(), "{name}");
            assert_eq!(fs::read(&path).unwrap(), content);
            for spy in spies {
                use std::io::Read;
                let mut bytes = Vec::new();
                { spy }.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes, b"mine", "{name}");
            }
            for squat in seen {
                let _ = fs::remove_file(tree.join(squat));
            }
        }
    }
}

/// Review B1: what stands in the way and cannot be removed is passed by.
#[test]
fn what_cannot_be_removed_is_passed_by() {
    let temporary_dir = tempfile::tempdir().unwrap();
    let tree = temporary_dir.path().join("tree");
    shared(&tree);
    let mut writer = writer(temporary_dir.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    for is_unnamed in [true, false] {
        let name = format!("f {is_unnamed}");
        fs::write(tree.join(&name), b"old").unwrap();
        let Placed::Wanted(target, _) = writer.entry(&file(&name, b"content")).unwrap() else { panic!() };
        target.directory.may_be_unnamed.set(is_unnamed);
        let usual = temporary::make(&target.directory, &target.name, &mut |_| Ok(())).unwrap().0;
        let usual = tree.join(std::str::from_utf8(&usual).unwrap());
        // A directory is never removed.
        fs::create_dir(&usual).unwrap();
        let mut new = target.create().unwrap();
        new.write(b"content").unwrap();
        target.finish(new, &finished(b"content")).unwrap();
        assert_eq!(fs::read(tree.join(&name)).unwrap(), b"content");
        assert!(usual.is_dir());
        fs::remove_dir(&usual).unwrap();
        writer.settle(*target, None);
    }
}

/// Issue "a symlink swapped in by a racing local process": a directory turns into a link and back all the time, a thousand times
/// and more; nothing is made, changed or read behind the link, whatever else fails.
#[test]
fn a_racing_swap_leads_nowhere() {
    let temporary = tempfile::tempdir().unwrap();
    let (to, outside) = (temporary.path().join("to"), temporary.path().join("outside"));
    fs::create_dir_all(to.join("tree/sub")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), b"precious").unwrap();
    fs::write(outside.join("only outside"), b"precious").unwrap();
    let before = fs::metadata(outside.join("f")).unwrap();
    let (is_over, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (sub, aside) = (to.join("tree/sub"), to.join("aside"));
            while !is_over.load(Ordering::Relaxed) {
                let _ = fs::rename(&sub, &aside);
                let _ = symlink(&outside, &sub);
                swaps.fetch_add(1, Ordering::Relaxed);
                let _ = fs::remove_file(&sub);
                let _ = fs::rename(&aside, &sub);
            }
        });
        let mut round = 0;
        while round < 300 || swaps.load(Ordering::Relaxed) < 1000 {
            round += 1;
            let mut writer = writer(&to, MINE);
            writer.root(0, &directory(None)).unwrap();
            if writer.entry(&directory(Some("sub"))).is_ok() {
                // The directory that was opened, wherever it is by now.
                let mut grouped = file("f", b"new");
                grouped.metadata.link_group = Some([1; 16]);
                let _ = put(&mut writer, &grouped, b"new");
                let _ =
                    put(&mut writer, &entry(Some("g"), Kind::Symlink { target: b"x".to_vec() }, 0o777), b"");
                let _ = put(&mut writer, &directory(Some(&format!("h{:03}", round % 300))), b"");
                writer.leave();
                grouped.name = Name::new(b"i").ok();
                let _ = put(&mut writer, &grouped, b"new");
            }
            writer.leave();
            writer.leave();
            // The same race against who reads.
            let mut walker = Walker::new(vec![to.join("tree")], walk_options());
            while let Some(step) = walker.step() {
                let Walked::Entry(entry, file) = step else { continue };
                let name = entry.name.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
                assert_ne!(name, b"only outside");
                if let Some(open) = file.and_then(|file| file.open().ok()) {
                    let mut content = String::new();
                    std::io::Read::read_to_string(&mut { open.file }, &mut content).unwrap();
                    assert_ne!(content, "precious");
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(names(&outside), ["f", "only outside"]);
    let after = fs::metadata(outside.join("f")).unwrap();
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"precious");
    let facts = |found: &fs::Metadata| (found.mode(), found.mtime_nsec(), found.ctime_nsec(), found.nlink());
    assert_eq!(facts(&after), facts(&before));
}

/// Issue "`..`, absolute and empty names, NUL, duplicate names": no such name gets as far as the writer.
#[test]
fn names_that_lead_elsewhere_do_not_exist() {
    for bad in [&b""[..], b".", b"..", b"/", b"/etc", b"a/b", b"../x", b"a\0b", b"\0"] {
        let error = Name::new(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{bad:?}");
    }
    let mut order = Order::new(1);
    order.accept(&Item::Entry(directory(None))).unwrap();
    order.accept(&Item::Entry(file("a", b""))).unwrap();
    let error = order.accept(&Item::Entry(file("a", b""))).unwrap_err();
    assert!(error.to_string().contains("\"a\" comes twice"), "{error}");
}

/// Issue "cycles, depth 100,000": the writer itself ends at its limit, names the entry and goes on after it.
#[test]
fn depth_has_an_end() {
    let temporary = tempfile::tempdir().unwrap();
    let mut writer = writer(temporary.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    let mut errors = 0;
    for _ in 0..100_000 {
        let deeper = directory(Some("d"));
        if writer.entry(&deeper).is_err() {
            errors += 1;
            assert!(writer.path_of(&deeper).starts_with(b"tree/d/d/"));
        }
    }
    assert_eq!(errors, 1, "what lies below is passed over");
    for _ in 0..100_000 {
        writer.leave();
    }
    put(&mut writer, &file("z", b"z"), b"z").unwrap();
    assert_eq!(fs::read(temporary.path().join("tree/z")).unwrap(), b"z");
}

/// Review B6: a directory that is refused holds the first name of a file of several names: the next name brings the content.
#[test]
fn the_next_name_takes_the_role_of_the_first() {
    let temporary = tempfile::tempdir().unwrap();
    let (from, to) = (temporary.path().join("from"), temporary.path().join("to"));
    fs::create_dir_all(from.join("a")).unwrap();
    fs::create_dir_all(to.join("tree")).unwrap();
    fs::write(from.join("a/first"), b"content").unwrap();
    for name in ["second", "third"] {
        fs::hard_link(from.join("a/first"), from.join(name)).unwrap();
    }
    // Where the directory should be stands a file.
    fs::write(to.join("tree/a"), b"in the way").unwrap();
    let failed = copy(&from, &to, walk_options(), MINE);
    assert_eq!(failed.len(), 1, "{failed:?}");
    let (second, third) = (to.join("tree/second"), to.join("tree/third"));
    assert_eq!(fs::read(&second).unwrap(), b"content");
    assert_eq!(fs::metadata(&second).unwrap().ino(), fs::metadata(&third).unwrap().ino());
    // The same if it is the content that fails.
    let mut writer = writer(&to, MINE);
    writer.root(0, &directory(None)).unwrap();
    let mut grouped = file("x", b"content");
    grouped.metadata.link_group = Some([7; 16]);
    let Placed::Wanted(target, _) = writer.entry(&grouped).unwrap() else { panic!() };
    writer.settle(*target, None);
    grouped.name = Name::new(b"y").ok();
    assert!(matches!(writer.entry(&grouped).unwrap(), Placed::Wanted(..)));
    // And if a directory stands where it should be.
    fs::create_dir(to.join("tree/z")).unwrap();
    grouped.metadata.link_group = Some([8; 16]);
    grouped.name = Name::new(b"z").ok();
    writer.entry(&grouped).unwrap_err();
    grouped.name = Name::new(b"zz").ok();
    assert!(matches!(writer.entry(&grouped).unwrap(), Placed::Wanted(..)));
}

/// Review M1: a group is forgotten with its last name, more groups than the limit are not remembered and told of, and what
/// waits counts with its names and attributes.
#[test]
fn what_is_remembered_is_bounded() {
    let temporary = tempfile::tempdir().unwrap();
    let mut writer = writer(temporary.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    let grouped = |number: u64, name: &str, names: u32| {
        let mut entry = file(name, b"x");
        let mut group = [0; 16];
        group[..8].copy_from_slice(&number.to_be_bytes());
        (entry.metadata.link_group, entry.metadata.link_names) = (Some(group), names);
        entry
    };
    for number in 0..10 {
        for name in ["a", "b", "c"] {
            put(&mut writer, &grouped(number, &format!("{number} {name}"), 3), b"x").unwrap();
        }
        assert_eq!(writer.groups(), 0);
        assert_eq!(fs::metadata(temporary.path().join(format!("tree/{number} a"))).unwrap().nlink(), 3);
    }
    // A sender whose files never get their further names.
    for number in 0..TREE_LINK_GROUPS_MAX as u64 + 10 {
        let Placed::Wanted(target, _) = writer.entry(&grouped(100 + number, "n", 2)).unwrap() else {
            panic!()
        };
        let identity = (0, 0, number);
        writer.settle(*target, Some(identity));
    }
    assert_eq!(writer.groups(), TREE_LINK_GROUPS_MAX);
    let told = writer.failures().attributes;
    assert!(
        told.iter().any(|(what, count)| what.contains("hard links: more than") && *count == 10),
        "{told:?}"
    );
    // Files and directories with as many attributes as an entry may have.
    let mut heavy = file("heavy", b"x");
    heavy.metadata.xattrs = vec![Xattr { name: b"user.x".to_vec(), value: vec![7; 32_000] }];
    let mut waiting = Vec::new();
    while !writer.is_full() {
        assert!(waiting.len() * 32_000 <= TREE_HELD_BYTES_MAX);
        let Placed::Wanted(target, _) = writer.entry(&heavy).unwrap() else { panic!() };
        waiting.push(target);
    }
    for target in waiting {
        writer.settle(*target, None);
    }
    assert!(!writer.is_full());
}

/// Review M5: a hole of 2^60 bytes takes no time, and a size that the file system cannot keep is an error of that entry.
#[test]
fn a_hole_costs_nothing_and_has_an_end() {
    let temporary = tempfile::tempdir().unwrap();
    let mut writer = writer(temporary.path(), MINE);
    writer.root(0, &directory(None)).unwrap();
    let size_bytes = 1 << 60;
    let huge = entry(Some("huge"), Kind::File { size_bytes, oid: None }, 0o644);
    let Placed::Wanted(target, _) = writer.entry(&huge).unwrap() else { panic!() };
    let mut new = target.create().unwrap();
    new.skip(size_bytes).unwrap();
    let result = target.finish(new, &Finished { size_bytes, ..finished(b"") });
    if let Err(error) = &result {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("larger than the file system"), "{error}");
        assert_eq!(names(&temporary.path().join("tree")), [""; 0]);
    }
    // Bytes behind such a hole the same; and a sum that is no number is a lie.
    let mut new = target.create().unwrap();
    new.skip(size_bytes).unwrap();
    if result.is_err() {
        assert_eq!(new.write(b"x").unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(new.skip(u64::MAX).unwrap_err().kind(), ErrorKind::Protocol);
    drop(new);
    writer.settle(*target, None);
    put(&mut writer, &file("next", b"x"), b"x").unwrap();
}

/// Review M8: an entry of the source whose name is that of a file a killed copy left arrives as any other, again and again.
#[test]
fn what_a_killed_copy_left_elsewhere_arrives() {
    let temporary_dir = tempfile::tempdir().unwrap();
    let (from, to) = (temporary_dir.path().join("from"), temporary_dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let hash = blake3::hash(b"f").to_hex();
    let old_name = format!(".dray-{}", &hash.as_str()[..16]);
    fs::write(from.join("f"), b"content").unwrap();
    fs::write(from.join(&old_name), b"left").unwrap();
    // Those of this very version, too: the source was itself a destination.
    let mut into_source = TreeWriter::new(Landing::resolve(&from, &[Vec::new()], false).unwrap(), MINE);
    into_source.root(0, &directory(None)).unwrap();
    let Placed::Wanted(target, _) = into_source.entry(&file("f", b"other")).unwrap() else { panic!() };
    let usual = temporary::make(&target.directory, &target.name, &mut |_| Ok(())).unwrap().0;
    let usual = String::from_utf8(usual.to_vec()).unwrap();
    fs::write(from.join(&usual), b"left too").unwrap();
    for round in 0..3 {
        fs::write(from.join("f"), format!("content {round}")).unwrap();
        assert!(copy(&from, &to, walk_options(), MINE).is_empty());
        assert_eq!(names(&to.join("tree")), names(&from));
        for name in [&old_name, &usual, "f"] {
            assert_eq!(fs::read(to.join("tree").join(name)).unwrap(), fs::read(from.join(name)).unwrap());
        }
    }
}
