//! Who may load the machine: a lock file that all labs on it know, whatever program they belong to. And whether labs run here
//! at all.

use std::fs::File;
use std::io;

use rustix::fs::FlockOperation;

use crate::lab::Lab;

/// Held while something runs that others could disturb, or that could disturb others.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for the turn: `alone` for what measures time or memory, shared for everything else.
    ///
    /// # Errors
    /// If `dray-e2e.lock` in the directory for temporary files cannot be opened or locked; or if `alone` is asked for by a test that was
    /// started beside others (`DRAY_TEST_BESIDE`, set by `cargo xtask tests`): it would stand in their way for nothing.
    pub fn take(alone: bool) -> io::Result<Turn> {
        if alone && std::env::var_os("DRAY_TEST_BESIDE").is_some() {
            return Err(io::Error::other("a test that is alone stands in xtask/src/suite/alone.rs"));
        }
        let path = std::env::temp_dir().join("dray-e2e.lock");
        let lock = File::options().create(true).append(true).open(&path)?;
        let operation = if alone { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        rustix::fs::flock(&lock, operation)?;
        Ok(Turn { _lock: lock })
    }
}

/// What [`crate::require!`] asks: says aloud that `test` is skipped if labs cannot run here.
///
/// # Panics
/// Instead of that with `LAB_REQUIRE=1`.
#[allow(clippy::panic, clippy::print_stderr, reason = "the report of a test")]
pub fn can_run(test: &str) -> bool {
    let Err(reason) = Lab::available() else { return true };
    let is_required = std::env::var("LAB_REQUIRE").is_ok_and(|value| value == "1");
    assert!(!is_required, "{test} cannot run, and LAB_REQUIRE=1: {reason}");
    eprintln!("SKIP (lab) {test}: {reason}");
    false
}

/// First line of a test that needs a lab: where labs cannot run, the test prints SKIP and ends; with `LAB_REQUIRE=1` it fails.
#[macro_export]
macro_rules! require {
    () => {
        if !$crate::can_run(std::thread::current().name().unwrap_or("?")) {
            return;
        }
    };
}
