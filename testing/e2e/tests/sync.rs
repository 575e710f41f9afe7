//! `dray sync` beside rsync: the same options on twins of one tree, and both results and both accounts are the same. What must never happen is in
//! `sync_delete.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use dray_e2e::Lab;
use dray_e2e::twins::{Case, Way, case, check};

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
