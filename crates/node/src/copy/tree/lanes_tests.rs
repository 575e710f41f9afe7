//! Contents over direct connections: real nodes on the loopback beside a pipe that stands for ssh, with a relay between them that
//! counts what passes and can go silent.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use dray_core::message::{Direct, Message, Part, TreeDone};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Landing, TreeWriter};
use dray_transfer::transport::{LimitedChannel, RateLimit};
use dray_transfer::tree::{Batch, RecordSink, SendError, SendLanes, TreeFile, TreeSource, send, take};

use super::copies::{channels, keeping, recursive};
use super::doors::{GivingDoors, Seen, TakingDoors};
use super::sink::{Doors, Writing};
use super::source::WalkSource;
use crate::config::{ConfigFile, Paths};
use crate::{Config, Node, Stop};

const PATIENCE: Duration = Duration::from_secs(60);
/// For a file that is never read.
const SHORT: Duration = Duration::from_secs(10);
/// Longer than any of these copies takes.
const LONG: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

/// Between the receiver and the sender.
#[derive(Default)]
struct Relay {
    port: AtomicU16,
    /// Where the sender listens.
    to: AtomicU16,
    /// Bytes from the sender.
    carried_bytes: AtomicU64,
    /// The same of each connection.
    each: Mutex<Vec<Arc<AtomicU64>>>,
    /// It takes nothing and gives nothing from so many bytes on; 0 if it always does.
    silent_from: AtomicU64,
    /// What it rests after each piece that it carries.
    pause: Duration,
    is_over: AtomicBool,
}

impl Relay {
    fn start(silent_from: u64) -> Arc<Relay> {
        Relay { silent_from: silent_from.into(), ..Relay::default() }.run()
    }

    /// One that is far away, and slow.
    fn slow(silent_from: u64) -> Arc<Relay> {
        Relay { silent_from: silent_from.into(), pause: Duration::from_millis(20), ..Relay::default() }.run()
    }

    fn run(self) -> Arc<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Arc::new(self);
        relay.port.store(listener.local_addr().unwrap().port(), Ordering::Release);
        let relaying = relay.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                let relay = relaying.clone();
                let far = TcpStream::connect(("127.0.0.1", relay.to.load(Ordering::Acquire)));
                let (Ok(near), Ok(far)) = (near, far) else { continue };
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap(), relay.clone());
                let carried = Arc::<AtomicU64>::default();
                relay.each.lock().unwrap().push(carried.clone());
                thread::spawn(move || carry(near, far, &relay, None));
                thread::spawn(move || carry(back.0, back.1, &back.2, Some(&carried)));
            }
        });
        relay
    }

    fn is_silent(&self) -> bool {
        let from = self.silent_from.load(Ordering::Acquire);
        from > 0 && self.carried_bytes.load(Ordering::Acquire) >= from
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, relay: &Relay, counted: Option<&AtomicU64>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while relay.is_silent() && !relay.is_over.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(20));
        }
        if let Some(carried) = counted {
            relay.carried_bytes.fetch_add(count as u64, Ordering::AcqRel);
            carried.fetch_add(count as u64, Ordering::AcqRel);
        }
        thread::sleep(relay.pause);
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Leads the receiver to the sender by way of the relay, and keeps the sender from dialling.
struct Through<'a>(&'a TakingDoors, &'a Relay);

impl Doors for Through<'_> {
    fn invite(&self) -> Option<Direct> {
        self.0.invite().map(|told| Direct { addresses: Vec::new(), ..told })
    }

    fn handle_direct(&self, theirs: Direct) -> Result<()> {
        let port = theirs.addresses[0].rsplit_once(':').unwrap().1.parse().unwrap();
        self.1.to.store(port, Ordering::Release);
        let relay = format!("127.0.0.1:{}", self.1.port.load(Ordering::Acquire));
        self.0.handle_direct(Direct { addresses: vec![relay], ..theirs })
    }
}

fn node(data: &Path) -> Node {
    let config = Config::new(Paths::below(data), &ConfigFile::default()).unwrap();
    // As many lanes, whatever the machine.
    Node::open(Config { connections: 2, ..config }).unwrap()
}

/// A disk at the sender: what is first read from it for a direct connection, a file or a part of one, takes its time.
struct Disk {
    /// How long; `None` if it is never read.
    spin_up: Option<Duration>,
    /// Who has the channel that stands for ssh.
    ssh: OnceLock<ThreadId>,
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DiskState {
    /// Which file that is, and where in it.
    slow: Option<(usize, u64)>,
    /// Reads for direct connections, and for ssh, that were held up.
    held: (usize, usize),
    /// Contents and parts that were asked for.
    asked: usize,
    /// Nothing is held up any more.
    is_ready: bool,
    /// Batches that were told while something was.
    told_meanwhile: usize,
}

impl Disk {
    fn new(spin_up: Option<Duration>) -> Arc<Disk> {
        let (ssh, state, changed) = Default::default();
        Arc::new(Disk { spin_up, ssh, state, changed })
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap()
    }

    /// Everything can be read from now on.
    fn be_ready(&self) {
        self.lock().is_ready = true;
        self.changed.notify_all();
    }
}

/// What is read from it.
struct OnDisk {
    number: usize,
    file: Arc<dyn TreeFile>,
    disk: Arc<Disk>,
}

impl TreeFile for OnDisk {
    fn send(
        &self,
        known: Option<[u8; 32]>,
        part: Option<Part>,
        sink: &mut dyn RecordSink,
    ) -> std::result::Result<(), SendError> {
        let mut state = self.disk.lock();
        state.asked += 1;
        let is_ssh = self.disk.ssh.get() == Some(&thread::current().id());
        let place = (self.number, part.map_or(0, |part| part.start));
        if !is_ssh {
            state.slow.get_or_insert(place);
        }
        if state.slow == Some(place) && !state.is_ready {
            if is_ssh {
                state.held.1 += 1
            } else {
                state.held.0 += 1
            }
            self.disk.changed.notify_all();
            let waits = |state: &mut DiskState| !state.is_ready;
            state = match self.disk.spin_up {
                Some(time) => self.disk.changed.wait_timeout_while(state, time, waits).unwrap().0,
                None => self.disk.changed.wait_while(state, waits).unwrap(),
            };
            state.is_ready = true;
            self.disk.changed.notify_all();
        }
        drop(state);
        self.file.send(known, part, sink)
    }
}

/// Longer than a connection may be silent.
const SPIN_UP: Duration = Duration::from_secs(9);
/// More often than a silent sender would be noticed.
const BATCH_INTERVAL: Duration = Duration::from_millis(700);
/// Batches that are told before anything is held up.
const BATCHES_FIRST: usize = 3;

/// A walk of that disk; while something is held up its entries go on to come, slowly.
struct DiskWalk {
    walk: WalkSource,
    told: usize,
    files: usize,
    disk: Arc<Disk>,
}

impl TreeSource for DiskWalk {
    fn next_batch(&mut self) -> Option<Batch> {
        let mut batch = self.walk.next_batch()?;
        for (_, file) in &mut batch.files {
            *file = Arc::new(OnDisk { number: self.files, file: file.clone(), disk: self.disk.clone() });
            self.files += 1;
        }
        self.told += 1;
        if self.told > BATCHES_FIRST {
            let none_held = |state: &mut DiskState| state.held.0 == 0 && !state.is_ready;
            let state = self.disk.changed.wait_while(self.disk.lock(), none_held).unwrap();
            let is_held = |state: &mut DiskState| !state.is_ready;
            let mut state = self.disk.changed.wait_timeout_while(state, BATCH_INTERVAL, is_held).unwrap().0;
            state.told_meanwhile += usize::from(!state.is_ready);
        }
        Some(batch)
    }

    fn batches_ahead(&self) -> usize {
        1
    }
}

/// Copies `from` to `to`: a pipe of `rate` bytes a second, and the relay; `tick` hears how many bytes came.
fn copy(
    from: &Path,
    to: &Path,
    rate: u64,
    relay: &Arc<Relay>,
    tick: impl Fn(u64) + Send + 'static,
) -> (Result<TreeDone>, Result<TreeDone>) {
    let source = WalkSource::new(vec![from.to_owned()], recursive(), false, Stop::new());
    copy_of(source, to, rate, relay, Disk::new(Some(Duration::ZERO)), tick)
}

fn copy_of(
    mut source: impl TreeSource + 'static,
    to: &Path,
    rate: u64,
    relay: &Arc<Relay>,
    disk: Arc<Disk>,
    tick: impl Fn(u64) + Send + 'static,
) -> (Result<TreeDone>, Result<TreeDone>) {
    let (near, mut far) = channels(65_536);
    let to = to.to_owned();
    let data = tempfile::tempdir().unwrap();
    let (giver, taker) = (node(&data.path().join("giver")), node(&data.path().join("taker")));
    let seen = Seen { seen_as: Some("127.0.0.1".parse().unwrap()), allow_local: true, ..Seen::default() };
    let (report, reported) = mpsc::channel();
    let (taker_report, relay, ready) = (report.clone(), relay.clone(), disk.clone());
    thread::spawn(move || {
        let doors = TakingDoors::new(&taker, seen);
        let through = Through(&doors, &relay);
        let make = || {
            let landing = Landing::resolve(&to, &[b"tree".to_vec()], false)?;
            let writing = Writing::new(TreeWriter::new(landing, keeping()), 1, false, &|_| {});
            Ok(writing.with_doors(Some(&through)).with_deltas(true).packing(true))
        };
        let mut tick = |bytes| {
            tick(bytes);
            Ok(())
        };
        let patience = if ready.spin_up.is_some() { PATIENCE } else { SHORT };
        let taken = take(&mut far, Vec::new(), make, Some(&doors.lanes), &mut tick, patience);
        relay.is_over.store(true, Ordering::Release);
        ready.be_ready();
        taker_report.send((false, taken)).unwrap();
    });
    thread::spawn(move || {
        let mut doors = GivingDoors::new(&giver, seen).unwrap();
        if disk.spin_up.is_none() {
            doors.lanes = SendLanes::with_file_patience(SHORT).unwrap();
        }
        let mut hear = |message: Option<Message>| match message {
            Some(Message::Direct(theirs)) => {
                // Without an address nobody is dialled.
                assert!(theirs.addresses.is_empty());
                doors.handle_direct(theirs)
            }
            Some(Message::Fault(fault)) => Err(fault.to_error("")),
            _ => Ok::<(), Error>(()),
        };
        let channel = LimitedChannel::wrap_duplex(Box::new(near), Some(&RateLimit::new(rate)));
        disk.ssh.set(thread::current().id()).unwrap();
        let lanes = Some(&*doors.lanes);
        let sent = send(channel, Vec::new(), &mut source, lanes, &mut hear, &|| PATIENCE);
        report.send((true, sent)).unwrap();
    });
    let (mut sent, mut taken) = (None, None);
    for _ in 0..2 {
        match reported.recv_timeout(LONG).expect("a side of the copy hangs") {
            (true, result) => sent = Some(result),
            (false, result) => taken = Some(result),
        }
    }
    (sent.unwrap(), taken.unwrap())
}

fn bytes(len: u64, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len as usize];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// One large file and a thousand small ones, 32 MiB in all.
fn write_tree(root: &Path) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join("a large"), bytes(24 * MIB, 1)).unwrap();
    for number in 0..1000 {
        fs::write(root.join(format!("{number:04}")), bytes(8192, number as u8)).unwrap();
    }
}

/// The same for copies from that disk; the large file comes first, so that ssh is busy with it until others are asked.
fn write_disk(root: &Path) {
    write_tree(root);
    fs::rename(root.join("a large"), root.join("! large")).unwrap();
    for number in 0..3000 {
        fs::write(root.join(format!("small {number:04}")), b"little").unwrap();
    }
}

/// Slow enough for direct connections to come up before it has carried the large file.
const SLOW_SSH: u64 = 1_000_000;

fn assert_same(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        let (there, here) = (fs::read(from.join(&name)).unwrap(), fs::read(to.join(&name)).unwrap());
        assert!(there == here, "{name:?} differs");
        let times =
            |path: &Path| fs::metadata(path).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
        assert_eq!(times(&from.join(&name)), times(&to.join(&name)), "{name:?}");
    }
    assert_eq!(fs::read_dir(from).unwrap().count(), fs::read_dir(to).unwrap().count());
}

/// Issue 4 "direct paths join when up and ssh becomes the spare": most of a tree passes beside a slow ssh, a large file that was
/// begun there, too.
#[test]
fn contents_come_over_lanes() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_tree(&from);
    let relay = Relay::start(0);
    let (sent, taken) = copy(&from, &to, 4_000_000, &relay, |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed), (1001, 0));
    assert_same(&from, &to);
    let carried = relay.carried_bytes.load(Ordering::Acquire);
    // On a busy machine it takes a while until they are up.
    assert!(carried > 10 * MIB, "{carried} bytes beside ssh");
}

/// Issue 4 "direct path cut in mid-run": a path that goes silent is given up, and what it owed comes over ssh.
#[test]
fn a_lane_that_is_lost_costs_nothing_but_time() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_tree(&from);
    let relay = Relay::start(6 * MIB);
    let (sent, taken) = copy(&from, &to, 8_000_000, &relay, |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed), (1001, 0));
    assert_same(&from, &to);
    assert!(relay.is_silent(), "it never was used");
    // What was on its way is lost, no more.
    assert!(done.bytes < 32 * MIB + 8 * MIB, "{} bytes came", done.bytes);
}

/// Issue 4: a lane whose file cannot be read for now, since a disk at the sender spins up, is not given up while the sender goes on to
/// tell entries, and nothing is asked for twice.
#[test]
fn a_disk_that_spins_up_costs_no_lane() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_disk(&from);
    let (relay, disk) = (Relay::start(0), Disk::new(Some(SPIN_UP)));
    let walk = WalkSource::new(vec![from.clone()], recursive(), false, Stop::new());
    let walk = DiskWalk { walk, told: 0, files: 0, disk: disk.clone() };
    let (sent, taken) = copy_of(walk, &to, SLOW_SSH, &relay, disk.clone(), |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed, done.bytes), (4001, 0, 24 * MIB + 1000 * 8192 + 3000 * 6));
    let state = disk.lock();
    assert_eq!(state.held.0, 1, "no connection waited for the disk");
    assert!(state.told_meanwhile > 0, "no entries were told meanwhile");
    // The large file in parts.
    assert_eq!(state.asked, 4000 + 6);
    assert!(relay.carried_bytes.load(Ordering::Acquire) > 8 * MIB, "no lane was used");
    assert_same(&from, &to);
}

/// S10 "every transfer ends": a file that is never read is asked for over two lanes, then over ssh, and then the copy ends with an error that
/// names it.
#[test]
fn a_file_that_is_never_read_ends_the_copy() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_disk(&from);
    let (relay, disk) = (Relay::start(0), Disk::new(None));
    let walk = WalkSource::new(vec![from.clone()], recursive(), false, Stop::new());
    let walk = DiskWalk { walk, told: 0, files: 0, disk: disk.clone() };
    let (sent, taken) = copy_of(walk, &to, SLOW_SSH, &relay, disk.clone(), |_| {});
    let error = taken.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(sent.is_err());
    let state = disk.lock();
    assert!(error.to_string().contains("! large"), "{error}");
    assert!(matches!(state.held, (1..=2, 1)), "held {:?}", state.held);
}

/// Issue "every file is either old or new": a file that is written to between two of its parts is taken once more, in one piece.
#[test]
fn a_file_that_changes_between_parts_comes_whole() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("file"), bytes(24 * MIB, 2)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(from.join("file")).unwrap();
    let is_written = Arc::new(AtomicBool::new(false));
    let written = is_written.clone();
    // Nobody answers at the relay: parts come over ssh.
    let relay = Relay::start(1);
    relay.carried_bytes.store(1, Ordering::Release);
    let (sent, taken) = copy(&from, &to, 20_000_000, &relay, move |came| {
        if came > 6 * MIB && !written.swap(true, Ordering::AcqRel) {
            file.write_all_at(b"changed", 5).unwrap();
        }
    });
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert!(is_written.load(Ordering::Acquire));
    assert_eq!((done.files, done.failed), (1, 0));
    assert!(done.bytes > 26 * MIB, "{} bytes came", done.bytes);
    assert_same(&from, &to);
}

/// ADR 23, S72, S77: what is missing of an older version comes over direct connections, which are lost in the middle of it; the rest comes over
/// ssh, and what was there already not at all.
#[test]
fn a_difference_outlives_its_lanes() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(to.join("tree")).unwrap();
    let older = bytes(32 * MIB, 3);
    // Two thirds of the second half are new, in pieces that fine chunks find.
    let (mut newer, other) = (older.clone(), bytes(32 * MIB, 4));
    for at in (16 * MIB as usize..32 * MIB as usize).step_by(96 << 10) {
        let end = (at + (64 << 10)).min(newer.len());
        newer[at..end].copy_from_slice(&other[at..end]);
    }
    newer.extend_from_slice(b"longer");
    fs::write(from.join("file"), &newer).unwrap();
    fs::write(to.join("tree/file"), &older).unwrap();
    let relay = Relay::start(3 * MIB);
    let (sent, taken) = copy(&from, &to, 2_000_000, &relay, |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed), (1, 0));
    assert_same(&from, &to.join("tree"));
    assert!(relay.is_silent(), "no lane was used");
    // Each lane may lose a window of what was on its way.
    assert!(done.bytes < 24 * MIB, "{} bytes came", done.bytes);
}

/// A large file and a thousand small ones, 32 MiB in all, of words.
fn write_words(root: &Path) {
    let words: Vec<Vec<u8>> = (0..200).map(|word| bytes(4 + u64::from(word % 9), word)).collect();
    let text = |len: u64, seed: u8| {
        let mut text = Vec::new();
        for choice in bytes(len / 4, seed) {
            text.extend_from_slice(&words[usize::from(choice) % words.len()]);
        }
        text.truncate(len as usize);
        text
    };
    fs::create_dir_all(root).unwrap();
    fs::write(root.join("a large"), text(24 * MIB, 1)).unwrap();
    for number in 0..1000 {
        fs::write(root.join(format!("{number:04}")), text(8192, number as u8)).unwrap();
    }
}

/// S92, ADR 28: over slow connections contents come packed, over one of them while that pays; the account is that of the contents.
#[test]
fn contents_come_packed_over_one_slow_lane() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_words(&from);
    let relay = Relay::slow(0);
    let (sent, taken) = copy(&from, &to, SLOW_SSH, &relay, |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed, done.bytes), (1001, 0, 24 * MIB + 1000 * 8192));
    assert_same(&from, &to);
    let mut each: Vec<u64> =
        relay.each.lock().unwrap().iter().map(|bytes| bytes.load(Ordering::Acquire)).collect();
    each.sort_unstable();
    let (most, others) = (each.pop().unwrap(), each.iter().sum::<u64>());
    assert!((MIB..16 * MIB).contains(&most), "{most} bytes, beside {each:?}");
    assert!(others < MIB, "{most} bytes, beside {each:?}");
}

/// S92: what was owed by a connection that went silent in the middle of its stream comes over ssh, packed there by itself.
#[test]
fn a_packed_lane_that_is_lost_costs_nothing_but_time() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    write_words(&from);
    let relay = Relay::slow(MIB);
    let (sent, taken) = copy(&from, &to, SLOW_SSH, &relay, |_| {});
    let done = taken.unwrap();
    assert_eq!(sent.unwrap(), done);
    assert_eq!((done.files, done.failed), (1001, 0));
    assert_same(&from, &to);
    assert!(relay.is_silent(), "it never was used");
}
