//! What is still to be fetched: which pieces are free to be asked for, which groups have been handed on, and which
//! subtree to ask for next. A piece is a unit, or fewer groups where little of the object is wanted. Memory is proportional to the number of gaps, never to the size of the object.

use std::ops::Range;

use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{GROUP_BYTES, REQUEST_GROUPS_MAX, UNIT_GROUPS};
use dray_core::range::RangeSet;

use super::DeliveryMode;

/// The wanted pieces on their way from pending to delivered.
#[derive(Debug)]
pub(super) struct Work {
    geometry: Geometry,
    /// Groups of a piece: a power of two up to [`UNIT_GROUPS`].
    piece_groups: u64,
    /// Pieces nobody is asked for at the moment.
    pending: RangeSet,
    /// Groups handed on; of pieces that were wanted only.
    delivered: RangeSet,
    /// Pieces for which bytes came that did not match.
    suspect: RangeSet,
    /// Pieces that are asked for by themselves.
    alone: RangeSet,
    /// Groups that are wanted and not delivered.
    missing_groups: u64,
    /// Sequential mode: pieces the consumer is past, and how many after that may be asked for.
    consumed_pieces: u64,
    ahead_pieces: Option<u64>,
    /// Everything that is wanted lies before this piece.
    wanted_end: u64,
    /// More may be wanted.
    is_open: bool,
}

impl Work {
    /// The pieces `wanted`, and more to come if `is_open`.
    pub(super) fn new(
        geometry: Geometry,
        piece_groups: u64,
        delivery: DeliveryMode,
        wanted: RangeSet,
        is_open: bool,
    ) -> Work {
        let piece_groups = piece_groups.clamp(1, UNIT_GROUPS).next_power_of_two();
        let ahead_pieces = match delivery {
            DeliveryMode::OutOfOrder => None,
            DeliveryMode::Sequential { window_bytes } => {
                Some((window_bytes / (piece_groups * GROUP_BYTES)).max(1))
            }
        };
        let mut work = Work {
            geometry,
            piece_groups,
            missing_groups: 0,
            pending: RangeSet::new(),
            delivered: RangeSet::new(),
            suspect: RangeSet::new(),
            alone: RangeSet::new(),
            consumed_pieces: 0,
            ahead_pieces,
            wanted_end: 0,
            is_open,
        };
        wanted.iter().for_each(|pieces| work.want(pieces));
        work
    }

    /// Wants `pieces`, too, but for those that lie before the end of what was wanted.
    pub(super) fn want(&mut self, pieces: Range<u64>) {
        let pieces = pieces.start.max(self.wanted_end)..pieces.end.min(self.pieces());
        if pieces.is_empty() {
            return;
        }
        self.wanted_end = pieces.end;
        let groups = self.group_range(pieces.clone());
        self.missing_groups += groups.end - groups.start;
        self.pending.insert(pieces);
    }

    /// From here on, `piece` is asked for by itself.
    pub(super) fn set_alone(&mut self, piece: u64) {
        self.alone.insert(piece..piece + 1);
    }

    /// Nothing more will be wanted.
    pub(super) fn close(&mut self) {
        self.is_open = false;
    }

    /// True if every wanted group has been delivered, and no more will be wanted.
    pub(super) fn is_complete(&self) -> bool {
        self.missing_groups == 0 && !self.is_open
    }

    /// Bytes nobody is asked for yet, rounded up to whole pieces.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.count().saturating_mul(self.piece_bytes())
    }

    /// The lowest run of pieces that may be asked for now.
    pub(super) fn next_run(&self) -> Option<Range<u64>> {
        let Some(ahead) = self.ahead_pieces else { return self.pending.next_from(0) };
        // A piece the consumer is past was wanted and not delivered only if the consumer skipped it; it stays wanted.
        let run = self.pending.next_from(0)?;
        let end = run.end.min(self.consumed_pieces.saturating_add(ahead));
        (run.start < end).then_some(run.start..end)
    }

    /// The largest subtree at the lowest pending piece that is no larger than `pieces_max` pieces (at least one is
    /// taken), and whether the holder should check its copy first.
    pub(super) fn next_request(&self, pieces_max: u64) -> Option<(Subtree, bool)> {
        let mut run = self.next_run()?;
        // All of a request is suspect, or none of it.
        let recheck = match self.suspect.next_from(run.start) {
            Some(suspect) if suspect.start == run.start => {
                run.end = run.end.min(suspect.end);
                true
            }
            Some(suspect) => {
                run.end = run.end.min(suspect.start);
                false
            }
            None => false,
        };
        if let Some(alone) = self.alone.next_from(run.start) {
            run.end = run.end.min(alone.start.max(run.start + 1));
        }
        let mut slot_pieces = REQUEST_GROUPS_MAX / self.piece_groups;
        while slot_pieces > 1 {
            let end = (run.start + slot_pieces).min(self.pieces());
            if run.start.is_multiple_of(slot_pieces)
                && end <= run.end
                && end - run.start <= pieces_max
                && let Some(subtree) = self.subtree(run.start..end)
            {
                return Some((subtree, recheck));
            }
            slot_pieces /= 2;
        }
        Some((self.piece(run.start), recheck))
    }

    /// Marks the pieces of a subtree as asked for.
    pub(super) fn take(&mut self, groups: Subtree) {
        self.pending.remove(self.pieces_of(groups));
    }

    /// The pieces of a subtree are pending again, but for those of which every group is delivered or in `owed`.
    pub(super) fn give_back(&mut self, groups: Subtree, owed: &RangeSet) {
        for piece in self.pieces_of(groups) {
            if !self.has_piece(piece) && !self.is_cared_for(piece, owed) {
                self.pending.insert(piece..piece + 1);
            }
        }
    }

    /// True if every group of the piece is delivered or in `owed`.
    fn is_cared_for(&self, piece: u64, owed: &RangeSet) -> bool {
        let mut groups = self.group_range(piece..piece + 1);
        !owed.is_empty() && groups.all(|group| owed.contains(group) || self.delivered.contains(group))
    }

    /// The highest piece of `groups` that is neither delivered nor wholly delivered or in `owed`, as a subtree.
    pub(super) fn last_missing(&self, groups: Range<u64>, owed: &RangeSet) -> Option<Subtree> {
        let mut pieces = groups.start / self.piece_groups..groups.end.div_ceil(self.piece_groups);
        let piece = pieces.rfind(|piece| !self.has_piece(*piece) && !self.is_cared_for(*piece, owed))?;
        Some(self.piece(piece))
    }

    /// Groups of `groups` that are delivered.
    pub(super) fn delivered_of(&self, groups: Range<u64>) -> u64 {
        groups.filter(|group| self.delivered.contains(*group)).count() as u64
    }

    /// True if all of these groups are delivered.
    pub(super) fn has_groups(&self, groups: Range<u64>) -> bool {
        self.delivered.contains_range(groups)
    }

    /// Groups that are wanted and not delivered.
    pub(super) fn missing_groups(&self) -> u64 {
        self.missing_groups
    }

    /// Bytes of these pieces came that did not match; those delivered before were proven and are above suspicion.
    pub(super) fn suspect(&mut self, groups: Subtree) {
        for piece in self.pieces_of(groups) {
            if !self.has_piece(piece) {
                self.suspect.insert(piece..piece + 1);
            }
        }
    }

    /// Marks one group of a wanted piece as delivered; false if it was before.
    pub(super) fn deliver(&mut self, group: u64) -> bool {
        if self.delivered.insert(group..group + 1) == 0 {
            return false;
        }
        self.missing_groups = self.missing_groups.saturating_sub(1);
        let piece = group / self.piece_groups;
        if self.has_piece(piece) {
            self.suspect.remove(piece..piece + 1);
            // Its request may have been cancelled, and the last of it come all the same.
            self.pending.remove(piece..piece + 1);
        }
        true
    }

    /// The consumer is past the pieces `0..pieces`.
    pub(super) fn consume(&mut self, pieces: u64) {
        self.consumed_pieces = self.consumed_pieces.max(pieces);
    }

    /// True if the piece is delivered in full.
    fn has_piece(&self, piece: u64) -> bool {
        self.delivered.contains_range(self.group_range(piece..piece + 1))
    }

    fn subtree(&self, pieces: Range<u64>) -> Option<Subtree> {
        let groups = self.group_range(pieces);
        self.geometry.subtree(groups.start, groups.end - groups.start)
    }

    /// Pieces of the object.
    fn pieces(&self) -> u64 {
        self.geometry.groups().div_ceil(self.piece_groups)
    }

    /// Bytes of a piece, the last one excepted.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.piece_groups * GROUP_BYTES
    }

    /// A piece as a subtree: the last one may be shorter.
    fn piece(&self, piece: u64) -> Subtree {
        let groups = self.group_range(piece..piece + 1);
        Subtree { start: groups.start, groups: groups.end - groups.start }
    }

    /// Pieces of a subtree made of whole pieces.
    fn pieces_of(&self, groups: Subtree) -> Range<u64> {
        groups.start / self.piece_groups..groups.end().div_ceil(self.piece_groups)
    }

    fn group_range(&self, pieces: Range<u64>) -> Range<u64> {
        let [start, end] = [pieces.start, pieces.end].map(|piece| piece.saturating_mul(self.piece_groups));
        start..end.min(self.geometry.groups())
    }
}
