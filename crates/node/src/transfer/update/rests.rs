//! What of a group is here already, below the length of a chunk (ADR 28): the source tells sums of the blocks of what is
//! missing, the older version is compared with them between the chunks that it has, and only the rest is fetched. Sums say where to look
//! and nothing else: what is put together is held against what proves the group, and fetched whole if it is not that.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use dray_core::block_mask::{BLOCK_BYTES, BlockMask};
use dray_core::limits::{GROUP_BYTES, UPDATE_REST_PARTS_MAX, UPDATE_RESTS_MAX};
use dray_core::source::{SourceCall, SourceId};
use dray_core::{Error, ErrorKind, Result};

use super::plan::{Origin, Parts, Plan};
use super::{NODE_PATIENCE, OldBytes, OlderVersion, Transfer, interrupted, lost};
use crate::elsewhere::Finder;
use crate::lock;
use crate::looking::{
    COARSE, FAST_FROM, FINE, Found, Gap, Looked, OlderBytes, Piece, Question, Round, add, compare, left_of,
    questions, samples, worth_a_close_look,
};

/// Questions that are not answered, at most.
const QUESTIONS_MAX: usize = 8;
/// Of less of a recipe that cannot be told.
const TOLD_BYTES_MIN: u64 = 64 << 10;

/// A group that is put together from what is here and what comes.
#[derive(Clone, Debug)]
pub(in crate::transfer) struct Rest {
    /// Blocks that are here.
    pub(in crate::transfer) have: BlockMask,
    /// Bytes of those that other files have than the older version.
    pub(in crate::transfer) other_bytes: u64,
    parts: Parts,
}

/// Such groups, and where their parts are read.
#[derive(Debug)]
pub(in crate::transfer) struct Rests {
    bytes: OldBytes,
    groups: HashMap<u64, Rest>,
    /// Of all of them.
    parts: usize,
}

impl Rests {
    /// None yet, whose parts are read in `bytes`.
    pub(super) fn of(bytes: OldBytes) -> Rests {
        Rests { bytes, groups: HashMap::new(), parts: 0 }
    }

    /// Blocks of `group` that are here, if there are any.
    pub(in crate::transfer) fn have(&self, group: u64) -> Option<BlockMask> {
        self.groups.get(&group).map(|rest| rest.have)
    }

    /// The group turned out to be something else, or is here.
    pub(in crate::transfer) fn forget(&mut self, group: u64) {
        self.parts -= self.groups.remove(&group).map_or(0, |rest| rest.parts.len());
    }

    /// Remembers a group of which something is here, if there is room; true if it is one.
    pub(super) fn add(&mut self, group: u64, group_bytes: usize, parts: Parts) -> bool {
        let have = mask(&parts, group_bytes);
        let has_room =
            self.groups.len() < UPDATE_RESTS_MAX && self.parts + parts.len() <= UPDATE_REST_PARTS_MAX;
        if have.is_empty() || !has_room {
            return false;
        }
        self.forget(group);
        self.parts += parts.len();
        let other_bytes = other_bytes(&parts, &have, group_bytes);
        self.groups.insert(group, Rest { have, other_bytes, parts });
        true
    }

    /// What is here of `group`, and where that is read: without whatever lock `self` is behind.
    pub(in crate::transfer) fn rest(&self, group: u64) -> Option<(Rest, OldBytes)> {
        Some((self.groups.get(&group)?.clone(), self.bytes.clone()))
    }
}

impl Rest {
    /// The whole of the group, `group_bytes` long, of which `came` came; `None` if that is not what was lacking. What cannot be read in `here`
    /// is zero, and shows in what proves the group.
    pub(in crate::transfer) fn put_together(
        &self,
        here: &OldBytes,
        group_bytes: usize,
        came: &[u8],
    ) -> Option<Vec<u8>> {
        let mut bytes = vec![0; group_bytes];
        let mut at = 0;
        for (len, origin) in &self.parts {
            let part = bytes.get_mut(at..at + *len as usize)?;
            at += *len as usize;
            match origin {
                Origin::Old(offset) => drop(here.read_at(*offset, part)),
                Origin::Elsewhere(spot) => drop(here.read_elsewhere(*spot, part)),
                Origin::New(_) | Origin::Missing => {}
            }
        }
        let mut came = came;
        for range in self.have.rest(group_bytes) {
            let (next, tail) = came.split_at_checked(range.len())?;
            bytes[range].copy_from_slice(next);
            came = tail;
        }
        came.is_empty().then_some(bytes)
    }
}

impl Transfer {
    /// Wants the groups that were held back: the rests of those of which the older version has something, also between chunks if the source tells
    /// sums, and the others whole. `told` is how many bytes of the recipe came, and in what time.
    pub(super) fn want_rests(
        &self,
        old: &OlderVersion,
        plan: &mut Plan<'_>,
        told: (u64, Duration),
        looked: &mut Looked,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let (mut lacking, gaps) = plan.take_lacking();
        if lacking.is_empty() {
            return Ok(());
        }
        let asks_sums = self.is_vouched();
        for (_, parts) in &mut lacking {
            *parts = told_to_the_sender(parts, asks_sums, old.tells_disk);
        }
        // While it was looked, nobody asked for more of the recipe.
        let told_time = told.1.saturating_sub(looked.time);
        let told_rate = told.0 as f64 / told_time.as_secs_f64().max(f64::MIN_POSITIVE);
        let is_fast = told.0 >= TOLD_BYTES_MIN && told_rate >= FAST_FROM;
        let rate = self.rate_bytes_per_s();
        let pays = looked.pays(rate, told_rate);
        let found = if is_fast || !pays && rate as f64 >= FAST_FROM {
            Err(Error::new(ErrorKind::Unsupported, "looking would take longer than fetching"))
        } else if !asks_sums {
            Ok(Found::new())
        } else if pays {
            self.look_between(old, &lacking, &gaps, looked, over)
        } else {
            // What the chunks tell is known all the same.
            looked.passed_bytes += bytes_of(&pieces(&lacking, &gaps));
            Ok(Found::new())
        };
        if found.is_err() {
            plan.hold_nothing_back();
        }
        if let Ok(found) = &found {
            self.remember_rests(old, &lacking, found);
        }
        lacking.iter().for_each(|(group, _)| plan.want_group(*group));
        plan.tell();
        // Without sums everything can be had all the same; only the end of all ends this, too.
        match found {
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes what need not come of the groups, before they are asked for.
    fn remember_rests(&self, old: &OlderVersion, lacking: &[(u64, Parts)], found: &Found) {
        let mut rests = lock(&self.rests);
        let known = rests.get_or_insert_with(|| Rests::of(old.bytes()));
        let mut planner = lock(&self.planner);
        for (group, parts) in lacking {
            let parts = fill_in(group * GROUP_BYTES, parts, found);
            if known.add(*group, self.geometry.group_bytes(*group), parts) {
                planner.ask_alone(*group);
            }
        }
    }

    /// Compares the older version with sums of what is missing, twice: roughly, and closely where it differs, if samples show that something
    /// may be found there.
    fn look_between(
        &self,
        old: &OlderVersion,
        lacking: &[(u64, Parts)],
        gaps: &[Gap],
        looked: &mut Looked,
        over: &dyn Fn() -> bool,
    ) -> Result<Found> {
        let (source, _) = self.best_source(&[]).ok_or_else(lost)?;
        let (bytes, begun, came_before) = (old.bytes(), Instant::now(), self.came_bytes());
        let mut found = Found::new();
        let pieces = pieces(lacking, gaps);
        looked.bytes += bytes_of(&pieces);
        let samples = samples(&pieces);
        self.compare_sums(source, &bytes, &[(COARSE, &pieces[..]), (FINE, &samples[..])], &mut found, over)?;
        let left = worth_a_close_look(left_of(&pieces, &found));
        self.compare_sums(source, &bytes, &[(FINE, &left[..])], &mut found, over)?;
        looked.found_bytes += found.iter().map(|(start, (end, _))| end - start).sum::<u64>();
        looked.came_bytes += self.came_bytes().saturating_sub(came_before);
        looked.time += begun.elapsed();
        Ok(found)
    }

    /// What all sources have brought so far, in the unit of [`Transfer::rate_bytes_per_s`].
    fn came_bytes(&self) -> u64 {
        self.stats().iter().map(|source| source.delivered_bytes).sum()
    }

    /// What the fastest source brings; 0 until it is measured.
    pub(super) fn rate_bytes_per_s(&self) -> u64 {
        lock(&self.planner).stats().iter().map(|source| source.rate_bytes_per_s).max().unwrap_or(0)
    }

    /// Some looks at once, the roughest first: adds to `found` what is equal.
    fn compare_sums(
        &self,
        source: SourceId,
        bytes: &OldBytes,
        looks: &[(Round, &[Piece])],
        found: &mut Found,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        // Each turn has numbers of its own.
        let turn = u32::from(looks.len() == 1);
        let questions = looks.iter().enumerate().flat_map(|(at, (round, pieces))| {
            questions(round, pieces).into_iter().map(move |question| (at, question))
        });
        let mut questions = (0..).map(|number| number << 1 | turn).zip(questions);
        let mut asked: HashMap<u32, (usize, Question)> = HashMap::new();
        let mut of_looks = vec![Found::new(); looks.len()];
        let mut heard = Instant::now();
        loop {
            while asked.len() < QUESTIONS_MAX
                && let Some((number, (at, question))) = questions.next()
            {
                self.ask_for_sums(source, number, &looks[at].0, &question)?;
                asked.insert(number, (at, question));
            }
            if asked.is_empty() {
                break;
            }
            if over() {
                return Err(interrupted());
            }
            if heard.elapsed() >= NODE_PATIENCE || !self.is_promising(source) {
                return Err(lost());
            }
            for (number, sums) in self.await_sums() {
                let Some((at, question)) = asked.remove(&number) else { continue };
                let sums =
                    sums.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the sender tells no sums"))?;
                let (round, pieces) = &looks[at];
                compare(bytes, round, &question, pieces, &sums, &mut of_looks[at]);
                heard = Instant::now();
            }
        }
        of_looks.into_iter().for_each(|more| add(more, found));
        Ok(())
    }

    fn ask_for_sums(&self, id: SourceId, number: u32, round: &Round, question: &Question) -> Result<()> {
        let source = lock(&self.sources).get(&id).cloned().ok_or_else(lost)?;
        source.call(SourceCall::Sums {
            number,
            block_bytes: round.block_bytes as u32,
            sum_bytes: round.sum_bytes,
            runs: question.runs.clone(),
        });
        Ok(())
    }

    /// Answers that have come; waits a moment for one.
    fn await_sums(&self) -> Vec<(u32, Option<Vec<u8>>)> {
        let mut state = lock(&self.state);
        if state.sums.is_empty() {
            state = self.await_change(state, Duration::from_millis(100));
        }
        std::mem::take(&mut state.sums)
    }
}

/// The same without what the sender is not to hear of. One with a login (`has_login`) hears what a search of the disk found only if it may read that
/// (`tells_disk`); a ticket's holder hears it, as the user named the directory for this object, but never what the index knows, whoever read
/// that.
pub(super) fn told_to_the_sender(parts: &Parts, has_login: bool, tells_disk: bool) -> Parts {
    let tells = |finder| match finder {
        Finder::Index => has_login,
        Finder::Disk => tells_disk || !has_login,
        Finder::Cached => tells_disk && has_login,
    };
    let mut known: Parts = Vec::new();
    for (len, origin) in parts {
        let origin = match origin {
            Origin::Elsewhere(spot) if !tells(spot.by) => Origin::Missing,
            origin => *origin,
        };
        match known.last_mut() {
            Some((before, last)) if last.after(u64::from(*before)) == origin => *before += len,
            _ => known.push((*len, origin)),
        }
    }
    known
}

/// Of all of them.
fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.range.end - piece.range.start).sum()
}

/// What is missing of the groups, where it lies between chunks of the older version.
fn pieces(lacking: &[(u64, Parts)], gaps: &[Gap]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut gaps = gaps.iter().peekable();
    let mut last_gap = None;
    for (group, parts) in lacking {
        let mut at = group * GROUP_BYTES;
        for (len, origin) in parts {
            let range = at..at + u64::from(*len);
            at = range.end;
            if !matches!(origin, Origin::Missing | Origin::New(_)) {
                continue;
            }
            while gaps.next_if(|gap| gap.range.end <= range.start).is_some() {}
            let mut around = gaps.clone();
            while let Some(gap) = around.next_if(|gap| gap.range.start < range.end) {
                let within = range.start.max(gap.range.start)..range.end.min(gap.range.end);
                let goes_on = last_gap.replace(gap.range.start) == Some(gap.range.start);
                match pieces.last_mut() {
                    Some(last) if goes_on && last.range.end == within.start => last.range.end = within.end,
                    _ => pieces.push(Piece::new(within, gap)),
                }
            }
        }
    }
    pieces
}

/// `parts` from `offset` on, with what was found in the place of what was missing.
fn fill_in(offset: u64, parts: &Parts, found: &Found) -> Parts {
    let mut filled: Parts = Vec::new();
    let mut push = |len: u64, origin: Origin| match filled.last_mut() {
        _ if len == 0 => {}
        Some((before, last)) if last.after(u64::from(*before)) == origin => *before += len as u32,
        _ => filled.push((len as u32, origin)),
    };
    let mut at = offset;
    for (len, origin) in parts {
        let end = at + u64::from(*len);
        if !matches!(origin, Origin::Missing | Origin::New(_)) {
            push(u64::from(*len), *origin);
            at = end;
            continue;
        }
        for (&start, &(stop, old)) in found.range(at.saturating_sub(COARSE.block_bytes)..end) {
            let (from, to) = (start.max(at), stop.min(end));
            if from < to {
                push(from - at, Origin::Missing);
                push(to - from, Origin::Old(old + (from - start)));
                at = to;
            }
        }
        push(end - at, Origin::Missing);
        at = end;
    }
    filled
}

/// Bytes of the blocks in `have` that lie in other files.
fn other_bytes(parts: &Parts, have: &BlockMask, group_bytes: usize) -> u64 {
    let come: Vec<Range<usize>> = have.rest(group_bytes).collect();
    let mut at = 0;
    let of_part = |(len, origin): &(u32, Origin)| {
        let (start, end) = (at, at + *len as usize);
        at = end;
        let within = |range: &Range<usize>| range.end.min(end).saturating_sub(range.start.max(start));
        let comes = || come.iter().map(within).sum::<usize>();
        if matches!(origin, Origin::Elsewhere(_)) { end - start - comes() } else { 0 }
    };
    parts.iter().map(of_part).sum::<usize>() as u64
}

/// The blocks of which all is here.
pub(super) fn mask(parts: &Parts, group_bytes: usize) -> BlockMask {
    let mut have = BlockMask::default();
    let (mut at, mut here_since) = (0, None);
    let mut mark = |since: usize, end: usize| {
        let last = if end == group_bytes { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
        (since.div_ceil(BLOCK_BYTES)..last).for_each(|block| have.insert(block));
    };
    for (len, origin) in parts {
        match origin {
            Origin::Old(_) | Origin::Elsewhere(_) => drop(here_since.get_or_insert(at)),
            Origin::New(_) | Origin::Missing => {
                if let Some(since) = here_since.take() {
                    mark(since, at);
                }
            }
        }
        at += *len as usize;
    }
    if let Some(since) = here_since {
        mark(since, at);
    }
    have
}
