//! A file that is there is changed, not replaced (`--inplace`): it keeps its inode, and only what differs is written.
//!
//! What comes is written beside it and proven there, as ever, and compared with it. Before the first byte that differs is written over it gets a name that says that the file
//! is neither old nor new from now on; and in the end that name goes. Who is killed in between leaves the name and the whole file under it, from which the next run takes the content.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_LINK_GROUPS_MAX;
use dray_core::tree::{Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Advice, FileType, FlockOperation, Gid, Mode, OFlags, Statx, StatxFlags, Uid};
use rustix::io::Errno;

use super::attributes::{self, AttributeSort};
use super::backup::Away;
use super::contested::key;
use super::delete::made_at;
use super::directory::{Directory, stat_fd, stat_fd_for};
use super::listing::Listing;
use super::look::is_overlay;
use super::mounts::MountNumber;
use super::opened::OpenDirectory;
use super::place::{FileTarget, Identity, Kept, NewFile, Now, identity_of, times_of};
use super::removing::mark_changed;
use super::reserving::try_room;
use super::settings::{Settings, mtime_of};
use super::temporary::{self, Temporary};
use super::write::file_type;
use super::writing_over::Over;

/// The attribute that gives a program rights of root's.
const CAPABILITY: &[u8] = b"security.capability";
/// How long a file of several names is waited for that is changed under another one, and how often that is looked at.
const NAMES_PATIENCE: Duration = Duration::from_secs(2);
const NAMES_INTERVAL: Duration = Duration::from_millis(20);

/// Which file is meant. Numbers of inodes are given out again, so when it was made counts, too, where that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Which {
    identity: Identity,
    pub(super) made: Option<(i64, u32)>,
}

impl Which {
    /// That of which `found`, asked for with [`FACTS`], tells.
    pub(super) fn of(found: &Statx) -> Which {
        Which { identity: identity_of(found), made: made_at(found) }
    }

    /// True if `found`, asked for with [`FACTS`], tells of it and it bears this name.
    pub(super) fn is(&self, found: &Statx, directory: &Directory, name: &[u8]) -> bool {
        let made = self.made.zip(made_at(found));
        self.identity == identity_of(found)
            && (made.is_none_or(|(was, is)| was == is) || is_copied_up(directory, name))
    }
}

/// True if the file may lie in another layer by now than when it was looked at, which gives it another time of birth and the same number.
fn is_copied_up(directory: &Directory, name: &[u8]) -> bool {
    let opened = directory.open_at(name, OFlags::PATH, Mode::empty());
    opened.is_ok_and(|file| is_overlay(&Directory::from(file)))
}

/// The file that is changed, as it was when it was decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Existing {
    pub(super) which: Which,
    /// It has other names.
    has_names: bool,
}

impl Existing {
    /// What `found` tells of, if it is to be changed; `metadata` is told of what comes.
    pub(super) fn of(settings: &Settings, found: &Statx, metadata: &Metadata) -> Option<Existing> {
        let is_changed = settings.overwrites(found) && !settings.lends_powers(found, metadata);
        let existing = || Existing { which: Which::of(found), has_names: found.stx_nlink > 1 };
        is_changed.then(existing)
    }

    /// How it is kept where it is replaced after all: what is another name of a changed file would change with it.
    pub(super) fn away(&self) -> Away {
        Away::Changed(self.which)
    }
}

/// What became of a file of several names under one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    /// Of the path below the destination.
    path: [u8; 16],
    is_changed: bool,
}

impl Settings {
    /// True if files that are there are changed, where that may be.
    pub(super) fn in_place(&self) -> bool {
        self.sync().is_some_and(|sync| sync.in_place)
    }

    /// True if the regular file that `found` tells of is changed, not replaced. Not one of several names where those may lie in what is not to change: in other
    /// directories that have what is to come, or outside of where a login is confined to.
    pub(super) fn overwrites(&self, found: &Statx) -> bool {
        let Some(sync) = self.sync().filter(|sync| sync.in_place) else { return false };
        found.stx_nlink == 1 || (sync.basis.is_none() && self.confined.is_none())
    }

    /// True if a file may stay for its size or time although a run was cut off while it changed it.
    pub(super) fn may_keep_half(&self, found: &Statx) -> bool {
        self.overwrites(found) && self.sync().is_some_and(|sync| sync.update || sync.size_only)
    }

    /// True if what the file is read as proves nothing where a run was cut off while it changed it: bytes that a disk refused are read for a while, and then those
    /// that it has.
    pub(super) fn distrusts_half(&self, found: &Statx) -> bool {
        self.overwrites(found) && self.is_durable()
    }

    /// True if the regular file `name`, which `found` tells of, would get powers with what is told of an entry that it has the content of: setuid or setgid, or another owner or somebody
    /// who may run it with those, or capabilities. As with [`Settings::lends_powers`] another file is to have them; and what is there proves nothing, as who has it mapped writes to it and
    /// leaves its times as they are.
    pub(super) fn gains_powers(
        &self,
        directory: &Directory,
        name: &Name,
        metadata: &Metadata,
        found: &Statx,
    ) -> bool {
        let scope = self.attribute_scope().of(AttributeSort::Others).filter(|scope| scope.is_root);
        let capability = metadata.xattrs.iter().find(|it| it.name == CAPABILITY);
        let capability = scope.zip(capability).filter(|_| self.xattrs && !metadata.xattrs_unread);
        let may_have_bits = self.modes && self.mode(metadata.mode, || 0) & 0o6000 != 0;
        if !may_have_bits && capability.is_none() {
            return false;
        }
        let (mode, differences) = self.differences(metadata, found, || true);
        let has_bits = mode & 0o6000 != 0;
        let lacks = |(scope, capability)| {
            let read = directory.reach(name.as_bytes(), |path| attributes::read(path, scope));
            !read.is_ok_and(|found| found.contains(capability))
        };
        ((has_bits || capability.is_some()) && mode & !u32::from(found.stx_mode) & 0o6111 != 0)
            || (has_bits && differences.owner)
            || capability.is_some_and(lacks)
    }

    /// True if what comes has powers: another user may have the file open, or mapped, and what he writes to it would have them. Bits of now do not tell who could open
    /// it before.
    fn lends_powers(&self, found: &Statx, metadata: &Metadata) -> bool {
        let has_bits = self.modes && self.mode(metadata.mode, || 0) & 0o6000 != 0;
        if self.fakes() {
            // What it had it keeps until its attribute is another.
            return has_bits || found.stx_mode & 0o6000 != 0;
        }
        has_bits || (self.xattrs && metadata.xattrs.iter().any(|it| it.name == CAPABILITY))
    }

    /// What stands at `path` has several names, and this run changed it under this one, or let it be.
    fn meet(&self, identity: Identity, path: &[u8], is_changed: bool) {
        let mut met = self.met.borrow_mut();
        if met.len() < TREE_LINK_GROUPS_MAX || met.contains_key(&identity) {
            let now = Met { path: key(path), is_changed };
            let kept = met.entry(identity).or_insert(now);
            kept.is_changed |= is_changed;
        }
    }

    /// The same of a file that stays, if it may be changed under another name.
    pub(super) fn stays_at(&self, found: &Statx, path: &dyn Fn() -> Vec<u8>) {
        if found.stx_nlink > 1 && self.overwrites(found) {
            self.meet(identity_of(found), &path(), false);
        }
    }

    /// Whether what has several names was met under another one than `path`; whether it was changed then. Of what there was no room to remember nobody knows.
    fn met_elsewhere(&self, identity: Identity, path: &[u8]) -> Option<bool> {
        let met = self.met.borrow();
        match met.get(&identity) {
            Some(met) => (met.path != key(path)).then_some(met.is_changed),
            None => (met.len() >= TREE_LINK_GROUPS_MAX).then_some(false),
        }
    }

    /// True if this run changed what `found` tells of under another name than `path`.
    pub(super) fn changed_elsewhere(&self, found: &Statx, path: &dyn Fn() -> Vec<u8>) -> bool {
        found.stx_nlink > 1
            && self.overwrites(found)
            && self.met_elsewhere(identity_of(found), &path()) == Some(true)
    }
}

/// A name beside the file `name`, which `found` tells of, in the directory of this inode, for one of two uses. Another file there has others.
fn name_beside(directory: u64, name: &Name, found: &Statx, usage: &[u8]) -> Temporary {
    let born = born(found);
    let mut usage = usage.to_vec();
    usage.extend(found.stx_ino.to_be_bytes());
    usage.extend(born.0.to_be_bytes());
    usage.extend(born.1.to_be_bytes());
    temporary::beside(directory, name.as_bytes(), &usage)
}

/// When a file was made, as far as its file system tells: numbers of inodes are given out again at once.
pub(super) fn born(found: &Statx) -> (i64, u32) {
    let is_told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    if is_told { (found.stx_btime.tv_sec, found.stx_btime.tv_nsec) } else { (0, 0) }
}

/// That under which the whole content waits while the file gets it.
fn name_of_whole(directory: u64, name: &Name, found: &Statx) -> Temporary {
    name_beside(directory, name, found, b"in place")
}

/// That under which it waits until what is there is kept, and the first byte is to be written.
pub(super) fn name_of_claim(directory: &OpenDirectory, name: &Name, found: &Statx) -> Temporary {
    name_beside(directory.inode, name, found, b"in place, to come")
}

pub(super) const FACTS: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// The name of what a run that was cut off while it changed the file `name` left, if one was.
pub(super) fn left_whole(directory: &OpenDirectory, name: &Name) -> Option<Temporary> {
    left_beside(directory, name).0
}

/// The same, and that of what one left that was killed before that, while it kept the file or compared it.
pub(super) fn left_beside(directory: &OpenDirectory, name: &Name) -> (Option<Temporary>, Option<Temporary>) {
    if directory.is_new {
        return (None, None);
    }
    let found = directory.directory.stat_for(name.as_bytes(), FACTS).ok();
    let Some(found) = found.filter(|found| file_type(found) == FileType::RegularFile) else {
        return (None, None);
    };
    let left = |it: Temporary| has_whole(directory.settings(), &directory.directory, &it).then_some(it);
    (left(name_of_whole(directory.inode, name, &found)), left(name_of_claim(directory, name, &found)))
}

/// Whether a run of this user that was cut off while it changed the file `name` left something: for a plan, which changes nothing.
pub(super) fn is_left_half(settings: &Settings, directory: &Directory, name: &Name) -> bool {
    let facts = directory.stat_self().ok().zip(directory.stat_for(name.as_bytes(), FACTS).ok());
    facts
        .is_some_and(|(own, found)| has_whole(settings, directory, &name_of_whole(own.stx_ino, name, &found)))
}

/// Whether a run of this user left something under this name.
fn has_whole(settings: &Settings, directory: &Directory, whole: &Temporary) -> bool {
    left_at(directory, whole).is_some_and(|it| it.stx_uid == settings.powers.uid)
}

/// What a run of anybody left under this name.
fn left_at(directory: &Directory, whole: &Temporary) -> Option<Statx> {
    directory.stat(whole).ok().filter(|found| file_type(found) == FileType::RegularFile)
}

/// True if a file has come to its end although what was to be its content still waits: it has the time that this has, which it gets last.
fn has_ended(found: &Statx, whole: &Statx) -> bool {
    (found.stx_size, mtime_of(found)) == (whole.stx_size, mtime_of(whole))
}

/// True if the file `name`, which `found`, asked for with [`FACTS`], tells of, may be neither old nor new: a run of anybody was cut off while it changed it.
pub(super) fn is_half(directory: &Directory, name: &[u8], found: &Statx) -> bool {
    let whole = || {
        let inode = directory.stat_self().ok()?.stx_ino;
        left_at(directory, &name_of_whole(inode, &Name::new(name).ok()?, found))
    };
    file_type(found) == FileType::RegularFile && whole().is_some_and(|whole| !has_ended(found, &whole))
}

/// The names in `directory` under which, whoever left it, the whole content waits of a file there that is neither old nor new. `Interrupted` once `goes_on` says no.
pub(super) fn awaited_in(
    directory: &Directory,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<HashSet<Temporary>> {
    let listing = Listing::read(&directory.duplicate_for_listing()?, &mut Vec::new(), goes_on)?;
    let inode = directory.stat_self()?.stx_ino;
    let mut awaited = HashSet::new();
    for index in 0..listing.len() {
        let Some(name) = listing.get(index).and_then(|name| Name::new(name).ok()) else { continue };
        if !matches!(listing.kind(index), FileType::RegularFile | FileType::Unknown) {
            continue;
        }
        if !goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let found = match directory.stat_for(name.as_bytes(), FACTS) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let whole = name_of_whole(inode, &name, &found);
        if file_type(&found) == FileType::RegularFile
            && listing.has(&whole)
            && directory.stat(&whole).is_ok_and(|whole| !has_ended(&found, &whole))
        {
            awaited.insert(whole);
        }
    }
    Ok(awaited)
}

/// Puts something else in the place of the file `name`, by `replace`: what waited until that file is whole goes with it.
pub(super) fn replacing<E>(
    directory: &OpenDirectory,
    name: &Name,
    replace: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let left = directory.settings().sync().map(|_| left_beside(directory, name)).unwrap_or_default();
    replace()?;
    left.0.iter().chain(&left.1).for_each(|whole| forget(directory, whole));
    Ok(())
}

/// Nobody needs what stands under this name any more. What another run is at stays.
fn forget(directory: &OpenDirectory, whole: &Temporary) {
    if let Ok(Some(_held)) = hold(directory, whole) {
        temporary::remove(directory, whole);
    }
}

/// The file `name`, which `found` tells of, is whole and has its time: what a run that was killed right then left beside it goes.
pub(super) fn forget_whole(directory: &OpenDirectory, name: &Name, found: &Statx) {
    if !directory.settings().overwrites(found) {
        return;
    }
    let (whole, claim) = left_beside(directory, name);
    whole.iter().chain(&claim).for_each(|left| forget(directory, left));
}

/// Holds what stands under this name, so that it may be replaced or removed; `None` if nothing does, `Refused` if another run is at work on it.
fn hold(directory: &OpenDirectory, name: &Temporary) -> Result<Option<OwnedFd>> {
    let directory = &directory.directory;
    // A server grants no exclusive lock to who only reads.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    let held = match directory.open_at(name, flags, Mode::empty()) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let owner = directory.stat(name).map(|found| found.stx_uid).ok();
            let is_others = error.kind() == io::ErrorKind::PermissionDenied;
            let name = String::from_utf8_lossy(name);
            let advice = match owner.filter(|_| is_others) {
                Some(uid) => format!(
                    "a run of user {uid} was cut off while it changed the file: have that user, or root, run it again, or remove {name} beside the file"
                ),
                None => format!("look at {name} beside the file, and remove it"),
            };
            return Err(Error::file("take the place of what was left beside the file", error).advise(advice));
        }
    };
    let is_held = match rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::WOULDBLOCK) => false,
        Err(error) => {
            let what = "lock what was left beside the file, so that no other run takes it";
            return Err(Error::file(what, error.into()).advise(
                "leave out --inplace where the file system has no locks: then the file is replaced",
            ));
        }
    };
    let named = directory.stat(name).map(|found| identity_of(&found)).ok();
    let opened = stat_fd(held.as_fd()).map(|found| identity_of(&found)).ok();
    if is_held && named.is_some() && named == opened { Ok(Some(held)) } else { Err(in_use()) }
}

fn in_use() -> Error {
    Error::new(ErrorKind::Refused, "another run is changing this file")
        .advise("wait for its end, and copy it again")
}

/// What was to be changed or kept is another file by now.
pub(super) fn replaced() -> Error {
    Error::new(ErrorKind::Changed, "it was replaced meanwhile").advise("copy it again")
}

fn not_named(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => in_use(),
        _ => Error::file("name what came beside the file", error),
    }
}

/// A file that one run alone changes now.
#[derive(Debug)]
pub(super) struct Begun {
    /// The name that says that it is neither old nor new.
    whole: Temporary,
    /// It was before.
    is_left: bool,
}

/// What a file that is changed is opened as.
pub(super) struct Open {
    file: File,
    pub(super) found: Statx,
    is_readable: bool,
}

impl FileTarget {
    /// Gives the file that is there the content of `new`, of `size_bytes`, which is whole, and then everything that is kept of it.
    pub(super) fn overwrite(
        &self,
        existing: &Existing,
        mut new: NewFile,
        size_bytes: u64,
        (kept, mode): (&Kept<'_>, u32),
    ) -> Result<Identity> {
        let (settings, directory) = (self.directory.settings(), &self.directory);
        let there = self.open_existing(existing)?;
        self.hold_names(&there)?;
        let is_durable = settings.is_durable();
        if is_durable {
            // What a disk refused of it before is told, once; then it differs, unless another program keeps it in memory. And ext4 keeps for nothing what is written once more to a page that it could
            // not bring to its disk.
            let asked = settings.make_durable(&there.file);
            let _ = rustix::fs::fadvise(&there.file, 0, None, Advice::DontNeed);
            asked.map_err(|error| Error::file("find all of the older file on its disk", error.into()))?;
        }
        if settings.fails_late(directory.device, new.file().as_fd()) {
            // What it did not take reads as zeros, or not at all, and is no content for a file that is there. Before its time is set, with which it would be written unheard.
            settings
                .make_durable(new.file())
                .map_err(|error| Error::file("write the file to its server", error.into()))?;
        }
        // What a file system has set aside behind its end (XFS) is room that may be needed.
        let _ = new.file().set_len(size_bytes);
        if settings.keeps_time_of(FileType::RegularFile) {
            // See `has_ended`.
            let _ = rustix::fs::futimens(new.file(), &times_of(kept.mtime));
        }
        let check = || settings.check_stop();
        let from = new.file().try_clone().map_err(|error| Error::file("read what came", error))?;
        let room = Over::new(&there.file, there.found.stx_size, there.is_readable, &check);
        // What is neither old nor new already has nothing to lose, and what waits for it goes before the first byte.
        let is_half = is_half(&directory.directory, self.name.as_bytes(), &there.found);
        let has_room = |is_shared| match is_half || !self.is_beside(&there) {
            true => Ok(()),
            false => try_room(&room, &from, size_bytes, (&directory.directory, is_shared)),
        };
        // Before a backup is made, for which there may be no need, and with it: an older one is not to make way for nothing.
        has_room(false)?;
        let begun = self.begin(existing, &mut new, &there.found, &has_room)?;
        // See `distrusts_half`.
        let is_readable = there.is_readable && !(is_durable && begun.is_left) && !self.is_refused;
        let naming = RefCell::new(&mut new);
        let before = || self.begin_to_write(existing, &there, &mut naming.borrow_mut(), &begun, mode);
        let over =
            Over { before: &before, ..Over::new(&there.file, there.found.stx_size, is_readable, &check) };
        over.bring(&from, size_bytes).map_err(|error| match over.has_begun.get() || begun.is_left {
            true => error.or_advise("run it again: what came waits beside the file"),
            false => error,
        })?;
        // Where nothing differs what was left is not needed either.
        self.leave();
        let device = (there.found.stx_dev_major, there.found.stx_dev_minor);
        // A file that is mounted there lies on a file system that nobody else makes durable.
        if is_durable || device != directory.device || settings.fails_late(device, there.file.as_fd()) {
            settings
                .make_durable(&there.file)
                .map_err(|error| Error::file("write the file", error.into()))?;
        }
        let now = stat_fd(there.file.as_fd()).map_err(|error| Error::file("look at the file", error))?;
        let has_names = now.stx_nlink > 1;
        let now = Now {
            mode: Some(u32::from(now.stx_mode) & 0o7777),
            owner: Some((now.stx_uid, now.stx_gid)),
            ..Now::default()
        };
        settings.apply_kept(there.file.as_fd(), kept, &now, mode, false);
        // Who is killed before this leaves a file that has its time, and what waits goes with the next run.
        new.forget();
        if has_names {
            settings.meet(existing.which.identity, &self.path(), true);
        }
        self.require_there(existing)?;
        if settings.removes_sources() {
            // A source that is this very file stays.
            mark_changed(&directory.directory, self.name.as_bytes())?;
        }
        Ok(existing.which.identity)
    }

    /// Keeps the file that is there, if that is asked for and, once it is copied, `may_keep` agrees, and has `new` wait beside it, locked. Of two runs one alone comes so far. If a run
    /// before this one left the file, which `found` tells of, neither old nor new, `new` takes the place of what waits for it.
    pub(super) fn begin(
        &self,
        existing: &Existing,
        new: &mut NewFile,
        found: &Statx,
        may_keep: &dyn Fn(bool) -> Result<()>,
    ) -> Result<Begun> {
        let directory = &self.directory;
        let whole = name_of_whole(directory.inode, &self.name, found);
        self.hold_left(&whole)?;
        // The other name says that something is half there, and nothing is before it is written to.
        let claim = name_of_claim(directory, &self.name, found);
        let left = self.hold_left(&claim)?;
        new.wait_as(&self.name, claim, left.0).map_err(not_named)?;
        let (is_left, _held) = self.hold_left(&whole)?;
        // Not what another run began to change.
        directory.back_up_once(&self.name, existing.away(), may_keep)?;
        let begun = Begun { whole, is_left };
        if is_left {
            self.name_whole(existing, new, &begun)?;
        } else {
            self.require_there(existing)?;
        }
        Ok(begun)
    }

    /// True if the file lies on the file system of its directory. Of the disk of one that is mounted from elsewhere nothing is known here. In an overlay of several file systems it may
    /// have another device, and has the same mount.
    fn is_beside(&self, there: &Open) -> bool {
        let device = (there.found.stx_dev_major, there.found.stx_dev_minor);
        let mount = |fd| stat_fd_for(fd, MountNumber::fact()).ok().and_then(|found| MountNumber::of(&found));
        let is_of_mount = || {
            let mount_there = mount(there.file.as_fd());
            mount_there.is_some() && mount_there == mount(self.directory.directory.as_fd())
        };
        device == self.directory.device || is_of_mount()
    }

    /// Right before the first byte is written, and not for a file that is only compared: it is said to be neither old nor new, and from now on nobody opens it who may not have all of it.
    pub(super) fn begin_to_write(
        &self,
        existing: &Existing,
        there: &Open,
        new: &mut NewFile,
        begun: &Begun,
        mode: u32,
    ) -> Result<()> {
        if !begun.is_left {
            self.name_whole(existing, new, begun)?;
        }
        self.narrow(there, new, mode).inspect_err(|_| {
            if !begun.is_left {
                new.take_back();
            }
        })
    }

    /// Gives `new` the name that says that the file is neither old nor new from now on.
    pub(super) fn name_whole(&self, existing: &Existing, new: &mut NewFile, begun: &Begun) -> Result<()> {
        let directory = &self.directory;
        let settings = directory.settings();
        let is_durable = settings.is_durable();
        let failed = |error: Errno| Error::file("make what came durable", error.into());
        self.require_there(existing)?;
        if is_durable {
            // What is to end the file is there before anything of that goes.
            settings.make_durable(new.file()).map_err(failed)?;
        }
        new.wait_as(&self.name, begun.whole, begun.is_left).map_err(not_named)?;
        new.stay();
        if is_durable && let Err(error) = settings.make_durable(&directory.directory) {
            if !begun.is_left {
                new.take_back();
            }
            return Err(failed(error));
        }
        self.leave();
        Ok(())
    }

    /// See [`hold`]; whether something stands there, which this run may have taken before.
    fn hold_left(&self, name: &Temporary) -> Result<(bool, Option<OwnedFd>)> {
        if self.has_left(name) && self.directory.directory.stat(name).is_ok() {
            return Ok((true, None));
        }
        hold(&self.directory, name).map(|held| (held.is_some(), held))
    }

    /// Of several that change one file under different names one alone does, for as long as `there` is open; the others wait a moment, as it may be this run that has it. Nothing
    /// else keeps them apart, as what waits beside the file has the name of each. `Refused` if it takes longer.
    pub(super) fn hold_names(&self, there: &Open) -> Result<()> {
        if there.found.stx_nlink < 2 {
            return Ok(());
        }
        let deadline = Instant::now() + NAMES_PATIENCE;
        loop {
            match rustix::fs::flock(&there.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => return Err(in_use()),
                Err(Errno::WOULDBLOCK) => {
                    self.directory.settings().check_stop()?;
                    thread::sleep(NAMES_INTERVAL);
                }
                // Where there are no locks what waits beside the file is not locked either, which is told of there.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// `Changed` if the file has lost its name.
    fn require_there(&self, existing: &Existing) -> Result<()> {
        let found = self.directory.directory.stat_for(self.name.as_bytes(), FACTS);
        if found.is_ok_and(|found| self.is_it(existing, &found)) { Ok(()) } else { Err(replaced()) }
    }

    /// True if `found` tells of the file that is to be changed.
    fn is_it(&self, existing: &Existing, found: &Statx) -> bool {
        existing.which.is(found, &self.directory.directory, self.name.as_bytes())
    }

    /// Nobody opens or runs what is half there who may not have all of it, old and new: the file loses bits that it is not to have, and one that gets another owner is this user's own until
    /// its end; of another group, nobody's there. So it is in its attribute. `Refused` if it cannot be so, and `new`, which would take its place without the option, is.
    fn narrow(&self, there: &Open, new: &NewFile, mode: u32) -> Result<()> {
        let settings = self.directory.settings();
        let look =
            |file: &File| stat_fd(file.as_fd()).map_err(|error| Error::file("look at the file", error));
        let (found, own) = (look(&there.file)?, look(new.file())?);
        let mut rights = mode | 0o700;
        let (mut uid, mut gid) = (None, None);
        let mut other_gid = None;
        if settings.fakes() {
            // The group here may stand for another.
            rights &= 0o707 | ((mode & 0o007) << 3);
        } else if settings.owners {
            (uid, gid) = settings.owner_of(self.metadata.uid, self.metadata.gid);
            other_gid = gid.filter(|gid| *gid != found.stx_gid);
            if uid.is_some_and(|uid| uid != found.stx_uid) && own.stx_uid != found.stx_uid {
                // First, as another owner could change the bits.
                let _ = rustix::fs::fchown(&there.file, Some(Uid::from_raw(own.stx_uid)), None);
            }
        }
        let loses_acl = self.loses_acl(there);
        if loses_acl {
            // Whom it names has no more than the bits of the group.
            rights &= !0o077;
        }
        let mode_now = u32::from(found.stx_mode) & 0o7777;
        if other_gid.is_some() {
            // Neither group has more than others.
            rights &= 0o707 | ((mode & mode_now & 0o007) << 3);
        }
        let say = || settings.narrow_fake(there.file.as_fd(), &found, &self.metadata, mode);
        if settings.fakes() {
            say()?;
        }
        let meanwhile = mode_now & rights & 0o1777;
        if meanwhile != mode_now {
            let _ = rustix::fs::fchmod(&there.file, Mode::from_raw_mode(meanwhile));
        }
        if settings.fakes() {
            say()?;
        }
        if let Some(gid) = other_gid {
            let _ = rustix::fs::fchown(&there.file, None, Some(Gid::from_raw(gid)));
        }
        let now = look(&there.file)?;
        let bits = u32::from(now.stx_mode) & 0o077;
        // What a file of one's own has here, too, nobody can take away.
        let is_open = bits & !rights & !u32::from(own.stx_mode) != 0
            && (settings.modes || settings.fakes() || loses_acl);
        // Whose file it is matters only for what is not for everybody.
        let is_others = uid
            .is_some_and(|uid| ![uid, own.stx_uid].contains(&now.stx_uid) && mode & 0o004 == 0)
            || gid.is_some_and(|gid| {
                ![gid, own.stx_gid].contains(&now.stx_gid) && mode >> 3 & !mode & 0o007 != 0
            });
        if is_open || is_others {
            let what = "others could open what comes: this user may not give the file the owner or the bits that it is to have";
            return Err(Error::new(ErrorKind::Refused, what)
                .advise("leave out --inplace: then it is replaced by a file of this user's own"));
        }
        Ok(())
    }

    /// True if the file has an ACL that makes way for what comes.
    fn loses_acl(&self, there: &Open) -> bool {
        let settings = self.directory.settings();
        let scope = settings.attribute_scope().of(AttributeSort::Acls);
        let is_without =
            |scope| attributes::read_open(there.file.as_fd(), scope).is_ok_and(|it| it.is_empty());
        settings.xattrs && !self.metadata.xattrs_unread && scope.is_some_and(|scope| !is_without(scope))
    }

    /// The file that `found` tells of is whole: see [`forget_whole`].
    pub(super) fn leave_whole(&self, found: &Statx) {
        let (whole, claim) = left_beside(&self.directory, &self.name);
        if whole.iter().chain(&claim).any(|left| self.has_left(left)) {
            self.leave();
        }
        forget_whole(&self.directory, &self.name, found);
    }

    /// True if the file is to be changed after all: not one that this run met under another name, which has something else now, or was let be.
    pub(super) fn may_overwrite(&self, existing: &Existing, new: &NewFile, size_bytes: u64) -> Result<bool> {
        let settings = self.directory.settings();
        if !existing.has_names || settings.met_elsewhere(existing.which.identity, &self.path()).is_none() {
            return Ok(true);
        }
        let there = self.open_existing(existing)?;
        let check = || settings.check_stop();
        let end = there.found.stx_size;
        let over = Over { is_dry: true, ..Over::new(&there.file, end, there.is_readable, &check) };
        Ok(over.bring(new.file(), size_bytes)? == 0 && end == size_bytes)
    }

    pub(super) fn open_existing(&self, existing: &Existing) -> Result<Open> {
        let directory = &self.directory.directory;
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |way| directory.open_at(self.name.as_bytes(), flags | way, Mode::empty());
        let mut opened = open(OFlags::RDWR);
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        // What nobody may write to its owner may make his for that moment, as with rsync.
        if opened.as_ref().is_err_and(is_denied)
            && let Ok((path, bits)) = self.open_up(existing)
        {
            opened = open(OFlags::RDWR);
            rustix::fs::chmod(Directory::path_of(path.as_fd()), bits).map_err(|error| {
                let bits = bits.as_raw_mode();
                Error::file(
                    format!("give the file its bits {bits:o} back, which were widened to open it"),
                    error.into(),
                )
                .advise(format!("give it those yourself: chmod {bits:o}"))
            })?;
        }
        let mut is_readable = true;
        if opened.as_ref().is_err_and(is_denied) {
            // Who may not compare writes all of it.
            (opened, is_readable) = (open(OFlags::WRONLY), false);
        }
        let file = File::from(opened.map_err(|error| {
            let what = match Errno::from_io_error(&error) {
                Some(Errno::TXTBSY) => "end the program that it is",
                // Bits are no obstacle then.
                Some(Errno::PERM) => {
                    "let it be written to, as it is immutable or only appended to (chattr -i -a)"
                }
                _ => "let this user write to it",
            };
            Error::file("open the file to change it", error)
                .advise(format!("{what}, or leave out --inplace: then it is replaced"))
        })?);
        let found =
            stat_fd_for(file.as_fd(), FACTS).map_err(|error| Error::file("look at the file", error))?;
        self.require_same(existing, &found)?;
        Ok(Open { file, found, is_readable })
    }

    /// `Changed` if what is open, which `found` tells of, is not what was to be changed, or not to be changed any more.
    fn require_same(&self, existing: &Existing, found: &Statx) -> Result<()> {
        let settings = self.directory.settings();
        if file_type(found) != FileType::RegularFile
            || !self.is_it(existing, found)
            || !settings.overwrites(found)
        {
            return Err(replaced());
        }
        if settings.confined.is_some() && self.is_mounted(found)? {
            let what = "another file is mounted there, and may lie where this login may not write to";
            return Err(Error::new(ErrorKind::Refused, what).advise("leave it out"));
        }
        Ok(())
    }

    /// True if the file that `found` tells of lies elsewhere than its directory.
    fn is_mounted(&self, found: &Statx) -> Result<bool> {
        let at = self.directory.directory.stat_self_for(StatxFlags::BASIC_STATS | StatxFlags::MNT_ID);
        let at = at.map_err(|error| Error::file("look at the directory", error))?;
        let mount = |it: &Statx| {
            let is_told = it.stx_mask & StatxFlags::MNT_ID.bits() != 0;
            (it.stx_dev_major, it.stx_dev_minor, is_told.then_some(it.stx_mnt_id))
        };
        Ok(mount(&at) != mount(found))
    }

    /// Lets its owner read and write the file that is there; which it is, and the bits that it had.
    fn open_up(&self, existing: &Existing) -> io::Result<(OwnedFd, Mode)> {
        let fd = self.directory.directory.open_at(self.name.as_bytes(), OFlags::PATH, Mode::empty())?;
        let found = stat_fd_for(fd.as_fd(), FACTS)?;
        if self.require_same(existing, &found).is_err() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let bits = u32::from(found.stx_mode) & 0o7777;
        rustix::fs::chmod(Directory::path_of(fd.as_fd()), Mode::from_raw_mode(bits & 0o1777 | 0o600))?;
        Ok((fd, Mode::from_raw_mode(bits)))
    }
}
