//! Where cuts of files are made at the sender of a tree: on a thread of their own, beside the contents, because a file takes as long to
//! cut as it takes to read. The answers leave over the channel of the copy between two frames of whatever else leaves there.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dray_core::limits::{TREE_CUT_PULLS_MAX, TREE_CUTS_MAX};
use dray_core::message::Fault;
use dray_core::tree::{RECORD_HEAD_BYTES, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeSent};

use super::frames::Frames;
use super::send::{RecordSink, SendError, TreeFile};
use crate::transport::Wake;

/// Bytes of answers that may wait to leave; one frame more.
const WAITING_BYTES: usize = 256 * 1024;

/// The desk of one copy.
pub(super) struct Desk<'a> {
    inner: Mutex<Inner>,
    changed: Condvar,
    wake: &'a Wake,
}

#[derive(Default)]
struct Inner {
    jobs: VecDeque<(Owed, Arc<dyn TreeFile>)>,
    is_answering: bool,
    /// Frames that are to leave.
    out: Vec<u8>,
    sent: TreeSent,
    is_closed: bool,
}

fn closed() -> Error {
    Error::new(ErrorKind::Interrupted, "nobody waits for it")
}

impl<'a> Desk<'a> {
    /// `wake` is signalled when something is to leave.
    pub(super) fn new(wake: &'a Wake) -> Desk<'a> {
        Desk { inner: Mutex::default(), changed: Condvar::new(), wake }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More is to be cut. `Protocol` if that is more than may be under way.
    pub(super) fn push(&self, jobs: impl Iterator<Item = (Owed, Arc<dyn TreeFile>)>) -> Result<()> {
        let mut inner = self.lock();
        inner.jobs.extend(jobs);
        let pulls = inner.jobs.iter().filter(|(owed, _)| owed.is_last).count();
        if inner.jobs.len() > TREE_CUTS_MAX || pulls > TREE_CUT_PULLS_MAX {
            return Err(Error::new(
                ErrorKind::Protocol,
                "receiver asked for more cuts than may be under way",
            ));
        }
        self.changed.notify_all();
        Ok(())
    }

    /// What is to leave now: whole frames.
    pub(super) fn take(&self) -> Vec<u8> {
        let out = std::mem::take(&mut self.lock().out);
        if !out.is_empty() {
            self.changed.notify_all();
        }
        out
    }

    /// What left, and how much is owed.
    pub(super) fn account(&self) -> (TreeSent, u64) {
        let inner = self.lock();
        (inner.sent, inner.jobs.len() as u64 + u64::from(inner.is_answering))
    }

    /// The copy is over.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Cuts what is asked for until the copy is over.
    pub(super) fn serve(&self) {
        let mut answer = Answer { desk: self, frames: Frames::default() };
        while let Some((owed, file)) = self.next() {
            answer.frames.request = owed.request;
            if answer.answer(&owed, &*file).is_err() {
                return;
            }
        }
    }

    /// The next job, waited for; `None` once the copy is over.
    fn next(&self) -> Option<(Owed, Arc<dyn TreeFile>)> {
        let mut inner = self.lock();
        loop {
            if inner.is_closed {
                return None;
            }
            if let Some(job) = inner.jobs.pop_front() {
                inner.is_answering = true;
                return Some(job);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The answer on its way.
struct Answer<'a> {
    desk: &'a Desk<'a>,
    frames: Frames,
}

impl Answer<'_> {
    fn answer(&mut self, owed: &Owed, file: &dyn TreeFile) -> Result<()> {
        let failed = match file.cut(owed, self) {
            Ok(()) => None,
            Err(SendError::Channel(error)) => return Err(error),
            Err(SendError::File(error)) => Some(Record::Failed(Fault::from_error(None, &error))),
        };
        if let Some(Err(SendError::Channel(error) | SendError::File(error))) =
            failed.map(|failed| self.record(&failed))
        {
            return Err(error);
        }
        if owed.is_last {
            self.frames.end_request();
        }
        {
            // Before it leaves: the receiver may answer sooner than this thread goes on.
            let mut inner = self.desk.lock();
            inner.is_answering = false;
            inner.sent.cut();
        }
        self.flush()
    }

    /// Hands over what there is, once there is room for it.
    fn flush(&mut self) -> Result<()> {
        self.frames.end();
        let is_full = |inner: &mut Inner| inner.out.len() > WAITING_BYTES && !inner.is_closed;
        let inner = self.desk.changed.wait_while(self.desk.lock(), is_full);
        let mut inner = inner.unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed {
            return Err(closed());
        }
        inner.out.append(&mut self.frames.out);
        drop(inner);
        self.desk.wake.signal();
        Ok(())
    }
}

impl RecordSink for Answer<'_> {
    fn bytes(&mut self, _: usize, _: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize, SendError> {
        Err(SendError::Channel(Error::new(ErrorKind::Internal, "bytes in the answer to a cut")))
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        let mut bytes = Vec::with_capacity(64);
        record.push(&mut bytes);
        if self.frames.is_full_for(bytes.len().max(RECORD_HEAD_BYTES)) {
            self.flush().map_err(SendError::Channel)?;
        }
        self.frames.record(&bytes);
        Ok(())
    }

    fn work(&mut self) -> Result<(), SendError> {
        if self.desk.lock().is_closed { Err(SendError::Channel(closed())) } else { Ok(()) }
    }
}
