//! Chunks of a file of a tree, as the answer to a cut tells them: how long each is and the head of its hash. They say where the
//! receiver may look in what it has, and prove nothing: the hash of the whole decides.

use crate::chunker::{Algorithm, Profile};
use crate::limits::{TREE_CHUNKS_SLACK, TREE_CUT_CHUNKS_MAX, TREE_RECORD_BYTES_MAX};
use crate::{Error, ErrorKind, Result};

/// One chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHint {
    /// Its bytes, at least 1.
    pub len: u32,
    /// The first 16 bytes of its BLAKE3 hash.
    pub hash: [u8; 16],
}

/// Bytes that one takes in a record.
const HINT_BYTES: usize = 20;

/// Chunks that one record can tell.
pub const CHUNKS_IN_RECORD_MAX: usize = TREE_RECORD_BYTES_MAX / HINT_BYTES;

impl ChunkHint {
    /// What is told of these bytes, of which there are fewer than 2^32.
    pub fn of(bytes: &[u8]) -> ChunkHint {
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        ChunkHint { len: bytes.len() as u32, hash }
    }

    fn to_bytes(self) -> [u8; HINT_BYTES] {
        let mut out = [0; HINT_BYTES];
        out[..4].copy_from_slice(&self.len.to_be_bytes());
        out[4..].copy_from_slice(&self.hash);
        out
    }
}

/// Body of a record that tells `chunks`, at most [`CHUNKS_IN_RECORD_MAX`].
pub fn encode_chunks(chunks: &[ChunkHint]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect()
}

/// The chunks in the body of a record, one at least; `None` if it is none.
pub(super) fn check_chunks(body: &[u8]) -> Option<&[[u8; HINT_BYTES]]> {
    let (chunks, rest) = body.as_chunks();
    let is_whole = !chunks.is_empty() && rest.is_empty();
    (is_whole && chunks.iter().all(|chunk| decode(chunk).len > 0)).then_some(chunks)
}

/// The chunks that the body of a record tells.
pub fn decode_chunks(body: &[u8]) -> impl Iterator<Item = ChunkHint> {
    body.as_chunks().0.iter().map(decode)
}

fn decode(bytes: &[u8; HINT_BYTES]) -> ChunkHint {
    let [a, b, c, d, hash @ ..] = *bytes;
    ChunkHint { len: u32::from_be_bytes([a, b, c, d]), hash }
}

/// How a file of a tree is cut: FastCDC. `Unsupported` unless the average is a power of two from 4 KiB to 4 MiB.
pub fn cut_profile(average_bytes: u32) -> Result<Profile> {
    Profile::new(Algorithm::FastCdc, average_bytes)
}

/// Most chunks and holes that `bytes` bytes may be cut into: all chunks as short as they can be, and some that end at holes. What
/// has more is not cut.
pub fn chunks_max(bytes: u64, average_bytes: u32) -> u64 {
    (bytes / u64::from((average_bytes / 4).max(1))).min(TREE_CUT_CHUNKS_MAX) + TREE_CHUNKS_SLACK
}

/// Why a cut has no answer.
pub fn too_many_chunks() -> Error {
    Error::new(ErrorKind::Unsupported, "the file has too many holes to be cut into chunks")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wire format: what a record says is what was cut, and what cannot be a chunk is refused.
    #[test]
    fn chunks_round_trip() {
        let chunks = [ChunkHint::of(b"one"), ChunkHint::of(b"two, longer")];
        let body = encode_chunks(&chunks);
        assert_eq!(body.len(), 40);
        assert_eq!(&body[..8], [0, 0, 0, 3, 0xd3, 0x3f, 0xb4, 0x8a]);
        assert!(check_chunks(&body).is_some());
        assert_eq!(decode_chunks(&body).collect::<Vec<_>>(), chunks);
        assert!(check_chunks(&[]).is_none() && check_chunks(&body[..39]).is_none());
        assert!(check_chunks(&[0; 20]).is_none(), "a chunk of nothing");
    }

    /// Every file without holes can be cut, whatever its bytes.
    #[test]
    fn the_most_chunks_follow_from_the_shortest() {
        assert_eq!(chunks_max(1 << 20, 4096), 1024 + TREE_CHUNKS_SLACK);
        // No answer to anybody takes more memory than this.
        assert_eq!(chunks_max(u64::MAX, 4096), TREE_CUT_CHUNKS_MAX + TREE_CHUNKS_SLACK);
        assert_eq!(cut_profile(4096).map(|profile| profile.chunk_bytes_min()).ok(), Some(1024));
        assert!(cut_profile(5000).is_err() && cut_profile(2048).is_err() && cut_profile(8 << 20).is_err());
    }
}
