//! What `tree` says beyond a copy when a destination is brought to the state of its source (feature `sync`).
//! The prose is "Synchronising" in `docs/protocol/peer.md`.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::Result;
use crate::limits::{
    PATH_BYTES_MAX, SYNC_BASES_MAX, SYNC_PLACES_MAX, SYNC_RULE_BYTES_MAX, SYNC_RULES_BYTES_MAX,
    SYNC_RULES_MAX, SYNC_SUFFIX_BYTES_MAX, SYNC_TIMEOUT_MAX_S, TREE_BATCH_ITEMS_MAX, TREE_PULL_RUNS_MAX,
    TREE_WANTED_MAX,
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
    /// Where something is deleted or leaves its source: directories of the near end, its sources or its destination.
    #[n(3)]
    pub near: Option<Box<Near>>,
    /// What is replaced or deleted is kept (feature `sync-backup`).
    #[n(4)]
    pub backup: Option<Box<Backup>>,
    /// Directories of the receiver's that may have what is to come (feature `sync-basis`).
    #[n(5)]
    pub basis: Option<Box<Basis>>,
    /// Contents of files with more bytes do not come (feature `sync-more`).
    #[n(6)]
    pub max_size_bytes: Option<u64>,
    /// Nor those of files with fewer (feature `sync-more`).
    #[n(7)]
    pub min_size_bytes: Option<u64>,
    /// Seconds of silence after which either end gives the other up, 0 for never (feature `sync-timeout`); absent: a minute.
    #[n(8)]
    pub timeout_s: Option<u64>,
    /// Kinds, owners and bits are in attributes (feature `sync-fake-super`).
    #[n(9)]
    pub fake: Option<FakeWish>,
}

/// Where kinds, owners and bits are in attributes, as rsync's `--fake-super` keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum FakeWish {
    /// At each end that is not root.
    #[n(1)]
    Users,
    /// At the sender, whoever it is.
    #[n(2)]
    Sender,
    /// At the receiver, whoever it is.
    #[n(3)]
    Receiver,
    /// At both ends, whoever they are.
    #[n(4)]
    Both,
}

/// Directories that may have what is to come.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Basis {
    /// What for.
    #[n(0)]
    pub usage: BasisUsage,
    /// Which, in the order in which they are asked; a relative path begins in the destination.
    #[n(1)]
    pub places: Vec<ByteVec>,
}

/// What becomes of an entry that another directory has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum BasisUsage {
    /// It is left out.
    #[n(1)]
    Compare,
    /// It is copied.
    #[n(2)]
    Copy,
    /// It is linked.
    #[n(3)]
    Link,
}

/// Where what is replaced or deleted is kept.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Backup {
    /// Below this directory of the receiver's, under its path in the destination, where a relative path begins; else beside its place.
    #[n(0)]
    pub directory: Option<ByteVec>,
    /// What its name ends with; not empty without a directory.
    #[n(1)]
    pub suffix: ByteVec,
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
    /// Where times are kept, not those of directories (feature `sync-more`).
    pub const OMIT_DIRECTORY_TIMES: u64 = 1 << 19;
    /// Nor those of symbolic links (feature `sync-more`).
    pub const OMIT_LINK_TIMES: u64 = 1 << 20;
    /// Make the directories above the destination, too (feature `sync-more`).
    pub const MAKE_PATH: u64 = 1 << 21;
    /// The sender leaves out directories in which there is nothing but such (feature `sync-more`).
    pub const PRUNE_EMPTY: u64 = 1 << 22;
    /// What came of large files before a run is cut off waits for the next one (feature `sync-more`).
    pub const PARTIAL: u64 = 1 << 23;
    /// Directories are told, and what is in them only of sources whose entries go into the destination itself (feature `sync-dirs`).
    pub const DIRECTORIES: u64 = 1 << 24;
    /// Entries that are no directories leave the source once they are in place (feature `sync-remove`).
    pub const REMOVE_SOURCES: u64 = 1 << 25;
    /// The destination is made anew beside itself, and the two are switched at once (feature `sync-atomic`).
    pub const ATOMIC: u64 = 1 << 26;
    /// Files that the receiver has are changed, not replaced (feature `sync-in-place`).
    pub const IN_PLACE: u64 = 1 << 27;
    /// All that there are.
    pub const ALL: u64 = (1 << 28) - 1;
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

/// What the receiver has in place, durably and with the content that the sender has (feature `sync-remove`): entries that are no directories.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct InPlace {
    /// Entries told, ascending.
    #[n(0)]
    pub runs: Vec<InPlaceRun>,
    /// What lies below this number and was in no such message is not in place, and will not be said to be.
    #[n(1)]
    pub settled: u64,
    /// Nothing of the sort comes after it.
    #[n(2)]
    pub is_last: bool,
}

/// Entries in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct InPlaceRun {
    /// Number of the first.
    #[n(0)]
    pub first: u64,
    /// How many, 1 to 16,384.
    #[n(1)]
    pub count: u64,
}

/// The sender's answer to each [`InPlace`], once it has removed what may go (feature `sync-remove`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Removed {
    /// Entries that are gone.
    #[n(0)]
    pub count: u64,
    /// To the last one.
    #[n(1)]
    pub is_last: bool,
}

impl InPlace {
    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        check(self.runs.len() <= TREE_PULL_RUNS_MAX, "too many runs")?;
        let is_run = |run: &InPlaceRun| matches!(run.count, 1..=TREE_WANTED_MAX);
        check(self.runs.iter().all(is_run), "an impossible run")
    }
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
        let is_path = |path: &ByteVec| matches!(path.len(), 1..=PATH_BYTES_MAX) && !path.contains(&0);
        if let Some(basis) = &self.basis {
            let is_right =
                matches!(basis.places.len(), 1..=SYNC_BASES_MAX) && basis.places.iter().all(is_path);
            check(is_right, "impossible directories to look in")?;
        }
        if let Some(backup) = &self.backup {
            check(backup.directory.as_ref().is_none_or(is_path), "an impossible directory of backups")?;
            let is_name = !backup.suffix.iter().any(|byte| matches!(byte, b'/' | 0));
            let is_enough = backup.directory.is_some() || !backup.suffix.is_empty();
            check(
                is_name && is_enough && backup.suffix.len() <= SYNC_SUFFIX_BYTES_MAX,
                "an impossible suffix",
            )?;
        }
        check(self.timeout_s.is_none_or(|seconds| seconds <= SYNC_TIMEOUT_MAX_S), "an impossible time-out")?;
        check(self.flags & !sync_flag::ALL == 0, "an unknown wish")
    }
}

impl Listed {
    pub(super) fn bound(&self, check: super::tree::Check<'_>) -> Result<()> {
        check(self.unlisted.len() <= TREE_BATCH_ITEMS_MAX, "too many directories")
    }
}
