//! Fields of x86-64 code: displacements, which say how far it is to what an instruction calls or names, and numbers. Where a program is built
//! again those change and the rest of it does not: so blocks of code are compared without them, and of a block that is alike but for them only
//! they are sent.
//!
//! A field has four bytes, little-endian. A *displacement* ends with 0 or 255 (nothing is farther than 16 MiB) and stands behind `call` or
//! `jmp` (E8, E9), or behind the byte that says "relative to the next instruction" (ModRM with mod 0 and r/m 5) of an instruction whose opcode
//! ends with one of [`NAMING`]. A *number* ends with 0 and stands behind `mov` into a register (B8 to BF). Fields are told in the order of the
//! bytes, and none begins within another. What seems to be one and is not costs a few bytes, and what is one and does not seem so makes two
//! blocks differ: nothing is believed of this.

use crate::block_mask::BLOCK_BYTES;
use crate::block_sum::{SUM_BYTES, sum_of_coefficients, sums_with};
use crate::message::BlockRun;

/// Bytes in front of a block that say which of its own are fields: enough to fall in step with the instructions.
pub const BEFORE_BYTES: usize = 16;
/// Bytes behind it that do: a field may reach there.
pub const BEHIND_BYTES: usize = FIELD_BYTES - 1;
const FIELD_BYTES: usize = 4;

const CALL: u8 = 0xe8;
const JUMP: u8 = 0xe9;
/// Last bytes of opcodes of instructions that work on something they name: moves, arithmetic, comparisons, and those of SSE.
const NAMING: [bool; 256] = {
    let codes = [
        0x01, 0x03, 0x09, 0x0b, 0x0d, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1a, 0x21, 0x23,
        0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x31, 0x33, 0x38, 0x39, 0x3a, 0x3b, 0x42, 0x43, 0x44,
        0x45, 0x46, 0x47, 0x51, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f, 0x63,
        0x6e, 0x6f, 0x7e, 0x7f, 0x80, 0x81, 0x83, 0x84, 0x85, 0x88, 0x89, 0x8a, 0x8b, 0x8d, 0x98, 0x99, 0xa9,
        0xaf, 0xb6, 0xb7, 0xb8, 0xbe, 0xbf, 0xc6, 0xc7, 0xd4, 0xd6, 0xdb, 0xeb, 0xef, 0xf6, 0xf7, 0xff,
    ];
    let mut is_naming = [false; 256];
    let mut at = 0;
    while at < codes.len() {
        is_naming[codes[at]] = true;
        at += 1;
    }
    is_naming
};

/// What a byte of a field counts in a sum, whatever it is: more than any other byte does.
const DISPLACEMENT: u16 = 257;
const NUMBER: u16 = 258;
const FURTHER: u16 = 259;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Displacement,
    Number,
}

/// The field that begins at `at`, if one does.
fn field_at(bytes: &[u8], at: usize) -> Option<Field> {
    let (front, field) = (bytes.get(..at)?, bytes.get(at..at + FIELD_BYTES)?);
    let (last, code) = (*field.last()?, *front.last()?);
    if last != 0 && last != 0xff {
        return None;
    }
    if code & 0xf8 == 0xb8 {
        return (last == 0).then_some(Field::Number);
    }
    let is_naming = || front.len() > 1 && NAMING[usize::from(front[front.len() - 2])];
    (code == CALL || code == JUMP || (code & 0xc7 == 0x05 && is_naming())).then_some(Field::Displacement)
}

/// The fields in `bytes`, ascending.
fn fields_in(bytes: &[u8]) -> impl Iterator<Item = (usize, Field)> {
    let mut at = 1;
    std::iter::from_fn(move || {
        while at + FIELD_BYTES <= bytes.len() {
            let found = field_at(bytes, at).map(|field| (at, field));
            at += if found.is_some() { FIELD_BYTES } else { 1 };
            if found.is_some() {
                return found;
            }
        }
        None
    })
}

/// What each of `bytes` counts in a sum of code. [`CodeFields::coefficient`] is the same but for blocks where another byte is the first that is looked at.
pub fn coefficients(bytes: &[u8]) -> Vec<u16> {
    let mut all: Vec<u16> = bytes.iter().map(|byte| u16::from(*byte) + 1).collect();
    for (at, field) in fields_in(bytes) {
        all[at..at + FIELD_BYTES].fill(FURTHER);
        all[at] = if field == Field::Number { NUMBER } else { DISPLACEMENT };
    }
    all
}

/// Which bytes of a block of [`BLOCK_BYTES`] are parts of fields: a bit for each, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CodeFields {
    bytes: u64,
    /// First bytes of fields, and those of numbers among them.
    starts: u64,
    numbers: u64,
}

impl CodeFields {
    /// Of the block that begins at `at` of `bytes`. Of what is around it [`BEFORE_BYTES`] and [`BEHIND_BYTES`] are looked at, as far as they are
    /// there.
    pub fn of(bytes: &[u8], at: usize) -> CodeFields {
        let from = at.saturating_sub(BEFORE_BYTES);
        let end = bytes.len().min(at.saturating_add(BLOCK_BYTES + BEHIND_BYTES));
        let mut found = CodeFields::default();
        let Some(bytes) = bytes.get(from..end) else { return found };
        for (place, field) in fields_in(bytes) {
            // Below 2^87: what is in front of the block falls off, and what is behind it.
            let bits = |bits: u128| ((bits << place) >> (at - from)) as u64;
            found.bytes |= bits(0b1111);
            found.starts |= bits(1);
            found.numbers |= if field == Field::Number { bits(1) } else { 0 };
        }
        found
    }

    /// How many bytes they have.
    pub fn count(&self) -> usize {
        self.bytes.count_ones() as usize
    }

    /// What the byte at `place` of the block counts in its sum.
    fn coefficient(&self, place: usize, byte: u8) -> u16 {
        let has = |bits: u64| bits >> place & 1 == 1;
        match () {
            () if !has(self.bytes) => u16::from(byte) + 1,
            () if !has(self.starts) => FURTHER,
            () if has(self.numbers) => NUMBER,
            () => DISPLACEMENT,
        }
    }

    /// Runs of bytes of one field each, ascending; and whether one is all of a displacement.
    fn runs(self) -> impl Iterator<Item = (std::ops::Range<usize>, bool)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let has = |bits: u64, place: usize| place < BLOCK_BYTES && bits >> place & 1 == 1;
            let start = (at..BLOCK_BYTES).find(|place| has(self.bytes, *place))?;
            let is_further = |place: &usize| has(self.bytes, *place) && !has(self.starts, *place);
            let further = (start + 1..start + FIELD_BYTES).take_while(is_further).count();
            at = start + 1 + further;
            let is_displacement = has(self.starts, start) && !has(self.numbers, start);
            Some((start..at, is_displacement && at - start == FIELD_BYTES))
        })
    }

    /// Appends the fields of `block`, which begins at `offset` of its file, to `out`: a displacement as the place it leads to, since that is
    /// named more than once.
    pub fn take(self, block: &[u8], offset: u64, out: &mut Vec<u8>) {
        for (run, is_displacement) in self.runs() {
            let Some(field) = block.get(run.clone()) else { return };
            match <[u8; FIELD_BYTES]>::try_from(field) {
                Ok(field) if is_displacement => {
                    let place = u32::from_le_bytes(field).wrapping_add(behind(&run, offset));
                    out.extend_from_slice(&place.to_le_bytes());
                }
                _ => out.extend_from_slice(field),
            }
        }
    }

    /// Puts fields into `block` where its own are: those that `told` begins with, which it loses. False if it has too few.
    pub fn put(self, block: &mut [u8], offset: u64, told: &mut &[u8]) -> bool {
        for (run, is_displacement) in self.runs() {
            let Some((first, rest)) = told.split_at_checked(run.len()) else { return false };
            let Some(field) = block.get_mut(run.clone()) else { return false };
            match <[u8; FIELD_BYTES]>::try_from(first) {
                Ok(place) if is_displacement => {
                    let displacement = u32::from_le_bytes(place).wrapping_sub(behind(&run, offset));
                    field.copy_from_slice(&displacement.to_le_bytes());
                }
                _ => field.copy_from_slice(first),
            }
            *told = rest;
        }
        true
    }
}

/// Where what follows a field lies in its file: the lower half of that in files beyond 4 GiB, which is as good.
fn behind(run: &std::ops::Range<usize>, offset: u64) -> u32 {
    offset.wrapping_add(run.end as u64) as u32
}

/// The sum of `block_bytes` of code from `at` of `bytes` on, without its fields: whole blocks of [`BLOCK_BYTES`], each with what is around it.
pub fn code_sum_of(bytes: &[u8], at: usize, block_bytes: usize) -> [u8; SUM_BYTES] {
    let end = bytes.len().min(at.saturating_add(block_bytes));
    sum_of_coefficients((at..end).step_by(BLOCK_BYTES).flat_map(|start| {
        let fields = CodeFields::of(bytes, start);
        let block = bytes[start..end.min(start + BLOCK_BYTES)].iter().enumerate();
        block.map(move |(place, byte)| fields.coefficient(place, *byte))
    }))
}

/// As [`crate::block_sum::sums_of`], of code in a file of `size_bytes`, within which all blocks lie: [`code_sum_of`] each.
pub fn code_sums_of<E>(
    runs: &[BlockRun],
    block_bytes: u32,
    sum_bytes: u8,
    size_bytes: u64,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let around = |at: u64, stop: u64| {
        (at.saturating_sub(BEFORE_BYTES as u64), size_bytes.min(stop + BEHIND_BYTES as u64).max(stop))
    };
    sums_with(runs, block_bytes, sum_bytes, around, read, code_sum_of)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `call`, `lea` of something named, `mov` of a number and a jump that is none of these, with these bytes in their fields.
    fn code(call: [u8; 4], named: [u8; 4], number: [u8; 4]) -> Vec<u8> {
        let mut code = vec![0x90; 20];
        code.push(CALL);
        code.extend(call);
        code.extend([0x48, 0x8d, 0x3d]);
        code.extend(named);
        code.push(0xbe);
        code.extend(number);
        code.extend([0x0f, 0x84, 9, 9, 0, 0]);
        code.resize(3 * BLOCK_BYTES, 0x90);
        code
    }

    fn fields(code: &[u8], at: usize) -> Vec<u8> {
        let mut out = Vec::new();
        CodeFields::of(code, at).take(&code[at..at + BLOCK_BYTES], 0, &mut out);
        out
    }

    /// Golden: which bytes are fields, how they are told and what a sum is without them is wire format. A displacement is told as where it leads.
    #[test]
    fn fields_do_not_change() {
        let code = code([0x10, 0x20, 0, 0], [0xf0, 0xff, 0xff, 0xff], [7, 1, 0, 0]);
        assert_eq!(CodeFields::of(&code, 0).count(), 12);
        let (called, named) = (0x2010_u32 + 25, 32_u32.wrapping_sub(16));
        assert_eq!(
            fields(&code, 0),
            [&called.to_le_bytes()[..], &named.to_le_bytes(), &[7, 1, 0, 0]].concat()
        );
        assert!(fields(&code, BLOCK_BYTES).is_empty());
        let sums = [code_sum_of(&code, 0, 64), code_sum_of(&code, 0, 128), code_sum_of(&code, 64, 64)];
        assert_eq!(
            sums.map(u64::from_be_bytes),
            [0x2353_a6ce_2396_9d10, 0xc201_ee92_274c_eef7, 0x6c9d_6d4a_ab60_7e4f]
        );
        assert_eq!(code_sum_of(&code, 64, 64), crate::block_sum::sum_of(&code[64..128]), "there are none");
    }

    /// P6: blocks are alike whatever their fields are, and not if anything else is another, or if something that was a field is none.
    #[test]
    fn blocks_are_alike_but_for_their_fields() {
        let one = code([1, 2, 3, 0], [1, 0, 0, 0], [5, 0, 0, 0]);
        let other = code([0xe8, 0xbe, 0xe8, 0xff], [0, 0xe9, 5, 0xff], [0xb8, 0xb9, 0xe8, 0]);
        assert_eq!(code_sum_of(&one, 0, 128), code_sum_of(&other, 0, 128));
        for (at, byte) in [(0, 1), (20, 0xe7), (27, 0x3e), (24, 7), (36, 0xff), (40, 8)] {
            let mut wrong = other.clone();
            wrong[at] = byte;
            assert_ne!(code_sum_of(&one, 0, 128), code_sum_of(&wrong, 0, 128), "{at}");
        }
    }

    /// P6: what is searched for at every byte is what is told of blocks, but for what stands in front of them.
    #[test]
    fn what_rolls_is_what_is_told() {
        let code = code([1, 2, 3, 0], [1, 0, 0, 0], [5, 0, 0, 0]);
        let all = coefficients(&code);
        let mut rolling = crate::block_sum::RollingSum::of_coefficients(&all[..BLOCK_BYTES]);
        for at in 0..code.len() - BLOCK_BYTES {
            // Where a field begins before what is looked at, there is another one in its bytes, perhaps.
            if !(20..=60).contains(&at) {
                assert_eq!(rolling.sum(), code_sum_of(&code, at, BLOCK_BYTES), "{at}");
            }
            rolling.roll_coefficient(all[at], all[at + BLOCK_BYTES]);
        }
    }

    /// A field that reaches into the next block is part of both, and each has its own bytes of it.
    #[test]
    fn fields_reach_into_the_next_block() {
        let mut code = vec![0x90; 128];
        code[61..66].copy_from_slice(&[CALL, 1, 2, 3, 0]);
        assert_eq!((fields(&code, 0), fields(&code, 64)), (vec![1, 2], vec![3, 0]));
        assert!(fields(&code[..64], 0).is_empty(), "its last byte is not there");
    }

    proptest! {
        /// Whatever a file has: fields that were taken and are put where others were make the block that they were taken of. What is no field stays,
        /// too few are an error, and nothing panics.
        #[test]
        fn fields_come_back(
            mut bytes in prop::collection::vec(prop_oneof![Just(0xe8), Just(0xbe), Just(0), Just(0x8d), Just(5), any::<u8>()], 64..200),
            at in 0_usize..140, offset in any::<u64>(), other in prop::collection::vec(any::<u8>(), 64..=64),
        ) {
            let at = at.min(bytes.len() - BLOCK_BYTES);
            let fields = CodeFields::of(&bytes, at);
            let block = bytes[at..at + BLOCK_BYTES].to_vec();
            let mut told = Vec::new();
            fields.take(&block, offset, &mut told);
            prop_assert_eq!(told.len(), fields.count());
            for (place, byte) in other.iter().enumerate() {
                if fields.bytes >> place & 1 == 1 {
                    bytes[at + place] = *byte;
                }
            }
            let mut rest = &[&told[..], &[9]].concat()[..];
            prop_assert!(fields.put(&mut bytes[at..at + BLOCK_BYTES], offset, &mut rest));
            prop_assert_eq!((&bytes[at..at + BLOCK_BYTES], rest), (&block[..], &[9][..]));
            if let Some(fewer) = told.len().checked_sub(1) {
                prop_assert!(!fields.put(&mut bytes[at..at + BLOCK_BYTES], offset, &mut &told[..fewer]));
            }
        }

        /// Sums of runs are those of their blocks, wherever in the file they are and however much is read at a time.
        #[test]
        fn runs_have_the_sums_of_their_blocks(bytes in prop::collection::vec(any::<u8>(), 1024..2000), start in 0_u64..8, blocks in 1_u32..8) {
            let run = BlockRun { start, blocks };
            let read = |at: u64, out: &mut [u8]| {
                out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
                Ok::<(), ()>(())
            };
            let sums = code_sums_of(&[run], 64, 2, bytes.len() as u64, read).unwrap();
            let expected: Vec<u8> = (start..start + u64::from(blocks))
                .flat_map(|block| code_sum_of(&bytes, block as usize * 64, 64)[..2].to_vec())
                .collect();
            prop_assert_eq!(sums, expected);
        }
    }
}
