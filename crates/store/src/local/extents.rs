//! Reading files of data and holes by position: `pread` only, never a map, never a shared file offset.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use dray_core::limits::{GROUP_BYTES, OBJECT_BYTES_MAX};
use dray_core::store::{Extent, FileIdentity};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

/// What a hole reads as, one group of it.
pub(super) static ZEROS: [u8; GROUP_BYTES as usize] = [0; GROUP_BYTES as usize];

/// Extents a cache remembers; a dense file needs one, a few readers of a sparse one some more.
const CACHED_EXTENTS: usize = 8;

/// An I/O error with what was being done to which file.
pub(super) fn io_at(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = Error::io(format!("cannot {what} {path:?}"), error.into());
    if error.kind() == ErrorKind::NoSpace { error.advise("free some space and try again") } else { error }
}

/// The state of a file as `fstat` tells it.
pub(crate) fn identity(metadata: &Metadata) -> FileIdentity {
    let nanoseconds = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    FileIdentity {
        dev: metadata.dev(),
        ino: metadata.ino(),
        size_bytes: metadata.size(),
        mtime_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        ctime_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// Opens a regular file of the user for reading, following symbolic links as `cp` does. Anything else is `Usage`:
/// it is looked at before it is opened, because opening a device or a pipe may already do something.
pub(super) fn open_regular(path: &Path) -> Result<(File, FileIdentity)> {
    let look = fs::metadata(path).map_err(|error| unreadable("read", path, error))?;
    require_regular(&look, path)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| unreadable("open", path, error))?,
    );
    let identity = opened_regular(&file, path)?;
    Ok((file, identity))
}

/// What an open file is, if it is a regular one that can be sent. `path` is for messages.
pub(super) fn opened_regular(file: &File, path: &Path) -> Result<FileIdentity> {
    let metadata = file.metadata().map_err(|error| io_at("read", path, error))?;
    require_regular(&metadata, path)?;
    if metadata.size() > OBJECT_BYTES_MAX {
        let what = format!("{path:?} has {} bytes, more than an object can have", metadata.size());
        return Err(Error::new(ErrorKind::Usage, what));
    }
    Ok(identity(&metadata))
}

/// A file that the user named and that cannot be had.
fn unreadable(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = io_at(what, path, error);
    match error.kind() {
        ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => {
                error.advise(format!("it is a symbolic link to {target:?}, which leads to nothing"))
            }
            Err(_) => error.advise("nothing has that name: is the path right?"),
        },
        ErrorKind::Refused => {
            error.advise("it takes the right to read the file and to enter every folder above it")
        }
        _ => error,
    }
}

pub(super) fn require_regular(metadata: &Metadata, path: &Path) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let (what, advice) = if metadata.is_dir() {
        ("a directory", "name a file in it")
    } else {
        ("not a regular file", "pipe its bytes into standard input instead: `dray put -`")
    };
    Err(Error::new(ErrorKind::Usage, format!("{path:?} is {what}")).advise(advice))
}

/// `Usage` if `file`, which tells of `size` bytes, has more: the files of `/proc`, which say they have none, and one that
/// grows have no bytes that a name could stand for.
pub(super) fn require_end(file: &File, path: &Path, size: u64) -> Result<()> {
    let mut byte = [0];
    if read_full_at(file, size, &mut byte).map_err(|error| io_at("read", path, error))? {
        let what =
            format!("{path:?} has more bytes than the {size} it tells of: it grows, or is no ordinary file");
        return Err(Error::new(ErrorKind::Usage, what)
            .advise("try again when nothing writes to it, or pipe its bytes: `dray put - < FILE`"));
    }
    Ok(())
}

/// Fills `out` from `offset`; false if the file ends before that.
pub(super) fn read_full_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<bool> {
    while !out.is_empty() {
        match file.read_at(out, offset) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                offset += count as u64;
                out = &mut out[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The extent of `file` that begins at `offset < size`, cut at `size`. A file system that cannot tell holes has
/// none. The caller knows that the file is at least `size` long: past its end everything looks like a hole.
pub(super) fn extent_of(file: &File, offset: u64, size: u64) -> io::Result<Extent> {
    let data = |end: u64| Extent { range: offset..end.min(size).max(offset + 1), is_hole: false };
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok(Extent { range: offset..size, is_hole: true }),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::SPIPE) => return Ok(data(size)),
        Err(error) => return Err(error.into()),
        Ok(start) if start > offset => {
            return Ok(Extent { range: offset..start.min(size), is_hole: true });
        }
        Ok(_) => {}
    }
    match rustix::fs::seek(file, SeekFrom::Hole(offset)) {
        Ok(end) => Ok(data(end)),
        Err(_) => Ok(data(size)),
    }
}

/// Remembers a few extents of one file, for as long as the file does not change: some file systems walk every page
/// of a dense file to find its first hole.
#[derive(Debug, Default)]
pub(super) struct ExtentCache(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    stamp: Option<FileIdentity>,
    extents: Vec<Extent>,
    next: usize,
}

impl ExtentCache {
    /// As [`extent_of`], from byte `offset` to the end of the extent. `stamp` is the state of the file now.
    pub(super) fn extent_at(&self, file: &File, stamp: FileIdentity, offset: u64) -> io::Result<Extent> {
        {
            let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if cached.stamp != Some(stamp) {
                *cached = Cached { stamp: Some(stamp), ..Cached::default() };
            }
            if let Some(hit) = cached.extents.iter().find(|extent| extent.range.contains(&offset)) {
                return Ok(Extent { range: offset..hit.range.end, is_hole: hit.is_hole });
            }
        }
        let found = extent_of(file, offset, stamp.size_bytes)?;
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.stamp == Some(stamp) {
            let slot = cached.next % CACHED_EXTENTS;
            if slot < cached.extents.len() {
                cached.extents[slot] = found.clone();
            } else {
                cached.extents.push(found.clone());
            }
            cached.next = slot + 1;
        }
        Ok(found)
    }
}
