//! Which files have whole objects in them: what the chunk index is made of.

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
    /// The files of all objects, in no particular order. A record that cannot be read is passed over: whoever needs its object
    /// hears of that.
    pub fn whereabouts(&self) -> Result<Vec<Whereabouts>> {
        let mut found = Vec::new();
        for oid in self.place().object_names()? {
            let paths = self.place().object(&oid);
            let bytes = record::read_small(&paths.record).ok().flatten();
            let Some(record) = bytes.and_then(|bytes| Record::from_bytes(&bytes, &oid).ok()) else {
                continue;
            };
            if record.extents.len() == 1 {
                let path = record.borrowed_path().unwrap_or(paths.data);
                found.push(Whereabouts { oid, path, identity: record.backing });
            }
        }
        Ok(found)
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
        let owned = incoming.keep().unwrap().oid();
        let mut found = store.whereabouts().unwrap();
        found.sort_by_key(|found| found.identity.size_bytes);
        assert_eq!(found.iter().map(|found| found.oid).collect::<Vec<_>>(), [borrowed, owned]);
        assert_eq!(found[0].path, file);
        assert_eq!(std::fs::read(&found[1].path).unwrap(), [8; 6000]);
        for found in found {
            let now = super::super::identity_of(&std::fs::metadata(&found.path).unwrap());
            assert_eq!(found.identity, now);
        }
        std::fs::write(store.place().object(&owned).record, b"garbage").unwrap();
        assert_eq!(store.whereabouts().unwrap().len(), 1);
    }
}
