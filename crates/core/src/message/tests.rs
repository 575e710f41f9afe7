//! What messages may say: golden bytes, limits, and mutations.

use proptest::prelude::*;

use super::*;
use crate::Oid;
use crate::block_mask::{BlockMask, GROUP_BLOCKS};
use crate::limits::{
    CONTROL_FRAME_BYTES_MAX, GROUP_BYTES, PATH_BYTES_MAX, SUMS_RUNS_MAX, SYNC_BASES_MAX, SYNC_PLACES_MAX,
    SYNC_RULE_BYTES_MAX, SYNC_RULES_BYTES_MAX, SYNC_RULES_MAX, SYNC_SUFFIX_BYTES_MAX, SYNC_TIMEOUT_MAX_S,
    TREE_CUTS_MAX, TREE_PULL_BLOCK_RUNS_MAX, TREE_PULL_RESTS_MAX, TREE_PULL_RUNS_MAX,
};

#[test]
fn every_message_is_deterministic_and_round_trips() {
    for (name, message) in samples() {
        let bytes = message.to_bytes();
        assert_eq!(cbor::check(&bytes), Ok(()), "{name}");
        assert!(bytes.len() <= CONTROL_FRAME_BYTES_MAX);
        assert_eq!(Message::from_bytes(&bytes).unwrap(), message, "{name}");
        // Unknown keys are ignored: append one to the map, which is the item's tail.
        for cut in 0..bytes.len() {
            assert!(Message::from_bytes(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
}

/// Golden vectors: a change here is a change of the protocol.
#[test]
fn golden_messages() {
    let mut text = String::new();
    for (name, message) in samples() {
        text += &format!("{name} {}\n", data_encoding::HEXLOWER.encode(&message.to_bytes()));
    }
    let golden = include_str!("../../fixtures/messages.txt");
    assert_eq!(text, golden, "the wire format changed; if that is meant, raise PROTOCOL_VERSION");
}

#[test]
fn fields_beyond_their_limits_are_refused() {
    let long = |len: usize| vec![b'x'; len];
    let bad = [
        Message::Hello(Hello {
            version: 1,
            features: vec!["x".into(); 33],
            required: vec![],
            agent: String::new(),
        }),
        Message::Open(Open {
            handle: 1,
            object: ObjectName::Provisional([0; 32]),
            proof: Some(long(31).into()),
        }),
        Message::Opened(Opened { handle: 1, size_bytes: u64::MAX, name: None }),
        Message::Opened(Opened { handle: 1, size_bytes: 1, name: Some(long(256).into()) }),
        Message::Fault(Fault { handle: None, kind: 1, text: "x".repeat(1025) }),
        Message::ClearGrant(ClearGrant { token: long(15).into() }),
        Message::Copy(Copy {
            role: CopyRole::Send,
            path: long(4097).into(),
            preserve: false,
            fsync: false,
            whole_file: None,
            rate_bytes: None,
            compressed: None,
            or_several: None,
        }),
    ];
    let offer = |object, inline: Option<Vec<u8>>| {
        Message::Offer(Offer {
            object,
            size_bytes: 6,
            name: b"s".to_vec().into(),
            mode: 0o600,
            mtime_s: 0,
            mtime_ns: 0,
            inline: inline.map(Into::into),
        })
    };
    let named = ObjectName::Oid(Oid::of(b"sample"));
    // Design 3: vouched bytes never go under the name that is proven elsewhere.
    let bad = bad.into_iter().chain([
        offer(named, None),
        offer(ObjectName::Provisional([1; 32]), Some(b"sample".to_vec())),
        offer(named, Some(b"samples".to_vec())),
    ]);
    for message in bad {
        let error = Message::from_bytes(&message.to_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{message:?}");
    }
}

/// What a copy may wish beyond itself: each bound holds up to its edge and no further.
#[test]
fn wishes_are_bounded() {
    let is_taken = |wish: SyncWish| {
        let beside = samples().into_iter().find(|(name, _)| *name == "tree-sync-beside").unwrap().1;
        let Message::Tree(tree) = beside else { panic!("no tree") };
        let message = Message::Tree(Tree { sync: Some(Box::new(wish)), ..tree });
        Message::from_bytes(&message.to_bytes()).is_ok()
    };
    let wish = SyncWish::default;
    let bytes = |len: usize| -> minicbor::bytes::ByteVec { vec![b'x'; len].into() };
    let rules = |count: usize, len: usize| SyncWish { rules: Some(vec![bytes(len); count]), ..wish() };
    assert!(is_taken(rules(SYNC_RULES_MAX, 2)) && !is_taken(rules(SYNC_RULES_MAX + 1, 2)));
    assert!(is_taken(rules(1, SYNC_RULE_BYTES_MAX)) && !is_taken(rules(1, SYNC_RULE_BYTES_MAX + 1)));
    let most = SYNC_RULES_BYTES_MAX / SYNC_RULE_BYTES_MAX;
    assert!(is_taken(rules(most, SYNC_RULE_BYTES_MAX)) && !is_taken(rules(most + 1, SYNC_RULE_BYTES_MAX)));
    assert!(!is_taken(rules(1, 1)));
    let near = |boot: usize, count: usize| {
        let places = vec![Place { device: 1, inode: 2 }; count];
        SyncWish { near: Some(Box::new(Near { boot: bytes(boot), places })), ..wish() }
    };
    assert!(is_taken(near(16, SYNC_PLACES_MAX)) && !is_taken(near(16, SYNC_PLACES_MAX + 1)));
    assert!(!is_taken(near(15, 1)) && !is_taken(near(17, 1)));
    let basis = |places: Vec<_>| SyncWish {
        basis: Some(Box::new(Basis { usage: BasisUsage::Copy, places })),
        ..wish()
    };
    assert!(is_taken(basis(vec![bytes(1); SYNC_BASES_MAX])));
    assert!(!is_taken(basis(vec![bytes(1); SYNC_BASES_MAX + 1])) && !is_taken(basis(vec![])));
    assert!(
        is_taken(basis(vec![bytes(PATH_BYTES_MAX)])) && !is_taken(basis(vec![bytes(PATH_BYTES_MAX + 1)]))
    );
    assert!(!is_taken(basis(vec![bytes(0)])) && !is_taken(basis(vec![b"a\0".to_vec().into()])));
    let backup = |directory: Option<&[u8]>, suffix: &[u8]| {
        let directory = directory.map(|directory| directory.to_vec().into());
        SyncWish { backup: Some(Box::new(Backup { directory, suffix: suffix.to_vec().into() })), ..wish() }
    };
    assert!(is_taken(backup(None, b"~")) && is_taken(backup(Some(b"old"), b"")));
    assert!(!is_taken(backup(None, b"")) && !is_taken(backup(Some(b""), b"~")));
    assert!(!is_taken(backup(None, b"/")) && !is_taken(backup(Some(b"old"), b"\0")));
    assert!(is_taken(backup(None, &[b'x'; SYNC_SUFFIX_BYTES_MAX])));
    assert!(!is_taken(backup(None, &[b'x'; SYNC_SUFFIX_BYTES_MAX + 1])));
    let timeout = |seconds| SyncWish { timeout_s: Some(seconds), ..wish() };
    assert!(is_taken(timeout(SYNC_TIMEOUT_MAX_S)) && !is_taken(timeout(SYNC_TIMEOUT_MAX_S + 1)));
    let flags = |flags| SyncWish { flags, ..wish() };
    assert!(is_taken(flags(sync_flag::ALL)) && !is_taken(flags(sync_flag::ALL + 1)));
    assert_eq!(Part { start: 3, bytes: 4 }.end(), 7);
}

/// P6, Y24: as many parts of changed files as one message may ask for can be asked for.
#[test]
fn the_largest_pull_is_heard() {
    let part = Part { start: 1 << 40, bytes: 1 << 33 };
    let known = Some([7; 32].into());
    let run = Run { first: 1 << 40, count: 1, known, part: Some(part), ..Run::default() };
    let cut = Run { cut: Some(1 << 14), ..run.clone() };
    // Of a question for sums in each run: few runs have many blocks to tell of, as many as there may be.
    let sums = |blocks: usize| {
        let runs = vec![BlockRun { start: 1 << 40, blocks: 1 }; blocks];
        let sums = Some(Box::new(BlockSums { block_bytes: 64, sum_bytes: 2, runs, is_code: Some(true) }));
        Run { first: 1 << 40, count: 1, sums, ..Run::default() }
    };
    let mut have = BlockMask::default();
    have.insert(GROUP_BLOCKS - 1);
    let part = Some(Part { start: 1 << 40, bytes: GROUP_BYTES });
    let rest = Run { first: 1 << 40, count: 1, part, have: Some(Box::new(have)), ..Run::default() };
    let code = Run { code: Some(Box::new(have)), ..rest.clone() };
    let unmarked = Run { have: None, ..rest.clone() };
    let beside =
        |some: Vec<Run>, run: &Run, max: usize| [&some[..], &vec![run.clone(); max - some.len()]].concat();
    for runs in [
        vec![cut.clone(); TREE_PULL_RUNS_MAX],
        beside(vec![sums(TREE_PULL_BLOCK_RUNS_MAX / 2); 2], &cut, TREE_CUTS_MAX),
        beside(vec![sums(TREE_PULL_BLOCK_RUNS_MAX / 64); 64], &cut, TREE_CUTS_MAX),
        vec![sums(TREE_PULL_BLOCK_RUNS_MAX / TREE_CUTS_MAX); TREE_CUTS_MAX],
        beside(vec![rest.clone(); TREE_PULL_RESTS_MAX], &unmarked, TREE_PULL_RUNS_MAX),
        beside(vec![code; TREE_PULL_RESTS_MAX / 2], &unmarked, TREE_PULL_RUNS_MAX),
    ] {
        let (lane, lost) = (Some(u32::MAX), Some(u32::MAX));
        let pull = Pull {
            request: u32::MAX,
            runs,
            settled: u64::MAX,
            batches: u64::MAX,
            lane,
            lost,
            pack: Some(true),
            brief: Some(true),
        };
        let bytes = Message::Pull(pull.clone()).to_bytes();
        assert!(bytes.len() <= CONTROL_FRAME_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(Message::from_bytes(&bytes).unwrap(), Message::Pull(pull));
    }
}

/// Design 17: a question for sums in a pull is bounded as one for an object is.
#[test]
fn questions_for_sums_of_files_are_bounded() {
    let is_taken = |block_bytes, sum_bytes, runs: Vec<BlockRun>| {
        let sums = Some(Box::new(BlockSums { block_bytes, sum_bytes, runs, is_code: None }));
        let runs = vec![Run { first: 1, count: 1, sums, ..Run::default() }];
        let pull = Pull { request: 1, runs, batches: 32, ..Pull::default() };
        Message::from_bytes(&Message::Pull(pull).to_bytes()).is_ok()
    };
    let run = |blocks| BlockRun { start: 0, blocks };
    assert!(is_taken(64, 2, vec![run(1 << 14)]) && !is_taken(64, 2, vec![run((1 << 14) + 1)]));
    assert!(is_taken(65_536, 2, vec![run(256)]) && !is_taken(65_536, 2, vec![run(257)]));
    assert!(
        is_taken(64, 2, vec![run(1); SUMS_RUNS_MAX]) && !is_taken(64, 2, vec![run(1); SUMS_RUNS_MAX + 1])
    );
    assert!(!is_taken(64, 2, vec![]) && !is_taken(64, 2, vec![run(0)]) && !is_taken(64, 0, vec![run(1)]));
    assert!(
        !is_taken(64, 9, vec![run(1)]) && !is_taken(32, 2, vec![run(1)]) && !is_taken(96, 2, vec![run(1)])
    );
}

proptest! {
    /// No bytes from a peer panic the decoder; what decodes encodes to what decodes to the same.
    #[test]
    fn mutated_messages_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let samples = samples();
        let mut bytes = samples[which.index(samples.len())].1.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(message) = Message::from_bytes(&bytes) {
            prop_assert_eq!(Message::from_bytes(&message.to_bytes()).unwrap(), message);
        }
    }
}

/// Flags of a copy are on the wire: each has its own bit, and they are all that are taken.
#[test]
fn each_flag_has_its_bit() {
    use super::sync_flag::*;
    let flags = [
        LINKS,
        DEVICES,
        SPECIALS,
        USERS,
        GROUPS,
        ACLS,
        ATTRIBUTES,
        CHECKSUM,
        SIZE_ONLY,
        UPDATE,
        EXISTING,
        IGNORE_EXISTING,
        DELETE,
        DELETE_EXCLUDED,
        ITEMIZE,
        NO_COMPARING,
        INTO_DIRECTORY,
        CHOSEN,
        ROOTS_STAY,
        OMIT_DIRECTORY_TIMES,
        OMIT_LINK_TIMES,
        MAKE_PATH,
        PRUNE_EMPTY,
        PARTIAL,
        DIRECTORIES,
        REMOVE_SOURCES,
        ATOMIC,
        IN_PLACE,
    ];
    for (bit, flag) in flags.into_iter().enumerate() {
        assert_eq!(flag, 1 << bit, "{bit}");
    }
    assert_eq!(flags.into_iter().sum::<u64>(), ALL);
}

/// What an object is called in errors tells it from others, and a copy that has no name yet from an object.
#[test]
fn names_of_objects_are_told() {
    let oid = Oid::of(b"sample");
    assert_eq!(ObjectName::Oid(oid).to_string(), oid.to_string());
    assert_eq!(ObjectName::Provisional([0xab; 32]).to_string(), format!("provisional:{}", "ab".repeat(32)));
}

/// S4: of sources that follow there is one at least, no more than a message may have, and each with a path or name that can be one.
#[test]
fn more_sources_are_bounded() {
    use crate::limits::{NAME_BYTES_MAX, TREE_SOURCES_IN_MESSAGE_MAX};
    let many = |count, bytes| vec![minicbor::bytes::ByteVec::from(vec![b'x'; bytes]); count];
    let most = TREE_SOURCES_IN_MESSAGE_MAX;
    for (paths, names, is_taken) in [
        (many(1, 1), many(0, 0), true),
        (many(0, 0), many(1, 1), true),
        (many(most, 1), many(1, 1), true),
        (many(1, 1), many(most, 1), true),
        (many(1, PATH_BYTES_MAX), many(1, NAME_BYTES_MAX), true),
        (many(0, 0), many(0, 0), false),
        (many(most + 1, 1), many(0, 0), false),
        (many(0, 0), many(most + 1, 1), false),
        (many(1, PATH_BYTES_MAX + 1), many(0, 0), false),
        (many(0, 0), many(1, NAME_BYTES_MAX + 1), false),
    ] {
        let lengths = [&paths, &names].map(|list| (list.len(), list.first().map(|first| first.len())));
        let message = Message::MoreSources(MoreSources { paths, names, is_last: true });
        assert_eq!(Message::from_bytes(&message.to_bytes()).is_ok(), is_taken, "{lengths:?}");
    }
}

/// S4: of what would become of entries no more is told at once than a message may have, with paths, letters and links that can be such.
#[test]
fn what_is_planned_is_bounded() {
    use crate::limits::{TREE_BATCH_BYTES_MAX, TREE_NAMED_MAX};
    let bytes = |count| minicbor::bytes::ByteVec::from(vec![b'x'; count]);
    let item = |path, letters: Option<usize>, link: Option<usize>| PlannedItem {
        action: 0,
        path: bytes(path),
        changes: None,
        letters: letters.map(bytes),
        link: link.map(bytes),
    };
    let most = TREE_BATCH_BYTES_MAX;
    for (count, item, is_taken) in [
        (1, item(most, Some(11), Some(most)), true),
        (TREE_NAMED_MAX, item(1, None, None), true),
        (TREE_NAMED_MAX + 1, item(1, None, None), false),
        (1, item(most + 1, None, None), false),
        (1, item(1, Some(10), None), false),
        (1, item(1, Some(12), None), false),
        (1, item(1, None, Some(most + 1)), false),
    ] {
        let told = (count, item.path.len(), item.letters.as_ref().map(|letters| letters.len()));
        let message = Message::Planned(Planned { items: vec![item; count] });
        let read = message.to_bytes();
        assert_eq!(Message::from_bytes(&read).is_ok(), is_taken, "{told:?}");
    }
}
