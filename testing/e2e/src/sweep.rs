//! Removal of what a lab leaves behind, after its test or after a test process that was killed.
//!
//! Everything a lab makes outside its own process carries `dray-e2e-<pid of the test>-` in its name, so that what
//! belongs to a dead process can be told from what is in use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Beginning of every name.
pub const PREFIX: &str = "dray-e2e-";

/// Names of this process begin with it.
pub fn own_prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// Directory of namespace names kept by `ip netns`.
const NETNS_DIR: &str = "/run/netns";

/// Removes namespaces and directories of test processes that no longer run.
pub fn remove_stale() {
    for name in names(Path::new(NETNS_DIR)).into_iter().filter(|name| is_stale(name)) {
        remove_namespace(&name);
    }
    let temp = std::env::temp_dir();
    for name in names(&temp).into_iter().filter(|name| is_stale(name)) {
        remove_directory(&temp.join(name));
    }
}

/// Removes every namespace whose name begins with `prefix`.
pub fn remove_namespaces(prefix: &str) {
    for name in names(Path::new(NETNS_DIR)).into_iter().filter(|name| name.starts_with(prefix)) {
        remove_namespace(&name);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn is_stale(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    // Older tests put this word in front of it.
    let rest = rest.strip_prefix("victim-").unwrap_or(rest);
    let pid = rest.split('-').next().and_then(|part| part.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// Ends every process inside the namespace and removes it.
pub fn remove_namespace(name: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let inside = processes(name);
        if inside.is_empty() || Instant::now() > deadline {
            break;
        }
        for pid in inside {
            signal(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}

/// Processes whose network namespace is the one called `name`.
pub fn processes(name: &str) -> Vec<u32> {
    let Ok(namespace) = fs::metadata(Path::new(NETNS_DIR).join(name)) else { return Vec::new() };
    names(Path::new("/proc"))
        .into_iter()
        .filter_map(|pid| pid.parse::<u32>().ok())
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|own| (own.dev(), own.ino()) == (namespace.dev(), namespace.ino()))
        })
        .collect()
}

/// Sends `signal` to one process; a process that is gone already is fine.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A file that the kernel has made a disk of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopDevice {
    /// Its name in `/dev`.
    pub name: String,
    /// The file, by the name that it has now: `/` once the file system that it is in is not mounted any more.
    pub file: PathBuf,
    /// Another one for each time that the device gets a file, or loses it.
    pub sequence: String,
}

/// The loop devices that have a file.
pub fn loop_devices() -> Vec<LoopDevice> {
    let devices = names(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop"));
    let look = |name: String| {
        let folder = Path::new("/sys/block").join(&name);
        let read = |what: &str| Some(fs::read_to_string(folder.join(what)).ok()?.trim_end().to_owned());
        // Without a file there is no such name in the folder.
        let (file, sequence) = (read("loop/backing_file")?.into(), read("diskseq").unwrap_or_default());
        Some(LoopDevice { name, file, sequence })
    };
    devices.filter_map(look).collect()
}

/// Takes away loop devices on files below `dir`, unmounts what is mounted there and removes it.
pub fn remove_directory(dir: &Path) {
    // Before anything is unmounted: the file has no name after that. What is mounted of a device keeps it until it is not.
    for device in loop_devices().into_iter().filter(|device| device.file.starts_with(dir)) {
        // Somebody else may have taken it away, and another one have got its number.
        if !loop_devices().contains(&device) {
            continue;
        }
        let device = Path::new("/dev").join(device.name);
        let _ = Command::new("losetup").arg("-d").arg(device).stderr(Stdio::null()).status();
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut below: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from)
        .filter(|mount| mount.starts_with(dir))
        .collect();
    below.reverse();
    for mount in below {
        let _ = Command::new("umount").arg("--lazy").arg(mount).stderr(Stdio::null()).status();
    }
    let _ = fs::remove_dir_all(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "kill -9 of a test leaves nothing": names of processes that are gone are told from those of others.
    #[test]
    fn names_of_the_dead_are_stale() {
        // More than the kernel ever gives.
        let dead = 1 << 22 | 1;
        for name in
            [format!("{dead}-0"), format!("{dead}-0-h1"), format!("{dead}-victim"), format!("victim-{dead}")]
        {
            assert!(is_stale(&format!("{PREFIX}{name}")), "{name}");
        }
        let own = own_prefix();
        for name in [
            own.clone() + "0",
            own + "victim",
            format!("{PREFIX}victim"),
            format!("other-{dead}"),
            format!("{PREFIX}logs-{dead}"),
        ] {
            assert!(!is_stale(&name), "{name}");
        }
    }
}
