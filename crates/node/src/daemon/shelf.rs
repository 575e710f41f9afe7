//! What the daemon shares and keeps: looked up when a receiver asks, opened when one is let in, dropped when it is done with
//! and room is needed (D10, D13).
//!
//! The lock over all objects is held for looks into memory only. What a disk or another process must answer for is done by whoever has
//! the object's turn ([`Changing`]), and then published under that lock: receivers, lists and the end of the daemon never wait for it.

mod entry;
mod room;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_client::types::ShareLine;
use dray_core::limits::{API_BODY_BYTES_MAX, SHARES_MAX, SHARES_OPEN_MAX};
use dray_core::message::{ObjectName, Open};
use dray_core::store::{Share, Store};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_store::local::{LocalStore, Retained, Retention};
use dray_transfer::direct::ClearTokens;
use dray_transfer::holder::{ClearGrantor, Held, Provider};
use dray_transfer::recipe::Recipe;
use dray_transfer::transport::Security;
use serde_json::json;

use super::hub::Hub;
use super::pulse::Pulse;
use crate::admission::{Doorkeeper, Notices, admit};
use crate::copy::LiveTrees;
use crate::put::unix_s;
use crate::{Event, Observer, lock};

use entry::{Ending, Entry, Opening, Tally};
use room::Changes;
pub(super) use room::{Changing, ROUND, ROUND_MAX};

/// How long a receiver waits while the object is opened for another one, which takes long where all of it is hashed for it.
const OPENING_PATIENCE: Duration = Duration::from_secs(8);
/// Lines of a list that are made at once: one more than fit into an answer.
const LINES_MAX: usize = 1 + API_BODY_BYTES_MAX / 200;

/// The objects.
pub(super) struct Shelf {
    store: Arc<LocalStore>,
    node: NodeId,
    hub: Arc<Hub>,
    /// Of receivers that ask for what is not here.
    strangers: Notices,
    tokens: Arc<ClearTokens>,
    clear_data: AtomicBool,
    /// Never held while anything is waited for.
    entries: Mutex<HashMap<Oid, Entry>>,
    /// Taken in, it may be, by puts of which nothing came before they had their turn.
    strays: Mutex<HashSet<Oid>>,
    changes: Changes,
    pulse: Pulse,
    /// Uses of all objects, counted.
    turns: AtomicU64,
}

impl Shelf {
    /// With everything that was kept when the last daemon ended.
    pub(super) fn load(
        store: Arc<LocalStore>,
        node: NodeId,
        hub: Arc<Hub>,
        tokens: Arc<ClearTokens>,
    ) -> Result<Shelf> {
        let logging = hub.clone();
        let shelf = Shelf {
            store,
            node,
            strangers: Notices::new(Arc::new(move |event| logging.log(event))),
            hub,
            tokens,
            clear_data: AtomicBool::new(false),
            entries: Mutex::default(),
            strays: Mutex::default(),
            changes: Changes::default(),
            pulse: Pulse::default(),
            turns: AtomicU64::new(0),
        };
        // Best effort: what cannot be removed now is there for the next daemon.
        if let Err(error) = shelf.store.remove_unrecorded() {
            shelf
                .hub
                .log(Event::Warning(format!("what a kill left in the store cannot be removed: {error}")));
        }
        let (retained, unknown) = shelf.store.retained()?;
        for error in unknown {
            shelf.hub.log(Event::Warning(format!("it is not known whether an object is shared: {error}")));
        }
        let mut entries = lock(&shelf.entries);
        for kept in retained {
            entries.insert(kept.oid, shelf.entry(kept));
        }
        drop(entries);
        Ok(shelf)
    }

    fn entry(&self, kept: Retained) -> Entry {
        let tally: Arc<Tally> = Arc::default();
        let (hub, counting, oid) = (self.hub.clone(), tally.clone(), kept.oid);
        let observer: Arc<dyn Observer> = Arc::new(move |event: Event| {
            match &event {
                Event::Serving { .. } => drop(counting.receivers.fetch_add(1, Ordering::Relaxed)),
                Event::Served { sent_bytes, .. } => {
                    counting.sent_bytes.fetch_add(*sent_bytes, Ordering::Relaxed);
                }
                _ => {}
            }
            hub.log_of(oid, event);
        });
        Entry::new(kept, tally, observer)
    }

    /// The store, in whose locks nobody waits longer than `patience`.
    fn store_with(&self, patience: Duration) -> LocalStore {
        LocalStore::clone(&self.store).with_patience(patience)
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether receivers may have bytes in clear text from now on.
    pub(super) fn set_clear_data(&self, allowed: bool) {
        self.clear_data.store(allowed, Ordering::Release);
    }

    /// The turn to put `oid`: as long as this is there nobody else puts, ends or drops it. `Interrupted` if it is somebody else's turn until
    /// `is_stopped`.
    pub(super) fn change(&self, oid: &Oid, is_stopped: &dyn Fn() -> bool) -> Result<Changing<'_>> {
        self.changes.begin(oid, is_stopped)
    }

    /// Does `work`; if the disk is full, drops what may be dropped and does it once more.
    pub(super) fn with_room<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.drop_all() => work(),
            result => result,
        }
    }

    /// Drops all that may be dropped; false if that is nothing.
    pub(super) fn drop_all(&self) -> bool {
        let before = self.counts().1;
        self.make_room(0) < before
    }

    /// Whether there is room for one more object.
    pub(super) fn check_room(&self) -> Result<()> {
        let entries = lock(&self.entries);
        if entries.len() < SHARES_MAX || entries.values().any(|entry| !entry.is_held()) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, format!("{SHARES_MAX} objects are shared already"))
            .advise("end some: dray done TICKET"))
    }

    /// Shares the object whose turn `changing` is with whom `share` says: until it is said otherwise with `pin`, else as long as
    /// `session`. `share` makes and records who that is; it is given the share in force, and whom to ask whether its own may be.
    /// `Refused` if that would break what was promised to another session.
    pub(super) fn keep(
        &self,
        changing: &Changing<'_>,
        share: impl FnOnce(Option<&Share>, &dyn Fn(&Share) -> Result<()>) -> Result<Share>,
        pin: bool,
        session: &str,
    ) -> Result<Share> {
        let oid = &changing.oid;
        let (before, is_done) = lock(&self.entries)
            .get(oid)
            .map(|entry| (entry.kept.retention.clone(), matches!(entry.ending, Some(Ending::Done))))
            .unwrap_or_default();
        if is_done {
            // A right that was ended by name does not come back with the next put, though the disk has not heard of its end.
            self.store.update_share(oid, &mut |_| Ok(None))?;
        }
        let share = share(before.share.as_ref(), &|share| match lock(&self.entries).get(oid) {
            Some(entry) if entry.is_promised_otherwise(share, session) => Err(shared_otherwise(entry)),
            _ => Ok(()),
        })?;
        // The pin of a share that is over goes with it.
        let is_over =
            before.share.as_ref().and_then(|share| share.expires_unix_s).is_some_and(|end| unix_s() >= end);
        let pinned_unix_s = before.pinned_unix_s.filter(|_| !is_over).or_else(|| pin.then(unix_s));
        let retention = Retention { pinned_unix_s, used_unix_s: unix_s(), share: Some(share.clone()) };
        let kept = self.store.retain(oid, Some(retention))?;
        let fresh = self.entry(kept.clone());
        let mut entries = lock(&self.entries);
        let entry = entries.entry(*oid).or_insert(fresh);
        let right = |share: Option<&Share>| share.map(|share| (share.secret, share.expires_unix_s));
        if right(entry.kept.retention.share.as_ref()) != right(kept.retention.share.as_ref()) {
            entry.close();
        } else if entry.kept.borrowed_path != kept.borrowed_path {
            // The bytes are the same, so who is fetching them goes on.
            entry.open = None;
        }
        entry.recipe.forget_failure();
        (entry.kept, entry.ending) = (kept, None);
        entry.written_unix_s = entry.kept.retention.used_unix_s;
        entry.touch(self.next_turn());
        entry.sessions.insert(session.to_owned());
        drop(entries);
        self.pulse.stir();
        Ok(share)
    }

    /// An object that may have been taken in and was not shared in the end: it goes again, unless somebody else keeps it by the time
    /// that the housekeeping has its turn.
    pub(super) fn look_after(&self, oid: Oid) {
        lock(&self.strays).insert(oid);
        self.pulse.stir();
    }

    /// Nothing came of the put whose turn `changing` is: bytes that were taken in for it alone go again.
    pub(super) fn discard(&self, changing: &Changing<'_>) {
        let oid = &changing.oid;
        if !lock(&self.entries).contains_key(oid) && self.store_with(Duration::ZERO).let_go(oid).is_err() {
            // A lock is held, it may be the one for which nothing came of it.
            self.look_after(*oid);
        }
    }

    /// A session has ended.
    pub(super) fn leave(&self, session: &str) {
        for entry in lock(&self.entries).values_mut() {
            entry.sessions.remove(session);
        }
        self.pulse.stir();
    }

    /// An object was read by this user's own get.
    pub(super) fn used(&self, oid: &Oid) {
        if let Some(entry) = lock(&self.entries).get_mut(oid) {
            entry.touch(self.next_turn());
        }
        self.pulse.stir();
    }

    /// Ends a share (D10). What is ours stays as long as there is room. `NotFound` if it was not shared.
    pub(super) fn done(&self, oid: &Oid, is_stopped: &dyn Fn() -> bool) -> Result<()> {
        let is_shared = |entry: &Entry| entry.kept.retention.share.is_some() || entry.ending.is_some();
        // Whatever the disk says, and however long others take, nobody gets another byte.
        let is_shut = self.shut(oid, Ending::Done, is_shared);
        self.pulse.stir();
        let (begun, patience) = (Instant::now(), self.store.patience());
        // Whoever has the turn may be waiting for a lock; an end waits no longer than for that itself.
        let is_late = || patience.is_some_and(|patience| begun.elapsed() >= patience);
        let changing = self.changes.begin(oid, &|| is_stopped() || is_late()).map_err(|error| {
            let late = || Error::new(ErrorKind::TimedOut, error.to_string()).with_retryable(true);
            match is_late() && !is_stopped() {
                true if is_shut => not_written(oid, late()),
                true => late().advise("try again in a while"),
                false => error,
            }
        })?;
        // It may have been put meanwhile; and while somebody tries to drop it, it is not to be found.
        if !self.shut(oid, Ending::Done, is_shared) && !is_shut {
            return Err(Error::new(ErrorKind::NotFound, format!("{oid} is not shared"))
                .advise("`dray ls` shows what is"));
        }
        self.write_end(&changing, &self.store)
    }

    /// Ends a share as far as memory goes, if `condition` holds for it; says whether it did.
    fn shut(&self, oid: &Oid, how: Ending, condition: impl Fn(&Entry) -> bool) -> bool {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(oid).filter(|entry| condition(entry)) else { return false };
        entry.end(how);
        true
    }

    /// Writes down that a share was ended. What the disk does not take is tried again by the housekeeping, or by ending it once more.
    fn write_end(&self, changing: &Changing<'_>, store: &LocalStore) -> Result<()> {
        let oid = &changing.oid;
        let Some((how, notices, left)) = lock(&self.entries).get(oid).and_then(|entry| {
            let left = entry.kept.is_disposable.then(|| entry.kept.retention.clone());
            Some((entry.ending?, entry.notices.clone(), left))
        }) else {
            return Ok(());
        };
        let ended = match how {
            Ending::Done => store.end_share(oid, left),
            // After a crash it lapses in the first round.
            Ending::Lapsed => store.lapse(oid),
        };
        match ended {
            Ok(kept) if kept.is_disposable => {
                if let Some(entry) = lock(&self.entries).get_mut(oid) {
                    entry.ending = None;
                }
            }
            Ok(_) => drop(lock(&self.entries).remove(oid)),
            // Another command has removed it; that is an end, too.
            Err(error) if error.kind() == ErrorKind::NotFound && !self.has(oid) => {
                drop(lock(&self.entries).remove(oid));
            }
            Err(error) => return Err(not_written(oid, error)),
        }
        notices.finish();
        self.hub.tell("done", &json!({"oid": oid.to_string()}));
        Ok(())
    }

    /// Whether the store knows it.
    fn has(&self, oid: &Oid) -> bool {
        !matches!(self.store.share(oid), Err(error) if error.kind() == ErrorKind::NotFound)
    }

    /// The recipe of an object, if one was made for its receivers.
    pub(super) fn recipe_of(&self, oid: &Oid) -> Option<Arc<Recipe>> {
        let recipe = lock(&self.entries).get(oid).filter(|entry| entry.has_recipe)?.recipe.clone();
        recipe.made()
    }

    /// How many are shared, and the bytes that are cached.
    pub(super) fn counts(&self) -> (usize, u64) {
        let entries = lock(&self.entries);
        let shared = entries.values().filter(|entry| entry.kept.retention.share.is_some()).count();
        (shared, entries.values().map(Entry::cached_bytes).sum())
    }

    /// What is shared, in the order of names, of those after one of them; [`LINES_MAX`] at most.
    pub(super) fn lines(&self, after: Option<&Oid>) -> Vec<ShareLine> {
        let entries = lock(&self.entries);
        let is_wanted = |oid: &&Oid| after.is_none_or(|after| *oid > after);
        let mut oids: Vec<&Oid> = entries.keys().filter(is_wanted).collect();
        oids.sort_unstable();
        oids.into_iter().filter_map(|oid| entries.get(oid)?.line()).take(LINES_MAX).collect()
    }

    /// A receiver broke the rules before anything was known of it.
    pub(super) fn turned_away(&self, reason: String) {
        self.strangers.turned_away(reason);
        self.pulse.stir();
    }

    /// Everything ends; those who are cut off are told of.
    pub(super) fn finish(&self) {
        let open: Vec<Arc<Notices>> = lock(&self.entries)
            .values()
            .filter(|entry| !entry.notices.is_quiet())
            .map(|entry| entry.notices.clone())
            .collect();
        open.iter().for_each(|notices| notices.finish());
    }

    /// The object behind `oid`, open.
    fn open_entry(&self, oid: &Oid, found: &Found) -> Result<Arc<Doorkeeper>> {
        let Found { share, notices, ended, .. } = found;
        let _opener = found.opening.begin(OPENING_PATIENCE)?;
        // Whoever was faster has opened it for all.
        if let Some(keeper) = lock(&self.entries).get(oid).and_then(|entry| entry.open.clone())
            && Arc::ptr_eq(&keeper.ended, ended)
        {
            return Ok(keeper);
        }
        let object = notices.tell(self.store.open(oid))?;
        let mut entries = lock(&self.entries);
        let open = entries.values().filter(|entry| entry.open.is_some()).count();
        if open >= SHARES_OPEN_MAX
            // Receivers that have one of these open keep it.
            && let Some(entry) =
                entries.values_mut().find(|entry| entry.open.is_some() && entry.notices.is_quiet())
        {
            entry.open = None;
        }
        let Some(entry) = entries.get_mut(oid).filter(|entry| Arc::ptr_eq(&entry.ended, ended)) else {
            return Err(Error::new(ErrorKind::Refused, "the object is no longer shared"));
        };
        let keeper = Arc::new(Doorkeeper {
            object,
            share: share.clone(),
            node: self.node,
            tokens: None,
            notices: notices.clone(),
            recipe: entry.recipe.clone(),
            ended: ended.clone(),
        });
        (entry.open, entry.has_recipe) = (Some(keeper.clone()), true);
        Ok(keeper)
    }

    /// What is shared under `oid`. As long as what is returned is there, it is in use.
    fn find(&self, oid: &Oid) -> Option<Found> {
        let entries = lock(&self.entries);
        let entry = entries.get(oid)?;
        Some(Found {
            share: entry.kept.retention.share.clone()?,
            notices: entry.notices.clone(),
            keeper: entry.open.clone(),
            ended: entry.ended.clone(),
            opening: entry.opening.clone(),
            _visit: entry.visits.clone(),
        })
    }
}

/// The shelf as one connection sees it, and what that has opened.
pub(super) struct Counter<'a> {
    shelf: &'a Shelf,
    opened: Mutex<Vec<Arc<Notices>>>,
}

impl Counter<'_> {
    /// The connection, of `node`, broke.
    pub(super) fn lost(&self, node: NodeId, error: &Error) {
        lock(&self.opened).iter().for_each(|notices| notices.lost(node, error));
    }
}

impl Provider for Counter<'_> {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let (held, notices) = self.shelf.let_in(open, security)?;
        let mut opened = lock(&self.opened);
        if !opened.iter().any(|other| Arc::ptr_eq(other, &notices)) {
            opened.push(notices);
        }
        Ok(held)
    }

    fn is_other(&self, open: &Open) -> bool {
        LiveTrees::is_name(&open.object)
    }

    fn clear_data(&self) -> Option<ClearGrantor> {
        let is_allowed = self.shelf.clear_data.load(Ordering::Acquire);
        is_allowed.then(|| self.shelf.tokens.grant().ok()).flatten()
    }
}

impl Shelf {
    /// For one more connection.
    pub(super) fn counter(&self) -> Counter<'_> {
        Counter { shelf: self, opened: Mutex::default() }
    }

    /// Gives a receiver what it asks for, if it may have that; and who hears of it.
    fn let_in(&self, open: &Open, security: Option<&Security>) -> Result<(Arc<dyn Held>, Arc<Notices>)> {
        let security =
            security.ok_or_else(|| Error::new(ErrorKind::Refused, "this channel proves nobody"))?;
        let found = match &open.object {
            ObjectName::Oid(oid) => self.find(oid).map(|found| (*oid, found)),
            // A directory, which is not here.
            ObjectName::Provisional(_) => None,
        };
        // Nothing is read from disk for who has no right to it.
        let shared = found.as_ref().map(|(oid, found)| (ObjectName::Oid(*oid), &found.share));
        if let Err(refusal) = admit(shared, self.node, open, security) {
            self.turned_away(refusal.reason);
            return Err(refusal.answer);
        }
        let Some((oid, found)) = found else {
            return Err(Error::new(ErrorKind::Internal, "nothing was admitted"));
        };
        self.used(&oid);
        let keeper = match &found.keeper {
            Some(keeper) => keeper.clone(),
            None => self.open_entry(&oid, &found)?,
        };
        Ok((keeper.open(open, Some(security))?, keeper.notices.clone()))
    }
}

/// What a receiver asks for, as it was found.
struct Found {
    share: Share,
    notices: Arc<Notices>,
    keeper: Option<Arc<Doorkeeper>>,
    ended: Arc<AtomicBool>,
    opening: Arc<Opening>,
    _visit: Arc<()>,
}

fn not_written(oid: &Oid, error: Error) -> Error {
    error
        .context(format_args!("{oid} is not shared any more, but that cannot be written down"))
        .advise("end it once more before the daemon is started again")
}

fn shared_otherwise(entry: &Entry) -> Error {
    let share = entry.kept.retention.share.as_ref();
    let how = match share {
        Some(Share { secret: None, .. }) => "to everybody",
        _ => "under another ticket",
    };
    let until = match share.and_then(|share| share.expires_unix_s) {
        Some(end) => format!(" for {} s more", end.saturating_sub(unix_s())),
        None => String::new(),
    };
    let what = format!("the daemon shares {} already {how}{until}", entry.kept.oid);
    Error::new(ErrorKind::Refused, what).advise(
        "end that first (dray done OID), or share it beside that from a command: dray put --foreground",
    )
}

#[cfg(test)]
mod tests;
