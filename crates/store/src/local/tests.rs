//! What no test can do to a disk from outside: a reboot, and bytes that change under a file that looks untouched. The
//! records are rewritten to say so.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use dray_core::hash_tree::Subtree;
use dray_core::store::Standing;

use super::*;

/// Design 10: the outboard of a borrowed file is not made durable, so after a reboot it is checked before it is
/// believed, even if its length and times are right.
#[test]
fn after_a_reboot_an_outboard_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(&dir.path().join("store")).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, dray_testkit::sample::bytes(300_000, 1)).unwrap();
    let oid = store.put_file(&path, &|_| {}).unwrap().oid();
    let paths = store.place.object(&oid);
    let right = std::fs::read(&paths.outboard).unwrap();
    for was_rebooted in [false, true] {
        // What a lost write leaves: zeros, under times that the record knows.
        let outboard = File::options().write(true).open(&paths.outboard).unwrap();
        outboard.write_all_at(&vec![0; right.len()], 0).unwrap();
        let lock = store.place.lock(&oid).unwrap();
        let mut record = store.require_record(&oid, &lock).unwrap();
        record.outboard = identity(&outboard.metadata().unwrap());
        record.boot = if was_rebooted { vec![1; 16] } else { boot::current().to_vec() }.into();
        store.write_record(&record, &lock, false).unwrap();
        drop(lock);
        store.open(&oid).unwrap();
        assert_eq!(std::fs::read(&paths.outboard).unwrap() == right, was_rebooted);
    }
    let lock = store.place.lock(&oid).unwrap();
    assert!(boot::is_current(&store.require_record(&oid, &lock).unwrap().boot));
}

const SIZE: usize = 300_000;

fn settled(root: &Path) -> LocalStore {
    LocalStore::open(root).unwrap().with_clock(|| SystemTime::now() + Duration::from_secs(60))
}

/// Changes a byte of the object's file behind its back, as a failing disk does: everything that is known about the file
/// says that this is how it was when it was hashed.
fn rot(store: &LocalStore, oid: &Oid, file: &Path) {
    let handle = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    handle.read_exact_at(&mut byte, 70_000).unwrap();
    handle.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
    let lock = store.place.lock(oid).unwrap();
    let mut record = store.require_record(oid, &lock).unwrap();
    record.backing = identity(&handle.metadata().unwrap());
    store.write_record(&record, &lock, false).unwrap();
    if record.borrowed_path().is_some() {
        store.write_hint(&FileHint::new(*oid, record.backing, record.hashed_at_ns));
    }
}

fn assert_rotted(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("the disk may be failing") && error.advice().is_some(), "{error}");
}

/// S6: bytes of the user's file that rotted are called that, and the next put hashes the file as it is.
#[test]
fn a_borrowed_file_that_rotted_is_hashed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (root, path) = (dir.path().join("store"), dir.path().join("file"));
    std::fs::write(&path, dray_testkit::sample::bytes(SIZE, 2)).unwrap();
    let store = settled(&root);
    let first = store.put_file(&path, &|_| {}).unwrap().oid();
    rot(&store, &first, &path);
    let object = store.put_file(&path, &|_| {}).unwrap();
    assert_eq!((object.oid(), object.standing()), (first, Standing::Trusted), "nothing tells yet");
    assert_rotted(&object.mismatch());
    assert_eq!(object.standing(), Standing::Doubtful, "nothing leaves unchecked any more");
    assert_eq!(settled(&root).open(&first).unwrap().standing(), Standing::Doubtful);
    assert_rotted(&settled(&root).open(&first).unwrap().mismatch());
    let again = settled(&root).put_file(&path, &|_| {}).unwrap();
    assert_eq!(again.oid(), Oid::of(&std::fs::read(&path).unwrap()));
    assert_eq!(again.standing(), Standing::Trusted);
    // A disk that only misread has the right bytes again: the same put believes them again.
    std::fs::write(&path, dray_testkit::sample::bytes(SIZE, 2)).unwrap();
    let back = store.put_file(&path, &|_| {}).unwrap();
    assert_eq!((back.oid(), back.standing()), (first, Standing::Trusted));
}

/// S6: owned bytes that rotted do not stand in the way of the right ones.
#[test]
fn owned_data_that_rotted_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let data = dray_testkit::sample::bytes(SIZE, 3);
    let store = settled(dir.path());
    let put = || {
        let mut writer = store.put().unwrap();
        writer.write(&data).unwrap();
        writer.commit().unwrap()
    };
    let oid = put().oid();
    rot(&store, &oid, &store.place.object(&oid).data);
    let object = put();
    assert_eq!(object.standing(), Standing::Trusted, "nothing tells yet");
    assert_rotted(&object.mismatch());
    assert_eq!(store.open(&oid).unwrap().standing(), Standing::Doubtful);
    let again = put();
    let mut bytes = vec![0; SIZE];
    again.read_at(0, &mut bytes).unwrap();
    assert!(bytes == data && again.standing() == Standing::Trusted);
}

/// D8: bytes whose last step into the store fails are whole still, can be kept when the reason is gone, and leave nothing if they are given up.
#[test]
fn what_could_not_be_kept_can_be_kept_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = settled(dir.path());
    for is_given_up in [false, true] {
        let data = dray_testkit::sample::bytes(SIZE, 7 + u64::from(is_given_up));
        let mut writer = store.take_in().unwrap();
        writer.write(&data).unwrap();
        let mut incoming = writer.finish().unwrap();
        let paths = store.place.object(&incoming.oid());
        // The data can take their name, the outboard cannot.
        std::fs::create_dir_all(paths.outboard.join("in the way")).unwrap();
        for _ in 0..2 {
            incoming.keep().unwrap_err();
            assert!(incoming.is_whole() && !paths.data.exists());
        }
        std::fs::remove_dir_all(&paths.outboard).unwrap();
        if !is_given_up {
            let object = incoming.keep().unwrap();
            let mut bytes = vec![0; SIZE];
            object.read_at(0, &mut bytes).unwrap();
            assert!(bytes == data && object.standing() == Standing::Trusted && !incoming.is_whole());
        }
        drop(incoming);
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
        assert_eq!(paths.data.exists(), !is_given_up);
    }
}

/// S6: bytes that another program cut before they had their name are no object, and that is told; nothing is recorded of them.
#[test]
fn what_was_cut_while_it_was_written_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = settled(dir.path());
    let mut writer = store.take_in().unwrap();
    writer.write(&dray_testkit::sample::bytes(SIZE, 11)).unwrap();
    let mut incoming = writer.finish().unwrap();
    let paths = store.place.object(&incoming.oid());
    let temporary = std::fs::read_dir(dir.path().join("tmp")).unwrap().map(|entry| entry.unwrap().path());
    let is_data = |path: &PathBuf| std::fs::metadata(path).unwrap().len() == SIZE as u64;
    let data: Vec<PathBuf> = temporary.filter(is_data).collect();
    assert_eq!(data.len(), 1, "{data:?}");
    File::options().write(true).open(&data[0]).unwrap().set_len(SIZE as u64 - 1).unwrap();
    let error = incoming.keep().unwrap_err();
    assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("was cut"), "{error}");
    drop(incoming);
    assert!(!paths.record.exists() && !paths.data.exists());
}

/// S6: an outboard that is damaged while its object is open is told from damaged data, and built again.
#[test]
fn an_outboard_damaged_in_use_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let (root, path) = (dir.path().join("store"), dir.path().join("file"));
    std::fs::write(&path, dray_testkit::sample::bytes(SIZE, 4)).unwrap();
    let store = settled(&root);
    let object = store.put_file(&path, &|_| {}).unwrap();
    let outboard = store.place.object(&object.oid()).outboard;
    let right = std::fs::read(&outboard).unwrap();
    let whole = Subtree { start: 0, groups: Geometry::new(SIZE as u64).groups() };
    let pairs_now = || {
        let mut pairs = vec![0; right.len()];
        object.pairs().read_pairs(0, &mut pairs).map(|()| pairs)
    };
    assert!(!object.recheck(whole).unwrap());
    let file = |path: &Path| File::options().write(true).open(path).unwrap();
    file(&outboard).write_all_at(&[right[70] ^ 1], 70).unwrap();
    assert!(object.recheck(whole).unwrap(), "mended");
    assert!(!object.recheck(whole).unwrap(), "once");
    assert!(pairs_now().unwrap() == right && std::fs::read(&outboard).unwrap() == right);
    // Cut short it is noticed when it is read, at the latest.
    file(&outboard).set_len(64).unwrap();
    assert!(pairs_now().unwrap() == right && std::fs::read(&outboard).unwrap() == right);
    assert_eq!(object.standing(), Standing::Trusted, "the data were never in doubt");
    // Both wrong: then it is the data that count.
    rot(&store, &object.oid(), &path);
    let both = store.put_file(&path, &|_| {}).unwrap();
    file(&outboard).write_all_at(&[right[70] ^ 1], 70).unwrap();
    assert_rotted(&both.recheck(whole).unwrap_err());
}
