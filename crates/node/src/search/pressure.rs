//! What this transfer itself has to do: as long as there is any of it, a search of the disk waits (Y5, design 7). Three queues tell: of what is
//! to be written, of what came and was not taken, and of threads that wait for a processor ([`share`]).
//!
//! [`share`]: super::share

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dray_core::source::Source;

use super::share::{Reading, scheduled};
use crate::lock;

/// Threads of one transfer that are looked at: those beyond are not seen waiting.
const THREADS_MAX: usize = 64;

/// What is under way of one transfer.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Writes that are under way or wait, and reads of what is copied or cut.
    works: AtomicUsize,
    sources: Mutex<Vec<Weak<dyn Source>>>,
    /// Threads that work for the transfer, as the kernel numbers them.
    threads: Mutex<Vec<i32>>,
    /// Of all that there ever were in this process.
    number: u64,
}

impl Default for Pressure {
    fn default() -> Pressure {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Pressure { works: AtomicUsize::new(0), sources: Mutex::default(), threads: Mutex::default(), number }
    }
}

thread_local! {
    /// For which transfer this thread works.
    static WORKS_FOR: Cell<u64> = const { Cell::new(0) };
}

/// One thing that is under way.
#[derive(Debug)]
pub(crate) struct Working<'a>(&'a Pressure);

impl Pressure {
    /// Something was begun that reads or writes the disk; over when this is dropped.
    pub(crate) fn begin(&self) -> Working<'_> {
        self.join();
        self.enqueue();
        Working(self)
    }

    /// The same, for what waits in a queue; over with [`Pressure::done`].
    pub(crate) fn enqueue(&self) {
        self.works.fetch_add(1, Ordering::AcqRel);
    }

    /// One of those is done.
    pub(crate) fn done(&self) {
        self.works.fetch_sub(1, Ordering::AcqRel);
    }

    /// The calling thread works for the transfer: from now on it counts when it waits for a processor.
    pub(crate) fn join(&self) {
        if WORKS_FOR.replace(self.number) == self.number {
            return;
        }
        let mut threads = lock(&self.threads);
        if threads.len() < THREADS_MAX {
            threads.push(rustix::thread::gettid().as_raw_nonzero().get());
        }
    }

    /// How long the calling thread, a search's, has run, and how long the transfer's have waited for a processor; `None` where the kernel does not
    /// tell.
    pub(super) fn reading(&self) -> Option<Reading> {
        let (ran_ns, _) = scheduled("/proc/thread-self")?;
        let waited = |thread: &i32| Some(scheduled(&format!("/proc/self/task/{thread}"))?.1);
        let known = lock(&self.threads).clone();
        let waits: Vec<Option<u64>> = known.iter().map(waited).collect();
        // Those that have ended make room.
        let ended = known.iter().zip(&waits).filter(|(_, waited)| waited.is_none());
        let ended: Vec<i32> = ended.map(|(thread, _)| *thread).collect();
        lock(&self.threads).retain(|thread| !ended.contains(thread));
        let waited_ns = waits.into_iter().flatten().sum();
        Some(Reading { ran_ns, waited_ns })
    }

    /// A source whose sockets count from now on.
    pub(crate) fn watch(&self, source: &Arc<dyn Source>) {
        let mut sources = lock(&self.sources);
        sources.retain(|known| known.strong_count() > 0);
        sources.push(Arc::downgrade(source));
    }

    /// True if the disk is this transfer's own, or bytes wait to be taken from the network.
    pub(crate) fn is_high(&self) -> bool {
        let has_unread =
            |source: &Weak<dyn Source>| source.upgrade().is_some_and(|source| source.has_unread());
        self.works.load(Ordering::Acquire) > 0 || lock(&self.sources).iter().any(has_unread)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}
