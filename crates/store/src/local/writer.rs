//! Taking the bytes of a new owned object: spooled and hashed as they come, then made durable and renamed. A full disk ends neither:
//! what found no room can be tried again.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dray_core::hash_tree::IncrementalHasher;
use dray_core::store::{ObjectWriter, StoredObject};
use dray_core::{Error, ErrorKind, Oid, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::extents::{identity, io_at};
use super::object::backing_differs;
use super::place::{TempFile, make_directory};
use super::record::{Backing, Record};
use super::{LocalStore, sync_directories};

/// Pairs come 64 bytes at a time, and are written when there are so many.
const PAIRS_BYTES: usize = 256 * 1024;
/// Room for a record, kept before anything is renamed that stands for nothing without it.
const RECORD_ROOM_BYTES: u64 = 4096;

/// Takes the bytes of a new object.
#[derive(Debug)]
pub struct LocalWriter {
    store: LocalStore,
    data: TempFile,
    size_bytes: u64,
    outboard: Pairs,
    hasher: IncrementalHasher,
    disposable: bool,
}

/// The outboard so far: in a file, and what is not there yet.
#[derive(Debug)]
struct Pairs {
    temp: TempFile,
    written_bytes: u64,
    rest: Vec<u8>,
}

impl Pairs {
    /// Writes what is not there yet; all of it still is not if that fails.
    fn flush(&mut self) -> Result<()> {
        let written = self.temp.file().write_all_at(&self.rest, self.written_bytes);
        written.map_err(|error| io_at("write", self.temp.path(), error))?;
        self.written_bytes += self.rest.len() as u64;
        self.rest.clear();
        Ok(())
    }
}

impl LocalWriter {
    pub(super) fn new(store: LocalStore, disposable: bool) -> Result<LocalWriter> {
        let (data, temp) = (store.place().temp()?, store.place().temp()?);
        let outboard = Pairs { temp, written_bytes: 0, rest: Vec::new() };
        Ok(LocalWriter {
            store,
            data,
            size_bytes: 0,
            outboard,
            hasher: IncrementalHasher::default(),
            disposable,
        })
    }

    /// Appends all of `data`, or nothing: after an error the same can be written again.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        if self.outboard.rest.len() >= PAIRS_BYTES {
            self.outboard.flush()?;
        }
        let written = self.data.file().write_all_at(data, self.size_bytes);
        written.map_err(|error| io_at("write", self.data.path(), error))?;
        self.size_bytes += data.len() as u64;
        let pairs = &mut self.outboard.rest;
        self.hasher.update(data, &mut |pair| {
            pairs.extend_from_slice(pair);
            Ok(())
        })
    }

    /// Nothing more comes.
    pub fn finish(self) -> Result<Incoming> {
        let LocalWriter { store, data, mut outboard, hasher, disposable, .. } = self;
        let (size_bytes, oid) = hasher.finish(&mut |pair| {
            outboard.rest.extend_from_slice(pair);
            Ok(())
        })?;
        Ok(Incoming { store, oid, size_bytes, files: Some((data, outboard)), is_synced: false, disposable })
    }
}

impl ObjectWriter for LocalWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        LocalWriter::write(self, data)
    }

    fn commit(self: Box<Self>) -> Result<Arc<dyn StoredObject>> {
        self.finish()?.keep()
    }
}

/// All bytes of an object that has no record yet. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct Incoming {
    store: LocalStore,
    oid: Oid,
    size_bytes: u64,
    /// Data and outboard, until they have their names.
    files: Option<(TempFile, Pairs)>,
    is_synced: bool,
    disposable: bool,
}

impl Incoming {
    /// Its name.
    pub fn oid(&self) -> Oid {
        self.oid
    }

    /// Whether its bytes are still here to be kept: not after `keep`, unless that failed and they could be brought back.
    pub fn is_whole(&self) -> bool {
        self.files.is_some()
    }

    /// Makes it an object of the store, unless that has a whole one already. After an error it can be tried again while `is_whole`.
    pub fn keep(&mut self) -> Result<Arc<dyn StoredObject>> {
        let (store, oid) = (self.store.clone(), self.oid);
        let (lock, existing, is_unreadable) = loop {
            let lock = store.place().lock(&oid)?;
            // A damaged record is replaced like a missing one; its share is lost.
            let read = store.read_record(&oid, &lock);
            let is_unreadable = read.is_err();
            let existing = read.unwrap_or(None);
            if let Some(record) = existing.as_ref().filter(|record| store.is_owned_whole(record)) {
                if record.is_disposable() && !self.disposable {
                    // From now on they may be all that somebody has of these bytes.
                    let claimed = Record { disposable: None, ..record.clone() };
                    store.write_record(&claimed, &lock, true)?;
                    sync_directories(&store.place().object(&oid).folder)?;
                }
                drop(lock);
                match dray_core::store::Store::open(&store, &oid) {
                    // Whoever makes room was faster.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    opened => return opened,
                }
            }
            if self.is_synced || self.files.is_none() {
                break (lock, existing, is_unreadable);
            }
            // Writing gigabytes back takes long, and other objects share the lock.
            drop(lock);
            self.sync()?;
        };
        let paths = store.place().object(&oid);
        // What a command put here stays, and so does what replaces it: a damaged copy, a file of the user's with who may have it, a
        // record that cannot be read. Bytes without a record were left by a kill, and promised to nobody.
        let is_claimed = is_unreadable || existing.as_ref().is_some_and(|record| !record.is_disposable());
        make_directory(&paths.folder, false)?;
        let record_temp = store.place().temp()?;
        keep_room(&record_temp)?;
        let Some((data, outboard)) = &self.files else {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the bytes have been removed since, or could not be written",
            )
            .advise("put them again"));
        };
        let owned = existing.as_ref().filter(|record| record.borrowed_path().is_none());
        let kept = (|| {
            data.place(&paths.data)?;
            let now = data.file().metadata().map(|now| identity(&now));
            let now = now.map_err(|error| io_at("read", &paths.data, error))?;
            if now.size_bytes != self.size_bytes {
                return Err(backing_differs(&paths.data, false, "was cut while it was written"));
            }
            let mut record = Record::new(oid, Backing::Owned, now, store.now_ns());
            record.keep_from(existing.as_ref());
            record.disposable = (self.disposable && !is_claimed).then_some(true);
            store.finish_record(&mut record, &outboard.temp, record_temp, &lock, true)
        })();
        let is_back = kept.is_err() && existing.is_none() && !is_unreadable && {
            // The record first: without it the rest is no object. Whoever asks again finds bytes and pairs where they were.
            let _ = std::fs::remove_file(&paths.record);
            let is_back = data.take_back(&paths.data) && outboard.temp.take_back(&paths.outboard);
            let _ = paths.remove(&lock);
            is_back
        };
        if kept.is_err() && !is_unreadable && existing.is_some() && owned.is_none() {
            // A file of the user's has them, too, and its record tells of no others.
            let _ = std::fs::remove_file(&paths.data);
        }
        if !is_back && let Some((data, outboard)) = self.files.take() {
            // Where they have not come from their temporary names they go with those.
            if kept.is_ok() {
                data.settled();
                outboard.temp.settled();
            }
        }
        drop(lock);
        kept?;
        dray_core::store::Store::open(&store, &oid)
    }

    /// Makes data and outboard durable. Where the system could not write them back they are given up: it tells that once, and what is on
    /// disk after it nobody knows.
    fn sync(&mut self) -> Result<()> {
        let Some((data, outboard)) = &mut self.files else { return Ok(()) };
        outboard.flush()?;
        let sync = |temp: &TempFile| {
            let synced = temp.file().sync_data().map_err(|error| io_at("write", temp.path(), error));
            synced.map_err(|error| error.or_advise("put the bytes again"))
        };
        if let Err(error) = sync(data).and_then(|()| sync(&outboard.temp)) {
            self.files = None;
            return Err(error);
        }
        self.is_synced = true;
        Ok(())
    }
}

/// So that a record is not what finds no room. File systems that cannot say are asked when it is written.
fn keep_room(temp: &TempFile) -> Result<()> {
    match rustix::fs::fallocate(temp.file(), FallocateFlags::KEEP_SIZE, 0, RECORD_ROOM_BYTES) {
        Err(Errno::NOSPC) => Err(io_at("write", temp.path(), Errno::NOSPC)),
        _ => Ok(()),
    }
}
