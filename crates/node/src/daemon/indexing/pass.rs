//! How far one look through the store has come: from its latest file down to its oldest, over as many rounds as that takes, and no file twice.
//!
//! What was passed is an interval of ages and no set, so that a store of any size is passed with the same memory and to its end. What comes
//! meanwhile is later than all of it, and is next.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};

use dray_core::limits::INDEX_FILES_MAX;
use dray_store::local::Whereabouts;

/// How often the store is looked through if no object came or went, as what was done to one may have been missed; and how often, at the most, the
/// files of the index, which may wake disks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
/// What leads nowhere is looked at so seldom: it may lie on a disk that is asleep, or that its look mounts.
const NOWHERE_REST: Duration = Duration::from_secs(24 * 3600);
/// Files that are found in one round.
const NEWS_MAX: usize = 4096;

/// Where a file stands in a pass: by its change time, and by a number of its own where several have the same.
pub(super) type Standing = (i64, u64);

/// A look at all files of the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swept {
    /// What the store was then.
    pub(super) generation: u64,
    /// When it ended, and how long it took.
    pub(super) at: Instant,
    pub(super) took: Duration,
}

/// How far it is.
pub(super) struct Progress {
    /// What is under way, or how the last one went.
    pass: Option<Pass>,
    /// When what is at a path may be read again: not what changes, or cannot be read, all the time; nor a record that leads nowhere.
    resting: HashMap<u64, Instant>,
    /// When the index was last looked through for files that are gone.
    pub(super) swept: Option<Swept>,
    /// Files of one round.
    pub(super) news_max: usize,
    hasher: RandomState,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            pass: None,
            resting: HashMap::new(),
            swept: None,
            news_max: NEWS_MAX,
            hasher: RandomState::new(),
        }
    }
}

/// One look through the store.
struct Pass {
    /// What the store was when it began, and when that was.
    generation: u64,
    begun: Instant,
    /// The oldest and the latest file of what was passed, which is all in between.
    passed: Option<(Standing, Standing)>,
    is_over: bool,
    /// Something happened since it began, and it may have missed that.
    is_stale: bool,
    /// When a file may be read again that it left out.
    due: Option<Instant>,
}

impl Progress {
    /// Goes on with a pass, or begins one if there may be something new; false if not.
    pub(super) fn go_on(&mut self, generation: u64, is_stirred: bool) -> bool {
        let now = Instant::now();
        match &mut self.pass {
            Some(pass) if !pass.is_over => {
                pass.is_stale |= is_stirred;
                return true;
            }
            Some(pass) => {
                let is_late = now.duration_since(pass.begun) >= LOOK_INTERVAL;
                let is_new = is_stirred || pass.is_stale || pass.generation != generation;
                if !is_late && !is_new && pass.due.is_none_or(|due| due > now) {
                    return false;
                }
            }
            None => {}
        }
        self.pass =
            Some(Pass { generation, begun: now, passed: None, is_over: false, is_stale: false, due: None });
        true
    }

    /// Begins from the latest again, as there is room for what was left out.
    pub(super) fn begin_again(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.passed = None;
        }
    }

    pub(super) fn standing(&self, at: &Whereabouts) -> Standing {
        let now = &at.identity;
        let number = self.hasher.hash_one((&at.path, now.dev, now.ino, now.size_bytes, now.mtime_ns));
        (now.ctime_ns, number)
    }

    pub(super) fn is_passed(&self, standing: Standing) -> bool {
        let passed = self.pass.as_ref().and_then(|pass| pass.passed);
        passed.is_some_and(|(oldest, latest)| oldest <= standing && standing <= latest)
    }

    /// `standing` is done with, as is all that is later: `latest` is the latest of it.
    pub(super) fn pass(&mut self, standing: Standing, latest: Standing) {
        let Some(pass) = &mut self.pass else { return };
        match &mut pass.passed {
            // Between this and what was passed before there may be more.
            Some((oldest, _)) if standing > *oldest => {}
            Some((oldest, top)) => (*oldest, *top) = (standing, latest.max(*top)),
            passed => *passed = Some((standing, latest)),
        }
    }

    /// All that a round found is done with, from `latest` down to `last`; `has_more` if there are others that are older than these.
    pub(super) fn end_round(&mut self, found: Option<(Standing, Standing)>, has_more: bool) {
        let Some(pass) = &mut self.pass else { return };
        if let Some((last, latest)) = found {
            let oldest = match pass.passed {
                // More came than one round has room for: it goes down from there.
                Some((_, top)) if has_more && last > top => last,
                Some((oldest, _)) => oldest.min(last),
                None => last,
            };
            let top = pass.passed.map_or(latest, |(_, top)| top.max(latest));
            pass.passed = Some((oldest, top));
        }
        pass.is_over = !has_more;
    }

    /// Whether there is more to do at once.
    pub(super) fn has_more(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| !pass.is_over || pass.is_stale)
    }

    /// Whether what is at `path`, and stands there, is to be left alone for now.
    pub(super) fn is_resting(&mut self, path: &Path, standing: Standing) -> bool {
        let (now, keys) = (Instant::now(), [self.hasher.hash_one(path), self.hasher.hash_one(standing)]);
        let until = keys.iter().filter_map(|key| self.resting.get(key).copied().filter(|until| *until > now));
        let until = until.max();
        if let (Some(until), Some(pass)) = (until, &mut self.pass) {
            pass.due = Some(pass.due.map_or(until, |due| due.min(until)));
        }
        until.is_some()
    }

    /// What is at `path` is not read again for so long.
    pub(super) fn rest(&mut self, path: &Path, rest: Duration) {
        self.rest_of(self.hasher.hash_one(path), rest);
    }

    /// What stands there leads nowhere: it is left alone, and what is put under the same path is not.
    pub(super) fn rest_nowhere(&mut self, standing: Standing) {
        self.rest_of(self.hasher.hash_one(standing), NOWHERE_REST);
    }

    fn rest_of(&mut self, key: u64, rest: Duration) {
        if rest.is_zero() {
            return;
        }
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        if self.resting.len() < INDEX_FILES_MAX {
            self.resting.insert(key, now + rest);
        }
    }

    /// As if the last pass had been long ago.
    #[cfg(test)]
    pub(super) fn begin_late(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.begun = Instant::now().checked_sub(LOOK_INTERVAL).unwrap_or(pass.begun);
        }
    }

    #[cfg(test)]
    pub(super) fn rest_until(&mut self, until: Instant) {
        self.resting.values_mut().for_each(|rest| *rest = until);
    }
}
