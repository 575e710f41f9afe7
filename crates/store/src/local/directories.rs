//! Directories that a daemon shares as they are: one record each, `directories/<64 hex digits>` in the data directory
//! (`docs/format/directory.md`). Only the daemon, which is alone in its data directory, writes and reads them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use dray_core::limits::{LIVE_TREES_MAX, PATH_BYTES_MAX};
use dray_core::rights::Secret;
use dray_core::text::{from_hex, hex};
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Result};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use super::LocalStore;
use super::extents::io_at;
use super::place::{make_directory, remove_if_there};
use super::record::{read_small, seal, unseal, write_small};
use super::tree::{LastingIdentity, SharedDirectory};

/// First bytes of a record.
const MAGIC: [u8; 8] = *b"dray-dir";
/// Its version.
const VERSION: u8 = 1;

/// A directory, and who may have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryRecord {
    /// Its name in tickets.
    pub id: DirectoryId,
    /// Where it is: absolute, and without links when it was shared.
    pub path: PathBuf,
    /// By what it is known again; `None` if that cannot be told for sure.
    pub lasting: Option<LastingIdentity>,
    /// Of a private share; `None` if whoever knows the id may have it.
    pub secret: Option<Secret>,
    /// End of the right, seconds since 1970.
    pub expires_unix_s: Option<u64>,
    /// Since when it is shared, seconds since 1970.
    pub since_unix_s: u64,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Wire {
    #[n(0)]
    version: u8,
    #[n(1)]
    id: ByteVec,
    #[n(2)]
    path: ByteVec,
    #[n(3)]
    lasting: Option<LastingIdentity>,
    #[n(4)]
    secret: Option<Secret>,
    #[n(5)]
    expires_unix_s: Option<u64>,
    #[n(6)]
    since_unix_s: u64,
}

impl DirectoryRecord {
    /// As it is looked at when a receiver asks.
    pub fn directory(&self) -> SharedDirectory {
        SharedDirectory::again(self.path.clone(), self.lasting)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let wire = Wire {
            version: VERSION,
            id: self.id.as_bytes().to_vec().into(),
            path: self.path.as_os_str().as_bytes().to_vec().into(),
            lasting: self.lasting,
            secret: self.secret,
            expires_unix_s: self.expires_unix_s,
            since_unix_s: self.since_unix_s,
        };
        seal(MAGIC, &dray_core::cbor::encode(&wire))
    }

    /// `Damaged` if `bytes` are no record of `id`, `Unsupported` if they are of another version.
    fn from_bytes(bytes: &[u8], id: DirectoryId) -> Result<DirectoryRecord> {
        let wire: Wire = unseal(MAGIC, bytes, "directory record")?;
        let damaged = |why: &str| Err(Error::new(ErrorKind::Damaged, format!("directory record {why}")));
        if wire.version != VERSION {
            let what = format!("directory record has format version {}", wire.version);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("another version of dray wrote it: use that, or share the directory again"));
        }
        if wire.id[..] != *id.as_bytes() {
            return damaged("is of another one");
        }
        if !wire.path.starts_with(b"/") || wire.path.len() > PATH_BYTES_MAX || wire.path.contains(&0) {
            return damaged("names an impossible path");
        }
        Ok(DirectoryRecord {
            id,
            path: PathBuf::from(OsString::from_vec(wire.path.into())),
            lasting: wire.lasting,
            secret: wire.secret,
            expires_unix_s: wire.expires_unix_s,
            since_unix_s: wire.since_unix_s,
        })
    }
}

impl LocalStore {
    fn directories(&self) -> PathBuf {
        self.place().root().join("directories")
    }

    fn directory_path(&self, id: DirectoryId) -> PathBuf {
        self.directories().join(hex(id.as_bytes()))
    }

    /// The ids of those whose names are there, readable or not, [`LIVE_TREES_MAX`] at most, and how many there are in all; and what kept
    /// others from being found.
    fn directory_names(&self) -> Result<(BTreeSet<[u8; 32]>, usize, Vec<Error>)> {
        let folder = self.directories();
        let reader = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
            reader => reader.map_err(|error| io_at("list", &folder, error))?,
        };
        let (mut ids, mut count, mut unknown) = (BTreeSet::new(), 0, Vec::new());
        for entry in reader {
            match entry {
                // Anything else that lies about is passed over.
                Ok(entry) => {
                    let Some(id) = id_of(&entry.file_name()) else { continue };
                    count += 1;
                    ids.insert(id);
                    if ids.len() > LIVE_TREES_MAX {
                        ids.pop_last();
                    }
                }
                // What comes after it is not known; the same error might come for ever.
                Err(error) => {
                    unknown.push(io_at("list", &folder, error));
                    break;
                }
            }
        }
        Ok((ids, count, unknown))
    }

    /// How many records there are, those that cannot be read included.
    pub fn directory_count(&self) -> Result<usize> {
        let (_, count, unknown) = self.directory_names()?;
        unknown.into_iter().next().map_or(Ok(count), Err)
    }

    /// All of them, of the [`LIVE_TREES_MAX`] first, in the order of their ids; and why of some it is not known what was shared.
    pub fn directory_records(&self) -> Result<(Vec<DirectoryRecord>, Vec<Error>)> {
        let (ids, count, mut unknown) = self.directory_names()?;
        if count > ids.len() {
            let what = format!(
                "{:?}: {} records beyond {LIVE_TREES_MAX} are not read",
                self.directories(),
                count - ids.len()
            );
            unknown.push(
                Error::new(ErrorKind::Refused, what)
                    .advise("end some directories, and start the daemon again: dray done TICKET"),
            );
        }
        let mut records = Vec::new();
        for id in ids.into_iter().map(DirectoryId::from_bytes) {
            let path = self.directory_path(id);
            let read = read_small(&path)
                .and_then(|bytes| bytes.map(|bytes| DirectoryRecord::from_bytes(&bytes, id)).transpose());
            match read {
                Ok(record) => records.extend(record),
                Err(error) => unknown.push(error.context(format_args!("{path:?}"))),
            }
        }
        Ok((records, unknown))
    }

    /// Writes a record, durably: once this has returned, the share is there after a loss of power.
    pub fn keep_directory(&self, record: &DirectoryRecord) -> Result<()> {
        let folder = self.directories();
        make_directory(&folder, false)?;
        write_small(self.place().temp()?, &self.directory_path(record.id), &record.to_bytes(), true)?;
        self.sync_directories_of_records()
    }

    /// Removes a record, readable or not, durably: the share does not come back. One that is not there any more is no error; true if it was there.
    pub fn forget_directory(&self, id: DirectoryId) -> Result<bool> {
        // One that an earlier try removed may not be gone from the disk.
        let was_there = remove_if_there(&self.directory_path(id))?;
        self.sync_directories_of_records()?;
        Ok(was_there)
    }

    /// Their folder, unless somebody removed it with all that was in it, and that which it is in.
    fn sync_directories_of_records(&self) -> Result<()> {
        for path in [&*self.directories(), self.place().root()] {
            match File::open(path).and_then(|directory| directory.sync_all()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                synced => synced.map_err(|error| io_at("write", path, error))?,
            }
        }
        Ok(())
    }
}

/// That of the record of this name.
fn id_of(name: &OsStr) -> Option<[u8; 32]> {
    let id = from_hex(name.to_str()?).filter(|id| hex(id) == name.to_string_lossy())?;
    id.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> DirectoryRecord {
        DirectoryRecord {
            id: DirectoryId::from_bytes([9; 32]),
            path: PathBuf::from(OsString::from_vec(b"/srv/\xff".to_vec())),
            lasting: Some(LastingIdentity {
                kind: 0xef53,
                file_system: 7,
                inode: 12,
                born_s: 1_795_000_000,
                born_ns: 5,
            }),
            secret: Some(Secret::from_bytes([4; 16])),
            expires_unix_s: Some(1_900_000_000),
            since_unix_s: 1_800_000_000,
        }
    }

    /// Golden bytes: they are disk format (`docs/format/directory.md`).
    #[test]
    fn golden_record() {
        let record = example();
        assert_eq!(hex(&record.to_bytes()), include_str!("../../fixtures/directory.hex").trim());
        assert_eq!(DirectoryRecord::from_bytes(&record.to_bytes(), record.id).unwrap(), record);
    }

    /// ADR 31: what is kept is found again by another process, and what is ended is not; nor is another version, or the record of another one,
    /// taken for it, and each of those is told.
    #[test]
    fn records_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = || LocalStore::open(&dir.path().join("store")).unwrap();
        assert!(store().directory_records().unwrap().0.is_empty());
        let one = example();
        let other = DirectoryRecord {
            id: DirectoryId::from_bytes([3; 32]),
            lasting: None,
            secret: None,
            expires_unix_s: None,
            ..one.clone()
        };
        store().keep_directory(&one).unwrap();
        store().keep_directory(&other).unwrap();
        let (records, unknown) = store().directory_records().unwrap();
        assert_eq!((records, unknown.len()), (vec![other.clone(), one.clone()], 0));
        let folder = dir.path().join("store/directories");
        std::fs::write(folder.join("rubbish"), b"passed over").unwrap();
        std::fs::copy(folder.join(hex(&[3; 32])), folder.join(hex(&[5; 32]))).unwrap();
        std::fs::write(folder.join(hex(&[6; 32])), b"dray-dir").unwrap();
        assert!(store().forget_directory(one.id).unwrap());
        assert!(!store().forget_directory(one.id).unwrap());
        let (records, unknown) = store().directory_records().unwrap();
        assert_eq!(records, [other]);
        assert_eq!(unknown.iter().map(Error::kind).collect::<Vec<_>>(), [ErrorKind::Damaged; 2]);
    }

    /// Limits: what lies there counts whether it can be read or not, and is told where it is beyond the limit; all of it can be forgotten,
    /// also with the folder gone.
    #[test]
    fn records_beyond_the_limit_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(&dir.path().join("store")).unwrap();
        store.keep_directory(&example()).unwrap();
        let folder = dir.path().join("store/directories");
        let unreadable = |number: usize| {
            let mut id = [0xee; 32];
            id[..8].copy_from_slice(&(number as u64).to_be_bytes());
            id
        };
        (1..LIVE_TREES_MAX).for_each(|number| {
            std::fs::write(folder.join(hex(&unreadable(number))), b"rubbish").unwrap();
        });
        std::fs::write(folder.join("rubbish"), b"passed over").unwrap();
        assert_eq!(store.directory_count().unwrap(), LIVE_TREES_MAX);
        assert_eq!(store.directory_records().unwrap().0, [example()]);
        for number in [LIVE_TREES_MAX, LIVE_TREES_MAX + 1] {
            std::fs::write(folder.join(hex(&unreadable(number))), b"rubbish").unwrap();
        }
        assert_eq!(store.directory_count().unwrap(), LIVE_TREES_MAX + 2);
        let (records, unknown) = store.directory_records().unwrap();
        assert!(records.is_empty(), "that of the last id");
        assert!(unknown[0].to_string().contains("2 records beyond 1024"), "{}", unknown[0]);
        assert_eq!(unknown.len(), 1 + LIVE_TREES_MAX);
        assert!(store.forget_directory(DirectoryId::from_bytes(unreadable(1))).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!store.forget_directory(example().id).unwrap());
    }

    /// Design 17: paths that cannot be, and other versions, are refused.
    #[test]
    fn what_cannot_be_is_refused() {
        let changed = |change: &dyn Fn(&mut Wire)| {
            let mut wire: Wire = unseal(MAGIC, &example().to_bytes(), "directory record").unwrap();
            change(&mut wire);
            DirectoryRecord::from_bytes(&seal(MAGIC, &dray_core::cbor::encode(&wire)), example().id)
                .map_err(|error| error.kind())
        };
        assert!(changed(&|_| {}).is_ok());
        assert_eq!(changed(&|wire| wire.version = 2), Err(ErrorKind::Unsupported));
        for path in [&b"srv"[..], b"", b"/a\0b", &[b'/'; PATH_BYTES_MAX + 1]] {
            assert_eq!(changed(&|wire| wire.path = path.to_vec().into()), Err(ErrorKind::Damaged));
        }
        assert_eq!(changed(&|wire| wire.id = vec![9; 31].into()), Err(ErrorKind::Damaged));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Design 17: whatever stands in a record file, reading it does not panic, nor is it another one's.
        #[test]
        fn mutated_records_are_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<bool>()) {
            let record = example();
            let mut bytes = record.to_bytes();
            let index = at.index(bytes.len());
            if cut { bytes.truncate(index) } else { bytes[index] ^= flip }
            prop_assert!(DirectoryRecord::from_bytes(&bytes, record.id).is_err());
            let mut payload = record.to_bytes()[40..].to_vec();
            let index = at.index(payload.len());
            if cut { payload.truncate(index) } else { payload[index] ^= flip }
            if let Ok(decoded) = DirectoryRecord::from_bytes(&seal(MAGIC, &payload), record.id) {
                prop_assert!(decoded.id == record.id && decoded.path.is_absolute());
            }
        }
    }
}
