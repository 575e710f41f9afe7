//! The chunk index: where on this machine a chunk lies, by its hash (design decision 12, Y8-Y11).
//!
//! Everything in it is a hint. A file is looked at before an entry of it is given out, and all entries of a file that is another by now
//! go at once; who reads what an entry tells of must compare the bytes with the chunk's hash. The index may be thrown away at any
//! moment, and is, whenever something in it cannot be read: what it knew is cut again. `docs/format/index.md` has the layout.
//!
//! Whoever asks only reads, and waits for no writing: what he finds changed is written when the index is filled (`write_back`).

mod aside;
mod cut;
mod database;
mod entering;
mod files;
mod search;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dray_core::limits::{
    INDEX_CHUNKS_MAX, INDEX_FILE_BYTES_MIN, INDEX_FILES_MAX, INDEX_FREE_BYTES_MIN, INDEX_PATHS_BYTES_MAX,
    UPDATE_BYTES_MAX,
};
use dray_core::recipe::ChunkDescriptor;
use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Result};

use crate::lock_file;
use database::Database;
use files::Files;

pub use cut::{Cut, MayRead};
pub use entering::Entering;
pub use files::look;
pub use search::{ChunkPlace, Found, Scope};

/// Bytes of a chunk's hash by which it is looked up.
pub type ChunkKey = [u8; 16];

/// How often the lock is tried, and how long after each other.
const LOCK_TRIES: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// What stands in `format`, beside what the database below it has of its own.
const FORMAT: &str = "drayman chunk index 1\n";

/// What there is beside the lock: what says that it is whole, the same while it is opened for the first and the second time, and the database.
/// The last one goes last.
const PARTS: [&str; 4] = ["format", "opening1", "opening2", "data"];

/// Bytes on disk that what was written last takes: the library's journal, twice.
const JOURNAL_DISK_BYTES: u64 = 144 << 20;
/// Bytes on disk that one chunk takes at the most, with half as many that are of no use any more, while all are written anew.
const CHUNK_DISK_BYTES: u64 = 128;
/// Records of files that are written together.
const CHANGES_AT_ONCE: usize = 256;

/// How much it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexLimits {
    /// Files; those leave first that were as they are for longest.
    pub files: usize,
    /// Bytes of their paths.
    pub path_bytes: usize,
    /// Chunks of all of them.
    pub chunks: u64,
    /// Bytes that it takes on disk: beyond, nothing is taken in.
    pub disk_bytes: u64,
    /// Bytes of its file system that it leaves to others: where fewer are free, nothing is taken in.
    pub free_bytes: u64,
}

impl Default for IndexLimits {
    /// As `docs/limits.md` has them, whatever that takes on disk.
    fn default() -> IndexLimits {
        IndexLimits {
            files: INDEX_FILES_MAX,
            path_bytes: INDEX_PATHS_BYTES_MAX,
            chunks: INDEX_CHUNKS_MAX,
            disk_bytes: u64::MAX,
            free_bytes: INDEX_FREE_BYTES_MIN,
        }
    }
}

impl IndexLimits {
    /// As much as `disk_bytes` on disk have room for, of which the journal takes 144 MiB in any case.
    pub fn of_disk(disk_bytes: u64) -> IndexLimits {
        let chunks = disk_bytes.saturating_sub(JOURNAL_DISK_BYTES) / CHUNK_DISK_BYTES;
        IndexLimits { chunks: chunks.min(INDEX_CHUNKS_MAX), disk_bytes, ..IndexLimits::default() }
    }
}

/// How much it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexFigures {
    /// Files.
    pub files: u64,
    /// Chunks of them.
    pub chunks: u64,
    /// Bytes on disk, when that was looked at last.
    pub disk_bytes: u64,
}

/// Whether it can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// It can.
    Well = 0,
    /// The disk refused something: it is to be closed, and what is there can be opened later.
    Failed = 1,
    /// A thread of its library ended, over what the disk refused or over damage: it is to be closed. If that happens again after it was
    /// opened again, and the disk has room, it is damage ([`ChunkIndex::throw_away`]).
    Stopped = 2,
    /// Something in it could not be read: nothing in it is used any more, and the next [`ChunkIndex::open`] begins anew.
    Damaged = 3,
}

/// The index of one data directory, open in one process at a time.
#[derive(Debug)]
pub struct ChunkIndex {
    root: PathBuf,
    limits: IndexLimits,
    /// Never held while anything is waited for.
    files: Mutex<Files>,
    /// Whose turn it is to write what changed in them.
    writing: Mutex<()>,
    /// A [`Health`].
    health: AtomicU8,
    disk_bytes: AtomicU64,
    database: Database,
    /// Given back after the database is closed.
    _lock: File,
}

impl ChunkIndex {
    /// Opens the index in the directory `root`, making it if it is not there; and why what was there was thrown away, if it was.
    /// `Refused` if another process has it open. Where the disk refuses something, what is there stays.
    pub fn open(root: &Path, limits: IndexLimits) -> Result<(ChunkIndex, Option<String>)> {
        make_directory(root)?;
        let lock = lock(root)?;
        let [format, first, second, data] = PARTS.map(|name| root.join(name));
        // Where a process ended as it opened the index, of which it may be innocent, it is tried once more.
        let (mark, next) = if first.exists() { (&first, &second) } else { (&format, &first) };
        let rename =
            |from: &Path, to: &Path| std::fs::rename(from, to).map_err(|error| failed("rename", from, error));
        let reason = match std::fs::read_to_string(mark) {
            Ok(text) if text == FORMAT => {
                // A library that panics over damage may panic again as it cleans up, or be given no memory, which is the end of the
                // process. The next one then begins anew.
                rename(mark, next)?;
                match Self::load(root) {
                    Ok((database, files)) => {
                        rename(next, &format)?;
                        return Ok((Self::of(root, limits, files, database, lock)?, None));
                    }
                    Err(error) if error.kind() == ErrorKind::Damaged => Some(error.to_string()),
                    Err(error) => {
                        rename(next, &format)?;
                        return Err(error);
                    }
                }
            }
            Ok(_) => Some("it is of another version".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Begun and not finished, or found to be damaged while it was in use.
                data.exists().then(|| "it was not left whole".to_owned())
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory) =>
            {
                Some(format!("cannot read {mark:?}: {error}"))
            }
            Err(error) => return Err(failed("read", mark, error)),
        };
        for old in [&format, &first, &second, &data] {
            remove(old)?;
        }
        // One that has nothing is of no use, and takes more than some disks have.
        check_free(root, &limits)?;
        let (database, files) = Self::load(root)?;
        std::fs::write(&format, FORMAT).map_err(|error| failed("write", &format, error))?;
        Ok((Self::of(root, limits, files, database, lock)?, reason))
    }

    /// Removes the one in `root`, which must not be open, but for its empty lock: who waits for that must not wait for another one.
    /// `Refused` if a process has it open.
    pub fn remove(root: &Path) -> Result<()> {
        let _lock = lock(root)?;
        PARTS.iter().try_for_each(|part| remove(&root.join(part)))
    }

    /// Whether there is one in `root`, in whatever state.
    pub fn is_there(root: &Path) -> bool {
        root.join("data").exists()
    }

    fn load(root: &Path) -> Result<(Database, Files)> {
        let database = Database::open(&root.join("data"))?;
        let files = Files::load(&database)?;
        database.know_live(files.numbers(), files.next());
        Ok((database, files))
    }

    fn of(
        root: &Path,
        limits: IndexLimits,
        mut files: Files,
        database: Database,
        lock: File,
    ) -> Result<ChunkIndex> {
        // It may have been larger.
        while files.is_beyond(&limits)
            && let Some(oldest) = files.oldest(i64::MAX)
        {
            files.remove(oldest);
        }
        let index = ChunkIndex {
            root: root.to_owned(),
            limits,
            files: Mutex::new(files),
            writing: Mutex::default(),
            health: AtomicU8::new(Health::Well as u8),
            disk_bytes: AtomicU64::new(0),
            database,
            _lock: lock,
        };
        index.write_back()?;
        index.measure();
        Ok(index)
    }

    /// Whether it can be used.
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            0 => Health::Well,
            1 => Health::Failed,
            2 => Health::Stopped,
            _ => Health::Damaged,
        }
    }

    /// Makes the next [`ChunkIndex::open`] begin anew.
    pub fn throw_away(&self) {
        // Told by its health.
        let _ = self.checked::<()>(Err(database::damaged("its library stops again and again")));
    }

    /// Whether more may be written, as far as the disk and the limits go.
    pub fn is_there_room(&self) -> bool {
        self.check_room().is_ok()
    }

    /// Looks whether it can still be written to, which otherwise shows only when it is.
    pub fn check(&self) -> Result<()> {
        self.checked(self.database.check())
    }

    /// How much it holds. Waits for no disk.
    pub fn figures(&self) -> IndexFigures {
        let (files, chunks) = self.files().counts();
        IndexFigures { files, chunks, disk_bytes: self.disk_bytes.load(Ordering::Relaxed) }
    }

    /// Whether a file of this size is taken in.
    pub fn takes(size_bytes: u64) -> bool {
        (INDEX_FILE_BYTES_MIN..=UPDATE_BYTES_MAX).contains(&size_bytes)
    }

    /// Whether the file `path`, which is `now`, is in it as it is, or was and had no room. One that was taken in under another name is from now
    /// on in it under this one.
    pub fn has(&self, path: &Path, now: &FileIdentity) -> bool {
        self.moved(path, *now);
        self.files().at(path).is_some_and(|(_, record)| record.identity == *now)
    }

    /// Whether the file that was `then` at `path` is in it, under whatever name. One that changed its name since it was taken in, as far as
    /// its change time tells, is in it under `path` from now on. Nothing is looked at.
    pub fn knows(&self, path: &Path, then: &FileIdentity) -> bool {
        {
            let files = self.files();
            if files.at(path).is_some_and(|(_, record)| record.identity == *then) {
                return true;
            }
            match files.of_inode(then.dev, then.ino) {
                Some((_, record)) if !record.is_same(then) => return false,
                // Whoever looked at it later knows better where it is.
                Some((_, record)) if record.identity.ctime_ns >= then.ctime_ns => return true,
                Some(_) => {}
                None => return false,
            }
        }
        self.moved(path, *then);
        true
    }

    /// Forgets what was at `path`.
    pub fn forget_path(&self, path: &Path) -> Result<()> {
        {
            let mut files = self.files();
            if let Some(number) = files.at(path).map(|(number, _)| number) {
                files.remove(number);
            }
        }
        self.write_back()
    }

    /// Gives back the room of what was forgotten, if that is much. May take long.
    pub fn tidy(&self) -> Result<()> {
        self.write_back()?;
        let live = self.files().counts().1;
        if self.database.has_much_dead(live) {
            self.checked(self.database.compact(live))?;
            self.measure();
        }
        Ok(())
    }

    /// Gives back the room of what was forgotten, however little that is: for where there is none. May take long.
    pub fn give_back(&self) -> Result<()> {
        self.write_back()?;
        let live = self.files().counts().1;
        if self.database.dead(live) > 0 {
            self.checked(self.database.compact(live))?;
            self.measure();
        }
        Ok(())
    }

    /// Whether anything of what was forgotten takes room still.
    pub fn has_dead(&self) -> bool {
        self.database.dead(self.files().counts().1) > 0
    }

    /// Whether [`ChunkIndex::tidy`] has much to do.
    pub fn is_untidy(&self) -> bool {
        let live = self.files().counts().1;
        self.database.has_much_dead(live)
    }

    /// Writes what questions found changed. May take long; nobody who asks waits for it.
    pub fn write_back(&self) -> Result<()> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let changes = self.files().take_changes(CHANGES_AT_ONCE);
            if changes.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.checked(self.database.write_files(&changes)) {
                self.files().give_back(&changes);
                return Err(error);
            }
            // What has no record has no chunks from now on.
            let gone =
                changes.iter().filter(|(_, record)| record.as_ref().is_none_or(|record| record.chunks == 0));
            gone.for_each(|(number, _)| self.database.end(*number));
        }
    }

    /// `NoSpace` if nothing more may be written.
    fn check_room(&self) -> Result<()> {
        let taken = self.measure();
        if taken > self.limits.disk_bytes {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("the chunk index takes {taken} bytes on disk"),
            ));
        }
        check_free(&self.root, &self.limits)
    }

    /// Bytes on disk, now.
    fn measure(&self) -> u64 {
        let bytes = bytes_below(&self.root);
        self.disk_bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a result on; after damage the index is not believed any more, by nobody.
    fn checked<T>(&self, result: Result<T>) -> Result<T> {
        let Err(error) = &result else { return result };
        let health = match error.kind() {
            ErrorKind::Damaged => Health::Damaged,
            _ if self.database.has_stopped() => Health::Stopped,
            _ => Health::Failed,
        };
        let before = self.health.fetch_max(health as u8, Ordering::AcqRel);
        if health == Health::Damaged && before < health as u8 {
            let _ = std::fs::remove_file(self.root.join("format"));
        }
        result
    }
}

impl Drop for ChunkIndex {
    fn drop(&mut self) {
        if self.health() == Health::Well {
            // What is lost here is found changed again.
            let _ = self.write_back();
        }
    }
}

/// How a chunk is looked up: by its length and the first bytes of its hash, so that a chunk which is said to be longer than the one with its
/// hash is another one.
pub fn key(chunk: &ChunkDescriptor) -> ChunkKey {
    let mut key = [0; 16];
    let (hash, len) = key.split_at_mut(12);
    hash.copy_from_slice(&chunk.hash[..12]);
    len.copy_from_slice(&chunk.len.to_be_bytes());
    key
}

/// How long the chunk is that is looked up like this, in bytes.
pub fn len(key: &ChunkKey) -> u32 {
    let [.., a, b, c, d] = *key;
    u32::from_be_bytes([a, b, c, d])
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed("make", path, error))
}

/// `NoSpace` if less is free on the disk of `root` than the index leaves to others.
fn check_free(root: &Path, limits: &IndexLimits) -> Result<()> {
    let stat = rustix::fs::statvfs(root);
    let stat = stat.map_err(|error| failed("look at the disk of", root, error.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < limits.free_bytes {
        let what = format!(
            "{free} bytes are free on the disk of the chunk index, which leaves {} to others",
            limits.free_bytes
        );
        return Err(Error::new(ErrorKind::NoSpace, what));
    }
    Ok(())
}

/// The lock of the index in `root`.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let file = lock_file::open(&path).map_err(|error| failed("open", &path, error))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Whoever had it may be about to end.
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_INTERVAL),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path, error)),
        }
    }
    Err(Error::new(ErrorKind::Refused, format!("another process uses the chunk index in {root:?}"))
        .with_retryable(true))
}

/// Bytes that the files below `directory` take on disk.
fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.blocks().saturating_mul(512),
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// Removes a file, or a directory with all that is in it.
fn remove(path: &Path) -> Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("cannot {what} {path:?}"), error)
}
