//! Golden bytes, hostile entries, and what an edit costs.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::limits::{
    NAME_BYTES_MAX, TREE_DEPTH_MAX, TREE_NODE_ENTRIES_MAX, TREE_XATTRS_BYTES_MAX, TREE_XATTRS_MAX,
};
use crate::{ErrorKind, Oid, cbor};

fn name(text: &str) -> Option<Name> {
    Some(Name::new(text.as_bytes()).unwrap())
}

fn file(text: &str) -> Entry {
    let kind = Kind::File { size_bytes: 6, oid: Some(Oid::of(b"sample")) };
    let metadata = Metadata {
        mode: 0o644,
        mtime_s: 1_795_000_000,
        mtime_ns: 5,
        uid: 1000,
        gid: 100,
        ..Metadata::default()
    };
    Entry { name: name(text), kind, metadata }
}

fn directory(text: &str) -> Entry {
    Entry { kind: Kind::Directory { entries: None }, ..file(text) }
}

/// One entry of each kind, and a directory of all of them.
fn samples() -> Vec<(&'static str, Entry)> {
    let mut linked = file("linked");
    linked.metadata.link_group = Some([0x11; 16]);
    let mut attributed = file("attributed");
    attributed.metadata.xattrs = vec![
        Xattr { name: b"system.posix_acl_access".to_vec(), value: vec![2, 0, 0, 0] },
        Xattr { name: b"user.note".to_vec(), value: b"x\0y".to_vec() },
    ];
    let stored = DirectoryContent {
        content: TreeId::from_bytes([0x22; 32]),
        metadata: TreeId::from_bytes([0x33; 32]),
        entries: 7,
    };
    let of = |text: &str, kind| Entry { kind, ..file(text) };
    let mut old = of("streamed", Kind::File { size_bytes: 1 << 40, oid: None });
    (old.metadata.mtime_s, old.metadata.mode) = (-1, 0o4755);
    vec![
        ("attributed", attributed),
        ("block", of("block", Kind::BlockDevice { major: 8, minor: 1 })),
        ("character", of("character", Kind::CharacterDevice { major: 1, minor: 3 })),
        ("directory", directory("directory")),
        ("fifo", of("fifo", Kind::Fifo)),
        ("file", file("file \u{ff}")),
        ("linked", linked),
        ("root", Entry { name: None, ..directory("x") }),
        ("socket", of("socket", Kind::Socket)),
        ("stored", of("stored", Kind::Directory { entries: Some(stored) })),
        ("streamed", old),
        ("symlink", of("symlink", Kind::Symlink { target: b"../\xff".to_vec() })),
    ]
}

fn nodes_of(entries: &[Entry]) -> (DirectoryRoot, Vec<BuiltTreeNode>) {
    let mut nodes = Vec::new();
    let mut builder = DirectoryBuilder::new();
    for entry in entries {
        builder.push(entry, &mut |node| nodes.push(node)).unwrap();
    }
    (builder.finish(&mut |node| nodes.push(node)), nodes)
}

fn many(count: usize) -> Vec<Entry> {
    (0..count).map(|number| file(&format!("entry {number:07}"))).collect()
}

/// Y1: the format is final. A change of these bytes is a new version.
#[test]
fn golden_entries_and_nodes() {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    let mut text = String::new();
    for (name, entry) in samples() {
        text += &format!("entry {name} {}\n", hex(&entry.to_bytes()));
    }
    let listed: Vec<Entry> = {
        let mut listed: Vec<Entry> =
            samples().into_iter().map(|(_, entry)| entry).filter(|entry| entry.name.is_some()).collect();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed
    };
    for (title, entries) in [("empty", Vec::new()), ("samples", listed), ("thousand", many(1000))] {
        let (root, nodes) = nodes_of(&entries);
        text += &format!("directory {title} {} {} {}\n", root.content, root.metadata, root.entries);
        let shown = if entries.len() < 100 { nodes.len() } else { 1 };
        for node in nodes.iter().take(shown) {
            text += &format!("node {} {}\n", node.id, hex(&node.bytes));
        }
    }
    let golden = include_str!("../../fixtures/trees.txt");
    assert_eq!(text, golden, "the format of trees changed; if that is meant, it has a new version");
}

/// Entries and nodes round-trip; what is cut is refused.
#[test]
fn entries_and_nodes_round_trip() {
    for (name, entry) in samples() {
        let bytes = entry.to_bytes();
        assert_eq!(Entry::from_bytes(&bytes).unwrap(), entry, "{name}");
        for cut in 0..bytes.len() {
            assert!(Entry::from_bytes(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
    let (root, nodes) = nodes_of(&many(5000));
    let mut reachable = BTreeSet::from([root.content, root.metadata]);
    let mut leaves = 0;
    for node in nodes.iter().rev() {
        assert_eq!(TreeId::of_node(&node.bytes), node.id);
        assert!(reachable.contains(&node.id), "parents come after their children");
        let read = TreeNode::from_bytes(&node.bytes).unwrap();
        assert_eq!(read.to_bytes(), node.bytes);
        match read.entries() {
            NodeEntries::Children(children) => reachable.extend(children.iter().map(|child| child.id)),
            NodeEntries::Halves(halves) if read.half() == Half::Content => leaves += halves.len(),
            NodeEntries::Halves(_) => {}
        }
    }
    assert_eq!((root.entries, leaves), (5000, 5000));
}

/// Issue "hostile trees": names that lead elsewhere, and fields that no entry has, are refused and the entry is named.
#[test]
fn hostile_entries_are_refused() {
    let long = vec![b'x'; NAME_BYTES_MAX + 1];
    for bytes in [&b""[..], b".", b"..", b"/etc", b"a/b", b"a\0b", &long] {
        let error = Name::new(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
    assert!(Name::new(&long[1..]).is_ok() && Name::new(b"...").is_ok() && Name::new(b"\xff\n").is_ok());
    let mut worse: Vec<Entry> = Vec::new();
    let mut with = |change: &dyn Fn(&mut Entry)| {
        let mut entry = file("evil");
        change(&mut entry);
        worse.push(entry);
    };
    let xattr = |name: &[u8], len: usize| Xattr { name: name.to_vec(), value: vec![0; len] };
    with(&|entry| entry.metadata.mode = 0o10000);
    with(&|entry| entry.metadata.mtime_ns = 1_000_000_000);
    with(&|entry| entry.kind = Kind::File { size_bytes: u64::MAX, oid: None });
    with(&|entry| entry.kind = Kind::Symlink { target: vec![] });
    with(&|entry| entry.kind = Kind::Symlink { target: b"a\0".to_vec() });
    with(&|entry| entry.kind = Kind::Symlink { target: vec![b'x'; 4097] });
    with(&|entry| entry.metadata.xattrs = vec![xattr(b"user.b", 1), xattr(b"user.a", 1)]);
    with(&|entry| entry.metadata.xattrs = vec![xattr(b"user.a", 1), xattr(b"user.a", 1)]);
    with(&|entry| entry.metadata.xattrs = vec![xattr(b"user.a", 33_000)]);
    with(&|entry| entry.metadata.xattrs = vec![xattr(b"", 1)]);
    for entry in worse {
        let error = Entry::from_bytes(&entry.to_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{entry:?}");
        assert!(error.to_string().contains("evil"), "{error}");
        assert!(DirectoryBuilder::new().push(&entry, &mut |_| {}).is_err());
    }
    let linked =
        Entry { metadata: Metadata { link_group: Some([1; 16]), ..Metadata::default() }, ..directory("d") };
    assert!(Entry::from_bytes(&linked.to_bytes()).unwrap_err().to_string().contains("hard links"));
}

/// Extended attributes are taken up to their number and their bytes, and no further.
#[test]
fn attributes_are_bounded() {
    let is_taken = |xattrs: Vec<Xattr>| {
        let metadata = Metadata { xattrs, ..Metadata::default() };
        Entry::from_bytes(&Entry { metadata, ..file("f") }.to_bytes()).is_ok()
    };
    let xattrs = |count: usize, bytes: usize| {
        let xattr =
            |number: usize| Xattr { name: format!("{number:03}").into_bytes(), value: vec![0; bytes - 3] };
        (0..count).map(xattr).collect()
    };
    assert!(is_taken(xattrs(TREE_XATTRS_MAX, 3)) && !is_taken(xattrs(TREE_XATTRS_MAX + 1, 3)));
    assert!(is_taken(xattrs(1, TREE_XATTRS_BYTES_MAX)) && !is_taken(xattrs(1, TREE_XATTRS_BYTES_MAX + 1)));
}

/// A stored tree does not depend on what only a stream says of an entry.
#[test]
fn a_stored_tree_knows_nothing_of_its_stream() {
    let ids = |entry: &Entry| {
        let (root, nodes) = nodes_of(std::slice::from_ref(entry));
        (root.content, root.metadata, nodes.into_iter().map(|node| node.id).collect::<Vec<_>>())
    };
    let mut stored = file("f");
    stored.metadata.link_group = Some([1; 16]);
    let mut told = stored.clone();
    told.metadata.link_names = 3;
    assert_eq!(ids(&told), ids(&stored));
    told.metadata.xattrs_unread = true;
    assert_eq!(ids(&told), ids(&stored));
}

/// Each item of a stream means what it was written as.
#[test]
fn items_round_trip() {
    for item in [Item::Entry(file("f")), Item::Leave, Item::Missing] {
        assert_eq!(Item::from_bytes(&item.to_bytes()).unwrap(), item);
    }
    assert!(Item::from_bytes(&[0xf7]).is_err());
}

/// What must not be ignored is refused by name; what may be is ignored.
#[test]
fn the_future_is_ignored_or_refused_by_name() {
    let mut bytes = Vec::new();
    let mut encoder = minicbor::Encoder::new(&mut bytes);
    let written =
        encoder.map(4).and_then(|e| e.u8(0)?.bytes(b"f")?.u8(1)?.map(2)?.u8(0)?.u8(4)?.u8(40)?.bytes(b"new"));
    let written = written.and_then(|e| {
        e.u8(2)?.map(5)?.u8(0)?.u32(0o600)?.u8(1)?.i64(0)?.u8(2)?.u32(0)?.u8(3)?.u32(0)?.u8(4)?.u32(0)
    });
    written.and_then(|e| e.u8(77)?.str("new")).unwrap();
    assert_eq!(Entry::from_bytes(&bytes).unwrap().kind, Kind::Fifo);
    let mut unknown = bytes.clone();
    // The map's last pair is replaced by key 3, a list of one feature.
    unknown.truncate(bytes.len() - 6);
    unknown.extend([3, 0x81, 0x64]);
    unknown.extend(b"warp");
    let error = Entry::from_bytes(&unknown).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("warp") && error.to_string().contains("\"f\""), "{error}");
    let at = bytes.windows(2).position(|pair| pair == [0, 4]).unwrap();
    bytes[at + 1] = 9;
    let error = Entry::from_bytes(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("kind 9"), "{error}");
}

/// Issue "content-defined sharded nodes": an edit changes one node a level, a `touch` no content node, and an insert few.
#[test]
fn an_edit_changes_few_nodes() {
    let ids =
        |entries: &[Entry]| nodes_of(entries).1.into_iter().map(|node| node.id).collect::<BTreeSet<_>>();
    let before = many(20_000);
    let base = ids(&before);
    assert!(base.len() > 400);
    let fresh = |entries: &[Entry]| ids(entries).difference(&base).count();
    for at in [0, 777, 19_999] {
        let mut touched = before.clone();
        touched[at].metadata.mtime_ns = 9;
        assert_eq!(nodes_of(&touched).0.content, nodes_of(&before).0.content);
        assert!(fresh(&touched) <= 4, "a touch makes {} nodes", fresh(&touched));
        let mut edited = before.clone();
        edited[at].kind = Kind::File { size_bytes: 7, oid: Some(Oid::of(b"another")) };
        assert_eq!(nodes_of(&edited).0.metadata, nodes_of(&before).0.metadata);
        assert!(fresh(&edited) <= 4, "an edit makes {} nodes", fresh(&edited));
        let mut inserted = before.clone();
        let new = file(&format!("entry {:07}b", at));
        inserted.insert(at + 1, new);
        assert!(fresh(&inserted) <= 16, "an insert makes {} nodes", fresh(&inserted));
    }
}

/// A node of a stranger holds no more than a builder makes, in order and once.
#[test]
fn hostile_nodes_are_refused() {
    let (_, nodes) = nodes_of(&many(200));
    let leaf = TreeNode::from_bytes(&nodes[0].bytes).unwrap();
    let NodeEntries::Halves(halves) = leaf.entries() else { panic!("leaves come first") };
    assert!(halves.len() <= TREE_NODE_ENTRIES_MAX);
    let place =
        |needle: &[u8]| nodes[0].bytes.windows(needle.len()).position(|bytes| bytes == needle).unwrap();
    for (needle, with) in [
        (&b"entry 0000001"[..], &b"entry 0000000"[..]),
        (b"entry 0000001", b"entry 0000003"),
        (b"entry 0000001", b"entry/0000001"),
    ] {
        let mut bytes = nodes[0].bytes.clone();
        let at = place(needle);
        bytes[at..at + with.len()].copy_from_slice(with);
        assert_eq!(TreeNode::from_bytes(&bytes).unwrap_err().kind(), ErrorKind::Protocol);
    }
    // Two leaves as one: it goes on after its end.
    let (_, nodes) = nodes_of(&many(1000));
    let mut content = nodes.iter().map(|node| TreeNode::from_bytes(&node.bytes).unwrap());
    let first = content.by_ref().find(|node| node.half() == Half::Content).unwrap();
    let second = content.by_ref().find(|node| node.half() == Half::Content).unwrap();
    let (NodeEntries::Halves(mut one), NodeEntries::Halves(two)) =
        (first.entries().clone(), second.entries().clone())
    else {
        panic!("leaves come first")
    };
    one.extend(two);
    one.truncate(TREE_NODE_ENTRIES_MAX);
    let merged = node::tests_only(Half::Content, 0, NodeEntries::Halves(one));
    assert!(TreeNode::from_bytes(&merged.to_bytes()).unwrap_err().to_string().contains("ends a node"));
}

/// Issue "hostile trees": duplicates, wrong order, entries outside a directory and endless depth are refused, each with the
/// entry's name.
#[test]
fn the_order_of_a_stream_is_enforced() {
    let root = Item::Entry(Entry { name: None, ..directory("x") });
    let inner = |text: &str| Item::Entry(file(text));
    let refused = |items: &[Item], word: &str| {
        let mut order = Order::new(1);
        let (last, before) = items.split_last().unwrap();
        for item in before {
            order.accept(item).unwrap();
        }
        let error = order.accept(last).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(&[root.clone(), inner("a"), inner("a")], "\"a\" comes twice");
    refused(&[root.clone(), inner("b"), inner("a")], "\"a\" is out of order");
    refused(&[inner("a")], "\"a\" is in no directory");
    refused(&[root.clone(), root.clone()], "without a name");
    refused(&[root.clone(), Item::Leave, Item::Leave], "not entered");
    refused(&[root.clone(), Item::Leave, root.clone()], "where none may stand");
    refused(&[root.clone(), Item::Missing], "where none may stand");
    let mut order = Order::new(2);
    assert_eq!(order.accept(&root).unwrap(), Step::Root(0));
    for depth in 1..TREE_DEPTH_MAX {
        assert_eq!(order.accept(&Item::Entry(directory("deep"))).unwrap(), Step::Inner, "{depth}");
    }
    assert!(order.accept(&Item::Entry(directory("deep"))).unwrap_err().to_string().contains("deep"));
    for _ in 0..TREE_DEPTH_MAX {
        assert_eq!(order.accept(&Item::Leave).unwrap(), Step::Leave);
    }
    assert!(!order.is_complete());
    assert_eq!(order.accept(&Item::Missing).unwrap(), Step::Missing(1));
    assert!(order.is_complete());
}

proptest! {
    /// No bytes panic the decoders, and what decodes has one meaning.
    #[test]
    fn mutated_entries_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let samples = samples();
        let mut bytes = samples[which.index(samples.len())].1.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(entry) = Entry::from_bytes(&bytes) {
            prop_assert_eq!(Entry::from_bytes(&entry.to_bytes()).unwrap(), entry);
        }
        prop_assert_eq!(cbor::check(&bytes).is_err() && Entry::from_bytes(&bytes).is_ok(), false);
    }
}

/// A file is as large as an object may be, and no larger.
#[test]
fn sizes_are_bounded() {
    use crate::limits::OBJECT_BYTES_MAX;
    for (size_bytes, is_taken) in [(OBJECT_BYTES_MAX, true), (OBJECT_BYTES_MAX + 1, false)] {
        let kind = Kind::File { size_bytes, oid: None };
        let entry = Entry { name: None, kind, metadata: Metadata::default() };
        assert_eq!(Entry::from_bytes(&entry.to_bytes()).is_ok(), is_taken);
    }
}

/// Entries are counted as they come, and what ends a directory is none.
#[test]
fn entries_are_counted() {
    let mut order = Order::new(1);
    let directory =
        Entry { name: None, kind: Kind::Directory { entries: None }, metadata: Metadata::default() };
    let file = Entry { name: name("a"), kind: Kind::Fifo, metadata: Metadata::default() };
    for (item, entries) in [(Item::Entry(directory), 1), (Item::Entry(file), 2), (Item::Leave, 2)] {
        order.accept(&item).unwrap();
        assert_eq!(order.entries(), entries);
    }
}
