//! The index against its own bytes altered one by one: whoever uses it then is a process of its own, as the library may bring it down.

use std::os::unix::process::ExitStatusExt;

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Y3, "corrupt index -> slower, never wrong": any bytes of it altered, cut off or removed. It opens, perhaps anew, and whatever it
    /// tells of is there, or it says that it is broken and the next one begins anew; nothing hangs, and processes end by it twice at most.
    #[test]
    fn an_altered_index_is_never_wrong(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        change in prop_oneof![Just(None), any::<u8>().prop_map(Some)],
        len in 1usize..64,
        in_order in any::<bool>(),
    ) {
        let mut bed = Bed::new();
        bed.indexed("a", 21);
        if in_order {
            // What is only in the journal otherwise is in tables as well.
            bed.index().database.flush().unwrap();
        }
        drop(bed.index.take());
        let mut files = Vec::new();
        all_files(&bed.dir.path().join("index"), &mut files);
        files.sort();
        let victim = which.get(&files);
        let mut content = fs::read(victim).unwrap();
        if content.is_empty() {
            fs::remove_file(victim).unwrap();
        } else {
            let at = at.index(content.len());
            match change {
                Some(value) => {
                    let end = content.len().min(at + len);
                    content[at..end].iter_mut().for_each(|byte| *byte ^= value | 1);
                }
                None => content.truncate(at),
            }
            fs::write(victim, &content).unwrap();
        }
        let ended = use_altered(&bed);
        prop_assert!(ended.is_ok(), "{victim:?}: {}", ended.unwrap_err());
    }
}

/// Has the index of `bed`, which is closed, used by processes of its own, as often as its library brings them down: that must be borne, and
/// not be what brings the tests down. How the last one ended, and how often that was.
fn use_altered(bed: &Bed) -> std::result::Result<u32, String> {
    let at = |name: &str| bed.dir.path().join("index").join(name).exists();
    for brought_down in 0..=BROUGHT_DOWN_MAX {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "index::tests::altered::an_altered_index_is_used", "--ignored"]);
        child.env("INDEX_ALTERED", bed.dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        if !at("format") && !at("opening1") {
            child.env("INDEX_ANEW", "1");
        }
        match child.status().unwrap() {
            status if status.success() => return Ok(brought_down),
            status if status.signal() == Some(6) => {}
            status => return Err(format!("{status}, after {brought_down}")),
        }
    }
    Err(format!("brought down more than {BROUGHT_DOWN_MAX} times"))
}

/// How often an index may bring a process down before it is begun anew.
const BROUGHT_DOWN_MAX: u32 = 2;

/// An index over which the library brings the process down each time it opens it costs two of them, and no more.
#[test]
fn what_brings_the_process_down_is_thrown_away() {
    let mut bed = Bed::new();
    bed.indexed("a", 22);
    assert_eq!(bed.reopen(), None);
    drop(bed.index.take());
    // It panics over that with a lock in its hand, and again as it cleans up.
    fs::create_dir(bed.dir.path().join("index/data/keyspaces/no number")).unwrap();
    assert_eq!(use_altered(&bed), Ok(BROUGHT_DOWN_MAX));
}

/// What [`use_altered`] has done in another process, and nothing without it: opens the index, asks it, and takes a file in.
#[test]
#[ignore = "a part of another test"]
fn an_altered_index_is_used() {
    let Some(dir) = std::env::var_os("INDEX_ALTERED").map(PathBuf::from) else { return };
    let root = dir.join("index");
    let path = fs::canonicalize(&dir).unwrap().join("a");
    let bytes = fs::read(&path).unwrap();
    let (index, reason) = ChunkIndex::open(&root, IndexLimits::default()).unwrap();
    if std::env::var_os("INDEX_ANEW").is_some() {
        assert!(reason.is_some());
        assert_eq!(index.figures().files, 0);
    }
    let keys: Vec<ChunkKey> = cut(&bytes).iter().map(|(_, chunk)| key(chunk)).collect();
    let directory = path.parent().unwrap();
    let opened = File::open(directory).unwrap();
    let scope = Scope { opened: opened.as_fd(), directory, dev: look(&path).unwrap().dev };
    let found = index.look_up(&keys, scope, &|| false);
    // Hints may be wrong, and lead to files that were taken in.
    assert!(found.as_ref().is_ok_and(|found| found.files.iter().all(|file| *file == path)) || found.is_err());
    assert_eq!(found.is_err(), index.health() == Health::Damaged);
    drop(index);
    let (index, reason) = ChunkIndex::open(&root, IndexLimits::default()).unwrap();
    if found.is_err() {
        assert!(reason.is_some());
        assert_eq!(index.figures().files, 0);
    }
    assert_eq!(index.cut(&path, &mut |_, _| true).is_ok(), index.health() != Health::Damaged);
}
