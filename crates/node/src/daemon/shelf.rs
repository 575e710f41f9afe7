//! What the daemon shares and keeps: looked up when a receiver asks, opened when one is let in, dropped when it is done with
//! and room is needed (D10, D13).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use dray_client::types::ShareLine;
use dray_core::limits::SHARES_MAX;
use dray_core::message::{ObjectName, Open};
use dray_core::store::{Share, Store};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_store::local::{LocalStore, Retained, Retention};
use dray_transfer::direct::ClearTokens;
use dray_transfer::holder::{ClearGrantor, Held, Provider};
use dray_transfer::transport::Security;
use serde_json::json;

use super::hub::Hub;
use crate::admission::{Doorkeeper, Notices, admit};
use crate::put::{FAREWELL_S, unix_s};
use crate::{Event, Observer, lock};

/// Objects that stay open for the next receiver. Each costs two descriptors.
const OPEN_MAX: usize = 64;
/// How far the time of last use on disk may be behind.
const USED_AGAIN_S: u64 = 60;

/// The objects.
pub(super) struct Shelf {
    store: Arc<LocalStore>,
    node: NodeId,
    hub: Arc<Hub>,
    /// Of receivers that ask for what is not here.
    strangers: Notices,
    tokens: Arc<ClearTokens>,
    clear_data: AtomicBool,
    entries: Mutex<HashMap<Oid, Entry>>,
    /// Held for writing while an object is dropped, for reading while one is put: so that what was just found to be
    /// here already is not gone a moment later.
    dropping: RwLock<()>,
}

/// An object that is kept. Without a share it is only there in case it is put again.
struct Entry {
    kept: Retained,
    sessions: HashSet<String>,
    tally: Arc<Tally>,
    notices: Arc<Notices>,
    open: Option<Arc<Doorkeeper>>,
    /// It was ended, and the disk did not take it.
    is_ending: bool,
    /// Set when the share that is in force ends, for whoever has the object open, also if we have not any more.
    ended: Arc<AtomicBool>,
}

/// Counted since the daemon started.
#[derive(Default)]
struct Tally {
    receivers: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Entry {
    fn is_held(&self) -> bool {
        self.kept.retention.pinned_unix_s.is_some() || !self.sessions.is_empty() || self.is_ending
    }

    /// Bytes on disk that dropping it gives back.
    fn droppable_bytes(&self) -> u64 {
        if self.is_held() || self.kept.borrowed_path.is_some() { 0 } else { self.kept.size_bytes }
    }

    /// Nobody gets anything under the share that was.
    fn close(&mut self) {
        self.open = None;
        std::mem::take(&mut self.ended).store(true, Ordering::Release);
    }

    /// Whether somebody but `session` counts on a share that is not `share`.
    fn is_promised_otherwise(&self, share: &Share, session: &str) -> bool {
        let Some(promised) = &self.kept.retention.share else { return false };
        let is_same = promised.secret == share.secret && promised.expires_unix_s == share.expires_unix_s;
        let is_over = promised.expires_unix_s.is_some_and(|end| unix_s() >= end);
        let is_held =
            self.kept.retention.pinned_unix_s.is_some() || self.sessions.iter().any(|other| other != session);
        !is_same && !is_over && is_held
    }
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
            dropping: RwLock::default(),
        };
        let mut entries = lock(&shelf.entries);
        for kept in shelf.store.retained()? {
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
        let notices = Arc::new(Notices::new(observer));
        Entry {
            kept,
            sessions: HashSet::new(),
            tally,
            notices,
            open: None,
            is_ending: false,
            ended: Arc::default(),
        }
    }

    /// Whether receivers may have bytes in clear text from now on.
    pub(super) fn set_clear_data(&self, allowed: bool) {
        self.clear_data.store(allowed, Ordering::Release);
    }

    /// Nothing is dropped as long as this is there.
    pub(super) fn nothing_is_dropped(&self) -> RwLockReadGuard<'_, ()> {
        self.dropping.read().unwrap_or_else(PoisonError::into_inner)
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

    /// Shares an object with whom `share` says: until it is said otherwise with `pin`, else as long as `session`. `share` makes
    /// and records who that is; it is given the share in force, and whom to ask whether its own may be. `Refused` if that would break what was promised to another session.
    pub(super) fn keep(
        &self,
        oid: &Oid,
        share: impl FnOnce(Option<&Share>, &dyn Fn(&Share) -> Result<()>) -> Result<Share>,
        pin: bool,
        session: &str,
    ) -> Result<Share> {
        // Held all the while, so that no share that ends meanwhile is taken up again.
        let mut entries = lock(&self.entries);
        let entry = entries.get(oid);
        let in_force = entry.and_then(|entry| entry.kept.retention.share.as_ref());
        let share = share(in_force, &|share| match entry {
            Some(entry) if entry.is_promised_otherwise(share, session) => Err(shared_otherwise(entry)),
            _ => Ok(()),
        })?;
        let before = entry.and_then(|entry| entry.kept.retention.pinned_unix_s);
        let pinned_unix_s = before.or_else(|| pin.then(unix_s));
        let retention = Retention { pinned_unix_s, used_unix_s: unix_s(), share: Some(share.clone()) };
        let kept = self.store.retain(oid, Some(retention))?;
        let fresh = self.entry(kept.clone());
        let entry = entries.entry(*oid).or_insert(fresh);
        if entry.kept.retention.share != kept.retention.share
            || entry.kept.borrowed_path != kept.borrowed_path
        {
            entry.close();
        }
        entry.kept = kept;
        entry.is_ending = false;
        entry.sessions.insert(session.to_owned());
        Ok(share)
    }

    /// A session has ended.
    pub(super) fn leave(&self, session: &str) {
        for entry in lock(&self.entries).values_mut() {
            entry.sessions.remove(session);
        }
    }

    /// Ends a share (D10). What is ours stays as long as there is room. `NotFound` if it was not shared.
    pub(super) fn done(&self, oid: &Oid) -> Result<()> {
        let mut entries = lock(&self.entries);
        let shared =
            entries.get_mut(oid).filter(|entry| entry.kept.retention.share.is_some() || entry.is_ending);
        let Some(entry) = shared else {
            return Err(Error::new(ErrorKind::NotFound, format!("{oid} is not shared"))
                .advise("`dray ls` shows what is"));
        };
        // Whatever the disk says, nobody gets another byte. What it does not take can be ended again.
        entry.close();
        entry.is_ending = true;
        let notices = entry.notices.clone();
        let is_ours = entry.kept.borrowed_path.is_none();
        let used_unix_s = entry.kept.retention.used_unix_s;
        let left = Retention { pinned_unix_s: None, used_unix_s, share: None };
        entry.kept.retention = left.clone();
        entry.sessions.clear();
        // The share of commands goes, too: a right that ended never comes back.
        let ended = self.store.update_share(oid, &mut |_| Ok(None));
        let ended = ended.and_then(|_| self.store.retain(oid, is_ours.then_some(left)));
        match ended {
            Ok(_) if is_ours => entry.is_ending = false,
            Ok(_) => drop(entries.remove(oid)),
            // Another command has removed it; that is an end, too.
            Err(error) if error.kind() == ErrorKind::NotFound && !self.has(oid) => drop(entries.remove(oid)),
            Err(error) => {
                return Err(error
                    .context(format_args!("{oid} is not shared any more, but that cannot be written down"))
                    .advise("end it once more before the daemon is started again"));
            }
        }
        drop(entries);
        notices.finish();
        self.hub.tell("done", &json!({"oid": oid.to_string()}));
        Ok(())
    }

    /// Whether the store knows it.
    fn has(&self, oid: &Oid) -> bool {
        !matches!(self.store.share(oid), Err(error) if error.kind() == ErrorKind::NotFound)
    }

    /// How many are shared, and the bytes that may be dropped.
    pub(super) fn counts(&self) -> (usize, u64) {
        let entries = lock(&self.entries);
        let shared = entries.values().filter(|entry| entry.kept.retention.share.is_some()).count();
        (shared, entries.values().map(Entry::droppable_bytes).sum())
    }

    /// What is shared, in the order of names.
    pub(super) fn lines(&self) -> Vec<ShareLine> {
        let entries = lock(&self.entries);
        let mut lines: Vec<ShareLine> = entries.values().filter_map(line).collect();
        lines.sort_by(|a, b| a.oid.cmp(&b.oid));
        lines
    }

    /// Tells who has gone, ends what has expired, and drops what is too much.
    pub(super) fn tick(&self, cache_bytes: u64) {
        self.strangers.tick();
        let mut expired = Vec::new();
        let mut open = Vec::new();
        for (oid, entry) in &*lock(&self.entries) {
            if !entry.notices.is_quiet() {
                open.push(entry.notices.clone());
            }
            let end = entry.kept.retention.share.as_ref().and_then(|share| share.expires_unix_s);
            if end.is_some_and(|end| unix_s() >= end.saturating_add(FAREWELL_S)) {
                expired.push(*oid);
            }
        }
        open.iter().for_each(|notices| notices.tick());
        for oid in expired {
            if let Err(error) = self.done(&oid) {
                self.hub.log_of(oid, Event::Warning(format!("an expired share cannot be ended: {error}")));
            }
        }
        self.make_room(cache_bytes);
    }

    /// Drops what was not used for longest and nobody holds, until at most `cache_bytes` of such objects, and
    /// [`SHARES_MAX`] objects, are left. The user's files are never touched, only what is known of them.
    fn make_room(&self, cache_bytes: u64) {
        let Ok(_nothing_is_put) = self.dropping.try_write() else { return };
        let mut entries = lock(&self.entries);
        let mut bytes: u64 = entries.values().map(Entry::droppable_bytes).sum();
        if bytes <= cache_bytes && entries.len() <= SHARES_MAX {
            return;
        }
        let mut free: Vec<(u64, Oid)> = entries
            .iter()
            .filter(|(_, entry)| !entry.is_held())
            .map(|(oid, entry)| (entry.kept.retention.used_unix_s, *oid))
            .collect();
        free.sort_by_key(|(used, _)| *used);
        for (_, oid) in free {
            let is_too_many = entries.len() > SHARES_MAX;
            let Some(entry) = entries.get(&oid) else { continue };
            let given_back = entry.droppable_bytes();
            if !is_too_many && (bytes <= cache_bytes || given_back == 0) {
                continue;
            }
            let dropped = match entry.kept.borrowed_path {
                None => self.store.remove(&oid).map(drop),
                Some(_) => self.store.retain(&oid, None).map(drop),
            };
            if let Err(error) = dropped
                && error.kind() != ErrorKind::NotFound
            {
                self.hub.log_of(oid, Event::Warning(format!("it cannot be dropped: {error}")));
                continue;
            }
            bytes -= given_back;
            if let Some(mut entry) = entries.remove(&oid) {
                entry.close();
            }
            self.hub.tell("dropped", &json!({"oid": oid.to_string()}));
        }
    }

    /// A receiver broke the rules before anything was known of it.
    pub(super) fn turned_away(&self, reason: String) {
        self.strangers.turned_away(reason);
    }

    /// A connection of `node` broke.
    pub(super) fn lost(&self, node: NodeId, error: &Error) {
        for entry in lock(&self.entries).values().filter(|entry| !entry.notices.is_quiet()) {
            entry.notices.lost(node, error);
        }
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
        let object = notices.tell(self.store.open(oid))?;
        let keeper = Arc::new(Doorkeeper {
            object,
            share: share.clone(),
            node: self.node,
            tokens: None,
            notices: notices.clone(),
            recipe: Arc::default(),
            ended: ended.clone(),
        });
        let mut entries = lock(&self.entries);
        let open = entries.values().filter(|entry| entry.open.is_some()).count();
        if open >= OPEN_MAX {
            // Receivers that have one of these open keep it.
            let quiet = entries.values_mut().find(|entry| entry.open.is_some() && entry.notices.is_quiet());
            if let Some(entry) = quiet {
                entry.open = None;
            }
        }
        let Some(entry) = entries.get_mut(oid).filter(|entry| Arc::ptr_eq(&entry.ended, ended)) else {
            return Err(Error::new(ErrorKind::Refused, "the object is no longer shared"));
        };
        let used = unix_s();
        if entry.kept.retention.used_unix_s.saturating_add(USED_AGAIN_S) < used {
            entry.kept.retention.used_unix_s = used;
            // Best effort: it decides only what is dropped first.
            let _ = self.store.retain(oid, Some(entry.kept.retention.clone()));
        }
        // Two receivers may have come at once.
        Ok(entry.open.get_or_insert(keeper).clone())
    }
}

impl Provider for Shelf {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let security =
            security.ok_or_else(|| Error::new(ErrorKind::Refused, "this channel proves nobody"))?;
        let found = match &open.object {
            ObjectName::Oid(oid) => {
                let entries = lock(&self.entries);
                let entry = entries.get(oid);
                entry.and_then(|entry| {
                    let share = entry.kept.retention.share.clone()?;
                    let (notices, keeper) = (entry.notices.clone(), entry.open.clone());
                    Some((*oid, Found { share, notices, keeper, ended: entry.ended.clone() }))
                })
            }
            ObjectName::Provisional(_) => None,
        };
        // Nothing is read from disk for who has no right to it.
        let shared = found.as_ref().map(|(oid, found)| (*oid, &found.share));
        if let Err(refusal) = admit(shared, self.node, open, security) {
            self.strangers.turned_away(refusal.reason);
            return Err(refusal.answer);
        }
        let Some((oid, found)) = found else {
            return Err(Error::new(ErrorKind::Internal, "nothing was admitted"));
        };
        let keeper = match &found.keeper {
            Some(keeper) => keeper.clone(),
            None => self.open_entry(&oid, &found)?,
        };
        keeper.open(open, Some(security))
    }

    fn clear_data(&self) -> Option<ClearGrantor> {
        let is_allowed = self.clear_data.load(Ordering::Acquire);
        is_allowed.then(|| self.tokens.grant().ok()).flatten()
    }
}

/// What a receiver asks for, as it was found.
struct Found {
    share: Share,
    notices: Arc<Notices>,
    keeper: Option<Arc<Doorkeeper>>,
    ended: Arc<AtomicBool>,
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

fn line(entry: &Entry) -> Option<ShareLine> {
    let share = entry.kept.retention.share.as_ref()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(ShareLine {
        oid: entry.kept.oid.to_string(),
        size_bytes: entry.kept.size_bytes,
        name: share.name.as_ref().map(|name| text(name)),
        path: entry.kept.borrowed_path.as_ref().map(|path| path.to_string_lossy().into_owned()),
        public: share.secret.is_none(),
        pinned: entry.kept.retention.pinned_unix_s.is_some(),
        sessions: entry.sessions.len() as u64,
        expires_unix_s: share.expires_unix_s,
        receivers: entry.tally.receivers.load(Ordering::Relaxed),
        sent_bytes: entry.tally.sent_bytes.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
mod tests;
