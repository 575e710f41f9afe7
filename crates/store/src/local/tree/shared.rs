//! A directory that is shared as it is, by its path: what stands there later is the same directory, or is not given to anybody.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dray_core::limits::PATH_BYTES_MAX;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::super::within::Within;
use super::guard::DirectoryKey;
use super::lasting::LastingIdentity;
use super::mounts::MountNumber;
use super::place::identity_of;

/// Times an opening is tried again where somebody renames directories meanwhile.
const TRIES_MAX: usize = 100;

/// A directory, its path without links, and what tells it from all others that may stand there.
#[derive(Debug)]
pub struct SharedDirectory {
    path: PathBuf,
    known: Known,
    /// Where the numbers of mounts are given out again: as long as this is open its own is not, nor is the number of its disk.
    _pin: Option<OwnedFd>,
}

/// By what it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// As long as this process lives.
    Here(Identity),
    /// Wherever and whenever its file system is mounted.
    Always(LastingIdentity),
    /// It was, by a process that is gone, and is not any more.
    Nowhere,
}

/// Another disk at the same place has another mount; another directory on the same one has another inode, or was born later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    mount: MountNumber,
    key: DirectoryKey,
    born: Option<(i64, u32)>,
}

impl Identity {
    fn of(opened: &OwnedFd) -> rustix::io::Result<Identity> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | MountNumber::fact();
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        let found = rustix::fs::statx(opened, c"", flags, wanted)?;
        let mount = MountNumber::of(&found).ok_or(Errno::NOSYS)?;
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = has_birth.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        Ok(Identity { mount, key: identity_of(&found), born })
    }
}

impl SharedDirectory {
    /// The directory at `path`, to which links may lead, this once.
    pub fn of(path: &Path) -> Result<SharedDirectory> {
        let failed = |error| Error::file(format!("open directory {path:?}"), error);
        let whole = std::fs::canonicalize(path).map_err(failed)?;
        let opened = place(&whole).map_err(|error| failed(error.into()))?;
        SharedDirectory::known_here(whole, opened)
    }

    /// The directory that somebody else has opened for reading and handed over, at the path that the kernel has for it. Where its file system
    /// tells, it is known again by later processes ([`SharedDirectory::lasting`]). `Usage` if it is no directory, is not open for
    /// reading, or cannot be found by that path.
    pub fn of_opened(handed: &OwnedFd) -> Result<SharedDirectory> {
        let bad = |what: &str, advice: &str| {
            Error::new(ErrorKind::Usage, format!("what was handed over {what}")).advise(advice.to_owned())
        };
        let failed = |error: std::io::Error| Error::file("look at the directory that was handed over", error);
        let found = rustix::fs::fstat(handed).map_err(|error| failed(error.into()))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Err(bad("is no directory", "a file is put with POST /v1/shares"));
        }
        let flags = rustix::fs::fcntl_getfl(handed).map_err(|error| failed(error.into()))?;
        if flags.contains(OFlags::PATH) {
            return Err(bad("is not open for reading", "open the directory with O_RDONLY"));
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{}", handed.as_raw_fd())).map_err(failed)?;
        let same = |opened: &OwnedFd| {
            rustix::fs::fstat(opened)
                .is_ok_and(|other| (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino))
        };
        let opened = place(&path).ok().filter(|opened| path.is_absolute() && same(opened));
        let opened = opened.ok_or_else(|| {
            bad(
                "has no path by which it is found again",
                "it was removed, something is mounted over it, or it lies where only some programs see it: `dray put --foreground` shares it",
            )
        })?;
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(bad("has a path that is too long", "share one further up"));
        }
        match LastingIdentity::of(&opened).map_err(|error| failed(error.into()))? {
            Some(lasting) => Ok(SharedDirectory { path, known: Known::Always(lasting), _pin: None }),
            None => SharedDirectory::known_here(path, opened),
        }
    }

    /// The one that an earlier process shared. Nothing is looked at so far. One of which it did not know what it is known by is `Changed`.
    pub fn again(path: PathBuf, lasting: Option<LastingIdentity>) -> SharedDirectory {
        SharedDirectory { path, known: lasting.map_or(Known::Nowhere, Known::Always), _pin: None }
    }

    /// By what later processes know it again, if they can.
    pub fn lasting(&self) -> Option<LastingIdentity> {
        match self.known {
            Known::Always(lasting) => Some(lasting),
            Known::Here(_) | Known::Nowhere => None,
        }
    }

    /// True if `other` is the same directory at the same path, known by the same.
    pub fn is_same(&self, other: &SharedDirectory) -> bool {
        self.path == other.path && self.known == other.known && self.known != Known::Nowhere
    }

    fn known_here(path: PathBuf, opened: OwnedFd) -> Result<SharedDirectory> {
        let identity = Identity::of(&opened).map_err(|error| match error {
            Errno::NOSYS => Error::new(
                ErrorKind::Unsupported,
                "this kernel does not tell one mount from another, so that another disk might be shared at the same place",
            )
            .advise("statx tells of mounts since Linux 5.8"),
            error => Error::file(format!("open directory {path:?}"), error.into()),
        })?;
        let pin = matches!(identity.mount, MountNumber::Reused(_)).then_some(opened);
        Ok(SharedDirectory { path, known: Known::Here(identity), _pin: pin })
    }

    /// Its path, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it. `Changed` if something else stands there by now, `NotFound` if nothing does.
    pub fn open(&self) -> Result<Within> {
        let path = &self.path;
        let failed = |error: Errno| Error::file(format!("open the shared directory {path:?}"), error.into());
        let opened = match place(path) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.changed()),
            opened => opened.map_err(failed)?,
        };
        let is_it = match self.known {
            Known::Here(identity) => Identity::of(&opened).map_err(failed)? == identity,
            Known::Always(lasting) => LastingIdentity::of(&opened).map_err(failed)? == Some(lasting),
            Known::Nowhere => false,
        };
        if !is_it {
            return Err(self.changed());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Within::new(rustix::fs::openat(&opened, ".", flags, Mode::empty()).map_err(failed)?)
    }

    fn changed(&self) -> Error {
        let path = &self.path;
        if self.known == Known::Nowhere {
            let what = format!("whether {path:?} is the directory that was shared cannot be known any more");
            return Error::new(ErrorKind::Changed, what)
                .advise("its file system does not tell it from others after a restart: share it again");
        }
        Error::new(ErrorKind::Changed, format!("{path:?} is not the directory that was shared"))
            .advise("something else is there, or is mounted there, by now: share that, if it is meant")
    }
}

/// The directory at a path without links, as a place alone: nothing is asked of its disk.
fn place(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES_MAX {
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// What tells the directory at `path` from others, if there is one.
pub fn directory_key(path: &Path) -> Option<DirectoryKey> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let found = rustix::fs::statx(opened.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
    Some(identity_of(&found))
}

/// True if `path`, without links, is, holds or lies in the directory at `other`, by whatever names: what is mounted twice is the same.
pub fn touches(path: &Path, other: &Path) -> bool {
    let Ok(other) = std::fs::canonicalize(other) else { return false };
    if path.starts_with(&other) || other.starts_with(path) {
        return true;
    }
    let keys = |path: &Path| -> Vec<_> {
        let key = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        path.ancestors().filter_map(key).collect()
    };
    let (ours, theirs) = (keys(path), keys(&other));
    // The first is the directory itself.
    let is_in =
        |inner: &[(u64, u64)], outer: &[(u64, u64)]| outer.first().is_some_and(|outer| inner.contains(outer));
    is_in(&ours, &theirs) || is_in(&theirs, &ours)
}
