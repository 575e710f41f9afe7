//! How much of a file stands in it more than once, guessed for next to nothing while the file is hashed: of each unit one
//! group, chosen by chance, is looked through for places that its content chooses, and places seen before are counted.
//! Content that stands in the file twice is found as often as both its places were looked at: one time in 16.

use std::sync::{Mutex, PoisonError};

use dray_core::hash_tree::Geometry;
use dray_core::limits::{GROUP_BYTES, UNIT_GROUPS, UPDATE_BYTES_MAX};

/// Bytes a place is known by.
const PLACE_BYTES: usize = 32;
/// Places of one group that count: one in 2,048 bytes of ordinary data is one.
const PLACES_MAX: usize = 64;
/// Fewer places tell nothing.
const PLACES_MIN: usize = 128;
/// Bytes whose places are looked for together.
const BLOCK_BYTES: usize = 64;

/// The places seen so far, by a hash of what stands there.
#[derive(Debug)]
pub(super) struct Repeats {
    geometry: Geometry,
    places: Mutex<Vec<u64>>,
}

impl Repeats {
    pub(super) fn new(geometry: Geometry) -> Repeats {
        Repeats { geometry, places: Mutex::default() }
    }

    /// Which group of `unit` is to be looked at; `None` for objects so large that it does not matter.
    pub(super) fn group_of(&self, unit: u64) -> Option<u64> {
        // The finalizer of SplitMix64: a regular choice would never see content again that moved by half a unit.
        let mut chance = unit.wrapping_add(0x9e37_79b9_7f4a_7c15);
        chance = (chance ^ (chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        chance = (chance ^ (chance >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let group = unit * UNIT_GROUPS + (chance >> 60) % UNIT_GROUPS;
        (self.geometry.size_bytes() <= UPDATE_BYTES_MAX && group < self.geometry.groups()).then_some(group)
    }

    /// Looks at the bytes of a group.
    pub(super) fn look(&self, bytes: &[u8]) {
        debug_assert!(bytes.len() as u64 <= GROUP_BYTES);
        let mut found = Vec::with_capacity(PLACES_MAX);
        let mut at = 0;
        while at + BLOCK_BYTES + PLACE_BYTES <= bytes.len() && found.len() < PLACES_MAX {
            let Some(block) = bytes[at..].first_chunk() else { break };
            // No branch within: the compiler makes wide instructions of it.
            let least = (0..BLOCK_BYTES).fold(u8::MAX, |least, offset| least.min(distance(block, offset)));
            if least == 0 {
                let places = (0..BLOCK_BYTES).filter(|offset| distance(block, *offset) == 0);
                found.extend(places.map(|offset| key(&bytes[at + offset..])));
            }
            at += BLOCK_BYTES;
        }
        self.places.lock().unwrap_or_else(PoisonError::into_inner).append(&mut found);
    }

    /// Of a thousand bytes, how many stand in the file before, as a guess.
    pub(super) fn permille(self) -> u16 {
        let mut places = self.places.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all = places.len();
        if all < PLACES_MIN {
            return 0;
        }
        places.sort_unstable();
        places.dedup();
        let again = (all - places.len()) as u64;
        (again * UNIT_GROUPS * 1000 / all as u64).min(1000) as u16
    }
}

/// 0 where the content chooses the place. Runs of one byte never do: four times a byte is even.
fn distance(bytes: &[u8; BLOCK_BYTES + 8], at: usize) -> u8 {
    let sum = bytes[at].wrapping_add(bytes[at + 1]).wrapping_add(bytes[at + 2]).wrapping_add(bytes[at + 3]);
    (sum ^ 0x5b) | (bytes[at + 5] & 7)
}

/// A hash of what stands there.
fn key(bytes: &[u8]) -> u64 {
    let (words, _) = bytes[..PLACE_BYTES].as_chunks::<8>();
    words.iter().fold(0, |hash: u64, word| {
        (hash.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[cfg(test)]
mod tests {
    use dray_core::limits::UNIT_BYTES;

    use super::*;

    fn permille(data: &[u8]) -> u16 {
        let geometry = Geometry::new(data.len() as u64);
        let repeats = Repeats::new(geometry);
        for unit in 0..geometry.units() {
            if let Some(group) = repeats.group_of(unit) {
                let start = (group * GROUP_BYTES) as usize;
                repeats.look(&data[start..start + geometry.group_bytes(group)]);
            }
        }
        repeats.permille()
    }

    fn random(bytes: usize, mut state: u64) -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    /// The "identical chunks within one object": what stands there twice, at whatever distance, is noticed, and
    /// what does not is not.
    #[test]
    fn repeats_are_noticed_and_nothing_else() {
        let once = random(64 * UNIT_BYTES as usize, 7);
        assert_eq!(permille(&once), 0);
        for (shift, len) in [(0, 64), (1, 64), (GROUP_BYTES as usize * 7 + 333, 64), (500_000, 32)] {
            let mut twice = once.clone();
            twice.extend_from_slice(&random(shift, 9));
            twice.extend_from_slice(&once[..len * UNIT_BYTES as usize]);
            let told = permille(&twice);
            // A guess: what counts is that it is far from nothing.
            assert!((60..=1000).contains(&told), "shift {shift}, {len} MiB: {told}");
        }
        for byte in [0, 0x20, 0x5b, 0xff] {
            assert_eq!(permille(&vec![byte; 20 * UNIT_BYTES as usize]), 0, "byte {byte}");
        }
        assert_eq!(permille(&[]), 0);
        assert_eq!(permille(b"short"), 0);
    }

    /// No object makes this take much memory.
    #[test]
    fn places_are_bounded() {
        let repeats = Repeats::new(Geometry::new(UNIT_BYTES));
        // Every fourth byte of it is such a place.
        let dense: Vec<u8> = [0x5b, 0, 0, 0].into_iter().cycle().take(GROUP_BYTES as usize).collect();
        repeats.look(&dense);
        assert!(repeats.places.lock().unwrap().len() < PLACES_MAX + BLOCK_BYTES);
        assert_eq!(Repeats::new(Geometry::new(UPDATE_BYTES_MAX + 1)).group_of(0), None);
    }
}
