//! Target `code-fields`: fields of code that a sender tells, put into what lies here.

use dray_core::block_mask::BLOCK_BYTES;
use dray_core::code_field::{CodeFields, code_sum_of, coefficients};

use crate::{Seed, novelty};

/// Where the block begins (a byte), how many bytes of what follows lie here (2), those, and what the sender tells. Whatever that is: what is no field
/// stays, what was put can be taken again, too little is noticed, and the sum without fields is the same if they are still where they were.
pub fn target(data: &[u8]) {
    let Some(([at, high, low], rest)) = data.split_first_chunk::<3>() else { return };
    let here = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
    let (here, told) = rest.split_at(here);
    let at = usize::from(*at);
    let fields = CodeFields::of(here, at);
    assert!(fields.count() <= BLOCK_BYTES && coefficients(here).len() == here.len());
    let Some(block) = here.get(at..at + BLOCK_BYTES) else { return };
    let (mut after, offset) = (here.to_vec(), told.len() as u64 * 0x1_0001_0001);
    let mut left = told;
    let is_put = fields.put(&mut after[at..at + BLOCK_BYTES], offset, &mut left);
    assert_eq!(is_put, told.len() >= fields.count());
    if is_put {
        assert_eq!(left.len(), told.len() - fields.count());
        let mut again = Vec::new();
        fields.take(&after[at..at + BLOCK_BYTES], offset, &mut again);
        assert_eq!(again, told[..fields.count()]);
        let is_same = CodeFields::of(&after, at) == fields;
        let sum = |bytes: &[u8]| code_sum_of(bytes, at, BLOCK_BYTES);
        assert!(!is_same || sum(&after) == sum(here));
    }
    let changed = block.iter().zip(&after[at..]).filter(|(one, other)| one != other).count();
    assert!(changed <= fields.count());
    novelty::note((fields.count(), is_put, left.len().min(8)));
}

/// A call, something named and a number, with as many fields as they have, with fewer, and where there are none.
pub fn seeds() -> Vec<Seed> {
    let mut code = vec![0x90; 20];
    code.extend([0xe8, 1, 2, 3, 0, 0x48, 0x8d, 0x3d, 4, 5, 6, 0xff, 0xbe, 7, 8, 0, 0]);
    code.resize(160, 0x90);
    let seed = |at: u8, told: usize| {
        let head = [&[at][..], &(code.len() as u16).to_be_bytes()].concat();
        [head, code.clone(), vec![9; told]].concat()
    };
    [("all", seed(0, 12)), ("in-part", seed(22, 12)), ("few", seed(0, 11)), ("none", seed(80, 1))]
        .into_iter()
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect()
}
