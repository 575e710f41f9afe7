//! Where cuts of files are made at the sender of a tree: on a thread of their own, beside the contents, because a file takes as long to
//! cut as it takes to read. The answers leave over the channel of the copy between two frames of whatever else leaves there.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::limits::{TREE_CUT_PULLS_MAX, TREE_CUTS_MAX};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeSent};

use super::answer::{Outlet, TreeFile, answer};
use super::frames::{Frames, Piece};
use super::gathering::Gathering;
use crate::transport::Wake;

/// Bytes of answers that may wait to leave; one frame more.
const WAITING_BYTES: usize = 256 * 1024;

/// The desk of one copy.
pub(super) struct Desk {
    inner: Mutex<Inner>,
    changed: Condvar,
    wake: Wake,
    /// How long one read of a file may take.
    patience: Duration,
    /// What the thread keeps as long as it is there.
    hold: Mutex<Option<Box<dyn Send>>>,
}

#[derive(Default)]
struct Inner {
    jobs: VecDeque<(Owed, Arc<dyn TreeFile>)>,
    is_answering: bool,
    /// When the file that is being cut was last seen to be read; `None` while nothing is read.
    worked_at: Option<Instant>,
    /// There is a thread.
    is_started: bool,
    /// Frames that are to leave.
    out: Vec<u8>,
    sent: TreeSent,
    is_closed: bool,
    /// Nobody cuts any more.
    is_over: bool,
}

/// Says that the thread broke: else nobody would answer, and the copy would not end.
struct Over<'a>(&'a Desk);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().is_over = true;
            self.0.wake.signal();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Interrupted, "nobody waits for it")
}

impl Desk {
    /// `wake` is signalled when something is to leave; one read of a file may take as long as `patience`. Whoever cuts has `hold` until it ends.
    pub(super) fn new(wake: Wake, patience: Duration, hold: Option<Box<dyn Send>>) -> Arc<Desk> {
        let hold = Mutex::new(hold);
        Arc::new(Desk { inner: Mutex::default(), changed: Condvar::new(), wake, patience, hold })
    }

    /// Has somebody cut, unless there is who does. The copy does not wait for that thread: it may be in a read that never ends.
    pub(super) fn start(self: &Arc<Desk>) -> Result<()> {
        if std::mem::replace(&mut self.lock().is_started, true) {
            return Ok(());
        }
        let desk = self.clone();
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        let started = std::thread::Builder::new().spawn(move || {
            desk.serve();
            drop(hold);
        });
        started.map(|_| ()).map_err(|error| Error::io("start a thread", error))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More is to be cut. `Protocol` if that is more than may be under way.
    pub(super) fn push(&self, jobs: impl Iterator<Item = (Owed, Arc<dyn TreeFile>)>) -> Result<()> {
        let mut inner = self.lock();
        inner.jobs.extend(jobs);
        // A pull counts until its last cut begins, so that who counts until its end has come never asks for more.
        let pulls = inner.jobs.iter().filter(|(owed, _)| owed.is_last).count();
        if inner.jobs.len() > TREE_CUTS_MAX || pulls > TREE_CUT_PULLS_MAX {
            return Err(Error::new(
                ErrorKind::Protocol,
                "receiver asked for more cuts than may be under way",
            ));
        }
        self.changed.notify_all();
        Ok(())
    }

    /// What is to leave now: whole frames.
    pub(super) fn take(&self) -> Vec<u8> {
        let out = std::mem::take(&mut self.lock().out);
        if !out.is_empty() {
            self.changed.notify_all();
        }
        out
    }

    /// An error if nothing will be cut any more, though the copy is not over.
    pub(super) fn check(&self) -> Result<()> {
        let inner = self.lock();
        if inner.is_over && !inner.is_closed {
            return Err(Error::new(ErrorKind::Internal, "a thread failed"));
        }
        if inner.worked_at.is_some_and(|at| at.elapsed() > self.patience) {
            return Err(Error::new(
                ErrorKind::TimedOut,
                "a file cannot be read: one read of it does not end",
            )
            .advise("look whether its disk or server answers"));
        }
        Ok(())
    }

    /// What left, and how much is owed.
    pub(super) fn account(&self) -> (TreeSent, u64) {
        let inner = self.lock();
        (inner.sent, inner.jobs.len() as u64 + u64::from(inner.is_answering))
    }

    /// The copy is over.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Cuts what is asked for until the copy is over.
    pub(super) fn serve(&self) {
        let _over = Over(self);
        let mut answering = Answer {
            desk: self,
            frames: Frames::default(),
            piece: Piece::default(),
            gathering: Gathering::default(),
            may_wait: true,
            answers: 0,
        };
        while let Some((owed, file)) = self.next() {
            if answering.answer(&owed, &*file).is_err() {
                return;
            }
        }
    }

    /// The next job, waited for; `None` once the copy is over.
    fn next(&self) -> Option<(Owed, Arc<dyn TreeFile>)> {
        let mut inner = self.lock();
        loop {
            if inner.is_closed {
                return None;
            }
            if let Some(job) = inner.jobs.pop_front() {
                (inner.is_answering, inner.worked_at) = (true, Some(Instant::now()));
                return Some(job);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The answer on its way.
struct Answer<'a> {
    desk: &'a Desk,
    frames: Frames,
    piece: Piece,
    gathering: Gathering,
    /// All that is there says that files are what the receiver has, so many: it has others to compare meanwhile.
    may_wait: bool,
    answers: usize,
}

impl Answer<'_> {
    fn answer(&mut self, owed: &Owed, file: &dyn TreeFile) -> Result<()> {
        answer(self, file, owed)?;
        // Before it leaves: the receiver may answer sooner than this thread goes on.
        let mut inner = self.desk.lock();
        (inner.is_answering, inner.worked_at) = (false, None);
        let is_last = inner.jobs.is_empty();
        drop(inner);
        self.answers += 1;
        if is_last { self.flush() } else { self.flush_if_due() }
    }

    /// Hands over what there is, unless it may wait for more.
    fn flush_if_due(&mut self) -> Result<()> {
        let waits = self.may_wait && self.gathering.until(self.answers, Instant::now()).is_some();
        if waits { Ok(()) } else { self.flush() }
    }

    /// Hands over what there is, once there is room for it.
    fn flush(&mut self) -> Result<()> {
        self.frames.end()?;
        let is_full = |inner: &mut Inner| inner.out.len() > WAITING_BYTES && !inner.is_closed;
        let mut inner = self.desk.lock();
        // Who waits for room waits for no file.
        inner.worked_at = None;
        let inner = self.desk.changed.wait_while(inner, is_full);
        let mut inner = inner.unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed {
            return Err(closed());
        }
        inner.worked_at = inner.is_answering.then(Instant::now);
        if !self.frames.out.is_empty() {
            inner.out.append(&mut self.frames.out);
            self.gathering.leave(Instant::now());
        }
        drop(inner);
        (self.may_wait, self.answers) = (true, 0);
        self.desk.wake.signal();
        Ok(())
    }
}

impl Outlet for Answer<'_> {
    fn change<T>(&mut self, change: impl FnOnce(&mut Frames) -> T) -> T {
        change(&mut self.frames)
    }

    fn piece(&mut self) -> &mut Piece {
        &mut self.piece
    }

    fn make_room(&mut self, len: usize) -> Result<()> {
        if self.frames.is_full_for(len) { self.flush() } else { Ok(()) }
    }

    fn count_sent(&mut self, count: &dyn Fn(&mut TreeSent)) {
        count(&mut self.desk.lock().sent);
    }

    fn awaited(&mut self) {
        self.may_wait = false;
    }

    fn work(&mut self) -> Result<()> {
        let mut inner = self.desk.lock();
        inner.worked_at = Some(Instant::now());
        if inner.is_closed {
            return Err(closed());
        }
        drop(inner);
        // The next file may take long.
        if self.may_wait && !self.frames.out.is_empty() { self.flush_if_due() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use dray_core::message::Part;
    use dray_core::tree::{ChunkHint, Finished, Record, encode_chunks};

    use super::super::answer::{RecordSink, SendError};
    use super::*;

    const FINISHED: Finished = Finished { hash: [0; 32], size_bytes: 1, mtime_s: 0, mtime_ns: 0 };

    type Answered = std::result::Result<(), SendError>;

    /// A file whose cut is told like this.
    struct Told<F>(F);

    impl<F: Fn(&mut dyn RecordSink) -> Answered + Send + Sync> TreeFile for Told<F> {
        fn send(&self, _: Option<[u8; 32]>, _: Option<Part>, _: &mut dyn RecordSink) -> Answered {
            Err(SendError::File(Error::new(ErrorKind::Internal, "a cut was asked for")))
        }

        fn cut(&self, _: &Owed, sink: &mut dyn RecordSink) -> Answered {
            (self.0)(sink)
        }
    }

    /// One that has much to tell.
    fn long() -> Arc<dyn TreeFile> {
        Arc::new(Told(|sink: &mut dyn RecordSink| {
            let chunks = encode_chunks(&[ChunkHint { len: 1, hash: [7; 16] }; 1000]);
            for _ in 0..100 {
                sink.record(&Record::Chunks(&chunks))?;
            }
            sink.record(&Record::Done(FINISHED))
        }))
    }

    /// One whose disk does not answer for now.
    fn mute(answers: std::sync::mpsc::Receiver<()>) -> Arc<dyn TreeFile> {
        let answers = Mutex::new(answers);
        Arc::new(Told(move |_: &mut dyn RecordSink| {
            let _ = answers.lock().unwrap().recv();
            Err(SendError::File(Error::new(ErrorKind::Internal, "read at last")))
        }))
    }

    /// One that is what the receiver has, or another.
    fn brief(is_same: bool) -> impl TreeFile {
        Told(move |sink: &mut dyn RecordSink| {
            sink.work()?;
            if is_same {
                return sink.record(&Record::Same(FINISHED));
            }
            sink.record(&Record::Chunks(&encode_chunks(&[ChunkHint { len: 1, hash: [7; 16] }; 100])))?;
            sink.record(&Record::Done(FINISHED))
        })
    }

    fn new_desk() -> Arc<Desk> {
        Desk::new(Wake::new().unwrap(), Duration::from_millis(1), None)
    }

    fn jobs(request: u32, count: usize) -> impl Iterator<Item = (Owed, Arc<dyn TreeFile>)> {
        (0..count).map(move |at| {
            let part = Some(Part { start: 0, bytes: 1 });
            let is_last = at + 1 == count;
            let owed =
                Owed { request, number: 1, known: None, part, cut: Some(4096), is_last, ..Owed::default() };
            (owed, long())
        })
    }

    /// P5: that files are the same leaves together, and with whatever else there is; not behind the last, nor later than it should.
    #[test]
    fn what_is_the_same_is_told_together() {
        let desk = new_desk();
        desk.push(jobs(1, 1)).unwrap();
        let mut answering = Answer {
            desk: &desk,
            frames: Frames::default(),
            piece: Piece::default(),
            gathering: Gathering::default(),
            may_wait: true,
            answers: 0,
        };
        let answer = |answering: &mut Answer<'_>, request, is_same| {
            let owed = Owed { request, number: 1, is_last: true, cut: Some(4096), ..Owed::default() };
            answering.answer(&owed, &brief(is_same)).unwrap();
            desk.take().len()
        };
        let one = answer(&mut answering, 2, true);
        assert!(one > 0, "the first does not wait");
        // As if there had been answers for long, the last of them just now.
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        answering.gathering = Gathering::default();
        answering.gathering.until(0, long_ago);
        answering.gathering.leave(Instant::now());
        assert_eq!([3, 4].map(|request| answer(&mut answering, request, true)), [0, 0]);
        assert!(answer(&mut answering, 5, false) > 3 * one, "chunks are waited for");
        answering.gathering.leave(Instant::now());
        assert_eq!(answer(&mut answering, 6, true), 0);
        // While the next file is cut it is time for this one.
        answering.gathering.leave(long_ago);
        assert_eq!(answer(&mut answering, 7, true), one);
        answering.gathering.leave(Instant::now());
        desk.lock().jobs.clear();
        assert_eq!(answer(&mut answering, 8, true), 2 * one, "nothing comes after it");
    }

    /// Design 17: no receiver makes the sender remember more cuts than may be under way.
    #[test]
    fn more_cuts_than_may_be_under_way_are_refused() {
        let desk = new_desk();
        desk.push(jobs(1, TREE_CUTS_MAX)).unwrap();
        assert_eq!(desk.account().1, TREE_CUTS_MAX as u64);
        assert_eq!(desk.push(jobs(2, 1)).unwrap_err().kind(), ErrorKind::Protocol);
        let desk = new_desk();
        (0..TREE_CUT_PULLS_MAX as u32).for_each(|request| desk.push(jobs(request, 1)).unwrap());
        assert_eq!(desk.push(jobs(99, 1)).unwrap_err().kind(), ErrorKind::Protocol);
    }

    /// Design 17: answers that nobody takes wait in bounded memory, and the end of the copy ends the wait.
    #[test]
    fn answers_wait_for_who_takes_them() {
        let desk = new_desk();
        desk.push(jobs(1, 3)).unwrap();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| desk.serve());
            while desk.lock().out.len() <= WAITING_BYTES {
                std::thread::yield_now();
            }
            assert!(!serving.is_finished(), "6 MB of answers are somewhere");
            desk.close();
        });
        let (out, (_, owed)) = (desk.take().len(), desk.account());
        assert!(out < 3 * WAITING_BYTES, "{out} bytes waited");
        assert!(owed > 0 && desk.check().is_ok());
    }

    /// Threat model "a disk that does not answer": what counts whoever works for a copy counts the thread that is left behind in a read, too.
    #[test]
    fn what_is_held_is_held_until_the_read_ends() {
        let (release, held) = std::sync::mpsc::channel();
        let counted = Arc::new(());
        let desk = Desk::new(Wake::new().unwrap(), Duration::from_millis(1), Some(Box::new(counted.clone())));
        let mute = mute(held);
        desk.start().unwrap();
        desk.push(jobs(1, 1).map(|(owed, _)| (owed, mute.clone()))).unwrap();
        while desk.lock().worked_at.is_none() {
            std::thread::yield_now();
        }
        desk.close();
        drop(desk);
        assert_eq!(Arc::strong_count(&counted), 2, "it is in that read");
        drop(release);
        while Arc::strong_count(&counted) > 1 {
            std::thread::yield_now();
        }
    }

    /// S10 "every transfer ends": a read that does not end is an error, and nobody waits for whoever reads.
    #[test]
    fn a_file_that_cannot_be_read_ends_the_wait() {
        let (release, held) = std::sync::mpsc::channel();
        let (desk, mute) = (new_desk(), mute(held));
        desk.start().unwrap();
        assert!(desk.check().is_ok(), "there is nothing to be read");
        desk.push(jobs(1, 1).map(|(owed, _)| (owed, mute.clone()))).unwrap();
        let error = loop {
            if let Err(error) = desk.check() {
                break error;
            }
            std::thread::yield_now();
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(release);
        while desk.account().1 > 0 {
            std::thread::yield_now();
        }
        assert!(desk.check().is_ok(), "it was read at last");
    }
}
