//! Files that are copied between two ends: what was told and asked for comes, over whatever path, and both ends agree on how it ended.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_BATCHES_MAX;
use dray_core::message::TreeDone;
use dray_core::{Error, ErrorKind};
use dray_testkit::sample;
use support::trees::{Content, Copy, RECORD_BYTES};

/// Protocol "Copying trees": more batches than are granted at first, contents of all sizes, one that the receiver has and one that cannot be
/// read. Both ends give the same account.
#[test]
fn contents_come_over_the_channel_of_the_copy() {
    let sizes = [0, 1, RECORD_BYTES, RECORD_BYTES + 1, 3 << 20];
    let data: Vec<Vec<u8>> = sizes
        .into_iter()
        .chain((0..4 * TREE_BATCHES_MAX as usize).map(|number| number % 7))
        .map(|size| sample::bytes(size, 1))
        .collect();
    let mut files: Vec<Content> = data.iter().map(|data| Content::of(&data[..])).collect();
    files[2].broken = Some(ErrorKind::Changed);
    let count = files.len() as u64;
    let known = BTreeMap::from([(3, data[3].clone()), (4, b"another".to_vec())]);
    let (taken, sent, came) = Copy { at_a_time: 1, known, ..Copy::of(files) }.run();
    let bytes: usize = data.iter().map(Vec::len).sum::<usize>() - data[2].len() - data[3].len();
    let done = TreeDone { entries: count, files: count - 2, unchanged: 1, bytes: bytes as u64, failed: 1 };
    assert_eq!((taken.unwrap(), sent.unwrap()), (done, done));
    assert_eq!(came.failed.into_iter().collect::<Vec<_>>(), [2]);
    for (number, data) in (0..).zip(&data).filter(|(number, _)| *number != 2) {
        assert!(came.contents[&number] == *data, "file {number}");
    }
    assert_eq!(came.bytes, BTreeMap::from([(None, bytes as u64)]));
}

/// Protocol "Lanes": contents asked for over a connection come over it, also one that the sender waits for: it says meanwhile that it
/// works, and no path is lost by that.
#[test]
fn contents_come_over_a_lane() {
    let data = sample::bytes(3 * RECORD_BYTES, 1);
    let (release, gate) = mpsc::channel();
    let slow = Content { gate: Some(Mutex::new(gate)), ..Content::of(&data[..]) };
    let files = vec![slow, Content::of(&data[..5]), Content::of(vec![])];
    // Four times 200 ms: it says so in between. Whoever sends is asked that often, and no more often.
    let (ticks, release) = (Mutex::new(0), Mutex::new(Some(release)));
    let (begun, (told, fourth)) = (Instant::now(), mpsc::channel());
    let tick = move || {
        let mut ticks = ticks.lock().unwrap();
        *ticks += 1;
        if *ticks == 4 {
            told.send(begun.elapsed()).unwrap();
            release.lock().unwrap().take();
        }
        Ok(())
    };
    let (taken, sent, came) = Copy { has_lane: true, tick: Box::new(tick), ..Copy::of(files) }.run();
    let bytes = data.len() as u64 + 5;
    let done = TreeDone { entries: 3, files: 3, unchanged: 0, bytes, failed: 0 };
    assert_eq!((taken.unwrap(), sent.unwrap()), (done, done));
    assert_eq!(came.bytes, BTreeMap::from([(Some(1), bytes)]), "over one lane, which was never lost");
    let fourth = fourth.recv().unwrap();
    assert!(fourth >= 4 * Duration::from_millis(200), "asked four times within {fourth:?}");
    assert!(came.contents[&0] == data && came.contents[&1] == data[..5]);
}

/// Protocol "Lanes": what a lost connection owed is asked for another way, from its beginning, and what came twice is counted as lost.
#[test]
fn what_a_lost_lane_owed_comes_another_way() {
    let data = sample::bytes(3 * RECORD_BYTES, 1);
    let (release, gate) = mpsc::channel();
    let slow = Content { gate: Some(Mutex::new(gate)), ..Content::of(&data[..]) };
    let mut copy = Copy { has_lane: true, ..Copy::of(vec![Content::of(&data[..5]), slow]) };
    // The slow one has come in part.
    copy.cut_lane_at(1, release);
    let (taken, sent, came) = copy.run();
    let (taken, sent) = (taken.unwrap(), sent.unwrap());
    assert_eq!(taken, sent);
    assert_eq!((taken.entries, taken.files, taken.failed), (2, 2, 0));
    assert!(came.contents[&0] == data[..5] && came.contents[&1] == data);
    assert!(came.bytes[&Some(1)] > 0 && came.bytes[&None] >= data.len() as u64, "{:?}", came.bytes);
}

/// Protocol "Faults": whichever end cannot go on, the other says why.
#[test]
fn the_end_that_fails_says_why() {
    let files = || vec![Content::of(sample::bytes(8 << 20, 1))];
    let full = || Error::new(ErrorKind::NoSpace, "the disk is full");
    let (taken, sent, _) = Copy { on_data: Box::new(move |_| Err(full())), ..Copy::of(files()) }.run();
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::NoSpace);
    let sent = sent.unwrap_err();
    assert!(sent.kind() == ErrorKind::NoSpace && sent.to_string().contains("the disk is full"), "{sent}");

    let tick = || Err(Error::new(ErrorKind::Changed, "the source went away"));
    let (_release, gate) = mpsc::channel();
    let mut files = files();
    files[0].gate = Some(Mutex::new(gate));
    let (taken, sent, _) = Copy { tick: Box::new(tick), ..Copy::of(files) }.run();
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Changed);
    let taken = taken.unwrap_err();
    assert!(taken.kind() == ErrorKind::Changed && taken.to_string().contains("went away"), "{taken}");
}

/// Bytes a second with which the sender sends where packing is to pay.
const SLOW: Option<u64> = Some(6_000_000);

/// Many small files that have much in common, and a large one of which each byte says half of what it could.
fn text() -> Vec<Vec<u8>> {
    let large: Vec<u8> = sample::bytes(4 << 20, 2).iter().map(|byte| byte & 15).collect();
    let common = sample::bytes(2000, 3);
    let small = (0..1000u32).map(|number| [&common[..], &number.to_be_bytes()].concat());
    std::iter::once(large).chain(small).collect()
}

/// S92, ADR 28: where the receiver says so contents come packed, small files and large ones, over the channel and over a connection beside it; the account is that of the
/// contents. Before it does, and once it takes that back, they come as they are.
#[test]
fn contents_come_packed_where_the_receiver_says_so() {
    let data = text();
    let bytes: u64 = data.iter().map(|data| data.len() as u64).sum();
    for (has_lane, packed_until) in [(false, 0), (false, u64::MAX), (false, 1), (true, 0), (true, u64::MAX)] {
        let files = data.iter().map(|data| Content::of(&data[..])).collect();
        // What is asked for once that is taken back comes as it is: of a few batches at the most that is asked before.
        let at_a_time = if packed_until == 1 { 1 } else { 10 };
        let copy = Copy { has_lane, packed_until, at_a_time, rate_bytes: SLOW, ..Copy::of(files) };
        let (taken, sent, came) = copy.run();
        let done = TreeDone { entries: 1001, files: 1001, unchanged: 0, bytes, failed: 0 };
        assert_eq!((taken.unwrap(), sent.unwrap()), (done, done));
        assert!((0..).zip(&data).all(|(number, data)| came.contents[&number] == *data));
        let wire = if has_lane { came.wire.1 } else { came.wire.0 };
        match packed_until {
            u64::MAX => assert!(wire < bytes * 4 / 10, "{wire} for {bytes} bytes"),
            0 => assert!(wire > bytes, "{wire} for {bytes} bytes"),
            _ => assert!(wire > bytes * 6 / 10, "{wire} for {bytes} bytes, nearly all of them after that"),
        }
        assert_eq!(came.bytes[&has_lane.then_some(1)], bytes);
    }
}

/// Protocol "Lanes": what a connection owed that was lost in the middle of its stream comes over the channel, in a stream of its own.
#[test]
fn what_a_lost_lane_packed_comes_another_way() {
    let data = text();
    let (release, gate) = mpsc::channel();
    let mut files: Vec<Content> = data.iter().map(|data| Content::of(&data[..])).collect();
    files[500] = Content { gate: Some(Mutex::new(gate)), ..Content::of(&data[0][..]) };
    let mut copy = Copy { has_lane: true, packed_until: u64::MAX, rate_bytes: SLOW, ..Copy::of(files) };
    // Of the large file all has come, of the small ones some.
    copy.cut_lane_at(20, release);
    let (taken, sent, came) = copy.run();
    let (taken, sent) = (taken.unwrap(), sent.unwrap());
    assert_eq!(taken, sent);
    assert_eq!((taken.files, taken.failed), (1001, 0));
    let sent_as = |number: u64| if number == 500 { &data[0] } else { &data[number as usize] };
    assert!((0..1001).all(|number| came.contents[&number] == *sent_as(number)));
    let again = came.bytes[&None];
    assert!(again > 4 << 20 && came.wire.0 < again * 6 / 10, "{} for {again} bytes", came.wire.0);
}
