//! What interrupted deliveries of other objects left for a destination that has now been written. The id of a file that
//! is still being sent includes its ctime, so once the file changed nobody comes back for the part that had arrived.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use dray_core::Result;
use rustix::fs::Dir;

use super::Delivery;
use super::files::{Destination, is_temporary_of, temporary_names};
use super::state::{HEADER_BYTES, Header};
use crate::local::extents::read_full_at;

/// Directory entries looked through for an object of no bytes, and for each unit more: looking costs no more than the
/// copy did, so that many small files in a large directory stay cheap. What is missed is found by a later delivery.
const ENTRIES_BASE: u64 = 256;
const ENTRIES_A_UNIT: u64 = 1024;
/// Entries looked through at most.
const ENTRIES_MAX: u64 = 65_536;

impl Delivery {
    /// Removes the data and state of other objects for `name`. Best effort.
    pub(super) fn remove_leftovers(&self, name: &OsStr) {
        let destination = &self.shared.destination;
        let entries =
            ENTRIES_BASE.saturating_add(self.shared.geometry.units().saturating_mul(ENTRIES_A_UNIT));
        let Ok(directory) = Dir::read_from(&destination.directory) else { return };
        // Collected first: what a directory lists while it changes is not defined.
        let found: Vec<OsString> = directory
            .take(entries.min(ENTRIES_MAX) as usize)
            .map_while(Result::ok)
            .map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()))
            .filter(|entry| *entry != self.state_name && is_temporary_of(name, entry))
            .collect();
        for state_name in found {
            let _ = remove_pair(destination, name, &state_name);
        }
    }
}

/// Removes the state file `state_name` and its data file, if a state file it is, of a delivery to `name`, ours, and
/// nobody holds its lock.
fn remove_pair(destination: &Destination, name: &OsStr, state_name: &OsStr) -> Result<()> {
    let Some(state) = destination.open_if_own(state_name) else { return Ok(()) };
    let mut bytes = [0; HEADER_BYTES];
    if !matches!(read_full_at(&state, 0, &mut bytes), Ok(true)) {
        return Ok(());
    }
    // The object in the header gives the very names; long names that begin alike are told apart by it.
    let Some(object) = Header::object_in(&bytes) else { return Ok(()) };
    let (data_name, expected) = temporary_names(name, &object);
    if expected.as_bytes() != state_name.as_bytes() || state.try_lock().is_err() {
        return Ok(());
    }
    // Whoever held the lock before may have finished and removed the file.
    if !destination.is_still(state_name, &state)? {
        return Ok(());
    }
    match destination.look(&data_name)? {
        Some(data) if data.is_plainly_own() => destination.unlink(&data_name)?,
        Some(_) => return Ok(()),
        None => {}
    }
    destination.unlink(state_name)
}
