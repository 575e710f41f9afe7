//! What a copy would do: entries are compared with what is there, and nothing is made or changed (`cp --dry-run`).

use std::io;

use dray_core::tree::{Entry, Kind, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::FileType;

use super::super::unsynced::Unsynced;
use super::directory::Directory;
use super::write::{Landing, WriteOptions, file_type, is_directory, is_same};

/// What would become of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// It would be made.
    Create,
    /// It would take the place of what is there.
    Replace,
    /// What is there has its size: it would be compared, and replaced if it differs.
    Compare,
    /// It is there already.
    Keep,
}

/// Compares the trees of one copy with what is there. Entries come in the order of the stream.
#[derive(Debug)]
pub struct Preview {
    base: Directory,
    names: Vec<Option<Name>>,
    times: bool,
    whole_file: bool,
    /// What may have been lost with the power.
    unsynced: Unsynced,
    /// The directories entered; `None` for those that would be made.
    stack: Vec<Option<Directory>>,
    way: Vec<Name>,
    skipping: usize,
}

impl Preview {
    /// Of a copy to `landing`.
    pub fn new(
        landing: Landing,
        options: &WriteOptions,
        never_compares: bool,
        unsynced: Unsynced,
    ) -> Preview {
        let (base, names) = landing.into_parts();
        Preview {
            base,
            names,
            times: options.times,
            whole_file: options.whole_file || never_compares,
            unsynced,
            stack: Vec::new(),
            way: Vec::new(),
            skipping: 0,
        }
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Planned> {
        self.way.clear();
        self.stack.clear();
        let failed = |error| Error::file("open the destination", error);
        let base = self.base.duplicate().map_err(failed)?;
        let planned = match self.names.get(index).cloned().flatten() {
            Some(name) => self.place(Some(&base), &name, entry),
            None if entry.is_directory() => {
                self.stack.push(Some(base));
                Ok(Planned::Keep)
            }
            None => Err(Error::new(ErrorKind::Usage, "the source is a file, not a directory")),
        };
        self.skipping = usize::from(planned.is_err() && entry.is_directory());
        planned
    }

    /// An entry of the innermost directory; `None` if it is passed over because one above it could not be entered.
    pub fn entry(&mut self, entry: &Entry) -> Option<Result<Planned>> {
        if self.skipping > 0 {
            self.skipping += usize::from(entry.is_directory());
            return None;
        }
        let Some(name) = &entry.name else {
            return Some(Err(Error::new(ErrorKind::Protocol, "an entry without a name")));
        };
        let Some(parent) = self.stack.pop() else {
            return Some(Err(Error::new(ErrorKind::Protocol, "an entry outside a directory")));
        };
        let depth = self.stack.len();
        let planned = self.place(parent.as_ref(), &name.clone(), entry);
        self.stack.insert(depth, parent);
        self.skipping = usize::from(planned.is_err() && entry.is_directory());
        Some(planned)
    }

    /// The innermost directory has no more entries.
    pub fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        self.stack.pop();
        self.way.pop();
    }

    /// Path below the destination of the entry that came last; a directory has been entered by then.
    pub fn path_of(&self, index: Option<usize>, entry: &Entry) -> Vec<u8> {
        let last = match index {
            Some(index) => self.names.get(index).and_then(Option::as_ref),
            None => entry.name.as_ref(),
        };
        let is_entered = entry.is_directory() && self.skipping == 0;
        let last = last.filter(|_| !is_entered);
        self.way.iter().chain(last).map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
    }

    fn place(&mut self, parent: Option<&Directory>, name: &Name, entry: &Entry) -> Result<Planned> {
        let found = match parent.map(|parent| parent.stat(name.as_bytes())) {
            None => None,
            Some(Ok(found)) => Some(found),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(Err(error)) => return Err(Error::file("look at what is there", error)),
        };
        if entry.is_directory() {
            let inner = match (parent, &found) {
                (Some(parent), Some(found)) if file_type(found) == FileType::Directory => {
                    let opened = parent.child(name.as_bytes());
                    Some(opened.map_err(|error| Error::file("open the directory", error))?)
                }
                (_, Some(_)) => {
                    return Err(Error::new(
                        ErrorKind::Refused,
                        "what is there is no directory, and links are not followed",
                    ));
                }
                _ => None,
            };
            let planned = if inner.is_some() { Planned::Keep } else { Planned::Create };
            self.stack.push(inner);
            self.way.push(name.clone());
            return Ok(planned);
        }
        let (Some(parent), Some(found)) = (parent, found) else { return Ok(Planned::Create) };
        match (&entry.kind, file_type(&found)) {
            (_, FileType::Directory) => Err(is_directory()),
            (Kind::File { size_bytes, .. }, FileType::RegularFile) => {
                let mtime = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                let ctime = &found.stx_ctime;
                let is_timed = self.times
                    && mtime == (entry.metadata.mtime_s, entry.metadata.mtime_ns)
                    && !self.unsynced.doubts(ctime.tv_sec, ctime.tv_nsec);
                Ok(match (found.stx_size == *size_bytes, is_timed) {
                    (true, true) => Planned::Keep,
                    (true, false) if !self.whole_file => Planned::Compare,
                    _ => Planned::Replace,
                })
            }
            _ if is_same(parent, name, entry, &found) => Ok(Planned::Keep),
            _ => Ok(Planned::Replace),
        }
    }
}
