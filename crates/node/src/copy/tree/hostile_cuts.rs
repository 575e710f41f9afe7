//! Answers to cuts, parts and contents in an order that no honest sender need keep to, by hand against the real receiver: whatever
//! comes when, no file gets its name before it is the sender's (issue "in-file differences inside trees").

use std::collections::VecDeque;
use std::fs;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use dray_core::frame::FrameKind;
use dray_core::hash_tree::ContentHasher;
use dray_core::limits::TREE_DELTAS_MAX;
use dray_core::message::{Direct, Fault, Message, Part, Pull, Run, TreeDone};
use dray_core::rights::Secret;
use dray_core::tree::{Finished, Record, decode_chunks, encode_chunks};
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::Owed;
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::tree::{RecordSink, SendError, TreeSource, take};

use super::copies::{channels, keeping, recursive};
use super::differences::chunks_of;
use super::hostile::{Peer, directory, file};
use super::sink::{Doors, Writing};
use super::source::WalkSource;
use crate::Stop;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// Direct connections that never come up: large files are asked for in parts, over the pipe.
struct NoneComes;

impl Doors for NoneComes {
    fn invite(&self) -> Option<Direct> {
        Some(Direct {
            node: NodeId::from_bytes([1; 32]),
            addresses: Vec::new(),
            secret: Secret::from_bytes([2; 16]),
        })
    }

    fn handle_direct(&self, _: Direct) -> Result<()> {
        Ok(())
    }
}

/// What came of a copy: what the receiver says, and the bytes under the name.
fn received(older: &[u8], hostile: impl FnOnce(Peer) + Send) -> (Result<TreeDone>, Vec<u8>) {
    received_over(&["f".to_owned()], older, hostile)
}

/// The same over some files that are all alike; the bytes of the first.
fn received_over(
    names: &[String],
    older: &[u8],
    hostile: impl FnOnce(Peer) + Send,
) -> (Result<TreeDone>, Vec<u8>) {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("tree")).unwrap();
    for name in names {
        let path = place.path().join("tree").join(name);
        fs::write(&path, older).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }
    let (near, mut far) = channels(65_536);
    let taken = thread::scope(|scope| {
        scope.spawn(move || hostile(Peer::new(near)));
        let make = || {
            let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false)?;
            let writing = Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {});
            Ok(writing.with_doors(Some(&NoneComes)).with_deltas(true))
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
        drop(far);
        taken
    });
    (taken, fs::read(place.path().join("tree").join(&names[0])).unwrap())
}

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// An older and a newer version that have every other 32 KiB of the second half in common, and all of the first: no coarse chunk of the
/// second half is found, half of the fine ones are.
fn versions(len: usize) -> (Vec<u8>, Vec<u8>) {
    let (older, other) = (noise(len, 1), noise(len, 2));
    let mut newer = older.clone();
    for at in (len / 2..len).step_by(64 << 10) {
        newer[at..at + (32 << 10)].copy_from_slice(&other[at..at + (32 << 10)]);
    }
    newer.extend_from_slice(b"longer");
    (older, newer)
}

/// The one file of an honest sender.
pub(super) struct Honest<'a>(pub(super) &'a [u8]);

impl Honest<'_> {
    pub(super) fn finished(&self, bytes: &[u8]) -> Finished {
        let mut hasher = ContentHasher::new();
        hasher.update(bytes);
        Finished { hash: hasher.finish(), size_bytes: self.0.len() as u64, mtime_s: 5, mtime_ns: 0 }
    }

    /// Answers one run of `request`: a cut, a part, or the file.
    pub(super) fn answer(&self, peer: &mut Peer, request: u32, run: &Run) {
        let bytes = match run.part {
            Some(part) => &self.0[part.start as usize..part.end() as usize],
            None => self.0,
        };
        match run.cut {
            Some(average_bytes) => {
                chunks_of(bytes, average_bytes).chunks(1024).for_each(|chunks| {
                    peer.records(request, &[Record::Chunks(&encode_chunks(chunks))]);
                });
            }
            None => bytes.chunks(200_000).for_each(|piece| peer.records(request, &[Record::Bytes(piece)])),
        }
        peer.records(request, &[Record::Done(self.finished(bytes))]);
    }

    fn answer_all(&self, peer: &mut Peer, pull: &Pull) {
        pull.runs.iter().for_each(|run| self.answer(peer, pull.request, run));
        peer.frame(FrameKind::End, pull.request, &[]);
    }
}

fn is_cut(pull: &Pull) -> bool {
    pull.runs.first().is_some_and(|run| run.cut.is_some())
}

pub(super) fn tell(peer: &mut Peer, newer: &[u8]) {
    peer.tell(&[directory(None), file("f", newer.len() as u64), Vec::new()], true);
}

/// The next pull that asks for something; `None` once the receiver has done.
pub(super) fn pulled(peer: &mut Peer) -> Option<Pull> {
    loop {
        match peer.hear()? {
            Message::Pull(pull) if pull.request != 0 => return Some(pull),
            _ => {}
        }
    }
}

/// S77, "every file is proven whole before it has its name": a cut that fails while parts are on their way makes all of them void; those that come
/// all the same are no part of what is asked for then.
#[test]
fn a_cut_that_fails_beside_parts_costs_the_file_once() {
    let (older, newer) = versions(24 * MIB);
    for kind in [ErrorKind::Unsupported, ErrorKind::Internal, ErrorKind::Changed] {
        let (done, found) = received(&older, |mut peer| {
            let honest = Honest(&newer);
            tell(&mut peer, &newer);
            let (mut cuts, mut held) = (0, VecDeque::new());
            while let Some(pull) = pulled(&mut peer) {
                cuts += usize::from(is_cut(&pull));
                if is_cut(&pull) && cuts < 3 {
                    honest.answer_all(&mut peer, &pull);
                } else if is_cut(&pull) {
                    // Of the second window: the parts of the first one were asked for before.
                    let asked: Vec<&Pull> = held.iter().collect();
                    assert!(!asked.is_empty(), "no part is on its way");
                    let fault = Fault::from_error(None, &Error::new(kind, "too many open files"));
                    for _ in &pull.runs {
                        peer.records(pull.request, &[Record::Failed(fault.clone())]);
                    }
                    peer.frame(FrameKind::End, pull.request, &[]);
                    held.drain(..).for_each(|pull| honest.answer_all(&mut peer, &pull));
                } else if cuts < 3 {
                    held.push_back(pull);
                } else {
                    honest.answer_all(&mut peer, &pull);
                }
            }
            assert!(cuts >= 3, "no second window was asked about");
        });
        let done = done.unwrap();
        assert_eq!((done.files, done.failed), (1, 0), "{kind:?}");
        assert!(found == newer, "{kind:?}: wrong bytes under the name");
        assert!(done.bytes < 2 * newer.len() as u64, "{kind:?}: {} bytes", done.bytes);
    }
}

/// "Doubt ends in sending": where sizes say that little can be in common, nothing is asked about and nothing is read for it.
#[test]
fn versions_of_very_different_sizes_are_not_compared() {
    for (older, newer) in [(70_000, 400_000), (4 * MIB, 100_000)] {
        let (older, newer) = (noise(older, 1), noise(newer, 1));
        let (done, found) = received(&older, |mut peer| {
            tell(&mut peer, &newer);
            while let Some(pull) = pulled(&mut peer) {
                assert!(!is_cut(&pull), "{pull:?}");
                Honest(&newer).answer_all(&mut peer, &pull);
            }
        });
        assert_eq!(done.unwrap().bytes, newer.len() as u64);
        assert!(found == newer);
    }
}

/// ADR 23 "cuts never stand in the way": what has nothing to differ from is asked for, however many others wait for their cuts.
#[test]
fn new_files_do_not_wait_for_differences() {
    let (older, newer) = (noise(70_000, 1), noise(70_001, 1));
    let names: Vec<String> = (0..TREE_DELTAS_MAX + 10).map(|number| format!("f{number:03}")).collect();
    let new = names.len() as u64 + 1;
    let (done, found) = received_over(&names, &older, |mut peer| {
        let honest = Honest(&newer);
        let mut items = vec![directory(None)];
        items.extend(names.iter().map(|name| file(name, newer.len() as u64)));
        items.extend([file("new", newer.len() as u64), Vec::new()]);
        peer.tell(&items, true);
        let mut held = Vec::new();
        let mut has_asked = false;
        while let Some(pull) = pulled(&mut peer) {
            has_asked |= pull.runs.iter().any(|run| run.first == new);
            held.push(pull);
            if has_asked {
                held.drain(..).for_each(|pull| honest.answer_all(&mut peer, &pull));
            }
        }
        assert!(has_asked, "the new file was never asked for");
    });
    let done = done.unwrap();
    assert_eq!((done.files, done.failed), (new, 0));
    assert!(found == newer);
}

/// What a cut tells: bytes of its chunks and holes, and how often it was called between reads.
#[derive(Default)]
struct Told(u64);

impl RecordSink for Told {
    fn bytes(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> std::result::Result<usize, SendError> {
        panic!("a cut has no bytes");
    }

    fn record(&mut self, record: &Record<'_>) -> std::result::Result<(), SendError> {
        self.0 += match record {
            Record::Chunks(chunks) => decode_chunks(chunks).map(|chunk| u64::from(chunk.len)).sum(),
            Record::Hole(len) => *len,
            _ => 0,
        };
        Ok(())
    }

    fn work(&mut self) -> std::result::Result<(), SendError> {
        Ok(())
    }
}

/// Design 17: a question of 60 bytes costs its sender a read of the file, so no file is read so more often than a difference needs: once
/// for coarse chunks, once for fine ones. What is more is answered, and not read.
#[test]
fn a_file_is_cut_twice_at_most() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("f"), noise(200_000, 1)).unwrap();
    let mut walk = WalkSource::new(vec![place.path().to_owned()], recursive(), false, Stop::new());
    let batch = walk.next_batch().unwrap();
    let cut = |start, bytes| {
        let part = Some(Part { start, bytes });
        let owed = Owed {
            request: 1,
            number: 1,
            known: None,
            part,
            cut: Some(4096),
            is_last: true,
            ..Owed::default()
        };
        let mut told = Told::default();
        batch.files[0].1.cut(&owed, &mut told).map(|()| told.0)
    };
    assert_eq!(cut(0, 200_000).unwrap(), 200_000);
    for start in [0, 50_000, 100_000, 150_000] {
        assert_eq!(cut(start, 50_000).unwrap(), 50_000);
    }
    match cut(0, 1) {
        Err(SendError::File(error)) => assert_eq!(error.kind(), ErrorKind::Refused),
        other => panic!("{other:?}"),
    }
}
