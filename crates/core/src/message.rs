//! Control messages of the peer protocol. The prose, the order and the CDDL are in `docs/protocol/`.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::chunker::Profile;
use crate::limits::{
    COMPARED_SUBTREES_MAX, FEATURE_BYTES_MAX, FEATURES_MAX, HINT_URI_BYTES_MAX, HINTS_MAX, INLINE_BYTES_MAX,
    NAME_BYTES_MAX, OBJECT_BYTES_MAX, PATH_BYTES_MAX, RECIPE_NODE_BYTES_MAX, RECIPE_NODES_ASKED_MAX,
    TEXT_BYTES_MAX,
};
use crate::recipe::{ChunkDescriptor, RecipeBuilder, RecipeId, RecipeRoot};
use crate::rights::Secret;
use crate::{Error, ErrorKind, NodeId, Oid, Result, cbor};

mod tree;

pub use tree::{
    BATCHES_AHEAD_MAX, Entries, EntryFailed, FoundSource, MoreSources, Owner, Part, Planned, PlannedItem,
    Pull, Run, Sources, Tree, TreeDone, tree_flag,
};

/// Version of the peer protocol. Peers of different versions refuse each other by name.
pub const PROTOCOL_VERSION: u16 = 1;

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
}

/// Feature names of this version.
pub mod feature {
    /// Clear-text data connections for proven objects.
    pub const CLEAR_DATA: &str = "clear-data";
    /// Recipes: `describe` and `nodes`.
    pub const RECIPE: &str = "recipe";
    /// Zeros that are data travel as runs, and what is nothing but zeros needs no pairs of its inside.
    pub const ZEROS: &str = "zeros";
    /// Tree copies: `tree` and what follows it.
    pub const TREE: &str = "tree";
    /// Contents of trees over direct connections, and large ones in parts.
    pub const TREE_LANES: &str = "tree-lanes";
    /// Contents of trees as differences: cuts in `pull`.
    pub const TREE_DELTA: &str = "tree-delta";
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

    fn bound(&self) -> Result<()> {
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
            ErrorKind::Usage | ErrorKind::Partial | ErrorKind::Interrupted => ErrorKind::Internal,
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

/// Which side of a copy the remote command plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum CopyRole {
    /// It receives: the local command sends an [`Offer`].
    #[n(0)]
    Receive,
    /// It sends: it answers with an [`Offer`].
    #[n(1)]
    Send,
}

/// See [`Message::Copy`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Copy {
    /// What the remote command is to do.
    #[n(0)]
    pub role: CopyRole,
    /// Path on the remote side, any bytes; relative to the home directory.
    #[n(1)]
    pub path: ByteVec,
    /// Keep mode and modification time.
    #[n(2)]
    pub preserve: bool,
    /// Make data and name durable before reporting done.
    #[n(3)]
    pub fsync: bool,
    /// Fetch everything, whatever lies at the destination; absent means no.
    #[n(4)]
    pub whole_file: Option<bool>,
    /// Bytes a second that the sending side may send, over all paths together; absent means any.
    #[n(5)]
    pub rate_bytes: Option<u64>,
    /// Everything that the sending side says after the offer is compressed, and there are no other paths; absent means no.
    #[n(6)]
    pub compressed: Option<bool>,
    /// The far end, if it sends, may answer with `sources` and a tree: where the path is a pattern for several files, or the
    /// file's metadata does not say how many bytes it has; absent means no.
    #[n(7)]
    pub or_several: Option<bool>,
}

/// See [`Message::Offer`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Offer {
    /// Name for the duration of the transfer.
    #[n(0)]
    pub object: ObjectName,
    /// Size of the file.
    #[n(1)]
    pub size_bytes: u64,
    /// Last component of the file's path.
    #[n(2)]
    pub name: ByteVec,
    /// Permission bits, `0o7777` at most.
    #[n(3)]
    pub mode: u32,
    /// Modification time, seconds since 1970.
    #[n(4)]
    pub mtime_s: i64,
    /// Nanoseconds of the modification time, below 10^9.
    #[n(5)]
    pub mtime_ns: u32,
    /// The whole file, if it is small (D34); `object` is then its OID.
    #[n(6)]
    pub inline: Option<ByteVec>,
}

/// See [`Message::Direct`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Direct {
    /// Node this side proves in TLS.
    #[n(0)]
    pub node: NodeId,
    /// `host:port` where this side listens, best first; empty if it does not.
    #[n(1)]
    pub addresses: Vec<String>,
    /// Admits to the transfer on a direct connection.
    #[n(2)]
    pub secret: Secret,
}

/// See [`Message::Progress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Progress {
    /// Bytes safely at the receiver.
    #[n(0)]
    pub done_bytes: u64,
    /// Of these, bytes that an earlier run had left.
    #[n(1)]
    pub resumed_bytes: u64,
    /// Bytes that came over direct connections.
    #[n(2)]
    pub direct_bytes: u64,
}

/// See [`Message::Delivered`].
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct Delivered {
    /// Name of what arrived.
    #[n(0)]
    pub oid: Oid,
    /// Where it is now.
    #[n(1)]
    pub path: ByteVec,
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
            Message::Cancel(_)
            | Message::Seal(_)
            | Message::Sealed(_)
            | Message::ClearAsk(_)
            | Message::Progress(_)
            | Message::Describe(_)
            | Message::TreeDone(_)
            | Message::Described(_) => Ok(()),
        }
    }
}

/// A recipe of one chunk, and the bytes of its only node.
fn sample_recipe() -> (RecipeRoot, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut builder = RecipeBuilder::new(Profile::default());
    let pushed = builder.push(ChunkDescriptor::of(b"sample"), &mut |_| {});
    debug_assert!(pushed.is_ok());
    let root = builder.finish(&mut |built| bytes = built.bytes);
    (root, bytes)
}

/// One of each message, for golden vectors, the CDDL check and fuzz corpora.
pub fn samples() -> Vec<(&'static str, Message)> {
    let oid = Oid::of(b"sample");
    let provisional = ObjectName::Provisional([0x11; 32]);
    vec![
        (
            "hello",
            Message::Hello(Hello {
                version: PROTOCOL_VERSION,
                features: vec![feature::CLEAR_DATA.into()],
                required: vec![],
                agent: "dray/0.1.0".into(),
            }),
        ),
        (
            "open",
            Message::Open(Open {
                handle: 1,
                object: ObjectName::Oid(oid),
                proof: Some(vec![0x22; 32].into()),
            }),
        ),
        ("open-public", Message::Open(Open { handle: 1, object: ObjectName::Oid(oid), proof: None })),
        (
            "opened",
            Message::Opened(Opened { handle: 1, size_bytes: 6, name: Some(b"a b\n\xff".to_vec().into()) }),
        ),
        (
            "fetch",
            Message::Fetch(Fetch {
                request: 7,
                handle: 1,
                start_group: 16,
                groups: 16,
                known_depth: 3,
                recheck: false,
            }),
        ),
        ("cancel", Message::Cancel(Cancel { request: 7 })),
        ("seal", Message::Seal(Seal { handle: 1, root: oid })),
        ("sealed", Message::Sealed(Sealed { handle: 1, root: oid })),
        ("fault", Message::Fault(Fault { handle: Some(1), kind: 9, text: "refused".into() })),
        ("clear-ask", Message::ClearAsk(ClearAsk {})),
        ("clear-grant", Message::ClearGrant(ClearGrant { token: vec![0x33; 16].into() })),
        (
            "copy",
            Message::Copy(Copy {
                role: CopyRole::Receive,
                path: b"dir/na me".to_vec().into(),
                preserve: true,
                fsync: false,
                whole_file: None,
                rate_bytes: None,
                compressed: None,
                or_several: None,
            }),
        ),
        (
            "offer",
            Message::Offer(Offer {
                object: provisional,
                size_bytes: 1 << 33,
                name: b"big.img".to_vec().into(),
                mode: 0o644,
                mtime_s: 1_795_000_000,
                mtime_ns: 5,
                inline: None,
            }),
        ),
        (
            "offer-inline",
            Message::Offer(Offer {
                object: ObjectName::Oid(oid),
                size_bytes: 6,
                name: b"s".to_vec().into(),
                mode: 0o600,
                mtime_s: -1,
                mtime_ns: 0,
                inline: Some(b"sample".to_vec().into()),
            }),
        ),
        (
            "direct",
            Message::Direct(Direct {
                node: NodeId::from_bytes([0x44; 32]),
                addresses: vec!["192.0.2.1:4711".into(), "[2001:db8::1]:4711".into()],
                secret: Secret::from_bytes([0x55; 16]),
            }),
        ),
        (
            "progress",
            Message::Progress(Progress { done_bytes: 1 << 20, resumed_bytes: 0, direct_bytes: 1 << 19 }),
        ),
        (
            "compare",
            Message::Compare(Compare {
                handle: 1,
                subtrees: vec![
                    ComparedSubtree { start_group: 0, groups: 40 },
                    ComparedSubtree { start_group: 32, groups: 8 },
                ],
            }),
        ),
        ("compared", Message::Compared(Compared { handle: 1, pairs: vec![0x66; 128].into() })),
        ("delivered", Message::Delivered(Delivered { oid, path: b"/tmp/big.img".to_vec().into() })),
        ("describe", Message::Describe(Describe { handle: 1 })),
        ("described", Message::Described(Described { handle: 1, root: Some(sample_recipe().0) })),
        ("described-none", Message::Described(Described { handle: 1, root: None })),
        ("nodes", Message::Nodes(Nodes { handle: 1, ids: vec![[0x77; 32].into(), [0x78; 32].into()] })),
        (
            "node",
            Message::Node(Node {
                handle: 1,
                id: (*sample_recipe().0.node_id().as_bytes()).into(),
                bytes: sample_recipe().1.into(),
            }),
        ),
        (
            "tree",
            Message::Tree(Tree {
                role: CopyRole::Receive,
                paths: vec![b"dir".to_vec().into()],
                names: vec![b"a".to_vec().into(), vec![].into()],
                flags: tree_flag::RECURSIVE | tree_flag::TIMES,
                excludes: Some(vec![b"*.o".to_vec().into()]),
                modes: Some(b"D755,F644".to_vec().into()),
                owner: Some(b":users".to_vec().into()),
                rate_bytes: Some(1 << 20),
            }),
        ),
        (
            "planned",
            Message::Planned(Planned {
                items: vec![PlannedItem { action: 1, path: b"a/b".to_vec().into(), changes: None }],
            }),
        ),
        (
            "planned-change",
            Message::Planned(Planned {
                items: vec![PlannedItem { action: 3, path: b"a/c".to_vec().into(), changes: Some(5) }],
            }),
        ),
        (
            "sources",
            Message::Sources(Sources {
                found: vec![FoundSource { path: 0, name: b"a.d".to_vec().into() }],
                is_last: true,
            }),
        ),
        (
            "more-sources",
            Message::MoreSources(MoreSources {
                paths: vec![b"b".to_vec().into()],
                names: vec![b"b".to_vec().into()],
                is_last: true,
            }),
        ),
        (
            "entries",
            Message::Entries(Entries {
                items: vec![vec![0xf6].into(), vec![].into()],
                owners: Some(vec![Owner { is_group: true, id: 100, name: b"users".to_vec().into() }]),
                is_last: true,
            }),
        ),
        (
            "pull",
            Message::Pull(Pull {
                request: 3,
                runs: vec![
                    Run { first: 7, count: 40, known: None, part: None, cut: None },
                    Run { first: 50, count: 1, known: Some([0x88; 32].into()), part: None, cut: None },
                ],
                settled: 7,
                batches: 9,
                lane: None,
                lost: None,
            }),
        ),
        (
            "pull-lane",
            Message::Pull(Pull {
                request: 4,
                runs: vec![Run {
                    first: 51,
                    count: 1,
                    known: None,
                    part: Some(Part { start: 1 << 24, bytes: 9 }),
                    cut: None,
                }],
                settled: 50,
                batches: 10,
                lane: Some(2),
                lost: Some(1),
            }),
        ),
        (
            "pull-cut",
            Message::Pull(Pull {
                request: 5,
                runs: vec![Run {
                    first: 52,
                    count: 1,
                    known: Some([0x99; 32].into()),
                    part: Some(Part { start: 0, bytes: 1 << 24 }),
                    cut: Some(1 << 17),
                }],
                settled: 52,
                batches: 10,
                lane: None,
                lost: None,
            }),
        ),
        (
            "entry-failed",
            Message::EntryFailed(EntryFailed {
                path: b"a/\xff".to_vec().into(),
                kind: 9,
                text: "no".into(),
                unnamed: None,
                left_out: None,
            }),
        ),
        (
            "tree-done",
            Message::TreeDone(TreeDone { entries: 60, files: 50, unchanged: 9, bytes: 1 << 20, failed: 1 }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_message_is_deterministic_and_round_trips() {
        for (name, message) in samples() {
            let bytes = message.to_bytes();
            assert_eq!(cbor::check(&bytes), Ok(()), "{name}");
            assert!(bytes.len() <= crate::limits::CONTROL_FRAME_BYTES_MAX);
            assert_eq!(Message::from_bytes(&bytes).unwrap(), message, "{name}");
            // Unknown keys are ignored: append one to the map, which is the item's tail.
            for cut in 0..bytes.len() {
                assert!(Message::from_bytes(&bytes[..cut]).is_err(), "{name} cut at {cut}");
            }
        }
    }

    /// Golden vectors: a change here is a change of the protocol.
    #[test]
    fn golden_messages() {
        let mut text = String::new();
        for (name, message) in samples() {
            text += &format!("{name} {}\n", data_encoding::HEXLOWER.encode(&message.to_bytes()));
        }
        let golden = include_str!("../fixtures/messages.txt");
        assert_eq!(text, golden, "the wire format changed; if that is meant, raise PROTOCOL_VERSION");
    }

    #[test]
    fn fields_beyond_their_limits_are_refused() {
        let long = |len: usize| vec![b'x'; len];
        let bad = [
            Message::Hello(Hello {
                version: 1,
                features: vec!["x".into(); 33],
                required: vec![],
                agent: String::new(),
            }),
            Message::Open(Open {
                handle: 1,
                object: ObjectName::Provisional([0; 32]),
                proof: Some(long(31).into()),
            }),
            Message::Opened(Opened { handle: 1, size_bytes: u64::MAX, name: None }),
            Message::Opened(Opened { handle: 1, size_bytes: 1, name: Some(long(256).into()) }),
            Message::Fault(Fault { handle: None, kind: 1, text: "x".repeat(1025) }),
            Message::ClearGrant(ClearGrant { token: long(15).into() }),
            Message::Copy(Copy {
                role: CopyRole::Send,
                path: long(4097).into(),
                preserve: false,
                fsync: false,
                whole_file: None,
                rate_bytes: None,
                compressed: None,
                or_several: None,
            }),
        ];
        let offer = |object, inline: Option<Vec<u8>>| {
            Message::Offer(Offer {
                object,
                size_bytes: 6,
                name: b"s".to_vec().into(),
                mode: 0o600,
                mtime_s: 0,
                mtime_ns: 0,
                inline: inline.map(Into::into),
            })
        };
        let named = ObjectName::Oid(Oid::of(b"sample"));
        // Design 3: vouched bytes never go under the name that is proven elsewhere.
        let bad = bad.into_iter().chain([
            offer(named, None),
            offer(ObjectName::Provisional([1; 32]), Some(b"sample".to_vec())),
            offer(named, Some(b"samples".to_vec())),
        ]);
        for message in bad {
            let error = Message::from_bytes(&message.to_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{message:?}");
        }
    }

    proptest! {
        /// No bytes from a peer panic the decoder; what decodes encodes to what decodes to the same.
        #[test]
        fn mutated_messages_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let samples = samples();
            let mut bytes = samples[which.index(samples.len())].1.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = with;
            if let Ok(message) = Message::from_bytes(&bytes) {
                prop_assert_eq!(Message::from_bytes(&message.to_bytes()).unwrap(), message);
            }
        }
    }
}
