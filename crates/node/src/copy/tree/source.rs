//! The sending end of a tree copy: a walk as batches of entries, and files as records.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dray_core::block_mask::{BLOCK_BYTES, Have};
use dray_core::block_sum::sums_of;
use dray_core::code_field::{BEFORE_BYTES, BEHIND_BYTES, CodeFields, code_sums_of};
use dray_core::hash_tree::ContentHasher;
use dray_core::limits::{
    GROUP_BYTES, PATH_BYTES_MAX, TREE_BATCH_ITEMS_MAX, TREE_CUT_TIMES_MAX, TREE_DIGEST_BYTES,
    TREE_RECORD_BYTES_MAX, TREE_RESTS_TIMES_MAX, TREE_SUMS_TIMES_MAX,
};
use dray_core::message::{BlockSums, Entries, EntryFailed, Fault, Listed, Owner, Part};
use dray_core::tree::{
    CHUNKS_IN_RECORD_MAX, ChunkHint, Finished, Item, Metadata, Record, chunks_max, cut_profile,
    encode_chunks, too_many_chunks,
};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Owed;
use dray_store::local::tree::{
    Cut, FileState, FileToSend, OpenFile, Origin, OwnerNames, Piece, ReadSize, Roots, WalkOptions, Walked,
    Walker, cut_content, hash_content, own_directory,
};
use dray_transfer::tree::{Batch, RecordSink, Removes, SendError, TreeFile, TreeSource};

use super::removal::Removal;
use super::sync::Confirm;
use crate::Stop;

/// Bytes of items with which a batch leaves; the largest entry still fits beside them.
const BATCH_BYTES: usize = 16 * 1024;
/// Owners that one batch names.
const BATCH_OWNERS: usize = 32;
/// Items of the first batch: something to do at the other end soon.
const FIRST_ITEMS: usize = 64;
/// How long a batch waits to be full.
const BATCH_PATIENCE: Duration = Duration::from_millis(20);
/// Batches that have left and whose files may wait to be read; a few more.
const BATCHES_OPEN: usize = 72;
/// Batches that the walk may be ahead: at 20 to 40 kB each a few megabytes, and about what is walked while ssh logs in.
const BATCHES_AHEAD: usize = 192;
/// The same where this process may not have many files open: each batch holds its directories.
const BATCHES_AHEAD_MIN: usize = 4;
/// Directories that a batch should have room for.
const DIRECTORIES_ENOUGH: usize = 32;
/// Chunks told in one record.
const CHUNKS_IN_RECORD: usize = 1024;
const _: () = assert!(CHUNKS_IN_RECORD <= CHUNKS_IN_RECORD_MAX);
/// Times a file that changes is read anew.
const READ_TRIES: usize = 3;

/// A walk in batches.
pub(super) struct WalkSource {
    walker: Walker,
    /// Names of owners, if those are told.
    names: Option<OwnerNames>,
    told: HashSet<(bool, u32)>,
    directories_max: usize,
    batches_ahead: usize,
    is_begun: bool,
    is_over: bool,
    stop: Stop,
    /// The receiver is told how far the walk looked.
    tells_listed: bool,
    /// Nothing failed so far.
    is_complete: bool,
    confirm: Option<Confirm>,
    /// Entries told so far, and who remembers them, if they are to go.
    told_entries: u64,
    removal: Option<Arc<Removal>>,
}

impl WalkSource {
    pub(super) fn new(sources: Vec<PathBuf>, options: WalkOptions, names: bool, stop: Stop) -> WalkSource {
        let directories_max = Walker::directories_in_batch(BATCHES_OPEN + BATCHES_AHEAD);
        let (directories_max, batches_ahead) = if directories_max >= DIRECTORIES_ENOUGH {
            (directories_max, BATCHES_AHEAD)
        } else {
            (Walker::directories_in_batch(BATCHES_OPEN + BATCHES_AHEAD_MIN), BATCHES_AHEAD_MIN)
        };
        WalkSource {
            walker: Walker::new(sources, options),
            names: names.then(OwnerNames::of_this_host),
            told: HashSet::new(),
            directories_max,
            batches_ahead,
            is_begun: false,
            is_over: false,
            stop,
            tells_listed: false,
            is_complete: true,
            confirm: None,
            told_entries: 0,
            removal: None,
        }
    }

    /// The same, and what is told may have to go.
    pub(super) fn removing(self, removal: Option<Arc<Removal>>) -> WalkSource {
        WalkSource { removal, ..self }
    }

    /// The same, and the receiver is told how far the walk looked, if it is to delete what there is not.
    pub(super) fn telling_listed(self, tells_listed: bool) -> WalkSource {
        WalkSource { tells_listed, ..self }
    }

    /// The same, and `confirm` is asked at the end.
    pub(super) fn confirming(self, confirm: Option<Confirm>) -> WalkSource {
        WalkSource { confirm, ..self }
    }

    /// The same in a process in which so many walks go on at a time: each holds its part of the files that may be open.
    pub(super) fn among(self, walks: usize) -> WalkSource {
        let directories_max = Walker::directories_in_batch((BATCHES_OPEN + BATCHES_AHEAD_MIN) * walks.max(1));
        WalkSource { directories_max, batches_ahead: BATCHES_AHEAD_MIN, ..self }
    }

    /// See [`Walker::pass_by`].
    pub(super) fn pass_by(&mut self, held: HashSet<[u8; TREE_DIGEST_BYTES]>) {
        self.walker.pass_by(held);
    }

    /// See [`Walker::expect`].
    pub(super) fn expect(&mut self, roots: Roots) {
        self.walker.expect(roots);
    }

    /// With sources whose paths begin at `origin`.
    pub(super) fn at(self, origin: Origin) -> WalkSource {
        WalkSource { walker: self.walker.at(origin), ..self }
    }

    fn name_owners(&mut self, metadata: &Metadata, owners: &mut Vec<Owner>) {
        let Some(names) = &self.names else { return };
        for (is_group, id) in [(false, metadata.uid), (true, metadata.gid)] {
            if id != 0
                && self.told.insert((is_group, id))
                && let Some(name) = names.name(is_group, id)
            {
                owners.push(Owner { is_group, id, name: name.to_vec().into() });
            }
        }
    }
}

/// What the other end is told of an entry that failed.
pub(super) fn entry_failed(path: &Path, error: &Error) -> EntryFailed {
    // What to do does not cross the wire by itself.
    let advice = error.advice().map(|advice| format!(" ({advice})")).unwrap_or_default();
    let told = Error::new(error.kind(), format!("{error}{advice}"));
    let fault = Fault::from_error(None, &told);
    let bytes = path.as_os_str().as_bytes();
    EntryFailed {
        path: bytes[..bytes.len().min(PATH_BYTES_MAX)].to_vec().into(),
        kind: fault.kind,
        text: fault.text,
        unnamed: None,
        left_out: None,
    }
}

impl TreeSource for WalkSource {
    fn next_batch(&mut self) -> Option<Batch> {
        if self.is_over || self.stop.is_set() {
            return None;
        }
        let items_max = if self.is_begun { TREE_BATCH_ITEMS_MAX } else { FIRST_ITEMS };
        if !self.is_begun {
            // The walk has a thread to itself.
            own_directory();
        }
        self.is_begun = true;
        let begun = Instant::now();
        let (mut batch, mut items, mut owners) = (Batch::default(), Vec::new(), Vec::new());
        let (mut bytes, mut directories) = (0, 0);
        let mut unlisted = Vec::new();
        while items.len() < items_max
            && bytes < BATCH_BYTES
            && directories < self.directories_max
            && owners.len() < BATCH_OWNERS
            && batch.failed.len() < 64
            && (items.is_empty() || begun.elapsed() < BATCH_PATIENCE)
        {
            let step = self.walker.step();
            if let (Some(removal), Some(step)) = (&self.removal, &step) {
                removal.note(self.told_entries + batch.count, step, &self.walker);
            }
            let item = match step {
                // Nobody waits for it: that it came to its end is not said.
                None if self.stop.is_set() => return None,
                None => {
                    self.is_over = true;
                    if let Some(Err(error)) = self.confirm.as_ref().map(Confirm::ask) {
                        self.is_complete = false;
                        batch.failed.push(entry_failed(".".as_ref(), &error));
                    }
                    break;
                }
                Some(Walked::Unlisted) => {
                    unlisted.extend(u16::try_from(items.len()).ok());
                    continue;
                }
                Some(Walked::Failed(path, error)) => {
                    self.is_complete = false;
                    batch.failed.push(entry_failed(&path, &error));
                    continue;
                }
                Some(Walked::Missing) => Item::Missing,
                Some(Walked::Leave) => Item::Leave,
                Some(Walked::Entry(entry, file)) => {
                    if let Some(file) = file {
                        let is_linked = entry.metadata.link_group.is_some();
                        batch.files.push((batch.count, Arc::new(file_to_send(file, is_linked, &self.stop))));
                    }
                    // Each source may be in a directory of its own.
                    directories += usize::from(entry.is_directory() || entry.name.is_none());
                    batch.count += 1;
                    self.name_owners(&entry.metadata, &mut owners);
                    Item::Entry(*entry)
                }
            };
            let item = item.to_bytes();
            bytes += item.len();
            items.push(item.into());
        }
        self.told_entries += batch.count;
        let owners = (!owners.is_empty()).then_some(owners);
        let is_complete = self.is_over && self.is_complete;
        let listed = Listed { unlisted, is_complete };
        let listed =
            Some(listed).filter(|listed| self.tells_listed && (is_complete || !listed.unlisted.is_empty()));
        batch.entries = Some(Entries { items, owners, is_last: self.is_over, listed });
        Some(batch)
    }

    fn removes(&self) -> Option<Arc<dyn Removes>> {
        self.removal.clone().map(|removal| removal as Arc<dyn Removes>)
    }

    fn batches_ahead(&self) -> usize {
        self.batches_ahead
    }
}

fn file_to_send(file: FileToSend, is_linked: bool, stop: &Stop) -> Sending {
    let (cut, summed) = (Budget::new("cut", TREE_CUT_TIMES_MAX), Budget::new("summed", TREE_SUMS_TIMES_MAX));
    let rests = Budget::new("read and not sent", TREE_RESTS_TIMES_MAX);
    Sending { file, is_linked, stop: stop.clone(), seen: OnceLock::new(), cut, summed, rests }
}

/// One file, when its turn comes.
struct Sending {
    file: FileToSend,
    /// It has other names, which are told to be of the same file.
    is_linked: bool,
    stop: Stop,
    /// Its state when the first part of it was read: the others are to be of the same.
    seen: OnceLock<FileState>,
    cut: Budget,
    summed: Budget,
    rests: Budget,
}

/// How much of a file is read for questions about it, or of parts that the receiver has: each costs a read, and who asks next to nothing.
struct Budget {
    what: &'static str,
    times_max: u64,
    /// Bytes that were asked about so far.
    bytes: AtomicU64,
}

impl Budget {
    fn new(what: &'static str, times_max: u64) -> Budget {
        Budget { what, times_max, bytes: AtomicU64::new(0) }
    }

    /// No file is read more often than a difference needs.
    fn take(&self, bytes: u64, size_bytes: u64) -> Result<(), SendError> {
        // One thread answers questions, and one for each path sends.
        let max = size_bytes.saturating_mul(self.times_max);
        let add = |asked: u64| asked.checked_add(bytes).filter(|asked| *asked <= max);
        if self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            let what = format!("the file was {} as often as it may be", self.what);
            return Err(SendError::File(Error::new(ErrorKind::Refused, what)));
        }
        Ok(())
    }
}

impl TreeFile for Sending {
    fn send(
        &self,
        known: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> Result<(), SendError> {
        if let Some(part) = part {
            return self.send_part(&part, sink);
        }
        for attempt in 0..READ_TRIES {
            if attempt > 0 {
                sink.record(&Record::Again)?;
            }
            let open = self.file.open()?;
            if let Some(known) = known.filter(|_| attempt == 0)
                && self.hash(&open, sink)? == (known, open.size_bytes)
                && open.is_unchanged()?
            {
                return sink.record(&Record::Same(finished(&open, known, open.size_bytes)));
            }
            let mut hasher = ContentHasher::new();
            let size_bytes = if open.stored_bytes < open.size_bytes {
                self.send_sparse(&open, 0..open.size_bytes, &mut hasher, sink)?
            } else {
                self.send_bytes(&open, None, &mut hasher, sink)?
            };
            // Nobody wrote to it, so what was read is what it has, whatever its metadata says: files of `/proc` tell of less than they
            // have, those of `/sys` of more.
            if open.is_unchanged()? {
                let hash = hasher.finish();
                return sink.record(&Record::Done(finished(&open, hash, size_bytes)));
            }
        }
        let what = "the file changed each time it was read";
        Err(SendError::File(Error::new(ErrorKind::Changed, what).advise("copy it when nobody writes to it")))
    }

    fn send_rest(&self, part: &Part, have: &Have, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        self.check_stop()?;
        sink.work()?;
        let open = self.open_as_seen(part)?;
        // Of 64 KiB at most, as was checked when it was asked for; and what is around it, by which fields of code are known.
        let len = usize::try_from(part.bytes.min(GROUP_BYTES)).unwrap_or(0);
        self.rests.take((len - have.rest_bytes(len).start) as u64, open.size_bytes)?;
        let before = usize::try_from(part.start.min(BEFORE_BYTES as u64)).unwrap_or(0);
        let behind = (open.size_bytes - part.end()).min(BEHIND_BYTES as u64);
        let mut all = vec![0; before + len + usize::try_from(behind).unwrap_or(0)];
        read_exact_at(&open, &mut all, part.start - before as u64)?;
        if !open.is_unchanged()? {
            return Err(changed());
        }
        let bytes = &all[before..before + len];
        let mut hasher = ContentHasher::new();
        hasher.update(bytes);
        let mut rest: Vec<u8> = have.rest(len).flat_map(|range| bytes[range].iter().copied()).collect();
        for start in have.code_blocks(len) {
            let block = &bytes[start..start + BLOCK_BYTES];
            CodeFields::of(&all, before + start).take(block, part.start + start as u64, &mut rest);
        }
        let mut left = &rest[..];
        while !left.is_empty() {
            let sent = sink.bytes(left.len(), &mut |out| {
                let count = out.len().min(left.len());
                out[..count].copy_from_slice(&left[..count]);
                Ok(count)
            })?;
            left = &left[sent..];
        }
        sink.record(&Record::Done(finished(&open, hasher.finish(), open.size_bytes)))
    }

    fn cut(&self, owed: &Owed, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        if let Some(sums) = &owed.sums {
            return self.tell_sums(sums, sink);
        }
        let (Some(part), Some(average_bytes)) = (owed.part, owed.cut) else {
            return Err(SendError::File(Error::new(ErrorKind::Internal, "a cut of no part")));
        };
        let open = self.open_as_seen(&part)?;
        self.cut.take(part.bytes, open.size_bytes)?;
        let has_holes = open.stored_bytes < open.size_bytes;
        let pieces_max = chunks_max(part.bytes, average_bytes);
        let mut pieces = Vec::new();
        let mut between = || {
            self.check_stop()?;
            sink.work()
        };
        let range = part.start..part.end();
        let profile = cut_profile(average_bytes)?;
        let end = cut_content(&open.file, range, has_holes, profile, &mut between, &mut |piece| {
            pieces.push(piece);
            if pieces.len() as u64 > pieces_max { Err(too_many_chunks().into()) } else { Ok(()) }
        })?;
        if end.end != part.end() || !open.is_unchanged()? {
            return Err(changed());
        }
        let finished = finished(&open, end.hash, open.size_bytes);
        if owed.known == Some(end.hash) && part == (Part { start: 0, bytes: open.size_bytes }) {
            return sink.record(&Record::Same(finished));
        }
        let mut chunks = Vec::new();
        for piece in pieces {
            let hole = match piece {
                Cut::Chunk(chunk) => {
                    chunks.push(chunk);
                    None
                }
                Cut::Hole(len) => Some(len),
            };
            if hole.is_some() || chunks.len() == CHUNKS_IN_RECORD {
                tell_chunks(&mut chunks, sink)?;
            }
            if let Some(len) = hole {
                sink.record(&Record::Hole(len))?;
            }
        }
        tell_chunks(&mut chunks, sink)?;
        sink.record(&Record::Done(finished))
    }

    fn is_linked(&self) -> bool {
        self.is_linked
    }
}

fn tell_chunks(chunks: &mut Vec<ChunkHint>, sink: &mut dyn RecordSink) -> Result<(), SendError> {
    if chunks.is_empty() {
        return Ok(());
    }
    let body = encode_chunks(chunks);
    chunks.clear();
    sink.record(&Record::Chunks(&body))
}

fn read_exact_at(open: &OpenFile, out: &mut [u8], at: u64) -> Result<(), SendError> {
    match open.file.read_exact_at(out, at) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed()),
        Err(error) => Err(Error::file("read the file", error).into()),
    }
}

fn changed() -> SendError {
    let what = "the file changed while it was read";
    SendError::File(Error::new(ErrorKind::Changed, what).advise("copy it when nobody writes to it"))
}

fn finished(open: &OpenFile, hash: [u8; 32], size_bytes: u64) -> Finished {
    let (mtime_s, mtime_ns) = open.mtime();
    Finished { hash, size_bytes, mtime_s, mtime_ns: mtime_ns.min(999_999_999) }
}

impl Sending {
    fn check_stop(&self) -> Result<(), SendError> {
        if self.stop.is_set() {
            return Err(SendError::Channel(Error::new(ErrorKind::Interrupted, "interrupted")));
        }
        Ok(())
    }

    /// Sends the next bytes of the file: `count`, or all to its end. How many they were.
    fn send_bytes(
        &self,
        open: &OpenFile,
        count: Option<u64>,
        hasher: &mut ContentHasher,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, SendError> {
        // One byte more than there should be: a file that grew shows, and the end of a small one needs no second read.
        let mut expected = count.unwrap_or(open.size_bytes.saturating_add(1));
        let mut sent = 0;
        let mut size = ReadSize::default();
        while sent < expected {
            self.check_stop()?;
            sink.work()?;
            let max = usize::try_from(expected - sent).unwrap_or(usize::MAX).min(size.bytes());
            let read = sink.bytes(max, &mut |out| {
                let read = size.read(|| (&open.file).read(out))?;
                hasher.update(&out[..read]);
                Ok(read)
            })?;
            sent += read as u64;
            if read == 0 || (sent == open.size_bytes && read < max && count.is_none()) {
                break;
            }
            if count.is_none() && sent == expected && open.is_unchanged()? {
                expected = u64::MAX;
            }
        }
        Ok(sent)
    }

    /// Opens the file for a part of it: it has that part, and is what it was when the first part was read.
    fn open_as_seen(&self, part: &Part) -> Result<OpenFile, SendError> {
        self.open_if(|open| part.end() <= open.size_bytes)
    }

    /// The same for anything that `has` says it has.
    fn open_if(&self, has: impl FnOnce(&OpenFile) -> bool) -> Result<OpenFile, SendError> {
        let open = self.file.open()?;
        let is_seen = *self.seen.get_or_init(|| open.state()) == open.state();
        if is_seen && has(&open) { Ok(open) } else { Err(changed()) }
    }

    /// Tells sums of blocks; nothing is hashed, and the end says so.
    fn tell_sums(&self, asked: &BlockSums, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        let open = self.open_if(|open| asked.is_within(open.size_bytes))?;
        self.summed.take(asked.covered_bytes(), open.size_bytes)?;
        let read = |at, bytes: &mut [u8]| {
            self.check_stop()?;
            sink.work()?;
            read_exact_at(&open, bytes, at)
        };
        let (runs, block_bytes, sum_bytes) = (&asked.runs, asked.block_bytes, asked.sum_bytes);
        let sums = match asked.is_code {
            Some(true) => code_sums_of(runs, block_bytes, sum_bytes, open.size_bytes, read)?,
            _ => sums_of(runs, block_bytes, sum_bytes, read)?,
        };
        if !open.is_unchanged()? {
            return Err(changed());
        }
        for piece in sums.chunks(TREE_RECORD_BYTES_MAX) {
            sink.record(&Record::Sums(piece))?;
        }
        sink.record(&Record::Done(finished(&open, [0; 32], open.size_bytes)))
    }

    /// Sends a part, of the same state of the file as the parts before.
    fn send_part(&self, part: &Part, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        let open = self.open_as_seen(part)?;
        let mut hasher = ContentHasher::new();
        let end = self.send_sparse(&open, part.start..part.end(), &mut hasher, sink)?;
        if end != part.end() || !open.is_unchanged()? {
            return Err(changed());
        }
        sink.record(&Record::Done(finished(&open, hasher.finish(), open.size_bytes)))
    }

    /// Sends these bytes of a file as it is kept, with its holes; behind the last that there was.
    fn send_sparse(
        &self,
        open: &OpenFile,
        range: std::ops::Range<u64>,
        hasher: &mut ContentHasher,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, SendError> {
        use rustix::fs::{SeekFrom, seek};
        let mut at = range.start;
        while at < range.end {
            self.check_stop()?;
            sink.work()?;
            match Piece::next(&open.file, at, range.end) {
                Piece::Hole(len) => {
                    hasher.zeros(len);
                    sink.record(&Record::Hole(len))?;
                    at += len;
                }
                Piece::Data(len) => {
                    seek(&open.file, SeekFrom::Start(at))
                        .map_err(|error| Error::file("read the file", error.into()))?;
                    let sent = self.send_bytes(open, Some(len), hasher, sink)?;
                    if sent == 0 {
                        break;
                    }
                    at += sent;
                }
            }
        }
        Ok(at)
    }

    fn hash(&self, open: &OpenFile, sink: &mut dyn RecordSink) -> Result<([u8; 32], u64), SendError> {
        let has_holes = open.stored_bytes < open.size_bytes;
        hash_content(&open.file, open.size_bytes, has_holes, &mut || {
            self.check_stop()?;
            sink.work()
        })
    }
}
