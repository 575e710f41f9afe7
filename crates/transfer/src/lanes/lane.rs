//! One lane: the thread that asks and reads on one connection.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{
    DATA_FRAME_BYTES_MAX, GROUP_BYTES, PROGRESS_TIMEOUT_MS, RECIPE_NODES_ASKED_MAX, UNIT_BYTES,
};
use dray_core::message::{
    Cancel, Compare, ComparedSubtree, Describe, Fault, Fetch, Message, Nodes, Open, Opened, Seal, feature,
};
use dray_core::recipe::RecipeId;
use dray_core::source::{DataPiece, Flow, RequestId, SourceEvent};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use super::ahead::ReadAhead;
use super::control::{ControlSide, only_control};
use super::{CopyHook, Inner, LaneSet, LaneStart, Opening, Queued, Reading, SumsAsked};
use crate::enough::{Enough, worked};
use crate::packing::{PathMeter, Unpacker};
use crate::transport::{Channel, ControlReader, Wake, push_control};

/// How long a connection that owes data may be silent: a little longer than its source, whose silence the planner judges, and counts.
const SILENCE_MAX: Duration = Duration::from_millis(PROGRESS_TIMEOUT_MS + 1000);

/// The same of the only one that asks, once there are others: they wait for it, as packing pays or one fills the path.
const ALONE_SILENCE_MAX: Duration = Duration::from_secs(3);

/// Handle of the only object of a lane.
pub(super) const HANDLE: u32 = 1;
/// A lane looks at its state at least this often even if nothing happens.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Lane<'a> {
    pub(super) set: &'a LaneSet,
    reading: Reading<'a>,
    pub(super) number: u64,
    pub(super) channel: Box<dyn Channel>,
    pub(super) receiver: Receiver,
    hook: Option<CopyHook<'a>>,
    wake: Arc<Wake>,
    /// Frames to send; written in one piece.
    pub(super) out: Vec<u8>,
    /// Requests sent and not ended, oldest first.
    pub(super) running: VecDeque<Queued>,
    /// Asked and not answered.
    pub(super) sealing: Option<Oid>,
    pub(super) comparing: Option<Vec<Subtree>>,
    /// Answers that the holder owes to these two.
    seals_owed: usize,
    comparisons_owed: usize,
    pub(super) describing: bool,
    /// To be reported: the other side does not know what a recipe is.
    has_no_recipe: bool,
    pub(super) awaited_nodes: Vec<RecipeId>,
    pub(super) awaited_sums: Vec<SumsAsked>,
    /// Questions for sums, to be reported: the other side does not know what those are.
    pub(super) untold_sums: Vec<u32>,
    /// What has come of the rest that is asked for first.
    pub(super) rest: Vec<u8>,
    pub(super) meter: PathMeter,
    /// Until more than one lane is asked.
    enough: Option<Enough>,
    /// What the holder was told last, whether it may pack.
    pub(super) may_pack: bool,
    pub(super) unpacker: Option<Unpacker>,
    /// What the last packed frame stands for, and how much of it has been taken.
    pub(super) unpacked: Vec<u8>,
    pub(super) unpacked_at: usize,
    /// Bytes that came as they are since packing paid last.
    pub(super) plain_bytes: u64,
    ahead: ReadAhead,
    /// A group that comes in pieces, or is no data.
    group: Vec<u8>,
    /// A whole group has come over it.
    pub(super) has_delivered: bool,
    data: Vec<DataPiece>,
    /// Frames of a separate control stream, if the channel has one.
    control: ControlReader,
    /// When something came last.
    heard: Instant,
    /// The same, where it fell silent while no other lane was asked.
    alone_since: Option<Instant>,
    /// Bytes of the channel that the set has been told of.
    counted_bytes: u64,
    /// The object has been said to be open.
    is_open: bool,
    /// The holder's answer to the opening, if it came before the lane began.
    answered: Option<Opened>,
}

/// What reading came to.
pub(super) enum Got {
    Bytes,
    /// The stream ended at a frame's boundary.
    End,
    /// The source was closed.
    Closed,
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filling {
    /// They come next.
    Sent,
    /// They were unpacked.
    Unpacked,
    /// They are zeros that are not stored.
    Hole,
    /// They are zeros that are data.
    Zeros,
}

impl<'a> Lane<'a> {
    /// A lane whose hello and open leave with the first requests, in one flight.
    pub(super) fn new(
        set: &'a LaneSet,
        number: u64,
        wake: Arc<Wake>,
        channel: Box<dyn Channel>,
        start: LaneStart,
        size_bytes: Option<u64>,
        hook: Option<CopyHook<'a>>,
    ) -> Lane<'a> {
        let LaneStart { mut receiver, preface: mut out, secret, node, opening, round_trip_us } = start;
        if let Some(size_bytes) = size_bytes {
            receiver.set_geometry(Geometry::new(size_bytes));
        }
        if receiver.agreed().is_none() {
            push_control(&mut out, &receiver.hello());
        }
        if opening == Opening::ToAsk {
            let proof = secret.zip(channel.security()).map(|(secret, security)| {
                security.prove(&secret, node, &set.object).as_bytes().to_vec().into()
            });
            push_control(&mut out, &Message::Open(Open { handle: HANDLE, object: set.object, proof }));
        }
        let connected_in = round_trip_us.map(Duration::from_micros);
        let enough = channel.solo().map(|solo| Enough::new(solo, connected_in));
        Lane {
            set,
            reading: Reading::begin(&set.reading),
            number,
            channel,
            receiver,
            hook,
            wake,
            out,
            running: VecDeque::new(),
            sealing: None,
            comparing: None,
            seals_owed: 0,
            comparisons_owed: 0,
            describing: false,
            has_no_recipe: false,
            awaited_nodes: Vec::new(),
            awaited_sums: Vec::new(),
            untold_sums: Vec::new(),
            rest: Vec::new(),
            meter: PathMeter::new(connected_in),
            enough,
            may_pack: false,
            unpacker: None,
            unpacked: Vec::new(),
            unpacked_at: 0,
            plain_bytes: 0,
            ahead: ReadAhead::new(),
            group: vec![0; GROUP_BYTES as usize],
            has_delivered: false,
            data: Vec::new(),
            control: ControlReader::default(),
            heard: Instant::now(),
            alone_since: None,
            counted_bytes: 0,
            is_open: false,
            answered: match opening {
                Opening::Answered(opened) => Some(opened),
                Opening::ToAsk | Opening::Asked => None,
            },
        }
    }

    pub(super) fn emit(&self, event: SourceEvent<'_>) -> Flow {
        self.set.events.event(self.set.id, event)
    }

    /// Sends and reads until the channel or the source ends.
    pub(super) fn frames(&mut self) -> Result<()> {
        if let Some(opened) = self.answered.take() {
            self.opened(&opened)?;
        }
        loop {
            let mut head = [0; FRAME_HEAD_BYTES];
            match self.read(&mut head, true)? {
                Got::Bytes => {}
                Got::End if self.running.is_empty() && self.set.is_closed() => return Ok(()),
                Got::End => return Err(Error::new(ErrorKind::Unreachable, "peer closed the connection")),
                Got::Closed => return Ok(()),
            }
            let head = FrameHead::decode(head)?;
            let is_rest = self.receiver.is_rest();
            match self.receiver.handle_head(head)? {
                Body::Control if self.channel.has_control() => {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "control frame on the clear-text connection",
                    ));
                }
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
                Body::Data => {
                    self.note_packing(head.body_bytes as u64, None);
                    self.take_data(head.body_bytes as u64, Filling::Sent)?;
                }
                Body::Packed => self.take_packed(head)?,
                body @ (Body::Hole | Body::Zeros) => {
                    let mut run = [0; 8];
                    let Got::Bytes = self.read(&mut run, false)? else { return Err(closed()) };
                    let run = u64::from_be_bytes(run);
                    self.receiver.handle_run(run)?;
                    let filling = if body == Body::Hole { Filling::Hole } else { Filling::Zeros };
                    self.take_pieces(run, filling)?;
                }
                Body::End { complete } => {
                    if complete && is_rest {
                        self.deliver_rest()?;
                    }
                    let request = self.end()?;
                    // The empty object has one group and no byte that could announce it.
                    if complete && self.set.inner().size_bytes == Some(0) {
                        self.emit(SourceEvent::Group { request, group: 0, bytes: &[], data: &[] });
                    }
                    self.emit(SourceEvent::Done { request });
                }
                Body::Fault => {
                    let body = self.body(head.body_bytes)?;
                    let error = Fault::from_bytes(&body)?.to_error(&self.set.peer);
                    let request = self.end()?;
                    self.emit(SourceEvent::Failed { request, error });
                }
            }
        }
    }

    pub(super) fn take_pieces(&mut self, mut left: u64, filling: Filling) -> Result<()> {
        let request = self.oldest()?;
        while left > 0 {
            let Some(piece) = self.receiver.piece(left) else {
                return Err(Error::new(ErrorKind::Protocol, "holder sent more than was owed"));
            };
            left -= piece.len as u64;
            if filling == Filling::Sent && piece.offset == 0 && piece.completes_group {
                self.take_whole_group(request, piece.group, piece.len)?;
                continue;
            }
            let range = piece.offset..piece.offset + piece.len;
            if matches!(filling, Filling::Sent | Filling::Unpacked) {
                let mut group = std::mem::take(&mut self.group);
                let got = self.fill(&mut group[range], filling);
                self.group = group;
                let Got::Bytes = got? else { return Err(closed()) };
            } else {
                // A run of a few bytes stands for many groups, and nothing is read on the way.
                if self.set.is_closed() {
                    return Err(closed());
                }
                self.group[range].fill(0);
            }
            if filling != Filling::Hole {
                // Lengths are within a group, below 2^32.
                let (start, end) = (piece.offset as u32, (piece.offset + piece.len) as u32);
                match self.data.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => self.data.push(start..end),
                }
            }
            if piece.completes_group {
                let bytes = &self.group[..piece.offset + piece.len];
                let event = SourceEvent::Group { request, group: piece.group, bytes, data: &self.data };
                let flow = self.emit(event);
                self.data.clear();
                self.delivered(request, flow);
            }
        }
        Ok(())
    }

    /// A group that comes in one piece is handed on where it was read to.
    fn take_whole_group(&mut self, request: RequestId, group: u64, len: usize) -> Result<()> {
        while self.ahead.bytes().len() < len {
            let Got::Bytes = self.read_some(false)? else { return Err(closed()) };
        }
        let (bytes, data) = (&self.ahead.bytes()[..len], 0..len as u32);
        let data = std::slice::from_ref(&data);
        let flow = self.emit(SourceEvent::Group { request, group, bytes, data });
        self.ahead.consume(len);
        self.delivered(request, flow);
        Ok(())
    }

    fn delivered(&mut self, request: RequestId, flow: Flow) {
        self.has_delivered = true;
        self.count();
        if flow == Flow::Cancel {
            self.cancel(request);
        }
    }

    fn control(&mut self, body: &[u8]) -> Result<()> {
        match self.receiver.handle_control(body)? {
            ReceiverInput::Agreed(_) => Ok(()),
            ReceiverInput::Opened(opened) => self.opened(&opened),
            ReceiverInput::Sealed(root) => {
                owed(&mut self.seals_owed, "sealed")?;
                self.sealing = None;
                self.emit(SourceEvent::Sealed { root });
                Ok(())
            }
            ReceiverInput::Compared(pairs) => {
                owed(&mut self.comparisons_owed, "compared")?;
                self.comparing = None;
                self.emit(SourceEvent::Compared { pairs: &pairs });
                Ok(())
            }
            ReceiverInput::Described(root) => {
                if !std::mem::take(&mut self.describing) {
                    return Err(Error::new(ErrorKind::Protocol, "peer described what was not asked"));
                }
                self.emit(SourceEvent::Described { root });
                Ok(())
            }
            ReceiverInput::Node(id, bytes) => {
                let Some(at) = self.awaited_nodes.iter().position(|awaited| *awaited == id) else {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "peer sent a recipe node that was not asked for",
                    ));
                };
                self.awaited_nodes.remove(at);
                self.emit(SourceEvent::Node { id, bytes: &bytes });
                Ok(())
            }
            ReceiverInput::Summed(summed) => self.summed(&summed),
            // The object is open, so what is not found is its recipe, or a part of that; it can be had without.
            ReceiverInput::Fault(fault) if self.is_owed_recipe() && is_not_found(&fault) => {
                // Questions are answered in the order in which they were asked, each once.
                if !std::mem::take(&mut self.describing) {
                    self.awaited_nodes.remove(0);
                }
                self.emit(SourceEvent::Described { root: None });
                Ok(())
            }
            ReceiverInput::Fault(fault) => Err(fault.to_error(&self.set.peer)),
            ReceiverInput::ClearGrant(_) => {
                Err(Error::new(ErrorKind::Protocol, "peer granted what was not asked"))
            }
            ReceiverInput::Copy(message) => match self.hook {
                Some(hook) => hook(message),
                None => Err(Error::new(ErrorKind::Protocol, "copy message outside a copy")),
            },
        }
    }

    /// A question about the recipe is not answered.
    fn is_owed_recipe(&self) -> bool {
        self.describing || !self.awaited_nodes.is_empty()
    }

    /// The holder has the object: says so with its name, once.
    fn opened(&mut self, opened: &Opened) -> Result<()> {
        if std::mem::replace(&mut self.is_open, true) {
            return Err(Error::new(ErrorKind::Protocol, "peer opened what is open"));
        }
        let name = opened.name.as_deref().map(|name| &name[..]);
        let _standing = self.set.standing();
        let news = {
            let mut inner = self.set.inner();
            inner.size_bytes = Some(opened.size_bytes);
            name.is_some() && !std::mem::replace(&mut inner.is_named, name.is_some())
        };
        self.set.rise(opened.size_bytes, name, None, news);
        Ok(())
    }

    pub(super) fn oldest(&self) -> Result<RequestId> {
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
        self.rest.clear();
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

    pub(super) fn body(&mut self, len: usize) -> Result<Vec<u8>> {
        // Bounded by the frame's kind before it came here; most are far smaller than the limit.
        let mut body = vec![0; len];
        debug_assert!(len <= DATA_FRAME_BYTES_MAX);
        match self.read(&mut body, false)? {
            Got::Bytes => Ok(body),
            Got::End | Got::Closed => Err(closed()),
        }
    }

    /// Fills `out`. While nothing is there to read, requests that came up meanwhile are sent.
    pub(super) fn read(&mut self, out: &mut [u8], at_boundary: bool) -> Result<Got> {
        let mut filled = 0;
        while filled < out.len() {
            let can_end = at_boundary && filled == 0;
            if can_end {
                self.hear_control()?;
                // Looked at first: what was said before the close is still sent.
                let is_closed = self.set.is_closed();
                self.send_work()?;
                if is_closed {
                    return Ok(Got::Closed);
                }
            }
            if self.ahead.bytes().is_empty() {
                let got = self.read_some(can_end)?;
                let Got::Bytes = got else { return Ok(got) };
            }
            filled += self.ahead.take(&mut out[filled..]);
        }
        Ok(Got::Bytes)
    }

    /// Reads ahead what is there, or waits. The stream may end here only if it `can_end`.
    fn read_some(&mut self, can_end: bool) -> Result<Got> {
        match self.channel.try_read(self.ahead.room()).map_err(lost)? {
            Some(0) if can_end => return Ok(Got::End),
            Some(0) => {
                return Err(Error::new(ErrorKind::Unreachable, "connection closed in the middle of a frame"));
            }
            Some(count) => {
                self.ahead.added(count);
                self.heard = Instant::now();
                self.meter.heard(self.heard);
            }
            None => {
                self.count();
                self.hear_control()?;
                let is_closed = self.set.is_closed();
                self.send_work()?;
                if is_closed {
                    return Ok(Got::Closed);
                }
                self.check_silence()?;
                let (channel, wake) = (&mut self.channel, &self.wake);
                self.reading.pause(|| channel.wait(Some(wake), IDLE)).map_err(lost)?;
            }
        }
        Ok(Got::Bytes)
    }

    /// One dead connection of several must not be taken for a dead source: it ends by itself, and what it owed goes to
    /// the others. Of one that is alone nobody knows whether it or its path is dead: that shows when another one comes up.
    fn check_silence(&mut self) -> Result<()> {
        let silence = self.heard.elapsed();
        if self.running.is_empty() {
            self.heard = Instant::now();
            return Ok(());
        }
        if silence >= ALONE_SILENCE_MAX && !self.set.is_spread() {
            self.alone_since = Some(self.heard);
            self.set.spread();
        }
        let others_wait = || {
            let inner = self.set.inner();
            let is_alone = inner.packing_lane == Some(self.number) || self.alone_since == Some(self.heard);
            is_alone && inner.lanes.len() > 1
        };
        if silence >= SILENCE_MAX || silence >= ALONE_SILENCE_MAX && others_wait() {
            return Err(Error::new(ErrorKind::TimedOut, "connection owes data and is silent"));
        }
        Ok(())
    }

    /// Tells the set what has come since it was told last.
    pub(super) fn count(&mut self) {
        let received_bytes = self.channel.received_bytes();
        self.set.received_bytes.fetch_add(received_bytes - self.counted_bytes, Ordering::Relaxed);
        self.counted_bytes = received_bytes;
        let (now, is_owed) = (Instant::now(), !self.running.is_empty());
        self.meter.count(now, received_bytes, is_owed);
        let Some(enough) = &mut self.enough else { return };
        if enough.is_held_back(now, received_bytes, is_owed, worked) {
            self.enough = None;
            self.set.spread();
        }
    }

    /// Takes in the frames of a separate control stream, if the channel has one.
    fn hear_control(&mut self) -> Result<()> {
        if !self.channel.has_control() {
            return Ok(());
        }
        if !self.control.fill(&mut ControlSide(&mut *self.channel)).map_err(lost)? {
            return Err(Error::new(ErrorKind::Unreachable, "peer closed the connection"));
        }
        while let Some(body) = self.control.next(&|head| only_control(head))? {
            self.control(&body)?;
        }
        Ok(())
    }

    /// Takes questions for the recipe from the set, once both sides have said that they know what that is.
    fn ask_for_recipe(&mut self, inner: &mut Inner) {
        let Some(agreed) = self.receiver.agreed() else { return };
        if !agreed.has(feature::RECIPE) {
            self.has_no_recipe |= std::mem::take(&mut inner.describe);
            return;
        }
        // Asked again before the answer came, one answer does for both.
        if std::mem::take(&mut inner.describe) && !std::mem::replace(&mut self.describing, true) {
            push_control(&mut self.out, &Message::Describe(Describe { handle: HANDLE }));
        }
        while !inner.nodes.is_empty() {
            let asked: Vec<_> = inner.nodes.drain(..inner.nodes.len().min(RECIPE_NODES_ASKED_MAX)).collect();
            let ids = asked.iter().map(|id| (*id.as_bytes()).into()).collect();
            self.awaited_nodes.extend(asked);
            push_control(&mut self.out, &Message::Nodes(Nodes { handle: HANDLE, ids }));
        }
    }

    /// Takes requests, cancellations and the seal from the set and sends them in one write.
    fn send_work(&mut self) -> Result<()> {
        let was_idle = self.running.is_empty() && self.awaited_nodes.is_empty();
        let has_agreed = self.receiver.agreed().is_some();
        self.consider_packing()?;
        let mut cancels = Vec::new();
        let ended;
        {
            let mut inner = self.set.inner();
            ended = std::mem::take(&mut inner.ended);
            let queued: u64 = inner.queue.iter().map(|queued| queued.permit.bytes()).sum();
            let sent: u64 = inner.lanes.iter().map(|lane| lane.outstanding_bytes).sum();
            let at = inner.lanes.iter().position(|lane| lane.number == self.number);
            let packs_elsewhere = inner.packing_lane.is_some_and(|packing| packing != self.number);
            let stands_back = packs_elsewhere || !inner.is_spread && at != Some(0);
            let mut share = match inner.packing_lane {
                None if inner.is_spread => (queued + sent) / inner.lanes.len().max(1) as u64,
                _ => queued + sent,
            };
            if !self.has_delivered {
                // TCP starts slowly: a unit is enough until the first group is here, and other lanes, which may come up only
                // now, find something to start with, too.
                share = share.min(UNIT_BYTES);
            }
            if let Some(at) = at {
                cancels = std::mem::take(&mut inner.lanes[at].cancels);
                let mut mine = inner.lanes[at].outstanding_bytes;
                while self.receiver.room() > 0 && !stands_back && (mine < share || mine == 0) {
                    // Whether the holder can send a rest is known once it has said hello; half of it would come for nothing.
                    let waits = |queued: &Queued| queued.have.is_some() && !has_agreed;
                    if inner.queue.front().is_none_or(waits) {
                        break;
                    }
                    let Some(queued) = inner.queue.pop_front() else { break };
                    mine += queued.permit.bytes();
                    inner.lanes[at].outstanding_bytes = mine;
                    inner.lanes[at].running.push(queued.request);
                    if self.fetch_rest(&queued) {
                        self.running.push_back(queued);
                        continue;
                    }
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
                    let named = subtrees.iter().map(subtree).collect();
                    self.comparing = Some(subtrees);
                    self.comparisons_owed += 1;
                    let compare = Compare { handle: HANDLE, subtrees: named };
                    push_control(&mut self.out, &Message::Compare(compare));
                }
                self.ask_for_recipe(&mut inner);
                self.ask_for_sums(&mut inner);
                if let Some(root) = inner.seal.take() {
                    self.sealing = Some(root);
                    self.seals_owed += 1;
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
        if std::mem::take(&mut self.has_no_recipe) {
            self.emit(SourceEvent::Described { root: None });
        }
        for number in std::mem::take(&mut self.untold_sums) {
            self.emit(SourceEvent::Summed { number, sums: None });
        }
        if !self.out.is_empty() {
            let is_owed = !self.running.is_empty() || !self.awaited_nodes.is_empty();
            self.meter.asked(Instant::now(), was_idle && is_owed);
            let out = std::mem::take(&mut self.out);
            self.channel.write_all(&out).map_err(lost)?;
            self.out = out;
            self.out.clear();
        }
        Ok(())
    }
}

/// Takes one answer off those that are owed; what nobody asked for is not listened to, or it would never end.
fn owed(answers: &mut usize, what: &str) -> Result<()> {
    match answers.checked_sub(1) {
        Some(left) => {
            *answers = left;
            Ok(())
        }
        None => Err(Error::new(ErrorKind::Protocol, format!("peer {what} what was not asked"))),
    }
}

/// True if the holder does not have something that belongs to the object of the lane.
fn is_not_found(fault: &Fault) -> bool {
    fault.handle == Some(HANDLE) && ErrorKind::from_wire_code(fault.kind) == ErrorKind::NotFound
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Interrupted, "source was closed")
}

fn lost(error: io::Error) -> Error {
    Error::io("connection lost", error)
}
