//! How many bytes a source may owe: its delivery rate as an exponentially weighted mean, and a byte window a little
//! larger than what the path holds, found by doubling at first (slow start, RFC 5681 §3.1) and from the rate after.

use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};

use super::WindowLimits;

/// A path with a round trip up to this is a local network.
const LAN_ROUND_TRIP_US: u64 = 1_000;
/// Window on a local network: after a crash what was on its way is sent again, and speed gains nothing from more.
const LAN_WINDOW_BYTES: u64 = 8 << 20;
/// Time both ends may need to turn a request around, over and above two round trips of network.
const TURNAROUND_US: u64 = 4_000;
/// Shortest time a rate is measured over; longer paths are measured over a round trip.
const SAMPLE_US_MIN: u64 = 10_000;
/// Weight of a new sample in the mean rate.
const SAMPLE_WEIGHT: f64 = 0.25;
/// A path is full when its rate has not grown by this factor for so many samples (as BBR's startup ends,
/// draft-ietf-ccwg-bbr §5.3.1.2): until then the transport below may be starting slowly itself.
const GROWS: f64 = 1.25;
const FULL_AFTER_SAMPLES: u32 = 3;
/// Round trip assumed until one is known.
const ROUND_TRIP_US_UNKNOWN: u64 = 10_000;

/// Rate and window of one source.
#[derive(Debug)]
pub(super) struct Window {
    limits: WindowLimits,
    window_bytes: u64,
    slow_start: bool,
    /// The greatest rate that was a growth, and samples since.
    grown_rate: f64,
    samples_since: u32,
    /// Bytes since the window was last doubled or left alone, and whether more was wanted than it allowed.
    round_bytes: u64,
    limited: bool,
    /// Bytes per second; `None` until measured.
    rate: Option<f64>,
    sample: Option<Sample>,
    round_trip_us: Option<u64>,
    /// True if the source told the round trip; then it is not estimated here.
    round_trip_told: bool,
}

#[derive(Debug)]
struct Sample {
    start_us: u64,
    bytes: u64,
}

impl Window {
    pub(super) fn new(limits: WindowLimits) -> Window {
        // Below a unit nothing could be asked for.
        let min_bytes = limits.min_bytes.max(UNIT_BYTES);
        let max_bytes = limits.max_bytes.max(min_bytes);
        let initial_bytes = limits.initial_bytes.clamp(min_bytes, max_bytes);
        Window {
            limits: WindowLimits { initial_bytes, min_bytes, max_bytes },
            window_bytes: initial_bytes,
            slow_start: true,
            grown_rate: 0.0,
            samples_since: 0,
            round_bytes: 0,
            limited: false,
            rate: None,
            sample: None,
            round_trip_us: None,
            round_trip_told: false,
        }
    }

    /// Bytes the source may owe now.
    pub(super) fn bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Bytes per second it delivered lately; `None` until measured.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// The path's round trip, in microseconds.
    pub(super) fn round_trip_us(&self) -> u64 {
        self.round_trip_us.unwrap_or(ROUND_TRIP_US_UNKNOWN)
    }

    /// The source measured the round trip.
    pub(super) fn set_round_trip(&mut self, round_trip_us: u64) {
        self.round_trip_us = Some(round_trip_us);
        self.round_trip_told = true;
    }

    /// An idle source answered a request after this long: an upper bound of the round trip.
    pub(super) fn saw_round_trip(&mut self, round_trip_us: u64) {
        if !self.round_trip_told {
            self.round_trip_us =
                Some(self.round_trip_us.map_or(round_trip_us, |known| known.min(round_trip_us)));
        }
    }

    /// More would have been asked for, had the window had room.
    pub(super) fn mark_limited(&mut self) {
        self.limited = true;
    }

    /// The source owes nothing: time until its next byte says nothing of its rate.
    pub(super) fn pause(&mut self) {
        self.sample = None;
    }

    /// The source starts anew (a new connection): find its window again.
    pub(super) fn restart(&mut self) {
        *self = Window {
            round_trip_us: self.round_trip_us,
            round_trip_told: self.round_trip_told,
            ..Window::new(self.limits)
        };
    }

    /// `bytes` arrived.
    pub(super) fn arrived(&mut self, now_us: u64, bytes: u64) {
        self.measure(now_us, bytes);
        self.round_bytes += bytes;
        if self.round_bytes >= self.window_bytes {
            if self.slow_start && self.limited {
                self.window_bytes = self.window_bytes.saturating_mul(2).min(self.ceiling_bytes());
            }
            self.round_bytes = 0;
            self.limited = false;
        }
    }

    fn measure(&mut self, now_us: u64, bytes: u64) {
        let Some(sample) = &mut self.sample else {
            self.sample = Some(Sample { start_us: now_us, bytes: 0 });
            return;
        };
        sample.bytes += bytes;
        let elapsed_us = now_us.saturating_sub(sample.start_us);
        if elapsed_us < self.round_trip_us.unwrap_or(0).max(SAMPLE_US_MIN) {
            return;
        }
        let measured = sample.bytes as f64 * 1e6 / elapsed_us as f64;
        self.sample = Some(Sample { start_us: now_us, bytes: 0 });
        self.rate = Some(match self.rate {
            // While the window grows the mean would lag behind what the path has shown it can do.
            Some(rate) if self.slow_start => rate.max(measured),
            Some(rate) => rate + (measured - rate) * SAMPLE_WEIGHT,
            None => measured,
        });
        self.samples_since += 1;
        if measured >= self.grown_rate * GROWS {
            (self.grown_rate, self.samples_since) = (measured, 0);
        }
        let ceiling = self.ceiling_bytes();
        // While the window limits, the rate over one round trip asks for twice the window, and the sample may be one
        // doubling old; a window twice as large as even that means that the path is full, if its rate grows no more.
        let is_full = self.samples_since >= FULL_AFTER_SAMPLES;
        if self.slow_start && is_full && self.window_bytes > self.path_bytes().saturating_mul(2) {
            self.slow_start = false;
        }
        self.window_bytes = if self.slow_start {
            self.window_bytes.min(ceiling)
        } else {
            self.path_bytes().clamp(self.floor_bytes().min(ceiling), ceiling)
        };
    }

    /// What keeps the path full: the rate times two round trips and the turnaround.
    fn path_bytes(&self) -> u64 {
        let span_us = self.round_trip_us().saturating_mul(2).saturating_add(TURNAROUND_US);
        (self.rate.unwrap_or(0.0) * span_us as f64 / 1e6) as u64
    }

    /// A whole unit, and enough beside it that the next request is there before the last group of this one is out.
    fn floor_bytes(&self) -> u64 {
        let beside = self.path_bytes().min(UNIT_BYTES).next_multiple_of(GROUP_BYTES);
        self.limits.min_bytes.max(UNIT_BYTES + beside).min(self.limits.max_bytes)
    }

    /// About a second of the source's rate (design 8), but never less than the floor.
    fn ceiling_bytes(&self) -> u64 {
        let second = self.rate.map_or(u64::MAX, |rate| rate as u64);
        let lan = match self.round_trip_us {
            Some(round_trip_us) if round_trip_us <= LAN_ROUND_TRIP_US => LAN_WINDOW_BYTES,
            _ => u64::MAX,
        };
        second.max(self.floor_bytes()).min(lan.max(self.limits.min_bytes)).min(self.limits.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P4: what comes first comes slowly because TCP starts slowly, twice as much each round trip. The window must not be taken
    /// back to that: once the path is full, it holds what the path needs.
    #[test]
    fn a_slow_start_below_is_not_taken_for_a_slow_path() {
        let round_trip_us = 132_000;
        let full_groups = 25;
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(round_trip_us);
        let mut now_us = 0;
        for round in 0..9 {
            // No more comes than was asked for, and the last unit of the window is asked for when it has room for it.
            let asked_groups = (window.bytes() - UNIT_BYTES / 2) / GROUP_BYTES;
            let groups = (1 << round).min(full_groups).min(asked_groups);
            for _ in 0..groups {
                now_us += round_trip_us / groups;
                window.mark_limited();
                window.arrived(now_us, GROUP_BYTES);
            }
        }
        let path_bytes = full_groups * GROUP_BYTES;
        assert!(window.bytes() >= 3 * path_bytes / 2, "{} of {path_bytes}", window.bytes());
        // And it does not grow for ever: twice the path and a turnaround are enough.
        for _ in 0..1000 {
            now_us += round_trip_us / full_groups;
            window.mark_limited();
            window.arrived(now_us, GROUP_BYTES);
        }
        assert!(window.bytes() <= 5 * path_bytes / 2, "{} of {path_bytes}", window.bytes());
    }
}
