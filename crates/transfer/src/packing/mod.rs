//! Data packed on its way (ADR 28): one zstd stream for each connection, over all of its packed frames, so that what stood in
//! one file, chunk or group before costs next to nothing in another. Neither names nor hashes know of it.
//!
//! The receiver says whether data may be packed, because it knows how fast the path is; the holder packs what pays, at the
//! level that its processor can spare.

mod pace;
mod packer;
mod path;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod unpacker;

use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use packer::Packer;
pub(crate) use path::PathMeter;
pub(crate) use stream::Stream;
pub(crate) use unpacker::Unpacker;

/// So much that comes as it is says that packing does not pay, where it did before: the receiver asks over other paths, too.
pub(crate) const PLAIN_BYTES_MAX: u64 = 2 << 20;

/// Bytes of memory that packing takes in this process, and streams that are unpacked.
pub(crate) fn reserved() -> (usize, usize) {
    (stream::MEMORY.load(Ordering::Relaxed), unpacker::STREAMS.load(Ordering::Relaxed))
}

/// A part of a bound that all of this process shares; given back when dropped.
#[derive(Debug)]
struct Share {
    of: &'static AtomicUsize,
    amount: usize,
}

impl Share {
    /// `amount` of at most `max`, if there is as much.
    fn take(of: &'static AtomicUsize, amount: usize, max: usize) -> Option<Share> {
        let fits = |taken: usize| taken.checked_add(amount).filter(|sum| *sum <= max);
        of.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Share { of, amount })
    }

    /// Gives back what is beyond `amount`.
    fn shrink(&mut self, amount: usize) {
        let given_back = self.amount.saturating_sub(amount);
        self.amount -= given_back;
        self.of.fetch_sub(given_back, Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.amount, Ordering::AcqRel);
    }
}
