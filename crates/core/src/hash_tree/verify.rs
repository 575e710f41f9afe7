//! Proving subtrees against the OID as they arrive, from anybody, in any order.

use std::sync::atomic::{AtomicU64, Ordering};

use super::compute::{Cv, PAIR_BYTES, PairStore, group_cv, halves, merge};
use super::{Geometry, Subtree};
use crate::{Error, ErrorKind, Oid, Result};

/// Knows which pairs of an outboard are proven, accepts more, and says what the bytes of a group must hash to.
/// Any number of threads may use one at once.
#[derive(Debug)]
pub struct Verifier<P> {
    geometry: Geometry,
    root: Oid,
    pairs: P,
    /// One bit a pair, by post-order index.
    known: Vec<AtomicU64>,
}

impl<P: PairStore> Verifier<P> {
    /// A verifier that knows nothing but the OID.
    pub fn new(geometry: Geometry, root: Oid, pairs: P) -> Result<Verifier<P>> {
        let words = usize::try_from(geometry.pairs().div_ceil(64))
            .map_err(|_| Error::new(ErrorKind::NoSpace, "object too large for this machine's memory"))?;
        Ok(Verifier { geometry, root, pairs, known: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Shape of the object.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The OID everything is proven against.
    pub fn root(&self) -> Oid {
        self.root
    }

    /// Where the pairs rest.
    pub fn pairs(&self) -> &P {
        &self.pairs
    }

    /// Looks again at pairs that an earlier run left in the pair store: those on the way to the units for which
    /// `is_done` says yes are checked from the root down and become known. Returns the done units whose way is
    /// intact; the others must be fetched again.
    pub fn recover(&self, is_done: &dyn Fn(u64) -> bool) -> Result<Vec<u64>> {
        let mut intact = Vec::new();
        self.recover_under(self.geometry.root(), *self.root.as_bytes(), is_done, &mut intact)?;
        Ok(intact)
    }

    fn recover_under(
        &self,
        node: Subtree,
        expected: Cv,
        is_done: &dyn Fn(u64) -> bool,
        intact: &mut Vec<u64>,
    ) -> Result<()> {
        let units = node.start / crate::limits::UNIT_GROUPS..node.end().div_ceil(crate::limits::UNIT_GROUPS);
        let inside_a_unit = node.groups <= crate::limits::UNIT_GROUPS;
        if !units.clone().any(is_done) {
            return Ok(());
        }
        if node.groups == 1 {
            if node.start.is_multiple_of(crate::limits::UNIT_GROUPS) && inside_a_unit {
                intact.push(units.start);
            }
            return Ok(());
        }
        let mut pair = [0; PAIR_BYTES];
        self.pairs.read_pairs(node.pair_index(), &mut pair)?;
        let (left_cv, right_cv) = halves(&pair);
        if merge(&left_cv, &right_cv, node == self.geometry.root()) != expected {
            return Ok(());
        }
        self.set_known(node);
        if inside_a_unit {
            // One pair proves the unit's two halves; the pairs below are checked when somebody asks for them.
            intact.push(units.start);
            return Ok(());
        }
        let (left, right) = node.children();
        self.recover_under(left, left_cv, is_done, intact)?;
        self.recover_under(right, right_cv, is_done, intact)
    }

    /// How many subtrees of the path from the root to `node` have a known pair: what a request says so that the
    /// holder need not send them.
    pub fn known_depth(&self, node: Subtree) -> usize {
        let path = self.geometry.path(node);
        path[..path.len() - 1].iter().take_while(|ancestor| self.is_known(**ancestor)).count()
    }

    /// Checks the pairs a holder sent for `node` (see [`super::encode_parents`]), keeps them, and returns the values
    /// its groups must have.
    pub fn accept_parents(&self, node: Subtree, known_depth: usize, parents: &[u8]) -> Result<Vec<Cv>> {
        let path = self.geometry.path(node);
        let above = &path[..path.len() - 1];
        let missing =
            above.get(known_depth..).ok_or_else(|| bad("claims to know more than the way to it"))?;
        let interior = usize::try_from(node.groups - 1).map_err(|_| bad("is too large"))?;
        if parents.len() != (missing.len() + interior) * PAIR_BYTES {
            return Err(bad("has the wrong number of parents"));
        }
        let mut expected = self.value(above, known_depth, node)?;
        let (way, inside) = parents.split_at(missing.len() * PAIR_BYTES);
        for (index, (ancestor, pair)) in missing.iter().zip(way.chunks_exact(PAIR_BYTES)).enumerate() {
            let (left, right) = halves(pair);
            if merge(&left, &right, *ancestor == self.geometry.root()) != expected {
                return Err(bad("has a parent that does not hash to the object id"));
            }
            self.pairs.write_at(ancestor.pair_index() * PAIR_BYTES as u64, pair)?;
            self.set_known(*ancestor);
            let child = missing.get(index + 1).copied().unwrap_or(node);
            expected = if child.start == ancestor.start { left } else { right };
        }
        let mut leaves = Vec::with_capacity(interior + 1);
        let mut post_order = vec![0; interior * PAIR_BYTES];
        let mut rest = inside;
        self.descend(node, node, expected, &mut rest, &mut post_order, &mut leaves)?;
        if !post_order.is_empty() {
            self.pairs.write_at(node.first_pair_index() * PAIR_BYTES as u64, &post_order)?;
            self.set_known_all(node);
        }
        Ok(leaves)
    }

    fn descend(
        &self,
        top: Subtree,
        node: Subtree,
        expected: Cv,
        rest: &mut &[u8],
        post_order: &mut [u8],
        leaves: &mut Vec<Cv>,
    ) -> Result<()> {
        if node.groups == 1 {
            leaves.push(expected);
            return Ok(());
        }
        let (pair, tail) = rest.split_at_checked(PAIR_BYTES).ok_or_else(|| bad("has too few parents"))?;
        *rest = tail;
        let (left_cv, right_cv) = halves(pair);
        if merge(&left_cv, &right_cv, node == self.geometry.root()) != expected {
            return Err(bad("has a parent that does not hash to the object id"));
        }
        let at = (node.pair_index() - top.first_pair_index()) as usize * PAIR_BYTES;
        post_order[at..at + PAIR_BYTES].copy_from_slice(pair);
        let (left, right) = node.children();
        self.descend(top, left, left_cv, rest, post_order, leaves)?;
        self.descend(top, right, right_cv, rest, post_order, leaves)
    }

    /// Value of the subtree at `depth` on the way `above` + `node`, from the known pair above it.
    fn value(&self, above: &[Subtree], depth: usize, node: Subtree) -> Result<Cv> {
        let Some(parent) = depth.checked_sub(1).and_then(|index| above.get(index)) else {
            return Ok(*self.root.as_bytes());
        };
        if !self.is_known(*parent) {
            return Err(Error::new(ErrorKind::Internal, "a pair was taken as known that is not"));
        }
        let mut pair = [0; PAIR_BYTES];
        self.pairs.read_pairs(parent.pair_index(), &mut pair)?;
        let (left, right) = halves(&pair);
        let child = above.get(depth).copied().unwrap_or(node);
        Ok(if child.start == parent.start { left } else { right })
    }

    /// True if `bytes` are those of `group`, whose value must be `expected`.
    pub fn group_matches(&self, group: u64, bytes: &[u8], expected: &Cv) -> bool {
        bytes.len() == self.geometry.group_bytes(group) && group_cv(self.geometry, group, bytes) == *expected
    }

    fn is_known(&self, node: Subtree) -> bool {
        let (word, mask) = bit(node.pair_index());
        self.known.get(word).is_some_and(|known| known.load(Ordering::Acquire) & mask != 0)
    }

    fn set_known(&self, node: Subtree) {
        let (word, mask) = bit(node.pair_index());
        if let Some(known) = self.known.get(word) {
            known.fetch_or(mask, Ordering::AcqRel);
        }
    }

    fn set_known_all(&self, node: Subtree) {
        if node.groups >= 2 {
            let (left, right) = node.children();
            self.set_known(node);
            self.set_known_all(left);
            self.set_known_all(right);
        }
    }
}

fn bit(index: u64) -> (usize, u64) {
    ((index / 64) as usize, 1 << (index % 64))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::VerificationFailed, format!("range proof {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Collector, MemoryPairs, encode_parents};
    use super::*;
    use crate::limits::{GROUP_BYTES, UNIT_GROUPS};

    fn object(groups: u64, tail: u64) -> (Vec<u8>, Geometry, Collector<MemoryPairs>, Oid) {
        let size = (groups - 1) * GROUP_BYTES + tail;
        let data: Vec<u8> = (0..size).map(|index| (index % 241) as u8 ^ (index >> 13) as u8).collect();
        let geometry = Geometry::new(size);
        let collector = Collector::new(geometry, MemoryPairs::new(geometry).unwrap());
        for unit in 0..geometry.units() {
            let node = geometry.unit(unit);
            let leaves: Vec<Cv> =
                (node.start..node.end()).map(|g| group_cv(geometry, g, bytes(&data, geometry, g))).collect();
            collector.record_unit(unit, &leaves).unwrap();
        }
        let oid = collector.finish().unwrap();
        (data, geometry, collector, oid)
    }

    fn bytes(data: &[u8], geometry: Geometry, group: u64) -> &[u8] {
        let start = (group * GROUP_BYTES) as usize;
        &data[start..start + geometry.group_bytes(group)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Y3: units in any order are proven, each with only the pairs that were missing, and a changed bit in any
        /// pair or group is noticed.
        #[test]
        fn proves_units_in_any_order(groups in 1u64..70, tail in 1u64..=GROUP_BYTES, seed in any::<u64>()) {
            let (data, geometry, holder, oid) = object(groups, tail);
            let verifier = Verifier::new(geometry, oid, MemoryPairs::new(geometry).unwrap()).unwrap();
            let mut order: Vec<u64> = (0..geometry.units()).collect();
            let mut state = seed;
            for index in (1..order.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                order.swap(index, (state >> 33) as usize % (index + 1));
            }
            for unit in order {
                let node = geometry.unit(unit);
                let known = verifier.known_depth(node);
                let parents = encode_parents(geometry, node, known, holder.pairs()).unwrap();
                if !parents.is_empty() {
                    let mut flipped = parents.clone();
                    let at = (seed % flipped.len() as u64) as usize;
                    flipped[at] ^= 1 << (seed % 8);
                    let refused = verifier.accept_parents(node, known, &flipped).unwrap_err();
                    prop_assert_eq!(refused.kind(), ErrorKind::VerificationFailed);
                    prop_assert!(verifier.accept_parents(node, known, &parents[64..]).is_err());
                }
                // Pairs above the damage may have been kept: they were proven.
                let known = verifier.known_depth(node);
                let parents = encode_parents(geometry, node, known, holder.pairs()).unwrap();
                let leaves = verifier.accept_parents(node, known, &parents).unwrap();
                for (group, cv) in (node.start..node.end()).zip(&leaves) {
                    let mut piece = bytes(&data, geometry, group).to_vec();
                    prop_assert!(verifier.group_matches(group, &piece, cv));
                    let at = (seed % piece.len() as u64) as usize;
                    piece[at] ^= 0x40;
                    prop_assert!(!verifier.group_matches(group, &piece, cv));
                }
            }
            prop_assert_eq!(verifier.pairs().to_vec(), holder.pairs().to_vec());
        }

        /// D10 of the design: what an earlier run kept is trusted only as far as it still hashes to the OID.
        #[test]
        fn recovers_only_what_is_intact(groups in 17u64..120, done in any::<u64>(), damage in any::<u64>()) {
            let (_, geometry, holder, oid) = object(groups, GROUP_BYTES);
            let is_done = |unit: u64| done >> (unit % 64) & 1 == 1;
            let fresh = Verifier::new(geometry, oid, MemoryPairs::from(holder.pairs().to_vec())).unwrap();
            let want: Vec<u64> = (0..geometry.units()).filter(|unit| is_done(*unit)).collect();
            prop_assert_eq!(fresh.recover(&is_done).unwrap(), want.clone());
            // Damage the pair at the top of one unit: exactly that unit is dropped.
            let victim = damage % geometry.units();
            let node = geometry.unit(victim);
            if node.groups >= 2 {
                let mut kept = holder.pairs().to_vec();
                kept[node.pair_index() as usize * PAIR_BYTES + (damage % 64) as usize] ^= 1;
                let again = Verifier::new(geometry, oid, MemoryPairs::from(kept)).unwrap();
                let rest: Vec<u64> = want.iter().copied().filter(|unit| *unit != victim).collect();
                prop_assert_eq!(again.recover(&is_done).unwrap(), rest);
            }
            prop_assert_eq!(UNIT_GROUPS, 16);
        }
    }
}
