//! The trait of transfer plugins. A source is told what to fetch and reports what arrived; calls and events are
//! plain data, so a plugin may live in another process with nothing but a codec between.
//!
//! A source is never trusted: whoever receives its events proves the bytes. A source therefore reports what came,
//! in order within a request, and does not judge it.

use std::fmt;

use crate::block_mask::BlockMask;
use crate::hash_tree::Subtree;
use crate::message::{BlockRun, ObjectName};
use crate::permit::Permit;
use crate::recipe::{RecipeId, RecipeRoot};
use crate::{Error, Oid};

/// Number of a source within one transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SourceId(pub u32);

/// Number of a request within one transfer; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u32);

/// What kind of word its bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    /// Come with the pairs that prove them against the OID.
    Proven,
    /// Come from the authenticated origin of a transfer whose OID is not known yet.
    Vouched,
}

/// What a plugin can do; what it cannot is never asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceCapabilities {
    /// Which grade its bytes are.
    pub grade: Grade,
    /// Ends a request early when told to; otherwise `Cancel` is ignored and the rest still arrives.
    pub cancel: bool,
    /// Reports holes as holes.
    pub holes: bool,
    /// So many bytes may lie on the way where no cancellation reaches them, as in the buffers of an ssh channel: what was asked for first
    /// and begins within them comes in any case.
    pub under_way_bytes: u64,
}

/// Name and place in the order of use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceDescription {
    /// For people: `direct 192.0.2.7:4711`, `ssh`.
    pub label: String,
    /// Lower is used first; a higher one is a spare, used only while none of a lower number is up and answers.
    pub priority: u16,
    /// Share among sources of equal priority; see [`crate::hint::Hint::weight`].
    pub weight: u16,
    /// What it can do.
    pub capabilities: SourceCapabilities,
}

/// What a source is told. Every call returns at once.
#[derive(Debug)]
pub enum SourceCall {
    /// Fetch the groups of a subtree. The permit is released when the source drops it: when the request has ended. A
    /// source that is not up drops the request at once, without an event of its own: `Down` says it all.
    Fetch {
        /// Names the request in every event about it.
        request: RequestId,
        /// Which groups.
        groups: Subtree,
        /// Pairs on the path from the root that are known already; a vouched source ignores it.
        known_depth: u32,
        /// Earlier bytes of these groups did not match: the holder should check its own copy first.
        recheck: bool,
        /// The right to have these bytes outstanding.
        permit: Permit,
    },
    /// Fetch what is lacking of one group. The answer is `Rest`, or `Group` where the source can only give whole ones.
    FetchRest {
        /// Names the request in every event about it.
        request: RequestId,
        /// Which group.
        group: u64,
        /// As in `Fetch`.
        known_depth: u32,
        /// Blocks that are here.
        have: BlockMask,
        /// The right to have the group's bytes outstanding.
        permit: Permit,
    },
    /// The rest of a request is not wanted. Unknown or finished requests are ignored. `Done` or `Failed` still
    /// follows, once, for a request that was running.
    Cancel {
        /// Which one.
        request: RequestId,
    },
    /// Every byte of a vouched object has arrived and this is the receiver's root: ask the origin for its own.
    /// Proven sources ignore it.
    Seal {
        /// The receiver's root.
        root: Oid,
    },
    /// The receiver's root is not the object's: ask for the source's pairs of these subtrees (at most
    /// [`crate::limits::COMPARED_SUBTREES_MAX`], each of two groups or more).
    Compare {
        /// Which.
        subtrees: Vec<Subtree>,
    },
    /// Something similar is at hand: ask for the object's recipe. `Described` follows.
    Describe,
    /// Ask for these nodes of the recipe (at most [`crate::limits::RECIPE_NODES_ASKED_MAX`]). A `Node` follows for each.
    Nodes {
        /// Which.
        ids: Vec<RecipeId>,
    },
    /// Ask for sums of blocks of the object. `Summed` follows.
    Sums {
        /// Names the question.
        number: u32,
        /// Bytes of a block, a power of two.
        block_bytes: u32,
        /// Bytes of a sum, 1 to 8.
        sum_bytes: u8,
        /// Which blocks, within the limits of [`crate::message::Sums`].
        runs: Vec<BlockRun>,
    },
    /// End everything; `Down` follows.
    Close,
}

/// A piece of a group that is data; the rest of the group is hole. Byte offsets within the group.
pub type DataPiece = std::ops::Range<u32>;

/// What a source reports.
#[derive(Debug)]
pub enum SourceEvent<'a> {
    /// It can take requests. Comes before everything else, again when the holder has said more (its name for the
    /// object), and again after `Down` if it recovers by itself.
    Up {
        /// Size of the object, as the holder says.
        size_bytes: u64,
        /// File name the holder suggests.
        name: Option<&'a [u8]>,
        /// Measured round-trip time, if known, in microseconds.
        round_trip_us: Option<u64>,
    },
    /// Pairs that prove the request, pre-order. Before its first group; only from proven sources. Of a rest from a vouched
    /// source, the value of the group, 32 bytes.
    Parents {
        /// Which request.
        request: RequestId,
        /// Path and interior pairs ([`crate::hash_tree::encode_parents`]).
        pairs: &'a [u8],
    },
    /// One whole group, in ascending order within the request. `bytes` is the full group, holes read as zeros.
    Group {
        /// Which request.
        request: RequestId,
        /// Which group.
        group: u64,
        /// Its bytes.
        bytes: &'a [u8],
        /// Which parts of it are data, ascending and disjoint.
        data: &'a [DataPiece],
    },
    /// What was lacking of a group, put together: the bytes of its other blocks, ascending.
    Rest {
        /// Which request.
        request: RequestId,
        /// Which group.
        group: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Every group of the request has been reported, or it was cancelled.
    Done {
        /// Which request.
        request: RequestId,
    },
    /// The request failed; the source itself goes on.
    Failed {
        /// Which request.
        request: RequestId,
        /// Why.
        error: Error,
    },
    /// The origin's root of a vouched object.
    Sealed {
        /// The root.
        root: Oid,
    },
    /// The origin's pairs, 64 bytes for each subtree of the `Compare`, in its order.
    Compared {
        /// The pairs.
        pairs: &'a [u8],
    },
    /// The object's recipe, or that the source has none.
    Described {
        /// Its root.
        root: Option<RecipeRoot>,
    },
    /// A node of the recipe that was asked for, as the source has it: not checked.
    Node {
        /// Which.
        id: RecipeId,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Sums that were asked for, unchecked; `None` if the source tells none.
    Summed {
        /// Which question.
        number: u32,
        /// The sums, as long as was asked, in the order asked.
        sums: Option<&'a [u8]>,
    },
    /// The source can take no more requests; every running one has failed with it. If `error` is retryable the
    /// source goes on trying by itself and may come `Up` again.
    Down {
        /// Why; `None` after `Close`.
        error: Option<Error>,
        /// True if it will not come up again.
        gone: bool,
    },
}

/// Who hears the events of sources. Called from the plugins' own threads; events of one request never overlap.
pub trait SourceEvents: Send + Sync {
    /// Takes one event. The answer is what the plugin should do with the rest of that request.
    fn event(&self, source: SourceId, event: SourceEvent<'_>) -> Flow;
}

/// Whether a request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Go on.
    Continue,
    /// The rest of this request is not wanted; same as a `Cancel` call.
    Cancel,
}

/// A transfer plugin at work on one object.
pub trait Source: Send + Sync + fmt::Debug {
    /// What it is.
    fn describe(&self) -> SourceDescription;
    /// What it works on.
    fn object(&self) -> ObjectName;
    /// Bytes that came to this machine over its connections, as they crossed the socket or pipe: data, proofs, framing and
    /// encryption, without the headers of TCP and IP. `None` if it does not count them.
    fn received_bytes(&self) -> Option<u64> {
        None
    }
    /// True if something may have come that it has not taken yet. What is not urgent waits for it. False if it cannot tell.
    fn has_unread(&self) -> bool {
        false
    }
    /// Tells it something. Never blocks, and never calls back into the caller's event sink from within.
    fn call(&self, call: SourceCall);
}
