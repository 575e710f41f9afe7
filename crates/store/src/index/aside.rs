//! Reads a file without driving what others read out of the page cache: what was there before stays, what was not is not there after.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// `RWF_DONTCACHE`: pages that a read brought in leave when it is over. Since Linux 6.14, where the file system knows it.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How a file is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Way {
    /// By [`DONTCACHE`].
    #[default]
    Kernel,
    /// What is in the cache is read at once (`RWF_NOWAIT`); the rest is dropped behind the reading.
    Behind,
    /// What is in the cache is not told: all of it is dropped.
    Blind,
}

impl Way {
    /// Fills `out` with what is at `position`; goes another way, and stays on that, where this one is none.
    pub(super) fn read_exact_at(&mut self, file: &File, out: &mut [u8], position: u64) -> io::Result<()> {
        self.begin(file);
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = position + done as u64;
            let flags = match self {
                Way::Kernel => DONTCACHE,
                Way::Behind => ReadWriteFlags::NOWAIT,
                Way::Blind => {
                    done += read_and_drop(file, rest, at)?;
                    continue;
                }
            };
            match preadv2(file, &mut [IoSliceMut::new(rest)], at, flags) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if *self == Way::Behind => done += read_and_drop(file, rest, at)?,
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    *self = if *self == Way::Kernel { Way::Behind } else { Way::Blind };
                    self.begin(file);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What the kernel reads ahead would pass for what others have read.
    fn begin(self, file: &File) {
        if self != Way::Kernel {
            let _ = fadvise(file, 0, None, Advice::Random);
        }
    }
}

fn read_and_drop(file: &File, out: &mut [u8], position: u64) -> io::Result<usize> {
    file.read_exact_at(out, position)?;
    // Pages that somebody has mapped, or has written to, stay all the same.
    let _ = fadvise(file, position, NonZeroU64::new(out.len() as u64), Advice::DontNeed);
    Ok(out.len())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const PAGE_BYTES: usize = 4096;
    const LEN: usize = 1 << 20;

    /// Which pages of a file are in the cache, by reading those that are. The others may be in it afterwards.
    fn cached(path: &Path) -> Vec<usize> {
        let file = File::open(path).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let mut page = [0; PAGE_BYTES];
        let is_cached = |number: &usize| {
            let (at, flags) = ((number * PAGE_BYTES) as u64, ReadWriteFlags::NOWAIT);
            preadv2(&file, &mut [IoSliceMut::new(&mut page)], at, flags) == Ok(PAGE_BYTES)
        };
        (0..LEN / PAGE_BYTES).filter(is_cached).collect()
    }

    /// A file of which no page is in the cache.
    fn uncached(path: &Path, bytes: &[u8]) -> File {
        fs::write(path, bytes).unwrap();
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        file
    }

    /// Reads a file of which others have read three pages. In the end: whether those that are to stay did, whether the others left, and what there is.
    fn read_aside(path: &Path, bytes: &[u8], way: Way) -> (bool, bool, String) {
        uncached(path, bytes).read_exact_at(&mut [0; 3 * PAGE_BYTES], 64 * PAGE_BYTES as u64).unwrap();
        let (file, mut now) = (File::open(path).unwrap(), way);
        let mut read = vec![0; LEN];
        for (number, piece) in read.chunks_mut(LEN / 4).enumerate() {
            now.read_exact_at(&file, piece, (number * LEN / 4) as u64).unwrap();
        }
        assert_eq!(read, bytes);
        let kept = if now == Way::Blind { vec![] } else { vec![64, 65, 66] };
        let found = cached(path);
        let end = now.read_exact_at(&file, &mut [0; 2], LEN as u64 - 1);
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let stayed = kept.iter().all(|page| found.contains(page));
        // A large folio is dropped only as a whole.
        let left = found.len() <= kept.len() + LEN / PAGE_BYTES / 4;
        (stayed, left, format!("{way:?}, in the end {now:?}: {found:?}"))
    }

    /// Y5: whichever way the kernel has, the bytes are right, what others have read stays in the page cache, and what was not there is not there
    /// after; the end of the file is an error.
    #[test]
    fn the_page_cache_is_as_before() {
        // Other temporary files may be in memory.
        let dir = tempfile::tempdir_in("/var/tmp").or_else(|_| tempfile::tempdir()).unwrap();
        let path = |name: &str| dir.path().join(name);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at / 999) as u8).collect();
        // A file system in memory, or one that does not tell, shows nothing.
        let shows = (0..10).any(|_| {
            drop(uncached(&path("none"), &bytes));
            cached(&path("none")).is_empty()
        });
        for way in [Way::Kernel, Way::Behind, Way::Blind] {
            // The kernel keeps a page that it has at hand for something else, as where memory is short: what is never dropped stays each time.
            let has_left = (0..10).any(|number| {
                let (stayed, left, told) = read_aside(&path(&format!("{way:?} {number}")), &bytes, way);
                assert!(stayed || !shows, "{told}");
                left
            });
            assert!(has_left || !shows, "{way:?}");
        }
    }
}
