//! The canary: with the feature `canary` the decoder of frame heads leaves a length unbounded, and the `frames`
//! target must find that within the iterations of an ordinary run. Without the feature it must find nothing.

#![allow(clippy::expect_used, reason = "a test")]

use dray_fuzz::runner::{self, Plan};

/// D16, design 17: every length is bounded before allocation, and the fuzz run would notice if it were not.
#[test]
fn an_unbounded_length_is_found_if_and_only_if_it_is_there() {
    let target = dray_fuzz::find("frames").expect("it is in the table");
    let corpus: Vec<Vec<u8>> = (target.seeds)().into_iter().map(|(_, bytes)| bytes).collect();
    let mut inputs = 0;
    let report = runner::run(target, &corpus, Plan::default(), &mut |_| inputs += 1);
    let message = report.failure.map(|(_, message)| message);
    assert_eq!(message.is_some(), cfg!(feature = "canary"), "after {} inputs: {message:?}", report.executed);
    if let Some(message) = message {
        assert!(message.contains("reserve"), "found something else: {message}");
        assert!(inputs > corpus.len(), "the corpus must not contain the canary's trigger");
    }
}
