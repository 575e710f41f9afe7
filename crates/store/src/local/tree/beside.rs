//! Directories that the user names besides the destination: where what is replaced is kept, and where files may lie that need not come. A relative path
//! begins in the destination, as with rsync.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::Mode;

use super::directory::Directory;
use super::origin::Origin;
use super::place::times_of;
use super::settings::mtime_of;

/// Such a directory, which need not be there.
#[derive(Clone, Debug)]
pub struct Beside {
    origin: Origin,
    path: PathBuf,
    /// The path begins in the destination.
    is_relative: bool,
}

impl Beside {
    /// The one at `path`, as the user wrote it.
    pub fn anywhere(path: PathBuf) -> Beside {
        Beside { is_relative: path.is_relative(), origin: Origin::Anywhere, path }
    }

    /// One in the destination of a copy that is confined to `origin`: no `..` leads out.
    pub fn in_destination(origin: Origin, path: PathBuf) -> Beside {
        Beside { is_relative: true, origin, path }
    }

    /// The one at `path`, which begins at `origin`.
    pub fn at(origin: Origin, path: PathBuf) -> Beside {
        Beside { is_relative: false, origin, path }
    }

    /// Its path as it was named.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it; links are followed, this once, unless the copy is confined. `NotFound` if it is not there.
    pub(super) fn open(&self, base: &Directory) -> Result<Directory> {
        self.open_at(base, &self.path)
    }

    /// The same for a copy that would make its destination in `above`.
    pub(super) fn open_from_above(&self, above: &Directory) -> Result<Directory> {
        if !self.is_relative {
            return self.open(above);
        }
        match self.path.strip_prefix("..") {
            Ok(rest) => self.open_at(above, rest),
            // What would be in a directory that is not there.
            Err(_) => {
                Err(Error::file(format!("open directory {:?}", self.path), io::ErrorKind::NotFound.into()))
            }
        }
    }

    fn open_at(&self, base: &Directory, path: &Path) -> Result<Directory> {
        let failed = |error: io::Error| Error::file(format!("open directory {path:?}"), error);
        match (&self.origin, self.is_relative) {
            (origin, false) => origin.directory(path),
            // What lies in the destination the other end may have made: no link is followed there, nor on the way from it.
            (origin, true) => {
                let mut directory = base.duplicate().map_err(failed)?;
                for component in path.components() {
                    match component {
                        Component::ParentDir if matches!(origin, Origin::Anywhere) => {
                            directory = directory.above().map_err(|error| failed(error.into()))?;
                        }
                        Component::Normal(name) => {
                            directory = directory.child(name.as_bytes()).map_err(failed)?
                        }
                        Component::CurDir => {}
                        _ => return Err(leads_out(path)),
                    }
                }
                Ok(directory)
            }
        }
    }

    /// The same, made with those above it where they are not there, and whether it was: then nobody but its owner may enter it yet. A directory on the way from the destination keeps its time if it
    /// `keeps_times`: it may have got that of its source already.
    pub(super) fn make(&self, base: &Directory, keeps_times: bool) -> Result<(Directory, bool)> {
        let is_inside = self.is_relative && !self.path.components().any(|part| part == Component::ParentDir);
        self.make_at(base, &self.path, Mode::RWXU, keeps_times && is_inside)
    }

    fn make_at(
        &self,
        base: &Directory,
        path: &Path,
        mode: Mode,
        keeps_times: bool,
    ) -> Result<(Directory, bool)> {
        match self.open_at(base, path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return Ok((opened?, false)),
        }
        let failed = |error: io::Error| Error::file(format!("make the directory {path:?}"), error);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(leads_out(path));
        };
        let (above, _) = self.make_at(base, above, Mode::from_raw_mode(0o777), keeps_times)?;
        let before = above.stat_self().ok().filter(|_| keeps_times);
        let is_new = match rustix::fs::mkdirat(&above, name, mode) {
            Ok(()) => {
                if let Some(before) = before {
                    let _ = rustix::fs::futimens(&above, &times_of(mtime_of(&before)));
                }
                true
            }
            Err(rustix::io::Errno::EXIST) => false,
            Err(error) => return Err(failed(error.into())),
        };
        Ok((above.child(name.as_bytes()).map_err(failed)?, is_new))
    }
}

fn leads_out(path: &Path) -> Error {
    Error::new(ErrorKind::Refused, format!("{path:?} is no path from the destination on"))
        .advise("name a directory in the destination, without ..")
}
