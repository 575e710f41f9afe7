//! `cargo xtask sim`: the simulator, built for speed. What it understands it says itself.

use std::process::{Command, ExitCode};

/// Runs the simulator with `arguments`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(super::repository())
        .args(["run", "--locked", "--release", "--quiet", "-p", "dray-testkit", "--bin", "dray-sim", "--"])
        .args(arguments)
        .status()
        .map_err(|error| format!("start cargo: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
