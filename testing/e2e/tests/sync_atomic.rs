//! `dray sync --atomic`: who reads DST finds all of the old tree or all of the new one, whatever fails, and whoever is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dray_e2e::actions::{NOBODY, assert_same_tree, kill_one_end};
use dray_e2e::daemon::await_that;
use dray_e2e::data::{self, MIB};
use dray_e2e::live::tool;
use dray_e2e::twins::{LONG, Way, case, set_times, sync, up, write};
use dray_e2e::{Host, Lab, Outcome};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

/// A tree of which each file tells its generation, in some directories.
fn generation(root: &Path, number: u64, files: usize) {
    for file in 0..files {
        // Sizes differ, so that what changed is seen in the same moment, too.
        let text = format!("{number} {}", "x".repeat(usize::try_from(number % 50).unwrap()));
        write(
            &root.join(format!("d{}/{file:03}", file % 4)),
            text.as_bytes(),
            i64::try_from(number).unwrap(),
        );
    }
    // Some come and go.
    write(&root.join(format!("only{number}/f")), number.to_string().as_bytes(), 0);
    if number > 0 {
        let _ = fs::remove_dir_all(root.join(format!("only{}", number - 1)));
    }
}

/// The generations that the files of a directory are of, read below one descriptor of it; `None` if it was emptied meanwhile.
fn generations(root: &Path, files: usize) -> Option<Vec<u64>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let top = openat(CWD, root, flags, Mode::empty()).ok()?;
    let (mut found, mut count) = (Vec::new(), 0);
    for entry in Dir::read_from(&top).ok()? {
        let name = entry.ok()?.file_name().to_bytes().to_vec();
        if name.starts_with(b".") {
            continue;
        }
        if let Some(number) = name.strip_prefix(b"only") {
            found.push(std::str::from_utf8(number).unwrap().parse().unwrap());
            continue;
        }
        let below = openat(&top, &name[..], flags, Mode::empty()).ok()?;
        for entry in Dir::read_from(&below).ok()? {
            let name = entry.ok()?.file_name().to_bytes().to_vec();
            if name.starts_with(b".") {
                continue;
            }
            let mut text = String::new();
            let file = openat(&below, &name[..], OFlags::RDONLY, Mode::empty()).ok()?;
            fs::File::from(file).read_to_string(&mut text).unwrap();
            found.push(text.split(' ').next().unwrap().parse().unwrap());
            count += 1;
        }
    }
    // One `only`, and all files.
    (count == files && found.len() == files + 1).then_some(found)
}

/// S89: a reader that opens the directory again and again finds files of one generation; with `--delete` alone it finds a mixture.
#[test]
fn a_reader_finds_one_tree() {
    const FILES: usize = 120;
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for is_atomic in [true, false] {
        let place = a.directory(if is_atomic { "whole" } else { "parts" });
        let (source, copy) = (place.join("source"), place.join("copy"));
        let options: &[&str] = if is_atomic { &["--delete", "--atomic"] } else { &["--delete"] };
        let run = |number| {
            generation(&source, number, FILES);
            sync(a, &case(&["-a"]), options, &Way::Here, &source, &copy).expect(0);
        };
        run(0);
        let (is_over, mixed, whole) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let last = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let Some(found) = generations(&copy, FILES) else { continue };
                    let is_mixed = found.iter().any(|number| number != &found[0]);
                    let counted = if is_mixed { &mixed } else { &whole };
                    counted.fetch_add(1, Ordering::AcqRel);
                }
            });
            // Without the option until a mixture is seen, which some runs take.
            let max = if is_atomic { 40 } else { 400 };
            let mut number = 0;
            while number < max && (is_atomic || mixed.load(Ordering::Acquire) == 0) {
                number += 1;
                run(number);
            }
            is_over.store(true, Ordering::Release);
            number
        });
        let (mixed, whole) = (mixed.into_inner(), whole.into_inner());
        assert_eq!(mixed == 0, is_atomic, "{mixed} mixed, {whole} whole, {last} runs");
        assert!(whole > 0);
        assert_eq!(generations(&copy, FILES).unwrap(), vec![last; FILES + 1]);
        assert_eq!(data::names(&place), ["copy", "source"]);
    }
}

/// Old and new trees with what is alike, changed, new, gone, of another kind, linked and read-only.
fn old_and_new(place: &Path) -> (PathBuf, PathBuf) {
    let (old, new) = (place.join("old"), place.join("new"));
    for (root, number) in [(&old, 0), (&new, 1)] {
        for name in ["same", "d/same", "d/deep/same"] {
            write(&root.join(name), b"same", 0);
        }
        for name in ["changed", "d/changed", "d/deep/changed"] {
            write(&root.join(name), format!("changed {number}").as_bytes(), number);
        }
        write(&root.join(format!("only {number}/f")), b"f", 0);
        write(&root.join(if number == 0 { "turns" } else { "turns/inner" }), b"turns", 0);
        fs::hard_link(root.join("same"), root.join("linked")).unwrap();
        symlink(format!("to {number}"), root.join("link")).unwrap();
        fs::set_permissions(root.join("d/deep"), fs::Permissions::from_mode(0o555)).unwrap();
        set_times(root, number);
    }
    // It comes with the switch.
    std::os::unix::fs::chown(&new, Some(NOBODY), Some(NOBODY)).unwrap();
    (old, new)
}

fn is_same(a: &Host, one: &Path, other: &Path) -> bool {
    let slash = |path: &Path| format!("{}/", path.display());
    let rsync = a.program("rsync").args(["-aHXn", "--checksum", "--itemize-changes", "--delete"]);
    rsync.arg(slash(one)).arg(slash(other)).time_limit(LONG).run().expect(0).stdout_text().is_empty()
}

/// System calls after which something else is in a directory, or on disk. Each is counted for itself.
const STEPS: [&str; 10] = [
    "renameat2",
    "mkdirat",
    "linkat",
    "symlinkat",
    "unlinkat",
    "fchown",
    "fchmod",
    "utimensat",
    "syncfs",
    "fsync",
];
/// More than a run of these trees has of any.
const STEPS_MAX: u32 = 80;

/// S89: killed at each step that changes anything, a run leaves all of the old tree or all of the new one; the same command again brings the new one, and leaves nothing
/// beside it.
#[test]
fn a_kill_at_every_step_leaves_one_tree() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (old, new) = old_and_new(&a.directory("place"));
    let (mut were_old, mut were_new) = (0, 0);
    for call in STEPS {
        let is_through = (1..=STEPS_MAX).any(|step| {
            let top = a.directory(&format!("top {call} {step}"));
            let copy = top.join("copy");
            a.program("cp").arg("-a").arg(&old).arg(&copy).run().expect(0);
            let arguments = ["sync", "-aH", "--delete", "--atomic", "--fsync"];
            let inject = format!("inject={call}:signal=SIGKILL:when={step}");
            let strace = a.program("strace").args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
            let strace = strace.args(["-e", &inject]).arg(dray_e2e::gate::dray_binary()).args(arguments);
            let outcome = strace.arg(new.join("")).arg(&copy).time_limit(LONG).run();
            match (is_same(a, &old, &copy), is_same(a, &new, &copy)) {
                (true, false) => were_old += 1,
                (false, true) => were_new += 1,
                _ => panic!("{call} {step}: neither old nor new: {outcome}"),
            }
            a.dray().args(arguments).arg(new.join("")).arg(&copy).run().expect(0);
            assert_same_tree(a, &new, &copy, None);
            assert_eq!(data::names(&top), ["copy"], "{call} {step}");
            a.program("rm").arg("-rf").arg(&top).run().expect(0);
            outcome.code() == Some(0)
        });
        assert!(is_through, "a run has more than {STEPS_MAX} times {call}");
    }
    assert!(were_old > 20 && were_new > STEPS.len(), "{were_old} {were_new}");
}

/// S89: either end is killed while contents come over ssh: DST is the old tree, and the same command brings the new one, of what came and the rest.
#[test]
fn a_killed_end_leaves_one_tree() {
    let Some(lab) = Lab::of(2).rate_mbit(100).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (old, new) = (a.directory("old"), a.directory("new"));
    write(&old.join("f"), b"old", 0);
    write(&old.join("gone"), b"gone", 0);
    write(&new.join("f"), b"new!", 5);
    // Eight seconds over that line: a busy machine looks late.
    for number in 0..32 {
        data::write_random(&new.join(format!("large {number:02}")), 3 * MIB, number);
    }
    set_times(&old, 0);
    set_times(&new, 9);
    for kills_far in [false, true] {
        let top = b.directory(if kills_far { "far" } else { "near" });
        let copy = top.join("copy");
        a.program("cp").arg("-a").arg(&old).arg(&copy).run().expect(0);
        let options = ["-a", "--delete", "--atomic"];
        let running = up(a, b, &options, &new, &copy);
        let stage = || data::names(&top).into_iter().find(|name| name != OsStr::new("copy"));
        running.wait_until(false, || stage().is_some_and(|stage| top.join(stage).join("large 02").exists()));
        kill_one_end(running, b, kills_far);
        assert!(is_same(a, &old, &copy));
        let stage = top.join(stage().unwrap());
        let came: Vec<(OsString, u64)> = data::names(&stage)
            .into_iter()
            .map(|name| (name.clone(), fs::metadata(stage.join(&name)).unwrap().ino()))
            .filter(|(name, _)| name.to_string_lossy().starts_with("large"))
            .collect();
        up(a, b, &options, &new, &copy).wait().expect(0);
        assert_same_tree(a, &new, &copy, None);
        assert_eq!(data::names(&top), ["copy"]);
        assert!(!came.is_empty());
        for (name, inode) in came {
            assert_eq!(fs::metadata(copy.join(&name)).unwrap().ino(), inode, "{name:?} came twice");
        }
    }
}

/// S89: a full disk leaves the old tree (exit 7), and that is told, here and over ssh both ways; once there is room the same command goes on.
#[test]
fn a_full_disk_leaves_the_old_tree() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (old, new) = (a.directory("old"), a.directory("new"));
    write(&old.join("f"), b"old", 0);
    data::write_random(&old.join("kept"), MIB, 1);
    a.program("cp").arg("-a").arg(old.join("kept")).arg(&new).run().expect(0);
    data::write_random(&new.join("large"), 6 * MIB, 3);
    set_times(&old, 0);
    let mount = |options: &str, at: &Path| {
        tool(&["mount", "-t", "tmpfs", "-o", options, "tmpfs", at.to_str().unwrap()])
    };
    let places = ["here", "up", "down"].map(|name| a.directory(name));
    // A login sees what was mounted before its server was there.
    places.iter().for_each(|place| drop(mount("size=6m,mode=755", place)));
    b.sshd();
    for (place, way) in places.iter().zip([Way::Here, Way::Up(b), Way::Down(b)]) {
        let copy = place.join("copy");
        a.program("cp").arg("-a").arg(&old).arg(&copy).run().expect(0);
        let run = || sync(a, &case(&["-a"]), &["--delete", "--atomic"], &way, &new, &copy);
        let full = run().expect(7);
        assert!(full.stderr_text().contains("nothing was switched"), "{full}");
        assert!(is_same(a, &old, &copy), "{full}");
        mount("remount,size=60m", place);
        run().expect(0);
        assert!(is_same(a, &new, &copy));
        assert_eq!(data::names(place), ["copy"]);
        tool(&["umount", place.to_str().unwrap()]);
    }
}

/// S89: what cannot be read or written, here or over ssh, leaves the old tree, and is told with where the new one waits (exit 8); so does a source that is not there
/// (exit 3). Mended, the same command switches.
#[test]
fn a_failed_entry_switches_nothing() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let place = a.directory("place");
    let (source, copy) = (place.join("source"), place.join("copy"));
    for (root, text) in [(&source, "the new one"), (&copy, "old")] {
        write(&root.join("d/f"), text.as_bytes(), 0);
        write(&root.join("e/f"), text.as_bytes(), 0);
    }
    write(&copy.join("gone"), b"gone", 0);
    a.program("chown").arg("-R").arg(format!("{NOBODY}:{NOBODY}")).arg(&place).run().expect(0);
    let home = a.directory("home");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o777)).unwrap();
    // Root reads everything, so a user does this.
    let run = |from: &Path, options: &[&str]| {
        let program = a.dray().env("DRAY_DATA_DIR", &home).env("HOME", &home).user(NOBODY);
        let program = program.args(["sync", "-a", "--delete", "--atomic", "-i"]).args(options);
        program.arg(from.join("")).arg(&copy).run()
    };
    let is_old = |outcome: &Outcome| {
        assert_eq!(fs::read(copy.join("e/f")).unwrap(), b"old", "{outcome}");
        assert!(copy.join("gone").exists() && !outcome.stdout_text().contains("*deleting"), "{outcome}");
    };
    for name in ["d/f", "d"] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o0)).unwrap();
        let outcome = run(&source, &[]).expect(8);
        is_old(&outcome);
        let said = outcome.stderr_text();
        assert!(said.contains("nothing was switched") && said.contains("\".dray-"), "{outcome}");
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    is_old(&run(&place.join("missing"), &[]).expect(3));
    let limited = run(&source, &["--max-delete=0"]).expect(8);
    is_old(&limited);
    assert!(limited.stderr_text().contains("--max-delete allows 0"), "{limited}");
    let dry = run(&source, &["-n"]).expect(0);
    is_old_dry(&dry, &copy);
    let outcome = run(&source, &[]).expect(0);
    assert!(outcome.stdout_text().contains("*deleting   gone"), "{outcome}");
    assert_same_tree(a, &source, &copy, None);
    assert_eq!(data::names(&place), ["copy", "source"]);
    // Over ssh a directory that nobody may write to fails at the other end: here a file that never changes.
    let (source, far) = (a.directory("other"), b.directory("top").join("copy"));
    write(&source.join("f"), b"new", 0);
    write(&far.join("f"), b"older", 0);
    let options = ["-a", "--delete", "--atomic"];
    up(a, b, &options, &a.file("missing"), &far).wait().expect(3);
    up(a, b, &[&options[..], &["--max-delete=0"]].concat(), &source, &far).wait().expect(0);
    assert_same_tree(a, &source, &far, None);
}

/// A dry run says what would go, and changes nothing.
fn is_old_dry(outcome: &Outcome, copy: &Path) {
    assert!(outcome.stdout_text().contains("*deleting   gone"), "{outcome}");
    assert!(copy.join("gone").exists());
    assert!(data::names(copy.parent().unwrap()).iter().any(|name| name == OsStr::new("copy")));
}

/// S89, both ways over ssh: what did not change keeps its inode, a small change of a large file and a file that was moved cost little, and where nothing changed nothing is
/// told or switched.
#[test]
fn what_did_not_change_is_linked() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (way, near, far) in [("up", a, b), ("down", a, b)] {
        let place = a.directory(way);
        let (source, copy) = (place.join("source"), place.join("copy"));
        fs::create_dir_all(&source).unwrap();
        for number in 0..200 {
            data::write_random(&source.join("many"), 20_000, number);
            fs::create_dir_all(source.join("d")).unwrap();
            fs::rename(source.join("many"), source.join(format!("d/{number:03}"))).unwrap();
        }
        data::write_random(&source.join("large"), 4 * MIB, 1000);
        data::write_random(&source.join("moves"), 2 * MIB, 1001);
        let direction = if way == "up" { Way::Up(far) } else { Way::Down(far) };
        let run = || {
            let mut outcome = None;
            let bytes = near.carried("a run", || {
                let options = ["--delete", "--atomic"];
                outcome = Some(sync(near, &case(&["-a"]), &options, &direction, &source, &copy).expect(0));
            });
            (outcome.unwrap(), bytes)
        };
        run();
        assert_same_tree(a, &source, &copy, None);
        let inodes = |names: &[&str]| -> Vec<u64> {
            names.iter().map(|name| fs::metadata(copy.join(name)).unwrap().ino()).collect()
        };
        let kept = ["d/000", "d/050", "d/199"];
        let (before, top) = (inodes(&kept), inodes(&["."]));
        let (_, nothing) = run();
        assert_eq!((inodes(&kept), inodes(&["."])), (before.clone(), top.clone()), "nothing was to be done");
        data::flip_bit(&source.join("large"), 2 * MIB);
        write(&source.join("large.time"), b"", 0);
        fs::rename(source.join("moves"), source.join("moved")).unwrap();
        let (_, little) = run();
        assert_same_tree(a, &source, &copy, None);
        assert_eq!(inodes(&kept), before);
        assert_ne!(inodes(&["."]), top);
        assert!(nothing < 60_000 && little < 500_000, "{way}: {nothing} {little}");
        assert_eq!(data::names(&place), ["copy", "source"]);
    }
}

/// What makes no sense with the option is refused in words before anything is done (exit 2), here and by a far end.
#[test]
fn what_does_not_go_together_is_refused() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let place = a.directory("place");
    let (source, copy) = (place.join("source"), place.join("copy"));
    write(&source.join("f"), b"f", 0);
    write(&source.join("list"), b"f\n", 0);
    write(&copy.join("mine"), b"mine", 0);
    let list = format!("--files-from={}", source.join("list").display());
    let refused: &[(&[&str], &str)] = &[
        (&["-a"], "--delete"),
        (&["-a", "--delete", "--exclude=x"], "--delete-excluded"),
        (&["-a", "--delete-excluded", "-f", "P x"], "protect"),
        (&["-a", "--delete-excluded", "-F"], "protect"),
        (&["-a", "--delete-excluded", "-b"], "--backup"),
        (&["-a", "--delete", "--link-dest=../other"], "--link-dest"),
        (&["-a", "--delete", "-u"], "-u"),
        (&["-a", "--delete", "--existing"], "--existing"),
        (&["-a", "--delete", "--ignore-existing"], "--ignore-existing"),
        (&["-a", "--delete", "--max-size=1M"], "--max-size"),
        (&["-a", "--delete", "--remove-source-files"], "--delete"),
        (&["-lptgoD", "--delete", "-d"], "directories alone"),
        (&["-ar", "--delete", &list], "--files-from"),
    ];
    for (options, said) in refused {
        for way in [Way::Here, Way::Up(b), Way::Down(b)] {
            let extra = [&["--atomic"], *options].concat();
            let outcome = sync(a, &case(&[]), &extra, &way, &source, &copy);
            assert!(outcome.code() == Some(2), "{way:?} {options:?}: {outcome}");
            assert!(outcome.stderr_text().contains(said), "{way:?} {options:?}: {outcome}");
        }
    }
    let run = |sources: &[PathBuf], to: &Path| {
        a.dray().args(["sync", "-a", "--delete", "--atomic"]).args(sources).arg(to).run()
    };
    symlink("copy", place.join("link")).unwrap();
    for (sources, to, said, code) in [
        (&[source.clone()][..], copy.clone(), "slash", 2),
        (&[source.join(""), place.join("")], copy.clone(), "slash", 2),
        (&[source.join("")], place.join("link"), "symbolic link", 6),
        (&[source.join("")], copy.join("."), "name", 6),
        (&[source.join("")], source.join("inner"), "would never end", 2),
    ] {
        let outcome = run(sources, &to).expect(code);
        assert!(outcome.stderr_text().contains(said), "{to:?}: {outcome}");
    }
    // A far end sees its own links.
    let far = up(a, b, &["-a", "--delete", "--atomic"], &source, &place.join("link")).wait();
    assert!(far.stderr_text().contains("symbolic link") && far.code() == Some(6), "{far}");
    let inside = up(a, b, &["-a", "--delete", "--atomic"], &source, &source.join("inner")).wait();
    assert!(inside.stderr_text().contains("lies in a source"), "{inside}");
    assert_eq!(
        (data::names(&place), data::names(&copy)),
        (vec!["copy".into(), "link".into(), "source".into()], vec!["mine".into()])
    );
    // Patterns go with the source's side of them alone.
    let extra = ["--atomic", "--delete-excluded", "--exclude=list"];
    sync(a, &case(&["-a"]), &extra, &Way::Up(b), &source, &copy).expect(0);
    assert_eq!(data::names(&copy), ["f"]);
}

/// A file system on which directories cannot change places is told before anything is copied.
#[test]
fn where_nothing_can_be_switched_is_told_first() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = a.directory("place");
    let (source, copy) = (place.join("source"), place.join("copy"));
    write(&source.join("f"), b"f", 0);
    write(&copy.join("mine"), b"mine", 0);
    for error in ["EINVAL", "ENOSYS", "EOPNOTSUPP"] {
        let inject = format!("inject=renameat2:error={error}");
        let strace =
            a.program("strace").args(["-f", "-o", "/dev/null", "-e", "trace=renameat2", "-e", &inject]);
        let strace = strace.arg(dray_e2e::gate::dray_binary()).args(["sync", "-a", "--delete", "--atomic"]);
        let outcome = strace.arg(source.join("")).arg(&copy).run();
        assert!(outcome.code().is_some_and(|code| code != 0), "{outcome}");
        assert!(outcome.stderr_text().contains("cannot change places"), "{outcome}");
        assert_eq!(
            (data::names(&place), data::names(&copy)),
            (vec!["copy".into(), "source".into()], vec!["mine".into()])
        );
    }
}

/// With `--watch` each change is switched in as a whole.
#[test]
fn what_is_watched_is_switched() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let place = a.directory("place");
    let (source, copy) = (place.join("source"), place.join("copy"));
    write(&source.join("f"), b"one", 0);
    let program = a.dray().args(["sync", "-a", "--delete", "--atomic", "--watch"]);
    let running = program.arg(source.join("")).arg(&copy).start();
    let has = |name: &str, text: &str| fs::read(copy.join(name)).is_ok_and(|found| found == text.as_bytes());
    await_that("what was there", || has("f", "one"));
    let first = fs::metadata(&copy).unwrap().ino();
    write(&source.join("g"), b"two", 0);
    await_that("what came", || has("g", "two"));
    assert_ne!(fs::metadata(&copy).unwrap().ino(), first);
    // A run that is stopped while it removes the old tree leaves that to the next one.
    await_that("the old tree goes", || data::names(&place) == ["copy", "source"]);
    running.interrupt();
    running.wait().expect(0);
}
