//! Where tests between hosts keep their files: in memory, where there is room. They write and delete gigabytes and tens of thousands of files, which is
//! no part of what most of them prove, and took a disk more time than everything else.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::Test;

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "dray-tests.";
/// A run holds its lock.
const LOCK: &str = "lock";
/// So much has to be available, and so much more for each test that runs beside others: eight of them take some 2 GiB.
const ROOM_BYTES: u64 = 4 << 30;
const TEST_BYTES: u64 = 1 << 30;
/// The package whose tests go there.
const PACKAGE: &str = "dray-e2e";
/// Programs of it that do not, and why.
const ON_DISK: [(&str, &str); 7] = [
    ("cp", DISK),
    ("daemon_get", DISK),
    ("daemon_index", INDEX),
    ("power_cut", "what a disk image has lost depends on when its own file is written"),
    ("resume", DISK),
    ("sync_delete", DISK),
    ("trace", INDEX),
];
const INDEX: &str = "an index takes in nothing that lies in memory";
const DISK: &str =
    "some of each kind of transfer: memory reserves no room, writes nothing back and is synced at once";

/// The directory of a run in memory, which goes with it, and its lock; `None` where there is none.
#[derive(Debug)]
pub(super) struct Place(Option<(PathBuf, File)>);

impl Place {
    /// For `jobs` tests at a time; nowhere in memory if there is no room, or somebody said where else.
    pub(super) fn make(jobs: usize) -> Place {
        // What `DRAY_E2E_FULL` enlarges fills any memory.
        let is_elsewhere =
            ["TMPDIR", "DRAY_E2E_FULL"].into_iter().any(|name| std::env::var_os(name).is_some());
        let below = || Place::below(Path::new(MEMORY), ROOM_BYTES + jobs as u64 * TEST_BYTES);
        if is_elsewhere { Place(None) } else { below() }
    }

    /// Nowhere in memory.
    #[cfg(test)]
    pub(super) fn none() -> Place {
        Place(None)
    }

    /// A new one below `memory`, once what killed runs left is gone, if that has `room_bytes`.
    fn below(memory: &Path, room_bytes: u64) -> Place {
        remove_left(memory);
        Place(room(memory).filter(|room| *room >= room_bytes).and_then(|_| new_directory(memory)))
    }

    /// Where `test` is to keep its files; `None` if that is where it would anyway.
    pub(super) fn of(&self, test: &Test) -> Option<&Path> {
        let (directory, _) = self.0.as_ref()?;
        goes_to_memory(&test.program.package, &test.program.name).then_some(directory)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((directory, _)) = &self.0 {
            remove(directory);
        }
    }
}

/// A directory of this process, and its lock.
fn new_directory(memory: &Path) -> Option<(PathBuf, File)> {
    let directory = memory.join(format!("{PREFIX}{}", std::process::id()));
    if directory.exists() {
        return None;
    }
    // It has its name once it is held: another run may tidy up.
    let unnamed = memory.join(format!("new-{PREFIX}{}", std::process::id()));
    fs::create_dir(&unnamed).ok()?;
    // As /tmp: hosts have users of their own.
    fs::set_permissions(&unnamed, fs::Permissions::from_mode(0o1777)).ok()?;
    let lock = File::create(unnamed.join(LOCK)).ok()?;
    lock.lock().ok()?;
    fs::rename(&unnamed, &directory).ok()?;
    Some((directory, lock))
}

fn goes_to_memory(package: &str, program: &str) -> bool {
    package == PACKAGE && ON_DISK.iter().all(|(name, _)| *name != program)
}

/// Removes the directories of runs that are over.
fn remove_left(memory: &Path) {
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_held = || {
            let lock = File::open(entry.path().join(LOCK));
            lock.is_ok_and(|lock| lock.try_lock_shared().is_err())
        };
        if is_ours && !is_held() {
            remove(&entry.path());
        }
    }
}

/// Removes a directory, and what a killed test has mounted in it.
fn remove(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(directory)) {
        let _ = Command::new("umount").arg("--lazy").arg(place).stderr(Stdio::null()).status();
    }
    let _ = fs::remove_dir_all(directory);
}

/// Bytes that may be written below `memory`; `None` if programs and devices may not be there.
fn room(memory: &Path) -> Option<u64> {
    let found = statvfs(memory).ok()?;
    let forbids = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOSUID;
    if found.f_flag.intersects(forbids) {
        return None;
    }
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available_kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    // Of a group of processes that has a limit of its own.
    let number = |name: &str| {
        let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = number("memory.max").map(|max| max.saturating_sub(number("memory.current").unwrap_or(0)));
    Some(free.min(available_kib << 10).min(group.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_disk_stays_there() {
        assert!(goes_to_memory(PACKAGE, "sync") && goes_to_memory(PACKAGE, "chaos"));
        for (package, program) in [("dray-store", "dray_store"), (PACKAGE, "trace"), (PACKAGE, "power_cut")] {
            assert!(!goes_to_memory(package, program), "{program}");
        }
        assert!(ON_DISK.is_sorted_by_key(|(name, _)| name));
    }

    #[test]
    fn a_directory_needs_room_and_leaves_nothing() {
        let memory = tempfile::tempdir().unwrap();
        let path = memory.path();
        // That of a run that was killed, and of one that goes on.
        for name in ["1", "2"] {
            fs::create_dir(path.join(format!("{PREFIX}{name}"))).unwrap();
            fs::write(path.join(format!("{PREFIX}{name}/{LOCK}")), b"").unwrap();
        }
        let held = File::open(path.join(format!("{PREFIX}2/{LOCK}"))).unwrap();
        held.lock().unwrap();
        fs::create_dir(path.join("other")).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert!(Place::below(path, u64::MAX).0.is_none());
        let left = [format!("{PREFIX}2"), "other".to_owned()];
        assert_eq!(names(), left);
        if room(path).is_some() {
            let place = Place::below(path, 1);
            assert!(place.0.as_ref().unwrap().0.is_dir() && names().len() == 3);
            assert!(Place::below(path, 1).0.is_none(), "it is there, and held");
            drop(place);
            assert_eq!(names(), left);
        }
        assert!(Place::below(&path.join("none"), 1).0.is_none());
    }
}
