//! Files that change under the holder, damaged copies, holes, and bytes that never pass through the process.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

mod support;

use std::fs::{File, OpenOptions};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use dray_core::hash_tree::{Geometry, PairStore, Subtree};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::permit::Budget;
use dray_core::source::{RequestId, Source, SourceCall};
use dray_core::store::{Extent, Standing, Store};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_store::local::LocalStore;
use dray_testkit::sample;
use dray_testkit::source_conformance::{Gate, TestObject};
use dray_transfer::holder::{Held, StoredHeld};
use support::receive::TestReceiver;
use support::relay::Relay;
use support::{ProvenHeld, TestHolder};

/// A borrowed file, held as a `put` holds it; counts how it is read and can be held back before a piece is sent.
struct Watched {
    stored: StoredHeld,
    gate: Gate,
    read_bytes: AtomicUsize,
    descriptors: AtomicUsize,
}

impl Held for Watched {
    fn geometry(&self) -> Geometry {
        self.stored.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        self.stored.oid()
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.stored.name()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_bytes.fetch_add(out.len(), Ordering::Relaxed);
        self.stored.read_at(offset, out)
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.gate.pass(offset + 1);
        self.stored.extent_at(offset, end)
    }
    fn standing(&self) -> Standing {
        self.stored.standing()
    }
    fn mismatch(&self) -> Error {
        self.stored.mismatch()
    }
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        self.stored.recheck(groups)
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        self.stored.pairs()
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
        self.stored.raw_file()
    }
}

/// A file that has been put, and its holder.
struct Put {
    path: PathBuf,
    data: Vec<u8>,
    oid: Oid,
    held: Arc<Watched>,
    holder: TestHolder,
    clear: bool,
    dirs: [tempfile::TempDir; 2],
}

const UNITS: u64 = 4;

impl Put {
    fn new(clear: bool) -> Put {
        let data = sample::bytes((UNITS * UNIT_BYTES) as usize, 1);
        Put::written(clear, &data, &|path| std::fs::write(path, &data).unwrap())
    }

    fn written(clear: bool, data: &[u8], write: &dyn Fn(&Path)) -> Put {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path = dirs[0].path().join("file");
        write(&path);
        let store = LocalStore::open(dirs[1].path()).unwrap();
        // The file counts as settled.
        let store = store.with_clock(|| SystemTime::now() + Duration::from_secs(60));
        let object = store.put_file(&path, &|_| {}).unwrap();
        assert_eq!((object.oid(), object.standing()), (Oid::of(data), Standing::Trusted));
        let held = Arc::new(Watched {
            stored: StoredHeld::new(object, None),
            gate: Gate::default(),
            read_bytes: AtomicUsize::new(0),
            descriptors: AtomicUsize::new(0),
        });
        let oid = Oid::of(data);
        let holder = TestHolder::of(held.clone(), oid, 1, clear);
        Put { path, data: data.to_vec(), oid, held, holder, clear, dirs }
    }

    fn receiver(&self) -> TestReceiver {
        self.receiver_at(self.holder.port)
    }

    fn receiver_at(&self, port: u16) -> TestReceiver {
        TestReceiver::dial(port, self.holder.node, self.oid, self.data.len() as u64, self.clear)
    }

    fn file(&self) -> File {
        OpenOptions::new().write(true).open(&self.path).unwrap()
    }

    /// What has arrived is what the file was when it was put.
    fn assert_no_wrong_byte(&self, receiver: &TestReceiver) {
        for (group, bytes) in &receiver.sink.got().groups {
            let start = (group * GROUP_BYTES) as usize;
            assert!(bytes[..] == self.data[start..start + bytes.len()], "group {group}");
        }
    }
}

/// Waits until the file's change time is another than it was; some kernels stamp files only at ticks.
fn settle(path: &Path, before: &std::fs::Metadata) {
    let stamp = |of: &std::fs::Metadata| (of.ctime(), of.ctime_nsec());
    while stamp(&std::fs::metadata(path).unwrap()) == stamp(before) {
        std::fs::set_permissions(path, before.permissions()).unwrap();
    }
}

fn change(put: &Put, change: &dyn Fn(&File)) {
    let before = std::fs::metadata(&put.path).unwrap();
    change(&put.file());
    settle(&put.path, &before);
}

/// Y23, S5, design 9: bytes that were overwritten after the put are answered with `changed`; the units that are still what
/// they were arrive; no wrong byte leaves, with TLS and with clear-text data alike.
#[test]
fn an_overwritten_file_is_changed() {
    for clear in [false, true] {
        let put = Put::new(clear);
        change(&put, &|file| file.write_all_at(b"new", 2 * UNIT_BYTES + 100_000).unwrap());
        let receiver = put.receiver();
        let results: Vec<_> =
            (0..UNITS).map(|unit| receiver.fetch_unit(unit as u32 + 1, unit, false)).collect();
        assert_eq!(results, [Ok(()), Ok(()), Err(ErrorKind::Changed), Ok(())], "clear {clear}");
        put.assert_no_wrong_byte(&receiver);
        assert!(receiver.sink.got().errors[0].contains("changed"));
    }
}

/// Asks for everything in request 1 and returns when the first unit has left and the rest is held back.
fn fetch_to_the_gate(put: &Put, receiver: &TestReceiver) {
    put.held.gate.shut(UNIT_BYTES);
    receiver.sink.wait("up", |got| got.ups > 0);
    let permit = Budget::new(u64::MAX).try_reserve(1).unwrap();
    let groups = Subtree { start: 0, groups: UNITS * 16 };
    let request = RequestId(1);
    receiver.source.call(SourceCall::Fetch { request, groups, known_depth: 0, recheck: false, permit });
    assert!(put.held.gate.is_reached(Duration::from_secs(20)));
}

/// Y23, S5: the same in the middle of an answer, after the first bytes have left.
#[test]
fn a_file_that_changes_while_it_is_sent_is_changed() {
    for clear in [false, true] {
        let put = Put::new(clear);
        let receiver = put.receiver();
        fetch_to_the_gate(&put, &receiver);
        change(&put, &|file| file.write_all_at(b"new", 3 * UNIT_BYTES + 5).unwrap());
        put.held.gate.open();
        receiver.sink.wait("the end", |got| got.ended.contains_key(&1));
        assert_eq!(receiver.sink.got().ended[&1], Err(ErrorKind::Changed), "clear {clear}");
        let groups = receiver.sink.got().groups.len() as u64;
        assert!((16..=48).contains(&groups), "{groups} groups");
        put.assert_no_wrong_byte(&receiver);
    }
}

/// S5: a file that became shorter is `changed` wherever bytes are missing, and nothing is made up.
#[test]
fn a_truncated_file_is_changed() {
    for clear in [false, true] {
        let put = Put::new(clear);
        change(&put, &|file| file.set_len(UNIT_BYTES + 10).unwrap());
        let receiver = put.receiver();
        for unit in 0..UNITS {
            let result = receiver.fetch_unit(unit as u32 + 1, unit, false);
            assert!(result == Err(ErrorKind::Changed) || unit == 0 && result == Ok(()), "{unit}: {result:?}");
        }
        put.assert_no_wrong_byte(&receiver);
    }
}

/// S5: truncated in the middle of an answer over clear-text data, where the kernel sends and nobody can take a frame
/// back: the connection is lost, and the next request hears why.
#[test]
fn a_file_truncated_under_sendfile_ends_as_changed() {
    let put = Put::new(true);
    let receiver = put.receiver();
    fetch_to_the_gate(&put, &receiver);
    change(&put, &|file| file.set_len(UNIT_BYTES + UNIT_BYTES / 2).unwrap());
    put.held.gate.open();
    receiver.sink.wait("the end", |got| got.ended.contains_key(&1));
    assert!(receiver.sink.got().ended[&1].is_err());
    assert_eq!(receiver.fetch_unit(2, 3, false), Err(ErrorKind::Changed));
    put.assert_no_wrong_byte(&receiver);
}

/// Design 11: touching a file or replacing its name is no change of its bytes; they are checked and sent.
#[test]
fn a_touched_or_replaced_file_is_still_right() {
    for clear in [false, true] {
        let put = Put::new(clear);
        change(&put, &|file| file.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap());
        assert!(put.receiver().fetch_all().as_deref() == Ok(&put.data[..]));
        let other = put.path.with_extension("other");
        std::fs::write(&other, vec![7; put.data.len()]).unwrap();
        std::fs::rename(&other, &put.path).unwrap();
        assert!(put.receiver().fetch_all().as_deref() == Ok(&put.data[..]), "the open file is the old one");
    }
}

/// Design 9: a damaged copy that looks untouched sends its wrong bytes once; asked to check first, it says that it is
/// damaged and sends none.
#[test]
fn a_recheck_finds_damage_before_it_leaves() {
    let object = TestObject::new(sample::bytes((2 * UNIT_BYTES) as usize, 3));
    let oid = Oid::of(&object.data);
    let held = ProvenHeld { damaged_at: Some(UNIT_BYTES), ..ProvenHeld::new(&object) };
    let holder = TestHolder::of(Arc::new(held), oid, 1, false);
    let receiver = TestReceiver::dial(holder.port, holder.node, oid, object.data.len() as u64, false);
    assert_eq!(receiver.fetch_unit(1, 1, false), Ok(()));
    assert_ne!(
        receiver.sink.got().groups[&16][0],
        object.data[UNIT_BYTES as usize],
        "wrong, and not noticed"
    );
    receiver.sink.got().groups.clear();
    assert_eq!(receiver.fetch_unit(2, 1, true), Err(ErrorKind::Damaged));
    assert_eq!(receiver.sink.got().groups.len(), 0);
    assert_eq!(receiver.fetch_unit(3, 0, true), Ok(()), "the other unit is sound");
    assert_eq!(receiver.sink.got().groups.len(), 16);
}

/// S6: an outboard that is damaged while its file is served is not blamed on the file or the network: asked to check, the
/// holder mends it and answers; cut short, it is mended before anything leaves.
#[test]
fn a_damaged_outboard_is_mended_while_it_serves() {
    let put = Put::new(false);
    let hash = put.oid.hex();
    let outboard = put.dirs[1].path().join("objects").join(&hash[..2]).join(&hash).join("outboard");
    let right = std::fs::read(&outboard).unwrap();
    let file = || OpenOptions::new().write(true).open(&outboard).unwrap();
    // The pair of all groups, and one of two groups.
    for at in [62 * 64, 0] {
        file().write_all_at(&[right[at] ^ 1], at as u64).unwrap();
        let receiver = put.receiver();
        assert_eq!(receiver.fetch_unit(1, 0, true), Ok(()));
        assert!(std::fs::read(&outboard).unwrap() == right);
        put.assert_no_wrong_byte(&receiver);
    }
    file().set_len(64).unwrap();
    assert!(put.receiver().fetch_all().as_deref() == Ok(&put.data[..]));
    assert!(std::fs::read(&outboard).unwrap() == right);
    assert_eq!(put.held.standing(), Standing::Trusted);
}

/// Design 5: with clear-text data an untouched file goes from its descriptor to the socket; over TLS it is read.
#[test]
fn clear_data_of_a_file_is_not_read_into_the_process() {
    for clear in [false, true] {
        let put = Put::new(clear);
        assert!(put.receiver().fetch_all().as_deref() == Ok(&put.data[..]));
        let (read_bytes, descriptors) =
            (put.held.read_bytes.load(Ordering::Relaxed), put.held.descriptors.load(Ordering::Relaxed));
        // Of each request and of each frame the first block is looked at: it might be zeros.
        assert_eq!(read_bytes <= put.data.len() / 64, clear, "{read_bytes} bytes, {descriptors} descriptors");
        assert!(descriptors >= UNITS as usize);
    }
}

/// The "zero runs cost nothing on the wire": zeros that are data cross it as runs, from TLS and from clear-text data,
/// and arrive as data; and as bytes where the receiver knows no such runs.
#[test]
fn zeros_that_are_data_are_said_in_runs() {
    let mut data = vec![0; 64 * UNIT_BYTES as usize + 9];
    let island = sample::bytes(100_000, 4);
    let at = 20 * UNIT_BYTES as usize + 77;
    data[at..at + island.len()].copy_from_slice(&island);
    for clear in [false, true] {
        let put = Put::written(clear, &data, &|path| std::fs::write(path, &data).unwrap());
        let relay = Relay::to(put.holder.port);
        let receiver = put.receiver_at(relay.port);
        assert!(receiver.fetch_all().as_deref() == Ok(&data[..]));
        assert_eq!(receiver.sink.got().hole_bytes, 0);
        let sent: usize = relay.seen().iter().map(|traffic| traffic.to_receiver.len()).sum();
        // Where bytes do not pass through the sender, a unit that begins with other bytes leaves whole.
        let most = if clear { 350_000 + UNIT_BYTES as usize } else { 350_000 };
        assert!(sent < most, "clear {clear}: {sent} bytes for 100,000");
    }
    let put = Put::written(false, &data, &|path| std::fs::write(path, &data).unwrap());
    let relay = Relay::to(put.holder.port);
    let receiver = TestReceiver::of_old(relay.port, put.holder.node, put.oid, data.len() as u64);
    assert!(receiver.fetch_all().as_deref() == Ok(&data[..]));
    let sent: usize = relay.seen().iter().map(|traffic| traffic.to_receiver.len()).sum();
    assert!(sent > data.len(), "{sent} bytes");
}

/// S7: holes cross the wire as eight bytes each and arrive as holes, from TLS and from clear-text data.
#[test]
fn holes_cost_nothing_on_the_wire() {
    for clear in [false, true] {
        let mut data = vec![0; 64 * UNIT_BYTES as usize];
        let island = sample::bytes(100_000, 4);
        let at = 20 * UNIT_BYTES as usize;
        data[at..at + island.len()].copy_from_slice(&island);
        let put = Put::written(clear, &data, &|path| {
            let file = File::create(path).unwrap();
            file.write_all_at(&island, at as u64).unwrap();
            file.set_len(data.len() as u64).unwrap();
        });
        let relay = Relay::to(put.holder.port);
        let receiver = put.receiver_at(relay.port);
        assert!(receiver.fetch_all().as_deref() == Ok(&data[..]));
        let holes = receiver.sink.got().hole_bytes;
        // The file system keeps whole blocks.
        assert!(holes >= data.len() as u64 - 2 * GROUP_BYTES, "{holes} bytes of hole");
        let sent: usize = relay.seen().iter().map(|traffic| traffic.to_receiver.len()).sum();
        assert!(sent < 500_000, "{sent} bytes for 100,000");
    }
}
