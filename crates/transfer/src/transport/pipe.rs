//! A channel over two pipes: ssh's standard input and output, or our own at the far end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::{Channel, Security, Wake, wait_readable, wait_writable};

/// Two pipes, one a direction.
#[derive(Debug)]
pub struct PipeChannel {
    input: OwnedFd,
    output: OwnedFd,
}

impl PipeChannel {
    /// Reads from `input`, writes to `output`; makes both non-blocking.
    pub fn new(input: OwnedFd, output: OwnedFd) -> io::Result<PipeChannel> {
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        // Larger pipes mean fewer wake-ups of ssh; not all kernels or users may, and it works without.
        let _ = rustix::pipe::fcntl_setpipe_size(&input, 1 << 20);
        let _ = rustix::pipe::fcntl_setpipe_size(&output, 1 << 20);
        Ok(PipeChannel { input, output })
    }
}

impl Channel for PipeChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.input, &mut *out) {
                Ok(n) => return Ok(Some(n)),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match rustix::io::write(&self.output, data) {
                Ok(n) => data = &data[n..],
                Err(rustix::io::Errno::AGAIN) => wait_writable(self.output.as_fd())?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        wait_readable(self.input.as_fd(), wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        None
    }
}
