//! The simulator: the product's planner, sessions and verifier in virtual time, with links, disks, processors and faults around
//! them, and hundreds of nodes. One seed decides a run to the byte (design 6).
//!
//! A run is a [`Plan`], and [`run`] says how it ended: who got the object, the hash of everything that happened, and which
//! promises were broken. These are checked on every run:
//!
//! * every receiver ends, with every byte right or a typed error, within 30 s of its last progress (S2, S10);
//! * who could have had the object has it: an honest holder was there all the time (S34);
//! * nothing is written that is not the object's, and nothing twice (S2, S4);
//! * nobody honest is barred, blamed or found to break the protocol;
//! * a process that is started again goes on where it was (S14, S15, S17), and without faults hardly a byte is sent twice (S35);
//! * at the end nobody holds a permit, a connection or a request.
//!
//! What is modelled and what is not stands in `docs/testing.md`.

mod clock;
mod device;
pub mod experiment;
mod holder;
mod network;
mod object;
mod plan;
mod random;
mod receiver;
mod report;
mod trace;
mod world;

pub use device::DiskModel;
pub use holder::Conduct;
pub use network::LinkModel;
pub use plan::{Fault, Hints, NodePlan, Plan, PlannedFault, Role};
pub use random::Random;
pub use report::{Ended, Report};
pub use trace::TraceLines;

use trace::Trace;
use world::World;

/// Plays `plan`. `lines` hears what happens, a line at a time; that changes nothing.
pub fn run(plan: &Plan, lines: Option<TraceLines>) -> Report {
    match World::new(plan, Trace::new(lines)) {
        Ok(world) => world.run(),
        Err(error) => Report {
            seed: plan.seed,
            trace_hash: String::new(),
            events: 0,
            ended_ns: 0,
            ended: Vec::new(),
            sent_groups: Vec::new(),
            written_groups: Vec::new(),
            kills: Vec::new(),
            most_open: 0,
            asleep: Vec::new(),
            findings: vec![format!("the run could not be set up: {error}")],
        },
    }
}
