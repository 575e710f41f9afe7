//! The rules about Rust files: how they begin, how long they are, what they are called, and that they are finished.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::lexical::Token;
use super::source_file::SourceFile;
use super::{Finding, read};

/// Lines outside tests above which a file must say why.
const LINES_MAX: usize = 1000;
/// What a `//!` says when a file is longer than that.
const LONG_BECAUSE: &str = "This file is long because";
/// The one file that may say `unsafe`: system calls of the network lab that have no safe wrapper.
pub(super) const UNSAFE_FILE: &str = "testing/lab/src/kernel.rs";
/// Folders that hold no source of ours.
const SKIPPED_FOLDERS: [&str; 3] = ["target", "fixtures", "artifacts"];

/// Reads every `.rs` file below `folder`.
pub(super) fn read_below(root: &Path, folder: &Path) -> Result<Vec<SourceFile>, String> {
    let mut paths = Vec::new();
    let start = if folder.is_absolute() { folder.to_owned() } else { root.join(folder) };
    find(&start, "rs", &mut paths)?;
    let mut files = Vec::new();
    for path in paths {
        let shown = path.strip_prefix(root).unwrap_or(&path).to_owned();
        let text = read(root, &path)?;
        files.push(SourceFile::new(shown, text));
    }
    let test_places: BTreeSet<PathBuf> = files.iter().flat_map(SourceFile::test_module_places).collect();
    for file in &mut files {
        file.is_test |= test_places.iter().any(|place| file.path.starts_with(place));
    }
    Ok(files)
}

/// Every file below `folder` with the extension, sorted; hidden folders, build output and fixtures left out.
pub(super) fn find(folder: &Path, extension: &str, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", folder.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(failed)?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if kind.is_dir() {
            // A folder with this tag holds a build's output, wherever CARGO_TARGET_DIR put it.
            let output = path.join("CACHEDIR.TAG").exists();
            if !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&&*name) && !output {
                find(&path, extension, paths)?;
            }
        } else if kind.is_file() && path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
    Ok(())
}

pub(super) fn check(root: &Path, files: &[SourceFile], findings: &mut Vec<Finding>) {
    for file in files {
        check_file(file, findings);
    }
    for name in ["rust-toolchain.toml", "rust-toolchain"] {
        if root.join(name).exists() {
            let message = "remove it; the version is `rust-version` in the root manifest";
            findings.push(Finding::new("toolchain-file", name, 0, message));
        }
    }
}

fn check_file(file: &SourceFile, findings: &mut Vec<Finding>) {
    if !file.text.starts_with("//!") {
        let message = "begin with `//!`: what lives here and why";
        findings.push(Finding::new("file-head", &file.path, 1, message));
    }
    let lines = file.shipped_lines();
    let head = file.text.lines().take_while(|line| line.starts_with("//!"));
    if lines > LINES_MAX && !head.clone().any(|line| line.contains(LONG_BECAUSE)) {
        let message = format!(
            "{lines} lines outside tests, more than {LINES_MAX}: split it, or begin a sentence of its `//!` with \
             \"{LONG_BECAUSE}\""
        );
        findings.push(Finding::new("file-length", &file.path, 0, message));
    }
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let folder_name = file.path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    for name in ["util", "utils", "common", "misc", "helper", "helpers"] {
        if stem == name || folder_name == name {
            let message = format!("{name} says nothing; name the file after what lives in it");
            findings.push(Finding::new("file-name", &file.path, 0, message));
        }
    }
    let says_unsafe = |token: &&Token| token.is_word("unsafe") || token.is_word("unsafe_code");
    if let Some(token) = file.source.tokens.iter().find(says_unsafe)
        && file.path != Path::new(UNSAFE_FILE)
    {
        let message = format!("only {UNSAFE_FILE} may");
        findings.push(Finding::new("unsafe-place", &file.path, token.line, message));
    }
    for (line, word) in unfinished(file) {
        let message = format!("{word}: finish it, or open an issue and take the mark out");
        findings.push(Finding::new("unfinished", &file.path, line, message));
    }
}

fn unfinished(file: &SourceFile) -> Vec<(usize, String)> {
    let mut marks = Vec::new();
    for pair in file.source.tokens.windows(2) {
        let macros = ["todo", "unimplemented", "dbg"];
        if let Some(word) = pair[0].word().filter(|word| macros.contains(word) && pair[1].is_mark('!')) {
            marks.push((pair[0].line, format!("{word}!")));
        }
    }
    for comment in &file.source.comments {
        for (offset, line) in comment.text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            for word in words.filter(|word| ["FIXME", "XXX", "TODO", "HACK"].contains(word)) {
                marks.push((comment.line + offset, word.to_owned()));
            }
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        check_file(&SourceFile::new(path.into(), text.to_owned()), &mut findings);
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn each_rule_speaks_and_only_when_broken() {
        assert_eq!(rules("src/plan.rs", "//! Plans.\nfn f() {}\n"), [""; 0]);
        assert_eq!(rules("src/plan.rs", "fn f() {}\n"), ["file-head"]);
        assert_eq!(rules("src/utils.rs", "//! x\n"), ["file-name"]);
        assert_eq!(rules("src/common/mod.rs", "//! x\n"), ["file-name"]);
        assert_eq!(rules("src/plan.rs", "//! x\nfn f() { unsafe { g() } }\n"), ["unsafe-place"]);
        assert_eq!(rules("src/plan.rs", "//! x\n#![allow(unsafe_code)]\n"), ["unsafe-place"]);
        assert_eq!(rules(UNSAFE_FILE, "//! x\n#![allow(unsafe_code)]\n"), [""; 0]);
        for macro_call in ["todo!()", "unimplemented!()", "dbg!(x)"] {
            assert_eq!(rules("src/plan.rs", &format!("//! x\nfn f() {{ {macro_call} }}\n")), ["unfinished"]);
        }
        for mark in ["FIXME", "XXX", "TODO"] {
            assert_eq!(rules("src/plan.rs", &format!("//! x\n// {mark}: later\n")), ["unfinished"]);
            assert_eq!(rules("src/plan.rs", &format!("//! x\nconst A: &str = \"{mark}\";\n")), [""; 0]);
        }
    }

    #[test]
    fn long_files_need_a_reason_and_tests_do_not_count() {
        let body = "const _: () = ();\n".repeat(LINES_MAX);
        assert_eq!(rules("src/plan.rs", &format!("//! x\n{body}")), ["file-length"]);
        assert_eq!(rules("src/plan.rs", &format!("//! x. {LONG_BECAUSE} it is a table.\n{body}")), [""; 0]);
        assert_eq!(rules("src/plan.rs", &format!("//! x\n#[cfg(test)]\nmod tests {{\n{body}}}\n")), [""; 0]);
    }
}
