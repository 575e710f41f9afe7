//! What an update makes of chunks, of what lies at the destination, and of holders that tell wrong recipes.

mod disk;
mod rests;
mod search;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_core::Oid;
use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore};
use dray_core::limits::{GROUP_BYTES, UNIT_GROUPS};
use dray_core::message::{Hello, ObjectName, PROTOCOL_VERSION, feature};
use dray_core::permit::Budget;
use dray_core::recipe::{ChunkDescriptor, PlacedChunk};
use dray_core::source::{Grade, Source, SourceCapabilities, SourceDescription};
use dray_core::store::Store;
use dray_engine::planner::DeliveryMode;
use dray_liar::{Liar, LyingHolder, WithRecipes};
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions};
use dray_store::memory::MemoryStore;
use dray_transfer::direct::{DialConfig, Target, dial};
use dray_transfer::holder::StoredHeld;
use dray_transfer::lanes::LaneSet;
use dray_transfer::transport::{NodeKey, TlsConfig};

use super::super::{Start, Truth};
use super::*;
use crate::elsewhere::Hints;
use crate::elsewhere::tests::{ENDLESS, Indexed, node};

/// Bytes that depend on `seed` alone and repeat nowhere.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn older(bytes: &[u8]) -> (tempfile::TempDir, OlderVersion) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("older");
    std::fs::write(&path, bytes).unwrap();
    let older = OlderVersion::open(rustix::fs::CWD, &path, bytes.len() as u64).unwrap();
    (dir, older)
}

/// Groups and their parts.
type Groups = Vec<(u64, Parts)>;

/// A plan for all of an object of `size_bytes`, given `chunks`; the groups to copy, to fetch, and to fill at the end.
fn planned(
    size_bytes: u64,
    old: &[u8],
    chunks: &[&[u8]],
    probes: usize,
) -> (Groups, Vec<Range<u64>>, Groups) {
    planned_with(size_bytes, old, chunks, probes, &HashMap::new())
}

/// The same, where other files have some of the chunks.
fn planned_with(
    size_bytes: u64,
    old: &[u8],
    chunks: &[&[u8]],
    probes: usize,
    elsewhere: &HashMap<ChunkKey, Spot>,
) -> (Groups, Vec<Range<u64>>, Groups) {
    let geometry = Geometry::new(size_bytes);
    let mut wanted = RangeSet::new();
    wanted.insert(0..geometry.units());
    let (_dir, old) = older(old);
    let known =
        Known::of(&old, Profile::for_size(size_bytes).unwrap(), &Cut::of(size_bytes), &|| false).unwrap();
    let told = Mutex::new(Vec::new());
    let tell = |groups| told.lock().unwrap().push(groups);
    let mut plan = Plan::new(geometry, &wanted, &tell);
    (0..probes).for_each(|_| assert_eq!(plan.probe(1), 1));
    let (sender, copied) = sync_channel(10_000);
    let pressure = crate::search::Pressure::default();
    let copies = Copies { sender, over: &|| false, pressure: &pressure };
    let mut offset = 0;
    for chunk in chunks {
        plan.place(PlacedChunk { offset, chunk: ChunkDescriptor::of(chunk) }, &known, elsewhere, &copies)
            .unwrap();
        offset += chunk.len() as u64;
    }
    plan.finish(&copies).unwrap();
    let (deferred, _) = plan.want_rest();
    drop(copies);
    let copied = copied.iter().collect();
    (copied, told.into_inner().unwrap(), deferred)
}

/// The chunks of `data` as a recipe of an object of `size_bytes` has them.
fn cut(data: &[u8], size_bytes: u64) -> Vec<&[u8]> {
    let mut lens = Vec::new();
    let mut chunker = Profile::for_size(size_bytes).unwrap().chunker();
    chunker.push(data, &mut |chunk| lens.push(chunk.len()));
    chunker.finish(&mut |chunk| lens.push(chunk.len()));
    let mut rest = data;
    lens.into_iter().map(|len| rest.split_off(..len).unwrap()).collect()
}

const GROUP: usize = GROUP_BYTES as usize;

/// D17: a chunk is split over the groups it lies in; what goes on in the older version as it does in the object is one
/// part; the last group may be short.
#[test]
fn chunks_are_split_over_groups() {
    let size = 3 * GROUP_BYTES + 1000;
    let old = bytes((UNIT_BYTES + 77) as usize, 1);
    let chunks = cut(&old, size);
    // The object is the older version from its second chunk on.
    let skipped = chunks[0].len() as u64;
    let mut left = size as usize;
    let object: Vec<&[u8]> = chunks[1..]
        .iter()
        .map_while(|chunk| {
            (left > 0).then(|| {
                let taken = chunk.len().min(left);
                left -= taken;
                &chunk[..taken]
            })
        })
        .collect();
    let whole =
        object.iter().take_while(|chunk| chunks.contains(chunk)).map(|chunk| chunk.len() as u64).sum::<u64>();
    let (copied, told, deferred) = planned(size, &old, &object, 0);
    let whole_groups = whole / GROUP_BYTES;
    assert!(whole_groups >= 2, "{whole}");
    assert_eq!(copied.len() as u64, whole_groups);
    for (group, parts) in copied {
        assert_eq!(parts, [(GROUP as u32, Origin::Old(skipped + group * GROUP_BYTES))]);
    }
    // The chunk that was cut short is nowhere in the older version.
    assert_eq!(told, vec![whole_groups..4; 1]);
    assert!(deferred.is_empty());
}

/// Issue "identical chunks within one object cost nothing on the wire": the second of two is filled from the first, in
/// groups where nothing is missing; a group with a byte that is missing is fetched.
#[test]
fn a_chunk_that_stands_twice_is_fetched_once() {
    let new = bytes(2 * GROUP, 2);
    let (first, second) = new.split_at(GROUP);
    let old = bytes(UNIT_BYTES as usize, 3);
    let size = 5 * GROUP_BYTES;
    let (copied, told, deferred) = planned(size, &old, &[first, second, first, second, first], 0);
    assert!(copied.is_empty());
    assert_eq!(told, vec![0..2; 1]);
    let expected: Vec<(u64, Parts)> = [(2, 0), (3, 1), (4, 0)]
        .map(|(group, from)| (group, vec![(GROUP as u32, Origin::New(from * GROUP_BYTES))]))
        .into();
    assert_eq!(deferred, expected);
}

/// Y2: a chunk that another file has is copied from there, one that the older version has from that, whatever others have; a group is
/// filled from both and from the object itself.
#[test]
fn chunks_of_other_files_are_copied() {
    let old = bytes(UNIT_BYTES as usize, 5);
    let cut_old = cut(&old, UNIT_BYTES);
    let new = bytes(3 * GROUP, 6);
    let (first, rest) = new.split_at(GROUP / 2);
    let (second, third) = rest.split_at(GROUP);
    let (mut fills, from_old) = (Vec::new(), cut_old[0]);
    fills.extend_from_slice(&bytes(2 * GROUP - first.len() - second.len() - from_old.len(), 7));
    let spot = |file, offset| Spot { by: Finder::Index, file, offset };
    let key_of = |bytes: &[u8]| chunk_key(&ChunkDescriptor::of(bytes));
    let found = HashMap::from([
        (key_of(first), spot(0, 111)),
        (key_of(second), spot(3, 222)),
        (key_of(&fills), spot(0, 333)),
        (key_of(from_old), spot(9, 9)),
    ]);
    let chunks = [first, second, from_old, &fills, third, third];
    let size = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    let (copied, told, _) = planned_with(size, &old, &chunks, 0, &found);
    let half = GROUP as u64 / 2;
    let rest_of_second = second.len() as u64 - half;
    let expected: Groups = vec![
        (
            0,
            vec![
                (half as u32, Origin::Elsewhere(spot(0, 111))),
                (half as u32, Origin::Elsewhere(spot(3, 222))),
            ],
        ),
        (
            1,
            vec![
                (rest_of_second as u32, Origin::Elsewhere(spot(3, 222 + half))),
                (from_old.len() as u32, Origin::Old(0)),
                (fills.len() as u32, Origin::Elsewhere(spot(0, 333))),
            ],
        ),
    ];
    assert_eq!(copied, expected);
    assert_eq!(told[0].start, 2);
}

/// What was fetched to see whether the holder lives is neither copied nor asked for again.
#[test]
fn probed_groups_are_planned_once() {
    let old = bytes(UNIT_BYTES as usize, 4);
    let chunks = cut(&old, UNIT_BYTES);
    let (copied, told, _) = planned(UNIT_BYTES, &old, &chunks, 2);
    assert_eq!(told, [0..1, 1..2]);
    assert_eq!(
        copied.iter().map(|(group, _)| *group).collect::<Vec<_>>(),
        (2..UNIT_GROUPS).collect::<Vec<_>>()
    );
    // Without a recipe everything behind them is fetched.
    let (copied, told, _) = planned(UNIT_BYTES, &old, &[], 2);
    assert_eq!((copied.len(), told), (0, vec![0..1, 1..2, 2..16]));
}

/// S7: holes are kept by block.
#[test]
fn zero_blocks_are_no_data() {
    let mut group = vec![0; GROUP - 100];
    assert!(data_pieces(&group).is_empty());
    group[4096] = 1;
    group[3 * 4096 - 1] = 1;
    let last = group.len() - 1;
    group[last] = 1;
    let end = group.len() as u32;
    assert_eq!(data_pieces(&group), [4096..12_288, 61_440..end]);
}

/// Pairs come back as they were written, and others are an error, never zeros: what is taken as known must be.
#[test]
fn sparse_pairs_know_what_was_written() {
    let pairs = SparsePairs::default();
    let pair = |index: u64| [index as u8 + 1; PAIR_BYTES];
    for run in [62..67u64, 1000..1001, 5_000_000..5_000_002] {
        let bytes: Vec<u8> = run.clone().flat_map(pair).collect();
        pairs.write_at(run.start * PAIR_BYTES as u64, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        pairs.read_pairs(run.start, &mut read).unwrap();
        assert_eq!(read, bytes);
        for outside in [run.start - 1, run.end] {
            assert_eq!(
                pairs.read_pairs(outside, &mut [0; PAIR_BYTES]).unwrap_err().kind(),
                ErrorKind::Internal
            );
        }
    }
    assert!(pairs.read_pairs(66, &mut [0; 2 * PAIR_BYTES]).is_err());
    assert!(pairs.write_at(32, &[0; PAIR_BYTES]).is_err());
    assert!(pairs.write_at(0, &[0; PAIR_BYTES + 1]).is_err());
}

/// Only a regular file of a usual size is an older version, and looking at anything else does nothing to it.
#[test]
fn other_things_are_no_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let size = UNIT_BYTES;
    let file = |name: &str, len: u64| std::fs::File::create(path(name)).unwrap().set_len(len).unwrap();
    file("right", size);
    file("short", size - 1);
    file("long", UPDATE_BYTES_MAX + 1);
    std::os::unix::fs::symlink(path("right"), path("link")).unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let opens =
        |name: &str, size_bytes| OlderVersion::open(rustix::fs::CWD, &path(name), size_bytes).is_some();
    assert!(opens("right", size) && opens("right", UPDATE_BYTES_MAX));
    for name in ["short", "long", "link", "directory", "fifo", "none"] {
        assert!(!opens(name, size), "{name}");
    }
    assert!(!opens("right", size - 1) && !opens("right", UPDATE_BYTES_MAX + 1));
}

/// An older version with more chunks than are remembered is given up, not partly used in unbounded memory.
#[test]
fn cutting_ends_when_it_is_over() {
    let (_dir, old) = older(&bytes(2 * UNIT_BYTES as usize, 5));
    let profile = Profile::for_size(UNIT_BYTES).unwrap();
    let error = Known::of(&old, profile, &Cut::of(old.size_bytes), &|| true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

/// How a holder lies about its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    None,
    /// Its recipe is that of the older version, of the same size.
    OldRecipe,
    /// Its recipe is that of bytes that are nowhere.
    StrangeRecipe,
    /// Its recipe is of another size.
    WrongSize,
    /// It has no node of the recipe it named.
    NoNodes,
    /// The nodes it is asked for never come; everything else does.
    MuteOnNodes,
    /// The root of its recipe never comes; everything else does.
    MuteOnRecipe,
    /// All but the first two nodes of its recipe come only when data has been asked for.
    LateNodes,
    /// The nodes it sends are not those asked for.
    GarbageNodes,
    /// Its recipe is that of the older version, and its outboard is made up where it is compared.
    OldRecipeWrongPairs,
    /// It says that it lost its recipe as soon as it sends data, and never ends saying so.
    EndlessFaults,
}

fn recipe_of(data: &[u8]) -> Arc<Recipe> {
    let mut read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&data[offset as usize..][..out.len()]);
        Ok(())
    };
    dray_liar::recipe_of(data.len() as u64, &mut read).unwrap()
}

fn tls(seed: u8) -> TlsConfig {
    TlsConfig::new(NodeKey::from_seed(&[seed; 32]).unwrap()).unwrap()
}

/// A holder, which stops when it is dropped, and what it is asked for.
type Asked = (LyingHolder, Arc<WithRecipes>);

/// A holder of `object` that lies.
fn lying_holder(number: u8, object: &[u8], old: &[u8], lie: Lie) -> Asked {
    let mut writer = MemoryStore::new().put().unwrap();
    writer.write(object).unwrap();
    let stored = StoredHeld::new(writer.commit().unwrap(), None);
    let recipes = match lie {
        Lie::OldRecipe | Lie::OldRecipeWrongPairs => vec![recipe_of(old)],
        Lie::StrangeRecipe => vec![recipe_of(&bytes(object.len(), 99))],
        Lie::WrongSize => vec![recipe_of(&old[..old.len() - 1])],
        Lie::NoNodes => vec![recipe_of(object), recipe_of(&bytes(object.len(), 98))],
        _ => vec![],
    };
    let frames = match lie {
        Lie::MuteOnNodes => dray_liar::Lie::MuteNodes,
        Lie::LateNodes => dray_liar::Lie::LateNodes,
        Lie::MuteOnRecipe => dray_liar::Lie::MuteDescribed,
        Lie::GarbageNodes => dray_liar::Lie::GarbageNodes,
        Lie::OldRecipeWrongPairs => dray_liar::Lie::Compared,
        Lie::EndlessFaults => dray_liar::Lie::EndlessFaults,
        _ => dray_liar::Lie::None,
    };
    let held = Arc::new(WithRecipes::new(stored, recipes));
    (LyingHolder::start(number, None, held.clone(), None, Liar::new(frames)).unwrap(), held)
}

/// Updates `old` to `object` from holders that tell `lies`: how it ended, and the bytes that came from each of them.
fn update(object: &[u8], old: &[u8], lies: &[Lie]) -> (Result<Oid>, Vec<u64>) {
    let (dir, older) = older(old);
    update_from(dir.path(), &older, object, old, lies)
}

/// The same with what there is in `older`, to a file in `dir`; lies are about `old`.
fn update_from(
    dir: &Path,
    older: &OlderVersion,
    object: &[u8],
    old: &[u8],
    lies: &[Lie],
) -> (Result<Oid>, Vec<u64>) {
    let holders: Vec<Asked> =
        (1..).zip(lies).map(|(number, lie)| lying_holder(number, object, old, *lie)).collect();
    update_with(dir, older, object, &holders)
}

/// The same from these holders.
fn update_with(
    dir: &Path,
    older: &OlderVersion,
    object: &[u8],
    holders: &[Asked],
) -> (Result<Oid>, Vec<u64>) {
    let (result, shares, _) = update_saying(&[feature::RECIPE], dir, older, object, holders);
    (result, shares)
}

/// The same by a receiver with these features, and the bytes that the older version had, and other files, and
/// those that came and were not zero.
fn update_saying(
    features: &[&str],
    dir: &Path,
    older: &OlderVersion,
    object: &[u8],
    holders: &[Asked],
) -> (Result<Oid>, Vec<u64>, [u64; 3]) {
    let (transfer, wanted, delivery) = connected(features, dir, object, holders);
    let stop = Stop::new();
    let result =
        transfer.run(Some(older), &wanted, &stop, &mut || {}).and_then(|()| transfer.seal(&stop, &mut || {}));
    let shares = transfer.stats().iter().map(|stats| stats.delivered_bytes + stats.discarded_bytes).collect();
    if result.is_ok() {
        delivery.finish(FinishOptions::default()).unwrap();
        assert!(std::fs::read(dir.join("copy")).unwrap() == object, "not the object's bytes");
    }
    transfer.close();
    let brought = transfer.brought_bytes.load(Ordering::Relaxed);
    (result, shares, [transfer.local_bytes(), transfer.other_bytes(), brought])
}

/// A transfer of `object` to `copy` in `dir` by a receiver with these features, connected to all holders; the units
/// wanted of it, and where they go.
fn connected(
    features: &[&str],
    dir: &Path,
    object: &[u8],
    holders: &[Asked],
) -> (Arc<Transfer>, RangeSet, Arc<Delivery>) {
    let oid = Oid::of(object);
    let geometry = Geometry::new(object.len() as u64);
    let destination = dir.join("copy");
    let delivery = Arc::new(
        Delivery::open(&destination, ObjectName::Oid(oid), geometry.size_bytes(), DeliveryOptions::default())
            .unwrap(),
    );
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
    let sets: Vec<_> = (0..)
        .zip(holders)
        .map(|(number, (holder, _))| {
            let description = SourceDescription {
                label: format!("holder {number}"),
                // The first one is asked first.
                priority: number as u16,
                weight: 1,
                capabilities: SourceCapabilities {
                    grade: Grade::Proven,
                    cancel: true,
                    holes: true,
                    under_way_bytes: 0,
                },
            };
            let size = Some(geometry.size_bytes());
            let set =
                LaneSet::new(SourceId(number), ObjectName::Oid(oid), description, size, transfer.events());
            transfer.add_source(SourceId(number), set.clone());
            (SourceId(number), set, holder)
        })
        .collect();
    for (id, set, holder) in sets {
        let config = DialConfig {
            tls: tls(100),
            hello: Hello {
                version: PROTOCOL_VERSION,
                features: features.iter().map(|name| (*name).to_owned()).collect(),
                required: vec![],
                agent: "test/0".into(),
            },
            targets: vec![Target {
                address: format!("127.0.0.1:{}", holder.port),
                node: holder.node,
                priority: 0,
                allow_local: true,
            }],
            lanes: 2,
            secret: None,
            size_bytes: Some(geometry.size_bytes()),
            clear_data: false,
            only_way: true,
        };
        dial(set, config);
        // In the order of the lies, or the first one might not be the one that is asked.
        let begun = Instant::now();
        while !transfer.is_up(id) && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(transfer.is_up(id), "{id:?} never came up");
    }
    (transfer, wanted, delivery)
}

const SIZE: usize = 12 << 20;

/// The object and an older version of the same size: 100,000 bytes differ at a third, and the last MiB.
fn versions() -> (Vec<u8>, Vec<u8>) {
    let old = bytes(SIZE, 10);
    let mut object = old.clone();
    object[SIZE / 3..][..100_000].copy_from_slice(&bytes(100_000, 11));
    object[SIZE - (1 << 20)..].copy_from_slice(&bytes(1 << 20, 12));
    (object, old)
}

/// What differs, rounded up to chunks and groups at each end.
const CHANGED_BYTES: u64 = 100_000 + (1 << 20) + 8 * GROUP_BYTES;

/// D17, design 2: from an honest holder comes what changed, and nothing is asked for twice.
#[test]
fn an_honest_recipe_costs_what_changed() {
    let (object, old) = versions();
    let (result, shares) = update(&object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES, "{shares:?}");
}

/// S45: what stands in the object twice, and comes once, is not said to be of the older version, which has something else.
#[test]
fn repeats_are_no_older_version() {
    let half = bytes(SIZE / 2, 20);
    let object = [&half[..], &half[..]].concat();
    let (dir, older) = older(&bytes(SIZE, 21));
    let holders = [lying_holder(1, &object, &object, Lie::None)];
    let (transfer, wanted, _delivery) = connected(&[feature::RECIPE], dir.path(), &object, &holders);
    let stop = Stop::new();
    transfer.run(Some(&older), &wanted, &stop, &mut || {}).unwrap();
    assert_eq!(transfer.seal(&stop, &mut || {}).unwrap(), Oid::of(&object));
    transfer.close();
    let repeated = transfer.repeated_bytes();
    assert_eq!((transfer.local_bytes(), transfer.other_bytes()), (0, 0));
    assert!(repeated > SIZE as u64 / 2 - (2 << 20), "{repeated}");
    let fetched: u64 = transfer.stats().iter().map(|stats| stats.delivered_bytes).sum();
    assert_eq!(fetched + repeated, SIZE as u64);
}

/// What other files below `dir` have of the object, beside an older version that has nothing of it.
fn others(dir: &Path, unrelated: OlderVersion, index: Arc<dyn Hints>) -> OlderVersion {
    let opened = std::fs::File::open(dir).unwrap();
    let elsewhere = node(dir, index).elsewhere(std::os::fd::AsFd::as_fd(&opened), SIZE as u64, None);
    let elsewhere = elsewhere.files().expect("there is hope").with_patience(ENDLESS);
    OlderVersion::beside(Some(unrelated), Some(elsewhere)).unwrap()
}

/// Y2, issue 7 "data already on the receiver's disk under any name costs no network": what a file of another name has is not fetched; without
/// the index everything is.
#[test]
fn what_other_files_have_is_not_fetched() {
    let (object, old) = versions();
    let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 77));
    let (result, shares) = update_from(dir.path(), &unrelated, &object, &old, &[Lie::None]);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    let index = Indexed::new(dir.path());
    index.take_in(&dir.path().join("sub/other"), &old);
    let older = others(dir.path(), unrelated, index);
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES, "{shares:?}");
}

/// Writes other bytes over the file after it has said where chunks lie, and before they are compared.
#[derive(Debug)]
struct Overwriting(Arc<Indexed>, std::path::PathBuf, Mutex<u32>);

impl Hints for Overwriting {
    fn ask(
        &self,
        directory: BorrowedFd<'_>,
        question: &dray_client::types::IndexQuestion,
    ) -> Result<dray_client::types::IndexAnswer> {
        let mut asked = self.2.lock().unwrap();
        *asked += 1;
        let answer = self.0.ask(directory, question);
        // After the question whether there is hope, and before the first chunk is compared.
        if *asked == 2 {
            let file = std::fs::File::options().write(true).open(&self.1).unwrap();
            file.write_all_at(&bytes(SIZE, 55), 0).unwrap();
        }
        answer
    }
}

/// Y3 "slower, never wrong", CACHE-READ: a file that is written to after its chunks were looked up costs the bytes that it no longer has,
/// and no wrong one arrives.
#[test]
fn another_file_that_changes_is_not_believed() {
    let (object, old) = versions();
    let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 78));
    let path = dir.path().join("other");
    let index = Indexed::new(dir.path());
    index.take_in(&path, &old);
    let older = others(dir.path(), unrelated, Arc::new(Overwriting(index, path, Mutex::default())));
    let (result, shares) = update_from(dir.path(), &older, &object, &old, &[Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] > SIZE as u64 / 2 && shares[0] <= SIZE as u64 + CHANGED_BYTES, "{shares:?}");
}

/// Issue "one with a wrong recipe": the right bytes arrive, the root finds what is wrong, and it costs no more than the
/// units that are; a recipe of strange bytes costs what no older version would.
#[test]
fn a_wrong_recipe_costs_bytes_and_nothing_else() {
    let (object, old) = versions();
    let wrong_units = 4 * UNIT_BYTES;
    let (result, shares) = update(&object, &old, &[Lie::OldRecipe]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] >= UNIT_BYTES && shares[0] <= wrong_units, "{shares:?}");
    for lie in [Lie::StrangeRecipe, Lie::WrongSize] {
        let (result, shares) = update(&object, &old, &[lie]);
        assert_eq!(result.unwrap(), Oid::of(&object), "{lie:?}");
        assert_eq!(shares[0], SIZE as u64, "{lie:?}");
    }
}

/// Issue "a recipe whose nodes never come, garbage nodes": everything is fetched, soon, and proven.
#[test]
fn a_recipe_without_its_nodes_is_given_up() {
    let (object, old) = versions();
    for (lie, seconds) in [(Lie::NoNodes, 5), (Lie::GarbageNodes, 5), (Lie::MuteOnNodes, 20)] {
        let began = Instant::now();
        let (result, shares) = update(&object, &old, &[lie]);
        assert_eq!(result.unwrap(), Oid::of(&object), "{lie:?}");
        assert!((SIZE as u64..=SIZE as u64 + UNIT_BYTES).contains(&shares[0]), "{lie:?}: {shares:?}");
        assert!(began.elapsed() < Duration::from_secs(seconds), "{lie:?}: {:?}", began.elapsed());
    }
}

/// S34, P12: one that lies about the recipe and about its outboard, too, is done without if there is another one, and is
/// named if there is none.
#[test]
fn a_made_up_outboard_does_not_end_the_update() {
    let (object, old) = versions();
    let (result, shares) = update(&object, &old, &[Lie::OldRecipeWrongPairs, Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[1] >= UNIT_BYTES && shares[1] <= 4 * UNIT_BYTES, "{shares:?}");
    let (result, _) = update(&object, &old, &[Lie::OldRecipeWrongPairs]);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::VerificationFailed);
}

/// P12, design 9: of one that names its recipe and never sends a node of it another holder takes over, and what is at hand is
/// not fetched.
#[test]
fn another_holder_is_asked_for_nodes_that_do_not_come() {
    let (object, old) = versions();
    let (result, shares) = update(&object, &old, &[Lie::MuteOnNodes, Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    let fetched = shares[0] + shares[1];
    assert!(fetched <= CHANGED_BYTES, "{shares:?}");
}

/// D17: what changed is asked for before the recipe has been read to its end. Whoever waited for the end would wait here for
/// ever, as the end waits for him, and would fetch everything when he gives up.
#[test]
fn data_is_asked_for_before_the_recipe_ends() {
    let (mut object, old) = versions();
    object[100_000..200_000].copy_from_slice(&bytes(100_000, 13));
    let (result, shares) = update(&object, &old, &[Lie::LateNodes]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES + 100_000 + 4 * GROUP_BYTES, "{shares:?}");
}

/// P12, design 9: beside one that says nothing of its recipe, and sends whatever else it is asked for, another holder is asked;
/// nobody waits until that one is given up, which takes five seconds.
#[test]
fn another_holder_is_asked_for_a_recipe_that_does_not_come() {
    let (object, old) = versions();
    let began = Instant::now();
    let (result, shares) = update(&object, &old, &[Lie::MuteOnRecipe, Lie::MuteOnRecipe, Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares.iter().sum::<u64>() <= CHANGED_BYTES, "{shares:?}");
    // Who waited for the first until then would wait for the second after that.
    assert!(began.elapsed() < DESCRIBE_PATIENCE + DESCRIBE_SILENCE, "{:?}", began.elapsed());
}

/// Issue "endless answers": a holder that says without end that it lost its recipe is done without, where it is the only one
/// with an error that names it.
#[test]
fn a_recipe_is_lost_only_once() {
    let (object, old) = versions();
    let (result, shares) = update(&object, &old, &[Lie::EndlessFaults, Lie::None]);
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[1] > 0, "{shares:?}");
    let (result, _) = update(&object, &old, &[Lie::EndlessFaults]);
    let error = result.unwrap_err();
    assert!(error.to_string().contains("holder 0"), "{error}");
    assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::NotFound), "{error:?}");
}
