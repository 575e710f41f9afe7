//! Directories of which a disk refused some.
//!
//! A file system without a journal tells so who asks for the directory (fsync(2)), tells it once, and goes on to read from memory what the disk never had. So what was told is written down at
//! the directory, in an extended attribute that counts as long as the file system stays mounted: what is read there after that is what the disk has. Others keep their directories in a journal or a
//! log, which they stop if the disk refuses it: there is nothing to ask for.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dray_core::Error;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, StatxFlags, XattrFlags, fstatvfs};
use rustix::io::Errno;

use super::directory::{Directory, stat_fd_for};
use super::settings::Settings;
use super::unsynced::Unsynced;
use crate::local::boot;
use crate::local::file_systems::{EXT, LOGGING, kind_of};

/// Says that the disk refused some of a directory, and when that counts ([`instance`]). Its name begins as those of all attributes that are never copied.
const MARK: &str = "user.dray.unfinished.refused";
/// Directories above the destination that are asked.
const ABOVE_MAX: usize = 64;

type Device = (u32, u32);

/// What was asked for on the way.
#[derive(Clone, Copy)]
struct Doubt {
    device: Option<Device>,
    /// Why some of it is not on the disk.
    own: Option<Errno>,
    /// The same of it or of one above it on its file system.
    any: Option<Errno>,
}

/// Directories of which a disk may have refused some, by their paths below the base of a copy.
pub(super) struct Doubts<'a> {
    settings: &'a Settings,
    base: &'a Directory,
    asked: HashMap<Vec<u8>, Doubt>,
}

impl<'a> Doubts<'a> {
    pub(super) fn new(settings: &'a Settings, base: &'a Directory) -> Doubts<'a> {
        Doubts { settings, base, asked: HashMap::new() }
    }

    /// Asks for all directories that lead to `it`, and for itself if it is one.
    pub(super) fn ask_of(&mut self, it: &Unsynced) {
        let ends = it.path.iter().enumerate().filter_map(|(at, byte)| (*byte == b'/').then_some(at));
        let ends = ends.chain(it.is_directory.then_some(it.path.len()));
        let mut doubt = self.ask_base();
        for end in ends {
            doubt = self.ask(&it.path[..end], doubt);
        }
    }

    /// Why `it` may not be found on the disk.
    pub(super) fn of(&self, it: &Unsynced) -> Option<Errno> {
        let way = if it.is_directory { &it.path[..] } else { it.place().0 };
        self.asked.get(way)?.any
    }

    /// Directories of which the disk refused some; `..` for those above the base.
    pub(super) fn refused(&self) -> impl Iterator<Item = &[u8]> {
        // Of a file system that turned read-only nobody knows.
        let is_refused = |doubt: &Doubt| doubt.own.is_some_and(is_refusal);
        self.asked.iter().filter(move |(_, doubt)| is_refused(doubt)).map(|(path, _)| &path[..])
    }

    /// Asks once more for those, and hears of nothing.
    pub(super) fn hear_out(&self) {
        for path in self.refused() {
            if let Ok(directory) = self.base.below(path) {
                let _ = rustix::fs::fsync(&directory);
            }
        }
    }

    fn ask_base(&mut self) -> Doubt {
        if let Some(known) = self.asked.get(&b""[..]) {
            return *known;
        }
        let refusal = above(self.base).find_map(|directory| self.settings.was_directory_refused(&directory));
        let above = Doubt { device: device_of(self.base), own: refusal, any: refusal };
        if refusal.is_some() {
            self.asked.insert(b"..".to_vec(), above);
        }
        self.ask(&[], above)
    }

    fn ask(&mut self, path: &[u8], above: Doubt) -> Doubt {
        if let Some(known) = self.asked.get(path) {
            return *known;
        }
        let directory = self.base.below(path).ok();
        let own = directory.as_ref().and_then(|directory| self.settings.was_directory_refused(directory));
        let device = directory.as_ref().and_then(device_of);
        // What is mounted there is on another disk.
        let from_above = above.any.filter(|_| device.is_none() || device == above.device);
        let doubt = Doubt { device, own, any: own.or(from_above) };
        self.asked.insert(path.to_vec(), doubt);
        doubt
    }
}

impl Settings {
    /// Fails where sources are to go and a disk refused some of `directory` before, as long as its file system stays mounted: names may be read there that are in memory alone.
    pub(super) fn require_on_disk(&self, directory: &Directory) -> dray_core::Result<()> {
        let refusal = || self.was_directory_refused(directory).filter(|error| is_refusal(*error));
        match if self.removes_sources() { refusal() } else { None } {
            None => Ok(()),
            Some(error) => Err(Error::file("find all of the directory on its disk", error.into())
                .or_advise("unmount the file system there and check it (fsck), then run it again")),
        }
    }

    /// The same of a directory that the user named, and of those that lead to it.
    pub(super) fn require_on_disk_from_above(&self, directory: &Directory) -> dray_core::Result<()> {
        if !self.removes_sources() || !self.tells_of_directories(directory) {
            return Ok(());
        }
        self.require_on_disk(directory)?;
        above(directory).try_for_each(|directory| self.require_on_disk(&directory))
    }

    /// Why some of `directory` is not on the disk.
    pub(super) fn was_directory_refused(&self, directory: &Directory) -> Option<Errno> {
        // There nothing is written any more, and nobody is told of what was not.
        if fstatvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
            return Some(Errno::ROFS);
        }
        if !self.tells_of_directories(directory) {
            return None;
        }
        if is_marked(directory) {
            return Some(Errno::IO);
        }
        let refusal = rustix::fs::fsync(directory).err().filter(|error| is_refusal(*error));
        if refusal.is_some() {
            mark(directory);
        }
        refusal
    }

    /// True if the file system tells who asks for a directory that the disk refused some of it, and nobody else.
    pub(super) fn tells_of_directories(&self, directory: &Directory) -> bool {
        let Some(device) = device_of(directory) else { return false };
        let mut known = self.telling_devices.borrow_mut();
        if let Some((_, tells)) = known.iter().find(|(seen, _)| *seen == device) {
            return *tells;
        }
        let tells = match kind_of(directory) {
            Ok(EXT) => !has_journal(device),
            Ok(kind) => !LOGGING.contains(&kind),
            Err(_) => false,
        };
        if known.len() >= 64 {
            known.clear();
        }
        known.push((device, tells));
        tells
    }
}

/// Writes down that the disk refused some of `directory`; best effort.
pub(super) fn mark(directory: &Directory) {
    let _ = rustix::fs::fsetxattr(directory, MARK, instance(directory).as_bytes(), XattrFlags::empty());
}

/// True if that was written down, and the file system was not mounted anew since; else it is forgotten.
fn is_marked(directory: &Directory) -> bool {
    let mut value = [0; 128];
    let Ok(len) = rustix::fs::fgetxattr(directory, MARK, &mut value[..]) else { return false };
    let counts = value.get(..len) == Some(instance(directory).as_bytes());
    if !counts {
        let _ = rustix::fs::fremovexattr(directory, MARK);
    }
    counts
}

/// What no other time has in which the file system of `directory` is mounted: the boot, and a number that the kernel counts up. Ext4's folder in sysfs is made with each, and is the same from wherever
/// the file system is seen; a mount may be one of several.
fn instance(directory: &Directory) -> String {
    let boot = u128::from_be_bytes(boot::current());
    let in_sysfs = device_of(directory).and_then(|device| std::fs::metadata(ext4_folder(device)?).ok());
    let number = match in_sysfs {
        Some(found) => found.ino(),
        None => stat_fd_for(directory.as_fd(), StatxFlags::MNT_ID).map_or(0, |found| found.stx_mnt_id),
    };
    format!("{boot:032x}.{number}")
}

/// Whether the ext2, ext3 or ext4 on this device has a journal; false where nothing tells.
fn has_journal(device: Device) -> bool {
    // The number of the thread that writes it.
    let told = || std::fs::read_to_string(Path::new(&ext4_folder(device)?).join("journal_task")).ok();
    told().is_some_and(|told| told.trim().parse::<u32>().is_ok())
}

/// What sysfs has of a file system of the ext4 driver.
fn ext4_folder((major, minor): Device) -> Option<String> {
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(format!("/sys/fs/ext4/{}", device.file_name()?.to_str()?))
}

/// The directories above one on its file system, as far as they may be opened.
fn above(directory: &Directory) -> impl Iterator<Item = Directory> {
    let facts = |directory: &Directory| {
        let found = directory.stat_self().ok()?;
        Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
    };
    let next = move |directory: &Directory| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above: Directory = rustix::fs::openat(directory, "..", flags, Mode::empty()).ok()?.into();
        let (here, there) = (facts(directory)?, facts(&above)?);
        // The top leads to itself.
        ((here.0, here.1) == (there.0, there.1) && here.2 != there.2).then_some(above)
    };
    let mut here = directory.duplicate().ok();
    std::iter::from_fn(move || {
        here = next(here.as_ref()?);
        here.as_ref()?.duplicate().ok()
    })
    .take(ABOVE_MAX)
}

fn device_of(directory: &Directory) -> Option<Device> {
    directory.stat_self().ok().map(|found| (found.stx_dev_major, found.stx_dev_minor))
}

/// True of what fsync(2) says where the disk did not take something; what else it says is of the call.
pub(super) fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::IO | Errno::NOSPC | Errno::DQUOT)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{getxattr, setxattr};

    use super::super::settings::WriteOptions;
    use super::super::sync::SyncOptions;
    use super::*;
    use crate::local::file_systems::KIND;

    fn directory(path: &Path) -> Directory {
        std::os::fd::OwnedFd::from(std::fs::File::open(path).unwrap()).into()
    }

    /// ADR 38: what was written down of a directory counts for all that lies below it, as long as the file system stays mounted, and where there is no journal.
    #[test]
    fn doubt_is_inherited_and_ends_with_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        std::fs::create_dir_all(dir.path().join("x")).unwrap();
        let base = directory(dir.path());
        mark(&directory(&dir.path().join("a")));
        let mut value = [0; 128];
        if getxattr(dir.path().join("a"), MARK, &mut value[..]).is_err() {
            return dray_testkit::say_skip("the file system keeps no attributes");
        }
        // FAT: no journal, whatever it is.
        KIND.set(Some(0x4d44));
        let settings = Settings::new(WriteOptions::default());
        let names =
            [("a/b/c/f", false), ("a/f", false), ("a/b", true), ("x/f", false), ("x", true), ("f", false)];
        let noted = names.map(|(path, is_directory)| Unsynced::at(path, is_directory));
        let mut doubts = Doubts::new(&settings, &base);
        noted.iter().for_each(|it| doubts.ask_of(it));
        let doubted = noted.each_ref().map(|it| doubts.of(it).is_some());
        assert_eq!(doubted, [true, true, true, false, false, false]);
        assert_eq!(doubts.refused().collect::<Vec<_>>(), [b"a"]);
        let mut moving = Settings::new(WriteOptions::default());
        moving.changes.sync = Some(SyncOptions { removes_sources: true, ..SyncOptions::default() });
        let below = directory(&dir.path().join("a/b"));
        assert!(moving.require_on_disk(&below).is_ok());
        assert!(moving.require_on_disk_from_above(&below).is_err());
        assert!(settings.require_on_disk_from_above(&below).is_ok(), "no source is to go");
        // A journal says the same of all at once.
        KIND.set(Some(0x5846_5342));
        let journaled = Settings::new(WriteOptions::default());
        assert_eq!(journaled.was_directory_refused(&directory(&dir.path().join("a"))), None);
        // Another mount, or boot.
        KIND.set(Some(0x4d44));
        setxattr(dir.path().join("a"), MARK, b"0.0", XattrFlags::empty()).unwrap();
        assert_eq!(settings.was_directory_refused(&directory(&dir.path().join("a"))), None);
        assert!(getxattr(dir.path().join("a"), MARK, &mut value[..]).is_err(), "it is forgotten");
        KIND.set(None);
    }
}
