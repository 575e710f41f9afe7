//! The targets of a receiver that has something already (P7, P10, P11).

use super::numbers::{Cell, Entry, Numbers};
use super::targets::{Proof, Table, entries};
use crate::rows::{FOUND, HASHES, PAPER_HASHES, PAPER_STATS, STATS};

/// A time that may be as much longer as one that is the same: as "as fast as" and as "never slower than".
const AS_FAST: f64 = 1.05;
const NOT_SLOWER: f64 = 1.02;

pub(super) fn add(numbers: &Numbers, table: &mut Table) {
    for (row, add) in [
        ("P7", line as fn(&Numbers, &mut Table)),
        ("P10", slow_disk as fn(&Numbers, &mut Table)),
        ("P11", home as _),
    ] {
        let before = table.lines.len();
        add(numbers, table);
        if table.lines.len() == before {
            table.miss(row, "", "all of it", 1.0);
        }
    }
}

fn cells<'a>(numbers: &'a Numbers, row: &'a str) -> impl Iterator<Item = &'a Cell> {
    numbers.cells.iter().filter(move |cell| cell.row == row && cell.is_newest(numbers))
}

/// State of a receiver and size, which the cell's name tells: `Similar-99 of 50 MiB`.
fn state_of(cell: &Cell) -> Option<(&str, &str)> {
    cell.name().rsplit_once(" of ")
}

/// The cell of the same row, link and size with another state.
fn beside<'a>(numbers: &'a Numbers, cell: &Cell, state: &str) -> Option<&'a Cell> {
    let (_, size) = state_of(cell)?;
    let is_it = |other: &&Cell| other.is_beside(cell) && state_of(other) == Some((state, size));
    numbers.cells.iter().find(is_it)
}

fn compare(table: &mut Table, cell: &Cell, what: &str, most: f64, entry: &Entry, other: Option<&Entry>) {
    if let Some(paired) = entry.paired(other) {
        table.add(&cell.row, &cell.title(), what, most, paired.ratio, paired.proof());
    }
}

/// An older version costs no more than with rsync, one in another directory no more than that, and nothing more than nothing at all.
fn line(numbers: &Numbers, table: &mut Table) {
    for cell in cells(numbers, "P7") {
        let Some((state, _)) = state_of(cell) else { continue };
        for (ours, rival) in [("dray-cp-push", "rsync-ssh-push"), ("dray-get-pull", "rsync-daemon-pull")] {
            let Some(entry) = cell.entry(ours) else { continue };
            if state.starts_with("Similar-") {
                compare(table, cell, &format!("time of {ours} to {rival}"), 1.0, entry, cell.entry(rival));
            }
            let of = |state: &str| beside(numbers, cell, state).and_then(|other| other.entry(ours));
            if state == "Sibling" {
                let what = format!("time of {ours} to the same at Similar-99");
                compare(table, cell, &what, AS_FAST, entry, of("Similar-99"));
            }
            if state != "Empty" {
                let what = format!("time of {ours} to the same at Empty");
                compare(table, cell, &what, NOT_SLOWER, entry, of("Empty"));
            }
        }
    }
}

/// An older version on a slow disk costs nothing, and to stand back from it pays when others write there, too.
fn slow_disk(numbers: &Numbers, table: &mut Table) {
    for cell in cells(numbers, "P10") {
        let (Some((state, _)), Some(entry)) = (state_of(cell), cell.entry("dray-cp-push")) else { continue };
        let empty = state.replace("Similar-99", "Empty").replace("Sibling", "Empty");
        if empty != state {
            let other = beside(numbers, cell, &empty).and_then(|other| other.entry("dray-cp-push"));
            compare(table, cell, "time of dray-cp-push to the same at Empty", NOT_SLOWER, entry, other);
        }
        if state.starts_with("Similar-99") {
            let other = cell.entry("rsync-ssh-push");
            compare(table, cell, "time of dray-cp-push to rsync-ssh-push", 1.0, entry, other);
        }
        // Where reading stands in the way of the network, and where it stands in the way of others.
        if ["Similar-99", "Sibling, load midway"].contains(&state) {
            let other = cell.entry("dray-no-pressure-push");
            compare(table, cell, "time of dray-cp-push to no-pressure", 0.85, entry, other);
        }
        if state == "Similar-99, load midway" {
            let other = cell.entry("dray-no-pressure-push");
            compare(table, cell, "time of dray-cp-push to no-pressure (R14)", 0.87, entry, other);
        }
    }
}

/// A search lists and reads no more than that of dsync's paper.
fn home(numbers: &Numbers, table: &mut Table) {
    for (cell, entry) in entries(numbers, "P11", "dray-cost") {
        for (figure, paper) in [(STATS, PAPER_STATS), (HASHES, PAPER_HASHES)] {
            if let (Some(own), Some(most)) = (entry.figure(figure), entry.figure(paper)) {
                table.add("P11", &cell.title(), figure, most, own, Proof::Counts(entry.basis_of_all()));
            }
        }
    }
    // The product as it comes leaves alone what is hardly alike.
    for (cell, entry) in entries(numbers, "P11", "dray-cost-floors") {
        let mut add = |what: &str, most: f64, seen: f64| {
            let what = format!("{what}, as it comes");
            table.add("P11", &cell.title(), &what, most, seen, Proof::Counts(entry.basis_of_all()));
        };
        let Some(found) = entry.succeeded().filter_map(|run| run.figure(FOUND)).reduce(f64::min) else {
            continue;
        };
        add("files of use that were not found", 0.0, 1.0 - found);
        if found < 1.0 {
            // What a search in vain takes is not what the paper's took.
            continue;
        }
        for (figure, paper) in [(STATS, PAPER_STATS), (HASHES, PAPER_HASHES)] {
            if let (Some(own), Some(most)) = (entry.figure(figure), entry.figure(paper)) {
                add(figure, most, own);
            }
        }
    }
    for (cell, entry) in entries(numbers, "P11", "dray-ranking") {
        if let Some(seconds) = entry.seconds() {
            let what = "seconds of ranking everything";
            table.add("P11", &cell.title(), what, 0.1, seconds, Proof::Times(entry.basis()));
        }
    }
}
