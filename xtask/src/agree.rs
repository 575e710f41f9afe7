//! `cargo xtask agree`: the same experiments in the simulator and over links of the network lab, as a table for `docs/testing.md`. Needs
//! what the network lab needs, and a machine that does nothing else for five to fifteen minutes.

use std::process::{Command, ExitCode};

/// Builds the command and runs the comparison.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(word) = arguments.first() {
        return Err(format!("agree does not understand {word:?}"));
    }
    let run = |words: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo).current_dir(super::repository()).args(words).status();
        status.map(|status| status.success()).map_err(|error| format!("start cargo: {error}"))
    };
    let is_right = run(&["build", "--locked", "--release", "--quiet", "-p", "dray"])?
        && run(&[
            "test",
            "--locked",
            "--quiet",
            "-p",
            "dray-e2e",
            "--test",
            "agree",
            "--",
            "--ignored",
            "--nocapture",
        ])?;
    Ok(ExitCode::from(u8::from(!is_right)))
}
