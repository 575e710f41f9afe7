//! Differences over pipes, between the real walk and the real writer: what comes of a file that replaces an older version of itself,
//! and what a liar can do. What crosses a real network is counted in `testing/e2e`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dray_core::block_mask::Have;
use dray_core::message::{Entries, Part, TreeDone};
use dray_core::tree::{ChunkHint, Entry, Finished, Kind, Metadata, Name, Record, cut_profile, encode_chunks};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Owed;
use dray_store::local::tree::{Changes, Landing, SyncOptions, TreeWriter, WriteOptions};
use dray_transfer::tree::{Batch, RecordSink, SendError, TreeFile, TreeSource, send, take};

use super::copies::{channels, keeping, recursive};
use super::sink::Writing;
use super::source::WalkSource;
use crate::Stop;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// Two directories, one to be copied over the other.
pub(super) struct Trees {
    pub(super) place: tempfile::TempDir,
}

impl Trees {
    pub(super) fn new() -> Trees {
        let place = tempfile::tempdir().unwrap();
        for root in ["from", "to", "to/tree"] {
            fs::create_dir(place.path().join(root)).unwrap();
        }
        Trees { place }
    }

    pub(super) fn newer(&self, name: &str) -> PathBuf {
        self.place.path().join("from").join(name)
    }

    pub(super) fn older(&self, name: &str) -> PathBuf {
        self.place.path().join("to/tree").join(name)
    }

    /// A file and its older version.
    pub(super) fn file(&self, name: &str, older: &[u8], newer: &[u8]) {
        fs::write(self.older(name), older).unwrap();
        fs::write(self.newer(name), newer).unwrap();
        // Not of the same second, so that sizes alone decide.
        let file = fs::File::options().write(true).open(self.older(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }

    fn copy_with(&self, write: WriteOptions, is_on: bool) -> Result<TreeDone> {
        let from = self.place.path().join("from");
        self.copy_from(WalkSource::new(vec![from], recursive(), false, Stop::new()), write, is_on)
    }

    fn copy_from(&self, mut source: impl TreeSource, write: WriteOptions, is_on: bool) -> Result<TreeDone> {
        let (near, mut far) = channels(65_536);
        let to = self.place.path().join("to");
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
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

    pub(super) fn assert_same(&self, name: &str) {
        assert!(fs::read(self.newer(name)).unwrap() == fs::read(self.older(name)).unwrap(), "{name} differs");
        assert_eq!(names_in(&self.place.path().join("to/tree")), names_in(&self.place.path().join("from")));
    }
}

fn names_in(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

pub(super) fn noise(len: usize, seed: u8) -> Vec<u8> {
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

/// P5: a file renamed, two that changed places, a directory moved, a copy of a file: nothing of them comes. What only looks like it, by
/// size and time, comes as it is.
#[test]
fn what_lies_there_under_another_name_does_not_come() {
    let trees = Trees::new();
    let at = |number: u64| std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000 + number, 7);
    let put = |path: &Path, bytes: &[u8], number| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(at(number)).unwrap();
    };
    let content = |number: u8| noise(300_000 + usize::from(number), number);
    for (older, newer, number) in [
        ("renamed before", "renamed", 1),
        ("a", "b", 2),
        ("b", "a", 3),
        ("dir/one", "moved/one", 4),
        ("dir/two", "moved/deep/two", 5),
        ("dir/small", "moved/small", 6),
        ("stays", "copy of it", 7),
    ] {
        let content = if number == 6 { noise(5000, 6) } else { content(number) };
        put(&trees.older(older), &content, number.into());
        put(&trees.newer(newer), &content, number.into());
    }
    put(&trees.newer("stays"), &content(7), 7);
    // Of one size and time, but others.
    put(&trees.older("alike before"), &noise(70_000, 8), 8);
    put(&trees.newer("alike"), &noise(70_000, 9), 8);
    let done = trees.copy();
    assert_eq!((done.bytes, done.files, done.unchanged, done.failed), (70_000, 1, 8, 0));
    for name in
        ["renamed", "a", "b", "moved/one", "moved/deep/two", "moved/small", "stays", "copy of it", "alike"]
    {
        assert!(
            fs::read(trees.newer(name)).unwrap() == fs::read(trees.older(name)).unwrap(),
            "{name} differs"
        );
        let (new, old) = (fs::metadata(trees.newer(name)).unwrap(), fs::metadata(trees.older(name)).unwrap());
        assert_eq!((new.mtime(), new.mtime_nsec()), (old.mtime(), old.mtime_nsec()), "{name}");
    }
    // What it was copied from is another file still.
    let inode = |name: &str| fs::metadata(trees.older(name)).unwrap().ino();
    assert_ne!(inode("renamed"), inode("renamed before"));
}

/// Never slower than without: a stranger that only has the size and time of the newer version does not keep that from being compared
/// with its own older one, larger or of the same size; where many have them, none is asked about.
#[test]
fn a_stranger_does_not_stand_before_the_older_version() {
    for (strangers, older_bytes) in [(1, 290_000), (1, 300_000), (2, 290_000)] {
        let trees = Trees::new();
        let mut newer = noise(300_000, 1);
        trees.file("file", &newer[..older_bytes], &newer);
        newer[100_000..100_016].fill(7);
        fs::write(trees.newer("file"), &newer).unwrap();
        let time = fs::metadata(trees.newer("file")).unwrap().modified().unwrap();
        for number in 0..strangers {
            let (here, there) = (format!("{number}"), trees.older(&format!("{number}")));
            fs::write(&there, noise(300_000, 10 + number)).unwrap();
            fs::File::options().write(true).open(&there).unwrap().set_modified(time).unwrap();
            // It stays as it is.
            let kept = trees.newer(&here);
            fs::copy(&there, &kept).unwrap();
            fs::File::options().write(true).open(&kept).unwrap().set_modified(time).unwrap();
        }
        let done = trees.copy();
        assert_eq!((done.files, done.failed), (1, 0));
        assert!(done.bytes < 40_000, "{strangers}, {older_bytes}: {} bytes", done.bytes);
        trees.assert_same("file");
    }
}

/// S77: two names of one file that were touched at the source are kept, both: what the first one is given does not make the second one
/// another.
#[test]
fn two_names_that_were_touched_are_kept() {
    let trees = Trees::new();
    let bytes = noise(300_000, 1);
    trees.file("a", &bytes, &bytes);
    fs::hard_link(trees.older("a"), trees.older("b")).unwrap();
    fs::copy(trees.newer("a"), trees.newer("b")).unwrap();
    let done = trees.copy();
    assert_eq!((done.bytes, done.unchanged, done.failed), (0, 2, 0));
    assert_eq!(fs::metadata(trees.older("a")).unwrap().ino(), fs::metadata(trees.older("b")).unwrap().ino());
}

/// What a sender says that is not so, or what happens while it says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// It tells the chunks of the older version as its own.
    Chunks,
    /// The hash at the end of the cut is of something else.
    Hash,
    /// So is that of each part.
    Parts,
    /// The file has another time when its parts are read.
    Time,
    /// It has the hash that it was told; or that of what is there, and another size.
    Same,
    SameSize,
    /// It cannot be cut.
    Refused,
    /// It changes whenever it is cut.
    Changed,
    /// The older version is written to meanwhile; or after it was hashed, and is what it was when that was told.
    OlderChanges,
    OlderChangesLate,
    /// It tells of fewer bytes than it was asked for, of more, and of none for ever.
    Short,
    Long,
    Holes,
    /// It sends bytes where chunks were asked for.
    Bytes,
}

/// A file that lies about how it is cut, and is honest as a whole.
struct Liar {
    lie: Lie,
    newer: Vec<u8>,
    older: Vec<u8>,
    older_path: PathBuf,
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

impl Liar {
    fn finished(&self, hash: [u8; 32], mtime_s: i64) -> Finished {
        Finished { hash, size_bytes: self.newer.len() as u64, mtime_s, mtime_ns: 0 }
    }

    fn range(&self, part: &Part) -> &[u8] {
        &self.newer[part.start as usize..part.end() as usize]
    }
}

impl TreeFile for Liar {
    fn send(
        &self,
        _: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError> {
        let bytes = part.map_or(&self.newer[..], |part| self.range(&part));
        for piece in bytes.chunks(100_000) {
            sink.record(&Record::Bytes(piece))?;
        }
        let is_lie = part.is_some() && self.lie == Lie::Parts;
        let mtime_s = i64::from(part.is_some() && self.lie == Lie::Time);
        sink.record(&Record::Done(self.finished(if is_lie { [6; 32] } else { hash(bytes) }, mtime_s)))
    }

    fn cut(&self, owed: &Owed, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        let part = owed.part.unwrap();
        let failed = |kind| Err(SendError::File(Error::new(kind, "no")));
        match self.lie {
            Lie::Refused => return failed(ErrorKind::Unsupported),
            Lie::Changed => return failed(ErrorKind::Changed),
            Lie::Same => return sink.record(&Record::Same(self.finished([5; 32], 0))),
            Lie::SameSize => {
                let size_bytes = self.newer.len() as u64 + 1;
                return sink
                    .record(&Record::Same(Finished { size_bytes, ..self.finished(owed.known.unwrap(), 5) }));
            }
            Lie::OlderChanges => fs::write(&self.older_path, noise(self.older.len(), 99)).unwrap(),
            Lie::OlderChangesLate => {
                write_anew(&self.older_path, &noise(self.older.len(), 99));
                return sink.record(&Record::Same(self.finished(owed.known.unwrap(), 5)));
            }
            Lie::Bytes => return sink.record(&Record::Bytes(b"bytes")),
            Lie::Holes => {
                for _ in 0..100_000 {
                    sink.record(&Record::Hole(1))?;
                }
            }
            _ => {}
        }
        let mut told = self.newer.clone();
        if self.lie == Lie::Chunks {
            let len = told.len().min(self.older.len());
            told[..len].copy_from_slice(&self.older[..len]);
        }
        let mut chunks = chunks_of(&told[part.start as usize..part.end() as usize], owed.cut.unwrap());
        match self.lie {
            Lie::Short => drop(chunks.pop()),
            Lie::Long => chunks.push(ChunkHint { len: 1 << 20, hash: [1; 16] }),
            _ => {}
        }
        sink.record(&Record::Chunks(&encode_chunks(&chunks)))?;
        let hash = if self.lie == Lie::Hash { [4; 32] } else { hash(self.range(&part)) };
        sink.record(&Record::Done(self.finished(hash, 0)))
    }
}

/// Writes a file until its times tell of that.
pub(super) fn write_anew(path: &Path, bytes: &[u8]) {
    let time = || fs::metadata(path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let before = time();
    while time() == before {
        fs::write(path, bytes).unwrap();
    }
}

/// How `bytes` are cut into chunks of this average length.
pub(super) fn chunks_of(bytes: &[u8], average_bytes: u32) -> Vec<ChunkHint> {
    let mut chunks = Vec::new();
    let mut push = |chunk: &[u8]| chunks.push(ChunkHint::of(chunk));
    let mut chunker = cut_profile(average_bytes).unwrap().chunker();
    chunker.push(bytes, &mut push);
    chunker.finish(&mut push);
    chunks
}

/// A directory with one file in it, `file`, of so many bytes.
struct OneFile(u64, Option<Arc<dyn TreeFile>>);

impl TreeSource for OneFile {
    fn next_batch(&mut self) -> Option<Batch> {
        let content = self.1.take()?;
        let root =
            Entry { name: None, kind: Kind::Directory { entries: None }, metadata: Metadata::default() };
        let kind = Kind::File { size_bytes: self.0, oid: None };
        let metadata = Metadata { mode: 0o644, mtime_s: 5, ..Metadata::default() };
        let file = Entry { name: Some(Name::new(b"file").unwrap()), kind, metadata };
        let items = vec![root.to_bytes().into(), file.to_bytes().into(), Vec::new().into()];
        Some(Batch {
            entries: Some(Entries { items, owners: None, is_last: true, listed: None }),
            count: 2,
            files: vec![(1, content)],
            failed: Vec::new(),
            digests: None,
        })
    }

    fn batches_ahead(&self) -> usize {
        1
    }
}

/// Copies `file`, of so many bytes, into the directory `tree` of `place`.
pub(super) fn take_one(
    place: &Path,
    size_bytes: u64,
    file: Arc<dyn TreeFile>,
    changes: &Changes,
) -> Result<TreeDone> {
    let (near, mut far) = channels(65_536);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut source = OneFile(size_bytes, Some(file));
            let _ = send(Box::new(near), Vec::new(), &mut source, None, &mut |_| Ok(()), &|| PATIENCE);
        });
        let make = || {
            let landing = Landing::resolve(place, &[b"tree".to_vec()], false)?;
            let writer = TreeWriter::new(landing, keeping()).with_changes(changes.clone());
            Ok(Writing::new(writer, 1, false, &|_| {}).with_deltas(true))
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
        drop(far);
        taken
    })
}

/// Copies over an older version what `lie` says of `newer`; the bytes that are in place afterwards, too.
fn lied(lie: Lie, older: &[u8], newer: &[u8]) -> (Result<TreeDone>, Vec<u8>) {
    lied_about(lie, older, newer, &Changes::default())
}

/// The same with `changes`.
fn lied_about(lie: Lie, older: &[u8], newer: &[u8], changes: &Changes) -> (Result<TreeDone>, Vec<u8>) {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("tree")).unwrap();
    let older_path = place.path().join("tree/file");
    fs::write(&older_path, older).unwrap();
    let was = fs::metadata(&older_path).unwrap().ino();
    let liar = Liar { lie, newer: newer.to_vec(), older: older.to_vec(), older_path: older_path.clone() };
    let taken = take_one(place.path(), newer.len() as u64, Arc::new(liar), changes);
    let names = names_in(&place.path().join("tree"));
    assert_eq!(names, ["file"], "{lie:?} left something");
    if changes.sync.is_some() {
        assert_eq!(fs::metadata(&older_path).unwrap().ino(), was, "{lie:?}: another file");
    }
    (taken, fs::read(older_path).unwrap())
}

/// Y3, Y23 "slower, never wrong": a lie about chunks, and an older version or a file that changes meanwhile, cost the file once more
/// at most.
#[test]
fn a_lie_costs_the_file_once_more() {
    let older = noise(MIB, 1);
    let mut newer = noise(MIB, 1);
    newer[500_000..600_000].copy_from_slice(&noise(100_000, 2));
    newer.extend_from_slice(b"longer");
    let len = newer.len() as u64;
    let mut same_len = older.clone();
    same_len.extend_from_slice(b"older ");
    for lie in [Lie::Chunks, Lie::Hash, Lie::Time, Lie::Refused, Lie::Changed, Lie::OlderChanges] {
        for older in [&older, &same_len] {
            let (done, found) = lied(lie, older, &newer);
            let done = done.unwrap();
            assert_eq!((done.files, done.failed), (1, 0), "{lie:?}");
            assert!((len..2 * len).contains(&done.bytes), "{lie:?}: {} bytes of {len}", done.bytes);
            assert!(found == newer, "{lie:?}: wrong bytes");
        }
    }
    let (done, found) = lied(Lie::Parts, &older, &newer);
    assert_eq!(done.unwrap().failed, 1, "bytes that are not those that were sent");
    assert!(found == older);
}

/// Design 17: an answer that cannot be one ends the copy, in time and memory that are bounded, and leaves the older version.
#[test]
fn an_impossible_cut_ends_the_copy() {
    let (older, newer) = (noise(MIB, 1), noise(MIB + 100, 2));
    for lie in [Lie::Short, Lie::Long, Lie::Holes, Lie::Bytes, Lie::Same] {
        let (done, found) = lied(lie, &older, &newer);
        let error = done.expect_err("an impossible cut");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{lie:?}: {error}");
        assert!(found == older, "{lie:?}");
    }
    let (done, found) = lied(Lie::SameSize, &older, &older);
    assert_eq!(done.expect_err("another size").kind(), ErrorKind::Protocol);
    assert!(found == older);
}

/// S86: whatever a sender says, a file that is changed in place has all of its old bytes or all of what was proven, and stays the same file.
#[test]
fn a_lie_touches_nothing_that_is_changed() {
    let changes = || {
        let sync = SyncOptions { in_place: true, ..SyncOptions::default() };
        Changes { sync: Some(sync), ..Changes::default() }
    };
    let older = noise(MIB, 1);
    let mut newer = older.clone();
    newer[500_000..600_000].copy_from_slice(&noise(100_000, 2));
    newer.extend_from_slice(b"longer");
    for lie in [Lie::Chunks, Lie::Hash, Lie::Time, Lie::Refused, Lie::Changed] {
        let (done, found) = lied_about(lie, &older, &newer, &changes());
        assert_eq!(done.unwrap().failed, 0, "{lie:?}");
        assert!(found == newer, "{lie:?}: wrong bytes");
    }
    for lie in [Lie::Parts, Lie::Short, Lie::Long, Lie::Holes, Lie::Bytes, Lie::Same] {
        let (done, found) = lied_about(lie, &older, &newer, &changes());
        assert!(done.is_ok_and(|done| done.failed == 1) == (lie == Lie::Parts), "{lie:?}");
        assert!(found == older, "{lie:?}: the file was touched");
    }
}

/// S77: what the sender finds the same is kept only if it still is what was hashed: who wrote to it meanwhile would have those bytes taken
/// for the sender's by every later copy.
#[test]
fn an_older_version_that_changes_after_it_was_hashed_is_not_kept() {
    let older = noise(MIB, 1);
    let (done, found) = lied(Lie::OlderChangesLate, &older, &older);
    let done = done.unwrap();
    assert_eq!((done.files, done.unchanged, done.failed, done.bytes), (1, 0, 0, MIB as u64));
    assert!(found == older, "what somebody wrote has the sender's time");
}

/// A file of an honest walk that is written to when its first part is asked for: after it was cut.
struct WrittenTo {
    file: Arc<dyn TreeFile>,
    path: PathBuf,
    bytes: Vec<u8>,
    is_written: AtomicBool,
}

impl TreeFile for WrittenTo {
    fn send(
        &self,
        known: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError> {
        if part.is_some() && !self.is_written.swap(true, Ordering::AcqRel) {
            write_anew(&self.path, &self.bytes);
        }
        self.file.send(known, part, sink)
    }

    fn send_rest(&self, part: &Part, have: &Have, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        if !self.is_written.swap(true, Ordering::AcqRel) {
            write_anew(&self.path, &self.bytes);
        }
        self.file.send_rest(part, have, sink)
    }

    fn cut(&self, owed: &Owed, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        self.file.cut(owed, sink)
    }
}

pub(super) struct WrittenToWalk {
    pub(super) walk: WalkSource,
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl TreeSource for WrittenToWalk {
    fn next_batch(&mut self) -> Option<Batch> {
        let mut batch = self.walk.next_batch()?;
        for (_, file) in &mut batch.files {
            *file = Arc::new(WrittenTo {
                file: file.clone(),
                path: self.path.clone(),
                bytes: self.bytes.clone(),
                is_written: AtomicBool::new(false),
            });
        }
        Some(batch)
    }

    fn batches_ahead(&self) -> usize {
        1
    }
}

/// S77, issue "every file is either old or new": a file that is written to between its cut and its parts comes once more, whole, as it is then.
#[test]
fn a_file_that_changes_after_it_was_cut_comes_whole() {
    let old = noise(2 * MIB, 1);
    let (mut new, mut newest) = (old.clone(), old.clone());
    new[MIB..MIB + 50_000].copy_from_slice(&noise(50_000, 2));
    newest[..50_000].copy_from_slice(&noise(50_000, 3));
    let trees = Trees::new();
    trees.file("file", &old, &new);
    let walk = WalkSource::new(vec![trees.place.path().join("from")], recursive(), false, Stop::new());
    let source = WrittenToWalk { walk, path: trees.newer("file"), bytes: newest.clone() };
    let done = trees.copy_from(source, keeping(), true).unwrap();
    assert_eq!((done.files, done.failed), (1, 0));
    assert!((2 * MIB as u64..3 * MIB as u64).contains(&done.bytes), "{} bytes", done.bytes);
    trees.assert_same("file");
    assert!(fs::read(trees.older("file")).unwrap() == newest);
}
