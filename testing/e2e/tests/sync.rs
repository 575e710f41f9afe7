//! `dray sync` beside rsync: the same options on twins of one tree, and both results and both accounts are the same. What must never happen is in
//! `sync_delete.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dray_e2e::twins::{Case, Way, case, check, set_times, sync, time, write};
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
        ["--delete", "-au", "-ac", "-aHAX", "-az", "--existing", "-r", "-d"]
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
        run(&["-a", "--mkpath"], &[]).expect(0);
        assert_eq!(fs::read(copy.join("f")).unwrap(), b"f");
    }
}
