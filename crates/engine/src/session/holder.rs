//! The side that has the bytes: hears `Open` and `Fetch`, answers in the order of the requests.

use std::collections::{BTreeMap, VecDeque};

use dray_core::block_mask::BlockMask;
use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::{Geometry, Subtree};
use dray_core::limits::{OBJECTS_PER_CONNECTION_MAX, REQUEST_GROUPS_MAX, REQUESTS_PER_CONNECTION_MAX};
use dray_core::message::{
    Compare, ComparedSubtree, Fetch, Hello, Message, ObjectName, Open, Seal, Sums, feature,
};
use dray_core::recipe::RecipeId;
use dray_core::{Error, ErrorKind, Result};

use super::{Negotiated, negotiate};

/// A request that may be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// Number for the frames of the answer.
    pub request: u32,
    /// Object.
    pub handle: u32,
    /// Subtree, checked against the object's geometry.
    pub groups: Subtree,
    /// Pairs on the path that the receiver has; checked against the path's length.
    pub known_depth: usize,
    /// Check against the outboard before sending.
    pub recheck: bool,
    /// Blocks of the only group that are not sent, because the receiver has them.
    pub have: Option<BlockMask>,
}

/// What a control message from the receiver asks of the caller.
#[derive(Clone, PartialEq, Debug)]
pub enum HolderInput {
    /// Nothing; look at [`Holder::next_job`].
    None,
    /// The hellos agree.
    Agreed(Negotiated),
    /// Decide, then call [`Holder::opened`] or [`Holder::refused`].
    Open(Open),
    /// Answer with the root of this object.
    Seal(Seal),
    /// Answer with this object's pairs of these subtrees, which have been checked.
    Compare(u32, Vec<Subtree>),
    /// Answer with the root of this object's recipe.
    Describe(u32),
    /// Answer with these nodes of this object's recipe.
    Nodes(u32, Vec<RecipeId>),
    /// Answer with these sums of this object, which lie within it.
    Sums(Sums),
    /// Data may be packed from here on, or may not.
    Pack(bool),
    /// Grant or refuse a clear-text data connection.
    ClearAsk,
    /// A message of the copy protocol (ssh control only).
    Copy(Message),
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    /// Asked for, not decided yet.
    Asked(ObjectName),
    Open {
        object: ObjectName,
        geometry: Geometry,
    },
    /// Refused: requests for it that were already on their way end without a byte; the fault of the handle has said why.
    Refused,
}

/// A request, as it came.
#[derive(Clone, Copy, Debug)]
struct Asked {
    fetch: Fetch,
    have: Option<BlockMask>,
}

/// State of the holder's side of one connection.
#[derive(Debug)]
pub struct Holder {
    ours: Hello,
    /// What errors call the peer.
    peer: String,
    introduced: bool,
    agreed: Option<Negotiated>,
    objects: BTreeMap<u32, Slot>,
    jobs: VecDeque<Asked>,
    /// Cancelled requests that are still in `jobs` or running; bounded by the same limit as `jobs`.
    cancelled: Vec<u32>,
    running: Option<u32>,
    /// Clear-text data has been asked for.
    is_clear: bool,
}

impl Holder {
    /// A holder that introduces itself with `ours`.
    pub fn new(ours: Hello) -> Holder {
        Holder {
            ours,
            peer: "the receiver".into(),
            introduced: false,
            agreed: None,
            objects: BTreeMap::new(),
            jobs: VecDeque::new(),
            cancelled: Vec::new(),
            running: None,
            is_clear: false,
        }
    }

    /// A holder whose hello is sent by the caller, in front of other things.
    pub fn introduced(ours: Hello) -> Holder {
        Holder { introduced: true, ..Holder::new(ours) }
    }

    /// The same, calling the peer by a name that the user knows, for example that of its host.
    #[must_use]
    pub fn facing(mut self, peer: impl Into<String>) -> Holder {
        self.peer = peer.into();
        self
    }

    /// The first message to send, unless the caller has sent it.
    pub fn hello(&self) -> Option<Message> {
        (!self.introduced && self.agreed.is_none()).then(|| Message::Hello(self.ours.clone()))
    }

    /// What both sides agreed on, once the peer's hello has come.
    pub fn agreed(&self) -> Option<&Negotiated> {
        self.agreed.as_ref()
    }

    /// Checks a frame head: a receiver sends control frames only.
    pub fn handle_head(&self, head: FrameHead) -> Result<()> {
        if head.kind == FrameKind::Control && head.request == 0 {
            Ok(())
        } else {
            Err(protocol(format!("receiver sent a {:?} frame", head.kind)))
        }
    }

    /// Takes the body of a control frame.
    pub fn handle_control(&mut self, body: &[u8]) -> Result<HolderInput> {
        let message = Message::from_bytes(body)?;
        if self.agreed.is_none() {
            let Message::Hello(theirs) = message else {
                return Err(protocol("peer did not say hello first".into()));
            };
            let agreed = negotiate(&self.ours, &theirs)?;
            self.agreed = Some(agreed.clone());
            return Ok(HolderInput::Agreed(agreed));
        }
        match message {
            Message::Open(open) => {
                if self.objects.contains_key(&open.handle) {
                    return Err(protocol(format!("receiver opened handle {} twice", open.handle)));
                }
                if self.objects.len() >= OBJECTS_PER_CONNECTION_MAX {
                    return Err(protocol(format!(
                        "receiver opened more than {OBJECTS_PER_CONNECTION_MAX} objects"
                    )));
                }
                self.objects.insert(open.handle, Slot::Asked(open.object));
                Ok(HolderInput::Open(open))
            }
            Message::Fetch(fetch) => {
                self.queue(Asked { fetch, have: None })?;
                Ok(HolderInput::None)
            }
            Message::FetchRest(rest) => {
                self.check_agreed(feature::RESTS, "fetched a rest")?;
                self.queue(Asked { fetch: rest.whole(), have: Some(rest.have) })?;
                Ok(HolderInput::None)
            }
            Message::Sums(sums) => self.sums(sums),
            Message::Pack(pack) => {
                self.check_agreed(feature::PACKED, "wanted data packed")?;
                Ok(HolderInput::Pack(pack.may))
            }
            Message::Cancel(cancel) => {
                let known = self.running == Some(cancel.request)
                    || self.jobs.iter().any(|job| job.fetch.request == cancel.request);
                if known && !self.cancelled.contains(&cancel.request) {
                    self.cancelled.push(cancel.request);
                }
                Ok(HolderInput::None)
            }
            Message::Seal(seal) => match self.objects.get(&seal.handle) {
                Some(Slot::Open { object: ObjectName::Provisional(_), .. }) => Ok(HolderInput::Seal(seal)),
                _ => Err(protocol("receiver sealed an object that is not provisional".into())),
            },
            Message::Compare(compare) => self.compare(&compare),
            Message::Describe(describe) => Ok(match self.may_describe(describe.handle)? {
                true => HolderInput::Describe(describe.handle),
                false => HolderInput::None,
            }),
            Message::Nodes(nodes) => Ok(match self.may_describe(nodes.handle)? {
                true => {
                    let ids = nodes.ids.iter().map(|id| RecipeId::from_bytes(**id)).collect();
                    HolderInput::Nodes(nodes.handle, ids)
                }
                false => HolderInput::None,
            }),
            Message::ClearAsk(_) => {
                if self.may_go_clear() {
                    self.is_clear = true;
                    Ok(HolderInput::ClearAsk)
                } else {
                    Err(protocol("receiver asked for clear-text data out of place".into()))
                }
            }
            Message::Copy(_)
            | Message::Offer(_)
            | Message::Direct(_)
            | Message::Progress(_)
            | Message::Delivered(_) => Ok(HolderInput::Copy(message)),
            Message::Fault(fault) => Err(fault.to_error(&self.peer)),
            other => Err(protocol(format!("receiver sent {}", variant(&other)))),
        }
    }

    /// Answers change their channel once, as both sides agreed, before the first of them, and only if all of them are
    /// proven: whoever could ask for them has shown a right to one by then.
    fn may_go_clear(&self) -> bool {
        let is_proven = |slot: &Slot| matches!(slot, Slot::Open { object: ObjectName::Oid(_), .. });
        self.agreed.as_ref().is_some_and(|agreed| agreed.has(feature::CLEAR_DATA))
            && !self.objects.is_empty()
            && self.objects.values().all(is_proven)
            && self.jobs.is_empty()
            && self.running.is_none()
            && !self.is_clear
    }

    fn compare(&self, compare: &Compare) -> Result<HolderInput> {
        let Some(Slot::Open { geometry, .. }) = self.objects.get(&compare.handle) else {
            return Err(protocol("receiver compared an object that is not open".into()));
        };
        let subtree = |wanted: &ComparedSubtree| {
            let found = geometry.subtree(wanted.start_group, wanted.groups).filter(|found| found.groups >= 2);
            found.ok_or_else(|| protocol("receiver compared what is no subtree of the object".into()))
        };
        let subtrees = compare.subtrees.iter().map(subtree).collect::<Result<_>>()?;
        Ok(HolderInput::Compare(compare.handle, subtrees))
    }

    fn check_agreed(&self, feature: &str, what: &str) -> Result<()> {
        match self.agreed.as_ref().is_some_and(|agreed| agreed.has(feature)) {
            true => Ok(()),
            false => Err(protocol(format!("receiver {what}, which was not agreed on"))),
        }
    }

    fn sums(&self, sums: Sums) -> Result<HolderInput> {
        self.check_agreed(feature::RESTS, "asked for sums")?;
        match self.objects.get(&sums.handle) {
            Some(Slot::Open { geometry, .. }) if sums.is_within(geometry.size_bytes()) => {
                Ok(HolderInput::Sums(sums))
            }
            Some(Slot::Open { .. }) => {
                Err(protocol("receiver asked for sums of what is not in the object".into()))
            }
            Some(Slot::Refused) => Ok(HolderInput::None),
            Some(Slot::Asked(_)) | None => {
                Err(protocol("receiver asked for sums of an object that is not open".into()))
            }
        }
    }

    /// Whether a question for the recipe of `handle` is to be answered; false if the object was refused, which the fault
    /// of its opening has said.
    fn may_describe(&self, handle: u32) -> Result<bool> {
        self.check_agreed(feature::RECIPE, "asked for a recipe")?;
        match self.objects.get(&handle) {
            Some(Slot::Open { .. }) => Ok(true),
            Some(Slot::Refused) => Ok(false),
            Some(Slot::Asked(_)) | None => {
                Err(protocol("receiver asked for the recipe of an object that is not open".into()))
            }
        }
    }

    fn queue(&mut self, asked: Asked) -> Result<()> {
        let fetch = asked.fetch;
        if self.jobs.len() >= REQUESTS_PER_CONNECTION_MAX {
            return Err(protocol(format!(
                "receiver has more than {REQUESTS_PER_CONNECTION_MAX} requests outstanding"
            )));
        }
        if self.running == Some(fetch.request)
            || self.jobs.iter().any(|job| job.fetch.request == fetch.request)
        {
            return Err(protocol(format!("receiver used request number {} twice", fetch.request)));
        }
        match self.objects.get(&fetch.handle) {
            None => {
                return Err(protocol(format!(
                    "receiver fetched from handle {}, which is not open",
                    fetch.handle
                )));
            }
            Some(Slot::Open { geometry, .. }) => {
                check(*geometry, &fetch)?;
            }
            Some(Slot::Asked(_) | Slot::Refused) => {}
        }
        self.jobs.push_back(asked);
        Ok(())
    }

    /// The object asked for as `handle` is at hand.
    pub fn opened(&mut self, handle: u32, geometry: Geometry) {
        if let Some(slot) = self.objects.get_mut(&handle)
            && let Slot::Asked(object) = *slot
        {
            *slot = Slot::Open { object, geometry };
        }
    }

    /// The object asked for as `handle` is not to be had.
    pub fn refused(&mut self, handle: u32) {
        self.objects.insert(handle, Slot::Refused);
    }

    /// The next request to answer, oldest first. Cancelled ones and ones for refused objects come out as
    /// `Err(request)`: answer those with an `End` frame.
    pub fn next_job(&mut self) -> Result<Option<Result<Job, u32>>> {
        let Some(Asked { fetch, have }) = self.jobs.front().copied() else { return Ok(None) };
        match self.objects.get(&fetch.handle) {
            Some(Slot::Asked(_)) => Ok(None),
            Some(Slot::Open { geometry, .. }) => {
                let groups = check(*geometry, &fetch)?;
                self.jobs.pop_front();
                if self.take_cancelled(fetch.request) {
                    return Ok(Some(Err(fetch.request)));
                }
                self.running = Some(fetch.request);
                Ok(Some(Ok(Job {
                    request: fetch.request,
                    handle: fetch.handle,
                    groups,
                    known_depth: fetch.known_depth as usize,
                    recheck: fetch.recheck,
                    have,
                })))
            }
            Some(Slot::Refused) | None => {
                self.jobs.pop_front();
                self.take_cancelled(fetch.request);
                Ok(Some(Err(fetch.request)))
            }
        }
    }

    /// True if the running request has been cancelled meanwhile.
    pub fn is_cancelled(&self, request: u32) -> bool {
        self.cancelled.contains(&request)
    }

    /// The running request has been answered to its `End` or `Fault`.
    pub fn finished(&mut self, request: u32) {
        self.take_cancelled(request);
        self.running = None;
    }

    fn take_cancelled(&mut self, request: u32) -> bool {
        let before = self.cancelled.len();
        self.cancelled.retain(|cancelled| *cancelled != request);
        before != self.cancelled.len()
    }
}

/// The subtree a fetch means, or why it means none.
fn check(geometry: Geometry, fetch: &Fetch) -> Result<Subtree> {
    if fetch.groups > REQUEST_GROUPS_MAX {
        return Err(protocol(format!("request of {} groups, limit {REQUEST_GROUPS_MAX}", fetch.groups)));
    }
    let groups = geometry.subtree(fetch.start_group, fetch.groups).ok_or_else(|| {
        protocol(format!(
            "request of groups {}+{}, which is no subtree of the object",
            fetch.start_group, fetch.groups
        ))
    })?;
    if fetch.known_depth as usize >= geometry.path(groups).len() {
        return Err(protocol("request that claims to know more than the way to it".into()));
    }
    Ok(groups)
}

fn protocol(what: String) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

/// Name of a message for an error, without its contents.
pub(super) fn variant(message: &Message) -> &'static str {
    match message {
        Message::Hello(_) => "a second hello",
        Message::Open(_) => "open",
        Message::Opened(_) => "opened",
        Message::Fetch(_) => "fetch",
        Message::Cancel(_) => "cancel",
        Message::Seal(_) => "seal",
        Message::Sealed(_) => "sealed",
        Message::Fault(_) => "fault",
        Message::ClearAsk(_) => "clear-ask",
        Message::ClearGrant(_) => "clear-grant",
        Message::Copy(_) => "copy",
        Message::Offer(_) => "offer",
        Message::Direct(_) => "direct",
        Message::Progress(_) => "progress",
        Message::Delivered(_) => "delivered",
        Message::Compare(_) => "compare",
        Message::Compared(_) => "compared",
        Message::Describe(_) => "describe",
        Message::Described(_) => "described",
        Message::Nodes(_) => "nodes",
        Message::Node(_) => "node",
        Message::Pack(_) => "pack",
        Message::Sums(_) => "sums",
        Message::Summed(_) => "summed",
        Message::FetchRest(_) => "fetch-rest",
        Message::Tree(_) => "tree",
        Message::Entries(_) => "entries",
        Message::Pull(_) => "pull",
        Message::EntryFailed(_) => "entry-failed",
        Message::TreeDone(_) => "tree-done",
        Message::Planned(_) => "planned",
        Message::Sources(_) => "sources",
        Message::MoreSources(_) => "more-sources",
        Message::Landed(_) => "landed",
        Message::DigestsWanted(_) => "digests-wanted",
        Message::Digests(_) => "digests",
        Message::DigestsSame(_) => "digests-same",
        Message::InPlace(_) => "in-place",
        Message::Removed(_) => "removed",
    }
}

#[cfg(test)]
mod tests {
    use dray_core::Oid;
    use dray_core::limits::GROUP_BYTES;
    use dray_core::message::{Cancel, ClearAsk, Describe, FetchRest, Nodes, PROTOCOL_VERSION, Pack};

    use super::*;

    fn hello() -> Hello {
        Hello { version: PROTOCOL_VERSION, features: vec![], required: vec![], agent: "t".into() }
    }

    fn open_holder() -> Holder {
        let mut holder = Holder::new(hello());
        holder.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        let open = Open { handle: 1, object: ObjectName::Oid(Oid::of(b"")), proof: None };
        assert_eq!(
            holder.handle_control(&Message::Open(open.clone()).to_bytes()).unwrap(),
            HolderInput::Open(open)
        );
        holder
    }

    fn fetch(request: u32, start_group: u64, groups: u64) -> Vec<u8> {
        Message::Fetch(Fetch { request, handle: 1, start_group, groups, known_depth: 0, recheck: false })
            .to_bytes()
    }

    /// A holder says hello once, and nothing where the caller has said it; what both sides agreed on is known from then on.
    #[test]
    fn a_holder_says_hello_once() {
        let mut holder = Holder::new(hello());
        assert_eq!(holder.hello(), Some(Message::Hello(hello())));
        assert_eq!(Holder::introduced(hello()).hello(), None);
        assert!(holder.agreed().is_none());
        holder.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        assert!(holder.hello().is_none() && holder.agreed().is_some());
    }

    /// Requests may travel right behind `Open` (first payload within one round trip of it) and wait for the decision.
    #[test]
    fn requests_wait_for_the_decision_and_are_answered_in_order() {
        let mut holder = open_holder();
        holder.handle_control(&fetch(1, 0, 16)).unwrap();
        holder.handle_control(&fetch(2, 16, 16)).unwrap();
        holder.handle_control(&fetch(3, 32, 8)).unwrap();
        holder.handle_control(&Message::Cancel(Cancel { request: 2 }).to_bytes()).unwrap();
        holder.handle_control(&Message::Cancel(Cancel { request: 99 }).to_bytes()).unwrap();
        assert_eq!(holder.next_job().unwrap(), None);
        holder.opened(1, Geometry::new(40 * GROUP_BYTES));
        assert_eq!(holder.next_job().unwrap().unwrap().unwrap().request, 1);
        assert!(!holder.is_cancelled(1));
        holder.handle_control(&Message::Cancel(Cancel { request: 1 }).to_bytes()).unwrap();
        assert!(holder.is_cancelled(1));
        holder.finished(1);
        assert_eq!(holder.next_job().unwrap(), Some(Err(2)));
        assert_eq!(holder.next_job().unwrap().unwrap().unwrap().groups, Subtree { start: 32, groups: 8 });
        holder.finished(3);
        assert_eq!(holder.next_job().unwrap(), None);
        assert!(holder.cancelled.is_empty());
    }

    #[test]
    fn a_refused_object_answers_its_requests_with_an_end() {
        let mut holder = open_holder();
        holder.handle_control(&fetch(1, 0, 16)).unwrap();
        holder.refused(1);
        assert_eq!(holder.next_job().unwrap(), Some(Err(1)));
    }

    /// Protocol "Objects without an OID": what has an OID is not sealed.
    #[test]
    fn only_what_has_no_oid_is_sealed() {
        let seal = || Message::Seal(Seal { handle: 1, root: Oid::of(b"") }).to_bytes();
        assert_eq!(open_holder().handle_control(&seal()).unwrap_err().kind(), ErrorKind::Protocol);
        let mut proven = open_holder();
        proven.opened(1, Geometry::new(5));
        assert_eq!(proven.handle_control(&seal()).unwrap_err().kind(), ErrorKind::Protocol);
        let mut holder = Holder::new(hello());
        holder.handle_control(&Message::Hello(hello()).to_bytes()).unwrap();
        let open = Open { handle: 1, object: ObjectName::Provisional([7; 32]), proof: None };
        holder.handle_control(&Message::Open(open).to_bytes()).unwrap();
        holder.opened(1, Geometry::new(5));
        assert!(matches!(holder.handle_control(&seal()).unwrap(), HolderInput::Seal(_)));
    }

    #[test]
    fn rule_breakers_are_named() {
        let no_hello = Holder::new(hello()).handle_control(&fetch(1, 0, 16)).unwrap_err();
        assert!(no_hello.to_string().contains("hello first"));
        for (start, groups) in [(0, 15), (1, 2), (16, 32), (8, 16), (0, 2048), (u64::MAX, 16), (0, 0)] {
            let mut holder = open_holder();
            holder.opened(1, Geometry::new(4000 * GROUP_BYTES));
            assert_eq!(
                holder.handle_control(&fetch(1, start, groups)).unwrap_err().kind(),
                ErrorKind::Protocol
            );
        }
        for (kind, request) in [(FrameKind::Control, 1), (FrameKind::Data, 0), (FrameKind::Data, 1)] {
            assert!(open_holder().handle_head(FrameHead { kind, body_bytes: 8, request }).is_err());
        }
        open_holder().handle_head(FrameHead { kind: FrameKind::Control, body_bytes: 8, request: 0 }).unwrap();
        let mut largest = open_holder();
        largest.opened(1, Geometry::new(4000 * GROUP_BYTES));
        largest.handle_control(&fetch(1, 0, REQUEST_GROUPS_MAX)).unwrap();
        let mut holder = open_holder();
        holder.opened(1, Geometry::new(4000 * GROUP_BYTES));
        for request in 1..=64 {
            holder.handle_control(&fetch(request, 0, 16)).unwrap();
        }
        assert!(holder.handle_control(&fetch(65, 0, 16)).unwrap_err().to_string().contains("64 requests"));
        let mut holder = open_holder();
        holder.handle_control(&fetch(1, 0, 16)).unwrap();
        assert!(holder.handle_control(&fetch(1, 0, 16)).unwrap_err().to_string().contains("twice"));
        let mut holder = open_holder();
        let deep =
            Fetch { request: 1, handle: 1, start_group: 0, groups: 16, known_depth: 40, recheck: false };
        holder.handle_control(&Message::Fetch(deep).to_bytes()).unwrap();
        holder.opened(1, Geometry::new(4000 * GROUP_BYTES));
        assert!(holder.next_job().is_err());
        let mut holder = open_holder();
        let again = holder.handle_control(&Message::Hello(hello()).to_bytes()).unwrap_err();
        assert!(again.to_string().contains("a second hello"), "{again}");
    }

    /// Protocol "Order": a handle is opened once, an object keeps its shape, and a request's number is free again when it has been answered.
    #[test]
    fn handles_and_numbers_are_used_once() {
        let open = |handle| {
            Message::Open(Open { handle, object: ObjectName::Oid(Oid::of(b"")), proof: None }).to_bytes()
        };
        let mut refused = open_holder();
        refused.refused(1);
        for mut holder in [open_holder(), refused] {
            let error = holder.handle_control(&open(1)).unwrap_err();
            assert!(error.to_string().contains("handle 1 twice"), "{error}");
        }
        let mut holder = open_holder();
        holder.opened(1, Geometry::new(40 * GROUP_BYTES));
        holder.opened(1, Geometry::new(GROUP_BYTES));
        holder.handle_control(&fetch(1, 32, 8)).unwrap();
        assert_eq!(holder.next_job().unwrap().unwrap().unwrap().request, 1);
        let error = holder.handle_control(&fetch(1, 0, 16)).unwrap_err();
        assert!(error.to_string().contains("number 1 twice"), "{error}");
        holder.finished(1);
        holder.handle_control(&fetch(1, 0, 16)).unwrap();
    }

    /// A request is cancelled once, however often that is said, and what was cancelled of a refused object says nothing about the next request
    /// of that number.
    #[test]
    fn a_cancellation_is_kept_once_and_for_its_request() {
        let cancel = Message::Cancel(Cancel { request: 1 }).to_bytes();
        let mut holder = open_holder();
        holder.handle_control(&fetch(1, 0, 16)).unwrap();
        for _ in 0..3 {
            holder.handle_control(&cancel).unwrap();
        }
        assert_eq!(holder.cancelled, [1]);
        holder.refused(1);
        assert_eq!(holder.next_job().unwrap(), Some(Err(1)));
        let open = Open { handle: 2, object: ObjectName::Oid(Oid::of(b"")), proof: None };
        holder.handle_control(&Message::Open(open).to_bytes()).unwrap();
        holder.opened(2, Geometry::new(40 * GROUP_BYTES));
        let next =
            Fetch { request: 1, handle: 2, start_group: 0, groups: 16, known_depth: 0, recheck: false };
        holder.handle_control(&Message::Fetch(next).to_bytes()).unwrap();
        assert_eq!(holder.next_job().unwrap().unwrap().unwrap().handle, 2);
    }

    /// Protocol "Fetch": a receiver may know all of the way to a subtree but its own pair, and no more.
    #[test]
    fn what_is_known_of_the_way_is_bounded() {
        let geometry = Geometry::new(4000 * GROUP_BYTES);
        let way = geometry.path(Subtree { start: 0, groups: 16 }).len() as u32;
        for (known_depth, is_taken) in [(way - 1, true), (way, false)] {
            let mut holder = open_holder();
            holder.opened(1, geometry);
            let fetch =
                Fetch { request: 1, handle: 1, start_group: 0, groups: 16, known_depth, recheck: false };
            let found = holder.handle_control(&Message::Fetch(fetch).to_bytes());
            assert_eq!(found.is_ok(), is_taken, "{known_depth} of {way}");
        }
    }

    /// D17: single groups may be asked for, and pairs compared, of an object named by OID.
    #[test]
    fn an_update_asks_for_little() {
        let mut holder = open_holder();
        holder.opened(1, Geometry::new(40 * GROUP_BYTES));
        for (request, (start, groups)) in [(1, 1), (8, 8), (39, 1), (38, 2)].into_iter().enumerate() {
            holder.handle_control(&fetch(request as u32 + 1, start, groups)).unwrap();
        }
        let compare = |start_group, groups| {
            Message::Compare(Compare { handle: 1, subtrees: vec![ComparedSubtree { start_group, groups }] })
        };
        let found = holder.handle_control(&compare(0, 40).to_bytes()).unwrap();
        assert_eq!(found, HolderInput::Compare(1, vec![Subtree { start: 0, groups: 40 }]));
        assert!(holder.handle_control(&compare(0, 1).to_bytes()).is_err());
    }

    /// P6, D37: sums, rests and packed data have their features, and sums are of what is in the object.
    #[test]
    fn rests_have_their_moment() {
        let able = || Hello { features: vec![feature::RESTS.into(), feature::PACKED.into()], ..hello() };
        let run = |start, blocks| dray_core::message::BlockRun { start, blocks };
        let sums = |handle, runs| {
            Message::Sums(Sums { handle, number: 1, block_bytes: 1024, sum_bytes: 6, runs }).to_bytes()
        };
        let have = BlockMask::default();
        let rest = FetchRest { request: 1, handle: 1, group: 39, known_depth: 0, have };
        let rest = |group| Message::FetchRest(FetchRest { group, ..rest }).to_bytes();
        let pack = Message::Pack(Pack { may: true }).to_bytes();
        let begun = |ours: Hello| {
            let mut holder = Holder::new(ours);
            holder.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
            let open = Open { handle: 1, object: ObjectName::Oid(Oid::of(b"")), proof: None };
            holder.handle_control(&Message::Open(open).to_bytes()).unwrap();
            holder.opened(1, Geometry::new(40 * GROUP_BYTES - 1));
            holder
        };
        let mut holder = begun(able());
        assert_eq!(holder.handle_control(&pack).unwrap(), HolderInput::Pack(true));
        let last = 40 * 64 - 1;
        assert!(matches!(holder.handle_control(&sums(1, vec![run(0, 9)])).unwrap(), HolderInput::Sums(_)));
        assert!(matches!(
            holder.handle_control(&sums(1, vec![run(last - 1, 1)])).unwrap(),
            HolderInput::Sums(_)
        ));
        holder.handle_control(&rest(39)).unwrap();
        let job = holder.next_job().unwrap().unwrap().unwrap();
        assert_eq!((job.have, job.groups), (Some(have), Subtree { start: 39, groups: 1 }));
        for bad in
            [sums(1, vec![run(last, 1)]), sums(1, vec![run(u64::MAX, 2)]), sums(2, vec![run(0, 1)]), rest(40)]
        {
            assert_eq!(begun(able()).handle_control(&bad).unwrap_err().kind(), ErrorKind::Protocol);
        }
        for new in [sums(1, vec![run(0, 1)]), rest(0), pack] {
            let error = begun(hello()).handle_control(&new).unwrap_err();
            assert!(error.to_string().contains("agreed"), "{error}");
        }
    }

    /// D17: a recipe is asked for where both sides know what that is, of an open object; of a refused one nothing is said
    /// again.
    #[test]
    fn recipes_have_their_moment() {
        let able = || Hello { features: vec![feature::RECIPE.into()], ..hello() };
        let describe = |handle| Message::Describe(Describe { handle }).to_bytes();
        let nodes = Message::Nodes(Nodes { handle: 1, ids: vec![[7; 32].into()] }).to_bytes();
        let begun = |ours: Hello| {
            let mut holder = Holder::new(ours);
            holder.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
            let open = Open { handle: 1, object: ObjectName::Oid(Oid::of(b"")), proof: None };
            holder.handle_control(&Message::Open(open).to_bytes()).unwrap();
            holder
        };
        let mut holder = begun(able());
        assert!(holder.handle_control(&describe(1)).is_err(), "not open yet");
        let mut holder = begun(able());
        holder.opened(1, Geometry::new(40 * GROUP_BYTES));
        assert_eq!(holder.handle_control(&describe(1)).unwrap(), HolderInput::Describe(1));
        let asked = vec![RecipeId::from_bytes([7; 32])];
        assert_eq!(holder.handle_control(&nodes).unwrap(), HolderInput::Nodes(1, asked));
        assert!(holder.handle_control(&describe(2)).is_err(), "never opened");
        let mut holder = begun(able());
        holder.refused(1);
        assert_eq!(holder.handle_control(&describe(1)).unwrap(), HolderInput::None);
        assert_eq!(holder.handle_control(&nodes).unwrap(), HolderInput::None);
        let mut holder = begun(hello());
        holder.opened(1, Geometry::new(40 * GROUP_BYTES));
        assert!(holder.handle_control(&describe(1)).unwrap_err().to_string().contains("agreed"));
    }

    /// Design 5: clear-text data is granted once, where both sides have it, to a receiver with an open, proven object
    /// and nothing under way.
    #[test]
    fn clear_text_data_has_its_moment() {
        let ask = Message::ClearAsk(ClearAsk {}).to_bytes();
        let able = || Hello { features: vec![feature::CLEAR_DATA.into()], ..hello() };
        let begun = |ours: Hello, object: ObjectName| {
            let mut holder = Holder::new(ours);
            holder.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
            let open = Open { handle: 1, object, proof: None };
            holder.handle_control(&Message::Open(open).to_bytes()).unwrap();
            holder
        };
        let geometry = Geometry::new(40 * GROUP_BYTES);
        let (proven, vouched) = (ObjectName::Oid(Oid::of(b"")), ObjectName::Provisional([1; 32]));
        let mut early = Holder::new(able());
        early.handle_control(&Message::Hello(able()).to_bytes()).unwrap();
        assert!(early.handle_control(&ask).is_err(), "not before an object was asked for");
        let mut holder = begun(able(), proven);
        holder.opened(1, geometry);
        assert_eq!(holder.handle_control(&ask).unwrap(), HolderInput::ClearAsk);
        assert!(holder.handle_control(&ask).is_err(), "once");
        assert!(begun(able(), proven).handle_control(&ask).is_err(), "not before the object is open");
        for (ours, object) in [(hello(), proven), (able(), vouched)] {
            let mut holder = begun(ours, object);
            holder.opened(1, geometry);
            assert!(holder.handle_control(&ask).is_err(), "{object}");
        }
        for is_running in [false, true] {
            let mut holder = begun(able(), proven);
            holder.opened(1, geometry);
            holder.handle_control(&fetch(1, 0, 16)).unwrap();
            if is_running {
                assert!(matches!(holder.next_job(), Ok(Some(Ok(_)))));
            }
            assert!(holder.handle_control(&ask).is_err(), "in the middle of answers");
        }
    }
}
