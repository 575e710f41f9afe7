//! File systems that turned read-only by themselves.

use rustix::fs::{StatVfsMountFlags, StatxFlags, fstatvfs};

use super::directory::Directory;

/// True if the file system of `directory` is read-only and its mount is not: nobody mounted it so, but it turned so when its device refused what it cannot do without, and tells nobody of what it had yet to
/// write. False where the kernel does not tell: without `/proc`, or in a chroot(2) below the mount.
pub(super) fn turned_read_only(directory: &Directory) -> bool {
    if !is_read_only(directory) {
        return false;
    }
    let found = directory.stat_self_for(StatxFlags::MNT_ID);
    let told = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    found.is_ok_and(|found| {
        String::from_utf8_lossy(&told).lines().any(|line| is_turned(line, found.stx_mnt_id))
    })
}

/// True if nothing may be written to the file system of `directory` by its mount.
pub(super) fn is_read_only(directory: &Directory) -> bool {
    fstatvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// True for the line of that mount (proc_pid_mountinfo(5)) if that is the file system's state alone.
fn is_turned(line: &str, mount: u64) -> bool {
    let mut words = line.split(' ');
    let is_it = words.next().is_some_and(|number| number.parse() == Ok(mount));
    let is_read_only = |options: Option<&str>| options.map(|all| all.split(',').any(|one| one == "ro"));
    let of_mount = is_read_only(words.nth(4));
    let of_file_system = is_read_only(words.skip_while(|word| *word != "-").nth(3));
    is_it && of_mount == Some(false) && of_file_system == Some(true)
}

#[cfg(test)]
mod tests {
    use super::is_turned;

    /// ADR 38: read-only by itself is what is so as a file system, and not as a mount; what nobody can read is not.
    #[test]
    fn what_was_mounted_read_only_did_not_turn() {
        for (line, is_so) in [
            ("7 1 0:29 / /m rw,relatime - btrfs /dev/loop0 ro,ssd,subvol=/", true),
            ("7 1 0:29 / /m rw,relatime shared:1 master:2 - btrfs /dev/loop0 ro", true),
            ("7 1 0:29 / /m ro,relatime - btrfs /dev/loop0 ro,ssd", false),
            ("7 1 0:29 / /m ro,relatime - btrfs /dev/loop0 rw,ssd", false),
            ("7 1 0:29 / /m rw,relatime - btrfs /dev/loop0 rw,errors=remount-ro", false),
            ("77 1 0:29 / /m rw,relatime - btrfs /dev/loop0 ro", false),
            ("7 1 0:29 / /m rw,relatime - btrfs", false),
            ("7", false),
            ("", false),
        ] {
            assert_eq!(is_turned(line, 7), is_so, "{line}");
        }
    }
}
