//! What every transfer plugin must do: the contract of `dray_core::source`, asked of a real source with a holder behind
//! it. The recorder holds every event against the contract; the checks here bring about the moments that matter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A suite fails by panicking.

mod bed;
mod recorder;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::hash_tree::{PairStore, Subtree};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES, UNIT_GROUPS};
use dray_core::source::{Grade, Source, SourceCall};
use dray_core::{ErrorKind, Oid};

pub use bed::{Gate, Properties, SourceBed, SourceUnderTest, TestObject, Trouble};
use recorder::{Ending, Fall, Recorder};

use crate::sample;

/// Runs the suite. Panics at the first promise that is not kept.
pub fn check(bed: &dyn SourceBed) {
    every_group_comes_once(bed);
    large_subtrees_come_whole(bed);
    holes_come_as_holes(bed);
    many_requests_at_once(bed);
    cancels_are_harmless(bed);
    a_cancelled_request_ends_early(bed);
    an_unwanted_group_ends_its_request(bed);
    close_ends_everything(bed);
    lost_connections_fail_what_was_running(bed);
    nothing_is_kept_after_the_end(bed);
    seals(bed);
    unknown_objects_are_not_found(bed);
    if bed.properties().dials {
        wrong_secrets_are_refused(bed);
        nobody_there_is_said_soon(bed);
    }
}

struct Run {
    recorder: Arc<Recorder>,
    under_test: SourceUnderTest,
}

impl Run {
    fn new(bed: &dyn SourceBed, object: &TestObject, trouble: Trouble) -> Run {
        let recorder = Recorder::new(object, bed.properties().grade);
        let under_test = bed.connect(object, trouble, recorder.clone());
        Run { recorder, under_test }
    }

    fn up(bed: &dyn SourceBed, object: &TestObject) -> Run {
        let run = Run::new(bed, object, Trouble::None);
        run.recorder.wait_up();
        run
    }

    fn source(&self) -> &dyn Source {
        self.under_test.source.as_ref()
    }

    fn unit(&self, unit: u64) -> Subtree {
        self.recorder.geometry().unit(unit)
    }

    fn fetch_unit(&self, request: u32, unit: u64) {
        self.recorder.fetch(self.source(), request, self.unit(unit));
    }

    /// Fetches each unit in a request of its own and waits for all of them.
    fn fetch_all(&self, first_request: u32) {
        let units = self.recorder.geometry().units();
        let order = sample::shuffled(units, units);
        for (request, unit) in (first_request..).zip(order) {
            self.fetch_unit(request, unit);
        }
        self.recorder.wait_ended(first_request..first_request + units as u32);
    }

    fn close(&self) {
        self.recorder.close(self.source());
    }
}

fn object(units: u64, seed: u64) -> TestObject {
    TestObject::new(sample::bytes((units * UNIT_BYTES) as usize, seed))
}

/// D3, Y3: for every size at which something changes, each group of each unit comes once, in order, with the right
/// bytes, after what proves it; the first event is `Up` with the size; the name arrives unchanged.
fn every_group_comes_once(bed: &dyn SourceBed) {
    for (seed, size) in sample::sizes().into_iter().enumerate() {
        let object = TestObject::new(sample::bytes(size, seed as u64));
        let run = Run::up(bed, &object);
        run.fetch_all(1);
        let units = run.recorder.geometry().units() as u32;
        assert!(
            (1..=units).all(|request| run.recorder.ending(request) == Some(Ending::Done)),
            "{size} bytes"
        );
        run.recorder.wait("the name", |heard| heard.names.contains(&object.name));
        run.close();
    }
}

/// The subtrees that cover an object, as large as a request may be; asked twice, with more parents known each time.
fn large_subtrees_come_whole(bed: &dyn SourceBed) {
    let object = TestObject::new(sample::bytes((21 * UNIT_BYTES + 5 * GROUP_BYTES + 3) as usize, 2));
    let run = Run::up(bed, &object);
    let geometry = run.recorder.geometry();
    let mut request = 0;
    for _ in 0..2 {
        let mut nodes = vec![];
        let mut start = 0;
        while start < geometry.groups() {
            let sizes = (0..=10).rev().map(|power| 1 << power).chain([geometry.groups() - start]);
            let node = sizes
                .filter_map(|groups| geometry.subtree(start, groups))
                .find(|node| node.groups.is_multiple_of(UNIT_GROUPS) || node.end() == geometry.groups());
            nodes.push(node.expect("a unit is a subtree"));
            start = nodes.last().unwrap().end();
        }
        assert!(nodes.iter().any(|node| node.groups == 16 * UNIT_GROUPS));
        let first = request + 1;
        for node in nodes {
            request += 1;
            run.recorder.fetch(run.source(), request, node);
        }
        run.recorder.wait_ended(first..=request);
    }
    assert!((1..=request).all(|request| run.recorder.ending(request) == Some(Ending::Done)));
    run.close();
}

/// S7: what the holder keeps as holes is reported as such, wherever it begins and ends; the rest is data.
fn holes_come_as_holes(bed: &dyn SourceBed) {
    let mut object = object(6, 3);
    let (group, unit) = (GROUP_BYTES, UNIT_BYTES);
    object.holes = vec![
        0..10,
        100..group,
        3 * group + 7..5 * group + 9,
        5 * group + 10..5 * group + 11,
        unit..2 * unit,
        2 * unit + 4096..4 * unit - 1,
        5 * unit + 3..6 * unit,
    ];
    let data = Arc::get_mut(&mut object.data).unwrap();
    for hole in &object.holes {
        data[hole.start as usize..hole.end as usize].fill(0);
    }
    let run = Run::up(bed, &object);
    run.fetch_all(1);
    run.close();
    let run =
        Run::up(bed, &TestObject { holes: vec![0..unit, unit..3 * unit], ..self::object(3, 4).zeroed() });
    run.fetch_all(1);
    run.close();
}

impl TestObject {
    fn zeroed(mut self) -> TestObject {
        self.data = Arc::new(vec![0; self.data.len()]);
        self
    }
}

/// More requests than a source may have on their way: all are answered, whole.
fn many_requests_at_once(bed: &dyn SourceBed) {
    let run = Run::up(bed, &object(4, 5));
    let last = bed.properties().outstanding_max as u32 * 2 + 3;
    for request in 1..=last {
        run.fetch_unit(request, u64::from(request) % 4);
    }
    run.recorder.wait_ended(1..=last);
    assert!((1..=last).all(|request| run.recorder.ending(request) == Some(Ending::Done)));
    run.close();
}

/// D28: `Cancel` of a request that has finished, runs, waits at the holder, waits in the source, or never was: each
/// request ends once, and those that were not cancelled come whole.
fn cancels_are_harmless(bed: &dyn SourceBed) {
    let object = object(4, 6);
    let run = Run::up(bed, &object);
    run.fetch_unit(1, 0);
    run.recorder.wait_ended([1]);
    object.gate.shut(0);
    let last = 1 + bed.properties().outstanding_max as u32 + 16;
    for request in 2..=last {
        run.fetch_unit(request, 3);
    }
    assert!(object.gate.is_reached(Duration::from_secs(20)), "a request runs");
    // The first that ran, one that certainly waits in the source, one behind the first, one that ended, two unknown.
    for request in [2, last, 3, 1, 0, last + 100, 2, last] {
        run.recorder.cancel(run.source(), request);
    }
    run.recorder.wait_ended([last]);
    assert_eq!((run.recorder.ending(last), run.recorder.groups(last)), (Some(Ending::Done), 0));
    object.gate.open();
    run.recorder.wait_ended(1..=last);
    for request in 4..last {
        assert_eq!(run.recorder.groups(request), UNIT_GROUPS, "request {request} was not cancelled");
    }
    run.close();
}

/// A source that declares it can cancel does not let the rest arrive: a request of 64 units, cancelled after a few
/// groups, ends long before its last.
fn a_cancelled_request_ends_early(bed: &dyn SourceBed) {
    let object = object(64, 7);
    let run = Run::up(bed, &object);
    if !run.source().describe().capabilities.cancel {
        return run.close();
    }
    object.gate.shut(UNIT_BYTES);
    run.recorder.fetch(run.source(), 1, Subtree { start: 0, groups: 64 * UNIT_GROUPS });
    assert!(object.gate.is_reached(Duration::from_secs(20)));
    run.recorder.cancel(run.source(), 1);
    // The holder goes on step by step, so that the cancellation can overtake it.
    let mut at = UNIT_BYTES;
    while run.recorder.ending(1).is_none() && at < 64 * UNIT_BYTES {
        at += GROUP_BYTES;
        object.gate.shut(at);
        object.gate.is_reached(Duration::from_millis(2));
    }
    object.gate.open();
    run.recorder.wait_ended([1]);
    let groups = run.recorder.groups(1);
    assert!(groups < 60 * UNIT_GROUPS, "{groups} groups came in spite of the cancellation");
    run.close();
}

/// `Flow::Cancel` in answer to a group is a cancellation; other requests do not notice.
fn an_unwanted_group_ends_its_request(bed: &dyn SourceBed) {
    let run = Run::up(bed, &object(8, 8));
    run.recorder.refuse_groups_of(3);
    run.recorder.refuse_groups_of(5);
    run.fetch_all(1);
    assert!((1..=8).all(|request| run.recorder.ending(request).is_some()));
    run.close();
}

/// `Close` while requests run and wait: they fail, then the source is gone, without an error; every permit is back and
/// nothing comes afterwards. Closing again changes nothing.
fn close_ends_everything(bed: &dyn SourceBed) {
    let object = object(4, 9);
    let run = Run::up(bed, &object);
    object.gate.shut(2 * UNIT_BYTES + GROUP_BYTES);
    let last = bed.properties().outstanding_max as u32 + 8;
    for request in 1..=last {
        run.fetch_unit(request, u64::from(request) % 4);
    }
    assert!(object.gate.is_reached(Duration::from_secs(20)));
    run.close();
    assert_eq!(run.recorder.reserved(), 0);
    let groups = || (1..=last).map(|request| run.recorder.groups(request)).sum::<u64>();
    let before = groups();
    object.gate.open();
    run.source().call(SourceCall::Close);
    // Another source to the same kind of holder: time enough for a group that is late.
    let other = Run::up(bed, &self::object(2, 10));
    other.fetch_all(1);
    other.close();
    assert_eq!(groups(), before, "groups after the end");
    run.recorder.check();
}

/// Design 9: when the holder is lost in the middle of an answer, everything that was asked fails as worth trying again,
/// then the source is down; a source that recovers by itself comes up and works.
fn lost_connections_fail_what_was_running(bed: &dyn SourceBed) {
    let object = object(4, 11);
    let run = Run::up(bed, &object);
    object.gate.shut(UNIT_BYTES / 2);
    let last = bed.properties().outstanding_max as u32 + 8;
    for request in 1..=last {
        run.fetch_unit(request, u64::from(request) % 4);
    }
    assert!(object.gate.is_reached(Duration::from_secs(20)));
    run.recorder.expect_ends();
    (run.under_test.break_connections)();
    object.gate.open();
    if bed.properties().connections == 1 {
        run.recorder.wait("down", |heard| !heard.falls.is_empty());
    }
    run.recorder.wait_ended(1..=last);
    let mut failed = 0;
    for request in 1..=last {
        match run.recorder.ending(request) {
            Some(Ending::Failed(_, retryable)) => {
                assert!(retryable, "request {request}");
                failed += 1;
            }
            _ => assert_eq!(run.recorder.groups(request), UNIT_GROUPS),
        }
    }
    assert!(failed > 0, "what was running has failed");
    if bed.properties().recovers {
        // Connections may go one after the other, so a request may meet another loss; not for ever.
        let works = |first: u32| {
            run.recorder.wait_up();
            run.fetch_all(first);
            (first..first + 4).all(|request| run.recorder.ending(request) == Some(Ending::Done))
        };
        assert!((1..=10).any(|round| works(last + 10 * round)), "it recovers");
        assert!(!run.recorder.read(|heard| heard.falls.iter().any(|fall| fall.gone)));
        run.close();
    } else {
        run.recorder.wait("the end", |heard| heard.falls.last().is_some_and(|fall| fall.gone));
        run.recorder.check();
    }
}

/// A request that reaches a source which is gone keeps no permit.
fn nothing_is_kept_after_the_end(bed: &dyn SourceBed) {
    let run = Run::up(bed, &object(2, 12));
    run.close();
    run.fetch_unit(1, 0);
    run.recorder.cancel(run.source(), 1);
    run.recorder.wait_released();
    run.recorder.check();
}

/// Design 3: the origin answers with its own root, whatever the receiver's is, and with its own pairs; a proven source
/// ignores both questions.
fn seals(bed: &dyn SourceBed) {
    let object = object(3, 13);
    let run = Run::up(bed, &object);
    run.fetch_all(1);
    let (root, tree) = sample::tree(&object.data).unwrap();
    let subtrees = vec![run.recorder.geometry().root(), run.unit(1), Subtree { start: 32, groups: 2 }];
    match bed.properties().grade {
        Grade::Vouched => {
            for (count, asked) in [(1, root), (2, Oid::of(b"something else"))] {
                run.source().call(SourceCall::Seal { root: asked });
                run.recorder.wait("the seal", |heard| heard.sealed.len() == count);
            }
            assert_eq!(run.recorder.read(|heard| heard.sealed.clone()), [root, root]);
            let mut pairs = Vec::new();
            for node in &subtrees {
                let mut pair = [0; 64];
                tree.pairs().read_pairs(node.pair_index(), &mut pair).unwrap();
                pairs.extend_from_slice(&pair);
            }
            run.source().call(SourceCall::Compare { subtrees });
            run.recorder.wait("the comparison", |heard| heard.compared.len() == 1);
            assert!(run.recorder.read(|heard| heard.compared[0] == pairs));
        }
        Grade::Proven => {
            run.source().call(SourceCall::Seal { root });
            run.source().call(SourceCall::Compare { subtrees });
            run.fetch_all(100);
            assert_eq!(run.recorder.ending(102), Some(Ending::Done));
            assert!(run.recorder.read(|heard| heard.sealed.is_empty() && heard.falls.is_empty()));
        }
    }
    run.close();
}

fn ends_with(bed: &dyn SourceBed, trouble: Trouble, kind: ErrorKind) -> Duration {
    let begun = Instant::now();
    let run = Run::new(bed, &object(2, 14), trouble);
    run.recorder.wait("the end", |heard| heard.falls.last().is_some_and(|fall| fall.gone));
    let took = begun.elapsed();
    let last = run.recorder.read(|heard| heard.falls.last().copied());
    assert_eq!(last, Some(Fall { kind: Some(kind), gone: true }), "{trouble:?}");
    // What somebody asked meanwhile keeps nothing.
    run.fetch_unit(1, 0);
    run.recorder.wait_released();
    run.recorder.check();
    took
}

/// The holder does not have it: gone, and the error says so.
fn unknown_objects_are_not_found(bed: &dyn SourceBed) {
    ends_with(bed, Trouble::UnknownObject, ErrorKind::NotFound);
}

/// Design 14, S22: a wrong secret is refused for good.
fn wrong_secrets_are_refused(bed: &dyn SourceBed) {
    ends_with(bed, Trouble::WrongSecret, ErrorKind::Refused);
}

/// S10: an address where nobody listens is given up within 10 s.
fn nobody_there_is_said_soon(bed: &dyn SourceBed) {
    let took = ends_with(bed, Trouble::Unreachable, ErrorKind::Unreachable);
    assert!(took < Duration::from_secs(10), "{took:?}");
}
