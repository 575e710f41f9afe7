//! Differences over pipes, between the real walk and the real writer: what comes of a file that replaces an older version of itself,
//! and what a liar can do. What crosses a real network is counted in `testing/e2e`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use dray_core::Result;
use dray_core::message::TreeDone;
use dray_store::local::tree::{Landing, TreeWriter, WriteOptions};
use dray_transfer::tree::{send, take};

use super::copies::{channels, keeping, recursive};
use super::sink::Writing;
use super::source::WalkSource;
use crate::Stop;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// Two directories, one to be copied over the other.
struct Trees {
    place: tempfile::TempDir,
}

impl Trees {
    fn new() -> Trees {
        let place = tempfile::tempdir().unwrap();
        for root in ["from", "to", "to/tree"] {
            fs::create_dir(place.path().join(root)).unwrap();
        }
        Trees { place }
    }

    fn newer(&self, name: &str) -> PathBuf {
        self.place.path().join("from").join(name)
    }

    fn older(&self, name: &str) -> PathBuf {
        self.place.path().join("to/tree").join(name)
    }

    /// A file and its older version.
    fn file(&self, name: &str, older: &[u8], newer: &[u8]) {
        fs::write(self.older(name), older).unwrap();
        fs::write(self.newer(name), newer).unwrap();
        // Not of the same second, so that sizes alone decide.
        let file = fs::File::options().write(true).open(self.older(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }

    fn copy_with(&self, write: WriteOptions, is_on: bool) -> Result<TreeDone> {
        let (near, mut far) = channels(65_536);
        let (from, to) = (self.place.path().join("from"), self.place.path().join("to"));
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let mut source = WalkSource::new(vec![from], recursive(), false, Stop::new());
                send(Box::new(near), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| PATIENCE)
            });
            let make = || {
                let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
                Ok(Writing::new(TreeWriter::new(landing, write), 1, false, &|_| {}).with_deltas(is_on))
            };
            let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
            drop(far);
            let sent = sending.join().unwrap();
            if let Ok(taken) = &taken {
                assert_eq!(sent.unwrap(), *taken);
            }
            taken
        })
    }

    fn copy(&self) -> TreeDone {
        self.copy_with(keeping(), true).unwrap()
    }

    fn assert_same(&self, name: &str) {
        assert!(fs::read(self.newer(name)).unwrap() == fs::read(self.older(name)).unwrap(), "{name} differs");
        assert_eq!(
            nothing_else(&self.place.path().join("to/tree")),
            nothing_else(&self.place.path().join("from"))
        );
    }
}

fn nothing_else(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// P5, Y26: bytes put in at the head, one block changed, a log that grew, a file cut short, pieces that changed places: only what is new
/// comes, and what comes is what was sent.
#[test]
fn only_what_changed_comes() {
    let old = noise(6 * MIB, 1);
    let mut block = old.clone();
    block[3_000_000..3_004_096].copy_from_slice(&noise(4096, 2));
    let swapped = [&old[3 * MIB..], &old[..3 * MIB]].concat();
    let cases: [(&str, Vec<u8>, u64); 6] = [
        ("head", [b"sixteen more byt", &old[..]].concat(), 30_000),
        ("block", block, 30_000),
        ("log", [&old[..], &noise(20_000, 3)].concat(), 50_000),
        ("cut", old[..4 * MIB + 5].to_vec(), 30_000),
        ("swapped", swapped, 100_000),
        ("same", old.clone(), 0),
    ];
    for (name, new, bytes_max) in cases {
        let trees = Trees::new();
        trees.file(name, &old, &new);
        let done = trees.copy();
        assert!(done.bytes <= bytes_max, "{name}: {} bytes", done.bytes);
        assert_eq!(
            (done.files, done.unchanged, done.failed),
            if name == "same" { (0, 1, 0) } else { (1, 0, 0) }
        );
        trees.assert_same(name);
        let (new, old) = (fs::metadata(trees.newer(name)).unwrap(), fs::metadata(trees.older(name)).unwrap());
        assert_eq!((new.mtime(), new.mode()), (old.mtime(), old.mode()), "{name}");
    }
}

/// Doubt ends in sending whole, once: a file with nothing in common comes as it is, and nothing more.
#[test]
fn what_has_nothing_in_common_comes_whole() {
    for len in [70_000, 300_000, 9 * MIB] {
        let trees = Trees::new();
        trees.file("other", &noise(len + 1, 1), &noise(len, 2));
        let done = trees.copy();
        assert_eq!((done.files, done.bytes), (1, len as u64));
        trees.assert_same("other");
    }
}

/// `-W`, and a sender that does not know differences: everything comes.
#[test]
fn without_differences_everything_comes() {
    let old = noise(MIB, 1);
    let trees = Trees::new();
    trees.file("file", &old, &[&b"more"[..], &old].concat());
    let done = trees.copy_with(keeping(), false).unwrap();
    assert_eq!(done.bytes, MIB as u64 + 4);
    trees.assert_same("file");
}

/// Issue "sparse files": holes stay holes, in both versions and in what is put together.
#[test]
fn holes_stay_holes() {
    let trees = Trees::new();
    let data = noise(MIB, 1);
    for (path, at) in [(trees.older("sparse"), 1 << 30), (trees.newer("sparse"), (1 << 30) + 8192)] {
        let file = fs::File::create(path).unwrap();
        file.set_len(1 << 36).unwrap();
        file.write_all_at(&data, at).unwrap();
        file.write_all_at(b"end", (1 << 35) + at).unwrap();
    }
    let done = trees.copy_with(WriteOptions::default(), true).unwrap();
    assert_eq!((done.files, done.failed), (1, 0));
    assert!(done.bytes < 50_000, "{} bytes", done.bytes);
    let copied = fs::metadata(trees.older("sparse")).unwrap();
    assert_eq!(copied.len(), 1 << 36);
    assert!(copied.blocks() * 512 < 2 << 20, "{} blocks", copied.blocks());
    let file = fs::File::open(trees.older("sparse")).unwrap();
    let mut found = vec![0; MIB];
    file.read_exact_at(&mut found, (1 << 30) + 8192).unwrap();
    assert!(found == data);
}

/// Many files at once, more than there is room for: each is put together from its own older version.
#[test]
fn many_files_come_as_differences() {
    let trees = Trees::new();
    for number in 0..150u8 {
        let old = noise(70_000 + 997 * usize::from(number), number);
        let new = [&old[..30_000], &b"more"[..], &old[30_000..]].concat();
        trees.file(&format!("{number}"), &old, &new);
    }
    let done = trees.copy();
    assert_eq!((done.files, done.failed), (150, 0));
    assert!(done.bytes < 150 * 20_000, "{} bytes", done.bytes);
    for number in 0..150 {
        trees.assert_same(&format!("{number}"));
    }
}
