//! The receiving end, in virtual time: the product's planner and verifier, and around them a thin model of what the node does with
//! threads (`crates/node/src/transfer.rs`, `crates/transfer/src/lanes`). Whatever is decided is decided by the product's code.

mod dial;
mod lane;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dray_core::hash_tree::{Cv, MemoryPairs, Subtree, Verifier, group_cv};
use dray_core::limits::{PROGRESS_TIMEOUT_MS, UNIT_GROUPS};
use dray_core::permit::{Budget, Permit};
use dray_core::range::RangeSet;
use dray_core::source::{Flow, Grade, RequestId, SourceCapabilities, SourceDescription, SourceId};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::planner::{
    DeliveryMode, Disposition, Planner, PlannerCommand, PlannerConfig, SourceState, Strategy, WindowLimits,
};

use super::clock::{Event, Wakeup};
use super::device::{Disk, Processors};
use super::network::{ConnectionId, Network, Side};
use super::object::{Group, Object, Stored, offset_of};
use dial::{Attempt, Dial, FIRST_BACKOFF_NS, Phase};
use lane::Lane;

/// Without any progress of anybody for this long, a transfer fails (as `crates/node/src/transfer.rs` says).
const GIVE_UP_US: u64 = 25_000_000;
/// A gap between two looks at the clock from which the process must have been stopped, microseconds.
const STOPPED_FROM_US: u64 = 3_000_000;
/// Between two ticks.
pub(crate) const TICK_NS: u64 = 100_000_000;
/// A checkpoint at least this often while something is new, and after so many units (design decision 10).
const CHECKPOINT_NS: u64 = 2_000_000_000;
const CHECKPOINT_UNITS: u64 = 64;
/// S10: every command ends within this long of the last progress.
const END_WITHIN_NS: u64 = 30_000_000_000;
/// After its end, sources are gone within this long.
const CLOSE_WITHIN_NS: u64 = 1_000_000_000;

/// What a receiver works with.
pub(crate) struct Hands<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) object: &'a Object,
    pub(crate) stored: &'a mut Stored,
    pub(crate) disk: &'a mut Disk,
    pub(crate) processors: &'a mut Processors,
    pub(crate) node: usize,
    pub(crate) process: u64,
    pub(crate) is_disk_full: bool,
    /// Promises that were broken.
    pub(crate) findings: &'a mut Vec<String>,
}

impl Hands<'_> {
    fn plan(&mut self, at_ns: u64, what: Wakeup) {
        self.network.clock.plan(at_ns, Event::Process { node: self.node, process: self.process, what });
    }

    fn plan_after(&mut self, ns: u64, what: Wakeup) {
        self.plan(self.network.now_ns().saturating_add(ns), what);
    }

    fn find(&mut self, what: String) {
        self.findings.push(format!("node {}: {what}", self.node));
    }
}

/// A holder that a receiver is told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) holder: usize,
    pub(crate) priority: u16,
    /// It tells the truth.
    pub(crate) is_honest: bool,
    /// It tells the truth, and nothing ever happens to it or between it and the receiver.
    pub(crate) is_steady: bool,
    /// Bytes on the way from it that no cancellation reaches.
    pub(crate) under_way_bytes: u64,
}

struct Queued {
    request: RequestId,
    groups: Subtree,
    known_depth: u32,
    recheck: bool,
    permit: Permit,
}

/// One holder, as a source with lanes.
struct Source {
    holder: usize,
    label: String,
    is_honest: bool,
    is_steady: bool,
    is_up: bool,
    was_up: bool,
    queue: VecDeque<Queued>,
    /// Requests that ended before any lane took them; a lane reports them.
    ended: Vec<RequestId>,
    slots: Vec<Slot>,
    is_told_to_close: bool,
    is_gone: bool,
    /// It has said that it is down for good.
    has_fallen: bool,
    last_words: Option<Error>,
    dial: Dial,
    was_connected: bool,
    /// The process was stopped while it waited for a first answer.
    was_stopped: bool,
    held_ns: u64,
    backoff_ns: u64,
    errors: Vec<Error>,
}

struct Slot {
    phase: Phase,
    lane: Option<Lane>,
    is_running: bool,
    begun_ns: u64,
    lost: u32,
    backoff_ns: u64,
    outstanding_bytes: u64,
    running: Vec<RequestId>,
    cancels: Vec<RequestId>,
}

impl Source {
    /// A thread of it waits for the disk, and can do nothing else.
    fn is_writing(&self) -> bool {
        self.slots.iter().filter_map(|slot| slot.lane.as_ref()).any(Lane::is_writing)
    }

    fn is_closed(&self) -> bool {
        self.is_told_to_close || self.is_gone
    }
}

struct Request {
    groups: Subtree,
    known_depth: usize,
    leaves: Option<Vec<Cv>>,
}

/// A transfer in progress.
pub(crate) struct Transfer {
    planner: Planner,
    budget: Budget,
    verifier: Verifier<Arc<MemoryPairs>>,
    requests: BTreeMap<RequestId, Request>,
    sources: Vec<Source>,
    attempts: BTreeMap<ConnectionId, Attempt>,
    lanes: BTreeMap<ConnectionId, (usize, usize)>,
    begun_ns: u64,
    seen_us: u64,
    stopped_us: u64,
    progress_ns: u64,
    /// When the process was last started or let go on.
    awake_ns: u64,
    checkpoint_ns: u64,
    checkpoint_units: u64,
    fatal: Option<Error>,
    /// How it ended, and when.
    pub(crate) outcome: Option<(Result<()>, u64)>,
    pub(crate) most_reserved_bytes: u64,
}

impl Transfer {
    /// Begins to fetch what is not marked as done, from the holders of `hints`, over `lanes` connections in all, but at least one to each.
    pub(crate) fn begin(
        hands: &mut Hands<'_>,
        hints: &[Hint],
        lanes: usize,
        window_bytes: u64,
    ) -> Result<Transfer> {
        let now_ns = hands.network.now_ns();
        let geometry = hands.object.geometry;
        let verifier = Verifier::new(geometry, hands.object.oid, hands.stored.pairs.clone())?;
        let marked = hands.stored.marked.clone();
        let intact = verifier.recover(&|unit| marked.contains(unit))?;
        if intact.len() as u64 != marked.count() && geometry.groups() > 1 {
            let what = format!("{} of {} units that were marked are believed", intact.len(), marked.count());
            hands.find(what);
        }
        let mut wanted = RangeSet::new();
        wanted.insert(0..geometry.units());
        for unit in intact {
            wanted.remove(unit..unit + 1);
        }
        for units in wanted.iter() {
            hands.stored.groups.remove(units.start * UNIT_GROUPS..units.end * UNIT_GROUPS);
            hands.stored.marked.remove(units);
        }
        let budget = Budget::new(window_bytes);
        let config = PlannerConfig {
            geometry,
            piece_groups: UNIT_GROUPS,
            is_open: false,
            delivery: DeliveryMode::OutOfOrder,
            budget: budget.clone(),
            window: WindowLimits { max_bytes: window_bytes, ..WindowLimits::default() },
            strategy: Strategy::default(),
            progress_timeout_us: PROGRESS_TIMEOUT_MS * 1000,
            give_up_us: GIVE_UP_US,
            last_request: 0,
        };
        let mut transfer = Transfer {
            planner: Planner::new(config, wanted),
            budget,
            verifier,
            requests: BTreeMap::new(),
            sources: Vec::new(),
            attempts: BTreeMap::new(),
            lanes: BTreeMap::new(),
            begun_ns: now_ns,
            seen_us: 0,
            stopped_us: 0,
            progress_ns: now_ns,
            awake_ns: now_ns,
            checkpoint_ns: now_ns,
            checkpoint_units: hands.stored.marked.count(),
            fatal: None,
            outcome: None,
            most_reserved_bytes: 0,
        };
        let lanes_each = lanes.div_ceil(hints.len().max(1));
        for hint in hints {
            transfer.add_source(hint, lanes_each);
        }
        for source in 0..hints.len() {
            transfer.dial(hands, source, None);
        }
        hands.plan_after(TICK_NS, Wakeup::Tick);
        transfer.pump(hands);
        transfer.settle(hands);
        Ok(transfer)
    }

    fn add_source(&mut self, hint: &Hint, lanes: usize) {
        let label = format!("holder {}", hint.holder);
        let description = SourceDescription {
            label: label.clone(),
            priority: hint.priority,
            weight: 1,
            capabilities: SourceCapabilities {
                grade: Grade::Proven,
                cancel: true,
                holes: true,
                under_way_bytes: hint.under_way_bytes,
            },
        };
        self.planner.add_source(SourceId(self.sources.len() as u32), description);
        let slot = || Slot {
            phase: Phase::Idle,
            lane: None,
            is_running: false,
            begun_ns: 0,
            lost: 0,
            backoff_ns: FIRST_BACKOFF_NS,
            outstanding_bytes: 0,
            running: Vec::new(),
            cancels: Vec::new(),
        };
        self.sources.push(Source {
            holder: hint.holder,
            label,
            is_honest: hint.is_honest,
            is_steady: hint.is_steady,
            is_up: false,
            was_up: false,
            queue: VecDeque::new(),
            ended: Vec::new(),
            slots: (0..lanes.max(1)).map(|_| slot()).collect(),
            is_told_to_close: false,
            is_gone: false,
            has_fallen: false,
            last_words: None,
            dial: Dial::Connecting,
            was_connected: false,
            was_stopped: false,
            held_ns: self.begun_ns,
            backoff_ns: FIRST_BACKOFF_NS,
            errors: Vec::new(),
        });
    }

    /// Something is new about a connection of this receiver.
    pub(crate) fn ready(&mut self, hands: &mut Hands<'_>, id: ConnectionId) {
        if self.attempts.contains_key(&id) {
            self.attempt_step(hands, id);
        } else if let Some(&(source, lane)) = self.lanes.get(&id) {
            self.lane_step(hands, source, lane);
        }
        self.settle(hands);
    }

    /// What was waited for has happened.
    pub(crate) fn wakeup(&mut self, hands: &mut Hands<'_>, what: Wakeup) {
        match what {
            Wakeup::Group { source, lane } | Wakeup::Written { source, lane } => {
                self.lane_worked(hands, source, lane);
            }
            Wakeup::Redial { source, lane } => self.redial(hands, source, lane),
            Wakeup::Tick => self.tick(hands),
            Wakeup::Checkpoint => hands.stored.end_checkpoint(),
            Wakeup::Chunk(_) | Wakeup::Greeting(_) => {}
        }
        self.settle(hands);
    }

    /// True once it has ended and every source is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.outcome.is_some() && self.sources.iter().all(|source| source.has_fallen)
    }

    /// At the end nothing is held any more.
    pub(crate) fn check_end(&self, hands: &mut Hands<'_>) {
        if self.budget.used_bytes() != 0 {
            hands.find(format!("{} bytes of permits are held after the end", self.budget.used_bytes()));
        }
        if !self.attempts.is_empty() || !self.lanes.is_empty() {
            hands.find("connections are held after the end".to_owned());
        }
    }

    /// The process was stopped for a while: nobody is to blame for that time.
    pub(crate) fn slept(&mut self, now_ns: u64) {
        self.progress_ns = now_ns;
        self.awake_ns = now_ns;
        // The threads that dial look that often, too.
        if now_ns - self.begun_ns >= (self.seen_us + STOPPED_FROM_US) * 1000 {
            let dialling = self.sources.iter_mut().filter(|set| set.dial == Dial::Connecting);
            dialling.for_each(|set| set.was_stopped = true);
        }
    }

    fn tick(&mut self, hands: &mut Hands<'_>) {
        let now_ns = hands.network.now_ns();
        self.check_attempts(hands);
        for source in 0..self.sources.len() {
            for number in 0..self.sources[source].slots.len() {
                let slot = &mut self.sources[source].slots[number];
                if slot.lane.as_mut().is_some_and(|lane| lane.is_silent(now_ns)) {
                    self.lane_step(hands, source, number);
                }
            }
            if self.sources[source].is_writing() {
                let now_us = self.now_us(hands);
                self.planner.handle_at_work(now_us, SourceId(source as u32));
            }
        }
        self.pump(hands);
        let is_due = now_ns >= self.checkpoint_ns + CHECKPOINT_NS;
        let units = hands.stored.marked.count();
        if (is_due || units >= self.checkpoint_units + CHECKPOINT_UNITS) && hands.stored.begin_checkpoint() {
            self.checkpoint_ns = now_ns;
            self.checkpoint_units = units;
            let settled_ns = hands.disk.settled_ns(now_ns);
            hands.plan(settled_ns, Wakeup::Checkpoint);
        }
        match &self.outcome {
            None if now_ns > self.progress_ns + END_WITHIN_NS => {
                hands.find("no end within 30 s of the last progress".to_owned());
                self.fatal = Some(Error::new(ErrorKind::Internal, "given up by the simulator"));
            }
            Some((_, ended_ns))
                if now_ns > self.awake_ns.max(*ended_ns) + CLOSE_WITHIN_NS && !self.is_writing() =>
            {
                hands.find("sources are not gone a second after the end".to_owned());
                self.sources.iter_mut().for_each(|source| source.has_fallen = true);
            }
            _ => {}
        }
        hands.plan_after(TICK_NS, Wakeup::Tick);
    }

    /// A thread waits for the disk, and can do nothing else.
    fn is_writing(&self) -> bool {
        self.sources.iter().any(Source::is_writing)
    }

    /// Looks whether it is decided, and closes everything then.
    fn settle(&mut self, hands: &mut Hands<'_>) {
        self.most_reserved_bytes = self.most_reserved_bytes.max(self.budget.used_bytes());
        if self.outcome.is_some() {
            return;
        }
        let outcome = match (self.fatal.take(), self.planner.outcome()) {
            (Some(error), _) => Err(error),
            (None, Some(outcome)) => outcome,
            (None, None) => return,
        };
        let geometry = hands.object.geometry;
        let is_whole = hands.stored.is_whole(geometry);
        if outcome.is_ok() != is_whole {
            hands.find(format!("the outcome is {outcome:?}, but that all is there is {is_whole}"));
        }
        self.outcome = Some((outcome, hands.network.now_ns()));
        for source in 0..self.sources.len() {
            self.close(hands, source);
        }
    }

    /// The time that the planner is told, as the node reckons it.
    fn now_us(&mut self, hands: &Hands<'_>) -> u64 {
        let elapsed_us = (hands.network.now_ns() - self.begun_ns) / 1000;
        let gap_us = elapsed_us.saturating_sub(self.seen_us);
        if gap_us >= STOPPED_FROM_US {
            self.stopped_us += gap_us;
        }
        self.seen_us = self.seen_us.max(elapsed_us);
        elapsed_us.saturating_sub(self.stopped_us)
    }

    /// Carries out what the planner wants.
    fn pump(&mut self, hands: &mut Hands<'_>) {
        loop {
            let now_us = self.now_us(hands);
            match self.planner.poll(now_us) {
                None => return,
                Some(PlannerCommand::Fetch { source, request, groups, recheck, permit }) => {
                    let figures =
                        [hands.node as u64, u64::from(source.0), u64::from(request.0), groups.start];
                    hands.network.note("fetch", &figures);
                    let known_depth = self.verifier.known_depth(groups);
                    self.requests.insert(request, Request { groups, known_depth, leaves: None });
                    let set = &mut self.sources[source.0 as usize];
                    if set.is_up && !set.is_closed() {
                        let known_depth = known_depth as u32;
                        set.queue.push_back(Queued { request, groups, known_depth, recheck, permit });
                    }
                    self.wake_lanes(hands, source.0 as usize);
                }
                Some(PlannerCommand::Cancel { source, request }) => {
                    hands.network.note("cancel", &[hands.node as u64, u64::from(request.0)]);
                    let set = &mut self.sources[source.0 as usize];
                    if let Some(at) = set.queue.iter().position(|queued| queued.request == request) {
                        set.queue.remove(at);
                        set.ended.push(request);
                    } else if let Some(slot) =
                        set.slots.iter_mut().find(|slot| slot.running.contains(&request))
                    {
                        slot.cancels.push(request);
                    }
                    self.wake_lanes(hands, source.0 as usize);
                }
                Some(PlannerCommand::CloseSource { source }) => {
                    hands.network.note("bar", &[hands.node as u64, u64::from(source.0)]);
                    let set = &self.sources[source.0 as usize];
                    if set.is_steady && self.planner.outcome().is_none() {
                        let cause = self.planner.explain(now_us).sources;
                        let cause = cause.get(source.0 as usize).and_then(|told| told.cause.clone());
                        hands
                            .find(format!("{}, to which nothing happened, was barred: {cause:?}", set.label));
                    }
                    self.close(hands, source.0 as usize);
                }
            }
        }
    }

    fn wake_lanes(&mut self, hands: &mut Hands<'_>, source: usize) {
        for (&id, _) in self.lanes.iter().filter(|(_, (of, _))| *of == source) {
            hands.network.wake(id, Side::Dialler);
        }
    }

    /// Tells a source to end everything.
    fn close(&mut self, hands: &mut Hands<'_>, source: usize) {
        let set = &mut self.sources[source];
        set.is_told_to_close = true;
        let is_idle = !set.slots.iter().any(|slot| slot.is_running);
        self.wake_lanes(hands, source);
        self.check_attempts(hands);
        if is_idle && !self.sources[source].has_fallen {
            self.dial_over(hands, source);
        }
    }

    fn rise(&mut self, hands: &mut Hands<'_>, source: usize, round_trip_us: u64) {
        if std::mem::replace(&mut self.sources[source].is_up, true) {
            return;
        }
        hands.network.note("up", &[hands.node as u64, source as u64]);
        if !std::mem::replace(&mut self.sources[source].was_up, true) {
            self.progress_ns = hands.network.now_ns();
        }
        let now_us = self.now_us(hands);
        self.planner.handle_up(now_us, SourceId(source as u32), Some(round_trip_us));
        self.pump(hands);
    }

    /// The last lane has ended, or none will come.
    fn fall(&mut self, hands: &mut Hands<'_>, source: usize, lane_error: Option<Error>) {
        let set = &mut self.sources[source];
        set.is_up = false;
        let gone = set.is_closed();
        let error = match (set.is_told_to_close, set.is_gone) {
            (true, _) => None,
            (false, true) => set.last_words.take(),
            (false, false) => lane_error,
        };
        set.is_gone = gone;
        set.has_fallen = gone;
        let queue = std::mem::take(&mut set.queue);
        let ended = std::mem::take(&mut set.ended);
        self.fail_all(hands, source, queue, error.as_ref());
        for request in ended {
            self.request_done(hands, source, request);
        }
        hands.network.note("down", &[hands.node as u64, source as u64, u64::from(gone)]);
        let now_us = self.now_us(hands);
        self.planner.handle_down(now_us, SourceId(source as u32), error.as_ref(), gone);
        self.pump(hands);
    }

    /// A lane has ended.
    fn lane_ended(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        mut lane: Lane,
        error: Option<Error>,
    ) {
        hands.network.close(lane.id, Side::Dialler);
        self.lanes.remove(&lane.id);
        let set = &mut self.sources[source];
        if let Some(error) = &error {
            hands.network.trace.say(
                hands.network.clock.now_ns(),
                "lane-ended",
                hands.node,
                &error.to_string(),
            );
            let is_accusing = !matches!(
                error.kind(),
                ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Interrupted
            );
            if set.is_honest && is_accusing {
                hands.find(format!("{}, which is honest, is said to have broken a rule: {error}", set.label));
            }
        }
        let set = &mut self.sources[source];
        let slot = &mut set.slots[number];
        let held_ns = hands.network.now_ns() - slot.begun_ns;
        slot.is_running = false;
        slot.outstanding_bytes = 0;
        slot.running.clear();
        slot.cancels.clear();
        let running = std::mem::take(&mut lane.running);
        self.fail_all(hands, source, running, error.as_ref());
        self.wake_lanes(hands, source);
        if !self.sources[source].slots.iter().any(|slot| slot.is_running) {
            self.fall(hands, source, error.as_ref().map(Error::duplicate));
        }
        self.lane_lost(hands, source, number, error, held_ns);
    }

    /// Requests go down with their connection.
    fn fail_all(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        requests: VecDeque<Queued>,
        why: Option<&Error>,
    ) {
        for queued in requests {
            let request = queued.request;
            drop(queued.permit);
            let text = why.map_or_else(|| "connection lost".to_owned(), ToString::to_string);
            self.request_failed(hands, source, request, &Error::new(ErrorKind::Unreachable, text));
        }
    }

    fn request_failed(&mut self, hands: &mut Hands<'_>, source: usize, request: RequestId, error: &Error) {
        hands.network.note("failed", &[hands.node as u64, u64::from(request.0)]);
        self.requests.remove(&request);
        let now_us = self.now_us(hands);
        self.planner.handle_failed(now_us, SourceId(source as u32), request, error);
        self.pump(hands);
    }

    fn request_done(&mut self, hands: &mut Hands<'_>, source: usize, request: RequestId) {
        self.requests.remove(&request);
        let now_us = self.now_us(hands);
        self.planner.handle_done(now_us, SourceId(source as u32), request);
        self.pump(hands);
    }

    /// Pairs came that are to prove a request.
    fn parents_came(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        request: RequestId,
        pairs: &[u8],
    ) -> Flow {
        let proven = self.prove_parents(request, pairs);
        let now_us = self.now_us(hands);
        let flow = match proven {
            Ok(true) => {
                self.planner.handle_parents(now_us, SourceId(source as u32), request);
                Flow::Continue
            }
            Ok(false) => Flow::Cancel,
            Err(error) => self.refuse(hands, source, request, error),
        };
        self.pump(hands);
        flow
    }

    /// What came is not what it should be; or this machine has failed, which ends everything.
    fn refuse(&mut self, hands: &mut Hands<'_>, source: usize, request: RequestId, error: Error) -> Flow {
        if !matches!(error.kind(), ErrorKind::VerificationFailed | ErrorKind::Protocol) {
            self.fatal.get_or_insert(error);
            return Flow::Cancel;
        }
        hands.network.note("mismatch", &[hands.node as u64, source as u64, u64::from(request.0)]);
        if self.sources[source].is_honest {
            hands.find(format!("bytes of {}, which is honest, do not match", self.sources[source].label));
        }
        let now_us = self.now_us(hands);
        self.planner.handle_mismatch(now_us, SourceId(source as u32), request);
        self.requests.remove(&request);
        Flow::Cancel
    }

    fn prove_parents(&mut self, request: RequestId, pairs: &[u8]) -> Result<bool> {
        let Some(entry) = self.requests.get_mut(&request) else { return Ok(false) };
        entry.leaves = Some(self.verifier.accept_parents(entry.groups, entry.known_depth, pairs)?);
        Ok(true)
    }

    /// What the group must hash to; `None` if its request is not wanted any more.
    fn expected(&mut self, request: RequestId, group: u64) -> Result<Option<Cv>> {
        let Some(entry) = self.requests.get(&request) else { return Ok(None) };
        // Nothing was missing on the way to a lone group, so no parents came.
        if entry.leaves.is_none() && !self.prove_parents(request, &[])? {
            return Ok(None);
        }
        let Some(entry) = self.requests.get(&request) else { return Ok(None) };
        let at = group.checked_sub(entry.groups.start).and_then(|at| usize::try_from(at).ok());
        Ok(at.zip(entry.leaves.as_ref()).and_then(|(at, leaves)| leaves.get(at)).copied())
    }

    /// A group came: it is proven, accounted for and written. Returns when the lane may go on.
    fn group(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        request: RequestId,
        group: u64,
        bytes: &Group,
    ) -> (Flow, u64) {
        let now_ns = hands.network.now_ns();
        self.progress_ns = now_ns;
        let value = group_cv(hands.object.geometry, group, bytes.bytes(hands.object));
        let flow = match self.expected(request, group) {
            Ok(Some(expected)) if expected == value => None,
            Ok(None) => Some(Flow::Cancel),
            Ok(Some(_)) => {
                let error = Error::new(ErrorKind::VerificationFailed, "wrong bytes");
                Some(self.refuse(hands, source, request, error))
            }
            Err(error) => Some(self.refuse(hands, source, request, error)),
        };
        if let Some(flow) = flow {
            self.pump(hands);
            return (flow, now_ns);
        }
        let now_us = self.now_us(hands);
        let id = SourceId(source as u32);
        let disposition = self.planner.handle_group(now_us, id, request, group);
        let mut go_on_ns = now_ns;
        if disposition == Disposition::Deliver {
            hands.network.note("deliver", &[hands.node as u64, source as u64, group]);
            if hands.is_disk_full {
                self.fatal.get_or_insert(Error::new(ErrorKind::NoSpace, "no room for the object"));
                return (Flow::Cancel, now_ns);
            }
            go_on_ns = hands.disk.write(now_ns, offset_of(group), bytes.len());
            if let Err(what) = hands.stored.write(hands.object, group, bytes) {
                hands.find(what);
            }
            let unit = group / UNIT_GROUPS;
            let node = hands.object.geometry.unit(unit);
            if hands.stored.groups.contains_range(node.start..node.end()) {
                hands.stored.mark(unit);
            }
        }
        self.pump(hands);
        (Flow::Continue, go_on_ns)
    }

    /// Where each source stands, and what it delivered, by node.
    pub(crate) fn shares(&self) -> Vec<(usize, SourceState, u64)> {
        let stats = self.planner.stats();
        self.sources
            .iter()
            .zip(stats)
            .map(|(set, told)| (set.holder, told.state, told.delivered_bytes))
            .collect()
    }
}

/// What a test breaks in the middle of a run.
#[cfg(test)]
impl Transfer {
    /// Holds every source to what an honest one to which nothing happens has promised.
    pub(crate) fn trust_all(&mut self) {
        self.sources.iter_mut().for_each(|source| (source.is_honest, source.is_steady) = (true, true));
    }

    /// As if nothing had come for so long.
    pub(crate) fn silent_for(&mut self, ns: u64) {
        self.progress_ns = self.progress_ns.saturating_sub(ns);
    }

    /// Memory that nobody gives back while the permit lives.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Permit> {
        self.budget.try_reserve(bytes)
    }
}
