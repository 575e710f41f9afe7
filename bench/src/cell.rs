//! A cell of a table: several contenders, in turn, at the same task between the same two ends.

use crate::bench::Bench;
use crate::contenders::{self, Contender, Mover, Task, Way};
use crate::pair::{Between, Pair};
use crate::site::{self, What};
use crate::turns::{Place, Turn};

/// Time of a large file over a link with a rate, in shares of what the payload needs at that rate and 10 round trips.
pub(crate) const TO_IDEAL: &str = "÷ (payload at line rate + 10 round trips)";
/// Time of a small one.
const ROUND_TRIPS: &str = "round trips";
/// Up to here round trips are what counts.
const SMALL_BYTES: u64 = 1 << 20;
/// Headers: an MTU of 1500 carries 1448 bytes of TCP.
const HEADERS: f64 = 1500.0 / 1448.0;

/// A cell.
pub(crate) struct Cell<'a> {
    pub(crate) row: &'static str,
    pub(crate) what: What,
    /// All is there already, and nothing has changed.
    pub(crate) is_again: bool,
    pub(crate) movers: &'a [Mover],
    pub(crate) ways: &'a [Way],
    /// One round more, before the others, of which only the memory counts. Without it memory is of the first round.
    pub(crate) warms_up: bool,
    pub(crate) pairs: u32,
}

impl Bench {
    /// Runs a cell and writes its numbers.
    pub(crate) fn cell(&mut self, pair: &Pair, cell: &Cell<'_>) -> Result<(), String> {
        self.site.make(cell.what, self.options.seed)?;
        let takes_part = |contender: &&Contender| {
            cell.movers.contains(&contender.mover)
                && cell.ways.contains(&contender.way)
                && (contender.takes_trees || !cell.what.is_tree())
                && (contender.can_sync || !self.options.syncs)
        };
        let all: Vec<Contender> = contenders::ALL.iter().filter(takes_part).copied().collect();
        let first = if cell.warms_up && !self.options.is_smoke { 0 } else { 1 };
        let name = format!("{}{}", cell.what.name(), if cell.is_again { "-again" } else { "" });
        let place = Place { row: cell.row, cell: &name, link: pair.between.name() };
        self.rounds(first, cell.pairs, |bench, round| {
            bench.in_turn(&place, &all, round, |bench, turn| {
                cell_run(bench, pair, cell, &place, turn, round == first)
            })
        })
    }
}

fn cell_run(
    bench: &mut Bench,
    pair: &Pair,
    cell: &Cell<'_>,
    place: &Place<'_>,
    turn: &Turn<Contender>,
    wants_memory: bool,
) -> Result<(), String> {
    let (contender, name) = (&turn.who, cell.what.name());
    let (source, target) = if contender.way == Way::Pull { ("far", "near") } else { ("near", "far") };
    let task = Task {
        what: cell.what,
        from: bench.site.root.join(source).join("in").join(&name),
        to: bench.site.root.join(target).join("out").join(&name),
        syncs: bench.options.syncs,
    };
    if cell.is_again {
        site::run(std::process::Command::new("cp").arg("-a").args([&task.from, &task.to]))?;
    }
    let job = contenders::job(contender, &task, &bench.site, pair);
    let mut run = bench.ground(pair).run(&job, wants_memory, None)?;
    run.check_arrived(|| site::is_same(&task.from, &task.to));
    let command = contenders::shown(contender, &job, &task, &bench.site, pair);
    let figures = link_figures(pair.between, cell.what, run.seconds);
    bench.tell(place, &run, turn.told(Some(cell.what.bytes()), figures, command))
}

/// What a time means on a link.
fn link_figures(between: Between, what: What, seconds: f64) -> Vec<(&'static str, f64)> {
    let Between::Link(condition) = between else { return Vec::new() };
    let round_trip = condition.round_trip().as_secs_f64();
    match (what.bytes(), condition.up.rate) {
        (bytes, _) if bytes < SMALL_BYTES => vec![(ROUND_TRIPS, seconds / round_trip)],
        (bytes, Some(rate)) if !what.is_tree() => {
            let ideal = bytes as f64 * HEADERS * 8.0 / rate.bits_per_second() as f64 + 10.0 * round_trip;
            vec![(TO_IDEAL, seconds / ideal)]
        }
        _ => Vec::new(),
    }
}
