//! The marks of a delivery and the checkpoints that make them durable: data and pairs first, then the map that says so.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dray_core::{Error, Result};

use super::Shared;
use super::state::UnitMap;

/// Units (64 MiB) that may be lost to a crash of the machine before a checkpoint begins (design decision 10).
///
/// While a thread waits for the disk a killed process keeps its sockets, and what still comes into them is lost: less is written at a time, the shorter that takes.
pub(super) const UNCHECKED_UNITS_MAX: u64 = 64;

#[derive(Debug)]
pub(super) struct Marks {
    pub(super) marked: UnitMap,
    pub(super) durable: UnitMap,
    /// Marks that the running checkpoint will call durable.
    pub(super) pending: Option<UnitMap>,
    /// Units marked since the last checkpoint began.
    pub(super) unchecked: u64,
    pub(super) has_thread: bool,
    pub(super) is_stopped: bool,
    /// The lock is released: another process may be writing the state.
    pub(super) is_released: bool,
    /// Renamed into place or removed: there is no state to keep.
    pub(super) is_over: bool,
    /// Why a checkpoint failed. It stays: the system reports a failed write-back once and then forgets it, so nothing
    /// written after the last good checkpoint can be relied on any more.
    failure: Option<Error>,
}

impl Marks {
    pub(super) fn new(marked: UnitMap, durable: UnitMap) -> Marks {
        Marks {
            marked,
            durable,
            pending: None,
            unchecked: 0,
            has_thread: false,
            is_stopped: false,
            is_released: false,
            is_over: false,
            failure: None,
        }
    }

    /// The failure of a checkpoint, if one failed.
    pub(super) fn check_failure(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |error| Err(again(error)))
    }
}

/// The same error once more.
fn again(error: &Error) -> Error {
    let repeated = Error::new(error.kind(), error.to_string());
    match error.advice() {
        Some(advice) => repeated.advise(advice),
        None => repeated,
    }
}

pub(super) fn lock(marks: &Mutex<Marks>) -> MutexGuard<'_, Marks> {
    marks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// From here on no checkpoint writes to the state; one that waits for the disk is not waited for.
    pub(super) fn stop(&self) {
        lock(&self.marks).is_stopped = true;
        self.wake.notify_all();
    }

    /// Returns when no checkpoint runs.
    pub(super) fn wait_for_checkpoint(&self) {
        drop(self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes what is marked durable. After a failure only what was durable before counts.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut marks = lock(&self.marks);
            marks.check_failure()?;
            if marks.unchecked == 0 || marks.is_stopped {
                return Ok(());
            }
            marks.unchecked = 0;
            marks.pending = Some(marks.marked.clone());
        }
        let outcome = self.make_durable();
        if let Err(error) = &outcome {
            self.fall_back(error);
        }
        outcome
    }

    pub(super) fn make_durable(&self) -> Result<()> {
        let failed = |error: io::Error| self.destination.failed("write", error);
        self.data.sync_data().map_err(failed)?;
        self.state.sync_data().map_err(failed)?;
        // The names too: a file that cannot be found again is no use.
        rustix::fs::fsync(&self.destination.directory).map_err(|error| failed(error.into()))?;
        {
            let mut marks = lock(&self.marks);
            if marks.is_stopped {
                return Ok(());
            }
            if let Some(pending) = marks.pending.take() {
                self.state.write_all_at(&pending.0, self.layout.durable_at).map_err(failed)?;
                marks.durable = pending;
            }
        }
        self.state.sync_data().map_err(failed)
    }

    /// Forgets every mark that is not durable, here and in the state file: its data may be gone from the page cache
    /// and not be on the disk.
    pub(super) fn fall_back(&self, failure: &Error) {
        let mut marks = lock(&self.marks);
        marks.failure = Some(again(failure));
        marks.pending = None;
        if marks.is_over {
            return;
        }
        if marks.is_released {
            // The delivery was dropped while the disk was waited for. If nobody has gone on with it, the state is void.
            if self.state.try_lock().is_ok() {
                let _ = self.state.set_len(0);
                let _ = self.state.unlock();
            }
            return;
        }
        marks.marked = marks.durable.clone();
        if !self.write_marks(&marks) {
            // Marks that cannot be taken back must not be found: a state file of another length is void.
            let _ = self.state.set_len(0);
        }
    }

    /// Leaves in the state file the marks that are left, for good; `false` if that fails.
    pub(super) fn write_marks(&self, marks: &Marks) -> bool {
        let written = self.state.write_all_at(&marks.marked.0, self.layout.marked_at);
        written.is_ok() && self.state.sync_data().is_ok()
    }

    /// A unit was marked: with enough of them a checkpoint begins before its time.
    pub(super) fn count_unchecked(&self, marks: &mut Marks) {
        marks.unchecked += 1;
        if marks.unchecked == UNCHECKED_UNITS_MAX {
            self.wake.notify_all();
        }
    }

    /// A small object that arrives at once needs no thread of its own.
    pub(super) fn is_worth_checkpoints(&self) -> bool {
        self.geometry.units() > UNCHECKED_UNITS_MAX || self.opened.elapsed() >= self.interval
    }

    /// Body of the checkpoint thread.
    pub(super) fn keep_checkpointing(&self) {
        loop {
            let marks = lock(&self.marks);
            let (marks, _) = self
                .wake
                .wait_timeout_while(marks, self.interval, |marks| {
                    !marks.is_stopped && marks.unchecked < UNCHECKED_UNITS_MAX
                })
                .unwrap_or_else(PoisonError::into_inner);
            if marks.is_stopped {
                return;
            }
            drop(marks);
            if self.checkpoint().is_err() {
                // The marks remember it: the next mark, or the finish, reports it.
                return;
            }
        }
    }
}
