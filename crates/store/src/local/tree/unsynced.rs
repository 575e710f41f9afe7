//! What is to be on its disk, and what the disk refused.
//!
//! A file system says of bytes that a disk refused, as one does that was promised more room than there is, only when it is asked to make them durable; it says it once, and goes on to read them
//! from memory for a while. So with `--fsync`, and where sources go, a file is durable before it takes the place of anything. New files are made durable together: if that fails, each is asked
//! for by itself, and those that are not on the disk are removed again, as the next run would believe their size and time.

use std::os::fd::AsFd;

use dray_core::Error;
use dray_core::tree::Name;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{Directory, stat_fd};
use super::place::{FileTarget, Identity, NewFile, There, identity_of};
use super::settings::Settings;
use super::write::TreeWriter;

/// New files after which what came is made durable.
const UNSYNCED_MAX: usize = 16_384;

/// A new file that may not be on the disk yet.
#[derive(Debug)]
pub(super) struct Unsynced {
    /// Below the destination.
    path: Vec<u8>,
    identity: Identity,
}

impl Settings {
    /// Waits until a file is on its disk. What else that did not take is looked for where this fails, by [`TreeWriter::sync`].
    pub(super) fn make_durable(&self, file: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fsync(file).inspect_err(|_| self.is_refused.set(true))
    }

    /// True if what comes is to be on its disk.
    pub(super) fn is_durable(&self) -> bool {
        self.durable || self.removes_sources()
    }
}

impl FileTarget {
    /// True if it takes the place of anything, or `waits` for that.
    pub(super) fn replaces(&self, waits: bool) -> bool {
        waits || !matches!(self.there, There::Nothing)
    }

    /// To be called before `file` takes the place of what stands there, or `waits` for a directory to make way.
    pub(super) fn settle(&self, file: &NewFile, waits: bool) -> dray_core::Result<()> {
        let settings = self.directory.settings();
        let fd = file.file().as_fd();
        if (settings.is_durable() && self.replaces(waits)) || settings.fails_late(self.directory.device, fd) {
            settings
                .make_durable(fd)
                .map_err(|error| Error::file("write the file to its disk", error.into()))?;
        }
        Ok(())
    }

    /// The new file `identity` has its name.
    pub(super) fn note_unsynced(&self, identity: Identity) {
        let settings = self.directory.settings();
        settings.unsynced.borrow_mut().push(Unsynced { path: self.path(), identity });
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
        let removed = match &mut self.stage {
            Some(_) => Vec::new(),
            None => self.remove_refused(unsynced),
        };
        synced.map_err(|error| {
            let error = match &mut self.stage {
                Some(stage) => stage.doubt(error),
                None => error,
            };
            let error = match &removed[..] {
                [] => error,
                [first, rest @ ..] => {
                    let path = String::from_utf8_lossy(first);
                    let others =
                        if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                    error.context(format_args!(
                        "{path:?}{others}, which is not on the disk and was removed again"
                    ))
                }
            };
            self.last_error(error)
        })
    }

    /// A run that ends early leaves nothing that a disk refused, nor an error of that for the next one to hear of.
    pub(super) fn sync_left(&mut self) {
        let is_refused = self.settings.is_refused.get();
        let is_stopped = self.settings.check_stop().is_err();
        if is_refused || !(is_stopped || self.settings.unsynced.borrow().is_empty()) {
            let _ = self.sync();
        }
    }

    /// Removes those of `unsynced` that are not on the disk; where they were.
    fn remove_refused(&self, unsynced: Vec<Unsynced>) -> Vec<Vec<u8>> {
        let is_removed = |it: &Unsynced| remove_if_refused(&self.landing.base, it);
        unsynced.into_iter().filter(is_removed).map(|it| it.path).collect()
    }
}

fn remove_if_refused(base: &Directory, it: &Unsynced) -> bool {
    let (above, name) = match it.path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => (&it.path[..end], &it.path[end + 1..]),
        None => (&it.path[..0], &it.path[..]),
    };
    let Ok(directory) = base.below(above) else { return false };
    let is_it = || directory.stat(name).is_ok_and(|found| identity_of(&found) == it.identity);
    // Where nobody can ask, nobody knows.
    let is_on_disk = match directory.open_at(name, READ, Mode::empty()) {
        Ok(file) if stat_fd(file.as_fd()).is_ok_and(|found| identity_of(&found) == it.identity) => {
            rustix::fs::fsync(&file).is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    };
    !is_on_disk && is_it() && rustix::fs::unlinkat(&directory, name, AtFlags::empty()).is_ok()
}

/// Opened so, neither a fifo nor a device in the place of a file is waited for.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// True if what is read of the file `name` may not be what its disk has, which refused some of it. Else it is read from the disk from now on.
pub(super) fn was_refused(directory: &Directory, name: &Name) -> bool {
    let Ok(file) = directory.open_at(name.as_bytes(), READ, Mode::empty()) else { return false };
    if matches!(rustix::fs::fsync(&file), Err(Errno::IO | Errno::NOSPC | Errno::DQUOT)) {
        return true;
    }
    // Who has asked before was told, and nobody else is.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    false
}
