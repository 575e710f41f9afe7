//! Target `store-record`: records of objects and directories, and hints of files, in a data directory, damaged or made by somebody else
//! (design 11, 12). The checksum is made right, so that what lies behind it is reached.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dray_core::store::Store;
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Oid};
use dray_store::local::{DirectoryRecord, LocalStore};

use crate::item::Item;
use crate::{Seed, novelty};

/// What the first byte of an input chooses: which file it replaces,
const IS_HINT: u8 = 1;
const IS_BORROWED: u8 = 2;
/// whether the backing's and the outboard's identity are put in, as no input could guess them,
const TRUE_BACKING: u8 = 4;
const TRUE_OUTBOARD: u8 = 8;
/// whether the bytes are taken as they are,
const UNSEALED: u8 = 16;
/// and whether they are the record of a directory.
const IS_DIRECTORY: u8 = 32;

/// The directory's name.
const DIRECTORY: [u8; 32] = [9; 32];

/// Bytes of the objects: two groups, so that there is an outboard.
const OBJECT_BYTES: usize = 70_000;

/// Whatever a record or hint says, an object that opens reads as its own bytes or not at all, a file is put under
/// its own hash, and everything else is an error of a documented kind.
pub fn target(data: &[u8]) {
    let (choice, payload) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    PLACE.with(|place| place.run(choice, payload));
}

thread_local! {
    /// Made once: an object is written and synced. Every run replaces the record it reads.
    static PLACE: Place = Place::new();
}

/// A data directory with an owned object and a borrowed one.
struct Place {
    _folder: tempfile::TempDir,
    store: LocalStore,
    file: PathBuf,
    owned: Known,
    borrowed: Known,
    hint: PathBuf,
    /// What `hint` was when the file was put.
    hint_bytes: Vec<u8>,
    directory: PathBuf,
    directory_bytes: Vec<u8>,
}

struct Known {
    oid: Oid,
    bytes: Vec<u8>,
    record: PathBuf,
    record_bytes: Vec<u8>,
}

impl Place {
    fn new() -> Place {
        let folder = super::temporary_folder();
        let root = folder.path().join("data");
        // An hour ahead, so that a file just written counts as left alone.
        let store = LocalStore::open(&root)
            .expect("a data directory")
            .with_clock(|| SystemTime::now() + Duration::from_secs(3600));
        let owned_bytes: Vec<u8> = (0..OBJECT_BYTES).map(|index| (index % 251) as u8).collect();
        let mut writer = store.put().expect("room");
        writer.write(&owned_bytes).expect("room");
        let owned_oid = writer.commit().expect("room").oid();
        let borrowed_bytes: Vec<u8> = owned_bytes.iter().map(|byte| !byte).collect();
        let file = folder.path().join("file");
        std::fs::write(&file, &borrowed_bytes).expect("room");
        let borrowed_oid = store.put_file(&file, &|_| {}).expect("readable").oid();
        let known = |oid: Oid, bytes| {
            let record = find(&root.join("objects"), &|path| path.ends_with(format!("{}/record", oid.hex())));
            let record = record.expect("a record in the object's folder");
            Known { oid, bytes, record_bytes: std::fs::read(&record).expect("readable"), record }
        };
        let hint = find(&root.join("files"), &|_| true).expect("a hint for the file that was put");
        let shared = DirectoryRecord {
            id: DirectoryId::from_bytes(DIRECTORY),
            path: folder.path().to_owned(),
            lasting: None,
            secret: None,
            expires_unix_s: None,
            since_unix_s: 1,
        };
        store.keep_directory(&shared).expect("room");
        let directory = find(&root.join("directories"), &|_| true).expect("its record");
        Place {
            owned: known(owned_oid, owned_bytes),
            borrowed: known(borrowed_oid, borrowed_bytes),
            hint_bytes: std::fs::read(&hint).expect("readable"),
            hint,
            directory_bytes: std::fs::read(&directory).expect("readable"),
            directory,
            file,
            store,
            _folder: folder,
        }
    }

    fn run(&self, choice: u8, payload: &[u8]) {
        let known = if choice & IS_BORROWED == 0 { &self.owned } else { &self.borrowed };
        for known in [&self.owned, &self.borrowed] {
            std::fs::write(&known.record, &known.record_bytes).expect("room");
        }
        if choice & IS_DIRECTORY != 0 {
            let bytes = sealed(choice, &self.directory_bytes, payload, &[]);
            std::fs::write(&self.directory, bytes).expect("room");
            return self.list_directories();
        }
        if choice & IS_HINT != 0 {
            let bytes = sealed(choice, &self.hint_bytes, payload, &[(2, TRUE_BACKING)]);
            std::fs::write(&self.hint, bytes).expect("room");
            return self.put_file();
        }
        std::fs::write(&self.hint, &self.hint_bytes).expect("room");
        let identities = [(4, TRUE_BACKING), (6, TRUE_OUTBOARD)];
        std::fs::write(&known.record, sealed(choice, &known.record_bytes, payload, &identities))
            .expect("room");
        self.open(known);
        self.put_file();
    }

    fn open(&self, known: &Known) {
        match self.store.open(&known.oid) {
            Ok(object) => {
                novelty::note("opened");
                assert_eq!((object.oid(), object.size_bytes()), (known.oid, known.bytes.len() as u64));
                let mut read = vec![0; known.bytes.len()];
                object.read_at(0, &mut read).expect("as long as it was");
                assert!(read == known.bytes, "an object reads as other bytes");
            }
            Err(error) => assert_documented(&error),
        }
        for outcome in [self.store.share(&known.oid).map(drop), self.store.list().map(drop)] {
            outcome.unwrap_or_else(|error| assert_documented(&error));
        }
    }

    /// ADR 31: a record is of the directory that its name says, at a path that can be, or is told to be none; nothing that stands there now is
    /// what was shared.
    fn list_directories(&self) {
        let (records, unknown) = self.store.directory_records().expect("the folder can be listed");
        assert_eq!(records.len() + unknown.len(), 1);
        unknown.iter().for_each(assert_documented);
        for record in records {
            novelty::note("a directory");
            assert!(record.id == DirectoryId::from_bytes(DIRECTORY) && record.path.is_absolute());
            assert!(record.directory().open().is_err());
        }
    }

    /// D14: a file is put under the hash of its bytes, whatever is remembered about it.
    fn put_file(&self) {
        match self.store.put_file(&self.file, &|_| {}) {
            Ok(object) => assert_eq!(object.oid(), self.borrowed.oid),
            Err(error) => assert_documented(&error),
        }
    }
}

fn assert_documented(error: &Error) {
    let kinds = [ErrorKind::NotFound, ErrorKind::Damaged, ErrorKind::Changed, ErrorKind::Unsupported];
    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    super::assert_clear(error);
}

/// `payload` as the file `original` would hold it: magic, checksum, payload; the map entries of `identities` that the
/// choice asks for are taken from `original`.
fn sealed(choice: u8, original: &[u8], payload: &[u8], identities: &[(u64, u8)]) -> Vec<u8> {
    if choice & UNSEALED != 0 {
        return payload.to_vec();
    }
    let (magic, rest) = original.split_at(8);
    let mut payload = payload.to_vec();
    for (key, bit) in identities {
        if choice & bit != 0 {
            payload = with_entry(&payload, &rest[32..], *key).unwrap_or(payload);
        }
    }
    [magic, blake3::hash(&payload).as_bytes(), &payload].concat()
}

/// The map `payload` with the value that `original` has for `key`.
fn with_entry(payload: &[u8], original: &[u8], key: u64) -> Option<Vec<u8>> {
    let (Item::Map(mut entries), rest) = Item::read(payload)? else { return None };
    let (Item::Map(originals), _) = Item::read(original)? else { return None };
    let wanted = |entry: &&mut (Item, Item)| entry.0 == Item::Number(0, key);
    let entry = entries.iter_mut().find(wanted)?;
    entry.1 = originals.into_iter().find(|(name, _)| *name == Item::Number(0, key))?.1;
    Some([Item::Map(entries).to_bytes(), rest.to_vec()].concat())
}

/// The first file below `folder` that `is_wanted`.
fn find(folder: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() { find(&path, is_wanted) } else { is_wanted(&path).then_some(path) }
    })
}

/// Records and hints as the store writes them, their identities replaced by zeros.
pub fn seeds() -> Vec<Seed> {
    let number = |value| Item::Number(0, value);
    let map = |values: Vec<Item>| Item::Map((0..).map(number).zip(values).collect());
    let bytes = |bytes: &[u8]| Item::String(2, bytes.to_vec());
    let identity = || map(vec![number(1), number(2), number(OBJECT_BYTES as u64), number(3), number(4)]);
    let oids = PLACE.with(|place| [place.owned.oid, place.borrowed.oid]);
    let record = |oid: Oid, backing: Item| {
        let extent = map(vec![backing, number(0), number(OBJECT_BYTES as u64)]);
        map(vec![
            number(1),
            bytes(&oid.to_encoded()),
            number(OBJECT_BYTES as u64),
            Item::Array(vec![extent]),
            identity(),
            number(1_795_000_000_000_000_000),
            identity(),
            bytes(&[7; 16]),
            map(vec![bytes(&[5; 16]), number(1_900_000_000), number(4711), bytes(b"a name")]),
        ])
    };
    let hint_of = |oid: Oid, hashed_at_ns| {
        map(vec![number(1), bytes(&oid.to_encoded()), identity(), number(hashed_at_ns)])
    };
    let hint = |oid| hint_of(oid, 1_795_000_000_000_000_000);
    let owned = record(oids[0], Item::Array(vec![number(0)]));
    let borrowed = record(oids[1], Item::Array(vec![number(1), bytes(b"/nowhere/file")]));
    let directory = map(vec![
        number(1),
        bytes(&DIRECTORY),
        bytes(b"/"),
        map([0xef53, 7, 12, 1_795_000_000, 5].map(number).to_vec()),
        bytes(&[4; 16]),
        number(1_900_000_000),
        number(1_800_000_000),
    ]);
    let all = TRUE_BACKING | TRUE_OUTBOARD;
    [
        ("owned", all, &owned),
        ("owned-outboard-changed", TRUE_BACKING, &owned),
        ("owned-data-changed", TRUE_OUTBOARD, &owned),
        ("borrowed", all | IS_BORROWED, &borrowed),
        ("of-the-other-object", all, &borrowed),
        ("hint", IS_HINT | TRUE_BACKING, &hint(oids[1])),
        ("hint-to-the-other-object", IS_HINT | TRUE_BACKING, &hint(oids[0])),
        ("hint-from-the-future", IS_HINT | TRUE_BACKING, &hint_of(oids[0], 4_000_000_000_000_000_000)),
        ("hint-for-another-file", IS_HINT, &hint(oids[1])),
        ("directory", IS_DIRECTORY, &directory),
    ]
    .into_iter()
    .map(|(name, choice, item)| (name.to_owned(), [&[choice][..], &item.to_bytes()].concat()))
    .chain([("cut".to_owned(), [&[UNSEALED][..], b"dray-obj"].concat())])
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs reach what lies behind the checks: the records of the corpus open, the wrong ones do not.
    #[test]
    fn seeds_open_what_they_say() {
        let place = Place::new();
        for (name, input) in seeds() {
            place.run(input[0], &input[1..]);
            let opens = |known: &Known| place.store.open(&known.oid).is_ok();
            match &name[..] {
                "owned" | "owned-outboard-changed" | "owned-data-changed" => {
                    assert!(opens(&place.owned), "{name}")
                }
                "directory" => assert_eq!(place.store.directory_records().unwrap().0.len(), 1),
                "of-the-other-object" | "cut" => assert!(!opens(&place.owned), "{name}"),
                _ => {}
            }
        }
    }
}
