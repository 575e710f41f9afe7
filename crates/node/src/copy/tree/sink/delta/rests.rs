//! What is missing between chunks is looked at closely before it is asked for (ADR 28): the sender tells sums of blocks, the worker holds the
//! older version against them and copies what is there, and of each 64 KiB only the rest comes. Each such part has the hash of all of it,
//! and comes whole if it is not that.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use dray_core::block_mask::{BlockMask, Have};
use dray_core::hash_tree::ContentHasher;
use dray_core::limits::{GROUP_BYTES, TREE_LOOKED_AT_BYTES_MAX, TREE_RESTS_MAX};
use dray_core::message::Part;
use dray_core::tree::Record;
use dray_core::{ErrorKind, Result};
use dray_engine::session::Rest;

use super::super::Writing;
use super::super::content::Current;
use super::index::{Common, Found};
use super::look::{CodeShifts, Commons, Look, windows};
use super::state::{Asking, Delta, Phase};
use super::work::{BLOCK_BYTES, Task};
use crate::looking::{FAST_FROM, Looked};

/// Looked at first, while nobody knows what looking is good for; and less is not worth a look while more is to be looked at.
const FIRST_BYTES: u64 = 1 << 20;
/// Windows that one look may reach into beyond those that it has room for.
const WINDOWS_SLACK: usize = (TREE_LOOKED_AT_BYTES_MAX / GROUP_BYTES) as usize + 1;
/// If less than one in so many of the bytes of a file is found once so many were looked at, the rest of them is not looked at.
const WORTH: u64 = 32;
const WORTH_FROM_BYTES: u64 = 1 << 20;

/// What all looks of a copy may take, and what came of them.
#[derive(Default)]
pub(super) struct Looks {
    /// The sender tells sums; and those of code.
    pub(super) is_on: bool,
    pub(super) tells_code: bool,
    /// Files that have something to look at.
    pub(super) waiting: VecDeque<u64>,
    /// Bytes that are looked at.
    bytes: u64,
    /// Parts of which some blocks need not come, and that have not come; and what may become such.
    rests: usize,
    looked: Looked,
    /// Since when the last of what is looked at counts, and what had come by then besides sums.
    since: Option<Instant>,
    came_bytes: u64,
    /// Bytes of sums that came.
    told_bytes: u64,
}

/// What one file has of that.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    bytes: u64,
    rests: usize,
    /// What was looked at before, and what of it was found.
    looked_bytes: u64,
    found_bytes: u64,
    /// It cannot be looked at.
    is_over: bool,
}

impl Share {
    fn is_hopeful(&self) -> bool {
        let is_vain = self.looked_bytes >= WORTH_FROM_BYTES && self.found_bytes * WORTH < self.looked_bytes;
        !self.is_over && !is_vain
    }
}

impl Looks {
    /// A file looks at nothing any more, and waits for nothing.
    pub(super) fn leave(&mut self, share: Share) {
        self.bytes = self.bytes.saturating_sub(share.bytes);
        self.rests = self.rests.saturating_sub(share.rests);
    }

    /// Counts the time in which anything was looked at, however much at a time. `all_bytes` came so far: what is no sum kept the network as
    /// busy as it can be.
    fn note(&mut self, all_bytes: u64) {
        let came_bytes = all_bytes.saturating_sub(self.told_bytes);
        let since = self.since.replace(Instant::now());
        if let Some(since) = since.filter(|_| self.bytes > 0) {
            self.looked.time += since.elapsed();
            self.looked.came_bytes += came_bytes.saturating_sub(self.came_bytes);
        }
        self.came_bytes = came_bytes;
    }

    /// Whether to look on, beside a network that brings `rate` bytes a second.
    fn pays(&self, rate: u64) -> bool {
        let told = self.told_bytes as f64 / self.looked.time.as_secs_f64().max(f64::MIN_POSITIVE);
        // Of a few small files nothing can be told.
        let is_known = self.looked.bytes >= FIRST_BYTES;
        self.is_on && (rate as f64) < FAST_FROM && (!is_known || self.looked.pays(rate, told))
    }

    /// How many bytes may be looked at next, if more than that are to be.
    fn room(&self) -> Option<u64> {
        let room = TREE_LOOKED_AT_BYTES_MAX.saturating_sub(self.bytes);
        let is_first = self.looked.bytes == 0;
        let has_room = if is_first { self.bytes == 0 } else { room >= FIRST_BYTES };
        let has_rests = self.rests + 2 * WINDOWS_SLACK <= TREE_RESTS_MAX;
        (has_room && has_rests).then_some(if is_first { FIRST_BYTES } else { room })
    }
}

/// A file whose missing pieces are looked at.
pub(super) struct Looking {
    /// What was not looked at, ascending.
    pub(super) left: VecDeque<Part>,
    /// What was found around it.
    pub(super) fine: Vec<Common>,
    /// What is looked at, unless the worker has it.
    now: Option<Box<Look>>,
    /// What is to be asked finely afterwards.
    asking: Option<Asking>,
    /// No finer cut was asked for: what is not looked at is cut so.
    is_at_once: bool,
}

/// Takes some of `left` off its front: `room` bytes at most, or so many that they reach into `windows_max` windows, and a few more.
fn take_some(left: &mut VecDeque<Part>, room: u64, windows_max: usize) -> Vec<Part> {
    let (mut some, mut bytes, mut count) = (Vec::new(), 0, 0);
    while bytes < room
        && count < windows_max
        && let Some(first) = left.front_mut()
    {
        let mut part = Part { bytes: first.bytes.min(room - bytes), ..*first };
        // What is cut is cut between windows, if it reaches as far.
        let even = part.end() / GROUP_BYTES * GROUP_BYTES;
        if part.bytes < first.bytes && even > part.start {
            part.bytes = even - part.start;
        }
        (first.start, first.bytes) = (part.end(), first.bytes - part.bytes);
        if first.bytes == 0 {
            left.pop_front();
        }
        bytes += part.bytes;
        count += windows(&part);
        some.push(part);
        if left.front().is_some_and(|next| next.start == part.end()) {
            break;
        }
    }
    some
}

/// The blocks of the file system of which something came, as far as they lie in `part`. The others are in place, where they may be shared with the older
/// version, or a hole.
fn new_blocks(part: &Part, have: &BlockMask) -> Vec<Range<usize>> {
    // Of 64 KiB at most.
    let len = part.bytes as usize;
    let within = |at: u64| usize::try_from(at.saturating_sub(part.start)).map_or(len, |at| at.min(len));
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for range in have.rest(len) {
        let (start, end) = (part.start + range.start as u64, part.start + range.end as u64);
        let start = within(start / BLOCK_BYTES * BLOCK_BYTES);
        let end = within(end.next_multiple_of(BLOCK_BYTES));
        match blocks.last_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => blocks.push(start..end),
        }
    }
    blocks
}

impl Writing<'_> {
    /// With sums of blocks, if the sender tells them.
    pub(in crate::copy::tree) fn with_rests(mut self, is_on: bool) -> Self {
        self.deltas.looks.is_on = is_on;
        self
    }

    /// And of code without its fields.
    pub(in crate::copy::tree) fn with_code(mut self, is_on: bool) -> Self {
        self.deltas.looks.tells_code = is_on;
        self
    }

    /// Whether what is missing of an entry is worth a close look. A stranger is not told so finely what is here, nor is anybody of what lies
    /// elsewhere on the disk.
    pub(super) fn looks_closely(&self, number: u64) -> bool {
        let may = |delta: &Delta| !delta.is_sibling && delta.share.is_hopeful();
        !self.deltas.is_discreet
            && self.deltas.looks.pays(self.meter.rate())
            && self.deltas.active.get(&number).is_some_and(may)
    }

    /// Looks at what is `missing`, and then goes on with what is to be asked finely.
    pub(super) fn look(
        &mut self,
        number: u64,
        mut missing: Vec<Part>,
        fine: Vec<Common>,
        asking: Option<Asking>,
    ) {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return };
        missing.sort_unstable_by_key(|part| part.start);
        let looking = Looking { left: missing.into(), fine, now: None, asking, is_at_once: false };
        delta.phase = Phase::Looking(Box::new(looking));
        self.deltas.looks.waiting.push_back(number);
    }

    /// Looks at what is `missing` instead of cutting it finely: sums of its blocks take about as many bytes as its chunks would, find nearly all
    /// that these do, and are asked for next anyway.
    pub(super) fn look_at_once(&mut self, number: u64, missing: Vec<Part>) {
        self.look(number, missing, Vec::new(), None);
        if let Some(Delta { phase: Phase::Looking(looking), .. }) = self.deltas.active.get_mut(&number) {
            looking.is_at_once = true;
        }
    }

    /// Begins as many looks as there is room for.
    pub(in crate::copy::tree::sink) fn begin_looks(&mut self) -> Result<()> {
        while let Some(number) = self.deltas.looks.waiting.front().copied() {
            let delta = self.deltas.active.get(&number);
            if !delta.is_some_and(|delta| matches!(delta.phase, Phase::Looking(_))) {
                self.deltas.looks.waiting.pop_front();
            } else if !self.looks_closely(number) {
                self.deltas.looks.waiting.pop_front();
                self.end_looking(number)?;
            } else if let Some(room) = self.deltas.looks.room() {
                self.deltas.looks.waiting.pop_front();
                self.begin_look(number, room);
            } else {
                break;
            }
        }
        Ok(())
    }

    fn begin_look(&mut self, number: u64, room: u64) {
        let looks = &mut self.deltas.looks;
        looks.note(self.meter.all_bytes());
        let Some(delta) = self.deltas.active.get_mut(&number) else { return };
        let Phase::Looking(looking) = &mut delta.phase else { return };
        let windows_max = TREE_RESTS_MAX.saturating_sub(looks.rests + WINDOWS_SLACK);
        let missing = take_some(&mut looking.left, room, windows_max);
        let commons = Commons {
            coarse: &delta.coarse,
            fine: &looking.fine,
            older_bytes: delta.older.size_bytes,
            newer_bytes: delta.size_bytes,
        };
        let look = Look::new(missing, &commons, looks.tells_code && delta.is_code);
        (looks.bytes, looks.rests) = (looks.bytes + look.bytes, looks.rests + look.windows);
        (delta.share.bytes, delta.share.rests) = (look.bytes, delta.share.rests + look.windows);
        self.ask_closely(number, Box::new(look));
    }

    /// Asks for sums; if there is nothing to ask, the worker goes on.
    fn ask_closely(&mut self, number: u64, look: Box<Look>) {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return };
        let Phase::Looking(looking) = &mut delta.phase else { return };
        if !look.is_answered() {
            look.to_ask().for_each(|sums| self.machine.want_sums(number, sums));
            looking.now = Some(look);
            return;
        }
        let Some(newer) = delta.newer.clone() else { return };
        let task = Task::Look { older: delta.older.clone(), newer, newer_bytes: delta.size_bytes, look };
        self.deltas.push(number, task);
    }

    /// A record of the answer to a question for sums.
    pub(in crate::copy::tree::sink) fn sums_record(
        &mut self,
        number: u64,
        record: &Record<'_>,
    ) -> Result<()> {
        // It may have been given up meanwhile.
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let Phase::Looking(looking) = &mut delta.phase else { return Ok(()) };
        let Some(look) = &mut looking.now else { return Ok(()) };
        match record {
            Record::Sums(sums) => {
                self.deltas.looks.told_bytes += sums.len() as u64;
                look.take(sums);
            }
            Record::Done(finished) => {
                if !delta.finished.is_some_and(|first| first.is_same_state(finished)) {
                    return self.take_whole(number);
                }
                look.end_answer();
                if look.is_answered()
                    && let Some(look) = looking.now.take()
                {
                    self.ask_closely(number, look);
                }
            }
            Record::Failed(fault) if fault.to_error("").kind() == ErrorKind::Changed => {
                return self.take_whole(number);
            }
            // It tells no more, and what it was asked besides is passed over.
            Record::Failed(_) => {
                delta.share.is_over = true;
                if let Some(look) = looking.now.take() {
                    let (bytes, windows) = (look.bytes, look.windows);
                    let mut missing = look.into_missing();
                    if looking.is_at_once {
                        missing.append(&mut looking.left);
                        std::mem::swap(&mut missing, &mut looking.left);
                    }
                    self.end_look(number, bytes, windows, 0);
                    self.fetch(number, missing);
                }
                return self.end_looking(number);
            }
            // The machine lets no others through.
            _ => {}
        }
        Ok(())
    }

    /// The worker has held the older version against what was answered.
    pub(super) fn looked(&mut self, number: u64, mut look: Box<Look>) -> Result<()> {
        let Some(plan) = look.plan.take() else {
            self.ask_closely(number, look);
            return Ok(());
        };
        let looks = &mut self.deltas.looks;
        looks.note(self.meter.all_bytes());
        looks.looked.bytes += look.bytes;
        looks.looked.found_bytes += plan.found_bytes.min(look.bytes);
        if let Some(delta) = self.deltas.active.get_mut(&number) {
            delta.share.looked_bytes += look.bytes;
            delta.share.found_bytes += plan.found_bytes;
        }
        self.end_look(number, look.bytes, look.windows, plan.rests.len());
        self.fetch(number, plan.parts);
        self.fetch_rests(number, plan.rests, plan.code);
        let is_left = self.deltas.active.get(&number).is_some_and(|delta| match &delta.phase {
            Phase::Looking(looking) => !looking.left.is_empty(),
            _ => false,
        });
        if is_left {
            self.deltas.looks.waiting.push_back(number);
            return Ok(());
        }
        self.end_looking(number)
    }

    /// A look has ended that had room for so much, of which it needs `rests` on.
    fn end_look(&mut self, number: u64, bytes: u64, windows: usize, rests: usize) {
        let free = Share { bytes, rests: windows.saturating_sub(rests), ..Share::default() };
        if let Some(delta) = self.deltas.active.get_mut(&number) {
            delta.share.bytes = delta.share.bytes.saturating_sub(free.bytes);
            delta.share.rests = delta.share.rests.saturating_sub(free.rests);
            self.deltas.looks.leave(free);
        }
    }

    /// What was not looked at is asked for, and it goes on as if nobody had looked.
    fn end_looking(&mut self, number: u64) -> Result<()> {
        let Some(delta) = self.deltas.active.get_mut(&number) else { return Ok(()) };
        let Phase::Looking(looking) = std::mem::replace(&mut delta.phase, Phase::Fetching) else {
            return Ok(());
        };
        if let Some(asking) = looking.asking {
            delta.phase = Phase::Asking(asking);
        }
        if looking.is_at_once && !looking.left.is_empty() {
            let found = Found { common: delta.coarse.clone(), missing: looking.left.into() };
            self.cut_finely(number, found);
        } else {
            self.fetch(number, looking.left);
        }
        self.ask_finely(number)?;
        self.prove_if_whole(number)
    }

    /// Asks for what is missing of parts of which some is in place.
    fn fetch_rests(&mut self, number: u64, rests: VecDeque<Rest>, code: BTreeMap<u64, CodeShifts>) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let Some(coming) = &mut pending.parts else { return };
        let Some(delta) = self.deltas.active.get_mut(&number) else { return };
        if rests.is_empty() {
            return;
        }
        delta.code.extend(code);
        let rest_bytes = |(part, have): &Rest| have.rest_bytes(part.bytes as usize).start as u64;
        let bytes: u64 = rests.iter().map(rest_bytes).sum();
        coming.asked += rests.iter().map(|(part, _)| part.bytes).sum::<u64>();
        coming.pieces += rests.len() as u64;
        pending.left_bytes += bytes;
        self.wanted_bytes = self.wanted_bytes.saturating_add(bytes);
        self.machine.want_rests(number, rests);
    }

    /// The rest of a part has come to its end.
    pub(in crate::copy::tree::sink) fn end_rest(
        &mut self,
        number: u64,
        part: &Part,
        have: &Have,
        current: &Current,
        record: &Record<'_>,
    ) -> Result<()> {
        let mut code = None;
        if let Some(delta) = self.deltas.active.get_mut(&number) {
            delta.share.rests = delta.share.rests.saturating_sub(1);
            self.deltas.looks.leave(Share { rests: 1, ..Share::default() });
            code = delta.code.remove(&part.start).map(|shifts| (delta.older.clone(), shifts));
        }
        if matches!(record, Record::Failed(fault) if fault.to_error("").kind() == ErrorKind::Refused) {
            // It was read as often as it may be without being sent, as where connections were lost again and again.
            self.await_all_of(number, part, have, current);
            return Ok(());
        }
        let Some(finished) = self.part_finished(number, record)? else { return Ok(()) };
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let (size_bytes, Some(parts)) = (pending.size_bytes, &mut pending.parts) else { return Ok(()) };
        if !parts.is_of(&finished, size_bytes) {
            return self.take_whole(number);
        }
        let mut rest = &current.rest[..];
        let mut bytes = parts.fill_in(part, have, &mut rest);
        if let Some((older, shifts)) = code {
            shifts.fill_in(&older, part, have, &mut bytes, rest);
        }
        let mut hasher = ContentHasher::new();
        hasher.update(&bytes);
        if hasher.finish() != finished.hash {
            // Sums are short: of many blocks that differ one seems not to.
            self.await_all_of(number, part, have, current);
            return Ok(());
        }
        if !parts.came(part) {
            return self.take_whole(number);
        }
        let mut news = new_blocks(part, &have.blocks).into_iter();
        let written = news
            .try_for_each(|range| pending.write_at(&bytes[range.clone()], part.start + range.start as u64));
        if let Err(error) = written {
            return self.fail_part(number, error);
        }
        self.machine.came_part(number, false);
        self.came_piece(number)
    }

    /// Asks for all of a part of which the rest did not do, whatever of it came, if any of it is awaited still.
    fn await_all_of(&mut self, number: u64, part: &Part, have: &Have, current: &Current) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let Some(parts) = &mut pending.parts else { return };
        parts.dirty.insert(part.start);
        let came_bytes = current.rest.len() as u64;
        let left_bytes = (have.rest_bytes(part.bytes as usize).start as u64).saturating_sub(came_bytes);
        let more_bytes = pending.await_again(part.bytes.saturating_sub(left_bytes));
        self.wanted_bytes = self.wanted_bytes.saturating_add(more_bytes);
        self.machine.want_part_again(number, *part);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Design 17: a look takes what it has room for, ascending, cut between windows; and what goes on is the next one's.
    #[test]
    fn looks_take_what_they_have_room_for() {
        let part = |start, bytes| Part { start, bytes };
        let mut left =
            VecDeque::from([part(100, 50), part(1000, 4 * GROUP_BYTES), part(9 * GROUP_BYTES, 10)]);
        assert_eq!(
            take_some(&mut left, 2 * GROUP_BYTES, 100),
            [part(100, 50), part(1000, 2 * GROUP_BYTES - 1000)]
        );
        assert_eq!(take_some(&mut left, 1 << 30, 1), [part(2 * GROUP_BYTES, 2 * GROUP_BYTES + 1000)]);
        assert_eq!(take_some(&mut left, 5, 100), [part(9 * GROUP_BYTES, 5)]);
        assert_eq!(take_some(&mut left, 1 << 30, 100), [part(9 * GROUP_BYTES + 5, 5)]);
        assert!(left.is_empty() && take_some(&mut left, 5, 100).is_empty());
    }

    /// ADR 23 "shares blocks where the file system can": of a part only the blocks are written in which something came.
    #[test]
    fn only_new_blocks_are_written() {
        let mut have = BlockMask::default();
        (0..1024).for_each(|block| have.insert(block));
        let blocks = |start, bytes, missing: &[usize]| {
            let mut mask = BlockMask::default();
            (0..1024).filter(|block| !missing.contains(block)).for_each(|block| mask.insert(block));
            new_blocks(&Part { start, bytes }, &mask)
        };
        assert_eq!(new_blocks(&Part { start: 5, bytes: GROUP_BYTES }, &have), []);
        assert_eq!(blocks(0, GROUP_BYTES, &[0, 3, 200]), [0..4096, 12_288..16_384]);
        // One that reaches into the next, and one that lies in that.
        assert_eq!(blocks(100, GROUP_BYTES, &[62, 64, 300]), [0..8092, 16_284..20_380]);
        assert_eq!(blocks(4096, 10_000, &[156]), vec![8192..10_000; 1]);
        assert_eq!(new_blocks(&Part { start: 7, bytes: 9000 }, &BlockMask::default()), vec![0..9000; 1]);
    }

    /// Design 17, "doubt ends in sending": so much is looked at at a time, less before anybody knows what it is good for, and nothing more of a
    /// file of which nothing was found, nor beside a network that is fast.
    #[test]
    fn looks_are_bounded_and_have_to_pay() {
        let mut looks = Looks { is_on: true, ..Looks::default() };
        assert_eq!(looks.room(), Some(FIRST_BYTES));
        looks.bytes = 1;
        assert_eq!(looks.room(), None, "what looking is good for is not known");
        looks.looked.bytes = 1;
        assert_eq!(looks.room(), Some(TREE_LOOKED_AT_BYTES_MAX - 1));
        looks.bytes = TREE_LOOKED_AT_BYTES_MAX - FIRST_BYTES + 1;
        assert_eq!(looks.room(), None);
        (looks.bytes, looks.rests) = (0, TREE_RESTS_MAX - 2 * WINDOWS_SLACK + 1);
        assert_eq!(looks.room(), None);
        looks.leave(Share { rests: 1, ..Share::default() });
        assert!(looks.room().is_some());
        assert!(looks.pays(0) && looks.pays(15_999_999) && !looks.pays(16_000_000));
        assert!(!Looks::default().pays(0), "the sender tells no sums");
        // What came meanwhile was not missed, whatever it was; of the first few bytes nothing can be told.
        (looks.looked.bytes, looks.looked.time) = (FIRST_BYTES - 1, Duration::from_secs(2));
        assert!(looks.pays(1_000_000));
        looks.looked.bytes = FIRST_BYTES;
        assert!(!looks.pays(1_000_000));
        (looks.bytes, looks.told_bytes) = (1, 50_000);
        looks.note(50_000);
        looks.note(1_850_000);
        assert!(!looks.pays(1_000_000), "{:?}", looks.looked);
        looks.note(2_150_000);
        assert!(looks.pays(1_000_000), "{:?}", looks.looked);
        let share = Share { looked_bytes: WORTH_FROM_BYTES, ..Share::default() };
        assert!(Share::default().is_hopeful() && !share.is_hopeful());
        assert!(Share { found_bytes: WORTH_FROM_BYTES / WORTH, ..share }.is_hopeful());
    }
}
