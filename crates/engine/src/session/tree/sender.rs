//! The sending side of a tree copy: tells batches within a grant, owes contents in the order asked, and holds the receiver's account
//! against what left.

use std::collections::VecDeque;

use dray_core::Result;
use dray_core::limits::{
    GROUP_BYTES, TREE_BATCHES_MAX, TREE_CUT_BYTES_MAX, TREE_CUT_CHUNKS_MAX, TREE_PULL_BLOCK_RUNS_MAX,
    TREE_PULL_RESTS_MAX, TREE_PULLS_MAX, TREE_WANTED_MAX,
};
use dray_core::message::{BATCHES_AHEAD_MAX, DigestsSame, Pull, Run, TreeDone};
use dray_core::tree::Record;

use super::digesting::Digesting;
use super::{Owed, protocol};

/// Contents that left over one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeSent {
    /// Whole ones, that ended with [`Record::Done`].
    whole: u64,
    /// Parts that ended so.
    parts: u64,
    /// That ended with [`Record::Same`].
    same: u64,
    /// Of all these, those of files with several names: where such a content fails, its name may yet become a link of another, and is neither
    /// a file nor failed.
    linked: u64,
    /// Bytes in records.
    bytes: u64,
}

impl TreeSent {
    /// A record left, of a part or of a whole content, of a file with other names or without.
    pub fn record(&mut self, record: &Record<'_>, is_part: bool, is_linked: bool) {
        self.linked += u64::from(is_linked && matches!(record, Record::Done(_) | Record::Same(_)));
        match record {
            Record::Bytes(bytes) => self.bytes(bytes.len()),
            Record::Done(_) if is_part => self.parts += 1,
            Record::Done(_) => self.whole += 1,
            // Of a cut: what the receiver makes of that may yet fail, and come whole.
            Record::Same(_) if is_part => {}
            Record::Same(_) => self.same += 1,
            Record::Hole(_) | Record::Again | Record::Failed(_) | Record::Chunks(_) | Record::Sums(_) => {}
        }
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
        self.linked += other.linked;
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
    digesting: Digesting,
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
            digesting: Digesting::default(),
        }
    }

    /// The receiver says whether it wants digests: once.
    pub fn handle_wanted(&mut self) -> Result<()> {
        self.digesting.handle_wanted()
    }

    /// So many digests have left, the roots of all sources perhaps among them. No entry may be told before they are answered.
    pub fn told_digests(&mut self, count: usize, has_roots: bool) {
        self.digesting.told(count, has_roots);
    }

    /// The receiver says which of the digests are the same there.
    pub fn handle_same(&mut self, same: &DigestsSame) -> Result<()> {
        self.digesting.handle_same(same)
    }

    /// True if the digests were told and not answered: a receiver that is done now has found everything the same.
    pub fn awaits_same(&self) -> bool {
        self.digesting.is_waiting()
    }

    /// True if a batch of entries may leave. A receiver that grants without settling gets no more than twice what may be under
    /// way, because what is not settled is remembered here.
    pub fn may_tell(&self) -> bool {
        !self.is_told
            && !self.digesting.is_waiting()
            && self.batches < self.granted
            && (self.open.len() as u64) < 2 * BATCHES_AHEAD_MAX
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
        if self.digesting.is_waiting() {
            return self.digesting.handle_done(done);
        }
        let (mut sent, owed, has_lost) = (self.sent, self.owed.len() as u64 + lanes.owed, lanes.has_lost);
        sent.add(&lanes.sent);
        let excused = done.failed.saturating_add(sent.linked);
        let missing = if !self.is_told {
            format!("after {} entries, before all were told", self.entries)
        } else if owed > 0 {
            format!("before {owed} of the contents that it asked for came")
        } else if done.entries != self.entries {
            format!("after {} of {} entries", done.entries, self.entries)
        } else if done.bytes > sent.bytes || (!has_lost && done.bytes != sent.bytes) {
            format!("with {} of {} bytes", done.bytes, sent.bytes)
        } else if done.files > sent.whole + sent.parts
            || (!has_lost && done.files.saturating_add(excused) < sent.whole)
        {
            format!("with {} of {} files", done.files, sent.whole)
        } else if done.unchanged > self.entries
            || (!has_lost && done.unchanged.saturating_add(excused) < sent.same)
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
            // Cuts and sums are answered beside the contents, and bounded there.
            owed += if is_question(run) { 0 } else { run.count };
        }
        let is_cut = pull.runs.first().is_some_and(is_question);
        if pull.runs.iter().any(|run| is_question(run) != is_cut || (run.cut.is_some() && run.part.is_none()))
            || (is_cut && pull.lane.is_some())
        {
            return Err(protocol("receiver asked for a cut of no part, over a lane, or among contents"));
        }
        if !pull.runs.iter().all(|run| are_sums_alone(run) && is_rest(run)) {
            return Err(protocol("receiver asked for sums or for the rest of what has none"));
        }
        let block_runs: usize =
            pull.runs.iter().filter_map(|run| run.sums.as_ref()).map(|it| it.runs.len()).sum();
        let masks_of = |run: &Run| usize::from(run.have.is_some()) + usize::from(run.code.is_some());
        let masks: usize = pull.runs.iter().map(masks_of).sum();
        if block_runs > TREE_PULL_BLOCK_RUNS_MAX || masks > TREE_PULL_RESTS_MAX {
            return Err(protocol("receiver asked for more sums or rests than one pull may have"));
        }
        if pull.runs.iter().any(is_cut_too_large) {
            return Err(protocol("receiver asked for a cut of more bytes or chunks than one may have"));
        }
        if !is_cut && (owed > TREE_WANTED_MAX || self.pulls >= TREE_PULLS_MAX) {
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
            self.owed.extend(Owed::of(pull));
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

/// How the file is cut is asked, or sums of its blocks.
fn is_question(run: &Run) -> bool {
    run.cut.is_some() || run.sums.is_some()
}

/// Sums are of one entry's blocks, and name them.
fn are_sums_alone(run: &Run) -> bool {
    let has_else = run.known.is_some()
        || run.part.is_some()
        || run.cut.is_some()
        || run.have.is_some()
        || run.code.is_some();
    run.sums.is_none() || (run.count == 1 && !has_else)
}

/// What the receiver has of a part is told of as much as a mask reaches over.
fn is_rest(run: &Run) -> bool {
    let is_short = run.part.is_some_and(|part| part.bytes <= GROUP_BYTES);
    let is_alone = run.have.is_none() || (is_short && run.cut.is_none() && run.known.is_none());
    is_alone && (run.code.is_none() || run.have.is_some())
}

/// What is found of a cut is remembered until all of it is.
fn is_cut_too_large(run: &Run) -> bool {
    run.cut.zip(run.part).is_some_and(|(average_bytes, part)| {
        let shortest = u64::from(average_bytes / 4).max(1);
        part.bytes > TREE_CUT_BYTES_MAX || part.bytes / shortest > TREE_CUT_CHUNKS_MAX
    })
}

impl Default for TreeSender {
    fn default() -> TreeSender {
        TreeSender::new()
    }
}
