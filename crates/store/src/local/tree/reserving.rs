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

use super::content::Piece;
use super::directory::{Directory, stat_fd};
use super::place::times_of;
use super::removing::kind_of_disk;
use super::settings::mtime_of;

/// Bytes of a block in what a file is said to take.
const SECTOR_BYTES: u64 = 512;
/// Writes go to new blocks there in any case, and what was reserved is not compressed.
const BTRFS: u64 = 0x9123_683e;

/// Has the disk keep room in `there`, as `found` tells of it, for the data of `new`, of `size_bytes`. `NoSpace` if there is none; then `there` is what it was. Where the file system reserves nothing, or
/// shares blocks with a snapshot, writing may find the disk full all the same. `directory` is that of the file, unless it is mounted from elsewhere.
pub(super) fn reserve(
    there: &File,
    found: &Statx,
    new: &File,
    size_bytes: u64,
    directory: Option<&Directory>,
) -> Result<()> {
    let taken = |found: &Statx| found.stx_blocks.saturating_mul(SECTOR_BYTES);
    let is_whole = size_bytes <= found.stx_size && taken(found) >= found.stx_size;
    if is_whole || kind_of_disk(there.as_fd()).is_ok_and(|kind| kind == BTRFS) {
        return Ok(());
    }
    let coming = stat_fd(new.as_fd()).map_err(|error| Error::file("look at what came", error))?;
    let missing = taken(&coming).min(size_bytes).saturating_sub(taken(found));
    if let Some(unnamed) = directory.filter(|_| missing > 0).and_then(|it| it.unnamed().ok()) {
        allocate(&File::from(unnamed), 0, missing).map_err(no_room)?;
    }
    let mut at = 0;
    while at < size_bytes {
        let len = match Piece::next(new, at, size_bytes) {
            Piece::Hole(len) => len,
            Piece::Data(len) => {
                if let Err(error) = allocate(there, at, len) {
                    keep_time(there, found);
                    return Err(no_room(error));
                }
                len
            }
        };
        at += len;
    }
    Ok(())
}

/// Nothing was written to `there` after all: it has the time that `found` tells again.
pub(super) fn keep_time(there: &File, found: &Statx) {
    // Whoever may write to it and does not own it may not.
    let _ = rustix::fs::futimens(there, &times_of(mtime_of(found)));
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
