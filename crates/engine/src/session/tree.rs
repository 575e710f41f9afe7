//! State machines of a tree copy, one for each side: how many entries may be told, which contents may be asked for, over which
//! path, and what an answer may consist of. `docs/protocol/peer.md`, "Copying trees".

use std::collections::{BTreeMap, VecDeque};

use dray_core::limits::{
    TREE_BATCHES_MAX, TREE_CUT_PULLS_MAX, TREE_CUTS_MAX, TREE_PART_BYTES, TREE_PARTS_MAX, TREE_PULL_RUNS_MAX,
    TREE_PULLS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{BATCHES_AHEAD_MAX, Entries, Part, Pull, Run, TreeDone};
use dray_core::tree::{Item, Order, Record, Step, chunks_max, decode_chunks, take_record};
use dray_core::{Error, ErrorKind, Result};

fn protocol(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

/// A content the sender owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owed {
    /// Request that the answer belongs to.
    pub request: u32,
    /// Number of the entry.
    pub number: u64,
    /// What the receiver has of it.
    pub known: Option<[u8; 32]>,
    /// Not all of it.
    pub part: Option<Part>,
    /// Not the bytes of the part, but its chunks, of this average length.
    pub cut: Option<u32>,
    /// The request ends with it.
    pub is_last: bool,
}

impl Owed {
    /// What the runs of `request` ask for, in their order.
    pub fn of(request: u32, runs: &[Run]) -> Vec<Owed> {
        let mut all: Vec<Owed> = runs
            .iter()
            .flat_map(|run| {
                let known = run.known.map(|hash| *hash);
                let owed = move |number| Owed {
                    request,
                    number,
                    known,
                    part: run.part,
                    cut: run.cut,
                    is_last: false,
                };
                (run.first..run.first + run.count).map(owed)
            })
            .collect();
        if let Some(last) = all.last_mut() {
            last.is_last = true;
        }
        all
    }
}

/// Contents that left over one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeSent {
    /// Whole ones, that ended with [`Record::Done`].
    whole: u64,
    /// Parts that ended so.
    parts: u64,
    /// That ended with [`Record::Same`].
    same: u64,
    /// Cuts that ended, however.
    cuts: u64,
    /// Bytes in records.
    bytes: u64,
}

impl TreeSent {
    /// A record left, of a part or of a whole content.
    pub fn record(&mut self, record: &Record<'_>, is_part: bool) {
        match record {
            Record::Bytes(bytes) => self.bytes(bytes.len()),
            Record::Done(_) if is_part => self.parts += 1,
            Record::Done(_) => self.whole += 1,
            Record::Same(_) => self.same += 1,
            Record::Hole(_) | Record::Again | Record::Failed(_) | Record::Chunks(_) => {}
        }
    }

    /// The answer to a cut left, all of it.
    pub fn cut(&mut self) {
        self.cuts += 1;
    }

    /// A record of so many bytes left.
    pub fn bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// What left over another path.
    pub fn add(&mut self, other: &TreeSent) {
        self.whole += other.whole;
        self.parts += other.parts;
        self.same += other.same;
        self.cuts += other.cuts;
        self.bytes += other.bytes;
    }
}

/// What left, and what is owed, over direct connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeLanes {
    /// What left.
    pub sent: TreeSent,
    /// Contents that were asked for and have not left.
    pub owed: u64,
    /// A connection was lost, and with it some of what left.
    pub has_lost: bool,
}

/// The sending side: tells batches within the receiver's grant, owes contents in the order asked.
#[derive(Debug)]
pub struct TreeSender {
    granted: u64,
    batches: u64,
    /// Numbers behind the last entry of each batch that is not settled.
    open: VecDeque<u64>,
    entries: u64,
    settled: u64,
    /// Of this channel.
    owed: VecDeque<Owed>,
    pulls: usize,
    /// What was told in full.
    is_told: bool,
    /// What left over this channel, to hold the receiver's account against.
    sent: TreeSent,
}

impl TreeSender {
    /// At the beginning of a copy: the first batches are granted without being asked for.
    pub fn new() -> TreeSender {
        TreeSender {
            granted: TREE_BATCHES_MAX.into(),
            batches: 0,
            open: VecDeque::new(),
            entries: 0,
            settled: 0,
            owed: VecDeque::new(),
            pulls: 0,
            is_told: false,
            sent: TreeSent::default(),
        }
    }

    /// True if a batch of entries may leave. A receiver that grants without settling gets no more than twice what may be under
    /// way, because what is not settled is remembered here.
    pub fn may_tell(&self) -> bool {
        !self.is_told && self.batches < self.granted && (self.open.len() as u64) < 2 * BATCHES_AHEAD_MAX
    }

    /// A batch of so many entries has left; the last one, perhaps.
    pub fn told(&mut self, entries: u64, is_last: bool) {
        self.batches += 1;
        self.entries += entries;
        self.is_told = is_last;
        self.open.push_back(self.entries);
    }

    /// Entries told.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// What leaves over this channel is counted here.
    pub fn sent(&mut self) -> &mut TreeSent {
        &mut self.sent
    }

    /// The receiver says that it is done. `Protocol`, naming what is missing, unless everything was told, everything asked for was
    /// sent, and the receiver's account fits what was. What a lost connection took with it need not have come.
    pub fn handle_done(&self, done: &TreeDone, lanes: &TreeLanes) -> Result<()> {
        let (mut sent, owed, has_lost) = (self.sent, self.owed.len() as u64 + lanes.owed, lanes.has_lost);
        sent.add(&lanes.sent);
        let missing = if !self.is_told {
            format!("after {} entries, before all were told", self.entries)
        } else if owed > 0 {
            format!("before {owed} of the contents that it asked for came")
        } else if done.entries != self.entries {
            format!("after {} of {} entries", done.entries, self.entries)
        } else if done.bytes > sent.bytes || (!has_lost && done.bytes != sent.bytes) {
            format!("with {} of {} bytes", done.bytes, sent.bytes)
        } else if done.files > sent.whole + sent.parts + sent.cuts
            || (!has_lost && done.files.saturating_add(done.failed) < sent.whole)
        {
            format!("with {} of {} files", done.files, sent.whole)
        } else if done.unchanged > self.entries
            || (!has_lost && done.unchanged.saturating_add(done.failed) < sent.same)
        {
            format!("with {} files unchanged of {} entries", done.unchanged, self.entries)
        } else {
            return Ok(());
        };
        Err(protocol(format!("receiver ended {missing}")))
    }

    /// Entries below this number will not be asked for.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// True if nothing is owed over this channel.
    pub fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// The receiver pulls, while `elsewhere` contents are owed over direct connections. Whether an entry has a content, and may be
    /// asked for again, is for the caller to see, as is a pull that is to be answered over another connection.
    pub fn handle_pull(&mut self, pull: &Pull, elsewhere: u64) -> Result<()> {
        let mut owed = self.owed.len() as u64 + elsewhere;
        for run in &pull.runs {
            // The bounds of the message keep the sum small.
            if run.first.checked_add(run.count).is_none_or(|end| end > self.entries) {
                return Err(protocol("receiver asked for entries that it was not told"));
            }
            if run.first < self.settled {
                return Err(protocol("receiver asked for entries that it had settled"));
            }
            if run.known.is_some() && run.count != 1 {
                return Err(protocol("receiver knows several entries by one hash"));
            }
            if run.part.is_some() && (run.count != 1 || (run.known.is_some() && run.cut.is_none())) {
                return Err(protocol(
                    "receiver asked for a part of several entries, or of one that it knows",
                ));
            }
            owed += run.count;
        }
        // They are answered beside the contents, and never wait behind one.
        let is_cut = pull.runs.first().is_some_and(|run| run.cut.is_some());
        if pull.runs.iter().any(|run| run.cut.is_some() != is_cut || (is_cut && run.part.is_none()))
            || (is_cut && pull.lane.is_some())
        {
            return Err(protocol("receiver asked for a cut of no part, over a lane, or among contents"));
        }
        if owed > TREE_WANTED_MAX || self.pulls >= TREE_PULLS_MAX {
            return Err(protocol("receiver asked for more than may be under way"));
        }
        if pull.settled < self.settled || pull.settled > self.entries || pull.batches < self.granted {
            return Err(protocol("receiver takes back what it settled or granted"));
        }
        if pull.runs.is_empty() != (pull.request == 0)
            || self.owed.iter().any(|owed| owed.is_last && pull.request == owed.request)
        {
            return Err(protocol("receiver pulled with a number that does not fit"));
        }
        self.settled = pull.settled;
        self.granted = pull.batches;
        while self.open.front().is_some_and(|end| *end <= self.settled) {
            self.open.pop_front();
        }
        if !pull.runs.is_empty() && pull.lane.is_none() && !is_cut {
            self.owed.extend(Owed::of(pull.request, &pull.runs));
            self.pulls += 1;
        }
        Ok(())
    }

    /// The next content to send over this channel, which is owed no more.
    pub fn next_owed(&mut self) -> Option<Owed> {
        let owed = self.owed.pop_front()?;
        self.pulls -= usize::from(owed.is_last);
        Some(owed)
    }
}

impl Default for TreeSender {
    fn default() -> TreeSender {
        TreeSender::new()
    }
}

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

/// A cut that is to be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CutWish {
    number: u64,
    part: Part,
    average_bytes: u32,
    known: Option<[u8; 32]>,
}

/// A content that was asked for and has not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Number of the entry.
    pub number: u64,
    /// Not all of it.
    pub part: Option<Part>,
    /// Bytes that it is thought to have.
    pub bytes: u64,
    /// Not its bytes, but its chunks, of this average length.
    pub cut: Option<u32>,
    /// What its chunks and holes came to, and how many they are.
    came: u64,
    pieces: u64,
    request: u32,
    /// What of it weighs on its path: less with each byte that comes.
    weight: u64,
}

impl Wanted {
    /// Holds the next record of its answer to what was asked.
    fn check(&mut self, record: &Record<'_>) -> Result<()> {
        let Some((average_bytes, part)) = self.cut.zip(self.part) else {
            return match record {
                Record::Chunks(_) => Err(protocol("sender sent chunks that were not asked for")),
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
            Record::Bytes(_) | Record::Again => {
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

fn weight(bytes: u64, is_known: bool) -> u64 {
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
    settled: u64,
    requests: u32,
    paths: BTreeMap<PathId, Path>,
    wishes: VecDeque<Wish>,
    /// Cuts to be asked for, and what was asked for of them.
    cut_wishes: VecDeque<CutWish>,
    cuts: Path,
    /// A wish may have a lower number than the first.
    is_mixed: bool,
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
            settled: 0,
            requests: 0,
            paths: BTreeMap::from([(None, Path::default())]),
            wishes: VecDeque::new(),
            cut_wishes: VecDeque::new(),
            cuts: Path::default(),
            is_mixed: false,
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
        self.is_mixed |= self.wishes.back().is_some_and(|last| number < last.number);
        self.wishes.push_back(wish);
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

    /// Wants to know how `part` of entry `number` is cut into chunks of this average length, unless it hashes to `known`.
    pub fn want_cut(&mut self, number: u64, part: Part, average_bytes: u32, known: Option<[u8; 32]>) {
        self.cut_wishes.push_back(CutWish { number, part, average_bytes, known });
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
        let shape = lost.part.map_or(Shape::Whole, Shape::Part);
        self.wishes.push_front(Wish { number: lost.number, known, bytes: lost.bytes, shape });
        self.is_mixed = true;
    }

    /// No part of entry `number` is asked for any more, nor how it is cut.
    pub fn forget(&mut self, number: u64) {
        self.cut_wishes.retain(|wish| wish.number != number);
        self.wishes.retain(|wish| wish.number != number);
    }

    /// Contents under way, those that wait for a pull included.
    pub fn under_way(&self) -> u64 {
        let wanted: usize = self.paths.values().map(|path| path.wanted.len()).sum();
        (wanted + self.wishes.len() + self.cut_wishes.len() + self.cuts.wanted.len()) as u64
    }

    /// True if something waits for a pull.
    pub fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// Pulls under way over `path`.
    pub fn pulls(&self, path: PathId) -> usize {
        self.paths.get(&path).map_or(0, |path| path.open.len())
    }

    /// What is owed over `path`, in bytes; small files count for more than they have.
    pub fn weight(&self, path: PathId) -> u64 {
        self.paths.get(&path).map_or(0, |path| path.weight)
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
        let (runs, wanted) = self.runs(room);
        let waiting = match self.is_mixed {
            true => self.wishes.iter().map(|wish| wish.number).min(),
            false => self.wishes.front().map(|wish| wish.number),
        };
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
            path.open.push_back(request);
            for wanted in wanted {
                path.weight = path.weight.saturating_add(wanted.weight);
                path.wanted.push_back(Wanted { request, ..wanted });
            }
        }
        (self.settled, self.granted) = (settled, batches);
        Some(Pull { request, runs, settled, batches, lane: path, lost })
    }

    /// The next question how files are cut, if one may be asked. It settles and grants nothing.
    pub fn pull_cuts(&mut self) -> Option<Pull> {
        let room = TREE_CUTS_MAX.saturating_sub(self.cuts.wanted.len()).min(TREE_PULL_RUNS_MAX);
        let count = self.cut_wishes.len().min(room);
        if count == 0 || self.cuts.open.len() >= TREE_CUT_PULLS_MAX / 2 {
            return None;
        }
        let request = self.next_request();
        self.cuts.open.push_back(request);
        let mut runs = Vec::with_capacity(count);
        for wish in self.cut_wishes.drain(..count) {
            let (number, part, cut) = (wish.number, Some(wish.part), Some(wish.average_bytes));
            runs.push(Run { first: number, count: 1, known: wish.known.map(Into::into), part, cut });
            let bytes = wish.part.bytes;
            let wanted = Wanted { number, part, bytes, cut, came: 0, pieces: 0, request, weight: 0 };
            self.cuts.wanted.push_back(wanted);
        }
        Some(Pull { request, runs, settled: self.settled, batches: self.granted, lane: None, lost: None })
    }

    /// Never 0; and never the number of one that is open, of which there are few.
    fn next_request(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1).max(1);
        self.requests
    }

    /// What was asked for over the path that `request` was, whose answer came over `path`.
    fn asked(&mut self, path: PathId, request: u32) -> Option<&mut Path> {
        if path.is_none() && self.cuts.open.front() == Some(&request) {
            return Some(&mut self.cuts);
        }
        self.paths.get_mut(&path)
    }

    /// Takes wishes of so much weight, one at least if there is any room.
    fn runs(&mut self, mut room: u64) -> (Vec<Run>, Vec<Wanted>) {
        let (mut runs, mut wanted): (Vec<Run>, Vec<Wanted>) = Default::default();
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
            let (part, bytes) = match &mut wish.shape {
                Shape::Whole => (None, wish.bytes),
                Shape::Part(part) => (Some(*part), part.bytes),
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
                runs.push(Run { first: number, count: 1, known: known.map(Into::into), part, cut: None });
            } else {
                break;
            }
            let is_over = match &mut wish.shape {
                Shape::These { parts, .. } => !has_more(parts, bytes),
                Shape::Parts { start, .. } => {
                    *start += bytes;
                    *start >= wish.bytes
                }
                Shape::Whole | Shape::Part(_) => true,
            };
            if is_over {
                self.wishes.pop_front();
            }
            let weight = weight(bytes, known.is_some());
            wanted.push(Wanted { number, part, bytes, cut: None, came: 0, pieces: 0, request: 0, weight });
            room = room.saturating_sub(weight);
        }
        self.is_mixed &= !self.wishes.is_empty();
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
        let path = self.asked(path, request).ok_or_else(not_asked)?;
        let front = path.wanted.front_mut().filter(|wanted| wanted.request == request);
        let front = front.ok_or_else(not_asked)?;
        let record = take_record(rest)?;
        front.check(&record)?;
        let lighter = match &record {
            Record::Bytes(bytes) => front.weight.min(bytes.len() as u64),
            Record::Hole(len) => front.weight.min(*len),
            Record::Again | Record::Chunks(_) => 0,
            Record::Done(_) | Record::Same(_) | Record::Failed(_) => front.weight,
        };
        front.weight -= lighter;
        path.weight = path.weight.saturating_sub(lighter);
        let wanted = *front;
        if matches!(record, Record::Done(_) | Record::Same(_) | Record::Failed(_)) {
            path.wanted.pop_front();
        }
        Ok((wanted, record))
    }

    /// The sender ended `request` on `path`.
    pub fn handle_end(&mut self, path: PathId, request: u32) -> Result<()> {
        match self.asked(path, request) {
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
        let has_wishes = !self.wishes.is_empty() || !self.cut_wishes.is_empty();
        Ok(self.is_told && !has_wishes && is_idle(&self.cuts) && self.paths.values().all(is_idle))
    }

    /// Entries told.
    pub fn entries(&self) -> u64 {
        self.order.entries()
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

#[cfg(test)]
mod tests {
    use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};

    use super::*;

    fn file(name: Option<&str>) -> Vec<u8> {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        let kind = Kind::File { size_bytes: 1, oid: None };
        Entry { name, kind, metadata: Metadata::default() }.to_bytes()
    }

    fn batch(is_last: bool) -> Entries {
        Entries { items: Vec::new(), owners: None, is_last }
    }

    fn pull(request: u32, runs: &[(u64, u64)], settled: u64, batches: u64) -> Pull {
        let runs = runs
            .iter()
            .map(|&(first, count)| Run { first, count, known: None, part: None, cut: None })
            .collect();
        Pull { request, runs, settled, batches, lane: None, lost: None }
    }

    fn sender() -> TreeSender {
        let mut sender = TreeSender::new();
        sender.told(100, true);
        sender
    }

    /// Issue "requests are batches": what is owed comes out in the order asked, and a request ends with its last entry.
    #[test]
    fn contents_are_owed_in_order() {
        let mut sender = sender();
        sender.handle_pull(&pull(1, &[(3, 2), (9, 1)], 10, 40), 0).unwrap();
        sender.handle_pull(&pull(2, &[(10, 1)], 11, 40), 0).unwrap();
        let owed: Vec<_> = std::iter::from_fn(|| sender.next_owed())
            .map(|owed| (owed.request, owed.number, owed.is_last))
            .collect();
        assert_eq!(owed, [(1, 3, false), (1, 4, false), (1, 9, true), (2, 10, true)]);
        assert!(sender.is_idle());
    }

    /// A receiver that asks for what it was not told, twice, too much, or takes something back, breaks the protocol.
    #[test]
    fn a_receiver_that_breaks_the_rules_is_refused() {
        let many = TREE_WANTED_MAX + 1;
        for bad in [
            pull(1, &[(99, 2)], 0, 32),
            pull(1, &[(u64::MAX, 2)], 0, 32),
            pull(0, &[(5, 1)], 0, 32),
            pull(1, &[], 0, 32),
            pull(0, &[], 101, 32),
            pull(0, &[], 0, 31),
        ] {
            assert_eq!(sender().handle_pull(&bad, 0).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
        }
        let mut large = TreeSender::new();
        large.told(many, true);
        assert!(large.handle_pull(&pull(1, &[(0, many)], many, 40), 0).is_err());
        let mut again = sender();
        again.handle_pull(&pull(1, &[(5, 1)], 6, 40), 0).unwrap();
        assert!(again.handle_pull(&pull(1, &[(7, 1)], 8, 40), 0).is_err());
        assert!(again.handle_pull(&pull(2, &[(5, 1)], 8, 40), 0).is_err(), "it is settled");
        assert!(again.handle_pull(&pull(0, &[], 5, 40), 0).is_err());
    }

    /// M9: "done" counts only when everything was told and sent, and the account fits it; the error says what is missing.
    #[test]
    fn an_end_is_believed_only_if_the_account_fits() {
        let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
        let mut sender = TreeSender::new();
        let done = TreeDone { entries: 100, files: 1, unchanged: 98, bytes: 4, failed: 0 };
        let refused = |sender: &TreeSender, done: TreeDone| {
            let error = sender.handle_done(&done, &TreeLanes::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            error.what().to_owned()
        };
        sender.told(99, false);
        assert!(refused(&sender, TreeDone { entries: 99, ..done }).contains("after 99 entries, before all"));
        sender.told(1, true);
        assert!(!sender.may_tell());
        sender.handle_pull(&pull(1, &[(5, 2)], 100, 40), 0).unwrap();
        assert!(refused(&sender, done).contains("before 2 of the contents"));
        while sender.next_owed().is_some() {}
        for record in [Record::Bytes(b"four"), Record::Done(finished), Record::Same(finished)] {
            sender.sent().record(&record, false);
        }
        sender.handle_done(&done, &TreeLanes::default()).unwrap();
        sender.handle_done(&TreeDone { files: 0, failed: 1, ..done }, &TreeLanes::default()).unwrap();
        assert!(refused(&sender, TreeDone { entries: 99, ..done }).contains("99 of 100 entries"));
        assert!(refused(&sender, TreeDone { bytes: 3, ..done }).contains("3 of 4 bytes"));
        assert!(refused(&sender, TreeDone { files: 0, ..done }).contains("0 of 1 files"));
        assert!(refused(&sender, TreeDone { files: 2, ..done }).contains("2 of 1 files"));
        assert!(refused(&sender, TreeDone { unchanged: 0, ..done }).contains("0 files unchanged"));
        assert!(refused(&sender, TreeDone { unchanged: u64::MAX, ..done }).contains("unchanged"));
    }

    /// Issue "hard links": what may still be asked for is not settled.
    #[test]
    fn an_entry_that_waits_is_not_settled() {
        let mut receiver = TreeReceiver::new(2);
        receiver.handle_entries(&batch(false)).unwrap();
        receiver.accept(&file(None)).unwrap();
        receiver.accept(&file(None)).unwrap();
        receiver.want(0, None, 1);
        assert_eq!(receiver.pull(None, u64::MAX, 1, Some(1)).unwrap().settled, 1);
        receiver.want(1, None, 1);
        let late = receiver.pull(None, u64::MAX, 1, None).unwrap();
        assert_eq!((late.runs.len(), late.settled), (1, 2));
        assert!(receiver.missing().unwrap().contains("2 contents and the entries after 2"));
    }

    /// Issue "bounded memory": no more batches than were granted, nor than the receiver has settled.
    #[test]
    fn batches_need_a_grant() {
        let mut sender = TreeSender::new();
        for _ in 0..TREE_BATCHES_MAX {
            assert!(sender.may_tell());
            sender.told(10, false);
        }
        assert!(!sender.may_tell());
        sender.handle_pull(&pull(0, &[], 0, u64::MAX), 0).unwrap();
        for _ in 0..TREE_BATCHES_MAX {
            assert!(sender.may_tell());
            sender.told(10, false);
        }
        assert!(!sender.may_tell(), "nothing is settled");
        sender.handle_pull(&pull(0, &[], 320, u64::MAX), 0).unwrap();
        assert!(sender.may_tell());
    }

    /// A sender that tells more than granted, or sends what was not asked for, breaks the protocol.
    #[test]
    fn a_sender_that_breaks_the_rules_is_refused() {
        let mut receiver = TreeReceiver::new(1);
        for _ in 0..TREE_BATCHES_MAX {
            receiver.handle_entries(&batch(false)).unwrap();
        }
        assert!(receiver.handle_entries(&batch(false)).is_err());
        let mut receiver = TreeReceiver::new(1);
        receiver.handle_entries(&batch(true)).unwrap();
        assert!(receiver.handle_entries(&batch(true)).is_err());
        assert!(receiver.is_done().is_err(), "no root came");
        let (_, step, number) = receiver.accept(&file(None)).unwrap();
        assert_eq!((step, number), (Step::Root(0), 0));
        let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
        let mut frame = Vec::new();
        Record::Bytes(b"x").push(&mut frame);
        Record::Done(finished).push(&mut frame);
        assert!(receiver.take(None, 1, &mut &frame[..]).is_err(), "nothing was asked for");
        receiver.want(0, None, 1);
        let asked = receiver.pull(None, u64::MAX, 0, None).unwrap();
        assert_eq!((asked.request, asked.runs.len(), asked.settled), (1, 1, 1));
        assert!(receiver.pull(None, u64::MAX, 0, None).is_none(), "nothing new");
        assert!(receiver.take(None, 2, &mut &frame[..]).is_err(), "another request");
        assert!(receiver.handle_end(None, 1).is_err(), "it is not answered");
        let mut rest = &frame[..];
        let (wanted, record) = receiver.take(None, 1, &mut rest).unwrap();
        assert_eq!((wanted.number, record), (0, Record::Bytes(b"x")));
        let (wanted, record) = receiver.take(None, 1, &mut rest).unwrap();
        assert_eq!((wanted.number, record), (0, Record::Done(finished)));
        assert!(receiver.take(None, 1, &mut &frame[..]).is_err(), "it has come");
        assert!(!receiver.is_done().unwrap());
        receiver.handle_end(None, 1).unwrap();
        assert!(receiver.handle_end(None, 1).is_err());
        assert!(receiver.is_done().unwrap());
    }

    fn told(count: u64) -> TreeReceiver {
        let mut receiver = TreeReceiver::new(count as usize);
        receiver.handle_entries(&batch(true)).unwrap();
        for _ in 0..count {
            receiver.accept(&file(None)).unwrap();
        }
        receiver
    }

    fn done() -> Vec<u8> {
        let mut frame = Vec::new();
        let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
        Record::Done(finished).push(&mut frame);
        frame
    }

    /// Issue 4 "direct paths join": each path answers what it was asked, in any order between them; what a lost one owed is asked
    /// for again, first, and the sender hears of the loss.
    #[test]
    fn what_a_lost_lane_owed_is_asked_for_again() {
        let mut receiver = told(6);
        receiver.open(1);
        (0..6).for_each(|number| receiver.want(number, None, 1));
        let two = 2 * weight(1, false);
        let ssh = receiver.pull(None, two, 0, Some(0)).unwrap();
        let lane = receiver.pull(Some(1), two, 0, Some(0)).unwrap();
        assert_eq!((ssh.runs[0].first, ssh.runs[0].count, ssh.lane), (0, 2, None));
        assert_eq!((lane.runs[0].first, lane.runs[0].count, lane.lane), (2, 2, Some(1)));
        assert_eq!((receiver.weight(None), receiver.weight(Some(1)), receiver.under_way()), (two, two, 6));
        let frame = done();
        assert!(receiver.take(None, lane.request, &mut &frame[..]).is_err(), "it was asked for elsewhere");
        let (wanted, _) = receiver.take(Some(1), lane.request, &mut &frame[..]).unwrap();
        assert_eq!(wanted.number, 2);
        let lost = receiver.lose(1);
        assert_eq!(lost.iter().map(|wanted| wanted.number).collect::<Vec<_>>(), [3]);
        lost.iter().rev().for_each(|lost| receiver.want_again(lost, None));
        assert!(receiver.take(Some(1), lane.request, &mut &frame[..]).is_err(), "it is lost");
        let again = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
        let runs: Vec<_> = again.runs.iter().map(|run| (run.first, run.count)).collect();
        assert_eq!((runs, again.lost), (vec![(3, 3)], Some(1)));
        assert!(!receiver.is_done().unwrap());
    }

    /// A large file is asked for in parts that cover it, over any path; an endless hole in no more parts than may be.
    #[test]
    fn parts_cover_a_file() {
        assert_eq!((part_bytes(1), part_bytes(1 << 30)), (TREE_PART_BYTES, TREE_PART_BYTES));
        assert!(u64::MAX.div_ceil(part_bytes(u64::MAX >> 2)) <= 4 * TREE_PARTS_MAX);
        let mut receiver = told(2);
        receiver.want_parts(0, 100, 40);
        receiver.want(1, None, 1);
        receiver.came_part(0, false);
        let mut parts = Vec::new();
        while let Some(pull) = receiver.pull(None, 1, 0, Some(0)) {
            parts.extend(
                pull.runs.iter().map(|run| (run.first, run.part.map(|part| (part.start, part.bytes)))),
            );
        }
        assert_eq!(parts, [(0, Some((0, 40))), (0, Some((40, 40))), (0, Some((80, 20))), (1, None)]);
    }

    /// A path grows lighter as bytes come, not at the end of a content alone: else a long path would carry one large file at a time. A file
    /// of holes is asked for in ever larger parts.
    #[test]
    fn what_came_weighs_nothing_and_holes_are_passed_fast() {
        let mut receiver = told(2);
        receiver.want(0, None, 1 << 20);
        let pull = receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
        let full = receiver.weight(None);
        let mut frame = Vec::new();
        Record::Bytes(&[7; 1000]).push(&mut frame);
        receiver.take(None, pull.request, &mut &frame[..]).unwrap();
        assert_eq!(receiver.weight(None), full - 1000);
        let frame = done();
        receiver.take(None, pull.request, &mut &frame[..]).unwrap();
        assert_eq!(receiver.weight(None), 0);
        receiver.want_parts(1, 1 << 40, 1 << 22);
        let mut pulls = 0;
        while let Some(pull) = receiver.pull(None, 1, 0, Some(0)) {
            assert_eq!(pull.runs.len(), 1);
            receiver.came_part(1, true);
            pulls += 1;
        }
        assert_eq!(pulls, 19, "of 2^18 parts");
        receiver.want(0, Some([7; 32]), u64::MAX);
        receiver.want(1, None, u64::MAX);
        receiver.pull(None, u64::MAX, 0, Some(0)).unwrap();
        assert_eq!(receiver.weight(None), u64::MAX);
    }

    /// An account that is short is believed where a connection was lost, and one that is too long never.
    #[test]
    fn what_a_lost_lane_took_need_not_have_come() {
        let mut sender = TreeSender::new();
        sender.told(1, true);
        let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
        let mut lanes = TreeLanes::default();
        lanes.sent.record(&Record::Bytes(b"four"), false);
        lanes.sent.record(&Record::Done(finished), false);
        let done = TreeDone { entries: 1, files: 0, unchanged: 0, bytes: 3, failed: 0 };
        assert!(sender.handle_done(&done, &lanes).is_err());
        lanes.has_lost = true;
        sender.handle_done(&done, &lanes).unwrap();
        assert!(sender.handle_done(&TreeDone { bytes: 5, ..done }, &lanes).is_err());
        assert!(sender.handle_done(&TreeDone { files: 2, ..done }, &lanes).is_err());
        lanes.owed = 1;
        assert!(sender.handle_done(&done, &lanes).is_err());
    }
}
