//! Issue 5.5, "the chunk index … within the memory budget": what it holds of a million chunks, and of as many files as it takes, in memory and on disk. A
//! program of its own, because the peak of a process is that of everything in it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dray_core::chunker::Profile;
use dray_core::limits::INDEX_FILES_MAX;
use dray_core::recipe::ChunkDescriptor;
use dray_core::store::FileIdentity;
use dray_store::index::{ChunkIndex, IndexLimits, Scope, key};

/// Set to 1, eight million chunks are taken in instead of half a million.
const FULL: &str = "DRAY_E2E_FULL";
const MIB: u64 = 1 << 20;
/// What `docs/adr/0021-other-files-through-an-index.md` promises.
const BUDGET: u64 = 32 * MIB;
/// What the index may take on disk.
const DISK_BYTES: u64 = 512 * MIB;

/// The most memory this process had so far.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Bytes that the files below `directory` take on disk.
fn on_disk(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let bytes_of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => on_disk(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // Merged away meanwhile.
        Err(_) => 0,
    };
    entries.map(bytes_of).sum()
}

/// A chunk.
fn chunk(number: u64) -> ChunkDescriptor {
    ChunkDescriptor { hash: *blake3::hash(&number.to_be_bytes()).as_bytes(), len: 16_384 }
}

/// Takes in a file that is not there, of `chunks` chunks from the `first` on.
fn enter(index: &ChunkIndex, path: &Path, first: u64, chunks: u64) {
    let size_bytes = (chunks * 16_384).max(MIB);
    let identity = FileIdentity { dev: 1, ino: first, size_bytes, mtime_ns: 1, ctime_ns: first as i64 };
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
    let limits = IndexLimits { free_bytes: 0, ..IndexLimits::of_disk(DISK_BYTES) };
    let (index, _) = ChunkIndex::open(&dir.path().join("index"), limits).unwrap();
    let chunks: u64 = if std::env::var_os(FULL).is_some_and(|full| full == "1") { 8 << 20 } else { 1 << 19 };
    let (files, mut disk_bytes) = (32, 0);
    let long = "p".repeat(60);
    for number in 0..files {
        enter(&index, &dir.path().join(format!("large{number}")), number * chunks / files, chunks / files);
        index.tidy().unwrap();
        disk_bytes = disk_bytes.max(on_disk(&dir.path().join("index")));
    }
    let keys: Vec<_> = (0..100_000).map(|number| key(&chunk(number * 5))).collect();
    let opened = fs::File::open(dir.path()).unwrap();
    let scope = Scope { opened: opened.as_fd(), directory: dir.path(), dev: 1 };
    for keys in keys.chunks(4096) {
        // They are looked for, and lie in files that there are not.
        assert!(index.look_up(keys, scope, &|| false).unwrap().places.iter().all(Option::is_none));
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
    disk_bytes = disk_bytes.max(on_disk(&dir.path().join("index")));
    eprintln!("{} MiB of disk", disk_bytes / MIB);
    assert!(disk_bytes <= DISK_BYTES, "{disk_bytes}");
}
