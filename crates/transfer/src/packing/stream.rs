//! A stream of zstd whose level follows back-pressure: what one connection packs, frame by frame or as a whole.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use dray_core::limits::{PACKED_WINDOW_LOG, PACKING_BYTES_MAX};
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use super::Share;
use super::pace::{Level, Pace};

/// Room that zstd is given at a time.
const OUTPUT_BYTES: usize = 64 << 10;

pub(super) static MEMORY: AtomicUsize = AtomicUsize::new(0);

/// One stream. Its level changes between frames of zstd, of which whoever unpacks it needs no word.
pub(crate) struct Stream {
    /// `None` after an error alone.
    encoder: Option<Encoder<'static>>,
    /// What `encoder` was made for.
    pub(super) level: Level,
    memory: Share,
    pub(super) pace: Pace,
    /// When the last data was packed, and how long the other end was waited for since.
    last: Instant,
    waited: Duration,
    /// Data has passed since: how long that took says nothing of what is packed.
    has_passed: bool,
}

impl Stream {
    /// An empty one; `None` if there is no memory for it.
    pub(crate) fn new() -> io::Result<Option<Stream>> {
        let mut pace = Pace::new();
        let Some((encoder, memory)) = begin(&mut pace, None)? else { return Ok(None) };
        Ok(Some(Stream::with(encoder, memory, pace)))
    }

    /// The same, whatever memory others have: then at the lowest level, until there is some.
    pub(crate) fn in_any_case() -> io::Result<Stream> {
        if let Some(stream) = Stream::new()? {
            return Ok(stream);
        }
        let mut pace = Pace::new();
        while pace.lower() {}
        let memory = Share { of: &MEMORY, amount: 0 };
        Ok(Stream::with(encoder(pace.level())?, memory, pace))
    }

    /// One that `encoder` begins, which was made for the level of `pace`.
    fn with(encoder: Encoder<'static>, memory: Share, pace: Pace) -> Stream {
        Stream {
            encoder: Some(encoder),
            level: pace.level(),
            memory,
            pace,
            last: Instant::now(),
            waited: Duration::ZERO,
            has_passed: false,
        }
    }

    /// The other end was waited for: for room, or for its next word while nothing was left to send.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.waited = self.waited.saturating_add(time);
    }

    /// Appends to `out` what `data` is packed to, flushed. After an error the other end has another stream, and this one cannot go on.
    pub(crate) fn append(&mut self, data: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let begun = Instant::now();
        let wished = self.pace.level();
        if wished != self.level && !self.change_level(out)? {
            // There is no memory for that: this one goes on.
            self.pace.keep(self.level);
        }
        let before = out.len();
        self.compress(data, out)?;
        self.pace.packed((out.len() - before) as u64);
        let (now, waited) = (Instant::now(), std::mem::take(&mut self.waited));
        if !std::mem::take(&mut self.has_passed) {
            self.pace.note(data.len() as u64, now - begun, waited, now - self.last);
        }
        self.last = now;
        Ok(())
    }

    /// Data left as it is.
    pub(super) fn passed(&mut self) {
        self.has_passed = true;
    }

    /// True if `bytes` should pass as they are: packing is what holds the connection up.
    pub(super) fn is_off(&mut self, bytes: u64) -> bool {
        self.pace.passes(bytes)
    }

    /// Ends the frame of zstd and begins another. False if there is no memory for that, as there always is for a lower level: the old one can go on.
    fn change_level(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let level = self.pace.level();
        if level.number < self.level.number {
            self.end(out)?;
            self.memory.shrink(level.memory_mib << 20);
            self.encoder = Some(encoder(level)?);
            self.level = level;
            return Ok(true);
        }
        let Some((encoder, memory)) = begin(&mut self.pace, Some(self.level))? else { return Ok(false) };
        self.end(out)?;
        (self.encoder, self.memory, self.level) = (Some(encoder), memory, self.pace.level());
        Ok(true)
    }

    /// Ends the frame of zstd, and gives back what it took.
    fn end(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let Some(mut old) = self.encoder.take() else { return Ok(()) };
        while append(out, |output| old.finish(output, true))? > 0 {}
        Ok(())
    }

    fn compress(&mut self, data: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut input = InBuffer::around(data);
        let encoder = self.encoder.as_mut().ok_or_else(|| io::Error::other("the stream broke off"))?;
        loop {
            let is_through = input.pos() == data.len();
            let left = append(out, |output| match is_through {
                false => encoder.run(&mut input, output).map(|_| 1),
                true => encoder.flush(output),
            })?;
            if left == 0 {
                return Ok(());
            }
        }
    }
}

/// Appends to `out` what `step` puts out; what `step` says.
fn append(
    out: &mut Vec<u8>,
    step: impl FnOnce(&mut OutBuffer<'_, [u8]>) -> io::Result<usize>,
) -> io::Result<usize> {
    let at = out.len();
    out.resize(at + OUTPUT_BYTES, 0);
    let mut output = OutBuffer::around(&mut out[at..]);
    let left = step(&mut output)?;
    let count = output.pos();
    out.truncate(at + count);
    Ok(left)
}

/// An encoder for the level of `pace`, or for one below that there is memory for; none that is `old`.
fn begin(pace: &mut Pace, old: Option<Level>) -> io::Result<Option<(Encoder<'static>, Share)>> {
    loop {
        let level = pace.level();
        if old == Some(level) {
            return Ok(None);
        }
        if let Some(memory) = Share::take(&MEMORY, level.memory_mib << 20, PACKING_BYTES_MAX) {
            return Ok(Some((encoder(level)?, memory)));
        }
        if !pace.lower() {
            return Ok(None);
        }
    }
}

fn encoder(level: Level) -> io::Result<Encoder<'static>> {
    let mut encoder = Encoder::new(level.number)?;
    encoder.set_parameter(CParameter::WindowLog(PACKED_WINDOW_LOG))?;
    Ok(encoder)
}

#[cfg(test)]
impl Stream {
    /// As if packing much had taken so long of `all` the time, and the other end the rest.
    pub(crate) fn has_been(&mut self, packing: Duration, all: Duration) {
        for _ in 0..20 {
            self.pace.note(8 << 20, packing, all - packing, all);
        }
    }

    /// As if the last data had been packed so long ago.
    pub(crate) fn has_rested(&mut self, time: Duration) {
        self.last = Instant::now().checked_sub(time).unwrap();
    }

    /// The number of its level.
    pub(crate) fn level(&self) -> i32 {
        self.level.number
    }
}
