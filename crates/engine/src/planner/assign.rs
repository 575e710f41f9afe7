//! Who is asked for what nobody is asked for yet: choosing the next request, and standing spares back.

use dray_core::error::ErrorKind;
use dray_core::source::SourceId;

use super::books::Role;
use super::source::{Cause, SourceRecord};
use super::{Outstanding, Planner, PlannerCommand, SourceState};

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
        let command = self.ask(now_us, source, units_max, Role::First);
        if let (Some(PlannerCommand::Fetch { .. }), Some(since_us)) = (&command, self.waits_since_us) {
            self.waits_since_us = None;
            self.waited_us = self.waited_us.saturating_add(now_us.saturating_sub(since_us));
        }
        command
    }

    /// Asks `source` for the lowest pending units, `units_max` at most, if the budget has room for one.
    pub(super) fn ask(
        &mut self,
        now_us: u64,
        source: SourceId,
        mut units_max: u64,
        role: Role,
    ) -> Option<PlannerCommand> {
        loop {
            let (groups, recheck) = self.work.next_request(units_max)?;
            if let Some(permit) = self.config.budget.try_reserve(self.bytes_of(groups)) {
                return self.issue(now_us, source, (groups, recheck), permit, role);
            }
            if units_max == 1 {
                self.close_stalled_holders(source);
                self.wait_for_budget(now_us);
                return self.commands.pop_front();
            }
            units_max /= 2;
        }
    }

    pub(super) fn wait_for_budget(&mut self, now_us: u64) {
        self.budget_retry_us = Some(now_us.saturating_add(BUDGET_RETRY_US));
    }

    /// Who should be asked next, and for how many units at most.
    fn choose(&self, now_us: u64, unit_bytes: u64) -> Option<(SourceId, u64)> {
        let Some(priority) = self.best_priority(now_us) else { return self.choose_probe(now_us) };
        let mut best: Option<((bool, f64), u16, SourceId)> = None;
        let mut fastest_s = f64::INFINITY;
        let ready = |record: &SourceRecord| {
            record.state == SourceState::Up
                && record.description.priority == priority
                && record.paused_until_us <= now_us
        };
        let follows_rate = self.config.strategy.outstanding == Outstanding::Window;
        let pending_bytes = self.work.pending_bytes();
        for record in self.sources.values().filter(|record| ready(record)) {
            // How soon it would be through with everything, did it do all that is left.
            if let Some(needed_s) = record.needs_s(now_us, pending_bytes) {
                fastest_s = fastest_s.min(needed_s);
            }
        }
        for (&id, record) in self.sources.iter().filter(|(_, record)| ready(record)) {
            if record.room_bytes(unit_bytes) < unit_bytes {
                continue;
            }
            // The source that would be through first with one more unit never waits here, so somebody is always asked.
            let own_s = record.needs_s(now_us, unit_bytes).unwrap_or(0.0);
            if follows_rate && own_s > fastest_s + WORTH_WAITING_S {
                continue;
            }
            let fullness = (record.has_failed(), record.fullness());
            let weight = record.description.weight;
            if best.is_none_or(|(least, most, _)| fullness < least || (fullness == least && weight > most)) {
                best = Some((fullness, weight, id));
            }
        }
        let (_, _, id) = best?;
        Some((id, self.sources.get(&id)?.request_pieces_max(unit_bytes, self.work.piece_bytes())))
    }

    /// The lowest priority number of those that are up and not silent, or at least up: the others are spares.
    pub(super) fn best_priority(&self, now_us: u64) -> Option<u16> {
        let up = || self.sources.values().filter(|record| record.state == SourceState::Up);
        let answering = up().filter(|record| !record.is_silent(now_us));
        let priority = |record: &SourceRecord| record.description.priority;
        answering.map(priority).min().or_else(|| up().map(priority).min())
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

    /// Spares give their work back when a better source is up. What their oldest running request has begun to send is let finish,
    /// and so is what is under way, which would come a second time.
    pub(super) fn stand_back_spares(&mut self, now_us: u64) {
        let Some(priority) = self.best_priority(now_us) else { return };
        let mut unwanted = Vec::new();
        for record in self.sources.values() {
            if record.description.priority > priority && record.description.capabilities.cancel {
                let (mut before_bytes, mut may_keep_one) = (0, true);
                for request in &record.requests {
                    let Some(entry) = self.requests.get(request) else { continue };
                    let is_under_way = before_bytes < record.under_way_bytes(now_us);
                    before_bytes += entry.outstanding_bytes;
                    if entry.wanted && !(entry.started && std::mem::take(&mut may_keep_one)) && !is_under_way
                    {
                        unwanted.push(*request);
                    }
                }
            }
        }
        for request in unwanted {
            self.cancel(request);
        }
    }
}
