//! Chunks of an object in other files of this user, found by the daemon's chunk index (Y8, design 16).
//!
//! The index gives hints. Files are opened below the directory that is searched and nowhere else, whatever a hint says, and each chunk
//! is read and compared with its hash before it counts.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dray_client::Client;
use dray_client::types::{IndexAnswer, IndexFile, IndexQuestion};
use dray_core::limits::{INDEX_CHUNKS_ASKED_MAX, INDEX_SOURCE_FILES_MAX, TREE_DEPTH_MAX};
use dray_core::recipe::ChunkDescriptor;
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkIndex, ChunkKey, key};
use dray_store::local::Within;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::daemon::given_name;
use crate::{Node, from_hex, lock};

/// Smaller objects are fetched before the question is answered.
const FROM_BYTES: u64 = 4 << 20;
/// How long the daemon may take to say whether there is hope: nothing is fetched before.
const HOPE_PATIENCE: Duration = Duration::from_millis(200);
/// How long it may take to look chunks up. Meanwhile other bytes come.
const PATIENCE: Duration = Duration::from_secs(5);
/// Chunks of which none was found with which the search is vain, unless that is less than an eighth of the object.
const VAIN_CHUNKS: u64 = 1024;

/// Whoever has the index.
#[derive(Clone, Debug, Default)]
pub(crate) enum Index {
    /// The user's daemon, if one runs.
    #[default]
    Daemon,
    /// This process.
    Here(Arc<dyn Hints>),
}

/// Answers questions to the chunk index.
pub(crate) trait Hints: Send + Sync + std::fmt::Debug {
    /// The answer to `question` about what is below `directory`; its descriptor does not count.
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer>;
}

/// Where a chunk was found: in which file, and its first byte there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
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
}

#[derive(Debug)]
enum Door {
    Daemon(Client),
    Here(Arc<dyn Hints>),
}

#[derive(Debug, Default)]
struct Files {
    /// And the change time that each had when it was opened.
    opened: Vec<(Arc<File>, ChangeTime)>,
    /// By path from the directory; `None` for what cannot be used.
    known: HashMap<PathBuf, Option<u32>>,
    /// The index does not answer any more.
    is_over: bool,
}

/// Seconds and nanoseconds.
type ChangeTime = (i64, i64);

fn changed_at(metadata: &std::fs::Metadata) -> ChangeTime {
    (metadata.ctime(), metadata.ctime_nsec())
}

impl Node {
    /// Where chunks of an object of `size_bytes`, called `name`, may be found below `directory`; `None` if there is no index, or no hope.
    /// Nothing of it tells anybody but this user's own daemon.
    pub(crate) fn elsewhere(
        &self,
        directory: BorrowedFd<'_>,
        size_bytes: u64,
        name: Option<&[u8]>,
    ) -> Option<Elsewhere> {
        if !self.config.index || size_bytes < FROM_BYTES || !ChunkIndex::takes(size_bytes) {
            return None;
        }
        let door = self.door()?;
        let name_hex = name.map(hex);
        let question = IndexQuestion { size_bytes: Some(size_bytes), name_hex, ..IndexQuestion::default() };
        door.ask(directory, question, HOPE_PATIENCE).ok().filter(|answer| answer.hopeful)?;
        let directory = directory.try_clone_to_owned().ok()?;
        let within = Within::new(directory.try_clone().ok()?).ok()?;
        let average_bytes = dray_core::chunker::Profile::for_size(size_bytes)?.average_bytes();
        Some(Elsewhere {
            door,
            directory,
            within,
            files: Mutex::default(),
            asked: AtomicU64::new(0),
            found: AtomicU64::new(0),
            vain_from: VAIN_CHUNKS.max(size_bytes / u64::from(average_bytes) / 8),
        })
    }
}

impl Node {
    /// Tells whoever has the index that there is something new, in `directory`. Best effort: it would be seen some time later.
    pub(crate) fn tell_index(&self, directory: BorrowedFd<'_>, size_bytes: u64) {
        if self.config.index
            && size_bytes >= FROM_BYTES
            && let Some(door @ Door::Daemon(_)) = self.door()
        {
            let _ = door.ask(directory, IndexQuestion::default(), HOPE_PATIENCE);
        }
    }

    fn door(&self) -> Option<Door> {
        match &self.index {
            Index::Here(hints) => Some(Door::Here(hints.clone())),
            Index::Daemon => Client::connect().ok().flatten().map(Door::Daemon),
        }
    }
}

impl Door {
    fn ask(
        &self,
        directory: BorrowedFd<'_>,
        question: IndexQuestion,
        patience: Duration,
    ) -> Result<IndexAnswer> {
        match self {
            Door::Daemon(client) => client.ask_index(directory, question, patience),
            Door::Here(hints) => hints.ask(directory, &question),
        }
    }
}

impl Elsewhere {
    /// Looks for `chunks`: where those are that were found, each of them read and compared. Never fails: what is not found is fetched.
    pub(crate) fn find(&self, chunks: &[ChunkDescriptor]) -> HashMap<ChunkKey, Spot> {
        let mut spots = HashMap::new();
        for chunks in chunks.chunks(INDEX_CHUNKS_ASKED_MAX) {
            if lock(&self.files).is_over {
                break;
            }
            self.asked.fetch_add(chunks.len() as u64, Ordering::Relaxed);
            let named = chunks.iter().map(|chunk| hex(&key(chunk)));
            let question = IndexQuestion { chunks: named.collect(), ..IndexQuestion::default() };
            let Ok(answer) = self.door.ask(self.directory.as_fd(), question, PATIENCE) else {
                lock(&self.files).is_over = true;
                break;
            };
            let files: Vec<Option<u32>> = answer.files.iter().map(|file| self.open(file)).collect();
            for (chunk, file, offset, _) in answer.found {
                let Some(chunk) = chunks.get(chunk as usize) else { continue };
                let Some(Some(file)) = files.get(file as usize) else { continue };
                let spot = Spot { file: *file, offset };
                if self.is_there(chunk, spot) {
                    spots.insert(key(chunk), spot);
                }
            }
        }
        self.found.fetch_add(spots.len() as u64, Ordering::Relaxed);
        spots
    }

    /// Whether so much was looked for and nothing found that there is no hope left.
    pub(crate) fn is_vain(&self) -> bool {
        self.found.load(Ordering::Relaxed) == 0 && self.asked.load(Ordering::Relaxed) >= self.vain_from
    }

    /// Whether all that was read is what it was, as far as file systems tell.
    pub(crate) fn is_unchanged(&self) -> bool {
        let files = lock(&self.files);
        let is_as_it_was = |(file, before): &(Arc<File>, ChangeTime)| {
            file.metadata().is_ok_and(|metadata| changed_at(&metadata) == *before)
        };
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
    fn open(&self, file: &IndexFile) -> Option<u32> {
        let path = path_of(file)?;
        let mut files = lock(&self.files);
        if let Some(known) = files.known.get(&path) {
            return *known;
        }
        if files.known.len() >= INDEX_SOURCE_FILES_MAX {
            return None;
        }
        let opened = self.open_regular(&path);
        let number = opened.map(|opened| {
            files.opened.push(opened);
            files.opened.len() as u32 - 1
        });
        files.known.insert(path, number);
        number
    }

    fn open_regular(&self, path: &Path) -> Option<(Arc<File>, ChangeTime)> {
        // Looked at before it is opened: a device or a fifo may act on being opened.
        let looked_at = rustix::fs::statat(&self.directory, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if !rustix::fs::FileType::from_raw_mode(looked_at.st_mode).is_file() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::from(self.within.open(path, flags).ok()?);
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

/// A question as whoever has the index understands it.
pub(crate) struct Question<'a> {
    directory: BorrowedFd<'a>,
    /// Where that is now.
    below: PathBuf,
    size_bytes: Option<u64>,
    name: Option<Vec<u8>>,
    keys: Vec<ChunkKey>,
}

impl Question<'_> {
    /// `Usage` if it is malformed.
    pub(crate) fn of<'a>(directory: BorrowedFd<'a>, question: &IndexQuestion) -> Result<Question<'a>> {
        if question.chunks.len() > INDEX_CHUNKS_ASKED_MAX {
            let what = format!("one question names at most {INDEX_CHUNKS_ASKED_MAX} chunks");
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let key_of = |text: &String| {
            let bytes = from_hex(text)?.try_into();
            bytes.map_err(|_| Error::new(ErrorKind::Usage, "a chunk is named by 32 hex digits"))
        };
        Ok(Question {
            directory,
            below: path_of_directory(directory)?,
            size_bytes: question.size_bytes,
            name: given_name(question.name.as_deref(), question.name_hex.as_deref())?,
            keys: question.chunks.iter().map(key_of).collect::<Result<_>>()?,
        })
    }

    /// What `index` has to say.
    pub(crate) fn answer(&self, index: &ChunkIndex) -> Result<IndexAnswer> {
        let mut answer = IndexAnswer::default();
        if let Some(size_bytes) = self.size_bytes {
            index.meet(self.directory, &self.below)?;
            answer.hopeful = index.has_similar(&self.below, size_bytes, self.name.as_deref())?;
        }
        let found = index.look_up(&self.keys, &self.below)?;
        let told = |path: &PathBuf| path.strip_prefix(&self.below).map(told).unwrap_or_default();
        answer.files = found.files.iter().map(told).collect();
        // There are at most INDEX_CHUNKS_ASKED_MAX of each.
        let places = (0..).zip(found.places).filter_map(|(chunk, place)| place.map(|place| (chunk, place)));
        answer.found = places.map(|(chunk, at)| (chunk, at.file as u32, at.offset, at.len)).collect();
        Ok(answer)
    }
}

/// Where an open directory is now.
fn path_of_directory(directory: BorrowedFd<'_>) -> Result<PathBuf> {
    let failed = |error: std::io::Error| Error::file("use the directory that is searched", error);
    let stat = rustix::fs::fstat(directory).map_err(|error| failed(error.into()))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Error::new(ErrorKind::Usage, "what is to be searched is no directory"));
    }
    std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(failed)
}

/// The path of a file in an answer, from the directory that was searched.
fn path_of(file: &IndexFile) -> Option<PathBuf> {
    match (&file.path, &file.path_hex) {
        (Some(path), None) => Some(PathBuf::from(path)),
        (None, Some(hex)) => Some(PathBuf::from(OsString::from_vec(from_hex(hex).ok()?))),
        _ => None,
    }
}

/// `path` in an answer.
fn told(path: &Path) -> IndexFile {
    match path.to_str() {
        Some(text) => IndexFile { path: Some(text.to_owned()), path_hex: None },
        None => IndexFile { path: None, path_hex: Some(hex(path.as_os_str().as_bytes())) },
    }
}

#[cfg(test)]
pub(crate) mod tests;
