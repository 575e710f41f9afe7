//! Room for what a file is to get, before the first byte of it is written: on a disk that is full it stays what it is.
//!
//! How much that is, is tried with a file that nobody knows; then it is taken for the file itself. What is taken there cannot well be given back, as another program may
//! have written to it meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use dray_core::{Error, Result};
use rustix::fs::{FallocateFlags, Statx, fallocate};
use rustix::io::Errno;

use super::content::{Piece, Read, read_content};
use super::directory::{Directory, stat_fd};
use super::place::times_of;
use super::removing::kind_of_disk;
use super::settings::mtime_of;
use super::writing_over::{Over, differing};

/// Bytes of a block in what a file is said to take.
const SECTOR_BYTES: u64 = 512;
/// Writes go to new blocks there in any case, and what was reserved is not compressed.
const BTRFS: u64 = 0x9123_683e;

/// Has the disk keep room for what `over` is to write of `new`, of `size_bytes`, where the file that is there, of which `found` tells, has no blocks. `NoSpace` if there is none; then that is
/// what it was. Where the file system reserves nothing, or shares blocks with a snapshot, writing may find the disk full all the same. `directory` is that of the file, unless
/// it is mounted from elsewhere.
pub(super) fn reserve(
    over: &Over<'_>,
    found: &Statx,
    new: &File,
    size_bytes: u64,
    directory: Option<&Directory>,
) -> Result<()> {
    let taken = |found: &Statx| found.stx_blocks.saturating_mul(SECTOR_BYTES);
    let is_whole = size_bytes <= found.stx_size && taken(found) >= found.stx_size;
    if is_whole || kind_of_disk(over.there.as_fd()).is_ok_and(|kind| kind == BTRFS) {
        return Ok(());
    }
    if let Some(directory) = directory {
        let mut missing = 0_u64;
        each_missing(over, new, size_bytes, &mut |_, len| {
            missing = missing.saturating_add(len);
            Ok(())
        })?;
        // Holes may have blocks already.
        let coming = stat_fd(new.as_fd()).map_err(|error| Error::file("look at what came", error))?;
        let missing = missing.min(taken(&coming).saturating_sub(taken(found)));
        if let Some(unnamed) = Some(directory).filter(|_| missing > 0).and_then(|it| it.unnamed().ok()) {
            allocate(&File::from(unnamed), 0, missing).map_err(no_room)?;
        }
    }
    let reserved =
        each_missing(over, new, size_bytes, &mut |at, len| allocate(over.there, at, len).map_err(no_room));
    reserved.inspect_err(|_| keep_time(over.there, found))
}

/// Nothing was written to `there` after all: it has the time that `found` tells again.
pub(super) fn keep_time(there: &File, found: &Statx) {
    // Whoever may write to it and does not own it may not.
    let _ = rustix::fs::futimens(there, &times_of(mtime_of(found)));
}

/// Tells `take` where bytes of `new` are to be written over holes, or behind the end: where, and how many.
fn each_missing(
    over: &Over<'_>,
    new: &File,
    size_bytes: u64,
    take: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while at < size_bytes {
        let piece = Piece::next(new, at, size_bytes);
        let (Piece::Hole(len) | Piece::Data(len)) = piece;
        if matches!(piece, Piece::Data(_)) {
            let (mut from, end) = (at, (at + len).min(over.end));
            while from < end {
                let piece = Piece::next(over.there, from, end);
                let (Piece::Hole(len) | Piece::Data(len)) = piece;
                if matches!(piece, Piece::Hole(_)) {
                    each_not_zero(over, new, from, len, take)?;
                }
                from += len;
            }
            let behind = at.max(over.end);
            if behind < at + len {
                take(behind, at + len - behind)?;
            }
        }
        at += len;
    }
    Ok(())
}

/// The same of `len` bytes of a hole: zeros are not written to one that can be read.
fn each_not_zero(
    over: &Over<'_>,
    new: &File,
    at: u64,
    len: u64,
    take: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    if !over.is_readable {
        return take(at, len);
    }
    let mut place = at;
    read_content(new, at..at + len, false, &mut || (over.check)(), &mut |read| {
        let Read::Data(bytes) = read else { return Ok(()) };
        let is_zero = |from: usize, to: usize| bytes[from..to].iter().all(|byte| *byte == 0);
        for (from, to) in differing(place, bytes.len(), &is_zero) {
            take(place + from as u64, (to - from) as u64)?;
        }
        place += bytes.len() as u64;
        Ok(())
    })?;
    Ok(())
}

/// Blocks for what has none of `len` bytes at `at`. That they are not to be had for another reason than want of room is no reason not to write.
fn allocate(file: &File, at: u64, len: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, at, len) {
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error.into()),
            Ok(()) | Err(_) => return Ok(()),
        }
    }
}

fn no_room(error: io::Error) -> Error {
    Error::file("make room for what is to be written to the file, which stays as it was", error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BLOCK: u64 = 4096;

    /// A file of these blocks; `None` for a hole.
    fn made(blocks: &[Option<u8>]) -> File {
        let file = tempfile::tempfile().unwrap();
        for (block, at) in blocks.iter().zip((0..).step_by(BLOCK as usize)) {
            if let Some(byte) = block {
                file.write_all_at(&[*byte; BLOCK as usize], at).unwrap();
            }
        }
        file.set_len(blocks.len() as u64 * BLOCK).unwrap();
        file
    }

    /// S86: room is taken for what is written where there are no blocks, and for nothing else: neither for zeros that come for a hole, nor for holes.
    #[test]
    fn room_is_taken_for_what_is_written() {
        let (one, zero, hole) = (Some(1), Some(0), None);
        let there = made(&[one, hole, hole, hole, one, hole]);
        let new = made(&[Some(2), zero, one, hole, Some(2), one, zero, one, hole, one]);
        let missing = |is_readable| {
            let check = || Ok(());
            let over = Over::new(&there, 6 * BLOCK, is_readable, &check);
            let mut parts = Vec::new();
            each_missing(&over, &new, 10 * BLOCK, &mut |at, len| {
                parts.push((at / BLOCK, len / BLOCK));
                Ok(())
            })
            .unwrap();
            parts
        };
        assert_eq!(missing(true), [(2, 1), (5, 1), (6, 2), (9, 1)]);
        // All of what cannot be compared is written.
        assert_eq!(missing(false), [(1, 2), (5, 1), (6, 2), (9, 1)]);
        let check = || Ok(());
        let over = Over::new(&there, 6 * BLOCK, true, &check);
        let blocks = |file: &File| stat_fd(file.as_fd()).unwrap().stx_blocks;
        let before = blocks(&there);
        reserve(&over, &stat_fd(there.as_fd()).unwrap(), &new, 10 * BLOCK, None).unwrap();
        assert_eq!(there.metadata().unwrap().len(), 6 * BLOCK);
        assert_eq!(blocks(&there) - before, 5 * BLOCK / SECTOR_BYTES);
        // What is whole takes nothing.
        let whole = made(&[one; 4]);
        let over = Over::new(&whole, 4 * BLOCK, true, &check);
        let before = blocks(&whole);
        reserve(&over, &stat_fd(whole.as_fd()).unwrap(), &new, 4 * BLOCK, None).unwrap();
        assert_eq!(blocks(&whole), before);
    }
}
