//! Reading a file of a tree piece by piece: its holes are found, not read, and a slow file is read in small pieces.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use dray_core::hash_tree::ContentHasher;
use dray_core::{Error, Result};
use rustix::fs::{SeekFrom, Statx, seek};

/// Most bytes read at a time.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Fewest bytes read at a time, however slow the file is.
const READ_BYTES_MIN: usize = 4 * 1024;
/// A read that takes longer is followed by a shorter one, so that whoever reads can say between them that it lives.
const READ_TIME_MAX: Duration = Duration::from_millis(500);

/// The state of a file: it differs when somebody wrote to it or put another one in its place, as far as times tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    device: (u32, u32),
    inode: u64,
    size: u64,
    pub(super) mtime: (i64, u32),
    ctime: (i64, u32),
}

impl FileState {
    /// True if nothing but the number of its names changed in between.
    pub(super) fn is_but_for_links(&self, before: &FileState) -> bool {
        FileState { ctime: before.ctime, ..*self } == *before
    }

    /// Device and inode.
    pub fn identity(&self) -> (u32, u32, u64) {
        (self.device.0, self.device.1, self.inode)
    }

    pub(super) fn of(found: &Statx) -> FileState {
        FileState {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            size: found.stx_size,
            mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        }
    }
}

/// What stands next in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// So many bytes of hole.
    Hole(u64),
    /// So many bytes of data.
    Data(u64),
}

impl Piece {
    /// What stands at `at`, below `end`, the size of the file. All of it is data where the file system does not tell holes.
    pub fn next(file: &File, at: u64, end: u64) -> Piece {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, end),
            Err(rustix::io::Errno::NXIO) => end,
            Err(_) => return Piece::Data(end - at),
        };
        if data > at {
            return Piece::Hole(data - at);
        }
        let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(end).min(end);
        Piece::Data(hole.max(at + 1) - at)
    }
}

/// How many bytes to read at a time.
#[derive(Debug)]
pub struct ReadSize(usize);

impl Default for ReadSize {
    fn default() -> ReadSize {
        ReadSize(READ_BYTES_MAX)
    }
}

impl ReadSize {
    /// Bytes of the next read.
    pub fn bytes(&self) -> usize {
        self.0
    }

    /// Reads with `read` and learns from how long it takes.
    pub fn read(&mut self, read: impl FnOnce() -> io::Result<usize>) -> Result<usize> {
        let begun = Instant::now();
        let count = read().map_err(|error| Error::file("read the file", error))?;
        self.took(begun.elapsed());
        Ok(count)
    }

    fn took(&mut self, elapsed: Duration) {
        self.0 = if elapsed > READ_TIME_MAX {
            (self.0 / 8).max(READ_BYTES_MIN)
        } else if elapsed < READ_TIME_MAX / 16 {
            (self.0 * 2).min(READ_BYTES_MAX)
        } else {
            self.0
        };
    }
}

/// What was read.
pub(super) enum Read<'a> {
    /// So many bytes of hole.
    Hole(u64),
    Data(&'a [u8]),
}

/// Reads `range` of `file`, around its holes if it `has_holes`, gives each piece to `take` and says where it ended: before the end of the
/// range if the file is shorter by now. `between` is called between reads. Either ends it with an error.
pub(super) fn read_content<E: From<Error>>(
    file: &File,
    range: Range<u64>,
    has_holes: bool,
    between: &mut dyn FnMut() -> Result<(), E>,
    take: &mut dyn FnMut(Read<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut size = ReadSize::default();
    let bytes_max = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(READ_BYTES_MAX);
    let mut bytes = vec![0; bytes_max.clamp(1, READ_BYTES_MAX)];
    let mut at = range.start;
    while at < range.end {
        between()?;
        let piece = match has_holes {
            true => Piece::next(file, at, range.end),
            false => Piece::Data(range.end - at),
        };
        let end = match piece {
            Piece::Hole(len) => {
                take(Read::Hole(len))?;
                at += len;
                continue;
            }
            Piece::Data(len) => at + len,
        };
        while at < end {
            between()?;
            let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(bytes.len()).min(size.bytes());
            let read = size.read(|| file.read_at(&mut bytes[..len], at))?;
            if read == 0 {
                return Ok(at);
            }
            take(Read::Data(&bytes[..read]))?;
            at += read as u64;
        }
    }
    Ok(at)
}

/// Hashes the content of `file`, of `size_bytes`, and says how many bytes it had; `between` is called between the pieces and
/// ends it with an error. A file with holes is read around them.
pub fn hash_content<E: From<Error>>(
    file: &File,
    size_bytes: u64,
    has_holes: bool,
    between: &mut dyn FnMut() -> Result<(), E>,
) -> Result<([u8; 32], u64), E> {
    let mut hasher = ContentHasher::new();
    let mut take = |read: Read<'_>| {
        match read {
            Read::Hole(len) => hasher.zeros(len),
            Read::Data(bytes) => hasher.update(bytes),
        }
        Ok(())
    };
    let end = read_content(file, 0..size_bytes, has_holes, between, &mut take)?;
    Ok((hasher.finish(), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 9: whoever reads a slow file gets to speak between its pieces.
    #[test]
    fn a_slow_file_is_read_in_small_pieces() {
        let mut size = ReadSize::default();
        for expected in [32 * 1024, 4096, 4096] {
            size.took(Duration::from_secs(3));
            assert_eq!(size.bytes(), expected);
        }
        size.took(Duration::from_millis(100));
        assert_eq!(size.bytes(), 4096);
        for _ in 0..10 {
            size.took(Duration::from_millis(1));
        }
        assert_eq!(size.bytes(), READ_BYTES_MAX);
    }

    /// Issue "sparse files": holes are passed over, bytes count, and whoever waits is asked between pieces.
    #[test]
    fn holes_are_not_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"abc", 700_000).unwrap();
        let mut asked = 0;
        let mut between = || {
            asked += 1;
            Ok::<_, Error>(())
        };
        let (hash, size) = hash_content(&file, 1 << 40, true, &mut between).unwrap();
        let mut expected = ContentHasher::new();
        expected.zeros(700_000);
        expected.update(b"abc");
        expected.zeros((1 << 40) - 700_003);
        assert_eq!((hash, size), (expected.finish(), 1 << 40));
        assert!((2..20).contains(&asked), "{asked}");
        // A file that is shorter than was said ends where it ends.
        file.set_len(10).unwrap();
        let mut between = || Ok::<_, Error>(());
        assert_eq!(hash_content(&file, 20, false, &mut between).unwrap().1, 10);
    }
}
