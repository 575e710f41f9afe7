//! What the kernel tells of a file system of its ext4 driver (which has ext2 and ext3, too), in sysfs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::directory::Directory;
use super::place::times_of;
use super::refused::Device;
use super::settings::mtime_of;

/// Whether the file system on the device of this major and minor number has a journal; false where nothing tells.
pub(super) fn has_journal(device: Device) -> bool {
    // The number of the thread that writes it.
    told(device, "journal_task").is_some_and(|told| told.parse::<u32>().is_ok())
}

/// What no other time has in which the file system is mounted: its folder is made with each, and is the same from wherever it is seen; 0 where nobody sees it.
pub(super) fn mount_number(device: Device) -> u64 {
    let found = folder(device).and_then(|folder| std::fs::metadata(folder).ok());
    found.map_or(0, |found| found.ino())
}

/// True if errors of the file system on `device` stand in its superblock: those since it was checked (fsck). `None` where nobody is told.
///
/// What a device refused of the file system's own blocks, whatever they hold and whoever was told, is found, and written down, with the next change (`ext4_check_bdev_write_error` of Linux 5.9). So there
/// is one first, in one of these directories: a file without a name or, where there is no room for one, the time of the directory, which stays what it is.
pub(super) fn has_errors<'a>(
    device: Device,
    directories: impl IntoIterator<Item = &'a Directory>,
) -> Option<bool> {
    let has_errors = || told(device, "errors_count")?.parse::<u64>().ok().map(|errors| errors > 0);
    if !has_errors()? {
        // Where no change may be made the next one by anybody has it written down.
        let _ = directories.into_iter().any(has_changed);
    }
    has_errors()
}

/// Has the file system of `directory` change something, of which nothing is seen; false where that may not be.
fn has_changed(directory: &Directory) -> bool {
    let set_time = || rustix::fs::futimens(directory, &times_of(mtime_of(&directory.stat_self().ok()?))).ok();
    directory.unnamed().is_ok() || set_time().is_some()
}

fn told(device: Device, what: &str) -> Option<String> {
    let told = std::fs::read_to_string(Path::new(&folder(device)?).join(what)).ok()?;
    Some(told.trim().to_owned())
}

fn folder((major, minor): Device) -> Option<String> {
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(format!("/sys/fs/ext4/{}", device.file_name()?.to_str()?))
}
