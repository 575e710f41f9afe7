//! Computing the tree: group values, subtrees, and the root of an object whose groups arrive in any order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::{Geometry, Subtree};
use crate::limits::{GROUP_BYTES, UNIT_GROUPS};
use crate::{Error, ErrorKind, Oid, Result};

/// Bytes of one pair of chaining values.
pub const PAIR_BYTES: usize = 64;

/// Chaining value of a subtree; of the whole object it is the hash itself.
pub type Cv = [u8; 32];

/// Where the pairs of an outboard rest: a file, memory. Indices are those of [`Subtree::pair_index`]. Writes to
/// different places may come from several threads at once.
pub trait PairStore: Send + Sync {
    /// Fills `out` (a multiple of 64 bytes) with the pairs from `first_index` on.
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()>;
    /// Writes `bytes` at byte `offset` of the outboard; half a pair is allowed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl<T: PairStore + ?Sized> PairStore for &T {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        (**self).read_pairs(first_index, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        (**self).write_at(offset, bytes)
    }
}

impl<T: PairStore + ?Sized> PairStore for std::sync::Arc<T> {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        (**self).read_pairs(first_index, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        (**self).write_at(offset, bytes)
    }
}

/// An outboard in memory.
#[derive(Debug)]
pub struct MemoryPairs(Mutex<Vec<u8>>);

impl MemoryPairs {
    /// A zeroed outboard for `geometry`, 1/1024 of the object. `NoSpace` if there is no memory for it.
    pub fn new(geometry: Geometry) -> Result<MemoryPairs> {
        let needed = geometry.outboard_bytes();
        let mut bytes = Vec::new();
        let reserved = usize::try_from(needed).is_ok_and(|needed| bytes.try_reserve_exact(needed).is_ok());
        if !reserved {
            let what = format!("no memory for the hash tree of the object ({needed} bytes)");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        bytes.resize(needed as usize, 0);
        Ok(MemoryPairs(Mutex::new(bytes)))
    }

    /// A copy of the whole outboard.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Vec<u8>> for MemoryPairs {
    fn from(bytes: Vec<u8>) -> MemoryPairs {
        MemoryPairs(Mutex::new(bytes))
    }
}

fn span(offset: u64, len: usize, have: usize) -> Result<std::ops::Range<usize>> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| Some(start..start.checked_add(len)?))
        .filter(|range| range.end <= have)
        .ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("outboard of {have} bytes has no byte {offset}+{len}"))
        })
}

impl PairStore for MemoryPairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let bytes = self.bytes();
        let range = span(first_index * PAIR_BYTES as u64, out.len(), bytes.len())?;
        out.copy_from_slice(&bytes[range]);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut bytes = self.bytes();
        let range = span(offset, data.len(), bytes.len())?;
        bytes[range].copy_from_slice(data);
        Ok(())
    }
}

/// Chaining value of group `group`, whose bytes are `bytes`. For an object of one group it is the root hash.
pub fn group_cv(geometry: Geometry, group: u64, bytes: &[u8]) -> Cv {
    debug_assert_eq!(bytes.len(), geometry.group_bytes(group));
    if geometry.groups() == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(group * GROUP_BYTES);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// Value of the parent of `left` and `right`.
pub(super) fn merge(left: &Cv, right: &Cv, is_root: bool) -> Cv {
    if is_root {
        *merge_subtrees_root(left, right, Mode::Hash).as_bytes()
    } else {
        merge_subtrees_non_root(left, right, Mode::Hash)
    }
}

/// Splits a pair of 64 bytes.
pub(super) fn halves(pair: &[u8]) -> (Cv, Cv) {
    let (mut left, mut right) = ([0; 32], [0; 32]);
    left.copy_from_slice(&pair[..32]);
    right.copy_from_slice(&pair[32..PAIR_BYTES]);
    (left, right)
}

/// The two values of the pair `pair`, and the value of their parent, which is the root of the tree or not.
pub fn open_pair(pair: &[u8; PAIR_BYTES], is_root: bool) -> (Cv, Cv, Cv) {
    let (left, right) = halves(pair);
    (left, right, merge(&left, &right, is_root))
}

/// The pairs, in post-order, and the value of the subtree `node` whose group values are `leaves`.
pub fn subtree_pairs(geometry: Geometry, node: Subtree, leaves: &[Cv]) -> (Vec<u8>, Cv) {
    debug_assert_eq!(leaves.len() as u64, node.groups);
    let mut pairs = Vec::with_capacity((leaves.len().max(1) - 1) * PAIR_BYTES);
    let cv = fold(node, leaves, node == geometry.root(), &mut pairs);
    (pairs, cv)
}

fn fold(node: Subtree, leaves: &[Cv], is_root: bool, pairs: &mut Vec<u8>) -> Cv {
    if let [leaf] = leaves {
        return *leaf;
    }
    let (left, right) = node.children();
    let (left_leaves, right_leaves) = leaves.split_at(left.groups as usize);
    let left_cv = fold(left, left_leaves, false, pairs);
    let right_cv = fold(right, right_leaves, false, pairs);
    pairs.extend_from_slice(&left_cv);
    pairs.extend_from_slice(&right_cv);
    merge(&left_cv, &right_cv, is_root)
}

/// The pairs a receiver needs to prove `node` when it knows the pairs of the first `known_depth` subtrees on the
/// path from the root: the rest of the path and then the interior, all in pre-order.
pub fn encode_parents(
    geometry: Geometry,
    node: Subtree,
    known_depth: usize,
    pairs: &dyn PairStore,
) -> Result<Vec<u8>> {
    let mut out = encode_path(geometry, node, known_depth, pairs)?;
    if node.groups >= 2 {
        let interior = usize::try_from(node.groups - 1)
            .ok()
            .filter(|count| *count < crate::limits::REQUEST_GROUPS_MAX as usize)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "request is larger than the limit"))?;
        let mut post_order = vec![0; interior * PAIR_BYTES];
        pairs.read_pairs(node.first_pair_index(), &mut post_order)?;
        pre_order(node, node.first_pair_index(), &post_order, &mut out);
    }
    Ok(out)
}

/// The first part of [`encode_parents`], the rest of the path alone: all that proves a `node` which is nothing but zeros.
pub fn encode_path(
    geometry: Geometry,
    node: Subtree,
    known_depth: usize,
    pairs: &dyn PairStore,
) -> Result<Vec<u8>> {
    let path = geometry.path(node);
    let above = &path[..path.len() - 1];
    let mut out = Vec::new();
    for ancestor in above.iter().skip(known_depth) {
        let mut pair = [0; PAIR_BYTES];
        pairs.read_pairs(ancestor.pair_index(), &mut pair)?;
        out.extend_from_slice(&pair);
    }
    Ok(out)
}

fn pre_order(node: Subtree, first_index: u64, post_order: &[u8], out: &mut Vec<u8>) {
    if node.groups < 2 {
        return;
    }
    let at = (node.pair_index() - first_index) as usize * PAIR_BYTES;
    out.extend_from_slice(&post_order[at..at + PAIR_BYTES]);
    let (left, right) = node.children();
    pre_order(left, first_index, post_order, out);
    pre_order(right, first_index, post_order, out);
}

/// Builds the outboard and the root of an object whose units are hashed in any order, by any number of threads.
///
/// Used by a put (all units, then [`Collector::finish`]), and by both ends of a transfer whose OID is not known yet:
/// each keeps the values of what it read or wrote and the roots are compared at the end (design decision 3).
#[derive(Debug)]
pub struct Collector<P> {
    geometry: Geometry,
    pairs: P,
    /// Value of the only group of a one-group object, which has no pair to hold it.
    single: Mutex<Option<Cv>>,
}

impl<P: PairStore> Collector<P> {
    /// Collects into `pairs`, which holds `geometry.outboard_bytes()`.
    pub fn new(geometry: Geometry, pairs: P) -> Collector<P> {
        Collector { geometry, pairs, single: Mutex::new(None) }
    }

    /// Where the pairs are.
    pub fn pairs(&self) -> &P {
        &self.pairs
    }

    /// Shape of the object.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Records the group values of one unit. Recording a unit again replaces it.
    pub fn record_unit(&self, unit: u64, leaves: &[Cv]) -> Result<()> {
        let node = self.geometry.unit(unit);
        let (pairs, cv) = subtree_pairs(self.geometry, node, leaves);
        if !pairs.is_empty() {
            self.pairs.write_at(node.first_pair_index() * PAIR_BYTES as u64, &pairs)?;
        }
        match self.slot(node) {
            Some(offset) => self.pairs.write_at(offset, &cv)?,
            None if node.groups == 1 => {
                *self.single() = Some(cv);
            }
            None => {}
        }
        Ok(())
    }

    fn single(&self) -> MutexGuard<'_, Option<Cv>> {
        self.single.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Byte offset in the outboard of the value of `node`: half of its parent's pair. The root has none.
    fn slot(&self, node: Subtree) -> Option<u64> {
        let path = self.geometry.path(node);
        let parent = path.len().checked_sub(2).map(|index| path[index])?;
        let half = if node.start == parent.start { 0 } else { 32 };
        Some(parent.pair_index() * PAIR_BYTES as u64 + half)
    }

    /// Computes every pair above the units and returns the root. Every unit must have been recorded.
    pub fn finish(&self) -> Result<Oid> {
        let root = self.geometry.root();
        if root.groups == 1 {
            return self.single().map(Oid::from_blake3).ok_or_else(|| {
                Error::new(ErrorKind::Internal, "hash of an object finished before it was read")
            });
        }
        self.climb(root).map(Oid::from_blake3)
    }

    fn climb(&self, node: Subtree) -> Result<Cv> {
        let is_root = node == self.geometry.root();
        if node.groups == 1 {
            // A lone group at the right edge: its value is in its parent's pair.
            let offset =
                self.slot(node).ok_or_else(|| Error::new(ErrorKind::Internal, "a leaf has a parent"))?;
            let mut pair = [0; PAIR_BYTES];
            self.pairs.read_pairs(offset / PAIR_BYTES as u64, &mut pair)?;
            let (left, right) = halves(&pair);
            return Ok(if offset.is_multiple_of(PAIR_BYTES as u64) { left } else { right });
        }
        if node.groups <= UNIT_GROUPS {
            let mut pair = [0; PAIR_BYTES];
            self.pairs.read_pairs(node.pair_index(), &mut pair)?;
            let (left, right) = halves(&pair);
            return Ok(merge(&left, &right, is_root));
        }
        let (left, right) = node.children();
        let (left_cv, right_cv) = (self.climb(left)?, self.climb(right)?);
        let mut pair = [0; PAIR_BYTES];
        pair[..32].copy_from_slice(&left_cv);
        pair[32..].copy_from_slice(&right_cv);
        self.pairs.write_at(node.pair_index() * PAIR_BYTES as u64, &pair)?;
        Ok(merge(&left_cv, &right_cv, is_root))
    }
}

/// Hashes a stream of unknown length front to back and emits its outboard as it grows (put from standard input).
#[derive(Debug)]
pub struct IncrementalHasher {
    /// Bytes of the group being filled.
    group: Vec<u8>,
    groups: u64,
    /// Values of complete subtrees left of here: (groups, value), sizes strictly falling.
    stack: Vec<(u64, Cv)>,
    total_bytes: u64,
}

impl Default for IncrementalHasher {
    fn default() -> Self {
        IncrementalHasher {
            group: Vec::with_capacity(GROUP_BYTES as usize),
            groups: 0,
            stack: Vec::new(),
            total_bytes: 0,
        }
    }
}

impl IncrementalHasher {
    /// Takes more bytes; `emit` receives pairs in post-order as they become final.
    pub fn update(&mut self, mut data: &[u8], emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.total_bytes += data.len() as u64;
        while !data.is_empty() {
            if self.group.len() == GROUP_BYTES as usize {
                // More follows, so this group is not the last and the subtrees it completes are final.
                self.close_group();
                self.merge_complete(emit)?;
            }
            let take = data.len().min(GROUP_BYTES as usize - self.group.len());
            self.group.extend_from_slice(&data[..take]);
            data = &data[take..];
        }
        Ok(())
    }

    /// Ends the stream: emits the remaining pairs and returns size and OID.
    pub fn finish(mut self, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<(u64, Oid)> {
        if self.groups == 0 {
            return Ok((self.total_bytes, Oid::of(&self.group)));
        }
        self.close_group();
        while let [.., (left_groups, left), (right_groups, right)] = self.stack[..] {
            self.stack.truncate(self.stack.len() - 2);
            let is_root = self.stack.is_empty();
            let cv = join(&left, &right, is_root, emit)?;
            self.stack.push((left_groups + right_groups, cv));
        }
        let (_, root) = self.stack[0];
        Ok((self.total_bytes, Oid::from_blake3(root)))
    }

    fn close_group(&mut self) {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(self.groups * GROUP_BYTES);
        hasher.update(&self.group);
        self.stack.push((1, hasher.finalize_non_root()));
        self.groups += 1;
        self.group.clear();
    }

    /// Merges equal-sized subtrees; called only when more data is known to follow, so none of them is the root.
    fn merge_complete(&mut self, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while let [.., (left_groups, left), (right_groups, right)] = self.stack[..]
            && left_groups == right_groups
        {
            self.stack.truncate(self.stack.len() - 2);
            let cv = join(&left, &right, false, emit)?;
            self.stack.push((left_groups * 2, cv));
        }
        Ok(())
    }
}

fn join(left: &Cv, right: &Cv, is_root: bool, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Cv> {
    let mut pair = [0; PAIR_BYTES];
    pair[..32].copy_from_slice(left);
    pair[32..].copy_from_slice(right);
    emit(&pair)?;
    Ok(merge(left, right, is_root))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index * 31 % 251) as u8 ^ (index >> 16) as u8).collect()
    }

    fn sizes() -> Vec<usize> {
        let group = GROUP_BYTES as usize;
        let mut sizes = vec![0, 1, 1023, 1024, 1025, group - 1, group, group + 1];
        for groups in [2, 3, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65] {
            sizes.extend([groups * group - 1, groups * group, groups * group + 1]);
        }
        sizes
    }

    /// A pair holds the values of its two subtrees, and gives that of their parent.
    #[test]
    fn a_pair_gives_its_parent() {
        let data = sample(2 * GROUP_BYTES as usize);
        let geometry = Geometry::new(data.len() as u64);
        let leaves = [0, 1].map(|group| {
            let start = (group * GROUP_BYTES) as usize;
            group_cv(geometry, group, &data[start..start + GROUP_BYTES as usize])
        });
        let pair: [u8; PAIR_BYTES] = leaves.concat().try_into().unwrap();
        let root = *blake3::hash(&data).as_bytes();
        assert_eq!(open_pair(&pair, true), (leaves[0], leaves[1], root));
        let (_, _, inner) = open_pair(&pair, false);
        assert_ne!(inner, root);
    }

    /// D5: whatever the order in which units are hashed, the root is what b3sum prints; and the outboard is the
    /// one an independent implementation builds.
    #[test]
    fn collector_agrees_with_blake3_and_with_bao_tree() {
        for size in sizes() {
            let data = sample(size);
            let geometry = Geometry::new(size as u64);
            let collector = Collector::new(geometry, MemoryPairs::new(geometry).unwrap());
            for unit in (0..geometry.units()).rev() {
                let node = geometry.unit(unit);
                let leaves: Vec<Cv> = (node.start..node.end())
                    .map(|group| {
                        let start = (group * GROUP_BYTES) as usize;
                        group_cv(geometry, group, &data[start..start + geometry.group_bytes(group)])
                    })
                    .collect();
                collector.record_unit(unit, &leaves).unwrap();
            }
            let oid = collector.finish().unwrap();
            assert_eq!(oid, Oid::of(&data), "size {size}");
            let oracle = bao_tree::io::outboard::PostOrderMemOutboard::create(
                &data,
                bao_tree::BlockSize::from_chunk_log(6),
            );
            assert_eq!(collector.pairs().to_vec(), oracle.data, "outboard at size {size}");
        }
    }

    /// D6-D8: any split of the writes gives the same OID and the same outboard.
    #[test]
    fn incremental_hasher_agrees_for_any_split() {
        for (round, size) in sizes().into_iter().enumerate() {
            let data = sample(size);
            let geometry = Geometry::new(size as u64);
            let mut hasher = IncrementalHasher::default();
            let mut pairs = Vec::new();
            let mut rest = &data[..];
            let mut step = 1 + round * 7919;
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(step.min(rest.len()));
                hasher
                    .update(head, &mut |pair| {
                        pairs.extend_from_slice(pair);
                        Ok(())
                    })
                    .unwrap();
                rest = tail;
                step = step * 3 % 150_001 + 1;
            }
            let (total, oid) = hasher
                .finish(&mut |pair| {
                    pairs.extend_from_slice(pair);
                    Ok(())
                })
                .unwrap();
            assert_eq!((total, oid), (size as u64, Oid::of(&data)), "size {size}");
            assert_eq!(pairs.len() as u64, geometry.outboard_bytes(), "size {size}");
            let oracle = bao_tree::io::outboard::PostOrderMemOutboard::create(
                &data,
                bao_tree::BlockSize::from_chunk_log(6),
            );
            assert_eq!(pairs, oracle.data, "outboard at size {size}");
        }
    }
}
