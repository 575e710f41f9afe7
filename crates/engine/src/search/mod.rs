//! In which order a receiver looks through its own disk for what it wants: which directory to list and which file to read next, by
//! cost per chunk (Y10-Y19, experiments of dsync's paper, section 5).
//!
//! Sans-IO: whoever drives it asks [`Search::next`], does that, and tells what was there and how long it took. Nothing here opens, reads or
//! waits. Wanted chunks of equal metadata are one [`Wanted`] (Y18), so that the schedule takes steps by files and directories, never by chunks.

mod cached;
mod cost;
mod likeness;
#[cfg(test)]
mod tests;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use dray_core::limits::SEARCH_ENTRIES_MAX;

use cached::{Cached, Index};
use cost::Costs;
pub use likeness::Metadata;
use likeness::PathMatch;

/// Factor of the cost of listing a directory above the destination: there are as many as its path has names, and whatever lies beside it is
/// found only through them.
const ABOVE_WEIGHT: f64 = 2.0;
/// By how much of them the number of wanted chunks changes before everything is ranked again (Y7).
const CHANGE_MIN: f64 = 0.1;
/// Ranking may take this part of the time (Y7).
const RANKING_PART: u64 = 10;
/// Operations that [`Search::arrival_us`] looks ahead.
const AHEAD: usize = 16;

/// How operations are ranked (Y25).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// By cost per chunk.
    #[default]
    Cost,
    /// The destination's directory and all below it, then its parent's, and so on; files and directories as they were found.
    BreadthFirst,
    /// All directories first, then files by cost per chunk.
    AllStats,
}

/// What a search is ruled by.
#[derive(Clone, Copy, Debug)]
pub struct SearchConfig {
    /// How operations are ranked.
    pub policy: Policy,
    /// Factor of the cost of listing a directory; dsync's code has 5, its paper 1.
    pub stat_weight: f64,
    /// Average bytes of a chunk.
    pub chunk_bytes: u32,
    /// What is not looked at.
    pub floors: Floors,
}

/// What is too little to look at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Floors {
    /// What is less likely to have a chunk is not remembered: nearly nothing of it would be of use.
    pub likelihood: f64,
    /// Nor is a file that is less like what is wanted in name, size and time together, wherever it lies: of the same kind is not the same.
    pub metadata: f64,
    /// A file is read if at least this part of its chunks is expected to be of use. Reading costs the disk, which others use, too.
    pub part_of_use: f64,
    /// A file of the very size that is wanted is at least so likely to have each chunk, whatever its name and place: it may be the same, renamed. That is, the first
    /// [`SAME_SIZE_MAX`] of them.
    pub same_size: f64,
}

/// Segments of a log and images of disks have one size, too, and that says nothing.
const SAME_SIZE_MAX: u32 = 4;

impl Floors {
    /// Everything is looked at that there is room for.
    pub const NONE: Floors = Floors { likelihood: 0.0, metadata: 0.0, part_of_use: 0.0, same_size: 0.0 };
}

impl Default for Floors {
    fn default() -> Floors {
        Floors { likelihood: 0.015, metadata: 0.05, part_of_use: 0.015, same_size: 0.03 }
    }
}

/// Wanted chunks of equal metadata: those of one file.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name that the file will have in the destination's directory.
    pub name: Vec<u8>,
    /// Its size.
    pub size_bytes: u64,
    /// Its modification time in seconds since 1970, if that is told.
    pub mtime_s: Option<i64>,
    /// Chunks of it that are neither here nor found.
    pub chunks: u64,
}

/// A directory or file that was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(u32);

impl EntryId {
    /// The top of the scope.
    pub const TOP: EntryId = EntryId(0);
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// List a directory; tell what is in it by [`Search::found_directory`] and [`Search::found_file`], then [`Search::listed`].
    Stat(EntryId),
    /// Read a file from end to end and cut it; then [`Search::hashed`].
    Hash(EntryId),
    /// Ask the index for wanted chunks; tell what it knows by [`Search::found_cached`] and [`Search::known_in`], then [`Search::checked`].
    CacheCheck,
    /// Read and compare chunks where the index says that they lie, in the order of the file; then [`Search::cache_read`].
    CacheRead(EntryId),
}

#[derive(Debug)]
enum Kind {
    Directory {
        path: PathMatch,
    },
    /// How likely it has a chunk of each wanted file.
    File {
        chunks: f64,
        likelihoods: Box<[f32]>,
    },
    /// A file that an index named.
    Cached(Cached),
    /// It was looked at.
    Done,
}

#[derive(Debug)]
struct Entry {
    above: EntryId,
    name: Box<[u8]>,
    kind: Kind,
    /// Names at the end of the destination's path that are not in its own: none below the destination.
    apart: u8,
}

/// An operation and its rank: lower is sooner.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Ranked {
    class: u8,
    cost: f64,
    number: u32,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    /// Reversed: the heap gives its greatest.
    fn cmp(&self, other: &Ranked) -> Ordering {
        let key = |ranked: &Ranked| (ranked.class, ranked.number);
        let by_class = other.class.cmp(&self.class);
        by_class.then(other.cost.total_cmp(&self.cost)).then(key(other).cmp(&key(self)))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Everything is being ranked, some entries at a time.
#[derive(Debug)]
struct Ranking {
    /// Chunks that were wanted when it began, of each wanted file: all ranks are to be comparable.
    wanted: Vec<u64>,
    /// The first entry that has no rank yet.
    next: u32,
    ranked: Vec<Ranked>,
    took_us: u64,
}

/// The order of one search.
#[derive(Debug)]
pub struct Search {
    config: SearchConfig,
    wanted: Vec<Wanted>,
    /// Names from the top of the scope to the destination's directory; `None` if that is not below.
    destination: Option<Vec<Vec<u8>>>,
    /// The first one is the top of the scope. None is ever removed: numbers are used once.
    entries: Vec<Entry>,
    /// What was ranked last; in the meantime, another is being made.
    queue: BinaryHeap<Ranked>,
    ranking: Option<Ranking>,
    /// Directories and files that were not looked at, and how many of them are directories.
    open: usize,
    open_directories: usize,
    /// Files of a size that is wanted, found so far.
    same_size: u32,
    index: Index,
    costs: Costs,
    /// Chunks wanted when everything was ranked last, and when and for how long that was.
    ranked_for: u64,
    ranked_at_us: u64,
    ranking_us: u64,
    /// Ranks computed so far.
    steps: u64,
}

impl Search {
    /// For files that will lie in one directory, `destination` below the top of the scope; `None` if it is not below: then paths tell
    /// nothing.
    pub fn new(config: SearchConfig, destination: Option<Vec<Vec<u8>>>, wanted: Vec<Wanted>) -> Search {
        let path = PathMatch::top(destination.as_deref().unwrap_or(&[]));
        let apart = path.apart();
        let top = Entry { above: EntryId::TOP, name: Box::default(), kind: Kind::Directory { path }, apart };
        let mut search = Search {
            config,
            wanted,
            destination,
            entries: vec![top],
            queue: BinaryHeap::new(),
            ranking: None,
            open: 1,
            open_directories: 1,
            same_size: 0,
            index: Index::default(),
            costs: Costs::default(),
            ranked_for: 0,
            ranked_at_us: 0,
            ranking_us: 0,
            steps: 0,
        };
        // The destination's directory and those above it are known (Y11), however little they are like it.
        let mut above = EntryId::TOP;
        for name in search.destination.clone().unwrap_or_default() {
            let Some(next) = search.enter_directory(above, &name, 0.0) else { break };
            above = next;
        }
        search.rank_all();
        search
    }

    /// A directory called `name` in `above`, if it is worth listing, and there is room.
    pub fn found_directory(&mut self, above: EntryId, name: &[u8]) -> Option<EntryId> {
        // Those on the way to the destination are the first ones, and known.
        let on_the_way = self.destination.as_ref().and_then(|names| names.get(above.0 as usize));
        if on_the_way.is_some_and(|known| known == name) {
            return None;
        }
        let found = self.enter_directory(above, name, self.config.floors.likelihood)?;
        self.rank(found.0);
        Some(found)
    }

    /// A file in the directory `above`, if it is worth reading as far as its metadata tells, and there is room.
    pub fn found_file(&mut self, above: EntryId, file: Metadata<'_>) -> Option<EntryId> {
        if !self.has_room() {
            return None;
        }
        let Kind::Directory { path } = &self.entries.get(above.0 as usize)?.kind else { return None };
        let ppc = self.likelihood(path);
        let of = |wanted: &Wanted| {
            let Wanted { name, size_bytes, mtime_s, .. } = wanted;
            let source = Metadata { name, size_bytes: *size_bytes, mtime_s: *mtime_s };
            let alike = likeness::of_file(file, source);
            let floors = &self.config.floors;
            let by_metadata = if alike < floors.metadata { 0.0 } else { ppc * alike };
            let is_same_size = self.same_size < SAME_SIZE_MAX && file.size_bytes == *size_bytes;
            by_metadata.max(if is_same_size { floors.same_size } else { 0.0 }) as f32
        };
        let likelihoods: Box<[f32]> = self.wanted.iter().map(of).collect();
        let best = likelihoods.iter().copied().fold(0.0, f32::max);
        let chunks = self.chunks_of(file.size_bytes);
        if f64::from(best) < self.config.floors.likelihood {
            return None;
        }
        let apart = self.entries.get(above.0 as usize)?.apart;
        self.same_size += u32::from(self.wanted.iter().any(|wanted| wanted.size_bytes == file.size_bytes));
        let found = self.enter(above, file.name, Kind::File { chunks, likelihoods }, apart);
        self.rank(found.0);
        Some(found)
    }

    /// The directory was listed in so many microseconds.
    pub fn listed(&mut self, directory: EntryId, took_us: u64) {
        self.costs.listed(took_us);
        self.done(directory);
    }

    /// The file was read in so many microseconds, waiting excluded, and had so many chunks; none if it could not be read.
    pub fn hashed(&mut self, file: EntryId, chunks: u64, took_us: u64) {
        self.costs.hashed(chunks, took_us);
        self.done(file);
    }

    /// So many chunks of the wanted file number `at` are neither here nor found.
    pub fn want(&mut self, at: usize, chunks: u64) {
        if let Some(wanted) = self.wanted.get_mut(at) {
            wanted.chunks = chunks;
        }
    }

    /// Whether [`Search::next`] may have to rank everything before it can tell: whoever has more urgent things to do waits with it until then (Y7). Where
    /// nothing is worth it, it can tell without.
    pub fn is_to_be_ranked(&self) -> bool {
        self.has_changed() && self.open > 0 && self.all_wanted() > 0 && self.is_anything_worth()
    }

    /// The next operation; `None` if none is worth it now. `clock` tells the time in microseconds: how long ranking everything takes decides how
    /// often that is done (Y7).
    pub fn next(&mut self, clock: &mut dyn FnMut() -> u64) -> Option<Operation> {
        loop {
            if let ControlFlow::Break(next) = self.next_by_turns(clock, usize::MAX) {
                return next;
            }
        }
    }

    /// The same, or so many entries more are ranked of those that have to be before it is known, so that others may have their turn: then it goes on with
    /// the next call.
    pub fn next_by_turns(
        &mut self,
        clock: &mut dyn FnMut() -> u64,
        entries_max: usize,
    ) -> ControlFlow<Option<Operation>> {
        if self.all_wanted() == 0 {
            // What there was before is as good as ever.
            self.ranking = None;
            return ControlFlow::Break(None);
        }
        let now_us = clock();
        if self.ranking.is_none() {
            if !self.is_stale(now_us) {
                if let Some(operation) = self.pop() {
                    return ControlFlow::Break(Some(operation));
                }
                // What was worth nothing before may be worth it now, and nothing else is to be done meanwhile.
                if !self.is_to_be_ranked() {
                    return ControlFlow::Break(None);
                }
            }
            self.begin_ranking();
        }
        let is_ranked = self.go_on_ranking(entries_max);
        let ended_us = clock();
        if let Some(ranking) = &mut self.ranking {
            ranking.took_us = ranking.took_us.saturating_add(ended_us.saturating_sub(now_us));
        }
        if !is_ranked {
            return ControlFlow::Continue(());
        }
        self.ranked_at_us = ended_us;
        self.ranking_us = self.end_ranking();
        ControlFlow::Break(self.pop())
    }

    /// The first operation that is worth it. Those before it are worth nothing for what is wanted now: they are ranked again when that has
    /// changed.
    fn pop(&mut self) -> Option<Operation> {
        while let Some(ranked) = self.queue.peek().copied() {
            // What an index knows is ranked at once: there is little of it. Whatever it is compared with has no use for costs.
            if let Some((cost, operation)) = self.best_cached()
                && (cost <= ranked.cost || self.config.policy != Policy::Cost)
            {
                return Some(operation);
            }
            self.queue.pop();
            if let Some((operation, true)) = self.operation(ranked.number) {
                return Some(operation);
            }
        }
        self.best_cached().map(|(_, operation)| operation)
    }

    /// Whether the file is worth reading for what is wanted now.
    pub fn is_hopeful(&self, file: EntryId) -> bool {
        matches!(self.operation(file.0), Some((Operation::Hash(_), true)))
    }

    /// How likely the file has a chunk of what is wanted, by its metadata: of the wanted file of which that is most likely (Y15).
    pub fn likeness(&self, file: EntryId) -> f64 {
        match self.entries.get(file.0 as usize).map(|entry| &entry.kind) {
            Some(Kind::File { likelihoods, .. }) => likelihoods.iter().copied().fold(0.0, f32::max).into(),
            _ => 0.0,
        }
    }

    /// When a chunk that is wanted is to be expected from here, in microseconds from now, or from the network after that (Y19).
    pub fn arrival_us(&self) -> u64 {
        // The queue has them in no order but for its first.
        let mut first = BinaryHeap::with_capacity(AHEAD + 1);
        for ranked in &self.queue {
            first.push(Reverse(*ranked));
            if first.len() > AHEAD {
                first.pop();
            }
        }
        // The best first.
        let first = first.into_sorted_vec().into_iter().map(|Reverse(ranked)| ranked);
        let wanted: f64 = self.all_wanted().max(1) as f64;
        // A STAT finds nothing by itself: the file that it turns up is to be read, too.
        let transfer_us = self.costs.chunk_hash_us * self.all_chunks();
        let of = |ranked: Ranked| match &self.entries.get(ranked.number as usize)?.kind {
            Kind::Directory { path } => Some((self.costs.stat_us + transfer_us, self.likelihood(path))),
            Kind::File { chunks, likelihoods } => {
                let likelihood = self.expected(likelihoods) / wanted;
                Some((self.costs.chunk_hash_us * chunks, likelihood.min(1.0)))
            }
            Kind::Cached(_) | Kind::Done => None,
        };
        let cached = self.cached_arrivals().take(AHEAD);
        cost::expected_with_network_us(cached.chain(first.filter_map(of))) as u64
    }

    /// Ranks computed so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Names from the top of the scope to an entry.
    pub fn path(&self, entry: EntryId) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = entry;
        while at != EntryId::TOP
            && let Some(entry) = self.entries.get(at.0 as usize)
        {
            names.push(&*entry.name);
            at = entry.above;
        }
        names.reverse();
        names
    }

    fn has_room(&self) -> bool {
        self.entries.len() < SEARCH_ENTRIES_MAX
    }

    fn enter(&mut self, above: EntryId, name: &[u8], kind: Kind, apart: u8) -> EntryId {
        // Far below 2^32.
        let number = self.entries.len() as u32;
        self.open += usize::from(is_open(&kind));
        self.open_directories += usize::from(is_directory(&kind));
        self.entries.push(Entry { above, name: name.into(), kind, apart });
        EntryId(number)
    }

    /// Unless it is less likely than `likelihood_min`.
    fn enter_directory(&mut self, above: EntryId, name: &[u8], likelihood_min: f64) -> Option<EntryId> {
        if !self.has_room() {
            return None;
        }
        let Kind::Directory { path } = &self.entries.get(above.0 as usize)?.kind else { return None };
        let path = path.below(name, self.destination.as_deref().unwrap_or(&[]))?;
        let apart = path.apart();
        (self.likelihood(&path) >= likelihood_min)
            .then(|| self.enter(above, name, Kind::Directory { path }, apart))
    }

    fn kind_mut(&mut self, entry: EntryId) -> Option<&mut Kind> {
        self.entries.get_mut(entry.0 as usize).map(|entry| &mut entry.kind)
    }

    fn done(&mut self, entry: EntryId) {
        // Its name may stand in the paths of others.
        if let Some(kind) = self.kind_mut(entry) {
            let was = std::mem::replace(kind, Kind::Done);
            self.open -= usize::from(is_open(&was));
            self.open_directories -= usize::from(is_directory(&was));
        }
    }

    fn chunks_of(&self, size_bytes: u64) -> f64 {
        (size_bytes as f64 / f64::from(self.config.chunk_bytes)).max(1.0)
    }

    /// True for the destination's directory and those above it: they are the first ones.
    fn is_on_the_way(&self, number: u32) -> bool {
        self.destination.as_ref().is_some_and(|names| number as usize <= names.len())
    }

    fn likelihood(&self, path: &PathMatch) -> f64 {
        if self.destination.is_some() { path.likeness() } else { 1.0 }
    }

    fn all_wanted(&self) -> u64 {
        self.wanted.iter().map(|wanted| wanted.chunks).sum()
    }

    /// Chunks of what is wanted, here or not.
    fn all_chunks(&self) -> f64 {
        let bytes = self.wanted.iter().map(|wanted| wanted.size_bytes).sum::<u64>() as f64;
        bytes / f64::from(self.config.chunk_bytes)
    }

    /// Chunks that reading the file is expected to find (Y14).
    fn expected(&self, likelihoods: &[f32]) -> f64 {
        expected(self.wanted.iter().map(|wanted| wanted.chunks), likelihoods)
    }

    fn is_worth(&self, chunks: f64, likelihoods: &[f32]) -> bool {
        self.expected(likelihoods) >= self.config.floors.part_of_use * chunks
    }

    /// The operation of an entry, and whether it is worth it for what is wanted now.
    fn operation(&self, number: u32) -> Option<(Operation, bool)> {
        match &self.entries.get(number as usize)?.kind {
            Kind::Directory { .. } => Some((Operation::Stat(EntryId(number)), self.all_wanted() > 0)),
            Kind::File { chunks, likelihoods } => {
                let is_worth = self.all_wanted() > 0 && self.is_worth(*chunks, likelihoods);
                Some((Operation::Hash(EntryId(number)), is_worth))
            }
            Kind::Cached(cached) => {
                let is_worth = self.all_wanted() > 0 && cached.is_worth();
                Some((Operation::Hash(EntryId(number)), is_worth))
            }
            Kind::Done => None,
        }
    }

    /// Whether there is an entry that is worth it for what is wanted now, not counting what an index knows. It looks at the files one after the other only
    /// where the likeliest one is not, and no directory is left.
    fn is_anything_worth(&self) -> bool {
        let is_worth = |number: u32| matches!(self.operation(number), Some((_, true)));
        let is_open_and_worth = |number: u32| {
            let kind = self.entries.get(number as usize).map(|entry| &entry.kind);
            kind.is_some_and(is_open) && is_worth(number)
        };
        self.open_directories > 0
            || self.queue.peek().is_some_and(|first| is_worth(first.number))
            || (0..self.entries.len() as u32).any(is_open_and_worth)
    }

    fn has_changed(&self) -> bool {
        let (wanted, before) = (self.all_wanted(), self.ranked_for);
        wanted.abs_diff(before) as f64 > CHANGE_MIN * before as f64
    }

    fn is_stale(&self, now_us: u64) -> bool {
        self.is_to_be_ranked()
            && self.ranking_us.saturating_mul(RANKING_PART) <= now_us.saturating_sub(self.ranked_at_us)
    }

    fn rank_all(&mut self) {
        self.begin_ranking();
        self.go_on_ranking(usize::MAX);
        self.end_ranking();
    }

    fn begin_ranking(&mut self) {
        let wanted = self.wanted.iter().map(|wanted| wanted.chunks).collect();
        self.ranking = Some(Ranking { wanted, next: 0, ranked: Vec::with_capacity(self.open), took_us: 0 });
    }

    /// Ranks so many entries more; whether those were the last ones.
    fn go_on_ranking(&mut self, entries_max: usize) -> bool {
        let Some(mut ranking) = self.ranking.take() else { return true };
        let len = self.entries.len() as u32;
        let end = ranking.next.saturating_add(u32::try_from(entries_max).unwrap_or(u32::MAX)).min(len);
        for number in ranking.next..end {
            ranking.ranked.extend(self.rank_of(number, &ranking.wanted));
        }
        ranking.next = end;
        self.ranking = Some(ranking);
        end == len
    }

    /// How long it took.
    fn end_ranking(&mut self) -> u64 {
        let Some(ranking) = self.ranking.take() else { return 0 };
        self.ranked_for = ranking.wanted.iter().sum();
        self.queue = ranking.ranked.into();
        ranking.took_us
    }

    /// For what was found since everything was ranked.
    fn rank(&mut self, number: u32) {
        let wanted: Vec<u64> = self.wanted.iter().map(|wanted| wanted.chunks).collect();
        let ranked = self.rank_of(number, &wanted);
        self.queue.extend(ranked);
    }

    /// Where so many chunks of each wanted file are wanted.
    fn rank_of(&mut self, number: u32, wanted: &[u64]) -> Option<Ranked> {
        self.steps += 1;
        let entry = self.entries.get(number as usize)?;
        let all_wanted: u64 = wanted.iter().sum();
        let (is_file, cost) = match &entry.kind {
            // These are ranked when they are asked for.
            Kind::Cached(_) | Kind::Done => return None,
            // Nothing is wanted yet: nothing costs less than another.
            _ if all_wanted == 0 => (matches!(entry.kind, Kind::File { .. }), f64::INFINITY),
            Kind::Directory { path } => {
                let all = self.all_chunks();
                let ppc = self.likelihood(path);
                let usual = self.config.stat_weight;
                let weight = if self.is_on_the_way(number) { usual.min(ABOVE_WEIGHT) } else { usual };
                (false, self.costs.of_stat(all, all_wanted as f64, ppc, weight))
            }
            Kind::File { chunks, likelihoods } => {
                (true, self.costs.of_hash(*chunks, expected(wanted.iter().copied(), likelihoods)))
            }
        };
        let (class, cost) = match self.config.policy {
            Policy::Cost => (0, cost),
            Policy::BreadthFirst => (entry.apart, 0.0),
            Policy::AllStats => (u8::from(is_file), cost),
        };
        Some(Ranked { class, cost, number })
    }
}

/// Chunks that reading a file is expected to find of so many of each wanted file.
fn expected(wanted: impl Iterator<Item = u64>, likelihoods: &[f32]) -> f64 {
    wanted.zip(likelihoods).map(|(chunks, likelihood)| chunks as f64 * f64::from(*likelihood)).sum()
}

fn is_directory(kind: &Kind) -> bool {
    matches!(kind, Kind::Directory { .. })
}

/// True for what is ranked with all the others.
fn is_open(kind: &Kind) -> bool {
    matches!(kind, Kind::Directory { .. } | Kind::File { .. })
}
