//! Records become files: what each does to the content that is on its way over its path, and what follows from the end of one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dray_core::hash_tree::ContentHasher;
use dray_core::tree::Record;
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{PathId, Wanted};
use dray_store::local::tree::{FileTarget, NewFile};

use super::{Writing, at};

/// What comes over one path.
#[derive(Default)]
pub(super) struct Current {
    /// The file, unless it comes in parts.
    pub(super) file: Option<NewFile>,
    pub(super) hasher: ContentHasher,
    /// Bytes of a part so far, and whether any was no hole.
    pub(super) position: u64,
    pub(super) has_bytes: bool,
    /// What came of a part of which some is in place.
    pub(super) rest: Vec<u8>,
    /// It failed here; the rest of it is passed over.
    pub(super) failed: Option<Error>,
}

impl Current {
    /// The file, opened if nothing of it has come before.
    fn open(&mut self, target: &FileTarget) -> Result<NewFile> {
        match self.file.take() {
            Some(file) => Ok(file),
            None => target.create(),
        }
    }

    fn write(&mut self, target: &FileTarget, bytes: &[u8]) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let mut file = self.open(target)?;
        self.hasher.update(bytes);
        file.write(bytes)?;
        self.file = Some(file);
        Ok(())
    }

    fn skip(&mut self, target: &FileTarget, len: u64) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let mut file = self.open(target)?;
        file.skip(len)?;
        self.hasher.zeros(len);
        self.file = Some(file);
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.hasher.reset();
        self.file.as_mut().map_or(Ok(()), NewFile::restart)
    }
}

impl Writing<'_> {
    pub(super) fn record(&mut self, path: PathId, wanted: &Wanted, record: &Record<'_>) -> Result<()> {
        if wanted.sums.is_some() {
            return self.sums_record(wanted.number, record);
        }
        if wanted.cut.is_some() {
            return self.cut_record(wanted, record);
        }
        let pending = self.pending.get_mut(&wanted.number).filter(|_| !wanted.is_void);
        let Some(pending) = pending.filter(|pending| pending.parts.is_some() == wanted.part.is_some()) else {
            // A part of a file that failed, or is asked for as a whole by now.
            if wanted.part.is_some() || wanted.is_void {
                self.current.remove(&path);
                if let Record::Bytes(bytes) = record {
                    self.done.bytes += bytes.len() as u64;
                }
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Internal, "a content came that nobody waits for"));
        };
        let came = match record {
            Record::Bytes(bytes) => bytes.len() as u64,
            Record::Hole(len) => *len,
            _ => 0,
        };
        let came = came.min(pending.left_bytes);
        pending.left_bytes -= came;
        self.wanted_bytes = self.wanted_bytes.saturating_sub(came);
        let current = self.current.entry(path).or_default();
        let result = match (record, wanted.part) {
            (Record::Bytes(bytes), part) => {
                self.done.bytes += bytes.len() as u64;
                match part {
                    None => current.write(&pending.target, bytes),
                    Some(_) if wanted.have.is_some() => {
                        current.keep_rest(bytes);
                        Ok(())
                    }
                    Some(part) => current.write_part(pending, &part, bytes)?,
                }
            }
            (Record::Hole(len), None) => current.skip(&pending.target, *len),
            (Record::Hole(len), Some(part)) => current.skip_part(pending, &part, *len)?,
            (Record::Again, None) => {
                self.wanted_bytes = self.wanted_bytes.saturating_add(pending.await_again(u64::MAX));
                current.restart()
            }
            (Record::Again | Record::Chunks(_) | Record::Sums(_), _) => {
                return Err(Error::new(ErrorKind::Protocol, "sender began a part anew"));
            }
            (Record::Done(_) | Record::Same(_) | Record::Failed(_), part) => {
                let current = self.current.remove(&path).unwrap_or_default();
                return match (part, &wanted.have) {
                    (None, _) => self.end(wanted.number, current, record),
                    (Some(part), Some(have)) => self.end_rest(wanted.number, &part, have, &current, record),
                    (Some(part), None) => self.end_part(wanted.number, &part, current, record),
                };
            }
        };
        let Err(error) = result else { return Ok(()) };
        if wanted.part.is_some() || error.kind() == ErrorKind::NoSpace {
            self.current.remove(&path);
            return self.fail_part(wanted.number, error);
        }
        *current = Current { failed: Some(error), ..Current::default() };
        Ok(())
    }

    /// What came of a part cannot be written; nor, where there is no room, can anything.
    pub(super) fn fail_part(&mut self, number: u64, error: Error) -> Result<()> {
        if error.kind() == ErrorKind::NoSpace {
            let path = self.pending.get(&number).map(|pending| pending.target.path());
            return Err(at(Path::new(OsStr::from_bytes(&path.unwrap_or_default())), error));
        }
        self.settle(number, Err(error))
    }

    /// A content has come to its end.
    fn end(&mut self, number: u64, mut current: Current, record: &Record<'_>) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let failed = current.failed.take();
        let ended = match record {
            Record::Done(_) | Record::Failed(_) if failed.is_some() => failed.map_or(Ok(None), Err),
            Record::Done(finished) => {
                let whole = current.open(&pending.target).and_then(|file| {
                    if current.hasher.finish() == finished.hash {
                        return Ok(file);
                    }
                    Err(not_as_sent())
                });
                whole.and_then(|file| pending.target.finish(file, finished)).map(|identity| {
                    self.done.files += 1;
                    Some(identity)
                })
            }
            Record::Same(finished) if pending.known == Some(finished.hash) => {
                let may_ask = self.compared.as_ref().is_some_and(|compared| compared.contains(&number));
                match self.writer.keep_same(&mut pending.target, finished) {
                    // What is there now is not what was compared: this copy itself changed it under another name, perhaps.
                    Err(error) if error.kind() == ErrorKind::Changed && may_ask => {
                        // The sender has counted it, and holds its account against this.
                        self.done.unchanged += 1;
                        return self.take_whole(number);
                    }
                    kept => kept.map(|identity| {
                        self.done.unchanged += 1;
                        Some(identity)
                    }),
                }
            }
            Record::Same(_) => {
                return Err(Error::new(ErrorKind::Protocol, "sender found the same what is not"));
            }
            Record::Failed(fault) => Err(fault.to_error("")),
            _ => Ok(None),
        };
        self.settle(number, ended)
    }

    /// It will not be asked for once more for what was compared.
    pub(super) fn forget_compared(&mut self, number: u64) {
        if let Some(compared) = &mut self.compared {
            compared.remove(&number);
        }
    }

    /// An entry is in place, or will not be.
    pub(super) fn settle(&mut self, number: u64, ended: Result<Option<(u32, u32, u64)>>) -> Result<()> {
        let Some(pending) = self.pending.remove(&number) else { return Ok(()) };
        if pending.parts.is_some() {
            self.machine.forget(number);
        }
        self.forget_compared(number);
        self.lost_once.retain(|(lost, _)| *lost != number);
        self.pending_bytes -= pending.held;
        self.wanted_bytes = self.wanted_bytes.saturating_sub(pending.left_bytes);
        self.end_delta(number)?;
        let group = pending.target.link_group();
        match ended {
            Ok(identity) => {
                if identity.is_some() {
                    self.came(number);
                }
                self.writer.settle(*pending.target, identity);
                let failed = self.held.came(&mut self.writer, group);
                self.fail_all(failed)?;
            }
            Err(error) => {
                let failed = self.held.failed(&mut self.writer, pending.target, error);
                self.fail_all(failed)?;
            }
        }
        match group {
            Some(group) => {
                // If it failed, the next name that waits is asked for.
                self.coming.remove(&group);
                self.link(&group)
            }
            None => Ok(()),
        }
    }
}

pub(super) fn not_as_sent() -> Error {
    Error::new(ErrorKind::VerificationFailed, "its bytes are not those that were sent")
}
