//! Root of a recipe: what a holder names, from which everything else is asked and checked.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::chunker::{Profile, WireProfile};
use crate::limits::{RECIPE_LEVEL_MAX, RECIPE_NODE_ENTRIES_MIN, RECIPE_OBJECT_BYTES_MAX};
use crate::{Error, ErrorKind, Result, cbor};

use super::node::check_totals;
use super::{ChildEntry, RecipeId};

/// A whole recipe by name. Bounded on decoding: what it claims is something that the builder can make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecipeRoot {
    pub(super) profile: Profile,
    pub(super) node: ChildEntry,
    pub(super) level: u8,
}

fn bad(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("recipe root is malformed: {why}"))
}

impl RecipeRoot {
    /// How the object is cut.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The uppermost node.
    pub fn node_id(&self) -> RecipeId {
        self.node.id
    }

    /// Its level; 0 if the recipe is one leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Bytes of the object.
    pub fn size_bytes(&self) -> u64 {
        self.node.size_bytes
    }

    /// Chunks of the object.
    pub fn chunks(&self) -> u32 {
        self.node.chunks
    }

    /// One deterministic CBOR map.
    pub fn to_bytes(&self) -> Vec<u8> {
        cbor::encode(self)
    }

    /// Inverse of [`RecipeRoot::to_bytes`]. `Protocol` if malformed or beyond the limits, `Unsupported` if its profile is not
    /// known here.
    pub fn from_bytes(bytes: &[u8]) -> Result<RecipeRoot> {
        RecipeRoot::try_from(cbor::decode::<WireRoot>(bytes, "recipe root")?)
    }

    fn check(&self) -> Result<()> {
        let (level, chunks) = (self.level, self.node.chunks);
        if level > RECIPE_LEVEL_MAX {
            return Err(bad(format_args!("level {level}, limit {RECIPE_LEVEL_MAX}")));
        }
        if self.node.size_bytes > RECIPE_OBJECT_BYTES_MAX {
            return Err(bad(format_args!("an object of {} bytes, limit 2^42", self.node.size_bytes)));
        }
        // Its first child is full, and there is another.
        let chunks_min = (RECIPE_NODE_ENTRIES_MIN as u64).pow(level.into()) + 1;
        if level > 0 && u64::from(chunks) < chunks_min {
            return Err(bad(format_args!("{chunks} chunks at level {level}, at least {chunks_min}")));
        }
        if (level, chunks, self.node.size_bytes) == (0, 0, 0) {
            return Ok(());
        }
        check_totals(self.profile, level, &self.node).map_err(bad)
    }
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WireRoot {
    #[n(0)]
    profile: WireProfile,
    #[n(1)]
    node: ByteArray<{ RecipeId::BYTES }>,
    #[n(2)]
    level: u8,
    #[n(3)]
    size_bytes: u64,
    #[n(4)]
    chunks: u32,
}

impl TryFrom<WireRoot> for RecipeRoot {
    type Error = Error;

    fn try_from(wire: WireRoot) -> Result<RecipeRoot> {
        let node = ChildEntry {
            id: RecipeId::from_bytes(*wire.node),
            size_bytes: wire.size_bytes,
            chunks: wire.chunks,
        };
        let root = RecipeRoot { profile: Profile::try_from(wire.profile)?, node, level: wire.level };
        root.check()?;
        Ok(root)
    }
}

impl<C> Encode<C> for RecipeRoot {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        WireRoot {
            profile: self.profile.into(),
            node: (*self.node.id.as_bytes()).into(),
            level: self.level,
            size_bytes: self.node.size_bytes,
            chunks: self.node.chunks,
        }
        .encode(e, ctx)
    }
}

impl<'b, C> Decode<'b, C> for RecipeRoot {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<RecipeRoot, minicbor::decode::Error> {
        RecipeRoot::try_from(WireRoot::decode(d, ctx)?).map_err(minicbor::decode::Error::custom)
    }
}
