//! Digests of directories: what both ends of a copy have alike need not be told ([ADR 27]).
//!
//! Each end scans its tree and makes, for each directory, a digest of all that the sender would tell of it and of what is below it. The
//! sender tells its digests; the receiver says which of them it has made itself, of what it has in the same place. A digest is made
//! only where nothing but such a comparison is to be done: whatever is out of the ordinary in a directory (something that cannot be read,
//! hard links that are kept, what one end passes by) leaves it and all above it without one, and their entries are told.
//!
//! [ADR 27]: ../../../../../docs/adr/0027-digests-of-trees.md

mod canonical;
mod found;
mod owned;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use found::{Held, Roots, Scanned, Told};
pub(super) use scan::place;
pub use scan::{ReceivingEnd, Scan};

use super::attributes::AttributeSort;
use super::exclude::Excludes;
use super::guard::Guard;
use super::mounts::ReadMounts;

/// What goes into digests: both ends make of the same request the same of this.
#[derive(Clone, Debug, Default)]
pub struct DigestOptions {
    /// Under which name each source goes into the destination; with these paths begin, for rules, too.
    pub names: Vec<Vec<u8>>,
    /// Directories of other file systems than their root's have no digest.
    pub one_file_system: bool,
    /// What the sender leaves out.
    pub excludes: Excludes,
    /// Symbolic links are kept; else directories with one have no digest. The same with the next two.
    pub links: bool,
    /// Devices are kept.
    pub devices: bool,
    /// Fifos and sockets are kept.
    pub specials: bool,
    /// Hard links are kept: directories with a file of several names have no digest.
    pub hard_links: bool,
    /// Permission bits that are kept.
    pub modes: u32,
    /// Users are kept.
    pub users: bool,
    /// Groups are kept.
    pub groups: bool,
    /// Owners by number, not by name.
    pub numeric_ids: bool,
    /// Extended attributes are kept, and which.
    pub xattrs: Option<AttributeSort>,
    /// Is told of the mounts that something is read of.
    pub mounts: Option<Arc<ReadMounts>>,
    /// The tree is read for others than its user, as with a walk: directories in which that leaves something out have no digest.
    pub guard: Option<Guard>,
}

impl DigestOptions {
    fn keeps_owners(&self) -> bool {
        self.users || self.groups
    }
}
