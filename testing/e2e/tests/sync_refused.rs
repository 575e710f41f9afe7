//! Disks that take a write and refuse it later, as one does that was promised more room than there is: the file system says so only when it is asked to make the file durable, says it once,
//! and reads on from memory what the disk never had. Witness is the disk itself, read past the memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use dray_e2e::live::tool;
use dray_e2e::power::is_isolated;
use dray_e2e::thin::{Thin, on_disk};
use dray_e2e::twins::{Way, case, sync, write};
use dray_e2e::{Host, Lab, data, gate};
use rustix::fs::{listxattr, syncfs};
use rustix::process::Signal;

/// `dray`, to which the kernel tells nothing of file systems of ext4.
fn blind_dray(host: &Host) -> PathBuf {
    let hide = "mount -t tmpfs tmpfs /sys/fs/ext4 && exec \"$@\"";
    let dray = gate::dray_binary();
    let dray = dray.display();
    let script = host.file("blind/dray");
    write(
        &script,
        format!("#!/bin/sh\nexec unshare --mount sh -c '{hide}' sh {dray} \"$@\"\n").as_bytes(),
        0,
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// Issue 7 "full-disk runs leave every file either old or new": with `--fsync`, and where sources go, a disk that refuses late leaves the old file, or none where there was none, and its older backup; the
/// source stays. With room the same command brings the new one, within a host and over ssh.
#[test]
fn what_a_disk_refuses_late_replaces_nothing() {
    const SIZE: usize = 3_000_000;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let [old, new] = [1, 2].map(|seed| data::random_bytes(SIZE, seed));
    let cases: &[(&[&str], bool)] = &[
        (&["--fsync"], true),
        (&["--fsync"], false),
        (&["--fsync", "--backup"], true),
        (&["--fsync", "--inplace"], true),
        (&["--remove-source-files"], true),
        (&["--remove-source-files"], false),
        (&["--remove-source-files", "--inplace"], true),
    ];
    let (ext4, xfs) = (&["mkfs.ext4", "-q", "-F", "-m", "0"][..], &["mkfs.xfs", "-q"][..]);
    let kinds = [
        ("ext4", ext4, 96 << 20, 0),
        ("ext4", ext4, 96 << 20, 1),
        ("ext4", ext4, 96 << 20, 2),
        ("xfs", xfs, 320 << 20, 0),
    ];
    // A login sees what was mounted before its server was there.
    let mut disks = Vec::new();
    for (kind, make, size, way) in kinds {
        for (number, (options, has_old)) in cases.iter().enumerate() {
            let name = format!("{kind}-{way}-{number}");
            disks.push((Thin::new(a, &name, make, size), name, way, options, *has_old));
        }
    }
    b.sshd();
    for (thin, name, way, options, has_old) in disks {
        let way = [Way::Here, Way::Up(b), Way::Down(b)].into_iter().nth(way).unwrap();
        let what = format!("{name} {options:?} {has_old}");
        let (source, copy) = (a.directory(&format!("source-{name}")), thin.place.join("copy"));
        fs::create_dir(&copy).unwrap();
        write(&source.join("f"), &new, 0);
        if has_old {
            write(&copy.join("f"), &old, -100);
            write(&copy.join("f~"), b"older", -200);
        }
        thin.take_room();
        let run = || sync(a, &case(&["-a"]), options, &way, &source, &copy);
        let failed = run();
        assert!([Some(7), Some(1), Some(8)].contains(&failed.code()), "{what}: {failed}");
        let there = on_disk(&copy.join("f"));
        assert!(there.as_deref() == has_old.then_some(&old[..]), "{what}: neither: {failed}");
        assert!(!has_old || fs::read(copy.join("f~")).unwrap() == b"older", "{what}");
        assert!(fs::read(source.join("f")).unwrap() == new, "{what}: {failed}");
        thin.remount(1 << 30);
        run().expect(0);
        assert!(on_disk(&copy.join("f")).as_ref() == Some(&new), "{what}");
        if options.contains(&"--backup") {
            assert!(on_disk(&copy.join("f~")).as_ref() == Some(&old), "{what}");
        }
        assert!(data::names(&copy).iter().all(|name| !data::is_ours(name)), "{what}");
        assert_eq!(source.join("f").exists(), !options.contains(&"--remove-source-files"), "{what}");
    }
}

/// S84, "its disk has it": a file that an earlier run left, and of which the disk refused some, is there with size and time, and is read from memory; its source stays until the disk has it.
#[test]
fn what_a_disk_refused_before_is_no_reason_to_remove_the_source() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let new = data::random_bytes(3_000_000, 3);
    for (number, asks) in [false, true].into_iter().enumerate() {
        let thin = Thin::new(a, &format!("disk{number}"), &["mkfs.ext4", "-q", "-F", "-m", "0"], 96 << 20);
        let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
        write(&source.join("f"), &new, 0);
        thin.take_room();
        let run = |options: &[&str]| sync(a, &case(&["-a"]), options, &Way::Here, &source, &copy);
        run(&[]).expect(0);
        // Somebody hears of it, of the file system or of the file too, and nobody after that.
        assert!(syncfs(fs::File::open(&thin.place).unwrap()).is_err());
        assert!(!asks || rustix::fs::fsync(fs::File::open(copy.join("f")).unwrap()).is_err());
        assert!(fs::read(copy.join("f")).unwrap() == new, "it is not read from memory");
        thin.remount(1 << 30);
        let _ = run(&["--remove-source-files"]);
        let has = |path: &Path| on_disk(path).as_ref() == Some(&new);
        assert!(has(&copy.join("f")) || has(&source.join("f")), "{asks}: both are lost");
        run(&["--remove-source-files"]).expect(0);
        assert!(has(&copy.join("f")) && !source.join("f").exists(), "{asks}");
    }
}

/// S84: a file that the disk did not take fails, and of those that had come then none leaves its source that is not there any more.
#[test]
fn what_is_removed_again_keeps_its_source() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for option in ["--remove-source-files", "--fsync"] {
        let (source, copy) = (a.directory(&format!("source{option}")), a.directory(&format!("copy{option}")));
        for name in ["a", "b", "d/c"] {
            write(&source.join(name), b"new", 0);
        }
        write(&copy.join("a"), b"old", -100);
        let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync"]);
        let program = strace.args(["-e", "inject=fsync:error=EIO"]).arg(gate::dray_binary());
        let said = program.args(["sync", "-a", option]).arg(source.join("")).arg(&copy).run();
        assert_ne!(said.code(), Some(0), "{said}");
        assert_eq!(fs::read(copy.join("a")).unwrap(), b"old", "{said}");
        let mut removed = 0;
        for name in ["a", "b", "d/c"] {
            let is_there = fs::read(copy.join(name)).is_ok_and(|bytes| bytes == b"new");
            assert!(is_there || source.join(name).exists(), "{name} is lost: {said}");
            removed += usize::from(!is_there);
        }
        assert!(removed > 1 && said.stderr_text().contains("removed again"), "{said}");
        a.dray().args(["sync", "-a", option]).arg(source.join("")).arg(&copy).run().expect(0);
        for name in ["a", "b", "d/c"] {
            assert_eq!(fs::read(copy.join(name)).unwrap(), b"new", "{name}");
        }
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": so do files of several names, of which the disk refused the one that all are names of.
#[test]
fn names_of_what_a_disk_refuses_replace_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let [old, new] = [1, 2].map(|seed| data::random_bytes(3_000_000, seed));
    for has_old in [false, true] {
        let thin = Thin::new(a, &format!("disk-{has_old}"), &["mkfs.ext4", "-q", "-F", "-m", "0"], 96 << 20);
        let (source, copy) = (a.directory(&format!("source-{has_old}")), thin.place.join("copy"));
        fs::create_dir(&copy).unwrap();
        write(&source.join("a"), &new, 0);
        fs::hard_link(source.join("a"), source.join("z")).unwrap();
        if has_old {
            write(&copy.join("z"), &old, -100);
        }
        thin.take_room();
        let run = || sync(a, &case(&["-aH"]), &["--fsync"], &Way::Here, &source, &copy);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{failed}");
        assert!(on_disk(&copy.join("a")).is_none(), "{has_old}: {failed}");
        assert!(on_disk(&copy.join("z")).as_deref() == has_old.then_some(&old[..]), "{has_old}: {failed}");
        thin.remount(1 << 30);
        run().expect(0);
        for name in ["a", "z"] {
            assert!(on_disk(&copy.join(name)).as_ref() == Some(&new), "{has_old} {name}");
        }
    }
}

/// S84, issue 7 "full-disk runs leave every file either old or new": a file system without a journal tells who asks for a directory that the disk refused some of it. What is new there is
/// removed again, and a later run that hears of it of an earlier one removes no source.
#[test]
fn what_lies_in_a_directory_that_a_disk_refused_comes_again() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_lies_in_a_directory_that_a_disk_refused_comes_again") {
        return;
    }
    const FILES: usize = 400;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal"];
    for (number, first) in ["--fsync", "--remove-source-files", "--times"].into_iter().enumerate() {
        let thin = Thin::new(a, &format!("disk{number}"), &make, 96 << 20);
        let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
        write(&copy.join("old/0"), b"older", -100);
        // Nothing but their names needs room.
        let names = |top: &'static str| (0..FILES).map(move |at| format!("{top}/{at}-{}", "n".repeat(60)));
        let names: Vec<String> = ["new", "new/below", "old"].into_iter().flat_map(names).collect();
        names.iter().for_each(|name| write(&source.join(name), b"", 0));
        std::os::unix::fs::symlink("away", source.join("new/below/link")).unwrap();
        thin.take_room();
        let run = |option| sync(a, &case(&["-a"]), &[option], &Way::Here, &source, &copy);
        let said = run(first);
        let count_below = |tree: &Path, below: &str| {
            names.iter().filter(|name| name.starts_with(below) && tree.join(name).exists()).count()
        };
        let count = |tree: &Path| count_below(tree, "");
        if first == "--times" {
            assert!(syncfs(fs::File::open(&thin.place).unwrap()).is_err(), "the disk refused nothing");
        } else {
            assert_ne!(said.code(), Some(0), "{said}");
            assert!(count(&copy) < names.len(), "nothing was removed again: {said}");
            assert!(said.stderr_text().contains("a directory of which the disk refused"), "{said}");
        }
        assert_eq!(count(&source), names.len(), "a source is gone: {said}");
        thin.remount(1 << 30);
        // As often as it is tried, until what is read is what the disk has.
        for _ in 0..2 {
            let said = run("--remove-source-files");
            assert!([Some(1), Some(8)].contains(&said.code()), "{said}");
            assert!(said.stderr_text().contains("fsck"), "{said}");
            assert_eq!(count_below(&source, "old"), FILES, "a source is gone: {said}");
        }
        thin.check();
        run("--remove-source-files").expect(0);
        assert_eq!(count(&source), 0, "{first}");
        thin.forget();
        let is_there = |name: &&str| fs::symlink_metadata(copy.join(name)).is_ok();
        let all = names.iter().map(String::as_str).chain(["new/below/link"]);
        let lost: Vec<&str> = all.filter(|name| !is_there(name)).collect();
        assert!(lost.is_empty(), "{first}: {} are lost, {:?}: {said}", lost.len(), lost.first());
    }
}

/// S84, ADR 38: of a block of inodes that the disk refused nobody is told who asks for a directory, without a journal. No source goes for what lies below, whatever is between the two runs: it was
/// moved, its file system is mounted below DST, or somebody else's run was told.
#[test]
fn what_lies_below_a_refused_inode_keeps_its_source() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_lies_below_a_refused_inode_keeps_its_source") {
        return;
    }
    const FILES: usize = 20;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for between in ["nothing", "moved", "mounted below", "told to another"] {
        let thin = Thin::without_inodes(a, &format!("disk {between}"));
        let (source, other) = (a.directory(&format!("source {between}")), thin.place.join("other"));
        let end = format!("d/{}", ["d"; 60].join("/"));
        (0..FILES).for_each(|at| write(&source.join(&end).join(at.to_string()), b"new", 0));
        let mut copy = thin.place.join("copy");
        [&copy, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let below = a.directory(&format!("below {between}"));
        if between == "mounted below" {
            fs::create_dir(below.join("d")).unwrap();
            tool(&["mount", "--bind", copy.to_str().unwrap(), below.join("d").to_str().unwrap()]);
            copy = below.clone();
        }
        thin.leave(0);
        let run =
            |option, from: &Path, copy: &Path| sync(a, &case(&["-a"]), &[option], &Way::Here, from, copy);
        let failed = if between == "told to another" {
            run("--times", &source, &copy).expect(0);
            let theirs = a.directory("theirs");
            write(&theirs.join("f"), b"theirs", 0);
            run("--fsync", &theirs, &other)
        } else {
            run("--remove-source-files", &source, &copy)
        };
        assert_ne!(failed.code(), Some(0), "{between}: {failed}");
        thin.remount(1 << 30);
        if between == "moved" {
            fs::rename(copy.join("d"), other.join("d")).unwrap();
            copy = other;
        }
        for _ in 0..2 {
            let said = run("--remove-source-files", &source, &copy);
            assert!([Some(1), Some(8)].contains(&said.code()), "{between}: {said}");
            assert!(said.stderr_text().contains("fsck"), "{between}: {said}");
            assert_eq!(data::names(&source.join(&end)).len(), FILES, "{between}: {said}");
        }
        if between == "mounted below" {
            tool(&["umount", copy.join("d").to_str().unwrap()]);
            copy = thin.place.join("copy");
        }
        thin.check();
        let from = if between == "mounted below" { source.join("d") } else { source.clone() };
        run("--remove-source-files", &from, &copy).expect(0);
        thin.forget();
        let there = if between == "mounted below" { &end[2..] } else { &end };
        assert_eq!(data::names(&source.join(&end)).len(), 0, "{between}");
        assert_eq!(data::names(&copy.join(there)).len(), FILES, "{between}");
    }
}

/// S84, ADR 38: without a journal no source goes for what lies in a block of inodes that the disk refused, though nobody was told of it who could tell: ext4 has it written down until the file system
/// is checked. Where it has not, as with a kernel that does not look, or where it may not be read, a file that is there comes anew.
#[test]
fn what_nobody_was_told_of_comes_anew() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_nobody_was_told_of_comes_anew") {
        return;
    }
    const FILES: usize = 200;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let blind = blind_dray(a);
    for is_written_down in [true, false] {
        let thin = Thin::without_inodes(a, &format!("disk {is_written_down}"));
        let (source, copy) = (a.directory(&format!("source {is_written_down}")), thin.place.join("copy"));
        (0..FILES).for_each(|at| write(&source.join(at.to_string()), b"new", 0));
        fs::create_dir(&copy).unwrap();
        thin.leave(0);
        let dray = if is_written_down { &gate::dray_binary() } else { &blind };
        let run = |option| a.program(dray).args(["sync", "-a", option]).arg(source.join("")).arg(&copy).run();
        run("--times").expect(0);
        // Who was told is gone.
        syncfs(fs::File::open(&thin.place).unwrap()).unwrap_err();
        thin.remount(1 << 30);
        if is_written_down {
            for _ in 0..2 {
                let said = run("--remove-source-files");
                assert!([Some(1), Some(8)].contains(&said.code()), "{said}");
                assert!(said.stderr_text().contains("fsck"), "{said}");
                assert_eq!(data::names(&source).len(), FILES, "{said}");
            }
            thin.check();
        }
        run("--remove-source-files").expect(0);
        assert!(data::names(&source).is_empty());
        thin.forget();
        let there =
            (0..FILES).filter(|at| fs::read(copy.join(at.to_string())).is_ok_and(|bytes| bytes == b"new"));
        assert_eq!(there.count(), FILES, "{is_written_down}");
    }
}

/// S84, ADR 38, issue 7 "full-disk runs leave every file either old or new": without a journal a run that is not told what the disk refused of it, as another program was told meanwhile, finds it written
/// down, and neither ends well nor removes a source.
#[test]
fn what_another_program_is_told_meanwhile_is_found_out() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_another_program_is_told_meanwhile_is_found_out") {
        return;
    }
    const FILES: usize = 200;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for option in ["--fsync", "--remove-source-files"] {
        let thin = Thin::without_inodes(a, &format!("disk{option}"));
        let (source, copy) = (a.directory(&format!("source{option}")), thin.place.join("copy"));
        (0..FILES).for_each(|at| write(&source.join(at.to_string()), &data::random_bytes(1000, 1), 0));
        fs::create_dir(&copy).unwrap();
        thin.leave(0);
        let program = a.dray().args(["sync", "-a", option, "--bwlimit=100k"]).arg(source.join(""));
        let running = program.arg(&copy).start();
        running.wait_until(false, || data::names(&copy).len() > FILES / 2);
        running.signal(Signal::STOP);
        syncfs(fs::File::open(&thin.place).unwrap()).unwrap_err();
        thin.remount(1 << 30);
        running.signal(Signal::CONT);
        let failed = running.wait();
        assert_ne!(failed.code(), Some(0), "{option}: {failed}");
        assert!(failed.stderr_text().contains("fsck"), "{failed}");
        assert_eq!(data::names(&source).len(), FILES, "{failed}");
        thin.check();
        sync(a, &case(&["-a"]), &[option], &Way::Here, &source, &copy).expect(0);
        thin.forget();
        let is_there =
            |at: &usize| fs::read(copy.join(at.to_string())).is_ok_and(|bytes| bytes.len() == 1000);
        assert_eq!((0..FILES).filter(is_there).count(), FILES, "{option}: {failed}");
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": a file system that turned read-only, as its disk refused what it cannot do without, says of nothing that it is not on the disk. With `--fsync`
/// no run onto it ends well; one onto what was mounted so does.
#[test]
fn a_file_system_that_turned_read_only_is_no_good_end() {
    // In mounts that the hosts share.
    if !is_isolated("a_file_system_that_turned_read_only_is_no_good_end") {
        return;
    }
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let thin = Thin::new(a, "disk", &["mkfs.btrfs", "-q"], 300 << 20);
    let (source, copy) = (a.directory("source"), thin.place.join("copy"));
    let run = || sync(a, &case(&["-a"]), &["--fsync"], &Way::Here, &source, &copy);
    write(&source.join("old"), b"old", 0);
    run().expect(0);
    let mount = |option: &str| tool(&["mount", "-o", option, thin.place.to_str().unwrap()]);
    mount("remount,ro");
    run().expect(0);
    mount("remount,rw");
    (0..600).for_each(|at| write(&source.join(at.to_string()), &data::random_bytes(20_000, at), 0));
    thin.take_room_but(4 << 20);
    let failed = run();
    assert_ne!(failed.code(), Some(0), "{failed}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = format!(" {} ", thin.place.display());
    let line = mounts.lines().find(|line| line.contains(&place)).unwrap();
    assert!(line.rsplit(' ').next().unwrap().starts_with("ro,"), "it did not turn read-only: {line}");
    thin.remount(1 << 30);
    // Also where nothing is told of what is the same, as over ssh.
    for way in [Way::Here, Way::Here, Way::Up(b)] {
        let said = sync(a, &case(&["-a"]), &["--fsync"], &way, &source, &copy);
        assert_ne!(said.code(), Some(0), "{way:?}: {said}");
        assert!(said.stderr_text().contains("fsck"), "{way:?}: {said}");
    }
}

/// S84, ADR 38: without a journal no source goes for what a login alone was told of that is confined to a directory: neither into that directory, nor, as ext4 writes it down, into any other. What is
/// above its directory is as it was.
#[test]
fn what_a_confined_login_was_told_of_keeps_all_sources() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_a_confined_login_was_told_of_keeps_all_sources") {
        return;
    }
    const FILES: usize = 20;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let blind = blind_dray(a);
    for is_written_down in [true, false] {
        let thin = Thin::without_inodes(a, &format!("disk-{is_written_down}"));
        let (above, only) = (thin.place.join("above"), thin.place.join("above/only"));
        ["theirs/below", "copy"].into_iter().for_each(|name| fs::create_dir_all(only.join(name)).unwrap());
        let dray = if is_written_down { &gate::dray_binary() } else { &blind };
        let command = format!("{} serve --stdio --only {}", dray.display(), only.display());
        let ssh = b.sshd().restricted_command(&format!("key-{is_written_down}"), &command);
        let confined = |option: &str, from: &Path, to: &str| {
            let program = a.dray().args(["sync", "-a", option, "-e"]).arg(&ssh);
            program.arg(from.join("")).arg(b.remote(Path::new(to))).run()
        };
        let source = a.directory(&format!("source-{is_written_down}"));
        let end = ["d"; 60].join("/");
        (0..FILES).for_each(|at| write(&source.join(&end).join(at.to_string()), b"new", 0));
        let theirs = a.directory(&format!("theirs-{is_written_down}"));
        write(&theirs.join("f"), b"theirs", 0);
        thin.leave(0);
        confined("--times", &source, "copy").expect(0);
        let ctimes = || {
            [&above, &thin.place]
                .map(|path| fs::metadata(path).map(|it| (it.ctime(), it.ctime_nsec())).unwrap())
        };
        let before = ctimes();
        let told = confined("--fsync", &theirs, "theirs/below");
        assert_ne!(told.code(), Some(0), "{told}");
        thin.remount(1 << 30);
        for _ in 0..2 {
            let said = confined("--remove-source-files", &source, "copy");
            assert!([Some(1), Some(8)].contains(&said.code()), "{said}");
            assert!(said.stderr_text().contains("fsck"), "{said}");
            assert_eq!(data::names(&source.join(&end)).len(), FILES, "{said}");
        }
        for above in [&above, &thin.place] {
            let mut names = [0; 256];
            assert_eq!(listxattr(above, &mut names[..]), Ok(0), "{}", above.display());
        }
        assert_eq!(ctimes(), before);
        if !is_written_down {
            // Nor does it see when the file system is mounted anew: what is at its directory counts until the host starts again.
            continue;
        }
        let said = sync(a, &case(&["-a"]), &["--remove-source-files"], &Way::Here, &source, &above);
        assert!([Some(1), Some(8)].contains(&said.code()), "{said}");
        assert_eq!(data::names(&source.join(&end)).len(), FILES, "{said}");
        thin.check();
        confined("--remove-source-files", &source, "copy").expect(0);
        thin.forget();
        assert!(data::names(&source.join(&end)).is_empty());
        assert_eq!(data::names(&only.join("copy").join(&end)).len(), FILES);
    }
}

/// Issue 7 "full-disk runs leave every file either old or new", ADR 38: on an overlay, whose syncfs(2) hears nothing of what the disk of its upper layer refused, new files are asked for one by one, with
/// `--fsync` and where sources go.
#[test]
fn what_the_disk_of_an_overlay_refuses_comes_again() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_the_disk_of_an_overlay_refuses_comes_again") {
        return;
    }
    const FILES: usize = 300;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for option in ["--fsync", "--remove-source-files"] {
        let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
        let thin = Thin::new(a, &format!("disk{option}"), &make, 96 << 20);
        let source = a.directory(&format!("source{option}"));
        let kept = a.directory(&format!("kept{option}"));
        for at in 0..FILES {
            let bytes = data::random_bytes(8 << 10, at as u64);
            [&source, &kept].into_iter().for_each(|place| write(&place.join(at.to_string()), &bytes, 0));
        }
        let (lower, merged) =
            (a.directory(&format!("lower{option}")), a.directory(&format!("merged{option}")));
        let [upper, work] = ["upper", "work"].map(|name| thin.place.join(name));
        [&upper, &work].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let mount = || tool(&["mount", "-t", "overlay", "-o", &options, "overlay", merged.to_str().unwrap()]);
        mount();
        let copy = merged.join("copy");
        fs::create_dir(&copy).unwrap();
        thin.make_names(&copy, FILES * 2);
        thin.take_room_but(1 << 20);
        let run = || sync(a, &case(&["-a"]), &[option], &Way::Here, &source, &copy);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{failed}");
        thin.remount(1 << 30);
        run().expect(0);
        tool(&["umount", merged.to_str().unwrap()]);
        thin.forget();
        let copy = upper.join("copy");
        let is_wrong = |at: &usize| {
            let name = at.to_string();
            fs::read(copy.join(&name)).ok() != Some(fs::read(kept.join(&name)).unwrap())
        };
        assert_eq!((0..FILES).filter(is_wrong).count(), 0, "{option}: {failed}");
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": with `--fsync` a file that left memory before the run asked for it, and took the word of what the disk refused with it, is not believed by
/// the next run for its size and time.
#[test]
fn what_left_memory_before_it_was_asked_for_is_compared() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_left_memory_before_it_was_asked_for_is_compared") {
        return;
    }
    const FILES: usize = 2_000;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
    // Whatever time the source has, and whether it is kept; and all names of a file where what is there is believed whatever its time.
    let linked: &[&str] = &["-aH", "--ignore-existing"];
    let cases = [(&["-a"][..], false), (&["-r"], true), (&["-a", "-u"], true), (linked, false)];
    for (number, (options, is_epoch)) in cases.into_iter().enumerate() {
        let thin = Thin::new(a, &format!("disk{number}"), &make, 320 << 20);
        let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
        (0..FILES).for_each(|at| {
            let path = source.join(at.to_string());
            write(&path, &data::random_bytes(8 << 10, at as u64), 0);
            if options == linked {
                fs::hard_link(&path, source.join(format!("{at} again"))).unwrap();
            }
            if is_epoch {
                fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            }
        });
        fs::create_dir(&copy).unwrap();
        thin.make_names(&copy, FILES * 3);
        thin.take_room_but(2 << 20);
        let program = a.dray().arg("sync").args(options).args(["--fsync", "--bwlimit=8M"]);
        let running = program.arg(source.join("")).arg(&copy).start();
        // There each is asked for by itself, and told at once.
        if options != linked {
            running.wait_until(false, || data::names(&copy).len() > FILES / 2);
            running.signal(Signal::STOP);
            for _ in 0..2 {
                let _ = syncfs(fs::File::open(&thin.place).unwrap());
                fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            }
            running.signal(Signal::CONT);
        }
        let failed = running.wait();
        assert_ne!(failed.code(), Some(0), "{failed}");
        thin.remount(1 << 30);
        sync(a, &case(options), &["--fsync"], &Way::Here, &source, &copy).expect(0);
        thin.forget();
        let is_wrong = |name: &String| fs::read(copy.join(name)).ok() != fs::read(source.join(name)).ok();
        let names = data::names(&source).into_iter().map(|name| name.into_string().unwrap());
        let wrong: Vec<String> = names.filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{options:?}: {} are wrong: {failed}", wrong.len());
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": where the journal ends while a run removes again what the disk refused, or turns read-only before, all is there with the next mount, and
/// garbage. It has a time before its source's, and so the next run, which has no other options, compares it; with `--atomic` it switches nothing else.
#[test]
fn what_is_back_with_the_next_mount_is_compared() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_is_back_with_the_next_mount_is_compared") {
        return;
    }
    const FILES: usize = 200;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
    let mut were_back = 0;
    // Blocks of the journal that have room.
    let cases = [
        (Some(30), &["--fsync"][..]),
        (Some(40), &["--fsync"]),
        (None, &["--fsync", "--atomic", "--delete"]),
    ];
    for (number, (journal, options)) in cases.into_iter().enumerate() {
        let name = format!("disk{number}");
        let thin = Thin::with(a, &name, &make, 96 << 20, |image| {
            let told = tool(&["debugfs", "-R", "blocks <8>", image]);
            let blocks: Vec<u64> = told.split_whitespace().filter_map(|block| block.parse().ok()).collect();
            assert!(blocks.len() > 100, "{told}");
            for block in journal.map_or(&[][..], |first| &blocks[first..]) {
                let at = (block * 4096).to_string();
                tool(&["fallocate", "--punch-hole", "-o", &at, "-l", "4096", image]);
            }
        });
        let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
        let bytes = |at: usize| data::random_bytes(8 << 10, at as u64);
        (0..FILES).for_each(|at| write(&source.join(at.to_string()), &bytes(at), 0));
        fs::create_dir(&copy).unwrap();
        thin.take_room();
        let run = || sync(a, &case(&["-a"]), options, &Way::Here, &source, &copy);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{failed}");
        thin.remount(1 << 30);
        thin.forget();
        let is_right =
            |at: &usize| fs::read(copy.join(at.to_string())).is_ok_and(|found| found == bytes(*at));
        let back = (0..FILES).filter(|at| copy.join(at.to_string()).exists() && !is_right(at)).count();
        were_back += back;
        run().expect(0);
        thin.forget();
        assert_eq!((0..FILES).filter(is_right).count(), FILES, "{options:?}: {failed}");
    }
    assert!(were_back > 0, "nothing was there again");
}

/// Issue 7 "full-disk runs leave every file either old or new", ADR 38: what a run that was killed left, and the disk refused later, which another program was told, is compared by the next run as the disk
/// has it: also over ssh, where what is the same is not sent, and what is read of memory is.
#[test]
fn what_a_killed_run_left_is_compared_as_its_disk_has_it() {
    if !is_isolated("what_a_killed_run_left_is_compared_as_its_disk_has_it") {
        return;
    }
    const FILES: usize = 600;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (name, way) in [("up", Way::Up(b)), ("down", Way::Down(b)), ("here", Way::Here)] {
        let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
        let thin = Thin::new(a, &format!("disk-{name}"), &make, 96 << 20);
        let (source, copy) = (a.directory(&format!("source-{name}")), thin.place.join("copy"));
        let bytes = |at: usize| data::random_bytes(8 << 10, at as u64);
        (0..FILES).for_each(|at| write(&source.join(at.to_string()), &bytes(at), 0));
        fs::create_dir(&copy).unwrap();
        thin.make_names(&copy, FILES * 2);
        thin.take_room_but(1 << 20);
        let program = a.dray().args(["sync", "-a", "--fsync", "--bwlimit=4M"]).arg(source.join(""));
        let running = program.arg(&copy).start();
        running.wait_until(false, || data::names(&copy).len() > FILES / 2);
        running.signal(Signal::KILL);
        running.wait();
        let _ = syncfs(fs::File::open(&thin.place).unwrap());
        thin.remount(1 << 30);
        let is_right =
            |at: &usize| fs::read(copy.join(at.to_string())).is_ok_and(|found| found == bytes(*at));
        let in_memory = (0..FILES).filter(is_right).count();
        let said = sync(a, &case(&["-a"]), &["--fsync"], &way, &source, &copy).expect(0);
        thin.forget();
        assert_eq!((0..FILES).filter(is_right).count(), FILES, "{name}: {in_memory} in memory: {said}");
    }
}

/// ADR 38: times that were held back are on the disk, too, when a run with `--fsync` has ended: it waits for all once more.
#[test]
fn times_that_were_held_back_are_synced() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, trace) = (a.directory("source"), a.file("copy"), a.file("trace"));
    (0..10).for_each(|at| write(&source.join(at.to_string()), b"bytes", 0));
    let traced = a.program("strace").args(["-f", "-e", "trace=syncfs,utimensat", "-o"]).arg(&trace);
    let program = traced.arg(gate::dray_binary()).args(["sync", "-a", "--fsync"]).arg(source.join(""));
    program.arg(&copy).run().expect(0);
    let trace = fs::read_to_string(&trace).unwrap();
    let calls: Vec<&str> = trace
        .lines()
        .filter_map(|line| ["syncfs(", "utimensat("].into_iter().find(|call| line.contains(call)))
        .collect();
    let [held_back, first, given, last] = ["utimensat(", "syncfs(", "utimensat(", "syncfs("];
    let order: Vec<&str> = calls.chunk_by(|a, b| a == b).map(|same| same[0]).collect();
    assert_eq!(order, [held_back, first, given, last], "{trace}");
}

/// ADR 38: with `-b` a new file is on its disk before it has its name: else the next run would keep, as what is replaced, what the disk refused of it, in the place of an older backup.
#[test]
fn older_backups_outlive_what_a_disk_refused() {
    if !is_isolated("older_backups_outlive_what_a_disk_refused") {
        return;
    }
    const FILES: usize = 300;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let thin = Thin::new(a, "disk", &["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"], 96 << 20);
    let (source, copy) = (a.directory("source"), thin.place.join("copy"));
    for at in 0..FILES {
        write(&source.join(at.to_string()), &data::random_bytes(8 << 10, at as u64), 0);
        write(&copy.join(format!("{at}~")), b"older", -1000);
    }
    thin.make_names(&copy, FILES * 3);
    thin.take_room_but(1 << 20);
    let run = || sync(a, &case(&["-a"]), &["--fsync", "-b"], &Way::Here, &source, &copy);
    let failed = run();
    assert_ne!(failed.code(), Some(0), "{failed}");
    thin.remount(1 << 30);
    run().expect(0);
    thin.forget();
    let is_kept = |at: &usize| fs::read(copy.join(format!("{at}~"))).is_ok_and(|bytes| bytes == b"older");
    assert_eq!((0..FILES).filter(is_kept).count(), FILES, "{failed}");
    let is_right =
        |at: &usize| fs::read(copy.join(at.to_string())).ok() == fs::read(source.join(at.to_string())).ok();
    assert_eq!((0..FILES).filter(is_right).count(), FILES, "{failed}");
}

/// S84: what leaves its source is written as it was read. What shares the blocks of its source has what the disk has of that, which may have refused some of it, and was told to somebody else.
#[test]
fn what_goes_is_written_as_it_is_read() {
    if !is_isolated("what_goes_is_written_as_it_is_read") {
        return;
    }
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let thin = Thin::new(a, "disk", &["mkfs.xfs", "-q", "-m", "reflink=1"], 320 << 20);
    let (source, copy) = (thin.place.join("source"), thin.place.join("copy"));
    fs::create_dir(&source).unwrap();
    let bytes = data::random_bytes(3 << 20, 1);
    thin.take_room();
    write(&source.join("f"), &bytes, 0);
    syncfs(fs::File::open(&thin.place).unwrap()).unwrap_err();
    thin.remount(1 << 30);
    assert!(fs::read(source.join("f")).unwrap() == bytes, "it is in memory");
    sync(a, &case(&["-a"]), &["--remove-source-files"], &Way::Here, &source, &copy).expect(0);
    thin.forget();
    assert!(!source.join("f").exists() && fs::read(copy.join("f")).unwrap() == bytes);
}

/// S84, ADR 38: what another program is told in the last moment, when all was written, is found out by a change that the run makes for that alone.
#[test]
fn what_is_told_in_the_last_moment_is_found_out() {
    if !is_isolated("what_is_told_in_the_last_moment_is_found_out") {
        return;
    }
    const DIRECTORIES: usize = 200;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let thin = Thin::without_inodes(a, "disk");
    let (source, copy) = (a.directory("source"), thin.place.join("copy"));
    (0..DIRECTORIES).for_each(|at| fs::create_dir(source.join(at.to_string())).unwrap());
    fs::create_dir(&copy).unwrap();
    thin.leave(0);
    let delayed = a.program("strace").args(["-f", "-o", "/dev/null", "-e", "trace=syncfs"]);
    let delayed = delayed.args(["-e", "inject=syncfs:delay_enter=2000000"]).arg(gate::dray_binary());
    let running = delayed.args(["sync", "-a", "--fsync"]).arg(source.join("")).arg(&copy).start();
    running.wait_until(false, || data::names(&copy).len() == DIRECTORIES);
    std::thread::sleep(std::time::Duration::from_millis(500));
    syncfs(fs::File::open(&thin.place).unwrap()).unwrap_err();
    thin.remount(1 << 30);
    let failed = running.wait();
    assert_ne!(failed.code(), Some(0), "{failed}");
    assert!(failed.stderr_text().contains("fsck"), "{failed}");
    // Nor does the next one end well, until that was checked.
    let run = || sync(a, &case(&["-a"]), &["--fsync"], &Way::Here, &source, &copy);
    let said = run();
    assert_ne!(said.code(), Some(0), "{said}");
    thin.check();
    run().expect(0);
    thin.forget();
    let is_there = |at: &usize| copy.join(at.to_string()).is_dir();
    assert_eq!((0..DIRECTORIES).filter(is_there).count(), DIRECTORIES);
}

/// ADR 38: what was there before the run, and only got another name, keeps its time, which others share, whatever the disk refused of the rest.
#[test]
fn what_was_there_before_keeps_its_time() {
    if !is_isolated("what_was_there_before_keeps_its_time") {
        return;
    }
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for (number, option) in ["--times", "--size-only", "--ignore-existing"].into_iter().enumerate() {
        let thin = Thin::new(a, &format!("disk{number}"), &["mkfs.ext4", "-q", "-F", "-m", "0"], 96 << 20);
        let (source, old) = (a.directory(&format!("source{number}")), thin.place.join("old"));
        let names = (0..20).map(|at| at.to_string());
        names.clone().for_each(|name| write(&source.join(name), b"the same", -1000));
        sync(a, &case(&["-a"]), &["--fsync"], &Way::Here, &source, &old).expect(0);
        let before = |name: String| fs::metadata(old.join(name)).unwrap().modified().unwrap();
        let times: Vec<_> = names.clone().map(before).collect();
        data::write_random(&source.join("new"), 8 << 20, 1);
        // Of one inode and its new name.
        fs::create_dir(thin.place.join("new")).unwrap();
        thin.take_room_but(256 << 10);
        let new = thin.place.join("new");
        let run =
            || sync(a, &case(&["-a"]), &["--fsync", option, "--link-dest=../old"], &Way::Here, &source, &new);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{option}: {failed}");
        assert_eq!(names.clone().map(before).collect::<Vec<_>>(), times, "{option}: {failed}");
        thin.remount(1 << 30);
        run().expect(0);
        assert_eq!(names.map(before).collect::<Vec<_>>(), times, "{option}");
        thin.forget();
        assert!(fs::read(new.join("new")).unwrap() == fs::read(source.join("new")).unwrap(), "{option}");
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": with `--inplace` what a disk refused is on it after the run that ends well. Ext4 keeps for nothing what is written once more
/// to a page that it could not bring to its disk.
#[test]
fn what_is_written_over_after_a_refusal_is_on_the_disk() {
    // In mounts of its own: a file system that is mounted elsewhere, too, is never unmounted.
    if !is_isolated("what_is_written_over_after_a_refusal_is_on_the_disk") {
        return;
    }
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let [old, new] = [(4_417, 1), (18_662, 2)].map(|(size, seed)| data::random_bytes(size, seed));
    let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
    for (number, option) in ["--fsync", "--remove-source-files"].into_iter().enumerate() {
        let thin = Thin::new(a, &format!("disk{number}"), &make, 96 << 20);
        let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
        write(&source.join("f"), &new, 0);
        write(&copy.join("f"), &old, -100);
        thin.take_room_but(20 << 10);
        let run = || sync(a, &case(&["-a"]), &["--inplace", option], &Way::Here, &source, &copy);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{failed}");
        thin.remount(1 << 30);
        run().expect(0);
        thin.forget();
        assert!(fs::read(copy.join("f")).unwrap() == new, "{option}: it is not on the disk");
    }
}

/// Issue 7 "delete nothing wrongly": what another program put under the name of a file that the disk refused stays.
#[test]
fn what_another_program_put_there_is_not_removed() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    ["a", "b"].iter().for_each(|name| write(&source.join(name), b"new", 0));
    let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,syncfs"]);
    let strace = strace.args(["-e", "inject=fsync:error=EIO"]);
    let program = strace.args(["-e", "inject=syncfs:error=EIO:delay_enter=2000000"]).arg(gate::dray_binary());
    let run = program.args(["sync", "-a", "--fsync"]).arg(source.join("")).arg(&copy).start();
    let begun = std::time::Instant::now();
    while !copy.join("b").exists() || !copy.join("a").exists() {
        assert!(begun.elapsed().as_secs() < 30, "nothing came");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::write(copy.join("theirs"), b"theirs").unwrap();
    fs::rename(copy.join("theirs"), copy.join("a")).unwrap();
    let said = run.wait();
    assert_ne!(said.code(), Some(0), "{said}");
    assert_eq!(fs::read(copy.join("a")).unwrap(), b"theirs", "{said}");
    assert!(!copy.join("b").exists(), "{said}");
}
