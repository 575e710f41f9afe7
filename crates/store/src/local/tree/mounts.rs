//! Which mounts are read while a tree is: one that is gone when all was read leaves a directory that looks as if everything in it had been deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

use super::directory::STAT;

/// `STATX_MNT_ID_UNIQUE` of statx(2), Linux 6.8. Before that the kernel tells the other number for it, from Linux 5.8 on.
const NUMBER: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// What the kernel knows a mount by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MountNumber {
    /// No other mount has it, as long as the machine runs.
    Unique(u64),
    /// As in proc_pid_mountinfo(5): a later mount may get that of one that is gone.
    Reused(u64),
}

impl MountNumber {
    /// That of the mount which `found` is on, asked for with [`MountNumber::fact`]; `None` where the kernel does not tell.
    pub fn of(found: &Statx) -> Option<MountNumber> {
        let has = |fact: StatxFlags| found.stx_mask & fact.bits() != 0;
        match (has(NUMBER), has(StatxFlags::MNT_ID)) {
            (true, _) => Some(MountNumber::Unique(found.stx_mnt_id)),
            (false, true) => Some(MountNumber::Reused(found.stx_mnt_id)),
            (false, false) => None,
        }
    }

    /// What to ask statx(2) for.
    pub fn fact() -> StatxFlags {
        NUMBER
    }
}

/// The mounts that walks and scans read something of, and where.
#[derive(Debug, Default)]
pub struct ReadMounts {
    /// Where paths begin.
    start: PathBuf,
    read: Mutex<BTreeMap<MountNumber, PathBuf>>,
}

impl ReadMounts {
    /// None yet; paths begin at `start`, wherever a thread that reads stands.
    pub fn new(start: PathBuf) -> ReadMounts {
        ReadMounts { start, read: Mutex::default() }
    }

    /// Where one was read that is none of `there`, nor is found there any more: the kernel does not tell of every mount by which a process reads (chroot(2), another
    /// one's `/proc/PID/root`).
    pub fn lost(&self, there: &BTreeSet<MountNumber>) -> Option<PathBuf> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_lost =
            |number: MountNumber, path: &Path| !there.contains(&number) && found_at(path) != Some(number);
        read.iter().find(|(number, path)| is_lost(**number, path)).map(|(_, path)| path.clone())
    }

    fn note(&self, number: MountNumber, path: PathBuf) {
        let path = self.start.join(path);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_insert(path);
    }
}

/// That of what is at `path`, which may be a link that was followed as a source.
fn found_at(path: &Path) -> Option<MountNumber> {
    let found = statx(CWD, path, AtFlags::NO_AUTOMOUNT, NUMBER).ok()?;
    MountNumber::of(&found)
}

/// Notes the mounts that one walk, or scan, reads, if somebody wants to know.
#[derive(Debug, Default)]
pub(super) struct MountNotes {
    read: Option<Arc<ReadMounts>>,
    last: Option<MountNumber>,
}

impl MountNotes {
    pub(super) fn new(read: Option<Arc<ReadMounts>>) -> MountNotes {
        MountNotes { read, last: None }
    }

    /// What is asked about an entry.
    pub(super) fn facts(&self) -> StatxFlags {
        if self.read.is_some() { STAT | NUMBER } else { STAT }
    }

    /// The entry at `path`, which `found`, asked for with these facts, tells of, is read.
    pub(super) fn note(&mut self, found: &Statx, path: impl FnOnce() -> PathBuf) {
        let Some(read) = &self.read else { return };
        // A link as a source may lie elsewhere than what it leads to, which alone is known of it; nothing is mounted on one.
        let is_link = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Symlink;
        let number = MountNumber::of(found).filter(|number| !is_link && self.last != Some(*number));
        if let Some(number) = number {
            read.note(number, path());
            self.last = Some(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::tests::mounting::run_with_mounts;
    use super::super::{DigestOptions, Origin, Scan, WalkOptions, Walked, Walker};
    use super::*;

    /// How many of all mounts were read, by a walk and by a scan of `top`.
    fn read(top: &Path, one_file_system: bool) -> [usize; 2] {
        [true, false].map(|walks| {
            let mounts = Arc::<ReadMounts>::default();
            let told = Some(Arc::clone(&mounts));
            if walks {
                let options =
                    WalkOptions { recursive: true, one_file_system, mounts: told, ..WalkOptions::default() };
                let mut walker = Walker::new(vec![top.to_owned()], options);
                while let Some(step) = walker.step() {
                    assert!(!matches!(step, Walked::Failed(..)), "{step:?}");
                }
            } else {
                let names = vec![Vec::new()];
                let options =
                    DigestOptions { names, one_file_system, mounts: told, ..DigestOptions::default() };
                Scan::new(&options, None, &|_| false).sources(&Origin::Anywhere, &[top], false).unwrap();
            }
            let read = mounts.read.lock().unwrap().clone();
            // Of the innermost path of each it is the one that statx knows.
            for (number, path) in &read {
                let found = super::super::directory::Directory::open(path.parent().unwrap())
                    .unwrap()
                    .stat_for(path.file_name().unwrap().as_encoded_bytes(), STAT | MountNumber::fact())
                    .unwrap();
                assert_eq!(MountNumber::of(&found), Some(*number), "{path:?}");
            }
            // All are there, whether the kernel tells of them or not; one that is elsewhere it tells of, or it is lost.
            assert_eq!(mounts.lost(&BTreeSet::new()), None);
            let moved: BTreeMap<_, _> = read.keys().map(|number| (*number, top.join("gone"))).collect();
            let moved = ReadMounts { read: Mutex::new(moved), ..ReadMounts::default() };
            assert_eq!(moved.lost(&BTreeSet::new()), Some(top.join("gone")));
            assert_eq!(moved.lost(&read.keys().copied().collect()), None);
            read.len()
        })
    }

    /// Issue "an unmounted source is no empty one": directories and files that something is mounted on, of another file system or of the same one, count; with `-x` what is not read does not.
    #[test]
    fn mounts_that_are_read_are_noted() {
        let variable = "DRAY_TEST_READ_MOUNTS";
        let Some(place) = std::env::var_os(variable) else {
            let dir = tempfile::tempdir().unwrap();
            let made = ["tree/other", "tree/same", "tree/plain/below", "elsewhere"];
            made.iter().for_each(|path| fs::create_dir_all(dir.path().join(path)).unwrap());
            for name in ["tree/file", "elsewhere/file"] {
                fs::write(dir.path().join(name), b"content").unwrap();
            }
            symlink("nowhere", dir.path().join("tree/link")).unwrap();
            let mount = format!(
                "cd \"${variable}\" && mount -t tmpfs drayman tree/other && echo 1 > tree/other/one && \
                 mount --bind elsewhere tree/same && mount --bind elsewhere/file tree/file"
            );
            let name = "local::tree::mounts::tests::mounts_that_are_read_are_noted";
            return run_with_mounts(name, (variable, dir.path()), &mount);
        };
        let tree = Path::new(&place).join("tree");
        assert_eq!(read(&tree.join("plain"), false), [1, 1]);
        assert_eq!(read(&tree.join("other"), true), [1, 1]);
        assert_eq!(read(&tree, false), [4, 4]);
        assert_eq!(read(&tree, true), [3, 3]);
    }
}
