//! CACHE-CHECK and STAT (Y8, Y11): where chunks lie, as far as that is in files that may be looked at and are what they were.
//!
//! What is not in the scope of a question is told apart by what is remembered of it, and never touched: no system call and no limit
//! depends on it.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use dray_core::Result;
use dray_core::limits::{INDEX_PLACES_LOOKED_AT_MAX, INDEX_SOURCE_FILES_MAX};
use dray_core::store::FileIdentity;

use super::database::Place;
use super::files::{self, FileRecord, Seen};
use super::{ChunkIndex, ChunkKey};

/// Files that are looked at for one question: to look for one that was renamed, its directory is read.
const FILES_LOOKED_AT_MAX: usize = 4 * INDEX_SOURCE_FILES_MAX;

/// What may be looked at: files below a directory, and on its mount. Another one may be a network's and hang.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The directory, open: files are looked at from there, and neither links nor mounts below it are crossed.
    pub opened: BorrowedFd<'a>,
    /// Its absolute path.
    pub directory: &'a Path,
    /// Its device.
    pub dev: u64,
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

/// A question under way.
struct Search<'a> {
    index: &'a ChunkIndex,
    scope: Scope<'a>,
    found: Found,
    /// What is known of a file: its place in the answer, or that it is not to be used.
    known: HashMap<u64, Option<usize>>,
}

impl ChunkIndex {
    /// CACHE-CHECK (Y8): where the chunks lie, as far as that is in regular files of `scope` that are what they were when they were cut.
    /// Entries of a file that is not go when the index is filled ([`ChunkIndex::forget_missed`]). Where it has a chunk several times, as
    /// few files as may be are named, and else the latest. Ends with what it has when `is_enough` says so.
    pub fn look_up(
        &self,
        keys: &[ChunkKey],
        scope: Scope<'_>,
        is_enough: &dyn Fn() -> bool,
    ) -> Result<Found> {
        let found = Found { files: Vec::new(), places: vec![None; keys.len()] };
        let mut search = Search { index: self, scope, found, known: HashMap::new() };
        // In the order in which they lie on the disk.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| keys[*at]);
        for at in order {
            if is_enough() {
                break;
            }
            search.found.places[at] = search.place_of(&keys[at])?;
        }
        Ok(search.found)
    }

    /// Whether there is reason to hope: it has a file in `scope` that is as it was, and is of the same name as an object of `size_bytes`,
    /// or larger or smaller by a sixteenth at the most (Y15 has more exact weights), if a size is given. Ends with no when `is_enough` says so.
    pub fn has_similar(
        &self,
        scope: Scope<'_>,
        size_bytes: Option<u64>,
        name: Option<&[u8]>,
        is_enough: &dyn Fn() -> bool,
    ) -> bool {
        let similar = self.files().similar(&scope, size_bytes, name);
        let mut similar = similar.into_iter().take(FILES_LOOKED_AT_MAX).take_while(|_| !is_enough());
        similar.any(|number| self.current(number, &scope).is_some())
    }

    /// Whether it has a file on that device: what is asked about another one is answered without a look at it.
    pub fn has_device(&self, dev: u64) -> bool {
        self.files().is_device_known(dev)
    }

    /// STAT (Y11): looks at what is in the directory of `scope`, and finds files again that were renamed or moved there. Nothing is
    /// looked at where no file can be.
    pub fn meet(&self, scope: Scope<'_>) {
        if !self.has_device(scope.dev) {
            return;
        }
        for (name, identity) in files::listed(scope.opened, |dev, ino| self.files().is_inode_known(dev, ino))
        {
            self.moved(&scope.directory.join(name), identity);
        }
    }

    /// Where the file of that number is, if it is what it was, be it under another name in the same directory. It is not forgotten if it is
    /// not found: who asked may see other files under these paths than whoever put them.
    fn current(&self, number: u64, scope: &Scope<'_>) -> Option<PathBuf> {
        let record = self.files().get(number).filter(|record| record.is_in(scope)).cloned()?;
        self.current_of(number, &record, Some(scope))
    }

    /// The same, wherever it is if there is no scope: then it is forgotten if it is gone. What cannot be looked at now is neither found nor
    /// forgotten.
    fn current_of(&self, number: u64, record: &FileRecord, scope: Option<&Scope<'_>>) -> Option<PathBuf> {
        let path = record.path();
        match files::see(&path, scope) {
            Seen::File(now) if record.is_same(&now) => return Some(path),
            Seen::File(_) | Seen::None => {}
            Seen::Unknown => return None,
        }
        let now = files::renamed(record, scope).ok()?;
        let is_away = now.is_none() && scope.is_none() && !files::is_mounted(record);
        let mut files = self.files();
        if files.get(number) != Some(record) {
            // Somebody else was faster.
            return None;
        }
        let Some((path, identity)) = now else {
            match scope {
                Some(_) => files.suspect(number),
                None if is_away => {}
                None => drop(files.remove(number)),
            }
            return None;
        };
        if files.at(&path).is_some_and(|(other, _)| other != number) {
            // It was taken in under its new name already.
            files.remove(number);
        } else {
            files.insert(number, record.clone().at(&path, identity));
        }
        Some(path)
    }

    /// Looks at all files that are known, and forgets those that are gone. `may_look` is asked before each; ends where it says no.
    /// Those of which `is_left_out` says so are left alone.
    pub fn forget_gone(&self, is_left_out: &dyn Fn(&Path) -> bool, may_look: &mut dyn FnMut() -> bool) {
        let numbers = self.files().all_numbers();
        for number in numbers {
            if !may_look() {
                return;
            }
            let path = self.files().get(number).map(FileRecord::path);
            if path.is_some_and(|path| !is_left_out(&path)) {
                self.look_at(number);
            }
        }
    }

    /// Looks at what questions did not find, and forgets it if it is gone. `may_look` is asked before each.
    /// True if something was forgotten: it may have been put again elsewhere.
    pub fn forget_missed(&self, may_look: &mut dyn FnMut() -> bool) -> Result<bool> {
        let before = self.figures().files;
        let mut missed = self.files().take_suspects().into_iter();
        let is_any = missed.len() > 0;
        for number in missed.by_ref() {
            if !may_look() {
                self.files().suspect(number);
                break;
            }
            self.look_at(number);
        }
        missed.for_each(|number| self.files().suspect(number));
        if is_any {
            self.write_back()?;
        }
        Ok(self.figures().files < before)
    }

    /// Looks at what was at `path`, and forgets it if it is gone.
    pub fn look_again(&self, path: &Path) {
        let number = self.files().at(path).map(|(number, _)| number);
        number.into_iter().for_each(|number| self.look_at(number));
    }

    fn look_at(&self, number: u64) {
        let Some(record) = self.files().get(number).cloned() else { return };
        let _ = self.current_of(number, &record, None);
    }

    /// The file `identity` is at `path` now.
    pub(super) fn moved(&self, path: &Path, identity: FileIdentity) {
        let mut files = self.files();
        let Some((number, record)) = files.of_inode(identity.dev, identity.ino) else { return };
        if !record.is_same(&identity)
            || record.identity == identity && record.path() == path
            || FileRecord::is_too_long(path)
        {
            return;
        }
        let record = record.clone().at(path, identity);
        if let Some(other) = files.at(path).map(|(other, _)| other).filter(|other| *other != number) {
            files.remove(other);
        }
        files.insert(number, record);
    }
}

impl Search<'_> {
    /// Where one chunk lies.
    fn place_of(&mut self, key: &ChunkKey) -> Result<Option<ChunkPlace>> {
        let (index, scope) = (self.index, self.scope);
        let is_wanted = |number| {
            let files = index.files();
            files.get(number).is_some_and(|record| record.chunks > 0 && record.is_in(&scope))
        };
        let places = index.checked(index.database.places(key, INDEX_PLACES_LOOKED_AT_MAX, is_wanted))?;
        let used = places.iter().find(|place| matches!(self.known.get(&place.number), Some(Some(_))));
        let chosen = used.into_iter().chain(&places).find_map(|place| Some((place, self.file(place)?)));
        Ok(chosen.map(|(place, file)| ChunkPlace { file, offset: place.offset, len: place.len }))
    }

    /// The file of a place, if it can be used: which one in the answer.
    fn file(&mut self, place: &Place) -> Option<usize> {
        if let Some(known) = self.known.get(&place.number) {
            return *known;
        }
        if self.known.len() >= FILES_LOOKED_AT_MAX || self.found.files.len() >= INDEX_SOURCE_FILES_MAX {
            return None;
        }
        let files = &mut self.found.files;
        // Two numbers lead to one file that was renamed, and taken in under its new name, too.
        let file = self.index.current(place.number, &self.scope).map(|path| {
            files.iter().position(|known| *known == path).unwrap_or_else(|| {
                files.push(path);
                files.len() - 1
            })
        });
        self.known.insert(place.number, file);
        file
    }
}
