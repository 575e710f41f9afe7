//! What `tree` says beyond a copy when a destination is brought to the state of its source (feature `sync`).
//! The prose is "Synchronising" in `docs/protocol/peer.md`.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::Result;
use crate::limits::{
    SYNC_PLACES_MAX, SYNC_RULE_BYTES_MAX, SYNC_RULES_BYTES_MAX, SYNC_RULES_MAX, TREE_BATCH_ITEMS_MAX,
};

/// How a destination is brought to the state of its source.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct SyncWish {
    /// Sum of the [`sync_flag`]s; unknown ones are refused.
    #[n(0)]
    pub flags: u64,
    /// Rules of what is left out and protected, in the order in which they are asked: `+` or `-`, then a pattern; with the feature `sync-rules`
    /// also `=` or `:`, modifiers, a space, and a pattern or the name of a file of rules.
    #[n(1)]
    pub rules: Option<Vec<ByteVec>>,
    /// Entries that may be deleted.
    #[n(2)]
    pub max_delete: Option<u64>,
    /// Where something is deleted: directories of the near end, its sources or its destination.
    #[n(3)]
    pub near: Option<Box<Near>>,
}

/// Directories of the near end, which the far one may find among its own if both are one machine.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Near {
    /// The running system: 16 bytes that no other one has.
    #[n(0)]
    pub boot: ByteVec,
    /// What they are.
    #[n(1)]
    pub places: Vec<Place>,
}

/// A directory of a running system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Place {
    /// Its file system, as `stat` has it.
    #[n(0)]
    pub device: u64,
    /// Its inode.
    #[n(1)]
    pub inode: u64,
}

/// Bits of [`SyncWish::flags`].
pub mod sync_flag {
    /// Keep symbolic links.
    pub const LINKS: u64 = 1;
    /// Keep devices.
    pub const DEVICES: u64 = 1 << 1;
    /// Keep fifos and sockets.
    pub const SPECIALS: u64 = 1 << 2;
    /// Of owners, keep users.
    pub const USERS: u64 = 1 << 3;
    /// Of owners, keep groups.
    pub const GROUPS: u64 = 1 << 4;
    /// Of extended attributes, keep ACLs.
    pub const ACLS: u64 = 1 << 5;
    /// Of extended attributes, keep those that are no ACLs.
    pub const ATTRIBUTES: u64 = 1 << 6;
    /// Compare files of the same size by their bytes, whatever their times say.
    pub const CHECKSUM: u64 = 1 << 7;
    /// Files of the same size are the same.
    pub const SIZE_ONLY: u64 = 1 << 8;
    /// Files that are newer at the receiver stay.
    pub const UPDATE: u64 = 1 << 9;
    /// Make nothing that is not there.
    pub const EXISTING: u64 = 1 << 10;
    /// Leave what is there as it is.
    pub const IGNORE_EXISTING: u64 = 1 << 11;
    /// Delete what the source has not.
    pub const DELETE: u64 = 1 << 12;
    /// And what the rules leave out.
    pub const DELETE_EXCLUDED: u64 = 1 << 13;
    /// Say what was done with each entry, too.
    pub const ITEMIZE: u64 = 1 << 14;
    /// Send a content that may differ, without comparing first.
    pub const NO_COMPARING: u64 = 1 << 15;
    /// The destination's name ends with a slash, so it is a directory.
    pub const INTO_DIRECTORY: u64 = 1 << 16;
    /// Of each source only what a list names, with the directories on the way (feature `sync-list`). A sender that is asked hears the list
    /// in [`MoreSources`](super::super::MoreSources), after the sources.
    pub const CHOSEN: u64 = 1 << 17;
    /// What the sources go into keeps its bits, owner and times (feature `sync-list`).
    pub const ROOTS_STAY: u64 = 1 << 18;
    /// All that there are.
    pub const ALL: u64 = (1 << 19) - 1;
}

/// What a sender says of how far it looked, with a batch of entries.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct Listed {
    /// Positions in the batch of directories whose entries were not looked at, ascending.
    #[n(0)]
    pub unlisted: Vec<u16>,
    /// With the last batch: all that there is was listed, and could be read as far as it was.
    #[n(1)]
    pub is_complete: bool,
}

impl SyncWish {
    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        let rules = self.rules.as_deref().unwrap_or_default();
        let bytes: usize = rules.iter().map(|rule| rule.len()).sum();
        check(rules.len() <= SYNC_RULES_MAX && bytes <= SYNC_RULES_BYTES_MAX, "too many rules")?;
        let is_rule = |rule: &ByteVec| matches!(rule.len(), 2..=SYNC_RULE_BYTES_MAX);
        check(rules.iter().all(is_rule), "an impossible rule")?;
        if let Some(near) = &self.near {
            let is_known = near.boot.len() == 16 && near.places.len() <= SYNC_PLACES_MAX;
            check(is_known, "impossible directories of the near end")?;
        }
        check(self.flags & !sync_flag::ALL == 0, "an unknown wish")
    }
}

impl Listed {
    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        check(self.unlisted.len() <= TREE_BATCH_ITEMS_MAX, "too many directories")
    }
}
