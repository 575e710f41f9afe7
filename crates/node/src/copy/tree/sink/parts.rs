//! Large files come in parts, over any path: where the bytes of each go, and when all of them are one file.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use dray_core::block_mask::Have;
use dray_core::message::Part;
use dray_core::tree::{Finished, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::NewFile;

use super::content::{Current, not_as_sent};
use super::{Pending, Writing};

/// Zeros written at a time.
const ZEROS_BYTES: usize = 64 * 1024;

/// A file that comes in parts.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) file: Option<NewFile>,
    /// Bytes of those that are to come, as far as that is known, and of those that came whole.
    pub(super) asked: u64,
    pub(super) came: u64,
    /// How many are to come of what is asked for piece by piece.
    pub(super) pieces: u64,
    /// Where those begin of which something was written that counts no more: their path was lost.
    pub(super) dirty: BTreeSet<u64>,
    /// What the first of them said of the file.
    pub(super) finished: Option<Finished>,
}

impl Parts {
    /// Whether the sender tells of the file that it told of with the parts before, and of one of `size_bytes`.
    pub(super) fn is_of(&mut self, finished: &Finished, size_bytes: u64) -> bool {
        self.finished.get_or_insert(*finished).is_same_state(finished) && finished.size_bytes == size_bytes
    }

    /// One more part has come whole. False if they add up to more than was asked for: nothing that was asked for once comes twice, and who
    /// adds up to too much has not the file.
    pub(super) fn came(&mut self, part: &Part) -> bool {
        self.came += part.bytes;
        self.pieces = self.pieces.saturating_sub(1);
        self.came <= self.asked
    }

    /// The bytes of `part`, of which the blocks in `have` are in place, and the others came: those are taken off `came`. What cannot be read is
    /// zero, and shows in the hash.
    pub(super) fn fill_in(&self, part: &Part, have: &Have, came: &mut &[u8]) -> Vec<u8> {
        // Of 64 KiB at most.
        let mut bytes = vec![0; part.bytes as usize];
        let mut read = 0;
        while let Some(file) = &self.file
            && let Ok(count @ 1..) = file.file().read_at(&mut bytes[read..], part.start + read as u64)
        {
            read += count;
        }
        for range in have.rest(bytes.len()) {
            let Some((next, tail)) = came.split_at_checked(range.len()) else { break };
            bytes[range].copy_from_slice(next);
            *came = tail;
        }
        bytes
    }
}

impl Pending {
    /// Of what came so many bytes will come again, all of them at most: how many are awaited more than before.
    pub(super) fn await_again(&mut self, bytes: u64) -> u64 {
        if self.known.is_some() {
            return 0;
        }
        let again = bytes.min(self.size_bytes.saturating_sub(self.left_bytes));
        self.left_bytes += again;
        again
    }

    /// Writes bytes of a file that comes in parts.
    pub(super) fn write_at(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let file = match &mut parts.file {
            Some(file) => file,
            none => none.insert(self.target.create()?),
        };
        file.write_at(bytes, at)
    }
}

impl Current {
    /// Takes bytes of a part; the inner result is the file's.
    pub(super) fn write_part(
        &mut self,
        pending: &mut Pending,
        part: &Part,
        bytes: &[u8],
    ) -> Result<Result<()>> {
        let at = part.start + self.position;
        self.advance(part, bytes.len() as u64)?;
        self.hasher.update(bytes);
        self.has_bytes = true;
        Ok(pending.write_at(bytes, at))
    }

    /// Takes bytes of the rest of a part, which are no more than it has: they are written when all of them are known to be right.
    pub(super) fn keep_rest(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        self.rest.extend_from_slice(bytes);
    }

    /// Takes a hole of a part; the inner result is the file's.
    pub(super) fn skip_part(&mut self, pending: &mut Pending, part: &Part, len: u64) -> Result<Result<()>> {
        let at = part.start + self.position;
        self.advance(part, len)?;
        self.hasher.zeros(len);
        let is_dirty = pending.parts.as_ref().is_some_and(|parts| parts.dirty.contains(&part.start));
        if !is_dirty {
            return Ok(Ok(()));
        }
        // Bytes of an answer that was lost may lie there.
        let zeros = vec![0; ZEROS_BYTES];
        for start in (at..at + len).step_by(ZEROS_BYTES) {
            let count = usize::try_from(at + len - start).unwrap_or(usize::MAX).min(ZEROS_BYTES);
            if let Err(error) = pending.write_at(&zeros[..count], start) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn advance(&mut self, part: &Part, len: u64) -> Result<()> {
        let position = self.position.checked_add(len).filter(|position| *position <= part.bytes);
        self.position =
            position.ok_or_else(|| Error::new(ErrorKind::Protocol, "sender sent more than the part has"))?;
        Ok(())
    }
}

impl Writing<'_> {
    /// A part has come to its end.
    pub(super) fn end_part(
        &mut self,
        number: u64,
        part: &Part,
        current: Current,
        record: &Record<'_>,
    ) -> Result<()> {
        let Some(finished) = self.part_finished(number, record)? else { return Ok(()) };
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let (size_bytes, Some(parts)) = (pending.size_bytes, &mut pending.parts) else { return Ok(()) };
        if current.position != part.bytes {
            return Err(Error::new(ErrorKind::Protocol, "sender ended a part before its end"));
        }
        if current.hasher.finish() != finished.hash {
            return self.settle(number, Err(not_as_sent()));
        }
        if !parts.is_of(&finished, size_bytes) || !parts.came(part) {
            return self.take_whole(number);
        }
        self.machine.came_part(number, !current.has_bytes);
        if self.deltas.has(number) {
            return self.came_piece(number);
        }
        if parts.came < parts.asked {
            return Ok(());
        }
        let file = parts.file.take().map_or_else(|| pending.target.create(), Ok);
        let ended = file.and_then(|mut file| {
            file.came_in_parts(size_bytes);
            pending.target.finish(file, &finished)
        });
        let ended = ended.map(|identity| {
            self.done.files += 1;
            Some(identity)
        });
        self.settle(number, ended)
    }

    /// What the sender says of the file at the end of a part or of the rest of one. `None` if no part of it is awaited any more, or if it
    /// cannot be had so: then the file has been seen to.
    pub(super) fn part_finished(&mut self, number: u64, record: &Record<'_>) -> Result<Option<Finished>> {
        if self.pending.get(&number).is_none_or(|pending| pending.parts.is_none()) {
            return Ok(None);
        }
        match record {
            Record::Done(finished) => return Ok(Some(*finished)),
            // It was written to between two parts: once more, in one piece.
            Record::Failed(fault) if fault.to_error("").kind() == ErrorKind::Changed => {
                self.take_whole(number)?
            }
            Record::Failed(fault) => self.settle(number, Err(fault.to_error("")))?,
            _ => return Err(Error::new(ErrorKind::Protocol, "sender ended a part as a whole content")),
        }
        Ok(None)
    }

    /// What came in parts so far is void, and what comes of those that were asked for: it is asked for once more, in one piece, and in no
    /// other way again.
    pub(super) fn take_whole(&mut self, number: u64) -> Result<()> {
        self.machine.void(number);
        if let Some(pending) = self.pending.get_mut(&number) {
            // What is known of an older version has been told, or is of another file.
            (pending.parts, pending.known) = (None, None);
            self.machine.want(number, None, pending.size_bytes);
            self.wanted_bytes = self.wanted_bytes.saturating_add(pending.await_again(u64::MAX));
        }
        self.forget_compared(number);
        self.end_delta(number)
    }
}
