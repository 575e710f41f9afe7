//! A disk that is really full: a file system of 8 MiB in a mount namespace of the test's own. Alone in its file because
//! it runs itself again as the child that lives there.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use dray_core::hash_tree::{Geometry, PairStore};
use dray_core::limits::UNIT_BYTES;
use dray_core::message::ObjectName;
use dray_core::store::{PartialObject, Store};
use dray_core::{Error, ErrorKind, Oid};
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions, LocalStore};
use dray_testkit::sample;

const SMALL_DISK: &str = "DRAY_TEST_SMALL_DISK";
const DISK_UNITS: u64 = 8;
const UNITS: u64 = 20;
const SIZE: u64 = UNITS * UNIT_BYTES - 3;

/// Issue, design 10: when the disk is full the error says so and where, every mark made stays, and with more room the
/// same delivery goes on to the end. The store keeps nothing of what it could not take.
#[test]
fn a_full_disk_is_named_and_gone_on_from() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return live_on(Path::new(&disk));
    }
    let dir = tempfile::tempdir().unwrap();
    let run = |script: &str, program: &OsStr| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(program);
        unshare.env(SMALL_DISK, dir.path()).output()
    };
    let mount = "mount -t tmpfs -o size=8m none \"$DRAY_TEST_SMALL_DISK\"";
    if !run(mount, OsStr::new("sh")).is_ok_and(|output| output.status.success()) {
        return dray_testkit::say_skip(
            "this machine lets nobody make a file system (unshare, mount): disk full is not tested",
        );
    }
    let program = std::env::current_exe().unwrap();
    let script = format!("{mount} && exec \"$0\" --exact a_full_disk_is_named_and_gone_on_from --nocapture");
    let output = run(&script, program.as_os_str()).unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn live_on(disk: &Path) {
    stores_nothing_of_what_does_not_fit(&disk.join("store"));
    let destination = disk.join("out");
    let data = sample::bytes(SIZE as usize, 1);
    let geometry = Geometry::new(SIZE);
    let open = |object: &[u8]| {
        Delivery::open(&destination, ObjectName::Oid(Oid::of(object)), SIZE, DeliveryOptions::default())
    };
    let write = |delivery: &Delivery, unit: u64| {
        let range = geometry.byte_range(geometry.unit(unit));
        delivery.write_data(range.start, &data[range.start as usize..range.end as usize])
    };
    let expect_full = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains(destination.to_str().unwrap()), "{error}");
        assert!(error.advice().is_some(), "{error}");
    };
    let delivery = open(b"object").unwrap();
    let mut arrived = 0;
    let error = loop {
        match write(&delivery, arrived) {
            Ok(()) => arrived += 1,
            Err(error) => break error,
        }
    };
    expect_full(error);
    assert!((DISK_UNITS / 2..DISK_UNITS).contains(&arrived), "{arrived} units fit");
    // The pairs find no room either; the marks had theirs from the start.
    expect_full(delivery.write_at(geometry.outboard_bytes() - 64, &[1; 64]).unwrap_err());
    for unit in 0..arrived {
        delivery.mark_unit(unit).unwrap();
    }
    delivery.checkpoint().unwrap();
    drop(delivery);
    let names = || std::fs::read_dir(disk).unwrap().count();
    let before = names();
    expect_full(open(b"another object").unwrap_err());
    assert_eq!(names(), before, "what could not begin leaves nothing");

    let remounted = Command::new("mount").args(["-o", "remount,size=64m"]).arg(disk).status().unwrap();
    assert!(remounted.success());
    let delivery = open(b"object").unwrap();
    assert!(delivery.marked_units().iter().eq(std::iter::once(0..arrived)));
    for unit in arrived..UNITS {
        write(&delivery, unit).unwrap();
        delivery.mark_unit(unit).unwrap();
    }
    delivery.finish(FinishOptions { fsync: true, ..FinishOptions::default() }).unwrap();
    assert!(std::fs::read(&destination).unwrap() == data);
}

fn stores_nothing_of_what_does_not_fit(root: &Path) {
    let store = LocalStore::open(root).unwrap();
    let mut writer = store.put().unwrap();
    let piece = sample::bytes(UNIT_BYTES as usize, 2);
    let full = (0..UNITS).find_map(|_| writer.write(&piece).err());
    drop(writer);
    assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    assert_eq!(std::fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    assert!(store.list().unwrap().is_empty());
    let mut writer = store.put().unwrap();
    writer.write(&piece).unwrap();
    let oid = writer.commit().unwrap().oid();
    assert!(store.remove(&oid).unwrap());
    goes_on_where_room_is_made(root, &store, &piece);
}

/// D13: what found no room can be written again when there is some, and so can the end of it: not a byte is lost or doubled.
fn goes_on_where_room_is_made(root: &Path, store: &LocalStore, piece: &[u8]) {
    let filler = root.join("filler");
    std::fs::write(&filler, vec![1; 3 << 20]).unwrap();
    let mut writer = store.take_in().unwrap();
    let (mut written, mut refusals) = (Vec::new(), 0);
    while written.len() < 6 << 20 {
        if let Err(error) = writer.write(piece) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refusals += 1;
            std::fs::remove_file(&filler).unwrap();
            writer.write(piece).unwrap();
        }
        written.extend_from_slice(piece);
    }
    assert_eq!(refusals, 1);
    let mut incoming = writer.finish().unwrap();
    let mut rest = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut rest, &[1; 4096]).is_ok() {}
    for _ in 0..2 {
        assert_eq!(incoming.keep().unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(store.list().unwrap().is_empty());
    }
    drop(rest);
    std::fs::remove_file(&filler).unwrap();
    let object = incoming.keep().unwrap();
    let mut found = vec![0; written.len()];
    object.read_at(0, &mut found).unwrap();
    assert!(found == written && object.oid() == Oid::of(&written));
    assert!(store.let_go(&object.oid()).unwrap());
    assert_eq!(std::fs::read_dir(root.join("tmp")).unwrap().count(), 0);
}
