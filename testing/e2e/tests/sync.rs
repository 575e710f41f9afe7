//! `dray sync` beside rsync: the same options on twins of one tree, and both results and both accounts are the same. What must never happen is in
//! `sync_delete.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use dray_core::text::from_hex;
use dray_e2e::twins::{
    Case, LONG, Way, case, check, odd_names, rsync, set_times, source_and_destination, sync, time, told,
    write,
};
use dray_e2e::{Lab, data};

/// Large files that are the same but for nothing, for their times, or for a byte.
fn large_ones(place: &Path) {
    for (name, seed) in [("large-same", 1), ("large-touched", 2), ("large-other", 3)] {
        for copy in ["source", "ours", "theirs"] {
            let path = place.join(copy).join(name);
            data::write_random(&path, 300_000, seed);
            let is_other = copy != "source" && name != "large-same";
            if name == "large-other" && is_other {
                fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"?", 200_000).unwrap();
            }
            fs::File::open(&path).unwrap().set_modified(time(i64::from(is_other))).unwrap();
            set_times(&place.join(copy), if copy == "source" { 0 } else { -50 });
        }
    }
}

/// Names that are no text, of what comes, changes and goes.
fn names_that_are_odd(place: &Path) {
    odd_names(&place.join("source"));
    for copy in ["ours", "theirs"] {
        let of = |name| place.join(copy).join(OsStr::from_bytes(name));
        write(&of(b"x\xff"), b"older", -9);
        write(&of(b"gone\n\xfe/\x01"), b"", 0);
        write(&of(br"gone\#134"), b"", 0);
        set_times(&place.join(copy), -50);
    }
    set_times(&place.join("source"), 0);
}

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::File::options().read(true).write(true).open(path).unwrap().set_modified(time(0)).unwrap();
}

/// Files, fifos and links of two names each, of which a destination has none, the first, or both, which are as at the source or other ones.
fn names_of_one_file(place: &Path) {
    let source = place.join("source");
    for name in ["both", "first", "other", "another"] {
        write(&source.join(format!("{name}-1")), b"bytes", 0);
    }
    fifo(&source.join("fifo-1"));
    fifo(&source.join("fifos-1"));
    symlink("to", source.join("link-1")).unwrap();
    for name in ["both", "first", "other", "another", "fifo", "fifos", "link"] {
        fs::hard_link(source.join(format!("{name}-1")), source.join(format!("{name}-2"))).unwrap();
    }
    for copy in ["ours", "theirs"] {
        let of = |name: &str| place.join(copy).join(name);
        // What is there already is the first with both: of new ones rsync takes the last.
        for name in ["hard", "both-1", "both-2", "first-1", "other-1", "another-1"] {
            write(&of(name), if name == "hard" { b"hard" } else { b"bytes" }, 0);
        }
        write(&of("other-2"), b"other bytes", 3);
        write(&of("another-2"), b"bytes", 0);
        fs::set_permissions(of("another-2"), fs::Permissions::from_mode(0o600)).unwrap();
        fifo(&of("fifos-1"));
        fifo(&of("fifos-2"));
        set_times(&place.join(copy), -50);
    }
    set_times(&source, 0);
}

/// The same, and a fifo that a destination has by both names and with other bits.
fn names_that_were_linked(place: &Path) {
    names_of_one_file(place);
    for top in ["source", "ours", "theirs"] {
        let [one, other] = ["joined-1", "joined-2"].map(|name| place.join(top).join(name));
        fifo(&one);
        let mode = if top == "source" { 0o600 } else { 0o640 };
        fs::set_permissions(&one, fs::Permissions::from_mode(mode)).unwrap();
        fs::hard_link(&one, &other).unwrap();
        set_times(&place.join(top), if top == "source" { 0 } else { -50 });
    }
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
        &["-a", "--ignore-existing", "--exclude=/becomes-dir/"],
        &["-a", "--ignore-existing", "--exclude=/becomes-dir/", "--delete"],
        &["-a", "--inplace", "--delete"],
        &["-avvzc", "--no-v", "--no-z", "--no-c", "--no-partial", "--no-bwlimit"],
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
        &["-aO", "--delete"],
        &["-aJ"],
        &["-rltOJ"],
        &["-a", "--max-size=4"],
        &["-a", "--max-size=1K", "--min-size=4", "--delete"],
        &["-am", "--exclude=*.o", "--delete"],
        &["-am", "--include=*/", "--include=*.c", "--exclude=*"],
    ]
    .into_iter()
    .map(case)
    .collect();
    for options in [&["-d"][..], &["-dlptgoD"], &["-dlptgoD", "--delete"], &["-dlt", "--exclude=*.o"]] {
        all.push(case(options));
        all.push(Case { is_slashed: false, ..case(options) });
        all.push(Case { is_there: false, ..case(options) });
    }
    all.push(Case { is_there: false, ..case(&["-a", "--mkpath"]) });
    for options in [&["-a"][..], &["-a", "--delete"], &["-a", "--exclude=/source/build", "--delete"]] {
        all.push(Case { is_slashed: false, ..case(options) });
        all.push(Case { is_there: false, ..case(options) });
        all.push(Case { is_slashed: false, is_there: false, ..case(options) });
    }
    // rsync's dry run says that it deletes directories which it then leaves, because of what is excluded in them; ours tells of files that
    // would be compared.
    let globs = &["-a", "--include=*/", "--include=*.c", "--exclude=*", "--delete"][..];
    all.push(Case { skips_dry_account: true, ..case(globs) });
    all.push(Case { prepare: names_of_one_file, ..case(&["-aH", "--delete"]) });
    // rsync's dry run tells of the second name what the first one's change brings it.
    let linked = Case { prepare: names_that_were_linked, ..case(&["-aH"]) };
    all.push(Case { skips_dry_account: true, ..linked });
    all.push(Case { prepare: names_that_are_odd, ..case(&["-a", "--delete"]) });
    for options in [&["-ac"][..], &["-ac", "--delete"]] {
        all.push(Case { skips_dry_account: true, prepare: large_ones, ..case(options) });
    }
    all
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
        ["--delete", "-au", "-ac", "-aHAX", "-az", "--existing", "--ignore-existing", "-r", "-d"]
            .iter()
            .any(|word| case.options.contains(word))
    };
    let some: Vec<Case> = cases().into_iter().filter(is_wanted).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

/// Issue "--mkpath": the directories above the destination are made as rsync makes them, over ssh, too; a dry run makes none, and without it that is an error.
#[test]
fn the_way_to_the_destination_is_made() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    write(&source.join("f"), b"f", 0);
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        let above = a.file(format!("above{number}"));
        let copy = above.join("one/two");
        let run = |options, extra: &[&str]| sync(a, &case(options), extra, &way, &source, &copy);
        assert_ne!(run(&["-a"], &[]).code(), Some(0), "{way:?}");
        let dry = run(&["-a", "--mkpath"], &["-ni"]).expect(0);
        assert!(!above.exists(), "{way:?}");
        assert!(dry.stdout_text().contains("f+++++++++ f"), "{way:?} {dry}");
        let quiet = run(&["-a", "--mkpath"], &["-niq", "--stats"]).expect(0);
        assert!(quiet.stdout_text().is_empty(), "{way:?} {quiet}");
        run(&["-a", "--mkpath"], &[]).expect(0);
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"f");
    }
}

/// Issue 7 "-v": what is named is what rsync names, without the lines before and after.
#[test]
fn names_are_those_of_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    for options in [&["-av"][..], &["-avn", "--delete"], &["-av", "--delete"], &["-rvv"], &["-av", "--no-v"]]
    {
        let place = a.directory("case");
        let [source, ours, theirs] = ["source", "ours", "theirs"].map(|name| place.join(name));
        for path in [&source, &ours] {
            fs::create_dir(path).unwrap();
        }
        source_and_destination(&source, &ours, true);
        odd_names(&source);
        a.program("cp").arg("-a").arg(&ours).arg(&theirs).run().expect(0);
        let slashed = format!("{}/", source.display());
        // Without what names no entry.
        let named = |text: String| -> BTreeSet<String> {
            let is_besides = |line: &&str| {
                let words = [
                    "sending incremental",
                    "delta-transmission",
                    "sent ",
                    "total",
                    "skipping non-regular",
                    "cannot delete non-empty",
                    "created directory",
                ];
                line.is_empty()
                    || line.ends_with(" is uptodate")
                    || words.iter().any(|word| line.starts_with(word))
            };
            text.lines().filter(|line| !is_besides(line)).map(str::to_owned).collect()
        };
        // rsync fails where a directory that is not empty is in the way.
        let theirs = named(rsync(a).args(options).arg(&slashed).arg(&theirs).run().stdout_text());
        let dray = named(a.dray().arg("sync").args(options).arg(&slashed).arg(&ours).run().stdout_text());
        assert_eq!(dray, theirs, "{options:?}");
        assert_eq!(dray.is_empty(), options.contains(&"--no-v"), "{options:?}: {dray:?}");
        fs::remove_dir_all(&place).unwrap();
    }
}

/// Threat model: with `--json` no two names are the same, as what is not UTF-8 stands there in hex digits, too; and what fails is named as `-i` names it,
/// whichever end it comes from.
#[test]
fn names_that_are_no_text_are_told_apart() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    odd_names(&source);
    let name = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let all: BTreeSet<Vec<u8>> = data::names_below(&source).iter().map(|path| name(path)).collect();
    for (number, way) in [Way::Here, Way::Up(b), Way::Down(b)].into_iter().enumerate() {
        let copy = a.directory(&format!("copy{number}"));
        // A directory that is not empty makes no way without --delete.
        write(&copy.join(OsStr::from_bytes(b"x\xff/inner")), b"in the way", 0);
        let run = |extra: &str| sync(a, &case(&["-a"]), &[extra], &way, &source, &copy).expect(8);
        let (mut told, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for line in run("--json").stdout_text().lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let Some(text) = event["path"].as_str() else { continue };
            let mut bytes: Vec<u8> =
                event["path_hex"].as_str().map_or_else(|| text.into(), |hex| from_hex(hex).unwrap());
            // Of a directory.
            bytes.pop_if(|byte| *byte == b'/');
            match event["event"].as_str() {
                Some("entry-failed") => assert!(failed.insert(bytes), "{way:?}: {line}"),
                _ => assert!(told.insert(bytes), "{way:?}: {line}"),
            }
        }
        // If its time is another one.
        told.remove(&b"."[..]);
        assert_eq!(failed, BTreeSet::from([b"x\xff".to_vec()]), "{way:?}");
        told.extend(failed);
        assert_eq!(told, all, "{way:?}");
        let outcome = run("-i");
        assert!(outcome.stderr_text().contains(r#"failed: "x\#377": "#), "{way:?}: {outcome}");
    }
}

/// rsync's habit: a single file that takes another name at the destination is told by its own one, by a dry run, too, whether something has that other name or not.
#[test]
fn a_file_that_takes_another_name_is_told_by_its_own() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for way in [Way::Here, Way::Up(b), Way::Down(b)] {
        let place = a.directory("case");
        let [source, ours, theirs] = ["own", "ours/other", "theirs/other"].map(|name| place.join(name));
        for copy in ["ours", "theirs"] {
            fs::create_dir(place.join(copy)).unwrap();
        }
        let changes: [&dyn Fn(); 4] = [
            &|| write(&source, b"new", 0),
            &|| write(&source, b"longer", 5),
            &|| fs::set_permissions(&source, fs::Permissions::from_mode(0o600)).unwrap(),
            &|| {
                fs::remove_file(&source).unwrap();
                symlink("to", &source).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            change();
            for extra in [&["-i", "-n"][..], &["-i"]] {
                let case = Case { is_slashed: false, ..case(&["-a"]) };
                let dray = told(&sync(a, &case, extra, &way, &source, &ours).expect(0));
                let rsync = rsync(a).args(extra).arg("-a").arg(&source).arg(&theirs).run().expect(0);
                assert_eq!(dray, told(&rsync), "{way:?} {number} {extra:?}");
                assert!(
                    dray.iter().any(|line| line.contains(" own")),
                    "{way:?} {number} {extra:?}: {dray:?}"
                );
            }
        }
        fs::remove_dir_all(&place).unwrap();
    }
}

/// Issue 7 "--bwlimit": the rate, by the interface's counters while a file is on its way, both ways.
#[test]
fn the_rate_of_a_sync_is_obeyed() {
    const RATE: u64 = 1 << 20;
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    data::write_random(&source.join("f"), 4 * RATE, 7);
    for (way, copy) in [(Way::Up(b), b.directory("up")), (Way::Down(b), a.directory("down"))] {
        let (before, begun) = (b.counters(), Instant::now());
        sync(a, &case(&["-a", "--bwlimit=1M"]), &[], &way, &source, &copy).expect(0);
        let (carried, elapsed) = ((b.counters() - before).bytes(), begun.elapsed());
        data::assert_same(&source.join("f"), &copy.join("f"));
        assert!(carried > 4 * RATE, "{way:?}: it came another way");
        let rate = 4.0 * RATE as f64 / elapsed.as_secs_f64();
        assert!(rate < RATE as f64 * 1.05, "{way:?}: {rate} bytes a second");
    }
}

/// rsync's habit: the shell may stand in a variable; it is not asked for within a host, and `-e` counts before it.
#[test]
fn the_shell_may_stand_in_a_variable() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.directory("source");
    write(&source.join("f"), b"f", 0);
    let ssh = b.ssh_command();
    let slashed = format!("{}/", source.display());
    let run = |shell: &str, said: &[&str], to: &OsStr| {
        let program = a.dray().args(["sync", "-a"]).args(said).env("RSYNC_RSH", shell);
        program.arg(&slashed).arg(to).time_limit(LONG).run()
    };
    let there = |name: &str| b.remote(&b.file(name));
    run(&ssh, &[], &there("one")).expect(0);
    run("rsh", &["-e", &ssh], &there("two")).expect(0);
    run("rsh", &[], a.file("three").as_os_str()).expect(0);
    let refused = run("rsh -l me", &[], &there("four"));
    assert!(refused.code() == Some(2) && refused.stderr_text().contains("RSYNC_RSH"), "{refused}");
    for copy in [b.file("one"), b.file("two"), a.file("three")] {
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"f");
    }
    assert!(!b.file("four").exists());
}

/// Issue 7 "rsync's habits": a SRC that is a link, and copied as one, is copied again; it is not what it leads to.
#[test]
fn a_link_is_brought_up_to_date() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (source, copy, below) = (host.directory("source"), host.directory("copy"), host.directory("below"));
    symlink(&below, source.join("link")).unwrap();
    for options in [&["-a"][..], &["-a", "--delete"], &["-ai"], &["-an", "--delete"]] {
        let said = host.dray().arg("sync").args(options).arg(source.join("link")).arg(&copy).run().expect(0);
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), below, "{said}");
    }
    // What a link with a slash leads to is what it is, and a link onto itself is none to another place.
    let onto = host.dray().args(["sync", "-a"]).arg(source.join("link/")).arg(&below).run();
    assert_eq!(onto.code(), Some(2), "{onto}");
    let itself = host.dray().args(["sync", "-a"]).arg(source.join("link")).arg(&source).run();
    assert_eq!(itself.code(), Some(2), "{itself}");
}
