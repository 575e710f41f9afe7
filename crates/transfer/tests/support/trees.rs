//! Both ends of a copy of files that lie in memory, each the root of a tree of its own: over two pipes, and over one connection beside them.
#![allow(clippy::panic)] // Helpers of tests are not seen as tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Released, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_PULLS_MAX;
use dray_core::message::{Entries, Message, Part, TreeDone};
use dray_core::tree::{Entry, Finished, Item, Kind, Metadata, Record};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::session::{PathId, TreeReceiver};
use dray_transfer::transport::{
    Channel, Duplex, LimitedChannel, PipeChannel, RateLimit, Security, Wake, Wants,
};
use dray_transfer::tree::{
    Batch, Heard, Lane, RecordSink, SendError, SendLanes, TakeLanes, TreeFile, TreeSink, TreeSource,
    Unpacking, send, take,
};

use super::{Cut, SECRET, hello, tls};

/// Longer than any of these copies takes.
const LONG: Duration = Duration::from_secs(120);
/// Bytes of a record, but for the last of a file.
pub const RECORD_BYTES: usize = 64 * 1024;
const SENDER: u8 = 1;
const RECEIVER: u8 = 2;

/// A file at the sender.
#[derive(Default)]
pub struct Content {
    pub data: Vec<u8>,
    /// Why it cannot be read.
    pub broken: Option<ErrorKind>,
    /// What it waits for before its second record, saying that it works; nothing more if nobody is left to release it.
    pub gate: Option<Mutex<Released<()>>>,
}

impl Content {
    pub fn of(data: impl Into<Vec<u8>>) -> Content {
        Content { data: data.into(), ..Content::default() }
    }

    fn finished(&self) -> Finished {
        let hash = *Oid::of(&self.data).as_bytes();
        Finished { hash, size_bytes: self.data.len() as u64, mtime_s: 0, mtime_ns: 0 }
    }
}

impl TreeFile for Content {
    fn send(
        &self,
        known: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> std::result::Result<(), SendError> {
        assert_eq!(part, None);
        let finished = self.finished();
        if let Some(kind) = self.broken {
            return Err(Error::new(kind, "it cannot be read").into());
        }
        if known == Some(finished.hash) {
            return sink.record(&Record::Same(finished));
        }
        for (number, record) in self.data.chunks(RECORD_BYTES).enumerate() {
            if let (1, Some(gate)) = (number, &self.gate) {
                let gate = gate.lock().unwrap();
                while gate.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                    sink.work()?;
                }
            }
            let mut read = |out: &mut [u8]| {
                out.copy_from_slice(record);
                Ok(record.len())
            };
            sink.bytes(record.len(), &mut read)?;
        }
        sink.record(&Record::Done(finished))
    }
}

/// Tells files, so many at a time.
struct Telling {
    files: VecDeque<Arc<Content>>,
    at_a_time: usize,
    is_over: bool,
}

impl TreeSource for Telling {
    fn next_batch(&mut self) -> Option<Batch> {
        if std::mem::replace(&mut self.is_over, self.files.len() <= self.at_a_time) {
            return None;
        }
        let files: Vec<_> = self.files.drain(..self.at_a_time.min(self.files.len())).collect();
        let item = |file: &Arc<Content>| {
            let kind = Kind::File { size_bytes: file.data.len() as u64, oid: None };
            Item::Entry(Entry { name: None, kind, metadata: Metadata::default() }).to_bytes().into()
        };
        let items = files.iter().map(item).collect();
        let entries = Entries { items, owners: None, is_last: self.is_over, listed: None };
        let count = files.len() as u64;
        let files = (0..).zip(files.into_iter().map(|file| file as Arc<dyn TreeFile>)).collect();
        Some(Batch { entries: Some(entries), count, files, ..Batch::default() })
    }

    fn batches_ahead(&self) -> usize {
        4
    }
}

/// What came.
#[derive(Default)]
pub struct Came {
    pub contents: BTreeMap<u64, Vec<u8>>,
    pub failed: BTreeSet<u64>,
    /// Bytes that came over each path.
    pub bytes: BTreeMap<PathId, u64>,
    /// And what that took: bytes that were read from the channel, and from the connection beside it.
    pub wire: (u64, u64),
}

/// A channel that counts what is read from it.
struct Counted<C: ?Sized> {
    bytes: Arc<AtomicU64>,
    channel: Box<C>,
}

impl<C: Channel + ?Sized> Channel for Counted<C> {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.channel.try_read(out)?;
        self.bytes.fetch_add(read.unwrap_or(0) as u64, Ordering::AcqRel);
        Ok(read)
    }
    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.channel.write_all(data)
    }
    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.channel.wait(wake, timeout)
    }
    fn security(&self) -> Option<Security> {
        self.channel.security()
    }
}

impl<C: Duplex + ?Sized> Duplex for Counted<C> {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.channel.try_write(data)
    }
    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.channel.wait_for(wants, wake, timeout)
    }
}

/// Wants every file, over a direct connection if there is to be one.
struct Taking<'a> {
    copy: &'a Copy,
    machine: TreeReceiver,
    /// The connection that is up; `None` before, and once it is lost.
    lane: Option<Arc<Lane>>,
    has_lost: bool,
    channel: Option<Arc<Unpacking>>,
    /// What was asked for and is not settled.
    undecided: BTreeSet<u64>,
    came: &'a Mutex<Came>,
    done: TreeDone,
}

impl Taking<'_> {
    fn entries(&mut self, entries: &Entries) -> Result<()> {
        self.machine.handle_entries(entries)?;
        for item in &entries.items {
            let (item, _, number) = self.machine.accept(item)?;
            let Item::Entry(Entry { kind: Kind::File { size_bytes, .. }, .. }) = item else {
                panic!("{item:?}")
            };
            let known = self.copy.known.get(&number).map(|data| *Oid::of(data).as_bytes());
            self.machine.want(number, known, size_bytes);
            self.undecided.insert(number);
        }
        Ok(())
    }

    fn data(&mut self, path: PathId, request: u32, mut body: &[u8]) -> Result<()> {
        let mut came = self.came.lock().unwrap();
        while !body.is_empty() {
            let (wanted, record) = self.machine.take(path, request, &mut body)?;
            let content = came.contents.entry(wanted.number).or_default();
            match record {
                Record::Bytes(bytes) => {
                    content.extend_from_slice(bytes);
                    self.done.bytes += bytes.len() as u64;
                    *came.bytes.entry(path).or_default() += bytes.len() as u64;
                    continue;
                }
                Record::Done(finished) => {
                    assert_eq!(finished.hash, *Oid::of(content).as_bytes(), "file {}", wanted.number);
                    self.done.files += 1;
                }
                Record::Same(_) => {
                    content.clone_from(&self.copy.known[&wanted.number]);
                    self.done.unchanged += 1;
                }
                Record::Failed(_) => {
                    came.failed.insert(wanted.number);
                }
                record => panic!("{record:?}"),
            }
            self.undecided.remove(&wanted.number);
        }
        Ok(())
    }
}

impl TreeSink for Taking<'_> {
    fn unpack_with(&mut self, channel: Arc<Unpacking>) {
        self.channel = Some(channel);
    }

    fn handle(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Message(Message::Entries(entries)) => self.entries(&entries)?,
            Heard::Message(message) => panic!("{message:?}"),
            Heard::Data(path, request, body) => {
                self.data(path, request, &body)?;
                (self.copy.on_data)(path)?;
            }
            Heard::End(path, request) => self.machine.handle_end(path, request)?,
            Heard::Up(lane) => {
                self.machine.open(lane.number());
                self.lane = Some(lane);
            }
            Heard::Down(lane) => {
                (self.lane, self.has_lost) = (None, true);
                for wanted in self.machine.lose(lane.number()) {
                    self.came.lock().unwrap().contents.remove(&wanted.number);
                    self.machine.want_again(&wanted, None);
                }
            }
            Heard::Woken => {}
        }
        Ok(())
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        let path = self.lane.as_ref().map(|lane| lane.number());
        // What is to come over a connection waits for it.
        let is_early = self.copy.has_lane && self.lane.is_none() && !self.has_lost;
        let is_much = |machine: &TreeReceiver| is_early || machine.pulls(path) >= TREE_PULLS_MAX / 2;
        let unpacking = match &self.lane {
            Some(lane) => Some(lane.unpacking()),
            None => self.channel.as_deref(),
        };
        let may = self.done.bytes < self.copy.packed_until;
        if unpacking.is_some_and(|unpacking| unpacking.permit(may)) {
            out.push(Message::Pull(self.machine.permit(path, may)));
        }
        loop {
            let room = if is_much(&self.machine) { 0 } else { u64::MAX };
            let Some(pull) = self.machine.pull(path, room, 4, self.undecided.first().copied()) else { break };
            if let Some(lane) = self.lane.as_ref().filter(|_| !pull.runs.is_empty()) {
                lane.note_pull();
            }
            out.push(Message::Pull(pull));
        }
    }

    fn done(&mut self) -> Result<Option<TreeDone>> {
        let entries = self.machine.entries();
        let failed = self.came.lock().unwrap().failed.len() as u64;
        Ok(self.machine.is_done()?.then_some(TreeDone { entries, failed, ..self.done }))
    }

    fn done_bytes(&self) -> u64 {
        self.done.bytes
    }

    fn missing(&self) -> Option<String> {
        self.machine.missing()
    }
}

/// A copy, as it is to go.
pub struct Copy {
    pub files: Vec<Content>,
    /// How many of them are told at a time.
    pub at_a_time: usize,
    /// What the receiver has of some of them.
    pub known: BTreeMap<u64, Vec<u8>>,
    /// Contents come over a connection beside the pipes, while it is up.
    pub has_lane: bool,
    /// Data may come packed until so many bytes of contents have come.
    pub packed_until: u64,
    /// Bytes a second that the sender sends, if it is not as fast as it can.
    pub rate_bytes: Option<u64>,
    /// Breaks that connection.
    pub cut: Cut,
    /// Called by the receiver whenever something came.
    pub on_data: Box<dyn Fn(PathId) -> Result<()> + Sync>,
    /// What the sender's user says every 200 ms.
    pub tick: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl Copy {
    pub fn of(files: Vec<Content>) -> Copy {
        Copy {
            files,
            at_a_time: 100,
            known: BTreeMap::new(),
            has_lane: false,
            packed_until: 0,
            rate_bytes: None,
            cut: Cut::default(),
            on_data: Box::new(|_| Ok(())),
            tick: Box::new(|| Ok(())),
        }
    }

    /// Cuts the connection beside the pipes at the `frame`-th frame that comes over it, from 1 on, and lets go of what `release` holds up.
    pub fn cut_lane_at(&mut self, frame: u32, release: Sender<()>) {
        let (cut, came) = (self.cut.clone(), Mutex::new((0, Some(release))));
        self.on_data = Box::new(move |path| {
            let (frames, release) = &mut *came.lock().unwrap();
            *frames += u32::from(path.is_some());
            if *frames == frame {
                cut.now();
                release.take();
            }
            Ok(())
        });
    }

    /// Runs it: how it ended at the receiver and at the sender, and what came.
    pub fn run(mut self) -> (Result<TreeDone>, Result<TreeDone>, Came) {
        let (near_in, far_out) = rustix::pipe::pipe().unwrap();
        let (far_in, near_out) = rustix::pipe::pipe().unwrap();
        let wire: [Arc<AtomicU64>; 2] = Default::default();
        let channel = Box::new(PipeChannel::new(near_in, near_out).unwrap());
        let mut receiving = Counted { bytes: wire[0].clone(), channel };
        let limit = self.rate_bytes.map(RateLimit::new);
        let sending = Box::new(PipeChannel::new(far_in, far_out).unwrap());
        let sending = LimitedChannel::wrap_duplex(sending, limit.as_ref());
        let files: VecDeque<_> = std::mem::take(&mut self.files).into_iter().map(Arc::new).collect();
        let sources = files.len();
        let mut source = Telling { files, at_a_time: self.at_a_time, is_over: false };
        let (came, send_lanes, take_lanes) = (Mutex::default(), SendLanes::new().unwrap(), TakeLanes::new());
        let (taken, sent) = thread::scope(|scope| {
            let copy = &self;
            let sender = scope.spawn(|| {
                let mut heard = |message: Option<Message>| match message {
                    Some(Message::Fault(fault)) => Err(fault.to_error("receiver")),
                    Some(_) => Ok(()),
                    None => (copy.tick)(),
                };
                send(sending, vec![], &mut source, Some(&send_lanes), &mut heard, &|| LONG)
            });
            if copy.has_lane {
                connect(scope, &send_lanes, &take_lanes, &copy.cut, limit, wire[1].clone());
            }
            let make = || {
                Ok(Taking {
                    copy,
                    machine: TreeReceiver::new(sources),
                    lane: None,
                    has_lost: false,
                    channel: None,
                    undecided: BTreeSet::new(),
                    came: &came,
                    done: TreeDone { entries: 0, files: 0, unchanged: 0, bytes: 0, failed: 0 },
                })
            };
            let taken = take(&mut receiving, vec![], make, Some(&take_lanes), &mut |_| Ok(()), LONG);
            drop(receiving);
            (taken, sender.join().unwrap())
        });
        let [channel, lane] = wire.map(|bytes| bytes.load(Ordering::Acquire));
        (taken, sent, Came { wire: (channel, lane), ..came.into_inner().unwrap() })
    }
}

/// One connection from the receiver to the sender, which ends with the copy.
fn connect<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    send_lanes: &'scope SendLanes,
    take_lanes: &'scope TakeLanes,
    cut: &'scope Cut,
    limit: Option<Arc<RateLimit>>,
    wire: Arc<AtomicU64>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = (tls(SENDER), tls(RECEIVER));
    let (sender_id, receiver_id) = (sender.node(), receiver.node());
    let deadline = Instant::now() + LONG;
    scope.spawn(move || {
        let channel = sender.accept(listener.accept().unwrap().0, deadline).unwrap();
        let expected = |peer| peer == receiver_id;
        let channel = LimitedChannel::wrap(Box::new(channel), limit.as_ref());
        // What breaks here the receiver hears of.
        let _ = send_lanes.serve(channel, &hello(false), sender_id, &SECRET, &expected, &|| {});
    });
    scope.spawn(move || {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let channel = receiver.connect(socket, sender_id, deadline).unwrap();
        let channel = Box::new(Counted { bytes: wire, channel: cut.wrap(Box::new(channel)) });
        let _ = take_lanes.run(channel, &hello(false), receiver_id, &SECRET, 1, &|| {});
    });
}
