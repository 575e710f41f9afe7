//! The files that the index knows: all of them in memory, and what tells whether one is still what it was.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use dray_core::chunker::Profile;
use dray_core::limits::{INDEX_DIRECTORY_ENTRIES_MAX, PATH_BYTES_MAX};
use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Result};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, statat};
use rustix::io::Errno;

use super::database::{Database, damaged};
use super::{ChunkIndex, IndexLimits, Scope};

/// A file that was cut.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct FileRecord {
    /// Its absolute path.
    #[n(0)]
    path: ByteVec,
    /// Its state before it was cut, and after.
    #[n(1)]
    pub(super) identity: FileIdentity,
    /// How.
    #[n(2)]
    pub(super) profile: Profile,
    /// Into how many chunks; none if there is no room for them, so that it is not cut again and again.
    #[n(3)]
    pub(super) chunks: u64,
}

/// Files are alike whose sizes differ by this part of the one at the most.
const SIMILAR_SHARE: u64 = 16;

/// How old a file is: the lower, the sooner it leaves. When it came to be as it is on this disk.
pub(super) type Age = i64;

pub(super) fn age_of(identity: &FileIdentity) -> Age {
    identity.ctime_ns
}

impl FileRecord {
    pub(super) fn new(path: &Path, identity: FileIdentity, profile: Profile) -> Result<FileRecord> {
        if !path.is_absolute() || Self::is_too_long(path) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{path:?} is no path for the chunk index"),
            ));
        }
        Ok(FileRecord { path: path.as_os_str().as_bytes().to_vec().into(), identity, profile, chunks: 0 })
    }

    pub(super) fn is_too_long(path: &Path) -> bool {
        path.as_os_str().len() > PATH_BYTES_MAX
    }

    /// Whether it may have been read from disk.
    pub(super) fn check(&self) -> Result<()> {
        let is_right = self.path().is_absolute()
            && !Self::is_too_long(&self.path())
            && ChunkIndex::takes(self.identity.size_bytes)
            && self.chunks <= self.identity.size_bytes;
        if is_right { Ok(()) } else { Err(damaged("a file in it cannot be")) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path_ref().to_owned()
    }

    fn path_ref(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Whether it may be looked at for `scope`, by what is remembered of it.
    pub(super) fn is_in(&self, scope: &Scope<'_>) -> bool {
        let path = self.path_ref();
        self.identity.dev == scope.dev && path != scope.directory && path.starts_with(scope.directory)
    }

    /// The same at `path`, as it is there.
    pub(super) fn at(self, path: &Path, identity: FileIdentity) -> FileRecord {
        FileRecord { path: path.as_os_str().as_bytes().to_vec().into(), identity, ..self }
    }

    /// Whether `now` is that file with the same content, as far as its size and times tell. A new name changes its change time.
    pub(super) fn is_same(&self, now: &FileIdentity) -> bool {
        let then = &self.identity;
        (then.dev, then.ino, then.size_bytes, then.mtime_ns)
            == (now.dev, now.ino, now.size_bytes, now.mtime_ns)
    }
}

/// All of them, by number: a file that was taken in later has a greater one.
#[derive(Debug)]
pub(super) struct Files {
    records: BTreeMap<u64, FileRecord>,
    by_age: BTreeSet<(Age, u64)>,
    /// Whose records are not on disk as they are here.
    changed: BTreeSet<u64>,
    /// That questions did not find.
    suspects: BTreeSet<u64>,
    /// By the hash of the path: of two that share one the later is found.
    by_path: HashMap<u64, u64>,
    hasher: RandomState,
    by_inode: HashMap<(u64, u64), u64>,
    /// How many are on each device.
    on_device: HashMap<u64, usize>,
    path_bytes: usize,
    chunks: u64,
    next: u64,
}

impl Files {
    pub(super) fn load(database: &Database) -> Result<Files> {
        let (records, next) = database.load()?;
        let mut files = Files {
            records: BTreeMap::new(),
            by_age: BTreeSet::new(),
            changed: BTreeSet::new(),
            suspects: BTreeSet::new(),
            by_path: HashMap::new(),
            hasher: RandomState::new(),
            by_inode: HashMap::new(),
            on_device: HashMap::new(),
            path_bytes: 0,
            chunks: 0,
            next,
        };
        for (number, record) in records {
            files.insert(number, record);
        }
        files.changed.clear();
        Ok(files)
    }

    /// Takes it in, in the place of what has that number.
    pub(super) fn insert(&mut self, number: u64, record: FileRecord) {
        self.remove(number);
        self.path_bytes += record.path.len();
        self.chunks = self.chunks.saturating_add(record.chunks);
        self.by_path.insert(self.hasher.hash_one(&*record.path), number);
        self.by_inode.insert((record.identity.dev, record.identity.ino), number);
        *self.on_device.entry(record.identity.dev).or_default() += 1;
        self.by_age.insert((age_of(&record.identity), number));
        self.changed.insert(number);
        self.records.insert(number, record);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<FileRecord> {
        let record = self.records.remove(&number)?;
        self.suspects.remove(&number);
        self.by_age.remove(&(age_of(&record.identity), number));
        self.changed.insert(number);
        self.path_bytes -= record.path.len();
        self.chunks = self.chunks.saturating_sub(record.chunks);
        let hash = self.hasher.hash_one(&*record.path);
        if self.by_path.get(&hash) == Some(&number) {
            self.by_path.remove(&hash);
        }
        if let Entry::Occupied(mut count) = self.on_device.entry(record.identity.dev) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let inode = (record.identity.dev, record.identity.ino);
        if self.by_inode.get(&inode) == Some(&number) {
            self.by_inode.remove(&inode);
        }
        Some(record)
    }

    pub(super) fn get(&self, number: u64) -> Option<&FileRecord> {
        self.records.get(&number)
    }

    pub(super) fn at(&self, path: &Path) -> Option<(u64, &FileRecord)> {
        let path = path.as_os_str().as_bytes();
        let number = self.by_path.get(&self.hasher.hash_one(path))?;
        let record = self.records.get(number).filter(|record| *record.path == *path)?;
        Some((*number, record))
    }

    pub(super) fn of_inode(&self, dev: u64, ino: u64) -> Option<(u64, &FileRecord)> {
        let number = self.by_inode.get(&(dev, ino))?;
        Some((*number, self.records.get(number)?))
    }

    pub(super) fn is_inode_known(&self, dev: u64, ino: u64) -> bool {
        self.by_inode.contains_key(&(dev, ino))
    }

    pub(super) fn is_device_known(&self, dev: u64) -> bool {
        self.on_device.contains_key(&dev)
    }

    /// The numbers of all files with chunks.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.records.iter().filter(|(_, record)| record.chunks > 0).map(|(number, _)| *number)
    }

    /// The numbers of all files.
    pub(super) fn all_numbers(&self) -> Vec<u64> {
        self.records.keys().copied().collect()
    }

    /// A question did not find that one, which may be the question's fault.
    pub(super) fn suspect(&mut self, number: u64) {
        self.suspects.insert(number);
    }

    /// Those that questions did not find, which are known still. They are told of once.
    pub(super) fn take_suspects(&mut self) -> Vec<u64> {
        let suspects = std::mem::take(&mut self.suspects);
        suspects.into_iter().filter(|number| self.records.contains_key(number)).collect()
    }

    /// The number of the oldest file, if it is older than `age`.
    pub(super) fn oldest(&self, age: Age) -> Option<u64> {
        self.by_age.first().filter(|(oldest, _)| *oldest < age).map(|(_, number)| *number)
    }

    /// How old the latest is.
    #[cfg(test)]
    pub(super) fn youngest(&self) -> Option<Age> {
        self.by_age.last().map(|(age, _)| *age)
    }

    /// Whether there is room for a file of about so many chunks, with what leaves for it: what is older than `age`.
    pub(super) fn has_room(&self, limits: &IndexLimits, age: Age, path: &Path, chunks: u64) -> bool {
        let mut left =
            (self.records.len() + 1, self.path_bytes + path.as_os_str().len(), self.chunks + chunks);
        // What is there of it is replaced.
        if let Some((_, record)) = self.at(path) {
            left = (left.0 - 1, left.1 - record.path.len(), left.2.saturating_sub(record.chunks));
        }
        let fits = |left: (usize, usize, u64)| {
            left.0 <= limits.files && left.1 <= limits.path_bytes && left.2 <= limits.chunks
        };
        let mut older = self.by_age.iter().take_while(|(oldest, _)| *oldest < age);
        while !fits(left) {
            let Some(record) = older.next().and_then(|(_, number)| self.records.get(number)) else {
                return false;
            };
            left = (
                left.0.saturating_sub(1),
                left.1.saturating_sub(record.path.len()),
                left.2.saturating_sub(record.chunks),
            );
        }
        true
    }

    /// Some of the records that are not on disk as they are here, or are no more; from now on they count as written.
    pub(super) fn take_changes(&mut self, most: usize) -> Vec<(u64, Option<FileRecord>)> {
        let changes: Vec<_> = self
            .changed
            .iter()
            .take(most)
            .map(|number| (*number, self.records.get(number).cloned()))
            .collect();
        for (number, _) in &changes {
            self.changed.remove(number);
        }
        changes
    }

    /// They were not written.
    pub(super) fn give_back(&mut self, changes: &[(u64, Option<FileRecord>)]) {
        self.changed.extend(changes.iter().map(|(number, _)| *number));
    }

    /// A number that nobody had.
    pub(super) fn reserve(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The number that the next one gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How many, and their chunks.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.records.len() as u64, self.chunks)
    }

    pub(super) fn is_beyond(&self, limits: &IndexLimits) -> bool {
        self.records.len() > limits.files
            || self.path_bytes > limits.path_bytes
            || self.chunks > limits.chunks
    }

    /// Files that may be alike, the latest first; by name alone without a size.
    pub(super) fn similar(
        &self,
        scope: &Scope<'_>,
        size_bytes: Option<u64>,
        name: Option<&[u8]>,
    ) -> Vec<u64> {
        let sizes = size_bytes.map(|size_bytes| {
            let alike = size_bytes / SIMILAR_SHARE;
            size_bytes - alike..=size_bytes.saturating_add(alike)
        });
        let is_similar = |record: &FileRecord| {
            let is_same_name = name.is_some() && record.path_ref().file_name().map(OsStr::as_bytes) == name;
            record.chunks > 0
                && (is_same_name
                    || sizes.as_ref().is_some_and(|sizes| sizes.contains(&record.identity.size_bytes)))
                && record.is_in(scope)
        };
        let latest = self.records.iter().rev();
        latest.filter(|(_, record)| is_similar(record)).map(|(number, _)| *number).collect()
    }
}

/// What the regular file at `path` is; `None` if there is none. A symbolic link is not followed.
pub fn look(path: &Path) -> Option<FileIdentity> {
    match see(path, None) {
        Seen::File(identity) => Some(identity),
        _ => None,
    }
}

/// What a look at a path gave.
pub(super) enum Seen {
    /// A regular file.
    File(FileIdentity),
    /// No regular file, or none for us.
    None,
    /// It cannot be told: too many files are open, the disk failed, or there is a mount on the way that must not be crossed.
    Unknown,
}

/// What is at the absolute `path`, in `scope` if there is one. No symbolic link at its end is followed, in a scope none at all; and nothing is
/// mounted for it where it is itself what would be.
pub(super) fn see(path: &Path, scope: Option<&Scope<'_>>) -> Seen {
    let stat = match scope {
        None => status(path),
        Some(scope) => {
            let opened = open_in(scope, path, OFlags::PATH | OFlags::NOFOLLOW);
            opened.and_then(rustix::fs::fstat)
        }
    };
    match stat {
        Ok(stat) => identity(&stat).map_or(Seen::None, Seen::File),
        Err(error) if is_gone(error) => Seen::None,
        Err(_) => Seen::Unknown,
    }
}

fn status(path: &Path) -> rustix::io::Result<Stat> {
    statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)
}

/// Whether the file system on which `record` lies is where it was: it is that of the nearest directory above the file that is there still.
/// Where another one is there, or none, the file is away and not gone.
pub(super) fn is_mounted(record: &FileRecord) -> bool {
    let path = record.path();
    let mut above = path.ancestors().skip(1).map(status);
    let nearest = above.find(|found| !matches!(found, Err(error) if is_gone(*error)));
    matches!(nearest, Some(Ok(stat)) if stat.st_dev == record.identity.dev)
}

/// Opens what is at the absolute `path`, from the directory of `scope`, without crossing a link or a mount.
fn open_in(scope: &Scope<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = path.strip_prefix(scope.directory).map_err(|_| Errno::XDEV)?;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(scope.opened, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn identity(stat: &Stat) -> Option<FileIdentity> {
    let nanoseconds = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    FileType::from_raw_mode(stat.st_mode).is_file().then(|| FileIdentity {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        mtime_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
        ctime_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
    })
}

/// The file of `record` under another name in the same directory, and what it is there. An error if that cannot be told.
pub(super) fn renamed(
    record: &FileRecord,
    scope: Option<&Scope<'_>>,
) -> rustix::io::Result<Option<(PathBuf, FileIdentity)>> {
    let path = record.path();
    let Some(parent) = path.parent() else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match scope {
        None => rustix::fs::open(parent, flags, Mode::empty()),
        Some(scope) => open_in(scope, parent, flags),
    };
    let directory = match opened {
        Ok(directory) => directory,
        Err(error) if is_gone(error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (dev, ino) = (record.identity.dev, record.identity.ino);
    let found = listed(directory.as_fd(), |on, number| (on, number) == (dev, ino));
    let found = found.into_iter().find(|(_, identity)| record.is_same(identity));
    let found = found.map(|(name, identity)| (parent.join(name), identity));
    Ok(found.filter(|(path, _)| !FileRecord::is_too_long(path)))
}

/// The regular files in `directory` whose device and inode `is_wanted`, of the first entries of it.
pub(super) fn listed(
    directory: BorrowedFd<'_>,
    is_wanted: impl Fn(u64, u64) -> bool,
) -> Vec<(OsString, FileIdentity)> {
    let Ok(dev) = rustix::fs::fstat(directory).map(|stat| stat.st_dev) else { return Vec::new() };
    let Ok(mut entries) = Dir::read_from(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in std::iter::from_fn(|| entries.read()).take(INDEX_DIRECTORY_ENTRIES_MAX).flatten() {
        if !is_wanted(dev, entry.ino()) {
            continue;
        }
        let stat = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        if let Some(identity) = stat.ok().as_ref().and_then(identity) {
            found.push((OsString::from_vec(entry.file_name().to_bytes().to_vec()), identity));
        }
    }
    found
}
