//! Layout of the state file of a delivery (`docs/format/delivery.md`): header, two maps of units, outboard.

use std::ops::Range;

use dray_core::Oid;
use dray_core::hash_tree::Geometry;
use dray_core::limits::UNIT_BYTES;
use dray_core::message::ObjectName;
use dray_core::range::RangeSet;

use crate::local::boot::BootId;

/// Parts begin on multiples of this.
const ALIGNMENT: u64 = 4096;
const MAGIC: [u8; 8] = *b"dray-dlv";
const VERSION: u32 = 1;
/// Bytes of the header that mean something; zeros follow up to the alignment.
pub(super) const HEADER_BYTES: usize = 128;
const CHECKED_BYTES: usize = 96;

/// Where the parts of a state file are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Length of a map, one bit a unit.
    pub(super) map_bytes: usize,
    pub(super) marked_at: u64,
    pub(super) durable_at: u64,
    pub(super) outboard_at: u64,
    pub(super) file_bytes: u64,
}

impl Layout {
    /// The layout for an object that [`dray_core::limits::DELIVERY_BYTES_MAX`] admits.
    pub(super) fn new(geometry: Geometry) -> Layout {
        let map_bytes = geometry.units().div_ceil(8);
        let room = map_bytes.next_multiple_of(ALIGNMENT);
        let marked_at = ALIGNMENT;
        let durable_at = marked_at + room;
        let outboard_at = durable_at + room;
        Layout {
            // At most 8 MiB, by the limit on sizes.
            map_bytes: map_bytes as usize,
            marked_at,
            durable_at,
            outboard_at,
            file_bytes: outboard_at + geometry.outboard_bytes(),
        }
    }
}

/// What a state file belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) object: ObjectName,
    pub(super) size_bytes: u64,
    /// Boot during which the marked map was written.
    pub(super) boot: BootId,
    /// Device and inode of the data file.
    pub(super) data_dev: u64,
    pub(super) data_ino: u64,
}

impl Header {
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
        bytes[16..16 + Oid::ENCODED_BYTES].copy_from_slice(&self.object.to_encoded());
        bytes[56..64].copy_from_slice(&self.size_bytes.to_be_bytes());
        bytes[64..80].copy_from_slice(&self.boot);
        bytes[80..88].copy_from_slice(&self.data_dev.to_be_bytes());
        bytes[88..96].copy_from_slice(&self.data_ino.to_be_bytes());
        let checksum = blake3::hash(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// The boot id in `bytes`, if they are the header of this delivery but for that. Comparing the whole leaves
    /// nothing to parse.
    pub(super) fn boot_if_same(&self, bytes: &[u8; HEADER_BYTES]) -> Option<BootId> {
        let mut boot = [0; 16];
        boot.copy_from_slice(&bytes[64..80]);
        let same = Header { boot, ..self.clone() };
        (same.to_bytes() == *bytes).then_some(boot)
    }

    /// The object of a header of any delivery; `None` if `bytes` are not exactly such a header.
    pub(super) fn object_in(bytes: &[u8; HEADER_BYTES]) -> Option<ObjectName> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight));
        let object = match bytes[16..16 + Oid::ENCODED_BYTES].split_first()? {
            (0, id) => ObjectName::Provisional(*id.first_chunk()?),
            _ => ObjectName::Oid(Oid::from_encoded(&bytes[16..16 + Oid::ENCODED_BYTES]).ok()?),
        };
        let header = Header {
            object,
            size_bytes: number(56),
            boot: *bytes[64..].first_chunk()?,
            data_dev: number(80),
            data_ino: number(88),
        };
        (header.to_bytes() == *bytes).then_some(object)
    }
}

/// A map of units; unit `u` is bit `u % 8` of byte `u / 8`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UnitMap(pub(super) Vec<u8>);

impl UnitMap {
    pub(super) fn new(layout: Layout) -> UnitMap {
        UnitMap(vec![0; layout.map_bytes])
    }

    pub(super) fn contains(&self, unit: u64) -> bool {
        self.0[byte(unit)] & bit(unit) != 0
    }

    /// Sets or clears `unit`; returns the byte that holds it and that byte's position.
    pub(super) fn put(&mut self, unit: u64, present: bool) -> (u64, u8) {
        let slot = &mut self.0[byte(unit)];
        *slot = if present { *slot | bit(unit) } else { *slot & !bit(unit) };
        (unit / 8, *slot)
    }

    /// Clears `range`, which is not empty; returns the bytes that hold it and the position of the first.
    pub(super) fn remove(&mut self, range: Range<u64>) -> (u64, &[u8]) {
        for unit in range.clone() {
            self.put(unit, false);
        }
        (range.start / 8, &self.0[byte(range.start)..=byte(range.end - 1)])
    }

    /// Keeps only what `other` has too.
    pub(super) fn intersect(&mut self, other: &UnitMap) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= theirs;
        }
    }

    /// Drops units that do not lie wholly in the first `data_bytes` of the object. Bits beyond the last unit go too.
    pub(super) fn cut(&mut self, geometry: Geometry, data_bytes: u64) {
        let whole =
            if data_bytes >= geometry.size_bytes() { geometry.units() } else { data_bytes / UNIT_BYTES };
        for unit in whole..self.0.len() as u64 * 8 {
            self.put(unit, false);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    pub(super) fn to_set(&self) -> RangeSet {
        let mut set = RangeSet::new();
        let mut run = 0..0;
        for (index, byte) in self.0.iter().enumerate() {
            for unit in (index as u64 * 8..).take(8).filter(|unit| byte & bit(*unit) != 0) {
                if unit != run.end {
                    set.insert(run.clone());
                    run.start = unit;
                }
                run.end = unit + 1;
            }
        }
        set.insert(run);
        set
    }
}

fn byte(unit: u64) -> usize {
    (unit / 8) as usize
}

fn bit(unit: u64) -> u8 {
    1 << (unit % 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Header {
        Header {
            object: ObjectName::Oid(Oid::of(b"hello")),
            size_bytes: 5,
            boot: [7; 16],
            data_dev: 1,
            data_ino: 2,
        }
    }

    /// Golden bytes: they are disk format (`docs/format/delivery.md`).
    #[test]
    fn golden_header() {
        let hex = dray_core::text::hex(&example().to_bytes());
        assert_eq!(hex, include_str!("../../../fixtures/delivery-header.hex").trim());
        assert_eq!(example().boot_if_same(&example().to_bytes()), Some([7; 16]));
        for object in [example().object, ObjectName::Provisional([9; 32])] {
            assert_eq!(Header::object_in(&Header { object, ..example() }.to_bytes()), Some(object));
        }
    }

    /// Design 10: a state file counts only for this object and this data file; any other byte makes it void.
    #[test]
    fn any_changed_byte_voids_the_header() {
        for index in 0..HEADER_BYTES {
            let mut bytes = example().to_bytes();
            bytes[index] ^= 0x10;
            assert_eq!(example().boot_if_same(&bytes), None, "byte {index}");
            assert_eq!(Header::object_in(&bytes), None, "byte {index}");
        }
        let other = Header { data_ino: 3, ..example() };
        assert_eq!(other.boot_if_same(&example().to_bytes()), None);
    }

    #[test]
    fn parts_are_aligned_and_apart() {
        for size in
            [0, 1, 1 << 20, (1 << 20) + 1, 1 << 35, (1 << 35) + 1, dray_core::limits::DELIVERY_BYTES_MAX]
        {
            let geometry = Geometry::new(size);
            let layout = Layout::new(geometry);
            assert!(layout.map_bytes as u64 * 8 >= geometry.units());
            assert!(layout.marked_at + layout.map_bytes as u64 <= layout.durable_at);
            assert!(layout.durable_at + layout.map_bytes as u64 <= layout.outboard_at);
            assert_eq!(layout.outboard_at % ALIGNMENT, 0);
            assert!(layout.map_bytes <= 8 << 20);
        }
    }

    /// A map is the set of its units, and cutting keeps exactly the whole ones.
    #[test]
    fn map_is_a_set() {
        let geometry = Geometry::new(40 * UNIT_BYTES + 1);
        let mut map = UnitMap::new(Layout::new(geometry));
        let mut set = RangeSet::new();
        for unit in [0, 1, 7, 8, 9, 16, 31, 32, 33, 40] {
            map.put(unit, true);
            set.insert(unit..unit + 1);
        }
        assert_eq!(map.to_set(), set);
        map.put(8, false);
        set.remove(8..9);
        assert_eq!(map.to_set(), set);
        map.cut(geometry, 33 * UNIT_BYTES - 1);
        set.remove(32..41);
        assert_eq!(map.to_set(), set);
        map.cut(geometry, 0);
        assert!(map.is_empty());
    }
}
