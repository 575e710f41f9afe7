//! The unavoidable costs per byte of the fast path, measured on this machine in the same run, and the best possible times
//! that follow from them. Nothing of the product takes part: what makes it slower must not raise the roof, too.

mod tls;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::time::{ClockId, clock_gettime};

use super::BenchRow;
use crate::bench::Bench;
use crate::measure::Run;
use crate::pair::{Between, Pair};
use crate::site::What;
use crate::telling::Told;
use crate::turns::Place;

const BLOCK_BYTES: usize = 1 << 20;
const PORT: u16 = 9;

pub(super) const ROW: BenchRow = BenchRow {
    name: "roofline",
    about: "per GiB: read from page cache, BLAKE3, TLS 1.3 both ways over veth, TCP over veth, write to page cache; one thread each",
    run: measure,
};

/// Bytes in a smoke test.
const SMOKE_BYTES: u64 = 200_000;

/// Seconds of wall clock and of CPU, all threads together, for some bytes.
#[derive(Clone, Copy, Debug)]
struct Cost {
    wall: f64,
    cpu: f64,
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let pair = bench.pair(Between::Nothing)?;
    let own = if bench.options.is_smoke { SMOKE_BYTES } else { 1 << 30 };
    let Some(bytes) = bench.size(own) else { return Ok(()) };
    let bytes = bytes.max(BLOCK_BYTES as u64) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let what = What::File { bytes };
    bench.site.make(what, bench.options.seed)?;
    for round in 1..=bench.pairs() {
        let path = bench.site.root.join("far/in").join(what.name());
        let target = bench.site.root.join("near/out/roof");
        let said = |error: std::io::Error| format!("roofline: {error}");
        let read = read(&path, bytes).map_err(said)?;
        let hash = hash(bytes);
        let write = write(&target, bytes).map_err(said)?;
        let tcp = tcp(&pair, bytes).map_err(said)?;
        let tls = tls(&pair, bytes).map_err(said)?;
        crate::site::remove(&target);
        let costs = [
            ("read", "read from page cache", read),
            ("blake3", "BLAKE3", hash),
            ("tcp", "TCP over veth, both ends", tcp),
            ("tls", "TLS 1.3 over TCP over veth, both ends", tls),
            ("write", "write to page cache, preallocated", write),
        ];
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let gib = bytes as f64 / f64::from(1 << 30);
        for (label, title, cost) in costs {
            let figures = vec![("CPU-s per GiB", cost.cpu / gib), ("GiB/s", gib / cost.wall)];
            tell(bench, &pair, bytes, round, label, title, cost.wall, figures)?;
        }
        let best = [
            (
                "best-get",
                "best possible get of a hashed object: read + TLS + BLAKE3 + write on all cores",
                read.cpu + tls.cpu + hash.cpu + write.cpu,
            ),
            (
                "best-cp",
                "best possible copy of one never hashed: the same, and BLAKE3 at the origin",
                read.cpu + tls.cpu + 2.0 * hash.cpu + write.cpu,
            ),
            (
                "best-clear",
                "best possible get in clear: TCP + BLAKE3 + write",
                tcp.cpu + hash.cpu + write.cpu,
            ),
        ];
        for (label, title, cpu) in best {
            let figures = vec![("CPU-s per GiB", cpu / gib), ("GiB/s", gib * cores / cpu)];
            tell(bench, &pair, bytes, round, label, title, cpu / cores, figures)?;
        }
    }
    bench.site.remove(what);
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "one line of the results")]
fn tell(
    bench: &mut Bench,
    pair: &Pair,
    bytes: u64,
    round: u32,
    label: &str,
    title: &str,
    seconds: f64,
    figures: Vec<(&'static str, f64)>,
) -> Result<(), String> {
    let run = Run { status: "ok".into(), seconds, load: crate::measure::load(), ..Run::default() };
    let (label, title) = (label.to_owned(), title.to_owned());
    let told = Told { is_ours: false, label, title, round, bytes: None, figures, command: String::new() };
    let place = Place { row: "roofline", cell: &format!("{bytes}-bytes"), link: pair.between.name() };
    bench.tell(&place, &run, told)
}

fn read(path: &std::path::Path, bytes: u64) -> std::io::Result<Cost> {
    let file = File::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    timed(|| (0..bytes).step_by(BLOCK_BYTES).try_for_each(|at| file.read_exact_at(&mut block, at)))
}

fn hash(bytes: u64) -> Cost {
    let block = vec![7; BLOCK_BYTES];
    let mut hasher = blake3::Hasher::new();
    let cost = timed(|| {
        (0..bytes).step_by(BLOCK_BYTES).for_each(|_| {
            hasher.update(&block);
        });
        std::hint::black_box(hasher.finalize());
        Ok(())
    });
    cost.unwrap_or(Cost { wall: f64::NAN, cpu: f64::NAN })
}

fn write(path: &std::path::Path, bytes: u64) -> std::io::Result<Cost> {
    let file = File::create(path)?;
    let block = vec![7; BLOCK_BYTES];
    timed(|| {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        (0..bytes).step_by(BLOCK_BYTES).try_for_each(|at| file.write_all_at(&block, at))
    })
}

fn tcp(pair: &Pair, bytes: u64) -> std::io::Result<Cost> {
    both_ends(
        pair,
        |mut stream| {
            let block = vec![7; BLOCK_BYTES];
            (0..bytes).step_by(BLOCK_BYTES).try_for_each(|_| stream.write_all(&block))
        },
        |mut stream| {
            let mut block = vec![0; BLOCK_BYTES];
            (0..bytes).step_by(BLOCK_BYTES).try_for_each(|_| stream.read_exact(&mut block))
        },
    )
}

fn tls(pair: &Pair, bytes: u64) -> std::io::Result<Cost> {
    let (client, server) = tls::ends().map_err(std::io::Error::other)?;
    both_ends(pair, |stream| tls::send(server, &stream, bytes), |stream| tls::receive(client, &stream, bytes))
}

/// A connection between the ends: `send` at the far one, `receive` at the near one. What the kernel's own threads do for it counts, too: packets
/// that no thread of the two handles in passing.
fn both_ends(
    pair: &Pair,
    send: impl FnOnce(TcpStream) -> std::io::Result<()> + Send,
    receive: impl FnOnce(TcpStream) -> std::io::Result<()> + Send,
) -> std::io::Result<Cost> {
    let address = SocketAddr::new(pair.far_ip, PORT);
    // Pacing costs a timer for each segment, and gains nothing where there is no distance: the best there is does without.
    let listener = pair.far.enter(|| TcpListener::bind(address))??;
    leave_pacing(&listener)?;
    let before = kernel_cpu();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| timed(|| send(listener.accept()?.0)));
        let received = pair.near.enter(|| timed(|| receive(connect(address)?)))?;
        let sent = sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sender panicked")));
        let (received, sent) = (received?, sent?);
        Ok(Cost { wall: received.wall, cpu: sent.cpu + received.cpu + kernel_cpu() - before })
    })
}

/// Congestion controls that do not pace.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// Of a socket that has no connection yet: later the timer stays.
fn leave_pacing(socket: impl AsFd) -> std::io::Result<()> {
    if sockopt::tcp_congestion(&socket)? == "bbr" {
        let mut left = UNPACED.iter().map(|name| sockopt::set_tcp_congestion(&socket, name));
        if !left.any(|left| left.is_ok()) {
            return Err(std::io::Error::other("the machine has neither cubic nor reno beside bbr"));
        }
    }
    Ok(())
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    leave_pacing(&socket)?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

fn timed(body: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<Cost> {
    let (started, before) = (Instant::now(), thread_cpu());
    body()?;
    Ok(Cost { wall: started.elapsed().as_secs_f64(), cpu: thread_cpu() - before })
}

fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds that the threads `ksoftirqd` have run since the machine started: one a core, they handle packets when there are many.
fn kernel_cpu() -> f64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let threads = processes.filter(|path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    });
    // Nanoseconds on a core come first (Documentation/scheduler/sched-stats.rst).
    let ran_ns = threads.filter_map(|path| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    ran_ns.sum::<u64>() as f64 / 1e9
}
