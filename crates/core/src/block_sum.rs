//! Sums of blocks: where they lie in something similar, also at other offsets. They say where to look and prove nothing.
//!
//! The sum of a block is a polynomial over its bytes modulo 2^64, each byte and one as a coefficient, the first with the highest
//! power of [`FACTOR`] (Karp and Rabin, 1987); then mixed with the finalizer of MurmurHash3 (Appleby, 2011), so that any part
//! of it is as good as any other. Big-endian on the wire, the first bytes of it.

use crate::limits::SUMS_BLOCK_BYTES_MAX;
use crate::message::BlockRun;

/// The base of the polynomial: odd, and nothing else to it (2^64 by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of a whole sum.
pub const SUM_BYTES: usize = 8;

/// The sum of `block`.
pub fn sum_of(block: &[u8]) -> [u8; SUM_BYTES] {
    mix(polynomial(block)).to_be_bytes()
}

/// Bytes that [`sums_of`] reads at a time: as many blocks of any length.
const SUMMED_BYTES: u64 = SUMS_BLOCK_BYTES_MAX as u64 * 4;

/// The sums of the blocks of `runs`, in order, the first `sum_bytes` of each. `read` fills what it is given with what lies at an offset:
/// 256 KiB at most, whole blocks. The answer takes `sum_bytes` for each block, so whoever asks has to be bounded before.
pub fn sums_of<E>(
    runs: &[BlockRun],
    block_bytes: u32,
    sum_bytes: u8,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let sum = |bytes: &[u8], at: usize, len: usize| sum_of(&bytes[at..at + len]);
    sums_with(runs, block_bytes, sum_bytes, |at, stop| (at, stop), read, sum)
}

/// The same of another `sum`, which is told where in what was read its block begins and how long it is; `around` says from where to where is read for blocks
/// between two offsets.
pub(crate) fn sums_with<E>(
    runs: &[BlockRun],
    block_bytes: u32,
    sum_bytes: u8,
    around: impl Fn(u64, u64) -> (u64, u64),
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    sum: impl Fn(&[u8], usize, usize) -> [u8; SUM_BYTES],
) -> Result<Vec<u8>, E> {
    let block_bytes = u64::from(block_bytes);
    let (mut sums, mut bytes) = (Vec::new(), Vec::new());
    for run in runs {
        let (mut at, end) = (run.start * block_bytes, (run.start + u64::from(run.blocks)) * block_bytes);
        while at < end {
            let stop = end.min(at + SUMMED_BYTES);
            let (from, to) = around(at, stop);
            bytes.resize((to - from) as usize, 0);
            read(from, &mut bytes)?;
            for block in (at..stop).step_by(block_bytes as usize) {
                let sum = sum(&bytes, (block - from) as usize, block_bytes as usize);
                sums.extend_from_slice(&sum[..usize::from(sum_bytes).min(SUM_BYTES)]);
            }
            at = stop;
        }
    }
    Ok(sums)
}

fn polynomial(block: &[u8]) -> u64 {
    block.iter().fold(0, |value, byte| next(value, coefficient(*byte)))
}

fn next(value: u64, coefficient: u64) -> u64 {
    value.wrapping_mul(FACTOR).wrapping_add(coefficient)
}

/// The sum of whatever has these coefficients in place of bytes and one.
pub(crate) fn sum_of_coefficients(coefficients: impl Iterator<Item = u16>) -> [u8; SUM_BYTES] {
    mix(coefficients.fold(0, |value, coefficient| next(value, coefficient.into()))).to_be_bytes()
}

fn coefficient(byte: u8) -> u64 {
    u64::from(byte) + 1
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ value >> 33
}

/// The sum of a block that moves byte by byte.
#[derive(Clone, Debug)]
pub struct RollingSum {
    value: u64,
    /// What the first byte counts for once the next one has come.
    leaving: u64,
}

impl RollingSum {
    /// Begins with `block`.
    pub fn new(block: &[u8]) -> RollingSum {
        let leaving = (0..block.len()).fold(1, |power: u64, _| power.wrapping_mul(FACTOR));
        RollingSum { value: polynomial(block), leaving }
    }

    /// Begins with a block that has these coefficients in place of bytes and one.
    pub fn of_coefficients(coefficients: &[u16]) -> RollingSum {
        let leaving = coefficients.iter().fold(1, |power: u64, _| power.wrapping_mul(FACTOR));
        RollingSum { value: coefficients.iter().fold(0, |value, more| next(value, (*more).into())), leaving }
    }

    /// One byte on: the first byte of the block goes, `next` comes.
    pub fn roll(&mut self, first: u8, next: u8) {
        // A byte and one.
        self.roll_coefficient(u16::from(first) + 1, u16::from(next) + 1);
    }

    /// The same of coefficients.
    pub fn roll_coefficient(&mut self, first: u16, coming: u16) {
        let value = next(self.value, coming.into());
        self.value = value.wrapping_sub(u64::from(first).wrapping_mul(self.leaving));
    }

    /// [`sum_of`] the block as it is now.
    pub fn sum(&self) -> [u8; SUM_BYTES] {
        mix(self.value).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values: sums are wire format.
    #[test]
    fn sums_do_not_change() {
        let sums = [&b""[..], b"a", b"drayman", &[0; 64]].map(|block| u64::from_be_bytes(sum_of(block)));
        let golden = [0, 0xac62_ed3c_7549_b674, 0x9067_a761_9b73_bdcf, 0x402a_6703_5cc2_e134];
        assert_eq!(sums, golden);
    }

    /// P6: a block is found wherever it lies, so what rolls is what is told.
    #[test]
    fn a_rolling_sum_is_the_sum_of_each_block() {
        let data: Vec<u8> = (0..2000_u32).map(|at| (at * at / 7) as u8).collect();
        let mut rolling = RollingSum::new(&data[..64]);
        for at in 0..data.len() - 64 {
            assert_eq!(rolling.sum(), sum_of(&data[at..at + 64]), "{at}");
            rolling.roll(data[at], data[at + 64]);
        }
    }

    /// Blocks that differ in one byte, as those of two versions of a program do, have other sums, and their first bytes differ as
    /// often as chance has it.
    #[test]
    fn one_byte_makes_another_sum() {
        let block = [0x90; 64];
        let (mut equal, mut all) = (0, 0);
        for at in 0..64 {
            for byte in (0..=255).filter(|byte| *byte != 0x90) {
                let mut other = block;
                other[at] = byte;
                assert_ne!(sum_of(&other), sum_of(&block));
                equal += u32::from(sum_of(&other)[0] == sum_of(&block)[0]);
                all += 1;
            }
        }
        assert!((all / 512..all / 128).contains(&equal), "{equal} of {all}");
    }
}
