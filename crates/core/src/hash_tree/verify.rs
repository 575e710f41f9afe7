//! Proving subtrees against the OID as they arrive, from anybody, in any order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::compute::{Cv, PAIR_BYTES, PairStore, group_cv, halves, merge, subtree_pairs};
use super::{Geometry, Subtree};
use crate::limits::{GROUP_BYTES, OBJECT_BYTES_MAX, REQUEST_GROUPS_MAX};
use crate::{Error, ErrorKind, Oid, Result};

static ZERO_GROUP: [u8; GROUP_BYTES as usize] = [0; GROUP_BYTES as usize];

/// Knows which pairs of an outboard are proven, accepts more, and says what the bytes of a group must hash to.
/// Any number of threads may use one at once.
#[derive(Debug)]
pub struct Verifier<P> {
    geometry: Geometry,
    root: Oid,
    pairs: P,
    known: KnownPairs,
}

impl<P: PairStore> Verifier<P> {
    /// A verifier that knows nothing but the OID. Its memory grows with what is proven, one bit a pair, and not with
    /// the size somebody claims. `Unsupported` above [`OBJECT_BYTES_MAX`].
    pub fn new(geometry: Geometry, root: Oid, pairs: P) -> Result<Verifier<P>> {
        if geometry.size_bytes() > OBJECT_BYTES_MAX {
            let what = format!("an object of {} bytes, limit 2^60", geometry.size_bytes());
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(Verifier { geometry, root, pairs, known: KnownPairs::default() })
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
    /// intact; the others must be fetched again. A lone group never is: it has no pair.
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
        // Nothing but its bytes could tell whether a lone group is intact, and these are not looked at here.
        if self.geometry.groups() == 1 {
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
    /// its groups must have. Without the pairs inside `node` ([`super::encode_path`]) it must be nothing but zeros: their
    /// values are computed here.
    pub fn accept_parents(&self, node: Subtree, known_depth: usize, parents: &[u8]) -> Result<Vec<Cv>> {
        let path = self.geometry.path(node);
        let above = &path[..path.len() - 1];
        let missing =
            above.get(known_depth..).ok_or_else(|| bad("claims to know more than the way to it"))?;
        let interior = usize::try_from(node.groups - 1).map_err(|_| bad("is too large"))?;
        let is_of_zeros = interior > 0 && parents.len() == missing.len() * PAIR_BYTES;
        if !is_of_zeros && parents.len() != (missing.len() + interior) * PAIR_BYTES {
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
        if is_of_zeros {
            return self.accept_zeros(node, expected);
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

    /// Checks that `node`, whose value is `expected`, is nothing but zeros.
    fn accept_zeros(&self, node: Subtree, expected: Cv) -> Result<Vec<Cv>> {
        // What is to be hashed is bounded by what was asked for.
        if node.groups > REQUEST_GROUPS_MAX {
            return Err(bad("is too large"));
        }
        let zero = |group| group_cv(self.geometry, group, &ZERO_GROUP[..self.geometry.group_bytes(group)]);
        let leaves: Vec<Cv> = (node.start..node.end()).map(zero).collect();
        let (post_order, cv) = subtree_pairs(self.geometry, node, &leaves);
        if cv != expected {
            return Err(bad("has no parents and is not zeros"));
        }
        self.pairs.write_at(node.first_pair_index() * PAIR_BYTES as u64, &post_order)?;
        self.set_known_all(node);
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
        self.known.contains(node.pair_index())
    }

    fn set_known(&self, node: Subtree) {
        self.known.insert(node.pair_index()..node.pair_index() + 1);
    }

    /// Every pair of `node`; in post-order they lie together.
    fn set_known_all(&self, node: Subtree) {
        self.known.insert(node.first_pair_index()..node.pair_index() + 1);
    }
}

/// Words in one page of the bitmap: 512 bytes, the pairs of 256 MiB.
const PAGE_WORDS: usize = 64;
const PAGE_BITS: u64 = PAGE_WORDS as u64 * 64;

/// Which pairs are proven: one bit a pair, by post-order index, in pages that are made when something in them is
/// first known.
#[derive(Debug, Default)]
struct KnownPairs {
    pages: RwLock<HashMap<u64, Box<[AtomicU64; PAGE_WORDS]>>>,
}

impl KnownPairs {
    fn contains(&self, index: u64) -> bool {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let (word, mask) = bit(index);
        pages.get(&(index / PAGE_BITS)).is_some_and(|page| page[word].load(Ordering::Acquire) & mask != 0)
    }

    fn insert(&self, indices: Range<u64>) {
        for number in indices.start / PAGE_BITS..indices.end.div_ceil(PAGE_BITS) {
            let in_page = indices.start.max(number * PAGE_BITS)..indices.end.min((number + 1) * PAGE_BITS);
            let set = |page: &[AtomicU64; PAGE_WORDS]| {
                for (word, mask) in in_page.clone().map(bit) {
                    page[word].fetch_or(mask, Ordering::AcqRel);
                }
            };
            let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(page) = pages.get(&number) {
                set(page);
                continue;
            }
            drop(pages);
            let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
            set(pages.entry(number).or_insert_with(|| Box::new([const { AtomicU64::new(0) }; PAGE_WORDS])));
        }
    }
}

/// Word in its page, and bit in that word, of pair `index`.
fn bit(index: u64) -> (usize, u64) {
    ((index % PAGE_BITS / 64) as usize, 1 << (index % 64))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::VerificationFailed, format!("range proof {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Collector, MemoryPairs, encode_parents, encode_path};
    use super::*;
    use crate::limits::UNIT_GROUPS;

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

    /// Design 17: the largest size a ticket can claim costs nothing; memory follows what is proven.
    #[test]
    fn a_claimed_size_allocates_nothing() {
        let geometry = Geometry::new(OBJECT_BYTES_MAX);
        let oid = Oid::of(b"");
        let verifier = Verifier::new(geometry, oid, MemoryPairs::from(Vec::new())).unwrap();
        assert_eq!(verifier.known.pages.read().unwrap().len(), 0);
        verifier.set_known(geometry.root());
        assert!(verifier.is_known(geometry.root()) && !verifier.is_known(geometry.root().children().0));
        assert_eq!(verifier.known.pages.read().unwrap().len(), 1);
        let refused = MemoryPairs::new(geometry).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let over = Geometry::new(OBJECT_BYTES_MAX + 1);
        let over = Verifier::new(over, oid, MemoryPairs::from(Vec::new())).unwrap_err();
        assert_eq!(over.kind(), ErrorKind::Unsupported);
    }

    /// Design 3: a mark alone does not make the bytes of a one-group object those of its OID.
    #[test]
    fn a_lone_group_is_never_recovered_by_its_mark() {
        for size_bytes in [0, 1, GROUP_BYTES] {
            let geometry = Geometry::new(size_bytes);
            let verifier =
                Verifier::new(geometry, Oid::of(b"x"), MemoryPairs::new(geometry).unwrap()).unwrap();
            assert_eq!(verifier.recover(&|_| true).unwrap(), Vec::<u64>::new(), "{size_bytes}");
        }
    }

    /// Pairs on both sides of a page's edge, set one by one and as a run.
    #[test]
    fn known_pairs_are_exactly_those_inserted() {
        for range in [0..1, PAGE_BITS - 1..PAGE_BITS + 1, 63..65, 5..5, 3 * PAGE_BITS..5 * PAGE_BITS] {
            let known = KnownPairs::default();
            known.insert(range.clone());
            for index in 0..6 * PAGE_BITS {
                assert_eq!(known.contains(index), range.contains(&index), "{index} of {range:?}");
            }
        }
    }

    /// The "zero runs cost nothing on the wire": a subtree of zeros is proven by the way to it alone, and
    /// nothing else is.
    #[test]
    fn zeros_are_proven_by_the_way_to_them() {
        let geometry = Geometry::new(40 * GROUP_BYTES + 5);
        let collector = Collector::new(geometry, MemoryPairs::new(geometry).unwrap());
        for unit in 0..geometry.units() {
            let node = geometry.unit(unit);
            // One byte of the second unit is not zero.
            let leaf = |group| {
                let mut bytes = vec![0; geometry.group_bytes(group)];
                bytes[0] = u8::from(group == 20);
                group_cv(geometry, group, &bytes)
            };
            let leaves: Vec<Cv> = (node.start..node.end()).map(leaf).collect();
            collector.record_unit(unit, &leaves).unwrap();
        }
        let oid = collector.finish().unwrap();
        let verifier = Verifier::new(geometry, oid, MemoryPairs::new(geometry).unwrap()).unwrap();
        for (unit, is_zero) in [(0, true), (1, false), (2, true)] {
            let node = geometry.unit(unit);
            let known = verifier.known_depth(node);
            let way = encode_path(geometry, node, known, collector.pairs()).unwrap();
            let accepted = verifier.accept_parents(node, known, &way);
            assert_eq!(accepted.is_ok(), is_zero, "unit {unit}: {accepted:?}");
            if let Ok(leaves) = accepted {
                let all = encode_parents(geometry, node, 0, collector.pairs()).unwrap();
                let fresh = Verifier::new(geometry, oid, MemoryPairs::new(geometry).unwrap()).unwrap();
                assert_eq!(leaves, fresh.accept_parents(node, 0, &all).unwrap());
                let inside = node.first_pair_index()..node.pair_index() + 1;
                let mut pairs = [vec![0; 64 * (inside.end - inside.start) as usize], vec![]];
                pairs[1] = pairs[0].clone();
                verifier.pairs().read_pairs(inside.start, &mut pairs[0]).unwrap();
                collector.pairs().read_pairs(inside.start, &mut pairs[1]).unwrap();
                assert_eq!(pairs[0], pairs[1]);
            }
        }
    }

    /// Design 5: what was proven on the way to one unit is known for the next ones, and what was not is taken from nobody.
    #[test]
    fn only_what_was_proven_is_known() {
        let (_, geometry, holder, oid) = object(4 * UNIT_GROUPS, GROUP_BYTES);
        let verifier = Verifier::new(geometry, oid, MemoryPairs::new(geometry).unwrap()).unwrap();
        let sent =
            |unit, known| encode_parents(geometry, geometry.unit(unit), known, holder.pairs()).unwrap();
        let early = verifier.accept_parents(geometry.unit(0), 1, &sent(0, 1)).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::Internal, "{early}");
        verifier.accept_parents(geometry.unit(0), 0, &sent(0, 0)).unwrap();
        let known = [0, 1, 2, 3].map(|unit| verifier.known_depth(geometry.unit(unit)));
        assert_eq!(known, [2, 2, 1, 1]);
        verifier.accept_parents(geometry.unit(3), 1, &sent(3, 1)).unwrap();
        assert_eq!(verifier.known_depth(geometry.unit(2)), 2);
    }

    /// What is hashed to see that it is nothing but zeros is no more than may be asked for.
    #[test]
    fn zeros_are_looked_at_within_a_request() {
        for (groups, is_taken) in [(REQUEST_GROUPS_MAX, true), (2 * REQUEST_GROUPS_MAX, false)] {
            let geometry = Geometry::new(groups * GROUP_BYTES);
            let zeros: Vec<Cv> = (0..groups).map(|group| group_cv(geometry, group, &ZERO_GROUP)).collect();
            let (_, root) = subtree_pairs(geometry, geometry.root(), &zeros);
            let pairs = MemoryPairs::new(geometry).unwrap();
            let verifier = Verifier::new(geometry, Oid::from_blake3(root), pairs).unwrap();
            let taken = verifier.accept_parents(geometry.root(), 0, &[]);
            assert_eq!(taken.is_ok(), is_taken, "{groups} groups");
        }
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
