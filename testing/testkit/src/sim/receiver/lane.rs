//! One lane: a connection on which requests leave and answers come. The product's session says what may come; this stands for the
//! thread that reads it (`crates/transfer/src/lanes/lane.rs`).

use std::collections::VecDeque;

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};
use dray_core::limits::{PROGRESS_TIMEOUT_MS, UNIT_BYTES};
use dray_core::message::{Cancel, Fault, Fetch, Message, ObjectName, Open};
use dray_core::source::{Flow, RequestId};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Body, Receiver, ReceiverInput};

use super::{Hands, Queued, Transfer};
use crate::sim::clock::Wakeup;
use crate::sim::holder::{control_frame, hello};
use crate::sim::network::{ConnectionId, Piece, Side, Standing};
use crate::sim::object::Group;

const HANDLE: u32 = 1;

/// A lane that runs.
pub(super) struct Lane {
    pub(super) id: ConnectionId,
    session: Receiver,
    reading: Reading,
    scratch: Vec<u8>,
    group: Group,
    has_delivered: bool,
    /// Requests sent and not ended, oldest first.
    pub(super) running: VecDeque<Queued>,
    heard_ns: u64,
    busy: Busy,
    is_open: bool,
}

/// What comes next.
#[derive(Clone, Copy)]
enum Reading {
    Head,
    /// All of it is needed before anything is done with it.
    Body(FrameHead, Body),
    Data {
        left: u64,
    },
}

/// What the thread is at.
enum Busy {
    No,
    /// Decrypts and hashes this group.
    Proves {
        request: RequestId,
        group: u64,
        bytes: Group,
    },
    /// Waits for the disk.
    Writes,
}

/// How far a lane has come.
enum Advance {
    Waits,
    Ended,
}

impl Lane {
    pub(super) fn new(hands: &mut Hands<'_>, id: ConnectionId) -> Lane {
        let session = Receiver::new(hello(), Some(hands.object.geometry), true);
        let open = Open { handle: HANDLE, object: ObjectName::Oid(hands.object.oid), proof: None };
        for message in [session.hello(), Message::Open(open)] {
            hands.network.write(id, Side::Dialler, Piece::Bytes(control_frame(&message)));
        }
        Lane {
            id,
            session,
            reading: Reading::Head,
            scratch: Vec::new(),
            group: Group::empty(),
            has_delivered: false,
            running: VecDeque::new(),
            heard_ns: hands.network.now_ns(),
            busy: Busy::No,
            is_open: false,
        }
    }

    /// It owes something and has been silent for too long.
    pub(super) fn is_silent(&mut self, now_ns: u64) -> bool {
        if self.running.is_empty() || !matches!(self.busy, Busy::No) {
            self.heard_ns = now_ns;
        }
        now_ns - self.heard_ns >= PROGRESS_TIMEOUT_MS * 1_000_000
    }

    pub(super) fn is_writing(&self) -> bool {
        matches!(self.busy, Busy::Writes)
    }

    fn say(&self, hands: &mut Hands<'_>, message: &Message) {
        hands.network.write(self.id, Side::Dialler, Piece::Bytes(control_frame(message)));
    }

    fn cancel(&mut self, hands: &mut Hands<'_>, request: RequestId) {
        if self.session.cancel(request.0) {
            self.say(hands, &Message::Cancel(Cancel { request: request.0 }));
        }
    }

    fn oldest(&self) -> Result<RequestId> {
        self.session.oldest().map(RequestId).ok_or_else(|| protocol("answer to no request"))
    }

    /// Reads `want` bytes into the scratch buffer; false if they have not all come.
    fn fill(&mut self, hands: &mut Hands<'_>, want: usize) -> Result<bool> {
        while self.scratch.len() < want {
            let missing = (want - self.scratch.len()) as u64;
            let Some((piece, _)) = hands.network.read(self.id, Side::Dialler, missing) else {
                return Ok(false);
            };
            if piece == Piece::End {
                return Err(Error::new(ErrorKind::Unreachable, "peer closed the connection"));
            }
            self.heard_ns = hands.network.now_ns();
            self.scratch.extend_from_slice(&hands.object.bytes_of(&piece));
        }
        Ok(true)
    }
}

impl Transfer {
    /// Something came on the lane, or something is to be said there.
    pub(super) fn lane_step(&mut self, hands: &mut Hands<'_>, source: usize, number: usize) {
        let Some(mut lane) = self.sources[source].slots[number].lane.take() else { return };
        let ended = match self.advance(hands, source, number, &mut lane) {
            Ok(Advance::Waits) => {
                self.sources[source].slots[number].lane = Some(lane);
                return;
            }
            Ok(Advance::Ended) => None,
            Err(error) => Some(error),
        };
        self.lane_ended(hands, source, number, lane, ended);
    }

    /// The thread is through with hashing, or with writing.
    pub(super) fn lane_worked(&mut self, hands: &mut Hands<'_>, source: usize, number: usize) {
        let Some(mut lane) = self.sources[source].slots[number].lane.take() else { return };
        if let Busy::Proves { request, group, bytes } = std::mem::replace(&mut lane.busy, Busy::No) {
            let (flow, go_on_ns) = self.group(hands, source, request, group, &bytes);
            if flow == Flow::Cancel {
                lane.cancel(hands, request);
            }
            if go_on_ns > hands.network.now_ns() {
                lane.busy = Busy::Writes;
                hands.plan(go_on_ns, Wakeup::Written { source, lane: number });
            }
        }
        self.sources[source].slots[number].lane = Some(lane);
        self.lane_step(hands, source, number);
    }

    fn advance(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        lane: &mut Lane,
    ) -> Result<Advance> {
        loop {
            if !matches!(lane.busy, Busy::No) {
                return Ok(Advance::Waits);
            }
            if !matches!(hands.network.standing(lane.id, Side::Dialler), Standing::Up(_)) {
                return Err(Error::new(ErrorKind::Unreachable, "connection lost"));
            }
            let is_idle = hands.network.readable_and_room(lane.id, Side::Dialler).0 == 0;
            let at_boundary = matches!(lane.reading, Reading::Head) && lane.scratch.is_empty();
            if at_boundary || is_idle {
                // Looked at first: what was said before the close is still sent.
                let is_closed = self.sources[source].is_closed();
                self.send_work(hands, source, number, lane);
                if is_closed {
                    return Ok(Advance::Ended);
                }
            }
            if is_idle {
                let is_silent = lane.is_silent(hands.network.now_ns());
                let silent = || Error::new(ErrorKind::TimedOut, "connection owes data and is silent");
                return if is_silent { Err(silent()) } else { Ok(Advance::Waits) };
            }
            match lane.reading {
                Reading::Head => {
                    if !lane.fill(hands, FRAME_HEAD_BYTES)? {
                        continue;
                    }
                    let mut head = [0; FRAME_HEAD_BYTES];
                    head.copy_from_slice(&std::mem::take(&mut lane.scratch));
                    let head = FrameHead::decode(head)?;
                    let body = lane.session.handle_head(head)?;
                    match body {
                        Body::Data => lane.reading = Reading::Data { left: head.body_bytes as u64 },
                        Body::End { complete } => self.ended(hands, source, number, lane, complete)?,
                        _ => lane.reading = Reading::Body(head, body),
                    }
                }
                Reading::Body(head, body) => {
                    if lane.fill(hands, head.body_bytes)? {
                        lane.reading = Reading::Head;
                        let bytes = std::mem::take(&mut lane.scratch);
                        self.body(hands, source, number, lane, head, body, &bytes)?;
                    }
                }
                Reading::Data { left } => self.data(hands, source, number, lane, left)?,
            }
        }
    }

    /// Takes what has come of a data frame, up to the end of a group.
    fn data(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        lane: &mut Lane,
        left: u64,
    ) -> Result<()> {
        let request = lane.oldest()?;
        let readable = hands.network.readable_and_room(lane.id, Side::Dialler).0;
        let Some(piece) = lane.session.piece(left.min(readable)) else {
            return Err(protocol("holder sent more than was owed"));
        };
        let mut missing = piece.len as u64;
        while missing > 0 {
            match hands.network.read(lane.id, Side::Dialler, missing) {
                Some((Piece::End, _)) | None => {
                    let what = "connection closed in the middle of a frame";
                    return Err(Error::new(ErrorKind::Unreachable, what));
                }
                Some((taken, len)) => {
                    lane.group.add(hands.object, &taken);
                    missing -= len;
                }
            }
        }
        lane.heard_ns = hands.network.now_ns();
        let left = left - piece.len as u64;
        lane.reading = if left == 0 { Reading::Head } else { Reading::Data { left } };
        if piece.completes_group {
            lane.has_delivered = true;
            let bytes = std::mem::replace(&mut lane.group, Group::empty());
            let done_ns = hands.processors.work(hands.network.now_ns(), bytes.len());
            lane.busy = Busy::Proves { request, group: piece.group, bytes };
            hands.plan(done_ns, Wakeup::Group { source, lane: number });
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "one frame and where it came from")]
    fn body(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        lane: &mut Lane,
        head: FrameHead,
        body: Body,
        bytes: &[u8],
    ) -> Result<()> {
        match body {
            Body::Control => match lane.session.handle_control(bytes)? {
                ReceiverInput::Agreed(_) => Ok(()),
                ReceiverInput::Opened(_) if !std::mem::replace(&mut lane.is_open, true) => Ok(()),
                ReceiverInput::Fault(fault) => Err(fault.to_error(&self.sources[source].label)),
                _ => Err(protocol("peer said what was not asked")),
            },
            Body::Parents => {
                let request = lane.oldest()?;
                if self.parents_came(hands, source, request, bytes) == Flow::Cancel {
                    lane.cancel(hands, request);
                }
                Ok(())
            }
            Body::Fault => {
                let error = Fault::from_bytes(bytes)?.to_error(&self.sources[source].label);
                let request = self.take_oldest(source, number, lane)?;
                self.request_failed(hands, source, request, &error);
                Ok(())
            }
            _ => Err(protocol(&format!("a {:?} frame, which was not agreed on", head.kind))),
        }
    }

    fn ended(
        &mut self,
        hands: &mut Hands<'_>,
        source: usize,
        number: usize,
        lane: &mut Lane,
        complete: bool,
    ) -> Result<()> {
        let request = self.take_oldest(source, number, lane)?;
        // The empty object has one group and no byte that could announce it.
        if complete && hands.object.geometry.size_bytes() == 0 {
            self.group(hands, source, request, 0, &Group::empty());
        }
        self.request_done(hands, source, request);
        Ok(())
    }

    /// The oldest request has ended: its permit goes back.
    fn take_oldest(&mut self, source: usize, number: usize, lane: &mut Lane) -> Result<RequestId> {
        let queued = lane.running.pop_front().ok_or_else(|| protocol("answer to no request"))?;
        lane.group = Group::empty();
        let slot = &mut self.sources[source].slots[number];
        slot.outstanding_bytes = slot.outstanding_bytes.saturating_sub(queued.permit.bytes());
        slot.running.retain(|running| *running != queued.request);
        Ok(queued.request)
    }

    /// Takes requests and cancellations that are the lane's to send.
    fn send_work(&mut self, hands: &mut Hands<'_>, source: usize, number: usize, lane: &mut Lane) {
        let set = &mut self.sources[source];
        let ended = std::mem::take(&mut set.ended);
        let lanes = set.slots.iter().filter(|slot| slot.is_running).count() as u64;
        let queued: u64 = set.queue.iter().map(|queued| queued.permit.bytes()).sum();
        let sent: u64 = set.slots.iter().map(|slot| slot.outstanding_bytes).sum();
        let mut share = (queued + sent) / lanes.max(1);
        if !lane.has_delivered {
            share = share.min(UNIT_BYTES);
        }
        let cancels = std::mem::take(&mut set.slots[number].cancels);
        let mut mine = set.slots[number].outstanding_bytes;
        while lane.session.room() > 0 && (mine < share || mine == 0) {
            let Some(queued) = set.queue.pop_front() else { break };
            mine += queued.permit.bytes();
            set.slots[number].outstanding_bytes = mine;
            set.slots[number].running.push(queued.request);
            let fetch = Fetch {
                request: queued.request.0,
                handle: HANDLE,
                start_group: queued.groups.start,
                groups: queued.groups.groups,
                known_depth: queued.known_depth,
                recheck: queued.recheck,
            };
            lane.session.fetch(&fetch);
            lane.say(hands, &Message::Fetch(fetch));
            lane.running.push_back(queued);
        }
        for request in cancels {
            lane.cancel(hands, request);
        }
        for request in ended {
            self.request_done(hands, source, request);
        }
    }
}

fn protocol(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}
