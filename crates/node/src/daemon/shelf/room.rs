//! The shelf's housekeeping: tells who has gone, ends what is over, closes what nobody reads, and drops what was not used for
//! longest when there is too much (D13). Decided under the shelf's lock, done without it: a disk or another process that does not
//! answer holds up nobody but this.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_core::limits::SHARES_MAX;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_store::local::LocalStore;
use serde_json::json;

use super::Shelf;
use super::entry::{Ending, Entry};
use crate::daemon::pulse::Woken;
use crate::put::unix_s;
use crate::{Event, lock};

/// How long the recipe of an object is kept that nobody has open.
const RECIPE_KEPT: Duration = Duration::from_secs(300);
/// How often whoever waits for an object that somebody else changes looks whether it shall go on waiting.
const INTERVAL: Duration = Duration::from_millis(100);
/// Between two rounds, as long as there is something to look after.
pub(in super::super) const ROUND: Duration = Duration::from_secs(1);
/// At the longest: a clock may be set.
pub(in super::super) const ROUND_MAX: Duration = Duration::from_secs(60);

/// The objects whose records are being changed by this process.
#[derive(Default)]
pub(super) struct Changes {
    now: Mutex<HashSet<Oid>>,
    over: Condvar,
}

/// Nobody else in this process puts, ends or drops this object.
pub(in super::super) struct Changing<'a> {
    changes: &'a Changes,
    pub(super) oid: Oid,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        lock(&self.changes.now).remove(&self.oid);
        self.changes.over.notify_all();
    }
}

impl Changes {
    /// Waits for its turn. `Interrupted` if nobody waits for that any more.
    pub(super) fn begin(&self, oid: &Oid, is_stopped: &dyn Fn() -> bool) -> Result<Changing<'_>> {
        let mut now = lock(&self.now);
        while !now.insert(*oid) {
            if is_stopped() {
                return Err(Error::new(
                    ErrorKind::Interrupted,
                    format!("{oid} is being put or ended by others"),
                ));
            }
            now = self.over.wait_timeout(now, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(Changing { changes: self, oid: *oid })
    }

    /// `None` if it is somebody else's turn.
    pub(super) fn try_begin(&self, oid: &Oid) -> Option<Changing<'_>> {
        lock(&self.now).insert(*oid).then(|| Changing { changes: self, oid: *oid })
    }
}

/// What a round has found.
#[derive(Default)]
struct Findings {
    expired: Vec<Oid>,
    ending: Vec<Oid>,
    lapsed: Vec<Oid>,
    used: Vec<Oid>,
    /// There is something that changes by itself.
    is_busy: bool,
    /// When the next share expires, seconds since 1970.
    next_unix_s: Option<u64>,
}

impl Shelf {
    /// Keeps house until [`Shelf::rest`]. `cache_bytes` is what may be cached; `others` keep theirs in the same rounds, and say how long there is
    /// nothing to do for them.
    pub(in super::super) fn keep_house(&self, cache_bytes: &dyn Fn() -> u64, others: &dyn Fn() -> Duration) {
        let mut patience = ROUND;
        while self.pulse.wait(patience) != Woken::Over {
            let begun = Instant::now();
            patience = self.tick(cache_bytes()).min(others());
            // Whatever happens meanwhile is seen in the next round, and rounds do not follow each other closely.
            if !self.pulse.rest(ROUND.saturating_sub(begun.elapsed())) {
                return;
            }
        }
    }

    /// Has it look around soon: something is otherwise.
    pub(in super::super) fn stir(&self) {
        self.pulse.stir();
    }

    /// Ends the housekeeping, where it stands.
    pub(in super::super) fn rest(&self) {
        self.pulse.end();
    }

    /// One round; how long there is nothing to do after it, unless something happens.
    pub(in super::super) fn tick(&self, cache_bytes: u64) -> Duration {
        let is_all_told = self.strangers.tick();
        // Whoever holds a lock for long is waited for by the next round.
        let at_once = self.store_with(Duration::ZERO);
        let found = self.look_around();
        for oid in &found.expired {
            if let Some(changing) = self.changes.try_begin(oid)
                && self.shut(oid, Ending::Done, Entry::is_expired)
                && let Err(error) = self.write_end(&changing, &at_once)
            {
                self.hub.log_of(*oid, Event::Warning(format!("an expired share cannot be ended: {error}")));
            }
        }
        for oid in &found.ending {
            // Told when it was ended, and when that is asked for again.
            let _ = self.changes.try_begin(oid).map(|changing| self.write_end(&changing, &at_once));
        }
        // None of them is served while the others are written.
        let lapsed: Vec<Changing<'_>> = found
            .lapsed
            .iter()
            .filter_map(|oid| self.changes.try_begin(oid))
            .filter(|changing| self.shut(&changing.oid, Ending::Lapsed, Entry::is_lapsed))
            .collect();
        for changing in lapsed {
            let _ = self.write_end(&changing, &at_once);
        }
        for oid in &found.used {
            self.write_use(oid);
        }
        let is_stray_left = self.end_strays(&at_once);
        let is_too_much = self.make_room(cache_bytes) > cache_bytes;
        if found.is_busy || is_too_much || is_stray_left || !is_all_told {
            return ROUND;
        }
        let next = found.next_unix_s.map(|next| Duration::from_secs(next.saturating_sub(unix_s())));
        next.map_or(ROUND_MAX, |next| next.clamp(ROUND, ROUND_MAX))
    }

    /// Lets go of what was taken in and is known to nobody; says whether some wait for another round.
    fn end_strays(&self, store: &LocalStore) -> bool {
        let strays: Vec<Oid> = lock(&self.strays).iter().copied().collect();
        for oid in strays {
            let Some(_changing) = self.changes.try_begin(&oid) else { continue };
            let is_known = lock(&self.entries).contains_key(&oid);
            // Of a file of the user's nothing goes but what is known of it; a lock that somebody holds is free in the next round.
            let is_settled = is_known || !store.let_go(&oid).is_err_and(|error| error.is_retryable());
            if is_settled {
                lock(&self.strays).remove(&oid);
            }
        }
        !lock(&self.strays).is_empty()
    }

    /// What is to be done; closes what nobody reads.
    fn look_around(&self) -> Findings {
        let mut found = Findings::default();
        let mut open = Vec::new();
        let mut entries = lock(&self.entries);
        for (oid, entry) in &mut *entries {
            if entry.is_in_use() {
                open.push(entry.notices.clone());
            } else {
                // Open files keep the space of what was unlinked, and file systems mounted.
                entry.open = None;
                if entry.has_recipe && entry.last.elapsed() >= RECIPE_KEPT {
                    (entry.recipe, entry.has_recipe) = Default::default();
                }
            }
            found.is_busy |= entry.is_in_use() || entry.is_worth_writing() || entry.ending.is_some();
            let end = entry.kept.retention.share.as_ref().and_then(|share| share.expires_unix_s);
            found.next_unix_s = found.next_unix_s.into_iter().chain(end).min();
            match () {
                () if entry.is_expired() => found.expired.push(*oid),
                () if entry.ending.is_some() => found.ending.push(*oid),
                () if entry.is_lapsed() => found.lapsed.push(*oid),
                () if entry.is_worth_writing() => found.used.push(*oid),
                () => {}
            }
        }
        drop(entries);
        for notices in open {
            notices.tick();
        }
        found
    }

    /// Best effort: it decides only what is dropped first.
    fn write_use(&self, oid: &Oid) {
        let Some(_changing) = self.changes.try_begin(oid) else { return };
        let Some(retention) = lock(&self.entries).get(oid).map(|entry| entry.kept.retention.clone()) else {
            return;
        };
        let used_unix_s = retention.used_unix_s;
        let _ = self.store_with(Duration::ZERO).retain(oid, Some(retention));
        if let Some(entry) = lock(&self.entries).get_mut(oid) {
            entry.written_unix_s = used_unix_s;
        }
    }

    /// Drops what was not used for longest and nobody holds or has open, until at most `cache_bytes` of such objects, and
    /// [`SHARES_MAX`] objects, are left; how many bytes are. Bytes that the daemon did not take in itself are never removed, only what
    /// is known of them is.
    pub(in super::super) fn make_room(&self, cache_bytes: u64) -> u64 {
        let (mut bytes, mut count, free) = {
            let entries = lock(&self.entries);
            let bytes: u64 = entries.values().map(|entry| entry.cached_bytes()).sum();
            if bytes <= cache_bytes && entries.len() <= SHARES_MAX {
                return bytes;
            }
            let free = entries.iter().filter(|(_, entry)| !entry.is_held() && !entry.is_in_use());
            let facts = |(oid, entry): (&Oid, &Entry)| {
                (entry.kept.retention.used_unix_s, entry.turn, *oid, entry.cached_bytes())
            };
            let mut free: Vec<_> = free.map(facts).collect();
            free.sort_unstable();
            (bytes, entries.len(), free)
        };
        for (_, _, oid, size_bytes) in free {
            if count <= SHARES_MAX && (bytes <= cache_bytes || size_bytes == 0) {
                continue;
            }
            if let Some(given_back) = self.drop_object(&oid) {
                bytes = bytes.saturating_sub(given_back);
                count -= 1;
            }
        }
        bytes
    }

    /// Drops one object, unless somebody needs it by now; how many bytes of the cache that was.
    fn drop_object(&self, oid: &Oid) -> Option<u64> {
        let _changing = self.changes.try_begin(oid)?;
        let mut entry = {
            let mut entries = lock(&self.entries);
            entries.get(oid).filter(|entry| !entry.is_held() && !entry.is_in_use())?;
            entries.remove(oid)?
        };
        let given_back = entry.cached_bytes();
        match self.store_with(Duration::ZERO).let_go(oid) {
            Ok(_) => {
                entry.close();
                self.hub.tell("dropped", &json!({"oid": oid.to_string()}));
                Some(given_back)
            }
            Err(error) => {
                // A lock that somebody holds is free in the next round.
                if !error.is_retryable() && !std::mem::replace(&mut entry.is_stuck, true) {
                    self.hub.log_of(*oid, Event::Warning(format!("it cannot be dropped: {error}")));
                }
                lock(&self.entries).insert(*oid, entry);
                None
            }
        }
    }
}
