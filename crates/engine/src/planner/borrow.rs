//! When nothing is left to ask for, sources that have run dry help those that are late: borrowing from the longest queue
//! (D22) and the end game (design 8).
//!
//! *Borrowing* cancels a request that has not begun and gives its work to the borrower. The *end game* asks a second
//! source for the last unit of a request that has begun, and so on towards its front; the two meet in the middle, and
//! what neither needs any more is cancelled. A source that has been silent for a while loses even what it has begun. All
//! of it happens only where the borrower would be through sooner, and only while what may come twice stays below
//! [`DUPLICATE_BYTES_MAX`].
//!
//! What is under way where no cancellation reaches it comes in any case. It is left alone unless the borrower is so much sooner that it
//! cannot be on the same line, where whatever it brings keeps the other from coming; and not for long ([`Planner::patience_s`]).

use dray_core::hash_tree::Subtree;
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::range::RangeSet;
use dray_core::source::{RequestId, SourceId};

use super::books::Role;
use super::source::SourceRecord;
use super::{Planner, PlannerCommand, Request, SourceState};

/// Bytes of one transfer that may come twice because two sources were asked.
pub(super) const DUPLICATE_BYTES_MAX: u64 = 16 << 20;
/// Rate assumed where nobody's is known, bytes per second.
const UNKNOWN_RATE: f64 = UNIT_BYTES as f64;
/// Microseconds before looking again where nothing paid: every group is an occasion, and few change anything.
const LOOK_AGAIN_US: u64 = 1_000;
/// How much sooner a borrower must be through: by a factor and by seconds. A duplicate costs bytes, so it must win more.
const BORROW_PAYS: (f64, f64) = (1.1, 0.005);
const DUPLICATE_PAYS: (f64, f64) = (1.5, 0.05);
/// A source that takes so many times as long as another one for the same bytes is not taken to be on the same line.
const OTHER_LINE: f64 = 8.0;
/// What is under way may keep others waiting for this part of the time the transfer has taken before, or for so many seconds.
const PATIENCE_PART: f64 = 0.25;
const PATIENCE_S: f64 = 2.0;

/// What a look for something that pays has found besides.
struct Look {
    /// Seconds after which something may pay.
    retry_s: f64,
    /// Something would, but is left where it is under way.
    waits: bool,
}

/// Something that pays.
struct Loan {
    borrower: SourceId,
    request: RequestId,
    /// The unit to ask for a second time; `None` if the request is taken away instead.
    duplicate: Option<Subtree>,
    units_max: u64,
}

impl Planner {
    /// The next thing to do for a source that has run dry.
    pub(super) fn borrow(&mut self, now_us: u64) -> Option<PlannerCommand> {
        let strategy = self.config.strategy;
        if !(strategy.borrowing || strategy.end_game) || self.work.next_run().is_some() {
            return None;
        }
        if self.sources.values().all(|record| record.running == 0) {
            return None;
        }
        if now_us < self.borrow_after_us {
            self.borrow_retry_us = Some(self.borrow_after_us);
            return None;
        }
        let priority = self.best_priority(now_us)?;
        let piece_bytes = self.work.piece_bytes();
        let is_ready = |record: &SourceRecord| {
            record.state == SourceState::Up
                && record.description.priority == priority
                && record.paused_until_us <= now_us
                && !record.doubted
                && record.room_bytes(piece_bytes) >= piece_bytes
        };
        let ready = self.sources.iter().filter(|(_, record)| is_ready(record));
        let borrowers: Vec<SourceId> = ready.map(|(&id, _)| id).collect();
        if borrowers.is_empty() {
            return None;
        }
        let owing = self.sources.iter().filter(|(_, record)| record.running > 0);
        let needs_s =
            |record: &SourceRecord| record.needs_s(now_us, 0).unwrap_or_else(|| record.silence_s(now_us));
        let mut lenders: Vec<(f64, SourceId)> = owing.map(|(&id, record)| (needs_s(record), id)).collect();
        lenders.sort_by(|left, right| right.0.total_cmp(&left.0));
        let mut look = Look { retry_s: f64::INFINITY, waits: false };
        let found = lenders.iter().find_map(|&(_, id)| self.find_loan(now_us, id, &borrowers, &mut look));
        if look.waits {
            self.waits_since_us.get_or_insert(now_us);
        }
        let retry_s = look.retry_s;
        match found {
            Some(loan) => self.carry_out(now_us, loan),
            None => {
                // Silence grows with time, so waiting may make it pay; anything else that could is an event.
                let wait_us = (retry_s.is_finite()).then_some((retry_s * 1e6).ceil() as u64);
                self.borrow_retry_us =
                    wait_us.map(|wait_us| now_us.saturating_add(wait_us.max(LOOK_AGAIN_US)));
                self.borrow_after_us = now_us.saturating_add(LOOK_AGAIN_US);
                None
            }
        }
    }

    /// What somebody could take over of the lender's last requests.
    fn find_loan(
        &self,
        now_us: u64,
        lender: SourceId,
        borrowers: &[SourceId],
        look: &mut Look,
    ) -> Option<Loan> {
        if borrowers.iter().all(|id| *id == lender) {
            return None;
        }
        let strategy = self.config.strategy;
        let record = self.sources.get(&lender)?;
        let silence_s = record.silence_s(now_us);
        let rate = record.window.rate().filter(|rate| *rate > 0.0);
        let is_silent = record.is_silent(now_us);
        let can_cancel = record.description.capabilities.cancel;
        let wanted = |request: &RequestId| self.requests.get(request).filter(|entry| entry.wanted);
        let mut ahead_bytes: u64 =
            record.requests.iter().filter_map(wanted).map(|entry| entry.outstanding_bytes).sum();
        let at_risk_bytes = self.at_risk_bytes(now_us);
        let mut before_bytes = record.outstanding_bytes;
        for request in record.requests.iter().rev() {
            before_bytes -= self.requests.get(request).map_or(0, |entry| entry.outstanding_bytes);
            let Some(entry) = wanted(request) else { continue };
            let until_end_bytes = ahead_bytes;
            ahead_bytes -= entry.outstanding_bytes;
            let is_fresh = !entry.started && !entry.borrowed && !entry.duplicate;
            let is_under_way = before_bytes < record.under_way_bytes(now_us);
            let takes = can_cancel
                && ((strategy.borrowing && is_fresh && !is_under_way) || (strategy.end_game && is_silent));
            if !takes && !strategy.end_game {
                continue;
            }
            let owed = if self.shared.contains(request) {
                self.owed_by_others(now_us, *request)
            } else {
                RangeSet::new()
            };
            let rest = entry.next_group..entry.groups.end();
            let Some(unit) = self.work.last_missing(rest, &owed) else {
                // Somebody else owes it, too. Once both are silent, neither counts.
                if !is_silent {
                    look.retry_s = look.retry_s.min(record.silent_in_s(now_us));
                }
                continue;
            };
            let after_unit_bytes = (entry.groups.end() - unit.end()) * GROUP_BYTES;
            let until_bytes =
                if takes { until_end_bytes } else { until_end_bytes.saturating_sub(after_unit_bytes) };
            let lender_s = rate.map_or(0.0, |rate| until_bytes as f64 / rate) + silence_s;
            let unit_bytes = self.bytes_of(unit);
            let Some((borrower_s, borrower)) = self.soonest(now_us, borrowers, lender, unit, rate) else {
                continue;
            };
            let borrower_record = self.sources.get(&borrower)?;
            let borrower_rate = borrower_record.window.rate();
            let (factor, more_s) = if takes { BORROW_PAYS } else { DUPLICATE_PAYS };
            let needed_s = borrower_s * factor + more_s;
            if lender_s <= needed_s {
                look.retry_s = look.retry_s.min(needed_s - lender_s);
                if !is_silent && can_cancel && strategy.end_game {
                    look.retry_s = look.retry_s.min(record.silent_in_s(now_us));
                }
                // Whatever is older will be here sooner still.
                return None;
            }
            if is_under_way {
                let kept_s = self.kept_s(now_us, record, borrower_record, until_bytes);
                if kept_s > 0.0 {
                    look.waits = true;
                    look.retry_s = look.retry_s.min(kept_s);
                    return None;
                }
            }
            let risk_bytes = match (takes, is_silent) {
                (true, true) => 0,
                (true, false) => entry.outstanding_bytes,
                (false, _) => unit_bytes,
            };
            if risk_bytes > 0 && at_risk_bytes + risk_bytes > DUPLICATE_BYTES_MAX {
                if can_cancel {
                    look.retry_s = look.retry_s.min(record.silent_in_s(now_us).max(0.1));
                }
                return None;
            }
            // No more than it would have before the lender.
            let rate = borrower_rate.or(rate).unwrap_or(UNKNOWN_RATE);
            let pays_bytes = unit_bytes + ((lender_s - needed_s).max(0.0) * rate) as u64;
            let piece_bytes = self.work.piece_bytes();
            let units_max = borrower_record.request_pieces_max(unit_bytes, piece_bytes);
            let units_max = units_max.min(pays_bytes / piece_bytes).max(1);
            let duplicate = (!takes).then_some(unit);
            return Some(Loan { borrower, request: *request, duplicate, units_max });
        }
        None
    }

    /// Seconds for which the lender's next `until_bytes`, which are under way, are left where they are: until the borrower would have the
    /// same so much sooner that it is not on the same line, the lender is silent, or enough time is lost. 0 if nothing has come from the
    /// lender.
    fn kept_s(&self, now_us: u64, lender: &SourceRecord, borrower: &SourceRecord, until_bytes: u64) -> f64 {
        let Some(rate) = lender.rate_or_guess(now_us) else { return 0.0 };
        let sent_s = until_bytes as f64 / rate;
        let lender_s = sent_s + lender.silence_s(now_us);
        let work_s = borrower.needs_s(now_us, until_bytes).unwrap_or(sent_s);
        let borrower_s = work_s + borrower.window.round_trip_us() as f64 / 1e6;
        let one_line_s = OTHER_LINE * borrower_s - lender_s;
        one_line_s.min(self.patience_s(now_us)).min(lender.silent_in_s(now_us)).max(0.0)
    }

    /// Seconds for which somebody with nothing to do may still wait for what is under way. What shares a line with others has all of it
    /// while they wait; if it has not come then, waiting was wrong.
    fn patience_s(&self, now_us: u64) -> f64 {
        let since_us = self.waits_since_us.map_or(0, |since_us| now_us.saturating_sub(since_us));
        let waited_us = self.waited_us.saturating_add(since_us);
        let before_us = now_us.saturating_sub(self.begun_us).saturating_sub(waited_us);
        (before_us as f64 / 1e6 * PATIENCE_PART).max(PATIENCE_S) - waited_us as f64 / 1e6
    }

    /// Who of `borrowers` would have `unit` soonest, and in how many seconds; nobody who owes it already, and who has failed
    /// lately only if there is nobody else.
    fn soonest(
        &self,
        now_us: u64,
        borrowers: &[SourceId],
        lender: SourceId,
        unit: Subtree,
        lender_rate: Option<f64>,
    ) -> Option<(f64, SourceId)> {
        let unit_bytes = self.bytes_of(unit);
        let owes = |entry: &Request| {
            entry.wanted && entry.next_group < unit.end() && unit.start < entry.groups.end()
        };
        let others = borrowers.iter().filter(|id| **id != lender);
        let able = others.filter_map(|id| {
            let record = self.sources.get(id)?;
            let owed = record.requests.iter().filter_map(|request| self.requests.get(request)).any(owes);
            (!owed).then_some((id, record))
        });
        let timed = able.map(|(&id, record)| {
            let guess =
                || (record.outstanding_bytes + unit_bytes) as f64 / lender_rate.unwrap_or(UNKNOWN_RATE);
            let work_s = record.needs_s(now_us, unit_bytes).unwrap_or_else(guess);
            (record.has_failed(), work_s + record.window.round_trip_us() as f64 / 1e6, id)
        });
        let soonest = timed.min_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
        soonest.map(|(_, seconds, id)| (seconds, id))
    }

    fn carry_out(&mut self, now_us: u64, loan: Loan) -> Option<PlannerCommand> {
        let unit = match loan.duplicate {
            Some(unit) => unit,
            None => self.config.geometry.unit(0),
        };
        let Some(permit) = self.config.budget.try_reserve(self.bytes_of(unit)) else {
            self.wait_for_budget(now_us);
            return None;
        };
        if loan.duplicate.is_some() {
            return self.issue(now_us, loan.borrower, (unit, false), permit, Role::Duplicate);
        }
        drop(permit);
        self.take_away(now_us, loan.request);
        let fetch = self.ask(now_us, loan.borrower, loan.units_max, Role::Borrowed);
        self.commands.extend(fetch);
        self.commands.pop_front()
    }

    /// Bytes that have come twice, and those that still may because two sources owe them. What a silent source was told
    /// to leave does not count: it is not expected to send it.
    pub(super) fn at_risk_bytes(&self, now_us: u64) -> u64 {
        let at_risk = |request: &RequestId| {
            let Some(entry) = self.requests.get(request) else { return 0 };
            if entry.wanted && !entry.duplicate {
                return self.work.delivered_of(entry.next_group..entry.groups.end()) * GROUP_BYTES;
            }
            let is_silent = || self.sources.get(&entry.source).is_some_and(|record| record.is_silent(now_us));
            let is_left = !entry.wanted && is_silent();
            if is_left { 0 } else { entry.outstanding_bytes }
        };
        self.duplicate_bytes + self.shared.iter().map(at_risk).sum::<u64>()
    }
}
