//! Deleting what the source has not, after everything has come, and only then.
//!
//! The names of each directory that was there are listed, sorted, when it is entered, and held against the entries that are told,
//! which come in the same order: what the stream passes by is a candidate. A directory that is to make way for something else is
//! noted, too. All of it happens at the end, if the sender's account says that it has listed everything: each deletion in the directory
//! in which the name was found, reached name by name without following a link, and never across a mount.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use dray_core::limits::TREE_CONTESTED_MAX;
use dray_core::tree::Name;
use dray_core::{Error, ErrorKind};
use rustix::fs::Statx;

use super::directory::Directory;
use super::listing::Listing;
use super::place::same_name;
use super::temporary::Temporary;

mod doomed;
mod notes;

pub(super) use doomed::{Doomed, Orders};
use notes::Notes;

/// A path and why it failed.
pub(super) type Failed = (Vec<u8>, Error);

/// A directory that entries are told of.
#[derive(Debug)]
struct Level {
    /// `None` if it was not there, or could not be listed.
    listing: Option<Listing>,
    next: usize,
    path_len: usize,
    identity: (u64, u64),
    /// No other one has it.
    serial: u64,
}

/// What may have to be deleted.
#[derive(Debug)]
pub(super) struct Candidates {
    /// One for each directory that is open; those that were not there have no names.
    levels: Vec<Level>,
    path: Vec<u8>,
    notes: Notes,
    /// Directories entered so far, and the one that the last note is of.
    serials: u64,
    noted: u64,
    device: Option<(u32, u32)>,
    buffer: Vec<u8>,
    /// Hashes of all that was told, where several sources go to one place; `None` where they do not.
    told: Option<HashSet<[u8; 16]>>,
    /// When the run began, by this host's clock.
    begun: (i64, u32),
    /// Directories that could not be listed here: nothing in them is deleted.
    unlistable: Vec<Failed>,
    /// Why nothing can be deleted.
    trouble: Option<Error>,
}

/// Directories that could not be listed which are named one by one.
const UNLISTABLE_NAMED_MAX: usize = 64;

/// A directory that makes way at the end, and what was made in the meantime for its place.
#[derive(Debug)]
pub(super) struct Way {
    /// The directory that it is in: path below the destination, device and inode.
    pub(super) path: Vec<u8>,
    pub(super) identity: (u64, u64),
    pub(super) name: Vec<u8>,
    /// `None` in a dry run.
    pub(super) made: Option<Temporary>,
}

impl Candidates {
    /// Of a run in which several sources may tell entries of one path, or not.
    pub(super) fn new(is_contested: bool) -> Candidates {
        Candidates {
            levels: Vec::new(),
            path: Vec::new(),
            notes: Notes::default(),
            serials: 0,
            noted: 0,
            device: None,
            buffer: Vec::new(),
            told: is_contested.then(HashSet::new),
            begun: now(),
            unlistable: Vec::new(),
            trouble: None,
        }
    }

    /// The tree of a source begins: its entries go below `name`, or into the destination itself.
    pub(super) fn begin(&mut self, name: Option<&Name>) {
        self.levels.clear();
        self.device = None;
        self.path = name.map_or_else(Vec::new, |name| name.as_bytes().to_vec());
        if name.is_some() {
            self.remember(key(&self.path));
        }
    }

    /// A directory is entered; `there` is what stood there before.
    pub(super) fn enter(
        &mut self,
        name: Option<&Name>,
        there: Option<(&Directory, &Statx)>,
        stays_on_device: bool,
    ) {
        let path_len = self.path.len();
        if let Some(name) = name.filter(|_| !self.levels.is_empty()) {
            push_name(&mut self.path, name.as_bytes());
        }
        let level = there.and_then(|(directory, found)| {
            let device = (found.stx_dev_major, found.stx_dev_minor);
            if stays_on_device && *self.device.get_or_insert(device) != device {
                return None;
            }
            let listing =
                directory.duplicate_for_listing().and_then(|it| Listing::read(&it, &mut self.buffer));
            match listing {
                Ok(listing) => Some((listing, identity(found))),
                Err(error) => {
                    if self.unlistable.len() < UNLISTABLE_NAMED_MAX {
                        let error = Error::file("list what is there: nothing is deleted in it", error);
                        self.unlistable.push((self.path.clone(), error));
                    }
                    None
                }
            }
        });
        let (listing, identity) =
            level.map_or((None, (0, 0)), |(listing, identity)| (Some(listing), identity));
        self.serials += 1;
        self.levels.push(Level { listing, next: 0, path_len, identity, serial: self.serials });
    }

    /// An entry of the innermost directory is told. False if no such name was there when the directory was listed.
    pub(super) fn told(&mut self, name: &Name) -> bool {
        if self.levels.is_empty() {
            // The root, which was told when it began.
            return true;
        }
        let was_there = self.pass(Some(name.as_bytes()));
        if self.told.is_some() {
            let len = self.path.len();
            push_name(&mut self.path, name.as_bytes());
            let key = key(&self.path);
            self.path.truncate(len);
            self.remember(key);
        }
        was_there
    }

    /// Something is found under a name that was not there: nobody can tell any more which of the names in the listing are told.
    pub(super) fn folds(&mut self) {
        self.trouble = Some(same_name());
    }

    fn remember(&mut self, key: [u8; 16]) {
        let Some(told) = &mut self.told else { return };
        if told.len() < TREE_CONTESTED_MAX {
            told.insert(key);
        } else {
            let what = format!("sources that go to one place have more than {TREE_CONTESTED_MAX} entries");
            self.trouble = Some(Error::new(ErrorKind::Unsupported, what));
        }
    }

    /// What is in the innermost directory the sender did not look at.
    pub(super) fn unlisted(&mut self) {
        if self.told.is_some() {
            // Another source may have told of it, and its candidates are noted.
            let what = "of several sources for one place one was not looked at as a whole (-x)";
            self.trouble = Some(Error::new(ErrorKind::Unsupported, what));
        }
        if let Some(level) = self.levels.last_mut() {
            level.next = usize::MAX;
        }
    }

    /// The innermost directory has no more entries.
    pub(super) fn leave(&mut self) {
        self.pass(None);
        if let Some(level) = self.levels.pop() {
            self.path.truncate(level.path_len);
        }
    }

    /// Notes the names before `until`, or all that are left. False if `until` is none of those listed.
    fn pass(&mut self, until: Option<&[u8]>) -> bool {
        let Some(level) = self.levels.last_mut() else { return true };
        let Some(listing) = level.listing.as_ref().filter(|_| level.next != usize::MAX) else { return true };
        while let Some(name) = listing.get(level.next) {
            match until.map(|until| name.cmp(until)) {
                Some(std::cmp::Ordering::Greater) => return false,
                Some(std::cmp::Ordering::Equal) => {
                    level.next += 1;
                    return true;
                }
                // What cannot be deleted need not be noted.
                _ if self.trouble.is_some() => level.next += 1,
                _ => {
                    if self.noted != level.serial {
                        self.noted = level.serial;
                        self.notes.directory(&self.path, level.identity);
                    }
                    self.notes.name(name);
                    level.next += 1;
                }
            }
        }
        false
    }

    /// A directory is to make way.
    pub(super) fn make_way(&mut self, way: &Way) {
        self.notes.directory(&way.path, way.identity);
        self.notes.way(&way.name, way.made.as_ref());
        // What follows is in another one.
        self.noted = 0;
    }

    /// Where notes go that memory has no room for.
    pub(super) fn spill(&mut self, base: &Directory) {
        if self.notes.is_full()
            && let Err(error) = self.notes.spill(base)
        {
            self.trouble.get_or_insert(error);
        }
    }

    /// Everything was told: what is to be deleted, and why that is not possible.
    pub(super) fn end(self, failed: &mut Vec<Failed>) -> (Doomed, Option<Error>) {
        failed.extend(self.unlistable);
        (Doomed::new(self.notes.read(), self.told, self.begun), self.trouble)
    }
}

fn now() -> (i64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos())
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

pub(super) fn identity(found: &Statx) -> (u64, u64) {
    ((u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor), found.stx_ino)
}

/// The device as `stat` has it.
fn device(found: &Statx) -> u64 {
    rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor)
}

fn key(path: &[u8]) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    key
}
