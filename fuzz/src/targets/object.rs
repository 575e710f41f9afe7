//! Small real objects with their outboards, made once: what the targets `proof` and `recover` lie about.

use std::sync::LazyLock;

use dray_core::Oid;
use dray_core::hash_tree::{Collector, Cv, Geometry, MemoryPairs, group_cv};
use dray_core::limits::GROUP_BYTES;

/// An object, as its holder knows it.
pub(super) struct Object {
    pub(super) geometry: Geometry,
    pub(super) oid: Oid,
    /// The outboard.
    pub(super) pairs: Vec<u8>,
    /// Values of the groups.
    pub(super) leaves: Vec<Cv>,
}

/// Objects of 1, 2, 16, 17, 37 and 64 groups, most with a short last group.
pub(super) static OBJECTS: LazyLock<Vec<Object>> = LazyLock::new(|| {
    [(1, 6), (2, 1), (16, GROUP_BYTES), (17, 900), (37, 1), (64, GROUP_BYTES)]
        .into_iter()
        .map(|(groups, tail)| Object::new((groups - 1) * GROUP_BYTES + tail))
        .collect()
});

impl Object {
    fn new(size_bytes: u64) -> Object {
        let geometry = Geometry::new(size_bytes);
        let leaves: Vec<Cv> = (0..geometry.groups())
            .map(|group| group_cv(geometry, group, &vec![group as u8; geometry.group_bytes(group)]))
            .collect();
        let collector = Collector::new(geometry, MemoryPairs::new(geometry).expect("small"));
        for unit in 0..geometry.units() {
            let node = geometry.unit(unit);
            let values = &leaves[node.start as usize..node.end() as usize];
            collector.record_unit(unit, values).expect("memory");
        }
        let oid = collector.finish().expect("complete");
        Object { geometry, oid, pairs: collector.pairs().to_vec(), leaves }
    }
}
