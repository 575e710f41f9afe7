//! The disk is searched while a transfer goes on (Y4-Y21).

use dray_core::source::SourceEvents;

use super::*;
use crate::search::tests::{scope, target};
use crate::search::{Pace, SearchPolicy};

/// A network that is always waited for, and never too fast to be spared.
const PATIENT: Pace = Pace {
    held_back_below_bytes_per_s: u64::MAX,
    spared_bytes_per_s: 1 << 50,
    idle: Duration::from_secs(60),
};

/// What is fetched before the recipe has come.
const AHEAD_BYTES: u64 = 4 * GROUP_BYTES;

/// A search below `dir` for what will be `copy` in it.
fn searching(dir: &Path, pace: Pace) -> DiskSearch {
    let search = DiskSearch::begin(scope(dir, dir), target("copy", SIZE), SearchPolicy::Cost).unwrap();
    assert!(search.is_hopeful_soon(), "there is no hope");
    search.with_pace(pace)
}

fn alone(search: DiskSearch) -> OlderVersion {
    OlderVersion::searching(None, Some(search)).unwrap()
}

/// Y26: what a file of another name has costs no network, as if it lay at the destination.
#[test]
fn a_sibling_is_as_good_as_an_older_version() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &old).unwrap();
    let older = alone(searching(dir.path(), PATIENT));
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES + AHEAD_BYTES, "{shares:?}");
}

/// Y26, "Useless": a file of the same name and size that has nothing of the object costs no byte of data, and the holder reads each once.
#[test]
fn a_search_in_vain_costs_no_byte() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), bytes(SIZE, 91)).unwrap();
    let older = alone(searching(dir.path(), PATIENT));
    let holders = [lying_holder(1, &object, &old, Lie::None)];
    let (result, shares) = update_with(dir.path(), &older, &object, &holders);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    let read: u64 = holders[0].1.read_groups().iter().map(|groups| groups.end - groups.start).sum();
    assert_eq!(read, (SIZE as u64).div_ceil(GROUP_BYTES));
}

/// Where the older version at the destination has all but a little, no other file is read for the rest of it.
#[test]
fn an_older_version_is_enough() {
    let (object, old) = versions();
    let mut nearly = object.clone();
    nearly[SIZE / 2..][..1000].copy_from_slice(&bytes(1000, 92));
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &object).unwrap();
    let (_kept, at_destination) = older(&nearly);
    let identity = at_destination.identity();
    let search = DiskSearch::begin(
        scope(dir.path(), dir.path()),
        crate::search::Target { older: identity, ..target("copy", SIZE) },
        SearchPolicy::Cost,
    );
    let older =
        OlderVersion::searching(Some(at_destination), Some(search.unwrap().with_pace(PATIENT))).unwrap();
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= 4 * GROUP_BYTES, "{shares:?}");
    assert_eq!(older.disk.as_ref().unwrap().read_bytes(), 0);
}

/// P7 "never slower": on a network that is as fast as the disk, nothing is read, and nothing waits for the recipe. The recipe never comes,
/// so that only the speed can end the wait before its time.
#[test]
fn a_fast_path_is_left_alone() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &old).unwrap();
    let pace = Pace { held_back_below_bytes_per_s: 0, spared_bytes_per_s: 1, ..PATIENT };
    let older = alone(searching(dir.path(), pace));
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::MuteOnRecipe]);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    let disk = older.disk.as_ref().unwrap();
    assert_eq!((disk.read_bytes(), disk.is_promising()), (0, false));
}

/// Y3 "slower, never wrong": a file that is written to while it is copied from costs the bytes that it no longer has; the holder, who
/// told the truth, is not blamed.
#[test]
fn a_file_that_changes_after_it_was_found_is_not_believed() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let path = dir.path().join("sub/copy");
    std::fs::write(&path, &old).unwrap();
    let search = searching(dir.path(), PATIENT);
    // All of it is known before the transfer begins, and the file says that it was not changed.
    let keys: Vec<ChunkKey> =
        cut(&old, SIZE as u64).into_iter().map(|chunk| chunk_key(&ChunkDescriptor::of(chunk))).collect();
    let begun = Instant::now();
    while search.find(&keys, SIZE as u64).len() < keys.len() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is not found");
        search.await_news(Duration::from_millis(10));
    }
    search.lie_about_changes();
    std::fs::write(&path, bytes(SIZE, 93)).unwrap();
    let older = alone(search);
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] > SIZE as u64 / 2 && shares[0] <= SIZE as u64 + CHANGED_BYTES, "{shares:?}");
    assert!(!older.is_unchanged(), "the holder would be blamed");
}

/// S91, design 16: the holder is asked for the very same groups whether a file outside of the scope is what it guesses or not.
#[test]
fn a_sender_learns_nothing_of_files_outside_of_the_scope() {
    let (object, old) = versions();
    let asked = |guess: Option<&[u8]>| {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("in");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(inside.join("sub/copy"), &old).unwrap();
        if let Some(guess) = guess {
            std::fs::write(dir.path().join("copy"), guess).unwrap();
            std::os::unix::fs::symlink(dir.path().join("copy"), inside.join("copy.1")).unwrap();
        }
        let older = alone(searching(&inside, PATIENT));
        let holders = [lying_holder(1, &object, &old, Lie::None)];
        let (result, shares) = update_with(&inside, &older, &object, &holders);
        assert_eq!(result.unwrap(), Oid::of(&object));
        (shares, holders[0].1.read_groups())
    };
    let without = asked(None);
    assert!(without.0[0] <= CHANGED_BYTES + AHEAD_BYTES, "{without:?}");
    assert_eq!(asked(Some(&object)), without);
}

/// Tells the recipe of an object, and never sends a byte of it.
#[derive(Debug)]
struct Withholding {
    recipe: Arc<Recipe>,
    events: crossing::Events,
    asked: Mutex<HashMap<dray_core::source::RequestId, dray_core::permit::Permit>>,
    cancelled: Mutex<u64>,
}

/// Events of a source that are told from a thread of their own: a call never leads to one from within.
mod crossing {
    use super::*;

    pub(super) struct Events(pub(super) Arc<dyn SourceEvents>);

    impl std::fmt::Debug for Events {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Events")
        }
    }

    impl Events {
        pub(super) fn tell(&self, tell: impl FnOnce(&dyn SourceEvents) + Send + 'static) {
            let events = self.0.clone();
            thread::spawn(move || tell(&*events));
        }
    }
}

impl Source for Withholding {
    fn describe(&self) -> SourceDescription {
        let capabilities = SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true };
        SourceDescription { label: "withholding".into(), priority: 0, weight: 1, capabilities }
    }

    fn object(&self) -> ObjectName {
        ObjectName::Oid(Oid::of(b""))
    }

    fn call(&self, call: SourceCall) {
        use dray_core::source::SourceEvent;
        let id = SourceId(0);
        match call {
            SourceCall::Describe => {
                let root = self.recipe.root();
                self.events.tell(move |events| {
                    events.event(id, SourceEvent::Described { root: Some(root) });
                });
            }
            SourceCall::Nodes { ids } => {
                let recipe = self.recipe.clone();
                self.events.tell(move |events| {
                    for node in ids {
                        let bytes = recipe.node(&node).unwrap();
                        events.event(id, SourceEvent::Node { id: node, bytes });
                    }
                });
            }
            SourceCall::Fetch { request, permit, .. } => {
                drop(self.asked.lock().unwrap().insert(request, permit))
            }
            SourceCall::Cancel { request } => {
                let was_asked = self.asked.lock().unwrap().remove(&request).is_some();
                *self.cancelled.lock().unwrap() += u64::from(was_asked);
                self.events.tell(move |events| {
                    events.event(id, SourceEvent::Done { request });
                });
            }
            _ => {}
        }
    }
}

/// Y21: a chunk that is found on the disk after it was asked of the network cancels its request. Here all is asked for before anything is
/// found, and nothing of it ever comes; without taking it back the transfer would end with an error after 25 s.
#[test]
fn what_is_found_late_is_taken_back_from_the_network() {
    let object = bytes(SIZE, 94);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &object).unwrap();
    let older = alone(searching(dir.path(), Pace { idle: Duration::ZERO, ..PATIENT }));
    let (oid, geometry) = (Oid::of(&object), Geometry::new(SIZE as u64));
    let destination = dir.path().join("copy");
    let delivery =
        Delivery::open(&destination, ObjectName::Oid(oid), geometry.size_bytes(), DeliveryOptions::default());
    let delivery = Arc::new(delivery.unwrap());
    let mut wanted = RangeSet::new();
    wanted.insert(0..geometry.units());
    let transfer = Transfer::new(
        Truth::updated(geometry, oid, delivery.clone()).unwrap(),
        Sink::Rest(delivery.clone()),
        wanted.clone(),
        0,
        Budget::new(64 << 20),
        DeliveryMode::OutOfOrder,
        Start::Update,
    );
    let source = Arc::new(Withholding {
        recipe: recipe_of(&object),
        events: crossing::Events(transfer.events()),
        asked: Mutex::default(),
        cancelled: Mutex::default(),
    });
    transfer.add_source(SourceId(0), source.clone());
    let up = dray_core::source::SourceEvent::Up { size_bytes: SIZE as u64, name: None, round_trip_us: None };
    transfer.events().event(SourceId(0), up);
    let stop = Stop::new();
    transfer.run(Some(&older), &wanted, &stop, &mut || {}).unwrap();
    assert_eq!(transfer.seal(&stop, &mut || {}).unwrap(), oid);
    delivery.finish(FinishOptions::default()).unwrap();
    assert!(std::fs::read(&destination).unwrap() == object, "not the object's bytes");
    assert_eq!(transfer.other_bytes(), SIZE as u64);
    assert!(*source.cancelled.lock().unwrap() > 0, "nothing was asked for");
    assert!(source.asked.lock().unwrap().is_empty(), "something is still asked for");
}
