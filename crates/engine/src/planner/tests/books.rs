//! What stands in the books of the planner, and when its clocks begin.

use super::bounds::{end_us, wide};
use super::many::{serve_some, standing};
use super::*;

/// Issue 6 "tests that bite": the clock begins with the first call, whatever it says then, and not with the transfer before it.
#[test]
fn the_clock_begins_with_the_first_call() {
    let begun_us = 3_600 * S;
    let mut planner = planner(4);
    add(&mut planner, A, "never up", 0);
    drain(&mut planner, begun_us);
    assert!(planner.outcome().is_none());
    assert_eq!(end_us(&mut planner, begun_us), begun_us + 25 * S);
}

/// S10: who is at work is so for a second after it was told, and not before it ever was.
#[test]
fn being_at_work_ends_after_a_second() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    assert!(!planner.sources[&A].is_at_work(0));
    planner.handle_at_work(5 * S, A);
    for (now_us, is_at_work) in [(5 * S, true), (6 * S - 1, true), (6 * S, false), (60 * S, false)] {
        assert_eq!(planner.sources[&A].is_at_work(now_us), is_at_work, "{now_us}");
    }
}

/// Design 5: what a source took before it lost its connection says nothing of the rate that it has with the next one.
#[test]
fn a_guess_of_the_rate_begins_with_the_connection() {
    let mut planner = planner(4);
    add(&mut planner, A, "direct", 0);
    planner.handle_received(4 * S, A, 1_000_000);
    planner.handle_up(5 * S, A, Some(MS));
    assert_eq!(planner.sources[&A].rate_or_guess(7 * S), None);
    planner.handle_received(6 * S, A, 1_003_000);
    assert_eq!(planner.sources[&A].rate_or_guess(7 * S), Some(1_500.0));
}

/// P4: the time in which a source owes nothing is none of the path's, also where its last request is taken off the books.
#[test]
fn a_window_rests_while_nothing_is_owed() {
    for units in [1, 2] {
        let mut planner = planner(units);
        add_up(&mut planner, 0, A, "direct", 0);
        let asked = drain(&mut planner, 0).0;
        let arrived = |planner: &mut Planner, now_us| {
            let window = &mut planner.sources.get_mut(&A).unwrap().window;
            window.arrived(now_us, GROUP_BYTES);
            window.rate().is_some()
        };
        assert!(!arrived(&mut planner, 0));
        planner.remove(A, asked[0].request).unwrap();
        // With the second of two requests still owed, it goes on.
        assert_eq!(arrived(&mut planner, 100 * S), units == 2);
    }
}

/// What comes twice is counted as that: for its source and in all.
#[test]
fn what_comes_twice_is_counted() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    let asked = drain(&mut planner, 0).0;
    assert!(planner.work.deliver(0));
    assert_eq!(planner.handle_group(MS, A, asked[0].request, 0), Disposition::Discard);
    assert_eq!(planner.stats()[0].discarded_bytes, GROUP_BYTES);
    assert_eq!(planner.explain(MS).duplicate_bytes, GROUP_BYTES);
}

/// A piece that is here is not asked for again because its request is given back.
#[test]
fn what_is_delivered_is_not_given_back() {
    let mut planner = planner(2);
    add_up(&mut planner, 0, A, "direct", 0);
    let asked = drain(&mut planner, 0).0;
    assert_eq!(asked.len(), 2);
    (0..UNIT_GROUPS).for_each(|group| assert!(planner.work.deliver(group)));
    for asked in &asked {
        planner.work.give_back(asked.groups, &RangeSet::new());
    }
    assert_eq!(planner.work.next_run(), Some(1..2));
}

/// Design 5: what another source still owes is not asked for once more because the first that owed it is gone.
#[test]
fn what_another_one_owes_is_not_asked_for_a_third_time() {
    let mut planner = planner(1);
    add_up_stubborn(&mut planner);
    drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "direct", 0);
    let (at_us, again, cancelled, _) = bounds::wait(&mut planner, 0);
    assert_eq!((again[0].source, cancelled.len()), (B, 0));
    planner.handle_down(at_us, A, Some(&Error::new(ErrorKind::Unreachable, "reset")), false);
    assert!(drain(&mut planner, at_us).0.is_empty());
    serve(&mut planner, at_us, &again[0]);
    assert!(planner.outcome().unwrap().is_ok());
}

/// The numbers of requests go on where another planner takes over.
#[test]
fn the_last_number_is_told() {
    let mut planner = planner(4);
    assert_eq!(planner.last_request(), 0);
    add_up(&mut planner, 0, A, "direct", 0);
    let asked = drain(&mut planner, 0).0;
    assert!(asked.len() > 1);
    assert_eq!(RequestId(planner.last_request()), asked.last().unwrap().request);
}

/// `dray explain`: who has work has no reason to be idle, though memory is short.
#[test]
fn who_works_is_not_idle() {
    let mut planner = planner_of(8, DeliveryMode::OutOfOrder, &Budget::new(UNIT_BYTES));
    add_up(&mut planner, 0, A, "direct", 0);
    let _held = drain(&mut planner, 0).0;
    assert!(planner.budget_retry_us.is_some());
    assert_eq!(standing(&planner, 0, A).1, None);
}

/// `dray explain`: of a thread's time that is halved all parts are, so that waiting that goes on longer weighs as much as before.
#[test]
fn efforts_fade_alike() {
    let of = |proving_us, writing_us| Effort { span_us: 2 * S, proving_us, writing_us };
    for effort in [of(8 * S / 10, 0), of(0, 8 * S / 10)] {
        let mut planner = planner(4);
        add_up(&mut planner, 0, A, "direct", 0);
        drain(&mut planner, 0);
        for _ in 0..2 {
            planner.effort.add(effort);
            planner.effort.add(Effort { span_us: 2, ..Effort::default() });
            assert_eq!(planner.explain(0).bottleneck, Bottleneck::Network, "{effort:?}");
        }
    }
}

/// Y20: a spare that stands back lets only the oldest of what it has begun to send be finished.
#[test]
fn a_spare_keeps_one_that_has_begun() {
    let mut planner = wide(8, 4);
    add_up(&mut planner, 0, B, "spare", 7);
    let of_b = drain(&mut planner, 0).0;
    assert_eq!(of_b.len(), 4);
    for asked in &of_b[..2] {
        planner.handle_parents(MS, B, asked.request);
    }
    add_up(&mut planner, MS, A, "direct", 0);
    let cancelled = drain(&mut planner, MS).1;
    assert_eq!(cancelled, of_b[1..].iter().map(|asked| asked.request).collect::<Vec<_>>());
}

/// Design 5: a queue of one unit in a window of four is a quarter full; sources of equal rank share the work by that.
#[test]
fn a_queue_is_as_full_as_its_window_says() {
    let mut planner = wide(1, 4);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    assert_eq!(planner.sources[&A].fullness(), 0.25);
}

/// Design 5: who has run dry takes over from whoever would be the last to be through.
#[test]
fn the_slowest_is_helped_first() {
    for slow in [A, B] {
        let mut planner = wide(12, 4);
        let helper = SourceId(3);
        for source in [A, B, helper] {
            add_up(&mut planner, 0, source, "direct", 0);
        }
        let asked = drain(&mut planner, 0).0;
        for asked in &asked {
            let is_first = asked.groups.start < 3 * UNIT_GROUPS;
            match asked.source {
                source if source == helper => {
                    let _ = serve_some(&mut planner, 0, S / 16, asked, UNIT_GROUPS);
                    planner.handle_done(S, helper, asked.request);
                }
                source if source == slow && is_first => drop(serve_some(&mut planner, 0, S, asked, 4)),
                _ if is_first => drop(serve_some(&mut planner, 0, S / 2, asked, 8)),
                _ => {}
            }
        }
        let (taken, cancelled, _) = drain(&mut planner, 4 * S);
        assert_eq!(taken[0].source, helper);
        let lender = asked.iter().find(|asked| asked.request == cancelled[0]).unwrap().source;
        assert_eq!(lender, slow);
    }
}

/// Design 5: who failed twice is not asked again before the pause is over, and is then.
#[test]
fn who_pauses_is_not_asked() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    let busy = Error::new(ErrorKind::TimedOut, "busy");
    let mut asked = drain(&mut planner, 0).0;
    for now_us in [S, 2 * S] {
        assert!(!asked.is_empty());
        for request in asked {
            planner.handle_failed(now_us, A, request.request, &busy);
        }
        asked = drain(&mut planner, now_us).0;
    }
    assert!(asked.is_empty());
    assert!(drain(&mut planner, 2 * S + 100 * MS - 1).0.is_empty());
    assert!(!drain(&mut planner, 2 * S + 100 * MS).0.is_empty());
}
