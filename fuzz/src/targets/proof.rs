//! Target `proof`: parent pairs from a holder that may lie. A verifier accepts the true pairs and no others, in any
//! order, however much it claims to know already.

use dray_core::ErrorKind;
use dray_core::hash_tree::{Geometry, MemoryPairs, PAIR_BYTES, Subtree, Verifier, encode_parents};

use super::object::{OBJECTS, Object};
use crate::input::Input;
use crate::{Seed, novelty};

/// Replies one input may give.
const REPLIES_MAX: usize = 32;

/// Accepted is exactly what is true; what was accepted yields the true group values and stays usable.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let object = &OBJECTS[input.below(OBJECTS.len())];
    let geometry = object.geometry;
    let holder = MemoryPairs::from(object.pairs.clone());
    let verifier =
        Verifier::new(geometry, object.oid, MemoryPairs::new(geometry).expect("small")).expect("small");
    for _ in 0..REPLIES_MAX {
        if input.is_empty() {
            break;
        }
        let node = subtree(geometry, &mut input);
        let known = verifier.known_depth(node);
        // Mostly what a requester says, sometimes a claim of its own.
        let claimed = match input.byte() {
            claim @ 200.. => usize::from(claim - 200),
            _ => known,
        };
        let truth = encode_parents(geometry, node, claimed, &holder).expect("below the limit of a request");
        let reply = tampered(&truth, &mut input);
        match verifier.accept_parents(node, claimed, &reply) {
            Ok(leaves) => {
                assert!(reply == truth, "false parents accepted for {node:?} with {claimed} claimed known");
                assert_eq!(leaves, object.leaves[node.start as usize..node.end() as usize]);
                novelty::note(("accepted", geometry.groups(), node.groups, claimed));
            }
            Err(error) if claimed <= known => {
                assert!(reply != truth, "true parents refused for {node:?}: {error}");
                assert_eq!(error.kind(), ErrorKind::VerificationFailed);
                super::assert_clear(&error);
            }
            Err(error) => super::assert_clear(&error),
        }
        assert!(verifier.known_depth(node) >= known, "what was proven stays proven");
    }
    check_kept(object, &verifier);
}

/// Some subtree of the tree: down from the root as the input says.
fn subtree(geometry: Geometry, input: &mut Input<'_>) -> Subtree {
    let mut node = geometry.root();
    let mut turns = input.u16();
    while node.groups >= 2 && turns & 3 != 3 {
        let (left, right) = node.children();
        node = if turns & 1 == 0 { left } else { right };
        turns >>= 2;
    }
    node
}

/// The true reply, altered as the input says.
fn tampered(truth: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut reply = truth.to_vec();
    match input.byte() % 8 {
        0..=2 => {}
        3 if !reply.is_empty() => {
            let at = input.below(reply.len());
            reply[at] ^= 1 << (input.byte() % 8);
        }
        4 => reply.truncate(input.below(reply.len() + 1)),
        5 => {
            let len = input.below(3 * PAIR_BYTES);
            reply.extend_from_slice(input.bytes(len));
        }
        6 if reply.len() >= 2 * PAIR_BYTES => {
            let pairs = reply.len() / PAIR_BYTES;
            let (a, b) = (input.below(pairs), input.below(pairs));
            for index in 0..PAIR_BYTES {
                reply.swap(a * PAIR_BYTES + index, b * PAIR_BYTES + index);
            }
        }
        _ => {
            let bytes = input.bytes(reply.len());
            reply[..bytes.len()].copy_from_slice(bytes);
        }
    }
    reply
}

/// Every pair that the verifier now counts on is a true one.
fn check_kept(object: &Object, verifier: &Verifier<MemoryPairs>) {
    let kept = verifier.pairs().to_vec();
    for group in 0..object.geometry.groups() {
        let path = object.geometry.path(Subtree { start: group, groups: 1 });
        for node in &path[..verifier.known_depth(Subtree { start: group, groups: 1 })] {
            let at = node.pair_index() as usize * PAIR_BYTES;
            assert_eq!(kept[at..at + PAIR_BYTES], object.pairs[at..at + PAIR_BYTES], "{node:?}");
        }
    }
}

/// Honest runs over each object, and one lie of each sort.
pub fn seeds() -> Vec<Seed> {
    // A step: two bytes that choose the subtree (3: stop here), the claim (0: as known), the lie.
    let honest =
        |object: u8| [&[object][..], &[0x00, 0x03, 0, 0], &[0x00, 0x0d, 0, 0], &[0xff, 0xff, 0, 0]].concat();
    let mut seeds: Vec<Seed> =
        (0..OBJECTS.len() as u8).map(|object| (format!("honest-{object}"), honest(object))).collect();
    for (name, lie) in [
        ("flip", &[3, 9, 2][..]),
        ("truncate", &[4, 1]),
        ("extend", &[5, 64, 1, 2, 3]),
        ("swap", &[6, 0, 1]),
        ("replace", &[7, 1, 1, 1, 1]),
    ] {
        seeds.push((name.into(), [&[4, 0x00, 0x0c, 0][..], lie, &[0x00, 0x0c, 0, 0]].concat()));
    }
    seeds.push(("claims-to-know".into(), vec![4, 0x00, 0x0c, 201, 0, 0x00, 0x30, 255, 0]));
    seeds
}
