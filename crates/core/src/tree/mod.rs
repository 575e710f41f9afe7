//! A directory as data: entries, the nodes in which a stored tree keeps them, and the order in which a running copy tells
//! them (Y1, design 19). Nothing here looks at a file system.
//!
//! An entry has two halves that are hashed apart: *content* (what it is: kind, size, OID, link target) and *metadata* (mode,
//! owner, times, extended attributes). A `touch` thus changes metadata nodes only, and two trees of equal content
//! have one content id whoever owns them. Byte tables and reasons are in `docs/format/tree.md`.

mod chunks;
mod entry;
mod name;
mod node;
mod record;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;

pub use chunks::{
    CHUNKS_IN_RECORD_MAX, ChunkHint, chunks_max, cut_profile, decode_chunks, encode_chunks, too_many_chunks,
};
pub use entry::{DirectoryContent, Entry, Kind, Metadata, Xattr};
pub use name::Name;
pub use node::{BuiltTreeNode, DirectoryBuilder, DirectoryRoot, Half, NodeEntries, TreeChild, TreeNode};
pub use record::{Finished, RECORD_HEAD_BYTES, Record, bytes_head, take_record};
pub use stream::{Item, Order, Step};

/// What the id of a node is derived with; the node's own bytes say its version, half and level.
const NODE_CONTEXT: &str = "drayman 2026-11-22 tree node 1";

/// Name of a node of a tree, and so of everything below it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeId([u8; 32]);

impl TreeId {
    /// Bytes of an id.
    pub const BYTES: usize = 32;

    /// The id that a message or a node carries as `bytes`.
    pub const fn from_bytes(bytes: [u8; 32]) -> TreeId {
        TreeId(bytes)
    }

    /// The id of the node whose encoding is `node`.
    pub fn of_node(node: &[u8]) -> TreeId {
        TreeId(blake3::derive_key(NODE_CONTEXT, node))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tree node {}", &data_encoding::HEXLOWER.encode(&self.0)[..16])
    }
}
