//! The index against files that change, move and are no files, and against a crash.

mod altered;
mod limits;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use dray_core::chunker::Profile;

use super::*;

const MIB: usize = 1 << 20;

/// A directory with an index in it, and files beside that.
struct Bed {
    dir: tempfile::TempDir,
    index: Option<ChunkIndex>,
}

impl Bed {
    fn new() -> Bed {
        Bed::limited(IndexLimits::default())
    }

    fn limited(limits: IndexLimits) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let (index, reason) = ChunkIndex::open(&dir.path().join("index"), limits).unwrap();
        assert_eq!(reason, None, "there was nothing to throw away");
        Bed { dir, index: Some(index) }
    }

    fn index(&self) -> &ChunkIndex {
        self.index.as_ref().unwrap()
    }

    fn root(&self) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap()
    }

    /// Closes it and opens it again; why it was thrown away, if it was.
    fn reopen(&mut self) -> Option<String> {
        self.reopen_with(IndexLimits::default())
    }

    fn reopen_with(&mut self, limits: IndexLimits) -> Option<String> {
        drop(self.index.take());
        let (index, reason) = ChunkIndex::open(&self.dir.path().join("index"), limits).unwrap();
        self.index = Some(index);
        reason
    }

    /// A file of random bytes, in the index.
    fn indexed(&self, name: &str, seed: u64) -> (PathBuf, Vec<u8>) {
        let (path, bytes) = (self.root().join(name), random(2 * MIB + 777, seed));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let youngest = self.index().files().youngest();
        // Later than the last one, as far as the file system's clock tells.
        loop {
            fs::write(&path, &bytes).unwrap();
            if look(&path).is_some_and(|now| youngest.is_none_or(|age| now.ctime_ns > age)) {
                break;
            }
        }
        assert_eq!(self.cut(&path).unwrap(), Cut::Read(bytes.len() as u64));
        (path, bytes)
    }

    fn cut(&self, path: &Path) -> Result<Cut> {
        self.index().cut(path, &mut |_, _| true)
    }

    /// Where the chunks of `bytes` are below `below`, each of them compared: the files, and how many were found.
    fn found(&self, bytes: &[u8], below: &Path) -> (Vec<PathBuf>, usize) {
        self.found_of(&cut(bytes), below)
    }

    fn found_of(&self, chunks: &[(u64, ChunkDescriptor)], below: &Path) -> (Vec<PathBuf>, usize) {
        let keys: Vec<ChunkKey> = chunks.iter().map(|(_, chunk)| key(chunk)).collect();
        let found = self.index().look_up(&keys, self.scope(below), &|| false).unwrap();
        assert_eq!(found.places.len(), keys.len());
        for ((_, chunk), place) in chunks.iter().zip(&found.places) {
            let Some(place) = place else { continue };
            let mut there = vec![0; place.len as usize];
            let file = File::open(&found.files[place.file]).unwrap();
            file.read_exact_at(&mut there, place.offset).unwrap();
            assert_eq!(ChunkDescriptor::of(&there), *chunk);
        }
        (found.files, found.places.iter().flatten().count())
    }

    /// A directory, on the file system of the test; it stays open.
    fn scope<'a>(&self, directory: &'a Path) -> Scope<'a> {
        let opened = File::open(directory).or_else(|_| File::open(self.root())).unwrap();
        let opened: &'static File = Box::leak(Box::new(opened));
        Scope { opened: opened.as_fd(), directory, dev: look(&self.index().root.join("lock")).unwrap().dev }
    }

    /// Takes in a file that is not there, as it was at `age`; it has the chunks `first..first + chunks` of [`chunk`].
    fn enter(&self, name: &str, age: i64, first: u64, chunks: u64) -> Result<()> {
        let (path, size_bytes) = (self.root().join(name), chunks * CHUNK_BYTES);
        let identity = FileIdentity { dev: 1, ino: first + 1, size_bytes, mtime_ns: age, ctime_ns: age };
        let mut entering = self.index().enter(&path, identity, Profile::default())?;
        (first..first + chunks)
            .zip(0..)
            .try_for_each(|(number, at)| entering.add(&chunk(number), at * CHUNK_BYTES))?;
        entering.finish()
    }

    /// The names of the files that are known with their chunks.
    fn known(&self) -> Vec<String> {
        let files = self.index().files();
        let numbers: Vec<u64> = files.numbers().collect();
        let name = |number| {
            let path: PathBuf = files.get(number).unwrap().path();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        numbers.into_iter().map(name).collect()
    }

    /// Asserts that nothing of `bytes` is found, and that nothing is left of it when what was missed is looked at.
    #[track_caller]
    fn assert_gone(&self, bytes: &[u8]) {
        assert_eq!(self.found(bytes, &self.root()), (vec![], 0));
        self.index().forget_missed(&mut || true).unwrap();
        assert_eq!(self.index().figures().files, 0);
    }
}

const CHUNK_BYTES: u64 = 16 << 10;

fn chunk(number: u64) -> ChunkDescriptor {
    ChunkDescriptor { hash: *blake3::hash(&number.to_be_bytes()).as_bytes(), len: CHUNK_BYTES as u32 }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_be_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

fn cut(bytes: &[u8]) -> Vec<(u64, ChunkDescriptor)> {
    let (mut chunks, mut offset) = (Vec::new(), 0);
    let mut take = |chunk: &[u8]| {
        chunks.push((offset, ChunkDescriptor::of(chunk)));
        offset += chunk.len() as u64;
    };
    let mut chunker = Profile::for_size(bytes.len() as u64).unwrap().chunker();
    chunker.push(bytes, &mut take);
    chunker.finish(&mut take);
    chunks
}

/// Y8: what was cut is found, every chunk of it, after the index was closed as well; of an edited version what was not edited.
#[test]
fn what_was_cut_is_found() {
    let mut bed = Bed::new();
    let (path, mut bytes) = bed.indexed("a", 1);
    let chunks = cut(&bytes).len();
    assert_eq!(bed.found(&bytes, &bed.root()), (vec![path.clone()], chunks));
    assert_eq!(bed.cut(&path).unwrap(), Cut::Known);
    assert_eq!(bed.reopen(), None);
    assert_eq!(bed.found(&bytes, &bed.root()), (vec![path.clone()], chunks));
    assert_eq!(bed.cut(&path).unwrap(), Cut::Known);
    bytes.splice(MIB..MIB, *b"sixteen new byte");
    let (files, found) = bed.found(&bytes, &bed.root());
    assert!(files == [path] && found + 3 >= chunks && found < chunks, "{found} of {chunks}");
}

/// Design 16: what is not below the directory that was named is not found, be it by a name that begins alike.
#[test]
fn nothing_is_found_outside() {
    let bed = Bed::new();
    let (path, bytes) = bed.indexed("dir/a", 2);
    let size_bytes = bytes.len() as u64;
    let similar = |below: &str| {
        let below = bed.root().join(below);
        bed.index().has_similar(bed.scope(&below), Some(size_bytes), Some(b"a"), &|| false)
    };
    for below in ["di", "dir/a", "dir2", "dir/sub", "other"] {
        assert_eq!(bed.found(&bytes, &bed.root().join(below)).1, 0, "{below}");
        assert!(!similar(below), "{below}");
    }
    for below in ["", "dir"] {
        assert_eq!(bed.found(&bytes, &bed.root().join(below)).0, std::slice::from_ref(&path));
        assert!(similar(below), "{below}");
    }
    // The same chunks inside and outside: those inside are named, in however many files they are outside.
    for outside in 0..5 {
        fs::write(bed.root().join(format!("copy{outside}")), &bytes).unwrap();
        bed.cut(&bed.root().join(format!("copy{outside}"))).unwrap();
    }
    assert_eq!(bed.found(&bytes, &bed.root().join("dir")), (vec![path], cut(&bytes).len()));
}

/// The question whether there is hope is about names and sizes (Y15).
#[test]
fn hope_is_a_size_or_a_name() {
    let bed = Bed::new();
    let (_, bytes) = bed.indexed("a", 3);
    let size = bytes.len() as u64;
    let hope = |size_bytes, name: Option<&[u8]>| {
        bed.index().has_similar(bed.scope(&bed.root()), Some(size_bytes), name, &|| false)
    };
    assert!(hope(size, None) && hope(size / 17 * 18, None) && hope(size / 20 * 19, None));
    assert!(!hope(size / 14 * 15, None) && !hope(size / 15 * 14, None) && !hope(size * 9, Some(b"b")));
    assert!(
        !bed.index().has_similar(bed.scope(&bed.root()), Some(size), None, &|| true),
        "it takes too long"
    );
    assert!(hope(size * 9, Some(b"a")));
    fs::remove_file(bed.root().join("a")).unwrap();
    assert!(!hope(size, None), "what is gone is no hope");
}

/// Y8: "touch a file -> its entries vanish"; so do those of one that was overwritten, cut short, removed, or replaced by
/// something that is no file.
#[test]
fn entries_of_a_changed_file_vanish() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 8] = [
        ("touched", |path| {
            let later = SystemTime::now() + Duration::from_secs(5);
            File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
        }),
        ("overwritten", |path| fs::write(path, random(2 * MIB + 777, 9)).unwrap()),
        ("cut short", |path| File::options().write(true).open(path).unwrap().set_len(MIB as u64).unwrap()),
        ("another of its size and time", |path| {
            let (before, other) = (fs::metadata(path).unwrap(), path.with_file_name("other"));
            fs::write(&other, random(before.len() as usize, 9)).unwrap();
            let time = before.modified().unwrap();
            File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
            fs::rename(&other, path).unwrap();
        }),
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a link", |path| {
            let aside = path.with_file_name("elsewhere");
            fs::create_dir(&aside).unwrap();
            fs::rename(path, aside.join("a")).unwrap();
            std::os::unix::fs::symlink(aside.join("a"), path).unwrap();
        }),
        ("a fifo", |path| {
            fs::remove_file(path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
    ];
    for (what, change) in changes {
        let mut bed = Bed::new();
        let (path, bytes) = bed.indexed("a", 4);
        change(&path);
        bed.assert_gone(&bytes);
        assert_eq!(bed.reopen(), None);
        bed.assert_gone(&bytes);
        if !path.is_file() || path.is_symlink() {
            let kind = if what == "a link" { None } else { Some(ErrorKind::NotFound) };
            assert_eq!(bed.cut(&path).err().map(|error| error.kind()), kind, "{what}");
        }
    }
}

/// Chunks of several files are found each in its own.
#[test]
fn chunks_of_several_files_are_told_apart() {
    let bed = Bed::new();
    let files = [bed.indexed("a", 1), bed.indexed("b", 2), bed.indexed("c", 3)];
    let chunks: Vec<_> = files.iter().flat_map(|(_, bytes)| cut(bytes)).collect();
    let (mut paths, count) = bed.found_of(&chunks, &bed.root());
    paths.sort();
    assert_eq!((paths, count), (files.map(|(path, _)| path).to_vec(), chunks.len()));
}

/// A file that was renamed is found under its new name, one that was moved when its new directory is looked at (STAT, Y11).
#[test]
fn a_renamed_file_is_found_again() {
    let mut bed = Bed::new();
    let (path, bytes) = bed.indexed("a", 5);
    let renamed = bed.root().join("b");
    fs::rename(&path, &renamed).unwrap();
    assert_eq!(bed.found(&bytes, &bed.root()).0, std::slice::from_ref(&renamed));
    assert_eq!(bed.reopen(), None);
    let dir = bed.root().join("dir");
    fs::create_dir(&dir).unwrap();
    let moved = dir.join("c");
    fs::rename(&renamed, &moved).unwrap();
    let opened = File::open(&dir).unwrap();
    let scope = Scope { opened: opened.as_fd(), directory: &dir, ..bed.scope(&dir) };
    // On another device it cannot be, and that is not looked at.
    bed.index().meet(Scope { dev: scope.dev + 1, ..scope });
    assert_eq!(bed.index().files().at(&moved).map(|(number, _)| number), None);
    bed.index().meet(scope);
    assert_eq!(bed.found(&bytes, &dir), (vec![moved.clone()], cut(&bytes).len()));
    assert_eq!(bed.index().figures().files, 1);
    // Taken in under its new name, too, it is known once, and not read again.
    fs::rename(&moved, dir.join("d")).unwrap();
    assert_eq!(bed.cut(&dir.join("d")).unwrap(), Cut::Known);
    assert_eq!(bed.found(&bytes, &dir), (vec![dir.join("d")], cut(&bytes).len()));
    assert_eq!(bed.index().figures().files, 1);
    // Another file in the place of the one that moved is not taken for it.
    fs::rename(dir.join("d"), bed.root().join("x")).unwrap();
    fs::write(dir.join("d"), random(bytes.len(), 6)).unwrap();
    bed.index().meet(scope);
    bed.assert_gone(&bytes);
}

/// A file that changes while it is cut is not taken in, nor one that is not read to its end; nothing is left of either.
#[test]
fn half_a_file_is_not_taken_in() {
    let bed = Bed::new();
    let (path, bytes) = (bed.root().join("a"), random(2 * MIB, 7));
    let mut reads = 0;
    let mut cut_with = |reopens: bool, change: &dyn Fn(usize) -> bool| {
        fs::write(&path, &bytes).unwrap();
        reads = 0;
        bed.index().cut(&path, &mut |len, file| {
            reads += len;
            if reopens {
                *file = None;
            }
            change(reads)
        })
    };
    let write = || File::options().write(true).open(&path).unwrap();
    for reopens in [false, true] {
        let cut_short = cut_with(reopens, &|read| read < MIB || write().set_len(9).is_ok());
        assert_eq!(cut_short.unwrap_err().kind(), ErrorKind::Changed);
        bed.assert_gone(&bytes);
        let later = SystemTime::now() + Duration::from_secs(9);
        let written = cut_with(reopens, &|read| read < MIB || write().set_modified(later).is_ok());
        assert_eq!(written.unwrap_err().kind(), ErrorKind::Changed);
        bed.assert_gone(&bytes);
        assert_eq!(cut_with(reopens, &|read| read < MIB).unwrap_err().kind(), ErrorKind::Interrupted);
        bed.assert_gone(&bytes);
    }
    assert_eq!(cut_with(false, &|_| true).unwrap(), Cut::Read(bytes.len() as u64));
    // Every read was asked for, with its length.
    assert_eq!(reads, bytes.len());
}

/// A file is opened again only where somebody waited, who closes it for that; otherwise it is open from its first read to its last.
#[test]
fn a_file_is_opened_again_after_a_wait() {
    let bed = Bed::new();
    let (path, bytes) = (bed.root().join("a"), random(2 * MIB, 16));
    fs::write(&path, &bytes).unwrap();
    let mut seen = Vec::new();
    let mut may_read = |_, file: &mut Option<File>| {
        let opened = file.as_ref().unwrap();
        // A mark that this open file has, and no other one of the same path.
        seen.push(rustix::fs::tell(opened).unwrap() == 7);
        rustix::fs::seek(opened, rustix::fs::SeekFrom::Start(7)).unwrap();
        if seen.len() == 5 {
            *file = None;
        }
        true
    };
    assert_eq!(bed.index().cut(&path, &mut may_read).unwrap(), Cut::Read(bytes.len() as u64));
    assert_eq!(seen, [false, true, true, true, true, false, true, true]);
}

/// One process has it; what another one is told is that, and not that it is damaged.
#[test]
fn a_second_one_goes_without() {
    let bed = Bed::new();
    let (_, bytes) = bed.indexed("a", 8);
    let second = ChunkIndex::open(&bed.dir.path().join("index"), IndexLimits::default());
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Refused);
    assert!(bed.found(&bytes, &bed.root()).1 > 0);
}

/// Another version, and one that was not left whole, is thrown away and made anew.
#[test]
fn what_is_not_understood_is_thrown_away() {
    for (text, words) in [("drayman chunk index 2\n", "another version"), ("", "another version")] {
        let mut bed = Bed::new();
        let (_, bytes) = bed.indexed("a", 9);
        fs::write(bed.dir.path().join("index/format"), text).unwrap();
        assert!(bed.reopen().unwrap().contains(words));
        bed.assert_gone(&bytes);
        assert_eq!(bed.reopen(), None, "told once");
    }
    let mut bed = Bed::new();
    let (path, bytes) = bed.indexed("a", 9);
    fs::remove_file(bed.dir.path().join("index/format")).unwrap();
    assert!(bed.reopen().unwrap().contains("not left whole"));
    bed.assert_gone(&bytes);
    assert!(matches!(bed.cut(&path).unwrap(), Cut::Read(_)), "it can be made anew");
}

/// A process that ended as it opened the index, be it of a loss of power, costs nothing; the second one in a row does: it may be of what it read.
#[test]
fn a_death_in_opening_is_borne_once() {
    let mut bed = Bed::new();
    let (path, bytes) = bed.indexed("a", 10);
    let left_as = |bed: &mut Bed, name: &str| {
        drop(bed.index.take());
        let at = |name: &str| bed.dir.path().join("index").join(name);
        fs::rename(at("format"), at(name)).unwrap();
        bed.reopen()
    };
    for _ in 0..3 {
        assert_eq!(left_as(&mut bed, "opening1"), None);
        assert_eq!(bed.found(&bytes, &bed.root()).0, std::slice::from_ref(&path));
    }
    assert!(left_as(&mut bed, "opening2").unwrap().contains("not left whole"));
    bed.assert_gone(&bytes);
    assert_eq!(bed.reopen(), None);
}

/// Where a link is on the way to a file by now it is not followed, though it leads to that very file: nobody knows where it hangs.
#[test]
fn no_link_is_followed_within() {
    let bed = Bed::new();
    let (path, bytes) = bed.indexed("dir/sub/a", 13);
    let before = look(&path).unwrap();
    fs::rename(bed.root().join("dir/sub"), bed.root().join("dir/real")).unwrap();
    std::os::unix::fs::symlink("real", bed.root().join("dir/sub")).unwrap();
    assert_eq!(look(&path), Some(before));
    assert_eq!(bed.found(&bytes, &bed.root()), (vec![], 0));
    // It is there, and what is looked for from above, or by others, is found as ever.
    bed.index().forget_missed(&mut || true).unwrap();
    assert_eq!(bed.index().figures().files, 1);
}

/// Whoever asks with a directory that is another one there than the one of that path here misses what is here, and takes nothing from
/// others by that, be it a file that is not there or another one.
#[test]
fn a_question_makes_nobody_forget() {
    let bed = Bed::new();
    let (path, bytes) = bed.indexed("home/a", 14);
    let (here, there) = (bed.root().join("home"), bed.root().join("there"));
    fs::create_dir(&there).unwrap();
    let opened = File::open(&there).unwrap();
    for _ in 0..2 {
        let scope = Scope { opened: opened.as_fd(), ..bed.scope(&here) };
        let keys: Vec<ChunkKey> = cut(&bytes).iter().map(|(_, chunk)| key(chunk)).collect();
        assert_eq!(bed.index().look_up(&keys, scope, &|| false).unwrap().files, [] as [PathBuf; 0]);
        assert!(!bed.index().has_similar(scope, Some(bytes.len() as u64), None, &|| false));
        assert_eq!(bed.found(&bytes, &here).0, std::slice::from_ref(&path));
        bed.index().forget_missed(&mut || true).unwrap();
        assert_eq!(bed.found(&bytes, &here).0, std::slice::from_ref(&path));
        fs::write(there.join("a"), b"another one").unwrap();
    }
    // What was missed stays to be looked at where that must not be done now.
    fs::remove_file(&path).unwrap();
    assert_eq!(bed.found(&bytes, &here).1, 0);
    bed.index().forget_missed(&mut || false).unwrap();
    assert_eq!(bed.index().figures().files, 1);
    bed.index().forget_missed(&mut || true).unwrap();
    assert_eq!(bed.index().figures().files, 0);
}

/// What lies on a file system that is not mounted now is away and not gone, whether its mount point is there still or not; what is gone
/// from one that is there is forgotten.
#[test]
fn what_is_not_mounted_is_not_forgotten() {
    let bed = Bed::new();
    let (path, _) = bed.indexed("here/a", 15);
    let dev = look(&path).unwrap().dev;
    fs::create_dir(bed.root().join("mount")).unwrap();
    for (name, ino) in [("mount/b", 1), ("mount/sub/c", 2), ("gone/d", 3)] {
        let identity = FileIdentity { dev: dev + 1, ino, ..look(&path).unwrap() };
        let entering = bed.index().enter(&bed.root().join(name), identity, Profile::default());
        let mut entering = entering.unwrap();
        entering.add(&chunk(ino), 0).unwrap();
        entering.finish().unwrap();
    }
    // Another file is there now.
    fs::write(bed.root().join("mount/b"), b"another one").unwrap();
    bed.index().forget_gone(&|_| false, &mut || true);
    for name in ["mount/b", "mount/sub/c", "gone/d"] {
        bed.index().look_again(&bed.root().join(name));
    }
    assert_eq!(bed.index().figures().files, 4);
    fs::rename(bed.root().join("here"), bed.root().join("there")).unwrap();
    bed.index().forget_gone(&|path| path.ends_with("here/a"), &mut || true);
    assert_eq!(bed.index().figures().files, 4, "what is left out is not looked at");
    bed.index().forget_gone(&|_| false, &mut || true);
    assert_eq!(bed.known(), ["b", "c", "d"]);
}

/// Copies a directory as a process that is killed leaves it: whatever is written, in whatever state.
fn snapshot(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            snapshot(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Killed at any moment: the next one opens what is there, without a word, and finds whole files or nothing.
#[test]
fn a_kill_at_any_moment_leaves_an_index() {
    let bed = Bed::new();
    let (first, first_bytes) = bed.indexed("a", 11);
    let (path, bytes) = (bed.root().join("b"), random(8 * MIB, 12));
    fs::write(&path, &bytes).unwrap();
    let mut snapshots = Vec::new();
    let mut take = |bed: &Bed| {
        let to = bed.root().join(format!("killed{}", snapshots.len()));
        snapshot(&bed.dir.path().join("index"), &to);
        snapshots.push(to);
    };
    let mut reads = 0;
    bed.index()
        .cut(&path, &mut |_, _| {
            reads += 1;
            if reads % 8 == 0 {
                take(&bed);
            }
            true
        })
        .unwrap();
    take(&bed);
    bed.index().forget_path(&first).unwrap();
    take(&bed);
    let whole = cut(&bytes).len();
    for (number, at) in snapshots.iter().enumerate() {
        let (index, reason) = ChunkIndex::open(at, IndexLimits::default()).unwrap();
        assert_eq!(reason, None);
        let after = Bed { dir: tempfile::tempdir().unwrap(), index: Some(index) };
        let found = after.found(&bytes, &bed.root()).1;
        let is_whole = number + 2 >= snapshots.len();
        assert_eq!(found, if is_whole { whole } else { 0 }, "snapshot {number}");
        let is_first_there = number + 1 < snapshots.len();
        assert_eq!(after.found(&first_bytes, &bed.root()).1 > 0, is_first_there);
        // No number is used twice: what was half written is not taken for the next file.
        let third = bed.root().join("c");
        fs::write(&third, random(MIB, 13)).unwrap();
        after.index().cut(&third, &mut |_, _| true).unwrap();
        assert_eq!(after.found(&bytes, &bed.root()).1, found);
    }
}

/// A directory that cannot be written is an error, and no panic.
#[test]
fn a_directory_that_cannot_be_used_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(ChunkIndex::open(&dir.path().join("file/index"), IndexLimits::default()).is_err());
    // Root may write anywhere; whoever is not is refused.
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
    if !rustix::process::geteuid().is_root() {
        assert!(ChunkIndex::open(&locked.join("index"), IndexLimits::default()).is_err());
    }
}

fn all_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => all_files(&path, found),
            path => found.push(path),
        }
    }
}
