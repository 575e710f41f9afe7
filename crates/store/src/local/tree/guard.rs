//! How a tree is read for others than its user: nothing that is mounted in it is touched, some directories are told and not looked into,
//! and whoever reads can be stopped, and be seen to hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Statx;

use super::place::{Identity, identity_of};

/// Device and inode of a directory.
pub type DirectoryKey = Identity;

/// What keeps a walk and a scan within bounds.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Directories that are told, and nothing of what is in them.
    pub never: Arc<[DirectoryKey]>,
    /// Whether anybody still waits, and whether the disk answers.
    pub pulse: Arc<Pulse>,
}

impl Guard {
    /// Where there is one, takes its pulse; false if nobody waits any more.
    pub(super) fn goes_on(guard: Option<&Guard>) -> bool {
        guard.is_none_or(|guard| guard.pulse.step())
    }

    /// True for a directory that is not looked into.
    pub(super) fn spares(&self, found: &Statx) -> bool {
        self.never.contains(&identity_of(found))
    }
}

/// Shared by whoever reads a tree and whoever looks after that.
#[derive(Debug)]
pub struct Pulse {
    stop: Arc<AtomicBool>,
    began: Instant,
    /// Milliseconds since `began`, and one more, at the last step; 0 while nothing is read.
    stepped: AtomicU64,
    #[cfg(test)]
    pub(super) steps: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse::new(Arc::default())
    }
}

impl Pulse {
    /// Of one that reads until `stop` is set.
    pub fn new(stop: Arc<AtomicBool>) -> Pulse {
        Pulse {
            stop,
            began: Instant::now(),
            stepped: AtomicU64::new(0),
            #[cfg(test)]
            steps: AtomicU64::new(0),
        }
    }

    /// Another name is about to be looked at; false if nobody waits any more.
    pub(super) fn step(&self) -> bool {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.stepped.store(now + 1, Ordering::Relaxed);
        #[cfg(test)]
        self.steps.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Acquire)
    }

    /// Nothing is read for now.
    pub(super) fn rest(&self) {
        self.stepped.store(0, Ordering::Relaxed);
    }

    /// For how long the step that is under way has lasted; nothing while nothing is read.
    pub fn hangs_for(&self) -> Duration {
        match self.stepped.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            stepped => self.began.elapsed().saturating_sub(Duration::from_millis(stepped)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threat model "a disk that does not answer": a step that lasts is seen from outside, and a rest is none.
    #[test]
    fn a_step_that_lasts_is_seen() {
        let stop: Arc<AtomicBool> = Arc::default();
        let pulse = Pulse::new(stop.clone());
        assert_eq!(pulse.hangs_for(), Duration::ZERO);
        assert!(pulse.step());
        std::thread::sleep(Duration::from_millis(30));
        assert!(pulse.hangs_for() >= Duration::from_millis(20));
        assert!(pulse.step() && pulse.hangs_for() < Duration::from_millis(20));
        pulse.rest();
        assert_eq!(pulse.hangs_for(), Duration::ZERO);
        stop.store(true, Ordering::Release);
        assert!(!pulse.step());
    }
}
