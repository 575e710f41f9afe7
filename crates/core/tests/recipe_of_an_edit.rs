//! What an edit of real bytes changes in a recipe (issue 3: 16 bytes inserted, fewer than 12 nodes, below 40 kB). The
//! whole 2 GiB take a release build: `cargo test --release -p dray-core --test recipe_of_an_edit -- --ignored`.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

use std::collections::HashMap;

use dray_core::chunker::Profile;
use dray_core::recipe::{BuiltNode, ChunkDescriptor, RecipeBuilder, RecipeId, RecipeRoot};
use dray_testkit::sample;

const BLOCK: u64 = 1 << 20;

/// The recipe of `blocks` MiB, with `insert` in front of the byte at `at`: lengths of its nodes by id.
fn recipe(
    blocks: u64,
    at: u64,
    insert: &[u8],
) -> (RecipeRoot, HashMap<RecipeId, usize>, HashMap<[u8; 32], u32>) {
    let profile = Profile::for_size(blocks * BLOCK).unwrap();
    let (mut builder, mut chunker) = (RecipeBuilder::new(profile), profile.chunker());
    let (mut nodes, mut chunks) = (HashMap::new(), HashMap::new());
    let mut keep = |node: BuiltNode| {
        nodes.insert(node.id, node.bytes.len());
    };
    let mut take = |chunk: &[u8]| {
        let chunk = ChunkDescriptor::of(chunk);
        chunks.insert(chunk.hash, chunk.len);
        builder.push(chunk, &mut keep).unwrap();
    };
    for block in 0..blocks {
        let data = sample::bytes(BLOCK as usize, block);
        if at / BLOCK == block {
            let (before, after) = data.split_at((at % BLOCK) as usize);
            for part in [before, insert, after] {
                chunker.push(part, &mut take);
            }
        } else {
            chunker.push(&data, &mut take);
        }
    }
    chunker.finish(&mut take);
    let root = builder.finish(&mut keep);
    (root, nodes, chunks)
}

fn check(blocks: u64, places: &[u64]) {
    let (old, old_nodes, old_chunks) = recipe(blocks, u64::MAX, &[]);
    for at in places {
        let (new, nodes, chunks) = recipe(blocks, *at, b"sixteen bytes...");
        assert_eq!(new.size_bytes(), old.size_bytes() + 16);
        let changed: Vec<usize> =
            nodes.iter().filter(|(id, _)| !old_nodes.contains_key(id)).map(|(_, len)| *len).collect();
        let data: u32 =
            chunks.iter().filter(|(hash, _)| !old_chunks.contains_key(*hash)).map(|(_, len)| len).sum();
        let wire: usize = changed.iter().sum();
        assert!(!changed.is_empty() && changed.len() < 12 && wire < 40_000, "at {at}: {changed:?}");
        assert!(data <= 4 * new.profile().chunk_bytes_max(), "{data} bytes of chunks changed");
    }
}

/// Issue 3, D24: on 24 MiB, at the start, in the middle and at the end.
#[test]
fn sixteen_bytes_inserted_into_24_mib() {
    check(24, &[0, 13 * BLOCK + 12_345, 24 * BLOCK - 1]);
}

/// Issue 3: on 2 GiB.
#[test]
#[ignore = "chunks 6 GiB: seconds in a release build, minutes in a debug build"]
fn sixteen_bytes_inserted_into_2_gib() {
    check(2048, &[0, 1_234_567_890]);
}
