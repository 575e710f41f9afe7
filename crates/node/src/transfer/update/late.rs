//! Groups that were asked of the network and of which the disk turns out to have everything: they are taken back (Y21).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::limits::{SEARCH_CHUNKS_MAX, SEARCH_LATE_GROUPS_MAX};

use super::plan::{Origin, Parts};
use super::{ChunkKey, OlderVersion, Spot, Transfer};
use crate::elsewhere::Finder;
use crate::lock;
use crate::search::{DiskSearch, Memory};

/// How often it is looked whether there are any, at the most, and how much longer than that takes it waits.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
const REST_PER_LOOK: u32 = 10;

/// How long it takes at the most until the search hears what has come from the network.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Parts of groups that are looked up together.
const PARTS_AT_A_TIME: usize = 1 << 16;

/// What a group takes beside its parts.
const GROUP_HELD_BYTES: u64 = 96;

/// A part of such a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LatePart {
    /// It is here.
    Here(u32, Origin),
    /// It is part of a chunk that may be found: so many bytes, from this one of the chunk on.
    Wanted(u32, ChunkKey, u64),
}

/// Such groups.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Of the search, if there is one.
    memory: Option<Arc<Memory>>,
    groups: BTreeMap<u64, Vec<LatePart>>,
    /// Of all of them.
    parts: usize,
    /// What the search had found when it was looked at last.
    seen_news: u64,
    has_new: bool,
    /// When it was looked at last, and how long that took.
    looked: Option<(Instant, Duration)>,
}

impl Late {
    /// Remembers groups from here on, within `memory`.
    pub(super) fn keep(&mut self, memory: Arc<Memory>) {
        self.memory = Some(memory);
    }

    /// True if none may be taken back.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn is_kept(&self) -> bool {
        self.memory.is_some()
    }

    /// True if something may be here by now, and looking for it takes a small part of the time.
    fn is_due(&mut self, news: u64) -> bool {
        let rests = |(at, took): (Instant, Duration)| at.elapsed() < INTERVAL_MIN.max(took * REST_PER_LOOK);
        let takes_long =
            |(at, _): (Instant, Duration)| at.elapsed() >= INTERVAL_MAX && !self.groups.is_empty();
        let has_news = self.has_new || news != self.seen_news || self.looked.is_some_and(takes_long);
        if self.looked.is_some_and(rests) || !has_news {
            return false;
        }
        (self.has_new, self.seen_news) = (false, news);
        true
    }

    /// A group that is asked for. Those beyond the limits come whole.
    pub(super) fn add(&mut self, group: u64, mut parts: Vec<LatePart>) {
        let has_room =
            self.groups.len() < SEARCH_LATE_GROUPS_MAX && self.parts + parts.len() <= SEARCH_CHUNKS_MAX;
        if let Some(memory) = &self.memory
            && has_room
            && memory.take_waiting(held_bytes(&parts))
        {
            parts.shrink_to_fit();
            self.parts += parts.len();
            self.groups.insert(group, parts);
            self.has_new = true;
        }
    }

    /// Takes out what is here by now, as `find` knows of chunks: of some groups at a time, from `from` on, and which are next.
    fn take_found(
        &mut self,
        from: u64,
        find: impl FnOnce(&[ChunkKey]) -> HashMap<ChunkKey, Spot>,
    ) -> (Vec<(u64, Parts)>, Option<u64>) {
        let mut parts = 0;
        let next = self.groups.range(from..).find_map(|(group, of_group)| {
            parts += of_group.len();
            (parts > PARTS_AT_A_TIME && *group > from).then_some(*group)
        });
        let looked_at = || self.groups.range(from..next.unwrap_or(u64::MAX));
        let mut keys: Vec<ChunkKey> =
            looked_at().flat_map(|(_, parts)| parts).filter_map(LatePart::wanted).collect();
        keys.sort_unstable();
        keys.dedup();
        let found = find(&keys);
        let here = |part: &LatePart| match part {
            LatePart::Here(len, origin) => Some((*len, *origin)),
            LatePart::Wanted(len, key, at) => {
                found.get(key).map(|spot| (*len, Origin::Elsewhere(*spot).after(*at)))
            }
        };
        let whole: Vec<(u64, Parts)> = looked_at()
            .filter_map(|(group, parts)| Some((*group, parts.iter().map(here).collect::<Option<Parts>>()?)))
            .collect();
        whole.iter().for_each(|(group, _)| drop(self.remove(*group)));
        (whole, next)
    }

    /// Forgets what came meanwhile; the chunks of that, some of which may be wanted by others.
    fn forget(&mut self, has_come: impl Fn(u64) -> bool) -> Vec<ChunkKey> {
        let come: Vec<u64> = self.groups.keys().copied().filter(|group| has_come(*group)).collect();
        come.into_iter().flat_map(|group| self.remove(group)).filter_map(|part| part.wanted()).collect()
    }

    fn remove(&mut self, group: u64) -> Vec<LatePart> {
        let parts = self.groups.remove(&group).unwrap_or_default();
        self.parts -= parts.len();
        if let Some(memory) = self.memory.as_ref().filter(|_| !parts.is_empty()) {
            memory.give_waiting(held_bytes(&parts));
        }
        parts
    }
}

/// What a group takes that may be taken back.
fn held_bytes(parts: &[LatePart]) -> u64 {
    GROUP_HELD_BYTES + size_of_val(parts) as u64
}

impl LatePart {
    fn wanted(&self) -> Option<ChunkKey> {
        match self {
            LatePart::Wanted(_, key, _) => Some(*key),
            LatePart::Here(..) => None,
        }
    }
}

impl Transfer {
    /// Takes back from the network what the disk has by now, and stores it.
    pub(super) fn take_back(&self, old: &OlderVersion, late: &mut Late) -> dray_core::Result<()> {
        let Some(disk) = old.disk.as_ref().filter(|_| late.is_kept()) else { return Ok(()) };
        if !late.is_due(disk.news()) {
            return Ok(());
        }
        let begun = Instant::now();
        let come = {
            let planner = lock(&self.planner);
            late.forget(|group| planner.has_group(group))
        };
        disk.give_up(&come);
        // Copying is no looking.
        let mut looking = begun.elapsed();
        let mut from = Some(0);
        while let Some(at) = from {
            let begun = Instant::now();
            let (found, next) = late.take_found(at, |keys| spots(disk, keys, 0));
            from = next;
            looking += begun.elapsed();
            self.store_found(old, disk, found)?;
        }
        late.looked = Some((Instant::now(), looking));
        Ok(())
    }

    /// Stores groups that the disk has, and takes them back from the network, as far as they have not come.
    fn store_found(
        &self,
        old: &OlderVersion,
        disk: &DiskSearch,
        found: Vec<(u64, Parts)>,
    ) -> dray_core::Result<()> {
        for (group, parts) in found {
            if lock(&self.planner).handle_found(self.now_us(), group) {
                // Whoever was asked for it is told before it is copied.
                self.pump();
                disk.spared(self.geometry.group_bytes(group) as u64);
                if let Err(error) = self.fill(old, group, &parts) {
                    // Nobody else stores it any more, whatever becomes of the rest of the update.
                    self.fail(error.duplicate());
                    return Err(error);
                }
                self.count_fetched();
            }
        }
        Ok(())
    }
}

/// Where the disk has them; see [`DiskSearch::find`].
pub(super) fn spots(disk: &DiskSearch, keys: &[ChunkKey], told_bytes: u64) -> HashMap<ChunkKey, Spot> {
    let found = disk.find(keys, told_bytes);
    // Thousands of chunks lie in a few files.
    let mut finders: HashMap<u32, Finder> = HashMap::new();
    let finder = |file| if disk.is_cached(file) { Finder::Cached } else { Finder::Disk };
    let spot = |(key, (file, offset))| {
        let by = *finders.entry(file).or_insert_with(|| finder(file));
        (key, Spot { by, file, offset })
    };
    found.into_iter().map(spot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y21: a group is taken back when all of it is here, once, and what came meanwhile is forgotten. Nothing is kept beyond the limits.
    #[test]
    fn what_is_found_late_is_taken_back_once() {
        let key = |number: u8| [number; 16];
        let spot = |offset| Spot { by: Finder::Disk, file: 1, offset };
        let mut late = Late::default();
        late.add(0, vec![LatePart::Wanted(9, key(1), 0)]);
        assert!(late.groups.is_empty(), "nobody searches");
        late.keep(Arc::default());
        late.add(3, vec![LatePart::Here(5, Origin::Old(7)), LatePart::Wanted(4, key(1), 2)]);
        late.add(4, vec![LatePart::Wanted(9, key(1), 6), LatePart::Wanted(9, key(2), 0)]);
        late.add(8, vec![LatePart::Wanted(1, key(3), 0)]);
        let (found, _) = late.take_found(0, |keys| {
            assert_eq!(keys, [key(1), key(2), key(3)]);
            HashMap::from([(key(1), spot(100))])
        });
        assert_eq!(found, [(3, vec![(5, Origin::Old(7)), (4, Origin::Elsewhere(spot(102)))])]);
        assert_eq!(late.forget(|group| group == 8), [key(3)]);
        assert!(
            late.take_found(0, |keys| {
                assert_eq!(keys, [key(1), key(2)]);
                HashMap::new()
            })
            .0
            .is_empty()
        );
        let (found, _) = late.take_found(0, |_| HashMap::from([(key(1), spot(0)), (key(2), spot(50))]));
        assert_eq!(found, [(4, vec![(9, Origin::Elsewhere(spot(6))), (9, Origin::Elsewhere(spot(50)))])]);
        assert_eq!((late.parts, late.groups.len()), (0, 0));
        for group in 0..SEARCH_LATE_GROUPS_MAX as u64 + 10 {
            late.add(group, vec![LatePart::Wanted(1, key(1), 0)]);
        }
        assert_eq!(late.groups.len(), SEARCH_LATE_GROUPS_MAX);
        assert_eq!(late.forget(|_| true).len(), SEARCH_LATE_GROUPS_MAX);
        late.add(0, vec![LatePart::Wanted(1, key(1), 0); SEARCH_CHUNKS_MAX + 1]);
        assert!(late.groups.is_empty());
    }
}
