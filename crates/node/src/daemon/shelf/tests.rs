//! The shelf without sockets: what is promised to whom, and what an end ends.

use dray_core::rights::Secret;

use super::*;

const HOLDER: [u8; 32] = [1; 32];

struct Bed {
    dir: tempfile::TempDir,
    store: Arc<LocalStore>,
    shelf: Shelf,
    oid: Oid,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 300_000]).unwrap();
        let store = Arc::new(LocalStore::open(&dir.path().join("store")).unwrap());
        let oid = store.put_file(&path, &|_| {}).unwrap().oid();
        let shelf = Bed::shelf(&store);
        Bed { dir, store, shelf, oid }
    }

    fn shelf(store: &Arc<LocalStore>) -> Shelf {
        let hub = Arc::new(Hub::new(Arc::new(|_| {})));
        Shelf::load(store.clone(), NodeId::from_bytes(HOLDER), hub, Arc::default()).unwrap()
    }

    fn keep(&self, share: Share, pin: bool, session: &str) -> Result<Share> {
        let record = |_: Option<&Share>, check: &dyn Fn(&Share) -> Result<()>| {
            check(&share)?;
            Ok(share.clone())
        };
        self.shelf.keep(&self.oid, record, pin, session)
    }

    fn open(&self) -> Result<Arc<dyn Held>> {
        let open = Open { handle: 1, object: ObjectName::Oid(self.oid), proof: None };
        let security = Security { peer: NodeId::from_bytes([2; 32]), exporter: [3; 32] };
        self.shelf.open(&open, Some(&security))
    }
}

fn refusal<T>(result: Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

/// D10: the end of a share is the end for everybody who has the object open, also where the daemon itself has closed it since to
/// have fewer files open.
#[test]
fn an_end_reaches_everybody() {
    let bed = Bed::new();
    bed.keep(Share::default(), true, "a").unwrap();
    let held = bed.open().unwrap();
    held.read_at(0, &mut [0; 16]).unwrap();
    lock(&bed.shelf.entries).get_mut(&bed.oid).unwrap().open = None;
    bed.shelf.done(&bed.oid).unwrap();
    assert_eq!(held.read_at(0, &mut [0; 16]).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(refusal(bed.open()), ErrorKind::Refused);
}

/// D10: an end that the disk does not take is one all the same, can be repeated, and is then one for the next daemon, too.
#[test]
fn an_end_that_cannot_be_written_can_be_repeated() {
    let bed = Bed::new();
    bed.keep(Share::default(), true, "a").unwrap();
    let temporary = bed.dir.path().join("store/tmp");
    std::fs::rename(&temporary, temporary.with_extension("away")).unwrap();
    let error = bed.shelf.done(&bed.oid).unwrap_err();
    assert!(error.advice().is_some(), "{error}");
    assert_eq!(refusal(bed.open()), ErrorKind::Refused);
    bed.shelf.make_room(0);
    std::fs::rename(temporary.with_extension("away"), &temporary).unwrap();
    bed.shelf.done(&bed.oid).unwrap();
    assert_eq!(bed.shelf.done(&bed.oid).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Bed::shelf(&bed.store).counts().0, 0);
}

/// D13: what one program was promised another one cannot end by putting the same object otherwise; in the same way it may be
/// put any number of times, and otherwise once nobody counts on it.
#[test]
fn a_promise_is_kept_to_everybody() {
    let bed = Bed::new();
    let secret = Share { secret: Some(Secret::from_bytes([4; 16])), ..Share::default() };
    let short = Share { expires_unix_s: Some(unix_s() + 1000), ..secret.clone() };
    bed.keep(Share::default(), false, "a").unwrap();
    let held = bed.open().unwrap();
    for other in [&secret, &short] {
        assert_eq!(bed.keep(other.clone(), false, "b").unwrap_err().kind(), ErrorKind::Refused);
    }
    bed.keep(Share::default(), true, "b").unwrap();
    bed.shelf.leave("a");
    bed.shelf.leave("b");
    assert_eq!(bed.keep(secret.clone(), false, "c").unwrap_err().kind(), ErrorKind::Refused, "it is pinned");
    held.read_at(0, &mut [0; 16]).unwrap();
    bed.shelf.done(&bed.oid).unwrap();
    bed.keep(secret.clone(), false, "c").unwrap();
    bed.shelf.leave("c");
    bed.keep(short, false, "d").unwrap();
}

/// D13: what is held is not dropped, and what is not is: the record of a user's file only.
#[test]
fn room_is_made_of_what_nobody_holds() {
    let bed = Bed::new();
    bed.keep(Share::default(), false, "a").unwrap();
    let mut writer = bed.store.put().unwrap();
    writer.write(b"ours").unwrap();
    let ours = writer.commit().unwrap().oid();
    bed.shelf.keep(&ours, |_, _| Ok(Share::default()), false, "a").unwrap();
    bed.shelf.make_room(0);
    assert_eq!(bed.shelf.counts().0, 2, "in a session");
    bed.shelf.leave("a");
    {
        let _put = bed.shelf.nothing_is_dropped();
        bed.shelf.make_room(0);
        assert_eq!(bed.shelf.counts().0, 2, "something is being put");
    }
    bed.shelf.make_room(0);
    assert_eq!(bed.shelf.counts().0, 1);
    assert_eq!(bed.store.open(&ours).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(bed.dir.path().join("file").exists() && bed.store.open(&bed.oid).is_ok());
}
