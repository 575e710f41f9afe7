//! The lanes of a copy, at its receiver: a thread for each hands what comes to the sink.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::TREE_LANES_MAX;
use dray_core::message::{Hello, Message, Open};
use dray_core::rights::Secret;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::negotiate;

use super::super::take::Heard;
use super::super::unpacking::Unpacking;
use super::super::{SIGN_INTERVAL, TOLD_INTERVAL};
use super::{COPY, greeting_deadline, guard, lost, protocol, read_message};
use crate::transport::{Channel, push_control};

/// How long a lane that owes something may say nothing while the sender is heard over ssh.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
/// A sender that ssh brought nothing of for so long may be what a lane waits for: it says something more often than that.
const SENDER_SILENT: Duration = Duration::from_secs(1);
const _: () = assert!(SIGN_INTERVAL.as_millis() + TOLD_INTERVAL.as_millis() < SENDER_SILENT.as_millis());
/// How often a lane looks whether the copy is over.
const LOOK: Duration = Duration::from_millis(100);
/// Frames of one lane that may wait for the sink.
const LANE_FRAMES: usize = 4;

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
    unpacking: Unpacking,
}

impl Lane {
    /// One that nothing was asked for over yet; its greeting took one `round_trip`.
    pub fn new(number: u32, round_trip: Duration) -> Lane {
        Lane {
            number,
            pulled: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            waiting: Mutex::new(0),
            has_room: Condvar::new(),
            unpacking: Unpacking::new(Some(round_trip)),
        }
    }

    /// What pulls call it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether data comes packed over it.
    pub fn unpacking(&self) -> &Unpacking {
        &self.unpacking
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
pub(in crate::tree) struct Credit(Arc<Lane>);

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
pub(in crate::tree) type Arrived = (Heard, Option<Credit>);

/// Frames of lanes that may wait for the sink, all together.
pub(in crate::tree) const LANES_FRAMES: usize = 2 * TREE_LANES_MAX * (LANE_FRAMES + 1);

/// Tells a lane that is silent because its path is dead from one whose sender is: stopped, or at a disk that does not answer. That is silent
/// over ssh, too, and then nobody is to blame.
#[derive(Debug)]
struct Silence {
    looked_at: Instant,
    /// For so long the lane was silent and the sender was not.
    alone: Duration,
}

impl Silence {
    fn new(now: Instant) -> Silence {
        Silence { looked_at: now, alone: Duration::ZERO }
    }

    /// Something came, or nothing is owed.
    fn heard(&mut self, now: Instant) {
        *self = Silence::new(now);
    }

    /// Looked at again, every [`LOOK`] or so, when ssh last brought something at `heard_at`: true if the lane is lost.
    fn advance(&mut self, now: Instant, heard_at: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked_at);
        self.looked_at = now;
        if now.saturating_duration_since(heard_at) < SENDER_SILENT {
            // Who was stopped itself saw nothing of the time that passed.
            self.alone += passed.min(SENDER_SILENT);
        }
        self.alone >= LANE_PATIENCE
    }
}

/// The lanes of a copy, at its receiver.
#[derive(Debug, Default)]
pub struct TakeLanes {
    /// When ssh last brought something; `None` before it did.
    heard_at: Mutex<Option<Instant>>,
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

    /// The sender was heard over ssh.
    pub(in crate::tree) fn note_heard(&self) {
        *guard(&self.heard_at) = Some(Instant::now());
    }

    pub(in crate::tree) fn attach(&self, sink: SyncSender<Arrived>) {
        *guard(&self.sink) = Some(sink);
    }

    /// Runs one connection to the sender until it, or the copy, ends: shows it the `secret`, calls `came_up` once the sender has greeted, and
    /// hands what comes to the sink.
    pub fn run(
        &self,
        channel: Box<dyn Channel>,
        hello: &Hello,
        receiver: NodeId,
        secret: &Secret,
        lanes_max: usize,
        came_up: &dyn Fn(),
    ) -> Result<()> {
        if self.count.fetch_add(1, Ordering::AcqRel) >= lanes_max.min(TREE_LANES_MAX) || self.is_closed() {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return Ok(());
        }
        let result = self.run_lane(channel, hello, receiver, secret, came_up);
        self.count.fetch_sub(1, Ordering::AcqRel);
        result
    }

    fn run_lane(
        &self,
        mut channel: Box<dyn Channel>,
        hello: &Hello,
        receiver: NodeId,
        secret: &Secret,
        came_up: &dyn Fn(),
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
        let (greeted_at, deadline) = (Instant::now(), greeting_deadline());
        let Message::Hello(theirs) = read_message(&mut *channel, deadline)? else {
            return Err(protocol("the sender did not say hello first"));
        };
        let round_trip = greeted_at.elapsed();
        negotiate(hello, &theirs)?;
        match read_message(&mut *channel, deadline)? {
            Message::Opened(opened) if opened.handle == number => {}
            Message::Fault(fault) => return Err(fault.to_error("")),
            _ => return Err(protocol("the sender answered something else than was asked")),
        }
        came_up();
        let lane = Arc::new(Lane::new(number, round_trip));
        if !self.hand_over((Heard::Up(lane.clone()), None)) {
            return Ok(());
        }
        let mut taker =
            LaneTaker { lanes: self, lane, channel, silence: Silence::new(Instant::now()), pulled: 0 };
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
    silence: Silence,
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
            let (head, begun) = (FrameHead::decode(head)?, Instant::now());
            let mut body = vec![0; head.body_bytes];
            if !self.fill(&mut body)? {
                return Ok(());
            }
            self.lane.unpacking.came(head, begun);
            let path = Some(self.lane.number);
            let heard = match head.kind {
                FrameKind::Control if head.request == 0 => match Message::from_bytes(&body)? {
                    Message::Progress(_) => continue,
                    _ => return Err(protocol("sender sent a message out of place")),
                },
                FrameKind::Data => Heard::Data(path, head.request, body),
                FrameKind::Packed => Heard::Data(path, head.request, self.lane.unpacking.unpack(&body)?),
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
            self.silence.heard(Instant::now());
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
                    self.silence.heard(Instant::now());
                }
                None => {
                    if self.lanes.is_closed() {
                        return Ok(false);
                    }
                    let (pulled, now) = (self.lane.pulled.load(Ordering::Acquire), Instant::now());
                    if pulled != self.pulled || self.lane.ended.load(Ordering::Acquire) >= pulled {
                        // Its time begins when it is asked.
                        self.pulled = pulled;
                        self.silence.heard(now);
                    }
                    if self.silence.advance(now, guard(&self.lanes.heard_at).unwrap_or(now)) {
                        return Err(Error::new(ErrorKind::TimedOut, "a direct connection went silent"));
                    }
                    self.channel.wait(None, LOOK).map_err(lost)?;
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use dray_core::message::{Opened, PROTOCOL_VERSION};

    use super::*;
    use crate::tree::progress;
    use crate::tree::script::Script;

    /// A connection of a sender that has greeted, says `frames` and hangs up: what the sink hears, and how it ended.
    fn taken(frames: &[u8]) -> (Vec<Heard>, Error) {
        let hello =
            Hello { version: PROTOCOL_VERSION, features: vec![], required: vec![], agent: "test/0".into() };
        let mut said = Vec::new();
        push_control(&mut said, &Message::Hello(hello.clone()));
        push_control(&mut said, &Message::Opened(Opened { handle: 1, size_bytes: 0, name: None }));
        said.extend_from_slice(frames);
        let lanes = TakeLanes::new();
        let (sink, heard) = mpsc::sync_channel(16);
        lanes.attach(sink);
        let channel = Box::new(Script::new([(0, said)]));
        let receiver = NodeId::from_bytes([3; 32]);
        let ended =
            lanes.run(channel, &hello, receiver, &Secret::from_bytes([4; 16]), 1, &|| {}).unwrap_err();
        assert_eq!(lanes.count(), 0);
        lanes.close();
        (heard.into_iter().map(|(heard, _)| heard).collect(), ended)
    }

    fn frame(kind: FrameKind, request: u32, body: &[u8]) -> Vec<u8> {
        [&FrameHead::new(kind, body.len(), request).encode()[..], body].concat()
    }

    /// Protocol "Tree copies": over a lane come contents, each for its request; a sender that says that it works is heard, and no more.
    #[test]
    fn contents_come_over_a_lane() {
        let mut works = Vec::new();
        push_control(&mut works, &progress());
        let [data, end] = [frame(FrameKind::Data, 7, b"content"), frame(FrameKind::End, 7, b"")];
        let (heard, ended) = taken(&[&works[..], &data, &works, &end, &works].concat());
        assert!(
            matches!(
                &heard[..],
                [Heard::Up(_), Heard::Data(Some(1), 7, body), Heard::End(Some(1), 7), Heard::Down(_)]
                    if body == b"content"
            ),
            "{heard:?}"
        );
        assert_eq!(ended.kind(), ErrorKind::Unreachable);
    }

    /// Everything else that comes over a lane ends it, packed data that was not permitted as well, and the sink hears that it is gone.
    #[test]
    fn nothing_else_comes_over_a_lane() {
        let mut another = Vec::new();
        push_control(&mut another, &Message::Opened(Opened { handle: 1, size_bytes: 0, name: None }));
        let numbered = frame(FrameKind::Control, 1, &progress().to_bytes());
        let packed = frame(FrameKind::Packed, 1, &[0, 0, 0, 9, 1, 2, 3]);
        for bad in [another, numbered, packed, frame(FrameKind::Zeros, 1, &[0; 8])] {
            let (heard, ended) = taken(&bad);
            assert!(matches!(&heard[..], [Heard::Up(_), Heard::Down(_)]), "{heard:?}");
            assert_eq!(ended.kind(), ErrorKind::Protocol);
        }
    }

    /// Issue 4 "a lane is silent because the path is dead, or because the sender is": only the first counts against it, however the two
    /// alternate, and time in which we did not run ourselves counts little.
    #[test]
    fn a_lane_is_lost_only_while_ssh_is_heard() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut silence = Silence::new(begun);
        // The sender is stopped for a minute: at most the first second counts.
        assert!((1..600).all(|tick| !silence.advance(at(tick * 100), begun)));
        assert!(silence.alone <= SENDER_SILENT, "{:?}", silence.alone);
        // It goes on, and the lane does not.
        let lost = (600..).find(|tick| silence.advance(at(tick * 100), at(tick * 100))).unwrap();
        assert!((640..=651).contains(&lost), "after {lost} ticks");
        // Whatever comes gives it all of its time back.
        silence.heard(at(lost * 100));
        let again = (lost + 1..).find(|tick| silence.advance(at(tick * 100), at(tick * 100))).unwrap();
        assert_eq!(again - lost, 50);
        // An hour without being run.
        silence.heard(begun);
        assert!(!silence.advance(at(3_600_000), at(3_600_000)));
    }
}
