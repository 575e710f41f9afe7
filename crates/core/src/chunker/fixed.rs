//! Chunks of one length. For data that changes in place and never moves: disk images, databases with pages.

use super::Cut;

/// Cuts every so many bytes; the last chunk of an object may be shorter.
#[derive(Debug)]
pub(super) struct Fixed {
    bytes: usize,
}

impl Fixed {
    /// Chunks of `bytes`, which is not 0 ([`super::Profile`] sees to it).
    pub(super) fn new(bytes: usize) -> Fixed {
        Fixed { bytes }
    }
}

impl Cut for Fixed {
    fn bytes_max(&self) -> usize {
        self.bytes
    }

    fn first(&self, data: &[u8]) -> usize {
        self.bytes.min(data.len())
    }
}
