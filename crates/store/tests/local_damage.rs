//! What the local store does when its files are damaged, missing or not its own: repair or a clear error, never a
//! panic, never wrong bytes taken for right (issue: bit flipped, outboard deleted, read-only, eight at once).
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dray_core::store::{Share, Standing, Store, StoredObject};
use dray_core::{ErrorKind, Oid};
use dray_store::local::LocalStore;
use dray_testkit::{sample, store_conformance::check_object};

const SIZE: usize = (2 << 20) + 77_777;

fn open(root: &Path) -> LocalStore {
    LocalStore::open(root).unwrap().with_clock(|| SystemTime::now() + Duration::from_secs(60))
}

fn put(store: &LocalStore, data: &[u8]) -> Arc<dyn StoredObject> {
    let mut writer = store.put().unwrap();
    writer.write(data).unwrap();
    writer.commit().unwrap()
}

fn part(root: &Path, oid: &Oid, name: &str) -> PathBuf {
    root.join("objects").join(&oid.hex()[..2]).join(oid.hex()).join(name)
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// Issue: a bit flipped in owned data makes the object doubtful, its tree finds the unit, and putting the bytes
/// again repairs it.
#[test]
fn a_flipped_bit_in_owned_data_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let data = sample::bytes(SIZE, 1);
    let object = put(&open(dir.path()), &data);
    assert_eq!(object.standing(), Standing::Trusted);
    flip(&part(dir.path(), &object.oid(), "data"), 100_000);
    assert_eq!(object.standing(), Standing::Doubtful);
    let damaged = open(dir.path()).open(&object.oid()).unwrap();
    assert_eq!(damaged.standing(), Standing::Doubtful);
    let mut bytes = vec![0; SIZE];
    damaged.read_at(0, &mut bytes).unwrap();
    let error = sample::prove_all(damaged.oid(), &bytes, damaged.pairs()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(!damaged.is_borrowed());
    check_object(put(&open(dir.path()), &data).as_ref(), &data);
}

/// Issue: owned data that is cut or gone is `Damaged`, says where, and is replaced by putting it again.
#[test]
fn lost_owned_data_is_named_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let data = sample::bytes(SIZE, 2);
    let oid = put(&open(dir.path()), &data).oid();
    let store = open(dir.path());
    store.update_share(&oid, &mut |_| Ok(Some(Share::default()))).unwrap();
    let file = part(dir.path(), &oid, "data");
    std::fs::File::options().write(true).open(&file).unwrap().set_len(5).unwrap();
    for lost in [false, true] {
        if lost {
            std::fs::remove_file(&file).unwrap();
        }
        let error = store.open(&oid).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains(file.to_str().unwrap()) && error.advice().is_some(), "{error}");
    }
    check_object(put(&store, &data).as_ref(), &data);
    assert_eq!(store.share(&oid).unwrap(), Some(Share::default()), "the share outlives the damage");
}

/// Issue: an outboard that is deleted, cut or altered is built again, of owned and of borrowed objects.
#[test]
fn a_lost_outboard_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let user = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (owned, borrowed) = (sample::bytes(SIZE, 3), sample::bytes(SIZE, 4));
    let path = user.path().join("file");
    std::fs::write(&path, &borrowed).unwrap();
    put(&store, &owned);
    store.put_file(&path, &|_| {}).unwrap();
    for data in [&owned, &borrowed] {
        let oid = Oid::of(data);
        let outboard = part(dir.path(), &oid, "outboard");
        let right = std::fs::read(&outboard).unwrap();
        let damages: [&dyn Fn(); 4] = [
            &|| std::fs::remove_file(&outboard).unwrap(),
            &|| std::fs::File::options().write(true).open(&outboard).unwrap().set_len(64).unwrap(),
            &|| flip(&outboard, 64 * 16 + 3),
            &|| std::fs::write(&outboard, vec![0; right.len()]).unwrap(),
        ];
        for damage in damages {
            damage();
            let object = open(dir.path()).open(&oid).unwrap();
            check_object(object.as_ref(), data);
            assert_eq!(object.standing(), Standing::Trusted);
            assert!(std::fs::read(&outboard).unwrap() == right);
        }
    }
    // Rebuilding reads the data, so that is when other bytes are noticed.
    for (data, file, kind) in [
        (&owned, part(dir.path(), &Oid::of(&owned), "data"), ErrorKind::Damaged),
        (&borrowed, path.clone(), ErrorKind::Changed),
    ] {
        let oid = Oid::of(data);
        std::fs::remove_file(part(dir.path(), &oid, "outboard")).unwrap();
        flip(&file, 5);
        assert_eq!(open(dir.path()).open(&oid).unwrap_err().kind(), kind);
    }
}

/// Design 11: an outboard that was touched is checked against the OID once, and what was found is noted.
#[test]
fn a_touched_outboard_is_checked_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = sample::bytes(SIZE, 5);
    let oid = put(&open(dir.path()), &data).oid();
    let (outboard, record) = (part(dir.path(), &oid, "outboard"), part(dir.path(), &oid, "record"));
    let bytes = std::fs::read(&outboard).unwrap();
    std::fs::remove_file(&outboard).unwrap();
    std::fs::write(&outboard, &bytes).unwrap();
    let before = std::fs::read(&record).unwrap();
    check_object(open(dir.path()).open(&oid).unwrap().as_ref(), &data);
    let after = std::fs::read(&record).unwrap();
    assert!(before != after, "that it is right is noted");
    check_object(open(dir.path()).open(&oid).unwrap().as_ref(), &data);
    assert!(after == std::fs::read(&record).unwrap(), "and not checked again");
}

/// Issue, design 17: rubbish in the store's directories is passed over by a listing and named by an open.
#[test]
fn rubbish_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let kept = put(&store, b"kept").oid();
    let lost = put(&store, b"lost").oid();
    let record = part(dir.path(), &lost, "record");
    for rubbish in [Vec::new(), b"dray-obj".to_vec(), vec![0xff; 100], vec![0; 1 << 20]] {
        std::fs::write(&record, &rubbish).unwrap();
        let listed: Vec<Oid> = store.list().unwrap().iter().map(|summary| summary.oid).collect();
        assert_eq!(listed, [kept]);
        let error = store.open(&lost).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("record") && error.advice().is_some(), "{error}");
    }
    std::fs::write(dir.path().join("objects/zz"), b"").unwrap();
    std::fs::create_dir_all(dir.path().join("objects/00/00")).unwrap();
    std::fs::create_dir_all(dir.path().join("objects/00").join(kept.hex())).unwrap();
    for hint in std::fs::read_dir(dir.path().join("files")).unwrap() {
        std::fs::write(hint.unwrap().path(), b"rubbish").unwrap();
    }
    assert_eq!(store.list().unwrap().len(), 1);
    check_object(put(&store, b"lost").as_ref(), b"lost");
    std::fs::write(&record, b"rubbish again").unwrap();
    assert!(store.remove(&lost).unwrap());
    assert_eq!(store.open(&lost).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!part(dir.path(), &lost, "data").exists());
}

/// Issue, design 12: stores of one user that put, open, share and remove one object at once see it whole or not at
/// all.
#[test]
fn put_open_and_remove_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = sample::bytes(200_000, 8);
    let path = dir.path().join("file");
    std::fs::write(&path, &data).unwrap();
    let (root, oid) = (dir.path().join("store"), Oid::of(&data));
    let whole_or_gone = |object: dray_core::Result<Arc<dyn StoredObject>>| match object {
        Ok(object) => check_object(object.as_ref(), &data),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    };
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (whole_or_gone, data, path, root) = (&whole_or_gone, &data, &path, &root);
            scope.spawn(move || {
                let store = open(root);
                for round in 0..30 {
                    match (worker + round) % 5 {
                        0 => whole_or_gone(store.put_file(path, &|_| {})),
                        1 => {
                            let mut writer = store.put().unwrap();
                            writer.write(data).unwrap();
                            whole_or_gone(writer.commit());
                        }
                        2 => drop(store.remove(&oid).unwrap()),
                        3 => drop(store.list().unwrap()),
                        _ => whole_or_gone(store.open(&oid)),
                    }
                }
            });
        }
    });
    assert_eq!(std::fs::read(&path).unwrap(), data);
    assert_eq!(std::fs::read_dir(root.join("tmp")).unwrap().count(), 0);
}

/// Design 11: a put into a store that holds the bytes already refers to those; the user's file is not needed.
#[test]
fn owned_bytes_are_preferred_to_borrowed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let path = dir.path().join("file");
    let data = sample::bytes(SIZE, 6);
    std::fs::write(&path, &data).unwrap();
    assert!(store.put_file(&path, &|_| {}).unwrap().is_borrowed());
    assert!(!put(&store, &data).is_borrowed(), "who puts bytes wants them kept");
    assert!(!store.put_file(&path, &|_| {}).unwrap().is_borrowed());
    std::fs::remove_file(&path).unwrap();
    check_object(store.open(&Oid::of(&data)).unwrap().as_ref(), &data);
}

/// Issue: a file that changes while it is hashed is `Changed`, and nothing of it is kept.
#[test]
fn a_file_that_changes_while_it_is_hashed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"));
    let path = dir.path().join("file");
    std::fs::write(&path, sample::bytes(SIZE, 7)).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let error = store.put_file(&path, &|_| file.write_all_at(b"changed", 3).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    let error = store.put_file(&path, &|_| file.set_len(100).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(std::fs::read_dir(dir.path().join("store/tmp")).unwrap().count(), 0);
}

/// Issue: a data directory that may not be written is refused by name. (Root may write anywhere, so for root this
/// says nothing and a file in the way stands in.)
#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = LocalStore::open(&file.join("store")).unwrap_err();
    assert!(error.to_string().contains("file") && error.advice().is_some(), "{error}");
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    if std::fs::write(closed.join("probe"), b"").is_err() {
        let error = LocalStore::open(&closed.join("store")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
    }
}
