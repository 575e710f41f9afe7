//! When what nobody waits for leaves: with what comes soon after, as each message costs a hundred bytes and more of ssh's and TCP's heads.

use std::time::{Duration, Instant};

use super::TOLD_INTERVAL;

/// Of the time since the first one, what is ready may wait for so much.
const PART: u32 = 8;

/// Messages that may wait for each other: for 200 ms at most, which is how often something is said anyway, and never for more than an eighth of the
/// time since there was a first one, which therefore does not wait at all.
#[derive(Debug, Default)]
pub struct Gathering {
    begun: Option<Instant>,
    left: Option<Instant>,
}

impl Gathering {
    /// Whether what is ready at `now` may wait for more. To be asked for the first, too.
    pub fn may_wait(&mut self, now: Instant) -> bool {
        let begun = *self.begun.get_or_insert(now);
        let since = |then: Instant| now.saturating_duration_since(then);
        since(self.left.unwrap_or(begun)) < self.patience(now)
    }

    /// How long at most, at `now`.
    fn patience(&self, now: Instant) -> Duration {
        let begun = self.begun.unwrap_or(now);
        (now.saturating_duration_since(begun) / PART).min(TOLD_INTERVAL)
    }

    /// What was ready at `now` leaves.
    pub fn leave(&mut self, now: Instant) {
        self.left = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P5: what is ready every 10 ms leaves ever more rarely, and after two seconds five times a second; the first at once.
    #[test]
    fn what_may_wait_leaves_together() {
        let begun = Instant::now();
        let mut gathering = Gathering::default();
        let mut left = Vec::new();
        for at_ms in (0..4000).step_by(10) {
            let now = begun + Duration::from_millis(at_ms);
            if !gathering.may_wait(now) {
                gathering.leave(now);
                left.push(at_ms);
            }
        }
        assert_eq!(left[..4], [0, 10, 20, 30]);
        let by = |at_ms: u64| left.iter().filter(|left| **left < at_ms).count();
        assert!(by(2000) < 50 && by(4000) - by(2000) == 10, "{left:?}");
        assert!(left.windows(2).all(|pair| pair[1] - pair[0] <= (pair[1] / 8 + 10).min(200)), "{left:?}");
    }
}
