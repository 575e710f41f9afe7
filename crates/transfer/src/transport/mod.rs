//! Channels: byte streams between two nodes, over TCP + TLS, plain TCP or pipes.
//!
//! Descriptors are non-blocking; a thread that has nothing to do waits in `poll` for its channel and for its wake
//! event, so that new requests leave at once even while an answer is awaited.

mod clear;
mod compressed;
mod limit;
mod pipe;
mod places;
mod replayed;
mod tcp;
mod tls;
mod wake;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{Message, ObjectName};
use dray_core::rights::{Proof, ProofContext, Secret};
use dray_core::{Error, ErrorKind, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use clear::{CLEAR_PREAMBLE, ClearChannel};
pub use compressed::{CompressingChannel, UnpackingChannel};
pub use limit::{LimitedChannel, RateLimit};
pub use pipe::{OpeningBytes, PipeChannel};
pub use places::{Place, Places, counted_address};
pub(crate) use replayed::Replayed;
pub(crate) use tcp::{LONG_FROM, begin_unpaced};
pub use tcp::{connect_tcp, read_exact_by};
pub use tls::{NodeKey, TlsChannel, TlsConfig};
pub use wake::Wake;

/// A reliable, ordered byte stream in both directions.
pub trait Channel: Send {
    /// Reads what is there: `None` if nothing is, `Some(0)` at the end of the stream.
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>>;
    /// Writes everything, waiting for room as long as the peer lives.
    fn write_all(&mut self, data: &[u8]) -> io::Result<()>;
    /// Waits until something can be read, `wake` is signalled or `timeout` has passed.
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()>;
    /// The authenticated peer, and keying material only this connection has; `None` if something else (ssh)
    /// authenticated it.
    fn security(&self) -> Option<Security>;
    /// Sends bytes `offset..offset + len` of `file` without copying them through this process, if the channel can.
    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<bool> {
        let _ = (file, offset, len);
        Ok(false)
    }
    /// Writes control frames; the same stream as everything else unless [`Channel::has_control`].
    fn write_control(&mut self, data: &[u8]) -> io::Result<()> {
        self.write_all(data)
    }
    /// True if control frames travel on a stream of their own (clear-text data).
    fn has_control(&self) -> bool {
        false
    }
    /// Reads from the separate control stream.
    fn try_read_control(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let _ = out;
        Ok(None)
    }
    /// Bytes read from the socket or pipe so far, encryption and handshake included; 0 if it does not count.
    fn received_bytes(&self) -> u64 {
        0
    }
    /// What is known of a connection that fills its path by itself; `None` if several may bring more than one, or nobody knows.
    fn solo(&self) -> Option<Solo> {
        None
    }
    /// True if all that comes, or all that leaves, is compressed already.
    fn is_packed(&self) -> bool {
        false
    }
    /// The peer was waited for as long as `time`, for its next word while nothing was left to send.
    fn awaited(&mut self, time: Duration) {
        let _ = time;
    }
    /// True if [`Channel::send_file`] works.
    fn can_send_file(&self) -> bool {
        false
    }
    /// The peer has shown a right to something, or is owed something again: the connection keeps its [`Place`].
    fn keep_place(&self) {}
    /// The peer is owed nothing: after a while the connection may give way to others.
    fn rest(&self) {}
    /// The same connection as one whose directions do not wait for each other, where it can be that.
    fn into_duplex(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The same connection with answers over `data` in clear; only TLS channels can.
    fn into_clear_holder(self: Box<Self>, data: std::net::TcpStream) -> io::Result<Box<dyn Channel>> {
        drop(data);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A connection that fills its path by itself, unless something else holds it back: it is long, and its congestion control takes no loss for a full path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solo {
    /// What it can have under way, by the buffers of this machine.
    pub holds_bytes: u64,
    /// A bound on its round trip.
    pub round_trip: Duration,
}

/// What [`Duplex::wait_for`] waits for, besides being woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wants {
    /// Bytes to read, or the end of the stream.
    pub read: bool,
    /// Room for bytes to write.
    pub write: bool,
}

/// A channel whose directions never wait for each other: whoever has to write can go on reading meanwhile. Two sides that both
/// send much need it; with [`Channel::write_all`] each would wait for the other to read.
pub trait Duplex: Channel {
    /// Writes what there is room for now; how many bytes that was.
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize>;
    /// Waits until what is wanted is possible, `wake` is signalled or `timeout` has passed. May return before.
    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()>;
    /// True if bytes that were taken by [`Duplex::try_write`] have not left; they do while somebody waits.
    fn has_backlog(&self) -> bool {
        false
    }
}

/// What TLS proved about a connection.
#[derive(Clone, Copy, Debug)]
pub struct Security {
    /// The peer's key.
    pub peer: NodeId,
    /// See [`dray_core::rights::ProofContext::exporter`].
    pub exporter: [u8; 32],
}

impl Security {
    /// Shows the peer, which holds `object`, that `receiver` (this node) knows its secret.
    pub fn prove(&self, secret: &Secret, receiver: NodeId, object: &ObjectName) -> Proof {
        let context = ProofContext { exporter: self.exporter, holder: self.peer, receiver };
        Proof::new(secret, &context, object, 0..u64::MAX)
    }

    /// What the peer must show to `holder` (this node) if it knows the secret of `object`.
    pub fn expected_proof(&self, secret: &Secret, holder: NodeId, object: &ObjectName) -> Proof {
        let context = ProofContext { exporter: self.exporter, holder, receiver: self.peer };
        Proof::new(secret, &context, object, 0..u64::MAX)
    }
}

/// Waits for `fds`; a signal counts as a timeout.
pub(crate) fn poll_fds(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until `fd` is readable or `wake` is signalled.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
    match wake {
        None => poll_fds(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout),
        Some(wake) => {
            let mut fds = [
                PollFd::from_borrowed_fd(fd, PollFlags::IN),
                PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN),
            ];
            poll_fds(&mut fds, timeout)?;
            wake.clear();
            Ok(())
        }
    }
}

/// Waits until `fd` takes more bytes.
pub(crate) fn wait_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll_fds(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Duration::from_secs(1))
}

/// How often somebody who waits looks whether to go on.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Fills `out` from `channel`. `Unreachable` if the peer closes it before, `TimedOut` if it is not full by `deadline`.
pub fn read_exact(channel: &mut dyn Channel, out: &mut [u8], deadline: Instant) -> dray_core::Result<()> {
    read_exact_until(channel, out, deadline, &|| false)
}

/// [`read_exact`], `Interrupted` soon after `is_stopped` says yes.
pub fn read_exact_until(
    channel: &mut dyn Channel,
    out: &mut [u8],
    deadline: Instant,
    is_stopped: &dyn Fn() -> bool,
) -> dray_core::Result<()> {
    let lost = |error| Error::io("connection lost", error);
    let mut filled = 0;
    while filled < out.len() {
        match channel.try_read(&mut out[filled..]).map_err(lost)? {
            Some(0) => {
                return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
            }
            Some(n) => filled += n,
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing in time"));
                }
                if is_stopped() {
                    return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
                }
                channel.wait(None, left.min(STOP_INTERVAL)).map_err(lost)?;
            }
        }
    }
    Ok(())
}

/// Appends a control frame to `out`.
pub fn push_control(out: &mut Vec<u8>, message: &Message) {
    let body = message.to_bytes();
    out.extend_from_slice(&FrameHead::new(FrameKind::Control, body.len(), 0).encode());
    out.extend_from_slice(&body);
}

/// Collects control frames from a channel without blocking, for the side that mostly sends.
#[derive(Debug, Default)]
pub(crate) struct ControlReader {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that have been handed out.
    taken: usize,
    ended: bool,
}

impl ControlReader {
    /// Bytes kept of frames that are not complete; one largest control frame and a read.
    const CAPACITY: usize = dray_core::limits::CONTROL_FRAME_BYTES_MAX + 16 * 1024;

    /// Reads what the channel has. `Ok(false)` at the end of the stream.
    pub(crate) fn fill(&mut self, channel: &mut dyn Channel) -> io::Result<bool> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        let mut chunk = [0; 4096];
        while !self.ended && self.bytes.len() < Self::CAPACITY {
            match channel.try_read(&mut chunk)? {
                None => break,
                Some(0) => self.ended = true,
                Some(n) => self.bytes.extend_from_slice(&chunk[..n]),
            }
        }
        Ok(!self.ended)
    }

    /// What was read and handed out to nobody.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.drain(..self.taken);
        bytes
    }

    /// The next complete frame, if there is one. The head has been checked by `check`.
    pub(crate) fn next(
        &mut self,
        check: &dyn Fn(FrameHead) -> dray_core::Result<()>,
    ) -> dray_core::Result<Option<Vec<u8>>> {
        let Some((head, rest)) = self.bytes[self.taken..].split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let head = FrameHead::decode(*head)?;
        check(head)?;
        if rest.len() < head.body_bytes {
            return Ok(None);
        }
        let body = rest[..head.body_bytes].to_vec();
        self.taken += FRAME_HEAD_BYTES + head.body_bytes;
        Ok(Some(body))
    }
}
