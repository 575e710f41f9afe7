//! The lanes of a copy, at its sender: a thread for each answers what was asked for over it, and another says so while that waits for a
//! file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_LANES_MAX;
use dray_core::message::{Hello, Message, Open, Opened};
use dray_core::rights::Secret;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Owed, TreeLanes, TreeSent, negotiate};

use super::super::answer::{Outlet, TreeFile, answer};
use super::super::frames::{Frames, Piece};
use super::super::packing::{MayPack, Packing};
use super::super::{TOLD_INTERVAL, progress};
use super::{COPY, greeting_deadline, guard, lost, protocol, read_message};
use crate::transport::{Channel, Wake, push_control};

/// How long a lane says that it works, and how long a cut is waited for, while one read does not end. One that hangs is to be found out: the receiver asks another way.
pub(in crate::tree) const FILE_PATIENCE: Duration = Duration::from_secs(60);
/// Lanes of one copy that a sender remembers, those included that ended and that the receiver did not say to be lost.
const LANES_KEPT_MAX: usize = 4096;

/// The lanes of a copy, at its sender. What ssh carries is [`super::super::send`]'s.
pub struct SendLanes {
    inner: Mutex<Sending>,
    /// A job came, or a lane is to end.
    changed: Condvar,
    wake: Wake,
    /// See [`FILE_PATIENCE`].
    file_patience: Duration,
}

#[derive(Default)]
struct Sending {
    lanes: BTreeMap<u32, Jobs>,
    /// What left over lanes that were lost, and the highest number of one: its number is not used again.
    sent: TreeSent,
    lost: Option<u32>,
    has_lost: bool,
    is_closed: bool,
    say: Vec<Message>,
}

/// What one lane is to answer.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(Owed, Arc<dyn TreeFile>)>,
    is_answering: bool,
    /// Its thread has something to do.
    is_busy: bool,
    /// Nobody waits for it, or it broke.
    is_over: bool,
    sent: TreeSent,
    /// What leaves over it may be packed.
    may_pack: MayPack,
}

impl SendLanes {
    /// For one copy.
    pub fn new() -> Result<Arc<SendLanes>> {
        SendLanes::with_file_patience(FILE_PATIENCE)
    }

    /// With lanes that say for so long that they work while one read does not end; then they are silent.
    pub fn with_file_patience(file_patience: Duration) -> Result<Arc<SendLanes>> {
        let wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
        Ok(Arc::new(SendLanes { inner: Mutex::default(), changed: Condvar::new(), wake, file_patience }))
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

    /// What leaves over `lane` may be packed from now on, or not any more. `Protocol` if there never was such a lane.
    pub(in crate::tree) fn permit(&self, lane: u32, may: bool) -> Result<()> {
        let inner = guard(&self.inner);
        let jobs = inner.lanes.get(&lane).ok_or_else(no_such_lane)?;
        jobs.may_pack.store(may, Ordering::Release);
        Ok(())
    }

    /// Gives `lane` something to answer. `Protocol` if there never was such a lane; one that broke answers nothing.
    pub(in crate::tree) fn push(
        &self,
        lane: u32,
        contents: impl Iterator<Item = (Owed, Arc<dyn TreeFile>)>,
    ) -> Result<()> {
        let mut inner = guard(&self.inner);
        let jobs = inner.lanes.get_mut(&lane).ok_or_else(no_such_lane)?;
        // What a broken one owes stays owed until the receiver says that it waits no more.
        jobs.waiting.extend(contents);
        self.changed.notify_all();
        Ok(())
    }

    /// The receiver expects nothing of `lane` any more.
    pub(in crate::tree) fn lose(&self, lane: u32) {
        let mut inner = guard(&self.inner);
        inner.has_lost = true;
        // Its thread, if there is one yet, finds itself gone.
        if let Some(jobs) = inner.lanes.remove(&lane) {
            inner.sent.add(&jobs.sent);
            inner.lost = inner.lost.max(Some(lane));
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

    /// Serves one connection until it, or the copy, ends; calls `came_up` once it can be used. The receiver on it is `expected`, and knows
    /// `secret`.
    pub fn serve(
        &self,
        mut channel: Box<dyn Channel>,
        hello: &Hello,
        holder: NodeId,
        secret: &Secret,
        expected: &dyn Fn(NodeId) -> bool,
        came_up: &dyn Fn(),
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
        let may_pack = self.begin(handle)?;
        came_up();
        let mut greeting = Vec::new();
        push_control(&mut greeting, &Message::Hello(hello.clone()));
        let opened = Opened { handle, size_bytes: 0, name: None };
        push_control(&mut greeting, &Message::Opened(opened));
        let now = Instant::now();
        let frames = Frames::packed_by(Packing::while_set(may_pack));
        let outgoing = Outgoing { channel, frames, said_at: now, worked_at: now };
        let wire = Wire { lanes: self, number: handle, outgoing: Mutex::new(outgoing) };
        let end = End(self, handle);
        wire.outgoing().channel.write_all(&greeting).map_err(lost)?;
        thread::scope(|scope| {
            scope.spawn(|| wire.keep_speaking());
            // Drop ends the other thread, however this one ends.
            let _end = end;
            SendLane { wire: &wire, piece: Piece::default() }.answer_all()
        })
    }

    fn end(&self, lane: u32) {
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&lane) {
            jobs.is_over = true;
        }
        self.changed.notify_all();
    }

    fn begin(&self, lane: u32) -> Result<MayPack> {
        let mut inner = guard(&self.inner);
        let serving = inner.lanes.values().filter(|jobs| !jobs.is_over).count();
        if inner.is_closed || serving >= 2 * TREE_LANES_MAX || inner.lanes.len() >= LANES_KEPT_MAX {
            return Err(Error::new(ErrorKind::Refused, "no more connections are wanted"));
        }
        if Some(lane) <= inner.lost || inner.lanes.contains_key(&lane) {
            return Err(protocol("the receiver gave two connections one number"));
        }
        let jobs = Jobs::default();
        let may_pack = jobs.may_pack.clone();
        inner.lanes.insert(lane, jobs);
        Ok(may_pack)
    }

    /// The next content for `lane`, waited for; `None` once it is to end.
    fn next(&self, lane: u32) -> Option<(Owed, Arc<dyn TreeFile>)> {
        let mut inner = guard(&self.inner);
        loop {
            let is_closed = inner.is_closed;
            let jobs = inner.lanes.get_mut(&lane).filter(|jobs| !jobs.is_over && !is_closed)?;
            let job = jobs.waiting.pop_front();
            jobs.is_busy = job.is_some();
            if job.is_some() {
                jobs.is_answering = true;
                return job;
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count_sent(&self, lane: u32, count: impl FnOnce(&mut TreeSent)) {
        if let Some(jobs) = guard(&self.inner).lanes.get_mut(&lane) {
            count(&mut jobs.sent);
        }
    }

    /// The content that `lane` is answering is about to end: the receiver may be done before its thread goes on. True if it has no other.
    fn note_answered(&self, lane: u32) -> bool {
        guard(&self.inner).lanes.get_mut(&lane).is_none_or(|jobs| {
            jobs.is_answering = false;
            jobs.waiting.is_empty()
        })
    }

    /// Waits until `lane` has something to do, and then for `time` or so; false once it is over.
    fn is_busy_for(&self, lane: u32, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut inner = guard(&self.inner);
        loop {
            let is_closed = inner.is_closed;
            let Some(jobs) = inner.lanes.get(&lane).filter(|jobs| !jobs.is_over && !is_closed) else {
                return false;
            };
            if !jobs.is_busy && jobs.waiting.is_empty() {
                inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
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

fn no_such_lane() -> Error {
    protocol("receiver asked over a connection that there is not")
}

/// Marks a lane as ended.
struct End<'a>(&'a SendLanes, u32);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// One connection, of the thread that answers and of the one that says that it does.
struct Wire<'a> {
    lanes: &'a SendLanes,
    number: u32,
    outgoing: Mutex<Outgoing>,
}

/// What leaves over it: whole frames only, while this is locked.
struct Outgoing {
    channel: Box<dyn Channel>,
    frames: Frames,
    said_at: Instant,
    /// When the thread that answers last had something to say.
    worked_at: Instant,
}

impl Wire<'_> {
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        guard(&self.outgoing)
    }

    fn flush(&self, outgoing: &mut Outgoing) -> Result<()> {
        outgoing.frames.end()?;
        if self.lanes.is_over(self.number) {
            return Err(Error::new(ErrorKind::Interrupted, "nobody waits for it"));
        }
        let begun = Instant::now();
        outgoing.channel.write_all(&outgoing.frames.out).map_err(lost)?;
        // What there is room for takes next to nothing.
        outgoing.frames.packing.waited(begun.elapsed());
        outgoing.frames.clear();
        outgoing.said_at = Instant::now();
        Ok(())
    }

    fn say_progress(&self, outgoing: &mut Outgoing) -> Result<()> {
        if outgoing.said_at.elapsed() < TOLD_INTERVAL {
            return Ok(());
        }
        outgoing.frames.control(&progress())?;
        self.flush(outgoing)
    }

    /// The second thread: a read may block for long, and a lane that says nothing would be taken for dead. What is complete leaves, too,
    /// so that the receiver sees which file it is that does not come.
    fn keep_speaking(&self) {
        let mut rest = TOLD_INTERVAL;
        while self.lanes.is_busy_for(self.number, rest) {
            let mut outgoing = self.outgoing();
            if outgoing.worked_at.elapsed() < self.lanes.file_patience
                && self.say_progress(&mut outgoing).is_err()
            {
                drop(outgoing);
                return self.lanes.end(self.number);
            }
            let silent = outgoing.said_at.elapsed();
            rest = if silent < TOLD_INTERVAL { TOLD_INTERVAL - silent } else { TOLD_INTERVAL };
        }
    }
}

/// The thread that answers.
struct SendLane<'a> {
    wire: &'a Wire<'a>,
    piece: Piece,
}

impl SendLane<'_> {
    fn answer_all(&mut self) -> Result<()> {
        let Wire { lanes, number, .. } = *self.wire;
        loop {
            let begun = Instant::now();
            let Some((owed, file)) = lanes.next(number) else { return Ok(()) };
            self.wire.outgoing().frames.packing.waited(begun.elapsed());
            answer(self, &*file, &owed)?;
            // Before it leaves.
            let is_idle = lanes.note_answered(number);
            if is_idle || owed.is_last {
                self.flush()?;
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        let mut outgoing = self.wire.outgoing();
        self.wire.flush(&mut outgoing)?;
        outgoing.worked_at = Instant::now();
        Ok(())
    }
}

impl Outlet for SendLane<'_> {
    fn change<T>(&mut self, change: impl FnOnce(&mut Frames) -> T) -> T {
        let mut outgoing = self.wire.outgoing();
        outgoing.worked_at = Instant::now();
        change(&mut outgoing.frames)
    }

    fn piece(&mut self) -> &mut Piece {
        &mut self.piece
    }

    fn make_room(&mut self, len: usize) -> Result<()> {
        let is_full = self.wire.outgoing().frames.is_full_for(len);
        if is_full { self.flush() } else { Ok(()) }
    }

    fn count_sent(&mut self, count: &dyn Fn(&mut TreeSent)) {
        self.wire.lanes.count_sent(self.wire.number, count);
    }

    fn answered(&mut self) {
        self.wire.lanes.note_answered(self.wire.number);
    }

    fn work(&mut self) -> Result<()> {
        let mut outgoing = self.wire.outgoing();
        outgoing.worked_at = Instant::now();
        self.wire.say_progress(&mut outgoing)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::transport::Security;

    /// A channel of which each write takes so long.
    struct Slow(Duration);

    impl Channel for Slow {
        fn try_read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }
        fn write_all(&mut self, _: &[u8]) -> io::Result<()> {
            thread::sleep(self.0);
            Ok(())
        }
        fn wait(&mut self, _: Option<&Wake>, _: Duration) -> io::Result<()> {
            Ok(())
        }
        fn security(&self) -> Option<Security> {
            None
        }
    }

    /// ADR 28: a lane packs more where its channel holds it up, and no more where the file that it reads
    /// does.
    #[test]
    fn the_level_follows_the_channel() {
        const LONG: Duration = Duration::from_millis(40);
        let lanes = SendLanes::new().unwrap();
        let mut number = 0;
        let mut rises = |write: Duration, read: Duration, count: u32| {
            number += 1;
            lanes.begin(number).unwrap();
            let (now, may_pack) = (Instant::now(), Arc::new(AtomicBool::new(true)));
            let frames = Frames::packed_by(Packing::while_set(may_pack));
            let outgoing = Outgoing { channel: Box::new(Slow(write)), frames, said_at: now, worked_at: now };
            let wire = Wire { lanes: &lanes, number, outgoing: Mutex::new(outgoing) };
            (0..count).any(|_| {
                let mut outgoing = wire.outgoing();
                outgoing.frames.record(&[7; 128 << 10]);
                thread::sleep(read);
                wire.flush(&mut outgoing).unwrap();
                outgoing.frames.packing.level() > Some(3)
            })
        };
        assert!(!rises(Duration::ZERO, LONG, 10));
        // Others may have all the memory for a moment.
        assert!(rises(LONG, Duration::ZERO, 1000));
    }

    /// A copy that is over is over for its lanes, too.
    #[test]
    fn lanes_end_with_the_copy() {
        let lanes = SendLanes::new().unwrap();
        lanes.begin(0).unwrap();
        assert!(!lanes.is_closed());
        lanes.close();
        assert!(lanes.is_closed());
    }

    /// Connections that ended leave room for others before the receiver says that they are lost.
    #[test]
    fn ended_lanes_leave_room_for_others() {
        let lanes = SendLanes::new().unwrap();
        for lane in 0..4 * TREE_LANES_MAX as u32 {
            lanes.begin(lane).unwrap();
            assert_eq!(lanes.count(), 1);
            drop(End(&lanes, lane));
            assert!(lanes.is_over(lane) && lanes.count() == 0);
        }
    }

    /// Issue 4 "direct paths join": however many lanes were lost, another may come; and each has a number of its own.
    #[test]
    fn lost_lanes_leave_room_for_others() {
        let lanes = SendLanes::new().unwrap();
        let last = 2 * LANES_KEPT_MAX as u32;
        for lane in 0..last {
            lanes.begin(lane).unwrap();
            lanes.count_sent(lane, |sent| sent.bytes(1));
            lanes.lose(lane);
        }
        assert_eq!(lanes.begin(last - 1).unwrap_err().kind(), ErrorKind::Protocol);
        lanes.begin(last).unwrap();
        assert_eq!(lanes.count(), 1);
        let account = lanes.account();
        assert!(account.has_lost && account.owed == 0);
        assert!(lanes.is_over(0) && !lanes.is_over(last));
    }
}
