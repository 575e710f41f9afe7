//! The holding end of a connection, in virtual time: the product's session decides what may be asked and what is answered next;
//! this stands for the thread that reads, encrypts and writes (`crates/transfer/src/holder.rs`), and lies as told.

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::hash_tree::{MemoryPairs, encode_parents};
use dray_core::limits::{GROUP_BYTES, HELLO_TIMEOUT_MS};
use dray_core::message::{Fault, Hello, Message, Opened, PROTOCOL_VERSION};
use dray_core::{Error, ErrorKind, Result, cbor};
use dray_engine::session::{Holder, HolderInput, Job};

use super::clock::{Event, Wakeup};
use super::device::{Disk, Processors};
use super::network::{ConnectionId, Network, Piece, Side, Standing};
use super::object::Object;

/// Bytes read and sent at a time: four times what the product takes, for a quarter of the events.
const CHUNK_BYTES: u64 = 256 * 1024;
/// What the two ends of a TLS handshake say, in bytes.
pub(crate) const CLIENT_HELLO_BYTES: u64 = 300;
pub(crate) const SERVER_HELLO_BYTES: u64 = 900;

/// What a holder does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conduct {
    /// Sends what it is asked for.
    Honest,
    /// Every so-many-th group is wrong.
    Corrupts {
        /// Which.
        every: u64,
    },
    /// One group is wrong, once: what a damaged copy does until it is asked to check.
    CorruptsOnce {
        /// Groups before.
        after: u64,
    },
    /// The pairs that prove a request are wrong.
    CorruptsPairs {
        /// Groups before.
        after: u64,
    },
    /// Says that the object has another size.
    WrongSize,
    /// Ends requests before all has come.
    EndsEarly {
        /// Groups before.
        after: u64,
    },
    /// Sends more than was asked for.
    Overruns {
        /// Groups before.
        after: u64,
    },
    /// Sends bytes that are no frames.
    Garbage {
        /// Groups before.
        after: u64,
    },
    /// Takes requests and does not answer them.
    Mute {
        /// Groups before.
        after: u64,
    },
    /// Says that the file has changed.
    Changed {
        /// Groups before.
        after: u64,
    },
    /// Refuses the object.
    Refuses,
    /// Says that it does not have it.
    NotFound,
    /// Hangs up.
    HangsUp {
        /// Groups between.
        every: u64,
    },
}

impl Conduct {
    /// Every kind, for a random choice; the numbers are counts of groups.
    pub(crate) fn misdeeds(number: u64) -> Vec<Conduct> {
        vec![
            Conduct::Corrupts { every: number + 1 },
            Conduct::CorruptsOnce { after: number },
            Conduct::CorruptsPairs { after: number },
            Conduct::WrongSize,
            Conduct::EndsEarly { after: number },
            Conduct::Overruns { after: number },
            Conduct::Garbage { after: number },
            Conduct::Mute { after: number },
            Conduct::Changed { after: number },
            Conduct::Refuses,
            Conduct::NotFound,
            Conduct::HangsUp { every: number + 1 },
        ]
    }
}

/// What a holder works with.
pub(crate) struct Desk<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) object: &'a Object,
    pub(crate) pairs: &'a MemoryPairs,
    pub(crate) disk: &'a mut Disk,
    pub(crate) processors: &'a mut Processors,
    pub(crate) conduct: Conduct,
    /// Groups this node has sent.
    pub(crate) sent_groups: &'a mut u64,
    pub(crate) node: usize,
    pub(crate) process: u64,
}

/// One connection that is served.
pub(crate) struct Serving {
    id: ConnectionId,
    session: Holder,
    /// Bytes of the handshake that have come.
    greeting_bytes: u64,
    inbox: Vec<u8>,
    job: Option<(Job, u64)>,
    /// A chunk is being read and encrypted: its length.
    chunk_bytes: Option<u64>,
    is_open: bool,
    is_mute: bool,
    begun_ns: u64,
}

pub(crate) fn hello() -> Hello {
    Hello { version: PROTOCOL_VERSION, features: vec![], required: vec![], agent: "simulated".into() }
}

/// A control message as a frame.
pub(crate) fn control_frame(message: &Message) -> Vec<u8> {
    let body = message.to_bytes();
    let mut frame = FrameHead::new(FrameKind::Control, body.len(), 0).encode().to_vec();
    frame.extend_from_slice(&body);
    frame
}

impl Serving {
    pub(crate) fn new(id: ConnectionId, now_ns: u64) -> Serving {
        Serving {
            id,
            session: Holder::new(hello()),
            greeting_bytes: 0,
            inbox: Vec::new(),
            job: None,
            chunk_bytes: None,
            is_open: false,
            is_mute: false,
            begun_ns: now_ns,
        }
    }

    /// Something came, there is room again, or a chunk is ready. `Ok(false)` when the connection has ended.
    pub(crate) fn step(&mut self, desk: &mut Desk<'_>) -> Result<bool> {
        match desk.network.standing(self.id, Side::Listener) {
            Standing::Up(_) => {}
            _ => return Ok(false),
        }
        loop {
            if !self.listen(desk)? {
                return Ok(false);
            }
            if self.is_mute || self.chunk_bytes.is_some() {
                return Ok(true);
            }
            if let Some((job, position)) = self.job {
                if desk.network.readable_and_room(self.id, Side::Listener).1 == 0 {
                    return Ok(true);
                }
                if !self.go_on(desk, &job, position)? {
                    return Ok(true);
                }
                continue;
            }
            match self.session.next_job()? {
                Some(Ok(job)) => self.begin(desk, job)?,
                Some(Err(request)) => self.write(desk, end_frame(request)),
                None => return Ok(true),
            }
        }
    }

    /// Who has shown no right to anything for this long is hung up on.
    pub(crate) fn is_late(&self, now_ns: u64) -> bool {
        !self.is_open && now_ns >= self.begun_ns + HELLO_TIMEOUT_MS * 1_000_000
    }

    fn write(&mut self, desk: &mut Desk<'_>, bytes: Vec<u8>) {
        desk.network.write(self.id, Side::Listener, Piece::Bytes(bytes));
    }

    /// Takes in what has come. `Ok(false)` at the end of the stream.
    fn listen(&mut self, desk: &mut Desk<'_>) -> Result<bool> {
        while let Some((piece, len)) = desk.network.read(self.id, Side::Listener, u64::MAX) {
            if piece == Piece::End {
                return Ok(false);
            }
            let mut bytes = desk.object.bytes_of(&piece);
            if self.greeting_bytes < CLIENT_HELLO_BYTES {
                let greeting = len.min(CLIENT_HELLO_BYTES - self.greeting_bytes);
                self.greeting_bytes += greeting;
                bytes.drain(..greeting as usize);
                if self.greeting_bytes == CLIENT_HELLO_BYTES {
                    self.write(desk, vec![0; SERVER_HELLO_BYTES as usize]);
                    if let Some(hello) = self.session.hello() {
                        self.write(desk, control_frame(&hello));
                    }
                }
            }
            self.inbox.extend_from_slice(&bytes);
        }
        while let Some(head) = self.inbox.first_chunk::<FRAME_HEAD_BYTES>() {
            let head = FrameHead::decode(*head)?;
            self.session.handle_head(head)?;
            let end = FRAME_HEAD_BYTES + head.body_bytes;
            if self.inbox.len() < end {
                break;
            }
            let body = self.inbox[FRAME_HEAD_BYTES..end].to_vec();
            self.inbox.drain(..end);
            match self.session.handle_control(&body)? {
                HolderInput::None | HolderInput::Agreed(_) => {}
                HolderInput::Open(open) => self.open(desk, open.handle),
                other => {
                    let what = format!("the simulated receiver asked for {other:?}");
                    return Err(Error::new(ErrorKind::Internal, what));
                }
            }
        }
        Ok(true)
    }

    fn open(&mut self, desk: &mut Desk<'_>, handle: u32) {
        let refusal = match desk.conduct {
            Conduct::Refuses => Some(Error::new(ErrorKind::Refused, "not for you")),
            Conduct::NotFound => Some(Error::new(ErrorKind::NotFound, "no such object here")),
            _ => None,
        };
        self.is_open = true;
        let message = match refusal {
            Some(error) => {
                self.session.refused(handle);
                Message::Fault(Fault::from_error(Some(handle), &error))
            }
            None => {
                self.session.opened(handle, desk.object.geometry);
                let more = u64::from(desk.conduct == Conduct::WrongSize);
                let size_bytes = desk.object.geometry.size_bytes() + more;
                Message::Opened(Opened { handle, size_bytes, name: None })
            }
        };
        self.write(desk, control_frame(&message));
    }

    /// Begins to answer a request: with the pairs that prove it.
    fn begin(&mut self, desk: &mut Desk<'_>, job: Job) -> Result<()> {
        let sent = *desk.sent_groups;
        match desk.conduct {
            Conduct::Mute { after } if sent >= after => {
                self.is_mute = true;
                return Ok(());
            }
            Conduct::Changed { after } if sent >= after => {
                let error = Error::new(ErrorKind::Changed, "the file has changed");
                self.fault(desk, &job, &error);
                return Ok(());
            }
            Conduct::Garbage { after } if sent >= after => self.write(desk, vec![0xff; 1000]),
            _ => {}
        }
        let mut parents = encode_parents(desk.object.geometry, job.groups, job.known_depth, desk.pairs)?;
        if matches!(desk.conduct, Conduct::CorruptsPairs { after } if sent >= after)
            && let Some(byte) = parents.last_mut()
        {
            *byte ^= 1;
        }
        if !parents.is_empty() {
            let mut frame = FrameHead::new(FrameKind::Parents, parents.len(), job.request).encode().to_vec();
            frame.extend_from_slice(&parents);
            self.write(desk, frame);
        }
        self.job = Some((job, desk.object.geometry.byte_range(job.groups).start));
        Ok(())
    }

    fn fault(&mut self, desk: &mut Desk<'_>, job: &Job, error: &Error) {
        let body = cbor::encode(&Fault::from_error(None, error));
        let mut frame = FrameHead::new(FrameKind::Fault, body.len(), job.request).encode().to_vec();
        frame.extend_from_slice(&body);
        self.write(desk, frame);
        self.session.finished(job.request);
        self.job = None;
    }

    /// The next chunk of the running request is fetched, or the request ends. `Ok(false)` if there is something to wait for.
    fn go_on(&mut self, desk: &mut Desk<'_>, job: &Job, position: u64) -> Result<bool> {
        let range = desk.object.geometry.byte_range(job.groups);
        let sent = *desk.sent_groups;
        let ends_early = matches!(desk.conduct, Conduct::EndsEarly { after } if sent >= after);
        if position == range.end || self.session.is_cancelled(job.request) || ends_early {
            if matches!(desk.conduct, Conduct::Overruns { after } if sent >= after) {
                let mut frame = FrameHead::new(FrameKind::Data, 100, job.request).encode().to_vec();
                frame.extend_from_slice(&[7; 100]);
                self.write(desk, frame);
            }
            self.write(desk, end_frame(job.request));
            self.session.finished(job.request);
            self.job = None;
            return Ok(true);
        }
        match desk.conduct {
            Conduct::Mute { after } if sent >= after => {
                self.is_mute = true;
                return Ok(false);
            }
            Conduct::Changed { after } if sent >= after => {
                let error = Error::new(ErrorKind::Changed, "the file has changed");
                self.fault(desk, job, &error);
                return Ok(true);
            }
            // A chunk is several groups: it is the one with such a group in it that does not come.
            Conduct::HangsUp { every }
                if (sent + CHUNK_BYTES / GROUP_BYTES) / every.max(1) > sent / every.max(1)
                    && position > range.start =>
            {
                *desk.sent_groups += 1;
                return Err(Error::new(ErrorKind::Interrupted, "hangs up"));
            }
            _ => {}
        }
        let len = CHUNK_BYTES.min(range.end - position);
        let now_ns = desk.network.now_ns();
        let read_ns = desk.disk.read(now_ns, position, len);
        let ready_ns = desk.processors.work(read_ns, len);
        self.chunk_bytes = Some(len);
        let what = Wakeup::Chunk(self.id);
        desk.network.clock.plan(ready_ns, Event::Process { node: desk.node, process: desk.process, what });
        Ok(false)
    }

    /// A chunk has been read and encrypted.
    pub(crate) fn chunk_ready(&mut self, desk: &mut Desk<'_>) {
        let (Some(len), Some((job, position))) = (self.chunk_bytes.take(), self.job) else { return };
        let head = FrameHead::new(FrameKind::Data, len as usize, job.request).encode();
        self.write(desk, head.to_vec());
        let first = *desk.sent_groups;
        *desk.sent_groups += len.div_ceil(GROUP_BYTES);
        let groups = first..*desk.sent_groups;
        let is_wrong = match desk.conduct {
            Conduct::Corrupts { every } => groups.clone().any(|group| group % every.max(1) == every - 1),
            Conduct::CorruptsOnce { after } => groups.contains(&after) && !job.recheck,
            _ => false,
        };
        if is_wrong {
            let mut bytes = desk.object.bytes(position, len).to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            self.write(desk, bytes);
        } else {
            desk.network.write(self.id, Side::Listener, Piece::Data { offset: position, len });
        }
        self.job = Some((job, position + len));
    }
}

fn end_frame(request: u32) -> Vec<u8> {
    FrameHead::new(FrameKind::End, 0, request).encode().to_vec()
}
