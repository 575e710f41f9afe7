//! Which units of the data file may take room on disk. Room is reserved ahead of the writes, because several threads
//! that extend one file in turn are many times slower than threads that fill reserved room; and given back where a
//! hole arrives instead of data.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dray_core::hash_tree::Geometry;
use dray_core::limits::UNIT_BYTES;

use super::state::{Layout, UnitMap};
use crate::local::extents::ZEROS;
use crate::local::file_systems::{TMPFS, lies_on};

/// Units (8 MiB) for which room is reserved at once. More would keep every writer waiting for milliseconds, in which the
/// pipes and sockets before it run full and their other ends stop.
const SEGMENT_UNITS: u64 = 8;

#[derive(Debug)]
pub(super) struct Space {
    geometry: Geometry,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Units that may be something other than a hole.
    used: UnitMap,
    /// Units that have their final form, as far as is known: no room is reserved for them.
    settled: UnitMap,
    /// Segments for which room has been reserved.
    reserved: Vec<bool>,
}

impl Space {
    /// The space of a data file that is all hole, or, after an earlier run, anything at all outside `settled`.
    pub(super) fn new(geometry: Geometry, layout: Layout, was_used: bool, settled: UnitMap) -> Space {
        let used = UnitMap(vec![if was_used { 0xff } else { 0 }; layout.map_bytes]);
        // At most 2^23, by the limit on sizes.
        let segments = geometry.units().div_ceil(SEGMENT_UNITS) as usize;
        Space { geometry, inner: Mutex::new(Inner { used, settled, reserved: vec![false; segments] }) }
    }

    /// Says that data is about to be written to `range`, which is not empty.
    pub(super) fn use_for_data(&self, file: &File, range: &Range<u64>) {
        let mut inner = self.inner();
        for unit in units_of(range) {
            inner.used.put(unit, true);
            let segment = (unit / SEGMENT_UNITS) as usize;
            // An object of one unit is written at once; there is nothing to be ahead of.
            if self.geometry.units() > 1 && !std::mem::replace(&mut inner.reserved[segment], true) {
                self.reserve(file, &mut inner, segment as u64);
            }
        }
    }

    /// Says that `range`, which is not empty, is about to share blocks of another file: no room is reserved for it.
    pub(super) fn use_for_shared(&self, range: &Range<u64>) {
        let mut inner = self.inner();
        for unit in units_of(range) {
            inner.used.put(unit, true);
            inner.settled.put(unit, true);
        }
    }

    /// Makes `range`, which is not empty, a hole.
    pub(super) fn use_for_hole(&self, file: &File, range: &Range<u64>) -> io::Result<()> {
        let is_used = {
            let mut inner = self.inner();
            let is_used = units_of(range).any(|unit| inner.used.contains(unit));
            for unit in units_of(range) {
                inner.settled.put(unit, true);
            }
            is_used
        };
        if is_used { punch(file, range.clone()) } else { Ok(()) }
    }

    /// Reserves room for the units of `segment` that are not settled. Best effort: where the file system cannot, or
    /// has no room, what was taken is given back (the state file may need it more), no more is tried, and the writes
    /// themselves say what is wrong. Holding the lock keeps holes from being punched too early.
    fn reserve(&self, file: &File, inner: &mut Inner, segment: u64) {
        let first = segment * SEGMENT_UNITS;
        let end = (first + SEGMENT_UNITS).min(self.geometry.units());
        let mut unit = first;
        while unit < end {
            let run = unit..(unit..end).find(|unit| inner.settled.contains(*unit)).unwrap_or(end);
            for unit in run.clone() {
                inner.used.put(unit, true);
            }
            let bytes = run.start * UNIT_BYTES..(run.end * UNIT_BYTES).min(self.geometry.size_bytes());
            if !bytes.is_empty() && !allocate(file, bytes.clone()) {
                // Nothing was written there in this run, and what an earlier one wrote was not marked.
                let _ = free(file, bytes);
                inner.reserved.fill(true);
                return;
            }
            unit = run.end + 1;
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn units_of(range: &Range<u64>) -> Range<u64> {
    range.start / UNIT_BYTES..range.end.div_ceil(UNIT_BYTES)
}

/// Makes `range` read as zeros: frees it where the file system can, else writes zeros over it.
fn punch(file: &File, range: Range<u64>) -> io::Result<()> {
    if free(file, range.clone())? {
        return Ok(());
    }
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
pub(super) fn allocate(file: &File, range: Range<u64>) -> bool {
    // It has no layout to prepare, and the pages are cheaper to come by in the writes themselves: 15 % of a whole get were spent here.
    if lies_on(file, &[TMPFS]) {
        return false;
    }
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(file, flags, range.start, range.end - range.start).is_ok()
}

/// Turns `range` into a hole; false if the file system has no such thing.
#[cfg(target_os = "linux")]
fn free(file: &File, range: Range<u64>) -> io::Result<bool> {
    use rustix::fs::FallocateFlags;
    use rustix::io::Errno;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, range.start, range.end - range.start) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _range: Range<u64>) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn free(_file: &File, _range: Range<u64>) -> io::Result<bool> {
    Ok(false)
}
