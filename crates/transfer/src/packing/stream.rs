//! A stream of zstd whose level follows back-pressure: what one connection packs, frame by frame or as a whole.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

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
    /// When the last data was packed.
    last: Instant,
    /// Data has passed since: how long that took says nothing of what is packed.
    has_passed: bool,
}

impl Stream {
    /// An empty one; `None` if there is no memory for it.
    pub(crate) fn new() -> io::Result<Option<Stream>> {
        let mut pace = Pace::new();
        let Some((encoder, memory)) = begin(&mut pace, None)? else { return Ok(None) };
        let level = pace.level();
        let encoder = Some(encoder);
        Ok(Some(Stream { encoder, level, memory, pace, last: Instant::now(), has_passed: false }))
    }

    /// The same, whatever memory others have: then at the lowest level, until there is some.
    pub(crate) fn in_any_case() -> io::Result<Stream> {
        if let Some(stream) = Stream::new()? {
            return Ok(stream);
        }
        let mut pace = Pace::new();
        while pace.lower() {}
        let (level, last) = (pace.level(), Instant::now());
        let memory = Share { of: &MEMORY, amount: 0 };
        Ok(Stream { encoder: Some(encoder(level)?), level, memory, pace, last, has_passed: false })
    }

    /// Appends to `out` what `data` is packed to, flushed. After an error the other end has another stream, and this one cannot go on.
    pub(crate) fn append(&mut self, data: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let begun = Instant::now();
        let wished = self.pace.level();
        if wished != self.level && !self.change_level(out)? {
            // There is no memory for that: this one goes on.
            self.pace.keep(self.level);
        }
        self.compress(data, out)?;
        let now = Instant::now();
        if !std::mem::take(&mut self.has_passed) {
            self.pace.note(data.len() as u64, now - begun, now - self.last);
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
    /// As if packing much had taken so long of `all` the time.
    pub(crate) fn has_been(&mut self, packing: std::time::Duration, all: std::time::Duration) {
        for _ in 0..20 {
            self.pace.note(8 << 20, packing, all);
        }
    }

    /// The number of its level.
    pub(crate) fn level(&self) -> i32 {
        self.level.number
    }
}
