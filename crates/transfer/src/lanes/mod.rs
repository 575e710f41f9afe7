//! The receiving end of a source: one or more connections (lanes) to the same holder, fed from one queue.
//!
//! Each lane is one blocking thread: it sends requests, reads answers straight into the buffer of a group and hands
//! every whole group to the event sink from that same thread. A lane takes work while it has no more than its share
//! outstanding, so a slow connection never holds back a fast one by more than that. On a long path only the oldest lane is asked for data until it turns
//! out that something else than the path holds it back.

mod ahead;
mod control;
mod lane;
mod rests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dray_core::block_mask::BlockMask;
use dray_core::hash_tree::Subtree;
use dray_core::message::{BlockRun, Message, ObjectName, Opened};
use dray_core::permit::Permit;
use dray_core::recipe::RecipeId;
use dray_core::rights::Secret;
use dray_core::source::{
    Grade, RequestId, Source, SourceCall, SourceDescription, SourceEvent, SourceEvents, SourceId,
};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_engine::session::Receiver;

use crate::transport::{Channel, LONG_FROM, Wake};
use lane::Lane;

/// A source made of lanes.
pub struct LaneSet {
    id: SourceId,
    object: ObjectName,
    description: SourceDescription,
    /// Who answers, for messages.
    peer: String,
    events: Arc<dyn SourceEvents>,
    /// Held while the source's coming up or going down is reported, so that the one never overtakes the other. Never
    /// taken by a call, which may come from within such a report.
    standing: Mutex<()>,
    inner: Mutex<Inner>,
    /// Heard by whoever waits for more connections to be of use: they are, or never will be.
    turned: Condvar,
    /// What came over all lanes, those that have ended included.
    received_bytes: AtomicU64,
    /// Lanes that do not wait for their socket: there was something to read when they looked last, or they have not looked yet.
    reading: AtomicUsize,
}

/// One lane that reads.
struct Reading<'a>(&'a AtomicUsize);

impl<'a> Reading<'a> {
    fn begin(reading: &'a AtomicUsize) -> Reading<'a> {
        reading.fetch_add(1, Ordering::AcqRel);
        Reading(reading)
    }

    /// While `wait` lasts, nothing is there to read.
    fn pause<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.fetch_sub(1, Ordering::AcqRel);
        let done = wait();
        self.0.fetch_add(1, Ordering::AcqRel);
        done
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Inner {
    size_bytes: Option<u64>,
    /// The holder's name for it has been reported.
    is_named: bool,
    /// `Up` has been reported, or is about to be; requests are taken.
    is_up: bool,
    queue: VecDeque<Queued>,
    /// Requests that ended before any lane took them; a lane reports them.
    ended: Vec<RequestId>,
    lanes: Vec<LaneState>,
    seal: Option<Oid>,
    compare: Option<Vec<Subtree>>,
    describe: bool,
    nodes: Vec<RecipeId>,
    sums: Vec<SumsAsked>,
    /// More than one lane is asked for data: a single one is held back by something else than its path.
    is_spread: bool,
    /// The lane on which packed data comes: what came there helps what comes next, so the others stand back.
    packing_lane: Option<u64>,
    /// Messages of the copy protocol to send.
    say: Vec<Message>,
    closed: bool,
    gone: bool,
    /// Why it was given up, to be reported when the last lane has ended.
    last_words: Option<Error>,
}

struct LaneState {
    number: u64,
    wake: Arc<Wake>,
    outstanding_bytes: u64,
    running: Vec<RequestId>,
    cancels: Vec<RequestId>,
}

struct Queued {
    request: RequestId,
    groups: Subtree,
    known_depth: u32,
    recheck: bool,
    /// Of the only group, blocks that need not come.
    have: Option<BlockMask>,
    permit: Permit,
}

/// See [`SourceCall::Sums`].
struct SumsAsked {
    number: u32,
    block_bytes: u32,
    sum_bytes: u8,
    runs: Vec<BlockRun>,
}

/// How a lane begins.
pub struct LaneStart {
    /// The session, fresh or with the hellos already exchanged.
    pub receiver: Receiver,
    /// Frames to send in front of everything else.
    pub preface: Vec<u8>,
    /// Secret to prove, if the object has one and the channel is a TLS connection.
    pub secret: Option<Secret>,
    /// This node.
    pub node: NodeId,
    /// Round-trip time of the connection, microseconds, if it was measured.
    pub round_trip_us: Option<u64>,
    /// Whether the object has been asked for on this connection already.
    pub opening: Opening,
}

/// How far the opening of an object has come before its lane begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Opening {
    /// The lane asks.
    #[default]
    ToAsk,
    /// It was asked, and the answer comes over the channel.
    Asked,
    /// It was asked and answered.
    Answered(Opened),
}

/// Hears the messages of the copy protocol that arrive on a lane (ssh control).
pub type CopyHook<'a> = &'a (dyn Fn(Message) -> Result<()> + Sync);

impl LaneSet {
    /// A source with no lane yet. `size_bytes` is known from the ticket or the offer, or comes with `Opened`.
    pub fn new(
        id: SourceId,
        object: ObjectName,
        description: SourceDescription,
        size_bytes: Option<u64>,
        events: Arc<dyn SourceEvents>,
    ) -> Arc<LaneSet> {
        let peer = description.label.clone();
        LaneSet::facing(peer, id, object, description, size_bytes, events)
    }

    /// The same, with another name than the source's label for whoever answers, in errors it reports.
    pub fn facing(
        peer: String,
        id: SourceId,
        object: ObjectName,
        description: SourceDescription,
        size_bytes: Option<u64>,
        events: Arc<dyn SourceEvents>,
    ) -> Arc<LaneSet> {
        Arc::new(LaneSet {
            id,
            object,
            description,
            peer,
            events,
            standing: Mutex::new(()),
            inner: Mutex::new(Inner { size_bytes, ..Inner::default() }),
            turned: Condvar::new(),
            received_bytes: AtomicU64::new(0),
            reading: AtomicUsize::new(0),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once `Close` was called or the source was given up.
    pub fn is_closed(&self) -> bool {
        let inner = self.inner();
        inner.closed || inner.gone
    }

    /// Number of lanes running now.
    pub fn lanes(&self) -> usize {
        self.inner().lanes.len()
    }

    /// True if more than one connection is of use; not before one is there.
    pub fn is_spread(&self) -> bool {
        self.inner().is_spread
    }

    /// From now on all lanes are asked for data.
    pub fn spread(&self) {
        let mut inner = self.inner();
        if !std::mem::replace(&mut inner.is_spread, true) {
            inner.lanes.iter().for_each(|lane| lane.wake.signal());
            self.turned.notify_all();
        }
    }

    /// Waits until more than one connection is of use, the source has ended, or [`LaneSet::end_wait`] says that it `is_over`; whether they are of use.
    pub(crate) fn await_spread(&self, is_over: &AtomicBool) -> bool {
        let mut inner = self.inner();
        while !(inner.is_spread || inner.closed || inner.gone || is_over.load(Ordering::Acquire)) {
            inner = self.turned.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.is_spread
    }

    /// Ends the wait of [`LaneSet::await_spread`].
    pub(crate) fn end_wait(&self, is_over: &AtomicBool) {
        // Whoever waits looks with the lock held.
        let _inner = self.inner();
        is_over.store(true, Ordering::Release);
        self.turned.notify_all();
    }

    /// Sends a message of the copy protocol over whichever lane looks first; before the source's end at the latest.
    pub fn say(&self, message: Message) {
        let mut inner = self.inner();
        inner.say.push(message);
        for lane in &inner.lanes {
            lane.wake.signal();
        }
    }

    /// The source will not come up again: reported at once if no lane runs, otherwise when the last one has ended.
    pub fn give_up(&self, error: Option<Error>) {
        let _standing = self.standing();
        let is_idle = {
            let mut inner = self.inner();
            if inner.gone {
                return;
            }
            inner.gone = true;
            self.turned.notify_all();
            inner.last_words = error;
            for lane in &inner.lanes {
                lane.wake.signal();
            }
            inner.lanes.is_empty()
        };
        if is_idle {
            self.fall(None);
        }
    }

    fn standing(&self) -> MutexGuard<'_, ()> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports `Up` unless that is known; with `news` in any case. Only with `standing` held.
    fn rise(&self, size_bytes: u64, name: Option<&[u8]>, round_trip_us: Option<u64>, news: bool) {
        let was_up = std::mem::replace(&mut self.inner().is_up, true);
        if news || !was_up {
            self.events.event(self.id, SourceEvent::Up { size_bytes, name, round_trip_us });
        }
    }

    /// The last lane has ended, or none will come: what still waits fails, then the source is down. Only with
    /// `standing` held and no lane running.
    fn fall(&self, lane_error: Option<Error>) {
        let (queue, ended, error, gone) = {
            let mut inner = self.inner();
            inner.is_up = false;
            inner.seal = None;
            inner.compare = None;
            inner.describe = false;
            inner.nodes.clear();
            inner.sums.clear();
            let gone = inner.gone || inner.closed;
            // After `Close` nothing has failed.
            let error = match (inner.closed, inner.gone) {
                (true, _) => None,
                (false, true) => inner.last_words.take(),
                (false, false) => lane_error,
            };
            inner.gone = gone;
            (std::mem::take(&mut inner.queue), std::mem::take(&mut inner.ended), error, gone)
        };
        self.fail(queue, error.as_ref());
        for request in ended {
            self.events.event(self.id, SourceEvent::Done { request });
        }
        self.events.event(self.id, SourceEvent::Down { error, gone });
    }

    /// Requests go down with their connection, which `why` says what happened to. They may be asked again.
    fn fail(&self, requests: impl IntoIterator<Item = Queued>, why: Option<&Error>) {
        for queued in requests {
            let request = queued.request;
            drop(queued.permit);
            let text = why.map_or_else(|| "connection lost".to_owned(), ToString::to_string);
            let error = Error::new(ErrorKind::Unreachable, text);
            self.events.event(self.id, SourceEvent::Failed { request, error });
        }
    }

    /// Runs one lane on this thread until the channel or the source ends. Requests that were running on it fail with
    /// a retryable error; the error that ended it is returned.
    pub fn run(&self, channel: Box<dyn Channel>, start: LaneStart, hook: Option<CopyHook<'_>>) -> Result<()> {
        let wake = Arc::new(Wake::new().map_err(|error| Error::io("make a wake event", error))?);
        let mut lane = {
            let _standing = self.standing();
            let mut inner = self.inner();
            if inner.closed || inner.gone {
                return Ok(());
            }
            let number = inner.lanes.iter().map(|lane| lane.number + 1).max().unwrap_or(0);
            inner.lanes.push(LaneState {
                number,
                wake: wake.clone(),
                outstanding_bytes: 0,
                running: Vec::new(),
                cancels: Vec::new(),
            });
            // A busy machine answers late in the handshake; the kernel connects all the same.
            let is_short = start.round_trip_us.is_some_and(|trip| u128::from(trip) < LONG_FROM.as_micros());
            inner.is_spread |= is_short || channel.solo().is_none();
            if inner.is_spread {
                self.turned.notify_all();
            }
            // Those that stood back may ask now, and one that was alone and is silent has an heir.
            inner.lanes.iter().for_each(|lane| lane.wake.signal());
            let size_bytes = inner.size_bytes;
            drop(inner);
            if let Some(size_bytes) = size_bytes {
                self.rise(size_bytes, None, start.round_trip_us, false);
            }
            Lane::new(self, number, wake, channel, start, size_bytes, hook)
        };
        let result = lane.frames();
        lane.count();
        self.fail(std::mem::take(&mut lane.running), result.as_ref().err());
        let number = lane.number;
        let (seal, compare) = (lane.sealing.take(), lane.comparing.take());
        let (describe, nodes) = (lane.describing, std::mem::take(&mut lane.awaited_nodes));
        let sums = std::mem::take(&mut lane.awaited_sums);
        drop(lane);
        let _standing = self.standing();
        let is_last = {
            let mut inner = self.inner();
            inner.lanes.retain(|lane| lane.number != number);
            inner.packing_lane.take_if(|packing| *packing == number);
            // What this lane had asked and nobody answered, another one asks.
            inner.seal = inner.seal.take().or(seal);
            inner.compare = inner.compare.take().or(compare);
            inner.describe |= describe;
            inner.nodes.extend(nodes);
            inner.sums.extend(sums);
            inner.lanes.iter().for_each(|lane| lane.wake.signal());
            inner.lanes.is_empty()
        };
        if is_last {
            self.fall(result.as_ref().err().map(Error::duplicate));
        }
        result
    }
}

impl std::fmt::Debug for LaneSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneSet({}, {} lanes)", self.description.label, self.lanes())
    }
}

impl Source for LaneSet {
    fn describe(&self) -> SourceDescription {
        self.description.clone()
    }

    fn object(&self) -> ObjectName {
        self.object
    }

    fn received_bytes(&self) -> Option<u64> {
        Some(self.received_bytes.load(Ordering::Relaxed))
    }

    fn has_unread(&self) -> bool {
        self.reading.load(Ordering::Acquire) > 0
    }

    fn call(&self, call: SourceCall) {
        let mut inner = self.inner();
        match call {
            // The caller hears that it is down, or has heard; the permit goes back here.
            SourceCall::Fetch { .. } | SourceCall::FetchRest { .. }
                if !inner.is_up || inner.closed || inner.gone => {}
            SourceCall::Fetch { request, groups, known_depth, recheck, permit } => {
                inner.queue.push_back(Queued { request, groups, known_depth, recheck, have: None, permit });
            }
            SourceCall::FetchRest { request, group, known_depth, have, permit } => {
                let (groups, have) = (Subtree { start: group, groups: 1 }, Some(have));
                inner.queue.push_back(Queued { request, groups, known_depth, recheck: false, have, permit });
            }
            SourceCall::Cancel { request } => {
                if let Some(at) = inner.queue.iter().position(|queued| queued.request == request) {
                    inner.queue.remove(at);
                    inner.ended.push(request);
                } else if let Some(lane) = inner.lanes.iter_mut().find(|lane| lane.running.contains(&request))
                {
                    lane.cancels.push(request);
                }
            }
            SourceCall::Seal { .. } if self.description.capabilities.grade == Grade::Proven => {}
            SourceCall::Describe => inner.describe = true,
            SourceCall::Nodes { ids } => inner.nodes.extend(ids),
            SourceCall::Sums { number, block_bytes, sum_bytes, runs } => {
                inner.sums.push(SumsAsked { number, block_bytes, sum_bytes, runs });
            }
            SourceCall::Seal { root } => inner.seal = Some(root),
            SourceCall::Compare { subtrees } => inner.compare = Some(subtrees),
            SourceCall::Close => {
                inner.closed = true;
                self.turned.notify_all();
            }
        }
        for lane in &inner.lanes {
            lane.wake.signal();
        }
    }
}
