//! Handing a file descriptor to the daemon over the sibling socket.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use dray_core::{Error, ErrorKind, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};

/// Hands `file` over and returns the name it has in requests. Waits at most `patience` for it to be taken.
pub(crate) fn hand_over(socket: &Path, file: impl AsFd, patience: Duration) -> Result<String> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unreachable, "the daemon does not take the descriptor").caused_by(error)
    };
    let mut nonce = [0; 16];
    let mut random = std::fs::File::open("/dev/urandom").map_err(failed)?;
    random.read_exact(&mut nonce).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC;
    let connection: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(socket).map_err(|error| failed(error.into()))?;
    rustix::net::connect(&connection, &address).map_err(|error| failed(error.into()))?;
    let peer = sockopt::socket_peercred(&connection).map_err(|error| failed(error.into()))?;
    if peer.uid != rustix::process::geteuid() {
        return Err(Error::new(ErrorKind::Refused, format!("another user listens at {socket:?}")));
    }
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
    match rustix::net::recv(&connection, &mut answer, RecvFlags::empty()) {
        Ok((_, 1)) => Ok(nonce.iter().map(|byte| format!("{byte:02x}")).collect()),
        Ok(_) => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err(failed(error.into())),
    }
}
