//! What the planner is held to: every request it made, every group it took, and the greatest of each figure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::GROUP_BYTES;
use dray_core::permit::Budget;
use dray_core::range::RangeSet;
use dray_core::source::RequestId;

/// What the planner is held to.
pub(super) struct Ledger {
    pub(super) geometry: Geometry,
    /// Groups of a piece.
    pub(super) piece_groups: u64,
    pub(super) budget: Budget,
    /// Pieces that are wanted by now.
    pub(super) wanted_pieces: RangeSet,
    pub(super) delivered: BTreeSet<u64>,
    pub(super) wanted_groups: u64,
    pub(super) issued: BTreeMap<RequestId, Issued>,
    /// Those of `issued` that have not ended.
    pub(super) open: BTreeSet<RequestId>,
    pub(super) consumed_pieces: u64,
    pub(super) last_delivery_us: u64,
    pub(super) delivered_groups: Vec<u64>,
    pub(super) discarded_groups: Vec<u64>,
    pub(super) repeated_groups: Vec<u64>,
    pub(super) resent_groups: Vec<u64>,
    pub(super) last_repeat_us: u64,
    /// How far into one request that was made since the last new group repeated groups have come.
    pub(super) repeated_far: u64,
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
    pub(super) issued_us: u64,
    /// Neither cancelled nor ended, as far as can be seen from outside.
    pub(super) is_live: bool,
}

impl Ledger {
    /// Pieces of the object.
    pub(super) fn pieces(&self) -> u64 {
        self.geometry.groups().div_ceil(self.piece_groups)
    }

    /// Bytes of a piece, the last one excepted.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.piece_groups * GROUP_BYTES
    }

    /// Groups of a piece.
    pub(super) fn groups_of(&self, piece: u64) -> Range<u64> {
        piece * self.piece_groups..((piece + 1) * self.piece_groups).min(self.geometry.groups())
    }

    /// True if every group of the piece was delivered.
    pub(super) fn has_piece(&self, piece: u64) -> bool {
        let groups = self.groups_of(piece);
        self.delivered.range(groups.clone()).count() as u64 == groups.end - groups.start
    }

    /// Wants `pieces`, which lie behind everything that was wanted.
    pub(super) fn want(&mut self, pieces: Range<u64>) {
        for piece in pieces.start..pieces.end.min(self.pieces()) {
            let groups = self.groups_of(piece);
            self.wanted_groups += groups.end - groups.start;
            self.wanted_pieces.insert(piece..piece + 1);
        }
    }

    /// A wanted piece that may be asked for now and that nobody is asked for.
    pub(super) fn unassigned_piece(&self, sequential_bytes: Option<u64>) -> Option<u64> {
        let mut end = self.pieces();
        if let Some(window_bytes) = sequential_bytes {
            end = end.min(self.consumed_pieces + (window_bytes / self.piece_bytes()).max(1));
        }
        let mut wanted = self.wanted_pieces.iter().flatten().take_while(|piece| *piece < end);
        wanted.find(|piece| {
            let is_owed = |group: &u64| {
                self.open
                    .iter()
                    .map(|open| &self.issued[open])
                    .any(|entry| entry.is_live && (entry.groups.start..entry.groups.end()).contains(group))
            };
            self.groups_of(*piece).any(|group| !self.delivered.contains(&group) && !is_owed(&group))
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
