//! The receiving end of a tree copy: entries become directories and wishes, records become files.

mod delta;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use dray_core::hash_tree::ContentHasher;
use dray_core::limits::{
    TREE_BATCHES_MAX, TREE_FAILED_NAMED_MAX, TREE_FAILED_REASONS_MAX, TREE_LANES_MAX, TREE_PART_BYTES,
    TREE_PENDING_BYTES_MAX, TREE_PULLS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{Direct, Entries, EntryFailed, Message, Part, TreeDone};
use dray_core::tree::{Entry, Finished, Item, Kind, Record, Step};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{PathId, TreeReceiver, Wanted, part_bytes};
use dray_store::local::tree::{FileTarget, NewFile, Placed, TreeWriter, own_directory};
use dray_transfer::tree::{Heard, Lane, SinkWake, TreeSink};

use super::super::DIRECT_FROM_BYTES;
use super::held::{Failed, HeldNames};
use super::source::entry_failed;
use delta::{Deltas, Meter};

/// What an entry that waits takes besides its names and attributes.
const PENDING_ENTRY_BYTES: usize = 512;

/// Bytes that may be owed over one path while direct connections may be used: about what comes in [`PACE_TIME`], within these
/// bounds. Small files count for more than they have. Less would leave a long path idle; more would be lost with it, or come late over
/// a slow one while a faster one has nothing to do.
const WINDOW_MIN: u64 = 4 << 20;
const WINDOW_MAX: u64 = 16 << 20;
const PACE_TIME: Duration = Duration::from_secs(1);
/// Zeros written at a time.
const ZEROS_BYTES: usize = 64 * 1024;
/// How often the pace of a path is looked at.
const PACE_INTERVAL: Duration = Duration::from_millis(250);
/// Pulls over one direct connection; with those over ssh no more than may be under way.
const LANE_PULLS_MAX: usize = TREE_PULLS_MAX / 2 / TREE_LANES_MAX;

/// The means to have contents come over direct connections.
pub(super) trait Doors: Sync {
    /// Listens: what the sender is told; `None` if that cannot be.
    fn invite(&self) -> Option<Direct>;
    /// The sender said where it listens.
    fn handle_direct(&self, theirs: Direct) -> Result<()>;
}

/// Hears of entries that failed, at either end.
pub(super) type OnFailed<'a> = dyn Fn(&EntryFailed) + Send + Sync + 'a;

/// Writes what comes.
pub(super) struct Writing<'a> {
    machine: TreeReceiver,
    writer: TreeWriter,
    /// Batches for which there is no room yet, and how many items of the first were taken.
    waiting: VecDeque<Entries>,
    taken: usize,
    /// What comes, by number.
    pending: BTreeMap<u64, Pending>,
    pending_bytes: usize,
    /// Hard links that wait for the first name of their group, and their numbers.
    links: HashMap<[u8; 16], VecDeque<Pending>>,
    link_numbers: BTreeSet<u64>,
    /// Groups of hard links whose content is on its way.
    coming: HashSet<[u8; 16]>,
    held: HeldNames,
    /// What comes over each path.
    current: BTreeMap<PathId, Current>,
    doors: Option<&'a dyn Doors>,
    /// The sender was told that direct connections are welcome.
    is_inviting: bool,
    invitation: Option<Direct>,
    /// Those that are up.
    lanes: BTreeMap<u32, Arc<Lane>>,
    paces: BTreeMap<PathId, Pace>,
    /// Bytes of contents wanted so far.
    wanted_bytes: u64,
    failed: Vec<EntryFailed>,
    /// How many more failed, by reason.
    unnamed: BTreeMap<(u8, String), u64>,
    on_failed: &'a OnFailed<'a>,
    done: TreeDone,
    deltas: Deltas,
    meter: Meter,
    fsync: bool,
    is_finished: bool,
}

/// An entry that waits for its content, or for that of the file it is a hard link to.
struct Pending {
    number: u64,
    target: Box<FileTarget>,
    known: Option<[u8; 32]>,
    size_bytes: u64,
    /// Bytes that it takes here.
    held: usize,
    /// Its content comes in parts.
    parts: Option<Parts>,
}

/// A file that comes in parts.
#[derive(Default)]
struct Parts {
    file: Option<NewFile>,
    /// Bytes of those that are to come, as far as that is known, and of those that came whole.
    asked: u64,
    came: u64,
    /// Where those begin of which something was written that counts no more: their path was lost.
    dirty: BTreeSet<u64>,
    /// What the first of them said of the file.
    finished: Option<Finished>,
}

/// What comes over one path.
#[derive(Default)]
struct Current {
    /// The file, unless it comes in parts.
    file: Option<NewFile>,
    hasher: ContentHasher,
    /// Bytes of a part so far, and whether any was no hole.
    position: u64,
    has_bytes: bool,
    /// It failed here; the rest of it is passed over.
    failed: Option<Error>,
}

/// How fast a path is.
struct Pace {
    since: Instant,
    /// What came since, as [`TreeReceiver::weight`] has it.
    came: u64,
    window: u64,
    /// Weight a second, once it was measured.
    rate: Option<u64>,
}

impl Pace {
    fn new() -> Pace {
        Pace { since: Instant::now(), came: 0, window: WINDOW_MIN, rate: None }
    }

    /// It is asked for something after a rest, which is not to count.
    fn rested(&mut self) {
        (self.since, self.came) = (Instant::now(), 0);
    }

    fn came(&mut self, weight: u64) {
        self.came = self.came.saturating_add(weight);
        let elapsed = self.since.elapsed();
        if elapsed >= PACE_INTERVAL {
            let in_time = self.came as f64 * PACE_TIME.as_secs_f64() / elapsed.as_secs_f64();
            let window = (in_time as u64).clamp(WINDOW_MIN, WINDOW_MAX);
            let rate = Some((self.came as f64 / elapsed.as_secs_f64()) as u64);
            *self = Pace { window, rate, ..Pace::new() };
        }
    }
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
            pending: BTreeMap::new(),
            pending_bytes: 0,
            links: HashMap::new(),
            link_numbers: BTreeSet::new(),
            coming: HashSet::new(),
            held: HeldNames::default(),
            current: BTreeMap::new(),
            doors: None,
            is_inviting: false,
            invitation: None,
            lanes: BTreeMap::new(),
            paces: BTreeMap::new(),
            wanted_bytes: 0,
            failed: Vec::new(),
            unnamed: BTreeMap::new(),
            on_failed,
            done: TreeDone::default(),
            deltas: Deltas::default(),
            meter: Meter::default(),
            fsync,
            is_finished: false,
        }
    }

    /// With contents over direct connections, too.
    pub(super) fn with_doors(self, doors: Option<&'a dyn Doors>) -> Writing<'a> {
        Writing { doors, ..self }
    }

    /// An entry failed here; the copy goes on, unless nothing more can be written.
    fn fail(&mut self, path: &[u8], error: Error) -> Result<()> {
        if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) {
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
        let has_room = self.machine.under_way() + (self.link_numbers.len() as u64) < TREE_WANTED_MAX
            && self.pending_bytes < TREE_PENDING_BYTES_MAX
            && !self.writer.is_full();
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
            Ok(Placed::Unchanged) => {
                self.done.unchanged += u64::from(is_file(&entry));
                let failed = self.held.came(&mut self.writer, entry.metadata.link_group);
                self.fail_all(failed)?;
            }
            Ok(Placed::Wanted(target, known)) => {
                self.want(number, target, known, &entry, bytes.len())?;
            }
            Ok(Placed::Link(target)) => {
                let held = bytes.len() + PENDING_ENTRY_BYTES;
                self.pending_bytes += held;
                self.link_numbers.insert(number);
                let group = target.link_group().unwrap_or_default();
                let size_bytes = size_of(&entry);
                let waiting = Pending { number, target, known: None, size_bytes, held, parts: None };
                self.links.entry(group).or_default().push_back(waiting);
                self.link(&group)?;
            }
            Err(error) => {
                let path = self.writer.path_of(&entry);
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    /// A content is to come.
    fn want(
        &mut self,
        number: u64,
        target: Box<FileTarget>,
        known: Option<[u8; 32]>,
        entry: &Entry,
        item_bytes: usize,
    ) -> Result<()> {
        if let Some(group) = target.link_group() {
            self.coming.insert(group);
        }
        let held = item_bytes + PENDING_ENTRY_BYTES;
        self.pending_bytes += held;
        let pending = Pending { number, target, known, size_bytes: size_of(entry), held, parts: None };
        if self.may_differ(&pending) {
            return self.differ(pending);
        }
        self.ask(pending);
        Ok(())
    }

    fn ask(&mut self, mut pending: Pending) {
        let (number, size_bytes) = (pending.number, pending.size_bytes);
        if pending.known.is_none() {
            self.wanted_bytes = self.wanted_bytes.saturating_add(size_bytes);
        }
        // What one path has begun another cannot go on with, so a large file is asked for piece by piece.
        if self.doors.is_some() && pending.known.is_none() && size_bytes >= 2 * TREE_PART_BYTES {
            self.invite();
            pending.parts = self.is_inviting.then(|| Parts { asked: size_bytes, ..Parts::default() });
        }
        match &pending.parts {
            Some(_) => self.machine.want_parts(number, size_bytes, part_bytes(size_bytes)),
            None => self.machine.want(number, pending.known, size_bytes),
        }
        self.pending.insert(number, pending);
    }

    /// Makes the hard links of a group, if they wait for nothing any more. If the file that they are other names of did not come, its
    /// content is asked for under one of these names, and the others wait for that.
    fn link(&mut self, group: &[u8; 16]) -> Result<()> {
        while !self.coming.contains(group)
            && let Some(waiting) = self.links.get_mut(group)
        {
            let Some(pending) = waiting.pop_front() else {
                self.links.remove(group);
                break;
            };
            self.link_numbers.remove(&pending.number);
            if !self.writer.can_link(&pending.target) {
                self.coming.insert(*group);
                self.writer.begin_again(&pending.target);
                self.ask(pending);
                break;
            }
            self.pending_bytes -= pending.held;
            let linked = self.writer.link(&pending.target);
            let path = pending.target.path();
            self.writer.settle(*pending.target, None);
            if let Err(error) = linked {
                self.fail(&path, error)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, path: PathId, wanted: &Wanted, record: &Record<'_>) -> Result<()> {
        if wanted.cut.is_some() {
            return self.cut_record(wanted, record);
        }
        let pending = self.pending.get_mut(&wanted.number);
        let Some(pending) = pending.filter(|pending| pending.parts.is_some() == wanted.part.is_some()) else {
            // A part of a file that failed, or is asked for as a whole by now.
            if wanted.part.is_some() {
                self.current.remove(&path);
                if let Record::Bytes(bytes) = record {
                    self.done.bytes += bytes.len() as u64;
                }
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Internal, "a content came that nobody waits for"));
        };
        let current = self.current.entry(path).or_default();
        let result = match (record, wanted.part) {
            (Record::Bytes(bytes), part) => {
                self.done.bytes += bytes.len() as u64;
                match part {
                    None => current.write(&pending.target, bytes),
                    Some(part) => current.write_part(pending, &part, bytes)?,
                }
            }
            (Record::Hole(len), None) => current.skip(&pending.target, *len),
            (Record::Hole(len), Some(part)) => current.skip_part(pending, &part, *len)?,
            (Record::Again, None) => current.restart(),
            (Record::Again | Record::Chunks(_), _) => {
                return Err(Error::new(ErrorKind::Protocol, "sender began a part anew"));
            }
            (Record::Done(_) | Record::Same(_) | Record::Failed(_), part) => {
                let current = self.current.remove(&path).unwrap_or_default();
                return match part {
                    None => self.end(wanted.number, current, record),
                    Some(part) => self.end_part(wanted.number, &part, current, record),
                };
            }
        };
        let Err(error) = result else { return Ok(()) };
        if error.kind() == ErrorKind::NoSpace {
            return Err(error);
        }
        if wanted.part.is_some() {
            self.current.remove(&path);
            return self.settle(wanted.number, Err(error));
        }
        *current = Current { failed: Some(error), ..Current::default() };
        Ok(())
    }

    fn tell(&mut self, failed: EntryFailed) {
        (self.on_failed)(&failed);
        self.failed.push(failed);
    }

    fn fail_all(&mut self, failed: impl IntoIterator<Item = Failed>) -> Result<()> {
        failed.into_iter().try_for_each(|(path, error)| self.fail(&path, error))
    }

    /// A content has come to its end.
    fn end(&mut self, number: u64, mut current: Current, record: &Record<'_>) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let failed = current.failed.take();
        let ended = match record {
            Record::Done(_) | Record::Failed(_) if failed.is_some() => failed.map_or(Ok(None), Err),
            Record::Done(finished) => {
                let whole = current.open(&pending.target).and_then(|file| {
                    if current.hasher.finish() == finished.hash {
                        return Ok(file);
                    }
                    Err(not_as_sent())
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
        self.settle(number, ended)
    }

    /// A part has come to its end.
    fn end_part(&mut self, number: u64, part: &Part, current: Current, record: &Record<'_>) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let (size_bytes, Some(parts)) = (pending.size_bytes, &mut pending.parts) else { return Ok(()) };
        let finished = match record {
            Record::Done(finished) => *finished,
            // It was written to between two parts: once more, in one piece.
            Record::Failed(fault) if fault.to_error("").kind() == ErrorKind::Changed => {
                return self.take_whole(number);
            }
            Record::Failed(fault) => return self.settle(number, Err(fault.to_error(""))),
            _ => return Err(Error::new(ErrorKind::Protocol, "sender ended a part as a whole content")),
        };
        if current.position != part.bytes {
            return Err(Error::new(ErrorKind::Protocol, "sender ended a part before its end"));
        }
        if current.hasher.finish() != finished.hash {
            return self.settle(number, Err(not_as_sent()));
        }
        let state = |finished: &Finished| (finished.size_bytes, finished.mtime_s, finished.mtime_ns);
        let first = *parts.finished.get_or_insert(finished);
        if state(&first) != state(&finished) || finished.size_bytes != size_bytes {
            return self.take_whole(number);
        }
        parts.came += part.bytes;
        self.machine.came_part(number, !current.has_bytes);
        if self.deltas.has(number) {
            return self.prove_if_whole(number);
        }
        if parts.came < parts.asked {
            return Ok(());
        }
        let file = parts.file.take().map_or_else(|| pending.target.create(), Ok);
        let ended = file.and_then(|mut file| {
            file.came_in_parts(size_bytes);
            pending.target.finish(file, &finished)
        });
        let ended = ended.map(|identity| {
            self.done.files += 1;
            Some(identity)
        });
        self.settle(number, ended)
    }

    /// What came in parts so far is void.
    fn take_whole(&mut self, number: u64) -> Result<()> {
        self.machine.forget(number);
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.parts = None;
            self.machine.want(number, None, pending.size_bytes);
        }
        self.end_delta(number)
    }

    /// An entry is in place, or will not be.
    fn settle(&mut self, number: u64, ended: Result<Option<(u32, u32, u64)>>) -> Result<()> {
        let Some(pending) = self.pending.remove(&number) else { return Ok(()) };
        if pending.parts.is_some() {
            self.machine.forget(number);
        }
        self.pending_bytes -= pending.held;
        self.end_delta(number)?;
        let group = pending.target.link_group();
        match ended {
            Ok(identity) => {
                self.writer.settle(*pending.target, identity);
                let failed = self.held.came(&mut self.writer, group);
                self.fail_all(failed)?;
            }
            Err(error) => {
                let failed = self.held.failed(&mut self.writer, pending.target, error);
                self.fail_all(failed)?;
            }
        }
        match group {
            Some(group) => {
                // If it failed, the next name that waits is asked for.
                self.coming.remove(&group);
                self.link(&group)
            }
            None => Ok(()),
        }
    }

    /// A direct connection is gone: what it owed is asked for again.
    fn lose(&mut self, lane: u32) {
        self.lanes.remove(&lane);
        self.paces.remove(&Some(lane));
        let begun = self.current.remove(&Some(lane)).is_some_and(|current| current.has_bytes);
        let lost = self.machine.lose(lane);
        if let Some(Wanted { number, part: Some(part), .. }) = lost.front().filter(|_| begun)
            && let Some(parts) = self.pending.get_mut(number).and_then(|pending| pending.parts.as_mut())
        {
            parts.dirty.insert(part.start);
        }
        for wanted in lost.iter().rev() {
            if let Some(pending) = self.pending.get(&wanted.number)
                && pending.parts.is_some() == wanted.part.is_some()
            {
                self.machine.want_again(wanted, pending.known);
            }
        }
    }

    /// Has the sender told, once, that direct connections are welcome.
    fn invite(&mut self) {
        if self.is_inviting {
            return;
        }
        self.invitation = self.doors.and_then(Doors::invite);
        self.is_inviting = self.invitation.is_some();
        if !self.is_inviting {
            self.doors = None;
        }
    }

    /// The path that is to be asked next, and how much of its window is free.
    fn next_path(&self) -> Option<(PathId, u64)> {
        if !self.machine.has_wishes() {
            return None;
        }
        let ssh_pulls = self.machine.pulls(None);
        if !self.is_inviting {
            return (ssh_pulls < TREE_PULLS_MAX / 2).then_some((None, u64::MAX));
        }
        // With direct connections ssh is the spare, unless they are far slower than it was.
        let lanes = self.lanes.keys().map(|lane| (Some(*lane), LANE_PULLS_MAX));
        let ssh = Some((None, TREE_PULLS_MAX / 2)).filter(|_| self.lanes.is_empty() || self.are_lanes_slow());
        let room = |(path, pulls_max): (PathId, usize)| {
            let weight = self.machine.weight(path);
            let window = self.paces.get(&path).map_or(WINDOW_MIN, |pace| pace.window);
            let may_pull = self.machine.pulls(path) < pulls_max && weight <= window / 4 * 3;
            may_pull.then(|| (path, window - weight))
        };
        lanes.chain(ssh).filter_map(room).min_by_key(|(path, _)| self.machine.weight(*path))
    }

    /// True if all direct connections together bring less than half of what ssh brought.
    fn are_lanes_slow(&self) -> bool {
        let rate = |path: PathId| self.paces.get(&path).and_then(|pace| pace.rate);
        let lanes: Option<u64> = self.lanes.keys().map(|lane| rate(Some(*lane))).sum();
        lanes.zip(rate(None)).is_some_and(|(lanes, ssh)| lanes < ssh / 2)
    }

    /// Everything has come: what is left to say, and to make durable.
    fn finish_if_complete(&mut self) -> Result<()> {
        if self.is_finished
            || !self.waiting.is_empty()
            || !self.machine.is_done()?
            || !self.pending.is_empty()
            || !self.links.is_empty()
        {
            return Ok(());
        }
        self.is_finished = true;
        self.done.entries = self.machine.entries();
        let held = self.held.end(&mut self.writer);
        self.fail_all(held)?;
        let not_kept = self.writer.failures();
        self.fail_all(not_kept.directories)?;
        for (what, entries) in not_kept.attributes {
            let what = format!("not kept on {entries} entries: {what}");
            self.fail(b"", Error::new(ErrorKind::Unsupported, what))?;
        }
        for ((kind, text), count) in std::mem::take(&mut self.unnamed) {
            self.tell(EntryFailed {
                path: Vec::new().into(),
                kind,
                text,
                unnamed: Some(count),
                left_out: None,
            });
        }
        let kind = ErrorKind::Unsupported.wire_code();
        for (text, entries) in not_kept.left_out {
            let left_out = Some(entries);
            self.tell(EntryFailed { path: Vec::new().into(), kind, text, unnamed: None, left_out });
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

/// Its size as it was told.
fn size_of(entry: &Entry) -> u64 {
    if let Kind::File { size_bytes, .. } = entry.kind { size_bytes } else { 0 }
}

fn not_as_sent() -> Error {
    Error::new(ErrorKind::VerificationFailed, "its bytes are not those that were sent")
}

impl Pending {
    /// Writes bytes of a file that comes in parts.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let file = match &mut parts.file {
            Some(file) => file,
            none => none.insert(self.target.create()?),
        };
        file.write_at(bytes, at)
    }
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
        if self.failed.is_some() {
            return Ok(());
        }
        let mut file = self.open(target)?;
        self.hasher.update(bytes);
        file.write(bytes)?;
        self.file = Some(file);
        Ok(())
    }

    fn skip(&mut self, target: &FileTarget, len: u64) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let mut file = self.open(target)?;
        file.skip(len)?;
        self.hasher.zeros(len);
        self.file = Some(file);
        Ok(())
    }

    /// Takes bytes of a part; the inner result is the file's.
    fn write_part(&mut self, pending: &mut Pending, part: &Part, bytes: &[u8]) -> Result<Result<()>> {
        let at = part.start + self.position;
        self.advance(part, bytes.len() as u64)?;
        self.hasher.update(bytes);
        self.has_bytes = true;
        Ok(pending.write_at(bytes, at))
    }

    /// Takes a hole of a part; the inner result is the file's.
    fn skip_part(&mut self, pending: &mut Pending, part: &Part, len: u64) -> Result<Result<()>> {
        let at = part.start + self.position;
        self.advance(part, len)?;
        self.hasher.zeros(len);
        let is_dirty = pending.parts.as_ref().is_some_and(|parts| parts.dirty.contains(&part.start));
        if !is_dirty {
            return Ok(Ok(()));
        }
        // Bytes of an answer that was lost may lie there.
        let zeros = vec![0; ZEROS_BYTES];
        for start in (at..at + len).step_by(ZEROS_BYTES) {
            let count = usize::try_from(at + len - start).unwrap_or(usize::MAX).min(ZEROS_BYTES);
            if let Err(error) = pending.write_at(&zeros[..count], start) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn advance(&mut self, part: &Part, len: u64) -> Result<()> {
        let position = self.position.checked_add(len).filter(|position| *position <= part.bytes);
        self.position =
            position.ok_or_else(|| Error::new(ErrorKind::Protocol, "sender sent more than the part has"))?;
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.hasher.reset();
        self.file.as_mut().map_or(Ok(()), NewFile::restart)
    }
}

impl TreeSink for Writing<'_> {
    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.deltas.stop_with(stop.clone());
        self.writer.stop_with(stop);
    }

    fn wake_with(&mut self, wake: Arc<SinkWake>) {
        self.deltas.wake_with(wake);
    }

    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => {
                self.machine.handle_entries(&entries)?;
                self.waiting.push_back(entries);
            }
            Heard::Message(Message::EntryFailed(failed)) => (self.on_failed)(&failed),
            Heard::Message(Message::Direct(theirs)) if self.is_inviting => {
                if let Some(doors) = self.doors {
                    doors.handle_direct(theirs)?;
                }
            }
            Heard::Message(_) => {
                return Err(Error::new(ErrorKind::Protocol, "sender sent a message out of place"));
            }
            Heard::Data(path, request, body) => {
                self.meter.came(body.len() as u64);
                let owed = self.machine.weight(path);
                let mut rest = &body[..];
                while !rest.is_empty() {
                    let (wanted, record) = self.machine.take(path, request, &mut rest)?;
                    self.record(path, &wanted, &record)?;
                }
                if self.is_inviting {
                    let weight = owed.saturating_sub(self.machine.weight(path));
                    self.paces.entry(path).or_insert_with(Pace::new).came(weight);
                }
            }
            Heard::End(path, request) => self.machine.handle_end(path, request)?,
            Heard::Up(lane) => {
                self.machine.open(lane.number());
                self.lanes.insert(lane.number(), lane);
            }
            Heard::Down(lane) => self.lose(lane.number()),
            Heard::Woken => {}
        }
        self.take_outcomes()?;
        self.decide()?;
        self.finish_if_complete()
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        out.extend(self.failed.drain(..).map(Message::EntryFailed));
        if self.wanted_bytes.saturating_sub(self.done.bytes) >= DIRECT_FROM_BYTES {
            self.invite();
        }
        out.extend(self.invitation.take().map(Message::Direct));
        let ahead = u64::from(TREE_BATCHES_MAX).saturating_sub(self.waiting.len() as u64);
        // The content of a hard link may yet be asked for, that of whatever a direct connection owes, and of what comes as a difference.
        let coming = self.pending.keys().next().filter(|_| self.is_inviting || self.deltas.is_any());
        let undecided = self.link_numbers.first().into_iter().chain(coming).min().copied();
        while let Some((path, room)) = self.next_path()
            && let Some(pull) = self.machine.pull(path, room, ahead, undecided)
        {
            if let Some(lane) = path.and_then(|lane| self.lanes.get(&lane)) {
                lane.note_pull();
            }
            if self.machine.pulls(path) == 1
                && let Some(pace) = self.paces.get_mut(&path)
            {
                pace.rested();
            }
            out.push(Message::Pull(pull));
        }
        while let Some(pull) = self.machine.pull(None, 0, ahead, undecided) {
            out.push(Message::Pull(pull));
        }
        while let Some(pull) = self.machine.pull_cuts() {
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
        let Some(first) = self.pending.values().next() else { return Some(missing) };
        Some(format!("{missing}, the first of {:?},", String::from_utf8_lossy(&first.target.path())))
    }
}
