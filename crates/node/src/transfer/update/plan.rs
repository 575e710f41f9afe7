//! What an update does with each group of the object, in order: copy it, fetch it, or fill it at the end.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use dray_core::Result;
use dray_core::hash_tree::Geometry;
use dray_core::limits::{
    UNIT_BYTES, UNIT_GROUPS, UPDATE_DEFERRED_GROUPS_MAX, UPDATE_FETCHED_CHUNKS_MAX, UPDATE_LACKING_GROUPS_MAX,
};
use dray_core::range::RangeSet;
use dray_core::recipe::PlacedChunk;

use super::gaps::Gaps;
use super::late::{Late, LatePart};
use super::{ChunkKey, Known, Spot, chunk_key, interrupted};
use crate::elsewhere::Finder;
use crate::looking::Gap;
use crate::search::Pressure;

/// Where the bytes of a part of a group come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The older version, from this byte on.
    Old(u64),
    /// Another file, from this byte on.
    Elsewhere(Spot),
    /// The object itself, from this byte on, once it has come.
    New(u64),
    /// A source.
    Missing,
}

impl Origin {
    /// The same for whoever must not hear what a search of the disk found: a sender that is asked for what lies between chunks would learn of
    /// files that it should know nothing of (design 16).
    pub(super) fn without_disk(self) -> Origin {
        match self {
            Origin::Elsewhere(Spot { by: Finder::Disk | Finder::Cached, .. }) => Origin::Missing,
            origin => origin,
        }
    }

    /// The same, so many bytes later.
    pub(super) fn after(self, bytes: u64) -> Origin {
        match self {
            Origin::Old(offset) => Origin::Old(offset + bytes),
            Origin::Elsewhere(spot) => {
                Origin::Elsewhere(Spot { offset: spot.offset.saturating_add(bytes), ..spot })
            }
            Origin::New(offset) => Origin::New(offset + bytes),
            Origin::Missing => Origin::Missing,
        }
    }
}

/// Parts of a group in order: bytes, and where they come from.
pub(super) type Parts = Vec<(u32, Origin)>;

/// Where groups go that can be copied, and what ends the wait for room there.
pub(super) struct Copies<'a> {
    pub(super) sender: SyncSender<(u64, Parts)>,
    pub(super) over: &'a (dyn Fn() -> bool + Sync),
    /// Counts them until they are copied.
    pub(super) pressure: &'a Pressure,
}

/// Sorts the groups of the object, in order, into those to copy, those to fetch and those to fill later.
pub(super) struct Plan<'a> {
    geometry: Geometry,
    wanted_units: &'a RangeSet,
    /// Hears what to fetch, in ascending order.
    tell: &'a dyn Fn(Range<u64>),
    /// The group under way, and what is known of it.
    group: u64,
    parts: Parts,
    filled: u64,
    /// Groups before this one are fetched whatever the recipe says.
    probed: u64,
    /// Where chunks that must be fetched lie first.
    fetched: HashMap<ChunkKey, u64>,
    deferred: Vec<(u64, Parts)>,
    /// Groups of which something must be fetched, until it is known how little of them.
    lacking: Vec<(u64, Parts)>,
    holds_back: bool,
    gaps: Gaps,
    /// Where the next chunk begins.
    placed: u64,
    /// Groups to fetch that have not been told.
    untold: Option<Range<u64>>,
    /// Groups that were told and may be found here yet, and what is known of the one under way.
    pub(super) late: Late,
    late_parts: Vec<LatePart>,
}

impl<'a> Plan<'a> {
    /// For the units wanted of an object; `tell` hears which groups to fetch, in ascending order.
    pub(super) fn new(
        geometry: Geometry,
        wanted_units: &'a RangeSet,
        tell: &'a dyn Fn(Range<u64>),
    ) -> Plan<'a> {
        Plan {
            geometry,
            wanted_units,
            tell,
            group: 0,
            parts: Vec::new(),
            filled: 0,
            probed: 0,
            fetched: HashMap::new(),
            deferred: Vec::new(),
            lacking: Vec::new(),
            holds_back: false,
            gaps: Gaps::default(),
            placed: 0,
            untold: None,
            late: Late::default(),
            late_parts: Vec::new(),
        }
    }

    /// Holds back groups of which something must be fetched, for whoever asks for them with [`Plan::take_lacking`].
    pub(super) fn hold_back(&mut self) {
        self.holds_back = true;
    }

    /// Wants the first groups that nothing is known of, `count` at most, whatever the recipe will say; how many those are.
    pub(super) fn probe(&mut self, count: u64) -> u64 {
        let first = self.probed.max(self.group);
        let Some(units) = self.wanted_units.next_from(first / UNIT_GROUPS) else { return 0 };
        let start = first.max(units.start * UNIT_GROUPS);
        let end = start.saturating_add(count).min(units.end * UNIT_GROUPS).min(self.geometry.groups());
        if start >= end {
            return 0;
        }
        self.probed = end;
        self.want(start..end);
        self.tell();
        end - start
    }

    /// Whether something of the chunk is to come: the rest of it may be here from an earlier run.
    pub(super) fn wants(&self, placed: &PlacedChunk) -> bool {
        let end = placed.offset.saturating_add(u64::from(placed.chunk.len));
        let units = placed.offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES);
        self.wanted_units.next_from(units.start).is_some_and(|wanted| wanted.start < units.end)
    }

    /// Takes the next chunk of the object; `elsewhere` is what other files have.
    pub(super) fn place(
        &mut self,
        placed: PlacedChunk,
        known: &Known,
        elsewhere: &HashMap<ChunkKey, Spot>,
        copies: &Copies<'_>,
    ) -> Result<()> {
        let key = chunk_key(&placed.chunk);
        let origin = match (
            known.offset_near(&key, self.gaps.expected(placed.offset)),
            elsewhere.get(&key),
            self.fetched.get(&key),
        ) {
            (Some(offset), ..) => Origin::Old(offset),
            // Zeros cost nothing, and whoever has them knows whether they are a hole.
            (None, ..) if key == known.zeros => Origin::Missing,
            (None, Some(spot), _) => Origin::Elsewhere(*spot),
            (None, None, Some(offset)) => Origin::New(*offset),
            (None, None, None) => {
                if self.fetched.len() < UPDATE_FETCHED_CHUNKS_MAX {
                    self.fetched.insert(key, placed.offset);
                }
                Origin::Missing
            }
        };
        let (mut taken, len) = (0, u64::from(placed.chunk.len));
        self.gaps.push(placed.offset, len, origin.without_disk());
        self.placed = placed.offset + len;
        while taken < len {
            let group_bytes = self.geometry.group_bytes(self.group) as u64;
            let part = (group_bytes - self.filled).min(len - taken);
            self.push(part as u32, origin.after(taken));
            if self.late.is_kept() {
                self.late_parts.push(match origin {
                    Origin::Old(_) | Origin::Elsewhere(_) => LatePart::Here(part as u32, origin.after(taken)),
                    Origin::New(_) | Origin::Missing => LatePart::Wanted(part as u32, key, taken),
                });
            }
            self.filled += part;
            taken += part;
            if self.filled == group_bytes {
                self.end_group(copies)?;
            }
        }
        Ok(())
    }

    /// Adds a part to the group under way; what goes on where the last one ended is one with it.
    fn push(&mut self, len: u32, origin: Origin) {
        match self.parts.last_mut() {
            Some((before, last)) if last.after(u64::from(*before)) == origin => *before += len,
            _ => self.parts.push((len, origin)),
        }
    }

    fn end_group(&mut self, copies: &Copies<'_>) -> Result<()> {
        let (group, mut parts) = (self.group, std::mem::take(&mut self.parts));
        let late_parts = std::mem::take(&mut self.late_parts);
        self.group += 1;
        self.filled = 0;
        if !self.wanted_units.contains(group / UNIT_GROUPS) {
            return Ok(());
        }
        if group < self.probed {
            self.late.add(group, late_parts);
            return Ok(());
        }
        let comes_from = |which: fn(&Origin) -> bool| parts.iter().any(|(_, origin)| which(origin));
        let is_deferred = comes_from(|origin| matches!(origin, Origin::New(_)));
        let is_missing = comes_from(|origin| matches!(origin, Origin::Missing));
        if is_missing || is_deferred && self.deferred.len() >= UPDATE_DEFERRED_GROUPS_MAX {
            self.late.add(group, late_parts);
            if self.holds_back {
                parts.shrink_to_fit();
                self.lacking.push((group, parts));
            } else {
                self.want(group..group + 1);
            }
        } else if is_deferred {
            parts.shrink_to_fit();
            self.deferred.push((group, parts));
        } else {
            let mut job = (group, parts);
            copies.pressure.enqueue();
            // The planner hears what there is while the copying catches up.
            while let Err(TrySendError::Full(back)) = copies.sender.try_send(job) {
                if (copies.over)() {
                    copies.pressure.done();
                    return Err(interrupted());
                }
                self.tell();
                job = back;
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// True if enough is held back to look closely at it.
    pub(super) fn lacks_enough(&self) -> bool {
        self.lacking.len() >= UPDATE_LACKING_GROUPS_MAX
    }

    /// True if something is held back.
    pub(super) fn lacks_some(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// The groups that were held back, and what of the object the older version has not, as far as both are known.
    pub(super) fn take_lacking(&mut self) -> (Vec<(u64, Parts)>, Vec<Gap>) {
        (std::mem::take(&mut self.lacking), self.gaps.take(self.placed))
    }

    /// From here on, nothing is held back: there is nothing to be learned by looking closely.
    pub(super) fn hold_nothing_back(&mut self) {
        self.holds_back = false;
    }

    /// Wants one of those.
    pub(super) fn want_group(&mut self, group: u64) {
        self.want(group..group + 1);
    }

    /// Wants what is held back whole: what is told ascends, so nothing that comes later may be wanted before.
    fn want_lacking(&mut self) {
        for (group, _) in std::mem::take(&mut self.lacking) {
            self.add(group..group + 1);
        }
    }

    fn want(&mut self, groups: Range<u64>) {
        self.want_lacking();
        self.add(groups);
    }

    fn add(&mut self, groups: Range<u64>) {
        match &mut self.untold {
            Some(untold) if untold.end == groups.start => untold.end = groups.end,
            _ => {
                self.tell();
                self.untold = Some(groups);
            }
        }
    }

    /// Says what to fetch as far as that is known.
    pub(super) fn tell(&mut self) {
        if let Some(groups) = self.untold.take() {
            (self.tell)(groups);
        }
    }

    /// The recipe has been read.
    pub(super) fn finish(&mut self, copies: &Copies<'_>) -> Result<()> {
        if self.filled > 0 {
            self.end_group(copies)?;
        }
        self.tell();
        Ok(())
    }

    /// Wants everything that the recipe did not tell of; returns the groups to fill when all this is there, and those that may be found yet.
    pub(super) fn want_rest(mut self) -> (Vec<(u64, Parts)>, Late) {
        self.want_lacking();
        self.tell();
        let groups = self.geometry.groups();
        let mut rest = self.group.max(self.probed);
        while rest < groups {
            let unit = rest / UNIT_GROUPS;
            let end = ((unit + 1) * UNIT_GROUPS).min(groups);
            if self.wanted_units.contains(unit) {
                self.want(rest..end);
            }
            rest = end;
        }
        self.tell();
        (self.deferred, self.late)
    }
}
