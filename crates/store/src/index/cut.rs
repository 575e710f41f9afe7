//! HASH (Y10): reads one file, cuts it into chunks and takes them in. Between reads somebody else decides whether to go on (Y5).

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;

use dray_core::chunker::Profile;
use dray_core::recipe::ChunkDescriptor;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags};

use super::aside::Way;
use super::{ChunkIndex, files};
use crate::local::identity_of;

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// What cutting a file came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// It was in the index as it is.
    Known,
    /// It is now, and so many bytes were read for that.
    Read(u64),
}

/// Whether so many bytes may be read; whoever waits before he says so takes the file away.
pub type MayRead<'a> = &'a mut dyn FnMut(usize, &mut Option<File>) -> bool;

impl ChunkIndex {
    /// Takes in the regular file at `path`, unless it is in it as it is, and leaves the page cache to others. `may_read` is asked before
    /// every read of the file, and is told how many bytes follow; before it waits it closes the file, so that nobody is kept from taking its
    /// disk away meanwhile. If it says no, that is the end (`Interrupted`). `Changed` if
    /// the file changes meanwhile, `NotFound` if there is no regular file, `Unsupported` if it is none for the index. What was at `path`
    /// before is forgotten as soon as it is read.
    pub fn cut(&self, path: &Path, may_read: MayRead<'_>) -> Result<Cut> {
        let none = || Error::new(ErrorKind::NotFound, format!("{path:?} is no regular file"));
        let path =
            &std::fs::canonicalize(path).map_err(|error| Error::file(format!("find {path:?}"), error))?;
        // Looked at before it is opened: a device or a fifo may act on being opened.
        let looked_at = files::look(path).ok_or_else(none)?;
        if self.has(path, &looked_at) {
            return Ok(Cut::Known);
        }
        let changed = || Error::new(ErrorKind::Changed, format!("{path:?} changed while it was read"));
        let open = || {
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(path, flags, Mode::empty());
            let file =
                File::from(opened.map_err(|error| Error::file(format!("open {path:?}"), error.into()))?);
            let now = file.metadata().map_err(|error| Error::file(format!("read {path:?}"), error))?;
            if identity_of(&now) == looked_at { Ok(file) } else { Err(changed()) }
        };
        let mut file = Some(open()?);
        let profile = Profile::for_size(looked_at.size_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("{path:?} is too large")))?;
        let mut entering = self.enter(path, looked_at, profile)?;
        let (mut chunker, mut way) = (profile.chunker(), Way::default());
        let mut piece = vec![0; READ_BYTES];
        let (mut offset, refused) = (0, RefCell::new(Ok(())));
        let mut take = |bytes: &[u8]| {
            let chunk = ChunkDescriptor::of(bytes);
            let result = &mut *refused.borrow_mut();
            if result.is_ok() {
                *result = entering.add(&chunk, offset);
            }
            offset += u64::from(chunk.len);
        };
        let mut position = 0;
        while position < looked_at.size_bytes {
            let len = (looked_at.size_bytes - position).min(READ_BYTES as u64) as usize;
            if !may_read(len, &mut file) {
                return Err(Error::new(ErrorKind::Interrupted, format!("{path:?} is not read to its end")));
            }
            let opened = match file.take() {
                Some(opened) => opened,
                None => open()?,
            };
            let read = way.read_exact_at(file.insert(opened), &mut piece[..len], position);
            read.map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => changed(),
                _ => Error::file(format!("read {path:?}"), error),
            })?;
            chunker.push(&piece[..len], &mut take);
            // The rest is not read for nothing.
            refused.replace(Ok(()))?;
            position += len as u64;
        }
        chunker.finish(&mut take);
        refused.into_inner()?;
        open()?;
        entering.finish()?;
        Ok(Cut::Read(looked_at.size_bytes))
    }
}
