//! All pipes and the paths through them, in virtual time: packets come in with the moment they were seen, and leave through
//! a function of the caller.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use crate::link::{Change, Link};
use crate::packet;
use crate::pipe::{Alarm, Offered, Packet, Pipe, Time};
use crate::random::SplitMix64;
use crate::stats::Lateness;
use crate::trace::Trace;

/// Alarms handled before devices are looked at again.
const ALARMS_AT_ONCE: usize = 64;

#[derive(Debug)]
struct Path {
    pipes: Vec<usize>,
    /// Device that gets what comes out.
    to: usize,
}

#[derive(Debug)]
pub(crate) struct Wire {
    pipes: Vec<Pipe>,
    paths: Vec<Path>,
    /// For each device: destination address -> path.
    routes: Vec<HashMap<IpAddr, usize>>,
    alarms: BinaryHeap<Reverse<(Time, usize, Alarm)>>,
    /// Alarms of the call that runs.
    new_alarms: Vec<(Time, Alarm)>,
    random: SplitMix64,
    spare: Spare,
    pub(crate) lateness: Lateness,
    pub(crate) unrouted_packets: u64,
}

impl Wire {
    pub(crate) fn new(seed: u64) -> Wire {
        Wire {
            pipes: Vec::new(),
            paths: Vec::new(),
            routes: Vec::new(),
            alarms: BinaryHeap::new(),
            new_alarms: Vec::new(),
            random: SplitMix64::new(seed),
            spare: Spare::new(),
            lateness: Lateness::default(),
            unrouted_packets: 0,
        }
    }

    pub(crate) fn add_device(&mut self) {
        self.routes.push(HashMap::new());
    }

    pub(crate) fn add_pipe(&mut self, link: &Link) {
        self.pipes.push(Pipe::new(link));
    }

    pub(crate) fn pipes(&self) -> &[Pipe] {
        &self.pipes
    }

    pub(crate) fn pipes_mut(&mut self) -> &mut [Pipe] {
        &mut self.pipes
    }

    /// What `from` sends to one of `addresses` goes through `pipes` to the device `to`.
    pub(crate) fn add_path(&mut self, from: usize, to: usize, pipes: Vec<usize>, addresses: Vec<IpAddr>) {
        let path = self.paths.len();
        self.paths.push(Path { pipes, to });
        self.routes[from].extend(addresses.into_iter().map(|address| (address, path)));
    }

    /// A packet that the device `from` sent, at `now`.
    pub(crate) fn send(&mut self, from: usize, data: &[u8], now: Time, out: &mut impl FnMut(usize, &Packet)) {
        let route = packet::destination(data).and_then(|to| self.routes[from].get(&to));
        let Some(&path) = route else {
            self.unrouted_packets += 1;
            return;
        };
        let (bytes, packets) = packet::size_on_link(data);
        let data = self.spare.copy_of(data);
        self.forward(Packet { data, bytes, packets, path, hop: 0 }, now, out);
    }

    /// Does what is due at `now`, at most a batch of it. Returns when to come again.
    pub(crate) fn run(&mut self, now: Time, out: &mut impl FnMut(usize, &Packet)) -> Option<Time> {
        for _ in 0..ALARMS_AT_ONCE {
            let &Reverse((at, pipe, alarm)) = self.alarms.peek()?;
            if at > now {
                return Some(at);
            }
            self.alarms.pop();
            self.lateness.record(Duration::from_nanos(now - at));
            let leaving = self.pipes[pipe].ring(alarm, at, &mut self.new_alarms);
            self.set_alarms(pipe);
            if let Some(packet) = leaving {
                self.forward(packet, at, out);
            }
        }
        self.alarms.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn change(
        &mut self,
        pipe: usize,
        change: Change,
        now: Time,
        out: &mut impl FnMut(usize, &Packet),
    ) {
        let leaving = self.pipes[pipe].change(change, now, &mut self.new_alarms);
        self.set_alarms(pipe);
        for packet in leaving {
            self.forward(packet, now, out);
        }
    }

    pub(crate) fn play(&mut self, pipe: usize, trace: Trace, now: Time) {
        self.pipes[pipe].play(trace, now, &mut self.new_alarms);
        self.set_alarms(pipe);
    }

    fn forward(&mut self, mut packet: Packet, now: Time, out: &mut impl FnMut(usize, &Packet)) {
        loop {
            let path = &self.paths[packet.path];
            let Some(&pipe) = path.pipes.get(packet.hop) else {
                out(path.to, &packet);
                self.spare.keep(packet);
                return;
            };
            packet.hop += 1;
            let random = &mut self.random;
            let offered =
                self.pipes[pipe].offer(packet, now, &mut || random.next_share(), &mut self.new_alarms);
            self.set_alarms(pipe);
            match offered {
                Offered::Kept => return,
                Offered::Dropped(lost) => {
                    self.spare.keep(lost);
                    return;
                }
                Offered::Passes(passing) => packet = passing,
            }
        }
    }

    fn set_alarms(&mut self, pipe: usize) {
        for (at, alarm) in self.new_alarms.drain(..) {
            self.alarms.push(Reverse((at, pipe, alarm)));
        }
    }
}

/// Buffers of packets that are gone. Asking the kernel for memory may mean waiting for a thread of this process that holds a
/// lock on its memory and is not running: tens of milliseconds on a busy machine, which would be delay of the links.
#[derive(Debug)]
struct Spare {
    single: Vec<Vec<u8>>,
    long: Vec<Vec<u8>>,
}

impl Spare {
    /// Any packet that is no super-packet, of the usual sizes.
    const SINGLE_BYTES: usize = 2048;
    /// Buffers there from the start: 2 MiB.
    const SINGLES: usize = 1024;

    fn new() -> Spare {
        // Written to, so that the memory is there and not only promised.
        let single = (0..Spare::SINGLES).map(|_| vec![0xff; Spare::SINGLE_BYTES]).collect();
        Spare { single, long: Vec::new() }
    }

    fn copy_of(&mut self, data: &[u8]) -> Vec<u8> {
        let (spare, room) = match data.len() <= Spare::SINGLE_BYTES {
            true => (&mut self.single, Spare::SINGLE_BYTES),
            false => (&mut self.long, packet::PACKET_BYTES_MAX),
        };
        let mut buffer = spare.pop().unwrap_or_else(|| Vec::with_capacity(room));
        buffer.clear();
        buffer.extend_from_slice(data);
        buffer
    }

    fn keep(&mut self, packet: Packet) {
        let buffer = packet.data;
        match buffer.capacity() <= Spare::SINGLE_BYTES {
            true => self.single.push(buffer),
            false => self.long.push(buffer),
        }
    }
}

#[cfg(test)]
mod tests;
