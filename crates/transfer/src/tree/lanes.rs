//! Direct connections beside the channel of a tree copy: contents travel over them, everything else stays on the channel.
//!
//! A lane is one connection. On the sending side [`SendLanes`] has a thread for each that answers what was asked for over it; on
//! the receiving side [`TakeLanes`] has one that hands what comes to the sink. One that says nothing while it owes something is given
//! up by the receiver, which asks for what it owed over another path.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{Message, ObjectName};
use dray_core::{Error, ErrorKind, Result};

use crate::transport::{Channel, read_exact};

mod sending;
mod taking;

pub use sending::SendLanes;
pub use taking::{Lane, TakeLanes};

pub(super) use sending::FILE_PATIENCE;
pub(super) use taking::{Arrived, LANES_FRAMES};

/// What lanes prove the secret over: not an object, but the copy that ssh began.
const COPY: ObjectName = ObjectName::Provisional([0; 32]);

pub(super) fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
