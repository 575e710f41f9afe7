//! Writing trees: the stream of entries becomes directories, links and files, each below the directory it belongs to.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::limits::{TREE_DEPTH_MAX, TREE_HELD_BYTES_MAX};
use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use super::attributes;
use super::content::{FileState, hash_content};
use super::contested::Contested;
use super::directory::{Directory, raise_open_files};
use super::links::LinkTable;
use super::opened::{Bits, Mark, OpenDirectory, Opening, Way};
use super::origin::Origin;
use super::others::OthersToFind;
use super::place::{FileTarget, Now, There, taken};
use super::settings::{Changes, Settings, WriteOptions, mtime_of};
use super::special;

/// Roots that are looked through for files under other names.
const OLD_ROOTS_MAX: usize = 64;

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
        Landing::resolve_at(&Origin::Anywhere, path, names, must_be_directory)
    }

    /// The same for a path that begins at `origin`.
    pub fn resolve_at(
        origin: &Origin,
        path: &Path,
        names: &[Vec<u8>],
        must_be_directory: bool,
    ) -> Result<Landing> {
        let parse = |name: &Vec<u8>| {
            if name.is_empty() {
                return Ok(None);
            }
            let advice = "name the destination file";
            Name::new(name)
                .map(Some)
                .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()).advise(advice))
        };
        match origin.directory(path) {
            Ok(base) => Ok(Landing { base, names: names.iter().map(parse).collect::<Result<_>>()? }),
            Err(error) if origin.forbids(&error) => Err(error),
            Err(_) if (must_be_directory || names.len() != 1) && origin.is_file(path) => {
                Err(Error::new(ErrorKind::Refused, format!("{path:?} is no directory"))
                    .advise("several sources go into a directory"))
            }
            Err(error) if must_be_directory || names.len() != 1 => {
                Err(error.or_advise("several sources go into a directory: make it first"))
            }
            Err(error) => {
                let text = path.as_os_str().as_bytes();
                let trimmed = text.strip_suffix(b"/").unwrap_or(text);
                let is_there = origin.kind(Path::new(OsStr::from_bytes(trimmed))).is_ok();
                if is_there && text.ends_with(b"/") {
                    return Err(error);
                }
                let path = Path::new(OsStr::from_bytes(trimmed));
                let Some(name) = path.file_name() else { return Err(error) };
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let base = origin.directory(parent.unwrap_or(Path::new(".")))?;
                Ok(Landing { base, names: vec![Some(Name::new(name.as_bytes())?)] })
            }
        }
    }

    pub(super) fn into_parts(self) -> (Directory, Vec<Option<Name>>) {
        (self.base, self.names)
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
    /// Attributes, owners, bits and times that failed, with the reason, and on how many entries.
    pub attributes: BTreeMap<String, u64>,
    /// What this user cannot have here and nobody would expect, and on how many entries. That is no failure.
    pub left_out: BTreeMap<String, u64>,
    /// Directories that could not be finished: path below the destination and why.
    pub directories: Vec<(Vec<u8>, Error)>,
}

/// Writes the trees of one copy. Entries come in the order of the stream.
#[derive(Debug)]
pub struct TreeWriter {
    pub(super) settings: Rc<Settings>,
    pub(super) base: Directory,
    names: Vec<Option<Name>>,
    /// Of the root that came last.
    root_name: Option<Name>,
    pub(super) stack: Vec<Rc<OpenDirectory>>,
    /// Bytes of the ways to directories that something is remembered of.
    pub(super) way_bytes: Rc<Cell<usize>>,
    /// Levels below one that could not be made: their entries are passed over.
    skipping: usize,
    pub(super) links: LinkTable,
    contested: Contested,
    /// Roots of trees that were there before.
    old_roots: Vec<Directory>,
    /// Set once nobody waits for the copy any more.
    stop: Option<Arc<AtomicBool>>,
    open: Rc<Cell<usize>>,
    open_max: usize,
}

impl TreeWriter {
    /// Writes to `landing`.
    pub fn new(landing: Landing, options: WriteOptions) -> TreeWriter {
        TreeWriter {
            settings: Rc::new(Settings::new(options)),
            base: landing.base,
            contested: Contested::new(&landing.names),
            names: landing.names,
            root_name: None,
            old_roots: Vec::new(),
            stop: None,
            stack: Vec::new(),
            way_bytes: Rc::new(Cell::new(0)),
            skipping: 0,
            links: LinkTable::default(),
            open: Rc::new(Cell::new(0)),
            open_max: raise_open_files() / 2,
        }
    }

    /// The same with `changes`; to be called before the first entry.
    pub fn with_changes(mut self, changes: Changes) -> TreeWriter {
        if let Some(settings) = Rc::get_mut(&mut self.settings) {
            settings.change(changes);
        }
        self
    }

    /// What may lie in the destination under another name, from `from_bytes` on: nothing if no directory that entries went into so far
    /// was there before, or times are not kept.
    pub fn others_to_find(&self, from_bytes: u64) -> Option<OthersToFind> {
        if !self.settings.times || self.old_roots.is_empty() {
            return None;
        }
        let roots = self.old_roots.iter().filter_map(|root| root.duplicate().ok()).collect();
        Some(OthersToFind::new(roots, from_bytes))
    }

    /// True if there may be something.
    pub fn may_have_others(&self) -> bool {
        self.settings.times && !self.old_roots.is_empty()
    }

    /// Files of `size_bytes` and more are wanted without being hashed here: the caller compares them.
    pub fn compare_below(&mut self, size_bytes: u64) {
        self.settings.compares_below.set(size_bytes);
    }

    /// Once `stop` is set, what takes long ends with `Interrupted`.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// The directory that everything goes into.
    pub fn base(&self) -> &Directory {
        &self.base
    }

    /// Waits until everything is on disk, on every file system that was written to.
    pub fn sync(&self) -> Result<()> {
        self.settings.devices.borrow().sync()
    }

    /// True if so much waits for contents, directories or bytes of memory, that the next entries had better wait too.
    pub fn is_full(&self) -> bool {
        self.open.get() > self.open_max.saturating_sub(self.stack.len())
            || self.settings.held.get() > TREE_HELD_BYTES_MAX
    }

    /// How many files may be open for what the writer does not do itself: a part of those that it leaves to others.
    pub fn files_beside(&self) -> usize {
        self.open_max / 16
    }

    /// The sender's name for an owner.
    pub fn add_owner(&mut self, is_group: bool, id: u32, name: &[u8]) {
        self.settings.add_owner(is_group, id, name);
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        self.contested.begin(index);
        let placed = self.place_root(index, &self.settings.clone().changed(entry));
        self.skipping = usize::from(placed.is_err() && entry.is_directory());
        placed
    }

    fn place_root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        let name = self.names.get(index).cloned().flatten();
        self.root_name.clone_from(&name);
        let failed = |error| Error::file("open the destination", error);
        let found = self.base.stat_self().map_err(failed)?;
        match name {
            Some(name) => {
                // The directory that the user named is none of ours to finish.
                let directory = self.base.duplicate().map_err(failed)?;
                let opening = Opening {
                    directory,
                    found: &found,
                    is_new: false,
                    way: None,
                    metadata: Metadata::default(),
                    bits: Bits::default(),
                    is_marked: false,
                    parent: None,
                };
                self.stack = vec![Rc::new(OpenDirectory::new(&self.settings, opening, &self.open))];
                let placed = self.place(&name, entry);
                // What it leads to is on the stack now, without the base, which stays for its files alone.
                self.stack.remove(0);
                placed
            }
            None if entry.is_directory() => {
                let directory = self.base.duplicate().map_err(failed)?;
                self.push_directory(directory, None, false, None, entry, &found);
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
        if let Some(directory) = self.stack.pop() {
            directory.leave();
        }
    }

    /// A target's content has come and it is in place, or it will not be.
    pub fn settle(&mut self, target: FileTarget, identity: Option<(u32, u32, u64)>) {
        if let Some(group) = &target.metadata.link_group {
            match identity {
                Some(identity) => self.came(group, &target.directory, &target.name, identity),
                None => self.links.failed(group),
            }
        }
        if identity.is_none() && target.metadata.link_group.is_none() {
            self.contested.release(|| target.path());
        }
        target.directory.settle();
    }

    /// Files of several names that are remembered.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.links.len()
    }

    /// What could not be kept: attributes with the number of entries, and directories that could not be finished.
    pub fn failures(&mut self) -> NotKept {
        let settings = &self.settings;
        let mut told = settings.told.take();
        told.failed.extend(self.contested.take_lost());
        NotKept { attributes: told.failed, left_out: told.left_out, directories: settings.failed.take() }
    }

    /// Path below the destination of an entry of the innermost directory, or of the root that came last; empty for one whose entries
    /// go into the destination itself.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        let way = self.stack.last().and_then(|directory| directory.way.as_ref());
        match &entry.name {
            Some(name) => Way::path(way, Some(name)),
            None => self.root_name.as_ref().map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
        }
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
        self.contested.claim(|| parent.path(name))?;
        let target = |there| Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
        let Kind::File { size_bytes, .. } = entry.kind else {
            return self.place_special(&parent, name, entry);
        };
        if let Some(group) = entry.metadata.link_group {
            if self.links.has(&group) {
                return Ok(Placed::Link(target(There::Nothing)));
            }
            self.begin_links(group, entry.metadata.link_names);
        }
        let placed = self.place_file(&parent, name, entry, size_bytes);
        if let (Err(_), Some(group)) = (&placed, &entry.metadata.link_group) {
            self.links.failed(group);
        }
        placed
    }

    fn place_file(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        size_bytes: u64,
    ) -> Result<Placed> {
        let target = |there| Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
        if parent.is_new {
            return Ok(Placed::Wanted(target(There::Nothing), None));
        }
        let found = match parent.directory.stat(name.as_bytes()) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Placed::Wanted(target(There::Nothing), None));
            }
            Err(error) => return Err(Error::file("look at what is there", error)),
        };
        parent.check_own(name)?;
        match file_type(&found) {
            FileType::Directory => Err(is_directory()),
            FileType::RegularFile => {
                let there = There::File(u32::from(found.stx_mode) & 0o777);
                if self.settings.whole_file || found.stx_size != size_bytes {
                    return Ok(Placed::Wanted(target(there), None));
                }
                let mtime = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                if self.settings.times && mtime == (entry.metadata.mtime_s, entry.metadata.mtime_ns) {
                    let kept = self.keep(parent, name, &entry.metadata, &found);
                    if let Some(group) = &entry.metadata.link_group {
                        let identity = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
                        self.came(group, parent, name, identity);
                    }
                    return kept.map(|()| Placed::Unchanged);
                }
                let is_compared =
                    !self.settings.changes.never_compares && size_bytes < self.settings.compares_below.get();
                let mut target = target(there);
                let known = if !is_compared {
                    None
                } else {
                    hash_of(&parent.directory, name, size_bytes, self.stop.as_deref())?
                };
                // Of several names here the first that is kept changes the times of all.
                target.compared = known.map(|(_, state)| state).filter(|_| found.stx_nlink == 1);
                Ok(Placed::Wanted(target, known.map(|(hash, _)| hash)))
            }
            _ => Ok(Placed::Wanted(target(There::Other), None)),
        }
    }

    /// Brings what the copy keeps of a file whose content is right up to date. `Changed` if somebody wrote to it, or put another in its
    /// place, since it was compared: what is there now nobody has compared.
    pub fn keep_same(&mut self, target: &mut FileTarget, finished: &Finished) -> Result<(u32, u32, u64)> {
        (target.metadata.mtime_s, target.metadata.mtime_ns) = (finished.mtime_s, finished.mtime_ns);
        let found = target.directory.directory.stat(target.name.as_bytes());
        let found = found.map_err(|error| Error::file("look at what is there", error))?;
        if target.compared.is_some_and(|state| state != FileState::of(&found)) {
            return Err(Error::new(ErrorKind::Changed, "another program wrote to it while it was compared")
                .advise("copy it again"));
        }
        self.keep(&target.directory, &target.name, &target.metadata, &found)?;
        Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
    }

    /// Brings what the copy keeps of the file that `found` tells of up to date.
    fn keep(&self, parent: &OpenDirectory, name: &Name, metadata: &Metadata, found: &Statx) -> Result<()> {
        let settings = &self.settings;
        let has_xattrs = || {
            let sets_all = settings.sets_all();
            parent.directory.reach(name.as_bytes(), |path| attributes::are(path, &metadata.xattrs, sets_all))
        };
        let (mode, differences) = settings.differences(metadata, found, has_xattrs);
        if differences.is_none() {
            return Ok(());
        }
        let mode_now = u32::from(found.stx_mode) & 0o7777;
        let failed = |error| Error::file("open the file for its metadata", error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = parent.directory.open_at(name.as_bytes(), flags, Mode::empty());
        let (fd, is_path) = match opened {
            Ok(fd) => (fd, false),
            // Its own bits may keep even its owner from reading.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fd = parent.directory.open_at(name.as_bytes(), OFlags::PATH, Mode::empty());
                (fd.map_err(failed)?, true)
            }
            Err(error) => return Err(failed(error)),
        };
        let opened = super::directory::stat_fd(fd.as_fd()).map_err(failed)?;
        if (opened.stx_ino, opened.stx_mode) != (found.stx_ino, found.stx_mode) {
            return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile"));
        }
        if is_path {
            settings.apply_by_path(&fd, metadata, &opened, Some(mode));
        } else {
            let owner = Some((found.stx_uid, found.stx_gid));
            let now = Now { mode: Some(mode_now), owner, mtime: Some(mtime_of(found)), has_no_xattrs: false };
            settings.apply(fd.as_fd(), metadata, &now, mode, false);
        }
        Ok(())
    }

    /// Places a symbolic link, fifo, socket or device.
    fn place_special(&mut self, parent: &Rc<OpenDirectory>, name: &Name, entry: &Entry) -> Result<Placed> {
        let Some(group) = entry.metadata.link_group else {
            return special::make(parent, name, entry).map(|(placed, _)| placed);
        };
        if self.links.has(&group) {
            // Without content there is nothing to wait for, unless a sender mixes files and links in one group.
            if let Some(linked) = self.links.take(&group) {
                return self.link_to(&linked, parent, name).map(|()| Placed::Done);
            }
        } else {
            self.begin_links(group, entry.metadata.link_names);
        }
        match special::make(parent, name, entry) {
            Ok((placed, identity)) => {
                self.came(&group, parent, name, identity);
                Ok(placed)
            }
            Err(error) => {
                self.links.failed(&group);
                Err(error)
            }
        }
    }

    fn enter(&mut self, parent: &Rc<OpenDirectory>, name: &Name, entry: &Entry) -> Result<()> {
        if self.stack.len() > TREE_DEPTH_MAX {
            let what = format!("it lies more than {TREE_DEPTH_MAX} directories deep");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let opened = |error: io::Error| {
            let is_other = error.kind() == io::ErrorKind::NotADirectory
                || error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
            if is_other {
                Error::new(ErrorKind::Refused, "what is there is no directory, and links are not followed")
                    .advise("remove it, or name another destination")
            } else {
                Error::file("open the directory", error)
            }
        };
        // What is there is used; whether it is there need not be asked of a directory that this copy made.
        let there = if parent.is_new { None } else { Some(parent.directory.child(name.as_bytes())) };
        let (directory, mut is_new) = match there {
            Some(Ok(directory)) => {
                parent.check_own(name)?;
                (directory, false)
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(opened(error)),
            _ => {
                parent.touch();
                // Nobody else puts anything into it before it has its owner and its bits.
                let mode = self.settings.mode(entry.metadata.mode, || parent.granted()) & 0o755 | 0o700;
                rustix::fs::mkdirat(&parent.directory, name.as_bytes(), Mode::from_raw_mode(mode))
                    .map_err(|error| taken(parent, error.into(), "make the directory"))?;
                (parent.directory.child(name.as_bytes()).map_err(opened)?, true)
            }
        };
        let found = directory.stat_self().map_err(|error| Error::file("look at the directory", error))?;
        // Another one may stand there by now: then it is one that was there.
        is_new &= found.stx_uid == self.settings.powers.uid;
        let way = Way::below(parent.way.as_ref(), name, &self.way_bytes);
        self.push_directory(directory, Some(way), is_new, Some(parent), entry, &found);
        Ok(())
    }

    fn push_directory(
        &mut self,
        directory: Directory,
        way: Option<Rc<Way>>,
        is_new: bool,
        parent: Option<&OpenDirectory>,
        entry: &Entry,
        found: &Statx,
    ) {
        let settings = &self.settings;
        let granted = || parent.map_or(0o777 & !settings.umask, OpenDirectory::granted);
        let mut now = u32::from(found.stx_mode) & 0o7777;
        let is_mine = found.stx_uid == settings.powers.uid;
        let mark = if is_new || !is_mine { None } else { Mark::read(&directory) };
        let was = match mark {
            Some(Mark::Was(bits)) => now & (bits | 0o7000),
            _ => now,
        };
        let is_unfinished = is_new || mark == Some(Mark::New);
        let finally = settings.directory_mode(entry.metadata.mode, granted, now, was, is_unfinished);
        let abandoned = if is_unfinished { finally } else { was };
        let mut is_marked = mark.is_some();
        // Entries go into it; its own bits come when it is left.
        // Root needs no bits for that.
        let working = if is_mine && !settings.powers.is_root { now | 0o700 } else { now };
        if working != now && rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(working)).is_ok() {
            now = working;
        }
        // The mark needs the bits; who is killed between the two leaves them.
        if now & 0o777 != abandoned & 0o777 && is_mine && !is_marked {
            is_marked = match (is_unfinished, settings.modes) {
                // The next run sets the bits in any case.
                (true, true) => false,
                (true, false) => Mark::New.write(&directory),
                (false, _) => Mark::Was(was & 0o777).write(&directory),
            };
        }
        let opening = Opening {
            directory,
            found,
            is_new,
            way,
            metadata: entry.metadata.clone(),
            bits: Bits { now, finally, abandoned },
            is_marked,
            parent,
        };
        let opened = OpenDirectory::new(settings, opening, &self.open);
        opened.list_if_folding();
        // The root of a tree is pushed onto nothing, or onto the directory that the user named.
        if entry.name.is_none()
            && !is_new
            && self.old_roots.len() < OLD_ROOTS_MAX
            && let Ok(root) = opened.directory.duplicate()
        {
            self.old_roots.push(root);
        }
        self.stack.push(Rc::new(opened));
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

/// The hash of the regular file that is there, if it can be read and has the size; nobody needs to know why not. `Interrupted` soon
/// after `stop` is set.
fn hash_of(
    directory: &Directory,
    name: &Name,
    size_bytes: u64,
    stop: Option<&AtomicBool>,
) -> Result<Option<([u8; 32], FileState)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(fd) = directory.open_at(name.as_bytes(), flags, Mode::empty()) else { return Ok(None) };
    let file = File::from(fd);
    let Ok(found) = super::directory::stat_fd(file.as_fd()) else { return Ok(None) };
    if file_type(&found) != FileType::RegularFile || found.stx_size != size_bytes {
        return Ok(None);
    }
    let has_holes = found.stx_blocks.saturating_mul(512) < size_bytes;
    let hashed = hash_content(&file, size_bytes, has_holes, &mut || {
        if stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        Ok(())
    });
    match hashed {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        hashed => {
            let whole = hashed.ok().filter(|(_, size)| *size == size_bytes);
            Ok(whole.map(|(hash, _)| (hash, FileState::of(&found))))
        }
    }
}
