//! Whole copies between a real walk and a real writer, over pipes: what only shows when both sides run.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dray_core::message::{CopyRole, Entries, EntryFailed, Part, TreeDone, tree_flag};
use dray_core::tree::{Entry, Finished, Kind, Metadata, Record};
use dray_core::{ErrorKind, Result};
use dray_store::local::tree::{Changes, Landing, SyncOptions, TreeWriter, WalkOptions, WriteOptions};
use dray_transfer::transport::PipeChannel;
use dray_transfer::tree::{Batch, RecordSink, SendError, TreeFile, TreeSource, send, take};

use super::sink::Writing;
use super::source::WalkSource;
use super::{TreeOptions, tree_message, walk_options, write_options};
use crate::{Stop, lock};

/// Longer than any of these copies takes; one that hangs is an error, not an endless test.
const LONG: Duration = Duration::from_secs(120);
/// How long a side waits for a silent one here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two ends over pipes that hold so many bytes.
pub(super) fn channels(pipe_bytes: usize) -> (PipeChannel, PipeChannel) {
    let (near_input, far_output) = rustix::pipe::pipe().unwrap();
    let (far_input, near_output) = rustix::pipe::pipe().unwrap();
    let pipes = [far_output.try_clone().unwrap(), near_output.try_clone().unwrap()];
    let near = PipeChannel::new(near_input, near_output).unwrap();
    let far = PipeChannel::new(far_input, far_output).unwrap();
    for pipe in pipes {
        rustix::pipe::fcntl_setpipe_size(&pipe, pipe_bytes).unwrap();
    }
    (near, far)
}

/// What became of a copy.
struct Copied {
    sent: Result<TreeDone>,
    taken: Result<TreeDone>,
    /// What failed, as the receiver said it and as the sender heard it.
    failed: Vec<EntryFailed>,
    heard: Vec<EntryFailed>,
}

/// Copies `from` to `to` over pipes of `pipe_bytes`.
fn copy(from: &Path, to: &Path, walk: WalkOptions, write: WriteOptions, pipe_bytes: usize) -> Copied {
    copy_changing(from, to, walk, write, pipe_bytes, Changes::default)
}

/// The same with `changes`, and a sender that sends what was compared once more.
fn copy_changing(
    from: &Path,
    to: &Path,
    walk: WalkOptions,
    write: WriteOptions,
    pipe_bytes: usize,
    changes: fn() -> Changes,
) -> Copied {
    let (near, mut far) = channels(pipe_bytes);
    let (report, reported) = mpsc::channel();
    let (from, to) = (from.to_owned(), to.to_owned());
    let failed = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (taker_failed, sender_heard) = (failed.clone(), heard.clone());
    let taker_report = report.clone();
    thread::spawn(move || {
        let on_failed = |entry: &EntryFailed| lock(&taker_failed).push(entry.clone());
        let make = || {
            let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
            let writer = TreeWriter::new(landing, write).with_changes(changes());
            Ok(Writing::new(writer, 1, false, &on_failed).with_compared(true))
        };
        let taken = take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE);
        drop(far);
        taker_report.send((false, taken)).unwrap();
    });
    thread::spawn(move || {
        let mut source = WalkSource::new(vec![from], walk, false, Stop::new());
        let mut hear = |message: Option<dray_core::message::Message>| {
            if let Some(dray_core::message::Message::EntryFailed(entry)) = message {
                lock(&sender_heard).push(entry);
            }
            Ok(())
        };
        let sent = send(Box::new(near), Vec::new(), &mut source, None, &mut hear, &|| PATIENCE);
        report.send((true, sent)).unwrap();
    });
    let (mut sent, mut taken) = (None, None);
    for _ in 0..2 {
        match reported.recv_timeout(LONG).expect("a side of the copy hangs") {
            (true, result) => sent = Some(result),
            (false, result) => taken = Some(result),
        }
    }
    let (failed, heard) = (lock(&failed).clone(), lock(&heard).clone());
    Copied { sent: sent.unwrap(), taken: taken.unwrap(), failed, heard }
}

pub(super) fn recursive() -> WalkOptions {
    WalkOptions { recursive: true, hard_links: true, ..WalkOptions::default() }
}

pub(super) fn keeping() -> WriteOptions {
    WriteOptions { times: true, modes: true, ..WriteOptions::default() }
}

/// Files that are there are changed.
pub(super) fn in_place() -> Changes {
    let sync = SyncOptions { in_place: true, ..SyncOptions::default() };
    Changes { sync: Some(sync), ..Changes::default() }
}

/// Design 9, S86: what may be asked for once more is settled once it need not be, so that a sender goes on that remembers no more than some batches: of thousands of files with two
/// names each, half are right but for their times, and stay, and half are changed in place.
#[test]
fn what_was_compared_is_settled_in_time() {
    let place = tempfile::tempdir().unwrap();
    let (from, to, other) =
        (place.path().join("from"), place.path().join("to/tree"), place.path().join("other"));
    for root in [&from, &to, &other] {
        fs::create_dir_all(root).unwrap();
    }
    let count = 12_000;
    let name_of = |number| format!("{number:05} {}", "n".repeat(100));
    for number in 0..count {
        let name = name_of(number);
        fs::write(from.join(&name), b"new").unwrap();
        let older = fs::File::create(to.join(&name)).unwrap();
        older.write_all_at(if number % 2 == 0 { b"new" } else { b"old" }, 0).unwrap();
        older.set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::hard_link(to.join(&name), other.join(&name)).unwrap();
    }
    let to = to.parent().unwrap();
    let copied = copy_changing(&from, to, recursive(), keeping(), 1 << 16, in_place);
    let done = copied.taken.unwrap();
    assert_eq!((done.files, done.unchanged, done.failed), (count / 2, count / 2, 0));
    assert_eq!(copied.sent.unwrap(), done);
    assert!((0..count).all(|number| fs::read(other.join(name_of(number))).unwrap() == b"new"));
}

/// Issue "every transfer ends" (design 9): thousands of entries that fail at the receiver fill the way back while contents fill
/// the way there, and neither waits for the other.
#[test]
fn thousands_of_failures_do_not_stop_both_directions() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    for root in [&from, &to] {
        fs::create_dir_all(root).unwrap();
    }
    let count = 6000;
    for number in 0..count {
        let name = format!("{number:05} {}", "n".repeat(100));
        fs::write(from.join(&name), vec![7; 3000]).unwrap();
        if number % 2 == 0 {
            // A directory stands in the way.
            fs::create_dir_all(to.join("tree").join(&name)).unwrap();
        }
    }
    let copied = copy(&from, &to, recursive(), keeping(), 4096);
    let done = copied.taken.unwrap();
    assert_eq!(copied.sent.unwrap(), done);
    assert_eq!((done.entries, done.files, done.failed), (count + 1, count / 2, count / 2));
    assert_eq!(copied.failed.len() as u64, count / 2);
    assert_eq!(copied.heard, copied.failed);
}

/// Issue "hard links": the receiver refuses the directory that has the first name of a group. The content comes under the next
/// name, and the others are linked to that.
#[test]
fn a_group_whose_first_name_is_refused_falls_to_the_next() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    for dir in ["a", "b", "c"] {
        fs::create_dir_all(from.join(dir)).unwrap();
    }
    fs::write(from.join("a/first"), b"shared").unwrap();
    fs::hard_link(from.join("a/first"), from.join("b/second")).unwrap();
    fs::hard_link(from.join("a/first"), from.join("c/third")).unwrap();
    fs::create_dir_all(to.join("tree")).unwrap();
    // No directory can be made here.
    fs::write(to.join("tree/a"), b"in the way").unwrap();
    let copied = copy(&from, &to, recursive(), keeping(), 65_536);
    let done = copied.taken.unwrap();
    copied.sent.unwrap();
    assert_eq!(copied.failed.len(), 1, "{:?}", copied.failed);
    assert_eq!(done.failed, 1);
    let second = fs::metadata(to.join("tree/b/second")).unwrap();
    let third = fs::metadata(to.join("tree/c/third")).unwrap();
    assert_eq!(fs::read(to.join("tree/b/second")).unwrap(), b"shared");
    assert_eq!((second.ino(), second.nlink()), (third.ino(), 2));
}

/// The same where the name itself cannot be had, which shows when other names wait for it already: only one of them is asked for,
/// late, and the others wait for that.
#[test]
fn a_group_whose_first_name_is_taken_falls_to_the_next() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    for number in 0..40 {
        let first = from.join(format!("a{number:02}"));
        fs::write(&first, format!("shared {number}")).unwrap();
        fs::hard_link(&first, from.join(format!("b{number:02}"))).unwrap();
        fs::hard_link(&first, from.join(format!("c{number:02}"))).unwrap();
        fs::create_dir_all(to.join(format!("tree/a{number:02}"))).unwrap();
        if number % 2 == 0 {
            fs::create_dir_all(to.join(format!("tree/b{number:02}"))).unwrap();
        }
    }
    let copied = copy(&from, &to, recursive(), keeping(), 4096);
    let done = copied.taken.unwrap();
    assert_eq!(copied.sent.unwrap(), done);
    // Contents come once each, under the second name or the third.
    let bytes: u64 = (0..40).map(|number| format!("shared {number}").len() as u64).sum();
    assert_eq!((done.failed, copied.failed.len()), (60, 60));
    assert!(done.bytes < 2 * bytes + 1, "{} bytes of {bytes}", done.bytes);
    for number in 0..40 {
        let third = fs::metadata(to.join(format!("tree/c{number:02}"))).unwrap();
        assert_eq!(third.nlink(), if number % 2 == 0 { 1 } else { 2 });
        assert_eq!(
            fs::read(to.join(format!("tree/c{number:02}"))).unwrap(),
            format!("shared {number}").as_bytes()
        );
    }
}

/// Issue "sparse files" and design 9: a file of a tebibyte that is nearly all hole takes no time, also when the receiver has it
/// and both sides compare.
#[test]
fn a_tebibyte_of_hole_costs_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    for root in [&from, &to] {
        fs::create_dir_all(root).unwrap();
    }
    let file = fs::File::create(from.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    for at in [0, 5_000_000_000, (1 << 40) - 3] {
        file.write_all_at(b"abc", at).unwrap();
    }
    let write = WriteOptions::default();
    let done = copy(&from, &to, recursive(), write, 65_536).taken.unwrap();
    assert_eq!((done.files, done.failed), (1, 0));
    let copied = fs::metadata(to.join("tree/sparse")).unwrap();
    assert_eq!(copied.len(), 1 << 40);
    assert!(copied.blocks() * 512 < 1 << 20, "{} blocks", copied.blocks());
    // Again: without times kept, both ends hash what they have.
    let again = copy(&from, &to, recursive(), write, 65_536);
    let done = again.taken.unwrap();
    assert_eq!((done.files, done.unchanged), (0, 1));
    assert_eq!(again.sent.map_err(|error| error.kind()), Ok::<_, ErrorKind>(done));
}

/// A source of one file that takes long to hash and then is the same.
struct Slow {
    is_over: bool,
}

/// How long the slow file says nothing by itself, and in how many pieces.
const SLOW: (Duration, u32) = (Duration::from_millis(50), 80);

impl TreeSource for Slow {
    fn next_batch(&mut self) -> Option<Batch> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let kind = Kind::File { size_bytes: 4, oid: None };
        let entry = Entry { name: None, kind, metadata: Metadata { mode: 0o644, ..Metadata::default() } };
        let items = vec![entry.to_bytes().into()];
        Some(Batch {
            entries: Some(Entries { items, owners: None, is_last: true, listed: None }),
            count: 1,
            files: vec![(0, Arc::new(Slow { is_over: false }))],
            failed: Vec::new(),
            digests: None,
        })
    }

    fn batches_ahead(&self) -> usize {
        1
    }
}

impl TreeFile for Slow {
    fn send(
        &self,
        known: Option<[u8; 32]>,
        _: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError> {
        for _ in 0..SLOW.1 {
            thread::sleep(SLOW.0);
            sink.work()?;
        }
        let hash = *blake3::hash(b"here").as_bytes();
        assert_eq!(known, Some(hash));
        sink.record(&Record::Same(Finished { hash, size_bytes: 4, mtime_s: 0, mtime_ns: 0 }))
    }
}

/// Issue "every transfer ends", and no healthy one before its time: a source that hashes for longer than the other side waits for a
/// silent one says between pieces that it lives.
#[test]
fn a_source_that_hashes_for_long_is_not_taken_for_dead() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    fs::write(&to, b"here").unwrap();
    let (near, mut far) = channels(65_536);
    let patience = SLOW.0 * SLOW.1 / 2;
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            send(Box::new(near), Vec::new(), &mut Slow { is_over: false }, None, &mut |_| Ok(()), &|| {
                PATIENCE
            })
        });
        let make = || {
            let landing = Landing::resolve(&to, &[b"to".to_vec()], false)?;
            Ok(Writing::new(TreeWriter::new(landing, WriteOptions::default()), 1, false, &|_| {}))
        };
        take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), patience)
    });
    assert_eq!(done.unwrap().unchanged, 1);
}

/// Names of one file, of which the first cannot be read.
struct Names(bool);

impl TreeSource for Names {
    fn next_batch(&mut self) -> Option<Batch> {
        if std::mem::replace(&mut self.0, true) {
            return None;
        }
        let directory =
            Entry { name: None, kind: Kind::Directory { entries: None }, metadata: Metadata::default() };
        let mut items = vec![directory.to_bytes().into()];
        for name in ["a", "b", "c"] {
            let metadata =
                Metadata { mode: 0o644, link_group: Some([7; 16]), link_names: 3, ..Metadata::default() };
            let name = Some(dray_core::tree::Name::new(name.as_bytes()).unwrap());
            items.push(
                Entry { name, kind: Kind::File { size_bytes: 3, oid: None }, metadata }.to_bytes().into(),
            );
        }
        items.push(Vec::new().into());
        let file = |number: u64| (number, Arc::new(OneName(number)) as Arc<dyn TreeFile>);
        Some(Batch {
            entries: Some(Entries { items, owners: None, is_last: true, listed: None }),
            count: 4,
            files: (1..4).map(file).collect(),
            failed: Vec::new(),
            digests: None,
        })
    }

    fn batches_ahead(&self) -> usize {
        1
    }
}

struct OneName(u64);

impl TreeFile for OneName {
    fn send(&self, _: Option<[u8; 32]>, _: Option<Part>, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        if self.0 == 1 {
            let error = dray_core::Error::new(ErrorKind::Changed, "the file changed each time it was read");
            return Err(SendError::File(error));
        }
        sink.record(&Record::Bytes(b"new"))?;
        let hash = *blake3::hash(b"new").as_bytes();
        sink.record(&Record::Done(Finished { hash, size_bytes: 3, mtime_s: 0, mtime_ns: 0 }))
    }
}

/// Issue "hard links": the content fails under the first name and comes under the second; the first becomes a link to that, and what
/// was one file stays one.
#[test]
fn a_group_whose_first_content_fails_stays_one_file() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), b"older").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fs::hard_link(tree.join("a"), tree.join("c")).unwrap();
    let (near, mut far) = channels(65_536);
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            send(Box::new(near), Vec::new(), &mut Names(false), None, &mut |_| Ok(()), &|| PATIENCE)
        });
        let make = || {
            let landing = Landing::resolve(place.path(), &[b"tree".to_vec()], false)?;
            Ok(Writing::new(TreeWriter::new(landing, WriteOptions::default()), 1, false, &|_| {}))
        };
        take(&mut far, Vec::new(), make, None, &mut |_| Ok(()), PATIENCE)
    });
    let done = done.unwrap();
    assert_eq!((done.files, done.failed), (1, 0));
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read(tree.join(name)).unwrap(), b"new", "{name}");
        assert_eq!(fs::metadata(tree.join(name)).unwrap().nlink(), 3, "{name}");
    }
}

/// Issue "--exclude -x --numeric-ids": what the sender and the receiver of a tree are to do stands in the first message, whichever of
/// them is the far end.
#[test]
fn options_are_told_to_the_far_end() {
    let options = TreeOptions {
        archive: true,
        numeric_ids: true,
        one_file_system: true,
        excludes: vec![b"*.o".to_vec()],
        ..TreeOptions::default()
    };
    for role in [CopyRole::Send, CopyRole::Receive] {
        let tree = tree_message(role, vec![b"path".to_vec()], Vec::new(), &options, false).unwrap();
        let told = tree_flag::NUMERIC_IDS | tree_flag::ONE_FILE_SYSTEM;
        assert_eq!(tree.flags & told, told);
        let walk = walk_options(&tree, &[b"path".to_vec()]).unwrap();
        assert!(walk.one_file_system && walk.excludes.has(b"path/a.o", false), "{walk:?}");
        assert!(!walk.excludes.has(b"path/a.c", false));
        assert!(write_options(&tree).numeric_ids);
    }
}
