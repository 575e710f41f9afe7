//! Who may load the machine: a lock file that all labs on it know, whatever program they belong to. And whether labs run here
//! at all.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::FlockOperation;

use crate::awake::Awake;
use crate::lab::Lab;

/// Held while something runs that others could disturb, or that could disturb others.
#[derive(Debug)]
pub struct Turn {
    // Let go before the lock is.
    _awake: Option<Awake>,
    _lock: Option<File>,
}

/// Set by whoever holds the turn for the programs that it starts.
const HELD: &str = "DRAY_TEST_TURN";

impl Turn {
    /// Waits for the turn: `alone` for what measures time or memory, shared for everything else. Alone, no idle processor is
    /// halted meanwhile, where the kernel can do without. With `DRAY_TEST_TURN` set it is held
    /// by whoever started this program, `cargo xtask tests`: waiting is then no part of the time that a test may take.
    ///
    /// # Errors
    /// If `dray-e2e.lock` in the directory for temporary files cannot be opened or locked, or what the kernel refuses; or if `alone` is asked for by a test that was
    /// started beside others (`DRAY_TEST_BESIDE`, set by `cargo xtask tests`): it would stand in their way for nothing.
    pub fn take(alone: bool) -> io::Result<Turn> {
        if alone && std::env::var_os("DRAY_TEST_BESIDE").is_some() {
            return Err(io::Error::other("a test that is alone stands in xtask/src/suite/alone.rs"));
        }
        if std::env::var_os(HELD).is_some() {
            return Turn::have(None, alone);
        }
        let path = std::env::temp_dir().join("dray-e2e.lock");
        let lock = File::options().create(true).append(true).open(&path)?;
        let operation = if alone { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        rustix::fs::flock(&lock, operation)?;
        Turn::have(Some(lock), alone)
    }

    fn have(lock: Option<File>, alone: bool) -> io::Result<Turn> {
        let awake = if alone { Awake::keep()? } else { None };
        Ok(Turn { _awake: awake, _lock: lock })
    }
}

/// What [`crate::require!`] asks: says aloud that `test` is skipped if labs cannot run here.
///
/// # Panics
/// Instead of that with `LAB_REQUIRE=1`.
#[allow(clippy::panic, reason = "the report of a test")]
pub fn can_run(test: &str) -> bool {
    let Err(reason) = Lab::available() else { return true };
    let is_required = std::env::var("LAB_REQUIRE").is_ok_and(|value| value == "1");
    assert!(!is_required, "{test} cannot run, and LAB_REQUIRE=1: {reason}");
    say_skip(test, &reason);
    false
}

/// Says that `test` does not run, and why: past the test harness, which keeps what a test that passes prints with `eprintln!` to itself.
pub fn say_skip(test: &str, reason: &str) {
    // In one piece, on a line of its own: others write there, too. Nowhere is left to report that standard error is closed.
    let _ = io::stderr().write_all(format!("\nSKIP {test}: {reason}\n").as_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What libtest captures of a test that passes nobody sees.
    #[test]
    fn a_skip_is_heard_though_the_test_passes() {
        const AGAIN: &str = "DRAY_TEST_SKIPS";
        if std::env::var_os(AGAIN).is_some() {
            return say_skip("a", "a reason");
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "turn::tests::a_skip_is_heard_though_the_test_passes"]).env(AGAIN, "1");
        let output = again.output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(out.contains("1 passed"), "{out}");
        assert!(err.lines().any(|line| line.starts_with("SKIP ") && line.ends_with(": a reason")), "{err}");
    }
}
