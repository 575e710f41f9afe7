//! The sending side of a tree copy: one thread walks ahead, this one tells its entries and sends what is asked for.

use std::collections::VecDeque;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::limits::TREE_RECORD_BYTES_MAX;
use dray_core::message::{Entries, EntryFailed, Fault, Message, Progress, Pull, TreeDone};
use dray_core::tree::{RECORD_HEAD_BYTES, Record, bytes_head};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeSender};

use super::{LAST_WORDS, TOLD_INTERVAL};
use crate::transport::{ControlReader, Duplex, Wake, Wants, push_control};

/// Bytes of a data frame with which it leaves.
const FRAME_BYTES: usize = TREE_RECORD_BYTES_MAX;
/// How often a side with nothing to do looks around.
pub(super) const IDLE: Duration = Duration::from_millis(100);

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
    /// To be called between pieces of work that appends nothing: tells the receiver that there is progress, and hears it.
    fn work(&mut self) -> Result<(), SendError>;
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
    /// Batches that the walk may be ahead of what leaves: while the other end starts there is time to walk.
    fn batches_ahead(&self) -> usize;
}

/// Sends the trees of `source` over `channel`, on which the hellos were exchanged; `preface` goes first. `heard` gets what else the
/// receiver says, and every 200 ms `None`; it ends the copy with an error. Returns what the receiver says at the end.
pub fn send(
    channel: Box<dyn Duplex>,
    preface: Vec<u8>,
    source: &mut dyn TreeSource,
    heard: &mut dyn FnMut(Option<Message>) -> Result<()>,
    patience: &dyn Fn() -> Duration,
) -> Result<TreeDone> {
    let wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
    let (sender, batches) = mpsc::sync_channel(source.batches_ahead());
    let mut server = Server {
        channel,
        reader: ControlReader::default(),
        machine: TreeSender::new(),
        batches,
        wake: &wake,
        files: VecDeque::new(),
        owed: VecDeque::new(),
        is_answering: false,
        out: preface,
        left: 0,
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
        let result = server.run().or_else(|error| server.end(error));
        // Ends the walk, which may wait for room.
        drop(server);
        result
    })
}

struct Server<'a> {
    channel: Box<dyn Duplex>,
    reader: ControlReader,
    machine: TreeSender,
    batches: mpsc::Receiver<Batch>,
    wake: &'a Wake,
    /// What can be asked for, by number, ascending; `None` once it was.
    files: VecDeque<(u64, Option<Box<dyn TreeFile>>)>,
    /// What was asked for, in that order; as many as the machine says are owed.
    owed: VecDeque<Box<dyn TreeFile>>,
    /// A content is on its way.
    is_answering: bool,
    /// Frames to send next, of which so many bytes have left.
    out: Vec<u8>,
    left: usize,
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
        self.listen()?;
        loop {
            if let Some(done) = self.done {
                return Ok(done);
            }
            let has_told = self.tell()?;
            if let Some(owed) = self.machine.next_owed() {
                self.answer(&owed)?;
                continue;
            }
            self.flush()?;
            if !has_told {
                self.rest()?;
            }
            self.listen()?;
        }
    }

    /// Nothing to do until something comes.
    fn rest(&mut self) -> Result<()> {
        self.say_progress()?;
        let wants = Wants { read: true, write: false };
        self.channel.wait_for(wants, Some(self.wake), IDLE).map_err(lost)
    }

    /// A walk and a hash may take long: who says nothing would be taken for dead.
    fn say_progress(&mut self) -> Result<()> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            self.end_frame();
            let progress = Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 };
            push_control(&mut self.out, &Message::Progress(progress));
            self.flush()?;
        }
        Ok(())
    }

    /// Takes in what the receiver has said.
    fn listen(&mut self) -> Result<()> {
        let is_tick = self.ticked_at.elapsed() >= TOLD_INTERVAL;
        if is_tick {
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
            if self.done.is_some() {
                return Err(Error::new(ErrorKind::Protocol, "receiver went on after its end"));
            }
            match Message::from_bytes(&body)? {
                Message::Pull(pull) => self.pull(pull)?,
                Message::TreeDone(done) => {
                    self.machine.handle_done(&done)?;
                    if self.is_answering {
                        let what = "receiver ended before the last content that it asked for came";
                        return Err(Error::new(ErrorKind::Protocol, what));
                    }
                    self.done = Some(done);
                }
                message => (self.heard)(Some(message))?,
            }
        }
        if !is_open && self.done.is_none() {
            return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
        }
        if is_tick && self.heard_at.elapsed() > (self.patience)() {
            return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing for too long")
                .advise("the same command again goes on where this one stopped"));
        }
        Ok(())
    }

    /// Contents are asked for; what is settled is forgotten.
    fn pull(&mut self, pull: Pull) -> Result<()> {
        let runs = pull.runs.clone();
        self.machine.handle_pull(pull)?;
        for number in runs.iter().flat_map(|run| run.first..run.first + run.count) {
            let at = self.files.binary_search_by_key(&number, |(number, _)| *number);
            let file = at.ok().and_then(|at| self.files.get_mut(at)).and_then(|(_, file)| file.take());
            let Some(file) = file else {
                let what = format!(
                    "receiver asked for the content of entry {number}, which has none or was asked for"
                );
                return Err(Error::new(ErrorKind::Protocol, what));
            };
            self.owed.push_back(file);
        }
        let settled = self.machine.settled();
        while self.files.front().is_some_and(|(number, file)| *number < settled || file.is_none()) {
            self.files.pop_front();
        }
        Ok(())
    }

    /// Tells a batch, if there is one and it may leave.
    fn tell(&mut self) -> Result<bool> {
        if !self.machine.may_tell() {
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
        let is_last = entries.is_last;
        push_control(&mut self.out, &Message::Entries(entries));
        let told = self.machine.entries();
        self.files.extend(batch.files.into_iter().map(|(at, file)| (told + at, Some(file))));
        self.machine.told(batch.count, is_last);
        self.flush()?;
        self.listen()?;
        Ok(true)
    }

    /// Sends one content.
    fn answer(&mut self, owed: &Owed) -> Result<()> {
        let Some(file) = self.owed.pop_front() else {
            return Err(Error::new(ErrorKind::Internal, "a content is owed that was not asked for"));
        };
        self.request = owed.request;
        self.is_answering = true;
        match file.send(owed.known, self) {
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
        }
        self.is_answering = false;
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

    /// Sends what is there. While there is no room the receiver is heard: it may wait for room itself.
    fn flush(&mut self) -> Result<()> {
        self.end_frame();
        while self.left < self.out.len() {
            let count = self.channel.try_write(&self.out[self.left..]).map_err(lost)?;
            self.left += count;
            if count == 0 {
                self.listen()?;
                let wants = Wants { read: true, write: true };
                self.channel.wait_for(wants, None, IDLE).map_err(lost)?;
            }
        }
        if self.left > 0 {
            self.out.clear();
            self.left = 0;
            self.said_at = Instant::now();
        }
        Ok(())
    }

    /// The copy failed here: the receiver is told why, or has said why it hung up.
    fn end(&mut self, error: Error) -> Result<TreeDone> {
        if error.kind() == ErrorKind::Unreachable {
            self.listen()?;
            return Err(error);
        }
        // What left in part leaves whole, so that the last word is understood.
        self.end_frame();
        if self.left == 0 {
            self.out.clear();
        }
        push_control(&mut self.out, &Message::Fault(Fault::from_error(None, &error)));
        let _ = last_words(&mut *self.channel, &self.out[self.left..]);
        Err(error)
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
        self.machine.sent_bytes(count);
        Ok(count)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        let mut bytes = Vec::with_capacity(64);
        record.push(&mut bytes);
        self.make_room(bytes.len()).map_err(SendError::Channel)?;
        self.out.extend_from_slice(&bytes);
        self.machine.sent(record);
        Ok(())
    }

    fn work(&mut self) -> Result<(), SendError> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            self.flush().and_then(|()| self.say_progress()).map_err(SendError::Channel)?;
        }
        if self.ticked_at.elapsed() >= TOLD_INTERVAL {
            self.listen().map_err(SendError::Channel)?;
        }
        Ok(())
    }
}

/// Writes `data` as long as the other side reads it, and not for long.
pub(super) fn last_words(channel: &mut dyn Duplex, mut data: &[u8]) -> std::io::Result<()> {
    let deadline = Instant::now() + LAST_WORDS;
    // What the other side still says makes room for it to hear.
    let mut unheard = vec![0; 64 * 1024];
    let mut is_open = true;
    while !data.is_empty() || channel.has_backlog() {
        let count = channel.try_write(data)?;
        data = &data[count..];
        if count == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            is_open = is_open && channel.try_read(&mut unheard)? != Some(0);
            channel.wait_for(Wants { read: is_open, write: true }, None, left.min(IDLE))?;
        }
    }
    Ok(())
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}
