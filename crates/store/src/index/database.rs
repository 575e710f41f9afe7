//! What of the index lies on disk: an LSM tree (`fjall`) of two keyspaces, `chunks` and `files`, under a bound of memory.
//!
//! The library checks what it reads by checksums; what it makes of bytes that are wrong all the same may be a panic. So each call into it
//! is guarded, closing it included, and a panic is damage: the index is thrown away.

use std::collections::HashSet;
use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Result, cbor};
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use fjall::config::FilterPolicy;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode};

use super::ChunkKey;
use super::files::FileRecord;

/// Blocks of the database that are kept in memory.
const CACHE_BYTES: u64 = 4 << 20;
/// Bytes of entries that are not on disk in order yet; in memory they take several times as many. The library's own threshold is far
/// above: where it is passed, every write sends the library's workers a message, and a thousand of those waiting block them for ever.
const UNORDERED_BYTES: u64 = 1 << 20;
/// The least that the library allows; on disk.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Files that it holds open.
const FILES_OPEN: usize = 32;
/// How long the disk may take to follow: what is to be brought there may wait for a merge.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is looked whether it has.
const INTERVAL: Duration = Duration::from_millis(5);
/// Tables that wait to be merged with which it is waited for that. With twice as many each write waits within the library, also where the
/// merge has failed and never comes.
const UNMERGED_MAX: usize = 15;
/// Forgotten chunks that are not worth the work.
const DEAD_MIN: u64 = 1 << 18;
/// Bytes of the number of a file.
const NUMBER_BYTES: usize = 8;
/// Where the next number of a file stands in `files`; no number is as short.
const NEXT: &[u8] = b"next";

/// Where a chunk is said to lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// The open database.
pub(super) struct Database {
    live: Arc<Live>,
    /// Entries on disk after they were last written anew.
    surplus: AtomicU64,
    /// A thread of the library ended.
    has_stopped: AtomicBool,
    /// Until it is closed.
    open: Option<Open>,
}

struct Open {
    chunks: Keyspace,
    files: Keyspace,
    database: fjall::Database,
}

impl Drop for Database {
    fn drop(&mut self) {
        let open = self.open.take();
        // Whatever comes of it: nothing in it is used any more.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(open)));
    }
}

impl Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database in `path`, making it if it is not there.
    pub(super) fn open(path: &Path) -> Result<Database> {
        let live = Arc::new(Live::default());
        let dropping = live.clone();
        guarded("open", move || {
            let factory: Arc<dyn Factory> = Arc::new(Dropping(dropping));
            let database = fjall::Database::builder(path)
                .cache_size(CACHE_BYTES)
                .max_journaling_size(JOURNAL_BYTES)
                .max_cached_files(Some(FILES_OPEN))
                // Where there are several, the first of them does not wait while others merge, but spins.
                .worker_threads(1)
                .with_compaction_filter_factories(Arc::new(move |name| {
                    (name == "chunks").then(|| factory.clone())
                }))
                .open()?;
            let options = || {
                // Chunks are looked for by the first half of their key, for which the filters are of no use.
                KeyspaceCreateOptions::default().filter_policy(FilterPolicy::disabled())
            };
            let chunks = database.keyspace("chunks", options)?;
            let files = database.keyspace("files", options)?;
            Ok(Database {
                live,
                surplus: AtomicU64::new(0),
                has_stopped: AtomicBool::new(false),
                open: Some(Open { chunks, files, database }),
            })
        })
    }

    /// Every file, and the number that the next one gets.
    pub(super) fn load(&self) -> Result<(Vec<(u64, FileRecord)>, u64)> {
        let (mut records, mut next) = (Vec::new(), None);
        let pairs = self.with("read", |open| {
            open.files.iter().map(fjall::Guard::into_inner).collect::<fjall::Result<Vec<_>>>()
        })?;
        for (key, value) in pairs {
            if &*key == NEXT {
                next = Some(number(&value)?);
            } else {
                let record: FileRecord = cbor::decode(&value, "a file of the index")
                    .map_err(|error| damaged("a file in it is malformed").caused_by(error))?;
                record.check()?;
                records.push((number(&key)?, record));
            }
        }
        let after_last = records.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or(0);
        let next = next.unwrap_or(0);
        if next < after_last || next == u64::MAX {
            return Err(damaged("it counts wrong"));
        }
        Ok((records, next))
    }

    /// Entries of other files than these, with a number below `next`, are garbage.
    pub(super) fn know_live(&self, numbers: impl Iterator<Item = u64>, next: u64) {
        *self.live.numbers() = Some((numbers.collect(), next));
    }

    /// Entries with this number, which is the next one, are or will be of use.
    pub(super) fn begin(&self, number: u64) {
        if let Some((live, next)) = &mut *self.live.numbers() {
            live.insert(number);
            *next = (*next).max(number + 1);
        }
    }

    /// Entries with this number are of no use any more.
    pub(super) fn end(&self, number: u64) {
        if let Some((live, _)) = &mut *self.live.numbers() {
            live.remove(&number);
        }
    }

    pub(super) fn write_next(&self, next: u64) -> Result<()> {
        self.write(|open, batch| batch.insert(&open.files, NEXT, next.to_be_bytes()))
    }

    /// Writes the records of files, and removes those of files that have none: their chunks stay until the disk is tidied, and are
    /// found no more.
    pub(super) fn write_files(&self, changes: &[(u64, Option<FileRecord>)]) -> Result<()> {
        self.write(|open, batch| {
            for (number, record) in changes {
                match record {
                    Some(record) => batch.insert(&open.files, number.to_be_bytes(), cbor::encode(record)),
                    None => batch.remove(&open.files, number.to_be_bytes()),
                }
            }
        })
    }

    pub(super) fn write_chunks(&self, number: u64, chunks: &[(ChunkKey, u64, u32)]) -> Result<()> {
        self.write(|open, batch| {
            for (key, offset, len) in chunks {
                let key = [&key[..], &number.to_be_bytes()].concat();
                batch.insert(&open.chunks, key, [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat());
            }
        })
    }

    /// Where a chunk lies in files that `is_wanted`, the latest first; `most` places at most.
    pub(super) fn places(
        &self,
        key: &ChunkKey,
        most: usize,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<Vec<Place>> {
        let place = |(key, value): (fjall::UserKey, fjall::UserValue)| {
            let (offset, len) = value.split_at_checked(NUMBER_BYTES)?;
            Some(Place {
                number: number(key.get(size_of::<ChunkKey>()..)?).ok()?,
                offset: number(offset).ok()?,
                len: u32::from_be_bytes(len.try_into().ok()?),
            })
        };
        let found = self.with("read", |open| {
            let found = open.chunks.prefix(key).rev().map(|found| found.into_inner().map(place));
            let is_wanted = |found: &fjall::Result<Option<Place>>| match found {
                Ok(Some(place)) => is_wanted(place.number),
                _ => true,
            };
            found.filter(is_wanted).take(most).collect::<fjall::Result<Vec<_>>>()
        })?;
        found.into_iter().collect::<Option<_>>().ok_or_else(|| damaged("an entry is malformed"))
    }

    /// Whether the library still works: threads of it write, and may have failed.
    pub(super) fn check(&self) -> Result<()> {
        self.with("use", |open| open.database.persist(PersistMode::Buffer))
    }

    /// Whether much of what is on disk is of no use, where `live` chunks are.
    pub(super) fn has_much_dead(&self, live: u64) -> bool {
        self.dead(live) > DEAD_MIN.max(live / 2)
    }

    /// About how many entries on disk are of no use, where `live` chunks are.
    pub(super) fn dead(&self, live: u64) -> u64 {
        let entries = self.with("measure", |open| Ok(open.chunks.approximate_len() as u64)).unwrap_or(0);
        entries.saturating_sub(self.surplus.load(Ordering::Relaxed).saturating_add(live))
    }

    /// Writes all chunks anew, without those of files that are no more; of the others there are `live`.
    pub(super) fn compact(&self, live: u64) -> Result<()> {
        self.flush()?;
        self.with("tidy", |open| open.chunks.major_compact())?;
        let left = self.with("measure", |open| Ok(open.chunks.approximate_len() as u64))?;
        self.surplus.store(left.saturating_sub(live), Ordering::Relaxed);
        Ok(())
    }

    /// Brings what is in memory onto the disk in order. Waits for that, not without end.
    pub(super) fn flush(&self) -> Result<()> {
        let each = |open: &Open| [open.chunks.clone(), open.files.clone()];
        self.with("order", |open| {
            each(open).iter().try_for_each(|keyspace| keyspace.rotate_memtable().map(drop))
        })?;
        self.await_that("order", |open| {
            Ok(each(open).iter().all(|keyspace| keyspace.sealed_memtable_count() == 0))
        })
    }

    /// Waits until the library has done something, not without end.
    fn await_that(&self, what: &str, is_done: impl Fn(&Open) -> fjall::Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !self.with(what, &is_done)? {
            // Nobody follows any more where the library's thread has ended.
            self.check()?;
            if begun.elapsed() >= PATIENCE {
                return Err(Error::new(ErrorKind::TimedOut, "the disk of the chunk index does not follow"));
            }
            thread::sleep(INTERVAL);
        }
        Ok(())
    }

    /// Does `work` while all chunks are written anew, and that waits.
    #[cfg(test)]
    pub(super) fn while_merging(&self, work: impl FnOnce()) {
        thread::scope(|scope| {
            let held = self.live.numbers();
            scope.spawn(|| self.compact(0));
            work();
            drop(held);
        });
    }

    /// Entries of chunks on disk and in memory.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.with("count", |open| open.chunks.len()).unwrap()
    }

    /// Writes what `fill` says, all or nothing.
    fn write(&self, fill: impl FnOnce(&Open, &mut fjall::OwnedWriteBatch)) -> Result<()> {
        if self.with("measure", |open| Ok(open.database.write_buffer_size()))? > UNORDERED_BYTES {
            self.flush()?;
        }
        self.await_that("merge", |open| Ok(open.chunks.l0_table_count() <= UNMERGED_MAX))?;
        self.with("write", |open| {
            let mut batch = open.database.batch();
            fill(open, &mut batch);
            batch.commit()
        })
    }

    /// Calls the library.
    fn with<T>(&self, what: &str, work: impl FnOnce(&Open) -> fjall::Result<T>) -> Result<T> {
        let open = self.open.as_ref();
        guarded(what, || {
            let result = open.ok_or(fjall::Error::Locked).and_then(work);
            if matches!(result, Err(fjall::Error::Poisoned)) {
                self.has_stopped.store(true, Ordering::Release);
            }
            result
        })
    }

    /// Whether a call found that a thread of the library ended.
    pub(super) fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Acquire)
    }
}

/// The numbers of files that are, and the next one; `None` as long as that is not known.
#[derive(Debug, Default)]
struct Live(Mutex<Option<(HashSet<u64>, u64)>>);

impl Live {
    fn numbers(&self) -> MutexGuard<'_, Option<(HashSet<u64>, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves entries out of what is written anew whose file is no more.
struct Dropping(Arc<Live>);

impl Factory for Dropping {
    fn name(&self) -> &str {
        "files that are no more"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Dropper(self.0.numbers().clone()))
    }
}

struct Dropper(Option<(HashSet<u64>, u64)>);

impl CompactionFilter for Dropper {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let Some((live, next)) = &self.0 else { return Ok(Verdict::Keep) };
        let of = item.key().get(size_of::<ChunkKey>()..).and_then(|bytes| number(bytes).ok());
        let is_dead = of.is_some_and(|of| of < *next && !live.contains(&of));
        Ok(if is_dead { Verdict::Remove } else { Verdict::Keep })
    }
}

fn number(bytes: &[u8]) -> Result<u64> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged("a number is malformed"))
}

pub(super) fn damaged(how: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("the chunk index is damaged: {how}"))
}

/// Calls the library. What cannot be read is `Damaged`; what the disk refused, or somebody else has, is another error.
fn guarded<T>(what: &str, work: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
    let what = || format!("cannot {what} the chunk index");
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)))) => {
            use io::ErrorKind as Io;
            Err(match error.kind() {
                // A part of it is not there, or not whole.
                Io::NotFound | Io::UnexpectedEof | Io::InvalidData | Io::InvalidInput => {
                    Error::new(ErrorKind::Damaged, what()).caused_by(error)
                }
                _ => Error::file(what(), error),
            })
        }
        // A thread of its own failed, it may be of a full disk: whether it is damaged shows when that happens again.
        Ok(Err(error @ (fjall::Error::Poisoned | fjall::Error::Locked))) => {
            Err(Error::new(ErrorKind::Internal, what()).caused_by(error))
        }
        Ok(Err(error)) => Err(Error::new(ErrorKind::Damaged, what()).caused_by(error)),
        Err(_) => Err(Error::new(ErrorKind::Damaged, what()).caused_by("its library failed")),
    }
}
