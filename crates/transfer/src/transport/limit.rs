//! A limit on what leaves: bytes a second over all channels that share it (`cp --bwlimit`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Channel, Duplex, Security, Wake, Wants};

/// A piece takes about this long.
const PIECE_TIME: Duration = Duration::from_millis(20);
const PIECE_BYTES_MIN: u64 = 512;
const PIECE_BYTES_MAX: u64 = 256 * 1024;
/// Time that was not used and may be made up for.
const BURST: Duration = Duration::from_millis(40);

/// Bytes a second, shared by whoever holds it.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_s: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the next byte may leave.
    free_at: Instant,
    /// When bytes last left.
    left_at: Instant,
}

impl RateLimit {
    /// `bytes_per_s` bytes a second; 0 counts as 1.
    pub fn new(bytes_per_s: u64) -> Arc<RateLimit> {
        let now = Instant::now();
        let state = Mutex::new(State { free_at: now, left_at: now });
        Arc::new(RateLimit { bytes_per_s: bytes_per_s.max(1), state })
    }

    fn piece_bytes(&self) -> u64 {
        (self.bytes_per_s / (1000 / PIECE_TIME.as_millis() as u64)).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives some of `wanted` bytes the next turn: how many, 1 at least unless none are wanted, and when they may leave. Turns come one after
    /// the other in the order asked, so nobody who asks is passed over.
    fn reserve(&self, wanted: u64) -> (u64, Instant) {
        let reserved = wanted.min(self.piece_bytes());
        let mut state = self.state();
        let now = Instant::now();
        state.free_at = state.free_at.max(now.checked_sub(BURST).unwrap_or(now)) + self.time_of(reserved);
        (reserved, state.free_at)
    }

    /// Waits until some of `wanted` bytes may leave; how many, 1 at least unless none are wanted.
    pub fn take(&self, wanted: u64) -> u64 {
        let (taken, at) = self.reserve(wanted);
        let wait = at.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        taken
    }

    /// Bytes left: the other end takes what it is sent.
    fn note(&self) {
        self.state().left_at = Instant::now();
    }

    /// Time since bytes left. Whoever writes slowly by order cannot listen meanwhile, and is not to take the other end for dead.
    pub fn idle(&self) -> Duration {
        self.state().left_at.elapsed()
    }
}

/// A channel whose writes obey a limit.
pub struct LimitedChannel<C: ?Sized> {
    limit: Arc<RateLimit>,
    channel: Box<C>,
    /// Bytes that have their turn and did not leave yet, and when that is: for writes that do not wait.
    turn: (u64, Instant),
}

impl<C: ?Sized> LimitedChannel<C> {
    fn new(channel: Box<C>, limit: Arc<RateLimit>) -> LimitedChannel<C> {
        LimitedChannel { limit, channel, turn: (0, Instant::now()) }
    }
}

impl LimitedChannel<dyn Duplex> {
    /// `channel` under `limit`, if there is one.
    pub fn wrap_duplex(channel: Box<dyn Duplex>, limit: Option<&Arc<RateLimit>>) -> Box<dyn Duplex> {
        match limit {
            Some(limit) => Box::new(LimitedChannel::new(channel, limit.clone())),
            None => channel,
        }
    }
}

impl LimitedChannel<dyn Channel> {
    /// `channel` under `limit`, if there is one.
    pub fn wrap(channel: Box<dyn Channel>, limit: Option<&Arc<RateLimit>>) -> Box<dyn Channel> {
        match limit {
            Some(limit) => Box::new(LimitedChannel::new(channel, limit.clone())),
            None => channel,
        }
    }
}

impl<C: Channel + ?Sized> Channel for LimitedChannel<C> {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.channel.try_read(out)
    }

    fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (piece, rest) = data.split_at(self.limit.take(data.len() as u64) as usize);
            self.channel.write_all(piece)?;
            self.limit.note();
            data = rest;
        }
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.channel.wait(wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        self.channel.security()
    }

    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<bool> {
        if !self.channel.can_send_file() {
            return Ok(false);
        }
        let (mut at, end) = (offset, offset + len as u64);
        while at < end {
            let piece = self.limit.take(end - at);
            if !self.channel.send_file(file, at, piece as usize)? {
                return Ok(false);
            }
            self.limit.note();
            at += piece;
        }
        Ok(true)
    }

    fn write_control(&mut self, data: &[u8]) -> io::Result<()> {
        if self.channel.has_control() { self.channel.write_control(data) } else { self.write_all(data) }
    }

    fn has_control(&self) -> bool {
        self.channel.has_control()
    }

    fn try_read_control(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.channel.try_read_control(out)
    }

    fn received_bytes(&self) -> u64 {
        self.channel.received_bytes()
    }

    fn can_send_file(&self) -> bool {
        self.channel.can_send_file()
    }

    fn is_packed(&self) -> bool {
        self.channel.is_packed()
    }

    fn awaited(&mut self, time: Duration) {
        self.channel.awaited(time);
    }

    fn keep_place(&self) {
        self.channel.keep_place();
    }
    fn rest(&self) {
        self.channel.rest();
    }

    fn into_clear_holder(self: Box<Self>, data: std::net::TcpStream) -> io::Result<Box<dyn Channel>> {
        let LimitedChannel { channel, limit, .. } = *self;
        Ok(LimitedChannel::wrap(channel.into_clear_holder(data)?, Some(&limit)))
    }
}

impl<C: Duplex + ?Sized> Duplex for LimitedChannel<C> {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return self.channel.try_write(data);
        }
        if self.turn.0 == 0 {
            self.turn = self.limit.reserve(data.len() as u64);
        }
        let (paid, at) = self.turn;
        if Instant::now() < at {
            return Ok(0);
        }
        let piece = data.len().min(usize::try_from(paid).unwrap_or(usize::MAX));
        let count = self.channel.try_write(&data[..piece])?;
        if count > 0 {
            self.turn.0 -= count as u64;
            self.limit.note();
        }
        Ok(count)
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        // Without a turn a write is tried at once: that takes one.
        let (paid, at) = self.turn;
        let is_waiting = wants.write && paid > 0;
        let pause = if is_waiting { at.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
        let wants = Wants { write: wants.write && pause.is_zero(), ..wants };
        self.channel.wait_for(wants, wake, if pause.is_zero() { timeout } else { pause.min(timeout) })
    }

    fn has_backlog(&self) -> bool {
        self.channel.has_backlog()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::transport::PipeChannel;

    /// Issue `--bwlimit`: all channels of a limit together get no more than it; what comes is what was written.
    #[test]
    fn channels_share_a_limit() {
        const BYTES: usize = 100_000;
        let limit = RateLimit::new(1_000_000);
        let begun = Instant::now();
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (input, output) = rustix::pipe::pipe().unwrap();
                let (unused, _) = rustix::pipe::pipe().unwrap();
                let mut channel =
                    LimitedChannel::wrap(Box::new(PipeChannel::new(unused, output).unwrap()), Some(&limit));
                let reading = thread::spawn(move || {
                    let mut bytes = Vec::new();
                    io::Read::read_to_end(&mut std::fs::File::from(input), &mut bytes).unwrap();
                    bytes
                });
                (thread::spawn(move || channel.write_all(&vec![number; BYTES]).unwrap()), reading, number)
            })
            .collect();
        for (writing, reading, number) in writers {
            writing.join().unwrap();
            assert_eq!(reading.join().unwrap(), vec![number; BYTES]);
        }
        // Never faster; how much slower depends on the machine.
        assert!(begun.elapsed() >= Duration::from_millis(200) - BURST, "{:?}", begun.elapsed());
        assert!(limit.idle() < begun.elapsed());
    }

    /// Issue `--bwlimit`: who only tries to write gets its turns beside those who wait for theirs, however many these are.
    #[test]
    fn who_tries_is_not_passed_over() {
        const BYTES: usize = 50_000;
        let limit = RateLimit::new(1_000_000);
        let discard = |input| {
            thread::spawn(move || io::copy(&mut std::fs::File::from(input), &mut io::sink()).unwrap())
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let ((input, output), (unused, _)) =
                (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
            let pipe = PipeChannel::new(unused, output).unwrap();
            let mut channel = LimitedChannel::wrap(Box::new(pipe), Some(&limit));
            discard(input);
            let is_over = is_over.clone();
            // A thousand times as much as the other has, unless that is done before.
            waiting.push(thread::spawn(move || {
                (0..1000).any(|_| {
                    channel.write_all(&vec![0; BYTES]).unwrap();
                    is_over.load(Ordering::Acquire)
                })
            }));
        }
        let ((input, output), (unused, _)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        let pipe = PipeChannel::new(unused, output).unwrap();
        let mut channel = LimitedChannel::wrap_duplex(Box::new(pipe), Some(&limit));
        let reading = discard(input);
        let mut left = BYTES;
        while left > 0 {
            let count = channel.try_write(&vec![0; left]).unwrap();
            left -= count;
            if count == 0 {
                let wants = Wants { read: false, write: true };
                channel.wait_for(wants, None, Duration::from_secs(1)).unwrap();
            }
        }
        is_over.store(true, Ordering::Release);
        drop(channel);
        assert_eq!(reading.join().unwrap(), BYTES as u64);
        for writer in waiting {
            assert!(writer.join().unwrap(), "it had to wait until the others were done");
        }
    }
}
