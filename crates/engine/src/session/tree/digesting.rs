//! What a sender has told of digests, and what the receiver may say to that. `docs/protocol/peer.md`, "Digests".

use dray_core::Result;
use dray_core::message::{DigestsSame, TreeDone};

use super::protocol;

/// How far a sender is with its digests.
#[derive(Debug, Default)]
pub(super) struct Digesting {
    /// The receiver said whether it wants any.
    has_word: bool,
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    count: usize,
    /// The roots of all sources are among them.
    has_roots: bool,
    is_answered: bool,
}

impl Digesting {
    /// The receiver says whether it wants digests: once.
    pub(super) fn handle_wanted(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_word, true) {
            return Err(protocol("receiver says twice whether it wants digests"));
        }
        Ok(())
    }

    /// So many digests have left.
    pub(super) fn told(&mut self, count: usize, has_roots: bool) {
        self.told = Some(Told { count, has_roots, is_answered: false });
    }

    /// True while nothing may be told because the receiver has not answered.
    pub(super) fn is_waiting(&self) -> bool {
        self.told.as_ref().is_some_and(|told| !told.is_answered)
    }

    /// The receiver says which are the same.
    pub(super) fn handle_same(&mut self, same: &DigestsSame) -> Result<()> {
        match self.told.as_mut().filter(|told| !told.is_answered) {
            Some(told) if same.bits(told.count).is_some() => {
                told.is_answered = true;
                Ok(())
            }
            Some(_) => Err(protocol("receiver answered another number of digests than it was told")),
            None => Err(protocol("receiver answered digests that it was not told")),
        }
    }

    /// The receiver is done where it should answer: so everything is the same. `Protocol` if it cannot be.
    pub(super) fn handle_done(&self, done: &TreeDone) -> Result<()> {
        match &self.told {
            Some(told) if told.has_roots && *done == TreeDone::default() => Ok(()),
            _ => Err(protocol("receiver ended at digests that do not tell everything")),
        }
    }
}
