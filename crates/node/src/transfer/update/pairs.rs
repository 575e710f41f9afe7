//! The proven pairs of an update, in memory: the outboard beside the file takes the values of everything meanwhile, proven
//! or not.

use std::collections::HashMap;
use std::sync::Mutex;

use dray_core::hash_tree::{PAIR_BYTES, PairStore};
use dray_core::{Error, ErrorKind, Result};

use crate::lock;

/// Pairs of one page: few where little is fetched, and hardly more memory than the pairs themselves where all is.
const PAGE_PAIRS: u64 = 64;

/// Pairs that are written once, in any order, and take memory only where they are.
#[derive(Debug, Default)]
pub(in crate::transfer) struct SparsePairs(Mutex<HashMap<u64, Box<Page>>>);

#[derive(Debug)]
struct Page {
    /// Which of the pairs are there, one bit each.
    there: u64,
    pairs: [[u8; PAIR_BYTES]; PAGE_PAIRS as usize],
}

impl PairStore for SparsePairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        let pages = lock(&self.0);
        for (index, pair) in (first_index..).zip(out.chunks_exact_mut(PAIR_BYTES)) {
            let at = index % PAGE_PAIRS;
            let page = pages.get(&(index / PAGE_PAIRS)).filter(|page| page.there & 1 << at != 0);
            let page = page.ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("pair {index} was taken as known that is not"))
            })?;
            pair.copy_from_slice(&page.pairs[at as usize]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (whole, rest) = bytes.as_chunks::<PAIR_BYTES>();
        if !offset.is_multiple_of(PAIR_BYTES as u64) || !rest.is_empty() {
            return Err(Error::new(ErrorKind::Internal, "half a pair was proven"));
        }
        let mut pages = lock(&self.0);
        for (index, pair) in (offset / PAIR_BYTES as u64..).zip(whole) {
            let page = pages.entry(index / PAGE_PAIRS).or_insert_with(|| {
                Box::new(Page { there: 0, pairs: [[0; PAIR_BYTES]; PAGE_PAIRS as usize] })
            });
            page.there |= 1 << (index % PAGE_PAIRS);
            page.pairs[(index % PAGE_PAIRS) as usize] = *pair;
        }
        Ok(())
    }
}
