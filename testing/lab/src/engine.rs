//! The thread that moves packets: it reads TUN devices, asks the [`Wire`] what to do, and writes to TUN devices.
//!
//! It runs before all ordinary threads (`SCHED_FIFO`), since what it does late would be measured as delay of a link, and it
//! waits for nobody: orders come through a channel, and only the answer to a question leaves it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::link::{Change, Link};
use crate::packet::{HEADER_BYTES, PACKET_BYTES_MAX};
use crate::pipe::{Packet, Time};
use crate::stats::{Lateness, Stats};
use crate::trace::Trace;
use crate::wire::Wire;

/// Packets read from one device before the others have their turn.
const READS_AT_ONCE: usize = 32;
/// Priority among real-time threads; low, so that those of the kernel come first.
const PRIORITY: &str = "10";
/// Stands for the order channel among the devices.
const ORDERS: u64 = u64::MAX;

/// What the lab tells its engine. Devices and pipes are numbered in the order they are added.
#[derive(Debug)]
pub(crate) enum Order {
    Device(Arc<OwnedFd>),
    Pipe(Link),
    Path { from: usize, to: usize, pipes: Vec<usize>, addresses: Vec<IpAddr> },
    Change(usize, Change),
    Play(usize, Trace),
    Stall(Duration),
    Stats(Sender<Stats>),
    Reset,
    Stop,
}

/// A running engine. Dropped, it stops.
#[derive(Debug)]
pub(crate) struct Engine {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn start(seed: u64) -> io::Result<Engine> {
        let (orders, received) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(ORDERS), epoll::EventFlags::IN)?;
        let (ready, is_ready) = channel();
        let theirs = Arc::clone(&bell);
        let thread = std::thread::Builder::new().name("lab engine".into()).spawn(move || {
            let outcome = run_first();
            let goes = outcome.is_ok();
            if ready.send(outcome).is_ok() && goes {
                Running::new(seed, epoll, theirs, received).run();
            }
        })?;
        let gone = |_| io::Error::other("the engine of the lab ended at once");
        is_ready.recv().map_err(gone)??;
        Ok(Engine { orders, bell, thread: Some(thread) })
    }

    pub(crate) fn order(&self, order: Order) {
        // It ends only after the order to stop, or by a panic that its join shows.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    /// What it counted; all orders before are carried out.
    pub(crate) fn stats(&self) -> io::Result<Stats> {
        let (answer, answered) = channel();
        self.order(Order::Stats(answer));
        answered.recv().map_err(|_| io::Error::other("the engine of the lab has ended"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets the calling thread run before all ordinary ones, and wake when it asked to: the engine, and threads that witness when
/// something happens. Threads it starts are ordinary ones. It must not compute for long.
///
/// # Errors
/// If real-time priority is refused, or there is no `chrt` to ask for it.
pub fn run_first() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let arguments = ["--reset-on-fork", "--fifo", "--pid", PRIORITY, &thread];
    let output = Command::new("chrt").args(arguments).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("run chrt: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("real-time priority: {said}")));
    }
    Ok(())
}

struct Running {
    wire: Wire,
    devices: Devices,
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
    epoll: OwnedFd,
    epoch: Instant,
    counting_since: Instant,
    cpu_before: Duration,
}

/// Where packets go.
#[derive(Default)]
struct Devices {
    tuns: Vec<Arc<OwnedFd>>,
    refused_packets: u64,
}

impl Devices {
    fn deliver(&mut self, to: usize, packet: &Packet) {
        if rustix::io::write(&*self.tuns[to], &packet.data).is_err() {
            self.refused_packets += packet.packets;
        }
    }
}

impl Running {
    fn new(seed: u64, epoll: OwnedFd, bell: Arc<OwnedFd>, orders: Receiver<Order>) -> Running {
        let now = Instant::now();
        Running {
            wire: Wire::new(seed),
            devices: Devices::default(),
            orders,
            bell,
            epoll,
            epoch: now,
            counting_since: now,
            cpu_before: thread_cpu(),
        }
    }

    fn now(&self) -> Time {
        Time::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(Time::MAX)
    }

    fn run(&mut self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        loop {
            let now = self.now();
            let next = self.wire.run(now, &mut |to, packet| self.devices.deliver(to, packet));
            self.wait(next);
            events.clear();
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)).is_err() {
                continue;
            }
            for event in &events {
                let device = event.data.u64();
                if device != ORDERS {
                    self.read(device as usize, &mut buffer);
                } else if !self.carry_out() {
                    return;
                }
            }
        }
    }

    /// Until a device or the bell has something, or until `next`. epoll's own time limit may be rounded to milliseconds;
    /// that of `ppoll` is not.
    fn wait(&self, next: Option<Time>) {
        let timeout = next.map(|at| {
            let left = Duration::from_nanos(at.saturating_sub(self.now()));
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        if timeout.is_none_or(|left| (left.tv_sec, left.tv_nsec) != (0, 0)) {
            // An interruption is a wake-up like any other.
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
        }
    }

    fn read(&mut self, device: usize, buffer: &mut [u8]) {
        let tun = Arc::clone(&self.devices.tuns[device]);
        for _ in 0..READS_AT_ONCE {
            let Ok(len) = rustix::io::read(&*tun, &mut *buffer) else { return };
            if len > HEADER_BYTES {
                let now = self.now();
                self.wire.send(device, &buffer[..len], now, &mut |to, packet| {
                    self.devices.deliver(to, packet);
                });
            }
        }
    }

    /// False if it is to stop.
    fn carry_out(&mut self) -> bool {
        let _ = rustix::io::read(&*self.bell, &mut [0_u8; 8]);
        while let Ok(order) = self.orders.try_recv() {
            let now = self.now();
            match order {
                Order::Device(tun) => self.add_device(tun),
                Order::Pipe(link) => self.wire.add_pipe(&link),
                Order::Path { from, to, pipes, addresses } => self.wire.add_path(from, to, pipes, addresses),
                Order::Change(pipe, change) => self.wire.change(pipe, change, now, &mut |to, packet| {
                    self.devices.deliver(to, packet);
                }),
                Order::Play(pipe, trace) => self.wire.play(pipe, trace, now),
                Order::Stall(time) => std::thread::sleep(time),
                Order::Stats(answer) => {
                    let _ = answer.send(self.stats());
                }
                Order::Reset => self.reset(),
                Order::Stop => return false,
            }
        }
        true
    }

    fn add_device(&mut self, tun: Arc<OwnedFd>) {
        let number = self.devices.tuns.len() as u64;
        // Cannot fail for a device just opened, but for memory; then nothing of it arrives and its test says so.
        let data = epoll::EventData::new_u64(number);
        let _ = epoll::add(&self.epoll, tun.as_fd(), data, epoll::EventFlags::IN);
        self.devices.tuns.push(tun);
        self.wire.add_device();
    }

    fn stats(&mut self) -> Stats {
        let now = self.now();
        let pipes = self.wire.pipes_mut().iter_mut().map(|pipe| pipe.counted(now)).collect();
        let delays = self.wire.pipes().iter().map(crate::pipe::Pipe::delay);
        Stats {
            pipes,
            unrouted_packets: self.wire.unrouted_packets,
            refused_packets: self.devices.refused_packets,
            sender_dropped_packets: 0,
            lateness: self.wire.lateness.clone(),
            engine_cpu: thread_cpu().saturating_sub(self.cpu_before),
            elapsed: self.counting_since.elapsed(),
            idle_share: None,
            smallest_delay: delays.filter(|delay| !delay.is_zero()).min(),
        }
    }

    fn reset(&mut self) {
        let now = self.now();
        self.wire.pipes_mut().iter_mut().for_each(|pipe| pipe.forget(now));
        self.wire.unrouted_packets = 0;
        self.wire.lateness = Lateness::default();
        self.devices.refused_packets = 0;
        self.counting_since = Instant::now();
        self.cpu_before = thread_cpu();
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::link::Link;
    use crate::packet::HEADER_BYTES;

    /// "Packets were refused by the device they were for": counted as what crossed the links, so a super-packet of five counts as five.
    #[test]
    fn a_refused_super_packet_is_as_many_as_it_carries() {
        let mut wire = Wire::new(7);
        wire.add_device();
        wire.add_device();
        wire.add_pipe(&Link::UNSHAPED);
        let to = IpAddr::from([10, 0, 0, 1]);
        wire.add_path(0, 1, vec![0], vec![to]);
        // What may only be read takes nothing.
        let tun = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let mut devices = Devices { tuns: vec![Arc::clone(&tun), tun], refused_packets: 0 };
        let mut data = vec![0; HEADER_BYTES + 20 + 20 + 5 * 1000];
        // `virtio_net_hdr`: TCP over IPv4, segments of 1,000 behind 20 and 20 bytes.
        data[1] = 1;
        data[4..6].copy_from_slice(&1000_u16.to_ne_bytes());
        data[6..8].copy_from_slice(&20_u16.to_ne_bytes());
        data[HEADER_BYTES] = 0x45;
        data[HEADER_BYTES + 16..HEADER_BYTES + 20].copy_from_slice(&[10, 0, 0, 1]);
        data[HEADER_BYTES + 32] = 0x50;
        wire.send(0, &data, 0, &mut |to, packet| devices.deliver(to, packet));
        assert_eq!(devices.refused_packets, 5);
    }
}
