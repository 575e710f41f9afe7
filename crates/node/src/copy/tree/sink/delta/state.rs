//! The differences of one copy: how far each has come, how many there may be, and how finely files are cut for them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_core::limits::{
    CHUNK_AVERAGE_BYTES_MAX, TREE_CUT_BYTES_MAX, TREE_DELTAS_BYTES_MAX, TREE_DELTAS_MAX,
};
use dray_core::message::Part;
use dray_core::tree::{Finished, chunks_max};
use dray_store::local::tree::{Cut, OlderFile, Others, OthersToFind};
use dray_transfer::tree::SinkWake;

use super::index::{Common, Index};
use super::look::CodeShifts;
use super::rests::{Looking, Looks, Share};
use super::siblings::{Finder, Sibling};
use super::work::{Job, Task, Worker};
use super::{DELTA_FROM_BYTES, OTHERS_FROM_BYTES, WINDOW_BYTES};
use crate::search::{Coming, Pressure, Scope};

/// An older version with less than one in so many bytes of the newer one saves too little, and one that is so many times as large takes too
/// long to read: a log that was begun anew, a database that was emptied.
const OLDER_PART_MIN: u64 = 4;
const OLDER_TIMES_MAX: u64 = 16;
/// Up to this size a file is cut once, into the smallest chunks.
const ONE_CUT_BYTES_MAX: u64 = 256 * 1024;
/// Average of the smallest chunks.
const FINE_BYTES: u32 = 4096;
/// Bytes that one chunk takes on the wire.
const HINT_BYTES: u64 = 20;
/// Chunks that the fine cut of the older version is to stay at or below.
const FINE_CHUNKS_AIM: u64 = 1 << 17;
/// Files at a time, however few may be open.
const DELTAS_MIN: usize = 16;
/// Bytes that a chunk takes here at most: in the index of the older version.
const CHUNK_HELD_BYTES: u64 = 64;

/// How much longer a search may take than it is to: a file system that answers late, or a machine that is busy.
const SEARCH_GRACE: Duration = Duration::from_millis(250);

/// The files that come as differences.
#[derive(Default)]
pub(in crate::copy::tree::sink) struct Deltas {
    /// The sender knows them, and they are wanted.
    pub(super) is_on: bool,
    /// The sender is told no hash of what is here, and not whether a file of some size and time is here under another name.
    pub(super) is_discreet: bool,
    /// How many of them may be open.
    pub(super) files_max: usize,
    wake: Option<Arc<SinkWake>>,
    stop: Option<Arc<AtomicBool>>,
    pub(super) worker: Option<Worker>,
    pub(super) active: BTreeMap<u64, Delta>,
    /// Those that are none any more, but of which the worker has not done yet: what they hold here, and of the looks.
    leaving: BTreeMap<u64, (u64, Share)>,
    /// Those whose turn has not come.
    pub(super) waiting: VecDeque<u64>,
    /// The first of them, and what it is known to hold once it begins.
    pub(super) next: Option<(u64, u64)>,
    /// Bytes that the active ones, and those that leave, may take here.
    pub(super) held: u64,
    pub(super) others: Search,
    pub(super) looks: Looks,
    /// The search of the rest of the disk, if there is one.
    siblings: Option<Finder>,
    /// What that stands back for.
    pub(in crate::copy::tree::sink) pressure: Arc<Pressure>,
}

/// The search for files under other names.
#[derive(Default)]
pub(super) enum Search {
    #[default]
    NotBegun,
    Going,
    Over(Others),
}

/// One of them.
pub(super) struct Delta {
    pub(super) older: Arc<OlderFile>,
    /// That is another file, and the sender found it to be the same.
    pub(super) is_other: bool,
    /// Another that was cut before it, and may have what it lacks.
    pub(super) other: Option<(Arc<OlderFile>, Index)>,
    /// What stands where it goes cannot be cut.
    pub(super) is_own_unfit: bool,
    /// And it was found elsewhere on the disk.
    pub(super) is_sibling: bool,
    /// What that has in common with what comes is known.
    pub(super) was_compared: bool,
    pub(super) is_same: bool,
    pub(super) size_bytes: u64,
    /// Of a coarse chunk; `None` if it is hashed only.
    pub(super) average_bytes: Option<u32>,
    pub(super) held: u64,
    /// The worker has something to do for it, which ends soon once it is void.
    pub(super) is_working: bool,
    is_void: Arc<AtomicBool>,
    /// What was put together so far.
    pub(super) newer: Option<Arc<File>>,
    /// What the sender said of the file when it cut it.
    pub(super) finished: Option<Finished>,
    pub(super) phase: Phase,
    /// What was found coarsely, and what is missing besides that which is looked at finely.
    pub(super) coarse: Vec<Common>,
    pub(super) short: Vec<Part>,
    /// The older version is a program: blocks are compared without the fields of its code. Where those lie that come without anything else, by
    /// the first byte of the part that they are of.
    pub(super) is_code: bool,
    pub(super) code: BTreeMap<u64, CodeShifts>,
    /// Its part in the looks of all.
    pub(super) share: Share,
}

pub(super) enum Phase {
    /// Both ends cut what they have.
    Cutting { index: Option<Index>, pieces: Vec<Cut> },
    /// What the older version has is being copied.
    Comparing,
    /// What the newer version has in common with it so far is known; what is missing is to be looked at more finely.
    CuttingUnused { missing: VecDeque<Part>, average_bytes: u32 },
    /// It is, piece by piece.
    Asking(Asking),
    /// What is missing between chunks is looked at closely.
    Looking(Box<Looking>),
    /// Everything that is missing was asked for.
    Fetching,
    /// Everything is there.
    Proving,
}

pub(super) struct Asking {
    pub(super) index: Arc<Index>,
    pub(super) average_bytes: u32,
    /// What is asked now, what has come of that, and how many have ended.
    pub(super) asked: Vec<(Part, Vec<Cut>)>,
    pub(super) ended: usize,
    /// What is to be asked.
    pub(super) left: VecDeque<Part>,
    pub(super) is_first: bool,
}

/// Whether an older version of this size may have enough of a newer one to pay for reading both.
pub(super) fn may_pay(older_bytes: u64, newer_bytes: u64) -> bool {
    newer_bytes / OLDER_PART_MIN <= older_bytes && !is_too_large(older_bytes, newer_bytes)
}

/// Whether an older version takes too long to read, whatever it has of a newer one of this size.
pub(super) fn is_too_large(older_bytes: u64, newer_bytes: u64) -> bool {
    older_bytes / OLDER_TIMES_MAX > newer_bytes
}

pub(super) fn whole(size_bytes: u64) -> Part {
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
pub(super) fn fine_average(coarse: u32, missing_bytes: u64, unused_bytes: u64) -> Option<u32> {
    let mut average = FINE_BYTES;
    while unused_bytes / u64::from(average) > FINE_CHUNKS_AIM {
        average *= 2;
    }
    let cost = missing_bytes / u64::from(average) * HINT_BYTES;
    (average <= coarse / 4 && unused_bytes > cost).then_some(average)
}

impl Deltas {
    pub(in crate::copy::tree::sink) fn wake_with(&mut self, wake: Arc<SinkWake>) {
        self.wake = Some(wake);
    }

    pub(in crate::copy::tree::sink) fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// True if some entry may be asked for again.
    pub(in crate::copy::tree::sink) fn is_any(&self) -> bool {
        !self.active.is_empty() || !self.waiting.is_empty()
    }

    pub(super) fn can_work(&self) -> bool {
        self.is_on && self.wake.is_some() && self.stop.is_some()
    }

    /// True if the entry of this number comes as a difference.
    pub(in crate::copy::tree::sink) fn has(&self, number: u64) -> bool {
        self.active.contains_key(&number)
    }

    fn start_worker(&mut self) {
        if self.worker.is_none()
            && let (Some(wake), Some(stop)) = (self.wake.clone(), self.stop.clone())
        {
            self.worker = Some(Worker::start(wake, stop));
        }
    }

    /// Begins to look for files under other names; nothing is found if it takes much longer than `patience`.
    pub(super) fn search(&mut self, others: OthersToFind, patience: Duration) {
        self.start_worker();
        if let (Some(worker), Some(wake), Some(stop)) = (&self.worker, self.wake.clone(), self.stop.clone()) {
            worker.search(wake, patience + SEARCH_GRACE, move || others.find(patience, &stop));
        }
    }

    /// Looks for siblings in `scope`.
    pub(super) fn search_in(&mut self, scope: Scope) {
        self.siblings = Some(Finder::new(scope, self.pressure.clone()));
    }

    /// Whether a sibling of a file is worth looking for.
    pub(super) fn looks_for_siblings(&self) -> bool {
        self.can_work() && self.siblings.as_ref().is_some_and(Finder::is_hopeful)
    }

    /// Looks for a sibling of the entry of this number.
    pub(super) fn find_sibling(&mut self, number: u64, coming: Coming) {
        self.start_worker();
        if let (Some(siblings), Some(worker), Some(wake)) =
            (&mut self.siblings, &self.worker, self.wake.clone())
        {
            siblings.ask(number, coming, &worker.told(wake));
        }
    }

    pub(super) fn sibling_found(&mut self, number: u64, found: Option<PathBuf>) {
        if let Some(siblings) = &mut self.siblings {
            siblings.handle_answer(number, found);
        }
    }

    /// What is known of the entry's sibling.
    pub(super) fn sibling_of(&self, number: u64) -> Sibling {
        self.siblings.as_ref().map_or(Sibling::None, |siblings| siblings.of(number))
    }

    pub(super) fn open_sibling(&self, number: u64) -> Option<OlderFile> {
        self.siblings.as_ref()?.open(number)
    }

    /// Whether a sibling may be read; `None` while it is, and what comes of that decides.
    pub(super) fn may_read_sibling(&self, sibling: &OlderFile) -> Option<bool> {
        if self.siblings.as_ref().is_some_and(|siblings| siblings.may_read(sibling)) {
            return Some(true);
        }
        let is_it = |delta: &Delta| {
            delta.is_sibling
                && !delta.was_compared
                && delta.older.state.identity() == sibling.state.identity()
        };
        if self.active.values().any(is_it) { None } else { Some(false) }
    }

    /// A sibling is going to be read.
    pub(super) fn sibling_read(&mut self, sibling: &OlderFile) {
        if let Some(siblings) = &mut self.siblings {
            siblings.read(sibling);
        }
    }

    /// A sibling had so much of what comes.
    pub(super) fn sibling_had(&mut self, sibling: &OlderFile, common_bytes: u64) {
        if let Some(siblings) = &mut self.siblings {
            siblings.had(sibling, common_bytes);
        }
    }

    /// Bytes that questions for siblings take, and answers.
    pub(in crate::copy::tree::sink) fn siblings_held(&self) -> usize {
        self.siblings.as_ref().map_or(0, Finder::held)
    }

    pub(super) fn push(&mut self, number: u64, task: Task) {
        self.start_worker();
        let is_void = match self.active.get_mut(&number) {
            Some(delta) => {
                // What comes of one thing is not to be taken for what comes of another.
                debug_assert!(!delta.is_working, "one thing at a time");
                delta.is_working = true;
                delta.is_void.clone()
            }
            None => Arc::default(),
        };
        if let Some(worker) = &self.worker {
            worker.push(Job { number, task, is_void });
        }
    }

    /// Something is being cut, copied, hashed or looked for here.
    pub(in crate::copy::tree::sink) fn is_at_work(&self) -> bool {
        self.worker.as_ref().is_some_and(Worker::is_busy)
    }

    /// Whether the worker has something to cut, and wakes the sink at `until` or before.
    pub(in crate::copy::tree::sink) fn wakes_at(&self, until: Instant) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.wakes_at(until))
    }

    /// The worker has done what it had to do for it; true if somebody waits for that.
    pub(super) fn worked(&mut self, number: u64) -> bool {
        if let Some((held, share)) = self.leaving.remove(&number) {
            self.held -= held;
            self.looks.leave(share);
            return false;
        }
        let delta = self.active.get_mut(&number);
        delta.map(|delta| delta.is_working = false).is_some()
    }

    /// Takes `own` for the older version, and another file, which was cut, for what that lacks: what is to be done, if there is room for that.
    pub(super) fn compare_with_own(&mut self, number: u64, own: OlderFile) -> Option<Task> {
        let delta = self.active.get_mut(&number)?;
        let Delta { older, average_bytes, held, .. } = Delta::new(own, false, delta.size_bytes);
        // The sender told its chunks of this length.
        let average_bytes = average_bytes.filter(|average| Some(*average) == delta.average_bytes);
        let Phase::Cutting { index, .. } = &mut delta.phase else { return None };
        let held = held + index.as_ref()?.len() as u64 * CHUNK_HELD_BYTES;
        let held_by_all = self.held - delta.held + held;
        if average_bytes.is_none() || held_by_all > TREE_DELTAS_BYTES_MAX.max(self.held) {
            return None;
        }
        (self.held, delta.held, delta.is_other) = (held_by_all, held, false);
        let other = std::mem::replace(&mut delta.older, older.clone());
        // What is found from here on says nothing of a sibling, for which others may wait.
        let sibling = std::mem::take(&mut delta.is_sibling).then(|| other.clone());
        delta.other = index.take().map(|index| (other, index));
        if let Some(sibling) = sibling {
            self.sibling_had(&sibling, 0);
        }
        Some(Task::Cut { older, average_bytes })
    }

    /// What stands where it goes could not be cut: true if another was, which then counts alone.
    pub(super) fn give_own_up(&mut self, number: u64) -> bool {
        let Some(delta) = self.active.get_mut(&number) else { return false };
        let Phase::Cutting { index, .. } = &mut delta.phase else { return false };
        let Some((other, cut)) = delta.other.take() else { return false };
        (delta.older, *index) = (other, Some(cut));
        (delta.is_other, delta.is_own_unfit) = (true, true);
        true
    }

    /// Nobody wants to know any more what stands in for the older version of this entry.
    pub(in crate::copy::tree::sink) fn forget_sibling(&mut self, number: u64) {
        if let Some(siblings) = &mut self.siblings {
            siblings.forget(number);
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.forget_sibling(number);
        if let Some(delta) = self.active.remove(&number) {
            if delta.is_sibling && !delta.was_compared {
                // It was read for nothing, as by a sender that says of no file how it is cut.
                self.sibling_had(&delta.older, 0);
            }
            if delta.is_working {
                // Its place is free when the worker has done with it.
                delta.is_void.store(true, Ordering::Release);
                self.leaving.insert(number, (delta.held, delta.share));
            } else {
                self.held -= delta.held;
                self.looks.leave(delta.share);
            }
        } else if self.waiting.front() == Some(&number) {
            self.waiting.pop_front();
        }
    }

    pub(super) fn has_room(&self, held: u64) -> bool {
        let count = self.active.len() + self.leaving.len();
        let count_max = self.files_max.clamp(DELTAS_MIN, TREE_DELTAS_MAX);
        count == 0 || (count < count_max && self.held.saturating_add(held) <= TREE_DELTAS_BYTES_MAX)
    }

    /// False if the first that waits is known to find no room.
    pub(super) fn may_begin(&self) -> bool {
        let first = self.next.filter(|(number, _)| self.waiting.front() == Some(number));
        self.has_room(first.map_or(0, |(_, held)| held))
    }
}

impl Delta {
    pub(super) fn new(older: OlderFile, is_other: bool, size_bytes: u64) -> Delta {
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
            other: None,
            is_own_unfit: false,
            is_sibling: false,
            was_compared: false,
            is_same: false,
            size_bytes,
            average_bytes,
            held,
            is_working: false,
            is_void: Arc::default(),
            newer: None,
            finished: None,
            phase,
            coarse: Vec::new(),
            short: Vec::new(),
            is_code: false,
            code: BTreeMap::new(),
            share: Share::default(),
        }
    }
}

#[cfg(test)]
impl Deltas {
    /// Questions for siblings go to who asks for this, and to no thread.
    pub(in crate::copy::tree::sink) fn keep_questions(
        &mut self,
    ) -> Option<std::sync::mpsc::Receiver<(u64, Coming)>> {
        self.siblings.as_mut().map(Finder::keep_questions)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::siblings::VAIN_MAX;
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

    /// P7 "never slower", design 17: a sibling of which nobody heard what it has in common with what comes was read in vain as one that has nothing, and after some of them no
    /// more are; one that was compared counts for what it had.
    #[test]
    fn siblings_that_are_given_up_are_in_vain() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        let scope = Scope::new(top.try_clone().unwrap().into(), top.as_fd()).unwrap();
        let mut deltas = Deltas { is_on: true, ..Deltas::default() };
        deltas.wake_with(Arc::default());
        deltas.stop_with(Arc::default());
        deltas.search_in(scope);
        let mut give_up = |number, was_compared| {
            let delta = Delta { is_other: true, is_sibling: true, was_compared, ..delta() };
            deltas.held += delta.held;
            deltas.active.insert(number, delta);
            deltas.remove(number);
            deltas.looks_for_siblings()
        };
        for number in 0..u64::from(VAIN_MAX) {
            assert!(give_up(number, true), "what it had was counted when that was known");
        }
        for number in 1..u64::from(VAIN_MAX) {
            assert!(give_up(number, false), "{number}");
        }
        assert!(!give_up(0, false));
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
