//! `dray sync --inplace`: files that are there are changed, not replaced. Witnesses are rsync with the same option on a twin, `stat`, and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use dray_e2e::actions::{NOBODY, await_no_dray};
use dray_e2e::data;
use dray_e2e::inplace::{left, traced};
use dray_e2e::live::sync as sync_ticket;
use dray_e2e::twins::{LONG, Way, case, going, sync, time, write};
use dray_e2e::{Host, Lab, Outcome, gate};
use rustix::process::{Pid, Signal, kill_process};

const BLOCK: usize = 4096;

/// Every `step`-th block of `bytes` is another one.
fn changed(bytes: &[u8], step: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.chunks_mut(BLOCK).step_by(step).for_each(|block| block[0] ^= 1);
    bytes
}

/// A source and a destination of files that differ in some of their bytes, in their length, in nothing but bits, and in nothing; one has holes, and one another name
/// outside.
fn source_and_destination(source: &Path, copy: &Path, outside: &Path) {
    let large = data::random_bytes(700_000, 1);
    for (name, old, new) in [
        ("large", &large[..], &changed(&large, 10)[..]),
        ("shorter", &large[..], &large[..100_000]),
        ("longer", &large[..100_000], &large[..]),
        ("small", b"old", b"another"),
        ("emptied", b"old", b""),
        ("filled", b"", b"new"),
        ("bits", b"the same", b"the same"),
        ("same", b"the same", b"the same"),
        ("linked", b"old", b"new bytes"),
        ("read-only", b"old", b"new bytes"),
    ] {
        let is_same = old == new;
        write(&source.join(name), new, 0);
        write(&copy.join(name), old, if is_same { 0 } else { -100 });
    }
    write(&source.join("new"), b"new", 0);
    for (path, is_old) in [(source.join("holes"), false), (copy.join("holes"), true)] {
        let file = fs::File::create(&path).unwrap();
        file.set_len(2 << 20).unwrap();
        file.write_all_at(&large[..100_000], if is_old { 0 } else { 1 << 20 }).unwrap();
        file.set_modified(time(i64::from(!is_old))).unwrap();
    }
    fs::set_permissions(source.join("bits"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(copy.join("read-only"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::hard_link(copy.join("linked"), outside).unwrap();
    // What the clock says when they are made is told of no directory.
    for (top, at) in [(source, 0), (copy, -100)] {
        fs::File::open(top).unwrap().set_modified(time(at)).unwrap();
    }
}

fn inodes(top: &Path) -> BTreeMap<PathBuf, u64> {
    let inode = |path: PathBuf| {
        let inode = fs::symlink_metadata(top.join(&path)).unwrap().ino();
        (path, inode)
    };
    data::names_below(top).into_iter().map(inode).collect()
}

fn slashed(path: &Path) -> OsString {
    let mut path = OsString::from(path);
    path.push("/");
    path
}

fn assert_twins(host: &Host, one: &Path, other: &Path, what: &str) {
    let twins = host.program("rsync").args(["-aHAXn", "--checksum", "-i", "--delete"]);
    let twins = twins.arg(slashed(one)).arg(slashed(other)).run().expect(0);
    assert_eq!(twins.stdout_text(), "", "{what}");
}

/// Copies with both programs, and says which inodes each kept.
fn check(a: &Host, way: &Way<'_>, options: &'static [&'static str]) {
    let what = format!("{way:?} {options:?}");
    let place = a.directory("case");
    let [source, ours, theirs] = ["source", "ours", "theirs"].map(|name| place.join(name));
    for (copy, outside) in [(&ours, "our-other"), (&theirs, "their-other")] {
        source_and_destination(&source, copy, &place.join(outside));
    }
    let (our_inodes, their_inodes) = (inodes(&ours), inodes(&theirs));
    let kept = |was: &BTreeMap<PathBuf, u64>, top: &Path| -> Vec<PathBuf> {
        let now = inodes(top);
        was.iter()
            .filter(|(name, inode)| now.get(*name) == Some(inode))
            .map(|(name, _)| name.clone())
            .collect()
    };
    let rsync = a.program("rsync").arg("-i").args(options).arg(slashed(&source)).arg(&theirs).run().expect(0);
    let dray = sync(a, &case(options), &["-i"], way, &source, &ours).expect(0);
    assert_eq!(dray_e2e::twins::told(&dray), dray_e2e::twins::told(&rsync), "{what}");
    assert_eq!(kept(&our_inodes, &ours), kept(&their_inodes, &theirs), "{what}: inodes that stayed");
    assert_eq!(kept(&our_inodes, &ours).len(), our_inodes.len(), "{what}: all of them");
    assert_eq!(fs::read(place.join("our-other")).unwrap(), fs::read(place.join("their-other")).unwrap());
    assert_eq!(data::unfinished(&ours), Vec::<OsString>::new(), "{what}");
    if !options[0].contains('b') {
        assert_twins(a, &ours, &theirs, &what);
        assert!(data::allocated_bytes(&ours.join("holes")) < 300_000, "{what}: holes");
    } else {
        for name in ["large", "small", "linked", "read-only"] {
            data::assert_same(&ours.join(format!("{name}~")), &theirs.join(format!("{name}~")));
            data::assert_same(&ours.join(name), &theirs.join(name));
        }
    }
    let again = sync(a, &case(options), &["-i"], way, &source, &ours).expect(0);
    assert_eq!(again.stdout_text(), "", "{what}: again");
    fs::remove_dir_all(&place).unwrap();
}

const OPTIONS: [&[&str]; 6] = [
    &["-a", "--inplace"],
    &["-aHX", "--inplace", "--delete"],
    &["-aS", "--inplace"],
    &["-ac", "--inplace"],
    &["-ab", "--inplace"],
    &["-a", "--inplace", "--fsync"],
];

/// S86, issue 7 "--inplace": what is there stays the same file where it does with rsync, with every other name of it, within a host.
#[test]
fn inodes_stay_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    OPTIONS.iter().for_each(|options| check(lab.host(0), &Way::Here, options));
}

/// The same over ssh, both ways.
#[test]
fn inodes_stay_as_with_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for way in [Way::Up(b), Way::Down(b)] {
        OPTIONS[..2].iter().for_each(|options| check(a, &way, options));
        check(a, &way, OPTIONS[4]);
    }
}

/// S86: two files, of which the destination has one under both names with the bytes of the second, both compared before anything is done: what the copy does to it under
/// the first is no other program's writing when the second is looked at, `--delete` is done, and each has its bytes. Where both have these bytes, the file
/// stays with both names, as with rsync; otherwise the second becomes a file of its own, also where both have one size and one time, by which a later run would not find it.
#[test]
fn two_names_of_one_file_are_kept_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (first, time_of_second) in [(b"alike", 0), (b"alike", 7), (b"other", 0), (b"other", 7)] {
        for way in [Way::Here, Way::Up(b), Way::Down(b)] {
            let what = format!("{first:?}, {time_of_second}, {way:?}");
            let place = a.directory("case");
            let (source, copy) = (place.join("source"), place.join("copy"));
            write(&source.join("one"), first, 0);
            write(&source.join("two"), b"alike", time_of_second);
            write(&copy.join("one"), b"alike", -100);
            write(&copy.join("surplus"), b"alike", -100);
            fs::hard_link(copy.join("one"), copy.join("two")).unwrap();
            let inode = fs::metadata(copy.join("one")).unwrap().ino();
            sync(a, &case(&["-a", "--inplace", "--delete"]), &[], &way, &source, &copy).expect(0);
            assert_eq!(data::names_below(&copy), ["one", "two"].map(PathBuf::from), "{what}");
            for name in ["one", "two"] {
                data::assert_same(&source.join(name), &copy.join(name));
            }
            let stays: Vec<bool> = inodes(&copy).values().map(|is| *is == inode).collect();
            assert_eq!(stays, [true, first == b"alike"], "{what}");
            assert_eq!(
                fs::metadata(copy.join("two")).unwrap().modified().unwrap(),
                time(time_of_second),
                "{what}"
            );
            fs::remove_dir_all(&place).unwrap();
        }
    }
}

/// And by ticket; the holder is not told.
#[test]
fn inodes_stay_by_ticket() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (source, copy) = (a.directory("source"), b.directory("copy"));
    source_and_destination(&source, &copy, &b.file("other"));
    let was = inodes(&copy);
    let sharing = a.dray().arg("put").arg(&source).start();
    let ticket = sharing.first_line();
    sync_ticket(b, &["-a", "--inplace"], &ticket, &copy).expect(0);
    let now = inodes(&copy);
    assert!(was.iter().all(|(name, inode)| now.get(name) == Some(inode)), "{was:?} {now:?}");
    for name in ["large", "shorter", "longer", "small", "linked", "new"] {
        data::assert_same(&source.join(name), &copy.join(name));
    }
    sharing.terminate().expect(0);
}

/// Bytes that were written, by what strace says.
fn written(log: &Path) -> u64 {
    let text = fs::read_to_string(log).unwrap();
    let calls = text.lines().filter(|line| line.contains("write") && line.contains(") = "));
    calls.map(|line| line.rsplit(" = ").next().unwrap().trim().parse::<u64>().unwrap()).sum()
}

/// S86: of a file of 1,024 blocks of which 64 differ these are written, and nothing else; without the option the file is another one.
#[test]
fn what_differs_is_written_and_nothing_else() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, log) = (a.directory("source"), a.directory("copy"), a.file("log"));
    let old = data::random_bytes(1024 * BLOCK, 3);
    write(&copy.join("f"), &old, 0);
    write(&source.join("f"), &changed(&old, 16), 9);
    let was = fs::metadata(copy.join("f")).unwrap().ino();
    let run = |options: &[&str]| {
        let program = traced(a, &copy.join("f"), &log, None).args(options).arg(slashed(&source)).arg(&copy);
        program.time_limit(LONG).run().expect(0)
    };
    run(&["-a", "--inplace"]);
    assert_eq!(written(&log), 64 * BLOCK as u64, "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(fs::metadata(copy.join("f")).unwrap().ino(), was);
    data::assert_same(&source.join("f"), &copy.join("f"));
    run(&["-aI", "--inplace"]);
    assert_eq!(written(&log), 0, "all of it came again, and nothing differs");
    write(&source.join("f"), &old, 12);
    run(&["-a"]);
    assert_ne!(fs::metadata(copy.join("f")).unwrap().ino(), was);
}

/// S86, threat model: what has the content of a program that is to get setuid becomes another file, within a host and over ssh, with `-c` and without: who has it open would write to that.
#[test]
fn powers_come_with_new_files() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    for (way, len) in
        [(Way::Here, 300_000), (Way::Up(b), 100), (Way::Up(b), 300_000), (Way::Down(b), 300_000)]
    {
        let program = data::random_bytes(len, 21);
        for options in [&["-a"][..], &["-ac"], &["-a", "--inplace"], &["-ac", "--inplace"], &["-ab"]] {
            let what = format!("{way:?} {len} {options:?}");
            for (top, mode) in [(&source, 0o4755), (&copy, 0o775)] {
                let _ = fs::remove_file(top.join("f"));
                write(&top.join("f"), &program, 0);
                fs::set_permissions(top.join("f"), fs::Permissions::from_mode(mode)).unwrap();
            }
            let held = fs::File::options().read(true).write(true).open(copy.join("f")).unwrap();
            let was = held.metadata().unwrap().ino();
            let outcome = sync(a, &case(options), &["-i"], &way, &source, &copy).expect(0);
            held.write_all_at(b"evil", 0).unwrap();
            let now = fs::metadata(copy.join("f")).unwrap();
            assert!(now.ino() != was && now.mode() & 0o7777 == 0o4755, "{what} {outcome}");
            assert!(fs::read(copy.join("f")).unwrap() == program, "{what}");
            let again = sync(a, &case(options), &["-i"], &way, &source, &copy).expect(0);
            assert_eq!(again.stdout_text(), "", "{what}");
            assert_eq!(fs::metadata(copy.join("f")).unwrap().ino(), now.ino(), "{what}");
        }
        let _ = fs::remove_file(copy.join("f~"));
    }
}

fn came(outcome: &Outcome) -> u64 {
    let text = outcome.stdout_text();
    let line = text.lines().find_map(|line| line.strip_prefix("Total bytes of content transferred: "));
    line.unwrap().parse().unwrap()
}

/// S86: killed at its hundredth write to the file, a run leaves that half old and half new, and all of what came beside it. The same command again brings it to its
/// end, also where `-u` or `--size-only` would let the file be, keeps the backup of the first, and over a slow line asks for next to nothing.
#[test]
fn killed_in_the_middle_the_next_run_ends_it() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    // Every other block differs, so that each is a write of its own.
    let old = data::random_bytes(2048 * BLOCK, 5);
    let new = changed(&old, 2);
    for (number, (is_far, more)) in
        [(false, &["-b"][..]), (false, &["-u"]), (false, &["--size-only"]), (true, &["-b"])]
            .into_iter()
            .enumerate()
    {
        let what = format!("{is_far} {more:?}");
        let (source, copy) = (a.directory(&format!("source{number}")), b.directory(&format!("copy{number}")));
        let log = b.file(format!("log{number}"));
        write(&copy.join("f"), &old, 0);
        write(&source.join("f"), &new, 9);
        let was = fs::metadata(copy.join("f")).unwrap().ino();
        let options =
            [&["-a", "--inplace", "--stats"][..], if more == ["--size-only"] { &[] } else { more }].concat();
        let far = |program: dray_e2e::Program<'_>| {
            let words: Vec<String> = b.ssh_options().iter().map(|word| format!("'{word}'")).collect();
            program
                .arg("-e")
                .arg(format!("ssh {}", words.join(" ")))
                .arg(slashed(&source))
                .arg(b.remote(&copy))
                .time_limit(LONG)
                .run()
        };
        if is_far {
            let script = b.file("their-dray");
            let trace = format!(
                "strace -f -qq -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=100 -P {} -o {}",
                copy.join("f").display(),
                log.display()
            );
            fs::write(&script, format!("#!/bin/sh\nexec {trace} {} \"$@\"\n", gate::dray_binary().display()))
                .unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            let killed = far(a.dray().arg("sync").args(&options).arg("--remote-dray").arg(&script));
            assert_ne!(killed.code(), Some(0), "{what}: {killed}");
            await_no_dray(b, LONG);
        } else {
            let killed =
                traced(a, &copy.join("f"), &log, Some(100)).args(&options).arg(slashed(&source)).arg(&copy);
            assert_ne!(killed.time_limit(LONG).run().code(), Some(0), "{what}");
        }
        let half = fs::read(copy.join("f")).unwrap();
        assert!(half != old && half != new, "{what}: half of it was written");
        assert!(fs::read(left(&copy)).unwrap() == new, "{what}: all of it waits");
        let options = [&["-a", "--inplace", "--stats"][..], more].concat();
        let again = if is_far {
            far(a.dray().arg("sync").args(&options))
        } else {
            a.dray().arg("sync").args(&options).arg(slashed(&source)).arg(&copy).time_limit(LONG).run()
        };
        let again = again.expect(0);
        if is_far {
            assert!(came(&again) < 1 << 20, "{what}: {again}");
        }
        assert!(fs::read(copy.join("f")).unwrap() == new, "{what}");
        assert_eq!(fs::metadata(copy.join("f")).unwrap().ino(), was, "{what}");
        let expected: &[&str] = if more == ["-b"] { &["f", "f~", "f~~"] } else { &["f"] };
        assert_eq!(data::names(&copy), expected, "{what}");
        if more == ["-b"] {
            assert!(
                fs::read(copy.join("f~")).unwrap() == old,
                "{what}: the backup is what was there before the first run"
            );
            assert!(
                fs::read(copy.join("f~~")).unwrap() == half,
                "{what}: and what was half there is kept, too"
            );
        }
    }
}

/// Issue 7 "what rsync does": a file that its owner may not write to is changed, a program that runs is not, and where nothing can be made beside a file, which rsync
/// does not need, that fails and says so.
#[test]
fn who_may_not_write_is_told_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let program = a.file("dray");
    fs::copy(gate::dray_binary(), &program).unwrap();
    let place = a.directory("place");
    chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let source = place.join("source");
    write(&source.join("f"), b"new bytes", 0);
    let twins = |mode, owner, top_owner| {
        let both = ["ours", "theirs"].map(|name| place.join(name));
        for top in &both {
            let _ = fs::remove_dir_all(top);
            fs::create_dir(top).unwrap();
            fs::copy("/bin/sleep", top.join("f")).unwrap();
            fs::set_permissions(top.join("f"), fs::Permissions::from_mode(mode)).unwrap();
            chown(top.join("f"), Some(owner), Some(owner)).unwrap();
            chown(top, Some(top_owner), Some(top_owner)).unwrap();
        }
        both
    };
    let as_user = |user: &[&str], top: &Path, command: &[&OsString]| {
        let mut words = user.iter().map(OsString::from).chain(command.iter().map(|word| (*word).clone()));
        let program = a.program(words.next().unwrap()).args(words);
        program.args(["-rt", "--inplace"]).arg(slashed(&source)).arg(top).run()
    };
    let user = [
        "setpriv".to_owned(),
        format!("--reuid={NOBODY}"),
        format!("--regid={NOBODY}"),
        "--clear-groups".to_owned(),
    ];
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    let (dray, sub, rsync) = (OsString::from(&program), OsString::from("sync"), OsString::from("rsync"));
    for (mode, owner) in [(0o444, NOBODY), (0o200, NOBODY), (0o666, 0)] {
        let [ours, theirs] = twins(mode, owner, NOBODY);
        let was = [&ours, &theirs].map(|top| fs::metadata(top.join("f")).unwrap().ino());
        let dray = as_user(&user, &ours, &[&dray, &sub]);
        let rsync = as_user(&user, &theirs, &[&rsync]);
        // Whose file it is decides whether its time may be set.
        if owner == NOBODY {
            assert_eq!((dray.code(), rsync.code()), (Some(0), Some(0)), "{mode:o} {dray} {rsync}");
        }
        for (top, was) in [&ours, &theirs].into_iter().zip(was) {
            assert_eq!(fs::read(top.join("f")).unwrap(), b"new bytes", "{mode:o}");
            assert_eq!(fs::metadata(top.join("f")).unwrap().ino(), was);
        }
        // rsync gives other bits to what it could not read.
        assert_eq!(fs::metadata(ours.join("f")).unwrap().mode() & 0o7777, mode);
    }
    // A program that runs, for root as well.
    let [ours, theirs] = twins(0o755, 0, 0);
    let before = fs::read(ours.join("f")).unwrap();
    for (top, command, code) in [(&ours, &[&dray, &sub][..], 8), (&theirs, &[&rsync], 23)] {
        let running = a.program(top.join("f")).arg("100").start();
        // Until then it is a file like others.
        running.wait_until(false, || !a.pids_of("f").is_empty());
        let outcome = as_user(&["env"], top, command);
        assert_eq!(outcome.code(), Some(code), "{outcome}");
        running.kill();
        assert_eq!(fs::read(top.join("f")).unwrap(), before);
        assert_eq!(data::names(top), ["f"]);
    }
    // Where nothing can be made beside the file.
    let [ours, theirs] = twins(0o666, NOBODY, 0);
    // The time of the directory is not rsync's to set.
    as_user(&user, &theirs, &[&rsync]);
    assert_eq!(fs::read(theirs.join("f")).unwrap(), b"new bytes");
    let refused = as_user(&user, &ours, &[&dray, &sub]);
    assert_eq!(refused.code(), Some(8), "{refused}");
    assert_eq!(fs::read(ours.join("f")).unwrap(), before);
}

/// What does not go together with it is refused before anything is done.
#[test]
fn what_does_not_go_together_is_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    write(&source.join("f"), b"f", 0);
    for (options, said) in [
        (&["-a", "--delete", "--atomic", "--inplace"][..], "--atomic does not go with --inplace"),
        (&["-a", "--inplace", "--partial-dir=x"], "--partial-dir"),
    ] {
        let refused = a.dray().arg("sync").args(options).arg(slashed(&source)).arg(&copy).run();
        assert_eq!(refused.code(), Some(2), "{refused}");
        assert!(refused.stderr_text().contains(said), "{refused}");
    }
    assert_eq!(data::names(&copy), Vec::<OsString>::new());
}

/// Issue 7 "--inplace", for containers: a file that is mounted by itself is changed where it lies; it cannot be replaced.
#[test]
fn a_file_that_is_mounted_is_changed() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, outside) = (a.directory("source"), a.directory("copy"), a.file("outside"));
    write(&source.join("f"), b"new bytes", 0);
    write(&copy.join("f"), b"below", -100);
    let script = r#"mount --bind "$1" "$2/f" && exec "$0" sync -a $4 "$3/" "$2""#;
    for (option, code, text) in [("", 8, &b"old"[..]), ("--inplace", 0, b"new bytes")] {
        write(&outside, b"old", -100);
        let program = a.program("unshare").args(["-m", "sh", "-c", script]).arg(gate::dray_binary());
        let outcome = program.arg(&outside).arg(&copy).arg(&source).arg(option).run();
        assert_eq!(outcome.code(), Some(code), "{option} {outcome}");
        assert_eq!(fs::read(&outside).unwrap(), text, "{option}");
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"below", "{option}");
        assert_eq!(data::names(&copy), ["f"]);
    }
}

/// S86: a file of which the first byte is written becomes the new one, also if the connection is cut in that moment, or the run is interrupted.
#[test]
fn what_is_begun_comes_to_its_end_without_the_sender() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    // Several pieces, between which a stop could be heard.
    let old = data::random_bytes(512 * BLOCK, 11);
    let new = changed(&old, 16);
    let (source, script) = (a.directory("source"), b.file("their-dray"));
    write(&source.join("f"), &new, 9);
    for is_far in [true, false] {
        let copy = b.directory(if is_far { "far" } else { "here" });
        write(&copy.join("f"), &old, 0);
        let was = fs::metadata(copy.join("f")).unwrap().ino();
        // Its 32 writes take some seconds.
        let trace = format!(
            "strace -f -qq -o /dev/null -e trace=pwrite64 -e inject=pwrite64:delay_enter=100000 -P {}",
            copy.join("f").display()
        );
        let text = format!("#!/bin/sh\nexec {trace} {} \"$@\"\n", gate::dray_binary().display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let way = if is_far { Way::Up(b) } else { Way::Here };
        let program = if is_far { a.dray() } else { a.program(&script) };
        let program = program.args(["sync", "-a", "--inplace"]).time_limit(LONG);
        let program = if is_far { program.arg("--remote-dray").arg(&script) } else { program };
        let running = going(program, &way, &slashed(&source), &copy).start();
        running.wait_until(false, || fs::read(copy.join("f")).unwrap() != old);
        let outcome = if is_far {
            running.kill()
        } else {
            for pid in a.pids_of("dray") {
                kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM).unwrap();
            }
            running.wait()
        };
        let now = fs::read(copy.join("f")).unwrap();
        await_no_dray(b, LONG);
        assert!(!is_far || now != new, "it was cut off before the end");
        assert!(fs::read(copy.join("f")).unwrap() == new, "{is_far} {outcome}");
        assert_eq!(
            (data::names(&copy), fs::metadata(copy.join("f")).unwrap().ino()),
            (vec!["f".into()], was)
        );
    }
}

/// What a run that was killed may leave of `f`: the old bytes, the new ones, or something else with the new ones beside it.
fn assert_not_lost(copy: &Path, old: &[u8], new: &[u8], what: &str) {
    let found = fs::read(copy.join("f")).unwrap();
    let waits = || {
        let ours =
            data::names(copy).into_iter().filter(|name| data::is_ours(name)).map(|name| copy.join(name));
        ours.into_iter().any(|path| fs::read(path).unwrap() == new)
    };
    assert!(found == old || found == new || waits(), "{what}: {:?}", data::names(copy));
}

/// S86: whichever step a run is killed at, it leaves the old file, or the new one, or all of that beside it; and then the same command brings the new one, so does one without the option, and
/// one that passes the file by leaves what the same command needs. The backup is what was there before the first of them that kept one, or what somebody made of the file in between; what is
/// half there takes the place of none, and is kept, too.
#[test]
fn a_kill_at_every_step_is_ended_by_the_next_run() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (old, source) = (data::random_bytes(17 * BLOCK, 12), a.directory("source"));
    let new = changed(&old[..16 * BLOCK], 2);
    write(&source.join("f"), &new, 9);
    fs::set_permissions(source.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    let same = ["-ab", "--delete", "--inplace"];
    let calls = [
        "linkat",
        "renameat",
        "renameat2",
        "fchown",
        "fchmod",
        "utimensat",
        "ftruncate",
        "unlinkat",
        "pread64",
        "pwrite64",
    ];
    let (mut were_half, mut were_old) = (0, 0);
    for (number, (first, next, works, calls)) in [
        (&same[..], &same[..], false, &calls[..]),
        (&same, &["-ab", "--delete"], false, &calls),
        (&same, &["-ab", "--delete", "--inplace", "--max-size=1K"], false, &calls),
        (&["-a", "--inplace"], &same, false, &["renameat", "renameat2", "pread64", "pwrite64"]),
        // Somebody works on what was left as it was.
        (&["-a", "--inplace"], &["-ab", "--delete"], true, &["renameat", "renameat2", "pread64", "pwrite64"]),
        (&same, &same, true, &["renameat", "renameat2", "pread64"]),
    ]
    .into_iter()
    .enumerate()
    {
        for &call in calls {
            let is_through = (1..=40).any(|step| {
                let what = format!("{first:?}, {call} {step}, then {next:?}, {works}");
                let copy = a.directory(&format!("copy {number} {call} {step}"));
                write(&copy.join("f"), &old, 0);
                chown(copy.join("f"), Some(NOBODY), Some(NOBODY)).unwrap();
                let inject = format!("inject={call}:signal=KILL:when={step}");
                let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e"]);
                let strace = strace.arg(format!("trace={call}")).arg("-e").arg(inject);
                let run = |program: dray_e2e::Program<'_>, options: &[&str]| {
                    program.arg("sync").args(options).arg(slashed(&source)).arg(&copy).time_limit(LONG).run()
                };
                let outcome = run(strace.arg(gate::dray_binary()), first);
                assert_not_lost(&copy, &old, &new, &what);
                let found = fs::read(copy.join("f")).unwrap();
                let is_half = found != old && found != new;
                were_half += u32::from(is_half);
                let mut kept = old.clone();
                if works && found == old {
                    were_old += 1;
                    kept[5000] ^= 1;
                    write(&copy.join("f"), &kept, 1);
                }
                run(a.dray(), next).expect(0);
                if next.contains(&"--max-size=1K") {
                    assert_not_lost(&copy, &old, &new, &what);
                    run(a.dray(), &same).expect(0);
                }
                assert!(fs::read(copy.join("f")).unwrap() == new, "{what}");
                let names = data::names(&copy);
                let has = |content: &[u8], name: &str| {
                    let path = copy.join(name);
                    path.exists() && fs::read(path).unwrap() == content
                };
                assert!(
                    names.iter().all(|name| ["f", "f~", "f~~"].iter().any(|it| name == it)),
                    "{what}: {names:?}"
                );
                if !works || found == old {
                    assert!(
                        is_half || has(&kept, "f~") || has(&kept, "f~~") || found == new,
                        "{what}: {names:?}"
                    );
                }
                // Before the first byte nothing says that it is half there.
                assert!(call != "pread64" || !works || found != old || has(&kept, "f~"), "{what}: {names:?}");
                if first == same && !works {
                    assert!(has(&old, "f~"), "{what}");
                }
                assert!(!is_half || has(&found, "f~~"), "{what}: {names:?}");
                assert_eq!(fs::metadata(copy.join("f")).unwrap().mode() & 0o7777, 0o600, "{what}");
                outcome.code() == Some(0)
            });
            assert!(is_through, "a run has more than 40 times {call}");
        }
    }
    assert!(were_half > 12 && were_old > 6, "{were_half} {were_old}");
}

/// S88: whichever step a run is killed at, what another user said in an attribute is gone before the file is nobody else's to write to, which would have it believed.
#[test]
fn what_others_said_is_gone_before_it_would_be_believed() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const ATTRIBUTE: &str = "user.rsync.%stat";
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    write(&source.join("f"), b"new bytes", 0);
    fs::set_permissions(source.join("f"), fs::Permissions::from_mode(0o755)).unwrap();
    for (number, (content, owner, options)) in [
        (&b"new bytes"[..], 0, &["-a", "--fake-super=dst"][..]),
        (b"new bytes", NOBODY, &["-a", "--fake-super=dst"]),
        (b"old", 0, &["-a", "--fake-super=dst", "--inplace"]),
        (b"old", NOBODY, &["-a", "--fake-super=dst", "--inplace"]),
    ]
    .into_iter()
    .enumerate()
    {
        for call in ["fchmod", "chmod", "fchown", "fchownat", "fsetxattr", "fremovexattr", "pwrite64"] {
            let is_through = (1..=40).any(|step| {
                let what = format!("{options:?}, of {owner}, {call} {step}");
                let copy = a.directory(&format!("copy {number} {call} {step}"));
                let f = copy.join("f");
                write(&f, content, if content == b"old" { -100 } else { 0 });
                fs::set_permissions(&f, fs::Permissions::from_mode(if owner == 0 { 0o777 } else { 0o600 }))
                    .unwrap();
                setxattr(&f, ATTRIBUTE, b"104755 0,0 0:0", XattrFlags::empty()).unwrap();
                chown(&f, Some(owner), Some(owner)).unwrap();
                let inject = format!("inject={call}:signal=KILL:when={step}");
                let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e"]);
                let strace =
                    strace.arg(format!("trace={call}")).arg("-e").arg(inject).arg(gate::dray_binary());
                let outcome =
                    strace.arg("sync").args(options).arg(slashed(&source)).arg(&copy).time_limit(LONG).run();
                let found = fs::metadata(&f).unwrap();
                let is_believed = found.uid() == 0 && found.mode() & 0o022 == 0;
                let mut value = [0_u8; 64];
                let len = getxattr(&f, ATTRIBUTE, &mut value[..]).unwrap_or(0);
                assert!(!is_believed || !value[..len].starts_with(b"104755"), "{what}");
                let is_whole = outcome.code() == Some(0);
                assert!(
                    !is_whole || (is_believed && fs::read(&f).unwrap() == b"new bytes"),
                    "{what} {outcome}"
                );
                is_whole
            });
            assert!(is_through, "a run has more than 40 times {call}");
        }
    }
}

/// Runs a copy of the program that everybody may read as somebody without rights.
fn as_nobody<'a>(host: &'a Host, before: &[&str]) -> dray_e2e::Program<'a> {
    let program = host.file("dray");
    if !program.exists() {
        fs::copy(gate::dray_binary(), &program).unwrap();
    }
    let user = format!("--reuid={NOBODY}");
    let group = format!("--regid={NOBODY}");
    let words = [before, &["setpriv", user.as_str(), group.as_str(), "--clear-groups"][..]].concat();
    host.program(words[0]).args(&words[1..]).arg(program).arg("sync")
}

/// A directory with a source and a destination of somebody without rights.
fn of_nobody(host: &Host) -> (PathBuf, PathBuf) {
    let place = host.directory("place");
    let both = (place.join("source"), place.join("copy"));
    for path in [&both.0, &both.1] {
        fs::create_dir(path).unwrap();
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    both
}

/// S86: where this user may not give a file the bits that it is to have, what comes is not written to it if others could open it then; without the option it is replaced.
#[test]
fn what_others_could_open_is_not_written() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = of_nobody(a);
    for (mode, is_written) in [(0o600, false), (0o666, true)] {
        write(&source.join("f"), b"new bytes", 0);
        write(&copy.join("f"), b"old", -100);
        fs::set_permissions(source.join("f"), fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(copy.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
        chown(source.join("f"), Some(NOBODY), Some(NOBODY)).unwrap();
        chown(copy.join("f"), Some(0), Some(NOBODY)).unwrap();
        let outcome = as_nobody(a, &[]).args(["-a", "--inplace"]).arg(slashed(&source)).arg(&copy).run();
        // The time of somebody else's file is not this user's to set either.
        assert_eq!(outcome.code(), Some(8), "{outcome}");
        let found = fs::metadata(copy.join("f")).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o666));
        let text = fs::read(copy.join("f")).unwrap();
        assert_eq!(text, if is_written { &b"new bytes"[..] } else { b"old" });
        assert_eq!(data::unfinished(&copy), Vec::<OsString>::new(), "{outcome}");
        if !is_written {
            assert!(outcome.stderr_text().contains("others could open what comes"), "{outcome}");
            as_nobody(a, &[]).arg("-a").arg(slashed(&source)).arg(&copy).run().expect(0);
            let found = fs::metadata(copy.join("f")).unwrap();
            assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o600));
        }
    }
}

/// S86: with `--fsync` a file that the disk refused is written as a whole by the next run, whatever the system reads of it meanwhile.
#[test]
fn what_the_disk_refused_is_written_again() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, log) = (a.directory("source"), a.directory("copy"), a.file("log"));
    let old = data::random_bytes(64 * BLOCK, 13);
    let new = changed(&old, 8);
    write(&copy.join("f"), &old, 0);
    write(&source.join("f"), &new, 9);
    let options = ["-a", "--inplace", "--fsync"];
    // What it refuses before the first byte touches nothing. The first one asks what it refused of the older file before.
    for step in [1, 2, 3] {
        let early = a.program("strace").args(["-f", "-qq", "-e", "trace=fsync", "-o", "/dev/null", "-e"]);
        let early = early.arg(format!("inject=fsync:error=EIO:when={step}")).arg(gate::dray_binary());
        early.arg("sync").args(options).arg(slashed(&source)).arg(&copy).run().expect(8);
        assert!(fs::read(copy.join("f")).unwrap() == old, "{step}");
        assert_eq!(data::names(&copy), ["f"], "{step}");
    }
    let refusing = a.program("strace").args(["-f", "-qq", "-e", "trace=fsync"]);
    let refusing =
        refusing.args(["-e", "inject=fsync:error=EIO:when=2+", "-P"]).arg(copy.join("f")).arg("-o").arg(&log);
    let refusing = refusing.arg(gate::dray_binary()).arg("sync").args(options);
    refusing.arg(slashed(&source)).arg(&copy).run().expect(8);
    assert!(fs::read(copy.join("f")).unwrap() == new, "this is what the system reads");
    assert!(fs::read(left(&copy)).unwrap() == new);
    let again = traced(a, &copy.join("f"), &log, None).args(options).arg(slashed(&source)).arg(&copy);
    again.time_limit(LONG).run().expect(0);
    assert_eq!(written(&log), 64 * BLOCK as u64, "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(data::names(&copy), ["f"]);
    data::assert_same(&source.join("f"), &copy.join("f"));
}

/// What strace tells the program that the file system is: NFS, which tells late that it had no room.
const AS_NFS: &str = "inject=fstatfs:poke_exit=@arg2=6969000000000000";

/// S86 "no byte that is not proven": what a server did not take, which it says when it is asked, is not written over the file; the same command ends it.
#[test]
fn what_a_server_did_not_take_is_not_written() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    let old = data::random_bytes(64 * BLOCK, 14);
    let new = changed(&old, 8);
    write(&copy.join("f"), &old, 0);
    write(&source.join("f"), &new, 9);
    let was = fs::metadata(copy.join("f")).unwrap().ino();
    let run = |options: &[&str], inject: Option<&str>| {
        let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fstatfs"]);
        let strace = strace.arg("-e").arg(AS_NFS);
        let strace = inject.into_iter().fold(strace, |strace, it| strace.arg("-e").arg(it));
        let strace = strace.arg(gate::dray_binary()).arg("sync").args(options);
        strace.arg(slashed(&source)).arg(&copy).time_limit(LONG).run()
    };
    let refused = run(&["-a", "--inplace"], Some("inject=fsync:error=ENOSPC:when=1"));
    assert_eq!(refused.code(), Some(7), "{refused}");
    assert!(fs::read(copy.join("f")).unwrap() == old, "{refused}");
    assert!(refused.stderr_text().contains("to its server"), "{refused}");
    assert_eq!(data::names(&copy), ["f"], "{refused}");
    run(&["-a", "--inplace"], None).expect(0);
    assert!(fs::read(copy.join("f")).unwrap() == new);
    assert_eq!(fs::metadata(copy.join("f")).unwrap().ino(), was);
}

/// S86: what is kept as a copy is on disk, or with its server, before what it is a copy of is written to or replaced: where that fails the file stays, and no part of a copy is left.
#[test]
fn a_copy_is_durable_before_its_original_goes() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, kept) = (a.directory("source"), a.directory("copy"), a.directory("kept"));
    let directory = format!("--backup-dir={}", kept.display());
    let aside = directory.as_str();
    let old = data::random_bytes(64 * BLOCK, 15);
    write(&source.join("d/f"), &changed(&old, 8), 9);
    // As on another file system, to which nothing is linked.
    let far = ["-e", "inject=linkat:error=EXDEV:when=1"];
    for (options, more, fsyncs) in [
        // The first is that of the new file.
        (&["-ab", aside, "--fsync"][..], &far[..], &[1, 2, 3, 4][..]),
        (&["-ab", aside], &[far[0], far[1], "-e", AS_NFS], &[1]),
        // Here the second: the first one asks for what was there.
        (&["-ab", "--inplace", aside, "--fsync"], &[], &[1, 2, 3, 4]),
        (&["-ab", "--inplace"], &["-e", AS_NFS], &[2]),
    ] {
        for fsync in fsyncs {
            let what = format!("{options:?} {fsync}");
            let _ = fs::remove_dir_all(kept.join("d"));
            write(&copy.join("d/f"), &old, 0);
            let trace = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fstatfs,linkat", "-e"];
            let strace = a.program("strace").args(trace).arg(format!("inject=fsync:error=EIO:when={fsync}"));
            let strace = strace.args(more).arg(gate::dray_binary()).arg("sync").args(options);
            let failed = strace.arg(slashed(&source)).arg(&copy).time_limit(LONG).run();
            assert_eq!(failed.code(), Some(8), "{what} {failed}");
            let said = failed.stderr_text();
            let told = ["of the backups", "to keep it", "to its disk", "on its disk"];
            assert!(told.iter().any(|it| said.contains(it)), "{what} {failed}");
            assert!(fs::read(copy.join("d/f")).unwrap() == old, "{what} {failed}");
            for top in [&copy, &kept].map(|top| top.join("d")).iter().filter(|top| top.exists()) {
                assert_eq!(data::unfinished(top), Vec::<OsString>::new(), "{what} {failed}");
            }
            a.dray().arg("sync").args(options).arg(slashed(&source)).arg(&copy).run().expect(0);
            let backup = if options.contains(&aside) { kept.join("d/f") } else { copy.join("d/f~") };
            assert!(fs::read(&backup).unwrap() == old, "{what}");
            data::assert_same(&source.join("d/f"), &copy.join("d/f"));
        }
    }
}

/// Errors have three parts: a file that cannot be read where it is compared, that is immutable, whose leftovers cannot be locked, or are a directory, and of which no backup can be read, is told
/// as what it is, with what to do; nothing of it is touched.
#[test]
fn what_keeps_a_file_from_being_changed_is_told() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, log) = (a.directory("source"), a.file("log"));
    let old = data::random_bytes(64 * BLOCK, 16);
    let new = changed(&old, 2);
    write(&source.join("f"), &new, 9);
    let strace = |inject: &str, path: &Path| {
        let call = inject.split_once(':').unwrap().0;
        let strace =
            a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
        let strace = strace.arg("-e").arg(format!("inject={inject}"));
        strace.arg("-P").arg(path).arg(gate::dray_binary()).arg("sync").args(["-a", "--inplace"])
    };
    let going = |program: dray_e2e::Program<'_>, copy: &Path, said: &[&str]| {
        let was = fs::read(copy.join("f")).unwrap();
        let failed = program.arg(slashed(&source)).arg(copy).time_limit(LONG).run();
        assert_eq!(failed.code(), Some(8), "{said:?} {failed}");
        said.iter().for_each(|said| assert!(failed.stderr_text().contains(said), "{said} {failed}"));
        assert!(fs::read(copy.join("f")).unwrap() == was, "{said:?}");
    };
    let copy = a.directory("unread");
    write(&copy.join("f"), &old, 0);
    going(
        strace("pread64:error=EIO", &copy.join("f")),
        &copy,
        &["read the file that is there, to compare it", "leave out --inplace"],
    );
    // What a run left that was killed.
    traced(a, &copy.join("f"), &log, Some(10))
        .args(["-a", "--inplace"])
        .arg(slashed(&source))
        .arg(&copy)
        .run();
    let left = left(&copy);
    going(strace("flock:error=ENOLCK", &left), &copy, &["lock what was left", "has no locks"]);
    fs::remove_file(&left).unwrap();
    fs::create_dir(&left).unwrap();
    let dray = || a.dray().args(["sync", "-a", "--inplace"]);
    going(dray(), &copy, &["take the place of", left.file_name().unwrap().to_str().unwrap(), "remove it"]);
    let copy = a.directory("immutable");
    write(&copy.join("f"), &old, 0);
    if a.program("chattr").arg("+i").arg(copy.join("f")).run().code() == Some(0) {
        let outcome = dray().arg(slashed(&source)).arg(&copy).run();
        a.program("chattr").arg("-i").arg(copy.join("f")).run().expect(0);
        assert!(outcome.code() == Some(8) && outcome.stderr_text().contains("chattr -i"), "{outcome}");
    }
    let (source, copy) = of_nobody(a);
    write(&source.join("f"), b"new bytes", 0);
    write(&copy.join("f"), b"old", -100);
    fs::set_permissions(copy.join("f"), fs::Permissions::from_mode(0o200)).unwrap();
    chown(copy.join("f"), Some(NOBODY), Some(NOBODY)).unwrap();
    let unread = as_nobody(a, &[]).args(["-rtb", "--inplace"]).arg(slashed(&source)).arg(&copy).run();
    assert!(unread.code() == Some(8) && unread.stderr_text().contains("let this user read it"), "{unread}");
}

/// S86: bits that were widened to open a file come back, or that is told and nothing is written.
#[test]
fn bits_come_back_or_it_is_told() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = of_nobody(a);
    write(&source.join("f"), b"new bytes", 0);
    let mut told = 0;
    let is_through = (1..=5).any(|step| {
        let _ = fs::remove_file(copy.join("f"));
        write(&copy.join("f"), b"old", -100);
        fs::set_permissions(copy.join("f"), fs::Permissions::from_mode(0o444)).unwrap();
        chown(copy.join("f"), Some(NOBODY), Some(NOBODY)).unwrap();
        let inject = format!("inject=chmod,fchmodat:error=EIO:when={step}");
        let strace =
            ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=chmod,fchmodat", "-e", inject.as_str()];
        let outcome = as_nobody(a, &strace).args(["-rt", "--inplace"]).arg(slashed(&source)).arg(&copy).run();
        let mode = fs::metadata(copy.join("f")).unwrap().mode() & 0o7777;
        let text = fs::read(copy.join("f")).unwrap();
        match outcome.code() {
            Some(0) => assert_eq!((mode, &text[..]), (0o444, &b"new bytes"[..]), "{step}"),
            code => assert_eq!((code, &text[..]), (Some(8), &b"old"[..]), "{step} {outcome}"),
        }
        if mode != 0o444 {
            assert!(outcome.stderr_text().contains("its bits 444 back"), "{step} {outcome}");
            told += 1;
        }
        assert_eq!(data::names(&copy), ["f"]);
        outcome.code() == Some(0)
    });
    assert!(is_through && told == 1, "{told}");
}

/// Issue 7 "--inplace", for containers: a file of the lower layer of an overlay is changed: it is the same file after it was copied up, be it born again.
#[test]
fn a_file_of_a_lower_layer_is_changed() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, place) = (a.directory("source"), a.directory("place"));
    write(&source.join("f"), b"new bytes", 0);
    let script = r#"
        mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir lower upper work merged && printf old > lower/f &&
        mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged &&
        "$0" sync -ab --inplace "$2/" merged >&2 && ls -A upper && cat upper/f upper/f~
    "#;
    let program = a.program("unshare").args(["-m", "sh", "-c", script]).arg(gate::dray_binary());
    let outcome = program.arg(&place).arg(&source).run().expect(0);
    assert_eq!(outcome.stdout_text(), "f\nf~\nnew bytesold");
}
