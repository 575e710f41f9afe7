//! Kinds of file systems, by the numbers that statfs(2) has for them (`f_type`, in 32 bits), and what is known of each.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::fs::{StatFs, fstatfs};

const AFS: u64 = 0x5346_414f;
pub(super) const BCACHEFS: u64 = 0xca45_1a4e;
pub(super) const BTRFS: u64 = 0x9123_683e;
const CEPH: u64 = 0x00c3_6400;
const CIFS: u64 = 0xff53_4d42;
const CODA: u64 = 0x7375_7245;
const EXFAT: u64 = 0x2011_bab0;
/// Ext2 to ext4.
pub(super) const EXT: u64 = 0xef53;
const F2FS: u64 = 0xf2f5_2010;
const FAT: u64 = 0x4d44;
/// Any may be behind it.
const FUSE: u64 = 0x6573_5546;
const HFS: u64 = 0x4244;
const HFS_PLUS: u64 = 0x482b;
/// AFS of the kernel's own client.
const KAFS: u64 = 0x6b41_4653;
const LUSTRE: u64 = 0x0bd0_0bd0;
const NFS: u64 = 0x6969;
pub(super) const NILFS: u64 = 0x3434;
const NTFS: u64 = 0x5346_544e;
const NTFS3: u64 = 0x7366_746e;
pub(super) const OVERLAY: u64 = 0x794c_7630;
const P9: u64 = 0x0102_1997;
const SMB: u64 = 0x517b;
const SMB2: u64 = 0xfe53_4d42;
/// There is no disk below.
pub(super) const TMPFS: u64 = 0x0102_1994;
pub(super) const XFS: u64 = 0x5846_5342;
pub(super) const ZFS: u64 = 0x2fc1_2fc1;

/// Whose numbers of inodes stay what they are, which tell when a directory was made, and which have an id. Of others (networks', FUSE, FAT, overlayfs) one of these changes by
/// itself, or is made up with each mount. All subvolumes of bcachefs have one id, and a snapshot keeps inodes and times of birth: an older state would be taken for the directory.
pub(super) const LASTING: [u64; 6] = [EXT, XFS, BTRFS, F2FS, ZFS, TMPFS];
/// Which share no blocks between files: there nothing needs to be made to find out.
pub(super) const SHARELESS: [u64; 2] = [EXT, TMPFS];
/// Where parts of files can be shared. Elsewhere the kernel would copy them, and what it copied be read once more.
pub(super) const PART_SHARERS: [u64; 3] = [BTRFS, XFS, BCACHEFS];
/// Which take names for one that differ in case.
pub(super) const FOLDING: [u64; 10] = [FAT, EXFAT, NTFS, NTFS3, HFS, HFS_PLUS, SMB, CIFS, SMB2, FUSE];
/// Which tell of failed writes only when a file is closed: those that send to a server, and those of other programs.
pub(super) const LATE: [u64; 11] = [NFS, SMB, CIFS, SMB2, FUSE, AFS, KAFS, CEPH, CODA, P9, LUSTRE];
/// Which keep what their directories have in a log, or have others keep it.
pub(super) const LOGGING: [u64; 16] =
    [XFS, BTRFS, TMPFS, ZFS, BCACHEFS, F2FS, NILFS, NFS, CIFS, SMB2, AFS, KAFS, CEPH, CODA, P9, LUSTRE];
/// On which a ctime does not tell that a file changed, or that others change unseen, and their names.
pub(super) const UNTOLD: [(u64, &str); 7] =
    [(FUSE, "FUSE"), (CIFS, "SMB"), (SMB2, "SMB"), (SMB, "SMB"), (P9, "9P"), (FAT, "FAT"), (EXFAT, "exFAT")];

/// File systems of which something is remembered; beyond that many it is found out anew.
const REMEMBERED_MAX: usize = 64;

/// Whether something is so of a file system, by its device: found out once of each.
#[derive(Debug, Default)]
pub(super) struct ByDevice(RefCell<Vec<((u32, u32), bool)>>);

impl ByDevice {
    /// What is known of `device`, or what `find_out` says now.
    pub(super) fn get(&self, device: (u32, u32), find_out: impl FnOnce() -> bool) -> bool {
        let mut known = self.0.borrow_mut();
        if let Some((_, is_so)) = known.iter().find(|(seen, _)| *seen == device) {
            return *is_so;
        }
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        let is_so = find_out();
        known.push((device, is_so));
        is_so
    }
}

#[cfg(test)]
thread_local! {
    /// What a test has this thread take all file systems for.
    pub(super) static KIND: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// The kind of the file system of an open file.
pub(super) fn kind_of(file: impl AsFd) -> rustix::io::Result<u64> {
    #[cfg(test)]
    if let Some(kind) = KIND.get() {
        return Ok(kind);
    }
    Ok(told(&fstatfs(file)?))
}

/// True if an open file lies on a file system of one of these kinds; false where that cannot be told.
pub(super) fn lies_on(file: impl AsFd, kinds: &[u64]) -> bool {
    kind_of(file).is_ok_and(|kind| kinds.contains(&kind))
}

/// The kind that statfs(2) told: a signed number of 32 bits is what some systems make of it.
// The field's type differs between architectures.
#[allow(clippy::unnecessary_cast)]
pub(super) fn told(about: &StatFs) -> u64 {
    about.f_type as u64 & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Review M6: each kind is what statfs(2) says where it is mounted: of a directory in memory, and of one that the kernel makes.
    #[test]
    fn what_is_mounted_here_is_known() {
        let shm = std::fs::File::open("/dev/shm").unwrap();
        assert!(lies_on(&shm, &[TMPFS]) && !lies_on(&shm, &[OVERLAY]));
        let proc = std::fs::File::open("/proc").unwrap();
        kind_of(&proc).unwrap();
        assert!(!lies_on(&proc, &[TMPFS]) && !lies_on(&proc, &LATE) && !lies_on(&proc, &LASTING));
    }

    /// Review M6: the numbers are those of the kernel's own header, `linux/magic.h` of the system's C library, where it names the kind.
    #[test]
    fn numbers_are_those_of_the_kernel() {
        let header = std::fs::read_to_string("/usr/include/linux/magic.h").unwrap();
        let number = |name: &str| {
            let mut words = header.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let line = words.find(|words| words.get(1) == Some(&name)).unwrap();
            u64::from_str_radix(line[2].strip_prefix("0x").unwrap(), 16).unwrap()
        };
        for (name, kind) in [
            ("AFS_SUPER_MAGIC", AFS),
            ("AFS_FS_MAGIC", KAFS),
            ("BTRFS_SUPER_MAGIC", BTRFS),
            ("CEPH_SUPER_MAGIC", CEPH),
            ("CODA_SUPER_MAGIC", CODA),
            ("EXFAT_SUPER_MAGIC", EXFAT),
            ("EXT4_SUPER_MAGIC", EXT),
            ("F2FS_SUPER_MAGIC", F2FS),
            ("FUSE_SUPER_MAGIC", FUSE),
            ("MSDOS_SUPER_MAGIC", FAT),
            ("NFS_SUPER_MAGIC", NFS),
            ("NILFS_SUPER_MAGIC", NILFS),
            ("OVERLAYFS_SUPER_MAGIC", OVERLAY),
            ("SMB_SUPER_MAGIC", SMB),
            ("CIFS_SUPER_MAGIC", CIFS),
            ("SMB2_SUPER_MAGIC", SMB2),
            ("TMPFS_MAGIC", TMPFS),
            ("V9FS_MAGIC", P9),
            ("XFS_SUPER_MAGIC", XFS),
        ] {
            assert_eq!(number(name), kind, "{name}");
        }
        // Those of its other headers: fs/bcachefs/bcachefs_format.h, fs/hfs/hfs.h, fs/hfsplus/hfsplus_raw.h, fs/ntfs3; and of ZFS and Lustre.
        assert_eq!((BCACHEFS, HFS, HFS_PLUS, NTFS3), (0xca45_1a4e, 0x4244, 0x482b, 0x7366_746e));
        assert_eq!((NTFS, ZFS, LUSTRE), (0x5346_544e, 0x2fc1_2fc1, 0x0bd0_0bd0));
    }

    /// Review M6: what is known of each kind. Who sends to a server, and who may be anything, tells late and nothing for sure; what folds names is that of other systems.
    #[test]
    fn what_is_known_of_each_kind() {
        for kind in [NFS, SMB, CIFS, SMB2, FUSE, AFS, KAFS, CEPH, CODA, P9, LUSTRE] {
            assert!(LATE.contains(&kind) && !LASTING.contains(&kind), "{kind:x}");
            assert!(!SHARELESS.contains(&kind) && !PART_SHARERS.contains(&kind), "{kind:x}");
        }
        for kind in [FAT, EXFAT, NTFS, NTFS3, HFS, HFS_PLUS, SMB, CIFS, SMB2, FUSE] {
            assert!(FOLDING.contains(&kind) && !LASTING.contains(&kind), "{kind:x}");
        }
        for kind in [EXT, XFS, BTRFS, F2FS, ZFS, TMPFS] {
            assert!(LASTING.contains(&kind) && !LATE.contains(&kind) && !FOLDING.contains(&kind), "{kind:x}");
        }
        for kind in [FUSE, CIFS, SMB2, SMB, P9, FAT, EXFAT] {
            assert!(UNTOLD.iter().any(|(untold, _)| *untold == kind), "{kind:x}");
        }
        assert!([EXT, TMPFS].iter().all(|kind| SHARELESS.contains(kind)));
        assert!([BTRFS, XFS, BCACHEFS].iter().all(|kind| PART_SHARERS.contains(kind)));
    }

    /// Review M6: where the field is signed and of 32 bits, kinds above 2^31 are known all the same.
    #[test]
    fn a_sign_changes_no_kind() {
        let mut about = fstatfs(std::fs::File::open("/proc").unwrap()).unwrap();
        about.f_type = (0xfe53_4d42_u32 as i32).into();
        assert_eq!(told(&about), SMB2);
    }
}
