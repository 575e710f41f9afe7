//! Records: what a data frame of a tree copy carries. The contents of the entries asked for follow each other, in the order
//! asked; a record never spans two frames.
//!
//! ```text
//! byte 0     kind: 1 bytes, 2 hole, 3 done, 4 again, 5 same, 6 failed, 7 chunks, 8 sums, 9 same, without its hash
//! bytes 1-3  length of the body, big-endian
//! ```

use crate::limits::TREE_RECORD_BYTES_MAX;
use crate::message::Fault;
use crate::{Error, ErrorKind, Result, cbor};

use super::chunks::check_chunks;

/// Bytes in front of a record's body.
pub const RECORD_HEAD_BYTES: usize = 4;
/// Bytes of a hash.
const HASH_BYTES: usize = 32;
/// Hash, size, seconds and nanoseconds of the modification time.
const DONE_BYTES: usize = HASH_BYTES + 20;

/// One record.
#[derive(Clone, PartialEq, Debug)]
pub enum Record<'a> {
    /// The next bytes of the entry, 1 to 262,144.
    Bytes(&'a [u8]),
    /// The next so many bytes of the entry are zeros and not stored.
    Hole(u64),
    /// The entry has no more bytes.
    Done(Finished),
    /// The file changed while it was read: what came of it is void, it begins anew.
    Again,
    /// The content is what the receiver said it has.
    Same(Finished),
    /// The entry cannot be had.
    Failed(Fault),
    /// The next chunks of the entry, as [`encode_chunks`](super::encode_chunks) has them: one at least.
    Chunks(&'a [u8]),
    /// The next sums of blocks that were asked for: one byte at least.
    Sums(&'a [u8]),
}

/// What the sender found a file to be when it had read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// BLAKE3 hash of the content, holes as zeros.
    pub hash: [u8; 32],
    /// Its size.
    pub size_bytes: u64,
    /// Its modification time, seconds since 1970.
    pub mtime_s: i64,
    /// Nanoseconds of it, below 10^9.
    pub mtime_ns: u32,
}

impl Finished {
    /// Whether both were the same state of a file, by its size and its time: hashes may be of different parts of it.
    pub fn is_same_state(&self, other: &Finished) -> bool {
        let state = |finished: &Finished| (finished.size_bytes, finished.mtime_s, finished.mtime_ns);
        state(self) == state(other)
    }

    fn to_bytes(self) -> [u8; DONE_BYTES] {
        let mut out = [0; DONE_BYTES];
        out[..32].copy_from_slice(&self.hash);
        out[32..40].copy_from_slice(&self.size_bytes.to_be_bytes());
        out[40..48].copy_from_slice(&self.mtime_s.to_be_bytes());
        out[48..].copy_from_slice(&self.mtime_ns.to_be_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Finished> {
        let (hash, state) = bytes.split_first_chunk::<HASH_BYTES>()?;
        Finished::with_state(*hash, state)
    }

    /// With this hash, and size and time as they are written.
    fn with_state(hash: [u8; HASH_BYTES], state: &[u8]) -> Option<Finished> {
        let (size, rest) = state.split_first_chunk::<8>()?;
        let (seconds, rest) = rest.split_first_chunk::<8>()?;
        let finished = Finished {
            hash,
            size_bytes: u64::from_be_bytes(*size),
            mtime_s: i64::from_be_bytes(*seconds),
            mtime_ns: u32::from_be_bytes(rest.try_into().ok()?),
        };
        (finished.mtime_ns < 1_000_000_000).then_some(finished)
    }
}

impl Record<'_> {
    /// Appends the record to `out`. Bytes are at most `TREE_RECORD_BYTES_MAX`.
    pub fn push(&self, out: &mut Vec<u8>) {
        match self {
            Record::Bytes(bytes) => push(out, 1, bytes),
            Record::Hole(len) => push(out, 2, &len.to_be_bytes()),
            Record::Done(finished) => push(out, 3, &finished.to_bytes()),
            Record::Again => push(out, 4, &[]),
            Record::Same(finished) => push(out, 5, &finished.to_bytes()),
            Record::Failed(fault) => push(out, 6, &cbor::encode(fault)),
            Record::Chunks(chunks) => push(out, 7, chunks),
            Record::Sums(sums) => push(out, 8, sums),
        }
    }

    /// The same for a receiver that knows the hash `known` and need not hear it again.
    pub fn push_briefly(&self, known: &[u8; HASH_BYTES], out: &mut Vec<u8>) {
        match self {
            Record::Same(finished) if finished.hash == *known => {
                push(out, 9, &finished.to_bytes()[HASH_BYTES..]);
            }
            record => record.push(out),
        }
    }
}

fn push(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.extend_from_slice(&record_head(kind, body.len()));
    out.extend_from_slice(body);
}

fn record_head(kind: u8, len: usize) -> [u8; RECORD_HEAD_BYTES] {
    let [_, high, middle, low] = (len as u32).to_be_bytes();
    [kind, high, middle, low]
}

/// The head of a record of `len` bytes of content, for whoever reads a file straight behind it.
pub fn bytes_head(len: usize) -> [u8; RECORD_HEAD_BYTES] {
    debug_assert!(len > 0 && len <= TREE_RECORD_BYTES_MAX);
    record_head(1, len)
}

/// Takes the next record off the front of a data frame's body; `known` is the hash that its sender need not say again, if it was
/// told one. `Protocol` if there is none that holds.
pub fn take_record<'a>(rest: &mut &'a [u8], known: Option<&[u8; HASH_BYTES]>) -> Result<Record<'a>> {
    let bad = |why: &str| Error::new(ErrorKind::Protocol, format!("record is malformed: {why}"));
    let (head, tail) =
        rest.split_first_chunk::<RECORD_HEAD_BYTES>().ok_or_else(|| bad("it is shorter than its head"))?;
    let [kind, high, middle, low] = *head;
    let len = u32::from_be_bytes([0, high, middle, low]) as usize;
    if len > TREE_RECORD_BYTES_MAX {
        return Err(bad("it is too long"));
    }
    let (body, tail) = tail.split_at_checked(len).ok_or_else(|| bad("it is longer than its frame"))?;
    *rest = tail;
    let finished = || Finished::from_bytes(body).ok_or_else(|| bad("an impossible end"));
    match kind {
        1 if len > 0 => Ok(Record::Bytes(body)),
        2 => {
            let len = <[u8; 8]>::try_from(body).map_err(|_| bad("an impossible hole"))?;
            match u64::from_be_bytes(len) {
                len @ 1..=crate::limits::OBJECT_BYTES_MAX => Ok(Record::Hole(len)),
                _ => Err(bad("an impossible hole")),
            }
        }
        3 => finished().map(Record::Done),
        4 if len == 0 => Ok(Record::Again),
        5 => finished().map(Record::Same),
        6 => Fault::from_bytes(body).map(Record::Failed),
        7 => match check_chunks(body) {
            Some(_) => Ok(Record::Chunks(body)),
            None => Err(bad("impossible chunks")),
        },
        8 if len > 0 => Ok(Record::Sums(body)),
        9 => {
            let known = known.ok_or_else(|| bad("the same as what nobody told of"))?;
            Finished::with_state(*known, body).map(Record::Same).ok_or_else(|| bad("an impossible end"))
        }
        _ => Err(bad("an unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> Vec<Record<'static>> {
        let finished = Finished { hash: [7; 32], size_bytes: 6, mtime_s: -1, mtime_ns: 999_999_999 };
        vec![
            Record::Bytes(b"sample"),
            Record::Hole(1 << 40),
            Record::Done(finished),
            Record::Again,
            Record::Same(finished),
            Record::Failed(Fault { handle: None, kind: 5, text: "changed".into() }),
            Record::Chunks(&[1; 40]),
            Record::Sums(b"sums"),
        ]
    }

    #[test]
    fn records_round_trip_and_bad_ones_are_refused() {
        let mut frame = Vec::new();
        samples().iter().for_each(|record| record.push(&mut frame));
        let mut rest = &frame[..];
        for record in samples() {
            assert_eq!(take_record(&mut rest, None).unwrap(), record);
        }
        assert!(rest.is_empty());
        // What is known need not be said; what it is not the same as must be, and so must everything else.
        let (mut brief, mut plain) = (Vec::new(), Vec::new());
        for record in samples() {
            let before = (brief.len(), plain.len());
            record.push_briefly(&[7; 32], &mut brief);
            record.push_briefly(&[8; 32], &mut plain);
            let saved = if matches!(record, Record::Same(_)) { 32 } else { 0 };
            assert_eq!(brief.len() - before.0 + saved, plain.len() - before.1, "{record:?}");
        }
        assert_eq!(plain, frame);
        let mut rest = &brief[..];
        for record in samples() {
            assert_eq!(take_record(&mut rest, Some(&[7; 32])).unwrap(), record);
        }
        let same = &brief[brief.iter().rposition(|byte| *byte == 9).unwrap()..];
        assert!(take_record(&mut &same[..24], Some(&[7; 32])).is_ok());
        assert_eq!(take_record(&mut &same[..24], None).unwrap_err().kind(), ErrorKind::Protocol);
        for bad in [
            &[][..],
            &[1, 0, 0, 0],
            &[1, 0, 0, 2, 9],
            &[1, 255, 255, 255],
            &[2, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 8, 255, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 1, 0],
            &[4, 0, 0, 1, 0],
            &[6, 0, 0, 1, 0],
            &[7, 0, 0, 0],
            &[7, 0, 0, 3, 1, 1, 1],
            &[8, 0, 0, 0],
            &[9, 0, 0, 0],
            &[9, 0, 0, 1, 0],
            &[10, 0, 0, 0],
        ] {
            assert_eq!(
                take_record(&mut &bad[..], Some(&[7; 32])).unwrap_err().kind(),
                ErrorKind::Protocol,
                "{bad:?}"
            );
        }
    }

    proptest! {
        /// No bytes from a peer panic or loop.
        #[test]
        fn any_bytes_terminate(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut rest = &bytes[..];
            while !rest.is_empty() && take_record(&mut rest, Some(&[7; 32])).is_ok() {}
        }
    }
}
