//! The receiving side of a tree copy: one thread has the channel, the sink another, so that files are written while more comes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{Fault, Message, Progress, TreeDone};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::PathId;

use super::lanes::{Arrived, LANES_FRAMES, Lane, TakeLanes};
use super::send::{IDLE, last_words};
use super::unpacking::Unpacking;
use super::{LAST_WORDS, TOLD_INTERVAL, sign_interval};
use crate::transport::{Duplex, Wake, Wants, push_control};

/// Frames that may wait for the sink.
const FRAMES_AHEAD: usize = 16;
/// Bytes that may wait to be said by the sink, and as many by the channel's thread; one message more each.
const SAID_BYTES: usize = 256 * 1024;

/// What comes for the sink.
#[derive(Debug)]
pub enum Heard {
    /// A control message.
    Message(Message),
    /// Records of this request, over this path.
    Data(PathId, u32, Vec<u8>),
    /// The request is answered.
    End(PathId, u32),
    /// A direct connection is up.
    Up(Arc<Lane>),
    /// It is not any more; nothing comes over it.
    Down(Arc<Lane>),
    /// What the sink does elsewhere has come to something ([`SinkWake`]).
    Woken,
}

/// How other threads of a sink have it look at what they did. By itself it wakes nobody.
#[derive(Debug, Default)]
pub struct SinkWake {
    frames: Mutex<Option<SyncSender<Arrived>>>,
}

impl SinkWake {
    /// The sink is handed [`Heard::Woken`], or something else if more waits for it anyway: it is to look each time. Never waits.
    pub fn wake(&self) {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frames) = &*frames {
            let _ = frames.try_send((Heard::Woken, None));
        }
    }

    fn close(&self) {
        *self.frames.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What is made of a tree as it comes; on a thread of its own.
pub trait TreeSink {
    /// Said first: once `stop` is set, nobody waits for what it does any more.
    fn stop_with(&mut self, _stop: Arc<AtomicBool>) {}
    /// Said first, too: how to be woken.
    fn wake_with(&mut self, _wake: Arc<SinkWake>) {}
    /// Said first, too, unless all that comes is packed anyway: whether data comes packed over the channel.
    fn unpack_with(&mut self, _channel: Arc<Unpacking>) {}
    /// Takes the next of what came. Only what breaks the protocol, or the whole copy, is an error.
    fn handle(&mut self, heard: Heard) -> Result<()>;
    /// Does some of what is left to do without anything more to come; false once nothing is. What it says in between leaves.
    fn work(&mut self) -> Result<bool> {
        Ok(false)
    }
    /// Whether something is being done of which the sink will be woken: who waits then waits for this side.
    fn is_at_work(&self) -> bool {
        false
    }
    /// What the sender is to be told now: pulls, and entries that failed here.
    fn say(&mut self, out: &mut Vec<Message>);
    /// What became of everything, once all of it has come.
    fn done(&mut self) -> Result<Option<TreeDone>>;
    /// Bytes of content that came so far.
    fn done_bytes(&self) -> u64;
    /// What has not come, in words; `None` if it is nothing.
    fn missing(&self) -> Option<String>;
    /// Says with `error`, by which it ended, what becomes of what it made.
    fn ended(&mut self, error: Error) -> Error {
        error
    }
    /// The same in words, where it is the other end or this one's user that ended it; `None` if there is nothing to say.
    fn outcome(&self) -> Option<String> {
        None
    }
}

/// What the sink says, on its way to the channel's thread. The sink waits while there is much of it.
struct Said {
    bytes: Mutex<Vec<u8>>,
    has_room: Condvar,
    wake: Wake,
    /// The channel's thread waits until the sink has taken a frame.
    is_full: AtomicBool,
    /// The sink has ended.
    is_over: AtomicBool,
    /// Nobody takes what the sink says any more.
    is_closed: Arc<AtomicBool>,
    done_bytes: AtomicU64,
}

impl Said {
    fn new() -> Result<Said> {
        Ok(Said {
            bytes: Mutex::default(),
            has_room: Condvar::new(),
            wake: Wake::new().map_err(|error| Error::io("make a wake event", error))?,
            is_full: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_closed: Arc::default(),
            done_bytes: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues what the sink says.
    fn say(&self, message: &Message) {
        let mut bytes = self.lock();
        while bytes.len() > SAID_BYTES && !self.is_closed.load(Ordering::Acquire) {
            bytes = self.has_room.wait(bytes).unwrap_or_else(PoisonError::into_inner);
        }
        if bytes.is_empty() {
            self.wake.signal();
        }
        push_control(&mut bytes, message);
    }

    /// Appends to `out` what the sink said, unless much is there already.
    fn take(&self, out: &mut Vec<u8>) {
        if out.len() < SAID_BYTES {
            out.append(&mut self.lock());
            self.has_room.notify_one();
        }
    }

    fn close(&self) {
        let bytes = self.lock();
        self.is_closed.store(true, Ordering::Release);
        self.has_room.notify_one();
        drop(bytes);
    }
}

/// Receives trees over `channel`, on which the hellos were exchanged, into what `make` makes on the sink's thread; `preface`
/// goes first. Contents may come over `lanes`, too. `tick` is called every 200 ms with the bytes so far and ends the copy with an error.
pub fn take<S: TreeSink>(
    channel: &mut dyn Duplex,
    preface: Vec<u8>,
    make: impl FnOnce() -> Result<S> + Send,
    lanes: Option<&TakeLanes>,
    tick: &mut dyn FnMut(u64) -> Result<()>,
    patience: Duration,
) -> Result<TreeDone> {
    let said = Said::new()?;
    let (sender, frames) = mpsc::sync_channel(FRAMES_AHEAD + if lanes.is_some() { LANES_FRAMES } else { 0 });
    if let Some(lanes) = lanes {
        lanes.attach(sender.clone());
    }
    let unpacking = Arc::new(Unpacking::new(None));
    let permitting = (!channel.is_packed()).then(|| unpacking.clone());
    let wake = Arc::new(SinkWake { frames: Mutex::new(Some(sender.clone())) });
    let mut taker = Taker {
        channel,
        said: &said,
        out: preface,
        left: 0,
        head: [0; FRAME_HEAD_BYTES],
        body: Vec::new(),
        filled: 0,
        begun: Instant::now(),
        unpacking: &unpacking,
        waiting: VecDeque::new(),
        frames: Some(sender),
        lanes,
        patience,
        heard_at: Instant::now(),
        received_bytes: 0,
        told_at: Instant::now(),
        said_at: Instant::now(),
        said_bytes: 0,
        unheard: None,
    };
    let outcome = Mutex::new(None);
    let result = thread::scope(|scope| {
        let sinking = scope.spawn(|| {
            let result = sink(make, frames, &said, &wake, permitting, &outcome);
            said.is_over.store(true, Ordering::Release);
            said.wake.signal();
            result
        });
        let moved = taker.run(tick);
        // The sink ends with what has come.
        taker.frames = None;
        wake.close();
        if let Some(lanes) = lanes {
            lanes.close();
        }
        said.close();
        let sunk = sinking.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")));
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        let told = |error: Error| outcome.into_iter().fold(error, Error::context);
        // What broke at the sink explains more than that nothing came after it.
        match (sunk, moved) {
            (Ok(Ended::Done(done)), _) => Ok(done),
            (Ok(Ended::Missing(what)), Err(error))
                if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut) =>
            {
                Err(told(error.context(format_args!("{what} did not come"))))
            }
            // It was told to stop because of that.
            (Err(stopped), Err(error)) if stopped.kind() == ErrorKind::Interrupted => Err(told(error)),
            (Ok(Ended::Missing(_)), Err(error)) => Err(told(error)),
            (Err(error), _) => Err(error),
            (Ok(Ended::Missing(_)), Ok(())) => {
                Err(Error::new(ErrorKind::Internal, "the copy ended in the middle"))
            }
        }
    });
    let mut last = taker.out.split_off(taker.left);
    last.append(&mut said.lock());
    push_control(
        &mut last,
        &match &result {
            Ok(done) => Message::TreeDone(*done),
            Err(error) => Message::Fault(Fault::from_error(None, error)),
        },
    );
    let told = last_words(channel, &last);
    let done = result?;
    told.map_err(|error| Error::io("tell the sender", error))?;
    Ok(done)
}

/// How a sink ends.
enum Ended {
    Done(TreeDone),
    /// Nothing comes any more.
    Missing(String),
}

/// The sink's thread.
fn sink<S: TreeSink>(
    make: impl FnOnce() -> Result<S>,
    frames: mpsc::Receiver<Arrived>,
    said: &Said,
    wake: &Arc<SinkWake>,
    permitting: Option<Arc<Unpacking>>,
    outcome: &Mutex<Option<String>>,
) -> Result<Ended> {
    let mut sink = make()?;
    sink.wake_with(wake.clone());
    if let Some(channel) = permitting {
        sink.unpack_with(channel);
    }
    sink.stop_with(said.is_closed.clone());
    let ended = feed(&mut sink, &frames, said).map_err(|error| sink.ended(error));
    *outcome.lock().unwrap_or_else(PoisonError::into_inner) = sink.outcome();
    ended
}

/// Hands it what comes, until it ends.
fn feed(sink: &mut impl TreeSink, frames: &mpsc::Receiver<Arrived>, said: &Said) -> Result<Ended> {
    let mut messages = Vec::new();
    loop {
        let Ok((heard, credit)) = frames.recv() else {
            return Ok(Ended::Missing(sink.missing().unwrap_or_else(|| "the end".into())));
        };
        if said.is_full.swap(false, Ordering::AcqRel) {
            said.wake.signal();
        }
        sink.handle(heard)?;
        drop(credit);
        let mut goes_on = true;
        while goes_on {
            said.done_bytes.store(sink.done_bytes(), Ordering::Relaxed);
            goes_on = sink.work()?;
            sink.say(&mut messages);
            for message in messages.drain(..) {
                said.say(&message);
            }
        }
        if let Some(done) = sink.done()? {
            return Ok(Ended::Done(done));
        }
    }
}

/// The channel's thread.
struct Taker<'a> {
    channel: &'a mut dyn Duplex,
    said: &'a Said,
    /// What is to be said, of which so many bytes have left.
    out: Vec<u8>,
    left: usize,
    head: [u8; FRAME_HEAD_BYTES],
    body: Vec<u8>,
    /// Bytes of head and body that came, and when the head had.
    filled: usize,
    begun: Instant,
    unpacking: &'a Unpacking,
    /// Complete frames that the sink has no room for.
    waiting: VecDeque<Arrived>,
    frames: Option<SyncSender<Arrived>>,
    lanes: Option<&'a TakeLanes>,
    patience: Duration,
    heard_at: Instant,
    received_bytes: u64,
    told_at: Instant,
    /// When something left, and how many bytes it last was said to have.
    said_at: Instant,
    said_bytes: u64,
    /// Why nothing can be said any more: the sender does not read. It may have said why before, and that is yet to be read.
    unheard: Option<Error>,
}

impl Taker<'_> {
    /// Moves bytes both ways until the sink ends.
    fn run(&mut self, tick: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        while !self.said.is_over.load(Ordering::Acquire) {
            if self.told_at.elapsed() >= TOLD_INTERVAL {
                self.told_at = Instant::now();
                let bytes = self.said.done_bytes.load(Ordering::Relaxed);
                tick(bytes)?;
                // To the nearest look.
                let silent = self.said_at.elapsed() + TOLD_INTERVAL / 2;
                let is_due = bytes != self.said_bytes || silent >= sign_interval(self.patience);
                // One that waits to leave is enough.
                if is_due && self.out.len() == self.left {
                    self.said_bytes = bytes;
                    let progress = Progress { done_bytes: bytes, resumed_bytes: 0, direct_bytes: 0 };
                    push_control(&mut self.out, &Message::Progress(progress));
                }
            }
            self.step()?;
        }
        Ok(())
    }

    /// Says what there is room for, takes what came, and waits if there is nothing of either.
    fn step(&mut self) -> Result<()> {
        self.said.take(&mut self.out);
        let has_said = self.speak()?;
        let is_behind = self.hand_over();
        if is_behind {
            // What comes waits in the channel, so nothing is to be heard.
            self.heard_at = Instant::now();
        } else if self.read()? {
            self.heard();
            return Ok(());
        }
        // Of a slow compressed stream bytes come long before there is anything to read.
        let received_bytes = self.channel.received_bytes();
        if received_bytes != self.received_bytes {
            self.received_bytes = received_bytes;
            self.heard();
        }
        if has_said {
            return Ok(());
        }
        if self.heard_at.elapsed() > LAST_WORDS
            && let Some(error) = self.unheard.take()
        {
            return Err(error);
        }
        if self.heard_at.elapsed() > self.patience {
            return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing for too long")
                .advise("the same command again goes on where this one stopped"));
        }
        let wants = Wants { read: !is_behind, write: self.left < self.out.len() };
        self.channel.wait_for(wants, Some(&self.said.wake), IDLE).map_err(lost)
    }

    /// Something came: the sender lives.
    fn heard(&mut self) {
        self.heard_at = Instant::now();
        if let Some(lanes) = self.lanes {
            lanes.note_heard();
        }
    }

    /// Writes what there is room for; true if that was anything.
    fn speak(&mut self) -> Result<bool> {
        if self.left == self.out.len() {
            return Ok(false);
        }
        let mut count = 0;
        if self.unheard.is_none() {
            match self.channel.try_write(&self.out[self.left..]) {
                Ok(written) => {
                    count = written;
                    if count > 0 {
                        self.said_at = Instant::now();
                    }
                }
                Err(error) => {
                    self.unheard = Some(lost(error));
                    self.heard_at = Instant::now();
                }
            }
        }
        self.left += count;
        if self.left == self.out.len() || self.unheard.is_some() {
            self.out.clear();
            self.left = 0;
        }
        Ok(count > 0)
    }

    /// Gives the sink what waits; true if something still does.
    fn hand_over(&mut self) -> bool {
        let Some(frames) = &self.frames else { return false };
        while let Some(heard) = self.waiting.pop_front() {
            match frames.try_send(heard) {
                Ok(()) => {}
                Err(TrySendError::Full(heard)) => {
                    self.waiting.push_front(heard);
                    // The sink may have taken one before it saw that it is waited for: then it is tried again at once.
                    if self.said.is_full.swap(true, Ordering::AcqRel) {
                        return true;
                    }
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
            match self.channel.try_read(room) {
                Ok(None) => return Ok(false),
                Ok(Some(0)) => {
                    let closed =
                        || Error::new(ErrorKind::Unreachable, "the other side closed the connection");
                    return Err(self.unheard.take().unwrap_or_else(closed));
                }
                Ok(Some(count)) => self.filled += count,
                Err(error) => return Err(self.unheard.take().unwrap_or_else(|| lost(error))),
            }
        }
        if is_head && self.filled == FRAME_HEAD_BYTES {
            self.body = vec![0; FrameHead::decode(self.head)?.body_bytes];
            self.begun = Instant::now();
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
        self.unpacking.came(head, self.begun);
        let heard = match head.kind {
            FrameKind::Control if head.request == 0 => match Message::from_bytes(&body)? {
                Message::Fault(fault) => return Err(fault.to_error("")),
                Message::Progress(_) => return Ok(()),
                message @ (Message::Entries(_)
                | Message::EntryFailed(_)
                | Message::Direct(_)
                | Message::Removed(_)
                | Message::Digests(_)) => Heard::Message(message),
                _ => return Err(Error::new(ErrorKind::Protocol, "sender sent a message out of place")),
            },
            FrameKind::Data => Heard::Data(None, head.request, body),
            FrameKind::Packed => Heard::Data(None, head.request, self.unpacking.unpack(&body)?),
            FrameKind::End => Heard::End(None, head.request),
            _ => return Err(Error::new(ErrorKind::Protocol, "sender sent a frame out of place")),
        };
        self.waiting.push_back((heard, None));
        Ok(())
    }
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}

#[cfg(test)]
mod tests {
    use super::super::SIGN_INTERVAL;
    use super::super::script::{Script, frames};
    use super::*;

    /// Waits for entries that do not come.
    #[derive(Default)]
    struct Waiting {
        done_bytes: AtomicU64,
        /// What is more each time it is looked at; it is woken every 50 ms then.
        more_bytes: u64,
    }

    impl TreeSink for Waiting {
        fn wake_with(&mut self, wake: Arc<SinkWake>) {
            if self.more_bytes == 0 {
                return;
            }
            thread::spawn(move || {
                for _ in 0..100 {
                    thread::sleep(Duration::from_millis(50));
                    wake.wake();
                }
            });
        }
        fn handle(&mut self, _: Heard) -> Result<()> {
            Ok(())
        }
        fn say(&mut self, _: &mut Vec<Message>) {}
        fn done(&mut self) -> Result<Option<TreeDone>> {
            Ok(None)
        }
        fn done_bytes(&self) -> u64 {
            self.done_bytes.fetch_add(self.more_bytes, Ordering::Relaxed)
        }
        fn missing(&self) -> Option<String> {
            Some("the entries".into())
        }
    }

    fn frame(message: &Message) -> Vec<u8> {
        let mut frame = Vec::new();
        push_control(&mut frame, message);
        frame
    }

    /// How a copy ends whose sender reads nothing more, and has said this.
    fn ended(said: Vec<u8>) -> Error {
        let preface = frame(&super::super::progress());
        let make = || Ok(Waiting::default());
        take(&mut Script::deaf(said), preface, make, None, &mut |_| Ok(()), LAST_WORDS * 10).unwrap_err()
    }

    /// Protocol "Faults": what a sender said before it hung up is heard, also when it is noticed first that nothing reaches it any more.
    #[test]
    fn who_hung_up_is_heard_out() {
        let why = Error::new(ErrorKind::Changed, "the source went away");
        let error = ended(frame(&Message::Fault(Fault::from_error(None, &why))));
        assert!(error.kind() == ErrorKind::Changed && error.to_string().contains("went away"), "{error}");
        let error = ended(Vec::new());
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("the entries did not come"), "{error}");
    }

    /// Design 17: to a sender that does not read, signs of life do not pile up.
    #[test]
    fn one_sign_of_life_waits_at_a_time() {
        let signs = signs(Script::new([]).busy_for(SIGN_INTERVAL * 4), Waiting::default(), LAST_WORDS * 10);
        // The one that waited, and one that may have been due just then.
        assert!((1..=2).contains(&signs), "{signs} signs of life");
    }

    /// How often `sender` hears how far a copy is that waits for it, until its patience is over.
    fn signs(mut sender: Script, sink: Waiting, patience: Duration) -> usize {
        let taken = sender.taken();
        take(&mut sender, Vec::new(), || Ok(sink), None, &mut |_| Ok(()), patience).unwrap_err();
        let said = frames(&taken.lock().unwrap());
        let is_progress = |body: &[u8]| matches!(Message::from_bytes(body), Ok(Message::Progress(_)));
        said.iter().filter(|(_, body)| is_progress(body)).count()
    }

    /// P5: who has nothing new to tell says that it lives, and no oftener than that takes.
    #[test]
    fn signs_of_life_are_few() {
        let patience = SIGN_INTERVAL * 10;
        let few = signs(Script::mute(), Waiting::default(), patience);
        assert!((6..=11).contains(&few), "{few} signs of life in {patience:?}");
        // Who is given up after a second says so the oftener.
        let hasty = signs(Script::mute(), Waiting::default(), Duration::from_secs(1));
        assert!(hasty >= 3, "{hasty} signs of life in a second");
    }

    /// Who has something new to tell says it soon.
    #[test]
    fn what_came_is_told_soon() {
        let patience = SIGN_INTERVAL * 10;
        let many = signs(Script::mute(), Waiting { more_bytes: 1, ..Waiting::default() }, patience);
        assert!(many > 15, "{many} words of what came in {patience:?}");
    }
}
