//! Keeps processors from being given back while something is measured. A virtual processor with nothing to do is halted, and the machine below gives it to others;
//! whoever is to wake on it then waits until it is given back, for milliseconds where much else runs there. That would be delay of a link.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CpuSet;

use crate::engine::{schedule, thread_cpu};

/// Processor time of all threads that only kept a processor awake, nanoseconds, in this process.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
/// The longest that a processor was away while it was kept awake, since that was last asked, nanoseconds.
static LONGEST_ABSENCE_NS: AtomicU64 = AtomicU64::new(0);
/// Rounds between two looks at the clock; some tens of microseconds.
const ROUNDS: u32 = 1000;

/// A thread on every processor that this one may use, which does nothing, and only while nobody else wants it (`SCHED_IDLE`).
#[derive(Debug)]
pub(crate) struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// # Errors
    /// If a thread cannot be started, bound to its processor, or put behind all others.
    pub(crate) fn keep() -> io::Result<Awake> {
        let usable = rustix::thread::sched_getaffinity(None)?;
        let mut awake = Awake { stop: Arc::default(), threads: Vec::new() };
        for processor in (0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number)) {
            let stop = Arc::clone(&awake.stop);
            let (ready, is_ready) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name("lab awake".into()).spawn(move || {
                let outcome = stand_back_on(processor);
                let goes = outcome.is_ok();
                if ready.send(outcome).is_ok() && goes {
                    idle(&stop);
                }
            })?;
            awake.threads.push(thread);
            is_ready.recv().map_err(|_| io::Error::other("a thread ended at once"))??;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What such threads of this process have had, in nanoseconds: idle time, for whoever asks how busy the machine was.
pub(crate) fn spent_ns() -> u64 {
    SPENT_NS.load(Ordering::Relaxed)
}

/// The longest time that the machine below took a processor away from a thread that keeps one awake, since this was last asked: whether `/proc/stat` says so (`steal`) or
/// not. Zero where none was kept awake (`Turn::take(true)`). Some tens of microseconds are usual. What is taken while others have the processor is not seen.
pub fn longest_absence() -> Duration {
    Duration::from_nanos(LONGEST_ABSENCE_NS.swap(0, Ordering::Relaxed))
}

fn stand_back_on(processor: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only)?;
    schedule(&["--idle"], "0")
}

fn idle(stop: &AtomicBool) {
    let mut before = thread_cpu();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..ROUNDS {
            std::hint::spin_loop();
        }
        let now = thread_cpu();
        let spent_ns = u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(0);
        SPENT_NS.fetch_add(spent_ns, Ordering::Relaxed);
        // The kernel takes this thread to have run all the time: for so long, these few rounds took only if nothing ran.
        LONGEST_ABSENCE_NS.fetch_max(spent_ns, Ordering::Relaxed);
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// While it is kept, processors are awake though nobody does anything; that it stands back behind others is shown by `the_gate_sees_who_has_the_machine`.
    #[test]
    fn processors_are_awake_until_it_is_dropped() {
        let (before, began) = (spent_ns(), Instant::now());
        let awake = Awake::keep().unwrap();
        let processors = awake.threads.len() as f64;
        std::thread::sleep(Duration::from_millis(500));
        let idle_share = (spent_ns() - before) as f64 / 1e9 / began.elapsed().as_secs_f64() / processors;
        // Other tests run meanwhile.
        assert!(idle_share > 0.02 && idle_share < 1.05, "{idle_share}");
        drop(awake);
        let after = spent_ns();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(spent_ns(), after, "it is gone");
    }
}
