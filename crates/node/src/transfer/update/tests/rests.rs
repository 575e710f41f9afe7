//! Groups that are put together from blocks of an older version and a rest that comes.

use super::*;
use crate::transfer::update::rests::told_to_the_sender;

/// A mask has what is here as a whole, and the last block of an object may be short.
#[test]
fn a_mask_has_whole_blocks() {
    let parts =
        vec![(100, Origin::Missing), (150, Origin::Old(7)), (10, Origin::New(0)), (70, Origin::Old(0))];
    let have = crate::transfer::update::rests::mask(&parts, 330);
    let blocks: Vec<usize> = (0..8).filter(|block| have.contains(*block)).collect();
    assert_eq!(blocks, [2, 5]);
}

/// Design 16, ADR 28: a ticket's holder hears what the older version has and a search found, and nothing of an index, whoever reads what that named; who
/// may log in hears what a search found if he may read it.
#[test]
fn a_sender_hears_what_it_may() {
    let spot = |by, file| Origin::Elsewhere(Spot { by, file, offset: 0 });
    let [index, disk, cached] = [spot(Finder::Index, 1), spot(Finder::Disk, 2), spot(Finder::Cached, 3)];
    let parts = vec![(100, Origin::Old(7)), (200, index), (300, disk), (400, cached), (500, Origin::Missing)];
    let told = |has_login, tells_disk| told_to_the_sender(&parts, has_login, tells_disk);
    let by_ticket = vec![(100, Origin::Old(7)), (200, Origin::Missing), (300, disk), (900, Origin::Missing)];
    assert_eq!(told(false, false), by_ticket);
    assert_eq!(told(false, true), by_ticket);
    assert_eq!(told(true, true), parts);
    assert_eq!(told(true, false), [(100, Origin::Old(7)), (200, index), (1200, Origin::Missing)]);
}
