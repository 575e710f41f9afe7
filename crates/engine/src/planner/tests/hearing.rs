//! What the planner makes of a word, of silence and of what a path shows: round trips, spares that stand back, and who helps out.

use super::bounds::{lender_and_borrower, wait, wide};
use super::many::serve_some;
use super::*;

const C: SourceId = SourceId(3);

/// Design 8: the first word on a request tells the round trip, if its source owed nothing before; later words do not.
#[test]
fn the_first_word_tells_the_round_trip() {
    let mut planner = planner(4);
    add(&mut planner, A, "direct", 0);
    planner.handle_up(0, A, None);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(planner.stats()[0].round_trip_us, None);
    planner.handle_parents(40 * MS, A, asked[0].request);
    planner.handle_group(90 * MS, A, asked[0].request, 0);
    assert_eq!(planner.stats()[0].round_trip_us, Some(40 * MS));
}

/// P4: a new connection of a source finds its window anew, and knows its round trip.
#[test]
fn a_new_connection_starts_anew() {
    let mut planner = planner(8);
    add(&mut planner, A, "direct", 0);
    planner.handle_up(0, A, Some(20 * MS));
    let (asked, ..) = drain(&mut planner, 0);
    serve_some(&mut planner, 0, 20 * MS, &asked[0], 8);
    assert!(planner.stats()[0].rate_bytes_per_s > 0);
    planner.handle_down(S, A, None, false);
    planner.handle_up(2 * S, A, None);
    let again = &planner.stats()[0];
    assert_eq!((again.rate_bytes_per_s, again.window_bytes), (0, planner.config.window.initial_bytes));
    assert_eq!(again.round_trip_us, Some(20 * MS));
}

/// Design 8: while a source owes nothing, nothing can come: such a time counts neither against its rate nor against its window.
#[test]
fn a_source_that_owes_nothing_is_not_slow() {
    let mut planner = planner(1 << 10);
    add_up(&mut planner, 0, A, "direct", 0);
    let (mut now_us, mut rates, mut served) = (0, Vec::new(), Vec::new());
    while rates.len() < 24 {
        let (asked, ..) = drain(&mut planner, now_us);
        // That the last ones are done is heard only when there are new ones.
        for request in served.drain(..) {
            planner.handle_done(now_us, A, request);
        }
        for Asked { request, groups, .. } in asked {
            for group in groups.start..groups.end() {
                now_us += MS;
                planner.handle_group(now_us, A, request, group);
            }
            served.push(request);
        }
        rates.push(planner.stats()[0].rate_bytes_per_s);
        now_us += if rates.len() < 12 { 0 } else { S };
    }
    let known = rates[11] as f64;
    assert!(rates[12..].iter().all(|rate| (*rate as f64 / known - 1.0).abs() < 0.02), "{rates:?}");
}

/// ADR 28: of groups of which only the rest is fetched, what came counts, in the bytes of a source as in its rate: whoever holds one against the other asks what
/// the network carries.
#[test]
fn a_rest_counts_as_what_came_of_it() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    let mut now_us = 0;
    while planner.outcome().is_none() {
        for Asked { request, groups, .. } in drain(&mut planner, now_us).0 {
            for group in groups.start..groups.end() {
                now_us += S / 64;
                planner.handle_rest(now_us, A, request, group, 1024);
            }
            planner.handle_done(now_us, A, request);
        }
    }
    let figures = &planner.stats()[0];
    assert_eq!((now_us, figures.delivered_bytes), (S, 64 * 1024));
    assert_eq!(figures.rate_bytes_per_s, figures.delivered_bytes);
}

/// Design 9: spares give their work back to who was set aside for its silence and speaks again.
#[test]
fn spares_stand_back_for_who_speaks_again() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "ssh", 1);
    let (of_b, ..) = drain(&mut planner, 10 * S);
    assert_eq!(state(&planner, A), SourceState::Stalled);
    assert!(!of_b.is_empty() && of_b.iter().all(|asked| asked.source == B));
    planner.handle_parents(11 * S, A, of_a[0].request);
    let cancelled: Vec<RequestId> = of_b.iter().map(|asked| asked.request).collect();
    assert_eq!(drain(&mut planner, 11 * S).1, cancelled);
}

/// What A has begun stays with it until it has been silent for a second since `last_us`, and then goes to B.
fn assert_moves_at_silence(planner: &mut Planner, of_a: &[Asked], last_us: u64) {
    assert!(drain(planner, last_us + 200 * MS).0.is_empty());
    let (when_us, asked, cancelled, _) = wait(planner, last_us + 201 * MS);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups));
    assert_eq!(cancelled, [of_a[1].request]);
    assert!((last_us + S..=last_us + S + MS).contains(&when_us), "{}", when_us - last_us);
}

/// Design 8: who is fast and silent is expected to go on until it has been silent for a second; then what it has begun is worth less than
/// a duplicate, and goes to who has it sooner. Nobody has to look in between.
#[test]
fn what_has_begun_moves_when_its_source_counts_as_silent() {
    // 1 s of silence and three groups at 0.3 s: 1.9 s. There 1.601 s: a tenth more and 5 ms is less, a half more and 50 ms is not.
    let (mut planner, of_a, last_us) = lender_and_borrower(29, 300 * MS, 100 * MS);
    assert_moves_at_silence(&mut planner, &of_a, last_us);
}

/// Design 8: what lies right behind what a source owes is not its own, and it helps out there.
#[test]
fn who_owes_what_lies_before_helps_out() {
    let mut planner = planner(2);
    for source in [A, B] {
        add_up(&mut planner, 0, source, "direct", 0);
    }
    let (asked, ..) = drain(&mut planner, 0);
    let starts: Vec<_> = asked.iter().map(|asked| (asked.source, asked.groups.start)).collect();
    assert_eq!(starts, [(A, 0), (B, UNIT_GROUPS)]);
    for word in 1..=3 {
        planner.handle_parents(word * 900 * MS, A, asked[0].request);
    }
    // B has never said anything; A has a group left, and room for another unit.
    let now_us = serve_some(&mut planner, 2_750 * MS, 50 * MS, &asked[0], 15);
    let (again, cancelled, _) = drain(&mut planner, now_us);
    assert_eq!((again[0].source, again[0].groups), (A, asked[1].groups));
    assert_eq!(cancelled, [asked[1].request]);
}

/// Design 8: nobody is asked a second time for what it owes itself, though all who owe it are silent.
#[test]
fn nobody_helps_out_with_its_own() {
    let mut planner = planner(1);
    add_up_stubborn(&mut planner);
    drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "other", 0);
    let (_, asked, ..) = wait(&mut planner, 0);
    assert_eq!(asked.iter().map(|asked| asked.source).collect::<Vec<_>>(), [B]);
    for tenth in 1..90 {
        assert!(drain(&mut planner, tenth * 100 * MS).0.is_empty(), "{tenth}");
    }
    assert_eq!(planner.at_risk_bytes(9 * S), UNIT_BYTES, "nobody was told to leave it");
}

/// Design 9: what a silent source has is taken away from it also when nothing more may come twice: it is not expected to come.
#[test]
fn silence_is_helped_out_whatever_came_twice() {
    let mut planner = planner(2);
    add_up(&mut planner, 0, A, "silent", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "other", 0);
    planner.duplicate_bytes = borrow::DUPLICATE_BYTES_MAX + 1;
    let (_, asked, cancelled, _) = wait(&mut planner, 0);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups));
    assert_eq!(cancelled, [of_a[1].request]);
}

/// Design 9: who keeps failing and is alone is asked for one unit, and set aside again if it is silent about that.
#[test]
fn a_probe_is_timed() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    let mut now_us = 0;
    for _ in 0..3 {
        let (asked, ..) = drain(&mut planner, now_us);
        planner.handle_failed(now_us, A, asked[0].request, &Error::new(ErrorKind::TimedOut, "busy"));
        now_us += S;
    }
    assert_eq!(state(&planner, A), SourceState::Stalled);
    let (asked, ..) = drain(&mut planner, now_us);
    assert_eq!((asked.len(), asked[0].groups.groups), (1, UNIT_GROUPS));
    let (_, cancelled, _) = drain(&mut planner, now_us + 10 * S);
    assert_eq!((cancelled, planner.stats()[0].stalls), (vec![asked[0].request], 1));
}

/// ADR 28: a piece that is asked for alone is in no request with others, which are as large as they may be.
#[test]
fn what_is_asked_for_alone_comes_alone() {
    let mut planner = wide(16, 64);
    [3, 8, 9].into_iter().for_each(|piece| planner.ask_alone(piece));
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let pieces: Vec<_> = asked
        .iter()
        .map(|asked| (asked.groups.start / UNIT_GROUPS, asked.groups.groups / UNIT_GROUPS))
        .collect();
    assert_eq!(pieces, [(0, 2), (2, 1), (3, 1), (4, 4), (8, 1), (9, 1), (10, 2), (12, 4)]);
}

/// Design 9: what cannot be otherwise when it is tried again is said for good, also where nobody is to blame for it.
#[test]
fn what_is_not_worth_another_try_is_not_tried_again() {
    for (error, is_final) in [
        (Error::new(ErrorKind::TimedOut, "busy"), false),
        (Error::new(ErrorKind::Internal, "a thread failed"), true),
        (Error::new(ErrorKind::Changed, "it changed").with_retryable(true), true),
    ] {
        let mut planner = planner(1);
        add_up(&mut planner, 0, A, "direct", 0);
        let (asked, ..) = drain(&mut planner, 0);
        planner.handle_failed(1, A, asked[0].request, &error);
        assert_eq!(state(&planner, A) == SourceState::Barred, is_final, "{error}");
    }
}

/// Design 8, 9: what may not be asked for twice any more is left to its source until that counts as silent, and not longer.
#[test]
fn what_may_not_come_twice_waits_for_silence() {
    let (mut planner, of_a, last_us) = lender_and_borrower(17, 300 * MS, 10 * MS);
    planner.duplicate_bytes = borrow::DUPLICATE_BYTES_MAX + 1;
    assert_moves_at_silence(&mut planner, &of_a, last_us);
}

/// Design 8: what two sources owe is asked of a third as soon as both are silent.
#[test]
fn a_third_helps_out_when_two_are_silent() {
    let mut planner = planner(1);
    add_up_stubborn(&mut planner);
    drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "other", 0);
    let (second_us, asked, ..) = wait(&mut planner, 0);
    assert_eq!(asked[0].source, B);
    add_up(&mut planner, second_us + 300 * MS, C, "third", 0);
    assert!(drain(&mut planner, second_us + 300 * MS).0.is_empty());
    let (when_us, asked, ..) = wait(&mut planner, second_us + 301 * MS);
    assert_eq!(asked[0].source, C);
    let silent_us = second_us + S;
    assert!((silent_us..=silent_us + MS).contains(&when_us), "{}", when_us - silent_us);
}

/// Design 8: what is taken away from one silent source is taken from others only where they owe the same.
#[test]
fn who_owes_something_else_keeps_it() {
    let mut planner = planner(2);
    add_up(&mut planner, 0, A, "silent", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "silent soon", 0);
    let (second_us, asked, cancelled, _) = wait(&mut planner, 0);
    assert_eq!((asked[0].source, cancelled), (B, vec![of_a[1].request]));
    // 1 s a unit is assumed: more than B is silent, with another unit before it.
    let now_us = second_us + S + 50 * MS;
    add_up(&mut planner, now_us, C, "third", 0);
    let (asked, cancelled, _) = drain(&mut planner, now_us);
    assert_eq!((asked.len(), asked[0].source, asked[0].groups), (1, C, of_a[0].groups));
    assert_eq!(cancelled, [of_a[0].request]);
}

/// Design 9: a source whose connection ended because it broke the protocol is told as barred, one that went away as gone.
#[test]
fn who_broke_the_protocol_did_not_just_leave() {
    for (kind, found) in [
        (ErrorKind::Protocol, SourceState::Barred),
        (ErrorKind::VerificationFailed, SourceState::Barred),
        (ErrorKind::Refused, SourceState::Gone),
    ] {
        let mut planner = planner(4);
        add_up(&mut planner, 0, A, "direct", 0);
        add_up(&mut planner, 0, B, "other", 0);
        planner.handle_down(MS, A, Some(&Error::new(kind, "why")), true);
        assert_eq!(state(&planner, A), found, "{kind:?}");
    }
}

/// Y2, S10: what the disk has is progress, too: the time until a transfer without any is given up begins anew.
#[test]
fn what_is_found_is_progress() {
    for (found_us, given_up_us) in [(None, 25 * S), (Some(20 * S), 45 * S)] {
        let mut planner = planner(4);
        add_up(&mut planner, 0, A, "direct", 0);
        drain(&mut planner, 0);
        if let Some(found_us) = found_us {
            assert!(planner.handle_found(found_us, 40));
        }
        drain(&mut planner, given_up_us - S);
        assert!(planner.outcome().is_none(), "{found_us:?}");
        drain(&mut planner, given_up_us + S);
        assert!(planner.outcome().is_some(), "{found_us:?}");
    }
}

/// What nobody wants any more may fail: its source is not made to rest for that.
#[test]
fn failures_of_what_was_cancelled_do_not_count() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    for group in asked.iter().flat_map(|asked| asked.groups.start..asked.groups.end()) {
        assert!(planner.handle_found(MS, group));
    }
    let error = Error::new(ErrorKind::TimedOut, "a moment").with_retryable(true);
    for asked in &asked {
        planner.handle_failed(2 * MS, A, asked.request, &error);
    }
    let (more, ..) = drain(&mut planner, 2 * MS);
    assert_eq!(more.first().map(|asked| (asked.source, asked.groups.start)), Some((A, 32)));
}

/// A source that was set aside because it keeps failing is not tried again before its pause is over.
#[test]
fn who_keeps_failing_is_not_tried_during_its_pause() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let error = Error::new(ErrorKind::TimedOut, "a moment").with_retryable(true);
    let mut now_us = 0;
    while state(&planner, A) != SourceState::Stalled {
        now_us += S;
        assert!(now_us < 20 * S, "it is never set aside");
        for asked in drain(&mut planner, now_us).0 {
            planner.handle_failed(now_us, A, asked.request, &error);
        }
    }
    assert!(drain(&mut planner, now_us + MS).0.is_empty(), "it is asked during its pause");
    assert_eq!(drain(&mut planner, now_us + 6 * S).0.len(), 1);
}
