//! A directory that is shared as it is, by its path: what stands there later is the same directory, or is not given to anybody.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::super::within::Within;
use super::guard::{DirectoryKey, key};

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): the number of a mount that no other one gets, before or after.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Times an opening is tried again where somebody renames directories meanwhile.
const TRIES_MAX: usize = 100;

/// A directory, its path without links, and what tells it from all others that may stand there as long as this process lives.
#[derive(Debug)]
pub struct SharedDirectory {
    path: PathBuf,
    identity: Identity,
    /// Where the numbers of mounts are given out again: as long as this is open its own is not, nor is the number of its disk.
    _pin: Option<OwnedFd>,
}

/// Another disk at the same place has another mount; another directory on the same one has another inode, or was born later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    mount: u64,
    is_mount_unique: bool,
    key: DirectoryKey,
    born: Option<(i64, u32)>,
}

impl Identity {
    fn of(opened: &OwnedFd) -> rustix::io::Result<Identity> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let look = |facts| {
            rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, wanted | facts)
        };
        let has = |found: &Statx, fact: StatxFlags| found.stx_mask & fact.bits() != 0;
        let mut found = look(MOUNT_ID_UNIQUE)?;
        let is_mount_unique = has(&found, MOUNT_ID_UNIQUE);
        if !is_mount_unique {
            found = look(StatxFlags::MNT_ID)?;
            if !has(&found, StatxFlags::MNT_ID) {
                return Err(Errno::NOSYS);
            }
        }
        let born =
            has(&found, StatxFlags::BTIME).then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        Ok(Identity { mount: found.stx_mnt_id, is_mount_unique, key: key(&found), born })
    }
}

impl SharedDirectory {
    /// The directory at `path`, to which links may lead, this once.
    pub fn of(path: &Path) -> Result<SharedDirectory> {
        let failed = |error| Error::file(format!("open directory {path:?}"), error);
        let whole = std::fs::canonicalize(path).map_err(failed)?;
        let opened = place(&whole).map_err(|error| failed(error.into()))?;
        let identity = Identity::of(&opened).map_err(|error| match error {
            Errno::NOSYS => Error::new(
                ErrorKind::Unsupported,
                "this kernel does not tell one mount from another, so that another disk might be shared at the same place",
            )
            .advise("statx tells of mounts since Linux 5.8"),
            error => failed(error.into()),
        })?;
        let pin = (!identity.is_mount_unique).then_some(opened);
        Ok(SharedDirectory { path: whole, identity, _pin: pin })
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
        if Identity::of(&opened).map_err(failed)? != self.identity {
            return Err(self.changed());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Within::new(rustix::fs::openat(&opened, ".", flags, Mode::empty()).map_err(failed)?)
    }

    fn changed(&self) -> Error {
        let path = &self.path;
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
    Some(key(&found))
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
