//! Groups that are put together from blocks of an older version and a rest that comes.

use super::*;
use dray_core::limits::UPDATE_REST_PARTS_MAX;

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

/// Design 17: no more parts are remembered than there is room for, and what was forgotten makes room. Of each group the bytes are counted that other files
/// have, as far as they need not come.
#[test]
fn rests_are_bounded() {
    let mut rests = Rests::of(OlderVersion::nothing().bytes());
    let spot = |file| Origin::Elsewhere(Spot { by: Finder::Disk, file, offset: 0 });
    let few = vec![(64, spot(1)), (100, Origin::Missing), (120, Origin::Old(0)), (46, spot(2))];
    assert!(rests.add(0, 330, few.clone()));
    assert_eq!(rests.rest(0).unwrap().0.other_bytes, 64 + 46);
    assert!(!rests.add(1, 330, vec![(330, Origin::Missing)]), "nothing is here");
    assert!(rests.have(1).is_none() && rests.rest(1).is_none());
    // The same group counts once, and what is gone not at all.
    (0..10).for_each(|_| assert!(rests.add(0, 330, few.clone())));
    rests.forget(0);
    rests.forget(0);
    let many: Parts = (0..1 << 16).map(|number| (1, Origin::Old(2 * number))).collect();
    let count = (UPDATE_REST_PARTS_MAX / many.len()) as u64;
    (1..=count).for_each(|group| assert!(rests.add(group, GROUP, many.clone()), "{group}"));
    assert!(!rests.add(0, 330, few.clone()));
    rests.forget(7);
    assert!(rests.add(0, 330, few));
}
