//! One directory that paths do not lead out of, whoever they come from.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::tree::{Identity, identity_of};

/// Times an opening is tried again where somebody renames directories meanwhile.
const TRIES_MAX: usize = 100;

/// A directory below which everything is opened, with `RESOLVE_BENEATH`: the kernel refuses a path that leads out at any moment of
/// its resolution, be it by `..`, by an absolute path or by a symbolic link that somebody swaps in meanwhile. Clones are the same directory.
#[derive(Clone, Debug)]
pub struct Within {
    directory: Arc<OwnedFd>,
    identity: Identity,
}

impl Within {
    /// True for the error of a path that may not be used, whatever stands there. A file in the place of a directory is what stands there.
    pub fn forbids(error: &Error) -> bool {
        error.kind() == ErrorKind::Refused && error.io_kind() != Some(io::ErrorKind::NotADirectory)
    }

    /// Takes the open directory. `Unsupported` where the kernel cannot keep paths in it (before Linux 5.6).
    pub fn new(directory: OwnedFd) -> Result<Within> {
        let found = rustix::fs::statx(&directory, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)
            .map_err(|error| Error::io("cannot look at a directory", error.into()))?;
        let within = Within { directory: Arc::new(directory), identity: identity_of(&found) };
        // Said at once rather than at the first path.
        within.open(Path::new("."), OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(within)
    }

    /// The device (major and minor number) and inode of the directory.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Opens `path`, relative to the directory. `Refused` if it leads out.
    pub fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.open_with(path, flags, ResolveFlags::NO_MAGICLINKS)
    }

    /// The same, by no symbolic link, and over no mount, which may be a network's and hang. `Refused` where there is one.
    pub fn open_straight(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.open_with(path, flags, ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV)
    }

    fn open_with(&self, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | resolve;
        for _ in 0..TRIES_MAX {
            match rustix::fs::openat2(&*self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
            {
                Ok(opened) => return Ok(opened),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::XDEV) => {
                    return Err(Error::new(
                        ErrorKind::Refused,
                        format!("{path:?} leads out of the directory that may be read or written"),
                    ));
                }
                Err(Errno::NOSYS) => {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        "this kernel cannot confine anybody to a directory",
                    )
                    .advise("openat2 came with Linux 5.6"));
                }
                Err(error) => return Err(Error::io(format!("cannot open {path:?}"), error.into())),
            }
        }
        Err(Error::new(ErrorKind::Refused, format!("{path:?} is being renamed all the time")))
    }
}
