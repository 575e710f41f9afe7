//! An object being received into memory.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dray_core::hash_tree::{Geometry, MemoryPairs, PairStore};
use dray_core::range::RangeSet;
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Result};

/// A partial object in memory; it does not outlive the process.
#[derive(Debug)]
pub struct MemoryPartial {
    size_bytes: u64,
    pairs: MemoryPairs,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    data: Vec<u8>,
    marked: RangeSet,
}

impl MemoryPartial {
    /// Room for an object of `size_bytes`, all zeros. `NoSpace` if that does not fit memory.
    pub fn new(size_bytes: u64) -> Result<MemoryPartial> {
        let no_room =
            || Error::new(ErrorKind::NoSpace, format!("an object of {size_bytes} bytes does not fit memory"));
        let len = usize::try_from(size_bytes).map_err(|_| no_room())?;
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|error| no_room().caused_by(error))?;
        data.resize(len, 0);
        let pairs = MemoryPairs::new(Geometry::new(size_bytes))?;
        Ok(MemoryPartial { size_bytes, pairs, inner: Mutex::new(Inner { data, marked: RangeSet::new() }) })
    }

    /// A copy of all bytes, received or not.
    pub fn to_vec(&self) -> Vec<u8> {
        self.inner().data.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_unit(&self, unit: u64) -> Result<()> {
        if unit < Geometry::new(self.size_bytes).units() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Internal, format!("the object has no unit {unit}")))
        }
    }
}

fn piece(data: &mut [u8], offset: u64, len: u64) -> Result<&mut [u8]> {
    let have = data.len();
    usize::try_from(offset)
        .ok()
        .zip(usize::try_from(len).ok())
        .and_then(|(start, len)| data.get_mut(start..start.checked_add(len)?))
        .ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("object of {have} bytes has no bytes {offset}+{len}"))
        })
}

impl PairStore for MemoryPartial {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        self.pairs.read_pairs(first_index, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pairs.write_at(offset, bytes)
    }
}

impl PartialObject for MemoryPartial {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn marked_units(&self) -> RangeSet {
        self.inner().marked.clone()
    }

    fn write_data(&self, offset: u64, data: &[u8]) -> Result<()> {
        piece(&mut self.inner().data, offset, data.len() as u64)?.copy_from_slice(data);
        Ok(())
    }

    fn write_hole(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        piece(&mut self.inner().data, range.start, len)?.fill(0);
        Ok(())
    }

    fn read_data(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(piece(&mut self.inner().data, offset, out.len() as u64)?);
        Ok(())
    }

    fn mark_unit(&self, unit: u64) -> Result<()> {
        self.check_unit(unit)?;
        self.inner().marked.insert(unit..unit + 1);
        Ok(())
    }

    fn unmark_unit(&self, unit: u64) -> Result<()> {
        self.check_unit(unit)?;
        self.inner().marked.remove(unit..unit + 1);
        Ok(())
    }
}
