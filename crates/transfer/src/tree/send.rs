//! The sending side of a tree copy: one thread walks ahead, this one tells its entries and sends what is asked for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::message::{Digests, DigestsSame, Entries, EntryFailed, Fault, Message, Pull, TreeDone};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Owed, TreeLanes, TreeSender, TreeSent};

use super::answer::{Outlet, TreeFile, answer};
use super::desk::Desk;
use super::frames::{Frames, Piece};
use super::lanes::{FILE_PATIENCE, SendLanes};
use super::removing::{Removes, Removing};
use super::{LAST_WORDS, TOLD_INTERVAL, progress, sign_interval};
use crate::transport::{ControlReader, Duplex, Wake, Wants};

/// How often a side with nothing to do looks around.
pub(super) const IDLE: Duration = Duration::from_millis(100);

/// Entries to tell.
#[derive(Default)]
pub struct Batch {
    /// What the receiver is told.
    pub entries: Option<Entries>,
    /// How many of its items are entries.
    pub count: u64,
    /// What can be asked for, by its place among the entries; ascending.
    pub files: Vec<(u64, Arc<dyn TreeFile>)>,
    /// Entries that could not be read, told before.
    pub failed: Vec<EntryFailed>,
    /// Told instead of entries, before all of them.
    pub digests: Option<DigestsToTell>,
}

/// Digests of directories, to which the receiver says which are the same.
pub struct DigestsToTell {
    /// What the receiver is told.
    pub digests: Digests,
    /// The roots of all sources are among them: a receiver that finds those the same may be done.
    pub has_roots: bool,
}

/// Where batches come from. Its last one says so.
pub trait TreeSource: Send {
    /// Said first: where the receiver's words on digests come (`hello` of a far end, `digests-wanted`, `digests-same`), each once at most. It
    /// ends with the copy.
    fn listen(&mut self, _words: mpsc::Receiver<Message>) {}
    /// The next batch; `None` after the last.
    fn next_batch(&mut self) -> Option<Batch>;
    /// Who removes what the receiver has in place, if that is asked for.
    fn removes(&self) -> Option<Arc<dyn Removes>> {
        None
    }
    /// What is called as soon as nobody waits for further batches, while one may still be in the making.
    fn on_end(&self) -> Option<Box<dyn Fn() + Send + Sync>> {
        None
    }
    /// Whether a receiver that is cut off is heard until it hangs up, for as long as last words take: over TCP alone it might not hear them.
    fn hears_out(&self) -> bool {
        false
    }
    /// What threads keep as long as they work for this copy, also those that nobody waits for any more.
    fn hold(&self) -> Option<Box<dyn Send>> {
        None
    }
    /// Batches that the walk may be ahead of what leaves: while the other end starts there is time to walk.
    fn batches_ahead(&self) -> usize;
}

/// Sends the trees of `source` over `channel`, on which the hellos were exchanged; `preface` goes first. `heard` gets what else the
/// receiver says, and every 200 ms `None`; it ends the copy with an error. Contents may leave over `lanes`, too. Returns what the
/// receiver says at the end.
pub fn send(
    channel: Box<dyn Duplex>,
    preface: Vec<u8>,
    source: &mut dyn TreeSource,
    lanes: Option<&SendLanes>,
    heard: &mut dyn FnMut(Option<Message>) -> Result<()>,
    patience: &dyn Fn() -> Duration,
) -> Result<TreeDone> {
    let own_wake = Wake::new().map_err(|error| Error::io("make a wake event", error))?;
    let wake = lanes.map_or(&own_wake, SendLanes::wake);
    let (sender, batches) = mpsc::sync_channel(source.batches_ahead());
    let (word, words) = mpsc::channel();
    source.listen(words);
    let removing = Removing::new(source.removes());
    let hears_out = source.hears_out();
    let on_end = source.on_end();
    let desk_wake = wake.duplicate().map_err(|error| Error::io("make a wake event", error))?;
    let desk = Desk::new(desk_wake, FILE_PATIENCE, source.hold());
    let mut server = Server {
        channel,
        reader: ControlReader::default(),
        machine: TreeSender::new(),
        batches,
        word,
        digests: 0,
        removing,
        removed: Vec::new(),
        hears_out,
        wake,
        lanes,
        desk: desk.clone(),
        files: VecDeque::new(),
        owed: VecDeque::new(),
        is_answering: false,
        frames: Frames::after(preface),
        piece: Piece::default(),
        heard,
        patience,
        heard_at: Instant::now(),
        said_at: Instant::now(),
        ticked_at: Instant::now(),
        done: None,
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Some(batch) = source.next_batch() {
                if sender.send(batch).is_err() {
                    return;
                }
                wake.signal();
            }
        });
        let result = server.run();
        // What stopped the reading, or the walk, explains more than that it was stopped.
        let result = result.map_err(|error| match error.kind() {
            ErrorKind::Unreachable => error,
            _ => (server.heard)(None).err().unwrap_or(error),
        });
        on_end.into_iter().for_each(|end| end());
        desk.close();
        // Nothing else is to leave before the last words.
        if let Some(lanes) = lanes {
            lanes.close();
        }
        let result = result.or_else(|error| server.end(error));
        // Ends the walk, which may wait for room.
        drop(server);
        result
    })
}

/// A file that was told.
struct Told {
    number: u64,
    /// `None` once it will not be asked for again.
    file: Option<Arc<dyn TreeFile>>,
    /// It was asked for with the hash of what is there.
    was_compared: bool,
}

impl Told {
    /// True if it may be asked for after `owed`: what was hashed may change. Once, as each time all of it is read.
    fn may_be_compared(&mut self, owed: &Owed) -> bool {
        owed.known.is_some() && !std::mem::replace(&mut self.was_compared, true)
    }
}

struct Server<'a> {
    channel: Box<dyn Duplex>,
    reader: ControlReader,
    machine: TreeSender,
    batches: mpsc::Receiver<Batch>,
    /// To the source; nobody may listen.
    word: mpsc::Sender<Message>,
    /// How many were told.
    digests: usize,
    /// What the receiver has in place and is still at its source.
    removing: Removing,
    /// What is to be said of what was removed.
    removed: Vec<Message>,
    hears_out: bool,
    wake: &'a Wake,
    lanes: Option<&'a SendLanes>,
    desk: Arc<Desk>,
    /// What can be asked for, by number, ascending.
    files: VecDeque<Told>,
    /// What was asked for over this channel, in that order; as many as the machine says are owed.
    owed: VecDeque<Arc<dyn TreeFile>>,
    /// A content is on its way over this channel.
    is_answering: bool,
    frames: Frames,
    piece: Piece,
    heard: &'a mut dyn FnMut(Option<Message>) -> Result<()>,
    patience: &'a dyn Fn() -> Duration,
    heard_at: Instant,
    said_at: Instant,
    ticked_at: Instant,
    done: Option<TreeDone>,
}

impl Server<'_> {
    fn run(&mut self) -> Result<TreeDone> {
        self.flush()?;
        self.listen()?;
        loop {
            if let Some(done) = self.done {
                return Ok(done);
            }
            self.remove()?;
            self.say()?;
            let has_told = self.tell()?;
            if let Some(owed) = self.machine.next_owed() {
                self.answer(&owed)?;
                continue;
            }
            self.flush()?;
            if !has_told && self.removing.is_empty() {
                self.rest()?;
            }
            self.listen()?;
        }
    }

    /// Nothing to do until something comes.
    fn rest(&mut self) -> Result<()> {
        self.say_progress()?;
        let (wants, begun) = (Wants { read: true, write: false }, Instant::now());
        self.channel.wait_for(wants, Some(self.wake), IDLE).map_err(lost)?;
        // Else it is the walk that is waited for.
        if !self.machine.may_tell() {
            let waited = begun.elapsed();
            self.frames.packing.waited(waited);
            self.channel.awaited(waited);
        }
        Ok(())
    }

    /// A walk and a hash may take long: who says nothing would be taken for dead.
    fn say_progress(&mut self) -> Result<()> {
        if self.said_at.elapsed() >= sign_interval((self.patience)()) {
            self.frames.control(&progress())?;
            self.flush()?;
        }
        Ok(())
    }

    /// What lanes have to say, and what was cut.
    fn say(&mut self) -> Result<()> {
        let said = self.lanes.map(SendLanes::said).unwrap_or_default();
        let cut = self.desk.take();
        self.desk.check()?;
        let removed = std::mem::take(&mut self.removed);
        if !said.is_empty() || !cut.is_empty() || !removed.is_empty() {
            removed.iter().chain(&said).try_for_each(|message| self.frames.control(message))?;
            self.frames.whole(&cut)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Takes in what the receiver has said.
    fn listen(&mut self) -> Result<()> {
        let is_tick = self.ticked_at.elapsed() >= TOLD_INTERVAL;
        if is_tick {
            self.ticked_at = Instant::now();
            (self.heard)(None)?;
        }
        let is_open = self.reader.fill(&mut *self.channel).map_err(lost)?;
        let check = |head: FrameHead| match head {
            FrameHead { kind: FrameKind::Control, request: 0, .. } => Ok(()),
            _ => Err(Error::new(ErrorKind::Protocol, "receiver sent what is no control frame")),
        };
        while let Some(body) = self.reader.next(&check)? {
            self.heard_at = Instant::now();
            if self.done.is_some() {
                return Err(Error::new(ErrorKind::Protocol, "receiver went on after its end"));
            }
            match Message::from_bytes(&body)? {
                Message::Pull(pull) => self.pull(pull)?,
                Message::TreeDone(done) => {
                    if !self.removing.is_empty() {
                        let what = "receiver ended before it was told what became of what it has in place";
                        return Err(Error::new(ErrorKind::Protocol, what));
                    }
                    let mut lanes = self.lanes.map_or_else(TreeLanes::default, SendLanes::account);
                    let (cut, owed) = self.desk.account();
                    lanes.sent.add(&cut);
                    lanes.owed += owed;
                    self.machine.handle_done(&done, &lanes)?;
                    if self.is_answering {
                        let what = "receiver ended before the last content that it asked for came";
                        return Err(Error::new(ErrorKind::Protocol, what));
                    }
                    if self.machine.awaits_same() {
                        let same = DigestsSame::of(&vec![true; self.digests]);
                        let _ = self.word.send(Message::DigestsSame(same));
                    }
                    self.done = Some(done);
                }
                Message::DigestsWanted(wanted) => {
                    self.machine.handle_wanted()?;
                    let _ = self.word.send(Message::DigestsWanted(wanted));
                }
                Message::DigestsSame(same) => {
                    self.machine.handle_same(&same)?;
                    let _ = self.word.send(Message::DigestsSame(same));
                }
                Message::InPlace(in_place) => self.removing.push(in_place, self.machine.entries())?,
                message => {
                    let hello = if let Message::Hello(_) = &message { Some(message.clone()) } else { None };
                    (self.heard)(Some(message))?;
                    // It was the first, or that is an error.
                    if let Some(hello) = hello {
                        let _ = self.word.send(hello);
                    }
                }
            }
        }
        if !is_open && self.done.is_none() {
            return Err(Error::new(ErrorKind::Unreachable, "the other side closed the connection"));
        }
        if is_tick && self.heard_at.elapsed() > (self.patience)() {
            return Err(Error::new(ErrorKind::TimedOut, "the other side said nothing for too long")
                .advise("the same command again goes on where this one stopped"));
        }
        Ok(())
    }

    /// Removes some of what the receiver has in place, and says that it lives.
    fn remove(&mut self) -> Result<()> {
        if self.removing.is_empty() {
            return Ok(());
        }
        self.removed.extend(self.removing.step(Instant::now() + TOLD_INTERVAL));
        self.say_progress()
    }

    /// Contents are asked for; what is settled is forgotten.
    fn pull(&mut self, pull: Pull) -> Result<()> {
        if let Some(lost) = pull.lost {
            self.lanes.ok_or_else(no_lanes)?.lose(lost);
        }
        if let Some(may) = pull.pack {
            self.may_pack(pull.lane, may)?;
        }
        let elsewhere = self.lanes.map_or(0, |lanes| lanes.account().owed);
        self.machine.handle_pull(&pull, elsewhere)?;
        let owed = Owed::of(&pull);
        let mut found = Vec::with_capacity(owed.len());
        for owed in &owed {
            // Over a connection that may be lost, or in parts, it may be asked for again until it is settled.
            let may_come_again = pull.lane.is_some() || owed.part.is_some() || owed.is_question();
            let at = self.files.binary_search_by_key(&owed.number, |told| told.number);
            let told = at.ok().and_then(|at| self.files.get_mut(at));
            let file = told.and_then(|told| match may_come_again || told.may_be_compared(owed) {
                true => told.file.clone(),
                false => told.file.take(),
            });
            let Some(file) = file else {
                let what = format!(
                    "receiver asked for the content of entry {}, which has none or was asked for",
                    owed.number
                );
                return Err(Error::new(ErrorKind::Protocol, what));
            };
            found.push(file);
        }
        match pull.lane {
            None if owed.iter().any(Owed::is_question) => {
                self.desk.push(owed.into_iter().zip(found))?;
                self.desk.start()?;
            }
            None => self.owed.extend(found),
            Some(lane) => {
                self.lanes.ok_or_else(no_lanes)?.push(lane, owed.into_iter().zip(found))?;
            }
        }
        let settled = self.machine.settled();
        while self.files.front().is_some_and(|told| told.number < settled || told.file.is_none()) {
            self.files.pop_front();
        }
        Ok(())
    }

    /// The receiver says whether what leaves over a path may be packed. What is packed as a whole already is not packed once more.
    fn may_pack(&self, lane: Option<u32>, may: bool) -> Result<()> {
        match lane {
            Some(lane) => self.lanes.ok_or_else(no_lanes)?.permit(lane, may),
            None => {
                self.frames.packing.permit(may && !self.channel.is_packed());
                Ok(())
            }
        }
    }

    /// Tells a batch, if there is one and it may leave.
    fn tell(&mut self) -> Result<bool> {
        if !self.machine.may_tell() || self.removing.is_behind() {
            return Ok(false);
        }
        let batch = match self.batches.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "the walk ended in the middle"));
            }
        };
        for failed in batch.failed {
            self.frames.control(&Message::EntryFailed(failed))?;
        }
        if let Some(DigestsToTell { digests, has_roots }) = batch.digests {
            self.digests = digests.iter().len();
            self.machine.told_digests(self.digests, has_roots);
            self.frames.control(&Message::Digests(digests))?;
            self.flush()?;
        }
        let Some(entries) = batch.entries else { return Ok(true) };
        let is_last = entries.is_last;
        self.frames.control(&Message::Entries(entries))?;
        let told = self.machine.entries();
        self.files.extend(batch.files.into_iter().map(|(at, file)| Told {
            number: told + at,
            file: Some(file),
            was_compared: false,
        }));
        self.machine.told(batch.count, is_last);
        self.flush()?;
        self.listen()?;
        Ok(true)
    }

    /// Sends one content.
    fn answer(&mut self, owed: &Owed) -> Result<()> {
        let Some(file) = self.owed.pop_front() else {
            return Err(Error::new(ErrorKind::Internal, "a content is owed that was not asked for"));
        };
        self.is_answering = true;
        answer(self, &*file, owed)?;
        self.is_answering = false;
        Ok(())
    }

    /// Sends what is there. While there is no room the receiver is heard: it may wait for room itself.
    fn flush(&mut self) -> Result<()> {
        self.frames.end()?;
        let mut full_since = None;
        while self.frames.left < self.frames.out.len() {
            let count = self.channel.try_write(&self.frames.out[self.frames.left..]).map_err(lost)?;
            self.frames.left += count;
            if count == 0 {
                full_since.get_or_insert_with(Instant::now);
                self.listen()?;
                let wants = Wants { read: true, write: true };
                self.channel.wait_for(wants, None, IDLE).map_err(lost)?;
            }
        }
        if let Some(since) = full_since {
            self.frames.packing.waited(since.elapsed());
        }
        if self.frames.left > 0 {
            self.frames.clear();
            self.said_at = Instant::now();
        }
        Ok(())
    }

    /// The copy failed here: the receiver is told why, or has said why it hung up, which may be that it is through.
    fn end(&mut self, error: Error) -> Result<TreeDone> {
        if error.kind() == ErrorKind::Unreachable {
            self.listen()?;
            return self.done.ok_or(error);
        }
        let begun = Instant::now();
        // What left in part leaves whole, so that the last word is understood. Of what was packed nothing more follows, so that it need not leave.
        let _ = self.frames.end();
        if self.frames.left == 0 {
            self.frames.clear();
        }
        let _ = self.frames.control(&Message::Fault(Fault::from_error(None, &error)));
        let told = last_words(&mut *self.channel, &self.frames.out[self.frames.left..]);
        if told.is_ok() && self.hears_out {
            let _ = hear_out(&mut *self.channel, begun + LAST_WORDS);
        }
        Err(error)
    }
}

fn no_lanes() -> Error {
    Error::new(ErrorKind::Protocol, "receiver speaks of direct connections, of which there are none")
}

impl Outlet for Server<'_> {
    fn change<T>(&mut self, change: impl FnOnce(&mut Frames) -> T) -> T {
        change(&mut self.frames)
    }

    fn piece(&mut self) -> &mut Piece {
        &mut self.piece
    }

    fn make_room(&mut self, len: usize) -> Result<()> {
        if self.frames.is_full_for(len) {
            self.flush()?;
            self.say()?;
            self.listen()?;
        }
        Ok(())
    }

    fn count_sent(&mut self, count: &dyn Fn(&mut TreeSent)) {
        count(self.machine.sent());
    }

    fn work(&mut self) -> Result<()> {
        if self.said_at.elapsed() >= TOLD_INTERVAL {
            self.flush()?;
            self.say_progress()?;
        }
        if self.ticked_at.elapsed() >= TOLD_INTERVAL {
            // What was cut meanwhile does not wait for a long hash.
            self.say()?;
            self.listen()?;
        }
        Ok(())
    }
}

/// Reads what the other side still says, until it hangs up or `deadline`: of a connection that is closed with something unread, what has not
/// left yet is lost.
fn hear_out(channel: &mut dyn Duplex, deadline: Instant) -> std::io::Result<()> {
    let mut unheard = vec![0; 64 * 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        match channel.try_read(&mut unheard)? {
            Some(0) => return Ok(()),
            Some(_) => {}
            None => channel.wait_for(Wants { read: true, write: false }, None, left.min(IDLE))?,
        }
    }
}

/// Writes `data` as long as the other side reads it, and not for long.
pub(super) fn last_words(channel: &mut dyn Duplex, mut data: &[u8]) -> std::io::Result<()> {
    let deadline = Instant::now() + LAST_WORDS;
    // What the other side still says makes room for it to hear.
    let mut unheard = vec![0; 64 * 1024];
    let mut is_open = true;
    while !data.is_empty() || channel.has_backlog() {
        let count = channel.try_write(data)?;
        data = &data[count..];
        if count == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            is_open = is_open && channel.try_read(&mut unheard)? != Some(0);
            channel.wait_for(Wants { read: is_open, write: true }, None, left.min(IDLE))?;
        }
    }
    Ok(())
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection lost", error)
}

#[cfg(test)]
mod tests {
    use dray_core::message::Run;
    use dray_core::tree::Record;

    use super::super::SIGN_INTERVAL;
    use super::super::answer::{RecordSink, SendError};
    use super::super::script::{Script, frames};
    use super::*;
    use crate::transport::push_control;

    /// One file, which has this content.
    struct OneFile(Option<Batch>);

    struct Content(&'static [u8]);

    impl TreeFile for Content {
        fn send(
            &self,
            _: Option<[u8; 32]>,
            _: Option<dray_core::message::Part>,
            sink: &mut dyn RecordSink,
        ) -> std::result::Result<(), SendError> {
            sink.record(&Record::Bytes(self.0))
        }
    }

    impl TreeSource for OneFile {
        fn next_batch(&mut self) -> Option<Batch> {
            self.0.take()
        }
        fn batches_ahead(&self) -> usize {
            1
        }
    }

    fn frame(message: &Message) -> Vec<u8> {
        let mut frame = Vec::new();
        push_control(&mut frame, message);
        frame
    }

    /// Asks for the file, and says that it may come packed if `pack` is set.
    fn pull(pack: Option<bool>) -> Message {
        let run = Run { first: 0, count: 1, ..Run::default() };
        let batches = dray_core::limits::TREE_BATCHES_MAX.into();
        let (runs, settled) = (vec![run], 0);
        Message::Pull(Pull { request: 1, runs, settled, batches, pack, ..Pull::default() })
    }

    /// What leaves of a file with this content until `script` says something that nobody expects, and how it ended.
    fn sent(
        content: &'static [u8],
        script: impl FnOnce(usize) -> Script,
    ) -> (Vec<(FrameHead, Vec<u8>)>, Error) {
        let entries = Entries { items: vec![vec![0].into()], owners: None, is_last: true, listed: None };
        let preface = frame(&progress());
        let script = script(preface.len() + frame(&Message::Entries(entries.clone())).len());
        let taken = script.taken();
        let files: Vec<(u64, Arc<dyn TreeFile>)> = vec![(0, Arc::new(Content(content)))];
        let batch = Batch { entries: Some(entries), count: 1, files, ..Batch::default() };
        // Whatever it hears ends it.
        let mut heard = |message: Option<Message>| match message {
            Some(_) => Err(Error::new(ErrorKind::Interrupted, "stopped here")),
            None => Ok(()),
        };
        let patience = || Duration::from_secs(600);
        let ended = send(Box::new(script), preface, &mut OneFile(Some(batch)), None, &mut heard, &patience);
        let taken = taken.lock().unwrap();
        (frames(&taken), ended.unwrap_err())
    }

    /// P5: a sender that has nothing to say says that it lives, within each second, and no oftener than that takes.
    #[test]
    fn signs_of_life_are_few() {
        let script = Script::mute();
        let (taken, patience) = (script.taken(), SIGN_INTERVAL * 10);
        let entries = Entries { items: vec![vec![0].into()], owners: None, is_last: true, listed: None };
        let batch = Batch { entries: Some(entries), count: 1, ..Batch::default() };
        let (mut source, mut heard) = (OneFile(Some(batch)), |_| Ok(()));
        let ended = send(Box::new(script), Vec::new(), &mut source, None, &mut heard, &|| patience);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::TimedOut);
        let said = frames(&taken.lock().unwrap());
        let signs = said.iter().filter(|(_, body)| **body == progress().to_bytes()).count();
        assert!((6..=11).contains(&signs), "{signs} signs of life in {patience:?}");
    }

    /// Protocol "Tree copies": a sender that ends while a frame has left in part sends the rest of it first, so that the receiver understands why it ended.
    #[test]
    fn the_last_word_comes_behind_a_whole_frame() {
        use FrameKind::{Control, Data, End};
        const CONTENT: &[u8] = &[7; 1000];
        let (taken, ended) = sent(CONTENT, |told_at| {
            Script::new([(told_at, frame(&pull(None))), (told_at + 300, frame(&progress()))])
        });
        assert_eq!(ended.kind(), ErrorKind::Interrupted);
        let mut content = Vec::new();
        Record::Bytes(CONTENT).push(&mut content);
        let kinds: Vec<FrameKind> = taken.iter().map(|(head, _)| head.kind).collect();
        assert_eq!(kinds, [Control, Control, Data, End, Control]);
        assert!(taken[0].1 == progress().to_bytes() && taken[2].1 == content);
        let why = &taken[4].1;
        let Message::Fault(fault) = Message::from_bytes(why).unwrap() else { panic!("{why:?}") };
        assert_eq!(fault, Fault::from_error(None, &ended));
    }

    /// Protocol "Tree copies", feature `tree-compared`: what was asked for with a hash is sent once more and no third time, and what was asked for without one is not.
    #[test]
    fn what_was_compared_is_sent_once_more() {
        const CONTENT: &[u8] = &[7; 1000];
        for known in [Some([1; 32].into()), None] {
            let again = |request, known: Option<_>| {
                let Message::Pull(mut pull) = pull(None) else { unreachable!() };
                (pull.request, pull.runs[0].known) = (request, known);
                frame(&Message::Pull(pull))
            };
            let (taken, ended) = sent(CONTENT, |told_at| {
                let pulls = [again(1, known), again(2, None), again(3, known)];
                Script::new(pulls.into_iter().enumerate().map(|(count, pull)| (told_at + count * 1000, pull)))
            });
            assert_eq!(ended.kind(), ErrorKind::Protocol);
            assert!(ended.to_string().contains("entry 0, which has none or was asked for"), "{ended}");
            let ends = taken.iter().filter(|(head, _)| head.kind == FrameKind::End).count();
            assert_eq!(ends, if known.is_some() { 2 } else { 1 });
        }
    }

    /// ADR 28: contents leave packed where the receiver said so, and where not everything is compressed anyway (ADR 16).
    #[test]
    fn contents_are_packed_once() {
        const CONTENT: &[u8] = &[7; 100_000];
        let kind = |pack: Option<bool>, is_packed: bool| {
            let (taken, _) = sent(CONTENT, |told_at| {
                let script = Script::new([(told_at, frame(&pull(pack))), (told_at + 20, frame(&progress()))]);
                if is_packed { script.packed() } else { script }
            });
            taken[2].0.kind
        };
        assert_eq!(kind(None, false), FrameKind::Data);
        assert_eq!(kind(Some(false), false), FrameKind::Data);
        // Another test has all the memory for a moment.
        let is_packed = |_| {
            thread::sleep(Duration::from_millis(1));
            kind(Some(true), false) == FrameKind::Packed
        };
        assert!((0..1000).any(is_packed));
        assert_eq!(kind(Some(true), true), FrameKind::Data);
    }
}
