//! Where the paths that name the sources and the destination of a copy begin.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use dray_core::{Error, Result};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::super::within::Within;
use super::directory::{Directory, stat_fd};
use super::own;
use super::write::file_type;

/// Symbolic links that may follow each other, as many as the kernel allows.
const LINKS_MAX: usize = 40;

/// Where paths begin, and what they may lead to.
#[derive(Clone, Debug, Default)]
pub enum Origin {
    /// The working directory, and anywhere.
    #[default]
    Anywhere,
    /// This directory, and nothing outside of it.
    Within(Within),
}

impl Origin {
    /// True for the error of a path that may not be used, whatever stands there.
    pub(super) fn forbids(&self, error: &Error) -> bool {
        matches!(self, Origin::Within(_)) && Within::forbids(error)
    }

    /// Opens the directory at `path`; links are followed, this once.
    pub fn directory(&self, path: &Path) -> Result<Directory> {
        match self {
            Origin::Anywhere => Directory::open(path),
            Origin::Within(within) => Ok(within.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?.into()),
        }
    }

    /// What sort of thing stands at `path` itself, be that a link.
    pub fn kind(&self, path: &Path) -> Result<FileType> {
        let failed = |error: io::Error| Error::file("read it", error);
        match self {
            Origin::Anywhere => {
                own::back()?;
                let found = rustix::fs::lstat(path).map_err(|error| failed(error.into()))?;
                Ok(FileType::from_raw_mode(found.st_mode))
            }
            Origin::Within(within) => {
                let opened = within.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
                Ok(file_type(&stat_fd(opened.as_fd()).map_err(failed)?))
            }
        }
    }

    /// True if something stands at `path`, or where a link there leads to, and it is no directory.
    pub(super) fn is_file(&self, path: &Path) -> bool {
        let kind = self.followed(path.to_owned()).and_then(|path| self.kind(&path));
        kind.is_ok_and(|kind| kind != FileType::Directory)
    }

    /// `path`, or where it leads to in the end if a link stands there.
    pub(super) fn followed(&self, mut path: PathBuf) -> Result<PathBuf> {
        let failed = |error: Errno| Error::file("follow the link", error.into());
        for _ in 0..LINKS_MAX {
            if self.kind(&path)? != FileType::Symlink {
                return Ok(path);
            }
            let target = match self {
                Origin::Anywhere => rustix::fs::readlink(&path, Vec::new()),
                Origin::Within(within) => {
                    let link = within.open(&path, OFlags::PATH | OFlags::NOFOLLOW)?;
                    rustix::fs::readlinkat(link, "", Vec::new())
                }
            };
            let target = match target {
                Ok(target) => std::ffi::OsString::from_vec(target.into_bytes()),
                // It was one a moment ago: look again.
                Err(Errno::INVAL) => continue,
                Err(error) => return Err(failed(error)),
            };
            // Not `Path::parent`: what stands before the last name stays as it is, `..` and all.
            let text = path.as_os_str().as_bytes();
            let end = text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            path = Path::new(std::ffi::OsStr::from_bytes(&text[..end])).join(target);
        }
        Err(failed(Errno::LOOP))
    }
}
