//! The targets, each beside what was seen. A target that is missed stays here until it is met.

use std::fmt::Write;

use super::numbers::Numbers;

/// A ratio that must not be passed: the time of `ours` over that of `rival`, in one run.
struct Target {
    row: &'static str,
    /// Cell and link; empty for any.
    cell: &'static str,
    link: &'static str,
    ours: &'static str,
    rival: &'static str,
    most: f64,
}

const fn target(
    row: &'static str,
    cell: &'static str,
    link: &'static str,
    ours: &'static str,
    rival: &'static str,
    most: f64,
) -> Target {
    Target { row, cell, link, ours, rival, most }
}

const LARGE: &str = "file-2147483648";
const SMALL: &str = "file-1024";

const TARGETS: &[Target] = &[
    target("P1", LARGE, "unshaped", "dray-get-pull", "rsync-daemon-pull", 0.85),
    target("P1", LARGE, "unshaped", "dray-cp-pull", "rsync-daemon-pull", 1.0),
    target("P1", LARGE, "unshaped", "dray-cp-push", "rsync-daemon-push", 1.0),
    target("P1", LARGE, "unshaped", "dray-put-get-pull", "rsync-daemon-pull", 1.2),
    target("P1", LARGE, "unshaped", "dray-get-clear-pull", "curl-pull", 0.65),
    target("P1", LARGE, "unshaped", "dray-ssh-pull", "rsync-ssh-pull", 1.0),
    target("P1", LARGE, "unshaped", "dray-ssh-push", "rsync-ssh-push", 1.0),
    target("P1", LARGE, "unshaped", "dray-cp-pull", "scp-pull", 0.4),
    target("P1", LARGE, "unshaped", "dray-cp-push", "scp-push", 0.4),
    target("P1", LARGE, "unshaped", "dray-cp-pull", "syq-pull", 0.45),
    target("P1", LARGE, "unshaped", "dray-cp-push", "syq-push", 0.45),
    target("P1", LARGE, "unshaped", "dray-get-pull", "sendme-pull", 0.2),
    target("P1", SMALL, "unshaped", "dray-cp-pull", "scp-pull", 1.1),
    target("P1", SMALL, "unshaped", "dray-cp-push", "scp-push", 1.1),
    target("P2", "", "", "dray-cp-pull", "rsync-daemon-pull", 0.8),
    target("P2", "", "", "dray-cp-push", "rsync-daemon-push", 0.8),
    target("P2", "", "", "dray-ssh-pull", "rsync-ssh-pull", 0.8),
    target("P2", "", "", "dray-ssh-push", "rsync-ssh-push", 0.8),
    target("P3", "", "", "dray-ssh-pull", "rsync-ssh-pull", 0.6),
    target("P3", "", "", "dray-ssh-push", "rsync-ssh-push", 0.6),
    target("P4", "", "", "dray-get-pull", "rsync-daemon-pull", 1.0),
    target("P4", "", "", "dray-cp-pull", "rsync-daemon-pull", 1.0),
    target("P4", "", "", "dray-cp-push", "rsync-daemon-push", 1.0),
    target("floor", "", "", "dray-cp-pull", "rsync-ssh-pull", 1.0),
    target("floor", "", "", "dray-cp-push", "rsync-ssh-push", 1.0),
    target("floor", "", "", "dray-ssh-pull", "rsync-ssh-pull", 1.0),
    target("floor", "", "", "dray-ssh-push", "rsync-ssh-push", 1.0),
];

/// The table of ratios; a target without numbers says so.
pub(crate) fn section(numbers: &Numbers) -> String {
    let mut text = "\n## Targets\n\nRatios of times measured in turn, at most as said.\n\n| row | what | of | to | at most | seen | |\n|---|---|---|---|---|---|---|\n".to_owned();
    for target in TARGETS {
        let mut seen = false;
        for cell in numbers.cells.iter().filter(|cell| cell.is(target.row, target.cell, target.link)) {
            let Some(ours) = cell.entry(target.ours) else { continue };
            let Some(ratio) = ours.ratio_to(cell.entry(target.rival)) else { continue };
            seen = true;
            let verdict = if ratio <= target.most { "holds" } else { "**missed**" };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.2} | {ratio:.2} | {verdict} |",
                target.row,
                cell.title(),
                target.ours,
                target.rival,
                target.most
            );
        }
        if !seen {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.2} | – | not measured |",
                target.row, target.cell, target.ours, target.rival, target.most
            );
        }
    }
    text
}
