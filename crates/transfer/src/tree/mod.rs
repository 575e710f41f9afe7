//! Tree copies over one channel, with direct connections beside it for contents ([`SendLanes`], [`TakeLanes`]): [`send`] tells entries and answers pulls, [`take`] hands what comes to a sink on a thread of
//! its own and says what that asks for. What may follow what is `dray_engine::session`'s business; what stands behind an entry
//! is the caller's.

mod answer;
mod desk;
mod frames;
mod gathering;
mod lanes;
mod packing;
mod removing;
#[cfg(test)]
mod script;
mod send;
mod take;
mod unpacking;

pub use answer::{RecordSink, SendError, TreeFile};
pub use gathering::Gathering;
pub use lanes::{Lane, SendLanes, TakeLanes};
pub use removing::Removes;
pub use send::{Batch, DigestsToTell, TreeSource, send};
pub use take::{Heard, SinkWake, TreeSink, take};
pub use unpacking::Unpacking;

use std::time::Duration;

use dray_core::message::{Message, Progress};

/// How often a side that works looks whether there is something to tell.
const TOLD_INTERVAL: Duration = Duration::from_millis(200);
/// How often it says that it lives, over the channel of the copy, where there is nothing: each sign costs some 130 bytes of ssh's and TCP's heads, and more than
/// what it stands for where both ends read what they have. Well within the second after which nothing is held against lanes (`SENDER_SILENT`), though it is
/// looked at every 200 ms only.
const SIGN_INTERVAL: Duration = Duration::from_millis(600);

/// The same where the other side has no more than `patience`, which both have from the user (`--timeout`): beside a lane that fills the path
/// packets with signs are lost, too, and the fewer there are the longer TCP takes to see that.
fn sign_interval(patience: Duration) -> Duration {
    SIGN_INTERVAL.min(patience / 10)
}
/// How long a side that ends tries to say why.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a sender says while it has nothing else to say.
fn progress() -> Message {
    Message::Progress(Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 })
}
