//! A whole recipe in memory: what a holder answers from, and what a receiver knows of an older version it has.
//!
//! An object has at most about 2^20 chunks, so a recipe takes at most about 40 MiB; see `docs/format/recipe.md`.

use std::collections::HashMap;

use dray_core::chunker::Profile;
use dray_core::limits::UNIT_BYTES;
use dray_core::recipe::{
    ChunkDescriptor, PlacedChunk, ReaderLimits, RecipeBuilder, RecipeId, RecipeReader, RecipeRoot,
};
use dray_core::{Error, ErrorKind, Result};

/// What the table takes for a node, its key and the allocator's own included.
const NODE_ENTRY_BYTES: usize = size_of::<(RecipeId, Vec<u8>)>() + 17;

/// A recipe with all its nodes.
#[derive(Debug)]
pub struct Recipe {
    root: RecipeRoot,
    nodes: HashMap<RecipeId, Vec<u8>>,
}

impl Recipe {
    /// Cuts `size_bytes` bytes, which `read` gives from ascending offsets in pieces of at most a unit, as `profile` says, and
    /// hands every chunk to `chunk`. Errors are those of `read`, and `Unsupported` for an object of too many chunks.
    pub fn read(
        size_bytes: u64,
        profile: Profile,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
        chunk: &mut dyn FnMut(PlacedChunk),
    ) -> Result<Recipe> {
        let mut nodes = HashMap::new();
        let mut builder = RecipeBuilder::new(profile);
        let mut chunker = profile.chunker();
        let (mut offset, mut failed) = (0, None);
        let mut piece = vec![0; UNIT_BYTES.min(size_bytes) as usize];
        {
            let mut take = |bytes: &[u8]| {
                let described = ChunkDescriptor::of(bytes);
                chunk(PlacedChunk { offset, chunk: described });
                offset += bytes.len() as u64;
                let pushed = builder.push(described, &mut |node| {
                    nodes.insert(node.id, node.bytes);
                });
                failed = failed.take().or(pushed.err());
            };
            let mut position = 0;
            while position < size_bytes {
                let len = (size_bytes - position).min(UNIT_BYTES) as usize;
                read(position, &mut piece[..len])?;
                chunker.push(&piece[..len], &mut take);
                position += len as u64;
            }
            chunker.finish(&mut take);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let root = builder.finish(&mut |node| {
            nodes.insert(node.id, node.bytes);
        });
        Ok(Recipe { root, nodes })
    }

    /// Its root.
    pub fn root(&self) -> RecipeRoot {
        self.root
    }

    /// Memory it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let nodes: usize = self.nodes.values().map(Vec::capacity).sum();
        (nodes + self.nodes.capacity() * NODE_ENTRY_BYTES) as u64
    }

    /// The bytes of a node; `NotFound` if it is none of this recipe.
    pub fn node(&self, id: &RecipeId) -> Result<&[u8]> {
        let found = self.nodes.get(id).map(Vec::as_slice);
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the recipe has no node {id}")))
    }

    /// Hands every chunk to `chunk`, in order. Errors are those of `chunk`.
    pub fn chunks(&self, chunk: &mut dyn FnMut(PlacedChunk) -> Result<()>) -> Result<()> {
        let mut reader = RecipeReader::new(&self.root, ReaderLimits::default());
        while !reader.is_done() {
            while let Some(request) = reader.next_request(&mut |_| true)? {
                reader.accept(&request.id, self.node(&request.id)?)?;
            }
            while let Some(placed) = reader.next_chunk() {
                chunk(placed)?;
            }
        }
        Ok(())
    }

    /// True if `id` is one of its nodes.
    pub fn contains(&self, id: &RecipeId) -> bool {
        self.nodes.contains_key(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader is told from the nodes is what was cut (D17), and the pieces in which the bytes were read do not show.
    #[test]
    fn a_recipe_reads_back_as_the_chunks_it_was_made_of() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let data: Vec<u8> = (0..5 * UNIT_BYTES + 4321).map(|_| next()).collect();
        let mut cut = Vec::new();
        let size_bytes = data.len() as u64;
        let profile = Profile::for_size(size_bytes).unwrap();
        let mut read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&data[offset as usize..][..out.len()]);
            Ok(())
        };
        let recipe = Recipe::read(size_bytes, profile, &mut read, &mut |chunk| cut.push(chunk)).unwrap();
        assert_eq!(recipe.root().size_bytes(), size_bytes);
        assert!(cut.len() > 100);
        for placed in &cut {
            let bytes = &data[placed.offset as usize..][..placed.chunk.len as usize];
            assert_eq!(ChunkDescriptor::of(bytes), placed.chunk);
        }
        let mut told = Vec::new();
        recipe
            .chunks(&mut |placed| {
                told.push(placed);
                Ok(())
            })
            .unwrap();
        assert_eq!(told, cut);
        let stranger = RecipeId::from_bytes([0; 32]);
        assert!(!recipe.contains(&stranger));
        assert_eq!(recipe.node(&stranger).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// An error of the disk is the caller's to hear, not a shorter recipe.
    #[test]
    fn errors_of_reading_come_through() {
        let profile = Profile::default();
        let mut read = |_: u64, _: &mut [u8]| Err(Error::new(ErrorKind::Changed, "it changed"));
        let error = Recipe::read(10, profile, &mut read, &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }
}
