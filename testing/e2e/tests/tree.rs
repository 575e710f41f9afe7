//! Trees over a real sshd between two hosts: they arrive as they are, whoever copies, and whatever is killed meanwhile. The
//! witness is rsync, which finds nothing to do afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{self, NOBODY, assert_same_tree, await_no_dray};
use dray_e2e::data::{self, MIB};
use dray_e2e::process::Watch;
use dray_e2e::{Lab, Program, gate};
use rustix::process::Signal;

const LONG: Duration = Duration::from_secs(300);

/// A folder of this repository, as a tree of sources that people copy.
fn sources() -> PathBuf {
    gate::project_file("crates").canonicalize().unwrap()
}

/// A tree with everything that a tree may have.
fn varied(root: &Path) {
    fs::create_dir_all(root.join("sub/deep/er")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    data::write_random(&root.join("large"), 9 * MIB + 11, 41);
    data::write_sparse(&root.join("sparse"), 64 * MIB, 3, 42);
    fs::File::create(root.join("hole")).unwrap().set_len(5 * MIB).unwrap();
    fs::write(root.join("zero"), b"").unwrap();
    fs::write(root.join("sub/odd \n\u{fc}\\name"), b"odd").unwrap();
    fs::write(root.join("sub/deep/er/x"), b"x").unwrap();
    fs::hard_link(root.join("large"), root.join("sub/large again")).unwrap();
    fs::hard_link(root.join("sub/deep/er/x"), root.join("a")).unwrap();
    symlink("../large", root.join("sub/link")).unwrap();
    symlink("/etc", root.join("sub/away")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    let name = "n".repeat(255);
    fs::write(root.join(name), b"long").unwrap();
    for number in 0..3000 {
        let dir = root.join(format!("many/{:02}", number % 30));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{number:04}")), data::random_bytes(number % 700, number as u64)).unwrap();
    }
    fs::set_permissions(root.join("sub/deep/er/x"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(root.join("sub/deep/er"), fs::Permissions::from_mode(0o555)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::new(981_173_106, 123_456_789);
    for name in ["large", "empty", "sub", "many/07"] {
        fs::File::open(root.join(name)).unwrap().set_modified(old).unwrap();
    }
}

/// What only root makes and keeps.
fn add_specials(root: &Path) {
    use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let null = makedev(1, 3);
    mknodat(CWD, root.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null).unwrap();
    std::os::unix::fs::chown(root.join("a"), Some(1234), Some(4321)).unwrap();
    std::os::unix::fs::lchown(root.join("dangling"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(root.join("zero"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(root.join("many/01/0001"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    setxattr(root.join("zero"), "user.note", b"kept\0too", XattrFlags::empty()).unwrap();
    setxattr(root.join("sub"), "user.note", b"of a directory", XattrFlags::empty()).unwrap();
    // An ACL: owner rwx, user 1234 r, group r, mask r, others nothing.
    let acl: Vec<u8> =
        [(1u16, 7u16, u32::MAX), (2, 4, 1234), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
            .iter()
            .flat_map(|(tag, bits, id)| {
                [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
            })
            .collect();
    let acl = [&2u32.to_le_bytes()[..], &acl].concat();
    setxattr(root.join("large"), "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
}

/// Entries called as this program calls what it has not finished.
fn left_behind(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if data::is_ours(&entry.file_name()) {
                found.push(entry.path());
            }
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

fn archive(program: Program<'_>) -> Program<'_> {
    program.arg("-a").time_limit(LONG)
}

/// Y1, issue "a compiler toolchain and a kernel source tree arrive as root …; afterwards rsync -aHAXn --checksum finds nothing.
/// Hard-linked and sparse files stay so": both ways, and again without a content sent.
#[test]
fn trees_arrive_as_they_are() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("varied");
    varied(&source);
    add_specials(&source);
    b.sshd();
    a.sshd();
    for (what, tree) in [("varied", source), ("sources", sources())] {
        for way in ["up", "down"] {
            let copy = b.file(format!("{what}-{way}"));
            let program = || {
                if way == "up" {
                    archive(actions::copy_to(a, b, &tree, &copy))
                } else {
                    archive(actions::copy_from(a, b, &tree, &copy))
                }
            };
            program().run().expect(0);
            assert_same_tree(a, &tree, &copy, None);
            assert_eq!(left_behind(&copy), Vec::<PathBuf>::new());
            for name in ["sparse", "hole"] {
                if what == "varied" {
                    let (now, before) =
                        (data::settled_bytes(&copy.join(name)), data::settled_bytes(&tree.join(name)));
                    assert!(now <= before + 64 * 1024, "{name} takes {now} bytes, not {before}");
                }
            }
            // Again, into what is there: the same names, and nothing to send.
            let again = tree.join(".");
            let before = b.counters();
            let program = if way == "up" {
                archive(actions::copy_to(a, b, &again, &copy))
            } else {
                archive(actions::copy_from(a, b, &again, &copy))
            };
            program.run().expect(0);
            let carried = b.counters() - before;
            let bytes = carried.bytes();
            assert!(bytes < 2 * MIB, "{what} {way}: {bytes} bytes for nothing");
            assert_same_tree(a, &tree, &copy, None);
        }
    }
}

/// A far end that is a user without rights, who may write to `place`: ssh logs in as root, and from there it is that user.
fn far_user(host: &dray_e2e::Host, place: &Path) -> PathBuf {
    let far = host.file("far");
    let script = format!(
        "#!/bin/sh\nexport DRAY_DATA_DIR={}\nexec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {} \"$@\"\n",
        place.join("data").display(),
        gate::dray_binary().display()
    );
    fs::write(&far, script).unwrap();
    fs::set_permissions(&far, fs::Permissions::from_mode(0o755)).unwrap();
    far
}

/// Y1: the same where the far end is a user without rights: what that user may keep is kept, and the exit code is 0.
#[test]
fn a_tree_arrives_for_a_user() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("varied");
    varied(&source);
    b.sshd();
    let place = b.directory("user");
    std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let copy = place.join("copy");
    let program =
        archive(actions::copy_to(a, b, &source, &copy)).arg("--remote-dray").arg(far_user(b, &place));
    program.run().expect(0);
    assert_eq!(fs::metadata(copy.join("large")).unwrap().uid(), NOBODY);
    assert_same_tree(b, &source, &copy, Some(NOBODY));
}

/// Issue "kill -9 in mid-tree, again: finished files are not sent again, every file is either old or new", for either end, both ways and within
/// a host: in a destination that was not there, and with the very same command.
#[test]
fn a_killed_tree_copy_goes_on() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let source = a.file("tree");
    let files = gate::sized(4000, 20_000);
    for number in 0..files {
        let dir = source.join(format!("{:02}", number % 40));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{number:05}")), data::random_bytes(8192, number)).unwrap();
    }
    for (way, kills_far, flag) in [
        ("up", false, "-a"),
        ("up", true, "-r"),
        ("down", false, "-r"),
        ("down", true, "-a"),
        ("here", false, "-a"),
    ] {
        let name = format!("{way}-{kills_far}");
        let copy = b.file(&name);
        // Within one host it is else done before anybody looks.
        let flags = [flag, "--bwlimit", "16M"];
        let flags = if way == "here" { &flags[..] } else { &flags[..1] };
        let program = || actions::cp(a, b, way, flags, &[&source], &copy);
        let placed = || {
            let dirs = fs::read_dir(&copy).into_iter().flatten().flatten();
            dirs.flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten())
                .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
                .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.ino())))
                .collect::<Vec<_>>()
        };
        let running = program().start();
        running.wait_until(false, || placed().len() as u64 >= files / 3);
        if kills_far {
            for pid in if way == "up" { b } else { a }.pids_of("dray") {
                dray_e2e::sweep::signal(pid, Signal::KILL);
            }
            let outcome = running.wait();
            assert_ne!(outcome.code(), Some(0));
            assert!(!outcome.stderr_text().contains("/. for"), "{name}: the same command goes on");
        } else {
            running.kill();
        }
        await_no_dray(a, LONG);
        await_no_dray(b, LONG);
        let placed = placed();
        assert!((placed.len() as u64) < files, "{name}: it was done before the kill");
        for (path, _) in &placed {
            assert_eq!(fs::metadata(path).unwrap().len(), 8192, "{name}: {path:?} is half");
        }
        let before = b.counters();
        let outcome = program().run().expect(0);
        let carried = b.counters() - before;
        assert!(outcome.stderr_text().contains("goes on in"), "{name}: {}", outcome.stderr_text());
        let missing = (files - placed.len() as u64) * 8192;
        eprintln!("{name}: {} placed, {} bytes for {missing}", placed.len(), carried.received_bytes);
        assert!(
            carried.received_bytes < missing + missing / 8 + 4 * MIB,
            "{name}: {} bytes for {missing} that were missing",
            carried.received_bytes
        );
        for (path, inode) in &placed {
            assert_eq!(fs::metadata(path).unwrap().ino(), *inode, "{name}: {path:?} was written again");
        }
        if flag == "-a" {
            assert_same_tree(b, &source, &copy, None);
        } else {
            b.program("diff").arg("-r").arg(&source).arg(&copy).time_limit(LONG).run().expect(0);
        }
        assert_eq!(left_behind(&copy), Vec::<PathBuf>::new());
        let mark = rustix::fs::lgetxattr(&copy, "user.dray.unfinished-tree", &mut [0; 64][..]);
        assert_eq!(mark, Err(rustix::io::Errno::NODATA), "{name}");
    }
}

/// Issue "exit 8 when some entries failed": each is named, the rest is done, several sources and the habits of scp hold.
#[test]
fn entries_that_fail_are_named_and_the_rest_is_done() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (one, two, to) = (a.file("one"), a.file("two"), b.directory("to"));
    for tree in [&one, &two] {
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/f"), b"content").unwrap();
        fs::write(tree.join("x.o"), b"object").unwrap();
    }
    // What stands in the way.
    fs::create_dir_all(to.join("one/sub/f")).unwrap();
    symlink("/etc", to.join("one/x.o")).unwrap();
    fs::create_dir_all(to.join("two")).unwrap();
    symlink("/etc", to.join("two/sub")).unwrap();
    let outcome = a
        .dray()
        .arg("cp")
        .args(b.ssh_options())
        .args(["-r", "--exclude", "*.p"])
        .args([&one, &two, &a.file("gone")])
        .arg(b.remote(&to))
        .run()
        .expect(8);
    let text = outcome.stderr_text();
    for word in
        ["one/sub/f", "is a directory", "two/sub", "links are not followed", "gone", "3 entries failed"]
    {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    assert_eq!(fs::read(to.join("one/x.o")).unwrap(), b"object");
    assert_eq!(fs::read(to.join("two/x.o")).unwrap(), b"object");
    assert!(!Path::new("/etc/f").exists());
    // Without -r a directory is refused, and a file beside it is copied.
    let file = one.join("x.o");
    let flat = b.directory("flat");
    let outcome =
        a.dray().arg("cp").args(b.ssh_options()).args([&file, &two]).arg(b.remote(&flat)).run().expect(8);
    assert!(outcome.stderr_text().contains("-r copies directories"), "{}", outcome.stderr_text());
    assert_eq!(data::names(&flat), ["x.o"]);
    // Several sources need a directory.
    let missing = b.file("missing");
    a.dray()
        .arg("cp")
        .arg("-r")
        .args(b.ssh_options())
        .args([&one, &two])
        .arg(b.remote(&missing))
        .run()
        .expect(3);
    assert!(!missing.exists());
}

/// Within one host: the same kinds, and into itself it is refused.
#[test]
fn a_tree_is_copied_within_a_host() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.file("varied"), a.file("copy"));
    varied(&source);
    add_specials(&source);
    for _ in 0..2 {
        a.dray().args(["cp", "-a"]).arg(source.join(".")).arg(&copy).time_limit(LONG).run().expect(0);
        assert_same_tree(a, &source, &copy, None);
    }
    a.dray().args(["cp", "-r"]).arg(&source).arg(source.join("sub/new")).run().expect(2);
    a.dray().args(["cp", "-r"]).arg(&source).arg(lab.host(0).file("")).run().expect(2);
}

/// Copies `source` with `-a` to a new place on `b`; the most memory that either end took.
fn memory_of_copy(a: &dray_e2e::Host, b: &dray_e2e::Host, source: &Path) -> (u64, u64) {
    let copy = b.file("copy");
    let running = actions::copy_to(a, b, source, &copy).arg("-a").time_limit(LONG).start();
    let mut far = None;
    running.wait_until(true, || {
        far = b.pids_of("dray").first().copied();
        far.is_some()
    });
    let mut far = Watch::start(far.expect("a far end runs"));
    let near = running.wait().expect(0).peak_memory_bytes;
    let far = far.stop().peak_memory_bytes;
    eprintln!("VmHWM near {} MiB, far {} MiB", near / MIB, far / MIB);
    (near, far)
}

/// Issue "a million-entry directory … within the memory budget" (a million with `DRAY_E2E_FULL=1`).
#[test]
fn a_flat_directory_takes_bounded_memory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("flat");
    for number in 0..gate::sized(100_000, 1_000_000) {
        fs::File::create(source.join(format!("entry number {number:07}"))).unwrap();
    }
    let (near, far) = memory_of_copy(a, b, &source);
    assert!(near > 0 && near < 256 * MIB && far < 256 * MIB);
    assert_eq!(fs::read_dir(b.file("copy")).unwrap().count(), fs::read_dir(&source).unwrap().count());
}

/// Issue "a tree of two million entries … within the memory budget": what it takes does not grow with it.
#[test]
fn a_large_tree_takes_bounded_memory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("large");
    let (directories, files) = (gate::sized(40, 2000), 1000);
    for directory in 0..directories {
        let directory = source.join(format!("directory {directory:04}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..files {
            fs::File::create(directory.join(format!("entry number {file:04}"))).unwrap();
        }
    }
    let (near, far) = memory_of_copy(a, b, &source);
    assert!(near > 0 && near < 64 * MIB && far < 64 * MIB);
    for entry in fs::read_dir(&source).unwrap() {
        let copied = b.file("copy").join(entry.unwrap().file_name());
        assert_eq!(fs::read_dir(copied).unwrap().count(), files);
    }
}

/// Issue "a compiler toolchain and a kernel source tree arrive as root and as a user": trees that people have, `DRAY_E2E_TREES` names
/// them (paths, separated by colons); without it the sources of this program. Up and down as root, up for a user.
#[test]
fn named_trees_arrive() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let named = std::env::var_os("DRAY_E2E_TREES");
    let trees = named.map_or_else(|| vec![sources()], |named| std::env::split_paths(&named).collect());
    for tree in trees {
        // Where the user can read it, too.
        let source = a.file("named");
        a.program("cp").arg("-a").arg(&tree).arg(&source).time_limit(LONG).run().expect(0);
        let rate = |way: &str, begun: std::time::Instant| {
            eprintln!("{} {way}: {:.1} s", tree.display(), begun.elapsed().as_secs_f64());
        };
        let place = b.directory("user");
        std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
        for way in ["up", "down", "user"] {
            let copy = if way == "user" { place.join("copy") } else { b.file("copy") };
            let begun = std::time::Instant::now();
            let program = match way {
                "up" => actions::copy_to(a, b, &source, &copy),
                "down" => actions::copy_from(a, b, &source, &copy),
                _ => actions::copy_to(a, b, &source, &copy).arg("--remote-dray").arg(far_user(b, &place)),
            };
            archive(program).run().expect(0);
            rate(way, begun);
            assert_same_tree(b, &source, &copy, (way == "user").then_some(NOBODY));
            fs::remove_dir_all(&copy).unwrap();
        }
        fs::remove_dir_all(&source).unwrap();
    }
}
