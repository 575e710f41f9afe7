//! What the index does where there is no room: what leaves, what stays out, what a full disk costs; and what questions cost.

use dray_core::limits::INDEX_PLACES_LOOKED_AT_MAX;

use super::*;

/// Limits: the oldest files leave first, and what is too small is not for it.
#[test]
fn the_oldest_leave_first() {
    let chunks_of_three = (2..5).map(|seed| cut(&random(2 * MIB + 777, seed)).len() as u64).sum();
    let limits = [
        IndexLimits { files: 3, ..IndexLimits::default() },
        IndexLimits { chunks: chunks_of_three, ..IndexLimits::default() },
    ];
    for limits in limits {
        let bed = Bed::limited(limits);
        let bytes: Vec<Vec<u8>> = (0..5).map(|number| bed.indexed(&format!("f{number}"), number).1).collect();
        let is_found: Vec<bool> = bytes.iter().map(|bytes| bed.found(bytes, &bed.root()).1 > 0).collect();
        assert_eq!(is_found, [false, false, true, true, true], "{limits:?}");
        assert_eq!(bed.index().figures().files, 3);
    }
    let bed = Bed::new();
    let small = bed.root().join("small");
    fs::write(&small, random(MIB - 1, 1)).unwrap();
    assert_eq!(bed.cut(&small).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// What was forgotten leaves the disk when that is tidied, and what was not stays.
#[test]
fn tidying_drops_what_was_forgotten() {
    let bed = Bed::new();
    let files: Vec<(PathBuf, Vec<u8>)> =
        (0..4).map(|number| bed.indexed(&format!("f{number}"), number)).collect();
    bed.index().forget_path(&files[1].0).unwrap();
    bed.index().database.compact(0).unwrap();
    let left = |bytes: &[u8]| {
        let chunks = cut(bytes);
        chunks
            .iter()
            .filter(|(_, chunk)| !bed.index().database.places(&key(chunk), 9, |_| true).unwrap().is_empty())
            .count()
    };
    assert_eq!(left(&files[1].1), 0, "entries of a forgotten file are left");
    for at in [0, 2, 3] {
        assert_eq!(left(&files[at].1), cut(&files[at].1).len());
    }
}

/// Of the room on disk, the journal's is left out before chunks are counted.
#[test]
fn the_journal_has_its_own_room() {
    assert_eq!(IndexLimits::of_disk((144 << 20) + 1280).chunks, 10);
    assert_eq!(IndexLimits::of_disk(144 << 20).chunks, 0);
    assert_eq!(IndexLimits::of_disk(u64::MAX).chunks, INDEX_CHUNKS_MAX);
}

/// Where there is no room, the room of what was forgotten is given back, however little that is, and also what was forgotten after the last time.
#[test]
fn room_is_given_back_again_and_again() {
    let bed = Bed::new();
    let files: Vec<PathBuf> = (0..3).map(|number| bed.indexed(&format!("f{number}"), number).0).collect();
    for path in &files[..2] {
        assert!(!bed.index().has_dead());
        bed.index().forget_path(path).unwrap();
        assert!(bed.index().has_dead());
        bed.index().give_back().unwrap();
    }
    assert!(!bed.index().has_dead());
}

/// What is forgotten while a file is taken in, and tidied, does not take that one's chunks with it; a file that was given up leaves none.
#[test]
fn tidying_spares_what_is_being_taken_in() {
    let bed = Bed::new();
    let (old, _) = bed.indexed("old", 31);
    // Two batches of entries, and something happens after the first.
    let (path, bytes) = (bed.root().join("new"), random(20 * MIB, 32));
    fs::write(&path, &bytes).unwrap();
    let (mut read, mut left) = (0, 0);
    let may_read: MayRead<'_> = &mut |len, _| {
        read += len;
        if read == 19 * MIB {
            bed.index().forget_path(&old).unwrap();
            bed.index().database.compact(0).unwrap();
            left = bed.index().database.entries();
        }
        true
    };
    bed.index().cut(&path, may_read).unwrap();
    assert_eq!(left, 1024, "entries of the first batch");
    assert_eq!(bed.found(&bytes, &bed.root()).1, cut(&bytes).len());
}

/// "No circles": where there is room for three of five files, the three latest are in it whatever comes in which order, nothing drives out what is
/// later, and what has no room is not taken in again and again, be it after it was closed.
#[test]
fn what_is_older_drives_nothing_out() {
    let limits = IndexLimits { files: 3, ..IndexLimits::default() };
    let mut bed = Bed::limited(limits);
    let enter = |bed: &Bed, number: u64| bed.enter(&format!("f{number}"), number as i64, number * 100, 64);
    for number in [3, 1, 5, 4, 2] {
        let is_taken = enter(&bed, number).is_ok();
        assert_eq!(is_taken, number != 2, "{number}");
    }
    assert_eq!(bed.known(), ["f3", "f5", "f4"]);
    for round in 0..2 {
        for number in [1, 2] {
            assert_eq!(enter(&bed, number).unwrap_err().kind(), ErrorKind::Unsupported, "{round}");
        }
        assert_eq!(bed.reopen_with(limits), None);
    }
    // Two of one age do not drive each other out either.
    assert_eq!(bed.enter("other", 3, 7000, 64).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(bed.known(), ["f3", "f5", "f4"]);
    // A smaller limit counts when it is opened.
    assert_eq!(bed.reopen_with(IndexLimits { files: 1, ..limits }), None);
    assert_eq!(bed.known(), ["f5"]);
    assert_eq!(bed.reopen(), None);
    assert_eq!(bed.known(), ["f5"]);
}

/// A file with more chunks than its size lets expect, for which there is no room then, is remembered as that: it is not cut again.
#[test]
fn what_turns_out_too_large_is_not_cut_again() {
    let mut bed = Bed::limited(IndexLimits { chunks: 200, ..IndexLimits::default() });
    bed.enter("late", 9, 0, 100).unwrap();
    let path = bed.root().join("early");
    let identity = FileIdentity { dev: 1, ino: 9, size_bytes: 99 * CHUNK_BYTES, mtime_ns: 1, ctime_ns: 1 };
    let mut entering = bed.index().enter(&path, identity, Profile::default()).unwrap();
    (500..650).for_each(|number| entering.add(&chunk(number), number).unwrap());
    entering.finish().unwrap();
    assert_eq!(bed.known(), ["late"]);
    assert!(bed.index().has(&path, &identity));
    assert_eq!(bed.reopen(), None);
    assert!(bed.index().has(&path, &identity));
    assert_eq!(bed.known(), ["late"]);
    assert_eq!(bed.index().figures().chunks, 100);
}

/// S73: of a file that was edited and put many times the last state is found, whatever is left of the others.
#[test]
fn what_is_gone_hides_nothing() {
    let bed = Bed::new();
    let generations = 2 * INDEX_PLACES_LOOKED_AT_MAX as u64;
    let bytes = random(2 * MIB + 777, 50);
    for generation in 0..generations {
        let path = bed.root().join(format!("other{generation}"));
        let ctime_ns = generation as i64;
        let identity = FileIdentity { dev: 1, ino: 2, size_bytes: bytes.len() as u64, mtime_ns: 1, ctime_ns };
        let mut entering = bed.index().enter(&path, identity, Profile::default()).unwrap();
        cut(&bytes).iter().for_each(|(offset, chunk)| entering.add(chunk, *offset).unwrap());
        entering.finish().unwrap();
        bed.index().forget_path(&path).unwrap();
    }
    let (path, _) = bed.indexed("last", 50);
    assert_eq!(bed.found(&bytes, &bed.root()), (vec![path], cut(&bytes).len()));
}

/// "Only damage throws all away": a disk without room, now or in its limits, is an error, and what is there stays.
#[test]
fn a_full_disk_costs_nothing_that_is_there() {
    let mut bed = Bed::new();
    let (path, bytes) = bed.indexed("a", 51);
    let none = [
        IndexLimits { free_bytes: u64::MAX, ..IndexLimits::default() },
        IndexLimits { disk_bytes: 4096, ..IndexLimits::default() },
    ];
    for limits in none {
        assert_eq!(bed.reopen_with(limits), None);
        assert_eq!(bed.enter("more", i64::MAX, 0, 64).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(bed.index().health(), Health::Well);
        assert_eq!(bed.found(&bytes, &bed.root()).0, std::slice::from_ref(&path));
    }
    // What the library itself is refused: it is closed, and opened later.
    assert_eq!(bed.reopen(), None);
    let refused = Error::new(ErrorKind::NoSpace, "the disk is full");
    assert!(bed.index().checked::<()>(Err(refused)).is_err());
    assert_eq!(bed.index().health(), Health::Failed);
    assert_eq!(bed.reopen(), None);
    assert_eq!(bed.found(&bytes, &bed.root()).0, std::slice::from_ref(&path));
    assert!(bed.index().checked::<()>(Err(database::damaged("here"))).is_err());
    assert_eq!(bed.index().health(), Health::Damaged);
    assert!(bed.reopen().is_some());
    bed.assert_gone(&bytes);
}

/// What the disk refuses in the middle of a file ends its reading there.
#[test]
fn a_file_that_is_refused_is_not_read_to_its_end() {
    let mut bed = Bed::new();
    let disk_bytes = bed.index().measure() + 16 * MIB as u64;
    assert_eq!(bed.reopen_with(IndexLimits { disk_bytes, ..IndexLimits::default() }), None);
    let (path, bytes) = (bed.root().join("a"), random(40 * MIB, 55));
    fs::write(&path, &bytes).unwrap();
    let mut read = 0;
    let error = bed.index().cut(&path, &mut |len, _| {
        read += len;
        if read == 9 * MIB {
            fs::write(bed.dir.path().join("index/ballast"), random(32 * MIB, 1)).unwrap();
        }
        true
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(read < bytes.len() - 10 * MIB, "{read} bytes were read");
}

/// Questions wait for no writing: what they find changed is in memory at once, and on disk when it is written back.
#[test]
fn questions_write_nothing() {
    let bed = Bed::new();
    let (path, bytes) = bed.indexed("a", 52);
    let (kept, kept_bytes) = bed.indexed("b", 53);
    let _turn = bed.index().writing.lock().unwrap();
    fs::remove_file(&path).unwrap();
    fs::rename(&kept, bed.root().join("c")).unwrap();
    assert_eq!(bed.found(&bytes, &bed.root()).1, 0);
    assert_eq!(bed.found(&kept_bytes, &bed.root()).0, [bed.root().join("c")]);
    bed.index().meet(bed.scope(&bed.root()));
    assert!(bed.index().has_similar(bed.scope(&bed.root()), Some(bytes.len() as u64), None, &|| false));
    assert_eq!(bed.index().files().take_suspects().len(), 1);
    // Killed here, the next one finds that again.
    let killed = bed.root().join("killed");
    snapshot(&bed.dir.path().join("index"), &killed);
    let (index, _) = ChunkIndex::open(&killed, IndexLimits::default()).unwrap();
    let after = Bed { dir: tempfile::tempdir().unwrap(), index: Some(index) };
    assert_eq!(after.found(&bytes, &bed.root()).1, 0);
    assert_eq!(after.found(&kept_bytes, &bed.root()).0, [bed.root().join("c")]);
}

/// A question ends when it has taken long enough, and another file system is another scope.
#[test]
fn a_question_is_bounded() {
    let bed = Bed::new();
    let (_, bytes) = bed.indexed("a", 54);
    let keys: Vec<ChunkKey> = cut(&bytes).iter().map(|(_, chunk)| key(chunk)).collect();
    let (root, asked) = (bed.root(), std::cell::Cell::new(0));
    let is_enough = || {
        asked.set(asked.get() + 1);
        asked.get() > 10
    };
    let found = bed.index().look_up(&keys, bed.scope(&root), &is_enough).unwrap();
    assert_eq!((found.places.len(), found.places.iter().flatten().count()), (keys.len(), 10));
    let dev = bed.scope(&root).dev + 1;
    let other = Scope { dev, ..bed.scope(&root) };
    assert_eq!(bed.index().look_up(&keys, other, &|| false).unwrap().files.len(), 0);
    assert!(!bed.index().has_similar(other, Some(bytes.len() as u64), None, &|| false));
    assert_eq!(bed.index().figures().files, 1, "it was looked at");
}

/// Y3: what only the library's own thread reads may be damaged as well. It ends over that, which is told apart from what the disk refuses;
/// opened again it does so again; thrown away the index is made anew.
#[test]
fn damage_in_a_merge_is_told() {
    let mut bed = Bed::new();
    let enter = |bed: &Bed, number: u64| {
        bed.enter(&format!("f{number}"), number as i64, number * 64, 64)?;
        bed.index().database.flush()
    };
    enter(&bed, 0).unwrap();
    let root = bed.dir.path().join("index/data/keyspaces");
    let mut tables = Vec::new();
    all_files(&root, &mut tables);
    // The table of the chunks, its first block: what is said of the files is read when it is opened.
    let tables = tables.into_iter().filter(|path| path.parent().unwrap().ends_with("tables"));
    let table = tables.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    File::options().write(true).open(table).unwrap().write_all_at(&[0xA5; 64], 200).unwrap();
    for round in 0..2 {
        let failed = (1..1000).find_map(|number| enter(&bed, round * 1000 + number).err());
        assert_ne!(failed.unwrap().kind(), ErrorKind::Damaged);
        assert!(bed.index().check().is_err());
        assert_eq!(bed.index().health(), Health::Stopped);
        assert_eq!(bed.reopen(), None, "what is damaged shows when it is opened");
    }
    bed.index().throw_away();
    assert_eq!(bed.index().health(), Health::Damaged);
    assert!(bed.reopen().is_some());
    (0..20).for_each(|number| enter(&bed, number).unwrap());
}

/// One core at 100 % for as long as anything is merged: while a merge waits, here for the numbers of the files that are, nothing else works. In a
/// process of its own, whose time is that of the index alone.
#[test]
fn a_merge_keeps_no_other_thread_busy() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "index::tests::limits::a_merge_that_waits", "--ignored"]);
    child.env("INDEX_MERGED", "1").stdout(Stdio::null());
    assert!(child.status().unwrap().success());
}

/// What [`a_merge_keeps_no_other_thread_busy`] has done in another process, and nothing without it.
#[test]
#[ignore = "a part of another test"]
fn a_merge_that_waits() {
    if std::env::var_os("INDEX_MERGED").is_none() {
        return;
    }
    let bed = Bed::new();
    let flushed = |number: u64| {
        bed.enter(&format!("f{number}"), number as i64, number * 64, 64).unwrap();
        bed.index().database.flush().unwrap();
    };
    (0..3).for_each(flushed);
    // What is not in order yet is, before all is written anew: then there is enough for the library to merge by itself, too.
    bed.enter("last", 9, 9000, 64).unwrap();
    let used = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    bed.index().database.while_merging(|| {
        let before = used();
        thread::sleep(Duration::from_millis(700));
        let spent = used() - before;
        assert!(spent < Duration::from_millis(70), "{spent:?}");
    });
}
