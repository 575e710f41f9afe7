//! Group values of a file being sent, kept in the data directory so that a killed sender need not read again what it
//! had sent; or, where that cannot be, for this copy alone, in a temporary file or in memory, as far as that is little.
//! Keeping them spares work and is no reason for a copy to fail.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use dray_core::hash_tree::{Geometry, MemoryPairs, PAIR_BYTES, PairStore};
use dray_core::range::RangeSet;
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::boot_id;
use dray_store::lock_file;

use crate::outboard;

/// Values of copies that nobody resumed are removed after this long.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// Values taken into memory where there is neither a data directory nor a temporary file: those of a file of 64 GiB.
const IN_MEMORY_BYTES_MAX: u64 = 64 << 20;
const MAGIC: &[u8; 16] = b"dray origin 1\n\0\0";
/// Magic, boot id, unit map; the pairs begin at the next multiple of this.
const ALIGN: u64 = 4096;
/// Where the unit map begins: behind magic and boot id.
const MAP_START: u64 = 32;

/// The pairs of one file, wherever they are.
pub(super) struct Values {
    geometry: Geometry,
    place: RwLock<Place>,
}

enum Place {
    Kept(Kept),
    Passing(Arc<dyn PairStore>),
}

/// Values in a file of the data directory.
struct Kept {
    file: File,
    path: PathBuf,
    pairs_start: u64,
}

/// Where the values of the file called `id` are kept.
fn path_of(dir: &Path, id: &[u8; 32]) -> PathBuf {
    dir.join(hex(&id[..16]))
}

/// Removes the values of the file called `id`, unless a copy is using them.
pub(super) fn remove(dir: &Path, id: &[u8; 32]) {
    let path = path_of(dir, id);
    let Ok(file) = File::open(&path) else { return };
    if file.try_lock().is_ok() {
        let _ = std::fs::remove_file(&path);
    }
}

impl Values {
    /// Values of the file called `id`, in `dir` if that is given and has room; and the units that an earlier run left
    /// there.
    pub(super) fn open(dir: Option<&Path>, id: &[u8; 32], geometry: Geometry) -> Result<(Values, RangeSet)> {
        // Without the file a kill costs one more reading; nothing else. What was written before a crash of the machine
        // may not have reached the disk, so another boot starts afresh.
        let kept = dir.zip(boot_id()).and_then(|(dir, boot)| Kept::open(dir, id, &boot, geometry).ok());
        let (place, recorded) = match kept {
            Some((kept, recorded)) => (Place::Kept(kept), recorded),
            None => (Place::Passing(passing(geometry)?), RangeSet::new()),
        };
        Ok((Values { geometry, place: RwLock::new(place) }, recorded))
    }

    /// Nobody needs them any more after this copy.
    pub(super) fn discard(&self) {
        if let Place::Kept(kept) = &*self.place.read().unwrap_or_else(PoisonError::into_inner) {
            let _ = std::fs::remove_file(&kept.path);
        }
    }

    /// Sets byte `at` of the map of units that have values.
    pub(super) fn mark(&self, at: u64, byte: u8) -> Result<()> {
        self.write(&[byte], MAP_START + at, None)
    }

    /// Forgets which units have values.
    pub(super) fn forget(&self) -> Result<()> {
        let map_bytes = usize::try_from(self.geometry.units().div_ceil(8)).unwrap_or(0);
        self.write(&vec![0; map_bytes], MAP_START, None)
    }

    /// Writes at `offset` of the file, or, where there is none, at `pair_offset` of the pairs alone. A file that cannot
    /// be written any more is given up.
    fn write(&self, bytes: &[u8], offset: u64, pair_offset: Option<u64>) -> Result<()> {
        {
            let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
            match &*place {
                Place::Kept(kept)
                    if kept.file.write_all_at(bytes, kept.start(pair_offset) + offset).is_ok() =>
                {
                    return Ok(());
                }
                Place::Kept(_) => {}
                Place::Passing(pairs) => {
                    return pair_offset.map_or(Ok(()), |offset| pairs.write_at(offset, bytes));
                }
            }
        }
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        if let Place::Kept(kept) = &*place {
            *place = Place::Passing(kept.give_up(self.geometry)?);
        }
        match (&*place, pair_offset) {
            (Place::Passing(pairs), Some(offset)) => pairs.write_at(offset, bytes),
            _ => Ok(()),
        }
    }
}

impl PairStore for Values {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        match &*self.place.read().unwrap_or_else(PoisonError::into_inner) {
            Place::Passing(pairs) => pairs.read_pairs(first_index, out),
            Place::Kept(kept) => kept
                .file
                .read_exact_at(out, kept.pairs_start + first_index * PAIR_BYTES as u64)
                .map_err(|error| kept.failed(error)),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(bytes, 0, Some(offset))
    }
}

impl Kept {
    fn open(dir: &Path, id: &[u8; 32], boot: &[u8; 16], geometry: Geometry) -> Result<(Kept, RangeSet)> {
        let failed = |error: std::io::Error| Error::file("keep values", error);
        std::fs::create_dir_all(dir).map_err(failed)?;
        clean(dir);
        let path = path_of(dir, id);
        let file = lock_file::open(&path).map_err(failed)?;
        // Two copies of the same file at once: one remembers, the other does without.
        file.try_lock().map_err(|_| Error::new(ErrorKind::Refused, "another copy of this file runs"))?;
        let map_bytes = geometry.units().div_ceil(8);
        let pairs_start = (MAP_START + map_bytes).next_multiple_of(ALIGN);
        let kept = Kept { file, path, pairs_start };
        match kept.prepare(boot, geometry) {
            Ok(recorded) => Ok((kept, recorded)),
            Err(error) => {
                // It would take room that there is not.
                let _ = std::fs::remove_file(&kept.path);
                Err(failed(error))
            }
        }
    }

    /// The units an earlier run of this boot left; else a fresh file with all its room reserved, so that a full disk
    /// shows now and not in the middle of the copy.
    fn prepare(&self, boot: &[u8; 16], geometry: Geometry) -> std::io::Result<RangeSet> {
        let size = self.pairs_start + geometry.outboard_bytes();
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(boot);
        let mut found = [0; MAP_START as usize];
        let is_usable = self.file.metadata()?.len() == size
            && self.file.read_exact_at(&mut found, 0).is_ok()
            && found[..] == header[..];
        let mut recorded = RangeSet::new();
        if !is_usable {
            self.file.set_len(0)?;
            self.file.set_len(size)?;
            match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, size) {
                // A file system that cannot reserve may still have the room.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
            self.file.write_all_at(&header, 0)?;
            return Ok(recorded);
        }
        let mut map = vec![0; usize::try_from(geometry.units().div_ceil(8)).unwrap_or(0)];
        self.file.read_exact_at(&mut map, MAP_START)?;
        for unit in 0..geometry.units() {
            if usize::try_from(unit / 8).is_ok_and(|at| map[at] >> (unit % 8) & 1 == 1) {
                recorded.insert(unit..unit + 1);
            }
        }
        Ok(recorded)
    }

    /// Where what is written lies: the pairs have an offset of their own.
    fn start(&self, pair_offset: Option<u64>) -> u64 {
        pair_offset.map_or(0, |offset| self.pairs_start + offset)
    }

    /// Moves the values to where they are not kept and removes the file: what it says is not kept up any more.
    fn give_up(&self, geometry: Geometry) -> Result<Arc<dyn PairStore>> {
        let _ = std::fs::remove_file(&self.path);
        let pairs = passing(geometry)?;
        let mut piece = vec![0; 1 << 20];
        let mut at = 0;
        while at < geometry.outboard_bytes() {
            let len = (geometry.outboard_bytes() - at).min(piece.len() as u64) as usize;
            let piece = &mut piece[..len];
            self.file.read_exact_at(piece, self.pairs_start + at).map_err(|error| self.failed(error))?;
            // What was not recorded yet takes no room.
            if piece.iter().any(|byte| *byte != 0) {
                pairs.write_at(at, piece)?;
            }
            at += len as u64;
        }
        Ok(pairs)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::file(format!("read {}", self.path.display()), error)
    }
}

/// Room for the values of this copy alone.
fn passing(geometry: Geometry) -> Result<Arc<dyn PairStore>> {
    outboard::passing(geometry).or_else(|error| {
        if geometry.outboard_bytes() > IN_MEMORY_BYTES_MAX {
            return Err(error);
        }
        Ok(Arc::new(MemoryPairs::new(geometry)?))
    })
}

fn clean(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if age.is_some_and(|age| age > KEEP) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use dray_core::limits::GROUP_BYTES;

    use super::*;

    const ID: [u8; 32] = [9; 32];

    fn geometry() -> Geometry {
        Geometry::new(1000 * GROUP_BYTES)
    }

    fn pair(index: u64) -> [u8; PAIR_BYTES] {
        [index as u8 + 1; PAIR_BYTES]
    }

    fn write(values: &Values, index: u64) {
        values.write_at(index * PAIR_BYTES as u64, &pair(index)).unwrap();
    }

    fn read(values: &Values, index: u64) -> [u8; PAIR_BYTES] {
        let mut found = [0; PAIR_BYTES];
        values.read_pairs(index, &mut found).unwrap();
        found
    }

    /// Design 10: values survive the process, and their room is taken at once.
    #[test]
    fn values_are_found_again() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (values, recorded) = Values::open(Some(dir.path()), &ID, geometry()).unwrap();
        assert!(recorded.is_empty());
        let entry = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
        assert!(entry.metadata().unwrap().blocks() * 512 >= geometry().outboard_bytes());
        write(&values, 3);
        values.mark(0, 0b101).unwrap();
        // Another copy of the same file meanwhile does without.
        let (other, _) = Values::open(Some(dir.path()), &ID, geometry()).unwrap();
        write(&other, 3);
        drop((values, other));
        let (again, recorded) = Values::open(Some(dir.path()), &ID, geometry()).unwrap();
        assert_eq!(recorded.iter().collect::<Vec<_>>(), [0..1, 2..3]);
        assert_eq!(read(&again, 3), pair(3));
        again.forget().unwrap();
        // Nobody takes them from a copy that is under way.
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        remove(dir.path(), &ID);
        assert_eq!(count(), 1);
        drop(again);
        assert!(Values::open(Some(dir.path()), &ID, geometry()).unwrap().1.is_empty());
        remove(dir.path(), &ID);
        assert_eq!(count(), 0);
    }

    /// A file that takes no more bytes (here: one that may only be read) is given up; every value stays, and the copy
    /// goes on.
    #[test]
    fn a_file_that_fails_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let (values, _) = Values::open(Some(dir.path()), &ID, geometry()).unwrap();
        write(&values, 0);
        write(&values, 998);
        if let Place::Kept(kept) = &mut *values.place.write().unwrap() {
            kept.file = File::open(&kept.path).unwrap();
        } else {
            panic!("values were to be kept");
        }
        write(&values, 5);
        values.mark(0, 1).unwrap();
        values.forget().unwrap();
        for index in [0, 5, 998] {
            assert_eq!(read(&values, index), pair(index));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// S30: where values cannot be kept, those of a huge file take no memory before they are there.
    #[test]
    fn values_of_a_huge_file_take_no_memory() {
        let resident_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let geometry = Geometry::new(1 << 40);
        let before = resident_kib();
        let (values, _) = Values::open(None, &ID, geometry).unwrap();
        write(&values, geometry.groups() - 2);
        assert_eq!(read(&values, geometry.groups() - 2), pair(geometry.groups() - 2));
        let grown = resident_kib().saturating_sub(before);
        assert!(grown < 256 << 10, "{grown} KiB");
    }
}
