//! A channel whose outgoing frames are altered. The session above it is honest and knows nothing of it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dray_core::cbor;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{Compared, Described, Fault, Message, Opened};
use dray_core::{Error, ErrorKind};
use dray_transfer::transport::{Channel, Security, Wake, push_control};

use crate::lie::{Liar, Lie};

/// Bytes of made-up data sent at a time.
const MADE_UP_BYTES: usize = 64 * 1024;
/// What a text of a fault may not have, times three.
const HUGE_TEXT_BYTES: usize = 60 * 1024;
/// Number of a request that no receiver has come to.
const UNASKED: u32 = 4_000_000_000;
/// Handle of the only object of a receiver's connection.
const HANDLE: u32 = 1;

/// What an honest holder writes, altered.
pub struct LyingChannel {
    channel: Box<dyn Channel>,
    liar: Arc<Liar>,
    /// Request whose frames are left out from here on.
    left_out: Option<u32>,
    /// Nothing is written any more.
    is_mute: bool,
    /// What was said when the object was opened.
    opened: Option<Opened>,
    /// Frames that wait for data to be sent.
    late: Vec<u8>,
}

impl LyingChannel {
    /// `channel`, with what `liar` makes of it.
    pub fn new(channel: Box<dyn Channel>, liar: Arc<Liar>) -> LyingChannel {
        LyingChannel { channel, liar, left_out: None, is_mute: false, opened: None, late: Vec::new() }
    }

    /// Writes whole frames, altered.
    fn write_frames(&mut self, mut data: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        while let Some((head, rest)) = data.split_first_chunk::<FRAME_HEAD_BYTES>() {
            let head = FrameHead::decode(*head).map_err(|error| io::Error::other(error.to_string()))?;
            let (body, rest) = rest
                .split_at_checked(head.body_bytes)
                .ok_or_else(|| io::Error::other("the session wrote a part of a frame"))?;
            self.alter(head, body, &mut out)?;
            data = rest;
        }
        self.emit(&out)
    }

    fn emit(&mut self, out: &[u8]) -> io::Result<()> {
        if self.liar.lie == Lie::MuteAtOnce {
            self.liar.tell();
            self.is_mute = true;
        }
        if self.is_mute || out.is_empty() {
            return Ok(());
        }
        if self.liar.lie == Lie::Drip && self.liar.is_due() {
            self.liar.tell();
            for byte in out {
                self.channel.write_all(std::slice::from_ref(byte))?;
                thread::sleep(Duration::from_millis(Lie::DRIP_MS));
            }
            return Ok(());
        }
        self.channel.write_all(out)
    }

    /// Appends to `out` what becomes of one frame.
    fn alter(&mut self, head: FrameHead, body: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if head.kind == FrameKind::Control {
            self.alter_message(head, body, out);
            return Ok(());
        }
        if self.left_out == Some(head.request) {
            return Ok(());
        }
        if !self.liar.is_due() {
            if head.kind == FrameKind::Data {
                self.liar.sends(body.len());
            }
            push(out, head, body);
            return Ok(());
        }
        match head.kind {
            FrameKind::Data => {
                self.liar.sends(body.len());
                self.alter_data(head, body, out)
            }
            FrameKind::End => self.alter_end(head, out),
            FrameKind::Parents if self.liar.lie == Lie::BareZeros => Ok(()),
            FrameKind::Parents if self.liar.lie == Lie::Parents => {
                let mut pairs = body.to_vec();
                let middle = pairs.len() / 2;
                pairs[middle] ^= 1;
                self.liar.tell();
                push(out, head, &pairs);
                Ok(())
            }
            _ => {
                self.push_numbered(head, body, out);
                Ok(())
            }
        }
    }

    fn alter_message(&mut self, head: FrameHead, body: &[u8], out: &mut Vec<u8>) {
        let message = Message::from_bytes(body);
        if let Ok(Message::Opened(opened)) = &message {
            self.opened = Some(opened.clone());
        }
        let altered = match (message, self.liar.lie) {
            (Ok(Message::Opened(mut opened)), Lie::WrongSize) => {
                opened.size_bytes += 1;
                Some(Message::Opened(opened))
            }
            (Ok(Message::Opened(opened)), Lie::Refused) => {
                let error = Error::new(ErrorKind::Refused, "not for you");
                Some(Message::Fault(Fault::from_error(Some(opened.handle), &error)))
            }
            (Ok(Message::Compared(mut compared)), Lie::Compared) => {
                compared.pairs = vec![7; compared.pairs.len()].into();
                Some(Message::Compared(compared))
            }
            // It is wrong already.
            (Ok(described @ Message::Described(_)), Lie::Recipe) => Some(described),
            (Ok(Message::Node(mut node)), Lie::GarbageNodes) => {
                if let Some(last) = node.bytes.last_mut() {
                    *last ^= 1;
                }
                Some(Message::Node(node))
            }
            (Ok(Message::Node(_)), Lie::MuteNodes) | (Ok(Message::Described(_)), Lie::MuteDescribed) => {
                self.liar.tell();
                return;
            }
            (Ok(Message::Node(_)), Lie::LateNodes) if self.liar.holds_node() => {
                self.liar.tell();
                push(&mut self.late, head, body);
                return;
            }
            _ => None,
        };
        match altered {
            Some(message) => {
                self.liar.tell();
                push_control(out, &message);
            }
            None => push(out, head, body),
        }
    }

    fn alter_data(&mut self, head: FrameHead, body: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let fault = |kind, text: &str| {
            Some(Fault { handle: None, kind: ErrorKind::wire_code(kind), text: text.into() })
        };
        let fault = match self.liar.lie {
            Lie::Changed => fault(ErrorKind::Changed, "the file was changed after it was put"),
            Lie::Busy => fault(ErrorKind::TimedOut, "busy, come again"),
            Lie::HugeFault => fault(ErrorKind::TimedOut, &"\u{1b}[2J\u{202e}".repeat(HUGE_TEXT_BYTES / 7)),
            _ => None,
        };
        if let Some(fault) = fault {
            let body = cbor::encode(&fault);
            push(out, FrameHead::new(FrameKind::Fault, body.len(), head.request), &body);
            self.leave_out(head.request);
            return Ok(());
        }
        match self.liar.lie {
            Lie::Flip => {
                let mut body = body.to_vec();
                self.liar.flip(&mut body);
                push(out, head, &body);
            }
            Lie::Hole | Lie::Zeros | Lie::BareZeros => {
                self.liar.tell();
                let kind = if self.liar.lie == Lie::Hole { FrameKind::Hole } else { FrameKind::Zeros };
                let run = (body.len() as u64).to_be_bytes();
                push(out, FrameHead::new(kind, run.len(), head.request), &run);
            }
            Lie::Short => {
                push(out, FrameHead::new(FrameKind::End, 0, head.request), &[]);
                self.leave_out(head.request);
            }
            Lie::BadFrame => {
                self.liar.tell();
                out.extend_from_slice(&[3, 0xff, 0xff, 0xff, 0, 0, 0, 1]);
            }
            Lie::Garbage => {
                self.liar.tell();
                out.extend((0..body.len()).map(|at| (at * at + 0x81) as u8));
            }
            Lie::HangUp => {
                push(out, head, &body[..body.len() / 2]);
                self.liar.tell();
                self.emit(out)?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Lie::Mute => {
                self.liar.tell();
                self.emit(out)?;
                out.clear();
                self.is_mute = true;
            }
            Lie::EndlessOpened => {
                if let Some(opened) = self.opened.clone() {
                    self.repeat(out, &Message::Opened(opened))?;
                }
            }
            Lie::EndlessCompared => {
                let pairs = vec![7; 64 * 256].into();
                let compared = Compared { handle: HANDLE, pairs };
                self.repeat(out, &Message::Compared(compared))?;
            }
            Lie::EndlessFaults => {
                let error = Error::new(ErrorKind::NotFound, "it is lost");
                self.repeat(out, &Message::Fault(Fault::from_error(Some(HANDLE), &error)))?;
            }
            Lie::EndlessDescribed => {
                let described = Described { handle: HANDLE, root: None };
                self.repeat(out, &Message::Described(described))?;
            }
            _ => self.push_numbered(head, body, out),
        }
        Ok(())
    }

    fn alter_end(&mut self, head: FrameHead, out: &mut Vec<u8>) -> io::Result<()> {
        let made_up = [0x5a; MADE_UP_BYTES];
        let data = |request| FrameHead::new(FrameKind::Data, made_up.len(), request);
        match self.liar.lie {
            Lie::Long => push(out, data(head.request), &made_up),
            Lie::EndlessData => {
                self.liar.tell();
                self.emit(out)?;
                let mut frame = Vec::new();
                push(&mut frame, data(head.request), &made_up);
                loop {
                    self.emit(&frame)?;
                }
            }
            _ => {}
        }
        self.push_numbered(head, &[], out);
        let again = match self.liar.lie {
            Lie::Long => {
                self.liar.tell();
                return Ok(());
            }
            Lie::Twice => head.request,
            Lie::Unasked => UNASKED,
            _ => return Ok(()),
        };
        self.liar.tell();
        push(out, data(again), &made_up);
        push(out, FrameHead::new(FrameKind::End, 0, again), &[]);
        Ok(())
    }

    /// The frame as it is, or under another number.
    fn push_numbered(&self, mut head: FrameHead, body: &[u8], out: &mut Vec<u8>) {
        if self.liar.lie == Lie::OtherRequest {
            self.liar.tell();
            head.request += 1;
        }
        push(out, head, body);
    }

    fn leave_out(&mut self, request: u32) {
        self.liar.tell();
        self.left_out = Some(request);
    }

    /// Writes `message` until the receiver has had enough.
    fn repeat(&mut self, out: &[u8], message: &Message) -> io::Result<()> {
        self.liar.tell();
        self.emit(out)?;
        let mut flood = Vec::new();
        while flood.len() < MADE_UP_BYTES {
            push_control(&mut flood, message);
        }
        loop {
            self.emit(&flood)?;
        }
    }
}

fn push(out: &mut Vec<u8>, head: FrameHead, body: &[u8]) {
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(body);
}

impl Channel for LyingChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.channel.try_read(out)
    }
    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.write_frames(data)
    }
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        if self.late.is_empty() {
            return self.channel.wait(wake, timeout);
        }
        if self.liar.has_sent_data() {
            let late = std::mem::take(&mut self.late);
            self.channel.write_all(&late)?;
        }
        // The data may leave on another connection.
        self.channel.wait(wake, timeout.min(Duration::from_millis(10)))
    }
    fn security(&self) -> Option<Security> {
        self.channel.security()
    }
    fn keep_place(&self) {
        self.channel.keep_place();
    }
}
