//! How much of the time the index takes: after each piece of work it rests several times as long, so that the disk and the processor are
//! others' for most of it, however much there is to read.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Work after which it rests: a few MiB of a file on a hard disk, some tens of them on one that is fast.
const SLICE: Duration = Duration::from_millis(100);
/// The longest rest at once, after six minutes of work that could not be parted.
pub(super) const REST_MAX: Duration = Duration::from_secs(3600);

/// What one thread does, and when it rests.
pub(in crate::daemon) struct Pace {
    /// A rest is so many times as long as the work before it.
    rest_per_work: u32,
    /// It rests after so much.
    slice: Duration,
    /// What was not rested for yet, until it was last stopped.
    work: Cell<Duration>,
    since: Cell<Option<Instant>>,
}

impl Pace {
    pub(in crate::daemon) fn new(rest_per_work: u32) -> Pace {
        Pace { rest_per_work, slice: SLICE, work: Cell::default(), since: Cell::default() }
    }

    /// One that rests after whatever it did.
    #[cfg(test)]
    pub(super) fn of_each(rest_per_work: u32) -> Pace {
        Pace { slice: Duration::ZERO, ..Pace::new(rest_per_work) }
    }

    /// From now on it works.
    pub(super) fn start(&self) {
        self.since.set(Some(Instant::now()));
    }

    /// From now on it waits.
    pub(super) fn stop(&self) {
        if let Some(since) = self.since.take() {
            self.work.set(self.work.get() + since.elapsed());
        }
    }

    /// For how long to rest, if that much was done.
    pub(super) fn due(&self) -> Option<Duration> {
        let is_due = self.work.get() >= self.slice.max(Duration::from_nanos(1));
        (self.rest_per_work > 0 && is_due).then(|| self.owed())
    }

    /// For how long to rest, for however little. It is owed once.
    pub(super) fn owed(&self) -> Duration {
        self.work.take().saturating_mul(self.rest_per_work).min(REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y5, "a share of the time": rests are ten times the work, whatever is waited for in between, and each is owed once.
    #[test]
    fn rests_are_a_share_of_the_work() {
        let minute = Duration::from_secs(60);
        let pace = Pace::new(10);
        pace.work.set(minute);
        assert_eq!((pace.due(), pace.due()), (Some(10 * minute), None));
        pace.work.set(SLICE / 2);
        assert_eq!(pace.due(), None);
        assert_eq!((pace.owed(), pace.owed()), (5 * SLICE, Duration::ZERO));
        pace.work.set(60 * minute);
        assert_eq!(pace.due(), Some(REST_MAX));
        pace.stop();
        assert_eq!(pace.owed(), Duration::ZERO, "nothing was begun");
        pace.start();
        std::thread::sleep(Duration::from_millis(1));
        pace.stop();
        assert!(pace.owed() >= Duration::from_millis(10));
    }
}
