//! The targets, each beside what was seen, and on how many runs that rests. A target that is missed stays here until it is met; one that nobody has
//! measured says so.

use super::numbers::{Basis, Cell, Entry, Numbers, Paired, ROUNDS_MIN, may_be_left_out, median};
use super::receiver;
use crate::cell::TO_IDEAL;
use crate::contenders::Mover;

const LARGE: &str = "file-2147483648";
const SMALL: &str = "file-1024";
const FEW: &str = "tree-10000x4096";
const MANY: &str = "tree-50000x4096";
const FLAT: &str = "flat-50000x4096";
const HALF: &str = "file-536870912";
const UNSHAPED: &str = "unshaped";
const LONG: &str = "100m-132ms";

/// Row, cell and link, two contenders without their direction, in which directions, and what the time of the first over that of the second must not
/// pass, in one run.
type Target = (&'static str, &'static str, &'static str, Mover, Mover, Ways, f64);

#[derive(Clone, Copy)]
enum Ways {
    Pull,
    Both,
}

use Mover::*;
use Ways::{Both, Pull};

const TARGETS: &[Target] = &[
    ("P1", LARGE, UNSHAPED, DrayGet, RsyncDaemon, Pull, 0.85),
    ("P1", LARGE, UNSHAPED, DrayCp, RsyncDaemon, Both, 1.0),
    ("P1", LARGE, UNSHAPED, DrayPutGet, RsyncDaemon, Pull, 1.2),
    ("P1", LARGE, UNSHAPED, DrayGetClear, Curl, Pull, 0.65),
    ("P1", LARGE, UNSHAPED, DraySsh, RsyncSsh, Both, 1.0),
    ("P1", LARGE, UNSHAPED, DraySsh, RsyncGcm, Both, 1.0),
    ("P1", LARGE, UNSHAPED, DrayGet, Scp, Pull, 0.4),
    ("P1", LARGE, UNSHAPED, DrayPutGet, Scp, Pull, 0.4),
    ("P1", LARGE, UNSHAPED, DrayCp, Scp, Both, 0.4),
    ("P1", LARGE, UNSHAPED, DrayCp, ScpGcm, Both, 0.4),
    ("P1", LARGE, UNSHAPED, DrayGet, Syq, Pull, 0.45),
    ("P1", LARGE, UNSHAPED, DrayPutGet, Syq, Pull, 0.45),
    ("P1", LARGE, UNSHAPED, DrayCp, Syq, Both, 0.45),
    ("P1", LARGE, UNSHAPED, DrayGet, Sendme, Pull, 0.2),
    ("P1", LARGE, UNSHAPED, DrayPutGet, Sendme, Pull, 0.2),
    ("P1", LARGE, UNSHAPED, DrayCp, Sendme, Pull, 0.2),
    ("P1", SMALL, UNSHAPED, DrayCp, Scp, Both, 1.1),
    ("P2", MANY, UNSHAPED, DrayCp, RsyncDaemon, Both, 0.8),
    ("P2", FLAT, UNSHAPED, DrayCp, RsyncDaemon, Both, 0.8),
    ("P2", MANY, UNSHAPED, DrayDaemonSync, RsyncDaemon, Pull, 0.8),
    ("P2", FLAT, UNSHAPED, DrayDaemonSync, RsyncDaemon, Pull, 0.8),
    ("P2", MANY, UNSHAPED, DraySsh, RsyncSsh, Both, 0.8),
    ("P2", FLAT, UNSHAPED, DraySsh, RsyncSsh, Both, 0.8),
    ("P2", MANY, UNSHAPED, DraySync, RsyncSsh, Both, 0.8),
    ("P2", FLAT, UNSHAPED, DraySync, RsyncSsh, Both, 0.8),
    ("P3", "tree-50000x4096-again", "1g-50ms", DraySsh, RsyncSsh, Both, 0.6),
    ("P3", "tree-50000x4096-again", "1g-50ms", DraySync, RsyncSsh, Both, 0.6),
    ("P4", HALF, "1g-50ms", DrayGet, RsyncDaemon, Pull, 1.0),
    ("P4", HALF, "1g-50ms", DrayCp, RsyncDaemon, Both, 1.0),
    ("P4", HALF, LONG, DrayGet, RsyncDaemon, Pull, 1.0),
    ("P4", HALF, LONG, DrayCp, RsyncDaemon, Both, 1.0),
    ("P4", HALF, "100m-132ms-lossy", DrayGet, RsyncDaemon, Pull, 1.0),
    ("P4", HALF, "100m-132ms-lossy", DrayCp, RsyncDaemon, Both, 1.0),
    ("floor", SMALL, UNSHAPED, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", LARGE, UNSHAPED, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", FEW, UNSHAPED, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", MANY, UNSHAPED, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", SMALL, LONG, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", LARGE, LONG, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", FEW, LONG, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", MANY, LONG, DrayCp, RsyncSsh, Both, 1.0),
    ("floor", SMALL, UNSHAPED, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", LARGE, UNSHAPED, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", LARGE, UNSHAPED, DraySsh, RsyncGcm, Both, 1.0),
    ("floor", FEW, UNSHAPED, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", MANY, UNSHAPED, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", SMALL, LONG, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", LARGE, LONG, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", FEW, LONG, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", MANY, LONG, DraySsh, RsyncSsh, Both, 1.0),
    ("floor", SMALL, UNSHAPED, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", LARGE, UNSHAPED, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", FEW, UNSHAPED, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", SMALL, LONG, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", LARGE, LONG, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", FEW, LONG, DrayDaemonCp, RsyncSsh, Both, 1.0),
    ("floor", SMALL, UNSHAPED, DrayDaemonPutGet, DrayPutGet, Pull, 1.0),
    ("floor", LARGE, UNSHAPED, DrayDaemonPutGet, DrayPutGet, Pull, 1.0),
    ("floor", FEW, UNSHAPED, DrayDaemonCp, DrayCp, Both, 1.0),
];

/// Row and link, a contender, and a figure of its runs that must not be passed: a time in the median, and by no run what is promised for each kill. Whether the figure is a time.
const FIGURES: &[(&str, &str, &str, &str, f64, bool)] = &[
    ("P4", "1g-50ms", "dray-get-pull", TO_IDEAL, 1.03, true),
    ("P4", LONG, "dray-get-pull", TO_IDEAL, 1.03, true),
    ("P4", "100m-132ms-lossy", "dray-get-pull", TO_IDEAL, 1.03, true),
    ("P4", "1g-50ms", "dray-cp-pull", TO_IDEAL, 1.03, true),
    ("P4", LONG, "dray-cp-pull", TO_IDEAL, 1.03, true),
    ("P4", "1g-50ms", "dray-cp-push", TO_IDEAL, 1.03, true),
    ("P4", LONG, "dray-cp-push", TO_IDEAL, 1.03, true),
    ("P4", "100m-132ms-lossy", "dray-cp-push", TO_IDEAL, 1.03, true),
    ("P4", "100m-132ms-lossy", "dray-cp-pull", TO_IDEAL, 1.03, true),
    ("P13", "1g-50ms", "dray-get-kill-near", "first new byte, s", 1.0, true),
    ("P13", "1g-50ms", "dray-get-kill-far", "first new byte, s", 1.0, true),
    ("P13", "1g-50ms", "dray-get-kill-near", "MiB sent again", 16.0, false),
    ("P13", "1g-50ms", "dray-get-kill-far", "MiB sent again", 16.0, false),
];

/// Row and cell, and a contender whose peak memory at either end is bounded, in MiB.
const PEAKS: &[(&str, &str, &str, f64)] = &[
    ("P2", MANY, "dray-cp-pull", 64.0),
    ("P2", MANY, "dray-cp-push", 64.0),
    ("P2", FLAT, "dray-cp-pull", 64.0),
    ("P2", FLAT, "dray-cp-push", 64.0),
    ("P14", "holes-1099511627776", "dray-put-get-pull", 256.0),
];

/// What P6 compares.
const ON_THE_WIRE: &str = "MB on the wire, both ways";

/// The table.
pub(crate) fn section(numbers: &Numbers) -> String {
    let mut table = Table::default();
    for (row, at, link, ours, rival, ways, most) in TARGETS {
        let ways: &[&str] = match ways {
            Pull => &["pull"],
            Both => &["pull", "push"],
        };
        for way in ways {
            let (ours, rival) = (format!("{}-{way}", ours.name()), format!("{}-{way}", rival.name()));
            let what = format!("time of {ours} to {rival}");
            let cells = || numbers.cells.iter().filter(|cell| cell.is(row, at, link));
            let paired = |cell: &Cell| cell.entry(&ours)?.paired(cell.entry(&rival));
            // Of several machines, the one of the newest numbers; settings (fsync, file systems) each have a line.
            let superseded = |cell: &Cell| {
                let own = paired(cell).map(|paired| paired.file);
                cells().any(|other| other.is_elsewhere(cell) && paired(other).map(|paired| paired.file) > own)
            };
            let found =
                cells().filter(|cell| !superseded(cell)).filter_map(|cell| Some((cell, paired(cell)?)));
            let before = table.lines.len();
            for (cell, paired) in found {
                table.add(row, &cell.title(), &what, *most, paired.ratio, paired.proof());
            }
            if table.lines.len() == before {
                table.miss(row, &format!("{at}, {link}"), &what, *most);
            }
        }
    }
    for (row, link, contender, figure, most, is_time) in FIGURES {
        let what = format!("{contender}: {figure}{}", if *is_time { "" } else { ", the most of any run" });
        let before = table.lines.len();
        for (cell, entry) in entries(numbers, row, contender).filter(|(cell, _)| cell.is(row, "", link)) {
            let all: Vec<f64> = entry.succeeded().filter_map(|run| run.figure(figure)).collect();
            // A run without the figure is one in which it never came.
            let with =
                |runs: usize, basis: Basis| Basis { runs, failed: basis.failed + basis.runs - runs, ..basis };
            let (value, proof) = if *is_time {
                let good: Vec<f64> = entry.good().filter_map(|run| run.figure(figure)).collect();
                let (Some(value), Some(of_all)) = (median(&good), median(&all)) else { continue };
                (value, Proof::Chosen(with(good.len(), entry.basis()), of_all))
            } else {
                let Some(worst) = all.iter().copied().reduce(f64::max) else { continue };
                (worst, Proof::Counts(with(all.len(), entry.basis_of_all())))
            };
            table.add(row, &cell.title(), &what, *most, value, proof);
        }
        if table.lines.len() == before {
            table.miss(row, link, &what, *most);
        }
    }
    for (row, at, contender, most) in PEAKS {
        let what = format!("{contender}: peak MiB of the larger end");
        let before = table.lines.len();
        for (cell, entry) in entries(numbers, row, contender).filter(|(cell, _)| cell.is(row, at, "")) {
            if let Some([near, far]) = entry.peaks() {
                let seen = near.max(far) / 1024.0;
                table.add(row, &cell.title(), &what, *most, seen, Proof::Counts(entry.basis_of_all()));
            }
        }
        if table.lines.len() == before {
            table.miss(row, at, &what, *most);
        }
    }
    again(numbers, &mut table);
    update(numbers, &mut table);
    receiver::add(numbers, &mut table);
    frozen(numbers, &mut table);
    roofline(numbers, &mut table);
    let head = "\n## Targets\n\nRatios of times are of runs in turn. A time holds if it does in five rounds or more, all of which the lab vouches for, if no run failed, if no more than a \
        quarter of the rounds was left out, and if it also holds with those. Otherwise it is \"not proven\". Bytes and memory hold as they are, by all runs that succeeded; of what is \
        sent again after a kill the run counts that sent most.\n\n| row | where | what | at most | seen | | rests on |\n|---|---|---|---|---|---|---|\n";
    format!("{head}{}\n", table.lines.join("\n"))
}

/// What a figure rests on.
#[derive(Clone, Copy)]
pub(super) enum Proof {
    /// A time of which nothing was left out.
    Times(Basis),
    /// One of which rounds may have been left out, and what it is with them.
    Chosen(Basis, f64),
    /// Bytes, of which a busy machine changes none, but where things are packed as well as its processor can spare.
    Counts(Basis),
}

impl Paired {
    /// For its ratio.
    pub(super) fn proof(&self) -> Proof {
        Proof::Chosen(self.basis, self.of_all)
    }
}

impl Proof {
    fn basis(self) -> Basis {
        let (Proof::Times(basis) | Proof::Chosen(basis, _) | Proof::Counts(basis)) = self;
        basis
    }

    /// True if it proves that no more is seen than this.
    fn is_enough(self, most: f64) -> bool {
        let Basis { runs, invalid, left_out, failed } = self.basis();
        let is_timed = runs >= ROUNDS_MIN && invalid == 0;
        failed == 0
            && match self {
                Proof::Times(_) => is_timed && left_out == 0,
                Proof::Chosen(_, of_all) => {
                    is_timed && may_be_left_out(left_out, runs + left_out) && of_all <= most
                }
                Proof::Counts(_) => runs > 0,
            }
    }
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) lines: Vec<String>,
}

impl Table {
    pub(super) fn add(&mut self, row: &str, place: &str, what: &str, most: f64, seen: f64, proof: Proof) {
        let verdict = match (seen <= most, proof.is_enough(most)) {
            (false, _) => "**missed**",
            (true, true) => "holds",
            (true, false) => "not proven",
        };
        let Basis { runs, invalid, left_out, failed } = proof.basis();
        let mut basis = format!("{runs} runs");
        if invalid > 0 {
            basis += &format!(", {invalid} INVALID");
        }
        if left_out > 0 {
            basis += &format!(", {left_out} left out");
        }
        if failed > 0 {
            basis += &format!(", {failed} failed");
        }
        let (mut shown, bound) = (format!("{seen:.2}"), format!("{most:.2}"));
        if seen > most && shown == bound {
            // By less than that shows.
            shown = format!("{seen:.4}");
        }
        self.lines.push(format!("| {row} | {place} | {what} | {bound} | {shown} | {verdict} | {basis} |"));
    }

    pub(super) fn miss(&mut self, row: &str, place: &str, what: &str, most: f64) {
        self.lines.push(format!("| {row} | {place} | {what} | {most:.2} | – | not measured | |"));
    }
}

/// Of the machine that measured last.
pub(super) fn entries<'a>(
    numbers: &'a Numbers,
    row: &'a str,
    contender: &'a str,
) -> impl Iterator<Item = (&'a Cell, &'a Entry)> {
    let cells = numbers.cells.iter().filter(move |cell| cell.row == row && cell.is_newest(numbers));
    cells.filter_map(move |cell| Some((cell, cell.entry(contender)?)))
}

/// Bytes and time of an update, beside the best rival's: with differences between chunks, which every contender of ours here makes use of, and of those
/// that nothing else is asked of.
fn update(numbers: &Numbers, table: &mut Table) {
    const MOST: f64 = 0.85;
    const MOST_WITH_DELTAS: f64 = 0.7;
    const MOST_TIME: f64 = 0.8;
    let before = table.lines.len();
    for cell in numbers.cells.iter().filter(|cell| cell.row == "P6" && cell.is_newest(numbers)) {
        let bytes = |entry: &Entry| entry.figure(ON_THE_WIRE);
        // One that starts with nothing there is no rival, but what the others are measured by.
        let rivals =
            || cell.entries.iter().filter(|entry| !entry.is_ours() && !entry.contender.starts_with("whole"));
        let Some(least) = rivals().filter_map(bytes).reduce(f64::min) else { continue };
        let by_time = |a: &&Entry, b: &&Entry| {
            a.seconds().unwrap_or(f64::MAX).total_cmp(&b.seconds().unwrap_or(f64::MAX))
        };
        let fastest = rivals().filter(|entry| entry.seconds().is_some()).min_by(by_time);
        for entry in cell.entries.iter().filter(|entry| entry.is_ours()) {
            if let Some(own) = bytes(entry) {
                let what = format!("bytes of {} to those of the best rival", entry.contender);
                for most in [MOST, MOST_WITH_DELTAS] {
                    let proof = Proof::Counts(entry.basis_of_all());
                    table.add("P6", &cell.title(), &what, most, own / least, proof);
                }
            }
            if let (Some(paired), Some(fastest)) = (entry.paired(fastest), fastest) {
                let what = format!("time of {} to the fastest rival, {}", entry.contender, fastest.contender);
                table.add("P6", &cell.title(), &what, MOST_TIME, paired.ratio, paired.proof());
            }
        }
    }
    if table.lines.len() == before {
        table.miss("P6", "update", "bytes to those of the best rival", MOST);
    }
}

/// What a run between daemons takes that finds nothing changed: few round trips, and little more than to look at each file.
fn again(numbers: &Numbers, table: &mut Table) {
    const MOST: f64 = 4.0;
    /// Times that of `find`.
    const LOOKS: f64 = 1.3;
    const ROUND_TRIP_S: f64 = 0.05;
    let what = "round trips of dray-daemon-sync-pull beyond 1.3 times what find takes";
    let before = table.lines.len();
    for (cell, entry) in entries(numbers, "P3", "dray-daemon-sync-pull") {
        let Some(find) = cell.entry("find-pull") else { continue };
        let trips = |own: Option<f64>, looks: Option<f64>| Some((own? - LOOKS * looks?) / ROUND_TRIP_S);
        let of_all = trips(entry.seconds_of_all(), find.seconds_of_all());
        if let (Some(seen), Some(of_all), Some(paired)) =
            (trips(entry.seconds(), find.seconds()), of_all, entry.paired(Some(find)))
        {
            table.add("P3", &cell.title(), what, MOST, seen, Proof::Chosen(paired.basis, of_all));
        }
    }
    if table.lines.len() == before {
        table.miss("P3", "1g-50ms", what, MOST);
    }
}

/// A frozen source costs a tenth of the time, or two seconds.
fn frozen(numbers: &Numbers, table: &mut Table) {
    let costs = "seconds that a frozen source costs";
    let before = table.lines.len();
    for (cell, entry) in entries(numbers, "P12", "dray-get-2-frozen") {
        let Some(plain) = cell.entry("dray-get-2") else { continue };
        let of_all = entry.seconds_of_all().zip(plain.seconds_of_all());
        if let (Some(frozen), Some(plain), Some((frozen_of_all, plain_of_all)), Some(paired)) =
            (entry.seconds(), plain.seconds(), of_all, entry.paired(Some(plain)))
        {
            let most = (plain * 0.1).max(2.0);
            let proof = Proof::Chosen(paired.basis, frozen_of_all - plain_of_all);
            table.add("P12", &cell.title(), costs, most, frozen - plain, proof);
        }
    }
    if table.lines.len() == before {
        table.miss("P12", "", costs, 2.0);
    }
    let until = "seconds until a typed error, the only source frozen";
    let before = table.lines.len();
    for (cell, entry) in entries(numbers, "P12", "dray-get-1-frozen") {
        if let (Some(seconds), Some(of_all)) = (entry.seconds(), entry.seconds_of_all()) {
            let proof = Proof::Chosen(entry.basis(), of_all);
            table.add("P12", &cell.title(), until, 30.0, seconds, proof);
        }
    }
    if table.lines.len() == before {
        table.miss("P12", "", until, 30.0);
    }
}

/// The best possible time for the largest file, where both were measured in one run of this program, on the same file system and cores.
fn roofline(numbers: &Numbers, table: &mut Table) {
    const MOST: f64 = 1.15;
    for (ours, best) in
        [("dray-get-pull", "best-get"), ("dray-cp-pull", "best-cp"), ("dray-get-clear-pull", "best-clear")]
    {
        let what = format!("time of {ours} to the roofline's {best}");
        let before = table.lines.len();
        // Of several machines the one on which both were measured last.
        let mut cells: Vec<_> = numbers.cells.iter().filter(|cell| cell.is("P1", LARGE, UNSHAPED)).collect();
        cells.sort_by(|left, right| right.file.cmp(&left.file));
        for cell in cells {
            if table.lines.len() > before {
                break;
            }
            let Some(entry) = cell.entry(ours) else { continue };
            let beside = |roof: &&Cell| roof.row == "roofline" && roof.is_set_as(cell);
            let roofs = numbers.cells.iter().filter(beside).filter_map(|roof| roof.entry(best));
            let runs = roofs.flat_map(|roof| roof.good_beside(entry));
            let rates: Vec<f64> = runs.filter_map(|run| run.figure("GiB/s")).collect();
            let seconds = entry.seconds().zip(entry.seconds_of_all());
            if let (Some(rate), Some((seconds, of_all)), Some(bytes)) = (median(&rates), seconds, entry.bytes)
            {
                let possible = bytes as f64 / f64::from(1 << 30) / rate;
                let basis = entry.basis();
                let basis = Basis { runs: basis.runs.min(rates.len()), ..basis };
                let proof = Proof::Chosen(basis, of_all / possible);
                table.add("P1", &cell.title(), &what, MOST, seconds / possible, proof);
            }
        }
        if table.lines.len() == before {
            table.miss("P1", &format!("{LARGE}, {UNSHAPED}"), &what, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dray_lab::conditions;
    use serde_json::{Value, json};

    use super::*;
    use crate::turns::Entrant;
    use crate::{contenders, rows};

    /// S15, "at most": what is sent again is bounded for each kill, so that one run that is beyond the bound misses it, be it one that the lab does not vouch for.
    #[test]
    fn what_is_promised_for_each_kill_is_that_of_each() {
        let killed = |round: u64, mib: f64, is_invalid: bool| {
            let mut line = json!({"row": "P13", "cell": "file-1024", "link": "1g-50ms", "contender": "dray-get-kill-near",
                                  "round": round, "status": "ok", "seconds": 1.0,
                                  "figures": [["first new byte, s", 0.3], ["MiB sent again", mib]]});
            if is_invalid {
                line["invalid"] = json!("late");
            }
            ("bench-1.jsonl", line)
        };
        let seen = |lines: &[(&str, Value)]| {
            let section = section(&Numbers::of(lines));
            let line = section.lines().find(|line| line.contains("kill-near: MiB sent again"));
            line.unwrap().split(" | ").skip(4).map(str::to_owned).collect::<Vec<_>>().join(" | ")
        };
        let mut lines: Vec<_> = [1.0, 2.0, 5.0, 6.0, 15.0]
            .into_iter()
            .zip(1..)
            .map(|(mib, round)| killed(round, mib, false))
            .collect();
        assert_eq!(seen(&lines), "15.00 | holds | 5 runs |");
        lines.push(killed(6, 40.0, true));
        assert_eq!(seen(&lines), "40.00 | **missed** | 6 runs, 1 INVALID |");
    }

    /// What was left out proves nothing where it was much, or where the target is missed with it.
    #[test]
    fn what_was_left_out_may_prove_the_opposite() {
        let basis = |runs, left_out| Basis { runs, invalid: 0, left_out, failed: 0 };
        let holds = |proof: Proof| {
            let mut table = Table::default();
            table.add("P4", "", "", 1.0, 0.9, proof);
            table.lines[0].contains("| holds |")
        };
        assert!(holds(Proof::Times(basis(5, 0))) && holds(Proof::Chosen(basis(5, 1), 0.95)));
        assert!(holds(Proof::Chosen(basis(6, 2), 1.0)));
        assert!(!holds(Proof::Chosen(basis(5, 2), 0.9)), "more than a quarter");
        assert!(!holds(Proof::Chosen(basis(6, 2), 1.01)), "with them it is slower");
        assert!(!holds(Proof::Times(basis(6, 1))), "nobody said what it is with them");
        assert!(!holds(Proof::Chosen(basis(4, 0), 0.9)));
        assert!(!holds(Proof::Chosen(Basis { invalid: 1, ..basis(6, 0) }, 0.9)));
        assert!(!holds(Proof::Chosen(Basis { failed: 1, ..basis(6, 0) }, 0.9)));
        assert!(holds(Proof::Counts(Basis { invalid: 1, ..basis(1, 0) })));
    }

    /// What nobody is called, or no link, would be "not measured" for ever.
    #[test]
    fn targets_name_what_there_is() {
        let ids = contenders::ALL.iter().map(Entrant::label);
        let known: BTreeSet<String> =
            ids.chain(rows::fault_labels().into_iter().map(str::to_owned)).collect();
        let figures = FIGURES.iter().map(|(row, _, contender, ..)| (row, contender));
        let peaks = PEAKS.iter().map(|(row, _, contender, _)| (row, contender));
        for (row, contender) in figures.chain(peaks) {
            assert!(known.contains(*contender), "{row}: {contender}");
        }
        let links = TARGETS.iter().map(|(_, _, link, ..)| *link);
        for link in links.chain(FIGURES.iter().map(|(_, link, ..)| *link)).filter(|link| *link != UNSHAPED) {
            assert_eq!(conditions::parse(link).unwrap().name, link);
        }
        let all = TARGETS.iter().map(|(row, ..)| row).chain(FIGURES.iter().map(|(row, ..)| row));
        for row in all.chain(PEAKS.iter().map(|(row, ..)| row)) {
            assert!(rows::ALL.iter().any(|known| known.name == *row), "{row}");
        }
    }
}
