//! Room for what a file is to get, before the first byte of it is written: on a disk that is full it stays what it is.
//!
//! That is tried with a file that nobody knows, and which is gone at once: what was taken for the file itself could not well be given back, as another program may have
//! written to it meanwhile, and its times would tell of a change. So who fills the disk in the next moment is not kept from that.

use std::fs::File;
use std::os::fd::AsFd;

use dray_core::{Error, Result};
use rustix::fs::{FallocateFlags, Statx, fallocate};
use rustix::io::Errno;

use super::content::{Piece, Read, read_content};
use super::directory::Directory;
use super::removing::kind_of_disk;
use super::writing_over::{Over, differing};

/// Bytes of a block in what a file is said to take.
const SECTOR_BYTES: u64 = 512;
/// File systems that write to new blocks, and one that does where others share them (statfs(2)).
const BTRFS: u64 = 0x9123_683e;
const BCACHEFS: u64 = 0xca45_1a4e;
const XFS: u64 = 0x5846_5342;

/// `NoSpace` if there is no room for what `over` is to write of `new`, of `size_bytes`, where the file that is there, of which `found` tells, has no blocks. `beside` is a directory on its
/// file system, and it may have a backup that shares its blocks. Where that gives no room beforehand, or others share the blocks of the file, writing may find the disk full all the same.
pub(super) fn try_room(
    over: &Over<'_>,
    found: &Statx,
    new: &File,
    size_bytes: u64,
    (beside, has_backup): (&Directory, bool),
) -> Result<()> {
    if writes_elsewhere(over.there, has_backup) {
        // The most that it may take is asked for first, as that needs no second comparison.
        if allow(beside, size_bytes).is_ok() {
            return Ok(());
        }
        let dry = Over { is_dry: true, ..Over::new(over.there, over.end, over.is_readable, over.check) };
        return allow(beside, dry.bring(new, size_bytes)?);
    }
    let taken_bytes = found.stx_blocks.saturating_mul(SECTOR_BYTES);
    if size_bytes <= over.end && taken_bytes >= over.end {
        return Ok(());
    }
    let mut missing_bytes = 0_u64;
    each_missing(over, new, size_bytes, &mut |_, len| missing_bytes = missing_bytes.saturating_add(len))?;
    // Holes, and what lies behind the end, may have blocks already.
    let spare_bytes = taken_bytes.saturating_sub(data_bytes(over.there, over.end));
    allow(beside, missing_bytes.saturating_sub(spare_bytes))
}

/// True if what is written over takes blocks of its own: always, or as a backup shares those that are there.
fn writes_elsewhere(file: &File, has_backup: bool) -> bool {
    let kind = kind_of_disk(file.as_fd()).unwrap_or_default();
    [BTRFS, BCACHEFS].contains(&kind) || (has_backup && kind == XFS)
}

/// `NoSpace` if no file in `beside` can have as many bytes.
fn allow(beside: &Directory, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let Ok(unnamed) = beside.unnamed() else { return Ok(()) };
    loop {
        match fallocate(&unnamed, FallocateFlags::KEEP_SIZE, 0, bytes) {
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                let what = "make room for what is to be written to the file, which is left as it is";
                return Err(Error::file(what, error.into()));
            }
            // That it is not to be had for another reason than want of room is no reason not to write.
            Ok(()) | Err(_) => return Ok(()),
        }
    }
}

/// Bytes of a file of this size that are no holes.
fn data_bytes(file: &File, size_bytes: u64) -> u64 {
    let (mut at, mut data) = (0, 0);
    while at < size_bytes {
        at += match Piece::next(file, at, size_bytes) {
            Piece::Hole(len) => len,
            Piece::Data(len) => {
                data += len;
                len
            }
        };
    }
    data
}

/// Tells `take` where bytes of `new` are to be written over holes, or behind the end: where, and how many.
fn each_missing(over: &Over<'_>, new: &File, size_bytes: u64, take: &mut dyn FnMut(u64, u64)) -> Result<()> {
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
                take(behind, at + len - behind);
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
    take: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    if !over.is_readable {
        take(at, len);
        return Ok(());
    }
    let mut place = at;
    read_content(new, at..at + len, false, &mut || (over.check)(), &mut |read| {
        let Read::Data(bytes) = read else { return Ok(()) };
        let is_zero = |from: usize, to: usize| bytes[from..to].iter().all(|byte| *byte == 0);
        for (from, to) in differing(place, bytes.len(), &is_zero) {
            take(place + from as u64, (to - from) as u64);
        }
        place += bytes.len() as u64;
        Ok(())
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::directory::stat_fd;
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
            each_missing(&over, &new, 10 * BLOCK, &mut |at, len| parts.push((at / BLOCK, len / BLOCK)))
                .unwrap();
            parts
        };
        assert_eq!(missing(true), [(2, 1), (5, 1), (6, 2), (9, 1)]);
        // All of what cannot be compared is written.
        assert_eq!(missing(false), [(1, 2), (5, 1), (6, 2), (9, 1)]);
    }

    /// S86: what is there and full of blocks takes nothing more, nor does what has them beforehand; data is told from both.
    #[test]
    fn blocks_that_are_there_are_known() {
        let there = made(&[Some(1), None, None, Some(1)]);
        assert_eq!(data_bytes(&there, 4 * BLOCK), 2 * BLOCK);
        let is_given = fallocate(&there, FallocateFlags::KEEP_SIZE, 0, 4 * BLOCK).is_ok();
        let found = stat_fd(there.as_fd()).unwrap();
        assert!(!is_given || found.stx_blocks * SECTOR_BYTES >= 4 * BLOCK);
        assert!(data_bytes(&there, 4 * BLOCK) <= 4 * BLOCK);
    }
}
