//! Disks that take a write and refuse it later, where they are not alone: one of many file systems below the destination, one that has what another directory is asked for, and one that one user of
//! several may read. Witness is the disk itself, read past the memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::path::Path;

use dray_e2e::actions::NOBODY;
use dray_e2e::live::tool;
use dray_e2e::power::is_isolated;
use dray_e2e::thin::{Thin, on_disk};
use dray_e2e::twins::{Way, case, sync, write};
use dray_e2e::{Lab, data, gate};

/// S84, ADR 38: what the last of many file systems below the destination refuses keeps its source, and with `--fsync` the next run that ends well has brought it.
#[test]
fn what_the_last_of_many_file_systems_refuses_comes_again() {
    if !is_isolated("what_the_last_of_many_file_systems_refuses_comes_again") {
        return;
    }
    // Sources go after some thousands of files, which lie in one directory that is not finished by then.
    const FILES: usize = 5_000;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for (number, option) in ["--remove-source-files", "--fsync"].into_iter().enumerate() {
        let (source, copy) = (a.directory(&format!("source{number}")), a.directory(&format!("copy{number}")));
        for at in 0..70 {
            let place = copy.join(format!("a{at}"));
            for directory in [&place, &source.join(format!("a{at}"))] {
                fs::create_dir(directory).unwrap();
            }
            tool(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place.to_str().unwrap()]);
        }
        let thin = Thin::new(a, &format!("disk{number}"), &["mkfs.ext4", "-q", "-F", "-m", "0"], 320 << 20);
        let (kept, last) = (a.directory(&format!("kept{number}")), copy.join("z"));
        (0..FILES).for_each(|at| {
            let bytes = data::random_bytes(8 << 10, at as u64);
            [&kept, &source.join("z")]
                .into_iter()
                .for_each(|top| write(&top.join(at.to_string()), &bytes, 0));
        });
        fs::create_dir(&last).unwrap();
        tool(&["mount", "--bind", thin.place.to_str().unwrap(), last.to_str().unwrap()]);
        thin.make_names(&thin.place, FILES * 2);
        thin.take_room_but(2 << 20);
        let run = || sync(a, &case(&["-a"]), &[option], &Way::Here, &source, &copy);
        let failed = run();
        assert_ne!(failed.code(), Some(0), "{failed}");
        thin.remount(1 << 30);
        let has =
            |name: &str| on_disk(&last.join(name)).as_deref() == Some(&fs::read(kept.join(name)).unwrap());
        let lost = |said: &dyn std::fmt::Display| {
            let is_lost = |at: &usize| {
                let name = at.to_string();
                !source.join("z").join(&name).exists() && !has(&name)
            };
            let lost = (0..FILES).filter(is_lost).count();
            assert_eq!(lost, 0, "{option}: their sources are gone, and the disk has not got them: {said}");
        };
        lost(&failed);
        let said = run().expect(0);
        lost(&said);
        let wrong = (0..FILES).filter(|at| !has(&at.to_string())).count();
        assert_eq!(wrong, 0, "{option}: {said}");
        // Bound twice, it would stay mounted.
        tool(&["umount", last.to_str().unwrap()]);
    }
}

/// Issue 7 "full-disk runs leave every file either old or new", ADR 38: with `--fsync` what another directory has, and the disk refused, is neither linked nor copied. What is compared of it is what the disk has,
/// also where somebody else was told.
#[test]
fn what_another_directory_has_on_no_disk_comes() {
    if !is_isolated("what_another_directory_has_on_no_disk_comes") {
        return;
    }
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let [old, new] = [1, 2].map(|seed| data::random_bytes(3 << 20, seed));
    let mut number = 0;
    let ext4: &[&str] = &["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"];
    let xfs: &[&str] = &["mkfs.xfs", "-q", "-m", "reflink=1"];
    for make in [ext4, xfs] {
        for options in [
            &["--link-dest=../other"][..],
            &["--copy-dest=../other"],
            &["-c", "--link-dest=../other"],
            &["-c", "--copy-dest=../other"],
        ] {
            for (has_old, is_told) in [(false, false), (true, false), (false, true)] {
                // Of what others were told before, sizes and times say nothing.
                if is_told && options[0] != "-c" {
                    continue;
                }
                number += 1;
                let thin = Thin::new(a, &format!("disk{number}"), make, 320 << 20);
                let what = format!("{} {options:?} {has_old} {is_told}", make[0]);
                let (source, copy) = (a.directory(&format!("source{number}")), thin.place.join("copy"));
                let other = thin.place.join("other/f");
                [copy.clone(), thin.place.join("other")].iter().for_each(|it| fs::create_dir(it).unwrap());
                write(&source.join("f"), &new, 0);
                if has_old {
                    write(&copy.join("f"), &old, -100);
                }
                thin.make_names(&thin.place, 100);
                thin.take_room();
                write(&other, &new, 0);
                if is_told {
                    rustix::fs::fsync(fs::File::open(&other).unwrap()).unwrap_err();
                }
                assert!(fs::read(&other).unwrap() == new, "{what}: it is in memory");
                let run = || {
                    let options = [&["--fsync"], options].concat();
                    sync(a, &case(&["-a"]), &options, &Way::Here, &source, &copy)
                };
                let failed = run();
                assert_ne!(failed.code(), Some(0), "{what}: {failed}");
                let there = on_disk(&copy.join("f"));
                assert!(there.as_deref() == has_old.then_some(&old[..]), "{what}: neither: {failed}");
                thin.remount(1 << 30);
                let said = run().expect(0);
                thin.forget();
                assert!(fs::read(copy.join("f")).unwrap() == new, "{what}: {said}");
            }
        }
    }
}

/// Issue 7 "full-disk runs leave every file either old or new": of a file of several names that its owner may not read, a further name replaces nothing before the disk has the file.
#[test]
fn names_of_what_may_not_be_read_replace_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let new = data::random_bytes(3 << 20, 2);
    let thin = Thin::new(a, "disk", &["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"], 96 << 20);
    let (source, copy) = (a.directory("source"), thin.place.join("copy"));
    write(&source.join("a"), &new, 0);
    fs::hard_link(source.join("a"), source.join("b")).unwrap();
    write(&copy.join("b"), b"old", -100);
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    [&copy, &copy.join("b")].into_iter().for_each(|path| own(path));
    thin.make_names(&copy, 100);
    thin.take_room();
    let run = || {
        let program = a.dray().args(["sync", "-rtpH", "--chmod=Fu-r", "--fsync"]).user(NOBODY);
        program.env("DRAY_DATA_DIR", "/proc/none").arg(source.join("")).arg(&copy).run()
    };
    let failed = run();
    assert_ne!(failed.code(), Some(0), "{failed}");
    assert!(on_disk(&copy.join("a")).is_none(), "{failed}");
    assert_eq!(on_disk(&copy.join("b")).as_deref(), Some(&b"old"[..]), "{failed}");
    thin.remount(1 << 30);
    run().expect(0);
    for name in ["a", "b"] {
        assert!(on_disk(&copy.join(name)).as_ref() == Some(&new), "{name}");
    }
}

/// ADR 38: with `--fsync` and `--remove-source-files` each new file is on its disk before it has its name, with its time: a run that is killed leaves none that a later one believes, which may have other options.
#[test]
fn with_both_options_each_new_file_is_synced_by_itself() {
    const FILES: usize = 10;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let synced = |options: &[&str]| {
        let name = options.concat();
        let (source, copy, trace) = (
            a.directory(&format!("source{name}")),
            a.file(format!("copy{name}")),
            a.file(format!("trace{name}")),
        );
        (0..FILES).for_each(|at| write(&source.join(at.to_string()), b"bytes", 0));
        let traced = a.program("strace").args(["-f", "-e", "trace=fsync", "-o"]).arg(&trace);
        let program = traced.arg(gate::dray_binary()).args(["sync", "-a"]).args(options);
        program.arg(source.join("")).arg(&copy).run().expect(0);
        fs::read_to_string(&trace)
            .unwrap()
            .lines()
            .filter(|line| line.contains("fsync(") && line.ends_with("= 0"))
            .count()
    };
    assert!(synced(&["--fsync", "--remove-source-files"]) >= FILES);
    assert!(synced(&["--fsync"]) < FILES && synced(&["--remove-source-files"]) < FILES);
}
