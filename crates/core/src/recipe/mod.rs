//! Recipe: the chunks of an object in order, as a content-addressed tree whose nodes end where the content says, so that
//! an edit changes one way from the root to a leaf and little else (design 2, 4; D15, D17, D24).
//!
//! [`RecipeBuilder`] makes one from descriptors as they come, [`RecipeReader`] walks one that somebody else has, node by
//! node. Both hold a few nodes, never the whole. Byte tables and the reasons for the sizes are in
//! `docs/format/recipe.md`.
//!
//! A recipe proves nothing about the object: what is built with it is hashed and compared with the OID. It proves only
//! that its own nodes belong to its root.

use std::fmt;

mod builder;
mod node;
mod reader;
mod root;
#[cfg(test)]
mod tests;

pub use builder::{BuiltNode, RecipeBuilder};
pub use node::{ChildEntry, Entries, RecipeNode};
pub use reader::{NodeRequest, PlacedChunk, ReaderLimits, RecipeReader};
pub use root::RecipeRoot;

/// What the id of a node is derived with; the node's own bytes say its version, level and profile.
const NODE_CONTEXT: &str = "drayman 2026-11-22 recipe node 1";

/// A chunk: what it is, and how long. Where it is follows from the chunks before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkDescriptor {
    /// BLAKE3 hash of the chunk alone.
    pub hash: [u8; 32],
    /// Its bytes, never 0.
    pub len: u32,
}

impl ChunkDescriptor {
    /// Describes `chunk`, which a chunker made, so that its length fits (at most 16 MiB).
    pub fn of(chunk: &[u8]) -> ChunkDescriptor {
        debug_assert!(u32::try_from(chunk.len()).is_ok());
        ChunkDescriptor { hash: *blake3::hash(chunk).as_bytes(), len: chunk.len() as u32 }
    }
}

/// Name of a node of a recipe, and so of everything below it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeId([u8; 32]);

impl RecipeId {
    /// Bytes of an id.
    pub const BYTES: usize = 32;

    /// The id that a message or a node carries as `bytes`.
    pub const fn from_bytes(bytes: [u8; 32]) -> RecipeId {
        RecipeId(bytes)
    }

    /// The id of the node whose encoding is `node`.
    pub fn of_node(node: &[u8]) -> RecipeId {
        RecipeId(blake3::derive_key(NODE_CONTEXT, node))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recipe node {}", &data_encoding::HEXLOWER.encode(&self.0)[..16])
    }
}
