//! What the planner knows, as plain data: where each source stands and why, how far the transfer is, and what holds it
//! back now.

use dray_core::error::ErrorKind;
use dray_core::limits::GROUP_BYTES;
use dray_core::source::SourceId;

use super::source::SourceRecord;
use super::{Planner, SourceState, SourceStats};

/// Thread time that [`Bottleneck`] looks back on, microseconds.
const EFFORT_SPAN_US: u64 = 2_000_000;

/// A snapshot of a transfer.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// Every source, by number.
    pub sources: Vec<SourceExplanation>,
    /// Bytes that are wanted and not delivered; whole groups.
    pub wanted_left_bytes: u64,
    /// Bytes of these that nobody is asked for; whole units.
    pub unassigned_bytes: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Bytes that came after another source had brought them.
    pub duplicate_bytes: u64,
    /// Bytes of the memory budget in use, by this transfer and whoever shares it.
    pub budget_used_bytes: u64,
    /// All of the budget.
    pub budget_limit_bytes: u64,
    /// What holds the transfer back now.
    pub bottleneck: Bottleneck,
}

/// One source in an [`Explanation`].
#[derive(Clone, PartialEq, Debug)]
pub struct SourceExplanation {
    /// Its figures: rate, window, queue in bytes, delivered bytes.
    pub stats: SourceStats,
    /// Its place in the order of use; a higher number than another's that is up makes it a spare.
    pub priority: u16,
    /// Where it stands, in one word.
    pub standing: Standing,
    /// Requests it has not ended.
    pub requests: usize,
    /// Its part of all delivered bytes, 0 to 1.
    pub share: f64,
    /// How long it has owed something and said nothing, microseconds; 0 if it owes nothing.
    pub silent_us: u64,
    /// Why it owes nothing, if it does.
    pub idle: Option<Idle>,
    /// What it was barred or lost for; the last failure otherwise.
    pub cause: Option<String>,
}

/// Where a source stands, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Takes requests and answers them.
    Up,
    /// Owes something and is silent, or fails again and again.
    Frozen,
    /// Closed by the planner; its cause says why.
    Barred,
    /// Will not come up again.
    Gone,
    /// Not up yet, or not up again yet.
    Waiting,
}

/// Why a source owes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// It is not up.
    NotUp,
    /// Somebody of a lower priority number is up.
    Spare,
    /// It failed, and is left alone for so many microseconds.
    Paused {
        /// From now on.
        for_us: u64,
    },
    /// The budget has no room for another request.
    NoBudget,
    /// The consumer has to take something first.
    Consumer,
    /// Others will have what is left sooner, or nothing is left.
    NotNeeded,
}

/// What holds a transfer back, as far as events tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// Nothing: it is over.
    Nothing,
    /// The paths from the sources: they deliver, and this machine waits for them.
    Network,
    /// The sources: none is up, or those that owe something are silent.
    Source,
    /// Writing here takes most of the time.
    Disk,
    /// Proving here takes most of the time.
    Cpu,
    /// Us: the memory budget has no room for another request.
    Memory,
    /// Us: whoever takes the bytes in order has not taken the last ones.
    Consumer,
}

/// How a thread that delivers groups spent its time, since the last report or its beginning. Microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Effort {
    /// All of it, waiting for data included.
    pub span_us: u64,
    /// Hashing and comparing.
    pub proving_us: u64,
    /// Writing.
    pub writing_us: u64,
}

/// Sums of efforts in which the older ones fade.
#[derive(Debug, Default)]
pub(super) struct EffortMeter(Effort);

impl EffortMeter {
    pub(super) fn add(&mut self, effort: Effort) {
        let sum = &mut self.0;
        if sum.span_us >= EFFORT_SPAN_US {
            *sum = Effort {
                span_us: sum.span_us / 2,
                proving_us: sum.proving_us / 2,
                writing_us: sum.writing_us / 2,
            };
        }
        sum.span_us = sum.span_us.saturating_add(effort.span_us);
        sum.proving_us = sum.proving_us.saturating_add(effort.proving_us);
        sum.writing_us = sum.writing_us.saturating_add(effort.writing_us);
    }

    /// What takes at least half of the time, if it happens here.
    fn bottleneck(&self) -> Option<Bottleneck> {
        let Effort { span_us, proving_us, writing_us } = self.0;
        let (most_us, bottleneck) = match writing_us >= proving_us {
            true => (writing_us, Bottleneck::Disk),
            false => (proving_us, Bottleneck::Cpu),
        };
        (span_us > 0 && most_us >= span_us.div_ceil(2)).then_some(bottleneck)
    }
}

impl Planner {
    /// Where everything stands at `now_us`.
    pub fn explain(&self, now_us: u64) -> Explanation {
        let delivered_bytes: u64 = self.sources.values().map(|record| record.delivered_bytes).sum();
        let explain = |(&id, record): (&SourceId, &SourceRecord)| SourceExplanation {
            stats: record.stats(id),
            priority: record.description.priority,
            standing: standing(record, now_us),
            requests: record.requests.len(),
            silent_us: (record.silence_s(now_us) * 1e6) as u64,
            share: record.delivered_bytes as f64 / delivered_bytes.max(1) as f64,
            idle: self.idle(record, now_us),
            cause: record.cause.as_ref().map(|cause| cause.text.clone()),
        };
        Explanation {
            sources: self.sources.iter().map(explain).collect(),
            wanted_left_bytes: self.work.missing_groups().saturating_mul(GROUP_BYTES),
            unassigned_bytes: self.work.pending_bytes(),
            delivered_bytes,
            duplicate_bytes: self.duplicate_bytes,
            budget_used_bytes: self.config.budget.used_bytes(),
            budget_limit_bytes: self.config.budget.limit_bytes(),
            bottleneck: self.bottleneck(now_us),
        }
    }

    /// What `source` was barred or lost for; its last failure otherwise.
    pub fn cause(&self, source: SourceId) -> Option<String> {
        Some(self.sources.get(&source)?.cause.as_ref()?.text.clone())
    }

    /// Whether `source` was barred because what it sent was not of the object.
    pub fn has_lied(&self, source: SourceId) -> bool {
        let cause = self.sources.get(&source).and_then(|record| record.cause.as_ref());
        cause.is_some_and(|cause| cause.kind == ErrorKind::VerificationFailed)
    }

    fn idle(&self, record: &SourceRecord, now_us: u64) -> Option<Idle> {
        if record.running > 0 {
            return None;
        }
        if !record.is_up_or_stalled() {
            return Some(Idle::NotUp);
        }
        if self.best_priority(now_us).is_some_and(|priority| record.description.priority > priority) {
            return Some(Idle::Spare);
        }
        if record.paused_until_us > now_us {
            return Some(Idle::Paused { for_us: record.paused_until_us - now_us });
        }
        if self.budget_retry_us.is_some() && !self.is_decided() {
            return Some(Idle::NoBudget);
        }
        if self.waits_for_consumer && !self.is_decided() {
            return Some(Idle::Consumer);
        }
        // One that is frozen and was told to leave everything may still owe the end of it.
        record.requests.is_empty().then_some(Idle::NotNeeded)
    }

    fn bottleneck(&self, now_us: u64) -> Bottleneck {
        if self.is_decided() {
            return Bottleneck::Nothing;
        }
        if self.waits_for_consumer {
            return Bottleneck::Consumer;
        }
        if self.budget_retry_us.is_some() {
            return Bottleneck::Memory;
        }
        let delivers = |record: &SourceRecord| record.running > 0 && standing(record, now_us) == Standing::Up;
        if !self.sources.values().any(delivers) {
            return Bottleneck::Source;
        }
        self.effort.bottleneck().unwrap_or(Bottleneck::Network)
    }
}

fn standing(record: &SourceRecord, now_us: u64) -> Standing {
    match record.state {
        SourceState::Connecting | SourceState::Down => Standing::Waiting,
        SourceState::Up if record.is_silent(now_us) => Standing::Frozen,
        SourceState::Up => Standing::Up,
        SourceState::Stalled => Standing::Frozen,
        SourceState::Gone => Standing::Gone,
        SourceState::Barred => Standing::Barred,
    }
}
