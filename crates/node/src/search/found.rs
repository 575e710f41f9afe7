//! Chunks that a search came across, and the files that have them (Y8): in memory, for as long as the transfer lasts.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use dray_core::limits::{SEARCH_CHUNKS_MAX, SEARCH_FILES_OPEN_MAX};
use dray_store::index::ChunkKey;

use super::scope::{ChangeTime, Opened};

/// All of it. Nothing here touches a file: who locks it waits for no disk.
#[derive(Debug, Default)]
pub(super) struct Finds {
    /// File and offset of each chunk. Of a file that is not open any more, or is not what it was, the entry counts for nothing.
    chunks: HashMap<ChunkKey, (u32, u64)>,
    /// By number, which is used once.
    files: HashMap<u32, Held>,
    last_number: u32,
    /// Chunks that are wanted and were not found yet.
    wanted: HashSet<ChunkKey>,
    /// So many of those were found since.
    news: u64,
    #[cfg(test)]
    is_credulous: bool,
}

#[derive(Debug)]
struct Held {
    file: Arc<File>,
    changed: ChangeTime,
    /// Somebody was told of a chunk of it, or will be.
    is_used: bool,
    /// It is not what it was. What was told of it is read all the same, and proven.
    is_changed: bool,
}

/// A file to look at again before it is believed.
pub(super) type Check = (u32, Arc<File>, ChangeTime);

impl Finds {
    /// Takes a file that is about to be read, and lets go of another one that nobody needs; its number, and what is to be dropped where it may
    /// take time. `None` if there is no room: of all that are open, something is used.
    pub(super) fn take(&mut self, opened: &Opened) -> Option<(u32, Option<Arc<File>>)> {
        let mut dropped = None;
        if self.files.len() >= SEARCH_FILES_OPEN_MAX {
            let idle =
                self.files.iter().filter(|(_, held)| !held.is_used).map(|(number, _)| *number).min()?;
            dropped = self.files.remove(&idle).map(|held| held.file);
        }
        self.last_number = self.last_number.checked_add(1)?;
        let held =
            Held { file: opened.file.clone(), changed: opened.changed, is_used: false, is_changed: false };
        self.files.insert(self.last_number, held);
        Some((self.last_number, dropped))
    }

    /// Chunks of the file. False if there is no room for more of them. What stands in two files counts in the first that is open.
    pub(super) fn add(&mut self, number: u32, chunks: &[(ChunkKey, u64)]) -> bool {
        for (key, offset) in chunks {
            if let Some((known, _)) = self.chunks.get(key)
                && self.files.get(known).is_some_and(|held| !held.is_changed)
            {
                continue;
            }
            if self.chunks.len() >= SEARCH_CHUNKS_MAX && !self.make_room() {
                return false;
            }
            self.chunks.insert(*key, (number, *offset));
            if self.wanted.remove(key) {
                self.news += 1;
                if let Some(held) = self.files.get_mut(&number) {
                    held.is_used = true;
                }
            }
        }
        true
    }

    /// Forgets what lies in files that are not open. False if that is too little to do it again soon.
    fn make_room(&mut self) -> bool {
        let files = &self.files;
        self.chunks.retain(|_, (number, _)| files.get(number).is_some_and(|held| !held.is_changed));
        self.chunks.len() <= SEARCH_CHUNKS_MAX / 8 * 7
    }

    /// Where each of `keys` lies, and the files that this holds good for as long as they are as they were. The others are wanted from here on.
    pub(super) fn find(&mut self, keys: &[ChunkKey]) -> (HashMap<ChunkKey, (u32, u64)>, Vec<Check>) {
        let mut spots = HashMap::new();
        let mut numbers = HashSet::new();
        for key in keys {
            let spot = self.chunks.get(key).copied();
            let held = spot.and_then(|spot| Some((spot, self.files.get_mut(&spot.0)?)));
            match held.filter(|(_, held)| !held.is_changed) {
                Some((spot, held)) => {
                    held.is_used = true;
                    numbers.insert(spot.0);
                    spots.insert(*key, spot);
                }
                None => self.want(*key),
            }
        }
        let check = |number: u32| {
            let held = self.files.get(&number)?;
            Some((number, held.file.clone(), held.changed))
        };
        #[cfg(test)]
        if self.is_credulous {
            numbers.clear();
        }
        let checks = numbers.into_iter().filter_map(check).collect();
        (spots, checks)
    }

    fn want(&mut self, key: ChunkKey) {
        if self.wanted.len() < SEARCH_CHUNKS_MAX {
            self.wanted.insert(key);
        }
    }

    /// The file is not what it was: nobody is told of its chunks any more. Who was told before may read them.
    pub(super) fn forget(&mut self, number: u32) {
        if let Some(held) = self.files.get_mut(&number) {
            held.is_changed = true;
        }
    }

    /// A file that chunks were found in.
    pub(super) fn file(&self, number: u32) -> Option<Arc<File>> {
        self.files.get(&number).map(|held| held.file.clone())
    }

    /// Chunks that are wanted and were not found.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.len() as u64
    }

    /// Nobody wants these any more.
    pub(super) fn give_up<'a>(&mut self, keys: impl IntoIterator<Item = &'a ChunkKey>) {
        for key in keys {
            self.wanted.remove(key);
        }
    }

    /// Grows with each wanted chunk that is found.
    pub(super) fn news(&self) -> u64 {
        self.news
    }

    /// Takes files for what they were: nobody checks them.
    #[cfg(test)]
    pub(super) fn lie_about_changes(&mut self) {
        self.is_credulous = true;
    }

    /// Figures of its memory: chunks, files.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        (self.chunks.len(), self.files.len())
    }
}
