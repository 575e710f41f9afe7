//! Deleting what the source has not, after everything has come, and only then.
//!
//! The names of each directory that was there are listed, sorted, when it is entered, and held against the entries that are told,
//! which come in the same order: what the stream passes by is a candidate. Candidates wait in memory, and beyond a few megabytes in
//! a file without a name in the destination. They are deleted at the end, if the sender's account says that it has listed
//! everything: each in the directory in which it was found, reached name by name without following a link, and never across a mount.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use dray_core::limits::{SYNC_CANDIDATES_BYTES_MAX, TREE_CONTESTED_MAX, TREE_DEPTH_MAX};
use dray_core::tree::Name;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, Statx};
use rustix::io::Errno;

use super::directory::Directory;
use super::listing::Listing;
use super::place::{same_name, times_of};
use super::settings::{Settings, mtime_of};
use super::sync::{DeleteOptions, Done, SyncOptions};
use super::write::file_type;

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
    /// Why nothing can be deleted.
    trouble: Option<Error>,
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
            // What cannot be listed has no candidates.
            let listing =
                directory.duplicate_for_listing().and_then(|it| Listing::read(&it, &mut self.buffer));
            let listing = listing.ok()?;
            Some((listing, identity(found)))
        });
        let (listing, identity) = level.map_or((None, (0, 0)), |(listing, identity)| (Some(listing), identity));
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

    /// Where notes go that memory has no room for.
    pub(super) fn spill(&mut self, base: &Directory) {
        if self.notes.bytes.len() >= SYNC_CANDIDATES_BYTES_MAX && self.trouble.is_none() {
            self.trouble = self.notes.spill(base).err();
        }
    }

    /// Everything was told: what is to be deleted, if that is possible.
    pub(super) fn end(mut self, base: &Directory) -> Result<Doomed> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        if self.notes.file.is_some() {
            self.notes.spill(base)?;
        }
        Ok(Doomed {
            notes: self.notes,
            at: 0,
            buffer: Vec::new(),
            told: self.told,
            directory: None,
            path: Vec::new(),
        })
    }
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

fn identity(found: &Statx) -> (u64, u64) {
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

/// Directories, each followed by names in it: a length, with the uppermost bit for a directory, and the bytes.
#[derive(Debug, Default)]
struct Notes {
    bytes: Vec<u8>,
    file: Option<File>,
    written: u64,
}

/// A directory (with what it is) and its path, or a name in the last one.
struct Note {
    identity: Option<(u64, u64)>,
    bytes: Vec<u8>,
}

const IS_DIRECTORY: u32 = 1 << 31;
/// Bytes of one read of what was spilled.
const READ_BYTES: usize = 256 * 1024;

impl Notes {
    fn directory(&mut self, path: &[u8], (device, inode): (u64, u64)) {
        let len = u32::try_from(path.len()).unwrap_or(0);
        self.bytes.extend_from_slice(&(len | IS_DIRECTORY).to_be_bytes());
        self.bytes.extend_from_slice(&device.to_be_bytes());
        self.bytes.extend_from_slice(&inode.to_be_bytes());
        self.bytes.extend_from_slice(path);
    }

    fn name(&mut self, name: &[u8]) {
        let len = u32::try_from(name.len()).unwrap_or(0);
        self.bytes.extend_from_slice(&len.to_be_bytes());
        self.bytes.extend_from_slice(name);
    }

    fn spill(&mut self, base: &Directory) -> Result<()> {
        let failed = |error| Error::file("remember what is to be deleted", error);
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(unnamed(base).map_err(failed)?),
        };
        file.write_all_at(&self.bytes, self.written).map_err(failed)?;
        self.written += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}

/// A file that nobody sees.
fn unnamed(base: &Directory) -> io::Result<File> {
    if let Ok(fd) = base.unnamed() {
        return Ok(fd.into());
    }
    // File systems that have none.
    let mut name = *b".dray-0000000000000000";
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    name[6..].copy_from_slice(&format!("{:016x}", u64::from_be_bytes(random)).as_bytes()[..16]);
    use rustix::fs::OFlags;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let fd = base.open_at(&name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::unlinkat(base, &name[..], AtFlags::empty())?;
    Ok(fd.into())
}

/// What is to be deleted, in the order in which it was found.
#[derive(Debug)]
pub(super) struct Doomed {
    notes: Notes,
    at: u64,
    buffer: Vec<u8>,
    told: Option<HashSet<[u8; 16]>>,
    directory: Option<Holding>,
    path: Vec<u8>,
}

/// A directory in which something is deleted; its time is what it was when that is over.
#[derive(Debug)]
struct Holding {
    directory: Directory,
    found: Statx,
    keeps_time: bool,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let fd = self.directory.as_fd();
        if u32::from(self.found.stx_mode) & 0o700 != 0o700 {
            let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(u32::from(self.found.stx_mode) & 0o7777));
        }
        if self.keeps_time {
            let _ = rustix::fs::futimens(fd, &times_of(mtime_of(&self.found)));
        }
    }
}

impl Doomed {
    /// Deletes about so many entries; false once all are. With `is_dry` says what would be.
    pub(super) fn step(
        &mut self,
        settings: &Settings,
        base: &Directory,
        options: DeleteOptions,
        is_dry: bool,
        failed: &mut Vec<Failed>,
    ) -> Result<bool> {
        for _ in 0..STEP {
            let Some(Note { identity, bytes }) = self.next()? else {
                self.directory = None;
                return Ok(false);
            };
            if let Some(identity) = identity {
                self.path = bytes;
                self.directory = None;
                match open(base, &self.path, identity) {
                    Ok((directory, found)) => {
                        let mode = u32::from(found.stx_mode) & 0o7777;
                        if mode & 0o700 != 0o700 && !is_dry && !settings.powers.is_root {
                            let _ = rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(mode | 0o700));
                        }
                        let keeps_time = settings.times && !is_dry;
                        self.directory = Some(Holding { directory, found, keeps_time });
                    }
                    Err(error) => failed.push((self.path.clone(), error)),
                }
                continue;
            }
            let Some(holding) = &self.directory else { continue };
            let mut path = self.path.clone();
            push_name(&mut path, &bytes);
            if self.told.as_ref().is_some_and(|told| told.contains(&key(&path))) {
                continue;
            }
            let mut deleting = Deleting::new(settings, options, is_dry, failed);
            deleting.remove_unless_protected(&holding.directory, &bytes, &mut path, 0);
        }
        Ok(true)
    }

    /// The next note.
    fn next(&mut self) -> Result<Option<Note>> {
        let Some(head) = self.read(4)? else { return Ok(None) };
        let head = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let identity = if head & IS_DIRECTORY != 0 { self.read(16)? } else { None };
        let identity = identity.map(|bytes| {
            let number =
                |at: usize| bytes[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            (number(0), number(8))
        });
        let bytes = self.read((head & !IS_DIRECTORY) as usize)?.unwrap_or_default();
        Ok(Some(Note { identity, bytes }))
    }

    /// The next so many bytes of the notes; `None` at their end.
    fn read(&mut self, count: usize) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.notes.file else {
            let at = usize::try_from(self.at).unwrap_or(usize::MAX);
            let bytes =
                self.notes.bytes.get(at..at.saturating_add(count)).filter(|_| at < self.notes.bytes.len());
            self.at += count as u64;
            return Ok(bytes.map(<[u8]>::to_vec));
        };
        while self.buffer.len() < count {
            let left = self.notes.written.saturating_sub(self.at);
            let more = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES.max(count));
            if more == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; more];
            file.read_exact_at(&mut piece, self.at)
                .map_err(|error| Error::file("read what is to be deleted", error))?;
            self.at += more as u64;
            self.buffer.append(&mut piece);
        }
        let rest = self.buffer.split_off(count);
        Ok(Some(std::mem::replace(&mut self.buffer, rest)))
    }
}

/// Names after which others get a turn.
const STEP: usize = 64;

/// The directory below `base` that `path` leads to, if it still is the one that was listed.
fn open(base: &Directory, path: &[u8], wanted: (u64, u64)) -> Result<(Directory, Statx)> {
    let failed = |error| Error::file("open the directory to delete in it", error);
    let mut directory = base.duplicate().map_err(failed)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        directory = directory.child(name).map_err(failed)?;
    }
    let found = directory.stat_self().map_err(failed)?;
    if identity(&found) != wanted {
        return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile: nothing is deleted in it"));
    }
    Ok((directory, found))
}

/// One deletion under way.
pub(super) struct Deleting<'a> {
    settings: &'a Settings,
    options: DeleteOptions,
    is_dry: bool,
    failed: &'a mut Vec<Failed>,
}

impl<'a> Deleting<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        options: DeleteOptions,
        is_dry: bool,
        failed: &'a mut Vec<Failed>,
    ) -> Deleting<'a> {
        Deleting { settings, options, is_dry, failed }
    }

    /// Deletes `name`, with all that is in it, unless a rule protects it; true if nothing of it is left.
    fn remove_unless_protected(
        &mut self,
        parent: &Directory,
        name: &[u8],
        path: &mut Vec<u8>,
        depth: usize,
    ) -> bool {
        let found = match parent.stat(name) {
            Ok(found) => found,
            Err(error) => return self.gone(error, path),
        };
        let is_directory = file_type(&found) == FileType::Directory;
        let is_left_out = || self.settings.sync().is_some_and(|sync| sync.rules.has(path, is_directory));
        if !self.options.excluded && is_left_out() {
            return false;
        }
        self.remove_found(parent, name, path, &found, depth)
    }

    /// Deletes all that is in the directory `name`, whatever the rules say of itself; true if nothing of that is left.
    pub(super) fn clear(&mut self, parent: &Directory, name: &[u8], path: &mut Vec<u8>) -> bool {
        match parent.stat(name) {
            Ok(found) => self.empty(parent, name, path, &found, 0),
            Err(error) => self.gone(error, path),
        }
    }

    fn remove_found(
        &mut self,
        parent: &Directory,
        name: &[u8],
        path: &mut Vec<u8>,
        found: &Statx,
        depth: usize,
    ) -> bool {
        let is_directory = file_type(found) == FileType::Directory;
        let is_source = |sync: &SyncOptions| sync.sources.contains(&(device(found), found.stx_ino));
        if is_directory && self.settings.sync().is_some_and(is_source) {
            let what = "it is a source of this run, which lies in the destination";
            self.fail(path, Error::new(ErrorKind::Refused, what).advise("name another destination"));
            return false;
        }
        if is_directory && !self.empty(parent, name, path, found, depth) {
            return false;
        }
        if self.options.max.is_some_and(|max| self.settings.deleted.get() >= max) {
            self.settings.spared.set(self.settings.spared.get() + 1);
            return false;
        }
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = if self.is_dry { Ok(()) } else { rustix::fs::unlinkat(parent, name, flags) };
        match removed {
            Ok(()) => {}
            Err(Errno::NOENT) => return true,
            Err(error) => {
                self.fail(path, Error::file("delete it", error.into()));
                return false;
            }
        }
        self.settings.deleted.set(self.settings.deleted.get() + 1);
        let mut path = path.clone();
        if is_directory {
            path.push(b'/');
        }
        self.settings.did(Some(Done { letters: None, path, link: None }));
        true
    }

    /// Deletes all that is in a directory; true if nothing is left.
    fn empty(
        &mut self,
        parent: &Directory,
        name: &[u8],
        path: &mut Vec<u8>,
        found: &Statx,
        depth: usize,
    ) -> bool {
        if depth >= TREE_DEPTH_MAX {
            let what = format!("what is in it lies more than {TREE_DEPTH_MAX} directories deep");
            self.fail(path, Error::new(ErrorKind::Unsupported, what));
            return false;
        }
        let directory = match parent.child_here(name) {
            Ok(directory) => directory,
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                let mounted =
                    Error::new(ErrorKind::Refused, "a file system is mounted there, which is not deleted");
                self.fail(path, mounted.advise("unmount it first, or exclude it"));
                return false;
            }
            Err(error) => return self.gone(error, path),
        };
        // A name may lead elsewhere by now: what is deleted is what was looked at.
        let is_it = directory.stat_self().is_ok_and(|now| identity(&now) == identity(found));
        let listing = if is_it {
            Listing::read(&directory, &mut Vec::new())
        } else {
            Err(io::Error::other("it was replaced meanwhile"))
        };
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                self.fail(path, Error::file("list it to delete it", error));
                return false;
            }
        };
        let mode = u32::from(found.stx_mode) & 0o7777;
        if mode & 0o700 != 0o700 && !self.is_dry && !self.settings.powers.is_root {
            let _ = rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(mode | 0o700));
        }
        let (mut is_empty, mut next) = (true, 0);
        while let Some(inner) = listing.get(next) {
            next += 1;
            let len = path.len();
            push_name(path, inner);
            is_empty &= self.remove_unless_protected(&directory, inner, path, depth + 1);
            path.truncate(len);
        }
        is_empty
    }

    /// It cannot be looked at: gone, or a failure.
    fn gone(&mut self, error: io::Error, path: &[u8]) -> bool {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        if !is_gone {
            self.fail(path, Error::file("look at it to delete it", error));
        }
        is_gone
    }

    fn fail(&mut self, path: &[u8], error: Error) {
        self.failed.push((path.to_vec(), error));
    }
}
