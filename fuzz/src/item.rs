//! CBOR items as a tree (RFC 8949): read leniently and written back, so that the mutator edits structure and the
//! `cbor` target has a second opinion that shares no code with the one it judges.

/// Nesting beyond this is not read: the reader is recursive.
const DEPTH_MAX: usize = 200;

/// One item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// Major types 0 and 1: the major type and the argument.
    Number(u8, u64),
    /// Major types 2 and 3: the major type and the bytes.
    String(u8, Vec<u8>),
    /// Major type 4.
    Array(Vec<Item>),
    /// Major type 5.
    Map(Vec<(Item, Item)>),
    /// Major type 6.
    Tag(u64, Box<Item>),
    /// Major type 7 with its argument, floats included.
    Simple(u64),
    /// Bytes that the mutator wants written as they are.
    Raw(Vec<u8>),
}

impl Item {
    /// Reads one item of definite length and returns what follows it. Heads may be longer than needed.
    pub fn read(bytes: &[u8]) -> Option<(Item, &[u8])> {
        Item::read_at(bytes, 0)
    }

    fn read_at(bytes: &[u8], depth: usize) -> Option<(Item, &[u8])> {
        let (major, argument, mut rest) = read_head(bytes)?;
        if depth > DEPTH_MAX {
            return None;
        }
        let item = match major {
            0 | 1 => Item::Number(major, argument),
            2 | 3 => {
                let (string, tail) = rest.split_at_checked(usize::try_from(argument).ok()?)?;
                rest = tail;
                Item::String(major, string.to_vec())
            }
            4 => {
                let mut items = Vec::new();
                for _ in 0..argument {
                    let (item, tail) = Item::read_at(rest, depth + 1)?;
                    items.push(item);
                    rest = tail;
                }
                Item::Array(items)
            }
            5 => {
                let mut entries = Vec::new();
                for _ in 0..argument {
                    let (key, tail) = Item::read_at(rest, depth + 1)?;
                    let (value, tail) = Item::read_at(tail, depth + 1)?;
                    entries.push((key, value));
                    rest = tail;
                }
                Item::Map(entries)
            }
            6 => {
                let (item, tail) = Item::read_at(rest, depth + 1)?;
                rest = tail;
                Item::Tag(argument, Box::new(item))
            }
            _ => Item::Simple(argument),
        };
        Some((item, rest))
    }

    /// Appends the item, every head in its shortest form.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Item::Number(major, argument) => write_head(*major, *argument, out),
            Item::String(major, bytes) => {
                write_head(*major, bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
            Item::Array(items) => {
                write_head(4, items.len() as u64, out);
                items.iter().for_each(|item| item.write(out));
            }
            Item::Map(entries) => {
                write_head(5, entries.len() as u64, out);
                for (key, value) in entries {
                    key.write(out);
                    value.write(out);
                }
            }
            Item::Tag(tag, item) => {
                write_head(6, *tag, out);
                item.write(out);
            }
            Item::Simple(argument) => write_head(7, *argument, out),
            Item::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }

    /// The item as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Number of items in the tree, itself included.
    pub fn count(&self) -> usize {
        1 + match self {
            Item::Array(items) => items.iter().map(Item::count).sum(),
            Item::Map(entries) => entries.iter().map(|(key, value)| key.count() + value.count()).sum(),
            Item::Tag(_, item) => item.count(),
            _ => 0,
        }
    }

    /// The `index`-th item of the tree in pre-order.
    pub fn nth_mut(&mut self, index: usize) -> Option<&mut Item> {
        self.walk(&mut { index })
    }

    fn walk(&mut self, left: &mut usize) -> Option<&mut Item> {
        if *left == 0 {
            return Some(self);
        }
        *left -= 1;
        match self {
            Item::Array(items) => items.iter_mut().find_map(|item| item.walk(left)),
            Item::Map(entries) => {
                entries.iter_mut().find_map(|(key, value)| key.walk(left).or_else(|| value.walk(left)))
            }
            Item::Tag(_, item) => item.walk(left),
            _ => None,
        }
    }
}

fn read_head(bytes: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (major, low) = (first >> 5, first & 31);
    let width = match low {
        0..=23 => return Some((major, u64::from(low), rest)),
        24..=27 => 1 << (low - 24),
        _ => return None,
    };
    let (digits, rest) = rest.split_at_checked(width)?;
    Some((major, digits.iter().fold(0, |value, digit| value << 8 | u64::from(*digit)), rest))
}

/// Appends a head in its shortest form.
pub fn write_head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let width = match argument {
        0..=23 => {
            out.push(major << 5 | argument as u8);
            return;
        }
        24..=0xff => 0,
        0x100..=0xffff => 1,
        0x1_0000..=0xffff_ffff => 2,
        _ => 3,
    };
    write_wide_head(major, argument, width, out);
}

/// Appends a head whose argument takes `2^width` bytes, needed or not; what does not fit is cut off.
pub fn write_wide_head(major: u8, argument: u64, width: u8, out: &mut Vec<u8>) {
    out.push(major << 5 | (24 + width));
    out.extend_from_slice(&argument.to_be_bytes()[8 - (1 << width)..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples of the peer protocol survive reading and writing, and every item of the tree is reachable.
    #[test]
    fn real_messages_round_trip() {
        for (name, message) in dray_core::message::samples() {
            let bytes = message.to_bytes();
            let (mut item, rest) = Item::read(&bytes).expect(name);
            assert_eq!((item.to_bytes(), rest), (bytes.clone(), &[][..]), "{name}");
            let count = item.count();
            assert!(item.nth_mut(count - 1).is_some() && item.nth_mut(count).is_none(), "{name}");
        }
    }
}
