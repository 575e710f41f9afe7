//! The receiver's own disk as a source (Y4-Y21, design 16): while a transfer goes on, files that look like what is wanted are read, and
//! what they have need not be fetched.
//!
//! The order is the engine's (`dray_engine::search`); one thread for each search does what it says (`executor`), below one directory (`scope`), and before each
//! read of 64 KiB it waits as long as the transfer itself has something to do (`pressure`). What it comes across is remembered while the
//! transfer lasts (`found`). Nobody waits for the thread: a disk that hangs keeps it, and nothing else. No lock is held while a file is touched.

mod cached;
mod disk_rate;
mod executor;
mod found;
mod memory;
mod nodes;
mod pressure;
mod scope;
mod share;
mod sibling;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::limits::SEARCHES_MAX;
use dray_core::permit::Budget;
use dray_core::recipe::RecipeId;
use dray_core::{Error, ErrorKind, Result};
use dray_engine::search::{Floors, Policy, Search, SearchConfig, Wanted};
use dray_store::index::ChunkKey;
use serde::Deserialize;

use crate::elsewhere::Elsewhere;
use crate::transfer::OlderVersion;
use crate::{Event, Node, Observer, lock};
use disk_rate::DiskRate;
use found::Finds;
pub(crate) use memory::Memory;
use nodes::Nodes;
pub(crate) use pressure::Pressure;
pub(crate) use scope::{Identity, Scope};
pub(crate) use share::{busy, waits_for_disk};
pub(crate) use sibling::{Coming, Siblings};

/// How long a transfer waits for a file that gives hope to turn up before it begins without.
const HOPE_PATIENCE: Duration = Duration::from_millis(30);
/// How long the network may have nothing to do before something was found, at the most.
const IDLE_PATIENCE: Duration = Duration::from_millis(500);
/// And at least, so that a disk that was measured to be fast has time to be slow once.
const IDLE_PATIENCE_MIN: Duration = Duration::from_millis(50);
/// And so much longer for what was found. A network that carries more is better used than spared, and left alone.
const SPARED_BYTES_PER_S: u64 = 128 << 20;
/// How long a holder is not asked to describe the object because the network may be as fast as that.
const MEASURING_TIME: Duration = Duration::from_millis(50);
/// On a network that carries less, nothing but the first groups is fetched before the recipe has come.
const HELD_BACK_BELOW_BYTES_PER_S: u64 = 16_000_000;
/// Factor of the cost of listing directories (Y16).
const STAT_WEIGHT: f64 = 5.0;

/// Searches under way in this process.
static SEARCHING: AtomicUsize = AtomicUsize::new(0);

/// How a search goes about its work (Y25): what dsync compares itself with is a configuration of the same program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchPolicy {
    /// What costs least for each chunk that it may find comes first, and all of it after the transfer's own work.
    #[default]
    Cost,
    /// The destination's directory and all below it first, then its parent's, as they are found.
    BreadthFirst,
    /// All directories before the first file.
    AllStats,
    /// As `Cost`, but without regard to the transfer's own work; and an older version is read however slow its disk is.
    NoPressure,
    /// Not at all.
    NoDisk,
}

impl SearchPolicy {
    /// True if nothing is searched, whatever a user `named`; who did hears of that.
    pub(crate) fn tell_if_off(self, named: Option<&Path>, observer: &dyn Observer) -> bool {
        let is_off = self == SearchPolicy::NoDisk;
        if is_off && let Some(named) = named {
            let what = format!(
                "--search {named:?}: nothing is searched, as the configuration says search_policy = \"no-disk\""
            );
            observer.event(Event::Warning(what));
        }
        is_off
    }
}

/// What is looked for.
pub(crate) struct Target {
    /// Name that the object will have.
    pub(crate) name: Vec<u8>,
    pub(crate) size_bytes: u64,
    /// In seconds since 1970, if that is told.
    pub(crate) mtime_s: Option<i64>,
    /// An older version at the destination, which is no other file: what it has not is looked for once that is known.
    pub(crate) older: Option<Identity>,
}

/// What a network has to be like, and how long it is kept waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// See [`HELD_BACK_BELOW_BYTES_PER_S`].
    pub(crate) held_back_below_bytes_per_s: u64,
    /// See [`SPARED_BYTES_PER_S`].
    pub(crate) spared_bytes_per_s: u64,
    /// See [`IDLE_PATIENCE`].
    pub(crate) idle: Duration,
    /// See [`MEASURING_TIME`].
    pub(crate) measuring: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            held_back_below_bytes_per_s: HELD_BACK_BELOW_BYTES_PER_S,
            spared_bytes_per_s: SPARED_BYTES_PER_S,
            idle: IDLE_PATIENCE,
            measuring: MEASURING_TIME,
        }
    }
}

/// A search under way. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct DiskSearch {
    shared: Arc<Shared>,
    pace: Pace,
    /// Somebody asked where something is.
    was_asked: AtomicBool,
    /// Somebody was told where something is.
    was_used: AtomicBool,
    found_bytes: AtomicU64,
    /// How long the network had nothing to do before the recipe came.
    held_us: AtomicU64,
}

/// What the search's thread and the others share.
#[derive(Debug)]
struct Shared {
    order: Mutex<Order>,
    /// Something in the order has changed, or in what was found.
    changed: Condvar,
    finds: Mutex<Finds>,
    nodes: Mutex<Nodes>,
    memory: Arc<Memory>,
    /// Whoever has the chunk index, if that is part of this search.
    index: Mutex<Option<Arc<Elsewhere>>>,
    pressure: Mutex<Option<Arc<Pressure>>>,
    heeds_pressure: bool,
    is_over: AtomicBool,
    read_bytes: AtomicU64,
    disk_rate: Mutex<DiskRate>,
    clock: Instant,
    /// What was done, in order.
    #[cfg(test)]
    trace: Mutex<Vec<dray_engine::search::Operation>>,
    /// Where chunks were read one by one, in order.
    #[cfg(test)]
    places_read: Mutex<Vec<u64>>,
    /// How often it rested because others waited for a processor.
    #[cfg(test)]
    rests: AtomicU64,
    /// What the transfer's threads wait for counts as waiting for it.
    #[cfg(test)]
    is_charged: AtomicBool,
    /// It rests for nobody who waits for a processor: with another pace what is found counts, and not how busy the machine is.
    #[cfg(test)]
    is_paced: AtomicBool,
}

#[derive(Debug)]
struct Order {
    search: Search,
    /// Somebody asked for chunks: before, nothing is read but one file, if that is expected.
    is_demanded: bool,
    is_expected: bool,
    /// A file was read, or is not there any more.
    has_read: bool,
    /// Grows with each question.
    questions: u64,
    /// A file was found that is worth reading.
    is_hopeful: bool,
    /// There is nothing worth doing for what is wanted now.
    is_idle: bool,
    /// Bytes of the object: in all, and those of which the chunks are known.
    size_bytes: u64,
    told_bytes: u64,
    /// Of those, what was not looked for and says nothing of the rest.
    passed_bytes: u64,
    /// Of a chunk, on average.
    chunk_bytes: u64,
    /// What was not told yet is wanted, too.
    wants_untold: bool,
}

impl Node {
    /// A search in `scope` for what `target` names, given which file the older version is; `None` where it is not worth it. Without anything
    /// else that makes the object's recipe worth asking for, that takes a file which gives hope. Its memory is reserved of `budget`.
    pub(crate) fn search_in(
        &self,
        scope: Option<Scope>,
        older: Option<&OlderVersion>,
        budget: &Budget,
        target: impl FnOnce(Option<Identity>) -> Target,
    ) -> Option<DiskSearch> {
        let target = target(older.and_then(OlderVersion::identity));
        let scope = scope.filter(|_| OlderVersion::is_usual(target.size_bytes))?;
        let search = DiskSearch::begin_within(budget, scope, target, self.config.search_policy).ok()?;
        (older.is_some() || search.is_hopeful_soon()).then_some(search)
    }
}

impl DiskSearch {
    /// The same with as much memory as it may want.
    #[cfg(test)]
    pub(crate) fn begin(scope: Scope, target: Target, policy: SearchPolicy) -> Result<DiskSearch> {
        DiskSearch::begin_within(&Budget::new(u64::MAX), scope, target, policy)
    }

    /// Begins to look for files in `scope` that are like `target`. Nothing is read before chunks are asked for. What it remembers is reserved
    /// of `budget`, half of that at the most.
    pub(crate) fn begin_within(
        budget: &Budget,
        scope: Scope,
        target: Target,
        policy: SearchPolicy,
    ) -> Result<DiskSearch> {
        let unusual = || Error::new(ErrorKind::Unsupported, "the object is too large to be searched for");
        let profile = Profile::for_size(target.size_bytes).ok_or_else(unusual)?;
        let order = match policy {
            SearchPolicy::Cost | SearchPolicy::NoPressure => Policy::Cost,
            SearchPolicy::BreadthFirst => Policy::BreadthFirst,
            SearchPolicy::AllStats => Policy::AllStats,
            SearchPolicy::NoDisk => {
                return Err(Error::new(ErrorKind::Unsupported, "nothing is to be searched"));
            }
        };
        let searching = Searching;
        if SEARCHING.fetch_add(1, Ordering::AcqRel) >= SEARCHES_MAX {
            return Err(Error::new(ErrorKind::Refused, "too many searches are under way"));
        }
        let config = SearchConfig {
            policy: order,
            stat_weight: STAT_WEIGHT,
            chunk_bytes: profile.average_bytes(),
            floors: Floors::default(),
        };
        let chunks = target.size_bytes.div_ceil(u64::from(profile.average_bytes()));
        let wants_untold = target.older.is_none();
        let wanted = Wanted {
            name: target.name,
            size_bytes: target.size_bytes,
            mtime_s: target.mtime_s,
            chunks: if wants_untold { chunks } else { 0 },
        };
        let memory = Arc::new(Memory::of(budget));
        let shared = Arc::new(Shared {
            order: Mutex::new(Order {
                search: Search::new(config, scope.destination(), vec![wanted]),
                is_demanded: false,
                is_expected: false,
                has_read: false,
                questions: 0,
                is_hopeful: false,
                is_idle: false,
                size_bytes: target.size_bytes,
                told_bytes: 0,
                passed_bytes: 0,
                chunk_bytes: u64::from(profile.average_bytes()),
                wants_untold,
            }),
            changed: Condvar::new(),
            finds: Mutex::new(Finds::within(memory.clone())),
            nodes: Mutex::new(Nodes::within(memory.clone())),
            memory,
            index: Mutex::default(),
            pressure: Mutex::default(),
            heeds_pressure: policy != SearchPolicy::NoPressure,
            is_over: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            disk_rate: Mutex::default(),
            clock: Instant::now(),
            #[cfg(test)]
            trace: Mutex::default(),
            #[cfg(test)]
            places_read: Mutex::default(),
            #[cfg(test)]
            rests: AtomicU64::new(0),
            #[cfg(test)]
            is_charged: AtomicBool::new(false),
            #[cfg(test)]
            is_paced: AtomicBool::new(false),
        });
        let (on_thread, older) = (shared.clone(), target.older);
        let run = move || {
            let _searching = searching;
            executor::run(&on_thread, &scope, profile, older);
        };
        let started = thread::Builder::new().name("disk-search".into()).spawn(run);
        started.map_err(|error| Error::file("search the disk", error))?;
        Ok(DiskSearch {
            shared,
            pace: Pace::default(),
            was_asked: AtomicBool::new(false),
            was_used: AtomicBool::new(false),
            found_bytes: AtomicU64::new(0),
            held_us: AtomicU64::new(0),
        })
    }

    /// Waits a moment for a file that is worth reading; whether there is one.
    pub(crate) fn is_hopeful_soon(&self) -> bool {
        let deadline = Instant::now() + HOPE_PATIENCE;
        let mut order = lock(&self.shared.order);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if order.is_hopeful || order.is_idle || left.is_zero() || self.shared.is_over() {
                return order.is_hopeful;
            }
            let waited = self.shared.changed.wait_timeout(order, left);
            order = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From here on, asks `index` too: what that knows is ranked with what is found on the disk.
    pub(crate) fn ask(&self, index: Arc<Elsewhere>) {
        *lock(&self.shared.index) = Some(index);
        lock(&self.shared.finds).ask_index();
    }

    /// False with [`SearchPolicy::NoPressure`].
    pub(crate) fn heeds_pressure(&self) -> bool {
        self.shared.heeds_pressure
    }

    /// True if an index gives hope.
    pub(crate) fn has_index(&self) -> bool {
        !self.shared.is_over() && lock(&self.shared.index).as_ref().is_some_and(|index| !index.is_vain())
    }

    /// From here on, waits for what `pressure` counts.
    pub(crate) fn attend(&self, pressure: Arc<Pressure>) {
        *lock(&self.shared.pressure) = Some(pressure);
    }

    /// The object's recipe is going to be asked about, as nobody has anything of it yet: the likeliest file is read meanwhile.
    pub(crate) fn expect(&self) {
        let mut order = lock(&self.shared.order);
        if order.wants_untold && !std::mem::replace(&mut order.is_expected, true) {
            drop(order);
            self.shared.changed.notify_all();
        }
    }

    /// True as long as the file that was expected is read, or about to be: nodes of the recipe may turn out to be here.
    pub(crate) fn makes_nodes(&self) -> bool {
        let order = lock(&self.shared.order);
        order.is_expected && !order.has_read && !order.is_idle && !self.shared.is_over()
    }

    /// A node of the object's recipe that a file has as well. It tells nothing of where its chunks lie.
    pub(crate) fn node(&self, id: &RecipeId) -> Option<Vec<u8>> {
        lock(&self.shared.nodes).get(id)
    }

    /// Where each of `keys` lies, chunks of the object that are not here. The others are looked for from here on. All
    /// chunks of the first `told_bytes` of the object were asked for, or are here.
    pub(crate) fn find(&self, keys: &[ChunkKey], told_bytes: u64) -> HashMap<ChunkKey, (u32, u64)> {
        if !keys.is_empty() {
            self.was_asked.store(true, Ordering::Release);
        }
        let (mut spots, checks) = lock(&self.shared.finds).find(keys);
        let changed = checks.iter().filter(|(_, file, before)| {
            // CACHE-CHECK: here no lock is held, whatever the disk does.
            !rustix::fs::fstat(&**file).is_ok_and(|stat| scope::changed_at(&stat) == *before)
        });
        let changed: Vec<u32> = changed.map(|(number, ..)| *number).collect();
        if !changed.is_empty() {
            let mut finds = lock(&self.shared.finds);
            changed.iter().for_each(|number| finds.forget(*number));
            spots.retain(|_, (number, _)| !changed.contains(number));
            // From here on they are wanted again: another file may have them.
            let lost: Vec<ChunkKey> = keys.iter().filter(|key| !spots.contains_key(*key)).copied().collect();
            let _ = finds.find(&lost);
        }
        drop(checks);
        if !spots.is_empty() {
            self.was_used.store(true, Ordering::Release);
        }
        self.want(told_bytes);
        spots
    }

    /// So many bytes of what is told next are not looked for, and say nothing of what is not told yet: they came in an earlier run, or are zeros.
    pub(crate) fn pass(&self, bytes: u64) {
        let mut order = lock(&self.shared.order);
        order.passed_bytes = order.passed_bytes.saturating_add(bytes);
    }

    /// The memory of this search: what others remember for it counts, too.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.shared.memory
    }

    /// Nobody waits for these any more.
    pub(crate) fn give_up<'a>(&self, keys: impl IntoIterator<Item = &'a ChunkKey>) {
        lock(&self.shared.finds).give_up(keys);
        self.want(0);
    }

    /// Tells the engine what is wanted now.
    fn want(&self, told_bytes: u64) {
        let mut order = lock(&self.shared.order);
        // While the order is locked: whoever comes later has seen more.
        let (wanted, unasked, has_index) = {
            let finds = lock(&self.shared.finds);
            (finds.wanted(), finds.unasked(), finds.has_index())
        };
        let is_new = told_bytes > order.told_bytes || !order.is_demanded;
        order.told_bytes = order.told_bytes.max(told_bytes);
        let untold = order.size_bytes.saturating_sub(order.told_bytes) / order.chunk_bytes.max(1);
        let told = order.told_bytes.saturating_sub(order.passed_bytes) / order.chunk_bytes.max(1);
        // As much of what is not known yet is wanted as of what is.
        let untold = match told {
            0 if order.wants_untold => untold,
            0 => 0,
            told => untold.saturating_mul(wanted.min(told)) / told,
        };
        order.search.want(0, wanted + untold);
        if has_index {
            order.search.to_check(unasked, untold);
        }
        if !is_new {
            return;
        }
        order.is_demanded = true;
        order.questions += 1;
        // Its thread finds out whether there is something to do.
        order.is_idle = false;
        drop(order);
        self.shared.changed.notify_all();
    }

    /// So many bytes were found that need not be fetched.
    pub(crate) fn spared(&self, bytes: u64) {
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if there is something left to do that may find what was asked for.
    pub(crate) fn is_promising(&self) -> bool {
        !self.shared.is_over() && !lock(&self.shared.order).is_idle
    }

    /// True if something was asked for and nothing was found, and nothing will be.
    pub(crate) fn is_vain(&self) -> bool {
        self.was_asked.load(Ordering::Acquire) && !self.is_promising() && !self.was_used()
    }

    /// True if somebody was told where something is: what is put together with that may be wrong, and nobody else's fault.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Acquire)
    }

    /// So long the network had nothing to do, though the recipe has not come.
    pub(crate) fn held(&self, time: Duration) {
        self.held_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn left(&self) -> Duration {
        self.pace.idle.saturating_sub(Duration::from_micros(self.held_us.load(Ordering::Relaxed)))
    }

    /// Whether it may go on like that, and leave some time for what the recipe tells.
    pub(crate) fn may_hold(&self) -> bool {
        self.left() > IDLE_PATIENCE_MIN
    }

    /// How long the network may have nothing to do for this search once the recipe has come: as long as its schedule promises, and longer the more was found, by as
    /// much as a network that is worth sparing takes for that.
    pub(crate) fn idle_patience(&self) -> Duration {
        let arrival = Duration::from_micros(lock(&self.shared.order).search.arrival_us());
        let at_most = self.left();
        let found_bytes = self.found_bytes.load(Ordering::Relaxed);
        let worth = Duration::from_secs_f64(found_bytes as f64 / self.pace.spared_bytes_per_s.max(1) as f64);
        (arrival * 2).clamp(IDLE_PATIENCE_MIN.min(at_most), at_most).saturating_add(worth)
    }

    /// A network that carries so much is left alone: one that is fast, or as fast as the disk as far as that is known.
    pub(crate) fn spared_bytes_per_s(&self) -> u64 {
        let disk = if self.shared.heeds_pressure { lock(&self.shared.disk_rate).bytes_per_s() } else { None };
        disk.map_or(self.pace.spared_bytes_per_s, |disk| disk.min(self.pace.spared_bytes_per_s))
    }

    /// What the network has to be like.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Grows with each chunk that was asked for and is found.
    pub(crate) fn news(&self) -> u64 {
        lock(&self.shared.finds).news()
    }

    /// Waits for something to happen.
    pub(crate) fn await_news(&self, patience: Duration) {
        let order = lock(&self.shared.order);
        if !self.shared.is_over() {
            drop(self.shared.changed.wait_timeout(order, patience));
        }
    }

    /// A file in which something was found.
    pub(crate) fn file(&self, number: u32) -> Option<Arc<std::fs::File>> {
        lock(&self.shared.finds).file(number)
    }

    /// Whether that is one that an index named: who is told of no index is not told of it either, wherever it lies.
    pub(crate) fn is_cached(&self, number: u32) -> bool {
        lock(&self.shared.finds).is_cached(number)
    }

    /// Reads bytes that were found.
    pub(crate) fn read_at(&self, file: u32, offset: u64, out: &mut [u8]) -> Result<()> {
        let file = lock(&self.shared.finds).file(file);
        let file = file.ok_or_else(|| Error::new(ErrorKind::Internal, "no such file was found"))?;
        std::os::unix::fs::FileExt::read_exact_at(&*file, out, offset)
            .map_err(|error| Error::io("read a file with chunks of the object", error))
    }

    /// Nothing more is looked for.
    pub(crate) fn end(&self) {
        self.shared.end();
    }

    /// The same with another pace.
    #[cfg(test)]
    pub(crate) fn with_pace(self, pace: Pace) -> DiskSearch {
        let mut paced = self;
        paced.pace = pace;
        paced.shared.is_paced.store(true, Ordering::Release);
        paced
    }

    /// Takes files for what they were, whatever happens to them.
    #[cfg(test)]
    pub(crate) fn lie_about_changes(&self) {
        lock(&self.shared.finds).lie_about_changes();
    }

    /// What was done, in order.
    #[cfg(test)]
    pub(crate) fn trace(&self) -> Vec<dray_engine::search::Operation> {
        lock(&self.shared.trace).clone()
    }

    /// Where chunks were read one by one, in order.
    #[cfg(test)]
    pub(crate) fn places_read(&self) -> Vec<u64> {
        lock(&self.shared.places_read).clone()
    }

    /// How often it rested because others waited for a processor.
    #[cfg(test)]
    pub(crate) fn rests(&self) -> u64 {
        self.shared.rests.load(Ordering::Acquire)
    }

    /// Whether what the transfer's threads wait for now counts as waiting for it.
    #[cfg(test)]
    pub(crate) fn is_charged(&self) -> bool {
        self.shared.is_charged.load(Ordering::Acquire)
    }

    /// Steps of ranking so far.
    #[cfg(test)]
    pub(crate) fn ranking_steps(&self) -> u64 {
        lock(&self.shared.order).search.steps()
    }

    /// Whether nothing more is looked for.
    #[cfg(test)]
    pub(crate) fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Bytes of files that were read.
    #[cfg(test)]
    pub(crate) fn read_bytes(&self) -> u64 {
        self.shared.read_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for DiskSearch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Order {
    /// Nothing is ranked any more. What was is to be dropped where it may take time.
    fn end(&mut self) -> Search {
        let nothing = Wanted { name: Vec::new(), size_bytes: 0, mtime_s: None, chunks: 0 };
        let config = SearchConfig {
            policy: Policy::Cost,
            stat_weight: STAT_WEIGHT,
            chunk_bytes: u32::try_from(self.chunk_bytes).unwrap_or(u32::MAX),
            floors: Floors::default(),
        };
        (self.is_idle, self.wants_untold) = (true, false);
        std::mem::replace(&mut self.search, Search::new(config, None, vec![nothing]))
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// One thread that searches.
struct Searching;

impl Drop for Searching {
    fn drop(&mut self) {
        SEARCHING.fetch_sub(1, Ordering::AcqRel);
    }
}
