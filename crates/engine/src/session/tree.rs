//! State machines of a tree copy, one for each side: how many entries may be told, which contents may be asked for, over which
//! path, and what an answer may consist of. `docs/protocol/peer.md`, "Copying trees".

use std::sync::Arc;

use dray_core::block_mask::Have;
use dray_core::message::{BlockSums, Part, Pull};
use dray_core::{Error, ErrorKind};

mod digesting;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{PathId, Rest, TreeReceiver, Wanted, part_bytes};
pub use sender::{TreeLanes, TreeSender, TreeSent};

fn protocol(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

/// A content the sender owes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owed {
    /// Request that the answer belongs to.
    pub request: u32,
    /// Number of the entry.
    pub number: u64,
    /// What the receiver has of it.
    pub known: Option<[u8; 32]>,
    /// Not all of it.
    pub part: Option<Part>,
    /// Not the bytes of the part, but its chunks, of this average length.
    pub cut: Option<u32>,
    /// Not its bytes, but sums of these blocks.
    pub sums: Option<Arc<BlockSums>>,
    /// What the receiver has of the part.
    pub have: Option<Arc<Have>>,
    /// The request ends with it.
    pub is_last: bool,
    /// If the content is `known`, its hash need not be said.
    pub is_brief: bool,
}

impl Owed {
    /// Not a content is asked for, but something about one: how it is cut, or sums.
    pub fn is_question(&self) -> bool {
        self.cut.is_some() || self.sums.is_some()
    }

    /// What the runs of a pull ask for, in their order.
    pub fn of(pull: &Pull) -> Vec<Owed> {
        let (request, is_brief) = (pull.request, pull.brief == Some(true));
        let mut all: Vec<Owed> = pull
            .runs
            .iter()
            .flat_map(|run| {
                let known = run.known.map(|hash| *hash);
                let sums = run.sums.as_deref().cloned().map(Arc::new);
                let have = run.has().map(Arc::new);
                let owed = move |number| Owed {
                    request,
                    number,
                    known,
                    part: run.part,
                    cut: run.cut,
                    sums: sums.clone(),
                    have: have.clone(),
                    is_last: false,
                    is_brief,
                };
                (run.first..run.first + run.count).map(owed)
            })
            .collect();
        if let Some(last) = all.last_mut() {
            last.is_last = true;
        }
        all
    }
}
