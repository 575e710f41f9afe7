//! What is alike at both ends, over the wire: real far ends against a real near side, everything said recorded. Each scenario runs twice, the
//! second time with a far end that does not know digests: the outcome is the same, and it costs more.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use dray_core::ErrorKind;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{
    CopyRole, Digests, EntryFailed, Hello, Message, PROTOCOL_VERSION, PlannedItem, feature,
};
use dray_store::local::tree::{Above, DigestOptions, Origin, Scan, TreeWriter};
use dray_transfer::transport::{Channel, Duplex, PipeChannel, Security, Wake, Wants, push_control};
use dray_transfer::tree::{send, take};

use super::copies::channels;
use super::digests::{Alike, Comparing, Telling, digest_options};
use super::sink::Writing;
use super::source::WalkSource;
use super::sync::{self, deletes, landing};
use super::{
    AskedTrees, Counted, Knows, SyncOptions, TreeCopied, TreeOptions, changes, names_owners, tree_message,
    walk_options, write_options,
};
use crate::{Config, ConfigFile, Node, Paths, Stop, lock};

const LONG: Duration = Duration::from_secs(120);
const DIRECTORIES: usize = 40;
const FILES: usize = 25;
/// Entries of the tree of every scenario: files, directories and the root.
const ENTRIES: u64 = (DIRECTORIES * FILES + DIRECTORIES + 1) as u64;

/// What passed, in turn: whether the near end said it, and the bytes.
type Passed = Arc<Mutex<Vec<(bool, Vec<u8>)>>>;

/// A channel that keeps all that passes.
struct Tap {
    inner: PipeChannel,
    passed: Passed,
}

impl Channel for Tap {
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.inner.try_read(out)?;
        lock(&self.passed).push((false, out[..read.unwrap_or(0)].to_vec()));
        Ok(read)
    }

    fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        lock(&self.passed).push((true, data.to_vec()));
        self.inner.write_all(data)
    }

    fn wait(&mut self, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.inner.wait(wake, timeout)
    }

    fn security(&self) -> Option<Security> {
        None
    }
}

impl Duplex for Tap {
    fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.try_write(data)?;
        lock(&self.passed).push((true, data[..count].to_vec()));
        Ok(count)
    }

    fn wait_for(&mut self, wants: Wants, wake: Option<&Wake>, timeout: Duration) -> io::Result<()> {
        self.inner.wait_for(wants, wake, timeout)
    }
}

/// A run, as the near end saw it.
struct Ran {
    /// Control messages but `progress` and `hello`, and whether the near end said them.
    said: Vec<(bool, Message)>,
    /// Bytes in both directions, without those of `progress`.
    bytes: usize,
    copied: TreeCopied,
    failed: Vec<String>,
    planned: Vec<PlannedItem>,
}

impl Ran {
    fn count(&self, is: fn(&Message) -> bool) -> usize {
        self.said.iter().filter(|(_, message)| is(message)).count()
    }

    /// How often the direction changes: half of it are round trips.
    fn turns(&self) -> usize {
        self.said.windows(2).filter(|pair| pair[0].0 != pair[1].0).count()
    }

    fn entries_told(&self) -> usize {
        let items = |message: &Message| match message {
            Message::Entries(entries) => entries.items.iter().filter(|item| !item.is_empty()).count(),
            _ => 0,
        };
        self.said.iter().map(|(_, message)| items(message)).sum()
    }

    /// What of the account does not depend on how it was told.
    fn account(&self) -> (TreeCopied, Vec<String>, Vec<Vec<u8>>) {
        let planned = self.planned.iter().map(|item| item.path.to_vec()).collect();
        (self.copied, self.failed.clone(), planned)
    }
}

/// What passed, frame by frame.
fn read_frames(passed: &[(bool, Vec<u8>)]) -> (Vec<(bool, Message)>, usize) {
    let (mut rests, mut said, mut bytes) = ([Vec::new(), Vec::new()], Vec::new(), 0);
    for (is_near, piece) in passed {
        let rest: &mut Vec<u8> = &mut rests[usize::from(*is_near)];
        rest.extend_from_slice(piece);
        while let Some(head) = rest.first_chunk::<FRAME_HEAD_BYTES>() {
            let head = FrameHead::decode(*head).unwrap();
            let len = FRAME_HEAD_BYTES + head.body_bytes;
            if rest.len() < len {
                break;
            }
            let frame: Vec<u8> = rest.drain(..len).collect();
            let message = match head.kind {
                FrameKind::Control => Some(Message::from_bytes(&frame[FRAME_HEAD_BYTES..]).unwrap()),
                _ => None,
            };
            if !matches!(message, Some(Message::Progress(_))) {
                bytes += len;
            }
            let is_said = |message: &Message| !matches!(message, Message::Progress(_) | Message::Hello(_));
            said.extend(message.filter(is_said).map(|message| (*is_near, message)));
        }
    }
    (said, bytes)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Up,
    Down,
}

fn node(dir: &Path) -> Node {
    Node::passing(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap()
}

/// Copies `from` to `to`; the far end knows digests, or not.
fn run(way: Way, from: &Path, to: &Path, options: &TreeOptions, knows_digests: bool) -> Ran {
    let home = tempfile::tempdir().unwrap();
    let far_node = node(home.path());
    let (near, far) = channels(64 * 1024);
    let passed = Passed::default();
    let tap = Tap { inner: near, passed: passed.clone() };
    let names = vec![Vec::new()];
    let (role, path) = match way {
        Way::Up => (CopyRole::Receive, to),
        Way::Down => (CopyRole::Send, from),
    };
    let path = path.as_os_str().as_encoded_bytes().to_vec();
    let mut tree = tree_message(role, vec![path], names.clone(), options, false).unwrap();
    let digests = digest_options(&tree, &names);
    let knows = Knows { digests: knows_digests, ..Knows::default() };
    let features = if knows_digests { vec![feature::TREE_DIGESTS.to_owned()] } else { Vec::new() };
    let hello = Hello { version: PROTOCOL_VERSION, features, required: Vec::new(), agent: "far".into() };
    let mut preface = Vec::new();
    if way == Way::Up {
        push_control(&mut preface, &Message::Hello(hello));
    }
    let told = Told::default();
    let (alike, done) = thread::scope(|scope| {
        let started = match way {
            Way::Up => {
                tree.digests = digests.is_some().then_some(true);
                None
            }
            Way::Down => {
                let landing =
                    landing(&Origin::Anywhere, to, &names, false, Some(Above::IsThere), None).unwrap();
                let comparing = Comparing::start(&tree, &names, &landing, false);
                let alike = comparing.as_ref().map(Comparing::alike).unwrap_or_default();
                tree.digests = comparing.is_some().then_some(true);
                Some((landing, comparing, alike))
            }
        };
        let (tree, far_node) = (&tree, &far_node);
        let far = scope.spawn(move || {
            let asked = AskedTrees { tree, chosen: None };
            far_node.far_trees(far, asked, preface, knows, None, &Stop::new())
        });
        let ended = match started {
            None => told.send(tap, tree, digests, from),
            Some((landing, comparing, alike)) => {
                let mut tap = tap;
                let on_failed = |entry: &EntryFailed| told.failed(entry);
                let on_planned = |items: &[PlannedItem]| told.planned(items);
                let make = || {
                    let writer = TreeWriter::new(landing, write_options(tree))
                        .with_changes(changes(tree, &sync::beside_here)?);
                    Ok(Writing::new(writer, 1, false, &on_failed).telling(&on_planned).comparing(comparing))
                };
                (alike, take(&mut tap, Vec::new(), make, None, &mut |_| Ok(()), LONG))
            }
        };
        let _ = far.join().unwrap();
        ended
    });
    let (said, bytes) = read_frames(&lock(&passed));
    let (failed, planned) = (lock(&told.failed).clone(), lock(&told.planned).clone());
    let counted = Counted::default();
    let copied = alike.added_to(TreeCopied::of(&done.unwrap(), failed.len() as u64, &counted));
    Ran { said, bytes, copied, failed, planned }
}

/// What the near end hears.
#[derive(Default)]
struct Told {
    failed: Mutex<Vec<String>>,
    planned: Mutex<Vec<PlannedItem>>,
}

impl Told {
    fn failed(&self, entry: &EntryFailed) {
        lock(&self.failed).push(entry.text.clone());
    }

    fn planned(&self, items: &[PlannedItem]) {
        lock(&self.planned).extend(items.iter().cloned());
    }

    fn send(
        &self,
        tap: Tap,
        tree: &dray_core::message::Tree,
        digests: Option<DigestOptions>,
        from: &Path,
    ) -> (Alike, dray_core::Result<dray_core::message::TreeDone>) {
        let stop = Stop::new();
        let walk = walk_options(tree, &[Vec::new()]).unwrap();
        let source = WalkSource::new(vec![slashed(from)], walk, names_owners(tree), stop.clone())
            .telling_listed(deletes(tree));
        let mut source = Telling::new(source, tree, digests, vec![slashed(from)], stop);
        let alike = source.alike();
        let mut failing = Failing { source: &mut source, told: self };
        let mut heard = |message: Option<Message>| {
            match message {
                Some(Message::EntryFailed(entry)) => self.failed(&entry),
                Some(Message::Planned(planned)) => self.planned(&planned.items),
                _ => {}
            }
            Ok(())
        };
        (alike, send(Box::new(tap), Vec::new(), &mut failing, None, &mut heard, &|| LONG))
    }
}

/// Hears of what fails here.
struct Failing<'a> {
    source: &'a mut Telling,
    told: &'a Told,
}

impl dray_transfer::tree::TreeSource for Failing<'_> {
    fn listen(&mut self, words: mpsc::Receiver<Message>) {
        self.source.listen(words);
    }

    fn next_batch(&mut self) -> Option<dray_transfer::tree::Batch> {
        let batch = self.source.next_batch()?;
        batch.failed.iter().for_each(|entry| self.told.failed(entry));
        Some(batch)
    }

    fn batches_ahead(&self) -> usize {
        self.source.batches_ahead()
    }
}

fn slashed(path: &Path) -> PathBuf {
    path.join("")
}

/// As `sync -a`, and what `with` adds.
fn archive(with: impl FnOnce(&mut SyncOptions)) -> TreeOptions {
    let mut sync = SyncOptions { itemize: true, ..SyncOptions::archive() };
    with(&mut sync);
    TreeOptions { recursive: true, sync: Some(sync), ..TreeOptions::default() }
}

/// Gives a file or directory a time of its own.
fn age(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, 123_456_789);
    File::open(path).unwrap().set_modified(time).unwrap();
}

/// A source, and two destinations that have all of it.
struct Twins {
    place: tempfile::TempDir,
    way: Way,
}

impl Twins {
    fn new(way: Way, options: &TreeOptions) -> Twins {
        let twins = Twins { place: tempfile::tempdir().unwrap(), way };
        for directory in 0..DIRECTORIES {
            let path = twins.from().join(format!("directory-{directory:03}"));
            fs::create_dir_all(&path).unwrap();
            for file in 0..FILES {
                let path = path.join(format!("file-{file:03}"));
                fs::write(&path, b"content").unwrap();
                age(&path, (directory * FILES + file) as u64);
            }
            age(&path, 7);
        }
        for is_new in [true, false] {
            fs::create_dir(twins.to(is_new)).unwrap();
            run(way, &twins.from(), &twins.to(is_new), options, is_new);
        }
        twins
    }

    fn from(&self) -> PathBuf {
        self.place.path().join("from")
    }

    /// The destination of the far end that knows digests, or of the one that does not.
    fn to(&self, knows_digests: bool) -> PathBuf {
        self.place.path().join(if knows_digests { "new" } else { "old" })
    }

    /// Runs with a far end that knows digests and with one that does not: the outcome is the same.
    fn both(&self, options: &TreeOptions) -> (Ran, Ran) {
        let [new, old] =
            [true, false].map(|knows| run(self.way, &self.from(), &self.to(knows), options, knows));
        assert_eq!(new.account(), old.account(), "{:?}", self.way);
        assert_eq!(listed(&self.to(true)), listed(&self.to(false)), "{:?}", self.way);
        assert_eq!(old.count(|message| matches!(message, Message::Digests(_))), 0);
        (new, old)
    }
}

/// Everything below `root`: kind, size, time, bits and link of each path.
fn listed(root: &Path) -> BTreeMap<PathBuf, (u32, u64, i64, i64)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let size = if stat.is_dir() { 0 } else { stat.size() };
        found.insert(
            path.strip_prefix(root).unwrap().to_owned(),
            (stat.mode(), size, stat.mtime(), stat.mtime_nsec()),
        );
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

const WAYS: [Way; 2] = [Way::Up, Way::Down];

/// Target P3, ADR 27: where nothing changed no entry is told, whichever end sends, and the account is that of a run that told all.
#[test]
fn what_is_alike_is_not_told() {
    for way in WAYS {
        let options = archive(|sync| sync.delete = true);
        let twins = Twins::new(way, &options);
        let (new, old) = twins.both(&options);
        assert_eq!((new.copied.entries, new.copied.unchanged), (ENTRIES, (DIRECTORIES * FILES) as u64));
        assert_eq!((new.entries_told(), old.entries_told()), (0, ENTRIES as usize), "{way:?}");
        assert!(new.planned.is_empty() && new.failed.is_empty());
        // 41 digests of 16 bytes, and the frames of three messages.
        assert!(new.bytes < 1000 && old.bytes > 20_000, "{way:?}: {} and {} bytes", new.bytes, old.bytes);
        // Wanted and digests where the far end receives, digests and done.
        assert_eq!(new.turns(), if way == Way::Up { 2 } else { 1 }, "{:?}", new.said);
        // Twice the same: nothing was kept of the first run.
        assert_eq!(twins.both(&options).0.entries_told(), 0);
    }
}

/// Target P3: what changed is told with the directories on the way to it, after one more round trip.
#[test]
fn one_changed_file_costs_its_directory() {
    for way in WAYS {
        let options = archive(|sync| sync.delete = true);
        let twins = Twins::new(way, &options);
        let changed = twins.from().join("directory-007/file-003");
        fs::write(&changed, b"another content").unwrap();
        age(&changed, 99_999);
        let (new, old) = twins.both(&options);
        assert_eq!(fs::read(twins.to(true).join("directory-007/file-003")).unwrap(), b"another content");
        assert_eq!(new.copied.files, 1);
        assert_eq!(new.entries_told(), 1 + DIRECTORIES + FILES, "{way:?}");
        assert!(new.bytes * 4 < old.bytes, "{way:?}: {} and {} bytes", new.bytes, old.bytes);
        assert_eq!(twins.both(&options).0.entries_told(), 0, "{way:?}");
        // Of the same size and another time, to the nanosecond; and of the same time and another size.
        let time = fs::metadata(&changed).unwrap().modified().unwrap();
        File::open(&changed).unwrap().set_modified(time + Duration::from_nanos(1)).unwrap();
        assert_eq!(twins.both(&options).0.entries_told(), 1 + DIRECTORIES + FILES, "{way:?}");
        fs::write(&changed, b"a longer content than before").unwrap();
        File::open(&changed).unwrap().set_modified(time + Duration::from_nanos(1)).unwrap();
        assert_eq!(twins.both(&options).0.copied.files, 1, "{way:?}");
    }
}

/// Target P3: a directory that is new, one that went, a name too many at the destination, and one file that became a link.
#[test]
fn names_that_came_and_went_are_told() {
    for way in WAYS {
        let options = archive(|sync| sync.delete = true);
        let twins = Twins::new(way, &options);
        let from = twins.from();
        fs::create_dir(from.join("directory-new")).unwrap();
        fs::write(from.join("directory-new/file"), b"new").unwrap();
        fs::remove_dir_all(from.join("directory-011")).unwrap();
        fs::remove_file(from.join("directory-012/file-000")).unwrap();
        symlink("file-001", from.join("directory-012/file-000")).unwrap();
        age(&from.join("directory-012"), 7);
        for knows in [true, false] {
            // The time of its directory tells nothing of it.
            fs::write(twins.to(knows).join("directory-020/extra"), b"extra").unwrap();
            age(&twins.to(knows).join("directory-020"), 7);
        }
        let (new, _) = twins.both(&options);
        let deleted =
            |name: &str| new.planned.iter().any(|item| item.action == 4 && *item.path == *name.as_bytes());
        assert!(deleted("directory-020/extra") && deleted("directory-011/"), "{:?}", new.planned);
        assert!(!twins.to(true).join("directory-020/extra").exists());
        assert_eq!(listed(&twins.to(true)), listed(&from), "{way:?}");
        let told = 1 + DIRECTORIES + 1 + FILES + FILES;
        assert_eq!(
            new.entries_told(),
            told,
            "{way:?}: the root, its directories, two of those, and the new file"
        );
        assert_eq!(twins.both(&options).0.entries_told(), 0);
    }
}

/// ADR 27: what the rules leave out at both ends goes into no digest; where it is to be deleted it is seen.
#[test]
fn rules_count_at_both_ends() {
    for way in WAYS {
        let plain = |sync: &mut SyncOptions| {
            sync.delete = true;
            sync.rules = vec![b"-*.o".to_vec()];
        };
        let options = archive(plain);
        let twins = Twins::new(way, &options);
        fs::write(twins.from().join("directory-001/here.o"), b"left out").unwrap();
        age(&twins.from().join("directory-001"), 7);
        for knows in [true, false] {
            fs::write(twins.to(knows).join("directory-002/there.o"), b"protected").unwrap();
            age(&twins.to(knows).join("directory-002/there.o"), 8);
            age(&twins.to(knows).join("directory-002"), 7);
        }
        assert_eq!(twins.both(&options).0.entries_told(), 0, "{way:?}");
        assert!(twins.to(true).join("directory-002/there.o").exists());
        // Hidden at the sender, and not protected: it goes.
        let hidden = archive(|sync| {
            plain(sync);
            sync.delete_excluded = true;
        });
        let (new, _) = twins.both(&hidden);
        assert!(!twins.to(true).join("directory-002/there.o").exists(), "{way:?}");
        assert_eq!(new.entries_told(), 1 + DIRECTORIES + FILES, "{way:?}");
        // Files of rules in directories are the sender's own.
        let merged = archive(|sync| sync.rules = vec![b": .rules".to_vec()]);
        let (new, _) = twins.both(&merged);
        assert_eq!(new.count(|message| matches!(message, Message::Digests(_))), 0, "{way:?}");
    }
}

/// S81: what the sender cannot list has no digest, nor has anything above it, so that it is told again in each run and nothing is deleted.
#[test]
fn what_cannot_be_listed_deletes_nothing() {
    for way in WAYS {
        let options = archive(|sync| sync.delete = true);
        let twins = Twins::new(way, &options);
        // Deeper than any tree may be.
        let mut deep = twins.from().join("directory-030");
        deep.extend(std::iter::repeat_n("d", 515));
        fs::create_dir_all(&deep).unwrap();
        run(way, &twins.from(), &twins.to(true), &options, false);
        run(way, &twins.from(), &twins.to(false), &options, false);
        for knows in [true, false] {
            for name in ["directory-031/extra", "extra"] {
                fs::write(twins.to(knows).join(name), b"extra").unwrap();
                age(&twins.to(knows).join(name), 8);
            }
        }
        let (new, old) = twins.both(&options);
        assert!(new.copied.failed > 0 && new.entries_told() < old.entries_told(), "{way:?}");
        assert!(new.failed.iter().any(|text| text.contains("nothing was deleted")), "{:?}", new.failed);
        assert!(twins.to(true).join("extra").exists() && twins.to(true).join("directory-031/extra").exists());
        // Without anything to delete it is told as well.
        fs::remove_file(twins.to(true).join("extra")).unwrap();
        fs::remove_file(twins.to(true).join("directory-031/extra")).unwrap();
        age(&twins.to(true).join("directory-031"), 7);
        let again = run(way, &twins.from(), &twins.to(true), &options, true);
        assert!(again.copied.failed > 0, "{way:?}");
    }
}

/// ADR 27: files of several names are told where hard links are kept, and only there.
#[test]
fn hard_links_are_told() {
    for way in WAYS {
        let options = archive(|sync| sync.hard_links = true);
        let twins = Twins::new(way, &archive(|_| {}));
        let from = twins.from();
        fs::hard_link(from.join("directory-001/file-001"), from.join("directory-002/linked")).unwrap();
        age(&from.join("directory-002"), 7);
        twins.both(&options);
        let inode = |path: &str| fs::metadata(twins.to(true).join(path)).unwrap().ino();
        assert_eq!(inode("directory-001/file-001"), inode("directory-002/linked"));
        let (new, old) = twins.both(&options);
        assert_eq!(new.entries_told(), 1 + DIRECTORIES + 2 * FILES + 1, "{way:?}");
        assert!(new.bytes * 4 < old.bytes, "{way:?}");
        assert_eq!(twins.both(&archive(|_| {})).0.entries_told(), 0, "{way:?}");
    }
}

/// ADR 27: digests say nothing where contents or something else than kind, size, time and what is kept decides, nor of what is on disk.
#[test]
fn what_digests_do_not_say_is_told() {
    let twins = Twins::new(Way::Up, &archive(|_| {}));
    let changes: [fn(&mut SyncOptions); 5] = [
        |sync| sync.checksum = true,
        |sync| sync.size_only = true,
        |sync| sync.ignore_times = true,
        |sync| sync.ignore_existing = true,
        |sync| sync.times = false,
    ];
    let changed = changes.into_iter().map(archive);
    let chmod = TreeOptions { chmod: Some(b"g-w".to_vec()), ..archive(|_| {}) };
    let flat = TreeOptions { recursive: false, ..archive(|_| {}) };
    let fsync = TreeOptions { fsync: true, ..archive(|_| {}) };
    for options in changed.chain([chmod, flat, fsync]) {
        let names = [Vec::new()];
        let tree =
            tree_message(CopyRole::Send, vec![b"x".to_vec()], names.to_vec(), &options, false).unwrap();
        assert!(digest_options(&tree, &names).is_none(), "{options:?}");
    }
    // What is older stays, and what is not there is not made: where all is alike that says nothing.
    let options = archive(|sync| (sync.update, sync.existing) = (true, true));
    assert_eq!(twins.both(&options).0.entries_told(), 0);
}

/// S57: a dry run says the same, and changes nothing.
#[test]
fn a_dry_run_tells_as_little() {
    let twins = Twins::new(Way::Up, &archive(|_| {}));
    let dry = TreeOptions { dry_run: true, ..archive(|sync| sync.delete = true) };
    assert_eq!(twins.both(&dry).0.entries_told(), 0);
    fs::remove_file(twins.from().join("directory-005/file-005")).unwrap();
    let (new, _) = twins.both(&dry);
    assert!(new.planned.iter().any(|item| item.action == 4), "{:?}", new.planned);
    assert!(twins.to(true).join("directory-005/file-005").exists());
    assert_eq!(new.entries_told(), 1 + DIRECTORIES + FILES - 1);
}

/// ADR 27: a tree of few entries is told at once, and so is one of which nothing is there.
#[test]
fn nothing_waits_for_digests_that_say_nothing() {
    for way in WAYS {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir(&from).unwrap();
        for number in 0..20 {
            fs::write(from.join(number.to_string()), b"few").unwrap();
        }
        for files in [20, 0] {
            let ran = run(way, &from, &to, &archive(|_| {}), true);
            assert_eq!((ran.entries_told(), ran.copied.files), (21, files), "{way:?}");
            assert_eq!(ran.count(|message| matches!(message, Message::Digests(_))), 0);
        }
        let twins = Twins::new(way, &archive(|_| {}));
        let ran = run(way, &twins.from(), &place.path().join("elsewhere"), &archive(|_| {}), true);
        assert_eq!(ran.count(|message| matches!(message, Message::Digests(_))), 0, "{way:?}");
        assert_eq!(ran.copied.files, (DIRECTORIES * FILES) as u64);
        // The same into a directory that was made for it, and in one that has been filled it is told.
        let made = place.path().join("made");
        fs::create_dir(&made).unwrap();
        for (digests, files) in [(0, DIRECTORIES * FILES), (1, 0)] {
            let ran = run(way, &twins.from(), &made, &archive(|_| {}), true);
            assert_eq!(ran.count(|message| matches!(message, Message::Digests(_))), digests, "{way:?}");
            assert_eq!(ran.copied.files, files as u64);
        }
    }
}

/// ADR 27: a receiver whose scan does not end has nothing alike, and a copy that is stopped waits for none; the scan is told to end.
#[test]
fn a_scan_that_does_not_end_is_not_waited_for() {
    let digests = Digests { digests: vec![1; 32].into(), owner: None, entries: 5 };
    let endless = || {
        let (ended, ends) = mpsc::channel();
        let comparing = Comparing::with(move |names_max| {
            while names_max.load(Ordering::Relaxed) > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).unwrap();
            let options = DigestOptions::default();
            Scan::new(&options, None, &|_| true).places(std::iter::empty())
        });
        (comparing.unwrap(), ends)
    };
    let (comparing, ends) = endless();
    let same = comparing.compare_within(&digests, Duration::ZERO).unwrap().unwrap();
    assert_eq!(same.bits(2).unwrap(), [false, false]);
    ends.recv_timeout(LONG).unwrap();
    let (mut comparing, ends) = endless();
    comparing.stop_with(Arc::new(AtomicBool::new(true)));
    assert_eq!(comparing.compare_within(&digests, LONG).unwrap_err().kind(), ErrorKind::Interrupted);
    ends.recv_timeout(LONG).unwrap();
}

/// ADR 27: digests that nobody asked for end the copy.
#[test]
fn digests_that_nobody_wants_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (to, home) = (place.path().join("to"), place.path().join("home"));
    fs::create_dir_all(&to).unwrap();
    let path = to.as_os_str().as_encoded_bytes().to_vec();
    let tree =
        tree_message(CopyRole::Receive, vec![path], vec![Vec::new()], &archive(|_| {}), false).unwrap();
    let far_node = node(&home);
    let (mut near, far) = channels(64 * 1024);
    let digests = Digests { digests: vec![1; 16].into(), owner: None, entries: 1 };
    let mut out = Vec::new();
    push_control(&mut out, &Message::Digests(digests));
    near.write_all(&out).unwrap();
    let knows = Knows { digests: true, ..Knows::default() };
    let asked = AskedTrees { tree: &tree, chosen: None };
    let ended = far_node.far_trees(far, asked, Vec::new(), knows, None, &Stop::new());
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Protocol);
}
