//! Target `delivery`: what a killed `get` left beside its destination, damaged or not, and a second run that goes on
//! from it (design 10, 11).

use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_core::Oid;
use dray_core::hash_tree::{Geometry, PairStore};
use dray_core::limits::UNIT_BYTES;
use dray_core::message::ObjectName;
use dray_core::store::PartialObject;
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions};

use crate::input::Input;
use crate::{Seed, novelty};

/// Sizes of the object; five units and a bit at most, nearly all of it holes.
const SIZES: [u64; 5] = [0, 1, 70_000, 2 * UNIT_BYTES, 5 * UNIT_BYTES + 3];
/// Bytes of a state file's header (`docs/format/delivery.md`).
const HEADER_BYTES: usize = 128;
/// Bytes of each unit that are no hole.
const WRITTEN_BYTES: usize = 40;

/// What was marked and not damaged is still there, nothing else is marked, and the second run ends with the right file
/// and nothing beside it, however the state looks.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let folder = super::temporary_folder();
    let destination = folder.path().join("out");
    let geometry = Geometry::new(SIZES[input.below(SIZES.len())]);
    let (mut marked, with_checkpoint) = (input.byte(), input.byte() & 1 == 1);
    {
        let first = open(&destination, geometry);
        for unit in (0..geometry.units()).filter(|unit| marked >> unit & 1 == 1) {
            write(&first, geometry, unit);
            first.mark_unit(unit).expect("room");
        }
        if with_checkpoint {
            first.checkpoint().expect("room");
        }
    }
    marked &= u8::try_from((1u32 << geometry.units()) - 1).expect("at most eight units");
    let before = state(folder.path());
    while !input.is_empty() {
        damage(folder.path(), &mut input);
    }
    let after = state(folder.path());
    let is_damaged = before != after;
    let is_void = before.len() != after.len() || before.get(..HEADER_BYTES) != after.get(..HEADER_BYTES);

    let second = open(&destination, geometry);
    let found = second.marked_units();
    assert!(found.iter().all(|range| range.end <= geometry.units()), "{found:?}");
    assert!(!is_void || found.is_empty(), "the header was damaged and is believed");
    for unit in 0..geometry.units() {
        let was_marked = marked >> unit & 1 == 1;
        assert!(was_marked || is_damaged || !found.contains(unit), "unit {unit} came from nowhere");
        // Proven again or for the first time: a damaged map may claim what is not there.
        if !found.contains(unit) || is_damaged {
            write(&second, geometry, unit);
            second.mark_unit(unit).expect("room");
        }
    }
    novelty::note((geometry.units(), found.count(), is_damaged, with_checkpoint));
    second.finish(FinishOptions::default()).expect("room");
    drop(second);
    check(folder.path(), &destination, geometry);
}

fn open(destination: &Path, geometry: Geometry) -> Delivery {
    // No checkpoint happens by itself: a run must not depend on the clock.
    let options = DeliveryOptions { checkpoint_interval: Duration::from_secs(3600) };
    let object = ObjectName::Oid(Oid::of(b"some object"));
    Delivery::open(destination, object, geometry.size_bytes(), options)
        .expect("what is left is void at worst")
}

/// Writes one unit whole: a few bytes, then a hole; and a pair of the outboard.
fn write(delivery: &Delivery, geometry: Geometry, unit: u64) {
    let range = geometry.byte_range(geometry.unit(unit));
    let written = content(unit, range.end - range.start);
    delivery.write_data(range.start, &written).expect("room");
    let hole = range.start + written.len() as u64..range.end;
    if !hole.is_empty() {
        delivery.write_hole(hole).expect("room");
    }
    if geometry.pairs() > 0 {
        delivery.write_at(unit % geometry.pairs() * 64, &[unit as u8; 64]).expect("room");
    }
}

fn content(unit: u64, unit_bytes: u64) -> Vec<u8> {
    vec![unit as u8 + 1; WRITTEN_BYTES.min(usize::try_from(unit_bytes).unwrap_or(usize::MAX))]
}

/// The path of the state file or of the data file in `folder`.
fn path(folder: &Path, is_state: bool) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder).expect("ours").flatten().map(|entry| entry.path());
    entries.find(|path| path.extension().is_some_and(|end| end == "state") == is_state)
}

/// The bytes of the state file; none if there is none.
fn state(folder: &Path) -> Vec<u8> {
    path(folder, true).map(|path| std::fs::read(path).expect("ours")).unwrap_or_default()
}

/// Damages the state file or cuts the data.
fn damage(folder: &Path, input: &mut Input<'_>) {
    let (choice, at, value) = (input.byte(), usize::from(input.u16()), input.byte());
    let is_state = choice & 1 == 0;
    let Some(path) = path(folder, is_state) else { return };
    if !is_state {
        // Units that are not wholly there any more must not count.
        let file = std::fs::File::options().write(true).open(path).expect("ours");
        let len = file.metadata().expect("ours").len();
        return file.set_len(len.min(u64::from(value) * (UNIT_BYTES / 16))).expect("room");
    }
    let mut bytes = std::fs::read(&path).expect("ours");
    let len = bytes.len();
    match choice >> 1 & 3 {
        0 if len > 0 => bytes[at % len] ^= value,
        1 => bytes.truncate(at),
        2 => bytes.extend_from_slice(&vec![value; at % 5000]),
        _ => {
            bytes.iter_mut().take(HEADER_BYTES).skip(at % HEADER_BYTES).take(8).for_each(|byte| *byte = value)
        }
    }
    std::fs::write(path, bytes).expect("room");
}

/// The file is right and nothing is left beside it.
fn check(folder: &Path, destination: &Path, geometry: Geometry) {
    let bytes = std::fs::read(destination).expect("delivered");
    assert_eq!(bytes.len() as u64, geometry.size_bytes());
    for unit in 0..geometry.units() {
        let range = geometry.byte_range(geometry.unit(unit));
        let unit_bytes = &bytes[range.start as usize..range.end as usize];
        let written = content(unit, unit_bytes.len() as u64);
        let (head, hole) = unit_bytes.split_at(written.len());
        assert!(head == written && hole.iter().all(|byte| *byte == 0), "unit {unit} has other bytes");
    }
    assert_eq!(std::fs::read_dir(folder).expect("ours").count(), 1, "something is left beside the file");
}

/// Undamaged leftovers, and one of each damage.
pub fn seeds() -> Vec<Seed> {
    vec![
        ("empty".into(), vec![0, 0xff, 0]),
        ("small".into(), vec![2, 0xff, 0]),
        ("some-units".into(), vec![4, 0b1_0110, 0]),
        ("after-a-checkpoint".into(), vec![4, 0b1_0110, 1]),
        ("header-changed".into(), vec![4, 0b1_0110, 0, 0, 0, 20, 1]),
        ("map-changed".into(), vec![4, 0b1_0110, 0, 0, 16, 0, 0xff]),
        ("state-cut".into(), vec![4, 0b1_0110, 0, 2, 16, 1, 0]),
        ("state-longer".into(), vec![4, 0b1_0110, 0, 4, 0, 9, 0]),
        ("data-cut".into(), vec![4, 0b1_1111, 0, 1, 0, 0, 40]),
    ]
}
