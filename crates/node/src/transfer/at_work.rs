//! Whose bytes this end is storing, which may take long: the source is not silent then, it is not listened to.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dray_core::source::{SourceEvent, SourceId};

use crate::lock;

/// For each source of which something was ever stored, how many threads do so now.
#[derive(Default)]
pub(super) struct AtWork(Mutex<BTreeMap<SourceId, usize>>);

impl AtWork {
    /// The calling thread takes `event` of `source` until the result is dropped; `None` if nothing of it is read or written here, with a disk as slow as it may be.
    pub(super) fn begin_with(&self, source: SourceId, event: &SourceEvent<'_>) -> Option<Storing<'_>> {
        match event {
            SourceEvent::Parents { .. } | SourceEvent::Group { .. } | SourceEvent::Rest { .. } => {
                *lock(&self.0).entry(source).or_default() += 1;
                Some(Storing { at_work: self, source })
            }
            _ => None,
        }
    }

    /// Those of which bytes are being stored.
    pub(super) fn sources(&self) -> Vec<SourceId> {
        lock(&self.0).iter().filter(|(_, threads)| **threads > 0).map(|(&source, _)| source).collect()
    }
}

/// See [`AtWork::begin_with`].
pub(super) struct Storing<'a> {
    at_work: &'a AtWork,
    source: SourceId,
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        if let Some(threads) = lock(&self.at_work.0).get_mut(&self.source) {
            *threads -= 1;
        }
    }
}
