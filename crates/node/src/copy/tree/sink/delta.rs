//! A file that replaces an older version of itself comes as a difference ([ADR 23]): the sender tells how it is cut into chunks, what
//! the older version has of them is copied from there, and only the rest is asked for, as parts. Nothing of this is believed: the
//! file gets its name when its hash is the sender's, and else it is asked for whole.
//!
//! Chunks are told twice. The first cut is coarse, of the whole file; where that shows bytes the older version does not have, a second
//! one is fine, and is compared with what is left of the older version. So little is told of what did not change.
//!
//! A file that has another's size and time is likely to be that one under a new name: then that other is taken for its older version,
//! and if the sender finds it the same it is copied.
//!
//! [ADR 23]: ../../../../../../docs/adr/0023-differences-in-trees.md

mod index;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_core::limits::{CHUNK_AVERAGE_BYTES_MAX, TREE_CUT_BYTES_MAX, TREE_PART_BYTES};
use dray_core::message::Part;
use dray_core::tree::{Finished, Record, chunks_max, decode_chunks};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Wanted;
use dray_store::local::tree::{Cut, OlderFile, Others};
use dray_transfer::tree::SinkWake;

use super::parts::Parts;
use super::{Pending, Writing};
use index::{Found, Index};
use work::{Job, Outcome, Task, Worker, sum};

/// Smaller files, and smaller older versions, are sent: asking how they are cut takes a round trip more.
pub(super) const DELTA_FROM_BYTES: u64 = 64 * 1024;
/// An older version with less than one in so many bytes of the newer one saves too little, and one that is so many times as large takes too
/// long to read: a log that was begun anew, a database that was emptied.
const OLDER_PART_MIN: u64 = 4;
const OLDER_TIMES_MAX: u64 = 16;
/// Up to this size a file is cut once, into the smallest chunks.
const ONE_CUT_BYTES_MAX: u64 = 256 * 1024;
/// Files from this size on are looked for under other names, for so long at most.
const OTHERS_FROM_BYTES: u64 = 4096;
const OTHERS_PATIENCE: Duration = Duration::from_secs(1);
/// Average of the smallest chunks.
const FINE_BYTES: u32 = 4096;
/// Bytes that one chunk takes on the wire.
const HINT_BYTES: u64 = 20;
/// Chunks that the fine cut of the older version is to stay at or below.
const FINE_CHUNKS_AIM: u64 = 1 << 17;
/// Bytes that are asked about finely at a time: first a few, to see whether that is worth it.
const FIRST_WINDOW_BYTES: u64 = 4 << 20;
const WINDOW_BYTES: u64 = 64 << 20;
/// Cuts of one file that are asked for at a time.
const WINDOW_CUTS: usize = 32;
/// If less than one in so many of the first of them is found, the rest is not looked for.
const WORTH: u64 = 16;
/// What is missing is not asked about, but for, if it is no longer than so many fine chunks.
const SHORT_CHUNKS: u64 = 2;
/// Pieces of one file that may be on their way while more of it is asked about.
const PIECES_MAX: u64 = 1 << 14;
/// Files at a time, as far as that many may be open, and bytes that all of them may take here.
const DELTAS_MAX: usize = 256;
const DELTAS_MIN: usize = 16;
const DELTAS_BYTES_MAX: u64 = 48 << 20;
/// Bytes that a chunk takes here at most: in the index of the older version.
const CHUNK_HELD_BYTES: u64 = 64;
/// A network that brings so many bytes a second is faster than cutting and hashing at both ends.
const FAST_BYTES_PER_S: u64 = 256 << 20;
/// What that is measured by.
const METER_TIME: Duration = Duration::from_millis(250);

/// How fast contents come.
#[derive(Debug)]
pub(super) struct Meter {
    since: Instant,
    came: u64,
    /// Bytes a second, of the last few times it was measured.
    last: [u64; 4],
}

impl Default for Meter {
    fn default() -> Meter {
        Meter { since: Instant::now(), came: 0, last: [0; 4] }
    }
}

impl Meter {
    /// So many bytes of contents came.
    pub(super) fn came(&mut self, bytes: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed > METER_TIME {
            // The last of them count for the next time.
            self.last.rotate_left(1);
            self.last[3] = (self.came as f64 / elapsed.as_secs_f64()) as u64;
            (self.since, self.came) = (now, 0);
        }
        self.came += bytes;
    }

    /// One burst, out of some buffer on the way, is no fast network.
    fn is_fast(&self) -> bool {
        self.last.iter().all(|rate| *rate >= FAST_BYTES_PER_S)
    }
}

/// The files that come as differences.
#[derive(Default)]
pub(super) struct Deltas {
    /// The sender knows them, and they are wanted.
    pub(super) is_on: bool,
    /// How many of them may be open.
    files_max: usize,
    wake: Option<Arc<SinkWake>>,
    stop: Option<Arc<AtomicBool>>,
    worker: Option<Worker>,
    active: BTreeMap<u64, Delta>,
    /// Those that are none any more, but of which the worker has not done yet: what they hold here.
    leaving: BTreeMap<u64, u64>,
    /// Those whose turn has not come.
    waiting: VecDeque<u64>,
    /// The first of them, and what it is known to hold once it begins.
    next: Option<(u64, u64)>,
    /// Bytes that the active ones, and those that leave, may take here.
    held: u64,
    others: Search,
}

/// The search for files under other names.
#[derive(Default)]
enum Search {
    #[default]
    NotBegun,
    Going,
    Over(Others),
}

/// One of them.
struct Delta {
    older: Arc<OlderFile>,
    /// That is another file, and the sender found it to be the same.
    is_other: bool,
    is_same: bool,
    size_bytes: u64,
    /// Of a coarse chunk; `None` if it is hashed only.
    average_bytes: Option<u32>,
    held: u64,
    /// The worker has something to do for it, which ends soon once it is void.
    is_working: bool,
    is_void: Arc<AtomicBool>,
    /// What was put together so far.
    newer: Option<Arc<File>>,
    /// What the sender said of the file when it cut it.
    finished: Option<Finished>,
    phase: Phase,
}

enum Phase {
    /// Both ends cut what they have.
    Cutting { index: Option<Index>, pieces: Vec<Cut> },
    /// What the older version has is being copied.
    Comparing,
    /// What the newer version has in common with it so far is known; what is missing is to be looked at more finely.
    CuttingUnused { missing: VecDeque<Part>, average_bytes: u32 },
    /// It is, piece by piece.
    Asking(Asking),
    /// Everything that is missing was asked for.
    Fetching,
    /// Everything is there.
    Proving,
}

struct Asking {
    index: Arc<Index>,
    average_bytes: u32,
    /// What is asked now, what has come of that, and how many have ended.
    asked: Vec<(Part, Vec<Cut>)>,
    ended: usize,
    /// What is to be asked.
    left: VecDeque<Part>,
    is_first: bool,
}

/// Whether an older version of this size may have enough of a newer one to pay for reading both.
fn may_pay(older_bytes: u64, newer_bytes: u64) -> bool {
    newer_bytes / OLDER_PART_MIN <= older_bytes && older_bytes / OLDER_TIMES_MAX <= newer_bytes
}

fn whole(size_bytes: u64) -> Part {
    Part { start: 0, bytes: size_bytes }
}

/// Average of the coarse chunks of a file: so that telling all of them costs about what telling the fine ones of a few of them does.
fn coarse_average(size_bytes: u64) -> u32 {
    if size_bytes <= ONE_CUT_BYTES_MAX {
        return FINE_BYTES;
    }
    let ideal = 32 * size_bytes.isqrt();
    ideal.next_power_of_two().clamp(4 * u64::from(FINE_BYTES), CHUNK_AVERAGE_BYTES_MAX.into()) as u32
}

/// Average of the fine chunks in which `missing_bytes` are looked for in `unused_bytes`; `None` if that cannot pay.
fn fine_average(coarse: u32, missing_bytes: u64, unused_bytes: u64) -> Option<u32> {
    let mut average = FINE_BYTES;
    while unused_bytes / u64::from(average) > FINE_CHUNKS_AIM {
        average *= 2;
    }
    let cost = missing_bytes / u64::from(average) * HINT_BYTES;
    (average <= coarse / 4 && unused_bytes > cost).then_some(average)
}

impl Deltas {
    pub(super) fn wake_with(&mut self, wake: Arc<SinkWake>) {
        self.wake = Some(wake);
    }

    pub(super) fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// True if some entry may be asked for again.
    pub(super) fn is_any(&self) -> bool {
        !self.active.is_empty() || !self.waiting.is_empty()
    }

    fn can_work(&self) -> bool {
        self.is_on && self.wake.is_some() && self.stop.is_some()
    }

    /// True if the entry of this number comes as a difference.
    pub(super) fn has(&self, number: u64) -> bool {
        self.active.contains_key(&number)
    }

    fn push(&mut self, number: u64, task: Task) {
        if self.worker.is_none()
            && let (Some(wake), Some(stop)) = (self.wake.clone(), self.stop.clone())
        {
            self.worker = Some(Worker::start(wake, stop));
        }
        let is_void = match self.active.get_mut(&number) {
            Some(delta) => {
                delta.is_working = true;
                delta.is_void.clone()
            }
            None => Arc::default(),
        };
        if let Some(worker) = &self.worker {
            worker.push(Job { number, task, is_void });
        }
    }

    /// The worker has done what it had to do for it; true if somebody waits for that.
    fn worked(&mut self, number: u64) -> bool {
        if let Some(held) = self.leaving.remove(&number) {
            self.held -= held;
            return false;
        }
        let delta = self.active.get_mut(&number);
        delta.map(|delta| delta.is_working = false).is_some()
    }

    fn remove(&mut self, number: u64) {
        if let Some(delta) = self.active.remove(&number) {
            if delta.is_working {
                // Its place is free when the worker has done with it.
                delta.is_void.store(true, Ordering::Release);
                self.leaving.insert(number, delta.held);
            } else {
                self.held -= delta.held;
            }
        } else if self.waiting.front() == Some(&number) {
            self.waiting.pop_front();
        }
    }

    fn has_room(&self, held: u64) -> bool {
        let count = self.active.len() + self.leaving.len();
        let count_max = self.files_max.clamp(DELTAS_MIN, DELTAS_MAX);
        count == 0 || (count < count_max && self.held.saturating_add(held) <= DELTAS_BYTES_MAX)
    }

    /// False if the first that waits is known to find no room.
    fn may_begin(&self) -> bool {
        let first = self.next.filter(|(number, _)| self.waiting.front() == Some(number));
        self.has_room(first.map_or(0, |(_, held)| held))
    }
}

impl Delta {
    fn new(older: OlderFile, is_other: bool, size_bytes: u64) -> Delta {
        let from_bytes = if is_other { OTHERS_FROM_BYTES } else { DELTA_FROM_BYTES };
        let is_cut = |size: u64| (from_bytes..=TREE_CUT_BYTES_MAX).contains(&size);
        let average_bytes =
            (is_cut(size_bytes) && is_cut(older.size_bytes)).then(|| coarse_average(size_bytes));
        // What the chunks of both versions may come to, and of the fine cuts.
        let coarse = average_bytes
            .map_or(0, |average| chunks_max(size_bytes, average) + older.size_bytes / u64::from(average));
        let fine = (older.size_bytes / u64::from(FINE_BYTES)).min(FINE_CHUNKS_AIM)
            + (size_bytes / u64::from(FINE_BYTES)).min(WINDOW_BYTES / u64::from(FINE_BYTES));
        let held = (coarse + fine) * CHUNK_HELD_BYTES;
        let phase = Phase::Cutting { index: None, pieces: Vec::new() };
        Delta {
            older: Arc::new(older),
            is_other,
            is_same: false,
            size_bytes,
            average_bytes,
            held,
            is_working: false,
            is_void: Arc::default(),
            newer: None,
            finished: None,
            phase,
        }
    }
}

impl Writing<'_> {
    /// With contents as differences, if the sender knows them.
    pub(in crate::copy::tree) fn with_deltas(mut self, is_on: bool) -> Self {
        self.deltas.is_on = is_on;
        self.deltas.files_max = self.writer.files_beside();
        if is_on {
            self.writer.compare_below(DELTA_FROM_BYTES);
        }
        self
    }

    /// Whether the content of an entry that comes for the first time may come as a difference, or is to be compared.
    pub(super) fn may_differ(&self, pending: &Pending) -> bool {
        let has_older = pending.size_bytes >= DELTA_FROM_BYTES && pending.target.replaces_file();
        let may_have_other = pending.size_bytes >= OTHERS_FROM_BYTES && self.writer.may_have_others();
        self.deltas.can_work() && pending.known.is_none() && (has_older || may_have_other)
    }

    /// The file that is likely to have much in common with one that comes, and whether that has another name. `None` while others are
    /// looked for.
    fn find_older(&mut self, number: u64) -> Option<Option<(OlderFile, bool)>> {
        let target = &self.pending.get(&number)?.target;
        if self.writer.may_have_others() {
            match &self.deltas.others {
                Search::NotBegun => {
                    self.deltas.others = Search::Going;
                    if let Some(others) = self.writer.others_to_find(OTHERS_FROM_BYTES) {
                        self.deltas.push(number, Task::FindOthers { others, patience: OTHERS_PATIENCE });
                    }
                    return None;
                }
                Search::Going => return None,
                Search::Over(others) => {
                    if let Some(other) = others.open(target.size_and_time()) {
                        return Some(Some((other, true)));
                    }
                }
            }
        }
        if target.size_bytes() < DELTA_FROM_BYTES {
            return Some(None);
        }
        let own = target.older().filter(|older| older.size_bytes >= DELTA_FROM_BYTES);
        Some(own.map(|own| (own, false)))
    }

    /// The entry is to come as a difference when its turn comes.
    pub(super) fn differ(&mut self, pending: Pending) -> Result<()> {
        self.deltas.waiting.push_back(pending.number);
        self.pending.insert(pending.number, pending);
        self.begin_deltas()
    }

    /// Begins as many as there is room for.
    fn begin_deltas(&mut self) -> Result<()> {
        while let Some(number) = self.deltas.waiting.front().copied() {
            let Some(pending) = self.pending.get(&number) else {
                self.deltas.waiting.pop_front();
                continue;
            };
            let size_bytes = pending.size_bytes;
            if !self.deltas.may_begin() {
                return Ok(());
            }
            let Some(older) = self.find_older(number) else { return Ok(()) };
            let Some((older, is_other)) = older else {
                self.give_up(number);
                continue;
            };
            if !may_pay(older.size_bytes, size_bytes) {
                self.give_up(number);
                continue;
            }
            let is_same_size = older.size_bytes == size_bytes;
            let mut delta = Delta::new(older, is_other, size_bytes);
            if !self.deltas.has_room(delta.held) {
                self.deltas.next = Some((number, delta.held));
                return Ok(());
            }
            if self.meter.is_fast() {
                delta.average_bytes = None;
            }
            if delta.average_bytes.is_none() && (is_other || !is_same_size) {
                self.give_up(number);
                continue;
            }
            self.deltas.waiting.pop_front();
            // One of the same size may be the same: the sender is told its hash. Else there is no need to wait for that.
            if let Some(average_bytes) = delta.average_bytes.filter(|_| !is_same_size) {
                self.machine.want_cut(number, whole(size_bytes), average_bytes, None);
            }
            self.deltas.held += delta.held;
            let task = Task::Cut { older: delta.older.clone(), average_bytes: delta.average_bytes };
            self.deltas.active.insert(number, delta);
            self.deltas.push(number, task);
        }
        Ok(())
    }

    /// The content is asked for as if there were no differences.
    fn give_up(&mut self, number: u64) {
        let is_other = self.deltas.active.get(&number).is_some_and(|delta| delta.is_other);
        if self.deltas.has(number) {
            self.machine.forget(number);
        }
        self.deltas.remove(number);
        if let Some(mut pending) = self.pending.remove(&number) {
            pending.parts = None;
            if is_other {
                // What is known is not what is there.
                pending.known = None;
            }
            self.ask(pending);
        }
    }

    /// An entry is in place, will not be, or comes whole: there is room for others.
    pub(super) fn end_delta(&mut self, number: u64) -> Result<()> {
        if !self.deltas.is_any() {
            return Ok(());
        }
        self.deltas.remove(number);
        self.begin_deltas()
    }

    /// Takes what the worker did.
    pub(super) fn take_outcomes(&mut self) -> Result<()> {
        let outcomes = self.deltas.worker.as_ref().map_or_else(|| Ok(Vec::new()), Worker::outcomes)?;
        for (number, outcome) in outcomes {
            if let Ok(Outcome::Others(others)) = outcome {
                self.deltas.others = Search::Over(others);
                self.begin_deltas()?;
                continue;
            }
            if !self.deltas.worked(number) {
                self.begin_deltas()?;
                continue;
            }
            match outcome {
                Ok(outcome) => self.outcome(number, outcome)?,
                Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) => {
                    return Err(error);
                }
                // Whatever it was, the sender has it.
                Err(_) => self.take_whole(number)?,
            }
        }
        Ok(())
    }

    fn outcome(&mut self, number: u64, outcome: Outcome) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        match (outcome, &mut delta.phase) {
            (Outcome::Cut { index: cut, hash }, Phase::Cutting { index, .. }) => {
                *index = Some(cut);
                let is_same_size = delta.older.size_bytes == delta.size_bytes;
                let (size_bytes, average_bytes) = (delta.size_bytes, delta.average_bytes);
                if is_same_size && let Some(pending) = self.pending.get_mut(&number) {
                    pending.known = Some(hash);
                    if !delta.is_other {
                        pending.target.compared(delta.older.state);
                    }
                }
                match average_bytes {
                    None => self.give_up(number),
                    Some(average) if is_same_size => {
                        self.machine.want_cut(number, whole(size_bytes), average, Some(hash));
                    }
                    Some(_) => {}
                }
                self.compare_if_cut(number)
            }
            (Outcome::Compared(found), Phase::Comparing) => self.compared(number, found),
            (Outcome::CutUnused { index }, Phase::CuttingUnused { missing, average_bytes }) => {
                delta.phase = Phase::Asking(Asking {
                    index: Arc::new(index),
                    average_bytes: *average_bytes,
                    asked: Vec::new(),
                    ended: 0,
                    left: std::mem::take(missing),
                    is_first: true,
                });
                self.ask_finely(number)
            }
            (Outcome::Compared(found), Phase::Asking(_)) => self.compared_finely(number, found),
            (Outcome::Proven(hash), Phase::Proving) => self.proven(number, hash),
            _ => Err(Error::new(ErrorKind::Internal, "a difference went on out of turn")),
        }
    }

    /// A record of the answer to a cut.
    pub(super) fn cut_record(&mut self, wanted: &Wanted, record: &Record<'_>) -> Result<()> {
        let (number, Some(part)) = (wanted.number, wanted.part) else { return Ok(()) };
        // It may have been given up meanwhile.
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let pieces = match &mut delta.phase {
            Phase::Cutting { pieces, .. } => pieces,
            Phase::Asking(asking) => match asking.asked.iter_mut().find(|(asked, _)| *asked == part) {
                Some((_, pieces)) => pieces,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        match record {
            Record::Chunks(chunks) => pieces.extend(decode_chunks(chunks).map(Cut::Chunk)),
            Record::Hole(len) => pieces.push(Cut::Hole(*len)),
            Record::Done(finished) => return self.cut_ended(number, *finished),
            Record::Same(finished) => return self.same(number, finished),
            // Perhaps it cannot be cut; if it cannot be read, the next answer says so.
            Record::Failed(fault) => {
                let is_changed = fault.to_error("").kind() == ErrorKind::Changed;
                if is_changed || !matches!(delta.phase, Phase::Cutting { .. }) {
                    return self.take_whole(number);
                }
                self.give_up(number);
                return self.begin_deltas();
            }
            // The machine lets no others through.
            Record::Bytes(_) | Record::Again => {}
        }
        Ok(())
    }

    /// The older version is what the sender has.
    fn same(&mut self, number: u64, finished: &Finished) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        if pending.known != Some(finished.hash) {
            return Err(Error::new(ErrorKind::Protocol, "sender found the same what is not"));
        }
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        if delta.is_other {
            (delta.finished, delta.is_same) = (Some(*finished), true);
            let older = delta.older.clone();
            return self.put_together(number, |newer| Task::Copy { older, newer });
        }
        let kept = self.writer.keep_same(&mut pending.target, finished).map(|identity| {
            self.done.unchanged += 1;
            Some(identity)
        });
        match kept {
            // What is there now nobody has compared.
            Err(error) if error.kind() == ErrorKind::Changed => self.take_whole(number),
            kept => self.settle(number, kept),
        }
    }

    fn cut_ended(&mut self, number: u64, finished: Finished) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let state = |finished: &Finished| (finished.size_bytes, finished.mtime_s, finished.mtime_ns);
        let first = *delta.finished.get_or_insert(finished);
        if state(&first) != state(&finished) || finished.size_bytes != delta.size_bytes {
            return self.take_whole(number);
        }
        if let Phase::Asking(asking) = &mut delta.phase {
            asking.ended += 1;
            if asking.ended < asking.asked.len() {
                return Ok(());
            }
            let (older, index) = (delta.older.clone(), asking.index.clone());
            let Some(newer) = delta.newer.clone() else { return Ok(()) };
            let asked = std::mem::take(&mut asking.asked);
            let pieces = asked.into_iter().map(|(part, pieces)| (part.start, pieces)).collect();
            self.deltas.push(number, Task::Compare { older, index, newer, pieces });
            return Ok(());
        }
        self.compare_if_cut(number)
    }

    /// Once both versions are cut as a whole.
    fn compare_if_cut(&mut self, number: u64) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let (Some(finished), Phase::Cutting { index, pieces }) = (delta.finished, &mut delta.phase) else {
            return Ok(());
        };
        let Some(index) = index.take() else { return Ok(()) };
        let pieces = vec![(0, std::mem::take(pieces))];
        let (older, index) = (delta.older.clone(), Arc::new(index));
        delta.finished = Some(finished);
        self.put_together(number, |newer| Task::Compare { older, index, newer, pieces })
    }

    /// Makes the file that is put together, and has `task` begin with that.
    fn put_together(&mut self, number: u64, task: impl FnOnce(Arc<File>) -> Task) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let made = pending.target.create().and_then(|file| {
            let copy = file.file().try_clone().map_err(|error| Error::file("make a file", error))?;
            Ok((file, copy))
        });
        let (file, newer) = match made {
            Ok((file, copy)) => (file, Arc::new(copy)),
            Err(error) => return self.settle(number, Err(error)),
        };
        let parts = Parts { file: Some(file), finished: delta.finished, ..Parts::default() };
        // From now on it is known to be another.
        (pending.known, pending.parts) = (None, Some(parts));
        delta.newer = Some(newer.clone());
        delta.phase = Phase::Comparing;
        self.deltas.push(number, task(newer));
        Ok(())
    }

    /// What the older version has of the coarse chunks is in place.
    fn compared(&mut self, number: u64, found: Found) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let unused = found.unused(delta.older.size_bytes);
        let unused_bytes = unused.iter().map(|range| range.end - range.start).sum();
        let fine =
            delta.average_bytes.and_then(|coarse| fine_average(coarse, sum(&found.missing), unused_bytes));
        let is_short =
            |part: &Part| fine.is_none_or(|average| part.bytes <= SHORT_CHUNKS * u64::from(average));
        let (short, missing): (VecDeque<Part>, VecDeque<Part>) =
            found.missing.into_iter().partition(is_short);
        delta.phase = Phase::Fetching;
        if let Some(average_bytes) = fine.filter(|_| !missing.is_empty()) {
            delta.phase = Phase::CuttingUnused { missing, average_bytes };
            let task = Task::CutUnused { older: delta.older.clone(), unused, average_bytes };
            self.deltas.push(number, task);
        }
        self.fetch(number, short);
        self.prove_if_whole(number)
    }

    /// Asks how the next of what is missing is cut finely.
    fn ask_finely(&mut self, number: u64) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let Phase::Asking(asking) = &mut delta.phase else { return Ok(()) };
        // What is known to be missing is kept until it was asked for.
        let parts = self.pending.get(&number).and_then(|pending| pending.parts.as_ref());
        let is_held = parts.is_some_and(|parts| parts.pieces > PIECES_MAX);
        if !asking.asked.is_empty() || delta.is_working || (is_held && !asking.left.is_empty()) {
            return Ok(());
        }
        let mut room = if asking.is_first { FIRST_WINDOW_BYTES } else { WINDOW_BYTES };
        asking.ended = 0;
        while room > 0
            && asking.asked.len() < WINDOW_CUTS
            && let Some(first) = asking.left.front_mut()
        {
            let part = Part { bytes: first.bytes.min(room), ..*first };
            room -= part.bytes;
            (first.start, first.bytes) = (part.end(), first.bytes - part.bytes);
            if first.bytes == 0 {
                asking.left.pop_front();
            }
            asking.asked.push((part, Vec::new()));
            self.machine.want_cut(number, part, asking.average_bytes, None);
        }
        if asking.asked.is_empty() {
            delta.phase = Phase::Fetching;
            return self.prove_if_whole(number);
        }
        Ok(())
    }

    /// What the older version has of the fine chunks is in place.
    fn compared_finely(&mut self, number: u64, found: Found) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let Phase::Asking(asking) = &mut delta.phase else { return Ok(()) };
        let missing_bytes = sum(&found.missing);
        let is_worth = !asking.is_first || found.common_bytes() * WORTH >= missing_bytes;
        asking.is_first = false;
        let rest = if is_worth { VecDeque::new() } else { std::mem::take(&mut asking.left) };
        self.fetch(number, found.missing.into());
        self.fetch(number, rest);
        self.ask_finely(number)
    }

    /// Asks for what is missing.
    fn fetch(&mut self, number: u64, parts: VecDeque<Part>) {
        if parts.is_empty() {
            return;
        }
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if let Some(coming) = &mut pending.parts {
            coming.asked += bytes;
            coming.pieces += parts.iter().map(|part| part.bytes.div_ceil(TREE_PART_BYTES)).sum::<u64>();
            pending.left_bytes += bytes;
            self.wanted_bytes = self.wanted_bytes.saturating_add(bytes);
            self.machine.want_these(number, parts, TREE_PART_BYTES);
        }
    }

    /// A piece of it came: there may be room to ask about more, or nothing is missing any more.
    pub(super) fn came_piece(&mut self, number: u64) -> Result<()> {
        self.ask_finely(number)?;
        self.prove_if_whole(number)
    }

    /// Hashes what was put together, once everything that is missing has come.
    pub(super) fn prove_if_whole(&mut self, number: u64) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let parts = self.pending.get(&number).and_then(|pending| pending.parts.as_ref());
        let is_whole = parts.is_some_and(|parts| parts.came == parts.asked);
        let (Phase::Fetching, true, Some(newer)) = (&delta.phase, is_whole, delta.newer.clone()) else {
            return Ok(());
        };
        delta.phase = Phase::Proving;
        let size_bytes = delta.size_bytes;
        self.deltas.push(number, Task::Prove { newer, size_bytes });
        Ok(())
    }

    /// The file has this hash.
    fn proven(&mut self, number: u64, hash: [u8; 32]) -> Result<()> {
        let Some(delta) = self.deltas.active.get(&number) else { return Ok(()) };
        let is_same = delta.is_same;
        let (Some(finished), Some(pending)) = (delta.finished, self.pending.get_mut(&number)) else {
            return Ok(());
        };
        let file = pending.parts.as_mut().and_then(|parts| parts.file.take());
        let Some(mut file) = file.filter(|_| hash == finished.hash) else {
            // The older version changed meanwhile, or somebody lied.
            return self.take_whole(number);
        };
        file.came_in_parts(finished.size_bytes);
        let ended = pending.target.finish(file, &finished).map(|identity| {
            // What the sender found the same it counts so, too.
            self.done.files += u64::from(!is_same);
            self.done.unchanged += u64::from(is_same);
            Some(identity)
        });
        self.settle(number, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P5: what is told of a file that hardly changed stays far below a thousandth of it, and costs memory that is bounded.
    #[test]
    fn little_is_told_of_large_files() {
        assert_eq!(coarse_average(DELTA_FROM_BYTES), 4096);
        assert_eq!(coarse_average(ONE_CUT_BYTES_MAX + 1), 16_384);
        for shift in 20..=38 {
            let size = 1u64 << shift;
            let average = coarse_average(size);
            let told = size / u64::from(average) * HINT_BYTES;
            let fine = fine_average(average, 2 * u64::from(average), 2 * u64::from(average)).unwrap();
            let finely = u64::from(2 * average / fine) * HINT_BYTES;
            let max = if shift <= 31 { 100_000 } else { size / 20_000 };
            assert!(told + finely < max, "{size}: {told} + {finely}");
        }
        assert_eq!(coarse_average(TREE_CUT_BYTES_MAX), CHUNK_AVERAGE_BYTES_MAX);
        // Nothing is left of the older version, or far too little.
        assert_eq!(fine_average(1 << 20, 1 << 20, 0), None);
        assert_eq!(fine_average(1 << 20, 1 << 30, 1 << 20), None);
        assert_eq!(fine_average(4096, 1 << 20, 1 << 20), None);
        assert!(fine_average(CHUNK_AVERAGE_BYTES_MAX, 1 << 38, 1 << 38).is_none());
    }
    fn delta() -> Delta {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100_000).unwrap();
        Delta::new(OlderFile::new(file).unwrap(), false, 200_000)
    }

    /// "64 files and 48 MiB at a time" holds whatever the sender answers: what was given up has its place until the worker has done with it, and
    /// the worker is told to have done soon.
    #[test]
    fn what_is_given_up_has_its_place_until_it_is_over() {
        let mut deltas = Deltas::default();
        for number in 0..DELTAS_MIN as u64 {
            assert!(deltas.has_room(0));
            let delta = Delta { is_working: true, ..delta() };
            deltas.held += delta.held;
            deltas.active.insert(number, delta);
        }
        assert!(!deltas.has_room(0));
        for number in 0..DELTAS_MIN as u64 {
            let is_void = deltas.active[&number].is_void.clone();
            deltas.remove(number);
            assert!(is_void.load(Ordering::Acquire) && !deltas.has(number));
            assert!(!deltas.has_room(0), "the worker has not done");
        }
        for number in 0..DELTAS_MIN as u64 {
            assert!(!deltas.worked(number), "nobody waits for it");
            assert!(deltas.has_room(0));
        }
        assert_eq!((deltas.held, deltas.leaving.len()), (0, 0));
    }

    /// A network is fast if it is so for a while: a burst does not turn differences off, and what was once fast may be slow.
    #[test]
    fn a_burst_is_no_fast_network() {
        let mut meter = Meter::default();
        let mut now = Instant::now();
        let mut comes = |bytes, times| {
            for _ in 0..times {
                now += METER_TIME + Duration::from_millis(1);
                meter.came(bytes, now);
            }
            meter.is_fast()
        };
        assert!(!comes(FAST_BYTES_PER_S, 3));
        assert!(comes(FAST_BYTES_PER_S, 2));
        assert!(!comes(1 << 20, 2));
        assert!(comes(FAST_BYTES_PER_S, 5));
    }

    /// "Doubt ends in sending": two versions of very different sizes are not compared, those that grew or were cut short are.
    #[test]
    fn sizes_tell_whether_it_may_pay() {
        for (older, newer, may) in
            [(1 << 30, 1 << 30, true), (1 << 28, 1 << 30, true), (1 << 30, 1 << 26, true)].into_iter().chain(
                [((1 << 28) - 1, 1 << 30, false), (50 << 30, 100 << 10, false), (1 << 16, 200 << 30, false)],
            )
        {
            assert_eq!(may_pay(older, newer), may, "{older} {newer}");
        }
    }
}
