//! An object at rest in the data directory, open for reading.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore};
use dray_core::store::{Extent, FileIdentity, Standing, StoredObject};
use dray_core::{Error, ErrorKind, Oid, Result};

use super::extents::{ExtentCache, identity, io_at, read_full_at};

/// An open object. Everything goes through the descriptors it was opened with, so renaming or unlinking its files
/// meanwhile changes nothing.
#[derive(Debug)]
pub(super) struct LocalObject {
    pub(super) oid: Oid,
    pub(super) geometry: Geometry,
    pub(super) data: File,
    /// For messages.
    pub(super) path: PathBuf,
    pub(super) pairs: FilePairs,
    /// State of `data` in which it is known to be the object; `None` if there is no such state.
    pub(super) trusted: Option<FileIdentity>,
    pub(super) is_borrowed: bool,
    pub(super) extents: ExtentCache,
}

impl LocalObject {
    fn now(&self) -> Result<FileIdentity> {
        self.data.metadata().map(|now| identity(&now)).map_err(|error| io_at("read", &self.path, error))
    }

    fn ends_early(&self) -> Error {
        backing_differs(&self.path, self.is_borrowed, "is shorter than the object")
    }
}

/// The error of a backing file that cannot be the object.
pub(super) fn backing_differs(path: &Path, is_borrowed: bool, how: &str) -> Error {
    if is_borrowed {
        Error::new(ErrorKind::Changed, format!("{path:?} {how}: it changed after it was put"))
            .advise("put the file again to share what it is now")
    } else {
        Error::new(ErrorKind::Damaged, format!("stored data {path:?} {how}"))
            .advise("put the object again; that replaces the damaged copy")
    }
}

impl StoredObject for LocalObject {
    fn oid(&self) -> Oid {
        self.oid
    }

    fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes()) {
            let what = format!("read of {}+{offset} is outside the object", out.len());
            return Err(Error::new(ErrorKind::Internal, what));
        }
        match read_full_at(&self.data, offset, out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.ends_early()),
            Err(error) => Err(io_at("read", &self.path, error)),
        }
    }

    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        if offset >= end || end > self.size_bytes() {
            let what = format!("extent {offset}..{end} is outside the object");
            return Err(Error::new(ErrorKind::Internal, what));
        }
        let now = self.now()?;
        if now.size_bytes < self.size_bytes() {
            // Beyond the end of a file everything would look like a hole.
            return Err(self.ends_early());
        }
        let found = self.extents.extent_at(&self.data, now, offset);
        let mut extent = found.map_err(|error| io_at("read", &self.path, error))?;
        extent.range.end = extent.range.end.min(end);
        Ok(extent)
    }

    fn pairs(&self) -> &dyn PairStore {
        &self.pairs
    }

    fn standing(&self) -> Standing {
        match self.now() {
            Ok(now) if now.size_bytes != self.size_bytes() => Standing::Changed,
            Ok(now) if self.trusted == Some(now) => Standing::Trusted,
            _ => Standing::Doubtful,
        }
    }

    fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.data.as_fd())
    }
}

/// An outboard in a file, from byte 0.
#[derive(Debug)]
pub(super) struct FilePairs {
    file: File,
    path: PathBuf,
    len_bytes: u64,
}

impl FilePairs {
    pub(super) fn new(file: File, path: &Path, geometry: Geometry) -> FilePairs {
        FilePairs { file, path: path.to_owned(), len_bytes: geometry.outboard_bytes() }
    }

    fn check(&self, offset: Option<u64>, len: usize) -> Result<u64> {
        let end = offset.and_then(|offset| offset.checked_add(len as u64));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= self.len_bytes => Ok(offset),
            _ => Err(Error::new(
                ErrorKind::Internal,
                format!("outboard of {} bytes has no byte {offset:?}+{len}", self.len_bytes),
            )),
        }
    }
}

impl PairStore for FilePairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let offset = self.check(first_index.checked_mul(PAIR_BYTES as u64), out.len())?;
        match read_full_at(&self.file, offset, out) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::new(ErrorKind::Damaged, format!("outboard {:?} is cut short", self.path))
                    .advise("open the object again; that rebuilds it"))
            }
            Err(error) => Err(io_at("read", &self.path, error)),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.check(Some(offset), bytes.len())?;
        self.file.write_all_at(bytes, offset).map_err(|error| io_at("write", &self.path, error))
    }
}
