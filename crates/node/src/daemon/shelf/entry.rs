//! One object that is kept: who counts on it, who has it open, and when it was last used.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_client::types::ShareLine;
use dray_core::store::Share;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::Retained;
use dray_transfer::holder::RecipeCache;

use crate::admission::{Doorkeeper, Notices};
use crate::put::{FAREWELL_S, unix_s};
use crate::{Observer, lock};

/// How far the time of last use on disk may be behind.
const USED_AGAIN_S: u64 = 60;
/// An object that is kept. Without a share it is only there in case it is put again.
pub(super) struct Entry {
    pub(super) kept: Retained,
    pub(super) sessions: HashSet<String>,
    pub(super) tally: Arc<Tally>,
    pub(super) notices: Arc<Notices>,
    /// For the next receiver, as long as there are some.
    pub(super) open: Option<Arc<Doorkeeper>>,
    /// Outlives `open` for a while: to make it the whole object is read.
    pub(super) recipe: Arc<RecipeCache>,
    /// There may be something in `recipe`.
    pub(super) has_recipe: bool,
    pub(super) opening: Arc<Opening>,
    /// Whoever is just being let in has one, too.
    pub(super) visits: Arc<()>,
    /// Its place among all uses of all objects: later ones have greater numbers.
    pub(super) turn: u64,
    /// When it was used last, for how long ago that is.
    pub(super) last: Instant,
    /// The time of last use that the disk knows.
    pub(super) written_unix_s: u64,
    /// It was ended, and the disk has not taken that yet.
    pub(super) ending: Option<Ending>,
    /// It was told that this cannot be dropped.
    pub(super) is_stuck: bool,
    /// Set when the share that is in force ends, for whoever has the object open, also if we have not any more.
    pub(super) ended: Arc<AtomicBool>,
}

/// How a share ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// It was ended by name, or by time: that holds for commands, too, since a right that ended never comes back.
    Done,
    /// Nobody counts on it any more. Commands may share the object as before.
    Lapsed,
}

/// Counted since the daemon started.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) receivers: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl Entry {
    pub(super) fn new(kept: Retained, tally: Arc<Tally>, observer: Arc<dyn Observer>) -> Entry {
        Entry {
            written_unix_s: kept.retention.used_unix_s,
            kept,
            sessions: HashSet::new(),
            tally,
            notices: Arc::new(Notices::new(observer)),
            open: None,
            recipe: Arc::default(),
            has_recipe: false,
            opening: Arc::default(),
            visits: Arc::default(),
            turn: 0,
            last: Instant::now(),
            ending: None,
            is_stuck: false,
            ended: Arc::default(),
        }
    }

    /// Somebody counts on it.
    pub(super) fn is_held(&self) -> bool {
        self.kept.retention.pinned_unix_s.is_some() || !self.sessions.is_empty() || self.ending.is_some()
    }

    /// Somebody has it open, is being let in, or had it a moment ago and may come back.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.visits) > 1 || !self.notices.is_quiet()
    }

    /// Nobody counts on it any more, and it is not ours: nothing is kept but the share, which ends.
    pub(super) fn is_lapsed(&self) -> bool {
        !self.is_held() && !self.kept.is_disposable && !self.is_in_use()
    }

    pub(super) fn is_expired(&self) -> bool {
        let end = self.kept.retention.share.as_ref().and_then(|share| share.expires_unix_s);
        end.is_some_and(|end| unix_s() >= end.saturating_add(FAREWELL_S))
    }

    /// Bytes on disk that count towards the limit of the cache.
    pub(super) fn cached_bytes(&self) -> u64 {
        if self.is_held() || !self.kept.is_disposable { 0 } else { self.kept.size_bytes }
    }

    /// Used now, which is the `turn`-th use of all.
    pub(super) fn touch(&mut self, turn: u64) {
        (self.turn, self.last) = (turn, Instant::now());
        self.kept.retention.used_unix_s = unix_s();
    }

    /// The disk is too far behind.
    pub(super) fn is_worth_writing(&self) -> bool {
        self.written_unix_s.saturating_add(USED_AGAIN_S) < self.kept.retention.used_unix_s
    }

    /// Nobody gets anything under the share that was.
    pub(super) fn close(&mut self) {
        self.open = None;
        std::mem::take(&mut self.ended).store(true, Ordering::Release);
    }

    /// Its share ends, as far as memory goes; the disk is still to hear of it.
    pub(super) fn end(&mut self, how: Ending) {
        self.close();
        self.ending = Some(how);
        self.sessions.clear();
        (self.kept.retention.share, self.kept.retention.pinned_unix_s) = (None, None);
    }

    /// Whether somebody but `session` counts on a share that is not `share`.
    pub(super) fn is_promised_otherwise(&self, share: &Share, session: &str) -> bool {
        let Some(promised) = &self.kept.retention.share else { return false };
        let is_same = promised.secret == share.secret && promised.expires_unix_s == share.expires_unix_s;
        let is_over = promised.expires_unix_s.is_some_and(|end| unix_s() >= end);
        let is_held =
            self.kept.retention.pinned_unix_s.is_some() || self.sessions.iter().any(|other| other != session);
        !is_same && !is_over && is_held
    }

    /// As a list shows it; `None` if it is not shared.
    pub(super) fn line(&self) -> Option<ShareLine> {
        let share = self.kept.retention.share.as_ref()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(ShareLine {
            oid: self.kept.oid.to_string(),
            size_bytes: self.kept.size_bytes,
            name: share.name.as_ref().map(|name| text(name)),
            path: self.kept.borrowed_path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            public: share.secret.is_none(),
            pinned: self.kept.retention.pinned_unix_s.is_some(),
            sessions: self.sessions.len() as u64,
            expires_unix_s: share.expires_unix_s,
            receivers: self.tally.receivers.load(Ordering::Relaxed),
            sent_bytes: self.tally.sent_bytes.load(Ordering::Relaxed),
        })
    }
}

/// An object is opened by one receiver for all: its outboard may be lost, and then all of it is hashed.
#[derive(Default)]
pub(super) struct Opening {
    is_busy: Mutex<bool>,
    over: Condvar,
}

/// The object is being opened until this is dropped.
pub(super) struct Opener<'a>(&'a Opening);

impl Opening {
    /// Waits until nobody else opens the object. `TimedOut` if that takes long: whoever waits is one thread more.
    pub(super) fn begin(&self, patience: Duration) -> Result<Opener<'_>> {
        let busy = lock(&self.is_busy);
        let waited = self.over.wait_timeout_while(busy, patience, |busy| *busy);
        let (mut busy, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && *busy {
            return Err(Error::new(ErrorKind::TimedOut, "the holder is still reading its copy")
                .with_retryable(true)
                .advise("try again in a while"));
        }
        *busy = true;
        Ok(Opener(self))
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_busy) = false;
        self.0.over.notify_all();
    }
}
