//! Messages of one object: opening it, asking for its subtrees, its name, its recipe, and what fails. The prose is "Requests" and
//! what follows it in `docs/protocol/peer.md`.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::block_mask::BlockMask;
use crate::limits::{
    SUMS_BLOCK_BYTES_MAX, SUMS_BLOCK_BYTES_MIN, SUMS_BYTES_MAX, SUMS_COVERED_BYTES_MAX, SUMS_RUNS_MAX,
    TEXT_BYTES_MAX,
};
use crate::recipe::{RecipeId, RecipeRoot};
use crate::{Error, ErrorKind, Oid, Result, cbor};

/// What a connection carries: an object by its OID, or the one file of a running transfer whose OID is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectName {
    /// Named by its hash; every byte is proven.
    Oid(Oid),
    /// Named by {origin node, dev, ino, size, mtime, ctime} (design decision 3); bytes are vouched for by the origin.
    Provisional([u8; 32]),
}

impl ObjectName {
    const PROVISIONAL_CODE: u8 = 0;

    /// Code and 32 bytes.
    pub fn to_encoded(self) -> [u8; Oid::ENCODED_BYTES] {
        match self {
            ObjectName::Oid(oid) => oid.to_encoded(),
            ObjectName::Provisional(id) => {
                let mut out = [Self::PROVISIONAL_CODE; Oid::ENCODED_BYTES];
                out[1..].copy_from_slice(&id);
                out
            }
        }
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ObjectName::Oid(oid) => oid.fmt(f),
            ObjectName::Provisional(id) => write!(f, "provisional:{}", data_encoding::HEXLOWER.encode(id)),
        }
    }
}

impl<C> Encode<C> for ObjectName {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.to_encoded())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for ObjectName {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<ObjectName, minicbor::decode::Error> {
        match d.bytes()? {
            [ObjectName::PROVISIONAL_CODE, id @ ..] => id
                .try_into()
                .map(ObjectName::Provisional)
                .map_err(|_| minicbor::decode::Error::message("a provisional id has 32 bytes")),
            bytes => Oid::from_encoded(bytes).map(ObjectName::Oid).map_err(minicbor::decode::Error::custom),
        }
    }
}

/// See [`Message::Open`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Open {
    /// Number the receiver gives it on this connection.
    #[n(0)]
    pub handle: u32,
    /// What it wants.
    #[n(1)]
    pub object: ObjectName,
    /// Proof of the secret over bytes `0..u64::MAX`; absent for a public object.
    #[n(2)]
    pub proof: Option<ByteVec>,
}

/// See [`Message::Opened`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Opened {
    /// The receiver's number.
    #[n(0)]
    pub handle: u32,
    /// Size of the object.
    #[n(1)]
    pub size_bytes: u64,
    /// File name the holder suggests: one component, any bytes.
    #[n(2)]
    pub name: Option<ByteVec>,
}

/// See [`Message::Fetch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Fetch {
    /// Number of the request, new on this connection, not 0.
    #[n(0)]
    pub request: u32,
    /// Object it is about.
    #[n(1)]
    pub handle: u32,
    /// First group of the subtree.
    #[n(2)]
    pub start_group: u64,
    /// Groups of the subtree.
    #[n(3)]
    pub groups: u64,
    /// How many pairs on the path from the root the receiver has.
    #[n(4)]
    pub known_depth: u32,
    /// The receiver got bytes that did not match: check them against the outboard before sending them again.
    #[n(5)]
    pub recheck: bool,
}

/// See [`Message::Cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Cancel {
    /// Request to end.
    #[n(0)]
    pub request: u32,
}

/// See [`Message::Seal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Seal {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// The receiver's own root. The holder answers with its own, whether or not they agree.
    #[n(1)]
    pub root: Oid,
}

/// See [`Message::Sealed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Sealed {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// The holder's root.
    #[n(1)]
    pub root: Oid,
}

/// See [`Message::Compare`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Compare {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// Subtrees of at least two groups, at most 256.
    #[n(1)]
    pub subtrees: Vec<ComparedSubtree>,
}

/// One subtree of a [`Compare`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct ComparedSubtree {
    /// First group.
    #[n(0)]
    pub start_group: u64,
    /// Number of groups.
    #[n(1)]
    pub groups: u64,
}

/// See [`Message::Compared`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Compared {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// The pair of each subtree asked for, 64 bytes each, in the order asked.
    #[n(1)]
    pub pairs: ByteVec,
}

/// See [`Message::Describe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Describe {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
}

/// See [`Message::Described`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Described {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// Its recipe; absent if the holder makes none for it.
    #[n(1)]
    pub root: Option<RecipeRoot>,
}

/// See [`Message::Nodes`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Nodes {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// Nodes of its recipe, at most 32.
    #[n(1)]
    pub ids: Vec<ByteArray<{ RecipeId::BYTES }>>,
}

/// See [`Message::Node`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Node {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// Which node.
    #[n(1)]
    pub id: ByteArray<{ RecipeId::BYTES }>,
    /// Its bytes.
    #[n(2)]
    pub bytes: ByteVec,
}

/// See [`Message::Pack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Pack {
    /// Whether data may be packed from here on.
    #[n(0)]
    pub may: bool,
}

/// See [`Message::Sums`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Sums {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// The receiver's number for the question.
    #[n(1)]
    pub number: u32,
    /// Bytes of a block: a power of two from 64 to 65,536.
    #[n(2)]
    pub block_bytes: u32,
    /// Bytes of a sum: the first so many, 1 to 8, of [`crate::block_sum::sum_of`] the block.
    #[n(3)]
    pub sum_bytes: u8,
    /// Which blocks, at most 256 runs.
    #[n(4)]
    pub runs: Vec<BlockRun>,
}

/// Blocks of an object next to each other, all of them whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct BlockRun {
    /// First block: its offset in the object is this many blocks.
    #[n(0)]
    pub start: u64,
    /// Number of blocks, not 0.
    #[n(1)]
    pub blocks: u32,
}

impl Sums {
    /// Blocks asked about.
    pub fn blocks(&self) -> u64 {
        blocks_of(&self.runs)
    }

    /// Bytes of the answer.
    pub fn answer_bytes(&self) -> u64 {
        self.blocks().saturating_mul(u64::from(self.sum_bytes))
    }

    /// True if all its blocks lie whole in an object of `size_bytes`.
    pub fn is_within(&self, size_bytes: u64) -> bool {
        are_within(&self.runs, self.block_bytes, size_bytes)
    }

    pub(super) fn bound(&self, check: &dyn Fn(bool, &str) -> Result<()>) -> Result<()> {
        bound_sums(&self.runs, self.block_bytes, self.sum_bytes, check)
    }
}

/// A question for sums of blocks of a file in a tree.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct BlockSums {
    /// Bytes of a block: a power of two from 64 to 65,536.
    #[n(0)]
    pub block_bytes: u32,
    /// Bytes of a sum: the first so many, 1 to 8, of [`crate::block_sum::sum_of`] the block.
    #[n(1)]
    pub sum_bytes: u8,
    /// Which blocks, at most 256 runs.
    #[n(2)]
    pub runs: Vec<BlockRun>,
    /// The sums are those of code, without its fields: [`crate::code_field::code_sum_of`] (feature `tree-code`).
    #[n(3)]
    pub is_code: Option<bool>,
}

impl BlockSums {
    /// Bytes of the answer.
    pub fn answer_bytes(&self) -> u64 {
        blocks_of(&self.runs).saturating_mul(u64::from(self.sum_bytes))
    }

    /// Bytes of the file that the answer stands for.
    pub fn covered_bytes(&self) -> u64 {
        blocks_of(&self.runs).saturating_mul(u64::from(self.block_bytes))
    }

    /// True if all its blocks lie whole in a file of `size_bytes`.
    pub fn is_within(&self, size_bytes: u64) -> bool {
        are_within(&self.runs, self.block_bytes, size_bytes)
    }

    pub(super) fn bound(&self, check: &dyn Fn(bool, &str) -> Result<()>) -> Result<()> {
        check(!self.runs.is_empty(), "a question for no sums")?;
        bound_sums(&self.runs, self.block_bytes, self.sum_bytes, check)
    }
}

fn blocks_of(runs: &[BlockRun]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

fn are_within(runs: &[BlockRun], block_bytes: u32, size_bytes: u64) -> bool {
    let end = |run: &BlockRun| {
        let blocks = run.start.checked_add(u64::from(run.blocks))?;
        blocks.checked_mul(u64::from(block_bytes))
    };
    runs.iter().all(|run| end(run).is_some_and(|end| end <= size_bytes))
}

fn bound_sums(
    runs: &[BlockRun],
    block_bytes: u32,
    sum_bytes: u8,
    check: &dyn Fn(bool, &str) -> Result<()>,
) -> Result<()> {
    check(runs.len() <= SUMS_RUNS_MAX, "too many runs of blocks")?;
    check(runs.iter().all(|run| run.blocks > 0), "a run of no blocks")?;
    let is_block =
        block_bytes.is_power_of_two() && (SUMS_BLOCK_BYTES_MIN..=SUMS_BLOCK_BYTES_MAX).contains(&block_bytes);
    check(is_block, "blocks of an impossible length")?;
    check((1..=8).contains(&sum_bytes), "sums of an impossible length")?;
    let blocks = blocks_of(runs);
    check(blocks * u64::from(sum_bytes) <= SUMS_BYTES_MAX as u64, "a question for too many sums")?;
    let covered_bytes = blocks * u64::from(block_bytes);
    check(covered_bytes <= SUMS_COVERED_BYTES_MAX, "a question for sums of too many bytes")
}

/// See [`Message::Summed`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Summed {
    /// Object it is about.
    #[n(0)]
    pub handle: u32,
    /// The question's number.
    #[n(1)]
    pub number: u32,
    /// The sums, in the order asked.
    #[n(2)]
    pub sums: ByteVec,
}

/// See [`Message::FetchRest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct FetchRest {
    /// Number of the request, new on this connection, not 0.
    #[n(0)]
    pub request: u32,
    /// Object it is about.
    #[n(1)]
    pub handle: u32,
    /// The group.
    #[n(2)]
    pub group: u64,
    /// How many pairs on the path from the root the receiver has.
    #[n(3)]
    pub known_depth: u32,
    /// The blocks that the receiver has.
    #[n(4)]
    pub have: BlockMask,
}

impl FetchRest {
    /// The request for all of the group.
    pub fn whole(&self) -> Fetch {
        let FetchRest { request, handle, group, known_depth, .. } = *self;
        Fetch { request, handle, start_group: group, groups: 1, known_depth, recheck: false }
    }
}

/// A typed failure.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Fault {
    /// Object it is about; absent if it ends the connection.
    #[n(0)]
    pub handle: Option<u32>,
    /// [`ErrorKind::wire_code`].
    #[n(1)]
    pub kind: u8,
    /// What failed and why, for people.
    #[n(2)]
    pub text: String,
}

impl Fault {
    /// The fault that tells a peer of `error`.
    pub fn from_error(handle: Option<u32>, error: &Error) -> Fault {
        Fault {
            handle,
            kind: error.kind().wire_code(),
            text: cut(&error.to_string(), TEXT_BYTES_MAX).to_owned(),
        }
    }

    /// Decodes the body of a fault frame.
    pub fn from_bytes(bytes: &[u8]) -> Result<Fault> {
        let fault: Fault = cbor::decode(bytes, "fault")?;
        fault.bound()?;
        Ok(fault)
    }

    pub(super) fn bound(&self) -> Result<()> {
        if self.text.len() <= TEXT_BYTES_MAX {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Protocol, "fault has too long a text"))
        }
    }

    /// The error a fault means; `peer` says who sent it, and is empty if that goes without saying. Kinds that speak of the peer's own command line or process
    /// are internal to it: a peer does not choose what our exit code says of us.
    pub fn to_error(&self, peer: &str) -> Error {
        let kind = match ErrorKind::from_wire_code(self.kind) {
            ErrorKind::Usage | ErrorKind::Partial => ErrorKind::Internal,
            // It is gone, and may come back.
            ErrorKind::Interrupted => ErrorKind::Unreachable,
            kind => kind,
        };
        let text = crate::text::one_line(&self.text);
        Error::new(kind, if peer.is_empty() { text } else { format!("{peer} says: {text}") })
    }
}

fn cut(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// See [`Message::ClearAsk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct ClearAsk {}

/// See [`Message::ClearGrant`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct ClearGrant {
    /// 16 random bytes, good for one connection to the same port within the hello timeout.
    #[n(0)]
    pub token: ByteVec,
}
