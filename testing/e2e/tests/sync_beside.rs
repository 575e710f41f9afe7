//! What `dray sync` does beside its destination, next to rsync with the same: what is replaced or deleted is kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use dray_e2e::actions::kill_one_end;
use dray_e2e::twins::{Case, LONG, Way, case, check, set_times, sync, time, up, write};
use dray_e2e::{Host, Lab, data, gate};

fn backups() -> Vec<Case> {
    let mut all: Vec<Case> = [
        &["-ab"][..],
        &["-ab", "--suffix=.old", "--exclude=*.o"],
        &["-ab", "--delete", "--exclude=/becomes-file"],
        &["-ab", "--delete", "--suffix=[x]", "--exclude=/becomes-file"],
        &["-a", "--backup-dir=kept"],
        &["-a", "--delete", "--backup-dir=kept/deep/er"],
        &["-ab", "--delete", "--backup-dir=kept", "--suffix=.old"],
        &["-aHAX", "--delete", "--backup-dir=kept"],
        &["-a", "--delete", "--max-delete=100", "--backup-dir=./kept"],
        &["-au", "--existing", "--backup-dir=kept"],
        &["-rlptgoD", "--suffix=.unused"],
    ]
    .into_iter()
    .map(case)
    .collect();
    // rsync's dry run says that it deletes directories in which it then keeps something.
    for case in all.iter_mut().filter(|case| case.options.starts_with(&["-ab", "--delete"])) {
        case.skips_dry_account = true;
    }
    let top = &["-ab", "--delete", "--exclude=/source/becomes-file"][..];
    all.push(Case { is_slashed: false, skips_dry_account: true, ..case(top) });
    all.push(Case { is_slashed: false, ..case(&["-a", "--delete", "--backup-dir=../kept"]) });
    all.push(Case { is_there: false, ..case(&["-ab", "--delete", "--backup-dir=kept"]) });
    all
}

/// Issue "--backup, --backup-dir, --suffix": what is kept, where, and what is said of it, is as with rsync, within a host.
#[test]
fn backups_are_those_of_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &backups());
}

/// The same over ssh, both ways. There a file of which only the time differs is not replaced, so not kept: here it is new instead.
#[test]
fn backups_are_those_of_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let is_wanted = |case: &Case| {
        ["-ab", "--backup-dir=kept", "--backup-dir=kept/deep/er"]
            .iter()
            .any(|word| case.options.contains(word))
    };
    let prepare = |place: &Path| {
        for copy in ["ours", "theirs"] {
            for top in ["", "source"] {
                let _ = fs::remove_file(place.join(copy).join(top).join("touched"));
            }
            if place.join(copy).exists() {
                set_times(&place.join(copy), -50);
            }
        }
    };
    let some: Vec<Case> =
        backups().into_iter().filter(is_wanted).map(|case| Case { prepare, ..case }).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

/// Issue "--backup-dir": a directory for backups that is made in the destination once that has its time leaves it that, as with rsync, each way.
#[test]
fn a_directory_of_backups_changes_no_time() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        let (source, copy) = (a.directory(&format!("s{number}")), a.directory(&format!("c{number}")));
        for (top, name) in [(&source, "sub/same"), (&copy, "sub/same"), (&copy, "sub/goes")] {
            write(&top.join(name), b"as it was", 0);
        }
        set_times(&source, -1000);
        let kept = Case { options: &["-a", "--delete", "--backup-dir=kept"], ..case(&["-a"]) };
        sync(a, &kept, &[], &way, &source, &copy).expect(0);
        assert!(copy.join("kept/sub/goes").exists());
        for name in ["", "sub"] {
            let time = |top: &Path| fs::metadata(top.join(name)).unwrap().modified().unwrap();
            assert_eq!(time(&source), time(&copy), "{name:?} {number}");
        }
    }
}

fn mount(what: &str, path: &Path) {
    let mut command = std::process::Command::new(if what.is_empty() { "umount" } else { "mount" });
    if !what.is_empty() {
        command.args(["-t", what, "none"]);
    }
    assert!(command.arg(path).status().unwrap().success(), "{what} {path:?}");
}

fn run(a: &Host, options: &[&str], kept: &Path, source: &Path, copy: &Path) -> dray_e2e::process::Outcome {
    let option = format!("--backup-dir={}", kept.display());
    a.dray()
        .args(["sync", "-aX"])
        .args(options)
        .arg(option)
        .arg(source.join(""))
        .arg(copy)
        .time_limit(LONG)
        .run()
}

/// Issue "the directory may be on any file system": each sort of entry is kept there as it was, with bits, time and attributes, whether it was replaced or
/// deleted; and once more it takes the place of the older one.
#[test]
fn backups_go_to_another_file_system() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, kept) = (a.directory("source"), a.directory("copy"), a.directory("kept"));
    mount("tmpfs", &kept);
    let below = kept.join("to/day");
    for (name, content) in [("d/replaced", "old bytes"), ("d/deleted", "gone"), ("d/node", "node")] {
        write(&copy.join(name), content.as_bytes(), 7);
        fs::set_permissions(copy.join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    rustix::fs::setxattr(copy.join("d/replaced"), "user.note", b"mine", rustix::fs::XattrFlags::empty())
        .unwrap();
    symlink("away", copy.join("d/link")).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, copy.join("d/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::set_permissions(copy.join("d"), fs::Permissions::from_mode(0o750)).unwrap();
    write(&source.join("d/replaced"), b"new bytes", 9);
    fs::create_dir(source.join("d/node")).unwrap();
    let outcome = run(a, &["--delete", "-n"], &below, &source, &copy);
    let is_dry = fs::read_dir(&kept).unwrap().next().is_none();
    let outcome = (outcome, run(a, &["--delete"], &below, &source, &copy));
    let found = |name: &str| fs::symlink_metadata(below.join("d").join(name));
    let facts = ["replaced", "deleted", "node"].map(|name| {
        let content = fs::read_to_string(below.join("d").join(name)).unwrap_or_default();
        (content, found(name).map(|found| (found.mode() & 0o7777, found.mtime())).ok())
    });
    let mut value = [0; 8];
    let note = rustix::fs::getxattr(below.join("d/replaced"), "user.note", &mut value[..]);
    let link = fs::read_link(below.join("d/link"));
    let is_pipe = found("pipe").is_ok_and(|found| found.file_type().is_fifo());
    let mode = fs::metadata(below.join("d")).map(|found| found.mode() & 0o7777);
    write(&source.join("d/replaced"), b"newer bytes", 11);
    let again = run(a, &["--delete"], &below, &source, &copy);
    let second = fs::read(below.join("d/replaced")).unwrap_or_default();
    let left = data::names(&below.join("d"));
    mount("", &kept);
    outcome.0.expect(0);
    outcome.1.expect(0);
    again.expect(0);
    assert!(is_dry, "a dry run made a directory");
    let old = |content: &str| (content.to_owned(), Some((0o640, 1_700_000_007)));
    assert_eq!(facts, [old("old bytes"), old("gone"), old("node")]);
    assert_eq!(note.map(|len| value[..len].to_vec()).ok(), Some(b"mine".to_vec()));
    assert_eq!((link.ok(), is_pipe, mode.ok()), (Some("away".into()), true, Some(0o750)));
    assert_eq!(second, b"new bytes");
    assert_eq!(left, ["deleted", "link", "node", "pipe", "replaced"]);
    assert_eq!(data::names(&copy.join("d")), ["node", "replaced"]);
}

/// S82: a link that lies in DST, as a source may have put it there, leads no backup out; what this run kept in a directory that goes is not
/// deleted with it; and nothing is kept under its own name.
#[test]
fn backups_stay_and_stay_inside() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, _) = lab.pair();
    let (source, copy, outside) = (a.directory("source"), a.directory("copy"), a.directory("outside"));
    write(&outside.join("f"), b"outside", 9);
    for side in [&source, &copy] {
        symlink(&outside, side.join("kept")).unwrap();
    }
    write(&source.join("f"), b"new", 9);
    write(&copy.join("f"), b"old", 0);
    let case = Case { is_slashed: true, ..case(&["-a"]) };
    for kept in ["--backup-dir=kept", "--backup-dir=."] {
        sync(a, &case, &[kept], &Way::Here, &source, &copy).expect(8);
        assert_eq!(fs::read(outside.join("f")).unwrap(), b"outside", "{kept}");
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"old", "{kept}: what cannot be kept stays");
    }
    write(&copy.join("gone/x"), b"last", 0);
    write(&copy.join("gone/x~"), b"before", 0);
    sync(a, &case, &["-b", "--delete-excluded"], &Way::Here, &source, &copy).expect(0);
    assert_eq!(fs::read(copy.join("gone/x~")).unwrap(), b"last");
    assert!(!copy.join("gone/x").exists());
}

/// Issue "a backup never overwrites a source", be it a directory or a file, within a host and where ssh leads to the same one; nor does a directory go.
#[test]
fn backups_spare_the_sources() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    let set = || {
        write(&source.join("d/f"), b"new", 9);
        write(&copy.join("d/f"), b"old", 0);
        write(&copy.join("extra"), b"extra", 0);
    };
    for way in [Way::Here, Way::Up(b)] {
        for kept in ["--backup-dir=../source", "--backup-dir=../source/d/inner", "--backup-dir=../source/.."]
        {
            set();
            let case = Case { is_slashed: true, ..case(&["-a", "--delete"]) };
            let outcome = sync(a, &case, &[kept], &way, &source, &copy);
            assert_eq!(fs::read(source.join("d/f")).unwrap(), b"new", "{way:?} {kept}");
            assert_eq!(data::names(&source), ["d"], "{way:?} {kept}");
            if kept.ends_with("..") {
                // That is none; what is kept there has other names.
                outcome.expect(0);
                assert_eq!(fs::read(a.file("d/f")).unwrap(), b"old");
                fs::remove_dir_all(a.file("d")).unwrap();
                fs::remove_file(a.file("extra")).unwrap();
            } else {
                let outcome = outcome.expect(8);
                assert!(outcome.stderr_text().contains("a source of this run"), "{way:?} {kept}: {outcome}");
                assert_eq!(fs::read(copy.join("d/f")).unwrap(), b"old", "what cannot be kept stays");
                assert!(copy.join("extra").exists());
            }
        }
    }
    // A file as the source, and its own name as that of the backup.
    let (one, to) = (a.file("one"), a.directory("to"));
    write(&one, b"new", 9);
    write(&to.join("one"), b"old", 0);
    let outcome = a.dray().args(["sync", "-a", "--backup-dir=.."]).arg(&one).arg(&to).run();
    assert_ne!(outcome.code(), Some(0), "{outcome}");
    assert_eq!(
        (fs::read(&one).unwrap(), fs::read(to.join("one")).unwrap()),
        (b"new".to_vec(), b"old".to_vec())
    );
}

/// A key that is confined to a directory keeps nothing outside of it.
#[test]
fn a_confined_key_keeps_backups_within() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let only = b.directory("only");
    let command = format!("{} serve --stdio --only {}", gate::dray_binary().display(), only.display());
    let source = a.directory("source");
    write(&source.join("f"), b"new", 9);
    symlink(b.directory("outside"), only.join("way")).unwrap();
    for (number, (kept, is_taken)) in
        [("kept", true), ("../kept", false), ("../../kept", false), ("../way", false), ("/tmp/kept", false)]
            .into_iter()
            .enumerate()
    {
        write(&only.join("to/f"), b"old", 0);
        let ssh = b.sshd().restricted_command(&format!("key{number}"), &command);
        let program = a.dray().args(["sync", "-a", "-e"]).arg(&ssh);
        let program = program.arg(format!("--backup-dir={kept}")).arg(source.join(""));
        let outcome = program.arg(b.remote(Path::new("to"))).time_limit(LONG).run();
        assert_eq!(outcome.code() == Some(0), is_taken, "{kept}: {outcome}");
        let content = fs::read(only.join("to/f")).unwrap();
        assert_eq!(content, if is_taken { b"new" } else { b"old" }, "{kept}");
        assert!(
            fs::read_dir(b.file("outside")).unwrap().next().is_none() && !Path::new("/tmp/kept").exists()
        );
    }
    assert_eq!(fs::read(only.join("to/kept/f")).unwrap(), b"old");
}

/// Beside the destination, others that have some of the source: as it is, with other bits, another time, other bytes, another target or kind.
/// They lack what is up to date in the destination: that stays, where rsync makes a link of it, and with `--compare-dest` deletes it.
/// Nor have they what a directory makes way for, which then comes as if there were no others.
fn others(place: &Path) {
    let source = place.join("source");
    for (name, content, seconds) in
        [("attr", "attr", 3), ("time", "time", 3), ("deep/er/h", "h", 3), ("bytes", "AAAA", 4)]
    {
        write(&source.join(name), content.as_bytes(), seconds);
    }
    symlink("kept", source.join("same-link")).unwrap();
    data::write_random(&source.join("large"), 300_000, 5);
    set_times(&source, 0);
    for (other, without) in [("one", "sub/a.o"), ("two", "hard")] {
        let other = place.join(other);
        assert!(
            std::process::Command::new("cp").arg("-a").arg(&source).arg(&other).status().unwrap().success()
        );
        for name in [without, "same", "quiet", "sub/a.c", "becomes-file"] {
            fs::remove_file(other.join(name)).unwrap();
        }
    }
    let one = place.join("one");
    fs::set_permissions(one.join("attr"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(one.join("deep/er"), fs::Permissions::from_mode(0o700)).unwrap();
    write(&one.join("time"), b"time", 99);
    write(&one.join("bytes"), b"AAAAA", 4);
    fs::remove_file(one.join("link")).unwrap();
    symlink("elsewhere", one.join("link")).unwrap();
    fs::remove_file(one.join("pipe")).unwrap();
    write(&one.join("pipe"), b"a file", 0);
    set_times(&one, 0);
    set_times(&place.join("two"), 0);
}

fn bases() -> Vec<Case> {
    let mut all = Vec::new();
    for options in [
        &["-a", "--link-dest=../one"][..],
        &["-aH", "--link-dest=../one"],
        &["-a", "--link-dest={place}/one", "--link-dest=../two"],
        &["-a", "--delete", "--link-dest=../one"],
        &["-a", "--link-dest=../missing", "--link-dest=../one"],
        &["-r", "--link-dest=../one"],
        &["-aI", "--link-dest=../one"],
        &["-a", "--size-only", "--link-dest=../one"],
        &["-a", "--copy-dest=../one"],
        &["-a", "--copy-dest=../one", "--copy-dest=../two"],
        &["-a", "--compare-dest=../one", "--compare-dest=../two"],
        &["-a", "--compare-dest=../one"],
    ] {
        // Without times and bits all of it is up to date there, and stays.
        if options[0] != "-r" {
            all.push(Case { prepare: others, ..case(options) });
        }
        all.push(Case { prepare: others, is_there: false, ..case(options) });
    }
    // By hash only what is not there is looked for. Once more, over ssh, a large file that is the same is told as one that came.
    let by_hash = case(&["-ac", "--link-dest=../one"]);
    all.push(Case { prepare: others, is_there: false, skips_dry_account: true, goes_on: true, ..by_hash });
    all
}

/// Issue "--link-dest, --copy-dest, --compare-dest": what is made, of what, and what is said of it, is as with rsync, within a host.
#[test]
fn other_directories_are_used_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &bases());
}

/// The same over ssh, both ways.
#[test]
fn other_directories_are_used_as_with_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let is_wanted = |case: &Case| case.options.len() == 2 && case.options[0] != "-r";
    let some: Vec<Case> = bases().into_iter().filter(is_wanted).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

/// The point of --link-dest: what did not change takes no room, also where it is large, and what did has a file of its own; nothing of the other directory
/// changes. From a directory on another file system it is copied.
#[test]
fn what_did_not_change_is_linked() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (source, mounted) = (a.directory("source"), a.directory("mounted"));
    write(&source.join("d/small"), b"small", 5);
    data::write_random(&source.join("d/large"), 3 << 20, 5);
    write(&source.join("d/bits"), b"bits", 5);
    set_times(&source, 0);
    // Before the other host begins, so that it sees that, too.
    mount("tmpfs", &mounted);
    b.sshd();
    for top in [a.file("old"), mounted.join("old")] {
        let copied = a.program("cp").arg("-a").arg(&source).arg(&top).run();
        copied.expect(0);
        fs::set_permissions(top.join("d/bits"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let inode = |path: &Path| fs::metadata(path).map(|found| found.ino()).ok();
    let mut told = Vec::new();
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        for (kind, old) in [("near", a.file("old")), ("far", mounted.join("old"))] {
            let copy = a.file(format!("{kind}{number}"));
            let option: &'static str = String::leak(format!("--link-dest={}", old.display()));
            let outcome = sync(a, &case(&["-a"]), &["--stats", option], &way, &source, &copy);
            let is_linked = ["d/large", "d/small", "d/bits"]
                .map(|name| inode(&copy.join(name)) == inode(&old.join(name)));
            let bits = fs::metadata(old.join("d/bits")).map(|found| found.mode() & 0o777).ok();
            told.push((outcome, is_linked, bits, kind, copy));
        }
    }
    mount("", &mounted);
    for (outcome, is_linked, bits, kind, copy) in told {
        let outcome = outcome.expect(0);
        assert_eq!(is_linked, [kind == "near", kind == "near", false], "{outcome}");
        assert_eq!(bits, Some(0o600), "the other directory is left alone");
        assert!(outcome.stdout_text().contains("content transferred: 0\n"), "{outcome}");
        dray_e2e::actions::assert_same_tree(a, &source, &copy, None);
    }
}

/// Issue "a second run into a --link-dest DST changes the old backup": whatever of a file that did not change differs by then, it is a file of its own after that run, and the
/// other directory is what it was; within a host and over ssh, for small files and large ones.
#[test]
fn a_second_run_leaves_the_other_directory_alone() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        let place = a.directory(&format!("place{number}"));
        let (source, old, copy) = (place.join("source"), place.join("old"), place.join("copy"));
        for name in ["time", "bits", "owner", "hash"] {
            write(&source.join(name), name.as_bytes(), 5);
            data::write_random(&source.join(format!("large-{name}")), 300_000, 5);
        }
        symlink("time", source.join("link")).unwrap();
        set_times(&source, 0);
        a.program("cp").arg("-a").arg(&source).arg(&old).run().expect(0);
        let option: &'static str = String::leak(format!("--link-dest={}", old.display()));
        sync(a, &case(&["-a"]), &[option], &way, &source, &copy).expect(0);
        let names = data::names(&source);
        let facts = |top: &Path| -> Vec<(u64, u32, u32, i64, i64)> {
            let found = names.iter().map(|name| fs::symlink_metadata(top.join(name)).unwrap());
            found.map(|it| (it.ino(), it.mode(), it.uid(), it.mtime(), it.mtime_nsec())).collect()
        };
        let before = facts(&old);
        assert!(before.iter().zip(facts(&copy)).all(|(old, new)| old.0 == new.0), "{way:?}: all are shared");
        for large in ["", "large-"] {
            let path = |name: &str| source.join(format!("{large}{name}"));
            fs::File::open(path("time")).unwrap().set_modified(time(9)).unwrap();
            fs::set_permissions(path("bits"), fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(path("owner"), Some(12), Some(34)).unwrap();
        }
        set_times(&source, 3);
        sync(a, &case(&["-a"]), &[option], &way, &source, &copy).expect(0);
        assert_eq!(facts(&old), before, "{way:?}: the other directory is as it was");
        dray_e2e::actions::assert_same_tree(a, &source, &copy, None);
        let again = sync(a, &case(&["-ai"]), &[option], &way, &source, &copy).expect(0);
        assert_eq!(again.stdout_text(), "", "{way:?}");
        // By hash, and then the time.
        fs::File::open(source.join("large-hash")).unwrap().set_modified(time(7)).unwrap();
        sync(a, &case(&["-ac"]), &[], &way, &source, &copy).expect(0);
        assert_eq!(facts(&old), before, "{way:?}: by hash");
        dray_e2e::actions::assert_same_tree(a, &source, &copy, None);
    }
}

/// Issue "interrupted runs": what a run with --partial, or --inplace, left of a file goes with the run that brings the file, also one without the option.
#[test]
fn what_was_left_goes_with_the_file() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    data::write_random(&source.join("large"), 8 << 20, 9);
    let mut were_left = 0;
    for (number, option) in ["--partial", "--inplace"].into_iter().enumerate() {
        for has_older in [false, true] {
            let copy = b.directory(&format!("copy{number}{has_older}"));
            if has_older {
                data::write_random(&copy.join("large"), 4 << 20, 10);
            }
            let before = lab_bytes(&copy);
            let running = up(a, b, &["-a", option], &source, &copy);
            running.wait_until(false, || lab_bytes(&copy) > before + (2 << 20));
            kill_one_end(running, b, false);
            were_left += u32::from(data::names(&copy).iter().any(|name| data::is_ours(name)));
            up(a, b, &["-a"], &source, &copy).wait().expect(0);
            assert_eq!(data::names(&copy), ["large"], "{option} {has_older}");
            assert!(fs::read(copy.join("large")).unwrap() == fs::read(source.join("large")).unwrap());
        }
    }
    // One that is cut off at its very end leaves none.
    assert!(were_left > 1, "{were_left}");
}

/// Issue "a first large file cut off begins anew": with --partial the next run takes of what was left, whichever end was killed; without, all of it comes
/// again. What is under the name of the file meanwhile stays what it was, nothing or an older version, and nothing is left at the end.
#[test]
fn a_large_file_goes_on_where_it_was_cut_off() {
    const SIZE: u64 = 24 << 20;
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    data::write_random(&source.join("large"), SIZE, 9);
    let option: &'static [&'static str] = &["-a", "--partial"];
    // Where a directory is named it is neither made nor needed.
    let named: &'static [&'static str] = &["-a", "--partial-dir=kept"];
    let older = a.file("older");
    data::write_random(&older, SIZE / 2, 10);
    let cases = [
        (option, false, false),
        (option, true, false),
        (named, false, false),
        (&["-a"][..], false, false),
        (option, false, true),
        (option, true, true),
    ];
    for (number, (options, kills_far, has_older)) in cases.into_iter().enumerate() {
        let copy = b.directory(&format!("copy{number}"));
        if has_older {
            fs::copy(&older, copy.join("large")).unwrap();
        }
        let before = lab_bytes(&copy);
        let running = up(a, b, options, &source, &copy);
        running.wait_until(false, || {
            let came = options.len() == 1 || lab_bytes(&copy) > before + (10 << 20);
            came && (options.len() > 1 || elapsed(&copy) > 2)
        });
        kill_one_end(running, b, kills_far);
        match has_older {
            true => assert!(fs::read(copy.join("large")).unwrap() == fs::read(&older).unwrap()),
            false => assert!(!copy.join("large").exists()),
        }
        let outcome = up(a, b, &[options, &["--stats"]].concat(), &source, &copy).wait().expect(0);
        let line = outcome
            .stdout_text()
            .lines()
            .find_map(|line| line.strip_prefix("Total bytes of content transferred: ").map(str::to_owned));
        let came: u64 = line.unwrap().parse().unwrap();
        match options.len() {
            1 => assert_eq!(came, SIZE),
            _ => assert!(came < SIZE - (6 << 20), "{came} bytes came again"),
        }
        assert_eq!(data::names(&copy), ["large"]);
        dray_e2e::actions::assert_same_tree(a, &source, &copy, None);
    }
}

/// Bytes on the disk in a directory, of hidden files, too.
fn lab_bytes(copy: &Path) -> u64 {
    let entries = fs::read_dir(copy).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// Seconds since a directory was made.
fn elapsed(copy: &Path) -> u64 {
    let made = fs::metadata(copy).and_then(|found| found.modified()).unwrap();
    made.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}
