//! Reading a recipe that somebody else has, without I/O: the reader says which nodes it needs next, takes them in any
//! order, and gives the chunks strictly in object order as soon as they are known (D17).
//!
//! The unread part of the recipe is a row of slots in object order, at first the root alone. A slot is asked for, comes, and
//! is then replaced by its children or, as a leaf at the front, read out chunk by chunk. An inner node is opened only when
//! all before it are leaves that have been asked for, so leaves are asked for in object order and the row stays short; a few
//! inner nodes further on are asked for ahead, so that opening the next one need not wait for the network.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chunker::Profile;
use crate::limits::{RECIPE_BYTES_HELD_MAX, RECIPE_LEVEL_MAX, RECIPE_NODE_BYTES_MAX, RECIPE_NODES_HELD_MAX};
use crate::{Error, ErrorKind, Result};

use super::node::{check_chunk_len, node_bytes_max};
use super::{ChildEntry, ChunkDescriptor, Entries, RecipeId, RecipeNode, RecipeRoot};

/// One in so many of the nodes that may be held, at each level above the leaves, may be an inner node asked for ahead.
const AHEAD_SHARE: usize = 8;

/// How much a reader may have asked for and not yet used up. One node at the front of what is unread is always allowed
/// besides, so that a small limit slows a reader down and never stops it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderLimits {
    /// Nodes.
    pub nodes: usize,
    /// Bytes of these nodes, reckoned before they come.
    pub bytes: usize,
}

impl Default for ReaderLimits {
    /// 64 nodes, 512 KiB.
    fn default() -> ReaderLimits {
        ReaderLimits { nodes: RECIPE_NODES_HELD_MAX, bytes: RECIPE_BYTES_HELD_MAX }
    }
}

/// A node that the reader needs: from the caller's own cache or from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeRequest {
    /// Which.
    pub id: RecipeId,
    /// Its level; 0 is a leaf.
    pub level: u8,
    /// Bytes it has at most; exact for a leaf.
    pub bytes_max: usize,
    /// The caller said that it has this node and need not fetch it.
    pub is_known: bool,
}

/// A chunk and where it lies in the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlacedChunk {
    /// Offset of its first byte.
    pub offset: u64,
    /// What it is.
    pub chunk: ChunkDescriptor,
}

/// Walks one recipe. Ask [`RecipeReader::next_request`] until it says `None`, hand in what comes with
/// [`RecipeReader::accept`], take chunks with [`RecipeReader::next_chunk`], and ask again.
#[derive(Debug)]
pub struct RecipeReader {
    profile: Profile,
    root_level: u8,
    limits: ReaderLimits,
    /// What is unread, in object order.
    slots: VecDeque<Slot>,
    held: Held,
    /// Chunks of the leaf at the front that have been given.
    given: usize,
    offset: u64,
    has_failed: bool,
}

#[derive(Debug)]
struct Slot {
    claim: ChildEntry,
    level: u8,
    /// Nothing of the object comes after it.
    is_last: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Wanted,
    Asked,
    Here(Arc<RecipeNode>),
}

/// Slots that are asked for or here, and their bytes.
#[derive(Debug, Default)]
struct Held {
    nodes: usize,
    bytes: usize,
    by_level: [usize; RECIPE_LEVEL_MAX as usize + 1],
}

impl Held {
    fn add(&mut self, slot: &Slot) {
        self.nodes += 1;
        self.bytes += slot.bytes_max();
        self.by_level[usize::from(slot.level)] += 1;
    }

    fn remove(&mut self, slot: &Slot) {
        self.nodes -= 1;
        self.bytes -= slot.bytes_max();
        self.by_level[usize::from(slot.level)] -= 1;
    }
}

impl Slot {
    fn bytes_max(&self) -> usize {
        node_bytes_max(self.level, self.claim.chunks)
    }

    fn is_wanted(&self) -> bool {
        matches!(self.state, State::Wanted)
    }

    fn is_asked(&self, id: &RecipeId) -> bool {
        matches!(self.state, State::Asked) && self.claim.id == *id
    }
}

impl RecipeReader {
    /// A reader of the recipe named by `root`, with nothing asked for yet.
    pub fn new(root: &RecipeRoot, limits: ReaderLimits) -> RecipeReader {
        let slot = Slot { claim: root.node, level: root.level, is_last: true, state: State::Wanted };
        RecipeReader {
            profile: root.profile,
            root_level: root.level,
            limits,
            slots: VecDeque::from([slot]),
            held: Held::default(),
            given: 0,
            offset: 0,
            has_failed: false,
        }
    }

    /// The next node to get, in object order; `None` while the limits are reached, while what is asked for must come first,
    /// when all is asked for, and after an error of the recipe. `known` says whether the caller has a node already;
    /// such a node is asked for with `is_known` and handed in like any other. A node that is asked for already, or still
    /// here, is not asked for again wherever else it stands; `Protocol` if it cannot stand there as well.
    pub fn next_request(&mut self, known: &mut dyn FnMut(&RecipeId) -> bool) -> Result<Option<NodeRequest>> {
        while !self.has_failed {
            self.open_inner_nodes();
            let Some(index) = self.slots.iter().position(Slot::is_wanted) else { return Ok(None) };
            let slot = &self.slots[index];
            if index > 0 && !self.has_room_for(slot) {
                return Ok(None);
            }
            let request = NodeRequest {
                id: slot.claim.id,
                level: slot.level,
                bytes_max: slot.bytes_max(),
                is_known: false,
            };
            let shared = self.slots.iter().find_map(|other| match &other.state {
                _ if other.claim.id != request.id => None,
                State::Wanted => None,
                State::Asked => Some(None),
                State::Here(node) => Some(Some(Arc::clone(node))),
            });
            self.held.add(slot);
            self.slots[index].state = State::Asked;
            match shared {
                None => return Ok(Some(NodeRequest { is_known: known(&request.id), ..request })),
                Some(None) => {}
                Some(Some(node)) => self.fill(index, &node)?,
            }
        }
        Ok(None)
    }

    /// Takes the node `id`, which was asked for. Errors:
    ///
    /// * `VerificationFailed`, retryable: these are not the bytes of that node. Whoever gave them lied or is damaged; the
    ///   reader still waits for the node.
    /// * `Protocol`, `Unsupported`: the bytes are the node's, and the recipe is wrong: malformed, or not what its parent
    ///   claims. Whoever named the root vouched for it; the reader gives nothing more.
    /// * `Protocol` also for a node that was not asked for, or has come already; this changes nothing.
    pub fn accept(&mut self, id: &RecipeId, bytes: &[u8]) -> Result<()> {
        if !self.slots.iter().any(|slot| slot.is_asked(id)) {
            return Err(Error::new(ErrorKind::Protocol, format!("recipe node {id} was not asked for")));
        }
        if bytes.len() > RECIPE_NODE_BYTES_MAX || RecipeId::of_node(bytes) != *id {
            let what = format!("{} bytes given as recipe node {id} are not that node", bytes.len());
            return Err(Error::new(ErrorKind::VerificationFailed, what).with_retryable(true));
        }
        let node =
            RecipeNode::from_bytes(bytes).map_err(|error| error.context(format_args!("recipe node {id}")));
        let accepted = node.and_then(|node| {
            let node = Arc::new(node);
            (0..self.slots.len())
                .filter(|index| self.slots[*index].is_asked(id))
                .collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|index| self.fill(index, &node))
        });
        self.has_failed |= accepted.is_err();
        accepted
    }

    /// Says that the node `id` will not come: it is asked for again.
    pub fn give_back(&mut self, id: &RecipeId) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_asked(id)) {
            self.held.remove(slot);
            slot.state = State::Wanted;
        }
    }

    /// The next chunk of the object, once it is known. Chunks come in order and without gaps.
    pub fn next_chunk(&mut self) -> Option<PlacedChunk> {
        while !self.has_failed {
            self.open_inner_nodes();
            let front = self.slots.front()?;
            let State::Here(node) = &front.state else { return None };
            // An inner node at the front has been opened above.
            let Entries::Chunks(chunks) = node.entries() else { return None };
            let chunk = chunks.get(self.given).copied();
            if self.given + 1 >= chunks.len() {
                self.held.remove(front);
                self.slots.pop_front();
                self.given = 0;
            } else {
                self.given += 1;
            }
            if let Some(chunk) = chunk {
                let offset = self.offset;
                self.offset += u64::from(chunk.len);
                return Some(PlacedChunk { offset, chunk });
            }
        }
        None
    }

    /// True when every chunk has been given. Their lengths then add up to the root's size, and their number to its chunks.
    pub fn is_done(&self) -> bool {
        self.slots.is_empty()
    }

    /// Nodes that are asked for and have not come.
    pub fn asked(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Asked)).count()
    }

    /// Nodes, and bytes of them at most, that are asked for or here: what the limits bound.
    pub fn held(&self) -> (usize, usize) {
        (self.held.nodes, self.held.bytes)
    }

    fn has_room_for(&self, slot: &Slot) -> bool {
        let ahead_max = (self.limits.nodes / AHEAD_SHARE).max(1);
        self.held.nodes < self.limits.nodes
            && self.held.bytes + slot.bytes_max() <= self.limits.bytes
            && (slot.level == 0 || self.held.by_level[usize::from(slot.level)] < ahead_max)
    }

    /// Puts `node` into a slot, if it is what the slot's parent claims.
    fn fill(&mut self, index: usize, node: &Arc<RecipeNode>) -> Result<()> {
        let slot = &mut self.slots[index];
        if let Err(why) = check_claim(self.profile, self.root_level, slot, node) {
            self.has_failed = true;
            let what = format!("recipe node {} is not what its parent says: {why}", slot.claim.id);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        slot.state = State::Here(Arc::clone(node));
        Ok(())
    }

    /// Replaces an inner node by its children, as long as everything before it is leaves that have been asked for.
    fn open_inner_nodes(&mut self) {
        while let Some(index) = self.slots.iter().position(|slot| slot.level > 0 || slot.is_wanted()) {
            let State::Here(node) = &self.slots[index].state else { return };
            let node = Arc::clone(node);
            let Entries::Children(children) = node.entries() else { return };
            let mut tail = self.slots.split_off(index + 1);
            let Some(parent) = self.slots.pop_back() else { return };
            self.held.remove(&parent);
            self.slots.extend(children.iter().enumerate().map(|(index, claim)| Slot {
                claim: *claim,
                level: parent.level - 1,
                is_last: parent.is_last && index + 1 == children.len(),
                state: State::Wanted,
            }));
            self.slots.append(&mut tail);
        }
    }
}

/// Whether a node can stand where it was asked for.
fn check_claim(profile: Profile, root_level: u8, slot: &Slot, node: &RecipeNode) -> Result<(), String> {
    if (node.level(), node.profile()) != (slot.level, profile) {
        return Err(format!(
            "it has level {} and profile {} {}, not level {} and {} {}",
            node.level(),
            node.profile().algorithm().word(),
            node.profile().average_bytes(),
            slot.level,
            profile.algorithm().word(),
            profile.average_bytes(),
        ));
    }
    let (bytes, chunks) = (node.size_bytes(), node.chunks());
    if (bytes, chunks) != (slot.claim.size_bytes, slot.claim.chunks) {
        return Err(format!(
            "it has {bytes} bytes in {chunks} chunks, not {} in {}",
            slot.claim.size_bytes, slot.claim.chunks
        ));
    }
    if slot.level == root_level && slot.level > 0 && node.entries().len() == 1 {
        return Err("a root above a single node".into());
    }
    if slot.is_last {
        return Ok(());
    }
    if !node.ends_by_rule() {
        return Err("it ends before its entries say so".into());
    }
    match node.entries() {
        Entries::Chunks(chunks) => match chunks.last() {
            Some(last) => check_chunk_len(profile, last.len, false),
            None => Err("it is empty".into()),
        },
        Entries::Children(_) => Ok(()),
    }
}
