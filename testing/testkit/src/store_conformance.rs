//! What every storage plugin must do, asked of exactly the capabilities it declares.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A suite fails by panicking.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::hash_tree::Geometry;
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::store::{Share, Standing, Store, StoredObject};
use dray_core::{ErrorKind, Oid};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::sample;

/// A store at a place of its own.
pub struct StoreUnderTest {
    /// The store, empty. If it takes files, its clock must run at least two seconds ahead, so that files made by
    /// the suite count as settled.
    pub store: Arc<dyn Store>,
    /// Opens the same place again, as another process would.
    pub reopen: Box<dyn Fn() -> Arc<dyn Store>>,
}

/// Runs the suite; `fresh` makes a new, empty store each time. Panics at the first promise that is not kept.
pub fn check(fresh: &dyn Fn() -> StoreUnderTest) {
    gives_back_what_was_put(&fresh());
    any_split_of_writes_is_the_same_object(fresh().store.as_ref());
    uncommitted_objects_leave_nothing(fresh().store.as_ref());
    lists_and_removes(fresh().store.as_ref());
    unknown_objects_are_not_found(fresh().store.as_ref());
    shares_are_updated_in_one_step(&fresh());
    many_writers_of_one_object(&fresh());
    if fresh().store.capabilities().borrowed {
        files_are_borrowed(&fresh());
        unchanged_files_are_not_hashed_again(&fresh());
        changed_files_are_noticed(&fresh());
        only_regular_files_are_taken(fresh().store.as_ref());
    }
}

fn put(store: &dyn Store, data: &[u8]) -> Arc<dyn StoredObject> {
    let mut writer = store.put().unwrap();
    writer.write(data).unwrap();
    writer.commit().unwrap()
}

/// D7, Y3: bytes, size, extents and pairs of an object are those that were put, also from another process.
fn gives_back_what_was_put(under_test: &StoreUnderTest) {
    for (seed, size) in sample::sizes().into_iter().enumerate() {
        let data = sample::bytes(size, seed as u64);
        let written = put(under_test.store.as_ref(), &data);
        check_object(written.as_ref(), &data);
        let other = if under_test.store.capabilities().persistent {
            (under_test.reopen)()
        } else {
            under_test.store.clone()
        };
        check_object(other.open(&Oid::of(&data)).unwrap().as_ref(), &data);
    }
}

/// Everything a stored object promises, against the bytes it should have. Several threads read it at once.
pub fn check_object(object: &dyn StoredObject, data: &[u8]) {
    let size = data.len() as u64;
    assert_eq!((object.oid(), object.size_bytes()), (Oid::of(data), size));
    sample::prove_all(object.oid(), data, object.pairs()).unwrap();
    std::thread::scope(|scope| {
        for step in [GROUP_BYTES as usize, UNIT_BYTES as usize, 77_777] {
            scope.spawn(move || {
                let mut buffer = vec![0xaa; step];
                for start in (0..data.len()).step_by(step) {
                    let piece = &mut buffer[..step.min(data.len() - start)];
                    object.read_at(start as u64, piece).unwrap();
                    assert!(piece == &data[start..start + piece.len()], "bytes at {start}");
                }
            });
        }
    });
    assert!(object.read_at(size, &mut [0]).is_err(), "a read beyond the end");
    assert!(object.read_at(u64::MAX, &mut [0]).is_err(), "a read beyond everything");
    let mut at = 0;
    while at < size {
        let end = size.min(at + UNIT_BYTES);
        let extent = object.extent_at(at, end).unwrap();
        assert_eq!(extent.range.start, at, "extents tile the object");
        assert!(extent.range.end > at && extent.range.end <= end);
        if extent.is_hole {
            let hole = &data[extent.range.start as usize..extent.range.end as usize];
            assert!(hole.iter().all(|byte| *byte == 0), "a hole reads as zeros");
        }
        at = extent.range.end;
    }
    if let Some(file) = object.raw_file() {
        let mut raw = vec![0; data.len()];
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        file.read_exact_at(&mut raw, 0).unwrap();
        assert!(raw == data, "the raw file is the object");
    }
}

/// D8: however the bytes are cut into writes, it is the same object.
fn any_split_of_writes_is_the_same_object(store: &dyn Store) {
    let data = sample::bytes(2 * UNIT_BYTES as usize + 99, 5);
    let cuts = prop::collection::vec(0..=data.len(), 0..12);
    TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })
        .run(&cuts, |mut cuts| {
            cuts.sort_unstable();
            cuts.push(data.len());
            let mut writer = store.put().unwrap();
            let mut start = 0;
            for cut in cuts {
                writer.write(&data[start..cut]).unwrap();
                start = cut;
            }
            prop_assert_eq!(writer.commit().unwrap().oid(), Oid::of(&data));
            Ok(())
        })
        .unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

/// D6: a writer dropped without commit was never there.
fn uncommitted_objects_leave_nothing(store: &dyn Store) {
    let mut writer = store.put().unwrap();
    writer.write(&sample::bytes(300_000, 1)).unwrap();
    drop(writer);
    assert_eq!(store.list().unwrap(), []);
}

/// D7: a list has every object once; a removed one is gone, and removing it again says so.
fn lists_and_removes(store: &dyn Store) {
    let objects: Vec<Vec<u8>> = (0..5).map(|seed| sample::bytes(1000 + seed * 70_000, seed as u64)).collect();
    for data in objects.iter().chain(&objects) {
        put(store, data);
    }
    let mut listed: Vec<(Oid, u64)> =
        store.list().unwrap().iter().map(|summary| (summary.oid, summary.size_bytes)).collect();
    let mut wanted: Vec<(Oid, u64)> = objects.iter().map(|data| (Oid::of(data), data.len() as u64)).collect();
    listed.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
    let (victim, kept) = (Oid::of(&objects[2]), Oid::of(&objects[3]));
    let open = store.open(&victim).unwrap();
    assert!(store.remove(&victim).unwrap());
    assert!(!store.remove(&victim).unwrap());
    assert_eq!(store.open(&victim).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.open(&kept).is_ok());
    assert_eq!(store.list().unwrap().len(), 4);
    check_object(open.as_ref(), &objects[2]);
    check_object(put(store, &objects[2]).as_ref(), &objects[2]);
}

/// An object nobody put is `NotFound`, whatever is asked of it.
fn unknown_objects_are_not_found(store: &dyn Store) {
    let oid = Oid::of(b"nobody put this");
    assert_eq!(store.open(&oid).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.share(&oid).unwrap_err().kind(), ErrorKind::NotFound);
    let update = store.update_share(&oid, &mut |_| panic!("asked about nothing"));
    assert_eq!(update.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!store.remove(&oid).unwrap());
}

/// Design 12: of eight threads on stores of their own, no update is lost; a refused update changes nothing.
fn shares_are_updated_in_one_step(under_test: &StoreUnderTest) {
    const UPDATES: u16 = 25;
    let oid = put(under_test.store.as_ref(), b"shared").oid();
    assert_eq!(under_test.store.share(&oid).unwrap(), None);
    let stores: Vec<Arc<dyn Store>> = (0..8).map(|_| (under_test.reopen)()).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(move || {
                for _ in 0..UPDATES {
                    let counted = store.update_share(&oid, &mut |share| {
                        let mut share = share.unwrap_or_default();
                        share.port = Some(share.port.unwrap_or(0) + 1);
                        Ok(Some(share))
                    });
                    counted.unwrap();
                }
            });
        }
    });
    let share = Share { port: Some(8 * UPDATES), ..Share::default() };
    assert_eq!(under_test.store.share(&oid).unwrap(), Some(share.clone()));
    let refused =
        under_test.store.update_share(&oid, &mut |_| Err(dray_core::Error::new(ErrorKind::Refused, "no")));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(under_test.store.share(&oid).unwrap(), Some(share.clone()));
    // Putting the object again keeps who may have it.
    put(under_test.store.as_ref(), b"shared");
    assert_eq!(under_test.store.share(&oid).unwrap(), Some(share));
    assert_eq!(under_test.store.update_share(&oid, &mut |_| Ok(None)).unwrap(), None);
    assert_eq!((under_test.reopen)().share(&oid).unwrap(), None);
}

/// Issue: eight puts of one user at once; each gets the object, and there is one of it.
fn many_writers_of_one_object(under_test: &StoreUnderTest) {
    let data = sample::bytes(UNIT_BYTES as usize + 17, 3);
    let stores: Vec<Arc<dyn Store>> = (0..8).map(|_| (under_test.reopen)()).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| check_object(put(store.as_ref(), &data).as_ref(), &data));
        }
    });
    assert_eq!(under_test.store.list().unwrap().len(), 1);
}

/// D14, Y23, design 11: a file is taken in place, holes and all, by several at once, and is never touched, not even
/// by removing the object.
fn files_are_borrowed(under_test: &StoreUnderTest) {
    let dir = tempfile::tempdir().unwrap();
    for (seed, size) in sample::sizes().into_iter().enumerate() {
        let path = dir.path().join(format!("file {seed}\n"));
        let mut data = vec![0; size + 3 * UNIT_BYTES as usize];
        data[..size].copy_from_slice(&sample::bytes(size, seed as u64));
        let file = std::fs::File::create(&path).unwrap();
        file.write_all_at(&data[..size], 0).unwrap();
        file.set_len(data.len() as u64).unwrap();
        let before = std::fs::metadata(&path).unwrap();
        let stores: Vec<Arc<dyn Store>> = (0..3).map(|_| (under_test.reopen)()).collect();
        std::thread::scope(|scope| {
            for store in &stores {
                scope.spawn(|| {
                    let object = store.put_file(&path, &|_| {}).unwrap();
                    check_object(object.as_ref(), &data);
                    assert!(object.is_borrowed());
                    let tail = object.extent_at(data.len() as u64 - 1, data.len() as u64).unwrap();
                    assert!(tail.is_hole, "a hole stays a hole");
                });
            }
        });
        let oid = Oid::of(&data);
        let again = (under_test.reopen)();
        check_object(again.open(&oid).unwrap().as_ref(), &data);
        let summary = again.list().unwrap().into_iter().find(|summary| summary.oid == oid).unwrap();
        assert_eq!(summary.borrowed_path, Some(std::fs::canonicalize(&path).unwrap()));
        assert!(again.remove(&oid).unwrap());
        let after = std::fs::metadata(&path).unwrap();
        let times =
            |of: &std::fs::Metadata| (of.ino(), of.nlink(), of.len(), of.mtime_nsec(), of.ctime_nsec());
        assert_eq!(times(&before), times(&after));
    }
}

/// Counts calls of `progress` and the bytes it heard of last.
fn put_counted(store: &dyn Store, path: &Path) -> (Arc<dyn StoredObject>, u64) {
    let heard = AtomicU64::new(0);
    let object = store.put_file(path, &|bytes| {
        heard.fetch_max(bytes, Ordering::Relaxed);
    });
    (object.unwrap(), heard.into_inner())
}

/// D14, design 11: a settled, unchanged file is hashed once, whoever puts it and under whatever name; a touched one
/// is hashed again. (That no byte is read either is for the plugin's own test, which has the process to itself.)
fn unchanged_files_are_not_hashed_again(under_test: &StoreUnderTest) {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("file"), dir.path().join("link"));
    let data = sample::bytes(UNIT_BYTES as usize * 2 + 5, 9);
    std::fs::write(&path, &data).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let size = data.len() as u64;
    let (first, hashed) = put_counted(under_test.store.as_ref(), &path);
    assert_eq!((hashed, first.standing()), (size, Standing::Trusted));
    for name in [&path, &link] {
        let (again, hashed) = put_counted((under_test.reopen)().as_ref(), name);
        assert_eq!((hashed, again.standing()), (0, Standing::Trusted));
        check_object(again.as_ref(), &data);
    }
    touch(&path);
    assert_eq!(first.standing(), Standing::Doubtful);
    let (touched, hashed) = put_counted(under_test.store.as_ref(), &path);
    assert_eq!((hashed, touched.standing()), (size, Standing::Trusted));
    under_test.store.remove(&first.oid()).unwrap();
    let (removed, hashed) = put_counted(under_test.store.as_ref(), &path);
    assert_eq!((hashed, removed.oid()), (size, first.oid()));
    // The same bytes elsewhere are the same object, from now on found there.
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    put_counted(under_test.store.as_ref(), &copy);
    let (_, hashed) = put_counted(under_test.store.as_ref(), &path);
    assert_eq!(hashed, 0, "both files are remembered");
    std::fs::remove_file(&copy).unwrap();
    check_object(under_test.store.open(&first.oid()).unwrap().as_ref(), &data);
}

/// Issue, design 9 and 11: what happens to a file between put and open, and while it is open.
fn changed_files_are_noticed(under_test: &StoreUnderTest) {
    let store = under_test.store.as_ref();
    let dir = tempfile::tempdir().unwrap();
    let data = sample::bytes(UNIT_BYTES as usize + 5, 11);
    let borrow = |name: &str| -> (PathBuf, Arc<dyn StoredObject>) {
        let path = dir.path().join(name);
        std::fs::write(&path, &data).unwrap();
        let object = store.put_file(&path, &|_| {}).unwrap();
        assert_eq!(object.standing(), Standing::Trusted);
        (path, object)
    };
    let edit = |path: &Path| std::fs::OpenOptions::new().write(true).open(path).unwrap();

    let (path, open) = borrow("overwritten");
    edit(&path).write_all_at(&[data[0] ^ 1], 0).unwrap();
    touch(&path);
    assert_eq!(open.standing(), Standing::Doubtful);
    assert_eq!(store.open(&open.oid()).unwrap().standing(), Standing::Doubtful);

    let (path, open) = borrow("grown");
    edit(&path).write_all_at(b"more", data.len() as u64).unwrap();
    assert_eq!(open.standing(), Standing::Changed);
    assert_eq!(store.open(&open.oid()).unwrap_err().kind(), ErrorKind::Changed);
    assert_ne!(store.put_file(&path, &|_| {}).unwrap().oid(), open.oid());

    let (path, open) = borrow("truncated");
    edit(&path).set_len(10).unwrap();
    assert_eq!(open.standing(), Standing::Changed);
    let size = data.len() as u64;
    assert_eq!(open.read_at(size - 4, &mut [0; 4]).unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(open.extent_at(size - 4, size).unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(store.open(&open.oid()).unwrap_err().kind(), ErrorKind::Changed);

    let (path, open) = borrow("replaced");
    std::fs::write(dir.path().join("new"), vec![7; data.len()]).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    assert_ne!(open.standing(), Standing::Trusted);
    let mut still = vec![0; data.len()];
    open.read_at(0, &mut still).unwrap();
    assert!(still == data, "the open file is the old one");
    assert_eq!(store.open(&open.oid()).unwrap().standing(), Standing::Doubtful);

    let (path, open) = borrow("deleted");
    std::fs::remove_file(&path).unwrap();
    let gone = store.open(&open.oid()).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Changed);
    assert!(gone.to_string().contains("deleted") && gone.advice().is_some());
    // Whatever became of the file, the bytes themselves can be put again.
    check_object(put(store, &data).as_ref(), &data);
}

/// D14: a directory, a pipe, a device is a usage error that names it, and a pipe does not block.
fn only_regular_files_are_taken(store: &dyn Store) {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for path in [dir.path(), &pipe, Path::new("/dev/zero")] {
        let error = store.put_file(path, &|_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
    }
    let missing = store.put_file(&dir.path().join("missing"), &|_| {}).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(Geometry::new(0).units(), 1);
    assert_eq!(store.list().unwrap(), []);
}

/// Changes the status change time of a file. Some kernels stamp files only at ticks, so it is done until it shows.
fn touch(path: &Path) {
    let before = std::fs::metadata(path).unwrap();
    loop {
        let permissions = before.permissions();
        std::fs::set_permissions(path, permissions).unwrap();
        let after = std::fs::metadata(path).unwrap();
        if (after.ctime(), after.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
            return;
        }
    }
}
