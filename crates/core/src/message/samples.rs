//! One of each message, for golden vectors, the CDDL check and fuzz corpora.

use super::*;
use crate::block_mask::BlockMask;
use crate::chunker::Profile;
use crate::recipe::{ChunkDescriptor, RecipeBuilder, RecipeRoot};
use crate::rights::Secret;
use crate::{NodeId, Oid};

/// A recipe of one chunk, and the bytes of its only node.
fn sample_recipe() -> (RecipeRoot, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut builder = RecipeBuilder::new(Profile::default());
    let pushed = builder.push(ChunkDescriptor::of(b"sample"), &mut |_| {});
    debug_assert!(pushed.is_ok());
    let root = builder.finish(&mut |built| bytes = built.bytes);
    (root, bytes)
}

/// A mask of these blocks.
fn mask(blocks: &[usize]) -> BlockMask {
    let mut mask = BlockMask::default();
    blocks.iter().for_each(|block| mask.insert(*block));
    mask
}

/// A wish for a tree that asks for nothing in particular.
fn wish() -> Tree {
    Tree {
        role: CopyRole::Send,
        paths: vec![],
        names: vec![],
        flags: 0,
        excludes: None,
        modes: None,
        owner: None,
        rate_bytes: None,
        sync: None,
        origin: None,
        digests: None,
    }
}

/// One of each message, for golden vectors, the CDDL check and fuzz corpora.
pub fn samples() -> Vec<(&'static str, Message)> {
    let oid = Oid::of(b"sample");
    let provisional = ObjectName::Provisional([0x11; 32]);
    vec![
        (
            "hello",
            Message::Hello(Hello {
                version: PROTOCOL_VERSION,
                features: vec![feature::CLEAR_DATA.into()],
                required: vec![],
                agent: "dray/0.1.0".into(),
            }),
        ),
        (
            "open",
            Message::Open(Open {
                handle: 1,
                object: ObjectName::Oid(oid),
                proof: Some(vec![0x22; 32].into()),
            }),
        ),
        ("open-public", Message::Open(Open { handle: 1, object: ObjectName::Oid(oid), proof: None })),
        (
            "opened",
            Message::Opened(Opened { handle: 1, size_bytes: 6, name: Some(b"a b\n\xff".to_vec().into()) }),
        ),
        (
            "fetch",
            Message::Fetch(Fetch {
                request: 7,
                handle: 1,
                start_group: 16,
                groups: 16,
                known_depth: 3,
                recheck: false,
            }),
        ),
        ("cancel", Message::Cancel(Cancel { request: 7 })),
        ("seal", Message::Seal(Seal { handle: 1, root: oid })),
        ("sealed", Message::Sealed(Sealed { handle: 1, root: oid })),
        ("fault", Message::Fault(Fault { handle: Some(1), kind: 9, text: "refused".into() })),
        ("clear-ask", Message::ClearAsk(ClearAsk {})),
        ("clear-grant", Message::ClearGrant(ClearGrant { token: vec![0x33; 16].into() })),
        (
            "copy",
            Message::Copy(Copy {
                role: CopyRole::Receive,
                path: b"dir/na me".to_vec().into(),
                preserve: true,
                fsync: false,
                whole_file: None,
                rate_bytes: None,
                compressed: None,
                or_several: None,
            }),
        ),
        (
            "offer",
            Message::Offer(Offer {
                object: provisional,
                size_bytes: 1 << 33,
                name: b"big.img".to_vec().into(),
                mode: 0o644,
                mtime_s: 1_795_000_000,
                mtime_ns: 5,
                inline: None,
            }),
        ),
        (
            "offer-inline",
            Message::Offer(Offer {
                object: ObjectName::Oid(oid),
                size_bytes: 6,
                name: b"s".to_vec().into(),
                mode: 0o600,
                mtime_s: -1,
                mtime_ns: 0,
                inline: Some(b"sample".to_vec().into()),
            }),
        ),
        (
            "direct",
            Message::Direct(Direct {
                node: NodeId::from_bytes([0x44; 32]),
                addresses: vec!["192.0.2.1:4711".into(), "[2001:db8::1]:4711".into()],
                secret: Secret::from_bytes([0x55; 16]),
            }),
        ),
        (
            "progress",
            Message::Progress(Progress { done_bytes: 1 << 20, resumed_bytes: 0, direct_bytes: 1 << 19 }),
        ),
        (
            "compare",
            Message::Compare(Compare {
                handle: 1,
                subtrees: vec![
                    ComparedSubtree { start_group: 0, groups: 40 },
                    ComparedSubtree { start_group: 32, groups: 8 },
                ],
            }),
        ),
        ("compared", Message::Compared(Compared { handle: 1, pairs: vec![0x66; 128].into() })),
        ("delivered", Message::Delivered(Delivered { oid, path: b"/tmp/big.img".to_vec().into() })),
        ("describe", Message::Describe(Describe { handle: 1 })),
        ("described", Message::Described(Described { handle: 1, root: Some(sample_recipe().0) })),
        ("described-none", Message::Described(Described { handle: 1, root: None })),
        ("nodes", Message::Nodes(Nodes { handle: 1, ids: vec![[0x77; 32].into(), [0x78; 32].into()] })),
        (
            "node",
            Message::Node(Node {
                handle: 1,
                id: (*sample_recipe().0.node_id().as_bytes()).into(),
                bytes: sample_recipe().1.into(),
            }),
        ),
        ("pack", Message::Pack(Pack { may: true })),
        (
            "sums",
            Message::Sums(Sums {
                handle: 1,
                number: 3,
                block_bytes: 1024,
                sum_bytes: 4,
                runs: vec![BlockRun { start: 0, blocks: 2 }, BlockRun { start: 70_000, blocks: 200 }],
            }),
        ),
        ("summed", Message::Summed(Summed { handle: 1, number: 3, sums: vec![0x79; 8].into() })),
        (
            "fetch-rest",
            Message::FetchRest(FetchRest {
                request: 8,
                handle: 1,
                group: 17,
                known_depth: 4,
                have: {
                    let mut have = BlockMask::default();
                    [0, 9].into_iter().for_each(|block| have.insert(block));
                    have
                },
            }),
        ),
        (
            "tree",
            Message::Tree(Tree {
                role: CopyRole::Receive,
                paths: vec![b"dir".to_vec().into()],
                names: vec![b"a".to_vec().into(), vec![].into()],
                flags: tree_flag::RECURSIVE | tree_flag::TIMES,
                excludes: Some(vec![b"*.o".to_vec().into()]),
                modes: Some(b"D755,F644".to_vec().into()),
                owner: Some(b":users".to_vec().into()),
                rate_bytes: Some(1 << 20),
                ..wish()
            }),
        ),
        (
            "tree-sync",
            Message::Tree(Tree {
                role: CopyRole::Send,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![],
                flags: tree_flag::RECURSIVE | tree_flag::TIMES,
                sync: Some(Box::new(SyncWish {
                    flags: sync_flag::LINKS | sync_flag::DELETE,
                    rules: Some(vec![b"+*/".to_vec().into(), b"-*.o".to_vec().into()]),
                    max_delete: Some(100),
                    ..SyncWish::default()
                })),
                ..wish()
            }),
        ),
        (
            "tree-near",
            Message::Tree(Tree {
                role: CopyRole::Receive,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![vec![].into()],
                flags: tree_flag::RECURSIVE,
                sync: Some(Box::new(SyncWish {
                    flags: sync_flag::DELETE,
                    rules: None,
                    max_delete: None,
                    near: Some(Box::new(Near {
                        boot: vec![0x99; 16].into(),
                        places: vec![Place { device: 0x801, inode: 2 }],
                    })),
                    ..SyncWish::default()
                })),
                ..wish()
            }),
        ),
        (
            "tree-again",
            Message::Tree(Tree {
                role: CopyRole::Receive,
                paths: vec![b"new".to_vec().into()],
                names: vec![b"dir".to_vec().into()],
                flags: tree_flag::RECURSIVE,
                origin: Some(Box::new([0x77; 32].into())),
                ..wish()
            }),
        ),
        ("landed", Message::Landed(Landed { place: 3 })),
        (
            "tree-digests",
            Message::Tree(Tree {
                role: CopyRole::Send,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![vec![].into()],
                flags: tree_flag::RECURSIVE | tree_flag::TIMES,
                digests: Some(true),
                ..wish()
            }),
        ),
        ("digests-wanted", Message::DigestsWanted(DigestsWanted { are_wanted: true })),
        ("digests", Message::Digests(Digests { digests: vec![0xaa; 32].into(), owner: None, entries: 200 })),
        (
            "digests-owner",
            Message::Digests(Digests {
                digests: vec![0xbb; 16].into(),
                owner: Some(SoleOwner {
                    uid: 1000,
                    gid: 100,
                    user: Some(b"me".to_vec().into()),
                    group: None,
                }),
                entries: 200,
            }),
        ),
        ("digests-same", Message::DigestsSame(DigestsSame { same: vec![0b10].into() })),
        (
            "tree-sync-rules",
            Message::Tree(Tree {
                role: CopyRole::Send,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![],
                sync: Some(Box::new(SyncWish {
                    flags: sync_flag::CHOSEN,
                    rules: Some(vec![b"=-r *~".to_vec().into(), b":g .gitignore".to_vec().into()]),
                    max_delete: None,
                    ..SyncWish::default()
                })),
                ..wish()
            }),
        ),
        (
            "tree-sync-beside",
            Message::Tree(Tree {
                role: CopyRole::Receive,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![vec![].into()],
                sync: Some(Box::new(SyncWish {
                    backup: Some(Box::new(Backup {
                        directory: Some(b"../kept".to_vec().into()),
                        suffix: b"~".to_vec().into(),
                    })),
                    basis: Some(Box::new(Basis {
                        usage: BasisUsage::Link,
                        places: vec![b"../yesterday".to_vec().into()],
                    })),
                    flags: sync_flag::OMIT_DIRECTORY_TIMES | sync_flag::PRUNE_EMPTY,
                    max_size_bytes: Some(1 << 30),
                    min_size_bytes: Some(1),
                    ..SyncWish::default()
                })),
                ..wish()
            }),
        ),
        (
            "tree-sync-fake",
            Message::Tree(Tree {
                role: CopyRole::Send,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![vec![].into()],
                sync: Some(Box::new(SyncWish { fake: Some(FakeWish::Users), ..SyncWish::default() })),
                ..wish()
            }),
        ),
        (
            "tree-sync-last",
            Message::Tree(Tree {
                role: CopyRole::Send,
                paths: vec![b"dir/".to_vec().into()],
                names: vec![vec![].into()],
                sync: Some(Box::new(SyncWish {
                    flags: sync_flag::DIRECTORIES | sync_flag::REMOVE_SOURCES,
                    timeout_s: Some(300),
                    ..SyncWish::default()
                })),
                ..wish()
            }),
        ),
        (
            "planned",
            Message::Planned(Planned {
                items: vec![PlannedItem {
                    action: 1,
                    path: b"a/b".to_vec().into(),
                    changes: None,
                    letters: None,
                    link: None,
                }],
            }),
        ),
        (
            "planned-letters",
            Message::Planned(Planned {
                items: vec![
                    PlannedItem {
                        action: 0,
                        path: b"a/link".to_vec().into(),
                        changes: None,
                        letters: Some(b"cL+++++++++".to_vec().into()),
                        link: Some(b"../b".to_vec().into()),
                    },
                    PlannedItem {
                        action: 4,
                        path: b"a/old/".to_vec().into(),
                        changes: None,
                        letters: None,
                        link: None,
                    },
                ],
            }),
        ),
        (
            "planned-change",
            Message::Planned(Planned {
                items: vec![PlannedItem {
                    action: 3,
                    path: b"a/c".to_vec().into(),
                    changes: Some(5),
                    letters: None,
                    link: None,
                }],
            }),
        ),
        (
            "sources",
            Message::Sources(Sources {
                found: vec![FoundSource { path: 0, name: b"a.d".to_vec().into() }],
                is_last: true,
            }),
        ),
        (
            "more-sources",
            Message::MoreSources(MoreSources {
                paths: vec![b"b".to_vec().into()],
                names: vec![b"b".to_vec().into()],
                is_last: true,
            }),
        ),
        (
            "entries",
            Message::Entries(Entries {
                items: vec![vec![0xf6].into(), vec![].into()],
                owners: Some(vec![Owner { is_group: true, id: 100, name: b"users".to_vec().into() }]),
                is_last: true,
                listed: None,
            }),
        ),
        (
            "entries-listed",
            Message::Entries(Entries {
                items: vec![vec![0xf6].into()],
                owners: None,
                is_last: true,
                listed: Some(Listed { unlisted: vec![0], is_complete: true }),
            }),
        ),
        (
            "pull",
            Message::Pull(Pull {
                request: 3,
                runs: vec![
                    Run { first: 7, count: 40, ..Run::default() },
                    Run { first: 50, count: 1, known: Some([0x88; 32].into()), ..Run::default() },
                ],
                settled: 7,
                batches: 9,
                lane: None,
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-brief",
            Message::Pull(Pull {
                request: 3,
                runs: vec![Run { first: 50, count: 1, known: Some([0x88; 32].into()), ..Run::default() }],
                settled: 7,
                batches: 9,
                lane: None,
                lost: None,
                pack: None,
                brief: Some(true),
            }),
        ),
        (
            "pull-lane",
            Message::Pull(Pull {
                request: 4,
                runs: vec![Run {
                    first: 51,
                    count: 1,
                    part: Some(Part { start: 1 << 24, bytes: 9 }),
                    ..Run::default()
                }],
                settled: 50,
                batches: 10,
                lane: Some(2),
                lost: Some(1),
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-pack",
            Message::Pull(Pull {
                request: 0,
                runs: Vec::new(),
                settled: 50,
                batches: 10,
                lane: Some(2),
                lost: None,
                pack: Some(true),
                brief: None,
            }),
        ),
        (
            "pull-cut",
            Message::Pull(Pull {
                request: 5,
                runs: vec![Run {
                    first: 52,
                    count: 1,
                    known: Some([0x99; 32].into()),
                    part: Some(Part { start: 0, bytes: 1 << 24 }),
                    cut: Some(1 << 17),
                    ..Run::default()
                }],
                settled: 52,
                batches: 10,
                lane: None,
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-sums",
            Message::Pull(Pull {
                request: 6,
                runs: vec![Run {
                    first: 53,
                    count: 1,
                    sums: Some(Box::new(BlockSums {
                        block_bytes: 1024,
                        sum_bytes: 6,
                        runs: vec![BlockRun { start: 0, blocks: 2 }, BlockRun { start: 70_000, blocks: 200 }],
                        is_code: None,
                    })),
                    ..Run::default()
                }],
                settled: 52,
                batches: 10,
                lane: None,
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-masked",
            Message::Pull(Pull {
                request: 7,
                runs: vec![Run {
                    first: 53,
                    count: 1,
                    part: Some(Part { start: 1 << 16, bytes: 1 << 16 }),
                    have: Some(Box::new(mask(&[0, 1, 9, 1023]))),
                    ..Run::default()
                }],
                settled: 52,
                batches: 10,
                lane: Some(2),
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-code",
            Message::Pull(Pull {
                request: 8,
                runs: vec![Run {
                    first: 53,
                    count: 1,
                    part: Some(Part { start: 1 << 16, bytes: 1 << 16 }),
                    have: Some(Box::new(mask(&[0, 1]))),
                    code: Some(Box::new(mask(&[9, 1023]))),
                    ..Run::default()
                }],
                settled: 52,
                batches: 10,
                lane: Some(2),
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "pull-code-sums",
            Message::Pull(Pull {
                request: 9,
                runs: vec![Run {
                    first: 53,
                    count: 1,
                    sums: Some(Box::new(BlockSums {
                        block_bytes: 64,
                        sum_bytes: 2,
                        runs: vec![BlockRun { start: 7, blocks: 8 }],
                        is_code: Some(true),
                    })),
                    ..Run::default()
                }],
                settled: 52,
                batches: 10,
                lane: None,
                lost: None,
                pack: None,
                brief: None,
            }),
        ),
        (
            "in-place",
            Message::InPlace(InPlace {
                runs: vec![InPlaceRun { first: 3, count: 1 }, InPlaceRun { first: 5, count: 40 }],
                settled: 44,
                is_last: true,
            }),
        ),
        ("removed", Message::Removed(Removed { count: 41, is_last: true })),
        (
            "entry-failed",
            Message::EntryFailed(EntryFailed {
                path: b"a/\xff".to_vec().into(),
                kind: 9,
                text: "no".into(),
                unnamed: None,
                left_out: None,
            }),
        ),
        (
            "tree-done",
            Message::TreeDone(TreeDone { entries: 60, files: 50, unchanged: 9, bytes: 1 << 20, failed: 1 }),
        ),
    ]
}
