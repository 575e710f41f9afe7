//! What leaves when a content is asked for, over the channel of the copy or a direct connection: its records, or why it cannot be had.

use dray_core::block_mask::Have;
use dray_core::limits::TREE_RECORD_BYTES_MAX;
use dray_core::message::{Fault, Part};
use dray_core::tree::{RECORD_HEAD_BYTES, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeSent};

use super::frames::{Frames, Piece};

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
pub trait TreeFile: Send + Sync {
    /// Sends it, or a part of it, and its end; `known` is the hash of what the receiver has.
    fn send(
        &self,
        known: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError>;

    /// Sends how the part that is asked for is cut, or sums of blocks, and its end: chunks and holes, or sums, never bytes.
    fn cut(&self, _owed: &Owed, _sink: &mut dyn RecordSink) -> Result<(), SendError> {
        Err(SendError::File(Error::new(ErrorKind::Unsupported, "it cannot be cut into chunks")))
    }

    /// Sends what the receiver has not of the part that is asked for, and its end.
    fn send_rest(&self, _part: &Part, _have: &Have, _sink: &mut dyn RecordSink) -> Result<(), SendError> {
        Err(SendError::File(Error::new(ErrorKind::Unsupported, "it is not sent in part")))
    }

    /// True if it has other names that may have been told of, too.
    fn is_linked(&self) -> bool {
        false
    }
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

/// A path over which contents leave.
pub(super) trait Outlet {
    /// Has `change` change what is to leave over it.
    fn change<T>(&mut self, change: impl FnOnce(&mut Frames) -> T) -> T;
    /// Where bytes are read to before they are to leave.
    fn piece(&mut self) -> &mut Piece;
    /// Makes room for a record of `len` bytes in the frame being filled.
    fn make_room(&mut self, len: usize) -> Result<()>;
    /// Has `count` count what is about to leave: the receiver may be done with it at once.
    fn count_sent(&mut self, count: &dyn Fn(&mut TreeSent));
    /// The end of the content is about to leave.
    fn answered(&mut self) {}
    /// Something else is about to leave than that a content is what the receiver has.
    fn awaited(&mut self) {}
    /// See [`RecordSink::work`].
    fn work(&mut self) -> Result<()>;
}

/// Sends what `owed` says of `file` over `outlet`, or why that cannot be had. An error is one of the outlet.
pub(super) fn answer(outlet: &mut impl Outlet, file: &dyn TreeFile, owed: &Owed) -> Result<()> {
    outlet.change(|frames| frames.request = owed.request);
    let is_part = owed.part.is_some() || owed.is_question();
    let known = owed.known.filter(|_| owed.is_brief);
    let mut records = Records { outlet: &mut *outlet, known, is_part, is_linked: file.is_linked() };
    let sent = match (owed.part, &owed.have) {
        _ if owed.is_question() => file.cut(owed, &mut records),
        (Some(part), Some(have)) => file.send_rest(&part, have, &mut records),
        (part, _) => file.send(owed.known, part, &mut records),
    };
    let sent = match sent {
        Err(SendError::File(error)) => records.record(&Record::Failed(Fault::from_error(None, &error))),
        sent => sent,
    };
    if let Err(SendError::Channel(error) | SendError::File(error)) = sent {
        return Err(error);
    }
    if owed.is_last {
        outlet.change(Frames::end_request)?;
    }
    Ok(())
}

/// Takes the records of one content, or of a part of one.
struct Records<'a, O> {
    outlet: &'a mut O,
    /// A hash that need not be said.
    known: Option<[u8; 32]>,
    is_part: bool,
    is_linked: bool,
}

impl<O: Outlet> RecordSink for Records<'_, O> {
    fn bytes(
        &mut self,
        max: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize, SendError> {
        let max = max.min(TREE_RECORD_BYTES_MAX);
        self.outlet.make_room(RECORD_HEAD_BYTES + max).map_err(SendError::Channel)?;
        let mut piece = std::mem::take(self.outlet.piece());
        let read = piece.fill(max, read);
        if let Ok(count @ 1..) = read {
            self.outlet.count_sent(&|sent| sent.bytes(count));
            self.outlet.change(|frames| frames.piece(&mut piece));
        }
        *self.outlet.piece() = piece;
        read.map_err(SendError::File)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), SendError> {
        let mut bytes = Vec::with_capacity(64);
        match &self.known {
            Some(known) => record.push_briefly(known, &mut bytes),
            None => record.push(&mut bytes),
        }
        self.outlet.make_room(bytes.len()).map_err(SendError::Channel)?;
        let (is_part, is_linked) = (self.is_part, self.is_linked);
        self.outlet.count_sent(&|sent| sent.record(record, is_part, is_linked));
        if matches!(record, Record::Done(_) | Record::Same(_) | Record::Failed(_)) {
            self.outlet.answered();
        }
        if !matches!(record, Record::Same(_)) {
            self.outlet.awaited();
        }
        self.outlet.change(|frames| frames.record(&bytes));
        Ok(())
    }

    fn work(&mut self) -> Result<(), SendError> {
        self.outlet.work().map_err(SendError::Channel)
    }
}
