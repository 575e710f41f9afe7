//! What one copy keeps, does and changes, and what it could not keep: shared by every directory and file of it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dray_core::limits::TREE_OWNERS_MAX;
use dray_core::tree::{Entry, Kind, Metadata};
use dray_core::{Error, ErrorKind};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use super::super::delivery::umask;
use super::super::file_systems::ByDevice;
use super::attributes::{AttributeSort, Scope, Told};
use super::backup::Backups;
use super::basis::{BasisOptions, BasisUse};
use super::chmod::ModeChange;
use super::delete::Way;
use super::directory::Directory;
use super::exclude::Excludes;
use super::fake::FakeSuper;
use super::opened::Devices;
use super::overwrite::Met;
use super::owners::{OwnerChange, OwnerNames, Powers};
use super::place::{Identity, identity_of};
use super::sync::{Done, SyncOptions};
use super::unsynced::Unsynced;
use super::write::file_type;

/// What a copy keeps and does.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// Keep modification times.
    pub times: bool,
    /// Keep the bits for reading, writing and running.
    pub modes: bool,
    /// Keep setuid, setgid and the sticky bit.
    pub special_modes: bool,
    /// Keep owner and group, as far as this process may.
    pub owners: bool,
    /// Owners by number, not by name.
    pub numeric_ids: bool,
    /// Keep extended attributes.
    pub xattrs: bool,
    /// Want every content, whatever is there.
    pub whole_file: bool,
    /// Make nothing that gives powers to who comes upon it, whatever this process may: no setuid, setgid and devices, and of
    /// extended attributes none that only root sets.
    pub harmless: bool,
    /// The device (major and minor number) and inode of the directory that a login is confined to: nothing is written to that may have a name elsewhere.
    pub confined: Option<Identity>,
    /// Bits that the umask of this process takes are not given, although bits are kept: the sender may want others to write here.
    pub masked: bool,
    /// The root of a tree is a directory, or breaks the protocol: a link in its place would lead the next copy elsewhere.
    pub roots_are_directories: bool,
    /// What comes is on its disk before it takes the place of anything, and before that is said of it.
    pub durable: bool,
}

/// What a copy does otherwise than it is told.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Want what may differ without hashing what is there: nobody asks for the hash.
    pub never_compares: bool,
    /// Permission bits.
    pub modes: Option<ModeChange>,
    /// Owner and group.
    pub owner: OwnerChange,
    /// The destination is brought to the state of the source.
    pub sync: Option<SyncOptions>,
}

/// What of an entry that stays as it is differs from what it is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Differences {
    /// Permission bits.
    pub permissions: bool,
    /// Owner or group.
    pub owner: bool,
    /// Modification time.
    pub time: bool,
    /// Extended attributes or ACLs.
    pub attributes: bool,
}

impl Differences {
    /// True if nothing differs.
    pub fn is_none(&self) -> bool {
        *self == Differences::default()
    }
}

/// What every directory of one copy shares.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) times: bool,
    pub(super) modes: bool,
    pub(super) special_modes: bool,
    pub(super) owners: bool,
    numeric_ids: bool,
    pub(super) xattrs: bool,
    /// See [`WriteOptions::harmless`].
    pub(super) harmless: bool,
    /// See [`WriteOptions::confined`].
    pub(super) confined: Option<Identity>,
    /// See [`WriteOptions::masked`].
    masked: bool,
    /// See [`WriteOptions::roots_are_directories`].
    roots_are_directories: bool,
    /// See [`WriteOptions::durable`].
    pub(super) durable: bool,
    pub(super) whole_file: bool,
    pub(super) changes: Changes,
    /// What is as large or larger is not hashed to be compared: whoever writes the tree sees to it.
    pub(super) compares_below: Cell<u64>,
    /// Users and groups are kept where they are not changed.
    keeps_users: bool,
    keeps_groups: bool,
    /// The bits that the sender's word counts for.
    told_modes: u32,
    pub(super) umask: u32,
    pub(super) powers: Powers,
    /// Who owns the destination, where attributes count.
    pub(super) destination_owner: Cell<Option<u32>>,
    /// Nobody else can come to it.
    pub(super) is_destination_closed: Cell<bool>,
    names: OwnerNames,
    /// Numbers here of owners there, by whether it is a group and its number there.
    owners_here: RefCell<HashMap<(bool, u32), u32>>,
    /// What could not be kept, and on how many entries.
    pub(super) told: RefCell<Told>,
    /// Directories that could not be finished.
    pub(super) failed: RefCell<Vec<(Vec<u8>, Error)>>,
    /// Bytes of open directories and of files that are to come.
    pub(super) held: Cell<usize>,
    /// Where everything is written to.
    pub(super) devices: RefCell<Devices>,
    /// New files that may not be on disk yet.
    pub(super) unsynced: RefCell<Vec<Unsynced>>,
    /// Bytes of their paths and of those of the directories on the way.
    pub(super) unsynced_bytes: Cell<usize>,
    /// Entries of several sources may come to one place.
    pub(super) roots_meet: bool,
    /// Names that are noted, at most, while times are held back: each holds a file open.
    pub(super) held_max: usize,
    /// A disk refused something before everything is made durable.
    pub(super) is_refused: Cell<bool>,
    /// Files that have a name, of which a disk said that it refused them, and why.
    pub(super) refused: RefCell<Vec<(Identity, Errno)>>,
    /// Whether file systems tell of failed writes late.
    pub(super) late_devices: ByDevice,
    /// Whether they are overlays.
    pub(super) overlays: ByDevice,
    /// Whether all of them was written since the run began.
    pub(super) written_devices: ByDevice,
    /// Whether they tell of directories that a disk refused.
    pub(super) telling_devices: ByDevice,
    /// Whether errors stood written down of them when the run came to them.
    pub(super) devices_with_errors: ByDevice,
    /// What was placed last on one of those, below the destination.
    pub(super) last_placed: RefCell<Vec<u8>>,
    /// Files without a name get one by their path in `/proc` alone.
    pub(super) links_by_path: Cell<bool>,
    /// What was done, or would be, for who wants to hear of each entry.
    pub(super) done: RefCell<VecDeque<Done>>,
    /// What was made for places that directories stand in, which make way at the end.
    pub(super) ways: RefCell<Vec<Way>>,
    /// Entries deleted, and those that more than may be deleted.
    pub(super) deleted: Cell<u64>,
    pub(super) spared: Cell<u64>,
    /// Files that had come, and for which no directory made way.
    pub(super) unplaced: Cell<u64>,
    pub(super) backups: RefCell<Backups>,
    /// What of files with several names was changed in place, or let be.
    pub(super) met: RefCell<HashMap<Identity, Met>>,
    /// Files of several names that this run took one from; `None` where nobody asks, or they are too many.
    pub(super) unlinked: RefCell<Option<HashSet<Identity>>>,
    /// Set once nobody waits for the copy any more.
    pub(super) stop: RefCell<Option<Arc<AtomicBool>>>,
}

/// Directories that could not be finished which are named one by one.
const FAILED_NAMED_MAX: usize = 64;
/// Files of several names that are remembered once they have one less.
const UNLINKED_MAX: usize = 65_536;

impl Settings {
    pub(super) fn new(options: WriteOptions) -> Settings {
        Settings {
            times: options.times,
            modes: options.modes,
            special_modes: options.special_modes,
            harmless: options.harmless,
            confined: options.confined,
            masked: options.masked,
            roots_are_directories: options.roots_are_directories,
            durable: options.durable,
            owners: options.owners,
            numeric_ids: options.numeric_ids,
            xattrs: options.xattrs,
            whole_file: options.whole_file,
            changes: Changes::default(),
            compares_below: Cell::new(u64::MAX),
            keeps_users: options.owners,
            keeps_groups: options.owners,
            told_modes: if options.special_modes { 0o7777 } else { 0o777 },
            umask: umask(),
            powers: Powers::of_this_process(),
            destination_owner: Cell::new(None),
            is_destination_closed: Cell::new(false),
            names: if options.owners && !options.numeric_ids {
                OwnerNames::of_this_host()
            } else {
                OwnerNames::default()
            },
            owners_here: RefCell::default(),
            told: RefCell::default(),
            failed: RefCell::default(),
            held: Cell::new(0),
            devices: RefCell::default(),
            unsynced: RefCell::default(),
            unsynced_bytes: Cell::default(),
            roots_meet: false,
            held_max: usize::MAX,
            is_refused: Cell::new(false),
            refused: RefCell::default(),
            late_devices: ByDevice::default(),
            telling_devices: ByDevice::default(),
            devices_with_errors: ByDevice::default(),
            last_placed: RefCell::default(),
            overlays: ByDevice::default(),
            written_devices: ByDevice::default(),
            links_by_path: Cell::new(false),
            done: RefCell::default(),
            ways: RefCell::default(),
            deleted: Cell::new(0),
            spared: Cell::new(0),
            unplaced: Cell::new(0),
            backups: RefCell::default(),
            met: RefCell::default(),
            unlinked: RefCell::default(),
            stop: RefCell::default(),
        }
    }

    /// The same with `changes`.
    pub(super) fn change(&mut self, changes: Changes) {
        // Bits that the user names are kept, also those for which the sender's word does not count.
        self.special_modes |= changes.modes.is_some();
        self.owners |= changes.owner != OwnerChange::default();
        if let Some(sync) = &changes.sync {
            (self.keeps_users, self.keeps_groups) = (sync.users, sync.groups);
            self.powers.gives_any = sync.fake == FakeSuper::On;
        }
        self.changes = changes;
    }

    /// What did not change is linked from the tree that is replaced, and nothing else of that is kept.
    pub(super) fn link_unchanged(&mut self) {
        let Some(sync) = &mut self.changes.sync else { return };
        sync.basis = Some(BasisOptions { places: Vec::new(), usage: BasisUse::Link });
        sync.rules = Excludes::default();
        self.unlinked = RefCell::new(Some(HashSet::new()));
    }

    /// A name of what `found` tells of is about to go, which changes it for its other names.
    pub(super) fn unlinks(&self, found: &Statx) {
        let mut unlinked = self.unlinked.borrow_mut();
        let Some(files) = unlinked.as_mut() else { return };
        if file_type(found) != FileType::RegularFile || found.stx_nlink < 2 {
            return;
        }
        if files.len() < UNLINKED_MAX {
            files.insert(identity_of(found));
        } else {
            *unlinked = None;
        }
    }

    /// The sender's name for an owner.
    pub(super) fn add_owner(&self, is_group: bool, id: u32, name: &[u8]) {
        // Root is root everywhere.
        if id != 0
            && let Some(here) = self.names.id(is_group, name)
        {
            let mut known = self.owners_here.borrow_mut();
            if known.len() < TREE_OWNERS_MAX {
                known.insert((is_group, id), here);
            } else if here != id {
                let what = format!("owner by name: more than {TREE_OWNERS_MAX} owners were named");
                *self.told.borrow_mut().failed.entry(what).or_default() += 1;
            }
        }
    }

    /// Of the bits that the sender told those that count here.
    fn masked(&self, told: u32) -> u32 {
        if self.masked { told & !(self.umask & 0o777) } else { told }
    }

    /// The permission bits of a new entry; `granted` are those that new entries may have where bits are not kept.
    pub(super) fn mode(&self, told: u32, granted: impl FnOnce() -> u32) -> u32 {
        // Else that was done before, as bits that the user names are meant.
        let told = if self.changes.modes.is_none() { self.masked(told) } else { told };
        match (self.modes, self.special_modes && (!self.harmless || self.fakes())) {
            (true, true) => told & 0o7777,
            (true, false) => told & 0o777,
            (false, _) => told & 0o777 & granted(),
        }
    }

    /// `Protocol` for a root that nothing is to be made of.
    pub(super) fn check_root(&self, root: &Entry) -> dray_core::Result<()> {
        if self.roots_are_directories && !root.is_directory() {
            return Err(Error::new(ErrorKind::Protocol, "the sender told no directory"));
        }
        Ok(())
    }

    /// Which extended attributes are kept.
    pub(super) fn attribute_scope(&self) -> Scope {
        let sort = self.sync().map_or(AttributeSort::All, |sync| sync.attributes);
        let fakes = self.sync().is_some_and(|sync| sync.fake != FakeSuper::Off);
        Scope { is_root: self.powers.is_root && !self.harmless, sort, fakes }
    }

    /// How the destination is brought to the state of the source; `None` in a copy, which only adds.
    pub(super) fn sync(&self) -> Option<&SyncOptions> {
        self.changes.sync.as_ref()
    }

    /// True if things of this kind keep their times.
    pub(super) fn keeps_time_of(&self, kind: FileType) -> bool {
        let omits = |sync: &SyncOptions| match kind {
            FileType::Directory => sync.omit_directory_times,
            FileType::Symlink => sync.omit_link_times,
            _ => false,
        };
        self.times && !self.sync().is_some_and(omits)
    }

    /// What is told if more was to be deleted than may be.
    pub(super) fn spared_error(&self) -> Option<(Vec<u8>, Error)> {
        let spared = self.spared.take();
        let what = format!("{spared} entries were not deleted: --max-delete allows no more");
        (spared > 0).then(|| (Vec::new(), Error::new(ErrorKind::Refused, what)))
    }

    /// Something of an entry could not be kept.
    pub(super) fn count(&self, what: &str, error: Errno) {
        self.count_what(&format!("{what}: {}", io::Error::from(error)));
    }

    /// The same, with the reason.
    pub(super) fn count_what(&self, what: &str) {
        *self.told.borrow_mut().failed.entry(what.to_owned()).or_default() += 1;
    }

    /// A directory could not be finished.
    pub(super) fn fail(&self, path: Vec<u8>, error: Error) {
        let mut failed = self.failed.borrow_mut();
        if failed.len() < FAILED_NAMED_MAX {
            failed.push((path, error));
        } else {
            *self.told.borrow_mut().failed.entry(format!("further directories: {error}")).or_default() += 1;
        }
    }

    pub(super) fn hold(&self, bytes: usize) {
        self.held.set(self.held.get() + bytes);
    }

    pub(super) fn release(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
    }

    /// Where what comes is to be on its disk, the file system of `directory` is remembered until then. See [`Devices::remember`].
    pub(super) fn remember_device(&self, device: (u32, u32), directory: &Directory) -> dray_core::Result<()> {
        if !self.is_durable() {
            return Ok(());
        }
        self.devices.borrow_mut().remember(device, directory, self.held_max)
    }

    /// The owner and group that an entry should have, in numbers of this host.
    pub(super) fn wanted_owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        let known = self.owners_here.borrow();
        let here = |is_group, id| {
            if self.numeric_ids { id } else { known.get(&(is_group, id)).copied().unwrap_or(id) }
        };
        let change = self.changes.owner;
        (change.user.unwrap_or_else(|| here(false, uid)), change.group.unwrap_or_else(|| here(true, gid)))
    }

    /// The owner and group to set, in numbers of this host; `None` for what this process may not.
    pub(super) fn owner_of(&self, uid: u32, gid: u32) -> (Option<u32>, Option<u32>) {
        let (uid, gid) = self.wanted_owner(uid, gid);
        let (uid, gid) = self.powers.allowed(uid, gid);
        let change = self.changes.owner;
        (
            uid.filter(|_| self.keeps_users || change.user.is_some()),
            gid.filter(|_| self.keeps_groups || change.group.is_some()),
        )
    }

    /// What of a file that has the right content differs, and the permission bits that it is to have; `has_xattrs` is asked whether
    /// its extended attributes are those of the entry.
    pub(super) fn differences(
        &self,
        metadata: &Metadata,
        found: &Statx,
        has_xattrs: impl FnOnce() -> bool,
    ) -> (u32, Differences) {
        let mode_now = u32::from(found.stx_mode) & 0o7777;
        let owner = if self.owners { self.owner_of(metadata.uid, metadata.gid) } else { (None, None) };
        let is_owned =
            owner.0.is_none_or(|uid| uid == found.stx_uid) && owner.1.is_none_or(|gid| gid == found.stx_gid);
        let mode = match (self.modes, is_owned) {
            (true, _) => self.mode(metadata.mode, || 0),
            (false, true) => mode_now,
            // The setuid bit of one owner is not given to another.
            (false, false) => mode_now & 0o1777,
        };
        let mode = if self.owners && self.modes {
            let is_directory = file_type(found) == FileType::Directory;
            self.without_foreign_powers(mode, metadata, owner, true, is_directory)
        } else {
            mode
        };
        let differences = Differences {
            permissions: mode != mode_now,
            owner: !is_owned,
            time: self.keeps_time_of(file_type(found))
                && mtime_of(found) != (metadata.mtime_s, metadata.mtime_ns),
            attributes: self.xattrs && !metadata.xattrs_unread && !has_xattrs(),
        };
        (mode, differences)
    }

    /// The permission bits that a directory gets in the end: it has the bits `now`, and had `was` before a copy changed them; one that
    /// a copy made, and did not finish, gets those that are `told` as far as they are granted.
    pub(super) fn directory_mode(
        &self,
        told: u32,
        granted: impl FnOnce() -> u32,
        now: u32,
        was: u32,
        is_unfinished: bool,
    ) -> u32 {
        let mode = if is_unfinished || self.modes { self.mode(told, granted) } else { was };
        // Setgid comes from the directory above; that and the sticky bit are not the sender's to take.
        if self.modes && self.special_modes { mode } else { mode | now & 0o7000 }
    }

    /// The entry as it is to be here.
    pub(super) fn changed<'a>(&self, entry: &'a Entry) -> Cow<'a, Entry> {
        match &self.changes.modes {
            Some(modes) if !matches!(entry.kind, Kind::Symlink { .. }) => {
                let mut entry = entry.clone();
                let mode = self.masked(entry.metadata.mode & self.told_modes);
                entry.metadata.mode = modes.apply(mode, entry.is_directory());
                Cow::Owned(entry)
            }
            _ => Cow::Borrowed(entry),
        }
    }
}

/// Modification time: seconds since 1970 and nanoseconds.
pub(super) fn mtime_of(found: &Statx) -> (i64, u32) {
    (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec)
}
