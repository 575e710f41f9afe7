//! Golden vectors of cut points, and the properties every chunker must have.

use dray_testkit::sample;
use proptest::prelude::*;

use super::{Algorithm, Profile};
use crate::recipe::ChunkDescriptor;
use crate::{ErrorKind, cbor};

const KIB: u32 = 1024;
const MIB: usize = 1024 * 1024;

fn profile(algorithm: Algorithm, average_kib: u32) -> Profile {
    Profile::new(algorithm, average_kib * KIB).unwrap()
}

/// Lengths of the chunks of `data`, pushed in pieces of the lengths in `pieces`, round and round.
fn lengths(profile: Profile, data: &[u8], pieces: &[usize]) -> Vec<usize> {
    let mut chunker = profile.chunker();
    let mut lengths = Vec::new();
    let mut seen = Vec::new();
    let mut take = |chunk: &[u8]| {
        lengths.push(chunk.len());
        seen.extend_from_slice(chunk);
    };
    let (mut rest, mut turn) = (data, 0);
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(pieces[turn % pieces.len()].clamp(1, rest.len()));
        chunker.push(piece, &mut take);
        (rest, turn) = (tail, turn + 1);
    }
    chunker.finish(&mut take);
    assert!(seen == data, "the chunks are the object");
    lengths
}

fn whole(profile: Profile, data: &[u8]) -> Vec<usize> {
    lengths(profile, data, &[data.len()])
}

/// D24, design 4: cut points are wire format. For each profile in use: number of chunks of the same 10 MiB, the first
/// lengths, and the hash of all lengths (u32, big-endian). If a release of the library changes one, it cannot be taken
/// without a new algorithm number.
#[test]
fn golden_cut_points() {
    let data = sample::bytes(10 * MIB, 24);
    let mut seen = String::new();
    for (algorithm, kib) in [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
        .map(|kib| (Algorithm::FastCdc, kib))
        .into_iter()
        .chain([(Algorithm::Fixed, 4), (Algorithm::Fixed, 64), (Algorithm::Fixed, 4096)])
    {
        let lengths = whole(profile(algorithm, kib), &data);
        let all: Vec<u8> = lengths.iter().flat_map(|len| (*len as u32).to_be_bytes()).collect();
        let hash = data_encoding::HEXLOWER.encode(&blake3::hash(&all).as_bytes()[..16]);
        let first = &lengths[..lengths.len().min(3)];
        seen += &format!("{} {kib} KiB: {} {first:?} {hash}\n", algorithm.word(), lengths.len());
    }
    assert_eq!(seen, include_str!("../../fixtures/cut-points.txt"));
}

/// D24: the default profile, chunk by chunk at the beginning, so that a change says where.
#[test]
fn golden_cut_points_of_the_default_profile() {
    let data = sample::bytes(MIB / 2, 24);
    assert_eq!(Profile::default(), profile(Algorithm::FastCdc, 16));
    assert_eq!(whole(Profile::default(), &data), GOLDEN_DEFAULT);
}

const GOLDEN_DEFAULT: [usize; 29] = [
    15053, 16868, 16969, 16559, 17629, 22630, 16672, 13566, 18020, 22772, 17927, 16653, 10599, 17195, 16819,
    17330, 21648, 19163, 10360, 21537, 19576, 17505, 19659, 18993, 24217, 18823, 22057, 17736, 19753,
];

/// The push adapter cuts where the library's own iterator over the whole object cuts.
#[test]
fn cuts_where_the_library_cuts() {
    use fastcdc::v2020::{FastCDC, Normalization::Level2};
    let data = sample::bytes(3 * MIB + 1, 5);
    for kib in [4, 16, 256] {
        let profile = profile(Algorithm::FastCdc, kib);
        let [min, average, max] =
            [profile.chunk_bytes_min(), profile.average_bytes(), profile.chunk_bytes_max()]
                .map(|len| len as usize);
        let theirs = FastCDC::with_level(&data, min, average, max, Level2).map(|chunk| chunk.length);
        assert_eq!(lengths(profile, &data, &[1000]), theirs.collect::<Vec<_>>());
    }
}

/// D24: one byte inserted into 10 MiB keeps at least 95 % of the chunks; chunks of a fixed length keep what lies before
/// the edit and nothing after it.
#[test]
fn an_inserted_byte_keeps_nearly_all_chunks() {
    let data = sample::bytes(10 * MIB, 7);
    let hashes = |profile: Profile, data: &[u8]| -> Vec<[u8; 32]> {
        let mut hashes = Vec::new();
        let mut chunker = profile.chunker();
        chunker.push(data, &mut |chunk| hashes.push(ChunkDescriptor::of(chunk).hash));
        chunker.finish(&mut |chunk| hashes.push(ChunkDescriptor::of(chunk).hash));
        hashes
    };
    let fixed = profile(Algorithm::Fixed, 16);
    let (before, before_fixed) = (hashes(Profile::default(), &data), hashes(fixed, &data));
    for at in [0, 1, 1_000_000, 5 * MIB + 3, 10 * MIB - 1, 10 * MIB] {
        let mut edited = data.clone();
        edited.insert(at, 0x5a);
        let kept = |before: &[[u8; 32]], after: &[[u8; 32]]| {
            before.iter().filter(|hash| after.contains(hash)).count()
        };
        let after = kept(&before, &hashes(Profile::default(), &edited));
        assert!(after * 100 >= before.len() * 95, "{after} of {} after an insert at {at}", before.len());
        let whole_before_edit = at / (16 * 1024);
        assert_eq!(kept(&before_fixed, &hashes(fixed, &edited)), whole_before_edit, "at {at}");
    }
}

/// Design 4: the average follows the size, and an object beyond the largest gets no recipe.
#[test]
fn the_profile_of_a_size() {
    let average = |size| Profile::for_size(size).map(|profile| profile.average_bytes() / KIB);
    let gib = 1u64 << 30;
    for (size, kib) in [
        (0, 16),
        (1, 16),
        (16 * gib, 16),
        (16 * gib + 1, 32),
        (32 * gib, 32),
        (1 << 40, 1024),
        (4 << 40, 4096),
    ] {
        assert_eq!(average(size), Some(kib), "{size}");
    }
    assert_eq!(average((4 << 40) + 1), None);
    assert_eq!(average(u64::MAX), None);
}

/// Design 17: no profile that the library would panic at, or that no chunker is made for, can be made or decoded.
#[test]
fn profiles_are_checked() {
    for bytes in [0, 1, 255, 2048, 4095, 4097, 16 * KIB + 2, 24 * KIB, 8 * 1024 * KIB, 1 << 31, u32::MAX] {
        for algorithm in [Algorithm::FastCdc, Algorithm::Fixed] {
            assert_eq!(Profile::new(algorithm, bytes).unwrap_err().kind(), ErrorKind::Unsupported, "{bytes}");
        }
    }
    for exponent in 12..=22 {
        let profile = Profile::new(Algorithm::FastCdc, 1 << exponent).unwrap();
        assert_eq!(
            (profile.chunk_bytes_min() * 4, profile.chunk_bytes_max() / 4),
            (1 << exponent, 1 << exponent)
        );
        assert_eq!(cbor::decode::<Profile>(&cbor::encode(&profile), "profile").unwrap(), profile);
    }
    // Golden vectors: {0: 1, 1: 16384} and {0: 2, 1: 4096}.
    assert_eq!(cbor::encode(&Profile::default()), [0xa2, 0, 1, 1, 0x19, 0x40, 0]);
    assert_eq!(cbor::encode(&profile(Algorithm::Fixed, 4)), [0xa2, 0, 2, 1, 0x19, 0x10, 0]);
    assert!(cbor::decode::<Profile>(&[0xa2, 0, 9, 1, 0x19, 0x40, 0], "profile").is_err());
    let unknown = Algorithm::from_wire_code(9).unwrap_err();
    assert!(unknown.kind() == ErrorKind::Unsupported && unknown.to_string().contains("algorithm 9"));
    assert!(cbor::decode::<Profile>(&[0xa2, 0, 1, 1, 0x19, 0x40, 1], "profile").is_err());
}

/// Zeros have no cut point but the longest chunk, and the empty object has no chunk.
#[test]
fn zeros_and_nothing() {
    for algorithm in [Algorithm::FastCdc, Algorithm::Fixed] {
        let profile = profile(algorithm, 4);
        assert_eq!(whole(profile, &[]), [0; 0]);
        assert_eq!(whole(profile, &[1]), [1]);
        let max = profile.chunk_bytes_max() as usize;
        assert_eq!(whole(profile, &vec![0; 3 * max + 5]), [max, max, max, 5]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// D24: cut points do not depend on how the bytes were written, and every chunk but the last is within the bounds of
    /// the profile. A chunker that has finished is as good as new.
    #[test]
    fn any_split_of_writes_gives_the_same_chunks(
        seed in any::<u64>(),
        len in 0..400_000usize,
        zeros in 0..100_000usize,
        kib in prop::sample::select(vec![4u32, 8, 16]),
        algorithm in prop::sample::select(vec![Algorithm::FastCdc, Algorithm::Fixed]),
        pieces in prop::collection::vec(prop_oneof![1..200usize, 200..70_000usize, 70_000..300_000usize], 1..12),
    ) {
        let profile = profile(algorithm, kib);
        let mut data = sample::bytes(len, seed);
        data.splice(len / 3..len / 3, vec![0; zeros]);
        let expected = whole(profile, &data);
        prop_assert_eq!(&lengths(profile, &data, &pieces), &expected);
        if let Some((last, others)) = expected.split_last() {
            let (min, max) = (profile.chunk_bytes_min() as usize, profile.chunk_bytes_max() as usize);
            prop_assert!(others.iter().all(|len| (min..=max).contains(len)) && (1..=max).contains(last));
        }
        let mut chunker = profile.chunker();
        for _ in 0..2 {
            let mut again = Vec::new();
            chunker.push(&data, &mut |chunk| again.push(chunk.len()));
            chunker.finish(&mut |chunk| again.push(chunk.len()));
            prop_assert_eq!(&again, &expected);
        }
    }
}
