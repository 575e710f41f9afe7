//! Objects that were received into a file of the user: referred to in place, as if they had been put, but never trusted
//! without reading: the file was written just now, and a later write within one tick of the clock would leave no trace.

use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore};
use dray_core::limits::PATH_BYTES_MAX;
use dray_core::store::StoredObject;
use dray_core::{Oid, Result};

use super::LocalStore;
use super::extents::{io_at, open_regular};
use super::object::{FilePairs, LocalObject};
use super::outboard;
use super::place::{TempFile, make_directory};
use super::record::{Backing, Record};

/// Bytes of an outboard that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

impl LocalStore {
    /// Remembers that `path` has the bytes of `oid`, as `pairs` prove them. False if there is nothing to remember: the
    /// file is another already, the pairs are not those of `oid`, or the store has the bytes itself. Whatever the file
    /// becomes, each group of it is checked before it is sent.
    pub fn refer_to(&self, path: &Path, oid: &Oid, size_bytes: u64, pairs: &dyn PairStore) -> Result<bool> {
        let (_, now) = open_regular(path)?;
        let absolute = std::fs::canonicalize(path).map_err(|error| io_at("find", path, error))?;
        let bytes = absolute.into_os_string().into_vec();
        if now.size_bytes != size_bytes || bytes.len() > PATH_BYTES_MAX {
            return Ok(false);
        }
        let geometry = Geometry::new(size_bytes);
        let temp = copy(pairs, geometry, self.place().temp()?)?;
        let copied = temp.file().try_clone().map_err(|error| io_at("write", temp.path(), error))?;
        if !outboard::is_right(geometry, oid, &FilePairs::new(copied, temp.path(), geometry))? {
            return Ok(false);
        }
        let lock = self.place.lock(oid)?;
        let existing = self.read_record(oid, &lock).unwrap_or(None);
        if existing.as_ref().is_some_and(|record| self.is_owned_whole(record)) {
            return Ok(false);
        }
        // "Hashed" when it was last changed: that is never settled.
        let mut record = Record::new(*oid, Backing::Borrowed(bytes.into()), now, now.ctime_ns);
        record.keep_from(existing.as_ref());
        make_directory(&self.place.object(oid).folder, false)?;
        self.finish_record(&mut record, &temp, self.place().temp()?, &lock, false)?;
        temp.settled();
        Ok(true)
    }

    /// As [`Store::open`], but only what is ready to be read: `None` where the outboard would have to be made again, for
    /// which all of the data would be hashed.
    pub fn open_ready(&self, oid: &Oid) -> Result<Option<Arc<dyn StoredObject>>> {
        let (record, data) = self.open_data(oid)?;
        let paths = self.place.object(oid);
        let Some(pairs) = self.open_outboard(&record, &paths, Geometry::new(record.size_bytes))? else {
            return Ok(None);
        };
        let path = record.borrowed_path().unwrap_or(paths.data);
        Ok(Some(Arc::new(LocalObject::new(self.clone(), record, data, path, pairs))))
    }
}

/// Copies an outboard into `temp`.
fn copy(pairs: &dyn PairStore, geometry: Geometry, temp: TempFile) -> Result<TempFile> {
    use std::os::unix::fs::FileExt;
    let out: &File = temp.file();
    let mut at = 0;
    let mut piece = Vec::new();
    while at < geometry.outboard_bytes() {
        let len = (geometry.outboard_bytes() - at).min(PIECE_BYTES);
        piece.resize(len as usize, 0);
        pairs.read_pairs(at / PAIR_BYTES as u64, &mut piece)?;
        out.write_all_at(&piece, at).map_err(|error| io_at("write", temp.path(), error))?;
        at += len;
    }
    Ok(temp)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use dray_core::limits::GROUP_BYTES;
    use dray_core::store::{Standing, Store};
    use dray_core::{ErrorKind, Oid};

    use super::*;

    /// The "data already in the store": a delivered file is an object of the store, with its own outboard, and never
    /// trusted unread; pairs of something else make none.
    #[test]
    fn a_delivered_file_is_doubtful_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..5 * GROUP_BYTES + 9).map(|index| (index % 251) as u8).collect();
        let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
        std::fs::write(&source, &data).unwrap();
        std::fs::write(&copy, &data).unwrap();
        let stores = ["a", "b"].map(|name| {
            let store = LocalStore::open(&dir.path().join(name)).unwrap();
            store.with_clock(|| SystemTime::now() + Duration::from_secs(60))
        });
        let put = stores[0].put_file(&source, &|_| {}).unwrap();
        let (oid, size_bytes) = (put.oid(), data.len() as u64);
        assert_eq!(stores[1].open(&oid).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!stores[1].refer_to(&copy, &Oid::of(b"x"), size_bytes, put.pairs()).unwrap());
        assert!(!stores[1].refer_to(&copy, &oid, size_bytes - 1, put.pairs()).unwrap());
        assert!(stores[1].refer_to(&copy, &oid, size_bytes, put.pairs()).unwrap());
        let object = stores[1].open(&oid).unwrap();
        assert_eq!(object.standing(), Standing::Doubtful);
        assert_eq!(stores[1].share(&oid).unwrap(), None);
        let mut pairs = [vec![0; 5 * 64], vec![0; 5 * 64]];
        put.pairs().read_pairs(0, &mut pairs[0]).unwrap();
        object.pairs().read_pairs(0, &mut pairs[1]).unwrap();
        assert_eq!(pairs[0], pairs[1]);
        // Putting it hashes it: nothing was taken on trust.
        let hashed = std::sync::atomic::AtomicU64::new(0);
        let count = |bytes| hashed.store(bytes, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(stores[1].put_file(&copy, &count).unwrap().oid(), oid);
        assert_eq!(hashed.into_inner(), size_bytes);
        // Without its outboard it is not ready, and is not hashed to be so.
        assert!(stores[1].open_ready(&oid).unwrap().is_some());
        let outboard = stores[1].place().object(&oid).outboard;
        std::fs::remove_file(&outboard).unwrap();
        assert!(stores[1].open_ready(&oid).unwrap().is_none() && !outboard.exists());
        std::fs::remove_file(&copy).unwrap();
        assert_eq!(stores[1].open(&oid).unwrap_err().kind(), ErrorKind::Changed);
    }
}
