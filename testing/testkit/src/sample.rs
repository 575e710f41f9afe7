//! Bytes and trees to test with: reproducible, and computed without the code under test where that is possible.

use dray_core::hash_tree::{
    Collector, Cv, Geometry, MemoryPairs, PairStore, Verifier, encode_parents, group_cv,
};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::{Oid, Result};

use crate::splitmix::next_word;

/// Sizes at which something changes: nothing, a byte, around a group, a unit, and some of each.
pub fn sizes() -> Vec<usize> {
    let (group, unit) = (GROUP_BYTES as usize, UNIT_BYTES as usize);
    vec![0, 1, group - 1, group, group + 1, unit - 1, unit, unit + 1, 2 * unit + group, 5 * unit + 4_321]
}

/// `len` bytes that depend on `seed` and repeat nowhere soon.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&next_word(&mut state).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The units `0..units` in an order that depends on `seed`.
pub fn shuffled(units: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..units).collect();
    let picks = bytes(units as usize * 8, seed);
    for (index, pick) in picks.chunks_exact(8).enumerate() {
        let pick = pick.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        order.swap(index, (pick % units) as usize);
    }
    order
}

/// Values of the groups of `unit`, from the object's bytes.
pub fn unit_leaves(geometry: Geometry, unit: u64, data: &[u8]) -> Vec<Cv> {
    let node = geometry.unit(unit);
    let group_data = |group: u64| {
        let start = (group * GROUP_BYTES) as usize;
        &data[start..start + geometry.group_bytes(group)]
    };
    (node.start..node.end()).map(|group| group_cv(geometry, group, group_data(group))).collect()
}

/// The tree of `data`, built in memory.
pub fn tree(data: &[u8]) -> Result<(Oid, Collector<MemoryPairs>)> {
    let geometry = Geometry::new(data.len() as u64);
    let collector = Collector::new(geometry, MemoryPairs::new(geometry)?);
    for unit in 0..geometry.units() {
        collector.record_unit(unit, &unit_leaves(geometry, unit, data))?;
    }
    Ok((collector.finish()?, collector))
}

/// Proves every unit of `data` against `oid` with nothing but `pairs`, as a receiver would. `VerificationFailed` if
/// a pair or a byte is wrong.
pub fn prove_all(oid: Oid, data: &[u8], pairs: &dyn PairStore) -> Result<()> {
    let geometry = Geometry::new(data.len() as u64);
    let verifier = Verifier::new(geometry, oid, MemoryPairs::new(geometry)?)?;
    for unit in 0..geometry.units() {
        let node = geometry.unit(unit);
        let known = verifier.known_depth(node);
        let parents = encode_parents(geometry, node, known, pairs)?;
        let expected = verifier.accept_parents(node, known, &parents)?;
        if expected != unit_leaves(geometry, unit, data) {
            let what = format!("unit {unit} does not have the bytes its pairs name");
            return Err(dray_core::Error::new(dray_core::ErrorKind::VerificationFailed, what));
        }
    }
    Ok(())
}
