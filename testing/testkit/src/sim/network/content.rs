//! What a stream carries. Bytes of the object are carried as a reference to them, so that gigabytes cost nothing; whatever
//! else is said, or is not the truth, is carried as it is.

use std::collections::VecDeque;

/// A piece of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The bytes of the object from `offset` on, `len` of them.
    Data { offset: u64, len: u64 },
    /// The end of the stream; it counts as one byte.
    End,
}

/// Pieces that were written and not read.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been read, if that is `Bytes`.
    front_read: usize,
}

impl Content {
    /// Adds a piece; returns its length.
    pub(crate) fn push(&mut self, piece: Piece) -> u64 {
        let len = match &piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Data { len, .. } => *len,
            Piece::End => 1,
        };
        if len == 0 {
            return 0;
        }
        match (self.pieces.back_mut(), piece) {
            (Some(Piece::Data { offset, len }), Piece::Data { offset: next, len: more })
                if *offset + *len == next =>
            {
                *len += more;
            }
            (_, piece) => self.pieces.push_back(piece),
        }
        len
    }

    /// Takes up to `max` bytes that lie together, and how many these are. `End` is taken only by itself.
    pub(crate) fn take(&mut self, max: u64) -> Option<(Piece, u64)> {
        if max == 0 {
            return None;
        }
        match self.pieces.front_mut()? {
            Piece::Bytes(bytes) => {
                let left = bytes.len() - self.front_read;
                let taken = left.min(usize::try_from(max).unwrap_or(usize::MAX));
                let piece = bytes[self.front_read..self.front_read + taken].to_vec();
                self.front_read += taken;
                if taken == left {
                    self.pieces.pop_front();
                    self.front_read = 0;
                }
                Some((Piece::Bytes(piece), taken as u64))
            }
            Piece::Data { offset, len } => {
                let taken = max.min(*len);
                let piece = Piece::Data { offset: *offset, len: taken };
                *offset += taken;
                *len -= taken;
                if *len == 0 {
                    self.pieces.pop_front();
                }
                Some((piece, taken))
            }
            Piece::End => {
                self.pieces.pop_front();
                Some((Piece::End, 1))
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.front_read = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_and_joined() {
        let mut content = Content::default();
        content.push(Piece::Bytes(vec![1, 2, 3]));
        content.push(Piece::Data { offset: 10, len: 5 });
        content.push(Piece::Data { offset: 15, len: 5 });
        content.push(Piece::End);
        assert_eq!(content.take(2), Some((Piece::Bytes(vec![1, 2]), 2)));
        assert_eq!(content.take(9), Some((Piece::Bytes(vec![3]), 1)));
        assert_eq!(content.take(7), Some((Piece::Data { offset: 10, len: 7 }, 7)));
        assert_eq!(content.take(7), Some((Piece::Data { offset: 17, len: 3 }, 3)));
        assert_eq!(content.take(0), None);
        assert_eq!(content.take(7), Some((Piece::End, 1)));
        assert_eq!(content.take(7), None);
    }
}
