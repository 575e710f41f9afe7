//! Messages of a tree copy (feature `tree`): what is wanted, entries in batches, pulls for contents, failures and the end.
//! The prose is "Copying trees" in `docs/protocol/peer.md`.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};

use crate::Result;
use crate::limits::{
    NAME_BYTES_MAX, OBJECT_BYTES_MAX, PATH_BYTES_MAX, TEXT_BYTES_MAX, TREE_BATCH_BYTES_MAX,
    TREE_BATCH_ITEMS_MAX, TREE_BATCHES_MAX, TREE_EXCLUDES_MAX, TREE_NAMED_MAX, TREE_PULL_RUNS_MAX,
    TREE_SOURCES_IN_MESSAGE_MAX, TREE_WANTED_MAX,
};

use super::{BlockSums, CopyRole, Listed, SyncWish};
use crate::block_mask::{BlockMask, Have};
use crate::tree::cut_profile;

/// First message of a tree copy after the hellos: what the near end wants the far end to do.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Tree {
    /// What the far end is to do.
    #[n(0)]
    pub role: CopyRole,
    /// Where the far end writes, if it receives: one path. What it reads, if it sends: one or more. Any bytes, relative to the home
    /// directory.
    #[n(1)]
    pub paths: Vec<ByteVec>,
    /// If the far end receives: the name under which each source goes into a directory; empty for one whose entries go
    /// into the destination itself.
    #[n(2)]
    pub names: Vec<ByteVec>,
    /// Sum of the [`tree_flag`]s; unknown ones are ignored.
    #[n(3)]
    pub flags: u64,
    /// Patterns of what the sender leaves out.
    #[n(4)]
    pub excludes: Option<Vec<ByteVec>>,
    /// Changes of permission bits that the receiver makes, as `rsync --chmod` writes them.
    #[n(5)]
    pub modes: Option<ByteVec>,
    /// `USER:GROUP` that the receiver gives everything to, either part empty to leave it.
    #[n(6)]
    pub owner: Option<ByteVec>,
    /// Bytes a second that the sender may send.
    #[n(7)]
    pub rate_bytes: Option<u64>,
    /// The destination is brought to the state of the source, not just added to (feature `sync`).
    #[n(8)]
    pub sync: Option<Box<SyncWish>>,
    /// If the far end receives a single source that may take the destination's own name: a hash that knows this source of this near
    /// end (feature `tree-again`).
    #[n(9)]
    pub origin: Option<Box<ByteArray<32>>>,
    /// If the far end receives: the near end can tell digests, and waits for `digests-wanted` before it tells much. If it sends: it is to
    /// tell digests before its entries (feature `tree-digests`).
    #[n(10)]
    pub digests: Option<bool>,
}

/// What a tree copy keeps and does, as bits of [`Tree::flags`].
pub mod tree_flag {
    /// Go into directories.
    pub const RECURSIVE: u64 = 1;
    /// Keep modification times.
    pub const TIMES: u64 = 1 << 1;
    /// Keep permission bits for reading, writing and running.
    pub const MODES: u64 = 1 << 2;
    /// Keep setuid, setgid and the sticky bit too.
    pub const SPECIAL_MODES: u64 = 1 << 3;
    /// Keep owner and group as far as the receiver may.
    pub const OWNERS: u64 = 1 << 4;
    /// Keep the numbers of owners, not their names.
    pub const NUMERIC_IDS: u64 = 1 << 5;
    /// Keep extended attributes, and ACLs with them.
    pub const XATTRS: u64 = 1 << 6;
    /// Keep hard links.
    pub const HARD_LINKS: u64 = 1 << 7;
    /// Copy devices, fifos and sockets.
    pub const SPECIALS: u64 = 1 << 8;
    /// Stay on the file system of each source.
    pub const ONE_FILE_SYSTEM: u64 = 1 << 9;
    /// Send every content, whatever is there.
    pub const WHOLE_FILE: u64 = 1 << 10;
    /// Make everything durable before reporting done.
    pub const FSYNC: u64 = 1 << 11;
    /// The destination must be a directory.
    pub const INTO_DIRECTORY: u64 = 1 << 12;
    /// A source that is a symbolic link stands for what it points to.
    pub const FOLLOW_SOURCES: u64 = 1 << 13;
    /// Change nothing: the receiver says what it would do.
    pub const DRY_RUN: u64 = 1 << 14;
    /// Paths of the sender may be patterns: it says first what they stand for.
    pub const PATTERNS: u64 = 1 << 15;
    /// Everything that the sender says after this is compressed.
    pub const COMPRESSED: u64 = 1 << 16;
    /// More sources follow in [`MoreSources`](super::MoreSources).
    pub const MORE_SOURCES: u64 = 1 << 17;
}

/// A batch of the sender's entries, in the order of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Entries {
    /// Encoded items ([`crate::tree::Item`]), at most 1,024.
    #[n(0)]
    pub items: Vec<ByteVec>,
    /// Names of owners and groups whose numbers come for the first time; absent if there are none.
    #[n(1)]
    pub owners: Option<Vec<Owner>>,
    /// Nothing comes after it.
    #[n(2)]
    pub is_last: bool,
    /// How far the sender looked (feature `sync`).
    #[n(3)]
    pub listed: Option<Listed>,
}

/// The name of a user or group on the sender's host.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Owner {
    /// A group, not a user.
    #[n(0)]
    pub is_group: bool,
    /// Its number.
    #[n(1)]
    pub id: u32,
    /// Its name, 1 to 255 bytes.
    #[n(2)]
    pub name: ByteVec,
}

/// The receiver asks for contents and grants more entries.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct Pull {
    /// Number of the request, new on this channel; 0 if nothing is asked for.
    #[n(0)]
    pub request: u32,
    /// Entries whose content is wanted: told, not settled and not asked for before.
    #[n(1)]
    pub runs: Vec<Run>,
    /// Entries below this number are not asked for any more.
    #[n(2)]
    pub settled: u64,
    /// Batches of entries granted from the beginning of the copy, in all.
    #[n(3)]
    pub batches: u64,
    /// The direct connection over which the answer is to come; absent: this channel.
    #[n(4)]
    pub lane: Option<u32>,
    /// A direct connection from which nothing is awaited any more: what is owed over it need not leave.
    #[n(5)]
    pub lost: Option<u32>,
    /// Whether what leaves over `lane`, or this channel, may be packed from here on (feature `packed-tree`); absent: as before.
    #[n(6)]
    pub pack: Option<bool>,
    /// A content that has the hash `known` need not be answered with it.
    #[n(7)]
    pub brief: Option<bool>,
}

/// Entries in a row.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct Run {
    /// Number of the first.
    #[n(0)]
    pub first: u64,
    /// How many, 1 at least.
    #[n(1)]
    pub count: u64,
    /// Hash of what the receiver has of this one entry: if it is the sender's too, the content need not come.
    #[n(2)]
    pub known: Option<ByteArray<32>>,
    /// Not all of this one entry, but a part.
    #[n(3)]
    pub part: Option<Part>,
    /// Not the bytes of the part, but the chunks that it is cut into with this average length in bytes, a power of two.
    #[n(4)]
    pub cut: Option<u32>,
    /// Not the bytes of this one entry, but sums of these blocks of it.
    #[n(5)]
    pub sums: Option<Box<BlockSums>>,
    /// Of the part, which has 64 KiB at most, the receiver has these blocks: only the others come.
    #[n(6)]
    pub have: Option<Box<BlockMask>>,
    /// And of these, all but the fields of code: only those come, behind everything else (feature `tree-code`).
    #[n(7)]
    pub code: Option<Box<BlockMask>>,
}

impl Run {
    /// What the receiver has of the part.
    pub fn has(&self) -> Option<Have> {
        let blocks = *self.have.as_deref()?;
        Some(Have { blocks, code: self.code.as_deref().copied().unwrap_or_default() })
    }

    /// Says what the receiver has of the part.
    pub fn with(self, have: &Have) -> Run {
        let code = (!have.code.is_empty()).then(|| Box::new(have.code));
        Run { have: Some(Box::new(have.blocks)), code, ..self }
    }
}

/// Bytes in a row of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Part {
    /// Offset of the first.
    #[n(0)]
    pub start: u64,
    /// How many, 1 at least.
    #[n(1)]
    pub bytes: u64,
}

impl Part {
    /// Offset behind the last.
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// An entry that could not be read or written, or only in part; everything else goes on.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct EntryFailed {
    /// Which, for people.
    #[n(0)]
    pub path: ByteVec,
    /// [`crate::ErrorKind::wire_code`].
    #[n(1)]
    pub kind: u8,
    /// What failed and why, for people.
    #[n(2)]
    pub text: String,
    /// Absent: `path` failed. Else so many entries, which are not named, failed for this reason.
    #[n(3)]
    pub unnamed: Option<u64>,
    /// Nothing failed: of so many entries something was left out that this user cannot have there, as anybody would expect.
    #[n(4)]
    pub left_out: Option<u64>,
}

impl EntryFailed {
    /// How many entries it says have failed.
    pub fn count(&self) -> u64 {
        if self.left_out.is_some() { 0 } else { self.unnamed.unwrap_or(1) }
    }
}

/// What the receiver would do, in a run that changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Planned {
    /// In the order of the entries.
    #[n(0)]
    pub items: Vec<PlannedItem>,
}

/// What would become of one entry.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct PlannedItem {
    /// 0 it would be made, 1 replaced, 2 compared first, 3 it stays and its metadata is brought up to date; with the feature `sync` also
    /// 4 it would be deleted. Where it is no dry run, the same was done.
    #[n(0)]
    pub action: u8,
    /// Path below the destination.
    #[n(1)]
    pub path: ByteVec,
    /// What of the metadata, with action 3: the sum of 1 permission bits, 2 owner or group, 4 modification time, 8 extended
    /// attributes or ACLs.
    #[n(2)]
    pub changes: Option<u8>,
    /// What rsync writes for it (`%i`): 11 bytes (feature `sync`).
    #[n(3)]
    pub letters: Option<ByteVec>,
    /// Where a symbolic link points, or the first name of a hard link.
    #[n(4)]
    pub link: Option<ByteVec>,
}

/// Where the tree of the only source landed; said once its root came, to a near end that told an `origin` (feature `tree-again`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Landed {
    /// 0 in a destination that was there, or as a file; 1 under the destination's own name, which was made and marked; 2 the same where no
    /// mark can be kept; 3 under that name, which an earlier copy of the same source had made and not brought to its end. Read any other as 0.
    #[n(0)]
    pub place: u8,
}

/// What the patterns among the sender's paths stand for.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Sources {
    /// Each source in turn: which of the paths it comes from, ascending, and its name there.
    #[n(0)]
    pub found: Vec<FoundSource>,
    /// Nothing comes after it.
    #[n(1)]
    pub is_last: bool,
}

/// Sources of a [`Tree`] for which it had no room.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct MoreSources {
    /// To be appended to [`Tree::paths`].
    #[n(0)]
    pub paths: Vec<ByteVec>,
    /// To be appended to [`Tree::names`].
    #[n(1)]
    pub names: Vec<ByteVec>,
    /// Nothing comes after it.
    #[n(2)]
    pub is_last: bool,
}

/// A source that the sender found.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct FoundSource {
    /// Which path of [`Tree::paths`].
    #[n(0)]
    pub path: u32,
    /// The last component of what it stands for.
    #[n(1)]
    pub name: ByteVec,
}

/// The receiver is done with everything it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct TreeDone {
    /// Entries told.
    #[n(0)]
    pub entries: u64,
    /// Files whose content came.
    #[n(1)]
    pub files: u64,
    /// Files that were left as they were, or whose content was found the same.
    #[n(2)]
    pub unchanged: u64,
    /// Bytes of content that came, holes not counted.
    #[n(3)]
    pub bytes: u64,
    /// Entries that failed at the receiver.
    #[n(4)]
    pub failed: u64,
}

pub(super) type Check<'a> = &'a dyn Fn(bool, &str) -> Result<()>;

impl Tree {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        let fits = |list: &[ByteVec], max| list.iter().all(|bytes| bytes.len() <= max);
        check(matches!(self.paths.len(), 1..=TREE_SOURCES_IN_MESSAGE_MAX), "no path or too many")?;
        check(fits(&self.paths, PATH_BYTES_MAX), "too long a path")?;
        check(self.names.len() <= TREE_SOURCES_IN_MESSAGE_MAX, "too many names")?;
        check(fits(&self.names, NAME_BYTES_MAX), "too long a name")?;
        let excludes = self.excludes.as_deref().unwrap_or_default();
        check(excludes.len() <= TREE_EXCLUDES_MAX, "too many patterns")?;
        check(fits(excludes, NAME_BYTES_MAX), "too long a pattern")?;
        let words = [&self.modes, &self.owner];
        check(
            words.iter().all(|word| word.as_ref().is_none_or(|word| word.len() <= NAME_BYTES_MAX)),
            "too long a change",
        )?;
        check(self.rate_bytes != Some(0), "a rate of nothing")?;
        self.sync.as_ref().map_or(Ok(()), |sync| sync.bound(check))
    }
}

impl MoreSources {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        let fits = |list: &[ByteVec], max| {
            list.len() <= TREE_SOURCES_IN_MESSAGE_MAX && list.iter().all(|bytes| bytes.len() <= max)
        };
        check(!self.paths.is_empty() || !self.names.is_empty(), "no more sources")?;
        check(fits(&self.paths, PATH_BYTES_MAX), "too long a path or too many")?;
        check(fits(&self.names, NAME_BYTES_MAX), "too long a name or too many")
    }
}

impl Planned {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        check(self.items.len() <= TREE_NAMED_MAX, "too many entries")?;
        check(self.items.iter().all(|item| item.path.len() <= TREE_BATCH_BYTES_MAX), "too long a path")?;
        let are_letters =
            |letters: &Option<ByteVec>| letters.as_ref().is_none_or(|letters| letters.len() == 11);
        check(self.items.iter().all(|item| are_letters(&item.letters)), "impossible letters")?;
        let is_link =
            |link: &Option<ByteVec>| link.as_ref().is_none_or(|link| link.len() <= TREE_BATCH_BYTES_MAX);
        check(self.items.iter().all(|item| is_link(&item.link)), "too long a link")
    }
}

impl Sources {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        check(self.found.len() <= TREE_NAMED_MAX, "too many sources")?;
        check(
            self.found.iter().all(|found| matches!(found.name.len(), 1..=NAME_BYTES_MAX)),
            "an impossible name",
        )
    }
}

impl Entries {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        check(self.items.len() <= TREE_BATCH_ITEMS_MAX, "too many entries")?;
        check(self.items.iter().all(|item| item.len() <= TREE_BATCH_BYTES_MAX), "too long an entry")?;
        let owners = self.owners.as_deref().unwrap_or_default();
        check(owners.len() <= 256, "too many owners")?;
        check(
            owners.iter().all(|owner| matches!(owner.name.len(), 1..=NAME_BYTES_MAX)),
            "an impossible owner",
        )?;
        self.listed.as_ref().map_or(Ok(()), |listed| listed.bound(check))
    }
}

impl Pull {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        check(self.runs.len() <= TREE_PULL_RUNS_MAX, "too many runs")?;
        let is_run = |run: &Run| matches!(run.count, 1..=TREE_WANTED_MAX);
        check(self.runs.iter().all(is_run), "an impossible run")?;
        let is_part =
            |part: &Part| part.start <= OBJECT_BYTES_MAX && matches!(part.bytes, 1..=OBJECT_BYTES_MAX);
        check(self.runs.iter().all(|run| run.part.as_ref().is_none_or(is_part)), "an impossible part")?;
        let is_cut = |cut: u32| cut_profile(cut).is_ok();
        check(self.runs.iter().all(|run| run.cut.is_none_or(is_cut)), "an impossible cut")?;
        self.runs.iter().filter_map(|run| run.sums.as_ref()).try_for_each(|sums| sums.bound(check))
    }
}

impl EntryFailed {
    pub(super) fn bound(&self, check: Check<'_>) -> Result<()> {
        check(self.path.len() <= PATH_BYTES_MAX, "too long a path")?;
        check(self.text.len() <= TEXT_BYTES_MAX, "too long a text")
    }
}

/// Most batches a receiver may grant ahead of those that came.
pub const BATCHES_AHEAD_MAX: u64 = TREE_BATCHES_MAX as u64;
