//! Direct connections beside the channel of a tree copy: contents travel over them, everything else stays on the channel.
//!
//! A lane is one connection. On the sending side [`SendLanes`] has a thread for each that answers what was asked for over it; on
//! the receiving side [`TakeLanes`] has one that hands what comes to the sink. One that says nothing while it owes something is given
//! up by the receiver, which asks for what it owed over another path.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::{HELLO_TIMEOUT_MS, TREE_LANES_MAX, TREE_RECORD_BYTES_MAX};
use dray_core::message::{Fault, Hello, Message, ObjectName, Open, Opened, Progress};
use dray_core::rights::Secret;
use dray_core::tree::{RECORD_HEAD_BYTES, Record};
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Owed, TreeLanes, TreeSent, negotiate};

use super::TOLD_INTERVAL;
use super::frames::Frames;
use super::send::{RecordSink, SendError, TreeFile};
use super::take::Heard;
use crate::transport::{Channel, Wake, push_control, read_exact};

/// What lanes prove the secret over: not an object, but the copy that ssh began.
const COPY: ObjectName = ObjectName::Provisional([0; 32]);
/// How long a lane that owes something may say nothing.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
/// How often a lane looks whether the copy is over.
const LOOK: Duration = Duration::from_millis(100);
/// Frames of one lane that may wait for the sink.
const LANE_FRAMES: usize = 4;
/// Lanes of one copy that a sender remembers, those that ended included.
const LANES_EVER_MAX: usize = 4096;

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn protocol(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}

/// Reads one control frame.
fn read_message(channel: &mut dyn Channel, deadline: Instant) -> Result<Message> {
    let mut head = [0; FRAME_HEAD_BYTES];
    read_exact(channel, &mut head, deadline)?;
    let head = FrameHead::decode(head)?;
    if head.kind != FrameKind::Control || head.request != 0 {
        return Err(protocol("the other side sent data before it was asked"));
    }
    let mut body = vec![0; head.body_bytes];
    read_exact(channel, &mut body, deadline)?;
    Message::from_bytes(&body)
}

fn greeting_deadline() -> Instant {
    Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS)
}

// The sending side.

/// The lanes of a copy, at its sender. What ssh carries is [`super::send`]'s.
pub struct SendLanes {
    inner: Mutex<Sending>,
    /// A job came, or a lane is to end.
    changed: Condvar,
    wake: Wake,
}

#[derive(Default)]
struct Sending {
    lanes: BTreeMap<u32, Jobs>,
    /// What left over lanes that have ended.
    sent: TreeSent,
    has_lost: bool,
    is_closed: bool,
    say: Vec<Message>,
}

/// What one lane is to answer.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(Owed, Arc<dyn TreeFile>)>,
    is_answering: bool,
    /// Nobody waits for it, or it broke.
    is_over: bool,
    sent: TreeSent,
}

impl SendLanes {
    /// For one copy.
    pub fn new() -> Result<Arc<SendLanes>> {
        let wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
        Ok(Arc::new(SendLanes { inner: Mutex::default(), changed: Condvar::new(), wake }))
    }

    /// Tells the receiver something over the channel of the copy.
    pub fn say(&self, message: Message) {
        guard(&self.inner).say.push(message);
        self.wake.signal();
    }

    pub(super) fn said(&self) -> Vec<Message> {
        std::mem::take(&mut guard(&self.inner).say)
    }

    /// Signalled when there is something to say.
    pub(super) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Lanes that serve.
    pub fn count(&self) -> usize {
        guard(&self.inner).lanes.values().filter(|jobs| !jobs.is_over).count()
    }

    /// Gives `lane` something to answer. `Protocol` if there never was such a lane; one that broke answers nothing.
    pub(super) fn push(
        &self,
        lane: u32,
        contents: impl Iterator<Item = (Owed, Arc<dyn TreeFile>)>,
    ) -> Result<()> {
        let mut inner = guard(&self.inner);
        let jobs = inner
            .lanes
            .get_mut(&lane)
            .ok_or_else(|| protocol("receiver asked over a connection that there is not"))?;
        // What a broken one owes stays owed until the receiver says that it waits no more.
        jobs.waiting.extend(contents);
        self.changed.notify_all();
        Ok(())
    }

    /// The receiver expects nothing of `lane` any more.
    pub(super) fn lose(&self, lane: u32) {
        let mut inner = guard(&self.inner);
        inner.has_lost = true;
        if let Some(jobs) = inner.lanes.get_mut(&lane) {
            jobs.waiting.clear();
            jobs.is_answering = false;
            jobs.is_over = true;
        }
        self.changed.notify_all();
    }

    /// What left and what is owed over all of them.
    pub(super) fn account(&self) -> TreeLanes {
        let inner = guard(&self.inner);
        let mut account = TreeLanes { sent: inner.sent, owed: 0, has_lost: inner.has_lost };
        for jobs in inner.lanes.values() {
            account.sent.add(&jobs.sent);
            account.owed += jobs.waiting.len() as u64 + u64::from(jobs.is_answering);
        }
        account
    }

    /// The copy is over.
    pub fn close(&self) {
        let mut inner = guard(&self.inner);
        inner.is_closed = true;
        inner.lanes.values_mut().for_each(|jobs| jobs.waiting.clear());
        self.changed.notify_all();
    }

    /// True once the copy is over.
    pub fn is_closed(&self) -> bool {
        guard(&self.inner).is_closed
    }

    /// Serves one connection until it, or the copy, ends. The receiver on it is `expected`, and knows `secret`.
    pub fn serve(
        &self,
        mut channel: Box<dyn Channel>,
        hello: &Hello,
        holder: NodeId,
        secret: &Secret,
        expected: &dyn Fn(NodeId) -> bool,
    ) -> Result<()> {
        let deadline = greeting_deadline();
        let Message::Hello(theirs) = read_message(&mut *channel, deadline)? else {
            return Err(protocol("the receiver did not say hello first"));
        };
        negotiate(hello, &theirs)?;
        let Message::Open(Open { handle, object: COPY, proof: Some(shown), .. }) =
            read_message(&mut *channel, deadline)?
        else {
            return Err(protocol("the receiver asked for something else than this copy"));
        };
        let refused = || Error::new(ErrorKind::Refused, "not the other end of this copy");
        let security = channel.security().ok_or_else(refused)?;
        if !security.expected_proof(secret, holder, &COPY).matches(&shown) || !expected(security.peer) {
            return Err(refused());
        }
        channel.keep_place();
        self.begin(handle)?;
        let mut greeting = Vec::new();
        push_control(&mut greeting, &Message::Hello(hello.clone()));
        let opened = Opened { handle, size_bytes: 0, name: None };
        push_control(&mut greeting, &Message::Opened(opened));
        let mut lane = SendLane {
            lanes: self,
            number: handle,
            channel,
            frames: Frames::default(),
            is_part: false,
            said_at: Instant::now(),
        };
        let result = lane.channel.write_all(&greeting).map_err(lost).and_then(|()| lane.answer_all());
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&handle) {
            jobs.is_over = true;
        }
        result
    }

    fn begin(&self, lane: u32) -> Result<()> {
        let mut inner = guard(&self.inner);
        let serving = inner.lanes.values().filter(|jobs| !jobs.is_over).count();
        if inner.is_closed || serving >= 2 * TREE_LANES_MAX || inner.lanes.len() >= LANES_EVER_MAX {
            return Err(Error::new(ErrorKind::Refused, "no more connections are wanted"));
        }
        if inner.lanes.contains_key(&lane) {
            return Err(protocol("the receiver gave two connections one number"));
        }
        inner.lanes.insert(lane, Jobs::default());
        Ok(())
    }

    /// The next content for `lane`, waited for; `None` once it is to end.
    fn next(&self, lane: u32) -> Option<(Owed, Arc<dyn TreeFile>)> {
        let mut inner = guard(&self.inner);
        loop {
            let is_closed = inner.is_closed;
            let jobs = inner.lanes.get_mut(&lane).filter(|jobs| !jobs.is_over && !is_closed)?;
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.is_answering = true;
                return Some(job);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count_sent(&self, lane: u32, count: impl FnOnce(&mut TreeSent)) {
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&lane) {
            count(&mut jobs.sent);
        }
    }

    /// True if nobody waits for what `lane` sends.
    fn is_over(&self, lane: u32) -> bool {
        let inner = guard(&self.inner);
        inner.is_closed || inner.lanes.get(&lane).is_none_or(|jobs| jobs.is_over)
    }
}

impl std::fmt::Debug for SendLanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendLanes({})", self.count())
    }
}

/// One connection that answers.
struct SendLane<'a> {
    lanes: &'a SendLanes,
    number: u32,
    channel: Box<dyn Channel>,
    frames: Frames,
    /// What leaves is a part of a file.
    is_part: bool,
    said_at: Instant,
}

impl SendLane<'_> {
    fn answer_all(&mut self) -> Result<()> {
        while let Some((owed, file)) = self.lanes.next(self.number) {
            self.frames.request = owed.request;
            self.is_part = owed.part.is_some();
            match file.send(owed.known, owed.part, self) {
                Ok(()) => {}
                Err(SendError::Channel(error)) => return Err(error),
                Err(SendError::File(error)) => {
                    match self.record(&Record::Failed(Fault::from_error(None, &error))) {
                        Ok(()) => {}
                        Err(SendError::Channel(error) | SendError::File(error)) => return Err(error),
                    }
                }
            }
            if owed.is_last {
                self.frames.end_request();
            }
            let is_idle = {
                let mut inner = guard(&self.lanes.inner);
                inner.lanes.get_mut(&self.number).is_none_or(|jobs| {
                    // Before it leaves: the receiver may answer sooner than this thread goes on.
                    jobs.is_answering = false;
                    jobs.waiting.is_empty()
                })
            };
            if is_idle || owed.is_last {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.frames.end();
        if self.lanes.is_over(self.number) {
            return Err(Error::new(ErrorKind::Interrupted, "nobody waits for it"));
        }
        self.channel.write_all(&self.frames.out).map_err(lost)?;
        self.frames.clear();
        self.said_at = Instant::now();
        Ok(())
    }

    fn make_room(&mut self, len: usize) -> Result<(), SendError> {
        if self.frames.is_full_for(len) {
            self.flush().map_err(SendError::Channel)?;
        }
        Ok(())
    }
}

impl RecordSink for SendLane<'_> {
    fn bytes(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize, SendError> {
        let max = max.min(TREE_RECORD_BYTES_MAX);
        self.make_room(RECORD_HEAD_BYTES + max)?;
        let count = self.frames.bytes(max, read).map_err(SendError::File)?;
        self.lanes.count_sent(self.number, |sent| sent.bytes(count));
        Ok(count)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        let mut bytes = Vec::with_capacity(64);
        record.push(&mut bytes);
        self.make_room(bytes.len())?;
        self.frames.record(&bytes);
        let is_part = self.is_part;
        self.lanes.count_sent(self.number, |sent| sent.record(record, is_part));
        Ok(())
    }

    fn work(&mut self) -> Result<(), SendError> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            let progress = Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 };
            self.frames.control(&Message::Progress(progress));
            self.flush().map_err(SendError::Channel)?;
        }
        Ok(())
    }
}

// The receiving side.

/// One lane, as the sink sees it.
#[derive(Debug)]
pub struct Lane {
    number: u32,
    /// Pulls asked so far, and of them answered.
    pulled: AtomicUsize,
    ended: AtomicUsize,
    /// Frames that wait for the sink.
    waiting: Mutex<usize>,
    has_room: Condvar,
}

impl Lane {
    /// What pulls call it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// It is asked for something: from now on it may not be silent for long.
    pub fn note_pull(&self) {
        self.pulled.fetch_add(1, Ordering::AcqRel);
    }

    /// An answer has ended.
    pub fn note_end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}

/// A frame on its way to the sink; the lane that it came over may have few of them.
#[derive(Debug)]
pub(super) struct Credit(Arc<Lane>);

impl Credit {
    fn take(lane: &Arc<Lane>) -> Credit {
        let full = |waiting: &mut usize| *waiting >= LANE_FRAMES;
        let waiting = lane.has_room.wait_while(guard(&lane.waiting), full);
        *waiting.unwrap_or_else(PoisonError::into_inner) += 1;
        Credit(lane.clone())
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        *guard(&self.0.waiting) -= 1;
        self.0.has_room.notify_one();
    }
}

/// What comes for the sink, with the right to have it wait.
pub(super) type Arrived = (Heard, Option<Credit>);

/// Frames of lanes that may wait for the sink, all together.
pub(super) const LANES_FRAMES: usize = 2 * TREE_LANES_MAX * (LANE_FRAMES + 1);

/// The lanes of a copy, at its receiver.
#[derive(Debug, Default)]
pub struct TakeLanes {
    /// Who takes what comes; `None` before and after the copy.
    sink: Mutex<Option<SyncSender<Arrived>>>,
    numbers: AtomicU32,
    count: AtomicUsize,
    is_closed: AtomicBool,
}

impl TakeLanes {
    /// For one copy.
    pub fn new() -> Arc<TakeLanes> {
        Arc::default()
    }

    /// Lanes that are up, or coming up.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// True once the copy is over.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The copy is over.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        *guard(&self.sink) = None;
    }

    pub(super) fn attach(&self, sink: SyncSender<Arrived>) {
        *guard(&self.sink) = Some(sink);
    }

    /// Runs one connection to the sender until it, or the copy, ends: shows it the `secret`, and hands what comes to the sink.
    pub fn run(
        &self,
        channel: Box<dyn Channel>,
        hello: &Hello,
        receiver: NodeId,
        secret: &Secret,
        lanes_max: usize,
    ) -> Result<()> {
        if self.count.fetch_add(1, Ordering::AcqRel) >= lanes_max.min(TREE_LANES_MAX) || self.is_closed() {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return Ok(());
        }
        let result = self.run_lane(channel, hello, receiver, secret);
        self.count.fetch_sub(1, Ordering::AcqRel);
        result
    }

    fn run_lane(
        &self,
        mut channel: Box<dyn Channel>,
        hello: &Hello,
        receiver: NodeId,
        secret: &Secret,
    ) -> Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let security = channel
            .security()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a lane over a channel that proves nothing"))?;
        let proof = security.prove(secret, receiver, &COPY).as_bytes().to_vec().into();
        let mut greeting = Vec::new();
        push_control(&mut greeting, &Message::Hello(hello.clone()));
        let open = Open { handle: number, object: COPY, proof: Some(proof) };
        push_control(&mut greeting, &Message::Open(open));
        channel.write_all(&greeting).map_err(lost)?;
        let deadline = greeting_deadline();
        let Message::Hello(theirs) = read_message(&mut *channel, deadline)? else {
            return Err(protocol("the sender did not say hello first"));
        };
        negotiate(hello, &theirs)?;
        match read_message(&mut *channel, deadline)? {
            Message::Opened(opened) if opened.handle == number => {}
            Message::Fault(fault) => return Err(fault.to_error("")),
            _ => return Err(protocol("the sender answered something else than was asked")),
        }
        let lane = Arc::new(Lane {
            number,
            pulled: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            waiting: Mutex::new(0),
            has_room: Condvar::new(),
        });
        if !self.hand_over((Heard::Up(lane.clone()), None)) {
            return Ok(());
        }
        let mut taker = LaneTaker { lanes: self, lane, channel, heard_at: Instant::now(), pulled: 0 };
        let result = taker.frames();
        self.hand_over((Heard::Down(taker.lane.clone()), None));
        result
    }

    /// False if nobody takes it any more.
    fn hand_over(&self, arrived: Arrived) -> bool {
        // Not under the lock: it may wait for room.
        let sink = guard(&self.sink).clone();
        sink.is_some_and(|sink| sink.send(arrived).is_ok())
    }
}

/// One connection over which contents come.
struct LaneTaker<'a> {
    lanes: &'a TakeLanes,
    lane: Arc<Lane>,
    channel: Box<dyn Channel>,
    heard_at: Instant,
    /// Pulls it knew of when it last looked.
    pulled: usize,
}

impl LaneTaker<'_> {
    fn frames(&mut self) -> Result<()> {
        // What never stops coming ends with the copy, too.
        while !self.lanes.is_closed() {
            let mut head = [0; FRAME_HEAD_BYTES];
            if !self.fill(&mut head)? {
                return Ok(());
            }
            let head = FrameHead::decode(head)?;
            let mut body = vec![0; head.body_bytes];
            if !self.fill(&mut body)? {
                return Ok(());
            }
            let path = Some(self.lane.number);
            let heard = match head.kind {
                FrameKind::Control if head.request == 0 => match Message::from_bytes(&body)? {
                    Message::Progress(_) => continue,
                    _ => return Err(protocol("sender sent a message out of place")),
                },
                FrameKind::Data => Heard::Data(path, head.request, body),
                FrameKind::End => {
                    self.lane.note_end();
                    Heard::End(path, head.request)
                }
                _ => return Err(protocol("sender sent a frame out of place")),
            };
            let credit = Credit::take(&self.lane);
            if !self.lanes.hand_over((heard, Some(credit))) {
                return Ok(());
            }
            // What came meanwhile waits in the channel.
            self.heard_at = Instant::now();
        }
        Ok(())
    }

    /// Reads as many bytes; false if the copy is over.
    fn fill(&mut self, out: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < out.len() {
            match self.channel.try_read(&mut out[filled..]).map_err(lost)? {
                Some(0) => {
                    return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
                }
                Some(count) => {
                    filled += count;
                    self.heard_at = Instant::now();
                }
                None => {
                    if self.lanes.is_closed() {
                        return Ok(false);
                    }
                    let pulled = self.lane.pulled.load(Ordering::Acquire);
                    if pulled != self.pulled {
                        // Its time begins when it is asked.
                        self.pulled = pulled;
                        self.heard_at = Instant::now();
                    }
                    if self.lane.ended.load(Ordering::Acquire) < pulled
                        && self.heard_at.elapsed() > LANE_PATIENCE
                    {
                        return Err(Error::new(ErrorKind::TimedOut, "a direct connection went silent"));
                    }
                    self.channel.wait(None, LOOK).map_err(lost)?;
                }
            }
        }
        Ok(true)
    }
}
