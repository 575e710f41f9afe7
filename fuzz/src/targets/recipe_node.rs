//! Targets `recipe-node` and `recipe-root`: the packed nodes of a recipe and its root in CBOR, from a stranger.

use dray_core::ErrorKind;
use dray_core::limits::{
    OBJECT_BYTES_MAX, RECIPE_CHUNKS_MAX, RECIPE_LEVEL_MAX, RECIPE_NODE_BYTES_MAX, RECIPE_NODE_ENTRIES_MAX,
    RECIPE_OBJECT_BYTES_MAX,
};
use dray_core::recipe::{RecipeNode, RecipeRoot};

use super::recipe_reader::RECIPES;
use crate::{Seed, novelty};

/// What decodes encodes to the same bytes and is within the limits; totals do not overflow.
pub fn node_target(data: &[u8]) {
    let node = match RecipeNode::from_bytes(data) {
        Ok(node) => node,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{error}");
            return super::assert_clear(&error);
        }
    };
    assert_eq!(node.to_bytes(), data, "a node has one encoding");
    let entries = node.entries().len();
    assert!(data.len() <= RECIPE_NODE_BYTES_MAX && entries <= RECIPE_NODE_ENTRIES_MAX);
    assert!(node.level() <= RECIPE_LEVEL_MAX && (node.level() == 0 || entries > 0));
    assert!(node.size_bytes() <= OBJECT_BYTES_MAX && node.chunks() as usize >= entries);
    assert!(node.size_bytes() >= u64::from(node.chunks()));
    novelty::note((node.level(), node.profile().average_bytes(), entries.next_power_of_two()));
}

/// A root that decodes is one that fits the limits, and encodes to the same root.
pub fn root_target(data: &[u8]) {
    let root = match RecipeRoot::from_bytes(data) {
        Ok(root) => root,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{error}");
            return super::assert_clear(&error);
        }
    };
    assert_eq!(RecipeRoot::from_bytes(&root.to_bytes()).ok(), Some(root));
    assert!(root.level() <= RECIPE_LEVEL_MAX && root.chunks() <= RECIPE_CHUNKS_MAX);
    assert!(root.size_bytes() <= RECIPE_OBJECT_BYTES_MAX);
    assert_eq!(root.chunks() == 0, root.size_bytes() == 0);
    novelty::note((root.level(), root.profile().average_bytes(), root.chunks().next_power_of_two()));
}

/// The first leaf and the uppermost node of each recipe.
pub fn node_seeds() -> Vec<Seed> {
    let ends = RECIPES.iter().enumerate().flat_map(|(index, recipe)| {
        let (first, last) = (recipe.nodes.first(), recipe.nodes.last());
        let seed = move |name: &str, node: &(_, Vec<u8>)| (format!("{name}-{index}"), node.1.clone());
        let leaf = first.map(|node| seed("leaf", node));
        leaf.into_iter().chain(last.filter(|node| node.1[1] > 0).map(|node| seed("top", node)))
    });
    // The longest ones make poor seeds.
    ends.filter(|(_, bytes)| bytes.len() < 3000).collect()
}

/// The root of each recipe.
pub fn root_seeds() -> Vec<Seed> {
    RECIPES
        .iter()
        .enumerate()
        .map(|(index, recipe)| (format!("root-{index}"), recipe.root.to_bytes()))
        .collect()
}
