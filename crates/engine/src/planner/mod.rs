//! The planner: decides which units of an object come from which source, and when. There is one per transfer.
//!
//! It is sans-IO. Time is an argument (`now_us`, microseconds of any clock that does not run backwards), events of
//! sources come in through `handle_*`, commands go out through [`Planner::poll`]. The contract with its driver:
//! after every event, and at [`Planner::next_deadline_us`], call `poll` until it returns `None`; then look at
//! [`Planner::outcome`].
//!
//! Any number of sources share the work: each owes at most its window, lowest units first. Whoever runs dry when
//! nothing is left to ask for takes over what the slowest would deliver last ([`Strategy`]). A source that
//! goes silent, fails or lies loses its work to the others, and one that returns is used again.
//!
//! What it never does: deliver a group twice, ask for a unit that is delivered, ask a second source for what another
//! owes while there is anything else to ask for, let a source owe more than its window, ask without a permit of the
//! budget, or wait for ever. Every transfer ends with all wanted units delivered or with an error that names the cause
//! and the culprits (design 7 to 9).
//!
//! Wanted are ranges of one object whose groups prove themselves; whatever else may be wanted one day enters through
//! `work.rs`, which alone knows what a request is cut from.

mod assign;
mod books;
mod borrow;
mod deadline;
mod explain;
mod outcome;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod window;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use dray_core::error::{Error, ErrorKind, Result};
use dray_core::hash_tree::Subtree;
use dray_core::limits::UNIT_GROUPS;
use dray_core::permit::Permit;
use dray_core::range::RangeSet;
use dray_core::source::{RequestId, SourceDescription, SourceId};

pub use explain::{Bottleneck, Effort, Explanation, Idle, SourceExplanation, Standing};
pub use settings::{DeliveryMode, Outstanding, PlannerConfig, Strategy, WindowLimits};
use source::{Cause, SourceRecord};
use work::Work;

/// How many re-sent groups of one request that was made since the last new group may put off giving up before a new group must
/// come: the groups of one unit may all have to be sent again.
const RESENT_GROUPS_MAX: u64 = 2 * UNIT_GROUPS;
/// How long, in microseconds, reconnections and parent pairs may put it off: that much may pass between them and the
/// first group. With [`PlannerConfig::give_up_us`] of 25 s, the error still comes well within 30 s.
const GRACE_US: u64 = 3_000_000;

/// What to do with a group that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Hand it to the consumer. Said exactly once for each wanted group.
    Deliver,
    /// Drop it: it was delivered before, or its request is not wanted any more.
    Discard,
}

/// What the driver must tell a source.
#[derive(Debug)]
pub enum PlannerCommand {
    /// Ask for a subtree; see [`dray_core::source::SourceCall::Fetch`].
    Fetch {
        /// Whom.
        source: SourceId,
        /// Number of the request, never 0 and never used again.
        request: RequestId,
        /// Whole units, as one subtree of the object's tree.
        groups: Subtree,
        /// The holder should check its own copy first.
        recheck: bool,
        /// To be dropped when the request has ended.
        permit: Permit,
    },
    /// The rest of a request is not wanted. Only for sources that can cancel.
    Cancel {
        /// Whom.
        source: SourceId,
        /// Which one.
        request: RequestId,
    },
    /// The source is of no more use to this transfer.
    CloseSource {
        /// Whom.
        source: SourceId,
    },
}

/// Where a source stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceState {
    /// Has never been up.
    Connecting,
    /// Takes requests.
    Up,
    /// Owes something and is silent, or fails again and again; asked only if nobody else is up.
    Stalled,
    /// Lost, but may come up again by itself.
    Down,
    /// Will not come up again.
    Gone,
    /// Closed by the planner: it lied, broke the protocol, or does not have the object any more.
    Barred,
}

/// Figures of one source.
#[derive(Clone, PartialEq, Debug)]
pub struct SourceStats {
    /// Which one.
    pub source: SourceId,
    /// Its name for people.
    pub label: String,
    /// Where it stands.
    pub state: SourceState,
    /// Bytes delivered from it; of a group of which only the rest came, those of the rest.
    pub delivered_bytes: u64,
    /// Bytes that came from it and were not needed.
    pub discarded_bytes: u64,
    /// Of those, and of what it brought in vain, bytes per second lately; 0 until measured.
    pub rate_bytes_per_s: u64,
    /// Round trip of its path in microseconds, as told or seen so far.
    pub round_trip_us: Option<u64>,
    /// Bytes it may owe.
    pub window_bytes: u64,
    /// Bytes it owes.
    pub outstanding_bytes: u64,
    /// How often it was set aside because it owed something and was silent for too long.
    pub stalls: u64,
}

/// A request that its source has not ended.
#[derive(Debug)]
struct Request {
    source: SourceId,
    groups: Subtree,
    recheck: bool,
    /// False once cancelled. What still arrives is taken if nobody else has brought it.
    wanted: bool,
    /// True after its first sign of life.
    started: bool,
    /// Another source was asked for it before, so it is not taken away again while its source delivers.
    borrowed: bool,
    /// It was made while another source owed the same (end game).
    duplicate: bool,
    /// Bytes of it did not match.
    mismatched: bool,
    /// Lowest group that has not been reported, and how many have been.
    next_group: u64,
    reported_groups: u64,
    outstanding_bytes: u64,
    issued_us: u64,
    /// The source owed nothing else when it was issued, so the time to its first event tells the round trip.
    issued_idle: bool,
}

/// The planner of one transfer.
#[derive(Debug)]
pub struct Planner {
    config: PlannerConfig,
    work: Work,
    sources: BTreeMap<SourceId, SourceRecord>,
    requests: BTreeMap<RequestId, Request>,
    /// Those of `requests` whose groups another one may bring, too: duplicates, what they duplicate, and cancelled ones
    /// of which something may still arrive.
    shared: BTreeSet<RequestId>,
    last_request: u32,
    commands: VecDeque<PlannerCommand>,
    /// When the last progress was; `None` before the first call that tells the time.
    progress_us: Option<u64>,
    /// When that first call was.
    begun_us: u64,
    /// When the last new group came, a source came up for the first time, or the clock began.
    group_us: u64,
    /// When it was last polled.
    polled_us: u64,
    /// How far into one request groups have been re-sent since the last new one. Only who comes further shows progress: one
    /// that begins again and again does not.
    resent_groups: u64,
    /// Nothing can be done until the consumer takes something.
    waits_for_consumer: bool,
    /// When to try again after the budget had no room.
    budget_retry_us: Option<u64>,
    /// When somebody's silence will be long enough to ask another source for what it owes.
    borrow_retry_us: Option<u64>,
    /// Nothing is looked for that pays before this time.
    borrow_after_us: u64,
    /// Since when somebody with nothing to do has left what is under way where it is, and for how long before that.
    waits_since_us: Option<u64>,
    waited_us: u64,
    /// A source came up: spares may have to stand back.
    order_changed: bool,
    /// Bytes that came after another source had brought them.
    duplicate_bytes: u64,
    effort: explain::EffortMeter,
    failure: Option<Cause>,
}

impl Planner {
    /// A planner for the pieces `wanted` of the object (piece `n` begins with group `n` times
    /// [`PlannerConfig::piece_groups`]); pieces beyond its end are ignored.
    pub fn new(config: PlannerConfig, wanted: RangeSet) -> Planner {
        let work = Work::new(config.geometry, config.piece_groups, config.delivery, wanted, config.is_open);
        Planner {
            last_request: config.last_request,
            config,
            work,
            sources: BTreeMap::new(),
            requests: BTreeMap::new(),
            shared: BTreeSet::new(),
            commands: VecDeque::new(),
            progress_us: None,
            begun_us: 0,
            group_us: 0,
            polled_us: 0,
            resent_groups: 0,
            waits_for_consumer: false,
            budget_retry_us: None,
            borrow_retry_us: None,
            borrow_after_us: 0,
            waits_since_us: None,
            waited_us: 0,
            order_changed: false,
            duplicate_bytes: 0,
            effort: explain::EffortMeter::default(),
            failure: None,
        }
    }

    /// Wants `pieces`, too. What is wanted ascends: pieces before the end of what was wanted before are ignored.
    pub fn want(&mut self, pieces: Range<u64>) {
        if !self.is_decided() {
            self.work.want(pieces);
        }
    }

    /// Nothing more will be wanted: having everything is the end from here on.
    pub fn want_no_more(&mut self) {
        self.work.close();
    }

    /// From here on, whoever is asked for `piece` is asked for nothing else with it.
    pub fn ask_alone(&mut self, piece: u64) {
        self.work.set_alone(piece);
    }

    /// A source that may be used once it is up. A known `source` is left as it is.
    pub fn add_source(&mut self, source: SourceId, description: SourceDescription) {
        let (limits, outstanding) = (self.config.window, self.config.strategy.outstanding);
        self.sources.entry(source).or_insert_with(|| SourceRecord::new(description, limits, outstanding));
    }

    /// The source takes requests.
    pub fn handle_up(&mut self, now_us: u64, source: SourceId, round_trip_us: Option<u64>) {
        self.begin(now_us);
        let Some(record) = self.sources.get_mut(&source).filter(|record| !record.is_over()) else { return };
        if let Some(round_trip_us) = round_trip_us {
            record.window.set_round_trip(round_trip_us);
        }
        if record.state == SourceState::Up {
            return;
        }
        if record.state == SourceState::Down {
            record.window.restart();
        }
        // One that keeps falling without delivering anything must not keep the others from their turn by coming back.
        record.state = if record.keeps_failing() { SourceState::Stalled } else { SourceState::Up };
        record.came_up(now_us);
        let is_first = !std::mem::replace(&mut record.was_up, true);
        self.order_changed = true;
        if is_first {
            self.note_progress(now_us);
        } else {
            self.sign_of_life(now_us);
        }
    }

    /// The pairs that prove a request arrived.
    pub fn handle_parents(&mut self, now_us: u64, source: SourceId, request: RequestId) {
        self.begin(now_us);
        if self.heard(now_us, source, request) {
            self.sign_of_life(now_us);
        }
    }

    /// A group arrived and was proven or is vouched for. Groups of requests that were never made or have ended, groups
    /// reported twice, and groups that another source brought before, are discarded.
    pub fn handle_group(
        &mut self,
        now_us: u64,
        source: SourceId,
        request: RequestId,
        group: u64,
    ) -> Disposition {
        self.handle_rest(now_us, source, request, group, u64::MAX)
    }

    /// The same for a group of which `came_bytes` came, as the rest of it is here: so many bytes the source has brought. It was asked for the
    /// group, and is not asked for more because it took less.
    pub fn handle_rest(
        &mut self,
        now_us: u64,
        source: SourceId,
        request: RequestId,
        group: u64,
        came_bytes: u64,
    ) -> Disposition {
        self.begin(now_us);
        if group >= self.config.geometry.groups() {
            return Disposition::Discard;
        }
        let bytes = self.config.geometry.group_bytes(group) as u64;
        let came_bytes = came_bytes.min(bytes);
        let known = self.requests.get(&request).is_some_and(|entry| {
            entry.source == source && (entry.next_group..entry.groups.end()).contains(&group)
        });
        if known {
            self.heard(now_us, source, request);
        }
        let Some(record) = self.sources.get_mut(&source) else { return Disposition::Discard };
        let Some(entry) = self.requests.get_mut(&request).filter(|_| known) else {
            record.discarded_bytes += came_bytes;
            return Disposition::Discard;
        };
        entry.next_group = group + 1;
        entry.reported_groups += 1;
        entry.outstanding_bytes -= bytes;
        record.outstanding_bytes -= bytes;
        record.window.spared(bytes - came_bytes);
        record.window.arrived(now_us, bytes);
        record.count_anew();
        if record.outstanding_bytes == 0 {
            record.window.pause();
        }
        if !self.work.deliver(group) {
            record.discarded_bytes += came_bytes;
            self.duplicate_bytes += came_bytes;
            // What a source cannot be told to leave, and was asked for before the last new group, has an end; what is still missing
            // may stand behind it.
            let cannot_leave = !entry.wanted && !record.description.capabilities.cancel;
            if cannot_leave && entry.issued_us < self.group_us {
                self.progress_us = Some(now_us);
            } else if (self.resent_groups + 1..=RESENT_GROUPS_MAX).contains(&entry.reported_groups) {
                self.resent_groups = entry.reported_groups;
                self.progress_us = Some(now_us);
            }
            return Disposition::Discard;
        }
        record.delivered_bytes += came_bytes;
        self.order_changed |= record.forgive();
        self.note_progress(now_us);
        self.resent_groups = 0;
        if self.work.is_complete() {
            self.cancel_all();
        } else if !self.shared.is_empty() {
            self.cancel_losers(group);
        }
        Disposition::Deliver
    }

    /// So many bytes have come from the source so far, of whatever kind. Over a slow path a group takes its time, and who sends one is
    /// not silent, for a while.
    pub fn handle_received(&mut self, now_us: u64, source: SourceId, received_bytes: u64) {
        self.begin(now_us);
        if let Some(record) = self.sources.get_mut(&source) {
            record.received(now_us, received_bytes);
        }
    }

    /// This end is at work with what came from the source, as on a slow disk, and may take nothing more of it meanwhile: it is not set aside, nor given up, for
    /// that. Others help out all the same, as where it is silent: of several connections another one may be. To be told again and again while it lasts.
    pub fn handle_at_work(&mut self, now_us: u64, source: SourceId) {
        self.begin(now_us);
        if let Some(record) = self.sources.get_mut(&source) {
            record.at_work_us = record.at_work_us.max(now_us);
        }
    }

    /// A group of the request did not match. A source is barred for that at once if there is another one, and
    /// otherwise after its second chance: its undelivered units are asked for again with `recheck`, so that the holder
    /// checks its own copy, and so is everything else of it until a rechecked request comes out clean.
    pub fn handle_mismatch(&mut self, now_us: u64, source: SourceId, request: RequestId) {
        self.begin(now_us);
        let entry =
            self.requests.get_mut(&request).filter(|entry| entry.source == source && !entry.mismatched);
        let Some(entry) = entry else { return };
        entry.mismatched = true;
        let (groups, recheck) = (entry.groups, entry.recheck);
        self.heard(now_us, source, request);
        self.cancel(request);
        let has_others = self.sources.iter().any(|(&id, record)| id != source && record.is_up_or_stalled());
        if !recheck && !has_others {
            self.work.suspect(groups);
            if let Some(record) = self.sources.get_mut(&source) {
                record.doubted = true;
            }
            return;
        }
        let range = self.config.geometry.byte_range(groups);
        let checked = if recheck { ", also after the sender was asked to check its copy" } else { "" };
        let text = format!(
            "bytes between offsets {} and {} are not those of the object{checked}",
            range.start, range.end
        );
        let cause = Cause::new(ErrorKind::VerificationFailed, text);
        self.bar(source, cause.advise("get it from somebody else, or check the path for what alters data"));
    }

    /// A group of the request does not fit what is known of it here, and its source is not to blame: it is asked for again.
    pub fn handle_misfit(&mut self, now_us: u64, source: SourceId, request: RequestId) {
        self.begin(now_us);
        if self.heard(now_us, source, request) {
            self.cancel(request);
        }
    }

    /// A wanted group was found here: whoever was asked for it, and for nothing else that is missing, need not send it. False if it was
    /// delivered before; otherwise the caller has it to store, and nobody else will be told to.
    pub fn handle_found(&mut self, now_us: u64, group: u64) -> bool {
        self.begin(now_us);
        if group >= self.config.geometry.groups() || self.failure.is_some() || !self.work.deliver(group) {
            return false;
        }
        self.note_progress(now_us);
        if self.work.is_complete() {
            self.cancel_all();
        } else {
            self.cancel_needless(group);
        }
        true
    }

    /// True if the group was delivered, or found.
    pub fn has_group(&self, group: u64) -> bool {
        self.work.has_groups(group..group.saturating_add(1))
    }

    /// The request has ended: every group was reported, or it was cancelled. A source that ends a wanted request
    /// early is barred.
    pub fn handle_done(&mut self, now_us: u64, source: SourceId, request: RequestId) {
        self.begin(now_us);
        let Some(entry) = self.remove(source, request) else { return };
        let Some(record) = self.sources.get_mut(&source) else { return };
        record.silent_since_us = now_us;
        if !entry.wanted {
            return;
        }
        let missing = entry.groups.groups - entry.reported_groups;
        if missing > 0 {
            self.give_back(&entry);
            let text = format!("ended a request with {missing} of {} groups missing", entry.groups.groups);
            self.bar(source, Cause::new(ErrorKind::Protocol, text));
        } else {
            record.doubted &= !entry.recheck;
        }
    }

    /// The request failed and the source goes on. What a holder says for good (changed, damaged, not found, refused,
    /// or any error that is not retryable) bars it; after anything else its work is asked for again, after a pause
    /// if failures follow each other.
    pub fn handle_failed(&mut self, now_us: u64, source: SourceId, request: RequestId, error: &Error) {
        self.begin(now_us);
        let Some(entry) = self.remove(source, request) else { return };
        if entry.wanted {
            self.give_back(&entry);
        }
        if is_final(error) {
            self.bar(source, Cause::of(error));
        } else if let Some(record) = self.sources.get_mut(&source) {
            record.silent_since_us = now_us;
            if entry.wanted {
                record.failed(now_us, Some(Cause::of(error)));
            }
        }
    }

    /// The source takes no more requests, and all it had are lost. `gone` (or an error that is not retryable) means
    /// for good; otherwise it may come up again.
    pub fn handle_down(&mut self, now_us: u64, source: SourceId, error: Option<&Error>, gone: bool) {
        self.begin(now_us);
        if self.sources.get(&source).is_none_or(SourceRecord::is_over) {
            return;
        }
        self.remove_all(source);
        if self.failure.is_some() {
            // It was closed because everything is over: where it stood before says more.
            return;
        }
        let Some(record) = self.sources.get_mut(&source) else { return };
        if gone || error.is_some_and(is_final) {
            // What it did is why, and not that its connection ended over it.
            let broke =
                |error: &Error| matches!(error.kind(), ErrorKind::Protocol | ErrorKind::VerificationFailed);
            record.state = if error.is_some_and(broke) { SourceState::Barred } else { SourceState::Gone };
            let closed = || Cause::new(ErrorKind::Unreachable, "the connection was closed");
            record.cause = Some(error.map(Cause::of).or(record.cause.take()).unwrap_or_else(closed));
            self.fail_if_nobody_is_left();
        } else {
            record.state = SourceState::Down;
            record.failed(now_us, error.map(Cause::of));
        }
    }

    /// Sequential mode: the consumer is past the pieces `0..pieces`. Fewer than before changes nothing.
    pub fn handle_consumed(&mut self, pieces: u64) {
        self.work.consume(pieces);
    }

    /// How a thread that delivers groups spent its time; only [`Planner::explain`] looks at it.
    pub fn handle_effort(&mut self, effort: Effort) {
        self.effort.add(effort);
    }

    /// The next thing to tell a source; `None` until the next event or deadline.
    pub fn poll(&mut self, now_us: u64) -> Option<PlannerCommand> {
        self.begin(now_us);
        self.polled_us = now_us;
        self.borrow_retry_us = None;
        if !self.is_decided() {
            self.check_deadlines(now_us);
        }
        if self.order_changed {
            self.order_changed = false;
            self.stand_back_spares(now_us);
        }
        if let Some(command) = self.commands.pop_front() {
            return Some(command);
        }
        if self.is_decided() {
            return None;
        }
        self.assign(now_us).or_else(|| self.borrow(now_us))
    }

    /// The last request number used; see [`PlannerConfig::last_request`].
    pub fn last_request(&self) -> u32 {
        self.last_request
    }

    /// Figures of every source, by number.
    pub fn stats(&self) -> Vec<SourceStats> {
        self.sources.iter().map(|(&source, record)| record.stats(source)).collect()
    }

    /// `Some(Ok)` once every wanted group has been delivered; `Some(Err)` when that can never be, or nobody made
    /// progress for too long. The error names the sources at fault and why.
    pub fn outcome(&self) -> Option<Result<()>> {
        match &self.failure {
            Some(cause) => Some(Err(cause.to_error())),
            None => self.work.is_complete().then_some(Ok(())),
        }
    }

    /// The first call that tells the time starts the clock.
    fn begin(&mut self, now_us: u64) {
        if self.progress_us.is_none() {
            self.begun_us = now_us;
            self.note_progress(now_us);
        }
    }

    fn is_decided(&self) -> bool {
        self.failure.is_some() || self.work.is_complete()
    }

    fn note_progress(&mut self, now_us: u64) {
        self.progress_us = Some(now_us);
        self.group_us = now_us;
    }

    /// Something came that is no group. It counts as progress for a little while after the last group.
    fn sign_of_life(&mut self, now_us: u64) {
        let counts_us = now_us.min(self.group_us.saturating_add(GRACE_US));
        self.progress_us = Some(self.progress_us.map_or(counts_us, |known_us| known_us.max(counts_us)));
    }

    /// Notes that a source said something about a request of its own, cancelled or not. False if there is none.
    fn heard(&mut self, now_us: u64, source: SourceId, request: RequestId) -> bool {
        let Some(entry) = self.requests.get_mut(&request).filter(|entry| entry.source == source) else {
            return false;
        };
        let Some(record) = self.sources.get_mut(&source) else { return false };
        if !std::mem::replace(&mut entry.started, true) && entry.issued_idle {
            record.window.saw_round_trip(now_us.saturating_sub(entry.issued_us));
        }
        self.order_changed |= record.alive(now_us);
        entry.wanted
    }
}

/// True if asking the same source again is pointless.
fn is_final(error: &Error) -> bool {
    let said_for_good = matches!(
        error.kind(),
        ErrorKind::Changed
            | ErrorKind::Damaged
            | ErrorKind::NotFound
            | ErrorKind::Refused
            | ErrorKind::Protocol
            | ErrorKind::Unsupported
            | ErrorKind::VerificationFailed
    );
    said_for_good || !error.is_retryable()
}
