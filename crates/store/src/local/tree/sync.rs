//! Bringing a destination to the state of its source, with rsync's habits: which entries are passed by, which contents are looked at,
//! and what makes way. [`TreeWriter`](super::TreeWriter) does it, [`Preview`](super::Preview) only says it.

use dray_core::tree::{Entry, Kind, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Statx};
use rustix::io::Errno;

use super::attributes::AttributeSort;
use super::backup::BackupOptions;
use super::basis::BasisOptions;
use super::directory::Directory;
use super::exclude::Excludes;
use super::fake::FakeSuper;
use super::settings::{Settings, mtime_of};
use super::write::file_type;

/// What is done otherwise than in a copy.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// Keep symbolic links.
    pub links: bool,
    /// Keep devices.
    pub devices: bool,
    /// Keep fifos and sockets.
    pub specials: bool,
    /// Where owners are kept: users.
    pub users: bool,
    /// Where owners are kept: groups.
    pub groups: bool,
    /// Where extended attributes are kept: which.
    pub attributes: AttributeSort,
    /// Files of one size are compared by their bytes, whatever their times say.
    pub checksum: bool,
    /// Files of one size are the same.
    pub size_only: bool,
    /// What is newer here stays.
    pub update: bool,
    /// Nothing is made that is not there.
    pub existing: bool,
    /// What is there stays as it is.
    pub ignore_existing: bool,
    /// What the source has not is deleted.
    pub delete: Option<DeleteOptions>,
    /// Directories on other file systems than their source's are left alone.
    pub one_file_system: bool,
    /// What is left out is not deleted either.
    pub rules: Excludes,
    /// Each entry that is made or changed is told.
    pub itemize: bool,
    /// The destination is a directory, whatever comes.
    pub into_directory: bool,
    /// What the sources go into keeps what it has: a list names what comes.
    pub roots_stay: bool,
    /// Directories that are not deleted, by device and inode: the sources themselves, where they lie in the destination.
    pub sources: Vec<(u64, u64)>,
    /// Where times are kept: not those of directories.
    pub omit_directory_times: bool,
    /// Nor those of symbolic links.
    pub omit_link_times: bool,
    /// Files with more bytes are passed by.
    pub max_size_bytes: Option<u64>,
    /// And those with fewer.
    pub min_size_bytes: Option<u64>,
    /// What is in place leaves its source: what is there already is compared by its bytes first.
    pub removes_sources: bool,
    /// What came of large files before the run is cut off waits for the next one.
    pub partial: bool,
    /// What is replaced or deleted is kept.
    pub backup: Option<BackupOptions>,
    /// Other directories that may have what is to come.
    pub basis: Option<BasisOptions>,
    /// Kinds, owners and bits are kept in attributes.
    pub fake: FakeSuper,
    /// Files that are there are changed, not replaced.
    pub in_place: bool,
}

/// What is deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeleteOptions {
    /// Also what the rules leave out.
    pub excluded: bool,
    /// So many entries at most.
    pub max: Option<u64>,
}

/// What was done with an entry, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// As rsync writes it (`%i`); `None` if it was deleted.
    pub letters: Option<[u8; 11]>,
    /// Path below the destination; of a directory with a slash at its end.
    pub path: Vec<u8>,
    /// Where a symbolic link points, or the first name of a hard link.
    pub link: Option<Vec<u8>>,
}

/// How the change of an entry is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// It stays what it is.
    Stays,
    /// It is made here, without a content that comes.
    Made,
    /// It is made of what another directory has, which has its content.
    Copied,
    /// Its content comes.
    Comes,
    /// It becomes another name of a file.
    Linked,
}

/// What is to be done with the content of a file of which one is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is left alone.
    Pass,
    /// It is the same, as far as size and time tell.
    Keep,
    /// Its hash decides.
    Compare,
    /// It is wanted.
    Want,
}

impl Settings {
    /// What to do with the content of the regular file `found`, where the entry is one of `size_bytes`.
    pub(super) fn verdict(&self, entry: &Entry, size_bytes: u64, found: &Statx) -> Verdict {
        match self.quick_verdict(entry, size_bytes, found) {
            // What leaves its source is believed to be here only for what its bytes say.
            Verdict::Keep if self.removes_sources() => Verdict::Compare,
            verdict => verdict,
        }
    }

    /// With `-u`: what is there is a file, and newer than the entry's.
    pub(super) fn is_newer(&self, entry: &Entry, found: &Statx) -> bool {
        let Kind::File { size_bytes, .. } = entry.kind else { return false };
        file_type(found) == FileType::RegularFile && self.verdict(entry, size_bytes, found) == Verdict::Pass
    }

    /// The same as far as size and time tell.
    fn quick_verdict(&self, entry: &Entry, size_bytes: u64, found: &Statx) -> Verdict {
        let told = (entry.metadata.mtime_s, entry.metadata.mtime_ns);
        let is_timed = mtime_of(found) == told;
        let may_differ = if self.changes.never_compares { Verdict::Want } else { Verdict::Compare };
        let has_size = found.stx_size == size_bytes;
        match self.sync() {
            Some(sync) if sync.update && mtime_of(found) > told => Verdict::Pass,
            Some(sync) if sync.checksum && has_size => Verdict::Compare,
            Some(sync) if sync.size_only && has_size => Verdict::Keep,
            _ if self.whole_file || !has_size => Verdict::Want,
            Some(_) if is_timed => Verdict::Keep,
            None if self.times && is_timed => Verdict::Keep,
            _ => may_differ,
        }
    }

    /// True if nothing is told of a content that is found to be the same: nobody expects it to come.
    pub(super) fn is_quiet_if_same(&self, entry: &Entry, size_bytes: u64, found: &Statx) -> bool {
        self.sync().is_some_and(|sync| sync.checksum)
            || (self.removes_sources() && self.quick_verdict(entry, size_bytes, found) == Verdict::Keep)
    }

    /// True if what is in place leaves its source.
    pub(super) fn removes_sources(&self) -> bool {
        self.sync().is_some_and(|sync| sync.removes_sources)
    }

    /// True if a file of the right size may be right whatever its time is, and stays then.
    pub(super) fn keeps_by_hash(&self) -> bool {
        self.sync().is_some_and(|sync| sync.checksum || sync.removes_sources)
    }

    /// True if a file that is there stays as it is whatever its time.
    pub(super) fn believes_whatever_time(&self) -> bool {
        self.sync().is_some_and(|sync| sync.size_only || sync.ignore_existing)
    }

    /// True if what comes is a stranger's, who has no login here: it came by ticket.
    fn is_from_stranger(&self) -> bool {
        self.harmless && self.confined.is_none()
    }

    /// True if the entry is passed by, with all that is below it; `found` is what stands in its place.
    pub(super) fn passes(&self, entry: &Entry, found: Option<&Statx>) -> bool {
        let Some(sync) = self.sync() else { return false };
        let hint = if self.is_from_stranger() { "a ticket brings none" } else { "-D keeps them" };
        let without = match entry.kind {
            Kind::Symlink { .. } if !sync.links => Some(("symbolic links", "-l keeps them")),
            Kind::CharacterDevice { .. } | Kind::BlockDevice { .. } if !sync.devices => {
                Some(("devices", hint))
            }
            Kind::Fifo | Kind::Socket if !sync.specials => Some(("fifos and sockets", hint)),
            _ => None,
        };
        if let Some((what, hint)) = without {
            *self.told.borrow_mut().left_out.entry(format!("{what} ({hint})")).or_default() += 1;
            return true;
        }
        if let Kind::File { size_bytes, .. } = entry.kind
            && (sync.max_size_bytes.is_some_and(|max| size_bytes > max)
                || sync.min_size_bytes.is_some_and(|min| size_bytes < min))
        {
            return true;
        }
        match found {
            None => sync.existing,
            Some(found) => {
                let are_directories = entry.is_directory() && file_type(found) == FileType::Directory;
                sync.ignore_existing && !are_directories
            }
        }
    }

    /// Removes the directory `name` of `parent`, in whose place something else comes, if it is empty. False if it is not, and what is in
    /// it is to be deleted at the end.
    pub(super) fn make_way(&self, parent: &Directory, name: &Name) -> Result<bool> {
        match rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) if self.deletes() => Ok(false),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(in_the_way()),
            Err(error) => Err(Error::file("make way for it", error.into())),
        }
    }

    /// True if what the source has not is deleted.
    fn deletes(&self) -> bool {
        self.sync().is_some_and(|sync| sync.delete.is_some())
    }

    /// Something was done with an entry; told if it is to be.
    pub(super) fn did(&self, done: Option<Done>) {
        self.done.borrow_mut().extend(done);
    }

    /// How the change of `entry` is told, before it is made: `None` if nothing changes, or nobody wants to hear. `found` is what
    /// is there; `has` says whether attributes of a sort are those of the entry; `path` is asked for last.
    pub(super) fn describe(
        &self,
        entry: &Entry,
        found: Option<&Statx>,
        how: How,
        has: &dyn Fn(AttributeSort) -> bool,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Option<Done> {
        let sync = self.sync().filter(|sync| sync.itemize)?;
        let mut letters = *b"...........";
        let is_link = matches!(entry.kind, Kind::Symlink { .. });
        letters[0] = match how {
            How::Stays => b'.',
            How::Made | How::Copied => b'c',
            How::Comes => b'>',
            How::Linked => b'h',
        };
        letters[1] = match entry.kind {
            Kind::File { .. } => b'f',
            Kind::Directory { .. } => b'd',
            Kind::Symlink { .. } => b'L',
            Kind::Fifo | Kind::Socket => b'S',
            Kind::CharacterDevice { .. } | Kind::BlockDevice { .. } => b'D',
        };
        // What is of another kind makes way, so this is new.
        let found = found.filter(|found| is_of_kind(entry, found));
        if let Some(found) = found {
            self.compare(entry, found, how, sync, has, &mut letters[2..]);
            let differs_in_nothing = letters[2..].iter().all(|letter| *letter == b'.');
            match how {
                How::Stays | How::Copied if differs_in_nothing => return None,
                How::Linked if differs_in_nothing => letters[2..].fill(b' '),
                _ => {}
            }
        } else {
            letters[2..].fill(b'+');
        }
        let mut path = path();
        if entry.is_directory() {
            if path.is_empty() {
                path.push(b'.');
            }
            path.push(b'/');
        }
        let link = match &entry.kind {
            Kind::Symlink { target } if is_link => Some(target.clone()),
            _ => None,
        };
        Some(Done { letters: Some(letters), path, link })
    }

    /// Writes what differs between `entry` and `found`: content, size, time, permissions, owner, group, access time, ACL, attributes.
    fn compare(
        &self,
        entry: &Entry,
        found: &Statx,
        how: How,
        sync: &SyncOptions,
        has: &dyn Fn(AttributeSort) -> bool,
        letters: &mut [u8],
    ) {
        let is_link = matches!(entry.kind, Kind::Symlink { .. });
        let metadata = &entry.metadata;
        let keeps_time = self.keeps_time_of(file_type(found));
        // What is copied or linked from another directory is told only for what differs.
        let changes = matches!(how, How::Made | How::Comes);
        let (mode, differences) = self.differences(metadata, found, || true);
        let owner = if self.owners { self.owner_of(metadata.uid, metadata.gid) } else { (None, None) };
        let scope = self.attribute_scope();
        let lacks = |sort| {
            self.xattrs && !metadata.xattrs_unread && !is_link && scope.of(sort).is_some() && !has(sort)
        };
        let told = [
            (how == How::Made || (how == How::Comes && sync.checksum), b'c'),
            (matches!(entry.kind, Kind::File { size_bytes, .. } if size_bytes != found.stx_size), b's'),
            (if keeps_time { differences.time } else { changes }, if self.times { b't' } else { b'T' }),
            (self.modes && !is_link && mode != u32::from(found.stx_mode) & 0o7777, b'p'),
            (owner.0.is_some_and(|uid| uid != found.stx_uid), b'o'),
            (owner.1.is_some_and(|gid| gid != found.stx_gid), b'g'),
            (false, b'u'),
            (lacks(AttributeSort::Acls), b'a'),
            (lacks(AttributeSort::Others), b'x'),
        ];
        for (place, (is_told, letter)) in letters.iter_mut().zip(told) {
            if is_told {
                *place = letter;
            }
        }
    }
}

/// Whether what is found is of the entry's kind, whatever it has.
pub(super) fn is_of_kind(entry: &Entry, found: &Statx) -> bool {
    matches!(
        (&entry.kind, file_type(found)),
        (Kind::File { .. }, FileType::RegularFile)
            | (Kind::Directory { .. }, FileType::Directory)
            | (Kind::Symlink { .. }, FileType::Symlink)
            | (Kind::Fifo, FileType::Fifo)
            | (Kind::Socket, FileType::Socket)
            | (Kind::CharacterDevice { .. }, FileType::CharacterDevice)
            | (Kind::BlockDevice { .. }, FileType::BlockDevice)
    )
}

/// A directory that makes no way.
pub(super) fn in_the_way() -> Error {
    Error::new(ErrorKind::Refused, "a directory stands there that is not empty")
        .advise("--delete removes what is in it and is not excluded")
}

/// Removes what is no directory, in whose place one comes.
pub(super) fn remove_file(parent: &Directory, name: &Name) -> Result<()> {
    rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::empty())
        .map_err(|error| Error::file("make way for a directory", error.into()))
}
