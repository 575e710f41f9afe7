//! Object id: the BLAKE3 hash of the whole data, with the algorithm in its name (D5).

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::{Error, ErrorKind};

const ALGORITHM: &str = "blake3";
/// Number of the algorithm in front of the 32 bytes of a binary OID.
const ALGORITHM_CODE: u8 = 1;

/// Name of an immutable sequence of bytes. Its text is `blake3:` and the 64 hex digits that `b3sum` prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Oid([u8; 32]);

impl Oid {
    /// Length of the binary form: algorithm code and hash.
    pub const ENCODED_BYTES: usize = 33;

    /// The OID whose BLAKE3 hash is `hash`.
    pub const fn from_blake3(hash: [u8; 32]) -> Oid {
        Oid(hash)
    }

    /// Hashes `data` at once; for data that fits memory.
    pub fn of(data: &[u8]) -> Oid {
        Oid(*blake3::hash(data).as_bytes())
    }

    /// The 32 bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hex digits alone.
    pub fn hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// Algorithm code and hash, as it stands in messages, tickets and records.
    pub fn to_encoded(self) -> [u8; Self::ENCODED_BYTES] {
        let mut out = [ALGORITHM_CODE; Self::ENCODED_BYTES];
        out[1..].copy_from_slice(&self.0);
        out
    }

    /// Inverse of [`Oid::to_encoded`]; refuses other lengths and algorithms.
    pub fn from_encoded(bytes: &[u8]) -> Result<Oid, Error> {
        match bytes {
            [ALGORITHM_CODE, hash @ ..] => match <[u8; 32]>::try_from(hash) {
                Ok(hash) => Ok(Oid(hash)),
                Err(_) => {
                    Err(invalid(format!("object id has {} bytes, not {}", bytes.len(), Self::ENCODED_BYTES)))
                }
            },
            [code, ..] => {
                Err(Error::new(ErrorKind::Unsupported, format!("object id uses hash algorithm {code}"))
                    .advise("a newer version of dray may know it; this one knows blake3 (1)"))
            }
            [] => Err(invalid("object id is empty".into())),
        }
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::Usage, what)
        .advise("an object id is `blake3:` and the 64 hex digits that b3sum prints")
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}:{}", self.hex())
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Oid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Oid, Error> {
        let Some((algorithm, hex)) = text.split_once(':') else {
            return Err(invalid(format!("object id {:?} names no hash algorithm", shorten(text))));
        };
        match algorithm {
            ALGORITHM => {}
            "md5" | "sha1" => {
                return Err(Error::new(
                    ErrorKind::Refused,
                    format!("object id uses {algorithm}, which no longer proves anything"),
                )
                .advise("name the object by its blake3 hash, as b3sum prints it"));
            }
            other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("object id uses the unknown hash algorithm {:?}", shorten(other)),
                )
                .advise("this version of dray knows blake3"));
            }
        }
        if hex.len() != 64 {
            let what = format!("object id {:?} has {} digits, not 64", shorten(text), hex.len());
            return Err(invalid(what));
        }
        let mut hash = [0; 32];
        match data_encoding::HEXLOWER_PERMISSIVE.decode_mut(hex.as_bytes(), &mut hash) {
            Ok(_) => Ok(Oid(hash)),
            Err(_) => {
                Err(invalid(format!("object id {:?} has something else than hex digits", shorten(text))))
            }
        }
    }
}

/// At most 80 characters of something a user or a peer typed, for an error message.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().count() <= 80 {
        text.to_owned()
    } else {
        text.chars().take(77).chain("...".chars()).collect()
    }
}

impl<C> Encode<C> for Oid {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.to_encoded())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Oid {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Oid, minicbor::decode::Error> {
        Oid::from_encoded(d.bytes()?).map_err(minicbor::decode::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D5: format and parse are inverse, and what `b3sum` prints for the empty file is the name of it.
    #[test]
    fn text_round_trip_and_known_value() {
        let oid = Oid::of(b"");
        assert_eq!(
            oid.to_string(),
            "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(oid.to_string().parse::<Oid>().unwrap(), oid);
        assert_eq!(Oid::from_encoded(&oid.to_encoded()).unwrap(), oid);
    }

    /// D5: an unknown algorithm is a clear error, not a wrong transfer.
    #[test]
    fn other_algorithms_are_refused_by_name() {
        let md5 = "md5:d41d8cd98f00b204e9800998ecf8427e".parse::<Oid>().unwrap_err();
        assert_eq!(md5.kind(), ErrorKind::Refused);
        let future = "blake4:00".parse::<Oid>().unwrap_err();
        assert_eq!(future.kind(), ErrorKind::Unsupported);
        assert!(future.to_string().contains("blake4"));
        let mut encoded = Oid::of(b"x").to_encoded();
        encoded[0] = 9;
        assert_eq!(Oid::from_encoded(&encoded).unwrap_err().kind(), ErrorKind::Unsupported);
        for bad in ["", "blake3:", "blake3:zz", "af13", &"blake3:".repeat(40)] {
            assert!(bad.parse::<Oid>().is_err(), "{bad}");
        }
    }
}
