//! The import table of ARCHITECTURE.md, parsed, so that the page and the rule are one text; and its check against
//! manifests and sources. The compiler already stops a package from using what its manifest does not name; this stops
//! the manifest from naming it, and the source from reaching for the parts of `std` the row excludes.

use std::collections::BTreeSet;
use std::path::Path;

use super::documents::{self, Row};
use super::manifest::{Package, Workspace};
use super::source_file::{Mention, SourceFile};
use super::{Finding, read};

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Import table";

/// The parts of the outside world a row may exclude: the word in the table, and the paths it stands for.
const EXCLUSIONS: [(&str, &[&str]); 8] = [
    ("sockets", &["std::net", "std::os::unix::net", "rustix::net"]),
    ("files", &["std::fs", "std::os::unix::fs", "std::os::linux::fs", "rustix::fs"]),
    ("clocks", &["std::time::Instant", "std::time::SystemTime", "std::time::UNIX_EPOCH", "rustix::time"]),
    ("sleep", &["std::thread::sleep", "std::thread::park_timeout"]),
    ("threads", &["std::thread"]),
    ("processes", &["std::process", "rustix::process"]),
    ("environment", &["std::env"]),
    ("async", &["async", "await", "std::future", "std::task", "tokio", "futures", "async_std", "smol"]),
];

/// Types of `std::net` that name an address and open nothing.
const ADDRESS_TYPES: [&str; 7] =
    ["AddrParseError", "IpAddr", "Ipv4Addr", "Ipv6Addr", "SocketAddr", "SocketAddrV4", "SocketAddrV6"];

/// The table.
#[derive(Debug)]
pub(super) struct Table(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    line: usize,
    package: String,
    ours: BTreeSet<String>,
    /// Besides `ours`, under `[dev-dependencies]`.
    in_tests: BTreeSet<String>,
    outside: Outside,
    excluded: BTreeSet<String>,
}

#[derive(Debug)]
enum Outside {
    Any,
    Only(BTreeSet<String>),
}

impl Table {
    pub(super) fn read(root: &Path, findings: &mut Vec<Finding>) -> Result<Table, String> {
        let text = read(root, Path::new(PAGE))?;
        let rows = documents::table_below(&text, HEADING);
        if rows.is_empty() {
            return Err(format!("{PAGE} has no table below {HEADING:?}"));
        }
        Ok(Table(rows.iter().filter_map(|row| Rule::parse(row, findings)).collect()))
    }

    fn rule(&self, package: &str) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.package == package)
    }
}

impl Rule {
    fn parse(row: &Row, findings: &mut Vec<Finding>) -> Option<Rule> {
        let [package, ours, in_tests, outside, excluded] = row.cells.as_slice() else {
            let message = "a row of the import table has five cells";
            findings.push(Finding::new("import-table", PAGE, row.line, message));
            return None;
        };
        let excluded = words(excluded);
        for word in &excluded {
            if !EXCLUSIONS.iter().any(|(known, _)| known == word) {
                let known: Vec<&str> = EXCLUSIONS.iter().map(|(known, _)| *known).collect();
                let message = format!("{word:?} is not one of {}", known.join(", "));
                findings.push(Finding::new("import-table", PAGE, row.line, message));
            }
        }
        let outside = words(outside);
        Some(Rule {
            line: row.line,
            package: package.clone(),
            ours: words(ours),
            in_tests: words(in_tests),
            outside: if outside.contains("any") { Outside::Any } else { Outside::Only(outside) },
            excluded,
        })
    }
}

/// The words of a cell; a dash stands for none.
fn words(cell: &str) -> BTreeSet<String> {
    cell.split(',')
        .map(str::trim)
        .filter(|word| !["", "-", "–", "—"].contains(word))
        .map(str::to_owned)
        .collect()
}

/// The table and the workspace list the same packages.
pub(super) fn check_rows(workspace: &Workspace, table: &Table, findings: &mut Vec<Finding>) {
    for rule in &table.0 {
        if !workspace.packages.iter().any(|package| package.name == rule.package) {
            let message = format!("no package is called {}; take the row out", rule.package);
            findings.push(Finding::new("import-table", PAGE, rule.line, message));
        }
    }
}

/// One package against its row.
pub(super) fn check_package<'a>(
    workspace: &Workspace,
    table: &Table,
    package: &Package,
    files: impl IntoIterator<Item = &'a SourceFile>,
    findings: &mut Vec<Finding>,
) {
    let Some(rule) = table.rule(&package.name) else {
        let message = format!("{} has no row in the import table of {PAGE}", package.name);
        findings.push(Finding::new("import-table", package.manifest_path(), 0, message));
        return;
    };
    for dependency in &package.dependencies {
        let target = workspace.target(dependency);
        let allowed = if workspace.is_ours(target) {
            rule.ours.contains(target) || (dependency.dev && rule.in_tests.contains(target))
        } else {
            // Which outside crates tests use is the root manifest's business alone, but for the excluded ones.
            let listed = match &rule.outside {
                Outside::Any => true,
                Outside::Only(list) => list.contains(target),
            };
            (listed || dependency.dev) && exclusion(rule, &[target.replace('-', "_")], false).is_none()
        };
        if !allowed {
            let message = format!("{} may not depend on {target} ({PAGE}, import table)", package.name);
            findings.push(Finding::new("forbidden-import", package.manifest_path(), 0, message));
        }
    }
    for file in files {
        for mention in file.mentions() {
            if let Some(word) = excluded_by(rule, &mention) {
                let path = mention.segments.join("::");
                let message = format!("{} uses no {word}: {path} ({PAGE}, import table)", package.name);
                findings.push(Finding::new("forbidden-import", &file.path, mention.line, message));
            }
        }
    }
}

fn excluded_by(rule: &Rule, mention: &Mention) -> Option<&'static str> {
    let mut segments = mention.segments.clone();
    // `core` re-exports parts of `std`; a module of ours called core would be `crate::core`.
    if segments.len() > 1 && segments.first().is_some_and(|first| first == "core") {
        "std".clone_into(&mut segments[0]);
    }
    exclusion(rule, &segments, mention.glob)
}

fn exclusion(rule: &Rule, segments: &[String], glob: bool) -> Option<&'static str> {
    let is_address = segments.len() > 2
        && segments[..2] == ["std", "net"]
        && ADDRESS_TYPES.iter().any(|name| segments[2] == *name);
    if is_address {
        return None;
    }
    EXCLUSIONS.iter().filter(|(word, _)| rule.excluded.contains(*word)).find_map(|(word, paths)| {
        let hit = paths.iter().any(|path| {
            let path: Vec<&str> = path.split("::").collect();
            let within = segments.len() >= path.len() && segments.iter().zip(&path).all(|(a, b)| a == b);
            // `use std::time::*` brings the clocks in.
            let brings =
                glob && segments.len() < path.len() && segments.iter().zip(&path).all(|(a, b)| a == b);
            within || brings
        });
        hit.then_some(*word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(code: &str) -> Vec<String> {
        let row = Row {
            line: 1,
            cells: ["p", "—", "—", "—", "sockets, files, clocks, async"].map(str::to_owned).to_vec(),
        };
        let mut findings = Vec::new();
        let rule = Rule::parse(&row, &mut findings).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
        let file = SourceFile::new("crates/p/src/lib.rs".into(), code.to_owned());
        let mentions = file.mentions();
        mentions.iter().filter(|m| excluded_by(&rule, m).is_some()).map(|m| m.segments.join("::")).collect()
    }

    #[test]
    fn every_way_to_name_a_forbidden_part_is_seen() {
        for code in [
            "use std::net::TcpStream;",
            "use std::{net::{TcpListener}, fmt};",
            "fn f() { std::fs::read(p) }",
            "use std::time; fn f() { time::Instant::now() }",
            "use std::time::*;",
            "use std::*;",
            "use std as s; fn f() { s::fs::read(p) }",
            "use ::std::os::unix::net::UnixStream;",
            "async fn f() {}",
            "fn f() { tokio::spawn(x) }",
            "use core::net::TcpStream;",
        ] {
            assert!(!hits(code).is_empty(), "{code}");
        }
    }

    #[test]
    fn what_opens_nothing_is_allowed() {
        for code in [
            "use std::net::{IpAddr, SocketAddr};",
            "fn f() { x.parse::<std::net::Ipv6Addr>() }",
            "use std::time::Duration;",
            "// std::fs\nconst X: &str = \"std::fs\";",
            "#[cfg(test)]\nmod tests { use std::fs; }",
            "use crate::net::x; mod files;",
        ] {
            assert!(hits(code).is_empty(), "{code}: {:?}", hits(code));
        }
    }
}
