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
    threads: Mutex<Threads>,
    /// Of all that there ever were in this process.
    number: u64,
}

/// Threads that work for the transfer, and how long they wait.
#[derive(Debug, Default)]
struct Threads {
    /// As the kernel numbers them, and how long each had waited when it was looked last.
    known: Vec<(i32, Option<u64>)>,
    /// How long they waited in all while they were known.
    waited_ns: u64,
}

impl Threads {
    /// False if there is no room.
    fn enter(&mut self, thread: i32) -> bool {
        if self.known.iter().any(|(known, _)| *known == thread) {
            return true;
        }
        let has_room = self.known.len() < THREADS_MAX;
        if has_room {
            self.known.push((thread, None));
        }
        has_room
    }

    /// How long these have waited since each began, `None` of one that has ended: it makes room. How long all have waited while they were known.
    fn waited(&mut self, told: &[(i32, Option<u64>)]) -> u64 {
        for (thread, now) in told {
            let Some(at) = self.known.iter().position(|(known, _)| known == thread) else { continue };
            match *now {
                None => drop(self.known.remove(at)),
                Some(now) => {
                    // What it waited before it was known counts for nobody; nor does less than before, of one that has the number of another.
                    let before = self.known[at].1.replace(now).unwrap_or(now);
                    self.waited_ns = self.waited_ns.saturating_add(now.saturating_sub(before));
                }
            }
        }
        self.waited_ns
    }
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
        if WORKS_FOR.get() == self.number {
            return;
        }
        // Where there is no room, there may be later.
        if lock(&self.threads).enter(rustix::thread::gettid().as_raw_nonzero().get()) {
            WORKS_FOR.set(self.number);
        }
    }

    /// How long the calling thread, a search's, has run, and how long the transfer's have waited for a processor; `None` where the kernel does not
    /// tell.
    pub(super) fn reading(&self) -> Option<Reading> {
        let (ran_ns, _) = scheduled("/proc/thread-self")?;
        let known: Vec<i32> = lock(&self.threads).known.iter().map(|(thread, _)| *thread).collect();
        let waited = |thread: i32| Some(scheduled(&format!("/proc/self/task/{thread}"))?.1);
        let told: Vec<(i32, Option<u64>)> =
            known.into_iter().map(|thread| (thread, waited(thread))).collect();
        let waited_ns = lock(&self.threads).waited(&told);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// ADR 37: what a thread waited before it worked for the transfer is none of its waiting, nor does one that ends take anything from what the others wait.
    #[test]
    fn a_thread_waits_from_when_it_is_known() {
        let mut threads = Threads::default();
        assert!(threads.enter(1) && threads.enter(2));
        assert_eq!(threads.waited(&[(1, Some(1000)), (2, Some(50))]), 0);
        assert_eq!(threads.waited(&[(1, Some(1007)), (2, Some(60))]), 17);
        assert!(threads.enter(3));
        assert_eq!(
            threads.waited(&[(1, None), (2, Some(61)), (3, Some(9_000_000))]),
            18,
            "a newcomer's past"
        );
        assert_eq!(threads.waited(&[(2, Some(62)), (3, Some(9_000_001)), (4, Some(5))]), 20);
        // Another thread has its number.
        assert_eq!(threads.waited(&[(2, Some(3)), (3, Some(9_000_001))]), 20);
        assert_eq!(threads.waited(&[(2, Some(5))]), 22);
        assert_eq!(threads.known, [(2, Some(5)), (3, Some(9_000_001))]);
    }

    /// ADR 37: a thread is known once, however often it goes from one transfer to another and back; one for which there was no room is known when there is.
    #[test]
    fn a_thread_is_known_once() {
        let (one, other) = (Pressure::default(), Pressure::default());
        for _ in 0..3 {
            one.join();
            other.join();
        }
        assert_eq!([&one, &other].map(|pressure| lock(&pressure.threads).known.len()), [1, 1]);
        let full = Pressure::default();
        // No thread has such a number.
        lock(&full.threads).known = (1..=THREADS_MAX as i32).map(|number| (-number, None)).collect();
        full.join();
        assert_eq!(lock(&full.threads).known.len(), THREADS_MAX);
        if full.reading().is_some() {
            full.join();
            let me = rustix::thread::gettid().as_raw_nonzero().get();
            assert_eq!(lock(&full.threads).known, [(me, None)]);
        }
    }
}
