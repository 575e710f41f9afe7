//! The chunk index under the daemon (design 12): fills it when nothing else is to be done, and answers from it.
//!
//! One thread with low priority opens it, looks after it and fills it (`filling`). All of it may fail: then there is less to find. What
//! the disk refuses is tried again later and later; an index that is damaged again and again is given up.

mod filling;
mod hopes;
mod pace;
mod pass;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fs;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dray_client::types::{IndexAnswer, IndexQuestion, IndexState};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_store::index::{ChunkIndex, Health, IndexLimits};
use dray_store::local::LocalStore;
use dray_transfer::recipe::Recipe;

use super::pulse::{Pulse, Woken};
use crate::elsewhere::{Hints, Question};
use crate::mounts::Mounts;
use crate::{Event, Observer};
use hopes::Hopes;
pub(super) use pace::Pace;
use pace::REST_MAX;
use pass::Progress;

/// Between two rounds, if something happened in between.
const ROUND: Duration = Duration::from_secs(1);
/// Between two rounds if nothing did that this daemon knows of: commands put and fetch without it.
const ROUND_MAX: Duration = Duration::from_secs(60);
/// It rests so many times as long as it works, looking through the store included.
pub(super) const REST_PER_WORK: u32 = 10;
/// How often it is made anew before it is given up.
const ANEW_MAX: u32 = 3;

/// The index, and the thread that fills it.
#[derive(Debug, Default)]
pub(super) struct Indexing {
    /// Locked to be read or replaced, never while anything is done with it.
    index: RwLock<Option<Arc<ChunkIndex>>>,
    pulse: Pulse,
    /// MiB that it may take, as the configuration says; none if there shall be none.
    wanted_mib: AtomicU64,
    waiting: AtomicU64,
    read_bytes: AtomicU64,
    hopes: Hopes,
}

/// What the thread that fills the index is given.
pub(super) struct Means<'a> {
    /// Where the index lies.
    pub(super) root: PathBuf,
    /// Bytes that it leaves free on that disk.
    pub(super) free_bytes: u64,
    pub(super) store: &'a LocalStore,
    /// Whether bytes are moved, or wait to be.
    pub(super) is_busy: &'a dyn Fn() -> bool,
    /// What of the time it may take.
    pub(super) pace: Pace,
    /// The recipe of an object, if it was made for somebody else.
    pub(super) recipe_of: &'a dyn Fn(&Oid) -> Option<Arc<Recipe>>,
    /// What is mounted where, now.
    pub(super) mounts: &'a dyn Fn() -> Mounts,
    pub(super) observer: &'a dyn Observer,
}

/// What that thread remembers from round to round.
#[derive(Default)]
struct Memory {
    /// As which size the index is open; none if it is not.
    open_mib: u64,
    /// The one that was open before, as long as a question uses it: to close it waits for the disk, which is done here.
    closing: Option<Arc<ChunkIndex>>,
    made_anew: u32,
    /// What the store was when nothing of it was for the index.
    needless: Option<u64>,
    /// It was closed for a thread of its library that ended, though the disk had room, and is open again.
    has_stopped: bool,
    /// How often it was closed over what the disk refused, and when last.
    outages: u32,
    failed_at: Option<Instant>,
    /// What was told of, once each.
    told: Vec<ErrorKind>,
    progress: Progress,
}

impl Indexing {
    /// Whether there shall be an index, of so many MiB on disk.
    pub(super) fn set_wanted(&self, mib: Option<u64>) {
        self.wanted_mib.store(mib.unwrap_or(0), Ordering::Release);
        self.stir();
        self.pulse.nudge();
    }

    /// There may be something new in the store.
    pub(super) fn stir(&self) {
        self.pulse.stir();
    }

    /// Ends the thread, at its next read.
    pub(super) fn end(&self) {
        self.pulse.end();
    }

    /// What it has. Waits for no disk.
    pub(super) fn state(&self) -> IndexState {
        let index = self.open();
        let figures = index.as_ref().map(|index| index.figures()).unwrap_or_default();
        IndexState {
            wanted: self.wanted_mib.load(Ordering::Acquire) > 0,
            open: index.is_some(),
            files: figures.files,
            chunks: figures.chunks,
            disk_bytes: figures.disk_bytes,
            waiting: self.waiting.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }

    /// Fills the index until [`Indexing::end`].
    pub(super) fn run(&self, means: &Means<'_>) {
        // Best effort: what is done here has time. On Linux this is about the one thread.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
        let (mut memory, mut failures) = (Memory::default(), 0);
        let mut patience = Duration::ZERO;
        loop {
            let woken = self.pulse.wait(patience);
            if woken == Woken::Over {
                return;
            }
            means.pace.start();
            let round = AssertUnwindSafe(|| self.round(means, &mut memory, woken == Woken::Stirred));
            let failed = |_| Err(Error::new(ErrorKind::Internal, "the thread that fills it failed"));
            let result = catch_unwind(round).unwrap_or_else(failed);
            means.pace.stop();
            let rest = means.pace.owed().max(ROUND);
            let rest = match result {
                Ok(has_more) => {
                    failures = 0;
                    memory.forget_outages();
                    patience = if has_more { Duration::ZERO } else { ROUND_MAX };
                    rest
                }
                Err(error) => {
                    memory.account(&error).into_iter().for_each(|event| means.observer.event(event));
                    failures += 1;
                    patience = Duration::ZERO;
                    rest.max(rest_after(failures.max(memory.outages)))
                }
            };
            let wanted_mib = self.wanted_mib.load(Ordering::Acquire);
            let is_wanted = || self.wanted_mib.load(Ordering::Acquire) == wanted_mib;
            if !self.pulse.rest_while(rest, is_wanted) {
                return;
            }
        }
    }

    /// Looks after the index once, and through the store if there may be something new in it. Closes an index that is unfit, to be
    /// opened in another round. True if there is more to do.
    fn round(&self, means: &Means<'_>, memory: &mut Memory, is_stirred: bool) -> Result<bool> {
        let result = self.look_after(means, memory, is_stirred);
        if let Some(index) = self.open().filter(|index| index.health() != Health::Well) {
            if memory.bear(index.health(), index.is_there_room()) {
                index.throw_away();
            }
            drop(index);
            self.close(memory);
        }
        result
    }

    fn look_after(&self, means: &Means<'_>, memory: &mut Memory, is_stirred: bool) -> Result<bool> {
        let wanted_mib = self.wanted_mib.load(Ordering::Acquire);
        if wanted_mib != memory.open_mib {
            self.close(memory);
            memory.progress = Progress::default();
        }
        // Nobody is given that any more.
        if memory.closing.as_ref().is_some_and(|closing| Arc::strong_count(closing) > 1) {
            // Soon.
            return Ok(true);
        }
        memory.closing = None;
        if let Some(index) = self.open().filter(|index| index.health() != Health::Well) {
            // A question found that.
            drop(index);
            return Err(Error::new(ErrorKind::Internal, "the chunk index could not be read"));
        }
        if wanted_mib == 0 {
            // What it takes is of no use to anybody.
            if ChunkIndex::is_there(&means.root) {
                ChunkIndex::remove(&means.root)?;
            }
            return Ok(false);
        }
        let index = match self.open() {
            Some(index) => index,
            // What was not in order yet is read again.
            None if !self.hold(means) || !self.is_needed(means, memory)? => return Ok(false),
            None => self.open_anew(means, memory, wanted_mib)?,
        };
        index.check()?;
        self.fill(&index, means, &mut memory.progress, is_stirred)
    }

    /// Whether there is an index, or something to be taken in: one that has nothing takes 64 MiB.
    fn is_needed(&self, means: &Means<'_>, memory: &mut Memory) -> Result<bool> {
        if ChunkIndex::is_there(&means.root) {
            return Ok(true);
        }
        let generation = means.store.generation()?;
        if memory.needless == Some(generation) {
            return Ok(false);
        }
        let (is_found, mounts) = (Cell::new(false), (means.mounts)());
        let is_whole =
            means.store.each_whereabouts(&mut || !is_found.get() && self.hold(means), &mut |at| {
                let is_for_it = ChunkIndex::takes(at.identity.size_bytes) && !mounts.is_left_out(&at.path);
                is_found.set(is_found.get() || is_for_it);
            })?;
        memory.needless = (is_whole && !is_found.get()).then_some(generation);
        Ok(is_found.get())
    }

    fn open_anew(&self, means: &Means<'_>, memory: &mut Memory, mib: u64) -> Result<Arc<ChunkIndex>> {
        if memory.made_anew >= ANEW_MAX {
            let what = format!("it was damaged {ANEW_MAX} times, and is given up");
            return Err(
                Error::new(ErrorKind::Damaged, what).advise("look at the disk, and start the daemon again")
            );
        }
        if let Some(kind) = (means.mounts)().is_unfit(&without_links(&means.root)) {
            let what = format!(
                "its directory {:?} lies on {kind}, which is a network's or takes memory",
                means.root
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("set DRAY_DATA_DIR to a directory on a disk of this machine, or index = false"));
        }
        let limits = IndexLimits { free_bytes: means.free_bytes, ..IndexLimits::of_disk(mib << 20) };
        let (index, reason) = ChunkIndex::open(&means.root, limits)?;
        if let Some(reason) = reason {
            memory.made_anew += 1;
            memory.has_stopped = false;
            means.observer.event(Event::Note(format!("the chunk index is made anew: {reason}")));
        }
        if index.figures().files == 0 {
            memory.progress = Progress::default();
        }
        let index = Arc::new(index);
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Some(index.clone());
        memory.open_mib = mib;
        Ok(index)
    }

    /// Closes the index. May take long, and nobody waits for it.
    fn close(&self, memory: &mut Memory) {
        let old = self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(old) = old {
            // A question that still has it is the last one. In the rounds until then there is nothing to close.
            memory.closing = Some(old).filter(|old| Arc::strong_count(old) > 1);
        }
        self.waiting.store(0, Ordering::Relaxed);
    }

    fn open(&self) -> Option<Arc<ChunkIndex>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Memory {
    /// Takes note of why the index is to be closed; and whether it is to be thrown away. A thread of its library that ends twice, and no
    /// disk was full, met damage that nobody else reads.
    fn bear(&mut self, health: Health, has_room: bool) -> bool {
        self.forget_outages();
        self.outages = self.outages.saturating_add(1);
        self.failed_at = Some(Instant::now());
        let is_stopped = health == Health::Stopped && has_room;
        // What the disk refuses in between explains the first one.
        std::mem::replace(&mut self.has_stopped, is_stopped) && is_stopped
    }

    /// What is to be told of a failure: each kind once, as its text may differ by a number each time.
    fn account(&mut self, error: &Error) -> Option<Event> {
        let kind = error.kind();
        if self.told.contains(&kind) {
            return None;
        }
        self.told.push(kind);
        Some(match kind {
            // What is in it is found still.
            ErrorKind::NoSpace => Event::Note(format!("the chunk index takes nothing in: {error}")),
            _ => Event::Warning(format!("the chunk index is not used: {error}")),
        })
    }

    /// What is long ago counts no more.
    fn forget_outages(&mut self) {
        if self.failed_at.is_none_or(|at| at.elapsed() >= REST_MAX) {
            self.outages = 0;
        }
    }
}

/// How long to rest after so many failures in a row.
fn rest_after(failures: u32) -> Duration {
    ROUND.saturating_mul(1 << failures.min(20)).min(REST_MAX)
}

impl Hints for Indexing {
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
        let question = Question::of(directory, question)?;
        match self.open().filter(|index| index.health() == Health::Well) {
            Some(index) => self.answer(&question, &index),
            None => Ok(IndexAnswer::default()),
        }
    }
}

/// Mounts are known by paths without symbolic links. The last part of `path` need not be there yet.
fn without_links(path: &Path) -> PathBuf {
    let beside = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

impl Indexing {
    fn answer(&self, question: &Question<'_>, index: &ChunkIndex) -> Result<IndexAnswer> {
        let below = question.below();
        let may_be_by_size =
            question.size_bytes().is_some_and(|size_bytes| self.hopes.may_hope(below, size_bytes));
        let (answer, is_by_size) = question.answer(index, may_be_by_size)?;
        if let Some(size_bytes) = question.size_bytes().filter(|_| is_by_size) {
            self.hopes.hoped(below, size_bytes);
        }
        if question.is_for_chunks() {
            self.hopes.asked(below, !answer.found.is_empty());
        }
        Ok(answer)
    }
}
