//! Copies of files within this host, made while an entry is decided on: shared where the file system can, and given up soon once nobody waits.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Statx, ioctl_ficlone};

use super::backup::keep_all;
use super::content::{FileState, Read, read_content};
use super::directory::stat_fd;
use super::opened::OpenDirectory;
use super::place::{FileTarget, Identity, NewFile, Now, There};
use super::settings::{Settings, mtime_of};
use super::write::TreeWriter;

impl Settings {
    /// `Interrupted` once nobody waits for the copy any more.
    pub(super) fn check_stop(&self) -> Result<()> {
        if self.stop.borrow().as_ref().is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        Ok(())
    }

    /// Copies the content of `from`, which was in the state that `found` tells of, to the empty file `to`, holes as holes. `Changed` if it is in another one before
    /// or after, `Interrupted` soon after the stop.
    pub(super) fn copy_content(&self, from: &File, found: &Statx, to: &File) -> Result<bool> {
        let failed = |error: io::Error| Error::file("copy what is here", error);
        let is_same = |now: &Statx| FileState::of(now).is_but_for_links(&FileState::of(found));
        let now = || stat_fd(from.as_fd()).map_err(failed);
        let changed = || Error::new(ErrorKind::Changed, "another program wrote to it while it was copied");
        if !is_same(&now()?) {
            return Err(changed());
        }
        let is_shared = ioctl_ficlone(to, from).is_ok();
        if !is_shared {
            let has_holes = found.stx_blocks.saturating_mul(512) < found.stx_size;
            let mut at = 0;
            let mut take = |read: Read<'_>| {
                match read {
                    Read::Hole(len) => at += len,
                    Read::Data(bytes) => {
                        to.write_all_at(bytes, at).map_err(failed)?;
                        at += bytes.len() as u64;
                    }
                }
                Ok(())
            };
            let between = &mut || self.check_stop();
            let end = read_content(from, 0..found.stx_size, has_holes, between, &mut take)?;
            if end != found.stx_size {
                return Err(changed());
            }
            rustix::fs::ftruncate(to, end).map_err(|error| failed(error.into()))?;
        }
        if is_same(&now()?) { Ok(is_shared) } else { Err(changed()) }
    }

    /// True if the regular file that `found` tells of has other names, which are not to change with it: as with rsync's transfers, it is made anew then.
    pub(super) fn is_shared(&self, found: &Statx) -> bool {
        self.sync().is_some() && found.stx_nlink > 1 && !self.overwrites(found)
    }
}

impl TreeWriter {
    /// What `found` tells of, whose content is right, becomes a file of its own with what is told of the entry, if anything of that differs; its other names stay
    /// what they are. `None` if nothing differs.
    pub(super) fn renew(
        &self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        metadata: &Metadata,
        found: &Statx,
    ) -> Result<Option<Identity>> {
        let (mode, differences) = self.differences(parent, name, metadata, found);
        if differences.is_none() {
            return Ok(None);
        }
        let from = parent.directory.open_to_read(name.as_bytes());
        let from = File::from(from.map_err(|error| Error::file("open the file to copy it", error))?);
        let kind = Kind::File { size_bytes: found.stx_size, oid: None };
        let entry = Entry { name: None, kind, metadata: metadata.clone() };
        let there = There::File(u32::from(found.stx_mode) & 0o777);
        let target = FileTarget::new(parent.clone(), name.clone(), &entry, there);
        self.settings.unlinks(found);
        let made = self.copy_of(&target, &from, mode, found).and_then(|new| target.take_place(new));
        parent.settle();
        made.map(Some)
    }

    /// A copy of `from` in everything, and then with what is told of the entry.
    fn copy_of(&self, target: &FileTarget, from: &File, mode: u32, found: &Statx) -> Result<NewFile> {
        let settings = &self.settings;
        let mut new = target.create()?;
        settings.copy_content(from, found, new.file())?;
        new.filled(found.stx_size);
        // Not what it stands for.
        let real = stat_fd(from.as_fd()).map_err(|error| Error::file("look at what is here", error))?;
        keep_all(from.as_fd(), new.file().as_fd(), &real, &mut settings.told.borrow_mut());
        let failed = |error| Error::file("look at the new file", error);
        let made = stat_fd(new.file().as_fd()).map_err(failed)?;
        let now = Now {
            mode: Some(u32::from(made.stx_mode) & 0o7777),
            owner: Some((made.stx_uid, made.stx_gid)),
            mtime: Some(mtime_of(&made)),
            has_no_xattrs: false,
        };
        settings.apply(new.file().as_fd(), &target.metadata, &now, mode, false);
        Ok(new)
    }
}
