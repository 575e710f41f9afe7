//! `dray sync` beside rsync: the same options on twins of one tree, and both results and both accounts are the same. Then what
//! must never happen: a deletion because of what could not be read, or outside of the destination.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use dray_e2e::actions::await_no_dray;
use dray_e2e::data::{self, MIB};
use dray_e2e::process::Outcome;
use dray_e2e::{Host, Lab, gate};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

const LONG: Duration = Duration::from_secs(300);

/// Whole seconds, which is what rsync compares.
fn time(seconds: i64) -> SystemTime {
    let begin = 1_700_000_000_i64;
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(begin + seconds).unwrap())
}

fn write(path: &Path, content: &[u8], seconds: i64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::File::open(path).unwrap().set_modified(time(seconds)).unwrap();
}

/// A source, and a destination in which of everything something is older, newer, of another kind, too much or missing.
/// Where that is deleted, what makes way is full.
fn source_and_destination(source: &Path, copy: &Path, deletes: bool) {
    for (name, content, seconds) in [
        ("same", "same", 0),
        ("changed", "new bytes", 5),
        ("touched", "touched", 9),
        ("older", "from the source", -100),
        ("bits", "bits", 0),
        ("new", "new", 0),
        ("quiet", "AAAA", 0),
        ("sub/a.c", "c", 0),
        ("sub/a.o", "o", 0),
        ("sub/deep/b.c", "c2", 0),
        ("sub/deep/b.o", "o2", 0),
        ("build/x.o", "x", 0),
        ("only/f", "f", 0),
        ("becomes-file", "a file now", 0),
        ("becomes-dir/inner", "inner", 0),
        ("hard", "hard", 0),
    ] {
        write(&source.join(name), content.as_bytes(), seconds);
    }
    fs::set_permissions(source.join("bits"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(source.join("hard"), source.join("hard-again")).unwrap();
    fs::create_dir(source.join("empty")).unwrap();
    symlink("new", source.join("link")).unwrap();
    symlink("other", source.join("relink")).unwrap();
    std::os::unix::fs::chown(source.join("new"), Some(1234), Some(4321)).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (name, content, seconds) in [
        ("same", "same", 0),
        ("changed", "old", 0),
        ("touched", "touched", 0),
        ("older", "newer here", 100),
        ("bits", "bits", 0),
        ("quiet", "BBBB", 0),
        ("sub/a.c", "c", 0),
        ("sub/extra.c", "e", 0),
        ("sub/extra.o", "e", 0),
        ("build/x.o", "other", 0),
        ("build/y.o", "y", 0),
        ("gone/one/f", "1", 0),
        ("gone/two.o", "2", 0),
        ("zfile", "z", 0),
        ("becomes-dir", "was a file", 0),
    ] {
        write(&copy.join(name), content.as_bytes(), seconds);
    }
    fs::create_dir(copy.join("becomes-file")).unwrap();
    if deletes {
        write(&copy.join("becomes-file/inner/f"), b"in the way", 0);
    }
    symlink("old", copy.join("relink")).unwrap();
    symlink("/etc", copy.join("away")).unwrap();
    set_times(source, 0);
    set_times(copy, -50);
}

/// Of directories and links, which change as something is put into them, times that differ.
fn set_times(root: &Path, seconds: i64) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if kind.is_dir() || kind.is_symlink() {
            let time = Timespec { tv_sec: 1_700_000_000 + seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

/// What a command said of entries, without what rsync says besides.
fn told(outcome: &Outcome) -> BTreeSet<String> {
    let is_besides = |line: &str| {
        let words =
            ["created directory", "skipping non-regular", "cannot delete non-empty", "Deletions stopped"];
        line.is_empty() || words.iter().any(|word| line.starts_with(word))
    };
    let line = |line: &str| line.replacen('<', ">", 1);
    outcome.stdout_text().lines().filter(|line| !is_besides(line)).map(line).collect()
}

/// What both are told in one case: options, the source with or without a slash, and whether the destination is there.
struct Case {
    options: &'static [&'static str],
    is_slashed: bool,
    is_there: bool,
    /// rsync's account of a dry run is not what it does, or says more.
    skips_dry_account: bool,
}

const fn case(options: &'static [&'static str]) -> Case {
    Case { options, is_slashed: true, is_there: true, skips_dry_account: false }
}

/// The table: whoever adds an option adds a line.
fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = [
        &["-a"][..],
        &["-r"],
        &["-rl"],
        &["-rlt"],
        &["-rt"],
        &["-rp"],
        &["-rlptgoD"],
        &["-rlptgoD", "--delete"],
        &["-a", "--delete"],
        &["-a", "--del"],
        &["-aHAX", "--delete"],
        &["-aHAXS"],
        &["-au"],
        &["-au", "--delete"],
        &["-a", "--existing"],
        &["-a", "--existing", "--delete"],
        &["-a", "--size-only"],
        &["-aI"],
        &["-aW"],
        &["-az"],
        &["-a", "--exclude=*.o"],
        &["-a", "--exclude=*.o", "--delete"],
        &["-a", "--exclude=*.o", "--delete-excluded"],
        &["-a", "--exclude=/build", "--delete"],
        &["-a", "--exclude=/sub/deep/", "--delete"],
        &["-a", "--exclude=gone/one", "--delete"],
        &["-a", "--include=a.*", "--exclude=*.o", "--exclude=only"],
        &["-a", "--exclude=- *.o", "--exclude=+ *", "--delete"],
        &["-a", "--max-delete=100", "--delete"],
        &["-a", "--chmod=D755,F600"],
        &["-a", "--chown=1:2"],
        &["-a", "--numeric-ids", "-x", "--delete"],
        &["-a", "--bwlimit=10M"],
    ]
    .into_iter()
    .map(case)
    .collect();
    for options in [&["-a"][..], &["-a", "--delete"], &["-a", "--exclude=/source/build", "--delete"]] {
        all.push(Case { is_slashed: false, ..case(options) });
        all.push(Case { is_there: false, ..case(options) });
        all.push(Case { is_slashed: false, is_there: false, ..case(options) });
    }
    // rsync's dry run says that it deletes directories which it then leaves, because of what is excluded in them; ours tells of files that
    // would be compared.
    let globs = &["-a", "--include=*/", "--include=*.c", "--exclude=*", "--delete"][..];
    for options in [globs, &["-ac"], &["-ac", "--delete"]] {
        all.push(Case { skips_dry_account: true, ..case(options) });
    }
    all
}

/// rsync's and dray's own ways to the other host.
enum Way<'a> {
    Here,
    Up(&'a Host),
    Down(&'a Host),
}

fn sync(from: &Host, case: &Case, extra: &[&str], way: &Way<'_>, source: &Path, copy: &Path) -> Outcome {
    let slashed = |path: &Path| {
        let mut text = OsString::from(path);
        if case.is_slashed {
            text.push("/");
        }
        text
    };
    let far = match way {
        Way::Here => None,
        Way::Up(host) | Way::Down(host) => Some(*host),
    };
    let mut program = from.dray().arg("sync").args(extra).args(case.options).time_limit(LONG);
    if let Some(far) = far {
        let words: Vec<String> = far.ssh_options().iter().map(|word| format!("'{word}'")).collect();
        program = program.arg("-e").arg(format!("ssh {}", words.join(" ")));
    }
    let source = slashed(source);
    let (source, copy): (OsString, OsString) = match way {
        Way::Here => (source, copy.into()),
        Way::Up(far) => (source, far.remote(copy)),
        Way::Down(far) => (far.remote(Path::new(&source)), copy.into()),
    };
    program.arg(source).arg(copy).run()
}

fn check(a: &Host, way: &Way<'_>, cases: &[Case]) {
    for case in cases {
        let place = a.directory("case");
        let (source, ours, theirs) = (place.join("source"), place.join("ours"), place.join("theirs"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&ours).unwrap();
        let deletes = case.options.iter().any(|option| option.starts_with("--del"));
        source_and_destination(&source, &ours, deletes);
        if !case.is_there {
            fs::remove_dir_all(&ours).unwrap();
        } else {
            a.program("cp").arg("-a").arg(&ours).arg(&theirs).run().expect(0);
        }
        let mut rsync_source = OsString::from(&source);
        if case.is_slashed {
            rsync_source.push("/");
        }
        let what = format!("{:?} slash {} there {}", case.options, case.is_slashed, case.is_there);
        for extra in [&["-i", "-n"][..], &["-i"]] {
            let rsync = a.program("rsync").args(extra).args(case.options).arg(&rsync_source).arg(&theirs);
            let (rsync, dray) = (rsync.run().expect(0), sync(a, case, extra, way, &source, &ours).expect(0));
            // Of what is sent to another host rsync says so; here it is its twin within one host.
            let wrong = if matches!(way, Way::Up(_)) { '>' } else { '<' };
            assert!(!dray.stdout_text().lines().any(|line| line.starts_with(wrong)), "{what}: {dray}");
            // Which of two names of a file is the first depends on the order.
            let is_comparable = !case.options.contains(&"-aHAX") && !case.options.contains(&"-aHAXS");
            let is_dry = extra.contains(&"-n");
            if is_comparable && !(is_dry && case.skips_dry_account) {
                assert_eq!(told(&dray), told(&rsync), "{what} {extra:?}");
            }
            if is_dry && !case.is_there {
                assert!(!ours.exists(), "{what}: a dry run made it");
            }
        }
        let keeps_times = case.options[0].contains(['a', 't']);
        let flags = if keeps_times { "-aHAXn" } else { "-rlpgoDHAXn" };
        let twins = a.program("rsync").args([flags, "--checksum", "-i", "--delete"]);
        let twins = twins.arg(format!("{}/", ours.display())).arg(format!("{}/", theirs.display()));
        let differences = twins.time_limit(LONG).run().expect(0).stdout_text();
        // A directory that is none of the source's has the time at which it was written to.
        let is_base = |line: &&str| !case.is_slashed && *line == ".d..t...... ./";
        // So has one that is only kept for what is left out of it.
        let is_kept = |line: &&str| *line == ".d..t...... gone/";
        let is_time = |line: &&str| !keeps_times && line.starts_with(".d..T");
        let differences: Vec<&str> =
            differences.lines().filter(|line| !is_base(line) && !is_kept(line) && !is_time(line)).collect();
        assert!(differences.is_empty(), "{what}: {differences:?}");
        // Again, nothing is to do.
        if keeps_times && !case.options.contains(&"-aI") {
            let again = sync(a, case, &["-i"], way, &source, &ours).expect(0);
            assert_eq!(told(&again), BTreeSet::new(), "{what}: again");
        }
        fs::remove_dir_all(&place).unwrap();
    }
}

/// Issue "`dray sync` with rsync's habits": each line of the table gives what rsync gives, and says what rsync says, within a host.
#[test]
fn options_are_those_of_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &cases());
}

/// The same over ssh, both ways.
#[test]
fn options_are_those_of_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let is_wanted = |case: &Case| {
        ["--delete", "-au", "-ac", "-aHAX", "-az", "--existing", "-r"]
            .iter()
            .any(|word| case.options.contains(word))
    };
    let some: Vec<Case> = cases().into_iter().filter(is_wanted).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

fn tree(root: &Path, files: usize) {
    for number in 0..files {
        write(
            &root.join(format!("{:02}/{number:05}", number % 10)),
            &data::random_bytes(3000, number as u64),
            0,
        );
    }
}

fn up(a: &Host, b: &Host, options: &[&str], source: &Path, copy: &Path) -> dray_e2e::process::Running {
    let words: Vec<String> = b.ssh_options().iter().map(|word| format!("'{word}'")).collect();
    let mut source = OsString::from(source);
    source.push("/");
    let program = a.dray().arg("sync").args(options).arg("-e").arg(format!("ssh {}", words.join(" ")));
    program.arg(source).arg(b.remote(copy)).time_limit(LONG).start()
}

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
        if kills_far {
            for pid in b.pids_of("dray") {
                dray_e2e::sweep::signal(pid, rustix::process::Signal::KILL);
            }
            assert_ne!(running.wait().code(), Some(0));
        } else {
            running.kill();
        }
        await_no_dray(b, LONG);
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
        let words = b.sshd().restricted_options(key, &command(more));
        let words: Vec<String> =
            words.iter().map(|word| if word == "-P" { "-p".into() } else { format!("'{word}'") }).collect();
        let program = a.dray().args(["sync", "-a", "--delete", "-e"]).arg(format!("ssh {}", words.join(" ")));
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
    let words: Vec<String> = b.ssh_options().iter().map(|word| format!("'{word}'")).collect();
    let program = a.dray().args(["sync", "-a", "--delete", "-e"]).arg(format!("ssh {}", words.join(" ")));
    let source = b.remote(&copy.join("sub/source/"));
    let outcome = program.arg(source).arg(&copy).time_limit(LONG).run().expect(6);
    assert!(outcome.stderr_text().contains("lies in the destination"), "{}", outcome.stderr_text());
    assert!(copy.join("sub/source/f").exists());
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
            let words: Vec<String> = b.ssh_options().iter().map(|word| format!("'{word}'")).collect();
            let program =
                a.dray().args(["sync", "-a", "--delete", "-e"]).arg(format!("ssh {}", words.join(" ")));
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
