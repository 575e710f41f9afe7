//! Who is asked for what, and who is no longer: choosing the next request, standing spares back, and the deadlines
//! of sources that owe something.

use dray_core::error::ErrorKind;
use dray_core::hash_tree::Subtree;
use dray_core::limits::UNIT_BYTES;
use dray_core::source::{RequestId, SourceId};

use super::source::{Cause, SourceRecord};
use super::{Planner, PlannerCommand, Request, SourceState};

/// Microseconds after which to try again if the budget had no room: others hold it, and they tell nobody.
const BUDGET_RETRY_US: u64 = 20_000;
/// A unit is left to a faster source only if that saves at least this many seconds.
const WORTH_WAITING_S: f64 = 0.25;

impl Planner {
    /// The next request, if somebody has room for one.
    pub(super) fn assign(&mut self, now_us: u64) -> Option<PlannerCommand> {
        self.budget_retry_us = None;
        let (unit, _) = self.work.next_request(1)?;
        let unit_bytes = self.bytes_of(unit);
        let (source, units_max) = self.choose(now_us, unit_bytes)?;
        let mut units_max = units_max;
        let (groups, recheck, permit) = loop {
            let (groups, recheck) = self.work.next_request(units_max)?;
            if let Some(permit) = self.config.budget.try_reserve(self.bytes_of(groups)) {
                break (groups, recheck, permit);
            }
            if units_max == 1 {
                self.close_stalled_holders(source);
                self.budget_retry_us = Some(now_us.saturating_add(BUDGET_RETRY_US));
                return self.commands.pop_front();
            }
            units_max /= 2;
        };
        let Some(number) = self.last_request.checked_add(1) else {
            self.fail_for_want_of_numbers();
            return self.commands.pop_front();
        };
        let record = self.sources.get_mut(&source)?;
        self.last_request = number;
        let request = RequestId(number);
        self.work.take(groups);
        let issued_idle = record.requests.is_empty();
        if record.running == 0 {
            record.silent_since_us = now_us;
        }
        let recheck = recheck || record.doubted;
        record.requests.insert(request);
        record.running += 1;
        record.outstanding_bytes += permit.bytes();
        let entry = Request {
            source,
            groups,
            recheck,
            wanted: true,
            started: false,
            next_group: groups.start,
            reported_groups: 0,
            outstanding_bytes: permit.bytes(),
            issued_us: now_us,
            issued_idle,
        };
        self.requests.insert(request, entry);
        Some(PlannerCommand::Fetch { source, request, groups, recheck, permit })
    }

    /// Who should be asked next, and for how many units at most.
    fn choose(&mut self, now_us: u64, unit_bytes: u64) -> Option<(SourceId, u64)> {
        let first_priority = |state: SourceState, planner: &Planner| {
            let of_state = planner.sources.values().filter(|record| record.state == state);
            of_state.map(|record| record.description.priority).min()
        };
        let Some(priority) = first_priority(SourceState::Up, self) else {
            return self.choose_probe(now_us);
        };
        let mut best: Option<(f64, u16, SourceId)> = None;
        let mut fastest_s = f64::INFINITY;
        let rank = |record: &SourceRecord| {
            record.state == SourceState::Up && record.description.priority == priority
        };
        let pending_bytes = self.work.pending_bytes();
        for record in self.sources.values().filter(|record| rank(record) && record.paused_until_us <= now_us)
        {
            if let Some(rate) = record.window.rate().filter(|rate| *rate > 0.0) {
                // How soon it would be through with everything, did it do all that is left.
                fastest_s = fastest_s.min((record.outstanding_bytes + pending_bytes) as f64 / rate);
            }
        }
        for (&id, record) in &mut self.sources {
            if !rank(record) || record.paused_until_us > now_us {
                continue;
            }
            if record.room_bytes(unit_bytes) < unit_bytes {
                record.window.mark_limited();
                continue;
            }
            // The source that would be through first with one more unit never waits here, so somebody is always asked.
            let own_s = record.window.rate().filter(|rate| *rate > 0.0);
            let own_s = own_s.map_or(0.0, |rate| (record.outstanding_bytes + unit_bytes) as f64 / rate);
            if own_s > fastest_s + WORTH_WAITING_S {
                continue;
            }
            let fullness = record.fullness();
            let weight = record.description.weight;
            if best.is_none_or(|(least, most, _)| fullness < least || (fullness == least && weight > most)) {
                best = Some((fullness, weight, id));
            }
        }
        let (_, _, id) = best?;
        let record = self.sources.get(&id)?;
        let bytes_max = (record.window.bytes() / 4).min(record.room_bytes(unit_bytes));
        Some((id, (bytes_max / UNIT_BYTES).max(1)))
    }

    /// Nobody is up: a stalled source that owes nothing may be asked for one unit, to see whether it is alive.
    fn choose_probe(&self, now_us: u64) -> Option<(SourceId, u64)> {
        let ready = |record: &SourceRecord| {
            record.state == SourceState::Stalled
                && record.requests.is_empty()
                && record.paused_until_us <= now_us
        };
        let ready = self.sources.iter().filter(|(_, record)| ready(record));
        ready.min_by_key(|(_, record)| record.description.priority).map(|(&id, _)| (id, 1))
    }

    /// The budget has no room for `asker`: stalled sources that hold some of it are closed, so that it comes back.
    fn close_stalled_holders(&mut self, asker: SourceId) {
        let holds =
            |record: &SourceRecord| record.state == SourceState::Stalled && !record.requests.is_empty();
        let holders = self.sources.iter().filter(|(id, record)| **id != asker && holds(record));
        for source in holders.map(|(&id, _)| id).collect::<Vec<_>>() {
            let text = "went silent while it held memory that others needed";
            self.bar(source, Cause::new(ErrorKind::TimedOut, text));
        }
    }

    /// Spares give their work back when a better source is up; only what their oldest running request has begun to
    /// send is let finish.
    pub(super) fn stand_back_spares(&mut self) {
        let up = self.sources.values().filter(|record| record.state == SourceState::Up);
        let Some(priority) = up.map(|record| record.description.priority).min() else { return };
        let mut unwanted = Vec::new();
        for record in self.sources.values() {
            if record.description.priority > priority && record.description.capabilities.cancel {
                let mut may_keep_one = true;
                for request in &record.requests {
                    let Some(entry) = self.requests.get(request).filter(|entry| entry.wanted) else {
                        continue;
                    };
                    if !(entry.started && std::mem::take(&mut may_keep_one)) {
                        unwanted.push(*request);
                    }
                }
            }
        }
        for request in unwanted {
            self.cancel(request);
        }
    }

    /// Sets silent sources aside, and gives up if nobody has made progress for too long.
    pub(super) fn check_deadlines(&mut self, now_us: u64) {
        let timeout_us = self.config.progress_timeout_us;
        let is_silent = |record: &SourceRecord| {
            record.is_up_or_stalled()
                && record.running > 0
                && now_us.saturating_sub(record.silent_since_us) >= timeout_us
        };
        let silent: Vec<SourceId> =
            self.sources.iter().filter(|(_, record)| is_silent(record)).map(|(&id, _)| id).collect();
        for source in silent {
            let Some(record) = self.sources.get_mut(&source) else { continue };
            record.state = SourceState::Stalled;
            for request in record.requests.clone() {
                self.cancel(request);
            }
        }
        // While only the consumer can move things on, no source is to blame.
        let waits = self.work.next_run().is_none() && self.sources.values().all(|record| record.running == 0);
        if waits || self.waits_for_consumer {
            self.progress_us = Some(now_us);
        }
        self.waits_for_consumer = waits;
        let idle_us = self.progress_us.map_or(0, |progress_us| now_us.saturating_sub(progress_us));
        if idle_us >= self.config.give_up_us {
            self.give_up();
        }
    }

    /// Gives the work of a request back; what still arrives of it will be discarded.
    pub(super) fn cancel(&mut self, request: RequestId) {
        let Some(entry) = self.requests.get_mut(&request).filter(|entry| entry.wanted) else { return };
        entry.wanted = false;
        self.work.give_back(entry.groups);
        let source = entry.source;
        if let Some(record) = self.sources.get_mut(&source) {
            record.running -= 1;
            if record.description.capabilities.cancel {
                self.commands.push_back(PlannerCommand::Cancel { source, request });
            }
        }
    }

    /// Nothing more is wanted of anybody.
    pub(super) fn cancel_all(&mut self) {
        let wanted: Vec<RequestId> =
            self.requests.iter().filter(|(_, entry)| entry.wanted).map(|(&request, _)| request).collect();
        for request in wanted {
            self.cancel(request);
        }
    }

    /// Takes a request that its source has ended off the books.
    pub(super) fn remove(&mut self, source: SourceId, request: RequestId) -> Option<Request> {
        if self.requests.get(&request)?.source != source {
            return None;
        }
        let entry = self.requests.remove(&request)?;
        if let Some(record) = self.sources.get_mut(&source) {
            record.requests.remove(&request);
            record.outstanding_bytes -= entry.outstanding_bytes;
            record.running -= usize::from(entry.wanted);
            if record.outstanding_bytes == 0 {
                record.window.pause();
            }
        }
        Some(entry)
    }

    /// Takes every request of a source off the books; their work is pending again.
    pub(super) fn remove_all(&mut self, source: SourceId) {
        let requests = self.sources.get(&source).map(|record| record.requests.clone()).unwrap_or_default();
        for request in requests {
            if let Some(entry) = self.remove(source, request).filter(|entry| entry.wanted) {
                self.work.give_back(entry.groups);
            }
        }
    }

    fn bytes_of(&self, groups: Subtree) -> u64 {
        let range = self.config.geometry.byte_range(groups);
        range.end - range.start
    }
}
