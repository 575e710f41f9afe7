//! The books: requests that are made, cancelled, lost and ended, and who else may bring the same groups.

use dray_core::hash_tree::Subtree;
use dray_core::permit::Permit;
use dray_core::range::RangeSet;
use dray_core::source::{RequestId, SourceId};

use super::{Planner, PlannerCommand, Request};

/// What kind of request is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Nobody is asked for it.
    First,
    /// It was taken from another source.
    Borrowed,
    /// Another source owes it too.
    Duplicate,
}

impl Planner {
    /// Enters a request and tells its source. `None` if request numbers have run out.
    pub(super) fn issue(
        &mut self,
        now_us: u64,
        source: SourceId,
        (groups, recheck): (Subtree, bool),
        permit: Permit,
        role: Role,
    ) -> Option<PlannerCommand> {
        let Some(number) = self.last_request.checked_add(1) else {
            self.fail_for_want_of_numbers();
            return self.commands.pop_front();
        };
        let record = self.sources.get_mut(&source)?;
        self.last_request = number;
        let request = RequestId(number);
        self.work.take(groups);
        let issued_idle = record.requests.is_empty();
        if issued_idle {
            record.silent_since_us = now_us;
        }
        let recheck = recheck || record.doubted;
        record.requests.insert(request);
        record.running += 1;
        record.outstanding_bytes += permit.bytes();
        let overlapping: Vec<RequestId> = match role {
            // Nobody who is wanted owes it, but something of a cancelled request may still arrive.
            Role::First | Role::Borrowed => {
                self.shared.iter().copied().filter(|other| self.overlaps(*other, groups)).collect()
            }
            Role::Duplicate => {
                self.requests.keys().copied().filter(|other| self.overlaps(*other, groups)).collect()
            }
        };
        if !overlapping.is_empty() {
            self.shared.extend(overlapping);
            self.shared.insert(request);
        }
        let entry = Request {
            source,
            groups,
            recheck,
            wanted: true,
            started: false,
            borrowed: role == Role::Borrowed,
            duplicate: role == Role::Duplicate,
            mismatched: false,
            next_group: groups.start,
            reported_groups: 0,
            outstanding_bytes: permit.bytes(),
            issued_us: now_us,
            issued_idle,
        };
        self.requests.insert(request, entry);
        Some(PlannerCommand::Fetch { source, request, groups, recheck, permit })
    }

    fn overlaps(&self, request: RequestId, groups: Subtree) -> bool {
        let entry = self.requests.get(&request);
        entry.is_some_and(|entry| entry.groups.start < groups.end() && groups.start < entry.groups.end())
    }

    /// The work of a request that will not be done there is pending again, except for what is delivered or what
    /// another wanted request will bring. The request itself must not be wanted, or not be in the books, any more.
    pub(super) fn give_back(&mut self, entry: &Request) {
        if is_forgotten(entry) {
            return;
        }
        if self.shared.is_empty() {
            self.work.give_back(entry.groups, &RangeSet::new());
        } else {
            let owed = self.owed_elsewhere();
            self.work.give_back(entry.groups, &owed);
        }
    }

    /// Groups that wanted requests of the shared ones will bring.
    fn owed_elsewhere(&self) -> RangeSet {
        let mut owed = RangeSet::new();
        for request in &self.shared {
            if let Some(entry) = self.requests.get(request).filter(|entry| entry.wanted) {
                owed.insert(entry.next_group..entry.groups.end());
            }
        }
        owed
    }

    /// The same, except for `but` and without those of silent sources: what two owe that are both silent would otherwise be asked of nobody else.
    pub(super) fn owed_by_others(&self, now_us: u64, but: RequestId) -> RangeSet {
        let mut owed = RangeSet::new();
        for request in self.shared.iter().filter(|request| **request != but) {
            let entry = self.requests.get(request).filter(|entry| entry.wanted);
            if let Some(entry) = entry.filter(|entry| !self.is_silent(now_us, entry.source)) {
                owed.insert(entry.next_group..entry.groups.end());
            }
        }
        owed
    }

    fn is_silent(&self, now_us: u64, source: SourceId) -> bool {
        self.sources.get(&source).is_some_and(|record| record.is_silent(now_us))
    }

    /// Takes a request away from its source, and from other silent sources what they owe of the same.
    pub(super) fn take_away(&mut self, now_us: u64, request: RequestId) {
        let Some(groups) = self.requests.get(&request).map(|entry| entry.groups) else { return };
        let is_rival = |other: &RequestId| {
            let entry = self.requests.get(other).filter(|entry| entry.wanted);
            entry.is_some_and(|entry| self.is_silent(now_us, entry.source)) && self.overlaps(*other, groups)
        };
        let rivals: Vec<RequestId> = self.shared.iter().copied().filter(is_rival).collect();
        for rival in rivals {
            self.cancel(rival);
        }
        self.cancel(request);
    }

    /// Gives the work of a request back; what still arrives of it is taken only if nobody else was faster.
    pub(super) fn cancel(&mut self, request: RequestId) {
        let Some(entry) = self.requests.get_mut(&request).filter(|entry| entry.wanted) else { return };
        entry.wanted = false;
        let (source, groups) = (entry.source, entry.groups);
        self.shared.insert(request);
        let owed = self.owed_elsewhere();
        self.work.give_back(groups, &owed);
        if let Some(record) = self.sources.get_mut(&source) {
            record.running -= 1;
            if record.description.capabilities.cancel {
                self.commands.push_back(PlannerCommand::Cancel { source, request });
            }
        }
    }

    /// Nothing more is wanted of anybody.
    pub(super) fn cancel_all(&mut self) {
        let wanted: Vec<RequestId> =
            self.requests.iter().filter(|(_, entry)| entry.wanted).map(|(&request, _)| request).collect();
        for request in wanted {
            self.cancel(request);
        }
    }

    /// `group` was delivered: shared requests that can bring nothing new any more are cancelled.
    pub(super) fn cancel_losers(&mut self, group: u64) {
        let beaten: Vec<RequestId> =
            self.shared.iter().copied().filter(|request| self.is_needless(*request, group)).collect();
        for request in beaten {
            self.cancel(request);
        }
    }

    /// `group` was found here: the same for all requests.
    pub(super) fn cancel_needless(&mut self, group: u64) {
        let needless: Vec<RequestId> =
            self.requests.keys().copied().filter(|request| self.is_needless(*request, group)).collect();
        for request in needless {
            self.cancel(request);
        }
    }

    /// True if the request has `group` and can bring nothing that is missing.
    fn is_needless(&self, request: RequestId, group: u64) -> bool {
        self.requests.get(&request).is_some_and(|entry| {
            entry.wanted
                && (entry.groups.start..entry.groups.end()).contains(&group)
                && entry.next_group < entry.groups.end()
                && self.work.has_groups(entry.next_group..entry.groups.end())
        })
    }

    /// Takes a request that its source has ended off the books.
    pub(super) fn remove(&mut self, source: SourceId, request: RequestId) -> Option<Request> {
        if self.requests.get(&request)?.source != source {
            return None;
        }
        let entry = self.requests.remove(&request)?;
        self.shared.remove(&request);
        if let Some(record) = self.sources.get_mut(&source) {
            record.requests.remove(&request);
            record.outstanding_bytes -= entry.outstanding_bytes;
            record.running -= usize::from(entry.wanted);
            if record.outstanding_bytes == 0 {
                record.window.pause();
            }
        }
        Some(entry)
    }

    /// Takes every request of a source off the books; their work is pending again.
    pub(super) fn remove_all(&mut self, source: SourceId) {
        let requests = self.sources.get(&source).map(|record| record.requests.clone()).unwrap_or_default();
        for request in requests {
            if let Some(entry) = self.remove(source, request).filter(|entry| entry.wanted) {
                self.give_back(&entry);
            }
        }
    }

    pub(super) fn bytes_of(&self, groups: Subtree) -> u64 {
        let range = self.config.geometry.byte_range(groups);
        range.end - range.start
    }
}

#[cfg(not(feature = "canary"))]
fn is_forgotten(_: &Request) -> bool {
    false
}

/// The canary of the simulator: nobody is asked again for what was lost half-way. Never in a shipped build; the simulator
/// must find it (`docs/testing.md`).
#[cfg(feature = "canary")]
fn is_forgotten(entry: &Request) -> bool {
    entry.reported_groups > 0
}
