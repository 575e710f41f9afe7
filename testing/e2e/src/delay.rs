//! A router that holds every packet back for a fixed time.
//!
//! Kernels do not always have a delay queue (`netem`), so the packets pass through this process: they are taken below
//! the protocols as they arrive in the router's namespace, and sent on, whole, by a raw socket that routes them.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::capture::{self, PACKET_BYTES_MAX};
use crate::lab::{run_first, run_tool};

/// A running router.
#[derive(Debug)]
pub(crate) struct DelayRouter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DelayRouter {
    /// Starts routing in `namespace`; each packet takes `delay`.
    pub(crate) fn start(namespace: &str, delay: Duration) -> DelayRouter {
        // The kernel must not route the same packets as well.
        run_tool(&["ip", "netns", "exec", namespace, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let name = namespace.to_owned();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let arrivals = capture::arrivals(&name);
            let flags = SocketFlags::CLOEXEC;
            let departures =
                rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::RAW))
                    .expect("raw socket");
            sockopt::set_socket_send_buffer_size_force(&departures, 16 << 20)
                .expect("buffer of the raw socket");
            run_first();
            let _ = ready.send(());
            route(&arrivals, &departures, delay, &theirs);
        });
        is_ready.recv().expect("the router starts");
        DelayRouter { stop, thread: Some(thread) }
    }
}

impl Drop for DelayRouter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn route(arrivals: &OwnedFd, departures: &OwnedFd, delay: Duration, stop: &AtomicBool) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    while !stop.load(Ordering::Relaxed) {
        while let Some(len) = capture::receive(arrivals, &mut buffer) {
            let mut packet = buffer[..len].to_vec();
            if complete_checksum(&mut packet).is_some() {
                queue.push_back((Instant::now() + delay, packet));
            }
        }
        while queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, packet)) = queue.pop_front() else { break };
            let to = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]);
            // A packet that cannot be sent is lost, as on any network.
            let _ = rustix::net::sendto(departures, &packet, SendFlags::empty(), &SocketAddrV4::new(to, 0));
        }
        let patience = queue.front().map_or(Duration::from_millis(5), |(due, _)| {
            due.saturating_duration_since(Instant::now()).min(Duration::from_millis(5))
        });
        capture::await_packet(arrivals, patience);
    }
}

/// Writes the TCP checksum, which the sending host left to its device (RFC 9293 §3.1). `None` if it is not TCP over
/// IPv4, or a packet for the router itself.
fn complete_checksum(packet: &mut [u8]) -> Option<()> {
    const TCP: u8 = 6;
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    if packet[0] >> 4 != 4 || header_len < 20 || *packet.get(9)? != TCP || *packet.get(19)? == 1 {
        return None;
    }
    let tcp_len = u32::try_from(packet.len().checked_sub(header_len)?).ok()?;
    let addresses = sum(packet.get(12..20)?);
    let tcp = packet.get_mut(header_len..)?;
    tcp.get_mut(16..18)?.fill(0);
    let mut total = addresses + u32::from(TCP) + tcp_len + sum(tcp);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(total as u16)).to_be_bytes());
    Some(())
}

/// Sum of the 16-bit words; fits, as a packet has at most 2^15 of them.
fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum()
}
