//! The data directory: where everything is, its temporary files and its locks. `docs/format/object.md` has the map.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::store::FileIdentity;
use dray_core::{Error, ErrorKind, Oid, Result};

use super::extents::io_at;
use crate::lock_file;

/// Times a lock or a temporary file is tried again after somebody else got in between.
const TRIES_MAX: usize = 64;

/// How often a lock is tried that is not waited for without end.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Paths in one data directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    root: PathBuf,
    /// How long a lock is waited for; `None` is without end.
    patience: Option<Duration>,
}

/// Paths of one object.
#[derive(Clone, Debug)]
pub(super) struct ObjectPaths {
    pub(super) folder: PathBuf,
    pub(super) record: PathBuf,
    pub(super) outboard: PathBuf,
    pub(super) data: PathBuf,
}

impl ObjectPaths {
    /// Unlinks all of it; says whether it was an object.
    pub(super) fn remove(&self, _lock: &Lock) -> Result<bool> {
        // The record first: without it the rest is no object.
        let was_here = remove_if_there(&self.record)?;
        remove_if_there(&self.outboard)?;
        remove_if_there(&self.data)?;
        let _ = std::fs::remove_dir(&self.folder);
        Ok(was_here)
    }
}

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "the lock lives as long as its descriptor")] File);

impl Place {
    /// Opens the directory, makes what is missing with mode 0700, and removes temporary files of dead processes.
    pub(super) fn open(root: &Path) -> Result<Place> {
        let root = std::path::absolute(root).map_err(|error| io_at("find", root, error))?;
        let place = Place { root, patience: None };
        make_directory(&place.root, true)?;
        for part in ["objects", "files", "tmp"] {
            make_directory(&place.root.join(part), false)?;
        }
        place.remove_abandoned();
        Ok(place)
    }

    /// The same place, whose locks are waited for no longer than this.
    pub(super) fn with_patience(&self, patience: Duration) -> Place {
        Place { root: self.root.clone(), patience: Some(patience) }
    }

    /// The data directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// How long a lock is waited for; `None` is without end.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    pub(super) fn object(&self, oid: &Oid) -> ObjectPaths {
        let folder = self.fan_out(oid).join(oid.hex());
        ObjectPaths {
            record: folder.join("record"),
            outboard: folder.join("outboard"),
            data: folder.join("data"),
            folder,
        }
    }

    /// Where the hint for the user's file `identity` is.
    pub(super) fn file_hint(&self, identity: &FileIdentity) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&identity.dev.to_be_bytes());
        hasher.update(&identity.ino.to_be_bytes());
        self.root.join("files").join(&hasher.finalize().to_hex()[..32])
    }

    /// The OIDs that have a folder. Anything else that lies about is passed over.
    pub(super) fn object_names(&self) -> Result<Vec<Oid>> {
        let mut names = Vec::new();
        for fan_out in self.fan_outs()? {
            names.extend(self.names_in(&fan_out));
        }
        Ok(names)
    }

    /// The directories that folders of objects are in.
    pub(super) fn fan_outs(&self) -> Result<Vec<PathBuf>> {
        entries(&self.root.join("objects"))
    }

    /// The OIDs that have a folder in that one.
    pub(super) fn names_in(&self, fan_out: &Path) -> Vec<Oid> {
        let name_of = |folder: PathBuf| {
            let name = folder.file_name()?.to_str()?;
            let oid = format!("blake3:{name}").parse::<Oid>().ok()?;
            (self.object(&oid).folder == folder).then_some(oid)
        };
        entries(fan_out).unwrap_or_default().into_iter().filter_map(name_of).collect()
    }

    /// Waits until no other process or thread holds the lock of `oid`, and takes it. Objects whose OIDs share their
    /// first byte share a lock, so it is held briefly and never two at once.
    pub(super) fn lock(&self, oid: &Oid) -> Result<Lock> {
        let fan_out = self.fan_out(oid);
        make_directory(&fan_out, false)?;
        let path = fan_out.join("lock");
        let file = lock_file::open(&path).map_err(|error| not_made("open", &path, error))?;
        self.wait(&path, || file.lock(), || file.try_lock())?;
        Ok(Lock(file))
    }

    /// Takes a lock: at once, by `lock`, or tried again and again.
    fn wait(
        &self,
        path: &Path,
        lock: impl FnMut() -> io::Result<()>,
        try_lock: impl Fn() -> std::result::Result<(), TryLockError>,
    ) -> Result<()> {
        let Some(patience) = self.patience else {
            return retry(lock).map_err(|error| io_at("lock", path, error));
        };
        let begun = Instant::now();
        loop {
            match try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Err(io_at("lock", path, error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() < patience => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    let what = format!("another process holds the lock {path:?} and does not let go");
                    return Err(Error::new(ErrorKind::TimedOut, what)
                        .with_retryable(true)
                        .advise("a dray command may be stopped: let it go on, or kill it, and try again"));
                }
            }
        }
    }

    /// Takes the lock of `oid` for reading. `None` if nothing was ever stored under it.
    pub(super) fn lock_shared(&self, oid: &Oid) -> Result<Option<Lock>> {
        let path = self.fan_out(oid).join("lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_at("open", &path, error)),
        };
        self.wait(&path, || file.lock_shared(), || file.try_lock_shared())?;
        Ok(Some(Lock(file)))
    }

    /// A new empty temporary file, open for reading and writing, removed on drop.
    pub(super) fn temp(&self) -> Result<TempFile> {
        for _ in 0..TRIES_MAX {
            let mut name = [0; 8];
            getrandom::fill(&mut name).map_err(|error| {
                Error::new(ErrorKind::Internal, "the system gives no random bytes")
                    .caused_by(error.to_string())
            })?;
            let path = self.root.join("tmp").join(format!("{:016x}", u64::from_be_bytes(name)));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            let file = match options.open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(not_made("create", &path, error)),
            };
            let temp = TempFile { file: Some(file), path };
            retry(|| temp.file().lock()).map_err(|error| io_at("lock", &temp.path, error))?;
            // Between creation and lock another process may have taken it for garbage.
            if temp.file().metadata().is_ok_and(|metadata| metadata.nlink() == 1) {
                return Ok(temp);
            }
        }
        Err(Error::new(ErrorKind::Internal, format!("no temporary file can be kept in {:?}", self.root)))
    }

    /// Unlinks temporary files whose lock nobody holds. Best effort: what stays is tried again next time.
    fn remove_abandoned(&self) {
        for path in entries(&self.root.join("tmp")).unwrap_or_default() {
            let Ok(file) = File::open(&path) else { continue };
            match file.try_lock() {
                Ok(()) => {
                    let _ = std::fs::remove_file(&path);
                }
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
            }
        }
    }

    fn fan_out(&self, oid: &Oid) -> PathBuf {
        self.root.join("objects").join(&oid.hex()[..2])
    }
}

/// A temporary file under a lock that says its process is alive.
#[derive(Debug)]
pub(super) struct TempFile {
    file: Option<File>,
    path: PathBuf,
}

impl TempFile {
    #[cfg(test)]
    pub(super) fn of(file: File, path: PathBuf) -> TempFile {
        TempFile { file: Some(file), path }
    }

    #[expect(clippy::expect_used, reason = "only `persist`, which consumes it, takes the file out")]
    pub(super) fn file(&self) -> &File {
        self.file.as_ref().expect("present until persisted")
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames it over `to` and returns its descriptor.
    pub(super) fn persist(mut self, to: &Path) -> Result<File> {
        std::fs::rename(&self.path, to).map_err(|error| io_at("write", to, error))?;
        match self.file.take() {
            Some(file) => Ok(file),
            None => Err(Error::new(ErrorKind::Internal, "a temporary file was kept twice")),
        }
    }

    /// Renames it over `to`, where it stays only once it is [`settled`](Self::settled).
    pub(super) fn place(&self, to: &Path) -> Result<()> {
        std::fs::rename(&self.path, to).map_err(|error| io_at("write", to, error))
    }

    /// It stays where it was placed.
    pub(super) fn settled(mut self) {
        self.file = None;
    }

    /// Brings it back from `to`, if it was placed there and is still there. Whether it has its temporary name again.
    pub(super) fn take_back(&self, to: &Path) -> bool {
        let is_ours = |path: &Path| match (path.symlink_metadata(), self.file().metadata()) {
            (Ok(there), Ok(own)) => (there.dev(), there.ino()) == (own.dev(), own.ino()),
            _ => false,
        };
        is_ours(&self.path) || is_ours(to) && std::fs::rename(to, &self.path).is_ok()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a directory that only its owner may enter, unless it is there.
pub(super) fn make_directory(path: &Path, with_parents: bool) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).recursive(with_parents).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(not_made("create directory", path, error)),
        Ok(()) => Ok(()),
    }
}

/// Something of the data directory could not be made. A full disk has its own advice; for the rest, only another place
/// helps.
fn not_made(what: &str, path: &Path, error: io::Error) -> Error {
    io_at(what, path, error).or_advise("set DRAY_DATA_DIR to a directory that you may write")
}

/// Paths of what is in `directory`, sorted so that listings do not depend on the file system.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let reader = std::fs::read_dir(directory).map_err(|error| io_at("list", directory, error))?;
    let mut paths: Vec<PathBuf> = reader.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Says whether there was one.
pub(super) fn remove_if_there(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_at("remove", path, error)),
    }
}

fn retry(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 12: a temporary file lives as long as its process, no longer.
    #[test]
    fn only_abandoned_temporary_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::open(dir.path()).unwrap();
        let alive = place.temp().unwrap();
        let abandoned = dir.path().join("tmp/00000000deadbeef");
        std::fs::write(&abandoned, b"left by a kill").unwrap();
        let _second = Place::open(dir.path()).unwrap();
        assert!(alive.path().exists());
        assert!(!abandoned.exists());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }

    /// Design 12: the directory is its owner's alone.
    #[test]
    fn directories_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b");
        let _place = Place::open(&root).unwrap();
        for path in [root.clone(), root.join("objects"), root.join("tmp"), root.join("files")] {
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700, "{path:?}");
        }
    }
}
