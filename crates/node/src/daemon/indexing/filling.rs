//! What fills the index: the files of the store's objects, those that are shared and those that were fetched, one after the other, the latest first.
//!
//! Before whatever it reads or writes it holds as long as this daemon moves bytes for anybody (Y5).

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkIndex, Cut, Health, look};
use dray_store::local::Whereabouts;

use super::pass::{LOOK_INTERVAL, Progress, Standing, Swept};
use super::{Indexing, Means, REST_PER_WORK};

/// How often it is looked whether bytes still move: twice as seldom each time, down to the second.
const HOLD: Duration = Duration::from_millis(50);
const HOLD_MAX: Duration = Duration::from_secs(1);
/// Reading a file that cannot be read to its end takes at most this share of the time.
const VAIN_REST: u32 = 100;
/// Chunks of a recipe that are taken in without looking.
const CHUNKS_AT_ONCE: u64 = 1024;

/// What is to be taken in.
#[derive(Default)]
struct News {
    files: BTreeMap<Standing, Whereabouts>,
    /// There is more than these.
    has_more: bool,
    /// Some had no room.
    is_refused: bool,
}

impl Indexing {
    /// Takes in what is new in the store; looks for that if something happened. True if there is more to do.
    pub(super) fn fill(
        &self,
        index: &ChunkIndex,
        means: &Means<'_>,
        progress: &mut Progress,
        is_stirred: bool,
    ) -> Result<bool> {
        if !self.hold(means) {
            return Ok(false);
        }
        index.write_back()?;
        // What is gone from its place may have been put again elsewhere.
        let is_missed = index.forget_missed(&mut || self.hold(means))?;
        if !progress.go_on(means.store.generation()?, is_stirred || is_missed) {
            return Ok(false);
        }
        let Some(mut news) = self.look_through(index, means, progress)? else { return Ok(false) };
        // What is taken in needs that room.
        self.tidy(index, means)?;
        let is_full = news.is_refused
            || news.files.values().any(|at| {
                Profile::for_size(at.identity.size_bytes)
                    .is_some_and(|profile| !index.has_free_room(&at.path, &at.identity, profile))
            });
        if is_full && self.sweep(index, means, progress)? {
            // What was refused, now or before, may have room now.
            progress.begin_again();
            let Some(again) = self.look_through(index, means, progress)? else { return Ok(false) };
            news = again;
        }
        self.take_news(index, means, progress, news)
    }

    /// Takes in what was found, the latest first. True if there is more to do.
    fn take_news(
        &self,
        index: &ChunkIndex,
        means: &Means<'_>,
        progress: &mut Progress,
        mut news: News,
    ) -> Result<bool> {
        let ends = news.files.first_key_value().zip(news.files.last_key_value());
        let ends = ends.map(|((oldest, _), (latest, _))| (*oldest, *latest));
        let mut waiting = news.files.len() as u64;
        self.waiting.store(waiting, Ordering::Relaxed);
        while let Some((standing, at)) = news.files.pop_last() {
            if !self.hold(means) {
                return Ok(false);
            }
            let (taken, work) = self.take_in(index, &at, means);
            waiting -= 1;
            self.waiting.store(waiting, Ordering::Relaxed);
            match taken {
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NoSpace && index.health() == Health::Well => {
                    if index.has_dead() && self.hold(means) {
                        index.give_back()?;
                    }
                    return Err(error);
                }
                Err(error) if error.kind() == ErrorKind::NoSpace || index.health() != Health::Well => {
                    return Err(error);
                }
                Ok(true) => progress.rest(&at.path, work.saturating_mul(REST_PER_WORK)),
                Ok(false) => progress.rest_nowhere(standing),
                // Another one may be better.
                Err(_) => progress.rest(&at.path, work.saturating_mul(VAIN_REST)),
            }
            if let Some((_, latest)) = ends {
                progress.pass(standing, latest);
            }
            self.tidy(index, means)?;
        }
        progress.end_round(ends, news.has_more);
        Ok(progress.has_more())
    }

    /// Gives back the room of what was forgotten, if that is much.
    fn tidy(&self, index: &ChunkIndex, means: &Means<'_>) -> Result<()> {
        if index.is_untidy() && self.hold(means) {
            index.tidy()?;
        }
        Ok(())
    }

    /// Forgets files that are gone, so that they leave before those that are there; not all the time, and not if nothing came since: disks
    /// may sleep. False if none was.
    fn sweep(&self, index: &ChunkIndex, means: &Means<'_>, progress: &mut Progress) -> Result<bool> {
        let generation = means.store.generation()?;
        let is_due = |swept: Swept| {
            swept.generation != generation
                && swept.at.elapsed() >= swept.took.saturating_mul(REST_PER_WORK).max(LOOK_INTERVAL)
        };
        if !progress.swept.is_none_or(is_due) {
            return Ok(false);
        }
        let (begun, files, mounts) = (Instant::now(), index.figures().files, (means.mounts)());
        index.forget_gone(&|path| mounts.is_left_out(path), &mut || self.hold(means));
        progress.swept = Some(Swept { generation, at: Instant::now(), took: begun.elapsed() });
        Ok(index.figures().files < files)
    }

    /// What is new, the latest of it; `None` if nothing is to be read any more.
    fn look_through(
        &self,
        index: &ChunkIndex,
        means: &Means<'_>,
        progress: &mut Progress,
    ) -> Result<Option<News>> {
        let (mut news, mounts) = (News::default(), (means.mounts)());
        let mut take = |at: Whereabouts| {
            let Some(profile) = Profile::for_size(at.identity.size_bytes) else { return };
            let standing = progress.standing(&at);
            // Neither what is known nor what is left out is touched.
            if progress.is_passed(standing)
                || index.knows(&at.path, &at.identity)
                || mounts.is_left_out(&at.path)
            {
                return;
            }
            if !index.has_room(&at.path, &at.identity, profile) {
                news.is_refused |= ChunkIndex::takes(at.identity.size_bytes);
                return;
            }
            if progress.is_resting(&at.path, standing) {
                return;
            }
            news.files.insert(standing, at);
            if news.files.len() > progress.news_max {
                news.files.pop_first();
                news.has_more = true;
            }
        };
        let is_whole = means.store.each_whereabouts(&mut || self.hold(means), &mut take)?;
        Ok(is_whole.then_some(news))
    }

    /// Takes one file in, if it is there and for the index; and how long that took.
    fn take_in(&self, index: &ChunkIndex, at: &Whereabouts, means: &Means<'_>) -> (Result<bool>, Duration) {
        let is_there = look(&at.path) == Some(at.identity);
        let path = std::fs::canonicalize(&at.path);
        let path = path.as_deref().unwrap_or(&at.path);
        if !is_there {
            // Another file has its name now, or it is being changed: nobody has put that.
            index.look_again(path);
        }
        // By way of a link it may be elsewhere.
        if !is_there || (means.mounts)().is_left_out(path) {
            return (Ok(false), Duration::ZERO);
        }
        if let Some(taken) = self.take_recipe(index, at, means).transpose() {
            return (taken.map(|()| true), Duration::ZERO);
        }
        let (begun, mut held) = (Instant::now(), Duration::ZERO);
        let mut may_read = |bytes: usize, file: &mut Option<File>| {
            let asked = Instant::now();
            let may = self.hold_after(means, &mut || *file = None);
            held += asked.elapsed();
            if may {
                self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            may
        };
        let taken = index.cut(&at.path, &mut may_read);
        let is_read = !matches!(taken, Ok(Cut::Known));
        let work = if is_read { begun.elapsed().saturating_sub(held) } else { Duration::ZERO };
        (taken.map(|_| true), work)
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
            if count % CHUNKS_AT_ONCE == 0 && !self.hold(means) {
                return Err(Error::new(ErrorKind::Interrupted, "the recipe is not taken in to its end"));
            }
            count += 1;
            entering.add(&placed.chunk, placed.offset)
        })?;
        entering.finish().map(Some)
    }

    /// Waits as long as others are busy, and rests in between; false if nothing is to be read any more.
    pub(super) fn hold(&self, means: &Means<'_>) -> bool {
        self.hold_after(means, &mut || {})
    }

    /// The same, after `before_waiting`, if it waits.
    fn hold_after(&self, means: &Means<'_>, before_waiting: &mut dyn FnMut()) -> bool {
        let wanted_mib = self.wanted_mib.load(Ordering::Acquire);
        let is_wanted = || wanted_mib > 0 && self.wanted_mib.load(Ordering::Acquire) == wanted_mib;
        means.pace.stop();
        let mut patience = HOLD;
        while is_wanted() && !self.pulse.is_over() {
            if (means.is_busy)() {
                before_waiting();
                self.pulse.rest_while(patience, is_wanted);
                patience = (2 * patience).min(HOLD_MAX);
            } else if let Some(rest) = means.pace.due() {
                before_waiting();
                self.pulse.rest_while(rest, is_wanted);
            } else {
                means.pace.start();
                return true;
            }
        }
        false
    }
}
