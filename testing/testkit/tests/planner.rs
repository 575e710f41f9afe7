//! Random transfers against the reference model of the planner (design 6 to 9): every wanted group is delivered
//! exactly once, no rule is broken, no permit leaks, and every transfer ends.

use dray_core::error::ErrorKind;
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES, UNIT_GROUPS};
use dray_engine::planner::{Outstanding, Standing, Strategy, WindowLimits};
use dray_testkit::planner_model::{Behaviour, GIVE_UP_US, Report, Scenario, SourceScript, Unfolding, run};
use proptest::prelude::{Strategy as Strategic, *};
use proptest::test_runner::FileFailurePersistence;

/// Virtual time by which every scenario below must have an outcome: 384 groups in order, to a consumer who takes one in 40 s.
const LIMIT_US: u64 = 28_800_000_000;

fn behaviour() -> impl Strategic<Value = Behaviour> {
    let after_groups = 0u64..60;
    let final_kind = prop::sample::select(vec![
        ErrorKind::Changed,
        ErrorKind::Damaged,
        ErrorKind::NotFound,
        ErrorKind::Refused,
        ErrorKind::Internal,
    ]);
    prop_oneof![
        4 => Just(Behaviour::Honest),
        2 => (after_groups.clone(), prop::sample::select(vec![2_000_000, 15_000_000, 60_000_000, u64::MAX]))
            .prop_map(|(after_groups, for_us)| Behaviour::Stalls { after_groups, for_us }),
        1 => (after_groups.clone(), prop::sample::select(vec![1_000, 60_000, 10_000_000]))
            .prop_map(|(after_groups, bytes_per_s)| Behaviour::Trickles { after_groups, bytes_per_s }),
        1 => (1u64..40).prop_map(|every| Behaviour::FailsRetryably { every }),
        1 => (after_groups.clone(), final_kind)
            .prop_map(|(after_groups, kind)| Behaviour::Quits { after_groups, kind }),
        1 => after_groups.clone().prop_map(|after_groups| Behaviour::LiesOnce { after_groups }),
        1 => Just(Behaviour::LiesAlways),
        2 => (1u64..40, 0u64..30_000_000).prop_map(|(every, away_us)| Behaviour::Flaps { every, away_us }),
        1 => after_groups.clone().prop_map(|after_groups| Behaviour::Dies { after_groups }),
        1 => after_groups.prop_map(|after_groups| Behaviour::EndsEarly { after_groups }),
        1 => (1u64..8).prop_map(|every| Behaviour::Swallows { every }),
        1 => Just(Behaviour::Absent),
    ]
}

prop_compose! {
    fn source()(
        behaviour in behaviour(),
        priority in 0u16..3,
        rate_bytes_per_s in prop::sample::select(vec![193_000, 1_000_000, 12_500_000, 125_000_000, 2_000_000_000]),
        round_trip_us in prop::sample::select(vec![0u64, 100, 40_000, 132_000]),
        up_at_us in prop::sample::select(vec![0u64, 0, 50_000, 3_000_000, 24_000_000]),
        can_cancel in prop::bool::weighted(0.8),
        under_way_bytes in prop::sample::select(vec![0u64, 0, 2 << 20]),
        tells_round_trip in any::<bool>(),
        is_noisy in prop::bool::weighted(0.3),
    ) -> SourceScript {
        SourceScript {
            behaviour, priority, rate_bytes_per_s, round_trip_us, up_at_us, can_cancel, under_way_bytes, tells_round_trip,
            is_noisy,
        }
    }
}

/// Mostly all methods, as in use.
fn strategy() -> impl Strategic<Value = Strategy> {
    let some = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8), any::<bool>());
    prop_oneof![
        3 => Just(Strategy::default()),
        1 => some.prop_map(|(borrowing, end_game, deadlines, is_fixed)| Strategy {
            borrowing,
            end_game,
            deadlines,
            outstanding: if is_fixed { Outstanding::Requests(10) } else { Outstanding::Window },
        }),
    ]
}

/// From all at once to a step an hour, with a recipe that ends in time or late.
fn unfolding() -> impl Strategic<Value = Unfolding> {
    let interval_us = prop::sample::select(vec![0u64, 1_000, 200_000, 12_000_000]);
    let end_us = prop::sample::select(vec![0u64, 300_000, 40_000_000]);
    (1u64..64, interval_us, end_us).prop_map(|(step_pieces, interval_us, end_us)| Unfolding {
        step_pieces,
        interval_us,
        end_us,
    })
}

prop_compose! {
    fn scenario()(
        size_bytes in prop_oneof![1 => Just(0u64), 1 => 1..UNIT_BYTES, 8 => UNIT_BYTES..24 * UNIT_BYTES],
        piece_groups in prop::sample::select(vec![UNIT_GROUPS, UNIT_GROUPS, 1, 2, 4, 8]),
        had_sixteenths in prop::collection::vec((0u64..384, 0u64..96).prop_map(|(start, len)| start..start + len), 0..4),
        unfolding in prop::option::weighted(0.3, unfolding()),
        sequential_bytes in prop::option::weighted(0.3, 0u64..8 * UNIT_BYTES),
        consumer_us in prop::sample::select(vec![100_000u64, 1_000_000, 40_000_000]),
        budget_bytes in prop::sample::select(vec![1u64, 3 << 20, 16 << 20, 1 << 30]),
        max_bytes in prop::sample::select(vec![0u64, 3 << 20, 64 << 20]),
        hear_interval_us in prop::option::weighted(0.1, Just(1_000_000)),
        strategy in strategy(),
        sources in prop_oneof![
            1 => prop::collection::vec(source(), 0..5),
            3 => prop::collection::vec(source(), 5..9),
        ],
    ) -> Scenario {
        let window = WindowLimits { max_bytes, ..WindowLimits::default() };
        let had_pieces = had_sixteenths
            .into_iter()
            .map(|groups| groups.start / piece_groups..groups.end / piece_groups)
            .collect();
        Scenario {
            size_bytes, piece_groups, had_pieces, unfolding, sequential_bytes, consumer_us, budget_bytes, window,
            hear_interval_us, strategy, sources,
        }
    }
}

/// Will deliver everything if nobody else does. Who lies has a second chance only while nobody else is there.
fn is_dependable(source: &SourceScript, is_alone: bool) -> bool {
    source.behaviour == Behaviour::Honest
        || (is_alone && matches!(source.behaviour, Behaviour::LiesOnce { .. }))
}

/// Several sources that never answer may each hold the whole of a small budget until their deadline of 10 s, one after the
/// other, which is longer than anybody waits for progress.
fn is_starved(scenario: &Scenario) -> bool {
    let swallows = |source: &&SourceScript| matches!(source.behaviour, Behaviour::Swallows { .. });
    scenario.sources.iter().filter(swallows).count() >= 2 && scenario.budget_bytes <= 16 << 20
}

/// How long those who cannot cancel may take for all that they owe; `None` where somebody pauses or goes away meanwhile.
fn sends_what_it_owes_us(scenario: &Scenario, report: &Report) -> Option<u64> {
    let pauses = |source: &SourceScript| {
        matches!(
            source.behaviour,
            Behaviour::Stalls { .. } | Behaviour::Trickles { .. } | Behaviour::Flaps { .. }
        )
    };
    if scenario.sources.iter().any(pauses) {
        return None;
    }
    let owed =
        scenario.sources.iter().zip(&report.outstanding_bytes_max).filter(|(source, _)| !source.can_cancel);
    Some(owed.map(|(source, bytes)| bytes * 1_000_000 / source.rate_bytes_per_s).max().unwrap_or(0))
}

/// Never delivers a group. Who is noisy sends one more of what it is told to leave.
fn is_useless(source: &SourceScript) -> bool {
    if matches!(source.behaviour, Behaviour::LiesAlways | Behaviour::Absent) {
        return true;
    }
    let sends_what_is_cancelled = source.is_noisy && source.can_cancel;
    !sends_what_is_cancelled
        && matches!(
            source.behaviour,
            Behaviour::Trickles { after_groups: 0, .. }
                | Behaviour::Quits { after_groups: 0, .. }
                | Behaviour::Dies { after_groups: 0 }
                | Behaviour::FailsRetryably { every: 1 }
                | Behaviour::Flaps { every: 1, .. }
                | Behaviour::Swallows { every: 1 }
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Three of four have five sources and more: 10,000 and some of these.
        cases: 14_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/planner.regressions"))),
        ..ProptestConfig::default()
    })]

    /// Design 9: never stall, never lie. The model checks every single step.
    #[test]
    fn every_transfer_ends_and_delivers_each_group_once(scenario in scenario()) {
        let report = run(&scenario, LIMIT_US).map_err(TestCaseError::fail)?;
        let wants_nothing = report.outcome.is_ok() && report.delivered_groups.iter().all(|&groups| groups == 0);
        let is_alone = scenario.sources.len() == 1;
        // Without deadlines one silent source may hold up everything, as long as nobody else may help.
        let never_waits = scenario.strategy.deadlines;
        let never_waits = never_waits && !is_starved(&scenario);
        if never_waits && scenario.sources.iter().any(|source| is_dependable(source, is_alone)) {
            prop_assert!(report.outcome.is_ok(), "an honest source was there: {:?}", report.outcome);
        }
        if scenario.sources.iter().all(is_useless) {
            prop_assert!(report.outcome.is_err() || wants_nothing, "nobody could have delivered that");
        }
        if let Err(error) = &report.outcome {
            prop_assert!(report.ended_us >= report.last_delivery_us);
            if error.kind() == ErrorKind::TimedOut && error.what().starts_with("no progress") {
                prop_assert!(report.ended_us >= report.last_delivery_us + GIVE_UP_US);
            }
            if scenario.sequential_bytes.is_none() {
                let last_us =
                    report.last_delivery_us.max(report.last_repeat_us).max(report.last_first_up_us).max(report.last_known_us);
                prop_assert!(report.ended_us <= last_us + 30_000_000, "{} after {last_us}", report.ended_us);
                let new_us = report.last_delivery_us.max(report.last_first_up_us).max(report.last_known_us);
                if let Some(sent_us) = sends_what_it_owes_us(&scenario, &report) {
                    prop_assert!(report.ended_us <= new_us + 45_000_000 + sent_us, "{} after {new_us}", report.ended_us);
                }
            }
            for number in 0..scenario.sources.len() {
                let name = format!("source {number}");
                prop_assert!(error.what().contains(&name), "{name} is not named: {error}");
            }
        }
        for (number, source) in scenario.sources.iter().enumerate() {
            if source.behaviour == Behaviour::Honest {
                let needless = report.repeated_groups[number].saturating_sub(report.resent_groups[number]);
                let twice_bytes = needless * GROUP_BYTES;
                prop_assert!(twice_bytes <= 16 << 20, "source {number} sent {twice_bytes} in vain");
            }
        }
    }
}

/// An honest source at time 0.
fn honest(rate_bytes_per_s: u64, round_trip_us: u64) -> SourceScript {
    SourceScript {
        behaviour: Behaviour::Honest,
        priority: 0,
        rate_bytes_per_s,
        round_trip_us,
        up_at_us: 0,
        can_cancel: true,
        under_way_bytes: 0,
        tells_round_trip: true,
        is_noisy: false,
    }
}

fn transfer(units: u64, sources: Vec<SourceScript>) -> Scenario {
    Scenario {
        size_bytes: units * UNIT_BYTES,
        piece_groups: UNIT_GROUPS,
        had_pieces: vec![],
        unfolding: None,
        sequential_bytes: None,
        consumer_us: 1,
        budget_bytes: 256 << 20,
        window: WindowLimits::default(),
        hear_interval_us: Some(100_000),
        strategy: Strategy::default(),
        sources,
    }
}

/// Seconds of virtual time, with the outcome checked.
fn seconds(scenario: &Scenario) -> Result<(f64, Report), String> {
    let report = run(scenario, LIMIT_US)?;
    match &report.outcome {
        Ok(()) => Ok((report.ended_us as f64 / 1e6, report)),
        Err(error) => Err(error.to_string()),
    }
}

/// Design 8: a slow link owes little more than one unit and its own latency, and is never idle (P7).
#[test]
fn a_t1_owes_about_a_second_beyond_one_unit() {
    let mut scenario = transfer(12, vec![honest(193_000, 40_000)]);
    scenario.window.initial_bytes = UNIT_BYTES;
    let (took_s, report) = seconds(&scenario).unwrap();
    assert!(report.outstanding_bytes_max[0] <= UNIT_BYTES + 193_000, "{report:?}");
    let ideal_s = scenario.size_bytes as f64 / 193_000.0;
    assert!(took_s <= ideal_s * 1.01 + 0.4, "{took_s} of {ideal_s}");
    let (_, report) = seconds(&transfer(12, vec![honest(193_000, 40_000)])).unwrap();
    assert!(report.outstanding_bytes_max[0] <= 2 * UNIT_BYTES, "the initial window is the most: {report:?}");
}

/// P13: on a local network a crash wastes little, so the window stays at 8 MiB, and is no slower for it.
#[test]
fn a_local_network_owes_at_most_8_mib() {
    for tells_round_trip in [true, false] {
        let scenario = transfer(512, vec![SourceScript { tells_round_trip, ..honest(2_000_000_000, 100) }]);
        let (took_s, report) = seconds(&scenario).unwrap();
        assert!(report.outstanding_bytes_max[0] <= 8 << 20, "{report:?}");
        let ideal_s = scenario.size_bytes as f64 / 2e9;
        assert!(took_s <= ideal_s * 1.1 + 0.01, "{took_s} of {ideal_s}");
    }
}

/// P4: 1 Gbit/s over 132 ms is full after a few round trips.
#[test]
fn a_long_fat_path_fills_in_a_few_round_trips() {
    let scenario = transfer(512, vec![honest(125_000_000, 132_000)]);
    let (took_s, _) = seconds(&scenario).unwrap();
    let ideal_s = scenario.size_bytes as f64 / 125e6;
    assert!(took_s <= ideal_s + 8.0 * 0.132, "{took_s} of {ideal_s}");
}

/// P8: two sources of one rank share by rate and together take little more than the sum of both needs.
#[test]
fn equal_sources_share_by_rate() {
    let scenario = transfer(400, vec![honest(10_000_000, 10_000), honest(30_000_000, 10_000)]);
    let (took_s, report) = seconds(&scenario).unwrap();
    let ideal_s = scenario.size_bytes as f64 / 40e6;
    assert!(took_s <= ideal_s * 1.05 + 0.1, "{took_s} of {ideal_s}");
    let share = report.delivered_groups[1] as f64 / report.delivered_groups[0] as f64;
    assert!((2.5..3.5).contains(&share), "{share}");
    assert_eq!(report.discarded_groups, [0, 0]);
}

/// Design 5: the spare carries nothing while a better path is up, and everything once that one freezes.
#[test]
fn a_spare_takes_over_from_a_frozen_path() {
    let spare = SourceScript { priority: 10, ..honest(5_000_000, 20_000) };
    let (_, report) = seconds(&transfer(40, vec![honest(10_000_000, 10_000), spare])).unwrap();
    assert_eq!(report.delivered_groups[1], 0);
    let frozen = Behaviour::Stalls { after_groups: 100, for_us: u64::MAX };
    let frozen = SourceScript { behaviour: frozen, ..honest(10_000_000, 10_000) };
    let (took_s, report) = seconds(&transfer(40, vec![frozen, spare])).unwrap();
    assert_eq!(report.delivered_groups, [100, 40 * 16 - 100]);
    // Silence is enough; nobody waits for the deadline.
    let ideal_s = 100.0 * GROUP_BYTES as f64 / 10e6 + (40.0 * 16.0 - 100.0) * GROUP_BYTES as f64 / 5e6;
    assert!(took_s < ideal_s + 2.0, "{took_s} of {ideal_s}");
}

/// Y20: over a line of T1's rate, what the spare's channel holds when the better path comes up is not asked for again.
#[test]
fn nothing_that_is_under_way_comes_twice() {
    let channel = SourceScript { priority: 1, under_way_bytes: 2 << 20, ..honest(100_000, 40_000) };
    let direct = SourceScript { up_at_us: 250_000, ..honest(100_000, 40_000) };
    let (_, report) = seconds(&transfer(6, vec![direct, channel])).unwrap();
    assert_eq!(report.repeated_groups, [0, 0]);
    assert_eq!(report.delivered_groups.iter().sum::<u64>(), 6 * UNIT_GROUPS);
    assert!(report.delivered_groups[0] > report.delivered_groups[1], "{:?}", report.delivered_groups);
}

/// The spare whose channel holds 2 MiB, which is asked first, and a direct path that comes up a quarter of a second later.
fn beside_a_channel(units: u64, channel: SourceScript, direct_rate_bytes_per_s: u64) -> Scenario {
    let channel = SourceScript { priority: 1, under_way_bytes: 2 << 20, ..channel };
    let direct = SourceScript { up_at_us: 250_000, ..honest(direct_rate_bytes_per_s, 10_000) };
    transfer(units, vec![direct, channel])
}

/// R6, P12: bytes without a group neither keep what is under way from a faster path nor spares from their turn.
#[test]
fn a_trickle_without_groups_keeps_nobody_waiting() {
    let trickles = |after_groups, script| SourceScript {
        behaviour: Behaviour::Trickles { after_groups, bytes_per_s: 60_000 },
        ..script
    };
    let scenario = beside_a_channel(8, trickles(0, honest(2_000_000, 10_000)), 12_500_000);
    let (took_s, report) = seconds(&scenario).unwrap();
    let ideal_s = 0.25 + scenario.size_bytes as f64 / 12.5e6;
    assert!(took_s < ideal_s + 0.5, "{took_s} of {ideal_s}: {report:?}");
    let spare = SourceScript { priority: 10, ..honest(5_000_000, 20_000) };
    let scenario = transfer(20, vec![trickles(100, honest(10_000_000, 10_000)), spare]);
    let (took_s, report) = seconds(&scenario).unwrap();
    assert_eq!(report.delivered_groups, [100, 20 * UNIT_GROUPS - 100]);
    let ideal_s = 100.0 * GROUP_BYTES as f64 / 10e6 + 220.0 * GROUP_BYTES as f64 / 5e6;
    assert!((ideal_s + 2.0..ideal_s + 3.5).contains(&took_s), "{took_s} of {ideal_s}: {report:?}");
}

/// R6: what is under way at a spare with a slow line of its own is waited for two seconds, not for as long as it takes.
#[test]
fn a_slow_channel_does_not_make_a_copy_slow() {
    let scenario = beside_a_channel(4, honest(200_000, 10_000), 800_000);
    let (took_s, report) = seconds(&scenario).unwrap();
    let (direct_s, unit_s) = (0.25 + 2.0 * UNIT_BYTES as f64 / 8e5, UNIT_BYTES as f64 / 8e5);
    assert!(took_s < direct_s + 2.0 + unit_s + 0.2, "{took_s}: {report:?}");
    assert!(repeated_bytes(&report) <= 2 * UNIT_BYTES, "{report:?}");
}

/// R6, P12: a channel that freezes while bytes go on coming loses all it holds, whatever its rate was.
#[test]
fn a_channel_that_freezes_but_for_bytes_is_not_waited_for() {
    let frozen = Behaviour::Trickles { after_groups: 8, bytes_per_s: 300_000 };
    let frozen = SourceScript { behaviour: frozen, ..honest(2_000_000, 10_000) };
    let scenario = beside_a_channel(8, frozen, 4_000_000);
    let (took_s, report) = seconds(&scenario).unwrap();
    let ideal_s = 0.25 + scenario.size_bytes as f64 / 4e6;
    assert!(took_s < ideal_s + 1.5, "{took_s} of {ideal_s}: {report:?}");
    assert_eq!(report.delivered_groups, [8 * UNIT_GROUPS - 8, 8]);
}

/// P12: a frozen source alone is a typed error that names it, within 30 s.
#[test]
fn a_frozen_source_alone_is_an_error_within_30_s() {
    let frozen = Behaviour::Stalls { after_groups: 100, for_us: u64::MAX };
    let scenario = transfer(40, vec![SourceScript { behaviour: frozen, ..honest(10_000_000, 10_000) }]);
    let report = run(&scenario, LIMIT_US).expect("no rule broken");
    let error = report.outcome.expect_err("nobody could finish it");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.what().contains("source 0"), "{error}");
    assert!(report.ended_us - report.last_delivery_us <= 30_000_000);
}

/// Design 7 and 9: a silent source that cannot be cancelled does not keep the whole memory budget for ever.
#[test]
fn a_silent_source_does_not_keep_the_budget() {
    let silent = Behaviour::Stalls { after_groups: 1, for_us: u64::MAX };
    let silent = SourceScript { behaviour: silent, can_cancel: false, ..honest(10_000_000, 10_000) };
    let mut scenario = transfer(8, vec![silent, honest(10_000_000, 10_000)]);
    scenario.budget_bytes = 1;
    let (took_s, report) = seconds(&scenario).unwrap();
    assert!(took_s < 25.0, "{took_s}");
    assert_eq!(report.delivered_groups, [1, 8 * 16 - 1]);
}

/// Design 9: what is missing may stand behind much that a slow source sends in vain because it cannot cancel; it is at work, and
/// nobody gives up. The cap on what may come twice keeps the others from helping.
#[test]
fn who_works_through_what_it_cannot_cancel_is_waited_for() {
    let cannot_cancel = |rate| SourceScript { can_cancel: false, tells_round_trip: false, ..honest(rate, 0) };
    let failing = Behaviour::FailsRetryably { every: 26 };
    let failing = SourceScript { behaviour: failing, ..cannot_cancel(12_500_000) };
    let late = SourceScript { up_at_us: 3_000_000, ..cannot_cancel(193_000) };
    let mut scenario = transfer(17, vec![cannot_cancel(193_000), failing, late]);
    scenario.size_bytes += 1;
    scenario.had_pieces.push(3..4);
    scenario.budget_bytes = 16 << 20;
    scenario.window.max_bytes = 0;
    let outstanding = Outstanding::Requests(10);
    scenario.strategy = Strategy { borrowing: false, outstanding, ..Strategy::default() };
    let (took_s, report) = seconds(&scenario).unwrap();
    let waited_us = report.ended_us - report.last_first_up_us;
    assert!(waited_us > GIVE_UP_US, "the scene has a wait that is long enough: {took_s} {report:?}");
}

/// The same transfer with another strategy.
fn with(strategy: Strategy, scenario: &Scenario) -> Scenario {
    Scenario { strategy, ..scenario.clone() }
}

fn repeated_bytes(report: &Report) -> u64 {
    report.repeated_groups.iter().sum::<u64>() * GROUP_BYTES
}

/// D22: on a pair of links 100:1, with ten outstanding requests, doing without borrowing takes at least twice as long;
/// the byte window alone, too, is better for it. The end game is off, so that borrowing stands alone.
#[test]
fn borrowing_pays_on_unequal_links() {
    let scenario = transfer(64, vec![honest(193_000, 10_000), honest(19_300_000, 10_000)]);
    for outstanding in [Outstanding::Requests(10), Outstanding::Window] {
        let on = Strategy { end_game: false, outstanding, ..Strategy::default() };
        let (with_s, report) = seconds(&with(on, &scenario)).unwrap();
        let (without_s, baseline) = seconds(&with(Strategy { borrowing: false, ..on }, &scenario)).unwrap();
        assert!(without_s >= 1.9 * with_s, "{outstanding:?}: {without_s} without, {with_s} with");
        assert_eq!(repeated_bytes(&baseline), 0);
        assert!(repeated_bytes(&report) <= UNIT_BYTES, "{report:?}");
        if let Outstanding::Requests(count) = outstanding {
            assert_eq!(report.requests_max, [count, count]);
        }
    }
}

/// P12: with one of three sources frozen half-way, the end game ends the transfer as soon as if there had been two all
/// along; without it everybody waits for the deadline of the frozen one.
#[test]
fn the_end_game_does_not_wait_for_a_frozen_source() {
    let frozen = Behaviour::Stalls { after_groups: 167, for_us: u64::MAX };
    let frozen = SourceScript { behaviour: frozen, ..honest(20_000_000, 5_000) };
    let two = vec![honest(20_000_000, 5_000), honest(20_000_000, 5_000)];
    let (healthy_s, _) = seconds(&transfer(96, two.clone())).unwrap();
    let scenario = transfer(96, vec![two[0], two[1], frozen]);
    let (with_s, report) = seconds(&scenario).unwrap();
    assert!(with_s <= healthy_s + 2.0, "P12: {with_s} with a frozen third source, {healthy_s} without it");
    assert!(repeated_bytes(&report) <= 16 << 20);
    let off = Strategy { end_game: false, ..Strategy::default() };
    let (without_s, _) = seconds(&with(off, &scenario)).unwrap();
    assert!(without_s >= 10.0 && without_s > 2.0 * with_s, "{without_s} without, {with_s} with");
}

/// Design 9: without deadlines a frozen source holds what it owes for ever, and the transfer fails.
#[test]
fn deadlines_save_a_transfer_from_a_frozen_source() {
    let frozen = Behaviour::Stalls { after_groups: 16, for_us: u64::MAX };
    let frozen = SourceScript { behaviour: frozen, ..honest(20_000_000, 5_000) };
    let scenario = transfer(64, vec![frozen, honest(20_000_000, 5_000)]);
    let on = Strategy { borrowing: false, end_game: false, ..Strategy::default() };
    let (took_s, _) = seconds(&with(on, &scenario)).unwrap();
    assert!((10.0..15.0).contains(&took_s), "{took_s}");
    let error = seconds(&with(Strategy { deadlines: false, ..on }, &scenario)).unwrap_err();
    assert!(error.contains("no progress") && error.contains("source 0"), "{error}");
}

/// Design 7: permits keep what all sources together owe within the budget; without a bound they owe several times that,
/// and the bound costs next to no time.
#[test]
fn permits_bound_what_many_sources_owe() {
    let mut scenario = transfer(400, vec![honest(40_000_000, 100_000); 8]);
    scenario.budget_bytes = 24 << 20;
    let (bound_s, bound) = seconds(&scenario).unwrap();
    assert!(bound.reserved_bytes_max <= scenario.budget_bytes, "{bound:?}");
    scenario.budget_bytes = u64::MAX;
    let (free_s, free) = seconds(&scenario).unwrap();
    assert!(free.reserved_bytes_max > 2 * (24 << 20), "{free:?}");
    assert!(bound_s < 4.0 * free_s, "{bound_s} bound, {free_s} free");
}

/// Design 8, fairness: a slow source does not hold the last range hostage, also where it cannot be told to stop.
#[test]
fn a_slow_source_does_not_keep_the_last_range() {
    for can_cancel in [true, false] {
        let slow = SourceScript { can_cancel, ..honest(20_000, 50_000) };
        let (took_s, report) = seconds(&transfer(64, vec![slow, honest(20_000_000, 5_000)])).unwrap();
        let alone_s = 64.0 * UNIT_BYTES as f64 / 20e6;
        assert!(took_s <= alone_s * 1.1 + 2.0, "{took_s}, {alone_s} alone");
        assert!(repeated_bytes(&report) <= 16 << 20);
    }
}

/// D11 and design 9: in order, too, nobody waits for the unit that a frozen source owes.
#[test]
fn in_order_delivery_does_not_wait_for_a_frozen_source() {
    let frozen = Behaviour::Stalls { after_groups: 40, for_us: u64::MAX };
    let frozen = SourceScript { behaviour: frozen, ..honest(20_000_000, 5_000) };
    let mut scenario = transfer(96, vec![frozen, honest(20_000_000, 5_000)]);
    scenario.sequential_bytes = Some(16 << 20);
    scenario.consumer_us = 1_000;
    let (took_s, _) = seconds(&scenario).unwrap();
    assert!(took_s <= 96.0 * UNIT_BYTES as f64 / 20e6 + 2.5, "{took_s}");
}

/// Design 9: a liar among honest sources costs one request, is barred for it at once, and the account says so. A source
/// that says `changed` is barred too, and is not called a liar.
#[test]
fn liars_are_barred_at_once_and_named() {
    let of = |behaviour| SourceScript { behaviour, ..honest(20_000_000, 5_000) };
    let quits = Behaviour::Quits { after_groups: 8, kind: ErrorKind::Changed };
    let sources = vec![of(Behaviour::LiesAlways), of(quits), of(Behaviour::Honest)];
    let (_, report) = seconds(&transfer(64, sources)).unwrap();
    assert_eq!(report.delivered_groups, [0, 8, 64 * 16 - 8]);
    let why = |number: usize| {
        let source = &report.explanation.sources[number];
        (source.standing, source.cause.clone().unwrap_or_default())
    };
    let (standing, cause) = why(0);
    assert!(standing == Standing::Barred && cause.contains("not those of the object"), "{cause}");
    let (standing, cause) = why(1);
    assert!(standing == Standing::Barred && cause == "quits", "{cause}");
    assert_eq!(why(2), (Standing::Up, String::new()));
    assert!((report.explanation.sources[2].share - (64.0 * 16.0 - 8.0) / (64.0 * 16.0)).abs() < 1e-9);
}

/// Design 9: with bad sources only, the error comes within 30 s and names each of them and why.
#[test]
fn bad_sources_alone_are_all_named() {
    let of = |behaviour| SourceScript { behaviour, ..honest(20_000_000, 5_000) };
    let sources = vec![
        of(Behaviour::LiesAlways),
        of(Behaviour::Stalls { after_groups: 3, for_us: u64::MAX }),
        of(Behaviour::Quits { after_groups: 5, kind: ErrorKind::Refused }),
        of(Behaviour::Dies { after_groups: 2 }),
        of(Behaviour::EndsEarly { after_groups: 20 }),
        of(Behaviour::Absent),
    ];
    let report = run(&transfer(64, sources), LIMIT_US).expect("no rule broken");
    let error = report.outcome.expect_err("nobody could finish it");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(report.ended_us <= report.last_delivery_us + 30_000_000);
    for words in [
        "source 0 (not used any more: bytes between",
        "source 1 (went silent",
        "source 2 (not used any more: quits",
        "source 3 (gone: connection reset",
        "source 4 (not used any more: ended a request with",
        "source 5 (never answered",
    ] {
        assert!(error.what().contains(words), "{words:?} is not in: {error}");
    }
}

/// A source that fell and returns is used again, after pauses that grow while it only falls.
#[test]
fn a_source_that_returns_is_used_again() {
    let flaps = Behaviour::Flaps { every: 100, away_us: 500_000 };
    let flaps = SourceScript { behaviour: flaps, ..honest(20_000_000, 5_000) };
    let (took_s, report) = seconds(&transfer(200, vec![flaps, honest(10_000_000, 5_000)])).unwrap();
    assert!(report.delivered_groups[0] > 2 * 100, "{report:?}");
    let alone_s = 200.0 * UNIT_BYTES as f64 / 10e6;
    assert!(took_s < 0.8 * alone_s, "{took_s}, {alone_s} alone");
}

/// D22, D40: eight equal sources take little more than an eighth of the time, and hardly a byte comes twice.
#[test]
fn eight_sources_add_up() {
    let (took_s, report) = seconds(&transfer(512, vec![honest(10_000_000, 20_000); 8])).unwrap();
    let ideal_s = 512.0 * UNIT_BYTES as f64 / 80e6;
    assert!(took_s <= ideal_s * 1.1 + 0.1, "{took_s} of {ideal_s}");
    assert!(repeated_bytes(&report) <= 4 << 20, "{report:?}");
}
