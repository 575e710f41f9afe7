//! What the planner tells: causes and culprits, and where each source and the whole stand.

use super::bounds::{end_us, wide};
use super::many::standing;
use super::*;

/// Design 5: of what two sources ended for, the outcome is what tells more.
#[test]
fn causes_are_ranked() {
    use ErrorKind::*;
    let kinds = [
        VerificationFailed,
        Changed,
        Damaged,
        NotFound,
        Refused,
        Unsupported,
        Protocol,
        Internal,
        TimedOut,
        Unreachable,
    ];
    for pair in kinds.windows(2) {
        for order in [[A, B], [B, A]] {
            let mut planner = planner(4);
            for source in order {
                add(&mut planner, source, "direct", 0);
            }
            for (source, kind) in order.into_iter().zip(pair) {
                planner.handle_down(1, source, Some(&Error::new(*kind, "x")), true);
            }
            assert_eq!(failure(&planner).kind(), pair[0], "{pair:?}");
        }
    }
}

/// Design 5: of many culprits the first few are named, and the others counted.
#[test]
fn a_few_culprits_are_named() {
    for (count, end) in [(8, "no"), (9, "; and 1 more"), (100, "; and 92 more")] {
        let mut planner = planner(4);
        let sources = || (1..=count).map(SourceId);
        sources().for_each(|source| add(&mut planner, source, &format!("node{source:?}"), 0));
        let refused = Error::new(ErrorKind::Refused, "no");
        sources().for_each(|source| planner.handle_down(1, source, Some(&refused), true));
        let error = failure(&planner);
        assert_eq!(error.what().matches("node").count(), 8, "{error}");
        assert!(error.what().ends_with(end), "{error}");
    }
}

/// A transfer of more requests than there are numbers ends with an error.
#[test]
fn request_numbers_run_out() {
    let mut planner = planner(4);
    planner.last_request = u32::MAX - 1;
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, _, closed) = drain(&mut planner, 0);
    assert_eq!((asked.len(), closed), (1, vec![A]));
    assert_eq!(failure(&planner).kind(), ErrorKind::Interrupted);
}

/// Design 5: what is not said by the cause is said by where the source stands.
#[test]
fn who_is_given_up_is_described() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    planner.handle_down(S, A, Some(&Error::new(ErrorKind::Unreachable, "reset by peer")), false);
    end_us(&mut planner, S);
    let error = failure(&planner);
    assert!(error.what().contains("direct (connection lost: reset by peer)"), "{error}");
    let mut planner = wide(4, 2);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    end_us(&mut planner, 0);
    assert!(failure(&planner).what().contains("direct (went silent)"), "{}", failure(&planner));
    let mut planner = wide(4, 2);
    add_up(&mut planner, 0, A, "direct", 0);
    let busy = Error::new(ErrorKind::TimedOut, "busy");
    for second in 0..3 {
        let (asked, ..) = drain(&mut planner, second * S);
        planner.handle_failed(second * S, A, asked[0].request, &busy);
    }
    end_us(&mut planner, 3 * S);
    let error = failure(&planner);
    assert!(error.what().contains("direct (keeps failing: busy)"), "{error}");
}

/// A source that is up and was asked for nothing is not one that delivers; and what took the time an hour ago does not take it now.
#[test]
fn the_bottleneck_is_that_of_now() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    planner.handle_effort(Effort { span_us: 10 * S, proving_us: 0, writing_us: 9 * S });
    assert_eq!(planner.explain(0).bottleneck, Bottleneck::Disk);
    for _ in 0..4 {
        planner.handle_effort(Effort { span_us: S, proving_us: 900 * MS, writing_us: 0 });
    }
    assert_eq!(planner.explain(0).bottleneck, Bottleneck::Cpu);
    for _ in 0..4 {
        planner.handle_effort(Effort { span_us: S, proving_us: 0, writing_us: 0 });
    }
    assert_eq!(planner.explain(0).bottleneck, Bottleneck::Network);
    add_up(&mut planner, 3 * S, B, "other", 0);
    assert_eq!(planner.explain(3 * S).bottleneck, Bottleneck::Source);
}

/// Who is up and owes nothing is not needed, as long as nothing else keeps it from being asked.
#[test]
fn who_is_idle_is_not_needed() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "other", 0);
    drain(&mut planner, 0);
    assert_eq!([A, B].map(|source| standing(&planner, 0, source).1), [None, Some(Idle::NotNeeded)]);
}

/// Who is left alone after failures is told, with the time that is left of it.
#[test]
fn a_pause_is_told_with_its_time() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    let record = planner.sources.get_mut(&A).unwrap();
    [S, 2 * S, 3 * S].into_iter().for_each(|now_us| record.failed(now_us, None));
    let for_us = 150 * MS;
    assert_eq!(standing(&planner, 3 * S + 50 * MS, A).1, Some(Idle::Paused { for_us }));
}
