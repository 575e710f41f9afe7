//! The rules of the house that no compiler checks. Each finding names its rule, so that a test (and a reader) can
//! tell which one spoke:
//!
//! | rule | what must hold |
//! |---|---|
//! | `import-table` | the table in ARCHITECTURE.md and the workspace list the same packages |
//! | `forbidden-import` | a package uses only what its row allows: packages of ours, outside crates, parts of `std` |
//! | `workspace-dependency` | a dependency takes its version from the root manifest |
//! | `shared-lints` | a package takes the workspace's lints (the one with a file for `unsafe`: all but `deny` for `forbid`) |
//! | `dependency-reason` | a comment above a dependency in the root manifest says why it is there |
//! | `code-map` | the code map in ARCHITECTURE.md and the workspace list the same folders |
//! | `limits` | `docs/limits.md` lists every constant of `crates/core/src/limits.rs` with its value |
//! | `promises` | a test named in `docs/semantics.md` exists, and the numbers of promises grow |
//! | `requirements` | a test named in `docs/requirements.md` exists, and no cell there is empty |
//! | `links` | a relative link in a Markdown file leads to a file |
//! | `file-head` | a `.rs` file starts with `//!` |
//! | `file-length` | a file has at most 1,000 lines outside tests, or says in its `//!` why not |
//! | `file-name` | no file is called utils, common or misc |
//! | `unsafe-place` | one file of the network lab says `unsafe`, and no other |
//! | `unfinished` | no macro or comment that marks unfinished code |
//! | `toolchain-file` | no rust-toolchain file: the version is `rust-version` in the root manifest |

mod documents;
mod imports;
mod lexical;
mod limits;
mod manifest;
mod source_file;
mod sources;

use std::fmt;
use std::path::{Path, PathBuf};

use manifest::Workspace;
use source_file::SourceFile;

/// A place where a rule does not hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    /// File below the repository.
    pub(crate) path: PathBuf,
    /// Line, counted from 1; 0 if it is about the file as a whole.
    pub(crate) line: usize,
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Finding {
    fn new(rule: &'static str, path: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path.display(), self.line, self.rule, self.message)
    }
}

/// What a run saw.
#[derive(Debug)]
pub(crate) struct Report {
    /// Sorted by place.
    pub(crate) findings: Vec<Finding>,
    /// What a reader should know and need not mend now.
    pub(crate) notes: Vec<String>,
    /// Rust files read.
    pub(crate) files: usize,
    /// Packages of the workspace.
    pub(crate) packages: usize,
}

/// Checks the repository at `root`, or only the imports of the package in folder `only`. An `Err` means that the
/// check itself could not be made.
pub(crate) fn run(root: &Path, only: Option<&Path>) -> Result<Report, String> {
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    let workspace = Workspace::read(root)?;
    let table = imports::Table::read(root, &mut findings)?;
    let (packages, files) = match only {
        Some(folder) => {
            let package = manifest::Package::read(root, folder)?;
            let files = sources::read_below(root, folder)?;
            imports::check_package(&workspace, &table, &package, &files, &mut findings);
            (1, files.len())
        }
        None => {
            let files = sources::read_below(root, root)?;
            for package in &workspace.packages {
                let own: Vec<&SourceFile> =
                    files.iter().filter(|file| file.path.starts_with(&package.folder)).collect();
                imports::check_package(&workspace, &table, package, own, &mut findings);
            }
            imports::check_rows(&workspace, &table, &mut findings);
            manifest::check(&workspace, &mut findings);
            sources::check(root, &files, &mut findings);
            limits::check(root, &mut findings)?;
            documents::check(root, &workspace, &files, &mut findings, &mut notes)?;
            (workspace.packages.len(), files.len())
        }
    };
    findings.sort();
    findings.dedup();
    Ok(Report { findings, notes, files, packages })
}

fn read(root: &Path, path: &Path) -> Result<String, String> {
    std::fs::read_to_string(root.join(path)).map_err(|error| format!("read {}: {error}", path.display()))
}
