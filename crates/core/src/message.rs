//! Control messages of the peer protocol. The prose, the order and the CDDL are in `docs/protocol/`.

use minicbor::{Decode, Encode};

use crate::limits::{
    COMPARED_SUBTREES_MAX, FEATURE_BYTES_MAX, FEATURES_MAX, HINT_URI_BYTES_MAX, HINTS_MAX, INLINE_BYTES_MAX,
    NAME_BYTES_MAX, OBJECT_BYTES_MAX, PATH_BYTES_MAX, RECIPE_NODE_BYTES_MAX, RECIPE_NODES_ASKED_MAX,
    SUMS_BYTES_MAX,
};
use crate::{Error, ErrorKind, Result, cbor};

mod copy;
mod digests;
mod object;
mod samples;
mod sync;
#[cfg(test)]
mod tests;
mod tree;

pub use copy::{Copy, CopyRole, Delivered, Direct, Offer, Progress};
pub use digests::{Digests, DigestsSame, DigestsWanted, SoleOwner};
pub use object::{
    BlockRun, BlockSums, Cancel, ClearAsk, ClearGrant, Compare, Compared, ComparedSubtree, Describe,
    Described, Fault, Fetch, FetchRest, Node, Nodes, ObjectName, Open, Opened, Pack, Seal, Sealed, Summed,
    Sums,
};
pub use samples::samples;
pub use sync::{
    Backup, Basis, BasisUsage, FakeWish, InPlace, InPlaceRun, Listed, Near, Place, Removed, SyncWish,
    sync_flag,
};
pub use tree::{
    BATCHES_AHEAD_MAX, Entries, EntryFailed, FoundSource, Landed, MoreSources, Owner, Part, Planned,
    PlannedItem, Pull, Run, Sources, Tree, TreeDone, tree_flag,
};

/// Version of the peer protocol. Peers of different versions refuse each other by name.
pub const PROTOCOL_VERSION: u16 = 1;

/// One control message, `[number, {…}]` on the wire.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
#[cbor(flat)]
pub enum Message {
    /// First message of each side.
    #[n(0)]
    Hello(#[n(0)] Hello),
    /// Receiver asks for an object and shows its right to it.
    #[n(1)]
    Open(#[n(0)] Open),
    /// Holder has it.
    #[n(2)]
    Opened(#[n(0)] Opened),
    /// Receiver asks for a subtree.
    #[n(3)]
    Fetch(#[n(0)] Fetch),
    /// Receiver no longer wants the rest of a request.
    #[n(4)]
    Cancel(#[n(0)] Cancel),
    /// Receiver has every byte of a provisional object and asks for its name.
    #[n(5)]
    Seal(#[n(0)] Seal),
    /// Holder's root of a provisional object.
    #[n(6)]
    Sealed(#[n(0)] Sealed),
    /// A failure of an object or of the connection; what concerns one request is a fault frame.
    #[n(7)]
    Fault(#[n(0)] Fault),
    /// Receiver asks for a clear-text data connection.
    #[n(8)]
    ClearAsk(#[n(0)] ClearAsk),
    /// Holder grants one: the token opens it, once.
    #[n(9)]
    ClearGrant(#[n(0)] ClearGrant),
    /// First message over ssh control: what the local command wants the remote one to do.
    #[n(10)]
    Copy(#[n(0)] Copy),
    /// The sending side of a copy describes its file.
    #[n(11)]
    Offer(#[n(0)] Offer),
    /// Where this side listens, and the secret that admits to it.
    #[n(12)]
    Direct(#[n(0)] Direct),
    /// The receiving side says how far it is.
    #[n(13)]
    Progress(#[n(0)] Progress),
    /// The receiving side has the file under its final name.
    #[n(14)]
    Delivered(#[n(0)] Delivered),
    /// Receiver, whose root is not the object's, asks for the holder's values below these subtrees.
    #[n(15)]
    Compare(#[n(0)] Compare),
    /// Holder's values.
    #[n(16)]
    Compared(#[n(0)] Compared),
    /// Receiver, which has something similar, asks for the object's recipe.
    #[n(17)]
    Describe(#[n(0)] Describe),
    /// Holder names the recipe, or says that there is none.
    #[n(18)]
    Described(#[n(0)] Described),
    /// Receiver asks for nodes of the recipe.
    #[n(19)]
    Nodes(#[n(0)] Nodes),
    /// One of them.
    #[n(20)]
    Node(#[n(0)] Node),
    /// Receiver says whether data may be packed.
    #[n(21)]
    Pack(#[n(0)] Pack),
    /// Receiver, which has something like the object, asks for sums of its blocks.
    #[n(22)]
    Sums(#[n(0)] Sums),
    /// Holder's sums.
    #[n(23)]
    Summed(#[n(0)] Summed),
    /// Receiver asks for what it lacks of a group.
    #[n(24)]
    FetchRest(#[n(0)] FetchRest),
    /// First message of a tree copy: what the local command wants the remote one to do.
    #[n(32)]
    Tree(#[n(0)] Tree),
    /// The sending side tells entries.
    #[n(33)]
    Entries(#[n(0)] Entries),
    /// The receiving side asks for contents and grants more entries.
    #[n(34)]
    Pull(#[n(0)] Pull),
    /// Either side could not read or write an entry.
    #[n(35)]
    EntryFailed(#[n(0)] EntryFailed),
    /// The receiving side of a tree copy is done.
    #[n(36)]
    TreeDone(#[n(0)] TreeDone),
    /// The receiving side says what it would do.
    #[n(40)]
    Planned(#[n(0)] Planned),
    /// The sending side says what the patterns among its paths stand for.
    #[n(41)]
    Sources(#[n(0)] Sources),
    /// The near end names more sources than the first message has room for.
    #[n(42)]
    MoreSources(#[n(0)] MoreSources),
    /// The receiving far end says where the tree of the only source landed.
    #[n(43)]
    Landed(#[n(0)] Landed),
    /// The receiving far end says whether it wants digests.
    #[n(44)]
    DigestsWanted(#[n(0)] DigestsWanted),
    /// The sending side tells digests of its directories.
    #[n(45)]
    Digests(#[n(0)] Digests),
    /// The receiving side says which of them it has, too.
    #[n(46)]
    DigestsSame(#[n(0)] DigestsSame),
    /// The receiving side says which entries are in place, so that they may leave their source.
    #[n(47)]
    InPlace(#[n(0)] InPlace),
    /// The sending side has removed those.
    #[n(48)]
    Removed(#[n(0)] Removed),
}

/// Feature names of this version.
pub mod feature {
    /// Clear-text data connections for proven objects.
    pub const CLEAR_DATA: &str = "clear-data";
    /// Recipes: `describe` and `nodes`.
    pub const RECIPE: &str = "recipe";
    /// Zeros that are data travel as runs, and what is nothing but zeros needs no pairs of its inside.
    pub const ZEROS: &str = "zeros";
    /// Data may be packed: `pack`, and packed frames.
    pub const PACKED: &str = "packed";
    /// Sums of blocks, and groups of which only a rest is sent: `sums` and `fetch-rest`.
    pub const RESTS: &str = "rests";
    /// Tree copies: `tree` and what follows it.
    pub const TREE: &str = "tree";
    /// Contents of trees over direct connections, and large ones in parts.
    pub const TREE_LANES: &str = "tree-lanes";
    /// Contents of trees may be packed: `pack` in `pull`, and packed frames.
    pub const PACKED_TREE: &str = "packed-tree";
    /// Trees brought to the state of their source: `sync` in `tree`.
    pub const SYNC: &str = "sync";
    /// And of what a list names alone: [`sync_flag::CHOSEN`].
    pub const SYNC_LIST: &str = "sync-list";
    /// And by rules for one end alone, negated ones, and those of files in the directories.
    pub const SYNC_RULES: &str = "sync-rules";
    /// And what is replaced or deleted is kept: `backup` in `sync`.
    pub const SYNC_BACKUP: &str = "sync-backup";
    /// And other directories may have what is to come: `basis` in `sync`.
    pub const SYNC_BASIS: &str = "sync-basis";
    /// And times left as they are, sizes, and directories without files or above the destination: flags from
    /// [`sync_flag::OMIT_DIRECTORY_TIMES`] on, and sizes in `sync`.
    pub const SYNC_MORE: &str = "sync-more";
    /// And of directories without what is in them: [`sync_flag::DIRECTORIES`].
    pub const SYNC_DIRS: &str = "sync-dirs";
    /// And what is in place leaves its source: [`sync_flag::REMOVE_SOURCES`], `in-place` and `removed`.
    pub const SYNC_REMOVE: &str = "sync-remove";
    /// And another patience: `timeout` in `sync`.
    pub const SYNC_TIMEOUT: &str = "sync-timeout";
    /// And kinds, owners and bits in attributes: `fake` in `sync`.
    pub const SYNC_FAKE_SUPER: &str = "sync-fake-super";
    /// And the destination is switched at once for one that is made beside it: [`sync_flag::ATOMIC`].
    pub const SYNC_ATOMIC: &str = "sync-atomic";
    /// And files that are there are changed, not replaced: [`sync_flag::IN_PLACE`].
    pub const SYNC_IN_PLACE: &str = "sync-in-place";
    /// Contents of trees as differences: cuts in `pull`.
    pub const TREE_DELTA: &str = "tree-delta";
    /// And sums of blocks of them, and parts of which only a rest is sent: `sums` and `have` in `pull`.
    pub const TREE_RESTS: &str = "tree-rests";
    /// And of code sums without its fields, and the fields alone.
    pub const TREE_CODE: &str = "tree-code";
    /// Copies that were cut off go on in the destination that they made: `origin` in `tree`, and `landed`.
    pub const TREE_AGAIN: &str = "tree-again";
    /// A content that was asked for with a hash may be asked for once more until it is settled.
    pub const TREE_COMPARED: &str = "tree-compared";
    /// What both ends have alike is not told: `digests` in `tree`, and the messages of digests.
    pub const TREE_DIGESTS: &str = "tree-digests";
    /// Directories that are shared as they are: `open` of one, and `tree` after it. Tickets of such require it, too.
    pub const LIVE_TREE: &str = "live-tree";
}

/// Version and features of a peer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the sender.
    #[n(0)]
    pub version: u16,
    /// What the sender can do.
    #[n(1)]
    pub features: Vec<String>,
    /// What the sender insists on.
    #[n(2)]
    pub required: Vec<String>,
    /// Program and version, for messages only.
    #[n(3)]
    pub agent: String,
}

impl Message {
    /// Deterministic CBOR of the message, below the control frame's limit by construction of its fields.
    pub fn to_bytes(&self) -> Vec<u8> {
        cbor::encode(self)
    }

    /// Decodes and bounds every field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Message> {
        let message: Message = cbor::decode(bytes, "control message")?;
        message.bound()?;
        Ok(message)
    }

    fn bound(&self) -> Result<()> {
        let check = |fits: bool, what: &str| {
            if fits {
                Ok(())
            } else {
                Err(Error::new(ErrorKind::Protocol, format!("control message has {what}")))
            }
        };
        match self {
            Message::Hello(hello) => {
                for list in [&hello.features, &hello.required] {
                    check(list.len() <= FEATURES_MAX, "too many features")?;
                    check(
                        list.iter().all(|name| name.len() <= FEATURE_BYTES_MAX),
                        "too long a feature name",
                    )?;
                }
                check(hello.agent.len() <= FEATURE_BYTES_MAX, "too long an agent name")
            }
            Message::Open(open) => check(
                open.proof.as_ref().is_none_or(|proof| proof.len() == 32),
                "a proof that is not 32 bytes",
            ),
            Message::Opened(opened) => {
                check(opened.size_bytes <= OBJECT_BYTES_MAX, "an impossible size")?;
                check(opened.name.as_ref().is_none_or(|name| name.len() <= NAME_BYTES_MAX), "too long a name")
            }
            Message::Fetch(fetch) => check(fetch.request != 0, "request number 0"),
            Message::FetchRest(fetch) => check(fetch.request != 0, "request number 0"),
            Message::Sums(sums) => sums.bound(&check),
            Message::Summed(summed) => check(summed.sums.len() <= SUMS_BYTES_MAX, "too many sums"),
            Message::Fault(fault) => fault.bound(),
            Message::ClearGrant(grant) => check(grant.token.len() == 16, "a token that is not 16 bytes"),
            Message::Copy(copy) => {
                check(copy.path.len() <= PATH_BYTES_MAX, "too long a path")?;
                check(copy.rate_bytes != Some(0), "a rate of nothing")
            }
            Message::Offer(offer) => {
                check(offer.size_bytes <= OBJECT_BYTES_MAX, "an impossible size")?;
                check(offer.name.len() <= NAME_BYTES_MAX, "too long a name")?;
                check(offer.mode <= 0o7777, "impossible permission bits")?;
                check(offer.mtime_ns < 1_000_000_000, "an impossible modification time")?;
                let inline = offer.inline.as_ref().map(|bytes| bytes.len());
                check(inline.is_none_or(|len| len <= INLINE_BYTES_MAX), "too much inline data")?;
                check(
                    inline.is_none_or(|len| len as u64 == offer.size_bytes),
                    "inline data of another size",
                )?;
                // Bytes that nobody proves must never be taken for those of an OID.
                let is_named = matches!(offer.object, ObjectName::Oid(_));
                check(is_named == offer.inline.is_some(), "a name that does not fit the way its bytes come")
            }
            Message::Direct(direct) => {
                check(direct.addresses.len() <= HINTS_MAX, "too many addresses")?;
                check(
                    direct.addresses.iter().all(|text| text.len() <= HINT_URI_BYTES_MAX),
                    "too long an address",
                )
            }
            Message::Compare(compare) => {
                check(compare.subtrees.len() <= COMPARED_SUBTREES_MAX, "too many subtrees")
            }
            Message::Compared(compared) => {
                let len = compared.pairs.len();
                check(len.is_multiple_of(64) && len <= COMPARED_SUBTREES_MAX * 64, "a wrong number of pairs")
            }
            Message::Nodes(nodes) => {
                check(nodes.ids.len() <= RECIPE_NODES_ASKED_MAX, "too many recipe nodes")
            }
            Message::Node(node) => check(node.bytes.len() <= RECIPE_NODE_BYTES_MAX, "too long a recipe node"),
            Message::Delivered(delivered) => check(delivered.path.len() <= PATH_BYTES_MAX, "too long a path"),
            Message::Tree(tree) => tree.bound(&check),
            Message::Entries(entries) => entries.bound(&check),
            Message::Pull(pull) => pull.bound(&check),
            Message::EntryFailed(failed) => failed.bound(&check),
            Message::Planned(planned) => planned.bound(&check),
            Message::Sources(sources) => sources.bound(&check),
            Message::MoreSources(more) => more.bound(&check),
            Message::Digests(digests) => digests.bound(&check),
            Message::DigestsSame(same) => same.bound(&check),
            Message::InPlace(in_place) => in_place.bound(&check),
            Message::Cancel(_)
            | Message::Pack(_)
            | Message::Seal(_)
            | Message::Sealed(_)
            | Message::ClearAsk(_)
            | Message::Progress(_)
            | Message::Describe(_)
            | Message::TreeDone(_)
            | Message::Landed(_)
            | Message::Removed(_)
            | Message::DigestsWanted(_)
            | Message::Described(_) => Ok(()),
        }
    }
}
