//! Random transfers against the reference model of the planner (design 6 to 9): every wanted group is delivered
//! exactly once, no rule is broken, no permit leaks, and every transfer ends.

use dray_core::error::ErrorKind;
use dray_core::limits::UNIT_BYTES;
use dray_engine::planner::WindowLimits;
use dray_testkit::planner_model::{Behaviour, GIVE_UP_US, Report, Scenario, SourceScript, run};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Virtual time by which every scenario below must have an outcome.
const LIMIT_US: u64 = 3_600_000_000;

fn behaviour() -> impl Strategy<Value = Behaviour> {
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
        1 => (1u64..40).prop_map(|every| Behaviour::FailsRetryably { every }),
        1 => (after_groups.clone(), final_kind)
            .prop_map(|(after_groups, kind)| Behaviour::Quits { after_groups, kind }),
        1 => after_groups.clone().prop_map(|after_groups| Behaviour::LiesOnce { after_groups }),
        1 => Just(Behaviour::LiesAlways),
        2 => (1u64..40, 0u64..30_000_000).prop_map(|(every, away_us)| Behaviour::Flaps { every, away_us }),
        1 => after_groups.clone().prop_map(|after_groups| Behaviour::Dies { after_groups }),
        1 => after_groups.prop_map(|after_groups| Behaviour::EndsEarly { after_groups }),
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
        tells_round_trip in any::<bool>(),
        is_noisy in prop::bool::weighted(0.3),
    ) -> SourceScript {
        SourceScript {
            behaviour, priority, rate_bytes_per_s, round_trip_us, up_at_us, can_cancel, tells_round_trip, is_noisy,
        }
    }
}

prop_compose! {
    fn scenario()(
        size_bytes in prop_oneof![1 => Just(0u64), 1 => 1..UNIT_BYTES, 8 => UNIT_BYTES..24 * UNIT_BYTES],
        had_units in prop::collection::vec((0u64..24, 0u64..6).prop_map(|(start, len)| start..start + len), 0..4),
        sequential_bytes in prop::option::weighted(0.3, 0u64..8 * UNIT_BYTES),
        consumer_us in prop::sample::select(vec![100_000u64, 1_000_000, 40_000_000]),
        budget_bytes in prop::sample::select(vec![1u64, 3 << 20, 16 << 20, 1 << 30]),
        max_bytes in prop::sample::select(vec![0u64, 3 << 20, 64 << 20]),
        sources in prop::collection::vec(source(), 0..5),
    ) -> Scenario {
        let window = WindowLimits { max_bytes, ..WindowLimits::default() };
        Scenario { size_bytes, had_units, sequential_bytes, consumer_us, budget_bytes, window, sources }
    }
}

/// Will deliver everything if nobody else does.
fn is_dependable(source: &SourceScript) -> bool {
    matches!(source.behaviour, Behaviour::Honest | Behaviour::LiesOnce { .. })
}

/// Never delivers a group.
fn is_useless(source: &SourceScript) -> bool {
    matches!(
        source.behaviour,
        Behaviour::LiesAlways
            | Behaviour::Absent
            | Behaviour::Quits { after_groups: 0, .. }
            | Behaviour::Dies { after_groups: 0 }
            | Behaviour::FailsRetryably { every: 1 }
            | Behaviour::Flaps { every: 1, .. }
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/planner.regressions"))),
        ..ProptestConfig::default()
    })]

    /// Design 9: never stall, never lie. The model checks every single step.
    #[test]
    fn every_transfer_ends_and_delivers_each_group_once(scenario in scenario()) {
        let report = run(&scenario, LIMIT_US).map_err(TestCaseError::fail)?;
        let wants_nothing = report.outcome.is_ok() && report.delivered_groups.iter().all(|&groups| groups == 0);
        if scenario.sources.iter().any(is_dependable) {
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
            prop_assert!(scenario.sources.is_empty() || error.what().contains("source "), "names nobody: {error}");
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
        tells_round_trip: true,
        is_noisy: false,
    }
}

fn transfer(units: u64, sources: Vec<SourceScript>) -> Scenario {
    Scenario {
        size_bytes: units * UNIT_BYTES,
        had_units: vec![],
        sequential_bytes: None,
        consumer_us: 1,
        budget_bytes: 256 << 20,
        window: WindowLimits::default(),
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
    assert!(took_s < 20.0, "{took_s}");
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
