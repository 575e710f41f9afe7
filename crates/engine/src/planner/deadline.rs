//! Time: when a silent source is set aside, when everything is given up, and when to look again.

use dray_core::source::SourceId;

use super::source::SourceRecord;
use super::{Planner, SourceState};

impl Planner {
    /// When to poll again if no event comes before; may lie in the past. `None` if time alone changes nothing.
    pub fn next_deadline_us(&self) -> Option<u64> {
        if self.is_decided() {
            return None;
        }
        let give_up = self.progress_us.filter(|_| !self.waits_for_consumer);
        let give_up = give_up.map(|progress_us| progress_us.saturating_add(self.config.give_up_us));
        let is_pending = self.work.next_run().is_some();
        let sources = self.sources.values().filter(|record| record.is_up_or_stalled()).filter_map(|record| {
            if self.config.strategy.deadlines && is_timed(record) {
                Some(record.unheard_since_us().saturating_add(self.config.progress_timeout_us))
            } else {
                (is_pending && record.paused_until_us > self.polled_us).then_some(record.paused_until_us)
            }
        });
        let spares = self.spare_turn_us();
        sources.chain(give_up).chain(self.budget_retry_us).chain(self.borrow_retry_us).chain(spares).min()
    }

    /// When spares will have their turn because all that go before them are silent, if there is something to ask them for: work
    /// that waits, or what the silent ones owe.
    fn spare_turn_us(&self) -> Option<u64> {
        let helps = self.config.strategy.borrowing || self.config.strategy.end_game;
        let is_owed = || helps && self.sources.values().any(|record| record.running > 0);
        let priority =
            self.best_priority(self.polled_us).filter(|_| self.work.next_run().is_some() || is_owed())?;
        let up = || self.sources.values().filter(|record| record.state == SourceState::Up);
        if !up().any(|record| record.description.priority > priority) {
            return None;
        }
        let best = up().filter(|record| record.description.priority == priority);
        let silent_us = best.map(SourceRecord::silent_from_us);
        silent_us.max().filter(|silent_us| *silent_us > self.polled_us)
    }

    /// Sets silent sources aside, and gives up if nobody has made progress for too long.
    pub(super) fn check_deadlines(&mut self, now_us: u64) {
        if self.config.strategy.deadlines {
            self.set_silent_aside(now_us);
        }
        // While only the consumer can move things on, no source is to blame.
        let waits = self.work.next_run().is_none() && self.sources.values().all(|record| record.running == 0);
        if waits || self.waits_for_consumer {
            self.note_progress(now_us);
        }
        self.waits_for_consumer = waits;
        let idle_us = self.progress_us.map_or(0, |progress_us| now_us.saturating_sub(progress_us));
        if idle_us >= self.config.give_up_us {
            self.give_up();
        }
    }

    fn set_silent_aside(&mut self, now_us: u64) {
        let timeout_us = self.config.progress_timeout_us;
        let is_late = |record: &SourceRecord| {
            is_timed(record) && now_us.saturating_sub(record.unheard_since_us()) >= timeout_us
        };
        let late: Vec<SourceId> =
            self.sources.iter().filter(|(_, record)| is_late(record)).map(|(&id, _)| id).collect();
        for source in late {
            let Some(record) = self.sources.get_mut(&source) else { continue };
            record.state = SourceState::Stalled;
            record.stalls += 1;
            for request in record.requests.clone() {
                self.cancel(request);
            }
        }
    }
}

/// Whether silence of the source means something: it owes data, or the end of what was cancelled.
fn is_timed(record: &SourceRecord) -> bool {
    record.is_up_or_stalled()
        && (record.running > 0 || record.state == SourceState::Up && !record.requests.is_empty())
}
