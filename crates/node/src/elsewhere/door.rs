//! Who has the chunk index, and how it is asked: for a time that is known before, whoever it is.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use dray_client::Client;
use dray_client::types::{IndexAnswer, IndexQuestion};
use dray_core::{Error, ErrorKind, Result};

/// Questions to the index in this process that have no answer yet: whoever gave one up leaves its thread behind until then.
pub(super) const ASKING_MAX: usize = 64;
/// How often who waits for an answer looks whether it still should.
const INTERVAL: Duration = Duration::from_millis(50);

/// Whoever has the index.
#[derive(Clone, Debug, Default)]
pub(crate) enum Index {
    /// The user's daemon, if one runs.
    #[default]
    Daemon,
    /// This process.
    Here(Inside),
}

/// Answers questions to the chunk index. A disk may take any time for that.
pub(crate) trait Hints: Send + Sync + std::fmt::Debug {
    /// The answer to `question` about what is below `directory`; its descriptor does not count.
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer>;
}

/// The index of this process, asked on threads of their own.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    hints: Arc<dyn Hints>,
    asking: Arc<AtomicUsize>,
}

/// An open way to whoever has it.
#[derive(Debug)]
pub(super) enum Door {
    Daemon(Client),
    Inside(Inside),
}

impl Index {
    /// The one that `hints` has.
    pub(crate) fn here(hints: Arc<dyn Hints>) -> Index {
        Index::Here(Inside { hints, asking: Arc::default() })
    }

    /// The way there, if there is one that is found within `patience`.
    pub(super) fn door(&self, patience: Duration) -> Result<Option<Door>> {
        Ok(match self {
            Index::Here(inside) => Some(Door::Inside(inside.clone())),
            Index::Daemon => Client::connect_within(patience)?.map(Door::Daemon),
        })
    }
}

impl Door {
    /// The answer to `question` about what is below `directory`, after `patience` at the latest: `TimedOut`. `Interrupted` soon after
    /// `is_over` says so.
    pub(super) fn ask(
        &self,
        directory: BorrowedFd<'_>,
        question: IndexQuestion,
        patience: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<IndexAnswer> {
        match self {
            Door::Daemon(client) => client.ask_index(directory, question, patience, is_over),
            Door::Inside(inside) => inside.ask(directory, question, patience, is_over),
        }
    }
}

/// One thread that asks.
struct Asking(Arc<AtomicUsize>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Inside {
    fn ask(
        &self,
        directory: BorrowedFd<'_>,
        question: IndexQuestion,
        patience: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<IndexAnswer> {
        let late = || Error::new(ErrorKind::TimedOut, format!("the chunk index is silent for {patience:?}"));
        let deadline = Instant::now() + patience;
        let asking = Asking(self.asking.clone());
        if self.asking.fetch_add(1, Ordering::AcqRel) >= ASKING_MAX {
            return Err(late());
        }
        let failed = |error| Error::file("ask the chunk index", error);
        let (directory, hints) = (directory.try_clone_to_owned().map_err(failed)?, self.hints.clone());
        let (sender, answers) = sync_channel(1);
        let ask = move || {
            let _asking = asking;
            // Nobody may wait for it any more.
            let _ = sender.send(hints.ask(directory.as_fd(), &question));
        };
        thread::Builder::new().name("index-question".into()).spawn(ask).map_err(failed)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left.min(INTERVAL)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, "the chunk index failed"));
                }
                Err(RecvTimeoutError::Timeout) if is_over() => {
                    return Err(Error::new(ErrorKind::Interrupted, "nobody waits for the chunk index"));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(late()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
