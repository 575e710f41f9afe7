//! The sending end of a tree copy: a walk as batches of entries, and files as records.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::limits::{PATH_BYTES_MAX, TREE_BATCH_ITEMS_MAX, TREE_RECORD_BYTES_MAX};
use dray_core::message::{Entries, EntryFailed, Fault, Owner};
use dray_core::tree::{Finished, Item, Metadata, Record};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{FileToSend, OpenFile, OwnerNames, WalkOptions, Walked, Walker};
use dray_transfer::tree::{Batch, RecordSink, SendError, TreeFile, TreeSource};

use crate::Stop;

/// Bytes of items with which a batch leaves; the largest entry still fits beside them.
const BATCH_BYTES: usize = 16 * 1024;
/// Owners that one batch names.
const BATCH_OWNERS: usize = 32;
/// Items of the first batch: something to do at the other end soon.
const FIRST_ITEMS: usize = 64;
/// How long a batch waits to be full.
const BATCH_PATIENCE: Duration = Duration::from_millis(20);
/// Batches whose files may wait to be read.
const BATCHES_OPEN: usize = 72;
/// Times a file that changes is read anew.
const READ_TRIES: usize = 3;

/// A walk in batches.
pub(super) struct WalkSource {
    walker: Walker,
    /// Names of owners, if those are told.
    names: Option<OwnerNames>,
    told: HashSet<(bool, u32)>,
    directories_max: usize,
    is_begun: bool,
    is_over: bool,
    stop: Stop,
}

impl WalkSource {
    pub(super) fn new(sources: Vec<PathBuf>, options: WalkOptions, names: bool, stop: Stop) -> WalkSource {
        WalkSource {
            walker: Walker::new(sources, options),
            names: names.then(OwnerNames::of_this_host),
            told: HashSet::new(),
            directories_max: Walker::directories_in_batch(BATCHES_OPEN),
            is_begun: false,
            is_over: false,
            stop,
        }
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
    }
}

impl TreeSource for WalkSource {
    fn next_batch(&mut self) -> Option<Batch> {
        if self.is_over || self.stop.is_set() {
            return None;
        }
        let items_max = if self.is_begun { TREE_BATCH_ITEMS_MAX } else { FIRST_ITEMS };
        self.is_begun = true;
        let begun = Instant::now();
        let (mut batch, mut items, mut owners) = (Batch::default(), Vec::new(), Vec::new());
        let (mut bytes, mut directories) = (0, 0);
        while items.len() < items_max
            && bytes < BATCH_BYTES
            && directories < self.directories_max
            && owners.len() < BATCH_OWNERS
            && batch.failed.len() < 64
            && (items.is_empty() || begun.elapsed() < BATCH_PATIENCE)
        {
            let item = match self.walker.step() {
                None => {
                    self.is_over = true;
                    break;
                }
                Some(Walked::Failed(path, error)) => {
                    batch.failed.push(entry_failed(&path, &error));
                    continue;
                }
                Some(Walked::Missing) => Item::Missing,
                Some(Walked::Leave) => Item::Leave,
                Some(Walked::Entry(entry, file)) => {
                    if let Some(file) = file {
                        batch.files.push((batch.count, Box::new(file_to_send(file, &self.stop))));
                    }
                    directories += usize::from(entry.is_directory());
                    batch.count += 1;
                    self.name_owners(&entry.metadata, &mut owners);
                    Item::Entry(*entry)
                }
            };
            let item = item.to_bytes();
            bytes += item.len();
            items.push(item.into());
        }
        let owners = (!owners.is_empty()).then_some(owners);
        batch.entries = Some(Entries { items, owners, is_last: self.is_over });
        Some(batch)
    }
}

fn file_to_send(file: FileToSend, stop: &Stop) -> Sending {
    Sending { file: Arc::new(file), stop: stop.clone() }
}

/// One file, when its turn comes.
struct Sending {
    file: Arc<FileToSend>,
    stop: Stop,
}

impl TreeFile for Sending {
    fn send(&self, known: Option<[u8; 32]>, sink: &mut dyn RecordSink) -> Result<(), SendError> {
        for attempt in 0..READ_TRIES {
            if attempt > 0 {
                sink.record(&Record::Again)?;
            }
            let open = self.file.open()?;
            if let Some(known) = known.filter(|_| attempt == 0)
                && self.hash(&open)? == known
                && open.is_unchanged()?
            {
                return sink.record(&Record::Same(finished(&open, known, open.size_bytes)));
            }
            let mut hasher = blake3::Hasher::new();
            let size_bytes = if open.stored_bytes < open.size_bytes {
                self.send_sparse(&open, &mut hasher, sink)?
            } else {
                self.send_bytes(&open, None, &mut hasher, sink)?
            };
            if size_bytes == open.size_bytes && open.is_unchanged()? {
                let hash = *hasher.finalize().as_bytes();
                return sink.record(&Record::Done(finished(&open, hash, size_bytes)));
            }
        }
        let what = "the file changed each time it was read";
        Err(SendError::File(Error::new(ErrorKind::Changed, what).advise("copy it when nobody writes to it")))
    }
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
        hasher: &mut blake3::Hasher,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, SendError> {
        // One byte more than there should be: a file that grew shows, and the end of a small one needs no second read.
        let expected = count.unwrap_or(open.size_bytes + 1);
        let mut sent = 0;
        while sent < expected {
            self.check_stop()?;
            let max = usize::try_from(expected - sent).unwrap_or(usize::MAX).min(TREE_RECORD_BYTES_MAX);
            let read = sink.bytes(max, &mut |out| {
                let read = (&open.file).read(out).map_err(|error| Error::file("read the file", error))?;
                hasher.update(&out[..read]);
                Ok(read)
            })?;
            sent += read as u64;
            if read == 0 || (read < max && count.is_none()) {
                break;
            }
        }
        Ok(sent)
    }

    /// Sends a file with holes as it is kept.
    fn send_sparse(
        &self,
        open: &OpenFile,
        hasher: &mut blake3::Hasher,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, SendError> {
        use rustix::fs::{SeekFrom, seek};
        let mut at = 0;
        while at < open.size_bytes {
            self.check_stop()?;
            let data = match seek(&open.file, SeekFrom::Data(at)) {
                Ok(data) => data.min(open.size_bytes),
                Err(rustix::io::Errno::NXIO) => open.size_bytes,
                // The file system does not tell holes: all of it is data.
                Err(_) => at,
            };
            if data > at {
                self.hash_zeros(hasher, data - at)?;
                sink.record(&Record::Hole(data - at))?;
                at = data;
                continue;
            }
            let hole = seek(&open.file, SeekFrom::Hole(at)).unwrap_or(open.size_bytes).min(open.size_bytes);
            seek(&open.file, SeekFrom::Start(at))
                .map_err(|error| Error::file("read the file", error.into()))?;
            let sent = self.send_bytes(open, Some(hole.max(at + 1) - at), hasher, sink)?;
            if sent == 0 {
                break;
            }
            at += sent;
        }
        Ok(at)
    }

    fn hash_zeros(&self, hasher: &mut blake3::Hasher, mut count: u64) -> Result<(), SendError> {
        while count > 0 {
            self.check_stop()?;
            let piece = count.min(ZEROS.len() as u64);
            hasher.update(&ZEROS[..piece as usize]);
            count -= piece;
        }
        Ok(())
    }

    fn hash(&self, open: &OpenFile) -> Result<[u8; 32], SendError> {
        use std::os::unix::fs::FileExt;
        let mut hasher = blake3::Hasher::new();
        let mut bytes =
            vec![0; TREE_RECORD_BYTES_MAX.min(usize::try_from(open.size_bytes).unwrap_or(usize::MAX).max(1))];
        let mut at = 0;
        loop {
            self.check_stop()?;
            let read =
                open.file.read_at(&mut bytes, at).map_err(|error| Error::file("read the file", error))?;
            if read == 0 {
                return Ok(*hasher.finalize().as_bytes());
            }
            hasher.update(&bytes[..read]);
            at += read as u64;
        }
    }
}

/// What holes hash as.
pub(super) static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];
