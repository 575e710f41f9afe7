//! Which file of the disk may have most of one that comes in a tree (Y10, Y11, Y15, Y26 "Sibling"): by metadata alone, with the ranks of the engine.
//!
//! A tree has many files. So each directory is listed once, and where one file was found is looked first for the next: the same tree in a
//! directory beside it has them all in the same places.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dray_core::limits::{SEARCH_ENTRIES_MAX, SIBLING_PLACES_MAX};
use dray_engine::search::{EntryId, Floors, Metadata, Operation, Policy, Search, SearchConfig, Wanted};

use super::scope::{Found, Scope};

/// A file of another name is read from this likeness on: what is only as large, or of the same kind, has too often nothing in common.
const OTHER_NAME_LIKENESS: f64 = 0.4;
/// Directories that are looked at for one file.
const LISTED_MAX: usize = 256;
/// Directories that are listed for all files of a tree, where nothing is found.
const LISTED_IN_VAIN_MAX: usize = 1024;
/// Smaller files are not searched for, only looked for where others of their tree were found, and among what was listed for those.
const SEARCHED_FROM_BYTES: u64 = 64 << 10;
/// How long all the looking may take, where it finds nothing; more the more it finds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Files of one size and time that are remembered.
const TWINS_MAX: usize = 4;
/// Bytes of a chunk, on average; likeness does not depend on it.
const CHUNK_BYTES: u32 = 16 << 10;
/// What comes is smaller than so many times what is there, or larger: too little to have in common.
const TIMES_MAX: u64 = 4;

/// What is in a directory.
type Listing = Vec<(Box<[u8]>, Option<(u64, Option<i64>)>)>;

/// Names of directories, from the top of the scope down.
type Names = Vec<Vec<u8>>;

/// Size and modification time.
type SizeAndTime = (u64, i64);

/// Finds siblings of the files of one tree.
#[derive(Debug)]
pub(crate) struct Siblings<'a> {
    scope: &'a Scope,
    /// By path from the top of the scope.
    listings: HashMap<Rc<Path>, Listing>,
    /// Entries of all of them.
    listed: usize,
    /// How many were made since something was found.
    vain_listings: usize,
    /// Files that were listed, the first few of each size and time: the directory, and where they stand in its listing.
    twins: HashMap<SizeAndTime, Vec<(Rc<Path>, usize)>>,
    /// Where directories of the tree have their like: the last one that was of use comes first.
    places: VecDeque<(Names, Names)>,
    patience: Patience,
}

/// How long may be looked.
#[derive(Debug)]
struct Patience {
    spent: Duration,
    allowed: Duration,
}

/// A file that comes.
#[derive(Clone, Debug)]
pub(crate) struct Coming {
    /// Its path from the tree's destination.
    pub(crate) path: Vec<u8>,
    /// Its size and modification time.
    pub(crate) size_bytes: u64,
    pub(crate) mtime_s: i64,
}

impl<'a> Siblings<'a> {
    pub(crate) fn new(scope: &'a Scope) -> Siblings<'a> {
        Siblings {
            scope,
            listings: HashMap::new(),
            twins: HashMap::new(),
            vain_listings: 0,
            listed: 0,
            places: VecDeque::new(),
            patience: Patience { spent: Duration::ZERO, allowed: PATIENCE },
        }
    }

    /// The path, from the top of the scope, of a file that is likely to have most of what comes; of what was seen as long as `goes_on`, which may
    /// wait: that is no looking.
    pub(crate) fn find(&mut self, coming: &Coming, goes_on: &dyn Fn() -> bool) -> Option<PathBuf> {
        let begun = Instant::now();
        let waited = Cell::new(Duration::ZERO);
        let goes_on = || {
            let since = Instant::now();
            let goes_on = goes_on();
            waited.set(waited.get() + since.elapsed());
            goes_on
        };
        let names: Names = coming.path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
        let (name, below) = names.split_last()?;
        let destination = self.scope.destination();
        // Where that lies elsewhere, a name that no directory has stands for it.
        let above = destination.clone().unwrap_or_else(|| vec![Vec::new()]);
        let directory: Names = above.iter().chain(below).cloned().collect();
        let found = self.in_known_place(&directory, name, coming);
        let found = found.or_else(|| {
            let twin = self.twin(name, coming)?;
            self.remember(&directory, &twin);
            Some(twin)
        });
        let found = match found {
            None if coming.size_bytes >= SEARCHED_FROM_BYTES
                && self.patience.spent < self.patience.allowed =>
            {
                let found = self.search(destination, &directory, below, name, coming, &goes_on);
                self.patience.spent += begun.elapsed().saturating_sub(waited.get());
                found
            }
            found => found,
        }?;
        self.patience.allowed += begun.elapsed().saturating_sub(waited.get());
        self.vain_listings = 0;
        Some(found)
    }

    /// A file that was listed and has the size and time of what comes: likely to be that under another name, as in the destination itself (S77).
    /// Of several the one called `name`, if there is one.
    fn twin(&self, name: &[u8], coming: &Coming) -> Option<PathBuf> {
        let twins = self.twins.get(&(coming.size_bytes, coming.mtime_s))?;
        let name_of = |(directory, at): &(Rc<Path>, usize)| Some(&*self.listings.get(directory)?.get(*at)?.0);
        let twin = twins.iter().find(|twin| name_of(twin) == Some(name)).or(match &twins[..] {
            [only] => Some(only),
            _ => None,
        })?;
        let path = twin.0.join(OsStr::from_bytes(name_of(twin)?));
        // It may have been replaced since.
        (self.scope.size_of(&path) == Some(coming.size_bytes)).then_some(path)
    }

    /// Where others of the tree were found.
    fn in_known_place(&mut self, directory: &Names, name: &[u8], coming: &Coming) -> Option<PathBuf> {
        let found = self.places.iter().enumerate().find_map(|(at, (from, to))| {
            let below = directory.strip_prefix(&from[..])?;
            let names = to.iter().chain(below).map(|name| OsStr::from_bytes(name));
            let path = names.chain([OsStr::from_bytes(name)]).collect::<PathBuf>();
            let size_bytes = self.scope.size_of(&path)?;
            may_have(size_bytes, coming.size_bytes).then_some((at, path))
        });
        let (at, path) = found?;
        if let Some(place) = self.places.remove(at) {
            self.places.push_front(place);
        }
        Some(path)
    }

    /// Looks through what is most like the `destination` of the tree, for a file called `name` that has as many of the directories above it as
    /// are `below` the destination, or else one that is likely for what is known of it.
    fn search(
        &mut self,
        destination: Option<Names>,
        directory: &Names,
        below: &[Vec<u8>],
        name: &[u8],
        coming: &Coming,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<PathBuf> {
        // The first one may be the tree's own name, and another there.
        let near = destination.map(|names| names.into_iter().chain(below.first().cloned()).collect());
        let config = SearchConfig {
            policy: Policy::AllStats,
            stat_weight: 1.0,
            chunk_bytes: CHUNK_BYTES,
            // All directories that are worth it are listed at once, for each tree: fewer than for a single file.
            floors: Floors { likelihood: 0.05, metadata: 0.05, part_of_use: 0.02, same_size: 0.0 },
        };
        let wanted = Wanted {
            name: name.to_vec(),
            size_bytes: coming.size_bytes,
            mtime_s: Some(coming.mtime_s),
            chunks: coming.size_bytes.div_ceil(CHUNK_BYTES.into()).max(1),
        };
        let mut search = Search::new(config, near, vec![wanted]);
        let (mut looked, mut best, mut twin) = (0, None, None);
        // How many of the directories `below` are missing above it.
        let mut in_place: Option<(usize, PathBuf)> = None;
        while let Some(operation) = search.next(&mut || 0) {
            match operation {
                // What was found by then has to do.
                Operation::Stat(entry)
                    if looked >= LISTED_MAX || self.vain_listings >= LISTED_IN_VAIN_MAX || !goes_on() =>
                {
                    search.listed(entry, 0);
                }
                Operation::Stat(entry) => {
                    looked += 1;
                    self.list(&mut search, entry, coming, goes_on);
                    let missing_max = in_place.as_ref().map_or(below.len(), |(missing, _)| *missing);
                    let found = self.below(&search.path(entry), below, missing_max, name, coming);
                    in_place = found.or(in_place);
                    // Only its own name is another.
                    if in_place.as_ref().is_some_and(|(missing, _)| *missing <= 1) {
                        break;
                    }
                    twin = self.twin(name, coming);
                    if in_place.is_none() && twin.as_ref().is_some_and(|path| has_name(path, name)) {
                        break;
                    }
                    search.listed(entry, 0);
                }
                // The likeliest first.
                Operation::Hash(_) if in_place.is_some() || twin.is_some() => break,
                Operation::Hash(entry) => {
                    let is_alike = search.path(entry).last().is_some_and(|known| *known == name);
                    if is_alike {
                        best = Some(entry);
                        break;
                    }
                    let is_likely = search.likeness(entry) >= OTHER_NAME_LIKENESS;
                    best = best.or(is_likely.then_some(entry));
                    search.hashed(entry, 0, 0);
                }
                Operation::CacheCheck | Operation::CacheRead(_) => break,
            }
        }
        let found = match in_place.map(|(_, path)| path).or(twin) {
            Some(path) => path,
            None => search.path(best?).into_iter().map(OsStr::from_bytes).collect(),
        };
        self.remember(directory, &found);
        Some(found)
    }

    /// The file called `name` in a directory, if it lies there as deep as `below` says, fewer than `missing_max` of the first names of that
    /// excepted, and how many those are.
    fn below(
        &self,
        directory: &[&[u8]],
        below: &[Vec<u8>],
        missing_max: usize,
        name: &[u8],
        coming: &Coming,
    ) -> Option<(usize, PathBuf)> {
        // What lies in the directory itself was listed.
        (0..missing_max).find_map(|missing| {
            let names = directory.iter().copied().chain(below[missing..].iter().map(Vec::as_slice));
            let path: PathBuf = names.chain([name]).map(OsStr::from_bytes).collect();
            let size_bytes = self.scope.size_of(&path)?;
            may_have(size_bytes, coming.size_bytes).then_some((missing, path))
        })
    }

    /// Tells `search` what is in a directory.
    fn list(&mut self, search: &mut Search, entry: EntryId, coming: &Coming, goes_on: &dyn Fn() -> bool) {
        let path: PathBuf = search.path(entry).into_iter().map(OsStr::from_bytes).collect();
        let path: Rc<Path> = path.into();
        if !self.listings.contains_key(&path) {
            let listing = self.read(&path, goes_on);
            // What was not read to its end is not taken for all that there is.
            if !goes_on() {
                return;
            }
            self.listed += listing.len() + 1;
            self.vain_listings += 1;
            for (at, (_, file)) in listing.iter().enumerate() {
                if let Some((size_bytes, Some(mtime_s))) = file {
                    let twins = self.twins.entry((*size_bytes, *mtime_s)).or_default();
                    if twins.len() < TWINS_MAX {
                        twins.push((path.clone(), at));
                    }
                }
            }
            self.listings.insert(path.clone(), listing);
        }
        for (name, file) in self.listings.get(&path).into_iter().flatten() {
            match file {
                None => drop(search.found_directory(entry, name)),
                Some((size_bytes, mtime_s)) if may_have(*size_bytes, coming.size_bytes) => {
                    let file = Metadata { name, size_bytes: *size_bytes, mtime_s: *mtime_s };
                    let _ = search.found_file(entry, file);
                }
                Some(_) => {}
            }
        }
    }

    fn read(&self, path: &Path, goes_on: &dyn Fn() -> bool) -> Listing {
        let mut listing = Vec::new();
        // What is beyond the limits is not there.
        let has_room = || self.listed + listing.len() < SEARCH_ENTRIES_MAX;
        if !has_room() {
            return listing;
        }
        let left = SEARCH_ENTRIES_MAX - self.listed;
        self.scope.list(path, goes_on, &mut |found| {
            if listing.len() < left {
                listing.push(match found {
                    Found::Directory(name) => (name.into(), None),
                    Found::File(file) => (file.name.into(), Some((file.size_bytes, file.mtime_s))),
                });
            }
        });
        listing
    }

    /// A file of `directory` was found at `path`: what lies beside the one may lie beside the other.
    fn remember(&mut self, directory: &Names, path: &Path) {
        let names: Names = path.iter().map(|name| name.as_bytes().to_vec()).collect();
        let Some((_, to)) = names.split_last() else { return };
        let alike = directory.iter().rev().zip(to.iter().rev()).take_while(|(from, to)| from == to).count();
        let from = directory[..directory.len() - alike].to_vec();
        let to: Names = to[..to.len() - alike].to_vec();
        if from == to {
            return;
        }
        self.places.retain(|place| place.0 != from || place.1 != to);
        self.places.push_front((from, to));
        self.places.truncate(SIBLING_PLACES_MAX);
    }
}

#[cfg(test)]
impl Siblings<'_> {
    /// Figures of its memory.
    pub(super) fn listed(&self) -> usize {
        self.listed
    }

    /// As if there were no other bound than that of directories.
    pub(super) fn patient(mut self) -> Self {
        self.patience.allowed = Duration::from_secs(3600);
        self
    }

    pub(super) fn directories(&self) -> usize {
        self.listings.len()
    }

    pub(super) fn places(&self) -> usize {
        self.places.len()
    }
}

fn has_name(path: &Path, name: &[u8]) -> bool {
    path.file_name().is_some_and(|known| known.as_bytes() == name)
}

/// Whether a file of this size may have enough of one of `size_bytes`.
fn may_have(known_bytes: u64, size_bytes: u64) -> bool {
    size_bytes / TIMES_MAX <= known_bytes && known_bytes / TIMES_MAX <= size_bytes
}
