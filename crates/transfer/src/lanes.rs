//! The receiving end of a source: one or more connections (lanes) to the same holder, fed from one queue.
//!
//! Each lane is one blocking thread: it sends requests, reads answers straight into the buffer of a group and hands
//! every whole group to the event sink from that same thread. A lane takes work while it has no more than its share
//! outstanding, so a slow connection never holds back a fast one by more than that.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{CONTROL_FRAME_BYTES_MAX, GROUP_BYTES};
use dray_core::message::{Cancel, Compare, ComparedSubtree, Fault, Fetch, Message, ObjectName, Open, Seal};
use dray_core::permit::Permit;
use dray_core::rights::{Proof, ProofContext, Secret};
use dray_core::source::{
    DataPiece, Flow, RequestId, Source, SourceCall, SourceDescription, SourceEvent, SourceEvents, SourceId,
};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result, cbor};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use crate::transport::{Channel, Wake, push_control};

/// Handle of the only object of a lane.
const HANDLE: u32 = 1;
/// A lane looks at its state at least this often even if nothing happens.
const IDLE: Duration = Duration::from_secs(1);

/// A source made of lanes.
pub struct LaneSet {
    id: SourceId,
    object: ObjectName,
    description: SourceDescription,
    events: Arc<dyn SourceEvents>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    size_bytes: Option<u64>,
    queue: VecDeque<Queued>,
    /// Requests that ended before any lane took them; a lane reports them.
    ended: Vec<RequestId>,
    lanes: Vec<LaneState>,
    seal: Option<Oid>,
    compare: Option<Vec<Subtree>>,
    /// Messages of the copy protocol to send.
    say: Vec<Message>,
    closed: bool,
    gone: bool,
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
    permit: Permit,
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
        Arc::new(LaneSet {
            id,
            object,
            description,
            events,
            inner: Mutex::new(Inner { size_bytes, ..Inner::default() }),
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

    /// Sends a message of the copy protocol over whichever lane looks first; before the source's end at the latest.
    pub fn say(&self, message: Message) {
        let mut inner = self.inner();
        inner.say.push(message);
        for lane in &inner.lanes {
            lane.wake.signal();
        }
    }

    /// Reports that the source will not come up again, once.
    pub fn give_up(&self, error: Option<Error>) {
        let first = !std::mem::replace(&mut self.inner().gone, true);
        if first {
            self.report_unqueued();
            self.events.event(self.id, SourceEvent::Down { error, gone: true });
        }
    }

    /// Requests still in the queue fail with the source.
    fn report_unqueued(&self) {
        let (queue, ended) = {
            let mut inner = self.inner();
            (std::mem::take(&mut inner.queue), std::mem::take(&mut inner.ended))
        };
        for queued in queue {
            let request = queued.request;
            drop(queued.permit);
            let error = Error::new(ErrorKind::Unreachable, format!("{} is gone", self.description.label));
            self.events.event(self.id, SourceEvent::Failed { request, error });
        }
        for request in ended {
            self.events.event(self.id, SourceEvent::Done { request });
        }
    }

    /// Runs one lane on this thread until the channel or the source ends. Requests that were running on it fail with
    /// a retryable error; the error that ended it is returned.
    pub fn run(&self, channel: Box<dyn Channel>, start: LaneStart, hook: Option<CopyHook<'_>>) -> Result<()> {
        let wake = Arc::new(Wake::new().map_err(|error| Error::io("make a wake event", error))?);
        let number = {
            let mut inner = self.inner();
            let number = inner.lanes.iter().map(|lane| lane.number + 1).max().unwrap_or(0);
            inner.lanes.push(LaneState {
                number,
                wake: wake.clone(),
                outstanding_bytes: 0,
                running: Vec::new(),
                cancels: Vec::new(),
            });
            number
        };
        let mut lane = Lane {
            set: self,
            number,
            channel,
            receiver: start.receiver,
            hook,
            wake,
            out: start.preface,
            running: VecDeque::new(),
            group: vec![0; GROUP_BYTES as usize],
            data: Vec::new(),
        };
        let result = lane.start(start.secret, start.node, start.round_trip_us).and_then(|()| lane.frames());
        let running = std::mem::take(&mut lane.running);
        drop(lane);
        let last = {
            let mut inner = self.inner();
            inner.lanes.retain(|lane| lane.number != number);
            inner.lanes.is_empty() && !inner.gone
        };
        for queued in running {
            let request = queued.request;
            drop(queued.permit);
            let error =
                Error::new(ErrorKind::Unreachable, format!("{}: connection lost", self.description.label));
            self.events.event(self.id, SourceEvent::Failed { request, error });
        }
        if last {
            let shown = result.as_ref().err().map(|error| {
                Error::new(error.kind(), format!("{}: {error}", self.description.label))
                    .with_retryable(error.is_retryable())
            });
            self.events.event(self.id, SourceEvent::Down { error: shown, gone: false });
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

    fn call(&self, call: SourceCall) {
        let mut inner = self.inner();
        match call {
            SourceCall::Fetch { request, groups, known_depth, recheck, permit } => {
                inner.queue.push_back(Queued { request, groups, known_depth, recheck, permit });
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
            SourceCall::Seal { root } => inner.seal = Some(root),
            SourceCall::Compare { subtrees } => inner.compare = Some(subtrees),
            SourceCall::Close => inner.closed = true,
        }
        for lane in &inner.lanes {
            lane.wake.signal();
        }
    }
}

struct Lane<'a> {
    set: &'a LaneSet,
    number: u64,
    channel: Box<dyn Channel>,
    receiver: Receiver,
    hook: Option<CopyHook<'a>>,
    wake: Arc<Wake>,
    /// Frames to send; written in one piece.
    out: Vec<u8>,
    /// Requests sent and not ended, oldest first.
    running: VecDeque<Queued>,
    group: Vec<u8>,
    data: Vec<DataPiece>,
}

/// What reading came to.
enum Got {
    Bytes,
    /// The stream ended at a frame's boundary.
    End,
    /// The source was closed.
    Closed,
}

impl Lane<'_> {
    /// Hello, open and the first requests leave in one flight.
    fn start(&mut self, secret: Option<Secret>, node: NodeId, round_trip_us: Option<u64>) -> Result<()> {
        if self.receiver.agreed().is_none() {
            push_control(&mut self.out, &self.receiver.hello());
        }
        let proof = match (secret, self.channel.security()) {
            (Some(secret), Some(security)) => {
                let context =
                    ProofContext { exporter: security.exporter, holder: security.peer, receiver: node };
                Some(Proof::new(&secret, &context, &self.set.object, 0..u64::MAX).as_bytes().to_vec().into())
            }
            _ => None,
        };
        push_control(&mut self.out, &Message::Open(Open { handle: HANDLE, object: self.set.object, proof }));
        let size_bytes = self.set.inner().size_bytes;
        if let Some(size_bytes) = size_bytes {
            self.receiver.set_geometry(Geometry::new(size_bytes));
            self.emit(SourceEvent::Up { size_bytes, name: None, round_trip_us });
        }
        Ok(())
    }

    fn emit(&self, event: SourceEvent<'_>) -> Flow {
        self.set.events.event(self.set.id, event)
    }

    fn frames(&mut self) -> Result<()> {
        loop {
            let mut head = [0; FRAME_HEAD_BYTES];
            match self.read(&mut head, true)? {
                Got::Bytes => {}
                Got::End if self.running.is_empty() && self.set.is_closed() => return Ok(()),
                Got::End => return Err(Error::new(ErrorKind::Unreachable, "peer closed the connection")),
                Got::Closed => return Ok(()),
            }
            let head = FrameHead::decode(head)?;
            match self.receiver.handle_head(head)? {
                Body::Control => {
                    let body = self.body(head.body_bytes)?;
                    self.control(&body)?;
                }
                Body::Parents => {
                    let pairs = self.body(head.body_bytes)?;
                    let request = self.oldest()?;
                    if self.emit(SourceEvent::Parents { request, pairs: &pairs }) == Flow::Cancel {
                        self.cancel(request);
                    }
                }
                Body::Data => self.take_pieces(head.body_bytes as u64, false)?,
                Body::Hole => {
                    let mut run = [0; 8];
                    self.read(&mut run, false)?;
                    let run = u64::from_be_bytes(run);
                    self.receiver.handle_hole(run)?;
                    self.take_pieces(run, true)?;
                }
                Body::End { .. } => {
                    let request = self.end()?;
                    self.emit(SourceEvent::Done { request });
                }
                Body::Fault => {
                    let body = self.body(head.body_bytes)?;
                    let fault: Fault = cbor::decode(&body, "fault")?;
                    let error = fault.to_error(&self.set.description.label);
                    let request = self.end()?;
                    self.emit(SourceEvent::Failed { request, error });
                }
            }
        }
    }

    fn take_pieces(&mut self, mut left: u64, is_hole: bool) -> Result<()> {
        let request = self.oldest()?;
        while left > 0 {
            let Some(piece) = self.receiver.piece(left) else {
                return Err(Error::new(ErrorKind::Protocol, "holder sent more than was owed"));
            };
            let range = piece.offset..piece.offset + piece.len;
            if is_hole {
                self.group[range].fill(0);
            } else {
                let mut group = std::mem::take(&mut self.group);
                let got = self.read(&mut group[range], false);
                self.group = group;
                if let Got::Closed = got? {
                    return Err(Error::new(ErrorKind::Interrupted, "source was closed"));
                }
                // Lengths are within a group, below 2^32.
                let (start, end) = (piece.offset as u32, (piece.offset + piece.len) as u32);
                match self.data.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => self.data.push(start..end),
                }
            }
            left -= piece.len as u64;
            if piece.completes_group {
                let len = piece.offset + piece.len;
                let flow = self.set.events.event(
                    self.set.id,
                    SourceEvent::Group {
                        request,
                        group: piece.group,
                        bytes: &self.group[..len],
                        data: &self.data,
                    },
                );
                self.data.clear();
                if flow == Flow::Cancel {
                    self.cancel(request);
                }
            }
        }
        Ok(())
    }

    fn control(&mut self, body: &[u8]) -> Result<()> {
        match self.receiver.handle_control(body)? {
            ReceiverInput::Agreed(_) => Ok(()),
            ReceiverInput::Opened(opened) => {
                let name = opened.name.as_deref().map(|name| &name[..]);
                let first = self.set.inner().size_bytes.replace(opened.size_bytes).is_none();
                if first || name.is_some() {
                    self.emit(SourceEvent::Up { size_bytes: opened.size_bytes, name, round_trip_us: None });
                }
                Ok(())
            }
            ReceiverInput::Sealed(root) => {
                self.emit(SourceEvent::Sealed { root });
                Ok(())
            }
            ReceiverInput::Compared(pairs) => {
                self.emit(SourceEvent::Compared { pairs: &pairs });
                Ok(())
            }
            ReceiverInput::Fault(fault) => Err(fault.to_error(&self.set.description.label)),
            ReceiverInput::ClearGrant(_) => {
                Err(Error::new(ErrorKind::Protocol, "peer granted what was not asked"))
            }
            ReceiverInput::Copy(message) => match self.hook {
                Some(hook) => hook(message),
                None => Err(Error::new(ErrorKind::Protocol, "copy message outside a copy")),
            },
        }
    }

    fn oldest(&self) -> Result<RequestId> {
        let oldest = self.receiver.oldest().map(RequestId);
        oldest.ok_or_else(|| Error::new(ErrorKind::Protocol, "answer to no request"))
    }

    /// The oldest request has ended: its permit goes back.
    fn end(&mut self) -> Result<RequestId> {
        let queued = self
            .running
            .pop_front()
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "answer to no request"))?;
        self.data.clear();
        let mut inner = self.set.inner();
        if let Some(lane) = inner.lanes.iter_mut().find(|lane| lane.number == self.number) {
            lane.outstanding_bytes = lane.outstanding_bytes.saturating_sub(queued.permit.bytes());
            lane.running.retain(|running| *running != queued.request);
        }
        Ok(queued.request)
    }

    fn cancel(&mut self, request: RequestId) {
        if self.receiver.cancel(request.0) {
            push_control(&mut self.out, &Message::Cancel(Cancel { request: request.0 }));
        }
    }

    fn body(&mut self, len: usize) -> Result<Vec<u8>> {
        // Bounded by the frame's kind before it came here; most are far smaller than the limit.
        let mut body = vec![0; len];
        debug_assert!(len <= CONTROL_FRAME_BYTES_MAX.max(dray_core::limits::PARENT_FRAME_BYTES_MAX));
        match self.read(&mut body, false)? {
            Got::Bytes => Ok(body),
            Got::End | Got::Closed => Err(Error::new(ErrorKind::Interrupted, "source was closed")),
        }
    }

    /// Fills `out`. While nothing is there to read, requests that came up meanwhile are sent.
    fn read(&mut self, out: &mut [u8], at_boundary: bool) -> Result<Got> {
        let mut filled = 0;
        while filled < out.len() {
            if at_boundary && filled == 0 {
                self.send_work()?;
                if self.set.is_closed() {
                    return Ok(Got::Closed);
                }
            }
            match self.channel.try_read(&mut out[filled..]).map_err(lost)? {
                Some(0) if at_boundary && filled == 0 => return Ok(Got::End),
                Some(0) => {
                    return Err(Error::new(
                        ErrorKind::Unreachable,
                        "connection closed in the middle of a frame",
                    ));
                }
                Some(n) => filled += n,
                None => {
                    self.send_work()?;
                    if self.set.is_closed() {
                        return Ok(Got::Closed);
                    }
                    self.channel.wait(Some(&self.wake), IDLE).map_err(lost)?;
                }
            }
        }
        Ok(Got::Bytes)
    }

    /// Takes requests, cancellations and the seal from the set and sends them in one write.
    fn send_work(&mut self) -> Result<()> {
        let mut cancels = Vec::new();
        let ended;
        {
            let mut inner = self.set.inner();
            ended = std::mem::take(&mut inner.ended);
            let lanes = inner.lanes.len() as u64;
            let queued: u64 = inner.queue.iter().map(|queued| queued.permit.bytes()).sum();
            let sent: u64 = inner.lanes.iter().map(|lane| lane.outstanding_bytes).sum();
            let share = (queued + sent) / lanes.max(1);
            let at = inner.lanes.iter().position(|lane| lane.number == self.number);
            if let Some(at) = at {
                cancels = std::mem::take(&mut inner.lanes[at].cancels);
                let mut mine = inner.lanes[at].outstanding_bytes;
                while self.receiver.room() > 0 && (mine < share || mine == 0) {
                    let Some(queued) = inner.queue.pop_front() else { break };
                    mine += queued.permit.bytes();
                    inner.lanes[at].outstanding_bytes = mine;
                    inner.lanes[at].running.push(queued.request);
                    let fetch = Fetch {
                        request: queued.request.0,
                        handle: HANDLE,
                        start_group: queued.groups.start,
                        groups: queued.groups.groups,
                        known_depth: queued.known_depth,
                        recheck: queued.recheck,
                    };
                    self.receiver.fetch(&fetch);
                    push_control(&mut self.out, &Message::Fetch(fetch));
                    self.running.push_back(queued);
                }
                for message in std::mem::take(&mut inner.say) {
                    push_control(&mut self.out, &message);
                }
                if let Some(subtrees) = inner.compare.take() {
                    let subtree =
                        |node: &Subtree| ComparedSubtree { start_group: node.start, groups: node.groups };
                    let subtrees = subtrees.iter().map(subtree).collect();
                    push_control(&mut self.out, &Message::Compare(Compare { handle: HANDLE, subtrees }));
                }
                if let Some(root) = inner.seal.take() {
                    push_control(&mut self.out, &Message::Seal(Seal { handle: HANDLE, root }));
                }
            }
        }
        for request in cancels {
            self.cancel(request);
        }
        for request in ended {
            self.emit(SourceEvent::Done { request });
        }
        if !self.out.is_empty() {
            let out = std::mem::take(&mut self.out);
            self.channel.write_all(&out).map_err(lost)?;
            self.out = out;
            self.out.clear();
        }
        Ok(())
    }
}

fn lost(error: io::Error) -> Error {
    Error::io("connection lost", error)
}
