//! The other end of a channel as a script, for tests of what one end says and takes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_core::NodeId;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead};

use crate::transport::{Channel, Duplex, Security, Wake, Wants};

/// Takes bytes until it has a word to say, and more once that was heard; after its last word it takes everything, and closes its own direction.
pub(super) struct Script {
    /// How many bytes it has taken before each word, in all; ascending.
    words: VecDeque<(usize, Vec<u8>)>,
    said: VecDeque<u8>,
    taken: Arc<Mutex<Vec<u8>>>,
    /// It takes nothing at all.
    is_deaf: bool,
    /// Until then it takes nothing and says nothing.
    busy_until: Option<Instant>,
    /// What it is sent is compressed as a whole.
    is_packed: bool,
}

impl Script {
    pub(super) fn new(words: impl IntoIterator<Item = (usize, Vec<u8>)>) -> Script {
        Script {
            words: words.into_iter().collect(),
            said: VecDeque::new(),
            taken: Arc::default(),
            is_deaf: false,
            busy_until: None,
            is_packed: false,
        }
    }

    /// Who takes everything and says nothing.
    pub(super) fn mute() -> Script {
        Script::new([(usize::MAX, Vec::new())])
    }

    /// The script over a channel that compresses everything.
    pub(super) fn packed(self) -> Script {
        Script { is_packed: true, ..self }
    }

    /// Who has hung up: it takes nothing any more, and this is what it said before.
    pub(super) fn deaf(said: Vec<u8>) -> Script {
        Script { said: said.into(), is_deaf: true, ..Script::new([]) }
    }

    /// The same, and for so long nothing moves.
    pub(super) fn busy_for(self, time: Duration) -> Script {
        Script { busy_until: Some(Instant::now() + time), ..self }
    }

    fn is_busy(&self) -> bool {
        self.busy_until.is_some_and(|until| Instant::now() < until)
    }

    /// What it takes.
    pub(super) fn taken(&self) -> Arc<Mutex<Vec<u8>>> {
        self.taken.clone()
    }
}

/// The frames that `bytes` are, which end with one.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>().unwrap();
        let head = FrameHead::decode(*head).unwrap();
        let (body, rest) = rest.split_at_checked(head.body_bytes).unwrap();
        frames.push((head, body.to_vec()));
        bytes = rest;
    }
    frames
}

impl Channel for Script {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        if self.is_busy() {
            return Ok(None);
        }
        let taken = self.taken.lock().unwrap().len();
        if self.said.is_empty() && self.words.front().is_some_and(|(after, _)| *after <= taken) {
            self.said.extend(self.words.pop_front().unwrap().1);
        }
        if self.said.is_empty() && !self.words.is_empty() {
            return Ok(None);
        }
        io::Read::read(&mut self.said, out).map(Some)
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.taken.lock().unwrap().extend_from_slice(data);
        Ok(())
    }

    fn wait(&mut self, _: Option<&Wake>, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn is_packed(&self) -> bool {
        self.is_packed
    }

    fn security(&self) -> Option<Security> {
        Some(Security { peer: NodeId::from_bytes([1; 32]), exporter: [2; 32] })
    }
}

impl Duplex for Script {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.is_deaf {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.is_busy() {
            return Ok(0);
        }
        let mut taken = self.taken.lock().unwrap();
        let room = self.words.front().map_or(usize::MAX, |(after, _)| after.saturating_sub(taken.len()));
        let count = data.len().min(room);
        taken.extend_from_slice(&data[..count]);
        Ok(count)
    }

    fn wait_for(&mut self, _: Wants, _: Option<&Wake>, _: Duration) -> io::Result<()> {
        let taken = self.taken.lock().unwrap().len();
        let waits = self.words.front().is_some_and(|(after, _)| *after > taken);
        if self.is_busy() || waits && self.said.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
