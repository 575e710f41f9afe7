//! Where a search looks, when it waits, and what it remembers.

mod cached;
mod sibling;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use dray_core::Oid;
use dray_core::limits::{SEARCH_CHUNKS_MAX, SEARCH_FILES_OPEN_MAX, UNIT_BYTES};
use dray_core::message::ObjectName;
use dray_core::recipe::ChunkDescriptor;
use dray_core::source::{Grade, Source, SourceCall, SourceCapabilities, SourceDescription};
use dray_store::index::key as chunk_key;

use super::found::Finds;
use super::*;

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(30);

/// Bytes that depend on `seed` alone and repeat nowhere.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

const SIZE: usize = 4 << 20;

fn directory(path: &Path) -> OwnedFd {
    fs::create_dir_all(path).unwrap();
    fs::File::open(path).unwrap().into()
}

/// Below `top`, for a file in `to`.
pub(crate) fn scope(top: &Path, to: &Path) -> Scope {
    Scope::new(directory(top), directory(to).as_fd()).unwrap()
}

/// What is looked for: an object called `name`.
pub(crate) fn target(name: &str, size_bytes: usize) -> Target {
    Target { name: name.into(), size_bytes: size_bytes as u64, mtime_s: None, older: None }
}

/// The chunks of an object.
fn keys(data: &[u8]) -> Vec<ChunkKey> {
    let mut keys = Vec::new();
    let mut chunker = Profile::for_size(data.len() as u64).unwrap().chunker();
    chunker.push(data, &mut |chunk| keys.push(chunk_key(&ChunkDescriptor::of(chunk))));
    chunker.finish(&mut |chunk| keys.push(chunk_key(&ChunkDescriptor::of(chunk))));
    keys
}

/// Looks for `keys` until they are found, or there is nothing left to do; how many were found.
fn found(search: &DiskSearch, keys: &[ChunkKey], told_bytes: usize) -> usize {
    let begun = Instant::now();
    search.find(keys, told_bytes as u64);
    loop {
        let is_promising = search.is_promising();
        let found = search.find(keys, told_bytes as u64).len();
        if found == keys.len() || !is_promising {
            return found;
        }
        assert!(begun.elapsed() < LONG, "{found} of {} were found", keys.len());
        search.await_news(Duration::from_millis(10));
    }
}

/// Design 16, Y10, Y11: only regular files below the scope are read, over no link and no mount, and nothing that is being received; what a device or a
/// fifo may do when it is opened does not happen.
#[test]
fn a_search_stays_in_its_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (top, to) = (dir.path().join("top"), dir.path().join("top/to"));
    let data = bytes(SIZE, 1);
    fs::create_dir_all(&to).unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("image"), &data).unwrap();
    std::os::unix::fs::symlink(outside.join("image"), to.join("image")).unwrap();
    std::os::unix::fs::symlink(&outside, to.join("link")).unwrap();
    std::os::unix::fs::symlink("../other", to.join("inside")).unwrap();
    fs::write(to.join(".image.dray-0123456789abcdef"), &data).unwrap();
    fs::write(to.join("image.short"), &data[..UNIT_BYTES as usize - 1]).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, to.join("image.fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let search = || DiskSearch::begin(scope(&top, &to), target("image", SIZE), SearchPolicy::Cost).unwrap();
    let vain = search();
    assert!(!vain.is_hopeful_soon());
    assert_eq!((found(&vain, &keys(&data), SIZE), vain.read_bytes()), (0, 0));
    let inside = top.join("other");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("image"), &data).unwrap();
    let search = search();
    assert!(search.is_hopeful_soon());
    assert_eq!(search.read_bytes(), 0, "nobody has asked for anything");
    let all = keys(&data);
    assert_eq!(found(&search, &all, SIZE), all.len());
    let opened = scope(&top, &to);
    for path in [
        "to/image",
        "to/link/image",
        "to/inside/image",
        "../outside/image",
        "to/image.fifo",
        "to",
        "/etc/passwd",
        "to/image.short",
    ] {
        assert!(opened.open(Path::new(path)).is_none(), "{path}");
    }
    assert!(opened.open(Path::new("other/image")).is_some());
    assert_eq!(opened.destination(), Some(vec![b"to".to_vec()]));
}

/// Y9, Y10: a file that is at its path twice, or is the older version, is read once, or not at all; bytes that are nowhere are not found.
#[test]
fn a_file_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 2);
    fs::write(dir.path().join("image"), &data).unwrap();
    fs::hard_link(dir.path().join("image"), dir.path().join("image.1")).unwrap();
    fs::write(dir.path().join("image.2"), bytes(SIZE, 3)).unwrap();
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    let mut wanted = keys(&data);
    wanted.extend(keys(&bytes(SIZE, 4)));
    let of_object = keys(&data).len();
    assert_eq!(found(&search, &wanted, SIZE), of_object);
    assert_eq!(search.read_bytes(), 2 * SIZE as u64);
    assert!(search.was_used());
    let stat = rustix::fs::stat(dir.path().join("image")).unwrap();
    let older = Some((stat.st_dev, stat.st_ino));
    let search = DiskSearch::begin(
        scope(dir.path(), dir.path()),
        Target { older, ..target("image", SIZE) },
        SearchPolicy::Cost,
    )
    .unwrap();
    assert_eq!(found(&search, &keys(&data), SIZE), 0);
    assert_eq!(search.read_bytes(), SIZE as u64, "image.2 alone");
}

/// Of a source that has something to be read until it is told otherwise; it counts how often it is asked.
#[derive(Debug, Default)]
struct Unread {
    is_empty: AtomicBool,
    asked: AtomicU64,
    /// The first so many times that it is asked there is nothing.
    free: AtomicU64,
}

impl Source for Unread {
    fn describe(&self) -> SourceDescription {
        let capabilities =
            SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
        SourceDescription { label: "unread".into(), priority: 0, weight: 1, capabilities }
    }

    fn object(&self) -> ObjectName {
        ObjectName::Oid(Oid::of(b""))
    }

    fn has_unread(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel);
        asked >= self.free.load(Ordering::Acquire) && !self.is_empty.load(Ordering::Acquire)
    }

    fn call(&self, _: SourceCall) {}
}

/// Y5: while something is written, or a socket can be read, not a byte of any file is read; after that it is. With `no-pressure` it is
/// read all the same (Y25).
#[test]
fn a_search_stands_back_for_the_transfer() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 5);
    fs::write(dir.path().join("image"), &data).unwrap();
    let all = keys(&data);
    let begin =
        |policy| DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), policy).unwrap();
    let unread = Arc::new(Unread::default());
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    let search = begin(SearchPolicy::Cost);
    search.attend(pressure.clone());
    assert!(search.find(&all, SIZE as u64).is_empty());
    // It has looked so often whether it may go on.
    let begun = Instant::now();
    while unread.asked.load(Ordering::Acquire) < 20 {
        assert!(begun.elapsed() < LONG, "nobody looks at the sockets");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(search.read_bytes(), 0);
    let writing = pressure.begin();
    unread.is_empty.store(true, Ordering::Release);
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
        assert_eq!(search.read_bytes(), 0, "while something is written");
    }
    let asked = unread.asked.load(Ordering::Acquire);
    drop(writing);
    assert_eq!(found(&search, &all, SIZE), all.len());
    let looks = unread.asked.load(Ordering::Acquire) - asked;
    assert!(looks >= SIZE as u64 / (64 << 10), "{looks}: not before each read");
    unread.is_empty.store(false, Ordering::Release);
    let search = begin(SearchPolicy::NoPressure);
    search.attend(pressure.clone());
    assert_eq!(found(&search, &all, SIZE), all.len());
    assert!(
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::NoDisk)
            .is_err()
    );
}

/// Y4, Y7 "only if no disk pressure": while the transfer has something to do, nothing is ranked, however much more is wanted than when that was done
/// last; after that it is.
#[test]
fn nothing_is_ranked_while_the_transfer_has_something_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 10);
    fs::write(dir.path().join("image.old"), &data).unwrap();
    let all = keys(&data);
    // Nothing is wanted before it is known what the older version has not.
    let target = Target { older: Some((0, 0)), ..target("image", SIZE) };
    let search = DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap();
    let begun = Instant::now();
    // It has nothing to do, and is not about to rank by a look from before there was anything to stand back for.
    while search.is_promising() {
        assert!(begun.elapsed() < LONG, "it has something to do");
        thread::sleep(Duration::from_millis(1));
    }
    let unread = Arc::new(Unread::default());
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    search.attend(pressure);
    let steps = search.ranking_steps();
    assert!(search.find(&all, SIZE as u64).is_empty());
    while unread.asked.load(Ordering::Acquire) < 20 {
        assert!(begun.elapsed() < LONG, "nobody looks at the sockets");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((search.ranking_steps(), search.trace().len()), (steps, 0));
    unread.is_empty.store(true, Ordering::Release);
    assert_eq!(found(&search, &all, SIZE), all.len());
    assert!(search.ranking_steps() > steps);
}

/// Works without an end until it is told to stop, as many threads as there are processors, four times; for `pressure`, or for nobody.
fn work(pressure: Option<&Arc<Pressure>>, is_over: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    let processors = thread::available_parallelism().unwrap().get();
    let work = |_| {
        let (pressure, is_over) = (pressure.cloned(), is_over.clone());
        thread::spawn(move || {
            // As the search itself: above it they would leave it so little that it hardly comes to read.
            rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19).unwrap();
            if let Some(pressure) = pressure {
                pressure.join();
            }
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    (0..4 * processors).map(work).collect()
}

/// Whether this kernel tells how long threads waited for a processor.
fn is_waiting_told() -> bool {
    let is_told = Path::new("/proc/thread-self/schedstat").exists();
    if !is_told {
        dray_testkit::say_skip("this kernel does not tell how long threads waited for a processor");
    }
    is_told
}

/// Y5, design 7, ADR 37: where threads of the transfer wait for a processor, the search rests; threads that do not work for it may wait, and the search
/// finds all. The kernel's figures are the real ones.
#[test]
fn a_search_rests_where_the_transfer_waits_for_a_processor() {
    const LARGE: usize = 6 * SIZE;
    if !is_waiting_told() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // So much that it is not read before anybody can have waited.
    let data = bytes(LARGE, 11);
    fs::write(dir.path().join("image"), &data).unwrap();
    let all = keys(&data);
    for works_for_it in [true, false] {
        let target = target("image", LARGE);
        let search = DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap();
        let (pressure, is_over) = (Arc::new(Pressure::default()), Arc::new(AtomicBool::new(false)));
        let workers = work(works_for_it.then_some(&pressure), &is_over);
        search.attend(pressure);
        search.find(&all, LARGE as u64);
        let begun = Instant::now();
        while search.rests() == 0 && search.read_bytes() < LARGE as u64 {
            assert!(begun.elapsed() < LONG, "{} bytes were read", search.read_bytes());
            thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(search.rests() > 0, works_for_it);
        assert_eq!(found(&search, &all, LARGE), all.len());
    }
}

/// ADR 37: while the search stands back for the transfer, and while it has nothing to do, nothing that threads wait for is counted against it.
#[test]
fn a_search_that_stands_back_is_not_charged() {
    if !is_waiting_told() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 13);
    fs::write(dir.path().join("image"), &data).unwrap();
    let all = keys(&data);
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    let unread = Arc::new(Unread { free: AtomicU64::new(3), ..Unread::default() });
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    search.attend(pressure);
    search.find(&all, SIZE as u64);
    let begun = Instant::now();
    while unread.asked.load(Ordering::Acquire) < 20 {
        assert!(begun.elapsed() < LONG, "nobody looks at the sockets");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!search.is_charged(), "while the transfer has something to do");
    unread.is_empty.store(true, Ordering::Release);
    assert_eq!(found(&search, &all, SIZE), all.len());
    while search.is_charged() {
        assert!(begun.elapsed() < LONG, "while it has nothing to do");
        thread::sleep(Duration::from_millis(1));
    }
}

/// P7 "never slower": where nothing is left that is worth it, nobody waits, however long the transfer itself has something to do.
#[test]
fn a_search_with_nothing_to_do_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let all = keys(&bytes(SIZE, 9));
    // It is like what is wanted, and so large that hardly any of it would be of use: it is remembered, and not read.
    let file = fs::File::create(dir.path().join("image")).unwrap();
    file.set_len(256 << 20).unwrap();
    let older = Some((0, 0));
    let target = Target { older, ..target("image", SIZE) };
    let search = DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap();
    assert_eq!(found(&search, &all[..10], SIZE / 2), 0);
    let pressure = Arc::new(Pressure::default());
    let _writing = pressure.begin();
    search.attend(pressure.clone());
    search.find(&all, SIZE as u64);
    let begun = Instant::now();
    while search.is_promising() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it promises something");
        search.await_news(Duration::from_millis(10));
    }
    assert!(search.is_vain());
    assert_eq!(search.read_bytes(), 0);
}

/// Y4, Y7, design 7: where there are many files to be ranked, it is done some at a time. In between others have the order, and what the transfer has to do is waited
/// for, as before each other step.
#[test]
fn ranking_stands_back_too() {
    let dir = tempfile::tempdir().unwrap();
    let all = keys(&bytes(SIZE, 12));
    for number in 0..2500 {
        let file = fs::File::create(dir.path().join(format!("other-{number}"))).unwrap();
        file.set_len(SIZE as u64).unwrap();
    }
    let target = Target { older: Some((0, 0)), ..target("image", SIZE) };
    let search = DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap();
    // For so little none of them is read.
    assert_eq!(found(&search, &all[..10], SIZE / 2), 0);
    let steps = search.ranking_steps();
    let unread = Arc::new(Unread { free: AtomicU64::new(2), ..Unread::default() });
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    search.attend(pressure);
    search.find(&all, SIZE as u64);
    let begun = Instant::now();
    while unread.asked.load(Ordering::Acquire) < 20 {
        assert!(begun.elapsed() < LONG, "nobody looks at the sockets");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(search.ranking_steps() - steps, 2000, "before the first thousand, and the second");
    assert!(search.is_promising() && search.trace().len() <= 2);
    unread.is_empty.store(true, Ordering::Release);
    while search.ranking_steps() - steps < 2500 {
        assert!(begun.elapsed() < LONG, "it does not go on");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Y8: of a file that changes after it was read nothing is told any more.
#[test]
fn a_file_that_changes_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (bytes(SIZE, 6), dir.path().join("image"));
    fs::write(&path, &data).unwrap();
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    let all = keys(&data);
    assert_eq!(found(&search, &all, SIZE), all.len());
    let told = search.find(&all, SIZE as u64);
    let permissions: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    fs::set_permissions(&path, permissions).unwrap();
    let (file, offset) = told[&all[0]];
    assert!(search.find(&all, SIZE as u64).is_empty());
    assert_eq!(found(&search, &all, SIZE), 0, "it is not read again");
    // Who was told of it before reads what is there, and holds that against the root.
    let mut read = vec![0; 1000];
    search.read_at(file, offset, &mut read).unwrap();
    assert_eq!(read, data[..1000]);
}

/// Where an older version lies at the destination, nothing is read before it is known to lack something, and not for a little (Y14).
#[test]
fn nothing_is_read_where_nothing_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 7);
    fs::write(dir.path().join("image.1"), &data).unwrap();
    let older = Some((0, 0));
    let search = DiskSearch::begin(
        scope(dir.path(), dir.path()),
        Target { older, ..target("image", SIZE) },
        SearchPolicy::Cost,
    )
    .unwrap();
    assert_eq!(found(&search, &[], SIZE / 2), 0);
    let all = keys(&data);
    assert_eq!(found(&search, &all[..1], SIZE / 2 + 1), 0);
    assert_eq!(search.read_bytes(), 0);
    assert_eq!(found(&search, &all, SIZE), all.len());
}

/// S90, issue "the same command goes on": what an earlier run left, and zeros, are not looked for, and say nothing of the rest. There is as much hope as
/// if they had not been told, and nothing was in vain before something was looked for.
#[test]
fn what_is_not_looked_for_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 14);
    fs::write(dir.path().join("image.1"), &data).unwrap();
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    for told_bytes in [SIZE / 4, SIZE / 2] {
        search.pass(SIZE as u64 / 4);
        assert!(search.find(&[], told_bytes as u64).is_empty());
    }
    let begun = Instant::now();
    while search.is_promising() {
        assert!(begun.elapsed() < LONG, "{} bytes were read", search.read_bytes());
        search.await_news(Duration::from_millis(10));
    }
    assert_eq!((search.read_bytes(), search.is_vain()), (SIZE as u64, false));
    let all = keys(&data);
    let rest = &all[all.len() / 2..];
    assert_eq!(search.find(rest, SIZE as u64).len(), rest.len());
    // Of what was looked for the rest is judged: here it is in vain.
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    search.pass(SIZE as u64 / 4);
    assert_eq!(found(&search, &keys(&bytes(SIZE / 4, 15)), SIZE / 2), 0);
    assert!(search.is_vain());
}

/// A file is read to its end, too, when what was told of the object by then lies in what was read before that was told: the rest of the object is not
/// known yet, and may lie in the rest of the file.
#[test]
fn a_file_that_had_all_so_far_is_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 16);
    fs::write(dir.path().join("image.1"), &data).unwrap();
    let search =
        DiskSearch::begin(scope(dir.path(), dir.path()), target("image", SIZE), SearchPolicy::Cost).unwrap();
    let unread = Arc::new(Unread { free: AtomicU64::new(40), ..Unread::default() });
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    search.attend(pressure);
    assert!(search.find(&[], 1).is_empty());
    let begun = Instant::now();
    while unread.asked.load(Ordering::Acquire) < 60 {
        assert!(begun.elapsed() < LONG, "nobody looks at the sockets");
        thread::sleep(Duration::from_millis(1));
    }
    let before = search.read_bytes();
    assert!((2 * SIZE as u64 / 4..3 * SIZE as u64 / 4).contains(&before), "{before}");
    let all = keys(&data);
    let first = &all[..all.len() / 4];
    assert_eq!(search.find(first, SIZE as u64 / 4).len(), first.len());
    unread.is_empty.store(true, Ordering::Release);
    while search.is_promising() {
        assert!(begun.elapsed() < LONG, "{} bytes were read", search.read_bytes());
        search.await_news(Duration::from_millis(10));
    }
    assert_eq!(search.read_bytes(), SIZE as u64);
}

/// P7 "Sibling": before anything is asked for, one file is read if the object is about to be described, and its nodes are known then; another one is read
/// when something is missing. Where an older version lies at the destination, none is.
#[test]
fn one_file_is_read_for_what_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let versions = [17, 18].map(|seed| bytes(SIZE, seed));
    for (number, data) in versions.iter().enumerate() {
        fs::write(dir.path().join(format!("image.{number}")), data).unwrap();
    }
    let search = |older| {
        let target = Target { older, ..target("image", SIZE) };
        DiskSearch::begin(scope(dir.path(), dir.path()), target, SearchPolicy::Cost).unwrap()
    };
    let roots = versions.each_ref().map(|data| {
        let mut read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&data[offset as usize..][..out.len()]);
            Ok(())
        };
        let profile = Profile::for_size(SIZE as u64).unwrap();
        dray_transfer::recipe::Recipe::read(SIZE as u64, profile, &mut read, &mut |_| {}).unwrap().root()
    });
    let known =
        |search: &DiskSearch| roots.iter().filter(|root| search.node(&root.node_id()).is_some()).count();
    let updating = search(Some((0, 0)));
    updating.expect();
    assert!(!updating.makes_nodes());
    let search = search(None);
    assert!(!search.makes_nodes());
    search.expect();
    let begun = Instant::now();
    while search.makes_nodes() {
        assert!(begun.elapsed() < LONG, "{} bytes were read", search.read_bytes());
        search.await_news(Duration::from_millis(10));
    }
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
        assert_eq!((search.read_bytes(), known(&search)), (SIZE as u64, 1));
    }
    assert!(!search.is_vain(), "nothing was asked for");
    let all = versions.each_ref().map(|data| keys(data)).concat();
    assert_eq!(found(&search, &all, SIZE), all.len());
    // Its nodes are made of all that was found, a moment later.
    while known(&search) < 2 {
        assert!(begun.elapsed() < LONG, "{} bytes were read", search.read_bytes());
        search.await_news(Duration::from_millis(10));
    }
    assert_eq!(search.read_bytes(), 2 * SIZE as u64);
    assert_eq!((updating.read_bytes(), known(&updating)), (0, 0));
}

/// Memory and descriptors of a search have bounds: files that nobody needs give way, those that are used do not.
#[test]
fn what_is_remembered_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("image"), bytes(UNIT_BYTES as usize, 8)).unwrap();
    let scope = scope(dir.path(), dir.path());
    let opened = scope.open(Path::new("image")).unwrap();
    let mut finds = Finds::within(Arc::default());
    let key = |number: usize| -> ChunkKey {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    };
    let _ = finds.find(&[key(7)]);
    let (first, _) = finds.take(&opened).unwrap();
    assert!(finds.add(first, &[(key(7), 70), (key(8), 80)]));
    assert_eq!((finds.news(), finds.wanted()), (1, 0));
    for _ in 0..3 * SEARCH_FILES_OPEN_MAX {
        finds.take(&opened).unwrap();
    }
    assert_eq!(finds.held().1, SEARCH_FILES_OPEN_MAX);
    assert!(finds.file(first).is_some(), "it is used");
    let (last, _) = finds.take(&opened).unwrap();
    let mut chunks = (100..100 + 2 * SEARCH_CHUNKS_MAX).map(|number| (key(number), 0));
    let mut next = || chunks.by_ref().take(1000).collect::<Vec<(ChunkKey, u64)>>();
    loop {
        let some = next();
        if some.is_empty() {
            break;
        }
        // Those that nobody wants are left out.
        assert!(finds.add(last, &some) && finds.held().0 <= SEARCH_CHUNKS_MAX);
    }
    assert_eq!(finds.held().0, SEARCH_CHUNKS_MAX);
    // What lay in a file that changed makes room.
    finds.forget(last);
    let (next, _) = finds.take(&opened).unwrap();
    assert!(finds.add(next, &[(key(1), 10)]));
    let (spots, checks) = finds.find(&[key(7), key(1), key(100)]);
    assert_eq!(spots, HashMap::from([(key(7), (first, 70)), (key(1), (next, 10))]));
    assert_eq!((checks.len(), finds.wanted()), (2, 1));
    // All that are open are used: nothing more is read.
    let mut finds = Finds::within(Arc::default());
    for number in 0..SEARCH_FILES_OPEN_MAX {
        let (file, _) = finds.take(&opened).unwrap();
        let _ = finds.find(&[key(number)]);
        assert!(finds.add(file, &[(key(number), 0)]));
    }
    assert!(finds.take(&opened).is_none());
}

/// The most memory this process had so far.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Remembers chunks, wants others, and enters files, until there is no memory left for more.
fn fill_memory(dir: &Path, budget: &Budget) {
    let memory = Arc::new(Memory::of(budget));
    let before = peak_bytes();
    let scope = scope(dir, dir);
    let mut finds = Finds::within(memory.clone());
    finds.ask_index();
    let (number, _) = finds.take(&scope.open(Path::new("image")).unwrap()).unwrap();
    let mut order = Search::new(
        SearchConfig {
            policy: Policy::Cost,
            stat_weight: STAT_WEIGHT,
            chunk_bytes: 16 << 10,
            floors: Floors::default(),
        },
        scope.destination(),
        vec![Wanted { name: b"image".into(), size_bytes: 1 << 40, mtime_s: None, chunks: 1 << 26 }],
    );
    let mut fills = 0;
    for round in 0.. {
        let key = |half: u64| -> ChunkKey {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&(round * 2 + half).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            key
        };
        let wanted = finds.wanted();
        let _ = finds.find(&[key(0)]);
        let known = finds.held().0;
        assert!(finds.add(number, &[(key(1), round)]));
        let name = format!("image.{round}");
        let held_bytes = executor::ENTRY_HELD_BYTES + name.len() as u64;
        if round % 16 == 0 && memory.take(held_bytes) {
            let file =
                dray_engine::search::Metadata { name: name.as_bytes(), size_bytes: 1 << 40, mtime_s: None };
            let _ = order.found_file(dray_engine::search::EntryId::TOP, file);
        }
        if finds.wanted() == wanted && finds.held().0 == known {
            break;
        }
        fills = round;
    }
    let (peak, used) = (peak_bytes() - before, budget.used_bytes());
    assert!(used <= budget.limit_bytes() / 2 && used >= budget.limit_bytes() / 2 - (2 << 20));
    assert!(fills > 50_000, "{fills} chunks, and as many that are wanted");
    // What a process has of its own while it runs.
    assert!(peak <= used + (2 << 20), "{peak} bytes of memory, and {used} were reserved");
}

/// Design 7, issue "memory within its budget": what a search remembers is reserved of the budget of its transfer, half of that at the most, and no more
/// is taken than that, as the kernel counts it. When there is no more, it gets along with less.
#[test]
fn what_is_remembered_is_reserved() {
    const PLACE: &str = "DRAY_TEST_SEARCH_MEMORY";
    if let Some(dir) = std::env::var_os(PLACE) {
        return fill_memory(Path::new(&dir), &Budget::new(32 << 20));
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("image"), bytes(UNIT_BYTES as usize, 9)).unwrap();
    // The peak of a process is that of everything in it.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "search::tests::what_is_remembered_is_reserved", "--nocapture"])
        .env(PLACE, dir.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(told.contains("1 passed"), "{told}");
}

/// Design 7: where there is no memory for more, what nobody wants yet is left out, and what is wanted is found all the same, in the room that it had
/// while it was looked for.
#[test]
fn what_is_wanted_is_found_without_room_for_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("image"), bytes(UNIT_BYTES as usize, 8)).unwrap();
    let scope = scope(dir.path(), dir.path());
    let budget = Budget::new(4 << 20);
    let mut finds = Finds::within(Arc::new(Memory::of(&budget)));
    let key = |number: u64| -> ChunkKey {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        key
    };
    let wanted: Vec<ChunkKey> = (0..100_000).map(key).collect();
    assert!(finds.find(&wanted).0.is_empty());
    let count = finds.wanted() as usize;
    assert!((1000..10_000).contains(&count), "half of the memory is for what is found: {count}");
    let (number, _) = finds.take(&scope.open(Path::new("image")).unwrap()).unwrap();
    for at in 100_000..200_000 {
        assert!(finds.add(number, &[(key(at), at)]), "the search is over");
    }
    assert!(finds.held().0 < 20_000);
    for (at, key) in wanted.iter().enumerate() {
        assert!(finds.add(number, &[(*key, at as u64)]), "{at} of {count}");
    }
    assert_eq!((finds.wanted(), finds.news()), (0, count as u64));
    assert_eq!(finds.find(&wanted[..count]).0.len(), count);
    assert!(budget.used_bytes() <= budget.limit_bytes() / 2);
}

/// Design 7: memory of a search that is over is the network's, but for that of what was of use.
#[test]
fn a_search_that_is_over_gives_its_memory_back() {
    let dir = tempfile::tempdir().unwrap();
    let (top, data) = (dir.path(), bytes(SIZE, 4));
    fs::write(top.join("image.old"), &data).unwrap();
    let budget = Budget::new(64 << 20);
    let ended = |is_used: bool| {
        let target = target("image", SIZE);
        let search =
            DiskSearch::begin_within(&budget, scope(top, &top.join("to")), target, SearchPolicy::Cost)
                .unwrap();
        let looked_for = if is_used { keys(&data) } else { keys(&bytes(SIZE, 5)) };
        assert_eq!(found(&search, &looked_for, SIZE), if is_used { looked_for.len() } else { 0 });
        assert!(budget.used_bytes() > 0);
        search.end();
        let begun = Instant::now();
        while Arc::strong_count(&search.shared) > 1 {
            assert!(begun.elapsed() < LONG, "its thread goes on");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(search.find(&looked_for, SIZE as u64).len(), if is_used { looked_for.len() } else { 0 });
        let used = budget.used_bytes();
        drop(search);
        (used, budget.used_bytes())
    };
    assert_eq!(ended(false), (0, 0));
    let (used, left) = ended(true);
    assert!(used > 0 && left == 0, "{used} bytes, {left} after");
}
