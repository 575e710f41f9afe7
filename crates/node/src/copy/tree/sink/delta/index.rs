//! Which bytes of a newer version of a file an older one has, told from the chunks of both.

use std::collections::HashMap;
use std::ops::Range;

use dray_core::message::Part;
use dray_core::tree::ChunkHint;
use dray_store::local::tree::Cut;

/// Chunks of an older version, by hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// In the order of the file: where each begins, and what it is.
    chunks: Vec<(u64, ChunkHint)>,
    first: HashMap<[u8; 16], u32>,
}

/// Bytes that stand in the older version, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Common {
    /// Where there.
    pub(super) from: u64,
    /// Where in the newer one.
    pub(super) to: u64,
    pub(super) bytes: u64,
}

/// What the newer version, or some of it, is made of besides holes.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Ascending in the newer version.
    pub(super) common: Vec<Common>,
    /// What the older version does not have, ascending; none is empty, and no two touch.
    pub(super) missing: Vec<Part>,
}

impl Index {
    /// The next chunk of the older version, which begins at `start`.
    pub(super) fn push(&mut self, start: u64, hint: ChunkHint) {
        // Far fewer than 2^32.
        let number = self.chunks.len() as u32;
        self.chunks.push((start, hint));
        self.first.entry(hint.hash).or_insert(number);
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// A chunk like `hint`: the one after `last` if that is one, so that what lies together stays together.
    fn find(&self, hint: &ChunkHint, last: Option<u32>) -> Option<(u32, u64)> {
        let at = |number: u32| {
            let (start, here) = self.chunks.get(number as usize)?;
            (here == hint).then_some((number, *start))
        };
        let next = last.and_then(|last| at(last.wrapping_add(1)));
        next.or_else(|| self.first.get(&hint.hash).copied().and_then(at))
    }

    /// True if it has all of a newer version of these pieces.
    pub(super) fn has_all(&self, pieces: &[Cut]) -> bool {
        pieces.iter().all(|piece| match piece {
            Cut::Hole(_) => true,
            Cut::Chunk(hint) => self.find(hint, None).is_some(),
        })
    }

    /// Looks for `pieces` of the newer version, the first of which begins at `start` there.
    pub(super) fn compare(&self, start: u64, pieces: &[Cut], found: &mut Found) {
        self.compare_those(start, pieces, |_| true, found);
    }

    /// The same for those that begin in one of `missing`, which ascend.
    pub(super) fn compare_missing(&self, start: u64, pieces: &[Cut], missing: &[Part], found: &mut Found) {
        let is_missing = |at| {
            let next = missing.partition_point(|part| part.end() <= at);
            missing.get(next).is_some_and(|part| part.start <= at)
        };
        self.compare_those(start, pieces, is_missing, found);
    }

    fn compare_those(&self, start: u64, pieces: &[Cut], is_wanted: impl Fn(u64) -> bool, found: &mut Found) {
        let (mut at, mut last) = (start, None);
        for piece in pieces {
            let hint = match piece {
                Cut::Hole(len) => {
                    at = at.saturating_add(*len);
                    continue;
                }
                Cut::Chunk(hint) => hint,
            };
            let bytes = u64::from(hint.len);
            if is_wanted(at) {
                match self.find(hint, last) {
                    Some((number, from)) => {
                        last = Some(number);
                        found.add_common(Common { from, to: at, bytes });
                    }
                    None => found.add_missing(Part { start: at, bytes }),
                }
            }
            at = at.saturating_add(bytes);
        }
    }
}

impl Found {
    fn add_common(&mut self, common: Common) {
        if let Some(last) = self.common.last_mut()
            && (last.from + last.bytes, last.to + last.bytes) == (common.from, common.to)
        {
            last.bytes += common.bytes;
        } else {
            self.common.push(common);
        }
    }

    fn add_missing(&mut self, part: Part) {
        match self.missing.last_mut() {
            Some(last) if last.end() == part.start => last.bytes += part.bytes,
            _ => self.missing.push(part),
        }
    }

    /// Bytes that both have.
    pub(super) fn common_bytes(&self) -> u64 {
        self.common.iter().map(|common| common.bytes).sum()
    }

    /// What of an older version of `size_bytes` the newer one was not seen to have.
    pub(super) fn unused(&self, size_bytes: u64) -> Vec<Range<u64>> {
        let mut used: Vec<(u64, u64)> =
            self.common.iter().map(|common| (common.from, common.from + common.bytes)).collect();
        used.sort_unstable();
        let (mut unused, mut at) = (Vec::new(), 0);
        for (start, end) in used.into_iter().chain([(size_bytes, size_bytes)]) {
            if start > at {
                unused.push(at..start);
            }
            at = at.max(end);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> ChunkHint {
        ChunkHint::of(text.as_bytes())
    }

    fn index(words: &str) -> Index {
        let (mut index, mut at) = (Index::default(), 0);
        for word in words.split(' ') {
            index.push(at, chunk(word));
            at += word.len() as u64;
        }
        index
    }

    fn compare(old: &str, new: &[Cut]) -> Found {
        let mut found = Found::default();
        index(old).compare(0, new, &mut found);
        found
    }

    fn new(words: &str) -> Vec<Cut> {
        words.split(' ').map(|word| Cut::Chunk(chunk(word))).collect()
    }

    /// Y13, Y26: what both have is copied in runs, what is new is asked for in runs, and what is left of the older version is where
    /// finer chunks may be found.
    #[test]
    fn runs_are_found() {
        let found = compare("aa bbb cc dd aa ee", &new("aa bbb xx yyy cc dd aa"));
        let common = |from, to, bytes| Common { from, to, bytes };
        assert_eq!(found.common, [common(0, 0, 5), common(5, 10, 6)]);
        assert_eq!(found.missing, [Part { start: 5, bytes: 5 }]);
        let unused = |found: &Found, size| -> Vec<(u64, u64)> {
            found.unused(size).into_iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!((found.common_bytes(), unused(&found, 13)), (11, vec![(11, 13)]));
        assert_eq!(unused(&compare("a", &new("b")), 1), [(0, 1)]);
        assert!(compare("a b", &new("b a")).unused(2).is_empty());
    }

    /// What one older version lacks is looked for in another, and nothing else.
    #[test]
    fn another_has_what_is_missing() {
        let newer = new("aa bbb xx yyy cc aa");
        let found = compare("aa bbb cc", &newer);
        assert_eq!(found.missing, [Part { start: 5, bytes: 5 }]);
        let other = index("yyy aa cc");
        assert!(!other.has_all(&newer) && other.has_all(&new("cc yyy")));
        let mut more = Found::default();
        other.compare_missing(0, &newer, &found.missing, &mut more);
        assert_eq!(more.common, [Common { from: 0, to: 7, bytes: 3 }]);
        assert_eq!(more.missing, [Part { start: 5, bytes: 2 }]);
    }

    /// A hole is neither copied nor asked for.
    #[test]
    fn holes_need_nothing() {
        let mut pieces = new("aa xx");
        pieces.insert(1, Cut::Hole(1 << 40));
        let found = compare("aa bb", &pieces);
        assert_eq!(found.common, [Common { from: 0, to: 0, bytes: 2 }]);
        assert_eq!(found.missing, [Part { start: 2 + (1 << 40), bytes: 2 }]);
    }
}
