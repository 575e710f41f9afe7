//! What fills the index: which files, when, and what is not read.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use dray_client::types::IndexQuestion;
use dray_core::store::Store;
use dray_transfer::recipe::Recipe;

use super::*;

const MIB: usize = 1 << 20;

/// A store and an index.
struct Bed {
    dir: tempfile::TempDir,
    store: LocalStore,
    indexing: Indexing,
    tried: RefCell<HashMap<u64, Tried>>,
    hasher: RandomState,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(&dir.path().join("store")).unwrap();
        let bed = Bed {
            dir,
            store,
            indexing: Indexing::default(),
            tried: RefCell::default(),
            hasher: RandomState::new(),
        };
        bed.indexing.set_wanted(true);
        bed
    }

    /// A file that was put.
    fn put(&self, name: &str, bytes: &[u8]) -> Oid {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        self.store.put_file(&path, &|_| {}).unwrap().oid()
    }

    fn round_with(&self, is_busy: &dyn Fn() -> bool, recipe: Option<Arc<Recipe>>) -> Result<()> {
        let means = Means {
            root: self.dir.path().join("index"),
            mib: 64,
            store: &self.store,
            is_busy,
            recipe_of: &|_| recipe.clone(),
            observer: &|_: Event| {},
        };
        self.indexing.round(&means, &mut self.tried.borrow_mut(), &self.hasher)
    }

    fn round(&self) {
        self.round_with(&|| false, None).unwrap();
    }

    /// Bytes read for the index, and the files in it.
    fn figures(&self) -> (u64, u64) {
        let state = self.indexing.state();
        (state.read_bytes, state.files)
    }

    /// Whether the index knows something like an object of that size.
    fn is_hopeful(&self, size_bytes: usize) -> bool {
        let opened = fs::File::open(self.dir.path()).unwrap();
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
    fs::write(bed.dir.path().join("a"), random(size + 9, 3)).unwrap();
    bed.put("a", &random(size + 9, 3));
    bed.tried.borrow_mut().values_mut().for_each(|tried| tried.not_before = Instant::now());
    bed.round();
    let read = (2 * size + 9) as u64;
    assert_eq!(bed.figures(), (read, 1));
    bed.indexing.set_wanted(false);
    bed.round();
    assert_eq!((bed.indexing.state().open, bed.is_hopeful(size)), (false, false));
    bed.indexing.set_wanted(true);
    bed.round();
    assert_eq!(bed.figures(), (read, 1), "it was there still");
    bed.indexing.set_wanted(false);
    bed.round();
    fs::remove_dir_all(bed.dir.path().join("index")).unwrap();
    bed.indexing.set_wanted(true);
    bed.round();
    assert_eq!(bed.figures(), (read + (size + 9) as u64, 1), "it is made anew");
}

/// Y5: "checked before EVERY disk I/O": as long as bytes move nothing is read, however far the file was read before; the gauge is
/// looked at before each read. The end of the daemon is not waited for.
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
    bed.put("b", &random(size, 5));
    let asked = Cell::new(0);
    let end_it = || {
        asked.set(asked.get() + 1);
        if asked.get() == 3 {
            bed.indexing.end();
        }
        asked.get() > 2
    };
    bed.round_with(&end_it, None).unwrap();
    assert_eq!(bed.figures(), (size as u64 + 2 * (256 << 10), 1), "half a file is not in it");
}

/// "A file that was put with a recipe made already is not cut twice": and what the recipe tells is found.
#[test]
fn a_recipe_that_was_made_is_used() {
    let bed = Bed::new();
    let bytes = random(3 * MIB, 6);
    bed.put("a", &bytes);
    bed.round_with(&|| true, Some(recipe_of(&bytes))).unwrap();
    assert_eq!(bed.figures(), (0, 1));
    let mut keys = Vec::new();
    recipe_of(&bytes)
        .chunks(&mut |placed| {
            keys.push(dray_store::index::key(&placed.chunk));
            Ok(())
        })
        .unwrap();
    let index = bed.indexing.open().unwrap();
    let found = index.look_up(&keys, &fs::canonicalize(bed.dir.path()).unwrap()).unwrap();
    assert!(found.places.iter().all(Option::is_some));
    // A file that is another by now, and was never put, is not read.
    fs::write(bed.dir.path().join("a"), random(3 * MIB, 7)).unwrap();
    bed.tried.borrow_mut().clear();
    bed.round_with(&|| false, Some(recipe_of(&bytes))).unwrap();
    assert_eq!(bed.figures(), (0, 1));
    let found = index.look_up(&keys, Path::new("/")).unwrap();
    assert!(found.places.iter().all(Option::is_none));
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
