//! What is to be on its disk, and what the disk refused.
//!
//! A file system says of bytes that a disk refused, as one does that was promised more room than there is, only when it is asked to make them durable; it says it once, and goes on to read them
//! from memory for a while. So with `--fsync`, and where sources go, a file is durable before it takes the place of anything. New files are made durable together: if that fails, each is asked
//! for by itself, and those that are not on the disk are removed again, as the next run would believe their size and time.

use std::collections::HashMap;
use std::os::fd::AsFd;

use dray_core::Error;
use dray_core::tree::Name;
use rustix::fs::{Advice, AtFlags, FileType, StatVfsMountFlags, Statx, fstatvfs};
use rustix::io::Errno;

use super::directory::{Directory, stat_fd, stat_fd_for};
use super::opened::{OpenDirectory, not_durable};
use super::overwrite::{FACTS, born};
use super::place::{FileTarget, Identity, NewFile, There, identity_of};
use super::settings::Settings;
use super::write::{TreeWriter, file_type};

/// New files after which what came is made durable.
const UNSYNCED_MAX: usize = 16_384;

/// A new file that may not be on the disk yet.
#[derive(Debug)]
pub(super) struct Unsynced {
    /// Below the destination.
    path: Vec<u8>,
    identity: Identity,
    born: (i64, u32),
}

impl Settings {
    /// Waits until a file is on its disk. What else that did not take is looked for where this fails, by [`TreeWriter::sync`].
    pub(super) fn make_durable(&self, file: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fsync(file).inspect_err(|_| self.is_refused.set(true))
    }

    /// The same of a regular file that is to get a name that something else has, before it does.
    pub(super) fn settle_named(&self, directory: &Directory, name: &[u8]) -> dray_core::Result<()> {
        let is_file = || directory.stat(name).is_ok_and(|found| file_type(&found) == FileType::RegularFile);
        if !self.is_durable() || !is_file() {
            return Ok(());
        }
        // What may not be opened was synced, or is removed again, under its first name.
        let Ok(file) = directory.open_to_read(name) else { return Ok(()) };
        self.make_durable(&file).map_err(|error| {
            if let Ok(found) = stat_fd(file.as_fd()) {
                // Nobody else is told.
                self.refused.borrow_mut().push((identity_of(&found), error));
            }
            refused_by_disk(error)
        })
    }

    /// True if what comes is to be on its disk.
    pub(super) fn is_durable(&self) -> bool {
        self.durable || self.removes_sources()
    }
}

impl FileTarget {
    /// True if it takes the place of anything.
    pub(super) fn replaces(&self) -> bool {
        !matches!(self.there, There::Nothing)
    }

    /// To be called before what stands there makes way for `file`.
    pub(super) fn settle(&self, file: &NewFile) -> dray_core::Result<()> {
        let settings = self.directory.settings();
        let fd = file.file().as_fd();
        if (settings.is_durable() && self.replaces()) || settings.fails_late(self.directory.device, fd) {
            settings.make_durable(fd).map_err(refused_by_disk)?;
        }
        Ok(())
    }
}

impl OpenDirectory {
    /// A new file, which `found`, asked for with [`FACTS`], tells of, has this name, where what comes is to be on its disk.
    pub(super) fn note_unsynced(&self, name: &Name, found: &Statx) {
        let noted = Unsynced { path: self.path(name), identity: identity_of(found), born: born(found) };
        self.settings().unsynced.borrow_mut().push(noted);
    }
}

impl TreeWriter {
    /// True if so much came that it is to be made durable, by [`TreeWriter::sync`], before more does.
    pub fn is_sync_due(&self) -> bool {
        self.settings.unsynced.borrow().len() >= UNSYNCED_MAX
    }

    /// Waits until everything is on disk, on every file system that was written to. What a disk refused of new files is removed again.
    pub fn sync(&mut self) -> dray_core::Result<()> {
        let synced = self.settings.devices.borrow().sync();
        let unsynced = self.settings.unsynced.take();
        let is_refused = self.settings.is_refused.take();
        if synced.is_ok() && !is_refused {
            return Ok(());
        }
        let refused = match &self.stage {
            Some(_) => Refused::default(),
            None => self.remove_refused(unsynced),
        };
        let why = refused.why.map_or(Ok(()), |error| Err(not_durable(error.into())));
        synced.and(why).map_err(|error| {
            let error = match &mut self.stage {
                Some(stage) => stage.doubt(error),
                None => error,
            };
            let error = [
                (&refused.removed, "which is not on the disk and was removed again"),
                (&refused.left, "which may not be on the disk, and stays there"),
            ]
            .into_iter()
            .filter_map(|(paths, what)| paths.first().map(|first| (first, paths.len() - 1, what)))
            .fold(error, |error, (first, others, what)| {
                let path = String::from_utf8_lossy(first);
                let others = if others == 0 { String::new() } else { format!(" and {others} more") };
                error.context(format_args!("{path:?}{others}, {what}"))
            });
            let error = match refused.left.is_empty() {
                true => error,
                false => error.or_advise("look after the file system there, then run it again with -c"),
            };
            self.last_error(error)
        })
    }

    /// A run that ends early leaves nothing that a disk refused, nor an error of that for the next one to hear of.
    pub(super) fn sync_left(&mut self) {
        if self.settings.is_refused.get() || !self.settings.unsynced.borrow().is_empty() {
            let _ = self.sync();
        }
    }

    /// Removes those of `unsynced` that are not on the disk.
    fn remove_refused(&self, unsynced: Vec<Unsynced>) -> Refused {
        // Of several names of one file the first that asks is told.
        let told = self.settings.refused.take();
        let mut asked: HashMap<_, _> = told.into_iter().map(|(file, error)| (file, Some(error))).collect();
        let mut refused = Refused::default();
        for it in unsynced {
            let Some((directory, name)) = place_of(&self.landing.base, &it.path) else { continue };
            let Some(error) = *asked.entry(it.identity).or_insert_with(|| it.refused(&directory, name))
            else {
                continue;
            };
            if !directory.stat_for(name, FACTS).is_ok_and(|found| it.is(&found)) {
                continue;
            }
            let is_removed = rustix::fs::unlinkat(&directory, name, AtFlags::empty()).is_ok();
            refused.why = refused.why.or(Some(error));
            if is_removed { &mut refused.removed } else { &mut refused.left }.push(it.path);
        }
        refused
    }
}

/// A file stays where it was, for the disk did not take it.
fn refused_by_disk(error: Errno) -> Error {
    Error::file("write the file to its disk", error.into())
}

/// Where new files were that a disk refused.
#[derive(Default)]
struct Refused {
    why: Option<Errno>,
    removed: Vec<Vec<u8>>,
    left: Vec<Vec<u8>>,
}

impl Unsynced {
    fn is(&self, found: &Statx) -> bool {
        (identity_of(found), born(found)) == (self.identity, self.born)
    }

    /// Why the file, under this name, is not on the disk.
    fn refused(&self, directory: &Directory, name: &[u8]) -> Option<Errno> {
        // There nothing is written any more, and nobody is told of what was not.
        if fstatvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
            return Some(Errno::ROFS);
        }
        match directory.open_to_read(name) {
            Ok(file) if stat_fd_for(file.as_fd(), FACTS).is_ok_and(|found| self.is(&found)) => {
                rustix::fs::fsync(&file).err()
            }
            Ok(_) => None,
            // Where nobody can ask, nobody knows.
            Err(_) => Some(Errno::IO),
        }
    }
}

/// The directory of what is at `path` below `base`, and its name there.
fn place_of<'a>(base: &Directory, path: &'a [u8]) -> Option<(Directory, &'a [u8])> {
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => (&path[..end], &path[end + 1..]),
        None => (&path[..0], path),
    };
    Some((base.below(above).ok()?, name))
}

/// True if what is read of the file `name` may not be what its disk has, which refused some of it. Else it is read from the disk from now on.
pub(super) fn was_refused(directory: &Directory, name: &Name) -> bool {
    let Ok(file) = directory.open_to_read(name.as_bytes()) else { return false };
    if matches!(rustix::fs::fsync(&file), Err(Errno::IO | Errno::NOSPC | Errno::DQUOT)) {
        return true;
    }
    // Who has asked before was told, and nobody else is.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    false
}
