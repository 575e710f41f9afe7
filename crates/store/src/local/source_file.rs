//! A file of the user, open to be sent while its name is not known yet (the origin of a copy).

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use dray_core::store::{Extent, FileIdentity};
use dray_core::{Error, ErrorKind, Result};

use super::extents::{
    ExtentCache, identity, io_at, open_regular, opened_regular, read_full_at, require_end, require_regular,
};

/// A regular file and what it was when it was opened.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    path: PathBuf,
    identity: FileIdentity,
    extents: ExtentCache,
}

impl SourceFile {
    /// Opens `path`, following symbolic links. `Usage` if it is not a regular file.
    pub fn open(path: &Path) -> Result<SourceFile> {
        let (file, identity) = open_regular(path)?;
        SourceFile::of(file, identity, path)
    }

    /// Takes a file that is open already; `path` is for messages and for its name. `Usage` if it is not a regular file.
    pub fn opened(file: File, path: &Path) -> Result<SourceFile> {
        let identity = opened_regular(&file, path)?;
        SourceFile::of(file, identity, path)
    }

    /// `Usage` unless `file`, which may be open for nothing but that (`O_PATH`), is a regular one.
    pub fn require_regular(file: &File, path: &Path) -> Result<()> {
        require_regular(&file.metadata().map_err(|error| io_at("look at", path, error))?, path)
    }

    /// True for a regular file at `path`, be it behind a link, that has other bytes than its metadata tells of: those of `/proc` say
    /// they have none, those of `/sys` that they have a page. False for what cannot be read.
    pub fn is_unsized(path: &Path) -> bool {
        let may_be = std::fs::metadata(path).is_ok_and(|metadata| may_be_unsized(&metadata));
        may_be && open_regular(path).is_ok_and(|(file, _)| SourceFile::is_open_unsized(&file))
    }

    /// The same of an open file.
    pub fn is_open_unsized(file: &File) -> bool {
        let Some(metadata) = file.metadata().ok().filter(may_be_unsized) else { return false };
        let mut bytes = vec![0; usize::try_from(metadata.len()).unwrap_or(0) + 1];
        let (wanted, mut read) = (bytes.len(), 0);
        loop {
            match file.read_at(&mut bytes[read..], read as u64) {
                Ok(0) => return read + 1 != wanted,
                Ok(count) if read + count == wanted => return true,
                Ok(count) => read += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn of(file: File, identity: FileIdentity, path: &Path) -> Result<SourceFile> {
        // A larger one that grows meanwhile is found to have changed.
        if identity.size_bytes == 0 {
            require_end(&file, path, 0)?;
        }
        Ok(SourceFile { file, path: path.to_owned(), identity, extents: ExtentCache::default() })
    }

    /// What it was when it was opened.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it is now.
    pub fn identity_now(&self) -> Result<FileIdentity> {
        self.file
            .metadata()
            .map(|metadata| identity(&metadata))
            .map_err(|error| io_at("read", &self.path, error))
    }

    /// Fills `out` from `offset`. `Changed` if the file became shorter.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match read_full_at(&self.file, offset, out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.changed()),
            Err(error) => Err(io_at("read", &self.path, error)),
        }
    }

    /// The extent at `offset`, cut at `end`.
    pub fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        let found = self.extents.extent_at(&self.file, self.identity, offset);
        let mut extent = found.map_err(|error| io_at("read", &self.path, error))?;
        extent.range.end = extent.range.end.min(end);
        Ok(extent)
    }

    /// The error for a file that did not hold still.
    pub fn changed(&self) -> Error {
        Error::new(ErrorKind::Changed, format!("{:?} changed while it was sent", self.path))
            .advise("copy it again when nobody writes to it")
    }
}

/// True for a regular file that takes no room on a disk and tells of few bytes: one that has none, and what the system makes up.
fn may_be_unsized(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.blocks() == 0 && metadata.len() <= UNSIZED_TOLD_MAX
}

/// More than a page of any machine, which is what the system tells of files it makes up.
const UNSIZED_TOLD_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// S60, over ssh as well: what `/proc` and `/sys` tell of their files says nothing.
    #[test]
    fn files_that_do_not_tell_their_size_are_known() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::write(path("none"), b"").unwrap();
        std::fs::write(path("some"), b"some").unwrap();
        File::create(path("hole")).unwrap().set_len(3000).unwrap();
        for name in ["none", "some", "hole", "missing"] {
            assert!(!SourceFile::is_unsized(&path(name)), "{name}");
        }
        for path in ["/proc/cpuinfo", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let path = Path::new(path);
            assert_eq!(SourceFile::is_unsized(path), path.exists(), "{path:?}");
        }
    }
}
