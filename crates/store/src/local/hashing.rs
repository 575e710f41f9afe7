//! Hashing a file with all cores: threads take units of 1 MiB in turn and read them by position. Holes are hashed
//! but not read.

use std::collections::HashMap;
use std::fs::File;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};
use dray_core::hash_tree::{Cv, Geometry, Subtree, group_cv, subtree_pairs};
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::store::Extent;
use dray_core::{Error, ErrorKind, Oid, Result};

use super::extents::{ZEROS, extent_of, identity, io_at, open_regular, read_full_at, require_end};
use super::repeats::Repeats;

/// Threads at most; each has a buffer of one unit.
const THREADS_MAX: usize = 16;

/// Hashes a regular file and returns its OID and size in bytes, with a few units of memory and nothing on disk. `progress` hears the
/// bytes hashed so far, from any thread. `Interrupted` soon after `is_stopped` says yes, `Changed` if the file changed
/// meanwhile, `Usage` if it is no regular file.
pub fn hash_file(
    path: &Path,
    progress: &(dyn Fn(u64) + Sync),
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<(Oid, u64)> {
    let (file, before) = open_regular(path)?;
    let watch = Watch { progress, is_stopped, repeats: None };
    let oid = hash_open(&file, path, Geometry::new(before.size_bytes), &watch)?;
    let after = identity(&file.metadata().map_err(|error| io_at("read", path, error))?);
    if after != before {
        return Err(changed_while_hashed(path));
    }
    require_end(&file, path, before.size_bytes)?;
    Ok((oid, before.size_bytes))
}

/// The OID of an open file, of which `path` is for messages. Whether it held still is for the caller to know.
pub(super) fn hash_open(file: &File, path: &Path, geometry: Geometry, watch: &Watch<'_>) -> Result<Oid> {
    let fold = TreeFold::new(geometry);
    hash_units(file, path, geometry, watch, &|unit, leaves| {
        fold.add(geometry.unit(unit), subtree_pairs(geometry, geometry.unit(unit), leaves).1);
        Ok(())
    })?;
    fold.root()
}

/// Who hears how far hashing is, and may stop it. Both are called from any thread, once a unit.
pub(super) struct Watch<'a> {
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
    pub(super) is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Counts what stands in the file more than once.
    pub(super) repeats: Option<&'a Repeats>,
}

impl Watch<'static> {
    /// Nobody hears and nobody stops.
    pub(super) const NOBODY: Watch<'static> =
        Watch { progress: &|_| {}, is_stopped: &|| false, repeats: None };
}

/// Value of the parent of two subtrees.
pub(super) fn merge(left: &Cv, right: &Cv, is_root: bool) -> Cv {
    if is_root {
        *merge_subtrees_root(left, right, Mode::Hash).as_bytes()
    } else {
        merge_subtrees_non_root(left, right, Mode::Hash)
    }
}

/// The error of a file that did not hold still.
pub(super) fn changed_while_hashed(path: &Path) -> Error {
    Error::new(ErrorKind::Changed, format!("{path:?} changed while it was read"))
        .advise("try again when nothing writes to it")
}

/// Hashes every unit of `file`, each exactly once, in no particular order, and hands its group values to `sink`.
/// `Changed` if the file ends early, `Interrupted` if the watcher stops it.
pub(super) fn hash_units(
    file: &File,
    path: &Path,
    geometry: Geometry,
    watch: &Watch<'_>,
    sink: &(dyn Fn(u64, &[Cv]) -> Result<()> + Sync),
) -> Result<()> {
    let next_unit = AtomicU64::new(0);
    let hashed_bytes = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        let mut reader = UnitReader::new(file, path, geometry);
        while !stop.load(Ordering::Relaxed) {
            let unit = next_unit.fetch_add(1, Ordering::Relaxed);
            if unit >= geometry.units() {
                break;
            }
            let hashed = if (watch.is_stopped)() {
                Err(Error::new(ErrorKind::Interrupted, format!("interrupted while {path:?} was read")))
            } else {
                let leaves = reader.leaves(unit, watch.repeats);
                leaves.and_then(|leaves| sink(unit, leaves))
            };
            match hashed {
                Ok(()) => {
                    let range = geometry.byte_range(geometry.unit(unit));
                    let bytes = range.end - range.start;
                    (watch.progress)(hashed_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes);
                }
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    // How many cores there are takes several files to find out: not for a small file.
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    let threads = match geometry.units() {
        0 | 1 => 1,
        units => usize::try_from(units).unwrap_or(usize::MAX).min(cores()),
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where no further thread can be had, the ones there are do the work.
            let _ = std::thread::Builder::new().name("hash".into()).spawn_scoped(scope, work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Reads and hashes units; one a thread.
struct UnitReader<'a> {
    file: &'a File,
    path: &'a Path,
    geometry: Geometry,
    buffer: Vec<u8>,
    leaves: Vec<Cv>,
    extent: Extent,
}

impl<'a> UnitReader<'a> {
    fn new(file: &'a File, path: &'a Path, geometry: Geometry) -> UnitReader<'a> {
        // Bounded by the size of a unit, so the cast cannot truncate.
        let buffer = vec![0; geometry.size_bytes().min(UNIT_BYTES) as usize];
        let extent = Extent { range: 0..0, is_hole: false };
        UnitReader { file, path, geometry, buffer, leaves: Vec::new(), extent }
    }

    fn leaves(&mut self, unit: u64, repeats: Option<&Repeats>) -> Result<&[Cv]> {
        let node = self.geometry.unit(unit);
        let range = self.geometry.byte_range(node);
        let is_hole = self.fill(range.start, range.end)?;
        self.leaves.clear();
        let looked_at = repeats.and_then(|repeats| repeats.group_of(unit));
        for group in node.start..node.end() {
            let len = self.geometry.group_bytes(group);
            let start = ((group - node.start) * GROUP_BYTES) as usize;
            let bytes = if is_hole { &ZEROS[..len] } else { &self.buffer[start..start + len] };
            self.leaves.push(group_cv(self.geometry, group, bytes));
            if let Some(repeats) = repeats.filter(|_| !is_hole && looked_at == Some(group)) {
                repeats.look(bytes);
            }
        }
        Ok(&self.leaves)
    }

    /// Reads `start..end` into the buffer, or returns true without touching it if all of that is hole.
    fn fill(&mut self, start: u64, end: u64) -> Result<bool> {
        let mut at = start;
        while at < end {
            if !self.extent.range.contains(&at) {
                self.extent = extent_of(self.file, at, self.geometry.size_bytes())
                    .map_err(|error| io_at("read", self.path, error))?;
            }
            let stop = self.extent.range.end.min(end);
            if self.extent.is_hole && at == start && stop == end {
                return Ok(true);
            }
            let piece = &mut self.buffer[(at - start) as usize..(stop - start) as usize];
            if self.extent.is_hole {
                piece.fill(0);
            } else {
                let filled = read_full_at(self.file, at, piece);
                if !filled.map_err(|error| io_at("read", self.path, error))? {
                    return Err(changed_while_hashed(self.path));
                }
            }
            at = stop;
        }
        Ok(false)
    }
}

/// Merges subtrees into the root as they arrive. Keeps only those whose sibling is missing, which the order in which
/// units are handed out bounds by the number of threads and the depth of the tree.
struct TreeFold {
    geometry: Geometry,
    waiting: Mutex<HashMap<Subtree, Cv>>,
}

impl TreeFold {
    fn new(geometry: Geometry) -> TreeFold {
        TreeFold { geometry, waiting: Mutex::new(HashMap::new()) }
    }

    fn add(&self, mut node: Subtree, mut cv: Cv) {
        let path = self.geometry.path(node);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for parent in path.iter().rev().skip(1) {
            let (left, right) = parent.children();
            let sibling = if node == left { right } else { left };
            let Some(other) = waiting.remove(&sibling) else { break };
            let (left_cv, right_cv) = if node == left { (cv, other) } else { (other, cv) };
            cv = merge(&left_cv, &right_cv, *parent == self.geometry.root());
            node = *parent;
        }
        waiting.insert(node, cv);
    }

    fn root(self) -> Result<Oid> {
        let waiting = self.waiting.into_inner().unwrap_or_else(PoisonError::into_inner);
        let root = waiting.get(&self.geometry.root());
        root.map(|cv| Oid::from_blake3(*cv))
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a unit of the file was not hashed"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// D5: the OID of a file is what b3sum prints, whatever its size and wherever its holes lie; a unit is
    /// reported once.
    #[test]
    fn agrees_with_blake3_at_all_sizes_and_with_holes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for size in [0, 1, GROUP_BYTES, GROUP_BYTES + 1, UNIT_BYTES, UNIT_BYTES + 1, 5 * UNIT_BYTES + 77] {
            for sparse in [false, true] {
                let mut model = vec![0; size as usize];
                let file = File::create(&path).unwrap();
                file.set_len(size).unwrap();
                let pieces: &[(u64, u64)] =
                    if sparse { &[(3 * UNIT_BYTES + 9_000, 70_000)] } else { &[(0, u64::MAX)] };
                for (start, len) in pieces {
                    let range = (*start).min(size)..start.saturating_add(*len).min(size);
                    for at in range.clone() {
                        model[at as usize] = (at * 7 % 253) as u8;
                    }
                    file.write_all_at(&model[range.start as usize..range.end as usize], range.start).unwrap();
                }
                let seen = AtomicU64::new(0);
                let (oid, len) = hash_file(
                    &path,
                    &|bytes| {
                        seen.fetch_max(bytes, Ordering::Relaxed);
                    },
                    &|| false,
                )
                .unwrap();
                assert_eq!((oid, len), (Oid::of(&model), size), "size {size} sparse {sparse}");
                assert_eq!(seen.into_inner(), size);
            }
        }
    }

    /// Issue "the first signal ends a command": hashing stops between two units, long before the end of the file.
    #[test]
    fn stops_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(1000 * UNIT_BYTES).unwrap();
        let seen = AtomicU64::new(0);
        let progress = |bytes| {
            seen.fetch_max(bytes, Ordering::Relaxed);
        };
        let stopped = hash_file(&path, &progress, &|| seen.load(Ordering::Relaxed) > 0).unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Interrupted);
        // Each thread may finish the unit it has begun.
        assert!(seen.into_inner() <= (THREADS_MAX as u64 + 1) * UNIT_BYTES);
    }

    /// D5: a file that changes while it is hashed has no OID: written to, or only given another length, as the last of it is read.
    #[test]
    fn a_file_that_changes_meanwhile_is_refused() {
        let change: [fn(&File); 3] = [
            |file| file.write_all_at(b"x", 0).unwrap(),
            |file| file.set_len(UNIT_BYTES + 1).unwrap(),
            |_| {},
        ];
        for (number, change) in change.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            std::fs::write(&path, vec![7; UNIT_BYTES as usize]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            // A step of the file system's clock.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let hashed = hash_file(&path, &|_| change(&file), &|| false);
            assert_eq!(
                hashed.map_err(|error| error.kind()).err(),
                (number < 2).then_some(ErrorKind::Changed)
            );
        }
    }

    /// D14: what is no regular file is refused by name before it is opened.
    #[test]
    fn other_kinds_of_file_are_refused() {
        for path in ["/", "/dev/null"] {
            let error = hash_file(Path::new(path), &|_| {}, &|| false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains(path) && error.advice().is_some());
        }
        let endless = hash_file(Path::new("/proc/version"), &|_| {}, &|| false).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::Usage, "{endless}");
        assert!(endless.to_string().contains("no ordinary file"));
        let missing = hash_file(Path::new("/nonexistent/file"), &|_| {}, &|| false).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
