//! Deterministic CBOR (RFC 8949 §4.2.1) with hard bounds: what every message, ticket and record is checked for
//! before it is decoded.
//!
//! Unknown keys of a map are ignored by the decoders, so the check cannot be "encode again and compare": it walks
//! the item and refuses indefinite lengths, heads longer than needed, unsorted or repeated map keys, floats,
//! nesting and element counts beyond the limits, and trailing bytes.

use minicbor::{Decode, Encode};

use crate::limits::{CBOR_DEPTH_MAX, CBOR_ELEMENTS_MAX};
use crate::{Error, ErrorKind, Result};

/// Encodes `value`; the derives write integer keys in ascending order, so the result is deterministic.
pub fn encode<T: Encode<()>>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to a vector cannot fail, and no encoder here returns an error of its own.
    let _ = minicbor::encode(value, &mut out);
    out
}

/// Checks `bytes` and decodes one `T` from all of them. `what` names the thing in the error.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8], what: &str) -> Result<T> {
    check(bytes).map_err(|reason| malformed(what, reason))?;
    minicbor::decode(bytes).map_err(|error| {
        Error::new(ErrorKind::Protocol, format!("{what} is malformed")).caused_by(error.to_string())
    })
}

fn malformed(what: &str, reason: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("{what} is malformed: {reason}"))
}

/// Checks that `bytes` are exactly one deterministic item within the limits.
pub fn check(bytes: &[u8]) -> Result<(), &'static str> {
    let mut rest = bytes;
    let mut elements = 0;
    item(&mut rest, 0, &mut elements)?;
    if rest.is_empty() { Ok(()) } else { Err("bytes follow the item") }
}

fn item(rest: &mut &[u8], depth: usize, elements: &mut u64) -> Result<(), &'static str> {
    if depth > CBOR_DEPTH_MAX {
        return Err("nested too deeply");
    }
    *elements += 1;
    if *elements > CBOR_ELEMENTS_MAX {
        return Err("too many elements");
    }
    let (major, argument) = head(rest)?;
    match major {
        0 | 1 => Ok(()),
        2 | 3 => {
            let len = usize::try_from(argument).map_err(|_| "string longer than the item")?;
            let (string, tail) = rest.split_at_checked(len).ok_or("string longer than the item")?;
            *rest = tail;
            if major == 3 && std::str::from_utf8(string).is_err() {
                return Err("text is not UTF-8");
            }
            Ok(())
        }
        4 => {
            // Each element takes at least a byte, so this bounds the loop before it starts.
            if argument > rest.len() as u64 {
                return Err("array longer than the item");
            }
            (0..argument).try_for_each(|_| item(rest, depth + 1, elements))
        }
        5 => {
            if argument > rest.len() as u64 / 2 {
                return Err("map longer than the item");
            }
            let mut previous: Option<&[u8]> = None;
            for _ in 0..argument {
                let before = *rest;
                item(rest, depth + 1, elements)?;
                let key = &before[..before.len() - rest.len()];
                if previous.is_some_and(|previous| previous >= key) {
                    return Err("map keys are not in ascending order");
                }
                previous = Some(key);
                item(rest, depth + 1, elements)?;
            }
            Ok(())
        }
        7 if (20..=22).contains(&argument) => Ok(()),
        _ => Err("tags, floats and other simple values are not used"),
    }
}

/// Reads a head in its shortest form: major type and argument.
fn head(rest: &mut &[u8]) -> Result<(u8, u64), &'static str> {
    let (first, tail) = rest.split_first().ok_or("ends early")?;
    *rest = tail;
    let (major, low) = (first >> 5, first & 31);
    if low < 24 {
        return Ok((major, u64::from(low)));
    }
    let (width, floor) = match low {
        24 => (1, 24),
        25 => (2, 1 << 8),
        26 => (4, 1 << 16),
        27 => (8, 1 << 32),
        _ => return Err("indefinite length"),
    };
    if major == 7 {
        return Err("tags, floats and other simple values are not used");
    }
    let (digits, tail) = rest.split_at_checked(width).ok_or("ends early")?;
    *rest = tail;
    let argument = digits.iter().fold(0, |value, digit| value << 8 | u64::from(*digit));
    if argument < floor { Err("length or number not in its shortest form") } else { Ok((major, argument)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accepts_deterministic_items() {
        for hex in
            ["00", "1817", "1818", "190100", "a2000118180140", "8301f5f6", "6161", "43010203", "a0", "80"]
        {
            let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
            let expect_bad = hex == "1817" || hex == "a2000118180140";
            // 1817 is 23 in two bytes; the map has a stray byte at its end.
            assert_eq!(check(&bytes).is_err(), expect_bad, "{hex}: {:?}", check(&bytes));
        }
    }

    #[test]
    fn refuses_what_is_not_deterministic_or_too_large() {
        for (hex, why) in [
            ("", "empty"),
            ("5f4100ff", "indefinite bytes"),
            ("9f00ff", "indefinite array"),
            ("a201000000", "descending keys"),
            ("a200000000", "repeated keys"),
            ("190001", "long head"),
            ("1a0000ffff", "long head"),
            ("1b00000000ffffffff", "long head"),
            ("f90000", "float"),
            ("c000", "tag"),
            ("61ff", "not UTF-8"),
            ("5bffffffffffffffff", "string longer than the item"),
            ("9bffffffffffffffff", "array longer than the item"),
            ("bbffffffffffffffff", "map longer than the item"),
            ("0000", "two items"),
            ("81818181818181818181818100", "deep"),
        ] {
            let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
            assert!(check(&bytes).is_err(), "{why}");
        }
        let mut many = vec![0x99, 0x20, 0x00];
        many.extend([0; 0x2000]);
        assert_eq!(check(&many), Err("too many elements"));
    }

    proptest! {
        /// No input panics or loops.
        #[test]
        fn any_bytes_terminate(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes);
        }
    }
}
