//! What this transfer itself has to do: as long as there is any of it, a search of the disk waits (Y5, design 7).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dray_core::source::Source;

use crate::lock;

/// What is under way of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Writes that are under way or wait, and reads of what is copied or cut.
    works: AtomicUsize,
    sources: Mutex<Vec<Weak<dyn Source>>>,
}

/// One thing that is under way.
#[derive(Debug)]
pub(crate) struct Working<'a>(&'a Pressure);

impl Pressure {
    /// Something was begun that reads or writes the disk; over when this is dropped.
    pub(crate) fn begin(&self) -> Working<'_> {
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
