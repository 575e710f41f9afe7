//! SplitMix64 (Steele, Lea, Flood 2014): small, fast, and the same on every machine. The network lab has its own, as it knows nothing of this package.

/// The next 64 bits after `state`, which moves on.
pub fn next_word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
