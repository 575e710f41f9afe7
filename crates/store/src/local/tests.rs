//! What a reboot means for objects: the record is rewritten to say that another boot wrote it.

use std::os::unix::fs::FileExt;

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
