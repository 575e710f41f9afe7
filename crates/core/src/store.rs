//! The traits of storage plugins: where objects rest.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::hash_tree::{PairStore, Subtree};
use crate::range::RangeSet;
use crate::rights::Secret;
use crate::{Error, ErrorKind, Oid, Result};

/// What tells one state of a file from another without reading it (design decision 11).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Encode, Decode)]
#[cbor(map)]
pub struct FileIdentity {
    /// Device number.
    #[n(0)]
    pub dev: u64,
    /// Inode number.
    #[n(1)]
    pub ino: u64,
    /// Size.
    #[n(2)]
    pub size_bytes: u64,
    /// Modification time, nanoseconds since 1970 (fits until 2262).
    #[n(3)]
    pub mtime_ns: i64,
    /// Status change time, nanoseconds since 1970.
    #[n(4)]
    pub ctime_ns: i64,
}

impl FileIdentity {
    /// Name of this state of this file on `node`: what a transfer is called while its OID is not known, and what it
    /// is found again by after a kill (design decision 3).
    pub fn provisional_id(&self, node: &crate::NodeId) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("drayman 2026-11-21 provisional id 1");
        hasher.update(node.as_bytes());
        for number in [self.dev, self.ino, self.size_bytes] {
            hasher.update(&number.to_be_bytes());
        }
        for number in [self.mtime_ns, self.ctime_ns] {
            hasher.update(&number.to_be_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

/// Part of an object: data or hole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes it covers.
    pub range: Range<u64>,
    /// True if nothing is allocated there and it reads as zeros.
    pub is_hole: bool,
}

/// How far a stored object can be trusted without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The backing is what it was when it was hashed.
    Trusted,
    /// Something about the backing changed (or nothing can tell): each group must be checked against the outboard
    /// before it is sent.
    Doubtful,
    /// It cannot be the same bytes any more.
    Changed,
}

/// Who may have an object.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct Share {
    /// Secret of a private object; `None` means public.
    #[n(0)]
    pub secret: Option<Secret>,
    /// End of the right, seconds since 1970; `None` means until it is stopped.
    #[n(1)]
    pub expires_unix_s: Option<u64>,
    /// TCP port it was last served at, so that the same ticket works after a restart.
    #[n(2)]
    pub port: Option<u16>,
    /// File name to suggest: one component, any bytes.
    #[n(3)]
    pub name: Option<minicbor::bytes::ByteVec>,
}

/// What a storage plugin can do; the conformance suite asks for exactly this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreCapabilities {
    /// Objects survive the process.
    pub persistent: bool,
    /// Takes a file of the user by reference ([`Store::put_file`]).
    pub borrowed: bool,
    /// Gives a file descriptor for `sendfile` ([`StoredObject::raw_file`]).
    pub raw_file: bool,
}

/// One line of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectSummary {
    /// Its name.
    pub oid: Oid,
    /// Its size.
    pub size_bytes: u64,
    /// The user's file it lies in, if it is borrowed.
    pub borrowed_path: Option<std::path::PathBuf>,
}

/// A place where whole, proven objects rest.
pub trait Store: Send + Sync + fmt::Debug {
    /// What it can do.
    fn capabilities(&self) -> StoreCapabilities;
    /// Opens an object. `NotFound` if it is not here, `Changed` if its borrowed file is no longer the same,
    /// `Damaged` if owned data is gone. A lost or damaged outboard is rebuilt from the data.
    fn open(&self, oid: &Oid) -> Result<Arc<dyn StoredObject>>;
    /// Begins an owned object of unknown length and name (D6-D8).
    fn put(&self) -> Result<Box<dyn ObjectWriter>>;
    /// Refers to a regular file of the user, in place (D14, Y23). Hashes it with all cores unless an earlier put's
    /// record still holds. `Changed` if it changed while it was read. `progress` hears the bytes hashed so far.
    fn put_file(&self, path: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Arc<dyn StoredObject>> {
        self.put_file_until(path, progress, &|| false)
    }
    /// [`Store::put_file`] that can be stopped: soon after `is_stopped` says yes, from any thread, it ends as
    /// `Interrupted` and has recorded nothing.
    fn put_file_until(
        &self,
        path: &Path,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Arc<dyn StoredObject>> {
        let _ = (path, progress, is_stopped);
        Err(Error::new(ErrorKind::Unsupported, "this store takes no files by reference"))
    }
    /// Every object, in no particular order.
    fn list(&self) -> Result<Vec<ObjectSummary>>;
    /// Forgets an object; owned bytes are unlinked, borrowed ones never touched. False if it was not here.
    fn remove(&self, oid: &Oid) -> Result<bool>;
    /// Who may have it, if it is shared.
    fn share(&self, oid: &Oid) -> Result<Option<Share>>;
    /// Changes its share in one step: `update` sees the present one and returns the new one. Returns what was set.
    /// Safe against other processes doing the same.
    fn update_share(
        &self,
        oid: &Oid,
        update: &mut dyn FnMut(Option<Share>) -> Result<Option<Share>>,
    ) -> Result<Option<Share>>;
}

/// A whole object at rest. Dropping it closes its files.
pub trait StoredObject: Send + Sync + fmt::Debug {
    /// Its name.
    fn oid(&self) -> Oid;
    /// Its size.
    fn size_bytes(&self) -> u64;
    /// Fills `out` from byte `offset`. An end of file before that is `Changed` (borrowed) or `Damaged` (owned).
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
    /// The extent that contains byte `offset`, cut at `end`; `offset < end <= size_bytes`.
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent>;
    /// Its outboard.
    fn pairs(&self) -> &dyn PairStore;
    /// Looks at the backing again; cheap (one `fstat`).
    fn standing(&self) -> Standing;
    /// True if the backing is the user's file.
    fn is_borrowed(&self) -> bool;
    /// Of a thousand bytes, how many stand in the object before, at most 1,000: a guess, and 0 if nobody looked.
    fn repeated_permille(&self) -> u16 {
        0
    }
    /// Checks the pairs that prove `groups`, up to the OID. If one is wrong the outboard is built again from the data, and
    /// that is `true`; if the data are wrong, too, the error is that of [`StoredObject::mismatch`].
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        let _ = groups;
        Ok(false)
    }
    /// Hears that bytes of the backing do not match the outboard, which was found to be right, and says what that means:
    /// `Changed` if the user's file was written to, `Damaged` if nobody touched the backing. What is damaged is not
    /// trusted without reading any more, by nobody, until the bytes are put again.
    fn mismatch(&self) -> Error {
        if self.is_borrowed() {
            Error::new(ErrorKind::Changed, "the file was changed after it was put")
                .advise("put it again and pass on the new ticket")
        } else {
            Error::new(ErrorKind::Damaged, "the stored copy is damaged").advise("put it again")
        }
    }
    /// A descriptor whose byte `n` is the object's byte `n`, for `sendfile`.
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Takes the bytes of a new owned object, front to back. Dropped without commit, it leaves nothing behind.
pub trait ObjectWriter: Send {
    /// Appends.
    fn write(&mut self, data: &[u8]) -> Result<()>;
    /// Ends the object and returns it.
    fn commit(self: Box<Self>) -> Result<Arc<dyn StoredObject>>;
}

/// An object being received. Any number of threads write different units at once. What is marked survives the
/// process if the plugin is persistent (design decision 10).
pub trait PartialObject: PairStore + fmt::Debug {
    /// Size of the whole object.
    fn size_bytes(&self) -> u64;
    /// Units marked by an earlier run that are still there.
    fn marked_units(&self) -> RangeSet;
    /// Writes bytes at `offset`.
    fn write_data(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Makes `range` read as zeros, unallocated where the file system can. A fresh object is all hole already.
    fn write_hole(&self, range: Range<u64>) -> Result<()>;
    /// Reads back what was written (for bisection and for sequential delivery).
    fn read_data(&self, offset: u64, out: &mut [u8]) -> Result<()>;
    /// Remembers that the data and pairs of `unit` have been written.
    fn mark_unit(&self, unit: u64) -> Result<()>;
    /// Forgets that `unit` was written.
    fn unmark_unit(&self, unit: u64) -> Result<()>;
    /// As [`PartialObject::unmark_unit`] for each of `units`, but waits for the disk once at most.
    fn unmark_units(&self, units: &RangeSet) -> Result<()> {
        units.iter().flatten().try_for_each(|unit| self.unmark_unit(unit))
    }
}
