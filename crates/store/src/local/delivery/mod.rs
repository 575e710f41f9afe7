//! Receiving an object beside its destination: a temporary file that is renamed when everything is proven, and a
//! state file from which a killed transfer goes on (design decisions 10 and 11).
//!
//! A mark is one byte written after the data and pairs it speaks of, so it survives the process, whatever kills it.
//! It does not survive the machine: for that, a checkpoint makes data and pairs durable first and then copies the
//! marks to a second map, the only one believed after a reboot. `docs/format/delivery.md` has the byte tables.

mod files;
mod space;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Geometry, PAIR_BYTES, PairStore};
use dray_core::limits::DELIVERY_BYTES_MAX;
use dray_core::message::ObjectName;
use dray_core::range::RangeSet;
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::boot;
use super::extents::read_full_at;
pub use files::new_file_mode;
use files::{Destination, temporary_names};
use space::Space;
use state::{HEADER_BYTES, Header, Layout, UnitMap};

/// Times the state file is opened again after another process removed it in between.
const TRIES_MAX: usize = 16;

/// Units (64 MiB) that may be lost to a crash of the machine without a checkpoint (design decision 10).
const UNCHECKED_UNITS_MAX: u64 = 64;

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

/// How a delivery ends.
#[derive(Clone, Debug, Default)]
pub struct FinishOptions {
    /// Permission bits. `None` keeps those of the file that is replaced, or follows the umask for a new one.
    pub mode: Option<u32>,
    /// Modification time, seconds since 1970 and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// Whether the file and its name are durable before `finish` returns.
    pub fsync: bool,
    /// Another name in the same directory than the one the delivery was opened with: a sender suggests its name only
    /// while bytes already arrive. One plain component.
    pub rename_to: Option<OsString>,
    /// `Refused` if there is a file of that name already.
    pub keep_existing: bool,
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
    /// `Unsupported` above [`DELIVERY_BYTES_MAX`].
    pub fn open(
        destination: &Path,
        object: ObjectName,
        size_bytes: u64,
        options: DeliveryOptions,
    ) -> Result<Delivery> {
        if size_bytes > DELIVERY_BYTES_MAX {
            let what = format!("an object of {size_bytes} bytes is more than a file here may hold (64 TiB)");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let destination = Destination::open(destination)?;
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
        let marks = Marks { marked, durable, ..Marks::default() };
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
        };
        Ok(Delivery { shared: Arc::new(shared), data_name, state_name })
    }

    /// Makes everything marked so far survive a crash of the machine. Happens by itself every
    /// [`DeliveryOptions::checkpoint_interval`]; worth calling before a wait of unknown length.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Gives the file its mode, times and name, and removes the state. The caller has proven every byte. If it
    /// fails, data and state stay for another attempt.
    pub fn finish(&self, options: FinishOptions) -> Result<()> {
        let Shared { destination, data, marks, .. } = &*self.shared;
        let name = options.rename_to.as_ref().unwrap_or(&destination.name);
        if name.as_bytes().contains(&b'/') || name == "." || name == ".." {
            return Err(Error::new(ErrorKind::Usage, format!("{name:?} is no file name")));
        }
        // From here on no checkpoint writes to the state; one that waits for the disk is not waited for.
        self.shared.stop();
        let failed = |error: io::Error| destination.failed("finish", error);
        let mode = match (options.mode, destination.existing_mode(name)?) {
            (Some(mode), _) | (None, Some(mode)) => mode,
            (None, None) => new_file_mode(),
        };
        rustix::fs::fchmod(data, Mode::from_raw_mode(mode & 0o7777)).map_err(|error| failed(error.into()))?;
        if let Some((seconds, nanoseconds)) = options.mtime {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.min(999_999_999).into() },
            };
            rustix::fs::futimens(data, &times).map_err(|error| failed(error.into()))?;
        }
        if options.fsync {
            data.sync_all().map_err(failed)?;
        }
        if !destination.is_still(&self.data_name, data)? {
            let what = format!("the temporary file beside {:?} was replaced by another", destination.path);
            return Err(Error::new(ErrorKind::Refused, what).advise("find out who writes in that directory"));
        }
        let directory = &destination.directory;
        if options.keep_existing {
            match rustix::fs::renameat_with(
                directory,
                &self.data_name,
                directory,
                name,
                RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {}
                Err(Errno::EXIST) => {
                    let what = format!("{name:?} exists and is not replaced");
                    return Err(Error::new(ErrorKind::Refused, what)
                        .advise("name the output with -o, or move the file away; what arrived is kept for the next run"));
                }
                // A file system that cannot do both in one step.
                Err(Errno::INVAL | Errno::NOSYS) if destination.look(name)?.is_none() => {
                    rustix::fs::renameat(directory, &self.data_name, directory, name)
                        .map_err(|error| failed(error.into()))?;
                }
                Err(error) => return Err(failed(error.into())),
            }
        } else {
            rustix::fs::renameat(directory, &self.data_name, directory, name)
                .map_err(|error| failed(error.into()))?;
        }
        lock(marks).is_over = true;
        destination.unlink(&self.state_name)?;
        if options.fsync {
            rustix::fs::fsync(directory).map_err(|error| failed(error.into()))?;
        }
        Ok(())
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
        let _ = self.shared.state.unlock();
    }
}

/// Opens the state file and takes its lock, for the whole life of the delivery.
fn lock_state(destination: &Destination, name: &OsString) -> Result<File> {
    for _ in 0..TRIES_MAX {
        let Some(state) = destination.open_own(name)? else { continue };
        match state.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = format!("another dray is receiving this object into {:?}", destination.path);
                return Err(Error::new(ErrorKind::Refused, what)
                    .with_retryable(true)
                    .advise("let it finish, or stop it first"));
            }
            Err(TryLockError::Error(error)) => return Err(destination.failed("lock", error)),
        }
        // Whoever held the lock before may have finished and removed the file.
        if destination.is_still(name, &state)? {
            return Ok(state);
        }
    }
    let what = format!("the state file beside {:?} keeps vanishing", destination.path);
    Err(Error::new(ErrorKind::Refused, what).advise("try again"))
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
    let left_by = if is_whole { header.boot_if_same(&bytes) } else { None };
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
            data.set_len(0).map_err(failed)?;
            data.set_len(size_bytes).map_err(failed)?;
            state.set_len(0).map_err(failed)?;
            state.set_len(layout.file_bytes).map_err(failed)?;
            (marked, durable) = (UnitMap::new(layout), UnitMap::new(layout));
            // Written out, zeros as they are: a mark must not fail for want of room when its data is written.
            state.write_all_at(&marked.0, layout.marked_at).map_err(failed)?;
            state.write_all_at(&durable.0, layout.durable_at).map_err(failed)?;
            state.write_all_at(&header.to_bytes(), 0).map_err(failed)?;
        }
    }
    Ok(Prepared { data, geometry, layout, marked, durable, was_used })
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
}

#[derive(Debug)]
struct Marks {
    marked: UnitMap,
    durable: UnitMap,
    /// Marks that the running checkpoint will call durable.
    pending: Option<UnitMap>,
    /// Marked since the last checkpoint began.
    is_dirty: bool,
    has_thread: bool,
    is_stopped: bool,
    /// Renamed into place or removed: there is no state to keep.
    is_over: bool,
    /// Why a checkpoint failed; the next mark reports it.
    failure: Option<Error>,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            marked: UnitMap(Vec::new()),
            durable: UnitMap(Vec::new()),
            pending: None,
            is_dirty: false,
            has_thread: false,
            is_stopped: false,
            is_over: false,
            failure: None,
        }
    }
}

fn lock(marks: &Mutex<Marks>) -> MutexGuard<'_, Marks> {
    marks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn stop(&self) {
        lock(&self.marks).is_stopped = true;
        self.wake.notify_all();
    }

    /// Data and pairs first, then the map that says so.
    fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: io::Error| self.destination.failed("write", error);
        {
            let mut marks = lock(&self.marks);
            if !marks.is_dirty || marks.is_stopped {
                return Ok(());
            }
            marks.is_dirty = false;
            marks.pending = Some(marks.marked.clone());
        }
        self.data.sync_data().map_err(failed)?;
        self.state.sync_data().map_err(failed)?;
        // The names too: a file that cannot be found again is no use.
        rustix::fs::fsync(&self.destination.directory).map_err(|error| failed(error.into()))?;
        {
            let mut marks = lock(&self.marks);
            if marks.is_stopped {
                return Ok(());
            }
            if let Some(pending) = marks.pending.take() {
                self.state.write_all_at(&pending.0, self.layout.durable_at).map_err(failed)?;
                marks.durable = pending;
            }
        }
        self.state.sync_data().map_err(failed)
    }

    /// A small object that arrives at once needs no thread of its own.
    fn is_worth_checkpoints(&self) -> bool {
        self.geometry.units() > UNCHECKED_UNITS_MAX || self.opened.elapsed() >= self.interval
    }

    /// Body of the checkpoint thread.
    fn keep_checkpointing(&self) {
        loop {
            let marks = lock(&self.marks);
            let (marks, _) = self
                .wake
                .wait_timeout_while(marks, self.interval, |marks| !marks.is_stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if marks.is_stopped {
                return;
            }
            drop(marks);
            if let Err(error) = self.checkpoint() {
                lock(&self.marks).failure = Some(error);
                return;
            }
        }
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
        written.map_err(|error| self.shared.destination.failed("write", error))
    }

    fn write_hole(&self, range: Range<u64>) -> Result<()> {
        let range = self.shared.check(range.start, range.end.saturating_sub(range.start))?;
        if range.is_empty() {
            return Ok(());
        }
        let made = self.shared.space.use_for_hole(&self.shared.data, &range);
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
        if let Some(error) = marks.failure.take() {
            return Err(error);
        }
        let (at, byte) = marks.marked.put(unit, true);
        if let Err(error) = shared.state.write_all_at(&[byte], shared.layout.marked_at + at) {
            marks.marked.put(unit, false);
            return Err(shared.destination.failed("write the state of", error));
        }
        marks.is_dirty = true;
        if !marks.has_thread && shared.is_worth_checkpoints() {
            let body = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("checkpoint".into());
            // Without the thread a crash of the machine costs more; nothing else is lost.
            marks.has_thread = thread.spawn(move || body.keep_checkpointing()).is_ok();
        }
        Ok(())
    }

    fn unmark_unit(&self, unit: u64) -> Result<()> {
        let shared = &self.shared;
        shared.check_unit(unit)?;
        let failed = |error: io::Error| shared.destination.failed("write the state of", error);
        let mut marks = lock(&shared.marks);
        let (at, byte) = marks.marked.put(unit, false);
        if let Some(pending) = &mut marks.pending {
            pending.put(unit, false);
        }
        shared.state.write_all_at(&[byte], shared.layout.marked_at + at).map_err(failed)?;
        if marks.durable.contains(unit) {
            // Before other bytes are written to the unit, no crash may bring this mark back.
            let (at, byte) = marks.durable.put(unit, false);
            shared.state.write_all_at(&[byte], shared.layout.durable_at + at).map_err(failed)?;
            shared.state.sync_data().map_err(failed)?;
        }
        Ok(())
    }
}
