//! What both ends count: what is next, what is settled, what is under way and what it weighs.

use super::*;

/// Each end knows how far the other is: the sender below which number nothing is asked for any more, the receiver what the channel owes next.
#[test]
fn both_ends_know_what_is_next() {
    let mut sender = sender();
    assert_eq!(sender.settled(), 0);
    sender.handle_pull(&pull(1, &[(7, 1)], 5, 40), 0).unwrap();
    assert_eq!((sender.settled(), sender.is_idle()), (5, false));
    sender.next_owed().unwrap();
    assert!(sender.is_idle());
    let mut receiver = told(9);
    assert_eq!(receiver.next_owed(), None);
    [7, 8].into_iter().for_each(|number| receiver.want(number, None, 1));
    let request = receiver.pull(None, u64::MAX, 0, None).unwrap().request;
    assert_eq!((receiver.next_owed(), receiver.pulls(None), receiver.pulls(Some(1))), (Some(7), 1, 0));
    receiver.take(None, request, &mut &done()[..]).unwrap();
    assert_eq!(receiver.next_owed(), Some(8));
    receiver.take(None, request, &mut &done()[..]).unwrap();
    receiver.handle_end(None, request).unwrap();
    assert_eq!((receiver.next_owed(), receiver.pulls(None)), (None, 0));
}

/// While contents come in any order, a few entries more that are settled are no reason for a message; many are, and so is the last of
/// what was told.
#[test]
fn what_is_settled_is_said_in_steps() {
    let mut receiver = TreeReceiver::new(1_000);
    receiver.handle_entries(&batch(false)).unwrap();
    (0..900).for_each(|_| assert!(receiver.accept(&file(None)).is_ok()));
    let mut settled = |undecided| receiver.pull(None, 1, 1, Some(undecided)).map(|pull| pull.settled);
    assert_eq!([5, 255, 256, 511, 520].map(&mut settled), [None, None, Some(256), None, Some(520)]);
    assert_eq!([700, 900].map(&mut settled), [None, Some(900)]);
}

/// Whatever is wanted, however it is to be asked for, is under way, and the copy is not done before it has come.
#[test]
fn what_waits_is_under_way() {
    let mut one = told(3);
    one.want_cut(0, whole(8192), 4096, None);
    assert_eq!((one.under_way(), one.is_done().unwrap()), (1, false));
    one.pull_cuts().unwrap();
    assert_eq!((one.under_way(), one.is_done().unwrap()), (1, false));
    let mut other = told(3);
    other.open(1);
    other.want(0, None, 1);
    other.pull(Some(1), 1, 0, None).unwrap();
    let lost = other.lose(1);
    other.want_alone(&lost[0], None);
    assert_eq!((other.under_way(), other.is_done().unwrap()), (1, false));
    other.want_cut(1, whole(8192), 4096, None);
    assert_eq!((other.under_way(), other.is_done().unwrap()), (2, false));
}

/// What is forgotten of one file is not forgotten of others, however it was to be asked for.
#[test]
fn others_are_not_forgotten() {
    let mut receiver = told(4);
    receiver.open(1);
    (0..4).for_each(|number| receiver.want(number, None, 1));
    receiver.pull(Some(1), 2 * weight(1, false), 0, None).unwrap();
    let lost = receiver.lose(1);
    lost.iter().for_each(|lost| receiver.want_alone(lost, None));
    [0, 1].into_iter().for_each(|number| receiver.want_cut(number, whole(8192), 4096, None));
    [0, 2].into_iter().for_each(|number| receiver.forget(number));
    let asked =
        |pull: Option<Pull>| pull.unwrap().runs.iter().map(|run| (run.first, run.count)).collect::<Vec<_>>();
    assert_eq!(asked(receiver.pull(None, u64::MAX, 0, None)), [(1, 1)], "alone");
    assert_eq!(asked(receiver.pull(None, u64::MAX, 0, None)), [(3, 1)]);
    assert_eq!(asked(receiver.pull_cuts()), [(1, 1)]);
}

/// What is only to be compared weighs as much as it has, up to 64 KiB.
#[test]
fn what_is_known_weighs_little() {
    for (bytes, weighs) in [(0, 0), (1, 1), (64 << 10, 64 << 10), (1 << 40, 64 << 10)] {
        assert_eq!(weight(bytes, true), weight(weighs, false));
    }
}

/// Issue "bounded memory": what is owed over lanes counts with what is owed here.
#[test]
fn what_is_owed_elsewhere_counts() {
    let mut sender = TreeSender::new();
    sender.told(TREE_WANTED_MAX, true);
    sender.handle_pull(&pull(1, &[(0, 2)], 0, 40), TREE_WANTED_MAX - 2).unwrap();
    let full = sender.handle_pull(&pull(2, &[(2, 1)], 0, 40), TREE_WANTED_MAX - 2).unwrap_err();
    assert!(full.what().contains("under way"), "{full}");
    sender.handle_pull(&pull(2, &[(2, 1)], 0, 40), TREE_WANTED_MAX - 3).unwrap();
}

/// Issue "hard links": a name whose content failed may have become a link, and is neither a file nor failed, over whatever path it came.
#[test]
fn names_of_one_file_may_become_links() {
    let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
    let done = TreeDone { entries: 100, files: 0, unchanged: 0, bytes: 0, failed: 0 };
    for record in [Record::Done(finished), Record::Same(finished)] {
        for (is_linked, over_lane) in [(true, false), (true, true), (false, false), (false, true)] {
            let (mut sender, mut lanes) = (sender(), TreeLanes::default());
            let sent = if over_lane { &mut lanes.sent } else { sender.sent() };
            sent.record(&record, false, is_linked);
            assert_eq!(sender.handle_done(&done, &lanes).is_ok(), is_linked, "{record:?} {over_lane}");
        }
    }
}
