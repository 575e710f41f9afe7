//! The receiving side of a tree copy: takes entries in order, asks for contents over paths, and takes only what it asked for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dray_core::Result;
use dray_core::block_mask::Have;
use dray_core::limits::{
    TREE_BATCHES_MAX, TREE_CUT_PULLS_MAX, TREE_CUTS_MAX, TREE_PART_BYTES, TREE_PARTS_MAX,
    TREE_PULL_BLOCK_RUNS_MAX, TREE_PULL_RESTS_MAX, TREE_PULL_RUNS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{BlockSums, Entries, Part, Pull, Run};
use dray_core::tree::{Item, Order, Record, Step, chunks_max, decode_chunks, take_record};

use super::protocol;

/// The way over which a content is asked for: the channel of the copy, or a direct connection beside it.
pub type PathId = Option<u32>;

/// A content that is to be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wish {
    number: u64,
    known: Option<[u8; 32]>,
    /// Bytes that it is thought to have.
    bytes: u64,
    shape: Shape,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Shape {
    Whole,
    Part(Part),
    /// Of these parts of it what the receiver has not; one at least.
    Rests(VecDeque<Rest>),
    /// These parts of it, none of them empty, each in pieces of `part_bytes` at most.
    These {
        parts: VecDeque<Part>,
        part_bytes: u64,
    },
    /// The rest of it from `start` on, in parts of `part_bytes`.
    Parts {
        start: u64,
        part_bytes: u64,
        /// Bytes of the first part.
        least_bytes: u64,
    },
}

/// A part of a content, of 64 KiB at most, and what of its blocks need not come.
pub type Rest = (Part, Arc<Have>);

/// Masks that a message has for it.
fn masks((_, have): &Rest) -> usize {
    1 + usize::from(!have.code.is_empty())
}

/// Of a block of code of which only fields come, so many bytes are expected.
const FIELDS_PART: u64 = 5;

/// Bytes of a part that come, as far as that is known.
fn rest_bytes(part: &Part, have: Option<&Have>) -> u64 {
    let Some(have) = have else { return part.bytes };
    let bytes = come_bytes(part, have);
    bytes.start + (bytes.end - bytes.start) / FIELDS_PART
}

/// Bytes of the rest of a part that may come. Only of code it is not known how many they are.
fn come_bytes(part: &Part, have: &Have) -> std::ops::Range<u64> {
    // A part with a mask is no longer than one reaches.
    let bytes = have.rest_bytes(usize::try_from(part.bytes).unwrap_or(usize::MAX));
    bytes.start as u64..bytes.end as u64
}

/// A cut that is to be asked for, or sums.
#[derive(Clone, PartialEq, Eq, Debug)]
struct CutWish {
    number: u64,
    asked: Asked,
    known: Option<[u8; 32]>,
    /// It may wait for others.
    may_wait: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    Cut { part: Part, average_bytes: u32 },
    Sums(Box<BlockSums>),
}

impl Asked {
    /// Runs of blocks that it names.
    fn block_runs(&self) -> usize {
        if let Asked::Sums(sums) = self { sums.runs.len() } else { 0 }
    }
}

/// A content that was asked for and has not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Number of the entry.
    pub number: u64,
    /// Not all of it.
    pub part: Option<Part>,
    /// Bytes that it is thought to have.
    pub bytes: u64,
    /// Not its bytes, but its chunks, of this average length.
    pub cut: Option<u32>,
    /// Not its bytes, but so many bytes of sums.
    pub sums: Option<u64>,
    /// What of the part need not come.
    pub have: Option<Arc<Have>>,
    /// It counts no more ([`TreeReceiver::void`]), and is to be passed over.
    pub is_void: bool,
    /// The hash that was named, which a sender that finds the content to have it need not say.
    known: Option<[u8; 32]>,
    /// What its chunks and holes came to, and how many they are; or what came of sums, or of a rest.
    came: u64,
    pieces: u64,
    request: u32,
    /// What of it weighs on its path: less with each byte that comes.
    weight: u64,
}

impl Wanted {
    /// What nothing has come of yet, and nobody was asked for.
    fn new(number: u64, part: Option<Part>, bytes: u64, weight: u64) -> Wanted {
        Wanted {
            number,
            part,
            bytes,
            cut: None,
            sums: None,
            have: None,
            is_void: false,
            known: None,
            came: 0,
            pieces: 0,
            request: 0,
            weight,
        }
    }

    /// So many more bytes came of `all`.
    fn came_of(&mut self, bytes: usize, all: u64) -> Result<()> {
        self.came += bytes as u64;
        if self.came > all { Err(protocol("sender sent more than was asked for")) } else { Ok(()) }
    }

    /// Holds the next record to `all` bytes of sums.
    fn check_sums(&mut self, record: &Record<'_>, all: u64) -> Result<()> {
        match record {
            Record::Sums(sums) => self.came_of(sums.len(), all),
            Record::Done(_) if self.came != all => Err(protocol("sender ended its sums before the last")),
            Record::Done(_) | Record::Failed(_) => Ok(()),
            _ => Err(protocol("sender sent something else where sums were asked for")),
        }
    }

    /// Holds the next record to the rest of a part.
    fn check_rest(&mut self, record: &Record<'_>, all: &std::ops::Range<u64>) -> Result<()> {
        match record {
            Record::Bytes(bytes) => self.came_of(bytes.len(), all.end),
            Record::Done(_) if self.came < all.start => Err(protocol("sender ended a part before its end")),
            Record::Done(_) | Record::Failed(_) => Ok(()),
            _ => Err(protocol("sender sent something else than the rest of a part")),
        }
    }

    /// Holds the next record of its answer to what was asked.
    fn check(&mut self, record: &Record<'_>) -> Result<()> {
        if let Some(all) = self.sums {
            return self.check_sums(record, all);
        }
        if let (Some(part), Some(have)) = (self.part, &self.have) {
            let all = come_bytes(&part, have);
            return self.check_rest(record, &all);
        }
        let Some((average_bytes, part)) = self.cut.zip(self.part) else {
            return match record {
                Record::Chunks(_) => Err(protocol("sender sent chunks that were not asked for")),
                Record::Sums(_) => Err(protocol("sender sent sums that were not asked for")),
                _ => Ok(()),
            };
        };
        let came = match record {
            Record::Chunks(chunks) => decode_chunks(chunks)
                .fold((0, 0), |(bytes, count), chunk| (bytes + u64::from(chunk.len), count + 1)),
            Record::Hole(len) => (*len, 1),
            Record::Done(_) if self.came != part.bytes => {
                return Err(protocol("sender ended the chunks of a part before its end"));
            }
            Record::Done(_) | Record::Same(_) | Record::Failed(_) => (0, 0),
            Record::Bytes(_) | Record::Again | Record::Sums(_) => {
                return Err(protocol("sender sent bytes where chunks were asked for"));
            }
        };
        // Both are far below what could overflow.
        self.came += came.0;
        self.pieces += came.1;
        if self.came > part.bytes || self.pieces > chunks_max(part.bytes, average_bytes) {
            return Err(protocol("sender sent more chunks than the part can have"));
        }
        Ok(())
    }
}

/// Whether answers need not repeat hashes: where one is named.
fn briefly(runs: &[Run]) -> Option<bool> {
    runs.iter().any(|run| run.known.is_some()).then_some(true)
}

/// Takes `bytes` off the front of what is wanted; true if something is left.
fn has_more(parts: &mut VecDeque<Part>, bytes: u64) -> bool {
    if let Some(first) = parts.front_mut() {
        first.start += bytes;
        first.bytes -= bytes.min(first.bytes);
        if first.bytes == 0 {
            parts.pop_front();
        }
    }
    !parts.is_empty()
}

/// What was asked for over one path.
#[derive(Debug, Default)]
struct Path {
    /// In the order asked.
    wanted: VecDeque<Wanted>,
    /// Requests whose end has not come.
    open: VecDeque<u32>,
    /// What they weigh.
    weight: u64,
}

/// What a content costs beside its bytes, in bytes: opening, hashing, naming it.
const CONTENT_WEIGHT: u64 = 4096;
/// What one that is only to be compared weighs at most.
const KNOWN_WEIGHT_MAX: u64 = 64 * 1024;

pub(super) fn weight(bytes: u64, is_known: bool) -> u64 {
    let bytes = if is_known { bytes.min(KNOWN_WEIGHT_MAX) } else { bytes };
    bytes.saturating_add(CONTENT_WEIGHT)
}

/// Entries that are settled with a message of their own, if nothing else is to be said.
const SETTLED_STEP: u64 = 256;

/// How many bytes a part of a file of `size_bytes` has.
pub fn part_bytes(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(TREE_PARTS_MAX).next_multiple_of(1 << 20).max(TREE_PART_BYTES)
}

/// The receiving side: takes entries in order, asks for contents, and takes only what it asked for.
#[derive(Debug)]
pub struct TreeReceiver {
    order: Order,
    granted: u64,
    came: u64,
    is_told: bool,
    has_digests: bool,
    settled: u64,
    requests: u32,
    paths: BTreeMap<PathId, Path>,
    wishes: VecDeque<Wish>,
    /// Cuts to be asked for, and what was asked for of them.
    cut_wishes: VecDeque<CutWish>,
    cuts: Path,
    /// Those that are to be asked for over the channel of the copy, each by itself, and the request of the one that was.
    alone: VecDeque<Wish>,
    alone_request: u32,
    /// How many wishes there are of each entry. They stand in no order: what was lost is asked for first, and names of hard links late.
    waiting: BTreeMap<u64, u32>,
    /// Paths that the sender is to hear of as lost.
    lost: VecDeque<u32>,
}

impl TreeReceiver {
    /// For as many trees as there are sources.
    pub fn new(sources: usize) -> TreeReceiver {
        TreeReceiver {
            order: Order::new(sources),
            granted: TREE_BATCHES_MAX.into(),
            came: 0,
            is_told: false,
            has_digests: false,
            settled: 0,
            requests: 0,
            paths: BTreeMap::from([(None, Path::default())]),
            wishes: VecDeque::new(),
            cut_wishes: VecDeque::new(),
            cuts: Path::default(),
            alone: VecDeque::new(),
            alone_request: 0,
            waiting: BTreeMap::new(),
            lost: VecDeque::new(),
        }
    }

    /// A batch came. Each item is to be given to [`TreeReceiver::accept`] in turn.
    pub fn handle_entries(&mut self, entries: &Entries) -> Result<()> {
        if self.came >= self.granted || self.is_told {
            return Err(protocol("sender told more entries than it was granted"));
        }
        self.came += 1;
        self.is_told = entries.is_last;
        Ok(())
    }

    /// Digests came: once, and before any entry.
    pub fn handle_digests(&mut self) -> Result<()> {
        if self.came > 0 || std::mem::replace(&mut self.has_digests, true) {
            return Err(protocol("sender told digests twice, or after entries"));
        }
        Ok(())
    }

    /// Decodes an item and says where it stands, and its number if it is an entry.
    pub fn accept(&mut self, item: &[u8]) -> Result<(Item, Step, u64)> {
        let item = Item::from_bytes(item)?;
        let number = self.order.entries();
        let step = self.order.accept(&item)?;
        Ok((item, step, number))
    }

    /// Wants the content of entry `number`, of `bytes`, unless it hashes to `known`. It is asked for with one of the next pulls.
    pub fn want(&mut self, number: u64, known: Option<[u8; 32]>, bytes: u64) {
        let wish = Wish { number, known, bytes, shape: Shape::Whole };
        self.wishes.push_back(wish);
        *self.waiting.entry(number).or_default() += 1;
    }

    /// Wants the content of entry `number`, of `bytes`, in parts of `part_bytes`.
    pub fn want_parts(&mut self, number: u64, bytes: u64, part_bytes: u64) {
        self.want(number, None, bytes);
        if let Some(last) = self.wishes.back_mut() {
            last.shape = Shape::Parts { start: 0, part_bytes, least_bytes: part_bytes };
        }
    }

    /// Wants these parts of entry `number`, of which there is one at least and none is empty.
    pub fn want_these(&mut self, number: u64, parts: VecDeque<Part>, part_bytes: u64) {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        self.want(number, None, bytes);
        if let Some(last) = self.wishes.back_mut() {
            last.shape = Shape::These { parts, part_bytes };
        }
    }

    /// Wants what is missing of these parts of entry `number`; of one at least.
    pub fn want_rests(&mut self, number: u64, rests: VecDeque<Rest>) {
        let bytes = rests.iter().map(|(part, have)| rest_bytes(part, Some(have))).sum();
        self.want(number, None, bytes);
        if let Some(last) = self.wishes.back_mut() {
            last.shape = Shape::Rests(rests);
        }
    }

    /// Wants a part of entry `number` before everything else: of what came it is not known what is wrong.
    pub fn want_part_again(&mut self, number: u64, part: Part) {
        *self.waiting.entry(number).or_default() += 1;
        self.wishes.push_front(Wish { number, known: None, bytes: part.bytes, shape: Shape::Part(part) });
    }

    /// Wants sums of blocks of entry `number`.
    pub fn want_sums(&mut self, number: u64, sums: BlockSums) {
        let asked = Asked::Sums(Box::new(sums));
        self.cut_wishes.push_back(CutWish { number, asked, known: None, may_wait: false });
    }

    /// Wants to know how `part` of entry `number` is cut into chunks of this average length, unless it hashes to `known`.
    pub fn want_cut(&mut self, number: u64, part: Part, average_bytes: u32, known: Option<[u8; 32]>) {
        let asked = Asked::Cut { part, average_bytes };
        self.cut_wishes.push_back(CutWish { number, asked, known, may_wait: false });
    }

    /// The question that was wanted last may wait for others: it is likely that the content is what is known.
    pub fn last_cut_may_wait(&mut self) {
        if let Some(last) = self.cut_wishes.back_mut() {
            last.may_wait = true;
        }
    }

    /// How many questions how files are cut are to be asked, if there are any and each may wait for others.
    pub fn cuts_that_may_wait(&self) -> Option<usize> {
        let may_wait = !self.cut_wishes.is_empty() && self.cut_wishes.iter().all(|wish| wish.may_wait);
        may_wait.then_some(self.cut_wishes.len())
    }

    /// A part of entry `number` came: if it had no bytes, being all hole, the next one is asked for twice as large, so that a file that is
    /// nearly all hole takes few round trips; else as large as the first.
    pub fn came_part(&mut self, number: u64, is_hole: bool) {
        let wish = self.wishes.iter_mut().find(|wish| wish.number == number);
        if let Some(Wish { shape: Shape::Parts { part_bytes, least_bytes, .. }, .. }) = wish {
            *part_bytes = if is_hole { part_bytes.saturating_mul(2) } else { *least_bytes };
        }
    }

    /// Wants what was lost with its path again, before everything else.
    pub fn want_again(&mut self, lost: &Wanted, known: Option<[u8; 32]>) {
        let wish = self.again(lost, known);
        self.wishes.push_front(wish);
    }

    /// Wants what was lost with its path again, over the channel of the copy and by itself: perhaps it cannot be had at all.
    pub fn want_alone(&mut self, lost: &Wanted, known: Option<[u8; 32]>) {
        let wish = self.again(lost, known);
        self.alone.push_back(wish);
    }

    fn again(&mut self, lost: &Wanted, known: Option<[u8; 32]>) -> Wish {
        *self.waiting.entry(lost.number).or_default() += 1;
        let shape = match (lost.part, &lost.have) {
            (Some(part), Some(have)) => Shape::Rests(VecDeque::from([(part, have.clone())])),
            (Some(part), None) => Shape::Part(part),
            (None, _) => Shape::Whole,
        };
        Wish { number: lost.number, known, bytes: lost.bytes, shape }
    }

    /// No part of entry `number` is asked for any more, nor how it is cut.
    pub fn forget(&mut self, number: u64) {
        self.cut_wishes.retain(|wish| wish.number != number);
        if self.waiting.remove(&number).is_some() {
            self.wishes.retain(|wish| wish.number != number);
            self.alone.retain(|wish| wish.number != number);
        }
    }

    /// As [`TreeReceiver::forget`]; and what was asked for of entry `number` counts no more either: it may be asked for in another way
    /// now, and an answer to what was asked before is none to that.
    pub fn void(&mut self, number: u64) {
        self.forget(number);
        for wanted in self.paths.values_mut().flat_map(|path| &mut path.wanted) {
            wanted.is_void |= wanted.number == number;
        }
    }

    /// Contents under way, those that wait for a pull included.
    pub fn under_way(&self) -> u64 {
        let wanted: usize = self.paths.values().map(|path| path.wanted.len()).sum();
        (wanted + self.wishes.len() + self.alone.len() + self.cut_wishes.len() + self.cuts.wanted.len())
            as u64
    }

    /// True if something waits for a pull over any path.
    pub fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// True if something waits for a pull by itself (see [`TreeReceiver::want_alone`]); the next one over the channel of the copy has it.
    pub fn has_alone(&self) -> bool {
        !self.alone.is_empty()
    }

    /// True if something was asked for by itself, and is not answered.
    pub fn owes_alone(&self) -> bool {
        self.alone_request != 0
            && self.paths.get(&None).is_some_and(|path| path.open.contains(&self.alone_request))
    }

    /// Pulls under way over `path`.
    pub fn pulls(&self, path: PathId) -> usize {
        self.paths.get(&path).map_or(0, |path| path.open.len())
    }

    /// What is owed over `path`, in bytes; small files count for more than they have.
    pub fn weight(&self, path: PathId) -> u64 {
        self.paths.get(&path).map_or(0, |path| path.weight)
    }

    /// True if anything is owed over any path.
    pub fn owes(&self) -> bool {
        self.paths.values().any(|path| path.weight > 0)
    }

    /// Contents may be asked for over this direct connection.
    pub fn open(&mut self, lane: u32) {
        self.paths.entry(Some(lane)).or_default();
    }

    /// A direct connection is lost: what it owed, in the order asked, with what was coming first.
    pub fn lose(&mut self, lane: u32) -> VecDeque<Wanted> {
        let Some(path) = self.paths.remove(&Some(lane)) else { return VecDeque::new() };
        self.lost.push_back(lane);
        path.wanted
    }

    /// What to say to the sender when every entry so far is decided, but for those from `undecided` on that may still be asked
    /// for, and `ahead` more batches are to come; contents up to `room` (see [`TreeReceiver::weight`]) are asked for over
    /// `path`. `None` if it would say nothing new.
    pub fn pull(&mut self, path: PathId, room: u64, ahead: u64, undecided: Option<u64>) -> Option<Pull> {
        let batches = (self.came + ahead).max(self.granted);
        let alone = if path.is_none() && room > 0 { self.run_alone() } else { None };
        let is_alone = alone.is_some();
        let (runs, wanted) = alone.unwrap_or_else(|| self.runs(room));
        let waiting = self.waiting.keys().next().copied();
        let first = waiting.into_iter().chain(undecided).min();
        let settled = first.unwrap_or(self.order.entries()).max(self.settled);
        // Where contents come in any order, each would move it a little.
        let is_step =
            settled >= self.settled + SETTLED_STEP || undecided.is_none() || settled == self.order.entries();
        let is_settling = !self.is_told && settled != self.settled && is_step;
        let lost = self.lost.pop_front();
        if runs.is_empty() && batches == self.granted && !is_settling && lost.is_none() {
            return None;
        }
        let mut request = 0;
        if !runs.is_empty() {
            request = self.next_request();
        }
        if let Some(path) = self.paths.get_mut(&path).filter(|_| !runs.is_empty()) {
            if is_alone {
                self.alone_request = request;
            }
            path.open.push_back(request);
            for wanted in wanted {
                path.weight = path.weight.saturating_add(wanted.weight);
                path.wanted.push_back(Wanted { request, ..wanted });
            }
        }
        (self.settled, self.granted) = (settled, batches);
        let brief = briefly(&runs);
        Some(Pull { request, runs, settled, batches, lane: path, lost, brief, pack: None })
    }

    /// The next question how files are cut, if one may be asked. It settles and grants nothing.
    pub fn pull_cuts(&mut self) -> Option<Pull> {
        let room = TREE_CUTS_MAX.saturating_sub(self.cuts.wanted.len()).min(TREE_PULL_RUNS_MAX);
        let mut block_runs = 0;
        let has_room = |wish: &&CutWish| {
            block_runs += wish.asked.block_runs();
            block_runs <= TREE_PULL_BLOCK_RUNS_MAX
        };
        let count = self.cut_wishes.iter().take(room).take_while(has_room).count();
        // The sender may count one as open whose end is on its way.
        if count == 0 || self.cuts.open.len() >= TREE_CUT_PULLS_MAX / 2 {
            return None;
        }
        let request = self.next_request();
        self.cuts.open.push_back(request);
        let mut runs = Vec::with_capacity(count);
        for wish in self.cut_wishes.drain(..count) {
            let number = wish.number;
            let run = Run { first: number, count: 1, known: wish.known.map(Into::into), ..Run::default() };
            let (run, wanted) = match wish.asked {
                Asked::Cut { part, average_bytes } => {
                    let (bytes, part, cut) = (part.bytes, Some(part), Some(average_bytes));
                    (Run { part, cut, ..run }, Wanted { cut, ..Wanted::new(number, part, bytes, 0) })
                }
                Asked::Sums(sums) => {
                    let all = sums.answer_bytes();
                    let wanted = Wanted { sums: Some(all), ..Wanted::new(number, None, all, 0) };
                    (Run { sums: Some(sums), ..run }, wanted)
                }
            };
            runs.push(run);
            self.cuts.wanted.push_back(Wanted { request, known: wish.known, ..wanted });
        }
        let brief = briefly(&runs);
        Some(Pull { request, runs, brief, ..self.nothing_new() })
    }

    /// Says whether what comes over `path` may be packed, and nothing else.
    pub fn permit(&self, path: PathId, may: bool) -> Pull {
        Pull { lane: path, pack: Some(may), ..self.nothing_new() }
    }

    /// Asks, settles and grants nothing.
    fn nothing_new(&self) -> Pull {
        let (settled, batches) = (self.settled, self.granted);
        Pull { settled, batches, ..Pull::default() }
    }

    /// Never 0; and never the number of one that is open, of which there are few.
    fn next_request(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1).max(1);
        self.requests
    }

    /// What `request` is one of, whose answer came over `path`.
    fn path_of(&mut self, path: PathId, request: u32) -> Option<&mut Path> {
        if path.is_none() && self.cuts.open.front() == Some(&request) {
            return Some(&mut self.cuts);
        }
        self.paths.get_mut(&path)
    }

    /// Takes the wish that is to be asked for by itself, if there is one.
    fn run_alone(&mut self) -> Option<(Vec<Run>, Vec<Wanted>)> {
        let Wish { number, known, bytes, shape } = self.alone.pop_front()?;
        self.asked(number);
        let (part, have) = match shape {
            Shape::Part(part) => (Some(part), None),
            Shape::Rests(mut rests) => rests.pop_front().unzip(),
            _ => (None, None),
        };
        let known_to_tell = known.map(Into::into);
        let run = Run { first: number, count: 1, known: known_to_tell, part, ..Run::default() };
        let run = match have.as_deref() {
            Some(have) => run.with(have),
            None => run,
        };
        let weight = weight(bytes, known.is_some());
        Some((vec![run], vec![Wanted { have, known, ..Wanted::new(number, part, bytes, weight) }]))
    }

    /// A wish of entry `number` is none any more.
    fn asked(&mut self, number: u64) {
        if let Some(count) = self.waiting.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&number);
            }
        }
    }

    /// Takes wishes of so much weight, one at least if there is any room.
    fn runs(&mut self, mut room: u64) -> (Vec<Run>, Vec<Wanted>) {
        let (mut runs, mut wanted): (Vec<Run>, Vec<Wanted>) = Default::default();
        let mut rests = 0;
        let owed: usize = self.paths.values().map(|path| path.wanted.len()).sum();
        // What was asked for in several pieces counts as often, at the sender, too.
        let count_max = usize::try_from(TREE_WANTED_MAX).unwrap_or(usize::MAX).saturating_sub(owed);
        while room > 0
            && wanted.len() < count_max
            && let Some(wish) = self.wishes.front_mut()
        {
            let (number, known, is_whole) = (wish.number, wish.known, wish.shape == Shape::Whole);
            let is_next = |run: &Run| {
                known.is_none()
                    && is_whole
                    && run.known.is_none()
                    && run.part.is_none()
                    && run.first + run.count == number
            };
            let mut have = None;
            let (part, bytes) = match &mut wish.shape {
                Shape::Whole => (None, wish.bytes),
                Shape::Part(part) => (Some(*part), part.bytes),
                Shape::Rests(parts) if rests + parts.front().map_or(0, masks) > TREE_PULL_RESTS_MAX => break,
                Shape::Rests(parts) => {
                    let part = parts.front().map(|(part, mask)| {
                        have = Some(mask.clone());
                        *part
                    });
                    rests += parts.front().map_or(0, masks);
                    (part, part.map_or(0, |part| rest_bytes(&part, have.as_deref())))
                }
                Shape::These { parts, part_bytes } => {
                    let part = parts.front().map(|part| Part { bytes: part.bytes.min(*part_bytes), ..*part });
                    (part, part.map_or(0, |part| part.bytes))
                }
                Shape::Parts { start, part_bytes, .. } => {
                    let part = Part { start: *start, bytes: (*part_bytes).min(wish.bytes - *start) };
                    (Some(part), part.bytes)
                }
            };
            if let Some(run) = runs.last_mut().filter(|run| is_next(run)) {
                run.count += 1;
            } else if runs.len() < TREE_PULL_RUNS_MAX {
                let run =
                    Run { first: number, count: 1, known: known.map(Into::into), part, ..Run::default() };
                runs.push(match have.as_deref() {
                    Some(have) => run.with(have),
                    None => run,
                });
            } else {
                break;
            }
            let is_over = match &mut wish.shape {
                Shape::These { parts, .. } => !has_more(parts, bytes),
                Shape::Rests(parts) => {
                    parts.pop_front();
                    parts.is_empty()
                }
                Shape::Parts { start, .. } => {
                    *start += bytes;
                    *start >= wish.bytes
                }
                Shape::Whole | Shape::Part(_) => true,
            };
            if is_over {
                self.wishes.pop_front();
                self.asked(number);
            }
            let weight = weight(bytes, known.is_some());
            wanted.push(Wanted { have, known, ..Wanted::new(number, part, bytes, weight) });
            room = room.saturating_sub(weight);
        }
        (runs, wanted)
    }

    /// Takes the next record of a data frame of `request` that came over `path`: which entry it belongs to, and which part of it.
    pub fn take<'a>(
        &mut self,
        path: PathId,
        request: u32,
        rest: &mut &'a [u8],
    ) -> Result<(Wanted, Record<'a>)> {
        let not_asked = || protocol("sender sent a content that was not asked for");
        let path = self.path_of(path, request).ok_or_else(not_asked)?;
        let front = path.wanted.front_mut().filter(|wanted| wanted.request == request);
        let front = front.ok_or_else(not_asked)?;
        let record = take_record(rest, front.known.as_ref())?;
        front.check(&record)?;
        let lighter = match &record {
            Record::Bytes(bytes) => front.weight.min(bytes.len() as u64),
            Record::Hole(len) => front.weight.min(*len),
            Record::Again | Record::Chunks(_) | Record::Sums(_) => 0,
            Record::Done(_) | Record::Same(_) | Record::Failed(_) => front.weight,
        };
        front.weight -= lighter;
        path.weight = path.weight.saturating_sub(lighter);
        let wanted = front.clone();
        if matches!(record, Record::Done(_) | Record::Same(_) | Record::Failed(_)) {
            path.wanted.pop_front();
        }
        Ok((wanted, record))
    }

    /// The sender ended `request` on `path`.
    pub fn handle_end(&mut self, path: PathId, request: u32) -> Result<()> {
        match self.path_of(path, request) {
            Some(path)
                if path.open.front() == Some(&request)
                    && path.wanted.front().is_none_or(|wanted| wanted.request != request) =>
            {
                path.open.pop_front();
                Ok(())
            }
            _ => Err(protocol("sender ended a request that is not answered")),
        }
    }

    /// True once everything was told and everything asked for has come; to be asked when every item that came was accepted. There
    /// may be lost connections to tell of with a last pull.
    /// `Protocol` if the entries ended in the middle.
    pub fn is_done(&self) -> Result<bool> {
        if self.is_told && !self.order.is_complete() {
            return Err(protocol("sender ended its entries in the middle of a tree"));
        }
        let is_idle = |path: &Path| path.wanted.is_empty() && path.open.is_empty();
        let has_wishes = !self.wishes.is_empty() || !self.alone.is_empty() || !self.cut_wishes.is_empty();
        Ok(self.is_told && !has_wishes && is_idle(&self.cuts) && self.paths.values().all(is_idle))
    }

    /// Entries told.
    pub fn entries(&self) -> u64 {
        self.order.entries()
    }

    /// The entry that the channel of the copy owes next.
    pub fn next_owed(&self) -> Option<u64> {
        self.paths.get(&None).and_then(|path| path.wanted.front()).map(|wanted| wanted.number)
    }

    /// What the sender owes, in words; `None` if it is nothing.
    pub fn missing(&self) -> Option<String> {
        let contents = self.under_way();
        match (self.is_told, contents) {
            (true, 0) => None,
            (true, _) => Some(format!("{contents} contents")),
            (false, 0) => Some(format!("the entries after {}", self.order.entries())),
            (false, _) => Some(format!("{contents} contents and the entries after {}", self.order.entries())),
        }
    }
}
