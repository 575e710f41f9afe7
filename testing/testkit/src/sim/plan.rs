//! What a run is made of: nodes, links, and what goes wrong when. Plain data; one seed decides all of it.

use super::device::DiskModel;
use super::holder::Conduct;
use super::network::LinkModel;
use super::random::Random;

/// Virtual time by which every run has ended, nanoseconds: a day.
const HORIZON_NS: u64 = 86_400_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides what is left to chance during the run (losses), and names it.
    pub seed: u64,
    /// Size of the object, at most 64 MiB.
    pub size_bytes: u64,
    /// Who takes part; a node is known by its place here.
    pub nodes: Vec<NodePlan>,
    /// Links that the ways of several nodes lead over.
    pub shared: Vec<LinkModel>,
    /// What goes wrong.
    pub faults: Vec<PlannedFault>,
    /// Connections of a receiver to its holders together, at least one to each (`connections` of the configuration).
    pub connections: usize,
    /// Memory budget of each receiver (`window_mib`).
    pub window_bytes: u64,
    /// Nothing may last longer than this, nanoseconds of virtual time.
    pub horizon_ns: u64,
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// What it is there for.
    pub role: Role,
    /// What it does as a holder.
    pub conduct: Conduct,
    /// Its own links.
    pub up: LinkModel,
    /// See `up`.
    pub down: LinkModel,
    /// Shared links on its way out, from near to far, and on its way in, from far to near.
    pub shared_up: Vec<usize>,
    /// See `shared_up`.
    pub shared_down: Vec<usize>,
    /// Its disk.
    pub disk: DiskModel,
    /// Its processors.
    pub cores: usize,
    /// What each of these hashes and de- or encrypts.
    pub core_bytes_per_s: u64,
    /// Bytes on the way from it that no cancellation reaches, as its receivers are told: those in the buffers of an ssh channel.
    pub under_way_bytes: u64,
}

impl NodePlan {
    /// An honest node with equal links both ways, a fast disk and two processors, which do TLS and BLAKE3 at the rates that
    /// were measured for the product (`docs/performance.md`).
    pub fn new(role: Role, link: LinkModel) -> NodePlan {
        NodePlan {
            role,
            conduct: Conduct::Honest,
            up: link,
            down: link,
            shared_up: Vec::new(),
            shared_down: Vec::new(),
            disk: DiskModel::FAST,
            cores: 2,
            core_bytes_per_s: 1_200_000_000,
            under_way_bytes: 0,
        }
    }
}

/// What a node is there for.
#[derive(Clone, Debug)]
pub enum Role {
    /// Has the object and serves it.
    Holder,
    /// Fetches it.
    Receiver {
        /// When it begins, nanoseconds.
        starts_ns: u64,
        /// Whom it is told of.
        hints: Hints,
        /// It serves what it has fetched.
        serves: bool,
    },
}

/// Whom a receiver is told of.
#[derive(Clone, Debug)]
pub enum Hints {
    /// These nodes, each with its priority.
    These(Vec<(usize, u16)>),
    /// So many of those that have the object when it begins.
    Some(usize),
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct PlannedFault {
    /// When, nanoseconds.
    pub at_ns: u64,
    /// How long; `None` is for ever.
    pub for_ns: Option<u64>,
    /// What.
    pub fault: Fault,
}

/// What goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process of a node is killed, and started again when the fault passes.
    Kill(usize),
    /// The machine loses its power: nobody is told, and what was not durable is lost.
    PowerCut(usize),
    /// The process is stopped.
    Freeze(usize),
    /// These nodes are cut off from the others.
    Partition(Vec<usize>),
    /// The disk takes so many times as long.
    SlowDisk(usize, u64),
    /// Both links take so many times as long.
    SlowLinks(usize, u64),
    /// Nothing more can be written.
    FullDisk(usize),
}

impl Fault {
    /// True if it concerns `node`.
    pub fn strikes(&self, node: usize) -> bool {
        match self {
            Fault::Kill(one)
            | Fault::PowerCut(one)
            | Fault::Freeze(one)
            | Fault::SlowDisk(one, _)
            | Fault::SlowLinks(one, _)
            | Fault::FullDisk(one) => *one == node,
            Fault::Partition(cut_off) => cut_off.contains(&node),
        }
    }
}

impl Plan {
    /// A plan without faults.
    pub fn new(seed: u64, size_bytes: u64, nodes: Vec<NodePlan>) -> Plan {
        Plan {
            seed,
            size_bytes,
            nodes,
            shared: Vec::new(),
            faults: Vec::new(),
            connections: 2,
            window_bytes: 64 << 20,
            horizon_ns: HORIZON_NS,
        }
    }

    /// True if `holder` is honest and nothing ever happens to it, nor between it and `receiver`.
    pub fn is_steady(&self, holder: usize, receiver: usize) -> bool {
        let plan = &self.nodes[holder];
        plan.conduct == Conduct::Honest
            && matches!(plan.role, Role::Holder)
            && !self.faults.iter().any(|planned| match &planned.fault {
                Fault::Partition(cut_off) => cut_off.contains(&holder) != cut_off.contains(&receiver),
                fault => {
                    fault.strikes(holder) || matches!(fault, Fault::SlowLinks(slow, _) if *slow == receiver)
                }
            })
    }

    /// True if nothing happens to `receiver` that keeps it from getting the object by itself.
    pub fn can_receive(&self, receiver: usize) -> bool {
        !self.faults.iter().any(|planned| match &planned.fault {
            Fault::FullDisk(node) => *node == receiver,
            Fault::Kill(node) | Fault::PowerCut(node) | Fault::Freeze(node) => {
                *node == receiver && planned.for_ns.is_none()
            }
            _ => false,
        })
    }

    /// The fault mix: a few holders, of which some lie or misbehave, and a few receivers, over links of any kind, with up to
    /// six faults at any time. `nodes` is how many take part, from 2; chance decides if it is `None`, and of more than it would take lines are as
    /// much faster.
    pub fn mix(seed: u64, nodes: Option<usize>) -> Plan {
        let mut chance = Random::new(seed, "mix");
        let chance = &mut chance;
        let base_bytes_per_s = chance.pick(&[193_000, 1_250_000, 12_500_000, 125_000_000]);
        let is_slow = base_bytes_per_s < 1_000_000;
        let usual_max = if is_slow { 8 } else { 18 };
        let count = nodes.unwrap_or_else(|| chance.between(2, usual_max) as usize).max(2);
        // Of a line that hundreds of connections share a receiver gets no group in the time in which it has to.
        let base_bytes_per_s = base_bytes_per_s * (count as u64).div_ceil(usual_max);
        let holders = if is_slow { count.div_ceil(2) } else { (count / 3).clamp(1, 8) };
        let largest = if is_slow { 3 << 20 } else { 48 << 20 };
        let size_bytes = match chance.below(12) {
            0 => chance.pick(&[0, 1, 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1]),
            1..4 => chance.between(1, 2 << 20),
            _ => chance.between(1 << 20, largest),
        };
        let link = |chance: &mut Random, factor: u64| LinkModel {
            lost_per_million: if chance.chance(200) { chance.between(1, 2_000) } else { 0 },
            ..LinkModel::new(
                base_bytes_per_s * chance.between(1, 4) * factor / 2,
                chance.pick(&[50_000, 2 * MILLISECOND_NS, 10 * MILLISECOND_NS, 33 * MILLISECOND_NS]),
            )
        };
        let mut plan = Plan::new(seed, size_bytes, Vec::new());
        for holder in 0..holders {
            let mut node = NodePlan::new(Role::Holder, link(chance, 2));
            if chance.chance(350) {
                let number = chance.pick(&[0, 1, 7, 100, 300]);
                node.conduct = chance.pick(&Conduct::misdeeds(number));
            }
            if chance.chance(250) {
                node.disk = DiskModel::SPINNING;
            }
            plan.nodes.push(node);
            debug_assert_eq!(plan.nodes.len(), holder + 1);
        }
        let known: Vec<usize> = (0..holders).collect();
        for _ in holders..count {
            let told = chance.between(1, 8) as usize;
            let mut hints = Vec::new();
            for holder in chance.sample(&known, told) {
                hints.push((holder, if chance.chance(150) { 1 } else { 0 }));
            }
            let role = Role::Receiver {
                starts_ns: chance.below(2 * SECOND_NS),
                hints: Hints::These(hints),
                serves: chance.chance(300),
            };
            let mut node = NodePlan::new(role, link(chance, 2));
            if chance.chance(250) {
                node.disk = DiskModel::SPINNING;
            }
            plan.nodes.push(node);
        }
        plan.tell_of_servers(&mut Random::new(seed, "servers"));
        let mut channels = Random::new(seed, "channels");
        for node in &mut plan.nodes {
            node.under_way_bytes = if channels.chance(300) { 2 << 20 } else { 0 };
        }
        plan.connections = chance.between(1, 4) as usize;
        plan.window_bytes = chance.pick(&[2 << 20, 8 << 20, 64 << 20, 64 << 20]);
        if chance.chance(200) {
            // One link that everybody's data goes over.
            plan.shared.push(link(chance, 4));
            for node in &mut plan.nodes[..holders] {
                node.shared_up = vec![0];
            }
        }
        let needed_s = size_bytes * (count - holders) as u64 / (base_bytes_per_s * holders as u64);
        let during_ns = (needed_s + 2).min(120) * SECOND_NS;
        for _ in 0..chance.below(7) {
            let fault = plan.chance_fault(chance, during_ns);
            plan.faults.push(fault);
        }
        plan
    }

    /// Tells some receivers also of others that serve what they have fetched, sooner or later.
    fn tell_of_servers(&mut self, chance: &mut Random) {
        let serves = |node: &NodePlan| matches!(node.role, Role::Receiver { serves: true, .. });
        let servers: Vec<usize> =
            (0..self.nodes.len()).filter(|number| serves(&self.nodes[*number])).collect();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let Role::Receiver { starts_ns, hints: Hints::These(told), .. } = &mut node.role else {
                continue;
            };
            if !chance.chance(400) {
                continue;
            }
            told.extend(
                chance
                    .sample(&servers, 2)
                    .into_iter()
                    .filter(|server| *server != number)
                    .map(|server| (server, 0)),
            );
            // Some come when others have the object.
            if chance.chance(500) {
                *starts_ns += chance.below(30 * SECOND_NS);
            }
        }
    }

    fn chance_fault(&self, chance: &mut Random, during_ns: u64) -> PlannedFault {
        let count = self.nodes.len();
        let node = chance.below(count as u64) as usize;
        let at_ns = chance.below(during_ns);
        let short_ns = chance.pick(&[
            200 * MILLISECOND_NS,
            2 * SECOND_NS,
            9 * SECOND_NS,
            15 * SECOND_NS,
            40 * SECOND_NS,
            120 * SECOND_NS,
        ]);
        let for_ns = if chance.chance(200) { None } else { Some(short_ns) };
        let everybody: Vec<usize> = (0..count).collect();
        let fault = match chance.below(12) {
            0..3 => Fault::Kill(node),
            3 => Fault::PowerCut(node),
            4..7 => Fault::Freeze(node),
            7..9 => {
                let cut_off = chance.between(1, count.div_ceil(2) as u64) as usize;
                Fault::Partition(chance.sample(&everybody, cut_off))
            }
            9 => Fault::SlowDisk(node, chance.pick(&[4, 50, 1000])),
            10 => Fault::SlowLinks(node, chance.pick(&[2, 10, 100])),
            _ => Fault::FullDisk(node),
        };
        PlannedFault { at_ns, for_ns, fault }
    }

    /// `nodes` nodes, four of which have the object at first; each of the others fetches it from up to eight that have it when
    /// it begins, and serves it from then on.
    pub fn swarm(seed: u64, nodes: usize, size_bytes: u64) -> Plan {
        let mut chance = Random::new(seed, "swarm");
        let origins = 4.min(nodes.saturating_sub(1)).max(1);
        let mut plan = Plan::new(seed, size_bytes, Vec::new());
        for number in 0..nodes {
            let delay_ns = chance.between(MILLISECOND_NS, 25 * MILLISECOND_NS);
            let link = LinkModel::new(125_000_000, delay_ns);
            let role = if number < origins {
                Role::Holder
            } else {
                let starts_ns = (number - origins) as u64 * 100 * MILLISECOND_NS;
                Role::Receiver { starts_ns, hints: Hints::Some(8), serves: true }
            };
            plan.nodes.push(NodePlan::new(role, link));
        }
        plan
    }
}
