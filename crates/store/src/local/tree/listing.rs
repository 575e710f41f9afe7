//! The names of one directory, sorted: what a walk tells in order, and what a synchronisation holds against it.

use std::io;

use rustix::fs::FileType;

use super::directory::Directory;

/// Bytes of a directory read at a time.
const LISTING_BYTES: usize = 64 * 1024;

/// The names of a directory, sorted, in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    bytes: Vec<u8>,
    names: Vec<Place>,
}

/// Where a name begins, its length, and what the directory says of its kind.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u32,
    len: u8,
    kind: FileType,
}

impl Listing {
    /// Reads a directory that nobody has read from; `buffer` is room for a piece of it.
    pub(super) fn read(directory: &Directory, buffer: &mut Vec<u8>) -> io::Result<Listing> {
        let mut listing = Listing::default();
        buffer.reserve(LISTING_BYTES);
        let mut entries = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let too_large = || io::Error::other("too many entries");
            let start = u32::try_from(listing.bytes.len()).map_err(|_| too_large())?;
            let len = u8::try_from(name.len()).map_err(|_| too_large())?;
            listing.names.push(Place { start, len, kind: entry.file_type() });
            listing.bytes.extend_from_slice(name);
        }
        let Listing { bytes, names } = &mut listing;
        names.sort_unstable_by(|one, other| slice(bytes, *one).cmp(slice(bytes, *other)));
        Ok(listing)
    }

    /// Of these names, which are sorted; each once.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a [u8]>) -> Listing {
        let mut listing = Listing::default();
        for name in names {
            let last = listing.names.last().map(|place| slice(&listing.bytes, *place));
            let start = u32::try_from(listing.bytes.len()).ok();
            if last != Some(name)
                && let Some((start, len)) = start.zip(u8::try_from(name.len()).ok())
            {
                listing.names.push(Place { start, len, kind: FileType::Unknown });
                listing.bytes.extend_from_slice(name);
            }
        }
        listing
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.names.binary_search_by(|place| slice(&self.bytes, *place).cmp(name)).is_ok()
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        self.names.get(index).map(|place| slice(&self.bytes, *place))
    }

    /// What stands under a name, as the directory itself has it, which asks nothing that is mounted there; `Unknown` on some file systems.
    pub(super) fn kind(&self, index: usize) -> FileType {
        self.names.get(index).map_or(FileType::Unknown, |place| place.kind)
    }
}

fn slice(bytes: &[u8], place: Place) -> &[u8] {
    &bytes[place.start as usize..place.start as usize + usize::from(place.len)]
}
