//! A channel with one compressed direction (`cp -z`): zstd over the whole stream, one window across frames.
//!
//! What is written is flushed with each write, so nothing waits for more. Neither names nor hashes know of it. The other
//! direction, which says what is wanted, stays as it is. The level follows back-pressure, as that of packed data does.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use dray_core::limits::PACKED_WINDOW_LOG;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{Channel, Duplex, Security, Wake, Wants};
use crate::packing::Stream;

const BUFFER_BYTES: usize = 128 * 1024;

/// Compresses what is written.
pub struct CompressingChannel {
    channel: Box<dyn Duplex>,
    stream: Stream,
    buffer: Vec<u8>,
    /// Compressed bytes for which there was no room: of one piece, and nothing is written before they have left.
    packed: VecDeque<u8>,
    /// Since when there was no room for some of them.
    full_since: Option<Instant>,
}

/// Unpacks what is read.
pub struct UnpackingChannel {
    channel: Box<dyn Duplex>,
    decoder: Decoder<'static>,
    input: Vec<u8>,
    /// What of `input` is not unpacked yet.
    pending: std::ops::Range<usize>,
    /// The decoder may have more than there was room for.
    has_more: bool,
}

impl CompressingChannel {
    /// Everything written from now on is compressed.
    pub fn new(channel: Box<dyn Duplex>) -> io::Result<CompressingChannel> {
        let (buffer, packed) = (Vec::new(), VecDeque::new());
        Ok(CompressingChannel { channel, stream: Stream::in_any_case()?, buffer, packed, full_since: None })
    }

    /// Compresses `data` to `packed`, flushed.
    fn pack(&mut self, data: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        self.stream.append(data, &mut self.buffer)?;
        self.packed.extend(&self.buffer);
        Ok(())
    }

    /// Writes of `packed` what there is room for; true if nothing is left.
    fn push(&mut self) -> io::Result<bool> {
        while !self.packed.is_empty() {
            let count = self.channel.try_write(self.packed.as_slices().0)?;
            if count == 0 {
                self.full_since.get_or_insert_with(Instant::now);
                return Ok(false);
            }
            self.packed.drain(..count);
        }
        if let Some(since) = self.full_since.take() {
            self.stream.waited(since.elapsed());
        }
        Ok(true)
    }

    /// Writes all of `packed`.
    fn push_all(&mut self) -> io::Result<()> {
        let begun = self.full_since.take().unwrap_or_else(Instant::now);
        self.channel.write_all(self.packed.make_contiguous())?;
        self.packed.clear();
        // What there is room for takes next to nothing.
        self.stream.waited(begun.elapsed());
        Ok(())
    }
}

impl UnpackingChannel {
    /// Everything read from now on is unpacked.
    pub fn new(channel: Box<dyn Duplex>) -> io::Result<UnpackingChannel> {
        let mut decoder = Decoder::new()?;
        // A sender cannot make us keep more.
        decoder.set_parameter(DParameter::WindowLogMax(PACKED_WINDOW_LOG))?;
        Ok(UnpackingChannel {
            channel,
            decoder,
            input: vec![0; BUFFER_BYTES],
            pending: 0..0,
            has_more: false,
        })
    }
}

impl Channel for CompressingChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.channel.try_read(out)
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(BUFFER_BYTES) {
            self.pack(piece)?;
            self.push_all()?;
        }
        self.push_all()
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.wait_for(Wants { read: true, write: false }, wake, timeout)
    }

    fn is_packed(&self) -> bool {
        true
    }

    fn awaited(&mut self, time: Duration) {
        self.stream.waited(time);
    }

    fn security(&self) -> Option<Security> {
        self.channel.security()
    }

    fn received_bytes(&self) -> u64 {
        self.channel.received_bytes()
    }
}

impl Channel for UnpackingChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        if out.is_empty() {
            return Ok(Some(0));
        }
        loop {
            if self.has_more || !self.pending.is_empty() {
                let mut input = InBuffer::around(&self.input[self.pending.clone()]);
                let mut output = OutBuffer::around(&mut *out);
                self.decoder.run(&mut input, &mut output)?;
                let (taken, count) = (input.pos(), output.pos());
                self.pending.start += taken;
                self.has_more = count == out.len();
                if count > 0 {
                    return Ok(Some(count));
                }
                if taken > 0 {
                    continue;
                }
            }
            match self.channel.try_read(&mut self.input)? {
                None => return Ok(None),
                Some(0) => return Ok(Some(0)),
                Some(count) => self.pending = 0..count,
            }
        }
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.channel.write_all(data)
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if self.has_more || !self.pending.is_empty() {
            return Ok(());
        }
        self.channel.wait(wake, timeout)
    }

    fn is_packed(&self) -> bool {
        true
    }

    fn security(&self) -> Option<Security> {
        self.channel.security()
    }

    fn received_bytes(&self) -> u64 {
        self.channel.received_bytes()
    }
}

impl Duplex for CompressingChannel {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() || !self.push()? {
            return Ok(0);
        }
        let piece = &data[..data.len().min(BUFFER_BYTES)];
        self.pack(piece)?;
        // What finds no room leaves while somebody waits, or before the next piece.
        self.push()?;
        Ok(piece.len())
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        let has_backlog = !self.push()?;
        let wants = Wants { write: wants.write || has_backlog, ..wants };
        self.channel.wait_for(wants, wake, timeout)?;
        self.push().map(|_| ())
    }

    fn has_backlog(&self) -> bool {
        !self.packed.is_empty() || self.channel.has_backlog()
    }
}

impl Duplex for UnpackingChannel {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.channel.try_write(data)
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if wants.read && (self.has_more || !self.pending.is_empty()) {
            return Ok(());
        }
        self.channel.wait_for(wants, wake, timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use zstd::stream::raw::{CParameter, Encoder};

    use super::*;
    use crate::transport::PipeChannel;

    fn pipes() -> (Box<dyn Duplex>, Box<dyn Duplex>) {
        let (near_in, far_out) = rustix::pipe::pipe().unwrap();
        let (far_in, near_out) = rustix::pipe::pipe().unwrap();
        let near = PipeChannel::new(near_in, near_out).unwrap();
        (Box::new(near), Box::new(PipeChannel::new(far_in, far_out).unwrap()))
    }

    fn read(channel: &mut dyn Channel, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let deadline = Instant::now() + Duration::from_secs(60);
        super::super::read_exact(channel, &mut out, deadline).unwrap();
        out
    }

    /// Issue `-z`: what is written arrives, each write at once and whatever it is; repetition costs next to nothing.
    #[test]
    fn what_is_compressed_arrives_at_once() {
        let (near, far) = pipes();
        let mut near = CompressingChannel::new(near).unwrap();
        let mut far = UnpackingChannel::new(far).unwrap();
        near.write_all(b"hello").unwrap();
        assert_eq!(read(&mut far, 5), b"hello");
        far.write_all(b"plain").unwrap();
        assert_eq!(read(&mut near, 5), b"plain");
        let text = b"the same line again and again\n".repeat(100_000);
        let sent = text.clone();
        let writing = thread::spawn(move || {
            near.write_all(&sent).unwrap();
            near
        });
        // In pieces of all sizes, so that the unpacked bytes stop anywhere.
        let mut came = Vec::new();
        for size in (1..).map(|number: usize| number * number) {
            came.extend(read(&mut far, size.min(text.len() - came.len())));
            if came.len() == text.len() {
                break;
            }
        }
        assert!(came == text);
        assert!(far.received_bytes() < 10_000, "{}", far.received_bytes());
        drop(writing.join().unwrap());
        assert_eq!(far.try_read(&mut [0]).unwrap(), Some(0));
    }

    /// ADR 16: the level rises for time in which there is no room, or the other end is waited for, and for no
    /// other: who reads a slow disk between two writes is not helped by packing more.
    #[test]
    fn a_slow_source_leaves_the_level_alone() {
        const LONG: Duration = Duration::from_millis(200);
        let text = b"the same line again and again\n".repeat(5000);
        let rises = |writes: u32, before_each: &dyn Fn(&mut CompressingChannel)| {
            let (near, far) = pipes();
            let mut near = CompressingChannel::new(near).unwrap();
            let mut far = UnpackingChannel::new(far).unwrap();
            (0..writes).any(|_| {
                near.stream.has_rested(LONG);
                before_each(&mut near);
                near.write_all(&text).unwrap();
                assert!(read(&mut far, text.len()) == text);
                near.stream.level() > 3
            })
        };
        assert!(!rises(10, &|_| {}));
        // Others may have all the memory for a moment.
        assert!(rises(10_000, &|near| near.awaited(LONG)));
        let was_full = |near: &mut CompressingChannel| {
            near.full_since = Instant::now().checked_sub(LONG);
            assert!(near.push().unwrap());
        };
        assert!(rises(10_000, &was_full));
    }

    /// P6, ADR 16: a slow channel has its data packed at a higher level, and who unpacks it, as those did that know of one level alone, reads on across
    /// the change.
    #[test]
    fn the_level_follows_back_pressure() {
        let (near, far) = pipes();
        let mut near = CompressingChannel::new(near).unwrap();
        let mut far = UnpackingChannel::new(far).unwrap();
        // Words in an order that a low level finds little in (xorshift, Marsaglia 2003).
        let mut state = 1_u64;
        let mut word = |_: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            format!("{:x} ", state % 2048).into_bytes()
        };
        let words: Vec<u8> = (0..60_000).flat_map(&mut word).collect();
        let mut send = |near: &mut CompressingChannel| {
            let (before, words) = (far.received_bytes(), &words);
            thread::scope(|scope| {
                scope.spawn(move || near.write_all(words).unwrap());
                assert!(read(&mut far, words.len()) == *words);
            });
            far.received_bytes() - before
        };
        near.stream.has_been(Duration::from_millis(1), Duration::from_secs(2));
        let slowly = send(&mut near);
        // Not what a first one makes of them: beside others the pipe may be full for a while, and the level rise by itself.
        let quickly = zstd::bulk::compress(&words, 3).unwrap().len() as u64;
        assert!(near.stream.level() >= 12 && slowly < quickly, "{slowly} bytes, {quickly} at level 3");
        near.stream.has_been(Duration::from_secs(2), Duration::from_secs(2));
        send(&mut near);
        assert!(near.stream.level() < 12);
    }

    /// A pipe that is full holds nobody up: what could not leave leaves later, once.
    #[test]
    fn what_finds_no_room_leaves_later() {
        let (near, far) = pipes();
        let mut near = CompressingChannel::new(near).unwrap();
        let mut far = UnpackingChannel::new(far).unwrap();
        // Nothing to compress, and more than a pipe holds.
        let mut noise = vec![0; 6 << 20];
        getrandom::fill(&mut noise).unwrap();
        let (mut written, mut came, mut has_waited) = (0, Vec::new(), false);
        while came.len() < noise.len() {
            if written < noise.len() {
                let count = near.try_write(&noise[written..]).unwrap();
                written += count;
                has_waited |= count == 0;
                if count > 0 {
                    continue;
                }
            }
            near.wait_for(Wants { read: true, write: false }, None, Duration::ZERO).unwrap();
            let mut out = [0; 70_001];
            let count = far.try_read(&mut out).unwrap().unwrap_or(0);
            came.extend_from_slice(&out[..count]);
        }
        assert!(came == noise && has_waited);
    }

    /// What was taken leaves also if nobody writes any more, but only waits; and what is written after a stall is what comes.
    #[test]
    fn what_was_taken_leaves_while_somebody_waits() {
        let (near, far) = pipes();
        let mut near = CompressingChannel::new(near).unwrap();
        let mut far = UnpackingChannel::new(far).unwrap();
        let mut noise = vec![0; 6 << 20];
        getrandom::fill(&mut noise).unwrap();
        let mut written = 0;
        while !near.has_backlog() {
            written += near.try_write(&noise[written..]).unwrap();
        }
        assert!(near.full_since.is_some());
        assert_eq!(near.try_write(b"last word").unwrap(), 0, "there is no room");
        let mut came = Vec::new();
        let mut read_on = |near: &mut CompressingChannel| {
            near.wait_for(Wants { read: true, write: false }, None, Duration::from_millis(1)).unwrap();
            let mut out = [0; 70_001];
            let count = far.try_read(&mut out).unwrap().unwrap_or(0);
            came.extend_from_slice(&out[..count]);
            came.len()
        };
        while read_on(&mut near) < written {}
        assert!(!near.has_backlog() && near.full_since.is_none());
        assert_eq!(near.try_write(b"last word").unwrap(), 9);
        while read_on(&mut near) < written + 9 {}
        assert!(came[..written] == noise[..written] && came.ends_with(b"last word"));
    }

    /// Garbage is an error, and so is a stream that asks for more memory than was agreed on.
    #[test]
    fn what_was_not_compressed_is_an_error() {
        let mut greedy = Encoder::new(1).unwrap();
        greedy.set_parameter(CParameter::WindowLog(PACKED_WINDOW_LOG + 1)).unwrap();
        let (mut bytes, data) = (vec![0; 1 << 20], vec![7; 100_000]);
        let (mut input, mut output) = (InBuffer::around(&data[..]), OutBuffer::around(&mut bytes[..]));
        greedy.run(&mut input, &mut output).unwrap();
        greedy.flush(&mut output).unwrap();
        let count = output.pos();
        bytes.truncate(count);
        for said in [b"garbage, and enough of it".to_vec(), bytes] {
            let (mut near, far) = pipes();
            let mut far = UnpackingChannel::new(far).unwrap();
            near.write_all(&said).unwrap();
            assert!(far.try_read(&mut [0; 100]).is_err());
        }
    }
}
