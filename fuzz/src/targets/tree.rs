//! Targets `tree-entry`, `tree-node` and `tree-records`: what a tree copy and a stored tree consist of, from a stranger.

use dray_core::ErrorKind;
use dray_core::limits::{TREE_ENTRY_BYTES_MAX, TREE_NODE_BYTES_MAX, TREE_NODE_ENTRIES_MAX};
use dray_core::message::Fault;
use dray_core::tree::{
    ChunkHint, DirectoryBuilder, Entry, Finished, Kind, Metadata, Name, NodeEntries, Record, TreeNode, Xattr,
    encode_chunks, take_record,
};

use crate::{Seed, novelty};

/// What decodes is within the limits, has a name that stays in its directory, and encodes to the same entry.
pub fn entry_target(data: &[u8]) {
    let entry = match Entry::from_bytes(data) {
        Ok(entry) => entry,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{error}");
            return super::assert_clear(&error);
        }
    };
    assert!(data.len() <= TREE_ENTRY_BYTES_MAX);
    assert_eq!(Entry::from_bytes(&entry.to_bytes()).ok(), Some(entry.clone()));
    if let Some(name) = &entry.name {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= 255 && bytes != b"." && bytes != b"..");
        assert!(!bytes.contains(&b'/') && !bytes.contains(&0));
    }
    assert!(entry.metadata.mode <= 0o7777 && entry.metadata.mtime_ns < 1_000_000_000);
    novelty::note((std::mem::discriminant(&entry.kind), entry.name.is_some(), entry.metadata.xattrs.len()));
}

/// A node that decodes is ordered, bounded, and decodes again from its own encoding.
pub fn node_target(data: &[u8]) {
    let node = match TreeNode::from_bytes(data) {
        Ok(node) => node,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{error}");
            return super::assert_clear(&error);
        }
    };
    assert!(data.len() <= TREE_NODE_BYTES_MAX);
    assert_eq!(TreeNode::from_bytes(&node.to_bytes()).ok(), Some(node.clone()));
    let names: Vec<&Name> = match node.entries() {
        NodeEntries::Halves(halves) => halves.iter().map(|half| &half.0).collect(),
        NodeEntries::Children(children) => children.iter().map(|child| &child.last).collect(),
    };
    assert!(names.len() <= TREE_NODE_ENTRIES_MAX && names.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(node.count() >= names.len() as u64);
    novelty::note((node.level(), node.half() as u8, names.len().next_power_of_two()));
}

/// What a receiver has told its hash of.
const KNOWN: [u8; 32] = [7; 32];

/// A frame's records come to an end, and each that is taken is made of the bytes it was taken from.
pub fn records_target(data: &[u8]) {
    let mut rest = data;
    let mut count = 0;
    while !rest.is_empty() {
        let before = rest.len();
        match take_record(&mut rest, Some(&KNOWN)) {
            Ok(record) => {
                let taken = before - rest.len();
                let mut again = Vec::new();
                match data[data.len() - before] {
                    9 => record.push_briefly(&KNOWN, &mut again),
                    _ => record.push(&mut again),
                }
                assert!(taken > 0);
                // A fault may carry keys that nobody knows here.
                if !matches!(record, Record::Failed(_)) {
                    assert_eq!(again, &data[data.len() - before..data.len() - rest.len()]);
                }
                count += 1;
                novelty::note((std::mem::discriminant(&record), count.min(8)));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Protocol);
                return super::assert_clear(&error);
            }
        }
    }
}

fn samples() -> Vec<Entry> {
    let entry = |name: &str, kind| {
        let metadata =
            Metadata { mode: 0o644, mtime_s: 1, mtime_ns: 2, uid: 3, gid: 4, ..Metadata::default() };
        Entry { name: Name::new(name.as_bytes()).ok(), kind, metadata }
    };
    let mut attributed = entry("xattr", Kind::File { size_bytes: 9, oid: None });
    attributed.metadata.xattrs = vec![Xattr { name: b"user.a".to_vec(), value: b"b".to_vec() }];
    attributed.metadata.link_group = Some([5; 16]);
    vec![
        entry("device", Kind::BlockDevice { major: 8, minor: 1 }),
        entry("directory", Kind::Directory { entries: None }),
        entry("fifo", Kind::Fifo),
        entry("link", Kind::Symlink { target: b"../x".to_vec() }),
        attributed,
    ]
}

/// One entry of each sort.
pub fn entry_seeds() -> Vec<Seed> {
    samples().iter().enumerate().map(|(index, entry)| (format!("entry-{index}"), entry.to_bytes())).collect()
}

/// Leaves and inner nodes of a directory.
pub fn node_seeds() -> Vec<Seed> {
    let mut nodes = Vec::new();
    let mut builder = DirectoryBuilder::new();
    let mut push = |entry: &Entry| {
        let pushed = builder.push(entry, &mut |node| nodes.push(node));
        debug_assert!(pushed.is_ok());
    };
    for number in 0..200 {
        push(&Entry { name: Name::new(format!("a{number:03}").as_bytes()).ok(), ..samples()[2].clone() });
    }
    samples().iter().for_each(push);
    builder.finish(&mut |node| nodes.push(node));
    nodes
        .into_iter()
        .filter(|node| node.bytes.len() < 3000)
        .enumerate()
        .map(|(index, node)| (format!("node-{index}"), node.bytes))
        .collect()
}

/// One record of each kind, and all of them in one frame.
pub fn records_seeds() -> Vec<Seed> {
    let finished = Finished { hash: [7; 32], size_bytes: 6, mtime_s: -1, mtime_ns: 5 };
    let fault = Fault { handle: None, kind: 5, text: "changed".into() };
    let chunks = encode_chunks(&[ChunkHint::of(b"one"), ChunkHint::of(b"other")]);
    let records = [
        Record::Bytes(b"sample"),
        Record::Hole(1 << 20),
        Record::Again,
        Record::Same(finished),
        Record::Failed(fault),
        Record::Done(finished),
        Record::Chunks(&chunks),
        Record::Sums(b"sums"),
    ];
    let mut all = Vec::new();
    let mut seeds: Vec<Seed> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let mut bytes = Vec::new();
        record.push(&mut bytes);
        all.extend_from_slice(&bytes);
        seeds.push((format!("record-{index}"), bytes));
    }
    seeds.push(("all".into(), all));
    seeds
}
