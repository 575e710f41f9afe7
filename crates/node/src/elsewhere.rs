//! Chunks of an object in other files of this user, found by the daemon's chunk index (Y8, design 16).
//!
//! The index gives hints. Files are opened below the directory that is searched and nowhere else, whatever a hint says, and each chunk
//! is read and compared with its hash before it counts.

mod door;
mod question;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_client::types::{IndexFile, IndexQuestion};
use dray_core::chunker::Profile;
use dray_core::limits::{INDEX_CHUNKS_ASKED_MAX, INDEX_SOURCE_FILES_MAX, TREE_DEPTH_MAX};
use dray_core::recipe::ChunkDescriptor;
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkIndex, ChunkKey, key};
use dray_store::local::Within;
use rustix::fs::{Mode, OFlags};

use crate::{Node, lock};
use door::Door;
pub(crate) use door::{Hints, Index};
pub(crate) use question::Question;
use question::path_of;

/// Smaller objects are fetched before the question is answered.
const FROM_BYTES: u64 = 4 << 20;
/// How long the daemon may take to say whether there is hope: nothing is fetched before.
const HOPE_PATIENCE: Duration = Duration::from_millis(200);
/// How long it may take to look chunks up. Meanwhile other bytes come.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the network may have nothing to do before something was found: then it fetches what is looked for meanwhile.
const IDLE_PATIENCE: Duration = Duration::from_millis(500);
/// And so much longer for what was found. A network that carries more is better used than spared.
const SPARED_BYTES_PER_S: u64 = 128 << 20;
/// How long a search may take, and so much longer for what was found: where a disk gives less, it is over.
const SEARCH_PATIENCE: Duration = Duration::from_secs(10);
const SEARCH_BYTES_PER_S: u64 = 1 << 20;
/// Chunks of which none was found with which the search is vain, unless that is less than an eighth of the object.
const VAIN_CHUNKS: u64 = 1024;

/// Who found a chunk, and knows its file by a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finder {
    /// The chunk index.
    Index,
    /// The search of the disk.
    Disk,
    /// The search of the disk, in a file that an index named: it reads it, and it is told to nobody to whom the index is not.
    Cached,
}

/// Where a chunk was found: in which file, and its first byte there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    pub(crate) by: Finder,
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

/// Other files below one directory.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    door: Door,
    directory: OwnedFd,
    within: Within,
    files: Mutex<Files>,
    /// Chunks that were looked for, and those that were found.
    asked: AtomicU64,
    found: AtomicU64,
    /// Of the object, with which a search in vain is over.
    vain_from: u64,
    spent: Mutex<Spent>,
    patience: Patience,
}

/// How long a search may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the index to look chunks up.
    pub(crate) answer: Duration,
    /// During which the network may have nothing to do, before something was found.
    pub(crate) idle: Duration,
    /// In all, before something was found.
    pub(crate) all: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { answer: ANSWER_PATIENCE, idle: IDLE_PATIENCE, all: SEARCH_PATIENCE }
    }
}

/// What a search took and gave.
#[derive(Debug, Default)]
struct Spent {
    time: Duration,
    found_bytes: u64,
}

/// What there is to hope for.
#[derive(Debug)]
pub(crate) enum Prospect {
    /// Nothing: there is no index, or nothing alike in it.
    None,
    /// Whoever has the index did not answer.
    Mute,
    /// Files with parts of the object, perhaps.
    Some(Box<Elsewhere>),
}

impl Prospect {
    /// The files, if there are any.
    pub(crate) fn files(self) -> Option<Elsewhere> {
        match self {
            Prospect::Some(files) => Some(*files),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Files {
    /// And the change time that each had when it was opened.
    opened: Vec<Opened>,
    /// By path from the directory; `None` for what cannot be used.
    known: HashMap<PathBuf, Option<u32>>,
    /// The index does not answer any more.
    is_over: bool,
}

type Opened = (Arc<File>, ChangeTime);

/// Seconds and nanoseconds.
type ChangeTime = (i64, i64);

fn changed_at(metadata: &std::fs::Metadata) -> ChangeTime {
    (metadata.ctime(), metadata.ctime_nsec())
}

impl Node {
    /// Where chunks of an object of `size_bytes`, called `name`, may be found below `directory`. Nothing of it tells anybody but this user's own
    /// daemon, and it takes [`HOPE_PATIENCE`] at the longest.
    pub(crate) fn elsewhere(
        &self,
        directory: BorrowedFd<'_>,
        size_bytes: u64,
        name: Option<&[u8]>,
    ) -> Prospect {
        if !self.config.index || size_bytes < FROM_BYTES || !ChunkIndex::takes(size_bytes) {
            return Prospect::None;
        }
        let deadline = Instant::now() + HOPE_PATIENCE;
        let door = match self.index_door() {
            Ok(Some(door)) => door,
            Ok(None) => return Prospect::None,
            Err(_) => return Prospect::Mute,
        };
        let name_hex = name.map(hex);
        let question = IndexQuestion { size_bytes: Some(size_bytes), name_hex, ..IndexQuestion::default() };
        let left = deadline.saturating_duration_since(Instant::now());
        match door.ask(directory, question, left, &|| false) {
            Ok(answer) if answer.hopeful => {
                let opened = Elsewhere::open(door, directory, size_bytes);
                opened.map_or(Prospect::None, |found| Prospect::Some(Box::new(found)))
            }
            Ok(_) => Prospect::None,
            Err(_) => Prospect::Mute,
        }
    }

    /// The way to whoever has the index, if there is one. A daemon that is not there is not started by this, as its socket may do.
    fn index_door(&self) -> Result<Option<Door>> {
        if matches!(self.index, Index::Daemon) && !crate::daemon::runs_for(&self.config.paths.data_dir) {
            return Ok(None);
        }
        self.index.door(HOPE_PATIENCE)
    }

    /// Tells whoever has the index that there is something new, in `directory`. Best effort: it would be seen some time later.
    pub(crate) fn tell_index(&self, directory: BorrowedFd<'_>, size_bytes: u64) {
        if self.config.index
            && size_bytes >= FROM_BYTES
            && let Ok(Some(door @ Door::Daemon(_))) = self.index_door()
        {
            let _ = door.ask(directory, IndexQuestion::default(), HOPE_PATIENCE, &|| false);
        }
    }
}

impl Elsewhere {
    fn open(door: Door, directory: BorrowedFd<'_>, size_bytes: u64) -> Option<Elsewhere> {
        let directory = directory.try_clone_to_owned().ok()?;
        let within = Within::new(directory.try_clone().ok()?).ok()?;
        let average_bytes = Profile::for_size(size_bytes)?.average_bytes();
        Some(Elsewhere {
            door,
            directory,
            within,
            files: Mutex::default(),
            asked: AtomicU64::new(0),
            found: AtomicU64::new(0),
            vain_from: VAIN_CHUNKS.max(size_bytes / u64::from(average_bytes) / 8),
            spent: Mutex::default(),
            patience: Patience::default(),
        })
    }

    /// Looks for `chunks`: where those are that were found, each of them read and compared. Never fails: what is not found is fetched.
    /// Returns soon after `is_over` says so.
    pub(crate) fn find(
        &self,
        chunks: &[ChunkDescriptor],
        is_over: &dyn Fn() -> bool,
    ) -> HashMap<ChunkKey, Spot> {
        let mut spots = HashMap::new();
        for chunks in chunks.chunks(INDEX_CHUNKS_ASKED_MAX) {
            if self.is_over() || is_over() {
                break;
            }
            let begun = Instant::now();
            self.find_some(chunks, &|| is_over() || self.is_slow(begun), &mut spots);
            // A disk that gives no more than that is not worth being asked.
            let is_slow = self.is_slow(begun);
            lock(&self.files).is_over |= is_slow;
            lock(&self.spent).time += begun.elapsed();
        }
        spots
    }

    fn find_some(
        &self,
        chunks: &[ChunkDescriptor],
        is_over: &dyn Fn() -> bool,
        spots: &mut HashMap<ChunkKey, Spot>,
    ) {
        let keys: Vec<ChunkKey> = chunks.iter().map(key).collect();
        for (at, file, offset) in self.look_up(&keys, is_over) {
            if is_over() {
                return;
            }
            let Some(chunk) = chunks.get(at) else { continue };
            let spot = Spot { by: Finder::Index, file, offset };
            if self.is_there(chunk, spot) && spots.insert(key(chunk), spot).is_none() {
                self.found(u64::from(chunk.len));
            }
        }
    }

    /// CACHE-CHECK (Y8): where `keys` lie, as the index says: which of them, in which file, and at which byte. There are
    /// [`INDEX_CHUNKS_ASKED_MAX`] of them at the most, and nothing of a file is read. Where the index does not answer, it is not asked again.
    pub(crate) fn look_up(&self, keys: &[ChunkKey], is_over: &dyn Fn() -> bool) -> Vec<(usize, u32, u64)> {
        if keys.is_empty() || self.is_over() {
            return Vec::new();
        }
        let named = keys.iter().map(|key| hex(key));
        let question = IndexQuestion { chunks: named.collect(), ..IndexQuestion::default() };
        self.asked.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let Ok(answer) = self.door.ask(self.directory.as_fd(), question, self.patience.answer, is_over)
        else {
            lock(&self.files).is_over = true;
            return Vec::new();
        };
        let files: Vec<Option<u32>> = answer.files.iter().map(|file| self.open_file(file)).collect();
        let place = |(chunk, file, offset, _): (u32, u32, u64, u32)| {
            let file = files.get(file as usize).copied().flatten()?;
            Some((chunk as usize, file, offset))
        };
        answer.found.into_iter().filter_map(place).collect()
    }

    /// A chunk that the index was asked for was found.
    pub(crate) fn found(&self, bytes: u64) {
        self.found.fetch_add(1, Ordering::Relaxed);
        lock(&self.spent).found_bytes += bytes;
    }

    /// A file that an answer named, and when it was changed last as it was opened.
    pub(crate) fn opened(&self, number: u32) -> Option<(Arc<File>, (i64, i64))> {
        lock(&self.files).opened.get(number as usize).cloned()
    }

    /// Whether the search, at it again since `begun`, takes longer than it is worth.
    fn is_slow(&self, begun: Instant) -> bool {
        let spent = lock(&self.spent);
        let worth = self.patience.all.saturating_add(time_of(spent.found_bytes, SEARCH_BYTES_PER_S));
        spent.time + begun.elapsed() > worth
    }

    /// How long the network may have nothing to do for this search, in all: longer the more was found, by as much as a network that is
    /// worth sparing takes.
    pub(crate) fn idle_patience(&self) -> Duration {
        self.patience.idle.saturating_add(time_of(lock(&self.spent).found_bytes, SPARED_BYTES_PER_S))
    }

    /// The same with another patience.
    #[cfg(test)]
    pub(crate) fn with_patience(self, patience: Patience) -> Elsewhere {
        Elsewhere { patience, ..self }
    }

    /// Whether nothing is looked for any more.
    fn is_over(&self) -> bool {
        lock(&self.files).is_over
    }

    /// Whether there is no hope left: nothing is looked for any more, or so much was and nothing found.
    pub(crate) fn is_vain(&self) -> bool {
        let is_found = self.found.load(Ordering::Relaxed) > 0;
        self.is_over() || !is_found && self.asked.load(Ordering::Relaxed) >= self.vain_from
    }

    /// Whether all that was read is what it was, as far as file systems tell.
    pub(crate) fn is_unchanged(&self) -> bool {
        let files = lock(&self.files);
        let is_as_it_was =
            |(file, before): &Opened| file.metadata().is_ok_and(|metadata| changed_at(&metadata) == *before);
        files.opened.iter().all(is_as_it_was)
    }

    /// Reads bytes that were found.
    pub(crate) fn read_at(&self, file: u32, offset: u64, out: &mut [u8]) -> Result<()> {
        let file = lock(&self.files).opened.get(file as usize).map(|(file, _)| file.clone());
        let file = file.ok_or_else(|| Error::new(ErrorKind::Internal, "no such file was found"))?;
        file.read_exact_at(out, offset)
            .map_err(|error| Error::io("read a file with chunks of the object", error))
    }

    /// CACHE-READ (Y8): whether the chunk lies there.
    fn is_there(&self, chunk: &ChunkDescriptor, spot: Spot) -> bool {
        // Lengths of chunks come from a recipe that was checked: 16 MiB at most.
        let mut bytes = vec![0; chunk.len as usize];
        self.read_at(spot.file, spot.offset, &mut bytes).is_ok() && ChunkDescriptor::of(&bytes) == *chunk
    }

    /// Opens a file of an answer, unless it is open; `None` if it is none that can be used.
    fn open_file(&self, file: &IndexFile) -> Option<u32> {
        self.open_by(path_of(file)?, &|path| self.open_regular(path))
    }

    /// The same by `open`, which may hang: nobody else waits for it.
    fn open_by(&self, path: PathBuf, open: &dyn Fn(&Path) -> Option<Opened>) -> Option<u32> {
        {
            let files = lock(&self.files);
            if let Some(known) = files.known.get(&path) {
                return *known;
            }
            if files.known.len() >= INDEX_SOURCE_FILES_MAX {
                return None;
            }
        }
        let opened = open(&path);
        let mut files = lock(&self.files);
        if let Some(known) = files.known.get(&path) {
            // Somebody else was faster.
            return *known;
        }
        let number = opened.map(|opened| {
            files.opened.push(opened);
            files.opened.len() as u32 - 1
        });
        files.known.insert(path, number);
        number
    }

    fn open_regular(&self, path: &Path) -> Option<Opened> {
        // Looked at before it is opened: a device or a fifo may act on being opened.
        let seen = self.within.open_straight(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let looked_at = rustix::fs::fstat(seen).ok()?;
        if !rustix::fs::FileType::from_raw_mode(looked_at.st_mode).is_file() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::from(self.within.open_straight(path, flags).ok()?);
        let metadata = opened.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((Arc::new(opened), changed_at(&metadata)))
    }
}

/// The directory up to which may be searched for a peer that this user's account let in (design 16): the farthest above `directory` that is
/// not above `home` or on another file system, and may be read.
pub(crate) fn up_to_home(directory: BorrowedFd<'_>, home: Option<&Path>) -> Option<OwnedFd> {
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let home = home.and_then(|home| rustix::fs::stat(home).ok()).map(identity);
    let mut at = directory.try_clone_to_owned().ok()?;
    for _ in 0..TREE_DEPTH_MAX {
        let here = identity(rustix::fs::fstat(&at).ok()?);
        if Some(here) == home {
            break;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(above) = rustix::fs::openat(&at, "..", flags, Mode::empty()) else { break };
        match identity(rustix::fs::fstat(&above).ok()?) {
            // Above the root is the root.
            there if there.0 != here.0 || there == here => break,
            _ => at = above,
        }
    }
    Some(at)
}

/// How long `bytes` take at so many a second.
fn time_of(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64)
}
