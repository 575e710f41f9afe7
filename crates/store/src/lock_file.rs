//! Files that are there to be locked, or that only one process at a time works on: opened by everybody in the same way.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens `path` for reading and writing, and makes it (mode 0600) if it is not there. What it holds stays, and it is not locked
/// yet. A symbolic link of that name is not followed: that is an error (`ELOOP`).
pub fn open(path: &Path) -> io::Result<File> {
    // A flag of open(2) is a positive number of few bits.
    let no_links = OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(no_links);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Design 12: whoever comes second finds what the first has written; and a link leads nobody elsewhere.
    #[test]
    fn what_it_holds_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = open(&path).unwrap();
        std::fs::write(&path, "7\n").unwrap();
        assert!(first.try_lock().is_ok());
        let second = open(&path).unwrap();
        assert!(second.try_lock().is_err());
        assert_eq!(io::read_to_string(&second).unwrap(), "7\n");
        assert_eq!(second.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(&link).is_err());
    }
}
