//! The lab: hosts, devices, pipes, and which packets go through which.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::{Engine, Order};
use crate::host::Host;
use crate::kernel::{self, Offloads};
use crate::link::{Change, Link, Loss, Rate};
use crate::spawner::Spawner;
use crate::stats::Stats;
use crate::trace::Trace;

/// Seed of losses, unless `LAB_SEED` gives another.
const SEED: u64 = 0x1ab;
/// Below this rate, super-packets of 64 KiB would be bursts that no real link has.
const SUPER_PACKET_RATE_MIN: Rate = Rate::mbit(200);
/// Most hosts, devices or pipes of one lab: a mistake in a loop should not take the machine down.
const PARTS_MAX: usize = 65_000;
/// Most paths: 1,000 hosts from each to each.
const PATHS_MAX: usize = 1_000_000;

/// A network device of a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NicId(usize);

/// One direction of a link, or a bottleneck that several share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PipeId(usize);

impl PipeId {
    /// Its place in [`Stats::pipes`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// What [`Lab::link`] made.
#[derive(Clone, Copy, Debug)]
pub struct LinkIds {
    /// Device of the first host.
    pub a: NicId,
    /// Device of the second.
    pub b: NicId,
    /// From the first to the second.
    pub up: PipeId,
    /// From the second to the first.
    pub down: PipeId,
}

/// How a host is connected to the rest.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Access {
    /// From the host.
    pub up: Link,
    /// To the host.
    pub down: Link,
}

/// What [`Lab::star`] made for one host.
#[derive(Clone, Copy, Debug)]
pub struct AccessIds {
    /// Its device.
    pub nic: NicId,
    /// From the host.
    pub up: PipeId,
    /// To the host.
    pub down: PipeId,
}

/// What [`Lab::mesh`] made.
#[derive(Clone, Debug)]
pub struct MeshIds {
    /// Devices, in the order of the hosts.
    pub nics: Vec<NicId>,
    pipes: Vec<Vec<Option<PipeId>>>,
}

impl MeshIds {
    /// The pipe from one host to another; `None` from a host to itself, or for a host that is not there.
    pub fn pipe(&self, from: usize, to: usize) -> Option<PipeId> {
        *self.pipes.get(from)?.get(to)?
    }
}

/// A running lab. Dropped, it kills every program on its hosts and takes the network away; ended by a signal, the kernel does
/// the same.
#[derive(Debug)]
pub struct Lab {
    seed: u64,
    hosts: Vec<Host>,
    nics: Vec<Nic>,
    pipes: Mutex<Vec<PipeState>>,
    paths: usize,
    engine: Option<Engine>,
    spawner: Arc<Spawner>,
    /// Ticks that were idle, and all, when counting began.
    machine_before: Mutex<Option<(u64, u64)>>,
    /// What devices had dropped when counting began.
    dropped_before: Mutex<u64>,
}

#[derive(Debug)]
struct Nic {
    host: usize,
    addresses: Vec<IpAddr>,
    tun: Arc<OwnedFd>,
    offloads: Mutex<Offloads>,
    /// Those that its paths lead through.
    pipes: HashSet<PipeId>,
}

/// What decides whether super-packets may pass.
#[derive(Debug)]
struct PipeState {
    slowest: Option<Rate>,
    loss: Loss,
}

impl PipeState {
    fn takes_super_packets(&self) -> bool {
        self.loss == Loss::None && self.slowest.is_none_or(|rate| rate >= SUPER_PACKET_RATE_MIN)
    }
}

impl Lab {
    /// Whether labs can run here: needs root (namespaces, real-time priority) and `/dev/net/tun`.
    ///
    /// # Errors
    /// Why not, and what would help.
    pub fn available() -> Result<(), String> {
        let small = || -> io::Result<()> {
            let mut lab = Lab::new()?;
            lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).map(|_| ())
        };
        small().map_err(|error| format!("a network lab needs root and /dev/net/tun: {error}"))
    }

    /// A lab without hosts. The losses it makes depend on the seed (`LAB_SEED`, a number) and the packets alone.
    ///
    /// # Errors
    /// What the kernel refuses, or `InvalidInput` for a `LAB_SEED` that is no number.
    pub fn new() -> io::Result<Lab> {
        let seed = match std::env::var("LAB_SEED") {
            Ok(text) => text.parse().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("LAB_SEED={text}: {error}"))
            })?,
            Err(_) => SEED,
        };
        Ok(Lab {
            seed,
            hosts: Vec::new(),
            nics: Vec::new(),
            pipes: Mutex::default(),
            paths: 0,
            engine: Some(Engine::start(seed)?),
            spawner: Arc::new(Spawner::start()?),
            machine_before: Mutex::new(machine_ticks()),
            dropped_before: Mutex::default(),
        })
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The host called `name`, made at the first call.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn host(&mut self, name: &str) -> io::Result<Host> {
        let at = self.host_index(name)?;
        Ok(self.hosts[at].clone())
    }

    /// A host in a network namespace made by somebody else, for example one that has a name. The lab gives it devices and takes
    /// them away, and nothing more.
    ///
    /// # Errors
    /// `AlreadyExists` for a second host of that name, and what the kernel refuses.
    pub fn adopt(&mut self, name: &str, namespace: OwnedFd) -> io::Result<Host> {
        if self.hosts.iter().any(|host| host.name() == name) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("host {name} is there already"),
            ));
        }
        check_room(self.hosts.len(), PARTS_MAX, "hosts")?;
        let host = within(name, Host::adopt(name, namespace, Arc::clone(&self.spawner)))?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// Gives the host called `name` a device with `addresses`, or with an IPv4 and an IPv6 address that nobody else has if that
    /// is empty. The device sends and gets nothing until there are paths. A host with more than one sends through the first, but
    /// for what is bound to an address of another.
    ///
    /// # Errors
    /// What the kernel refuses, for example the same address twice on one host.
    pub fn nic(&mut self, name: &str, addresses: &[IpAddr], mtu: u16) -> io::Result<NicId> {
        let host = self.host_index(name)?;
        check_room(self.nics.len(), PARTS_MAX, "devices")?;
        let number = self.nics.iter().filter(|nic| nic.host == host).count() as u32;
        let own = [self.next_address(false), self.next_address(true)];
        let addresses = if addresses.is_empty() { &own[..] } else { addresses };
        let tun = Arc::new(within(name, self.hosts[host].add_device(number, mtu, addresses))?);
        self.order(Order::Device(Arc::clone(&tun)));
        let offloads = Mutex::new(Offloads::Checksums);
        self.nics.push(Nic { host, addresses: addresses.to_owned(), tun, offloads, pipes: HashSet::new() });
        Ok(NicId(self.nics.len() - 1))
    }

    /// The first address of a device.
    pub fn address(&self, nic: NicId) -> IpAddr {
        self.nics[nic.0].addresses[0]
    }

    /// The first IPv6 address of a device.
    pub fn address_v6(&self, nic: NicId) -> Option<IpAddr> {
        self.nics[nic.0].addresses.iter().copied().find(IpAddr::is_ipv6)
    }

    /// A new pipe.
    ///
    /// # Errors
    /// `InvalidInput` if there are too many.
    pub fn pipe(&mut self, link: Link) -> io::Result<PipeId> {
        let mut pipes = self.pipes.lock().map_err(poisoned)?;
        check_room(pipes.len(), PARTS_MAX, "pipes")?;
        pipes.push(PipeState { slowest: link.rate, loss: link.loss });
        self.order(Order::Pipe(link));
        Ok(PipeId(pipes.len() - 1))
    }

    /// Lets what `from` sends to an address of `to` go through `pipes`, in that order. A pipe in several paths is a bottleneck
    /// they share.
    ///
    /// # Errors
    /// What the kernel refuses, or `InvalidInput` for a pipe that this lab has not.
    pub fn path(&mut self, from: NicId, to: NicId, pipes: &[PipeId]) -> io::Result<()> {
        check_room(self.paths, PATHS_MAX, "paths")?;
        let takes_super_packets = {
            let states = self.pipes.lock().map_err(poisoned)?;
            let takes = pipes.iter().map(|pipe| Ok(state_of(&states, *pipe)?.takes_super_packets()));
            takes.collect::<io::Result<Vec<bool>>>()?.into_iter().all(|takes| takes)
        };
        self.paths += 1;
        let is_first = self.nics[from.0].pipes.is_empty();
        self.nics[from.0].pipes.extend(pipes);
        self.order(Order::Path {
            from: from.0,
            to: to.0,
            pipes: pipes.iter().map(|pipe| pipe.0).collect(),
            addresses: self.nics[to.0].addresses.clone(),
        });
        // What the device's other paths allow it is known, so that they need not be looked at again for each new one.
        let nic = &self.nics[from.0];
        let allowed = is_first || *nic.offloads.lock().map_err(poisoned)? == Offloads::Segments;
        nic.offload(allowed && takes_super_packets)
    }

    /// Joins two hosts, made if they are not there, each by a new device. Called again with the same host, that host is
    /// multi-homed.
    ///
    /// # Errors
    /// As [`Lab::nic`] and [`Lab::pipe`].
    pub fn link(&mut self, a: &str, b: &str, up: Link, down: Link) -> io::Result<LinkIds> {
        let mtu = up.mtu.min(down.mtu);
        let (a, b) = (self.nic(a, &[], mtu)?, self.nic(b, &[], mtu)?);
        let (up, down) = (self.pipe(up)?, self.pipe(down)?);
        self.path(a, b, &[up])?;
        self.path(b, a, &[down])?;
        Ok(LinkIds { a, b, up, down })
    }

    /// Hosts around a core without limits, each with its own access: what one sends to another goes through the sender's `up`
    /// and the receiver's `down`.
    ///
    /// # Errors
    /// As [`Lab::nic`] and [`Lab::pipe`].
    pub fn star(&mut self, hosts: &[(&str, Access)]) -> io::Result<Vec<AccessIds>> {
        let mut ends = Vec::new();
        for (name, access) in hosts {
            let nic = self.nic(name, &[], access.up.mtu.min(access.down.mtu))?;
            ends.push(AccessIds { nic, up: self.pipe(access.up)?, down: self.pipe(access.down)? });
        }
        for from in &ends {
            for to in ends.iter().filter(|to| to.nic != from.nic) {
                self.path(from.nic, to.nic, &[from.up, to.down])?;
            }
        }
        Ok(ends)
    }

    /// Hosts with a link of their own from each to each other: `link(i, j)` is that from the i-th to the j-th.
    ///
    /// # Errors
    /// As [`Lab::nic`] and [`Lab::pipe`].
    pub fn mesh(&mut self, hosts: &[&str], link: impl Fn(usize, usize) -> Link) -> io::Result<MeshIds> {
        let hosts: Vec<_> = hosts.iter().map(|name| (*name, Vec::new())).collect();
        self.mesh_of(&hosts, link)
    }

    /// [`Lab::mesh`] of hosts with given addresses; those without get addresses as in [`Lab::nic`].
    ///
    /// # Errors
    /// As [`Lab::nic`] and [`Lab::pipe`].
    pub fn mesh_of(
        &mut self,
        hosts: &[(&str, Vec<IpAddr>)],
        link: impl Fn(usize, usize) -> Link,
    ) -> io::Result<MeshIds> {
        let mtu = (0..hosts.len()).flat_map(|from| (0..from).map(move |to| (from, to)));
        let mtu = mtu.map(|(from, to)| link(from, to).mtu.min(link(to, from).mtu)).min().unwrap_or(1500);
        let nics = hosts.iter().map(|(name, addresses)| self.nic(name, addresses, mtu));
        let nics = nics.collect::<io::Result<Vec<_>>>()?;
        let mut pipes = vec![vec![None; hosts.len()]; hosts.len()];
        for from in 0..hosts.len() {
            for to in (0..hosts.len()).filter(|to| *to != from) {
                let pipe = self.pipe(link(from, to))?;
                self.path(nics[from], nics[to], &[pipe])?;
                pipes[from][to] = Some(pipe);
            }
        }
        Ok(MeshIds { nics, pipes })
    }

    /// Changes a pipe while packets run.
    ///
    /// # Errors
    /// What the kernel refuses, or `InvalidInput` for a pipe that this lab has not.
    pub fn set(&self, pipe: PipeId, change: Change) -> io::Result<()> {
        {
            let mut pipes = self.pipes.lock().map_err(poisoned)?;
            let state = state_of_mut(&mut pipes, pipe)?;
            match change {
                Change::Rate(rate) => state.slowest = rate,
                Change::Loss(loss) => state.loss = loss,
                Change::Delay(_) | Change::Up(_) => {}
            }
        }
        self.tune_around(pipe)?;
        self.order(Order::Change(pipe.0, change));
        Ok(())
    }

    /// Lets the rate of a pipe follow a trace from now on, until its rate is set.
    ///
    /// # Errors
    /// What the kernel refuses, or `InvalidInput` for a pipe that this lab has not.
    pub fn play(&self, pipe: PipeId, trace: Trace) -> io::Result<()> {
        state_of_mut(&mut self.pipes.lock().map_err(poisoned)?, pipe)?.slowest = Some(trace.slowest());
        self.tune_around(pipe)?;
        self.order(Order::Play(pipe.0, trace));
        Ok(())
    }

    /// Moves no packet for so long, as on a machine that is too busy: for calibrating what lateness does to a measurement.
    pub fn stall(&self, time: Duration) {
        self.order(Order::Stall(time));
    }

    /// What happened since the lab was made or [`Lab::reset_stats`].
    ///
    /// # Errors
    /// If the engine has ended, or what the kernel refuses.
    pub fn stats(&self) -> io::Result<Stats> {
        let engine = self.engine.as_ref().ok_or_else(|| io::Error::other("the lab has ended"))?;
        let mut stats = engine.stats()?;
        stats.sender_dropped_packets =
            self.dropped_packets()?.saturating_sub(*self.dropped_before.lock().map_err(poisoned)?);
        let before = *self.machine_before.lock().map_err(poisoned)?;
        if let (Some((idle_before, all_before)), Some((idle, all))) = (before, machine_ticks()) {
            // Less than a fifth of a second says nothing.
            let ticks = all.saturating_sub(all_before);
            if ticks >= 20 {
                stats.idle_share = Some(idle.saturating_sub(idle_before) as f64 / ticks as f64);
            }
        }
        Ok(stats)
    }

    fn dropped_packets(&self) -> io::Result<u64> {
        self.hosts.iter().map(Host::dropped_packets).sum()
    }

    /// Counts from zero again.
    ///
    /// # Errors
    /// If the engine has ended, or what the kernel refuses.
    pub fn reset_stats(&self) -> io::Result<()> {
        self.order(Order::Reset);
        *self.machine_before.lock().map_err(poisoned)? = machine_ticks();
        *self.dropped_before.lock().map_err(poisoned)? = self.dropped_packets()?;
        self.stats().map(|_| ())
    }

    fn order(&self, order: Order) {
        if let Some(engine) = &self.engine {
            engine.order(order);
        }
    }

    fn host_index(&mut self, name: &str) -> io::Result<usize> {
        if let Some(at) = self.hosts.iter().position(|host| host.name() == name) {
            return Ok(at);
        }
        check_room(self.hosts.len(), PARTS_MAX, "hosts")?;
        self.hosts.push(within(name, Host::new(name, Arc::clone(&self.spawner)))?);
        Ok(self.hosts.len() - 1)
    }

    /// 10.88.0.0/16 and fd88::/64 (RFC 1918, RFC 4193); they clash with nothing, as each lab has its own namespaces.
    fn next_address(&self, six: bool) -> IpAddr {
        let number = self.nics.len() as u16 + 1;
        if six {
            return Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, number).into();
        }
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(10, 88, high, low).into()
    }

    /// Lets every device that sends through `pipe` make super-packets if every pipe of its paths is fast and loses nothing, or not.
    fn tune_around(&self, pipe: PipeId) -> io::Result<()> {
        let pipes = self.pipes.lock().map_err(poisoned)?;
        for nic in self.nics.iter().filter(|nic| nic.pipes.contains(&pipe)) {
            nic.offload(nic.pipes.iter().all(|used| pipes[used.0].takes_super_packets()))?;
        }
        Ok(())
    }
}

impl Nic {
    fn offload(&self, takes_super_packets: bool) -> io::Result<()> {
        let wanted = if takes_super_packets { Offloads::Segments } else { Offloads::Checksums };
        let mut offloads = self.offloads.lock().map_err(poisoned)?;
        if *offloads != wanted {
            kernel::set_offloads(&self.tun, wanted)?;
            *offloads = wanted;
        }
        Ok(())
    }
}

fn state_of(pipes: &[PipeState], pipe: PipeId) -> io::Result<&PipeState> {
    pipes.get(pipe.0).ok_or_else(|| no_such_pipe(pipe))
}

fn state_of_mut(pipes: &mut [PipeState], pipe: PipeId) -> io::Result<&mut PipeState> {
    pipes.get_mut(pipe.0).ok_or_else(|| no_such_pipe(pipe))
}

fn no_such_pipe(pipe: PipeId) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("pipe {} belongs to another lab", pipe.0))
}

impl Drop for Lab {
    #[allow(clippy::print_stderr, reason = "what a failed test needs to be run again")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("network lab with LAB_SEED={} ended by a failure", self.seed);
        }
        self.spawner.end();
        drop(self.engine.take());
        // The kernel takes some 30 ms for each, most of it waiting.
        std::thread::scope(|scope| {
            for nic in self.nics.drain(..) {
                scope.spawn(move || drop(nic));
            }
        });
    }
}

fn check_room(used: usize, most: usize, what: &str) -> io::Result<()> {
    if used < most {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a lab has at most {most} {what}")))
}

fn within<T>(host: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("host {host}: {error}")))
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("a thread of the lab has panicked")
}

/// Ticks of all processors that were idle (waiting for disks included), and all ticks, from `/proc/stat`.
fn machine_ticks() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user time (proc_stat(5)).
    Some((fields.get(3)? + fields.get(4)?, fields.iter().take(8).sum()))
}
