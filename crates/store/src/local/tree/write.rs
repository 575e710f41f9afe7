//! Writing trees: the stream of entries becomes directories, links and files, each below the directory it belongs to.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx};

use super::super::delivery::umask;
use super::attributes;
use super::chmod::ModeChange;
use super::content::hash_content;
use super::directory::{Directory, raise_open_files};
use super::owners::{OwnerChange, OwnerNames, Powers};
use super::place::{FileTarget, replace, taken, times_of};

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
}

/// What every directory of one copy shares.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) times: bool,
    pub(super) modes: bool,
    special_modes: bool,
    pub(super) owners: bool,
    numeric_ids: bool,
    pub(super) xattrs: bool,
    whole_file: bool,
    changes: Changes,
    /// Owners are kept where they are not changed.
    keeps_owners: bool,
    /// The bits that the sender's word counts for.
    told_modes: u32,
    pub(super) umask: u32,
    pub(super) powers: Powers,
    names: OwnerNames,
    /// Numbers here of owners there, by whether it is a group and its number there.
    owners_here: RefCell<HashMap<(bool, u32), u32>>,
    /// Attributes that could not be set, and on how many entries.
    pub(super) failed_attributes: RefCell<BTreeMap<String, u64>>,
    /// Directories that could not be finished.
    failed: RefCell<Vec<(Vec<u8>, Error)>>,
}

impl Settings {
    /// The permission bits of a new entry.
    pub(super) fn mode(&self, told: u32) -> u32 {
        match (self.modes, self.special_modes) {
            (true, true) => told & 0o7777,
            (true, false) => told & 0o777,
            (false, _) => told & 0o777 & !self.umask,
        }
    }

    /// The owner and group to set, in numbers of this host; `None` for what this process may not.
    pub(super) fn owner_of(&self, uid: u32, gid: u32) -> (Option<u32>, Option<u32>) {
        let here = |is_group, id| {
            let known = self.owners_here.borrow();
            if self.numeric_ids { id } else { known.get(&(is_group, id)).copied().unwrap_or(id) }
        };
        let change = self.changes.owner;
        let user = change.user.or_else(|| self.keeps_owners.then(|| here(false, uid)));
        let group = change.group.or_else(|| self.keeps_owners.then(|| here(true, gid)));
        let (may_user, may_group) = self.powers.allowed(user.unwrap_or(0), group.unwrap_or(0));
        (user.and(may_user), group.and(may_group))
    }

    /// The entry as it is to be here.
    fn changed<'a>(&self, entry: &'a Entry) -> Cow<'a, Entry> {
        match &self.changes.modes {
            Some(modes) if !matches!(entry.kind, Kind::Symlink { .. }) => {
                let mut entry = entry.clone();
                let mode = entry.metadata.mode & self.told_modes;
                entry.metadata.mode = modes.apply(mode, entry.is_directory());
                Cow::Owned(entry)
            }
            _ => Cow::Borrowed(entry),
        }
    }
}

/// A directory that is being written.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) directory: Directory,
    /// This copy made it, so nothing is in it that it did not put there.
    pub(super) is_new: bool,
    settings: Rc<Settings>,
    metadata: Metadata,
    /// Its bits now.
    mode_now: u32,
    /// What its bits become; those it had if they are not kept.
    mode: u32,
    path: Vec<u8>,
    /// Files in it whose content has not come.
    pending: Cell<u64>,
    is_left: Cell<bool>,
    /// How many are open, of all directories.
    open: Rc<Cell<usize>>,
}

impl OpenDirectory {
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn add_pending(&self) {
        self.pending.set(self.pending.get() + 1);
    }

    /// Its bits and times come when nothing is put into it any more.
    fn finish_if_done(&self) {
        if self.pending.get() > 0 || !self.is_left.get() {
            return;
        }
        let settings = &self.settings;
        let result = settings.apply(self.directory.as_fd(), &self.metadata, self.mode_now, self.mode);
        if let Err(error) = result {
            settings.failed.borrow_mut().push((self.path.clone(), error));
        }
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

/// Where the trees of a copy go: a directory, and the name of each tree in it.
#[derive(Debug)]
pub struct Landing {
    base: Directory,
    /// `None`: the tree's entries go into the directory itself.
    names: Vec<Option<Name>>,
}

impl Landing {
    /// As `cp` and `scp` have it: into `path` if that is a directory, under the `names` of the sources; else a single source
    /// takes the path's own name. An empty name means that the entries go into the directory itself.
    pub fn resolve(path: &Path, names: &[Vec<u8>], must_be_directory: bool) -> Result<Landing> {
        let parse = |name: &Vec<u8>| {
            if name.is_empty() {
                return Ok(None);
            }
            let advice = "name the destination file";
            Name::new(name)
                .map(Some)
                .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()).advise(advice))
        };
        match Directory::open(path) {
            Ok(base) => Ok(Landing { base, names: names.iter().map(parse).collect::<Result<_>>()? }),
            Err(_) if (must_be_directory || names.len() != 1) && path.exists() && !path.is_dir() => {
                Err(Error::new(ErrorKind::Refused, format!("{path:?} is no directory"))
                    .advise("several sources go into a directory"))
            }
            Err(error) if must_be_directory || names.len() != 1 => {
                Err(error.or_advise("several sources go into a directory: make it first"))
            }
            Err(error) => {
                let text = path.as_os_str().as_bytes();
                let trimmed = text.strip_suffix(b"/").unwrap_or(text);
                let is_there = std::fs::symlink_metadata(OsStr::from_bytes(trimmed)).is_ok();
                if is_there && text.ends_with(b"/") {
                    return Err(error);
                }
                let path = Path::new(OsStr::from_bytes(trimmed));
                let Some(name) = path.file_name() else { return Err(error) };
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let base = Directory::open(parent.unwrap_or(Path::new(".")))?;
                Ok(Landing { base, names: vec![Some(Name::new(name.as_bytes())?)] })
            }
        }
    }

    pub(super) fn into_parts(self) -> (Directory, Vec<Option<Name>>) {
        (self.base, self.names)
    }

    /// Waits until everything on its file system is on disk.
    pub fn sync(directory: &Directory) -> Result<()> {
        rustix::fs::syncfs(directory).map_err(|error| Error::file("make it durable", error.into()))
    }
}

/// What became of an entry.
#[derive(Debug)]
pub enum Placed {
    /// It is in place.
    Done,
    /// It was in place before: nothing has to come.
    Unchanged,
    /// Its content is wanted, unless it has the hash.
    Wanted(Box<FileTarget>, Option<[u8; 32]>),
    /// It is another name of a file whose content may be on its way: to be linked when that has come.
    Link(Box<FileTarget>),
}

/// What a copy could not keep.
#[derive(Debug)]
pub struct NotKept {
    /// Attributes with the reason, and on how many entries.
    pub attributes: BTreeMap<String, u64>,
    /// Directories that could not be finished: path below the destination and why.
    pub directories: Vec<(Vec<u8>, Error)>,
}

/// Makes something under a name.
type Make<'a> = dyn Fn(&[u8]) -> io::Result<()> + 'a;

/// A file with several names, once it is in place.
#[derive(Clone, Debug)]
struct Linked {
    directory: Vec<Name>,
    name: Name,
    identity: (u32, u32, u64),
}

/// Writes the trees of one copy. Entries come in the order of the stream.
#[derive(Debug)]
pub struct TreeWriter {
    settings: Rc<Settings>,
    base: Directory,
    names: Vec<Option<Name>>,
    stack: Vec<Rc<OpenDirectory>>,
    /// Names of the directories on the stack.
    way: Vec<Name>,
    /// Levels below one that could not be made: their entries are passed over.
    skipping: usize,
    links: HashMap<[u8; 16], Option<Linked>>,
    open: Rc<Cell<usize>>,
    open_max: usize,
}

impl TreeWriter {
    /// Writes to `landing`.
    pub fn new(landing: Landing, options: WriteOptions) -> TreeWriter {
        let settings = Settings {
            times: options.times,
            modes: options.modes,
            special_modes: options.special_modes,
            owners: options.owners,
            numeric_ids: options.numeric_ids,
            xattrs: options.xattrs,
            whole_file: options.whole_file,
            changes: Changes::default(),
            keeps_owners: options.owners,
            told_modes: if options.special_modes { 0o7777 } else { 0o777 },
            umask: umask(),
            powers: Powers::of_this_process(),
            names: if options.owners && !options.numeric_ids {
                OwnerNames::of_this_host()
            } else {
                OwnerNames::default()
            },
            owners_here: RefCell::default(),
            failed_attributes: RefCell::default(),
            failed: RefCell::default(),
        };
        TreeWriter {
            settings: Rc::new(settings),
            base: landing.base,
            names: landing.names,
            stack: Vec::new(),
            way: Vec::new(),
            skipping: 0,
            links: HashMap::new(),
            open: Rc::new(Cell::new(0)),
            open_max: raise_open_files() / 2,
        }
    }

    /// The same with `changes`; to be called before the first entry.
    pub fn with_changes(mut self, changes: Changes) -> TreeWriter {
        if let Some(settings) = Rc::get_mut(&mut self.settings) {
            // Bits that the user names are kept, also those for which the sender's word does not count.
            settings.special_modes |= changes.modes.is_some();
            settings.owners |= changes.owner != OwnerChange::default();
            settings.changes = changes;
        }
        self
    }

    /// The directory that everything goes into.
    pub fn base(&self) -> &Directory {
        &self.base
    }

    /// True if so many directories wait for contents that the next entries had better wait too.
    pub fn is_full(&self) -> bool {
        self.open.get() > self.open_max.saturating_sub(self.stack.len())
    }

    /// The sender's name for an owner.
    pub fn add_owner(&mut self, is_group: bool, id: u32, name: &[u8]) {
        // Root is root everywhere.
        if id != 0
            && let Some(here) = self.settings.names.id(is_group, name)
        {
            self.settings.owners_here.borrow_mut().insert((is_group, id), here);
        }
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        let placed = self.place_root(index, &self.settings.clone().changed(entry));
        self.skipping = usize::from(placed.is_err() && entry.is_directory());
        placed
    }

    fn place_root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        self.way.clear();
        let name = self.names.get(index).cloned().flatten();
        let failed = |error| Error::file("open the destination", error);
        // The directory that the user named is none of ours to finish.
        let base =
            self.open_directory(self.base.duplicate().map_err(failed)?, false, &Metadata::default(), 0, 0);
        match name {
            Some(name) => {
                self.stack = vec![base];
                let placed = self.place(&name, entry);
                // What it leads to is on the stack now, without the base, which stays for its files alone.
                self.stack.remove(0);
                placed
            }
            None if entry.is_directory() => {
                let found = self.base.stat_self().map_err(failed)?;
                let directory = self.base.duplicate().map_err(failed)?;
                self.push_directory(directory, false, entry, &found);
                Ok(Placed::Done)
            }
            None => Err(Error::new(ErrorKind::Usage, "the source is a file, not a directory")),
        }
    }

    /// An entry of the innermost directory.
    pub fn entry(&mut self, entry: &Entry) -> Result<Placed> {
        if self.skipping > 0 {
            self.skipping += usize::from(entry.is_directory());
            return Ok(Placed::Unchanged);
        }
        match &entry.name {
            Some(name) => self.place(&name.clone(), &self.settings.clone().changed(entry)),
            None => Err(Error::new(ErrorKind::Protocol, "an entry without a name")),
        }
    }

    /// True while entries are passed over because a directory above them could not be made.
    pub fn is_skipping(&self) -> bool {
        self.skipping > 0
    }

    /// The innermost directory has no more entries.
    pub fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        self.way.pop();
        if let Some(directory) = self.stack.pop() {
            directory.is_left.set(true);
            directory.finish_if_done();
        }
    }

    /// A target's content has come and it is in place, or it will not be.
    pub fn settle(&mut self, target: FileTarget, identity: Option<(u32, u32, u64)>) {
        if let (Some(group), Some(identity)) = (target.metadata.link_group, identity) {
            let mut way: Vec<Name> =
                target.path.split(|byte| *byte == b'/').filter_map(|part| Name::new(part).ok()).collect();
            way.pop();
            let linked = Linked { directory: way, name: target.name.clone(), identity };
            self.links.insert(group, Some(linked));
        }
        let directory = &target.directory;
        directory.pending.set(directory.pending.get().saturating_sub(1));
        directory.finish_if_done();
    }

    /// True if the file that `target` is another name of is in place.
    pub fn can_link(&self, target: &FileTarget) -> bool {
        target.metadata.link_group.is_some_and(|group| matches!(self.links.get(&group), Some(Some(_))))
    }

    /// Makes `target` another name of the file of its group, which has come.
    pub fn link(&mut self, target: &FileTarget) -> Result<()> {
        let gone =
            || Error::new(ErrorKind::NotFound, "it is a hard link to a file that could not be written");
        let group = target.metadata.link_group.ok_or_else(gone)?;
        let linked = self.links.get(&group).cloned().flatten().ok_or_else(gone)?;
        let failed = |error| Error::file("find the file that it is a hard link to", error);
        let mut from = self.base.duplicate().map_err(failed)?;
        for name in &linked.directory {
            from = from.child(name.as_bytes()).map_err(failed)?;
        }
        let is_it =
            |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino) == linked.identity;
        let to = &target.directory;
        let there = to.directory.stat(target.name.as_bytes());
        if there.as_ref().is_ok_and(&is_it) {
            return Ok(());
        }
        if there.is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory) {
            return Err(is_directory());
        }
        let found = from.stat(linked.name.as_bytes()).map_err(failed)?;
        if !is_it(&found) {
            return Err(Error::new(
                ErrorKind::Changed,
                "the file that it is a hard link to was replaced meanwhile",
            ));
        }
        let make = |name: &[u8]| {
            Ok(rustix::fs::linkat(&from, linked.name.as_bytes(), &to.directory, name, AtFlags::empty())?)
        };
        if to.is_new {
            return make(target.name.as_bytes()).map_err(|error| taken(to, error, "make a hard link"));
        }
        replace(to, &target.name, &make).map_err(|error| taken(to, error, "make a hard link"))
    }

    /// What could not be kept: attributes with the number of entries, and directories that could not be finished.
    pub fn failures(&mut self) -> NotKept {
        let settings = &self.settings;
        NotKept { attributes: settings.failed_attributes.take(), directories: settings.failed.take() }
    }

    /// Path below the destination of an entry of the innermost directory; empty for that of a root.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        entry.name.as_ref().map_or_else(Vec::new, |name| self.path(name))
    }

    /// Path of `name` in the innermost directory, below the destination.
    fn path(&self, name: &Name) -> Vec<u8> {
        let mut path = Vec::new();
        for part in self.way.iter().chain([name]) {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part.as_bytes());
        }
        path
    }

    fn place(&mut self, name: &Name, entry: &Entry) -> Result<Placed> {
        let Some(parent) = self.stack.last().cloned() else {
            return Err(Error::new(ErrorKind::Protocol, "an entry outside a directory"));
        };
        if entry.is_directory() {
            let made = self.enter(&parent, name, entry);
            self.skipping = usize::from(made.is_err());
            return made.map(|()| Placed::Done);
        }
        let path = self.path(name);
        let target =
            |replaced| Box::new(FileTarget::new(parent.clone(), name.clone(), entry, replaced, path));
        let Kind::File { size_bytes, .. } = entry.kind else {
            return self.make_special(&parent, name, entry);
        };
        if let Some(group) = entry.metadata.link_group {
            if self.links.contains_key(&group) {
                return Ok(Placed::Link(target(None)));
            }
            self.links.insert(group, None);
        }
        if parent.is_new {
            return Ok(Placed::Wanted(target(None), None));
        }
        let found = match parent.directory.stat(name.as_bytes()) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Placed::Wanted(target(None), None));
            }
            Err(error) => return Err(Error::file("look at what is there", error)),
        };
        match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::Directory => Err(is_directory()),
            FileType::RegularFile => {
                let mode = u32::from(found.stx_mode) & 0o7777;
                if self.settings.whole_file || found.stx_size != size_bytes {
                    return Ok(Placed::Wanted(target(Some(mode)), None));
                }
                let mtime = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                if self.settings.times && mtime == (entry.metadata.mtime_s, entry.metadata.mtime_ns) {
                    let target = target(Some(mode));
                    let kept = self.keep(&target, &found);
                    let identity = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
                    self.settle(*target, Some(identity));
                    return kept.map(|()| Placed::Unchanged);
                }
                let known = if self.settings.changes.never_compares {
                    None
                } else {
                    hash_of(&parent.directory, name, size_bytes)
                };
                Ok(Placed::Wanted(target(Some(mode)), known))
            }
            _ => Ok(Placed::Wanted(target(None), None)),
        }
    }

    /// Brings what the copy keeps of a file whose content is right up to date.
    pub fn keep_same(&mut self, target: &mut FileTarget, finished: &Finished) -> Result<(u32, u32, u64)> {
        (target.metadata.mtime_s, target.metadata.mtime_ns) = (finished.mtime_s, finished.mtime_ns);
        let found = target.directory.directory.stat(target.name.as_bytes());
        let found = found.map_err(|error| Error::file("look at what is there", error))?;
        self.keep(target, &found)?;
        Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
    }

    fn keep(&self, target: &FileTarget, found: &Statx) -> Result<()> {
        let (settings, metadata) = (&self.settings, &target.metadata);
        let mode_now = u32::from(found.stx_mode) & 0o7777;
        let mode = if settings.modes { settings.mode(metadata.mode) } else { mode_now };
        let owner =
            if settings.owners { settings.owner_of(metadata.uid, metadata.gid) } else { (None, None) };
        let is_owned =
            owner.0.is_none_or(|uid| uid == found.stx_uid) && owner.1.is_none_or(|gid| gid == found.stx_gid);
        let mtime = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
        let is_timed = !settings.times || mtime == (metadata.mtime_s, metadata.mtime_ns);
        let has_xattrs = || {
            let path = target.directory.directory.proc_path(target.name.as_bytes());
            attributes::read(&path, settings.powers.is_root).is_ok_and(|there| there == metadata.xattrs)
        };
        if is_owned && is_timed && mode == mode_now && (!settings.xattrs || has_xattrs()) {
            return Ok(());
        }
        let failed = |error| Error::file("open the file for its metadata", error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = target.directory.directory.open_at(target.name.as_bytes(), flags, Mode::empty());
        let fd = fd.map_err(failed)?;
        let opened = super::directory::stat_fd(fd.as_fd()).map_err(failed)?;
        if (opened.stx_ino, opened.stx_mode) != (found.stx_ino, found.stx_mode) {
            return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile"));
        }
        settings.apply(fd.as_fd(), metadata, mode_now, mode)
    }

    fn enter(&mut self, parent: &Rc<OpenDirectory>, name: &Name, entry: &Entry) -> Result<()> {
        let mode = self.settings.mode(entry.metadata.mode) & 0o777 | 0o700;
        let made = rustix::fs::mkdirat(&parent.directory, name.as_bytes(), Mode::from_raw_mode(mode));
        let is_new = match made {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) if !parent.is_new => false,
            Err(error) => return Err(taken(parent, error.into(), "make the directory")),
        };
        let directory = parent.directory.child(name.as_bytes()).map_err(|error| {
            let is_other = error.kind() == io::ErrorKind::NotADirectory
                || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            if is_other {
                Error::new(ErrorKind::Refused, "what is there is no directory, and links are not followed")
                    .advise("remove it, or name another destination")
            } else {
                Error::file("open the directory", error)
            }
        })?;
        let found = directory.stat_self().map_err(|error| Error::file("look at the directory", error))?;
        // Its failures bear its own name.
        self.way.push(name.clone());
        self.push_directory(directory, is_new, entry, &found);
        Ok(())
    }

    fn push_directory(&mut self, directory: Directory, is_new: bool, entry: &Entry, found: &Statx) {
        let mut mode_now = u32::from(found.stx_mode) & 0o7777;
        let mut mode =
            if is_new || self.settings.modes { self.settings.mode(entry.metadata.mode) } else { mode_now };
        if is_new && !self.settings.modes {
            // The setgid bit comes from the directory above, and stays.
            mode |= mode_now & 0o2000;
        }
        if mode_now & 0o700 != 0o700 && found.stx_uid == self.settings.powers.uid {
            // Entries go into it; its own bits come back when it is left.
            let opened = Mode::from_raw_mode(mode_now | 0o700);
            if rustix::fs::fchmod(directory.as_fd(), opened).is_ok() {
                mode_now |= 0o700;
            }
        }
        let opened = self.open_directory(directory, is_new, &entry.metadata, mode_now, mode);
        self.stack.push(opened);
    }

    fn open_directory(
        &self,
        directory: Directory,
        is_new: bool,
        metadata: &Metadata,
        mode_now: u32,
        mode: u32,
    ) -> Rc<OpenDirectory> {
        self.open.set(self.open.get() + 1);
        let path = self.way.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        Rc::new(OpenDirectory {
            directory,
            is_new,
            settings: self.settings.clone(),
            metadata: metadata.clone(),
            mode_now,
            mode,
            path,
            pending: Cell::new(0),
            is_left: Cell::new(false),
            open: self.open.clone(),
        })
    }

    /// Makes a symbolic link, fifo, socket or device.
    fn make_special(&self, parent: &OpenDirectory, name: &Name, entry: &Entry) -> Result<Placed> {
        let directory = &parent.directory;
        let found = if parent.is_new { None } else { directory.stat(name.as_bytes()).ok() };
        if found.as_ref().is_some_and(|found| file_type(found) == FileType::Directory) {
            return Err(is_directory());
        }
        let make: Box<Make<'_>> = match &entry.kind {
            Kind::Symlink { target } => {
                Box::new(move |name| Ok(rustix::fs::symlinkat(&target[..], directory, name)?))
            }
            kind => {
                let (kind, device) = match *kind {
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Socket => (FileType::Socket, 0),
                    Kind::CharacterDevice { major, minor } => {
                        (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
                    }
                    Kind::BlockDevice { major, minor } => {
                        (FileType::BlockDevice, rustix::fs::makedev(major, minor))
                    }
                    _ => return Err(Error::new(ErrorKind::Internal, "a kind that is made elsewhere")),
                };
                let mode = Mode::from_raw_mode(self.settings.mode(entry.metadata.mode) & 0o777);
                Box::new(move |name| Ok(rustix::fs::mknodat(directory, name, kind, mode, device)?))
            }
        };
        let is_same = found.as_ref().is_some_and(|found| is_same(directory, name, entry, found));
        let is_changed = !is_same;
        if is_changed {
            let made = if parent.is_new { make(name.as_bytes()) } else { replace(parent, name, &*make) };
            made.map_err(|error| taken(parent, error, "make it"))?;
        }
        self.keep_special(directory, name, entry)?;
        Ok(if is_changed { Placed::Done } else { Placed::Unchanged })
    }

    /// What the copy keeps of an entry that cannot be opened.
    fn keep_special(&self, directory: &Directory, name: &Name, entry: &Entry) -> Result<()> {
        let (settings, metadata) = (&self.settings, &entry.metadata);
        let failed = |what: &'static str| move |error: rustix::io::Errno| Error::file(what, error.into());
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if settings.owners {
            let (uid, gid) = settings.owner_of(metadata.uid, metadata.gid);
            let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
            if uid.is_some() || gid.is_some() {
                rustix::fs::chownat(directory, name.as_bytes(), uid, gid, nofollow)
                    .map_err(failed("set its owner"))?;
            }
        }
        if !matches!(entry.kind, Kind::Symlink { .. }) {
            let fd = directory
                .open_at(name.as_bytes(), OFlags::PATH, Mode::empty())
                .map_err(|error| Error::file("open it for its metadata", error))?;
            let path = Directory::path_of(&fd);
            if settings.modes {
                let mode = Mode::from_raw_mode(settings.mode(metadata.mode));
                // The magic link leads to the very thing that was opened.
                rustix::fs::chmod(&path[..], mode).map_err(failed("set its permissions"))?;
            }
            if settings.xattrs {
                let mut failures = settings.failed_attributes.borrow_mut();
                attributes::set_followed(&path, &metadata.xattrs, settings.powers.is_root, &mut failures);
            }
        }
        if settings.times {
            rustix::fs::utimensat(directory, name.as_bytes(), &times_of(metadata), nofollow)
                .map_err(failed("set its times"))?;
        }
        Ok(())
    }
}

pub(super) fn file_type(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

pub(super) fn is_directory() -> Error {
    Error::new(ErrorKind::Refused, "what is there is a directory")
        .advise("remove it, or name another destination")
}

/// Whether what is found is the link, fifo, socket or device that the entry is.
pub(super) fn is_same(directory: &Directory, name: &Name, entry: &Entry, found: &Statx) -> bool {
    let device = (found.stx_rdev_major, found.stx_rdev_minor);
    match (&entry.kind, file_type(found)) {
        (Kind::Symlink { target }, FileType::Symlink) => {
            rustix::fs::readlinkat(directory, name.as_bytes(), Vec::new())
                .is_ok_and(|there| there.as_bytes() == &target[..])
        }
        (Kind::Fifo, FileType::Fifo) | (Kind::Socket, FileType::Socket) => true,
        (Kind::CharacterDevice { major, minor }, FileType::CharacterDevice)
        | (Kind::BlockDevice { major, minor }, FileType::BlockDevice) => device == (*major, *minor),
        _ => false,
    }
}

/// The hash of the regular file that is there, if it can be read and has the size; nobody needs to know why not.
fn hash_of(directory: &Directory, name: &Name, size_bytes: u64) -> Option<[u8; 32]> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = directory.open_at(name.as_bytes(), flags, Mode::empty()).ok()?;
    let file = File::from(fd);
    let found = super::directory::stat_fd(file.as_fd()).ok()?;
    if file_type(&found) != FileType::RegularFile || found.stx_size != size_bytes {
        return None;
    }
    let has_holes = found.stx_blocks.saturating_mul(512) < size_bytes;
    let hashed = hash_content(&file, size_bytes, has_holes, &mut || Ok::<_, Error>(()));
    hashed.ok().filter(|(_, size)| *size == size_bytes).map(|(hash, _)| hash)
}
