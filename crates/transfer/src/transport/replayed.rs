//! A channel of which somebody has read more than was his.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Channel, Duplex, Security, Wake, Wants};

/// A channel with bytes that were read from it before, which are read again first.
pub(crate) struct Replayed {
    ahead: Vec<u8>,
    taken: usize,
    channel: Box<dyn Duplex>,
    /// Bytes that were given to it.
    sent_bytes: Arc<AtomicU64>,
}

impl Replayed {
    /// `ahead` comes before what `channel` has.
    pub(crate) fn new(ahead: Vec<u8>, channel: Box<dyn Duplex>) -> Replayed {
        Replayed { ahead, taken: 0, channel, sent_bytes: Arc::default() }
    }

    /// Bytes that were given to it to send, from now on.
    pub(crate) fn sent_bytes(&self) -> Arc<AtomicU64> {
        self.sent_bytes.clone()
    }

    fn has_more(&self) -> bool {
        self.taken < self.ahead.len()
    }
}

impl Channel for Replayed {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.has_more() || out.is_empty() {
            return self.channel.try_read(out);
        }
        let count = out.len().min(self.ahead.len() - self.taken);
        out[..count].copy_from_slice(&self.ahead[self.taken..self.taken + count]);
        self.taken += count;
        if !self.has_more() {
            (self.ahead, self.taken) = (Vec::new(), 0);
        }
        Ok(Some(count))
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.sent_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.channel.write_all(data)
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if self.has_more() { Ok(()) } else { self.channel.wait(wake, timeout) }
    }

    fn security(&self) -> Option<Security> {
        self.channel.security()
    }

    fn received_bytes(&self) -> u64 {
        self.channel.received_bytes()
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
}

impl Duplex for Replayed {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.channel.try_write(data)?;
        self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if wants.read && self.has_more() { Ok(()) } else { self.channel.wait_for(wants, wake, timeout) }
    }

    fn has_backlog(&self) -> bool {
        self.channel.has_backlog()
    }
}
