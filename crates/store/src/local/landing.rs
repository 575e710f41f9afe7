//! The end of a put: what took long to hash or to send is not lost to a lock that another process holds for a while, and what was
//! taken in for nothing is not forgotten.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Oid, Result};

/// How long the end of one put is tried again, all its steps together, while another process holds a lock.
const PATIENCE: Duration = Duration::from_secs(600);

/// From this size on the bytes of an object are worth waiting for a lock: to hash fewer again takes less time than that.
pub const LONG_BYTES: u64 = 64 << 20;

/// Of one put: the time that its last steps have for locks, and what it took in.
pub struct Landing<'a> {
    /// When a lock was first met that was held for longer than a request waits.
    begun: Cell<Option<Instant>>,
    tell: &'a dyn Fn(&Error),
    taken_in: Cell<Option<Oid>>,
}

impl<'a> Landing<'a> {
    /// `tell` hears, once, of the lock that is waited for.
    pub fn new(tell: &'a dyn Fn(&Error)) -> Landing<'a> {
        Landing { begun: Cell::new(None), tell, taken_in: Cell::new(None) }
    }

    /// Does `step` again and again as long as it fails for a lock that another process holds: for ten minutes since that was first so in any step,
    /// or until `is_stopped`. Then that failure is the result.
    pub fn until_unlocked<T>(
        &self,
        is_stopped: &dyn Fn() -> bool,
        mut step: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match step() {
                Err(error)
                    if error.kind() == ErrorKind::TimedOut && error.is_retryable() && !is_stopped() =>
                {
                    match self.begun.get() {
                        None => {
                            self.begun.set(Some(Instant::now()));
                            (self.tell)(&error);
                        }
                        Some(begun) if begun.elapsed() >= PATIENCE => return Err(error),
                        Some(_) => {}
                    }
                }
                result => return result,
            }
        }
    }

    /// The object of which bytes may be in the store that nobody had before, whatever came of the put.
    pub fn taken_in(&self) -> Option<Oid> {
        self.taken_in.get()
    }

    pub(super) fn takes_in(&self, oid: Oid) {
        self.taken_in.set(Some(oid));
    }
}

/// A put's landing, as long as somebody wants it.
pub(super) struct Wanted<'a> {
    pub(super) landing: &'a Landing<'a>,
    pub(super) is_stopped: &'a dyn Fn() -> bool,
}

impl Wanted<'_> {
    /// As [`Landing::until_unlocked`].
    pub(super) fn until_unlocked<T>(&self, step: impl FnMut() -> Result<T>) -> Result<T> {
        self.landing.until_unlocked(self.is_stopped, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 9: all steps of one put have one time, and the first lock that is waited for is told, once.
    #[test]
    fn one_time_for_all_steps() {
        let told = Cell::new(0);
        let tell = |_: &Error| told.set(told.get() + 1);
        let landing = Landing::new(&tell);
        let held = || Err::<(), _>(Error::new(ErrorKind::TimedOut, "held").with_retryable(true));
        let tries = Cell::new(0);
        let step = || match tries.replace(tries.get() + 1) {
            0..5 => held(),
            _ => Ok(()),
        };
        landing.until_unlocked(&|| false, step).unwrap();
        assert_eq!((tries.get(), told.get()), (6, 1));
        landing.begun.set(Instant::now().checked_sub(PATIENCE));
        assert!(landing.until_unlocked(&|| false, held).is_err(), "another step, the same time");
        assert_eq!(told.get(), 1);
    }
}
