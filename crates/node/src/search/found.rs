//! Chunks that a search came across, and the files that have them (Y8): in memory, for as long as the transfer lasts.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use dray_core::limits::{SEARCH_CHUNKS_MAX, SEARCH_FILES_OPEN_MAX};
use dray_store::index::ChunkKey;

use super::memory::Memory;
use super::scope::{ChangeTime, Opened};

/// What a chunk takes at the most: its place in a table that is being enlarged, which has seven eighths of the old one and twice as much beside it.
pub(super) const CHUNK_HELD_BYTES: u64 = 120;
/// The same of one that is wanted, and of the list of those that an index is to be asked for.
/// As much as a chunk, which takes its place when it is found.
pub(super) const WANTED_HELD_BYTES: u64 = CHUNK_HELD_BYTES;

/// All of it. Nothing here touches a file: who locks it waits for no disk.
#[derive(Debug)]
pub(super) struct Finds {
    memory: Arc<Memory>,
    /// How many chunks there is memory for, and how many that are wanted.
    room: usize,
    wanted_room: usize,
    /// File and offset of each chunk. Of a file that is not open any more, or is not what it was, the entry counts for nothing.
    chunks: HashMap<ChunkKey, (u32, u64)>,
    /// By number, which is used once.
    files: HashMap<u32, Held>,
    last_number: u32,
    /// Chunks that are wanted and were not found yet.
    wanted: HashSet<ChunkKey>,
    /// Those of them that an index is to be asked for; `None` without one.
    unasked: Option<Vec<ChunkKey>>,
    /// So many of those were found since.
    news: u64,
    /// Nothing more can be forgotten, until a file is let go.
    is_full: bool,
    /// Nothing is looked for any more.
    is_over: bool,
    #[cfg(test)]
    is_credulous: bool,
}

#[derive(Debug)]
pub(super) struct Held {
    file: Arc<File>,
    changed: ChangeTime,
    /// An index named it.
    is_cached: bool,
    /// Somebody was told of a chunk of it, or will be.
    is_used: bool,
    /// It is not what it was. What was told of it is read all the same, and proven.
    is_changed: bool,
}

/// A file to look at again before it is believed.
pub(super) type Check = (u32, Arc<File>, ChangeTime);

impl Finds {
    /// Empty, within `memory`.
    pub(super) fn within(memory: Arc<Memory>) -> Finds {
        Finds {
            memory,
            room: 0,
            wanted_room: 0,
            chunks: HashMap::new(),
            files: HashMap::new(),
            last_number: 0,
            wanted: HashSet::new(),
            unasked: None,
            news: 0,
            is_full: false,
            is_over: false,
            #[cfg(test)]
            is_credulous: false,
        }
    }

    /// Takes a file that is about to be read, and lets go of another one that nobody needs; its number, and what is to be dropped where it may
    /// take time. `None` if there is no room: of all that are open, something is used.
    pub(super) fn take(&mut self, opened: &Opened) -> Option<(u32, Option<Arc<File>>)> {
        let mut dropped = None;
        if self.files.len() >= SEARCH_FILES_OPEN_MAX {
            let idle =
                self.files.iter().filter(|(_, held)| !held.is_used).map(|(number, _)| *number).min()?;
            dropped = self.files.remove(&idle).map(|held| held.file);
            self.is_full = false;
        }
        self.last_number = self.last_number.checked_add(1)?;
        let held = Held {
            file: opened.file.clone(),
            changed: opened.changed,
            is_cached: opened.is_cached,
            is_used: false,
            is_changed: false,
        };
        self.files.insert(self.last_number, held);
        Some((self.last_number, dropped))
    }

    /// Chunks of the file. Where there is no room for more of them, those that nobody wants yet are left out; false if there is none for one that is
    /// wanted. What stands in two files counts in the first that is open.
    pub(super) fn add(&mut self, number: u32, chunks: &[(ChunkKey, u64)]) -> bool {
        for (key, offset) in chunks {
            if let Some((known, _)) = self.chunks.get(key)
                && self.files.get(known).is_some_and(|held| !held.is_changed)
            {
                continue;
            }
            if !self.has_room() && !self.make_room() {
                if !self.wanted.contains(key) {
                    continue;
                }
                if !self.take_over() {
                    return false;
                }
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

    /// Whether one more chunk may be remembered. A table is never made smaller: what there was memory for once stays.
    fn has_room(&mut self) -> bool {
        if self.chunks.len() < self.room {
            return true;
        }
        let has_room = self.room < SEARCH_CHUNKS_MAX && self.memory.take(CHUNK_HELD_BYTES);
        self.room += usize::from(has_room);
        has_room
    }

    /// Has one more chunk remembered in the room of one that is wanted, and will not be any more.
    fn take_over(&mut self) -> bool {
        let has_room = self.room < SEARCH_CHUNKS_MAX && self.wanted_room > 0;
        if has_room {
            self.memory.keep_waiting(WANTED_HELD_BYTES);
            (self.wanted_room, self.room) = (self.wanted_room - 1, self.room + 1);
        }
        // Nor does its table keep what the other one takes.
        if self.wanted.capacity() / 4 > self.wanted_room {
            self.wanted.shrink_to(self.wanted_room);
        }
        has_room
    }

    /// Forgets what lies in files that are not open. False if that is too little to do it again before another file is let go.
    fn make_room(&mut self) -> bool {
        if self.is_full {
            return false;
        }
        let files = &self.files;
        self.chunks.retain(|_, (number, _)| files.get(number).is_some_and(|held| !held.is_changed));
        self.is_full = self.chunks.len() >= self.room / 8 * 7;
        !self.is_full
    }

    /// Nothing is looked for any more: nothing is wanted, and where nothing was of use nothing is remembered. What is to be dropped where it
    /// may take time.
    pub(super) fn end(&mut self) -> Vec<Held> {
        self.is_over = true;
        (self.wanted, self.unasked) = (HashSet::new(), None);
        self.memory.give_waiting(WANTED_HELD_BYTES * std::mem::take(&mut self.wanted_room) as u64);
        if self.files.values().any(|held| held.is_used) {
            return Vec::new();
        }
        self.chunks = HashMap::new();
        self.memory.give(CHUNK_HELD_BYTES * std::mem::take(&mut self.room) as u64);
        std::mem::take(&mut self.files).into_values().collect()
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
        if self.is_over {
            return;
        }
        if self.wanted.len() >= self.wanted_room {
            let has_room =
                self.wanted_room < SEARCH_CHUNKS_MAX && self.memory.take_waiting(WANTED_HELD_BYTES);
            self.wanted_room += usize::from(has_room);
        }
        if self.wanted.len() < self.wanted_room
            && self.wanted.insert(key)
            && let Some(unasked) = &mut self.unasked
        {
            unasked.push(key);
        }
    }

    /// From here on, there is an index to be asked.
    pub(super) fn ask_index(&mut self) {
        self.unasked.get_or_insert_with(|| self.wanted.iter().copied().collect());
    }

    pub(super) fn has_index(&self) -> bool {
        self.unasked.is_some()
    }

    /// How many chunks it is to be asked for.
    pub(super) fn unasked(&self) -> u64 {
        self.unasked.as_ref().map_or(0, |unasked| unasked.len() as u64)
    }

    /// The next of them, `count` at most, as far as they are still wanted.
    pub(super) fn take_unasked(&mut self, count: usize) -> Vec<ChunkKey> {
        let Some(unasked) = &mut self.unasked else { return Vec::new() };
        let mut taken: Vec<ChunkKey> = unasked.drain(..count.min(unasked.len())).collect();
        taken.retain(|key| self.wanted.contains(key));
        taken
    }

    /// Whether the chunk is wanted, and was not found.
    pub(super) fn is_wanted(&self, key: &ChunkKey) -> bool {
        self.wanted.contains(key)
    }

    /// The file is not what it was: nobody is told of its chunks any more. Who was told before may read them.
    pub(super) fn forget(&mut self, number: u32) {
        if let Some(held) = self.files.get_mut(&number) {
            held.is_changed = true;
            self.is_full = false;
        }
    }

    /// A file that chunks were found in.
    pub(super) fn file(&self, number: u32) -> Option<Arc<File>> {
        self.files.get(&number).map(|held| held.file.clone())
    }

    /// Whether an index named the file; yes where nothing is known of it.
    pub(super) fn is_cached(&self, number: u32) -> bool {
        self.files.get(&number).is_none_or(|held| held.is_cached)
    }

    /// Whether somebody was told of a chunk of the file.
    pub(super) fn is_used(&self, number: u32) -> bool {
        self.files.get(&number).is_some_and(|held| held.is_used)
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
