//! Groups that are put together from blocks of an older version and a rest that comes.

use super::*;

/// A mask has what is here as a whole, and the last block of an object may be short.
#[test]
fn a_mask_has_whole_blocks() {
    let parts =
        vec![(100, Origin::Missing), (150, Origin::Old(7)), (10, Origin::New(0)), (70, Origin::Old(0))];
    let have = crate::transfer::update::rests::mask(&parts, 330);
    let blocks: Vec<usize> = (0..8).filter(|block| have.contains(*block)).collect();
    assert_eq!(blocks, [2, 5]);
}
