//! Cutting a file of a tree into chunks, at either end of a copy: around its holes, in one pass with the hash of it all.

use std::fs::File;
use std::ops::Range;

use dray_core::chunker::Profile;
use dray_core::hash_tree::ContentHasher;
use dray_core::tree::ChunkHint;
use dray_core::{Error, Result};

use super::content::{Read, read_content};

/// What a file is made of, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// A chunk.
    Chunk(ChunkHint),
    /// So many bytes of hole. No chunk reaches over it.
    Hole(u64),
}

/// What came of cutting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutEnd {
    /// The hash of the bytes, as of a content of a tree.
    pub hash: [u8; 32],
    /// Behind the last of them: less than was asked for if the file is shorter by now.
    pub end: u64,
}

/// Cuts `range` of `file` with `profile`, from its first byte on as if nothing were before, and tells `found` of each piece;
/// `between` is called between reads. Either ends it with an error.
pub fn cut_content<E: From<Error>>(
    file: &File,
    range: Range<u64>,
    has_holes: bool,
    profile: Profile,
    between: &mut dyn FnMut() -> Result<(), E>,
    found: &mut dyn FnMut(Cut) -> Result<(), E>,
) -> Result<CutEnd, E> {
    let mut hasher = ContentHasher::new();
    let mut chunker = profile.chunker();
    // What the chunker has found and nobody was told: it takes no error back.
    let mut pieces: Vec<Cut> = Vec::new();
    let mut take = |read: Read<'_>| {
        match read {
            Read::Hole(len) => {
                chunker.finish(&mut |chunk| pieces.push(Cut::Chunk(ChunkHint::of(chunk))));
                pieces.push(Cut::Hole(len));
                hasher.zeros(len);
            }
            Read::Data(bytes) => {
                hasher.update(bytes);
                chunker.push(bytes, &mut |chunk| pieces.push(Cut::Chunk(ChunkHint::of(chunk))));
            }
        }
        pieces.drain(..).try_for_each(&mut *found)
    };
    let end = read_content(file, range, has_holes, between, &mut take)?;
    chunker.finish(&mut |chunk| pieces.push(Cut::Chunk(ChunkHint::of(chunk))));
    pieces.drain(..).try_for_each(&mut *found)?;
    Ok(CutEnd { hash: hasher.finish(), end })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::content::hash_content;
    use super::*;
    use dray_core::tree::cut_profile;

    fn pieces(file: &File, range: Range<u64>) -> (Vec<Cut>, CutEnd) {
        let mut pieces = Vec::new();
        let mut found = |cut| {
            pieces.push(cut);
            Ok::<_, Error>(())
        };
        let profile = cut_profile(4096).unwrap();
        let end = cut_content(file, range, true, profile, &mut || Ok(()), &mut found).unwrap();
        (pieces, end)
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut out);
        out
    }

    fn len_of(cut: &Cut) -> u64 {
        match cut {
            Cut::Chunk(hint) => u64::from(hint.len),
            Cut::Hole(len) => *len,
        }
    }

    /// Design 4: pieces tile the range, the hash is the content's, and bytes put in change the chunks around them alone.
    #[test]
    fn pieces_tile_the_file() {
        let data = noise(700_000);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&data, 0).unwrap();
        let (before, end) = pieces(&file, 0..700_000);
        assert_eq!(before.iter().map(len_of).sum::<u64>(), 700_000);
        let mut between = || Ok::<_, Error>(());
        assert_eq!((end.hash, end.end), hash_content(&file, 700_000, false, &mut between).unwrap());
        file.write_all_at(&[&b"sixteen more byt"[..], &data].concat(), 0).unwrap();
        let (after, _) = pieces(&file, 0..700_016);
        let new = after.iter().filter(|cut| !before.contains(cut)).count();
        assert!((1..4).contains(&new), "{new} new chunks of {}", after.len());
        // A file that is shorter than was thought ends where it ends.
        let (mut between, mut found) = (|| Ok::<_, Error>(()), |_| Ok(()));
        let profile = cut_profile(4096).unwrap();
        let end = cut_content(&file, 5..800_000, false, profile, &mut between, &mut found).unwrap();
        assert_eq!(end.end, 700_016);
    }

    /// Issue "sparse files": a hole takes no time, and stands between chunks as what it is.
    #[test]
    fn holes_are_told_and_not_read() {
        let data = noise(100_000);
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let at = 1 << 30;
        file.write_all_at(&data, at).unwrap();
        let (cut, end) = pieces(&file, 0..1 << 40);
        assert_eq!(cut.iter().map(len_of).sum::<u64>(), 1 << 40);
        assert_eq!((cut.first(), end.end), (Some(&Cut::Hole(at)), 1 << 40));
        let holes = cut.iter().filter(|cut| matches!(cut, Cut::Hole(_))).count();
        assert_eq!((holes, matches!(cut.last(), Some(Cut::Hole(_)))), (2, true));
    }
}
