//! Records the TCP packets that a host sends and receives, with the time at which each was seen.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, sockopt};

use crate::lab::Host;

/// All packets, in and out (`linux/if_ether.h`).
const ETH_P_ALL: u16 = 0x0003;

/// Longest IPv4 packet.
const PACKET_BYTES_MAX: usize = 65_535;

/// One TCP packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// When it was seen.
    pub at: Instant,
    /// Source address and port.
    pub from: (Ipv4Addr, u16),
    /// Destination address and port.
    pub to: (Ipv4Addr, u16),
    /// True for the first packet of a connection in each direction.
    pub is_syn: bool,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// A recording that runs.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Packet>>>,
}

impl Capture {
    pub(crate) fn start(host: &Host) -> Capture {
        let socket = host.enter(packet_socket);
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            dray_lab::run_first().expect("priority of the capture");
            let _ = ready.send(());
            let mut packets = Vec::new();
            let mut buffer = vec![0; PACKET_BYTES_MAX];
            // What arrived before the stop is still read.
            let mut is_last = false;
            while !is_last {
                is_last = theirs.load(Ordering::Relaxed);
                while let Some(len) = receive(&socket, &mut buffer) {
                    packets.extend(parse(&buffer[..len], Instant::now()));
                }
                if !is_last {
                    await_packet(&socket, Duration::from_millis(5));
                }
            }
            packets
        });
        is_ready.recv().expect("the capture starts");
        Capture { stop, thread: Some(thread) }
    }

    /// Ends the recording.
    pub fn stop(mut self) -> Vec<Packet> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("a capture is stopped once");
        thread.join().expect("capture")
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// True if `needle` crossed the wire inside one connection and direction, be it across packets.
pub fn contains(packets: &[Packet], needle: &[u8]) -> bool {
    let mut streams = std::collections::HashMap::<_, Vec<u8>>::new();
    for packet in packets {
        streams.entry((packet.from, packet.to)).or_default().extend_from_slice(&packet.payload);
    }
    streams.values().any(|bytes| find(bytes, needle))
}

fn find(haystack: &[u8], needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else { return true };
    let mut left = haystack;
    while let Some(at) = left.iter().position(|byte| byte == first) {
        left = &left[at + 1..];
        if left.starts_with(rest) {
            return true;
        }
    }
    false
}

/// Sum of the payloads.
pub fn payload_bytes<'a>(packets: impl IntoIterator<Item = &'a Packet>) -> u64 {
    packets.into_iter().map(|packet| packet.payload.len() as u64).sum()
}

/// A socket on every device of the current namespace, below the protocols.
fn packet_socket() -> OwnedFd {
    let protocol = NonZeroU32::new(u32::from(ETH_P_ALL.to_be())).map(Protocol::from_raw);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, protocol)
        .expect("packet socket");
    sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20).expect("buffer of the packet socket");
    socket
}

/// The next packet, if there is one.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    rustix::net::recv(socket, buffer, RecvFlags::empty()).ok().map(|(len, _)| len)
}

/// Waits until there is a packet or `patience` is over.
fn await_packet(socket: &OwnedFd, patience: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
    let _ = rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
}

/// Takes an IPv4 packet apart (RFC 791, RFC 9293); anything but whole TCP over IPv4 is `None`.
fn parse(packet: &[u8], at: Instant) -> Option<Packet> {
    const TCP: u8 = 6;
    const SYN: u8 = 2;
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    if packet[0] >> 4 != 4 || *packet.get(9)? != TCP {
        return None;
    }
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    // A super-packet of the local stack says 0 when it is longer than the field can hold.
    let end = if total_len == 0 { packet.len() } else { total_len };
    let tcp = packet.get(header_len..end)?;
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let data_offset = usize::from(tcp.get(12)? >> 4) * 4;
    Some(Packet {
        at,
        from: (address(12)?, port(0)?),
        to: (address(16)?, port(2)?),
        is_syn: tcp.get(13)? & SYN != 0,
        payload: tcp.get(data_offset..)?.to_vec(),
    })
}
