//! What the index is asked, and what it answers, as they stand in the local API.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use dray_client::types::{IndexAnswer, IndexFile, IndexQuestion};
use dray_core::limits::INDEX_CHUNKS_ASKED_MAX;
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use dray_store::index::{ChunkIndex, ChunkKey, Scope};

use super::{ANSWER_PATIENCE, HOPE_PATIENCE};
use crate::daemon::given_name;
use crate::from_hex;

/// A question as whoever has the index understands it.
pub(crate) struct Question<'a> {
    directory: BorrowedFd<'a>,
    /// Where that is now, and on which device.
    below: PathBuf,
    dev: u64,
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
        let (below, dev) = path_of_directory(directory)?;
        Ok(Question {
            directory,
            below,
            dev,
            size_bytes: question.size_bytes,
            name: given_name(question.name.as_deref(), question.name_hex.as_deref())?,
            keys: question.chunks.iter().map(key_of).collect::<Result<_>>()?,
        })
    }

    /// Where is searched.
    pub(crate) fn below(&self) -> &Path {
        &self.below
    }

    /// Of what size the object is for which there may be hope, if it is asked for that.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        self.size_bytes
    }

    /// Whether it asks for chunks.
    pub(crate) fn is_for_chunks(&self) -> bool {
        !self.keys.is_empty()
    }

    /// What `index` has to say, as far as it has that in half the time that whoever asks waits: that is there in time. Hope is
    /// given for the size alone only if that `may_be_by_size`; and whether it was.
    pub(crate) fn answer(&self, index: &ChunkIndex, may_be_by_size: bool) -> Result<(IndexAnswer, bool)> {
        let begun = Instant::now();
        let scope = Scope { opened: self.directory, directory: &self.below, dev: self.dev };
        let (mut answer, mut is_by_size) = (IndexAnswer::default(), false);
        if !index.has_device(self.dev) {
            // Of a network, it may be, that does not answer.
            return Ok((answer, false));
        }
        if self.size_bytes.is_some() {
            index.meet(scope);
            let has_similar = |size_bytes: Option<u64>, name: Option<&[u8]>| {
                index.has_similar(scope, size_bytes, name, &|| begun.elapsed() >= HOPE_PATIENCE / 2)
            };
            answer.hopeful = has_similar(None, self.name.as_deref());
            is_by_size = !answer.hopeful && may_be_by_size && has_similar(self.size_bytes, None);
            answer.hopeful |= is_by_size;
        }
        let found = index.look_up(&self.keys, scope, &|| begun.elapsed() >= ANSWER_PATIENCE / 2)?;
        let told = |path: &PathBuf| path.strip_prefix(&self.below).map(told).unwrap_or_default();
        answer.files = found.files.iter().map(told).collect();
        // There are at most INDEX_CHUNKS_ASKED_MAX of each.
        let places = (0..).zip(found.places).filter_map(|(chunk, place)| place.map(|place| (chunk, place)));
        answer.found = places.map(|(chunk, at)| (chunk, at.file as u32, at.offset, at.len)).collect();
        Ok((answer, is_by_size))
    }
}

/// Where an open directory is now, and on which device.
fn path_of_directory(directory: BorrowedFd<'_>) -> Result<(PathBuf, u64)> {
    let failed = |error: std::io::Error| Error::file("use the directory that is searched", error);
    let stat = rustix::fs::fstat(directory).map_err(|error| failed(error.into()))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Error::new(ErrorKind::Usage, "what is to be searched is no directory"));
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(failed)?;
    Ok((path, stat.st_dev))
}

/// The path of a file in an answer, from the directory that was searched.
pub(super) fn path_of(file: &IndexFile) -> Option<PathBuf> {
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
