//! The disk is searched while a transfer goes on (Y4-Y21).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use dray_core::hash_tree::Collector;
use dray_core::message::BlockRun;
use dray_core::source::{RequestId, SourceEvent, SourceEvents};
use dray_core::store::PartialObject;

use super::*;
use crate::search::tests::{scope, target};
use crate::search::{Pace, SearchPolicy};

/// A network that is always waited for, and never too fast to be spared.
const PATIENT: Pace = Pace {
    held_back_below_bytes_per_s: u64::MAX,
    spared_bytes_per_s: 1 << 50,
    idle: Duration::from_secs(60),
    measuring: Duration::from_millis(50),
};

/// What is fetched before the recipe has come.
const AHEAD_BYTES: u64 = 4 * GROUP_BYTES;

/// A search below `dir` for what will be `copy` in it.
fn searching(dir: &Path, pace: Pace) -> DiskSearch {
    let search = DiskSearch::begin(scope(dir, dir), target("copy", SIZE), SearchPolicy::Cost).unwrap();
    assert!(search.is_hopeful_soon(), "there is no hope");
    search.with_pace(pace)
}

/// Waits until all chunks of `data` are found.
fn await_found(search: &DiskSearch, data: &[u8]) {
    let keys: Vec<ChunkKey> =
        cut(data, SIZE as u64).into_iter().map(|chunk| chunk_key(&ChunkDescriptor::of(chunk))).collect();
    let begun = Instant::now();
    while search.find(&keys, SIZE as u64).len() < keys.len() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is not found");
        search.await_news(Duration::from_millis(10));
    }
}

fn alone(search: DiskSearch) -> OlderVersion {
    OlderVersion::searching(None, Some(search)).unwrap()
}

/// The chunks of an object.
fn chunks_of(object: &[u8]) -> Vec<PlacedChunk> {
    let mut offset = 0;
    let place = |chunk: &[u8]| {
        let placed = PlacedChunk { offset, chunk: ChunkDescriptor::of(chunk) };
        offset += chunk.len() as u64;
        placed
    };
    cut(object, SIZE as u64).into_iter().map(place).collect()
}

/// Remembers that all groups of the object with these chunks are asked for, and may be found yet.
fn add_all(late: &mut Late, chunks: &[PlacedChunk]) {
    for group in 0..SIZE as u64 / GROUP_BYTES {
        let range = group * GROUP_BYTES..(group + 1) * GROUP_BYTES;
        let parts = chunks.iter().filter_map(|placed| {
            let (start, end) = (placed.offset, placed.offset + u64::from(placed.chunk.len));
            let (from, to) = (start.max(range.start), end.min(range.end));
            let key = chunk_key(&placed.chunk);
            (from < to).then(|| late::LatePart::Wanted((to - from) as u32, key, from - start))
        });
        late.add(group, parts.collect());
    }
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
    assert!(older.disk.as_ref().unwrap().read_bytes() > 0, "nothing was searched");
}

/// Y2, Y8: what an index knows to lie in a file that looks like nothing is not fetched where the disk is searched, either; what is read of it is read once.
#[test]
fn an_index_is_part_of_the_search() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    let index = Indexed::new(dir.path());
    let unlike = [&old[..], &bytes(SIZE, 94)].concat();
    index.take_in(&dir.path().join("to/unlike"), &unlike);
    let to = dir.path().join("to");
    let opened = std::fs::File::open(&to).unwrap();
    let prospect = node(dir.path(), index).elsewhere(opened.as_fd(), SIZE as u64, Some(b"unlike"));
    let (_kept, unrelated) = older(&bytes(UNIT_BYTES as usize, 95));
    let older = OlderVersion::beside(Some(unrelated), prospect.files());
    let search = DiskSearch::begin(scope(&to, &to), target("copy", SIZE), SearchPolicy::Cost).unwrap();
    assert!(!search.is_hopeful_soon(), "nothing looks alike");
    let older = OlderVersion::searching(older, Some(search.with_pace(PATIENT))).unwrap();
    assert!(older.elsewhere.is_none(), "it is asked beside the search");
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES, "{shares:?}");
    assert!(older.disk.as_ref().unwrap().read_bytes() <= unlike.len() as u64);
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

/// P7 "never slower": on a network that is as fast as the disk, nothing is read, here or at the holder, and nothing waits for the recipe. That
/// never comes, so that only the speed can end the wait before its time.
#[test]
fn a_fast_path_is_left_alone() {
    let (object, old) = versions();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &old).unwrap();
    let measuring = Duration::from_secs(60);
    let pace = Pace { held_back_below_bytes_per_s: 0, spared_bytes_per_s: 1, measuring, ..PATIENT };
    let older = alone(searching(dir.path(), pace));
    let holders = [lying_holder(1, &object, &old, Lie::MuteOnRecipe)];
    let (result, shares) = update_with(dir.path(), &older, &object, &holders);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    let disk = older.disk.as_ref().unwrap();
    assert_eq!((disk.read_bytes(), disk.is_promising()), (0, false));
    assert_eq!(holders[0].1.described(), 0, "the holder read all of it to describe it");
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
    await_found(&search, &old);
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
    asked: Mutex<HashMap<RequestId, dray_core::permit::Permit>>,
    cancelled: Mutex<u64>,
    /// Nodes of the recipe that were asked for.
    nodes: Mutex<Vec<RecipeId>>,
    /// Runs of blocks of 1024 bytes whose sums were asked for; all that is told is wrong.
    sums: Mutex<Vec<Vec<BlockRun>>>,
    /// Bytes that are lacking of groups of which only the rest was asked for.
    rest_bytes: Mutex<BTreeMap<u64, usize>>,
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
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
        SourceDescription { label: "withholding".into(), priority: 0, weight: 1, capabilities }
    }

    fn object(&self) -> ObjectName {
        ObjectName::Oid(Oid::of(b""))
    }

    fn call(&self, call: SourceCall) {
        let id = SourceId(0);
        match call {
            SourceCall::Describe => {
                let root = self.recipe.root();
                self.events.tell(move |events| {
                    events.event(id, SourceEvent::Described { root: Some(root) });
                });
            }
            SourceCall::Nodes { ids } => {
                self.nodes.lock().unwrap().extend(&ids);
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
            SourceCall::FetchRest { request, group, have, permit, .. } => {
                self.rest_bytes.lock().unwrap().insert(group, have.rest_bytes(GROUP));
                drop(self.asked.lock().unwrap().insert(request, permit));
            }
            SourceCall::Cancel { request } => {
                let was_asked = self.asked.lock().unwrap().remove(&request).is_some();
                *self.cancelled.lock().unwrap() += u64::from(was_asked);
                self.events.tell(move |events| {
                    events.event(id, SourceEvent::Done { request });
                });
            }
            SourceCall::Sums { number, block_bytes, sum_bytes, runs } => {
                let blocks: usize = runs.iter().map(|run| run.blocks as usize).sum();
                if block_bytes == 1024 {
                    self.sums.lock().unwrap().push(runs);
                }
                self.events.tell(move |events| {
                    let sums = vec![0; blocks * usize::from(sum_bytes)];
                    events.event(id, SourceEvent::Summed { number, sums: Some(&sums) });
                });
            }
            _ => {}
        }
    }
}

/// A transfer of `object` to `copy` in `dir` whose only source never sends a byte, into what `sink` makes of the delivery.
fn withheld(
    dir: &Path,
    object: &[u8],
    truth: impl FnOnce(Geometry, Oid, Arc<Delivery>) -> Truth,
    sink: impl FnOnce(Arc<Delivery>) -> Arc<dyn PartialObject>,
) -> (Arc<Transfer>, RangeSet, Arc<Withholding>, Arc<Delivery>) {
    let (oid, geometry) = (Oid::of(object), Geometry::new(object.len() as u64));
    let destination = dir.join("copy");
    let delivery =
        Delivery::open(&destination, ObjectName::Oid(oid), geometry.size_bytes(), DeliveryOptions::default());
    let delivery = Arc::new(delivery.unwrap());
    let mut wanted = RangeSet::new();
    wanted.insert(0..geometry.units());
    let transfer = Transfer::new(
        truth(geometry, oid, delivery.clone()),
        Sink::Rest(sink(delivery.clone())),
        wanted.clone(),
        0,
        Budget::new(64 << 20),
        DeliveryMode::OutOfOrder,
        Start::Update,
    );
    let source = Arc::new(Withholding {
        recipe: recipe_of(object),
        events: crossing::Events(transfer.events()),
        asked: Mutex::default(),
        cancelled: Mutex::default(),
        nodes: Mutex::default(),
        sums: Mutex::default(),
        rest_bytes: Mutex::default(),
    });
    transfer.add_source(SourceId(0), source.clone());
    let size_bytes = object.len() as u64;
    let up = SourceEvent::Up { size_bytes, name: None, round_trip_us: None };
    transfer.events().event(SourceId(0), up);
    (transfer, wanted, source, delivery)
}

fn proven(geometry: Geometry, oid: Oid, delivery: Arc<Delivery>) -> Truth {
    Truth::updated(geometry, oid, delivery).unwrap()
}

/// ADR 28, design 16: which blocks a sender is asked to tell sums of is the same with chunks on the disk as without, in all groups that
/// are asked for: it hears of groups, and of nothing smaller.
#[test]
fn a_sender_hears_of_no_chunk_on_the_disk() {
    // So much that it is worth searching for.
    let new = SIZE - (4 << 20);
    let (object, mut old) = versions();
    old[new..].copy_from_slice(&bytes(4 << 20, 96));
    // All of what the older version has not, but for a chunk in each group.
    let mut partly = object.clone();
    for group in partly[new..].chunks_mut(GROUP) {
        group[GROUP / 2] ^= 1;
    }
    let asked = |has_disk: bool| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/copy"), &partly).unwrap();
        let (_kept, at_destination) = older(&old);
        let target = crate::search::Target { older: at_destination.identity(), ..target("copy", SIZE) };
        let search = DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap();
        let search = has_disk.then(|| search.with_pace(PATIENT));
        let older = OlderVersion::searching(Some(at_destination), search).unwrap();
        let vouched =
            |geometry, _, delivery| Truth::Vouched(Collector::new(geometry, delivery as Arc<dyn PairStore>));
        let (transfer, wanted, source, _) = withheld(dir.path(), &object, vouched, |delivery| delivery);
        let over = Stop::new();
        thread::scope(|scope| {
            scope.spawn(|| transfer.update(&older, &wanted, &over));
            let begun = Instant::now();
            while source.asked.lock().unwrap().is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(20), "nothing is asked for");
                thread::sleep(Duration::from_millis(1));
            }
            over.set();
        });
        transfer.close();
        assert_eq!(older.disk.as_ref().is_some_and(|disk| disk.was_used()), has_disk);
        // The disk may have all of a group at which a change begins.
        let first = (new + GROUP) as u64 / 1024;
        let runs = source.sums.lock().unwrap().concat();
        let blocks = runs.iter().flat_map(|run| run.start..run.start + u64::from(run.blocks));
        let blocks: BTreeSet<u64> = blocks.filter(|block| *block >= first).collect();
        assert!(blocks.len() > 100, "no sums were asked for");
        blocks
    };
    assert_eq!(asked(true), asked(false));
}

/// P7 "Sibling", design 16: who may read what is searched sends what a file on the disk lacks of a group, and not all of the group; who may
/// not is asked for whole groups.
#[test]
fn whoever_may_read_the_disk_sends_the_rest_alone() {
    let object = bytes(SIZE, 97);
    // The change and the chunk in which it ends take four groups, of the first and the last of which something is here.
    let changed = 5 * UNIT_BYTES as usize + GROUP - 2000..5 * UNIT_BYTES as usize + 2 * GROUP + 2000;
    let mut sibling = object.clone();
    sibling[changed.clone()].copy_from_slice(&bytes(changed.len(), 98));
    let asked = |may_read: bool| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/copy"), &sibling).unwrap();
        let older = alone(searching(dir.path(), PATIENT)).told_to_the_sender(may_read);
        let vouched =
            |geometry, _, delivery| Truth::Vouched(Collector::new(geometry, delivery as Arc<dyn PairStore>));
        let (transfer, wanted, source, _) = withheld(dir.path(), &object, vouched, |delivery| delivery);
        let over = Stop::new();
        thread::scope(|scope| {
            scope.spawn(|| transfer.update(&older, &wanted, &over));
            let begun = Instant::now();
            // The first group of all, and the four.
            while transfer.wanted_groups.load(Ordering::Acquire) < 5 {
                assert!(begun.elapsed() < Duration::from_secs(20), "not enough is asked for");
                thread::sleep(Duration::from_millis(1));
            }
            over.set();
        });
        transfer.close();
        source.rest_bytes.lock().unwrap().clone()
    };
    let rests = asked(true);
    let first = changed.start as u64 / GROUP_BYTES;
    assert_eq!(rests.keys().copied().collect::<Vec<_>>(), [first, first + 3]);
    let bytes = rests.values().sum::<usize>() + 2 * GROUP;
    assert!((changed.len()..3 * GROUP).contains(&bytes), "{bytes} of {}", changed.len());
    assert!(asked(false).is_empty());
}

/// P7 "Sibling", R8: of the recipe, as with an older version at the destination, only those nodes are asked for that are not also nodes of a file
/// that is found: that is read while the sender makes the recipe, before anything is known of the object, and leaves wait for it a moment.
#[test]
fn nodes_that_a_sibling_has_are_not_asked_for() {
    let object = bytes(SIZE, 99);
    let mut sibling = object.clone();
    // In the first group, too: it never comes, so the network has something to do, and the file is waited for however long that takes.
    for at in [1000, SIZE / 2] {
        sibling[at..][..5000].copy_from_slice(&bytes(5000, 100));
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &sibling).unwrap();
    // Files that are less like it are not read before anything is missing.
    std::fs::write(dir.path().join("sub/copy.old"), bytes(SIZE / 2, 101)).unwrap();
    let older = alone(searching(dir.path(), PATIENT));
    let (transfer, wanted, source, _) = withheld(dir.path(), &object, proven, |delivery| delivery);
    let over = Stop::new();
    thread::scope(|scope| {
        scope.spawn(|| transfer.update(&older, &wanted, &over));
        let begun = Instant::now();
        // The first group of all, and the other one that changed.
        while transfer.wanted_groups.load(Ordering::Acquire) < 2 {
            assert!(begun.elapsed() < Duration::from_secs(20), "not enough is asked for");
            thread::sleep(Duration::from_millis(1));
        }
        over.set();
    });
    transfer.close();
    let (asked, known) = (source.nodes.lock().unwrap().clone(), recipe_of(&sibling));
    let all = cut(&object, SIZE as u64).len();
    assert!(asked.iter().all(|id| !known.contains(id)), "{asked:?}");
    let bytes: usize = asked.iter().map(|id| source.recipe.node(id).unwrap().len()).sum();
    assert!(asked.len() >= 2 && bytes < all * 36 / 2, "{bytes} of a recipe of {all} chunks");
    assert_eq!(older.disk.as_ref().unwrap().read_bytes(), SIZE as u64);
}

/// Y21: a chunk that is found on the disk after it was asked of the network cancels its request. Here all is asked for before anything is
/// found, and nothing of it ever comes; without taking it back the transfer would end with an error after 25 s.
///
/// Y5: until then the transfer writes, and of no file a byte is read. P7 "never slower": nobody waits for a search that cannot go on, though
/// the network is busy all the time.
#[test]
fn what_is_found_late_is_taken_back_from_the_network() {
    let object = bytes(SIZE, 94);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &object).unwrap();
    let older = alone(searching(dir.path(), Pace { idle: Duration::ZERO, ..PATIENT }));
    let (transfer, wanted, source, delivery) = withheld(dir.path(), &object, proven, |delivery| delivery);
    let stop = Stop::new();
    let (result, held_back) = thread::scope(|scope| {
        let writing = transfer.pressure.begin();
        let running = scope.spawn(|| transfer.run(Some(&older), &wanted, &stop, &mut || {}));
        let begun = Instant::now();
        let is_all_asked = || transfer.wanted_groups.load(Ordering::Acquire) == SIZE as u64 / GROUP_BYTES;
        while !is_all_asked() && begun.elapsed() < Duration::from_secs(15) {
            thread::sleep(Duration::from_millis(1));
        }
        let held_back = (is_all_asked(), older.disk.as_ref().unwrap().read_bytes());
        drop(writing);
        (running.join().unwrap(), held_back)
    });
    assert_eq!(
        held_back,
        (true, 0),
        "asked for everything, and bytes that the search read while something was written"
    );
    result.unwrap();
    assert_eq!(transfer.seal(&stop, &mut || {}).unwrap(), Oid::of(&object));
    delivery.finish(FinishOptions::default()).unwrap();
    assert!(std::fs::read(dir.path().join("copy")).unwrap() == object, "not the object's bytes");
    assert_eq!(transfer.other_bytes(), SIZE as u64);
    assert!(*source.cancelled.lock().unwrap() > 0, "nothing was asked for");
    assert!(source.asked.lock().unwrap().is_empty(), "something is still asked for");
}

/// An object at rest on a disk that is full after a MiB.
#[derive(Debug)]
struct Full(Arc<Delivery>);

impl PairStore for Full {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_pairs(first_index, out)
    }
    fn write_at(&self, offset: u64, pairs: &[u8]) -> Result<()> {
        self.0.write_at(offset, pairs)
    }
}

impl PartialObject for Full {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn marked_units(&self) -> RangeSet {
        self.0.marked_units()
    }
    fn write_data(&self, offset: u64, data: &[u8]) -> Result<()> {
        if offset >= UNIT_BYTES {
            return Err(Error::new(ErrorKind::NoSpace, "no space is left"));
        }
        self.0.write_data(offset, data)
    }
    fn write_hole(&self, range: Range<u64>) -> Result<()> {
        self.0.write_hole(range)
    }
    fn read_data(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_data(offset, out)
    }
    fn mark_unit(&self, unit: u64) -> Result<()> {
        self.0.mark_unit(unit)
    }
    fn unmark_unit(&self, unit: u64) -> Result<()> {
        self.0.unmark_unit(unit)
    }
}

/// What is taken back and cannot be stored ends the transfer with that error: nobody else would store it, and nobody would miss it.
#[test]
fn a_disk_that_is_full_ends_what_is_taken_back() {
    let object = bytes(SIZE, 95);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &object).unwrap();
    let older = alone(searching(dir.path(), PATIENT));
    let (transfer, wanted, ..) = withheld(dir.path(), &object, proven, |delivery| Arc::new(Full(delivery)));
    let want = |groups| transfer.want_groups(groups);
    let mut plan = Plan::new(transfer.geometry, &wanted, &want);
    plan.late.keep(Arc::default());
    // All of it is asked for, and found after that.
    transfer.want_groups(0..SIZE as u64 / GROUP_BYTES);
    await_found(older.disk.as_ref().unwrap(), &object);
    add_all(&mut plan.late, &chunks_of(&object));
    let error = transfer.take_back(&older, &mut plan.late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    // Whoever waits hears of it.
    let stop = Stop::new();
    let ended = thread::scope(|scope| {
        let waiting = scope.spawn(|| transfer.wait(&stop, &mut || {}));
        let begun = Instant::now();
        while !waiting.is_finished() && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        stop.set();
        waiting.join().unwrap()
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::NoSpace);
}

/// Design 16, ADR 28: of what an index alone knows of a group nothing is heard by a ticket's holder, also where a search of a directory that the user named
/// asks the index: the masks of the groups that are asked for are those without an index.
#[test]
fn a_tickets_holder_hears_nothing_of_an_index() {
    let object = bytes(SIZE, 102);
    // Nine groups changed, of which the index knows the middle, with ends within groups.
    let first = 5 * UNIT_BYTES as usize;
    let changed = first + 2000..first + 9 * GROUP - 2000;
    let middle = first + GROUP * 5 / 2..first + GROUP * 13 / 2;
    let mut old = object.clone();
    old[changed.clone()].copy_from_slice(&bytes(changed.len(), 103));
    let indexed = [&bytes(SIZE, 104)[..], &object[middle], &bytes(GROUP, 105)[..]].concat();
    let keys = |data: &[u8]| -> BTreeSet<ChunkKey> {
        cut(data, SIZE as u64).into_iter().map(|chunk| chunk_key(&ChunkDescriptor::of(chunk))).collect()
    };
    // The groups of which something is in neither, and those of them of which the index has something.
    let groups_of = |is_it: &dyn Fn(&ChunkKey) -> bool| -> BTreeSet<u64> {
        let mut offset = 0;
        let mut groups = BTreeSet::new();
        for chunk in cut(&object, SIZE as u64) {
            let (start, end) = (offset, offset + chunk.len() as u64);
            offset = end;
            if is_it(&chunk_key(&ChunkDescriptor::of(chunk))) {
                groups.extend(start / GROUP_BYTES..end.div_ceil(GROUP_BYTES));
            }
        }
        groups
    };
    let (of_old, of_index) = (keys(&old), keys(&indexed));
    let asked = |has_index: bool| {
        let dir = tempfile::tempdir().unwrap();
        let [to, named] = ["to", "named"].map(|name| dir.path().join(name));
        std::fs::create_dir(&named).unwrap();
        let index = Indexed::new(dir.path());
        index.take_in(&to.join("unlike"), &indexed);
        let opened = std::fs::File::open(&to).unwrap();
        let prospect = node(dir.path(), index).elsewhere(opened.as_fd(), SIZE as u64, Some(b"unlike"));
        let (_kept, at_destination) = older(&old);
        let target = crate::search::Target { older: at_destination.identity(), ..target("copy", SIZE) };
        let search = DiskSearch::begin(scope(&named, &to), target, SearchPolicy::Cost).unwrap();
        let older = OlderVersion::beside(Some(at_destination), prospect.files().filter(|_| has_index));
        let older = OlderVersion::searching(older, Some(search.with_pace(PATIENT))).unwrap();
        assert_eq!(older.disk.as_ref().unwrap().has_index(), has_index);
        let lacking = groups_of(&|key| !(of_old.contains(key) || has_index && of_index.contains(key)));
        let (transfer, wanted, source, _) = withheld(dir.path(), &object, proven, |delivery| delivery);
        let over = Stop::new();
        thread::scope(|scope| {
            scope.spawn(|| transfer.update(&older, &wanted, &over));
            let begun = Instant::now();
            while transfer.wanted_groups.load(Ordering::Acquire) < lacking.len() as u64 {
                assert!(begun.elapsed() < Duration::from_secs(20), "not enough is asked for");
                thread::sleep(Duration::from_millis(1));
            }
            over.set();
        });
        transfer.close();
        assert_eq!(transfer.wanted_groups.load(Ordering::Acquire), lacking.len() as u64);
        let mut rests = source.rest_bytes.lock().unwrap().clone();
        rests.retain(|group, _| lacking.contains(group));
        (lacking, rests)
    };
    let (without, rests) = asked(false);
    let (with, rests_with) = asked(true);
    let told = groups_of(&|key| !of_old.contains(key) && of_index.contains(key));
    assert!(with.len() < without.len() && !with.is_disjoint(&told), "{without:?}, {with:?}, {told:?}");
    assert!(!rests.is_empty() && rests.keys().all(|group| with.contains(group)), "{rests:?}");
    assert_eq!(rests_with, rests);
}

/// Y26: what another file has of a group of which only the rest comes counts as that file's, and not as an older version's, of which there is none.
#[test]
fn what_others_have_of_a_rest_counts_as_theirs() {
    let object = bytes(SIZE, 106);
    let mut sibling = object.clone();
    sibling[SIZE / 2..][..1000].copy_from_slice(&bytes(1000, 107));
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &sibling).unwrap();
    let search = searching(dir.path(), PATIENT);
    await_found(&search, &sibling);
    let older = alone(search);
    let holders = [lying_holder(1, &object, &sibling, Lie::None)];
    let features = [feature::RECIPE, feature::RESTS];
    let (result, shares, [local, others, brought]) =
        update_saying(&features, dir.path(), &older, &object, &holders);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert_ne!(shares[0] % GROUP_BYTES, 0, "no rest came");
    assert_eq!((local, others), (0, SIZE as u64 - shares[0]));
    assert_eq!(brought, shares[0], "the rest of the group counts as brought, and no more");
}

/// A second of a search for `object` in `dir`, in which `work` has all of its groups come from somewhere; whether
/// it goes on with the next chunks, where a network that brings 100,000 bytes a second is left alone.
fn goes_on(
    dir: &Path,
    object: &[u8],
    transfer: &Transfer,
    wanted: &RangeSet,
    work: impl FnOnce(&OlderVersion, &mut Late),
) -> bool {
    let older = alone(searching(dir, Pace { spared_bytes_per_s: 100_000, ..PATIENT }));
    let profile = Profile::for_size(SIZE as u64).unwrap();
    let known = Known::of(&older, profile, &Cut::of(0), &|| false).unwrap();
    let want = |groups| transfer.want_groups(groups);
    let mut plan = Plan::new(transfer.geometry, wanted, &want);
    plan.late.keep(Arc::default());
    let brought = transfer.brought_bytes.load(Ordering::Relaxed);
    let mut search = Search::new(brought).begun_before(Duration::from_secs(1));
    transfer.want_groups(0..SIZE as u64 / GROUP_BYTES);
    work(&older, &mut plan.late);
    assert!(transfer.has_fetched_all());
    // What becomes of the next chunks does not matter.
    let (chunks, mut found) = (chunks_of(object), HashMap::new());
    let _ = transfer.find_on_disk(&older, &chunks, &known, &plan, &mut found, &mut search, &|| true);
    !older.disk.as_ref().unwrap().is_over()
}

/// Y21, P7 "Sibling": what is taken back from a slow network, as fast as the disk reads it, does not pass for what
/// that network brings.
#[test]
fn a_search_does_not_end_by_what_it_finds() {
    let object = bytes(SIZE, 108);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/copy"), &object).unwrap();
    let (transfer, wanted, ..) = withheld(dir.path(), &object, proven, |delivery| delivery);
    let goes_on = goes_on(dir.path(), &object, &transfer, &wanted, |older, late| {
        await_found(older.disk.as_ref().unwrap(), &object);
        add_all(late, &chunks_of(&object));
        transfer.take_back(older, late).unwrap();
    });
    assert_eq!(transfer.other_bytes(), SIZE as u64);
    assert!(goes_on);
}

/// P7 "never slower": where much comes, the search ends; zeros are not much, which come as runs of no bytes.
#[test]
fn a_search_ends_by_what_comes_and_not_by_zeros() {
    let goes_on_after = |object: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/copy"), bytes(SIZE, 109)).unwrap();
        let holders = [lying_holder(1, object, object, Lie::None)];
        let features = [feature::RECIPE, feature::ZEROS];
        let (transfer, wanted, _) = connected(&features, dir.path(), object, &holders);
        let goes_on = goes_on(dir.path(), object, &transfer, &wanted, |_, _| {
            let begun = Instant::now();
            while !transfer.has_fetched_all() {
                assert!(begun.elapsed() < Duration::from_secs(30), "it does not come");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let brought = transfer.brought_bytes.load(Ordering::Relaxed);
        // What nobody needs any more has come all the same.
        let (request, data) = (RequestId(u32::MAX), 0..GROUP as u32);
        let bytes = &object[..GROUP];
        let again = SourceEvent::Group { request, group: 0, bytes, data: std::slice::from_ref(&data) };
        transfer.events().event(SourceId(0), again);
        assert_eq!(transfer.brought_bytes.load(Ordering::Relaxed), brought + GROUP_BYTES);
        transfer.close();
        (goes_on, brought)
    };
    let mut zeros = vec![0; SIZE];
    zeros[..GROUP].copy_from_slice(&bytes(GROUP, 110));
    assert_eq!(goes_on_after(&zeros), (true, GROUP_BYTES));
    assert_eq!(goes_on_after(&bytes(SIZE, 111)), (false, SIZE as u64));
}
