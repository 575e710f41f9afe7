//! How a run ended, and what every run is held to once it is over. What can be checked while it runs is checked there.

use dray_core::error::ErrorKind;
use dray_core::hash_tree::Geometry;
use dray_core::limits::GROUP_BYTES;

use super::holder::Conduct;
use super::plan::{Fault, Hints, Plan, Role};

/// S35: what honest holders may send beyond the object, to each receiver.
const SENT_TWICE_MAX: u64 = 16 << 20;

/// Budgets that a few sources which never answer can hold between them.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;

/// How one receiver ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Which.
    pub node: usize,
    /// With everything, each byte compared; or with a typed error and its text.
    pub result: Result<(), (ErrorKind, String)>,
    /// Virtual time, nanoseconds.
    pub begun_ns: u64,
    /// Virtual time, nanoseconds.
    pub ended_ns: u64,
    /// Bytes that each holder delivered in the last run of the process.
    pub shares: Vec<(usize, u64)>,
    /// Most bytes of permits held at once.
    pub most_reserved_bytes: u64,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// Of its plan.
    pub seed: u64,
    /// BLAKE3 of everything that happened and when: equal for equal runs.
    pub trace_hash: String,
    /// Entries of the trace.
    pub events: u64,
    /// Virtual time, nanoseconds.
    pub ended_ns: u64,
    /// The receivers, by node.
    pub ended: Vec<Ended>,
    /// Groups each node has sent.
    pub sent_groups: Vec<u64>,
    /// Groups each node has written, all runs of its process together.
    pub written_groups: Vec<u64>,
    /// How often each node's process was killed.
    pub kills: Vec<u64>,
    /// Most connections one node had open at once.
    pub most_open: usize,
    /// Nodes whose process was stopped for good.
    pub asleep: Vec<usize>,
    /// Promises that were broken; empty if all is well.
    pub findings: Vec<String>,
}

impl Report {
    /// Receivers that got the object.
    pub fn done(&self) -> usize {
        self.ended.iter().filter(|ended| ended.result.is_ok()).count()
    }

    /// When the last receiver ended, nanoseconds after the first began.
    pub fn took_ns(&self) -> u64 {
        let begun_ns = self.ended.iter().map(|ended| ended.begun_ns).min().unwrap_or(0);
        self.ended.iter().map(|ended| ended.ended_ns).max().unwrap_or(0).saturating_sub(begun_ns)
    }

    /// Holds the end of the run against what is promised.
    pub(crate) fn check(&mut self, plan: &Plan, geometry: Geometry) {
        let mut found = Vec::new();
        for (number, node) in plan.nodes.iter().enumerate() {
            let Role::Receiver { hints, .. } = &node.role else { continue };
            if self.asleep.contains(&number) {
                continue;
            }
            let Some(ended) = self.ended.iter().find(|ended| ended.node == number) else {
                found.push(format!("node {number} has not ended"));
                continue;
            };
            if let Err((kind, text)) = &ended.result {
                found.extend(check_error(plan, number, hints, *kind, text));
            }
            found.extend(check_written(
                plan,
                number,
                self.written_groups[number],
                self.kills[number],
                geometry,
            ));
        }
        let is_calm = plan.faults.is_empty()
            && plan.nodes.iter().all(|node| {
                node.conduct == Conduct::Honest && node.up.lost_per_million + node.down.lost_per_million == 0
            })
            && plan.shared.iter().all(|link| link.lost_per_million == 0);
        if is_calm {
            let sent_bytes = self.sent_groups.iter().sum::<u64>() * GROUP_BYTES;
            let object_bytes = geometry.groups() * GROUP_BYTES;
            let allowed_bytes = self.ended.len() as u64 * (object_bytes + SENT_TWICE_MAX);
            if sent_bytes > allowed_bytes {
                found.push(format!(
                    "holders sent {sent_bytes} bytes where {allowed_bytes} are promised (S35)"
                ));
            }
        }
        self.findings.append(&mut found);
    }
}

/// An error is right only where the object could not be had, and says why.
fn check_error(plan: &Plan, number: usize, hints: &Hints, kind: ErrorKind, text: &str) -> Option<String> {
    let is_internal = matches!(kind, ErrorKind::Internal | ErrorKind::Usage);
    if is_internal {
        return Some(format!("node {number} ended with an internal error: {text}"));
    }
    if !plan.can_receive(number) {
        return None;
    }
    // Sources that do not answer may hold the whole of a small budget, one after the other (`docs/testing.md`).
    if plan.window_bytes <= SMALL_BUDGET_BYTES
        && text.ends_with("the memory budget had no room for another request")
    {
        return None;
    }
    let steady = match hints {
        Hints::These(told) => {
            told.iter().map(|(holder, _)| *holder).find(|holder| plan.is_steady(*holder, number))
        }
        // Some of those that have it: a run without faults leaves them all as they are.
        Hints::Some(_) => plan.faults.is_empty().then_some(0),
    };
    steady.map(|holder| {
        format!("node {number} failed though node {holder} had the object all the time: {kind:?}: {text}")
    })
}

/// S15: what is written twice is what had come of unfinished units when the process was killed.
fn check_written(plan: &Plan, number: usize, written: u64, kills: u64, geometry: Geometry) -> Option<String> {
    let lost_power = plan.faults.iter().any(|planned| planned.fault == Fault::PowerCut(number));
    let allowed = geometry.groups() + kills * SENT_TWICE_MAX / GROUP_BYTES;
    (!lost_power && written > allowed)
        .then(|| format!("node {number} wrote {written} groups where {allowed} are promised (S15)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run;

    /// Every promise that is looked at in the end is found broken where it is, and not one step before.
    #[test]
    fn broken_promises_are_found() {
        let plan = Plan::swarm(1, 2, 1 << 20);
        let geometry = Geometry::new(plan.size_bytes);
        let kept = run(&plan, None);
        assert_eq!((kept.findings.len(), kept.ended.len()), (0, 1));
        let found = |change: &dyn Fn(&mut Report)| {
            let mut report = kept.clone();
            change(&mut report);
            report.check(&plan, geometry);
            report.findings.join("; ")
        };
        let groups = geometry.groups();
        let twice = SENT_TWICE_MAX / GROUP_BYTES;
        assert_eq!(found(&|report| report.written_groups[1] = groups), "");
        assert!(found(&|report| report.written_groups[1] = groups + 1).ends_with("(S15)"));
        let killed_once = |report: &mut Report, written| {
            report.kills[1] = 1;
            report.written_groups[1] = written;
        };
        assert_eq!(found(&|report| killed_once(report, groups + twice)), "");
        assert!(found(&|report| killed_once(report, groups + twice + 1)).ends_with("(S15)"));
        assert_eq!(found(&|report| report.sent_groups[0] = groups + twice), "");
        assert!(found(&|report| report.sent_groups[0] = groups + twice + 1).ends_with("(S35)"));
        assert!(found(&|report| report.ended.clear()).starts_with("node 1 has not ended"));
        let failed = |report: &mut Report, kind| report.ended[0].result = Err((kind, "why".to_owned()));
        assert!(found(&|report| failed(report, ErrorKind::Internal)).contains("an internal error: why"));
        assert!(
            found(&|report| failed(report, ErrorKind::TimedOut)).contains("though node 0 had the object")
        );
    }
}
