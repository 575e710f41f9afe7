//! Hears the events of one source, holds each against the contract as it comes, and keeps what the checks ask for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dray_core::hash_tree::{Cv, Geometry, MemoryPairs, Subtree, Verifier};
use dray_core::limits::GROUP_BYTES;
use dray_core::permit::Budget;
use dray_core::source::{
    DataPiece, Flow, Grade, RequestId, Source, SourceCall, SourceEvent, SourceEvents, SourceId,
};
use dray_core::{ErrorKind, Oid};

use super::bed::{PATIENCE, TestObject};

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Done,
    Failed(ErrorKind, bool),
}

/// How a source went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fall {
    pub(super) kind: Option<ErrorKind>,
    pub(super) gone: bool,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) node: Subtree,
    known_depth: usize,
    budget: Budget,
    /// Values of the groups, from the parents.
    leaves: Option<Vec<Cv>>,
    pub(super) groups: u64,
    pub(super) ending: Option<Ending>,
    may_be_short: bool,
    /// The source had it while it was up, so it owes an event about its end.
    is_owed: bool,
    /// The call that asks for it has not returned.
    is_asking: bool,
    /// An event about it is being handled.
    is_busy: bool,
}

impl Request {
    /// Its permit is back, and nothing came for it.
    fn is_untouched(&self) -> bool {
        self.leaves.is_none() && self.groups == 0 && self.budget.used_bytes() == 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) ups: usize,
    pub(super) names: BTreeSet<Vec<u8>>,
    pub(super) falls: Vec<Fall>,
    pub(super) sealed: Vec<Oid>,
    pub(super) compared: Vec<Vec<u8>>,
    pub(super) requests: BTreeMap<u32, Request>,
    is_up: bool,
    /// The last of what was heard, for messages.
    log: VecDeque<String>,
    violations: Vec<String>,
}

impl Heard {
    fn note(&mut self, what: String) {
        if self.log.back() != Some(&what) {
            self.log.push_back(what);
        }
        if self.log.len() > 50 {
            self.log.pop_front();
        }
    }
}

/// The sink of one source under test.
pub(super) struct Recorder {
    object: TestObject,
    geometry: Geometry,
    grade: Grade,
    verifier: Verifier<MemoryPairs>,
    /// Group events of these requests are answered with [`Flow::Cancel`].
    unwanted: Mutex<BTreeSet<u32>>,
    heard: Mutex<Heard>,
    changed: Condvar,
}

impl Recorder {
    pub(super) fn new(object: &TestObject, grade: Grade) -> Arc<Recorder> {
        let geometry = Geometry::new(object.data.len() as u64);
        let pairs = MemoryPairs::new(geometry).unwrap();
        Arc::new(Recorder {
            object: object.clone(),
            geometry,
            grade,
            verifier: Verifier::new(geometry, Oid::of(&object.data), pairs).unwrap(),
            unwanted: Mutex::default(),
            heard: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for `node`; each request has a budget of its own, so that its permit can be followed.
    pub(super) fn fetch(&self, source: &dyn Source, request: u32, node: Subtree) {
        let budget = Budget::new(u64::MAX);
        let permit = budget.try_reserve(self.geometry.byte_range(node).end.max(1)).unwrap();
        let known_depth = match self.grade {
            Grade::Proven => self.verifier.known_depth(node),
            Grade::Vouched => 0,
        };
        let state = Request {
            node,
            known_depth,
            budget,
            leaves: None,
            groups: 0,
            ending: None,
            may_be_short: false,
            is_owed: false,
            is_asking: true,
            is_busy: false,
        };
        let (was_up, falls) = {
            let mut heard = self.heard();
            heard.requests.insert(request, state);
            (heard.is_up, heard.falls.len())
        };
        let (id, known_depth) = (RequestId(request), known_depth as u32);
        source.call(SourceCall::Fetch { request: id, groups: node, known_depth, recheck: false, permit });
        let mut heard = self.heard();
        // The `Down` that stands for the end of a request may have come before the request got there.
        let down_was_told = !was_up || heard.falls.len() > falls;
        if let Some(state) = heard.requests.get_mut(&request) {
            state.is_asking = false;
            if down_was_told && state.ending.is_none() && state.is_untouched() {
                state.ending = Some(Ending::Failed(ErrorKind::Unreachable, true));
            }
        }
        self.changed.notify_all();
    }

    pub(super) fn cancel(&self, source: &dyn Source, request: u32) {
        if let Some(state) = self.heard().requests.get_mut(&request) {
            state.may_be_short = true;
        }
        source.call(SourceCall::Cancel { request: RequestId(request) });
    }

    /// From now on the answer to groups of `request` is that no more are wanted.
    pub(super) fn refuse_groups_of(&self, request: u32) {
        self.unwanted.lock().unwrap_or_else(PoisonError::into_inner).insert(request);
    }

    /// Waits until `is_so`; panics with the log if it never is.
    pub(super) fn wait(&self, what: &str, is_so: impl Fn(&Heard) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.heard();
        while !is_so(&heard) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} never happened: {:#?} {:?}", heard.log, heard.violations);
            heard = self.changed.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn wait_up(&self) {
        self.wait("up", |heard| heard.is_up);
    }

    pub(super) fn wait_ended(&self, requests: impl IntoIterator<Item = u32>) {
        for request in requests {
            self.wait(&format!("the end of request {request}"), |heard| {
                heard.requests[&request].ending.is_some()
            });
        }
    }

    pub(super) fn ending(&self, request: u32) -> Option<Ending> {
        self.heard().requests[&request].ending
    }

    pub(super) fn groups(&self, request: u32) -> u64 {
        self.heard().requests[&request].groups
    }

    pub(super) fn read<T>(&self, look: impl Fn(&Heard) -> T) -> T {
        look(&self.heard())
    }

    /// Bytes reserved by all requests.
    pub(super) fn reserved(&self) -> u64 {
        self.heard().requests.values().map(|request| request.budget.used_bytes()).sum()
    }

    /// Waits until every permit is back; for requests that end without an event.
    pub(super) fn wait_released(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.reserved() != 0 {
            assert!(Instant::now() < deadline, "permits are kept: {:#?}", self.heard().log);
            std::thread::yield_now();
        }
    }

    /// From here on the source owes an end to everything that it was asked, also if it goes down.
    pub(super) fn expect_ends(&self) {
        let mut heard = self.heard();
        if heard.is_up {
            heard.requests.values_mut().for_each(|request| request.is_owed = true);
        }
    }

    /// Closes the source and checks that this was the end and that nothing was wrong before.
    pub(super) fn close(&self, source: &dyn Source) {
        self.expect_ends();
        source.call(SourceCall::Close);
        self.wait("the end", |heard| heard.falls.last().is_some_and(|fall| fall.gone));
        self.check();
        let last = self.read(|heard| heard.falls.last().copied());
        assert_eq!(last, Some(Fall { kind: None, gone: true }), "after Close nothing has failed");
    }

    /// Panics if any event broke the contract, or if a permit outlived its request.
    pub(super) fn check(&self) {
        let heard = self.heard();
        assert!(heard.violations.is_empty(), "{:?} {:#?}", heard.violations, heard.log);
        drop(heard);
        self.wait_released();
    }

    /// Marks the event's request as being handled for as long as it is; two at once are a violation.
    fn enter(&self, request: RequestId, what: &str) {
        let mut heard = self.heard();
        heard.note(format!("{what} of {}", request.0));
        match heard.requests.get_mut(&request.0) {
            None => heard.violations.push(format!("{what} of request {}, never asked", request.0)),
            Some(state) => {
                let (overlaps, late) = (std::mem::replace(&mut state.is_busy, true), state.ending.is_some());
                if overlaps {
                    heard.violations.push(format!("{what} of request {} overlaps another event", request.0));
                }
                if late {
                    heard.violations.push(format!("{what} of request {} after its end", request.0));
                }
            }
        }
        drop(heard);
        // Room for another thread to overlap, if it would.
        std::thread::yield_now();
    }

    fn leave(&self, request: RequestId, handle: impl FnOnce(&mut Request) -> Result<(), String>) {
        let mut heard = self.heard();
        if let Some(state) = heard.requests.get_mut(&request.0) {
            state.is_busy = false;
            if let Err(why) = handle(state) {
                heard.violations.push(format!("request {}: {why}", request.0));
            }
        }
        self.changed.notify_all();
    }

    fn parents(&self, state: &mut Request, pairs: &[u8]) -> Result<(), String> {
        if self.grade == Grade::Vouched || state.groups > 0 || state.leaves.is_some() {
            return Err("parents out of place".into());
        }
        let leaves = self.verifier.accept_parents(state.node, state.known_depth, pairs);
        state.leaves = Some(leaves.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn group(&self, state: &mut Request, group: u64, bytes: &[u8], data: &[DataPiece]) -> Result<(), String> {
        if group != state.node.start + state.groups || group >= state.node.end() {
            return Err(format!("group {group} is not next after {} of {:?}", state.groups, state.node));
        }
        state.groups += 1;
        let start = (group * GROUP_BYTES) as usize;
        if bytes != &self.object.data[start..start + self.geometry.group_bytes(group)] {
            return Err(format!("group {group} has wrong bytes"));
        }
        if self.grade == Grade::Proven {
            if state.leaves.is_none() {
                // Nothing was missing on the way to a lone group.
                let leaves = self.verifier.accept_parents(state.node, state.known_depth, &[]);
                state.leaves = Some(leaves.map_err(|error| format!("no parents: {error}"))?);
            }
            let leaf =
                state.leaves.as_ref().and_then(|leaves| leaves.get((group - state.node.start) as usize));
            if !leaf.is_some_and(|leaf| self.verifier.group_matches(group, bytes, leaf)) {
                return Err(format!("group {group} is not what its parents say"));
            }
        }
        self.pieces(start as u64, bytes.len(), data)
    }

    /// The pieces that are data are exactly what the holder does not keep as holes.
    fn pieces(&self, start: u64, len: usize, data: &[DataPiece]) -> Result<(), String> {
        let (mut expected, mut at) = (Vec::<DataPiece>::new(), start);
        let end = start + len as u64;
        while at < end {
            let (range, is_hole) = self.object.extent_at(at, end);
            if !is_hole {
                expected.push((range.start - start) as u32..(range.end - start) as u32);
            }
            at = range.end;
        }
        if data == expected { Ok(()) } else { Err(format!("data is {data:?}, not {expected:?}")) }
    }

    fn end(&self, state: &mut Request, ending: Ending) -> Result<(), String> {
        state.ending = Some(ending);
        if state.budget.used_bytes() != 0 {
            return Err("ended and keeps its permit".into());
        }
        let missing = state.node.groups - state.groups;
        if ending == Ending::Done && missing > 0 && !state.may_be_short {
            return Err(format!("done with {missing} groups missing"));
        }
        Ok(())
    }

    fn source_event(&self, event: SourceEvent<'_>) {
        let mut heard = self.heard();
        heard.note(format!("{event:?}"));
        if heard.falls.last().is_some_and(|fall| fall.gone) {
            heard.violations.push("an event after the source was gone".into());
        }
        match event {
            SourceEvent::Up { size_bytes, name, .. } => {
                if size_bytes != self.geometry.size_bytes() {
                    heard.violations.push(format!("up with {size_bytes} bytes"));
                }
                heard.names.extend(name.map(<[u8]>::to_vec));
                heard.ups += 1;
                heard.is_up = true;
            }
            SourceEvent::Sealed { root } => heard.sealed.push(root),
            SourceEvent::Compared { pairs } => heard.compared.push(pairs.to_vec()),
            SourceEvent::Down { error, gone } => {
                heard.is_up = false;
                heard.falls.push(Fall { kind: error.map(|error| error.kind()), gone });
                let mut left = Vec::new();
                for (id, request) in heard.requests.iter_mut().filter(|(_, request)| request.ending.is_none())
                {
                    // What reached the source when it was down already is dropped without an event of its own.
                    if !request.is_owed && request.is_untouched() {
                        request.ending = Some(Ending::Failed(ErrorKind::Unreachable, true));
                    } else if request.is_owed || !request.is_asking {
                        left.push(*id);
                    }
                }
                if !left.is_empty() {
                    heard.violations.push(format!("down while requests {left:?} have not failed"));
                }
            }
            _ => {}
        }
        self.changed.notify_all();
    }
}

impl SourceEvents for Recorder {
    fn event(&self, _: SourceId, event: SourceEvent<'_>) -> Flow {
        if let SourceEvent::Parents { request, .. }
        | SourceEvent::Group { request, .. }
        | SourceEvent::Done { request }
        | SourceEvent::Failed { request, .. } = event
        {
            let is_up = self.heard().ups > 0;
            if !is_up {
                self.heard().violations.push(format!("{event:?} before up"));
            }
            match event {
                SourceEvent::Parents { pairs, .. } => {
                    self.enter(request, "parents");
                    self.leave(request, |state| self.parents(state, pairs));
                }
                SourceEvent::Group { group, bytes, data, .. } => {
                    self.enter(request, "group");
                    let unwanted = self.unwanted.lock().unwrap_or_else(PoisonError::into_inner);
                    let unwanted = unwanted.contains(&request.0);
                    self.leave(request, |state| {
                        state.may_be_short |= unwanted;
                        self.group(state, group, bytes, data)
                    });
                    if unwanted {
                        return Flow::Cancel;
                    }
                }
                SourceEvent::Failed { error, .. } => {
                    self.enter(request, "failure");
                    let ending = Ending::Failed(error.kind(), error.is_retryable());
                    self.leave(request, |state| self.end(state, ending));
                }
                _ => {
                    self.enter(request, "end");
                    self.leave(request, |state| self.end(state, Ending::Done));
                }
            }
        } else {
            self.source_event(event);
        }
        Flow::Continue
    }
}
