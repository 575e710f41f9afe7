//! Objects in a data directory, shared by any number of processes of one user, and objects received beside their
//! destination (design decisions 10 to 12).
//!
//! Truth is a record a object, replaced in one rename. Writers of an object hold its lock for the moment of the
//! change, never while they hash. `docs/format/object.md` has the layout and what must be durable before what.

mod boot;
mod delivered;
pub mod delivery;
mod directories;
mod extents;
mod file_systems;
mod hashing;
mod landing;
mod object;
mod outboard;
mod place;
mod record;
mod repeats;
mod retention;
mod source_file;
#[cfg(test)]
mod tests;
pub mod tree;
mod whereabouts;
mod within;
mod writer;

use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dray_core::hash_tree::Geometry;
use dray_core::limits::{OBJECT_BYTES_MAX, PATH_BYTES_MAX};
use dray_core::store::{
    FileIdentity, ObjectSummary, ObjectWriter, Share, Store, StoreCapabilities, StoredObject,
};
use dray_core::{Error, ErrorKind, Oid, Result};

use extents::{identity, io_at, open_regular, require_end};
use hashing::Watch;
use landing::Wanted;
use object::{FilePairs, LocalObject, backing_differs, backing_rotted};
use place::{Lock, ObjectPaths, Place, TempFile, make_directory};
use record::{Backing, FileHint, Record};
use repeats::Repeats;

pub use boot::{BootId, boot_id};
pub use delivery::{Delivery, DeliveryOptions, FinishOptions, may_share, new_file_mode};
pub use directories::DirectoryRecord;
pub(crate) use extents::identity as identity_of;
pub use hashing::hash_file;
pub use landing::{LONG_BYTES, Landing};
pub use retention::{Retained, Retention};
pub use source_file::SourceFile;
pub use whereabouts::Whereabouts;
pub use within::Within;
pub use writer::{Incoming, LocalWriter};

/// A store in a data directory. Clones are the same store.
///
/// A file put within two seconds of its last change stays `Doubtful` for as long as that object is open, and every group
/// of it is checked before it is sent: only bytes read again later could prove that no write came within the same tick
/// of the file system's clock. Putting it again once it has rested for two seconds hashes it once more, and from then on it is
/// trusted.
#[derive(Clone, Debug)]
pub struct LocalStore {
    place: Place,
    clock: fn() -> SystemTime,
}

impl LocalStore {
    /// Opens the data directory `root`, making it (mode 0700) if it is not there. `Refused` if that is not allowed.
    pub fn open(root: &Path) -> Result<LocalStore> {
        Ok(LocalStore { place: Place::open(root)?, clock: SystemTime::now })
    }

    /// The same store by another clock. A file is trusted without reading only if its last change is two seconds
    /// before the hash *by this clock*; for file servers whose clock is off, and for tests that will not wait.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> SystemTime) -> LocalStore {
        self.clock = clock;
        self
    }

    /// How long a lock of the data directory is waited for; `None` is without end.
    pub fn patience(&self) -> Option<Duration> {
        self.place.patience()
    }

    /// The same store, in whose locks nobody waits longer than `patience` for another process that holds one and does not
    /// go on: that is then `TimedOut`, and retryable.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> LocalStore {
        self.place = self.place.with_patience(patience);
        self
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn now_ns(&self) -> i64 {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Reads the record under a lock the caller holds. `None` if there is no such object.
    fn read_record(&self, oid: &Oid, _lock: &Lock) -> Result<Option<Record>> {
        let paths = self.place.object(oid);
        let Some(bytes) = record::read_small(&paths.record)? else { return Ok(None) };
        let record = Record::from_bytes(&bytes, oid);
        record.map(Some).map_err(|error| match error.advice() {
            Some(_) => error.context(format!("{:?}", paths.record)),
            None => error
                .context(format!("{:?}", paths.record))
                .advise("put the object again; that replaces the damaged record"),
        })
    }

    fn require_record(&self, oid: &Oid, lock: &Lock) -> Result<Record> {
        self.read_record(oid, lock)?.ok_or_else(|| not_found(oid))
    }

    fn write_record(&self, record: &Record, lock: &Lock, durable: bool) -> Result<()> {
        self.write_record_as(self.place.temp()?, record, lock, durable)
    }

    /// As `write_record`, through a temporary file that is there already.
    fn write_record_as(&self, temp: TempFile, record: &Record, _lock: &Lock, durable: bool) -> Result<()> {
        let path = self.place.object(&record.oid).record;
        record::write_small(temp, &path, &record.to_bytes(), durable)
    }

    /// Refers to the user's file at `path`, which has been hashed as `oid` in state `file`; `hashed` is what came of it if
    /// that was now: the outboard, and how much of the file stands in it before. A lock is waited for as long as that is `wanted`.
    fn keep_borrowed(
        &self,
        oid: Oid,
        path: &Path,
        data: File,
        hint: FileHint,
        hashed: Option<(TempFile, u16)>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Arc<dyn StoredObject>>> {
        let mut is_damaged = false;
        let (lock, existing) = loop {
            let lock = wanted.until_unlocked(|| self.place.lock(&oid))?;
            let existing = self.read_record(&oid, &lock).unwrap_or(None);
            if existing.as_ref().is_some_and(|record| self.is_owned_whole(record)) {
                self.write_hint(&hint);
                drop(lock);
                match wanted.until_unlocked(|| self.open(&oid)) {
                    // Whoever makes room was faster.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    opened => return opened.map(Some),
                }
            }
            if is_damaged || !existing.as_ref().is_some_and(|record| self.is_owned_touched(record)) {
                break (lock, existing);
            }
            // They may be all that somebody has of these bytes: they give way to a file only if they are others.
            drop(lock);
            is_damaged = !self.adopt_touched(&oid)?;
        };
        let absolute = std::fs::canonicalize(path).map_err(|error| io_at("find", path, error))?;
        let bytes = absolute.into_os_string().into_vec();
        if bytes.len() > PATH_BYTES_MAX {
            return Err(Error::new(ErrorKind::Usage, format!("path {path:?} is longer than a record holds")));
        }
        let backing = Backing::Borrowed(bytes.into());
        let mut record = Record::new(oid, backing, hint.file, hint.hashed_at_ns);
        record.keep_from(existing.as_ref());
        match (hashed, &existing) {
            (Some((outboard, repeated_permille)), _) => {
                record.repeated_permille = Some(repeated_permille).filter(|permille| *permille > 0);
                make_directory(&self.place.object(&oid).folder, false)?;
                self.finish_record(&mut record, &outboard, self.place.temp()?, &lock, false)?;
                outboard.settled();
            }
            (None, Some(existing)) => {
                // Same object, same outboard: only where the bytes are may be new.
                record.repeated_permille = existing.repeated_permille;
                record.outboard = existing.outboard;
                record.boot = existing.boot.clone();
                if record != *existing {
                    self.write_record(&record, &lock, false)?;
                }
            }
            (None, None) => return Ok(None),
        }
        self.write_hint(&hint);
        drop(lock);
        self.object(record, data).map(Some)
    }

    /// Puts the outboard in its place and then, through `temp`, the record that vouches for it. The outboard is to be settled after that.
    fn finish_record(
        &self,
        record: &mut Record,
        outboard: &TempFile,
        temp: TempFile,
        lock: &Lock,
        durable: bool,
    ) -> Result<()> {
        let paths = self.place.object(&record.oid);
        outboard.place(&paths.outboard)?;
        let now = outboard.file().metadata().map(|now| identity(&now));
        record.outboard = now.map_err(|error| io_at("read", &paths.outboard, error))?;
        record.boot = boot::current().to_vec().into();
        if durable {
            sync_directories(&paths.folder)?;
        }
        self.write_record_as(temp, record, lock, durable)?;
        if record.borrowed_path().is_some() {
            // Left by an owned copy that was damaged.
            let _ = std::fs::remove_file(&paths.data);
        }
        if durable { sync_directories(&paths.folder) } else { Ok(()) }
    }

    /// Refers to the user's file at `path`, open as `file` and found in state `before`.
    fn put_opened(
        &self,
        file: File,
        before: FileIdentity,
        path: &Path,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
        landing: &Landing<'_>,
    ) -> Result<Arc<dyn StoredObject>> {
        if let Some(object) = self.find_unchanged(path, &file, &before)? {
            return Ok(object);
        }
        let hashed_at_ns = self.now_ns();
        let geometry = Geometry::new(before.size_bytes);
        let repeats = Repeats::new(geometry);
        let watch = Watch { progress, is_stopped, repeats: Some(&repeats) };
        let (oid, outboard) = outboard::build(&self.place, &file, path, geometry, &watch)?;
        let after = file.metadata().map_err(|error| io_at("read", path, error))?;
        if identity(&after) != before {
            return Err(hashing::changed_while_hashed(path));
        }
        require_end(&file, path, before.size_bytes)?;
        let hint = FileHint::new(oid, before, hashed_at_ns);
        let is_over = || before.size_bytes < LONG_BYTES || is_stopped();
        let hashed = Some((outboard, repeats.permille()));
        let wanted = Wanted { landing, is_stopped: &is_over };
        self.keep_borrowed(oid, path, file, hint, hashed, &wanted)?.ok_or_else(|| not_found(&oid))
    }

    /// A command serves what a daemon took in: with it would go who may have it, and that always stays. False if it is not here any
    /// more.
    fn claim(&self, oid: &Oid) -> Result<bool> {
        let lock = self.place.lock(oid)?;
        match self.read_record(oid, &lock)? {
            Some(record) if record.is_disposable() => {
                self.write_record(&Record { disposable: None, ..record }, &lock, true)?;
                Ok(true)
            }
            record => Ok(record.is_some()),
        }
    }

    /// A hint that cannot be written costs a second hash some day, nothing else.
    fn write_hint(&self, hint: &FileHint) {
        if let Ok(temp) = self.place.temp() {
            let _ = record::write_small(temp, &self.place.file_hint(&hint.file), &hint.to_bytes(), false);
        }
    }

    /// Whether the store has the bytes itself, untouched since they were written. Where they were touched, bytes that
    /// have just been hashed are the better ones.
    fn is_owned_whole(&self, record: &Record) -> bool {
        let data = std::fs::symlink_metadata(self.place.object(&record.oid).data);
        record.borrowed_path().is_none() && data.is_ok_and(|data| record.holds_for(&identity(&data)))
    }

    /// Whether a command had the store keep the bytes itself, and they have the size that they had, but not all of the identity: a change of
    /// mode or owner, or a restored backup, does that.
    fn is_owned_touched(&self, record: &Record) -> bool {
        let data = std::fs::symlink_metadata(self.place.object(&record.oid).data);
        let is_full = data.is_ok_and(|data| data.is_file() && data.len() == record.size_bytes);
        record.borrowed_path().is_none() && !record.is_disposable() && is_full && !self.is_owned_whole(record)
    }

    /// Hashes touched bytes of the store's own and, if they are still the object, notes their identity. False if they are not.
    fn adopt_touched(&self, oid: &Oid) -> Result<bool> {
        let path = self.place.object(oid).data;
        let (file, before) = open_regular(&path)?;
        let (now_oid, outboard) =
            outboard::build(&self.place, &file, &path, Geometry::new(before.size_bytes), &Watch::NOBODY)?;
        drop(outboard);
        if now_oid != *oid {
            return Ok(false);
        }
        let lock = self.place.lock(oid)?;
        let Some(mut record) = self.read_record(oid, &lock)? else { return Ok(false) };
        let after = file.metadata().map_err(|error| io_at("read", &path, error))?;
        if identity(&after) != before || !self.is_owned_touched(&record) {
            return Ok(self.is_owned_whole(&record));
        }
        (record.backing, record.hashed_at_ns) = (before, self.now_ns());
        self.write_record(&record, &lock, true)?;
        sync_directories(&self.place.object(oid).folder)?;
        Ok(true)
    }

    /// The record of `oid`, and its data.
    fn open_data(&self, oid: &Oid) -> Result<(Record, File)> {
        let lock = self.place.lock_shared(oid)?.ok_or_else(|| not_found(oid))?;
        let record = self.require_record(oid, &lock)?;
        let data = match record.borrowed_path() {
            Some(path) => {
                // Wherever that lies may not answer, and other objects share the lock.
                drop(lock);
                open_borrowed(&path, record.size_bytes)?
            }
            None => open_owned(&self.place.object(oid).data, record.size_bytes)?,
        };
        Ok((record, data))
    }

    /// The object of `record`, whose backing is open as `data`. A missing or wrong outboard is built again.
    fn object(&self, record: Record, data: File) -> Result<Arc<dyn StoredObject>> {
        let paths = self.place.object(&record.oid);
        let path = record.borrowed_path().unwrap_or_else(|| paths.data.clone());
        let geometry = Geometry::new(record.size_bytes);
        let pairs = match self.open_outboard(&record, &paths, geometry)? {
            Some(pairs) => pairs,
            None => self
                .rebuild_outboard(&record, &data, &path)?
                .ok_or_else(|| self.mismatch(&record, &data, &path))?,
        };
        Ok(Arc::new(LocalObject::new(self.clone(), record, data, path, pairs)))
    }

    /// The outboard, if it is there and right. It is read through only if it changed since it was last known to be
    /// right, or if the machine was started anew since (it may then have lost what was never made durable).
    fn open_outboard(
        &self,
        record: &Record,
        paths: &ObjectPaths,
        geometry: Geometry,
    ) -> Result<Option<FilePairs>> {
        let Ok(file) = File::open(&paths.outboard) else { return Ok(None) };
        let now = file.metadata().map_err(|error| io_at("read", &paths.outboard, error))?;
        if now.len() != geometry.outboard_bytes() {
            return Ok(None);
        }
        let now = identity(&now);
        let pairs = FilePairs::new(file, &paths.outboard, geometry);
        if now == record.outboard && boot::is_current(&record.boot) {
            return Ok(Some(pairs));
        }
        if !outboard::is_right(geometry, &record.oid, &pairs)? {
            return Ok(None);
        }
        self.remember_outboard(&record.oid, now);
        Ok(Some(pairs))
    }

    /// Notes in the record that the outboard is right in state `now`. Best effort: it spares the next check.
    fn remember_outboard(&self, oid: &Oid, now: FileIdentity) {
        let Ok(lock) = self.place.lock(oid) else { return };
        if let Ok(Some(mut record)) = self.read_record(oid, &lock) {
            record.outboard = now;
            record.boot = boot::current().to_vec().into();
            let _ = self.write_record(&record, &lock, false);
        }
    }

    /// Hashes the data and puts the outboard that comes out in its place; `None` if the data are not the object.
    fn rebuild_outboard(&self, record: &Record, data: &File, path: &Path) -> Result<Option<FilePairs>> {
        let geometry = Geometry::new(record.size_bytes);
        let paths = self.place.object(&record.oid);
        let (oid, temp) = outboard::build(&self.place, data, path, geometry, &Watch::NOBODY)?;
        if oid != record.oid {
            return Ok(None);
        }
        let lock = self.place.lock(&oid)?;
        if self.read_record(&oid, &lock)?.is_none() {
            return Err(not_found(&oid));
        }
        let file = temp.persist(&paths.outboard)?;
        drop(lock);
        let now = file.metadata().map_err(|error| io_at("read", &paths.outboard, error))?;
        self.remember_outboard(&oid, identity(&now));
        Ok(Some(FilePairs::new(file, &paths.outboard, geometry)))
    }

    /// The error of `data`, at `path`, that are not the object of `record`. If its file tells nothing of that, what is
    /// recorded about the file is not believed any more, so that putting it again hashes it anew.
    fn mismatch(&self, record: &Record, data: &File, path: &Path) -> Error {
        let is_borrowed = record.borrowed_path().is_some();
        let now = data.metadata().map(|now| identity(&now));
        if !now.is_ok_and(|now| record.looks_untouched(&now)) {
            return backing_differs(path, is_borrowed, "has other bytes than the object");
        }
        self.distrust(record);
        backing_rotted(path, is_borrowed)
    }

    /// Forgets which state of its backing is the object of `record`. Best effort: what still stands is found out again.
    fn distrust(&self, record: &Record) {
        let Ok(lock) = self.place.lock(&record.oid) else { return };
        if let Ok(Some(mut now)) = self.read_record(&record.oid, &lock)
            && (&now.extents, now.backing) == (&record.extents, record.backing)
        {
            now.distrust();
            let _ = self.write_record(&now, &lock, false);
        }
        let hint = self.place.file_hint(&record.backing);
        let bytes = record::read_small(&hint).unwrap_or(None);
        if bytes.is_some_and(|bytes| FileHint::from_bytes(&bytes).is_ok_and(|hint| hint.oid == record.oid)) {
            let _ = std::fs::remove_file(&hint);
        }
    }

    /// The object an unchanged file was when it was last hashed, without reading the file.
    fn find_unchanged(
        &self,
        path: &Path,
        file: &File,
        now: &FileIdentity,
    ) -> Result<Option<Arc<dyn StoredObject>>> {
        let bytes = record::read_small(&self.place.file_hint(now)).unwrap_or(None);
        let Some(hint) = bytes.and_then(|bytes| FileHint::from_bytes(&bytes).ok()) else { return Ok(None) };
        // No file was hashed in the future: such a hint is not ours, or was written by a clock that was wrong.
        if !hint.holds_for(now) || hint.hashed_at_ns > self.now_ns() {
            return Ok(None);
        }
        let handle = file.try_clone().map_err(|error| io_at("read", path, error))?;
        // Nothing would be lost if it were asked again, so a lock is waited for no longer than usual.
        let landing = Landing::new(&|_| {});
        let wanted = Wanted { landing: &landing, is_stopped: &|| true };
        self.keep_borrowed(hint.oid, path, handle, hint, None, &wanted)
    }
}

impl Store for LocalStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { persistent: true, borrowed: true, raw_file: true }
    }

    fn open(&self, oid: &Oid) -> Result<Arc<dyn StoredObject>> {
        let (record, data) = self.open_data(oid)?;
        self.object(record, data)
    }

    fn put(&self) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(LocalWriter::new(self.clone(), false)?))
    }

    fn put_file_until(
        &self,
        path: &Path,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Arc<dyn StoredObject>> {
        loop {
            let (file, before) = open_regular(path)?;
            let landing = Landing::new(&|_| {});
            let object = self.put_opened(file, before, path, progress, is_stopped, &landing)?;
            // Dropped between the two by whoever makes room, it is put once more: the file itself is there.
            if object.is_borrowed() || self.claim(&object.oid())? {
                return Ok(object);
            }
        }
    }

    fn list(&self) -> Result<Vec<ObjectSummary>> {
        let mut summaries = Vec::new();
        for oid in self.place.object_names()? {
            let bytes = record::read_small(&self.place.object(&oid).record).unwrap_or(None);
            let record = bytes.and_then(|bytes| Record::from_bytes(&bytes, &oid).ok());
            summaries.extend(record.map(|record| ObjectSummary {
                oid,
                size_bytes: record.size_bytes,
                borrowed_path: record.borrowed_path(),
            }));
        }
        Ok(summaries)
    }

    fn remove(&self, oid: &Oid) -> Result<bool> {
        let Some(shared) = self.place.lock_shared(oid)? else { return Ok(false) };
        drop(shared);
        let lock = self.place.lock(oid)?;
        if let Ok(Some(record)) = self.read_record(oid, &lock)
            && record.borrowed_path().is_some()
        {
            let _ = std::fs::remove_file(self.place.file_hint(&record.backing));
        }
        self.place.object(oid).remove(&lock)
    }

    fn share(&self, oid: &Oid) -> Result<Option<Share>> {
        let lock = self.place.lock_shared(oid)?.ok_or_else(|| not_found(oid))?;
        Ok(self.require_record(oid, &lock)?.share)
    }

    /// `update` runs while the object is locked, so it must not call the store.
    fn update_share(
        &self,
        oid: &Oid,
        update: &mut dyn FnMut(Option<Share>) -> Result<Option<Share>>,
    ) -> Result<Option<Share>> {
        if self.place.lock_shared(oid)?.is_none() {
            return Err(not_found(oid));
        }
        let lock = self.place.lock(oid)?;
        let mut record = self.require_record(oid, &lock)?;
        let share = update(record.share.clone())?;
        if share != record.share {
            // An end that came back with the state before it would be a right that nobody gave.
            let is_durable = retention::ends_a_right(record.share.as_ref(), share.as_ref());
            record.share = share.clone();
            self.write_record(&record, &lock, is_durable)?;
            if is_durable {
                sync_directories(&self.place.object(oid).folder)?;
            }
        }
        Ok(share)
    }
}

fn not_found(oid: &Oid) -> Error {
    Error::new(ErrorKind::NotFound, format!("object {oid} is not in this store"))
        .advise("`dray ls` shows what is")
}

/// Opens the user's file again. What is no longer a file of the right size is `Changed`; whether one that is has
/// been touched is for the caller to see.
fn open_borrowed(path: &Path, size_bytes: u64) -> Result<File> {
    let (file, now) = open_regular(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => backing_differs(path, true, "is gone").caused_by(error),
        ErrorKind::Usage => backing_differs(path, true, "is no regular file").caused_by(error),
        _ => error,
    })?;
    if now.size_bytes == size_bytes {
        Ok(file)
    } else {
        Err(backing_differs(path, true, &format!("has {} bytes, not {size_bytes}", now.size_bytes)))
    }
}

fn open_owned(path: &Path, size_bytes: u64) -> Result<File> {
    debug_assert!(size_bytes <= OBJECT_BYTES_MAX);
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => backing_differs(path, false, "is gone").caused_by(error),
        _ => io_at("open", path, error),
    })?;
    let now = file.metadata().map_err(|error| io_at("read", path, error))?;
    if now.is_file() && now.len() == size_bytes {
        Ok(file)
    } else {
        Err(backing_differs(path, false, &format!("has {} bytes, not {size_bytes}", now.len())))
    }
}

/// Makes the names in an object's folder, and the folder's own, durable.
fn sync_directories(folder: &Path) -> Result<()> {
    for path in folder.ancestors().take(3) {
        let synced = File::open(path).and_then(|directory| directory.sync_all());
        synced.map_err(|error| io_at("write", path, error))?;
    }
    Ok(())
}
