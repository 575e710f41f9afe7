//! Makes a file what another one is by writing what differs, block by block, and holes where holes come.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::content::{Piece, Read, read_content};

/// What is compared at a time, and not written if it is the same: blocks of file systems, so that a snapshot shares what did not change.
const BLOCK_BYTES: usize = 4096;
/// Bytes of the file that are read at a time.
const READ_BYTES: usize = 256 * 1024;

/// Writes over a file.
pub(super) struct Over<'a> {
    pub(super) there: &'a File,
    /// Its size.
    pub(super) end: u64,
    /// It can be compared.
    pub(super) is_readable: bool,
    /// Nothing is written.
    pub(super) is_dry: bool,
    /// Parts that were written, each as long as could be seen at a time.
    pub(super) parts: Cell<u64>,
    /// Bytes that became holes.
    pub(super) cleared: Cell<u64>,
    /// From the first byte on it is neither old nor new, and whoever stops the run waits until it is new.
    pub(super) has_begun: Cell<bool>,
    /// Called right before that.
    pub(super) before: &'a dyn Fn() -> Result<()>,
    pub(super) check: &'a dyn Fn() -> Result<()>,
}

impl<'a> Over<'a> {
    pub(super) fn new(
        there: &'a File,
        end: u64,
        is_readable: bool,
        check: &'a dyn Fn() -> Result<()>,
    ) -> Over<'a> {
        Over {
            there,
            end,
            is_readable,
            is_dry: false,
            parts: Cell::new(0),
            cleared: Cell::new(0),
            has_begun: Cell::new(false),
            before: &|| Ok(()),
            check,
        }
    }
}

impl Over<'_> {
    fn check_stop(&self) -> Result<()> {
        if self.has_begun.get() { Ok(()) } else { (self.check)() }
    }

    /// From now on it is written to.
    fn begin(&self) -> Result<()> {
        if !self.has_begun.get() {
            (self.before)()?;
            self.has_begun.set(true);
        }
        Ok(())
    }

    /// Makes it what `from`, of `size_bytes`, is; how many bytes were written or became holes.
    pub(super) fn bring(&self, from: &File, size_bytes: u64) -> Result<u64> {
        let failed = |error| Error::file("write the file", error);
        let mut buffer = vec![0; READ_BYTES];
        let (mut at, mut written) = (0, 0);
        let mut take = |read: Read<'_>| {
            let (len, more) = match read {
                Read::Hole(len) => (len, self.hole(at, len, &mut buffer)?),
                Read::Data(bytes) => (bytes.len() as u64, self.data(at, bytes, &mut buffer)?),
            };
            (at, written) = (at + len, written + more);
            Ok(())
        };
        let end = read_content(from, 0..size_bytes, true, &mut || self.check_stop(), &mut take)?;
        if end != size_bytes {
            return Err(Error::new(ErrorKind::Changed, "another program wrote to what came beside the file"));
        }
        let now = self.there.metadata().map_err(failed)?.len();
        if now != size_bytes && !self.is_dry {
            self.begin()?;
            self.there.set_len(size_bytes).map_err(failed)?;
        }
        Ok(written)
    }

    /// What is there from `at` on, up to the end of `into` or of the file.
    fn read<'b>(&self, at: u64, into: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let len = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
        let mut filled = 0;
        while self.is_readable && filled < len {
            match self.there.read_at(&mut into[filled..len], at + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&into[..filled])
    }

    fn data(&self, at: u64, bytes: &[u8], buffer: &mut [u8]) -> Result<u64> {
        let failed = |error| Error::file("write the file", error);
        let mut written = 0;
        for (number, bytes) in bytes.chunks(buffer.len().max(1)).enumerate() {
            let at = at + (number * buffer.len()) as u64;
            let known = self.read(at, &mut buffer[..bytes.len()]).map_err(unread)?;
            let is_same = |from, to| known.get(from..to) == Some(&bytes[from..to]);
            for (from, to) in differing(at, bytes.len(), &is_same) {
                if !self.is_dry {
                    self.begin()?;
                    self.there.write_all_at(&bytes[from..to], at + from as u64).map_err(failed)?;
                }
                self.parts.set(self.parts.get() + 1);
                written += (to - from) as u64;
            }
        }
        Ok(written)
    }

    fn hole(&self, at: u64, len: u64, buffer: &mut [u8]) -> Result<u64> {
        let failed = |error| Error::file("write the file", error);
        // Another program may have made it longer.
        let there = self.there.metadata().map_err(failed)?.len().max(self.end);
        let end = at.saturating_add(len).min(there);
        let (mut at, mut written) = (at, 0);
        while at < end {
            self.check_stop()?;
            let piece =
                if self.is_readable { Piece::next(self.there, at, end) } else { Piece::Data(end - at) };
            let len = match piece {
                Piece::Hole(len) => {
                    at += len;
                    continue;
                }
                Piece::Data(len) => usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len()),
            };
            let known = self.read(at, &mut buffer[..len]).map_err(unread)?;
            let is_same = |from, to| known.get(from..to).is_some_and(|it| it.iter().all(|byte| *byte == 0));
            for (from, to) in differing(at, len, &is_same) {
                if !self.is_dry {
                    self.begin()?;
                    self.clear(at + from as u64, (to - from) as u64).map_err(failed)?;
                }
                self.cleared.set(self.cleared.get() + (to - from) as u64);
                self.parts.set(self.parts.get() + 1);
                written += (to - from) as u64;
            }
            at += len as u64;
        }
        Ok(written)
    }

    /// Makes a hole, or zeros where the file system makes none, or has no room for what it would note of one: the blocks are there.
    fn clear(&self, at: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(self.there, flags, at, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOSPC | Errno::DQUOT) => {
                let zeros = [0; BLOCK_BYTES];
                let mut done = 0;
                while done < len {
                    let count = usize::try_from(len - done).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
                    self.there.write_all_at(&zeros[..count], at + done)?;
                    done += count as u64;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }
}

/// What is there cannot be compared.
fn unread(error: io::Error) -> Error {
    Error::file("read the file that is there, to compare it", error)
        .advise("leave out --inplace: then it is replaced, and not read")
}

/// The parts of `len` bytes at `at` of a file in whose blocks anything is not the same, each as long as can be.
pub(super) fn differing(at: u64, len: usize, is_same: &dyn Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut from = 0;
    while from < len {
        let in_block = (at.wrapping_add(from as u64) % BLOCK_BYTES as u64) as usize;
        let to = len.min(from + BLOCK_BYTES - in_block);
        if !is_same(from, to) {
            match parts.last_mut().filter(|last| last.1 == from) {
                Some(last) => last.1 = to,
                None => parts.push((from, to)),
            }
        }
        from = to;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    /// A file of these blocks, each of so many bytes: `None` for a hole.
    fn made(blocks: &[Option<u8>], extra: usize) -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = Vec::new();
        for block in blocks {
            if let Some(byte) = block {
                file.write_all_at(&[*byte; BLOCK_BYTES], bytes.len() as u64).unwrap();
            }
            bytes.extend([block.unwrap_or(0); BLOCK_BYTES]);
        }
        bytes.extend(vec![7; extra]);
        file.write_all_at(&bytes[bytes.len() - extra..], (bytes.len() - extra) as u64).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        (file, bytes)
    }

    fn over<'a>(there: &'a File, is_readable: bool, check: &'a dyn Fn() -> Result<()>) -> Over<'a> {
        Over::new(there, there.metadata().unwrap().len(), is_readable, check)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// S86: what is there becomes what came, whatever either was; written is what differs and nothing else.
        #[test]
        fn what_differs_is_written(
            old in prop::collection::vec(prop::option::of(0_u8..3), 0..80),
            new in prop::collection::vec(prop::option::of(0_u8..3), 0..80),
            extra in (0_usize..BLOCK_BYTES, 0_usize..BLOCK_BYTES),
        ) {
            let ((there, was), (from, is)) = (made(&old, extra.0), made(&new, extra.1));
            let written = over(&there, true, &|| Ok(())).bring(&from, is.len() as u64).unwrap();
            let mut now = vec![0; is.len() + 1];
            prop_assert_eq!(there.read_at(&mut now, 0).unwrap(), is.len());
            prop_assert!(now[..is.len()] == is[..]);
            // What lies beyond the end of what was there is written, unless it is a hole.
            let differs = |number: usize| -> usize {
                let from = number * BLOCK_BYTES;
                let to = is.len().min(from + BLOCK_BYTES);
                let is_hole = new.get(number).is_some_and(Option::is_none);
                let (kept, until) = (was.len().min(to), if is_hole { to.min(was.len().max(from)) } else { to });
                let same = kept >= until && was.get(from..until) == is.get(from..until);
                if same { 0 } else { until - from }
            };
            let expected: usize = (0..is.len().div_ceil(BLOCK_BYTES)).map(differs).sum();
            prop_assert_eq!(written, expected as u64);
            // Again there is nothing to do.
            prop_assert_eq!(over(&there, true, &|| Ok(())).bring(&from, is.len() as u64).unwrap(), 0);
        }

        /// The same where it cannot be read.
        #[test]
        fn what_cannot_be_read_is_written(
            old in prop::collection::vec(prop::option::of(0_u8..3), 0..20),
            new in prop::collection::vec(prop::option::of(0_u8..3), 0..20),
        ) {
            let ((there, _), (from, is)) = (made(&old, 5), made(&new, 9));
            over(&there, false, &|| Ok(())).bring(&from, is.len() as u64).unwrap();
            let mut now = vec![0; is.len() + 1];
            prop_assert_eq!(there.read_at(&mut now, 0).unwrap(), is.len());
            prop_assert!(now[..is.len()] == is[..]);
        }
    }

    /// S86: holes that come are holes of what is there, where it had other bytes.
    #[test]
    fn holes_are_made() {
        let (there, _) = made(&[Some(1); 256], 0);
        let mut blocks = [None; 256];
        blocks[17] = Some(1);
        let (from, _) = made(&blocks, 0);
        let written = over(&there, true, &|| Ok(())).bring(&from, 256 * BLOCK_BYTES as u64).unwrap();
        assert_eq!(written, 255 * BLOCK_BYTES as u64);
        assert!(there.metadata().unwrap().blocks() <= 2 * BLOCK_BYTES as u64 / 512, "a hole");
    }

    /// S86: what another program appended meanwhile goes, where a hole comes.
    #[test]
    fn holes_are_made_beyond_what_was_there() {
        let (there, _) = made(&[Some(1); 2], 0);
        let it = over(&there, true, &|| Ok(()));
        there.write_all_at(&[1; BLOCK_BYTES], 2 * BLOCK_BYTES as u64).unwrap();
        let (from, is) = made(&[Some(1), None, None, None], 0);
        it.bring(&from, is.len() as u64).unwrap();
        let mut now = vec![9; is.len()];
        assert_eq!(there.read_at(&mut now, 0).unwrap(), is.len());
        assert!(now == is);
    }

    /// S86: who stops a run waits for no large file as long as nothing of it is written, and from then on until it is whole.
    #[test]
    fn a_stop_is_heard_until_the_first_byte_is_written() {
        let asked = Cell::new(0);
        let check = || {
            asked.set(asked.get() + 1);
            if asked.get() > 3 { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) }
        };
        let len = 2048 * BLOCK_BYTES as u64;
        for last in [Some(2), None] {
            // The same but for its end: it is stopped before that.
            let (there, was) = made(&[Some(1); 2048], 0);
            let mut blocks = [Some(1); 2048];
            blocks[2047] = last;
            let (from, _) = made(&blocks, 0);
            asked.set(0);
            let error = over(&there, true, &check).bring(&from, len).unwrap_err();
            assert_eq!((error.kind(), asked.get()), (ErrorKind::Interrupted, 4));
            let mut now = vec![0; was.len()];
            there.read_exact_at(&mut now, 0).unwrap();
            assert!(now == was, "nothing is written");
        }
        for first in [Some(2), None] {
            // Another one from its beginning: it comes to its end.
            let (there, _) = made(&[Some(1); 2048], 0);
            let (from, is) = made(&[first; 2048], 0);
            asked.set(0);
            assert!(over(&there, true, &check).bring(&from, len).is_ok(), "{first:?}");
            let mut now = vec![9; is.len()];
            there.read_exact_at(&mut now, 0).unwrap();
            assert!(now == is && asked.get() < 4, "{first:?}");
        }
        // What is only cut shorter or made longer, too.
        let (there, _) = made(&[Some(1); 4], 0);
        let (from, _) = made(&[Some(1); 2], 0);
        asked.set(-100);
        over(&there, true, &check).bring(&from, 2 * BLOCK_BYTES as u64).unwrap();
        assert_eq!(there.metadata().unwrap().len(), 2 * BLOCK_BYTES as u64);
    }
}
