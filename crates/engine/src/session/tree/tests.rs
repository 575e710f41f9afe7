//! Both machines against what a peer may say.

mod counting;
mod rests;

use dray_core::limits::{
    OBJECT_BYTES_MAX, TREE_BATCHES_MAX, TREE_CUT_BYTES_MAX, TREE_CUT_CHUNKS_MAX, TREE_PART_BYTES,
    TREE_PARTS_MAX, TREE_PULLS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{DigestsSame, Entries, Pull, Run, TreeDone};
use dray_core::tree::{
    ChunkHint, Entry, Finished, Kind, Metadata, Name, Record, Step, chunks_max, encode_chunks,
};

use super::receiver::weight;
use super::*;

fn file(name: Option<&str>) -> Vec<u8> {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    let kind = Kind::File { size_bytes: 1, oid: None };
    Entry { name, kind, metadata: Metadata::default() }.to_bytes()
}

fn batch(is_last: bool) -> Entries {
    Entries { items: Vec::new(), owners: None, is_last, listed: None }
}

fn pull(request: u32, runs: &[(u64, u64)], settled: u64, batches: u64) -> Pull {
    let runs = runs.iter().map(|&(first, count)| Run { first, count, ..Run::default() }).collect();
    Pull { request, runs, settled, batches, ..Pull::default() }
}

fn sender() -> TreeSender {
    let mut sender = TreeSender::new();
    sender.told(100, true);
    sender
}

/// Issue "requests are batches": what is owed comes out in the order asked, and a request ends with its last entry.
#[test]
fn contents_are_owed_in_order() {
    let mut sender = sender();
    sender.handle_pull(&pull(1, &[(3, 2), (9, 1)], 10, 40), 0).unwrap();
    sender.handle_pull(&pull(2, &[(10, 1)], 11, 40), 0).unwrap();
    let owed: Vec<_> = std::iter::from_fn(|| sender.next_owed())
        .map(|owed| (owed.request, owed.number, owed.is_last))
        .collect();
    assert_eq!(owed, [(1, 3, false), (1, 4, false), (1, 9, true), (2, 10, true)]);
    assert!(sender.is_idle());
}

/// Both ends count what was told.
#[test]
fn entries_are_counted() {
    assert_eq!(sender().entries(), 100);
    let mut receiver = TreeReceiver::new(2);
    receiver.handle_entries(&batch(false)).unwrap();
    assert_eq!(receiver.entries(), 0);
    receiver.accept(&file(None)).unwrap();
    receiver.accept(&file(None)).unwrap();
    assert_eq!(receiver.entries(), 2);
}

/// Only what is under way is bounded: a request that was answered makes room for another.
#[test]
fn answered_requests_make_room() {
    let mut sender = TreeSender::new();
    let pulls = TREE_PULLS_MAX as u64;
    sender.told(3 * pulls, true);
    for number in 0..2 * pulls {
        sender.handle_pull(&pull(number as u32 + 1, &[(number, 1)], number, 40), 0).unwrap();
        assert!(sender.next_owed().is_some_and(|owed| owed.is_last));
    }
    for number in 2 * pulls..3 * pulls {
        sender.handle_pull(&pull(number as u32 + 1, &[(number, 1)], number, 40), 0).unwrap();
    }
    let more = pull(u32::MAX, &[(3 * pulls - 1, 1)], 3 * pulls - 1, 40);
    assert!(sender.handle_pull(&more, 0).unwrap_err().what().contains("under way"));
}

/// M9: parts of files are no files of their own, and what was the same in a part may yet come whole.
#[test]
fn parts_are_counted_by_themselves() {
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    let sent = |record, is_part| {
        let mut sender = sender();
        sender.sent().record(&record, is_part, false);
        sender
    };
    let done = TreeDone { entries: 100, files: 0, unchanged: 0, bytes: 0, failed: 0 };
    let fits = |sender: &TreeSender, done: TreeDone| sender.handle_done(&done, &TreeLanes::default()).is_ok();
    assert!(!fits(&sent(Record::Done(finished), false), done));
    assert!(!fits(&sent(Record::Same(finished), false), done));
    assert!(fits(&sent(Record::Done(finished), true), done));
    assert!(fits(&sent(Record::Same(finished), true), done));
    assert!(fits(&sent(Record::Done(finished), true), TreeDone { files: 1, ..done }));
    let mut lanes = TreeLanes::default();
    lanes.sent.record(&Record::Done(finished), true, false);
    sender().handle_done(&TreeDone { files: 1, ..done }, &lanes).unwrap();
}

/// A receiver that asks for what it was not told, twice, too much, or takes something back, breaks the protocol.
#[test]
fn a_receiver_that_breaks_the_rules_is_refused() {
    let many = TREE_WANTED_MAX + 1;
    for bad in [
        pull(1, &[(99, 2)], 0, 32),
        pull(1, &[(u64::MAX, 2)], 0, 32),
        pull(0, &[(5, 1)], 0, 32),
        pull(1, &[], 0, 32),
        pull(0, &[], 101, 32),
        pull(0, &[], 0, 31),
    ] {
        assert_eq!(sender().handle_pull(&bad, 0).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
    }
    let mut large = TreeSender::new();
    large.told(many, true);
    assert!(large.handle_pull(&pull(1, &[(0, many)], many, 40), 0).is_err());
    let mut again = sender();
    again.handle_pull(&pull(1, &[(5, 1)], 6, 40), 0).unwrap();
    assert!(again.handle_pull(&pull(1, &[(7, 1)], 8, 40), 0).is_err());
    assert!(again.handle_pull(&pull(2, &[(5, 1)], 8, 40), 0).is_err(), "it is settled");
    assert!(again.handle_pull(&pull(0, &[], 5, 40), 0).is_err());
}

/// M9: "done" counts only when everything was told and sent, and the account fits it; the error says what is missing.
#[test]
fn an_end_is_believed_only_if_the_account_fits() {
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    let mut sender = TreeSender::new();
    let done = TreeDone { entries: 100, files: 1, unchanged: 98, bytes: 4, failed: 0 };
    let refused = |sender: &TreeSender, done: TreeDone| {
        let error = sender.handle_done(&done, &TreeLanes::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        error.what().to_owned()
    };
    sender.told(99, false);
    assert!(refused(&sender, TreeDone { entries: 99, ..done }).contains("after 99 entries, before all"));
    sender.told(1, true);
    assert!(!sender.may_tell());
    sender.handle_pull(&pull(1, &[(5, 2)], 100, 40), 0).unwrap();
    assert!(refused(&sender, done).contains("before 2 of the contents"));
    while sender.next_owed().is_some() {}
    for record in [Record::Bytes(b"four"), Record::Done(finished), Record::Same(finished)] {
        sender.sent().record(&record, false, false);
    }
    sender.handle_done(&done, &TreeLanes::default()).unwrap();
    sender.handle_done(&TreeDone { files: 0, failed: 1, ..done }, &TreeLanes::default()).unwrap();
    assert!(refused(&sender, TreeDone { entries: 99, ..done }).contains("99 of 100 entries"));
    assert!(refused(&sender, TreeDone { bytes: 3, ..done }).contains("3 of 4 bytes"));
    assert!(refused(&sender, TreeDone { files: 0, ..done }).contains("0 of 1 files"));
    assert!(refused(&sender, TreeDone { files: 2, ..done }).contains("2 of 1 files"));
    assert!(refused(&sender, TreeDone { unchanged: 0, ..done }).contains("0 files unchanged"));
    assert!(refused(&sender, TreeDone { unchanged: u64::MAX, ..done }).contains("unchanged"));
    // All of it may have been there already, and no more than that.
    sender.handle_done(&TreeDone { unchanged: 100, ..done }, &TreeLanes::default()).unwrap();
    assert!(refused(&sender, TreeDone { unchanged: 101, ..done }).contains("unchanged"));
}

/// Issue "hard links": what may still be asked for is not settled.
#[test]
fn an_entry_that_waits_is_not_settled() {
    let mut receiver = TreeReceiver::new(2);
    receiver.handle_entries(&batch(false)).unwrap();
    receiver.accept(&file(None)).unwrap();
    receiver.accept(&file(None)).unwrap();
    receiver.want(0, None, 1);
    assert_eq!(receiver.pull(None, u64::MAX, 1, Some(1)).unwrap().settled, 1);
    receiver.want(1, None, 1);
    let late = receiver.pull(None, u64::MAX, 1, None).unwrap();
    assert_eq!((late.runs.len(), late.settled), (1, 2));
    assert!(receiver.missing().unwrap().contains("2 contents and the entries after 2"));
}

/// Issue "bounded memory": no more batches than were granted, nor than the receiver has settled.
#[test]
fn batches_need_a_grant() {
    let mut sender = TreeSender::new();
    for _ in 0..TREE_BATCHES_MAX {
        assert!(sender.may_tell());
        sender.told(10, false);
    }
    assert!(!sender.may_tell());
    sender.handle_pull(&pull(0, &[], 0, u64::MAX), 0).unwrap();
    for _ in 0..TREE_BATCHES_MAX {
        assert!(sender.may_tell());
        sender.told(10, false);
    }
    assert!(!sender.may_tell(), "nothing is settled");
    sender.handle_pull(&pull(0, &[], 320, u64::MAX), 0).unwrap();
    assert!(sender.may_tell());
}

/// A sender that tells more than granted, or sends what was not asked for, breaks the protocol.
#[test]
fn a_sender_that_breaks_the_rules_is_refused() {
    let mut receiver = TreeReceiver::new(1);
    for _ in 0..TREE_BATCHES_MAX {
        receiver.handle_entries(&batch(false)).unwrap();
    }
    assert!(receiver.handle_entries(&batch(false)).is_err());
    let mut receiver = TreeReceiver::new(1);
    receiver.handle_entries(&batch(true)).unwrap();
    assert!(receiver.handle_entries(&batch(true)).is_err());
    assert!(receiver.is_done().is_err(), "no root came");
    let (_, step, number) = receiver.accept(&file(None)).unwrap();
    assert_eq!((step, number), (Step::Root(0), 0));
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    let mut frame = Vec::new();
    Record::Bytes(b"x").push(&mut frame);
    Record::Done(finished).push(&mut frame);
    assert!(receiver.take(None, 1, &mut &frame[..]).is_err(), "nothing was asked for");
    receiver.want(0, None, 1);
    let asked = receiver.pull(None, u64::MAX, 0, None).unwrap();
    assert_eq!((asked.request, asked.runs.len(), asked.settled), (1, 1, 1));
    assert!(receiver.pull(None, u64::MAX, 0, None).is_none(), "nothing new");
    assert!(receiver.take(None, 2, &mut &frame[..]).is_err(), "another request");
    assert!(receiver.handle_end(None, 1).is_err(), "it is not answered");
    let mut rest = &frame[..];
    let (wanted, record) = receiver.take(None, 1, &mut rest).unwrap();
    assert_eq!((wanted.number, record), (0, Record::Bytes(b"x")));
    let (wanted, record) = receiver.take(None, 1, &mut rest).unwrap();
    assert_eq!((wanted.number, record), (0, Record::Done(finished)));
    assert!(receiver.take(None, 1, &mut &frame[..]).is_err(), "it has come");
    assert!(!receiver.is_done().unwrap());
    receiver.handle_end(None, 1).unwrap();
    assert!(receiver.handle_end(None, 1).is_err());
    assert!(receiver.is_done().unwrap());
}

fn told(count: u64) -> TreeReceiver {
    let mut receiver = TreeReceiver::new(count as usize);
    receiver.handle_entries(&batch(true)).unwrap();
    for _ in 0..count {
        receiver.accept(&file(None)).unwrap();
    }
    receiver
}

fn done() -> Vec<u8> {
    let mut frame = Vec::new();
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    Record::Done(finished).push(&mut frame);
    frame
}

/// P5: a hash that a question named need not be said again, by who asks for contents as by who asks for cuts; who names none asks for
/// nothing, and an answer without a hash fits no question without one.
#[test]
fn hashes_that_were_named_are_not_repeated() {
    let hash = [9; 32];
    let finished = Finished { hash, size_bytes: 1, mtime_s: 5, mtime_ns: 0 };
    let mut answer = Vec::new();
    Record::Same(finished).push_briefly(&hash, &mut answer);
    let mut receiver = told(3);
    receiver.want(0, None, 1);
    let plain = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!((plain.brief, Owed::of(&plain)[0].is_brief), (None, false));
    assert!(receiver.take(None, plain.request, &mut &answer[..]).is_err(), "no hash was named");
    receiver.take(None, plain.request, &mut &done()[..]).unwrap();
    receiver.handle_end(None, plain.request).unwrap();
    receiver.want(1, Some(hash), 1);
    let brief = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!((brief.brief, Owed::of(&brief)[0].is_brief), (Some(true), true));
    let (_, record) = receiver.take(None, brief.request, &mut &answer[..]).unwrap();
    assert_eq!(record, Record::Same(finished));
    receiver.want_cut(2, Part { start: 0, bytes: 1 }, 4096, Some(hash));
    let cut = receiver.pull_cuts().unwrap();
    assert_eq!(cut.brief, Some(true));
    let (_, record) = receiver.take(None, cut.request, &mut &answer[..]).unwrap();
    assert_eq!(record, Record::Same(finished));
}

/// Issue 4 "direct paths join": each path answers what it was asked, in any order between them; what a lost one owed is asked
/// for again, first, and the sender hears of the loss.
#[test]
fn what_a_lost_lane_owed_is_asked_for_again() {
    let mut receiver = told(6);
    receiver.open(1);
    (0..6).for_each(|number| receiver.want(number, None, 1));
    let two = 2 * weight(1, false);
    let ssh = receiver.pull(None, two, 0, Some(0)).unwrap();
    let lane = receiver.pull(Some(1), two, 0, Some(0)).unwrap();
    assert_eq!((ssh.runs[0].first, ssh.runs[0].count, ssh.lane), (0, 2, None));
    assert_eq!((lane.runs[0].first, lane.runs[0].count, lane.lane), (2, 2, Some(1)));
    assert_eq!((receiver.weight(None), receiver.weight(Some(1)), receiver.under_way()), (two, two, 6));
    let frame = done();
    assert!(receiver.take(None, lane.request, &mut &frame[..]).is_err(), "it was asked for elsewhere");
    let (wanted, _) = receiver.take(Some(1), lane.request, &mut &frame[..]).unwrap();
    assert_eq!(wanted.number, 2);
    let lost = receiver.lose(1);
    assert_eq!(lost.iter().map(|wanted| wanted.number).collect::<Vec<_>>(), [3]);
    lost.iter().rev().for_each(|lost| receiver.want_again(lost, None));
    assert!(receiver.take(Some(1), lane.request, &mut &frame[..]).is_err(), "it is lost");
    let again = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let runs: Vec<_> = again.runs.iter().map(|run| (run.first, run.count)).collect();
    assert_eq!((runs, again.lost), (vec![(3, 3)], Some(1)));
    assert!(!receiver.is_done().unwrap());
}

/// A large file is asked for in parts that cover it, over any path; an endless hole in no more parts than may be.
#[test]
fn parts_cover_a_file() {
    assert_eq!((part_bytes(1), part_bytes(1 << 30)), (TREE_PART_BYTES, TREE_PART_BYTES));
    assert!(u64::MAX.div_ceil(part_bytes(u64::MAX >> 2)) <= 4 * TREE_PARTS_MAX);
    let mut receiver = told(2);
    receiver.want_parts(0, 100, 40);
    receiver.want(1, None, 1);
    receiver.came_part(0, false);
    let mut parts = Vec::new();
    while let Some(pull) = receiver.pull(None, 1, 0, Some(0)) {
        parts.extend(pull.runs.iter().map(|run| (run.first, run.part.map(|part| (part.start, part.bytes)))));
    }
    assert_eq!(parts, [(0, Some((0, 40))), (0, Some((40, 40))), (0, Some((80, 20))), (1, None)]);
}

/// A path grows lighter as bytes come, not at the end of a content alone: else a long path would carry one large file at a time. A file
/// of holes is asked for in ever larger parts.
#[test]
fn what_came_weighs_nothing_and_holes_are_passed_fast() {
    let mut receiver = told(2);
    receiver.want(0, None, 1 << 20);
    let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let full = receiver.weight(None);
    let mut frame = Vec::new();
    Record::Bytes(&[7; 1000]).push(&mut frame);
    receiver.take(None, pull.request, &mut &frame[..]).unwrap();
    assert_eq!(receiver.weight(None), full - 1000);
    let frame = done();
    receiver.want(1, None, 10);
    receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    receiver.take(None, pull.request, &mut &frame[..]).unwrap();
    assert_eq!(receiver.weight(None), weight(10, false), "that of the other");
    receiver.handle_end(None, pull.request).unwrap();
    receiver.take(None, pull.request + 1, &mut &frame[..]).unwrap();
    assert_eq!(receiver.weight(None), 0);
    receiver.want_parts(1, 1 << 40, 1 << 22);
    let mut pulls = 0;
    while let Some(pull) = receiver.pull(None, 1, 0, Some(0)) {
        assert_eq!(pull.runs.len(), 1);
        receiver.came_part(1, true);
        pulls += 1;
    }
    assert_eq!(pulls, 19, "of 2^18 parts");
    receiver.want(0, Some([7; 32]), u64::MAX);
    receiver.want(1, None, u64::MAX);
    receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    assert_eq!(receiver.weight(None), u64::MAX);
}

/// Issue 4 "bounded memory": what is said to be settled is below every entry that may yet be asked for, in whatever order wishes stand:
/// names of hard links come late, what a lost path owed comes first, and a file that failed is forgotten.
#[test]
fn settled_is_below_every_wish() {
    let mut receiver = TreeReceiver::new(20);
    receiver.handle_entries(&batch(false)).unwrap();
    (0..20).for_each(|_| assert!(receiver.accept(&file(None)).is_ok()));
    receiver.open(1);
    let settled = |receiver: &mut TreeReceiver| receiver.pull(None, 1, 1, None).unwrap().settled;
    [5, 3, 9, 3].into_iter().for_each(|number| receiver.want(number, None, 1));
    assert_eq!(settled(&mut receiver), 3, "after 5");
    assert_eq!(settled(&mut receiver), 3, "after 3, which is wanted twice");
    assert_eq!(receiver.pull(Some(1), 1, 1, Some(9)).unwrap().settled, 3, "after 9");
    receiver.want(10, None, 1);
    receiver.want(12, None, 1);
    assert_eq!(receiver.pull(None, 1, 1, Some(9)).unwrap().settled, 9, "after 3 again");
    let lost = receiver.lose(1);
    lost.iter().for_each(|lost| receiver.want_again(lost, None));
    receiver.forget(10);
    assert_eq!(settled(&mut receiver), 12, "after 9 again");
    assert_eq!(settled(&mut receiver), 20, "after 12");
}

/// An account that is short is believed where a connection was lost, and one that is too long never.
#[test]
fn what_a_lost_lane_took_need_not_have_come() {
    let mut sender = TreeSender::new();
    sender.told(1, true);
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    let mut lanes = TreeLanes::default();
    lanes.sent.record(&Record::Bytes(b"four"), false, false);
    lanes.sent.record(&Record::Done(finished), false, false);
    let done = TreeDone { entries: 1, files: 0, unchanged: 0, bytes: 3, failed: 0 };
    assert!(sender.handle_done(&done, &lanes).is_err());
    lanes.has_lost = true;
    sender.handle_done(&done, &lanes).unwrap();
    assert!(sender.handle_done(&TreeDone { bytes: 5, ..done }, &lanes).is_err());
    assert!(sender.handle_done(&TreeDone { files: 2, ..done }, &lanes).is_err());
    lanes.owed = 1;
    assert!(sender.handle_done(&done, &lanes).is_err());
}

fn cut(number: u64, part: Option<Part>, known: Option<[u8; 32]>) -> Run {
    Run { first: number, count: 1, known: known.map(Into::into), part, cut: Some(4096), ..Run::default() }
}

fn whole(bytes: u64) -> Part {
    Part { start: 0, bytes }
}

/// Design 1: how a file is cut is asked for beside contents, and answered in the order of those questions, whatever contents come between.
#[test]
fn cuts_are_answered_beside_contents() {
    let mut receiver = told(3);
    receiver.want(0, None, 100);
    receiver.want_cut(1, whole(8192), 4096, Some([3; 32]));
    receiver.want_cut(2, whole(8192), 4096, None);
    let contents = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let cuts = receiver.pull_cuts().unwrap();
    assert!(receiver.pull_cuts().is_none());
    assert_eq!(cuts.runs, [cut(1, Some(whole(8192)), Some([3; 32])), cut(2, Some(whole(8192)), None)]);
    assert_eq!((receiver.under_way(), receiver.weight(None) < 8192), (3, true));
    let chunks = encode_chunks(&[ChunkHint { len: 5000, hash: [1; 16] }]);
    let mut frame = Vec::new();
    Record::Chunks(&chunks).push(&mut frame);
    Record::Hole(3192).push(&mut frame);
    frame.extend(done());
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let (wanted, _) = receiver.take(None, cuts.request, &mut rest).unwrap();
        assert_eq!((wanted.number, wanted.cut), (1, Some(4096)));
    }
    let frame = done();
    assert_eq!(receiver.take(None, contents.request, &mut &frame[..]).unwrap().0.number, 0);
    receiver.handle_end(None, contents.request).unwrap();
    assert!(receiver.handle_end(None, cuts.request).is_err(), "one is owed");
    let mut frame = Vec::new();
    Record::Same(Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 }).push(&mut frame);
    receiver.take(None, cuts.request, &mut &frame[..]).unwrap();
    receiver.handle_end(None, cuts.request).unwrap();
    assert_eq!(receiver.under_way(), 0);
}

/// Design 17: an answer that tells more, less or something else than the part can have breaks the protocol before it is kept.
#[test]
fn impossible_cuts_are_refused() {
    let chunk = |len| Record::Chunks(Box::leak(encode_chunks(&[ChunkHint { len, hash: [1; 16] }]).into()));
    let many = vec![ChunkHint { len: 1, hash: [1; 16] }; chunks_max(8192, 4096) as usize + 1];
    let most = encode_chunks(&many[1..]);
    let many = encode_chunks(&many);
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    for records in [
        vec![chunk(8193)],
        vec![chunk(4096), Record::Hole(4097)],
        vec![Record::Hole(1 << 60), Record::Hole(1 << 60)],
        vec![Record::Chunks(&many)],
        vec![chunk(8191), Record::Done(finished)],
        vec![Record::Bytes(b"bytes")],
        vec![Record::Again],
    ] {
        let mut receiver = told(2);
        receiver.want_cut(1, whole(8192), 4096, None);
        let pull = receiver.pull_cuts().unwrap();
        let mut frame = Vec::new();
        records.iter().for_each(|record| record.push(&mut frame));
        let mut rest = &frame[..];
        let taken = records.iter().try_for_each(|_| receiver.take(None, pull.request, &mut rest).map(|_| ()));
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::Protocol, "{records:?}");
    }
    // As many as it can have are taken.
    let mut receiver = told(2);
    receiver.want_cut(1, whole(8192), 4096, None);
    let pull = receiver.pull_cuts().unwrap();
    let mut frame = Vec::new();
    Record::Chunks(&most).push(&mut frame);
    receiver.take(None, pull.request, &mut &frame[..]).unwrap();
    // Nor do chunks come where bytes were asked for.
    let mut receiver = told(2);
    receiver.want(1, None, 8192);
    let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let mut frame = Vec::new();
    chunk(10).push(&mut frame);
    assert!(receiver.take(None, pull.request, &mut &frame[..]).is_err());
}

/// A receiver asks for cuts by themselves, of parts, and not over a lane.
#[test]
fn cuts_that_break_the_rules_are_refused() {
    let content = Run { first: 2, count: 1, ..Run::default() };
    let part = Some(whole(5));
    for (runs, lane) in [
        (vec![cut(1, None, None)], None),
        (vec![cut(1, part, None), content.clone()], None),
        (vec![content, cut(1, part, None)], None),
        (vec![cut(1, part, None)], Some(1)),
        (vec![Run { count: 2, ..cut(1, part, None) }], None),
        (vec![cut(100, part, None)], None),
        (vec![Run { cut: None, ..cut(1, part, Some([1; 32])) }], None),
    ] {
        let pull = Pull { request: 1, runs, batches: 32, lane, ..Pull::default() };
        let error = sender().handle_pull(&pull, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{pull:?}");
    }
    let runs = vec![cut(1, part, Some([1; 32])), cut(1, part, None)];
    let mut sender = sender();
    sender.handle_pull(&Pull { request: 1, runs, batches: 32, ..Pull::default() }, 0).unwrap();
    assert!(sender.is_idle(), "they are owed elsewhere");
}

/// Parts of one file are as many as they are, in the order wanted, and never more than may be under way.
#[test]
fn pieces_of_a_file_are_asked_for_within_bounds() {
    let mut receiver = told(1);
    let parts = [(10, 4), (20, 25), (100, 1)].map(|(start, bytes)| Part { start, bytes });
    receiver.want_these(0, parts.into(), 10);
    let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    let asked: Vec<_> =
        pull.runs.iter().map(|run| run.part.map(|part| (part.start, part.bytes)).unwrap()).collect();
    assert_eq!(asked, [(10, 4), (20, 10), (30, 10), (40, 5), (100, 1)]);
    assert!(!receiver.has_wishes());
    let many = (0..2 * TREE_WANTED_MAX).map(|at| Part { start: 2 * at, bytes: 1 }).collect();
    receiver.want_these(0, many, 10);
    let mut count = pull.runs.len() as u64;
    while let Some(pull) = receiver.pull(None, u64::MAX, 0, Some(0)) {
        count += pull.runs.len() as u64;
    }
    assert_eq!((count, receiver.has_wishes()), (TREE_WANTED_MAX, true));
}

/// S10, ADR 18: what is wanted by itself is asked for over the channel of the copy alone, with nothing else, and the copy is not done before.
#[test]
fn what_may_hang_is_asked_for_by_itself() {
    let mut receiver = told(4);
    receiver.open(1);
    (0..4).for_each(|number| receiver.want(number, None, 1));
    let lane = receiver.pull(Some(1), 2 * weight(1, false), 0, Some(0)).unwrap();
    assert_eq!((lane.runs[0].first, lane.runs[0].count), (0, 2));
    let lost = receiver.lose(1);
    receiver.want_alone(&lost[0], None);
    receiver.want_again(&lost[1], None);
    receiver.open(2);
    let lane = receiver.pull(Some(2), weight(1, false), 0, None).unwrap();
    assert_eq!((lane.runs[0].first, lane.settled), (1, 0), "entry 0 is not settled");
    assert!(receiver.has_alone() && !receiver.owes_alone());
    assert_eq!(receiver.pull(None, 0, 0, None), None, "there is no room");
    let ssh = receiver.pull(None, u64::MAX, 0, None).unwrap();
    assert_eq!((ssh.runs.len(), ssh.runs[0].first, ssh.runs[0].count), (1, 0, 1));
    assert!(!receiver.has_alone() && receiver.owes_alone());
    assert_eq!((receiver.next_owed(), receiver.under_way()), (Some(0), 4));
    receiver.take(None, ssh.request, &mut &done()[..]).unwrap();
    receiver.handle_end(None, ssh.request).unwrap();
    assert!(!receiver.owes_alone());
    receiver.want_alone(&lost[0], None);
    assert!(!receiver.is_done().unwrap());
    receiver.forget(0);
    assert!(!receiver.has_alone());
}

/// What a correct receiver says a correct sender takes: cuts are asked for when as many contents are under way as may be.
#[test]
fn cuts_are_taken_beside_all_the_contents_that_may_be_under_way() {
    let count = TREE_WANTED_MAX + 10;
    let (mut receiver, mut sender) = (told(count), TreeSender::new());
    sender.told(count + 1, true);
    (0..TREE_WANTED_MAX).for_each(|number| receiver.want(number, None, 10));
    while let Some(pull) = receiver.pull(None, u64::MAX, 0, Some(0)) {
        sender.handle_pull(&pull, 0).unwrap();
    }
    assert_eq!(receiver.under_way(), TREE_WANTED_MAX);
    (0..10).for_each(|at| receiver.want_cut(TREE_WANTED_MAX + at, whole(8192), 4096, None));
    let cuts = receiver.pull_cuts().unwrap();
    assert_eq!(cuts.runs.len(), 10);
    sender.handle_pull(&cuts, 0).unwrap();
}

/// Design 17: what a cut makes its sender remember is bounded before a byte is read.
#[test]
fn cuts_of_too_much_are_refused() {
    let most = TREE_CUT_CHUNKS_MAX * 1024;
    for (bytes, average_bytes, is_allowed) in [
        (most, 4096, true),
        (most + 1024, 4096, false),
        (TREE_CUT_BYTES_MAX, 4 << 20, true),
        (TREE_CUT_BYTES_MAX + 1, 4 << 20, false),
        (TREE_CUT_BYTES_MAX, 2 << 20, false),
        (OBJECT_BYTES_MAX, 4 << 20, false),
    ] {
        let run = Run { cut: Some(average_bytes), ..cut(1, Some(whole(bytes)), None) };
        let pull = Pull { request: 1, runs: vec![run], batches: 32, ..Pull::default() };
        let taken = sender().handle_pull(&pull, 0);
        assert_eq!(
            taken.map_err(|error| error.kind()),
            if is_allowed { Ok(()) } else { Err(ErrorKind::Protocol) }
        );
    }
}

/// S77: what was asked for in one way is no answer to what is asked for in another, over whatever path it comes.
#[test]
fn what_is_void_says_so() {
    let mut receiver = told(2);
    receiver.open(1);
    let part = |start| Part { start, bytes: 10 };
    receiver.want_these(0, [part(0), part(20)].into(), 10);
    receiver.want(1, None, 10);
    let lane = receiver.pull(Some(1), weight(10, false), 0, Some(0)).unwrap();
    assert_eq!(lane.runs.len(), 1);
    receiver.void(0);
    receiver.want(0, None, 100);
    let ssh = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
    // The second part is not asked for any more.
    assert_eq!(ssh.runs.iter().map(|run| (run.first, run.part)).collect::<Vec<_>>(), [(1, None), (0, None)]);
    assert!(receiver.take(Some(1), lane.request, &mut &done()[..]).unwrap().0.is_void);
    for number in [1, 0] {
        let (wanted, _) = receiver.take(None, ssh.request, &mut &done()[..]).unwrap();
        assert_eq!((wanted.number, wanted.is_void), (number, false));
    }
}

/// Target P3: digests are told once, before entries, and answered once; a receiver that is done instead has found everything the same, which it can
/// only where the roots of all sources were told.
#[test]
fn digests_have_one_answer() {
    let nothing = TreeDone::default();
    let lanes = TreeLanes::default();
    let told = |has_roots| {
        let mut sender = TreeSender::new();
        sender.told_digests(3, has_roots);
        sender
    };
    let same = |bits: &[bool]| DigestsSame::of(bits);
    let mut sender = told(true);
    assert!(sender.awaits_same() && !sender.may_tell());
    assert!(sender.handle_done(&nothing, &lanes).is_ok());
    assert!(sender.handle_done(&TreeDone { entries: 1, ..nothing }, &lanes).is_err());
    assert!(sender.handle_same(&same(&[true; 9])).is_err(), "of another number");
    sender.handle_same(&same(&[true, false, true])).unwrap();
    assert!(sender.may_tell() && !sender.awaits_same());
    assert!(sender.handle_same(&same(&[true; 3])).is_err(), "twice");
    // From then on it is a copy as any other.
    assert!(sender.handle_done(&nothing, &lanes).is_err());
    sender.told(2, true);
    assert!(sender.handle_done(&TreeDone { entries: 2, ..nothing }, &lanes).is_ok());
    assert!(told(false).handle_done(&nothing, &lanes).is_err(), "not all roots were told");
    assert!(TreeSender::new().handle_same(&same(&[true; 3])).is_err(), "nothing was told");
    let mut sender = TreeSender::new();
    sender.handle_wanted().unwrap();
    assert!(sender.handle_wanted().is_err());
    // The receiver takes them once, and before entries.
    let mut receiver = TreeReceiver::new(1);
    receiver.handle_digests().unwrap();
    assert!(receiver.handle_digests().is_err());
    let mut receiver = TreeReceiver::new(1);
    receiver.handle_entries(&batch(false)).unwrap();
    assert!(receiver.handle_digests().is_err());
}
