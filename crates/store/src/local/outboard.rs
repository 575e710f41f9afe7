//! Making, checking and mending outboards (`docs/format/outboard.md`).

use std::fs::File;
use std::path::Path;

use dray_core::hash_tree::{Collector, Cv, Geometry, PAIR_BYTES, PairStore, Subtree};
use dray_core::{Oid, Result};

use super::extents::io_at;
use super::hashing::{Watch, hash_units, merge};
use super::object::FilePairs;
use super::place::{Place, TempFile};

/// Groups whose pairs are read at once when an outboard is checked (64 KiB of pairs).
const CHECKED_GROUPS: u64 = 1024;

/// Hashes `file` and returns its OID and its outboard in a temporary file.
pub(super) fn build(
    place: &Place,
    file: &File,
    path: &Path,
    geometry: Geometry,
    watch: &Watch<'_>,
) -> Result<(Oid, TempFile)> {
    let temp = place.temp()?;
    let handle = temp.file().set_len(geometry.outboard_bytes()).and_then(|()| temp.file().try_clone());
    let handle = handle.map_err(|error| io_at("write", temp.path(), error))?;
    let collector = Collector::new(geometry, FilePairs::new(handle, temp.path(), geometry));
    hash_units(file, path, geometry, watch, &|unit, leaves| collector.record_unit(unit, leaves))?;
    let oid = collector.finish()?;
    Ok((oid, temp))
}

/// Whether `pairs` are the outboard of `oid`: every pair hashes to the half of its parent that names it. An object
/// of one group has no pairs and nothing to check.
pub(super) fn is_right(geometry: Geometry, oid: &Oid, pairs: &FilePairs) -> Result<bool> {
    check_from_file(geometry, geometry.root(), oid.as_bytes(), pairs)
}

/// Whether the pairs on the way from the root to `groups`, and those below it, are right.
pub(super) fn is_right_at(geometry: Geometry, oid: &Oid, pairs: &FilePairs, groups: Subtree) -> Result<bool> {
    let mut expected = *oid.as_bytes();
    for node in geometry.path(groups) {
        if node == groups {
            return check_from_file(geometry, node, &expected, pairs);
        }
        let mut pair = [0; PAIR_BYTES];
        pairs.read_pairs(node.pair_index(), &mut pair)?;
        let (left_cv, right_cv) = halves(&pair);
        if merge(&left_cv, &right_cv, node == geometry.root()) != expected {
            return Ok(false);
        }
        let (_, right) = node.children();
        expected = if groups.start >= right.start { right_cv } else { left_cv };
    }
    Ok(false)
}

fn check_from_file(geometry: Geometry, node: Subtree, expected: &Cv, pairs: &FilePairs) -> Result<bool> {
    if node.groups == 1 {
        return Ok(true);
    }
    if node.groups <= CHECKED_GROUPS {
        let mut bytes = vec![0; (node.groups - 1) as usize * PAIR_BYTES];
        pairs.read_pairs(node.first_pair_index(), &mut bytes)?;
        return Ok(check_in_memory(geometry, node, expected, node.first_pair_index(), &bytes));
    }
    let mut pair = [0; PAIR_BYTES];
    pairs.read_pairs(node.pair_index(), &mut pair)?;
    let (left_cv, right_cv) = halves(&pair);
    let (left, right) = node.children();
    Ok(merge(&left_cv, &right_cv, node == geometry.root()) == *expected
        && check_from_file(geometry, left, &left_cv, pairs)?
        && check_from_file(geometry, right, &right_cv, pairs)?)
}

fn check_in_memory(geometry: Geometry, node: Subtree, expected: &Cv, first_index: u64, bytes: &[u8]) -> bool {
    if node.groups == 1 {
        return true;
    }
    let at = (node.pair_index() - first_index) as usize * PAIR_BYTES;
    let (left_cv, right_cv) = halves(&bytes[at..at + PAIR_BYTES]);
    let (left, right) = node.children();
    merge(&left_cv, &right_cv, node == geometry.root()) == *expected
        && check_in_memory(geometry, left, &left_cv, first_index, bytes)
        && check_in_memory(geometry, right, &right_cv, first_index, bytes)
}

fn halves(pair: &[u8]) -> (Cv, Cv) {
    let (mut left, mut right) = ([0; 32], [0; 32]);
    left.copy_from_slice(&pair[..32]);
    right.copy_from_slice(&pair[32..PAIR_BYTES]);
    (left, right)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use dray_core::limits::GROUP_BYTES;

    use super::*;

    /// Design 11: damage anywhere in an outboard is seen, in the part read by blocks and in the part above.
    #[test]
    fn every_damaged_pair_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::open(dir.path()).unwrap();
        let path = dir.path().join("sparse");
        let groups = 2 * CHECKED_GROUPS + 3;
        let file = File::create_new(&path).unwrap();
        file.set_len(groups * GROUP_BYTES - 5).unwrap();
        let file = File::open(&path).unwrap();
        let geometry = Geometry::new(groups * GROUP_BYTES - 5);
        let (oid, temp) = build(&place, &file, &path, geometry, &Watch::NOBODY).unwrap();
        let pairs = FilePairs::new(temp.file().try_clone().unwrap(), temp.path(), geometry);
        assert!(is_right(geometry, &oid, &pairs).unwrap());
        for pair in [0, 1, CHECKED_GROUPS - 2, CHECKED_GROUPS + 7, geometry.pairs() - 2, geometry.pairs() - 1]
        {
            let at = pair * PAIR_BYTES as u64 + pair % 64;
            let mut byte = [0];
            temp.file().read_exact_at(&mut byte, at).unwrap();
            temp.file().write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert!(!is_right(geometry, &oid, &pairs).unwrap(), "pair {pair}");
            // Seen from below it, and from nowhere else.
            let here = Subtree { start: (pair / 16 * 16).min(2 * CHECKED_GROUPS - 16), groups: 16 };
            assert!(!is_right_at(geometry, &oid, &pairs, geometry.root()).unwrap());
            let seen = is_right_at(geometry, &oid, &pairs, here).unwrap();
            let is_below = geometry.path(here).iter().any(|node| node.pair_index() == pair)
                || (here.first_pair_index()..here.first_pair_index() + 15).contains(&pair);
            assert_eq!(seen, !is_below, "pair {pair}");
            temp.file().write_all_at(&byte, at).unwrap();
        }
        assert!(is_right(geometry, &oid, &pairs).unwrap());
    }
}
