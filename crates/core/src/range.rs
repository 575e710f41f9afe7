//! Half-open ranges and sets of them: what is wanted, verified, outstanding.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64` kept as disjoint, non-adjacent, half-open ranges. Memory is proportional to the number of gaps,
/// never to the number of members.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RangeSet {
    /// start -> end; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Adds every member of `range`; returns how many were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (range.start, range.end);
        let mut absorbed = 0;
        // Only ranges that begin at or before `end` can touch; walk them from the right.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ranges.remove(&other_start);
            absorbed += other_end - other_start;
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ranges.insert(start, end);
        let added = (end - start) - absorbed;
        self.count += added;
        added
    }

    /// Removes every member of `range`; returns how many were there.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        while let Some((&other_start, &other_end)) = self.ranges.range(..range.end).next_back() {
            if other_end <= range.start {
                break;
            }
            self.ranges.remove(&other_start);
            if other_start < range.start {
                self.ranges.insert(other_start, range.start);
            }
            if other_end > range.end {
                self.ranges.insert(range.end, other_end);
            }
            removed += other_end.min(range.end) - other_start.max(range.start);
        }
        self.count -= removed;
        removed
    }

    /// Number of members.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// True if there is no member.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// True if `member` is in the set.
    pub fn contains(&self, member: u64) -> bool {
        self.ranges.range(..=member).next_back().is_some_and(|(_, &end)| member < end)
    }

    /// True if all of `range` is in the set (the empty range always is).
    pub fn contains_range(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &end)| range.end <= end)
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The first range that ends after `from`, cut to begin no earlier than `from`.
    pub fn next_from(&self, from: u64) -> Option<Range<u64>> {
        if let Some((_, &end)) = self.ranges.range(..=from).next_back()
            && end > from
        {
            return Some(from..end);
        }
        self.ranges.range(from..).next().map(|(&start, &end)| start..end)
    }

    /// What `within` has and this set does not, ascending.
    pub fn gaps(&self, within: Range<u64>) -> RangeSet {
        let mut gaps = RangeSet::new();
        gaps.insert(within.clone());
        for range in self.iter() {
            gaps.remove(range);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Against the obvious model: a set of members.
        #[test]
        fn behaves_like_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..60)) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for (insert, start, len) in ops {
                let range = start..start + len;
                let before = model.len();
                if insert {
                    model.extend(range.clone());
                    prop_assert_eq!(set.insert(range), (model.len() - before) as u64);
                } else {
                    model.retain(|member| !range.contains(member));
                    prop_assert_eq!(set.remove(range), (before - model.len()) as u64);
                }
                prop_assert_eq!(set.count(), model.len() as u64);
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert!(set.iter().flatten().eq(model.iter().copied()));
                let pieces: Vec<_> = set.iter().collect();
                prop_assert!(pieces.windows(2).all(|pair| pair[0].end < pair[1].start), "touching: {:?}", pieces);
                for member in 0..80 {
                    prop_assert_eq!(set.contains(member), model.contains(&member));
                    let next = model.range(member..).next().copied();
                    prop_assert_eq!(set.next_from(member).map(|range| range.start), next);
                }
                let gaps = set.gaps(5..50);
                prop_assert!(gaps.iter().flatten().eq((5..50).filter(|member| !model.contains(member))));
            }
        }
    }
}
