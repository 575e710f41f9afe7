//! The receiving side of a tree copy: one thread has the channel, the sink another, so that files are written while more comes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{EntryFailed, Fault, Message, Progress, TreeDone};
use dray_core::{Error, ErrorKind, Result};

use super::TOLD_INTERVAL;
use crate::holder::Outbox;
use crate::transport::{Channel, push_control};

/// Frames that may wait for the sink.
const FRAMES_AHEAD: usize = 16;
/// How often a side with nothing to do looks around.
const IDLE: Duration = Duration::from_millis(100);

/// What comes for the sink.
#[derive(Debug)]
pub enum Heard {
    /// A control message.
    Message(Message),
    /// Records of this request.
    Data(u32, Vec<u8>),
    /// The request is answered.
    End(u32),
}

/// What is made of a tree as it comes; on a thread of its own.
pub trait TreeSink {
    /// Takes the next of what came. Only what breaks the protocol, or the whole copy, is an error.
    fn handle(&mut self, heard: Heard) -> Result<()>;
    /// What the sender is to be told now: pulls, and entries that failed here.
    fn say(&mut self, out: &mut Vec<Message>);
    /// What became of everything, once all of it has come.
    fn done(&mut self) -> Result<Option<TreeDone>>;
    /// Bytes of content that came so far.
    fn done_bytes(&self) -> u64;
}

/// Receives trees over `channel`, on which the hellos were exchanged, into what `make` makes on the sink's thread; `preface`
/// goes first. `tick` is called every 200 ms with the bytes so far and ends the copy with an error.
pub fn take<S: TreeSink>(
    channel: &mut dyn Channel,
    preface: Vec<u8>,
    make: impl FnOnce() -> Result<S> + Send,
    tick: &mut dyn FnMut(u64) -> Result<()>,
    patience: Duration,
) -> Result<TreeDone> {
    let outbox = Outbox::new().map_err(|error| Error::io("make a wake event", error))?;
    let (sender, frames) = mpsc::sync_channel(FRAMES_AHEAD);
    let (done_bytes, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = thread::scope(|scope| {
        let (outbox, done_bytes, is_over) = (&outbox, &done_bytes, &is_over);
        let sinking = scope.spawn(move || {
            let result = sink(make, &frames, outbox, done_bytes);
            is_over.store(true, Ordering::Release);
            outbox.signal();
            result
        });
        let mut taker = Taker {
            channel,
            out: preface,
            head: [0; FRAME_HEAD_BYTES],
            body: Vec::new(),
            filled: 0,
            waiting: VecDeque::new(),
            frames: Some(sender),
            heard_at: Instant::now(),
        };
        let mut told_at = Instant::now();
        let moved = loop {
            if is_over.load(Ordering::Acquire) {
                break Ok(());
            }
            if told_at.elapsed() >= TOLD_INTERVAL {
                told_at = Instant::now();
                let bytes = done_bytes.load(Ordering::Relaxed);
                if let Err(error) = tick(bytes) {
                    break Err(error);
                }
                let progress = Progress { done_bytes: bytes, resumed_bytes: 0, direct_bytes: 0 };
                push_control(&mut taker.out, &Message::Progress(progress));
            }
            if let Err(error) = taker.step(outbox, patience) {
                break Err(error);
            }
        };
        // The sink ends with what has come.
        taker.frames = None;
        let sunk = sinking.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")));
        // What broke at the sink explains more than that nothing came after it.
        match (sunk, moved) {
            (Ok(Some(done)), _) => Ok(done),
            (_, Err(error)) => Err(error),
            (Err(error), Ok(())) => Err(error),
            (Ok(None), Ok(())) => Err(Error::new(ErrorKind::Internal, "the copy ended in the middle")),
        }
    });
    let mut last = Vec::new();
    for message in outbox.take() {
        push_control(&mut last, &message);
    }
    push_control(
        &mut last,
        &match &result {
            Ok(done) => Message::TreeDone(*done),
            Err(error) => Message::Fault(Fault::from_error(None, error)),
        },
    );
    let told = channel.write_all(&last);
    let done = result?;
    told.map_err(|error| Error::io("tell the sender", error))?;
    Ok(done)
}

/// The sink's thread.
fn sink<S: TreeSink>(
    make: impl FnOnce() -> Result<S>,
    frames: &mpsc::Receiver<Heard>,
    outbox: &Outbox,
    done_bytes: &AtomicU64,
) -> Result<Option<TreeDone>> {
    let mut sink = make()?;
    let mut said = Vec::new();
    loop {
        let Ok(heard) = frames.recv() else { return Ok(None) };
        sink.handle(heard)?;
        done_bytes.store(sink.done_bytes(), Ordering::Relaxed);
        sink.say(&mut said);
        for message in said.drain(..) {
            outbox.send(message);
        }
        if let Some(done) = sink.done()? {
            return Ok(Some(done));
        }
    }
}

/// The channel's thread.
struct Taker<'a> {
    channel: &'a mut dyn Channel,
    out: Vec<u8>,
    head: [u8; FRAME_HEAD_BYTES],
    body: Vec<u8>,
    /// Bytes of head and body that came.
    filled: usize,
    /// Complete frames that the sink has no room for.
    waiting: VecDeque<Heard>,
    frames: Option<mpsc::SyncSender<Heard>>,
    heard_at: Instant,
}

impl Taker<'_> {
    /// Says what is to be said, takes what came, and waits if there is nothing of either.
    fn step(&mut self, outbox: &Outbox, patience: Duration) -> Result<()> {
        for message in outbox.take() {
            push_control(&mut self.out, &message);
        }
        if !self.out.is_empty() {
            self.channel.write_all(&self.out).map_err(lost)?;
            self.out.clear();
        }
        if self.hand_over() {
            // The sink is behind: what comes waits in the channel.
            self.heard_at = Instant::now();
            thread::sleep(Duration::from_micros(200));
            return Ok(());
        }
        if self.read()? {
            self.heard_at = Instant::now();
            return Ok(());
        }
        if self.heard_at.elapsed() > patience {
            return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing for too long")
                .advise("the same command again goes on where this one stopped"));
        }
        self.channel.wait(Some(outbox.wake()), IDLE).map_err(lost)
    }

    /// Gives the sink what waits; true if something still does.
    fn hand_over(&mut self) -> bool {
        let Some(frames) = &self.frames else { return false };
        while let Some(heard) = self.waiting.pop_front() {
            match frames.try_send(heard) {
                Ok(()) => {}
                Err(TrySendError::Full(heard)) => {
                    self.waiting.push_front(heard);
                    return true;
                }
                // Its end is seen by whoever looks whether it is over.
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        false
    }

    /// Reads once; true if bytes came.
    fn read(&mut self) -> Result<bool> {
        let is_head = self.filled < FRAME_HEAD_BYTES;
        let room = if is_head {
            &mut self.head[self.filled..]
        } else {
            &mut self.body[self.filled - FRAME_HEAD_BYTES..]
        };
        if !room.is_empty() {
            match self.channel.try_read(room).map_err(lost)? {
                None => return Ok(false),
                Some(0) => {
                    return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
                }
                Some(count) => self.filled += count,
            }
        }
        if is_head && self.filled == FRAME_HEAD_BYTES {
            self.body = vec![0; FrameHead::decode(self.head)?.body_bytes];
        }
        if self.filled >= FRAME_HEAD_BYTES && self.filled == FRAME_HEAD_BYTES + self.body.len() {
            self.filled = 0;
            self.frame()?;
        }
        Ok(true)
    }

    fn frame(&mut self) -> Result<()> {
        let head = FrameHead::decode(self.head)?;
        let body = std::mem::take(&mut self.body);
        let heard = match head.kind {
            FrameKind::Control if head.request == 0 => match Message::from_bytes(&body)? {
                Message::Fault(fault) => return Err(fault.to_error("")),
                Message::Progress(_) => return Ok(()),
                message @ (Message::Entries(_) | Message::EntryFailed(EntryFailed { .. })) => {
                    Heard::Message(message)
                }
                _ => return Err(Error::new(ErrorKind::Protocol, "sender sent a message out of place")),
            },
            FrameKind::Data => Heard::Data(head.request, body),
            FrameKind::End => Heard::End(head.request),
            _ => return Err(Error::new(ErrorKind::Protocol, "sender sent a frame out of place")),
        };
        self.waiting.push_back(heard);
        Ok(())
    }
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}
