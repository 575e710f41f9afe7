//! The machine-wide lock of what needs a network lab (`dray_lab::Turn`), held for the tests: how long one waits for it, a bench or another
//! run of the tests, is no part of the time that the test may take.

use std::fs::File;
use std::path::Path;

use super::pool::Company;
use super::{LAB_PACKAGES, Test};
use crate::say;

/// As in `testing/lab/src/turn.rs`.
const NAME: &str = "dray-e2e.lock";
/// Tells a test that its turn is held.
pub(super) const HELD: &str = "DRAY_TEST_TURN";

/// Waits for the turn of `test`, if it needs one, alone or beside others. `None` also where the file is not to be had: then the test looks for
/// itself.
pub(super) fn hold(test: &Test, company: Company) -> Option<File> {
    if !LAB_PACKAGES.contains(&test.program.package.as_str()) {
        return None;
    }
    let path = std::env::temp_dir().join(NAME);
    lock(&open(&path)?, &path, company != Company::None)
}

fn open(path: &Path) -> Option<File> {
    // Another user may have made it: reading is enough for a lock.
    File::open(path).or_else(|_| File::options().create(true).append(true).open(path)).ok()
}

fn lock(file: &File, path: &Path, is_beside: bool) -> Option<File> {
    let at_once = if is_beside { file.try_lock_shared() } else { file.try_lock() };
    if at_once.is_err() {
        // Nobody to tell is no reason not to wait.
        let _ = say(&format!("waiting: somebody else holds {}\n", path.display()));
        if is_beside { file.lock_shared() } else { file.lock() }.ok()?;
    }
    file.try_clone().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two names would be two locks.
    #[test]
    fn the_lock_is_that_of_the_lab() {
        let lab = include_str!("../../../testing/lab/src/turn.rs");
        assert!(lab.contains(&format!("join({NAME:?})")) && lab.contains(&format!("{HELD:?}")));
    }

    #[test]
    fn who_is_alone_keeps_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let [first, second] = [open(&path).unwrap(), open(&path).unwrap()];
        let beside = lock(&first, &path, true);
        assert!(beside.is_some() && second.try_lock().is_err() && second.try_lock_shared().is_ok());
        second.unlock().unwrap();
        first.unlock().unwrap();
        let alone = lock(&first, &path, false);
        assert!(alone.is_some() && second.try_lock_shared().is_err());
    }
}
