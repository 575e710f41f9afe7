//! Other files are searched while the network goes on, and what is asked of a holder tells nothing of files outside of the scope.

use std::os::fd::AsFd;
use std::path::PathBuf;

use dray_core::store::FileIdentity;

use super::*;
use crate::elsewhere::Elsewhere;
use crate::elsewhere::tests::{Gated, LONG};

/// Other files below `dir`, that nobody has patience for.
fn searched(dir: &Path, index: Arc<dyn Hints>) -> Elsewhere {
    let opened = std::fs::File::open(dir).unwrap();
    node(dir, index).elsewhere(opened.as_fd(), SIZE as u64, None).files().expect("there is hope")
}

fn beside(older: OlderVersion, elsewhere: Elsewhere) -> OlderVersion {
    OlderVersion::beside(Some(older), Some(elsewhere)).unwrap()
}

/// Waits until the holder was asked for one of `groups`.
#[track_caller]
fn await_read(held: &WithRecipes, groups: Range<u64>) {
    let begun = Instant::now();
    while !held.read_groups().iter().any(|read| read.start < groups.end && groups.start < read.end) {
        assert!(begun.elapsed() < LONG, "nothing of {groups:?} was asked for");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Y2, "fetching goes on meanwhile": an index that answers nothing before all was fetched holds nobody up; nothing is fetched twice for that.
#[test]
fn the_network_does_not_wait_for_an_index_that_hangs() {
    let (object, old) = versions();
    let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 79));
    let index = Indexed::new(dir.path());
    index.take_in(&dir.path().join("other"), &old);
    let gated = Gated::new(index);
    let elsewhere = searched(dir.path(), gated.clone());
    let patience = crate::elsewhere::Patience { idle: Duration::ZERO, ..ENDLESS };
    let older = beside(unrelated, elsewhere.with_patience(patience));
    let holders = [lying_holder(1, &object, &old, Lie::None)];
    let (result, shares) = update_with(dir.path(), &older, &object, &holders);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    assert_eq!(gated.asked(), 1, "it was waited for");
    gated.answer(usize::MAX);
}

/// Y2, "pieces … placed at once": what the first piece of the recipe lacks is asked for before the last one is looked up. Whoever looked everything
/// up first would wait here for ever.
#[test]
fn what_is_missing_is_fetched_while_more_is_looked_for() {
    let (object, old) = versions();
    let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 80));
    let index = Indexed::new(dir.path());
    index.take_in(&dir.path().join("other"), &old);
    let gated = Gated::new(index);
    let older = beside(unrelated, searched(dir.path(), gated.clone()).with_patience(ENDLESS));
    let holders = [lying_holder(1, &object, &old, Lie::None)];
    let held = holders[0].1.clone();
    // 100,000 bytes differ at a third; a question is about 4 MiB, more or less.
    let changed = SIZE as u64 / 3 / GROUP_BYTES;
    let gate = thread::spawn(move || {
        gated.answer(2);
        gated.await_asked(3);
        await_read(&held, changed..changed + 2);
        gated.answer(usize::MAX);
    });
    let (result, shares) = update_with(dir.path(), &older, &object, &holders);
    gate.join().unwrap();
    assert_eq!(result.unwrap(), Oid::of(&object));
    assert!(shares[0] <= CHANGED_BYTES, "{shares:?}");
}

/// Design 16, S73 "files elsewhere change nothing in what is asked of anybody": with a file in scope that gives hope, the sender is asked for the very
/// same groups whether files outside of it have what the sender guesses at or not, in however many places and whenever they were taken in.
#[test]
fn a_sender_learns_nothing_of_files_outside() {
    let (object, old) = versions();
    let profile = Profile::for_size(SIZE as u64).unwrap();
    let chunks = cut(&object, SIZE as u64);
    let asked = |outside: usize| {
        let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 81));
        let (scope, index) = (dir.path().join("in"), Indexed::new(dir.path()));
        // Not there, so a look at one of them would lose it: nobody may look.
        let guess = |number: usize| {
            let path: PathBuf = dir.path().join(format!("out/{number}"));
            let size_bytes = SIZE as u64;
            let identity = FileIdentity { dev: 1, ino: number as u64, size_bytes, mtime_ns: 1, ctime_ns: 1 };
            let mut entering = index.0.enter(&path, identity, profile).unwrap();
            let mut offset = 0;
            for chunk in &chunks {
                entering.add(&ChunkDescriptor::of(chunk), offset).unwrap();
                offset += chunk.len() as u64;
            }
            entering.finish().unwrap();
        };
        (0..outside / 2).for_each(guess);
        index.take_in(&scope.join("other"), &old);
        (outside / 2..outside).for_each(guess);
        let older = beside(unrelated, searched(&scope, index.clone()).with_patience(ENDLESS));
        let holders = [lying_holder(1, &object, &old, Lie::None)];
        let (result, shares) = update_with(dir.path(), &older, &object, &holders);
        assert_eq!(result.unwrap(), Oid::of(&object));
        let files = index.0.figures().files;
        assert_eq!(files, outside as u64 + 1, "a file outside was looked at");
        (shares, holders[0].1.read_groups())
    };
    let without = asked(0);
    assert!(without.0[0] <= CHANGED_BYTES, "{without:?}");
    assert_eq!(asked(140), without);
}

/// "Hope in vain": where a file of such a size has nothing of the object, each byte of it comes once all the same, and the holder reads it once.
#[test]
fn hope_in_vain_costs_no_byte() {
    let (object, old) = versions();
    let (dir, unrelated) = older(&bytes(UNIT_BYTES as usize, 82));
    let index = Indexed::new(dir.path());
    index.take_in(&dir.path().join("other"), &bytes(SIZE, 83));
    let older = beside(unrelated, searched(dir.path(), index).with_patience(ENDLESS));
    let holders = [lying_holder(1, &object, &old, Lie::None)];
    let (result, shares) = update_with(dir.path(), &older, &object, &holders);
    assert_eq!((result.unwrap(), shares[0]), (Oid::of(&object), SIZE as u64));
    let read: u64 = holders[0].1.read_groups().iter().map(|groups| groups.end - groups.start).sum();
    assert_eq!(read, (SIZE as u64).div_ceil(GROUP_BYTES));
}
