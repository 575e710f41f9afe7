//! Where a search may look, and nowhere else (design 16): below one directory, over no link and no mount, and only on a disk of this machine.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray_core::limits::{SEARCH_ENTRIES_MAX, UNIT_BYTES, UPDATE_BYTES_MAX};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::search::Metadata;
use dray_store::local::Within;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use crate::mounts::Mounts;

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// Seconds and nanoseconds.
pub(super) type ChangeTime = (i64, i64);

/// A directory and what is below it on the same file system.
#[derive(Debug)]
pub(crate) struct Scope {
    within: Within,
    /// Its file system.
    device: u64,
    /// Paths from it at which something else is mounted: they are not even opened, which could mount it.
    mounts: HashSet<PathBuf>,
    /// Names from it to the destination's directory, if that is below.
    destination: Option<Vec<Vec<u8>>>,
    /// Smaller files are left out.
    from_bytes: u64,
}

/// What is in a directory.
pub(super) enum Found<'a> {
    Directory(&'a [u8]),
    File(Metadata<'a>),
}

impl Found<'_> {
    pub(super) fn name(&self) -> &[u8] {
        match self {
            Found::Directory(name) | Found::File(Metadata { name, .. }) => name,
        }
    }
}

/// A file that is open to be read.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    pub(super) identity: Identity,
    pub(super) changed: ChangeTime,
    /// An index named it.
    pub(super) is_cached: bool,
}

impl Opened {
    /// CACHE-CHECK (Y8): whether it is what it was, as far as its file system tells.
    pub(super) fn is_unchanged(&self) -> bool {
        rustix::fs::fstat(&*self.file).is_ok_and(|stat| changed_at(&stat) == self.changed)
    }
}

impl Scope {
    /// Below `top`, for what goes to the directory `destination`. `Refused` where `top` is on a network or behind a program, which may hang or cost
    /// others more than it saves.
    pub(crate) fn new(top: OwnedFd, destination: BorrowedFd<'_>) -> Result<Scope> {
        Scope::among(&Mounts::now(), top, destination)
    }

    /// The directory that a user named.
    pub(crate) fn named(path: &Path, destination: BorrowedFd<'_>) -> Result<Scope> {
        let mounts = Mounts::now();
        let absolute = std::path::absolute(path).map_err(|error| Error::file("search", error))?;
        // Before it is opened: what is away may hang, or be mounted for it.
        if mounts.is_left_out(&absolute) {
            return Err(left_out(path));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            let error = Error::io(format!("cannot search {path:?}"), error.into());
            error.advise("name a directory that you may read, or leave --search out")
        })?;
        Scope::among(&mounts, top, destination)
    }

    fn among(mounts: &Mounts, top: OwnedFd, destination: BorrowedFd<'_>) -> Result<Scope> {
        let path = path_of(top.as_fd())?;
        if mounts.is_left_out(&path) {
            return Err(left_out(&path));
        }
        let names = path_of(destination).ok().and_then(|below| {
            let below = below.strip_prefix(&path).ok()?.to_owned();
            Some(below.iter().map(|name| name.as_bytes().to_vec()).collect())
        });
        let stat = rustix::fs::fstat(&top).map_err(|error| Error::io("search", error.into()))?;
        Ok(Scope {
            within: Within::new(top)?,
            device: stat.st_dev,
            // The top itself may be such a place.
            mounts: mounts.below(&path).filter(|at| *at != Path::new("")).map(Path::to_owned).collect(),
            destination: names,
            from_bytes: UNIT_BYTES,
        })
    }

    /// With files from `from_bytes` on.
    pub(crate) fn with_files_from(self, from_bytes: u64) -> Scope {
        Scope { from_bytes, ..self }
    }

    /// As if something were mounted at `path`.
    #[cfg(test)]
    pub(super) fn with_mount(mut self, path: &str) -> Scope {
        self.mounts.insert(path.into());
        self
    }

    /// The size of the file `path`, if it is one that may be read.
    pub(super) fn size_of(&self, path: &Path) -> Option<u64> {
        self.may_name(path).then_some(())?;
        let seen = self.within.open_straight(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let stat = rustix::fs::fstat(seen).ok().filter(|stat| self.is_usual(stat))?;
        u64::try_from(stat.st_size).ok()
    }

    /// The file `path`, if it is one that may be read.
    pub(crate) fn file(&self, path: &Path) -> Option<File> {
        Arc::into_inner(self.open(path)?.file)
    }

    /// Names from its top to the destination's directory; `None` if that is elsewhere.
    pub(super) fn destination(&self) -> Option<Vec<Vec<u8>>> {
        self.destination.clone()
    }

    /// Hears what is in the directory `path` that may be looked at, as long as `goes_on`. What cannot be read is not there.
    pub(super) fn list(&self, path: &Path, goes_on: &dyn Fn() -> bool, found: &mut dyn FnMut(Found<'_>)) {
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let Ok(directory) = self.within.open_straight(at, OFlags::RDONLY | OFlags::DIRECTORY) else { return };
        let Ok(entries) = Dir::read_from(&directory) else { return };
        for entry in entries.take(SEARCH_ENTRIES_MAX) {
            if !goes_on() {
                return;
            }
            let Ok(entry) = entry else { return };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..")
                || !matches!(
                    entry.file_type(),
                    FileType::Directory | FileType::RegularFile | FileType::Unknown
                )
            {
                continue;
            }
            let below = path.join(std::ffi::OsStr::from_bytes(name));
            if self.mounts.contains(&below) {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                found(Found::Directory(name));
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                found(Found::Directory(name));
            } else if self.is_usual(&stat) && !is_partial(name) {
                let size_bytes = stat.st_size.cast_unsigned();
                found(Found::File(Metadata { name, size_bytes, mtime_s: Some(stat.st_mtime) }));
            }
        }
    }

    /// Opens the file `path` to be read. `None` if it is none that may be.
    pub(super) fn open(&self, path: &Path) -> Option<Opened> {
        self.may_name(path).then_some(())?;
        // Looked at before it is opened: a device or a fifo may act on being opened.
        let seen = self.within.open_straight(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let before = rustix::fs::fstat(seen).ok().filter(|stat| self.is_usual(stat))?;
        // Something else may lie there by now: it is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        // Others' files are not to be opened without a trace.
        let opened = self.within.open_straight(path, flags | OFlags::NOATIME);
        let file = File::from(opened.or_else(|_| self.within.open_straight(path, flags)).ok()?);
        let stat = rustix::fs::fstat(&file).ok().filter(|stat| self.is_usual(stat))?;
        let is_same = (stat.st_dev, stat.st_ino) == (before.st_dev, before.st_ino);
        is_same.then_some(Opened {
            file: Arc::new(file),
            identity: (stat.st_dev, stat.st_ino),
            changed: changed_at(&stat),
            is_cached: false,
        })
    }

    /// Whether a path that others named may be looked at: it leads to no other file system, and is not what is being received.
    fn may_name(&self, path: &Path) -> bool {
        let is_below_mount = || path.ancestors().any(|above| self.mounts.contains(above));
        let is_partial = path.file_name().is_some_and(|name| is_partial(name.as_bytes()));
        !is_partial && !is_below_mount()
    }

    /// A regular file of this file system that is neither too small nor too large.
    fn is_usual(&self, stat: &Stat) -> bool {
        let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        is_file && stat.st_dev == self.device && (self.from_bytes..=UPDATE_BYTES_MAX).contains(&size_bytes)
    }
}

pub(super) fn changed_at(stat: &Stat) -> ChangeTime {
    // The field's type differs between architectures.
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
    (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0))
}

/// `.NAME.dray-ID` and its companions: what is being received.
fn is_partial(name: &[u8]) -> bool {
    name.starts_with(b".") && name.windows(6).any(|part| part == b".dray-")
}

/// The path of what is open, as the kernel knows it.
fn path_of(opened: BorrowedFd<'_>) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    std::fs::read_link(link).map_err(|error| Error::file("find out where a directory is", error))
}

fn left_out(path: &Path) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("{path:?} is not searched: it is on a network or behind a program"),
    )
    .advise("name a directory on a disk of this machine, or leave --search out")
}
