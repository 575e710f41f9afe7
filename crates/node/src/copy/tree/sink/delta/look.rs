//! One look at what is missing of a file, below the length of a chunk (ADR 28): what is asked of the sender, and what of the answers the
//! older version has.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dray_core::block_mask::{BLOCK_BYTES, Have};
use dray_core::code_field::{BEFORE_BYTES, BEHIND_BYTES, CodeFields};
use dray_core::limits::GROUP_BYTES;
use dray_core::message::{BlockSums, Part};
use dray_core::{Error, Result};
use dray_engine::session::Rest;
use dray_store::local::tree::OlderFile;

use super::index::Common;
use super::work::{READ_BYTES, read_and_write};
use crate::looking::{
    COARSE, COARSE_CODE, FINE, FINE_CODE, Found, Gap, OlderBytes, Piece, Question, Round, SAME_CODE, add,
    compare, left_of, questions, samples, worth_a_close_look,
};

/// Of a window of 64 KiB of which less is here all that is missing is asked for: naming its blocks takes as much.
const REST_FROM_BYTES: u64 = 256;
/// Of code that was found, what its fields take is this part, or less.
const FIELDS_PART: u64 = 5;
/// Places in the older version that are remembered of one window for its code: few have more, and what lies elsewhere comes as it is.
const SHIFTS_MAX: usize = 64;

/// Where chunks of the newer version lie in the older one: those found coarsely, and those found finely. Both ascend in the newer one.
pub(super) struct Commons<'a> {
    pub(super) coarse: &'a [Common],
    pub(super) fine: &'a [Common],
    pub(super) older_bytes: u64,
    pub(super) newer_bytes: u64,
}

impl Commons<'_> {
    fn lists(&self) -> impl Iterator<Item = &[Common]> {
        [self.coarse, self.fine].into_iter()
    }

    /// Where `range` of the newer version would lie, had nothing moved since the chunk in front of it, and before the one behind it. The
    /// ends of both versions count as such.
    fn gap(&self, range: &Range<u64>) -> Gap {
        let in_front = |list: &[Common]| {
            let behind = list.partition_point(|common| common.to + common.bytes <= range.start);
            list.get(behind.checked_sub(1)?)
                .map(|common| (common.to + common.bytes, common.from + common.bytes))
        };
        let behind = |list: &[Common]| {
            list.get(list.partition_point(|common| common.to < range.end))
                .map(|common| (common.to, common.from))
        };
        let (to, from) = self.lists().filter_map(in_front).max().unwrap_or((0, 0));
        let after = from.checked_add(range.start - to);
        let ends = (self.newer_bytes.max(range.end), self.older_bytes);
        let (to, from) = self.lists().filter_map(behind).min().unwrap_or(ends);
        Gap { range: range.clone(), after, before: from.checked_sub(to - range.end) }
    }

    /// True if all of `range` was copied.
    fn has(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let end_of = |list: &[Common]| {
                let behind = list.partition_point(|common| common.to <= at);
                list.get(behind.checked_sub(1)?).map(|common| common.to + common.bytes)
            };
            match self.lists().filter_map(end_of).max() {
                Some(end) if end > at => at = end,
                _ => return false,
            }
        }
        true
    }
}

/// A look, from the first question to what is to be asked for then.
pub(super) struct Look {
    /// What is missing, ascending, and whether what is between each and the one before it is in place.
    missing: Vec<(Part, bool)>,
    pieces: Vec<Piece>,
    /// How it is looked at now, and at which pieces.
    looks: Vec<(Round, Vec<Piece>)>,
    /// What is not answered, in the order asked, and what has come of the first of it.
    asked: VecDeque<(usize, Question)>,
    coming: Vec<u8>,
    answers: Vec<(usize, Question, Vec<u8>)>,
    found: Found,
    /// What was found but for the fields of code, if that is looked for.
    code: Option<Found>,
    is_close: bool,
    /// Bytes that are looked at, and windows of the file that they reach into.
    pub(super) bytes: u64,
    pub(super) windows: usize,
    /// What came of it, in the end.
    pub(super) plan: Option<Plan>,
}

/// What is to be asked for.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Of which nothing is here.
    pub(super) parts: VecDeque<Part>,
    pub(super) rests: VecDeque<Rest>,
    /// Where the older version has the code of those that have some, by the first byte of each.
    pub(super) code: BTreeMap<u64, CodeShifts>,
    pub(super) found_bytes: u64,
}

/// How far from its place in a part the older version has code: each from some byte of the part on, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct CodeShifts(Vec<(u32, i64)>);

impl CodeShifts {
    /// What lies at `place` of a part lies at `shift` from that in the older version. False if that is one place too many.
    fn push(&mut self, place: usize, shift: i64) -> bool {
        if self.0.last().is_some_and(|(_, last)| *last == shift) {
            return true;
        }
        let has_room = self.0.len() < SHIFTS_MAX;
        if has_room {
            // A part has 64 KiB at most.
            self.0.push((place as u32, shift));
        }
        has_room
    }

    /// Puts code into `bytes`, which are those of `part`: what the older version has of it, with the fields that came. What cannot be read, or
    /// did not come, is not there, and shows in the hash.
    pub(super) fn fill_in(
        &self,
        older: &OlderFile,
        part: &Part,
        have: &Have,
        bytes: &mut [u8],
        mut fields: &[u8],
    ) {
        let ends = self.0.iter().skip(1).map(|(place, _)| *place as usize).chain([bytes.len()]);
        let blocks: Vec<usize> = have.code_blocks(bytes.len()).collect();
        for ((place, shift), end) in self.0.iter().zip(ends) {
            let first = blocks.partition_point(|block| *block < *place as usize);
            let of_shift = &blocks[first..blocks.partition_point(|block| *block < end).max(first)];
            let (Some(start), Some(last)) = (of_shift.first(), of_shift.last()) else { continue };
            let old_of = |block: usize| (part.start + block as u64).checked_add_signed(*shift);
            let Some(old) = old_of(*start) else { return };
            let before = old.min(BEFORE_BYTES as u64) as usize;
            let from = old - before as u64;
            let here = last + BLOCK_BYTES - start;
            let behind = older.size_bytes.saturating_sub(old + here as u64).min(BEHIND_BYTES as u64);
            let mut read = vec![0; before + here + behind as usize];
            if older.file.read_exact_at(&mut read, from).is_err() {
                return;
            }
            for block in of_shift {
                let at = before + block - start;
                let code = &mut bytes[*block..block + BLOCK_BYTES];
                code.copy_from_slice(&read[at..at + BLOCK_BYTES]);
                if !CodeFields::of(&read, at).put(code, part.start + *block as u64, &mut fields) {
                    return;
                }
            }
        }
    }
}

/// Windows of the file that `part` reaches into.
pub(super) fn windows(part: &Part) -> usize {
    let last = part.end().saturating_sub(1) / GROUP_BYTES;
    usize::try_from(last - (part.start / GROUP_BYTES).min(last) + 1).unwrap_or(usize::MAX)
}

impl Look {
    /// Of `missing`, which ascends; as code, if it is.
    pub(super) fn new(missing: Vec<Part>, commons: &Commons<'_>, is_code: bool) -> Look {
        let piece = |part: &Part| {
            let range = part.start..part.end();
            Piece::new(range.clone(), &commons.gap(&range))
        };
        let pieces: Vec<Piece> = missing.iter().map(piece).collect();
        let bytes = missing.iter().map(|part| part.bytes).sum();
        let windows = missing.iter().map(windows).sum();
        let mut last_end = None;
        let missing = missing.into_iter().map(|part| {
            let before: Option<u64> = last_end.replace(part.end());
            let is_near = before.is_some_and(|end| end / GROUP_BYTES == part.start / GROUP_BYTES);
            (part, is_near && before.is_some_and(|end| commons.has(end..part.start)))
        });
        let missing = missing.collect();
        let mut look = Look {
            missing,
            looks: Vec::new(),
            asked: VecDeque::new(),
            coming: Vec::new(),
            answers: Vec::new(),
            found: Found::new(),
            code: is_code.then(Found::new),
            is_close: false,
            bytes,
            windows,
            plan: None,
            pieces: Vec::new(),
        };
        let samples = samples(&pieces);
        let (coarse, fine) = look.rounds();
        look.ask(vec![(coarse, pieces.clone()), (fine, samples)]);
        look.pieces = pieces;
        look
    }

    fn rounds(&self) -> (Round, Round) {
        if self.code.is_some() { (COARSE_CODE, FINE_CODE) } else { (COARSE, FINE) }
    }

    /// All that it is about: it cannot be looked at.
    pub(super) fn into_missing(self) -> VecDeque<Part> {
        self.missing.into_iter().map(|(part, _)| part).collect()
    }

    fn ask(&mut self, looks: Vec<(Round, Vec<Piece>)>) {
        let of_look = |(at, (round, pieces)): (usize, &(Round, Vec<Piece>))| {
            questions(round, pieces).into_iter().map(move |question| (at, question)).collect::<Vec<_>>()
        };
        self.asked = looks.iter().enumerate().flat_map(of_look).collect();
        self.looks = looks;
    }

    /// What the sender is to be asked now.
    pub(super) fn to_ask(&self) -> impl Iterator<Item = BlockSums> {
        self.asked.iter().filter_map(|(at, question)| {
            let (round, _) = self.looks.get(*at)?;
            let (block_bytes, sum_bytes) = (round.block_bytes as u32, round.sum_bytes);
            let is_code = round.is_code.then_some(true);
            Some(BlockSums { block_bytes, sum_bytes, runs: question.runs.clone(), is_code })
        })
    }

    /// The next sums of the first answer that is awaited.
    pub(super) fn take(&mut self, sums: &[u8]) {
        self.coming.extend_from_slice(sums);
    }

    /// That answer has come to its end.
    pub(super) fn end_answer(&mut self) {
        if let Some((at, question)) = self.asked.pop_front() {
            self.answers.push((at, question, std::mem::take(&mut self.coming)));
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.asked.is_empty()
    }

    /// Compares the older version with what was answered. What is found in the end is copied to `newer`, of `newer_bytes`.
    pub(super) fn compare(
        &mut self,
        older: &OlderFile,
        newer: &File,
        newer_bytes: u64,
        between: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let bytes = Older(older);
        loop {
            let mut of_looks = vec![Found::new(); self.looks.len()];
            for (at, question, sums) in std::mem::take(&mut self.answers) {
                between()?;
                if let (Some((round, pieces)), Some(found)) = (self.looks.get(at), of_looks.get_mut(at)) {
                    compare(&bytes, round, &question, pieces, &sums, found);
                }
            }
            for (more, (round, _)) in of_looks.into_iter().zip(&self.looks) {
                match &mut self.code {
                    Some(code) if round.is_code => add(more, code),
                    _ => add(more, &mut self.found),
                }
            }
            if std::mem::replace(&mut self.is_close, true) {
                break;
            }
            let known = self.code.as_ref().unwrap_or(&self.found);
            let left = worth_a_close_look(left_of(&self.pieces, known));
            let (_, fine) = self.rounds();
            let same = self.code.as_ref().map(found_together).unwrap_or_default();
            self.ask(vec![(fine, left), (SAME_CODE, same)]);
            if !self.asked.is_empty() {
                return Ok(());
            }
        }
        copy_found(&self.found, older, newer, between)?;
        let code = self.code.take().unwrap_or_default();
        self.plan = Some(plan(&self.missing, &self.found, &code, newer_bytes));
        Ok(())
    }
}

/// The older version of a file.
struct Older<'a>(&'a OlderFile);

impl OlderBytes for Older<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.file.read_exact_at(out, offset).map_err(|error| Error::file("read the older version", error))
    }
}

/// Copies what was found, those together that lie together at both ends.
fn copy_found(
    found: &Found,
    older: &OlderFile,
    newer: &File,
    between: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut blocks = found.iter().map(|(start, (end, old))| (*start, *end, *old)).peekable();
    while let Some((start, mut end, old)) = blocks.next() {
        while let Some((_, next_end, _)) =
            blocks.next_if(|(next, _, next_old)| *next == end && *next_old == old + (end - start))
        {
            end = next_end;
        }
        let mut done = 0;
        while start + done < end {
            between()?;
            let count = usize::try_from(end - start - done).unwrap_or(READ_BYTES).min(READ_BYTES);
            done += read_and_write(&older.file, newer, old + done, start + done, count)?;
        }
    }
    Ok(())
}

/// Where as many bytes were found as are told to be the same: what lies together in both versions is one piece, which takes one run to ask for.
fn found_together(found: &Found) -> Vec<Piece> {
    let mut together: Vec<(Range<u64>, u64)> = Vec::new();
    for (start, (end, old)) in found.iter().filter(|(start, (end, _))| *end - *start >= SAME_CODE.block_bytes)
    {
        match together.last_mut() {
            Some((range, from)) if range.end == *start && *from + (range.end - range.start) == *old => {
                range.end = *end;
            }
            _ => together.push((*start..*end, *old)),
        }
    }
    together.into_iter().map(|(range, old)| Piece::found_at(range, old)).collect()
}

/// What was found of `range`, ascending.
fn found_in(found: &Found, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let range = range.clone();
    // No block is longer.
    let blocks = found.range(range.start.saturating_sub(COARSE.block_bytes)..range.end);
    let within =
        move |(start, (end, _)): (&u64, &(u64, u64))| (*start).max(range.start)..(*end).min(range.end);
    blocks.map(within).filter(|block| block.start < block.end)
}

/// Where in the older version code lies that was found, if the block at `at` is such.
fn code_at(code: &Found, at: u64) -> Option<u64> {
    let (start, (end, old)) = code.range(..=at).next_back()?;
    (at + BLOCK_BYTES as u64 <= *end).then(|| old + (at - start))
}

/// What is to be asked for of `missing`, of which the older version of a file of `size_bytes` has `found`, and `code` but for its fields.
fn plan(missing: &[(Part, bool)], found: &Found, code: &Found, size_bytes: u64) -> Plan {
    let mut plan = Plan::default();
    let mut window: Vec<Range<u64>> = Vec::new();
    for (part, is_joined) in missing {
        let (mut start, mut is_joined) = (part.start, *is_joined);
        while start < part.end() {
            let end = part.end().min((start / GROUP_BYTES + 1) * GROUP_BYTES);
            let is_in = |last: &Range<u64>| last.start / GROUP_BYTES == start / GROUP_BYTES;
            if !(is_joined && window.last().is_some_and(is_in)) {
                plan.add_window(&window, found, code, size_bytes);
                window.clear();
            }
            window.push(start..end);
            (start, is_joined) = (end, true);
        }
    }
    plan.add_window(&window, found, code, size_bytes);
    plan
}

impl Plan {
    /// What is missing of one window of the file; what is between is in place.
    fn add_window(&mut self, missing: &[Range<u64>], found: &Found, code: &Found, size_bytes: u64) {
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return };
        let bytes_of = |found: &Found| -> u64 {
            let here = missing.iter().flat_map(|range| found_in(found, range));
            here.map(|block| block.end - block.start).sum()
        };
        let (same_bytes, code_bytes) = (bytes_of(found), bytes_of(code));
        // What is the same was found as code before.
        let here_bytes = same_bytes + code_bytes.saturating_sub(same_bytes) / FIELDS_PART * (FIELDS_PART - 1);
        self.found_bytes += here_bytes;
        if here_bytes < REST_FROM_BYTES {
            missing.iter().for_each(|range| self.add_part(range));
            return;
        }
        let block_bytes = BLOCK_BYTES as u64;
        let start = first.start - first.start % block_bytes;
        let end = last.end.next_multiple_of(block_bytes).min(size_bytes.max(last.end));
        let mut lacks = vec![false; (end - start).div_ceil(block_bytes) as usize];
        for range in missing {
            let mut at = range.start;
            for block in found_in(found, range).chain(std::iter::once(range.end..range.end)) {
                if at < block.start {
                    let lacking = (at - start) / block_bytes..(block.start - start).div_ceil(block_bytes);
                    lacks[lacking.start as usize..lacking.end as usize].fill(true);
                }
                at = at.max(block.end);
            }
        }
        let (mut have, mut shifts) = (Have::default(), CodeShifts::default());
        for (block, lacks) in lacks.iter().enumerate() {
            let at = start + block as u64 * block_bytes;
            if !*lacks {
                have.blocks.insert(block);
            } else if let Some(old) = code_at(code, at)
                && shifts.push(block * BLOCK_BYTES, old.cast_signed() - at.cast_signed())
            {
                have.code.insert(block);
            }
        }
        if !have.code.is_empty() {
            self.code.insert(start, shifts);
        }
        self.rests.push_back((Part { start, bytes: end - start }, Arc::new(have)));
    }

    fn add_part(&mut self, range: &Range<u64>) {
        let bytes = range.end - range.start;
        match self.parts.back_mut() {
            Some(last) if last.end() == range.start => last.bytes += bytes,
            _ => self.parts.push_back(Part { start: range.start, bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(from: u64, to: u64, bytes: u64) -> Common {
        Common { from, to, bytes }
    }

    /// P6: what is missing is looked for next to the chunks around it, the nearest of both cuts; and the ends of the versions are the same.
    #[test]
    fn what_is_missing_lies_between_its_neighbours() {
        let coarse = [common(0, 0, 1000), common(9000, 9016, 1000)];
        let fine = [common(2000, 2016, 500)];
        let commons = Commons { coarse: &coarse, fine: &fine, older_bytes: 20_000, newer_bytes: 20_016 };
        let gap = |range: Range<u64>| {
            let gap = commons.gap(&range);
            (gap.after, gap.before)
        };
        assert_eq!(gap(1000..2016), (Some(1000), Some(2000)));
        assert_eq!(gap(1100..1200), (Some(1100), Some(1184)));
        assert_eq!(gap(2516..9016), (Some(2500), Some(9000)));
        assert_eq!(gap(10_016..20_016), (Some(10_000), Some(20_000)));
        assert_eq!(gap(10_016..10_100), (Some(10_000), Some(10_084)));
        assert!(commons.has(2016..2516) && commons.has(2100..2200) && commons.has(5..5));
        assert!(!commons.has(2016..2517) && !commons.has(1000..1001) && !commons.has(500..2100));
    }

    /// P6: blocks of code that lie together in both versions are asked about in one run, and smaller ones not at all.
    #[test]
    fn what_was_found_together_is_asked_about_together() {
        let found: Found = [
            (0, (1024, 7)),
            (1024, (2048, 1031)),
            (2048, (3072, 9)),
            (4096, (4160, 4103)),
            (5120, (6144, 99)),
        ]
        .into();
        let ranges: Vec<Range<u64>> = found_together(&found).into_iter().map(|piece| piece.range).collect();
        assert_eq!(ranges, [0..2048, 2048..3072, 5120..6144]);
    }

    /// P6: of a window the rest is asked for in one part, with what lies between in place; not over what is missing elsewhere, and not where
    /// hardly anything was found. What is missing of a block comes with the block, the last of the file as short as it is.
    #[test]
    fn windows_are_asked_for_with_what_is_here() {
        let part = |start, end| Part { start, bytes: end - start };
        let found: Found = [
            (1024, (2048, 7)),
            (GROUP_BYTES + 64, (GROUP_BYTES + 128, 9)),
            (3 * GROUP_BYTES, (3 * GROUP_BYTES + 512, 1)),
        ]
        .into();
        let size_bytes = 3 * GROUP_BYTES + 1000;
        let missing = [
            (part(1000, 2100), false),
            (part(5000, 5010), true),
            (part(9000, 9100), false),
            (part(GROUP_BYTES, 2 * GROUP_BYTES + 5), false),
            (part(3 * GROUP_BYTES, size_bytes), false),
        ];
        let plan = plan(&missing, &found, &Found::new(), size_bytes);
        // The window that has 64 bytes, and the others of which nothing is here.
        assert_eq!(plan.parts, [part(9000, 9100), part(GROUP_BYTES, 2 * GROUP_BYTES + 5)]);
        assert_eq!(plan.found_bytes, 1024 + 64 + 512);
        let rests: Vec<(Part, Vec<(usize, usize)>)> = plan
            .rests
            .iter()
            .map(|(part, have)| {
                (*part, have.rest(part.bytes as usize).map(|range| (range.start, range.end)).collect())
            })
            .collect();
        let first = (part(960, 5056), vec![(0, 64), (1088, 1152), (4032, 4096)]);
        let last = (part(3 * GROUP_BYTES, size_bytes), vec![(512, 1000)]);
        assert_eq!(rests, [first, last]);
        assert_eq!(
            (windows(&part(0, 1)), windows(&part(65_535, 65_537)), windows(&part(0, 65_536))),
            (1, 2, 1)
        );
    }
}
