//! Reading trees: entry by entry, in the order of the stream, with one open descriptor for each level.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray_core::limits::{TREE_DEPTH_MAX, TREE_DIGEST_BYTES, TREE_ENTRY_BYTES_MAX, TREE_LINK_GROUPS_MAX};
use dray_core::tree::{Entry, Kind, Metadata, Name, Xattr};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use super::attributes::{self, AttributeSort, Scope};
use super::chosen::{Chosen, Reach};
use super::content::FileState;
use super::digest;
use super::directory::{Directory, raise_open_files, stat_fd};
use super::exclude::Excludes;
use super::fake::{self, FakeSuper};
use super::filter::{Asked, Local};
use super::guard::Guard;
use super::listing::Listing;
use super::mounts::{MountNotes, ReadMounts};
use super::origin::Origin;
use super::place::{Identity, identity_of};
use super::prune::Pruning;
use super::removing::{ToldEntry, require_told, settled};
use super::special;
use crate::local::file_systems::{OVERLAY, kind_of, lies_on};

/// What the group of a hard link is derived with.
const LINK_CONTEXT: &str = "drayman 2026-11-22 tree link group 1";

/// What to read.
#[derive(Clone, Debug, Default)]
pub struct WalkOptions {
    /// Go into directories.
    pub recursive: bool,
    /// Else tell them, and what is in those whose entries go into the destination itself.
    pub directories: bool,
    /// Sources are to lose what is in place: what is told is remembered for [`Walker::told_last`].
    pub removes: bool,
    /// Directories of these devices and inodes are not gone into but as sources: what leaves its source goes there.
    pub spared: Vec<(u64, u64)>,
    /// A source that is a symbolic link stands for what it points to.
    pub follow_sources: bool,
    /// Do not go into directories of another file system than their source's.
    pub one_file_system: bool,
    /// Leave out what they stand for.
    pub excludes: Excludes,
    /// Names of the sources, with which paths begin for the patterns; of those beyond, their last component.
    pub names: Vec<Vec<u8>>,
    /// Read extended attributes.
    pub xattrs: bool,
    /// Tell which names are hard links of one file.
    pub hard_links: bool,
    /// Tell devices, fifos and sockets.
    pub specials: bool,
    /// Of extended attributes, read these.
    pub attributes: AttributeSort,
    /// A name that is gone before it could be looked at has failed: it may have come under another one that was passed by.
    pub tells_vanished: bool,
    /// Directories in which there is nothing but such are not told, apart from the sources.
    pub prunes_empty: bool,
    /// Of each source only what the list names, and the directories on the way there. Then `recursive` is for those that the list names.
    pub chosen: Option<Arc<Chosen>>,
    /// Is told of the mounts that something is read of.
    pub mounts: Option<Arc<ReadMounts>>,
    /// The tree is read for others than its user.
    pub guard: Option<Guard>,
    /// Entries are what their attributes say.
    pub fake: FakeSuper,
}

/// One step of a walk.
#[derive(Debug)]
pub enum Walked {
    /// An entry; with how to read it if it is a file. Each name of a hard link has it: which of them the content comes under is
    /// for the receiver to decide.
    Entry(Box<Entry>, Option<FileToSend>),
    /// The directory begun last has no more entries.
    Leave,
    /// The directory begun last was not looked into.
    Unlisted,
    /// There is nothing for this source; an error was told before.
    Missing,
    /// An entry that is not told, or not in full.
    Failed(PathBuf, Error),
}

/// A regular file that was told, to be opened when its content is wanted.
#[derive(Debug)]
pub struct FileToSend {
    directory: Arc<Directory>,
    name: Box<[u8]>,
    /// What is mounted there by then is not opened.
    is_guarded: bool,
    /// What its attribute said of it, or powers that its bits or capabilities lend, hold for this state alone: who may rename there is not to lend that to a file of his.
    state: Option<FileState>,
}

/// A file being read.
#[derive(Debug)]
pub struct OpenFile {
    /// Open for reading.
    pub file: File,
    found: FileState,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that it takes on the disk; fewer than its size if it has holes.
    pub stored_bytes: u64,
}

impl FileToSend {
    /// Opens it, if it still is a regular file.
    pub fn open(&self) -> Result<OpenFile> {
        // Whoever hears of it names the entry by its place at the destination.
        let failed = |error| Error::file("open the source's file", error);
        let opened = match self.is_guarded {
            true => self.directory.file_unmounted(&self.name),
            false => self.directory.open_to_read(&self.name),
        };
        let fd = opened.map_err(failed)?;
        let found = stat_fd(fd.as_fd()).map_err(failed)?;
        if file_type(&found) != FileType::RegularFile {
            return Err(Error::new(ErrorKind::Changed, "it is no regular file any more"));
        }
        let state = FileState::of(&found);
        if self.state.is_some_and(|told| told != state) {
            let what =
                "it changed, or was replaced, after its bits and attributes were read, which give it powers";
            return Err(Error::new(ErrorKind::Changed, what));
        }
        Ok(OpenFile {
            file: File::from(fd),
            found: state,
            size_bytes: found.stx_size,
            stored_bytes: found.stx_blocks.saturating_mul(512),
        })
    }
}

impl OpenFile {
    /// Modification time when it was opened: seconds since 1970 and nanoseconds.
    pub fn mtime(&self) -> (i64, u32) {
        self.found.mtime
    }

    /// What tells this state of the file from others.
    pub fn state(&self) -> FileState {
        self.found
    }

    /// True if nobody wrote to it since it was opened, as far as its times tell.
    pub fn is_unchanged(&self) -> Result<bool> {
        let now = stat_fd(self.file.as_fd()).map_err(|error| Error::file("look at the file again", error))?;
        Ok(FileState::of(&now) == self.found)
    }
}

/// Says why what was a directory a moment ago cannot be entered.
fn not_entered(error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => Error::new(ErrorKind::Changed, "it was replaced meanwhile"),
        _ => Error::file("read it", error),
    }
}

/// A directory being read.
#[derive(Debug)]
struct Level {
    directory: Arc<Directory>,
    listing: Listing,
    next: usize,
    /// Length of the path up to this directory.
    path_len: usize,
    /// How much of it is looked at.
    reach: Reach,
}

/// Reads the trees of some sources.
#[derive(Debug)]
pub struct Walker {
    sources: std::vec::IntoIter<PathBuf>,
    source_number: u64,
    origin: Origin,
    options: WalkOptions,
    scope: Scope,
    /// What attributes of the source at hand say that counts.
    telling: fake::Telling,
    levels: Vec<Level>,
    /// Path of the current entry below its source, for messages, patterns and link groups.
    path: Vec<u8>,
    /// Rules that the directories on it have.
    local: Local,
    source: PathBuf,
    device: (u32, u32),
    /// Group and names still to come of files with several.
    links: HashMap<Identity, ([u8; 16], u32)>,
    /// Names of files with several that there was no room to remember.
    links_lost: u64,
    waiting: Vec<Walked>,
    /// The directory of the last source that was in one.
    parent: Option<(PathBuf, Arc<Directory>)>,
    /// Room for a piece of a directory; always empty.
    buffer: Vec<u8>,
    /// Directories of which the receiver has everything that is in them, by their places.
    held: HashSet<[u8; TREE_DIGEST_BYTES]>,
    /// Those of them that are still there.
    passed_by: HashSet<[u8; TREE_DIGEST_BYTES]>,
    /// Which directories the sources are to be.
    roots: digest::Roots,
    pruning: Pruning,
    /// The source at hand, and the state of what was told last, if that is no directory.
    removed_from: Arc<PathBuf>,
    state: Option<FileState>,
    /// The file system from which entries may go that was looked at last.
    told_device: Option<(u32, u32)>,
    mounts: MountNotes,
}

impl Walker {
    /// For these sources, in this order.
    pub fn new(sources: Vec<PathBuf>, options: WalkOptions) -> Walker {
        Walker {
            sources: sources.into_iter(),
            source_number: 0,
            origin: Origin::Anywhere,
            scope: Scope {
                is_root: rustix::process::geteuid().is_root(),
                sort: options.attributes,
                // Those are looked at, and not told.
                fakes: false,
            },
            telling: fake::Telling::default(),
            mounts: MountNotes::new(options.mounts.clone()),
            options,
            levels: Vec::new(),
            path: Vec::new(),
            local: Local::default(),
            source: PathBuf::new(),
            device: (0, 0),
            links: HashMap::new(),
            links_lost: 0,
            waiting: Vec::new(),
            parent: None,
            buffer: Vec::new(),
            held: HashSet::new(),
            passed_by: HashSet::new(),
            roots: digest::Roots::new(),
            pruning: Pruning::default(),
            removed_from: Arc::default(),
            state: None,
            told_device: None,
        }
    }

    /// What the last step told, which was an entry that is no directory, as it was then.
    pub fn told_last(&self) -> ToldEntry {
        ToldEntry { source: self.removed_from.clone(), path: self.path.clone().into(), state: self.state }
    }

    /// Directories in these places are told, and nothing in them: they were scanned, and the receiver has the same
    /// ([`Held::places`](super::Held::places)). Those that are not there any more by then are told as failed, where names that vanish are.
    pub fn pass_by(&mut self, held: HashSet<[u8; TREE_DIGEST_BYTES]>) {
        self.held = held;
    }

    /// The sources were these directories when they were scanned: one that is another now has failed, as where a disk was mounted or unmounted.
    pub fn expect(&mut self, roots: digest::Roots) {
        self.roots = roots;
    }

    /// With sources whose paths begin at `origin`.
    pub fn at(self, origin: Origin) -> Walker {
        Walker { origin, ..self }
    }

    /// Directories whose files may wait to be read, for this process and `batches` batches of entries.
    pub fn directories_in_batch(batches: usize) -> usize {
        // A half for those who wait, the rest for the levels and everything else.
        (raise_open_files() / 2 / batches.max(1)).clamp(1, 256)
    }

    /// The next step; `None` after the last source.
    pub fn step(&mut self) -> Option<Walked> {
        let step = self.next_step();
        if let Some(guard) = &self.options.guard {
            guard.pulse.rest();
        }
        step
    }

    fn next_step(&mut self) -> Option<Walked> {
        if !self.options.prunes_empty {
            return self.walk();
        }
        loop {
            if let Some(step) = self.pruning.released.pop_front() {
                return Some(step);
            }
            let step = self.walk()?;
            if let Some(step) = self.pruning.take(step) {
                return Some(step);
            }
        }
    }

    /// The next step, be it of a directory without files.
    fn walk(&mut self) -> Option<Walked> {
        loop {
            // Between two names, as there may be many of which nothing is told.
            if self.options.guard.as_ref().is_some_and(|guard| !guard.pulse.step()) {
                return None;
            }
            if let Some(step) = self.waiting.pop() {
                return Some(step);
            }
            let Some(level) = self.levels.last_mut() else {
                let Some(source) = self.sources.next() else { return self.tell_lost() };
                if self.options.removes {
                    self.removed_from = Arc::new(source.clone());
                }
                self.source = source;
                self.source_number += 1;
                self.path.clear();
                return Some(self.begin());
            };
            self.path.truncate(level.path_len);
            let Some(name) = level.listing.get(level.next) else {
                self.levels.pop();
                self.local.leave();
                return Some(Walked::Leave);
            };
            let listed = level.listing.kind(level.next);
            level.next += 1;
            if level.path_len > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
            let (directory, name) = (level.directory.clone(), name.to_vec());
            let path_len = level.path_len;
            let (reach, is_named) = match &self.options.chosen {
                Some(chosen) => chosen.reach(&level.reach, path_len, &name, self.options.recursive),
                None => (Reach::Whole(0..0), true),
            };
            let is_listed = !matches!(level.reach, Reach::Lines(_));
            match self.entry(&directory, &name, reach, is_named || is_listed, is_listed.then_some(listed)) {
                Ok(Some(step)) => return Some(step),
                Ok(None) => {}
                Err(error) => return Some(self.failed(error)),
            }
        }
    }

    /// Tells a directory that is not looked into, and of which nothing is to be known, so with times and the owner's bits of the one above it:
    /// what a receiver has there gets no wider.
    fn not_shared(&mut self, above: &Directory, name: &[u8], listed: FileType) -> Result<Option<Walked>> {
        if self.is_excluded(listed == FileType::Directory) {
            return Ok(None);
        }
        if listed != FileType::Directory {
            let what = "something is mounted there, which is not shared";
            return Err(Error::new(ErrorKind::Refused, what));
        }
        let found = above.stat_self().map_err(|error| Error::file("read it", error))?;
        let above = metadata(&found);
        let metadata = Metadata { mode: above.mode & 0o700, xattrs_unread: self.options.xattrs, ..above };
        let entry = Entry { name: Some(Name::new(name)?), kind: Kind::Directory { entries: None }, metadata };
        // The last of them is the next.
        self.waiting.extend([Walked::Leave, Walked::Unlisted]);
        Ok(Some(Walked::Entry(Box::new(entry), None)))
    }

    /// The last steps, if something is missing of what was said or is to be known.
    fn tell_lost(&mut self) -> Option<Walked> {
        let missing = self.held.len() - self.passed_by.len();
        self.held.clear();
        self.passed_by.clear();
        if missing == 0 || !self.options.tells_vanished {
            return self.tell_lost_links();
        }
        let what = format!("{missing} directories in it that were read a moment ago are not there any more");
        Some(Walked::Failed(self.source.clone(), Error::new(ErrorKind::Changed, what)))
    }

    /// The last step, if there was no room to remember hard links.
    fn tell_lost_links(&mut self) -> Option<Walked> {
        let lost = std::mem::take(&mut self.links_lost);
        let what = format!(
            "{lost} names are copied as files of their own: more than {TREE_LINK_GROUPS_MAX} files have further names to come"
        );
        (lost > 0).then(|| Walked::Failed(self.source.clone(), Error::new(ErrorKind::Unsupported, what)))
    }

    fn failed(&self, error: Error) -> Walked {
        let below = OsStr::from_bytes(&self.path);
        Walked::Failed(
            if self.path.is_empty() { self.source.clone() } else { self.source.join(below) },
            error,
        )
    }

    /// The root of the next source.
    fn begin(&mut self) -> Walked {
        match self.root() {
            Ok(step) => step,
            Err(error) => {
                self.waiting.push(Walked::Missing);
                self.failed(error)
            }
        }
    }

    fn root(&mut self) -> Result<Walked> {
        let failed = |error| Error::file("read it", error);
        let path = resolved(&self.origin, &self.source, self.options.follow_sources)?;
        let Some((parent, name)) = split(&path) else {
            let directory = self.origin.directory(&path)?;
            if self.is_excluded(true) {
                return Ok(Walked::Missing);
            }
            let found = directory.stat_self_for(self.mounts.facts()).map_err(failed)?;
            self.require_expected(&directory, &found)?;
            self.telling = fake::Telling::new(self.options.fake, &directory);
            return self.enter(None, directory, &found, self.whole(), self.options.directories);
        };
        let parent = self.parent(parent)?;
        let name = name.as_bytes().to_vec();
        let found = parent.stat_for(&name, self.mounts.facts()).map_err(failed)?;
        if self.is_excluded(file_type(&found) == FileType::Directory) {
            return Ok(Walked::Missing);
        }
        if file_type(&found) == FileType::Directory {
            let directory = parent.child(&name).map_err(not_entered)?;
            let found = directory.stat_self_for(self.mounts.facts()).map_err(failed)?;
            self.require_expected(&directory, &found)?;
            self.telling = fake::Telling::new(self.options.fake, &directory);
            return self.enter(None, directory, &found, self.whole(), false);
        }
        self.require_expected(&parent, &found)?;
        self.telling = fake::Telling::new(self.options.fake, &parent);
        self.device = (found.stx_dev_major, found.stx_dev_minor);
        match self.told(None, &parent, &name, &found)? {
            Some(step) => Ok(step),
            None => Err(Error::new(ErrorKind::Refused, "it is a device, fifo or socket")
                .advise("-a copies those too")),
        }
    }

    /// `Changed` if the source, which is `place` or lies there, is not the directory that was scanned.
    fn require_expected(&mut self, place: &Directory, found: &Statx) -> Result<()> {
        let Some(expected) = self.roots.get(&self.source_index()) else { return Ok(()) };
        let now = identity_of(found);
        let is_directory = file_type(found) == FileType::Directory;
        // An overlay of several file systems gives a directory another inode once nobody has it open.
        let is_like =
            || is_directory && (now.0, now.1) == (expected.0, expected.1) && lies_on(place, &[OVERLAY]);
        if now == *expected || is_like() {
            return Ok(());
        }
        // What is missing of it is told with that; the rest is told in full.
        self.held.clear();
        self.passed_by.clear();
        let what = "it is not the directory that it was a moment ago: something was mounted or unmounted there, or took its place";
        Err(Error::new(ErrorKind::Changed, what))
    }

    /// How much of a source is looked at.
    fn whole(&self) -> Reach {
        let chosen = self.options.chosen.as_ref();
        chosen.map_or(Reach::Whole(0..0), |chosen| chosen.root(self.options.recursive))
    }

    /// The directory that a source is in; those that follow each other there share it.
    fn parent(&mut self, path: &Path) -> Result<Arc<Directory>> {
        if let Some((_, directory)) = self.parent.as_ref().filter(|(last, _)| last == path) {
            return Ok(directory.clone());
        }
        let directory = Arc::new(self.origin.directory(path)?);
        self.parent = Some((path.to_owned(), directory.clone()));
        Ok(directory)
    }

    /// The entry `name` of a directory; `None` if it is passed over. `reach` says how much of it is looked at, `is_named` whether it is wanted itself, or only
    /// what is below it, `listed` what its directory has for its kind, if it was found there.
    fn entry(
        &mut self,
        parent: &Arc<Directory>,
        name: &[u8],
        reach: Reach,
        is_named: bool,
        listed: Option<FileType>,
    ) -> Result<Option<Walked>> {
        let is_listed = listed.is_some();
        let failed = |error| Error::file("read it", error);
        let found = match self.look(parent, name) {
            Ok(found) => found,
            // It went between the listing and now: as if it had not been there, where nobody draws conclusions from that.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.options.tells_vanished => {
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_listed => {
                let below = Chosen::count(&reach);
                let what = if below > 0 {
                    format!("the list names it, or {below} entries below it, and it is not there")
                } else {
                    "the list names it, and it is not there".into()
                };
                return Err(Error::new(ErrorKind::NotFound, what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "it was removed or renamed while its directory was read",
                ));
            }
            Err(error) if self.is_mount(&error) => {
                return self.not_shared(parent, name, listed.unwrap_or(FileType::Unknown));
            }
            Err(error) => return Err(failed(error)),
        };
        // As with rsync, a directory that is only on the way is not asked for.
        if is_named && self.is_excluded(file_type(&found) == FileType::Directory) {
            return Ok(None);
        }
        let told = Some(Name::new(name)?);
        if file_type(&found) == FileType::Directory {
            let directory = match self.options.guard.is_some() {
                true => parent.child_unmounted(name),
                false => parent.child(name),
            };
            let directory = match directory {
                // It was mounted just now, or would be by looking.
                Err(error) if self.is_mount(&error) => {
                    return self.not_shared(parent, name, FileType::Directory);
                }
                directory => directory.map_err(not_entered)?,
            };
            let found = directory.stat_self_for(self.mounts.facts()).map_err(failed)?;
            if self.options.guard.as_ref().is_some_and(|guard| guard.spares(&found)) {
                return self.not_shared(parent, name, FileType::Directory);
            }
            return self.enter(told, directory, &found, reach, false).map(Some);
        }
        let below = Chosen::count(&reach);
        if below > 0 {
            let what = format!("it is no directory, and the list names {below} entries below it");
            let error = Error::new(ErrorKind::NotFound, what).advise("links are not followed");
            if !is_named {
                return Err(error);
            }
            let step = self.failed(error);
            self.waiting.push(step);
        }
        match self.told(told, parent, name, &found)? {
            Some(step) => Ok(Some(step)),
            None => Err(Error::new(ErrorKind::Refused, "it is a device, fifo or socket, and not copied")
                .advise("-a copies those too")),
        }
    }

    /// True if the tree is read for others, and something is mounted where this error came from.
    fn is_mount(&self, error: &io::Error) -> bool {
        self.options.guard.is_some() && Errno::from_io_error(error) == Some(Errno::XDEV)
    }

    fn look(&self, parent: &Directory, name: &[u8]) -> io::Result<Statx> {
        match self.options.guard.is_some() {
            true => parent.stat_unmounted(name),
            false => parent.stat_for(name, self.mounts.facts()),
        }
    }

    /// Whether the entry at hand is to be left out.
    fn is_excluded(&self, is_directory: bool) -> bool {
        if self.options.excludes.is_empty() {
            return false;
        }
        let path = self.landing_path();
        let excludes = &self.options.excludes;
        !path.is_empty() && excludes.leaves_out(Asked::Sending, &path, is_directory, &self.local)
    }

    /// Which of the sources is at hand.
    fn source_index(&self) -> usize {
        usize::try_from(self.source_number.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// Path of the entry at hand from the destination on.
    fn landing_path(&self) -> Vec<u8> {
        let last = || self.source.file_name().unwrap_or_default().as_bytes().to_vec();
        let mut path = self.options.names.get(self.source_index()).cloned().unwrap_or_else(last);
        if !path.is_empty() && !self.path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.path);
        path
    }

    /// Tells a directory and opens it for its entries, if those are told; `is_meant` says that they are, whatever is done with others.
    fn enter(
        &mut self,
        name: Option<Name>,
        directory: Directory,
        found: &Statx,
        reach: Reach,
        is_meant: bool,
    ) -> Result<Walked> {
        let goes_in = self.options.recursive || self.options.chosen.is_some();
        if !goes_in && !self.options.directories {
            return Err(Error::new(ErrorKind::Refused, "it is a directory").advise("-r copies directories"));
        }
        if self.levels.len() >= TREE_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("it lies more than {TREE_DEPTH_MAX} directories deep"),
            ));
        }
        let device = (found.stx_dev_major, found.stx_dev_minor);
        if name.is_none() {
            self.device = device;
        } else if !self.options.spared.is_empty()
            && self.options.spared.contains(&(rustix::fs::makedev(device.0, device.1), found.stx_ino))
        {
            let what = "the destination is this directory, which would be moved into itself";
            return Err(Error::new(ErrorKind::Refused, what).advise("name another destination"));
        }
        self.require_told_changes(found, &|| Ok(kind_of(&directory)?))?;
        let told = self.telling.open(&directory, found)?;
        let told = self.believed(told, found, name.is_none())?;
        let mut metadata = metadata(&told);
        self.add_xattrs(&mut metadata, &|scope| attributes::read_open(directory.as_fd(), scope));
        let place = (!self.held.is_empty()).then(|| digest::place(&self.landing_path()));
        let is_held = place.is_some_and(|place| self.held.contains(&place));
        self.passed_by.extend(place.filter(|_| is_held));
        let is_entered =
            (goes_in || is_meant) && !is_held && (!self.options.one_file_system || device == self.device);
        if is_entered {
            self.note_mount(found);
        }
        let path_len = self.path.len();
        let listing = match (is_entered, &reach, &self.options.chosen) {
            (true, Reach::Lines(lines), Some(chosen)) => Ok(chosen.listing(lines, path_len)),
            (true, ..) => {
                let goes_on = || Guard::goes_on(self.options.guard.as_ref());
                Listing::read(&directory, &mut self.buffer, &goes_on)
            }
            (false, ..) => Ok(Listing::default()),
        };
        if let (true, Ok(listing), Some(chosen)) = (is_entered, &listing, &self.options.chosen)
            && !matches!(reach, Reach::Lines(_))
        {
            for name in chosen.missing(&reach, path_len, listing) {
                let path = self.source.join(OsStr::from_bytes(&self.path)).join(OsStr::from_bytes(&name));
                let error = Error::new(ErrorKind::NotFound, "the list names it, and it is not there");
                self.waiting.push(Walked::Failed(path, error));
            }
        }
        let merges = self.options.excludes.merges();
        let ruled = match merges.is_empty() || !is_entered {
            true => {
                self.local.pass(0);
                Ok(())
            }
            false => self.local.enter(&merges, &directory, self.landing_path().len()),
        };
        // Without its rules nobody knows what of it is meant.
        let listing = match ruled {
            Ok(()) => listing.map_err(|error| Error::file("list the directory", error)),
            Err(error) => Err(error),
        };
        if !is_entered || listing.is_err() || matches!(reach, Reach::Lines(_)) {
            self.waiting.push(Walked::Unlisted);
        }
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                let step = self.failed(error);
                self.waiting.push(step);
                Listing::default()
            }
        };
        self.levels.push(Level { directory: Arc::new(directory), listing, next: 0, path_len, reach });
        let entry = Entry { name, kind: Kind::Directory { entries: None }, metadata };
        Ok(Walked::Entry(Box::new(entry), None))
    }

    /// The entry at hand, which `found` tells of, is read.
    fn note_mount(&mut self, found: &Statx) {
        let (source, path) = (&self.source, &self.path);
        self.mounts.note(found, || source.join(OsStr::from_bytes(path)));
    }

    /// Tells what is no directory; `None` for what is told only when asked for.
    fn told(
        &mut self,
        name: Option<Name>,
        parent: &Arc<Directory>,
        file_name: &[u8],
        found: &Statx,
    ) -> Result<Option<Walked>> {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        if !self.options.one_file_system || device == self.device {
            self.note_mount(found);
        }
        let mut found = *found;
        if self.options.removes {
            let kind = file_type(&found);
            (found, self.state) =
                settled(parent, file_name).map_err(|error| Error::file("read it", error))?;
            if file_type(&found) != kind {
                return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile"));
            }
            self.require_told_changes(&found, &|| {
                Ok(kind_of(parent.open_at(file_name, OFlags::PATH, Mode::empty())?)?)
            })?;
        }
        let place = self.telling.place(parent, file_name, &found)?;
        let (mut seen, mut state) = (found, None);
        if let Some(place) = &place {
            let told = self.telling.entry(place)?;
            state = matches!(told, fake::Told::As(_)).then(|| FileState::of(&place.found));
            seen = self.believed(told, &place.found, name.is_none())?;
            found = place.found;
        }
        let in_place = found;
        let stand_in = place.as_ref().filter(|_| file_type(&seen) != file_type(&found));
        let found = &seen;
        let kind = match file_type(found) {
            FileType::RegularFile => Kind::File { size_bytes: found.stx_size, oid: None },
            kind if kind != FileType::Symlink && !self.options.specials => return Ok(None),
            _ => special::kind_of(parent, file_name, found, stand_in).map_err(|error| {
                match error.kind() {
                    // It was a link a moment ago.
                    io::ErrorKind::InvalidInput => {
                        Error::new(ErrorKind::Changed, "it was replaced meanwhile")
                    }
                    io::ErrorKind::InvalidData => {
                        let what = "it stands for a link, and what is in it is no target of one";
                        Error::new(ErrorKind::Refused, what)
                    }
                    io::ErrorKind::Unsupported => {
                        Error::new(ErrorKind::Unsupported, "it is of a kind that is not known")
                    }
                    _ => Error::file("read the link", error),
                }
            })?,
        };
        let mut metadata = metadata(found);
        if !matches!(kind, Kind::Symlink { .. }) {
            self.add_xattrs(&mut metadata, &|scope| match &place {
                Some(place) => place.attributes(scope),
                None => parent.reach(file_name, |path| attributes::read(path, scope)),
            });
        }
        self.add_link_group(&mut metadata, found);
        let is_file = matches!(kind, Kind::File { .. });
        let is_powerful = metadata.mode & 0o6000 != 0
            || metadata.xattrs.iter().any(|xattr| xattr.name == b"security.capability");
        if state.is_none() && is_powerful {
            state = Some(FileState::of(&in_place));
        }
        let mut entry = Entry { name, kind, metadata };
        if entry.metadata.xattrs.len() > 1 && entry.to_bytes().len() > TREE_ENTRY_BYTES_MAX {
            entry.metadata.xattrs.clear();
            entry.metadata.xattrs_unread = true;
            let step =
                self.failed(Error::new(ErrorKind::Unsupported, "its extended attributes are too many"));
            self.waiting.push(step);
        }
        if entry.metadata.xattrs_unread {
            // What could not be read is nowhere else.
            self.state = None;
        }
        let is_guarded = self.options.guard.is_some();
        let directory = parent.clone();
        let file = is_file.then(|| FileToSend { directory, name: file_name.into(), is_guarded, state });
        Ok(Some(Walked::Entry(Box::new(entry), file)))
    }

    /// What an entry that `found` tells of is told as. Where its attribute is not believed, it is what it is, which is said; a source is an error then.
    fn believed(&mut self, told: fake::Told, found: &Statx, is_source: bool) -> Result<Statx> {
        match told {
            fake::Told::Itself => Ok(*found),
            fake::Told::As(seen) => Ok(*seen),
            fake::Told::NotBelieved(error) if is_source => Err(error),
            fake::Told::NotBelieved(error) => {
                // What it says would be nowhere else.
                self.state = None;
                let step = self.failed(error);
                self.waiting.push(step);
                Ok(*found)
            }
        }
    }

    /// Where entries are to go from their source: `Unsupported` on a file system on which nobody knows what changed since it was told.
    fn require_told_changes(&mut self, found: &Statx, kind: &dyn Fn() -> io::Result<u64>) -> Result<()> {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        if self.options.removes && self.told_device != Some(device) {
            let kind = kind().map_err(|error| Error::file("ask for the type of its file system", error))?;
            require_told(kind)?;
            self.told_device = Some(device);
        }
        Ok(())
    }

    /// Names the group of a file with several names. Each name can be asked for: the first may have no place at the receiver.
    fn add_link_group(&mut self, metadata: &mut Metadata, found: &Statx) {
        if !self.options.hard_links || found.stx_nlink < 2 {
            return;
        }
        let key = identity_of(found);
        if let Some((group, left)) = self.links.get_mut(&key) {
            metadata.link_group = Some(*group);
            *left -= 1;
            if *left == 0 {
                self.links.remove(&key);
            }
        } else if self.links.len() < TREE_LINK_GROUPS_MAX {
            let mut hasher = blake3::Hasher::new_derive_key(LINK_CONTEXT);
            hasher.update(&self.source_number.to_be_bytes()).update(&self.path);
            let mut group = [0; 16];
            group.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
            metadata.link_group = Some(group);
            self.links.insert(key, (group, found.stx_nlink - 1));
        } else {
            self.links_lost += 1;
        }
        metadata.link_names = if metadata.link_group.is_some() { found.stx_nlink } else { 0 };
    }

    fn add_xattrs(&mut self, metadata: &mut Metadata, read: &dyn Fn(Scope) -> io::Result<Vec<Xattr>>) {
        if !self.options.xattrs {
            return;
        }
        match read(self.scope) {
            Ok(xattrs) => {
                metadata.xattrs = xattrs;
                if self.options.fake != FakeSuper::Off {
                    self.hold_back_reserved(metadata);
                }
            }
            Err(error) => {
                metadata.xattrs_unread = true;
                let step = self.failed(Error::file("read its extended attributes", error));
                self.waiting.push(step);
            }
        }
    }
}

impl Walker {
    /// Takes attributes away that stand for others. One that says what is told nowhere else is named.
    fn hold_back_reserved(&mut self, metadata: &mut Metadata) {
        let mut lost = None;
        metadata.xattrs.retain(|xattr| {
            let is_reserved = fake::is_reserved(&xattr.name);
            if is_reserved && xattr.name != fake::ATTRIBUTE.as_bytes() {
                lost.get_or_insert_with(|| String::from_utf8_lossy(&xattr.name).into_owned());
            }
            !is_reserved
        });
        if let Some(name) = lost {
            self.state = None;
            // What to do does not cross the wire, so it stands here.
            let what = format!(
                "its attribute {name:?} stands for one that only root may set, or an ACL, which is not kept with --fake-super; rsync keeps it"
            );
            let step = self.failed(Error::new(ErrorKind::Unsupported, what));
            self.waiting.push(step);
        }
    }
}

/// Where a source is in the end.
fn resolved(origin: &Origin, source: &Path, follow: bool) -> Result<PathBuf> {
    if follow {
        return origin.followed(source.to_owned());
    }
    origin.kind(source)?;
    Ok(source.to_owned())
}

/// The directory of a source and its name there. `None` for `/`, `.`, `..` and what ends with a slash, which is a directory: what is in a
/// directory is meant by `DIR/` and `DIR/.`, also where a link leads to it.
pub(super) fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let text = path.as_os_str().as_bytes();
    let name = path.file_name().filter(|_| !text.ends_with(b"/") && !text.ends_with(b"/."))?;
    let parent = path.parent()?;
    Some((if parent.as_os_str().is_empty() { Path::new(".") } else { parent }, name))
}

/// The directory that a source is, as a walk finds it; `None` if it is none.
pub(super) fn root_directory(origin: &Origin, source: &Path, follow: bool) -> Result<Option<Directory>> {
    let failed = |error| Error::file("read it", error);
    let path = resolved(origin, source, follow)?;
    let Some((parent, name)) = split(&path) else { return origin.directory(&path).map(Some) };
    let parent = origin.directory(parent)?;
    let found = parent.stat(name.as_bytes()).map_err(failed)?;
    match file_type(&found) {
        FileType::Directory => parent.child(name.as_bytes()).map(Some).map_err(failed),
        _ => Ok(None),
    }
}

fn file_type(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

fn metadata(found: &Statx) -> Metadata {
    Metadata {
        mode: u32::from(found.stx_mode) & 0o7777,
        mtime_s: found.stx_mtime.tv_sec,
        mtime_ns: found.stx_mtime.tv_nsec.min(999_999_999),
        uid: found.stx_uid,
        gid: found.stx_gid,
        ..Metadata::default()
    }
}
