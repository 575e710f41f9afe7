//! Rules between sources, one at a time: borrowing, duplicates and their bound, ranks, and the account of it all.

use super::*;

/// Serves the next `count` groups of a request, `every_us` apart, and returns the time after the last one.
pub(super) fn serve_some(
    planner: &mut Planner,
    from_us: u64,
    every_us: u64,
    asked: &Asked,
    count: u64,
) -> u64 {
    let first = planner.requests[&asked.request].next_group;
    for (number, group) in (first..first + count).enumerate() {
        let now_us = from_us + every_us * (number as u64 + 1);
        assert_eq!(
            planner.handle_group(now_us, asked.source, asked.request, group),
            Disposition::Deliver,
            "{group}"
        );
    }
    from_us + every_us * count
}

/// Two sources that are up and have asked for two units each; A has sent 4 groups a second apart, B all it was asked for
/// in the same time. Nothing else is wanted.
fn slow_and_dry(strategy: Strategy) -> (Planner, Vec<Asked>, u64) {
    let config = PlannerConfig { strategy, ..planner(4).config };
    let mut wanted = RangeSet::new();
    wanted.insert(0..4);
    let mut planner = Planner::new(config, wanted);
    add_up(&mut planner, 0, A, "slow", 0);
    add_up(&mut planner, 0, B, "fast", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let (of_a, of_b): (Vec<Asked>, Vec<Asked>) = asked.into_iter().partition(|asked| asked.source == A);
    assert_eq!((of_a.len(), of_b.len()), (2, 2));
    let now_us = serve_some(&mut planner, 0, S, &of_a[0], 4);
    for (number, asked) in of_b.iter().enumerate() {
        serve_some(&mut planner, 3 * S + 320 * MS * number as u64, 20 * MS, asked, 16);
        planner.handle_done(now_us, B, asked.request);
    }
    (planner, of_a, now_us)
}

/// D22: what has not begun moves from the longest queue to the empty one: cancelled there, asked for here, once.
#[test]
fn a_request_that_has_not_begun_is_borrowed() {
    let (mut planner, of_a, now_us) = slow_and_dry(Strategy { end_game: false, ..Strategy::default() });
    let (asked, cancelled, _) = drain(&mut planner, now_us);
    assert_eq!(cancelled, [of_a[1].request]);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups));
    // It came back all the same: what the first source sends before it hears is taken, and the other one told.
    for group in of_a[1].groups.start..of_a[1].groups.end() {
        assert_eq!(planner.handle_group(now_us + 1, A, of_a[1].request, group), Disposition::Deliver);
    }
    let (_, cancelled, _) = drain(&mut planner, now_us + 1);
    assert_eq!(cancelled, [asked[0].request], "the borrower is late now");
    planner.handle_done(now_us + 2, B, asked[0].request);
    assert!(planner.outcome().is_none(), "the rest of the first unit is still out");
}

/// Design 8: what has begun is asked for again from its end; the loser is cancelled, and what it still sends is
/// discarded and counted.
#[test]
fn what_has_begun_is_asked_for_twice() {
    let (mut planner, of_a, now_us) = slow_and_dry(Strategy::default());
    let (asked, cancelled, _) = drain(&mut planner, now_us);
    assert_eq!(cancelled, [of_a[1].request]);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups), "borrowing comes first");
    planner.handle_done(now_us, A, of_a[1].request);
    serve(&mut planner, now_us + MS, &asked[0]);
    let (asked, cancelled, _) = drain(&mut planner, now_us + MS);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[0].groups));
    assert!(cancelled.is_empty() && asked.len() == 1, "a unit is asked for twice, not more often");
    for group in 0..4 {
        let answer = planner.handle_group(now_us + MS, B, asked[0].request, of_a[0].groups.start + group);
        assert_eq!(answer, Disposition::Discard, "the slow one had brought it");
    }
    let now_us = serve_some(&mut planner, now_us + MS, MS, &asked[0], 11);
    assert!(drain(&mut planner, now_us).1.is_empty());
    assert_eq!(planner.handle_group(now_us, B, asked[0].request, 15), Disposition::Deliver);
    assert!(planner.outcome().unwrap().is_ok());
    assert_eq!(drain(&mut planner, now_us).1, [of_a[0].request, asked[0].request]);
    // What was told to leave may come all the same, as long as its source is not silent.
    assert!(planner.at_risk_bytes(now_us) > 4 * GROUP_BYTES);
    assert_eq!(planner.at_risk_bytes(now_us + 60 * S), 4 * GROUP_BYTES);
    assert_eq!(planner.handle_group(now_us, A, of_a[0].request, 4), Disposition::Discard);
    assert_eq!(planner.explain(now_us).duplicate_bytes, 5 * GROUP_BYTES);
}

/// Y20, the bound: however much the slow one owes and cannot be told to leave, at most 16 MiB are asked for twice.
#[test]
fn duplicates_are_bounded() {
    let units = 64;
    let mut planner = planner(units);
    planner.config.strategy.deadlines = false;
    // So late that every single unit would pay.
    planner.config.give_up_us = 1000 * S;
    planner.config.window = WindowLimits { initial_bytes: 64 << 20, ..WindowLimits::default() };
    add_up_stubborn(&mut planner);
    let (of_a, ..) = drain(&mut planner, 0);
    assert_eq!(of_a.iter().map(|asked| asked.groups.groups).sum::<u64>(), units * UNIT_GROUPS);
    add_up(&mut planner, S, B, "eager", 0);
    let (asked, ..) = drain(&mut planner, 500 * S);
    let twice: u64 = asked.iter().map(|asked| asked.permit.bytes()).sum();
    // Y20, ADR 7: at most 16 MiB.
    assert_eq!(twice, 16 << 20);
    assert!(asked.iter().all(|asked| asked.groups.groups == UNIT_GROUPS));
    let ends: Vec<u64> = asked.iter().map(|asked| asked.groups.end()).collect();
    assert!(ends.is_sorted_by(|left, right| left > right) && ends[0] == units * UNIT_GROUPS, "{ends:?}");
    // What has come from the one will still come from the other: it leaves no room for more.
    for asked in &asked {
        for group in asked.groups.start..asked.groups.end() - 1 {
            planner.handle_group(501 * S, B, asked.request, group);
        }
    }
    assert!(drain(&mut planner, 501 * S).0.is_empty());
}

/// Design 9: a liar among several is barred for its first wrong bytes, and the account says why.
#[test]
fn a_liar_among_several_has_no_second_chance() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "liar", 0);
    add_up(&mut planner, 0, B, "honest", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let of_a = asked.iter().find(|asked| asked.source == A).unwrap().request;
    planner.handle_mismatch(1, A, of_a);
    let (_, _, closed) = drain(&mut planner, 1);
    assert_eq!(
        (closed, state(&planner, A), state(&planner, B)),
        (vec![A], SourceState::Barred, SourceState::Up)
    );
    assert!(planner.cause(A).unwrap().contains("are not those of the object"));
    assert!(planner.has_lied(A) && !planner.has_lied(B));
    assert!(planner.outcome().is_none());
}

/// D22: the baseline has exactly so many requests of one unit outstanding at each source.
#[test]
fn ten_outstanding_requests_each() {
    let strategy = Strategy { outstanding: Outstanding::Requests(10), ..Strategy::default() };
    let mut wanted = RangeSet::new();
    wanted.insert(0..64);
    let mut planner = Planner::new(PlannerConfig { strategy, ..planner(64).config }, wanted);
    add_up(&mut planner, 0, A, "one", 0);
    add_up(&mut planner, 0, B, "two", 0);
    let (asked, ..) = drain(&mut planner, 0);
    for source in [A, B] {
        assert_eq!(asked.iter().filter(|asked| asked.source == source).count(), 10);
    }
    assert!(asked.iter().all(|asked| asked.groups.groups == UNIT_GROUPS));
    serve(&mut planner, S, &asked[0]);
    assert_eq!(drain(&mut planner, S).0.len(), 1);
}

pub(super) fn standing(planner: &Planner, now_us: u64, source: SourceId) -> (Standing, Option<Idle>) {
    let account = planner.explain(now_us);
    let found = account.sources.into_iter().find(|found| found.stats.source == source).unwrap();
    (found.standing, found.idle)
}

/// The account names each standing and each reason to be idle.
#[test]
fn the_account_says_where_each_source_stands_and_why() {
    let others = [3, 4, 5].map(SourceId);
    let mut planner = planner(64);
    add_up(&mut planner, 0, A, "works", 0);
    add_up(&mut planner, 0, B, "spare", 7);
    for source in others {
        add(&mut planner, source, "other", 0);
    }
    planner.handle_up(0, others[0], None);
    planner.handle_up(0, others[1], None);
    let (asked, ..) = drain(&mut planner, 0);
    let of = |source: SourceId| asked.iter().find(|asked| asked.source == source).unwrap();
    planner.handle_failed(0, others[0], of(others[0]).request, &Error::new(ErrorKind::Changed, "written to"));
    planner.handle_down(0, others[1], Some(&Error::new(ErrorKind::Unreachable, "reset")), true);
    assert_eq!(planner.handle_group(0, A, of(A).request, of(A).groups.start), Disposition::Deliver);
    drain(&mut planner, 0);
    assert_eq!(standing(&planner, 0, A), (Standing::Up, None));
    assert_eq!(standing(&planner, 0, B), (Standing::Up, Some(Idle::Spare)));
    assert_eq!(standing(&planner, 0, others[0]), (Standing::Barred, Some(Idle::NotUp)));
    assert_eq!(standing(&planner, 0, others[1]), (Standing::Gone, Some(Idle::NotUp)));
    assert_eq!(standing(&planner, 0, others[2]), (Standing::Waiting, Some(Idle::NotUp)));
    assert_eq!(standing(&planner, 2 * S, A), (Standing::Frozen, None));
    let account = planner.explain(0);
    assert_eq!(
        (account.delivered_bytes, account.wanted_left_bytes),
        (GROUP_BYTES, 63 * UNIT_BYTES + 15 * GROUP_BYTES)
    );
    assert_eq!(account.sources[0].share, 1.0);
    assert_eq!(account.sources[2].cause.as_deref(), Some("written to"));
    // Two failures in a row are paused for.
    let busy = Error::new(ErrorKind::TimedOut, "busy");
    for request in planner.sources[&A].requests.clone() {
        planner.handle_failed(S, A, request, &busy);
    }
    assert!(matches!(standing(&planner, S, A), (_, Some(Idle::Paused { for_us: 1.. }))));
}

/// The bottleneck, as far as events tell it.
#[test]
fn the_account_names_the_bottleneck() {
    let bottleneck = |planner: &Planner, now_us| planner.explain(now_us).bottleneck;
    let budget = Budget::new(2 * UNIT_BYTES);
    let mode = DeliveryMode::Sequential { window_bytes: 2 * UNIT_BYTES };
    let mut planner = planner_of(8, mode, &budget);
    add(&mut planner, A, "direct", 0);
    assert_eq!(bottleneck(&planner, 0), Bottleneck::Source);
    planner.handle_up(0, A, Some(MS));
    let others = budget.try_reserve(2 * UNIT_BYTES).unwrap();
    assert!(drain(&mut planner, 0).0.is_empty());
    assert_eq!(bottleneck(&planner, 0), Bottleneck::Memory);
    assert_eq!(standing(&planner, 0, A), (Standing::Up, Some(Idle::NoBudget)));
    drop(others);
    let (asked, ..) = drain(&mut planner, MS);
    assert_eq!(bottleneck(&planner, MS), Bottleneck::Network);
    assert_eq!(bottleneck(&planner, 3 * S), Bottleneck::Source, "it is silent");
    planner.handle_effort(Effort { span_us: 100, proving_us: 60, writing_us: 10 });
    assert_eq!(bottleneck(&planner, MS), Bottleneck::Cpu);
    for _ in 0..40 {
        planner.handle_effort(Effort { span_us: 1_000_000, proving_us: 10_000, writing_us: 900_000 });
    }
    assert_eq!(bottleneck(&planner, MS), Bottleneck::Disk);
    for asked in &asked {
        serve(&mut planner, 2 * MS, asked);
    }
    drop(asked);
    assert!(drain(&mut planner, 2 * MS).0.is_empty());
    assert_eq!(bottleneck(&planner, 2 * MS), Bottleneck::Consumer);
    assert_eq!(standing(&planner, 2 * MS, A), (Standing::Up, Some(Idle::Consumer)));
    planner.handle_consumed(8);
    while planner.outcome().is_none() {
        for asked in drain(&mut planner, 3 * MS).0 {
            serve(&mut planner, 3 * MS, &asked);
        }
    }
    assert_eq!(bottleneck(&planner, 3 * MS), Bottleneck::Nothing);
    assert_eq!(standing(&planner, 3 * MS, A), (Standing::Up, Some(Idle::NotNeeded)));
}

/// Issue "the culprit is named by `explain`": once everything has failed, sources that are closed for that are told as they
/// stood before, and how long a silent one has been silent.
#[test]
fn a_failure_is_explained_as_it_was() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "a", 0);
    add_up(&mut planner, 0, B, "b", 0);
    assert!(!drain(&mut planner, 0).0.is_empty());
    let account = planner.explain(4 * S);
    assert!(account.sources.iter().all(|source| source.silent_us == 4 * S), "{account:?}");
    for now_us in [11 * S, 26 * S] {
        drain(&mut planner, now_us);
    }
    assert_eq!(failure(&planner).kind(), ErrorKind::TimedOut);
    planner.handle_down(26 * S, A, None, true);
    let account = planner.explain(26 * S);
    assert!(account.sources.iter().all(|source| source.standing == Standing::Frozen), "{account:?}");
}

/// Design 9: what one failed at goes to who has not failed, though the one that did is as idle and was the faster one. A budget
/// that the silent ones hold between them would otherwise go from the one to the other until everything is given up.
#[test]
fn who_has_failed_is_asked_last() {
    const C: SourceId = SourceId(3);
    for is_measured in [false, true] {
        let budget = Budget::new(2 * UNIT_BYTES);
        let mut planner = planner_of(4, DeliveryMode::OutOfOrder, &budget);
        add_up(&mut planner, 0, A, "dead", 0);
        add_up(&mut planner, 0, B, "dead, too", 0);
        let (mut asked, ..) = drain(&mut planner, 0);
        let mut now_us = 0;
        if is_measured {
            for asked in std::mem::take(&mut asked) {
                serve_some(&mut planner, 0, MS, &asked, 16);
                now_us = 16 * MS;
                planner.handle_done(now_us, asked.source, asked.request);
            }
            asked = drain(&mut planner, now_us).0;
        }
        assert_eq!((asked[0].source, asked[1].source, asked.len()), (A, B, 2));
        add_up(&mut planner, now_us, C, "slow", 0);
        assert!(drain(&mut planner, now_us).0.is_empty(), "no room in the budget");
        now_us += 10 * S;
        let of_a = asked.remove(0);
        let request = of_a.request;
        drop(of_a);
        planner.handle_failed(now_us, A, request, &Error::new(ErrorKind::TimedOut, "silent"));
        let (asked, ..) = drain(&mut planner, now_us);
        assert_eq!(asked.iter().map(|asked| asked.source).collect::<Vec<_>>(), [C], "{is_measured}");
    }
}

/// Design 9: nor does what is borrowed go to who has failed while somebody else has nothing to do, be he slower.
#[test]
fn who_has_failed_borrows_last() {
    const C: SourceId = SourceId(3);
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "late", 0);
    add_up(&mut planner, 0, B, "fast, and fails", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let (of_a, of_b): (Vec<Asked>, Vec<Asked>) = asked.into_iter().partition(|asked| asked.source == A);
    assert_eq!((of_a.len(), of_b.len()), (2, 2));
    let mut now_us = serve_some(&mut planner, 0, 800 * MS, &of_a[0], 4);
    now_us = serve_some(&mut planner, now_us, 10 * MS, &of_b[0], 16);
    planner.handle_done(now_us, B, of_b[0].request);
    planner.handle_failed(now_us, B, of_b[1].request, &Error::new(ErrorKind::TimedOut, "busy"));
    add_up(&mut planner, now_us, C, "slower", 0);
    let (of_c, ..) = drain(&mut planner, now_us);
    assert_eq!((of_c[0].source, of_c[0].groups, of_c.len()), (C, of_b[1].groups, 1));
    now_us = serve_some(&mut planner, now_us, 40 * MS, &of_c[0], 16);
    planner.handle_done(now_us, C, of_c[0].request);
    assert!(planner.sources[&B].paused_until_us <= now_us, "both may be asked");
    let (asked, cancelled, _) = drain(&mut planner, now_us);
    assert_eq!((asked[0].source, asked[0].groups), (C, of_a[1].groups));
    assert_eq!(cancelled[0], of_a[1].request);
}

/// S34: a unit that two sources owe, and both are silent, is owed by nobody: a third one is asked, a spare too, and does not wait
/// for their deadline.
#[test]
fn what_two_silent_sources_owe_is_asked_of_a_third() {
    const C: SourceId = SourceId(3);
    for priority in [0, 1] {
        let mut planner = planner(2);
        add_up(&mut planner, 0, A, "first", 0);
        add_up(&mut planner, 0, B, "second", 0);
        let (asked, ..) = drain(&mut planner, 0);
        assert_eq!((asked[0].source, asked[1].source, asked.len()), (A, B, 2));
        let mut now_us = serve_some(&mut planner, 0, 20 * MS, &asked[0], 8);
        now_us = serve_some(&mut planner, now_us, 20 * MS, &asked[1], 16);
        planner.handle_done(now_us, B, asked[1].request);
        // What the planner next asks for, and when, if nobody says anything.
        let wait = |planner: &mut Planner, now_us: &mut u64| loop {
            let asked = drain(planner, *now_us).0;
            if !asked.is_empty() || *now_us > 9 * S {
                return asked;
            }
            *now_us = planner.next_deadline_us().unwrap().max(*now_us + 1);
        };
        let twice = wait(&mut planner, &mut now_us);
        assert_eq!((twice[0].source, twice[0].groups), (B, asked[0].groups));
        assert!(now_us < S, "before the first is silent: {now_us}");
        add_up(&mut planner, now_us, C, "third", priority);
        let thrice = wait(&mut planner, &mut now_us);
        assert_eq!((thrice[0].source, thrice[0].groups), (C, asked[0].groups), "{priority}");
        assert!(now_us <= 3 * S, "{now_us}");
        for group in asked[0].groups.start..asked[0].groups.end() {
            planner.handle_group(now_us, C, thrice[0].request, group);
        }
        assert!(planner.outcome().unwrap().is_ok());
    }
}
