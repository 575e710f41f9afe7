//! FastCDC as its authors published it in 2020: a chunk ends where a rolling hash of the bytes meets a mask, so cut
//! points move with the content.
//!
//! Normalisation level 2, a minimum of a quarter and a maximum of four times the average: measured in
//! `docs/format/recipe.md`. Up to the average a stricter mask holds, beyond it a looser one.

use fastcdc::v2020::{Normalization, cut, select_masks};

use super::Cut;

const LEVEL: Normalization = Normalization::Level2;

/// Cuts where the content says.
#[derive(Debug)]
pub(super) struct FastCdc {
    bytes_min: usize,
    bytes_average: usize,
    bytes_max: usize,
    mask_strict: u64,
    mask_loose: u64,
}

impl FastCdc {
    /// Cuts within the bounds given. They are even, in order and in the range the library has masks for
    /// ([`super::Profile`] sees to it: a debug build of the library panics otherwise).
    pub(super) fn new(bytes_min: usize, bytes_average: usize, bytes_max: usize) -> FastCdc {
        let (mask_strict, mask_loose) = select_masks(bytes_average, LEVEL);
        FastCdc { bytes_min, bytes_average, bytes_max, mask_strict, mask_loose }
    }
}

impl Cut for FastCdc {
    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn first(&self, data: &[u8]) -> usize {
        let (_, len) = cut(
            data,
            self.bytes_min,
            self.bytes_average,
            self.bytes_max,
            self.mask_strict,
            self.mask_loose,
            // The library looks at two bytes in one step; the first of them with everything shifted by one.
            self.mask_strict << 1,
            self.mask_loose << 1,
        );
        len
    }
}
