//! The paper's example, and what bounds a search.

use super::*;

const CHUNK: u64 = 16 << 10;

fn config(stat_weight: f64) -> SearchConfig {
    // So high that a few entries tell what is below and what is not.
    let floors = Floors { likelihood: 0.05, metadata: 0.0, part_of_use: 0.02, same_size: 0.0 };
    SearchConfig { policy: Policy::Cost, stat_weight, chunk_bytes: CHUNK as u32, floors }
}

fn wanted(name: &str, chunks: u64) -> Wanted {
    Wanted { name: name.into(), size_bytes: chunks * CHUNK, mtime_s: Some(1000), chunks }
}

fn seen(name: &str, chunks: u64, mtime_s: i64) -> Metadata<'_> {
    Metadata { name: name.as_bytes(), size_bytes: chunks * CHUNK, mtime_s: Some(mtime_s) }
}

fn names(path: &[&str]) -> Option<Vec<Vec<u8>>> {
    Some(path.iter().map(|name| name.as_bytes().to_vec()).collect())
}

/// Cost per chunk of everything that waits, by path.
fn ranks(search: &Search) -> Vec<(String, f64)> {
    let mut all: Vec<Ranked> = search.queue.iter().copied().collect();
    all.sort_by(|left, right| right.cmp(left));
    let path = |number| {
        let names = search.path(EntryId(number)).into_iter().map(String::from_utf8_lossy);
        names.fold(String::new(), |path, name| path + "/" + &name)
    };
    all.into_iter().map(|ranked| (path(ranked.number), ranked.cost)).collect()
}

/// Y12-Y17: the costs of the paper's Table 1, in its units. Two files of four chunks go to `/d/new`.
#[test]
fn table_1_of_the_paper() {
    // They were not written at the same time.
    let files = vec![wanted("a.txt", 4), Wanted { mtime_s: Some(5000), ..wanted("b.txt", 4) }];
    let mut search = Search::new(config(1.0), names(&["d", "new"]), files);
    search.costs = Costs { chunk_hash_us: 1.0, stat_us: 1.0 };
    search.rank_all();
    let near =
        |found: f64, expected: f64| assert!((found - expected).abs() < 0.005, "{found} is not {expected}");
    let before = ranks(&search);
    assert_eq!(before[0].0, "/d/new");
    near(before[0].1, 1.125);
    assert_eq!(search.next(&mut || 0), Some(Operation::Stat(EntryId(2))));
    search.found_file(EntryId(2), seen("a.txt", 4, 1000)).unwrap();
    // Nothing of `core` is alike. It is in the table, but no search would read it.
    assert!(search.found_file(EntryId(2), seen("core", 64, 5)).is_none());
    let core = likeness::of_file(seen("core", 64, 5), seen("a.txt", 4, 1000));
    near(core, 0.007);
    near(search.costs.of_hash(64.0, 8.0 * core), 64.0 / 0.056);
    search.done(EntryId(2));
    let after = ranks(&search);
    let rank_of = |path: &str| after.iter().find(|(known, _)| known == path).unwrap().1;
    near(rank_of("/d/new/a.txt"), 0.741);
    near(rank_of("/d"), 2.53);
    assert_eq!(search.next(&mut || 0), Some(Operation::Hash(EntryId(3))));
    assert_eq!(search.path(EntryId(3)), [&b"d"[..], b"new", b"a.txt"]);
    // As dsync's code has it, all of the cost of a STAT is five times that.
    near(search.costs.of_stat(8.0, 8.0, 4.0 / 9.0, 5.0), 5.0 * 2.53125);
    // Y13: what an index is asked for, or knows, costs what a chunk costs: more than `a.txt`, less than `/d`.
    near(search.costs.of_cache_check(), 1.0);
    near(search.costs.of_cache_read(), 1.0);
}

/// Y12, Y13: CACHE-CHECK and CACHE-READ take their turn among STAT and HASH, by the costs of Table 1: after a HASH of 0.741, before a STAT of
/// 1.125.
#[test]
fn what_an_index_knows_is_ranked_with_the_rest() {
    let files = vec![wanted("a.txt", 4), Wanted { mtime_s: Some(5000), ..wanted("b.txt", 4) }];
    let mut search = Search::new(config(1.0), names(&["d", "new"]), files);
    search.costs = Costs { chunk_hash_us: 1.0, stat_us: 1.0 };
    search.rank_all();
    search.to_check(4, 0);
    assert_eq!(search.next(&mut || 0), Some(Operation::CacheCheck));
    let known = search.found_cached(64 * CHUNK).unwrap();
    search.known_in(known, 2);
    search.checked(4, 0);
    assert_eq!(search.next(&mut || 0), Some(Operation::CacheRead(known)));
    search.cache_read(known, 2, 0, 2);
    assert_eq!(search.next(&mut || 0), Some(Operation::Stat(EntryId(2))));
    let file = search.found_file(EntryId(2), seen("a.txt", 4, 1000)).unwrap();
    search.known_in(known, 1);
    search.to_check(3, 0);
    assert_eq!(search.next(&mut || 0), Some(Operation::Hash(file)), "0.741");
    assert_eq!(search.next(&mut || 0), Some(Operation::CacheCheck), "1");
    search.checked(3, 0);
    assert_eq!(search.next(&mut || 0), Some(Operation::CacheRead(known)), "1");
    // Nothing is wanted any more: nothing is read, nor asked for.
    search.to_check(9, 0);
    [0, 1].into_iter().for_each(|at| search.want(at, 0));
    assert_eq!(search.next(&mut || 0), None);
}

/// What is read of a file that an index knows: of 512 chunks that are asked for in pieces of 64, `known` of each lie there, in a file of as many.
fn operations_on_a_known_file(known: u64) -> Vec<Operation> {
    let mut search = Search::new(config(5.0), None, vec![wanted("x", 512)]);
    search.done(EntryId::TOP);
    let (mut trace, mut file) = (Vec::new(), None);
    for piece in 1..=8u64 {
        search.to_check(64, 512 - 64 * piece);
        while let Some(operation) = search.next(&mut || 0) {
            trace.push(operation);
            match operation {
                Operation::CacheCheck => {
                    let file = *file.get_or_insert_with(|| search.found_cached(512 * CHUNK).unwrap());
                    search.known_in(file, known);
                    search.checked(64, 0);
                }
                Operation::CacheRead(file) => search.cache_read(file, known, 0, 80),
                Operation::Hash(file) => search.hashed(file, 512, 512 * 80),
                Operation::Stat(_) => panic!("there is no directory"),
            }
        }
    }
    trace
}

/// Y9: with the number of chunks to be read from a file, its priority rises to be read from end to end: reading in order beats going to each
/// chunk. From a third of it on that is so, and then it is read once.
#[test]
fn many_reads_of_a_file_become_one_from_end_to_end() {
    let reads = |trace: &[Operation]| {
        let count = |is_it: fn(&Operation) -> bool| trace.iter().filter(|operation| is_it(operation)).count();
        (
            count(|operation| matches!(operation, Operation::CacheRead(_))),
            count(|operation| matches!(operation, Operation::Hash(_))),
        )
    };
    let few = operations_on_a_known_file(20);
    assert_eq!(reads(&few), (8, 0), "{few:?}");
    let many = operations_on_a_known_file(22);
    assert_eq!(reads(&many), (0, 1), "{many:?}");
    assert!(matches!(many[..], [Operation::CacheCheck, Operation::Hash(_), ..]), "{many:?}");
    // One that comes to have more switches, and what is read after is that.
    let mut search = Search::new(config(5.0), None, vec![wanted("x", 100)]);
    search.done(EntryId::TOP);
    let file = search.found_cached(99 * CHUNK).unwrap();
    search.checked(100, 0);
    let mut next = |known| {
        search.known_in(file, known);
        search.next(&mut || 0).unwrap()
    };
    assert_eq!(next(16), Operation::CacheRead(file));
    assert_eq!(next(16), Operation::CacheRead(file));
    assert_eq!(next(1), Operation::Hash(file));
}

/// Y13: a chunk that was read by itself counts for the cost of a chunk as one that was read in order does.
#[test]
fn reads_of_chunks_are_measured() {
    let mut search = Search::new(config(5.0), None, vec![wanted("x", 100)]);
    let file = search.found_cached(99 * CHUNK).unwrap();
    search.known_in(file, 10);
    search.cache_read(file, 10, 0, 1800);
    assert!((search.costs.chunk_hash_us - 100.0).abs() < 1e-9);
}

/// Y19: what an index knows to be here is expected soon.
#[test]
fn what_an_index_knows_arrives_soon() {
    let mut search = Search::new(config(5.0), None, vec![wanted("x", 1000)]);
    search.done(EntryId::TOP);
    search.rank_all();
    assert_eq!(search.arrival_us(), 200_000);
    let file = search.found_cached(10_000 * CHUNK).unwrap();
    search.checked(1000, 0);
    search.known_in(file, 500);
    // Half of it after 500 chunks of 80 us, the rest from the network.
    assert_eq!(search.arrival_us(), 500 * 80 + 100_000);
}

/// Y19, Y17: when a chunk of `b.txt` is to be expected, in the units of the paper's example.
#[test]
fn the_arrival_of_the_paper_by_its_schedule() {
    let files = vec![wanted("a.txt", 4), Wanted { mtime_s: Some(5000), ..wanted("b.txt", 4) }];
    let mut search = Search::new(config(1.0), names(&["d", "new"]), files);
    search.costs = Costs { chunk_hash_us: 1.0, stat_us: 1.0 };
    search.found_file(EntryId(2), seen("a.txt", 4, 1000)).unwrap();
    // Which no search would read; and the table has no other directory.
    search.enter(EntryId(2), b"core", Kind::File { chunks: 64.0, likelihoods: Box::new([0.007; 2]) }, 0);
    search.done(EntryId(2));
    search.done(EntryId::TOP);
    search.want(0, 0);
    search.rank_all();
    let left = 0.65 * (5.0 / 9.0) * 0.993;
    let arrival = search.arrival_us() as f64 - left * 200_000.0;
    assert!((arrival - 32.96).abs() < 1.0, "{arrival}");
}

/// Y7: when nothing else is left to do, what was worth nothing is looked at again, however long ranking took.
#[test]
fn nothing_is_left_behind() {
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1000)]);
    let file = search.found_file(EntryId::TOP, seen("x", 1000, 1000)).unwrap();
    search.want(0, 10);
    let mut now_us = 0;
    let mut slow = || {
        now_us += 1_000_000;
        now_us
    };
    assert_eq!(search.next(&mut slow), Some(Operation::Stat(EntryId::TOP)));
    search.listed(EntryId::TOP, 10);
    assert_eq!(search.next(&mut || now_us), None);
    search.want(0, 500);
    assert_eq!(search.next(&mut || now_us), Some(Operation::Hash(file)));
}

/// Y4, Y9, Y11, Y25: the destination's directory and those above come first; with other policies directories and files come in other orders.
#[test]
fn policies_rank_differently() {
    let order = |policy| {
        let config = SearchConfig { policy, ..config(5.0) };
        let mut search = Search::new(config, names(&["a"]), vec![wanted("x", 100)]);
        let mut order = Vec::new();
        while let Some(operation) = search.next(&mut || 0) {
            let (Operation::Stat(id) | Operation::Hash(id)) = operation else { panic!("there is no index") };
            let path = search
                .path(id)
                .into_iter()
                .map(String::from_utf8_lossy)
                .fold(String::new(), |path, name| path + "/" + &name);
            order.push(path.clone());
            match (operation, &*path) {
                (Operation::Stat(id), "/a") => {
                    assert!(search.found_directory(id, b"sub").is_some());
                    search.found_file(id, seen("x.bak", 100, 1000)).unwrap();
                }
                (Operation::Stat(id), "") => {
                    assert!(search.found_directory(id, b"a").is_none(), "it is known");
                    search.found_directory(id, b"b").unwrap();
                }
                _ => {}
            }
            match operation {
                Operation::Stat(id) => search.listed(id, 200),
                _ => search.hashed(id, 100, 8000),
            }
        }
        order
    };
    assert_eq!(order(Policy::Cost), ["/a", "", "/a/x.bak", "/a/sub", "/b"]);
    assert_eq!(order(Policy::BreadthFirst), ["/a", "/a/sub", "/a/x.bak", "", "/b"]);
    assert_eq!(order(Policy::AllStats), ["/a", "", "/a/sub", "/b", "/a/x.bak"]);
}

/// Y18 "1 M chunks x 10 k candidates in less than 100 ms": as steps, which are those of the candidates. Y7: they are ranked again only when a
/// tenth of what is wanted has changed, and ranking took no more than a tenth of the time since.
#[test]
fn ranking_takes_steps_by_files() {
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1_000_000)]);
    for number in 0..10_000u64 {
        let name = format!("x.{number}");
        let file =
            Metadata { name: name.as_bytes(), size_bytes: (1_000_000 - number) * CHUNK, mtime_s: None };
        // All but the first ones have another name altogether, and are as large.
        let _ = search.found_file(EntryId::TOP, file);
    }
    let entries = search.entries.len() as u64;
    assert!(entries > 9_000, "{entries}");
    let before = search.steps;
    let mut popped = 0;
    for left in (900_001..1_000_000).rev().step_by(1000) {
        search.want(0, left);
        popped += u64::from(search.next(&mut || 1000).is_some());
    }
    assert_eq!((search.steps, popped), (before, 100), "nothing changed by a tenth");
    search.want(0, 899_000);
    let mut now_us = 1000;
    let mut clock = || {
        now_us += 50;
        now_us
    };
    assert!(search.next(&mut clock).is_some());
    assert_eq!(search.steps, before + entries, "a step for each file, whatever the chunks");
    search.want(0, 700_000);
    assert!(search.next(&mut || 1500).is_some());
    assert_eq!(search.steps, before + entries, "ranking took 50 us, and 400 us are not ten times that");
    assert!(search.next(&mut || 1600).is_some());
    assert_eq!(search.steps, before + 2 * entries);
}

/// Y7 "scheduler CPU at most 10 % with 100,000 files": with as many as a search remembers, each of which takes a microsecond to be ranked, while what is
/// wanted changes by more than a tenth before each operation. And whoever has more urgent things to do is told before that is done.
#[test]
fn ranking_takes_a_tenth_with_all_there_is_room_for() {
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1_000_000)]);
    let mut number = 0;
    while search.has_room() {
        let name = format!("x.{number}");
        // Alike in nothing but its size.
        let file = Metadata { name: name.as_bytes(), size_bytes: 1_000_000 * CHUNK, mtime_s: None };
        let _ = search.found_file(EntryId::TOP, file);
        number += 1;
    }
    let entries = search.entries.len() as u64;
    assert_eq!(entries, SEARCH_ENTRIES_MAX as u64);
    search.listed(EntryId::TOP, 200);
    let before = search.steps;
    let (mut now_us, mut operations) = (0, 0);
    for round in 0..1000 {
        search.want(0, if round % 2 == 0 { 500_000 } else { 1_000_000 });
        let (mut asked, steps) = (0, search.steps);
        let is_to_be_ranked = search.is_to_be_ranked();
        // Asked a second time, it has ranked them all.
        let mut clock = || {
            asked += 1;
            now_us += if asked > 1 { entries } else { 0 };
            now_us
        };
        let Some(Operation::Hash(file)) = search.next(&mut clock) else { panic!("there are files left") };
        assert!(is_to_be_ranked || search.steps == steps);
        search.hashed(file, 1, 10_000);
        now_us += 10_000;
        operations += 1;
    }
    let ranked = (search.steps - before) / entries;
    assert!(ranked >= 10, "{ranked} times in {operations} operations");
    // Whoever ranks once more may be through with the first tenth of what follows.
    assert!((search.steps - before - entries) * 10 <= now_us, "{ranked} times in {now_us} us");
    // Nothing is ranked for what nobody wants, nor where there is nothing left.
    search.want(0, 0);
    let steps = search.steps;
    assert!(!search.is_to_be_ranked() && search.next(&mut || u64::MAX).is_none());
    search.want(0, 1_000_000);
    (0..entries).for_each(|number| search.done(EntryId(number as u32)));
    search.want(0, 1000);
    assert!(!search.is_to_be_ranked() && search.next(&mut || u64::MAX).is_none());
    assert_eq!((search.steps, search.open), (steps, 0));
}

/// Y7, Y9: ranking may be done some entries at a time, and finds the same order as in one go, whatever is wanted less or
/// more meanwhile. Until it is done the order that there was counts, and also if nothing is wanted any more by then.
#[test]
fn ranking_goes_on_where_it_was_left() {
    let fresh = || {
        let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1_000_000)]);
        for number in 0..1000u64 {
            let name = format!("x.{number}");
            let file =
                Metadata { name: name.as_bytes(), size_bytes: (1_000_000 - number) * CHUNK, mtime_s: None };
            let _ = search.found_file(EntryId::TOP, file);
        }
        search.listed(EntryId::TOP, 200);
        search
    };
    let (mut whole, mut parted) = (fresh(), fresh());
    let entries = parted.entries.len() as u64;
    let (before, arrival) = (parted.steps, parted.arrival_us());
    whole.want(0, 500_000);
    parted.want(0, 500_000);
    let mut turns = 0;
    let first = loop {
        turns += 1;
        match parted.next_by_turns(&mut || 0, 100) {
            ControlFlow::Break(next) => break next,
            ControlFlow::Continue(()) => {}
        }
        assert_eq!(parted.steps - before, turns * 100, "so many at a time");
        parted.want(0, 499_000 - turns);
        assert!(parted.arrival_us().abs_diff(arrival) < arrival / 2, "there is no order");
    };
    assert_eq!((turns, parted.steps - before), (entries.div_ceil(100), entries));
    assert_eq!(first, whole.next(&mut || 0));
    let rest = |search: &mut Search| -> Vec<u32> {
        std::iter::from_fn(|| search.queue.pop().map(|ranked| ranked.number)).collect()
    };
    let (of_parted, of_whole) = (rest(&mut parted), rest(&mut whole));
    assert!(of_parted.len() > 900 && of_parted == of_whole, "{} and {}", of_parted.len(), of_whole.len());
    // One that was not ended is none.
    let mut search = fresh();
    search.want(0, 500_000);
    assert!(search.next_by_turns(&mut || 0, 100).is_continue());
    search.want(0, 0);
    assert_eq!(search.next_by_turns(&mut || 0, 100), ControlFlow::Break(None));
    let before = search.steps;
    search.want(0, 510_000);
    assert_eq!(search.next(&mut || 0), first);
    assert_eq!(search.steps - before, entries);
}

/// P7 "never slower": that nothing is worth it is known without ranking, however much has changed; a file that is, or a directory that was not listed, has
/// everything ranked.
#[test]
fn what_is_worth_nothing_is_not_ranked() {
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1000)]);
    for chunks in [1000, 1001] {
        search.found_file(EntryId::TOP, seen("x", chunks, 1000)).unwrap();
    }
    search.want(0, 1);
    assert!(search.is_to_be_ranked(), "a directory was not listed");
    assert_eq!(search.next(&mut || 0), Some(Operation::Stat(EntryId::TOP)));
    search.listed(EntryId::TOP, 10);
    assert_eq!(search.next(&mut || 0), None);
    let steps = search.steps;
    search.want(0, 5);
    assert!(!search.is_to_be_ranked() && search.next(&mut || 1_000_000).is_none());
    assert_eq!(search.steps, steps);
    search.want(0, 500);
    assert!(search.is_to_be_ranked());
    assert!(matches!(search.next(&mut || 1_000_000), Some(Operation::Hash(_))));
    assert_eq!(search.steps, steps + 3);
}

/// P7 "never slower": what is of the same kind says nothing, however near it lies, and gives no hope; what is the same but for its place does.
#[test]
fn what_is_of_the_same_kind_gives_no_hope() {
    let path = ["home", "films", "of", "this", "year"];
    let config = SearchConfig { floors: Floors::default(), ..config(5.0) };
    let mut search = Search::new(config, names(&path), vec![wanted("one.mp4", 100)]);
    let destination = EntryId(path.len() as u32);
    for chunks in [70, 100, 109, 200] {
        let other = Metadata { mtime_s: Some(9), ..seen("other.mp4", chunks, 9) };
        let found = search.found_file(destination, other);
        assert_eq!(found.is_some(), chunks == 100 || chunks == 109, "{chunks}");
    }
    assert!(search.found_file(destination, seen("other.mkv", 50, 9)).is_none());
    let elsewhere = search.found_directory(EntryId(1), b"backup").unwrap();
    let same = search.found_file(elsewhere, seen("one.mp4", 100, 1000)).unwrap();
    assert!(search.is_hopeful(same));
}

/// R16 row 9, ADR 26: what has another name, place and time, and the very size that is wanted, is read as long as half of it is wanted; four of them at the most, and none but that for its size.
#[test]
fn what_has_the_very_size_is_read_wherever_it_lies() {
    let config = SearchConfig { floors: Floors::default(), ..config(5.0) };
    let path = ["home", "films", "of", "this", "year"];
    let mut search = Search::new(config, names(&path), vec![wanted("one.mp4", 100)]);
    let mut found = |name: &str, bytes: u64| {
        let of_it = seen(name, 100, 9);
        let file = Metadata { size_bytes: of_it.size_bytes + bytes, mtime_s: Some(9), ..of_it };
        search.found_file(EntryId::TOP, file)
    };
    assert!(found("near", 1).is_none());
    let same: Vec<EntryId> = ["a", "b", "c", "d"].iter().map(|name| found(name, 0).unwrap()).collect();
    assert!(found("e", 0).is_none(), "sizes like that are common");
    let mut read = Vec::new();
    while let Some(operation) = search.next(&mut || 0) {
        match operation {
            Operation::Stat(directory) => search.listed(directory, 100),
            Operation::Hash(file) => {
                search.hashed(file, 100, 100);
                read.push(file);
                search.want(0, if read.len() < 2 { 51 } else { 49 });
            }
            _ => panic!("{operation:?}"),
        }
    }
    assert_eq!(read, same[..2]);
}

/// A home with millions of entries takes no more memory than its bound, and what is hopeless takes no room of what is not.
#[test]
fn memory_is_bounded() {
    let mut search = Search::new(config(5.0), names(&["proj", "b"]), vec![wanted("x", 100)]);
    for number in 0..3 * SEARCH_ENTRIES_MAX {
        let name = format!("object-{number}");
        assert!(search.found_file(EntryId(2), seen(&name, 3, 5)).is_none());
        // One of three names in a path is the destination's: a ninth.
        if let Some(directory) = search.found_directory(EntryId::TOP, name.as_bytes()) {
            // With another one below it, a sixteenth; and below that nothing.
            let below = search.found_directory(directory, name.as_bytes());
            assert!(below.is_none_or(|below| {
                let deeper = search.found_directory(below, b"x");
                deeper.is_none_or(|deeper| search.found_directory(deeper, b"x").is_none())
            }));
        }
    }
    assert_eq!(search.entries.len(), SEARCH_ENTRIES_MAX);
    assert!(search.queue.len() <= SEARCH_ENTRIES_MAX);
    assert!(search.found_file(EntryId(2), seen("x", 100, 1000)).is_none());
    let hopeless = Search::new(config(5.0), names(&["b"]), vec![wanted("x", 100)]);
    assert_eq!(hopeless.entries.len(), 2);
}

/// What is hardly wanted any more is not read for: a file of which most was found elsewhere has nothing to give that is worth it. When
/// more is wanted again, it is.
#[test]
fn what_is_not_worth_it_is_not_read() {
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 0)]);
    assert_eq!(search.next(&mut || 0), None, "nothing is wanted");
    let file = search.found_file(EntryId::TOP, seen("y", 1000, 5));
    assert_eq!(file, None);
    let mut search = Search::new(config(5.0), names(&[]), vec![wanted("x", 1000)]);
    let file = search.found_file(EntryId::TOP, seen("x", 1000, 1000)).unwrap();
    assert!(search.is_hopeful(file));
    // Of 1000 chunks to be read, 10 may be of use.
    search.want(0, 10);
    assert!(!search.is_hopeful(file));
    assert_eq!(search.next(&mut || 1), Some(Operation::Stat(EntryId::TOP)));
    assert_eq!(search.next(&mut || 1), None);
    search.want(0, 500);
    assert_eq!(search.next(&mut || 2), Some(Operation::Hash(file)));
    search.hashed(file, 1000, 50_000);
    search.listed(EntryId::TOP, 10);
    search.want(0, 1000);
    assert_eq!(search.next(&mut || 3), None);
    assert!(!search.is_hopeful(file));
}

/// Y19: what the disk promises soon is expected soon, and what it does not, after the network.
#[test]
fn arrival_follows_the_schedule() {
    let mut search = Search::new(config(5.0), names(&["a"]), vec![wanted("x", 1000)]);
    // The destination's directory may have it for certain, as far as paths tell.
    assert_eq!(search.arrival_us(), 200 + 80_000);
    for directory in [1, 0] {
        search.listed(EntryId(directory), 200);
    }
    assert_eq!(search.arrival_us(), 200_000, "nothing is left but the network");
    search.queue.clear();
    search.found_file(EntryId(1), seen("x", 1000, 1000));
    assert_eq!(search.arrival_us(), 200_000, "what was listed has nothing more");
    let mut search = Search::new(config(5.0), names(&["a"]), vec![wanted("x", 1000)]);
    let file = search.found_file(EntryId(1), seen("x", 1000, 4000)).unwrap();
    [0, 1].into_iter().for_each(|directory| search.listed(EntryId(directory), 200));
    assert_eq!(search.next(&mut || 0), Some(Operation::Hash(file)));
    search.rank_all();
    // 0.7 of it after 80 ms.
    assert_eq!(search.arrival_us(), 80_000 + 60_000);
}
