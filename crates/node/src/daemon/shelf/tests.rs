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
        self.shelf.keep(&self.change(&self.oid), record, pin, session)
    }

    fn change(&self, oid: &Oid) -> Changing<'_> {
        self.shelf.change(oid, &|| true).unwrap()
    }

    /// Bytes that a program puts, publicly, in `session`.
    fn take_in(&self, bytes: &[u8], session: &str) -> Oid {
        let mut writer = self.store.take_in().unwrap();
        writer.write(bytes).unwrap();
        let oid = writer.finish().unwrap().keep().unwrap().oid();
        self.shelf.keep(&self.change(&oid), |_, _| Ok(Share::default()), false, session).unwrap();
        oid
    }

    fn done(&self) -> Result<()> {
        self.shelf.done(&self.oid, &|| false)
    }

    fn open(&self) -> Result<Arc<dyn Held>> {
        self.open_other(&self.oid)
    }

    fn open_other(&self, oid: &Oid) -> Result<Arc<dyn Held>> {
        let open = Open { handle: 1, object: ObjectName::Oid(*oid), proof: None };
        let security = Security { peer: NodeId::from_bytes([2; 32]), exporter: [3; 32] };
        self.shelf.counter().open(&open, Some(&security))
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
    bed.done().unwrap();
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
    let error = bed.done().unwrap_err();
    assert!(error.advice().is_some(), "{error}");
    assert_eq!(refusal(bed.open()), ErrorKind::Refused);
    bed.shelf.make_room(0);
    std::fs::rename(temporary.with_extension("away"), &temporary).unwrap();
    bed.done().unwrap();
    assert_eq!(bed.done().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Bed::shelf(&bed.store).counts().0, 0);
}

/// D10: an end by name also ends the share of an object that is not to be found for a moment, as the housekeeping tries to drop it and cannot.
#[test]
fn an_end_is_not_missed_by_what_is_being_dropped() {
    let bed = Bed::new();
    bed.keep(Share::default(), false, "a").unwrap();
    let turn = bed.change(&bed.oid);
    let entry = lock(&bed.shelf.entries).remove(&bed.oid).unwrap();
    let is_asked = AtomicBool::new(false);
    let is_stopped = || {
        is_asked.store(true, Ordering::Release);
        false
    };
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| bed.shelf.done(&bed.oid, &is_stopped));
        // As it waits for its turn.
        while !is_asked.load(Ordering::Acquire) && !ending.is_finished() {
            std::thread::yield_now();
        }
        lock(&bed.shelf.entries).insert(bed.oid, entry);
        drop(turn);
        ending.join().unwrap().unwrap();
    });
    assert_eq!((bed.shelf.counts().0, refusal(bed.open())), (0, ErrorKind::Refused));
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
    bed.done().unwrap();
    bed.keep(secret.clone(), false, "c").unwrap();
    bed.shelf.leave("c");
    bed.keep(short, false, "d").unwrap();
}

/// D13: what is held is not dropped, nor what is being put or sent, and what is not is: of a user's file nothing but the share.
#[test]
fn room_is_made_of_what_nobody_holds() {
    let bed = Bed::new();
    bed.keep(Share::default(), false, "a").unwrap();
    let ours = bed.take_in(b"ours", "a");
    assert_eq!((bed.shelf.make_room(0), bed.shelf.counts().0), (0, 2), "in a session");
    bed.shelf.leave("a");
    {
        let _put = bed.change(&ours);
        assert_eq!(bed.shelf.make_room(0), 4, "it is being put");
    }
    let sent = bed.open_other(&ours).unwrap();
    bed.shelf.tick(0);
    assert_eq!(bed.shelf.make_room(0), 4, "it is being sent");
    sent.read_at(0, &mut [0; 4]).unwrap();
    drop(sent);
    lock(&bed.shelf.entries)[&ours].notices.finish();
    assert_eq!(bed.shelf.make_room(0), 0);
    assert_eq!(bed.store.open(&ours).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(refusal(bed.open_other(&ours)), ErrorKind::Refused);
    assert!(bed.dir.path().join("file").exists() && bed.store.open(&bed.oid).is_ok());
}

/// D13: what was not used for longest goes first. Being fetched is a use, also of an object that is open already.
#[test]
fn the_least_recently_used_goes_first() {
    let bed = Bed::new();
    let oids = [b"a000", b"b000", b"c000"].map(|bytes| bed.take_in(bytes, "a"));
    bed.shelf.leave("a");
    let [a, b, c] = oids;
    for used in [&a, &b, &c, &a] {
        drop(bed.open_other(used).unwrap());
    }
    oids.iter().for_each(|oid| lock(&bed.shelf.entries)[oid].notices.finish());
    assert_eq!(bed.shelf.make_room(8), 8);
    let here = |shelf: &Shelf| oids.map(|oid| lock(&shelf.entries).contains_key(&oid));
    assert_eq!(here(&bed.shelf), [true, false, true]);
    // That it is used is written down now and then, for the next daemon, and not each time.
    let long_ago = Retention { used_unix_s: 1000, share: Some(Share::default()), pinned_unix_s: None };
    bed.store.retain(&a, Some(long_ago.clone())).unwrap();
    bed.store.retain(&c, Some(Retention { used_unix_s: 2000, ..long_ago })).unwrap();
    let next = Bed::shelf(&bed.store);
    let open = Open { handle: 1, object: ObjectName::Oid(a), proof: None };
    let security = Security { peer: NodeId::from_bytes([2; 32]), exporter: [3; 32] };
    drop(next.counter().open(&open, Some(&security)).unwrap());
    next.tick(u64::MAX);
    let third = Bed::shelf(&bed.store);
    third.make_room(4);
    assert_eq!(here(&third), [true, false, false]);
}

/// Design 11: bytes that a command put are its user's. The daemon forgets what it promised, and unlinks nothing.
#[test]
fn what_a_command_put_is_not_dropped() {
    let bed = Bed::new();
    let put = |bytes: &[u8]| {
        let mut writer = bed.store.put().unwrap();
        writer.write(bytes).unwrap();
        writer.commit().unwrap().oid()
    };
    let before = put(b"before");
    assert_eq!(bed.take_in(b"before", "a"), before);
    // The daemon does not hear of this.
    let after = bed.take_in(b"after", "a");
    assert_eq!(put(b"after"), after);
    bed.shelf.leave("a");
    assert_eq!(bed.shelf.make_room(0), 0);
    bed.shelf.tick(0);
    assert_eq!(bed.shelf.counts().0, 0);
    for oid in [before, after] {
        bed.store.open(&oid).unwrap().read_at(0, &mut [0; 4]).unwrap();
    }
}

/// D10: a share of the user's file ends with the last session that wanted it, but not under a receiver; what commands share it
/// under is theirs.
#[test]
fn a_share_of_a_file_ends_with_its_sessions() {
    let bed = Bed::new();
    let of_commands = Some(Share { port: Some(7), ..Share::default() });
    bed.store.update_share(&bed.oid, &mut |_| Ok(of_commands.clone())).unwrap();
    bed.keep(Share::default(), false, "a").unwrap();
    bed.keep(Share::default(), false, "b").unwrap();
    bed.shelf.leave("a");
    bed.shelf.tick(0);
    let held = bed.open().unwrap();
    bed.shelf.leave("b");
    bed.shelf.tick(0);
    held.read_at(0, &mut [0; 16]).unwrap();
    drop(held);
    lock(&bed.shelf.entries)[&bed.oid].notices.finish();
    bed.shelf.tick(0);
    assert_eq!(refusal(bed.open()), ErrorKind::Refused);
    assert!(bed.store.retained().unwrap().0.is_empty());
    assert_eq!(bed.store.share(&bed.oid).unwrap(), of_commands);
    // A daemon that was killed had no time for that.
    bed.keep(Share::default(), false, "c").unwrap();
    let next = Bed::shelf(&bed.store);
    next.tick(0);
    assert_eq!(next.counts().0, 0);
}

/// Design 11: a file that nobody reads is not open: its space comes back when it is removed.
#[test]
fn what_nobody_reads_is_closed() {
    let bed = Bed::new();
    bed.keep(Share::default(), true, "a").unwrap();
    let is_open = || lock(&bed.shelf.entries)[&bed.oid].open.is_some();
    let held = bed.open().unwrap();
    bed.shelf.tick(0);
    assert!(is_open());
    drop(held);
    lock(&bed.shelf.entries)[&bed.oid].notices.finish();
    bed.shelf.tick(0);
    assert!(!is_open());
    bed.open().unwrap().read_at(0, &mut [0; 16]).unwrap();
}

/// Design 9: whoever holds the lock of some objects and does not go on holds up what is changed about them, and nothing else.
#[test]
fn a_lock_that_is_held_holds_up_nothing_else() {
    let bed = Bed::new();
    bed.keep(Share::default(), true, "a").unwrap();
    let held = bed.open().unwrap();
    let oid = bed.take_in(b"other bytes", "a");
    assert_ne!(oid.hex()[..2], bed.oid.hex()[..2], "another lock");
    bed.shelf.leave("a");
    let fan_out = bed.dir.path().join("store/objects").join(&bed.oid.hex()[..2]);
    let file = std::fs::File::open(fan_out.join("lock")).unwrap();
    file.lock().unwrap();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| bed.done());
        // Refused at once, although the disk has not heard of it.
        while held.read_at(0, &mut [0; 16]).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(refusal(bed.open()), ErrorKind::Refused);
        drop(bed.open_other(&oid).unwrap());
        lock(&bed.shelf.entries)[&oid].notices.finish();
        bed.shelf.tick(0);
        assert_eq!((bed.shelf.counts(), bed.shelf.lines(None).len()), ((0, 0), 0));
        assert!(!ending.is_finished());
        file.unlock().unwrap();
        ending.join().unwrap().unwrap();
    });
    assert_eq!(bed.done().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Design 9: a receiver that comes while the object is being opened waits for that, and not without end.
#[test]
fn an_object_is_opened_once() {
    let bed = Bed::new();
    bed.keep(Share::default(), true, "a").unwrap();
    let opening = lock(&bed.shelf.entries)[&bed.oid].opening.clone();
    let opener = opening.begin(Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let opens: Vec<_> = (0..4).map(|_| scope.spawn(|| bed.open().unwrap())).collect();
        let visits = || Arc::strong_count(&lock(&bed.shelf.entries)[&bed.oid].visits);
        while visits() < 5 {
            std::thread::yield_now();
        }
        bed.shelf.tick(0);
        assert!(opens.iter().all(|open| !open.is_finished()));
        drop(opener);
        for open in opens {
            open.join().unwrap().read_at(0, &mut [0; 16]).unwrap();
        }
    });
    let _opener = opening.begin(Duration::ZERO).unwrap();
    let error = opening.begin(Duration::ZERO).err().unwrap();
    assert!(error.kind() == ErrorKind::TimedOut && error.is_retryable(), "{error}");
}

/// D10, D13: the pin of a share that has expired ends with it. Who puts the object again without one has none; a pin that is in force stays.
#[test]
fn a_pin_ends_with_its_share() {
    let bed = Bed::new();
    let is_pinned = || bed.shelf.lines(None)[0].pinned;
    let over = Share { expires_unix_s: Some(unix_s() - 1), ..Share::default() };
    bed.keep(over, true, "a").unwrap();
    bed.keep(Share::default(), false, "b").unwrap();
    assert!(!is_pinned());
    bed.keep(Share::default(), true, "b").unwrap();
    bed.keep(Share::default(), false, "c").unwrap();
    assert!(is_pinned());
}

/// D2, D13: what was taken in by a put of which nothing came goes when nobody puts it, and only then; what somebody keeps stays.
#[test]
fn what_nobody_keeps_goes() {
    let bed = Bed::new();
    let mut writer = bed.store.take_in().unwrap();
    writer.write(b"bytes of nobody").unwrap();
    let stray = writer.finish().unwrap().keep().unwrap().oid();
    let kept = bed.take_in(b"bytes of a session", "a");
    {
        let _turn = bed.change(&stray);
        for oid in [stray, kept, bed.oid] {
            bed.shelf.look_after(oid);
        }
        bed.shelf.tick(u64::MAX);
        assert!(bed.shelf.has(&stray), "somebody is putting it");
    }
    assert_eq!(bed.shelf.tick(u64::MAX), Duration::from_secs(60), "nothing is left to be done");
    assert!(!bed.shelf.has(&stray) && bed.shelf.has(&kept) && bed.shelf.has(&bed.oid));
}
