//! Markdown tables, and the rules about pages: the code map, the numbered promises, links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::manifest::Workspace;
use super::source_file::SourceFile;
use super::{Finding, read, sources};

/// A row of a table: its cells without padding and backticks.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) cells: Vec<String>,
}

/// The body rows of every table of `page`.
pub(super) fn tables(page: &str) -> Vec<Row> {
    rows(page.lines().enumerate())
}

/// The body rows of the tables between the line `heading` and the next heading.
pub(super) fn table_below(page: &str, heading: &str) -> Vec<Row> {
    let lines = page.lines().enumerate().skip_while(|(_, line)| *line != heading).skip(1);
    rows(lines.take_while(|(_, line)| !line.starts_with("## ")))
}

fn rows<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut in_body = false;
    for (index, line) in lines {
        let line = line.trim();
        if !line.starts_with('|') {
            in_body = false;
        } else if line.chars().all(|c| "|-: ".contains(c)) {
            in_body = true;
        } else if in_body {
            let inner = line.trim_matches('|');
            let cells = inner.split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect();
            rows.push(Row { line: index + 1, cells });
        }
    }
    rows
}

pub(super) fn check(
    root: &Path,
    workspace: &Workspace,
    files: &[SourceFile],
    findings: &mut Vec<Finding>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    code_map(&read(root, Path::new("ARCHITECTURE.md"))?, workspace, findings);
    let tests: BTreeSet<&str> = files.iter().flat_map(functions).collect();
    promises(&read(root, Path::new("docs/semantics.md"))?, &tests, findings, notes);
    requirements(&read(root, Path::new("docs/requirements.md"))?, &tests, findings);
    let mut pages = Vec::new();
    sources::find(root, "md", &mut pages)?;
    for page in pages {
        let shown = page.strip_prefix(root).unwrap_or(&page).to_owned();
        links(root, &shown, &read(root, &page)?, findings);
    }
    Ok(())
}

fn code_map(page: &str, workspace: &Workspace, findings: &mut Vec<Finding>) {
    let (path, heading) = ("ARCHITECTURE.md", "## Code map");
    let rows = table_below(page, heading);
    let shown: BTreeSet<PathBuf> =
        rows.iter().filter_map(|row| row.cells.first().map(PathBuf::from)).collect();
    for package in workspace.packages.iter().filter(|package| !shown.contains(&package.folder)) {
        let message = format!("the code map lacks {}", package.folder.display());
        findings.push(Finding::new("code-map", path, 0, message));
    }
    for row in rows {
        let Some(folder) = row.cells.first() else { continue };
        if !workspace.packages.iter().any(|package| package.folder == Path::new(folder)) {
            let message = format!("no package lives in {folder}; take the row out");
            findings.push(Finding::new("code-map", path, row.line, message));
        }
    }
}

/// Names of every function of the file.
fn functions(file: &SourceFile) -> impl Iterator<Item = &str> {
    let pairs = file.source.tokens.windows(2);
    pairs.filter(|pair| pair[0].is_word("fn")).filter_map(|pair| pair[1].word())
}

/// True for a cell with nothing in it.
fn is_dash(cell: &str) -> bool {
    ["", "-", "–", "—"].contains(&cell)
}

/// Rows `| S1 | promise | tests |`: their numbers grow, and one that is gone is not used again; each test is the name of a function. A promise whose third
/// cell is a dash has no test yet and is noted.
fn promises(page: &str, tests: &BTreeSet<&str>, findings: &mut Vec<Finding>, notes: &mut Vec<String>) {
    let path = "docs/semantics.md";
    let mut last = 0;
    let mut untested = Vec::new();
    for row in tables(page) {
        let [number, _, named] = row.cells.as_slice() else { continue };
        if !number.starts_with('S') {
            continue;
        }
        let value = number[1..].parse().unwrap_or(0);
        if value <= last {
            let message = format!("after S{last} comes a higher number than {number}");
            findings.push(Finding::new("promises", path, row.line, message));
        }
        last = last.max(value);
        if is_dash(named) {
            untested.push(number.clone());
        }
        for name in named.split([',', ' ']).filter(|name| !is_dash(name)) {
            if !tests.contains(name.rsplit("::").next().unwrap_or(name)) {
                let message = format!("{number}: no test is called {name}");
                findings.push(Finding::new("promises", path, row.line, message));
            }
        }
    }
    if last == 0 {
        findings.push(Finding::new("promises", path, 0, "no promise is numbered S1"));
    }
    if !untested.is_empty() {
        notes.push(format!("promises without a test: {}", untested.join(", ")));
    }
}

/// Rows `| line | state | tests | broken |`: none of it is empty, and each word with an underscore among the tests is the name of a function.
fn requirements(page: &str, tests: &BTreeSet<&str>, findings: &mut Vec<Finding>) {
    let path = "docs/requirements.md";
    let rows = tables(page);
    if rows.is_empty() {
        findings.push(Finding::new("requirements", path, 0, "there are no rows"));
    }
    for row in rows {
        let [line, state, named, broken] = row.cells.as_slice() else {
            let message = "a row has a line, a state, tests and what was broken";
            findings.push(Finding::new("requirements", path, row.line, message));
            continue;
        };
        if [state, named, broken].iter().any(|cell| is_dash(cell)) {
            let message = format!("{line}: say what holds, name a test, and what was broken to see it fail");
            findings.push(Finding::new("requirements", path, row.line, message));
        }
        let words = named.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.contains('_') && !tests.contains(word)) {
            let message = format!("{line}: no test is called {name}");
            findings.push(Finding::new("requirements", path, row.line, message));
        }
    }
}

/// Relative links `](path)` and `](path#anchor)`.
fn links(root: &Path, page: &Path, text: &str, findings: &mut Vec<Finding>) {
    let folder = root.join(page.parent().unwrap_or(Path::new("")));
    for (index, line) in text.lines().enumerate() {
        for part in line.split("](").skip(1) {
            let Some((target, _)) = part.split_once(')') else { continue };
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !folder.join(file).exists() {
                let message = format!("{target} leads nowhere");
                findings.push(Finding::new("links", page, index + 1, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_below_their_heading_only() {
        let page =
            "## A\n| x | y |\n|---|---|\n| `a` | b, c |\n\n## B\n\n| z |\n|:-:|\n| d |\ntext | no table |\n";
        let cells = |rows: Vec<Row>| -> Vec<Vec<String>> { rows.into_iter().map(|row| row.cells).collect() };
        assert_eq!(cells(table_below(page, "## A")), [["a", "b, c"]]);
        assert_eq!(cells(table_below(page, "## B")), [["d"]]);
        assert_eq!(tables(page).len(), 2);
        assert_eq!(tables(page)[0].line, 4);
    }

    #[test]
    fn promises_are_numbered_and_name_real_tests() {
        let check = |body: &str| {
            let (mut findings, mut notes) = (Vec::new(), Vec::new());
            let page = format!("| number | promise | test |\n|---|---|---|\n{body}");
            promises(&page, &BTreeSet::from(["a_test"]), &mut findings, &mut notes);
            (findings.len(), notes.len())
        };
        assert_eq!(check("| S1 | x | `a_test` |\n| S2 | y | — |\n"), (0, 1));
        assert_eq!(check("| S1 | x | `a_test` |\n| S3 | y | `a_test` |\n"), (0, 0));
        assert_eq!(check("| S3 | x | `a_test` |\n| S1 | y | `a_test` |\n"), (1, 0));
        assert_eq!(check("| S1 | x | `a_test` |\n| S1 | y | `a_test` |\n"), (1, 0));
        assert_eq!(check("| S1 | x | `no_test` |\n"), (1, 0));
        assert_eq!(check(""), (1, 0));
    }

    #[test]
    fn links_must_lead_somewhere() {
        let mut findings = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[a](Cargo.toml) [b](src/main.rs#x) [c](https://example.org/) [d](#here) [e](gone.md)";
        links(root, Path::new("page.md"), text, &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn requirements_name_tests_and_what_was_broken() {
        let mut findings = Vec::new();
        let page = "|a|b|c|d|\n|-|-|-|-|\n| Y1 | holds | `is_there`, `there` | x |\n| Y2 | holds | `is_gone` | – |\n| Y3 | holds |";
        requirements(page, &BTreeSet::from(["is_there"]), &mut findings);
        assert_eq!(findings.len(), 3, "{findings:?}");
        findings.clear();
        requirements("", &BTreeSet::new(), &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
    }
}
