//! Records on their way into data frames, for whoever sends contents: over the channel of the copy or a direct connection.

use dray_core::Result;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::TREE_RECORD_BYTES_MAX;
use dray_core::message::Message;
use dray_core::tree::{RECORD_HEAD_BYTES, bytes_head};

use super::packing::Packing;
use crate::transport::push_control;

/// Bytes of a data frame with which it leaves.
const FRAME_BYTES: usize = TREE_RECORD_BYTES_MAX;

/// Frames to send, the last of them being filled perhaps.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// What is to leave, of which so many bytes have left.
    pub(super) out: Vec<u8>,
    pub(super) left: usize,
    /// Request that the data frame being filled belongs to, and where in `out` it begins.
    pub(super) request: u32,
    start: Option<usize>,
    /// What is complete leaves packed, where that may be and is better.
    pub(super) packing: Packing,
}

impl Frames {
    /// To send behind `preface`.
    pub(super) fn after(preface: Vec<u8>) -> Frames {
        Frames { out: preface, ..Frames::default() }
    }

    /// To send over a path of which `packing` says whether data may be packed.
    pub(super) fn packed_by(packing: Packing) -> Frames {
        Frames { packing, ..Frames::default() }
    }

    /// True if the frame being filled has no room for `len` bytes more, and is to leave first.
    pub(super) fn is_full_for(&self, len: usize) -> bool {
        self.start.is_some_and(|start| {
            self.out.len() - start + len > FRAME_HEAD_BYTES + RECORD_HEAD_BYTES + FRAME_BYTES
        })
    }

    /// Begins a data frame, unless one is being filled.
    fn begin(&mut self) {
        if self.start.is_none() {
            self.start = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
        }
    }

    /// Completes the frame being filled. What is packed must leave before anything else that is; after an error the connection cannot go on.
    pub(super) fn end(&mut self) -> Result<()> {
        let Some(start) = self.start.take() else { return Ok(()) };
        let body_start = start + FRAME_HEAD_BYTES;
        let body = &self.out[body_start..];
        if body.is_empty() {
            self.out.truncate(start);
            return Ok(());
        }
        let packed = match self.packing.pack(body) {
            Ok(packed) => packed,
            Err(error) => {
                self.out.truncate(start);
                return Err(error);
            }
        };
        let kind = if packed.is_some() { FrameKind::Packed } else { FrameKind::Data };
        if let Some(packed) = packed {
            self.out.truncate(body_start);
            self.out.extend_from_slice(packed);
        }
        let body_bytes = self.out.len() - body_start;
        let head = FrameHead::new(kind, body_bytes, self.request).encode();
        self.out[start..body_start].copy_from_slice(&head);
        Ok(())
    }

    /// Appends a control frame.
    pub(super) fn control(&mut self, message: &Message) -> Result<()> {
        self.end()?;
        push_control(&mut self.out, message);
        Ok(())
    }

    /// The request is answered.
    pub(super) fn end_request(&mut self) -> Result<()> {
        self.end()?;
        self.out.extend_from_slice(&FrameHead::new(FrameKind::End, 0, self.request).encode());
        Ok(())
    }

    /// Appends a record of bytes, without copying it if it is the first to leave.
    pub(super) fn piece(&mut self, piece: &mut Piece) {
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, &mut piece.bytes);
            self.start = Some(0);
        } else {
            self.begin();
            self.out.extend_from_slice(&piece.bytes[FRAME_HEAD_BYTES..]);
        }
    }

    /// Appends an encoded record.
    pub(super) fn record(&mut self, bytes: &[u8]) {
        self.begin();
        self.out.extend_from_slice(bytes);
    }

    /// Appends frames that somebody else made.
    pub(super) fn whole(&mut self, frames: &[u8]) -> Result<()> {
        self.end()?;
        self.out.extend_from_slice(frames);
        Ok(())
    }

    /// Everything has left.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.left = 0;
    }
}

/// A record of bytes while it is filled: a read may block, and what came before it is to leave meanwhile.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// The record, with room for the head of a frame in front of it.
    bytes: Vec<u8>,
}

impl Piece {
    /// Makes it a record of what `read` fills in, at most `max` bytes; how many came. Of none there is no record.
    pub(super) fn fill(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        const START: usize = FRAME_HEAD_BYTES + RECORD_HEAD_BYTES;
        self.bytes.clear();
        self.bytes.resize(START + max, 0);
        let count = read(&mut self.bytes[START..])?.min(max);
        if count == 0 {
            return Ok(0);
        }
        self.bytes[FRAME_HEAD_BYTES..START].copy_from_slice(&bytes_head(count));
        self.bytes.truncate(START + count);
        Ok(count)
    }
}
