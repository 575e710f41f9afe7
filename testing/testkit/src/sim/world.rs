//! The whole: nodes with their processes, the faults that befall them, and one loop over the events of virtual time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use dray_core::limits::HELLO_TIMEOUT_MS;
use dray_core::message::{Fault as FaultMessage, Message};
use dray_core::{ErrorKind, Result};

use super::clock::{Event, Wakeup};
use super::device::{Disk, Processors};
use super::holder::{Conduct, Desk, Serving, control_frame};
use super::network::{ConnectionId, Network, Piece, Side, Standing};
use super::object::{Object, Stored};
use super::plan::{Fault, Hints, Plan, Role};
use super::random::Random;
use super::receiver::{Hands, Hint, Transfer};
use super::report::{Ended, Report};
use super::trace::Trace;

/// After everything has ended and every fault has passed, whatever is still held is a leak: the longest that the product waits
/// for a dead peer, and some.
const QUIET_NS: u64 = 60_000_000_000;
/// Events at one moment beyond which something turns in a circle.
const EVENTS_AT_ONCE_MAX: u64 = 10_000_000;

struct Node {
    links: [usize; 2],
    disk: Disk,
    processors: Processors,
    /// Number of its process; what was planned for an earlier one is stale.
    process: u64,
    is_running: bool,
    /// Faults that keep its process asleep.
    freezes: BTreeSet<usize>,
    waiting: Vec<Wakeup>,
    serving: BTreeMap<ConnectionId, Serving>,
    sent_groups: u64,
    stored: Stored,
    transfer: Option<Transfer>,
    /// Faults that slow its disk or its links down, and how much; those that fill its disk.
    slow_disk: BTreeMap<usize, u64>,
    slow_links: BTreeMap<usize, u64>,
    full_disk: BTreeSet<usize>,
    begun_ns: Option<u64>,
    kills: u64,
    ended: Option<Ended>,
}

/// A run in progress.
pub(crate) struct World<'a> {
    plan: &'a Plan,
    network: Network,
    object: Object,
    chance: Random,
    nodes: Vec<Node>,
    findings: Vec<String>,
}

impl<'a> World<'a> {
    pub(crate) fn new(plan: &'a Plan, trace: Trace) -> Result<World<'a>> {
        let object = Object::new(plan.size_bytes, plan.seed)?;
        let mut network = Network::new(trace, Random::new(plan.seed, "loss"));
        let shared: Vec<usize> = plan.shared.iter().map(|model| network.add_link(*model)).collect();
        let mut nodes = Vec::new();
        for (number, node) in plan.nodes.iter().enumerate() {
            let [up, down] = [node.up, node.down].map(|model| network.add_link(model));
            let over = |numbers: &[usize]| numbers.iter().map(|number| shared[*number]).collect::<Vec<_>>();
            let out_links = [vec![up], over(&node.shared_up)].concat();
            let in_links = [over(&node.shared_down), vec![down]].concat();
            network.add_machine(out_links, in_links);
            let starts_ns = match node.role {
                Role::Holder => 0,
                Role::Receiver { starts_ns, .. } => starts_ns,
            };
            network.clock.plan(starts_ns, Event::Begins(number));
            nodes.push(Node {
                links: [up, down],
                disk: Disk::new(node.disk),
                processors: Processors::new(node.cores, node.core_bytes_per_s),
                process: 0,
                is_running: false,
                freezes: BTreeSet::new(),
                waiting: Vec::new(),
                serving: BTreeMap::new(),
                sent_groups: 0,
                stored: Stored::new(object.geometry)?,
                transfer: None,
                slow_disk: BTreeMap::new(),
                slow_links: BTreeMap::new(),
                full_disk: BTreeSet::new(),
                begun_ns: None,
                kills: 0,
                ended: None,
            });
        }
        for (number, planned) in plan.faults.iter().enumerate() {
            network.clock.plan(planned.at_ns, Event::Fault(number));
            if let Some(for_ns) = planned.for_ns {
                network.clock.plan(planned.at_ns + for_ns, Event::Mended(number));
            }
        }
        let chance = Random::new(plan.seed, "hints");
        Ok(World { plan, network, object, chance, nodes, findings: Vec::new() })
    }

    /// Runs to the end, and says what was found.
    pub(crate) fn run(mut self) -> Report {
        let passed = self.plan.faults.iter().map(|planned| planned.at_ns + planned.for_ns.unwrap_or(0)).max();
        let mut quiet_ns = None;
        let (mut moment_ns, mut at_once) = (0, 0);
        while let Some(event) = self.network.clock.next() {
            let now_ns = self.network.now_ns();
            at_once = if now_ns > moment_ns { 0 } else { at_once + 1 };
            moment_ns = now_ns;
            if at_once > EVENTS_AT_ONCE_MAX {
                self.findings.push(format!("it turns in a circle at {now_ns} ns"));
                break;
            }
            if now_ns > self.plan.horizon_ns {
                self.findings.push("something is stuck: the horizon is reached".to_owned());
                break;
            }
            if quiet_ns.is_none() && self.all_ended() {
                quiet_ns = Some(now_ns.max(passed.unwrap_or(0)) + QUIET_NS);
            }
            if quiet_ns.is_some_and(|quiet_ns| now_ns > quiet_ns) {
                break;
            }
            self.turn(event);
        }
        self.check_nothing_held();
        self.report()
    }

    /// `event` happens, and whoever it concerns goes on as far as it can.
    fn turn(&mut self, event: Event) {
        self.handle(event);
        while let Some((node, id, side)) = self.network.next_ready() {
            self.ready(node, id, side);
        }
    }

    fn all_ended(&self) -> bool {
        let receivers = self.plan.nodes.iter().zip(&self.nodes);
        let mut receivers = receivers.filter(|(plan, _)| matches!(plan.role, Role::Receiver { .. }));
        receivers.all(|(_, node)| node.ended.is_some() || self.sleeps_for_ever(node))
    }

    fn sleeps_for_ever(&self, node: &Node) -> bool {
        node.freezes.iter().any(|fault| self.plan.faults[*fault].for_ns.is_none())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrives(segment) => self.network.arrives(segment),
            Event::Acknowledged(segment) => self.network.acknowledged(segment),
            Event::Missed(segment) => self.network.missed(segment),
            Event::Retransmits(id, side) => self.network.retransmits(id, side),
            Event::Knocks(id, time) => self.network.knocks(id, time),
            Event::Established(id) => self.network.established(id),
            Event::Rejected(id) => self.network.rejected(id),
            Event::Reset(id, side) => self.network.reset(id, side),
            Event::Probes(id) => self.network.probes(id),
            Event::Process { node, process, what } => self.process(node, process, what),
            Event::Fault(number) => self.strike(number),
            Event::Mended(number) => self.mend(number),
            Event::Begins(node) => self.begin(node),
        }
    }

    /// What a process waited for has happened.
    fn process(&mut self, number: usize, process: u64, what: Wakeup) {
        let node = &mut self.nodes[number];
        if node.process != process || !node.is_running {
            return;
        }
        if !node.freezes.is_empty() {
            node.waiting.push(what);
            return;
        }
        match what {
            Wakeup::Chunk(id) => {
                self.serve(number, id, |serving, desk| {
                    serving.chunk_ready(desk);
                    serving.step(desk)
                });
            }
            Wakeup::Greeting(id) => {
                self.serve(number, id, |serving, desk| Ok(!serving.is_late(desk.network.now_ns())));
            }
            _ => self.receive(number, |transfer, hands| transfer.wakeup(hands, what)),
        }
    }

    /// A connection has something new for its end at `number`.
    fn ready(&mut self, number: usize, id: ConnectionId, side: Side) {
        let node = &mut self.nodes[number];
        if !node.is_running || !node.freezes.is_empty() {
            // Whoever thaws looks at every connection.
            return;
        }
        if side == Side::Dialler {
            return self.receive(number, |transfer, hands| transfer.ready(hands, id));
        }
        if let Entry::Vacant(place) = node.serving.entry(id) {
            if !matches!(self.network.standing(id, Side::Listener), Standing::Up(_)) {
                return self.network.close(id, Side::Listener);
            }
            place.insert(Serving::new(id, self.network.now_ns()));
            let what = Wakeup::Greeting(id);
            let event = Event::Process { node: number, process: node.process, what };
            self.network.clock.after(HELLO_TIMEOUT_MS * 1_000_000, event);
        }
        self.serve(number, id, |serving, desk| serving.step(desk));
    }

    /// Lets a connection that is served go on; it ends if `what` says `false`, or fails.
    fn serve(
        &mut self,
        number: usize,
        id: ConnectionId,
        what: impl FnOnce(&mut Serving, &mut Desk<'_>) -> Result<bool>,
    ) {
        let node = &mut self.nodes[number];
        let Some(mut serving) = node.serving.remove(&id) else { return };
        let is_origin = matches!(self.plan.nodes[number].role, Role::Holder);
        let pairs = if is_origin { &self.object.pairs } else { &node.stored.pairs };
        let mut desk = Desk {
            network: &mut self.network,
            object: &self.object,
            pairs,
            disk: &mut node.disk,
            processors: &mut node.processors,
            conduct: self.plan.nodes[number].conduct,
            sent_groups: &mut node.sent_groups,
            node: number,
            process: node.process,
        };
        match what(&mut serving, &mut desk) {
            Ok(true) => {
                node.serving.insert(id, serving);
            }
            Ok(false) => self.network.close(id, Side::Listener),
            Err(error) => {
                if self.plan.nodes[number].conduct == Conduct::Honest {
                    let dialler = self.network.dialler_of(id);
                    self.findings.push(format!("node {number}: receiver {dialler:?} broke a rule: {error}"));
                }
                let frame = control_frame(&Message::Fault(FaultMessage::from_error(None, &error)));
                if error.kind() != ErrorKind::Interrupted {
                    self.network.write(id, Side::Listener, Piece::Bytes(frame));
                }
                self.network.close(id, Side::Listener);
            }
        }
    }

    /// Lets the transfer of a receiver go on.
    fn receive(&mut self, number: usize, what: impl FnOnce(&mut Transfer, &mut Hands<'_>)) {
        let node = &mut self.nodes[number];
        let Some(mut transfer) = node.transfer.take() else { return };
        let mut hands = Hands {
            network: &mut self.network,
            object: &self.object,
            stored: &mut node.stored,
            disk: &mut node.disk,
            processors: &mut node.processors,
            node: number,
            process: node.process,
            is_disk_full: !node.full_disk.is_empty(),
            findings: &mut self.findings,
        };
        what(&mut transfer, &mut hands);
        if !transfer.is_over() {
            node.transfer = Some(transfer);
            return;
        }
        transfer.check_end(&mut hands);
        self.finish(number, &transfer);
    }

    /// The command has ended.
    fn finish(&mut self, number: usize, transfer: &Transfer) {
        let Some((outcome, ended_ns)) = &transfer.outcome else { return };
        let result = match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err((error.kind(), error.to_string())),
        };
        let words = result.as_ref().err().map_or("done", |(_, text)| text.as_str());
        self.network.trace.say(*ended_ns, "ended", number, words);
        let is_done = result.is_ok();
        let node = &mut self.nodes[number];
        node.ended = Some(Ended {
            node: number,
            result,
            begun_ns: node.begun_ns.unwrap_or(0),
            ended_ns: *ended_ns,
            shares: transfer.shares().into_iter().map(|(holder, _, bytes)| (holder, bytes)).collect(),
            most_reserved_bytes: transfer.most_reserved_bytes,
        });
        let serves = matches!(self.plan.nodes[number].role, Role::Receiver { serves: true, .. });
        if is_done && serves {
            self.network.set_listening(number, true);
        } else {
            self.stop(number, true);
        }
    }

    /// The process of a node ends.
    fn stop(&mut self, number: usize, has_power: bool) {
        let node = &mut self.nodes[number];
        node.process += 1;
        node.is_running = false;
        node.freezes.clear();
        node.waiting.clear();
        node.serving.clear();
        node.transfer = None;
        self.network.end_process(number, has_power);
    }

    /// A node's process begins, for the first time or again.
    fn begin(&mut self, number: usize) {
        if self.nodes[number].is_running || !self.network.has_power(number) {
            return;
        }
        self.network.note("begins", &[number as u64]);
        self.nodes[number].is_running = true;
        let Role::Receiver { hints, serves, .. } = &self.plan.nodes[number].role else {
            return self.network.set_listening(number, true);
        };
        let now_ns = self.network.now_ns();
        self.nodes[number].begun_ns.get_or_insert(now_ns);
        match &self.nodes[number].ended {
            // What it was delivered without a sync may have gone with the power: then it has nothing to serve.
            Some(ended)
                if ended.result.is_ok()
                    && *serves
                    && self.nodes[number].stored.is_whole(self.object.geometry) =>
            {
                self.network.set_listening(number, true);
            }
            Some(_) => self.nodes[number].is_running = false,
            None => {
                let hints = self.hints(number, hints);
                self.fetch(number, &hints);
            }
        }
    }

    /// Whom the receiver is told of.
    fn hints(&mut self, receiver: usize, hints: &Hints) -> Vec<Hint> {
        let told = match hints {
            Hints::These(told) => told.clone(),
            Hints::Some(count) => {
                let known: Vec<(usize, u16)> = (0..self.nodes.len())
                    .filter(|number| *number != receiver && self.network.is_listening(*number))
                    .map(|number| (number, 0))
                    .collect();
                self.chance.sample(&known, *count)
            }
        };
        let hint = |(holder, priority)| Hint {
            holder,
            priority,
            is_honest: self.plan.nodes[holder].conduct == Conduct::Honest,
            is_steady: self.plan.is_steady(holder, receiver),
            under_way_bytes: self.plan.nodes[holder].under_way_bytes,
        };
        told.into_iter().map(hint).collect()
    }

    fn fetch(&mut self, number: usize, hints: &[Hint]) {
        let node = &mut self.nodes[number];
        let mut hands = Hands {
            network: &mut self.network,
            object: &self.object,
            stored: &mut node.stored,
            disk: &mut node.disk,
            processors: &mut node.processors,
            node: number,
            process: node.process,
            is_disk_full: !node.full_disk.is_empty(),
            findings: &mut self.findings,
        };
        match Transfer::begin(&mut hands, hints, self.plan.connections, self.plan.window_bytes) {
            Ok(transfer) => {
                node.transfer = Some(transfer);
                self.receive(number, |_, _| {});
            }
            Err(error) => self.findings.push(format!("node {number}: cannot begin: {error}")),
        }
    }

    fn strike(&mut self, number: usize) {
        let planned = &self.plan.faults[number];
        self.network.note("fault", &[number as u64]);
        match &planned.fault {
            Fault::Kill(node) => self.kill(*node, true, planned.for_ns.is_some()),
            Fault::PowerCut(node) => self.kill(*node, false, planned.for_ns.is_some()),
            Fault::Freeze(node) if self.nodes[*node].is_running => {
                self.nodes[*node].freezes.insert(number);
            }
            Fault::Freeze(_) => {}
            Fault::Partition(cut_off) => {
                for node in cut_off {
                    self.network.set_cut_off(*node, number, true);
                }
            }
            Fault::SlowDisk(node, factor) => {
                self.nodes[*node].slow_disk.insert(number, *factor);
                self.set_slowness(*node);
            }
            Fault::SlowLinks(node, factor) => {
                self.nodes[*node].slow_links.insert(number, *factor);
                self.set_slowness(*node);
            }
            Fault::FullDisk(node) => {
                self.nodes[*node].full_disk.insert(number);
            }
        }
    }

    fn mend(&mut self, number: usize) {
        let planned = &self.plan.faults[number];
        self.network.note("mended", &[number as u64]);
        match &planned.fault {
            Fault::Kill(node) => self.begin(*node),
            Fault::PowerCut(node) => {
                self.network.set_power(*node, true);
                self.begin(*node);
            }
            Fault::Freeze(node) => self.thaw(*node, number),
            Fault::Partition(cut_off) => {
                for node in cut_off {
                    self.network.set_cut_off(*node, number, false);
                }
            }
            Fault::SlowDisk(node, _) => {
                self.nodes[*node].slow_disk.remove(&number);
                self.set_slowness(*node);
            }
            Fault::SlowLinks(node, _) => {
                self.nodes[*node].slow_links.remove(&number);
                self.set_slowness(*node);
            }
            Fault::FullDisk(node) => {
                self.nodes[*node].full_disk.remove(&number);
            }
        }
    }

    /// Of several faults at once the worst counts, until the last of them has passed.
    fn set_slowness(&mut self, node: usize) {
        let worst = |faults: &BTreeMap<usize, u64>| faults.values().copied().max().unwrap_or(1);
        let node = &mut self.nodes[node];
        node.disk.slowness = worst(&node.slow_disk);
        let slowness = worst(&node.slow_links);
        for link in node.links {
            self.network.set_link_slowness(link, slowness);
        }
    }

    fn kill(&mut self, number: usize, has_power: bool, comes_back: bool) {
        self.stop(number, has_power);
        let now_ns = self.network.now_ns();
        let node = &mut self.nodes[number];
        node.kills += 1;
        if has_power {
            node.stored.lose_process();
        } else {
            node.stored.lose_power();
            self.network.set_power(number, false);
        }
        let is_receiver = matches!(self.plan.nodes[number].role, Role::Receiver { .. });
        if is_receiver && !comes_back && node.ended.is_none() {
            let result = Err((ErrorKind::Interrupted, "killed".to_owned()));
            let begun_ns = node.begun_ns.unwrap_or(now_ns);
            let shares = Vec::new();
            node.ended = Some(Ended {
                node: number,
                result,
                begun_ns,
                ended_ns: now_ns,
                shares,
                most_reserved_bytes: 0,
            });
        }
    }

    fn thaw(&mut self, number: usize, fault: usize) {
        let node = &mut self.nodes[number];
        // It may have been killed meanwhile.
        if !node.freezes.remove(&fault) || !node.freezes.is_empty() {
            return;
        }
        let now_ns = self.network.now_ns();
        if let Some(transfer) = &mut node.transfer {
            transfer.slept(now_ns);
        }
        let process = node.process;
        for what in std::mem::take(&mut node.waiting) {
            self.network.clock.after(0, Event::Process { node: number, process, what });
        }
        self.network.wake_all(number);
    }

    /// When all is over nobody holds anything, but for those who sleep for ever.
    fn check_nothing_held(&mut self) {
        for (number, node) in self.nodes.iter().enumerate() {
            if !node.freezes.is_empty() {
                continue;
            }
            let with_sleepers = |other: usize| !self.nodes[other].freezes.is_empty();
            let open = self.network.open_at(number, &with_sleepers);
            if open > 0 {
                self.findings.push(format!("node {number}: {open} connections are open after the end"));
            }
            if node.serving.keys().any(|id| self.network.standing(*id, Side::Listener) == Standing::Closed) {
                self.findings.push(format!("node {number}: it serves what is closed"));
            }
            if node.transfer.is_some() {
                self.findings.push(format!("node {number}: its transfer has not ended"));
            }
        }
    }

    fn report(self) -> Report {
        let asleep =
            (0..self.nodes.len()).filter(|number| self.sleeps_for_ever(&self.nodes[*number])).collect();
        let ended: Vec<Ended> = self.nodes.iter().filter_map(|node| node.ended.clone()).collect();
        let mut report = Report {
            seed: self.plan.seed,
            trace_hash: self.network.trace.hash(),
            events: self.network.trace.events(),
            ended_ns: self.network.now_ns(),
            sent_groups: self.nodes.iter().map(|node| node.sent_groups).collect(),
            written_groups: self.nodes.iter().map(|node| node.stored.written_groups).collect(),
            kills: self.nodes.iter().map(|node| node.kills).collect(),
            most_open: self.network.most_open,
            asleep,
            ended,
            findings: self.findings,
        };
        report.check(self.plan, self.object.geometry);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::PlannedFault;

    /// Lets the next event happen.
    fn turn_next(world: &mut World<'_>) {
        let event = world.network.clock.next().unwrap();
        world.turn(event);
    }

    /// A holder, and a receiver that begins then.
    fn begins_at(begins_ns: u64, size_bytes: u64) -> Plan {
        let mut plan = Plan::swarm(1, 2, size_bytes);
        let Role::Receiver { starts_ns, .. } = &mut plan.nodes[1].role else { unreachable!() };
        *starts_ns = begins_ns;
        plan
    }

    /// A run that is looked at in the middle: what is held there is found, each kind of it, and at its end nothing is.
    #[test]
    fn what_is_held_is_found() {
        let plan = Plan::swarm(1, 2, 1 << 20);
        let mut world = World::new(&plan, Trace::new(None)).unwrap();
        while world.nodes[0].serving.is_empty() {
            turn_next(&mut world);
        }
        world.check_nothing_held();
        let held = ["node 0: 1 connections are open after the end", "node 1: its transfer has not ended"];
        assert!(
            held.iter().all(|what| world.findings.iter().any(|found| found == what)),
            "{:?}",
            world.findings
        );
        world.findings.clear();
        let (&id, _) = world.nodes[0].serving.first_key_value().unwrap();
        world.network.close(id, Side::Listener);
        world.check_nothing_held();
        assert!(
            world.findings.contains(&"node 0: it serves what is closed".to_owned()),
            "{:?}",
            world.findings
        );
        let report = World::new(&plan, Trace::new(None)).unwrap().run();
        assert_eq!(report.findings, Vec::<String>::new());
    }

    /// A run up to where node 1 has begun to fetch and has so many groups.
    fn midway(plan: &Plan, groups: u64) -> World<'_> {
        let mut world = World::new(plan, Trace::new(None)).unwrap();
        while world.nodes[1].transfer.is_none() || world.nodes[1].stored.written_groups < groups {
            turn_next(&mut world);
        }
        world
    }

    fn ends_with(world: World<'_>, finding: &str) {
        let findings = world.run().findings;
        assert!(findings.iter().any(|found| found.contains(finding)), "{finding}: {findings:?}");
    }

    /// What is looked at while a run goes on is found where it is broken: bytes that are gone though the outcome is good, marks that are
    /// not believed, an honest holder that lies and is barred, permits that are kept, and a receiver that does not give up (S2, S10, S14, S34).
    #[test]
    fn what_breaks_in_the_middle_is_found() {
        let plan = Plan::swarm(1, 2, 4 << 20);
        let mut world = midway(&plan, 8);
        world.nodes[1].stored = Stored::new(world.object.geometry).unwrap();
        ends_with(world, "the outcome is Ok(()), but that all is there is false");

        let mut world = World::new(&plan, Trace::new(None)).unwrap();
        world.nodes[1].stored.mark(0);
        ends_with(world, "0 of 1 units that were marked are believed");

        let mut lying = plan.clone();
        lying.nodes[0].conduct = Conduct::Corrupts { every: 1 };
        lying.nodes.push(plan.nodes[0].clone());
        let Role::Receiver { hints, .. } = &mut lying.nodes[1].role else { unreachable!() };
        *hints = Hints::These(vec![(0, 0), (2, 0)]);
        for finding in ["bytes of holder 0, which is honest, do not match", "nothing happened, was barred"] {
            let mut world = midway(&lying, 0);
            world.nodes[1].transfer.as_mut().unwrap().trust_all();
            ends_with(world, finding);
        }

        let world = midway(&plan, 8);
        let permit = world.nodes[1].transfer.as_ref().unwrap().reserve(1).unwrap();
        ends_with(world, "1 bytes of permits are held after the end");
        drop(permit);

        let late = begins_at(60_000_000_000, 4 << 20);
        for (ns, is_found) in [(29_000_000_000, false), (30_000_000_001, true)] {
            let mut world = midway(&late, 0);
            world.nodes[1].transfer.as_mut().unwrap().silent_for(ns);
            world.receive(1, |transfer, hands| transfer.wakeup(hands, Wakeup::Tick));
            let found = world.findings.iter().any(|found| found.contains("no end within 30 s"));
            assert_eq!(found, is_found, "{ns}: {:?}", world.findings);
        }
    }

    /// What does not end in time is stuck.
    #[test]
    fn a_run_beyond_its_horizon_is_stuck() {
        let mut plan = Plan::swarm(1, 2, 1 << 20);
        plan.horizon_ns = 1_000_000;
        let report = World::new(&plan, Trace::new(None)).unwrap().run();
        assert!(report.findings.iter().any(|found| found.contains("stuck")), "{:?}", report.findings);
    }

    /// Lets everything up to `end_ns` happen.
    fn turn_until(world: &mut World<'_>, end_ns: u64) {
        while world.network.now_ns() < end_ns {
            turn_next(world);
        }
    }

    /// A process that sleeps does nothing at all: who calls meanwhile is answered when it wakes.
    #[test]
    fn who_sleeps_answers_nobody() {
        let mut plan = begins_at(1_000_000_000, 1 << 20);
        plan.faults = vec![PlannedFault { at_ns: 0, for_ns: Some(4_000_000_000), fault: Fault::Freeze(0) }];
        let mut world = World::new(&plan, Trace::new(None)).unwrap();
        turn_until(&mut world, 3_000_000_000);
        assert!(world.nodes[1].transfer.is_some());
        assert!(world.nodes[0].serving.is_empty(), "its connections wait to be taken");
        turn_until(&mut world, 4_500_000_000);
        assert!(!world.nodes[0].serving.is_empty());
        assert_eq!(world.run().findings, Vec::<String>::new());
    }

    /// What a process waited for happens when it wakes, whatever it was.
    #[test]
    fn who_wakes_has_missed_nothing() {
        let plan = Plan::swarm(1, 2, 1 << 20);
        let mut world = World::new(&plan, Trace::new(None)).unwrap();
        let id = world.network.connect(1, 0);
        let (node, event) = (0, world.network.clock.next());
        assert!(matches!(event, Some(Event::Begins(0))));
        world.begin(node);
        world.nodes[node].freezes.insert(0);
        let (source, lane) = (1, 2);
        let waited = [
            Wakeup::Checkpoint,
            Wakeup::Chunk(id),
            Wakeup::Group { source, lane },
            Wakeup::Greeting(id),
            Wakeup::Written { source, lane },
            Wakeup::Redial { source, lane: None },
            Wakeup::Tick,
        ];
        for what in waited {
            world.process(node, 0, what);
        }
        while world.network.clock.next().is_some_and(|event| !matches!(event, Event::Knocks(..))) {}
        world.thaw(node, 0);
        let mut woken = Vec::new();
        while let Some(Event::Process { node: 0, what, .. }) = world.network.clock.next() {
            woken.push(format!("{what:?}"));
        }
        assert_eq!(woken, waited.map(|what| format!("{what:?}")));
    }

    /// S40: who says nothing is hung up on after the time that a greeting may take, and not before.
    #[test]
    fn who_shows_no_right_is_hung_up_on() {
        let plan = begins_at(100_000_000_000, 1 << 20);
        let mut world = World::new(&plan, Trace::new(None)).unwrap();
        turn_next(&mut world);
        let id = world.network.connect(1, 0);
        while world.nodes[0].serving.is_empty() {
            turn_next(&mut world);
        }
        let due_ns = world.network.now_ns() + HELLO_TIMEOUT_MS * 1_000_000;
        while world.nodes[0].serving.contains_key(&id) && world.network.now_ns() <= due_ns {
            turn_next(&mut world);
        }
        assert_eq!(world.network.now_ns(), due_ns);
        turn_until(&mut world, due_ns + 1_000_000_000);
        assert_eq!(world.network.read(id, Side::Dialler, u64::MAX), Some((Piece::End, 1)));
    }
}
