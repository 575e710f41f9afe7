//! `cargo xtask sim`: the simulator, built for speed. What it understands it says itself.

use std::process::ExitCode;

/// Runs the simulator with `arguments`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    super::run_release("dray-testkit", "dray-sim", arguments)
}
