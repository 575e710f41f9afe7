//! Looking closely, for objects and for files of trees (ADR 28): sums of blocks that a source tells are held against the older version,
//! where the chunks around them lie and, if that does not fit, at every byte between.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use dray_core::Result;
use dray_core::block_mask::BLOCK_BYTES;
use dray_core::block_sum::{RollingSum, SUM_BYTES, sum_of};
use dray_core::code_field::{BEFORE_BYTES, BEHIND_BYTES, code_sum_of, coefficients};
use dray_core::limits::{SUMS_BYTES_MAX, SUMS_COVERED_BYTES_MAX, SUMS_RUNS_MAX};
use dray_core::message::BlockRun;

/// Bytes of the older version that are looked through for what is between two chunks, beside as many as lie between these.
const AROUND_BYTES: u64 = 64 << 10;
/// And at most: all of a segment of lacking groups.
const LOOKED_THROUGH_MAX: u64 = 32 << 20;
/// No more than so many times what is missing is looked through for it, and what is around.
const LOOKED_THROUGH_TIMES: u64 = 4;

/// Of a piece longer than this a few blocks are looked at closely first: so often, and so many bytes.
const SAMPLED_FROM: u64 = 64 << 10;
const SAMPLE_INTERVAL: u64 = 32 << 10;
const SAMPLE_BYTES: u64 = 2 << 10;

/// Looked for first: blocks in which nothing changed, with sums that are hardly ever wrong.
pub(crate) const COARSE: Round = Round { block_bytes: 1024, sum_bytes: 6, is_search: true, is_code: false };
/// Then what lies between two changes. Of 65,536 blocks that differ one seems not to: what it is part of is fetched again.
pub(crate) const FINE: Round =
    Round { block_bytes: BLOCK_BYTES as u64, sum_bytes: 2, is_search: false, is_code: false };
/// The same of code, without its fields: nearly all of a program that was built again is found by these.
pub(crate) const COARSE_CODE: Round = Round { sum_bytes: 5, is_code: true, ..COARSE };
pub(crate) const FINE_CODE: Round = Round { is_code: true, ..FINE };
/// Whether what was found so has the same fields, too, and need not be sent these.
pub(crate) const SAME_CODE: Round = Round { block_bytes: 512, ..FINE };
/// Bytes of the older version that are searched at a time.
const SEARCHED_BYTES: usize = 1 << 20;
/// From a source that is faster than so many bytes a second everything is fetched: looking would take longer.
pub(crate) const FAST_FROM: f64 = 16e6;
/// Looking may take this share of the time that fetching what it does not find would take: an update over a slow network goes on looking
/// beyond what is new.
const IN_VAIN_PART: u64 = 8;
/// And, where it did not pay so far, this share of the time of what was fetched since without it: what lies behind may be another thing.
const PASSED_PART: u64 = 32;
/// How long it is looked as long as nobody knows what the network brings.
const UNKNOWN_MAX: Duration = Duration::from_millis(500);

/// Where the older version is read.
pub(crate) trait OlderBytes {
    /// How many there are.
    fn size_bytes(&self) -> u64;
    /// Fills `out` with those from `offset` on.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// A run of bytes that the older version has not as chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    /// Bytes of the newer version.
    pub(crate) range: Range<u64>,
    /// Where the chunk in front of it ends in the older version.
    pub(crate) after: Option<u64>,
    /// Where the chunk behind it begins there.
    pub(crate) before: Option<u64>,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) block_bytes: u64,
    pub(crate) sum_bytes: u8,
    /// Also at other places than the ones guessed.
    pub(crate) is_search: bool,
    /// Of code without its fields.
    pub(crate) is_code: bool,
}

/// Bytes of the object that the older version has not as a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    /// Where a byte of it may lie: so far from its place in the object, at most four.
    shifts: Vec<i64>,
    /// Where in the older version it may be found at all.
    around: Range<u64>,
    /// It may lie elsewhere than where its samples were looked for.
    has_moved: bool,
}

/// Parts of the object that the older version has, by their first byte: where they end, and where they lie there.
pub(crate) type Found = BTreeMap<u64, (u64, u64)>;

/// One question: some blocks of some pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Question {
    pub(crate) runs: Vec<BlockRun>,
    /// The piece that each run is of.
    pieces: Vec<usize>,
    blocks: u64,
}

impl Piece {
    /// `range` of the object, which is part of `gap`.
    pub(crate) fn new(range: Range<u64>, gap: &Gap) -> Piece {
        let shift = |old: Option<u64>, at: u64| Some(old?.cast_signed() - at.cast_signed());
        let from_start = shift(gap.after, gap.range.start);
        let from_end = shift(gap.before, gap.range.end).filter(|shift| Some(*shift) != from_start);
        let len = gap.range.end - gap.range.start;
        let after = gap.after.or(gap.before.map(|before| before.saturating_sub(len))).unwrap_or(0);
        let before = gap.before.filter(|before| *before >= after).unwrap_or(after.saturating_add(len));
        // What moved far from what was next to it is not looked for in all that lies between.
        let before = before.min(after.saturating_add(len.saturating_mul(LOOKED_THROUGH_TIMES)));
        let around = after.saturating_sub(AROUND_BYTES)..before.saturating_add(AROUND_BYTES);
        Piece { range, shifts: from_start.into_iter().chain(from_end).collect(), around, has_moved: false }
    }

    /// `range` where it was found, at `old`.
    pub(crate) fn found_at(range: Range<u64>, old: u64) -> Piece {
        let shifts = vec![old.cast_signed() - range.start.cast_signed()];
        Piece { range, shifts, around: 0..0, has_moved: false }
    }

    /// What is left of it at `range`: next to what was found, it is looked for next to that.
    fn left(&self, range: Range<u64>, found: &Found) -> Piece {
        let before = found.range(..range.start).next_back().filter(|(_, (end, _))| *end == range.start);
        let behind = found.get_key_value(&range.end);
        let near = [before, behind].into_iter().flatten();
        let mut shifts: Vec<i64> =
            near.map(|(start, (_, old))| old.cast_signed() - start.cast_signed()).collect();
        shifts.dedup();
        if shifts.is_empty() {
            shifts.clone_from(&self.shifts);
        }
        let has_moved = self.has_moved || shifts.iter().any(|shift| !self.shifts.contains(shift));
        Piece { range, shifts, around: self.around.clone(), has_moved }
    }

    fn part(&self, range: Range<u64>) -> Piece {
        Piece { range, ..self.clone() }
    }

    /// As long a piece as a sample was taken of.
    fn is_long(&self) -> bool {
        self.range.end - self.range.start > SAMPLED_FROM
    }
}

/// Parts of long pieces, by which the rest of them is judged: looking closely costs a thirtieth of the bytes that it is about, and where all
/// is new nothing is found.
pub(crate) fn samples(pieces: &[Piece]) -> Vec<Piece> {
    let of_one = |piece: &Piece| {
        let starts = (piece.range.start..piece.range.end).step_by(SAMPLE_INTERVAL as usize).skip(1);
        let piece = piece.clone();
        starts.map(move |start| piece.part(start..(start + SAMPLE_BYTES).min(piece.range.end)))
    };
    pieces.iter().filter(|piece| piece.is_long()).flat_map(of_one).collect()
}

/// What to look at closely of `left`, of which samples were looked at: of a long piece none of them was found, so that only its ends are
/// worth it, unless it may lie elsewhere.
pub(crate) fn worth_a_close_look(left: Vec<Piece>) -> Vec<Piece> {
    let ends = |piece: Piece| {
        if !piece.is_long() || piece.has_moved {
            return vec![piece];
        }
        let (start, end) = (piece.range.start, piece.range.end);
        vec![piece.part(start..start + SAMPLE_BYTES), piece.part(end - SAMPLE_BYTES..end)]
    };
    left.into_iter().flat_map(ends).collect()
}

/// The questions for all whole blocks of `pieces`.
pub(crate) fn questions(round: &Round, pieces: &[Piece]) -> Vec<Question> {
    let blocks_max =
        (SUMS_BYTES_MAX as u64 / u64::from(round.sum_bytes)).min(SUMS_COVERED_BYTES_MAX / round.block_bytes);
    let mut questions = Vec::new();
    let mut question = Question::default();
    for (number, piece) in pieces.iter().enumerate() {
        let mut start = piece.range.start.div_ceil(round.block_bytes);
        let end = piece.range.end / round.block_bytes;
        while start < end {
            if question.blocks == blocks_max || question.runs.len() == SUMS_RUNS_MAX {
                questions.push(std::mem::take(&mut question));
            }
            let blocks = (end - start).min(blocks_max - question.blocks);
            // Far below 2^32: what one answer has room for.
            question.runs.push(BlockRun { start, blocks: blocks as u32 });
            question.pieces.push(number);
            question.blocks += blocks;
            start += blocks;
        }
    }
    if question.blocks > 0 {
        questions.push(question);
    }
    questions
}

/// Holds the older version against an answer; what is there goes to `found`.
pub(crate) fn compare(
    bytes: &dyn OlderBytes,
    round: &Round,
    question: &Question,
    pieces: &[Piece],
    sums: &[u8],
    found: &mut Found,
) {
    let mut sums = sums.chunks_exact(usize::from(round.sum_bytes));
    for (run, piece) in question.runs.iter().zip(&question.pieces) {
        let piece = &pieces[*piece];
        let (start, end) =
            (run.start * round.block_bytes, (run.start + u64::from(run.blocks)) * round.block_bytes);
        let places: Vec<Place> =
            piece.shifts.iter().filter_map(|shift| Place::read(bytes, *shift, start, end, round)).collect();
        let mut missing: Vec<(u64, &[u8])> = Vec::new();
        for number in run.start..run.start + u64::from(run.blocks) {
            let Some(sum) = sums.next() else { return };
            let at = number * round.block_bytes;
            let place = |place: &Place| place.old_of(at, round, sum);
            match places.iter().find_map(place) {
                Some(old) => drop(found.insert(at, (at + round.block_bytes, old))),
                None => missing.push((at, sum)),
            }
        }
        if round.is_search && !missing.is_empty() {
            search(bytes, round, &piece.around, &missing, found);
        }
    }
}

/// Where a run of blocks may lie in the older version, as far as that has it.
struct Place {
    shift: i64,
    /// Offset of `bytes` there.
    start: u64,
    bytes: Vec<u8>,
}

impl Place {
    /// Reads the place of `start..end` of the object, and of code what is around it.
    fn read(old: &dyn OlderBytes, shift: i64, start: u64, end: u64, round: &Round) -> Option<Place> {
        let (before, behind) =
            if round.is_code { (BEFORE_BYTES as i64, BEHIND_BYTES as u64) } else { (0, 0) };
        let end = end.checked_add_signed(shift)?.saturating_add(behind).min(old.size_bytes());
        let start = start.cast_signed().saturating_add(shift).saturating_sub(before).max(0).cast_unsigned();
        // At most what one question covers.
        let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
        old.read_at(start, &mut bytes).ok()?;
        Some(Place { shift, start, bytes })
    }

    /// Where the block at `at` of the object lies, if its sum is that of the bytes there.
    fn old_of(&self, at: u64, round: &Round, sum: &[u8]) -> Option<u64> {
        let old = at.checked_add_signed(self.shift)?;
        let from = usize::try_from(old.checked_sub(self.start)?).ok()?;
        let block_bytes = round.block_bytes as usize;
        let block = self.bytes.get(from..from + block_bytes)?;
        let found = if round.is_code { code_sum_of(&self.bytes, from, block_bytes) } else { sum_of(block) };
        found.starts_with(sum).then_some(old)
    }
}

/// Looks for blocks at every byte of `around` in the older version.
fn search(
    bytes: &dyn OlderBytes,
    round: &Round,
    around: &Range<u64>,
    missing: &[(u64, &[u8])],
    found: &mut Found,
) {
    let len = around.end.min(bytes.size_bytes()).saturating_sub(around.start).min(LOOKED_THROUGH_MAX);
    let block_bytes = round.block_bytes as usize;
    let mut old = vec![0; len as usize];
    if old.len() < block_bytes || bytes.read_at(around.start, &mut old).is_err() {
        return;
    }
    let prefix = |sum: &[u8]| usize::from(sum[0]) << 8 | usize::from(sum[1]);
    let mut is_wanted = vec![false; 1 << 16];
    let mut wanted: HashMap<&[u8], Vec<u64>> = HashMap::new();
    for (at, sum) in missing {
        is_wanted[prefix(sum)] = true;
        wanted.entry(sum).or_default().push(*at);
    }
    for from in (0..=old.len() - block_bytes).step_by(SEARCHED_BYTES) {
        let counts = counts(&old, from, SEARCHED_BYTES + block_bytes - 1, round);
        let mut rolling = RollingSum::of_coefficients(&counts[..block_bytes]);
        for start in 0..=counts.len() - block_bytes {
            let sum: [u8; SUM_BYTES] = rolling.sum();
            if is_wanted[prefix(&sum)]
                && let Some(blocks) = wanted.remove(&sum[..usize::from(round.sum_bytes)])
            {
                let old_at = around.start + (from + start) as u64;
                found.extend(blocks.into_iter().map(|at| (at, (at + round.block_bytes, old_at))));
                if wanted.is_empty() {
                    return;
                }
            }
            if let Some(next) = counts.get(start + block_bytes) {
                rolling.roll_coefficient(counts[start], *next);
            }
        }
    }
}

/// What each of the bytes of `old` from `from` on, `count` at most, counts in a sum.
fn counts(old: &[u8], from: usize, count: usize, round: &Round) -> Vec<u16> {
    let end = old.len().min(from + count);
    if !round.is_code {
        return old[from..end].iter().map(|byte| u16::from(*byte) + 1).collect();
    }
    let before = from.min(BEFORE_BYTES);
    let mut counts = coefficients(&old[from - before..old.len().min(end + BEHIND_BYTES)]);
    counts.truncate(before + end - from);
    counts.drain(..before);
    counts
}

/// What is left of `pieces` without what was found.
pub(crate) fn left_of(pieces: &[Piece], found: &Found) -> Vec<Piece> {
    let mut left = Vec::new();
    for piece in pieces {
        let mut at = piece.range.start;
        for (&start, &(end, _)) in found.range(piece.range.clone()) {
            if at < start {
                left.push(piece.left(at..start, found));
            }
            at = at.max(end);
        }
        if at < piece.range.end {
            left.push(piece.left(at..piece.range.end, found));
        }
    }
    left
}

/// Adds to `found` what of `more` is not part of it.
pub(crate) fn add(more: Found, found: &mut Found) {
    for (start, (end, old)) in more {
        let known = found.range(..=start).next_back().is_some_and(|(_, (known_end, _))| *known_end >= end);
        if !known {
            found.insert(start, (end, old));
        }
    }
}

/// What looking between chunks has cost so far, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Bytes that were missing, and those of them that were found.
    pub(crate) bytes: u64,
    pub(crate) found_bytes: u64,
    /// What the network brought meanwhile of what was asked for before: no time is lost in which it is as busy as it can be.
    pub(crate) came_bytes: u64,
    pub(crate) time: Duration,
    /// What was missing, and fetched without looking as that did not pay.
    pub(crate) passed_bytes: u64,
}

impl Looked {
    /// Whether to look on beside a network that brings `rate_bytes_per_s`; 0 if nobody knows yet: then what it told so far,
    /// `told_bytes_per_s`, says that it is no slower. What it brings less for the looking may be as much as was found, and this share of the
    /// rest in vain.
    pub(crate) fn pays(&self, rate_bytes_per_s: u64, told_bytes_per_s: f64) -> bool {
        if rate_bytes_per_s == 0 && self.time < UNKNOWN_MAX {
            return true;
        }
        let rate = if rate_bytes_per_s == 0 { told_bytes_per_s } else { rate_bytes_per_s as f64 };
        let in_vain_bytes = (self.bytes - self.found_bytes) / IN_VAIN_PART + self.passed_bytes / PASSED_PART;
        let worth_bytes = self.found_bytes + in_vain_bytes;
        self.time.as_secs_f64() * rate <= (worth_bytes + self.came_bytes) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(range: Range<u64>) -> Piece {
        let len = range.end - range.start;
        Piece::new(range.clone(), &Gap { range, after: Some(0), before: Some(len) })
    }

    fn sums_bytes(pieces: &[Piece]) -> u64 {
        questions(&FINE, pieces).iter().map(|question| question.blocks * u64::from(FINE.sum_bytes)).sum()
    }

    /// P7, R8: of a MiB that is new, sums of single blocks are asked of a few places and of both ends: less than a third of a hundredth
    /// of it, where all of them are a thirtieth.
    #[test]
    fn what_is_new_is_looked_at_closely_in_a_few_places() {
        let pieces = [piece(1000..(1 << 20) + 1000)];
        let samples = samples(&pieces);
        let left = worth_a_close_look(left_of(&pieces, &Found::new()));
        assert_eq!(left.len(), 2);
        assert_eq!((left[0].range.start, left[1].range.end), (1000, (1 << 20) + 1000));
        let bytes = sums_bytes(&samples) + sums_bytes(&left);
        assert!(bytes > 0 && bytes < (1 << 20) / 300, "{bytes}");
    }

    /// P6: where a sample is found, all around it is looked at closely; and so is a short piece, and one that may have moved with what is
    /// next to it.
    #[test]
    fn what_changed_here_and_there_is_looked_at_closely() {
        let pieces = [piece(0..256 << 10)];
        let places: Vec<u64> = samples(&pieces).iter().map(|sample| sample.range.start).collect();
        assert_eq!(places, (1..8).map(|place| place * SAMPLE_INTERVAL).collect::<Vec<_>>());
        let found: Found = places.iter().map(|&at| (at, (at + 64, at))).collect();
        let left = left_of(&pieces, &found);
        let found_bytes = 64 * found.len() as u64;
        let asked_of = |pieces: &[Piece]| pieces.iter().map(|it| it.range.end - it.range.start).sum::<u64>();
        assert_eq!(asked_of(&worth_a_close_look(left)), (256 << 10) - found_bytes);
        let short = [piece(0..SAMPLED_FROM)];
        assert!(samples(&short).is_empty());
        assert_eq!(asked_of(&worth_a_close_look(short.to_vec())), SAMPLED_FROM);
        // Its neighbour was found 5000 bytes further on.
        let moved = left_of(&pieces, &Found::from([(0, (1024, 5000))]));
        assert_eq!(asked_of(&worth_a_close_look(moved)), (256 << 10) - 1024);
    }

    /// P6, P7 "never slower": looking goes on where it saves more than it takes, or costs little beside a slow network; not beside a fast one
    /// where little is found.
    #[test]
    fn looking_has_to_pay() {
        let looked = |mib: u64, found_mib: u64, ms| Looked {
            bytes: mib << 20,
            found_bytes: found_mib << 20,
            came_bytes: 0,
            time: Duration::from_millis(ms),
            passed_bytes: 0,
        };
        let (slow, fast) = (1_250_000, 1_000_000_000);
        let told = 10e6;
        assert!(Looked::default().pays(0, told) && Looked::default().pays(fast, told));
        assert!(looked(16, 0, 400).pays(0, told) && !looked(16, 0, 600).pays(0, told));
        // Nothing has come yet, and much was found: a recipe that came as fast as this says enough.
        assert!(looked(13, 10, 1340).pays(0, 1e6) && !looked(13, 10, 1340).pays(0, told));
        assert!(looked(16, 14, 1000).pays(slow, told) && looked(16, 0, 1000).pays(slow, told));
        assert!(!looked(16, 0, 2000).pays(slow, told));
        // It is looked again after so much that was not looked at, and not before.
        let passed = |mib: u64| Looked { passed_bytes: mib << 20, ..looked(16, 0, 2000) };
        assert!(!passed(12).pays(slow, told) && passed(13).pays(slow, told));
        assert!(!passed(1024).pays(fast, told));
        assert!(!looked(16, 14, 600).pays(fast, told) && !looked(16, 0, 10).pays(fast, told));
        assert!(looked(16, 14, 10).pays(fast, told));
        // Sums that wait behind what was asked for before cost nothing: the network brings as much as it would without them.
        let beside = |came_mib: u64| Looked { came_bytes: came_mib << 20, ..looked(32, 8, 10_000) };
        assert!(!beside(0).pays(slow, told) && !beside(0).pays(6 * slow, told));
        assert!(beside(10).pays(slow, told) && beside(64).pays(6 * slow, told));
    }
}
