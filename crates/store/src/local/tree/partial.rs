//! What came of a large file before a run was cut off (`--partial`): it keeps its hidden name beside its place, and the next run takes of it what the sender
//! proves to be in the file. Nothing of it is ever under the name of the file itself.

use std::fs::File;
use std::os::fd::AsFd;
use std::rc::Rc;

use dray_core::tree::Name;
use rustix::fs::{AtFlags, FileType, FlockOperation, RenameFlags, Statx};
use rustix::io::Errno;

use super::directory::stat_fd;
use super::opened::OpenDirectory;
use super::place::{OlderFile, identity_of};
use super::temporary::{self, Temporary};
use super::write::file_type;

/// Smaller files begin anew.
pub(super) const PARTIAL_FROM_BYTES: u64 = 1 << 20;

/// What was left of one; locked, so that no other run takes it.
#[derive(Debug)]
pub(super) struct Left {
    directory: Rc<OpenDirectory>,
    name: Temporary,
    file: File,
    /// Blocks that it has on the disk: what came in parts has holes.
    blocks: u64,
}

impl Left {
    /// What runs before this one left of `name`: of two the larger one, under a name that this run does not write to.
    ///
    /// What is `whole` is taken where it is, unless there is more of another version.
    pub(super) fn take(directory: &Rc<OpenDirectory>, name: &Name, whole: Option<Temporary>) -> Option<Left> {
        if directory.is_new {
            return None;
        }
        let whole = whole.and_then(|whole| Left::open(directory, whole));
        let written = Left::open(directory, temporary::usual(directory, name));
        let kept = Left::open(directory, temporary::kept(directory, name));
        let more = written.iter().chain(&kept).map(|left| left.blocks).max();
        if let Some(whole) = whole.filter(|whole| more <= Some(whole.blocks)) {
            written.iter().chain(&kept).for_each(Left::remove);
            return Some(whole);
        }
        match (written, kept) {
            (Some(written), Some(kept)) if kept.blocks >= written.blocks => {
                written.remove();
                Some(kept)
            }
            (Some(mut written), kept) => {
                // What an earlier run left is less: it makes room.
                kept.iter().for_each(Left::remove);
                let (from, to) = (written.name, temporary::kept(directory, name));
                let fd = &directory.directory;
                // What another run has locked there stays; then this one is taken from where it is.
                let renamed =
                    match rustix::fs::renameat_with(fd, &from[..], fd, &to[..], RenameFlags::NOREPLACE) {
                        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if fd.stat(&to).is_err() => {
                            rustix::fs::renameat(fd, &from[..], fd, &to[..])
                        }
                        renamed => renamed,
                    };
                if renamed.is_ok() {
                    written.name = to;
                }
                Some(written)
            }
            (None, kept) => kept,
        }
    }

    /// Removes what runs before this one left of `name`.
    pub(super) fn clear(directory: &Rc<OpenDirectory>, name: &Name) {
        if directory.is_new {
            return;
        }
        let names = [temporary::usual(directory, name), temporary::kept(directory, name)];
        names.into_iter().filter_map(|name| Left::open(directory, name)).for_each(|left| left.remove());
    }

    fn open(directory: &Rc<OpenDirectory>, name: Temporary) -> Option<Left> {
        let fd = directory.directory.open_to_read(&name).ok()?;
        let found = stat_fd(fd.as_fd()).ok()?;
        let is_ours = file_type(&found) == FileType::RegularFile
            && found.stx_uid == directory.settings().powers.uid
            && found.stx_blocks > 0;
        let is_free = is_ours && rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
        let (file, blocks) = (File::from(fd), found.stx_blocks);
        is_free.then(|| Left { directory: directory.clone(), name, file, blocks })
    }

    /// To take parts of.
    pub(super) fn older(&self) -> Option<OlderFile> {
        OlderFile::new(self.file.try_clone().ok()?)
    }

    /// True if it bears this name.
    pub(super) fn is_at(&self, name: &Temporary) -> bool {
        self.name == *name
    }

    /// It is not needed any more.
    pub(super) fn remove(&self) {
        let directory = &self.directory.directory;
        let identity = |found: Statx| identity_of(&found);
        let named = directory.stat(&self.name).map(identity).ok();
        if named.is_none() || named != stat_fd(self.file.as_fd()).map(identity).ok() {
            // Another run's.
            return;
        }
        let _ = rustix::fs::unlinkat(&self.directory.directory, &self.name[..], AtFlags::empty());
    }
}
