//! Does what the engine says: lists directories and reads files, and waits before each step for whoever has more urgent things to do.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::recipe::ChunkDescriptor;
use dray_engine::search::{EntryId, Operation};
use dray_store::index::{ChunkKey, key as chunk_key};

use super::Shared;
use super::cached::CachedFiles;
use super::nodes::Making;
use super::pressure::Pressure;
use super::scope::{Found, Identity, Opened, Scope};
use super::share::{Share, busy};
use crate::lock;

/// Bytes of one read (Y5).
pub(super) const READ_BYTES: usize = 64 << 10;
/// After how many bytes of a file that had nothing it is looked again whether there is hope.
const HOPE_BYTES: u64 = 1 << 20;
/// What a directory or file that is ranked takes beside its name, in lists that are being enlarged.
pub(super) const ENTRY_HELD_BYTES: u64 = 320;
/// How soon it is looked again whether the transfer still has something to do.
const BUSY: Duration = Duration::from_millis(1);
/// So many entries are ranked at a time: whoever plans the transfer wants to know meanwhile how far the search is.
const RANKED_ENTRIES: usize = 1000;
/// How long others have the order to themselves after each: a lock that is given back for no time at all is not had by whoever sleeps and waits for it.
const RANKED_PAUSE: Duration = Duration::from_micros(100);
/// Where the kernel tells of the calling thread.
const THIS_THREAD: &str = "/proc/thread-self";
/// How often it is looked whether somebody wants something.
const IDLE: Duration = Duration::from_millis(500);

/// Searches until it is over, or there is nothing left that could ever be of use.
pub(super) fn run(shared: &Shared, scope: &Scope, profile: Profile, older: Option<Identity>) {
    let mut executor = Executor {
        shared,
        scope,
        profile,
        seen: older.into_iter().collect(),
        known: older.into_iter().collect(),
        cached: CachedFiles::default(),
        yields: false,
        share: RefCell::default(),
        ranked_bytes: Cell::new(0),
    };
    let mut goes_on = true;
    while goes_on {
        // To rank is work, too (Y7). What can be told without, and so that there is nothing to do, is told at once.
        if lock(&shared.order).search.is_to_be_ranked() && !executor.stand_back() {
            break;
        }
        let Some((next, questions)) = executor.next() else { break };
        #[cfg(test)]
        lock(&shared.trace).extend(next);
        goes_on = match next {
            Some(Operation::Stat(directory)) => executor.stand_back() && executor.list(directory),
            Some(Operation::Hash(file)) => {
                executor.await_demand() && executor.stand_back() && executor.read(file)
            }
            // It reads tables of the index, and opens files.
            Some(Operation::CacheCheck) => executor.stand_back() && executor.check(),
            Some(Operation::CacheRead(file)) => executor.stand_back() && executor.read_known(file),
            None => executor.await_question(questions),
        };
    }
    executor.end();
}

pub(super) struct Executor<'a> {
    pub(super) shared: &'a Shared,
    scope: &'a Scope,
    profile: Profile,
    /// Files that were opened to be read, and the older version, by whatever names. As many as the engine knows files.
    seen: HashSet<Identity>,
    /// Those of them that were read to their end: an index tells nothing new of them.
    pub(super) known: HashSet<Identity>,
    /// Files that an index named.
    pub(super) cached: CachedFiles,
    /// Others come first for the processor, too. Not before the first file is read: whether there is hope is waited for.
    yields: bool,
    /// What it takes of the processor.
    share: RefCell<Share>,
    /// Bytes of memory that what is ranked takes.
    ranked_bytes: Cell<u64>,
}

/// What reading a file took, and told.
#[derive(Default)]
struct Done {
    chunks: u64,
    took: Duration,
    /// It was read to its end.
    is_whole: bool,
}

impl Executor<'_> {
    /// What is to be done next, and how many questions were asked by then; `None` when the search is over.
    fn next(&self) -> Option<(Option<Operation>, u64)> {
        loop {
            {
                let mut order = lock(&self.shared.order);
                let next = order.search.next_by_turns(&mut || self.shared.now_us(), RANKED_ENTRIES);
                if let ControlFlow::Break(next) = next {
                    order.is_idle = next.is_none();
                    return Some((next, order.questions));
                }
            }
            thread::sleep(RANKED_PAUSE);
            if !self.stand_back() {
                return None;
            }
        }
    }

    /// Waits as long as the transfer has something to do itself. False when the search is over.
    pub(super) fn stand_back(&self) -> bool {
        let pressure = lock(&self.shared.pressure).clone().filter(|_| self.shared.heeds_pressure);
        while !self.shared.is_over() {
            let Some(pressure) = &pressure else { return true };
            if pressure.is_high() {
                self.pauses(pressure);
            } else if !self.takes_much(pressure) {
                return true;
            }
            thread::sleep(BUSY);
        }
        false
    }

    /// It takes nothing of the processor from now on.
    fn pauses(&self, pressure: &Pressure) {
        let mut share = self.share.borrow_mut();
        share.pause(self.shared.now_us(), || pressure.reading());
        #[cfg(test)]
        self.shared.is_charged.store(share.is_charged(), Ordering::Release);
    }

    /// Whether it takes of the processor what the transfer waits for.
    fn takes_much(&self, pressure: &Pressure) -> bool {
        #[cfg(test)]
        if self.shared.is_paced.load(Ordering::Acquire) {
            return false;
        }
        let mut share = self.share.borrow_mut();
        let takes_much = share.is_too_large(self.shared.now_us(), || pressure.reading());
        #[cfg(test)]
        {
            self.shared.rests.store(share.rests, Ordering::Release);
            self.shared.is_charged.store(share.is_charged(), Ordering::Release);
        }
        takes_much
    }

    /// Waits until somebody has asked for chunks, or is about to: then one file is read.
    fn await_demand(&self) -> bool {
        self.await_that(|order| order.is_demanded || order.is_expected && !order.has_read)
    }

    /// Waits until somebody has asked more than `questions`.
    fn await_question(&self, questions: u64) -> bool {
        self.await_that(|order| order.questions > questions)
    }

    fn await_that(&self, is_so: impl Fn(&super::Order) -> bool) -> bool {
        let is_to_wait = {
            let order = lock(&self.shared.order);
            !is_so(&order)
        };
        let pressure = lock(&self.shared.pressure).clone();
        if let Some(pressure) = pressure.filter(|_| is_to_wait) {
            self.pauses(&pressure);
        }
        let mut order = lock(&self.shared.order);
        self.shared.changed.notify_all();
        while !self.shared.is_over() && !is_so(&order) {
            order = self.shared.changed.wait_timeout(order, IDLE).unwrap_or_else(PoisonError::into_inner).0;
        }
        !self.shared.is_over()
    }

    fn path(&self, entry: EntryId) -> PathBuf {
        lock(&self.shared.order).search.path(entry).into_iter().map(OsStr::from_bytes).collect()
    }

    /// STAT (Y11). False when the search is over.
    fn list(&self, directory: EntryId) -> bool {
        let (path, begun) = (self.path(directory), Instant::now());
        let mut is_news = false;
        let waited = Cell::new(Duration::ZERO);
        let goes_on = || {
            let since = Instant::now();
            let goes_on = self.stand_back();
            waited.set(waited.get() + since.elapsed());
            goes_on
        };
        self.scope.list(&path, &goes_on, &mut |found| {
            let held_bytes = ENTRY_HELD_BYTES + found.name().len() as u64;
            if !self.shared.memory.take(held_bytes) {
                // What is not remembered is not looked at.
                return;
            }
            let mut order = lock(&self.shared.order);
            let entered = match found {
                Found::Directory(name) => order.search.found_directory(directory, name),
                Found::File(file) => {
                    let entered = order.search.found_file(directory, file);
                    let is_hopeful = entered.is_some_and(|file| order.search.is_hopeful(file));
                    is_news |= is_hopeful && !std::mem::replace(&mut order.is_hopeful, true);
                    entered
                }
            };
            match entered {
                Some(_) => self.ranked_bytes.set(self.ranked_bytes.get() + held_bytes),
                None => self.shared.memory.give(held_bytes),
            }
        });
        lock(&self.shared.order).search.listed(directory, us(begun.elapsed().saturating_sub(waited.get())));
        if is_news {
            self.shared.changed.notify_all();
        }
        !self.shared.is_over()
    }

    /// Gives the memory back, but for that of what was of use: the network may need it.
    fn end(self) {
        self.shared.end();
        let dropped = lock(&self.shared.finds).end();
        drop(dropped);
        let ranked = lock(&self.shared.order).end();
        drop(ranked);
        lock(&self.shared.nodes).clear();
        self.shared.memory.give(self.ranked_bytes.get() + self.cached.held_bytes());
    }

    /// From the first file that is read on.
    pub(super) fn yield_to_others(&mut self) {
        if !std::mem::replace(&mut self.yields, true) {
            // Best effort.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
        }
    }

    /// HASH (Y10): reads the file and remembers where its chunks lie. False when the search is over.
    fn read(&mut self, entry: EntryId) -> bool {
        self.yield_to_others();
        let cached = self.cached.take(entry, &self.shared.memory);
        let opened = cached.unwrap_or_else(|| self.scope.open(&self.path(entry)));
        // One that was left, as there was no hope, may be worth it for what an index knows.
        let mut is_new = |opened: &Opened| {
            let is_seen = !self.seen.insert(opened.identity);
            !is_seen || opened.is_cached && !self.known.contains(&opened.identity)
        };
        let Some(opened) = opened.filter(&mut is_new) else {
            self.has_read(entry, &Done::default());
            return true;
        };
        let Some((number, dropped)) = lock(&self.shared.finds).take(&opened) else {
            // Of all that may be open, something is used.
            return false;
        };
        drop(dropped);
        let mut done = Done::default();
        // Where there is an older version, the recipe is known from that; and what an index led to is told by no node that is not asked for.
        let makes_nodes = !opened.is_cached && lock(&self.shared.order).wants_untold;
        let mut making = Making::of(makes_nodes.then_some(self.profile));
        let has_room = self.cut(entry, number, &opened.file, &mut making, &mut done);
        if done.is_whole {
            self.known.insert(opened.identity);
        }
        self.has_read(entry, &done);
        self.shared.changed.notify_all();
        has_room && !self.shared.is_over()
    }

    fn has_read(&self, entry: EntryId, done: &Done) {
        let mut order = lock(&self.shared.order);
        order.search.hashed(entry, done.chunks, us(done.took));
        order.has_read = true;
    }

    /// True if all of the object is known, and nothing of it is wanted.
    fn has_all(&self) -> bool {
        let is_told = {
            let order = lock(&self.shared.order);
            order.told_bytes >= order.size_bytes
        };
        is_told && lock(&self.shared.finds).wanted() == 0
    }

    /// True if others have found meanwhile what the file was opened for. One that had something is read to its end.
    fn is_done_with(&self, entry: EntryId, number: u32) -> bool {
        let is_hopeful = lock(&self.shared.order).search.is_hopeful(entry);
        // After: whoever is told of a chunk does not want it any more, and then there may be no more hope.
        !is_hopeful && !lock(&self.shared.finds).is_used(number)
    }

    /// False if the search is over, or nothing more can be remembered.
    fn cut(
        &self,
        entry: EntryId,
        number: u32,
        file: &std::fs::File,
        making: &mut Making,
        done: &mut Done,
    ) -> bool {
        let mut nodes = Vec::new();
        let mut is_of_use = false;
        let mut chunker = self.profile.chunker();
        let mut buffer = vec![0; READ_BYTES];
        let (mut position, mut offset) = (0, 0);
        let mut cut: Vec<(ChunkKey, u64)> = Vec::new();
        // Of what is read at a time before it is looked at how fast that was: bytes, time, and when it was begun.
        let (mut read_bytes, mut read_time, mut read_since) = (0, Duration::ZERO, busy(THIS_THREAD));
        loop {
            if !self.stand_back() {
                return false;
            }
            if self.has_all() || position % HOPE_BYTES == 0 && !is_of_use && self.is_done_with(entry, number)
            {
                return true;
            }
            let begun = Instant::now();
            // What cannot be read ends the file: what was found before is as good as ever.
            let len = file.read_at(&mut buffer, position).unwrap_or(0);
            position += len as u64;
            self.shared.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
            let mut take = |chunk: &[u8]| {
                let described = ChunkDescriptor::of(chunk);
                cut.push((chunk_key(&described), offset));
                making.push(described, &mut nodes);
                offset += chunk.len() as u64;
            };
            match len {
                0 => chunker.finish(&mut take),
                len => chunker.push(&buffer[..len], &mut take),
            }
            if len == 0 {
                making.finish(&mut nodes);
            }
            done.chunks += cut.len() as u64;
            done.took += begun.elapsed();
            (read_bytes, read_time) = (read_bytes + len as u64, read_time + begun.elapsed());
            if read_bytes >= HOPE_BYTES {
                let now = busy(THIS_THREAD);
                let ran = now.zip(read_since).map(|(now, since)| now.saturating_sub(since));
                lock(&self.shared.disk_rate).note(read_bytes, read_time, ran);
                (read_bytes, read_time, read_since) = (0, Duration::ZERO, now);
            }
            let (has_room, is_news) = {
                let mut finds = lock(&self.shared.finds);
                let before = finds.news();
                let has_room = finds.add(number, &cut);
                (has_room, finds.news() > before)
            };
            cut.clear();
            is_of_use |= is_news;
            let has_nodes = !nodes.is_empty();
            if has_nodes {
                let mut known = lock(&self.shared.nodes);
                nodes.drain(..).for_each(|node| known.add(node.id, node.bytes));
            }
            if is_news || has_nodes {
                self.shared.changed.notify_all();
            }
            if len == 0 || !has_room {
                done.is_whole = len == 0 && has_room;
                return has_room;
            }
        }
    }
}

pub(super) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
