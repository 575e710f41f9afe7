//! The sending side of a tree copy: one thread walks ahead, this one tells its entries and sends what is asked for.

use std::collections::VecDeque;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::TREE_RECORD_BYTES_MAX;
use dray_core::message::{Entries, EntryFailed, Fault, Message, Progress, TreeDone};
use dray_core::tree::{RECORD_HEAD_BYTES, Record, bytes_head};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeSender};

use super::TOLD_INTERVAL;
use crate::transport::{Channel, ControlReader, Wake, push_control};

/// Bytes of a data frame with which it leaves.
const FRAME_BYTES: usize = TREE_RECORD_BYTES_MAX;
/// Batches that the walk may be ahead.
const BATCHES_AHEAD: usize = 4;
/// How often a side with nothing to do looks around.
const IDLE: Duration = Duration::from_millis(100);

/// Why a content did not leave.
#[derive(Debug)]
pub enum SendError {
    /// The file cannot be had; the copy goes on.
    File(Error),
    /// Nothing can be sent any more.
    Channel(Error),
}

impl From<Error> for SendError {
    fn from(error: Error) -> SendError {
        SendError::File(error)
    }
}

/// A content that was told of.
pub trait TreeFile: Send {
    /// Sends it, and its end; `known` is the hash of what the receiver has.
    fn send(&self, known: Option<[u8; 32]>, sink: &mut dyn RecordSink) -> Result<(), SendError>;
}

/// Takes the records of one content.
pub trait RecordSink {
    /// Appends up to `max` bytes that `read` fills in; how many came. What `read` says is the file's failure.
    fn bytes(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize, SendError>;
    /// Appends any other record.
    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError>;
}

/// Entries to tell.
#[derive(Default)]
pub struct Batch {
    /// What the receiver is told.
    pub entries: Option<Entries>,
    /// How many of its items are entries.
    pub count: u64,
    /// What can be asked for, by its place among the entries; ascending.
    pub files: Vec<(u64, Box<dyn TreeFile>)>,
    /// Entries that could not be read, told before.
    pub failed: Vec<EntryFailed>,
}

/// Where batches come from. Its last one says so.
pub trait TreeSource: Send {
    /// The next batch; `None` after the last.
    fn next_batch(&mut self) -> Option<Batch>;
}

/// Sends the trees of `source` over `channel`, on which the hellos were exchanged; `preface` goes first. `heard` gets what else the
/// receiver says, and every 200 ms `None`; it ends the copy with an error. Returns what the receiver says at the end.
pub fn send(
    channel: Box<dyn Channel>,
    preface: Vec<u8>,
    source: &mut dyn TreeSource,
    heard: &mut dyn FnMut(Option<Message>) -> Result<()>,
    patience: &dyn Fn() -> Duration,
) -> Result<TreeDone> {
    let wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
    let (sender, batches) = mpsc::sync_channel(BATCHES_AHEAD);
    let mut server = Server {
        channel,
        reader: ControlReader::default(),
        machine: TreeSender::new(),
        batches,
        wake: &wake,
        files: VecDeque::new(),
        told: 0,
        is_told: false,
        out: preface,
        request: 0,
        frame_start: None,
        heard,
        patience,
        heard_at: Instant::now(),
        said_at: Instant::now(),
        ticked_at: Instant::now(),
        done: None,
    };
    thread::scope(|scope| {
        let wake = &wake;
        scope.spawn(move || {
            while let Some(batch) = source.next_batch() {
                if sender.send(batch).is_err() {
                    return;
                }
                wake.signal();
            }
        });
        let result = server.run();
        if let Err(error) = &result {
            if error.kind() == ErrorKind::Unreachable {
                // The receiver may have said why before it hung up.
                server.listen()?;
            } else {
                server.out.clear();
                push_control(&mut server.out, &Message::Fault(Fault::from_error(None, error)));
                let _ = server.channel.write_all(&server.out);
            }
        }
        // Ends the walk, which may wait for room.
        drop(server);
        result
    })
}

struct Server<'a> {
    channel: Box<dyn Channel>,
    reader: ControlReader,
    machine: TreeSender,
    batches: mpsc::Receiver<Batch>,
    wake: &'a Wake,
    /// What can be asked for, by number.
    files: VecDeque<(u64, Box<dyn TreeFile>)>,
    told: u64,
    is_told: bool,
    /// Frames to send next.
    out: Vec<u8>,
    /// Request that the data frame being filled belongs to, and where in `out` it begins.
    request: u32,
    frame_start: Option<usize>,
    heard: &'a mut dyn FnMut(Option<Message>) -> Result<()>,
    patience: &'a dyn Fn() -> Duration,
    heard_at: Instant,
    said_at: Instant,
    ticked_at: Instant,
    done: Option<TreeDone>,
}

impl Server<'_> {
    fn run(&mut self) -> Result<TreeDone> {
        self.flush()?;
        loop {
            self.listen()?;
            if let Some(done) = self.done {
                return Ok(done);
            }
            let has_told = self.tell()?;
            if let Some(owed) = self.machine.next_owed() {
                self.answer(&owed)?;
            } else {
                self.flush()?;
                if !has_told {
                    self.rest()?;
                }
            }
        }
    }

    /// Nothing to do until something comes.
    fn rest(&mut self) -> Result<()> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            // A walk may take long: who says nothing would be taken for dead.
            let progress = Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 };
            push_control(&mut self.out, &Message::Progress(progress));
            self.flush()?;
        }
        if self.heard_at.elapsed() > (self.patience)() {
            return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing for too long")
                .advise("the same command again goes on where this one stopped"));
        }
        self.channel.wait(Some(self.wake), IDLE).map_err(lost)
    }

    /// Takes in what the receiver has said.
    fn listen(&mut self) -> Result<()> {
        if self.ticked_at.elapsed() >= TOLD_INTERVAL {
            self.ticked_at = Instant::now();
            (self.heard)(None)?;
        }
        let is_open = self.reader.fill(&mut *self.channel).map_err(lost)?;
        let check = |head: FrameHead| match head {
            FrameHead { kind: FrameKind::Control, request: 0, .. } => Ok(()),
            _ => Err(Error::new(ErrorKind::Protocol, "receiver sent what is no control frame")),
        };
        while let Some(body) = self.reader.next(&check)? {
            self.heard_at = Instant::now();
            match Message::from_bytes(&body)? {
                Message::Pull(pull) => {
                    self.machine.handle_pull(pull)?;
                    // What was passed over will not be asked for; what is owed was taken out of here by then or comes first.
                    self.forget_settled();
                }
                Message::TreeDone(done) if self.machine.is_idle() => self.done = Some(done),
                Message::TreeDone(_) => {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "receiver ended before what it asked for came",
                    ));
                }
                message => (self.heard)(Some(message))?,
            }
        }
        if !is_open && self.done.is_none() {
            return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
        }
        Ok(())
    }

    fn forget_settled(&mut self) {
        if self.machine.is_idle() {
            while self.files.front().is_some_and(|(number, _)| *number < self.machine.settled()) {
                self.files.pop_front();
            }
        }
    }

    /// Tells a batch, if there is one and it may leave.
    fn tell(&mut self) -> Result<bool> {
        if self.is_told || !self.machine.may_tell() {
            return Ok(false);
        }
        let batch = match self.batches.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "the walk ended in the middle"));
            }
        };
        self.end_frame();
        for failed in batch.failed {
            push_control(&mut self.out, &Message::EntryFailed(failed));
        }
        let Some(entries) = batch.entries else { return Ok(true) };
        self.is_told = entries.is_last;
        push_control(&mut self.out, &Message::Entries(entries));
        self.files.extend(batch.files.into_iter().map(|(at, file)| (self.told + at, file)));
        self.told += batch.count;
        self.machine.told(batch.count);
        self.flush()?;
        Ok(true)
    }

    /// Sends one content.
    fn answer(&mut self, owed: &Owed) -> Result<()> {
        while self.files.front().is_some_and(|(number, _)| *number < owed.number) {
            self.files.pop_front();
        }
        self.request = owed.request;
        let result = match self.files.front() {
            Some((number, _)) if *number == owed.number => {
                let file = self.files.pop_front().map(|(_, file)| file);
                file.map_or(Ok(()), |file| file.send(owed.known, self))
            }
            _ => Err(SendError::Channel(Error::new(
                ErrorKind::Protocol,
                "receiver asked for the content of what has none",
            ))),
        };
        match result {
            Ok(()) => {}
            Err(SendError::Channel(error)) => return Err(error),
            Err(SendError::File(error)) => {
                match self.record(&Record::Failed(Fault::from_error(None, &error))) {
                    Ok(()) => {}
                    Err(SendError::Channel(error) | SendError::File(error)) => return Err(error),
                }
            }
        }
        if owed.is_last {
            self.end_frame();
            self.out.extend_from_slice(&FrameHead::new(FrameKind::End, 0, owed.request).encode());
            self.forget_settled();
        }
        Ok(())
    }

    /// Makes room for a record of `len` bytes in the frame being filled, or begins one.
    fn make_room(&mut self, len: usize) -> Result<()> {
        if let Some(start) = self.frame_start
            && self.out.len() - start + len > FRAME_HEAD_BYTES + RECORD_HEAD_BYTES + FRAME_BYTES
        {
            self.flush()?;
            self.listen()?;
        }
        if self.frame_start.is_none() {
            self.frame_start = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
        }
        Ok(())
    }

    /// Completes the frame being filled.
    fn end_frame(&mut self) {
        let Some(start) = self.frame_start.take() else { return };
        let body_bytes = self.out.len() - start - FRAME_HEAD_BYTES;
        if body_bytes == 0 {
            self.out.truncate(start);
            return;
        }
        let head = FrameHead::new(FrameKind::Data, body_bytes, self.request).encode();
        self.out[start..start + FRAME_HEAD_BYTES].copy_from_slice(&head);
    }

    fn flush(&mut self) -> Result<()> {
        self.end_frame();
        if !self.out.is_empty() {
            self.channel.write_all(&self.out).map_err(lost)?;
            self.out.clear();
            self.said_at = Instant::now();
        }
        Ok(())
    }
}

impl RecordSink for Server<'_> {
    fn bytes(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize, SendError> {
        let max = max.min(TREE_RECORD_BYTES_MAX);
        self.make_room(RECORD_HEAD_BYTES + max).map_err(SendError::Channel)?;
        let start = self.out.len();
        self.out.resize(start + RECORD_HEAD_BYTES + max, 0);
        let count = match read(&mut self.out[start + RECORD_HEAD_BYTES..]) {
            Ok(count) => count.min(max),
            Err(error) => {
                self.out.truncate(start);
                return Err(SendError::File(error));
            }
        };
        if count == 0 {
            self.out.truncate(start);
            return Ok(0);
        }
        self.out[start..start + RECORD_HEAD_BYTES].copy_from_slice(&bytes_head(count));
        self.out.truncate(start + RECORD_HEAD_BYTES + count);
        Ok(count)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        let mut bytes = Vec::with_capacity(64);
        record.push(&mut bytes);
        self.make_room(bytes.len()).map_err(SendError::Channel)?;
        self.out.extend_from_slice(&bytes);
        Ok(())
    }
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}
