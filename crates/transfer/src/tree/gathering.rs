//! When what nobody waits for leaves: with what comes soon after, as each message costs a hundred bytes and more of ssh's and TCP's heads.

use std::time::Instant;

use super::SIGN_INTERVAL;

/// Of the time since the first one, what is ready may wait for so much.
const PART: u32 = 8;

/// So many leave at once: more would save little, and whoever is asked would wait for work.
const TOGETHER: usize = 16;

/// Messages that may wait for each other: 16 of them, for an eighth of the time since there was a first one, which therefore does not wait at all, and for
/// 600 ms at most, which is how often something is said anyway. Whoever makes them looks at the clock.
#[derive(Debug, Default)]
pub struct Gathering {
    begun: Option<Instant>,
    left: Option<Instant>,
}

impl Gathering {
    /// Until when `ready` messages may wait for more at `now`; `None` if they are to leave. To be asked for the first, too.
    pub fn until(&mut self, ready: usize, now: Instant) -> Option<Instant> {
        let begun = *self.begun.get_or_insert(now);
        let patience = (now.saturating_duration_since(begun) / PART).min(SIGN_INTERVAL);
        let until = self.left.unwrap_or(begun) + patience;
        (ready < TOGETHER && now < until).then_some(until)
    }

    /// What was ready at `now` leaves.
    pub fn leave(&mut self, now: Instant) {
        self.left = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What leaves when, in ms, of what is ready every so many microseconds.
    fn left(every_us: u64, for_ms: u64) -> Vec<u64> {
        let begun = Instant::now();
        let (mut gathering, mut left, mut ready) = (Gathering::default(), Vec::new(), 0);
        for at_us in (0..for_ms * 1000).step_by(every_us as usize) {
            let now = begun + Duration::from_micros(at_us);
            ready += 1;
            if gathering.until(ready, now).is_none() {
                gathering.leave(now);
                left.push(at_us / 1000);
                ready = 0;
            }
        }
        left
    }

    /// P5: what is ready every 100 ms leaves ever more rarely, and after 4.8 seconds every 0.6 s; the first at once.
    #[test]
    fn what_may_wait_leaves_together() {
        let left = left(100_000, 14_400);
        assert_eq!(left[..4], [0, 100, 200, 300]);
        let by = |at_ms: u64| left.iter().filter(|left| **left < at_ms).count();
        assert!(by(4800) < 24 && by(14_400) - by(4800) == 16, "{left:?}");
        assert!(left.windows(2).all(|pair| pair[1] - pair[0] <= (pair[1] / 8 + 100).min(600)), "{left:?}");
    }

    /// Who is asked about many small files gets work soon: 16 of them at a time.
    #[test]
    fn few_leave_at_a_time() {
        let left = left(100, 1000);
        let later: Vec<u64> = left.windows(2).map(|pair| pair[1] - pair[0]).skip(100).collect();
        assert!(!later.is_empty() && later.iter().all(|gap| *gap <= 2), "{left:?}");
    }
}
