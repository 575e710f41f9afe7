//! A file of which a run that was cut off left something, where an older version of it stands, too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dray_core::message::{Part, TreeDone};
use dray_core::tree::{ChunkHint, Finished, Record, encode_chunks};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Owed;
use dray_store::local::tree::{Changes, SyncOptions};
use dray_transfer::tree::{RecordSink, SendError, TreeFile};

use super::differences::{chunks_of, noise, take_one};
use crate::lock;

const MIB: usize = 1 << 20;

/// A part of the file, and how it was cut: the average length, the chunks, and the hash of all of them.
type Told = (Part, u32, Vec<ChunkHint>, [u8; 32]);

/// A file that tells at once how it is cut, once it has been cut so, and of which so many bytes leave until the connection is cut.
struct Newer {
    bytes: Vec<u8>,
    left_bytes: AtomicU64,
    told: Mutex<Vec<Told>>,
}

impl Newer {
    fn range(&self, part: Part) -> &[u8] {
        &self.bytes[part.start as usize..part.end() as usize]
    }

    /// How a part is cut into chunks of this average length, and its hash.
    fn told(&self, part: Part, average: u32) -> (Vec<ChunkHint>, [u8; 32]) {
        let mut told = lock(&self.told);
        let is_it = |told: &&Told| told.0 == part && told.1 == average;
        let known = told.iter().find(is_it).map(|(_, _, chunks, hash)| (chunks.clone(), *hash));
        known.unwrap_or_else(|| {
            let chunks = chunks_of(self.range(part), average);
            let hash = *blake3::hash(self.range(part)).as_bytes();
            told.push((part, average, chunks.clone(), hash));
            (chunks, hash)
        })
    }

    /// So that it answers before the other end has cut anything.
    fn told_ahead(&self) {
        let whole = Part { start: 0, bytes: self.bytes.len() as u64 };
        (14..=22).for_each(|shift| drop(self.told(whole, 1 << shift)));
    }

    fn finished(&self, hash: [u8; 32]) -> Finished {
        Finished { hash, size_bytes: self.bytes.len() as u64, mtime_s: 5, mtime_ns: 0 }
    }
}

impl TreeFile for Newer {
    fn send(
        &self,
        _: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError> {
        let bytes = part.map_or(&self.bytes[..], |part| self.range(part));
        for piece in bytes.chunks(64 * 1024) {
            let len = piece.len() as u64;
            let leaves = |left: u64| left.checked_sub(len);
            if self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leaves).is_err() {
                return Err(SendError::Channel(Error::new(ErrorKind::Interrupted, "cut off")));
            }
            sink.record(&Record::Bytes(piece))?;
        }
        sink.record(&Record::Done(self.finished(*blake3::hash(bytes).as_bytes())))
    }

    fn cut(&self, owed: &Owed, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        let (chunks, hash) = self.told(owed.part.unwrap(), owed.cut.unwrap());
        sink.record(&Record::Chunks(&encode_chunks(&chunks)))?;
        sink.record(&Record::Done(self.finished(hash)))
    }
}

/// One run, with `--partial`.
fn run(place: &Path, newer: &Arc<Newer>) -> Result<TreeDone> {
    let sync = SyncOptions { partial: true, ..SyncOptions::default() };
    let changes = Changes { sync: Some(sync), ..Changes::default() };
    take_one(place, newer.bytes.len() as u64, newer.clone(), &changes)
}

/// What lies in the directory, and how much of the disk each takes.
fn found(place: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(place.join("tree")).unwrap().map(Result::unwrap);
    let told = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().blocks() * 512)
    };
    let mut found: Vec<_> = entries.map(told).collect();
    found.sort();
    found
}

/// Issue 7, "interrupted runs": what came before a run was cut off does not come again, nor does what the older version has, whichever of both has more; here the one
/// has the file's beginning, and the other its end, or all of it.
#[test]
fn a_cut_off_run_goes_on_beside_an_older_version() {
    const KIB: usize = 1024;
    const SIZE: usize = 8 * MIB + 1000;
    for (older_bytes, left_bytes) in [
        (2 * MIB, 3 * MIB),
        (5 * MIB, 5 * MIB / 2),
        (6 * MIB, 5 * MIB / 2),
        (0, 5 * MIB),
        (0, 3 * MIB / 2),
        (3 * MIB, 3 * MIB / 2),
        (SIZE, 8 * MIB - 300 * KIB),
    ] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tree/file");
        fs::create_dir(place.path().join("tree")).unwrap();
        let bytes = noise(SIZE, 1);
        let newer =
            Arc::new(Newer { bytes, left_bytes: AtomicU64::new(left_bytes as u64), told: Mutex::default() });
        assert!(run(place.path(), &newer).is_err());
        let left = found(place.path());
        assert!(left.len() == 1 && left[0].0.starts_with(".dray-"), "{left:?}");
        assert!(left[0].1 >= (left_bytes - MIB / 4) as u64, "{left:?}");

        // It stood there before, or somebody made it meanwhile: that is the same.
        let older = [&noise(MIB + MIB / 2, 2)[..], &newer.bytes[SIZE - older_bytes..]].concat();
        fs::write(&path, &older).unwrap();
        newer.told_ahead();
        newer.left_bytes.store(u64::MAX, Ordering::Relaxed);
        let done = run(place.path(), &newer).unwrap();
        assert_eq!((done.files, done.failed), (1, 0));
        let missing = SIZE.saturating_sub(older_bytes + left_bytes);
        assert!(
            done.bytes <= (missing + 400 * KIB) as u64,
            "{older_bytes} {left_bytes}: {} bytes",
            done.bytes
        );
        if older_bytes == SIZE {
            assert!(done.bytes <= 64 * KIB as u64, "{} bytes of what the older version has", done.bytes);
        }
        assert!(fs::read(&path).unwrap() == newer.bytes);
        assert_eq!(found(place.path()).len(), 1);
    }
}

/// Issue 7, "interrupted runs": a file comes to its end however early each run is cut off, as each goes on with what all before it left.
#[test]
fn runs_that_are_cut_off_early_come_to_an_end() {
    const SIZE: usize = 8 * MIB + 1000;
    const EACH: usize = 3 * MIB / 2;
    const RUNS_MAX: usize = 10;
    for older_bytes in [0, 2 * MIB] {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("tree")).unwrap();
        let newer =
            Arc::new(Newer { bytes: noise(SIZE, 1), left_bytes: AtomicU64::new(0), told: Mutex::default() });
        let path = place.path().join("tree/file");
        if older_bytes > 0 {
            fs::write(&path, &newer.bytes[SIZE - older_bytes..]).unwrap();
        }
        newer.told_ahead();
        let mut runs = 0;
        loop {
            newer.left_bytes.store(EACH as u64, Ordering::Relaxed);
            runs += 1;
            if run(place.path(), &newer).is_ok() {
                break;
            }
            assert!(runs < RUNS_MAX, "{older_bytes}: {:?}", found(place.path()));
        }
        assert!(fs::read(&path).unwrap() == newer.bytes);
        assert_eq!(found(place.path()).len(), 1, "nothing else is left");
    }
}
