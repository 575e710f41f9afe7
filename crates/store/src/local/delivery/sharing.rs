//! A delivery whose bytes lie in the same file system already: the temporary file shares the blocks of the source, and is hashed
//! itself before it gets its name.

use std::fs::File;
use std::io;
use std::path::Path;

use dray_core::{Oid, Result};
use rustix::fs::{StatFs, fstatfs, ioctl_ficlone, statfs};

use super::Delivery;
use super::checkpoint::lock;
use crate::local::SourceFile;
use crate::local::hashing::{Watch, hash_open};

/// Times that a source which changes meanwhile is shared again.
const TRIES_MAX: usize = 3;
/// `f_type` (statfs(2)) of ext2 to ext4 and of tmpfs, which share no blocks: there nothing needs to be made to find out.
const SHARELESS: [i64; 2] = [0xef53, 0x0102_1994];

/// Whether it is worth trying to share the blocks of `source` with a file in `directory`.
pub fn may_share(source: &File, directory: &Path) -> bool {
    // The field's type differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    let kind = |about: StatFs| about.f_type as i64;
    match (fstatfs(source).map(kind), statfs(directory).map(kind)) {
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
