//! One node of a recipe: its packed encoding, the rule that says where a node ends, and the checks a node from a stranger
//! must pass on its own.

use crate::chunker::{Algorithm, Profile};
use crate::limits::{
    RECIPE_CHUNKS_MAX, RECIPE_LEVEL_MAX, RECIPE_NODE_BYTES_MAX, RECIPE_NODE_ENTRIES_MAX,
    RECIPE_NODE_ENTRIES_MIN,
};
use crate::{Error, ErrorKind, Result};

use super::{ChunkDescriptor, RecipeId};

/// Version of the packed layout, and of the rule that ends nodes.
const NODE_VERSION: u8 = 1;
/// Version, level, algorithm, exponent of the average, count of entries (u16), two zero bytes.
pub(super) const HEAD_BYTES: usize = 8;
/// Hash and length.
const CHUNK_ENTRY_BYTES: usize = 36;
/// Id, bytes and chunks.
const CHILD_ENTRY_BYTES: usize = 44;
/// A node ends after an entry whose last hash byte has none of these bits: one entry in 64.
const END_MASK: u8 = 63;

/// A node below another, with the totals the parent claims for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChildEntry {
    /// Name of the child.
    pub id: RecipeId,
    /// Bytes of the object below it.
    pub size_bytes: u64,
    /// Chunks below it.
    pub chunks: u32,
}

/// What a node lists, in object order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entries {
    /// A leaf, level 0: chunks.
    Chunks(Vec<ChunkDescriptor>),
    /// An inner node: nodes of the level below.
    Children(Vec<ChildEntry>),
}

impl Entries {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Entries::Chunks(chunks) => chunks.len(),
            Entries::Children(children) => children.len(),
        }
    }

    /// True if there is none, as in the recipe of the empty object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the rule for ends looks at in entry `index`.
    fn hash(&self, index: usize) -> Option<&[u8; 32]> {
        match self {
            Entries::Chunks(chunks) => chunks.get(index).map(|chunk| &chunk.hash),
            Entries::Children(children) => children.get(index).map(|child| child.id.as_bytes()),
        }
    }
}

/// A node, checked as far as it can be without its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecipeNode {
    profile: Profile,
    level: u8,
    entries: Entries,
}

/// True if a node ends after its entry number `count` (from 1), whose hash is `hash`.
pub(super) fn ends_node(count: usize, hash: &[u8; 32]) -> bool {
    count >= RECIPE_NODE_ENTRIES_MAX || (count >= RECIPE_NODE_ENTRIES_MIN && hash[31] & END_MASK == 0)
}

/// Most bytes a node of `level` with `chunks` below it can have; exact for a leaf. What a reader reserves before it
/// asks.
pub(super) fn node_bytes_max(level: u8, chunks: u32) -> usize {
    let entries = usize::try_from(chunks).unwrap_or(usize::MAX).min(RECIPE_NODE_ENTRIES_MAX);
    HEAD_BYTES + entries * if level == 0 { CHUNK_ENTRY_BYTES } else { CHILD_ENTRY_BYTES }
}

fn bad(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("recipe node is malformed: {why}"))
}

impl RecipeNode {
    /// A node from entries that the builder has checked.
    pub(super) fn from_checked(profile: Profile, level: u8, entries: Entries) -> RecipeNode {
        RecipeNode { profile, level, entries }
    }

    /// How the object is cut.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Levels below it; a leaf has 0.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// What it lists.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Bytes of the object below it. The bounds on entries keep the sum below 2^60.
    pub fn size_bytes(&self) -> u64 {
        match &self.entries {
            Entries::Chunks(chunks) => chunks.iter().map(|chunk| u64::from(chunk.len)).sum(),
            Entries::Children(children) => children.iter().map(|child| child.size_bytes).sum(),
        }
    }

    /// Chunks below it. The bounds on entries keep the sum below 2^32.
    pub fn chunks(&self) -> u32 {
        match &self.entries {
            Entries::Chunks(chunks) => chunks.len() as u32,
            Entries::Children(children) => children.iter().map(|child| child.chunks).sum(),
        }
    }

    /// True if the node ends because its last entry says so, and not because the object does.
    pub(super) fn ends_by_rule(&self) -> bool {
        let count = self.entries.len();
        count
            .checked_sub(1)
            .and_then(|last| self.entries.hash(last))
            .is_some_and(|hash| ends_node(count, hash))
    }

    /// The packed encoding. There is one for each node.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(match &self.entries {
            Entries::Chunks(chunks) => HEAD_BYTES + chunks.len() * CHUNK_ENTRY_BYTES,
            Entries::Children(children) => HEAD_BYTES + children.len() * CHILD_ENTRY_BYTES,
        });
        out.extend([
            NODE_VERSION,
            self.level,
            self.profile.algorithm().wire_code(),
            self.profile.average_bytes().trailing_zeros() as u8,
        ]);
        out.extend((self.entries.len() as u16).to_be_bytes());
        out.extend([0; 2]);
        match &self.entries {
            Entries::Chunks(chunks) => {
                for chunk in chunks {
                    out.extend(chunk.hash);
                    out.extend(chunk.len.to_be_bytes());
                }
            }
            Entries::Children(children) => {
                for child in children {
                    out.extend(child.id.as_bytes());
                    out.extend(child.size_bytes.to_be_bytes());
                    out.extend(child.chunks.to_be_bytes());
                }
            }
        }
        out
    }

    /// Inverse of [`RecipeNode::to_bytes`]. Refuses with `Protocol` whatever no builder makes and needs no parent to be
    /// seen: other lengths than the head says, chunks longer or shorter than the profile's, totals that no such node
    /// has, and entries after one that ends a node. `Unsupported` for a later version or an unknown algorithm.
    pub fn from_bytes(bytes: &[u8]) -> Result<RecipeNode> {
        let (head, body) =
            bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| bad("it is shorter than its head"))?;
        let [version, level, algorithm, exponent, count @ .., zero, also_zero] = *head;
        if version != NODE_VERSION {
            let what = format!("recipe node has version {version}, this dray knows {NODE_VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, what).advise("install a newer dray"));
        }
        if level > RECIPE_LEVEL_MAX {
            return Err(bad(format_args!("level {level}, limit {RECIPE_LEVEL_MAX}")));
        }
        if zero != 0 || also_zero != 0 {
            return Err(bad("its reserved bytes are not zero"));
        }
        let average_bytes = 1u32.checked_shl(exponent.into()).unwrap_or(0);
        let profile = Profile::new(Algorithm::from_wire_code(algorithm)?, average_bytes)?;
        let count = usize::from(u16::from_be_bytes(count));
        if count > RECIPE_NODE_ENTRIES_MAX || bytes.len() > RECIPE_NODE_BYTES_MAX {
            return Err(bad(format_args!("{count} entries, limit {RECIPE_NODE_ENTRIES_MAX}")));
        }
        let entry_bytes = if level == 0 { CHUNK_ENTRY_BYTES } else { CHILD_ENTRY_BYTES };
        if body.len() != count * entry_bytes {
            return Err(bad(format_args!("{} bytes for {count} entries of {entry_bytes}", body.len())));
        }
        let entries = if level == 0 {
            Entries::Chunks(body.chunks_exact(entry_bytes).map(chunk_entry).collect())
        } else {
            Entries::Children(body.chunks_exact(entry_bytes).map(child_entry).collect())
        };
        let node = RecipeNode { profile, level, entries };
        node.check()?;
        Ok(node)
    }

    fn check(&self) -> Result<()> {
        let count = self.entries.len();
        let ended = (1..count)
            .find(|number| self.entries.hash(number - 1).is_some_and(|hash| ends_node(*number, hash)));
        if let Some(number) = ended {
            return Err(bad(format_args!("it goes on after entry {number}, which ends a node")));
        }
        match &self.entries {
            Entries::Chunks(chunks) => chunks.iter().enumerate().try_for_each(|(index, chunk)| {
                check_chunk_len(self.profile, chunk.len, index + 1 == count).map_err(bad)
            }),
            Entries::Children(children) if children.is_empty() => Err(bad("an inner node without children")),
            Entries::Children(children) => children
                .iter()
                .try_for_each(|child| check_totals(self.profile, self.level - 1, child).map_err(bad)),
        }
    }
}

/// Whether a chunk of `len` bytes fits the profile; only the last chunk of an object may be short.
pub(super) fn check_chunk_len(profile: Profile, len: u32, may_be_short: bool) -> Result<(), String> {
    let min = if may_be_short { 1 } else { profile.chunk_bytes_min() };
    let max = profile.chunk_bytes_max();
    if (min..=max).contains(&len) {
        Ok(())
    } else {
        Err(format!("a chunk of {len} bytes where {min} to {max} may be"))
    }
}

/// Whether some node of `level` can have these totals.
pub(super) fn check_totals(profile: Profile, level: u8, child: &ChildEntry) -> Result<(), String> {
    let chunks = u64::from(child.chunks);
    let chunks_max = (RECIPE_NODE_ENTRIES_MAX as u64).pow(u32::from(level) + 1).min(RECIPE_CHUNKS_MAX.into());
    if chunks == 0 || chunks > chunks_max {
        return Err(format!("{chunks} chunks below a node of level {level}, limit {chunks_max}"));
    }
    // At most 2^22 chunks of at most 2^24 bytes.
    let bytes_min = (chunks - 1) * u64::from(profile.chunk_bytes_min()) + 1;
    let bytes_max = chunks * u64::from(profile.chunk_bytes_max());
    if (bytes_min..=bytes_max).contains(&child.size_bytes) {
        Ok(())
    } else {
        Err(format!("{} bytes in {chunks} chunks, where {bytes_min} to {bytes_max} may be", child.size_bytes))
    }
}

fn chunk_entry(bytes: &[u8]) -> ChunkDescriptor {
    let (hash, len) = bytes.split_at(RecipeId::BYTES);
    ChunkDescriptor { hash: array(hash), len: u32::from_be_bytes(array(len)) }
}

fn child_entry(bytes: &[u8]) -> ChildEntry {
    let (id, totals) = bytes.split_at(RecipeId::BYTES);
    let (size_bytes, chunks) = totals.split_at(8);
    ChildEntry {
        id: RecipeId::from_bytes(array(id)),
        size_bytes: u64::from_be_bytes(array(size_bytes)),
        chunks: u32::from_be_bytes(array(chunks)),
    }
}

/// The bytes of a field, which the caller has cut to its length.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}
