//! Target `geometry`: a fetch names a subtree by two numbers; only what is a subtree may be served.

use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{GROUP_BYTES, OBJECT_BYTES_MAX};

use crate::input::Input;
use crate::{Seed, novelty};

/// `subtree` says yes exactly to the subtrees of BLAKE3's tree, whatever the numbers; paths and ranges of those are
/// sound.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let size_bytes = number(&mut input) % (OBJECT_BYTES_MAX + 1);
    let geometry = Geometry::new(size_bytes);
    let total = geometry.groups();
    assert_eq!(total, (size_bytes / GROUP_BYTES + u64::from(!size_bytes.is_multiple_of(GROUP_BYTES))).max(1));
    while !input.is_empty() {
        let (start, groups) = (number(&mut input), number(&mut input));
        let found = geometry.subtree(start, groups);
        assert_eq!(found.is_some(), is_subtree(total, start, groups), "{start}+{groups} of {total}");
        if let Some(node) = found {
            assert_eq!(node, Subtree { start, groups });
            check_subtree(geometry, node);
        }
        // What is no subtree still has an end to its path, and no node of it lies outside the tree.
        let path = geometry.path(Subtree { start, groups: groups.max(1) });
        assert!(path.len() <= 64 && path.iter().all(|node| node.end() <= total && node.groups >= 1));
        novelty::note((found.is_some(), path.len()));
    }
}

/// A number near a power of two, anywhere, or small.
fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() % 4 {
        0 => input.u64(),
        1 => u64::from(input.u16()),
        2 => input.near_power().wrapping_mul(GROUP_BYTES),
        _ => input.near_power(),
    }
}

/// BLAKE3 §2.1 put another way: the complete subtrees are the aligned powers of two, and the others lie on the right
/// edge, where each is what the one above leaves after its largest smaller power of two.
pub(super) fn is_subtree(total: u64, start: u64, groups: u64) -> bool {
    let Some(end) = start.checked_add(groups).filter(|end| groups > 0 && *end <= total) else { return false };
    if groups.is_power_of_two() && start.is_multiple_of(groups) {
        return true;
    }
    let mut edge = 0;
    while end == total && edge < start {
        let left = 1 << (total - edge - 1).ilog2();
        edge += left;
    }
    end == total && edge == start
}

fn check_subtree(geometry: Geometry, node: Subtree) {
    let path = geometry.path(node);
    assert_eq!((path.first(), path.last()), (Some(&geometry.root()), Some(&node)));
    for step in path.windows(2) {
        let (left, right) = step[0].children();
        assert!(step[1] == left || step[1] == right);
        assert_eq!((left.start, left.end(), right.end()), (step[0].start, right.start, step[0].end()));
    }
    let range = geometry.byte_range(node);
    assert!(range.end <= geometry.size_bytes() && range.start <= range.end);
    assert!(range.end - range.start <= node.groups * GROUP_BYTES);
    assert_eq!(range.is_empty(), geometry.size_bytes() == 0);
    if node.groups >= 2 {
        assert!(node.first_pair_index() <= node.pair_index() && node.pair_index() < geometry.pairs());
    }
    assert!(geometry.group_bytes(node.end() - 1) as u64 <= GROUP_BYTES);
}

/// Sizes with a few questions each.
pub fn seeds() -> Vec<Seed> {
    let question = |start: u64, groups: u64| -> Vec<u8> {
        [&[0][..], &start.to_be_bytes(), &[0], &groups.to_be_bytes()].concat()
    };
    let seed = |name: &str, size: u64, questions: &[(u64, u64)]| -> Seed {
        let mut bytes = [&[0][..], &size.to_be_bytes()].concat();
        bytes.extend(questions.iter().flat_map(|(start, groups)| question(*start, *groups)));
        (name.into(), bytes)
    };
    vec![
        seed("empty", 0, &[(0, 1), (0, 0), (1, 1)]),
        seed("ten-groups", 10 * GROUP_BYTES, &[(0, 10), (8, 2), (4, 4), (4, 6), (9, 1 << 40), (u64::MAX, 2)]),
        seed("uneven", 1_000_003 * GROUP_BYTES - 1, &[(0, 16), (1 << 19, 16), (999_936, 67), (1_000_002, 1)]),
        seed("largest", OBJECT_BYTES_MAX, &[(0, 1 << 44), ((1 << 44) - 1024, 1024)]),
        ("near-powers".into(), vec![2, 10, 1, 3, 4, 0, 3, 4, 0, 3, 140, 255, 3, 130, 0]),
    ]
}
