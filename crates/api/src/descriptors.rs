//! File descriptors handed over: a client connects to the sibling socket, sends one message of 16 random bytes and one
//! descriptor (`SCM_RIGHTS`), and hears one byte back. HTTP requests then name the descriptor by these bytes (design 13).

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dray_core::limits::{API_DESCRIPTOR_TIMEOUT_MS, API_DESCRIPTORS_MAX};
use dray_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketFlags, sockopt,
};

/// For a client that has connected to send its message.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(2);
/// For one to be heard before the next one is accepted.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How often those that wait too long are looked for, as long as there are some.
const INTERVAL: Duration = Duration::from_secs(1);

/// The name of a descriptor on its way.
pub type Nonce = [u8; 16];

/// Descriptors that were handed over and are not used yet.
#[derive(Debug)]
pub struct Descriptors {
    waiting: Mutex<HashMap<Nonce, (OwnedFd, Instant)>>,
    ended: AtomicBool,
    /// Connections whose message has not come.
    greeted: AtomicUsize,
    /// An event, for the thread that accepts: something waits, or this is the end.
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Descriptors {
    /// Takes descriptors of this process's user on `listener`, a listening `SOCK_SEQPACKET` socket.
    pub fn start(listener: OwnedFd) -> Result<Arc<Descriptors>> {
        let failed = |error: std::io::Error| Error::file("start taking descriptors", error);
        rustix::io::ioctl_fionbio(&listener, true).map_err(|error| failed(error.into()))?;
        let descriptors = Arc::new(Descriptors {
            waiting: Mutex::default(),
            ended: AtomicBool::new(false),
            greeted: AtomicUsize::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| failed(error.into()))?,
            thread: Mutex::default(),
        });
        let shared = descriptors.clone();
        let run = move || shared.accept_all(&listener);
        let thread = thread::Builder::new().name("descriptors".into()).spawn(run).map_err(failed)?;
        *descriptors.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(descriptors)
    }

    /// The descriptor that was handed over under `nonce`; each is had once. `NotFound` if there is none.
    pub fn take(&self, nonce: &Nonce) -> Result<OwnedFd> {
        let taken = self.waiting().remove(nonce);
        let in_time = match taken {
            Some((descriptor, since)) if is_too_old(since) => {
                close_aside(vec![descriptor]);
                None
            }
            taken => taken.map(|(descriptor, _)| descriptor),
        };
        in_time.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "no descriptor was handed over under that name")
                .advise("send it over the sibling socket first, and use it within 30 s")
        })
    }

    /// Takes no more, and closes those that wait.
    pub fn stop(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        close_aside(self.waiting().drain().map(|(_, (descriptor, _))| descriptor).collect());
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then it is signalled.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What waits.
    fn waiting(&self) -> MutexGuard<'_, HashMap<Nonce, (OwnedFd, Instant)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what has waited too long; says whether something is left.
    fn close_old(&self) -> bool {
        let mut waiting = self.waiting();
        let old = waiting.extract_if(|_, (_, since)| is_too_old(*since));
        let old: Vec<OwnedFd> = old.map(|(_, (descriptor, _))| descriptor).collect();
        let is_left = !waiting.is_empty();
        drop(waiting);
        close_aside(old);
        is_left
    }

    fn accept_all(self: &Arc<Self>, listener: &OwnedFd) {
        while !self.ended.load(Ordering::Acquire) {
            let patience = Some(INTERVAL).filter(|_| self.close_old());
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
            if poll(&mut fds, patience.as_ref()).is_err_and(|error| error != Errno::INTR) {
                thread::sleep(Duration::from_millis(20));
            }
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            let connection = match accepted {
                Ok(connection) => connection,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
                // Out of descriptors: wait a little, never spin.
                Err(_) => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
            };
            let us = rustix::process::geteuid();
            if sockopt::socket_peercred(&connection).map(|peer| peer.uid).ok() != Some(us) {
                continue;
            }
            if self.greeted.fetch_add(1, Ordering::AcqRel) >= API_DESCRIPTORS_MAX {
                self.greeted.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let greeting = Greeting(self.clone());
            // Who sends at once, as all do that mean well, needs no thread.
            if is_readable(&connection, AT_ONCE) {
                greeting.0.hear(&connection);
                continue;
            }
            let _ =
                thread::Builder::new().name("descriptor".into()).spawn(move || greeting.0.hear(&connection));
        }
    }

    /// One message of one client. Whatever is wrong with it, the connection is closed without an answer.
    fn hear(&self, connection: &OwnedFd) {
        let Some((nonce, descriptor)) = receive(connection) else { return };
        let mut waiting = self.waiting();
        if waiting.len() >= API_DESCRIPTORS_MAX || waiting.contains_key(&nonce) {
            drop(waiting);
            return close_aside(vec![descriptor]);
        }
        waiting.insert(nonce, (descriptor, Instant::now()));
        drop(waiting);
        self.wake();
        let _ = rustix::net::send(connection, b"k", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

fn is_too_old(since: Instant) -> bool {
    since.elapsed() >= Duration::from_millis(API_DESCRIPTOR_TIMEOUT_MS)
}

/// Closes files of others where nobody waits for it: to close one on a file system that does not answer takes as long as that likes.
fn close_aside(descriptors: Vec<OwnedFd>) {
    if !descriptors.is_empty() {
        // Where no thread can be had, here.
        let _ = thread::Builder::new().name("close".into()).spawn(move || drop(descriptors));
    }
}

struct Greeting(Arc<Descriptors>);

impl Drop for Greeting {
    fn drop(&mut self) {
        self.0.greeted.fetch_sub(1, Ordering::AcqRel);
    }
}

fn receive(connection: &OwnedFd) -> Option<(Nonce, OwnedFd)> {
    if !is_readable(connection, MESSAGE_PATIENCE) {
        return None;
    }
    let mut bytes = [0; 17];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    // More than one was cut off by the kernel, and closed.
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if is_cut || descriptors.len() != 1 || received.bytes != 16 {
        close_aside(descriptors);
        return None;
    }
    let nonce = bytes[..16].try_into().ok()?;
    Some((nonce, descriptors.pop()?))
}

fn is_readable(socket: &OwnedFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut fds, Some(&patience)) {
        Ok(ready) => ready > 0,
        Err(Errno::INTR) => false,
        Err(_) => {
            thread::sleep(Duration::from_millis(20));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Seek};
    use std::os::fd::{AsFd, BorrowedFd};

    use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketAddrUnix, SocketType};

    use super::*;

    struct Bed {
        dir: tempfile::TempDir,
        descriptors: Arc<Descriptors>,
    }

    impl Bed {
        fn new() -> Bed {
            let dir = tempfile::tempdir().unwrap();
            let listener = socket();
            rustix::net::bind(&listener, &SocketAddrUnix::new(dir.path().join("fd")).unwrap()).unwrap();
            rustix::net::listen(&listener, 16).unwrap();
            Bed { dir, descriptors: Descriptors::start(listener).unwrap() }
        }

        /// Whether the other end said that it took the message.
        fn send(&self, nonce: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
            let socket = socket();
            rustix::net::connect(&socket, &SocketAddrUnix::new(self.dir.path().join("fd")).unwrap()).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
            }
            rustix::net::sendmsg(&socket, &[IoSlice::new(nonce)], &mut control, SendFlags::NOSIGNAL).unwrap();
            let mut answer = [0; 1];
            rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).is_ok_and(|(_, bytes)| bytes == 1)
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.descriptors.stop();
        }
    }

    fn socket() -> OwnedFd {
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
    }

    /// Design 13, D9: a descriptor arrives, and is had once.
    #[test]
    fn a_descriptor_is_had_once() {
        let bed = Bed::new();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"these bytes").unwrap();
        file.rewind().unwrap();
        assert!(bed.send(&[7; 16], &[file.as_fd()]));
        let mut text = String::new();
        std::fs::File::from(bed.descriptors.take(&[7; 16]).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "these bytes");
        assert_eq!(bed.descriptors.take(&[7; 16]).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(bed.descriptors.take(&[8; 16]).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Design 17: whatever else is sent is not taken, and more than the limit neither.
    #[test]
    fn other_messages_are_not_taken() {
        let bed = Bed::new();
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        assert!(!bed.send(&[1; 15], &[fd]));
        assert!(!bed.send(&[1; 17], &[fd]));
        assert!(!bed.send(&[1; 16], &[]));
        assert!(!bed.send(&[1; 16], &[fd, fd, fd]));
        assert!(bed.send(&[1; 16], &[fd]));
        assert!(!bed.send(&[1; 16], &[fd]), "a name that is in use");
        for number in 2..=API_DESCRIPTORS_MAX as u8 {
            assert!(bed.send(&[number; 16], &[fd]), "{number}");
        }
        assert!(!bed.send(&[200; 16], &[fd]), "one too many");
        bed.descriptors.take(&[1; 16]).unwrap();
        assert!(bed.send(&[200; 16], &[fd]));
    }
}
