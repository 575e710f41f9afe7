//! Single steps of a deletion: to open what was listed, to widen its bits, to put something in its place.

use std::os::fd::AsFd;

use dray_core::{Error, Result};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Statx};
use rustix::io::Errno;

use super::super::directory::{Directory, stat_fd};
use super::super::settings::Settings;
use super::super::temporary::{Temporary, is_temporary};
use super::super::write::file_type;
use super::doomed::replaced;
use super::identity;
use super::notes::Stamp;

/// Gives a directory its own bits back.
pub(super) fn narrow(directory: &Directory, found: &Statx) {
    let _ = rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(u32::from(found.stx_mode) & 0o7777));
}

/// The directory below `base` that `path` leads to, if it still is the one that was listed.
pub(super) fn open(base: &Directory, path: &[u8], wanted: (u64, u64)) -> Result<(Directory, Statx)> {
    let failed = |error| Error::file("open the directory to delete in it", error);
    let directory = base.below(path).map_err(failed)?;
    let found = directory.stat_self_for(Stamp::FACTS).map_err(failed)?;
    if identity(&found) == wanted { Ok((directory, found)) } else { Err(replaced()) }
}

/// Directories that got bits to go through them; they lose them when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Widened(Vec<(Directory, Statx)>);

impl Drop for Widened {
    fn drop(&mut self) {
        // What is above has to be gone through no more.
        self.0.iter().rev().for_each(|(directory, found)| narrow(directory, found));
    }
}

/// The same of what this program made, whatever the bits of the directories on the way are.
pub(super) fn open_widened(
    settings: &Settings,
    base: &Directory,
    path: &[u8],
    wanted: (u64, u64),
) -> Result<(Directory, Statx, Widened)> {
    let failed = |error| Error::file("open the directory to delete in it", error);
    let mut way = Widened::default();
    let mut directory = base.duplicate().map_err(failed)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let found = directory.stat(name).map_err(failed)?;
        let child = directory.child(name).or_else(|error| {
            if widen_by_path(&directory, name, &found) { directory.child(name) } else { Err(error) }
        });
        directory = child.map_err(failed)?;
        let now = directory.stat_self().map_err(failed)?;
        if widen(settings, &directory, &now) || now.stx_mode != found.stx_mode {
            way.0.push((directory.duplicate().map_err(failed)?, found));
        }
    }
    let found = directory.stat_self_for(Stamp::FACTS).map_err(failed)?;
    if identity(&found) == wanted { Ok((directory, found, way)) } else { Err(replaced()) }
}

/// Gives the owner of a directory the bits to delete in it; true if it had them not.
pub(super) fn widen(settings: &Settings, directory: &Directory, found: &Statx) -> bool {
    let mode = u32::from(found.stx_mode) & 0o7777;
    mode & 0o700 != 0o700
        && !settings.powers.is_root
        && rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(mode | 0o700)).is_ok()
}

/// The same of one that cannot be opened.
pub(in super::super) fn widen_by_path(parent: &Directory, name: &[u8], found: &Statx) -> bool {
    let Ok(fd) = parent.open_at(name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) else { return false };
    if !stat_fd(fd.as_fd()).is_ok_and(|now| identity(&now) == identity(found)) {
        return false;
    }
    let mode = u32::from(found.stx_mode) & 0o7777;
    // The magic link leads to the very thing that was opened.
    rustix::fs::chmod(Directory::path_of(fd.as_fd()), Mode::from_raw_mode(mode | 0o700)).is_ok()
}

/// Whether it is a file that another run is writing, under a name of its own.
pub(super) fn is_in_use(parent: &Directory, name: &[u8], found: &Statx) -> bool {
    if file_type(found) != FileType::RegularFile || !is_temporary(name) {
        return false;
    }
    let Ok(fd) = parent.open_to_read(name) else { return false };
    // A server grants no exclusive lock to who only reads.
    rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Whether it is a directory of a run that is under way and switches a destination as a whole.
pub(super) fn is_switching(parent: &Directory, name: &[u8]) -> bool {
    let lock = |directory: Directory| rustix::fs::flock(&directory, FlockOperation::NonBlockingLockShared);
    is_temporary(name)
        && parent.child_here(name).is_ok_and(|directory| lock(directory) == Err(Errno::WOULDBLOCK))
}

/// Whether another run is at work on it: it writes it, or switches a destination for it.
pub(in super::super) fn is_held(parent: &Directory, name: &[u8], found: &Statx) -> bool {
    is_in_use(parent, name, found) || (file_type(found) == FileType::Directory && is_switching(parent, name))
}

/// Removes what was made for the place of a directory that does not make way. A file of one name counted as copied until now: of one of several names nobody knows under which
/// it came.
pub(super) fn remove_made(settings: &Settings, parent: &Directory, made: &Temporary) {
    let found = parent.stat(made);
    if found.is_ok_and(|found| file_type(&found) == FileType::RegularFile && found.stx_nlink == 1) {
        settings.unplaced.set(settings.unplaced.get() + 1);
    }
    let _ = rustix::fs::unlinkat(parent, &made[..], AtFlags::empty());
}

/// Puts what was made in the place of the empty directory `name`; `None` as the error if that is not empty any more.
pub(super) fn take_place(
    parent: &Directory,
    name: &[u8],
    made: &Temporary,
) -> std::result::Result<(), Option<Error>> {
    let failed = |error: Errno| match error {
        Errno::NOTEMPTY | Errno::EXIST => None,
        error => Some(Error::file("give it its name", error.into())),
    };
    let swap = || rustix::fs::renameat_with(parent, &made[..], parent, name, RenameFlags::EXCHANGE);
    match swap() {
        Ok(()) => match rustix::fs::unlinkat(parent, &made[..], AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(error) => {
                // Something came into it: it gets its name back.
                let _ = swap();
                Err(failed(error))
            }
        },
        // The file system cannot: for a moment nothing stands there.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(failed)?;
            rustix::fs::renameat(parent, &made[..], parent, name).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}
