//! What takes long of a difference, on a thread of its own: cutting the older version, copying what is at hand, and hashing what was
//! put together. The sink goes on with other entries meanwhile.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::message::Part;
use dray_core::tree::cut_profile;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Cut, OlderFile, Others, Piece, cut_content, hash_content};
use dray_transfer::tree::SinkWake;
use rustix::fs::copy_file_range;
use rustix::io::Errno;

use super::index::{Common, Found, Index};
use super::look::Look;
use crate::lock;

/// Bytes that the kernel copies, or that are read, at a time.
const PIECE_BYTES: u64 = 8 << 20;
pub(super) const READ_BYTES: usize = 256 * 1024;
/// How long a step of a job may last before the disk is taken for one that does not answer.
const DISK_PATIENCE: Duration = Duration::from_secs(60);
/// Where blocks of most file systems begin: only whole ones can be shared.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Something to do for the entry of this number.
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) task: Task,
    /// Set once nobody wants what comes of it: it ends soon.
    pub(super) is_void: Arc<AtomicBool>,
}

pub(super) enum Task {
    /// Hash it, and cut it into chunks of this average length.
    Cut { older: Arc<OlderFile>, average_bytes: Option<u32> },
    /// Cut these bytes of it, and no others.
    CutUnused { older: Arc<OlderFile>, unused: Vec<Range<u64>>, average_bytes: u32 },
    /// Look for these pieces of the newer version, for what is not in the older one in the other one, and copy what is found.
    Compare {
        older: Arc<OlderFile>,
        index: Arc<Index>,
        other: Option<(Arc<OlderFile>, Index)>,
        newer: Arc<File>,
        pieces: Vec<(u64, Vec<Cut>)>,
    },
    /// Hold it against sums of what is missing, and copy what is found.
    Look { older: Arc<OlderFile>, newer: Arc<File>, newer_bytes: u64, look: Box<Look> },
    /// Copy all of it.
    Copy { older: Arc<OlderFile>, newer: Arc<File> },
    /// Hash what was put together.
    Prove { newer: Arc<File>, size_bytes: u64 },
}

/// What came of it.
pub(super) enum Outcome {
    Cut {
        index: Index,
        hash: [u8; 32],
        is_code: bool,
    },
    CutUnused {
        index: Index,
    },
    Compared(Found),
    Looked(Box<Look>),
    Proven([u8; 32]),
    Others(Others),
    /// Where a file lies that may have most of it.
    Sibling(Option<PathBuf>),
}

/// What came of the jobs that are done.
#[derive(Default)]
struct Done {
    outcomes: Vec<(u64, Result<Outcome>)>,
    /// How many there will be.
    under_way: usize,
    /// The thread broke: nothing comes any more.
    is_broken: bool,
    /// When a job was begun, or came on, last.
    stepped: Option<Instant>,
    /// Jobs of the thread among them.
    jobs: usize,
    /// When the sink wants to be woken while the thread has a job.
    wake_at: Option<Instant>,
}

impl Done {
    /// Another job: the time of whoever does it begins now, unless it has something to do.
    fn begin(&mut self) {
        if self.under_way == 0 {
            self.stepped = Some(Instant::now());
        }
        self.under_way += 1;
    }
}

/// The thread.
pub(super) struct Worker {
    jobs: mpsc::Sender<Job>,
    done: Arc<Mutex<Done>>,
}

/// Says so if the thread breaks: else the copy would wait for ever.
struct Guard {
    done: Arc<Mutex<Done>>,
    wake: Arc<SinkWake>,
}

impl Guard {
    fn done(&self, number: u64, outcome: Result<Outcome>) {
        self.ended(number, outcome, 0);
    }

    /// One that was a job of the thread, or none.
    fn ended(&self, number: u64, outcome: Result<Outcome>, jobs: usize) {
        let mut done = lock(&self.done);
        done.outcomes.push((number, outcome));
        done.jobs = done.jobs.saturating_sub(jobs);
        done.under_way = done.under_way.saturating_sub(1);
        done.stepped = Some(Instant::now());
        drop(done);
        self.wake.wake();
    }

    /// A job came on.
    fn step(&self, now: Instant) {
        let mut done = lock(&self.done);
        done.stepped = Some(now);
        let is_due = done.wake_at.is_some_and(|at| at <= now);
        if is_due {
            done.wake_at = None;
            drop(done);
            self.wake.wake();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(&self.done).is_broken = true;
            self.wake.wake();
        }
    }
}

/// Where those go that find out something beside the thread.
pub(super) struct Told(Guard);

impl Told {
    pub(super) fn another(&self) -> Told {
        Told(Guard { done: self.0.done.clone(), wake: self.0.wake.clone() })
    }

    /// Something is to be found out, of which [`Told::sibling`] is the end.
    pub(super) fn begin(&self) {
        lock(&self.0.done).begin();
    }

    /// It cannot be.
    pub(super) fn cannot(&self) {
        let mut done = lock(&self.0.done);
        done.under_way = done.under_way.saturating_sub(1);
    }

    /// How much is under way.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        lock(&self.0.done).under_way
    }

    pub(super) fn sibling(&self, number: u64, found: Option<PathBuf>) {
        self.0.done(number, Ok(Outcome::Sibling(found)));
    }

    #[cfg(test)]
    pub(super) fn to_nobody() -> Told {
        Told(Guard { done: Arc::default(), wake: Arc::default() })
    }

    /// What was told of siblings since the last call.
    #[cfg(test)]
    pub(super) fn siblings(&self) -> Vec<Option<PathBuf>> {
        let told = std::mem::take(&mut lock(&self.0.done).outcomes);
        let sibling = |(_, outcome)| match outcome {
            Ok(Outcome::Sibling(found)) => Some(found),
            _ => None,
        };
        told.into_iter().filter_map(sibling).collect()
    }
}

impl Worker {
    /// For somebody else who finds out something.
    pub(super) fn told(&self, wake: Arc<SinkWake>) -> Told {
        Told(Guard { done: self.done.clone(), wake })
    }

    /// Wakes the sink after each job, and gives up soon once `stop` is set.
    pub(super) fn start(wake: Arc<SinkWake>, stop: Arc<AtomicBool>) -> Worker {
        let (jobs, todo) = mpsc::channel::<Job>();
        let done = Arc::<Mutex<Done>>::default();
        let guard = Guard { done: done.clone(), wake };
        // It ends with the sink, which drops the other end.
        thread::spawn(move || {
            for Job { number, task, is_void } in todo {
                let step = || guard.step(Instant::now());
                let outcome = run(task, &[&stop, &is_void], &step);
                guard.ended(number, outcome, 1);
            }
        });
        Worker { jobs, done }
    }

    /// Whether it does something, and comes on with it: whoever waits then waits for this side. A disk that does not answer is nobody to wait
    /// for.
    pub(super) fn is_busy(&self) -> bool {
        let done = lock(&self.done);
        done.under_way > 0 && done.stepped.is_some_and(|stepped| stepped.elapsed() < DISK_PATIENCE)
    }

    /// Whether the thread has a job: then it wakes the sink at `until`, or when it has done that job.
    pub(super) fn wakes_at(&self, until: Instant) -> bool {
        let mut done = lock(&self.done);
        let has_job = done.jobs > 0;
        done.wake_at = has_job.then_some(until);
        has_job
    }

    pub(super) fn push(&self, job: Job) {
        let mut done = lock(&self.done);
        done.begin();
        done.jobs += 1;
        drop(done);
        if self.jobs.send(job).is_err() {
            lock(&self.done).is_broken = true;
        }
    }

    /// Has `search` look for what lies in the destination under other names, on a thread that nobody waits for: what it comes upon may
    /// never answer. If nothing was heard of it after `patience`, nothing was found.
    pub(super) fn search(
        &self,
        wake: Arc<SinkWake>,
        patience: Duration,
        search: impl FnOnce() -> Others + Send + 'static,
    ) {
        lock(&self.done).begin();
        let (found, awaited) = mpsc::sync_channel(1);
        // If it cannot begin, or breaks, `found` is dropped, and nothing was found.
        let _ = thread::Builder::new().spawn(move || {
            let _ = found.send(search());
        });
        let guard = Guard { done: self.done.clone(), wake: wake.clone() };
        let waiting = thread::Builder::new().spawn(move || {
            let others = awaited.recv_timeout(patience).unwrap_or_default();
            guard.done(0, Ok(Outcome::Others(others)));
        });
        if waiting.is_err() {
            Guard { done: self.done.clone(), wake }.done(0, Ok(Outcome::Others(Others::default())));
        }
    }

    /// What was done since the last call.
    pub(super) fn outcomes(&self) -> Result<Vec<(u64, Result<Outcome>)>> {
        let mut done = lock(&self.done);
        if done.is_broken {
            return Err(Error::new(ErrorKind::Internal, "a thread failed"));
        }
        Ok(std::mem::take(&mut done.outcomes))
    }
}

/// Does it, unless one of `stops` is set before it is done; calls `step` all the time.
fn run(task: Task, stops: &[&AtomicBool], step: &dyn Fn()) -> Result<Outcome> {
    let mut between = || {
        step();
        match stops.iter().any(|stop| stop.load(Ordering::Acquire)) {
            true => Err(Error::new(ErrorKind::Interrupted, "interrupted")),
            false => Ok(()),
        }
    };
    between()?;
    match task {
        Task::Cut { older, average_bytes: None } => {
            let (hash, size_bytes) =
                hash_content(&older.file, older.size_bytes, older.has_holes, &mut between)?;
            check_size(size_bytes, older.size_bytes)?;
            Ok(Outcome::Cut { index: Index::default(), hash, is_code: false })
        }
        Task::Cut { older, average_bytes: Some(average_bytes) } => {
            let mut index = Index::default();
            let range = 0..older.size_bytes;
            let hash = cut(&older, range, average_bytes, &mut index, &mut between)?;
            Ok(Outcome::Cut { index, hash, is_code: is_code(&older.file) })
        }
        Task::CutUnused { older, unused, average_bytes } => {
            let mut index = Index::default();
            for range in unused {
                cut(&older, range, average_bytes, &mut index, &mut between)?;
            }
            Ok(Outcome::CutUnused { index })
        }
        Task::Compare { older, index, other, newer, pieces } => {
            let mut found = find(&pieces, &mut between, &|start, pieces, found| {
                index.compare(start, pieces, found);
            })?;
            if let Some((other, index)) = other {
                let rest = find(&pieces, &mut between, &|start, pieces, rest| {
                    index.compare_missing(start, pieces, &found.missing, rest);
                })?;
                // What the other one alone has goes first. It may be what an earlier run left; if this run is cut off, too, the larger one of both is kept.
                match copy_each(&other, &newer, &rest.common, &mut between) {
                    Ok(()) => found.missing = rest.missing,
                    Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) => {
                        return Err(error);
                    }
                    // It cannot be read to its end: what it had comes.
                    Err(_) => {}
                }
            }
            copy_each(&older, &newer, &found.common, &mut between)?;
            Ok(Outcome::Compared(found))
        }
        Task::Look { older, newer, newer_bytes, mut look } => {
            look.compare(&older, &newer, newer_bytes, &mut between)?;
            Ok(Outcome::Looked(look))
        }
        Task::Copy { older, newer } => {
            copy_all(&older, &newer, &mut between)?;
            Ok(Outcome::Compared(Found::default()))
        }
        Task::Prove { newer, size_bytes } => {
            // What was not written is a hole, also at the end.
            newer.set_len(size_bytes).map_err(|error| Error::file("write the file", error))?;
            let (hash, _) = hash_content(&newer, size_bytes, true, &mut between)?;
            Ok(Outcome::Proven(hash))
        }
    }
}

/// What `compare` finds of each of `pieces`.
fn find(
    pieces: &[(u64, Vec<Cut>)],
    between: &mut dyn FnMut() -> Result<()>,
    compare: &dyn Fn(u64, &[Cut], &mut Found),
) -> Result<Found> {
    let mut found = Found::default();
    for (start, pieces) in pieces {
        between()?;
        compare(*start, pieces, &mut found);
    }
    Ok(found)
}

fn copy_each(
    from: &OlderFile,
    newer: &File,
    parts: &[Common],
    between: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    parts.iter().try_for_each(|common| copy(&from.file, newer, common, between))
}

/// Where an ELF file says what it is for, and what x86-64 is there.
const MACHINE: Range<usize> = 18..20;
const X86_64: [u8; 2] = [0x3e, 0];

/// True for a program or a library of x86-64.
fn is_code(file: &File) -> bool {
    let mut head = [0; MACHINE.end];
    file.read_exact_at(&mut head, 0).is_ok() && head.starts_with(b"\x7fELF") && head[MACHINE] == X86_64
}

fn check_size(size_bytes: u64, expected: u64) -> Result<()> {
    if size_bytes == expected { Ok(()) } else { Err(shorter()) }
}

fn shorter() -> Error {
    Error::new(ErrorKind::Changed, "the file became shorter while it was read")
}

/// Chunks of one older version that are remembered.
const INDEX_CHUNKS_MAX: usize = 1 << 18;

fn cut(
    older: &OlderFile,
    range: Range<u64>,
    average_bytes: u32,
    index: &mut Index,
    between: &mut dyn FnMut() -> Result<()>,
) -> Result<[u8; 32]> {
    let (mut at, end) = (range.start, range.end);
    let profile = cut_profile(average_bytes)?;
    let done = cut_content(&older.file, range, older.has_holes, profile, between, &mut |piece| {
        match piece {
            Cut::Chunk(hint) => {
                // What is not remembered is not found: that costs bytes, and no more.
                if index.len() < INDEX_CHUNKS_MAX {
                    index.push(at, hint);
                }
                at += u64::from(hint.len);
            }
            Cut::Hole(len) => at += len,
        }
        Ok(())
    })?;
    check_size(done.end, end)?;
    Ok(done.hash)
}

/// Copies what both versions have, in the kernel where it can, which shares whole blocks if the file system does.
fn copy(older: &File, newer: &File, common: &Common, between: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let (mut from, mut to) = (common.from, common.to);
    let end = common.from + common.bytes;
    while from < end {
        between()?;
        let in_block = from % BLOCK_BYTES;
        let left = end - from;
        let len = if in_block == to % BLOCK_BYTES && in_block > 0 {
            left.min(BLOCK_BYTES - in_block)
        } else if left > BLOCK_BYTES && in_block == to % BLOCK_BYTES {
            // The odd rest by itself.
            (left - left % BLOCK_BYTES).min(PIECE_BYTES)
        } else {
            left.min(PIECE_BYTES)
        };
        let bytes = usize::try_from(len).unwrap_or(READ_BYTES);
        let (mut source, mut target) = (from, to);
        let copied = match copy_file_range(older, Some(&mut source), newer, Some(&mut target), bytes) {
            Ok(0) => return Err(shorter()),
            Ok(copied) => copied as u64,
            Err(Errno::NOSPC | Errno::DQUOT) => {
                return Err(Error::file("write the file", Errno::NOSPC.into()));
            }
            Err(Errno::INTR) => continue,
            // Across file systems, of an old kernel, or of a file system that does not.
            Err(_) => read_and_write(older, newer, from, to, bytes.min(READ_BYTES))?,
        };
        (from, to) = (from + copied, to + copied);
    }
    Ok(())
}

/// Copies a file with its holes: all at once where the file system can share its blocks.
fn copy_all(older: &OlderFile, newer: &File, between: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    if rustix::fs::ioctl_ficlone(newer, &older.file).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    while at < older.size_bytes {
        let piece = match older.has_holes {
            true => Piece::next(&older.file, at, older.size_bytes),
            false => Piece::Data(older.size_bytes - at),
        };
        let bytes = match piece {
            Piece::Hole(bytes) => bytes,
            Piece::Data(bytes) => {
                copy(&older.file, newer, &Common { from: at, to: at, bytes }, between)?;
                bytes
            }
        };
        at += bytes;
    }
    Ok(())
}

pub(super) fn read_and_write(older: &File, newer: &File, from: u64, to: u64, bytes: usize) -> Result<u64> {
    let mut buffer = vec![0; bytes];
    let read =
        older.read_at(&mut buffer, from).map_err(|error| Error::file("read the older version", error))?;
    if read == 0 {
        return Err(shorter());
    }
    newer.write_all_at(&buffer[..read], to).map_err(|error| Error::file("write the file", error))?;
    Ok(read as u64)
}

/// Bytes of these parts.
pub(super) fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y3: what is copied is what was there, wherever it begins and ends, across blocks.
    #[test]
    fn bytes_are_copied_wherever_they_lie() {
        let data: Vec<u8> = (0..50_000u32).map(|at| (at * 7 / 3) as u8).collect();
        let older = tempfile::tempfile().unwrap();
        older.write_all_at(&data, 0).unwrap();
        for (from, to, bytes) in
            [(0, 0, 50_000), (5, 4101, 40_000), (4096, 8192, 9_000), (7, 1, 3), (1, 2, 0)]
        {
            let newer = tempfile::tempfile().unwrap();
            copy(&older, &newer, &Common { from, to, bytes }, &mut || Ok(())).unwrap();
            let mut found = vec![0; bytes as usize];
            newer.read_exact_at(&mut found, to).unwrap();
            assert_eq!(found, data[from as usize..(from + bytes) as usize]);
            assert_eq!(newer.metadata().unwrap().len(), if bytes == 0 { 0 } else { to + bytes });
        }
        let beyond = Common { from: 49_000, to: 0, bytes: 2_000 };
        let error = copy(&older, &tempfile::tempfile().unwrap(), &beyond, &mut || Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }
    /// What nobody wants any more is not done, whatever the file is; nor is what is on its way.
    #[test]
    fn what_is_void_ends() {
        let older = || Arc::new(OlderFile::new(tempfile::tempfile().unwrap()).unwrap());
        let task = || Task::Cut { older: older(), average_bytes: Some(4096) };
        let (no, yes) = (AtomicBool::new(false), AtomicBool::new(true));
        assert!(run(task(), &[&no, &no], &|| {}).is_ok());
        for stops in [[&no, &yes], [&yes, &no]] {
            let error = run(task(), &stops, &|| {}).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        }
    }

    /// A file of `bytes`, and what it is cut into.
    fn cut_file(bytes: &[u8]) -> (Arc<OlderFile>, Index, Vec<Cut>) {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        let older = Arc::new(OlderFile::new(file).unwrap());
        let (mut index, mut pieces) = (Index::default(), Vec::new());
        cut(&older, 0..older.size_bytes, 4096, &mut index, &mut || Ok(())).unwrap();
        let profile = cut_profile(4096).unwrap();
        let mut take = |piece| -> Result<()> {
            pieces.push(piece);
            Ok(())
        };
        cut_content(&older.file, 0..older.size_bytes, false, profile, &mut || Ok(()), &mut take).unwrap();
        (older, index, pieces)
    }

    /// S15: what came before a run was cut off does not come again, however often that happens: what is put together has all that only the other file
    /// has before it has anything else, so that of both the larger one can be kept. And where the other one cannot be read, what it had is missing.
    #[test]
    fn what_only_the_other_file_has_goes_first() {
        const HALF: usize = 300_000;
        let mut random = blake3::Hasher::new().finalize_xof();
        let mut bytes = vec![0; 2 * HALF];
        random.fill(&mut bytes);
        let (own, own_index, _) = cut_file(&bytes[..HALF]);
        let (.., pieces) = cut_file(&bytes);
        let newer = Arc::new(tempfile::tempfile().unwrap());
        let own_index = Arc::new(own_index);
        let compare = |other: (Arc<OlderFile>, Index)| Task::Compare {
            older: own.clone(),
            index: own_index.clone(),
            other: Some(other),
            newer: newer.clone(),
            pieces: vec![(0, pieces.clone())],
        };
        let (other, index, _) = cut_file(&bytes[HALF..]);
        let (stop, no) = (AtomicBool::new(false), AtomicBool::new(false));
        let step = || stop.store(newer.metadata().unwrap().len() > 0, Ordering::Release);
        let error = run(compare((other, index)), &[&stop, &no], &step).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        let is_there = |part: Range<usize>| {
            let mut found = vec![0; part.len()];
            newer.read_exact_at(&mut found, part.start as u64).is_ok() && found == bytes[part]
        };
        assert!(is_there(2 * HALF - 100_000..2 * HALF), "what the other one has");
        assert!(!is_there(0..1000), "what stands there anyway");

        let (other, index, _) = cut_file(&bytes[HALF..]);
        other.file.set_len(0).unwrap();
        let Ok(Outcome::Compared(found)) = run(compare((other, index)), &[&no, &no], &|| {}) else {
            panic!("it goes on without the other one")
        };
        assert!(is_there(0..200_000));
        let missing: u64 = found.missing.iter().map(|part| part.bytes).sum();
        assert!((250_000..350_000).contains(&missing), "{missing}");
    }

    /// S10: a search that never ends, that breaks, or that finds something late holds nothing up, and a search that ends is heard.
    #[test]
    fn a_search_that_hangs_is_not_waited_for() {
        let heard = |patience, search: Box<dyn FnOnce() -> Others + Send>| {
            let wake = Arc::<SinkWake>::default();
            let worker = Worker::start(wake.clone(), Arc::default());
            worker.search(wake, patience, search);
            loop {
                if let Some((_, outcome)) = worker.outcomes().unwrap().pop() {
                    return matches!(outcome, Ok(Outcome::Others(_)));
                }
                thread::yield_now();
            }
        };
        let (hangs, end) = mpsc::channel::<()>();
        let hang = Box::new(move || end.recv().map_or_else(|_| Others::default(), |()| Others::default()));
        assert!(heard(Duration::from_millis(1), hang));
        drop(hangs);
        let long = Duration::from_secs(3600);
        assert!(heard(long, Box::new(|| panic!("on purpose"))));
        assert!(heard(long, Box::new(Others::default)));
    }

    /// `--timeout` counts what the holder does not send, and not what this side does: a task is under way from the moment on at which it is
    /// given until what came of it is there.
    #[test]
    fn a_task_is_under_way_until_it_is_done() {
        let done = Arc::<Mutex<Done>>::default();
        let guard = Guard { done: done.clone(), wake: Arc::default() };
        let (jobs, todo) = mpsc::channel();
        let worker = Worker { jobs, done };
        assert!(!worker.is_busy());
        for number in 0..2 {
            let task = Task::Prove { newer: Arc::new(tempfile::tempfile().unwrap()), size_bytes: 1 };
            worker.push(Job { number, task, is_void: Arc::default() });
        }
        for (left, job) in [(1, todo.recv().unwrap()), (0, todo.recv().unwrap())] {
            assert!(worker.is_busy());
            guard.done(job.number, run(job.task, &[], &|| {}));
            assert_eq!(worker.is_busy(), left > 0);
        }
        assert_eq!(worker.outcomes().unwrap().len(), 2);
    }

    /// P5: what waits for what the thread has to do is told when it has waited for long enough, or when that is done.
    #[test]
    fn who_waits_for_a_task_is_woken() {
        let done = Arc::<Mutex<Done>>::default();
        let guard = Guard { done: done.clone(), wake: Arc::default() };
        let (jobs, _todo) = mpsc::channel();
        let worker = Worker { jobs, done: done.clone() };
        let (now, until) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        // A search is none.
        lock(&done).begin();
        assert!(!worker.wakes_at(until));
        let task = Task::Prove { newer: Arc::new(tempfile::tempfile().unwrap()), size_bytes: 1 };
        worker.push(Job { number: 1, task, is_void: Arc::default() });
        assert!(worker.wakes_at(until));
        guard.step(now);
        assert_eq!(lock(&done).wake_at, Some(until));
        guard.step(until);
        assert_eq!(lock(&done).wake_at, None, "woken once");
        assert!(worker.wakes_at(until));
        guard.ended(1, Ok(Outcome::Proven([0; 32])), 1);
        assert!(!worker.wakes_at(until) && worker.is_busy());
    }

    /// `--timeout`: a task that hangs in a disk is no work, and what is given to its thread meanwhile does not make it one; when it comes on it
    /// is.
    #[test]
    fn a_task_that_hangs_is_no_work() {
        let done = Arc::<Mutex<Done>>::default();
        let guard = Guard { done: done.clone(), wake: Arc::default() };
        let (jobs, todo) = mpsc::channel();
        let worker = Worker { jobs, done: done.clone() };
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        let newer = Arc::new(file);
        let push = |number| {
            let task = Task::Prove { newer: newer.clone(), size_bytes: 1 };
            worker.push(Job { number, task, is_void: Arc::default() });
        };
        let hang = || lock(&done).stepped = Instant::now().checked_sub(2 * DISK_PATIENCE);
        push(0);
        assert!(worker.is_busy());
        hang();
        push(1);
        assert!(!worker.is_busy());
        let job = todo.recv().unwrap();
        let step = || lock(&done).stepped = Some(Instant::now());
        let outcome = run(job.task, &[], &step);
        assert!(worker.is_busy(), "it came on");
        hang();
        guard.done(job.number, outcome);
        assert!(worker.is_busy(), "the next one has only begun");
    }

    /// S10: a worker that breaks is an error of the copy, not a wait for ever.
    #[test]
    fn a_worker_that_breaks_says_so() {
        let done = Arc::<Mutex<Done>>::default();
        let guard = Guard { done: done.clone(), wake: Arc::default() };
        let broke = thread::spawn(move || {
            let _guard = guard;
            panic!("on purpose");
        });
        assert!(broke.join().is_err());
        let worker = Worker { jobs: mpsc::channel().0, done };
        assert_eq!(worker.outcomes().map(|_| ()).unwrap_err().kind(), ErrorKind::Internal);
    }
}
