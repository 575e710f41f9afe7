//! How many bytes a source may owe: its delivery rate as an exponentially weighted mean, and a byte window so large that
//! the source always has something to send, which follows the rate: generously at first, while the transport below starts
//! slowly (slow start, RFC 5681 §3.1), and closely after.

use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};

use super::WindowLimits;

/// A path with a round trip up to this is a local network.
const LAN_ROUND_TRIP_US: u64 = 1_000;
/// Window on a local network: after a crash what was on its way is sent again, and speed gains nothing from more.
const LAN_WINDOW_BYTES: u64 = 8 << 20;
/// Round trips of the rate that a source may owe. One is what the path holds: requests on their way there, bytes on their
/// way back. For another one, a packet that was lost and is sent again keeps everything behind it from being delivered. The
/// others lie at the source, so that its transport always has more to send than it may: if it runs dry, its congestion
/// control takes that for the speed of the path (samples that are "application-limited",
/// draft-ietf-ccwg-bbr §4.1.2), and so would the rate that is measured here.
const ROUND_TRIPS: u64 = 4;
/// Time both ends may need to turn a request around, over and above the network's.
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
    /// Bytes per second of what was asked for; `None` until measured.
    rate: Option<f64>,
    /// The same of what had to come of it.
    came_rate: f64,
    sample: Option<Sample>,
    round_trip_us: Option<u64>,
    /// True if the source told the round trip; then it is not estimated here.
    round_trip_told: bool,
}

#[derive(Debug)]
struct Sample {
    start_us: u64,
    bytes: u64,
    /// Of these, what did not come, as it was here.
    spared_bytes: u64,
}

impl Sample {
    fn at(start_us: u64) -> Sample {
        Sample { start_us, bytes: 0, spared_bytes: 0 }
    }
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
            rate: None,
            came_rate: 0.0,
            sample: None,
            round_trip_us: None,
            round_trip_told: false,
        }
    }

    /// Bytes the source may owe now.
    pub(super) fn bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Bytes per second that it was asked for and delivered lately, in the unit of the window; `None` until measured.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Bytes per second that came of it, in the unit of what it has delivered; 0 until measured. Less than [`Window::rate`] where only the rest of
    /// groups is asked for.
    pub(super) fn came_rate(&self) -> f64 {
        self.came_rate
    }

    /// The path's round trip, in microseconds.
    pub(super) fn round_trip_us(&self) -> u64 {
        self.round_trip_us.unwrap_or(ROUND_TRIP_US_UNKNOWN)
    }

    /// The same, once there is anything to go by.
    pub(super) fn known_round_trip_us(&self) -> Option<u64> {
        self.round_trip_us
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

    /// Of what arrives next, so many bytes do not come.
    pub(super) fn spared(&mut self, bytes: u64) {
        if let Some(sample) = &mut self.sample {
            sample.spared_bytes += bytes;
        }
    }

    /// `bytes` of what was asked for arrived.
    pub(super) fn arrived(&mut self, now_us: u64, bytes: u64) {
        let Some(sample) = &mut self.sample else {
            self.sample = Some(Sample::at(now_us));
            return;
        };
        sample.bytes += bytes;
        let elapsed_us = now_us.saturating_sub(sample.start_us);
        if elapsed_us < self.round_trip_us.unwrap_or(0).max(SAMPLE_US_MIN) {
            return;
        }
        let per_s = |bytes: u64| bytes as f64 * 1e6 / elapsed_us as f64;
        let (measured, came) = (per_s(sample.bytes), per_s(sample.bytes - sample.spared_bytes));
        self.sample = Some(Sample::at(now_us));
        let is_first = self.rate.is_none();
        let mean = |rate: f64, measured: f64| match self.slow_start {
            _ if is_first => measured,
            // While the window grows the mean would lag behind what the path has shown it can do.
            true => rate.max(measured),
            false => rate + (measured - rate) * SAMPLE_WEIGHT,
        };
        let (rate, came_rate) = (mean(self.rate.unwrap_or(0.0), measured), mean(self.came_rate, came));
        (self.rate, self.came_rate) = (Some(rate), came_rate);
        self.samples_since += 1;
        if measured >= self.grown_rate * GROWS {
            (self.grown_rate, self.samples_since) = (measured, 0);
        }
        // While the window limits, the rate asks for four times the window, and for twice if the sample is old; a window as
        // large as what is wanted means that the path is full, if its rate grows no more.
        let is_full = self.samples_since >= FULL_AFTER_SAMPLES;
        if self.slow_start && is_full && self.window_bytes >= self.wanted_bytes() {
            self.slow_start = false;
        }
        let wanted = match self.slow_start {
            // The transport below may be twice as fast already.
            true => self.wanted_bytes().saturating_mul(2).max(self.window_bytes),
            false => self.wanted_bytes(),
        };
        self.window_bytes = wanted.min(self.ceiling_bytes());
    }

    /// What keeps the path full, whatever is lost on it; and a unit, since requests are made by units.
    fn wanted_bytes(&self) -> u64 {
        let wanted = (UNIT_BYTES + self.path_bytes()).next_multiple_of(GROUP_BYTES);
        wanted.clamp(self.limits.min_bytes, self.limits.max_bytes)
    }

    fn path_bytes(&self) -> u64 {
        let span_us = self.round_trip_us().saturating_mul(ROUND_TRIPS).saturating_add(TURNAROUND_US);
        (self.rate.unwrap_or(0.0) * span_us as f64 / 1e6) as u64
    }

    /// A whole unit, and enough beside it that the next request is there before the last group of this one is out.
    fn floor_bytes(&self) -> u64 {
        let beside = self.path_bytes().min(UNIT_BYTES).next_multiple_of(GROUP_BYTES);
        self.limits.min_bytes.max(UNIT_BYTES + beside).min(self.limits.max_bytes)
    }

    /// About a second of the source's rate (design 8), or three round trips if they take longer, but never less than the
    /// floor.
    fn ceiling_bytes(&self) -> u64 {
        let span_us = self.round_trip_us().saturating_mul(3).max(1_000_000);
        let second = self.rate.map_or(u64::MAX, |rate| (rate * span_us as f64 / 1e6) as u64);
        let lan = match self.round_trip_us {
            Some(round_trip_us) if round_trip_us <= LAN_ROUND_TRIP_US => LAN_WINDOW_BYTES,
            _ => u64::MAX,
        };
        second.max(self.floor_bytes()).min(lan.max(self.limits.min_bytes)).min(self.limits.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

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
                window.arrived(now_us, GROUP_BYTES);
            }
        }
        let path_bytes = full_groups * GROUP_BYTES;
        assert!(window.bytes() >= 3 * path_bytes / 2, "{} of {path_bytes}", window.bytes());
        // And it does not grow for ever: what the path holds four times, a unit and a turnaround are enough.
        for _ in 0..1000 {
            now_us += round_trip_us / full_groups;
            window.arrived(now_us, GROUP_BYTES);
        }
        let enough_bytes = 4 * path_bytes + 2 * UNIT_BYTES;
        assert!(window.bytes() <= enough_bytes, "{} of {path_bytes}", window.bytes());
        // Nor does it lag behind it.
        for full_groups in [6, 24, 96] {
            assert_eq!(dry_per_mille(full_groups, None, 0), 0, "{full_groups}");
        }
    }

    /// P4: a rate that hardly grows any more is that of a full path.
    #[test]
    fn a_rate_that_hardly_grows_ends_the_start() {
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(100_000);
        let mut now_us = 0;
        for round in 0..40 {
            now_us += 100_000;
            window.arrived(now_us, 100 * GROUP_BYTES + 64 * round);
        }
        assert!(!window.slow_start, "{} bytes", window.bytes());
    }

    /// A round trip that the source told is believed; otherwise the least that was seen is. Both survive a new connection, the rate
    /// does not.
    #[test]
    fn the_round_trip_is_told_or_the_least_seen() {
        let mut window = Window::new(WindowLimits::default());
        for (seen_us, known_us) in [(50_000, 50_000), (40_000, 40_000), (60_000, 40_000)] {
            window.saw_round_trip(seen_us);
            assert_eq!(window.round_trip_us(), known_us);
        }
        window.arrived(0, GROUP_BYTES);
        window.arrived(100_000, GROUP_BYTES);
        assert!(window.rate().is_some());
        window.restart();
        assert_eq!((window.rate(), window.round_trip_us()), (None, 40_000));
        window.saw_round_trip(30_000);
        assert_eq!(window.round_trip_us(), 30_000);
        window.set_round_trip(35_000);
        window.restart();
        window.saw_round_trip(5_000);
        assert_eq!(window.round_trip_us(), 35_000);
    }

    /// Design 8: once its path is full, the rate of a source follows what comes, also when that is less.
    #[test]
    fn the_rate_follows_a_path_that_gets_slower() {
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(1_000);
        let mut now_us = 0;
        for (every_us, bytes_per_s) in [(10_000, 6_553_600.0), (100_000, 655_360.0)] {
            for _ in 0..100 {
                now_us += every_us;
                window.arrived(now_us, GROUP_BYTES);
            }
            let rate = window.rate().unwrap();
            assert!((rate / bytes_per_s - 1.0).abs() < 0.01, "{rate} is not {bytes_per_s}");
        }
        // One sample that is ten times as fast weighs a quarter.
        window.arrived(now_us + 10_000, GROUP_BYTES);
        let rate = window.rate().unwrap() / 655_360.0;
        assert!((rate - 3.25).abs() < 0.05, "{rate}");
        // While nothing is owed nothing can come.
        let known = window.rate();
        window.pause();
        window.arrived(now_us + 60_000_000, GROUP_BYTES);
        assert_eq!(window.rate(), known);
    }

    /// P4: while the rate grows, the transport below may be about to be twice as fast; once it does not, the window is what the path needs.
    #[test]
    fn a_window_is_generous_while_the_rate_grows() {
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(100_000);
        let mut now_us = 0;
        let mut sample = |bytes_per_s: u64| {
            now_us += 500_000;
            window.arrived(now_us, bytes_per_s / 2);
            window.bytes()
        };
        sample(0);
        let grown = (0..6).map(|doubled| sample(1_000_000 << doubled)).last().unwrap();
        let needed = (UNIT_BYTES + 32_000_000 * 404 / 1000).next_multiple_of(GROUP_BYTES);
        assert_eq!(grown, 2 * needed);
        assert_eq!((0..3).map(|_| sample(32_000_000)).collect::<Vec<_>>(), [2 * needed, 2 * needed, needed]);
    }

    /// S10, design 8: of a long path about a second of the rate may be owed, or three round trips; of a local network 8 MiB.
    #[test]
    fn windows_end_at_a_second_or_three_round_trips() {
        let window_bytes = |round_trip_us, bytes_per_sample| {
            let mut window = Window::new(WindowLimits::default());
            window.set_round_trip(round_trip_us);
            // Samples of half a second each.
            (0..100).for_each(|number| window.arrived(number * 500_000, bytes_per_sample));
            window.bytes()
        };
        let rate = 8_000_000;
        assert_eq!(window_bytes(300_000, rate / 2), rate);
        assert_eq!(window_bytes(400_000, rate / 2), rate + rate / 5);
        assert_eq!(window_bytes(LAN_ROUND_TRIP_US, 1 << 30), LAN_WINDOW_BYTES);
        assert!(window_bytes(LAN_ROUND_TRIP_US + 1, 1 << 30) > LAN_WINDOW_BYTES);
    }

    /// However slow a source is, it may owe a unit and what is on its way meanwhile, so that it is never left without work.
    #[test]
    fn a_slow_source_may_owe_a_unit_and_more() {
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(100_000);
        for number in 0..20 {
            window.arrived(number * 640_000, GROUP_BYTES);
        }
        assert_eq!(window.bytes(), UNIT_BYTES + GROUP_BYTES);
    }

    /// One of two connections that share a path.
    #[derive(Default)]
    struct Connection {
        owed_bytes: u64,
        /// When requests of a unit reach the source, and groups the receiver; both ascending.
        requests: VecDeque<u64>,
        groups: VecDeque<u64>,
        /// When it hears of them.
        acknowledgements: VecDeque<u64>,
        /// Groups that may be on their way (TCP's congestion window).
        may_fly: u64,
        /// What the source has been asked for and has not sent.
        waiting_groups: u64,
        sent: u64,
        released_us: u64,
        /// Times it could have sent a group and had not been asked for one.
        dry: u64,
    }

    /// How often in a thousand times a connection of the source had nothing to send, over a path that holds `full_groups`, after
    /// its first `start` groups. Of each connection, every `lost_every`th group is lost: everything behind it comes a round
    /// trip later. TCP starts slowly.
    fn dry_per_mille(full_groups: u64, lost_every: Option<u64>, start: u64) -> u64 {
        let half_us = 66_000;
        let turn_us = 2 * 2 * half_us / full_groups;
        let mut window = Window::new(WindowLimits::default());
        window.set_round_trip(2 * half_us);
        let mut pair = [Connection::default(), Connection::default()];
        let turns = 8000;
        for turn in 0..turns {
            let now_us = turn * turn_us;
            for connection in &mut pair {
                while connection.groups.front().is_some_and(|arrival_us| *arrival_us <= now_us) {
                    connection.groups.pop_front();
                    connection.owed_bytes -= GROUP_BYTES;
                    window.arrived(now_us, GROUP_BYTES);
                }
            }
            while pair[0].owed_bytes + pair[1].owed_bytes + UNIT_BYTES <= window.bytes() {
                let less = usize::from(pair[1].owed_bytes < pair[0].owed_bytes);
                pair[less].owed_bytes += UNIT_BYTES;
                pair[less].requests.push_back(now_us + half_us);
            }
            for connection in &mut pair {
                while connection.requests.front().is_some_and(|arrival_us| *arrival_us <= now_us) {
                    connection.requests.pop_front();
                    connection.waiting_groups += UNIT_BYTES / GROUP_BYTES;
                }
                while connection.acknowledgements.front().is_some_and(|heard_us| *heard_us <= now_us) {
                    connection.acknowledgements.pop_front();
                    connection.may_fly = full_groups.min(connection.may_fly + 1);
                }
                if connection.acknowledgements.len() as u64 >= connection.may_fly.max(1) {
                    continue;
                }
                if let Some(left) = connection.waiting_groups.checked_sub(1) {
                    connection.waiting_groups = left;
                    connection.sent += 1;
                    let is_lost = lost_every.is_some_and(|every| connection.sent.is_multiple_of(every));
                    let arrival_us = now_us + half_us + if is_lost { 2 * half_us } else { 0 };
                    connection.released_us = connection.released_us.max(arrival_us);
                    connection.groups.push_back(connection.released_us);
                    connection.acknowledgements.push_back(arrival_us + half_us);
                } else if connection.sent > start {
                    connection.dry += 1;
                }
            }
        }
        (pair[0].dry + pair[1].dry) * 1000 / (2 * turns)
    }

    /// P4: what is lost is sent again, and everything behind it waits for that at the receiver. The source must have enough
    /// to send meanwhile: if it runs dry, the path is slower than it need be, and is taken for slower still.
    #[test]
    fn a_source_is_not_left_dry_while_something_is_sent_again() {
        for full_groups in [6, 24, 96] {
            // Of each connection, which has half of them, one in two round trips, and one in three.
            for lost_every in [full_groups, 3 * full_groups / 2] {
                let dry = dry_per_mille(full_groups, Some(lost_every), 8 * full_groups);
                assert_eq!(dry, 0, "{full_groups}, {lost_every}");
            }
        }
    }
}
