//! What is remembered about an object and about a file of the user, and how it stands on disk: magic, checksum,
//! deterministic CBOR (`docs/format/object.md`).

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use dray_core::limits::{NAME_BYTES_MAX, OBJECT_BYTES_MAX, PATH_BYTES_MAX, RECORD_BYTES_MAX};
use dray_core::store::{FileIdentity, Share};
use dray_core::{Error, ErrorKind, Oid, Result, cbor};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::os::unix::ffi::OsStringExt;

use super::extents::io_at;
use super::place::TempFile;
use super::retention::Retention;

/// First bytes of an object record.
const OBJECT_MAGIC: [u8; 8] = *b"dray-obj";
/// First bytes of a file hint.
const HINT_MAGIC: [u8; 8] = *b"dray-fil";
/// Version of both.
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 32;
/// A file is believed only if it had been left alone this long before it was hashed (design decision 11): a write
/// within one tick of the file system's clock leaves no trace in its times.
const SETTLED_NS: i64 = 2_000_000_000;

/// Change time that no file has: it stands in the record of bytes that were found not to be the object although their
/// file looked untouched, so that nothing is taken for that state again.
const DISTRUSTED_NS: i64 = i64::MIN;

/// Where the bytes of an extent are.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(flat)]
pub(super) enum Backing {
    /// In the object's own file `data`.
    #[n(0)]
    Owned,
    /// In the user's file at this absolute path.
    #[n(1)]
    Borrowed(#[n(0)] ByteVec),
}

/// A run of the object's bytes; runs follow one another from byte 0.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct RecordExtent {
    #[n(0)]
    pub(super) backing: Backing,
    /// Where it begins in its backing.
    #[n(1)]
    pub(super) offset: u64,
    #[n(2)]
    pub(super) length: u64,
}

/// Everything known about an object but its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct Record {
    #[n(0)]
    pub(super) version: u8,
    #[n(1)]
    pub(super) oid: Oid,
    #[n(2)]
    pub(super) size_bytes: u64,
    #[n(3)]
    pub(super) extents: Vec<RecordExtent>,
    /// State of the backing file when it was hashed.
    #[n(4)]
    pub(super) backing: FileIdentity,
    /// When hashing began, nanoseconds since 1970.
    #[n(5)]
    pub(super) hashed_at_ns: i64,
    /// State of the outboard when it was known to be right.
    #[n(6)]
    pub(super) outboard: FileIdentity,
    /// Boot during which that was; the outboard of a borrowed file is not made durable.
    #[n(7)]
    pub(super) boot: ByteVec,
    #[n(8)]
    pub(super) share: Option<Share>,
    /// Of a thousand bytes, how many stand in the object before, as a guess.
    #[n(9)]
    pub(super) repeated_permille: Option<u16>,
    /// Why it is kept; `None` if only commands use it.
    #[n(10)]
    pub(super) retention: Option<Retention>,
    /// `true` if its owned bytes were taken in by a daemon, and by no command since: only those may be removed to make room.
    #[n(11)]
    pub(super) disposable: Option<bool>,
}

impl Record {
    /// A record of an object in one piece.
    pub(super) fn new(oid: Oid, backing: Backing, identity: FileIdentity, hashed_at_ns: i64) -> Record {
        let length = identity.size_bytes;
        Record {
            version: VERSION,
            oid,
            size_bytes: length,
            extents: vec![RecordExtent { backing, offset: 0, length }],
            backing: identity,
            hashed_at_ns,
            outboard: identity,
            boot: ByteVec::from(Vec::new()),
            share: None,
            retention: None,
            disposable: None,
            repeated_permille: None,
        }
    }

    /// Takes over who may have the object and why it is kept: that does not depend on where its bytes are.
    pub(super) fn keep_from(&mut self, existing: Option<&Record>) {
        self.share = existing.and_then(|record| record.share.clone());
        self.retention = existing.and_then(|record| record.retention.clone());
    }

    /// Whether its bytes may be removed to make room: nobody was promised that they stay.
    pub(super) fn is_disposable(&self) -> bool {
        self.disposable == Some(true) && self.borrowed_path().is_none()
    }

    /// The user's file, if the bytes are there.
    pub(super) fn borrowed_path(&self) -> Option<PathBuf> {
        match self.extents.first().map(|extent| &extent.backing) {
            Some(Backing::Borrowed(path)) => Some(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()))),
            _ => None,
        }
    }

    /// Whether `now` is the very file that was hashed, unchanged.
    pub(super) fn holds_for(&self, now: &FileIdentity) -> bool {
        *now == self.backing
            && (self.borrowed_path().is_none() || is_settled(&self.backing, self.hashed_at_ns))
    }

    /// Believes the backing no more, whatever it looks like.
    pub(super) fn distrust(&mut self) {
        self.backing.ctime_ns = DISTRUSTED_NS;
    }

    /// Whether nothing about `now` tells that the bytes are not those that were hashed.
    pub(super) fn looks_untouched(&self, now: &FileIdentity) -> bool {
        let as_distrusted = FileIdentity { ctime_ns: DISTRUSTED_NS, ..*now };
        self.holds_for(now) || self.backing == as_distrusted
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        seal(OBJECT_MAGIC, &cbor::encode(self))
    }

    /// Decodes the record of `oid`. `Damaged` if it is not one, `Unsupported` if it is from another version.
    pub(super) fn from_bytes(bytes: &[u8], oid: &Oid) -> Result<Record> {
        let record: Record = unseal(OBJECT_MAGIC, bytes, "object record")?;
        let damaged = |why: &str| Err(Error::new(ErrorKind::Damaged, format!("object record {why}")));
        if record.version != VERSION {
            return Err(other_version(record.version));
        }
        if record.oid != *oid {
            return damaged("belongs to another object");
        }
        if record.size_bytes > OBJECT_BYTES_MAX {
            return damaged("claims an impossible size");
        }
        let [extent] = &record.extents[..] else {
            return Err(Error::new(ErrorKind::Unsupported, "object record has several extents")
                .advise("a newer version of dray wrote it; use that"));
        };
        if extent.offset != 0 || extent.length != record.size_bytes {
            return damaged("does not cover the object");
        }
        if let Backing::Borrowed(path) = &extent.backing
            && (!path.starts_with(b"/") || path.len() > PATH_BYTES_MAX || path.contains(&0))
        {
            return damaged("names an impossible path");
        }
        let name = record.share.as_ref().and_then(|share| share.name.as_ref());
        if name.is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            return damaged("has a name that is too long");
        }
        Ok(record)
    }
}

/// Which object a file of the user was when it was last hashed. Only a hint: the object may be gone.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct FileHint {
    #[n(0)]
    pub(super) version: u8,
    #[n(1)]
    pub(super) oid: Oid,
    #[n(2)]
    pub(super) file: FileIdentity,
    /// When hashing began, nanoseconds since 1970.
    #[n(3)]
    pub(super) hashed_at_ns: i64,
}

impl FileHint {
    pub(super) fn new(oid: Oid, file: FileIdentity, hashed_at_ns: i64) -> FileHint {
        FileHint { version: VERSION, oid, file, hashed_at_ns }
    }

    /// Whether the file in state `now` still has the OID.
    pub(super) fn holds_for(&self, now: &FileIdentity) -> bool {
        *now == self.file && is_settled(&self.file, self.hashed_at_ns)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        seal(HINT_MAGIC, &cbor::encode(self))
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<FileHint> {
        let hint: FileHint = unseal(HINT_MAGIC, bytes, "file hint")?;
        if hint.version == VERSION { Ok(hint) } else { Err(other_version(hint.version)) }
    }
}

fn is_settled(file: &FileIdentity, hashed_at_ns: i64) -> bool {
    hashed_at_ns.saturating_sub(file.ctime_ns) >= SETTLED_NS
}

fn other_version(version: u8) -> Error {
    Error::new(ErrorKind::Unsupported, format!("object record has format version {version}"))
        .advise("another version of dray wrote it; use that, or remove the object and put it again")
}

/// A record as it stands on disk.
pub(super) fn seal(magic: [u8; 8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(blake3::hash(payload).as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// What `seal` made of it. `Damaged` if that is not what `bytes` are.
pub(super) fn unseal<'b, T: Decode<'b, ()>>(magic: [u8; 8], bytes: &'b [u8], what: &str) -> Result<T> {
    let damaged = |why: &str| Error::new(ErrorKind::Damaged, format!("{what} {why}"));
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(damaged("is too long"));
    }
    let rest = bytes.strip_prefix(&magic).ok_or_else(|| damaged("does not begin as one"))?;
    let (checksum, payload) = rest.split_at_checked(CHECKSUM_BYTES).ok_or_else(|| damaged("is cut short"))?;
    if blake3::hash(payload).as_bytes() != checksum {
        return Err(damaged("does not match its checksum"));
    }
    cbor::decode(payload, what).map_err(|error| damaged("cannot be decoded").caused_by(error))
}

/// Reads a small file whole; `None` if there is none. A longer one is cut just beyond the limit, which no decoder
/// accepts.
pub(super) fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_at("open", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| io_at("read", path, error))?;
    Ok(Some(bytes))
}

/// Replaces `path` with `bytes` in one step.
pub(super) fn write_small(temp: TempFile, path: &Path, bytes: &[u8], durable: bool) -> Result<()> {
    let mut file = temp.file();
    file.write_all(bytes).map_err(|error| io_at("write", temp.path(), error))?;
    if durable {
        file.sync_data().map_err(|error| io_at("write", temp.path(), error))?;
    }
    temp.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use dray_core::rights::Secret;
    use dray_core::text::hex;
    use proptest::prelude::*;

    use super::*;

    fn example() -> Record {
        let identity = FileIdentity { dev: 1, ino: 2, size_bytes: 5, mtime_ns: -1, ctime_ns: 1_000_000_000 };
        let mut record = Record::new(
            Oid::of(b"hello"),
            Backing::Borrowed(b"/tmp/\xff".to_vec().into()),
            identity,
            3_000_000_000,
        );
        record.outboard = FileIdentity { ino: 9, size_bytes: 0, ..identity };
        record.boot = vec![7; 16].into();
        record.share = Some(Share {
            secret: Some(Secret::from_bytes([4; 16])),
            expires_unix_s: None,
            port: Some(4433),
            name: Some(b"a".to_vec().into()),
        });
        record
    }

    /// Golden bytes: they are disk format (`docs/format/object.md`).
    #[test]
    fn golden_record_and_hint() {
        let record = example();
        assert_eq!(hex(&record.to_bytes()), include_str!("../../fixtures/record.hex").trim());
        assert_eq!(Record::from_bytes(&record.to_bytes(), &record.oid).unwrap(), record);
        let hint = FileHint::new(record.oid, record.backing, record.hashed_at_ns);
        assert_eq!(hex(&hint.to_bytes()), include_str!("../../fixtures/file-hint.hex").trim());
        assert_eq!(FileHint::from_bytes(&hint.to_bytes()).unwrap(), hint);
    }

    /// Design 11: two seconds of rest before hashing, not a nanosecond less, and not a file from the future.
    #[test]
    fn trust_needs_two_seconds() {
        let mut record = example();
        let same = record.backing;
        assert!(record.holds_for(&same));
        record.hashed_at_ns -= 1;
        assert!(!record.holds_for(&same));
        record.hashed_at_ns = 0;
        assert!(!record.holds_for(&same));
        record.hashed_at_ns = i64::MAX;
        assert!(!record.holds_for(&FileIdentity { mtime_ns: 0, ..same }));
    }

    #[test]
    fn other_objects_and_versions_are_refused() {
        let record = example();
        let bytes = record.to_bytes();
        assert_eq!(Record::from_bytes(&bytes, &Oid::of(b"x")).unwrap_err().kind(), ErrorKind::Damaged);
        let future = Record { version: 2, ..record.clone() }.to_bytes();
        assert_eq!(Record::from_bytes(&future, &record.oid).unwrap_err().kind(), ErrorKind::Unsupported);
        let mut two = record.clone();
        two.extents.push(two.extents[0].clone());
        assert_eq!(
            Record::from_bytes(&two.to_bytes(), &record.oid).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        let mut relative = record.clone();
        relative.extents[0].backing = Backing::Borrowed(b"tmp".to_vec().into());
        assert!(Record::from_bytes(&relative.to_bytes(), &record.oid).is_err());
        let mut short = record.clone();
        short.extents[0].length -= 1;
        assert!(Record::from_bytes(&short.to_bytes(), &record.oid).is_err());
    }

    /// Design 17: of a file that is too long to be a record no more than that is read, and it is refused.
    #[test]
    fn long_files_are_not_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(RECORD_BYTES_MAX as u64 + 4096).unwrap();
        let bytes = read_small(&path).unwrap().unwrap();
        assert_eq!(bytes.len(), RECORD_BYTES_MAX + 1);
        assert!(FileHint::from_bytes(&bytes).unwrap_err().to_string().contains("too long"));
        assert_eq!(read_small(&dir.path().join("none")).unwrap(), None);
    }

    /// What is to outlive a crash is on the disk before it has its name; a pipe is what cannot be synced here.
    #[test]
    fn durable_records_are_synced() {
        for durable in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (temporary, path) = (dir.path().join("temporary"), dir.path().join("record"));
            std::fs::write(&temporary, b"").unwrap();
            let (_reader, writer) = std::io::pipe().unwrap();
            let file = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
            let written = write_small(TempFile::of(file, temporary), &path, b"record", durable);
            assert_eq!((written.is_err(), path.exists()), (durable, !durable));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Design 17: whatever stands in a record file, reading it neither panics nor yields another object's
        /// record; the second half mutates under a right checksum, to get past it.
        #[test]
        fn mutated_records_are_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<bool>()) {
            let record = example();
            let mut bytes = record.to_bytes();
            let index = at.index(bytes.len());
            if cut { bytes.truncate(index) } else { bytes[index] ^= flip }
            prop_assert!(Record::from_bytes(&bytes, &record.oid).is_err());
            prop_assert!(FileHint::from_bytes(&bytes).is_err());

            let mut payload = cbor::encode(&record);
            let index = at.index(payload.len());
            if cut { payload.truncate(index) } else { payload[index] ^= flip }
            if let Ok(decoded) = Record::from_bytes(&seal(OBJECT_MAGIC, &payload), &record.oid) {
                prop_assert_eq!(decoded.oid, record.oid);
                prop_assert_eq!(decoded.extents.len(), 1);
                prop_assert_eq!(decoded.extents[0].length, decoded.size_bytes);
            }
        }
    }
}
