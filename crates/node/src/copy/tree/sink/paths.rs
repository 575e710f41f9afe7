//! Over which path contents are asked for, and how much: the windows of paths, by how fast they are, and what becomes of one that is lost.

use std::time::{Duration, Instant};

use dray_core::limits::{TREE_LANES_MAX, TREE_PULLS_MAX};
use dray_core::message::{Message, Pull};
use dray_engine::session::{PathId, Wanted};
use dray_transfer::tree::Unpacking;

use super::content::Current;
use super::{Doors, Writing};

/// Bytes that may be owed over one path while direct connections may be used: about what comes in [`PACE_TIME`], within these
/// bounds. Small files count for more than they have. Less would leave a long path idle; more would be lost with it, or come late over
/// a slow one while a faster one has nothing to do.
const WINDOW_MIN: u64 = 4 << 20;
const WINDOW_MAX: u64 = 16 << 20;
const PACE_TIME: Duration = Duration::from_secs(1);
/// How often the pace of a path is looked at.
const PACE_INTERVAL: Duration = Duration::from_millis(250);
/// Pulls over one direct connection; with those over ssh no more than may be under way.
const LANE_PULLS_MAX: usize = TREE_PULLS_MAX / 2 / TREE_LANES_MAX;

/// How fast a path is.
pub(super) struct Pace {
    since: Instant,
    /// What came since, as [`dray_engine::session::TreeReceiver::weight`] has it.
    came: u64,
    /// And before.
    came_before: u64,
    window: u64,
    /// Weight a second, once it was measured.
    rate: Option<u64>,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { since: Instant::now(), came: 0, came_before: 0, window: WINDOW_MIN, rate: None }
    }

    /// It is asked for something after a rest, which is not to count.
    pub(super) fn rested(&mut self) {
        self.came_before = self.all_came();
        (self.since, self.came) = (Instant::now(), 0);
    }

    fn all_came(&self) -> u64 {
        self.came_before.saturating_add(self.came)
    }

    pub(super) fn came(&mut self, weight: u64) {
        self.came = self.came.saturating_add(weight);
        let elapsed = self.since.elapsed();
        if elapsed >= PACE_INTERVAL {
            let in_time = self.came as f64 * PACE_TIME.as_secs_f64() / elapsed.as_secs_f64();
            let window = (in_time as u64).clamp(WINDOW_MIN, WINDOW_MAX);
            let rate = Some((self.came as f64 / elapsed.as_secs_f64()) as u64);
            *self = Pace { window, rate, came_before: self.all_came(), ..Pace::new() };
        }
    }

    /// As if it had last been looked at so long ago.
    #[cfg(test)]
    pub(super) fn has_been(&mut self, time: Duration) {
        self.since = Instant::now().checked_sub(time).unwrap();
    }
}

/// Bytes a second over a path, once measured: on the wire, and by weight.
#[derive(Clone, Copy, Default)]
pub(super) struct Rates {
    wire: Option<u64>,
    weight: Option<u64>,
}

impl Writing<'_> {
    pub(super) fn rates(&self, path: PathId) -> Rates {
        Rates {
            wire: self.unpacking(path).and_then(Unpacking::rate),
            weight: self.paces.get(&path).and_then(|pace| pace.rate),
        }
    }

    /// So much came over `path`, as [`dray_engine::session::TreeReceiver::weight`] has it.
    pub(super) fn note_came(&mut self, path: PathId, weight: u64) {
        self.paces.entry(path).or_insert_with(Pace::new).came(weight);
        self.measure_ssh();
    }

    /// What ssh brings by itself shows as long as next to nothing came over direct connections, most of which
    /// are up before it was measured, or while it begins slowly. Where nothing shows by then, what shows first
    /// counts.
    fn measure_ssh(&mut self) {
        let (now, before) = (self.rates(None), self.ssh_alone);
        let is_alone = self.came_over_lanes() < WINDOW_MIN;
        let known =
            |before: Option<u64>, now: Option<u64>| if is_alone { now.or(before) } else { before.or(now) };
        self.ssh_alone =
            Rates { wire: known(before.wire, now.wire), weight: known(before.weight, now.weight) };
    }

    fn came_over_lanes(&self) -> u64 {
        self.lanes.keys().filter_map(|lane| self.paces.get(&Some(*lane))).map(Pace::all_came).sum()
    }

    /// A direct connection is gone: what it owed is asked for again. Perhaps it is gone because what was at its front cannot be read: what
    /// took two with it is asked for over ssh alone, where there is an end to waiting.
    pub(super) fn lose(&mut self, lane: u32) {
        self.lanes.remove(&lane);
        self.paces.remove(&Some(lane));
        let current = self.current.remove(&Some(lane));
        let mut lost = self.machine.lose(lane);
        let Some(first) = lost.pop_front() else { return };
        if let Some(current) = current.filter(|_| !first.is_void) {
            self.come_again(&first, &current);
        }
        for wanted in lost.iter().rev().filter(|wanted| !wanted.is_void) {
            self.want_again(wanted, false);
        }
        if first.is_void {
            return;
        }
        let start = first.part.map_or(0, |part| part.start);
        let is_alone =
            self.pending.contains_key(&first.number) && !self.lost_once.insert((first.number, start));
        self.want_again(&first, is_alone);
    }

    fn want_again(&mut self, wanted: &Wanted, is_alone: bool) {
        let pending = self.pending.get(&wanted.number);
        let Some(pending) = pending.filter(|pending| pending.parts.is_some() == wanted.part.is_some()) else {
            return;
        };
        if is_alone {
            self.machine.want_alone(wanted, pending.known);
        } else {
            self.machine.want_again(wanted, pending.known);
        }
    }

    /// What came of a content or a part counts no more.
    fn come_again(&mut self, wanted: &Wanted, current: &Current) {
        let Some(pending) = self.pending.get_mut(&wanted.number) else { return };
        let bytes = match (wanted.part, &mut pending.parts) {
            (Some(part), Some(parts)) => {
                if current.has_bytes {
                    parts.dirty.insert(part.start);
                }
                current.position
            }
            (None, None) => u64::MAX,
            _ => return,
        };
        self.wanted_bytes = self.wanted_bytes.saturating_add(pending.await_again(bytes));
    }

    /// Has the sender told, once, that direct connections are welcome.
    pub(super) fn invite(&mut self) {
        if self.is_inviting {
            return;
        }
        self.invitation = self.doors.and_then(Doors::invite);
        self.is_inviting = self.invitation.is_some();
        if !self.is_inviting {
            self.doors = None;
        }
    }

    /// What comes over `path`, if the sender may be told that it is to pack that.
    fn unpacking(&self, path: PathId) -> Option<&Unpacking> {
        let unpacking = match path {
            None => self.channel.as_deref(),
            Some(lane) => self.lanes.get(&lane).map(|lane| lane.unpacking()),
        };
        unpacking.filter(|_| self.packs)
    }

    /// Whether the network is slow, as far as it is known, over whatever path contents come.
    pub(super) fn is_slow(&self) -> bool {
        let lanes = self.lanes.values().map(|lane| lane.unpacking());
        let mut paths = self.channel.as_deref().into_iter().chain(lanes);
        paths.all(Unpacking::is_slow)
    }

    /// What the sender is to be told of `path` before it is asked over that: whether what comes may be packed.
    pub(super) fn permit(&self, path: PathId) -> Option<Message> {
        let unpacking = self.unpacking(path)?;
        let may = unpacking.is_slow();
        unpacking.permit(may).then(|| Message::Pull(self.machine.permit(path, may)))
    }

    /// What the sender is to be told of paths of which it was told something else before.
    pub(super) fn permit_anew(&self) -> Vec<Message> {
        let paths = self.lanes.keys().map(|lane| Some(*lane)).chain([None]);
        let is_told = |path: &PathId| self.unpacking(*path).is_some_and(Unpacking::is_told);
        paths.filter(is_told).filter_map(|path| self.permit(path)).collect()
    }

    /// `pull` leaves, to be answered over `path`.
    pub(super) fn note_pull(&mut self, path: PathId, pull: &Pull) {
        if let Some(lane) = path.and_then(|lane| self.lanes.get(&lane)) {
            lane.note_pull();
        }
        if self.machine.pulls(path) != 1 {
            return;
        }
        if let Some(pace) = self.paces.get_mut(&path) {
            pace.rested();
        }
        // What is to be compared is hashed first, which takes its time.
        let is_answered_at_once = pull.runs.first().is_some_and(|run| run.known.is_none());
        if let Some(unpacking) = self.unpacking(path).filter(|_| is_answered_at_once) {
            unpacking.asked(pull.request);
        }
    }

    /// The direct connection that alone is asked: what came packed over it helps what comes next. None where another one is known to be more than
    /// twice as fast.
    fn packing_lane(&self) -> Option<u32> {
        let lane = self.lanes.values().find(|lane| lane.unpacking().pays())?;
        let rate = lane.unpacking().rate().unwrap_or(u64::MAX);
        let mut others = self.lanes.values().filter_map(|lane| lane.unpacking().rate());
        (!others.any(|other| other / 2 > rate)).then(|| lane.number())
    }

    /// The path that is to be asked next, and how much of its window is free.
    pub(super) fn next_path(&self) -> Option<(PathId, u64)> {
        let ssh_pulls = self.machine.pulls(None);
        if self.machine.has_alone() && ssh_pulls == 0 {
            return Some((None, WINDOW_MIN));
        }
        if !self.machine.has_wishes() {
            return None;
        }
        if !self.is_inviting {
            return (ssh_pulls < TREE_PULLS_MAX / 2).then_some((None, u64::MAX));
        }
        // With direct connections ssh is the spare, unless they are far slower than it was.
        let packing = self.packing_lane();
        let is_asked = |lane: &&u32| packing.is_none_or(|packing| packing == **lane);
        let lanes = self.lanes.keys().filter(is_asked).map(|lane| (Some(*lane), LANE_PULLS_MAX));
        let is_ssh_kept = self.machine.has_alone() || self.machine.owes_alone();
        let is_ssh_free = !is_ssh_kept && (self.lanes.is_empty() || self.are_lanes_slow(packing));
        let ssh = is_ssh_free.then_some((None, TREE_PULLS_MAX / 2));
        let room = |(path, pulls_max): (PathId, usize)| {
            let weight = self.machine.weight(path);
            let window = self.paces.get(&path).map_or(WINDOW_MIN, |pace| pace.window);
            let may_pull = self.machine.pulls(path) < pulls_max && weight <= window / 4 * 3;
            may_pull.then(|| (path, window - weight))
        };
        lanes.chain(ssh).filter_map(room).min_by_key(|(path, _)| self.machine.weight(*path))
    }

    /// Whether direct connections, or the one that alone is asked, leave ssh something to do. It is compared
    /// as it was with next to nothing beside it: where both are asked, each is slower, and what ssh brings
    /// out of buffers is fast for a moment.
    fn are_lanes_slow(&self, packing: Option<u32>) -> bool {
        let came = self.came_over_lanes();
        if packing.is_some() {
            // What comes packed is as much as crosses the wire.
            return are_slow(came, self.rates(packing).wire, self.ssh_alone.wire);
        }
        are_slow(
            came,
            self.lanes.keys().map(|lane| self.rates(Some(*lane)).weight).sum(),
            self.ssh_alone.weight,
        )
    }
}

/// True if direct connections, over which so much came, bring less than half of what ssh brought, or nothing is
/// known of either. Also while next to nothing came: over a long path they begin slowly, where ssh carries what
/// the path can, known or not.
fn are_slow(came: u64, lanes: Option<u64>, ssh: Option<u64>) -> bool {
    came < WINDOW_MIN
        || match (lanes, ssh) {
            (Some(lanes), Some(ssh)) => lanes < ssh / 2,
            (None, None) => true,
            // They brought so much before there was a rate, or ssh brought nothing for as long.
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Floor "10,000 files at 100 Mbit/s x 132 ms": ssh is the spare of direct connections from when it is
    /// known that they are as good. What was never measured is not known to be slow: it is left once they
    /// have brought enough, and it is known how fast.
    #[test]
    fn ssh_goes_on_until_lanes_are_known_to_be_fast() {
        assert!(are_slow(0, None, Some(10)) && are_slow(WINDOW_MIN - 1, Some(50), Some(10)));
        let much = |lanes, ssh| are_slow(WINDOW_MIN, lanes, ssh);
        assert!(much(Some(4), Some(10)) && !much(Some(5), Some(10)) && !much(None, Some(10)));
        assert!(are_slow(0, None, None) && are_slow(WINDOW_MIN - 1, Some(1), None));
        assert!(much(None, None) && !much(Some(1), None));
    }

    /// What came before a rest, and before the pace was looked at, came.
    #[test]
    fn what_came_is_not_forgotten() {
        let mut pace = Pace::new();
        pace.came(5);
        pace.rested();
        pace.came(7);
        pace.has_been(2 * PACE_INTERVAL);
        pace.came(1);
        assert!(pace.rate.is_some());
        assert_eq!((pace.came, pace.all_came()), (0, 13));
    }
}
