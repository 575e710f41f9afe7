//! BLAKE3's own tree over 64 KiB groups: its shape, its outboard, and proofs of any subtree against the OID.
//!
//! A group is a subtree of 64 BLAKE3 chunks. An object of `n` groups has `n - 1` parents; each parent is a *pair*,
//! the chaining values of its two children (64 bytes). The outboard is all pairs in **post-order**, so that a
//! subtree's pairs lie together and appending to an object never moves the pairs of complete subtrees.

mod compute;
mod content;
mod verify;
mod zeros;

pub use compute::{
    Collector, Cv, IncrementalHasher, MemoryPairs, PAIR_BYTES, PairStore, encode_parents, encode_path,
    group_cv, open_pair, subtree_pairs,
};
pub use content::ContentHasher;
pub use verify::Verifier;
pub use zeros::is_zero;

use crate::limits::{GROUP_BYTES, UNIT_GROUPS};

/// Shape of the tree of an object of a given size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    size_bytes: u64,
}

impl Geometry {
    /// The tree over `size_bytes` bytes.
    pub fn new(size_bytes: u64) -> Geometry {
        Geometry { size_bytes }
    }

    /// Size of the object.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Number of groups; the empty object has one, of length zero.
    pub fn groups(&self) -> u64 {
        self.size_bytes.div_ceil(GROUP_BYTES).max(1)
    }

    /// Number of units of 16 groups.
    pub fn units(&self) -> u64 {
        self.groups().div_ceil(UNIT_GROUPS)
    }

    /// Number of pairs in the outboard.
    pub fn pairs(&self) -> u64 {
        self.groups() - 1
    }

    /// Size of the outboard.
    pub fn outboard_bytes(&self) -> u64 {
        self.pairs() * PAIR_BYTES as u64
    }

    /// Length of group `group`, which must exist.
    pub fn group_bytes(&self, group: u64) -> usize {
        let start = group * GROUP_BYTES;
        // At most GROUP_BYTES, so the cast cannot truncate.
        self.size_bytes.saturating_sub(start).min(GROUP_BYTES) as usize
    }

    /// Byte range of the groups `[start, start + groups)`, cut at the end of the object.
    pub fn byte_range(&self, node: Subtree) -> std::ops::Range<u64> {
        let start = (node.start * GROUP_BYTES).min(self.size_bytes);
        let end = ((node.start + node.groups) * GROUP_BYTES).min(self.size_bytes);
        start..end
    }

    /// The whole tree.
    pub fn root(&self) -> Subtree {
        Subtree { start: 0, groups: self.groups() }
    }

    /// Unit `unit` as a subtree; the last one may be shorter than 16 groups.
    pub fn unit(&self, unit: u64) -> Subtree {
        let start = unit * UNIT_GROUPS;
        Subtree { start, groups: UNIT_GROUPS.min(self.groups() - start) }
    }

    /// The subtree of exactly these groups, if there is one.
    pub fn subtree(&self, start: u64, groups: u64) -> Option<Subtree> {
        let wanted = Subtree { start, groups };
        if groups == 0 || start.checked_add(groups)? > self.groups() {
            return None;
        }
        self.path(wanted).last().copied().filter(|found| *found == wanted)
    }

    /// The subtrees from the root down to `target`, both included; ends early, at the smallest subtree that holds
    /// `target`'s first group and is no smaller, if `target` is no subtree of this tree.
    pub fn path(&self, target: Subtree) -> Vec<Subtree> {
        let mut node = self.root();
        let mut path = vec![node];
        while node.groups > target.groups && node != target {
            let (left, right) = node.children();
            node = if target.start < right.start { left } else { right };
            path.push(node);
        }
        path
    }
}

/// A subtree: `groups` groups from group `start`. Either aligned to its own power-of-two size, or at the right edge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subtree {
    /// First group.
    pub start: u64,
    /// Number of groups, at least one.
    pub groups: u64,
}

impl Subtree {
    /// One past the last group.
    pub fn end(&self) -> u64 {
        self.start + self.groups
    }

    /// The two halves: the left one is the largest power of two smaller than the whole (BLAKE3 §2.1). Only for
    /// subtrees of at least two groups.
    pub fn children(&self) -> (Subtree, Subtree) {
        debug_assert!(self.groups >= 2);
        let left = self.groups.next_power_of_two() / 2;
        (
            Subtree { start: self.start, groups: left },
            Subtree { start: self.start + left, groups: self.groups - left },
        )
    }

    /// Index of this subtree's pair in the post-order outboard: the pairs wholly before `start` number
    /// `start - popcount(start)`, then come its own `groups - 1` pairs, itself last. Only for two groups or more.
    pub fn pair_index(&self) -> u64 {
        self.first_pair_index() + self.groups - 2
    }

    /// Index of the first of this subtree's `groups - 1` consecutive pairs.
    pub fn first_pair_index(&self) -> u64 {
        self.start - u64::from(self.start.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post_order(node: Subtree, out: &mut Vec<Subtree>) {
        if node.groups >= 2 {
            let (left, right) = node.children();
            post_order(left, out);
            post_order(right, out);
            out.push(node);
        }
    }

    #[test]
    fn post_order_index_is_a_formula() {
        for groups in 1..300u64 {
            let geometry = Geometry::new(groups * GROUP_BYTES);
            let mut order = Vec::new();
            post_order(geometry.root(), &mut order);
            assert_eq!(order.len() as u64, geometry.pairs());
            for (index, node) in order.iter().enumerate() {
                assert_eq!(node.pair_index(), index as u64, "{node:?} of {groups}");
                assert_eq!(geometry.subtree(node.start, node.groups), Some(*node));
            }
        }
    }

    #[test]
    fn units_are_subtrees_and_tile() {
        for groups in 1..200u64 {
            let geometry = Geometry::new(groups * GROUP_BYTES - 1);
            let mut next = 0;
            for unit in 0..geometry.units() {
                let node = geometry.unit(unit);
                assert_eq!(node.start, next);
                assert_eq!(geometry.subtree(node.start, node.groups), Some(node), "{groups} {unit}");
                next = node.end();
            }
            assert_eq!(next, groups);
        }
    }

    #[test]
    fn what_is_no_subtree_is_refused() {
        let geometry = Geometry::new(10 * GROUP_BYTES);
        for (start, groups) in [(0, 0), (1, 2), (2, 3), (0, 11), (8, 3), (u64::MAX, 2), (9, 1 << 40), (4, 6)]
        {
            assert_eq!(geometry.subtree(start, groups), None, "{start}+{groups}");
        }
        assert_eq!(geometry.subtree(8, 2), Some(Subtree { start: 8, groups: 2 }));
        assert_eq!(Geometry::new(0).groups(), 1);
        assert_eq!(Geometry::new(0).group_bytes(0), 0);
    }
}
