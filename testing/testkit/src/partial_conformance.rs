//! What every plugin that receives objects must do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A suite fails by panicking.

use dray_core::ErrorKind;
use dray_core::hash_tree::{Collector, Geometry, PAIR_BYTES, PairStore, Verifier};
use dray_core::limits::UNIT_BYTES;
use dray_core::range::RangeSet;
use dray_core::store::PartialObject;

use crate::sample;

/// A place where objects can be received.
pub struct PartialUnderTest {
    /// Begins, or goes on with, the object of this many bytes at this place.
    pub open: Box<dyn Fn(u64) -> Box<dyn PartialObject>>,
    /// Marks survive dropping and opening again.
    pub persistent: bool,
    /// Bytes that the data takes on disk now, if that can be told.
    pub allocated_bytes: Option<Box<dyn Fn() -> u64>>,
}

/// Runs the suite; `fresh` makes a new place each time. Panics at the first promise that is not kept.
pub fn check(fresh: &dyn Fn() -> PartialUnderTest) {
    receives_in_any_order(fresh);
    marks_and_unmarks(fresh);
    holes_stay_holes(fresh);
    refuses_what_is_outside(&fresh());
    if fresh().persistent {
        goes_on_where_it_stopped(fresh);
    }
}

/// D8, Y3: units come in any order from several threads, through a verifier or a collector, and are the object.
fn receives_in_any_order(fresh: &dyn Fn() -> PartialUnderTest) {
    for (seed, size) in sample::sizes().into_iter().enumerate() {
        let data = sample::bytes(size, seed as u64);
        let (oid, holder) = sample::tree(&data).unwrap();
        let geometry = Geometry::new(size as u64);
        let partial = (fresh().open)(size as u64);
        let partial = partial.as_ref();
        assert_eq!((partial.size_bytes(), partial.marked_units()), (size as u64, RangeSet::new()));
        let order = sample::shuffled(geometry.units(), seed as u64);
        let verifier = Verifier::new(geometry, oid, partial).unwrap();
        let (verifier, holder, bytes) = (&verifier, &holder, &data);
        std::thread::scope(|scope| {
            for half in [&order[..order.len() / 2], &order[order.len() / 2..]] {
                scope.spawn(move || {
                    for &unit in half {
                        let node = geometry.unit(unit);
                        let parents =
                            dray_core::hash_tree::encode_parents(geometry, node, 0, holder.pairs()).unwrap();
                        verifier.accept_parents(node, 0, &parents).unwrap();
                        write_unit(partial, geometry, unit, bytes);
                        partial.mark_unit(unit).unwrap();
                    }
                });
            }
        });
        assert_eq!(partial.marked_units().count(), geometry.units());
        check_whole(partial, &data);

        let collected = (fresh().open)(size as u64);
        let collector = Collector::new(geometry, collected.as_ref());
        for unit in order {
            write_unit(collected.as_ref(), geometry, unit, &data);
            collector.record_unit(unit, &sample::unit_leaves(geometry, unit, &data)).unwrap();
        }
        assert_eq!(collector.finish().unwrap(), oid);
        check_whole(collected.as_ref(), &data);
    }
}

fn write_unit(partial: &dyn PartialObject, geometry: Geometry, unit: u64, data: &[u8]) {
    let range = geometry.byte_range(geometry.unit(unit));
    // In two uneven pieces, back to front.
    let middle = range.start + (range.end - range.start) / 3;
    partial.write_data(middle, &data[middle as usize..range.end as usize]).unwrap();
    partial.write_data(range.start, &data[range.start as usize..middle as usize]).unwrap();
}

fn check_whole(partial: &dyn PartialObject, data: &[u8]) {
    let mut back = vec![0xaa; data.len()];
    partial.read_data(0, &mut back).unwrap();
    assert!(back == data, "bytes read back");
    let (oid, _) = sample::tree(data).unwrap();
    sample::prove_all(oid, data, partial).unwrap();
}

/// Design 10: the marks are a set of units.
fn marks_and_unmarks(fresh: &dyn Fn() -> PartialUnderTest) {
    let units = 21;
    let partial = (fresh().open)(units * UNIT_BYTES - 1);
    let mut model = RangeSet::new();
    for (step, unit) in sample::shuffled(units, 1).into_iter().chain(sample::shuffled(units, 2)).enumerate() {
        if step % 3 == 2 {
            partial.unmark_unit(unit).unwrap();
            model.remove(unit..unit + 1);
        } else {
            partial.mark_unit(unit).unwrap();
            model.insert(unit..unit + 1);
        }
        assert_eq!(partial.marked_units(), model);
    }
    // Many at once, whether they were marked or not; of a set that reaches outside, nothing need be done.
    let mut some = RangeSet::new();
    for range in [0..1, 3..12, 15..16, 20..21] {
        model.remove(range.clone());
        some.insert(range);
    }
    partial.unmark_units(&some).unwrap();
    assert_eq!(partial.marked_units(), model);
    partial.unmark_units(&RangeSet::new()).unwrap();
    let mut outside = RangeSet::new();
    outside.insert(units..u64::MAX);
    assert_eq!(partial.unmark_units(&outside).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(partial.marked_units(), model);
}

/// Issue: what is a hole at the sender is one at the receiver, also where something else had been written.
fn holes_stay_holes(fresh: &dyn Fn() -> PartialUnderTest) {
    let place = fresh();
    let size = 24 * UNIT_BYTES + 333;
    let partial = (place.open)(size);
    let allocated = |at_most: u64| {
        if let Some(allocated_bytes) = &place.allocated_bytes {
            let now = allocated_bytes();
            assert!(now <= at_most, "{now} bytes are allocated, at most {at_most} should be");
        }
    };
    partial.write_hole(0..size).unwrap();
    allocated(UNIT_BYTES / 4);
    let data = sample::bytes(2 * UNIT_BYTES as usize, 3);
    partial.write_data(4 * UNIT_BYTES, &data).unwrap();
    partial.write_hole(6 * UNIT_BYTES..size).unwrap();
    partial.write_hole(5 * UNIT_BYTES..6 * UNIT_BYTES).unwrap();
    let mut model = vec![0; size as usize];
    let at = 4 * UNIT_BYTES as usize;
    model[at..at + UNIT_BYTES as usize].copy_from_slice(&data[..UNIT_BYTES as usize]);
    // Not aligned to anything.
    partial.write_hole(4 * UNIT_BYTES + 5..4 * UNIT_BYTES + 777).unwrap();
    model[at + 5..at + 777].fill(0);
    partial.write_hole(9..9).unwrap();
    let mut back = vec![0xaa; size as usize];
    partial.read_data(0, &mut back).unwrap();
    assert!(back == model);
    allocated(UNIT_BYTES * 5 / 4);
}

/// Design 17: no offset or unit from outside reaches beyond the object or its outboard.
fn refuses_what_is_outside(place: &PartialUnderTest) {
    let size = 2 * UNIT_BYTES + 1;
    let geometry = Geometry::new(size);
    let partial = (place.open)(size);
    let outboard = geometry.outboard_bytes();
    let outcomes = [
        partial.write_data(size, &[1]),
        partial.write_data(u64::MAX, &[1]),
        partial.write_hole(0..size + 1),
        partial.write_hole(u64::MAX - 1..u64::MAX),
        partial.read_data(size - 1, &mut [0; 2]),
        partial.mark_unit(geometry.units()),
        partial.unmark_unit(u64::MAX),
        partial.write_at(outboard - 1, &[0; 2]),
        partial.write_at(u64::MAX, &[0; 2]),
        partial.read_pairs(geometry.pairs(), &mut [0; PAIR_BYTES]),
    ];
    for (index, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Internal, "case {index}");
    }
    let mut back = vec![1; size as usize];
    partial.read_data(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 0));
}

/// Design 10: a later run finds marks, data and pairs of an earlier one, and units that were not marked can be
/// written over or made a hole.
fn goes_on_where_it_stopped(fresh: &dyn Fn() -> PartialUnderTest) {
    let place = fresh();
    let units = 12;
    let data = {
        let mut data = sample::bytes((units * UNIT_BYTES) as usize - 1, 8);
        data[(7 * UNIT_BYTES) as usize..(8 * UNIT_BYTES) as usize].fill(0);
        data
    };
    let size = data.len() as u64;
    let geometry = Geometry::new(size);
    let (oid, holder) = sample::tree(&data).unwrap();
    let mut done = RangeSet::new();
    {
        let partial = (place.open)(size);
        let verifier = Verifier::new(geometry, oid, partial.as_ref()).unwrap();
        for unit in [0, 3, 4, 11] {
            receive(&verifier, partial.as_ref(), unit, &data, &holder);
            done.insert(unit..unit + 1);
        }
        partial.mark_unit(9).unwrap();
        partial.unmark_unit(9).unwrap();
        for unit in [5, 6, 8] {
            partial.mark_unit(unit).unwrap();
        }
        let mut others = RangeSet::new();
        others.insert(5..10);
        partial.unmark_units(&others).unwrap();
        // Written and not marked: a kill came in between.
        partial.write_data(7 * UNIT_BYTES, &vec![9; UNIT_BYTES as usize]).unwrap();
    }
    {
        let partial = (place.open)(size);
        assert_eq!(partial.marked_units(), done);
        let verifier = Verifier::new(geometry, oid, partial.as_ref()).unwrap();
        let intact = verifier.recover(&|unit| done.contains(unit)).unwrap();
        assert_eq!(intact, [0, 3, 4, 11]);
        for unit in sample::shuffled(units, 4) {
            if unit == 7 {
                let node = geometry.unit(unit);
                let parents =
                    dray_core::hash_tree::encode_parents(geometry, node, 0, holder.pairs()).unwrap();
                verifier.accept_parents(node, 0, &parents).unwrap();
                partial.write_hole(geometry.byte_range(node)).unwrap();
                partial.mark_unit(unit).unwrap();
            } else if !done.contains(unit) {
                receive(&verifier, partial.as_ref(), unit, &data, &holder);
            }
        }
        check_whole(partial.as_ref(), &data);
    }
    // Another size is another object: nothing of this one counts.
    assert_eq!((place.open)(size + 1).marked_units(), RangeSet::new());
}

fn receive<P: PairStore>(
    verifier: &Verifier<P>,
    partial: &dyn PartialObject,
    unit: u64,
    data: &[u8],
    holder: &Collector<dray_core::hash_tree::MemoryPairs>,
) {
    let geometry = verifier.geometry();
    let node = geometry.unit(unit);
    let parents = dray_core::hash_tree::encode_parents(geometry, node, 0, holder.pairs()).unwrap();
    verifier.accept_parents(node, 0, &parents).unwrap();
    write_unit(partial, geometry, unit, data);
    partial.mark_unit(unit).unwrap();
}
