//! What the planner is held to: every request it made, every group it took, and the greatest of each figure.

use std::collections::{BTreeMap, BTreeSet};

use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::UNIT_BYTES;
use dray_core::permit::Budget;
use dray_core::range::RangeSet;
use dray_core::source::RequestId;

/// What the planner is held to.
pub(super) struct Ledger {
    pub(super) geometry: Geometry,
    pub(super) budget: Budget,
    pub(super) wanted_units: RangeSet,
    pub(super) delivered: BTreeSet<u64>,
    pub(super) wanted_groups: u64,
    pub(super) issued: BTreeMap<RequestId, Issued>,
    /// Those of `issued` that have not ended.
    pub(super) open: BTreeSet<RequestId>,
    pub(super) consumed_units: u64,
    pub(super) last_delivery_us: u64,
    pub(super) delivered_groups: Vec<u64>,
    pub(super) discarded_groups: Vec<u64>,
    pub(super) repeated_groups: Vec<u64>,
    pub(super) resent_groups: Vec<u64>,
    pub(super) last_repeat_us: u64,
    pub(super) last_first_up_us: u64,
    pub(super) outstanding_bytes: Vec<u64>,
    pub(super) outstanding_bytes_max: Vec<u64>,
    pub(super) requests_max: Vec<usize>,
    pub(super) reserved_bytes_max: u64,
}

pub(super) struct Issued {
    pub(super) source: usize,
    pub(super) groups: Subtree,
    pub(super) next_group: u64,
    pub(super) outstanding_bytes: u64,
    /// Neither cancelled nor ended, as far as can be seen from outside.
    pub(super) is_live: bool,
}

impl Ledger {
    /// A wanted unit that may be asked for now and that nobody is asked for.
    pub(super) fn unassigned_unit(&self, sequential_bytes: Option<u64>) -> Option<u64> {
        let mut end = self.geometry.units();
        if let Some(window_bytes) = sequential_bytes {
            end = end.min(self.consumed_units + (window_bytes / UNIT_BYTES).max(1));
        }
        let mut wanted = self.wanted_units.iter().flatten().take_while(|unit| *unit < end);
        wanted.find(|unit| {
            let span = self.geometry.unit(*unit);
            let is_owed = |group: &u64| {
                self.open
                    .iter()
                    .map(|open| &self.issued[open])
                    .any(|entry| entry.is_live && (entry.groups.start..entry.groups.end()).contains(group))
            };
            (span.start..span.end()).any(|group| !self.delivered.contains(&group) && !is_owed(&group))
        })
    }

    pub(super) fn end_live(&mut self, request: RequestId) {
        if let Some(entry) = self.issued.get_mut(&request) {
            entry.is_live = false;
        }
    }

    pub(super) fn end(&mut self, request: RequestId) {
        self.open.remove(&request);
        if let Some(entry) = self.issued.get_mut(&request) {
            entry.is_live = false;
            entry.next_group = entry.groups.end();
            self.outstanding_bytes[entry.source] -= std::mem::take(&mut entry.outstanding_bytes);
        }
    }

    pub(super) fn end_all(&mut self, source: usize) {
        let of_source: Vec<RequestId> =
            self.open.iter().copied().filter(|request| self.issued[request].source == source).collect();
        for request in of_source {
            self.end(request);
        }
    }
}
