//! The walk that makes digests: each directory listed once, each entry looked at once, nothing kept of single entries.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dray_core::limits::{TREE_DEPTH_MAX, TREE_DIGESTS_HELD_MAX};
use dray_core::tree::{Kind, Xattr};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use super::super::attributes::{self, Scope};
use super::super::directory::Directory;
use super::super::guard::Guard;
use super::super::listing::Listing;
use super::super::mounts::MountNotes;
use super::super::origin::Origin;
use super::super::place::{Identity, identity_of};
use super::super::settings::WriteOptions;
use super::super::special::kind_of;
use super::super::sync::DeleteOptions;
use super::super::walk;
use super::super::write::file_type;
use super::DigestOptions;
use super::canonical::{self, DIRECTORY, Digest, Hashers};
use super::found::{Directories, Found, Roots, Scanned};
use super::owned::{Names, Owner, Owners};

/// Names between two looks whether anybody still waits.
const STOP_NAMES: u64 = 1024;

/// What makes a directory out of the ordinary for the end that receives.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivingEnd {
    /// It may be given setuid, setgid and the sticky bit.
    takes_special_modes: bool,
    /// It changes nothing that only root may set.
    is_harmless: bool,
    delete: Option<DeleteOptions>,
}

impl ReceivingEnd {
    /// One that writes so.
    pub fn new(options: &WriteOptions, delete: Option<DeleteOptions>) -> ReceivingEnd {
        let is_root = rustix::process::geteuid().is_root();
        ReceivingEnd {
            takes_special_modes: options.special_modes && is_root && !options.harmless,
            is_harmless: options.harmless,
            delete,
        }
    }

    /// Whether what was found here would not be made so.
    fn is_refused(&self, found: &Statx, is_device: bool, options: &DigestOptions) -> bool {
        let has_special_bits = u32::from(found.stx_mode) & 0o7000 != 0 && options.modes != 0;
        (has_special_bits && !self.takes_special_modes) || (is_device && self.is_harmless)
    }
}

/// A directory being scanned.
#[derive(Debug)]
struct Level {
    directory: Directory,
    listing: Listing,
    next: usize,
    path_len: usize,
    entries_hasher: blake3::Hasher,
    owners: Option<Owners>,
    owner: Owner,
    start: u64,
    files_before: u64,
    /// Nothing in it is out of the ordinary so far.
    is_ordinary: bool,
}

/// What a directory came to.
struct Ended {
    digest: Digest,
    owners: Option<Digest>,
    owner: Owner,
    is_ordinary: bool,
}

/// Scans trees for their digests.
pub struct Scan<'a> {
    options: &'a DigestOptions,
    /// `None` at the sender.
    receiving: Option<ReceivingEnd>,
    stop: &'a dyn Fn(u64) -> bool,
    hashers: Hashers,
    names: Names,
    scope: Option<Scope>,
    directories: Directories,
    levels: Vec<Level>,
    path: Vec<u8>,
    /// The source at hand, and how much of `path` is its name at the destination.
    source: PathBuf,
    name_len: usize,
    mounts: MountNotes,
    device: (u32, u32),
    /// Names looked at, with those that are left out.
    names_seen: u64,
    entries: u64,
    roots: Roots,
    files: u64,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
}

impl<'a> Scan<'a> {
    /// At the sender, or at a `receiving` end. It ends soon once `stop`, which is told how many names it has looked at, says so.
    pub fn new(
        options: &'a DigestOptions,
        receiving: Option<ReceivingEnd>,
        stop: &'a dyn Fn(u64) -> bool,
    ) -> Scan<'a> {
        let is_root = rustix::process::geteuid().is_root() && !receiving.is_some_and(|it| it.is_harmless);
        Scan {
            options,
            receiving,
            stop,
            hashers: Hashers::new(),
            names: Names::new(options, receiving.is_some()),
            scope: options.xattrs.map(|sort| Scope { is_root, sort, fakes: false }),
            directories: Directories::new(TREE_DIGESTS_HELD_MAX),
            levels: Vec::new(),
            path: Vec::new(),
            source: PathBuf::new(),
            name_len: 0,
            mounts: MountNotes::new(options.mounts.clone()),
            device: (0, 0),
            names_seen: 0,
            entries: 0,
            roots: Roots::new(),
            files: 0,
            buffer: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The trees of `sources`, whose paths begin at `origin`; a source that is a link stands for what it points to if `follow`. `None` if it was stopped.
    pub fn sources<P: AsRef<Path>>(
        mut self,
        origin: &Origin,
        sources: &[P],
        follow: bool,
    ) -> Option<Scanned> {
        for (index, source) in sources.iter().enumerate() {
            // What is wrong with it is told when its entries are.
            self.source = source.as_ref().to_owned();
            let root = walk::root_directory(origin, source.as_ref(), follow).ok().flatten();
            self.root(index, root)?;
        }
        Some(self.end(sources.len()))
    }

    /// What stands in the places of the trees of as many sources, each opened when its turn comes; as far as it was seen, if it was stopped.
    pub fn places(mut self, places: impl ExactSizeIterator<Item = Option<Directory>>) -> Scanned {
        let sources = places.len();
        let mut seen = HashSet::new();
        for (index, place) in places.enumerate() {
            let is_again = place.as_ref().is_some_and(|place| !is_first(&mut seen, place));
            if is_again {
                // Two names lead to one directory: what is to become of it is not for digests.
                self.directories.clear();
                break;
            }
            if self.root(index, place).is_none() {
                break;
            }
        }
        self.end(sources)
    }

    fn end(self, sources: usize) -> Scanned {
        if let Some(guard) = &self.options.guard {
            guard.pulse.rest();
        }
        Scanned {
            directories: self.directories,
            names: self.names,
            keeps_owners: self.options.keeps_owners(),
            sources,
            entries: self.entries,
            roots: self.roots,
        }
    }

    /// The tree of a source; `None` if nobody waits any more.
    fn root(&mut self, index: usize, root: Option<Directory>) -> Option<()> {
        self.path.clear();
        self.path.extend_from_slice(self.options.names.get(index).map_or(&[][..], |name| name));
        self.name_len = self.path.len();
        let Some(directory) = root.filter(|_| !self.is_left_out(true)) else { return Some(()) };
        let Ok(found) = directory.stat_self_for(self.mounts.facts()) else { return Some(()) };
        self.device = (found.stx_dev_major, found.stx_dev_minor);
        self.roots.insert(index, identity_of(&found));
        self.enter(directory, &found);
        while let Some(level) = self.levels.last_mut() {
            if self.options.guard.as_ref().is_some_and(|guard| !guard.pulse.step()) {
                self.levels.clear();
                return None;
            }
            let Some(name) = level.listing.get(level.next) else {
                self.leave(index);
                continue;
            };
            let listed = level.listing.kind(level.next);
            level.next += 1;
            self.path.truncate(level.path_len);
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
            let name_len = name.len();
            if self.entry(name_len, listed).is_err()
                && let Some(level) = self.levels.last_mut()
            {
                level.is_ordinary = false;
            }
            self.names_seen += 1;
            if self.names_seen.is_multiple_of(STOP_NAMES) && (self.stop)(self.names_seen) {
                self.levels.clear();
                return None;
            }
        }
        Some(())
    }

    /// The entry at the end of the path, of a kind that its directory has `listed`. An error if it is out of the ordinary.
    fn entry(&mut self, name_len: usize, listed: FileType) -> Result<(), Extraordinary> {
        let level = self.levels.last().ok_or(Extraordinary)?;
        let name = &self.path[self.path.len() - name_len..];
        let found = match (self.receiving, listed) {
            (None, _) if self.options.guard.is_some() => Some(level.directory.stat_unmounted(name)?),
            (None, _) => Some(level.directory.stat_for(name, self.mounts.facts())?),
            (Some(_), FileType::Unknown) => Some(level.directory.stat_unmounted(name)?),
            // A mount that does not answer would be waited for.
            (Some(_), FileType::Directory) => None,
            (Some(_), _) => Some(level.directory.stat(name)?),
        };
        let is_directory = found.as_ref().is_none_or(|found| file_type(found) == FileType::Directory);
        if self.is_left_out(is_directory) {
            return self.check_protected(is_directory);
        }
        if is_directory {
            let directory = self.child(name_len)?;
            let found = directory.stat_self_for(self.mounts.facts())?;
            if self.levels.len() >= TREE_DEPTH_MAX {
                return Err(Extraordinary);
            }
            self.enter(directory, &found);
            return Ok(());
        }
        let found = found.ok_or(Extraordinary)?;
        self.entries += 1;
        self.note_mount(&found);
        self.file(name_len, &found)
    }

    /// The directory at the end of the path. What is mounted below the destination is nothing that the sender told of, and may not answer.
    fn child(&self, name_len: usize) -> Result<Directory, Extraordinary> {
        let above = &self.levels.last().ok_or(Extraordinary)?.directory;
        let name = &self.path[self.path.len() - name_len..];
        let Some(guard) = &self.options.guard else {
            return Ok(match self.receiving.is_some() {
                true => above.child_unmounted(name)?,
                false => above.child(name)?,
            });
        };
        let child = above.child_unmounted(name)?;
        if guard.spares(&child.stat_self()?) { Err(Extraordinary) } else { Ok(child) }
    }

    /// What is no directory.
    fn file(&mut self, name_len: usize, found: &Statx) -> Result<(), Extraordinary> {
        let level = self.levels.last_mut().ok_or(Extraordinary)?;
        let name = &self.path[self.path.len() - name_len..];
        let kind = kind(self.options, &level.directory, name, found)?;
        if self.options.hard_links && found.stx_nlink > 1 {
            return Err(Extraordinary);
        }
        let is_device = matches!(kind, Kind::CharacterDevice { .. } | Kind::BlockDevice { .. });
        if self.receiving.is_some_and(|it| it.is_refused(found, is_device, self.options)) {
            return Err(Extraordinary);
        }
        self.files += u64::from(matches!(kind, Kind::File { .. }));
        let out = &mut self.scratch;
        out.clear();
        canonical::push_name(out, name, canonical::kind_of(&kind));
        canonical::push_kind(out, &kind);
        // A link has no bits of its own.
        let is_link = matches!(kind, Kind::Symlink { .. });
        canonical::push_metadata(out, found, if is_link { 0 } else { self.options.modes });
        if let Some(scope) = self.scope.filter(|_| !is_link) {
            let xattrs = level.directory.reach(name, |path| attributes::read(path, scope))?;
            push_xattrs(out, &xattrs)?;
        }
        level.entries_hasher.update(out);
        level.owner.add(Owner::of(found.stx_uid, found.stx_gid));
        if let Some(owners) = &mut level.owners {
            owners.add(found.stx_uid, found.stx_gid, &self.names, &mut self.scratch);
        }
        Ok(())
    }

    /// The directory at the end of the path.
    fn enter(&mut self, directory: Directory, found: &Statx) {
        let mut level = Level {
            listing: Listing::default(),
            next: 0,
            path_len: self.path.len(),
            entries_hasher: self.hashers.entries.clone(),
            owners: None,
            owner: Owner::of(found.stx_uid, found.stx_gid),
            start: self.entries,
            files_before: self.files,
            is_ordinary: true,
            directory,
        };
        self.entries += 1;
        if self.options.keeps_owners() {
            level.owners = Some(Owners::new(&self.hashers, found.stx_uid, found.stx_gid));
        }
        level.is_ordinary = self.describe(&mut level, found).is_ok();
        self.levels.push(level);
    }

    /// The entry at the end of the path, which `found` tells of, is read.
    fn note_mount(&mut self, found: &Statx) {
        let (source, below) = (&self.source, &self.path[self.name_len.min(self.path.len())..]);
        self.mounts.note(found, || source.join(OsStr::from_bytes(below.strip_prefix(b"/").unwrap_or(below))));
    }

    /// Lists a directory and puts what it has of its own into its digest.
    fn describe(&mut self, level: &mut Level, found: &Statx) -> Result<(), Extraordinary> {
        let is_elsewhere = (found.stx_dev_major, found.stx_dev_minor) != self.device;
        if is_elsewhere && self.options.one_file_system {
            return Err(Extraordinary);
        }
        self.note_mount(found);
        let goes_on = || Guard::goes_on(self.options.guard.as_ref());
        level.listing = Listing::read(&level.directory, &mut self.buffer, &goes_on)?;
        if let Some(receiving) = &self.receiving {
            // What a run that was killed left is brought to an end by the next one.
            let is_marked = attributes::has_marks(level.directory.as_fd());
            if is_marked || receiving.is_refused(found, false, self.options) {
                return Err(Extraordinary);
            }
        }
        let out = &mut self.scratch;
        out.clear();
        canonical::push_metadata(out, found, self.options.modes);
        if let Some(scope) = self.scope {
            push_xattrs(out, &attributes::read_open(level.directory.as_fd(), scope)?)?;
        }
        level.entries_hasher.update(out);
        Ok(())
    }

    /// The innermost directory has no more entries.
    fn leave(&mut self, root: usize) {
        let Some(level) = self.levels.pop() else { return };
        self.path.truncate(level.path_len);
        let owners = level.owners.map(|owners| owners.end(&self.names, &mut self.scratch));
        let ended = Ended {
            digest: canonical::digest(&level.entries_hasher),
            owners,
            owner: level.owner,
            is_ordinary: level.is_ordinary,
        };
        if ended.is_ordinary {
            let owned = ended.owners.as_ref();
            self.directories.push(Found {
                digest: self.hashers.told(&self.path, &ended.digest, None),
                owned_digest: owned
                    .map_or([0; _], |it| self.hashers.told(&self.path, &ended.digest, Some(it))),
                owner: ended.owner,
                place: place(&self.path),
                start: level.start,
                entries: self.entries - level.start,
                files: self.files - level.files_before,
                root: self.levels.is_empty().then_some(root),
            });
        }
        self.add_below(&ended);
    }

    /// A directory of the innermost one has come to this.
    fn add_below(&mut self, below: &Ended) {
        let Some(level) = self.levels.last_mut() else { return };
        level.is_ordinary &= below.is_ordinary;
        self.scratch.clear();
        let name = &self.path[level.path_len..];
        canonical::push_name(&mut self.scratch, name.strip_prefix(b"/").unwrap_or(name), DIRECTORY);
        self.scratch.extend_from_slice(&below.digest);
        level.entries_hasher.update(&self.scratch);
        level.owner.add(below.owner);
        if let (Some(owners), Some(below)) = (&mut level.owners, &below.owners) {
            owners.add_below(below, &self.names, &mut self.scratch);
        }
    }

    /// Whether the sender leaves out what is at the end of the path.
    fn is_left_out(&self, is_directory: bool) -> bool {
        let excludes = &self.options.excludes;
        !excludes.is_empty() && !self.path.is_empty() && excludes.has(&self.path, is_directory)
    }

    /// What the sender leaves out is here: an error if it would be deleted.
    fn check_protected(&self, is_directory: bool) -> Result<(), Extraordinary> {
        let Some(delete) = self.receiving.and_then(|it| it.delete) else { return Ok(()) };
        match self.options.excludes.protects(&self.path, is_directory, delete.excluded) {
            true => Ok(()),
            false => Err(Extraordinary),
        }
    }
}

/// Something in a directory is not for digests, for whatever reason: that is told when its entries are.
struct Extraordinary;

impl From<io::Error> for Extraordinary {
    fn from(_: io::Error) -> Extraordinary {
        Extraordinary
    }
}

impl From<Errno> for Extraordinary {
    fn from(_: Errno) -> Extraordinary {
        Extraordinary
    }
}

/// What a directory is known by.
pub(in super::super) fn place(path: &[u8]) -> Digest {
    super::super::contested::key(path)
}

/// Appends attributes, unless they are too many for an entry.
fn push_xattrs(out: &mut Vec<u8>, xattrs: &[Xattr]) -> Result<(), Extraordinary> {
    if canonical::are_too_many(xattrs) {
        return Err(Extraordinary);
    }
    canonical::push_xattrs(out, xattrs);
    Ok(())
}

/// Whether no directory before was the same as `place`; true if it cannot be looked at, as then it has no digest.
fn is_first(seen: &mut HashSet<Identity>, place: &Directory) -> bool {
    let Ok(found) = place.stat_self() else { return true };
    seen.insert(identity_of(&found))
}

/// What stands under `name`, if it is kept.
fn kind(
    options: &DigestOptions,
    directory: &Directory,
    name: &[u8],
    found: &Statx,
) -> Result<Kind, Extraordinary> {
    let is_wanted = match file_type(found) {
        FileType::RegularFile => return Ok(Kind::File { size_bytes: found.stx_size, oid: None }),
        FileType::Symlink => options.links,
        FileType::Fifo | FileType::Socket => options.specials,
        FileType::CharacterDevice | FileType::BlockDevice => options.devices,
        _ => false,
    };
    if is_wanted { Ok(kind_of(directory, name, found, None)?) } else { Err(Extraordinary) }
}
