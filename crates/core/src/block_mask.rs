//! Which blocks of one group a receiver has: of such a group only the rest is sent (`docs/protocol/peer.md`, "Rests").

use std::ops::Range;

use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::limits::GROUP_BYTES;

/// Bytes of one block: small enough to fall between two changed addresses of a program, large enough for a sum of two bytes.
pub const BLOCK_BYTES: usize = 64;
/// Blocks of a whole group.
pub const GROUP_BLOCKS: usize = GROUP_BYTES as usize / BLOCK_BYTES;
const MASK_BYTES: usize = GROUP_BLOCKS / 8;

/// One bit for each block of a group, lowest first. On the wire the bytes to the last one that is not zero; at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMask([u8; MASK_BYTES]);

impl Default for BlockMask {
    fn default() -> BlockMask {
        BlockMask([0; MASK_BYTES])
    }
}

impl BlockMask {
    /// Marks a block below [`GROUP_BLOCKS`]; others do not exist.
    pub fn insert(&mut self, block: usize) {
        if let Some(byte) = self.0.get_mut(block / 8) {
            *byte |= 1 << (block % 8);
        }
    }

    /// Whether a block is marked.
    pub fn contains(&self, block: usize) -> bool {
        self.0.get(block / 8).is_some_and(|byte| byte & 1 << (block % 8) != 0)
    }

    /// True if no block is marked.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// The byte ranges of a group of `group_bytes` that lie in blocks not marked, ascending. The last block may be shorter.
    pub fn rest(&self, group_bytes: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let blocks = group_bytes.min(GROUP_BYTES as usize).div_ceil(BLOCK_BYTES);
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..blocks).find(|block| !self.contains(*block))?;
            let end = (start..blocks).find(|block| self.contains(*block)).unwrap_or(blocks);
            next = end;
            Some(start * BLOCK_BYTES..(end * BLOCK_BYTES).min(group_bytes))
        })
    }

    /// Bytes of [`BlockMask::rest`].
    pub fn rest_bytes(&self, group_bytes: usize) -> usize {
        self.rest(group_bytes).map(|range| range.len()).sum()
    }
}

/// What a receiver has of a part: some blocks, and of others all but the fields of code ([`crate::code_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Have {
    /// Blocks that it has.
    pub blocks: BlockMask,
    /// Blocks of which only the fields come, unless it has them, or they are no whole blocks.
    pub code: BlockMask,
}

impl From<BlockMask> for Have {
    fn from(blocks: BlockMask) -> Have {
        Have { blocks, code: BlockMask::default() }
    }
}

impl Have {
    /// Where the blocks begin of which the fields come, ascending, in a part of `part_bytes`.
    pub fn code_blocks(&self, part_bytes: usize) -> impl Iterator<Item = usize> + '_ {
        let whole = part_bytes.min(GROUP_BYTES as usize) / BLOCK_BYTES;
        let is_code = |block: &usize| self.code.contains(*block) && !self.blocks.contains(*block);
        (0..whole).filter(is_code).map(|block| block * BLOCK_BYTES)
    }

    /// The byte ranges that come as they are, as [`BlockMask::rest`] has them.
    pub fn rest(&self, part_bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let mut known = self.blocks;
        self.code_blocks(part_bytes).for_each(|start| known.insert(start / BLOCK_BYTES));
        let ranges: Vec<Range<usize>> = known.rest(part_bytes).collect();
        ranges.into_iter()
    }

    /// How many bytes come: those that come as they are, and with as many fields as there may be.
    pub fn rest_bytes(&self, part_bytes: usize) -> Range<usize> {
        let bytes = self.rest(part_bytes).map(|range| range.len()).sum();
        bytes..bytes + self.code_blocks(part_bytes).count() * BLOCK_BYTES
    }
}

impl<C> Encode<C> for BlockMask {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        let len = self.0.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
        e.bytes(&self.0[..len])?.ok()
    }
}

impl<'b, C> Decode<'b, C> for BlockMask {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<BlockMask, minicbor::decode::Error> {
        let bytes = d.bytes()?;
        if bytes.is_empty() || bytes.len() > MASK_BYTES {
            return Err(minicbor::decode::Error::message("a mask of blocks has 1 to 128 bytes"));
        }
        let mut mask = [0; MASK_BYTES];
        mask[..bytes.len()].copy_from_slice(bytes);
        Ok(BlockMask(mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P6: what is not marked is the rest, to the end of a short last block, and nothing beyond.
    #[test]
    fn the_rest_is_what_is_not_marked() {
        let mut mask = BlockMask::default();
        assert!(mask.is_empty());
        assert!(mask.rest(200).eq(std::iter::once(0..200)));
        mask.insert(1);
        mask.insert(GROUP_BLOCKS);
        assert!(mask.contains(1) && !mask.contains(0) && !mask.contains(GROUP_BLOCKS));
        assert_eq!(mask.rest(200).collect::<Vec<_>>(), [0..64, 128..200]);
        assert_eq!(mask.rest_bytes(200), 136);
        assert_eq!(mask.rest_bytes(GROUP_BYTES as usize), GROUP_BYTES as usize - BLOCK_BYTES);
        (0..GROUP_BLOCKS).for_each(|block| mask.insert(block));
        assert_eq!(mask.rest(GROUP_BYTES as usize).count(), 0);
    }

    /// P6: of blocks of code come the fields, of the rest all bytes; a block that is here does not come, and one that is not whole comes as it is.
    #[test]
    fn of_code_the_fields_come() {
        let mask = |blocks: &[usize]| {
            let mut mask = BlockMask::default();
            blocks.iter().for_each(|block| mask.insert(*block));
            mask
        };
        let have = Have { blocks: mask(&[0, 1]), code: mask(&[1, 2, 4]) };
        assert_eq!(have.code_blocks(300).collect::<Vec<_>>(), [128]);
        assert!(have.rest(300).eq(std::iter::once(192..300)));
        assert_eq!((have.rest_bytes(300), have.rest_bytes(320)), (108..172, 64..192));
        assert_eq!(Have::from(mask(&[0])).rest_bytes(200), 136..136);
    }

    #[test]
    fn masks_are_bounded() {
        let mut mask = BlockMask::default();
        mask.insert(9);
        let bytes = crate::cbor::encode(&mask);
        assert_eq!(bytes, [0x42, 0, 2]);
        assert_eq!(crate::cbor::decode::<BlockMask>(&bytes, "mask").unwrap(), mask);
        for bad in [vec![], vec![1; MASK_BYTES + 1]] {
            let bytes = crate::cbor::encode(&minicbor::bytes::ByteVec::from(bad));
            assert!(crate::cbor::decode::<BlockMask>(&bytes, "mask").is_err());
        }
    }
}
