//! The workspace as its manifests describe it, and the rules about manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::sources::UNSAFE_FILE;
use super::{Finding, read};

/// The root manifest and every member.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) packages: Vec<Package>,
    /// Text of the root manifest, for the rule about comments.
    text: String,
    /// Key in `[workspace.dependencies]` -> name of the package.
    dependencies: BTreeMap<String, String>,
    /// `[workspace.lints]`.
    lints: toml::Table,
}

/// One member.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// Folder below the repository.
    pub(super) folder: PathBuf,
    pub(super) dependencies: Vec<Dependency>,
    takes_lints: bool,
    /// `[lints]` of its own.
    lints: toml::Table,
}

/// One dependency of a member.
#[derive(Debug)]
pub(super) struct Dependency {
    /// Key in the manifest.
    pub(super) key: String,
    /// Package it names, if the key is not the name.
    pub(super) renamed: Option<String>,
    /// True under `[dev-dependencies]`.
    pub(super) dev: bool,
    from_workspace: bool,
}

impl Workspace {
    pub(super) fn read(root: &Path) -> Result<Workspace, String> {
        let text = read(root, Path::new("Cargo.toml"))?;
        let manifest = parse(&text, "Cargo.toml")?;
        let section = manifest.get("workspace").and_then(toml::Value::as_table);
        let section = section.ok_or("Cargo.toml has no [workspace]")?;
        let list = |key: &str| -> Vec<String> {
            let values = section.get(key).and_then(toml::Value::as_array).into_iter().flatten();
            values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
        };
        let excluded = list("exclude");
        let mut folders = Vec::new();
        for member in list("members") {
            expand(root, &member, &mut folders)?;
        }
        folders.retain(|folder| !excluded.iter().any(|exclude| folder.starts_with(exclude)));
        folders.sort();
        let packages = folders.iter().map(|folder| Package::read(root, folder)).collect::<Result<_, _>>()?;
        let table = section.get("dependencies").and_then(toml::Value::as_table);
        let dependencies = table.into_iter().flatten().map(|(key, value)| {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            (key.clone(), renamed.unwrap_or(key).to_owned())
        });
        let lints = section.get("lints").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        Ok(Workspace { packages, dependencies: dependencies.collect(), lints, text })
    }

    /// Name of the package a dependency means.
    pub(super) fn target<'a>(&'a self, dependency: &'a Dependency) -> &'a str {
        let by_root = self.dependencies.get(&dependency.key);
        dependency.renamed.as_deref().or(by_root.map(String::as_str)).unwrap_or(&dependency.key)
    }

    /// True if `name` is a package of this repository.
    pub(super) fn is_ours(&self, name: &str) -> bool {
        name == "dray"
            || name.starts_with("dray-")
            || self.packages.iter().any(|package| package.name == name)
    }
}

impl Package {
    pub(super) fn read(root: &Path, folder: &Path) -> Result<Package, String> {
        let path = folder.join("Cargo.toml");
        let manifest = parse(&read(root, &path)?, &path.display().to_string())?;
        let name =
            manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
        let name = name.ok_or_else(|| format!("{} names no package", path.display()))?.to_owned();
        let mut dependencies = Vec::new();
        collect_dependencies(&manifest, &mut dependencies);
        for target in manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
            if let Some(table) = target.1.as_table() {
                collect_dependencies(table, &mut dependencies);
            }
        }
        let lints = manifest.get("lints").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let takes_lints = lints.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        Ok(Package { name, folder: folder.to_owned(), dependencies, takes_lints, lints })
    }

    pub(super) fn manifest_path(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }
}

/// The rules about manifests alone.
pub(super) fn check(workspace: &Workspace, findings: &mut Vec<Finding>) {
    for package in &workspace.packages {
        let path = package.manifest_path();
        if !package.takes_lints && !denies_unsafe_instead(package, &workspace.lints) {
            let message = "add `[lints]` with `workspace = true`";
            findings.push(Finding::new("shared-lints", &path, 0, message));
        }
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.from_workspace) {
            let message = format!("{} should say `workspace = true`", dependency.key);
            findings.push(Finding::new("workspace-dependency", &path, 0, message));
        }
    }
    for (line, key) in dependencies_without_reason(&workspace.text) {
        let message = format!("say in a comment above {key} why it is there");
        findings.push(Finding::new("dependency-reason", "Cargo.toml", line, message));
    }
}

/// True for the one package with a file that may say `unsafe`, if it has all lints of the workspace but for `deny` in
/// place of `forbid`, which that file could not lift.
fn denies_unsafe_instead(package: &Package, workspace_lints: &toml::Table) -> bool {
    let mut expected = workspace_lints.clone();
    let rust = expected.get_mut("rust").and_then(toml::Value::as_table_mut);
    let Some(level) = rust.and_then(|rust| rust.get_mut("unsafe_code")) else { return false };
    *level = "deny".into();
    let has = |group: &str| {
        let own = package.lints.get(group).and_then(toml::Value::as_table);
        let wanted = expected.get(group).and_then(toml::Value::as_table).into_iter().flatten();
        let mut wanted = wanted.map(|(lint, level)| own.and_then(|own| own.get(lint)) == Some(level));
        wanted.all(|same| same)
    };
    Path::new(UNSAFE_FILE).starts_with(&package.folder) && expected.keys().all(|group| has(group))
}

/// Entries of `[workspace.dependencies]` whose group (lines without a blank one between) begins without a comment.
fn dependencies_without_reason(text: &str) -> Vec<(usize, String)> {
    let mut inside = false;
    let mut explained = false;
    let mut without = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
            explained = false;
        } else if line.is_empty() {
            explained = false;
        } else if line.starts_with('#') {
            explained = true;
        } else if let (true, false, Some((key, _))) = (inside, explained, line.split_once('=')) {
            without.push((index + 1, key.trim().to_owned()));
        }
    }
    without
}

fn parse(text: &str, path: &str) -> Result<toml::Table, String> {
    text.parse::<toml::Table>().map_err(|error| format!("{path}: {error}"))
}

/// A member pattern: a folder, or `folder/*`.
fn expand(root: &Path, member: &str, folders: &mut Vec<PathBuf>) -> Result<(), String> {
    let Some(parent) = member.strip_suffix("/*") else {
        folders.push(member.into());
        return Ok(());
    };
    let entries = std::fs::read_dir(root.join(parent)).map_err(|error| format!("read {parent}: {error}"))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("read {parent}: {error}"))?;
        if entry.path().join("Cargo.toml").is_file() {
            folders.push(Path::new(parent).join(entry.file_name()));
        }
    }
    Ok(())
}

fn collect_dependencies(table: &toml::Table, dependencies: &mut Vec<Dependency>) {
    for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
        for (key, value) in table.get(section).and_then(toml::Value::as_table).into_iter().flatten() {
            dependencies.push(Dependency {
                key: key.clone(),
                renamed: value.get("package").and_then(toml::Value::as_str).map(str::to_owned),
                dev: section == "dev-dependencies",
                from_workspace: value.get("workspace").and_then(toml::Value::as_bool) == Some(true),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_explains_its_group_and_no_more() {
        let text = "[workspace.dependencies]\n# why\na = \"1\"\nb = \"2\"\n\nc = \"3\"\n[other]\nd = \"4\"\n";
        assert_eq!(dependencies_without_reason(text), [(6, "c".to_owned())]);
    }

    #[test]
    fn dependencies_are_found_in_every_section() {
        let text = "[dependencies]\na.workspace = true\n[dev-dependencies]\nb = \"1\"\n[build-dependencies]\nc = {}\n\
                    [target.'cfg(unix)'.dependencies]\nd = { package = \"e\" }";
        let mut found = Vec::new();
        let table = parse(text, "x").unwrap();
        collect_dependencies(&table, &mut found);
        for target in table["target"].as_table().unwrap() {
            collect_dependencies(target.1.as_table().unwrap(), &mut found);
        }
        let seen: Vec<_> = found.iter().map(|d| (d.key.as_str(), d.dev, d.from_workspace)).collect();
        assert_eq!(seen, [("a", false, true), ("c", false, false), ("b", true, false), ("d", false, false)]);
        assert_eq!(found[3].renamed.as_deref(), Some("e"));
    }
}
