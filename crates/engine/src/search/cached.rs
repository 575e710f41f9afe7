//! What an index knows of wanted chunks: looking them up (CACHE-CHECK), reading them one by one (CACHE-READ), or the whole file from end to end
//! where that is sooner done (Y8, Y9, Y12, Y13).

use super::cost::Costs;
use super::{EntryId, Kind, Operation, Search};

/// In the rank of a file, each chunk that would have to be read by itself counts as so many: reading in order is so many times as fast as going
/// from chunk to chunk (Y9; what dsync's paper found for 1 GB).
const SEQUENTIAL_TIMES: f64 = 3.0;

/// Chunks that an index is, or was, asked for.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Wanted ones that it was not asked for yet.
    unasked: u64,
    /// Those that it was.
    asked: u64,
    /// Wanted ones that nobody has told of yet.
    untold: u64,
    /// Files that it named; their number is bounded with that of all entries.
    files: Vec<EntryId>,
}

/// What an index said of one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    /// Chunks that it has, wanted or not.
    chunks: f64,
    /// Those that the index was asked for and said to be there, and those of them that were not looked at yet.
    known: u64,
    left: u64,
}

impl Index {
    /// Chunks that reading all of the file is expected to find: of those that the index will be asked for yet, as many as of those that it was.
    fn expected(&self, file: Cached) -> f64 {
        let all = (self.asked + self.unasked + self.untold) as f64;
        (file.known as f64 * all / self.asked.max(1) as f64).min(file.chunks)
    }

    /// Reading it from end to end, or what is known of it chunk by chunk: what costs less for each chunk, and how much.
    fn cheapest(&self, file: Cached, costs: &Costs) -> (f64, bool) {
        let one_by_one = costs.of_cache_read();
        let whole = costs.of_hash(file.chunks, SEQUENTIAL_TIMES * self.expected(file));
        (one_by_one.min(whole), whole <= one_by_one)
    }
}

impl Cached {
    pub(super) fn is_worth(self) -> bool {
        self.left > 0
    }
}

impl Search {
    /// So many wanted chunks were told that an index was not asked for yet, and so many more are wanted that were not told. Without an
    /// index it is never called.
    pub fn to_check(&mut self, unasked: u64, untold: u64) {
        (self.index.unasked, self.index.untold) = (unasked, untold);
    }

    /// The index was asked for so many chunks; so many are left that it was not asked for.
    pub fn checked(&mut self, asked: u64, unasked: u64) {
        self.index.asked = self.index.asked.saturating_add(asked);
        self.index.unasked = unasked;
    }

    /// A file that the index named. It has no path here: whoever drives the search knows where it is. `None` if there is no room.
    pub fn found_cached(&mut self, size_bytes: u64) -> Option<EntryId> {
        if !self.has_room() {
            return None;
        }
        let chunks = self.chunks_of(size_bytes);
        let file = self.enter(EntryId::TOP, &[], Kind::Cached(Cached { chunks, known: 0, left: 0 }), 0);
        self.index.files.push(file);
        Some(file)
    }

    /// So many more of the chunks that the index was asked for lie in that file, as it says.
    pub fn known_in(&mut self, file: EntryId, chunks: u64) {
        if let Some(Kind::Cached(cached)) = self.kind_mut(file) {
            cached.known = cached.known.saturating_add(chunks);
            cached.left = cached.left.saturating_add(chunks);
        }
    }

    /// So many chunks of the file were read one by one in so many microseconds, waiting excluded; so many are left to be read.
    pub fn cache_read(&mut self, file: EntryId, chunks: u64, left: u64, took_us: u64) {
        self.costs.hashed(chunks, took_us);
        if let Some(Kind::Cached(cached)) = self.kind_mut(file) {
            cached.left = left;
        }
    }

    /// The best that the index can do, and its cost per chunk.
    pub(super) fn best_cached(&self) -> Option<(f64, Operation)> {
        if self.all_wanted() == 0 {
            return None;
        }
        let check = (self.index.unasked > 0).then(|| (self.costs.of_cache_check(), Operation::CacheCheck));
        let of = |file: &EntryId| {
            let cached = self.cached(*file).filter(|cached| cached.is_worth())?;
            let (cost, is_whole) = self.index.cheapest(cached, &self.costs);
            Some((cost, if is_whole { Operation::Hash(*file) } else { Operation::CacheRead(*file) }))
        };
        // Of equal ones the first: to ask costs no disk.
        check.into_iter().chain(self.index.files.iter().filter_map(of)).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// What the files that the index named take, and how likely one of the wanted chunks is found there (Y19).
    pub(super) fn cached_arrivals(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let wanted = self.all_wanted().max(1) as f64;
        self.index.files.iter().filter_map(move |file| {
            let cached = self.cached(*file).filter(|cached| cached.is_worth())?;
            let (_, is_whole) = self.index.cheapest(cached, &self.costs);
            let (chunks, found) = if is_whole {
                (cached.chunks, self.index.expected(cached))
            } else {
                (cached.left as f64, cached.left as f64)
            };
            Some((self.costs.chunk_hash_us * chunks, (found / wanted).min(1.0)))
        })
    }

    fn cached(&self, file: EntryId) -> Option<Cached> {
        match self.entries.get(file.0 as usize)?.kind {
            Kind::Cached(cached) => Some(cached),
            _ => None,
        }
    }
}
