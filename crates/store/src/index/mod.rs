//! The chunk index: where on this machine a chunk lies, by its hash (design decision 12, Y8-Y11).
//!
//! Everything in it is a hint. A file is looked at before an entry of it is given out, and all entries of a file that is another by now
//! go at once; who reads what an entry tells of must compare the bytes with the chunk's hash. The index may be thrown away at any
//! moment, and is, whenever something in it cannot be read: what it knew is cut again. `docs/format/index.md` has the layout.

mod cut;
mod database;
mod files;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dray_core::chunker::Profile;
use dray_core::limits::{
    INDEX_CHUNKS_MAX, INDEX_FILE_BYTES_MIN, INDEX_FILES_MAX, INDEX_PATHS_BYTES_MAX,
    INDEX_PLACES_LOOKED_AT_MAX, INDEX_SOURCE_FILES_MAX, UPDATE_BYTES_MAX,
};
use dray_core::recipe::ChunkDescriptor;
use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Result};

use database::Database;
use files::{FileRecord, Files};

pub use cut::Cut;
pub use files::look;

/// Bytes of a chunk's hash by which it is looked up.
pub type ChunkKey = [u8; 16];

/// Files that are looked at for one question: to look for one that was renamed, its directory is read.
const FILES_LOOKED_AT_MAX: usize = 4 * INDEX_SOURCE_FILES_MAX;

/// How often the lock is tried, and how long after each other.
const LOCK_TRIES: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// What stands in `format`, beside what the database below it has of its own.
const FORMAT: &str = "drayman chunk index 1\n";

/// How much it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexLimits {
    /// Files; those that were taken in first leave first.
    pub files: usize,
    /// Bytes of their paths.
    pub path_bytes: usize,
    /// Chunks of all of them.
    pub chunks: u64,
}

impl Default for IndexLimits {
    /// As `docs/limits.md` has them.
    fn default() -> IndexLimits {
        IndexLimits { files: INDEX_FILES_MAX, path_bytes: INDEX_PATHS_BYTES_MAX, chunks: INDEX_CHUNKS_MAX }
    }
}

/// How much it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexFigures {
    /// Files.
    pub files: u64,
    /// Chunks of them.
    pub chunks: u64,
    /// Bytes on disk, as far as that is known without looking.
    pub disk_bytes: u64,
}

/// Where a chunk lies: a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// Which of [`Found::files`].
    pub file: usize,
    /// Its first byte there.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Absolute paths of files that were what they were when they were cut, a moment ago.
    pub files: Vec<PathBuf>,
    /// For each chunk that was asked for, in that order.
    pub places: Vec<Option<ChunkPlace>>,
}

/// The index of one data directory, open in one process at a time.
#[derive(Debug)]
pub struct ChunkIndex {
    root: PathBuf,
    limits: IndexLimits,
    files: Mutex<Files>,
    /// Something in it could not be read.
    is_broken: AtomicBool,
    database: Database,
    /// Given back after the database is closed.
    _lock: File,
}

impl ChunkIndex {
    /// Opens the index in the directory `root`, making it if it is not there; and why what was there was thrown away, if it was.
    /// `Refused` if another process has it open.
    pub fn open(root: &Path, limits: IndexLimits) -> Result<(ChunkIndex, Option<String>)> {
        make_directory(root)?;
        let lock = lock(root)?;
        let format = root.join("format");
        let finished = || std::fs::write(&format, FORMAT).map_err(|error| failed("write", &format, error));
        let reason = match std::fs::read_to_string(&format) {
            Ok(text) if text == FORMAT => {
                // A library that panics over damage may panic again as it cleans up, which is the end of the process. The next one
                // then begins anew.
                remove(&format)?;
                match Self::load(root) {
                    Ok((database, files)) => {
                        finished()?;
                        return Ok((Self::of(root, limits, files, database, lock), None));
                    }
                    Err(error) => Some(error.to_string()),
                }
            }
            Ok(_) => Some("it is of another version".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Begun and not finished, or found to be damaged while it was in use.
                root.join("data").exists().then(|| "it was not left whole".to_owned())
            }
            Err(error) => Some(format!("cannot read {format:?}: {error}")),
        };
        remove(&format)?;
        remove(&root.join("data"))?;
        let (database, files) = Self::load(root)?;
        finished()?;
        Ok((Self::of(root, limits, files, database, lock), reason))
    }

    fn load(root: &Path) -> Result<(Database, Files)> {
        let database = Database::open(&root.join("data"))?;
        let files = Files::load(&database)?;
        database.know_live(files.numbers(), files.next());
        Ok((database, files))
    }

    fn of(root: &Path, limits: IndexLimits, files: Files, database: Database, lock: File) -> ChunkIndex {
        let is_broken = AtomicBool::new(false);
        ChunkIndex {
            root: root.to_owned(),
            limits,
            files: Mutex::new(files),
            is_broken,
            database,
            _lock: lock,
        }
    }

    /// Whether something in it could not be read or written: then nothing in it is used any more, and the next [`ChunkIndex::open`]
    /// begins anew.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// How much it holds.
    pub fn figures(&self) -> IndexFigures {
        let (files, chunks) = self.files().counts();
        IndexFigures { files, chunks, disk_bytes: self.database.disk_bytes() }
    }

    /// Whether a file of this size is taken in.
    pub fn takes(size_bytes: u64) -> bool {
        (INDEX_FILE_BYTES_MIN..=UPDATE_BYTES_MAX).contains(&size_bytes)
    }

    /// Whether the file `path`, which is `now`, is in it as it is.
    pub fn has(&self, path: &Path, now: &FileIdentity) -> bool {
        let files = self.files();
        files.at(path).is_some_and(|(_, record)| record.identity == *now)
    }

    /// Begins to take in the file `path`, whose state is `identity`, and forgets what it was before. The entries count when
    /// [`Entering::finish`] has been called. `Unsupported` if it is too small, too large, or its path is too long.
    pub fn enter(&self, path: &Path, identity: FileIdentity, profile: Profile) -> Result<Entering<'_>> {
        let record = FileRecord::new(path, identity, profile)?;
        let chunks = identity.size_bytes / u64::from(profile.average_bytes());
        if !Self::takes(identity.size_bytes) || chunks > self.limits.chunks / 2 {
            return Err(Error::new(ErrorKind::Unsupported, format!("{path:?} is not for the chunk index")));
        }
        let number = {
            let mut files = self.files();
            if let Some((number, _)) = files.at(path) {
                self.forget(&mut files, number)?;
            }
            let number = files.reserve();
            // Before its first entry: no number is ever used twice, whatever is killed.
            self.checked(self.database.write_next(files.next()))?;
            self.database.begin(number);
            number
        };
        Ok(Entering { index: self, number, record: Some(record), batch: Vec::new() })
    }

    /// CACHE-CHECK (Y8): where the chunks lie, as far as that is in regular files below the directory `below` that are what they were when
    /// they were cut. All entries of a file that is not go. Where it has a chunk several times, as few files as may be are named.
    pub fn look_up(&self, keys: &[ChunkKey], below: &Path) -> Result<Found> {
        let mut found = Found::default();
        // What is known of a file in this call: its place in the answer, or that it is not to be used.
        let mut known: HashMap<u64, Option<usize>> = HashMap::new();
        for key in keys {
            // Nothing outside of the directory is touched or counts for anything.
            let is_inside =
                |number| self.files().get(number).is_some_and(|record| is_below(&record.path(), below));
            let places = self.checked(self.database.places(key, INDEX_PLACES_LOOKED_AT_MAX, is_inside))?;
            let used = places.iter().position(|place| matches!(known.get(&place.number), Some(Some(_))));
            let mut chosen = None;
            for place in used.map(|at| &places[at]).into_iter().chain(&places) {
                let file = match known.get(&place.number) {
                    Some(file) => *file,
                    None if known.len() >= FILES_LOOKED_AT_MAX
                        || found.files.len() >= INDEX_SOURCE_FILES_MAX =>
                    {
                        None
                    }
                    None => {
                        let path = self.current(place.number)?.filter(|path| is_below(path, below));
                        // Two numbers lead to one file that was renamed, and taken in under its new name, too.
                        let file = path.map(|path| {
                            let known = found.files.iter().position(|known| *known == path);
                            known.unwrap_or_else(|| {
                                found.files.push(path);
                                found.files.len() - 1
                            })
                        });
                        known.insert(place.number, file);
                        file
                    }
                };
                if let Some(file) = file {
                    chosen = Some(ChunkPlace { file, offset: place.offset, len: place.len });
                    break;
                }
            }
            found.places.push(chosen);
        }
        Ok(found)
    }

    /// Whether there is reason to hope: it has a file below the directory `below` that is as it was, and is of the same name as an
    /// object of `size_bytes`, or at least half and at most twice as large (Y15 has more exact weights).
    pub fn has_similar(&self, below: &Path, size_bytes: u64, name: Option<&[u8]>) -> Result<bool> {
        let similar = self.files().similar(below, size_bytes, name);
        for number in similar.into_iter().take(FILES_LOOKED_AT_MAX) {
            if self.current(number)?.is_some_and(|path| is_below(&path, below)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// STAT (Y11): looks at what is in the open directory `directory`, called `path`, and finds files again that were renamed or moved
    /// there.
    pub fn meet(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<()> {
        for (name, identity) in files::listed(directory, |dev, ino| self.files().is_inode_known(dev, ino)) {
            self.moved(&path.join(name), identity)?;
        }
        Ok(())
    }

    /// Forgets what was at `path`.
    pub fn forget_path(&self, path: &Path) -> Result<()> {
        let mut files = self.files();
        match files.at(path) {
            Some((number, _)) => self.forget(&mut files, number),
            None => Ok(()),
        }
    }

    /// Gives back the room of what was forgotten, if that is much. May take long.
    pub fn tidy(&self) -> Result<()> {
        let live = self.files().counts().1;
        if self.database.has_much_dead(live) { self.checked(self.database.compact()) } else { Ok(()) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the file of that number is, if it is what it was; otherwise it is looked for under another name in the same directory,
    /// and forgotten.
    fn current(&self, number: u64) -> Result<Option<PathBuf>> {
        let Some(record) = self.files().get(number).cloned() else { return Ok(None) };
        let path = record.path();
        if look(&path).is_some_and(|now| record.is_same(&now)) {
            return Ok(Some(path));
        }
        let now = files::renamed(&record);
        let mut files = self.files();
        if files.get(number) != Some(&record) {
            // Somebody else was faster.
            return Ok(None);
        }
        match now {
            // It was taken in under its new name already.
            Some((path, _)) if files.at(&path).is_some_and(|(other, _)| other != number) => {
                self.forget(&mut files, number).map(|()| Some(path))
            }
            Some((path, identity)) => {
                self.rewrite(&mut files, number, record.at(&path, identity))?;
                Ok(Some(path))
            }
            None => self.forget(&mut files, number).map(|()| None),
        }
    }

    /// The file `identity` is at `path` now.
    fn moved(&self, path: &Path, identity: FileIdentity) -> Result<()> {
        let mut files = self.files();
        let Some((number, record)) = files.of_inode(identity.dev, identity.ino) else { return Ok(()) };
        if !record.is_same(&identity) || record.path() == path || FileRecord::is_too_long(path) {
            return Ok(());
        }
        let record = record.clone().at(path, identity);
        if let Some((other, _)) = files.at(path).filter(|(other, _)| *other != number) {
            self.forget(&mut files, other)?;
        }
        self.rewrite(&mut files, number, record)
    }

    fn rewrite(&self, files: &mut Files, number: u64, record: FileRecord) -> Result<()> {
        self.checked(self.database.write_file(number, &record))?;
        files.insert(number, record);
        Ok(())
    }

    fn forget(&self, files: &mut Files, number: u64) -> Result<()> {
        if files.remove(number).is_none() {
            return Ok(());
        }
        self.database.end(number);
        self.checked(self.database.remove_file(number))
    }

    /// Passes a result on; after a failure the index is not believed any more, by nobody.
    fn checked<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() && !self.is_broken.swap(true, Ordering::AcqRel) {
            let _ = std::fs::remove_file(self.root.join("format"));
        }
        result
    }
}

/// A file that is being taken in.
#[derive(Debug)]
pub struct Entering<'a> {
    index: &'a ChunkIndex,
    number: u64,
    /// Until it is finished.
    record: Option<FileRecord>,
    batch: Vec<(ChunkKey, u64, u32)>,
}

impl Entering<'_> {
    /// Chunks that are written together.
    const BATCH: usize = 1024;

    /// The chunk with this hash is at `offset`.
    pub fn add(&mut self, chunk: &ChunkDescriptor, offset: u64) -> Result<()> {
        self.batch.push((key(chunk), offset, chunk.len));
        if let Some(record) = &mut self.record {
            record.chunks += 1;
        }
        if self.batch.len() >= Self::BATCH { self.flush() } else { Ok(()) }
    }

    /// All chunks were told: from now on they are found. The oldest files leave if there are too many.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let index = self.index;
        let mut files = index.files();
        let number = self.number;
        if let Some(record) = self.record.take() {
            index.rewrite(&mut files, number, record)?;
        }
        while files.is_beyond(&index.limits)
            && let Some(oldest) = files.oldest().filter(|oldest| *oldest != number)
        {
            index.forget(&mut files, oldest)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.index.checked(self.index.database.write_chunks(self.number, &self.batch))?;
        self.batch.clear();
        Ok(())
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if self.record.is_some() {
            self.index.database.end(self.number);
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

/// Whether `path` is below `directory`, by their names.
fn is_below(path: &Path, directory: &Path) -> bool {
    path != directory && path.starts_with(directory)
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed("make", path, error))
}

/// The lock of the index in `root`.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| failed("open", &path, error))?;
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
