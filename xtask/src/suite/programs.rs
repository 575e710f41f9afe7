//! The test programs: what cargo builds, and which tests are in each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::repository;

/// A program made of tests.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// Name of its target: the package's library or program, or one in `tests/`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Where cargo would start it: the folder of the package.
    pub(crate) folder: PathBuf,
}

/// What is in a program.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) names: Vec<String>,
    pub(super) ignored: usize,
}

/// Builds all test programs of the workspace: always all, so that every package has the same features each time and is built once.
pub(super) fn build() -> Result<Vec<Program>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(repository())
        .args(["build", "--locked", "--workspace", "--bins", "--tests"])
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built".into());
    }
    let mut programs = read(&String::from_utf8_lossy(&output.stdout))?;
    programs.sort_by(|left, right| (&left.package, &left.name).cmp(&(&right.package, &right.name)));
    Ok(programs)
}

/// The test programs that cargo tells of, a message a line.
pub(crate) fn read(messages: &str) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).map_err(|error| format!("a message of cargo: {error}"))?;
        programs.extend(program(&message));
    }
    Ok(programs)
}

/// The test program that a message of cargo tells of, if it does.
fn program(message: &Value) -> Option<Program> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Program {
        package: package_name(message["package_id"].as_str()?).to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        path: path.into(),
        folder: folder.to_owned(),
    })
}

/// The name in `path+file:///folder#name@version`, or in `path+file:///name#version`.
fn package_name(id: &str) -> &str {
    let (before, after) = id.rsplit_once('#').unwrap_or(("", id));
    match after.split_once('@') {
        Some((name, _version)) => name,
        None => before.rsplit('/').next().unwrap_or(before),
    }
}

impl Program {
    /// The tests in it.
    pub(super) fn tests(&self) -> Result<Found, String> {
        let ignored = self.list(&["--ignored"])?;
        let mut names = self.list(&[])?;
        names.retain(|name| !ignored.contains(name));
        Ok(Found { names: names.into_iter().collect(), ignored: ignored.len() })
    }

    fn list(&self, more: &[&str]) -> Result<BTreeSet<String>, String> {
        let output = Command::new(&self.path)
            .current_dir(&self.folder)
            .args(["--list", "--format", "terse"])
            .args(more)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("start {}: {error}", self.path.display()))?;
        if !output.status.success() {
            return Err(format!("{} does not list its tests", self.path.display()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_by_their_ids() {
        assert_eq!(package_name("path+file:///a/crates/core#dray-core@0.1.0"), "dray-core");
        assert_eq!(package_name("path+file:///a/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn programs_are_found_among_messages() {
        let mut message = serde_json::json!({
            "reason": "compiler-artifact", "package_id": "path+file:///a/xtask#0.1.0", "manifest_path": "/a/xtask/Cargo.toml",
            "target": {"name": "tidy"}, "profile": {"test": true}, "executable": "/t/tidy-1",
        });
        let found = program(&message).unwrap();
        assert_eq!((found.package.as_str(), found.name.as_str()), ("xtask", "tidy"));
        assert_eq!(found.folder, Path::new("/a/xtask"));
        message["profile"]["test"] = false.into();
        assert!(program(&message).is_none());
    }
}
