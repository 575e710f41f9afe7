//! Issue "ten million entries in bounded memory": what a walk and a writer hold does not grow with the tree. A program of its own,
//! because the peak of a process is that of everything in it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::fs;

use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
use dray_store::local::tree::{Landing, Placed, TreeWriter, WalkOptions, Walked, Walker, WriteOptions};

/// Set to 1, two million entries are written instead of two hundred thousand.
const FULL: &str = "DRAY_E2E_FULL";
const MIB: u64 = 1 << 20;

/// The most memory this process had so far.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

fn entry(name: Option<&str>, kind: Kind, number: u64) -> Entry {
    let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
    let metadata = Metadata { mode: 0o755, mtime_s: 1, mtime_ns: number as u32, ..Metadata::default() };
    Entry { name, kind, metadata }
}

/// Writes `count` entries below `to`, `in_directory` to a directory; every seventh has two names, every hundredth a long one.
fn write(to: &std::path::Path, count: u64, in_directory: u64) {
    let options = WriteOptions { times: true, modes: true, ..WriteOptions::default() };
    let mut writer = TreeWriter::new(Landing::resolve(to, &[b"tree".to_vec()], false).unwrap(), options);
    let directory = |name: Option<&str>| entry(name, Kind::Directory { entries: None }, 0);
    writer.root(0, &directory(None)).unwrap();
    let mut group = None;
    for number in 0..count {
        if number % in_directory == 0 {
            if number > 0 {
                writer.leave();
            }
            writer.entry(&directory(Some(&format!("{number:08}")))).unwrap();
        }
        let long = if number % 100 == 0 { "n".repeat(200) } else { String::new() };
        let kind = Kind::File { size_bytes: 0, oid: None };
        let mut file = entry(Some(&format!("{number:08}{long}")), kind, number);
        if number % 7 == 0 {
            group = Some(number.to_be_bytes().repeat(2).try_into().unwrap());
        }
        if number % 7 < 2 {
            (file.metadata.link_group, file.metadata.link_names) = (group, 2);
        }
        match writer.entry(&file).unwrap() {
            Placed::Wanted(target, _) => {
                let new = target.create().unwrap();
                let finished = Finished { hash: [0; 32], size_bytes: 0, mtime_s: 1, mtime_ns: number as u32 };
                let identity = target.finish(new, &finished).unwrap();
                writer.settle(*target, Some(identity));
            }
            Placed::Link(target) => {
                writer.link(&target).unwrap();
                writer.settle(*target, None);
            }
            other => panic!("{other:?}"),
        }
    }
    writer.leave();
    writer.leave();
    let failures = writer.failures();
    assert!(failures.attributes.is_empty() && failures.directories.is_empty(), "{failures:?}");
}

fn walk(root: &std::path::Path) -> u64 {
    let options = WalkOptions { recursive: true, hard_links: true, ..WalkOptions::default() };
    let mut walker = Walker::new(vec![root.to_owned()], options);
    let mut count = 0;
    while let Some(step) = walker.step() {
        match step {
            Walked::Entry(entry, _) => count += u64::from(!entry.is_directory()),
            Walked::Failed(path, error) => panic!("{path:?}: {error}"),
            Walked::Leave | Walked::Missing | Walked::Unlisted => {}
        }
    }
    count
}

/// Design 17 and the issue: many directories, then one directory with everything.
#[test]
fn memory_does_not_grow_with_the_tree() {
    let is_full = std::env::var(FULL).is_ok_and(|value| value == "1");
    let count = if is_full { 2_000_000 } else { 200_000 };
    // In memory if there is room: this is about ours, not about the disk's speed.
    let place = if fs::metadata("/dev/shm").is_ok_and(|found| found.is_dir()) { "/dev/shm" } else { "/tmp" };
    let temporary = tempfile::tempdir_in(place).unwrap();
    let before = peak_bytes();
    write(temporary.path(), count, 1000);
    let written = peak_bytes();
    assert_eq!(walk(&temporary.path().join("tree")), count);
    let walked = peak_bytes();
    // A directory of its own, half as many entries.
    fs::remove_dir_all(temporary.path().join("tree")).unwrap();
    write(temporary.path(), count / 2, u64::MAX);
    let flat_written = peak_bytes();
    assert_eq!(walk(&temporary.path().join("tree")), count / 2);
    let flat_walked = peak_bytes();
    eprintln!(
        "{count} entries: {} KiB at the begin, {} written, {} walked, {} one directory written, {} walked",
        before >> 10,
        written >> 10,
        walked >> 10,
        flat_written >> 10,
        flat_walked >> 10
    );
    assert!(walked - before < 8 * MIB, "the tree shows: {} bytes", walked - before);
    assert!(flat_written - before < 8 * MIB, "one directory shows: {} bytes", flat_written - before);
    // A walk sorts the names of one directory: 8 bytes and the name each.
    assert!(flat_walked - before < 8 * MIB + count / 2 * 40, "{} bytes", flat_walked - before);
}
