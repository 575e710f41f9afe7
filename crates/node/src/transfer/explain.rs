//! What a transfer can tell of itself: the planner's view, over all rounds, with what crossed each source's sockets.

use std::collections::BTreeMap;

use dray_core::source::SourceId;
use dray_engine::planner::{Explanation, SourceExplanation, Standing};

use super::Transfer;
use crate::lock;

/// What was known at the end of an earlier round, and at the end of everything.
#[derive(Default)]
pub(super) struct Told {
    /// The planner of each round counts from zero.
    earlier: BTreeMap<SourceId, SourceExplanation>,
    earlier_duplicate_bytes: u64,
    /// What the planner did not see.
    causes: BTreeMap<SourceId, &'static str>,
    /// The last view before every source was closed.
    last: Option<Explanation>,
}

impl Transfer {
    /// Where everything stands: of a transfer that has ended, as it was before its sources were closed.
    pub(crate) fn explain(&self) -> Explanation {
        let told = lock(&self.told);
        match &told.last {
            Some(last) => last.clone(),
            None => self.explain_now(&told),
        }
    }

    /// What `source` did that the planner does not see.
    pub(super) fn note_cause(&self, source: SourceId, cause: &'static str) {
        lock(&self.told).causes.insert(source, cause);
    }

    /// Bytes that crossed the sockets of `source`, if it counts them.
    pub(crate) fn received_bytes(&self, source: SourceId) -> Option<u64> {
        lock(&self.sources).get(&source)?.received_bytes()
    }

    /// Keeps the present view: what follows is closing down.
    pub(crate) fn keep_last_words(&self) {
        let mut told = lock(&self.told);
        if told.last.is_none() {
            told.last = Some(self.explain_now(&told));
        }
    }

    /// Keeps what the planner knows before another one takes its place.
    pub(super) fn keep_round(&self) {
        let mut told = lock(&self.told);
        let Explanation { sources, duplicate_bytes, .. } = self.explain_now(&told);
        told.earlier = sources.into_iter().map(|source| (source.stats.source, source)).collect();
        told.earlier_duplicate_bytes = duplicate_bytes;
    }

    fn explain_now(&self, told: &Told) -> Explanation {
        let now_us = self.now_us();
        let mut now = lock(&self.planner).explain(now_us);
        now.duplicate_bytes += told.earlier_duplicate_bytes;
        for source in &mut now.sources {
            let Some(earlier) = told.earlier.get(&source.stats.source) else { continue };
            source.stats.delivered_bytes += earlier.stats.delivered_bytes;
            source.stats.discarded_bytes += earlier.stats.discarded_bytes;
            // The new planner was told that it is gone, and not why.
            if matches!(earlier.standing, Standing::Barred | Standing::Gone) {
                source.standing = earlier.standing;
                source.cause.clone_from(&earlier.cause);
            } else if source.cause.is_none() {
                source.cause.clone_from(&earlier.cause);
            }
        }
        for source in &mut now.sources {
            if let (None, Some(cause)) = (&source.cause, told.causes.get(&source.stats.source)) {
                source.cause = Some((*cause).to_owned());
            }
        }
        now.delivered_bytes = now.sources.iter().map(|source| source.stats.delivered_bytes).sum();
        for source in &mut now.sources {
            source.share = source.stats.delivered_bytes as f64 / now.delivered_bytes.max(1) as f64;
        }
        now
    }
}
