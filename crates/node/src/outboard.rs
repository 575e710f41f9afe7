//! Where the hash tree of an object rests while the object streams through: 1/1024 of its size, in memory while that
//! is little, else in a temporary file without a name, so that a large object (or a lie about the size) takes disk
//! only as it arrives and no memory.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use dray_core::hash_tree::{Geometry, MemoryPairs, PAIR_BYTES, PairStore};
use dray_core::{Error, ErrorKind, Result};

/// Larger trees go to a file: that of an object of 4 GiB.
const IN_MEMORY_BYTES_MAX: u64 = 4 << 20;

/// An empty outboard for an object of shape `geometry` that is not kept.
pub(crate) fn passing(geometry: Geometry) -> Result<Arc<dyn PairStore>> {
    if geometry.outboard_bytes() <= IN_MEMORY_BYTES_MAX {
        return Ok(Arc::new(MemoryPairs::new(geometry)?));
    }
    let dir = std::env::temp_dir();
    let file = unnamed_file(&dir)
        .map_err(|error| Error::file(format!("make a temporary file in {}", dir.display()), error))?;
    Ok(Arc::new(FilePairs(file)))
}

/// A file that no name leads to and that ends with its descriptor.
fn unnamed_file(dir: &Path) -> std::io::Result<File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits();
    if let Ok(flags) = i32::try_from(flags)
        && let Ok(file) = options.clone().custom_flags(flags).open(dir)
    {
        return Ok(file);
    }
    // A file system without such files: one with a name that nobody else has, for a moment.
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let path = dir.join(format!("dray-tree-{:016x}", u64::from_be_bytes(random)));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Pairs in a sparse file; what was not written reads as nothing and proves nothing.
struct FilePairs(File);

impl PairStore for FilePairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let offset = first_index.checked_mul(PAIR_BYTES as u64);
        let offset = offset.ok_or_else(|| Error::new(ErrorKind::Internal, "a pair beyond any object"))?;
        self.0
            .read_exact_at(out, offset)
            .map_err(|error| Error::file("read the hash tree's temporary file", error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, offset).map_err(|error| {
            Error::file("write the hash tree's temporary file", error)
                .advise("set TMPDIR to a directory with room for 1/1024 of the object")
        })
    }
}

#[cfg(test)]
mod tests {
    use dray_core::limits::{GROUP_BYTES, OBJECT_BYTES_MAX};

    use super::*;

    /// Design 17, B4: a claimed size of any height is taken without memory, and a tree too large for memory keeps
    /// what is put into it.
    #[test]
    fn trees_of_any_size_are_taken() {
        passing(Geometry::new(OBJECT_BYTES_MAX)).unwrap();
        for groups in [3, 1 << 17] {
            let pairs = passing(Geometry::new(groups * GROUP_BYTES)).unwrap();
            let pair = [7; PAIR_BYTES];
            pairs.write_at((groups - 2) * PAIR_BYTES as u64, &pair).unwrap();
            let mut found = [0; PAIR_BYTES];
            pairs.read_pairs(groups - 2, &mut found).unwrap();
            assert_eq!(found, pair);
        }
    }

    /// A temporary file leaves no name behind.
    #[test]
    fn a_temporary_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = unnamed_file(dir.path()).unwrap();
        file.write_all_at(b"x", 1 << 30).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
