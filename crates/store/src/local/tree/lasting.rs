//! What a directory is known by again after a restart of the process or of the machine, when mounts and devices have other numbers.

use std::os::fd::OwnedFd;

use minicbor::{Decode, Encode};
use rustix::fs::{AtFlags, StatxFlags};

use crate::local::file_systems::{LASTING, kind_of};

/// File system, inode, and time of birth: no two directories have all of them alike, but copies of a whole file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub struct LastingIdentity {
    /// Type of the file system (`f_type` of statfs).
    #[n(0)]
    pub kind: u64,
    /// Its id (`f_fsid`), never 0: of its UUID, or of its device, as XFS has it, or random, as tmpfs has it.
    #[n(1)]
    pub file_system: u64,
    /// Its inode.
    #[n(2)]
    pub inode: u64,
    /// When it was made, seconds since 1970.
    #[n(3)]
    pub born_s: i64,
    /// And nanoseconds.
    #[n(4)]
    pub born_ns: u32,
}

impl LastingIdentity {
    /// That of an open directory; `None` where its file system does not tell for sure.
    pub(super) fn of(opened: &OwnedFd) -> rustix::io::Result<Option<LastingIdentity>> {
        // Both are asked: a long and a word of 64 bits.
        let kind = kind_of(opened)?;
        if !LASTING.contains(&kind) {
            return Ok(None);
        }
        let file_system = rustix::fs::fstatvfs(opened)?.f_fsid;
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = rustix::fs::statx(opened, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, wanted)?;
        let (born_s, born_ns) = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        // An image may be made with all times at 0.
        let is_told = found.stx_mask & wanted.bits() == wanted.bits() && (born_s, born_ns) != (0, 0);
        let identity = LastingIdentity { kind, file_system, inode: found.stx_ino, born_s, born_ns };
        Ok((is_told && file_system != 0).then_some(identity))
    }
}
