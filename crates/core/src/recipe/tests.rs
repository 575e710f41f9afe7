//! Golden vectors of nodes and roots, builder and reader against each other, and what a recipe from a liar may not do.

use std::collections::{BTreeMap, HashMap, HashSet};

use dray_testkit::sample;
use proptest::prelude::*;

use super::node::{HEAD_BYTES, ends_node, node_bytes_max};
use super::*;
use crate::chunker::{Algorithm, Profile};
use crate::limits::{RECIPE_NODE_BYTES_MAX, RECIPE_NODE_ENTRIES_MAX, RECIPE_NODE_ENTRIES_MIN};
use crate::{Error, ErrorKind, Result, cbor};

fn small() -> Profile {
    Profile::new(Algorithm::FastCdc, 4096).unwrap()
}

/// `count` chunks that depend on `seed`, cut with `profile` as far as anybody can see.
fn chunks(profile: Profile, count: usize, seed: u64) -> Vec<ChunkDescriptor> {
    let random = sample::bytes(count * 36, seed);
    let entries = random.chunks_exact(36).enumerate().map(|(index, random)| {
        let span = u64::from(profile.chunk_bytes_max() - profile.chunk_bytes_min()) + 1;
        let draw = random[32..].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let is_last = index + 1 == count;
        let len = if is_last { 1 + draw % 4096 } else { u64::from(profile.chunk_bytes_min()) + draw % span };
        ChunkDescriptor { hash: random[..32].try_into().unwrap(), len: len as u32 }
    });
    entries.collect()
}

/// A whole recipe, as a holder keeps it.
struct Built {
    root: RecipeRoot,
    nodes: HashMap<RecipeId, Vec<u8>>,
    /// How many nodes came out, the same one as often as it did.
    count: usize,
}

fn build(profile: Profile, chunks: &[ChunkDescriptor]) -> Built {
    let mut nodes = HashMap::new();
    let mut count = 0;
    let mut keep = |built: BuiltNode| {
        assert_eq!(RecipeId::of_node(&built.bytes), built.id);
        assert_eq!(RecipeNode::from_bytes(&built.bytes).unwrap(), built.node);
        assert_eq!(built.node.to_bytes(), built.bytes);
        assert!(built.bytes.len() <= node_bytes_max(built.node.level(), built.node.chunks()));
        nodes.insert(built.id, built.bytes);
        count += 1;
    };
    let mut builder = RecipeBuilder::new(profile);
    for chunk in chunks {
        builder.push(*chunk, &mut keep).unwrap();
    }
    let root = builder.finish(&mut keep);
    assert_eq!(root.chunks() as usize, chunks.len());
    assert_eq!(root.size_bytes(), chunks.iter().map(|chunk| u64::from(chunk.len)).sum::<u64>());
    assert_eq!(RecipeRoot::from_bytes(&root.to_bytes()).unwrap(), root);
    Built { root, nodes, count }
}

/// Reads a recipe whose nodes come in an order that depends on `seed`, some of them from a cache, some only at the
/// second time of asking. Returns the chunks and the nodes that were not known.
fn read(
    built: &Built,
    limits: ReaderLimits,
    seed: u64,
    known: &HashSet<RecipeId>,
) -> Result<(Vec<PlacedChunk>, usize)> {
    let mut reader = RecipeReader::new(&built.root, limits);
    let mut draws = sample::bytes(1 << 12, seed).into_iter().cycle();
    let mut draw = |below: usize| usize::from(draws.next().unwrap()) % below.max(1);
    let (mut waiting, mut out, mut fetched) = (Vec::<NodeRequest>::new(), Vec::new(), 0);
    let mut idle = 0;
    while !reader.is_done() {
        while let Some(request) = reader.next_request(&mut |id| known.contains(id))? {
            assert_eq!(request.is_known, known.contains(&request.id));
            waiting.push(request);
        }
        let (nodes, bytes) = reader.held();
        assert!(
            nodes <= limits.nodes + 1 && bytes <= limits.bytes + RECIPE_NODE_BYTES_MAX,
            "{nodes} {bytes}"
        );
        assert!(reader.asked() >= waiting.len());
        let given = out.len();
        if !waiting.is_empty() {
            let request = waiting.swap_remove(draw(waiting.len()));
            let bytes = &built.nodes[&request.id];
            // A forged recipe, which has no count, may claim wrong totals.
            let is_exact = request.level == 0;
            assert!(built.count == 0 || bytes.len() <= request.bytes_max);
            assert!(built.count == 0 || !is_exact || bytes.len() == request.bytes_max);
            if draw(8) == 0 {
                reader.give_back(&request.id);
            } else {
                fetched += usize::from(!request.is_known);
                reader.accept(&request.id, bytes)?;
            }
        }
        while let Some(chunk) = (draw(16) > 0).then(|| reader.next_chunk()).flatten() {
            out.push(chunk);
        }
        // A reader that asks for nothing and gives nothing would hang here.
        idle = if given == out.len() && waiting.is_empty() { idle + 1 } else { 0 };
        assert!(idle < 100 || reader.is_done(), "stuck");
    }
    assert_eq!((reader.held(), reader.asked()), ((0, 0), 0));
    Ok((out, fetched))
}

fn assert_reads_as(built: &Built, chunks: &[ChunkDescriptor], out: &[PlacedChunk]) {
    assert!(out.iter().map(|placed| placed.chunk).eq(chunks.iter().copied()));
    let mut offset = 0;
    for placed in out {
        assert_eq!(placed.offset, offset);
        offset += u64::from(placed.chunk.len);
    }
    assert_eq!(offset, built.root.size_bytes());
}

/// Golden vectors: a leaf, an inner node, ids, and a root. All are wire format.
#[test]
fn golden_nodes_and_roots() {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    let empty = build(Profile::default(), &[]);
    let one = build(Profile::default(), &[ChunkDescriptor::of(b"one chunk")]);
    let leaf = &one.nodes[&one.root.node_id()];
    assert_eq!(
        hex(leaf),
        concat!(
            "0100010e00010000",
            "0f4f198f6c59257e60e63cd99e0298e051d65a57a3dc585ceb9fd1f191fe541b",
            "00000009"
        )
    );
    let two = build(small(), &chunks(small(), 300, 1));
    let inner = &two.nodes[&two.root.node_id()];
    let seen = format!(
        "empty {}\none {}\ninner {}\ntwo levels {}\nmany {}\n",
        hex(&empty.root.to_bytes()),
        hex(&one.root.to_bytes()),
        hex(inner),
        hex(&two.root.to_bytes()),
        hex(&build(Profile::default(), &chunks(Profile::default(), 20_000, 2)).root.to_bytes()),
    );
    assert_eq!(seen, include_str!("../../fixtures/recipes.txt"));
}

/// The smallest recipes: nothing, and one chunk. Both are one leaf.
#[test]
fn small_recipes_are_one_leaf() {
    for count in [0, 1, 2, RECIPE_NODE_ENTRIES_MIN - 1] {
        let chunks = chunks(small(), count, 9);
        let built = build(small(), &chunks);
        assert_eq!((built.root.level(), built.count), (0, 1));
        let (out, fetched) = read(&built, ReaderLimits::default(), 1, &HashSet::new()).unwrap();
        assert_reads_as(&built, &chunks, &out);
        assert_eq!(fetched, 1);
    }
}

/// Design 2: a leaf can never pass for an inner node, nor a node of one profile or level for one of another: the id covers
/// the head.
#[test]
fn ids_cover_level_and_profile() {
    let chunk = [ChunkDescriptor::of(b"x")];
    let ids: HashSet<RecipeId> = (12..=22)
        .map(|exponent| {
            build(Profile::new(Algorithm::FastCdc, 1 << exponent).unwrap(), &chunk).root.node_id()
        })
        .collect();
    assert_eq!(ids.len(), 11);
    let built = build(small(), &chunk);
    let mut node = built.nodes[&built.root.node_id()].clone();
    node[1] = 1;
    assert_ne!(RecipeId::of_node(&node), built.root.node_id());
    assert_ne!(RecipeId::of_node(&node), RecipeId::from_bytes(*blake3::hash(&node).as_bytes()));
}

/// Runs of one chunk (a hole, zeros): every entry has the same hash, so the bounds alone end nodes. Identical nodes are
/// asked for once while they are wanted together.
#[test]
fn runs_of_one_chunk_stay_small() {
    for last_byte in [0u8, 1] {
        let run = vec![ChunkDescriptor { hash: [last_byte; 32], len: 16_384 }; 70_000];
        let built = build(small(), &run);
        let per_leaf = if last_byte == 0 { RECIPE_NODE_ENTRIES_MIN } else { RECIPE_NODE_ENTRIES_MAX };
        assert!(
            built.count >= 70_000 / per_leaf && built.nodes.len() < built.count / 3,
            "{}",
            built.nodes.len()
        );
        let (out, fetched) = read(&built, ReaderLimits::default(), 3, &HashSet::new()).unwrap();
        assert_reads_as(&built, &run, &out);
        assert!(fetched < built.count / 2, "{fetched} of {}", built.count);
    }
}

/// Issue 3, golden: 16 bytes inserted into an object of 131,072 chunks change fewer than 12 nodes, and what the
/// receiver must fetch for it stays below 40 kB. Such an insert replaces a chunk, sometimes by two, or two by one.
#[test]
fn an_insert_into_131072_chunks_changes_few_nodes() {
    let profile = Profile::default();
    let mut before = chunks(profile, 131_072, 42);
    before[131_071].len = 9000;
    let old = build(profile, &before);
    let known: HashSet<RecipeId> = old.nodes.keys().copied().collect();
    let mut changed_counts = Vec::new();
    for edit in 0..24u64 {
        let at = (edit as usize * 5461 + 17) % 131_071;
        let mut after = before.clone();
        let mut fresh = chunks(profile, 3, 1000 + edit);
        fresh.pop();
        match edit % 3 {
            0 => after[at] = fresh[0],
            1 => drop(after.splice(at..=at, fresh)),
            _ => drop(after.splice(at..at + 2, [fresh[0]])),
        }
        let new = build(profile, &after);
        let changed: Vec<&Vec<u8>> =
            new.nodes.iter().filter(|(id, _)| !known.contains(id)).map(|(_, bytes)| bytes).collect();
        let bytes: usize = changed.iter().map(|node| node.len()).sum();
        assert!(!changed.is_empty() && changed.len() < 12, "edit {edit} changes {} nodes", changed.len());
        assert!(bytes < 40_000, "edit {edit} costs {bytes} bytes");
        changed_counts.push(changed.len());
        if edit == 0 {
            let (out, fetched) = read(&new, ReaderLimits::default(), edit, &known).unwrap();
            assert_reads_as(&new, &after, &out);
            assert_eq!(fetched, changed.len(), "what is known is not fetched");
        }
    }
    assert_eq!(changed_counts, GOLDEN_CHANGED);
}

const GOLDEN_CHANGED: [usize; 24] = [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3, 3];

/// D17: chunks are known long before the recipe is complete, and several nodes are asked for at once.
#[test]
fn chunks_come_before_the_recipe_is_complete() {
    let chunks = chunks(small(), 30_000, 5);
    let built = build(small(), &chunks);
    let mut reader = RecipeReader::new(&built.root, ReaderLimits::default());
    let (mut fetched, mut rounds, mut given, mut fetched_at_first) = (0, 0, 0, None);
    while !reader.is_done() {
        let mut requests = Vec::new();
        while let Some(request) = reader.next_request(&mut |_| false).unwrap() {
            requests.push(request);
        }
        assert_eq!(reader.asked(), requests.len());
        for request in requests {
            reader.accept(&request.id, &built.nodes[&request.id]).unwrap();
            fetched += 1;
        }
        rounds += 1;
        given += std::iter::from_fn(|| reader.next_chunk()).count();
        if given > 0 && fetched_at_first.is_none() {
            assert_eq!(rounds, usize::from(built.root.level()) + 1, "one round trip a level");
            fetched_at_first = Some(fetched);
        }
    }
    assert_eq!((given, fetched), (chunks.len(), built.count));
    assert!(fetched_at_first.unwrap() * 4 < built.count, "{fetched_at_first:?} of {}", built.count);
    assert!(rounds * 32 < built.count, "{rounds} rounds for {} nodes", built.count);
}

/// Wrong bytes for a node change nothing: the culprit is who gave them, and another may give the right ones.
#[test]
fn wrong_bytes_are_refused_and_asked_for_elsewhere() {
    let chunks = chunks(small(), 2_000, 6);
    let built = build(small(), &chunks);
    let mut reader = RecipeReader::new(&built.root, ReaderLimits::default());
    let request = reader.next_request(&mut |_| false).unwrap().unwrap();
    let right = &built.nodes[&request.id];
    let mut wrong = right.clone();
    wrong[HEAD_BYTES] ^= 1;
    for bytes in [&wrong[..], &right[1..], &[], &vec![0; RECIPE_NODE_BYTES_MAX + 1]] {
        let error = reader.accept(&request.id, bytes).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::VerificationFailed, true));
        assert!(error.to_string().contains(&request.id.to_string()));
    }
    assert_eq!(reader.accept(&RecipeId::of_node(&wrong), &wrong).unwrap_err().kind(), ErrorKind::Protocol);
    reader.accept(&request.id, right).unwrap();
    assert_eq!(reader.accept(&request.id, right).unwrap_err().kind(), ErrorKind::Protocol);
    assert!(reader.next_request(&mut |_| false).unwrap().is_some());
}

/// A recipe by a liar, with right ids throughout.
fn forge(profile: Profile, level: u8, entries: Entries) -> (ChildEntry, Vec<u8>) {
    let node = RecipeNode::from_checked(profile, level, entries);
    let bytes = node.to_bytes();
    (
        ChildEntry { id: RecipeId::of_node(&bytes), size_bytes: node.size_bytes(), chunks: node.chunks() },
        bytes,
    )
}

/// Reads a forged recipe of an inner root over `leaves`, after `change` had its way with the root's entries.
fn read_forged(leaves: Vec<(ChildEntry, Vec<u8>)>, change: impl Fn(&mut Vec<ChildEntry>)) -> Result<usize> {
    let mut children: Vec<ChildEntry> = leaves.iter().map(|(child, _)| *child).collect();
    change(&mut children);
    let (claim, bytes) = forge(small(), 1, Entries::Children(children));
    let mut nodes: HashMap<RecipeId, Vec<u8>> =
        leaves.into_iter().map(|(child, bytes)| (child.id, bytes)).collect();
    nodes.insert(claim.id, bytes);
    let root = RecipeRoot { profile: small(), node: claim, level: 1 };
    read(&Built { root, nodes, count: 0 }, ReaderLimits::default(), 1, &HashSet::new())
        .map(|(out, _)| out.len())
}

/// Design 17: a child with other totals than its parent claims is named; so are nodes that end where they should not, a
/// short chunk in the middle, another level, another profile, a root above a single node.
#[test]
fn a_wrong_recipe_is_refused_by_name() {
    let full = |seed: u64| {
        // 16 entries, the last of which ends a node, and none of which is short.
        let mut chunks = chunks(small(), 17, seed);
        chunks.pop();
        chunks[15].hash[31] = 64;
        forge(small(), 0, Entries::Chunks(chunks))
    };
    let honest = || vec![full(1), full(2), forge(small(), 0, Entries::Chunks(chunks(small(), 3, 3)))];
    assert_eq!(read_forged(honest(), |_| {}).unwrap(), 35);

    let refused = |leaves: Vec<(ChildEntry, Vec<u8>)>, change: &dyn Fn(&mut Vec<ChildEntry>), why: &str| {
        let error: Error = read_forged(leaves, change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains(why), "{error} lacks {why:?}");
        error.to_string()
    };
    let name = full(2).0.id.to_string();
    assert!(
        refused(honest(), &|children| children[1].size_bytes += 1, "bytes in 16 chunks, not").contains(&name)
    );
    assert!(refused(honest(), &|children| children[1].chunks -= 1, "in 15").contains(&name));
    let mut short_end = honest();
    short_end[1] = forge(small(), 0, Entries::Chunks(chunks(small(), 17, 4)[..16].to_vec()));
    refused(short_end, &|_| {}, "ends before its entries say so");
    let mut short_chunk = chunks(small(), 17, 5);
    short_chunk.pop();
    short_chunk[15].hash[31] = 64;
    short_chunk[15].len = 5;
    let mut leaves = honest();
    leaves[1] = forge(small(), 0, Entries::Chunks(short_chunk));
    refused(leaves, &|_| {}, "a chunk of 5 bytes");
    let mut leaves = honest();
    leaves[2] = forge(small(), 1, Entries::Children(vec![leaves[1].0]));
    refused(leaves, &|_| {}, "level 1");
    let other = Profile::new(Algorithm::Fixed, 4096).unwrap();
    let mut leaves = honest();
    leaves[2] = forge(other, 0, Entries::Chunks(vec![ChunkDescriptor { hash: [1; 32], len: 4096 }]));
    refused(leaves, &|_| {}, "fixed");
    let single = (0..)
        .map(|seed| forge(small(), 0, Entries::Chunks(chunks(small(), 17, seed))))
        .find(|(_, bytes)| RecipeNode::from_bytes(bytes).is_ok())
        .unwrap();
    refused(vec![single], &|_| {}, "root above a single node");
    // The same node twice, with different claims: noticed even though it came only once.
    let twice = vec![full(1), full(1), forge(small(), 0, Entries::Chunks(chunks(small(), 3, 3)))];
    refused(twice, &|children| children[1].size_bytes += 1, "not what its parent says");
}

/// Design 17: lengths and counts of a node are checked before anything is made of them.
#[test]
fn mangled_nodes_are_refused() {
    let built = build(small(), &chunks(small(), 300, 1));
    let inner = built.nodes[&built.root.node_id()].clone();
    let medium = |node: &&Vec<u8>| node[1] == 0 && (20 * 36..200 * 36).contains(&node.len());
    let leaf = built.nodes.values().find(medium).unwrap().clone();
    for (node, at, value, why) in [
        (&leaf, 0, 2, "version 2"),
        (&leaf, 1, 6, "level 6"),
        (&leaf, 1, 1, "bytes for"),
        (&leaf, 2, 3, "algorithm 3"),
        (&leaf, 3, 11, "average chunk length 2048"),
        (&leaf, 3, 40, "average chunk length 0"),
        (&leaf, 4, 1, "limit 256"),
        (&leaf, 5, 1, "bytes for 1 entries"),
        (&leaf, 6, 1, "reserved"),
        (&leaf, HEAD_BYTES + 32, 255, "a chunk of"),
        (&inner, HEAD_BYTES + 32, 255, "bytes in"),
        (&inner, HEAD_BYTES + 40, 255, "chunks below"),
    ] {
        let mut mangled = node.clone();
        mangled[at] = value;
        let error = RecipeNode::from_bytes(&mangled).err().unwrap_or_else(|| panic!("byte {at} {value}"));
        assert!(error.to_string().contains(why), "{error} lacks {why:?}");
        assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported));
    }
    for len in 0..leaf.len() {
        assert!(RecipeNode::from_bytes(&leaf[..len]).is_err());
    }
    let mut goes_on = leaf.clone();
    goes_on[HEAD_BYTES + 15 * 36 + 31] = 0;
    assert!(RecipeNode::from_bytes(&goes_on).unwrap_err().to_string().contains("after entry 16"));
    let childless = [1, 1, 1, 12, 0, 0, 0, 0];
    assert!(RecipeNode::from_bytes(&childless).unwrap_err().to_string().contains("without children"));
}

/// The builder refuses what the profile cannot have made, and more than any recipe may have.
#[test]
fn the_builder_refuses_what_no_chunker_makes() {
    let chunk = |len| ChunkDescriptor { hash: [7; 32], len };
    for lengths in [&[0][..], &[16_385], &[1023, 4096], &[4096, 1, 1]] {
        let mut builder = RecipeBuilder::new(small());
        let pushed = lengths.iter().try_for_each(|len| builder.push(chunk(*len), &mut |_| {}));
        assert_eq!(pushed.unwrap_err().kind(), ErrorKind::Usage, "{lengths:?}");
    }
    let large = Profile::new(Algorithm::Fixed, 4 << 20).unwrap();
    let mut builder = RecipeBuilder::new(large);
    let mut nodes = 0;
    for _ in 0..1 << 20 {
        builder.push(chunk(4 << 20), &mut |_| nodes += 1).unwrap();
    }
    assert_eq!(builder.push(chunk(4 << 20), &mut |_| {}).unwrap_err().kind(), ErrorKind::Unsupported);
    let root = builder.finish(&mut |_| nodes += 1);
    assert_eq!((root.size_bytes(), root.chunks()), (4 << 40, 1 << 20));
    assert!(nodes >= 4096);
}

/// Design 17: a root claims only what the builder can make.
#[test]
fn mangled_roots_are_refused() {
    let root = build(small(), &chunks(small(), 300, 1)).root;
    let encode = |level: u8, size_bytes: u64, chunks: u32| {
        let node = ChildEntry { id: root.node_id(), size_bytes, chunks };
        RecipeRoot { profile: small(), node, level }.to_bytes()
    };
    let size = root.size_bytes();
    assert!(RecipeRoot::from_bytes(&encode(1, size, 300)).is_ok());
    assert!(RecipeRoot::from_bytes(&encode(0, 0, 0)).is_ok());
    for (level, size, chunks) in [
        (6, size, 300),
        (0, size, 300),
        (2, size, 256),
        (1, 16 * 16_384, 16),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (1, 300 * 16_384 + 1, 300),
        (1, 299 * 1024, 300),
        (5, u64::MAX, u32::MAX),
        (5, 1 << 42, (1 << 22) + 1),
    ] {
        let error = RecipeRoot::from_bytes(&encode(level, size, chunks)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{level} {size} {chunks}: {error}");
    }
    assert!(RecipeRoot::from_bytes(&[0xa0]).is_err());
    assert!(cbor::decode::<RecipeRoot>(&encode(6, size, 300), "root").is_err());
    assert_eq!(cbor::decode::<RecipeRoot>(&root.to_bytes(), "root").unwrap(), root);
}

/// What `docs/format/recipe.md` states about sizes.
#[test]
fn nodes_have_the_documented_sizes() {
    let built = build(Profile::default(), &chunks(Profile::default(), 60_000, 8));
    let mut by_level = BTreeMap::<u8, Vec<usize>>::new();
    for node in built.nodes.values() {
        let node = RecipeNode::from_bytes(node).unwrap();
        by_level.entry(node.level()).or_default().push(node.entries().len());
    }
    let leaves = &by_level[&0];
    let mean = leaves.iter().sum::<usize>() as f64 / leaves.len() as f64;
    assert!((70.0..86.0).contains(&mean), "{mean} entries a leaf");
    assert!(leaves.iter().all(|count| *count <= RECIPE_NODE_ENTRIES_MAX));
    assert_eq!(node_bytes_max(1, u32::MAX), RECIPE_NODE_BYTES_MAX);
    assert!(
        !ends_node(15, &[0; 32])
            && ends_node(16, &[0; 32])
            && !ends_node(255, &[1; 32])
            && ends_node(256, &[1; 32])
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// D15, D17: whatever the order of arrival, the limits and what is known, the reader gives the builder's chunks with
    /// their offsets, and asks only for what is not known.
    #[test]
    fn reader_equals_builder(
        count in prop_oneof![0..40usize, 40..5_000usize],
        seed in any::<u64>(),
        nodes in 1..80usize,
        bytes in prop_oneof![Just(0usize), 1_000..50_000usize, Just(usize::MAX / 2)],
        keep in 0..5usize,
    ) {
        let chunks = chunks(small(), count, seed);
        let built = build(small(), &chunks);
        let known: HashSet<RecipeId> =
            built.nodes.keys().filter(|id| keep > 0 && usize::from(id.as_bytes()[0]) % 4 < keep).copied().collect();
        let (out, fetched) = read(&built, ReaderLimits { nodes, bytes }, seed, &known).unwrap();
        assert_reads_as(&built, &chunks, &out);
        prop_assert_eq!(fetched, built.nodes.len() - known.len());
    }

    /// D24: any split of writes gives the same root.
    #[test]
    fn any_split_of_writes_gives_the_same_recipe(
        seed in any::<u64>(),
        len in 0..300_000usize,
        pieces in prop::collection::vec(1..40_000usize, 1..8),
    ) {
        let data = sample::bytes(len, seed);
        let make = |pieces: &[usize]| {
            let mut builder = RecipeBuilder::new(small());
            let mut nodes = Vec::new();
            let mut chunker = small().chunker();
            let (mut rest, mut turn) = (&data[..], 0);
            let mut take = |chunk: &[u8]| {
                builder.push(ChunkDescriptor::of(chunk), &mut |node| nodes.push(node)).unwrap();
            };
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at(pieces[turn % pieces.len()].min(rest.len()));
                chunker.push(piece, &mut take);
                (rest, turn) = (tail, turn + 1);
            }
            chunker.finish(&mut take);
            let root = builder.finish(&mut |node| nodes.push(node));
            (root, nodes)
        };
        prop_assert_eq!(make(&pieces), make(&[len.max(1)]));
    }

    /// Design 17: no bytes make the decoders panic; what decodes encodes to the same.
    #[test]
    fn mangled_bytes_never_panic(
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let built = build(small(), &chunks(small(), 200, 1));
        for node in built.nodes.values().chain([&built.root.to_bytes(), &noise]) {
            let mut mangled = node.clone();
            if !mangled.is_empty() {
                let at = at.index(mangled.len());
                mangled[at] = value;
            }
            for bytes in [&mangled[..], &node[..cut.index(node.len() + 1)]] {
                if let Ok(node) = RecipeNode::from_bytes(bytes) {
                    prop_assert_eq!(node.to_bytes(), bytes);
                }
                let _ = RecipeRoot::from_bytes(bytes);
            }
        }
    }
}
