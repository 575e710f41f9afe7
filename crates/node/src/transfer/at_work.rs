//! Whose bytes this end is storing, which may take long: the source is not silent then, it is not listened to.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dray_core::source::SourceId;

use crate::lock;

/// For each source of which bytes are being stored, by how many threads.
#[derive(Default)]
pub(super) struct AtWork(Mutex<BTreeMap<SourceId, usize>>);

impl AtWork {
    /// The calling thread stores bytes of `source` until the result is dropped.
    pub(super) fn begin(&self, source: SourceId) -> Storing<'_> {
        *lock(&self.0).entry(source).or_default() += 1;
        Storing { at_work: self, source }
    }

    /// Those of which bytes are being stored.
    pub(super) fn sources(&self) -> Vec<SourceId> {
        lock(&self.0).keys().copied().collect()
    }
}

/// See [`AtWork::begin`].
pub(super) struct Storing<'a> {
    at_work: &'a AtWork,
    source: SourceId,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let mut counts = lock(&self.at_work.0);
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}
