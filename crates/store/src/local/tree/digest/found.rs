//! What a scan has found: digests of directories, what the sender tells of them, and what the receiver finds among its own.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use dray_core::limits::{TREE_DIGEST_BYTES, TREE_DIGESTS_ENTRIES_MIN, TREE_DIGESTS_MAX};
use dray_core::message::{Digests, DigestsSame};

use super::super::place::Identity;
use super::canonical::Digest;
use super::owned::{Names, Owner, Sole};

/// A directory that has a digest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// What is told of it where all entries have one owner.
    pub(super) digest: Digest,
    /// And where owners are part of it.
    pub(super) owned_digest: Digest,
    pub(super) owner: Owner,
    /// What its path is known by.
    pub(super) place: Digest,
    /// Entries that stand before it in the tree, and those of it and below it; files among these.
    pub(super) start: u64,
    pub(super) entries: u64,
    pub(super) files: u64,
    /// Which source it is the root of.
    pub(super) root: Option<usize>,
}

/// Which directories are remembered, and told: roots, then those with more entries, then those whose places are known by more, so that of
/// any number both ends choose the same.
type Rank = (bool, u64, Digest);

/// Directories with digests, as many as are to be remembered: those with few entries below them are the first to be forgotten.
#[derive(Clone, Debug)]
pub(super) struct Directories {
    found: Vec<Found>,
    max: usize,
    /// Those below it are not remembered.
    rank_min: Option<Rank>,
}

impl Directories {
    /// Of `max` directories at most, and half of that at least, once there were more.
    pub(super) fn new(max: usize) -> Directories {
        Directories { found: Vec::with_capacity(max + 1), max, rank_min: None }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.found.clear();
    }

    pub(super) fn push(&mut self, found: Found) {
        if self.rank_min.is_some_and(|min| found.rank() < min) {
            return;
        }
        self.found.push(found);
        if self.found.len() > self.max {
            // Half of them, so that it takes as many more until they are looked through again.
            self.keep(self.max / 2);
        }
    }

    /// Forgets all but so many, and those that would rank below them from now on.
    fn keep(&mut self, count: usize) {
        let Some(last) = count.checked_sub(1).filter(|last| *last < self.found.len()) else { return };
        let (_, lowest, _) = self.found.select_nth_unstable_by_key(last, |found| Reverse(found.rank()));
        self.rank_min = Some(lowest.rank());
        self.found.truncate(count);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }
}

/// What a scan came to.
#[derive(Debug)]
pub struct Scanned {
    pub(super) directories: Directories,
    pub(super) names: Names,
    pub(super) keeps_owners: bool,
    pub(super) sources: usize,
    pub(super) entries: u64,
    pub(super) roots: Roots,
}

/// Digests that the sender tells, and of what they are.
#[derive(Debug)]
pub struct Told {
    /// What the receiver is told.
    pub digests: Digests,
    /// The roots of all sources are among them.
    pub has_roots: bool,
    /// Which directories the sources were.
    pub roots: Roots,
    found: Vec<Found>,
}

/// Which directories sources were when they were scanned, by their numbers.
pub type Roots = HashMap<usize, Identity>;

/// Entries that are the same at both ends, and of which nothing is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Entries in directories that are the same, and below them: told are only those directories themselves.
    pub entries: u64,
    /// Files among them.
    pub files: u64,
    /// What the paths of those directories are known by.
    pub places: HashSet<[u8; TREE_DIGEST_BYTES]>,
    /// The roots of all sources are among them: so many. Else 0.
    pub roots: u64,
}

impl Scanned {
    /// What there is to tell; `None` if that is nothing, or not worth it.
    pub fn tell(mut self) -> Option<Told> {
        // Those without any digest are as well told at once.
        if self.entries < TREE_DIGESTS_ENTRIES_MIN || self.directories.found.is_empty() {
            return None;
        }
        self.directories.keep(TREE_DIGESTS_MAX);
        let found = self.directories.found;
        let owner = found.iter().map(|found| found.owner).reduce(|mut one, other| {
            one.add(other);
            one
        });
        let sole = match owner {
            Some(Owner { user: Sole::One(uid), group: Sole::One(gid) }) if self.keeps_owners => {
                Some(self.names.tell(uid, gid))
            }
            _ => None,
        };
        let is_owned = self.keeps_owners && sole.is_none();
        let digests = found.iter().flat_map(|found| *found.told(is_owned)).collect::<Vec<u8>>();
        let has_roots = found.iter().filter(|found| found.root.is_some()).count() == self.sources;
        let digests = Digests { digests: digests.into(), owner: sole, entries: self.entries };
        Some(Told { digests, has_roots, roots: self.roots, found })
    }

    /// Which of `digests` there are here, too, and what that comes to.
    pub fn compare(&self, digests: &Digests) -> (DigestsSame, Held) {
        let is_owned = self.keeps_owners && digests.owner.is_none();
        let sole = digests.owner.as_ref().filter(|_| self.keeps_owners);
        let fits = |found: &&Found| sole.is_none_or(|sole| self.names.is_as_told(sole, found.owner));
        let here: HashMap<&Digest, &Found> =
            self.directories.found.iter().filter(fits).map(|found| (found.told(is_owned), found)).collect();
        let same: Vec<Option<&Found>> = digests.iter().map(|digest| here.get(digest).copied()).collect();
        let bits: Vec<bool> = same.iter().map(Option::is_some).collect();
        (DigestsSame::of(&bits), held(same.into_iter().flatten(), self.sources))
    }
}

impl Told {
    /// What the receiver's answer comes to; nothing if it does not fit.
    pub fn held(&self, same: &DigestsSame, sources: usize) -> Held {
        let bits = same.bits(self.found.len()).unwrap_or_default();
        held(self.found.iter().zip(bits).filter(|(_, is_same)| *is_same).map(|(found, _)| found), sources)
    }
}

impl Found {
    fn rank(&self) -> Rank {
        (self.root.is_some(), self.entries, self.place)
    }

    fn told(&self, is_owned: bool) -> &Digest {
        if is_owned { &self.owned_digest } else { &self.digest }
    }
}

/// Of directories that are the same, the uppermost ones.
fn held<'a>(same: impl Iterator<Item = &'a Found>, sources: usize) -> Held {
    let mut same: Vec<&Found> = same.collect();
    // A directory stands before what is in it, and no two begin at one place.
    same.sort_by_key(|found| found.start);
    same.dedup_by_key(|found| found.start);
    let mut held = Held::default();
    let mut end = 0;
    let mut roots = 0;
    for found in same.into_iter().filter(|found| found.entries > 0) {
        if found.start < end {
            continue;
        }
        end = found.start + found.entries;
        roots += usize::from(found.root.is_some());
        // The directory itself is told.
        held.entries += found.entries - 1;
        held.files += found.files;
        held.places.insert(found.place);
    }
    held.roots = if roots == sources { sources as u64 } else { 0 };
    held
}
