//! A reference model of a planned transfer: simulated sources with every kind of misbehaviour, a virtual clock, and
//! a ledger that checks each command and each answer of the planner against what it may do.
//!
//! [`run`] plays one [`Scenario`] to its end and says how it ended, or which rule was broken. It is deterministic:
//! the same scenario always gives the same run.

mod ledger;
mod scenario;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dray_core::error::{Error, ErrorKind};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{GROUP_BYTES, REQUEST_GROUPS_MAX, UNIT_BYTES};
use dray_core::permit::{Budget, Permit};
use dray_core::range::RangeSet;
use dray_core::source::{Grade, RequestId, SourceCapabilities, SourceDescription, SourceId};
use dray_engine::planner::{
    DeliveryMode, Disposition, Explanation, Outstanding, Planner, PlannerCommand, PlannerConfig, SourceState,
    Standing,
};
use ledger::{Issued, Ledger};
pub use scenario::{Behaviour, Report, Scenario, SourceScript, Unfolding};

/// Silence after which the planner sets a source aside, microseconds.
pub const PROGRESS_TIMEOUT_US: u64 = 10_000_000;
/// Time without progress after which it gives up, microseconds.
pub const GIVE_UP_US: u64 = 25_000_000;

/// Plays a scenario until the planner has an outcome, at most until `limit_us`.
///
/// # Errors
/// Says which rule the planner broke.
pub fn run(scenario: &Scenario, limit_us: u64) -> Result<Report, String> {
    Simulation::new(scenario).run(limit_us)
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    planner: Planner,
    ledger: Ledger,
    sources: Vec<SimulatedSource>,
    now_us: u64,
    consumer_at_us: Option<u64>,
    hears_at_us: Option<u64>,
    /// Pieces that will be wanted, and when the next of them become known.
    unknown_pieces: RangeSet,
    known_end: u64,
    unfolds_at_us: Option<u64>,
    last_known_us: u64,
}

#[derive(PartialEq, Clone, Copy)]
enum Link {
    Away,
    Up,
    Closed,
}

struct SimulatedSource {
    script: SourceScript,
    link: Link,
    /// When the link next changes by itself.
    up_at_us: Option<u64>,
    queue: VecDeque<Job>,
    /// When the wire is free again.
    free_at_us: u64,
    sent_groups: u64,
    /// Bytes that came without making a group, until when they were counted, and all that came.
    trickled_bytes: u64,
    trickled_us: u64,
    received_bytes: u64,
    begun_requests: u64,
    was_up: bool,
    /// Requests it never answers; their permits are held until the connection ends.
    swallowed: Vec<Job>,
    spent: bool,
}

struct Job {
    request: RequestId,
    groups: Subtree,
    next_group: u64,
    recheck: bool,
    asked_us: u64,
    begun: bool,
    cancelled: bool,
    _permit: Permit,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let geometry = Geometry::new(scenario.size_bytes);
        let pieces = geometry.groups().div_ceil(scenario.piece_groups);
        let mut unknown_pieces = RangeSet::new();
        unknown_pieces.insert(0..pieces);
        for had in &scenario.had_pieces {
            unknown_pieces.remove(had.clone());
        }
        let wanted_pieces = match scenario.unfolding {
            None => std::mem::take(&mut unknown_pieces),
            Some(_) => RangeSet::new(),
        };
        let delivery = match scenario.sequential_bytes {
            Some(window_bytes) => DeliveryMode::Sequential { window_bytes },
            None => DeliveryMode::OutOfOrder,
        };
        let budget = Budget::new(scenario.budget_bytes);
        let config = PlannerConfig {
            geometry,
            piece_groups: scenario.piece_groups,
            is_open: scenario.unfolding.is_some(),
            delivery,
            budget: budget.clone(),
            window: scenario.window,
            strategy: scenario.strategy,
            progress_timeout_us: PROGRESS_TIMEOUT_US,
            give_up_us: GIVE_UP_US,
            last_request: 0,
        };
        let mut planner = Planner::new(config, wanted_pieces.clone());
        let mut sources = Vec::new();
        for (index, &script) in scenario.sources.iter().enumerate() {
            let description = SourceDescription {
                label: format!("source {index}"),
                priority: script.priority,
                weight: 1,
                capabilities: SourceCapabilities {
                    grade: Grade::Proven,
                    cancel: script.can_cancel,
                    holes: false,
                    under_way_bytes: script.under_way_bytes,
                },
            };
            planner.add_source(SourceId(index as u32), description);
            let up_at_us = (script.behaviour != Behaviour::Absent).then_some(script.up_at_us);
            sources.push(SimulatedSource {
                script,
                link: Link::Away,
                up_at_us,
                queue: VecDeque::new(),
                free_at_us: 0,
                sent_groups: 0,
                trickled_bytes: 0,
                trickled_us: 0,
                received_bytes: 0,
                begun_requests: 0,
                was_up: false,
                swallowed: Vec::new(),
                spent: false,
            });
        }
        let count = sources.len();
        let mut ledger = Ledger {
            geometry,
            piece_groups: scenario.piece_groups,
            budget,
            wanted_pieces: RangeSet::new(),
            delivered: BTreeSet::new(),
            wanted_groups: 0,
            issued: BTreeMap::new(),
            open: BTreeSet::new(),
            consumed_pieces: 0,
            last_delivery_us: 0,
            delivered_groups: vec![0; count],
            discarded_groups: vec![0; count],
            repeated_groups: vec![0; count],
            resent_groups: vec![0; count],
            last_repeat_us: 0,
            repeated_far: 0,
            last_first_up_us: 0,
            outstanding_bytes: vec![0; count],
            outstanding_bytes_max: vec![0; count],
            requests_max: vec![0; count],
            reserved_bytes_max: 0,
        };
        wanted_pieces.iter().for_each(|pieces| ledger.want(pieces));
        Simulation {
            scenario,
            planner,
            ledger,
            sources,
            now_us: 0,
            consumer_at_us: scenario.sequential_bytes.map(|_| 0),
            hears_at_us: scenario.hear_interval_us,
            unknown_pieces,
            known_end: 0,
            unfolds_at_us: scenario.unfolding.map(|unfolding| unfolding.interval_us),
            last_known_us: 0,
        }
    }

    fn run(mut self, limit_us: u64) -> Result<Report, String> {
        let mut polls_at_one_time = 0;
        let outcome = loop {
            self.poll()?;
            if let Some(outcome) = self.planner.outcome() {
                break outcome;
            }
            let events = self.sources.iter().filter_map(SimulatedSource::next_us);
            let next = events.chain(self.planner.next_deadline_us()).chain(self.consumer_at_us);
            let next = next.chain(self.unfolds_at_us).min();
            let next_us = next.ok_or("the planner waits for nothing and has no deadline")?;
            let next_us = next_us.min(self.hears_at_us.unwrap_or(u64::MAX));
            polls_at_one_time = if next_us > self.now_us { 0 } else { polls_at_one_time + 1 };
            if polls_at_one_time > 100_000 {
                return Err(format!("the planner spins at {} us", self.now_us));
            }
            self.now_us = self.now_us.max(next_us);
            if self.now_us > limit_us {
                return Err(format!("no outcome after {limit_us} us of virtual time"));
            }
            self.hear();
            self.consume();
            self.unfold();
            for index in 0..self.sources.len() {
                if self.sources[index].next_us().is_some_and(|at_us| at_us <= self.now_us) {
                    self.step(index)?;
                }
            }
        };
        self.finish(outcome)
    }

    fn finish(mut self, outcome: Result<(), Error>) -> Result<Report, String> {
        self.poll()?;
        let all_known = self.unfolds_at_us.is_none();
        let complete = all_known && self.ledger.delivered.len() as u64 == self.ledger.wanted_groups;
        if outcome.is_ok() != complete {
            return Err(format!("outcome {outcome:?}, but everything delivered is {complete}"));
        }
        if self.planner.next_deadline_us().is_some() {
            return Err("a deadline after the outcome".into());
        }
        let explanation = self.planner.explain(self.now_us);
        self.check_explanation(&explanation)?;
        self.sources.clear();
        if self.ledger.budget.used_bytes() != 0 {
            return Err(format!("{} bytes of permits leaked", self.ledger.budget.used_bytes()));
        }
        Ok(Report {
            outcome,
            ended_us: self.now_us,
            last_delivery_us: self.ledger.last_delivery_us,
            delivered_groups: self.ledger.delivered_groups,
            discarded_groups: self.ledger.discarded_groups,
            repeated_groups: self.ledger.repeated_groups,
            resent_groups: self.ledger.resent_groups,
            last_repeat_us: self.ledger.last_repeat_us,
            last_first_up_us: self.ledger.last_first_up_us,
            last_known_us: self.last_known_us,
            outstanding_bytes_max: self.ledger.outstanding_bytes_max,
            requests_max: self.ledger.requests_max,
            reserved_bytes_max: self.ledger.reserved_bytes_max,
            explanation,
        })
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut rounds = 0;
        while let Some(command) = self.planner.poll(self.now_us) {
            rounds += 1;
            if rounds > 100_000 {
                return Err("poll never ends".into());
            }
            match command {
                PlannerCommand::Fetch { source, request, groups, recheck, permit } => {
                    self.check_fetch(source, request, groups, &permit)?;
                    self.sources[source.0 as usize].queue.push_back(Job {
                        request,
                        groups,
                        next_group: groups.start,
                        recheck,
                        asked_us: self.now_us,
                        begun: false,
                        cancelled: false,
                        _permit: permit,
                    });
                }
                PlannerCommand::Cancel { source, request } => {
                    let simulated = &mut self.sources[source.0 as usize];
                    if !simulated.script.can_cancel {
                        return Err(format!("cancel told to {source:?}, which cannot"));
                    }
                    let mut before_bytes = 0;
                    for job in &mut simulated.queue {
                        if job.request == request {
                            job.cancelled = before_bytes >= simulated.script.under_way_bytes;
                            break;
                        }
                        before_bytes += (job.groups.end() - job.next_group) * GROUP_BYTES;
                    }
                    self.ledger.end_live(request);
                }
                PlannerCommand::CloseSource { source } => {
                    let index = source.0 as usize;
                    self.sources[index].link = Link::Closed;
                    self.sources[index].up_at_us = None;
                    self.sources[index].forget();
                    self.ledger.end_all(index);
                    self.planner.handle_down(self.now_us, source, None, true);
                }
            }
        }
        Ok(())
    }

    /// Every rule for a request, checked when it is made.
    fn check_fetch(
        &mut self,
        source: SourceId,
        request: RequestId,
        groups: Subtree,
        permit: &Permit,
    ) -> Result<(), String> {
        let ledger = &mut self.ledger;
        let index = source.0 as usize;
        let broken = |rule: &str| Err(format!("{request:?} {groups:?} of {source:?}: {rule}"));
        if ledger.geometry.subtree(groups.start, groups.groups) != Some(groups) {
            return broken("is no subtree");
        }
        if groups.groups > REQUEST_GROUPS_MAX {
            return broken("is too large");
        }
        let (piece_groups, piece_bytes) = (ledger.piece_groups, ledger.piece_bytes());
        if !groups.start.is_multiple_of(piece_groups)
            || (!groups.end().is_multiple_of(piece_groups) && groups.end() != ledger.geometry.groups())
        {
            return broken("is not whole pieces");
        }
        if request.0 == 0 || ledger.issued.contains_key(&request) {
            return broken("has a number used before");
        }
        if self.sources[index].link != Link::Up {
            return broken("goes to a source that is not up");
        }
        let pieces = groups.start / piece_groups..groups.end().div_ceil(piece_groups);
        for piece in pieces.clone() {
            if !ledger.wanted_pieces.contains(piece) {
                return broken("was not wanted");
            }
            if ledger.has_piece(piece) {
                return broken("was delivered");
            }
        }
        let overlap = ledger.open.iter().find(|other| {
            let entry = &ledger.issued[other];
            // What a source that cannot cancel was asked for may be given up without a word.
            entry.is_live
                && self.sources[entry.source].script.can_cancel
                && entry.groups.start < groups.end()
                && groups.start < entry.groups.end()
        });
        let has = (groups.start..groups.end()).filter(|group| ledger.delivered.contains(group)).count();
        if overlap.is_none() {
            ledger.resent_groups[index] += has as u64;
        }
        if let Some(other) = overlap {
            if !self.scenario.strategy.end_game {
                return broken(&format!("overlaps {other:?}"));
            }
            if let Some(piece) = ledger.unassigned_piece(self.scenario.sequential_bytes) {
                return broken(&format!("overlaps {other:?}, and nobody is asked for piece {piece}"));
            }
        }
        let range = ledger.geometry.byte_range(groups);
        let bytes = range.end - range.start;
        if permit.bytes() != bytes {
            return broken("has a permit of another size");
        }
        if ledger.budget.used_bytes() > ledger.budget.limit_bytes() && ledger.budget.used_bytes() != bytes {
            return broken("exceeds the budget");
        }
        ledger.outstanding_bytes[index] += bytes;
        let outstanding = ledger.outstanding_bytes[index];
        ledger.outstanding_bytes_max[index] = ledger.outstanding_bytes_max[index].max(outstanding);
        let stats = self.planner.stats();
        if stats[index].outstanding_bytes != outstanding {
            return broken("makes the planner's count of outstanding bytes wrong");
        }
        let requests = 1 + ledger.open.iter().filter(|open| ledger.issued[open].source == index).count();
        ledger.requests_max[index] = ledger.requests_max[index].max(requests);
        ledger.reserved_bytes_max = ledger.reserved_bytes_max.max(ledger.budget.used_bytes());
        match self.scenario.strategy.outstanding {
            Outstanding::Requests(count) if requests > count || pieces.end - pieces.start > 1 => {
                return broken("is more than so many requests of one piece");
            }
            Outstanding::Window if outstanding > stats[index].window_bytes.max(UNIT_BYTES) => {
                return broken("exceeds the window");
            }
            _ => {}
        }
        let window = stats[index].window_bytes;
        if window > self.scenario.window.max_bytes.max(UNIT_BYTES) || window < UNIT_BYTES {
            return broken("was made in a window outside its limits");
        }
        let priority = self.sources[index].script.priority;
        let better = stats.iter().enumerate().filter(|(other, figures)| {
            figures.state == SourceState::Up && self.sources[*other].script.priority < priority
        });
        let better: Vec<usize> = better.map(|(other, _)| other).collect();
        if !better.is_empty() {
            let explanation = self.planner.explain(self.now_us);
            if better.iter().any(|other| explanation.sources[*other].standing == Standing::Up) {
                return broken("goes to a spare while a better source is up and not silent");
            }
        }
        if let Some(window_bytes) = self.scenario.sequential_bytes
            && pieces.end > ledger.consumed_pieces + (window_bytes / piece_bytes).max(1)
        {
            return broken("is beyond the sequential window");
        }
        let issued = Issued {
            source: index,
            groups,
            next_group: groups.start,
            outstanding_bytes: bytes,
            issued_us: self.now_us,
            is_live: true,
        };
        ledger.issued.insert(request, issued);
        ledger.open.insert(request);
        Ok(())
    }

    /// Tells the planner what has come from each source, whole groups or not, as its driver does.
    fn hear(&mut self) {
        let now_us = self.now_us;
        if self.hears_at_us.is_some_and(|at_us| at_us <= now_us) {
            self.hears_at_us = self.scenario.hear_interval_us.map(|interval_us| now_us + interval_us.max(1));
        }
        for (index, source) in self.sources.iter_mut().enumerate() {
            if source.link == Link::Up {
                self.planner.handle_received(now_us, SourceId(index as u32), source.count(now_us));
            }
        }
    }

    /// The sequential consumer takes what is in order; what was there before counts.
    fn consume(&mut self) {
        if self.consumer_at_us.is_none_or(|at_us| at_us > self.now_us) {
            return;
        }
        let ledger = &mut self.ledger;
        while ledger.consumed_pieces < ledger.pieces() {
            let piece = ledger.consumed_pieces;
            let may_be_wanted = self.unknown_pieces.contains(piece) || ledger.wanted_pieces.contains(piece);
            if may_be_wanted && !ledger.has_piece(piece) {
                break;
            }
            ledger.consumed_pieces += 1;
        }
        self.planner.handle_consumed(ledger.consumed_pieces);
        self.consumer_at_us = Some(self.now_us + self.scenario.consumer_us.max(1));
    }

    /// More of what is wanted becomes known, or that there is no more.
    fn unfold(&mut self) {
        let Some(unfolding) = self.scenario.unfolding else { return };
        if self.unfolds_at_us.is_none_or(|at_us| at_us > self.now_us) {
            return;
        }
        self.last_known_us = self.now_us;
        let start = self.known_end;
        if start >= self.ledger.pieces() {
            self.planner.want_no_more();
            self.unfolds_at_us = None;
            return;
        }
        self.known_end = start + unfolding.step_pieces.max(1);
        for piece in start..self.known_end.min(self.ledger.pieces()) {
            if self.unknown_pieces.contains(piece) {
                self.unknown_pieces.remove(piece..piece + 1);
                self.ledger.want(piece..piece + 1);
                self.planner.want(piece..piece + 1);
            }
        }
        let is_last = self.known_end >= self.ledger.pieces();
        let wait_us = if is_last { unfolding.end_us } else { unfolding.interval_us };
        self.unfolds_at_us = Some(self.now_us + wait_us.max(1));
    }

    /// The source's next event.
    fn step(&mut self, index: usize) -> Result<(), String> {
        let id = SourceId(index as u32);
        let source = &mut self.sources[index];
        if source.link == Link::Away {
            source.link = Link::Up;
            source.up_at_us = None;
            if !std::mem::replace(&mut source.was_up, true) {
                self.ledger.last_first_up_us = self.now_us;
            }
            let trickles = matches!(source.script.behaviour, Behaviour::Trickles { after_groups: 0, .. });
            source.free_at_us = if trickles { u64::MAX } else { self.now_us };
            let round_trip_us = source.script.tells_round_trip.then_some(source.script.round_trip_us);
            self.planner.handle_up(self.now_us, id, round_trip_us);
            return Ok(());
        }
        let noisy = source.script.is_noisy;
        let behaviour = source.script.behaviour;
        let sent = source.sent_groups;
        let Some(job) = source.queue.front_mut() else { return Ok(()) };
        let (request, groups) = (job.request, job.groups);
        if job.cancelled || job.next_group == groups.end() {
            // What is reported was proven, so a liar has nothing to report.
            let has_more = job.next_group < groups.end() && behaviour != Behaviour::LiesAlways;
            if job.cancelled && noisy && has_more {
                let group = job.next_group;
                self.report(index, request, group)?;
            }
            self.sources[index].queue.pop_front();
            self.ledger.end(request);
            self.planner.handle_done(self.now_us, id, request);
            return Ok(());
        }
        if let Behaviour::Swallows { every } = behaviour
            && !job.begun
        {
            source.begun_requests += 1;
            if source.begun_requests.is_multiple_of(every.max(1)) {
                let job = source.queue.pop_front();
                source.swallowed.extend(job);
                return Ok(());
            }
        }
        if !job.begun {
            job.begun = true;
            self.planner.handle_parents(self.now_us, id, request);
            return Ok(());
        }
        let group = job.next_group;
        match behaviour {
            Behaviour::FailsRetryably { every } if (sent + 1).is_multiple_of(every.max(1)) => {
                source.sent_groups += 1;
                let error = Error::new(ErrorKind::TimedOut, "busy");
                return self.fail(index, request, &error);
            }
            Behaviour::Quits { after_groups, kind } if sent >= after_groups => {
                return self.fail(index, request, &Error::new(kind, "quits"));
            }
            Behaviour::LiesAlways => return self.lie(index, request),
            Behaviour::LiesOnce { after_groups } if sent >= after_groups && !source.spent && !job.recheck => {
                source.spent = true;
                return self.lie(index, request);
            }
            Behaviour::Flaps { every, away_us } if (sent + 1).is_multiple_of(every.max(1)) => {
                source.sent_groups += 1;
                let back_us = self.now_us + away_us;
                return self.lose(index, Some(back_us));
            }
            Behaviour::Dies { after_groups } if sent >= after_groups => {
                return self.lose(index, None);
            }
            Behaviour::EndsEarly { after_groups } if sent >= after_groups && group + 1 == groups.end() => {
                source.queue.pop_front();
                self.ledger.end(request);
                self.planner.handle_done(self.now_us, id, request);
                return Ok(());
            }
            _ => {}
        }
        job.next_group += 1;
        source.sent_groups += 1;
        if let Behaviour::Stalls { after_groups, for_us } = behaviour
            && source.sent_groups >= after_groups
            && !source.spent
        {
            source.spent = true;
            source.free_at_us = self.now_us.saturating_add(for_us);
        } else if let Behaviour::Trickles { after_groups, .. } = behaviour
            && source.sent_groups >= after_groups
        {
            source.free_at_us = u64::MAX;
        } else {
            source.free_at_us = self.now_us;
        }
        self.report(index, request, group)?;
        if noisy {
            self.report(index, request, group)?;
            self.report(index, RequestId(request.0.wrapping_add(1_000_000)), group)?;
            self.report(index, request, groups.end())?;
            self.planner.handle_done(self.now_us, id, RequestId(u32::MAX));
        }
        Ok(())
    }

    /// Reports a group and holds the planner's answer against the ledger.
    fn report(&mut self, index: usize, request: RequestId, group: u64) -> Result<(), String> {
        let ledger = &mut self.ledger;
        let mut expected = Disposition::Discard;
        if let Some(entry) = ledger.issued.get_mut(&request)
            && entry.source == index
            && (entry.next_group..entry.groups.end()).contains(&group)
        {
            let bytes = ledger.geometry.group_bytes(group) as u64;
            entry.next_group = group + 1;
            entry.outstanding_bytes -= bytes;
            ledger.outstanding_bytes[index] -= bytes;
            // Cancelled or not: it was proven.
            if ledger.delivered.contains(&group) {
                ledger.repeated_groups[index] += 1;
                let far = group + 1 - entry.groups.start;
                let new_us = ledger.last_delivery_us.max(ledger.last_first_up_us).max(self.last_known_us);
                let can_cancel = self.sources[index].script.can_cancel;
                if !can_cancel && entry.issued_us < new_us {
                    ledger.last_repeat_us = self.now_us;
                } else if far > ledger.repeated_far {
                    ledger.repeated_far = far;
                    ledger.last_repeat_us = self.now_us;
                }
            } else {
                expected = Disposition::Deliver;
                ledger.repeated_far = 0;
            }
        }
        let answer = self.planner.handle_group(self.now_us, SourceId(index as u32), request, group);
        if answer != expected {
            return Err(format!("group {group} of {request:?}: {answer:?}, expected {expected:?}"));
        }
        if answer == Disposition::Deliver {
            ledger.delivered.insert(group);
            ledger.delivered_groups[index] += 1;
            ledger.last_delivery_us = self.now_us;
        } else {
            ledger.discarded_groups[index] += 1;
        }
        Ok(())
    }

    /// The planner's account at the end agrees with the ledger, and says why for whoever it closed.
    fn check_explanation(&self, explanation: &Explanation) -> Result<(), String> {
        let ledger = &self.ledger;
        let missing_groups = ledger.wanted_groups - ledger.delivered.len() as u64;
        if explanation.wanted_left_bytes != missing_groups * GROUP_BYTES {
            return Err(format!("{explanation:?}, but {missing_groups} groups are missing"));
        }
        let repeated: u64 = ledger.repeated_groups.iter().sum();
        if explanation.duplicate_bytes.div_ceil(GROUP_BYTES) > repeated {
            return Err(format!("{explanation:?}, but {repeated} groups came twice"));
        }
        for source in &explanation.sources {
            let is_over = matches!(source.standing, Standing::Barred | Standing::Gone);
            if is_over && source.cause.is_none() {
                return Err(format!("nothing says why: {source:?}"));
            }
        }
        Ok(())
    }

    fn fail(&mut self, index: usize, request: RequestId, error: &Error) -> Result<(), String> {
        self.sources[index].queue.pop_front();
        self.sources[index].free_at_us = self.now_us;
        self.ledger.end(request);
        self.planner.handle_failed(self.now_us, SourceId(index as u32), request, error);
        Ok(())
    }

    /// Wrong bytes: whoever proves them tells the planner and ends the request.
    fn lie(&mut self, index: usize, request: RequestId) -> Result<(), String> {
        self.sources[index].sent_groups += 1;
        self.sources[index].free_at_us = self.now_us;
        if let Some(job) = self.sources[index].queue.front_mut() {
            job.cancelled = true;
        }
        self.ledger.end_live(request);
        self.planner.handle_mismatch(self.now_us, SourceId(index as u32), request);
        Ok(())
    }

    /// The connection is lost; there is another one at `back_us`, or never.
    fn lose(&mut self, index: usize, back_us: Option<u64>) -> Result<(), String> {
        let error = Error::new(ErrorKind::Unreachable, "connection reset");
        // As a real source does: each request fails by itself, and those that the planner makes meanwhile, too.
        while let Some(job) = self.sources[index].queue.pop_front() {
            self.ledger.end(job.request);
            let request = job.request;
            drop(job);
            self.planner.handle_failed(self.now_us, SourceId(index as u32), request, &error);
            self.poll()?;
        }
        let source = &mut self.sources[index];
        // It may have been closed meanwhile: nobody else was left.
        if source.link == Link::Up {
            source.link = if back_us.is_some() { Link::Away } else { Link::Closed };
            source.up_at_us = back_us;
        }
        source.forget();
        self.ledger.end_all(index);
        self.planner.handle_down(self.now_us, SourceId(index as u32), Some(&error), back_us.is_none());
        Ok(())
    }
}

impl SimulatedSource {
    /// The connection is lost, and every request with it.
    fn forget(&mut self) {
        self.queue.clear();
        self.swallowed.clear();
    }

    /// Bytes that have come from it, with those of the group on the wire.
    fn count(&mut self, now_us: u64) -> u64 {
        let elapsed_us = now_us - std::mem::replace(&mut self.trickled_us, now_us);
        let mut on_wire_bytes = 0;
        if let Some(job) = self.queue.front() {
            if let Behaviour::Trickles { bytes_per_s, .. } = self.script.behaviour
                && self.free_at_us == u64::MAX
            {
                self.trickled_bytes += elapsed_us * bytes_per_s / 1_000_000;
            }
            let ready_us = self.free_at_us.max(job.asked_us.saturating_add(self.script.round_trip_us));
            if job.begun && !job.cancelled && job.next_group < job.groups.end() {
                let wire_us = GROUP_BYTES * 1_000_000 / self.script.rate_bytes_per_s.max(1);
                let sent_us = now_us.saturating_sub(ready_us).min(wire_us);
                on_wire_bytes = sent_us * self.script.rate_bytes_per_s / 1_000_000;
            }
        }
        let bytes = self.sent_groups * GROUP_BYTES + self.trickled_bytes + on_wire_bytes;
        self.received_bytes = self.received_bytes.max(bytes);
        self.received_bytes
    }

    /// When it next does something.
    fn next_us(&self) -> Option<u64> {
        match self.link {
            Link::Closed => None,
            Link::Away => self.up_at_us,
            Link::Up => {
                let job = self.queue.front()?;
                let asked_us = job.asked_us.saturating_add(self.script.round_trip_us);
                let ready_us = self.free_at_us.max(asked_us);
                if job.cancelled || !job.begun || job.next_group == job.groups.end() {
                    return (ready_us != u64::MAX).then_some(ready_us);
                }
                let wire_us = GROUP_BYTES * 1_000_000 / self.script.rate_bytes_per_s.max(1);
                let at_us = ready_us.saturating_add(wire_us);
                (at_us != u64::MAX).then_some(at_us)
            }
        }
    }
}
