//! Building a recipe from its descriptors as they come. Nodes leave when they are complete; at most one unfinished
//! node for each level stays.

use crate::chunker::Profile;
use crate::limits::{RECIPE_CHUNKS_MAX, RECIPE_NODE_ENTRIES_MAX, RECIPE_OBJECT_BYTES_MAX};
use crate::{Error, ErrorKind, Result};

use super::node::{check_chunk_len, ends_node};
use super::{ChildEntry, ChunkDescriptor, Entries, RecipeId, RecipeNode, RecipeRoot};

/// A node that is complete. Children come before their parents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuiltNode {
    /// Its name.
    pub id: RecipeId,
    /// Its encoding, at most [`crate::limits::RECIPE_NODE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// What it says.
    pub node: RecipeNode,
}

/// Makes the recipe of one object. The same descriptors give the same nodes and the same root.
#[derive(Debug)]
pub struct RecipeBuilder {
    profile: Profile,
    leaf: Vec<ChunkDescriptor>,
    /// Unfinished inner nodes; the first has level 1. One is there once a node below it was complete.
    inner: Vec<Vec<ChildEntry>>,
    size_bytes: u64,
    chunks: u32,
    /// A chunk shorter than the profile's shortest came: it must be the last.
    has_ended: bool,
}

impl RecipeBuilder {
    /// A builder for an object cut with `profile`.
    pub fn new(profile: Profile) -> RecipeBuilder {
        RecipeBuilder {
            profile,
            leaf: Vec::new(),
            inner: Vec::new(),
            size_bytes: 0,
            chunks: 0,
            has_ended: false,
        }
    }

    /// Bytes of the object so far: where the next chunk begins.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Appends the next chunk and hands the nodes that are complete with it to `out`. `Usage` if the profile makes no such
    /// chunk; `Unsupported` beyond 2^22 chunks or 4 TiB. After an error there is no recipe of this object with this
    /// profile.
    pub fn push(&mut self, chunk: ChunkDescriptor, out: &mut dyn FnMut(BuiltNode)) -> Result<()> {
        check_chunk_len(self.profile, chunk.len, true)
            .and_then(|()| {
                if self.has_ended {
                    Err("a chunk after one that only the last may be".into())
                } else {
                    Ok(())
                }
            })
            .map_err(|why| Error::new(ErrorKind::Usage, format!("recipe cannot be made: {why}")))?;
        let size_bytes = self.size_bytes + u64::from(chunk.len);
        if self.chunks == RECIPE_CHUNKS_MAX || size_bytes > RECIPE_OBJECT_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("recipe would have more than {RECIPE_CHUNKS_MAX} chunks or 2^42 bytes"),
            )
            .advise("use the profile for the object's size, or send the object without a recipe"));
        }
        self.has_ended = chunk.len < self.profile.chunk_bytes_min();
        self.size_bytes = size_bytes;
        self.chunks += 1;
        self.leaf.push(chunk);
        if ends_node(self.leaf.len(), &chunk.hash) {
            let child = self.close_leaf(out);
            self.push_child(0, child, out);
        }
        Ok(())
    }

    /// Ends the object: hands over the remaining nodes and returns the root. What was one leaf, as the recipe of an empty
    /// object is, has that leaf as root.
    pub fn finish(mut self, out: &mut dyn FnMut(BuiltNode)) -> RecipeRoot {
        if self.inner.is_empty() {
            let node = self.close_leaf(out);
            return RecipeRoot { profile: self.profile, node, level: 0 };
        }
        if !self.leaf.is_empty() {
            let child = self.close_leaf(out);
            self.push_child(0, child, out);
        }
        let mut above = 0;
        loop {
            let is_top = above + 1 == self.inner.len();
            match (is_top, self.inner[above].as_slice()) {
                // All there is lies below one node: that is the root.
                (true, [only]) => {
                    return RecipeRoot { profile: self.profile, node: *only, level: above as u8 };
                }
                (true, _) => {
                    let node = self.close_inner(above, out);
                    return RecipeRoot { profile: self.profile, node, level: above as u8 + 1 };
                }
                (false, []) => {}
                (false, _) => {
                    let child = self.close_inner(above, out);
                    self.push_child(above + 1, child, out);
                }
            }
            above += 1;
        }
    }

    /// Adds a complete node to the unfinished one at `inner[above]`, and so on upwards while that completes it.
    fn push_child(&mut self, mut above: usize, mut child: ChildEntry, out: &mut dyn FnMut(BuiltNode)) {
        loop {
            if above == self.inner.len() {
                self.inner.push(Vec::with_capacity(RECIPE_NODE_ENTRIES_MAX));
            }
            self.inner[above].push(child);
            if !ends_node(self.inner[above].len(), child.id.as_bytes()) {
                return;
            }
            child = self.close_inner(above, out);
            above += 1;
        }
    }

    fn close_leaf(&mut self, out: &mut dyn FnMut(BuiltNode)) -> ChildEntry {
        let chunks = std::mem::take(&mut self.leaf);
        self.close(0, Entries::Chunks(chunks), out)
    }

    fn close_inner(&mut self, above: usize, out: &mut dyn FnMut(BuiltNode)) -> ChildEntry {
        let children = std::mem::take(&mut self.inner[above]);
        self.close(above as u8 + 1, Entries::Children(children), out)
    }

    fn close(&self, level: u8, entries: Entries, out: &mut dyn FnMut(BuiltNode)) -> ChildEntry {
        let node = RecipeNode::from_checked(self.profile, level, entries);
        let bytes = node.to_bytes();
        let child = ChildEntry {
            id: RecipeId::of_node(&bytes),
            size_bytes: node.size_bytes(),
            chunks: node.chunks(),
        };
        out(BuiltNode { id: child.id, bytes, node });
        child
    }
}
