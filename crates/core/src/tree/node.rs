//! The nodes of a stored tree: each directory is two search trees by name, one of content and one of metadata, cut where the
//! names say, so that a change to an entry changes one node a level and moves no border.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};

use crate::limits::{
    TREE_DIRECTORY_ENTRIES_MAX, TREE_LEVEL_MAX, TREE_NODE_BYTES_MAX, TREE_NODE_ENTRIES_MAX,
    TREE_NODE_ENTRIES_MIN, TREE_NODE_FULL_BYTES,
};
use crate::{Error, ErrorKind, Result, cbor};

use super::entry::{WireContent, WireMetadata, refuse_unknown};
use super::{DirectoryContent, Entry, Name, TreeId};

/// Version of layout and ending rule.
const NODE_VERSION: u8 = 1;
/// A node may end after an entry whose border value has none of these bits: one in 64.
const END_MASK: u8 = 63;
/// What borders are derived with.
const BORDER_CONTEXT: &str = "drayman 2026-11-22 tree border 1";

/// Which half of its entries a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Half {
    /// Kinds, sizes, OIDs, link targets.
    #[n(1)]
    Content,
    /// Modes, owners, times, extended attributes.
    #[n(2)]
    Metadata,
}

/// A node below another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeChild {
    /// Greatest name below it.
    pub last: Name,
    /// Its id.
    pub id: TreeId,
    /// Entries of the directory below it.
    pub entries: u64,
}

/// What a node lists, ascending by name.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeEntries {
    /// A leaf: names, and the half of each as it is encoded.
    Halves(Vec<(Name, Vec<u8>)>),
    /// An inner node.
    Children(Vec<TreeChild>),
}

/// A node, checked as far as it can be without its parent.
#[derive(Clone, PartialEq, Debug)]
pub struct TreeNode {
    half: Half,
    level: u8,
    entries: NodeEntries,
}

/// A node that is complete. Children come before their parents.
#[derive(Clone, PartialEq, Debug)]
pub struct BuiltTreeNode {
    /// Its name.
    pub id: TreeId,
    /// Its encoding, at most `TREE_NODE_BYTES_MAX` bytes.
    pub bytes: Vec<u8>,
}

/// What [`DirectoryBuilder`] makes.
pub type DirectoryRoot = DirectoryContent;

fn bad(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("tree node is malformed: {why}"))
}

/// True if a node of `level` ends after its entry number `count` (from 1) called `name`, with which its entries have `bytes`
/// bytes.
fn ends_node(level: u8, count: usize, bytes: usize, name: &Name) -> bool {
    if count >= TREE_NODE_ENTRIES_MAX || bytes >= TREE_NODE_FULL_BYTES {
        return true;
    }
    if count < TREE_NODE_ENTRIES_MIN {
        return false;
    }
    let mut hasher = blake3::Hasher::new_derive_key(BORDER_CONTEXT);
    hasher.update(&[level]).update(name.as_bytes());
    hasher.finalize().as_bytes()[31] & END_MASK == 0
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WireNode {
    #[n(0)]
    version: u8,
    #[n(1)]
    half: Half,
    #[n(2)]
    level: u8,
    #[n(3)]
    halves: Option<Vec<WireHalf>>,
    #[n(4)]
    children: Option<Vec<WireChild>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WireHalf {
    #[n(0)]
    name: ByteVec,
    /// The half, encoded: what a reader does not know in it stays part of it.
    #[n(1)]
    half: ByteVec,
    #[n(2)]
    required: Option<Vec<String>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WireChild {
    #[n(0)]
    last: ByteVec,
    #[n(1)]
    id: ByteArray<{ TreeId::BYTES }>,
    #[n(2)]
    entries: u64,
}

/// Bytes that an entry of a leaf counts for: its name and its half.
fn half_bytes(half: &(Name, Vec<u8>)) -> usize {
    half.0.as_bytes().len() + half.1.len()
}

/// The same for an entry of an inner node.
fn child_bytes(child: &TreeChild) -> usize {
    child.last.as_bytes().len() + TreeId::BYTES + 8
}

impl TreeNode {
    /// Which half.
    pub fn half(&self) -> Half {
        self.half
    }

    /// Levels below it; a leaf has 0.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// What it lists.
    pub fn entries(&self) -> &NodeEntries {
        &self.entries
    }

    /// Entries of the directory below it.
    pub fn count(&self) -> u64 {
        match &self.entries {
            NodeEntries::Halves(halves) => halves.len() as u64,
            // At most 256 children of at most 2^40 entries, as decoding has checked.
            NodeEntries::Children(children) => children.iter().map(|child| child.entries).sum(),
        }
    }

    /// The encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut halves, mut children) = (None, None);
        match &self.entries {
            NodeEntries::Halves(list) => {
                let wire = |(name, half): &(Name, Vec<u8>)| WireHalf {
                    name: name.as_bytes().to_vec().into(),
                    half: half.clone().into(),
                    required: None,
                };
                halves = Some(list.iter().map(wire).collect());
            }
            NodeEntries::Children(list) => {
                let wire = |child: &TreeChild| WireChild {
                    last: child.last.as_bytes().to_vec().into(),
                    id: (*child.id.as_bytes()).into(),
                    entries: child.entries,
                };
                children = Some(list.iter().map(wire).collect());
            }
        }
        cbor::encode(&WireNode {
            version: NODE_VERSION,
            half: self.half,
            level: self.level,
            halves,
            children,
        })
    }

    /// Inverse of [`TreeNode::to_bytes`]. `Protocol` for what no builder makes, as far as that can be seen without the parent;
    /// `Unsupported` for a later version and for what must not be ignored.
    pub fn from_bytes(bytes: &[u8]) -> Result<TreeNode> {
        if bytes.len() > TREE_NODE_BYTES_MAX {
            return Err(bad(format_args!("{} bytes, limit {TREE_NODE_BYTES_MAX}", bytes.len())));
        }
        let wire: WireNode = cbor::decode(bytes, "tree node")?;
        if wire.version != NODE_VERSION {
            let what = format!("tree node has version {}, this dray knows {NODE_VERSION}", wire.version);
            return Err(Error::new(ErrorKind::Unsupported, what).advise("install a newer dray"));
        }
        if wire.level > TREE_LEVEL_MAX {
            return Err(bad(format_args!("level {}, limit {TREE_LEVEL_MAX}", wire.level)));
        }
        let entries = match (wire.level, wire.halves, wire.children) {
            (0, Some(halves), None) => NodeEntries::Halves(halves_of(wire.half, halves)?),
            (1.., None, Some(children)) => NodeEntries::Children(children_of(children)?),
            _ => return Err(bad("its entries do not fit its level")),
        };
        let node = TreeNode { half: wire.half, level: wire.level, entries };
        match &node.entries {
            NodeEntries::Halves(halves) => {
                check_borders(node.level, halves.iter().map(|half| (&half.0, half_bytes(half))))?;
            }
            NodeEntries::Children(children) => {
                check_borders(node.level, children.iter().map(|child| (&child.last, child_bytes(child))))?;
            }
        }
        Ok(node)
    }
}

fn halves_of(half: Half, wire: Vec<WireHalf>) -> Result<Vec<(Name, Vec<u8>)>> {
    let entry = |wire: WireHalf| {
        let name = Name::new(&wire.name)?;
        refuse_unknown(Some(&name), wire.required.as_deref().unwrap_or_default())?;
        match half {
            Half::Content => cbor::decode::<WireContent>(&wire.half, "content of an entry")?.check(&name)?,
            Half::Metadata => {
                cbor::decode::<WireMetadata>(&wire.half, "metadata of an entry")?.metadata(Some(&name))?;
            }
        }
        Ok((name, wire.half.into()))
    };
    wire.into_iter().map(entry).collect()
}

fn children_of(wire: Vec<WireChild>) -> Result<Vec<TreeChild>> {
    if wire.is_empty() {
        return Err(bad("an inner node without children"));
    }
    let child = |wire: WireChild| {
        if wire.entries == 0 || wire.entries > TREE_DIRECTORY_ENTRIES_MAX {
            return Err(bad(format_args!("{} entries below a node", wire.entries)));
        }
        Ok(TreeChild {
            last: Name::new(&wire.last)?,
            id: TreeId::from_bytes(*wire.id),
            entries: wire.entries,
        })
    };
    wire.into_iter().map(child).collect()
}

/// Names ascend, and nothing follows an entry that ends the node.
fn check_borders<'a>(level: u8, entries: impl Iterator<Item = (&'a Name, usize)>) -> Result<()> {
    let (mut count, mut bytes, mut last, mut has_ended) = (0, 0, None::<&Name>, false);
    for (name, size) in entries {
        if has_ended {
            return Err(bad(format_args!("it goes on after entry {last:?}, which ends a node")));
        }
        if last.is_some_and(|last| last >= name) {
            return Err(bad(format_args!("entry {name:?} is out of order or comes twice")));
        }
        count += 1;
        bytes += size;
        last = Some(name);
        has_ended = ends_node(level, count, bytes, name);
    }
    Ok(())
}

/// Makes the nodes of one directory from its entries as they come. At most one unfinished node for each level and half stays.
#[derive(Debug)]
pub struct DirectoryBuilder {
    content: HalfBuilder,
    metadata: HalfBuilder,
    last: Option<Name>,
    entries: u64,
}

impl DirectoryBuilder {
    /// An empty directory.
    pub fn new() -> DirectoryBuilder {
        DirectoryBuilder {
            content: HalfBuilder::new(Half::Content),
            metadata: HalfBuilder::new(Half::Metadata),
            last: None,
            entries: 0,
        }
    }

    /// Adds an entry; hands nodes that are complete to `out`. `Usage` if the entry has no name, does not come after the one
    /// before, or says something of itself that no reader would take.
    pub fn push(&mut self, entry: &Entry, out: &mut dyn FnMut(BuiltTreeNode)) -> Result<()> {
        let wrong = |why: String| Error::new(ErrorKind::Usage, why);
        let Some(name) = &entry.name else {
            return Err(wrong("an entry of a directory has a name".into()));
        };
        if self.last.as_ref().is_some_and(|last| last >= name) {
            return Err(wrong(format!("entry {name:?} is out of order or comes twice")));
        }
        if self.entries >= TREE_DIRECTORY_ENTRIES_MAX {
            return Err(wrong(format!("more than {TREE_DIRECTORY_ENTRIES_MAX} entries in one directory")));
        }
        Entry::from_bytes(&entry.to_bytes()).map_err(|error| wrong(error.to_string()))?;
        self.content.push((name.clone(), cbor::encode(&WireContent::of(&entry.kind))), out);
        self.metadata.push((name.clone(), cbor::encode(&WireMetadata::of(entry).stored())), out);
        self.last = Some(name.clone());
        self.entries += 1;
        Ok(())
    }

    /// Ends the directory: hands over the remaining nodes and returns what its entry says of it.
    pub fn finish(self, out: &mut dyn FnMut(BuiltTreeNode)) -> DirectoryRoot {
        DirectoryContent {
            content: self.content.finish(out),
            metadata: self.metadata.finish(out),
            entries: self.entries,
        }
    }
}

impl Default for DirectoryBuilder {
    fn default() -> DirectoryBuilder {
        DirectoryBuilder::new()
    }
}

#[derive(Debug)]
struct HalfBuilder {
    half: Half,
    leaf: Vec<(Name, Vec<u8>)>,
    leaf_bytes: usize,
    /// Unfinished inner nodes and their bytes; the first has level 1.
    inner: Vec<(Vec<TreeChild>, usize)>,
}

impl HalfBuilder {
    fn new(half: Half) -> HalfBuilder {
        HalfBuilder { half, leaf: Vec::new(), leaf_bytes: 0, inner: Vec::new() }
    }

    fn push(&mut self, half: (Name, Vec<u8>), out: &mut dyn FnMut(BuiltTreeNode)) {
        self.leaf_bytes += half_bytes(&half);
        let name = half.0.clone();
        self.leaf.push(half);
        if ends_node(0, self.leaf.len(), self.leaf_bytes, &name) {
            let child = self.close_leaf(name, out);
            self.push_child(0, child, out);
        }
    }

    fn push_child(&mut self, mut above: usize, mut child: TreeChild, out: &mut dyn FnMut(BuiltTreeNode)) {
        loop {
            if above == self.inner.len() {
                self.inner.push((Vec::new(), 0));
            }
            let (children, bytes) = &mut self.inner[above];
            *bytes += child_bytes(&child);
            let name = child.last.clone();
            children.push(child);
            if !ends_node(above as u8 + 1, children.len(), *bytes, &name) {
                return;
            }
            child = self.close_inner(above, name, out);
            above += 1;
        }
    }

    fn close_leaf(&mut self, last: Name, out: &mut dyn FnMut(BuiltTreeNode)) -> TreeChild {
        self.leaf_bytes = 0;
        let entries = NodeEntries::Halves(std::mem::take(&mut self.leaf));
        self.close(0, entries, last, out)
    }

    fn close_inner(&mut self, above: usize, last: Name, out: &mut dyn FnMut(BuiltTreeNode)) -> TreeChild {
        let (children, _) = std::mem::take(&mut self.inner[above]);
        self.close(above as u8 + 1, NodeEntries::Children(children), last, out)
    }

    fn close(
        &self,
        level: u8,
        entries: NodeEntries,
        last: Name,
        out: &mut dyn FnMut(BuiltTreeNode),
    ) -> TreeChild {
        let node = TreeNode { half: self.half, level, entries };
        let bytes = node.to_bytes();
        let child = TreeChild { last, id: TreeId::of_node(&bytes), entries: node.count() };
        out(BuiltTreeNode { id: child.id, bytes });
        child
    }

    /// The uppermost node is the lowest one that has everything below it.
    fn finish(mut self, out: &mut dyn FnMut(BuiltTreeNode)) -> TreeId {
        if self.inner.is_empty() {
            let node = TreeNode {
                half: self.half,
                level: 0,
                entries: NodeEntries::Halves(std::mem::take(&mut self.leaf)),
            };
            let bytes = node.to_bytes();
            let id = TreeId::of_node(&bytes);
            out(BuiltTreeNode { id, bytes });
            return id;
        }
        if let Some((last, _)) = self.leaf.last().cloned() {
            let child = self.close_leaf(last, out);
            self.push_child(0, child, out);
        }
        let mut above = 0;
        loop {
            let is_top = above + 1 == self.inner.len();
            let (count, last) = {
                let children = &self.inner[above].0;
                (children.len(), children.last().cloned())
            };
            match (is_top, count, last) {
                (true, 1, Some(only)) => return only.id,
                (_, _, Some(last)) => {
                    let child = self.close_inner(above, last.last, out);
                    if is_top {
                        return child.id;
                    }
                    self.push_child(above + 1, child, out);
                }
                (_, _, None) => {}
            }
            above += 1;
        }
    }
}

/// A node as a liar would make it.
#[cfg(test)]
pub(super) fn tests_only(half: Half, level: u8, entries: NodeEntries) -> TreeNode {
    TreeNode { half, level, entries }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Format "tree": a node ends where its last name's hash says so, from the least to the most entries, and where it is full.
    #[test]
    fn a_node_ends_within_its_bounds() {
        let names: Vec<Name> =
            (0..1000).map(|number| Name::new(format!("name {number}").as_bytes()).unwrap()).collect();
        let ends = |count, bytes, name| ends_node(0, count, bytes, name);
        let (border, plain): (Vec<&Name>, Vec<&Name>) =
            names.iter().partition(|name| ends(TREE_NODE_ENTRIES_MIN, 0, name));
        // One of 64 names.
        assert!((5..40).contains(&border.len()), "{}", border.len());
        assert!(border.iter().all(|name| !ends(TREE_NODE_ENTRIES_MIN - 1, 0, name)));
        assert!(border.iter().all(|name| ends(TREE_NODE_ENTRIES_MIN + 1, 0, name)));
        for (count, bytes, is_end) in [
            (TREE_NODE_ENTRIES_MAX - 1, 0, false),
            (TREE_NODE_ENTRIES_MAX, 0, true),
            (1, TREE_NODE_FULL_BYTES - 1, false),
            (1, TREE_NODE_FULL_BYTES, true),
        ] {
            assert!(plain.iter().all(|name| ends(count, bytes, name) == is_end), "{count}, {bytes}");
        }
    }
}
