//! Messages of the copy of one file over ssh, and of the direct connections beside it. The prose is "Copying over ssh" in `docs/protocol/peer.md`.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::ObjectName;
use crate::rights::Secret;
use crate::{NodeId, Oid};

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
