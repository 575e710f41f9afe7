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
/// And no more, whatever the peer made of the round trip: nothing is learned meanwhile.
const LONGEST: Duration = Duration::from_secs(2);
/// BBR has up to so many round trips of its rate under way (`cwnd_gain`); a socket that holds less holds it back.
const UNDER_WAY: f64 = 2.0;
/// Bytes a second from which on a processor is the likely bound, which may be the holder's: 1 Gbit/s is less, one thread of a slow machine no more.
const FAST: f64 = 150e6;

/// What was seen of a connection whose congestion control fills a path by itself.
#[derive(Debug)]
pub(crate) struct Enough {
    solo: Solo,
    /// Since when, and what had come and how long its thread had worked by then.
    since: Option<(Instant, u64, Duration)>,
    /// Before that it was [`FAST`].
    was_fast: bool,
}

impl Enough {
    /// For a connection that fills its path by itself; `connected_in` is what the kernel took to connect it, if that was seen. The peer answers in TLS as late as
    /// it likes, and both times may have a packet that was lost in them.
    pub(crate) fn new(solo: Solo, connected_in: Option<Duration>) -> Enough {
        let round_trip = connected_in.map_or(solo.round_trip, |time| time.min(solo.round_trip));
        Enough { solo: Solo { round_trip, ..solo }, since: None, was_fast: false }
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
            self.was_fast = false;
            return false;
        };
        let time = now.saturating_duration_since(since);
        if time < SHORTEST.max(self.solo.round_trip * ROUND_TRIPS).min(LONGEST) {
            return false;
        }
        let worked = worked();
        let rate = came_bytes.saturating_sub(before) as f64 / time.as_secs_f64();
        let trip_bytes = rate * self.solo.round_trip.as_secs_f64();
        // What had gathered in the socket while the thread waited comes faster than the path brings it, but once.
        let is_fast = rate >= FAST;
        let stays_fast = std::mem::replace(&mut self.was_fast, is_fast) && is_fast;
        self.since = Some((now, came_bytes, worked));
        worked.saturating_sub(worked_before) * 2 > time
            || trip_bytes * UNDER_WAY > self.solo.holds_bytes as f64
            || stays_fast
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
        let mut enough = Enough::new(Solo { holds_bytes, round_trip }, None);
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

    /// P4 (ADR 34): a holder's processor that is the bound does not show here, where each byte may be a third of the work; the rate does. What a thread finds in
    /// its socket after others had the processor is none.
    #[test]
    fn who_is_fast_may_be_held_back_at_the_other_end() {
        // The holder is full at 295 MB/s, and 41 % of the time are enough for what that brings.
        let works = MS * 41 / 100;
        assert_eq!(held_back_after(5 * MS, 295_000_000, 16 << 20, works), Some(400));
        assert_eq!(held_back_after(5 * MS, 140_000_000, 16 << 20, works), None);
        let begun = Instant::now();
        let mut enough = Enough::new(Solo { holds_bytes: 64 << 20, round_trip: 5 * MS }, None);
        let mut brought = |ms: u64| {
            // 1 Gbit/s; nothing is taken for 150 ms of each second.
            let taken_ms = if (100..250).contains(&(ms % 1000)) { ms / 1000 * 1000 + 100 } else { ms };
            enough
                .is_held_back(begun + Duration::from_millis(ms), 125_000 * taken_ms, true, || Duration::ZERO)
        };
        assert!(!(0..20_000).any(&mut brought));
    }

    /// P13 (ADR 34): an answer that came late, as a packet was lost or the peer took its time, makes neither the path a longer one nor the look at it.
    #[test]
    fn a_late_answer_is_no_round_trip() {
        let begun = Instant::now();
        let after = |answered_in: Duration, connected_in: Option<Duration>| {
            let mut enough =
                Enough::new(Solo { holds_bytes: 32 << 20, round_trip: answered_in }, connected_in);
            (0..60_000).find(|ms| {
                let now = begun + Duration::from_millis(*ms);
                enough.is_held_back(now, 125_000 * ms, true, || Duration::ZERO)
            })
        };
        assert_eq!(after(1050 * MS, Some(50 * MS)), None);
        assert_eq!(after(50 * MS, Some(1050 * MS)), None);
        assert_eq!(after(10_000 * MS, None), Some(2000));
    }

    /// Of a time in which nothing is owed, nothing is learned.
    #[test]
    fn a_pause_tells_nothing() {
        let begun = Instant::now();
        let mut enough = Enough::new(Solo { holds_bytes: 1, round_trip: 50 * MS }, None);
        let mut is_held_back = |seconds: u64, bytes, is_owed| {
            enough.is_held_back(begun + Duration::from_secs(seconds), bytes, is_owed, || Duration::ZERO)
        };
        assert!(!is_held_back(0, 0, true));
        assert!(!is_held_back(1, 1 << 30, false));
        assert!(!is_held_back(2, 1 << 30, true));
        assert!(is_held_back(3, 2 << 30, true));
    }
}
