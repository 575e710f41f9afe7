//! State machines of a tree copy, one for each side: how many entries may be told, which contents may be asked for, and what
//! an answer may consist of. `docs/protocol/peer.md`, "Copying trees".

use std::collections::VecDeque;

use dray_core::limits::{TREE_BATCHES_MAX, TREE_PULL_RUNS_MAX, TREE_PULLS_MAX, TREE_WANTED_MAX};
use dray_core::message::{BATCHES_AHEAD_MAX, Entries, Pull, Run, TreeDone};
use dray_core::tree::{Item, Order, Record, Step, take_record};
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
    /// The request ends with it.
    pub is_last: bool,
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
    pulls: VecDeque<(u32, VecDeque<Run>)>,
    owed: u64,
    /// What was told in full, and what left, to hold the receiver's account against.
    is_told: bool,
    sent: Sent,
}

/// Contents that left.
#[derive(Debug, Default)]
struct Sent {
    /// That ended with [`Record::Done`].
    whole: u64,
    /// That ended with [`Record::Same`].
    same: u64,
    /// Bytes in records.
    bytes: u64,
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
            pulls: VecDeque::new(),
            owed: 0,
            is_told: false,
            sent: Sent::default(),
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

    /// A record left.
    pub fn sent(&mut self, record: &Record<'_>) {
        match record {
            Record::Bytes(bytes) => self.sent_bytes(bytes.len()),
            Record::Done(_) => self.sent.whole += 1,
            Record::Same(_) => self.sent.same += 1,
            Record::Hole(_) | Record::Again | Record::Failed(_) => {}
        }
    }

    /// A record of so many bytes left.
    pub fn sent_bytes(&mut self, bytes: usize) {
        self.sent.bytes += bytes as u64;
    }

    /// The receiver says that it is done. `Protocol`, naming what is missing, unless everything was told, everything asked for was
    /// sent, and the receiver's account fits what was.
    pub fn handle_done(&self, done: &TreeDone) -> Result<()> {
        let sent = &self.sent;
        let missing = if !self.is_told {
            format!("after {} entries, before all were told", self.entries)
        } else if self.owed > 0 || !self.pulls.is_empty() {
            format!("before {} of the contents that it asked for came", self.owed)
        } else if done.entries != self.entries {
            format!("after {} of {} entries", done.entries, self.entries)
        } else if done.bytes != sent.bytes {
            format!("with {} of {} bytes", done.bytes, sent.bytes)
        } else if done.files > sent.whole || done.files.saturating_add(done.failed) < sent.whole {
            format!("with {} of {} files", done.files, sent.whole)
        } else if done.unchanged > self.entries || done.unchanged.saturating_add(done.failed) < sent.same {
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

    /// True if nothing is owed.
    pub fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }

    /// The receiver pulls. Whether an entry has a content, and was not asked for before, is for the caller to see.
    pub fn handle_pull(&mut self, pull: Pull) -> Result<()> {
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
            self.owed += run.count;
        }
        if self.owed > TREE_WANTED_MAX || self.pulls.len() >= TREE_PULLS_MAX {
            return Err(protocol("receiver asked for more than may be under way"));
        }
        if pull.settled < self.settled || pull.settled > self.entries || pull.batches < self.granted {
            return Err(protocol("receiver takes back what it settled or granted"));
        }
        if pull.runs.is_empty() != (pull.request == 0)
            || self.pulls.iter().any(|(request, _)| pull.request == *request)
        {
            return Err(protocol("receiver pulled with a number that does not fit"));
        }
        self.settled = pull.settled;
        self.granted = pull.batches;
        while self.open.front().is_some_and(|end| *end <= self.settled) {
            self.open.pop_front();
        }
        if !pull.runs.is_empty() {
            self.pulls.push_back((pull.request, pull.runs.into()));
        }
        Ok(())
    }

    /// The next content to send, which is owed no more.
    pub fn next_owed(&mut self) -> Option<Owed> {
        let (request, runs) = self.pulls.front_mut()?;
        let run = runs.front_mut()?;
        let (request, number, known) = (*request, run.first, run.known.map(|hash| *hash));
        run.first += 1;
        run.count -= 1;
        if run.count == 0 {
            runs.pop_front();
        }
        let is_last = runs.is_empty();
        if is_last {
            self.pulls.pop_front();
        }
        self.owed -= 1;
        Some(Owed { request, number, known, is_last })
    }
}

impl Default for TreeSender {
    fn default() -> TreeSender {
        TreeSender::new()
    }
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
    /// What was asked for and has not come: request and entry.
    wanted: VecDeque<(u32, u64)>,
    /// Requests whose end has not come.
    open: VecDeque<u32>,
    runs: Vec<Run>,
    run_entries: u64,
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
            wanted: VecDeque::new(),
            open: VecDeque::new(),
            runs: Vec::new(),
            run_entries: 0,
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

    /// Wants the content of entry `number`, unless it hashes to `known`. It is asked for with the next pull.
    pub fn want(&mut self, number: u64, known: Option<[u8; 32]>) {
        self.run_entries += 1;
        match self.runs.last_mut() {
            Some(run) if known.is_none() && run.known.is_none() && run.first + run.count == number => {
                run.count += 1;
            }
            _ => self.runs.push(Run { first: number, count: 1, known: known.map(Into::into) }),
        }
    }

    /// Runs that wait for the next pull.
    pub fn waiting_runs(&self) -> usize {
        self.runs.len()
    }

    /// Contents under way, those that wait for the next pull included.
    pub fn under_way(&self) -> u64 {
        self.wanted.len() as u64 + self.run_entries
    }

    /// Pulls under way.
    pub fn pulls(&self) -> usize {
        self.open.len()
    }

    /// What to say to the sender when every entry so far is decided, but for those from `undecided` on that may still be asked
    /// for, and `ahead` more batches are to come; `None` if it would say nothing new.
    pub fn pull(&mut self, ahead: u64, undecided: Option<u64>) -> Option<Pull> {
        let batches = (self.came + ahead).max(self.granted);
        let later = self.runs.split_off(self.runs.len().min(TREE_PULL_RUNS_MAX));
        let first = later.iter().map(|run| run.first).chain(undecided).min();
        let settled = first.unwrap_or(self.order.entries()).max(self.settled);
        if self.runs.is_empty() && batches == self.granted && (self.is_told || settled == self.settled) {
            return None;
        }
        let runs = std::mem::replace(&mut self.runs, later);
        self.run_entries = self.runs.iter().map(|run| run.count).sum();
        let request = if runs.is_empty() {
            0
        } else {
            // Never again 0; and never the number of one that is open, of which there are few.
            self.requests = self.requests.wrapping_add(1).max(1);
            self.open.push_back(self.requests);
            self.requests
        };
        for run in &runs {
            self.wanted.extend((run.first..run.first + run.count).map(|number| (request, number)));
        }
        (self.settled, self.granted) = (settled, batches);
        Some(Pull { request, runs, settled, batches })
    }

    /// Takes the next record of a data frame of `request`: which entry it belongs to.
    pub fn take<'a>(&mut self, request: u32, rest: &mut &'a [u8]) -> Result<(u64, Record<'a>)> {
        let Some((_, number)) = self.wanted.front().copied().filter(|(owner, _)| *owner == request) else {
            return Err(protocol("sender sent a content that was not asked for"));
        };
        let record = take_record(rest)?;
        if matches!(record, Record::Done(_) | Record::Same(_) | Record::Failed(_)) {
            self.wanted.pop_front();
        }
        Ok((number, record))
    }

    /// The sender ended `request`.
    pub fn handle_end(&mut self, request: u32) -> Result<()> {
        if self.open.front() != Some(&request)
            || self.wanted.front().is_some_and(|(owner, _)| *owner == request)
        {
            return Err(protocol("sender ended a request that is not answered"));
        }
        self.open.pop_front();
        Ok(())
    }

    /// True once everything was told and everything asked for has come; to be asked when every item that came was accepted.
    /// `Protocol` if the entries ended in the middle.
    pub fn is_done(&self) -> Result<bool> {
        if self.is_told && !self.order.is_complete() {
            return Err(protocol("sender ended its entries in the middle of a tree"));
        }
        Ok(self.is_told && self.wanted.is_empty() && self.runs.is_empty() && self.open.is_empty())
    }

    /// Entries told.
    pub fn entries(&self) -> u64 {
        self.order.entries()
    }

    /// What the sender owes, in words; `None` if it is nothing.
    pub fn missing(&self) -> Option<String> {
        let contents = self.wanted.len();
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
        let runs = runs.iter().map(|&(first, count)| Run { first, count, known: None }).collect();
        Pull { request, runs, settled, batches }
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
        sender.handle_pull(pull(1, &[(3, 2), (9, 1)], 10, 40)).unwrap();
        sender.handle_pull(pull(2, &[(10, 1)], 11, 40)).unwrap();
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
            assert_eq!(sender().handle_pull(bad.clone()).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
        }
        let mut large = TreeSender::new();
        large.told(many, true);
        assert!(large.handle_pull(pull(1, &[(0, many)], many, 40)).is_err());
        let mut again = sender();
        again.handle_pull(pull(1, &[(5, 1)], 6, 40)).unwrap();
        assert!(again.handle_pull(pull(1, &[(7, 1)], 8, 40)).is_err());
        assert!(again.handle_pull(pull(2, &[(5, 1)], 8, 40)).is_err(), "it is settled");
        assert!(again.handle_pull(pull(0, &[], 5, 40)).is_err());
    }

    /// M9: "done" counts only when everything was told and sent, and the account fits it; the error says what is missing.
    #[test]
    fn an_end_is_believed_only_if_the_account_fits() {
        let finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };
        let mut sender = TreeSender::new();
        let done = TreeDone { entries: 100, files: 1, unchanged: 98, bytes: 4, failed: 0 };
        let refused = |sender: &TreeSender, done: TreeDone| {
            let error = sender.handle_done(&done).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            error.what().to_owned()
        };
        sender.told(99, false);
        assert!(refused(&sender, TreeDone { entries: 99, ..done }).contains("after 99 entries, before all"));
        sender.told(1, true);
        assert!(!sender.may_tell());
        sender.handle_pull(pull(1, &[(5, 2)], 100, 40)).unwrap();
        assert!(refused(&sender, done).contains("before 2 of the contents"));
        while sender.next_owed().is_some() {}
        for record in [Record::Bytes(b"four"), Record::Done(finished), Record::Same(finished)] {
            sender.sent(&record);
        }
        sender.handle_done(&done).unwrap();
        sender.handle_done(&TreeDone { files: 0, failed: 1, ..done }).unwrap();
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
        assert_eq!(receiver.pull(1, Some(1)).unwrap().settled, 1);
        receiver.want(1, None);
        let late = receiver.pull(1, None).unwrap();
        assert_eq!((late.runs.len(), late.settled), (1, 2));
        assert!(receiver.missing().unwrap().contains("1 contents and the entries after 2"));
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
        sender.handle_pull(pull(0, &[], 0, u64::MAX)).unwrap();
        for _ in 0..TREE_BATCHES_MAX {
            assert!(sender.may_tell());
            sender.told(10, false);
        }
        assert!(!sender.may_tell(), "nothing is settled");
        sender.handle_pull(pull(0, &[], 320, u64::MAX)).unwrap();
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
        assert!(receiver.take(1, &mut &frame[..]).is_err(), "nothing was asked for");
        receiver.want(0, None);
        let asked = receiver.pull(0, None).unwrap();
        assert_eq!((asked.request, asked.runs.len(), asked.settled), (1, 1, 1));
        assert!(receiver.pull(0, None).is_none(), "nothing new");
        assert!(receiver.take(2, &mut &frame[..]).is_err(), "another request");
        assert!(receiver.handle_end(1).is_err(), "it is not answered");
        let mut rest = &frame[..];
        assert_eq!(receiver.take(1, &mut rest).unwrap(), (0, Record::Bytes(b"x")));
        assert_eq!(receiver.take(1, &mut rest).unwrap(), (0, Record::Done(finished)));
        assert!(receiver.take(1, &mut &frame[..]).is_err(), "it has come");
        assert!(!receiver.is_done().unwrap());
        receiver.handle_end(1).unwrap();
        assert!(receiver.handle_end(1).is_err());
        assert!(receiver.is_done().unwrap());
    }
}
