//! Frames of a peer connection: an 8-byte head (kind, 24-bit length, request) and a body.
//!
//! ```text
//! byte 0     kind: 1 control, 2 parents, 3 data, 4 hole, 5 end, 6 fault, 7 zeros, 8 packed
//! bytes 1-3  length of the body, big-endian, bounded per kind
//! bytes 4-7  request the frame belongs to, big-endian; 0 for a control frame
//! ```

use crate::limits::{CONTROL_FRAME_BYTES_MAX, DATA_FRAME_BYTES_MAX, PARENT_FRAME_BYTES_MAX};
use crate::{Error, ErrorKind, Result};

/// Bytes of a frame's head.
pub const FRAME_HEAD_BYTES: usize = 8;
/// Bytes at the beginning of a packed frame's body that say how many it stands for.
pub const PACKED_HEAD_BYTES: usize = 4;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// One CBOR message ([`crate::message::Message`]).
    Control = 1,
    /// Parent pairs of the request, pre-order; at most one frame a request, before its first byte.
    Parents = 2,
    /// The next bytes of the request.
    Data = 3,
    /// The next bytes of the request are a hole of this many bytes (8-byte big-endian body).
    Hole = 4,
    /// The request is complete.
    End = 5,
    /// The request failed; the body is a CBOR [`crate::message::Fault`].
    Fault = 6,
    /// The next bytes of the request are data, this many of them (8-byte big-endian body), and all zero. Only if both
    /// sides have [`crate::message::feature::ZEROS`].
    Zeros = 7,
    /// The next bytes of the request, packed: how many they are (4-byte big-endian), and the next part of the connection's
    /// zstd stream. Only if both sides have [`crate::message::feature::PACKED`], of trees [`crate::message::feature::PACKED_TREE`], and the receiver
    /// said that it may be.
    Packed = 8,
}

/// Head of a frame, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// What it carries.
    pub kind: FrameKind,
    /// Bytes of the body.
    pub body_bytes: usize,
    /// Request it belongs to.
    pub request: u32,
}

impl FrameHead {
    /// A head for a body of `body_bytes`, which the caller keeps within the kind's limit.
    pub fn new(kind: FrameKind, body_bytes: usize, request: u32) -> FrameHead {
        debug_assert!(body_bytes <= limit(kind));
        FrameHead { kind, body_bytes, request }
    }

    /// The 8 bytes.
    pub fn encode(&self) -> [u8; FRAME_HEAD_BYTES] {
        let length = (self.body_bytes as u32).to_be_bytes();
        let request = self.request.to_be_bytes();
        [self.kind as u8, length[1], length[2], length[3], request[0], request[1], request[2], request[3]]
    }

    /// Parses and bounds a head, so that the body may be allocated.
    pub fn decode(bytes: [u8; FRAME_HEAD_BYTES]) -> Result<FrameHead> {
        let kind = match bytes[0] {
            1 => FrameKind::Control,
            2 => FrameKind::Parents,
            3 => FrameKind::Data,
            4 => FrameKind::Hole,
            5 => FrameKind::End,
            6 => FrameKind::Fault,
            7 => FrameKind::Zeros,
            8 => FrameKind::Packed,
            other => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("peer sent a frame of unknown kind {other}"),
                ));
            }
        };
        let body_bytes = u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]) as usize;
        let request = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let fits = match kind {
            FrameKind::Hole | FrameKind::Zeros => body_bytes == 8,
            FrameKind::End => body_bytes == 0,
            FrameKind::Packed => body_bytes > PACKED_HEAD_BYTES && fits_limit(kind, body_bytes),
            FrameKind::Data | FrameKind::Parents => body_bytes > 0 && fits_limit(kind, body_bytes),
            FrameKind::Control | FrameKind::Fault => fits_limit(kind, body_bytes),
        };
        if !fits {
            let what = format!("peer sent a {kind:?} frame of {body_bytes} bytes, limit {}", limit(kind));
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        Ok(FrameHead { kind, body_bytes, request })
    }
}

fn limit(kind: FrameKind) -> usize {
    match kind {
        FrameKind::Control | FrameKind::Fault => CONTROL_FRAME_BYTES_MAX,
        FrameKind::Parents => PARENT_FRAME_BYTES_MAX,
        FrameKind::Data | FrameKind::Packed => DATA_FRAME_BYTES_MAX,
        FrameKind::Hole | FrameKind::Zeros => 8,
        FrameKind::End => 0,
    }
}

#[cfg(not(feature = "canary"))]
fn fits_limit(kind: FrameKind, body_bytes: usize) -> bool {
    body_bytes <= limit(kind)
}

/// The canary of the fuzz targets: a length from outside that nobody bounds. Never in a shipped build; the fuzz
/// run in CI must find it (`fuzz/README.md`).
#[cfg(feature = "canary")]
fn fits_limit(_: FrameKind, _: usize) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip() {
        for (kind, len) in [
            (FrameKind::Control, CONTROL_FRAME_BYTES_MAX),
            (FrameKind::Parents, 64),
            (FrameKind::Data, DATA_FRAME_BYTES_MAX),
            (FrameKind::Hole, 8),
            (FrameKind::Zeros, 8),
            (FrameKind::Packed, DATA_FRAME_BYTES_MAX),
            (FrameKind::End, 0),
            (FrameKind::Fault, 12),
        ] {
            let head = FrameHead::new(kind, len, 0xdead_beef);
            assert_eq!(FrameHead::decode(head.encode()).unwrap(), head);
        }
    }

    #[cfg(not(feature = "canary"))]
    #[test]
    fn lengths_are_bounded_before_anybody_allocates() {
        for bytes in [
            [1, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            [3, 0x10, 0x00, 0x01, 0, 0, 0, 1],
            [3, 0, 0, 0, 0, 0, 0, 1],
            [4, 0, 0, 9, 0, 0, 0, 1],
            [7, 0, 0, 7, 0, 0, 0, 1],
            [8, 0, 0, 4, 0, 0, 0, 1],
            [8, 0x10, 0x00, 0x01, 0, 0, 0, 1],
            [9, 0, 0, 8, 0, 0, 0, 1],
            [5, 0, 0, 1, 0, 0, 0, 1],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x16, 3, 1, 2, 0, 1, 0, 1],
        ] {
            assert_eq!(FrameHead::decode(bytes).unwrap_err().kind(), ErrorKind::Protocol, "{bytes:?}");
        }
    }
}
