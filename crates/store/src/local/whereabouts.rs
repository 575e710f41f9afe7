//! Which files have whole objects in them: what the chunk index is made of.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use dray_core::Oid;
use dray_core::store::FileIdentity;

use super::record::{self, Record};
use super::{LocalStore, Result};

/// A file with the bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whereabouts {
    /// The object's name.
    pub oid: Oid,
    /// The file: the user's, or one of the data directory.
    pub path: PathBuf,
    /// Its state when it was the object.
    pub identity: FileIdentity,
}

impl LocalStore {
    /// The files of all objects, in no particular order, one after the other: there may be very many. Before each record is read `may_read`
    /// is asked, which may wait; if it says no, that is the end, and false is returned. A record that cannot be read is passed over:
    /// whoever needs its object hears of that.
    pub fn each_whereabouts(
        &self,
        may_read: &mut dyn FnMut() -> bool,
        take: &mut dyn FnMut(Whereabouts),
    ) -> Result<bool> {
        for fan_out in self.place().fan_outs()? {
            for oid in self.place().names_in(&fan_out) {
                if !may_read() {
                    return Ok(false);
                }
                let paths = self.place().object(&oid);
                let bytes = record::read_small(&paths.record).ok().flatten();
                let Some(record) = bytes.and_then(|bytes| Record::from_bytes(&bytes, &oid).ok()) else {
                    continue;
                };
                if record.extents.len() == 1 {
                    let path = record.borrowed_path().unwrap_or(paths.data);
                    take(Whereabouts { oid, path, identity: record.backing });
                }
            }
        }
        Ok(true)
    }

    /// Another number, if objects came or went, by any process; the same, if not. Cheap: some hundred directories are looked at, and no
    /// record. What is done to a record of an object that stays does not show.
    pub fn generation(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        for fan_out in self.place().fan_outs()? {
            if let Ok(metadata) = std::fs::symlink_metadata(&fan_out) {
                (fan_out, metadata.ino(), metadata.ctime(), metadata.ctime_nsec()).hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use dray_core::store::Store;

    use super::*;

    /// Design 5: "what the daemon shares (borrowed and owned objects)".
    #[test]
    fn files_of_the_user_and_of_ours_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(&dir.path().join("store")).unwrap();
        let file = std::fs::canonicalize(dir.path()).unwrap().join("file");
        std::fs::write(&file, [7; 5000]).unwrap();
        let borrowed = store.put_file(&file, &|_| {}).unwrap().oid();
        let mut writer = store.take_in().unwrap();
        writer.write(&[8; 6000]).unwrap();
        let mut incoming = writer.finish().unwrap();
        let before = store.generation().unwrap();
        assert_eq!(store.generation().unwrap(), before);
        let owned = incoming.keep().unwrap().oid();
        assert_ne!(store.generation().unwrap(), before, "an object came");
        let whereabouts = || {
            let mut found = Vec::new();
            assert!(store.each_whereabouts(&mut || true, &mut |at| found.push(at)).unwrap());
            found
        };
        let mut found = whereabouts();
        found.sort_by_key(|found| found.identity.size_bytes);
        assert_eq!(found.iter().map(|found| found.oid).collect::<Vec<_>>(), [borrowed, owned]);
        assert_eq!(found[0].path, file);
        assert_eq!(std::fs::read(&found[1].path).unwrap(), [8; 6000]);
        for found in found {
            let now = super::super::identity_of(&std::fs::metadata(&found.path).unwrap());
            assert_eq!(found.identity, now);
        }
        std::fs::write(store.place().object(&owned).record, b"garbage").unwrap();
        assert_eq!(whereabouts().len(), 1);
        // No record is read that must not be.
        let (mut asked, mut taken) = (0, 0);
        let mut may_read = || {
            asked += 1;
            asked < 2
        };
        assert!(!store.each_whereabouts(&mut may_read, &mut |_| taken += 1).unwrap());
        assert!(asked == 2 && taken <= 1, "{asked} {taken}");
    }
}
