//! One file of a tree on its way to its place: written under a temporary name, renamed when it is whole.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::rc::Rc;

use dray_core::tree::{Entry, Finished, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::directory::stat_fd;
use super::write::{OpenDirectory, Settings};

/// Where a file goes, and what it is to be; its content is to come.
#[derive(Debug)]
pub struct FileTarget {
    pub(super) directory: Rc<OpenDirectory>,
    pub(super) name: Name,
    pub(super) metadata: Metadata,
    /// Permission bits of the file that it replaces.
    pub(super) replaced_mode: Option<u32>,
    /// Path below the destination, for messages.
    pub(super) path: Vec<u8>,
}

/// A file being written. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    temporary: [u8; TEMPORARY_BYTES],
    directory: Rc<OpenDirectory>,
    mode_now: u32,
    /// Where the next byte goes.
    position: u64,
    is_sparse: bool,
    is_placed: bool,
}

const TEMPORARY_BYTES: usize = 22;

/// The name of the file `name` until it is whole: the same on each run, so that a killed one leaves nothing behind for good.
fn temporary(name: &Name) -> [u8; TEMPORARY_BYTES] {
    let mut out = *b".dray-0000000000000000";
    let hash = blake3::hash(name.as_bytes()).to_hex();
    out[6..].copy_from_slice(&hash.as_bytes()[..16]);
    out
}

/// Removes the temporary name of `name`, if it is there.
pub(super) fn clear(directory: &OpenDirectory, name: &Name) {
    let _ = rustix::fs::unlinkat(&directory.directory, &temporary(name)[..], AtFlags::empty());
}

/// Makes something under the temporary name of `name` with `make` and renames it over what is there.
pub(super) fn replace(
    directory: &OpenDirectory,
    name: &Name,
    make: &dyn Fn(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary(name);
    let made = match make(&temporary) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            clear(directory, name);
            make(&temporary)
        }
        made => made,
    };
    made?;
    rename(directory, &temporary, name).inspect_err(|_| clear(directory, name))
}

/// Gives what stands under `temporary` its name. In a directory that this copy made nothing may stand there: what does has
/// the same name in the eyes of the file system.
fn rename(directory: &OpenDirectory, temporary: &[u8], name: &Name) -> io::Result<()> {
    let fd = &directory.directory;
    if directory.is_new {
        match rustix::fs::renameat_with(fd, temporary, fd, name.as_bytes(), RenameFlags::NOREPLACE) {
            // The file system cannot: look first.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if directory.directory.stat(name.as_bytes()).is_ok() {
                    return Err(Errno::EXIST.into());
                }
            }
            result => return Ok(result?),
        }
    }
    Ok(rustix::fs::renameat(fd, temporary, fd, name.as_bytes())?)
}

/// Says what a name that is taken means.
pub(super) fn taken(directory: &OpenDirectory, error: io::Error, what: &str) -> Error {
    if error.kind() == io::ErrorKind::AlreadyExists && directory.is_new {
        return Error::new(
            ErrorKind::Refused,
            "another entry has this name here: this file system takes both for one (letter case, Unicode form), or another \
             program made it",
        );
    }
    Error::file(what.to_owned(), error)
}

impl FileTarget {
    pub(super) fn new(
        directory: Rc<OpenDirectory>,
        name: Name,
        entry: &Entry,
        replaced_mode: Option<u32>,
        path: Vec<u8>,
    ) -> FileTarget {
        directory.add_pending();
        FileTarget { directory, name, metadata: entry.metadata.clone(), replaced_mode, path }
    }

    /// Path below the destination.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The group of hard links that it is one of.
    pub fn link_group(&self) -> Option<[u8; 16]> {
        self.metadata.link_group
    }

    /// Opens its temporary file. `Refused` if another process writes it at this moment.
    pub fn create(&self) -> Result<NewFile> {
        let failed = |error| Error::file("make a file", error);
        let temporary = temporary(&self.name);
        let directory = &self.directory.directory;
        // Ours to write whatever the file's own bits say; they come at the end.
        let mode = self.metadata.mode & 0o777 | 0o600;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (fd, was_there) = match directory.open_at(
            &temporary,
            flags | OFlags::CREATE | OFlags::EXCL,
            Mode::from_raw_mode(mode),
        ) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (directory.open_at(&temporary, flags, Mode::empty()).map_err(failed)?, true)
            }
            result => (result.map_err(failed)?, false),
        };
        let busy = || {
            Error::new(ErrorKind::Refused, "another dray is receiving this file")
                .advise("wait for it or stop it")
        };
        if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(busy());
        }
        let mut mode_now = mode & !self.directory.settings().umask;
        if was_there {
            // Left by a killed run, unless its owner was faster and it has its name by now.
            let found = stat_fd(fd.as_fd()).map_err(failed)?;
            let named = directory.stat(&temporary).map_err(failed)?;
            if (found.stx_ino, found.stx_nlink) != (named.stx_ino, 1)
                || found.stx_mode & 0o170_000 != 0o100_000
            {
                return Err(busy());
            }
            rustix::fs::ftruncate(&fd, 0).map_err(|error| failed(error.into()))?;
            mode_now = u32::from(found.stx_mode) & 0o7777;
        }
        Ok(NewFile {
            file: File::from(fd),
            temporary,
            directory: self.directory.clone(),
            mode_now,
            position: 0,
            is_sparse: false,
            is_placed: false,
        })
    }

    /// Its file is whole: gives it everything the copy keeps, and its name.
    pub fn finish(&self, mut file: NewFile, finished: &Finished) -> Result<(u32, u32, u64)> {
        let settings = self.directory.settings();
        file.end(finished.size_bytes)?;
        let metadata =
            Metadata { mtime_s: finished.mtime_s, mtime_ns: finished.mtime_ns, ..self.metadata.clone() };
        let mode = match self.replaced_mode {
            Some(mode) if !settings.modes => mode,
            _ => settings.mode(self.metadata.mode),
        };
        settings.apply(file.file.as_fd(), &metadata, file.mode_now, mode)?;
        rename(&self.directory, &file.temporary, &self.name)
            .map_err(|error| taken(&self.directory, error, "give the file its name"))?;
        file.is_placed = true;
        let found = if self.metadata.link_group.is_some() {
            let found = stat_fd(file.file.as_fd()).map_err(|error| Error::file("look at the file", error))?;
            (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)
        } else {
            (0, 0, 0)
        };
        Ok(found)
    }
}

impl NewFile {
    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::file("write the file", error))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Leaves a hole of so many bytes.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        let too_large = || Error::new(ErrorKind::Protocol, "the file is larger than a file can be");
        let position = self.position.checked_add(bytes).filter(|position| *position < 1 << 62);
        self.position = position.ok_or_else(too_large)?;
        self.is_sparse = true;
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(self.position))
            .map_err(|error| Error::file("leave a hole", error.into()))?;
        Ok(())
    }

    /// Forgets everything written.
    pub fn restart(&mut self) -> Result<()> {
        let failed = |error: Errno| Error::file("write the file anew", error.into());
        rustix::fs::ftruncate(&self.file, 0).map_err(failed)?;
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(0)).map_err(failed)?;
        self.position = 0;
        Ok(())
    }

    /// The file itself, for whoever fills it in the kernel; it then calls [`NewFile::filled`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The kernel filled the first `bytes` bytes.
    pub fn filled(&mut self, bytes: u64) {
        self.position = bytes;
    }

    fn end(&mut self, size_bytes: u64) -> Result<()> {
        if self.position != size_bytes {
            let what = format!("{} bytes came of a file of {size_bytes}", self.position);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        if self.is_sparse {
            rustix::fs::ftruncate(&self.file, size_bytes)
                .map_err(|error| Error::file("end the file with a hole", error.into()))?;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // A file that this process cannot remove any more the next run finds.
            let _ = rustix::fs::unlinkat(&self.directory.directory, &self.temporary[..], AtFlags::empty());
        }
    }
}

impl Settings {
    /// Gives an open file or directory what the copy keeps; `mode` is what its bits become.
    pub(super) fn apply(
        &self,
        fd: std::os::fd::BorrowedFd<'_>,
        metadata: &Metadata,
        mode_now: u32,
        mode: u32,
    ) -> Result<()> {
        let failed = |what: &'static str| move |error: Errno| Error::file(what, error.into());
        let mut mode_now = mode_now;
        if self.owners {
            let (uid, gid) = self.owner_of(metadata.uid, metadata.gid);
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
                rustix::fs::fchown(fd, uid, gid).map_err(failed("set its owner"))?;
                // The kernel takes setuid and setgid away.
                mode_now &= 0o1777;
            }
        }
        if mode_now != mode {
            rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(failed("set its permissions"))?;
        }
        if self.xattrs {
            let failures = &mut self.failed_attributes.borrow_mut();
            super::attributes::set(fd, &metadata.xattrs, self.powers.is_root, failures);
        }
        if self.times {
            rustix::fs::futimens(fd, &times_of(metadata)).map_err(failed("set its times"))?;
        }
        Ok(())
    }
}

/// The modification time as the kernel takes it; the access time stays.
pub(super) fn times_of(metadata: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: metadata.mtime_s, tv_nsec: metadata.mtime_ns.into() },
    }
}
