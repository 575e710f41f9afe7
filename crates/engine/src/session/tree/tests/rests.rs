//! Sums of blocks, and parts of which only a rest comes (ADR 28).

use std::sync::Arc;

use dray_core::block_mask::{BlockMask, Have};
use dray_core::limits::{GROUP_BYTES, TREE_PULL_BLOCK_RUNS_MAX, TREE_PULL_RESTS_MAX};
use dray_core::message::{BlockRun, BlockSums};

use super::*;

fn sums(runs: usize, blocks: u32) -> BlockSums {
    BlockSums {
        block_bytes: 64,
        sum_bytes: 2,
        runs: vec![BlockRun { start: 0, blocks }; runs],
        is_code: None,
    }
}

fn end() -> Record<'static> {
    Record::Done(Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 })
}

/// A part of which all but the first 100 blocks is here.
fn rest(start: u64) -> Rest {
    let mut have = BlockMask::default();
    (100..1024).for_each(|block| have.insert(block));
    (Part { start, bytes: GROUP_BYTES }, Arc::new(have.into()))
}

const REST_BYTES: u64 = 6400;

/// What `records` in answer to `request` come to.
fn taken(
    receiver: &mut TreeReceiver,
    path: PathId,
    request: u32,
    records: &[Record<'_>],
) -> Result<(), Error> {
    let mut frame = Vec::new();
    records.iter().for_each(|record| record.push(&mut frame));
    let mut rest = &frame[..];
    records.iter().try_for_each(|_| receiver.take(path, request, &mut rest).map(|_| ()))
}

/// Design 17: sums are answered in the order asked, with those of cuts, and are as many bytes as they are, whatever the sender says.
#[test]
fn sums_are_as_many_as_were_asked_for() {
    let (most, bytes) = (vec![7; 30], vec![7; 31]);
    let ok: [&[Record<'_>]; 3] = [
        &[Record::Sums(&most), end()],
        &[Record::Sums(&most[..1]), Record::Sums(&most[1..]), end()],
        &[Record::Failed(dray_core::message::Fault { handle: None, kind: 5, text: String::new() })],
    ];
    let bad: [&[Record<'_>]; 6] = [
        &[Record::Sums(&bytes)],
        &[Record::Sums(&most[1..]), end()],
        &[end()],
        &[Record::Bytes(&most)],
        &[Record::Hole(30)],
        &[Record::Same(Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 })],
    ];
    for (records, is_ok) in ok.iter().map(|records| (records, true)).chain(bad.iter().map(|bad| (bad, false)))
    {
        let mut receiver = told(2);
        receiver.want_sums(1, sums(3, 5));
        receiver.want_cut(1, whole(8192), 4096, None);
        let pull = receiver.pull_cuts().unwrap();
        assert_eq!(pull.runs[0].sums.as_deref(), Some(&sums(3, 5)));
        assert_eq!((pull.runs.len(), pull.lane), (2, None));
        let result = taken(&mut receiver, None, pull.request, records);
        assert_eq!(result.is_ok(), is_ok, "{records:?}");
        if is_ok {
            assert_eq!(receiver.under_way(), 1, "the cut");
        }
    }
    // Nor do they come where contents were asked for, or chunks.
    let mut receiver = told(2);
    receiver.want(1, None, 8192);
    let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert!(taken(&mut receiver, None, pull.request, &[Record::Sums(&most)]).is_err());
    receiver.want_cut(1, whole(8192), 4096, None);
    let pull = receiver.pull_cuts().unwrap();
    assert!(taken(&mut receiver, None, pull.request, &[Record::Sums(&most)]).is_err());
}

/// What a correct receiver says is heard: one pull names no more blocks, and no more masks, than a message has room for.
#[test]
fn pulls_with_sums_and_rests_are_bounded() {
    let mut receiver = told(3);
    (0..3).for_each(|_| receiver.want_sums(1, sums(256, 1)));
    assert_eq!(receiver.pull_cuts().unwrap().runs.len(), TREE_PULL_BLOCK_RUNS_MAX / 256);
    assert_eq!(receiver.pull_cuts().unwrap().runs.len(), 1);
    let count = TREE_PULL_RESTS_MAX as u64 + 10;
    receiver.want_rests(1, (0..count).map(|at| rest(at * GROUP_BYTES)).collect());
    receiver.want(2, None, 1);
    let first = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let rests = |pull: &Pull| pull.runs.iter().filter(|run| run.have.is_some()).count();
    assert_eq!((first.runs.len(), rests(&first)), (TREE_PULL_RESTS_MAX, TREE_PULL_RESTS_MAX));
    let second = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!((second.runs.len(), rests(&second)), (11, 10));
    assert!(receiver.weight(None) < count * (REST_BYTES + 5000), "they weigh what comes");
}

/// Design 17: of a rest come as many bytes as are missing, and nothing else.
#[test]
fn a_rest_is_what_is_missing() {
    let bytes = vec![7; REST_BYTES as usize + 1];
    let most = &bytes[1..];
    for (records, is_ok) in [
        (vec![Record::Bytes(most), end()], true),
        (vec![Record::Bytes(&most[1..]), Record::Bytes(&most[..1]), end()], true),
        (vec![Record::Bytes(&bytes)], false),
        (vec![Record::Bytes(&most[1..]), end()], false),
        (vec![Record::Hole(REST_BYTES)], false),
        (vec![Record::Again], false),
        (vec![Record::Sums(most)], false),
    ] {
        let mut receiver = told(2);
        receiver.want_rests(1, [rest(0)].into());
        let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
        let result = taken(&mut receiver, None, pull.request, &records);
        assert_eq!(result.is_ok(), is_ok, "{} records", records.len());
    }
}

/// Design 17, P6: of blocks of code as many bytes come as their fields have, which nobody knows before: none at least, and all of them at most. A mask
/// more counts for a mask.
#[test]
fn of_code_no_more_comes_than_there_is() {
    let (part, have) = rest(0);
    let mut code = BlockMask::default();
    (0..10).for_each(|block| code.insert(block));
    let rest = || (part, Arc::new(Have { code, ..*have }));
    let least = REST_BYTES as usize - 640;
    for (bytes, is_ok) in
        [(least - 1, false), (least, true), (least + 300, true), (least + 640, true), (least + 641, false)]
    {
        let mut receiver = told(2);
        receiver.want_rests(1, [rest()].into());
        let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
        assert_eq!(pull.runs[0].has(), Some(*rest().1));
        let result = taken(&mut receiver, None, pull.request, &[Record::Bytes(&vec![7; bytes]), end()]);
        assert_eq!(result.is_ok(), is_ok, "{bytes} bytes");
    }
    let mut receiver = told(2);
    receiver.want_rests(1, (0..TREE_PULL_RESTS_MAX).map(|_| rest()).collect());
    let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!(pull.runs.len(), TREE_PULL_RESTS_MAX / 2);
}

/// S10: a rest that was lost with its path is asked for as it was, among others and by itself; one that came wrong as a whole part, first.
#[test]
fn a_lost_rest_is_asked_for_again() {
    let mut receiver = told(2);
    receiver.open(1);
    receiver.want_rests(1, [rest(0), rest(GROUP_BYTES)].into());
    let lane = receiver.pull(Some(1), u64::MAX, 0, Some(0)).unwrap();
    assert_eq!(lane.runs.len(), 2);
    let lost = receiver.lose(1);
    receiver.want_again(&lost[1], None);
    receiver.want_part_again(1, Part { start: 5, bytes: 6 });
    receiver.want_alone(&lost[0], None);
    let alone = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!(alone.runs, lane.runs[..1]);
    let again = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!((again.runs[0].part, &again.runs[0].have), (Some(Part { start: 5, bytes: 6 }), &None));
    assert_eq!(again.runs[1..], lane.runs[1..]);
}

/// A receiver asks for sums by themselves, and for rests of parts that a mask reaches over.
#[test]
fn sums_and_rests_that_break_the_rules_are_refused() {
    let (part, have) = rest(0);
    let have = Some(Box::new(have.blocks));
    let code = have.clone();
    let run = Run { first: 1, count: 1, ..Run::default() };
    let asked = Run { sums: Some(Box::new(sums(1, 1))), ..run.clone() };
    let masked = Run { part: Some(part), have: have.clone(), ..run.clone() };
    let long = Some(Part { start: 0, bytes: GROUP_BYTES + 1 });
    let handle = |runs: &[Run], lane| {
        let pull = Pull { request: 1, runs: runs.to_vec(), batches: 32, lane, ..Pull::default() };
        sender().handle_pull(&pull, 0).map_err(|error| error.kind())
    };
    for (runs, lane) in [
        (vec![asked.clone()], Some(1)),
        (vec![asked.clone(), run.clone()], None),
        (vec![Run { count: 2, ..asked.clone() }], None),
        (vec![Run { known: Some([1; 32].into()), ..asked.clone() }], None),
        (vec![Run { part: Some(part), ..asked.clone() }], None),
        (vec![Run { part: Some(part), cut: Some(4096), ..asked.clone() }], None),
        (vec![Run { have: have.clone(), ..asked.clone() }], None),
        (vec![Run { first: 100, ..asked.clone() }], None),
        (vec![Run { code: code.clone(), ..asked.clone() }], None),
        (vec![Run { have, ..run.clone() }], None),
        (vec![Run { part: Some(part), code: code.clone(), ..run }], None),
        (vec![Run { part: long, ..masked.clone() }], None),
        (vec![Run { cut: Some(4096), ..masked.clone() }], None),
        (vec![Run { known: Some([1; 32].into()), ..masked.clone() }], None),
    ] {
        assert_eq!(handle(&runs, lane), Err(ErrorKind::Protocol), "{runs:?}");
    }
    let rests = |count| vec![masked.clone(); count];
    assert_eq!(handle(&rests(TREE_PULL_RESTS_MAX), None), Ok(()));
    assert_eq!(handle(&rests(TREE_PULL_RESTS_MAX + 1), None), Err(ErrorKind::Protocol));
    // Each of both masks counts.
    let coded = Run { code: code.clone(), ..masked.clone() };
    assert_eq!(handle(&vec![coded.clone(); TREE_PULL_RESTS_MAX / 2], None), Ok(()));
    assert_eq!(handle(&vec![coded; TREE_PULL_RESTS_MAX / 2 + 1], None), Err(ErrorKind::Protocol));
    let most = Run { sums: Some(Box::new(sums(TREE_PULL_BLOCK_RUNS_MAX / 2, 1))), ..asked.clone() };
    assert_eq!(handle(&[most.clone(), most.clone()], None), Ok(()));
    assert_eq!(handle(&[most.clone(), most, asked.clone()], None), Err(ErrorKind::Protocol));
    assert_eq!(handle(&[asked.clone(), cut(1, Some(whole(5)), None), asked], None), Ok(()));
    assert_eq!(handle(std::slice::from_ref(&masked), Some(1)), Ok(()));
    assert_eq!(handle(std::slice::from_ref(&masked), None), Ok(()));
    assert_eq!(handle(&[Run { code, ..masked }], None), Ok(()));
}
