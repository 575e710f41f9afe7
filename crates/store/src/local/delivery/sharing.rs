//! A delivery whose bytes lie in the same file system already: the temporary file shares the blocks of the source, and is hashed
//! itself before it gets its name.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use dray_core::{Oid, Result};
use rustix::fs::{copy_file_range, ioctl_ficlone, statfs};

use super::Delivery;
use super::checkpoint::lock;
use crate::local::SourceFile;
use crate::local::file_systems::{PART_SHARERS, SHARELESS, kind_of, lies_on, told};
use crate::local::hashing::{Watch, hash_open};

/// Times that a source which changes meanwhile is shared again.
const TRIES_MAX: usize = 3;
/// Where blocks of these begin on nearly all machines: only whole ones can be shared.
const BLOCK_BYTES: u64 = 4096;

/// Whether it is worth trying to share the blocks of `source` with a file in `directory`.
pub fn may_share(source: &File, directory: &Path) -> bool {
    match (kind_of(source), statfs(directory).map(|about| told(&about))) {
        (Ok(one), Ok(other)) => one == other && !SHARELESS.contains(&one),
        _ => false,
    }
}

impl Delivery {
    /// Gives the delivery all bytes of `source` by sharing its blocks. False where the file system cannot: then nothing is shared, and the
    /// delivery is as it was. It is false, too, where an earlier run has left something to go on from.
    ///
    /// Shared blocks are a snapshot: what is written to the source later goes elsewhere. `Changed` if the source has another size than the
    /// delivery, or does not hold still.
    pub fn share(&self, source: &SourceFile) -> Result<bool> {
        let shared = &self.shared;
        if !lock(&shared.marks).marked.is_empty() {
            return Ok(false);
        }
        for _ in 0..TRIES_MAX {
            let before = source.identity_now()?;
            if before.size_bytes != shared.geometry.size_bytes() {
                break;
            }
            let is_shared = ioctl_ficlone(&shared.data, source.file()).is_ok();
            shared.note();
            if !is_shared {
                self.empty()?;
                return Ok(false);
            }
            if source.identity_now()? == before {
                return Ok(true);
            }
        }
        self.empty()?;
        Err(source.changed())
    }

    /// Whether its own file system can share parts of files, and did so far.
    pub fn shares_parts(&self) -> bool {
        let shared = &self.shared;
        // Asked once: on a network it is a question to the other end.
        let is_able = || lies_on(&shared.data, &PART_SHARERS);
        !shared.failed_to_share.load(Ordering::Relaxed) && *shared.may_share_parts.get_or_init(is_able)
    }

    /// Has the bytes of `range` share the blocks that `source` has from `from` on. False where that cannot be: then some of `range` may have been
    /// written all the same, and all of it is to be written. After the first time that the file system refuses, nothing more is tried.
    /// What is there after is a snapshot, and nobody has said what of: it is to be read back and hashed.
    pub fn share_part(&self, source: &File, from: u64, range: Range<u64>) -> Result<bool> {
        let shared = &self.shared;
        let range = shared.check(range.start, range.end.saturating_sub(range.start))?;
        // The last block of an object need not be whole: the kernel shares it where the source ends there, too.
        let is_end = range.end == shared.geometry.size_bytes();
        let is_aligned = |at: u64| at.is_multiple_of(BLOCK_BYTES);
        if !is_aligned(from) || !is_aligned(range.start) || !(is_aligned(range.end) || is_end) {
            return Ok(false);
        }
        if !self.shares_parts() || kind_of(source).ok() != kind_of(&shared.data).ok() {
            return Ok(false);
        }
        shared.space.use_for_shared(&range);
        let (mut source_at, mut at) = (from, range.start);
        while at < range.end {
            let len = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            match copy_file_range(source, Some(&mut source_at), &shared.data, Some(&mut at), len) {
                Ok(1..) => {}
                // The source ends before.
                Ok(0) => break,
                // It lies on another one of the kind, it may be, or this one was made without sharing.
                Err(_) => {
                    shared.failed_to_share.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        shared.note_writing();
        Ok(at == range.end)
    }

    /// Hashes the bytes that will get the name. `progress` hears the bytes hashed so far, from any thread; `Interrupted` soon after
    /// `is_stopped` says yes.
    pub fn hash(
        &self,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Oid> {
        let watch = Watch { progress, is_stopped, repeats: None };
        hash_open(&self.shared.data, &self.shared.destination.path, self.shared.geometry, &watch)
    }

    /// Takes back what a sharing that failed may have left: the writes that follow take everything for a hole.
    fn empty(&self) -> Result<()> {
        let data = &self.shared.data;
        let emptied: io::Result<()> =
            data.set_len(0).and_then(|()| data.set_len(self.shared.geometry.size_bytes()));
        self.shared.note();
        emptied.map_err(|error| self.shared.destination.failed("prepare", error))
    }
}

#[cfg(test)]
mod tests {
    use dray_core::Oid;
    use dray_core::message::ObjectName;
    use dray_core::store::PartialObject;

    use super::super::{DeliveryOptions, FinishOptions};
    use super::*;

    const MIB: usize = 1 << 20;

    /// S60: where nothing can be shared the delivery is as it was: units that have come stay, and others are holes until something comes.
    /// What is hashed is what is delivered.
    #[test]
    fn what_cannot_be_shared_comes_as_ever() {
        let place = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * MIB + 77).map(|at| (at % 251) as u8).collect();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        std::fs::write(&from, &bytes).unwrap();
        let source = SourceFile::open(&from).unwrap();
        let object = ObjectName::Provisional([7; 32]);
        let open = || Delivery::open(&to, object, bytes.len() as u64, DeliveryOptions::default()).unwrap();
        {
            let delivery = open();
            delivery.write_data(0, &bytes[..MIB]).unwrap();
            delivery.mark_unit(0).unwrap();
            // Whatever the file system can: there is something to go on from.
            assert!(!delivery.share(&source).unwrap());
            assert_eq!(delivery.marked_units().count(), 1);
        }
        let delivery = open();
        assert_eq!(delivery.marked_units().count(), 1);
        delivery.discard().unwrap();
        drop(delivery);
        let delivery = open();
        if !delivery.share(&source).unwrap() {
            let mut read = vec![1; bytes.len()];
            delivery.read_data(0, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 0));
            delivery.write_data(0, &bytes).unwrap();
        }
        let oid = delivery.hash(&|_| {}, &|| false).unwrap();
        delivery.finish(FinishOptions::default()).unwrap();
        assert_eq!(oid, Oid::of(&std::fs::read(&to).unwrap()));
        assert_eq!(oid, Oid::of(&bytes));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
    }

    /// S98: a file system that refuses once to share blocks is not asked again: what could be shared by its kind is written.
    #[test]
    fn who_refuses_to_share_is_not_asked_again() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        std::fs::write(&from, vec![1; 2 * MIB]).unwrap();
        let object = ObjectName::Provisional([7; 32]);
        let delivery = Delivery::open(&to, object, 2 * MIB as u64, DeliveryOptions::default()).unwrap();
        // Whatever it is: the call copies where nothing can be shared.
        delivery.shared.may_share_parts.set(true).unwrap();
        let half = MIB as u64;
        let source = File::open(&from).unwrap();
        assert!(delivery.share_part(&source, 0, 0..half).unwrap());
        let unreadable = File::options().write(true).open(&from).unwrap();
        assert!(!delivery.share_part(&unreadable, 0, 0..half).unwrap());
        assert!(!delivery.share_part(&source, 0, 0..half).unwrap());
    }

    /// S5: a source that has another size by now is `changed`, and the delivery has none of it.
    #[test]
    fn a_source_that_grew_is_not_shared() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        std::fs::write(&from, vec![1; MIB]).unwrap();
        let source = SourceFile::open(&from).unwrap();
        let object = ObjectName::Provisional([7; 32]);
        let delivery = Delivery::open(&to, object, MIB as u64, DeliveryOptions::default()).unwrap();
        std::fs::write(&from, vec![1; MIB + 1]).unwrap();
        assert_eq!(delivery.share(&source).unwrap_err().kind(), dray_core::ErrorKind::Changed);
        let mut read = vec![1; MIB];
        delivery.read_data(0, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        drop(delivery);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
