//! What the kernel tells of a file system of its ext4 driver (which has ext2 and ext3, too), in sysfs.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

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

/// Errors of the file system of `directory`, on `device`, that stand in its superblock: those since it was checked (fsck). 0 where nobody is told.
///
/// What a device refused of the file system's own blocks, whatever they hold and whoever was told, is found, and written down, with the next change (`ext4_check_bdev_write_error` of Linux 5.9). So there
/// is one first: a file without a name.
pub(super) fn recorded_errors(directory: impl AsFd, device: (u32, u32)) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // Where that may not be, the next change by anybody has it written down.
    let _ = rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR);
    told(device, "errors_count").and_then(|told| told.parse().ok()).unwrap_or(0)
}

fn told(device: (u32, u32), what: &str) -> Option<String> {
    let told = std::fs::read_to_string(Path::new(&folder(device)?).join(what)).ok()?;
    Some(told.trim().to_owned())
}

fn folder((major, minor): (u32, u32)) -> Option<String> {
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(format!("/sys/fs/ext4/{}", device.file_name()?.to_str()?))
}
