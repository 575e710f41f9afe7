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
mod look;
mod meter;
mod rests;
mod siblings;
mod state;
mod work;

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::limits::{TREE_LOOKED_AT_BYTES_MAX, TREE_PART_BYTES};
use dray_core::message::{Message, Part};
use dray_core::tree::{Finished, Record, decode_chunks};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::Wanted;
use dray_store::local::tree::{Cut, FileTarget, OlderFile};

use super::parts::Parts;
use super::{Pending, Writing};
use crate::search::{Coming, Scope};
use index::Found;
pub(super) use meter::Meter;
use siblings::Sibling;
pub(super) use state::Deltas;
use state::{Asking, Delta, Phase, Search, fine_average, is_too_large, may_pay, whole};
use work::{Outcome, Task, Worker, sum};

/// Smaller files, and smaller older versions, are sent: what is asked and told of them takes as much.
pub(super) const DELTA_FROM_BYTES: u64 = 8 * 1024;
/// So are files below this where the network is fast: asking how they are cut takes a round trip more, and time at both ends. From this on files of one size are
/// compared as they are cut; those below are first by their hash.
pub(super) const CUT_FROM_BYTES: u64 = 64 * 1024;
/// Files from this size on are looked for under other names, for so long at most.
const OTHERS_FROM_BYTES: u64 = 4096;
const OTHERS_PATIENCE: Duration = Duration::from_secs(1);
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

/// Which file a difference is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// The one that stands where it goes.
    Own,
    /// What a run that was cut off left of it.
    Left,
    /// Another of the destination, or that of a directory beside it.
    Other,
    /// One from elsewhere on the disk.
    Sibling,
}

impl Which {
    /// Whether one of this size may have enough of a newer one to pay for reading both.
    fn may_pay(self, older_bytes: u64, newer_bytes: u64) -> bool {
        match self {
            // However little it is: who is cut off each time as early would never come to an end.
            Which::Left => !is_too_large(older_bytes, newer_bytes),
            _ => may_pay(older_bytes, newer_bytes),
        }
    }
}

/// The file that stands where it goes, if it is worth to be compared with.
fn own_older(target: &FileTarget) -> Option<OlderFile> {
    if target.size_bytes() < DELTA_FROM_BYTES {
        return None;
    }
    target.older().filter(|older| older.size_bytes >= DELTA_FROM_BYTES)
}

/// True if a file stands where it goes, or in its place in another directory.
fn may_have_older(target: &FileTarget) -> bool {
    target.replaces_file() || target.has_basis()
}

impl Writing<'_> {
    /// With contents as differences, if the sender knows them.
    pub(in crate::copy::tree) fn with_deltas(mut self, is_on: bool) -> Self {
        self.deltas.is_on = is_on;
        self.deltas.files_max = self.writer.files_beside();
        if is_on {
            self.writer.compare_below(CUT_FROM_BYTES);
        }
        self
    }

    /// The same, and the sender, a stranger, is told no hash of what is here.
    pub(in crate::copy::tree) fn discreet(mut self) -> Self {
        self.deltas.is_discreet = true;
        self
    }

    /// With what lies in `scope`, too.
    pub(in crate::copy::tree) fn searching(mut self, scope: Option<Scope>) -> Self {
        if let Some(scope) = scope {
            self.deltas.search_in(scope.with_files_from(OTHERS_FROM_BYTES));
        }
        self
    }

    /// Whether a file elsewhere on the disk is looked for that may have most of one that comes: of one that has nothing of its own here.
    fn may_have_sibling(&self, pending: &Pending) -> bool {
        pending.size_bytes >= OTHERS_FROM_BYTES
            && !may_have_older(&pending.target)
            && self.deltas.looks_for_siblings()
            && !self.meter.is_fast()
    }

    fn looks_for_others(&self) -> bool {
        !self.deltas.is_discreet && self.writer.may_have_others()
    }

    /// Whether the content of an entry that comes for the first time may come as a difference, or is to be compared.
    pub(super) fn may_differ(&self, pending: &Pending) -> bool {
        let has_older = self.has_older(pending);
        let may_have_other = pending.size_bytes >= OTHERS_FROM_BYTES && self.looks_for_others();
        let has_candidate = has_older || may_have_other || self.may_have_sibling(pending);
        self.deltas.can_work() && pending.known.is_none() && has_candidate
    }

    /// Whether an older version may be worth a question.
    fn has_older(&self, pending: &Pending) -> bool {
        let size_bytes = pending.size_bytes;
        // Of most files their size decides, and nobody has to be asked.
        may_have_older(&pending.target)
            && (size_bytes >= CUT_FROM_BYTES || (size_bytes >= DELTA_FROM_BYTES && self.is_slow()))
    }

    /// The file that is likely to have much in common with one that comes, and which that is. `None` while others are looked for.
    fn find_older(&mut self, number: u64) -> Option<Option<(OlderFile, Which)>> {
        let target = &self.pending.get(&number)?.target;
        if let Some(basis) = target.basis() {
            let which = if target.goes_on() { Which::Left } else { Which::Other };
            if which.may_pay(basis.size_bytes, target.size_bytes()) {
                return Some(Some((basis, which)));
            }
        }
        if self.writer.compares_by_hash()
            && let Some(own) = own_older(target).filter(|own| own.size_bytes == target.size_bytes())
        {
            // It may have the content whatever its time is, and then it stays.
            return Some(Some((own, Which::Own)));
        }
        if self.looks_for_others() {
            match &self.deltas.others {
                Search::NotBegun => {
                    self.deltas.others = Search::Going;
                    if let Some(others) = self.writer.others_to_find(OTHERS_FROM_BYTES) {
                        self.deltas.search(others, OTHERS_PATIENCE);
                    }
                    return None;
                }
                Search::Going => return None,
                Search::Over(others) => {
                    if let Some(other) = others.open(target.size_and_time(), target.name()) {
                        return Some(Some((other, Which::Other)));
                    }
                }
            }
        }
        if let Some(own) = own_older(target) {
            return Some(Some((own, Which::Own)));
        }
        match self.deltas.sibling_of(number) {
            Sibling::Awaited => None,
            _ => {
                let sibling = self.deltas.open_sibling(number);
                // What is small and another is sooner sent than compared.
                let is_worth = |sibling: &OlderFile| {
                    sibling.size_and_time() == target.size_and_time()
                        || sibling.size_bytes.min(target.size_bytes()) >= DELTA_FROM_BYTES
                };
                let Some(sibling) = sibling.filter(is_worth) else { return Some(None) };
                let may_read = self.deltas.may_read_sibling(&sibling)?;
                Some(may_read.then_some((sibling, Which::Sibling)))
            }
        }
    }

    /// Whether there is, or was, a file that it may have much in common with; `None` while others are looked for.
    fn has_candidate(&self, pending: &Pending) -> Option<bool> {
        let has_older = self.has_older(pending);
        let has_other = match &self.deltas.others {
            _ if !self.looks_for_others() => Some(has_older),
            Search::Over(others) => {
                let target = &pending.target;
                Some(has_older || others.has(target.size_and_time(), target.name()))
            }
            Search::NotBegun | Search::Going => None,
        };
        match (has_other, self.deltas.sibling_of(pending.number)) {
            (Some(false), Sibling::Found(_)) => Some(true),
            (Some(false), Sibling::Awaited) => None,
            (known, _) => known,
        }
    }

    /// The entry is to come as a difference when its turn comes; at once, and whole, if it has nothing to differ from.
    pub(super) fn differ(&mut self, pending: Pending) -> Result<()> {
        if self.may_have_sibling(&pending) {
            let (size_bytes, mtime_s, _) = pending.target.size_and_time();
            let coming = Coming { path: pending.target.path(), size_bytes, mtime_s };
            self.deltas.find_sibling(pending.number, coming);
        }
        if self.has_candidate(&pending) == Some(false) {
            self.ask(pending);
            return Ok(());
        }
        self.deltas.waiting.push_back(pending.number);
        self.pending.insert(pending.number, pending);
        self.begin_deltas()
    }

    /// What waits, and has nothing to differ from, does not wait behind what has.
    fn ask_new(&mut self) {
        for number in std::mem::take(&mut self.deltas.waiting) {
            let has_candidate =
                self.pending.get(&number).is_some_and(|pending| self.has_candidate(pending) != Some(false));
            if has_candidate {
                self.deltas.waiting.push_back(number);
            } else if let Some(pending) = self.pending.remove(&number) {
                self.ask(pending);
            }
        }
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
            let Some((older, which)) = older else {
                self.give_up(number);
                continue;
            };
            let is_other = which != Which::Own;
            if !which.may_pay(older.size_bytes, size_bytes) {
                self.give_up(number);
                continue;
            }
            let is_same_size = older.size_bytes == size_bytes && !self.deltas.is_discreet;
            let mut delta = Delta::new(older, is_other, size_bytes);
            delta.is_sibling = which == Which::Sibling;
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
            if which == Which::Sibling {
                self.deltas.sibling_read(&delta.older);
            } else if let (Which::Other, Search::Over(others)) = (which, &mut self.deltas.others) {
                others.read(size_bytes);
            }
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
                self.ask_new();
                self.begin_deltas()?;
                continue;
            }
            if let Ok(Outcome::Sibling(found)) = outcome {
                self.deltas.sibling_found(number, found);
                self.ask_new();
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
                Err(_) if self.deltas.give_own_up(number) => self.compare_if_cut(number)?,
                // Whatever it was, the sender has it.
                Err(_) => self.take_whole(number)?,
            }
        }
        Ok(())
    }

    fn outcome(&mut self, number: u64, outcome: Outcome) -> Result<()> {
        let is_discreet = self.deltas.is_discreet;
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        match (outcome, &mut delta.phase) {
            (Outcome::Cut { index: cut, hash, is_code }, Phase::Cutting { index, .. }) => {
                *index = Some(cut);
                delta.is_code = is_code;
                // The sender may have told its cut already, when this was another's turn.
                let is_asked = delta.finished.is_some();
                let is_same_size = delta.older.size_bytes == delta.size_bytes && !is_asked && !is_discreet;
                let (size_bytes, average_bytes) = (delta.size_bytes, delta.average_bytes);
                let mut is_same_time = false;
                if is_same_size && let Some(pending) = self.pending.get_mut(&number) {
                    pending.known = Some(hash);
                    is_same_time = pending.target.size_and_time() == delta.older.size_and_time();
                    if !delta.is_other {
                        pending.target.compared(delta.older.state, delta.older.has_one_name);
                    }
                }
                match average_bytes {
                    None => {
                        self.give_up(number);
                        return self.begin_deltas();
                    }
                    Some(average) if is_same_size => {
                        self.machine.want_cut(number, whole(size_bytes), average, Some(hash));
                        if is_same_time {
                            self.machine.last_cut_may_wait();
                        }
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
            (Outcome::Looked(look), Phase::Looking(_)) => self.looked(number, look),
            (Outcome::Proven(hash), Phase::Proving) => self.proven(number, hash),
            _ => Err(Error::new(ErrorKind::Internal, "a difference went on out of turn")),
        }
    }

    /// Asks how files are cut. One that has the size and the time of one that is here is likely to be the same: it is asked about together with
    /// the next ones, as long as the worker is busy with those. It wakes the sink when they have waited for long enough.
    pub(super) fn ask_cuts(&mut self, out: &mut Vec<Message>) {
        let now = Instant::now();
        if let Some(ready) = self.machine.cuts_that_may_wait()
            && let Some(until) = self.questions.until(ready, now)
            && self.deltas.wakes_at(until)
        {
            return;
        }
        while let Some(pull) = self.machine.pull_cuts() {
            self.questions.leave(now);
            out.push(Message::Pull(pull));
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
            Record::Bytes(_) | Record::Again | Record::Sums(_) => {}
        }
        Ok(())
    }

    /// The older version is what the sender has.
    fn same(&mut self, number: u64, finished: &Finished) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        if pending.known != Some(finished.hash) || finished.size_bytes != delta.size_bytes {
            return Err(Error::new(ErrorKind::Protocol, "sender found the same what is not"));
        }
        if delta.is_other || pending.target.is_never_kept() {
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
        let first = *delta.finished.get_or_insert(finished);
        if !first.is_same_state(&finished) || finished.size_bytes != delta.size_bytes {
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
            self.deltas.push(number, Task::Compare { older, index, other: None, newer, pieces });
            return Ok(());
        }
        self.compare_if_cut(number)
    }

    /// Once both versions are cut as a whole.
    fn compare_if_cut(&mut self, number: u64) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let (Some(finished), Phase::Cutting { index: Some(index), pieces }) = (delta.finished, &delta.phase)
        else {
            return Ok(());
        };
        let other = delta.older.state.identity();
        // What stands where it goes may have what another lacks.
        if delta.is_other
            && !delta.is_own_unfit
            && !index.has_all(pieces)
            && let Some(pending) = self.pending.get_mut(&number)
            && let Some(own) = own_older(&pending.target)
                .filter(|own| may_pay(own.size_bytes, finished.size_bytes) && own.state.identity() != other)
            && let Some(task) = self.deltas.compare_with_own(number, own)
        {
            // That was of the other.
            pending.known = None;
            self.deltas.push(number, task);
            return Ok(());
        }
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let Phase::Cutting { index, pieces } = &mut delta.phase else { return Ok(()) };
        let Some(index) = index.take() else { return Ok(()) };
        let pieces = vec![(0, std::mem::take(pieces))];
        let (older, index, other) = (delta.older.clone(), Arc::new(index), delta.other.take());
        self.put_together(number, |newer| Task::Compare { older, index, other, newer, pieces })
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
        let is_sibling = delta.is_sibling;
        if is_sibling {
            // What is the same was copied without a comparison.
            let common_bytes = if delta.is_same { delta.size_bytes } else { found.common_bytes() };
            delta.was_compared = true;
            let sibling = delta.older.clone();
            self.deltas.sibling_had(&sibling, common_bytes);
        }
        let missing_bytes = sum(&found.missing);
        let is_looked_at =
            (1..=TREE_LOOKED_AT_BYTES_MAX).contains(&missing_bytes) && self.looks_closely(number);
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        delta.phase = Phase::Fetching;
        if is_looked_at {
            delta.coarse = found.common;
            self.look_at_once(number, found.missing);
        } else {
            self.cut_finely(number, found);
        }
        self.prove_if_whole(number)?;
        // Others may wait to hear of what use it is.
        if is_sibling { self.begin_deltas() } else { Ok(()) }
    }

    /// Goes on with a finer cut of what is missing, where that may pay.
    fn cut_finely(&mut self, number: u64, found: Found) {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return };
        let unused = found.unused(delta.older.size_bytes);
        let unused_bytes = unused.iter().map(|range| range.end - range.start).sum();
        let fine =
            delta.average_bytes.and_then(|coarse| fine_average(coarse, sum(&found.missing), unused_bytes));
        let is_short =
            |part: &Part| fine.is_none_or(|average| part.bytes <= SHORT_CHUNKS * u64::from(average));
        let (short, missing): (Vec<Part>, Vec<Part>) = found.missing.into_iter().partition(is_short);
        let is_fine = !missing.is_empty();
        if let Some(average_bytes) = fine.filter(|_| is_fine) {
            delta.phase = Phase::CuttingUnused { missing: missing.into(), average_bytes };
            let task = Task::CutUnused { older: delta.older.clone(), unused, average_bytes };
            self.deltas.push(number, task);
        }
        if !self.looks_closely(number) {
            self.fetch(number, short.into());
        } else if let Some(delta) = self.deltas.active.get_mut(&number) {
            delta.coarse = found.common;
            if is_fine {
                // Looked at with what is missing then.
                delta.short = short;
            } else if !short.is_empty() {
                self.look(number, short, Vec::new(), None);
            }
        }
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
        let mut missing = std::mem::take(&mut delta.short);
        missing.extend(found.missing);
        // What has no chunk in common may have changed in a few bytes of each.
        missing.extend(rest);
        if !self.looks_closely(number) || missing.is_empty() {
            self.fetch(number, missing.into());
            return self.ask_finely(number);
        }
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        if let Phase::Asking(asking) = std::mem::replace(&mut delta.phase, Phase::Fetching) {
            self.look(number, missing, found.common, Some(asking));
        }
        Ok(())
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
