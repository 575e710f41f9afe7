//! Zeros that are data: found for next to nothing, and said as runs instead of sent.
//!
//! Other bytes cost one look at their first word where they are read anyway. Where they are not (`sendfile`), and before a
//! request's parents leave, the first block of what would be sent is read: only if that is zero is more looked at.

use std::ops::Range;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::hash_tree::is_zero;
use dray_core::limits::GROUP_BYTES;
use dray_core::message::feature;
use dray_engine::session::Job;

use super::{CHUNK_BYTES, Failure, Held, Server, lost};

/// Bytes looked at before it is decided how the rest is sent.
const LOOK_BYTES: u64 = 4096;
/// Zeros that are gathered into one run; the receiver hears of them no later.
const RUN_BYTES_MAX: u64 = 16 << 20;
/// How long a request is looked through before its parents leave: a disk may be slow, and the receiver waits.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);

impl Server<'_> {
    /// True if the receiver takes runs of zeros.
    pub(super) fn may_say_zeros(&self) -> bool {
        self.holder.agreed().is_some_and(|agreed| agreed.has(feature::ZEROS))
    }

    /// True if `range` of the object, all of a request, is nothing but zeros and holes, as far as can soon be told: then the
    /// pairs inside it need not be sent.
    pub(super) fn is_blank(&mut self, held: &dyn Held, range: Range<u64>) -> Result<bool, Failure> {
        if !self.may_say_zeros() || range.is_empty() {
            return Ok(false);
        }
        let began = Instant::now();
        let mut chunk = std::mem::take(&mut self.chunk);
        let mut look = || {
            let (mut at, mut step) = (range.start, LOOK_BYTES);
            while at < range.end {
                let extent = held.extent_at(at, range.end)?;
                if extent.is_hole {
                    at = extent.range.end;
                    continue;
                }
                let stop = extent.range.end.min(at + step);
                let bytes = &mut chunk[..(stop - at) as usize];
                held.read_at(at, bytes)?;
                if !is_zero(bytes) || began.elapsed() >= LOOK_PATIENCE {
                    return Ok(false);
                }
                (at, step) = (stop, CHUNK_BYTES);
            }
            Ok(true)
        };
        let found = look();
        self.chunk = chunk;
        found.map_err(Failure::Object)
    }

    /// Answers a request that is blank: its bytes are not read again.
    pub(super) fn send_blank(
        &mut self,
        job: &Job,
        held: &dyn Held,
        range: Range<u64>,
    ) -> Result<(), Failure> {
        let mut at = range.start;
        while at < range.end {
            self.listen().map_err(Failure::Connection)?;
            if self.holder.is_cancelled(job.request) {
                return Ok(());
            }
            let extent = held.extent_at(at, range.end).map_err(Failure::Object)?;
            let len = extent.range.end - at;
            if extent.is_hole {
                self.push_run(FrameKind::Hole, job.request, len);
                self.flush().map_err(Failure::Connection)?;
            } else {
                self.gather_zeros(job.request, len)?;
            }
            held.sent(len);
            at = extent.range.end;
        }
        self.settle(job.request);
        Ok(())
    }

    /// True if what would leave by `sendfile` from `position` begins with zeros, so that it is better read.
    pub(super) fn begins_with_zeros(
        &self,
        held: &dyn Held,
        position: u64,
        len: u64,
    ) -> Result<bool, Failure> {
        if !self.may_say_zeros() {
            return Ok(false);
        }
        let mut first = [0; LOOK_BYTES as usize];
        let first = &mut first[..len.min(LOOK_BYTES) as usize];
        held.read_at(position, first).map_err(Failure::Object)?;
        Ok(is_zero(first))
    }

    /// Sends the bytes behind the head's place in `frame`, groups of zeros as runs.
    pub(super) fn send_groups(&mut self, request: u32, frame: &mut [u8]) -> Result<(), Failure> {
        let len = frame.len() - FRAME_HEAD_BYTES;
        let may_say_zeros = self.may_say_zeros();
        let is_zero_at = |frame: &[u8], at: usize| {
            let end = len.min(at + GROUP_BYTES as usize);
            may_say_zeros && is_zero(&frame[FRAME_HEAD_BYTES + at..FRAME_HEAD_BYTES + end])
        };
        let mut start = 0;
        while start < len {
            let are_zeros = is_zero_at(frame, start);
            let mut stop = len.min(start + GROUP_BYTES as usize);
            while stop < len && is_zero_at(frame, stop) == are_zeros {
                stop = len.min(stop + GROUP_BYTES as usize);
            }
            if are_zeros {
                self.gather_zeros(request, (stop - start) as u64)?;
            } else {
                self.settle(request);
                if self.push_packed(request, &frame[FRAME_HEAD_BYTES + start..FRAME_HEAD_BYTES + stop])? {
                    self.flush().map_err(Failure::Connection)?;
                    start = stop;
                    continue;
                }
                // The head takes the place of bytes that have been sent.
                let head = FrameHead::new(FrameKind::Data, stop - start, request).encode();
                frame[start..start + FRAME_HEAD_BYTES].copy_from_slice(&head);
                self.flush().map_err(Failure::Connection)?;
                let sent = self.channel.write_all(&frame[start..FRAME_HEAD_BYTES + stop]);
                sent.map_err(|error| Failure::Connection(lost(error)))?;
            }
            start = stop;
        }
        Ok(())
    }

    /// Adds to the run of zeros that is said next.
    fn gather_zeros(&mut self, request: u32, mut len: u64) -> Result<(), Failure> {
        while len > 0 {
            let part = len.min(RUN_BYTES_MAX - self.zeros_bytes);
            self.zeros_bytes += part;
            len -= part;
            if self.zeros_bytes == RUN_BYTES_MAX {
                self.settle(request);
                self.flush().map_err(Failure::Connection)?;
            }
        }
        Ok(())
    }

    /// Says the zeros that were gathered: before anything else of the request is.
    pub(super) fn settle(&mut self, request: u32) {
        let zeros_bytes = std::mem::take(&mut self.zeros_bytes);
        if zeros_bytes > 0 {
            self.push_run(FrameKind::Zeros, request, zeros_bytes);
        }
    }

    /// A frame that stands for `len` zeros.
    pub(super) fn push_run(&mut self, kind: FrameKind, request: u32, len: u64) {
        if kind != FrameKind::Zeros {
            self.settle(request);
        }
        self.out.extend_from_slice(&FrameHead::new(kind, 8, request).encode());
        self.out.extend_from_slice(&len.to_be_bytes());
    }
}
