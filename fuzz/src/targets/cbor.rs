//! Target `cbor`: the deterministic-CBOR check (design 19) against a second reader that shares no code with it.

use dray_core::cbor;
use dray_core::limits::{CBOR_DEPTH_MAX, CBOR_ELEMENTS_MAX};

use crate::item::Item;
use crate::{Seed, novelty};

/// `check` accepts exactly the items that are deterministic, plain and within the limits.
pub fn target(data: &[u8]) {
    let verdict = cbor::check(data);
    novelty::note(verdict);
    let expected = match Item::read(data) {
        Some((item, [])) => {
            item.to_bytes() == data && is_plain(&item, 0) && item.count() as u64 <= CBOR_ELEMENTS_MAX
        }
        _ => false,
    };
    assert_eq!(verdict.is_ok(), expected, "check says {verdict:?}");
}

fn is_plain(item: &Item, depth: usize) -> bool {
    if depth > CBOR_DEPTH_MAX {
        return false;
    }
    match item {
        Item::Number(..) => true,
        Item::String(major, bytes) => *major == 2 || std::str::from_utf8(bytes).is_ok(),
        Item::Array(items) => items.iter().all(|item| is_plain(item, depth + 1)),
        Item::Map(entries) => {
            let keys: Vec<Vec<u8>> = entries.iter().map(|(key, _)| key.to_bytes()).collect();
            keys.is_sorted_by(|a, b| a < b)
                && entries.iter().all(|(key, value)| is_plain(key, depth + 1) && is_plain(value, depth + 1))
        }
        Item::Simple(argument) => (20..=22).contains(argument),
        Item::Tag(..) | Item::Raw(_) => false,
    }
}

/// The messages of the peer protocol and a few shapes they do not have.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = super::message::seeds();
    let mut nested = vec![0x81; CBOR_DEPTH_MAX];
    nested.push(0x00);
    let mut wide = Vec::new();
    crate::item::write_head(4, CBOR_ELEMENTS_MAX - 1, &mut wide);
    wide.resize(wide.len() + CBOR_ELEMENTS_MAX as usize - 1, 0xf6);
    for (name, bytes) in [
        ("empty-map", vec![0xa0]),
        ("largest-number", [&[0x1b][..], &[0xff; 8]].concat()),
        ("nested-to-the-limit", nested),
        ("as-many-elements-as-allowed", wide),
        ("text-keys", b"\xa2\x61a\x01\x61b\x43xyz".to_vec()),
        ("booleans-and-null", vec![0x83, 0xf4, 0xf5, 0xf6]),
    ] {
        seeds.push((name.into(), bytes));
    }
    seeds
}
