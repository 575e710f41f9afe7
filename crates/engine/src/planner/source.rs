//! What the planner knows of one source: whether it can be asked, what it owes, and why it was set aside.

use std::collections::BTreeSet;

use dray_core::error::{Error, ErrorKind};
use dray_core::limits::{GROUP_BYTES, REQUESTS_PER_CONNECTION_MAX};
use dray_core::source::{RequestId, SourceDescription, SourceId};

use super::window::Window;
use super::{Outstanding, SourceState, SourceStats, WindowLimits};

/// Failures in a row without a new group after which a source counts as stalled.
const FAILURES_BEFORE_STALLED: u32 = 3;
/// A source that owes something is silent after this long, at least.
const SILENT_S: f64 = 1.0;
/// For so long it counts that this end was at work, microseconds.
const AT_WORK_US: u64 = 1_000_000;
/// Whoever has sent so many bytes more since its last group is at work, though the next is not whole: several connections may share
/// a slow path.
const SIGN_BYTES: u64 = GROUP_BYTES / 4;
/// They put silence off until so long after its last word: bytes prove nothing, and anybody can send them.
const SIGN_S: f64 = 3.0;
/// First pause after a repeated failure, and the longest, in microseconds.
const PAUSE_US_MIN: u64 = 100_000;
const PAUSE_US_MAX: u64 = 5_000_000;

/// One source.
#[derive(Debug)]
pub(super) struct SourceRecord {
    pub(super) description: SourceDescription,
    pub(super) state: SourceState,
    /// It has been up before.
    pub(super) was_up: bool,
    pub(super) window: Window,
    /// Requests of one unit it may owe, instead of the window.
    requests_max: Option<usize>,
    /// Requests it has not ended, cancelled ones too; oldest first.
    pub(super) requests: BTreeSet<RequestId>,
    /// How many of these are not cancelled.
    pub(super) running: usize,
    /// Bytes of all of these that have not arrived.
    pub(super) outstanding_bytes: u64,
    /// Since when it has owed something without a sign of life.
    pub(super) silent_since_us: u64,
    /// When this end was last told to be at work with what came from it.
    pub(super) at_work_us: u64,
    /// Bytes that have come from it, as far as is known.
    received_bytes: u64,
    /// How many these were when it was seen at work last, and when that was; `None` from a group until they are counted again.
    sign_bytes: Option<u64>,
    sign_us: u64,
    /// How many these were when it came up, and when that was.
    up_bytes: u64,
    up_us: u64,
    /// Until when it is left alone after a failure.
    pub(super) paused_until_us: u64,
    failures: u32,
    /// When the last of these was.
    failed_us: u64,
    /// It sent bytes that did not match, and no rechecked request of it has come out clean since.
    pub(super) doubted: bool,
    /// Why it is down, gone or barred; the last failure otherwise.
    pub(super) cause: Option<Cause>,
    pub(super) delivered_bytes: u64,
    pub(super) discarded_bytes: u64,
    /// How often it was set aside for its silence.
    pub(super) stalls: u64,
}

impl SourceRecord {
    pub(super) fn new(
        description: SourceDescription,
        limits: WindowLimits,
        outstanding: Outstanding,
    ) -> SourceRecord {
        SourceRecord {
            description,
            state: SourceState::Connecting,
            was_up: false,
            window: Window::new(limits),
            requests_max: match outstanding {
                Outstanding::Window => None,
                Outstanding::Requests(count) => Some(count.clamp(1, REQUESTS_PER_CONNECTION_MAX)),
            },
            requests: BTreeSet::new(),
            running: 0,
            outstanding_bytes: 0,
            silent_since_us: 0,
            at_work_us: 0,
            received_bytes: 0,
            sign_bytes: Some(0),
            sign_us: 0,
            up_bytes: 0,
            up_us: 0,
            paused_until_us: 0,
            failures: 0,
            failed_us: 0,
            doubted: false,
            cause: None,
            delivered_bytes: 0,
            discarded_bytes: 0,
            stalls: 0,
        }
    }

    /// True if it will never be asked again.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, SourceState::Gone | SourceState::Barred)
    }

    /// True if it can be asked, readily or as a last resort.
    pub(super) fn is_up_or_stalled(&self) -> bool {
        matches!(self.state, SourceState::Up | SourceState::Stalled)
    }

    /// Bytes that may be asked for now. A source that owes nothing may always be asked for a unit.
    pub(super) fn room_bytes(&self, unit_bytes: u64) -> u64 {
        if self.requests.len() >= self.requests_max.unwrap_or(REQUESTS_PER_CONNECTION_MAX) {
            return 0;
        }
        if self.requests_max.is_some() {
            return unit_bytes;
        }
        let room = self.window.bytes().saturating_sub(self.outstanding_bytes);
        if self.requests.is_empty() { room.max(unit_bytes) } else { room }
    }

    /// Pieces of `piece_bytes` that one request may have now, which begins with one of `unit_bytes`.
    pub(super) fn request_pieces_max(&self, unit_bytes: u64, piece_bytes: u64) -> u64 {
        if self.requests_max.is_some() {
            return 1;
        }
        let bytes_max = (self.window.bytes() / 4).min(self.room_bytes(unit_bytes));
        (bytes_max / piece_bytes).max(1)
    }

    /// How full its queue is: sources of equal rank share the work by who is emptiest, which is by rate.
    pub(super) fn fullness(&self) -> f64 {
        match self.requests_max {
            Some(count) => self.requests.len() as f64 / count as f64,
            None => self.outstanding_bytes as f64 / self.window.bytes() as f64,
        }
    }

    /// Since when nothing was heard of it that could have been: while this end is at work with what came from it, it is not listened to.
    pub(super) fn unheard_since_us(&self) -> u64 {
        self.silent_since_us.max(self.at_work_us)
    }

    /// This end is at work with what came from it, or was within the last second.
    pub(super) fn is_at_work(&self, now_us: u64) -> bool {
        self.at_work_us > 0 && now_us < self.at_work_us.saturating_add(AT_WORK_US)
    }

    /// Seconds since it was last heard, if it owes something.
    pub(super) fn silence_s(&self, now_us: u64) -> f64 {
        match self.requests.is_empty() {
            true => 0.0,
            false => now_us.saturating_sub(self.silent_since_us) as f64 / 1e6,
        }
    }

    /// Seconds without a word after which, when it owes something, it is silent: several times what its path and its rate
    /// explain.
    pub(super) fn silent_after_s(&self) -> f64 {
        let round_trips_s = 4.0 * self.window.round_trip_us() as f64 / 1e6;
        let rate = self.window.rate().filter(|rate| *rate > 0.0);
        let groups_s = rate.map_or(0.0, |rate| 3.0 * GROUP_BYTES as f64 / rate);
        SILENT_S.max(round_trips_s).max(groups_s)
    }

    /// When it will be silent, if it owes something and nothing comes.
    pub(super) fn silent_from_us(&self) -> u64 {
        let us = |seconds: f64| (seconds * 1e6).ceil() as u64;
        let after_us = us(self.silent_after_s());
        let last_us = self.silent_since_us.saturating_add(after_us.max(us(SIGN_S)));
        self.silent_since_us.max(self.sign_us).saturating_add(after_us).min(last_us)
    }

    /// Seconds until then; 0 if it is silent.
    pub(super) fn silent_in_s(&self, now_us: u64) -> f64 {
        self.silent_from_us().saturating_sub(now_us) as f64 / 1e6
    }

    /// It owes something and has said nothing for so long that others should help out. It is not given up yet.
    pub(super) fn is_silent(&self, now_us: u64) -> bool {
        !self.requests.is_empty() && now_us >= self.silent_from_us()
    }

    /// So many bytes have come from it in all, of whatever kind.
    pub(super) fn received(&mut self, now_us: u64, received_bytes: u64) {
        self.received_bytes = received_bytes;
        let sign_bytes = *self.sign_bytes.get_or_insert(received_bytes);
        if received_bytes >= sign_bytes.saturating_add(SIGN_BYTES) {
            (self.sign_bytes, self.sign_us) = (Some(received_bytes), now_us);
        }
    }

    /// A group of it came, and with it what had been counted.
    pub(super) fn count_anew(&mut self) {
        self.sign_bytes = None;
    }

    /// It takes requests, for the first time or again.
    pub(super) fn came_up(&mut self, now_us: u64) {
        self.silent_since_us = now_us;
        (self.up_bytes, self.up_us) = (self.received_bytes, now_us);
    }

    /// Bytes per second it delivers. Until that is measured, what came since it came up, of whatever kind.
    pub(super) fn rate_or_guess(&self, now_us: u64) -> Option<f64> {
        let elapsed_us = now_us.saturating_sub(self.up_us).max(1);
        let guess = self.received_bytes.saturating_sub(self.up_bytes) as f64 * 1e6 / elapsed_us as f64;
        self.window.rate().or(Some(guess)).filter(|rate| *rate > 0.0)
    }

    /// Bytes of what it owes that come whether they are wanted or not; none while it is silent.
    pub(super) fn under_way_bytes(&self, now_us: u64) -> u64 {
        if self.is_silent(now_us) { 0 } else { self.description.capabilities.under_way_bytes }
    }

    /// Seconds it is likely to need for what it owes and `more_bytes`: whoever has been silent for a while is expected
    /// to stay so for as long again. `None` until its rate is measured.
    pub(super) fn needs_s(&self, now_us: u64, more_bytes: u64) -> Option<f64> {
        let rate = self.window.rate().filter(|rate| *rate > 0.0)?;
        Some((self.outstanding_bytes + more_bytes) as f64 / rate + self.silence_s(now_us))
    }

    /// Its figures.
    pub(super) fn stats(&self, source: SourceId) -> SourceStats {
        SourceStats {
            source,
            label: self.description.label.clone(),
            state: self.state,
            delivered_bytes: self.delivered_bytes,
            discarded_bytes: self.discarded_bytes,
            rate_bytes_per_s: self.window.came_rate() as u64,
            round_trip_us: self.window.known_round_trip_us(),
            window_bytes: self.window.bytes(),
            outstanding_bytes: self.outstanding_bytes,
            stalls: self.stalls,
        }
    }

    /// A sign of life: it is no longer stalled, unless it only shows signs of life and then fails, again and again.
    /// Returns true if it was.
    pub(super) fn alive(&mut self, now_us: u64) -> bool {
        self.silent_since_us = now_us;
        !self.keeps_failing() && self.recover()
    }

    /// A new group: whatever failed before is over. Returns true if it was stalled.
    pub(super) fn forgive(&mut self) -> bool {
        self.failures = 0;
        self.paused_until_us = 0;
        self.recover()
    }

    fn recover(&mut self) -> bool {
        let was_stalled = self.state == SourceState::Stalled;
        if was_stalled {
            self.state = SourceState::Up;
        }
        was_stalled
    }

    /// It has failed and has not delivered anything since: whoever has not is asked before it.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// It failed several times in a row and delivered nothing in between.
    pub(super) fn keeps_failing(&self) -> bool {
        self.failures >= FAILURES_BEFORE_STALLED
    }

    /// A failure that may pass: it is left alone for a while, longer each time; at first not at all. What fails within the
    /// first of these pauses fails with it: a connection that is lost takes all its requests along, and is one failure.
    pub(super) fn failed(&mut self, now_us: u64, cause: Option<Cause>) {
        let is_same = self.failures > 0 && now_us < self.failed_us.saturating_add(PAUSE_US_MIN);
        if is_same {
            self.paused_until_us = self.paused_until_us.max(self.failed_us.saturating_add(PAUSE_US_MIN));
        } else {
            if self.failures > 0 {
                let pause = PAUSE_US_MIN.saturating_mul(1 << (self.failures - 1).min(16)).min(PAUSE_US_MAX);
                self.paused_until_us = now_us.saturating_add(pause);
            }
            self.failures = self.failures.saturating_add(1);
            self.failed_us = now_us;
        }
        if self.keeps_failing() && self.state == SourceState::Up {
            self.state = SourceState::Stalled;
        }
        if cause.is_some() {
            self.cause = cause;
        }
    }
}

/// An error remembered, so that the outcome can be told more than once.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) kind: ErrorKind,
    pub(super) text: String,
    pub(super) advice: Option<String>,
}

impl Cause {
    pub(super) fn new(kind: ErrorKind, text: impl Into<String>) -> Cause {
        Cause { kind, text: text.into(), advice: None }
    }

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Cause {
        self.advice = Some(advice.into());
        self
    }

    pub(super) fn of(error: &Error) -> Cause {
        Cause { kind: error.kind(), text: error.to_string(), advice: error.advice().map(str::to_owned) }
    }

    pub(super) fn to_error(&self) -> Error {
        let error = Error::new(self.kind, self.text.clone());
        match &self.advice {
            Some(advice) => error.advise(advice.clone()),
            None => error,
        }
    }

    /// Place in the order of what tells the user most: lower tells more.
    pub(super) fn rank(&self) -> u8 {
        match self.kind {
            ErrorKind::VerificationFailed => 0,
            ErrorKind::Changed => 1,
            ErrorKind::Damaged => 2,
            ErrorKind::NotFound => 3,
            ErrorKind::Refused => 4,
            ErrorKind::Unsupported => 5,
            ErrorKind::Protocol => 6,
            ErrorKind::TimedOut => 8,
            ErrorKind::Unreachable => 9,
            _ => 7,
        }
    }
}
