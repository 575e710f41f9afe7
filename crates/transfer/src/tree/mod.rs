//! Tree copies over one channel, with direct connections beside it for contents ([`SendLanes`], [`TakeLanes`]): [`send`] tells entries and answers pulls, [`take`] hands what comes to a sink on a thread of
//! its own and says what that asks for. What may follow what is `dray_engine::session`'s business; what stands behind an entry
//! is the caller's.

mod answer;
mod desk;
mod frames;
mod lanes;
mod packing;
mod removing;
#[cfg(test)]
mod script;
mod send;
mod take;
mod unpacking;

pub use answer::{RecordSink, SendError, TreeFile};
pub use lanes::{Lane, SendLanes, TakeLanes};
pub use removing::Removes;
pub use send::{Batch, DigestsToTell, TreeSource, send};
pub use take::{Heard, SinkWake, TreeSink, take};
pub use unpacking::Unpacking;

use std::time::Duration;

use dray_core::message::{Message, Progress};

/// How often a side that works looks at its clock, and tells what is new.
const TOLD_INTERVAL: Duration = Duration::from_millis(200);
/// How often it says no more than that it works.
const SIGN_INTERVAL: Duration = Duration::from_secs(1);
/// How long a side that ends tries to say why.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often a side that works says so to another that is patient for so long: each end is told the same, so four signs are on their way before
/// one is missed.
fn sign_interval(patience: Duration) -> Duration {
    (patience / 4).clamp(TOLD_INTERVAL, SIGN_INTERVAL)
}

/// What a sender says while it has nothing else to say.
fn progress() -> Message {
    Message::Progress(Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P5: a sign of life costs some hundred bytes, so there are no more than needed; and whoever waits for a second only hears several in it.
    #[test]
    fn signs_are_as_rare_as_patience_allows() {
        for (patience_ms, interval_ms) in [(100, 200), (1000, 250), (2000, 500), (4000, 1000), (60_000, 1000)]
        {
            assert_eq!(sign_interval(Duration::from_millis(patience_ms)), Duration::from_millis(interval_ms));
        }
    }
}
