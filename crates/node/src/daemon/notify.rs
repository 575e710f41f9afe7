//! Telling systemd how far we are (sd_notify(3)): a datagram to the socket that `NOTIFY_SOCKET` names. Without one, nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Requests are answered from now on.
pub(super) fn ready() {
    tell("READY=1");
}

/// The configuration is being read again; [`ready`] says when it was.
pub(super) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
}

/// The end has begun.
pub(super) fn stopping() {
    tell("STOPPING=1");
}

/// Best effort: whoever asked to be told and does not listen gives up by its own time limit.
fn tell(text: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden),
        None => SocketAddr::from_pathname(&name),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(text.as_bytes(), &address);
    }
}
