//! The object that is sent, and what a node has of it on its disk.

use std::sync::{Arc, OnceLock};

use dray_core::hash_tree::{Collector, Geometry, MemoryPairs, Subtree};
use dray_core::limits::{GROUP_BYTES, UNIT_GROUPS};
use dray_core::range::RangeSet;
use dray_core::{Oid, Result};

use super::network::Piece;
use crate::sample;

/// Bytes that objects are cut from: made once, as making them costs more than hashing them.
const POOL_BYTES: usize = 72 << 20;

/// The object of a run.
pub(crate) struct Object {
    pool: &'static [u8],
    start: usize,
    pub(crate) geometry: Geometry,
    pub(crate) oid: Oid,
    /// Its outboard.
    pub(crate) pairs: Arc<MemoryPairs>,
}

impl Object {
    /// `size_bytes` bytes that depend on `seed`; up to 64 MiB.
    pub(crate) fn new(size_bytes: u64, seed: u64) -> Result<Object> {
        static POOL: OnceLock<Vec<u8>> = OnceLock::new();
        let pool = POOL.get_or_init(|| sample::bytes(POOL_BYTES, 6));
        let size = (size_bytes as usize).min(64 << 20);
        let start = seed as usize % (POOL_BYTES - (64 << 20));
        let geometry = Geometry::new(size as u64);
        let data = &pool[start..start + size];
        let collector = Collector::new(geometry, MemoryPairs::new(geometry)?);
        for unit in 0..geometry.units() {
            collector.record_unit(unit, &sample::unit_leaves(geometry, unit, data))?;
        }
        let oid = collector.finish()?;
        let pairs = Arc::new(MemoryPairs::from(collector.pairs().to_vec()));
        Ok(Object { pool, start, geometry, oid, pairs })
    }

    pub(crate) fn bytes(&self, offset: u64, len: u64) -> &'static [u8] {
        let start = self.start + offset as usize;
        &self.pool[start..start + len as usize]
    }

    /// The bytes of a piece of a stream.
    pub(crate) fn bytes_of(&self, piece: &Piece) -> Vec<u8> {
        match piece {
            Piece::Bytes(bytes) => bytes.clone(),
            Piece::Data { offset, len } => self.bytes(*offset, *len).to_vec(),
            Piece::End => Vec::new(),
        }
    }
}

/// One group as it was put together from a stream.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// The object's own bytes at this offset, so many of them.
    Own { offset: u64, len: u64 },
    /// Whatever came.
    Other(Vec<u8>),
}

impl Group {
    pub(crate) fn empty() -> Group {
        Group::Other(Vec::new())
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Group::Own { len, .. } => *len,
            Group::Other(bytes) => bytes.len() as u64,
        }
    }

    /// Adds what came next.
    pub(crate) fn add(&mut self, object: &Object, piece: &Piece) {
        match (&mut *self, piece) {
            (Group::Own { offset, len }, Piece::Data { offset: next, len: more })
                if *offset + *len == *next =>
            {
                *len += *more;
            }
            (Group::Other(bytes), Piece::Data { offset, len }) if bytes.is_empty() => {
                *self = Group::Own { offset: *offset, len: *len };
            }
            _ => {
                let mut bytes = self.bytes(object).to_vec();
                bytes.extend_from_slice(&object.bytes_of(piece));
                *self = Group::Other(bytes);
            }
        }
    }

    pub(crate) fn bytes<'a>(&'a self, object: &'a Object) -> &'a [u8] {
        match self {
            Group::Own { offset, len } => object.bytes(*offset, *len),
            Group::Other(bytes) => bytes,
        }
    }
}

/// What a node has of the object: which groups were written, which units are marked as done, and what of it a loss of power
/// would leave.
pub(crate) struct Stored {
    pub(crate) pairs: Arc<MemoryPairs>,
    /// Groups written and right.
    pub(crate) groups: RangeSet,
    /// Units marked, and those that a checkpoint has made durable.
    pub(crate) marked: RangeSet,
    pub(crate) durable: RangeSet,
    durable_pairs: Vec<u8>,
    /// Units that the running checkpoint will call durable, with the pairs of that moment.
    pending: Option<(RangeSet, Vec<u8>)>,
    /// Groups ever written, over all runs of the process.
    pub(crate) written_groups: u64,
}

impl Stored {
    pub(crate) fn new(geometry: Geometry) -> Result<Stored> {
        let pairs = Arc::new(MemoryPairs::new(geometry)?);
        Ok(Stored {
            durable_pairs: pairs.to_vec(),
            pairs,
            groups: RangeSet::new(),
            marked: RangeSet::new(),
            durable: RangeSet::new(),
            pending: None,
            written_groups: 0,
        })
    }

    /// Writes a group that was handed on as right. An error if it is not, or was there.
    pub(crate) fn write(
        &mut self,
        object: &Object,
        group: u64,
        bytes: &Group,
    ) -> std::result::Result<(), String> {
        let range = object.geometry.byte_range(Subtree { start: group, groups: 1 });
        let is_own = matches!(bytes, Group::Own { offset, len }
            if *offset == range.start && *len == range.end - range.start);
        if !is_own && bytes.bytes(object) != object.bytes(range.start, range.end - range.start) {
            return Err(format!("wrong bytes of group {group} were written"));
        }
        if self.groups.insert(group..group + 1) == 0 {
            return Err(format!("group {group} was written twice by one process"));
        }
        self.written_groups += 1;
        Ok(())
    }

    pub(crate) fn mark(&mut self, unit: u64) {
        self.marked.insert(unit..unit + 1);
    }

    /// A checkpoint begins, unless one runs or nothing is new.
    pub(crate) fn begin_checkpoint(&mut self) -> bool {
        if self.pending.is_some() || self.marked.count() == self.durable.count() {
            return false;
        }
        self.pending = Some((self.marked.clone(), self.pairs.to_vec()));
        true
    }

    pub(crate) fn end_checkpoint(&mut self) {
        if let Some((units, pairs)) = self.pending.take() {
            self.durable = units;
            self.durable_pairs = pairs;
        }
    }

    /// The process ended: what is not marked will be fetched again.
    pub(crate) fn lose_process(&mut self) {
        self.pending = None;
        self.groups = RangeSet::new();
        for units in self.marked.iter() {
            self.groups.insert(units.start * UNIT_GROUPS..units.end * UNIT_GROUPS);
        }
    }

    /// The machine lost its power: only what is durable is left.
    pub(crate) fn lose_power(&mut self) {
        self.marked = self.durable.clone();
        self.pairs = Arc::new(MemoryPairs::from(self.durable_pairs.clone()));
        self.lose_process();
    }

    /// True if every group is there.
    pub(crate) fn is_whole(&self, geometry: Geometry) -> bool {
        self.groups.contains_range(0..geometry.groups())
    }
}

/// Where a group begins.
pub(crate) fn offset_of(group: u64) -> u64 {
    group * GROUP_BYTES
}

#[cfg(test)]
mod tests {
    use dray_core::hash_tree::PairStore;

    use super::*;

    /// S2, S4: what is written is held to the object, and to what is there.
    #[test]
    fn wrong_bytes_and_what_comes_twice_are_found() {
        let object = Object::new(3 * GROUP_BYTES, 1).unwrap();
        let mut stored = Stored::new(object.geometry).unwrap();
        let own = |group: u64| Group::Own { offset: group * GROUP_BYTES, len: GROUP_BYTES };
        stored.write(&object, 0, &own(0)).unwrap();
        assert!(stored.write(&object, 0, &own(0)).unwrap_err().contains("written twice"));
        assert!(stored.write(&object, 1, &own(2)).unwrap_err().contains("wrong bytes"));
        let mut bytes = object.bytes(GROUP_BYTES, GROUP_BYTES).to_vec();
        stored.write(&object, 1, &Group::Other(bytes.clone())).unwrap();
        bytes[7] ^= 1;
        assert!(stored.write(&object, 2, &Group::Other(bytes)).unwrap_err().contains("wrong bytes"));
        assert_eq!(stored.written_groups, 2);
    }

    /// S17: a checkpoint makes durable what was marked when it began, not what was marked while it ran; one at a time, and only if there is
    /// something new.
    #[test]
    fn a_checkpoint_is_of_when_it_began() {
        let geometry = Geometry::new(3 * UNIT_GROUPS * GROUP_BYTES);
        let mut stored = Stored::new(geometry).unwrap();
        assert!(!stored.begin_checkpoint(), "nothing is marked");
        stored.mark(0);
        stored.pairs.write_at(0, &[1]).unwrap();
        assert!(stored.begin_checkpoint());
        stored.mark(1);
        stored.pairs.write_at(1, &[2]).unwrap();
        assert!(!stored.begin_checkpoint(), "one runs");
        stored.end_checkpoint();
        stored.lose_process();
        assert_eq!(stored.groups.count(), 2 * UNIT_GROUPS);
        assert_eq!(stored.pairs.to_vec()[..3], [1, 2, 0]);
        stored.lose_power();
        assert_eq!(stored.pairs.to_vec()[..3], [1, 0, 0]);
        assert_eq!((stored.marked.count(), stored.groups.count()), (1, UNIT_GROUPS));
        assert!(!stored.begin_checkpoint(), "all of it is durable");
    }
}
