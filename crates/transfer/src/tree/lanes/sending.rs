//! The lanes of a copy, at its sender: a thread for each answers what was asked for over it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_core::limits::TREE_LANES_MAX;
use dray_core::message::{Hello, Message, Open, Opened, Progress};
use dray_core::rights::Secret;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Owed, TreeLanes, TreeSent, negotiate};

use super::super::TOLD_INTERVAL;
use super::super::answer::{Outlet, TreeFile, answer};
use super::super::frames::Frames;
use super::{COPY, greeting_deadline, guard, lost, protocol, read_message};
use crate::transport::{Channel, Wake, push_control};

/// A lane that has waited for its file for so long may be silent because of it, and the sender with it; one that waits longer than the
/// second is to be given up: another may reach what this one does not.
const WAITS_FOR_FILE: Range<Duration> = Duration::from_millis(500)..Duration::from_secs(30);
/// Lanes of one copy that a sender remembers, those that ended included.
const LANES_EVER_MAX: usize = 4096;

/// The lanes of a copy, at its sender. What ssh carries is [`super::super::send`]'s.
pub struct SendLanes {
    inner: Mutex<Sending>,
    /// A job came, or a lane is to end.
    changed: Condvar,
    wake: Wake,
}

#[derive(Default)]
struct Sending {
    lanes: BTreeMap<u32, Jobs>,
    /// What left over lanes that have ended.
    sent: TreeSent,
    has_lost: bool,
    is_closed: bool,
    say: Vec<Message>,
}

/// What one lane is to answer.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(Owed, Arc<dyn TreeFile>)>,
    is_answering: bool,
    /// Since when it has waited for a file to be read, and not for room on its way.
    reading_since: Option<Instant>,
    /// Nobody waits for it, or it broke.
    is_over: bool,
    sent: TreeSent,
}

impl SendLanes {
    /// For one copy.
    pub fn new() -> Result<Arc<SendLanes>> {
        let wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
        Ok(Arc::new(SendLanes { inner: Mutex::default(), changed: Condvar::new(), wake }))
    }

    /// Tells the receiver something over the channel of the copy.
    pub fn say(&self, message: Message) {
        guard(&self.inner).say.push(message);
        self.wake.signal();
    }

    pub(in crate::tree) fn said(&self) -> Vec<Message> {
        std::mem::take(&mut guard(&self.inner).say)
    }

    /// Signalled when there is something to say.
    pub(in crate::tree) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Lanes that serve.
    pub fn count(&self) -> usize {
        guard(&self.inner).lanes.values().filter(|jobs| !jobs.is_over).count()
    }

    /// True if a lane is silent because of its file: a disk that spins up. A sender that goes on to speak would have the receiver take the
    /// lane's path for dead.
    pub(in crate::tree) fn waits_for_file(&self) -> bool {
        let inner = guard(&self.inner);
        let waits =
            |jobs: &Jobs| jobs.reading_since.is_some_and(|since| WAITS_FOR_FILE.contains(&since.elapsed()));
        inner.lanes.values().any(|jobs| !jobs.is_over && waits(jobs))
    }

    /// Gives `lane` something to answer. `Protocol` if there never was such a lane; one that broke answers nothing.
    pub(in crate::tree) fn push(
        &self,
        lane: u32,
        contents: impl Iterator<Item = (Owed, Arc<dyn TreeFile>)>,
    ) -> Result<()> {
        let mut inner = guard(&self.inner);
        let jobs = inner
            .lanes
            .get_mut(&lane)
            .ok_or_else(|| protocol("receiver asked over a connection that there is not"))?;
        // What a broken one owes stays owed until the receiver says that it waits no more.
        jobs.waiting.extend(contents);
        self.changed.notify_all();
        Ok(())
    }

    /// The receiver expects nothing of `lane` any more.
    pub(in crate::tree) fn lose(&self, lane: u32) {
        let mut inner = guard(&self.inner);
        inner.has_lost = true;
        if let Some(jobs) = inner.lanes.get_mut(&lane) {
            jobs.waiting.clear();
            jobs.is_answering = false;
            jobs.is_over = true;
        }
        self.changed.notify_all();
    }

    /// What left and what is owed over all of them.
    pub(in crate::tree) fn account(&self) -> TreeLanes {
        let inner = guard(&self.inner);
        let mut account = TreeLanes { sent: inner.sent, owed: 0, has_lost: inner.has_lost };
        for jobs in inner.lanes.values() {
            account.sent.add(&jobs.sent);
            account.owed += jobs.waiting.len() as u64 + u64::from(jobs.is_answering);
        }
        account
    }

    /// The copy is over.
    pub fn close(&self) {
        let mut inner = guard(&self.inner);
        inner.is_closed = true;
        inner.lanes.values_mut().for_each(|jobs| jobs.waiting.clear());
        self.changed.notify_all();
    }

    /// True once the copy is over.
    pub fn is_closed(&self) -> bool {
        guard(&self.inner).is_closed
    }

    /// Serves one connection until it, or the copy, ends. The receiver on it is `expected`, and knows `secret`.
    pub fn serve(
        &self,
        mut channel: Box<dyn Channel>,
        hello: &Hello,
        holder: NodeId,
        secret: &Secret,
        expected: &dyn Fn(NodeId) -> bool,
    ) -> Result<()> {
        let deadline = greeting_deadline();
        let Message::Hello(theirs) = read_message(&mut *channel, deadline)? else {
            return Err(protocol("the receiver did not say hello first"));
        };
        negotiate(hello, &theirs)?;
        let Message::Open(Open { handle, object: COPY, proof: Some(shown), .. }) =
            read_message(&mut *channel, deadline)?
        else {
            return Err(protocol("the receiver asked for something else than this copy"));
        };
        let refused = || Error::new(ErrorKind::Refused, "not the other end of this copy");
        let security = channel.security().ok_or_else(refused)?;
        if !security.expected_proof(secret, holder, &COPY).matches(&shown) || !expected(security.peer) {
            return Err(refused());
        }
        channel.keep_place();
        self.begin(handle)?;
        let mut greeting = Vec::new();
        push_control(&mut greeting, &Message::Hello(hello.clone()));
        let opened = Opened { handle, size_bytes: 0, name: None };
        push_control(&mut greeting, &Message::Opened(opened));
        let mut lane = SendLane {
            lanes: self,
            number: handle,
            channel,
            frames: Frames::default(),
            said_at: Instant::now(),
        };
        let result = lane.channel.write_all(&greeting).map_err(lost).and_then(|()| lane.answer_all());
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&handle) {
            jobs.is_over = true;
        }
        result
    }

    fn begin(&self, lane: u32) -> Result<()> {
        let mut inner = guard(&self.inner);
        let serving = inner.lanes.values().filter(|jobs| !jobs.is_over).count();
        if inner.is_closed || serving >= 2 * TREE_LANES_MAX || inner.lanes.len() >= LANES_EVER_MAX {
            return Err(Error::new(ErrorKind::Refused, "no more connections are wanted"));
        }
        if inner.lanes.contains_key(&lane) {
            return Err(protocol("the receiver gave two connections one number"));
        }
        inner.lanes.insert(lane, Jobs::default());
        Ok(())
    }

    /// The next content for `lane`, waited for; `None` once it is to end.
    fn next(&self, lane: u32) -> Option<(Owed, Arc<dyn TreeFile>)> {
        let mut inner = guard(&self.inner);
        loop {
            let is_closed = inner.is_closed;
            let jobs = inner.lanes.get_mut(&lane).filter(|jobs| !jobs.is_over && !is_closed)?;
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.is_answering = true;
                jobs.reading_since = Some(Instant::now());
                return Some(job);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count_sent(&self, lane: u32, count: impl FnOnce(&mut TreeSent)) {
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&lane) {
            count(&mut jobs.sent);
        }
    }

    /// `lane` writes, or has written and reads on if it is answering.
    fn reads_since(&self, lane: u32, since: Option<Instant>) {
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&lane) {
            jobs.reading_since = since.filter(|_| jobs.is_answering);
        }
    }

    /// True if nobody waits for what `lane` sends.
    fn is_over(&self, lane: u32) -> bool {
        let inner = guard(&self.inner);
        inner.is_closed || inner.lanes.get(&lane).is_none_or(|jobs| jobs.is_over)
    }
}

impl std::fmt::Debug for SendLanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendLanes({})", self.count())
    }
}

/// One connection that answers.
struct SendLane<'a> {
    lanes: &'a SendLanes,
    number: u32,
    channel: Box<dyn Channel>,
    frames: Frames,
    said_at: Instant,
}

impl SendLane<'_> {
    fn answer_all(&mut self) -> Result<()> {
        while let Some((owed, file)) = self.lanes.next(self.number) {
            answer(self, &*file, &owed)?;
            let is_idle = {
                let mut inner = guard(&self.lanes.inner);
                inner.lanes.get_mut(&self.number).is_none_or(|jobs| {
                    // Before it leaves: the receiver may answer sooner than this thread goes on.
                    jobs.is_answering = false;
                    jobs.reading_since = None;
                    jobs.waiting.is_empty()
                })
            };
            if is_idle || owed.is_last {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.frames.end();
        if self.lanes.is_over(self.number) {
            return Err(Error::new(ErrorKind::Interrupted, "nobody waits for it"));
        }
        self.lanes.reads_since(self.number, None);
        self.channel.write_all(&self.frames.out).map_err(lost)?;
        self.lanes.reads_since(self.number, Some(Instant::now()));
        self.frames.clear();
        self.said_at = Instant::now();
        Ok(())
    }
}

impl Outlet for SendLane<'_> {
    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    fn make_room(&mut self, len: usize) -> Result<()> {
        if self.frames.is_full_for(len) {
            self.flush()?;
        }
        Ok(())
    }

    fn count_sent(&mut self, count: &dyn Fn(&mut TreeSent)) {
        self.lanes.count_sent(self.number, count);
    }

    fn work(&mut self) -> Result<()> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            let progress = Progress { done_bytes: 0, resumed_bytes: 0, direct_bytes: 0 };
            self.frames.control(&Message::Progress(progress));
            self.flush()?;
        }
        Ok(())
    }
}
