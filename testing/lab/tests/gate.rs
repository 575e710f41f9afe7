//! What the validity gate goes by, against what the kernel and the ends say: each figure moves with what it tells, and not without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dray_lab::{Host, Lab, Link, Turn};
use traffic::*;

/// Processor time of the threads of that name in this process, as the kernel counts it (`/proc/PID/task/TID/schedstat`), and how many there are.
fn time_of(thread: &str) -> (Duration, usize) {
    let (mut ns, mut found) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // Threads of other tests may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
        if name.trim() == thread {
            let Ok(text) = std::fs::read_to_string(path.join("schedstat")) else { continue };
            ns += text.split_whitespace().next().unwrap().parse::<u64>().unwrap();
            found += 1;
        }
    }
    (Duration::from_nanos(ns), found)
}

/// Two hosts, of which one listens for a flood of the other, and nothing counted yet.
struct Listening {
    lab: Lab,
    a: Host,
    from: IpAddr,
    to: SocketAddr,
    sink: Task<Vec<(u64, Instant)>>,
}

impl Listening {
    fn start() -> Listening {
        let mut lab = Lab::new().unwrap();
        let link = lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (to, sink) = sink(&b, lab.address(link.b));
        lab.reset_stats().unwrap();
        Listening { a, from: lab.address(link.a), to, sink, lab }
    }
}

/// Issue "a validity gate on every run": the share of the machine that was idle falls when programs compute on all processors, also such as an sshd would start, and then the
/// gate is closed.
#[test]
fn the_gate_sees_who_has_the_machine() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    let mut lab = Lab::new().unwrap();
    lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    lab.reset_stats().unwrap();
    run_for(seconds(1.0));
    let quiet = lab.stats().unwrap();
    println!("nobody computes: {quiet}");

    let processors = std::fs::read_to_string("/proc/stat").unwrap();
    let processors =
        processors.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let host = lab.host("a").unwrap();
    let computes = || {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", "while :; do :; done"]);
        host.spawn(command).unwrap()
    };
    let mut programs: Vec<Child> = (0..processors).map(|_| computes()).collect();
    lab.reset_stats().unwrap();
    run_for(seconds(1.0));
    let loaded = lab.stats();
    for program in &mut programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    let loaded = loaded.unwrap();
    println!("all compute: {loaded}");
    assert!(loaded.idle_share.unwrap() < 0.1, "all processors compute: {loaded}");
    assert!(loaded.validity().unwrap_err().contains("idle"), "{loaded}");
    // Of what was idle before, as much as nobody else had: with the machine for itself nearly all.
    assert!(quiet.idle_share.unwrap() >= loaded.idle_share.unwrap(), "{quiet}");
    if quiet.validity().is_ok() {
        assert!(quiet.idle_share.unwrap() > 0.1, "{quiet}");
    }
}

/// Issue "a validity gate on every run": processor time of the engine is what the kernel says it is.
#[test]
fn the_gate_sees_what_the_engine_takes() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    let Listening { lab, a, from, to, sink } = Listening::start();
    let before = time_of("lab engine");
    assert_eq!(before.1, 1, "one lab at a time");
    let flood = flood(&a, from, to, 300e6, u64::MAX);
    run_for(seconds(1.5));
    let (stats, spent) = (lab.stats().unwrap(), time_of("lab engine").0 - before.0);
    flood.finish();
    sink.finish();
    println!("the kernel counts {spent:?}: {stats}");
    assert!(spent > Duration::from_millis(20), "30,000 packets a second take more: {spent:?}");
    near("processor time of the engine, s", stats.engine_cpu.as_secs_f64(), spent.as_secs_f64(), 0.05)
        .unwrap();
    let share = spent.as_secs_f64() / stats.elapsed.as_secs_f64();
    near("share of a core", stats.engine_share(), share, 0.1).unwrap();
    // A run that comes after it is not held to it.
    lab.reset_stats().unwrap();
    let anew = lab.stats().unwrap();
    println!("counted anew: {anew}");
    assert!(anew.engine_cpu < stats.engine_cpu / 4, "{anew}");
}

/// "Packets lost where no link loses them": an engine that does not come to read them leaves more to a sender's device than it holds (4,000 packets), and what that
/// drops is told, to the packet.
#[test]
fn the_gate_sees_what_a_senders_device_drops() {
    const PACKETS: u64 = 6000;
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    let Listening { lab, a, from, to, sink } = Listening::start();
    lab.stall(seconds(2.0));
    // A thousandth of a second for each hundred packets: less than a tenth of a second, and the engine stands still for two.
    assert_eq!(flood(&a, from, to, 1e9, PACKETS).wait(), PACKETS);
    let stats = lab.stats().unwrap();
    run_for(seconds(0.2));
    let came = sink.finish().len() as u64;
    println!("{came} of {PACKETS} came: {stats}");
    assert_eq!(stats.sender_dropped_packets, PACKETS - came);
    assert!(stats.sender_dropped_packets >= 1000, "{stats}");
    assert!(stats.validity().unwrap_err().contains("dropped by their sender's device"), "{stats}");
    lab.reset_stats().unwrap();
    assert_eq!(lab.stats().unwrap().sender_dropped_packets, 0, "counted from zero again");
}
