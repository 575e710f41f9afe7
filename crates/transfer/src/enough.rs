//! Whether one connection to a holder is enough ([ADR 34]): whether nothing but the path holds it back. No clock inside but [`worked`].
//!
//! [ADR 34]: ../../../docs/adr/0034-one-connection-on-long-paths.md

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::transport::Solo;

/// Round trips that are looked at together: the cycle in which BBR looks for more (draft-ietf-ccwg-bbr §5.3.3), and no less than what a busy machine
/// may keep a thread waiting.
const ROUND_TRIPS: u32 = 8;
const SHORTEST: Duration = Duration::from_millis(200);
/// BBR has up to so many round trips of its rate under way (`cwnd_gain`); a socket that holds less holds it back.
const UNDER_WAY: f64 = 2.0;

/// What was seen of a connection whose congestion control fills a path by itself.
#[derive(Debug)]
pub(crate) struct Enough {
    solo: Solo,
    /// Since when, and what had come and how long its thread had worked by then.
    since: Option<(Instant, u64, Duration)>,
}

impl Enough {
    /// For a connection that fills its path by itself.
    pub(crate) fn new(solo: Solo) -> Enough {
        Enough { solo, since: None }
    }

    /// So many bytes have come in all; `is_owed` if more are on their way, without which a pause says nothing. `worked` tells for how long a processor was at work
    /// for the thread that reads. True if it is the processor or the buffers that hold the connection back, and not its path.
    pub(crate) fn is_held_back(
        &mut self,
        now: Instant,
        came_bytes: u64,
        is_owed: bool,
        worked: impl FnOnce() -> Duration,
    ) -> bool {
        let Some((since, before, worked_before)) = self.since.filter(|_| is_owed) else {
            self.since = is_owed.then(|| (now, came_bytes, worked()));
            return false;
        };
        let time = now.saturating_duration_since(since);
        if time < SHORTEST.max(self.solo.round_trip * ROUND_TRIPS) {
            return false;
        }
        let worked = worked();
        let trips = time.as_secs_f64() / self.solo.round_trip.as_secs_f64();
        let trip_bytes = came_bytes.saturating_sub(before) as f64 / trips;
        self.since = Some((now, came_bytes, worked));
        // Whichever end has more to do with a byte, the other one has at least half as much.
        worked.saturating_sub(worked_before) * 2 > time
            || trip_bytes * UNDER_WAY > self.solo.holds_bytes as f64
    }
}

/// How long a processor has been at work for this thread.
pub(crate) fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// After how many milliseconds a connection is held back that brings `rate` bytes a second over `round_trip` and whose thread works for `works` of each
    /// millisecond; `None` if it is not.
    fn held_back_after(round_trip: Duration, rate: u64, holds_bytes: u64, works: Duration) -> Option<u64> {
        let begun = Instant::now();
        let mut enough = Enough::new(Solo { holds_bytes, round_trip });
        (0..60_000).find(|ms| {
            let now = begun + Duration::from_millis(*ms);
            enough.is_held_back(now, rate / 1000 * ms, true, || works * *ms as u32)
        })
    }

    /// P13, P4: one connection of BBR fills a path, whatever its rate, as long as a thread can do with it and a socket can hold it.
    #[test]
    fn only_the_path_holds_it_back() {
        let long = 50 * MS;
        // 1 Gbit/s: 6.2 MB in a round trip.
        let (gigabit, wide) = (125_000_000, 32 << 20);
        let works = MS / 10;
        assert_eq!(held_back_after(long, gigabit, wide, works), None);
        // Most kernels give a socket 3 MiB at most where nobody changed that.
        assert_eq!(held_back_after(long, gigabit, 3 << 20, works), Some(400));
        assert_eq!(held_back_after(long, gigabit / 10, 3 << 20, works), None);
        assert_eq!(held_back_after(long, gigabit, 12_600_000, works), None);
        assert_eq!(held_back_after(long, gigabit, 12_400_000, works), Some(400));
        // A thread that works for more than half of the time is what is slow, or has to do with who is.
        assert_eq!(held_back_after(long, gigabit, wide, MS * 2 / 5), None);
        assert_eq!(held_back_after(long, gigabit, wide, MS * 3 / 5), Some(400));
        assert_eq!(held_back_after(3 * MS, gigabit, wide, MS * 3 / 5), Some(200));
    }

    /// Of a time in which nothing is owed, nothing is learned.
    #[test]
    fn a_pause_tells_nothing() {
        let begun = Instant::now();
        let mut enough = Enough::new(Solo { holds_bytes: 1, round_trip: 50 * MS });
        let mut is_held_back = |seconds: u64, bytes, is_owed| {
            enough.is_held_back(begun + Duration::from_secs(seconds), bytes, is_owed, || Duration::ZERO)
        };
        assert!(!is_held_back(0, 0, true));
        assert!(!is_held_back(1, 1 << 30, false));
        assert!(!is_held_back(2, 1 << 30, true));
        assert!(is_held_back(3, 2 << 30, true));
    }
}
