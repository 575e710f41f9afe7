//! What an index knows, among what a search does of its own.

use std::time::SystemTime;

use dray_engine::search::Operation;

use super::*;
use crate::elsewhere::tests::{Indexed, node};

/// Where a search of `dir/top` begins, and what an index says of the files that lie there; those are called unlike the object, so that nothing
/// but the index leads there.
fn indexed(dir: &Path, files: &[(&str, Vec<u8>)]) -> DiskSearch {
    let top = dir.join("top");
    let (opened, index) = (directory(&top), Indexed::new(dir));
    files.iter().for_each(|(name, bytes)| index.take_in(&top.join(name), bytes));
    let search = DiskSearch::begin(scope(&top, &top), target("image", SIZE), SearchPolicy::Cost).unwrap();
    assert!(!search.is_hopeful_soon(), "nothing looks alike");
    let prospect = node(dir, index).elsewhere(opened.as_fd(), SIZE as u64, Some(b"unlike"));
    search.ask(Arc::new(prospect.files().unwrap()));
    search
}

/// A file of which `from` is a part.
fn around(from: &[u8], seed: u64) -> Vec<u8> {
    [&bytes(2 * SIZE, seed), from, &bytes(SIZE, seed + 1)].concat()
}

fn count(search: &DiskSearch, is_it: fn(&Operation) -> bool) -> usize {
    search.trace().iter().filter(|operation| is_it(operation)).count()
}

/// Y8, Y12, Y13: of what an index knows to lie here and there, those chunks are read and nothing else, in the order of the file and not in that of
/// the object.
#[test]
fn single_chunks_are_read_in_the_order_of_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 31);
    let (early, late) = (&data[SIZE / 8..SIZE / 8 * 2], &data[SIZE / 2..SIZE / 8 * 5]);
    let other = around(&[late, &bytes(SIZE, 33), early].concat(), 34);
    let (all, there) = (keys(&data), keys(&other));
    let search = indexed(dir.path(), &[("unlike", other)]);
    let found = found(&search, &all, SIZE);
    assert_eq!(found, all.iter().filter(|key| there.contains(key)).count());
    assert!(found > all.len() / 8, "{found}");
    assert!(search.read_bytes() <= SIZE as u64 / 4, "{}", search.read_bytes());
    assert_eq!(
        count(&search, |operation| matches!(operation, Operation::Hash(_))),
        0,
        "{:?}",
        search.trace()
    );
    let places = search.places_read();
    assert_eq!(places.len(), found);
    assert!(places.is_sorted(), "{places:?}");
}

/// Y9: a file of which most is wanted is read once, from end to end.
#[test]
fn a_file_that_has_most_is_read_from_end_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 41);
    let other = [&data[..], &bytes(SIZE / 2, 42)].concat();
    let (all, len) = (keys(&data), other.len());
    let search = indexed(dir.path(), &[("unlike", other)]);
    let found = found(&search, &all, SIZE);
    assert!(found + 3 >= all.len(), "{found} of {}", all.len());
    assert_eq!(
        count(&search, |operation| matches!(operation, Operation::Hash(_))),
        1,
        "{:?}",
        search.trace()
    );
    assert!(search.places_read().is_empty() && search.read_bytes() <= len as u64);
}

/// Waits until that is no longer so, for [`LONG`] since `begun` at the most.
fn wait_while(search: &DiskSearch, begun: Instant, is_so: impl Fn() -> bool) {
    while is_so() {
        assert!(begun.elapsed() < LONG, "{:?}", search.trace());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Y8: a file that was touched after the index was asked is not read: nothing of what the index said of it holds any more.
#[test]
fn a_file_that_changes_before_it_is_read_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 51);
    let search = indexed(dir.path(), &[("unlike", around(&data[..SIZE / 4], 52))]);
    let pressure = Arc::new(Pressure::default());
    // It may ask the index, and nothing after that.
    let unread = Arc::new(Unread { free: 1.into(), ..Unread::default() });
    let source: Arc<dyn Source> = unread.clone();
    pressure.watch(&source);
    let begun = Instant::now();
    wait_while(&search, begun, || search.is_promising());
    search.attend(pressure.clone());
    let all = keys(&data);
    search.find(&all, SIZE as u64);
    wait_while(&search, begun, || {
        count(&search, |operation| matches!(operation, Operation::CacheRead(_))) == 0
    });
    let file = fs::File::open(dir.path().join("top/unlike")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
    unread.is_empty.store(true, Ordering::Release);
    assert_eq!((found(&search, &all, SIZE), search.read_bytes()), (0, 0));
}

/// Y5: an index is not asked, and what it knows not read either, while the transfer itself has something to do, not even between two chunks.
#[test]
fn what_an_index_knows_waits_for_the_transfer() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(SIZE, 61);
    let search = indexed(dir.path(), &[("unlike", around(&data[..SIZE / 4], 62))]);
    let unread = Arc::new(Unread::default());
    let source: Arc<dyn Source> = unread.clone();
    let pressure = Arc::new(Pressure::default());
    pressure.watch(&source);
    let begun = Instant::now();
    wait_while(&search, begun, || search.is_promising());
    search.attend(pressure.clone());
    let all = keys(&data);
    search.find(&all, SIZE as u64);
    let looks = |more: u64| {
        let until = unread.asked.load(Ordering::Acquire) + more;
        while unread.asked.load(Ordering::Acquire) < until {
            assert!(begun.elapsed() < LONG, "{:?}", search.trace());
            thread::sleep(Duration::from_millis(1));
        }
    };
    looks(10);
    assert_eq!(count(&search, |operation| matches!(operation, Operation::CacheRead(_))), 0);
    // It may ask, and read a little.
    unread.free.store(unread.asked.load(Ordering::Acquire) + 6, Ordering::Release);
    looks(16);
    let read = search.read_bytes();
    assert!(read > 0 && read < SIZE as u64 / 8, "{read} bytes");
    looks(10);
    assert_eq!(search.read_bytes(), read);
    unread.is_empty.store(true, Ordering::Release);
    let found = found(&search, &all, SIZE) as u64;
    assert!(found > 8, "{found}");
}
