//! Profile: how an object is cut. Part of every recipe, and checked before any chunker is made of it.

use minicbor::{Decode, Decoder, Encode, Encoder};

use super::Chunker;
use super::fastcdc::FastCdc;
use super::fixed::Fixed;
use super::push::Push;
use crate::limits::{CHUNK_AVERAGE_BYTES_MAX, CHUNK_AVERAGE_BYTES_MIN};
use crate::{Error, ErrorKind, Result};

/// Average of the default profile.
const DEFAULT_AVERAGE_BYTES: u32 = 16 * 1024;
/// Chunks that [`Profile::for_size`] aims to stay at or below.
const CHUNKS_AIM: u64 = 1 << 20;

/// How cut points are found. The numbers are wire format and never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// FastCDC 2020, normalisation level 2: cut points follow the content.
    FastCdc,
    /// Every so many bytes.
    Fixed,
}

impl Algorithm {
    /// The number on the wire.
    pub fn wire_code(self) -> u8 {
        match self {
            Algorithm::FastCdc => 1,
            Algorithm::Fixed => 2,
        }
    }

    /// The algorithm a peer means; `Unsupported` for a number from the future.
    pub fn from_wire_code(code: u8) -> Result<Algorithm> {
        match code {
            1 => Ok(Algorithm::FastCdc),
            2 => Ok(Algorithm::Fixed),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("recipe uses chunking algorithm {other}, this dray knows 1 (fastcdc) and 2 (fixed)"),
            )
            .advise("install a newer dray")),
        }
    }

    /// Its name in configuration and messages for people.
    pub fn word(self) -> &'static str {
        match self {
            Algorithm::FastCdc => "fastcdc",
            Algorithm::Fixed => "fixed",
        }
    }
}

/// Algorithm and average chunk length; everything else follows from them. Two ends have the same chunks only if they
/// use the same profile.
///
/// | | shortest chunk | longest chunk |
/// |---|---|---|
/// | fastcdc | average / 4 | average * 4 |
/// | fixed | average | average |
///
/// The last chunk of an object may be shorter than the shortest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Profile {
    algorithm: Algorithm,
    average_bytes: u32,
}

impl Default for Profile {
    /// FastCDC with an average of 16 KiB.
    fn default() -> Profile {
        Profile { algorithm: Algorithm::FastCdc, average_bytes: DEFAULT_AVERAGE_BYTES }
    }
}

impl Profile {
    /// A profile. `Unsupported` unless `average_bytes` is a power of two from 4 KiB to 4 MiB: other averages have no mask
    /// of their own in FastCDC, and its library panics beyond its range.
    pub fn new(algorithm: Algorithm, average_bytes: u32) -> Result<Profile> {
        let is_in_range = (CHUNK_AVERAGE_BYTES_MIN..=CHUNK_AVERAGE_BYTES_MAX).contains(&average_bytes);
        if !is_in_range || !average_bytes.is_power_of_two() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "average chunk length {average_bytes} is not a power of two from {CHUNK_AVERAGE_BYTES_MIN} to \
                     {CHUNK_AVERAGE_BYTES_MAX}"
                ),
            ));
        }
        Ok(Profile { algorithm, average_bytes })
    }

    /// The profile for an object of `size_bytes`: FastCDC with 16 KiB up to 16 GiB, then with the smallest average that gives
    /// about 2^20 chunks at most. `None` above 4 TiB, where that would be more than 4 MiB: such an object gets no
    /// recipe.
    pub fn for_size(size_bytes: u64) -> Option<Profile> {
        let average = size_bytes.div_ceil(CHUNKS_AIM).max(u64::from(DEFAULT_AVERAGE_BYTES));
        if average > u64::from(CHUNK_AVERAGE_BYTES_MAX) {
            return None;
        }
        // At most 4 MiB, a power of two itself, so the next one is no larger.
        let average_bytes = average.next_power_of_two() as u32;
        Some(Profile { algorithm: Algorithm::FastCdc, average_bytes })
    }

    /// How cut points are found.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Average length of a chunk that is aimed at, in bytes.
    pub fn average_bytes(&self) -> u32 {
        self.average_bytes
    }

    /// Bytes of the shortest chunk, the last one of an object excepted.
    pub fn chunk_bytes_min(&self) -> u32 {
        match self.algorithm {
            Algorithm::FastCdc => self.average_bytes / 4,
            Algorithm::Fixed => self.average_bytes,
        }
    }

    /// Bytes of the longest chunk; at most 16 MiB.
    pub fn chunk_bytes_max(&self) -> u32 {
        match self.algorithm {
            Algorithm::FastCdc => self.average_bytes * 4,
            Algorithm::Fixed => self.average_bytes,
        }
    }

    /// A chunker for one object.
    pub fn chunker(&self) -> Box<dyn Chunker> {
        let [min, average, max] =
            [self.chunk_bytes_min(), self.average_bytes, self.chunk_bytes_max()].map(|bytes| bytes as usize);
        match self.algorithm {
            Algorithm::FastCdc => Box::new(Push::new(FastCdc::new(min, average, max))),
            Algorithm::Fixed => Box::new(Push::new(Fixed::new(average))),
        }
    }
}

#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct WireProfile {
    #[n(0)]
    algorithm: u8,
    #[n(1)]
    average_bytes: u32,
}

impl From<Profile> for WireProfile {
    fn from(profile: Profile) -> WireProfile {
        WireProfile { algorithm: profile.algorithm.wire_code(), average_bytes: profile.average_bytes }
    }
}

impl TryFrom<WireProfile> for Profile {
    type Error = Error;

    fn try_from(wire: WireProfile) -> Result<Profile> {
        Profile::new(Algorithm::from_wire_code(wire.algorithm)?, wire.average_bytes)
    }
}

impl<C> Encode<C> for Profile {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        WireProfile::from(*self).encode(e, ctx)
    }
}

impl<'b, C> Decode<'b, C> for Profile {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Profile, minicbor::decode::Error> {
        Profile::try_from(WireProfile::decode(d, ctx)?).map_err(minicbor::decode::Error::custom)
    }
}
