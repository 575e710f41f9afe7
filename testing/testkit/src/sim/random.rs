//! The only source of chance of a simulation: one number decides everything that follows from it.

use crate::splitmix;

/// SplitMix64 from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed` and `purpose`, so that one more number drawn for one purpose does not
    /// change those of another.
    pub fn new(seed: u64, purpose: &str) -> Random {
        let mut mixed = Random(seed);
        for byte in purpose.bytes() {
            mixed.0 = mixed.0.wrapping_add(u64::from(byte));
            mixed.0 = mixed.number();
        }
        mixed
    }

    /// The next number, any of 2^64.
    pub fn number(&mut self) -> u64 {
        splitmix::next_word(&mut self.0)
    }

    /// A number from `0..end`; 0 if `end` is 0. The bias is below `end` / 2^64.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number().checked_rem(end).unwrap_or(0)
    }

    /// A number from `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// `count` different ones of `choices`, or all of them if there are fewer, in random order.
    pub fn sample<T: Clone>(&mut self, choices: &[T], count: usize) -> Vec<T> {
        let mut left = choices.to_vec();
        let mut taken = Vec::new();
        while taken.len() < count && !left.is_empty() {
            taken.push(left.swap_remove(self.below(left.len() as u64) as usize));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_are_apart_and_samples_are_different() {
        let first = Random::new(7, "plan").number();
        assert_eq!(first, Random::new(7, "plan").number());
        assert!(first != Random::new(7, "loss").number() && first != Random::new(8, "plan").number());
        let mut sample = Random::new(1, "x").sample(&[1, 2, 3, 4], 3);
        sample.sort_unstable();
        sample.dedup();
        assert_eq!(sample.len(), 3);
        assert_eq!(Random::new(1, "x").below(0), 0);
    }
}
