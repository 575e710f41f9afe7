//! Listening: bounded numbers of connections, deadlines before a peer is known, clear-text data told from TLS by its
//! first bytes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::{CONNECTIONS_MAX, HELLO_TIMEOUT_MS};
use dray_core::{Error, ErrorKind, Result};

use crate::holder::ClearGrantor;
use crate::transport::{
    CLEAR_PREAMBLE, Place, Places, TlsChannel, TlsConfig, Wake, begin_unpaced, read_exact_by,
};

/// A listening socket and what it needs to tell its connections apart.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    tls: TlsConfig,
    tokens: Arc<ClearTokens>,
    places: Arc<Places>,
    stopped: AtomicBool,
    wake: Wake,
}

/// Tokens granted for clear-text data connections and not used yet. Each works once, within the hello timeout.
#[derive(Debug, Default)]
pub struct ClearTokens(Mutex<HashMap<[u8; 16], Sender<TcpStream>>>);

impl ClearTokens {
    /// A new token, and the means to wait for the connection that shows it.
    pub fn grant(self: &Arc<ClearTokens>) -> Result<ClearGrantor> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| {
            Error::new(ErrorKind::Internal, "no random bytes").caused_by(error.to_string())
        })?;
        let (sender, receiver): (_, Receiver<TcpStream>) = channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= CONNECTIONS_MAX {
            return Err(Error::new(ErrorKind::Refused, "too many connections"));
        }
        waiting.insert(token, sender);
        // Forgets the token when the wait ends, or is dropped before it began.
        let granted = Granted { tokens: self.clone(), token };
        let wait = move || {
            let got = receiver.recv_timeout(Duration::from_millis(HELLO_TIMEOUT_MS));
            drop(granted);
            got.map_err(|_| Error::new(ErrorKind::TimedOut, "clear-text data connection did not come"))
        };
        Ok((token, Box::new(wait)))
    }

    fn show(&self, token: &[u8; 16], socket: TcpStream) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(token);
        if let Some(waiting) = waiting {
            let _ = waiting.send(socket);
        }
    }
}

struct Granted {
    tokens: Arc<ClearTokens>,
    token: [u8; 16],
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.tokens.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

impl Listener {
    /// Listens on all addresses, IPv6 and IPv4, at `port`, or at one the system chooses.
    pub fn bind(tls: TlsConfig, port: Option<u16>) -> Result<Listener> {
        let port = port.unwrap_or(0);
        let both = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        let socket = both
            .or_else(|error| {
                if error.kind() == io::ErrorKind::AddrInUse {
                    return Err(error);
                }
                TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            })
            .map_err(|error| {
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                let what = format!("cannot listen on TCP port {port}");
                if is_taken {
                    // Nobody was asked in vain, so it is not unreachable: this machine says no, as it does to a
                    // destination that another command holds.
                    Error::new(ErrorKind::Refused, what)
                        .caused_by(error)
                        .advise("another program has it: stop that one, or choose another port")
                } else {
                    Error::io(what, error)
                }
            })?;
        let failed = |error: io::Error| Error::io("prepare to listen", error);
        socket.set_nonblocking(true).map_err(failed)?;
        begin_unpaced(&socket);
        Ok(Listener {
            socket,
            tls,
            tokens: Arc::default(),
            places: Arc::new(Places::new(CONNECTIONS_MAX)),
            stopped: AtomicBool::new(false),
            wake: Wake::new().map_err(failed)?,
        })
    }

    /// The port.
    pub fn port(&self) -> Result<u16> {
        self.socket.local_addr().map(|address| address.port()).map_err(|error| Error::io("listen", error))
    }

    /// Tokens for clear-text data connections to this listener.
    pub fn clear_tokens(&self) -> Arc<ClearTokens> {
        self.tokens.clone()
    }

    /// The same listener, whose tokens and connections count as those of `other`.
    #[must_use]
    pub fn beside(mut self, other: &Listener) -> Listener {
        (self.tokens, self.places) = (other.tokens.clone(), other.places.clone());
        self
    }

    /// Ends [`Listener::accept_all`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.signal();
    }

    /// Accepts until stopped; each connection whose peer has proven its key gets a thread that runs `serve`. With
    /// [`CONNECTIONS_MAX`] of them, the oldest that has opened no object gives way to the next.
    pub fn accept_all(&self, serve: Arc<dyn Fn(TlsChannel) + Send + Sync>) {
        while !self.stopped.load(Ordering::Acquire) {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    // Dropped at once where there is none: the peer sees a closed connection and may come again.
                    let Some(place) = self.places.take(&socket) else { continue };
                    let (tls, tokens, serve) = (self.tls.clone(), self.tokens.clone(), serve.clone());
                    let spawned = thread::Builder::new().spawn(move || {
                        let place = Arc::new(place);
                        greet(&tls, &tokens, socket, &place, &*serve);
                    });
                    drop(spawned);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = crate::transport::wait_readable(
                        self.socket.as_fd(),
                        Some(&self.wake),
                        // Woken at the end; only a signal that is lost is waited for so long.
                        Duration::from_secs(60),
                    );
                }
                // Out of descriptors or a connection that died in the queue: wait a little, never spin.
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

fn greet(
    tls: &TlsConfig,
    tokens: &ClearTokens,
    socket: TcpStream,
    place: &Arc<Place>,
    serve: &dyn Fn(TlsChannel),
) {
    let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    match first_byte(&socket, deadline) {
        Some(first) if first == CLEAR_PREAMBLE[0] => {
            let mut preamble = [0; 24];
            if read_exact_by(&socket, &mut preamble, deadline).is_err() {
                return;
            }
            let (magic, token) = preamble.split_at(CLEAR_PREAMBLE.len());
            if magic == CLEAR_PREAMBLE
                && let Ok(token) = <&[u8; 16]>::try_from(token)
            {
                tokens.show(token, socket);
            }
        }
        Some(_) => {
            // A peer that fails the handshake has been told by an alert; there is nobody else to tell.
            if let Ok(mut channel) = tls.accept(socket, deadline) {
                channel.has_place(place.clone());
                serve(channel);
            }
        }
        None => {}
    }
}

/// Looks at the first byte without taking it.
fn first_byte(socket: &TcpStream, deadline: Instant) -> Option<u8> {
    let mut first = [0];
    loop {
        match socket.peek(&mut first) {
            Ok(0) => return None,
            Ok(_) => return Some(first[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                crate::transport::wait_readable(socket.as_fd(), None, left).ok()?;
            }
            Err(_) => return None,
        }
    }
}
