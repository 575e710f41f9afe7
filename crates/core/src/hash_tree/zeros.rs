//! Finding zeros: runs of them are said instead of sent, and proven without their pairs.

/// Bytes looked at together: few enough to stop early, enough for wide instructions.
const STEP_BYTES: usize = 256;

/// True if every byte is zero. Other bytes cost nothing: one look at the first of them.
pub fn is_zero(bytes: &[u8]) -> bool {
    let any = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte) != 0;
    let (first, rest) = bytes.split_at(bytes.len().min(8));
    if any(first) {
        return false;
    }
    let (steps, tail) = rest.as_chunks::<STEP_BYTES>();
    !steps.iter().any(|step| any(step)) && !any(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit anywhere is noticed, whatever the length.
    #[test]
    fn one_bit_is_not_zero() {
        for len in [0, 1, 7, 8, 9, 263, 264, 265, 4096, 65_536] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for at in (0..len).step_by((len / 50).max(1)).chain(len.checked_sub(1)) {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
    }
}
