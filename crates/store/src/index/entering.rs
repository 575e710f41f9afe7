//! Taking a file in: its chunks first, then its record, so that one that was not finished is not there.

use std::path::Path;
use std::sync::PoisonError;

use dray_core::chunker::Profile;
use dray_core::recipe::ChunkDescriptor;
use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Result};

use super::files::{FileRecord, age_of};
use super::{ChunkIndex, ChunkKey, key};

/// A file that is being taken in.
#[derive(Debug)]
pub struct Entering<'a> {
    index: &'a ChunkIndex,
    number: u64,
    /// Until it is finished.
    record: Option<FileRecord>,
    batch: Vec<(ChunkKey, u64, u32)>,
}

impl ChunkIndex {
    /// Whether there is room for the file `path`, which is `now`. What was as it is for longer leaves for it; where that is not enough it
    /// stays out, so that no two files drive each other out in turn.
    pub fn has_room(&self, path: &Path, now: &FileIdentity, profile: Profile) -> bool {
        let chunks = now.size_bytes / u64::from(profile.average_bytes());
        Self::takes(now.size_bytes)
            && chunks <= self.limits.chunks / 2
            && self.files().has_room(&self.limits, age_of(now), path, chunks)
    }

    /// Whether it is so without anything leaving.
    pub fn has_free_room(&self, path: &Path, now: &FileIdentity, profile: Profile) -> bool {
        let chunks = now.size_bytes / u64::from(profile.average_bytes());
        self.files().has_room(&self.limits, i64::MIN, path, chunks)
    }

    /// Begins to take in the file `path`, whose state is `identity`, and forgets what it was before. The entries count when
    /// [`Entering::finish`] has been called. `Unsupported` if it is too small, too large, its path too long, or there is no room for
    /// it; `NoSpace` if the disk has none.
    pub fn enter(&self, path: &Path, identity: FileIdentity, profile: Profile) -> Result<Entering<'_>> {
        let record = FileRecord::new(path, identity, profile)?;
        if !self.has_room(path, &identity, profile) {
            return Err(Error::new(ErrorKind::Unsupported, format!("{path:?} is not for the chunk index")));
        }
        self.check_room()?;
        {
            let mut files = self.files();
            if let Some(number) = files.at(path).map(|(number, _)| number) {
                files.remove(number);
            }
        }
        self.write_back()?;
        Ok(Entering { index: self, number: self.reserve()?, record: Some(record), batch: Vec::new() })
    }

    /// A number that nobody had and nobody will have, whatever is killed.
    fn reserve(&self) -> Result<u64> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, next) = {
            let mut files = self.files();
            (files.reserve(), files.next())
        };
        // Before its first entry.
        self.checked(self.database.write_next(next))?;
        self.database.begin(number);
        Ok(number)
    }
}

impl Entering<'_> {
    /// Chunks that are written together.
    const BATCH: usize = 1024;

    /// The chunk with this hash is at `offset`. Writes once in a while: `NoSpace` if the disk has no room.
    pub fn add(&mut self, chunk: &ChunkDescriptor, offset: u64) -> Result<()> {
        self.batch.push((key(chunk), offset, chunk.len));
        if let Some(record) = &mut self.record {
            record.chunks += 1;
        }
        if self.batch.len() >= Self::BATCH {
            self.index.check_room()?;
            self.flush()?;
        }
        Ok(())
    }

    /// All chunks were told: from now on they are found. What was as it is for longer leaves if there are too many; if that is not enough,
    /// the file is remembered as one for which there is no room.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let Some(mut record) = self.record.take() else { return Ok(()) };
        let (index, age) = (self.index, age_of(&record.identity));
        {
            let mut files = index.files();
            let chunks = record.chunks;
            files.insert(self.number, record.clone());
            while files.is_beyond(&index.limits)
                && let Some(oldest) = files.oldest(age)
            {
                files.remove(oldest);
            }
            if files.is_beyond(&index.limits) && chunks > 0 {
                record.chunks = 0;
                files.insert(self.number, record);
            }
            if files.is_beyond(&index.limits) {
                files.remove(self.number);
            }
        }
        index.write_back()
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
