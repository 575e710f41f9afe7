//! The two files of a delivery beside its destination: opened so that nothing planted under their names is followed
//! or believed, and always by the descriptor of the directory, never by a path again.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dray_core::limits::NAME_BYTES_MAX;
use dray_core::message::ObjectName;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::local::extents::io_at;

/// Hex digits of the object's hash in a temporary name.
const ID_DIGITS: usize = 16;

/// Mode of a temporary file.
pub(super) const OWN_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A destination: a name in a directory that was opened once.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
    /// As the caller gave it, for messages.
    pub(super) path: PathBuf,
}

/// What there is under a name.
pub(super) struct Entry {
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) dev: u64,
    pub(super) ino: u64,
    names: u64,
    uid: u32,
}

impl Entry {
    #[allow(clippy::useless_conversion, reason = "the widths differ between systems")]
    fn from_stat(stat: &Stat) -> Entry {
        Entry {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o777,
            dev: stat.st_dev,
            ino: stat.st_ino,
            names: stat.st_nlink.into(),
            uid: stat.st_uid,
        }
    }

    /// Whether it is a regular file of the effective user with one name.
    pub(super) fn is_plainly_own(&self) -> bool {
        self.kind == FileType::RegularFile
            && self.names == 1
            && self.uid == rustix::process::geteuid().as_raw()
    }
}

impl Destination {
    pub(super) fn open(path: &Path) -> Result<Destination> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(|error| {
            io_at("open directory", parent, error)
                .or_advise("make it first, or choose a directory that you may enter")
        })?;
        Destination::within(directory, path)
    }

    /// The last component of `path` in `directory`, which is open already.
    pub(super) fn within(directory: OwnedFd, path: &Path) -> Result<Destination> {
        let Some(name) = path.file_name() else {
            return Err(Error::new(ErrorKind::Usage, format!("{path:?} does not name a file"))
                .advise("name the file to write, not only its directory"));
        };
        let destination = Destination { directory, name: name.to_owned(), path: path.to_owned() };
        destination.existing_mode(&destination.name)?;
        Ok(destination)
    }

    /// Permission bits of the file that is to be replaced, if there is one. `Refused` if it is no file: a symbolic
    /// link is replaced itself, not what it points to.
    pub(super) fn existing_mode(&self, name: &OsStr) -> Result<Option<u32>> {
        let Some(entry) = self.look(name)? else { return Ok(None) };
        match entry.kind {
            FileType::RegularFile => Ok(Some(entry.mode)),
            FileType::Symlink => Ok(None),
            FileType::Directory => Err(self.refused("is a directory", "name a file in it")),
            _ => {
                Err(self.refused("is not a regular file", "write to `-` and redirect standard output to it"))
            }
        }
    }

    pub(super) fn look(&self, name: &OsStr) -> Result<Option<Entry>> {
        match rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Entry::from_stat(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("look at", error)),
        }
    }

    /// Whether `name` is still the file that is open as `file`.
    pub(super) fn is_still(&self, name: &OsStr, file: &File) -> Result<bool> {
        let open = file.metadata().map_err(|error| self.failed("look at", error))?;
        let named = self.look(name)?;
        Ok(named.is_some_and(|entry| (entry.dev, entry.ino) == (open.dev(), open.ino())))
    }

    /// Opens or makes the file `name`, for us alone. `None` if it was unlinked meanwhile. `Refused` if it is not
    /// plainly a file of ours: somebody may have planted it.
    pub(super) fn open_own(&self, name: &OsStr) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = match self.open_unfollowed(name, flags) {
            // A finish that was killed just before the rename may have left it without our right to write.
            Err(Errno::ACCESS) => {
                if let Ok(file) = self.open_unfollowed(name, OFlags::RDONLY)
                    && !self.take_back(name, &file)?
                {
                    return Ok(None);
                }
                self.open_unfollowed(name, flags)
            }
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            Err(Errno::LOOP) => return Err(self.planted(name, "is a symbolic link")),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(self.planted(name, "is not a regular file")),
            Err(error) => return Err(self.failed("make a temporary file beside", error)),
        };
        Ok(self.take_back(name, &file)?.then_some(file))
    }

    /// Opens the file `name` if it is plainly ours, and changes nothing about it.
    pub(super) fn open_if_own(&self, name: &OsStr) -> Option<File> {
        let file = self.open_unfollowed(name, OFlags::RDWR).ok()?;
        let entry = Entry::from_stat(&rustix::fs::fstat(&file).ok()?);
        entry.is_plainly_own().then_some(file)
    }

    fn open_unfollowed(&self, name: &OsStr, flags: OFlags) -> rustix::io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.directory, name, flags, OWN_MODE).map(File::from)
    }

    /// Makes sure that `file`, open by `name`, is plainly ours, and that we alone may read and write it. False if it
    /// was unlinked meanwhile.
    fn take_back(&self, name: &OsStr, file: &File) -> Result<bool> {
        let found = file.metadata().map_err(|error| self.failed("look at", error))?;
        if !found.is_file() {
            return Err(self.planted(name, "is not a regular file"));
        }
        if found.nlink() > 1 {
            return Err(self.planted(name, "has another name"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.planted(name, "belongs to somebody else"));
        }
        if found.nlink() == 0 {
            return Ok(false);
        }
        if Mode::from_raw_mode(found.mode() & 0o7777) != OWN_MODE {
            rustix::fs::fchmod(file, OWN_MODE)
                .map_err(|error| self.failed("make a temporary file beside", error))?;
        }
        Ok(true)
    }

    fn planted(&self, name: &OsStr, how: &str) -> Error {
        Error::new(ErrorKind::Refused, format!("temporary file {name:?} beside {:?} {how}", self.path))
            .advise("remove it if nobody needs it, or choose another destination")
    }

    pub(super) fn unlink(&self, name: &OsStr) -> Result<()> {
        match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed("remove a temporary file beside", error)),
        }
    }

    /// An I/O error while doing `what` to the destination.
    pub(super) fn failed(&self, what: &str, error: impl Into<io::Error>) -> Error {
        let error = io_at(what, &self.path, error);
        match error.kind() {
            ErrorKind::NoSpace => error.advise("free some space and run the same command again: it goes on with what came so far, if there is any, which is kept beside it under a hidden name"),
            ErrorKind::Refused => error.advise("choose a directory that you may write"),
            ErrorKind::NotFound => error.advise("no file can be made in that directory: choose another"),
            _ => error,
        }
    }

    fn refused(&self, how: &str, advice: &str) -> Error {
        Error::new(ErrorKind::Refused, format!("destination {:?} {how}", self.path)).advise(advice)
    }
}

/// Names of the data and the state file of `object` beside the file `name`.
pub(super) fn temporary_names(name: &OsStr, object: &ObjectName) -> (OsString, OsString) {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&object.to_encoded());
    let kept = kept_part(name.as_bytes());
    if kept.len() < name.len() {
        // Two long names may share their beginning; what is cut off must still tell them apart.
        hasher.update(name.as_bytes());
    }
    let id = &hasher.finalize().to_hex()[..ID_DIGITS];
    let data = [b".", kept, b".dray-", id.as_bytes()].concat();
    let state = [&data, &b".state"[..]].concat();
    (OsString::from_vec(data), OsString::from_vec(state))
}

/// Whether `entry` looks like a state file for the file `name`, of whatever object: `.NAME.dray-<16 hex digits>.state`,
/// where a long name is cut. Long names that begin alike look alike; only the object tells them apart.
pub(super) fn is_temporary_of(name: &OsStr, entry: &OsStr) -> bool {
    let id = entry
        .as_bytes()
        .strip_prefix(b".")
        .and_then(|rest| rest.strip_prefix(kept_part(name.as_bytes())))
        .and_then(|rest| rest.strip_prefix(b".dray-"))
        .and_then(|rest| rest.strip_suffix(b".state"));
    id.is_some_and(|id| {
        id.len() == ID_DIGITS && id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// What of a destination's name is in its temporary names.
fn kept_part(name: &[u8]) -> &[u8] {
    // ".", ".dray-", the id and ".state" must fit beside the name.
    let room = NAME_BYTES_MAX - 1 - 6 - ID_DIGITS - 6;
    if name.len() > room { shortened(name, room) } else { name }
}

/// The first `room` bytes at most, not cut inside a UTF-8 character: some file systems take only valid names.
fn shortened(name: &[u8], room: usize) -> &[u8] {
    let is_text = std::str::from_utf8(name).is_ok();
    let end = (0..=room).rev().find(|end| !is_text || name.get(*end).is_none_or(|byte| byte & 0xc0 != 0x80));
    &name[..end.unwrap_or(0)]
}

/// Mode of a new file under this process's umask.
pub fn new_file_mode() -> u32 {
    0o666 & !umask()
}

/// This process's umask, which is read once, without setting it: setting it, even for a moment, would change files that
/// other threads make.
pub(in crate::local) fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        umask.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o077)
    })
}

#[cfg(test)]
mod tests {
    use dray_core::Oid;

    use super::*;

    /// Issue: names with spaces, newlines, non-UTF-8 bytes, and as long as the file system allows.
    #[test]
    fn temporary_names_fit_and_differ() {
        let object = ObjectName::Oid(Oid::of(b"x"));
        let (data, state) = temporary_names(OsStr::from_bytes(b"a b\n\xff"), &object);
        assert_eq!(data.as_bytes()[..12], *b".a b\n\xff.dray-");
        assert_eq!(state.as_bytes(), [data.as_bytes(), b".state"].concat());
        let long = |last: char| OsString::from(format!("{}{last}", "ä".repeat(127)));
        let (one, other) = (temporary_names(&long('1'), &object), temporary_names(&long('2'), &object));
        assert_ne!(one, other);
        for name in [one.0, one.1, other.0, other.1] {
            assert!(name.len() <= NAME_BYTES_MAX && name.to_str().is_some(), "{name:?}");
        }
        let raw = OsString::from_vec(vec![0xbf; 255]);
        assert_eq!(temporary_names(&raw, &object).1.len(), NAME_BYTES_MAX);
        for name in [long('1'), raw, OsString::from("a"), OsString::from(".dray-")] {
            assert!(is_temporary_of(&name, &temporary_names(&name, &object).1));
        }
        for not in [
            ".a.dray-0123456789abcde.state",
            ".a.dray-0123456789abcdeF.state",
            ".a.dray-0123456789abcdef",
            "a.dray-0123456789abcdef.state",
            ".ab.dray-0123456789abcdef.state",
            ".a.dray-0123456789abcdef.state~",
        ] {
            assert!(!is_temporary_of(OsStr::new("a"), OsStr::new(not)), "{not}");
        }
        assert_ne!(
            temporary_names(OsStr::new("a"), &object),
            temporary_names(OsStr::new("a"), &ObjectName::Oid(Oid::of(b"y")))
        );
    }
}
