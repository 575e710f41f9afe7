//! `cargo xtask bench`: the measurements, built for speed. What it understands it says itself.

use std::process::ExitCode;

/// Runs the bench with `arguments`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    super::run_release("dray-bench", "dray-bench", arguments)
}
