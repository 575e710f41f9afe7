//! How requests are dealt to the lanes of one source, over a channel that says what it is told to and keeps what it hears.

use std::io;
use std::sync::{OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::hash_tree::Geometry;
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::message::{Hello, PROTOCOL_VERSION};
use dray_core::permit::Budget;
use dray_core::source::{Flow, SourceCapabilities};
use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::transport::{Security, Solo, poll_fds, push_control, wait_readable};

/// Asks for three units as soon as the source is up.
#[derive(Default)]
struct Asks(OnceLock<Weak<LaneSet>>);

impl SourceEvents for Asks {
    fn event(&self, _: SourceId, event: SourceEvent<'_>) -> Flow {
        let set = self.0.get().and_then(Weak::upgrade);
        if let (SourceEvent::Group { .. }, Some(set)) = (&event, &set) {
            assert!(set.has_unread(), "more may have come meanwhile");
        }
        if let (SourceEvent::Up { .. }, Some(set)) = (event, set) {
            let budget = Budget::new(3 * UNIT_BYTES);
            for unit in 0..3 {
                set.call(SourceCall::Fetch {
                    request: RequestId(unit + 1),
                    groups: Geometry::new(3 * UNIT_BYTES).unit(u64::from(unit)),
                    known_depth: 0,
                    recheck: false,
                    permit: budget.try_reserve(UNIT_BYTES).unwrap(),
                });
            }
        }
        Flow::Continue
    }
}

/// Each time the lane waits, the next of `answers` comes, and the requests it has sent so far are counted. Then the source is closed.
struct Script {
    set: Arc<LaneSet>,
    answers: VecDeque<Vec<u8>>,
    coming: VecDeque<u8>,
    heard: Vec<u8>,
    counts: Arc<Mutex<Vec<usize>>>,
}

impl Channel for Script {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let len = out.len().min(self.coming.len());
        for (to, from) in out.iter_mut().zip(self.coming.drain(..len)) {
            *to = from;
        }
        Ok((len > 0).then_some(len))
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.heard.extend_from_slice(data);
        Ok(())
    }

    fn wait(&mut self, _: Option<&Wake>, _: Duration) -> io::Result<()> {
        self.counts.lock().unwrap().push(fetches(&self.heard));
        assert!(!self.set.has_unread(), "it waits for something to come");
        match self.answers.pop_front() {
            Some(answer) => self.coming.extend(answer),
            None => self.set.call(SourceCall::Close),
        }
        Ok(())
    }

    fn security(&self) -> Option<Security> {
        None
    }
}

/// What is done while a lane waits; it hears how many requests have been sent, and what would end the wait.
type Waits = Box<dyn FnOnce(usize, &Wake) + Send>;

/// A connection that fills its path by itself, if it `is_long`. Each time its lane waits, the next of `waits` is done.
struct Solitary {
    is_long: bool,
    heard: Vec<u8>,
    waits: VecDeque<Waits>,
}

fn run_solitary(set: &LaneSet, is_long: bool, waits: Vec<Waits>) {
    let channel = Solitary { is_long, heard: Vec::new(), waits: waits.into() };
    set.run(Box::new(channel), start(), None).unwrap();
}

impl Channel for Solitary {
    fn try_read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.heard.extend_from_slice(data);
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, _: Duration) -> io::Result<()> {
        let next = self.waits.pop_front().expect("nobody waits that often");
        next(fetches(&self.heard), wake.expect("a lane can be woken"));
        Ok(())
    }

    fn security(&self) -> Option<Security> {
        None
    }

    fn solo(&self) -> Option<Solo> {
        self.is_long.then_some(LONG)
    }
}

const LONG: Solo = Solo { holds_bytes: u64::MAX, round_trip: Duration::from_millis(50) };

/// A connection over a long path that has died without a word.
struct Dead {
    never: Wake,
    waits: Arc<AtomicUsize>,
}

impl Channel for Dead {
    fn try_read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn write_all(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.waits.fetch_add(1, Ordering::AcqRel);
        wait_readable(self.never.fd(), wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        None
    }

    fn solo(&self) -> Option<Solo> {
        Some(LONG)
    }
}

/// How many requests are among these frames.
fn fetches(mut frames: &[u8]) -> usize {
    let mut count = 0;
    while let Some((head, rest)) = frames.split_first_chunk::<FRAME_HEAD_BYTES>() {
        let (body, rest) = rest.split_at(FrameHead::decode(*head).unwrap().body_bytes);
        count += usize::from(matches!(Message::from_bytes(body).unwrap(), Message::Fetch(_)));
        frames = rest;
    }
    count
}

fn hello() -> Hello {
    Hello { version: PROTOCOL_VERSION, features: vec![], required: vec![], agent: "test/0".into() }
}

/// P4: what is wanted first is left for the lanes that come up a little later: TCP starts slowly, and a lane that has one unit to wait for
/// has enough until its first group has come. Then it takes its share.
#[test]
fn a_lane_waits_for_its_first_group_before_it_takes_more_than_a_unit() {
    let set = asked_for_three_units();
    let size_bytes = 3 * UNIT_BYTES;
    let mut opens = Vec::new();
    push_control(&mut opens, &Message::Hello(hello()));
    push_control(&mut opens, &Message::Opened(Opened { handle: 1, size_bytes, name: None }));
    let group = |last: usize| {
        let bytes = GROUP_BYTES as usize / 2;
        let mut frame = FrameHead::new(FrameKind::Data, bytes, 1).encode().to_vec();
        frame.resize(frame.len() + bytes, last as u8);
        frame
    };
    let counts = Arc::default();
    let script = Script {
        set: set.clone(),
        // Half a group is none.
        answers: [opens, group(1), group(2)].into(),
        coming: VecDeque::new(),
        heard: Vec::new(),
        counts: Arc::clone(&counts),
    };
    set.run(Box::new(script), start(), None).unwrap();
    assert_eq!(*counts.lock().unwrap(), [1, 1, 1, 3]);
}

/// P13 (ADR 34): of several connections that fill their path by themselves one is asked, the others when that one is held back. They are if any connection
/// may bring more beside others.
#[test]
fn one_lane_is_asked_until_it_is_held_back() {
    let set = asked_for_three_units();
    let (seen, heard) = mpsc::channel();
    let (other, saw) = (set.clone(), seen.clone());
    let first = move |count, _: &Wake| {
        saw.send(count).unwrap();
        assert!(!other.is_spread());
        let (set, saw) = (other.clone(), saw.clone());
        let idle = move |count, _: &Wake| {
            saw.send(count).unwrap();
            set.spread();
        };
        let (set, saw) = (other.clone(), seen);
        let asked = move |count, _: &Wake| {
            saw.send(count).unwrap();
            set.call(SourceCall::Close);
        };
        run_solitary(&other, true, vec![Box::new(idle), Box::new(asked)]);
    };
    run_solitary(&set, true, vec![Box::new(first)]);
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 0, 1]);

    let set = asked_for_three_units();
    let closing = set.clone();
    let script = Script {
        set: set.clone(),
        answers: VecDeque::new(),
        coming: VecDeque::new(),
        heard: Vec::new(),
        counts: Arc::default(),
    };
    set.run(Box::new(script), start(), None).unwrap();
    assert!(closing.is_spread());
}

/// ADR 34: who stands back is woken when a connection comes up beside which it may ask.
#[test]
fn who_stands_back_hears_that_others_are_of_use() {
    let set = asked_for_three_units();
    let (second, third) = (set.clone(), set.clone());
    let stands_back = move |count, wake: &Wake| {
        assert_eq!((count, third.is_spread()), (0, false));
        let (closing, mine) = (third.clone(), wake.duplicate().unwrap());
        mine.clear();
        let short = move |_, _: &Wake| {
            assert!(closing.is_spread());
            let mut fds = [PollFd::from_borrowed_fd(mine.fd(), PollFlags::IN)];
            poll_fds(&mut fds, Duration::ZERO).unwrap();
            assert!(!fds[0].revents().is_empty(), "the one that stands back sleeps on");
            closing.call(SourceCall::Close);
        };
        run_solitary(&third, false, vec![Box::new(short)]);
    };
    let first = move |_, _: &Wake| run_solitary(&second, true, vec![Box::new(stands_back)]);
    run_solitary(&set, true, vec![Box::new(first)]);
}

/// S34, P13 (ADR 34): the only connection over a long path dies without a word. Others are of use after 3 s of silence, and what it owed is theirs once one is there:
/// it waits for a second at a time, and 11 of those were the end before.
#[test]
fn the_only_connection_that_dies_has_an_heir() {
    let set = asked_for_three_units();
    let dead =
        |waits: &Arc<AtomicUsize>| Box::new(Dead { never: Wake::new().unwrap(), waits: waits.clone() });
    let (waits, is_over) = (Arc::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let ended = set.run(dead(&waits), start(), None);
            set.end_wait(&is_over);
            ended
        });
        assert!(set.await_spread(&is_over), "it ended before anybody was wanted");
        assert_eq!(set.lanes(), 1, "its path may be dead, so it has not ended");
        let second = scope.spawn(|| set.run(dead(&Arc::default()), start(), None));
        assert_eq!(first.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        let waited = waits.load(Ordering::Acquire);
        assert!(waited <= 8, "{waited} s of silence");
        assert_eq!(set.lanes(), 1, "the second one goes on");
        set.call(SourceCall::Close);
        second.join().unwrap().unwrap();
    });
}

/// ADR 34: one thread waits for whether other connections are of use, and hears it, or that they never will be.
#[test]
fn who_waits_for_others_to_be_of_use_hears_of_it() {
    let waiting = || {
        let (set, is_over) = (asked_for_three_units(), Arc::new(AtomicBool::new(false)));
        let (sender, heard) = mpsc::channel();
        let (waits, over) = (set.clone(), is_over.clone());
        thread::spawn(move || sender.send(waits.await_spread(&over)));
        // It waits by then, or looks first.
        thread::sleep(Duration::from_millis(20));
        assert!(heard.try_recv().is_err(), "nothing was said");
        (set, is_over, heard)
    };
    let patience = Duration::from_secs(30);
    type Way = fn(&LaneSet, &AtomicBool);
    let ways: [(bool, Way); 4] = [
        (true, |set, _| set.spread()),
        (false, |set, _| set.call(SourceCall::Close)),
        (false, |set, _| set.give_up(None)),
        (false, |set, is_over| set.end_wait(is_over)),
    ];
    for (number, (is_of_use, way)) in ways.into_iter().enumerate() {
        let (set, is_over, heard) = waiting();
        way(&set, &is_over);
        assert_eq!(heard.recv_timeout(patience), Ok(is_of_use), "way {number}");
    }
    let (set, _, heard) = waiting();
    let closing = set.clone();
    let short = move |_, _: &Wake| {
        assert_eq!(heard.recv_timeout(patience), Ok(true));
        closing.call(SourceCall::Close);
    };
    run_solitary(&set, false, vec![Box::new(short)]);
}

fn start() -> LaneStart {
    LaneStart {
        receiver: Receiver::new(hello(), Some(Geometry::new(3 * UNIT_BYTES)), false),
        preface: Vec::new(),
        secret: None,
        node: NodeId::from_bytes([1; 32]),
        round_trip_us: None,
        opening: Opening::ToAsk,
    }
}

/// A source that is asked for as much once it is up.
fn asked_for_three_units() -> Arc<LaneSet> {
    let events = Arc::new(Asks::default());
    let capabilities =
        SourceCapabilities { grade: Grade::Vouched, cancel: true, holes: true, under_way_bytes: 0 };
    let description = SourceDescription { label: "test".into(), priority: 0, weight: 1, capabilities };
    let object = ObjectName::Provisional([7; 32]);
    let set = LaneSet::new(SourceId(1), object, description, Some(3 * UNIT_BYTES), events.clone());
    events.0.set(Arc::downgrade(&set)).unwrap();
    set
}
