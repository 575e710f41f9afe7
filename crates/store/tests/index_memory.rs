//! Issue 5.5, "the chunk index … within the memory budget": what it holds of a million chunks, and of as many files as it takes. A
//! program of its own, because the peak of a process is that of everything in it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::path::Path;

use dray_core::chunker::Profile;
use dray_core::limits::INDEX_FILES_MAX;
use dray_core::recipe::ChunkDescriptor;
use dray_core::store::FileIdentity;
use dray_store::index::{ChunkIndex, IndexLimits, key};

/// Set to 1, eight million chunks are taken in instead of half a million.
const FULL: &str = "DRAY_E2E_FULL";
const MIB: u64 = 1 << 20;
/// What `docs/adr/0021-other-files-through-an-index.md` promises.
const BUDGET: u64 = 32 * MIB;

/// The most memory this process had so far.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// A chunk.
fn chunk(number: u64) -> ChunkDescriptor {
    ChunkDescriptor { hash: *blake3::hash(&number.to_be_bytes()).as_bytes(), len: 16_384 }
}

/// Takes in a file that is not there, of `chunks` chunks from the `first` on.
fn enter(index: &ChunkIndex, path: &Path, first: u64, chunks: u64) {
    let size_bytes = (chunks * 16_384).max(MIB);
    let identity = FileIdentity { dev: 1, ino: first, size_bytes, mtime_ns: 1, ctime_ns: 1 };
    let mut entering = index.enter(path, identity, Profile::default()).unwrap();
    for number in first..first + chunks {
        entering.add(&chunk(number), number * 16_384).unwrap();
    }
    entering.finish().unwrap();
}

#[test]
fn the_index_stays_within_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let before = peak_bytes();
    let (index, _) = ChunkIndex::open(&dir.path().join("index"), IndexLimits::default()).unwrap();
    let chunks: u64 = if std::env::var_os(FULL).is_some_and(|full| full == "1") { 8 << 20 } else { 1 << 19 };
    let files = 32;
    let long = "p".repeat(60);
    for number in 0..files {
        enter(&index, &dir.path().join(format!("large{number}")), number * chunks / files, chunks / files);
    }
    let keys: Vec<_> = (0..100_000).map(|number| key(&chunk(number * 5))).collect();
    for keys in keys.chunks(4096) {
        // They are looked for, and lie in files that there are not.
        assert!(index.look_up(keys, dir.path()).unwrap().places.iter().all(Option::is_none));
    }
    eprintln!("{:?}: {} KiB of memory", index.figures(), (peak_bytes() - before) / 1024);
    for number in 0..INDEX_FILES_MAX as u64 + 100 {
        enter(&index, &dir.path().join(format!("{long}{number}")), chunks + number, 1);
    }
    let figures = index.figures();
    let peak = peak_bytes() - before;
    eprintln!("{figures:?}: {} KiB of memory", peak / 1024);
    assert_eq!(figures.files, INDEX_FILES_MAX as u64);
    assert!(peak <= BUDGET, "{} KiB", peak / 1024);
}
