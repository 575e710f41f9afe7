//! The receiving end of a tree copy: entries become directories and wishes, records become files.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dray_core::hash_tree::ContentHasher;
use dray_core::limits::{
    TREE_BATCHES_MAX, TREE_FAILED_NAMED_MAX, TREE_FAILED_REASONS_MAX, TREE_PENDING_BYTES_MAX,
    TREE_PULL_RUNS_MAX, TREE_PULLS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{Entries, EntryFailed, Message, TreeDone};
use dray_core::tree::{Entry, Item, Kind, Record, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::TreeReceiver;
use dray_store::local::tree::{FileTarget, NewFile, Placed, TreeWriter, own_directory};
use dray_transfer::tree::{Heard, TreeSink};

use super::source::entry_failed;

/// What an entry that waits takes besides its names and attributes.
const PENDING_ENTRY_BYTES: usize = 512;

/// Hears of entries that failed, at either end.
pub(super) type OnFailed<'a> = dyn Fn(&EntryFailed) + Send + Sync + 'a;

/// Writes what comes.
pub(super) struct Writing<'a> {
    machine: TreeReceiver,
    writer: TreeWriter,
    /// Batches for which there is no room yet, and how many items of the first were taken.
    waiting: VecDeque<Entries>,
    taken: usize,
    /// In the order in which their contents come; hard links among them.
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    pending_links: usize,
    /// Groups of hard links whose content is on its way.
    coming: HashSet<[u8; 16]>,
    current: Current,
    failed: Vec<EntryFailed>,
    /// How many more failed, by reason.
    unnamed: BTreeMap<(u8, String), u64>,
    on_failed: &'a OnFailed<'a>,
    done: TreeDone,
    fsync: bool,
    is_finished: bool,
}

/// An entry that waits for its content, or for that of the file it is a hard link to.
struct Pending {
    number: u64,
    target: Box<FileTarget>,
    known: Option<[u8; 32]>,
    is_link: bool,
    bytes: usize,
}

/// The file being written.
#[derive(Default)]
struct Current {
    file: Option<NewFile>,
    hasher: ContentHasher,
    /// It failed here; the rest of it is passed over.
    has_failed: bool,
}

impl<'a> Writing<'a> {
    pub(super) fn new(
        writer: TreeWriter,
        sources: usize,
        fsync: bool,
        on_failed: &'a OnFailed<'a>,
    ) -> Writing<'a> {
        // The sink has a thread to itself.
        own_directory();
        Writing {
            machine: TreeReceiver::new(sources),
            writer,
            waiting: VecDeque::new(),
            taken: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            pending_links: 0,
            coming: HashSet::new(),
            current: Current::default(),
            failed: Vec::new(),
            unnamed: BTreeMap::new(),
            on_failed,
            done: TreeDone::default(),
            fsync,
            is_finished: false,
        }
    }

    /// An entry failed here; the copy goes on, unless nothing more can be written.
    fn fail(&mut self, path: &[u8], error: Error) -> Result<()> {
        if error.kind() == ErrorKind::NoSpace {
            return Err(error);
        }
        let path =
            if path.is_empty() { Path::new(".") } else { Path::new(std::ffi::OsStr::from_bytes(path)) };
        let mut failed = entry_failed(path, &error);
        self.done.failed += 1;
        if self.done.failed <= TREE_FAILED_NAMED_MAX {
            (self.on_failed)(&failed);
            self.failed.push(failed);
            return Ok(());
        }
        if self.unnamed.len() >= TREE_FAILED_REASONS_MAX {
            failed.kind = ErrorKind::Internal.wire_code();
            failed.text = "for other reasons".into();
        }
        *self.unnamed.entry((failed.kind, failed.text)).or_default() += 1;
        Ok(())
    }

    /// Takes entries as long as there is room for what they ask for.
    fn decide(&mut self) -> Result<()> {
        while let Some(batch) = self.waiting.front() {
            if self.taken == 0 {
                for owner in batch.owners.iter().flatten() {
                    self.writer.add_owner(owner.is_group, owner.id, &owner.name);
                }
            }
            let Some(batch) = self.waiting.pop_front() else { return Ok(()) };
            while let Some(item) = batch.items.get(self.taken) {
                if !self.has_room() {
                    self.waiting.push_front(batch);
                    return Ok(());
                }
                self.taken += 1;
                self.item(item)?;
            }
            self.taken = 0;
        }
        Ok(())
    }

    /// True if one more entry may be taken: always if nothing waits.
    fn has_room(&self) -> bool {
        let has_room = self.machine.under_way() + (self.pending_links as u64) < TREE_WANTED_MAX
            && self.pending_bytes < TREE_PENDING_BYTES_MAX
            && !self.writer.is_full()
            && self.machine.waiting_runs() < TREE_PULL_RUNS_MAX;
        has_room || self.pending.is_empty()
    }

    fn item(&mut self, bytes: &[u8]) -> Result<()> {
        let (item, step, number) = self.machine.accept(bytes)?;
        let Item::Entry(entry) = item else {
            if step == Step::Leave {
                self.writer.leave();
            }
            return Ok(());
        };
        let is_skipped = self.writer.is_skipping() && step == Step::Inner;
        let placed = match step {
            Step::Root(index) => self.writer.root(index, &entry),
            _ => self.writer.entry(&entry),
        };
        if is_skipped {
            return Ok(());
        }
        match placed {
            Ok(Placed::Done) => {}
            Ok(Placed::Unchanged) => self.done.unchanged += u64::from(is_file(&entry)),
            Ok(Placed::Wanted(target, known)) => {
                self.machine.want(number, known);
                self.wait_for(number, target, known, false, bytes.len());
            }
            Ok(Placed::Link(target)) => {
                self.wait_for(number, target, None, true, bytes.len());
                self.link()?;
            }
            Err(error) => {
                let path = self.writer.path_of(&entry);
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    fn wait_for(
        &mut self,
        number: u64,
        target: Box<FileTarget>,
        known: Option<[u8; 32]>,
        is_link: bool,
        bytes: usize,
    ) {
        let bytes = bytes + PENDING_ENTRY_BYTES;
        if let Some(group) = target.link_group().filter(|_| !is_link) {
            self.coming.insert(group);
        }
        self.pending_bytes += bytes;
        self.pending_links += usize::from(is_link);
        self.pending.push_back(Pending { number, target, known, is_link, bytes });
    }

    /// Makes the hard links that wait for nothing any more. If the file that one is another name of did not come, its content is
    /// asked for under this name, and the other names of the group wait for that.
    fn link(&mut self) -> Result<()> {
        while self.pending.front().is_some_and(|pending| pending.is_link) {
            let Some(mut pending) = self.pending.pop_front() else { return Ok(()) };
            let group = pending.target.link_group().unwrap_or_default();
            if !self.writer.can_link(&pending.target) {
                if self.coming.insert(group) {
                    pending.is_link = false;
                    self.pending_links -= 1;
                    self.writer.begin_again(&pending.target);
                    self.machine.want(pending.number, None);
                }
                self.pending.push_back(pending);
                continue;
            }
            self.pending_bytes -= pending.bytes;
            self.pending_links -= 1;
            let linked = self.writer.link(&pending.target);
            let path = pending.target.path();
            self.writer.settle(*pending.target, None);
            if let Err(error) = linked {
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, number: u64, record: &Record<'_>) -> Result<()> {
        let Some(pending) = self.pending.front().filter(|pending| pending.number == number) else {
            return Err(Error::new(ErrorKind::Internal, "a content came that nobody waits for"));
        };
        let result = match record {
            Record::Bytes(bytes) => {
                self.done.bytes += bytes.len() as u64;
                self.current.write(&pending.target, bytes)
            }
            Record::Hole(len) => self.current.skip(&pending.target, *len),
            Record::Again => self.current.restart(),
            Record::Done(_) | Record::Same(_) | Record::Failed(_) => return self.end(record),
        };
        if let Err(error) = result {
            let path = pending.target.path();
            self.current = Current { has_failed: true, ..Current::default() };
            self.fail(&path, error)?;
        }
        Ok(())
    }

    /// The content that waits longest has come to its end.
    fn end(&mut self, record: &Record<'_>) -> Result<()> {
        let Some(mut pending) = self.pending.pop_front() else { return Ok(()) };
        self.pending_bytes -= pending.bytes;
        if let Some(group) = pending.target.link_group() {
            // If it fails, the next name that waits is asked for.
            self.coming.remove(&group);
        }
        let mut current = std::mem::take(&mut self.current);
        let ended = match record {
            Record::Done(finished) if !current.has_failed => {
                let whole = current.open(&pending.target).and_then(|file| {
                    if current.hasher.finish() == finished.hash {
                        return Ok(file);
                    }
                    Err(Error::new(ErrorKind::VerificationFailed, "its bytes are not those that were sent"))
                });
                whole.and_then(|file| pending.target.finish(file, finished)).map(|identity| {
                    self.done.files += 1;
                    Some(identity)
                })
            }
            Record::Same(finished) if pending.known == Some(finished.hash) => {
                self.writer.keep_same(&mut pending.target, finished).map(|identity| {
                    self.done.unchanged += 1;
                    Some(identity)
                })
            }
            Record::Same(_) => {
                return Err(Error::new(ErrorKind::Protocol, "sender found the same what is not"));
            }
            Record::Failed(fault) => Err(fault.to_error("")),
            _ => Ok(None),
        };
        let path = pending.target.path();
        match ended {
            Ok(identity) => self.writer.settle(*pending.target, identity),
            Err(error) => {
                self.writer.settle(*pending.target, None);
                self.fail(&path, error)?;
            }
        }
        self.link()
    }

    /// Everything has come: what is left to say, and to make durable.
    fn finish_if_complete(&mut self) -> Result<()> {
        if self.is_finished
            || !self.waiting.is_empty()
            || !self.machine.is_done()?
            || !self.pending.is_empty()
        {
            return Ok(());
        }
        self.is_finished = true;
        self.done.entries = self.machine.entries();
        let not_kept = self.writer.failures();
        for (path, error) in not_kept.directories {
            self.fail(&path, error)?;
        }
        for (what, entries) in not_kept.attributes {
            let what = format!("not kept on {entries} entries: {what}");
            self.fail(b"", Error::new(ErrorKind::Unsupported, what))?;
        }
        for ((kind, text), count) in std::mem::take(&mut self.unnamed) {
            let failed = EntryFailed { path: Vec::new().into(), kind, text, unnamed: Some(count) };
            (self.on_failed)(&failed);
            self.failed.push(failed);
        }
        if self.fsync {
            self.writer.sync()?;
        }
        Ok(())
    }
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::File { .. })
}

impl Current {
    /// The file, opened if nothing of it has come before.
    fn open(&mut self, target: &FileTarget) -> Result<NewFile> {
        match self.file.take() {
            Some(file) => Ok(file),
            None => target.create(),
        }
    }

    fn write(&mut self, target: &FileTarget, bytes: &[u8]) -> Result<()> {
        if self.has_failed {
            return Ok(());
        }
        let mut file = self.open(target)?;
        self.hasher.update(bytes);
        file.write(bytes)?;
        self.file = Some(file);
        Ok(())
    }

    fn skip(&mut self, target: &FileTarget, len: u64) -> Result<()> {
        if self.has_failed {
            return Ok(());
        }
        let mut file = self.open(target)?;
        file.skip(len)?;
        self.hasher.zeros(len);
        self.file = Some(file);
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.hasher.reset();
        self.file.as_mut().map_or(Ok(()), NewFile::restart)
    }
}

impl TreeSink for Writing<'_> {
    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                self.waiting.push_back(entries);
            }
            Heard::Message(Message::EntryFailed(failed)) => (self.on_failed)(&failed),
            Heard::Message(_) => {
                return Err(Error::new(ErrorKind::Protocol, "sender sent a message out of place"));
            }
            Heard::Data(request, body) => {
                let mut rest = &body[..];
                while !rest.is_empty() {
                    let (number, record) = self.machine.take(request, &mut rest)?;
                    self.record(number, &record)?;
                }
            }
            Heard::End(request) => self.machine.handle_end(request)?,
        }
        self.decide()?;
        self.finish_if_complete()
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        out.extend(self.failed.drain(..).map(Message::EntryFailed));
        let ahead = u64::from(TREE_BATCHES_MAX).saturating_sub(self.waiting.len() as u64);
        // The content of a hard link may yet be asked for.
        let links = || self.pending.iter().filter(|pending| pending.is_link).map(|pending| pending.number);
        let undecided = if self.pending_links > 0 { links().min() } else { None };
        while self.machine.pulls() < TREE_PULLS_MAX / 2
            && let Some(pull) = self.machine.pull(ahead, undecided)
        {
            out.push(Message::Pull(pull));
        }
    }

    fn done(&mut self) -> Result<Option<TreeDone>> {
        Ok(self.is_finished.then_some(self.done))
    }

    fn done_bytes(&self) -> u64 {
        self.done.bytes
    }

    fn missing(&self) -> Option<String> {
        let missing = self.machine.missing()?;
        let Some(first) = self.pending.iter().find(|pending| !pending.is_link) else { return Some(missing) };
        Some(format!("{missing}, the first of {:?},", String::from_utf8_lossy(&first.target.path())))
    }
}
