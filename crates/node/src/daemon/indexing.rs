//! The chunk index under the daemon (design 12): fills it when nothing else is to be done, and answers from it.
//!
//! One thread cuts the files of the store's objects, those that are shared and those that were fetched, one after the other. It holds
//! before every read as long as this daemon moves bytes for anybody (Y5). All of it may fail: then there is less to find.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dray_client::types::{IndexAnswer, IndexQuestion, IndexState};
use dray_core::limits::{INDEX_CHUNKS_MAX, INDEX_FILES_MAX};
use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_store::index::{ChunkIndex, IndexLimits, look};
use dray_store::local::{LocalStore, Whereabouts};
use dray_transfer::recipe::Recipe;

use crate::elsewhere::{Hints, Question};
use crate::{Event, Observer, lock};

/// Between two rounds, if something happened in between.
const ROUND: Duration = Duration::from_secs(1);
/// Between two rounds if nothing did that this daemon knows of: commands put and fetch without it.
const ROUND_MAX: Duration = Duration::from_secs(60);
/// A round takes at most this share of the time, looking through the store included.
const REST_PER_WORK: u32 = 10;
/// How often it is looked whether bytes still move.
const HOLD: Duration = Duration::from_millis(50);
/// Bytes on disk that one chunk takes, garbage and order included.
const BYTES_PER_CHUNK: u64 = 64;

/// The index, and the thread that fills it.
#[derive(Debug, Default)]
pub(super) struct Indexing {
    index: RwLock<Option<Arc<ChunkIndex>>>,
    pulse: Mutex<Pulse>,
    beat: Condvar,
    /// As the configuration says.
    is_wanted: AtomicBool,
    waiting: AtomicU64,
    read_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Pulse {
    is_due: bool,
    is_over: bool,
}

/// What the thread that fills the index is given.
pub(super) struct Means<'a> {
    /// Where the index lies.
    pub(super) root: PathBuf,
    /// MiB that it may take there.
    pub(super) mib: u64,
    pub(super) store: &'a LocalStore,
    /// Whether bytes are moved, or wait to be.
    pub(super) is_busy: &'a dyn Fn() -> bool,
    /// The recipe of an object, if it was made for somebody else.
    pub(super) recipe_of: &'a dyn Fn(&Oid) -> Option<Arc<Recipe>>,
    pub(super) observer: &'a dyn Observer,
}

/// What was done to a file, so that nothing is read again and again.
struct Tried {
    identity: FileIdentity,
    /// What changes all the time is not read before.
    not_before: Instant,
}

impl Indexing {
    /// Whether there shall be an index.
    pub(super) fn set_wanted(&self, wanted: bool) {
        self.is_wanted.store(wanted, Ordering::Release);
        self.stir();
    }

    /// There may be something new in the store.
    pub(super) fn stir(&self) {
        lock(&self.pulse).is_due = true;
        self.beat.notify_all();
    }

    /// Ends the thread, at its next read.
    pub(super) fn end(&self) {
        lock(&self.pulse).is_over = true;
        self.beat.notify_all();
    }

    /// What it has.
    pub(super) fn state(&self) -> IndexState {
        let index = self.open();
        let figures = index.as_ref().map(|index| index.figures()).unwrap_or_default();
        IndexState {
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
        let mut tried: HashMap<u64, Tried> = HashMap::new();
        let (hasher, mut told) = (RandomState::new(), None);
        let mut patience = Duration::ZERO;
        while self.wait(patience) {
            let begun = Instant::now();
            if let Err(error) = self.round(means, &mut tried, &hasher)
                && told.as_ref() != Some(&error.to_string())
            {
                told = Some(error.to_string());
                means.observer.event(Event::Warning(format!("the chunk index is not used: {error}")));
            }
            // Not for what comes at once, and not for long.
            if !self.rest(ROUND.max(begun.elapsed() * REST_PER_WORK).min(ROUND_MAX)) {
                return;
            }
            patience = ROUND_MAX;
        }
    }

    /// Looks through the store once.
    fn round(&self, means: &Means<'_>, tried: &mut HashMap<u64, Tried>, hasher: &RandomState) -> Result<()> {
        let is_wanted = self.is_wanted.load(Ordering::Acquire);
        if !is_wanted || self.open().is_some_and(|index| index.is_broken()) {
            drop(self.index.write().unwrap_or_else(PoisonError::into_inner).take());
            tried.clear();
        }
        if !is_wanted {
            return Ok(());
        }
        let index = match self.open() {
            Some(index) => index,
            None => {
                let chunks = ((means.mib << 20) / BYTES_PER_CHUNK).min(INDEX_CHUNKS_MAX);
                let limits = IndexLimits { chunks, ..IndexLimits::default() };
                let (index, reason) = ChunkIndex::open(&means.root, limits)?;
                if let Some(reason) = reason {
                    let text = format!("the chunk index is made anew: {reason}");
                    means.observer.event(Event::Note(text));
                }
                let index = Arc::new(index);
                *self.index.write().unwrap_or_else(PoisonError::into_inner) = Some(index.clone());
                index
            }
        };
        if tried.len() > 2 * INDEX_FILES_MAX {
            tried.clear();
        }
        let all = means.store.whereabouts()?;
        let is_news = |at: &Whereabouts| {
            let known = tried.get(&hasher.hash_one(&at.path));
            ChunkIndex::takes(at.identity.size_bytes)
                && known.is_none_or(|known| Some(known.identity) != look(&at.path))
                && known.is_none_or(|known| known.not_before <= Instant::now())
        };
        let news: Vec<&Whereabouts> = all.iter().filter(|at| is_news(at)).collect();
        self.waiting.store(news.len() as u64, Ordering::Relaxed);
        for at in news {
            let begun = Instant::now();
            let looked_at = look(&at.path);
            let taken = self.take_in(&index, at, means);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(identity) = looked_at {
                let not_before = Instant::now() + begun.elapsed() * REST_PER_WORK;
                tried.insert(hasher.hash_one(&at.path), Tried { identity, not_before });
            }
            if index.is_broken() {
                // Begun anew in the next round.
                self.stir();
                return taken;
            }
            if matches!(&taken, Err(error) if error.kind() == ErrorKind::Interrupted) {
                return Ok(());
            }
        }
        index.tidy()
    }

    /// Takes one file in.
    fn take_in(&self, index: &ChunkIndex, at: &Whereabouts, means: &Means<'_>) -> Result<()> {
        if look(&at.path) != Some(at.identity) {
            // Another file has its name now, or it is being changed: nobody has put that.
            return Ok(());
        }
        if let Some(recipe) = (means.recipe_of)(&at.oid) {
            let path = std::fs::canonicalize(&at.path);
            let path = path.map_err(|error| Error::file(format!("find {:?}", at.path), error))?;
            if index.has(&path, &at.identity) {
                return Ok(());
            }
            // It was cut already, for a receiver.
            let mut entering = index.enter(&path, at.identity, recipe.root().profile())?;
            recipe.chunks(&mut |placed| entering.add(&placed.chunk, placed.offset))?;
            return entering.finish();
        }
        let mut may_read = |bytes: usize| {
            let may = self.hold(means.is_busy);
            if may {
                self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            may
        };
        index.cut(&at.path, &mut may_read).map(drop)
    }

    /// Waits as long as `is_busy`; false if nothing is to be read any more.
    fn hold(&self, is_busy: &dyn Fn() -> bool) -> bool {
        loop {
            if lock(&self.pulse).is_over || !self.is_wanted.load(Ordering::Acquire) {
                return false;
            }
            if !is_busy() {
                return true;
            }
            self.rest(HOLD);
        }
    }

    /// Waits until it is due, at most `patience`; false if it is over.
    fn wait(&self, patience: Duration) -> bool {
        let waited = self
            .beat
            .wait_timeout_while(lock(&self.pulse), patience, |pulse| !pulse.is_due && !pulse.is_over);
        let mut pulse = waited.unwrap_or_else(PoisonError::into_inner).0;
        pulse.is_due = false;
        !pulse.is_over
    }

    /// Waits for the end, at most `patience`; false if it has come.
    fn rest(&self, patience: Duration) -> bool {
        let waited = self.beat.wait_timeout_while(lock(&self.pulse), patience, |pulse| !pulse.is_over);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    fn open(&self) -> Option<Arc<ChunkIndex>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Hints for Indexing {
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
        let question = Question::of(directory, question)?;
        match self.open().filter(|index| !index.is_broken()) {
            Some(index) => question.answer(&index),
            None => Ok(IndexAnswer::default()),
        }
    }
}

#[cfg(test)]
mod tests;
