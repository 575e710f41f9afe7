//! What the kernel tells of a file system of its ext4 driver (which has ext2 and ext3, too), in sysfs.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, Timespec, Timestamps};

/// Whether the file system on the device of this major and minor number has a journal; false where nothing tells.
pub(super) fn has_journal(device: (u32, u32)) -> bool {
    // The number of the thread that writes it.
    told(device, "journal_task").is_some_and(|told| told.parse::<u32>().is_ok())
}

/// What no other time has in which the file system is mounted: its folder is made with each, and is the same from wherever it is seen; 0 where nobody sees it.
pub(super) fn mount_number(device: (u32, u32)) -> u64 {
    let found = folder(device).and_then(|folder| std::fs::metadata(folder).ok());
    found.map_or(0, |found| found.ino())
}

/// True if errors of the file system on `device` stand in its superblock: those since it was checked (fsck). False where nobody is told.
///
/// What a device refused of the file system's own blocks, whatever they hold and whoever was told, is found, and written down, with the next change (`ext4_check_bdev_write_error` of Linux 5.9). So there
/// is one first, in one of these directories: a file without a name or, where there is no room for one, the time of the directory, which stays what it is.
pub(super) fn has_errors<D: AsFd>(device: (u32, u32), directories: impl IntoIterator<Item = D>) -> bool {
    let errors = || told(device, "errors_count").and_then(|told| told.parse::<u64>().ok());
    match errors() {
        None => false,
        Some(0) => {
            // Where no change may be made the next one by anybody has it written down.
            let _ = directories.into_iter().any(|directory| has_changed(directory.as_fd()));
            errors().is_some_and(|errors| errors > 0)
        }
        Some(_) => true,
    }
}

/// True if the kernel tells whether errors of the file system on `device` stand in its superblock.
pub(super) fn tells_errors(device: (u32, u32)) -> bool {
    told(device, "errors_count").is_some()
}

/// Has the file system of `directory` change something, of which nothing is seen; false where that may not be.
fn has_changed(directory: BorrowedFd<'_>) -> bool {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR);
    made.is_ok() || {
        let found = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MTIME);
        found.is_ok_and(|found| {
            let mtime = Timespec { tv_sec: found.stx_mtime.tv_sec, tv_nsec: found.stx_mtime.tv_nsec.into() };
            let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            rustix::fs::futimens(directory, &Timestamps { last_access, last_modification: mtime }).is_ok()
        })
    }
}

fn told(device: (u32, u32), what: &str) -> Option<String> {
    let told = std::fs::read_to_string(Path::new(&folder(device)?).join(what)).ok()?;
    Some(told.trim().to_owned())
}

fn folder((major, minor): (u32, u32)) -> Option<String> {
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(format!("/sys/fs/ext4/{}", device.file_name()?.to_str()?))
}
