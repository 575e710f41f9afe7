//! Does what the engine says of an index: asks it (CACHE-CHECK), and reads chunks where it says that they lie (CACHE-READ), in the order of each
//! file (Y8, Y9).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dray_core::limits::{INDEX_CHUNKS_ASKED_MAX, UPDATE_BYTES_MAX};
use dray_core::recipe::ChunkDescriptor;
use dray_engine::search::EntryId;
use dray_store::index::{ChunkKey, key as chunk_key, len as chunk_len};

use super::executor::{Executor, READ_BYTES, us};
use super::memory::Memory;
use super::scope::Opened;
use crate::elsewhere::Elsewhere;
use crate::lock;

/// Chunks that are read before it is looked again what is to be done first.
const READS_AT_A_TIME: usize = 64;

/// What one of the places takes where chunks lie.
const PLACE_HELD_BYTES: u64 = 96;

/// Files that the index named.
#[derive(Default)]
pub(super) struct CachedFiles {
    files: HashMap<EntryId, CachedFile>,
    /// By the numbers that the index's side has for them; `None` for what is not read.
    numbers: HashMap<u32, Option<EntryId>>,
}

struct CachedFile {
    opened: Opened,
    /// Among what was found, once it was read.
    number: Option<u32>,
    /// Where wanted chunks lie, as the index says, that were not looked at yet.
    places: BTreeMap<u64, ChunkKey>,
}

impl CachedFiles {
    /// A file to be read from end to end: then nothing is read of it chunk by chunk. `Some(None)` if it is not what it was when the index named
    /// it; `None` if that did not.
    pub(super) fn take(&mut self, entry: EntryId, memory: &Memory) -> Option<Option<Opened>> {
        let file = self.files.get_mut(&entry)?;
        memory.give(PLACE_HELD_BYTES * file.places.len() as u64);
        file.places = BTreeMap::new();
        let Opened { file, identity, changed, .. } = &file.opened;
        let opened = Opened { file: file.clone(), identity: *identity, changed: *changed, is_cached: true };
        Some(opened.is_unchanged().then_some(opened))
    }

    /// Memory that the places take.
    pub(super) fn held_bytes(&self) -> u64 {
        self.files.values().map(|file| PLACE_HELD_BYTES * file.places.len() as u64).sum()
    }
}

/// What came of looking at a place.
enum Looked {
    /// Whether the chunk lies there.
    Done(bool),
    /// There was no memory to read it into.
    NoRoom,
    /// The search is over.
    Over,
}

impl Executor<'_> {
    /// CACHE-CHECK: asks the index where wanted chunks lie. False when the search is over.
    pub(super) fn check(&mut self) -> bool {
        let Some(index) = lock(&self.shared.index).clone() else { return self.checked(0) };
        let keys = lock(&self.shared.finds).take_unasked(INDEX_CHUNKS_ASKED_MAX);
        for (at, file, offset) in index.look_up(&keys, &|| self.shared.is_over()) {
            if let Some(key) = keys.get(at)
                && let Some(entry) = self.cached_entry(&index, file)
                && let Some(cached) = self.cached.files.get_mut(&entry)
                && self.shared.memory.take(PLACE_HELD_BYTES)
            {
                if cached.places.insert(offset, *key).is_some() {
                    self.shared.memory.give(PLACE_HELD_BYTES);
                    continue;
                }
                lock(&self.shared.order).search.known_in(entry, 1);
            }
        }
        self.checked(keys.len())
    }

    fn checked(&self, asked: usize) -> bool {
        let mut order = lock(&self.shared.order);
        // While the order is locked: what is wanted from here on comes after.
        let unasked = lock(&self.shared.finds).unasked();
        order.search.checked(asked as u64, unasked);
        drop(order);
        !self.shared.is_over()
    }

    /// The engine's entry for a file that the index named; `None` if it is not to be read.
    fn cached_entry(&mut self, index: &Elsewhere, number: u32) -> Option<EntryId> {
        if let Some(known) = self.cached.numbers.get(&number) {
            return *known;
        }
        let opened = opened(index, number).filter(|(opened, _)| !self.known.contains(&opened.identity));
        let entry = opened.and_then(|(opened, size_bytes)| {
            let entry = lock(&self.shared.order).search.found_cached(size_bytes)?;
            self.cached.files.insert(entry, CachedFile { opened, number: None, places: BTreeMap::new() });
            Some(entry)
        });
        self.cached.numbers.insert(number, entry);
        entry
    }

    /// CACHE-READ: reads the next chunks of a file that are known to lie there, and compares them. False when the search is over.
    pub(super) fn read_known(&mut self, entry: EntryId) -> bool {
        self.yield_to_others();
        let (mut chunks, mut took) = (0, Duration::ZERO);
        let goes_on = self.read_places(entry, &mut chunks, &mut took);
        let left = self.cached.files.get(&entry).map_or(0, |file| file.places.len() as u64);
        lock(&self.shared.order).search.cache_read(entry, chunks, left, us(took));
        self.shared.changed.notify_all();
        goes_on && !self.shared.is_over()
    }

    fn read_places(&mut self, entry: EntryId, chunks: &mut u64, took: &mut Duration) -> bool {
        let Some(mut file) = self.cached.files.remove(&entry) else { return true };
        let goes_on = self.read_places_of(&mut file, chunks, took);
        self.cached.files.insert(entry, file);
        goes_on
    }

    fn read_places_of(&self, file: &mut CachedFile, chunks: &mut u64, took: &mut Duration) -> bool {
        let is_unchanged = file.opened.is_unchanged();
        // It gave way to another one, it may be, when nothing of it was used.
        let held = file.number.filter(|number| lock(&self.shared.finds).file(*number).is_some());
        let number = match held {
            _ if !is_unchanged => {
                self.shared.memory.give(PLACE_HELD_BYTES * file.places.len() as u64);
                file.places.clear();
                return true;
            }
            Some(number) => number,
            None => {
                let Some((number, dropped)) = lock(&self.shared.finds).take(&file.opened) else {
                    return false;
                };
                drop(dropped);
                number
            }
        };
        file.number = Some(number);
        for _ in 0..READS_AT_A_TIME {
            let Some((offset, key)) = file.places.pop_first() else { break };
            self.shared.memory.give(PLACE_HELD_BYTES);
            // It may have come meanwhile, or lie in another file, too.
            if !lock(&self.shared.finds).is_wanted(&key) {
                continue;
            }
            let is_there = match self.is_there(&file.opened.file, offset, &key, took) {
                Looked::Over => return false,
                // It was not read, which says nothing of what reading costs.
                Looked::NoRoom => continue,
                Looked::Done(is_there) => is_there,
            };
            #[cfg(test)]
            lock(&self.shared.places_read).push(offset);
            *chunks += 1;
            if !is_there {
                continue;
            }
            if let Some(index) = &*lock(&self.shared.index) {
                index.found(u64::from(chunk_len(&key)));
            }
            if !lock(&self.shared.finds).add(number, &[(key, offset)]) {
                return false;
            }
        }
        true
    }

    /// Whether the chunk lies there.
    fn is_there(&self, file: &File, offset: u64, key: &ChunkKey, took: &mut Duration) -> Looked {
        // Lengths come from a recipe that was checked: 16 MiB at most.
        let len = chunk_len(key);
        if !self.shared.memory.take(len.into()) {
            return Looked::NoRoom;
        }
        let is_there = self.is_read(file, offset, key, &mut vec![0; len as usize], took);
        self.shared.memory.give(len.into());
        is_there.map_or(Looked::Over, Looked::Done)
    }

    /// `None` when the search is over.
    fn is_read(
        &self,
        file: &File,
        offset: u64,
        key: &ChunkKey,
        bytes: &mut [u8],
        took: &mut Duration,
    ) -> Option<bool> {
        let mut at = offset;
        for piece in bytes.chunks_mut(READ_BYTES) {
            if !self.stand_back() {
                return None;
            }
            let begun = Instant::now();
            let is_read = file.read_exact_at(piece, at).is_ok();
            *took += begun.elapsed();
            if !is_read {
                return Some(false);
            }
            self.shared.read_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            at = at.saturating_add(piece.len() as u64);
        }
        let begun = Instant::now();
        let is_it = chunk_key(&ChunkDescriptor::of(bytes)) == *key;
        *took += begun.elapsed();
        Some(is_it)
    }
}

/// A file that the index named, and its size.
fn opened(index: &Elsewhere, number: u32) -> Option<(Opened, u64)> {
    let (file, changed): (Arc<File>, _) = index.opened(number)?;
    let metadata = file.metadata().ok().filter(|metadata| metadata.len() <= UPDATE_BYTES_MAX)?;
    let identity = (metadata.dev(), metadata.ino());
    Some((Opened { file, identity, changed, is_cached: true }, metadata.len()))
}
