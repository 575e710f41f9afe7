//! Bounds of the planner, each looked at from both sides: when exactly a loan pays, for how long what brings nothing new
//! counts, what is asked of whom, and what the account of it says.

use super::many::{serve_some, standing};
use super::*;

const C: SourceId = SourceId(3);

/// All of `units` are wanted, and every window begins with `window_units`.
pub(super) fn wide(units: u64, window_units: u64) -> Planner {
    let window = WindowLimits { initial_bytes: window_units * UNIT_BYTES, ..WindowLimits::default() };
    let mut wanted = RangeSet::new();
    wanted.insert(0..units);
    Planner::new(PlannerConfig { window, ..planner(units).config }, wanted)
}

/// Nothing is wanted yet.
fn open(units: u64) -> Planner {
    Planner::new(PlannerConfig { is_open: true, ..planner(units).config }, RangeSet::new())
}

/// Polls at every deadline until there is an outcome, and returns when that was.
pub(super) fn end_us(planner: &mut Planner, mut now_us: u64) -> u64 {
    while planner.outcome().is_none() {
        now_us = planner.next_deadline_us().expect("a deadline").max(now_us + 1);
        drain(planner, now_us);
    }
    now_us
}

/// Polls at every deadline until something is asked for: when that was, what, what was cancelled for it, and how often it took.
pub(super) fn wait(planner: &mut Planner, mut now_us: u64) -> (u64, Vec<Asked>, Vec<RequestId>, u32) {
    for polls in 1..1_000 {
        let (asked, cancelled, _) = drain(planner, now_us);
        if !asked.is_empty() {
            return (now_us, asked, cancelled, polls);
        }
        now_us = planner.next_deadline_us().expect("a deadline").max(now_us + 1);
    }
    panic!("nothing is asked for");
}

/// A is gone and comes back: the first request that it gets then.
fn reconnected(planner: &mut Planner, now_us: u64) -> RequestId {
    planner.handle_down(now_us, A, None, false);
    planner.handle_up(now_us, A, Some(MS));
    drain(planner, now_us).0[0].request
}

/// P12, design 9, S10: groups that are sent again put off the end for as long as the groups of two units take, of a request that is
/// wanted and of one that its source was told to leave. Where it cannot be told, all that it owes does: something new may stand behind it.
#[test]
fn what_is_sent_again_counts_up_to_two_units() {
    for (is_cancelled, can_cancel, ends_s) in [(false, true, 58), (true, true, 58), (true, false, 86)] {
        let mut planner = wide(4, 64);
        planner.config.strategy.deadlines = false;
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: can_cancel, holes: true, under_way_bytes: 0 };
        let description = SourceDescription { label: "a".into(), priority: 0, weight: 1, capabilities };
        planner.add_source(A, description);
        planner.handle_up(0, A, Some(MS));
        let (first, ..) = drain(&mut planner, 0);
        assert_eq!(first[0].groups, Subtree { start: 0, groups: 64 });
        // All but the last group of each unit.
        let groups: Vec<u64> = (0..64).filter(|group| group % UNIT_GROUPS != UNIT_GROUPS - 1).collect();
        let mut now_us = S;
        let again = if is_cancelled {
            planner.handle_misfit(0, A, first[0].request);
            let (second, ..) = drain(&mut planner, 0);
            for group in &groups {
                planner.handle_group(now_us, A, second[0].request, *group);
            }
            first[0].request
        } else {
            for group in &groups {
                planner.handle_group(now_us, A, first[0].request, *group);
            }
            reconnected(&mut planner, now_us)
        };
        for group in groups {
            now_us += S;
            planner.handle_group(now_us, A, again, group);
            drain(&mut planner, now_us);
            if planner.outcome().is_some() {
                break;
            }
        }
        let ended_us = end_us(&mut planner, now_us);
        assert_eq!(ended_us, ends_s * S, "cancelled: {is_cancelled}, can cancel: {can_cancel}");
    }
}

/// P12, design 9: a new group ends that count: what is sent again after it counts from its beginning.
#[test]
fn a_new_group_lets_what_is_sent_again_count_anew() {
    let mut planner = wide(4, 64);
    planner.config.strategy.deadlines = false;
    add_up(&mut planner, 0, A, "direct", 0);
    let mut request = drain(&mut planner, 0).0[0].request;
    for group in 0..14 {
        planner.handle_group(S, A, request, group);
    }
    let mut now_us = S;
    let send = |planner: &mut Planner, now_us: &mut u64, request, groups: Range<u64>| {
        for group in groups {
            *now_us += S;
            planner.handle_group(*now_us, A, request, group);
            drain(planner, *now_us);
        }
    };
    request = reconnected(&mut planner, now_us);
    send(&mut planner, &mut now_us, request, 0..10);
    send(&mut planner, &mut now_us, request, 14..15);
    request = reconnected(&mut planner, now_us);
    send(&mut planner, &mut now_us, request, 0..5);
    assert_eq!((now_us, end_us(&mut planner, now_us)), (17 * S, 42 * S));
}

/// Design 9: that a request is done is a word of its source, from which on its silence counts.
#[test]
fn the_end_of_a_request_is_a_word() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "ssh", 10);
    for group in asked[0].groups.start..asked[0].groups.end() {
        planner.handle_group(MS, A, asked[0].request, group);
    }
    planner.handle_done(5 * S, A, asked[0].request);
    drain(&mut planner, 15 * S - 1);
    assert_eq!(state(&planner, A), SourceState::Up);
    drain(&mut planner, 15 * S);
    assert_eq!(state(&planner, A), SourceState::Stalled);
}

/// Design 9: what is no group puts off the end, and for no more than 3 s.
#[test]
fn signs_of_life_put_off_the_end_for_a_little_while() {
    for (parents_s, ends_s) in [(None, 26), (Some(3), 28), (Some(10), 29)] {
        let mut planner = planner(4);
        planner.config.strategy.deadlines = false;
        add_up(&mut planner, 0, A, "direct", 0);
        let (asked, ..) = drain(&mut planner, 0);
        planner.handle_group(S, A, asked[0].request, 0);
        if let Some(parents_s) = parents_s {
            planner.handle_parents(parents_s * S, A, asked[0].request);
        }
        assert_eq!(end_us(&mut planner, S), ends_s * S, "{parents_s:?}");
    }
}

/// Design 9: spares give their work back also to a source that had failed again and again, once it delivers.
#[test]
fn spares_stand_back_for_who_delivers_again() {
    let strategy = Strategy { outstanding: Outstanding::Requests(4), ..Strategy::default() };
    let mut planner = wide(16, 2);
    planner.config.strategy = strategy;
    add_up(&mut planner, 0, A, "direct", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    let busy = Error::new(ErrorKind::TimedOut, "busy");
    for (number, asked) in of_a[..3].iter().enumerate() {
        planner.handle_failed(number as u64 * 200 * MS, A, asked.request, &busy);
    }
    assert_eq!(state(&planner, A), SourceState::Stalled);
    add_up(&mut planner, 500 * MS, B, "ssh", 1);
    let (of_b, ..) = drain(&mut planner, 500 * MS);
    assert!(of_b.len() == 4 && of_b.iter().all(|asked| asked.source == B));
    planner.handle_parents(600 * MS, A, of_a[3].request);
    assert!(drain(&mut planner, 600 * MS).1.is_empty(), "it has delivered nothing yet");
    let group = of_a[3].groups.start;
    assert_eq!(planner.handle_group(600 * MS, A, of_a[3].request, group), Disposition::Deliver);
    let cancelled: Vec<RequestId> = of_b.iter().map(|asked| asked.request).collect();
    assert_eq!(drain(&mut planner, 600 * MS).1, cancelled);
}

/// Design 7: where the budget has no room for a large request there is one for a smaller one.
#[test]
fn requests_shrink_to_the_room_in_the_budget() {
    let window = WindowLimits { initial_bytes: 64 * UNIT_BYTES, ..WindowLimits::default() };
    let budget = Budget::new(6 * UNIT_BYTES);
    let _others = budget.try_reserve(UNIT_BYTES).unwrap();
    let mut wanted = RangeSet::new();
    wanted.insert(0..8);
    let mut planner = Planner::new(PlannerConfig { window, budget, ..planner(8).config }, wanted);
    add_up(&mut planner, 0, A, "direct", 0);
    let sizes: Vec<u64> = drain(&mut planner, 0).0.iter().map(|asked| asked.groups.groups).collect();
    assert_eq!(sizes, [4 * UNIT_GROUPS, UNIT_GROUPS]);
}

/// Design 8: of two that are as idle, the one with the greater weight is asked first.
#[test]
fn the_greater_weight_is_asked_first() {
    let mut planner = planner(4);
    for (source, weight) in [(A, 1), (B, 5), (C, 3)] {
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
        planner.add_source(
            source,
            SourceDescription { label: "direct".into(), priority: 0, weight, capabilities },
        );
        planner.handle_up(0, source, Some(MS));
    }
    let order: Vec<SourceId> = drain(&mut planner, 0).0.iter().map(|asked| asked.source).collect();
    assert_eq!(order[..3], [B, C, A]);
}

/// Design 8: a unit is left to the source that would have it a quarter of a second sooner, and not for less.
#[test]
fn a_unit_is_left_to_who_has_it_much_sooner() {
    for (every_us, expected) in [(100 * MS, B), (20 * MS, A)] {
        let mut planner = open(8);
        add_up(&mut planner, 0, A, "slow", 0);
        add_up(&mut planner, 0, B, "fast", 0);
        planner.want(0..2);
        let (asked, ..) = drain(&mut planner, 0);
        assert_eq!((asked[0].source, asked[1].source), (A, B));
        // 0.16 s for a unit there, and 1.6 s or 0.32 s here.
        serve_some(&mut planner, 0, 10 * MS, &asked[1], 16);
        planner.handle_done(2 * S, B, asked[1].request);
        serve_some(&mut planner, 0, every_us, &asked[0], 16);
        planner.handle_done(2 * S, A, asked[0].request);
        planner.want(2..3);
        let (asked, ..) = drain(&mut planner, 2 * S);
        assert_eq!((asked[0].source, asked[0].groups.start), (expected, 2 * UNIT_GROUPS), "{every_us}");
    }
}

/// Design 8: who owes something and is silent is expected to need that time again, so that a slower one, which is idle, is asked.
#[test]
fn a_unit_is_not_left_to_who_is_silent() {
    let mut planner = open(8);
    add_up(&mut planner, 0, A, "slow", 0);
    add_up(&mut planner, 0, B, "fast", 0);
    planner.want(0..2);
    let (asked, ..) = drain(&mut planner, 0);
    for (asked, every_us) in asked.iter().zip([80 * MS, 10 * MS]) {
        serve_some(&mut planner, 0, every_us, asked, UNIT_GROUPS);
        planner.handle_done(2 * S, asked.source, asked.request);
    }
    planner.want(2..3);
    assert_eq!(drain(&mut planner, 2 * S).0[0].source, B);
    // 1.28 s for a unit here; 0.32 s for two there, and 0.9 s.
    planner.want(3..4);
    assert_eq!(drain(&mut planner, 2_900 * MS).0[0].source, A);
}

/// Two units each of A and B: A has sent `groups`, `lender_us` apart, and B all of its, `borrower_us` apart. A's last word was at the time
/// returned.
pub(super) fn lender_and_borrower(
    groups: u64,
    lender_us: u64,
    borrower_us: u64,
) -> (Planner, Vec<Asked>, u64) {
    let mut planner = wide(4, 2);
    add_up(&mut planner, 0, A, "lender", 0);
    add_up(&mut planner, 0, B, "borrower", 0);
    let (of_a, of_b): (Vec<Asked>, Vec<Asked>) =
        drain(&mut planner, 0).0.into_iter().partition(|asked| asked.source == A);
    let last_us = 10 * S;
    let now_us =
        serve_some(&mut planner, last_us - groups * lender_us, lender_us, &of_a[0], groups.min(UNIT_GROUPS));
    if let Some(more) = groups.checked_sub(UNIT_GROUPS) {
        planner.handle_done(now_us, A, of_a[0].request);
        serve_some(&mut planner, now_us, lender_us, &of_a[1], more);
    }
    for (number, asked) in of_b.iter().enumerate() {
        serve_some(&mut planner, UNIT_GROUPS * borrower_us * number as u64, borrower_us, asked, UNIT_GROUPS);
        planner.handle_done(last_us, B, asked.request);
    }
    (planner, of_a, last_us)
}

/// D22: a request that has not begun moves when the borrower would be through sooner by a tenth and 5 ms; its lender is expected to
/// stay silent for as long as it has been. That time is known, so nobody looks again and again.
#[test]
fn a_request_moves_as_soon_as_that_pays() {
    let (mut planner, of_a, last_us) = lender_and_borrower(15, 10 * MS, 20 * MS);
    let (when_us, asked, cancelled, polls) = wait(&mut planner, last_us);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups));
    assert_eq!(cancelled, [of_a[1].request]);
    // 0.321 s * 1.1 + 0.005 s, less 17 groups at 10 ms.
    let expected_us = last_us + 188_100;
    assert!((expected_us..=expected_us + MS).contains(&when_us), "{}", when_us - last_us);
    assert!(polls <= 4, "{polls}");
}

/// Design 8: a unit that has begun is asked for twice when the other source would be through sooner by a half and 50 ms.
#[test]
fn a_unit_is_asked_for_twice_as_soon_as_that_pays() {
    let (mut planner, of_a, last_us) = lender_and_borrower(30, 10 * MS, 20 * MS);
    let (when_us, asked, cancelled, polls) = wait(&mut planner, last_us);
    assert_eq!((asked[0].source, asked[0].groups), (B, of_a[1].groups));
    assert!(cancelled.is_empty());
    // 0.321 s * 1.5 + 0.05 s, less two groups at 10 ms.
    let expected_us = last_us + 511_500;
    assert!((expected_us..=expected_us + MS).contains(&when_us), "{}", when_us - last_us);
    assert!(polls <= 4, "{polls}");
}

/// Design 8: how soon the front of a request will come is a matter of what lies before its end, and not of the end, which somebody
/// else was asked for.
#[test]
fn the_end_of_a_request_does_not_make_its_front_late() {
    let mut planner = wide(2, 64);
    add_up(&mut planner, 0, A, "lender", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    assert_eq!((of_a.len(), of_a[0].groups.groups), (1, 2 * UNIT_GROUPS));
    let last_us = serve_some(&mut planner, 0, 20 * MS, &of_a[0], 2);
    for source in [B, C] {
        add_up(&mut planner, last_us, source, "borrower", 0);
    }
    // 0.321 s * 1.5 + 0.05 s = 0.5315 s there; here 0.6 s for everything, and 0.28 s for the first unit.
    let (asked, ..) = drain(&mut planner, last_us);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].source, asked[0].groups.start), (B, UNIT_GROUPS));
    let (when_us, asked, ..) = wait(&mut planner, last_us);
    assert_eq!((asked[0].source, asked[0].groups.start), (C, 0));
    let expected_us = last_us + 251_500;
    assert!((expected_us..=expected_us + MS).contains(&when_us), "{}", when_us - last_us);
}

/// Design 8: what lies before the last request counts where that one is somebody else's already.
#[test]
fn older_requests_are_late_by_their_own_length() {
    let mut planner = wide(2, 2);
    add_up_stubborn(&mut planner);
    let (of_a, ..) = drain(&mut planner, 0);
    assert_eq!(of_a.len(), 2);
    let now_us = serve_some(&mut planner, 0, 500 * MS, &of_a[0], 2);
    for source in [B, C] {
        add_up(&mut planner, now_us, source, "borrower", 0);
        // 0.16 s for a unit.
        let window = &mut planner.sources.get_mut(&source).unwrap().window;
        window.arrived(now_us - 20 * MS, GROUP_BYTES);
        window.arrived(now_us - 10 * MS, GROUP_BYTES);
    }
    // 7 s for the one, 15 s for both.
    let (asked, ..) = drain(&mut planner, now_us);
    let twice: Vec<_> = asked.iter().map(|asked| (asked.source, asked.groups)).collect();
    assert_eq!(twice, [(B, of_a[1].groups), (C, of_a[0].groups)]);
}

/// D22: a borrower takes no more of a request than it would have before the lender.
#[test]
fn a_borrower_takes_what_it_has_sooner() {
    for (polled_us, units) in [(2 * S, 1), (4_200 * MS, 4)] {
        let mut planner = wide(8, 64);
        add_up(&mut planner, 0, A, "silent", 0);
        let (of_a, ..) = drain(&mut planner, 0);
        assert_eq!((of_a.len(), of_a[0].groups.groups), (1, 8 * UNIT_GROUPS));
        add_up(&mut planner, 0, B, "other", 0);
        // A unit a second is assumed, and A as silent for as long again.
        let (asked, ..) = drain(&mut planner, polled_us);
        assert_eq!((asked[0].source, asked[0].groups.groups), (B, units * UNIT_GROUPS));
    }
}

/// Design 8: nothing is asked for twice while anything is to be asked for once, though the budget has room for the one and not for the
/// other.
#[test]
fn what_nobody_was_asked_for_comes_first() {
    let budget = Budget::new(3 * UNIT_BYTES);
    let window = WindowLimits { initial_bytes: 64 * UNIT_BYTES, ..WindowLimits::default() };
    let geometry = Geometry::new(4 * UNIT_BYTES + GROUP_BYTES);
    let config = PlannerConfig { geometry, window, budget: budget.clone(), ..planner(3).config };
    let mut wanted = RangeSet::new();
    wanted.insert(0..2);
    wanted.insert(4..5);
    let mut planner = Planner::new(config, wanted);
    add_up_stubborn(&mut planner);
    let (mut asked, ..) = drain(&mut planner, 0);
    assert_eq!(asked.iter().map(|asked| asked.groups.groups).collect::<Vec<_>>(), [2 * UNIT_GROUPS, 1]);
    let request = asked.remove(0).request;
    planner.handle_failed(1, A, request, &Error::new(ErrorKind::TimedOut, "busy"));
    let others = budget.try_reserve(3 * UNIT_BYTES - 2 * GROUP_BYTES).unwrap();
    add_up(&mut planner, 1, B, "idle", 0);
    assert!(drain(&mut planner, 500 * MS).0.is_empty());
    drop(others);
    let (asked, ..) = drain(&mut planner, 500 * MS);
    assert_eq!((asked[0].source, asked[0].groups.start), (B, 0));
}

/// Design 9: who was set aside for its silence is back with any word, and not only with a group.
#[test]
fn a_word_ends_a_stall() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    drain(&mut planner, 10 * S);
    assert_eq!(state(&planner, A), SourceState::Stalled);
    planner.handle_parents(11 * S, A, asked[0].request);
    assert_eq!(state(&planner, A), SourceState::Up);
}

/// Design 9: who owes nothing but the end of what it was told to leave is set aside for its silence, too.
#[test]
fn the_end_of_what_was_cancelled_is_waited_for() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, B, "ssh", 10);
    drain(&mut planner, 0);
    add_up(&mut planner, 1, A, "direct", 0);
    assert_eq!(drain(&mut planner, 1).1.len(), 2);
    drain(&mut planner, 10 * S - 1);
    assert_eq!(state(&planner, B), SourceState::Up);
    drain(&mut planner, 10 * S);
    assert_eq!((state(&planner, B), state(&planner, A)), (SourceState::Stalled, SourceState::Up));
}

/// Nobody is looked at in vain: who is alone has its own time limit, and who waits for what will be wanted has none.
#[test]
fn a_deadline_is_there_for_a_reason() {
    let mut alone = planner(4);
    add_up(&mut alone, 0, A, "direct", 0);
    drain(&mut alone, 0);
    assert_eq!(alone.next_deadline_us(), Some(10 * S));
    // A spare has its turn when the other one is silent.
    add_up(&mut alone, 0, B, "ssh", 1);
    drain(&mut alone, 0);
    assert_eq!(alone.next_deadline_us(), Some(S));
    // Also if nothing is to be asked for but what that one owes, unless nobody helps out.
    let mut owing = planner(2);
    add_up(&mut owing, 0, A, "direct", 0);
    add_up(&mut owing, 0, B, "ssh", 1);
    drain(&mut owing, 0);
    for (borrowing, end_game, deadline_us) in
        [(true, true, S), (true, false, S), (false, true, S), (false, false, 10 * S)]
    {
        owing.config.strategy = Strategy { borrowing, end_game, ..Strategy::default() };
        assert_eq!(owing.next_deadline_us(), Some(deadline_us));
    }
    let mut waits = open(8);
    add_up(&mut waits, 0, A, "direct", 0);
    add_up(&mut waits, 0, B, "ssh", 1);
    drain(&mut waits, 0);
    assert_eq!(waits.next_deadline_us(), None);
}

/// Design 9: a source is silent after 1 s, after four round trips or after the time of three groups, whichever is longest.
#[test]
fn silence_is_measured_by_path_and_rate() {
    for (round_trip_us, every_us, silent_us) in [(MS, MS, S), (2 * S, MS, 8 * S), (MS, 2 * S, 6 * S)] {
        let mut planner = planner(4);
        add(&mut planner, A, "direct", 0);
        planner.handle_up(0, A, Some(round_trip_us));
        let (asked, ..) = drain(&mut planner, 0);
        let last_us = if every_us == MS { 0 } else { serve_some(&mut planner, 0, every_us, &asked[0], 4) };
        assert_eq!(standing(&planner, last_us + silent_us - 10 * MS, A).0, Standing::Up);
        assert_eq!(standing(&planner, last_us + silent_us + 10 * MS, A).0, Standing::Frozen);
    }
}

/// S10: who is silent because this end is at work with what it sent is not set aside, and not barred for memory that others need. Who is silent by itself is.
#[test]
fn a_slow_disk_here_is_no_silence_of_the_source() {
    for is_at_work in [true, false] {
        let mut planner = planner_of(64, DeliveryMode::OutOfOrder, &Budget::new(3 * UNIT_BYTES));
        add_up(&mut planner, 0, A, "direct", 0);
        add_up(&mut planner, 0, B, "direct too", 0);
        // What the silent one was asked for holds its memory all the time.
        let (_held, mut asked): (Vec<_>, Vec<_>) =
            drain(&mut planner, 0).0.into_iter().partition(|asked| asked.source == A);
        let mut closed = Vec::new();
        for second in 1..=15 {
            if is_at_work {
                planner.handle_at_work(second * S, A);
            }
            for asked in std::mem::take(&mut asked) {
                serve(&mut planner, second * S, &asked);
            }
            let (more, _, over) = drain(&mut planner, second * S);
            asked.extend(more.into_iter().filter(|asked| asked.source == B));
            closed.extend(over);
        }
        let expected = if is_at_work { SourceState::Up } else { SourceState::Barred };
        assert_eq!((closed.contains(&A), state(&planner, A)), (!is_at_work, expected));
        assert_eq!(planner.stats()[0].stalls, u64::from(!is_at_work));
    }
}

/// S10: it ends all the same where nothing comes to its end, and the error says that it is this end that hangs. Others help out meanwhile, as where the source is silent.
#[test]
fn a_disk_that_hangs_here_is_told_as_that() {
    for is_at_work in [true, false] {
        let mut planner = planner(4);
        add_up(&mut planner, 0, A, "direct", 0);
        let asked = drain(&mut planner, 0).0;
        planner.handle_group(0, A, asked[0].request, 0);
        let mut now_us = 0;
        while planner.outcome().is_none() {
            now_us += S / 10;
            if is_at_work {
                planner.handle_at_work(now_us, A);
            }
            drain(&mut planner, now_us);
            if now_us == 2 * S {
                assert_eq!(standing(&planner, now_us, A).0, Standing::Frozen);
            }
        }
        assert_eq!(now_us, 25 * S);
        let error = failure(&planner);
        assert_eq!(error.what().contains("was still being stored here"), is_at_work, "{error}");
        assert_eq!(error.advice().unwrap().contains("disk"), is_at_work, "{error}");
    }
}

/// Failures that follow each other are paused for twice as long each time, up to 5 s; what fails within 100 ms fails with it.
#[test]
fn pauses_double() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    let record = planner.sources.get_mut(&A).unwrap();
    let mut pauses_ms = Vec::new();
    for number in 1..=9 {
        let now_us = number * 10 * S;
        record.failed(now_us, None);
        pauses_ms.push(record.paused_until_us.saturating_sub(now_us) / MS);
    }
    assert_eq!(pauses_ms, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert!(record.forgive() && !record.has_failed() && record.paused_until_us == 0);
    record.failed(100 * S, None);
    record.failed(100 * S + 99 * MS, None);
    record.failed(100 * S + 99 * MS, None);
    assert_eq!((record.paused_until_us, record.keeps_failing()), (100 * S + 100 * MS, false));
    record.failed(100 * S + 100 * MS, None);
    record.failed(101 * S, None);
    assert!(record.keeps_failing() && record.state == SourceState::Stalled);
}

/// Pieces for which wrong bytes came are checked first by whoever is asked for them next; others are not.
#[test]
fn suspect_pieces_are_rechecked_by_anybody() {
    let mut planner = wide(4, 2);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    planner.handle_mismatch(1, A, asked[1].request);
    planner.handle_down(1, A, None, false);
    planner.config.window.initial_bytes = 64 * UNIT_BYTES;
    add_up(&mut planner, 2, B, "other", 0);
    let (asked, ..) = drain(&mut planner, 2);
    let asked: Vec<_> = asked.iter().map(|asked| (asked.groups.start / UNIT_GROUPS, asked.recheck)).collect();
    assert_eq!(asked, [(0, false), (1, true), (2, false)]);
}

/// What was cancelled and comes all the same is not asked for again.
#[test]
fn what_comes_late_is_not_asked_for_again() {
    let mut planner = wide(4, 2);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(asked.iter().map(|asked| asked.groups.start).collect::<Vec<_>>(), [0, UNIT_GROUPS]);
    planner.handle_misfit(1, A, asked[1].request);
    serve_some(&mut planner, 1, 1, &asked[1], UNIT_GROUPS);
    planner.handle_done(20, A, asked[1].request);
    let (asked, ..) = drain(&mut planner, 20);
    assert!(
        !asked.is_empty() && asked.iter().all(|asked| asked.groups.start >= 2 * UNIT_GROUPS),
        "{asked:?}"
    );
}

/// Design 7: memory that a source holds that was set aside for its silence is not kept from the others.
#[test]
fn who_is_set_aside_holds_no_memory() {
    let budget = Budget::new(2 * UNIT_BYTES);
    let mut planner = planner_of(4, DeliveryMode::OutOfOrder, &budget);
    add_up(&mut planner, 0, A, "silent", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    assert_eq!((of_a.len(), budget.used_bytes()), (2, 2 * UNIT_BYTES));
    drain(&mut planner, 10 * S);
    add_up(&mut planner, 10 * S, B, "other", 0);
    let (asked, _, closed) = drain(&mut planner, 10 * S);
    assert_eq!((asked.len(), closed), (0, vec![A]));
    drop(of_a);
    let (asked, ..) = drain(&mut planner, 11 * S);
    assert!(asked.len() == 2 && asked.iter().all(|asked| asked.source == B));
}
