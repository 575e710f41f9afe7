//! What fills the index: which files, when, and what is not read; and what becomes of one that fails.

mod left_alone;

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use dray_client::types::IndexQuestion;
use dray_core::store::Store;
use dray_store::index::{Scope, look};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const MIB: usize = 1 << 20;
/// What the index may take in these tests.
const INDEX_MIB: u64 = 512;

/// A store and an index.
struct Bed {
    dir: tempfile::TempDir,
    store: LocalStore,
    indexing: Indexing,
    memory: RefCell<Memory>,
    free_bytes: Cell<u64>,
    rests: Cell<bool>,
    /// What is mounted, as the kernel tells.
    mounts: RefCell<String>,
    told: Mutex<Vec<Event>>,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(&dir.path().join("store")).unwrap();
        let bed = Bed {
            dir,
            store,
            indexing: Indexing::default(),
            memory: RefCell::default(),
            free_bytes: Cell::new(0),
            rests: Cell::new(false),
            mounts: RefCell::default(),
            told: Mutex::default(),
        };
        bed.indexing.set_wanted(Some(INDEX_MIB));
        bed
    }

    /// A file that was put.
    fn put(&self, name: &str, bytes: &[u8]) -> Oid {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        self.store.put_file(&path, &|_| {}).unwrap().oid()
    }

    fn try_round(
        &self,
        is_busy: &dyn Fn() -> bool,
        recipe: Option<Arc<Recipe>>,
        is_stirred: bool,
    ) -> Result<bool> {
        let told = &self.told;
        let means = Means {
            root: self.dir.path().join("index"),
            free_bytes: self.free_bytes.get(),
            store: &self.store,
            is_busy,
            pace: if self.rests.get() { Pace::of_each(1) } else { Pace::new(0) },
            recipe_of: &|_| recipe.clone(),
            mounts: &|| Mounts::of(self.mounts.borrow().as_bytes()),
            observer: &|event: Event| told.lock().unwrap().push(event),
        };
        self.indexing.round(&means, &mut self.memory.borrow_mut(), is_stirred)
    }

    fn round_with(&self, is_busy: &dyn Fn() -> bool, recipe: Option<Arc<Recipe>>) -> Result<bool> {
        self.try_round(is_busy, recipe, true)
    }

    fn round(&self) {
        self.round_with(&|| false, None).unwrap();
    }

    /// As another daemon after this one, with what is on disk.
    fn start_again(&self) {
        self.close();
        *self.memory.borrow_mut() = Memory::default();
        self.indexing.set_wanted(Some(INDEX_MIB));
    }

    /// Closes the index, which stays.
    fn close(&self) {
        self.indexing.close(&mut self.memory.borrow_mut());
        self.memory.borrow_mut().open_mib = 0;
    }

    /// Bytes read for the index, and the files in it.
    fn figures(&self) -> (u64, u64) {
        let state = self.indexing.state();
        (state.read_bytes, state.files)
    }

    /// Whether the index knows something like an object of that size.
    fn is_hopeful(&self, size_bytes: usize) -> bool {
        self.is_hopeful_in("", size_bytes)
    }

    fn is_hopeful_in(&self, directory: &str, size_bytes: usize) -> bool {
        let directory = fs::canonicalize(self.dir.path().join(directory)).unwrap();
        // As if the last hope had not been vain.
        self.indexing.hopes.asked(&directory, true);
        let opened = fs::File::open(&directory).unwrap();
        let question = IndexQuestion { size_bytes: Some(size_bytes as u64), ..IndexQuestion::default() };
        self.indexing.ask(opened.as_fd(), &question).unwrap().hopeful
    }
}

fn random(len: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

fn recipe_of(bytes: &[u8]) -> Arc<Recipe> {
    let mut read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    };
    let profile = dray_core::chunker::Profile::for_size(bytes.len() as u64).unwrap();
    Arc::new(Recipe::read(bytes.len() as u64, profile, &mut read, &mut |_| {}).unwrap())
}

/// Issue 5.5: what is put is cut once; what is too small is not; what changed is cut again; when it is not wanted there is none, and
/// when it was lost it is made anew.
#[test]
fn what_is_put_is_cut_once() {
    let bed = Bed::new();
    let size = 2 * MIB;
    bed.put("a", &random(size, 1));
    bed.put("small", &random(1000, 2));
    assert!(!bed.is_hopeful(size), "an answer while there is no index yet");
    bed.round();
    assert_eq!(bed.figures(), (size as u64, 1));
    assert!(bed.is_hopeful(size));
    bed.round();
    assert_eq!(bed.figures(), (size as u64, 1), "read again for nothing");
    bed.put("a", &random(size + 9, 3));
    bed.memory.borrow_mut().progress.rest_until(Instant::now() + REST_MAX);
    bed.round();
    assert_eq!(bed.figures().0, size as u64, "what changes all the time is read all the time");
    bed.memory.borrow_mut().progress.rest_until(Instant::now());
    bed.round();
    assert_eq!(bed.figures(), ((2 * size + 9) as u64, 1));
    bed.start_again();
    bed.round();
    let read = (2 * size + 9) as u64;
    assert_eq!(bed.figures(), (read, 1));
    bed.indexing.set_wanted(None);
    bed.round();
    assert_eq!((bed.indexing.state().open, bed.is_hopeful(size)), (false, false));
    let left: Vec<_> = fs::read_dir(bed.dir.path().join("index")).unwrap().flatten().collect();
    assert!(left.len() == 1 && left[0].file_name() == "lock", "{left:?} is left of what is not wanted");
    bed.indexing.set_wanted(Some(INDEX_MIB));
    bed.round();
    assert_eq!(bed.figures(), (read + (size + 9) as u64, 1), "it is made anew");
    assert!(bed.told.lock().unwrap().is_empty());
    bed.close();
    fs::remove_dir_all(bed.dir.path().join("index")).unwrap();
    bed.round();
    assert_eq!(bed.figures(), (read + 2 * (size + 9) as u64, 1), "it is made anew");
}

/// "A cheap generation": where no object came or went, and nobody stirred, no record is read, and where one came they are.
#[test]
fn nothing_is_looked_through_for_nothing() {
    let bed = Bed::new();
    bed.put("a", &random(MIB, 11));
    bed.round();
    let reads = |is_stirred| {
        let asked = Cell::new(0);
        let count = || {
            asked.set(asked.get() + 1);
            false
        };
        bed.try_round(&count, None, is_stirred).unwrap();
        asked.get()
    };
    assert_eq!(reads(false), 1, "asked once whether anything may be done");
    assert!(reads(true) > 1);
    assert_eq!(reads(false), 1);
    bed.put("b", &random(MIB, 12));
    assert!(reads(false) > 2);
    assert_eq!(bed.figures().1, 2);
}

/// Y5: "checked before EVERY disk I/O": as long as bytes move nothing is read, however far the file was read before; the gauge is
/// looked at before each read, of a record as of a file. The end of the daemon is not waited for.
#[test]
fn nothing_is_read_while_bytes_move() {
    let bed = Bed::new();
    let size = 2 * MIB;
    bed.put("a", &random(size, 4));
    let (asked, read_before) = (Cell::new(0), Cell::new(0));
    let is_busy = || {
        asked.set(asked.get() + 1);
        let read = bed.indexing.read_bytes.load(Ordering::Relaxed);
        // Two times busy before each read: nothing was read since the first of them.
        let is_busy = asked.get() % 3 != 0;
        if asked.get() % 3 == 1 {
            read_before.set(read);
        }
        assert_eq!(read, read_before.get(), "something was read while bytes moved");
        is_busy
    };
    bed.round_with(&is_busy, None).unwrap();
    assert_eq!(bed.figures(), (size as u64, 1));
    let reads = asked.get() / 3;
    assert!(reads >= size / (256 << 10), "{reads} reads for {size} bytes");
    // Busy from some question on: what was read is what was asked for before, and half a file is not in the index.
    for busy_from in 1..8 {
        let bed = Bed::new();
        bed.put("b", &random(size, 5));
        let (asked, read_before) = (Cell::new(0), Cell::new(None));
        let end_it = || {
            asked.set(asked.get() + 1);
            if asked.get() == busy_from {
                read_before.set(Some(bed.indexing.read_bytes.load(Ordering::Relaxed)));
            }
            if asked.get() > busy_from {
                bed.indexing.end();
            }
            asked.get() >= busy_from
        };
        bed.round_with(&end_it, None).unwrap();
        assert_eq!(Some(bed.figures().0), read_before.get(), "{busy_from}");
        assert_eq!(bed.figures().1, 0);
    }
}

/// "A file that was put with a recipe made already is not cut twice", nor is anything written for it while bytes move; and what the recipe
/// tells is found.
#[test]
fn a_recipe_that_was_made_is_used() {
    let bed = Bed::new();
    let bytes = random(3 * MIB, 6);
    bed.put("a", &bytes);
    let asked = Cell::new(0);
    let busy_twice = || {
        asked.set(asked.get() + 1);
        assert_eq!(bed.figures().1, 0);
        asked.get() % 3 != 0
    };
    bed.round_with(&busy_twice, Some(recipe_of(&bytes))).unwrap();
    assert_eq!(bed.figures(), (0, 1));
    // Once for the index and the record that needs one, the round, the record, the file and the recipe.
    assert_eq!(asked.get(), 6 * 3);
    let mut keys = Vec::new();
    recipe_of(&bytes)
        .chunks(&mut |placed| {
            keys.push(dray_store::index::key(&placed.chunk));
            Ok(())
        })
        .unwrap();
    let index = bed.indexing.open().unwrap();
    let root = fs::canonicalize(bed.dir.path()).unwrap();
    let dev = look(&root.join("a")).unwrap().dev;
    let look_up = |directory: &Path| {
        let opened = fs::File::open(directory).unwrap();
        index.look_up(&keys, Scope { opened: opened.as_fd(), directory, dev }, &|| false).unwrap()
    };
    assert!(look_up(&root).places.iter().all(Option::is_some));
    // A file that is another by now, and was never put, is not read.
    fs::write(bed.dir.path().join("a"), random(3 * MIB, 7)).unwrap();
    assert!(look_up(&root).places.iter().all(Option::is_none));
    bed.round_with(&|| false, Some(recipe_of(&bytes))).unwrap();
    assert_eq!(bed.figures(), (0, 0), "what was there is forgotten");
}

/// "No circles": where there is room for less than there is, what is left out is not read in every round, nor after a start; and what was
/// taken in stays.
#[test]
fn what_has_no_room_is_not_read_again() {
    let bed = Bed::new();
    // 144 MiB are the journal's; one MiB more has room for 8,192 chunks, and one file may take half of them.
    bed.indexing.set_wanted(Some(145));
    let size = 40 * MIB;
    for number in 0..4 {
        bed.put(&format!("f{number}"), &random(size, number));
    }
    bed.round();
    let (read, files) = bed.figures();
    assert_eq!((read, files), (3 * size as u64, 3));
    for _ in 0..2 {
        bed.round();
        bed.memory.borrow_mut().progress = Progress::default();
        bed.round();
    }
    bed.start_again();
    bed.indexing.set_wanted(Some(145));
    bed.round();
    assert_eq!(bed.figures(), (read, files));
}

/// A file that cannot be read, or is none, stops nobody; another process that has the index is told of, and waited for.
#[test]
fn failures_are_borne() {
    let bed = Bed::new();
    bed.put("gone", &random(MIB, 8));
    bed.put("there", &random(MIB, 9));
    fs::remove_file(bed.dir.path().join("gone")).unwrap();
    let (other, _) = ChunkIndex::open(&bed.dir.path().join("index"), IndexLimits::default()).unwrap();
    assert_eq!(bed.round_with(&|| false, None).unwrap_err().kind(), ErrorKind::Refused);
    assert!(!bed.is_hopeful(MIB));
    drop(other);
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
}

/// "ENOSPC waits with doubling instead of starting anew": a full disk leaves what is in the index, and more comes when there is room.
#[test]
fn a_full_disk_is_waited_for() {
    let bed = Bed::new();
    bed.put("a", &random(MIB, 13));
    bed.round();
    bed.put("b", &random(MIB, 14));
    bed.start_again();
    bed.free_bytes.set(u64::MAX);
    for _ in 0..3 {
        assert_eq!(bed.round_with(&|| false, None).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(bed.figures(), (MIB as u64, 1));
        assert!(bed.is_hopeful(MIB));
    }
    bed.start_again();
    bed.free_bytes.set(0);
    bed.round();
    assert_eq!(bed.figures(), (2 * MIB as u64, 2));
    assert!(bed.told.lock().unwrap().is_empty(), "nothing was made anew");
    let rests: Vec<Duration> = (1..20).map(rest_after).collect();
    assert!(rests.windows(2).all(|rest| rest[1] == REST_MAX || rest[1] == 2 * rest[0]));
    assert_eq!((rest_after(1), rest_after(u32::MAX)), (2 * ROUND, REST_MAX));
}

/// "Give up until restart after a few resets": an index that is damaged each time it is opened is not filled again and again.
#[test]
fn what_is_damaged_again_and_again_is_given_up() {
    let bed = Bed::new();
    bed.put("a", &random(MIB, 15));
    bed.round();
    let damage = || fs::write(bed.dir.path().join("index/format"), "other").unwrap();
    let close = || {
        bed.close();
        damage();
    };
    for number in 1..=u64::from(ANEW_MAX) {
        close();
        bed.round();
        assert_eq!(bed.figures(), ((number + 1) * MIB as u64, 1));
        assert_eq!(bed.told.lock().unwrap().len() as u64, number, "told each time");
    }
    close();
    for _ in 0..2 {
        let error = bed.round_with(&|| false, None).unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.advice().is_some(), "{error}");
        assert!(!bed.indexing.state().open && !bed.is_hopeful(MIB));
    }
    bed.start_again();
    bed.round();
    assert!(bed.is_hopeful(MIB));
}

/// A question that is under way when the index is closed keeps nobody: it is opened again when that is over.
#[test]
fn a_question_does_not_keep_the_index_from_closing() {
    let bed = Bed::new();
    bed.put("a", &random(MIB, 16));
    bed.round();
    let asking = bed.indexing.open().unwrap();
    bed.indexing.set_wanted(Some(INDEX_MIB + 1));
    bed.round();
    assert!(!bed.indexing.state().open);
    assert_eq!(Arc::strong_count(&asking), 2, "the question would be the one that closes it");
    for _ in 0..2 {
        bed.round();
        assert!(bed.told.lock().unwrap().is_empty() && !bed.indexing.state().open);
        assert_eq!(Arc::strong_count(&asking), 2, "the question would be the one that closes it");
    }
    drop(asking);
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
}

/// "Damage is no event", also where only a thread of the library reads what is damaged: when that ended twice the index is begun anew,
/// unless the disk refused something meanwhile; and each closing makes the next one wait longer, however well it is in between.
#[test]
fn a_library_that_stops_again_is_damage() {
    let mut memory = Memory::default();
    assert!(!memory.bear(Health::Stopped, true));
    memory.forget_outages();
    assert!(memory.bear(Health::Stopped, true));
    for (between, has_room) in [(Health::Failed, true), (Health::Stopped, false)] {
        let mut memory = Memory::default();
        assert!(!memory.bear(Health::Stopped, true));
        assert!(!memory.bear(between, has_room));
        assert!(!memory.bear(Health::Stopped, true));
        memory.forget_outages();
        assert_eq!(memory.outages, 3);
        assert!(rest_after(memory.outages) > rest_after(1));
    }
}

/// An index that the disk refused something is closed, is opened in the next round, and nothing of the store is read again for that. In a
/// process of its own: what is refused there is that any file becomes larger.
#[test]
fn an_index_that_was_closed_is_not_filled_again() {
    let program = std::env::current_exe().unwrap();
    // A write that is refused is an error there, and no signal.
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program);
    child.args(["--exact", "daemon::indexing::tests::a_disk_that_refuses", "--ignored"]);
    child.env("INDEX_REFUSED", "1");
    let ran = child.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// What [`an_index_that_was_closed_is_not_filled_again`] has done in another process, and nothing without it.
#[test]
#[ignore = "a part of another test"]
fn a_disk_that_refuses() {
    if std::env::var_os("INDEX_REFUSED").is_none() {
        return;
    }
    let bed = Bed::new();
    bed.put("a", &random(MIB, 17));
    bed.round();
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(1), ..before }).unwrap();
    // That is to be written.
    fs::rename(bed.dir.path().join("a"), bed.dir.path().join("b")).unwrap();
    assert!(bed.is_hopeful(MIB));
    assert!(bed.try_round(&|| false, None, false).is_err());
    assert_eq!((bed.indexing.state().open, bed.memory.borrow().outages), (false, 1));
    setrlimit(Resource::Fsize, before).unwrap();
    let asked = Cell::new(0);
    let count = || {
        asked.set(asked.get() + 1);
        false
    };
    bed.try_round(&count, None, false).unwrap();
    assert!(bed.is_hopeful(MIB));
    assert_eq!(
        asked.get(),
        2,
        "before it is opened and before it is filled: the store was looked through again"
    );
}

/// A disk that is nearly full is told of once, however many bytes are free each time, and as what it is: what is in the index is used.
#[test]
fn a_full_disk_is_told_of_once() {
    let mut memory = Memory::default();
    let mut account = |kind, text: &str| memory.account(&Error::new(kind, text.to_owned()));
    let first = account(ErrorKind::NoSpace, "5 bytes are free");
    assert!(matches!(first, Some(Event::Note(text)) if text.contains("takes nothing in")));
    assert!(account(ErrorKind::NoSpace, "6 bytes are free").is_none());
    assert!(matches!(account(ErrorKind::Refused, "taken"), Some(Event::Warning(_))));
    assert!(account(ErrorKind::NoSpace, "7 bytes are free").is_none());
}

/// Where there is no room, the room of what was forgotten is given back, however little that is.
#[test]
fn what_was_forgotten_makes_room() {
    let bed = Bed::new();
    bed.put("a", &random(MIB, 18));
    bed.round();
    let index = bed.indexing.open().unwrap();
    index.forget_path(&fs::canonicalize(bed.dir.path().join("a")).unwrap()).unwrap();
    drop(index);
    assert!(bed.indexing.open().unwrap().has_dead());
    fs::remove_file(bed.dir.path().join("a")).unwrap();
    bed.start_again();
    bed.free_bytes.set(u64::MAX);
    bed.put("b", &random(MIB, 19));
    assert_eq!(bed.round_with(&|| false, None).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(!bed.indexing.open().unwrap().has_dead());
}

/// Y8: what is gone leaves before what is there, whatever their ages: the index is full of files that were removed, and one that is older than
/// they were gets in; the one that is there stays.
#[test]
fn what_is_gone_leaves_first() {
    let bed = Bed::new();
    // As in `what_has_no_room_is_not_read_again`: there is room for three.
    bed.indexing.set_wanted(Some(145));
    let size = 40 * MIB;
    for number in 0..4 {
        bed.put(&format!("f{number}"), &random(size, 30 + number));
    }
    bed.round();
    assert_eq!(bed.figures(), (3 * size as u64, 3));
    for number in [2, 3] {
        fs::remove_file(bed.dir.path().join(format!("f{number}"))).unwrap();
    }
    bed.memory.borrow_mut().progress = Progress::default();
    bed.round();
    assert_eq!(bed.figures(), (4 * size as u64, 2), "the oldest was read, and two are there");
}

/// S73: a file that was moved, and put again where it is now, is found there, and not read a second time; a record of the store that is older than what
/// the index learnt since does not undo that.
#[test]
fn what_was_moved_and_put_again_is_found_there() {
    let bed = Bed::new();
    let bytes = random(2 * MIB, 40);
    bed.put("a", &bytes);
    bed.round();
    let before = bed.figures();
    let deep = bed.dir.path().join("deep/er");
    fs::create_dir_all(&deep).unwrap();
    fs::rename(bed.dir.path().join("a"), deep.join("b")).unwrap();
    bed.round();
    assert!(!bed.is_hopeful_in("deep", bytes.len()), "nobody has told of it");
    bed.store.put_file(&deep.join("b"), &|_| {}).unwrap();
    bed.round();
    assert!(bed.is_hopeful_in("deep", bytes.len()));
    fs::rename(deep.join("b"), bed.dir.path().join("deep/c")).unwrap();
    bed.round();
    assert!(bed.is_hopeful_in("deep", bytes.len()), "it is met");
    bed.round();
    assert_eq!(bed.figures(), before);
}

/// Y5: a full index does not look at its files, on disks that may sleep, as long as nothing comes into the store; where one came it does, but not at what
/// lies on a mount that is left out by now.
#[test]
fn a_full_index_lets_disks_sleep() {
    let bed = Bed::new();
    // As in `what_has_no_room_is_not_read_again`: there is room for three.
    bed.indexing.set_wanted(Some(145));
    let size = 40 * MIB;
    for number in 0..4 {
        bed.put(&format!("f{number}"), &random(size, 50 + number));
    }
    bed.round();
    bed.round();
    let long_ago = |bed: &Bed| {
        let progress = &mut bed.memory.borrow_mut().progress;
        progress.begin_late();
        let swept = progress.swept.as_mut().unwrap();
        swept.at = Instant::now().checked_sub(2 * pass::LOOK_INTERVAL).unwrap();
        swept.at
    };
    let at = long_ago(&bed);
    bed.round();
    let last = |bed: &Bed| bed.memory.borrow().progress.swept.unwrap().at;
    assert_eq!(last(&bed), at, "all files were looked at");
    fs::remove_file(bed.dir.path().join("f3")).unwrap();
    let root = fs::canonicalize(bed.dir.path()).unwrap();
    *bed.mounts.borrow_mut() = format!("23 22 0:20 / {}/f3 rw - nfs4 nas:/x rw\n", root.display());
    bed.put("small", b"anything");
    long_ago(&bed);
    bed.round();
    assert!(last(&bed) > at);
    assert_eq!(bed.figures().1, 3, "what is left out is neither looked at nor forgotten");
}

/// Memory and networks: where the data directory lies in either no index is made, and that is told once.
#[test]
fn no_index_is_made_where_it_would_cost_others() {
    let bed = Bed::new();
    let root = fs::canonicalize(bed.dir.path()).unwrap();
    bed.put("a", &random(MIB, 60));
    for kind in ["tmpfs", "nfs4"] {
        *bed.mounts.borrow_mut() = format!("23 22 0:20 / {}/index rw - {kind} x rw\n", root.display());
        let error = bed.round_with(&|| false, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(!ChunkIndex::is_there(&bed.dir.path().join("index")));
    }
    // Where a symbolic link leads there, too.
    let link = bed.dir.path().join("index");
    fs::create_dir(root.join("far")).unwrap();
    std::os::unix::fs::symlink(root.join("far"), &link).unwrap();
    *bed.mounts.borrow_mut() = format!("23 22 0:20 / {}/far rw - nfs4 x rw\n", root.display());
    assert_eq!(bed.round_with(&|| false, None).unwrap_err().kind(), ErrorKind::Unsupported);
    fs::remove_file(link).unwrap();
    bed.mounts.borrow_mut().clear();
    bed.round();
    assert_eq!(bed.figures().1, 1);
}

/// ADR 21, "it must be rare where it is vain": what is of about the same size and has nothing in common is hoped for once; by its name it always is.
#[test]
fn hope_by_size_is_not_repeated_in_vain() {
    let bed = Bed::new();
    let bytes = random(2 * MIB, 61);
    bed.put("a", &bytes);
    bed.round();
    let opened = fs::File::open(bed.dir.path()).unwrap();
    let ask = |name: &str, chunks: Vec<String>| {
        let size_bytes = chunks.is_empty().then_some(bytes.len() as u64);
        let name = Some(name.to_owned());
        let question = IndexQuestion { size_bytes, name, chunks, ..IndexQuestion::default() };
        bed.indexing.ask(opened.as_fd(), &question).unwrap()
    };
    let stranger = vec!["00".repeat(16)];
    assert!(ask("b", vec![]).hopeful);
    assert!(ask("b", vec![]).hopeful, "it was not tried yet");
    assert!(ask("b", stranger).found.is_empty());
    assert!(!ask("c", vec![]).hopeful);
    assert!(ask("a", vec![]).hopeful);
}

/// "A pass goes downwards by age and ends": records that lead nowhere, far more of them than are passed at once, are passed once for a state of
/// the store, and what is older than all of them is reached; what comes meanwhile is next, and the store comes to rest.
#[test]
fn a_store_of_any_size_is_passed_once() {
    let bed = Bed::new();
    bed.put("first", &random(MIB, 49));
    bed.round();
    bed.memory.borrow_mut().progress.news_max = 3;
    bed.put("oldest", &random(MIB, 50));
    for number in 0..10 {
        bed.put(&format!("gone{number}"), &random(MIB, 60 + number));
        fs::remove_file(bed.dir.path().join(format!("gone{number}"))).unwrap();
    }
    let go_on = || bed.try_round(&|| false, None, false).unwrap();
    assert!(go_on());
    assert_eq!(bed.figures().1, 1);
    bed.put("late", &random(MIB, 51));
    assert!(go_on());
    assert_eq!(bed.figures(), (2 * MIB as u64, 2), "what came meanwhile waits");
    let rounds = (0..20).take_while(|_| go_on()).count();
    assert!(rounds < 4, "{rounds} more rounds");
    assert_eq!(bed.figures(), (3 * MIB as u64, 3), "the oldest is not reached");
    // One pass more, as something came while it was under way; then nothing is looked at, as nothing comes.
    assert!((0..20).any(|_| !go_on()));
    let asked = Cell::new(0);
    let count = || {
        asked.set(asked.get() + 1);
        false
    };
    assert!(!bed.try_round(&count, None, false).unwrap());
    assert_eq!(asked.get(), 1, "the store was looked through again");
    // More than one round has room for come above what was passed: none of them is missed.
    bed.put("below", &random(MIB, 52));
    for number in 0..5 {
        bed.put(&format!("news{number}"), &random(MIB, 70 + number));
    }
    assert!((0..20).any(|_| !go_on()));
    assert_eq!(bed.figures(), (9 * MIB as u64, 9));
}

/// Y5, "a file of 64 GiB is not read at full speed": within a file, too, it rests after what it read; and after a rest it looks again whether
/// bytes move.
#[test]
fn it_rests_within_a_file() {
    let bed = Bed::new();
    let size = 8 * MIB;
    bed.put("a", &random(size, 53));
    let asked = |rests: bool| {
        bed.rests.set(rests);
        let asked = Cell::new(0);
        let count = || {
            asked.set(asked.get() + 1);
            false
        };
        bed.round_with(&count, None).unwrap();
        asked.get()
    };
    let rested = asked(true);
    assert_eq!(bed.figures(), (size as u64, 1));
    bed.start_again();
    fs::remove_dir_all(bed.dir.path().join("index")).unwrap();
    let reads = size / (256 << 10);
    let at_once = asked(false);
    assert_eq!(bed.figures(), (2 * size as u64, 1));
    assert!(at_once >= reads && rested >= at_once + reads, "{rested} and {at_once} times for {reads} reads");
}

/// An index that has nothing is not made: it takes 64 MiB, be there objects or not; and not where the disk has no room.
#[test]
fn what_nobody_needs_is_not_made() {
    let bed = Bed::new();
    bed.put("small", &random(1000, 54));
    let is_there = || bed.dir.path().join("index").exists();
    for _ in 0..2 {
        bed.round();
        assert!(!is_there() && !bed.indexing.state().open);
    }
    bed.put("a", &random(MIB, 55));
    bed.free_bytes.set(u64::MAX);
    assert_eq!(bed.round_with(&|| false, None).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(!ChunkIndex::is_there(&bed.dir.path().join("index")));
    bed.free_bytes.set(0);
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
}
