//! The canary: with the feature `canary` the planner asks nobody again for what was lost half-way, and the simulator must find
//! that within its smoke set. Without the feature it must find nothing.

use dray_testkit::sim::{Plan, run};

/// Seeds of the smoke set that are looked at.
const SEEDS: u64 = 60;

/// Design 9: never stall. The simulator would notice if the planner did.
#[test]
fn forgotten_work_is_found_if_and_only_if_it_is_there() {
    let found: Vec<(u64, String)> = (1..=SEEDS)
        .flat_map(|seed| {
            let report = run(&Plan::mix(seed, None), None);
            report.findings.into_iter().map(move |finding| (seed, finding))
        })
        .collect();
    assert_eq!(!found.is_empty(), cfg!(feature = "canary"), "{found:?}");
    if !found.is_empty() {
        let is_stalled = |(_, finding): &&(u64, String)| finding.contains("no end within 30 s");
        assert!(found.iter().any(|finding| is_stalled(&finding)), "found something else: {found:?}");
    }
}
