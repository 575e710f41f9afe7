//! An object at rest in the data directory, open for reading.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore, Subtree};
use dray_core::store::{Extent, FileIdentity, Standing, StoredObject};
use dray_core::{Error, ErrorKind, Oid, Result};

use super::extents::{ExtentCache, identity, io_at, read_full_at};
use super::record::Record;
use super::{LocalStore, outboard};

/// An open object. Everything goes through the descriptors it was opened with, so renaming or unlinking its files
/// meanwhile changes nothing.
#[derive(Debug)]
pub(super) struct LocalObject {
    store: LocalStore,
    /// What was known about it when it was opened.
    record: Record,
    geometry: Geometry,
    data: File,
    /// For messages.
    path: PathBuf,
    /// The outboard; another one once that was found to be damaged.
    outboard: RwLock<Arc<FilePairs>>,
    /// Held while the outboard is built again, so that several requests do it once.
    mending: Mutex<()>,
    /// State of `data` in which it is known to be the object; `None` if there is no such state.
    trusted: Option<FileIdentity>,
    /// Bytes were found that do not match although `data` is in that state.
    is_distrusted: AtomicBool,
    extents: ExtentCache,
}

impl LocalObject {
    /// The object of `record`: `data`, opened at `path`, and its outboard.
    pub(super) fn new(
        store: LocalStore,
        record: Record,
        data: File,
        path: PathBuf,
        outboard: FilePairs,
    ) -> LocalObject {
        LocalObject {
            store,
            geometry: Geometry::new(record.size_bytes),
            data,
            path,
            outboard: RwLock::new(Arc::new(outboard)),
            mending: Mutex::default(),
            trusted: record.holds_for(&record.backing).then_some(record.backing),
            is_distrusted: AtomicBool::new(false),
            extents: ExtentCache::default(),
            record,
        }
    }

    fn outboard(&self) -> Arc<FilePairs> {
        self.outboard.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Builds the outboard again from the data, unless somebody did since it was seen as `bad`. If that is not the
    /// outboard of this object either, it is the data that are wrong.
    fn mend(&self, bad: &Arc<FilePairs>) -> Result<()> {
        let _one_at_a_time = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(bad, &self.outboard()) {
            let built = self.store.rebuild_outboard(&self.record, &self.data, &self.path);
            let built = built?.ok_or_else(|| self.mismatch())?;
            *self.outboard.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(built);
        }
        Ok(())
    }

    fn now(&self) -> Result<FileIdentity> {
        self.data.metadata().map(|now| identity(&now)).map_err(|error| io_at("read", &self.path, error))
    }

    fn ends_early(&self) -> Error {
        backing_differs(&self.path, self.is_borrowed(), "is shorter than the object")
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

/// The error of a backing file that looks as it did when it was hashed and has other bytes.
pub(super) fn backing_rotted(path: &Path, is_borrowed: bool) -> Error {
    let what = format!(
        "the bytes on disk of {path:?} are no longer those that were hashed, though the file looks unchanged: the disk may be failing"
    );
    let advice = if is_borrowed {
        "restore the file and put it again; or put it as it is now, for a new ticket"
    } else {
        "put the right bytes again; that replaces the damaged copy"
    };
    Error::new(ErrorKind::Damaged, what).advise(advice)
}

impl StoredObject for LocalObject {
    fn oid(&self) -> Oid {
        self.record.oid
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
        self
    }

    fn standing(&self) -> Standing {
        match self.now() {
            Ok(now) if now.size_bytes != self.size_bytes() => Standing::Changed,
            Ok(now) if self.trusted == Some(now) && !self.is_distrusted.load(Ordering::Relaxed) => {
                Standing::Trusted
            }
            _ => Standing::Doubtful,
        }
    }

    fn is_borrowed(&self) -> bool {
        self.record.borrowed_path().is_some()
    }

    fn repeated_permille(&self) -> u16 {
        self.record.repeated_permille.unwrap_or(0).min(1000)
    }

    fn recheck(&self, groups: Subtree) -> Result<bool> {
        let outboard = self.outboard();
        // One that cannot be read is no better than a wrong one.
        if outboard::is_right_at(self.geometry, &self.record.oid, &outboard, groups).unwrap_or(false) {
            return Ok(false);
        }
        self.mend(&outboard).map(|()| true)
    }

    fn mismatch(&self) -> Error {
        self.is_distrusted.store(true, Ordering::Relaxed);
        self.store.mismatch(&self.record, &self.data, &self.path)
    }

    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.data.as_fd())
    }
}

/// The object's outboard. One that turns out to be cut short is built again before the answer.
impl PairStore for LocalObject {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let outboard = self.outboard();
        match outboard.read_pairs(first_index, out) {
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.mend(&outboard)?;
                self.outboard().read_pairs(first_index, out)
            }
            read => read,
        }
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, "an object at rest is not written"))
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
