//! Room for what a file is to get, before the first byte of it is written: on a disk that is full it stays what it is.
//!
//! That is tried with a file that nobody knows, and which is gone at once: what was taken for the file itself could not well be given back, as another program may have
//! written to it meanwhile, and its times would tell of a change. So who fills the disk in the next moment is not kept from that.

use std::fs::File;
use std::os::fd::OwnedFd;

use dray_core::{Error, Result};
use rustix::fs::{FallocateFlags, IFlags, fallocate, fstatvfs, ioctl_getflags};
use rustix::io::Errno;

use super::content::{Piece, Read, read_content};
use super::directory::Directory;
use super::writing_over::{Over, differing};
use crate::local::file_systems::{BCACHEFS, BTRFS, NILFS, ZFS, kind_of};

/// What a file system may take besides for where the bytes lie: for each piece of them (an extent is 12 bytes on ext4 and 16 on XFS, in trees that may be half empty), and in any case. XFS sets
/// several blocks aside for each change that it has not yet written down.
const PIECE_BYTES: u64 = 512;
const TREE_BYTES: u64 = 512 << 10;
/// The least piece.
const BLOCK_BYTES: u64 = 4096;
/// How far free room is taken to be in pieces.
const APART_BYTES: u64 = 4 * BLOCK_BYTES;

/// `NoSpace` if there is no room for what `over` is to write of `new`, of `size_bytes`, where the file that is there has no bytes: what it was given beforehand does not count, as nothing tells
/// cheaply where that lies. `beside` is a directory on its file system, and its blocks may be shared, so that what is written goes elsewhere. Where a file system gives no room beforehand, or
/// somebody else shares the blocks of the file, writing may find the disk full all the same.
pub(super) fn try_room(
    over: &Over<'_>,
    new: &File,
    size_bytes: u64,
    (beside, is_shared): (&Directory, bool),
) -> Result<()> {
    if is_shared || writes_elsewhere(over.there) {
        let take =
            |bytes: u64, pieces: u64| Room::beside(beside).take(0, bytes + pieces * PIECE_BYTES + TREE_BYTES);
        // The most that it may take is asked for first, as that needs no second comparison; but not where it is much of what there is, which others may want in this moment.
        if is_little(size_bytes, beside) && take(size_bytes, size_bytes / BLOCK_BYTES).is_ok() {
            return Ok(());
        }
        let dry = Over { is_dry: true, ..Over::new(over.there, over.end, over.is_readable, over.check) };
        let bytes = dry.bring(new, size_bytes)? - dry.cleared.get();
        // What lies together in the file may not on the disk.
        let pieces = dry.parts.get().max(bytes / APART_BYTES);
        return if pieces == 0 { Ok(()) } else { take(bytes, pieces) };
    }
    // At the same places: where blocks are given in clusters as many as there.
    let (room, mut pieces) = (Room::beside(beside), 0);
    each_missing(over, new, size_bytes, &mut |at, len| {
        pieces += 1;
        room.take(at, len)
    })?;
    if pieces == 0 { Ok(()) } else { room.take(size_bytes.max(over.end), pieces * PIECE_BYTES + TREE_BYTES) }
}

/// True if what is written over always takes blocks of its own: where nothing is written over in place; on Btrfs but in files that say otherwise.
fn writes_elsewhere(file: &File) -> bool {
    let is_in_place = || ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW));
    match kind_of(file).unwrap_or_default() {
        BTRFS => !is_in_place(),
        BCACHEFS | NILFS | ZFS => true,
        _ => false,
    }
}

/// True if so many bytes are no more than an eighth of what is free.
fn is_little(bytes: u64, directory: &Directory) -> bool {
    fstatvfs(directory).is_ok_and(|found| bytes <= found.f_bavail.saturating_mul(found.f_frsize) / 8)
}

/// A file that nobody knows, which takes room until it is dropped.
struct Room(Result<OwnedFd, Errno>);

impl Room {
    fn beside(directory: &Directory) -> Room {
        Room(directory.unnamed().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }

    /// `NoSpace` if there is none for `len` bytes at this place, or for the file itself.
    fn take(&self, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let taken = self.0.as_ref().map_err(|error| *error).and_then(|file| {
            rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, at, len))
        });
        match taken {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                let what = "make room for what is to be written to the file, which is left as it is";
                Err(Error::file(what, error.into()))
            }
            // That it is not to be had for another reason than want of room is no reason not to write.
            Ok(()) | Err(_) => Ok(()),
        }
    }
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
                (over.check)()?;
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
    }
}
