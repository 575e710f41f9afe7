//! The unavoidable costs per byte of the fast path, measured on this machine in the same run, and the best possible times
//! that follow from them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use dray_transfer::transport::{Channel, NodeKey, TlsConfig};
use rustix::time::{ClockId, clock_gettime};

use super::BenchRow;
use crate::bench::{Bench, Told};
use crate::measure::Run;
use crate::pair::{Between, Pair};
use crate::site::What;

const BLOCK_BYTES: usize = 1 << 20;
const PORT: u16 = 9;
const PATIENCE: Duration = Duration::from_secs(60);

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
    let bytes =
        bench.size(if bench.options.is_smoke { SMOKE_BYTES } else { 1 << 30 }).max(BLOCK_BYTES as u64)
            / BLOCK_BYTES as u64
            * BLOCK_BYTES as u64;
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
        let tls = tls(&pair, bytes)?;
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
    bench.tell("roofline", &format!("{}-bytes", bytes), pair, &run, told)
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

fn tls(pair: &Pair, bytes: u64) -> Result<Cost, String> {
    let config = |seed: u8| {
        let key = NodeKey::from_seed(&[seed; 32])?;
        TlsConfig::new(key)
    };
    let said = |error: &dyn std::fmt::Display| format!("roofline: {error}");
    let (near, far) = (config(1).map_err(|error| said(&error))?, config(2).map_err(|error| said(&error))?);
    let node = far.node();
    let cost = both_ends(
        pair,
        |stream| {
            let mut channel = far.accept(stream, Instant::now() + PATIENCE).map_err(std::io::Error::other)?;
            let block = vec![7; BLOCK_BYTES];
            (0..bytes).step_by(BLOCK_BYTES).try_for_each(|_| channel.write_all(&block))?;
            // Until the other end has it all.
            while !matches!(channel.try_read(&mut [0; 16])?, Some(0)) {
                channel.wait(None, PATIENCE)?;
            }
            Ok(())
        },
        |stream| {
            let mut channel =
                near.connect(stream, node, Instant::now() + PATIENCE).map_err(std::io::Error::other)?;
            let mut block = vec![0; BLOCK_BYTES];
            let mut left = bytes;
            while left > 0 {
                match channel.try_read(&mut block)? {
                    Some(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Some(count) => left -= count as u64,
                    None => channel.wait(None, PATIENCE)?,
                }
            }
            Ok(())
        },
    );
    cost.map_err(|error| said(&error))
}

/// A connection between the ends: `send` at the far one, `receive` at the near one.
fn both_ends(
    pair: &Pair,
    send: impl FnOnce(TcpStream) -> std::io::Result<()> + Send,
    receive: impl FnOnce(TcpStream) -> std::io::Result<()> + Send,
) -> std::io::Result<Cost> {
    let address = SocketAddr::new(pair.far_ip, PORT);
    let listener = pair.far.enter(|| TcpListener::bind(address))??;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| timed(|| send(listener.accept()?.0)));
        let received = pair.near.enter(|| timed(|| receive(TcpStream::connect(address)?)))?;
        let sent = sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sender panicked")))?;
        let received = received?;
        Ok(Cost { wall: received.wall, cpu: sent.cpu + received.cpu })
    })
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
