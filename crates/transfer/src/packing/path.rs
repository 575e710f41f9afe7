//! Whether a path is slow enough for packed data to pay, as the receiver sees it. No clock inside.

use std::time::{Duration, Instant};

/// A path with a round trip from here on is no local network: packed until it turns out to be fast.
const FAR_FROM: Duration = Duration::from_millis(3);
/// Bytes a second below which packing pays: what one processor packs at the lowest levels.
const SLOW_BELOW: u64 = 50_000_000;
/// And from which on it does not.
const FAST_FROM: u64 = 100_000_000;
/// How long is measured at least.
const WINDOW: Duration = Duration::from_millis(200);
/// A path that was fast is slow after so many slow windows of pieces in a row: a processor that was busy with something else makes one or two.
const SLOW_AGAIN_AFTER: u32 = 3;

/// What was seen of a path.
#[derive(Debug, Default)]
pub(crate) struct PathMeter {
    /// A question left while nothing else was owed.
    asked: Option<Instant>,
    round_trip: Option<Duration>,
    /// Since when bytes are counted, and how many had come by then.
    window: Option<(Instant, u64)>,
    /// Bytes of pieces that came in one go, and the time in which they did ([`PathMeter::piece`]).
    pieces: (Duration, u64),
    /// Bytes a second, as measured last.
    rate: Option<u64>,
    is_slow: Option<bool>,
    /// Slow windows of pieces since it was fast last.
    slow_windows: u32,
}

impl PathMeter {
    /// A path whose round trip may be known.
    pub(crate) fn new(round_trip: Option<Duration>) -> PathMeter {
        PathMeter { round_trip, ..PathMeter::default() }
    }

    /// Something was asked; `is_idle` if nothing else is owed.
    pub(crate) fn asked(&mut self, now: Instant, is_idle: bool) {
        if is_idle {
            self.asked.get_or_insert(now);
        }
    }

    /// Something came.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Some(asked) = self.asked.take() {
            let round_trip = now - asked;
            self.round_trip = Some(self.round_trip.map_or(round_trip, |known| known.min(round_trip)));
        }
    }

    /// So many bytes have come in all; `is_owed` if more are on their way, without which a pause says nothing.
    pub(crate) fn count(&mut self, now: Instant, came_bytes: u64, is_owed: bool) {
        let Some((since, before)) = self.window.filter(|_| is_owed) else {
            self.window = is_owed.then_some((now, came_bytes));
            return;
        };
        let time = now - since;
        if time < WINDOW {
            return;
        }
        self.judge(came_bytes.saturating_sub(before), time);
        self.window = Some((now, came_bytes));
    }

    /// So many bytes came in so much time, in a piece that the other end wrote in one go: what it did between two of them says nothing. Instead of
    /// [`PathMeter::count`], where that may take longer than the path does.
    pub(crate) fn piece(&mut self, bytes: u64, time: Duration) {
        let (all_time, all_bytes) = (self.pieces.0 + time, self.pieces.1.saturating_add(bytes));
        self.pieces = (all_time, all_bytes);
        // As many bytes are fast in whatever time is left.
        if all_time >= WINDOW || all_bytes as f64 >= FAST_FROM as f64 * WINDOW.as_secs_f64() {
            self.judge(all_bytes, all_time.max(Duration::from_micros(1)));
            self.pieces = (Duration::ZERO, 0);
            // What fills a buffer here or there comes out of it as fast as memory. Where bytes are counted over the clock alone, an end that is slower than
            // the path would make it slow.
            let is_slow = self.rate.is_some_and(|rate| rate < SLOW_BELOW);
            self.slow_windows = if is_slow { self.slow_windows.saturating_add(1) } else { 0 };
            if self.slow_windows >= SLOW_AGAIN_AFTER {
                self.is_slow = Some(true);
            }
        }
    }

    fn judge(&mut self, bytes: u64, time: Duration) {
        let rate = bytes as f64 / time.as_secs_f64();
        self.rate = Some(rate as u64);
        if rate >= FAST_FROM as f64 {
            self.is_slow = Some(false);
        } else if rate < SLOW_BELOW as f64 && self.is_slow.is_none() {
            self.is_slow = Some(true);
        }
    }

    /// Bytes a second, once measured.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Whether data should be packed; yes while nothing is known, which costs a fast path its first piece.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.unwrap_or_else(|| self.round_trip.is_none_or(|time| time >= FAR_FROM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Design 15: packed where the path is slow, measured or, until then, guessed from its round trip; P1: never where it is fast.
    #[test]
    fn a_path_is_slow_or_it_is_not() {
        let now = Instant::now();
        let seen = |round_trip: Duration, rate: Option<u64>| {
            let mut meter = PathMeter::new(None);
            assert!(meter.is_slow(), "nothing is known");
            meter.asked(now, true);
            meter.heard(now + round_trip);
            for (second, bytes) in rate.into_iter().flat_map(|rate| [(0, 0), (1, rate)]) {
                meter.count(now + Duration::from_secs(second), bytes, true);
            }
            meter.is_slow()
        };
        assert!(seen(40 * MS, None) && !seen(MS, None));
        assert!(seen(MS, Some(1_000_000)) && seen(40 * MS, Some(1_000_000)));
        assert!(!seen(MS, Some(500_000_000)) && !seen(40 * MS, Some(500_000_000)));
    }

    /// P1: of an end that takes its time between two pieces nothing is learned, and a path that brings enough is fast before it was measured for
    /// long; a slow one brings each piece slowly.
    #[test]
    fn pieces_are_measured_without_what_lies_between() {
        let rate = |bytes: u64, time: Duration, count: u32| {
            let mut meter = PathMeter::new(Some(40 * MS));
            (0..count).for_each(|_| meter.piece(bytes, time));
            (meter.is_slow(), meter.rate())
        };
        assert_eq!(rate(256 << 10, MS / 2, 70), (true, None), "nothing is decided of little");
        assert_eq!(rate(256 << 10, MS / 2, 80), (false, Some(524_288_000)));
        assert_eq!(rate(256 << 10, 200 * MS, 1), (true, Some(1_310_720)));
        assert!(!rate(u64::MAX, Duration::ZERO, 3).0);
        // What was taken for slow, and is fast by now.
        let mut meter = PathMeter::new(Some(MS));
        assert!(!meter.is_slow());
        meter.piece(1 << 20, 200 * MS);
        assert!(meter.is_slow());
        meter.piece(30 << 20, 200 * MS);
        assert!(!meter.is_slow());
    }

    /// ADR 28: what came out of full buffers does not make a slow path fast for good; a fast one of which a few pieces were late stays fast.
    #[test]
    fn a_path_that_was_fast_becomes_slow_again() {
        let mut meter = PathMeter::new(Some(40 * MS));
        let fast = |meter: &mut PathMeter| (0..80).for_each(|_| meter.piece(256 << 10, MS / 2));
        fast(&mut meter);
        assert!(!meter.is_slow());
        for _ in 0..10 {
            (1..SLOW_AGAIN_AFTER).for_each(|_| meter.piece(1 << 20, 200 * MS));
            fast(&mut meter);
        }
        assert!(!meter.is_slow());
        (0..SLOW_AGAIN_AFTER).for_each(|_| meter.piece(1 << 20, 200 * MS));
        assert!(meter.is_slow());
        fast(&mut meter);
        assert!(!meter.is_slow());
    }

    /// Of a pause in which nothing is owed, nothing is learned.
    #[test]
    fn a_pause_is_not_slow() {
        let now = Instant::now();
        let mut meter = PathMeter::new(Some(MS));
        meter.count(now, 1000, true);
        meter.count(now + 10 * MS, 2000, false);
        meter.count(now + 5000 * MS, 2000, true);
        assert!(!meter.is_slow());
    }
}
