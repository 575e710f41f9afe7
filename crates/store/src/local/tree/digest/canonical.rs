//! What of an entry goes into the digest of its directory, byte by byte. `docs/protocol/peer.md`, "Digests", has the table.

use dray_core::limits::{PATH_BYTES_MAX, TREE_DIGEST_BYTES, TREE_ENTRY_BYTES_MAX};
use dray_core::tree::{Kind, Xattr};
use rustix::fs::Statx;

use super::super::settings::mtime_of;

/// A digest of a directory, or what a place is known by.
pub(super) type Digest = [u8; TREE_DIGEST_BYTES];

/// What digests of entries are derived with.
const ENTRIES: &str = "drayman 2026-11-22 tree digest entries 1";
/// And those of owners.
const OWNERS: &str = "drayman 2026-11-22 tree digest owners 1";
/// And what is told: both of these and the place.
const PLACES: &str = "drayman 2026-11-22 tree digest places 1";

/// What an attribute takes in an entry beside its name and value, at most.
const XATTR_OVERHEAD_BYTES: usize = 16;
/// And an entry beside its attributes: the longest target of a link, a name and numbers.
const ENTRY_REST_BYTES: usize = PATH_BYTES_MAX + 1024;

/// Kinds of owners in a digest.
const NUMBER: u8 = 0;
const NAME: u8 = 1;
/// One that no sender tells, only in digests of the receiver: its name here stands for another number.
const AMBIGUOUS: u8 = 2;

/// A hasher of entries; one for each of these words, since to derive it takes longer than to copy it.
#[derive(Clone, Debug)]
pub(super) struct Hashers {
    pub(super) entries: blake3::Hasher,
    pub(super) owners: blake3::Hasher,
    places: blake3::Hasher,
}

impl Hashers {
    pub(super) fn new() -> Hashers {
        let of = blake3::Hasher::new_derive_key;
        Hashers { entries: of(ENTRIES), owners: of(OWNERS), places: of(PLACES) }
    }

    /// What is told of the directory at `path`, where these are in it; owners only if they are part of it.
    pub(super) fn told(&self, path: &[u8], entries: &Digest, owners: Option<&Digest>) -> Digest {
        let mut hasher = self.places.clone();
        hasher.update(&(path.len() as u64).to_be_bytes()).update(path).update(entries);
        owners.map(|owners| hasher.update(owners));
        digest(&hasher)
    }
}

/// The first bytes of the hash.
pub(super) fn digest(hasher: &blake3::Hasher) -> Digest {
    let mut digest = [0; TREE_DIGEST_BYTES];
    hasher.finalize_xof().fill(&mut digest);
    digest
}

/// Appends the name of an entry and its kind.
pub(super) fn push_name(out: &mut Vec<u8>, name: &[u8], kind: u8) {
    push_bytes(out, name);
    out.push(kind);
}

/// Appends a name after its length: 255 bytes at most, be it of a file or of an owner.
fn push_bytes(out: &mut Vec<u8>, name: &[u8]) {
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name);
}

/// The kind of a directory.
pub(super) const DIRECTORY: u8 = 1;

/// The kind of an entry.
pub(super) fn kind_of(kind: &Kind) -> u8 {
    match kind {
        Kind::File { .. } => 0,
        Kind::Directory { .. } => DIRECTORY,
        Kind::Symlink { .. } => 2,
        Kind::Fifo => 3,
        Kind::Socket => 4,
        Kind::CharacterDevice { .. } => 5,
        Kind::BlockDevice { .. } => 6,
    }
}

/// Appends what a kind has of its own.
pub(super) fn push_kind(out: &mut Vec<u8>, kind: &Kind) {
    match kind {
        Kind::File { size_bytes, .. } => out.extend_from_slice(&size_bytes.to_be_bytes()),
        Kind::Symlink { target } => {
            out.extend_from_slice(&(target.len() as u64).to_be_bytes());
            out.extend_from_slice(target);
        }
        Kind::CharacterDevice { major, minor } | Kind::BlockDevice { major, minor } => {
            out.extend_from_slice(&major.to_be_bytes());
            out.extend_from_slice(&minor.to_be_bytes());
        }
        Kind::Directory { .. } | Kind::Fifo | Kind::Socket => {}
    }
}

/// Appends times and bits: of these, `modes`.
pub(super) fn push_metadata(out: &mut Vec<u8>, found: &Statx, modes: u32) {
    let (seconds, nanoseconds) = mtime_of(found);
    out.extend_from_slice(&seconds.to_be_bytes());
    out.extend_from_slice(&nanoseconds.to_be_bytes());
    out.extend_from_slice(&(u32::from(found.stx_mode) & modes).to_be_bytes());
}

/// Appends extended attributes, ascending by name.
pub(super) fn push_xattrs(out: &mut Vec<u8>, xattrs: &[Xattr]) {
    out.extend_from_slice(&(xattrs.len() as u64).to_be_bytes());
    for part in xattrs.iter().flat_map(|xattr| [&xattr.name, &xattr.value]) {
        out.extend_from_slice(&(part.len() as u64).to_be_bytes());
        out.extend_from_slice(part);
    }
}

/// Whether these may be more than an entry holds besides all else, its name and a link's target among it: such an entry is told, and said
/// to have failed.
pub(super) fn are_too_many(xattrs: &[Xattr]) -> bool {
    let len = |xattr: &Xattr| xattr.name.len() + xattr.value.len() + XATTR_OVERHEAD_BYTES;
    xattrs.len() > 1 && xattrs.iter().map(len).sum::<usize>() > TREE_ENTRY_BYTES_MAX - ENTRY_REST_BYTES
}

/// Appends an owner: by name if it has one that is to be told, else by number.
pub(super) fn push_owner(out: &mut Vec<u8>, id: u32, name: Option<&[u8]>, is_ambiguous: bool) {
    match name {
        _ if is_ambiguous => out.push(AMBIGUOUS),
        Some(name) => {
            out.push(NAME);
            push_bytes(out, name);
        }
        None => {
            out.push(NUMBER);
            out.extend_from_slice(&id.to_be_bytes());
        }
    }
}
