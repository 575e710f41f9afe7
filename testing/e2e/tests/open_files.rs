//! How many files a command may have open: as many as the system allows, not as many as it begins with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use dray_e2e::actions::assert_same_tree;
use dray_e2e::twins::{LONG, write};
use dray_e2e::{Lab, gate};

/// What a shell gives, and what it may be raised to.
const LIMIT: &str = "--nofile=256:4096";

/// S89: trees of 500 levels are switched by a program that begins with 256 files.
#[test]
fn deep_trees_are_switched_with_few_files_to_begin_with() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let top = a.directory("top");
    let (source, copy) = (top.join("source"), top.join("copy"));
    let deep = "d/".repeat(500);
    for (root, name) in [(&source, "new"), (&copy, "old")] {
        write(&root.join(&deep).join(name), name.as_bytes(), 0);
        write(&root.join(&deep).join("same"), b"same", 0);
    }
    let mut from = source.clone().into_os_string();
    from.push("/");
    let program = a.program("prlimit").arg(LIMIT).arg(gate::dray_binary());
    let program = program.args(["sync", "-a", "--delete", "--atomic"]).arg(from).arg(&copy);
    program.time_limit(LONG).run().expect(0);
    assert_same_tree(a, &source, &copy, None);
}

/// The limit is raised before anything is opened, as what a command starts has it, and not beyond what is allowed.
#[test]
fn every_command_may_open_as_many_files_as_the_system_allows() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (place, programs) = (a.directory("place"), a.directory("programs"));
    let (said, shell) = (place.join("said"), programs.join("ssh"));
    fs::write(&shell, format!("#!/bin/sh\nulimit -Sn >>{}\nexit 1\n", said.display())).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    write(&place.join("f"), b"f", 0);
    for words in [&["sync", "-a"][..], &["cp"]] {
        for is_up in [true, false] {
            let program =
                a.program("prlimit").env("PATH", &path).arg(LIMIT).arg(gate::dray_binary()).args(words);
            let (here, there) = (place.join("f").into_os_string(), OsString::from("nowhere:f"));
            let (from, to) = if is_up { (here, there) } else { (there, place.join("g").into_os_string()) };
            let outcome = program.arg(from).arg(to).time_limit(LONG).run();
            assert_ne!(outcome.code(), Some(0), "{outcome}");
            let limits = fs::read_to_string(&said).unwrap_or_default();
            let is_raised = !limits.is_empty() && limits.lines().all(|limit| limit == "4096");
            assert!(is_raised, "{words:?}, up: {is_up}: {limits:?} {outcome}");
            fs::remove_file(&said).unwrap();
        }
    }
}
