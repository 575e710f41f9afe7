//! Test data and the outside witnesses that look at it: seeded random files, files with holes, `cmp`, `b3sum`,
//! allocated blocks, left-over names.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use dray_lab::SplitMix64;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// What a seed decides.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn next_word(&mut self) -> u64 {
        self.0.next_word()
    }

    /// A number in `range`, which must not be empty.
    pub fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next_word() % (range.end - range.start)
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for piece in out.chunks_mut(8) {
            let word = self.next_word().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

/// Writes a file of `size_bytes` incompressible bytes that depend on `seed` alone.
pub fn write_random(path: &Path, size_bytes: u64, seed: u64) {
    let mut file = File::create(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
    append_random(&mut file, size_bytes, seed);
}

fn append_random(file: &mut File, size_bytes: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut block = vec![0; MIB as usize];
    let mut left = size_bytes;
    while left > 0 {
        let len = left.min(MIB) as usize;
        random.fill(&mut block[..len]);
        file.write_all(&block[..len]).expect("write test data");
        left -= len as u64;
    }
}

/// Bytes of `size_bytes` that depend on `seed` alone.
pub fn random_bytes(size_bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; size_bytes];
    Random::new(seed).fill(&mut out);
    out
}

/// Writes a file of `size_bytes` that is hole but for `islands` pieces of 192 KiB of random data, evenly spread, none
/// at the end.
pub fn write_sparse(path: &Path, size_bytes: u64, islands: u64, seed: u64) {
    let mut file = File::create(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
    file.set_len(size_bytes).expect("size of a sparse file");
    for island in 0..islands {
        // On a block boundary, so that the holes around it are whole blocks.
        let at = (size_bytes / (islands + 1) * (island + 1)) & !0xffff;
        file.seek(SeekFrom::Start(at)).expect("seek");
        append_random(&mut file, 192 * 1024, seed + island);
    }
}

/// Inverts one bit of the file.
pub fn flip_bit(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("open to flip a bit");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read the byte to flip");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).expect("write the flipped byte");
}

/// Panics unless `cmp` finds the two files equal.
pub fn assert_same(left: &Path, right: &Path) {
    let output = Command::new("cmp").arg("--").arg(left).arg(right).output().expect("run cmp");
    assert!(
        output.status.success(),
        "cmp {} {}: {}{}",
        left.display(),
        right.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The 64 hex digits that `b3sum` prints for the file.
pub fn b3sum(path: &Path) -> String {
    let input = File::open(path).unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
    let output = Command::new("b3sum").arg("--no-names").stdin(input).output().expect("run b3sum");
    assert!(output.status.success(), "b3sum {}", path.display());
    String::from_utf8(output.stdout).expect("b3sum prints text").trim().to_owned()
}

/// Bytes the file takes on disk, once it is there: only then does the file system know them for good.
pub fn settled_bytes(path: &Path) -> u64 {
    File::open(path)
        .and_then(|file| file.sync_all())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    allocated_bytes(path)
}

/// Bytes the file takes on disk as of now.
pub fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}

/// Names in `dir`, hidden ones too, sorted.
pub fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("list {}: {error}", dir.display()))
        .map(|entry| entry.expect("directory entry").file_name())
        .collect();
    names.sort();
    names
}

/// Paths of everything below `root`, from there, sorted; none where `root` is not there.
pub fn names_below(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten() {
            let entry = entry.expect("directory entry");
            found.push(entry.path().strip_prefix(root).expect("below the root").to_owned());
            if entry.file_type().expect("type of an entry").is_dir() {
                left.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Names in `dir` that look like an unfinished delivery.
pub fn unfinished(dir: &Path) -> Vec<std::ffi::OsString> {
    names(dir).into_iter().filter(|name| is_resume_state(name)).collect()
}

/// True for a name that `dray` gives to what it has not finished in a tree.
pub fn is_ours(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".dray-")
}

/// True for that, and for the name of an unfinished delivery.
pub fn is_resume_state(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.windows(6).any(|part| part == b".dray-")
}

/// Bytes written so far to the unfinished deliveries in `dir`, their maps aside. Space that is only reserved does not
/// count.
pub fn unfinished_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| {
            let name = entry.file_name();
            is_resume_state(&name) && !name.as_encoded_bytes().ends_with(b".state")
        })
        .map(|entry| written_bytes(&entry.path()).unwrap_or(0))
        .sum()
}

/// Sum of the file's data extents; `None` if it has gone.
fn written_bytes(path: &Path) -> Option<u64> {
    let file = File::open(path).ok()?;
    let (mut at, mut sum) = (0, 0);
    // Ends with ENXIO behind the last data.
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).ok()?;
        sum += at - start;
    }
    Some(sum)
}
