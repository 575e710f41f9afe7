//! Target `recover`: an outboard and a map that an earlier run left on disk and something damaged since (design 10).

use dray_core::hash_tree::{MemoryPairs, PAIR_BYTES, Subtree, Verifier, encode_parents};

use super::object::{OBJECTS, Object};
use crate::input::Input;
use crate::{Seed, novelty};

/// A done unit is trusted exactly if there are pairs on the way to it and every one is intact, and what is lost can be
/// proven again.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let object = &OBJECTS[input.below(OBJECTS.len())];
    let geometry = object.geometry;
    let done = input.byte();
    let is_done = |unit: u64| done >> (unit % 8) & 1 == 1;
    let mut left = object.pairs.clone();
    while !input.is_empty() && !left.is_empty() {
        let at = input.below(left.len());
        left[at] ^= input.byte();
    }
    let verifier = Verifier::new(geometry, object.oid, MemoryPairs::from(left.clone())).expect("small");
    let intact = verifier.recover(&is_done).expect("memory");
    let expected: Vec<u64> = (0..geometry.units())
        .filter(|unit| is_done(*unit) && geometry.groups() > 1)
        .filter(|unit| geometry.path(geometry.unit(*unit)).iter().all(|node| same_pair(object, &left, *node)))
        .collect();
    assert_eq!(intact, expected);
    novelty::note((geometry.groups(), done.count_ones(), intact.len()));

    let holder = MemoryPairs::from(object.pairs.clone());
    for unit in 0..geometry.units() {
        let node = geometry.unit(unit);
        let known = verifier.known_depth(node);
        let parents = encode_parents(geometry, node, known, &holder).expect("small");
        let leaves = verifier.accept_parents(node, known, &parents).expect("true parents");
        assert_eq!(leaves, object.leaves[node.start as usize..node.end() as usize]);
    }
    assert!(verifier.pairs().to_vec() == object.pairs, "proving everything again repairs the outboard");
}

fn same_pair(object: &Object, left: &[u8], node: Subtree) -> bool {
    let pair = |pairs: &[u8]| {
        let at = node.pair_index() as usize * PAIR_BYTES;
        pairs[at..at + PAIR_BYTES].to_vec()
    };
    node.groups < 2 || pair(left) == pair(&object.pairs)
}

/// Undamaged, and damaged at the root, in a unit and between.
pub fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> =
        (0..OBJECTS.len() as u8).map(|object| (format!("undamaged-{object}"), vec![object, 0xff])).collect();
    seeds.push(("first-unit".into(), vec![4, 0xff, 0x00, 0x05, 0x01]));
    seeds.push(("root".into(), vec![4, 0x07, 0x08, 0xc0, 0x80]));
    seeds.push(("two-places".into(), vec![5, 0x05, 0x03, 0x80, 0x01, 0x0f, 0x00, 0xff]));
    seeds
}
