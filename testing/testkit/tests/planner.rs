//! Random transfers against the reference model of the planner (design 6 to 9): every wanted group is delivered
//! exactly once, no rule is broken, no permit leaks, and every transfer ends.

use dray_core::error::ErrorKind;
use dray_core::limits::UNIT_BYTES;
use dray_engine::planner::WindowLimits;
use dray_testkit::planner_model::{Behaviour, GIVE_UP_US, Scenario, SourceScript, run};
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
        consumer_us in prop::sample::select(vec![1_000u64, 200_000, 40_000_000]),
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
