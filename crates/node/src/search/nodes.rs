//! Recipe nodes of the files that a search reads (D17): what of the object's recipe is the same is known here, and need not be asked for, as with an
//! older version at the destination.

use std::collections::HashMap;
use std::sync::Arc;

use dray_core::chunker::Profile;
use dray_core::limits::SEARCH_NODES_BYTES_MAX;
use dray_core::recipe::{BuiltNode, ChunkDescriptor, RecipeBuilder, RecipeId};

use super::memory::Memory;

/// What a node takes beside its bytes, in a table that is being enlarged.
const NODE_HELD_BYTES: u64 = 208;

/// All of them. They are named by what they are, so it does not matter whose they were, nor whether that has changed since.
#[derive(Debug)]
pub(super) struct Nodes {
    memory: Arc<Memory>,
    nodes: HashMap<RecipeId, Vec<u8>>,
    held_bytes: u64,
}

impl Nodes {
    /// None, within `memory`.
    pub(super) fn within(memory: Arc<Memory>) -> Nodes {
        Nodes { memory, nodes: HashMap::new(), held_bytes: 0 }
    }

    /// Remembers a node, if there is room.
    pub(super) fn add(&mut self, id: RecipeId, bytes: Vec<u8>) {
        let held_bytes = NODE_HELD_BYTES + bytes.len() as u64;
        let has_room = self.held_bytes + held_bytes <= SEARCH_NODES_BYTES_MAX;
        if has_room && !self.nodes.contains_key(&id) && self.memory.take(held_bytes) {
            self.held_bytes += held_bytes;
            self.nodes.insert(id, bytes);
        }
    }

    /// The bytes of a node.
    pub(super) fn get(&self, id: &RecipeId) -> Option<Vec<u8>> {
        self.nodes.get(id).cloned()
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        self.nodes = HashMap::new();
        self.memory.give(std::mem::take(&mut self.held_bytes));
    }
}

/// Makes the nodes of one file while it is cut.
pub(super) struct Making(Option<RecipeBuilder>);

impl Making {
    /// Of a file that is cut as `profile` says; of none without it.
    pub(super) fn of(profile: Option<Profile>) -> Making {
        Making(profile.map(RecipeBuilder::new))
    }

    /// The nodes that are complete with the next chunk.
    pub(super) fn push(&mut self, chunk: ChunkDescriptor, nodes: &mut Vec<BuiltNode>) {
        // A file of more chunks than a recipe may have has none.
        let failed =
            self.0.as_mut().and_then(|builder| builder.push(chunk, &mut |node| nodes.push(node)).err());
        if failed.is_some() {
            self.0 = None;
        }
    }

    /// Those that end with the file.
    pub(super) fn finish(&mut self, nodes: &mut Vec<BuiltNode>) {
        if let Some(builder) = self.0.take() {
            builder.finish(&mut |node| nodes.push(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use dray_core::permit::Budget;

    use super::*;

    /// Design 7: nodes have a bound of their own beside that of the search's memory, and give back what they took.
    #[test]
    fn nodes_are_bounded() {
        for (limit_bytes, most_bytes) in [(64 << 20, SEARCH_NODES_BYTES_MAX), (2 << 20, 1 << 20)] {
            let budget = Budget::new(limit_bytes);
            let mut nodes = Nodes::within(Arc::new(Memory::of(&budget)));
            let id = |number: u64| {
                let mut id = [0; 32];
                id[..8].copy_from_slice(&number.to_le_bytes());
                RecipeId::from_bytes(id)
            };
            for number in 0..SEARCH_NODES_BYTES_MAX / 1000 {
                nodes.add(id(number), vec![number as u8; 1000]);
                nodes.add(id(0), vec![0; 1000]);
            }
            let used = nodes.nodes.len() as u64 * (1000 + NODE_HELD_BYTES);
            assert_eq!(nodes.held_bytes, used);
            assert!((most_bytes - 2000..=most_bytes).contains(&used), "{used} of {most_bytes}");
            assert_eq!(nodes.get(&id(7)), Some(vec![7; 1000]));
            nodes.clear();
            assert_eq!((nodes.get(&id(7)), budget.used_bytes()), (None, 0));
        }
    }
}
