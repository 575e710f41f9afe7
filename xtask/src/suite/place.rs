//! Where tests between hosts keep their files: in memory, where there is room. They write and delete gigabytes and tens of thousands of files, which is
//! no part of what they prove, and took a disk more time than everything else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::Test;

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "dray-tests.";
/// So much has to be available; the tests take some 2 GiB of it.
const AVAILABLE_KIB_MIN: u64 = 12 << 20;
/// The package whose tests go there.
const PACKAGE: &str = "dray-e2e";
/// Programs of it that do not, and why.
const ON_DISK: [(&str, &str); 3] = [
    ("daemon_index", "an index takes in nothing that lies in memory"),
    ("power_cut", "what a disk image has lost depends on when its own file is written"),
    ("trace", "an index takes in nothing that lies in memory"),
];

/// The directory of this run, once one was asked for.
static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Where `test` is to keep its files; `None` if that is where it would anyway.
pub(super) fn directory(test: &Test) -> Option<&'static Path> {
    let program = &test.program;
    if program.package != PACKAGE || ON_DISK.iter().any(|(name, _)| *name == program.name) {
        return None;
    }
    // Whoever runs them may have said where.
    let find = || match std::env::var_os("TMPDIR") {
        Some(_) => None,
        None => make(Path::new(MEMORY), available_kib()),
    };
    DIRECTORY.get_or_init(find).as_deref()
}

/// The run is over.
pub(super) fn clear() {
    if let Some(Some(directory)) = DIRECTORY.get() {
        let _ = fs::remove_dir_all(directory);
    }
}

/// Makes one below `memory`, if there is room; and removes what killed runs left.
fn make(memory: &Path, available_kib: u64) -> Option<PathBuf> {
    if available_kib < AVAILABLE_KIB_MIN {
        return None;
    }
    for entry in fs::read_dir(memory).ok()?.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let directory = memory.join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir(&directory).ok()?;
    // As /tmp: hosts have users of their own.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).ok()?;
    Some(directory)
}

fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::programs::Program;
    use super::*;

    #[test]
    fn what_needs_a_disk_stays_there() {
        let test = |package: &str, program: &str| Test {
            program: Program {
                package: package.into(),
                name: program.into(),
                path: PathBuf::new(),
                folder: PathBuf::new(),
            },
            name: "a".into(),
        };
        for (package, program) in [("dray-store", "dray_store"), (PACKAGE, "trace"), (PACKAGE, "power_cut")] {
            assert_eq!(directory(&test(package, program)), None);
        }
    }

    #[test]
    fn a_directory_needs_room_and_leaves_nothing() {
        let memory = tempfile::tempdir().unwrap();
        // No process has that number.
        let stale = memory.path().join(format!("{PREFIX}{}", u32::MAX));
        fs::create_dir(&stale).unwrap();
        assert_eq!(make(memory.path(), AVAILABLE_KIB_MIN - 1), None);
        let made = make(memory.path(), AVAILABLE_KIB_MIN).unwrap();
        assert!(made.is_dir() && !stale.exists() && available_kib() > 0);
        assert_eq!(make(&memory.path().join("none"), AVAILABLE_KIB_MIN), None);
    }
}
