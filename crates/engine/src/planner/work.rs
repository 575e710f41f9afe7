//! What is still to be fetched: which units are free to be asked for, which groups have been handed on, and which
//! subtree to ask for next. Memory is proportional to the number of gaps, never to the size of the object.

use std::ops::Range;

use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{REQUEST_GROUPS_MAX, UNIT_BYTES, UNIT_GROUPS};
use dray_core::range::RangeSet;

use super::DeliveryMode;

/// The wanted units on their way from pending to delivered.
#[derive(Debug)]
pub(super) struct Work {
    geometry: Geometry,
    /// Units nobody is asked for at the moment.
    pending: RangeSet,
    /// Groups handed on; of units that were wanted only.
    delivered: RangeSet,
    /// Units for which bytes came that did not match.
    suspect: RangeSet,
    /// Groups that are wanted and not delivered.
    missing_groups: u64,
    /// Sequential mode: units the consumer is past, and how many after that may be asked for.
    consumed_units: u64,
    ahead_units: Option<u64>,
}

impl Work {
    pub(super) fn new(geometry: Geometry, delivery: DeliveryMode, mut wanted: RangeSet) -> Work {
        wanted.remove(geometry.units()..u64::MAX);
        let missing_groups = wanted.iter().map(|units| group_range(geometry, units)).map(|r| r.end - r.start);
        let ahead_units = match delivery {
            DeliveryMode::OutOfOrder => None,
            DeliveryMode::Sequential { window_bytes } => Some((window_bytes / UNIT_BYTES).max(1)),
        };
        Work {
            geometry,
            missing_groups: missing_groups.sum(),
            pending: wanted,
            delivered: RangeSet::new(),
            suspect: RangeSet::new(),
            consumed_units: 0,
            ahead_units,
        }
    }

    /// True if every wanted group has been delivered.
    pub(super) fn is_complete(&self) -> bool {
        self.missing_groups == 0
    }

    /// Bytes nobody is asked for yet, rounded up to whole units.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.count().saturating_mul(UNIT_BYTES)
    }

    /// The lowest run of units that may be asked for now.
    pub(super) fn next_run(&self) -> Option<Range<u64>> {
        let Some(ahead) = self.ahead_units else { return self.pending.next_from(0) };
        // A unit the consumer is past was wanted and not delivered only if the consumer skipped it; it stays wanted.
        let run = self.pending.next_from(0)?;
        let end = run.end.min(self.consumed_units.saturating_add(ahead));
        (run.start < end).then_some(run.start..end)
    }

    /// The largest subtree at the lowest pending unit that is no larger than `units_max` units (at least one is
    /// taken), and whether the holder should check its copy first.
    pub(super) fn next_request(&self, units_max: u64) -> Option<(Subtree, bool)> {
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
        let mut slot_units = REQUEST_GROUPS_MAX / UNIT_GROUPS;
        while slot_units > 1 {
            let end = (run.start + slot_units).min(self.geometry.units());
            if run.start.is_multiple_of(slot_units)
                && end <= run.end
                && end - run.start <= units_max
                && let Some(subtree) = self.subtree(run.start..end)
            {
                return Some((subtree, recheck));
            }
            slot_units /= 2;
        }
        Some((self.geometry.unit(run.start), recheck))
    }

    /// Marks the units of a subtree as asked for.
    pub(super) fn take(&mut self, groups: Subtree) {
        self.pending.remove(units_of(groups));
    }

    /// The units of a subtree are pending again, but for those of which every group is delivered or in `owed`.
    pub(super) fn give_back(&mut self, groups: Subtree, owed: &RangeSet) {
        for unit in units_of(groups) {
            if !self.has_unit(unit) && !self.is_cared_for(unit, owed) {
                self.pending.insert(unit..unit + 1);
            }
        }
    }

    /// True if every group of the unit is delivered or in `owed`.
    fn is_cared_for(&self, unit: u64, owed: &RangeSet) -> bool {
        let mut groups = group_range(self.geometry, unit..unit + 1);
        !owed.is_empty() && groups.all(|group| owed.contains(group) || self.delivered.contains(group))
    }

    /// The highest unit of `groups` that is neither delivered nor wholly delivered or in `owed`, as a subtree.
    pub(super) fn last_missing(&self, groups: Range<u64>, owed: &RangeSet) -> Option<Subtree> {
        let mut units = groups.start / UNIT_GROUPS..groups.end.div_ceil(UNIT_GROUPS);
        let unit = units.rfind(|unit| !self.has_unit(*unit) && !self.is_cared_for(*unit, owed))?;
        Some(self.geometry.unit(unit))
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

    /// Bytes of these units came that did not match; those delivered before were proven and are above suspicion.
    pub(super) fn suspect(&mut self, groups: Subtree) {
        for unit in units_of(groups) {
            if !self.has_unit(unit) {
                self.suspect.insert(unit..unit + 1);
            }
        }
    }

    /// Marks one group of a wanted unit as delivered; false if it was before.
    pub(super) fn deliver(&mut self, group: u64) -> bool {
        if self.delivered.insert(group..group + 1) == 0 {
            return false;
        }
        self.missing_groups = self.missing_groups.saturating_sub(1);
        let unit = group / UNIT_GROUPS;
        if self.has_unit(unit) {
            self.suspect.remove(unit..unit + 1);
            // Its request may have been cancelled, and the last of it come all the same.
            self.pending.remove(unit..unit + 1);
        }
        true
    }

    /// The consumer is past the units `0..units`.
    pub(super) fn consume(&mut self, units: u64) {
        self.consumed_units = self.consumed_units.max(units);
    }

    /// True if the unit is delivered in full.
    fn has_unit(&self, unit: u64) -> bool {
        self.delivered.contains_range(group_range(self.geometry, unit..unit + 1))
    }

    fn subtree(&self, units: Range<u64>) -> Option<Subtree> {
        let groups = group_range(self.geometry, units);
        self.geometry.subtree(groups.start, groups.end - groups.start)
    }
}

/// Units of a subtree made of whole units.
fn units_of(groups: Subtree) -> Range<u64> {
    groups.start / UNIT_GROUPS..groups.end().div_ceil(UNIT_GROUPS)
}

fn group_range(geometry: Geometry, units: Range<u64>) -> Range<u64> {
    units.start.saturating_mul(UNIT_GROUPS)..units.end.saturating_mul(UNIT_GROUPS).min(geometry.groups())
}
