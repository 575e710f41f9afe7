//! Target `frames`: a whole stream of frames as a receiver reads it: head, room for the body, body. The canary, a
//! length that nobody bounds, sits in the head's decoder and is found here.

use dray_core::cbor;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind, PACKED_HEAD_BYTES};
use dray_core::limits::{CONTROL_FRAME_BYTES_MAX, DATA_FRAME_BYTES_MAX, PARENT_FRAME_BYTES_MAX};
use dray_core::message::{Fault, samples};
use dray_core::{Error, ErrorKind};

use crate::{Seed, novelty};

/// No head makes the receiver reserve more than the documented limit of its kind, and a bad one is a protocol error.
pub fn target(data: &[u8]) {
    let mut memory = Memory::default();
    let mut rest = data;
    while let Some((raw, after_head)) = rest.split_first_chunk::<FRAME_HEAD_BYTES>() {
        let head = match FrameHead::decode(*raw) {
            Ok(head) => head,
            Err(error) => return assert_protocol(&error),
        };
        assert_eq!(head.encode(), *raw, "a head has one encoding");
        let mut body = memory.reserve(&head);
        let Some((bytes, after_body)) = after_head.split_at_checked(head.body_bytes) else {
            return novelty::note("ends inside a body");
        };
        body.extend_from_slice(bytes);
        novelty::note((head.kind as u8, head.body_bytes.next_power_of_two()));
        match head.kind {
            FrameKind::Control => super::message::target(&body),
            FrameKind::Fault => match cbor::decode::<Fault>(&body, "fault") {
                Ok(fault) => assert!(!fault.to_error("peer").to_string().chars().any(char::is_control)),
                Err(error) => assert_protocol(&error),
            },
            FrameKind::Parents | FrameKind::Data => assert!(!body.is_empty()),
            FrameKind::Packed => assert!(body.len() > PACKED_HEAD_BYTES),
            FrameKind::Hole | FrameKind::Zeros => assert!(<[u8; 8]>::try_from(&body[..]).is_ok()),
            FrameKind::End => assert!(body.is_empty()),
        }
        memory.release(body);
        rest = after_body;
    }
}

fn assert_protocol(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Protocol);
    super::assert_clear(error);
}

/// What the receiver of the stream holds.
#[derive(Default)]
struct Memory {
    held_bytes: usize,
}

impl Memory {
    /// Reserves room for the body of `head`, as documented in `docs/limits.md`.
    fn reserve(&mut self, head: &FrameHead) -> Vec<u8> {
        let limit = match head.kind {
            FrameKind::Control | FrameKind::Fault => CONTROL_FRAME_BYTES_MAX,
            FrameKind::Parents => PARENT_FRAME_BYTES_MAX,
            FrameKind::Data | FrameKind::Packed => DATA_FRAME_BYTES_MAX,
            FrameKind::Hole | FrameKind::Zeros => 8,
            FrameKind::End => 0,
        };
        let asked = head.body_bytes;
        assert!(
            asked <= limit,
            "a {:?} frame makes its receiver reserve {asked} bytes, limit {limit}",
            head.kind
        );
        self.held_bytes += asked;
        assert!(self.held_bytes <= DATA_FRAME_BYTES_MAX, "one frame at a time");
        Vec::with_capacity(asked)
    }

    fn release(&mut self, body: Vec<u8>) {
        self.held_bytes -= body.len();
    }
}

/// Conversations: what each side says, and every kind of frame.
pub fn seeds() -> Vec<Seed> {
    let control = |wanted: &[&str]| -> Vec<u8> {
        let messages = samples().into_iter().filter(|(name, _)| wanted.contains(name));
        messages.flat_map(|(_, message)| frame(FrameKind::Control, 0, &message.to_bytes())).collect()
    };
    let fault = Fault { handle: None, kind: 5, text: "file changed".into() };
    vec![
        ("receiver".into(), control(&["hello", "open", "fetch", "cancel"])),
        ("copy".into(), control(&["copy", "offer-inline", "direct", "progress", "delivered"])),
        (
            "holder".into(),
            [
                control(&["hello", "opened"]),
                frame(FrameKind::Parents, 7, &[0x5a; 128]),
                frame(FrameKind::Data, 7, b"the first bytes"),
                frame(FrameKind::Hole, 7, &(1u64 << 20).to_be_bytes()),
                frame(FrameKind::Zeros, 7, &(1u64 << 16).to_be_bytes()),
                frame(FrameKind::End, 7, &[]),
                frame(FrameKind::Fault, 8, &cbor::encode(&fault)),
            ]
            .concat(),
        ),
        (
            "head-of-a-full-data-frame".into(),
            FrameHead::new(FrameKind::Data, DATA_FRAME_BYTES_MAX, 1).encode().into(),
        ),
        ("cut-inside-a-head".into(), vec![1, 0, 0]),
        ("unknown-kind".into(), vec![9, 0, 0, 1, 0, 0, 0, 0, 0]),
    ]
}

fn frame(kind: FrameKind, request: u32, body: &[u8]) -> Vec<u8> {
    [&FrameHead::new(kind, body.len(), request).encode()[..], body].concat()
}
