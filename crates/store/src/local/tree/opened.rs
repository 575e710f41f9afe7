//! A directory that is being written: open from the moment it is entered until the last content in it has come, which is when
//! its own bits and times are set.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use dray_core::tree::{Entry, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, Statx, XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::attributes::{self, MARK, default_acl_bits};
use super::backup::Away;
use super::delete;
use super::directory::Directory;
use super::place::{Now, made_meanwhile, same_name};
use super::settings::Settings;
use super::sync::{Done, How};
use super::temporary::{self, Temporary};
use crate::local::file_systems::{FOLDING, lies_on};

/// The way from the destination down to a directory: names alone, shared by all that is below it.
#[derive(Debug)]
pub(super) struct Way {
    parent: Option<Rc<Way>>,
    name: Name,
    /// Bytes of all ways of the copy.
    total: Rc<Cell<usize>>,
}

impl Way {
    pub(super) fn below(parent: Option<&Rc<Way>>, name: &Name, total: &Rc<Cell<usize>>) -> Rc<Way> {
        let way = Way { parent: parent.cloned(), name: name.clone(), total: total.clone() };
        total.set(total.get() + way.bytes());
        Rc::new(way)
    }

    /// The last name on it.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    fn bytes(&self) -> usize {
        size_of::<Way>() + self.name.as_bytes().len()
    }

    /// Names from the destination down.
    pub(super) fn names(way: Option<&Rc<Way>>) -> Vec<&Name> {
        let mut names: Vec<&Name> =
            std::iter::successors(way, |way| way.parent.as_ref()).map(|way| &way.name).collect();
        names.reverse();
        names
    }

    /// The path below the destination of `name` in the directory that `way` leads to.
    pub(super) fn path(way: Option<&Rc<Way>>, name: Option<&Name>) -> Vec<u8> {
        let names: Vec<&[u8]> = Way::names(way).into_iter().chain(name).map(Name::as_bytes).collect();
        names.join(&b'/')
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes());
    }
}

/// Permission bits of a directory in the course of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bits {
    pub(super) now: u32,
    /// Once nothing is put into it any more.
    pub(super) finally: u32,
    /// If the copy ends before that.
    pub(super) abandoned: u32,
}

/// A directory that is being written.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) directory: Directory,
    /// This copy made it, so nothing is in it that it did not put there.
    pub(super) is_new: bool,
    pub(super) settings: Rc<Settings>,
    pub(super) way: Option<Rc<Way>>,
    pub(super) inode: u64,
    pub(super) device: (u32, u32),
    /// Owner and modification time as they were found.
    owner: (u32, u32),
    mtime: (i64, u32),
    metadata: Metadata,
    bits: Bits,
    /// Something was put into it.
    is_touched: Cell<bool>,
    /// It carries [`MARK`].
    is_marked: bool,
    /// Where the file system takes several names for one: those that were there before.
    listed: RefCell<Option<Rc<Listed>>>,
    /// Somebody else makes entries here, too; unknown until a name is taken.
    has_company: Cell<Option<bool>>,
    /// The file system may have files without a name.
    pub(super) may_be_unnamed: Cell<bool>,
    /// Bits that its default ACL leaves to new entries; `None` within if it has none.
    default_acl: Cell<Option<Option<u32>>>,
    /// Files in it whose content has not come.
    pending: Cell<u64>,
    is_left: Cell<bool>,
    is_finished: Cell<bool>,
    /// It keeps its own bits, owner and times.
    stays: Cell<bool>,
    /// Its own bits, owner and times come at the end of the run.
    waits: Cell<bool>,
    open: Rc<Cell<usize>>,
    held: usize,
    /// Files of rules that stood in it and above it, where something is deleted.
    standing: Option<Rc<delete::Standing>>,
}

/// Names in a directory.
#[derive(Debug)]
pub(super) struct Listed {
    names: RefCell<HashSet<Box<[u8]>>>,
    settings: Rc<Settings>,
    held: Cell<usize>,
}

impl Listed {
    fn new(settings: &Rc<Settings>, names: HashSet<Box<[u8]>>) -> Listed {
        let held = names.iter().map(|name| Listed::bytes(name)).sum();
        settings.hold(held);
        Listed { names: RefCell::new(names), settings: settings.clone(), held: Cell::new(held) }
    }

    fn bytes(name: &[u8]) -> usize {
        48 + name.len()
    }

    fn has(&self, name: &Name) -> bool {
        self.names.borrow().contains(name.as_bytes())
    }

    /// Something of this very name came since.
    pub(super) fn add(&self, name: &Name) {
        if self.names.borrow_mut().insert(name.as_bytes().into()) {
            let bytes = Listed::bytes(name.as_bytes());
            self.held.set(self.held.get() + bytes);
            self.settings.hold(bytes);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.settings.release(self.held.get());
    }
}

/// What a directory is opened with.
pub(super) struct Opening<'a> {
    pub(super) directory: Directory,
    pub(super) found: &'a Statx,
    pub(super) is_new: bool,
    pub(super) way: Option<Rc<Way>>,
    pub(super) metadata: Metadata,
    pub(super) bits: Bits,
    pub(super) is_marked: bool,
    /// The directory above.
    pub(super) parent: Option<&'a OpenDirectory>,
    /// Files of rules that stood in it and above it, where something is deleted.
    pub(super) standing: Option<Rc<delete::Standing>>,
}

impl OpenDirectory {
    /// `open` counts all that are open.
    pub(super) fn new(
        settings: &Rc<Settings>,
        opening: Opening<'_>,
        open: &Rc<Cell<usize>>,
    ) -> OpenDirectory {
        open.set(open.get() + 1);
        let found = opening.found;
        let above = opening.parent.and_then(|parent| parent.standing.as_ref());
        let held = size_of::<OpenDirectory>()
            + bytes_of(&opening.metadata)
            + delete::Standing::bytes_beyond(opening.standing.as_ref(), above);
        settings.hold(held);
        let device = (found.stx_dev_major, found.stx_dev_minor);
        OpenDirectory {
            directory: opening.directory,
            is_new: opening.is_new,
            settings: settings.clone(),
            way: opening.way,
            inode: found.stx_ino,
            device,
            owner: (found.stx_uid, found.stx_gid),
            mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            metadata: opening.metadata,
            bits: opening.bits,
            is_touched: Cell::new(opening.is_new),
            is_marked: opening.is_marked,
            listed: RefCell::default(),
            has_company: Cell::new(None),
            may_be_unnamed: Cell::new(opening.parent.is_none_or(|parent| parent.may_be_unnamed.get())),
            // What is new inherits it.
            default_acl: Cell::new(
                opening.parent.filter(|_| opening.is_new).and_then(|parent| parent.default_acl.get()),
            ),
            pending: Cell::new(0),
            is_left: Cell::new(false),
            is_finished: Cell::new(false),
            stays: Cell::new(false),
            waits: Cell::new(false),
            open: open.clone(),
            held,
            standing: opening.standing,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The path below the destination of `name` in it.
    pub(super) fn path(&self, name: &Name) -> Vec<u8> {
        Way::path(self.way.as_ref(), Some(name))
    }

    /// Remembers which names are there, if something was there before this copy and the file system takes several for one; or may, where sources lose what came: not all
    /// that do are known.
    pub(super) fn list_if_folding(&self) {
        if !self.is_new && (self.settings.removes_sources() || folds_names(self.directory.as_fd())) {
            self.list();
        }
    }

    /// Remembers which names are there.
    pub(super) fn list(&self) {
        let Ok(names) = self.directory.names() else { return };
        self.listed.replace(Some(Rc::new(Listed::new(&self.settings, names))));
    }

    /// True if it is remembered which names were there.
    pub(super) fn is_listed(&self) -> bool {
        self.listed.borrow().is_some()
    }

    /// What is remembered of which names were there, for another one that is the same directory.
    pub(super) fn listed(&self) -> Option<Rc<Listed>> {
        self.listed.borrow().clone()
    }

    /// The same is known of it as of another one that is the same directory.
    pub(super) fn know(&self, listed: Option<Rc<Listed>>) {
        self.listed.replace(listed);
    }

    /// To be asked of a name under which something stands: `Refused` if that is something of another name, which the file
    /// system takes for the same. Each name is asked for once.
    pub(super) fn check_own(&self, name: &Name) -> Result<()> {
        match &*self.listed.borrow() {
            Some(listed) if !listed.has(name) => Err(same_name()),
            None if !self.is_new && self.settings.removes_sources() => {
                let what = "something is there, and its directory cannot be listed: nobody knows whether it has this very name";
                Err(Error::new(ErrorKind::Refused, what))
            }
            _ => Ok(()),
        }
    }

    /// What it means that something stands under `name`, which was not there: another program made it, or the file system takes another
    /// name for this one. The first answer is that of all names here.
    pub(super) fn not_ours(&self, name: &Name) -> Error {
        let has_company = self.has_company.get().unwrap_or_else(|| self.directory.lists(name.as_bytes()));
        self.has_company.set(Some(has_company));
        if has_company { made_meanwhile() } else { same_name() }
    }

    /// What is told of a change of `entry`, which is to be `name` here, where `found` is.
    pub(super) fn describe(
        &self,
        name: &Name,
        entry: &Entry,
        found: Option<&Statx>,
        how: How,
    ) -> Option<Done> {
        let scope = self.settings.attribute_scope();
        let has = |sort| {
            let is = |scope| {
                let wanted = &entry.metadata.xattrs;
                self.directory.reach(name.as_bytes(), |path| attributes::are(path, wanted, scope))
            };
            scope.of(sort).is_some_and(is)
        };
        self.settings.describe(entry, found, how, &has, &|| self.path(name))
    }

    /// Keeps what stands under `name`, if that is asked for. True if it is not there any more.
    pub(super) fn back_up(&self, name: &Name, away: Away) -> Result<bool> {
        self.back_up_once(name, away, &|_| Ok(()))
    }

    /// The same, once `may_stand` agrees to a copy.
    pub(super) fn back_up_once(
        &self,
        name: &Name,
        away: Away,
        may_stand: &dyn Fn(bool) -> Result<()>,
    ) -> Result<bool> {
        if self.is_new {
            return Ok(false);
        }
        self.settings.back_up(&self.directory, name.as_bytes(), &|| self.path(name), away, may_stand)
    }

    /// `made` is to take the place of the directory `name`, once all that is in that has been deleted; under which name it waits. That
    /// nobody can foresee, so that what a killed run left is not taken for it.
    pub(super) fn wait_for_way(&self, name: &Name, made: &Temporary) -> io::Result<Temporary> {
        let waiting = temporary::set_aside(self, made)?;
        let stamp = self.directory.stat_for(name.as_bytes(), delete::Stamp::FACTS);
        let (major, minor) = self.device;
        let way = delete::Way {
            path: Way::path(self.way.as_ref(), None),
            identity: ((u64::from(major) << 32) | u64::from(minor), self.inode),
            name: name.as_bytes().to_vec(),
            stamp: stamp.map_or_else(|_| delete::Stamp::default(), |found| delete::Stamp::of(&found)),
            made: Some(waiting),
            standing: self.standing.clone(),
        };
        self.settings.ways.borrow_mut().push(way);
        Ok(waiting)
    }

    /// The name for now of what was last made to be `name`, if that waits for a directory to make way.
    pub(super) fn waiting(&self, name: &Name) -> Option<Temporary> {
        let ways = self.settings.ways.borrow();
        let is_it = |way: &&delete::Way| way.identity.1 == self.inode && way.name == name.as_bytes();
        ways.iter().rev().find(is_it).and_then(|way| way.made)
    }

    /// Something was put into it, so its time is no more what it was.
    pub(super) fn touch(&self) {
        self.is_touched.set(true);
    }

    /// What is known of a file that was just made in it.
    pub(super) fn of_new_file(&self) -> Now {
        let powers = &self.settings.powers;
        // What this process made shows how the file system gives owners: the directory itself, if it is new.
        let is_ours = self.is_new && self.owner == (powers.uid, powers.gid);
        Now {
            owner: is_ours.then_some(self.owner),
            has_no_xattrs: self.settings.xattrs && self.is_new && self.default_acl().is_none(),
            ..Now::default()
        }
    }

    /// The bits that an entry made here may get where bits are not kept: as the default ACL has it, else as the umask.
    pub(super) fn granted(&self) -> u32 {
        self.default_acl().unwrap_or(0o777 & !self.settings.umask)
    }

    fn default_acl(&self) -> Option<u32> {
        if let Some(known) = self.default_acl.get() {
            return known;
        }
        let bits = default_acl_bits(self.directory.as_fd());
        self.default_acl.set(Some(bits));
        bits
    }

    pub(super) fn add_pending(&self) {
        self.pending.set(self.pending.get() + 1);
    }

    pub(super) fn settle(&self) {
        self.pending.set(self.pending.get().saturating_sub(1));
        self.finish_if_done();
    }

    /// What is put into it changes nothing of it.
    pub(super) fn stays(&self) {
        self.stays.set(true);
    }

    /// It is the root of a tree that counts as cut off until the run ends: until then it keeps bits that leave it to this user alone.
    pub(super) fn wait_for_end(&self) {
        self.waits.set(true);
    }

    /// True if both are one directory, opened twice.
    pub(super) fn is_same(&self, other: &OpenDirectory) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Somebody else gives it its own bits, owner and times.
    pub(super) fn give_up(&self) {
        self.is_finished.set(true);
    }

    /// The run has come to its end.
    pub(super) fn end(&self) {
        // What was deleted in it since has changed its time.
        self.touch();
        self.waits.set(false);
        self.finish_if_done();
    }

    pub(super) fn leave(&self) {
        self.is_left.set(true);
        self.finish_if_done();
    }

    /// Its bits and times come when nothing is put into it any more.
    fn finish_if_done(&self) {
        // It gets its bits back when it is closed.
        if self.stays.get() || self.waits.get() {
            return;
        }
        if self.pending.get() > 0 || !self.is_left.get() || self.is_finished.replace(true) {
            return;
        }
        let (settings, fd) = (&self.settings, self.directory.as_fd());
        let now = Now {
            mode: Some(self.bits.now),
            owner: Some(self.owner),
            mtime: Some(self.mtime).filter(|_| !self.is_touched.get()),
            has_no_xattrs: false,
        };
        if self.is_marked {
            let _ = fremovexattr(fd, MARK);
        }
        settings.apply(fd, &self.metadata, &now, self.bits.finally, true);
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        self.settings.release(self.held);
        // One that others might write to is none that a run was cut off in.
        let stays_open = self.waits.get() && self.bits.abandoned & 0o022 != 0;
        if !self.is_finished.get() && self.bits.now != self.bits.abandoned && !stays_open {
            let fd = self.directory.as_fd();
            // The mark cannot be removed any more once the bits are narrow.
            if self.is_marked {
                let _ = fremovexattr(fd, MARK);
            }
            let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(self.bits.abandoned));
        }
    }
}

/// Flag of a directory of ext4, F2FS or tmpfs that does the same (`FS_CASEFOLD_FL`).
const CASEFOLD: u32 = 0x4000_0000;

fn folds_names(directory: BorrowedFd<'_>) -> bool {
    let is_flagged = || rustix::fs::ioctl_getflags(directory).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
    lies_on(directory, &FOLDING) || is_flagged()
}

/// Memory that `metadata` takes beside its fixed part.
pub(super) fn bytes_of(metadata: &Metadata) -> usize {
    metadata.xattrs.iter().map(|xattr| 64 + xattr.name.len() + xattr.value.len()).sum()
}

/// What [`MARK`] says of a directory that a killed run left with bits of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// It was made and not finished.
    New,
    /// It had these bits.
    Was(u32),
}

impl Mark {
    /// Reads the mark of a directory.
    pub(super) fn read(directory: &Directory) -> Option<Mark> {
        let mut value = [0; 8];
        let len = fgetxattr(directory.as_fd(), MARK, &mut value[..]).ok()?;
        match &value[..len] {
            b"new" => Some(Mark::New),
            octal => {
                let bits = u32::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()?;
                Some(Mark::Was(bits & 0o777))
            }
        }
    }

    /// Leaves the mark; false if the file system has no room for it.
    pub(super) fn write(self, directory: &Directory) -> bool {
        let value = match self {
            Mark::New => "new".to_owned(),
            Mark::Was(bits) => format!("{bits:o}"),
        };
        fsetxattr(directory.as_fd(), MARK, value.as_bytes(), XattrFlags::empty()).is_ok()
    }
}

/// Descriptors of the file systems that were written to, so that each can be made durable.
#[derive(Debug, Default)]
pub(super) struct Devices {
    seen: Vec<((u32, u32), Directory)>,
}

/// The disk did not take it.
pub(super) fn not_durable(error: io::Error) -> Error {
    Error::file("make it durable", error)
}

/// File systems that one copy keeps open to make them durable: as many as a quarter of the files that may be open, within these.
const DEVICES_MIN: usize = 64;
const DEVICES_MAX: usize = 4096;

impl Devices {
    /// Remembers the file system of `directory`, where a quarter of the files that may be open is `quarter`; fails if there are too many, or no descriptor is left for it.
    pub(super) fn remember(
        &mut self,
        device: (u32, u32),
        directory: &Directory,
        quarter: usize,
    ) -> Result<()> {
        // What lies together comes together.
        if self.seen.iter().rev().any(|(seen, _)| *seen == device) {
            return Ok(());
        }
        let max = quarter.clamp(DEVICES_MIN, DEVICES_MAX);
        if self.seen.len() >= max {
            let what = format!("it lies on one of more than {max} file systems, and is to be on its disk");
            return Err(
                Error::new(ErrorKind::Refused, what).advise("send parts of the tree by runs of their own")
            );
        }
        let directory = directory
            .duplicate()
            .map_err(|error| Error::file("keep its file system open to make it durable", error))?;
        self.seen.push((device, directory));
        Ok(())
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Waits until everything on all of them is on disk.
    pub(super) fn sync(&self) -> Result<()> {
        let failed = self.sync_each();
        failed.first().map_or(Ok(()), |(_, error)| Err(not_durable((*error).into())))
    }

    /// A directory of each.
    pub(super) fn all(&self) -> impl Iterator<Item = &Directory> {
        self.seen.iter().map(|(_, directory)| directory)
    }

    /// The same; a directory of each that refused something, and why.
    pub(super) fn sync_each(&self) -> Vec<(&Directory, Errno)> {
        // Of the others too if one fails.
        let all = self.seen.iter().map(|(_, directory)| (directory, rustix::fs::syncfs(directory)));
        all.filter_map(|(directory, synced)| Some((directory, synced.err()?))).collect()
    }
}
