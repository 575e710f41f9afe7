//! Traffic for calibrating the lab: a UDP echo, a UDP flood that numbers its packets, a TCP stream; all in threads of the test
//! inside hosts, so that nothing need be installed.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dray_lab::{Host, Stats};
use rustix::net::sockopt;

/// UDP payload of a flood; 1228 bytes as an IPv4 packet.
pub(crate) const FLOOD_PAYLOAD: usize = 1200;
pub(crate) const FLOOD_PACKET: usize = FLOOD_PAYLOAD + 28;
const BUFFER_BYTES: usize = 64 << 20;

/// How often a measurement is made that failed while the machine was too busy, or was not there.
const ATTEMPTS: u32 = 8;

/// Runs a measurement, and again if it failed while the machine was too busy for it to mean anything, or the machine below this one took a processor away: then whoever
/// witnesses what is measured is late, and no engine need be. Not every such moment is told: it counts as failed where it failed twice though nothing was said against it.
/// The calling thread, which says when something begins and ends, goes before others.
pub(crate) fn measured(mut attempt: impl FnMut() -> (Result<(), String>, Stats)) {
    go_first();
    let mut failures = 0;
    for left in (0..ATTEMPTS).rev() {
        let stolen_before = stolen();
        let (outcome, stats) = attempt();
        println!("{stats}");
        let Err(wrong) = outcome else { return };
        let (validity, is_robbed) = (stats.validity(), stolen() > stolen_before);
        failures += u32::from(validity.is_ok() && !is_robbed);
        let may_repeat = left > 0 && failures < 2;
        assert!(may_repeat, "{wrong}; the run was {validity:?}, processor time was stolen: {is_robbed}");
        println!("again, since the run was {validity:?}, processor time was stolen: {is_robbed}: {wrong}");
    }
}

/// What the machine below has taken of the processors' time, in hundredths of a second (`steal` of `/proc/stat`).
fn stolen() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().next().unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Waits until `condition` holds, with a deadline that no busy machine misses.
#[track_caller]
pub(crate) fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not so within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gives the calling thread, and those it starts, the most of the processors that ordinary threads can have.
pub(crate) fn go_first() {
    rustix::process::setpriority_process(None, -20).unwrap();
}

/// `Ok` if `seen` is within `share` of `wanted`.
pub(crate) fn near(what: &str, seen: f64, wanted: f64, share: f64) -> Result<(), String> {
    let off = (seen - wanted) / wanted;
    let text = format!("{what}: {seen:.4}, ideal {wanted:.4} ({:+.3} %)", off * 100.0);
    println!("{text}");
    if off.abs() <= share { Ok(()) } else { Err(text) }
}

/// A thread that is told to stop, and what it returns.
pub(crate) struct Task<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Task<T> {
    fn start(body: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Task<T> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        Task { stop, thread: std::thread::spawn(move || body(&theirs)) }
    }

    /// Tells it to stop.
    pub(crate) fn finish(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Lets it come to its own end.
    pub(crate) fn wait(self) -> T {
        self.thread.join().unwrap()
    }
}

pub(crate) fn udp(host: &Host, address: IpAddr) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket
}

/// Answers every packet at `address` of `host`.
pub(crate) fn echo(host: &Host, address: IpAddr) -> (SocketAddr, Task<()>) {
    let socket = udp(host, address);
    let at = socket.local_addr().unwrap();
    let task = Task::start(move |stop| {
        dray_lab::run_first().unwrap();
        let mut buffer = [0; 2048];
        while !stop.load(Ordering::Relaxed) {
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        }
    });
    (at, task)
}

/// Round trips of `count` packets to an [`echo`], sorted; what is lost is left out.
pub(crate) fn pings(host: &Host, from: IpAddr, to: SocketAddr, count: u32) -> Vec<Duration> {
    host.enter(|| ping(host, from, to, count)).unwrap()
}

fn ping(host: &Host, from: IpAddr, to: SocketAddr, count: u32) -> Vec<Duration> {
    dray_lab::run_first().unwrap();
    let socket = udp(host, from);
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut times = Vec::new();
    for number in 0..count {
        let started = Instant::now();
        socket.send_to(&number.to_be_bytes(), to).unwrap();
        let mut answer = [0; 4];
        while socket.recv(&mut answer).is_ok() {
            if u32::from_be_bytes(answer) == number {
                times.push(started.elapsed());
                break;
            }
        }
    }
    times.sort();
    times
}

/// Sends numbered packets at `bits_per_second` of IP packets until told to stop, or until `limit` are sent. Returns how many.
pub(crate) fn flood(
    host: &Host,
    from: IpAddr,
    to: SocketAddr,
    bits_per_second: f64,
    limit: u64,
) -> Task<u64> {
    let socket = udp(host, from);
    Task::start(move |stop| {
        dray_lab::run_first().unwrap();
        let started = Instant::now();
        let mut payload = [0; FLOOD_PAYLOAD];
        let mut sent = 0_u64;
        while !stop.load(Ordering::Relaxed) && sent < limit {
            let bits = started.elapsed().as_secs_f64() * bits_per_second;
            let due = (bits / (FLOOD_PACKET * 8) as f64) as u64;
            while sent < due.min(limit) {
                payload[..8].copy_from_slice(&sent.to_be_bytes());
                socket.send_to(&payload, to).unwrap();
                sent += 1;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        sent
    })
}

/// Takes what a [`flood`] sends: the number of each packet and when it came.
pub(crate) fn sink(host: &Host, address: IpAddr) -> (SocketAddr, Task<Vec<(u64, Instant)>>) {
    let socket = udp(host, address);
    let at = socket.local_addr().unwrap();
    let task = Task::start(move |stop| {
        dray_lab::run_first().unwrap();
        let mut came = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            match socket.recv(&mut buffer) {
                Ok(_) => {
                    came.push((u64::from_be_bytes(buffer[..8].try_into().unwrap()), Instant::now()));
                }
                // What was on its way when told to stop is still taken.
                Err(_) if stop.load(Ordering::Relaxed) => return came,
                Err(_) => {}
            }
        }
    });
    (at, task)
}

/// Mbit/s of IP packets between the first arrival after `from` and the last before `to`, counted from the first of all.
pub(crate) fn rate_mbit(came: &[(u64, Instant)], from: Duration, to: Duration) -> f64 {
    let Some((_, first)) = came.first() else { return 0.0 };
    let inside = |at: &Instant| (from..to).contains(&at.duration_since(*first));
    let window: Vec<_> = came.iter().filter(|(_, at)| inside(at)).collect();
    let [(_, begin), .., (_, end)] = window[..] else { return 0.0 };
    ((window.len() - 1) * FLOOD_PACKET * 8) as f64 / end.duration_since(*begin).as_secs_f64() / 1e6
}

/// Takes one TCP connection at `address` and counts its bytes, with the time of every read.
pub(crate) fn tcp_sink(host: &Host, address: IpAddr) -> (SocketAddr, Task<Vec<(u64, Instant)>>) {
    let listener = host.enter(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let task = Task::start(move |_| {
        dray_lab::run_first().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 256 << 10];
        let (mut total, mut reads) = (0, Vec::new());
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            total += len as u64;
            reads.push((total, Instant::now()));
        }
        reads
    });
    (at, task)
}

/// Sends to a [`tcp_sink`] under cubic until told to stop, or until `limit` bytes are sent.
pub(crate) fn tcp_source(host: &Host, to: SocketAddr, limit: u64) -> Task<()> {
    let mut stream = host.enter(|| TcpStream::connect(to).unwrap()).unwrap();
    sockopt::set_tcp_congestion(&stream, "cubic").unwrap();
    Task::start(move |stop| {
        dray_lab::run_first().unwrap();
        let block = vec![7; 64 << 10];
        let mut left = limit;
        while !stop.load(Ordering::Relaxed) && left > 0 {
            let len = left.min(block.len() as u64);
            stream.write_all(&block[..len as usize]).unwrap();
            left -= len;
        }
    })
}

/// Mbit/s of payload between two moments after the first read.
pub(crate) fn goodput_mbit(reads: &[(u64, Instant)], from: Duration, to: Duration) -> f64 {
    let Some((_, first)) = reads.first() else { return 0.0 };
    let inside = |at: &Instant| (from..to).contains(&at.duration_since(*first));
    let window: Vec<_> = reads.iter().filter(|(_, at)| inside(at)).collect();
    let [(before, begin), .., (after, end)] = window[..] else { return 0.0 };
    (after - before) as f64 * 8.0 / end.duration_since(*begin).as_secs_f64() / 1e6
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Lets traffic run. The lab works in real time, so a test of it lasts as long as what it measures.
pub(crate) fn run_for(time: Duration) {
    std::thread::sleep(time);
}
