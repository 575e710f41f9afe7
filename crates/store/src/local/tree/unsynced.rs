//! What is to be on its disk, and what the disk refused.
//!
//! A file system says of bytes that a disk refused, as one does that was promised more room than there is, only when it is asked to make them durable; it says it once, and goes on to read them
//! from memory for a while. So with `--fsync`, and where sources go, a file is durable before it takes the place of anything. What is new is made durable together: if that fails, each is asked
//! for by itself, and what is not on the disk is removed again, as the next run would believe its size and time. So is what lies in a directory of which the disk refused some: a file system without
//! a journal tells that who asks for the directory.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use dray_core::Error;
use dray_core::tree::Name;
use rustix::fs::{Advice, AtFlags, FileType, StatVfsMountFlags, Statx, fstatvfs};
use rustix::io::Errno;

use super::directory::{Directory, stat_fd, stat_fd_for};
use super::opened::{OpenDirectory, not_durable};
use super::overwrite::{FACTS, born};
use super::place::{FileTarget, Identity, NewFile, There, identity_of};
use super::settings::Settings;
use super::write::{TreeWriter, file_type};

/// New names after which what came is made durable.
const UNSYNCED_MAX: usize = 16_384;

/// What has a name that may not be on the disk yet: it is new, or took the place of something and its source is to go.
#[derive(Debug)]
pub(super) struct Unsynced {
    /// Below the destination.
    path: Vec<u8>,
    identity: Identity,
    born: (i64, u32),
    is_directory: bool,
}

impl Settings {
    /// Waits until a file is on its disk. What else that did not take is looked for where this fails, by [`TreeWriter::sync`].
    pub(super) fn make_durable(&self, file: impl AsFd) -> Result<(), Errno> {
        rustix::fs::fsync(file).inspect_err(|_| self.is_refused.set(true))
    }

    /// The same of a regular file that is to get a name that something else has, before it does.
    pub(super) fn settle_named(&self, directory: &Directory, name: &[u8]) -> dray_core::Result<()> {
        let is_file = || directory.stat(name).is_ok_and(|found| file_type(&found) == FileType::RegularFile);
        if !self.is_durable() || !is_file() {
            return Ok(());
        }
        // What may not be opened was synced, or is removed again, under its first name.
        let Ok(file) = directory.open_to_read(name) else { return Ok(()) };
        self.make_durable(&file).map_err(|error| {
            if let Ok(found) = stat_fd(file.as_fd()) {
                // Nobody else is told.
                self.refused.borrow_mut().push((identity_of(&found), error));
            }
            refused_by_disk(error)
        })
    }

    /// True if what comes is to be on its disk.
    pub(super) fn is_durable(&self) -> bool {
        self.durable || self.removes_sources()
    }

    /// True if names of what comes are noted; what takes the place of something is removed for its name alone, which is on no disk then, nor is the older one, and only where its source would go.
    pub(super) fn is_noted(&self, replaces: bool) -> bool {
        self.removes_sources() || (self.durable && !replaces)
    }
}

impl Settings {
    /// Fails where sources are to go and `directory` is one of which a disk refused some before: names may be read there that are in memory alone. The kernel tells that once.
    pub(super) fn require_on_disk(&self, directory: &Directory) -> dray_core::Result<()> {
        let why = || was_directory_refused(directory).filter(|error| is_refusal(*error));
        match if self.removes_sources() { why() } else { None } {
            None => Ok(()),
            Some(error) => Err(Error::file("find all of the directory on its disk", error.into())
                .or_advise("unmount the file system there and check it (fsck), then run it again")),
        }
    }
}

impl FileTarget {
    /// True if it takes the place of anything.
    pub(super) fn replaces(&self) -> bool {
        !matches!(self.there, There::Nothing)
    }

    /// To be called before what stands there makes way for `file`.
    pub(super) fn settle(&self, file: &NewFile) -> dray_core::Result<()> {
        let settings = self.directory.settings();
        let fd = file.file().as_fd();
        if (settings.is_durable() && self.replaces()) || settings.fails_late(self.directory.device, fd) {
            settings.make_durable(fd).map_err(refused_by_disk)?;
        }
        Ok(())
    }
}

impl OpenDirectory {
    /// As [`OpenDirectory::note_unsynced`], of what was made just now and is nothing that was opened.
    pub(super) fn note_made(&self, name: &Name, replaces: bool) {
        if self.settings().is_noted(replaces)
            && let Ok(found) = self.directory.stat_for(name.as_bytes(), FACTS)
        {
            self.note_unsynced(name, &found);
        }
    }

    /// What `found`, asked for with [`FACTS`], tells of got this name, where what comes is to be on its disk.
    pub(super) fn note_unsynced(&self, name: &Name, found: &Statx) {
        let is_directory = file_type(found) == FileType::Directory;
        let (path, identity, born) = (self.path(name), identity_of(found), born(found));
        let noted = Unsynced { path, identity, born, is_directory };
        self.settings().unsynced.borrow_mut().push(noted);
    }
}

impl TreeWriter {
    /// True if so much came that it is to be made durable, by [`TreeWriter::sync`], before more does.
    pub fn is_sync_due(&self) -> bool {
        self.settings.unsynced.borrow().len() >= UNSYNCED_MAX
    }

    /// Waits until everything is on disk, on every file system that was written to. What a disk refused of new files is removed again.
    pub fn sync(&mut self) -> dray_core::Result<()> {
        let synced = self.settings.devices.borrow().sync();
        let unsynced = self.settings.unsynced.take();
        let is_refused = self.settings.is_refused.take();
        if synced.is_ok() && !is_refused {
            return Ok(());
        }
        let refused = match &self.stage {
            Some(_) => Refused::default(),
            None => self.remove_refused(&unsynced),
        };
        let why = refused.why.map_or(Ok(()), |error| Err(not_durable(error.into())));
        synced.and(why).map_err(|error| {
            let error = match &mut self.stage {
                Some(stage) => stage.doubt(error),
                None => error,
            };
            let error = [
                (&refused.removed, "which is not on the disk and was removed again"),
                (&refused.left, "which may not be on the disk, and stays there"),
                (&refused.directories, "a directory of which the disk refused some"),
            ]
            .into_iter()
            .filter_map(|(paths, what)| paths.first().map(|first| (first, paths.len() - 1, what)))
            .fold(error, |error, (first, others, what)| {
                let path = String::from_utf8_lossy(if first.is_empty() { b"." } else { first });
                let others = if others == 0 { String::new() } else { format!(" and {others} more") };
                error.context(format_args!("{path:?}{others}, {what}"))
            });
            let error = match refused.left.is_empty() && refused.directories.is_empty() {
                true => error,
                false => error.or_advise("check the file system there (fsck), then run it again with -c"),
            };
            self.last_error(error)
        })
    }

    /// A run that ends early leaves nothing that a disk refused, nor an error of that for the next one to hear of.
    pub(super) fn sync_left(&mut self) {
        if self.settings.is_refused.get() || !self.settings.unsynced.borrow().is_empty() {
            let _ = self.sync();
        }
    }

    /// Removes those of `unsynced` that are not on the disk.
    fn remove_refused(&self, unsynced: &[Unsynced]) -> Refused {
        // Before anything is changed in them: they are told of once.
        let mut doubts = Doubts { base: &self.landing.base, asked: HashMap::new() };
        unsynced.iter().for_each(|it| doubts.ask_of(it));
        let doubted: Vec<Option<Errno>> = unsynced.iter().map(|it| doubts.any(it)).collect();
        // Of several names of one file the first that asks is told.
        let told = self.settings.refused.take();
        let mut asked: HashMap<_, _> = told.into_iter().map(|(file, error)| (file, Some(error))).collect();
        let mut refused = Refused::default();
        // What lies in a directory goes before it.
        for (it, doubt) in unsynced.iter().zip(doubted).rev() {
            let Some((directory, name)) = place_of(&self.landing.base, &it.path) else { continue };
            let is_it = |found: &Statx| it.is(found);
            let Some(found) = directory.stat_for(name, FACTS).ok().filter(is_it) else { continue };
            let kind = file_type(&found);
            let error = match kind {
                FileType::RegularFile => {
                    let own = *asked.entry(it.identity).or_insert_with(|| it.refused(&directory, name));
                    doubt.or(own)
                }
                _ => doubt,
            };
            let Some(error) = error else { continue };
            let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let is_removed = rustix::fs::unlinkat(&directory, name, flags).is_ok();
            refused.why = refused.why.or(Some(error));
            if is_removed { &mut refused.removed } else { &mut refused.left }.push(it.path.clone());
        }
        // What a disk refuses of that is told here, and not to the next run.
        if !refused.removed.is_empty() {
            let _ = self.settings.devices.borrow().sync();
            for (path, _) in doubts.asked.iter().filter(|(_, doubt)| doubt.own.is_some()) {
                let _ = self.landing.base.below(path).map(|directory| was_directory_refused(&directory));
            }
        }
        refused.removed.reverse();
        refused.left.reverse();
        let made: HashSet<&[u8]> = unsynced.iter().map(|it| &it.path[..]).collect();
        let is_older = |path: &Vec<u8>| !made.contains(&path[..]);
        // Of one that turned read-only nobody knows.
        let told = |doubt: &Doubt| doubt.own.is_some_and(is_refusal);
        let told = doubts.asked.into_iter().filter_map(|(path, doubt)| told(&doubt).then_some(path));
        refused.directories = told.filter(is_older).collect();
        refused.directories.sort_unstable();
        if !refused.directories.is_empty() {
            refused.why = refused.why.or(Some(Errno::IO));
        }
        refused
    }
}

/// What is known of a directory.
#[derive(Clone, Copy, Default)]
struct Doubt {
    /// Why some of it is not on the disk.
    own: Option<Errno>,
    /// The same of it or of one above it.
    any: Option<Errno>,
}

/// Directories of which a disk may have refused some.
struct Doubts<'a> {
    base: &'a Directory,
    asked: HashMap<Vec<u8>, Doubt>,
}

impl Doubts<'_> {
    /// Asks for all directories that lead to `it`, and for itself if it is one.
    fn ask_of(&mut self, it: &Unsynced) {
        let ends = it.path.iter().enumerate().filter_map(|(at, byte)| (*byte == b'/').then_some(at));
        let ends = ends.chain(it.is_directory.then_some(it.path.len()));
        let mut doubt = self.ask(&[], Doubt::default());
        for end in ends {
            doubt = self.ask(&it.path[..end], doubt);
        }
    }

    /// Why `it` may not be found on the disk.
    fn any(&self, it: &Unsynced) -> Option<Errno> {
        let way = if it.is_directory { &it.path[..] } else { split(&it.path).0 };
        self.asked.get(way)?.any
    }

    fn ask(&mut self, path: &[u8], above: Doubt) -> Doubt {
        if let Some(known) = self.asked.get(path) {
            return *known;
        }
        let own = self.base.below(path).ok().and_then(|directory| was_directory_refused(&directory));
        let doubt = Doubt { own, any: above.any.or(own) };
        self.asked.insert(path.to_vec(), doubt);
        doubt
    }
}

/// A file stays where it was, for the disk did not take it.
fn refused_by_disk(error: Errno) -> Error {
    Error::file("write the file to its disk", error.into())
}

/// Where what a disk refused was.
#[derive(Default)]
struct Refused {
    why: Option<Errno>,
    removed: Vec<Vec<u8>>,
    left: Vec<Vec<u8>>,
    /// Directories that were there before.
    directories: Vec<Vec<u8>>,
}

impl Unsynced {
    fn is(&self, found: &Statx) -> bool {
        (identity_of(found), born(found)) == (self.identity, self.born)
    }

    /// Why the file, under this name, is not on the disk.
    fn refused(&self, directory: &Directory, name: &[u8]) -> Option<Errno> {
        match directory.open_to_read(name) {
            Ok(file) if stat_fd_for(file.as_fd(), FACTS).is_ok_and(|found| self.is(&found)) => {
                rustix::fs::fsync(&file).err()
            }
            Ok(_) => None,
            // Where nobody can ask, nobody knows.
            Err(_) => Some(Errno::IO),
        }
    }
}

/// Why some of `directory` is not on the disk.
fn was_directory_refused(directory: &Directory) -> Option<Errno> {
    // There nothing is written any more, and nobody is told of what was not.
    if fstatvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Some(Errno::ROFS);
    }
    rustix::fs::fsync(directory).err().filter(|error| is_refusal(*error))
}

/// True of what fsync(2) says where the disk did not take something; what else it says is of the call.
fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::IO | Errno::NOSPC | Errno::DQUOT)
}

/// The directory of what is at `path` below `base`, and its name there.
fn place_of<'a>(base: &Directory, path: &'a [u8]) -> Option<(Directory, &'a [u8])> {
    let (above, name) = split(path);
    Some((base.below(above).ok()?, name))
}

/// The way to the directory of what is at `path`, and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => (&path[..end], &path[end + 1..]),
        None => (&path[..0], path),
    }
}

/// True if what is read of the file `name` may not be what its disk has, which refused some of it. Else it is read from the disk from now on.
pub(super) fn was_refused(directory: &Directory, name: &Name) -> bool {
    let Ok(file) = directory.open_to_read(name.as_bytes()) else { return false };
    if rustix::fs::fsync(&file).is_err_and(is_refusal) {
        return true;
    }
    // Who has asked before was told, and nobody else is.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    false
}
