//! Clear-text data: control both ways over TLS, the bytes over a plain TCP connection beside it (design decision 5).
//!
//! Only for proven objects: whoever alters the plain bytes is noticed by the hash tree, and nothing that grants a
//! right travels in clear.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::tcp::{configure, copy_congestion_control, tcp_read, tcp_write_all};
use super::{Channel, Security, Solo, TlsChannel, Wake, poll_fds, wait_writable};
use rustix::event::{PollFd, PollFlags};

/// First bytes of a clear-text data connection; no TLS record begins like this. 16 bytes of token follow.
pub const CLEAR_PREAMBLE: &[u8; 8] = b"DRAYCLR1";

/// A TLS connection for requests and control, and a plain one for the frames of answers.
#[derive(Debug)]
pub struct ClearChannel {
    control: TlsChannel,
    data: TcpStream,
    data_received_bytes: u64,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Writes the frames of requests' answers in clear; everything else goes over TLS.
    Holder,
    /// Reads the frames of answers in clear; everything else goes over TLS.
    Receiver,
}

impl ClearChannel {
    /// The receiver's end; `data` has said its preamble.
    pub fn receiver(control: TlsChannel, data: TcpStream) -> io::Result<ClearChannel> {
        configure(&data)?;
        Ok(ClearChannel { control, data, data_received_bytes: 0, role: Role::Receiver })
    }

    /// The holder's end.
    pub fn holder(control: TlsChannel, data: TcpStream) -> io::Result<ClearChannel> {
        configure(&data)?;
        copy_congestion_control(control.socket(), &data);
        Ok(ClearChannel { control, data, data_received_bytes: 0, role: Role::Holder })
    }
}

impl Channel for ClearChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match self.role {
            Role::Holder => self.control.try_read(out),
            Role::Receiver => {
                let got = tcp_read(&self.data, out)?;
                self.data_received_bytes += got.unwrap_or(0) as u64;
                Ok(got)
            }
        }
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        match self.role {
            Role::Holder => tcp_write_all(&self.data, data),
            Role::Receiver => self.control.write_all(data),
        }
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        match self.role {
            Role::Holder => self.control.wait(wake, timeout),
            Role::Receiver => {
                let mut fds = vec![
                    PollFd::new(&self.data, PollFlags::IN),
                    PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
                ];
                fds.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)));
                poll_fds(&mut fds, timeout)?;
                if let Some(wake) = wake {
                    wake.clear();
                }
                Ok(())
            }
        }
    }

    fn write_control(&mut self, data: &[u8]) -> io::Result<()> {
        self.control.write_all(data)
    }

    fn has_control(&self) -> bool {
        self.role == Role::Receiver
    }

    fn try_read_control(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.control.try_read(out)
    }

    fn security(&self) -> Option<Security> {
        self.control.security()
    }

    fn solo(&self) -> Option<Solo> {
        self.control.solo()
    }

    fn keep_place(&self) {
        self.control.keep_place();
    }

    fn rest(&self) {
        self.control.rest();
    }

    fn received_bytes(&self) -> u64 {
        self.control.received_bytes() + self.data_received_bytes
    }

    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<bool> {
        if self.role == Role::Receiver {
            return Ok(false);
        }
        let mut position = offset;
        let end = offset + len as u64;
        while position < end {
            let left = usize::try_from(end - position).unwrap_or(usize::MAX);
            match rustix::fs::sendfile(&self.data, file, Some(&mut position), left) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "file became shorter while it was sent",
                    ));
                }
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => wait_writable(self.data.as_fd())?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn can_send_file(&self) -> bool {
        self.role == Role::Holder
    }
}
