//! What `dray sync` must never do: delete because of what could not be read, written or brought to its end, or outside of the destination.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use dray_e2e::actions::kill_one_end;
use dray_e2e::data::{self, MIB};
use dray_e2e::live::tool;
use dray_e2e::power::is_isolated;
use dray_e2e::twins::{LONG, time, tree, up, write};
use dray_e2e::{Lab, gate};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Issue "Nothing is deleted unless the listing was complete and without read errors": a directory and a file that cannot be read, a source
/// that is not there, one that is a file. Each is told, and what is in the destination stays.
#[test]
fn nothing_is_deleted_because_of_what_cannot_be_read() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.file("source");
    tree(&source, 40);
    let copy = a.directory("copy");
    write(&copy.join("extra"), b"extra", 0);
    write(&copy.join("03/extra"), b"extra", 0);
    // Root reads everything, so a user does this.
    let user = 65_534;
    for path in [&copy, &source] {
        a.program("chown").arg("-R").arg(format!("{user}:{user}")).arg(path).run().expect(0);
    }
    let slashed = |path: &Path| format!("{}/", path.display());
    let data = a.directory("user");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    let run = |from: &Path| {
        let program = a.dray().env("DRAY_DATA_DIR", &data).env("HOME", &data).user(user);
        program.args(["sync", "-a", "--delete", "-i"]).arg(slashed(from)).arg(&copy).run()
    };
    let extras = || assert!(copy.join("extra").exists() && copy.join("03/extra").exists());
    for name in ["03", "03/00003"] {
        let path = source.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        write(&copy.join("03/00003"), b"of another size", 9);
        let outcome = run(&source).expect(8);
        assert!(outcome.stderr_text().contains("nothing was deleted"), "{}", outcome.stderr_text());
        assert!(!outcome.stdout_text().contains("*deleting"), "{}", outcome.stdout_text());
        assert!(outcome.stderr_text().contains(name), "{}", outcome.stderr_text());
        extras();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let outcome = run(&a.file("missing")).expect(3);
    assert!(outcome.stderr_text().contains("missing"), "{}", outcome.stderr_text());
    extras();
    assert_ne!(run(&source.join("00/00000")).code(), Some(0));
    extras();
    // The source path over ssh is missing, too.
    up(a, b, &["-a", "--delete"], &a.file("missing"), &copy).wait().expect(3);
    extras();
    run(&source).expect(0);
    assert!(!copy.join("extra").exists() && !copy.join("03/extra").exists());
}

/// Issue "a cut connection, kill -9 at any moment … delete nothing wrongly": either end is killed while contents come, and nothing is gone;
/// the same command again does all.
#[test]
fn a_killed_run_deletes_nothing() {
    let Some(lab) = Lab::of(2).rate_mbit(100).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.file("source");
    tree(&source, 2000);
    data::write_random(&source.join("zz large"), 64 * MIB, 7);
    for kills_far in [false, true] {
        let copy = b.directory(if kills_far { "far" } else { "near" });
        let extras: Vec<_> = (0..20).map(|number| copy.join(format!("{number:02}/extra"))).collect();
        extras.iter().for_each(|path| write(path, b"extra", 0));
        let running = up(a, b, &["-a", "--delete"], &source, &copy);
        running.wait_until(false, || copy.join("05/00005").exists());
        kill_one_end(running, b, kills_far);
        extras.iter().for_each(|path| assert!(path.exists(), "{path:?} is gone"));
        up(a, b, &["-a", "--delete"], &source, &copy).wait().expect(0);
        dray_e2e::actions::assert_same_tree(a, &source, &copy, None);
    }
}

/// Issue "a full disk deletes nothing wrongly": exit 7, and what was there stays.
#[test]
fn a_full_disk_deletes_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, mount) = (a.directory("source"), a.directory("mount"));
    data::write_random(&source.join("large"), 8 * MIB, 3);
    let tool = |name: &str, args: &[&str]| {
        let status = std::process::Command::new(name).args(args).arg(&mount).status();
        assert!(status.unwrap().success(), "{name}");
    };
    tool("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
    write(&mount.join("extra"), b"extra", 0);
    let run = || a.dray().args(["sync", "-a", "--delete"]).arg(source.join("")).arg(&mount).run();
    let outcome = run();
    let has_extra = mount.join("extra").exists();
    tool("umount", &[]);
    outcome.expect(7);
    assert!(has_extra);
}

/// A key that is confined to a directory deletes in it and nowhere else, and a read-only one not at all.
#[test]
fn a_confined_key_deletes_within_its_directory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let only = b.directory("only");
    let command = |more: &str| {
        format!("{} serve --stdio {more} --only {}", gate::dray_binary().display(), only.display())
    };
    let source = a.directory("source");
    write(&source.join("f"), b"f", 0);
    write(&only.join("to/extra"), b"extra", 0);
    let outside = b.directory("outside");
    write(&outside.join("mine"), b"mine", 0);
    symlink(&outside, only.join("to/link")).unwrap();
    symlink(&outside, only.join("away")).unwrap();
    let run = |key: &str, more: &str, to: &str| {
        let ssh = b.sshd().restricted_command(key, &command(more));
        let program = a.dray().args(["sync", "-a", "--delete", "-e"]).arg(&ssh);
        program.arg(source.join("")).arg(b.remote(Path::new(to))).time_limit(LONG).run()
    };
    run("reader", "--read-only", "to").expect(6);
    assert!(only.join("to/extra").exists());
    assert_ne!(run("writer1", "", "away").code(), Some(0));
    assert_ne!(run("writer2", "", "../outside").code(), Some(0));
    run("writer3", "", "to").expect(0);
    assert_eq!(data::names(&only.join("to")), ["f"]);
    assert!(outside.join("mine").exists());
}

/// Issue "nothing is deleted wrongly": sources of several machines would be several runs, each of which deletes what the others brought.
#[test]
fn sources_of_several_machines_delete_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    write(&source.join("f"), b"f", 0);
    write(&copy.join("extra"), b"extra", 0);
    for others in [&["b.invalid:x/"][..], &["b.invalid:x/", "c.invalid:x/"]] {
        let program = a.dray().args(["sync", "-a", "--delete"]).arg(source.join("")).args(others);
        let outcome = program.arg(&copy).run().expect(2);
        assert!(outcome.stderr_text().contains("different machines"), "{}", outcome.stderr_text());
        assert_eq!(data::names(&copy), ["extra"]);
    }
}

/// Issue "--max-delete", for what it is for: the source is empty because its disk is not mounted. So many entries go, the others stay, and the
/// verdict says so.
#[test]
fn an_empty_source_deletes_no_more_than_is_allowed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    for is_far in [false, true] {
        let copy = b.directory(if is_far { "far" } else { "near" });
        (0..9).for_each(|number| write(&copy.join(format!("{number}")), b"extra", 0));
        let options = ["-a", "--delete", "--max-delete=5", "--stats"];
        let outcome = if is_far {
            up(a, b, &options, &source, &copy).wait()
        } else {
            a.dray().arg("sync").args(options).arg(source.join("")).arg(&copy).run()
        };
        let outcome = outcome.expect(8);
        assert_eq!(data::names(&copy).len(), 4);
        assert!(outcome.stdout_text().contains("deleted entries: 5"), "{}", outcome.stdout_text());
        assert!(outcome.stderr_text().contains("4 entries were not deleted"), "{}", outcome.stderr_text());
    }
}

/// Issue "nothing is deleted wrongly": an entry that cannot be written where it goes deletes nothing, at whichever end the files are.
#[test]
fn nothing_is_deleted_because_of_what_cannot_be_written() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    write(&source.join("x"), b"a file", 0);
    for is_far in [false, true] {
        let copy = b.directory(if is_far { "far" } else { "near" });
        write(&copy.join("extra"), b"extra", 0);
        // Even root replaces no such file.
        write(&copy.join("x"), b"old", 9);
        let set_immutable = |is_immutable| {
            let flags = if is_immutable { IFlags::IMMUTABLE } else { IFlags::empty() };
            let file = fs::File::open(copy.join("x")).unwrap();
            let others = ioctl_getflags(&file).unwrap() - IFlags::IMMUTABLE;
            ioctl_setflags(&file, others | flags).unwrap();
        };
        set_immutable(true);
        let outcome = if is_far {
            up(a, b, &["-a", "--delete"], &source, &copy).wait()
        } else {
            a.dray().args(["sync", "-a", "--delete"]).arg(source.join("")).arg(&copy).run()
        };
        set_immutable(false);
        let outcome = outcome.expect(8);
        assert!(copy.join("extra").exists());
        assert!(outcome.stderr_text().contains("nothing was deleted"), "{}", outcome.stderr_text());
        up(a, b, &["-a", "--delete"], &source, &copy).wait().expect(0);
        assert_eq!(data::names(&copy), ["x"]);
    }
}

/// Issue "--fsync": what was renamed at the source is durable under its new name before the old one is deleted, and that is durable when the
/// command ends.
#[test]
fn what_came_is_durable_before_anything_is_deleted() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    write(&source.join("b"), b"renamed", 0);
    write(&copy.join("a"), b"renamed", 0);
    let trace = a.file("trace");
    let program = a.program("strace").args(["-f", "-e", "trace=syncfs,unlinkat", "-o"]).arg(&trace);
    let program = program.arg(gate::dray_binary()).args(["sync", "-a", "--delete", "--fsync"]);
    program.arg(source.join("")).arg(&copy).time_limit(LONG).run().expect(0);
    let trace = fs::read_to_string(trace).unwrap();
    let calls: Vec<&str> = trace.lines().collect();
    let deleted = calls.iter().position(|call| call.contains("unlinkat(") && call.contains("\"a\"")).unwrap();
    let is_sync = |call: &&str| call.contains("syncfs(");
    assert!(calls[..deleted].iter().any(is_sync) && calls[deleted..].iter().any(is_sync), "{trace}");
}

/// Issue "nothing is deleted wrongly": a source that lies in the destination stays, also where ssh leads to the same machine.
#[test]
fn a_source_in_the_destination_stays_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let copy = b.directory("copy");
    write(&copy.join("sub/source/f"), b"f", 0);
    write(&copy.join("extra"), b"extra", 0);
    let outcome = up(a, b, &["-a", "--delete"], &copy.join("sub/source"), &copy).wait().expect(8);
    assert!(outcome.stderr_text().contains("is a source of this run"), "{}", outcome.stderr_text());
    assert!(copy.join("sub/source/f").exists() && copy.join("f").exists() && !copy.join("extra").exists());
    let program = a.dray().args(["sync", "-a", "--delete", "-e"]).arg(b.ssh_command());
    let source = b.remote(&copy.join("sub/source/"));
    let outcome = program.arg(source).arg(&copy).time_limit(LONG).run().expect(6);
    assert!(outcome.stderr_text().contains("lies in the destination"), "{}", outcome.stderr_text());
    assert!(copy.join("sub/source/f").exists());
}

/// Issue "a source in the destination": within a host that is refused before anything is done, dry or not, unless a rule protects the source.
#[test]
fn a_source_in_the_destination_is_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let copy = a.directory("copy");
    write(&copy.join("new/f"), b"f", 0);
    write(&copy.join("extra"), b"extra", 0);
    let run = |options: &[&str]| {
        a.dray().args(["sync", "-a", "--delete"]).args(options).arg(copy.join("new/")).arg(&copy).run()
    };
    for options in [&[][..], &["-n"], &["--delete-excluded", "--exclude=/new"], &["--exclude=/ne"]] {
        let outcome = run(options).expect(2);
        assert!(outcome.stderr_text().contains("lies in"), "{outcome}");
        assert_eq!(data::names(&copy), ["extra", "new"], "{options:?}");
    }
    run(&["--exclude=/new"]).expect(0);
    assert_eq!(data::names(&copy), ["f", "new"]);
    assert!(copy.join("new/f").exists());
}

/// rsync's habit with several sources for one place, and ours: they are merged, what one of them has stays, and what an earlier one brought
/// makes no way for a later one, also where that is asked to delete.
#[test]
fn sources_that_meet_keep_what_each_brought() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (one, two) = (a.directory("one"), a.directory("two"));
    write(&one.join("x/1"), b"1", 0);
    write(&one.join("y"), b"a file", 0);
    write(&two.join("z"), b"z", 0);
    for is_far in [false, true] {
        let copy = b.directory(if is_far { "far" } else { "near" });
        write(&copy.join("extra"), b"extra", 0);
        let run = || {
            let program = a.dray().args(["sync", "-a", "--delete", "-e"]).arg(b.ssh_command());
            let program = program.arg(one.join("")).arg(two.join(""));
            let program = if is_far { program.arg(b.remote(&copy)) } else { program.arg(&copy) };
            program.time_limit(LONG).run()
        };
        run().expect(0);
        assert_eq!(data::names(&copy), ["x", "y", "z"]);
        // Now the second has a file where the first has a directory, and the other way round.
        write(&two.join("x"), b"a file", 0);
        write(&two.join("y/2"), b"2", 0);
        write(&copy.join("extra"), b"extra", 0);
        run().expect(8);
        assert!(copy.join("x/1").exists() && copy.join("y").is_file() && copy.join("extra").exists());
        fs::remove_file(two.join("x")).unwrap();
        fs::remove_dir_all(two.join("y")).unwrap();
    }
}

/// A plan for a source that is not there is that one error.
#[test]
fn a_plan_without_a_source_is_exit_3() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let copy = a.directory("copy");
    write(&copy.join("extra"), b"extra", 0);
    for options in ["-an", "-a"] {
        a.dray().args(["sync", options, "--delete"]).arg(a.file("missing/")).arg(&copy).run().expect(3);
        assert!(copy.join("extra").exists());
    }
}

/// Issue 7 "vanished-source runs delete nothing wrongly": a disk that is unmounted while ssh logs in, after the run has looked at what is on it and the same is at the destination, is no empty source.
#[test]
fn a_disk_that_goes_during_the_login_deletes_nothing() {
    if !is_isolated("a_disk_that_goes_during_the_login_deletes_nothing") {
        return;
    }
    // Of fewer the entries themselves wait, and their directories stay open.
    const FILES: usize = 1_000;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy, ssh) = (a.directory("source"), a.directory("copy"), a.file("ssh"));
    let place = source.to_str().unwrap();
    // And whether directories are alike, or their files alone.
    for (unmounts, are_alike) in [(false, true), (true, false), (true, true)] {
        tool(&["mount", "-t", "tmpfs", "tmpfs", place]);
        for top in [&source, &copy] {
            (0..FILES).for_each(|at| write(&top.join(format!("{}/{at}", at % 20)), b"the same", 0));
        }
        for top in [&source, &copy].into_iter().filter(|_| are_alike) {
            (0..20).for_each(|at| {
                fs::File::open(top.join(at.to_string())).unwrap().set_modified(time(0)).unwrap();
            });
        }
        // So it does not end with a word on all of it.
        write(&source.join("differs"), b"newer", 0);
        write(&copy.join("differs"), b"old", -100);
        let unmount = if unmounts { format!("umount {place}") } else { "true".into() };
        write(&ssh, format!("#!/bin/sh\nsleep 1; {unmount}; exec ssh \"$@\"\n").as_bytes(), 0);
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        let ssh = format!("{} {}", ssh.display(), b.ssh_options().join(" "));
        let program = a.dray().args(["sync", "-a", "--delete", "-e", &ssh]).arg(source.join(""));
        let said = program.arg(b.remote(&copy)).run();
        let is_there = (0..FILES).all(|at| copy.join(format!("{}/{at}", at % 20)).exists());
        assert!(is_there, "{unmounts}: {said}");
        let expected: &[Option<i32>] = if unmounts { &[Some(4), Some(8)] } else { &[Some(0)] };
        assert!(expected.contains(&said.code()), "{said}");
        if unmounts {
            assert!(said.stderr_text().contains("not the directory that it was"), "{said}");
            assert_eq!(fs::read(copy.join("differs")).unwrap(), b"old", "{said}");
        } else {
            tool(&["umount", place]);
        }
    }
}
