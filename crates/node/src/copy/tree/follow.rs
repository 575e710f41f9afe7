//! `sync --watch`: the same copy again, whenever something changed in its sources.
//!
//! What is changed is told by inotify; what is to be done about it is found by the copy itself, which compares everything. So a
//! change that is told twice, late or in part costs a look and nothing else. What nobody tells (a write through a hard link, a mapping
//! that stays open, a rename above a source) is found by a look every [`SAFETY_INTERVAL`]; where the kernel cannot tell of all
//! directories ([`WATCHED_DIRECTORIES_MAX`], or its own limit), every [`LOOK_INTERVAL`].
//!
//! A source whose disk is unmounted looks like one that is empty. So each copy begins only if the sources lie on the file systems on
//! which they lay at first and nothing was unmounted below them, and deletes only if that is still so when it has read them to their end, and all is there of which it
//! read something.

mod grounds;
mod watches;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_core::limits::WATCHED_DIRECTORIES_MAX;
use dray_core::{Error, ErrorKind, Result};

use self::grounds::Grounds;
use self::watches::Watches;
use super::super::local::is_local_host;
use super::{Confirm, TreeCopied, TreeRequest};
use crate::{Event, Location, Node, Observer, Stop, lock};

/// How often it is looked where nobody tells of changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How often it is looked for what nobody tells of.
const SAFETY_INTERVAL: Duration = Duration::from_secs(300);
/// A copy begins when nothing has changed for so long, ...
const QUIET: Duration = Duration::from_millis(300);
/// ... or so long after the first change, ...
const SETTLE_MAX: Duration = Duration::from_secs(3);
/// ... but so long after one that had nothing to do, and twice as long after each further one: what is left out may change all the time.
const IDLE_MIN: Duration = Duration::from_secs(1);
const IDLE_MAX: Duration = Duration::from_secs(60);
/// First and longest pause after a copy that failed.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How often a copy of which entries failed is done again before it waits for a change as any other, and one that did not find
/// something before that ends everything.
const RETRIES_OF_ENTRIES: u32 = 3;

/// Why a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// Something changed, or may have.
    Changed,
    TimedOut,
    Stopped,
}

/// What the last copy came to.
enum Last {
    Nothing,
    Done,
    EntriesFailed(u64),
    Failed(Error),
}

impl Node {
    /// Copies trees as [`Node::copy_trees`] does, and again whenever something changed in the sources, until `stop`; `copied` is told
    /// what each copy came to. Returns how many entries failed in the last one. [`super::SyncOptions::max_delete`] counts for all of them
    /// together.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] where a source is on another host, or the destination is on this one over ssh, or sources lose what is in place. What the first copy fails with;
    /// after that what will not pass by itself: errors that may (the other host is away, no space, a source that is not there) are told as
    /// warnings, and it is tried again; the last of them if it was stopped meanwhile. [`ErrorKind::Changed`] where a source lies on another
    /// file system than it did, or, with `delete`, something in it was unmounted.
    pub fn follow_trees(
        &self,
        request: &TreeRequest,
        observer: &dyn Observer,
        stop: &Stop,
        copied: &mut dyn FnMut(&TreeCopied, Duration),
    ) -> Result<u64> {
        let mut request = request.clone();
        let roots = roots(&request)?;
        // A thread that reads a tree stands elsewhere.
        let start = std::env::current_dir().unwrap_or_default();
        let places: Vec<PathBuf> = roots.iter().map(|root| start.join(root)).collect();
        let one_file_system = request.options.one_file_system;
        let grounds = Arc::new(Mutex::new(Grounds::of(one_file_system, start)));
        if let Some(sync) = request.options.sync.as_mut().filter(|sync| sync.delete) {
            // A copy may begin long before it looks at the sources: a login is between.
            let (grounds, places) = (Arc::clone(&grounds), places.clone());
            sync.mounts = Some(lock(&grounds).read_mounts());
            sync.confirm = Some(Confirm::new(move || lock(&grounds).confirm(&places)));
        }
        let mut changes = Changes::of(&roots, one_file_system, observer);
        let mut last = Last::Nothing;
        let (mut retries, mut unfound, mut idle) = (0, 0, Duration::ZERO);
        loop {
            // What changes from here on is told, so nothing is missed between the copy's look and ours.
            changes.begin(stop);
            let begun = Instant::now();
            let is_first = matches!(last, Last::Nothing);
            let deletes = request.options.sync.as_ref().is_some_and(|sync| sync.delete);
            let telling = Deletions { observer, deleted: AtomicU64::new(0) };
            let checked = lock(&grounds).check(&places, changes.unmounted(), deletes);
            let outcome = checked.and_then(|()| self.copy_any(&request, &telling, stop));
            let deleted = telling.deleted.into_inner();
            if let Some(sync) = &mut request.options.sync {
                sync.max_delete = sync.max_delete.map(|max| max.saturating_sub(deleted));
            }
            let mut pause = None;
            match outcome {
                Ok(done) => {
                    unfound = 0;
                    copied(&done, begun.elapsed());
                    let has_done = done.files + done.deleted > 0;
                    idle = if has_done { Duration::ZERO } else { (idle * 2).clamp(IDLE_MIN, IDLE_MAX) };
                    retries = if done.failed > 0 && !has_done { retries + 1 } else { 0 };
                    last = Last::Done;
                    if done.failed > 0 {
                        last = Last::EntriesFailed(done.failed);
                        pause = (retries < RETRIES_OF_ENTRIES).then(|| pause_after(retries));
                    }
                }
                // In the middle of a copy: what it has not done it would do the next time.
                Err(_) if !is_first && stop.is_set() => return ended(last),
                Err(error) if deleted > 0 && may_have_deleted_more(&request) => {
                    let what =
                        "start it again: --max-delete cannot tell how much was deleted before it was cut off";
                    return Err(error.or_advise(what));
                }
                Err(error) if !is_first && may_pass(&error, &roots, &mut unfound) => {
                    observer.event(Event::Warning(format!("{error}; it is tried again")));
                    pause = Some(pause_after(retries));
                    retries += 1;
                    last = Last::Failed(error);
                }
                Err(error) => return Err(error),
            }
            if is_first {
                // Nobody sits there to be asked for a password again and again.
                request.options.ssh.options.push("BatchMode=yes".into());
            }
            if changes.wait(pause, idle, stop) == Waited::Stopped {
                return ended(last);
            }
        }
    }
}

/// Twice as long each time.
fn pause_after(retries: u32) -> Duration {
    RETRY_MIN.saturating_mul(2_u32.saturating_pow(retries)).min(RETRY_MAX)
}

/// What a stop finds.
fn ended(last: Last) -> Result<u64> {
    match last {
        Last::Nothing | Last::Done => Ok(0),
        Last::EntriesFailed(failed) => Ok(failed),
        Last::Failed(error) => Err(error),
    }
}

/// Counts what is deleted, also by a copy that fails after that.
struct Deletions<'a> {
    observer: &'a dyn Observer,
    deleted: AtomicU64,
}

impl Observer for Deletions<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Synced { letters: None, .. }) {
            self.deleted.fetch_add(1, Ordering::Relaxed);
        }
        self.observer.event(event);
    }
}

/// True if more may have been deleted than was told before a copy failed, and that counts.
fn may_have_deleted_more(request: &TreeRequest) -> bool {
    let is_bounded = request.options.sync.as_ref().is_some_and(|sync| sync.max_delete.is_some());
    is_bounded && matches!(request.destination, Location::Remote { .. })
}

/// The sources, which have to be here, while the destination is not here by way of ssh: a copy into a source would be a change in it, for ever.
fn roots(request: &TreeRequest) -> Result<Vec<PathBuf>> {
    if request.options.sync.as_ref().is_some_and(|sync| sync.remove_sources) {
        let what = "--watch does not go together with --remove-source-files: it is begun by whoever writes a file, and would take that from under him";
        return Err(
            Error::new(ErrorKind::Usage, what).advise("move what is complete, with a command of its own")
        );
    }
    if let Location::Remote { host, .. } = &request.destination
        && is_local_host(host)
    {
        let what = format!("--watch does not go to {} over ssh: that is this host", host.to_string_lossy());
        return Err(Error::new(ErrorKind::Usage, what).advise("name DST by its path"));
    }
    let here = |source: &Location| match source {
        Location::Local(path) => Ok(path.clone()),
        Location::Remote { host, .. } => Err(Error::new(
            ErrorKind::Usage,
            format!("what changes on {} is not told here", host.to_string_lossy()),
        )
        .advise("run `dray sync --watch` on the host that has SRC")),
    };
    request.sources.iter().map(here).collect()
}

/// Whether an error may be none after a while. `unfound` counts those, since a copy came to its end, that did not find something although
/// the sources were there.
fn may_pass(error: &Error, roots: &[PathBuf], unfound: &mut u32) -> bool {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::NoSpace => true,
        // It is made anew, perhaps, or was while the copy came to its end.
        ErrorKind::NotFound if roots.iter().any(|root| fs::symlink_metadata(root).is_err()) => true,
        ErrorKind::NotFound => {
            *unfound += 1;
            *unfound <= RETRIES_OF_ENTRIES
        }
        _ => false,
    }
}

/// Where changes are told.
struct Changes<'a> {
    /// `None` if nobody tells of them.
    watches: Option<Watches>,
    observer: &'a dyn Observer,
}

impl Changes<'_> {
    fn of<'a>(roots: &[PathBuf], one_file_system: bool, observer: &'a dyn Observer) -> Changes<'a> {
        let mut changes = Changes { watches: None, observer };
        match Watches::new(roots.to_vec(), one_file_system, WATCHED_DIRECTORIES_MAX) {
            Ok(watches) => changes.watches = Some(watches),
            Err(error) => changes.look_instead(&error),
        }
        changes
    }

    fn look_instead(&mut self, error: &Error) {
        self.watches = None;
        let seconds = LOOK_INTERVAL.as_secs();
        self.observer.event(Event::Warning(format!("{error}: all is looked at every {seconds} s instead")));
    }

    /// Before a copy looks at the sources.
    fn begin(&mut self, stop: &Stop) {
        if let Some(Err(error)) = self.watches.as_mut().map(|watches| watches.begin(stop)) {
            self.look_instead(&error);
        }
    }

    /// A directory of the sources on which something was mounted, which is gone.
    fn unmounted(&self) -> Option<PathBuf> {
        self.watches.as_ref()?.unmounted.clone()
    }

    /// Waits until there is a reason for another copy: a change that has settled, the end of `retry`, or that it is time for a look. A
    /// change waits for `idle` in any case.
    fn wait(&mut self, retry: Option<Duration>, idle: Duration, stop: &Stop) -> Waited {
        let first = self.hear(retry.unwrap_or(SAFETY_INTERVAL), stop);
        if first != Waited::Changed {
            if let Some(watches) = self.watches.as_mut().filter(|_| retry.is_none()) {
                watches.look_again();
            }
            return first;
        }
        if sleep(idle, stop) == Waited::Stopped {
            return Waited::Stopped;
        }
        let settled = Instant::now() + SETTLE_MAX;
        loop {
            let left = settled.saturating_duration_since(Instant::now());
            match self.hear(QUIET.min(left), stop) {
                Waited::Stopped => return Waited::Stopped,
                Waited::Changed if !left.is_zero() => {}
                _ => return Waited::Changed,
            }
        }
    }

    fn hear(&mut self, patience: Duration, stop: &Stop) -> Waited {
        match self.watches.as_mut().map(|watches| watches.wait(patience, stop)) {
            Some(Ok(waited)) => waited,
            Some(Err(error)) => {
                self.look_instead(&error);
                Waited::TimedOut
            }
            None => sleep(patience.min(LOOK_INTERVAL), stop),
        }
    }
}

/// Sleeps, but for a stop.
fn sleep(time: Duration, stop: &Stop) -> Waited {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if stop.is_set() {
            return Waited::Stopped;
        }
        std::thread::sleep(watches::STOP_INTERVAL.min(until.saturating_duration_since(Instant::now())));
    }
    if stop.is_set() { Waited::Stopped } else { Waited::TimedOut }
}

#[cfg(test)]
mod tests;
