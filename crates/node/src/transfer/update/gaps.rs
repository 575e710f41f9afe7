//! Runs of chunks that the older version has not, and where in it the chunks around them lie: what stands between may have changed
//! in a few bytes only.

use super::plan::Origin;
use crate::looking::Gap;

/// Gaps that are remembered, 64 bytes each: in those beyond nothing is looked for.
const GAPS_MAX: usize = 1 << 18;

/// Gaps of an object whose chunks are told in order.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    found: Vec<Gap>,
    /// The one under way: its first byte, and where the chunk in front of it ends.
    open: Option<(u64, Option<u64>)>,
    /// Where the last chunk ends in the older version.
    last: Option<u64>,
}

impl Gaps {
    /// Where the chunk at `offset` would lie in the older version, had nothing moved since the last one that it has.
    pub(super) fn expected(&self, offset: u64) -> Option<u64> {
        match self.open {
            Some((start, after)) => after?.checked_add(offset - start),
            None => self.last,
        }
    }

    /// The next chunk: `len` bytes of the object from `offset` on.
    pub(super) fn push(&mut self, offset: u64, len: u64, origin: Origin) {
        match origin {
            Origin::Old(old) => {
                self.close(offset, Some(old));
                self.last = old.checked_add(len);
            }
            Origin::Elsewhere(_) => {
                self.close(offset, None);
                self.last = None;
            }
            Origin::Missing | Origin::New(_) => {
                let after = self.last.take();
                self.open.get_or_insert((offset, after));
            }
        }
    }

    fn close(&mut self, offset: u64, before: Option<u64>) {
        if let Some((start, after)) = self.open.take()
            && (after.is_some() || before.is_some())
            && self.found.len() < GAPS_MAX
        {
            self.found.push(Gap { range: start..offset, after, before });
        }
    }

    /// Those found since the last call, ascending, and what there is by now of the one under way: it goes on at `at`.
    pub(super) fn take(&mut self, at: u64) -> Vec<Gap> {
        if self.open.is_some() {
            let after = self.expected(at);
            self.close(at, None);
            self.open = Some((at, after));
        }
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P6: between two chunks that lie where they lay, bytes are looked for from both sides.
    #[test]
    fn gaps_know_what_is_around_them() {
        let mut gaps = Gaps::default();
        gaps.push(0, 100, Origin::Old(1000));
        assert_eq!(gaps.expected(100), Some(1100));
        gaps.push(100, 50, Origin::Missing);
        gaps.push(150, 50, Origin::New(7));
        assert_eq!(gaps.expected(200), Some(1200));
        gaps.push(200, 10, Origin::Old(1205));
        gaps.push(210, 30, Origin::Missing);
        let found = gaps.take(240);
        let gap = |range, after, before| Gap { range, after, before };
        assert_eq!(found, [gap(100..200, Some(1100), Some(1205)), gap(210..240, Some(1215), None)]);
        gaps.push(240, 60, Origin::Missing);
        gaps.push(300, 10, Origin::Old(1310));
        assert_eq!(gaps.take(310), [gap(240..300, Some(1245), Some(1310))]);
    }
}
