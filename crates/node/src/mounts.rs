//! On which kind of file system a file lies, by what the kernel tells of its mounts: of the file system itself nothing is asked, which may be
//! away, asleep or hang.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mountinfo::{MOUNTINFO, unescaped};

/// File systems behind a network or a program, where reading costs others more than the index is worth, and that are not mounted for it. So are
/// all whose name begins with `fuse`.
const LEFT_OUT: [&str; 20] = [
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "9p", "virtiofs", "vboxsf",
    "prl_fs", "vmhgfs", "lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "autofs",
];

/// File systems in memory, where an index would take that.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// The mounts, and the kind of each.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Vec<(PathBuf, String)>);

impl Mounts {
    /// As they are now; none where the kernel does not tell.
    pub(crate) fn now() -> Mounts {
        std::fs::read(MOUNTINFO).map(|text| Mounts::of(&text)).unwrap_or_default()
    }

    /// As `text` has them. Lines that are not understood do not count.
    pub(crate) fn of(text: &[u8]) -> Mounts {
        Mounts(text.split(|byte| *byte == b'\n').filter_map(mount).collect())
    }

    /// Whether what is at the absolute `path`, which has no symbolic links, is not for the index.
    pub(crate) fn is_left_out(&self, path: &Path) -> bool {
        self.kind(path).is_some_and(is_left_out)
    }

    /// On which kind of file system `path` is, if an index is not to lie there.
    pub(crate) fn is_unfit(&self, path: &Path) -> Option<&str> {
        self.kind(path).filter(|kind| is_left_out(kind) || IN_MEMORY.contains(kind))
    }

    /// Where something is mounted below `top`, from there on.
    pub(crate) fn below(&self, top: &Path) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(move |(at, _)| at.strip_prefix(top).ok())
    }

    fn kind(&self, path: &Path) -> Option<&str> {
        // What was mounted later hides what was at the same place.
        let above = self.0.iter().filter(|(at, _)| path.starts_with(at));
        above.max_by_key(|(at, _)| at.as_os_str().len()).map(|(_, kind)| &**kind)
    }
}

fn is_left_out(kind: &str) -> bool {
    kind.starts_with("fuse") || LEFT_OUT.contains(&kind)
}

/// One line: where, and of which kind.
fn mount(line: &[u8]) -> Option<(PathBuf, String)> {
    let mut words = line.split(|byte| *byte == b' ');
    let at = PathBuf::from(OsString::from_vec(unescaped(words.nth(4)?)));
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    Some((at, String::from_utf8_lossy(kind).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y5, "what crosses a network is not read twice": by the mount that is nearest and on top; the machine's own disks are not left out.
    #[test]
    fn networks_are_left_out() {
        let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    23 22 0:20 / /mnt/my\\040nas rw master:2 shared:3 - nfs4 nas:/x rw\n\
                    24 23 8:2 / /mnt/my\\040nas/disk rw - xfs /dev/sdb rw\n\
                    25 22 0:21 / /home/a/remote rw - fuse.sshfs a@b:/ rw\n\
                    26 22 0:22 / /net rw - autofs systemd-1 rw\n\
                    27 22 0:23 / /data rw - autofs systemd-1 rw\n\
                    28 27 8:3 / /data rw - btrfs /dev/sdc rw\n\
                    not a line\n29 22 0:24 / /win rw -\n";
        let mounts = Mounts::of(text.as_bytes());
        for path in ["/mnt/my nas/a", "/home/a/remote/x/y", "/net", "/net/host/a"] {
            assert!(mounts.is_left_out(Path::new(path)), "{path}");
        }
        for path in ["/a", "/mnt/my nas/disk/a", "/mnt/my nasty/a", "/home/a/remotely", "/data/a", "/win/a"] {
            assert!(!mounts.is_left_out(Path::new(path)), "{path}");
        }
        let below: Vec<&Path> = mounts.below(Path::new("/mnt")).collect();
        assert_eq!(below, [Path::new("my nas"), Path::new("my nas/disk")]);
        let memory = Mounts::of(b"30 22 0:25 / /run rw - tmpfs tmpfs rw\n");
        assert!(!memory.is_left_out(Path::new("/run/a")));
        assert_eq!(memory.is_unfit(Path::new("/run/a")), Some("tmpfs"));
        assert_eq!(mounts.is_unfit(Path::new("/mnt/my nas/a")), Some("nfs4"));
        assert_eq!(mounts.is_unfit(Path::new("/data/a")), None);
        assert!(!Mounts::default().is_left_out(Path::new("/a")), "nothing is known");
        assert!(Mounts::now().0.iter().any(|(at, _)| at == Path::new("/")));
    }
}
