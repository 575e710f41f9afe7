//! Digests of directories (feature `tree-digests`): what both ends of a copy have alike need not be told. The prose is "Digests" in
//! `docs/protocol/peer.md`.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::Result;
use crate::limits::{NAME_BYTES_MAX, TREE_DIGEST_BYTES, TREE_DIGESTS_MAX};

/// A receiving far end says whether it has anything to hold digests against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct DigestsWanted {
    /// The sender may tell them before its entries; otherwise it tells its entries at once.
    #[n(0)]
    pub are_wanted: bool,
}

/// Digests of directories that the sender has, each of one with all that is below it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Digests {
    /// One after the other, [`TREE_DIGEST_BYTES`] each, one at least.
    #[n(0)]
    pub digests: ByteVec,
    /// Where owners are kept: who owns every entry. Absent if they are several: then owners went into the digests.
    #[n(1)]
    pub owner: Option<SoleOwner>,
    /// Entries that the sender has: a receiver that has far more need not look at all of them.
    #[n(2)]
    pub entries: u64,
}

/// Who owns every entry.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct SoleOwner {
    /// Number of the user.
    #[n(0)]
    pub uid: u32,
    /// Number of the group.
    #[n(1)]
    pub gid: u32,
    /// The user's name, if it has one that is to be told.
    #[n(2)]
    pub user: Option<ByteVec>,
    /// The group's.
    #[n(3)]
    pub group: Option<ByteVec>,
}

/// Which of the digests the receiver found, too. A receiver that found the roots of all sources says `tree-done` instead.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct DigestsSame {
    /// A bit for each digest, in their order, the least significant of each byte first; those behind the last are 0.
    #[n(0)]
    pub same: ByteVec,
}

impl Digests {
    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8; TREE_DIGEST_BYTES]> {
        self.digests.as_chunks::<TREE_DIGEST_BYTES>().0.iter()
    }

    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        let is_whole = self.digests.len().is_multiple_of(TREE_DIGEST_BYTES);
        let count = self.digests.len() / TREE_DIGEST_BYTES;
        check(is_whole && (1..=TREE_DIGESTS_MAX).contains(&count), "an impossible number of digests")?;
        let names = self.owner.iter().flat_map(|owner| [&owner.user, &owner.group]).flatten();
        let mut lengths = names.map(|name| name.len());
        check(lengths.all(|len| matches!(len, 1..=NAME_BYTES_MAX)), "an impossible owner")
    }
}

impl DigestsSame {
    /// Of as many digests as there are, those that are the same.
    pub fn of(same: &[bool]) -> DigestsSame {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        DigestsSame { same: same.chunks(8).map(byte).collect::<Vec<u8>>().into() }
    }

    /// The bits of `count` digests; `None` if they are of another number.
    pub fn bits(&self, count: usize) -> Option<Vec<bool>> {
        let has = |index: usize| self.same.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
        let is_padded = (count..self.same.len().saturating_mul(8)).all(|index| !has(index));
        (self.same.len() == count.div_ceil(8) && is_padded).then(|| (0..count).map(has).collect())
    }

    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        check(self.same.len() <= TREE_DIGESTS_MAX.div_ceil(8), "too many digests")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip_and_others_are_refused() {
        for count in [0, 1, 7, 8, 9, 100] {
            let bits: Vec<bool> = (0..count).map(|index| index % 3 == 0).collect();
            let same = DigestsSame::of(&bits);
            assert_eq!(same.bits(count), Some(bits), "{count}");
            assert_eq!(same.bits(count + 8), None, "{count}");
        }
        // A digest that was never told cannot be the same.
        assert_eq!(DigestsSame { same: vec![0b1000].into() }.bits(3), None);
        assert_eq!(DigestsSame { same: vec![0b0100].into() }.bits(3), Some(vec![false, false, true]));
    }
}
