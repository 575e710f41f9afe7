//! Directories of which a disk refused some.
//!
//! A file system without a journal tells so who asks for the directory (fsync(2)), tells it once, and goes on to read from memory what the disk never had. So what was told is written down at
//! the directory, in an extended attribute that counts as long as the file system stays mounted: what is read there after that is what the disk has. Ext4 itself keeps such errors in its superblock,
//! for all ([`ext4`]). Others keep their directories in a journal or a log, which they stop if the disk refuses it: there is nothing to ask for.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use dray_core::Error;
use rustix::fs::{Mode, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::directory::{Directory, stat_fd_for};
use super::ext4;
use super::place::{Identity, identity_of};
use super::read_only::is_read_only;
use super::settings::Settings;
use super::unsynced::Unsynced;
use crate::local::boot;
use crate::local::file_systems::{EXT, LOGGING, kind_of};

/// Says that the disk refused some of a directory, and when that counts ([`instance`]). Its name begins as those of all attributes that are never copied.
const MARK: &str = "user.dray.unfinished.refused";
/// Directories above the destination that are asked.
const ABOVE_MAX: usize = 2048;

/// Its major and minor number.
pub(super) type Device = (u32, u32);

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

    /// Writes down at all that were asked for that a disk refused something on one of these file systems: a directory whose own inode it was is not told of, and may be moved, or come upon by another
    /// way, before the next run.
    pub(super) fn mark_all(&self, failing: &[Device]) {
        let asked = self
            .asked
            .iter()
            .filter(|(_, doubt)| doubt.device.is_some_and(|device| failing.contains(&device)));
        for (path, _) in asked.filter(|(path, _)| path[..] != b".."[..]) {
            if let Ok(directory) = self.base.below(path)
                && self.settings.tells_of_directories(&directory)
            {
                self.settings.mark(&directory);
            }
        }
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
        let refusal = |directory: Directory| self.settings.ask_directory(&directory);
        // Through a mount that is read-only others may be written to.
        let refusal = self.settings.above(self.base).filter_map(refusal).find(|error| is_refusal(*error));
        let above = Doubt { device: device_of(self.base), own: refusal, any: refusal };
        if refusal.is_some() {
            self.asked.insert(b"..".to_vec(), above);
        }
        self.ask(&[], above)
    }

    /// Why what lies below a directory may not be found on the disk.
    fn below(&self, above: Doubt, device: Option<Device>, own: Option<Errno>) -> Option<Errno> {
        // What is mounted there is on another disk.
        own.or(above.any.filter(|_| device.is_none() || device == above.device))
    }

    fn ask(&mut self, path: &[u8], above: Doubt) -> Doubt {
        if let Some(known) = self.asked.get(path) {
            return *known;
        }
        let directory = self.base.below(path).ok();
        let own = directory.as_ref().and_then(|directory| self.settings.ask_directory(directory));
        let device = directory.as_ref().and_then(device_of);
        let doubt = Doubt { device, own, any: self.below(above, device, own) };
        self.asked.insert(path.to_vec(), doubt);
        doubt
    }
}

impl Settings {
    /// Fails where what comes is to be on its disk, and that refused some of the file system of `directory` before, as is written down of it until it is checked; and where sources are to go and it refused
    /// some of the directory, as long as its file system stays mounted: names may be read there that are in memory alone.
    pub(super) fn require_on_disk(&self, directory: &Directory) -> dray_core::Result<()> {
        if !self.is_durable() || !self.tells_of_directories(directory) {
            return Ok(());
        }
        let removes = self.removes_sources();
        let error = match self.had_errors(directory) || (removes && is_marked(directory)) {
            true => Some(Errno::IO),
            false if removes => self.ask_directory(directory).filter(|error| is_refusal(*error)),
            false => None,
        };
        match error {
            None => Ok(()),
            Some(error) => Err(Error::file("find all of the directory on its disk", error.into())
                .or_advise("unmount the file system there and check it (fsck), then run it again")),
        }
    }

    /// The same of a directory that the user named, and of those that lead to it.
    pub(super) fn require_on_disk_from_above(&self, directory: &Directory) -> dray_core::Result<()> {
        self.require_on_disk(directory)?;
        if !self.removes_sources() || !self.tells_of_directories(directory) {
            return Ok(());
        }
        self.above(directory).try_for_each(|directory| self.require_on_disk(&directory))
    }

    /// The directories above one on its file system; those up to the one that the login is confined to, if it is: to ask takes what is told once from others, and changes what is written down.
    fn above(&self, directory: &Directory) -> impl Iterator<Item = Directory> {
        let way: Box<dyn Iterator<Item = (Directory, Identity)>> = match self.confined {
            None => Box::new(climb(directory).take(ABOVE_MAX)),
            Some(top) => Box::new(way_up_to(directory, top).into_iter()),
        };
        let device = device_of(directory);
        way.take_while(move |(_, it)| device == Some((it.0, it.1))).map(|(above, _)| above)
    }

    /// Why some of `directory` is not on the disk, by what is told now, which is written down.
    fn ask_directory(&self, directory: &Directory) -> Option<Errno> {
        // There nothing is written any more, and nobody is told of what was not.
        if is_read_only(directory) {
            return Some(Errno::ROFS);
        }
        if !self.tells_of_directories(directory) {
            return None;
        }
        let refusal = rustix::fs::fsync(directory).err().filter(|error| is_refusal(*error));
        if refusal.is_some() {
            self.mark(directory);
        }
        refusal
    }

    /// True if ext4 has errors written down of the file system of `directory`; they stand until it is checked. Found out once, when the run comes to it.
    fn had_errors(&self, directory: &Directory) -> bool {
        device_of(directory).is_some_and(|device| {
            self.devices_with_errors.get(device, || ext4::has_errors(device, [directory]) == Some(true))
        })
    }

    /// The same now, of which the run, which came where there were none, or another was not told; `changed` is a directory in which it could write.
    pub(super) fn has_errors_now(&self, directory: &Directory, changed: Option<&Directory>) -> bool {
        let Some(device) = device_of(directory).filter(|_| self.tells_of_directories(directory)) else {
            return false;
        };
        let changed = changed.filter(|changed| device_of(changed) == Some(device));
        ext4::has_errors(device, changed.into_iter().chain([directory])) == Some(true)
    }

    /// Writes down that the disk refused some of `directory`, at it or, where that is not allowed, at the next one above; best effort.
    fn mark(&self, directory: &Directory) {
        let _ = write_down(directory) || self.above(directory).any(|above| write_down(&above));
    }

    /// The same, and as near to the top of its file system as that is allowed: what another run brought to it may be what was refused, and nobody tells that run.
    pub(super) fn mark_with_top(&self, directory: &Directory) {
        self.mark(directory);
        let above: Vec<Directory> = self.above(directory).collect();
        let _ = above.iter().rev().any(write_down);
    }

    /// True if the file system tells who asks for a directory that the disk refused some of it, and nobody else.
    pub(super) fn tells_of_directories(&self, directory: &Directory) -> bool {
        device_of(directory).is_some_and(|device| self.tells_of(device, directory))
    }

    /// The same of a directory on this device.
    pub(super) fn tells_of(&self, device: Device, directory: &Directory) -> bool {
        self.telling_devices.get(device, || match kind_of(directory) {
            Ok(EXT) => !ext4::has_journal(device),
            Ok(kind) => !LOGGING.contains(&kind),
            Err(_) => false,
        })
    }
}

/// Writes down that the disk refused some of a file, which is told once; best effort. Nobody writes that again: it counts as long as there is the file.
pub(super) fn mark_file(file: BorrowedFd<'_>) {
    let _ = rustix::fs::fsetxattr(file, MARK, b"file", XattrFlags::empty());
}

/// True if that was written down.
pub(super) fn is_marked_file(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fgetxattr(file, MARK, &mut [0; 128][..]).is_ok()
}

fn write_down(directory: &Directory) -> bool {
    rustix::fs::fsetxattr(directory, MARK, instance(directory).as_bytes(), XattrFlags::empty()).is_ok()
}

/// True if that was written down, and the file system was not mounted anew since; else it is forgotten.
fn is_marked(directory: &Directory) -> bool {
    let mut value = [0; 128];
    let Ok(len) = rustix::fs::fgetxattr(directory, MARK, &mut value[..]) else { return false };
    let counts = counts(value.get(..len).unwrap_or_default(), instance(directory).as_bytes());
    if !counts {
        let _ = rustix::fs::fremovexattr(directory, MARK);
    }
    counts
}

/// True if what was written down, of [`instance`], counts now. What could not be told, at one of the two times, was the same.
fn counts(written: &[u8], now: &[u8]) -> bool {
    let parts = |text: &[u8]| text.split(|byte| *byte == b'.').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (written, now) = (parts(written), parts(now));
    let is_same = |(written, now): (&Vec<u8>, &Vec<u8>)| written == now || written == b"0" || now == b"0";
    written.len() == now.len() && written[0] == now[0] && written.iter().zip(&now).skip(1).all(is_same)
}

/// The directory, and what no other time has in which its file system is mounted: the boot, and a number that the kernel counts up. Ext4's folder in sysfs is made with each, and is the same from
/// wherever the file system is seen; where nobody sees it, it is the whole boot. Of other file systems it is the mount.
fn instance(directory: &Directory) -> String {
    let boot = u128::from_be_bytes(boot::current());
    let facts = stat_fd_for(directory.as_fd(), StatxFlags::INO | StatxFlags::MNT_ID).ok();
    let (inode, mount) = facts.map_or((0, 0), |found| (found.stx_ino, found.stx_mnt_id));
    let number = match kind_of(directory) {
        Ok(EXT) => device_of(directory).map_or(0, ext4::mount_number),
        _ => mount,
    };
    format!("{boot:032x}.{number}.{inode}")
}

/// The directories above one, as far as they may be opened, and which they are.
fn climb(directory: &Directory) -> impl Iterator<Item = (Directory, Identity)> {
    let facts = |directory: &Directory| Some(identity_of(&directory.stat_self().ok()?));
    let next = move |directory: &Directory| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above: Directory = rustix::fs::openat(directory, "..", flags, Mode::empty()).ok()?.into();
        let identity = facts(&above)?;
        // The top leads to itself.
        (facts(directory)? != identity).then_some((above, identity))
    };
    let mut here = directory.duplicate().ok();
    std::iter::from_fn(move || {
        let (above, identity) = next(here.as_ref()?)?;
        here = above.duplicate().ok();
        Some((above, identity))
    })
}

/// The directories above one up to the one of this identity; none if that is not above it.
fn way_up_to(directory: &Directory, top: Identity) -> Vec<(Directory, Identity)> {
    if directory.stat_self().is_ok_and(|found| identity_of(&found) == top) {
        return Vec::new();
    }
    let mut way = Vec::new();
    for (above, identity) in climb(directory).take(ABOVE_MAX) {
        way.push((above, identity));
        if identity == top {
            return way;
        }
    }
    Vec::new()
}

pub(super) fn device_of(directory: &Directory) -> Option<Device> {
    directory.stat_self().ok().map(|found| (found.stx_dev_major, found.stx_dev_minor))
}

/// True of what fsync(2) says where the disk did not take something; what else it says is of the call.
pub(super) fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::IO | Errno::NOSPC | Errno::DQUOT)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dray_core::tree::Name;
    use rustix::fs::{getxattr, setxattr};

    use super::super::settings::WriteOptions;
    use super::super::sync::SyncOptions;
    use super::*;
    use crate::local::file_systems::{KIND, XFS};

    fn directory(path: &Path) -> Directory {
        std::os::fd::OwnedFd::from(std::fs::File::open(path).unwrap()).into()
    }

    /// ADR 38: what was written down of a directory counts for what moves below it, as long as the file system stays mounted, and where there is no journal; not for a copy of the directory.
    #[test]
    fn what_was_written_down_ends_with_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let path = |below: &str| dir.path().join(below);
        std::fs::create_dir_all(path("a/b")).unwrap();
        std::fs::create_dir_all(path("x")).unwrap();
        // FAT: no journal, whatever it is.
        KIND.set(Some(0x4d44));
        Settings::new(WriteOptions::default()).mark(&directory(&path("a")));
        let mut value = [0; 128];
        let Ok(len) = getxattr(path("a"), MARK, &mut value[..]) else {
            KIND.set(None);
            return dray_testkit::say_skip("the file system keeps no attributes");
        };
        let mut moving = Settings::new(WriteOptions::default());
        moving.changes.sync = Some(SyncOptions { removes_sources: true, ..SyncOptions::default() });
        let is_let =
            |settings: &Settings, below: &str| settings.require_on_disk(&directory(&path(below))).is_ok();
        assert!(
            !is_let(&moving, "a") && !is_let(&moving, "a") && is_let(&moving, "a/b") && is_let(&moving, "x")
        );
        assert!(moving.require_on_disk_from_above(&directory(&path("a/b"))).is_err());
        assert!(is_let(&Settings::new(WriteOptions::default()), "a"), "no source is to go");
        // A journal says the same of all at once.
        KIND.set(Some(XFS));
        let mut journaled = Settings::new(WriteOptions::default());
        journaled.changes.sync = Some(SyncOptions { removes_sources: true, ..SyncOptions::default() });
        assert!(is_let(&journaled, "a"));
        KIND.set(Some(0x4d44));
        // A copy of the directory, and another mount, or boot.
        setxattr(path("x"), MARK, &value[..len], XattrFlags::empty()).unwrap();
        assert!(is_let(&moving, "x"));
        setxattr(path("a"), MARK, b"0.0.0", XattrFlags::empty()).unwrap();
        assert!(is_let(&moving, "a"));
        assert!(getxattr(path("a"), MARK, &mut value[..]).is_err(), "it is forgotten");
        KIND.set(None);
    }

    /// ADR 38: without a journal no file that is there is believed where its source is to go.
    #[test]
    fn what_is_there_is_unsure_without_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"f").unwrap();
        let name = Name::new(b"f").unwrap();
        // FAT and XFS.
        for (kind, is_unsure) in [(0x4d44, true), (XFS, false)] {
            KIND.set(Some(kind));
            let mut settings = Settings::new(WriteOptions::default());
            settings.changes.sync = Some(SyncOptions { removes_sources: true, ..SyncOptions::default() });
            assert_eq!(settings.is_unsure(&directory(dir.path()), &name), is_unsure, "{kind:x}");
        }
        KIND.set(None);
    }

    /// ADR 38: what could not be told of the mount, when it was written down or now, is taken for the same: only what is known to be another one ends what was written.
    #[test]
    fn what_is_not_known_counts() {
        for (written, now, is_counted) in [
            ("b.7.2", "b.7.2", true),
            ("b.7.2", "b.0.2", true),
            ("b.0.2", "b.7.2", true),
            ("b.7.2", "b.7.0", true),
            ("b.7.2", "b.8.2", false),
            ("b.7.2", "b.7.3", false),
            ("c.7.2", "b.7.2", false),
            ("c.0.2", "b.0.2", false),
            ("", "b.7.2", false),
            ("b", "b.7.2", false),
            ("b.7.2.1", "b.7.2", false),
        ] {
            assert_eq!(counts(written.as_bytes(), now.as_bytes()), is_counted, "{written} {now}");
        }
    }

    /// ADR 38: what lies below a directory of which the disk refused some is on no disk, whatever that says of the others; what is mounted there is.
    #[test]
    fn doubt_is_inherited() {
        let dir = tempfile::tempdir().unwrap();
        let base = directory(dir.path());
        let settings = Settings::new(WriteOptions::default());
        let mut doubts = Doubts::new(&settings, &base);
        let (here, there) = (Some((1, 2)), Some((1, 3)));
        let known = |device, own| Doubt { device, own, any: own };
        doubts.asked.insert(b"".to_vec(), known(here, None));
        doubts.asked.insert(b"a".to_vec(), known(here, Some(Errno::IO)));
        for (path, above, device) in
            [("a/b", "a", here), ("a/b/c", "a/b", here), ("a/m", "a", there), ("x", "", here)]
        {
            let above = doubts.asked[above.as_bytes()];
            let doubt = Doubt { device, own: None, any: doubts.below(above, device, None) };
            doubts.asked.insert(path.as_bytes().to_vec(), doubt);
        }
        let noted = [
            ("a/b/c/f", false),
            ("a/f", false),
            ("a/b", true),
            ("x/f", false),
            ("x", true),
            ("f", false),
            ("a/m/f", false),
        ];
        let doubted =
            noted.map(|(path, is_directory)| doubts.of(&Unsynced::at(path, is_directory)).is_some());
        assert_eq!(doubted, [true, true, true, false, false, false, false]);
        assert_eq!(doubts.refused().collect::<Vec<_>>(), [b"a"]);
    }
}
