//! What is to be on its disk, and what the disk refused.
//!
//! A file system says of bytes that a disk refused, as one does that was promised more room than there is, only when it is asked to make them durable; it says it once, and goes on to read them
//! from memory for a while. So with `--fsync`, and where sources go, a file is durable before it takes the place of anything. What is new is made durable together, and has a time before its
//! source's until it is: the next run compares it, whatever ended this one. If it fails, each is asked for by itself, and what is not on the disk is removed again. So is what lies in a directory of
//! which the disk refused some: a file system without a journal tells that who asks for the directory ([`super::refused`]).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use dray_core::Error;
use dray_core::tree::Name;
use rustix::fs::{Advice, AtFlags, CWD, FileType, Mode, OFlags, Statx};
use rustix::io::{Errno, ReadWriteFlags};

use super::directory::{Directory, stat_fd, stat_fd_for};
use super::ext4;
use super::opened::{Devices, OpenDirectory, not_durable};
use super::overwrite::{FACTS, born};
use super::place::{FileTarget, Identity, NewFile, There, identity_of, times_of};
use super::read_only::turned_read_only;
use super::refused::{Device, Doubts, device_of, is_marked_file, is_refusal, mark_file};
use super::settings::{Settings, mtime_of};
use super::write::{TreeWriter, file_type};
use crate::local::file_systems::{BTRFS, EXT, OVERLAY, kind_of, lies_on};

/// Files up to a page are asked for together.
const TOGETHER_MAX: u64 = 4 << 10;
/// New names, and bytes of their paths and of those of the directories on the way, after which what came is made durable.
const UNSYNCED_MAX: usize = 16_384;
const UNSYNCED_BYTES_MAX: usize = 16 << 20;

/// What to do where the disk refused something of what stays.
const CHECK: &str = "unmount the file system there and check it (fsck), then run it again with -c";

/// What has a name that may not be on the disk yet: it is new, or took the place of something and its source is to go.
#[derive(Debug)]
pub(super) struct Unsynced {
    /// Below the destination.
    pub(super) path: Vec<u8>,
    identity: Identity,
    born: (i64, u32),
    pub(super) is_directory: bool,
    /// Of a file that this run made and that was not asked for by itself.
    made: Option<Made>,
}

/// What tells the next run to compare a file that this run made, if that does not come to its end.
#[derive(Debug)]
pub(super) enum Made {
    /// Its time, which it has not got yet.
    HeldBack(HeldBack),
    /// Where its source goes, which has this time of modification in seconds, all that is there is compared by the next run. By one of another kind only if this one is told that the disk refused something.
    Timed(i64),
}

/// The time of modification of a new file, which gets it once all of it is on its disk. Until then it has one before its source's, so that a run that finds it, after whatever ended this one, compares it and
/// does not believe its size and time.
#[derive(Debug)]
pub(super) struct HeldBack {
    /// Opened for that alone (`O_PATH`): whatever becomes of its name, and of the way to that.
    file: OwnedFd,
    /// That it has now.
    now: (i64, u32),
    then: (i64, u32),
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
        // Of what may not be opened, all that its file system has is asked for. Where that tells nothing it was synced under its first name.
        let Ok(file) = directory.open_to_read(name) else {
            let synced = rustix::fs::syncfs(directory).inspect_err(|_| self.is_refused.set(true));
            return synced.map_err(refused_by_disk);
        };
        self.make_durable(&file).map_err(|error| {
            if let Ok(found) = stat_fd(file.as_fd()) {
                // Nobody else is told.
                self.refused.borrow_mut().push((identity_of(&found), error));
                self.unsynced_bytes.set(self.unsynced_bytes.get() + size_of::<(Identity, Errno)>());
            }
            refused_by_disk(error)
        })
    }

    /// Why some of what was written to the file system of `directory` is not on its disk, where syncfs(2) does not say so: it turned read-only, or others were told.
    fn untold_refusal(&self, directory: &Directory, changed: Option<&Directory>) -> Option<Errno> {
        let had_reason = || match kind_of(directory) {
            Ok(BTRFS) => true,
            Ok(EXT) => {
                device_of(directory).and_then(|device| ext4::has_errors(device, [directory])) != Some(false)
            }
            _ => false,
        };
        if turned_read_only(directory) && had_reason() {
            return Some(Errno::ROFS);
        }
        self.has_errors_now(directory, changed).then_some(Errno::IO)
    }

    /// True if each new file is asked for before it gets its name: where syncfs(2) tells nothing of what the disk refused, as that of an overlay; and where a
    /// time that is held back would do harm, or none differs: a run that believes what is there whatever its time, or what is newer, would never look at it, one that keeps backups would keep it, and
    /// another source may be compared with it; or where this process may not have as many files open.
    fn asks_singly(&self, device: Device, fd: BorrowedFd<'_>) -> bool {
        let believes_now =
            || self.sync().is_some_and(|sync| sync.update) && !self.keeps_time_of(FileType::RegularFile);
        let would_harm = self.believes_whatever_time() || self.backup().is_some() || self.roots_meet;
        let is_full = || self.unsynced.borrow().len() >= self.held_max;
        would_harm || believes_now() || is_full() || self.is_overlay(device, fd)
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

impl FileTarget {
    /// True if it takes the place of anything.
    pub(super) fn replaces(&self) -> bool {
        !matches!(self.there, There::Nothing)
    }

    /// To be called before what stands there makes way for `file`. What is not asked for now has its time held back.
    pub(super) fn settle(&self, file: &NewFile) -> dray_core::Result<Option<Made>> {
        let settings = self.directory.settings();
        let fd = file.file().as_fd();
        let is_late = settings.fails_late(self.directory.device, fd);
        if !is_late && !settings.is_durable() {
            return Ok(None);
        }
        if !is_late && !self.replaces() && !settings.asks_singly(self.directory.device, fd) {
            // It has the time of now, which is not its source's.
            if !settings.keeps_time_of(FileType::RegularFile) {
                return Ok(None);
            }
            // Who takes a file from a spool at once, or goes by its time, is to find the right one.
            if settings.removes_sources() && !settings.durable {
                return Ok(Some(Made::Timed(self.metadata.mtime_s)));
            }
            if !settings.removes_sources()
                && let Some(held_back) = HeldBack::of(fd, self.metadata.mtime_s)
            {
                return Ok(Some(Made::HeldBack(held_back)));
            }
        }
        settings.make_durable(fd).map_err(refused_by_disk)?;
        Ok(None)
    }
}

impl HeldBack {
    /// Holds back the time of a new file, whose source has this one; `None` where the file system has no such time, it may not be set, or `/proc`, by which the file is opened again, or descriptors lack.
    fn of(file: BorrowedFd<'_>, source_mtime_s: i64) -> Option<HeldBack> {
        let mtime = || stat_fd(file).map(|found| mtime_of(&found)).ok();
        let path = Directory::path_of(file);
        let opened = rustix::fs::open(&path[..], OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let then = mtime()?;
        rustix::fs::futimens(file, &times_of((time_before(source_mtime_s), 0))).ok()?;
        let now = mtime()?;
        if is_before(now, source_mtime_s) {
            return Some(HeldBack { file: opened, now, then });
        }
        let _ = rustix::fs::futimens(file, &times_of(then));
        None
    }

    /// Gives the file its time, unless somebody changed it; false then.
    fn end(&self) -> Result<bool, Errno> {
        let found = stat_fd(self.file.as_fd()).map_err(|_| Errno::IO)?;
        if mtime_of(&found) != self.now {
            return Ok(false);
        }
        let times = times_of(self.then);
        match rustix::fs::utimensat(&self.file, "", &times, AtFlags::EMPTY_PATH) {
            // Older kernels set no times by a descriptor that opens nothing.
            Err(Errno::INVAL | Errno::NOENT) => {
                let path = Directory::path_of(self.file.as_fd());
                rustix::fs::utimensat(CWD, &path[..], &times, AtFlags::empty())?
            }
            set => set?,
        }
        Ok(true)
    }
}

impl OpenDirectory {
    /// What `look` finds, which asks for [`FACTS`], got this name; it is noted where names of what comes are.
    pub(super) fn note_new(&self, name: &Name, replaces: bool, look: impl FnOnce() -> io::Result<Statx>) {
        if self.settings().is_noted(replaces)
            && let Ok(found) = look()
        {
            self.note_unsynced(name, &found, None);
        }
    }

    /// The same of a file, a hard link to the one of this identity, unless another took its name since.
    pub(super) fn note_linked(&self, name: &Name, replaces: bool, identity: Identity) {
        self.note_new(name, replaces, || {
            let found = self.directory.stat_for(name.as_bytes(), FACTS)?;
            if identity_of(&found) == identity { Ok(found) } else { Err(Errno::STALE.into()) }
        });
    }

    /// What `found`, asked for with [`FACTS`], tells of got this name, where what comes is to be on its disk.
    pub(super) fn note_unsynced(&self, name: &Name, found: &Statx, made: Option<Made>) {
        let is_directory = file_type(found) == FileType::Directory;
        let (path, identity, born) = (self.path(name), identity_of(found), born(found));
        let noted = Unsynced { path, identity, born, is_directory, made };
        let settings = self.settings();
        settings.unsynced_bytes.set(settings.unsynced_bytes.get() + way_bytes(&noted.path));
        settings.unsynced.borrow_mut().push(noted);
    }
}

impl TreeWriter {
    /// True if so much came that it is to be made durable, by [`TreeWriter::sync`], before more does.
    pub fn is_sync_due(&self) -> bool {
        self.settings.unsynced.borrow().len() >= UNSYNCED_MAX.min(self.settings.held_max)
            || self.settings.unsynced_bytes.get() >= UNSYNCED_BYTES_MAX
    }

    /// Waits until everything is on disk, on every file system that was written to. What a disk refused of what is new is removed again, or has its time held back.
    pub fn sync(&mut self) -> dray_core::Result<()> {
        self.sync_as(true)
    }

    /// The same where more is to come, and [`TreeWriter::sync`] after it: times that files get now may not be on disk yet.
    pub fn sync_what_came(&mut self) -> dray_core::Result<()> {
        self.sync_as(false)
    }

    fn sync_as(&mut self, is_last: bool) -> dray_core::Result<()> {
        let Some((error, refused)) = self.sync_all(is_last) else { return Ok(()) };
        let error = match &mut self.stage {
            Some(stage) => stage.doubt(error),
            None => error,
        };
        Err(self.with_outcome(refused.tell(error)))
    }

    /// The same; what went wrong, and what became of what is new.
    fn sync_all(&mut self, is_last: bool) -> Option<(Error, Refused)> {
        let devices = self.settings.devices.borrow();
        let mut failed = self.sync_devices(&devices);
        let mut unsynced = self.settings.unsynced.take();
        self.settings.unsynced_bytes.set(0);
        let is_refused = self.settings.is_refused.take();
        if failed.is_empty() && !is_refused {
            let has_given = self.give_times(&unsynced);
            if has_given && is_last {
                failed = self.sync_devices(&devices);
            }
            if failed.is_empty() {
                return None;
            }
            // All of it is on the disk; at most their times are not.
            unsynced.iter_mut().for_each(|it| it.made = None);
        }
        // It may be anything: what lists the entries, or has their attributes. Before anybody is asked, who tells it once.
        let base = (device_of(&self.landing.base), &self.landing.base);
        let place = |directory| if device_of(directory) == base.0 { base.1 } else { directory };
        let tells = |directory: &&Directory| self.settings.tells_of_directories(directory);
        let doubted: Vec<_> = failed.iter().map(|(directory, _)| place(*directory)).filter(tells).collect();
        doubted.iter().for_each(|directory| self.settings.mark_with_top(directory));
        let failing: Vec<_> = failed.iter().filter_map(|(directory, _)| device_of(directory)).collect();
        let mut refused = match &self.stage {
            Some(_) => Refused::default(),
            None => self.remove_refused(&unsynced, &failing),
        };
        if refused.directories.is_empty() {
            refused.directories.extend(doubted.into_iter().map(|directory| self.path_told(directory)));
        }
        let why = failed.first().map(|(_, error)| *error).or(refused.why)?;
        let error = match why {
            Errno::ROFS => Error::file("make it durable: the file system turned read-only", Errno::IO.into())
                .or_advise(CHECK),
            _ => not_durable(why.into()),
        };
        Some((error, refused))
    }

    /// Waits until everything on these file systems is on disk; a directory of each that refused something, and why.
    fn sync_devices<'a>(&'a self, devices: &'a Devices) -> Vec<(&'a Directory, Errno)> {
        let mut failed = devices.sync_each();
        let is_told = |device| failed.iter().any(|(directory, _)| device_of(directory) == device);
        let is_seen = |device| devices.all().any(|directory| device_of(directory) == device);
        let base = Some(&self.landing.base).filter(|base| !is_seen(device_of(base)));
        let all = devices.all().chain(base).filter(|directory| !is_told(device_of(directory)));
        let changed = self.landing.base.below(place_of(&self.settings.last_placed.borrow()).0).ok();
        let untold = |it| Some((it, self.settings.untold_refusal(it, changed.as_ref())?));
        let untold = all.filter_map(untold).collect::<Vec<_>>();
        failed.extend(untold);
        failed
    }

    /// Gives those of `unsynced`, which are on the disk, the times that were held back; true if any was.
    fn give_times(&self, unsynced: &[Unsynced]) -> bool {
        let mut has_given = false;
        for made in unsynced.iter().filter_map(|it| it.made.as_ref()) {
            let Made::HeldBack(held_back) = made else { continue };
            match held_back.end() {
                Ok(is_given) => has_given |= is_given,
                Err(error) => self.settings.count("modification time", error),
            }
        }
        has_given
    }

    /// A directory as it is told: empty for the base, else by its whole path.
    fn path_told(&self, directory: &Directory) -> Vec<u8> {
        if std::ptr::eq(directory, &self.landing.base) {
            return Vec::new();
        }
        let path = std::fs::read_link(OsStr::from_bytes(&Directory::path_of(directory.as_fd())));
        path.map_or_else(|_| b"..".to_vec(), |path| path.into_os_string().into_vec())
    }

    /// A run that ends early by `error` leaves nothing that a disk refused, and says so.
    pub(super) fn with_left(&mut self, error: Error) -> Error {
        match self.sync_left() {
            Some((_, refused)) if self.stage.is_none() => refused.tell(error),
            _ => error,
        }
    }

    /// A run that ends early leaves nothing that a disk refused, nor an error of that for the next one to hear of.
    pub(super) fn sync_left(&mut self) -> Option<(Error, Refused)> {
        let is_left = self.settings.is_refused.get() || !self.settings.unsynced.borrow().is_empty();
        if is_left { self.sync_all(true) } else { None }
    }

    /// Removes those of `unsynced` that are not on the disk; of these file systems something was refused, whatever it was.
    fn remove_refused(&self, unsynced: &[Unsynced], failing: &[Device]) -> Refused {
        // Before anything is changed in them: they are told of once.
        let mut doubts = Doubts::new(&self.settings, &self.landing.base);
        unsynced.iter().for_each(|it| doubts.ask_of(it));
        doubts.mark_all(failing);
        // Of several names of one file the first that asks is told.
        let told = self.settings.refused.take();
        let mut asked: HashMap<_, _> = told.into_iter().map(|(file, error)| (file, Some(error))).collect();
        let mut refused = Refused::default();
        // What lies in a directory goes before it.
        for it in unsynced.iter().rev() {
            let (way, name) = it.place();
            let directory = match self.landing.base.below(way) {
                Ok(directory) => directory,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                // Where nobody can ask, nobody knows.
                Err(_) => {
                    refused.why = refused.why.or(Some(Errno::IO));
                    refused.left.push(it.path.clone());
                    continue;
                }
            };
            let is_it = |found: &Statx| it.is(found);
            let found = match directory.stat_for(name, FACTS) {
                Ok(found) => Some(found).filter(is_it),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    refused.why = refused.why.or(Errno::from_io_error(&error));
                    refused.left.push(it.path.clone());
                    None
                }
            };
            let Some(found) = found else { continue };
            let is_directory = file_type(&found) == FileType::Directory;
            let mut error = doubts.of(it);
            if file_type(&found) == FileType::RegularFile {
                let own = *asked.entry(it.identity).or_insert_with(|| it.refused(&directory, name));
                error = error.or(own);
                let is_failing = failing.contains(&(found.stx_dev_major, found.stx_dev_minor));
                match it.made.as_ref().filter(|_| error.is_none()) {
                    Some(Made::HeldBack(_)) if is_failing => refused.doubted.push(it.path.clone()),
                    Some(Made::HeldBack(held_back)) => {
                        if let Err(failed) = held_back.end() {
                            self.settings.count("modification time", failed);
                        }
                    }
                    Some(&Made::Timed(source_mtime_s)) if is_failing => {
                        match it.doubt(&directory, name, source_mtime_s) {
                            Ok(true) => refused.doubted.push(it.path.clone()),
                            Ok(false) => continue,
                            Err(failed) => error = Some(failed),
                        }
                    }
                    Some(Made::Timed(_)) | None => {}
                }
            }
            if is_long_link(&found) && self.settings.tells_of_directories(&directory) {
                error = error.or(Some(Errno::IO));
            }
            let Some(error) = error else { continue };
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let is_removed = rustix::fs::unlinkat(&directory, name, flags).is_ok();
            refused.why = refused.why.or(Some(error));
            if is_removed { &mut refused.removed } else { &mut refused.left }.push(it.path.clone());
        }
        // What a disk refuses of that is told here, and not to the next run.
        if !refused.removed.is_empty() || !refused.doubted.is_empty() {
            let synced = self.settings.devices.borrow().sync();
            doubts.hear_out();
            if synced.is_err() {
                // The names may be back when the file system is mounted anew.
                refused.left.append(&mut refused.removed);
            }
        }
        refused.removed.reverse();
        refused.left.reverse();
        refused.doubted.reverse();
        let removed: HashSet<&[u8]> = refused.removed.iter().map(|path| &path[..]).collect();
        let stands = |path: &&[u8]| !removed.contains(path);
        refused.directories = doubts.refused().filter(stands).map(<[u8]>::to_vec).collect();
        refused.directories.sort_unstable();
        if !refused.directories.is_empty() {
            refused.why = refused.why.or(Some(Errno::IO));
        }
        refused
    }
}

/// The way to the directory of what is at `path`, and its name there.
fn place_of(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => (&path[..end], &path[end + 1..]),
        None => (&path[..0], path),
    }
}

/// Bytes of a path and of those of all directories on the way, each of which is remembered by its path where a disk refused something.
fn way_bytes(path: &[u8]) -> usize {
    let directories = path.iter().enumerate().filter_map(|(at, byte)| (*byte == b'/').then_some(at));
    path.len() + directories.sum::<usize>()
}

/// True of a symbolic link that may have a block of its own for what it says, which nobody can ask for: ext2 and ext4 have room for 59 bytes beside its facts.
pub(super) fn is_long_link(found: &Statx) -> bool {
    file_type(found) == FileType::Symlink && found.stx_size > 59
}

/// A file stays where it was, for the disk did not take it.
fn refused_by_disk(error: Errno) -> Error {
    Error::file("write the file to its disk", error.into())
}

/// Where what a disk refused was.
#[derive(Default)]
pub(super) struct Refused {
    why: Option<Errno>,
    removed: Vec<Vec<u8>>,
    left: Vec<Vec<u8>>,
    /// Files of which the disk may have refused some: what left memory meanwhile took the word of that with it. Each has another time now than its source.
    doubted: Vec<Vec<u8>>,
    /// Directories of which it refused some, and that stand.
    directories: Vec<Vec<u8>>,
}

impl Refused {
    /// Adds it to `error`.
    fn tell(&self, error: Error) -> Error {
        let all = [
            (&self.removed, "which is not on the disk, or may not be, and was removed again"),
            (&self.left, "which may not be on the disk, and stays there"),
            (&self.doubted, "which may not be on the disk, and is compared by the next run"),
            (&self.directories, "a directory of which the disk refused some"),
        ];
        let told = all.into_iter().filter_map(|(paths, what)| Some((paths.first()?, paths.len() - 1, what)));
        let error = told.fold(error, |error, (first, others, what)| {
            let path = String::from_utf8_lossy(if first.is_empty() { b"." } else { first });
            let others = if others == 0 { String::new() } else { format!(" and {others} more") };
            error.context(format_args!("{path:?}{others}, {what}"))
        });
        if self.left.is_empty() && self.directories.is_empty() {
            return error;
        }
        error.advise(CHECK)
    }
}

impl Unsynced {
    /// The way to its directory, and its name there.
    pub(super) fn place(&self) -> (&[u8], &[u8]) {
        place_of(&self.path)
    }

    #[cfg(test)]
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.made, Some(Made::Timed(_)))
    }

    #[cfg(test)]
    pub(super) fn at(path: &str, is_directory: bool) -> Unsynced {
        Unsynced { path: path.into(), identity: (0, 0, 0), born: (0, 0), is_directory, made: None }
    }

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

    /// Gives the file, of which nothing was told, a time of modification that has the next run compare it with its source, which has this one; false if it is another file by now.
    fn doubt(&self, directory: &Directory, name: &[u8], source_mtime_s: i64) -> Result<bool, Errno> {
        let file = directory.open_to_read(name).map_err(|_| Errno::IO)?;
        if !stat_fd_for(file.as_fd(), FACTS).is_ok_and(|found| self.is(&found)) {
            return Ok(false);
        }
        rustix::fs::futimens(&file, &times_of((time_before(source_mtime_s), 0)))?;
        let now = stat_fd(file.as_fd()).map_err(|_| Errno::IO)?;
        if is_before(mtime_of(&now), source_mtime_s) { Ok(true) } else { Err(Errno::IO) }
    }
}

impl Settings {
    /// True if the file `name`, which is there, is to come anew before it is believed, or its source may go. Where there is no journal, what lists its blocks, or has its attributes, may have been
    /// refused, and nobody can ask for that.
    pub(super) fn is_unsure(&self, directory: &Directory, name: &Name) -> bool {
        (self.removes_sources() && self.tells_of_directories(directory)) || self.was_refused(directory, name)
    }

    /// True if what is read of the file `name` may not be what its disk has, which refused some of it. Else it is read from the disk from now on.
    fn was_refused(&self, directory: &Directory, name: &Name) -> bool {
        let Ok(file) = directory.open_to_read(name.as_bytes()) else { return false };
        let Ok(found) = stat_fd(file.as_fd()) else { return false };
        // What is small is not asked for by itself, which has the disk wait each time: all was written before, and what is not in memory any more is what the disk has.
        let is_small = found.stx_size <= TOGETHER_MAX
            && self.is_written((found.stx_dev_major, found.stx_dev_minor), &file);
        if !is_small || !is_forgotten(&file) {
            if rustix::fs::fsync(&file).is_err_and(is_refusal) {
                return true;
            }
            // Who has asked before was told, and nobody else is.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        false
    }

    /// True if what another directory has under this name may not be on its disk. All of the disk's file system is asked for at once, the file by itself only where that told something, or tells
    /// nothing; what that tells is written down at the file, for it does once. What is read of it, if it is read, is what the disk has.
    pub(super) fn may_be_refused(&self, directory: &Directory, name: &Name, is_read: bool) -> bool {
        let Ok(file) = directory.open_to_read(name.as_bytes()) else {
            return !device_of(directory).is_some_and(|device| self.is_written(device, directory));
        };
        let Ok(found) = stat_fd(file.as_fd()) else { return false };
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let is_silent = self.fails_late(device, file.as_fd()) || self.is_overlay(device, file.as_fd());
        let is_written = !is_silent && self.is_written(device, &file);
        let is_refused = !is_written && rustix::fs::fsync(&file).is_err_and(is_refusal);
        if is_refused {
            mark_file(file.as_fd());
        }
        if is_refused || is_marked_file(file.as_fd()) {
            return true;
        }
        if is_read {
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        false
    }

    /// True of an overlay, whose syncfs(2) does not hear of the file system of its upper layer.
    fn is_overlay(&self, device: Device, fd: BorrowedFd<'_>) -> bool {
        self.overlays.get(device, || lies_on(fd, &[OVERLAY]))
    }

    /// Everything of the file system was written once since the run began.
    fn is_written(&self, device: (u32, u32), file: &impl AsFd) -> bool {
        self.written_devices.get(device, || rustix::fs::syncfs(file).is_ok())
    }
}

const DAY_S: i64 = 24 * 3600;

/// A time before the one of a source: the epoch, as of what rsync did not bring to its end, or a year earlier. So it is compared, also where what is newer stays.
fn time_before(source_mtime_s: i64) -> i64 {
    if source_mtime_s > 2 * DAY_S { 0 } else { source_mtime_s.saturating_sub(365 * DAY_S) }
}

/// True if a file system took such a time. Not every one has every time: the first of FAT is of 1980.
fn is_before(mtime: (i64, u32), source_mtime_s: i64) -> bool {
    mtime.0 < source_mtime_s.saturating_sub(DAY_S)
}

/// Forgets what is in memory of a file of a page; false if it is still there, as where it was written to since, or is in use.
fn is_forgotten(file: &impl AsFd) -> bool {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    let mut byte = [0];
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN) | Ok(0))
}

#[cfg(test)]
mod tests {
    use dray_core::limits::TREE_DEPTH_MAX;

    use super::*;

    /// What is remembered stays bounded in deep directories, too: a name with the longest way comes alone.
    #[test]
    fn names_with_long_ways_are_few() {
        assert_eq!(way_bytes(b"f"), 1);
        assert_eq!(way_bytes(b"a/bc/f"), "a".len() + "a/bc".len() + "a/bc/f".len());
        let deepest = vec![vec![b'd'; 255]; TREE_DEPTH_MAX].join(&b'/');
        assert!(way_bytes(&deepest) > UNSYNCED_BYTES_MAX);
    }

    /// ADR 38: what is doubted is older than its source, whatever time that has.
    #[test]
    fn what_is_doubted_is_older_than_its_source() {
        for source in [i64::MIN, -1_000_000_000, -1, 0, 1, 2 * DAY_S, 2 * DAY_S + 1, 1_700_000_000, i64::MAX]
        {
            let doubted = time_before(source);
            assert!(doubted < source.saturating_sub(DAY_S) || source == i64::MIN, "{source}: {doubted}");
        }
        assert_eq!(time_before(1_700_000_000), 0);
        // What FAT makes of the epoch.
        let earliest = 315_532_800;
        assert!(is_before((earliest, 0), 1_700_000_000) && !is_before((earliest, 0), earliest + DAY_S));
    }
}
