//! A channel over two pipes: ssh's standard input and output, or our own at the far end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl};

use super::{Channel, Duplex, Security, Wake, Wants, poll_fds, wait_readable, wait_writable};

/// Size asked of the kernel for each pipe, bytes; Linux allows this much to everybody unless set otherwise.
const PIPE_BYTES: usize = 1 << 20;
/// A pause is at most this long.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// A shorter pause would not be worth the timer.
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// A stream is judged by what passed in at least this time.
const PACE_WINDOW: Duration = Duration::from_millis(2);
/// Bytes kept of what comes first.
const OPENING_BYTES: usize = 512;

/// The first bytes that came through a pipe, for whoever must explain why they were no conversation.
pub type OpeningBytes = Arc<Mutex<Vec<u8>>>;

/// Two pipes, one a direction. Dropped, it leaves them blocking or not as it found them: that is a property of the open
/// file, and a shell that started us may share it.
#[derive(Debug)]
pub struct PipeChannel {
    input: OwnedFd,
    output: OwnedFd,
    /// What `input` and `output` were before.
    found: [OFlags; 2],
    arriving: Pace,
    leaving: Pace,
    received_bytes: u64,
    /// Where the first bytes are kept, until there are enough.
    opening: Option<OpeningBytes>,
}

/// How fast one direction flows, to know how long to leave it alone.
///
/// ssh moves at most 32 KiB at a time. Whoever waits for each of these pieces wakes up 30,000 times a GiB, and so does ssh
/// at the other end of the pipe. While a stream flows fast it is left alone until a quarter of the pipe will have passed.
#[derive(Debug)]
struct Pace {
    /// What the pipe holds.
    capacity_bytes: usize,
    since: Instant,
    bytes: usize,
    pause: Duration,
}

impl Pace {
    fn new(capacity_bytes: usize) -> Pace {
        Pace { capacity_bytes, since: Instant::now(), bytes: 0, pause: Duration::ZERO }
    }

    /// Counts bytes that passed.
    fn passed(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The pipe is empty (or full): how long it is best left alone.
    fn pause(&mut self) -> Duration {
        let elapsed = self.since.elapsed();
        if elapsed >= PACE_WINDOW {
            let quarter = elapsed.mul_f64(self.capacity_bytes as f64 / 4.0 / self.bytes.max(1) as f64);
            // A stream this slow has nothing to gain, and should not wait.
            self.pause = if quarter <= PAUSE_MAX && quarter >= PAUSE_MIN { quarter } else { Duration::ZERO };
            self.since = Instant::now();
            self.bytes = 0;
        }
        self.pause
    }
}

impl PipeChannel {
    /// Reads from `input`, writes to `output`; makes both non-blocking.
    pub fn new(input: OwnedFd, output: OwnedFd) -> io::Result<PipeChannel> {
        // Both are looked at before either is changed: they may be the same socket.
        let found = [fcntl_getfl(&input)?, fcntl_getfl(&output)?];
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        // Larger pipes mean fewer wake-ups of ssh; not all kernels or users may, and it works without.
        let [arriving, leaving] = [&input, &output].map(|pipe| {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
            Pace::new(rustix::pipe::fcntl_getpipe_size(pipe).unwrap_or(0))
        });
        Ok(PipeChannel { input, output, found, arriving, leaving, received_bytes: 0, opening: None })
    }

    /// Keeps a copy of the first 512 bytes that come from now on.
    pub fn keep_opening(&mut self) -> OpeningBytes {
        self.opening.insert(OpeningBytes::default()).clone()
    }

    fn note_opening(&mut self, read: &[u8]) {
        let Some(kept) = &self.opening else { return };
        let mut bytes = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = OPENING_BYTES - bytes.len();
        bytes.extend_from_slice(&read[..read.len().min(room)]);
        if read.len() >= room {
            drop(bytes);
            self.opening = None;
        }
    }
}

impl Drop for PipeChannel {
    fn drop(&mut self) {
        for (pipe, found) in [&self.input, &self.output].into_iter().zip(self.found) {
            if !found.contains(OFlags::NONBLOCK) {
                // Whoever closed it does not mind.
                let _ = rustix::io::ioctl_fionbio(pipe, false);
            }
        }
    }
}

impl Channel for PipeChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.input, &mut *out) {
                Ok(n) => {
                    self.arriving.passed(n);
                    self.received_bytes += n as u64;
                    self.note_opening(&out[..n]);
                    return Ok(Some(n));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let count = self.try_write(data)?;
            data = &data[count..];
            if count == 0 {
                let pause = self.leaving.pause();
                if pause.is_zero() {
                    wait_writable(self.output.as_fd())?;
                } else {
                    std::thread::sleep(pause);
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        let pause = self.arriving.pause().min(timeout);
        if !pause.is_zero() {
            match wake {
                None => std::thread::sleep(pause),
                Some(wake) => poll_fds(&mut [PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)], pause)?,
            }
        }
        wait_readable(self.input.as_fd(), wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        None
    }

    fn received_bytes(&self) -> u64 {
        self.received_bytes
    }
}

impl Duplex for PipeChannel {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.output, data) {
                Ok(n) => {
                    self.leaving.passed(n);
                    return Ok(n);
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if wants == (Wants { read: true, write: false }) {
            return self.wait(wake, timeout);
        }
        let pause = if wants.write { self.leaving.pause() } else { Duration::ZERO };
        let mut fds = Vec::with_capacity(3);
        fds.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)));
        if pause.is_zero() {
            if wants.read {
                fds.push(PollFd::new(&self.input, PollFlags::IN));
            }
            if wants.write {
                fds.push(PollFd::new(&self.output, PollFlags::OUT));
            }
        }
        let timeout = if pause.is_zero() { timeout } else { pause.min(timeout) };
        poll_fds(&mut fds, timeout)?;
        if let Some(wake) = wake {
            wake.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace_after(capacity_bytes: usize, bytes: usize, elapsed: Duration) -> Duration {
        let mut pace = Pace::new(capacity_bytes);
        pace.since = Instant::now().checked_sub(elapsed).unwrap();
        pace.passed(bytes);
        pace.pause()
    }

    /// A fast stream is left alone for about a quarter of its pipe; a slow one, and one whose pipe is small or unknown,
    /// is served at once.
    #[test]
    fn only_a_fast_stream_is_left_alone() {
        let window = Duration::from_millis(100);
        let pause = pace_after(1 << 20, 50 << 20, window);
        assert!(pause >= Duration::from_micros(500) && pause <= PAUSE_MAX, "{pause:?}");
        assert_eq!(pace_after(1 << 20, 1 << 20, window), Duration::ZERO, "10 MB/s");
        assert_eq!(pace_after(64 << 10, 50 << 20, window), Duration::ZERO, "a small pipe");
        assert_eq!(pace_after(0, 50 << 20, window), Duration::ZERO, "not a pipe");
        assert_eq!(pace_after(1 << 20, 0, window), Duration::ZERO, "nothing came");
        assert_eq!(Pace::new(1 << 20).pause(), Duration::ZERO, "just begun");
    }

    /// What a shell shares with us is afterwards as it was, also if both directions are one socket.
    #[test]
    fn pipes_are_left_as_they_were_found() {
        let is_blocking = |fd: &OwnedFd| !fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK);
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let near = OwnedFd::from(near);
        let (input, _kept) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&input, true).unwrap();
        for [ours, other] in [[&near, &near], [&near, &input], [&input, &near]] {
            let before = [is_blocking(ours), is_blocking(other)];
            let channel = PipeChannel::new(ours.try_clone().unwrap(), other.try_clone().unwrap()).unwrap();
            assert!(!is_blocking(ours) && !is_blocking(other));
            drop(channel);
            assert_eq!([is_blocking(ours), is_blocking(other)], before);
        }
    }

    /// What a far end said first can be shown, however long it talked.
    #[test]
    fn the_opening_is_kept() {
        let (input, far) = rustix::pipe::pipe().unwrap();
        let (_kept, output) = rustix::pipe::pipe().unwrap();
        let mut channel = PipeChannel::new(input, output).unwrap();
        let opening = channel.keep_opening();
        let mut said = b"Welcome".to_vec();
        rustix::io::write(&far, &said).unwrap();
        assert_eq!(channel.try_read(&mut [0; 3]).unwrap(), Some(3));
        assert_eq!(*opening.lock().unwrap(), b"Wel");
        rustix::io::write(&far, &[b'!'; 2000]).unwrap();
        said.extend([b'!'; 2000]);
        channel.try_read(&mut [0; 1000]).unwrap();
        channel.try_read(&mut [0; 1000]).unwrap();
        assert_eq!(*opening.lock().unwrap(), said[..OPENING_BYTES]);
    }

    /// Design 9: a side that has no room to write is woken by what comes to read, and the other way round.
    #[test]
    fn one_direction_does_not_wait_for_the_other() {
        let (input, far_output) = rustix::pipe::pipe().unwrap();
        let (far_input, output) = rustix::pipe::pipe().unwrap();
        let mut channel = PipeChannel::new(input, output).unwrap();
        let long = Duration::from_secs(600);
        let mut written = 0;
        loop {
            match channel.try_write(&[7; 64 * 1024]).unwrap() {
                0 => break,
                count => written += count,
            }
        }
        let wants = Wants { read: true, write: true };
        rustix::io::write(&far_output, b"heard").unwrap();
        // It may return early, so until something is there.
        let begun = Instant::now();
        while channel.try_read(&mut [0; 16]).unwrap().is_none() {
            channel.wait_for(wants, None, long).unwrap();
        }
        let mut drained = vec![0; written];
        rustix::io::read(&far_input, &mut drained).unwrap();
        while channel.try_write(b"room").unwrap() == 0 {
            channel.wait_for(wants, None, long).unwrap();
        }
        // And a wake ends it, when neither is wanted.
        let wake = Wake::new().unwrap();
        wake.signal();
        channel.wait_for(Wants { read: false, write: false }, Some(&wake), long).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300));
    }

    /// A pause must not keep a new request waiting: the wake event ends it.
    #[test]
    fn a_wake_ends_the_pause() {
        let (input, _kept) = rustix::pipe::pipe().unwrap();
        let (_far, output) = rustix::pipe::pipe().unwrap();
        let mut channel = PipeChannel::new(input, output).unwrap();
        channel.arriving.pause = Duration::from_secs(600);
        channel.arriving.since = Instant::now() + Duration::from_secs(600);
        let wake = Wake::new().unwrap();
        wake.signal();
        let begun = Instant::now();
        channel.wait(Some(&wake), Duration::from_secs(600)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300));
    }
}
