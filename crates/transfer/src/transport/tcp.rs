//! TCP sockets: how they are set up, and reading and writing without blocking.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{poll_fds, wait_writable};

/// Congestion control that sends by a timer of its own.
const PACED: &str = "bbr";
/// What takes its place on a short path: the first of these that this machine has and allows.
const UNPACED: [&str; 2] = ["cubic", "reno"];
/// A path with a round trip this long or longer keeps the congestion control of the system.
pub(crate) const LONG_FROM: Duration = Duration::from_millis(2);

/// Non-blocking, no delay, and dead peers are noticed within about 30 s even when nothing is sent.
pub(super) fn configure(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    // Keepalive says nothing while sent data is not acknowledged; this does.
    sockopt::set_tcp_user_timeout(socket, 30_000)?;
    Ok(())
}

/// Reads what is there; `None` if nothing is.
pub(super) fn tcp_read(mut socket: &TcpStream, out: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match socket.read(out) {
            Ok(n) => return Ok(Some(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes everything, waiting for room.
pub(super) fn tcp_write_all(mut socket: &TcpStream, mut data: &[u8]) -> io::Result<()> {
    use io::Write;
    while !data.is_empty() {
        match socket.write(data) {
            Ok(n) => data = &data[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(socket.as_fd())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects to one address within `timeout`. How its congestion control is chosen: [`begin_unpaced`].
pub fn connect_tcp(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = tcp_socket(&address)?;
    begin_unpaced(&socket);
    let deadline = Instant::now() + timeout;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => await_connection(&socket, deadline)?,
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Waits until a connection that was begun is made, or cannot be.
fn await_connection(socket: &OwnedFd, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        }
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        poll_fds(&mut fds, left)?;
        if !fds[0].revents().is_empty() {
            return sockopt::socket_error(socket)?.map_err(io::Error::from);
        }
    }
}

/// A socket that connects to nobody yet, non-blocking.
fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Leaves the congestion control of the system, if that paces by a timer, for one that does not. To be called before there is a
/// connection: the timer, once begun, stays. On a short path the timer costs a third of the processor time of a transfer and gains nothing;
/// whether it is one is known after the handshake ([`settle_congestion_control`]).
pub(crate) fn begin_unpaced(socket: impl AsFd) {
    let is_paced = sockopt::tcp_congestion(&socket).is_ok_and(|name| name == PACED);
    if is_paced {
        // Where none is allowed, all stays as it is.
        let _ = UNPACED.iter().any(|name| sockopt::set_tcp_congestion(&socket, name).is_ok());
    }
}

/// Gives a connection the congestion control of the system unless its path is short: `answered_in` is a bound on its round trip.
pub(super) fn settle_congestion_control(socket: &TcpStream, answered_in: Duration) {
    if answered_in < LONG_FROM {
        return;
    }
    let Ok(address) = socket.local_addr() else { return };
    let Ok(default) = tcp_socket(&address).and_then(|fresh| Ok(sockopt::tcp_congestion(fresh)?)) else {
        return;
    };
    if default == PACED {
        let _ = sockopt::set_tcp_congestion(socket, &default);
    }
}

/// What a connection can have under way by the buffers of this machine, if its congestion control fills a path whatever is lost on it, so that
/// another one beside it gains nothing by itself: BBR, and so on long paths alone. `None` for all others.
pub(super) fn solo_bytes(socket: &TcpStream) -> Option<u64> {
    if sockopt::tcp_congestion(socket).ok()? != PACED {
        return None;
    }
    // The least, the first and the greatest size; the first two say nothing of what it can grow to.
    let greatest = |name: &str| -> Option<u64> {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        sizes.split_whitespace().last()?.parse().ok()
    };
    // Of its reader's buffer the kernel offers about half to the sender. The sender's own is the other machine's, which is likely to be set as this one.
    Some((greatest("tcp_rmem")? / 2).min(greatest("tcp_wmem")?))
}

/// Gives `to` the congestion control of `from`, another connection to the same peer.
pub(super) fn copy_congestion_control(from: &TcpStream, to: &TcpStream) {
    if let Ok(name) = sockopt::tcp_congestion(from) {
        let _ = sockopt::set_tcp_congestion(to, &name);
    }
}

/// Reads exactly `out` from a socket that is not TLS (yet), within `deadline`.
pub fn read_exact_by(socket: &TcpStream, out: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match tcp_read(socket, &mut out[filled..])? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(n) => filled += n,
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                poll_fds(&mut [PollFd::new(socket, PollFlags::IN)], left.min(Duration::from_secs(1)))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// P1: where the system paces by a timer, a connection begins without, and has it again if its path turns out to be long. Where the
    /// system does not, nothing is ever changed.
    #[test]
    fn only_a_long_path_is_paced() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let name = |socket: &TcpStream| sockopt::tcp_congestion(socket).unwrap();
        let default = sockopt::tcp_congestion(tcp_socket(&address).unwrap()).unwrap();
        let listener = TcpListener::bind(address).unwrap();
        begin_unpaced(&listener);
        let dialled = connect_tcp(listener.local_addr().unwrap(), Duration::from_secs(60)).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for socket in [&dialled, &accepted] {
            let begun = name(socket);
            assert!(if default == PACED { UNPACED.contains(&&*begun) } else { begun == default }, "{begun}");
            settle_congestion_control(socket, LONG_FROM / 2);
            assert_eq!(name(socket), begun);
            settle_congestion_control(socket, LONG_FROM);
            assert_eq!(name(socket), default);
        }
        let other = connect_tcp(listener.local_addr().unwrap(), Duration::from_secs(60)).unwrap();
        copy_congestion_control(&dialled, &other);
        assert_eq!(name(&other), default, "the same as another connection to that peer");
    }

    /// Who does not listen refuses, and that is the error; one who says nothing is waited for until the deadline.
    #[test]
    fn a_connection_fails_as_the_kernel_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let refused = connect_tcp(address, Duration::from_secs(60)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

        // The kernel answers for nobody once the queue of connections that were not accepted is full.
        let silent = tcp_socket(&address).unwrap();
        rustix::net::bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
        let mut queued = Vec::new();
        let error = loop {
            assert!(queued.len() < 64, "the queue never fills");
            match connect_tcp(address, Duration::from_millis(200)) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
