//! The hash of a file's content in a tree copy: BLAKE3 of its bytes, but groups of nothing but zeros are counted instead of
//! hashed, so that a hole costs the same whatever its length.
//!
//! A leaf of BLAKE3's tree is hashed with its number, so equal subtrees at different places have different values and the
//! hash of `n` zero bytes takes time in proportion to `n`. A copy of a tree needs no more than that both ends agree on a value
//! that only equal bytes have; it need not be an OID.

use crate::limits::GROUP_BYTES;

use super::is_zero;

/// What the hash of a content with groups of zeros is derived with.
const CONTEXT: &str = "drayman 2026-11-22 tree content with zeros 1";
/// What the head of a group is hashed as when zeros come before its first other byte.
static ZEROS: [u8; GROUP_BYTES as usize] = [0; GROUP_BYTES as usize];

/// Hashes a content as it comes. The value depends on the bytes alone, not on how they are divided or on which of them are
/// stored as holes:
///
/// * the content is divided in groups of 64 KiB, of which the last may be shorter;
/// * if no group is all zeros, the value is BLAKE3 of the content, its OID;
/// * else it is BLAKE3 in key derivation mode of: for each longest run of groups that are not all zeros, its first byte's offset
///   and its length; the size; and BLAKE3 of those runs put together. Numbers have 8 bytes, big-endian.
#[derive(Clone, Debug, Default)]
pub struct ContentHasher {
    /// The bytes of groups that are not all zeros.
    data: blake3::Hasher,
    /// The runs of such groups that have ended, once there is a group of zeros.
    runs: Option<Box<blake3::Hasher>>,
    /// Where the last such run begins, and where it ends or stands now.
    run: (u64, u64),
    position: u64,
    /// Some byte of the group that `position` is in was not zero. Until then nothing of it is hashed.
    is_data: bool,
}

impl ContentHasher {
    /// Nothing has come.
    pub fn new() -> ContentHasher {
        ContentHasher::default()
    }

    /// The next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (in_group, room) = self.place();
            let (piece, rest) = bytes.split_at(bytes.len().min(room));
            bytes = rest;
            if !self.is_data && !is_zero(piece) {
                self.begin_data(in_group);
            }
            if self.is_data {
                self.data.update(piece);
            }
            self.advance(piece.len() as u64);
        }
    }

    /// The next `count` bytes are zeros. Takes the time of one group at most.
    pub fn zeros(&mut self, mut count: u64) {
        let (in_group, room) = self.place();
        if self.is_data && in_group > 0 {
            let rest = count.min(room as u64);
            self.data.update(&ZEROS[..rest as usize]);
            self.advance(rest);
            count -= rest;
            self.is_data = count == 0;
        }
        self.advance(count);
    }

    /// The value for what has come.
    pub fn finish(&self) -> [u8; 32] {
        let data = self.data.finalize();
        let is_whole = self.runs.is_none() && self.run == (0, self.position);
        if is_whole {
            return *data.as_bytes();
        }
        let mut runs = self.runs.as_deref().cloned().unwrap_or_else(derived);
        push_run(&mut runs, self.run);
        runs.update(&self.position.to_be_bytes()).update(data.as_bytes());
        *runs.finalize().as_bytes()
    }

    /// Forgets what has come.
    pub fn reset(&mut self) {
        *self = ContentHasher::default();
    }

    /// Where in its group the next byte is, and how many the group still takes.
    fn place(&mut self) -> (usize, usize) {
        // Both below GROUP_BYTES + 1.
        let in_group = (self.position % GROUP_BYTES) as usize;
        if in_group == 0 {
            self.is_data = false;
        }
        (in_group, GROUP_BYTES as usize - in_group)
    }

    /// The group, of which `in_group` bytes have come and were zero, is not all zeros.
    fn begin_data(&mut self, in_group: usize) {
        self.is_data = true;
        let start = self.position - in_group as u64;
        if start != self.run.1 {
            let ended = self.run;
            push_run(self.runs.get_or_insert_with(|| Box::new(derived())), ended);
            self.run = (start, start);
        }
        self.data.update(&ZEROS[..in_group]);
    }

    fn advance(&mut self, count: u64) {
        // A content of more than 2^64 bytes is refused by whoever is to hold it.
        self.position = self.position.saturating_add(count);
        if self.is_data {
            self.run.1 = self.position;
        }
    }
}

fn derived() -> blake3::Hasher {
    blake3::Hasher::new_derive_key(CONTEXT)
}

fn push_run(runs: &mut blake3::Hasher, (start, end): (u64, u64)) {
    if end > start {
        runs.update(&start.to_be_bytes()).update(&(end - start).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GROUP: usize = GROUP_BYTES as usize;

    /// The definition, word by word.
    fn defined(content: &[u8]) -> [u8; 32] {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut data = Vec::new();
        for (number, group) in content.chunks(GROUP).enumerate() {
            if group.iter().all(|byte| *byte == 0) {
                continue;
            }
            data.extend_from_slice(group);
            let start = number * GROUP;
            match runs.last_mut() {
                Some((at, len)) if *at + *len == start => *len += group.len(),
                _ => runs.push((start, group.len())),
            }
        }
        if data.len() == content.len() {
            return *blake3::hash(content).as_bytes();
        }
        let mut said = Vec::new();
        for (at, len) in runs {
            said.extend_from_slice(&(at as u64).to_be_bytes());
            said.extend_from_slice(&(len as u64).to_be_bytes());
        }
        said.extend_from_slice(&(content.len() as u64).to_be_bytes());
        said.extend_from_slice(blake3::hash(&data).as_bytes());
        blake3::derive_key(CONTEXT, &said)
    }

    /// Without a group of zeros it is the OID; otherwise it is as defined. The vector is wire format.
    #[test]
    fn the_value_is_as_defined() {
        assert_eq!(ContentHasher::new().finish(), *blake3::hash(b"").as_bytes());
        let mut hasher = ContentHasher::new();
        hasher.update(b"dray");
        assert_eq!(hasher.finish(), *blake3::hash(b"dray").as_bytes());
        hasher.reset();
        hasher.zeros(3 * GROUP_BYTES);
        hasher.update(b"dray");
        let hex = crate::text::hex(&hasher.finish());
        assert_eq!(hex, "335a6a5fe7e10931c8abcc7f9d60755a6a3afb756ab89bd72091e20debd5dd59");
        // A hole that begins in a group with data.
        let content = [&b"x"[..], &vec![0; 2 * GROUP], b"y"].concat();
        hasher.reset();
        hasher.update(b"x");
        hasher.zeros(2 * GROUP_BYTES);
        hasher.update(b"y");
        assert_eq!(hasher.finish(), defined(&content));
    }

    /// Design 9: a hole of any length costs nothing; where it lies and how long it is counts.
    #[test]
    fn holes_of_any_length_cost_nothing() {
        let value = |before: u64, hole: u64, after: u64| {
            let mut hasher = ContentHasher::new();
            hasher.zeros(before);
            hasher.update(b"x");
            hasher.zeros(hole);
            hasher.update(b"y");
            hasher.zeros(after);
            hasher.finish()
        };
        let far = 1 << 60;
        let values =
            [value(0, far, 0), value(0, far + 1, 0), value(1, far, 0), value(far, 0, 1), value(far, 0, 0)];
        for (number, one) in values.iter().enumerate() {
            assert!(values.iter().skip(number + 1).all(|other| one != other));
        }
    }

    proptest! {
        /// However the bytes come, as bytes or as holes.
        #[test]
        fn the_value_depends_on_the_bytes_alone(
            pieces in prop::collection::vec((any::<bool>(), 0..3 * GROUP, any::<bool>()), 0..6),
            cuts in prop::collection::vec(1..2 * GROUP, 1..5),
        ) {
            let mut content = Vec::new();
            let mut hasher = ContentHasher::new();
            for (is_zero, len, is_hole) in pieces {
                let start = content.len();
                content.resize(start + len, 0);
                if is_zero && is_hole {
                    hasher.zeros(len as u64);
                    continue;
                }
                if !is_zero && len > 0 {
                    content[start + len / 2] = 1;
                }
                let mut rest = &content[start..];
                for cut in cuts.iter().cycle() {
                    let (piece, tail) = rest.split_at(rest.len().min(*cut));
                    hasher.update(piece);
                    rest = tail;
                    if rest.is_empty() {
                        break;
                    }
                }
            }
            prop_assert_eq!(hasher.finish(), defined(&content));
        }
    }
}
