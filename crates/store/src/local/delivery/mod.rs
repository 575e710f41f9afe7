//! Receiving an object beside its destination: a temporary file that is renamed when everything is proven, and a
//! state file from which a killed transfer goes on (design decisions 10 and 11).
//!
//! A mark is one byte written after the data and pairs it speaks of, so it survives the process, whatever kills it.
//! It does not survive the machine: for that, a checkpoint makes data and pairs durable first and then copies the
//! marks to a second map, the only one believed after a reboot. `docs/format/delivery.md` has the byte tables.

mod checkpoint;
mod files;
mod finish;
mod leftovers;
mod sharing;
mod space;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore};
use dray_core::limits::DELIVERY_BYTES_MAX;
use dray_core::message::ObjectName;
use dray_core::range::RangeSet;
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::boot;
use super::extents::read_full_at;
use checkpoint::{Marks, lock};
pub use files::new_file_mode;
pub(super) use files::umask;
use files::{Destination, temporary_names};
pub use finish::FinishOptions;
pub use sharing::may_share;
use space::Space;
use state::{HEADER_BYTES, Header, Layout, UnitMap};

/// Times the state file is opened again after another process removed it in between.
const TRIES_MAX: usize = 16;
/// The state file's time is renewed so often while the data is written.
const NOTE_INTERVAL_MS: u64 = 500;
/// The data is never changed here so many seconds later than the state file's time says.
const NOTED_WITHIN_S: i64 = 2;

/// Times, and for how long each, a state file that another process holds is waited for.
const HELD_TRIES: usize = 4;
const HELD_WAIT: Duration = Duration::from_millis(5);

/// How a delivery goes about it.
#[derive(Clone, Debug)]
pub struct DeliveryOptions {
    /// Longest time that received data is left to the page cache alone.
    pub checkpoint_interval: Duration,
}

impl Default for DeliveryOptions {
    fn default() -> DeliveryOptions {
        DeliveryOptions { checkpoint_interval: Duration::from_secs(2) }
    }
}

/// An object on its way into a file. Dropped unfinished it keeps what was marked for the next time, and keeps
/// nothing if nothing was.
#[derive(Debug)]
pub struct Delivery {
    shared: Arc<Shared>,
    data_name: OsString,
    state_name: OsString,
}

impl Delivery {
    /// Prepares to receive `object` into `destination`, and finds what an earlier run left.
    ///
    /// `Refused` if the destination is not a file, if another process is receiving the same object there, or if
    /// something under the temporary names is not plainly ours; `NoSpace`, `NotFound` as the file system says;
    /// `Unsupported` above [`DELIVERY_BYTES_MAX`] and above what the file system can hold in one file.
    pub fn open(
        destination: &Path,
        object: ObjectName,
        size_bytes: u64,
        options: DeliveryOptions,
    ) -> Result<Delivery> {
        Delivery::into_destination(Destination::open(destination)?, object, size_bytes, options)
    }

    /// The same in a directory that is open already: the last component of `destination` is the file's name there, and
    /// the rest is for messages.
    pub fn open_in(
        directory: OwnedFd,
        destination: &Path,
        object: ObjectName,
        size_bytes: u64,
        options: DeliveryOptions,
    ) -> Result<Delivery> {
        Delivery::into_destination(Destination::within(directory, destination)?, object, size_bytes, options)
    }

    fn into_destination(
        destination: Destination,
        object: ObjectName,
        size_bytes: u64,
        options: DeliveryOptions,
    ) -> Result<Delivery> {
        if size_bytes > DELIVERY_BYTES_MAX {
            let what = format!("an object of {size_bytes} bytes is more than a file here may hold (64 TiB)");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let (data_name, state_name) = temporary_names(&destination.name, &object);
        let state = lock_state(&destination, &state_name)?;
        let prepared = prepare(&destination, &data_name, &state, object, size_bytes);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                remove_if_empty(&destination, &data_name, &state_name, &state);
                return Err(error);
            }
        };
        let Prepared { data, geometry, layout, marked, durable, was_used } = prepared;
        let space = Space::new(geometry, layout, was_used, marked.clone());
        let marks = Marks::new(marked, durable);
        let shared = Shared {
            destination,
            data,
            state,
            geometry,
            layout,
            space,
            marks: Mutex::new(marks),
            wake: Condvar::new(),
            checkpointing: Mutex::new(()),
            interval: options.checkpoint_interval,
            opened: Instant::now(),
            noted_ms: AtomicU64::new(0),
            may_share_parts: OnceLock::new(),
            failed_to_share: AtomicBool::new(false),
        };
        Ok(Delivery { shared: Arc::new(shared), data_name, state_name })
    }

    /// Makes everything marked so far survive a crash of the machine. Happens by itself every
    /// [`DeliveryOptions::checkpoint_interval`]; worth calling before a wait of unknown length. If it fails, the units
    /// marked since the last one are forgotten, and every later mark and the finish fail with the same error.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Gives up and removes both files.
    pub fn discard(&self) -> Result<()> {
        self.shared.stop();
        self.remove()
    }

    fn remove(&self) -> Result<()> {
        let Shared { destination, data, marks, .. } = &*self.shared;
        if std::mem::replace(&mut lock(marks).is_over, true) {
            return Ok(());
        }
        if destination.is_still(&self.data_name, data)? {
            destination.unlink(&self.data_name)?;
        }
        destination.unlink(&self.state_name)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.shared.stop();
        if lock(&self.shared.marks).marked.is_empty() {
            let _ = self.remove();
        }
        // A checkpoint that still waits for the disk holds the file open, but must not hold the lock.
        let mut marks = lock(&self.shared.marks);
        marks.is_released = true;
        let _ = self.shared.state.unlock();
    }
}

/// Opens the state file and takes its lock, for the whole life of the delivery.
fn lock_state(destination: &Destination, name: &OsString) -> Result<File> {
    let mut held = 0;
    for _ in 0..TRIES_MAX {
        let Some(state) = destination.open_own(name)? else { continue };
        match take_lock(destination, name, &state)? {
            Lock::Taken => return Ok(state),
            Lock::Gone => {}
            // Somebody who tidies up looks at it for a moment.
            Lock::Held if held < HELD_TRIES => {
                held += 1;
                std::thread::sleep(HELD_WAIT);
            }
            Lock::Held => {
                let what = format!("another dray is receiving this object into {:?}", destination.path);
                return Err(Error::new(ErrorKind::Refused, what)
                    .with_retryable(true)
                    .advise("wait for it or stop it"));
            }
        }
    }
    let what = format!("the state file beside {:?} keeps vanishing", destination.path);
    Err(Error::new(ErrorKind::Refused, what).advise("try again"))
}

/// What became of an attempt to lock a state file.
enum Lock {
    Taken,
    /// Another process has it.
    Held,
    /// Whoever held the lock before has finished and removed the file.
    Gone,
}

/// Locks `state`, opened as `name`, if it still has that name then.
fn take_lock(destination: &Destination, name: &OsStr, state: &File) -> Result<Lock> {
    match state.try_lock() {
        Ok(()) if destination.is_still(name, state)? => Ok(Lock::Taken),
        Ok(()) => Ok(Lock::Gone),
        Err(TryLockError::WouldBlock) => Ok(Lock::Held),
        Err(TryLockError::Error(error)) => Err(destination.failed("lock", error)),
    }
}

/// After a failure: removes what was made just now and holds nothing.
fn remove_if_empty(destination: &Destination, data_name: &OsString, state_name: &OsString, state: &File) {
    let is_empty = |file: &File| file.metadata().is_ok_and(|file| file.len() == 0);
    if is_empty(state) {
        if destination.open_own(data_name).is_ok_and(|data| data.is_some_and(|data| is_empty(&data))) {
            let _ = destination.unlink(data_name);
        }
        let _ = destination.unlink(state_name);
    }
}

struct Prepared {
    data: File,
    geometry: Geometry,
    layout: Layout,
    marked: UnitMap,
    durable: UnitMap,
    /// Units may hold bytes of an earlier run even where they are not marked.
    was_used: bool,
}

/// Brings data and state file to their full size and reads what may be believed of an earlier run.
fn prepare(
    destination: &Destination,
    data_name: &OsString,
    state: &File,
    object: ObjectName,
    size_bytes: u64,
) -> Result<Prepared> {
    let failed = |error: io::Error| destination.failed("prepare", error);
    let Some(data) = destination.open_own(data_name)? else {
        let what = format!("the temporary file beside {:?} vanished", destination.path);
        return Err(Error::new(ErrorKind::Refused, what).advise("find out who writes in that directory"));
    };
    let found = data.metadata().map_err(failed)?;
    let geometry = Geometry::new(size_bytes);
    let layout = Layout::new(geometry);
    let header =
        Header { object, size_bytes, boot: boot::current(), data_dev: found.dev(), data_ino: found.ino() };
    let (mut marked, mut durable) = (UnitMap::new(layout), UnitMap::new(layout));
    let mut bytes = [0; HEADER_BYTES];
    let is_whole = state.metadata().map_err(failed)?.len() == layout.file_bytes
        && read_full_at(state, 0, &mut bytes).map_err(failed)?
        && read_full_at(state, layout.marked_at, &mut marked.0).map_err(failed)?
        && read_full_at(state, layout.durable_at, &mut durable.0).map_err(failed)?;
    let noted = state.metadata().map_err(failed)?;
    let is_ours = is_whole && !was_written_after(&found, &noted);
    let left_by = if is_ours { header.boot_if_same(&bytes) } else { None };
    let was_used = left_by.is_some();
    match left_by {
        Some(boot) => {
            if !boot::is_current(&boot) {
                marked = durable.clone();
            }
            marked.cut(geometry, found.len());
            durable.intersect(&marked);
            data.set_len(size_bytes).map_err(failed)?;
            // The marks of another boot must be gone for good before the header says that they are of this one.
            state.write_all_at(&marked.0, layout.marked_at).map_err(failed)?;
            state.write_all_at(&durable.0, layout.durable_at).map_err(failed)?;
            if boot != header.boot {
                state.sync_data().map_err(failed)?;
                state.write_all_at(&header.to_bytes(), 0).map_err(failed)?;
            }
        }
        None => {
            (marked, durable) = (UnitMap::new(layout), UnitMap::new(layout));
            begin_afresh(&data, state, layout, &header).map_err(|error| {
                // Empty, they are removed.
                let _ = (data.set_len(0), state.set_len(0));
                failed(error)
            })?;
        }
    }
    Ok(Prepared { data, geometry, layout, marked, durable, was_used })
}

/// True if the data was changed later than anything was noted about it: not by a delivery, which notes every unit as it
/// completes it. What was marked then proves nothing any more.
fn was_written_after(data: &Metadata, state: &Metadata) -> bool {
    data.mtime().max(data.ctime()) > state.mtime().saturating_add(NOTED_WITHIN_S)
}

/// Empties both files and gives them their full length, and the state file its header.
fn begin_afresh(data: &File, state: &File, layout: Layout, header: &Header) -> io::Result<()> {
    data.set_len(0)?;
    data.set_len(header.size_bytes)?;
    state.set_len(0)?;
    state.set_len(layout.file_bytes)?;
    // Written out, zeros as they are: a mark must not fail for want of room when its data is written.
    let empty = UnitMap::new(layout);
    state.write_all_at(&empty.0, layout.marked_at)?;
    state.write_all_at(&empty.0, layout.durable_at)?;
    state.write_all_at(&header.to_bytes(), 0)
}

/// What the delivery and its checkpoint thread share.
#[derive(Debug)]
struct Shared {
    destination: Destination,
    data: File,
    state: File,
    geometry: Geometry,
    layout: Layout,
    space: Space,
    marks: Mutex<Marks>,
    wake: Condvar,
    /// Held by the one checkpoint that runs.
    checkpointing: Mutex<()>,
    interval: Duration,
    opened: Instant,
    /// When the state file was last known to be as new as the data, milliseconds after `opened`.
    noted_ms: AtomicU64,
    /// Whether the file system is of a kind that can share parts of files, once that was asked.
    may_share_parts: OnceLock<bool>,
    /// It refused to.
    failed_to_share: AtomicBool,
}

impl Shared {
    /// Keeps the state file's time beside the data's, so that a later change of the data by somebody else shows.
    fn note_writing(&self) {
        let now_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        let noted_ms = self.noted_ms.load(Ordering::Relaxed);
        let is_due = now_ms.saturating_sub(noted_ms) >= NOTE_INTERVAL_MS;
        let exchange = |now_ms| {
            self.noted_ms.compare_exchange(noted_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if is_due && exchange(now_ms) {
            self.note();
        }
    }

    /// Says that everything done to the data until now was done here. If that fails, the next run fetches again.
    fn note(&self) {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let _ = rustix::fs::futimens(&self.state, &times);
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<Range<u64>> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.geometry.size_bytes());
        end.map(|end| offset..end).ok_or_else(|| {
            let size = self.geometry.size_bytes();
            Error::new(
                ErrorKind::Internal,
                format!("object of {size} bytes has no bytes {offset}+{len_bytes}"),
            )
        })
    }

    fn check_unit(&self, unit: u64) -> Result<()> {
        if unit < self.geometry.units() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Internal, format!("the object has no unit {unit}")))
        }
    }

    /// Place in the state file of byte `offset` of the outboard.
    fn outboard_at(&self, offset: Option<u64>, len_bytes: usize) -> Result<u64> {
        let end = offset.and_then(|offset| offset.checked_add(len_bytes as u64));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= self.geometry.outboard_bytes() => {
                Ok(self.layout.outboard_at + offset)
            }
            _ => Err(Error::new(
                ErrorKind::Internal,
                format!("the outboard has no bytes {offset:?}+{len_bytes}"),
            )),
        }
    }

    fn cut_short(&self) -> Error {
        let what =
            format!("a temporary file beside {:?} was cut while it was received", self.destination.path);
        Error::new(ErrorKind::Damaged, what).advise("run the same command again")
    }
}

impl PairStore for Delivery {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let at = self.shared.outboard_at(first_index.checked_mul(PAIR_BYTES as u64), out.len())?;
        match read_full_at(&self.shared.state, at, out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.shared.cut_short()),
            Err(error) => Err(self.shared.destination.failed("read the state of", error)),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.shared.outboard_at(Some(offset), bytes.len())?;
        let written = self.shared.state.write_all_at(bytes, at);
        written.map_err(|error| self.shared.destination.failed("write the state of", error))
    }
}

impl PartialObject for Delivery {
    fn size_bytes(&self) -> u64 {
        self.shared.geometry.size_bytes()
    }

    fn marked_units(&self) -> RangeSet {
        lock(&self.shared.marks).marked.to_set()
    }

    fn write_data(&self, offset: u64, data: &[u8]) -> Result<()> {
        let range = self.shared.check(offset, data.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        self.shared.space.use_for_data(&self.shared.data, &range);
        let written = self.shared.data.write_all_at(data, offset);
        self.shared.note_writing();
        written.map_err(|error| self.shared.destination.failed("write", error))
    }

    fn write_hole(&self, range: Range<u64>) -> Result<()> {
        let range = self.shared.check(range.start, range.end.saturating_sub(range.start))?;
        if range.is_empty() {
            return Ok(());
        }
        let made = self.shared.space.use_for_hole(&self.shared.data, &range);
        self.shared.note_writing();
        made.map_err(|error| self.shared.destination.failed("write", error))
    }

    fn read_data(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.shared.check(offset, out.len() as u64)?;
        match read_full_at(&self.shared.data, offset, out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.shared.cut_short()),
            Err(error) => Err(self.shared.destination.failed("read", error)),
        }
    }

    fn mark_unit(&self, unit: u64) -> Result<()> {
        let shared = &self.shared;
        shared.check_unit(unit)?;
        let mut marks = lock(&shared.marks);
        marks.check_failure()?;
        let (at, byte) = marks.marked.put(unit, true);
        if let Err(error) = shared.state.write_all_at(&[byte], shared.layout.marked_at + at) {
            marks.marked.put(unit, false);
            return Err(shared.destination.failed("write the state of", error));
        }
        shared.count_unchecked(&mut marks);
        if !marks.has_thread && shared.is_worth_checkpoints() {
            let body = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("checkpoint".into());
            // Without the thread a crash of the machine costs more; nothing else is lost.
            marks.has_thread = thread.spawn(move || body.keep_checkpointing()).is_ok();
        }
        Ok(())
    }

    fn unmark_unit(&self, unit: u64) -> Result<()> {
        self.shared.check_unit(unit)?;
        let mut units = RangeSet::new();
        units.insert(unit..unit + 1);
        self.unmark_units(&units)
    }

    fn unmark_units(&self, units: &RangeSet) -> Result<()> {
        let shared = &self.shared;
        if let Some(last) = units.iter().next_back() {
            shared.check_unit(last.end - 1)?;
        }
        let failed = |error: io::Error| shared.destination.failed("write the state of", error);
        let Layout { marked_at, durable_at, .. } = shared.layout;
        let mut marks = lock(&shared.marks);
        let mut was_durable = false;
        for range in units.iter() {
            if let Some(pending) = &mut marks.pending {
                pending.remove(range.clone());
            }
            let (at, bytes) = marks.marked.remove(range.clone());
            shared.state.write_all_at(bytes, marked_at + at).map_err(failed)?;
            if range.clone().any(|unit| marks.durable.contains(unit)) {
                was_durable = true;
                let (at, bytes) = marks.durable.remove(range);
                shared.state.write_all_at(bytes, durable_at + at).map_err(failed)?;
            }
        }
        if was_durable {
            // Before other bytes are written to the units, no crash may bring these marks back.
            shared.state.sync_data().map_err(failed)?;
        }
        Ok(())
    }
}
