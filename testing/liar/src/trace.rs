//! What receivers say, written down as it comes: all that a sender gets to see of them, but for the time and for how bytes were
//! parted into packets.
//!
//! A line for each event, in order: the number of the connection, and `connected NODE`, `frame KIND REQUEST BODY`, `sent REQUEST BYTES` of
//! what the holder answered until then, or `closed`. The body is the bytes that came, in hex digits, but for the proof of the secret in `open`, which hangs on the random
//! numbers of the connection's handshake: zeros stand there. Nothing else that a receiver of an object, or of a shared directory, says
//! is random. Neither the port from which it dialled nor anything of TLS is written down.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::Message;
use dray_core::text::hex;
use dray_core::{Error, Result};
use dray_transfer::transport::{Channel, Security, Wake};

/// A file with a line for everything that receivers say.
#[derive(Debug)]
pub struct Trace {
    file: Mutex<File>,
    connections: AtomicU64,
}

impl Trace {
    /// A new one at `path`.
    pub fn create(path: &Path) -> Result<Trace> {
        let file = File::create(path).map_err(|error| Error::io(format!("create {}", path.display()), error));
        Ok(Trace { file: Mutex::new(file?), connections: AtomicU64::new(0) })
    }

    /// A connection that was accepted, and what is known of who dialled.
    pub(crate) fn connected(self: &Arc<Trace>, security: Option<&Security>) -> Listening {
        let number = self.connections.fetch_add(1, Ordering::AcqRel) + 1;
        let listening =
            Listening { trace: self.clone(), number, frames: Frames::default(), answers: Frames::default() };
        match security {
            Some(security) => listening.say(format_args!("connected {}", hex(security.peer.as_bytes()))),
            None => listening.say(format_args!("connected")),
        }
        listening
    }
}

/// One connection of a trace.
pub(crate) struct Listening {
    trace: Arc<Trace>,
    number: u64,
    frames: Frames,
    answers: Frames,
}

impl Listening {
    /// Notes bytes that came; the frames that are whole by now.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> io::Result<Vec<(FrameHead, Vec<u8>)>> {
        self.frames.0.extend_from_slice(bytes);
        let mut heard = Vec::new();
        while let Some((head, body)) = self.frames.next()? {
            let mut told = body.clone();
            if let Some(proof) = proof_in(&mut told) {
                proof.fill(0);
            }
            self.say(format_args!("frame {:?} {} {}", head.kind, head.request, hex(&told)));
            heard.push((head, body));
        }
        Ok(heard)
    }

    /// Notes bytes that were sent.
    fn answer(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.answers.0.extend_from_slice(bytes);
        while let Some((head, body)) = self.answers.next()? {
            let run = || body.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            match head.kind {
                FrameKind::Data => self.say(format_args!("sent {} {}", head.request, body.len())),
                FrameKind::Hole | FrameKind::Zeros => {
                    self.say(format_args!("sent {} {}", head.request, run()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A line that is not written fails whoever reads the trace: there is no `closed` at its end.
    fn say(&self, what: fmt::Arguments<'_>) {
        let line = format!("{} {what}\n", self.number);
        let mut file = self.trace.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(line.as_bytes());
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        match &self.frames.0[..] {
            [] => self.say(format_args!("closed")),
            rest => self.say(format_args!("closed within a frame {}", hex(rest))),
        }
    }
}

/// The proof in a frame's body, if the frame opens an object and shows one.
pub(crate) fn proof_in(body: &mut [u8]) -> Option<&mut [u8]> {
    let Ok(Message::Open(open)) = Message::from_bytes(body) else { return None };
    let proof = open.proof.filter(|proof| !proof.is_empty())?;
    let at = body.windows(proof.len()).position(|bytes| bytes == proof.as_slice())?;
    Some(&mut body[at..at + proof.len()])
}

/// Bytes of a stream that are no whole frame yet.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn next(&mut self) -> io::Result<Option<(FrameHead, Vec<u8>)>> {
        let Some((head, rest)) = self.0.split_first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        let head = FrameHead::decode(*head).map_err(|error| io::Error::other(error.to_string()))?;
        let Some(body) = rest.get(..head.body_bytes).map(<[u8]>::to_vec) else { return Ok(None) };
        self.0.drain(..FRAME_HEAD_BYTES + head.body_bytes);
        Ok(Some((head, body)))
    }
}

/// A channel of which everything that is read is written down, and how much was answered.
pub(crate) struct TracedChannel {
    channel: Box<dyn Channel>,
    listening: Listening,
}

impl TracedChannel {
    pub(crate) fn new(channel: Box<dyn Channel>, trace: &Arc<Trace>) -> TracedChannel {
        let listening = trace.connected(channel.security().as_ref());
        TracedChannel { channel, listening }
    }
}

impl Channel for TracedChannel {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.channel.try_read(out)?;
        self.listening.hear(&out[..read.unwrap_or(0)])?;
        Ok(read)
    }
    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        // Before, or an answer to it might be noted first.
        self.listening.answer(data)?;
        self.channel.write_all(data)
    }
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.channel.wait(wake, timeout)
    }
    fn security(&self) -> Option<Security> {
        self.channel.security()
    }
    fn keep_place(&self) {
        self.channel.keep_place();
    }
}

#[cfg(test)]
mod tests {
    use dray_core::message::{Cancel, ObjectName, Open};
    use dray_core::{NodeId, Oid};
    use dray_transfer::transport::push_control;

    use super::*;

    /// What a sender sees is written down as it came, however it was parted, and of what is random in it nothing.
    #[test]
    fn what_is_said_is_written_down() {
        let file = std::env::temp_dir().join(format!("dray-liar-trace-{}", std::process::id()));
        let trace = Arc::new(Trace::create(&file).unwrap());
        let said = |proof: [u8; 32]| {
            let mut out = Vec::new();
            let object = ObjectName::Oid(Oid::of(b"x"));
            push_control(
                &mut out,
                &Message::Open(Open { handle: 1, object, proof: Some(proof.to_vec().into()) }),
            );
            push_control(&mut out, &Message::Cancel(Cancel { request: 7 }));
            out
        };
        let peer = Security { peer: NodeId::from_bytes([5; 32]), exporter: [6; 32] };
        for (proof, piece) in [([1; 32], 1), ([2; 32], 1000), ([3; 32], 7)] {
            let mut listening = trace.connected(Some(&peer));
            let frames: usize =
                said(proof).chunks(piece).map(|bytes| listening.hear(bytes).unwrap().len()).sum();
            assert_eq!(frames, 2);
            let data = FrameHead::new(FrameKind::Data, 5, 7).encode();
            let zeros = FrameHead::new(FrameKind::Zeros, 8, 7).encode();
            let answers = [&data[..], b"bytes", &zeros, &1000_u64.to_be_bytes()].concat();
            answers.chunks(piece).for_each(|bytes| listening.answer(bytes).unwrap());
        }
        let mut cut_off = trace.connected(None);
        assert!(cut_off.hear(&said([4; 32])[..20]).unwrap().is_empty());
        drop(cut_off);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let of = |number: usize| -> Vec<&str> {
            let mark = format!("{number} ");
            lines.iter().filter_map(|line| line.strip_prefix(&mark)).collect()
        };
        let zeros = hex(&said([0; 32])[FRAME_HEAD_BYTES..]);
        assert_eq!(of(1).len(), 6);
        assert_eq!(of(1)[0], format!("connected {}", "05".repeat(32)));
        let open = of(1)[1].strip_prefix("frame Control 0 ").unwrap();
        assert!(zeros.starts_with(open) && open.contains(&hex(&Oid::of(b"x").to_encoded())), "{open}");
        assert_eq!(of(1)[3..], ["sent 7 5", "sent 7 1000", "closed"]);
        assert_eq!((of(2), of(3)), (of(1), of(1)));
        assert!(of(4).last().unwrap().starts_with("closed within a frame "), "{:?}", of(4));
    }
}
