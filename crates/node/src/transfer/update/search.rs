//! Looks for chunks of the object in other files, while the network goes on (Y2): a piece of the recipe at a time, ended at any
//! chunk, and never waited for longer than it is worth.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::GROUP_BYTES;
use dray_core::recipe::{ChunkDescriptor, PlacedChunk};
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkKey, key as chunk_key};

use super::late::spots as spots_on;
use super::{AHEAD_GROUPS, AHEAD_INTERVAL, Known, OlderVersion, Plan, Spot, Transfer};
use crate::elsewhere::Elsewhere;
use crate::search::{DiskSearch, Pace};

/// Chunks that are looked for together. Where they were found is planned, and the others are asked for, before the next are looked for.
pub(super) const PIECE_CHUNKS: usize = 256;

/// Groups that are fetched first where the disk may have the others: enough to see how fast the network is.
const MEASURED_GROUPS: u64 = 4;
/// Of these the first: on a very slow network all of them would take longer than the search.
pub(super) const FIRST_GROUPS: u64 = 1;
/// What the first tells is that: the network is so many times slower than one that may be kept waiting.
pub(super) const VERY_SLOW: u64 = 16;
/// Of less, a fast network cannot be told from a slow one.
pub(super) const MEASURED_BYTES: u64 = 1 << 20;
/// For so long a network has to be as fast as one that is left alone.
const LASTING: Duration = Duration::from_millis(200);
/// How soon it is looked whether they have come.
pub(super) const MEASURING_INTERVAL: Duration = Duration::from_millis(1);
/// Round trips that a connection takes for them, however much it carries after.
const START_ROUND_TRIPS: u32 = 5;

/// Searches under way in this process: a disk that hangs holds its thread, which nobody waits for.
const SEARCHING_MAX: usize = 64;
static SEARCHING: AtomicUsize = AtomicUsize::new(0);

/// One thread that searches.
struct Searching;

impl Drop for Searching {
    fn drop(&mut self) {
        SEARCHING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is fetched while it is not known where it lies already: what stands first in the object, twice as much each time.
pub(super) struct Ahead {
    groups: u64,
    spared: Option<Spared>,
}

/// The same where a search of the disk may spare it.
struct Spared {
    disk: Arc<DiskSearch>,
    /// When the first groups were asked for.
    begun: Option<Instant>,
    /// When the last ones were, and how many bytes those are, until they have come.
    asked: Option<(Instant, u64)>,
    /// The network is not so fast that it is left alone, as far as that was measured.
    is_spared: bool,
    /// More would have been asked for but for the disk, and was last counted as such at this time.
    held: Option<Instant>,
}

impl Ahead {
    /// Where `disk` may have what comes, next to nothing comes over a slow network before that is known.
    pub(super) fn new(disk: Option<&Arc<DiskSearch>>) -> Ahead {
        let groups = if disk.is_some() { FIRST_GROUPS } else { AHEAD_GROUPS };
        let spared = disk.map(|disk| Spared {
            disk: disk.clone(),
            begun: None,
            asked: None,
            is_spared: false,
            held: None,
        });
        Ahead { groups, spared }
    }

    /// True while the network may turn out to be so fast that it is left alone. Until then nobody is asked to describe the object: a holder
    /// reads all of it for that.
    pub(super) fn is_measuring(&self) -> bool {
        self.spared.as_ref().is_some_and(|spared| {
            let takes_long = |begun: Instant| begun.elapsed() >= spared.disk.pace().measuring;
            !spared.is_spared && !spared.begun.is_some_and(takes_long)
        })
    }

    /// Whether to ask for more, now that all that was asked for has come. `Unsupported` where the network is so fast that it is
    /// left alone.
    fn goes_on(&mut self, round_trip: Duration) -> Result<bool> {
        let Some(spared) = &mut self.spared else { return Ok(true) };
        let pace = spared.disk.pace();
        let now = Instant::now();
        if let Some((at, bytes)) = spared.asked.take() {
            let took = now - at;
            if bytes >= MEASURED_BYTES {
                if rate(bytes, took) >= pace.spared_bytes_per_s {
                    spared.disk.end();
                    return Err(Error::new(ErrorKind::Unsupported, "the network is faster than the disk"));
                }
                spared.is_spared = true;
            }
            if is_slow(pace, bytes, took, round_trip) {
                spared.is_spared = true;
                spared.held = Some(now);
            }
        }
        let Some(held) = &mut spared.held else { return Ok(true) };
        spared.disk.held(now - std::mem::replace(held, now));
        Ok(!spared.disk.may_hold())
    }

    /// So many groups are asked for.
    fn goes_out(&mut self, groups: u64) {
        if let Some(spared) = &mut self.spared {
            let now = Instant::now();
            spared.begun.get_or_insert(now);
            spared.asked = Some((now, groups * GROUP_BYTES));
            spared.held = None;
        }
        self.groups = match self.groups {
            FIRST_GROUPS => MEASURED_GROUPS - FIRST_GROUPS,
            groups => groups.max(MEASURED_GROUPS).saturating_mul(2),
        };
    }
}

pub(super) fn rate(bytes: u64, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}

/// Bytes a second that a network brought which has just begun, and the time of round trips that is left out of account, for the most part: what a connection
/// carries later, it does not in its beginning.
pub(super) fn first_rate(bytes: u64, took: Duration, round_trip: Duration) -> (u64, Duration) {
    let trips = if bytes < MEASURED_BYTES / 2 { START_ROUND_TRIPS } else { 1 };
    let start = round_trip * trips;
    (rate(bytes, took.saturating_sub(start).max(took / 4)), start)
}

/// True if the network may be kept waiting for the disk.
fn is_slow(pace: Pace, bytes: u64, took: Duration, round_trip: Duration) -> bool {
    let below = match bytes > FIRST_GROUPS * GROUP_BYTES {
        true => pace.held_back_below_bytes_per_s,
        false => pace.held_back_below_bytes_per_s / VERY_SLOW,
    };
    first_rate(bytes, took, round_trip).0 < below
}

/// The search of one update.
pub(super) struct Search {
    ahead: Ahead,
    /// How long nothing was under way meanwhile, and until it was under way again.
    idle: Duration,
    /// When it was begun, and how many bytes sources had brought by then.
    begun: Instant,
    brought_bytes: u64,
}

impl Search {
    pub(super) fn new(brought_bytes: u64) -> Search {
        Search { ahead: Ahead::new(None), idle: Duration::ZERO, begun: Instant::now(), brought_bytes }
    }

    /// The same, begun so long before.
    #[cfg(test)]
    pub(super) fn begun_before(mut self, time: Duration) -> Search {
        self.begun = self.begun.checked_sub(time).unwrap_or(self.begun);
        self
    }

    /// Whether the network may have nothing to do for `disk` any longer.
    pub(super) fn has_patience(&self, disk: &DiskSearch) -> bool {
        self.idle < disk.idle_patience()
    }

    /// So long it had nothing to do.
    pub(super) fn waited(&mut self, time: Duration) {
        self.idle += time;
    }
}

impl Known {
    /// Those of `chunks` that `plan` wants something of, that the older version has not, and that are more than zeros.
    fn missing(&self, chunks: &[PlacedChunk], plan: &Plan<'_>) -> Vec<ChunkDescriptor> {
        let wanted = chunks.iter().filter(|placed| plan.wants(placed));
        let mut missing: Vec<ChunkDescriptor> = wanted.map(|placed| placed.chunk).collect();
        missing.retain(|chunk| {
            let key = chunk_key(chunk);
            key != self.zeros && self.offset_of(&key).is_none()
        });
        missing
    }

    /// Bytes of those of `chunks` that nobody looks for and that say nothing of what comes after them: zeros, and what an earlier run left.
    fn passed_bytes(&self, chunks: &[PlacedChunk], plan: &Plan<'_>) -> u64 {
        let passed =
            chunks.iter().filter(|placed| !plan.wants(placed) || chunk_key(&placed.chunk) == self.zeros);
        passed.map(|placed| u64::from(placed.chunk.len)).sum()
    }
}

impl OlderVersion {
    /// Where to look for what this version has not of `chunks`, and what that is; `None` if it is not worth looking.
    fn missing(
        &self,
        chunks: &[PlacedChunk],
        known: &Known,
        plan: &Plan<'_>,
    ) -> Result<Option<(&Arc<Elsewhere>, Vec<ChunkDescriptor>)>> {
        let Some(elsewhere) = &self.elsewhere else { return Ok(None) };
        if elsewhere.is_vain() {
            return match self.file.is_some() || self.has_repeats || self.disk.is_some() {
                true => Ok(None),
                // What the recipe tells is of no use.
                false => Err(Error::new(ErrorKind::NotFound, "other files have nothing more of the object")),
            };
        }
        let missing = known.missing(chunks, plan);
        Ok((!missing.is_empty()).then_some((elsewhere, missing)))
    }
}

impl Transfer {
    /// Where other files have some of `chunks`. Returns soon after `over` says so.
    pub(super) fn find_elsewhere(
        &self,
        old: &OlderVersion,
        chunks: &[PlacedChunk],
        known: &Known,
        plan: &mut Plan<'_>,
        search: &mut Search,
        over: &(dyn Fn() -> bool + Sync),
    ) -> Result<HashMap<ChunkKey, Spot>> {
        let Some((elsewhere, missing)) = old.missing(chunks, known, plan)? else { return Ok(HashMap::new()) };
        let searching = Searching;
        if SEARCHING.fetch_add(1, Ordering::AcqRel) >= SEARCHING_MAX {
            return Ok(HashMap::new());
        }
        let is_enough = Arc::new(AtomicBool::new(false));
        let (sender, results) = sync_channel(1);
        let find = {
            let (elsewhere, is_enough) = (elsewhere.clone(), is_enough.clone());
            move || {
                let _searching = searching;
                // Whoever waited has a result, or wants none any more.
                let _ = sender.send(elsewhere.find(&missing, &|| is_enough.load(Ordering::Relaxed)));
            }
        };
        // Of its own: a read that hangs is left behind.
        let started = thread::Builder::new().name("search".into()).spawn(find);
        started.map_err(|error| Error::file("search other files", error))?;
        let found = self.await_found(elsewhere, &results, plan, search, over);
        is_enough.store(true, Ordering::Relaxed);
        found
    }

    #[expect(clippy::too_many_arguments, reason = "what is known of an update")]
    /// Adds to `found` where the disk has some more of `chunks`, as long as it is worth waiting for that. `NotFound` if there is nothing to be
    /// found, and the recipe is of no other use.
    pub(super) fn find_on_disk(
        &self,
        old: &OlderVersion,
        chunks: &[PlacedChunk],
        known: &Known,
        plan: &Plan<'_>,
        found: &mut HashMap<ChunkKey, Spot>,
        search: &mut Search,
        over: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let (Some(disk), Some(last)) = (&old.disk, chunks.last()) else { return Ok(()) };
        let told_bytes = last.offset.saturating_add(u64::from(last.chunk.len));
        // What it has brought since tells more than the first groups did. Not what came in one moment: that may have waited in buffers while something
        // was written. Nor how many groups are here: the disk may have had them, or most of each, and zeros take no time.
        let elapsed = search.begun.elapsed();
        let brought = self.brought_bytes.load(Ordering::Relaxed).saturating_sub(search.brought_bytes);
        if elapsed >= LASTING && rate(brought, elapsed) >= disk.spared_bytes_per_s() {
            disk.end();
        }
        let missing = known.missing(chunks, plan);
        disk.pass(known.passed_bytes(chunks, plan));
        let mut keys: Vec<ChunkKey> = missing.iter().map(chunk_key).collect();
        keys.retain(|key| !found.contains_key(key));
        let mut spots = HashMap::new();
        // Before it is asked for them, there may be nothing for it to do.
        spots.extend(spots_on(disk, &keys, told_bytes));
        let mut was_busy = !self.has_fetched_all();
        loop {
            // What it found before it came to its end is looked up after.
            let is_promising = disk.is_promising();
            spots.extend(spots_on(disk, &keys, 0));
            keys.retain(|key| !spots.contains_key(key));
            // A busy network runs dry if it is not asked for more in time. What is found later is taken back.
            if keys.is_empty() || !is_promising || !search.has_patience(disk) || over() {
                break;
            }
            let begun = Instant::now();
            disk.await_news(AHEAD_INTERVAL);
            if self.has_fetched_all() {
                search.idle += begun.elapsed();
                if std::mem::take(&mut was_busy) {
                    // So much longer it takes until the next bytes come.
                    search.idle += self.round_trip();
                }
            }
        }
        let is_found = |chunk: &&ChunkDescriptor| spots.contains_key(&chunk_key(chunk));
        disk.spared(missing.iter().filter(is_found).map(|chunk| u64::from(chunk.len)).sum());
        found.extend(spots);
        match disk.is_vain() && !old.is_needed() {
            true => Err(Error::new(ErrorKind::NotFound, "the disk has nothing of the object")),
            false => Ok(()),
        }
    }

    fn await_found(
        &self,
        elsewhere: &Elsewhere,
        results: &Receiver<HashMap<ChunkKey, Spot>>,
        plan: &mut Plan<'_>,
        search: &mut Search,
        over: &(dyn Fn() -> bool + Sync),
    ) -> Result<HashMap<ChunkKey, Spot>> {
        while !over() {
            let begun = Instant::now();
            match results.recv_timeout(AHEAD_INTERVAL) {
                Ok(found) => return Ok(found),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, "a thread failed"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.has_fetched_all() {
                search.idle += begun.elapsed();
                if search.idle >= elsewhere.idle_patience() {
                    self.fetch_ahead(plan, &mut search.ahead)?;
                }
            }
        }
        Ok(HashMap::new())
    }

    /// Fetches the next groups, unless others are under way. `Unsupported` if there are none left: then nothing of use is to be
    /// learned any more.
    pub(super) fn fetch_ahead(&self, plan: &mut Plan<'_>, ahead: &mut Ahead) -> Result<()> {
        // Nobody is measured who is not there.
        let is_alone = ahead.spared.is_some() && self.best_source(&[]).is_none();
        if self.has_fetched_all() && !is_alone && ahead.goes_on(self.round_trip())? {
            match plan.probe(ahead.groups) {
                0 => return Err(Error::new(ErrorKind::Unsupported, "all was fetched meanwhile")),
                groups => ahead.goes_out(groups),
            }
        }
        Ok(())
    }

    /// To the nearest source; nothing until that is known.
    pub(super) fn round_trip(&self) -> Duration {
        let nearest = self.stats().iter().filter_map(|source| source.round_trip_us).min();
        Duration::from_micros(nearest.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::SearchPolicy;
    use crate::search::tests::{scope, target};

    /// P7 "never slower": a path that is long or begins slowly is not taken for a slow one, and a slow one not for a fast one because nobody
    /// has told how long it is.
    #[test]
    fn a_long_path_is_not_a_slow_one() {
        let pace = Pace::default();
        let ms = Duration::from_millis;
        let first = MEASURED_GROUPS * GROUP_BYTES;
        assert!(!is_slow(pace, first, ms(10), ms(0)));
        assert!(is_slow(pace, first, ms(30), ms(0)));
        assert!(!is_slow(pace, first, ms(30), ms(5)));
        // A T1 line, which shows with the first group; 16 Mbit/s does not yet.
        assert!(is_slow(pace, GROUP_BYTES, ms(390), ms(40)));
        assert!(!is_slow(pace, GROUP_BYTES, ms(34), ms(0)));
        // 16 Mbit/s, and 30 ms for the first group of four.
        assert!(is_slow(pace, first, ms(131), ms(33)));
        // 100 Mbit/s, and 1 Gbit/s with 40 ms.
        assert!(is_slow(pace, MEASURED_BYTES, ms(124), ms(40)));
        assert!(!is_slow(pace, MEASURED_BYTES, ms(50), ms(40)));
    }

    /// P7 "never slower", Y26: over a slow network nothing more is asked for as long as there is hope, over a faster one it is, and where it is as fast
    /// as the disk, the search ends: a few groups do not tell.
    #[test]
    fn hope_holds_back_a_slow_network_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("copy.1"), vec![1; 2 << 20]).unwrap();
        let pace = Pace {
            held_back_below_bytes_per_s: 1_000_000,
            spared_bytes_per_s: 100_000_000,
            idle: Duration::from_secs(60),
            ..Pace::default()
        };
        let search =
            DiskSearch::begin(scope(dir.path(), dir.path()), target("copy", 2 << 20), SearchPolicy::Cost);
        let disk = Arc::new(search.unwrap().with_pace(pace));
        assert!(disk.is_hopeful_soon());
        // So many bytes came within a second.
        let after = |bytes| {
            let asked = Instant::now().checked_sub(Duration::from_secs(1)).map(|then| (then, bytes));
            let mut ahead = Ahead::new(Some(&disk));
            if let Some(spared) = &mut ahead.spared {
                (spared.begun, spared.asked) = (asked.map(|(at, _)| at), asked);
            }
            ahead
        };
        assert!(Ahead::new(Some(&disk)).goes_on(Duration::ZERO).unwrap(), "nothing was asked for yet");
        assert!(after(50_000_000).goes_on(Duration::ZERO).unwrap());
        let mut held = after(500_000);
        assert!(!held.goes_on(Duration::ZERO).unwrap() && !held.goes_on(Duration::ZERO).unwrap());
        if let Some(spared) = &mut held.spared {
            spared.held = Instant::now().checked_sub(Duration::from_secs(61));
        }
        assert!(held.goes_on(Duration::ZERO).unwrap(), "it was waited for long enough");
        let few = MEASURED_GROUPS * GROUP_BYTES;
        let mut at_once = after(few);
        if let Some(spared) = &mut at_once.spared {
            spared.asked = Some((Instant::now(), few));
        }
        assert!(at_once.goes_on(Duration::ZERO).unwrap() && disk.is_promising());
        assert_eq!(after(200_000_000).goes_on(Duration::ZERO).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(!disk.is_promising());
    }
}
