//! Directories that the daemon shares as they are ([ADR 31]): handed over, written down, given to whoever has the ticket, and ended.
//!
//! Nothing is kept of what is in them. A directory is looked at when it is shared, and when a receiver asks.
//!
//! [ADR 31]: ../../../../docs/adr/0031-directories-of-the-daemon.md

mod throttle;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use dray_client::types::{DirectoryLine, NewDirectory, SharedDirectory as Told};
use dray_core::limits::LIVE_TREES_MAX;
use dray_core::message::PROTOCOL_VERSION;
use dray_core::rights::Secret;
use dray_core::store::Share;
use dray_core::ticket::{DirectoryId, DirectoryTicket};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::SharedDirectory;
use dray_store::local::{DirectoryRecord, LocalStore};
use serde_json::json;

use self::throttle::Throttle;
use super::LOCK_PATIENCE;
use super::desk::interrupted;
use super::hub::Hub;
use super::shelf::{ROUND, ROUND_MAX};
use crate::copy::LiveTrees;
use crate::put::{FAREWELL_S, unix_s};
use crate::{Event, Node, Observer, lock};

/// How often whoever waits for its turn looks whether it has come.
const TURN_INTERVAL: Duration = Duration::from_millis(10);

/// The directories.
pub(super) struct Directories {
    store: Arc<LocalStore>,
    hub: Arc<Hub>,
    /// As receivers see them.
    trees: LiveTrees,
    kept: Mutex<BTreeMap<DirectoryId, Kept>>,
    /// Of whoever changes what is kept, on disk, too.
    turn: Mutex<()>,
}

struct Kept {
    record: DirectoryRecord,
    tally: Arc<Tally>,
    /// It was ended, and the disk has not taken that yet.
    is_ending: bool,
    /// Why not, as it was told last.
    told: Option<String>,
}

/// What came of it since the daemon started.
#[derive(Default)]
struct Tally {
    receivers: AtomicU64,
    sent_bytes: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Tally {
    fn note(&self, event: &Event) {
        match event {
            Event::ServingDirectory { .. } => {
                self.receivers.fetch_add(1, Ordering::Relaxed);
            }
            Event::ServedDirectory { sent_bytes, lost, .. } => {
                self.sent_bytes.fetch_add(*sent_bytes, Ordering::Relaxed);
                if lost.is_none() {
                    *lock(&self.trouble) = None;
                }
            }
            Event::Warning(text) => *lock(&self.trouble) = Some(text.clone()),
            _ => {}
        }
    }
}

impl Kept {
    fn is_over(&self, now_unix_s: u64) -> bool {
        self.record.expires_unix_s.is_some_and(|end| now_unix_s >= end.saturating_add(FAREWELL_S))
    }

    fn line(&self) -> DirectoryLine {
        let DirectoryRecord { id, path, lasting, secret, expires_unix_s, since_unix_s } = &self.record;
        DirectoryLine {
            id: id.to_string(),
            path: path.to_string_lossy().into_owned(),
            public: secret.is_none(),
            since_unix_s: *since_unix_s,
            expires_unix_s: *expires_unix_s,
            lasting: lasting.is_some(),
            receivers: self.tally.receivers.load(Ordering::Relaxed),
            sent_bytes: self.tally.sent_bytes.load(Ordering::Relaxed),
            trouble: lock(&self.tally.trouble).clone(),
        }
    }
}

impl Directories {
    /// With everything that was shared when the last daemon ended. None of it is looked at.
    pub(super) fn load(store: Arc<LocalStore>, trees: LiveTrees, hub: Arc<Hub>) -> Result<Directories> {
        let (records, unknown) = store.directory_records()?;
        for error in unknown {
            hub.log(Event::Warning(format!("it is not known which directory was shared: {error}")));
        }
        let directories = Directories { store, hub, trees, kept: Mutex::default(), turn: Mutex::default() };
        for record in records {
            let directory = record.directory();
            directories.add(record, directory);
        }
        Ok(directories)
    }

    /// As receivers see them.
    pub(super) fn trees(&self) -> &LiveTrees {
        &self.trees
    }

    /// How many are shared.
    pub(super) fn count(&self) -> usize {
        lock(&self.kept).values().filter(|kept| !kept.is_ending).count()
    }

    /// What is shared, in the order of ids, of those after one of them.
    pub(super) fn lines(&self, after: Option<DirectoryId>) -> Vec<DirectoryLine> {
        let kept = lock(&self.kept);
        let all = kept.iter().filter(|(id, kept)| !kept.is_ending && after.is_none_or(|after| **id > after));
        all.map(|(_, kept)| kept.line()).collect()
    }

    fn add(&self, record: DirectoryRecord, directory: SharedDirectory) {
        let tally: Arc<Tally> = Arc::default();
        let (hub, counting, id, throttle) = (self.hub.clone(), tally.clone(), record.id, Throttle::default());
        let observer: Arc<dyn Observer> = Arc::new(move |event: Event| {
            counting.note(&event);
            match throttle.passes(&event) {
                true => hub.log_of_directory(id, event),
                false => hub.metrics.note(&event),
            }
        });
        let share =
            Share { secret: record.secret, expires_unix_s: record.expires_unix_s, ..Share::default() };
        lock(&self.kept).insert(id, Kept { record, tally, is_ending: false, told: None });
        self.trees.add(id, directory, share, observer);
    }

    /// Shares the directory that was `handed` over, durably, before anybody is told its ticket. One that is shared without an end has the
    /// same ticket again.
    pub(super) fn put(
        &self,
        node: &Node,
        port: u16,
        wish: &NewDirectory,
        handed: &OwnedFd,
        is_abandoned: &dyn Fn() -> bool,
    ) -> Result<Told> {
        // Its disk may take long to answer, and nobody else waits for that.
        let directory = SharedDirectory::of_opened(handed)?;
        self.trees.own().require_foreign(&directory)?;
        // Said here rather than to the first receiver.
        directory.open()?;
        let warnings = Mutex::new(Vec::new());
        let observer = |event| {
            if let Event::Warning(text) = event {
                lock(&warnings).push(text);
            }
        };
        let hints = node.hints(port, &observer);
        if directory.lasting().is_none() {
            lock(&warnings).push(format!(
                "the file system of {:?} does not tell it from others after a restart: when the daemon has been started again it has to be \
                 shared again",
                directory.path()
            ));
        }
        let _turn = self.turn(is_abandoned)?;
        if is_abandoned() {
            return Err(interrupted("directory"));
        }
        let expires_unix_s = wish.expires_s.map(|seconds| unix_s().saturating_add(seconds.max(1)));
        let is_alike = |share: &Share| {
            share.expires_unix_s.is_none()
                && expires_unix_s.is_none()
                && share.secret.is_none() == wish.public
        };
        let known = self.trees.same(&directory, &is_alike);
        let known = known.and_then(|id| Some((id, lock(&self.kept).get(&id)?.record.secret)));
        let (id, secret) = match known {
            Some(known) => known,
            None => {
                let secret = if wish.public { None } else { Some(Secret::from_bytes(crate::random()?)) };
                (DirectoryId::from_bytes(crate::random()?), secret)
            }
        };
        let addresses = hints.iter().map(|hint| hint.uri.to_string()).collect();
        // Before it is kept: nothing is shared whose ticket nobody has.
        let ticket = DirectoryTicket { protocol: PROTOCOL_VERSION, id, secret, expires_unix_s, hints };
        let ticket = ticket.to_text()?;
        let path = directory.path().to_owned();
        if known.is_none() {
            let lasting = directory.lasting();
            let since_unix_s = unix_s();
            let record =
                DirectoryRecord { id, path: path.clone(), lasting, secret, expires_unix_s, since_unix_s };
            self.keep(record, directory)?;
            if is_abandoned() {
                // Nobody hears its ticket. What the disk does not take is tried again.
                self.shut(id, |_| true);
                let _ = self.write_end(id);
                return Err(interrupted("directory"));
            }
        }
        Ok(Told {
            id: id.to_string(),
            path: path.to_string_lossy().into_owned(),
            ticket,
            addresses,
            warnings: warnings.into_inner().unwrap_or_default(),
        })
    }

    fn keep(&self, record: DirectoryRecord, directory: SharedDirectory) -> Result<()> {
        // On the disk there may be more: those that could not be read.
        if lock(&self.kept).len().max(self.store.directory_count()?) >= LIVE_TREES_MAX {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("{LIVE_TREES_MAX} directories are shared already"),
            )
            .advise("end some: dray done TICKET"));
        }
        let id = record.id;
        self.store.keep_directory(&record).inspect_err(|_| {
            // It may be in its place although its last step failed.
            let _ = self.store.forget_directory(id);
        })?;
        self.add(record, directory);
        self.hub.tell("shared-directory", &json!({"directory": id.to_string()}));
        Ok(())
    }

    /// Ends a share, that of a record included that could not be read. `NotFound` if there is none of that id.
    pub(super) fn done(&self, id: DirectoryId, is_stopped: &dyn Fn() -> bool) -> Result<()> {
        // Whatever the disk says, nobody gets another byte.
        let is_known = self.shut(id, |_| true);
        let _turn = self.turn(is_stopped).map_err(|error| not_written(id, error))?;
        let was_there = self.write_end(id).map_err(|error| not_written(id, error))?;
        if !is_known && !was_there {
            return Err(Error::new(ErrorKind::NotFound, format!("{id} is not shared"))
                .advise("`dray ls` shows what is"));
        }
        Ok(())
    }

    /// Ends a share as far as memory goes, if `condition` holds for it; says whether it did.
    fn shut(&self, id: DirectoryId, condition: impl Fn(&Kept) -> bool) -> bool {
        let mut kept = lock(&self.kept);
        let Some(kept) = kept.get_mut(&id).filter(|kept| condition(kept)) else { return false };
        kept.is_ending = true;
        self.trees.end(id);
        true
    }

    /// Writes down that a share was ended; true if there was a record of it. The caller has the turn.
    fn write_end(&self, id: DirectoryId) -> Result<bool> {
        let was_there = self.store.forget_directory(id)?;
        if lock(&self.kept).remove(&id).is_some() || was_there {
            self.hub.tell("done-directory", &json!({"directory": id.to_string()}));
        }
        Ok(was_there)
    }

    /// The turn to change what is kept. `Interrupted` if nobody waits for it, `TimedOut` if others take too long.
    fn turn(&self, is_stopped: &dyn Fn() -> bool) -> Result<MutexGuard<'_, ()>> {
        let begun = Instant::now();
        loop {
            match self.turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if is_stopped() => return Err(interrupted("directory")),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= LOCK_PATIENCE => {
                    return Err(Error::new(ErrorKind::TimedOut, "others are writing what is shared")
                        .with_retryable(true)
                        .advise("the disk of the data directory may be slow: try again in a while"));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(TURN_INTERVAL),
            }
        }
    }

    /// Ends what has expired, writes down what could not be before, and tells what was held back; how long there is nothing to do after it.
    pub(super) fn tick(&self) -> Duration {
        let is_all_told = self.trees.tick();
        let now = unix_s();
        let ids: Vec<DirectoryId> = lock(&self.kept).keys().copied().collect();
        for id in ids {
            let is_over = self.shut(id, |kept| kept.is_over(now));
            let is_ending = lock(&self.kept).get(&id).is_some_and(|kept| kept.is_ending);
            if !is_ending {
                continue;
            }
            // Whoever has the turn may be doing just that.
            let Ok(_turn) = self.turn.try_lock() else { continue };
            if let Err(error) = self.write_end(id)
                && is_over
            {
                let text = format!("an expired share cannot be ended: {error}");
                let told = lock(&self.kept).get_mut(&id).and_then(|kept| kept.told.replace(text.clone()));
                if told.as_ref() != Some(&text) {
                    self.hub.log_of_directory(id, Event::Warning(text));
                }
            }
        }
        let kept = lock(&self.kept);
        if !is_all_told || kept.values().any(|kept| kept.is_ending) {
            return ROUND;
        }
        let ends = kept.values().filter_map(|kept| kept.record.expires_unix_s);
        let next = ends.map(|end| end.saturating_add(FAREWELL_S).saturating_sub(now)).min();
        next.map_or(ROUND_MAX, |next| Duration::from_secs(next).clamp(ROUND, ROUND_MAX))
    }
}

fn not_written(id: DirectoryId, error: Error) -> Error {
    error
        .context(format_args!("{id} is not shared any more, but that cannot be written down"))
        .advise("end it once more before the daemon is started again")
}

#[cfg(test)]
mod tests;
