//! Deliveries: what a reboot, a planted file, a second process, an unlucky name or a cut file make of them.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::Oid;
use dray_core::limits::UNIT_BYTES;

use super::checkpoint::UNCHECKED_UNITS_MAX;
use super::*;

const UNITS: u64 = 10;
const SIZE: u64 = UNITS * UNIT_BYTES - 7;

struct Fixture {
    dir: tempfile::TempDir,
    object: ObjectName,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { dir: tempfile::tempdir().unwrap(), object: ObjectName::Oid(Oid::of(b"some object")) }
    }

    fn destination(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn open(&self) -> Result<Delivery> {
        self.open_sized(SIZE)
    }

    fn open_sized(&self, size_bytes: u64) -> Result<Delivery> {
        // Checkpoints only when a test asks for one.
        let options = DeliveryOptions { checkpoint_interval: Duration::from_secs(3600) };
        Delivery::open(&self.destination(), self.object, size_bytes, options)
    }

    fn temporary(&self) -> (PathBuf, PathBuf) {
        let (data, state) = temporary_names("out".as_ref(), &self.object);
        (self.dir.path().join(data), self.dir.path().join(state))
    }

    /// Makes the state file look as if it had been written before the machine was last started.
    fn reboot(&self) {
        let (_, state) = self.temporary();
        let file = File::options().read(true).write(true).open(state).unwrap();
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes[64..80].fill(0x42);
        let checksum = blake3::hash(&bytes[..96]);
        bytes[96..].copy_from_slice(checksum.as_bytes());
        file.write_all_at(&bytes, 0).unwrap();
    }

    fn names(&self) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

fn write_and_mark(delivery: &Delivery, units: &[u64]) {
    for &unit in units {
        let range = delivery.shared.geometry.byte_range(delivery.shared.geometry.unit(unit));
        delivery.write_data(range.start, &vec![unit as u8 + 1; (range.end - range.start) as usize]).unwrap();
        delivery.mark_unit(unit).unwrap();
    }
}

fn marked(delivery: &Delivery) -> Vec<u64> {
    delivery.marked_units().iter().flatten().collect()
}

/// Design 10: all marks survive the process; only those of a checkpoint survive the machine.
#[test]
fn marks_survive_the_process_and_checkpoints_the_machine() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 2, 9]);
    delivery.checkpoint().unwrap();
    write_and_mark(&delivery, &[1, 3]);
    drop(delivery);
    assert_eq!(marked(&fixture.open().unwrap()), [0, 1, 2, 3, 9]);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [0, 2, 9]);
    // What the reboot took does not come back.
    assert_eq!(marked(&fixture.open().unwrap()), [0, 2, 9]);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [0, 2, 9]);
}

/// Design 10: a unit that is forgotten is forgotten for good, also if a checkpoint had remembered it.
#[test]
fn unmarking_reaches_the_durable_map() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[4, 5]);
    delivery.checkpoint().unwrap();
    delivery.unmark_unit(4).unwrap();
    write_and_mark(&delivery, &[4]);
    drop(delivery);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [5]);
}

/// Design 10: the same for many units at once, of which some were durable and some were not.
#[test]
fn unmarking_many_reaches_the_durable_map() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 1, 2, 7, 8]);
    delivery.checkpoint().unwrap();
    write_and_mark(&delivery, &[4, 9]);
    let mut units = RangeSet::new();
    units.insert(1..5);
    units.insert(8..10);
    delivery.unmark_units(&units).unwrap();
    drop(delivery);
    assert_eq!(marked(&fixture.open().unwrap()), [0, 7]);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [0, 7]);
}

/// Design 10: a unit that is forgotten while a checkpoint waits for the disk is not made durable by it.
#[test]
fn unmarking_reaches_the_checkpoint_that_runs() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[4, 5]);
    {
        let mut marks = lock(&delivery.shared.marks);
        marks.pending = Some(marks.marked.clone());
    }
    delivery.unmark_unit(4).unwrap();
    write_and_mark(&delivery, &[4]);
    delivery.shared.make_durable().unwrap();
    drop(delivery);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [5]);
}

/// Design 10: a delivery that is over writes nothing more to its state, whose name another process may have by then.
#[test]
fn a_checkpoint_that_ends_late_writes_nothing() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[4, 5]);
    {
        let mut marks = lock(&delivery.shared.marks);
        marks.pending = Some(marks.marked.clone());
    }
    let before = std::fs::read(fixture.temporary().1).unwrap();
    delivery.shared.stop();
    delivery.shared.make_durable().unwrap();
    assert!(std::fs::read(fixture.temporary().1).unwrap() == before);
    assert!(lock(&delivery.shared.marks).durable.is_empty());
}

/// Design 10: marks that were taken back after a failure are gone from the disk, too, or that has failed. /dev/full takes nothing, and
/// /dev/null takes it and cannot be synced.
#[test]
fn marks_are_taken_back_on_the_disk() {
    for in_vain in ["/dev/null", "/dev/full"] {
        let fixture = Fixture::new();
        let mut delivery = fixture.open().unwrap();
        write_and_mark(&delivery, &[4]);
        let device = File::options().write(true).open(in_vain).unwrap();
        let state = std::mem::replace(&mut Arc::get_mut(&mut delivery.shared).unwrap().state, device);
        assert!(!delivery.shared.write_marks(&lock(&delivery.shared.marks)), "{in_vain}");
        Arc::get_mut(&mut delivery.shared).unwrap().state = state;
        lock(&delivery.shared.marks).marked.put(4, false);
        assert!(delivery.shared.write_marks(&lock(&delivery.shared.marks)));
        write_and_mark(&delivery, &[6]);
        drop(delivery);
        assert_eq!(marked(&fixture.open().unwrap()), [6]);
    }
}

/// Design 10: before other bytes take the place of a durable unit, the disk knows that it is not there any more. /dev/null is what takes
/// writes here and cannot be synced.
#[test]
fn unmarking_what_is_durable_reaches_the_disk() {
    let fixture = Fixture::new();
    let mut delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[4, 5]);
    delivery.checkpoint().unwrap();
    write_and_mark(&delivery, &[6]);
    let null = File::options().write(true).open("/dev/null").unwrap();
    let state = std::mem::replace(&mut Arc::get_mut(&mut delivery.shared).unwrap().state, null);
    delivery.unmark_unit(6).unwrap();
    delivery.unmark_unit(4).unwrap_err();
    Arc::get_mut(&mut delivery.shared).unwrap().state = state;
}

/// Design 10: a mark that cannot be written is none, neither here nor for a later run.
#[test]
fn a_mark_that_is_not_written_does_not_stay() {
    let fixture = Fixture::new();
    let mut delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[4]);
    let read_only = File::open(fixture.temporary().1).unwrap();
    let state = std::mem::replace(&mut Arc::get_mut(&mut delivery.shared).unwrap().state, read_only);
    delivery.mark_unit(5).unwrap_err();
    Arc::get_mut(&mut delivery.shared).unwrap().state = state;
    assert_eq!(marked(&delivery), [4]);
    // It shares a byte with the next one.
    write_and_mark(&delivery, &[6]);
    drop(delivery);
    assert_eq!(marked(&fixture.open().unwrap()), [4, 6]);
}

/// Design 10: what was cut off is not believed after a restart of the machine either, whatever a checkpoint had said of it.
#[test]
fn what_was_cut_off_is_not_durable() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 4, 5, 9]);
    delivery.checkpoint().unwrap();
    drop(delivery);
    let data = File::options().write(true).open(fixture.temporary().0).unwrap();
    data.set_len(5 * UNIT_BYTES).unwrap();
    // It has its full length again from here on, all hole.
    assert_eq!(marked(&fixture.open().unwrap()), [0, 4]);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [0, 4]);
}

/// Design 10: the checkpoint thread does by itself what `checkpoint` does.
#[test]
fn checkpoints_happen_by_themselves() {
    let fixture = Fixture::new();
    let options = DeliveryOptions { checkpoint_interval: Duration::from_millis(1) };
    let delivery = Delivery::open(&fixture.destination(), fixture.object, SIZE, options).unwrap();
    // The first mark after one interval begins it.
    while !lock(&delivery.shared.marks).has_thread {
        write_and_mark(&delivery, &[6]);
    }
    write_and_mark(&delivery, &[8]);
    while !lock(&delivery.shared.marks).durable.contains(8) {
        std::thread::yield_now();
    }
    drop(delivery);
    fixture.reboot();
    assert_eq!(marked(&fixture.open().unwrap()), [6, 8]);
}

/// Design 10: the system reports a failed write-back once. After it no mark is taken, no finish succeeds, and a later
/// run believes only what was durable before. A pipe in place of the data file is what cannot be synced here.
#[test]
fn a_failed_checkpoint_is_not_forgotten() {
    for fsync in [false, true] {
        let fixture = Fixture::new();
        let mut delivery = fixture.open().unwrap();
        write_and_mark(&delivery, &[0, 2]);
        delivery.checkpoint().unwrap();
        write_and_mark(&delivery, &[1, 9]);
        let (reader, _writer) = io::pipe().unwrap();
        let data = std::mem::replace(
            &mut Arc::get_mut(&mut delivery.shared).unwrap().data,
            File::from(OwnedFd::from(reader)),
        );
        delivery.checkpoint().unwrap_err();
        Arc::get_mut(&mut delivery.shared).unwrap().data = data;
        delivery.checkpoint().unwrap_err();
        delivery.mark_unit(3).unwrap_err();
        for _ in 0..2 {
            let error = delivery.finish(FinishOptions { fsync, ..FinishOptions::default() }).unwrap_err();
            assert!(error.to_string().contains("cannot write"), "{error}");
        }
        assert!(!fixture.destination().exists());
        assert_eq!(marked(&delivery), [0, 2]);
        drop(delivery);
        assert_eq!(marked(&fixture.open().unwrap()), [0, 2]);
    }
}

/// Design 10: the same where it is the finish that finds it, and where the checkpoint ends after the delivery does.
#[test]
fn a_failed_finish_is_not_forgotten() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 2]);
    delivery.checkpoint().unwrap();
    write_and_mark(&delivery, &[1]);
    let failure = Error::new(ErrorKind::Internal, "the disk is gone");
    delivery.shared.fall_back(&failure);
    let error = delivery.finish(FinishOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    let shared = Arc::clone(&delivery.shared);
    drop(delivery);
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[5]);
    shared.fall_back(&failure);
    drop(delivery);
    // Another process had gone on: its state is left alone. With nobody there it is void.
    assert_eq!(marked(&fixture.open().unwrap()), [0, 2, 5]);
    shared.fall_back(&failure);
    assert_eq!(marked(&fixture.open().unwrap()), [0; 0]);
}

/// Issue: a data file that was cut, or replaced, is believed only as far as it reaches.
#[test]
fn a_cut_or_replaced_data_file_loses_its_marks() {
    let fixture = Fixture::new();
    let (data, state) = fixture.temporary();
    write_and_mark(&fixture.open().unwrap(), &[0, 4, 5, 9]);
    File::options().write(true).open(&data).unwrap().set_len(5 * UNIT_BYTES + 10).unwrap();
    let delivery = fixture.open().unwrap();
    assert_eq!(marked(&delivery), [0, 4]);
    let mut tail = [1; 64];
    delivery.read_data(SIZE - 64, &mut tail).unwrap();
    assert_eq!(tail, [0; 64]);
    drop(delivery);
    std::fs::copy(&data, fixture.dir.path().join("copy")).unwrap();
    std::fs::rename(fixture.dir.path().join("copy"), &data).unwrap();
    let delivery = fixture.open().unwrap();
    assert_eq!(marked(&delivery), [0; 0]);
    let mut start = [1; 64];
    delivery.read_data(0, &mut start).unwrap();
    assert_eq!(start, [0; 64], "a fresh start is all hole");
    write_and_mark(&delivery, &[3]);
    drop(delivery);
    // Damage to the header costs the marks, not the transfer.
    File::options().write(true).open(&state).unwrap().write_all_at(&[0xff; 3], 70).unwrap();
    assert_eq!(marked(&fixture.open().unwrap()), [0; 0]);
}

/// Issue "a bit flipped in owned data": what somebody else changed of an unfinished file is not believed, even where its
/// modification time was put back.
#[test]
fn data_changed_by_somebody_else_loses_its_marks() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 1, 2]);
    drop(delivery);
    let (data, state) = fixture.temporary();
    let set = |path: &Path, seconds: u64| {
        let time = std::time::SystemTime::now() - Duration::from_secs(seconds);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    // As if the last word of the delivery were a minute old, and the data changed now, with its old time put back.
    set(&state, 60);
    let mut byte = [0];
    let file = File::options().read(true).write(true).open(&data).unwrap();
    file.read_exact_at(&mut byte, UNIT_BYTES).unwrap();
    file.write_all_at(&[byte[0] ^ 1], UNIT_BYTES).unwrap();
    set(&data, 120);
    let delivery = fixture.open().unwrap();
    assert_eq!(marked(&delivery), [0; 0], "nothing of it can be believed");
    write_and_mark(&delivery, &[2]);
    drop(delivery);
    assert_eq!(marked(&fixture.open().unwrap()), [2]);
}

/// A slow link leaves long pauses between two units; what is written meanwhile is noted.
#[test]
fn writing_is_noted_between_marks() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0]);
    let (_, state) = fixture.temporary();
    let minute_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(&state).unwrap().set_modified(minute_ago).unwrap();
    std::thread::sleep(Duration::from_millis(NOTE_INTERVAL_MS + 50));
    delivery.write_data(UNIT_BYTES, b"a group of the next unit").unwrap();
    drop(delivery);
    assert_eq!(marked(&fixture.open().unwrap()), [0]);
}

/// Design 12: two processes never receive the same object into one place; when one ends, the other may.
#[test]
fn a_second_receiver_is_refused() {
    let fixture = Fixture::new();
    let first = fixture.open().unwrap();
    write_and_mark(&first, &[1]);
    let second = fixture.open().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Refused);
    assert!(second.to_string().contains("another dray is receiving"), "{second}");
    drop(first);
    assert_eq!(marked(&fixture.open().unwrap()), [1]);
}

/// Design 12: of many processes that come and go on one destination, one at a time holds it, and none of them
/// works on a file that another has renamed away.
#[test]
fn many_receivers_take_turns() {
    let fixture = Fixture::new();
    let finished = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..40 {
                    match fixture.open_sized(5) {
                        Ok(delivery) => {
                            assert_eq!(marked(&delivery), [0; 0], "the one before finished");
                            delivery.write_data(0, b"hello").unwrap();
                            delivery.mark_unit(0).unwrap();
                            delivery.finish(FinishOptions::default()).unwrap();
                            finished.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Refused, "{error}"),
                    }
                }
            });
        }
    });
    assert!(finished.into_inner() > 0);
    assert_eq!(fixture.names(), ["out"]);
    assert_eq!(std::fs::read(fixture.destination()).unwrap(), b"hello");
}

/// Design 12: who gets the lock of a state file that was finished, and removed, before has nothing by it, and tries again.
#[test]
fn the_lock_of_a_file_that_is_gone_is_none() {
    let fixture = Fixture::new();
    let first = fixture.open().unwrap();
    let (_, state) = fixture.temporary();
    let (name, destination) = (state.file_name().unwrap(), &first.shared.destination);
    let opened = destination.open_own(name).unwrap().unwrap();
    assert!(matches!(take_lock(destination, name, &opened).unwrap(), Lock::Held));
    let name = OsString::from("gone");
    let opened = destination.open_own(&name).unwrap().unwrap();
    destination.unlink(&name).unwrap();
    assert!(matches!(take_lock(destination, &name, &opened).unwrap(), Lock::Gone));
    let opened = destination.open_own(&name).unwrap().unwrap();
    assert!(matches!(take_lock(destination, &name, &opened).unwrap(), Lock::Taken));
}

/// Design 17: what somebody planted under the temporary names is neither followed nor written.
#[test]
fn planted_files_are_refused() {
    for plant_state in [false, true] {
        let fixture = Fixture::new();
        let (data, state) = fixture.temporary();
        let target = if plant_state { &state } else { &data };
        let victim = fixture.dir.path().join("victim");
        std::fs::write(&victim, b"precious").unwrap();
        let plants: [&dyn Fn(); 4] = [
            &|| symlink(&victim, target).unwrap(),
            &|| symlink(fixture.dir.path().join("nowhere"), target).unwrap(),
            &|| std::fs::hard_link(&victim, target).unwrap(),
            &|| std::fs::create_dir(target).unwrap(),
        ];
        for (index, plant) in plants.iter().enumerate() {
            plant();
            let error = fixture.open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "plant {index}: {error}");
            assert!(error.advice().is_some());
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
            assert!(!fixture.dir.path().join("nowhere").exists());
            if target.is_dir() { std::fs::remove_dir(target) } else { std::fs::remove_file(target) }.unwrap();
            assert_eq!(fixture.names(), ["victim"], "a refused delivery leaves nothing");
        }
    }
}

/// Design 10: what is to be durable waits for a checkpoint that runs, whose error would be reported to that one alone; what is not does not
/// wait.
#[test]
fn a_durable_finish_waits_for_the_checkpoint_that_runs() {
    for fsync in [false, true] {
        let fixture = Fixture::new();
        let delivery = fixture.open().unwrap();
        write_and_mark(&delivery, &[0]);
        let running = delivery.shared.checkpointing.lock().unwrap();
        let finish = || delivery.finish(FinishOptions { fsync, ..FinishOptions::default() });
        std::thread::scope(|scope| {
            let finishing = scope.spawn(finish);
            if fsync {
                std::thread::sleep(Duration::from_millis(300));
                assert!(!finishing.is_finished() && !fixture.destination().exists());
                drop(running);
                finishing.join().unwrap().unwrap();
            } else {
                finishing.join().unwrap().unwrap();
                drop(running);
            }
        });
        assert!(fixture.destination().exists());
    }
}

/// Design 17: a temporary file that was exchanged while it was received is not renamed into place.
#[test]
fn an_exchanged_temporary_file_is_not_delivered() {
    let fixture = Fixture::new();
    let delivery = fixture.open_sized(5).unwrap();
    delivery.write_data(0, b"right").unwrap();
    let (data, _) = fixture.temporary();
    std::fs::write(fixture.dir.path().join("evil"), b"wrong").unwrap();
    std::fs::rename(fixture.dir.path().join("evil"), &data).unwrap();
    let error = delivery.finish(FinishOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(!fixture.destination().exists());
}

/// D16, design 11: the finished file has its bytes, name, mode and time, and nothing else is left; odd names and the
/// empty object too.
#[test]
fn finishing_renames_and_cleans_up() {
    let long = "n".repeat(255);
    let names = [&b"plain"[..], b"with space", b"new\nline", b"\xff\xfe", b".dray-", long.as_bytes()];
    for name in names {
        for size in [0, 3] {
            let fixture = Fixture::new();
            let path = fixture.dir.path().join(OsStr::from_bytes(name));
            let delivery = Delivery::open(&path, fixture.object, size, DeliveryOptions::default()).unwrap();
            delivery.write_data(0, &b"abc"[..size as usize]).unwrap();
            let options = FinishOptions {
                mode: Some(0o640),
                mtime: Some((-5, 7)),
                fsync: true,
                ..FinishOptions::default()
            };
            delivery.finish(options).unwrap();
            assert_eq!(fixture.names(), [OsStr::from_bytes(name)]);
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), &b"abc"[..size as usize]);
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
            assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-5, 7));
        }
    }
}

/// As `cp` does: a new file follows the umask, a replaced one keeps its permissions; a link is replaced, not what
/// it points to.
#[test]
fn modes_follow_cp() {
    let fixture = Fixture::new();
    let finish = || fixture.open_sized(1).unwrap().finish(FinishOptions::default()).unwrap();
    let mode = || std::fs::metadata(fixture.destination()).unwrap().permissions().mode() & 0o7777;
    finish();
    std::fs::write(fixture.dir.path().join("made by the system"), b"").unwrap();
    let usual = std::fs::metadata(fixture.dir.path().join("made by the system")).unwrap();
    assert_eq!(mode(), usual.permissions().mode() & 0o7777);
    std::fs::set_permissions(fixture.destination(), std::fs::Permissions::from_mode(0o604)).unwrap();
    finish();
    assert_eq!(mode(), 0o604);
    let target = fixture.dir.path().join("target");
    std::fs::rename(fixture.destination(), &target).unwrap();
    std::fs::write(&target, b"old").unwrap();
    symlink(&target, fixture.destination()).unwrap();
    finish();
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert!(std::fs::symlink_metadata(fixture.destination()).unwrap().is_file());
}

/// Issue: what cannot be a destination is refused before anything is made.
#[test]
fn impossible_destinations_are_refused() {
    let fixture = Fixture::new();
    let open = |path: &Path, size| Delivery::open(path, fixture.object, size, DeliveryOptions::default());
    std::fs::create_dir(fixture.destination()).unwrap();
    for (path, size, kind) in [
        (fixture.destination(), 1, ErrorKind::Refused),
        (PathBuf::from("/dev/null"), 1, ErrorKind::Refused),
        (PathBuf::from("/"), 1, ErrorKind::Usage),
        (fixture.dir.path().join(".."), 1, ErrorKind::Usage),
        (fixture.dir.path().join("missing/file"), 1, ErrorKind::NotFound),
        (fixture.dir.path().join("huge"), DELIVERY_BYTES_MAX + 1, ErrorKind::Unsupported),
        (fixture.dir.path().join("huge"), u64::MAX, ErrorKind::Unsupported),
    ] {
        let error = open(&path, size).unwrap_err();
        assert_eq!(error.kind(), kind, "{path:?}: {error}");
        assert_eq!(fixture.names(), ["out"]);
    }
    // More than the file system can hold: an error of its kind, or room for it, but never a panic or a leftover.
    match open(&fixture.dir.path().join("huge"), DELIVERY_BYTES_MAX) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.advice().is_some_and(|advice| advice.contains("no file that large")), "{error}");
        }
        Ok(delivery) => drop(delivery),
    }
    assert_eq!(fixture.names(), ["out"]);
}

/// Design 11: giving up leaves nothing, nor does stopping before anything was marked.
#[test]
fn discarded_and_empty_deliveries_leave_nothing() {
    let fixture = Fixture::new();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0]);
    delivery.discard().unwrap();
    assert_eq!(fixture.names(), [""; 0]);
    let delivery = fixture.open().unwrap();
    delivery.write_data(0, b"half a unit").unwrap();
    drop(delivery);
    assert_eq!(fixture.names(), [""; 0]);
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0]);
    drop(delivery);
    assert_eq!(fixture.names().len(), 2);
}

/// Issue: data and holes in any order, over several runs, take the room of the data and no more, though room is
/// reserved ahead of the writes.
#[test]
fn reserved_room_is_given_back_where_holes_arrive() {
    let fixture = Fixture::new();
    let units = 150;
    let is_data = |unit: u64| unit.is_multiple_of(7) || unit == units - 1;
    let order = dray_testkit::sample::shuffled(units, 3);
    for run in order.chunks(40) {
        let delivery = fixture.open_sized(units * UNIT_BYTES - 9).unwrap();
        for &unit in run {
            let range = delivery.shared.geometry.byte_range(delivery.shared.geometry.unit(unit));
            if is_data(unit) {
                write_and_mark(&delivery, &[unit]);
            } else {
                delivery.write_hole(range).unwrap();
                delivery.mark_unit(unit).unwrap();
            }
        }
    }
    let delivery = fixture.open_sized(units * UNIT_BYTES - 9).unwrap();
    assert_eq!(delivery.marked_units().count(), units);
    delivery.finish(FinishOptions::default()).unwrap();
    let allocated = std::fs::metadata(fixture.destination()).unwrap().blocks() * 512;
    let data = (0..units).filter(|unit| is_data(*unit)).count() as u64 * UNIT_BYTES;
    assert!(allocated.abs_diff(data) < UNIT_BYTES / 4, "{allocated} bytes for {data}");
}

/// Performance: room is reserved ahead of the writes (8 MiB), but for what is written at once.
#[test]
fn room_is_reserved_ahead() {
    let scratch = tempfile::tempfile().unwrap();
    if !space::allocate(&scratch, 0..UNIT_BYTES) {
        return dray_testkit::say_skip("the file system reserves no room");
    }
    for (size_bytes, reserved) in
        [(UNIT_BYTES, 0..UNIT_BYTES / 2), (20 * UNIT_BYTES, 8 * UNIT_BYTES..9 * UNIT_BYTES)]
    {
        let fixture = Fixture::new();
        let delivery = fixture.open_sized(size_bytes).unwrap();
        delivery.write_data(0, b"x").unwrap();
        let allocated = std::fs::metadata(fixture.temporary().0).unwrap().blocks() * 512;
        assert!(reserved.contains(&allocated), "{allocated} bytes of {size_bytes}");
    }
}

/// Design 10: what is large is worth checkpoints from the first mark on, however fast it comes; 64 MiB are not.
#[test]
fn large_objects_have_checkpoints_at_once() {
    for (units, has_thread) in [(64, false), (65, true)] {
        let fixture = Fixture::new();
        let delivery = fixture.open_sized(units * UNIT_BYTES).unwrap();
        delivery.mark_unit(0).unwrap();
        assert_eq!(lock(&delivery.shared.marks).has_thread, has_thread, "{units} units");
    }
}

/// Design 10, P13: a checkpoint begins after 64 MiB, however long it is until the next one would: a receiver that is killed while it waits for the disk loses less.
#[test]
fn a_checkpoint_begins_after_so_many_units() {
    let fixture = Fixture::new();
    let delivery = fixture.open_sized((UNCHECKED_UNITS_MAX + 1) * UNIT_BYTES).unwrap();
    let durable = || {
        let marks = lock(&delivery.shared.marks);
        (0..UNCHECKED_UNITS_MAX).any(|unit| marks.durable.contains(unit))
    };
    (0..UNCHECKED_UNITS_MAX - 1).for_each(|unit| delivery.mark_unit(unit).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!durable(), "nothing asks for one yet");
    delivery.mark_unit(UNCHECKED_UNITS_MAX - 1).unwrap();
    let begun = Instant::now();
    while !durable() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint began");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes this thread's right to ignore permissions, which root has: tests run as root too.
#[cfg(target_os = "linux")]
fn without_override(test: impl FnOnce() + Send) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            test();
        });
        thread.join().unwrap();
    });
}

/// Design 10: a finish that fails, at whatever step, leaves files that the next run can open, also when the object is
/// read-only; and so does one that is killed just before the rename.
#[cfg(target_os = "linux")]
#[test]
fn a_read_only_object_can_be_finished_again() {
    let fixture = Fixture::new();
    let read_only = || FinishOptions { mode: Some(0o444), ..FinishOptions::default() };
    let permit = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (data, _) = fixture.temporary();
    let delivery = fixture.open().unwrap();
    write_and_mark(&delivery, &[0, 1]);
    without_override(|| {
        permit(fixture.dir.path(), 0o500);
        let error = delivery.finish(read_only()).unwrap_err();
        permit(fixture.dir.path(), 0o700);
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        drop(delivery);
        assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o7777, 0o600);
        permit(&data, 0o444);
        let delivery = fixture.open().unwrap();
        assert_eq!(marked(&delivery), [0, 1]);
        let away = fixture.dir.path().join("away");
        std::fs::rename(&data, &away).unwrap();
        delivery.finish(read_only()).unwrap_err();
        assert_eq!(std::fs::metadata(&away).unwrap().permissions().mode() & 0o7777, 0o600);
        std::fs::rename(&away, &data).unwrap();
        delivery.finish(FinishOptions { fsync: true, ..read_only() }).unwrap();
    });
    let mode = std::fs::metadata(fixture.destination()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o444);
    assert_eq!(fixture.names(), ["out"]);
}

/// A file that is not to be replaced stops the finish, and what arrived stays for another name.
#[test]
fn an_existing_file_is_kept() {
    let fixture = Fixture::new();
    let delivery = fixture.open_sized(3).unwrap();
    delivery.write_data(0, b"new").unwrap();
    let taken = fixture.dir.path().join("taken");
    std::fs::write(&taken, b"old").unwrap();
    std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(0o777)).unwrap();
    let options = |name: &str| FinishOptions {
        rename_to: Some(name.into()),
        keep_existing: true,
        ..FinishOptions::default()
    };
    let error = delivery.finish(options("taken")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(std::fs::read(&taken).unwrap(), b"old");
    // It may also come between the look and the name.
    let error = delivery.rename(&"taken".into(), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(std::fs::read(&taken).unwrap(), b"old");
    delivery.finish(options("free")).unwrap();
    let free = std::fs::metadata(fixture.dir.path().join("free")).unwrap();
    assert_eq!(free.permissions().mode() & 0o7777, new_file_mode());
    assert_eq!(fixture.names(), ["free", "taken"]);
}

/// Design 11: a finished delivery takes with it what interrupted ones of other objects left for the same name, and
/// nothing else: not what is being received, what belongs to another name, or what only looks alike.
#[test]
fn finishing_removes_leftovers_of_the_same_name_only() {
    let fixture = Fixture::new();
    let path = |name: &str| fixture.dir.path().join(name);
    let long = |last: char| format!("{}{last}", "n".repeat(254));
    let open = |name: &str, seed: u8, size| {
        let object = match seed % 2 {
            0 => ObjectName::Oid(Oid::of(&[seed])),
            _ => ObjectName::Provisional([seed; 32]),
        };
        Delivery::open(&path(name), object, size, DeliveryOptions::default()).unwrap()
    };
    let leave = |name: &str, seed| write_and_mark(&open(name, seed, SIZE), &[1]);
    for (name, other) in [("out".to_owned(), "out2".to_owned()), (long('a'), long('b'))] {
        leave(&other, 0);
        // Looks like a state file but is none, with something beside it.
        std::fs::write(path(".out.dray-0123456789abcdef"), b"precious").unwrap();
        std::fs::write(path(".out.dray-0123456789abcdef.state"), [7; 5000]).unwrap();
        // A state file under another id than its object has.
        leave(&name, 3);
        let (_, state) = temporary_names(name.as_ref(), &ObjectName::Provisional([3; 32]));
        let mut renamed = state.as_bytes().to_vec();
        let digit = renamed.len() - ".state".len() - 1;
        renamed[digit] = if renamed[digit] == b'0' { b'1' } else { b'0' };
        let renamed = fixture.dir.path().join(OsStr::from_bytes(&renamed));
        std::fs::copy(fixture.dir.path().join(&state), &renamed).unwrap();
        // Another name of a leftover.
        leave(&name, 4);
        let (linked, _) = temporary_names(name.as_ref(), &ObjectName::Oid(Oid::of(&[4])));
        std::fs::hard_link(fixture.dir.path().join(linked), path("link")).unwrap();
        let busy = open(&name, 5, SIZE);
        write_and_mark(&busy, &[2]);
        let kept = fixture.names();
        let (data, state) = temporary_names(name.as_ref(), &ObjectName::Provisional([3; 32]));
        let mut kept: Vec<OsString> =
            kept.into_iter().filter(|name| *name != data && *name != state).collect();
        leave(&name, 6);
        leave(&name, 7);
        // A kill between rename and unlink leaves the state alone.
        std::fs::remove_file(
            fixture.dir.path().join(temporary_names(name.as_ref(), &ObjectName::Provisional([7; 32])).0),
        )
        .unwrap();
        open(&name, 8, 5).finish(FinishOptions::default()).unwrap();
        kept.push(name.clone().into());
        kept.sort();
        assert_eq!(fixture.names(), kept);
        write_and_mark(&busy, &[3]);
        drop(busy);
        assert_eq!(marked(&open(&name, 5, SIZE)), [2, 3]);
        for name in fixture.names() {
            std::fs::remove_file(fixture.dir.path().join(name)).unwrap();
        }
    }
}
