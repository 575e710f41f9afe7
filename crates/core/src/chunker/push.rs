//! The push adapter: turns "where does the first chunk of this slice end" into a chunker that takes bytes as they
//! come.

use super::{Chunker, Cut};

/// Chunker over an algorithm. Holds the beginning of the chunk under way, never as much as one largest chunk.
#[derive(Debug)]
pub(super) struct Push<C> {
    cut: C,
    held: Vec<u8>,
}

impl<C: Cut> Push<C> {
    pub(super) fn new(cut: C) -> Push<C> {
        Push { cut, held: Vec::new() }
    }

    /// Cuts what is held after filling it up from `data`; returns the part of `data` that no chunk has yet.
    fn drain_held<'a>(&mut self, mut data: &'a [u8], chunk: &mut dyn FnMut(&[u8])) -> &'a [u8] {
        while !self.held.is_empty() {
            let before = self.held.len();
            let (head, _) = data.split_at(data.len().min(self.cut.bytes_max() - before));
            self.held.extend_from_slice(head);
            if self.held.len() < self.cut.bytes_max() {
                return &[];
            }
            let len = self.cut.first(&self.held);
            chunk(&self.held[..len]);
            // What was borrowed from `data` beyond the chunk goes back, so that it is cut in place if it can be.
            self.held.truncate(before);
            self.held.drain(..len.min(before));
            data = &data[len.saturating_sub(before)..];
        }
        data
    }
}

impl<C: Cut> Chunker for Push<C> {
    fn push(&mut self, data: &[u8], chunk: &mut dyn FnMut(&[u8])) {
        let mut rest = self.drain_held(data, chunk);
        while rest.len() >= self.cut.bytes_max() {
            let (first, tail) = rest.split_at(self.cut.first(rest));
            chunk(first);
            rest = tail;
        }
        self.held.extend_from_slice(rest);
    }

    fn finish(&mut self, chunk: &mut dyn FnMut(&[u8])) {
        let held = std::mem::take(&mut self.held);
        let mut rest = &held[..];
        while !rest.is_empty() {
            let (last, tail) = rest.split_at(self.cut.first(rest));
            chunk(last);
            rest = tail;
        }
    }
}
