//! Makes new inputs from old ones: edits of bytes, and edits that respect the shape of a target's inputs so that they
//! reach the code behind the first check.

use dray_core::frame::FRAME_HEAD_BYTES;

use crate::Shape;
use crate::item::{Item, write_head, write_wide_head};
use crate::rng::Rng;

/// Longest input that is made: long enough to pass every field limit, short enough to run thousands a second.
pub const INPUT_BYTES_MAX: usize = 48 * 1024;

/// Numbers at which decoders go wrong, and the limits of this project's fields with their neighbours.
const NUMBERS: &[u64] = &[
    0,
    1,
    7,
    8,
    9,
    15,
    16,
    17,
    23,
    24,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    0o7777,
    0o10000,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    0xff_ffff,
    999_999_999,
    1_000_000_000,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    (1 << 60) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Lengths of strings at and beyond the limits of fields.
const LENGTHS: &[usize] =
    &[0, 1, 15, 16, 17, 31, 32, 33, 64, 65, 255, 256, 1024, 1025, 4096, 4097, 32_768, 32_769];

/// One of [`NUMBERS`], or any number of any magnitude.
fn number(rng: &mut Rng) -> u64 {
    if rng.one_in(4) { rng.bits() >> rng.below(64) } else { *rng.pick(NUMBERS) }
}

/// A new input from one of `pool`, which is not empty.
pub fn mutate(rng: &mut Rng, shape: Shape, pool: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = rng.pick(pool).clone();
    loop {
        bytes =
            if rng.one_in(3) { edit_bytes(rng, bytes, pool) } else { edit_shaped(rng, shape, bytes, pool) };
        bytes.truncate(INPUT_BYTES_MAX);
        if rng.one_in(2) {
            return bytes;
        }
    }
}

fn edit_shaped(rng: &mut Rng, shape: Shape, bytes: Vec<u8>, pool: &[Vec<u8>]) -> Vec<u8> {
    match shape {
        Shape::Choices => edit_bytes(rng, bytes, pool),
        Shape::Text(words) => edit_text(rng, bytes, words),
        Shape::Cbor { skip } => edit_item(rng, &bytes, skip, pool),
        Shape::Frames => edit_frames(rng, &bytes, pool),
    }
}

/// One edit that knows nothing of the input.
fn edit_bytes(rng: &mut Rng, mut bytes: Vec<u8>, pool: &[Vec<u8>]) -> Vec<u8> {
    let at = rng.below(bytes.len());
    let len = 1 + rng.below(16.min(bytes.len() - at));
    match rng.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
        1 if !bytes.is_empty() => bytes[at] = rng.bits() as u8,
        2 => {
            let width = 1 << rng.below(4);
            let number = number(rng).to_be_bytes();
            for (offset, digit) in number[8 - width..].iter().enumerate() {
                if let Some(byte) = bytes.get_mut(at + offset) {
                    *byte = *digit;
                }
            }
        }
        3 => {
            let other = rng.pick(pool);
            let from = rng.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        4 => bytes.truncate(at),
        5 => {
            let extra = 1 + rng.below(16);
            bytes.extend((0..extra).map(|_| rng.bits() as u8));
        }
        6 if bytes.len() >= len => drop(bytes.drain(at..at + len)),
        7 => {
            let block: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
            bytes.splice(at..at, block);
        }
        _ if bytes.len() >= len => {
            let block = bytes[at..at + len].to_vec();
            let to = rng.below(bytes.len());
            bytes.splice(to..to, block);
        }
        _ => bytes.push(rng.bits() as u8),
    }
    bytes
}

fn edit_text(rng: &mut Rng, mut bytes: Vec<u8>, words: &[&str]) -> Vec<u8> {
    let at = rng.below(bytes.len() + 1);
    match rng.below(5) {
        0 | 1 => {
            let word = rng.pick(words).bytes();
            bytes.splice(at..at, word);
        }
        2 => {
            let word = rng.pick(words).bytes();
            let end = (at + word.len()).min(bytes.len());
            bytes.splice(at..end, word);
        }
        3 => {
            let number = number(rng).to_string();
            bytes.splice(at..at, number.bytes());
        }
        _ => {
            let length = *rng.pick(LENGTHS);
            let filler = rng.pick(b"a0:/.");
            bytes.splice(at..at, std::iter::repeat_n(*filler, length.min(2048)));
        }
    }
    bytes
}

/// One edit of the CBOR item that follows the first `skip` bytes; of the bytes, if there is no item.
fn edit_item(rng: &mut Rng, bytes: &[u8], skip: usize, pool: &[Vec<u8>]) -> Vec<u8> {
    let (front, body) = bytes.split_at(skip.min(bytes.len()));
    let Some((mut item, rest)) = Item::read(body) else { return edit_bytes(rng, bytes.to_vec(), pool) };
    let mut index = rng.below(item.count());
    if rng.one_in(2) {
        // Few items hold others, and it is there that counts and order go wrong.
        let holds = |index| matches!(item.clone().nth_mut(index), Some(Item::Array(_) | Item::Map(_)));
        index = (0..4).map(|_| rng.below(item.count())).find(|index| holds(*index)).unwrap_or(index);
    }
    let other = donor(rng, skip, pool);
    if let Some(node) = item.nth_mut(index) {
        edit_node(rng, node, other);
    }
    let mut out = front.to_vec();
    item.write(&mut out);
    out.extend_from_slice(rest);
    out
}

/// An item from elsewhere in the pool.
fn donor(rng: &mut Rng, skip: usize, pool: &[Vec<u8>]) -> Item {
    let read = rng.pick(pool).get(skip..).and_then(Item::read);
    let Some((mut item, _)) = read else { return Item::Simple(22) };
    let index = rng.below(item.count());
    item.nth_mut(index).map_or(Item::Simple(22), |node| node.clone())
}

fn edit_node(rng: &mut Rng, node: &mut Item, other: Item) {
    match rng.below(8) {
        0 => *node = other,
        1 => *node = Item::Number(rng.below(2) as u8, number(rng)),
        2 => *node = Item::Array(vec![node.clone(); 1 + rng.below(3)]),
        3 => *node = Item::Raw(odd_head(rng, node)),
        4 => {
            let wrapped = (0..1 + rng.below(12)).fold(node.clone(), |inner, _| Item::Array(vec![inner]));
            *node = wrapped;
        }
        _ => edit_inside(rng, node, other),
    }
}

/// An edit that keeps the type of the item.
fn edit_inside(rng: &mut Rng, node: &mut Item, other: Item) {
    match node {
        Item::Number(_, argument) => {
            *argument = match rng.below(3) {
                0 => argument.wrapping_add(1),
                1 => argument.wrapping_sub(1),
                _ => number(rng),
            }
        }
        Item::String(major, bytes) => match rng.below(4) {
            0 => bytes.resize(*rng.pick(LENGTHS), b'x'),
            1 => *major ^= 1,
            2 if !bytes.is_empty() => {
                let at = rng.below(bytes.len());
                bytes[at] = rng.bits() as u8;
            }
            _ => bytes.truncate(rng.below(bytes.len())),
        },
        Item::Array(items) => match rng.below(4) {
            0 if !items.is_empty() => drop(items.remove(rng.below(items.len()))),
            1 => items.insert(rng.below(items.len() + 1), other),
            2 => {
                let repeated =
                    if rng.one_in(2) || items.is_empty() { other } else { rng.pick(items).clone() };
                items.resize(*rng.pick(&[8, 9, 32, 33, 64, 4096, 4097]), repeated);
            }
            _ => items.reverse(),
        },
        Item::Map(entries) => match rng.below(5) {
            0 if !entries.is_empty() => drop(entries.remove(rng.below(entries.len()))),
            1 => entries.push((Item::Number(0, number(rng)), other)),
            2 if !entries.is_empty() => {
                let at = rng.below(entries.len());
                entries.insert(at, entries[at].clone());
            }
            3 if !entries.is_empty() => {
                let at = rng.below(entries.len());
                entries[at].1 = other;
            }
            _ => entries.reverse(),
        },
        Item::Tag(_, inner) => *node = (**inner).clone(),
        Item::Simple(argument) => *argument = rng.bits() % 32,
        Item::Raw(_) => *node = other,
    }
}

/// The item under a head that is longer than needed, lies about the length, or has no definite length.
fn odd_head(rng: &mut Rng, node: &Item) -> Vec<u8> {
    let (major, argument, body) = match node {
        Item::Number(major, argument) => (*major, *argument, Vec::new()),
        Item::String(major, bytes) => (*major, bytes.len() as u64, bytes.clone()),
        Item::Array(items) => (4, items.len() as u64, items.iter().flat_map(Item::to_bytes).collect()),
        other => return [vec![0xc0 | rng.below(24) as u8], other.to_bytes()].concat(),
    };
    let mut out = Vec::new();
    match rng.below(3) {
        0 if major < 2 => write_wide_head(major, number(rng), rng.below(4) as u8, &mut out),
        0 => write_wide_head(major, argument, rng.below(4) as u8, &mut out),
        1 => write_head(major, number(rng), &mut out),
        _ => out.push(major << 5 | 31),
    }
    out.extend_from_slice(&body);
    out
}

/// One edit of a stream of frames that keeps the stream in step: the body of one frame, or the frames themselves.
fn edit_frames(rng: &mut Rng, bytes: &[u8], pool: &[Vec<u8>]) -> Vec<u8> {
    let mut frames = split_frames(bytes);
    let other: &Vec<u8> = rng.pick(pool);
    let mut others = split_frames(other);
    if frames.is_empty() {
        return edit_bytes(rng, bytes.to_vec(), pool);
    }
    let at = rng.below(frames.len());
    match rng.below(6) {
        0 => drop(frames.remove(at)),
        1 => frames.insert(at, frames[at].clone()),
        2 if !others.is_empty() => frames.insert(at, others.swap_remove(rng.below(others.len()))),
        3 => {
            let frame = &mut frames[at];
            if let Some(byte) = frame.get_mut(rng.below(FRAME_HEAD_BYTES)) {
                *byte = *rng.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 0x0f, 0x10, 0x11, 0x7f, 0x80, 0xff]);
            }
        }
        _ => {
            let body = edit_item(rng, &frames[at], FRAME_HEAD_BYTES, pool);
            frames[at] = with_length(body);
        }
    }
    frames.concat()
}

/// Cuts a stream where its heads say; the last piece is whatever is left.
fn split_frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let [_, a, b, c, ..] = *bytes {
        let len = FRAME_HEAD_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
        let (frame, rest) = bytes.split_at(len.min(bytes.len()));
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}

/// The frame with the length of its body in its head.
fn with_length(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() >= FRAME_HEAD_BYTES {
        let length = ((frame.len() - FRAME_HEAD_BYTES) as u32).to_be_bytes();
        frame[1..4].copy_from_slice(&length[1..]);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TARGETS;

    /// The same seed makes the same inputs, within the length limit, and they differ from each other.
    #[test]
    fn a_seed_repeats_its_inputs() {
        for target in TARGETS {
            let pool: Vec<Vec<u8>> = (target.seeds)().into_iter().map(|(_, bytes)| bytes).collect();
            let make = |seed| {
                let mut rng = Rng::new(seed);
                (0..500).map(|_| mutate(&mut rng, target.shape, &pool)).collect::<Vec<_>>()
            };
            let inputs = make(5);
            assert_eq!(inputs, make(5), "{}", target.name);
            assert!(inputs.iter().all(|input| input.len() <= INPUT_BYTES_MAX), "{}", target.name);
            let distinct: std::collections::BTreeSet<_> = inputs.iter().collect();
            assert!(distinct.len() > 300, "{}: {}", target.name, distinct.len());
        }
    }

    /// Most structured edits of a message leave something that is still CBOR, so they reach the fields behind it.
    #[test]
    fn structured_edits_keep_the_structure() {
        let pool: Vec<Vec<u8>> =
            crate::targets::message::seeds().into_iter().map(|(_, bytes)| bytes).collect();
        let mut rng = Rng::new(1);
        let whole = (0..1000)
            .filter(|_| {
                let base = rng.pick(&pool).clone();
                let edited = edit_item(&mut rng, &base, 0, &pool);
                matches!(Item::read(&edited), Some((_, [])))
            })
            .count();
        assert!(whole > 700, "{whole} of 1000");
    }
}
