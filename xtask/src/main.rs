//! Automation of the repository, started as `cargo xtask …`, the same on a laptop and in CI.
//!
//! `tidy` checks the rules of the house that no compiler checks; `xtask/src/tidy/mod.rs` lists them. `sim` runs the simulator,
//! `agree` compares it with the network lab, `mutate` breaks the product on purpose and sees whether a test notices, `tests` runs
//! the tests of the workspace side by side (`docs/testing.md`), `bench` measures (`docs/performance.md`).

mod agree;
mod bench;
mod group;
mod mutate;
mod sim;
mod suite;
mod tidy;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy [--root DIR] [--package DIR]
       cargo xtask sim [--seeds N] [--from SEED] [--nodes N] [--swarm] [--trace]
       cargo xtask agree
       cargo xtask bench [ROW…] [--list] [--help]
       cargo xtask mutate [NAME… | --random N [--seed N]] [--list]
       cargo xtask tests [-p PACKAGE]… [--exclude PACKAGE]… [--jobs N] [--through COMMAND] [NAME…]

  sim             simulate transfers in virtual time; exit code 1 if a promise was broken
  agree           compare the simulator with the network lab; exit code 1 if they are more than 10 % apart
  bench           measure Drayman beside its rivals, as root
  mutate          break the product on purpose; exit code 1 if no test notices
  tests           build and run tests side by side, and tell the slowest; exit code 1 if one fails
  tidy            check the rules of the house; exit code 0 if all hold, 1 if not
  --root DIR      the repository to check instead of this one
  --package DIR   check only the imports of the package in DIR, as if it were the member of that name
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(message) => {
            // Nowhere is left to report that standard error is closed.
            let _ = writeln!(std::io::stderr(), "xtask: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut words = arguments.iter().map(String::as_str);
    if let Some(usage) = usage_asked_for(arguments) {
        return say(usage).map(|()| ExitCode::SUCCESS);
    }
    match words.next() {
        Some("tidy") => {}
        Some("bench") => return bench::run(&arguments[1..]),
        Some("sim") => return sim::run(&arguments[1..]),
        Some("agree") => return agree::run(&arguments[1..]),
        Some("mutate") => return mutate::run(&arguments[1..]),
        Some("tests") => return suite::run(&arguments[1..]),
        Some(other) => return Err(format!("no task is called {other:?}\n{USAGE}")),
        None => return Err(format!("no task given\n{USAGE}")),
    }
    let mut root = repository();
    let mut package = None;
    while let Some(flag) = words.next() {
        let slot = words.next().map(PathBuf::from);
        match (flag, slot) {
            ("--root", Some(folder)) => root = folder,
            ("--package", Some(folder)) => package = Some(folder),
            _ => return Err(format!("tidy does not understand {flag:?}\n{USAGE}")),
        }
    }
    let report = tidy::run(&root, package.as_deref())?;
    let mut text = String::new();
    for finding in &report.findings {
        text.push_str(&format!("{finding}\n"));
    }
    for note in &report.notes {
        text.push_str(&format!("tidy: note: {note}\n"));
    }
    text.push_str(&format!(
        "tidy: {} files, {} packages, {} findings\n",
        report.files,
        report.packages,
        report.findings.len()
    ));
    say(&text)?;
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What is to be printed, if it is the usage that somebody asked for. `bench` and `sim` say their own.
fn usage_asked_for(arguments: &[String]) -> Option<&'static str> {
    let is_help = |word: &String| matches!(word.as_str(), "--help" | "-h");
    let (task, more) = arguments.split_first()?;
    match task.as_str() {
        "help" | "--help" | "-h" => Some(USAGE),
        "mutate" if more.iter().any(is_help) => Some(mutate::USAGE),
        "tests" if more.iter().any(is_help) => Some(suite::USAGE),
        "tidy" | "agree" if more.iter().any(is_help) => Some(USAGE),
        _ => None,
    }
}

/// Runs a program of the workspace, built for speed, with `arguments`.
fn run_release(package: &str, program: &str, arguments: &[String]) -> Result<ExitCode, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(repository())
        .args(["run", "--locked", "--release", "--quiet", "-p", package, "--bin", program, "--"])
        .args(arguments)
        .status()
        .map_err(|error| format!("start cargo: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

fn say(text: &str) -> Result<(), String> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("write to standard output: {error}"))
}

/// Where cargo builds.
fn target_folder() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    repository().join(folder)
}

/// The repository whose sources cargo runs this program from: the folder above its package. Asked for at run time, as a target folder that two clones
/// share holds the program that was built in one of them.
fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().unwrap_or(&package).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asks how a task is called is told that, and nothing else.
    #[test]
    fn usage_is_told_where_it_is_asked_for() {
        let asked =
            |text: &str| usage_asked_for(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(asked("--help"), Some(USAGE));
        assert_eq!(asked("tidy --help"), Some(USAGE));
        assert_eq!(asked("mutate --random 2 -h"), Some(mutate::USAGE));
        assert_eq!(asked("tests --help"), Some(suite::USAGE));
        for told_elsewhere in ["sim --help", "bench --help", "mutate --list", "", "other --help"] {
            assert_eq!(asked(told_elsewhere), None, "{told_elsewhere}");
        }
    }
}
