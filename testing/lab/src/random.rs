//! Chance that a seed decides.

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and the same for the same seed everywhere.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// In 0..1.
    pub(crate) fn next_share(&mut self) -> f64 {
        (self.next_word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as other implementations have them.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(
            [random.next_word(), random.next_word()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }
}
