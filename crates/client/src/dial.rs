//! Connecting to a socket of the daemon: in time, and only to one of this user.

use std::io::ErrorKind as Io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use dray_core::{Error, ErrorKind, Result};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// For whoever listens to take the connection: where many wait already, it is not answering them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// For it to take what is written.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// A connection to whoever listens at `path`; `None` if nobody does. `Refused` if another user does, `TimedOut` if nobody takes it within
/// `patience`.
pub(crate) fn dial(path: &Path, kind: SocketType, patience: Duration) -> Result<Option<OwnedFd>> {
    let failed = |error: std::io::Error| Error::file(format!("connect to the daemon at {path:?}"), error);
    let connect = || {
        let address = SocketAddrUnix::new(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        rustix::net::connect(&socket, &address)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(WRITE_PATIENCE))?;
        Ok(socket)
    };
    let socket = match connect().map_err(|error: rustix::io::Errno| std::io::Error::from(error)) {
        Ok(socket) => socket,
        Err(error) if matches!(error.kind(), Io::NotFound | Io::ConnectionRefused | Io::NotADirectory) => {
            return Ok(None);
        }
        Err(error) if error.kind() == Io::WouldBlock => {
            let what = format!("the daemon at {path:?} takes no connection");
            return Err(Error::new(ErrorKind::TimedOut, what)
                .advise("it is stopped or stuck: let it go on, or end it and start it again"));
        }
        Err(error) => return Err(failed(error)),
    };
    let peer = sockopt::socket_peercred(&socket).map_err(|error| failed(error.into()))?;
    if peer.uid != rustix::process::geteuid() {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("the daemon at {path:?} runs as user {}, not as you", peer.uid.as_raw()),
        )
        .advise("unset DRAY_SOCKET, or set it to a socket of your own daemon"));
    }
    Ok(Some(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 9: who is connected to by more than it lets wait, and takes none, is an error in time.
    #[test]
    fn nobody_waits_without_end_to_be_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut taken = Vec::new();
        let error = loop {
            match dial(&path, SocketType::STREAM, PATIENCE / 10) {
                Ok(socket) => taken.push(socket.unwrap()),
                Err(error) => break error,
            }
            assert!(taken.len() < 10);
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
}
