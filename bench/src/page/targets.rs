//! The targets, each beside what was seen. A target that is missed stays here until it is met.

use super::numbers::{Cell, Entry, Numbers, median};

const LARGE: &str = "file-2147483648";
const SMALL: &str = "file-1024";

/// Row, cell and link (empty for any), two contenders, and what the time of the first over that of the second must not pass, in one
/// run.
const TARGETS: &[(&str, &str, &str, &str, &str, f64)] = &[
    ("P1", LARGE, "unshaped", "dray-get-pull", "rsync-daemon-pull", 0.85),
    ("P1", LARGE, "unshaped", "dray-cp-pull", "rsync-daemon-pull", 1.0),
    ("P1", LARGE, "unshaped", "dray-cp-push", "rsync-daemon-push", 1.0),
    ("P1", LARGE, "unshaped", "dray-put-get-pull", "rsync-daemon-pull", 1.2),
    ("P1", LARGE, "unshaped", "dray-get-clear-pull", "curl-pull", 0.65),
    ("P1", LARGE, "unshaped", "dray-ssh-pull", "rsync-ssh-pull", 1.0),
    ("P1", LARGE, "unshaped", "dray-ssh-push", "rsync-ssh-push", 1.0),
    ("P1", LARGE, "unshaped", "dray-cp-pull", "scp-pull", 0.4),
    ("P1", LARGE, "unshaped", "dray-cp-push", "scp-push", 0.4),
    ("P1", LARGE, "unshaped", "dray-cp-pull", "syq-pull", 0.45),
    ("P1", LARGE, "unshaped", "dray-cp-push", "syq-push", 0.45),
    ("P1", LARGE, "unshaped", "dray-get-pull", "sendme-pull", 0.2),
    ("P1", SMALL, "unshaped", "dray-cp-pull", "scp-pull", 1.1),
    ("P1", SMALL, "unshaped", "dray-cp-push", "scp-push", 1.1),
    ("P2", "", "", "dray-cp-pull", "rsync-daemon-pull", 0.8),
    ("P2", "", "", "dray-cp-push", "rsync-daemon-push", 0.8),
    ("P2", "", "", "dray-ssh-pull", "rsync-ssh-pull", 0.8),
    ("P2", "", "", "dray-ssh-push", "rsync-ssh-push", 0.8),
    ("P3", "", "", "dray-ssh-pull", "rsync-ssh-pull", 0.6),
    ("P3", "", "", "dray-ssh-push", "rsync-ssh-push", 0.6),
    ("P3", "", "", "dray-sync-pull", "rsync-ssh-pull", 0.6),
    ("P3", "", "", "dray-sync-push", "rsync-ssh-push", 0.6),
    ("P4", "", "", "dray-get-pull", "rsync-daemon-pull", 1.0),
    ("P4", "", "", "dray-cp-pull", "rsync-daemon-pull", 1.0),
    ("P4", "", "", "dray-cp-push", "rsync-daemon-push", 1.0),
    ("floor", "", "", "dray-cp-pull", "rsync-ssh-pull", 1.0),
    ("floor", "", "", "dray-cp-push", "rsync-ssh-push", 1.0),
    ("floor", "", "", "dray-ssh-pull", "rsync-ssh-pull", 1.0),
    ("floor", "", "", "dray-ssh-push", "rsync-ssh-push", 1.0),
    ("floor", "", "", "dray-daemon-put-get-pull", "dray-put-get-pull", 1.0),
    ("floor", "", "", "dray-daemon-cp-pull", "dray-cp-pull", 1.0),
    ("floor", "", "", "dray-daemon-cp-push", "dray-cp-push", 1.0),
];

/// A figure that must not be passed, in the median of its runs.
const FIGURES: &[(&str, &str, &str, f64)] = &[
    ("P4", "dray-get-pull", crate::bench::TO_IDEAL, 1.03),
    ("P4", "dray-cp-pull", crate::bench::TO_IDEAL, 1.03),
    ("P4", "dray-cp-push", crate::bench::TO_IDEAL, 1.03),
    ("P13", "dray-get-kill-near", "first new byte, s", 1.0),
    ("P13", "dray-get-kill-far", "first new byte, s", 1.0),
    ("P13", "dray-get-kill-near", "MiB sent again", 16.0),
    ("P13", "dray-get-kill-far", "MiB sent again", 16.0),
];

/// Contenders whose peak memory at either end is bounded, in MiB.
const PEAKS: &[(&str, &str, f64)] = &[
    ("P2", "dray-cp-pull", 64.0),
    ("P2", "dray-cp-push", 64.0),
    ("P14", "dray-put-get-pull", 256.0),
    ("P14", "dray-cp-pull", 256.0),
];

/// What P6 compares.
const ON_THE_WIRE: &str = "MB on the wire, both ways";

/// The table; a target without numbers says so.
pub(crate) fn section(numbers: &Numbers) -> String {
    let mut table = Table::default();
    for (row, at, link, ours, rival, most) in TARGETS {
        let before = table.lines.len();
        for cell in numbers.cells.iter().filter(|cell| cell.is(row, at, link)) {
            let Some(entry) = cell.entry(ours) else { continue };
            let Some(ratio) = entry.ratio_to(cell.entry(rival)) else { continue };
            let what = format!("time of {ours} to {rival}");
            table.add(row, &cell.title(), &what, *most, ratio);
        }
        if table.lines.len() == before {
            let line = format!("| {row} | {at} | time of {ours} to {rival} | {most:.2} | – | not measured |");
            table.lines.push(line);
        }
    }
    for (row, contender, figure, most) in FIGURES {
        for (cell, entry) in entries(numbers, row, contender) {
            let values: Vec<f64> = entry.good().filter_map(|run| run.figure(figure)).collect();
            if let Some(value) = median(&values) {
                table.add(row, &cell.title(), &format!("{contender}: {figure}"), *most, value);
            }
        }
    }
    for (row, contender, most) in PEAKS {
        for (cell, entry) in entries(numbers, row, contender) {
            if let Some([near, far]) = entry.peaks() {
                table.add(
                    row,
                    &cell.title(),
                    &format!("{contender}: peak MiB of the larger end"),
                    *most,
                    near.max(far) / 1024.0,
                );
            }
        }
    }
    update(numbers, &mut table);
    frozen(numbers, &mut table);
    roofline(numbers, &mut table);
    let head = "\n## Targets\n\nRatios of times are of runs in turn.\n\n| row | where | what | at most | seen | |\n|---|---|---|---|---|---|\n";
    format!("{head}{}\n", table.lines.join("\n"))
}

#[derive(Default)]
struct Table {
    lines: Vec<String>,
}

impl Table {
    fn add(&mut self, row: &str, place: &str, what: &str, most: f64, seen: f64) {
        let verdict = if seen <= most { "holds" } else { "**missed**" };
        self.lines.push(format!("| {row} | {place} | {what} | {most:.2} | {seen:.2} | {verdict} |"));
    }
}

fn entries<'a>(
    numbers: &'a Numbers,
    row: &'a str,
    contender: &'a str,
) -> impl Iterator<Item = (&'a Cell, &'a Entry)> {
    let cells = numbers.cells.iter().filter(move |cell| cell.row == row);
    cells.filter_map(move |cell| Some((cell, cell.entry(contender)?)))
}

/// Bytes of an update, beside the best rival's.
fn update(numbers: &Numbers, table: &mut Table) {
    for cell in numbers.cells.iter().filter(|cell| cell.row == "P6") {
        let bytes = |entry: &Entry| {
            median(&entry.good().filter_map(|run| run.figure(ON_THE_WIRE)).collect::<Vec<_>>())
        };
        let rivals = cell.entries.iter().filter(|entry| !entry.is_ours());
        let Some(best) = rivals.filter_map(bytes).reduce(f64::min) else { continue };
        for entry in cell.entries.iter().filter(|entry| entry.is_ours()) {
            if let Some(own) = bytes(entry) {
                table.add(
                    "P6",
                    &cell.title(),
                    &format!("bytes of {} to those of the best rival", entry.contender),
                    0.85,
                    own / best,
                );
            }
        }
    }
}

/// A frozen source costs a tenth of the time, or two seconds.
fn frozen(numbers: &Numbers, table: &mut Table) {
    for (cell, entry) in entries(numbers, "P12", "dray-get-2-frozen") {
        let plain = cell.entry("dray-get-2").and_then(Entry::seconds);
        if let (Some(frozen), Some(plain)) = (entry.seconds(), plain) {
            table.add(
                "P12",
                &cell.title(),
                "seconds that a frozen source costs",
                (plain * 0.1).max(2.0),
                frozen - plain,
            );
        }
    }
    for (cell, entry) in entries(numbers, "P12", "dray-get-1-frozen") {
        if let Some(seconds) = entry.seconds() {
            table.add(
                "P12",
                &cell.title(),
                "seconds until a typed error, the only source frozen",
                31.5,
                seconds,
            );
        }
    }
}

/// The best possible time for the largest file, where both were measured in one run of this program.
fn roofline(numbers: &Numbers, table: &mut Table) {
    let Some(roof) = numbers.cells.iter().rfind(|cell| cell.row == "roofline") else { return };
    let Some(cell) = numbers.cells.iter().find(|cell| cell.is("P1", LARGE, "unshaped")) else { return };
    for (ours, best, most) in [
        ("dray-get-pull", "best-get", 1.15),
        ("dray-cp-pull", "best-cp", 1.15),
        ("dray-get-clear-pull", "best-clear", 1.15),
    ] {
        let Some(entry) = cell.entry(ours) else { continue };
        let rates: Vec<f64> = roof
            .entry(best)
            .into_iter()
            .flat_map(|roof| roof.good_beside(entry))
            .filter_map(|run| run.figure("GiB/s"))
            .collect();
        let Some(rate) = median(&rates) else { continue };
        if let (Some(seconds), Some(bytes)) = (entry.seconds(), entry.bytes) {
            let possible = bytes as f64 / f64::from(1 << 30) / rate;
            table.add(
                "P1",
                &cell.title(),
                &format!("time of {ours} to the roofline's {best}"),
                most,
                seconds / possible,
            );
        }
    }
}
