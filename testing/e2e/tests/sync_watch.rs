//! `dray sync --watch`: what changes in SRC comes to DST by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dray_e2e::daemon::await_that;
use dray_e2e::data::{self, MIB};
use dray_e2e::sshd::SHELL;
use dray_e2e::{Host, Lab, Program, Running};

/// `dray sync -a --delete --watch`, with ssh's options if it goes to `far`.
fn follow<'a>(host: &'a Host, far: Option<&Host>, source: &Path, destination: &OsString) -> Program<'a> {
    let mut program = host.dray().args(["sync", "-a", "--delete", "--watch"]);
    if let Some(far) = far {
        program = program.arg("-e").arg(format!("ssh {}", far.ssh_options().join(" ")));
    }
    program.arg(source.join("")).arg(destination)
}

fn is_same(left: &Path, right: &Path) -> bool {
    let compared = Command::new("diff").args(["-r", "--no-dereference"]).args([left, right]).output();
    compared.unwrap().status.success()
}

/// Ends it; its changes were told.
fn stop(running: Running) {
    running.interrupt();
    let said = running.wait().expect(0);
    assert!(!said.stderr_text().contains("is looked at every"), "{said}");
}

/// Issue 7, "`--watch` keeps following": new, changed, moved and deleted entries, in new directories, too, within a host and over
/// ssh; nothing crosses the network while nothing changes.
#[test]
fn changes_are_followed() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let here = a.file("copy");
    let there = b.file("copy");
    for (far, place, copy) in
        [(None, here.clone().into_os_string(), &here), (Some(b), b.remote(&there), &there)]
    {
        let source = a.directory(if far.is_some() { "over" } else { "within" });
        fs::create_dir(source.join("sub")).unwrap();
        fs::write(source.join("sub/one"), b"1").unwrap();
        let running = follow(a, far, &source, &place).start();
        let follows = |what: &str| await_that(what, || is_same(&source, copy));
        follows("what was there comes");
        data::write_random(&source.join("sub/large"), MIB, 1);
        follows("a new file comes");
        fs::create_dir_all(source.join("new/deep")).unwrap();
        fs::write(source.join("new/deep/two"), b"2").unwrap();
        follows("new directories come");
        fs::write(source.join("new/deep/two"), b"other").unwrap();
        follows("a change in one of them comes");
        fs::rename(source.join("new"), source.join("sub/moved")).unwrap();
        fs::write(source.join("sub/moved/deep/three"), b"3").unwrap();
        follows("what was moved is followed");
        fs::remove_dir_all(source.join("sub")).unwrap();
        follows("what was deleted goes");
        let next = a.directory("next");
        fs::write(next.join("four"), b"4").unwrap();
        fs::rename(&source, a.file("last")).unwrap();
        fs::rename(&next, &source).unwrap();
        follows("a source that takes the place of another comes");
        fs::write(source.join("five"), b"5").unwrap();
        follows("and is followed");
        fs::remove_dir_all(a.file("last")).unwrap();
        if let Some(far) = far {
            let logins = far.sshd().logins();
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(far.sshd().logins(), logins, "nothing changes");
        }
        stop(running);
    }
}

/// A destination that cannot be reached for a while costs nothing but time; what changed meanwhile comes when it is back.
#[test]
fn a_host_that_was_away_is_caught_up_with() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, there) = (a.directory("source"), b.file("copy"));
    fs::write(source.join("one"), b"1").unwrap();
    let running = follow(a, Some(b), &source, &b.remote(&there)).start();
    await_that("what was there comes", || is_same(&source, &there));
    // Each login ends at once.
    b.sshd().set_session(b, "kill -9 $PPID\n");
    let logins = b.sshd().logins();
    fs::write(source.join("two"), b"2").unwrap();
    await_that("it is tried again", || b.sshd().logins() - logins > 1);
    fs::write(source.join("three"), b"3").unwrap();
    assert!(!is_same(&source, &there));
    let away = follow(a, Some(b), &source, &b.remote(&there)).run();
    assert_eq!(away.code(), Some(5), "what fails at first is not tried again: {away}");
    b.sshd().set_session(b, SHELL);
    await_that("what changed meanwhile comes", || is_same(&source, &there));
    b.sshd().set_session(b, "kill -9 $PPID\n");
    let logins = b.sshd().logins();
    fs::write(source.join("four"), b"4").unwrap();
    await_that("it is away again", || b.sshd().logins() - logins > 1);
    running.interrupt();
    // The error of the last run, as it is not all there.
    let said = running.wait();
    assert_eq!(said.code(), Some(5), "{said}");
    assert!(said.stderr_text().contains("it is tried again"), "{said}");
}

/// A disk that is unmounted is not a source from which everything was deleted; nor is a directory of the same file system that was mounted there, of which the kernel tells nobody
/// that it is gone.
#[test]
fn an_unmounted_source_deletes_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (source, copy, other) = (host.directory("source"), host.file("copy"), host.directory("other"));
    let empty = host.directory("empty");
    let mounts = [source.join("below"), source.clone()];
    fs::create_dir(&mounts[0]).unwrap();
    // And where another disk, or another mount, is there before anybody looks: it gets the same numbers.
    for (at, is_bound, is_replaced) in mounts
        .iter()
        .flat_map(|at| [(at, false, false), (at, true, false), (at, false, true), (at, true, true)])
    {
        let what =
            if is_bound { format!("--bind {}", other.display()) } else { "-t tmpfs drayman".to_owned() };
        let then = match (is_replaced, is_bound) {
            (false, _) => String::new(),
            (true, false) => format!("mount -t tmpfs drayman {} || exit 98\n", at.display()),
            (true, true) => format!("mount --bind {} {} || exit 98\n", empty.display(), at.display()),
        };
        // Within one process of the host, as each has mounts of its own. That a bound one is gone is told by nobody: the next change shows it.
        let script = format!(
            "mount {what} {at} && echo 1 > {at}/one || exit 99\n\
             {dray} sync -a --delete --watch {source}/ {copy} & followed=$!\n\
             until diff -r {source} {copy} >/dev/null 2>&1; do sleep 0.05; done\n\
             until umount {at} 2>/dev/null; do sleep 0.1; done\n\
             {then}echo 2 > {other}/two; [ -z '{then}' ] || touch {source}/three\n\
             wait $followed",
            other = other.display(),
            at = at.display(),
            dray = dray_e2e::gate::dray_binary().display(),
            source = source.display(),
            copy = copy.display(),
        );
        let said = host.program("sh").args(["-c", &script]).time_limit(Duration::from_secs(60)).run();
        let kept = copy.join(at.strip_prefix(&source).unwrap()).join("one");
        assert_eq!(fs::read(kept).unwrap_or_default(), b"1\n", "{at:?} {is_bound} {is_replaced} {said}");
        assert_eq!(said.code(), Some(4), "{at:?} {is_bound} {is_replaced} {said}");
        assert!(said.stderr_text().contains("nothing is deleted"), "{said}");
        fs::remove_dir_all(&copy).unwrap();
        fs::remove_file(other.join("two")).unwrap();
        let _ = fs::remove_file(other.join("one"));
        let _ = fs::remove_file(source.join("three"));
    }
}

/// The same where a disk came and went while a run read it: nobody else knows that it was there.
#[test]
fn what_was_read_of_a_disk_that_went_is_not_deleted() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let other = a.directory("other");
    let hands = ["one".to_owned()].into_iter().chain((2..400).map(|number| format!("f{number}")));
    hands.for_each(|name| fs::write(other.join(name), b"1\n").unwrap());
    for what in ["-t tmpfs drayman", "--bind OTHER"] {
        let what = what.replace("OTHER", &other.display().to_string());
        let (source, copy) = (a.directory("source"), a.file("copy"));
        // What is copied before the disk, and after it, takes a while each.
        for name in ["a", "z"] {
            data::write_random(&source.join(name), MIB / 2, 1);
        }
        for number in 0..3000 {
            let directory = source.join(format!("b{}", number % 3));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(number.to_string()), b"1").unwrap();
        }
        fs::create_dir(source.join("m")).unwrap();
        let script = format!(
            "{dray} sync -a -W --delete --watch --bwlimit=400k {source}/ {copy} & followed=$!\n\
             until diff -r {source} {copy} >/dev/null 2>&1; do sleep 0.05; done\n\
             tr x y <{source}/a >{source}/a.new; mv {source}/a.new {source}/a\n\
             tr x y <{source}/z >{source}/z.new; mv {source}/z.new {source}/z\n\
             until ls -l /proc/$followed/fd /proc/$followed/task/*/cwd 2>/dev/null | grep -q {source}/a; do :; done\n\
             mount {what} {source}/m || exit 99\n\
             [ -e {source}/m/one ] || echo 1 > {source}/m/one\n\
             until [ -e {copy}/m/one ]; do sleep 0.05; done\n\
             until umount {source}/m 2>/dev/null; do sleep 0.05; done\n\
             sleep 2; echo 3 > {source}/three; wait $followed",
            dray = dray_e2e::gate::dray_binary().display(),
            source = source.display(),
            copy = copy.display(),
        );
        let said = a.program("sh").args(["-c", &script]).time_limit(Duration::from_secs(60)).run();
        assert_eq!(fs::read(copy.join("m/one")).unwrap_or_default(), b"1\n", "{what} {said}");
        assert_eq!(said.code(), Some(4), "{what} {said}");
        assert!(said.stderr_text().contains("nothing is deleted"), "{said}");
        for top in [&source, &copy] {
            fs::remove_dir_all(top).unwrap();
        }
    }
}

/// The same where it went while a run was on its way: between its look at what is mounted and that at the source ssh is started. Another disk that is there when the source is read is
/// not the one that was followed.
#[test]
fn a_source_that_went_during_the_login_deletes_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy) = (a.directory("source"), b.file("copy"));
    let (hold, begun, bin) = (a.file("hold"), a.file("begun"), a.directory("bin"));
    // ssh is asked first what it would do (-G): the source is not open then.
    let waits = format!(
        "#!/bin/sh\nif [ -e {hold} ]; then touch {begun}; while [ -e {hold} ]; do sleep 0.05; done; fi\n\
         PATH=${{PATH#*:}} exec ssh \"$@\"\n",
        hold = hold.display(),
        begun = begun.display(),
    );
    fs::write(bin.join("ssh"), waits).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    for then in ["", "mount -t tmpfs drayman SRC || exit 98"] {
        let script = format!(
            "PATH={bin}:$PATH; mount -t tmpfs drayman {source} && echo 1 > {source}/one || exit 99\n\
             {dray} sync -a --delete --watch -e 'ssh {options}' {source}/ {there} & followed=$!\n\
             until diff -r {source} {copy} >/dev/null 2>&1; do sleep 0.05; done\n\
             touch {hold}; echo 2 > {source}/two\n\
             until [ -e {begun} ]; do sleep 0.05; done\n\
             until umount {source} 2>/dev/null; do sleep 0.1; done\n\
             {then}\n\
             rm {hold}; wait $followed",
            then = then.replace("SRC", &source.display().to_string()),
            dray = dray_e2e::gate::dray_binary().display(),
            bin = bin.display(),
            options = b.ssh_options().join(" "),
            there = b.remote(&copy).display(),
            source = source.display(),
            copy = copy.display(),
            hold = hold.display(),
            begun = begun.display(),
        );
        let said = a.program("sh").args(["-c", &script]).time_limit(Duration::from_secs(90)).run();
        assert_eq!(fs::read(copy.join("one")).unwrap_or_default(), b"1\n", "{then:?} {said}");
        assert_eq!(said.code(), Some(4), "{then:?} {said}");
        fs::remove_dir_all(&copy).unwrap();
        fs::remove_file(&begun).unwrap();
    }
}

/// Issue 7, "`--watch` keeps following": also from where a command stands, whatever directory a thread that reads the tree is in.
#[test]
fn a_relative_source_is_followed() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let top = host.directory("top");
    let (source, copy) = (top.join("source"), top.join("copy"));
    for name in ["a/b/one", "a/two", "z/three"] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), b"1").unwrap();
    }
    let script = format!(
        "cd {} && exec {} sync -aX --delete --watch source/ copy",
        top.display(),
        dray_e2e::gate::dray_binary().display()
    );
    let running = host.program("sh").args(["-c", &script]).start();
    await_that("what was there comes", || is_same(&source, &copy));
    fs::remove_file(source.join("a/b/one")).unwrap();
    fs::remove_dir_all(source.join("z")).unwrap();
    await_that("what went is deleted", || is_same(&source, &copy));
    stop(running);
}

/// `--max-delete` is for all that is done, not for each time.
#[test]
fn no_more_is_deleted_in_several_runs() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (source, copy) = (host.directory("source"), host.file("copy"));
    for name in ["a", "b", "c", "d"] {
        fs::write(source.join(name), b"1").unwrap();
    }
    let running = follow(host, None, &source, &copy.clone().into_os_string()).arg("--max-delete=2").start();
    await_that("what was there comes", || is_same(&source, &copy));
    fs::remove_file(source.join("a")).unwrap();
    await_that("one is deleted", || is_same(&source, &copy));
    for name in ["b", "c", "d"] {
        fs::remove_file(source.join(name)).unwrap();
    }
    let left = || fs::read_dir(&copy).unwrap().count();
    await_that("one more is deleted", || left() == 2);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(left(), 2);
    running.interrupt();
    let said = running.wait();
    assert_eq!(said.code(), Some(8), "{said}");
}

/// The same where a run deletes some, and then fails: what it deleted counts for the next try.
#[test]
fn what_a_failed_run_deleted_counts() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (source, copy, old) = (host.directory("source"), host.file("copy"), host.directory("old"));
    for number in 0..9 {
        data::write_random(&source.join(format!("f{number}")), 65_536, number);
    }
    // There is room to keep four of those that are deleted, again and again.
    let script = format!(
        "mount -t tmpfs -o size=264k drayman {old} || exit 99\n\
         {dray} sync -a --delete --max-delete=6 --backup-dir={old} --watch {source}/ {copy} & followed=$!\n\
         until diff -r {source} {copy} >/dev/null 2>&1; do sleep 0.05; done\n\
         rm {source}/*\n\
         until [ $(ls {copy} | wc -l) -le 5 ]; do sleep 0.05; done\n\
         for n in 1 2 3 4 5 6 7 8; do sleep 1; find {old} -type f -delete; done\n\
         kill -TERM $followed; wait $followed",
        dray = dray_e2e::gate::dray_binary().display(),
        old = old.display(),
        source = source.display(),
        copy = copy.display(),
    );
    let said = host.program("sh").args(["-c", &script]).time_limit(Duration::from_secs(60)).run();
    assert!(said.stderr_text().contains("it is tried again"), "{said}");
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 3, "{said}");
}

/// What cannot be followed is said at once: a source on another host, a dry run, a source that is not there.
#[test]
fn what_cannot_be_followed_is_refused() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = b.directory("source");
    let remote = a.dray().args(["sync", "-a", "--watch"]).arg(b.remote(&source)).arg("here").run().expect(2);
    assert!(remote.stderr_text().contains("on the host that has SRC"), "{remote}");
    a.dray().args(["sync", "-an", "--watch", "x/", "y/"]).run().expect(2);
    fs::create_dir(a.file("outbox")).unwrap();
    fs::write(a.file("outbox/film"), b"begun").unwrap();
    let moving = a.dray().args(["sync", "-a", "--watch", "--remove-source-files"]).arg(a.file("outbox/"));
    let moving = moving.arg(a.file("y")).time_limit(Duration::from_secs(10)).run();
    assert!(moving.code() == Some(2) && a.file("outbox/film").exists(), "{moving}");
    a.dray().args(["sync", "-a", "--watch"]).arg(a.file("none")).arg(a.file("y")).run().expect(3);
}
