//! What fills the index: the files of the store's objects, those that are shared and those that were fetched, one after the other, the latest first.
//!
//! Before whatever it reads or writes it holds as long as this daemon moves bytes for anybody (Y5).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::limits::INDEX_FILES_MAX;
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkIndex, Cut, Health, look};
use dray_store::local::Whereabouts;

use super::{Indexing, Means, REST_PER_WORK};

/// Files that are found in one look through the store; if there are more, it is looked through again.
const NEWS_MAX: usize = 4096;
/// How often it is looked through if no object came or went: what was done to one may have been missed.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
/// How often it is looked whether bytes still move.
const HOLD: Duration = Duration::from_millis(50);
/// Looking for files that are gone takes at most this share of the time.
const SWEEP_REST: u32 = 100;
/// Chunks of a recipe that are taken in without looking.
const CHUNKS_AT_ONCE: u64 = 1024;

/// How far it is.
#[derive(Default)]
pub(super) struct Progress {
    /// What the store was when it was looked through to its end, and when that was.
    seen: Option<(u64, Instant)>,
    /// What there is nothing more to do for, by paths and states of files.
    done: HashSet<u64>,
    /// When what is at a path may be read again: not what changes all the time.
    resting: HashMap<u64, Instant>,
    /// When the index was last looked through for files that are gone, and how long that took.
    swept: Option<(Instant, Duration)>,
    hasher: RandomState,
}

impl Progress {
    #[cfg(test)]
    pub(super) fn rest_until(&mut self, until: Instant) {
        self.resting.values_mut().for_each(|rest| *rest = until);
    }

    fn state_of(&self, at: &Whereabouts) -> u64 {
        let now = &at.identity;
        self.hasher.hash_one((&at.path, now.dev, now.ino, now.size_bytes, now.mtime_ns, now.ctime_ns))
    }

    fn is_done(&self, at: &Whereabouts) -> bool {
        self.done.contains(&self.state_of(at))
    }

    fn is_resting(&self, at: &Whereabouts) -> bool {
        let until = self.resting.get(&self.hasher.hash_one(&at.path));
        until.is_some_and(|until| *until > Instant::now())
    }

    fn set_done(&mut self, at: &Whereabouts, work: Duration) {
        if self.done.len() >= 2 * INDEX_FILES_MAX {
            // What is in the index is found there.
            self.done.clear();
        }
        self.done.insert(self.state_of(at));
        if !work.is_zero() {
            let now = Instant::now();
            self.resting.retain(|_, until| *until > now);
            self.resting.insert(self.hasher.hash_one(&at.path), now + work * REST_PER_WORK);
        }
    }
}

/// What is to be taken in.
#[derive(Default)]
struct News {
    /// By their age.
    files: BTreeMap<(i64, u64), Whereabouts>,
    /// There is more than these.
    has_more: bool,
    /// There will be more than these.
    has_resting: bool,
    /// Some had no room.
    is_refused: bool,
}

impl Indexing {
    /// Takes in what is new in the store; looks for that if something happened.
    pub(super) fn fill(
        &self,
        index: &ChunkIndex,
        means: &Means<'_>,
        progress: &mut Progress,
        is_stirred: bool,
    ) -> Result<()> {
        if !self.hold(means.is_busy) {
            return Ok(());
        }
        index.write_back()?;
        let generation = means.store.generation()?;
        match progress.seen.take() {
            Some((seen, at)) if seen == generation && at.elapsed() < LOOK_INTERVAL && !is_stirred => {
                progress.seen = Some((seen, at));
                return Ok(());
            }
            Some((_, at)) if at.elapsed() >= LOOK_INTERVAL => progress.done.clear(),
            _ => {}
        }
        let Some(mut news) = self.look_through(index, means, progress)? else { return Ok(()) };
        // What is taken in needs that room.
        if index.is_untidy() && self.hold(means.is_busy) {
            index.tidy()?;
        }
        let is_full = news.is_refused
            || news.files.values().any(|at| {
                Profile::for_size(at.identity.size_bytes)
                    .is_some_and(|profile| !index.has_free_room(&at.path, &at.identity, profile))
            });
        if is_full && self.sweep(index, means, progress) {
            // What was refused may have room now.
            let Some(again) = self.look_through(index, means, progress)? else { return Ok(()) };
            news = again;
        }
        let mut waiting = news.files.len() as u64;
        self.waiting.store(waiting, Ordering::Relaxed);
        while let Some((_, at)) = news.files.pop_last() {
            if !self.hold(means.is_busy) {
                return Ok(());
            }
            let (taken, work) = self.take_in(index, &at, means);
            waiting -= 1;
            self.waiting.store(waiting, Ordering::Relaxed);
            match taken {
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NoSpace && index.health() == Health::Well => {
                    if index.has_dead() && self.hold(means.is_busy) {
                        index.give_back()?;
                    }
                    return Err(error);
                }
                Err(error) if error.kind() == ErrorKind::NoSpace || index.health() != Health::Well => {
                    return Err(error);
                }
                // Another one may be better.
                Ok(()) | Err(_) => progress.set_done(&at, work),
            }
            if index.is_untidy() && self.hold(means.is_busy) {
                index.tidy()?;
            }
        }
        if news.has_more {
            self.pulse.stir();
        } else if !news.has_resting {
            progress.seen = Some((generation, Instant::now()));
        }
        Ok(())
    }

    /// Forgets files that are gone, so that they leave before those that are there; not all the time. False if it was not time for that.
    fn sweep(&self, index: &ChunkIndex, means: &Means<'_>, progress: &mut Progress) -> bool {
        let is_due = |(at, took): (Instant, Duration)| at.elapsed() >= took.saturating_mul(SWEEP_REST);
        if !progress.swept.is_none_or(is_due) {
            return false;
        }
        let begun = Instant::now();
        index.forget_gone(&mut || self.hold(means.is_busy));
        progress.swept = Some((Instant::now(), begun.elapsed()));
        true
    }

    /// What is new, the latest of it; `None` if nothing is to be read any more.
    fn look_through(
        &self,
        index: &ChunkIndex,
        means: &Means<'_>,
        progress: &Progress,
    ) -> Result<Option<News>> {
        let (mut news, mut count) = (News::default(), 0);
        let mut take = |at: Whereabouts| {
            let Some(profile) = Profile::for_size(at.identity.size_bytes) else { return };
            if progress.is_done(&at) {
                return;
            }
            if !index.has_room(&at.path, &at.identity, profile) {
                news.is_refused |= ChunkIndex::takes(at.identity.size_bytes);
                return;
            }
            if progress.is_resting(&at) {
                news.has_resting = true;
                return;
            }
            count += 1;
            news.files.insert((at.identity.ctime_ns, count), at);
            if news.files.len() > NEWS_MAX {
                news.files.pop_first();
                news.has_more = true;
            }
        };
        let is_whole = means.store.each_whereabouts(&mut || self.hold(means.is_busy), &mut take)?;
        Ok(is_whole.then_some(news))
    }

    /// Takes one file in; and how long that took.
    fn take_in(&self, index: &ChunkIndex, at: &Whereabouts, means: &Means<'_>) -> (Result<()>, Duration) {
        if look(&at.path) != Some(at.identity) {
            // Another file has its name now, or it is being changed: nobody has put that.
            let path = std::fs::canonicalize(&at.path);
            index.look_again(path.as_deref().unwrap_or(&at.path));
            return (Ok(()), Duration::ZERO);
        }
        if let Some(taken) = self.take_recipe(index, at, means).transpose() {
            return (taken, Duration::ZERO);
        }
        let (begun, mut held) = (Instant::now(), Duration::ZERO);
        let mut may_read = |bytes: usize| {
            let asked = Instant::now();
            let may = self.hold(means.is_busy);
            held += asked.elapsed();
            if may {
                self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            may
        };
        let taken = index.cut(&at.path, &mut may_read);
        let is_read = !matches!(taken, Ok(Cut::Known));
        let work = if is_read { begun.elapsed().saturating_sub(held) } else { Duration::ZERO };
        (taken.map(drop), work)
    }

    /// Takes it in by the recipe that was made for a receiver, if there is one: it is not cut again.
    fn take_recipe(&self, index: &ChunkIndex, at: &Whereabouts, means: &Means<'_>) -> Result<Option<()>> {
        let Some(recipe) = (means.recipe_of)(&at.oid) else { return Ok(None) };
        let path = std::fs::canonicalize(&at.path);
        let path = path.map_err(|error| Error::file(format!("find {:?}", at.path), error))?;
        if index.has(&path, &at.identity) {
            return Ok(Some(()));
        }
        let mut entering = index.enter(&path, at.identity, recipe.root().profile())?;
        let mut count = 0;
        recipe.chunks(&mut |placed| {
            if count % CHUNKS_AT_ONCE == 0 && !self.hold(means.is_busy) {
                return Err(Error::new(ErrorKind::Interrupted, "the recipe is not taken in to its end"));
            }
            count += 1;
            entering.add(&placed.chunk, placed.offset)
        })?;
        entering.finish().map(Some)
    }

    /// Waits as long as `is_busy`; false if nothing is to be read any more.
    fn hold(&self, is_busy: &dyn Fn() -> bool) -> bool {
        let wanted_mib = self.wanted_mib.load(Ordering::Acquire);
        loop {
            let is_wanted = wanted_mib > 0 && self.wanted_mib.load(Ordering::Acquire) == wanted_mib;
            if !is_wanted || self.pulse.is_over() {
                return false;
            }
            if !is_busy() {
                return true;
            }
            self.pulse.rest(HOLD);
        }
    }
}
