//! An open directory, and the few operations that trees need below it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::own;

/// Opened so, neither a fifo nor a device in the place of a file is waited for.
pub(super) const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// What the walker and the writer ask about an entry.
pub(super) const STAT: StatxFlags = StatxFlags::BASIC_STATS;

/// An open directory of the user's.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// No other one has it, before or after.
    number: u64,
}

impl From<OwnedFd> for Directory {
    fn from(fd: OwnedFd) -> Directory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Directory { fd, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> OwnedFd {
        directory.fd
    }
}

impl Directory {
    /// Opens a path that the user named; links in it are followed, this once.
    pub fn open(path: &Path) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        own::back()?;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::file(format!("open directory {path:?}"), error.into()))?;
        Ok(fd.into())
    }

    /// Opens the directory `name` in this one. `ELOOP` or `ENOTDIR` if that is a link or no directory.
    pub(super) fn child(&self, name: &[u8]) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(self.open_at(name, flags, Mode::empty())?.into())
    }

    /// The same, but nothing is entered that another file system, or the same once more, is mounted on: `EXDEV`.
    pub(super) fn child_here(&self, name: &[u8]) -> io::Result<Directory> {
        match self.open_beneath(
            name,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
            ResolveFlags::NO_XDEV,
        ) {
            // Without the call the device tells of most mounts.
            Err(Errno::NOSYS | Errno::PERM) => {
                let (child, here) = (self.child(name)?, self.stat_self()?);
                let found = child.stat_self()?;
                let device = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor);
                if device(&found) == device(&here) { Ok(child) } else { Err(Errno::XDEV.into()) }
            }
            result => Ok(result?.into()),
        }
    }

    /// The same for who has no business there: what is mounted is not even asked, and nothing is mounted by looking. `EXDEV`, and
    /// `ENOSYS` or `EPERM` where the kernel cannot promise that.
    pub(super) fn child_unmounted(&self, name: &[u8]) -> io::Result<Directory> {
        let (place, found) = self.place_unmounted(name)?;
        if found.stx_attributes.contains(StatxAttributes::AUTOMOUNT) {
            return Err(Errno::XDEV.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&place, ".", flags, Mode::empty())?.into())
    }

    /// Facts about `name`, not through a link, unless it is a mount: see [`Directory::child_unmounted`].
    pub(super) fn stat_unmounted(&self, name: &[u8]) -> io::Result<Statx> {
        Ok(self.place_unmounted(name)?.1)
    }

    fn place_unmounted(&self, name: &[u8]) -> io::Result<(OwnedFd, Statx)> {
        // A place alone asks no server; some kernels mount before they say that they will not cross it.
        let place = self.open_beneath(name, OFlags::PATH, Mode::empty(), ResolveFlags::NO_XDEV)?;
        let found = rustix::fs::statx(&place, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, STAT)?;
        Ok((place, found))
    }

    /// Opens the file `name` in this directory for reading, unless it is a mount: see [`Directory::child_unmounted`].
    pub(super) fn file_unmounted(&self, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(self.open_beneath(name, READ, Mode::empty(), ResolveFlags::NO_XDEV)?)
    }

    /// The same directory, to be read from its beginning whoever read it before.
    pub(super) fn duplicate_for_listing(&self) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?.into())
    }

    /// The same directory again.
    pub(super) fn duplicate(&self) -> io::Result<Directory> {
        Ok(self.fd.try_clone()?.into())
    }

    /// The directory that this one lies in; the same one again at the root.
    pub(super) fn above(&self) -> rustix::io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, "..", flags, Mode::empty())?.into())
    }

    /// The directory that `path`, names between slashes, leads to from here, over no link.
    pub(super) fn below(&self, path: &[u8]) -> io::Result<Directory> {
        let mut directory = self.duplicate()?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            directory = directory.child(name)?;
        }
        Ok(directory)
    }

    /// Opens the file `name` to be read, likewise.
    pub(super) fn open_to_read(&self, name: &[u8]) -> io::Result<OwnedFd> {
        self.open_at(name, READ, Mode::empty())
    }

    /// Opens `name`, one component, below this directory and never through a link.
    pub(super) fn open_at(&self, name: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        match self.open_beneath(name, flags, mode, ResolveFlags::empty()) {
            // Kernels before 5.6, and sandboxes that do not know the call: one component cannot lead elsewhere.
            Err(Errno::NOSYS | Errno::PERM) => {
                let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                Ok(rustix::fs::openat(&self.fd, name, flags, mode)?)
            }
            result => Ok(result?),
        }
    }

    /// The same with `openat2` or not at all, and with what else it is not to resolve.
    fn open_beneath(
        &self,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
        never: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | never;
        loop {
            match rustix::fs::openat2(&self.fd, name, flags, mode, resolve) {
                // A rename somewhere made the kernel unsure; it says to try again.
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// A file in this directory that has no name yet, for this user alone. `EOPNOTSUPP` and the like where there is no such thing.
    pub(super) fn unnamed(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, ".", flags, Mode::RUSR | Mode::WUSR)?)
    }

    /// Facts about `name`, not through a link.
    pub(super) fn stat(&self, name: &[u8]) -> io::Result<Statx> {
        self.stat_for(name, STAT)
    }

    /// These facts about `name`, not through a link.
    pub(super) fn stat_for(&self, name: &[u8], facts: StatxFlags) -> io::Result<Statx> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        Ok(rustix::fs::statx(&self.fd, name, flags, facts)?)
    }

    /// Facts about the directory itself.
    pub(super) fn stat_self(&self) -> io::Result<Statx> {
        stat_fd(self.fd.as_fd())
    }

    /// These facts about the directory itself.
    pub(super) fn stat_self_for(&self, facts: StatxFlags) -> io::Result<Statx> {
        stat_fd_for(self.fd.as_fd(), facts)
    }

    /// Every name in it.
    pub(super) fn names(&self) -> io::Result<HashSet<Box<[u8]>>> {
        let mut names = HashSet::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            names.insert(entry?.file_name().to_bytes().into());
        }
        Ok(names)
    }

    /// Whether there is any name in it; `false` if it cannot be read.
    pub(super) fn has_names(&self) -> bool {
        let mut entries = rustix::fs::Dir::read_from(&self.fd).into_iter().flatten().flatten();
        entries.any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
    }

    /// Whether an entry of exactly this name is there, whatever the file system takes for the same.
    pub(super) fn lists(&self, name: &[u8]) -> bool {
        let mut entries = rustix::fs::Dir::read_from(&self.fd).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_bytes() == name)
    }

    /// See the field.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Calls `with` with a path that the kernel resolves to `name` in this very directory, for calls that take no descriptor. `with`
    /// opens no directories.
    pub(super) fn reach<T>(&self, name: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
        if own::enter(self) { with(name) } else { with(&self.proc_path(name)) }
    }

    fn proc_path(&self, name: &[u8]) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into_bytes();
        path.push(b'/');
        path.extend_from_slice(name);
        path
    }
}

impl Directory {
    /// A path that the kernel resolves to the very thing that `fd` has open.
    pub(super) fn path_of(fd: BorrowedFd<'_>) -> Vec<u8> {
        format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Facts about an open file.
pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<Statx> {
    stat_fd_for(fd, STAT)
}

/// The same with these facts.
pub(super) fn stat_fd_for(fd: BorrowedFd<'_>, facts: StatxFlags) -> io::Result<Statx> {
    Ok(rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, facts)?)
}

/// Raises the number of files this process may have open as far as it may, to 65,536 at most; how many that are.
pub fn raise_open_files() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 65_536;
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        // Without it there are fewer; the caller goes by what is.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH);
    usize::try_from(now.min(ENOUGH)).unwrap_or(1024)
}
