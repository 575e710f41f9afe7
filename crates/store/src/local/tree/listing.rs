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
    /// Reads a directory that nobody has read from; `buffer` is room for a piece of it. `goes_on` is asked before each piece: `Interrupted` once it
    /// says no.
    pub(super) fn read(
        directory: &Directory,
        buffer: &mut Vec<u8>,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<Listing> {
        let mut listing = Listing::default();
        buffer.reserve(LISTING_BYTES);
        let mut entries = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
        loop {
            if entries.is_buffer_empty() && !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let Some(entry) = entries.next() else { break };
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

    pub(super) fn len(&self) -> usize {
        self.names.len()
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Threat model "a disk that does not answer": one that takes long over a large directory is not taken for one, and a stop is heard.
    #[test]
    fn a_large_directory_is_read_in_pieces() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..5000 {
            std::fs::write(place.path().join(format!("a name of some length {number:010}")), b"").unwrap();
        }
        let read = |goes_on: &dyn Fn() -> bool| {
            Listing::read(&Directory::open(place.path()).unwrap(), &mut Vec::new(), goes_on)
        };
        let asked = Cell::new(0);
        let ask = |max| {
            asked.set(asked.get() + 1);
            asked.get() <= max
        };
        assert!(read(&|| ask(u32::MAX)).unwrap().get(4999).is_some());
        assert!(asked.replace(0) >= 4);
        assert_eq!(read(&|| ask(2)).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(asked.get(), 3);
    }
}
