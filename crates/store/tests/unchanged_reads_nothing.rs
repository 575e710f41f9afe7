//! D14, design 11: putting an unchanged file again reads none of it. Alone in its process, because the witness, the
//! kernel's count of bytes this process read, speaks of the whole process.

#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

use std::time::{Duration, SystemTime};

use dray_core::store::{Standing, Store};
use dray_store::local::LocalStore;

#[test]
fn second_put_of_an_unchanged_file_reads_nothing() {
    const FILE_BYTES: usize = 32 << 20;
    const RECORDS_BYTES: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0x5a; FILE_BYTES]).unwrap();
    let open = || LocalStore::open(&dir.path().join("data")).unwrap();

    // Written a moment ago: served, but neither trusted nor remembered as settled.
    assert_eq!(open().put_file(&path, &|_| {}).unwrap().standing(), Standing::Doubtful);
    let later = || open().with_clock(|| SystemTime::now() + Duration::from_secs(60));
    let before = read_bytes();
    assert_eq!(later().put_file(&path, &|_| {}).unwrap().standing(), Standing::Trusted);
    let hashed = read_bytes();
    assert!(hashed - before >= FILE_BYTES as u64, "a file put too fresh is hashed again");
    for _ in 0..3 {
        assert_eq!(later().put_file(&path, &|_| {}).unwrap().standing(), Standing::Trusted);
    }
    let read = read_bytes() - hashed;
    assert!(read < RECORDS_BYTES, "{read} bytes were read");
}

/// Bytes this process has asked the kernel for so far (`rchar`, proc(5)).
fn read_bytes() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}
