//! A file of the user, open to be sent while its name is not known yet (the origin of a copy).

use std::fs::File;
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
