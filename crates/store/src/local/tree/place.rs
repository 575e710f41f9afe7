//! One file of a tree on its way to its place: written without a name, or under a temporary one, and named when it is whole.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use dray_core::limits::TREE_GROWTH_BYTES_MAX;
use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Statx, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::attributes;
use super::backup::Away;
use super::basis::Basis;
use super::content::FileState;
use super::directory::{Directory, stat_fd, stat_fd_for};
use super::fake::At;
use super::opened::{OpenDirectory, bytes_of};
use super::others::SizeAndTime;
use super::overwrite::{Existing, FACTS, left_beside, replaced, replacing};
use super::partial::{Left, PARTIAL_FROM_BYTES};
use super::settings::Settings;
use super::sync::Done;
use super::temporary::{self, Temporary};
use super::unsynced::Made;
use crate::local::file_systems::{LATE, lies_on};

/// Device and inode.
pub type Identity = (u32, u32, u64);

/// The identity of what `found` tells of.
pub(in super::super) fn identity_of(found: &Statx) -> Identity {
    (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)
}

/// Where a file goes, and what it is to be; its content is to come.
#[derive(Debug)]
pub struct FileTarget {
    pub(super) directory: Rc<OpenDirectory>,
    pub(super) name: Name,
    pub(super) metadata: Metadata,
    pub(super) there: There,
    /// What is there if that is changed, not replaced.
    pub(super) existing: Option<Existing>,
    /// What is there has its content, and is to be another file all the same: this one has powers that it has not.
    pub(super) gains_powers: bool,
    /// Which file was found in its place.
    pub(super) seen: Option<Identity>,
    /// What is read of the file that is there may not be on its disk.
    pub(super) is_refused: bool,
    /// What was hashed to compare it with the sender's; `None` if nothing was.
    pub(super) compared: Option<Compared>,
    /// Its size as it was told.
    pub(super) size_bytes: u64,
    held: usize,
    /// What is told once it is in place, and what if its content was there.
    pub(super) done: Option<Box<Done>>,
    pub(super) done_same: Option<Box<Done>>,
    pub(super) is_quiet_if_same: bool,
    /// Another directory has all of it, so that nothing is told of another name for it.
    pub(super) is_quiet: bool,
    /// What another directory has of it.
    pub(super) basis: Option<Box<Basis>>,
    /// What a run before this one left of it.
    left: Option<Left>,
}

/// The state of a file when it was hashed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    state: FileState,
    has_one_name: bool,
}

impl Compared {
    /// True if nothing at all changed since.
    pub(super) fn is(&self, now: &FileState) -> bool {
        self.state == *now
    }

    /// True if it had other names, too.
    pub(super) fn has_several_names(&self) -> bool {
        !self.has_one_name
    }
}

/// What stands where a file goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum There {
    Nothing,
    /// A file with these permission bits, without setuid, setgid and sticky: those were not given to the new bytes.
    File(u32),
    Other,
    /// A directory that makes way: once the file is whole if it is empty, else at the end.
    Directory,
}

/// A file that is an older version of one that comes, or may be.
#[derive(Debug)]
pub struct OlderFile {
    /// Open for reading.
    pub file: File,
    /// Its size.
    pub size_bytes: u64,
    /// It takes less than its size on the disk.
    pub has_holes: bool,
    /// No other name can change what is known of it.
    pub has_one_name: bool,
    /// Its state when it was opened.
    pub state: FileState,
}

impl OlderFile {
    /// An open file, if it is a regular one.
    pub fn new(file: File) -> Option<OlderFile> {
        let found = stat_fd(file.as_fd()).ok()?;
        let is_file = super::write::file_type(&found) == FileType::RegularFile;
        let has_holes = found.stx_blocks.saturating_mul(512) < found.stx_size;
        let state = FileState::of(&found);
        let has_one_name = found.stx_nlink == 1;
        is_file.then_some(OlderFile { file, size_bytes: found.stx_size, has_holes, has_one_name, state })
    }

    /// Its size and modification time, when it was opened.
    pub fn size_and_time(&self) -> SizeAndTime {
        (self.size_bytes, self.state.mtime.0, self.state.mtime.1)
    }
}

/// A file being written. Dropped before it is finished, it leaves nothing, unless a part of it is to wait for the next run.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// Its name for now, where the file system has no files without one.
    temporary: Option<Temporary>,
    directory: Rc<OpenDirectory>,
    /// Where the next byte goes, and beyond which place none does.
    position: u64,
    end_max: u64,
    is_sparse: bool,
    /// If it is not finished, it waits for the next run under this name.
    partial: Option<Temporary>,
    /// It is whole, and something else is being made of it.
    stays: bool,
}

/// Gives what stands under `temporary` its name, under which nothing may stand if that `must_be_free`.
pub(super) fn rename(
    directory: &OpenDirectory,
    temporary: &Temporary,
    name: &Name,
    must_be_free: bool,
) -> io::Result<()> {
    rename_to(directory, temporary, name.as_bytes(), must_be_free)
}

/// The same with any name.
fn rename_to(
    directory: &OpenDirectory,
    temporary: &Temporary,
    name: &[u8],
    must_be_free: bool,
) -> io::Result<()> {
    let fd = &directory.directory;
    directory.touch();
    if must_be_free {
        match rustix::fs::renameat_with(fd, &temporary[..], fd, name, RenameFlags::NOREPLACE) {
            // The file system cannot: look first.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if directory.directory.stat(name).is_ok() {
                    return Err(Errno::EXIST.into());
                }
            }
            result => return Ok(result?),
        }
    }
    Ok(rustix::fs::renameat(fd, &temporary[..], fd, name)?)
}

/// Says what a `name` that is taken means.
pub(super) fn taken(directory: &OpenDirectory, name: &Name, error: io::Error, what: &str) -> Error {
    if error.kind() == io::ErrorKind::AlreadyExists && (directory.is_new || directory.is_listed()) {
        return directory.not_ours(name);
    }
    Error::file(what.to_owned(), error)
}

/// Somebody else works here.
pub(super) fn made_meanwhile() -> Error {
    Error::new(
        ErrorKind::Refused,
        "another program made something of this name here meanwhile: does the same copy run twice?",
    )
}

/// Two names are one here.
pub(super) fn same_name() -> Error {
    Error::new(
        ErrorKind::Refused,
        "another entry has this name here: this file system takes both for one (letter case, Unicode form), or another \
         program made it",
    )
}

impl FileTarget {
    pub(super) fn new(directory: Rc<OpenDirectory>, name: Name, entry: &Entry, there: There) -> FileTarget {
        directory.add_pending();
        let held = size_of::<FileTarget>() + name.as_bytes().len() + bytes_of(&entry.metadata);
        directory.settings().hold(held);
        let size_bytes = match entry.kind {
            Kind::File { size_bytes, .. } => size_bytes,
            _ => 0,
        };
        FileTarget {
            directory,
            name,
            metadata: entry.metadata.clone(),
            there,
            existing: None,
            gains_powers: false,
            seen: None,
            is_refused: false,
            compared: None,
            size_bytes,
            held,
            done: None,
            done_same: None,
            is_quiet_if_same: false,
            is_quiet: false,
            basis: None,
            left: None,
        }
    }

    /// Path below the destination.
    pub fn path(&self) -> Vec<u8> {
        self.directory.path(&self.name)
    }

    /// Its name, in its directory.
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Its size as it was told.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its size and modification time, as they were told.
    pub fn size_and_time(&self) -> SizeAndTime {
        (self.size_bytes, self.metadata.mtime_s, self.metadata.mtime_ns)
    }

    /// True if a regular file was there.
    pub fn replaces_file(&self) -> bool {
        matches!(self.there, There::File(_))
    }

    /// True if it becomes a new file also where what is there has its content.
    pub fn is_never_kept(&self) -> bool {
        self.gains_powers || self.is_refused
    }

    /// True if what may come in parts of it waits for this run or for the next one.
    fn is_partial(&self) -> bool {
        self.size_bytes >= PARTIAL_FROM_BYTES
            && self.directory.settings().sync().is_some_and(|sync| sync.partial)
    }

    /// Looks for what a run before this one left of it; to be called before it is created.
    pub fn find_left(&mut self) {
        let beside = self.existing.map(|_| left_beside(&self.directory, &self.name)).unwrap_or_default();
        let whole = beside.0.or(beside.1);
        if self.is_partial() || whole.is_some() {
            self.left = Left::take(&self.directory, &self.name, whole);
        }
    }

    /// True if what a run before this one left bears this name.
    pub(super) fn has_left(&self, name: &Temporary) -> bool {
        self.left.as_ref().is_some_and(|left| left.is_at(name))
    }

    /// What a run before this one left is not needed any more.
    pub(super) fn leave(&self) {
        match &self.left {
            Some(left) => left.remove(),
            // Nobody looked for it.
            None if self.size_bytes >= PARTIAL_FROM_BYTES => Left::clear(&self.directory, &self.name),
            None => {}
        }
    }

    /// True if another directory has something of it, or a run before this one left it.
    pub fn has_basis(&self) -> bool {
        self.basis.is_some() || self.left.is_some()
    }

    /// True if a run before this one left something of it, which is what [`FileTarget::basis`] then is.
    pub fn goes_on(&self) -> bool {
        self.left.is_some()
    }

    /// What a run before this one left of it, or the regular file that another directory has in its place, if that can be read.
    pub fn basis(&self) -> Option<OlderFile> {
        if let Some(left) = &self.left {
            return left.older();
        }
        self.basis.as_ref().and_then(|basis| basis.older())
    }

    /// The regular file that it is to replace, if that can be read; nobody needs to know why not.
    pub fn older(&self) -> Option<OlderFile> {
        if !self.replaces_file() {
            return None;
        }
        let directory = &self.directory.directory;
        OlderFile::new(directory.open_to_read(self.name.as_bytes()).ok()?.into())
    }

    /// What stands under the name was hashed in this state, to be kept if the sender finds it the same; whether that name is its only one.
    pub fn compared(&mut self, state: FileState, has_one_name: bool) {
        self.compared = Some(Compared { state, has_one_name });
    }

    /// True if what stands under the name was hashed, and this copy itself may change it, or what is told of it, under another name.
    pub fn may_change_elsewhere(&self) -> bool {
        self.compared.is_some_and(|compared| compared.has_several_names())
    }

    /// True if what stands under its name when it gets that is somebody else's: nothing stood there, in a directory of which is known what does. What does by then
    /// has the same name in the eyes of the file system. In a directory that this copy made that is so in any case.
    fn must_be_free(&self) -> bool {
        self.directory.is_new || (matches!(self.there, There::Nothing) && self.directory.is_listed())
    }

    /// The group of hard links that it is one of.
    pub fn link_group(&self) -> Option<[u8; 16]> {
        self.metadata.link_group
    }

    /// Makes the file that is written, for nobody but this user to open until it is whole.
    pub fn create(&self) -> Result<NewFile> {
        let (fd, temporary) = self.make().map_err(|error| Error::file("make a file", error))?;
        let (file, directory) = (File::from(fd), self.directory.clone());
        // Files grow while they are copied, but not from nothing to everything that the disk holds.
        let end_max = self.size_bytes.saturating_mul(2).saturating_add(TREE_GROWTH_BYTES_MAX);
        // Under another name nobody would find it.
        let partial =
            temporary.filter(|it| self.is_partial() && *it == temporary::usual(&directory, &self.name));
        Ok(NewFile {
            file,
            temporary,
            directory,
            position: 0,
            end_max,
            is_sparse: false,
            partial,
            stays: false,
        })
    }

    fn make(&self) -> io::Result<(OwnedFd, Option<Temporary>)> {
        let directory = &self.directory;
        if directory.may_be_unnamed.get() && !self.is_partial() {
            match directory.directory.unnamed() {
                Ok(fd) => return Ok((fd, None)),
                Err(error) if lacks_unnamed(&error) => directory.may_be_unnamed.set(false),
                Err(error) => return Err(error),
            }
        }
        let (temporary, fd) =
            temporary::make(directory, &self.name, &mut |name| make_named(&directory.directory, name))?;
        Ok((fd, Some(temporary)))
    }

    /// Its file is whole: gives it everything the copy keeps, and its name.
    pub fn finish(&self, mut file: NewFile, finished: &Finished) -> Result<Identity> {
        let settings = self.directory.settings();
        file.end(finished.size_bytes)?;
        let mode = match self.there {
            There::File(mode) if !settings.modes => mode,
            _ => settings.mode(self.metadata.mode, || self.directory.granted()),
        };
        let metadata = Kept { mtime: (finished.mtime_s, finished.mtime_ns), ..Kept::of(&self.metadata) };
        settings.count_lacking(&self.metadata);
        if let Some(existing) = &self.existing
            && self.may_overwrite(existing, &file, finished.size_bytes)?
        {
            return self.overwrite(existing, file, finished.size_bytes, (&metadata, mode));
        }
        settings.apply_kept(file.file.as_fd(), &metadata, &self.directory.of_new_file(), mode, false);
        // Before what is there makes way, or is kept: a directory, or an older backup, is not to go for nothing.
        let made = self.settle(&file)?;
        let waits = matches!(self.there, There::Directory)
            && !settings.make_way(&self.directory.directory, &self.name)?;
        if !waits {
            self.require_seen()?;
            let away = self.existing.as_ref().map_or(Away::Replaced, Existing::away);
            self.directory.back_up(&self.name, away)?;
        }
        let identity = self.place(file, waits, made)?;
        self.leave();
        Ok(identity)
    }

    /// `Changed` if what is to be kept is another file than the one that was found: another run has kept that, under the name that this one's backup would get.
    fn require_seen(&self) -> Result<()> {
        let settings = self.directory.settings();
        let is_other = |seen| {
            self.directory.directory.stat(self.name.as_bytes()).is_ok_and(|found| identity_of(&found) != seen)
        };
        if settings.backup().is_some() && self.seen.is_some_and(is_other) {
            return Err(replaced());
        }
        Ok(())
    }

    /// Gives `file`, which has everything that it is to have, its name, in the place of the file of which it is a copy.
    pub(super) fn take_place(&self, file: NewFile) -> Result<Identity> {
        let made = self.settle(&file)?;
        self.place(file, false, made)
    }

    /// Gives `file` its name, or one for now if it waits for a directory to make way.
    fn place(&self, mut file: NewFile, waits: bool, made: Option<Made>) -> Result<Identity> {
        let named = if waits { file.name_for_now(self) } else { file.name(self) };
        named.map_err(|error| taken(&self.directory, &self.name, error, "give the file its name"))?;
        let (is_linked, settings) = (self.metadata.link_group.is_some(), self.directory.settings());
        let is_unsynced = settings.is_noted(self.replaces());
        if settings.is_durable() && settings.tells_of(self.directory.device, &self.directory.directory) {
            *settings.last_placed.borrow_mut() = self.directory.path(&self.name);
        }
        if !is_linked && !is_unsynced {
            return Ok((0, 0, 0));
        }
        let found = stat_fd_for(file.file.as_fd(), FACTS);
        let found = found.map_err(|error| Error::file("look at the file", error))?;
        if is_unsynced {
            self.directory.note_unsynced(&self.name, &found, made);
        }
        Ok(if is_linked { identity_of(&found) } else { (0, 0, 0) })
    }
}

impl Drop for FileTarget {
    fn drop(&mut self) {
        self.directory.settings().release(self.held);
    }
}

/// What file systems and kernels say that have no files without a name.
pub(super) fn lacks_unnamed(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL, Errno::NOSYS]
        .iter()
        .any(|known| code == Some(known.raw_os_error()))
}

/// Makes the file `name` and locks it, so that another run does not take it for one that was left.
pub(super) fn make_named(directory: &Directory, name: &Temporary) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CREATE | OFlags::EXCL;
    let fd = directory.open_at(name, flags, Mode::RUSR | Mode::WUSR)?;
    let is_locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
    let made = stat_fd(fd.as_fd())?;
    // Another run may have been faster than the lock; then this one is to take another name.
    match directory.stat(name) {
        Ok(found) if is_locked && found.stx_ino == made.stx_ino => Ok(fd),
        _ => Err(Errno::EXIST.into()),
    }
}

impl NewFile {
    /// Appends bytes. `Changed` if the file would become far larger than was told.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_end(bytes.len() as u64)?;
        self.write_at(bytes, self.position)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes bytes of a file that comes in parts, at `position`.
    pub fn write_at(&self, bytes: &[u8], position: u64) -> Result<()> {
        self.file.write_all_at(bytes, position).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => too_large(),
            _ => Error::file("write the file", error),
        })
    }

    /// All parts came: the file has so many bytes, those that were not written are holes.
    pub fn came_in_parts(&mut self, bytes: u64) {
        (self.position, self.is_sparse) = (bytes, true);
    }

    /// Leaves a hole of so many bytes, which costs nothing.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        let position = self.position.checked_add(bytes).filter(|position| *position < 1 << 62);
        let position = position
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "the file is larger than a file can be"))?;
        self.check_end(bytes)?;
        self.position = position;
        self.is_sparse = true;
        Ok(())
    }

    fn check_end(&self, bytes: u64) -> Result<()> {
        if bytes <= self.end_max.saturating_sub(self.position) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Changed, "it is far larger than when the copy came to it")
            .advise("copy it when nobody writes to it"))
    }

    /// Forgets everything written.
    pub fn restart(&mut self) -> Result<()> {
        rustix::fs::ftruncate(&self.file, 0)
            .map_err(|error| Error::file("write the file anew", error.into()))?;
        (self.position, self.is_sparse) = (0, false);
        Ok(())
    }

    /// The file itself, for whoever fills it in the kernel; it then calls [`NewFile::filled`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The kernel filled the first `bytes` bytes.
    pub fn filled(&mut self, bytes: u64) {
        self.position = bytes;
    }

    fn end(&mut self, size_bytes: u64) -> Result<()> {
        if self.position != size_bytes {
            let what = format!("{} bytes came of a file of {size_bytes}", self.position);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        if self.is_sparse {
            rustix::fs::ftruncate(&self.file, size_bytes).map_err(|error| match error {
                Errno::INVAL | Errno::FBIG | Errno::OVERFLOW => too_large(),
                error => Error::file("end the file with a hole", error.into()),
            })?;
        }
        Ok(())
    }

    /// Gives it its name.
    fn name(&mut self, target: &FileTarget) -> io::Result<()> {
        let directory = &self.directory;
        if let Some(temporary) = self.temporary {
            let must_be_free = target.must_be_free();
            let rename = || rename(directory, &temporary, &target.name, must_be_free);
            let renamed = if must_be_free { rename() } else { replacing(directory, &target.name, rename) };
            renamed?;
            self.temporary = None;
            return Ok(());
        }
        if matches!(target.there, There::Nothing) {
            directory.touch();
            match self.link(target.name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !target.must_be_free() => {}
                result => return result,
            }
        }
        temporary::replace(directory, &target.name, &mut |temporary| self.link(temporary))
    }

    /// Gives it a temporary name, until the directory that stands in its place makes way.
    fn name_for_now(&mut self, target: &FileTarget) -> io::Result<()> {
        let directory = &self.directory;
        let made = match self.temporary.take() {
            Some(temporary) => temporary,
            None => {
                directory.touch();
                temporary::make(directory, &target.name, &mut |temporary| self.link(temporary))?.0
            }
        };
        directory.wait_for_way(&target.name, &made).map(|_| ())
    }

    /// Gives it the name `waiting`, locked; it goes to `name`. What stands there makes way if this run `holds` it; else nothing may.
    pub(super) fn wait_as(&mut self, name: &Name, waiting: Temporary, holds: bool) -> io::Result<()> {
        let directory = &self.directory;
        directory.touch();
        let made = match self.temporary {
            Some(temporary) => temporary,
            None => {
                // So that no other run takes it for something left.
                rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
                temporary::make(directory, name, &mut |temporary| self.link(temporary))?.0
            }
        };
        self.temporary = Some(made);
        rename_to(directory, &made, &waiting, !holds)?;
        self.temporary = Some(waiting);
        Ok(())
    }

    /// It keeps its name until [`NewFile::forget`], whatever becomes of this process.
    pub(super) fn stay(&mut self) {
        self.stays = true;
    }

    /// Nothing is made of it after all.
    pub(super) fn take_back(&mut self) {
        self.stays = false;
    }

    /// Nobody needs it any more.
    pub(super) fn forget(&mut self) {
        (self.partial, self.stays) = (None, false);
        if let Some(temporary) = self.temporary.take() {
            self.remove(&temporary);
        }
    }

    /// Takes its name away, if that is still its own.
    fn remove(&self, temporary: &Temporary) {
        if self.is_named(temporary) {
            temporary::remove(&self.directory, temporary);
        }
    }

    /// True if this is still its name.
    fn is_named(&self, temporary: &Temporary) -> bool {
        let named = self.directory.directory.stat(temporary).map(|found| identity_of(&found)).ok();
        let ours = stat_fd(self.file.as_fd()).map(|found| identity_of(&found)).ok();
        named.is_some() && named == ours
    }

    /// Makes `name` a name of this file.
    fn link(&self, name: &[u8]) -> io::Result<()> {
        self.directory.settings().link_unnamed(self.file.as_fd(), &self.directory.directory, name)
    }
}

impl Settings {
    /// Makes `name` in `directory` a name of `file`, which may have none.
    pub(super) fn link_unnamed(
        &self,
        file: BorrowedFd<'_>,
        directory: &Directory,
        name: &[u8],
    ) -> io::Result<()> {
        if !self.links_by_path.get() {
            match rustix::fs::linkat(file, "", directory, name, AtFlags::EMPTY_PATH) {
                // Kernels before 6.10 let only root do it so.
                Err(Errno::NOENT | Errno::PERM) => {}
                result => return Ok(result?),
            }
        }
        let path = Directory::path_of(file);
        rustix::fs::linkat(rustix::fs::CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)?;
        self.links_by_path.set(true);
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let Some(temporary) = self.temporary.as_ref().filter(|_| !self.stays) else { return };
        let has_any = || self.file.metadata().is_ok_and(|found| found.len() > 0);
        let is_kept = match self.partial.filter(|_| has_any()) {
            // Under another one nobody looks for a part.
            Some(partial) if partial != *temporary => {
                self.is_named(temporary) && rename_to(&self.directory, temporary, &partial, true).is_ok()
            }
            partial => partial.is_some(),
        };
        if !is_kept {
            self.remove(temporary);
        }
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::Unsupported, "the file is larger than the file system here can keep")
        .advise("copy it to another file system")
}

/// What is known of a file or directory before it gets what the copy keeps; what is not known is set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) has_no_xattrs: bool,
}

/// What the copy keeps of an entry.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) mtime: (i64, u32),
    metadata: &'a Metadata,
}

impl Kept<'_> {
    pub(super) fn of(metadata: &Metadata) -> Kept<'_> {
        Kept { mtime: (metadata.mtime_s, metadata.mtime_ns), metadata }
    }
}

impl Settings {
    /// Gives an open file or directory what the copy keeps; `mode` is what its bits become. What cannot be kept is counted.
    pub(super) fn apply(
        &self,
        fd: BorrowedFd<'_>,
        metadata: &Metadata,
        now: &Now,
        mode: u32,
        is_directory: bool,
    ) {
        self.apply_kept(fd, &Kept::of(metadata), now, mode, is_directory);
    }

    pub(super) fn apply_kept(
        &self,
        fd: BorrowedFd<'_>,
        kept: &Kept<'_>,
        now: &Now,
        mode: u32,
        is_directory: bool,
    ) {
        let (metadata, mut mode, mut mode_now) = (kept.metadata, mode, now.mode);
        let fakes = self.fakes();
        if fakes && self.xattrs {
            self.open_for_attributes(At::Open(fd), fd);
        }
        if self.owners && !fakes {
            let (uid, gid) = self.owner_of(metadata.uid, metadata.gid);
            let uid_to_set = uid.filter(|uid| now.owner.is_none_or(|(now, _)| now != *uid));
            let gid_to_set = gid.filter(|gid| now.owner.is_none_or(|(_, now)| now != *gid));
            let mut is_set = true;
            if uid_to_set.is_some() || gid_to_set.is_some() {
                let result =
                    rustix::fs::fchown(fd, uid_to_set.map(Uid::from_raw), gid_to_set.map(Gid::from_raw));
                if let Err(error) = result {
                    self.count("owner", error);
                    is_set = false;
                }
                // The kernel takes setuid and setgid away.
                mode_now = None;
            }
            mode = self.without_foreign_powers(mode, metadata, (uid, gid), is_set, is_directory);
        }
        if self.xattrs && !(now.has_no_xattrs && metadata.xattrs.is_empty()) && !metadata.xattrs_unread {
            let mut told = self.told.borrow_mut();
            attributes::set(fd, &metadata.xattrs, self.attribute_scope(), &mut told);
        }
        // After the ACL, which has a say in the bits.
        if fakes {
            let file = Kind::File { size_bytes: 0, oid: None };
            let kind = if is_directory { Kind::Directory { entries: None } } else { file };
            self.apply_fake(At::Open(fd), fd, &kind, Some(mode), metadata);
        } else if mode_now != Some(mode)
            && let Err(error) = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))
        {
            self.count("permissions", error);
        }
        let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
        if self.keeps_time_of(kind)
            && now.mtime != Some(kept.mtime)
            && let Err(error) = rustix::fs::futimens(fd, &times_of(kept.mtime))
        {
            self.count("modification time", error);
        }
    }

    /// `mode` without setuid and setgid where they would lend the rights of another than they lent at the source.
    pub(super) fn without_foreign_powers(
        &self,
        mode: u32,
        metadata: &Metadata,
        (uid, gid): (Option<u32>, Option<u32>),
        is_set: bool,
        is_directory: bool,
    ) -> u32 {
        if mode & 0o6000 == 0 || is_directory {
            return mode;
        }
        let (wanted_uid, wanted_gid) = self.wanted_owner(metadata.uid, metadata.gid);
        let has_uid = (is_set && uid.is_some()) || wanted_uid == self.powers.uid;
        let has_gid = (is_set && gid.is_some()) || wanted_gid == self.powers.gid;
        let foreign = if has_uid { 0 } else { 0o4000 } | if has_gid { 0 } else { 0o2000 };
        mode & !foreign
    }

    /// Counts what of a file this process may not keep, where its source would go with the only one there is.
    pub(super) fn count_lacking(&self, metadata: &Metadata) {
        if !self.removes_sources() {
            return;
        }
        let scope = self.attribute_scope();
        if self.xattrs && metadata.xattrs.iter().any(|xattr| attributes::is_for_root(&xattr.name, scope)) {
            self.count_what("extended attributes that only root may set, and not where a login is confined");
        }
        let wanted = if self.modes && self.special_modes { metadata.mode & 0o7000 } else { 0 };
        let mut mode = self.mode(metadata.mode, || 0);
        if self.owners {
            let owner = self.owner_of(metadata.uid, metadata.gid);
            mode = self.without_foreign_powers(mode, metadata, owner, true, false);
        }
        if wanted & !mode != 0 {
            self.count_what("the setuid or setgid bit, for it would lend another's rights here");
        }
    }

    /// Whether the file system tells of failed writes only when a file is closed, which safe code does not hear: those that
    /// send to a server, and those of other programs.
    pub(super) fn fails_late(&self, device: (u32, u32), fd: BorrowedFd<'_>) -> bool {
        self.late_devices.get(device, || lies_on(fd, &LATE))
    }
}

/// The modification time as the kernel takes it; the access time stays.
pub(super) fn times_of((mtime_s, mtime_ns): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime_s, tv_nsec: mtime_ns.into() },
    }
}
