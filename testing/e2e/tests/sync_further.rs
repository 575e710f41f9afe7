//! What `dray sync` does besides, next to rsync with the same: sources that go once they are in place, lists, and how long silence is borne.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{assert_same_tree, await_no_dray, kill_one_end};
use dray_e2e::data::{self, MIB};
use dray_e2e::sweep::signal;
use dray_e2e::twins::{
    LONG, Way, case, odd_names, rsync, set_times, source_and_destination, sync, told, tree, up, write,
};
use dray_e2e::{Host, Lab, gate};
use rustix::process::Signal;

/// Every path below a directory, of directories with a slash.
fn paths(top: &Path) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(top.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let path = path.join(entry.file_name());
            let is_directory = entry.file_type().unwrap().is_dir();
            found.insert(format!("{}{}", path.display(), if is_directory { "/" } else { "" }));
            if is_directory {
                left.push(path);
            }
        }
    }
    found
}

/// Runs rsync and dray with `--remove-source-files` on twins of a source and a destination: what is said, what is left at the source, and what is at the destination.
fn check_removal(a: &Host, way: &Way<'_>, all: &[&'static [&'static str]]) {
    for options in all {
        let place = a.directory("case");
        let [source, ours, other, theirs] =
            ["source", "ours", "other", "theirs"].map(|name| place.join(name));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&ours).unwrap();
        source_and_destination(&source, &ours, options.contains(&"--delete"));
        // With other bytes of the same size and time rsync believes it to be the same.
        write(&ours.join("quiet"), b"AAAA", 0);
        data::write_random(&source.join("large"), 300_000, 1);
        data::write_random(&source.join("large-same"), 300_000, 2);
        data::write_random(&ours.join("large-same"), 300_000, 2);
        for side in [&source, &ours] {
            fs::File::open(side.join("large-same")).unwrap().set_modified(dray_e2e::twins::time(1)).unwrap();
        }
        set_times(&source, 0);
        for (from, to) in [(&source, &other), (&ours, &theirs)] {
            a.program("cp").arg("-a").arg(from).arg(to).run().expect(0);
        }
        let what = format!("{way:?} {options:?}");
        let case = case(options);
        let mut slashed = OsString::from(&other);
        slashed.push("/");
        let rsync = a.program("rsync").args(["-i", "--remove-source-files"]).args(*options);
        let rsync = rsync.arg(slashed).arg(&theirs).run().expect(0);
        let dray = sync(a, &case, &["-i", "--remove-source-files"], way, &source, &ours).expect(0);
        assert_eq!(told(&dray), told(&rsync), "{what}");
        assert_eq!(paths(&source), paths(&other), "{what}: what is left at the source");
        if !options.contains(&"-an") {
            let twins = a.program("rsync").args(["-aHAXn", "--checksum", "-i", "--delete"]);
            let twins = twins.arg(format!("{}/", ours.display())).arg(format!("{}/", theirs.display()));
            assert_eq!(twins.run().expect(0).stdout_text(), "", "{what}");
        }
        fs::remove_dir_all(&place).unwrap();
    }
}

const REMOVING: [&[&str]; 10] = [
    &["-a"],
    &["-an"],
    &["-au"],
    &["-aI"],
    &["-ac"],
    &["-a", "--exclude=*.o"],
    &["-a", "--existing"],
    &["-a", "--ignore-existing", "--exclude=/becomes-dir/"],
    &["-a", "--max-size=4"],
    &["-rt"],
];

/// Issue "--remove-source-files": what leaves the source, and what stays, is as with rsync, within a host.
#[test]
fn sources_go_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check_removal(lab.host(0), &Way::Here, &REMOVING);
}

/// The same over ssh, both ways.
#[test]
fn sources_go_as_with_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    check_removal(a, &Way::Up(b), &REMOVING);
    check_removal(a, &Way::Down(b), &REMOVING);
}

/// What might lose what a run moved is refused before anything is done, and by which option; also where nothing would be changed.
#[test]
fn what_is_not_safe_is_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    write(&source.join("f"), b"f", 0);
    for (option, said) in [
        ("--delete", "--delete"),
        ("--delete-excluded", "--delete"),
        ("-H", "-H"),
        ("-b", "--backup"),
        ("--backup-dir=old", "--backup"),
    ] {
        for more in [&[][..], &["-n"]] {
            let extra = [&["--remove-source-files", option], more].concat();
            let outcome = sync(a, &case(&["-a"]), &extra, &Way::Here, &source, &copy);
            let said = format!("--remove-source-files does not go with {said}");
            assert!(outcome.code() == Some(2) && outcome.stderr_text().contains(&said), "{outcome}");
        }
    }
    assert!(source.join("f").exists() && paths(&copy).is_empty());
}

/// S84, "the same command goes on": sources whose entries might come to one place are refused before anything is done, within a host, both ways over ssh, and where only a pattern shows that there are
/// two: the second run would take what the first left of one for newer than what it moved from the other.
#[test]
fn sources_that_may_meet_are_refused() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let top = a.directory("top");
    for camera in ["cam1", "cam2"] {
        write(&top.join(camera).join("x/image"), camera.as_bytes(), 0);
    }
    let ssh = b.ssh_command();
    let copy = a.directory("copy");
    let remote = |path: &str| b.remote(&top.join(path));
    let (here, there) = (|path: &str| top.join(path).into_os_string(), b.remote(&copy));
    let all: [(&[OsString], OsString); 6] = [
        (&[here("cam1/"), here("cam2/")], copy.clone().into()),
        (&[here("cam1/x"), here("cam2/x")], copy.clone().into()),
        (&[here("cam1/x"), here("cam2/")], there.clone()),
        (&[remote("cam1/x"), remote("cam2/x")], copy.clone().into()),
        (&[remote("*/x")], copy.clone().into()),
        (&[remote("cam*/")], copy.clone().into()),
    ];
    for (sources, to) in &all {
        let run = || {
            let program =
                a.dray().args(["sync", "-a", "--remove-source-files", "-e", &ssh]).args(sources.iter());
            program.arg(to).time_limit(LONG).run()
        };
        let (first, again) = (run(), run());
        for camera in ["cam1", "cam2"] {
            let image = top.join(camera).join("x/image");
            assert!(fs::read(image).is_ok_and(|it| it == camera.as_bytes()), "{sources:?}: {first} {again}");
        }
        for outcome in [first, again] {
            let said = outcome.stderr_text();
            assert!(outcome.code() == Some(2) && said.contains("several SRC"), "{sources:?}: {outcome}");
        }
        assert!(paths(&copy).is_empty(), "{sources:?}");
    }
    // Names of their own do not meet.
    for name in ["one", "two"] {
        write(&top.join(name).join("f"), name.as_bytes(), 0);
    }
    let program = a.dray().args(["sync", "-a", "--remove-source-files"]).args([here("one"), here("two")]);
    program.arg(&copy).run().expect(0);
    assert_eq!(fs::read(copy.join("two/f")).unwrap(), b"two");
    assert!(!top.join("one/f").exists());
}

/// A source is not moved into itself over ssh, be its destination there or not: nothing ends directories deep.
#[test]
fn a_source_is_not_moved_into_itself() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (number, (way, code)) in [(Way::Up(b), 6), (Way::Down(b), 8)].into_iter().enumerate() {
        let data = a.directory(&format!("data{number}"));
        for name in ["f", "d/g", "sub/deep/old", "z"] {
            write(&data.join(name), name.as_bytes(), 0);
        }
        let before = paths(&data.join("sub"));
        let copy = data.join("sub");
        let outcome = sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &data, &copy).expect(code);
        assert!(outcome.stderr_text().contains("moved into itself"), "{way:?}: {outcome}");
        let after = paths(&copy);
        assert!(after.is_superset(&before) && !after.iter().any(|path| path.contains("sub")), "{after:?}");
        if let Way::Up(_) = way {
            assert_eq!(after, before);
            sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &data, &data.join("new")).expect(code);
            assert!(!data.join("new/f").exists());
            // Out of it is no way into it.
            let above = data.join("d");
            sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &above, &data).expect(0);
            assert_eq!(fs::read(data.join("g")).unwrap(), b"d/g");
        }
    }
}

/// "One that works is not silent": a sender that takes long to remove what is in place, as on a server that answers slowly, is heard all the while, be the patience shorter.
#[test]
fn a_slow_removal_is_not_silent() {
    const FILES: usize = 300;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy) = (a.file("source"), b.directory("copy"));
    tree(&source, FILES);
    // 30 ms for each: three times the patience for all.
    let program = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=unlinkat"]);
    let program = program.args(["-e", "inject=unlinkat:delay_enter=30000"]).arg(gate::dray_binary());
    let program = program.args(["sync", "-a", "--remove-source-files", "--timeout=3", "-e"]);
    let program = program.arg(b.ssh_command()).arg(source.join("")).arg(b.remote(&copy));
    program.time_limit(LONG).run().expect(0);
    assert!(paths(&source).iter().all(|path| path.ends_with('/')));
    assert!(paths(&copy).len() >= FILES);
}

/// A source file goes only for a copy with its bytes: one at the destination that has its size and time and other bytes is replaced first; what changed since it was read stays,
/// and is told.
#[test]
fn what_is_not_there_with_its_bytes_stays() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        let (source, copy) = (a.directory(&format!("s{number}")), a.directory(&format!("c{number}")));
        for (name, size) in [("small", 10), ("large", 200_000)] {
            write(&source.join(name), &vec![1; size], 0);
            write(&copy.join(name), &vec![2; size], 0);
        }
        sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &source, &copy).expect(0);
        assert!(paths(&source).is_empty(), "{way:?}");
        assert_eq!(fs::read(copy.join("large")).unwrap(), vec![1; 200_000], "{way:?}");
        assert_eq!(fs::read(copy.join("small")).unwrap(), [1; 10], "{way:?}");
    }
    let (source, copy) = (a.directory("source"), b.directory("copy"));
    write(&source.join("d/changes"), b"old", 0);
    write(&source.join("d/stays-same"), b"same", 0);
    symlink("x", source.join("d/link")).unwrap();
    data::write_random(&source.join("zz"), 16 * MIB, 4);
    let running = up(a, b, &["-a", "--remove-source-files"], &source, &copy);
    running.wait_until(false, || copy.join("d/changes").exists());
    write(&source.join("d/changes"), b"new", 0);
    let outcome = running.wait().expect(8);
    assert!(outcome.stderr_text().contains("d/changes"), "{outcome}");
    assert_eq!(paths(&source), BTreeSet::from(["d/".to_owned(), "d/changes".to_owned()]));
    assert_eq!(fs::read(source.join("d/changes")).unwrap(), b"new");
    assert_eq!(fs::read(copy.join("d/changes")).unwrap(), b"old");
    up(a, b, &["-a", "--remove-source-files"], &source, &copy).wait().expect(0);
    assert_eq!(fs::read(copy.join("d/changes")).unwrap(), b"new");
    assert_eq!(paths(&source), BTreeSet::from(["d/".to_owned()]));
}

/// "Interrupted runs lose nothing": either end is killed while sources go; each file is whole at one end at least, and the same command again brings the others.
#[test]
fn a_killed_run_loses_nothing() {
    const FILES: usize = 12_000;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for kills_far in [false, true] {
        let name = if kills_far { "far" } else { "near" };
        let (source, copy) = (a.file(format!("source-{name}")), b.directory(name));
        tree(&source, FILES);
        let whole = a.file(format!("whole-{name}"));
        a.program("cp").arg("-a").arg(&source).arg(&whole).run().expect(0);
        let running = up(a, b, &["-a", "--remove-source-files"], &source, &copy);
        // Some have gone.
        running.wait_until(false, || !source.join("00/00000").exists());
        kill_one_end(running, b, kills_far);
        let mut gone = 0;
        for path in paths(&whole).iter().filter(|path| !path.ends_with('/')) {
            let (here, there) = (source.join(path), copy.join(path));
            let bytes = fs::read(whole.join(path)).unwrap();
            gone += usize::from(!here.exists());
            assert!(
                fs::read(&here).is_ok_and(|it| it == bytes) || fs::read(&there).is_ok_and(|it| it == bytes),
                "{path} is lost"
            );
        }
        assert!(gone > 0 && gone < FILES, "{gone}: it was cut off too late to tell anything");
        // One that was just going keeps the name that it goes under, and would come as that (docs/sync.md); its bytes are in place.
        let going: Vec<String> = paths(&source).into_iter().filter(|path| path.contains("/.dray-")).collect();
        assert!(going.len() <= usize::from(!kills_far), "{going:?}");
        going.iter().for_each(|path| fs::remove_file(source.join(path)).unwrap());
        up(a, b, &["-a", "--remove-source-files"], &source, &copy).wait().expect(0);
        assert!(paths(&source).iter().all(|path| path.ends_with('/')));
        for side in [&source, &copy, &whole] {
            set_times(side, 0);
        }
        assert_same_tree(a, &whole, &copy, None);
    }
}

/// "Interrupted runs leave every file either old or new": at whichever step a run is killed that keeps what it replaces, also in the place of an older one, the same command leaves
/// the new file and what was kept, and nothing else.
#[test]
fn a_killed_backup_is_cleared_by_the_next_run() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let source = a.directory("source");
    write(&source.join("f"), b"new bytes", 9);
    let mut were_hidden = 0;
    for options in [&["-ab"][..], &["-ab", "--inplace"]] {
        for call in ["linkat", "renameat", "renameat2", "unlinkat"] {
            let is_through = (1..=40).any(|step| {
                let what = format!("{options:?}, {call} {step}");
                let copy = a.directory(&format!("copy {what}"));
                write(&copy.join("f"), b"old", 0);
                write(&copy.join("f~"), b"older", 0);
                let strace = a.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e"]);
                let strace = strace.arg(format!("trace={call}")).arg("-e");
                let strace = strace.arg(format!("inject={call}:signal=KILL:when={step}"));
                let run = |program: dray_e2e::Program<'_>| {
                    program.arg("sync").args(options).arg(source.join("")).arg(&copy).time_limit(LONG).run()
                };
                let outcome = run(strace.arg(gate::dray_binary()));
                were_hidden += data::names(&copy).iter().filter(|name| data::is_ours(name)).count();
                run(a.dray()).expect(0);
                assert_eq!(fs::read(copy.join("f")).unwrap(), b"new bytes", "{what}");
                assert_eq!(fs::read(copy.join("f~")).unwrap(), b"old", "{what}");
                assert_eq!(data::names(&copy), ["f", "f~"], "{what}");
                outcome.code() == Some(0)
            });
            assert!(is_through, "a run has more than 40 times {call}");
        }
    }
    assert!(were_hidden > 0, "none was killed while it had a hidden name");
}

/// S84, "and on its disk": the file system of the destination is synced before anything leaves its source, within a host and by a receiver over ssh, also without `--fsync`.
#[test]
fn what_goes_is_on_its_disk_first() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for is_far in [false, true] {
        let (source, copy) = (a.directory(&format!("s{is_far}")), a.directory(&format!("c{is_far}")));
        write(&source.join("f"), b"f", 0);
        let trace = a.file("trace");
        let program = a.program("strace").args(["-f", "-e", "trace=syncfs,unlinkat", "-o"]).arg(&trace);
        let program = program.arg(gate::dray_binary()).args(["sync", "-a", "--remove-source-files", "-e"]);
        let from = source.join("");
        let from = if is_far { b.remote(&from) } else { from.into_os_string() };
        let program = program.arg(b.ssh_command()).arg(from).arg(&copy);
        program.time_limit(LONG).run().expect(0);
        assert!(!source.join("f").exists() && copy.join("f").exists());
        let trace = fs::read_to_string(&trace).unwrap();
        let place = |call: &str| trace.lines().position(|line| line.contains(call));
        let synced = place("syncfs(").unwrap_or_else(|| panic!("nothing was synced: {trace}"));
        // Over ssh the other end removes.
        let removed = trace.lines().position(|line| line.contains("unlinkat(") && line.contains("\".dray-"));
        assert!(is_far || removed.is_some_and(|removed| synced < removed), "{trace}");
    }
}

/// A destination that is the source, come upon by ssh, loses nothing; nor what both share by hard links.
#[test]
fn a_source_that_is_the_destination_stays() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for way in [Way::Up(b), Way::Down(b)] {
        let source = a.directory("source");
        write(&source.join("d/small"), b"small", 0);
        data::write_random(&source.join("large"), 300_000, 4);
        symlink("large", source.join("link")).unwrap();
        let before = paths(&source);
        let outcome = sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &source, &source).expect(8);
        assert_eq!(paths(&source), before, "{way:?} {outcome}");
        assert_eq!(fs::metadata(source.join("large")).unwrap().len(), 300_000);
        let copy = a.directory("copy");
        fs::hard_link(source.join("large"), copy.join("large")).unwrap();
        let outcome = sync(a, &case(&["-a"]), &["--remove-source-files"], &way, &source, &copy).expect(8);
        assert!(outcome.stderr_text().contains("large"), "{outcome}");
        // What was not there before has moved.
        assert_eq!(paths(&source), BTreeSet::from(["d/", "large"].map(String::from)), "{way:?} {outcome}");
        for side in [&source, &copy] {
            assert_eq!(fs::metadata(side.join("large")).unwrap().len(), 300_000);
        }
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&copy).unwrap();
    }
}

/// A key that may only read removes nothing, and an older far end says so by name.
#[test]
fn a_key_that_may_read_removes_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let only = b.directory("only");
    write(&only.join("from/f"), b"f", 0);
    for (number, (more, is_taken)) in [("--read-only", false), ("", true)].into_iter().enumerate() {
        let command =
            format!("{} serve --stdio {more} --only {}", gate::dray_binary().display(), only.display());
        let ssh = b.sshd().restricted_command(&format!("key{number}"), &command);
        let program = a.dray().args(["sync", "-a", "--remove-source-files", "-e"]);
        let program = program.arg(&ssh).arg(b.remote(Path::new("from/")));
        let outcome = program.arg(a.file("to")).time_limit(LONG).run();
        assert_eq!(outcome.code(), Some(if is_taken { 0 } else { 6 }), "{outcome}");
        assert_eq!(only.join("from/f").exists(), !is_taken, "{more}");
    }
    assert!(a.file("to/f").exists());
}

/// Lines of a list, of which those of directories have no size.
fn lines(text: &str) -> BTreeSet<String> {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with('d') {
            words.remove(1);
        }
        words.join(" ")
    };
    text.lines().filter(|line| !line.is_empty()).map(line).collect()
}

/// Issue "--list-only": what rsync lists, here and on another host; nothing is made.
#[test]
fn lists_are_those_of_rsync() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    source_and_destination(&source, &a.directory("rest"), false);
    odd_names(&source);
    data::write_random(&source.join("large"), 1_234_567, 1);
    for options in [
        &["-a"][..],
        &["-r"],
        &[],
        &["-l"],
        &["-d", "--exclude=*.o"],
        &["-a", "--exclude=/sub/deep/"],
        &["-a", "--include=*/", "--include=*.c", "--exclude=*"],
    ] {
        for slash in ["/", ""] {
            let from = format!("{}{slash}", source.display());
            let listed = rsync(a).args(options).arg("--list-only").arg(&from).run().expect(0);
            let expected = lines(&listed.stdout_text());
            let here = a.dray().arg("sync").args(options).arg("--list-only");
            let there = a.dray().arg("sync").args(options).arg("--list-only");
            let there = there.arg("-e").arg(b.ssh_command());
            for listed in [
                here.arg(&from).run().expect(0),
                there.arg(b.remote(Path::new(&from))).time_limit(LONG).run().expect(0),
                a.dray().arg("sync").args(options).arg("--list-only").arg(&from).arg(&copy).run().expect(0),
            ] {
                assert_eq!(lines(&listed.stdout_text()), expected, "{options:?} {slash}");
            }
        }
    }
    assert!(paths(&copy).is_empty());
    let missing = a.dray().args(["sync", "--list-only"]).arg(a.file("missing")).run();
    assert_ne!(missing.code(), Some(0), "{missing}");
}

/// Issue "--timeout": a far end that is silent for so long is given up, and so is a near one; the time limit of a test is shorter than the patience without it.
#[test]
fn silence_is_borne_as_long_as_asked_for() {
    const SHORT: Duration = Duration::from_secs(40);
    let Some(lab) = Lab::of(2).rate_mbit(20).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    data::write_random(&source.join("large"), 32 * MIB, 4);
    let copy = b.directory("copy");
    let start = || {
        let running = up(a, b, &["-a", "--timeout=3"], &source, &copy);
        running.wait_until(false, || b.pids_of("dray").into_iter().any(is_receiving));
        running
    };
    let running = start();
    let far: Vec<_> = b.pids_of("dray");
    far.iter().for_each(|pid| signal(*pid, Signal::STOP));
    let begun = std::time::Instant::now();
    let outcome = running.wait();
    assert_eq!(outcome.code(), Some(5), "{outcome}");
    assert!(outcome.stderr_text().contains("said nothing for too long"), "{outcome}");
    assert!(begun.elapsed() < SHORT, "the patience of everybody else");
    for pid in far {
        signal(pid, Signal::CONT);
        signal(pid, Signal::KILL);
    }
    await_no_dray(b, LONG);
    let running = start();
    signal(running.pid(), Signal::STOP);
    await_no_dray(b, SHORT);
    signal(running.pid(), Signal::CONT);
    assert_ne!(running.wait().code(), Some(0));
    assert!(!copy.join("large").exists());
}

/// True for a process with a file open that has no name, or a hidden one.
fn is_receiving(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::metadata(file.path()).ok()).any(|found| found.is_file() && found.size() > MIB)
}

/// Issue 7 "--itemize": a directory with setuid whose owner is not kept has what it is to have after one run, and no later one tells of it. A file does not get the bit of an owner that it has not.
#[test]
fn setuid_of_another_owner_is_told_once() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.file("copy"));
    let sync = || {
        let (from, to) = (source.join(""), copy.join(""));
        a.dray().args(["sync", "-ai", "--no-o"]).arg(from).arg(to).run().expect(0).stdout_text()
    };
    fs::create_dir(source.join("d")).unwrap();
    fs::write(source.join("f"), b"f").unwrap();
    for name in ["d", "f"] {
        std::os::unix::fs::chown(source.join(name), Some(1234), None).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o4755)).unwrap();
    }
    assert!(sync().contains("cd+++++++++ d/"));
    assert_eq!(sync(), "");
    let mode = |name: &str| fs::metadata(copy.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("f")), (0o4755, 0o755));
}
