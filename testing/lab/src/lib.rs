//! A network lab on one machine: hosts, and links between them with a rate, a delay, losses and a queue.
//!
//! Wide-area networks are emulated in user space, as kernels do not always have the means. A [`Host`] is a network namespace
//! without a name; each of its devices is a TUN device whose other end the lab holds. One thread, the engine, reads what a host
//! sends, walks it through the list of pipes that belongs to (device, destination address), and gives it to the destination's
//! device. A pipe is loss, then a drop-tail queue served at a rate, then a delay line. A pipe in several lists is a bottleneck
//! they share; a host with two devices is multi-homed.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use dray_lab::{Lab, conditions::LONG_FAT};
//! let mut lab = Lab::new()?;
//! let link = lab.link("near", "far", LONG_FAT.up, LONG_FAT.down)?;
//! let mut ping = std::process::Command::new("ping");
//! ping.arg("-c1").arg(lab.address(link.b).to_string());
//! let ran = lab.host("near")?.run(ping)?;
//! assert!(ran.status.success());
//! println!("{}", lab.stats()?);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing is left behind, however the program that holds the lab ends: namespaces and devices have no names and go with their
//! descriptors, and programs started on hosts share a process namespace that dies with the lab.
//!
//! Where it lies: every packet passes through one thread of this machine. It carries some 230,000 packets a second in all;
//! up to 100 Mbit/s on a link, and 500 in sum, packets are handled one by one as a link would. From 200 Mbit/s on, links
//! without loss get super-packets of up to 64 KiB, which are charged the headers of their segments but arrive, or are dropped,
//! as one; 1 Gbit/s in one direction is the limit of two cores, and there the ends are measured rather than the link. Loss,
//! delay and rate do not depend on packet size but for `framing_bytes`; there is no jitter, no reordering, no broadcast.
//! [`Stats::validity`] says whether a run's timings can be believed.

mod awake;
pub mod conditions;
pub mod disk;
mod engine;
mod host;
mod kernel;
mod lab;
mod link;
mod netlink;
mod packet;
mod pipe;
mod random;
mod spawner;
mod stats;
mod trace;
mod turn;
mod wire;

pub use engine::run_first;
pub use host::{Host, Ran};
pub use lab::{Access, AccessIds, Lab, LinkIds, MeshIds, NicId, PipeId};
pub use link::{Change, Link, Loss, Queue, Rate};
pub use random::SplitMix64;
pub use stats::{Lateness, PipeStats, Stats};
pub use trace::Trace;
pub use turn::{Turn, can_run, say_skip};
