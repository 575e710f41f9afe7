//! Runs the built program on a fixture that breaks the rules, on copies of the repository's own pages that do, and
//! on the repository itself. A checker that never fails proves nothing.
#![allow(clippy::unwrap_used, reason = "a test stops where something it needs is missing")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The one where the tests run: a build may be of another clone.
fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().unwrap().to_owned()
}

fn tidy(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_xtask")).arg("tidy").args(arguments).output().unwrap();
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Design 4: the import table is checked. Every forbidden import of the fixture is named, and nothing else.
#[test]
fn a_forbidden_import_fails() {
    let (code, text) = tidy(&["--package", "xtask/fixtures/forbidden-import"]);
    assert_eq!(code, Some(1), "{text}");
    let findings: Vec<&str> = text.lines().filter(|line| line.contains("[forbidden-import]")).collect();
    for named in ["dray-store", "tokio", "std::net::TcpStream", "std::time::Instant"] {
        assert!(findings.iter().any(|line| line.contains(named)), "{named} is not in {text}");
    }
    for allowed in ["dray-core", "IpAddr", "Duration"] {
        assert!(!findings.iter().any(|line| line.contains(allowed)), "{allowed} is in {text}");
    }
}

/// The same check passes on the package the fixture imitates, so it fails for what the fixture does.
#[test]
fn the_real_engine_passes_the_same_check() {
    let (code, text) = tidy(&["--package", "crates/engine"]);
    assert_eq!(code, Some(0), "{text}");
}

/// Design 4: the house is in order now.
#[test]
fn the_repository_passes() {
    let (code, text) = tidy(&[]);
    assert_eq!(code, Some(0), "{text}");
}

/// One package may spell its lints out, with `deny` for `forbid` of `unsafe`: that one, with all the others, and not weaker.
#[test]
fn lints_spelled_out_are_those_of_the_workspace() {
    let lints = "unsafe_code = \"deny\"\ntodo = \"warn\"\n";
    let cases = [
        ("testing/lab", lints, true),
        ("testing/lab", "unsafe_code = \"deny\"\n", false),
        ("testing/lab", "unsafe_code = \"allow\"\ntodo = \"warn\"\n", false),
        ("testing/other", lints, false),
    ];
    for (place, lints, is_good) in cases {
        let folder = small_repository();
        let write = |path: &str, text: String| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = |path: &str| std::fs::read_to_string(folder.path().join(path)).unwrap();
        let root = read("Cargo.toml").replace("[\"crates/*\"]", "[\"crates/*\", \"testing/*\"]");
        write("Cargo.toml", root + "[workspace.lints.rust]\nunsafe_code = \"forbid\"\ntodo = \"warn\"\n");
        let page = read("ARCHITECTURE.md").replace("| nouns |\n", &format!("| nouns |\n| `{place}` | x |\n"));
        write("ARCHITECTURE.md", page + "| `dray-lab` | — | — | — | — |\n");
        write(
            &format!("{place}/Cargo.toml"),
            format!("[package]\nname = \"dray-lab\"\n[lints.rust]\n{lints}"),
        );
        write(&format!("{place}/src/lib.rs"), "//! A lab.\n".into());
        let (code, text) = tidy(&["--root", folder.path().to_str().unwrap()]);
        assert_eq!(code, Some(if is_good { 0 } else { 1 }), "{place}, {lints}: {text}");
        assert_eq!(text.contains("[shared-lints]"), !is_good, "{text}");
    }
}

/// The smallest repository tidy accepts.
fn small_repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"crates/*\"]\n[workspace.dependencies]\n# Why.\nblake3 = \"1\"\n",
    );
    write(
        "crates/core/Cargo.toml",
        "[package]\nname = \"dray-core\"\n[dependencies]\nblake3.workspace = true\n[lints]\nworkspace = true\n",
    );
    write("crates/core/src/lib.rs", "//! Nouns.\n#[test]\nfn proves() {}\n");
    write("crates/core/src/limits.rs", "//! Limits.\npub const A: u64 = 1 << 4;\n");
    write(
        "ARCHITECTURE.md",
        "## Code map\n| folder | what |\n|---|---|\n| `crates/core` | nouns |\n## Import table\n\
         | package | ours | tests | outside | never |\n|---|---|---|---|---|\n\
         | `dray-core` | — | — | blake3 | files |\n",
    );
    write("docs/limits.md", "| constant | value |\n|---|---|\n| `A` | 16 |\n");
    write("docs/semantics.md", "| number | promise | test |\n|---|---|---|\n| S1 | it holds | `proves` |\n");
    let page = "| line | state | tests | broken |\n|---|---|---|---|\n| Y1 | holds | `proves` | red |\n";
    write("docs/requirements.md", page);
    folder
}

/// Every rule of the list in `src/tidy/mod.rs` fails when the one thing it is about is broken, and the report names
/// that rule and no other.
#[test]
fn each_rule_fails_on_its_own_breach() {
    let untouched = small_repository();
    let (code, text) = tidy(&["--root", untouched.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");

    let breaches: [(&str, &str, &str, &str); 16] = [
        ("import-table", "ARCHITECTURE.md", "| files |\n", "| files |\n| `dray-gone` | — | — | — | — |\n"),
        (
            "forbidden-import",
            "crates/core/src/lib.rs",
            "fn proves() {}",
            "fn proves() {}\nuse std::fs::read;",
        ),
        ("forbidden-import", "ARCHITECTURE.md", "| blake3 |", "| — |"),
        ("workspace-dependency", "crates/core/Cargo.toml", "blake3.workspace = true", "blake3 = \"1\""),
        ("shared-lints", "crates/core/Cargo.toml", "[lints]\nworkspace = true\n", ""),
        ("dependency-reason", "Cargo.toml", "# Why.\n", ""),
        ("code-map", "ARCHITECTURE.md", "| `crates/core` | nouns |", "| `crates/gone` | nouns |"),
        ("limits", "docs/limits.md", "16", "17"),
        ("promises", "docs/semantics.md", "`proves`", "`disproves`"),
        ("requirements", "docs/requirements.md", "| red |", "| – |"),
        ("links", "docs/limits.md", "\n| `A`", "\n| [`A`](gone.md)"),
        ("file-head", "crates/core/src/lib.rs", "//! Nouns.\n", ""),
        (
            "file-length",
            "crates/core/src/lib.rs",
            "fn proves() {}",
            &format!("fn proves() {{\n{}}}", "\n".repeat(1000)),
        ),
        ("unsafe-place", "crates/core/src/lib.rs", "fn proves() {}", "unsafe fn proves() {}"),
        ("unfinished", "crates/core/src/lib.rs", "fn proves() {}", "fn proves() { todo!() }"),
        ("import-table", "ARCHITECTURE.md", "| files |", "| printers |"),
    ];
    for (rule, path, from, to) in breaches {
        let folder = small_repository();
        let file = folder.path().join(path);
        let before = std::fs::read_to_string(&file).unwrap();
        let after = before.replacen(from, to, 1);
        assert_ne!(before, after, "{rule}: nothing was broken");
        std::fs::write(&file, after).unwrap();
        assert_only(rule, folder.path());
    }
    for (rule, path) in [("toolchain-file", "rust-toolchain.toml"), ("file-name", "crates/core/src/utils.rs")]
    {
        let folder = small_repository();
        std::fs::write(folder.path().join(path), "//! x\n").unwrap();
        assert_only(rule, folder.path());
    }
}

fn assert_only(rule: &str, root: &Path) {
    let (code, text) = tidy(&["--root", root.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{rule}: {text}");
    let findings: Vec<&str> = text.lines().filter(|line| line.contains(": [")).collect();
    assert!(!findings.is_empty(), "{rule}: {text}");
    for finding in findings {
        // A row that is gone or a name that is a link breaks the neighbouring rule of the same table too.
        let related = rule == "links" && finding.contains("[limits]");
        assert!(finding.contains(&format!("[{rule}]")) || related, "{rule}: {text}");
    }
}

/// A wrong command line is exit code 2 and says how to do it right.
#[test]
fn wrong_arguments_are_explained() {
    for arguments in [&["--root"][..], &["--no-such-flag", "x"], &["--root", "/nonexistent"]] {
        let (code, text) = tidy(arguments);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("xtask: "), "{text}");
    }
    assert!(repository().join("Cargo.toml").is_file());
}
