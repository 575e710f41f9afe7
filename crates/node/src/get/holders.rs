//! Who is asked for an object: the ticket's hints and the user's, in the order to try them, a source for each node.

use std::sync::Arc;

use dray_core::hint::selection_order;
use dray_core::hint::{Hint, HintUri};
use dray_core::message::ObjectName;
use dray_core::source::{Grade, SourceCapabilities, SourceDescription, SourceId};
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::direct::{DialConfig, Target, dial};
use dray_transfer::lanes::LaneSet;

use super::{GetRequest, Wanted};
use crate::Node;
use crate::at_hand::AtHand;
use crate::transfer::Transfer;

impl Node {
    /// The ticket's hints and the user's, in the order to try them.
    pub(super) fn targets(&self, request: &GetRequest) -> Result<Vec<Target>> {
        let from_ticket = match &request.wanted {
            Wanted::Ticket(ticket) => &ticket.hints[..],
            Wanted::Oid(_) => &[],
        };
        self.targets_of(&request.hints, from_ticket, request.allow_local)
    }

    /// Where these hints of the user's and of a ticket lead to, in the order to try them.
    pub(crate) fn targets_of(
        &self,
        own: &[Hint],
        from_ticket: &[Hint],
        allow_local: bool,
    ) -> Result<Vec<Target>> {
        let trusted = self.config.allow_local_targets || allow_local;
        let mut targets = Vec::new();
        let mut skipped = Vec::new();
        for (hints, allow_local) in [(own, true), (from_ticket, trusted)] {
            for index in selection_order(hints, crate::draw) {
                let hint = &hints[index];
                match (&hint.uri, hint.node) {
                    (HintUri::Dray { host, port }, Some(node)) => {
                        let address = if host.contains(':') {
                            format!("[{host}]:{port}")
                        } else {
                            format!("{host}:{port}")
                        };
                        targets.push(Target { address, node, priority: hint.priority, allow_local });
                    }
                    (HintUri::Dray { .. }, None) => skipped.push(format!("{} names no node", hint.uri)),
                    (HintUri::Unknown(_), _) => skipped.push(format!("{} has an unknown method", hint.uri)),
                }
            }
        }
        if targets.is_empty() {
            let why = if skipped.is_empty() { "there is no hint".to_owned() } else { skipped.join("; ") };
            return Err(Error::new(ErrorKind::NotFound, format!("nobody to ask: {why}"))
                .advise("use a ticket, or --hint dray://NODE@host:port"));
        }
        Ok(targets)
    }
}

/// The direct sources of a proven object, one for each node that the targets name: all of them are used at once, and the
/// addresses of one node are ways to the same source ([ADR 6](../../../docs/adr/0006-one-source-for-each-holder.md)).
/// The transfer knows them before they are dialled.
pub(super) struct Others(Vec<(Arc<LaneSet>, DialConfig)>);

impl Others {
    pub(super) fn new(transfer: &Arc<Transfer>, object: ObjectName, config: DialConfig) -> Others {
        let holders = by_node(&config.targets);
        // More holders do not mean more connections, beyond one each.
        let lanes = config.lanes.div_ceil(holders.len().max(1));
        let mut sources = Vec::new();
        for (number, targets) in holders.into_iter().enumerate() {
            let id = SourceId(u32::try_from(number).unwrap_or(u32::MAX - 1));
            let label = targets.first().map_or_else(String::new, |target| target.address.clone());
            let priority = targets.iter().map(|target| target.priority).min().unwrap_or(0);
            let description = SourceDescription {
                label: format!("direct {label}"),
                // Behind what is at hand.
                priority: priority.saturating_add(1),
                weight: 1,
                capabilities: SourceCapabilities {
                    grade: Grade::Proven,
                    cancel: true,
                    holes: true,
                    under_way_bytes: 0,
                },
            };
            let set = LaneSet::new(id, object, description, config.size_bytes, transfer.events());
            // All are known before the first is dialled: one that fails must not be taken for the last one.
            transfer.add_source(id, set.clone());
            sources.push((set, DialConfig { targets, lanes, ..config.clone() }));
        }
        Others(sources)
    }

    pub(super) fn dial(&mut self) {
        for (set, config) in self.0.drain(..) {
            dial(set, config);
        }
    }

    /// Dials, unless that was done, if what is at hand turns out to be of no use.
    pub(super) fn dial_if_needed(&mut self, transfer: &Transfer) {
        if !self.0.is_empty() && !AtHand::is_of_use(transfer) {
            self.dial();
        }
    }
}

/// Targets of the same node together, nodes and targets in their order.
fn by_node(targets: &[Target]) -> Vec<Vec<Target>> {
    let mut nodes: Vec<Vec<Target>> = Vec::new();
    for target in targets {
        match nodes.iter_mut().find(|known| known.iter().any(|other| other.node == target.node)) {
            Some(known) => known.push(target.clone()),
            None => nodes.push(vec![target.clone()]),
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use dray_core::NodeId;

    use super::*;

    /// D40: each node is a source of its own, however many of its addresses the hints name, in the order of the hints.
    #[test]
    fn hints_of_one_node_are_one_source() {
        let target = |node: u8, address: &str| Target {
            address: address.into(),
            node: NodeId::from_bytes([node; 32]),
            priority: 0,
            allow_local: false,
        };
        let targets =
            [target(2, "b:1"), target(1, "a:1"), target(2, "b:2"), target(3, "c:1"), target(1, "a:2")];
        let nodes = by_node(&targets);
        let addresses: Vec<Vec<&str>> =
            nodes.iter().map(|node| node.iter().map(|target| &*target.address).collect()).collect();
        assert_eq!(addresses, [vec!["b:1", "b:2"], vec!["a:1", "a:2"], vec!["c:1"]]);
        assert!(by_node(&[]).is_empty());
    }
}
