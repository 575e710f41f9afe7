//! Trees over a slow link between two hosts: their contents cross it packed, over ssh and over direct connections, where both ends can. Bytes
//! are counted on the interface, in both directions (S92, ADR 28).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use dray_e2e::actions::{self, assert_same_tree};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, Program};
use dray_lab::conditions::Condition;
use dray_lab::{Link, Rate};

/// So slow that packing pays, and not so slow that the test takes long.
const LINK: Link = Link::new(Rate::mbit(20), Duration::from_millis(20));
const SLOW: Condition =
    Condition { name: "slow", up: LINK, down: LINK, why: "any line that is slower than a processor packs" };
/// Of the tree.
const LARGE_BYTES: usize = 6 * MIB as usize;
const SMALL_BYTES: usize = 4096;
const SMALL_FILES: usize = 1024;

/// Words, each of random bytes.
fn text(words: &[Vec<u8>], bytes: usize, seed: u64) -> Vec<u8> {
    let choices = data::random_bytes(bytes, seed);
    let mut text: Vec<u8> = Vec::with_capacity(bytes + 16);
    let mut choices = choices.iter();
    while text.len() < bytes {
        text.extend_from_slice(&words[usize::from(*choices.next().unwrap()) % words.len()]);
    }
    text.truncate(bytes);
    text
}

/// A large file and many small ones, all of the same words.
fn write_tree(top: &Path) -> u64 {
    let words: Vec<Vec<u8>> =
        (0..200).map(|word| data::random_bytes(4 + word as usize % 9, 700 + word)).collect();
    fs::create_dir_all(top.join("small")).unwrap();
    fs::write(top.join("large"), text(&words, LARGE_BYTES, 1)).unwrap();
    for number in 0..SMALL_FILES {
        let path = top.join(format!("small/{number:04}"));
        fs::write(path, text(&words, SMALL_BYTES, 2 + number as u64)).unwrap();
    }
    (LARGE_BYTES + SMALL_FILES * SMALL_BYTES) as u64
}

/// Bytes on `host`'s interface, both directions, while `program` runs.
#[track_caller]
fn cost(host: &Host, program: Program<'_>) -> u64 {
    let before = host.counters();
    program.time_limit(Duration::from_secs(300)).run().expect(0);
    (host.counters() - before).bytes()
}

/// P6, S92: a tree that compresses crosses a slow link in a fraction of its bytes, either way, with direct connections and without. Where the other end is
/// older and does not say that it can, it comes as it is.
#[test]
fn a_tree_crosses_a_slow_link_packed() {
    let Some(lab) = Lab::of(2).condition(SLOW).build() else { return };
    let (a, b) = lab.pair();
    a.sshd();
    b.sshd();
    let tree = a.file("tree");
    let bytes = write_tree(&tree);
    let older = a.file("older");
    let rewriter = env!("CARGO_BIN_EXE_dray-frame-rewriter");
    fs::write(&older, format!("#!/bin/sh\nexec '{rewriter}' no-packed-tree dray \"$@\"\n")).unwrap();
    fs::set_permissions(&older, fs::Permissions::from_mode(0o755)).unwrap();
    for has_direct in [true, false] {
        if !has_direct {
            a.allow_only_ssh();
            b.allow_only_ssh();
        }
        for case in ["up", "down", "older"] {
            let to = b.directory(&format!("{case}-{has_direct}")).join("tree");
            let program = match case {
                "up" => actions::copy_to(a, b, &tree, &to),
                "down" => actions::copy_from(a, b, &tree, &to),
                _ => actions::copy_from(a, b, &tree, &to).arg("--remote-dray").arg(&older),
            };
            let carried = cost(b, program.arg("-a"));
            eprintln!("{bytes} bytes, {case}, direct connections {has_direct}: {carried} on the wire");
            assert_same_tree(a, &tree, &to, None);
            match case {
                "older" => assert!(carried > bytes, "{case} {has_direct}: {carried} bytes on the wire"),
                _ => assert!(carried < bytes / 2, "{case} {has_direct}: {carried} bytes on the wire"),
            }
        }
    }
}
