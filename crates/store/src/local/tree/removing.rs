//! What is in place at the receiver leaves its source (`--remove-source-files`): each entry that is no directory, if it is what it was when it was told.
//!
//! Nobody can tell whether the file at the receiver and the one at the source are one and the same, as where both ends come upon one directory by different ways. So the
//! receiver changes something of what it finds in place (its ctime), and makes anew what it does not; and the sender removes nothing that changed since.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray_core::limits::TREE_LINK_GROUPS_MAX;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::content::FileState;
use super::directory::{Directory, stat_fd};
use super::origin::Origin;
use super::place::{Identity, identity_of, times_of};
use super::settings::mtime_of;
use super::temporary;
use super::walk::{root_directory, split};
use super::write::file_type;
use crate::local::file_systems::UNTOLD;

/// An entry of a source as it was told.
#[derive(Clone, Debug)]
pub struct ToldEntry {
    pub(super) source: Arc<PathBuf>,
    /// Below the source; empty for the source itself.
    pub(super) path: Box<[u8]>,
    /// `None` if a later change might leave it as it is, or not all of it could be told.
    pub(super) state: Option<FileState>,
}

impl ToldEntry {
    /// Its path, for people.
    pub fn path(&self) -> PathBuf {
        match self.path.is_empty() {
            true => self.source.to_path_buf(),
            false => self.source.join(OsStr::from_bytes(&self.path)),
        }
    }
}

/// Removes entries of sources.
#[derive(Debug)]
pub struct Remover {
    origin: Origin,
    /// The directory of the entry that was removed last.
    last: Option<(Arc<PathBuf>, Vec<u8>, Directory)>,
    /// Of files with further names: when they last changed by losing one here.
    lessened: HashMap<Identity, (i64, u32)>,
}

impl Remover {
    /// Of sources whose paths begin at `origin`.
    pub fn new(origin: Origin) -> Remover {
        Remover { origin, last: None, lessened: HashMap::new() }
    }

    /// Removes the entry; false if it is gone already. `Changed` if it is not what it was when it was told.
    pub fn remove(&mut self, told: &ToldEntry) -> Result<bool> {
        let failed = |error| Error::file("remove it, which is in place where it was brought", error);
        let name = self.open(told)?;
        let Some((_, _, directory)) = &self.last else { return Ok(false) };
        let fd = match directory.open_at(&name, OFlags::PATH, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        let found = stat_now(fd.as_fd()).map_err(failed)?;
        let inode = identity_of(&found);
        let state = FileState::of(&found);
        let is_lessened = || self.lessened.get(&inode) == Some(&ctime(&found));
        let is_it = |told: FileState| told == state || (told.is_but_for_links(&state) && is_lessened());
        let Some(told) = told.state else {
            let what = "it changed just before it was read, or not all of it could be read: it stays";
            let advice = "run it again; if its time of change lies ahead of the clock of this host, when that has come";
            return Err(Error::new(ErrorKind::Changed, what).advise(advice));
        };
        if file_type(&found) == FileType::Directory || !is_it(told) {
            return Err(changed());
        }
        unlink(directory, &name, &state)?;
        if found.stx_nlink > 1 && self.lessened.len() < TREE_LINK_GROUPS_MAX {
            let after = stat_fd(fd.as_fd()).map_err(failed)?;
            self.lessened.insert(inode, ctime(&after));
        }
        Ok(true)
    }

    /// Opens the directory of an entry, without following a link below its source; its name there.
    fn open(&mut self, told: &ToldEntry) -> Result<Vec<u8>> {
        let failed = |error| Error::file("open its directory to remove it", error);
        let end = told.path.iter().rposition(|byte| *byte == b'/');
        let (above, mut name) = match end {
            Some(end) => (&told.path[..end], told.path[end + 1..].to_vec()),
            None => (&told.path[..0], told.path.to_vec()),
        };
        let is_root = told.path.is_empty();
        let source: &Path = &told.source;
        if is_root {
            let (_, own) = split(source).ok_or_else(|| failed(io::ErrorKind::NotADirectory.into()))?;
            name = own.as_bytes().to_vec();
        }
        let is_open = |(last, path, _): &(Arc<PathBuf>, Vec<u8>, Directory)| {
            !is_root && Arc::ptr_eq(last, &told.source) && path == above
        };
        if self.last.as_ref().is_some_and(is_open) {
            return Ok(name);
        }
        let directory = match split(source).filter(|_| is_root) {
            Some((parent, _)) => self.origin.directory(parent)?,
            None => root_directory(&self.origin, source, false)?
                .ok_or_else(|| failed(io::ErrorKind::NotADirectory.into()))?,
        };
        let directory = directory.below(above).map_err(failed)?;
        let above = if is_root { b"/".to_vec() } else { above.to_vec() };
        self.last = Some((told.source.clone(), above, directory));
        Ok(name)
    }
}

/// Facts about an open file as whoever keeps it has them, not as they were remembered here.
fn stat_now(fd: BorrowedFd<'_>) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    Ok(rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS)?)
}

fn changed() -> Error {
    let what = "it is in place where it was brought, and changed here since it was read: it stays";
    Error::new(ErrorKind::Changed, what).advise("run it again")
}

/// Removes `name`, if it still is the file in this state; what took its place a moment ago gets its name back.
///
/// It goes under a name that nobody can foresee first: nobody puts another file there between the last look and the end.
pub(super) fn unlink(directory: &Directory, name: &[u8], state: &FileState) -> Result<()> {
    let failed = |error: io::Error| Error::file("remove it, which is in place where it was brought", error);
    let hidden = temporary::make_random(&mut |hidden| {
        match rustix::fs::renameat_with(directory, name, directory, &hidden[..], RenameFlags::NOREPLACE) {
            // As on NFS. What is there by chance is looked at first.
            Err(Errno::INVAL | Errno::NOSYS) if directory.stat(hidden).is_err() => {
                Ok(rustix::fs::renameat(directory, name, directory, &hidden[..])?)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
            result => Ok(result?),
        }
    })
    .map_err(failed)?;
    let is_it = |found: Statx| FileState::of(&found).is_but_for_links(state);
    let removed = match directory.stat(&hidden) {
        Ok(found) if is_it(found) => {
            let gone = rustix::fs::unlinkat(directory, &hidden[..], AtFlags::empty());
            gone.map_err(|error| failed(error.into()))
        }
        Ok(_) => Err(changed()),
        Err(error) => Err(failed(error)),
    };
    removed.map_err(|error| match give_back(directory, &hidden, name) {
        Ok(()) => error,
        Err(_) => {
            let (name, hidden) = (OsStr::from_bytes(name), OsStr::from_bytes(&hidden));
            let what = format!("it could not get its name {name:?} back, and is {hidden:?} now");
            error.context(&what)
        }
    })
}

/// Renames `hidden` to `name`, where nothing is.
fn give_back(directory: &Directory, hidden: &[u8], name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(directory, hidden, directory, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(directory, hidden, directory, name, AtFlags::empty())?;
            rustix::fs::unlinkat(directory, hidden, AtFlags::empty())
        }
        result => result,
    }
}

/// `Unsupported` on a file system of this kind, on which nobody knows what changed since it was told.
pub(super) fn require_told(kind: u64) -> Result<()> {
    let Some((_, name)) = UNTOLD.iter().find(|(untold, _)| *untold == kind) else { return Ok(()) };
    let what = format!("it lies on {name}, where nothing tells safely that a file changed since it was read");
    Err(Error::new(ErrorKind::Unsupported, what).advise("leave out --remove-source-files"))
}

fn ctime(found: &Statx) -> (i64, u32) {
    (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec)
}

/// Ticks of the clock that file systems stamp with that are waited for, a millisecond each.
const WAITS_MAX: usize = 50;
/// Nanoseconds of all of them.
const WAIT_NS: i128 = 50_000_000;
/// Stamps of file systems without nanoseconds are at most so coarse.
const COARSE_NS: i128 = 2_000_000_000;

fn ns((seconds, ns): (i64, u32)) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(ns)
}

/// The clock that file systems stamp with: what changes from here on has this time, or a later one.
fn stamping_clock_ns() -> i128 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    ns((now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0)))
}

/// What stands under `name`, in a state that no later change leaves as it is; with `None` where somebody keeps changing it, or did so a moment ago on a file
/// system with coarse times.
pub(super) fn settled(directory: &Directory, name: &[u8]) -> io::Result<(Statx, Option<FileState>)> {
    let mut waits = 0;
    loop {
        let now = stamping_clock_ns();
        let found = directory.stat(name)?;
        let is_coarse = found.stx_ctime.tv_nsec == 0 && found.stx_mtime.tv_nsec == 0;
        let from = ns(ctime(&found)) + if is_coarse { COARSE_NS } else { 1 };
        if now >= from {
            return Ok((found, Some(FileState::of(&found))));
        }
        if waits == WAITS_MAX || from - now > WAIT_NS {
            return Ok((found, None));
        }
        waits += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Changes the ctime of what stands under `name`, and nothing else: a source that is the same file, come upon by another way, is known by that, and stays.
/// `Unsupported` if the ctime does not move.
pub(super) fn mark_changed(directory: &Directory, name: &[u8]) -> Result<()> {
    let failed = |error: io::Error| {
        let is_read_only = error.kind() == io::ErrorKind::ReadOnlyFilesystem;
        Error::file("mark what is in place, so that its source may go", error).or_advise(if is_read_only {
            "nothing is written there any more: look after the file system, or leave out --remove-source-files"
        } else {
            "what belongs to another user here stays at its source: leave out --remove-source-files"
        })
    };
    let mut waits = 0;
    loop {
        let now = stamping_clock_ns();
        let fd = directory.open_at(name, OFlags::PATH, Mode::empty()).map_err(failed)?;
        let found = stat_now(fd.as_fd()).map_err(failed)?;
        let path = Directory::path_of(fd.as_fd());
        // Who is not in its group would take the setgid bit away.
        let is_plain = file_type(&found) == FileType::RegularFile && found.stx_mode & 0o2000 == 0;
        let result = if is_plain {
            rustix::fs::chmod(path, Mode::from_raw_mode(u32::from(found.stx_mode) & 0o7777))
        } else {
            let times = times_of(mtime_of(&found));
            rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        };
        result.map_err(|error| failed(error.into()))?;
        let after = stat_now(fd.as_fd()).map_err(failed)?;
        if ctime(&after) != ctime(&found) {
            return Ok(());
        }
        // Within one tick of the clock it does not move.
        if waits == WAITS_MAX || now - ns(ctime(&found)) > WAIT_NS {
            let what = "its file system does not tell that it was changed just now: its source stays";
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("run it again; if that does not help, leave out --remove-source-files"));
        }
        waits += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}
