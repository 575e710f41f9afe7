//! Where the sources lay at first: a disk that is not mounted any more must not be taken for one from which everything was deleted.
//!
//! That something was unmounted the kernel tells, by inotify, only where nothing else mounts the same file system. So the mounts themselves are looked at, too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{MountNumber, ReadMounts};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::mountinfo::{MOUNTINFO, unescaped};

/// The file systems on which the sources lie.
#[derive(Default)]
pub(super) struct Grounds {
    /// Other file systems below a source are not looked into.
    one_file_system: bool,
    /// The device of each source.
    pub(super) devices: BTreeMap<PathBuf, u64>,
    mounts: BTreeMap<PathBuf, Mounts>,
    /// Those that something was read of: who looks now and then misses one that comes and goes meanwhile.
    read: Arc<ReadMounts>,
}

/// One mount: its number, which nothing else has as long as it is mounted, device, where it is, and what tells it from a later one with the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Mount {
    number: Vec<u8>,
    device: Vec<u8>,
    at: PathBuf,
    mark: Option<Mark>,
}

/// What a later mount at the same place has not, though it gets the number, and the device, of one that is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Mark {
    /// Its number of all since the machine started (Linux 6.8).
    Unique(u64),
    /// Its uppermost directory: inode, and when that was made (0 where that is not known).
    Top(u64, i64, u32),
}

impl Mark {
    /// Of what is mounted at `place`, or nothing if that cannot be looked at.
    fn of(place: &Path) -> Option<Mark> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let facts = StatxFlags::INO | StatxFlags::BTIME | MountNumber::fact();
        let found = statx(CWD, place, flags, facts).ok()?;
        if let Some(MountNumber::Unique(number)) = MountNumber::of(&found) {
            return Some(Mark::Unique(number));
        }
        let is_told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let made = if is_told { (found.stx_btime.tv_sec, found.stx_btime.tv_nsec) } else { (0, 0) };
        Some(Mark::Top(found.stx_ino, made.0, made.1))
    }
}

impl Mount {
    /// What a walk knows it by.
    fn numbers(&self) -> impl Iterator<Item = MountNumber> {
        let unique = match self.mark {
            Some(Mark::Unique(number)) => Some(MountNumber::Unique(number)),
            _ => None,
        };
        let number = str::from_utf8(&self.number).ok().and_then(|number| number.parse().ok());
        unique.into_iter().chain(number.map(MountNumber::Reused))
    }
}

/// What a source lies on.
struct Mounts {
    /// That which the source itself is in.
    under: Option<Mount>,
    /// Those at it and below it.
    within: BTreeSet<Mount>,
}

impl Grounds {
    /// `start` is where paths of sources begin.
    pub(super) fn of(one_file_system: bool, start: PathBuf) -> Grounds {
        Grounds { one_file_system, read: Arc::new(ReadMounts::new(start)), ..Grounds::default() }
    }

    /// Is to be told of all that the sources are read of.
    pub(super) fn read_mounts(&self) -> Arc<ReadMounts> {
        Arc::clone(&self.read)
    }

    /// When the sources were read to their end, before anything is deleted: `Changed` as [`Grounds::check`] has it, and `NotFound` if one is not there any more, which may
    /// have been the empty place of a disk while it was read.
    pub(super) fn confirm(&mut self, roots: &[PathBuf]) -> Result<()> {
        let are_there = || {
            roots.iter().try_for_each(|root| {
                // As the copy looks at it: a link is one, unless the path ends with a slash.
                let found = fs::symlink_metadata(root);
                found.map(drop).map_err(|error| {
                    Error::file(format!("look at {root:?} once more, before anything is deleted"), error)
                })
            })
        };
        are_there()?;
        self.check(roots, None, true)?;
        // Those that went meanwhile were not looked at.
        are_there()
    }

    /// `Changed` if a source lies elsewhere than it did, or something in it was unmounted and that would be deleted.
    pub(super) fn check(
        &mut self,
        roots: &[PathBuf],
        unmounted: Option<PathBuf>,
        deletes: bool,
    ) -> Result<()> {
        if let Some(path) = unmounted.filter(|_| deletes) {
            return changed(&path, "was unmounted");
        }
        for root in roots {
            let Ok(found) = fs::metadata(root) else { continue };
            let device = *self.devices.entry(root.clone()).or_insert(found.dev());
            if device != found.dev() {
                return changed(root, "is on another file system than it was");
            }
        }
        if !deletes {
            return Ok(());
        }
        let mut look = || {
            let text = fs::read(MOUNTINFO).map_err(|error| {
                Error::file(format!("read in {MOUNTINFO} what is mounted"), error)
                    .advise("mount /proc here: without it nothing tells a disk that went from files that did")
            })?;
            roots.iter().try_for_each(|root| self.check_mounts(&text, root))?;
            self.check_read(roots)
        };
        // Before Linux 5.8 a line can be missing where something else is unmounted meanwhile.
        look().or_else(|_| look())
    }

    /// The same by the mounts that something was read of.
    fn check_read(&self, roots: &[PathBuf]) -> Result<()> {
        let looked_at: Vec<&Mounts> = roots.iter().filter_map(|root| self.mounts.get(root)).collect();
        let there = looked_at.iter().flat_map(|mounts| mounts.under.iter().chain(&mounts.within));
        match self.read.lost(&there.flat_map(Mount::numbers).collect()) {
            Some(path) => changed(&path, "is on something that was unmounted"),
            None => Ok(()),
        }
    }

    /// The same by the mounts, as the kernel tells them in `text`. Those that come later count from then on.
    fn check_mounts(&mut self, text: &[u8], root: &Path) -> Result<()> {
        // One that is not there is the copy's to tell of.
        let Ok(whole) = fs::canonicalize(root) else { return Ok(()) };
        let now = Mounts::of(text, &whole, self.one_file_system);
        let Some(known) = self.mounts.get_mut(root) else {
            self.mounts.insert(root.to_owned(), now);
            return Ok(());
        };
        if known.under != now.under {
            return changed(root, "is on another mount than it was");
        }
        if let Some(gone) = known.within.difference(&now.within).next() {
            return changed(&gone.at, "was unmounted");
        }
        known.within.extend(now.within);
        Ok(())
    }
}

impl Mounts {
    /// Of the absolute path `whole`, which has no symbolic links; with `one_file_system` of those alone that are looked into all the same, of the source's own.
    fn of(text: &[u8], whole: &Path, one_file_system: bool) -> Mounts {
        let mut mounts = Mounts { under: None, within: BTreeSet::new() };
        let mut within = Vec::new();
        for mount in text.split(|byte| *byte == b'\n').filter_map(mount) {
            // What was mounted later hides what was at the same place.
            let depth = |mount: &Mount| mount.at.as_os_str().len();
            if whole.starts_with(&mount.at)
                && mounts.under.as_ref().is_none_or(|under| depth(under) <= depth(&mount))
            {
                mounts.under = Some(mount.clone());
            }
            if mount.at.starts_with(whole) {
                within.push(mount);
            }
        }
        let device = mounts.under.as_ref().map(|under| under.device.clone());
        within
            .retain(|mount| !one_file_system || device.as_ref().is_none_or(|device| *device == mount.device));
        within.iter_mut().chain(&mut mounts.under).for_each(|mount| mount.mark = Mark::of(&mount.at));
        mounts.within.extend(within);
        mounts
    }
}

/// One line (proc_pid_mountinfo(5)).
fn mount(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.splitn(6, |byte| *byte == b' ').collect();
    let [number, _parent, device, _top, at, _] = words[..] else { return None };
    let at = PathBuf::from(OsString::from_vec(unescaped(at)));
    Some(Mount { number: number.to_vec(), device: device.to_vec(), at, mark: None })
}

fn changed(path: &Path, what: &str) -> Result<()> {
    let what = format!("{path:?} {what}: nothing is deleted");
    Err(Error::new(ErrorKind::Changed, what).advise("mount it again, then start this again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                         30 22 8:1 /photos TOP rw - ext4 /dev/sda1 rw\n\
                         31 30 8:1 /pool/a TOP/a\\040b rw - ext4 /dev/sda1 rw\n";

    /// What is mounted at a source or in it has to stay: the same file system elsewhere is no other device, and tells nobody that a mount of it is gone.
    #[test]
    fn mounts_of_one_file_system_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(place.path()).unwrap();
        let text = |text: &str| text.replace("TOP", root.to_str().unwrap()).into_bytes();
        let check = |text_then: &str, one_file_system| {
            let mut grounds = Grounds::of(one_file_system, PathBuf::new());
            grounds.check_mounts(&text(FIRST), &root).unwrap();
            grounds.check_mounts(&text(text_then), &root).map_err(|error| {
                assert_eq!(error.kind(), ErrorKind::Changed);
                error.to_string()
            })
        };
        let lines: Vec<&str> = FIRST.lines().collect();
        check(FIRST, false).unwrap();
        // What is below is gone, or another one is there.
        let below = lines[..2].join("\n");
        assert!(check(&below, false).unwrap_err().contains("a b\" was unmounted"));
        assert!(check(&FIRST.replace("31 30", "32 30"), false).is_err());
        check(&FIRST.replace("/pool/a", "/pool/renamed"), false).unwrap();
        // Another file system is not looked into with `-x`; a mount of the same one is.
        assert!(check(&below, true).is_err());
        let mut apart = Grounds::of(true, PathBuf::new());
        apart.check_mounts(&text(&FIRST.replace("31 30 8:1", "31 30 8:2")), &root).unwrap();
        apart.check_mounts(&text(&below), &root).unwrap();
        // The source itself is.
        for one_file_system in [false, true] {
            assert!(check(&[lines[0], lines[2]].join("\n"), one_file_system).is_err());
            assert!(
                check(&format!("{FIRST}33 30 8:1 /x TOP rw - ext4 /dev/sda1 rw\n"), one_file_system).is_err()
            );
        }
        // Elsewhere anything may come and go; what comes here counts from then on.
        check(&format!("{FIRST}34 22 0:9 / /elsewhere rw - tmpfs x rw\n"), false).unwrap();
        let mut grounds = Grounds::of(false, PathBuf::new());
        let more = format!("{FIRST}35 30 0:9 / TOP/more rw - tmpfs x rw\nnot a line\n");
        for (now, is_fine) in [(FIRST, true), (&more, true), (FIRST, false)] {
            assert_eq!(grounds.check_mounts(&text(now), &root).is_ok(), is_fine);
        }
        assert!(grounds.check_mounts(b"", &root.join("gone")).is_ok());
    }
}
