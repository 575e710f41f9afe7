//! Handing a file descriptor to the daemon over the sibling socket.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sockopt};

use crate::dial::dial;

/// Hands `file` over and returns the name it has in requests. Waits at most `patience` for it to be taken.
pub(crate) fn hand_over(socket: &Path, file: impl AsFd, patience: Duration) -> Result<String> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unreachable, "the daemon does not take the descriptor").caused_by(error)
    };
    let mut nonce = [0; 16];
    let mut random = std::fs::File::open("/dev/urandom").map_err(failed)?;
    random.read_exact(&mut nonce).map_err(failed)?;
    let connection = dial(socket, SocketType::SEQPACKET)?
        .ok_or_else(|| failed(std::io::ErrorKind::ConnectionRefused.into()))?;
    sockopt::set_socket_timeout(&connection, sockopt::Timeout::Recv, Some(patience))
        .map_err(|error| failed(error.into()))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(&connection, &[IoSlice::new(&nonce)], &mut control, SendFlags::NOSIGNAL)
        .map_err(|error| failed(error.into()))?;
    // Without its answer a request that names the descriptor could be faster than the descriptor.
    let mut answer = [0; 1];
    match rustix::io::retry_on_intr(|| rustix::net::recv(&connection, &mut answer, RecvFlags::empty())) {
        Ok((_, 1)) => Ok(hex(&nonce)),
        Ok(_) => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err(failed(error.into())),
    }
}
