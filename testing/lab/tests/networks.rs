//! What hosts can do with each other, in counts: losses, both families, more than one device, super-packets, programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod traffic;

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use dray_lab::{Access, Host, Lab, Link, Loss, Rate, Turn};
use traffic::*;

const MS: Duration = Duration::from_millis(1);

/// "Loss within 3 sigma", random and in bursts; every packet is carried or counted as lost. The seed makes it repeat exactly.
#[test]
fn losses_are_those_asked_for() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    const SENT: u64 = 20_000;
    let lost_numbers = |loss: Loss| {
        let mut lab = Lab::new().unwrap();
        let link = lab.link("a", "b", Link::UNSHAPED.with_loss(loss), Link::UNSHAPED).unwrap();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (to, sink) = sink(&b, lab.address(link.b));
        let flood = flood(&a, lab.address(link.a), to, 200e6, SENT);
        await_that("all packets have been offered", || {
            lab.stats().unwrap().pipes[link.up.index()].offered_packets >= SENT
        });
        assert_eq!(flood.finish(), SENT);
        let came = sink.finish();
        let pipe = lab.stats().unwrap().pipes[link.up.index()];
        assert_eq!((pipe.offered_packets, pipe.carried_packets), (SENT, came.len() as u64), "{pipe:?}");
        assert_eq!(pipe.lost_packets, SENT - came.len() as u64);
        assert!(came.is_sorted_by_key(|(number, _)| *number), "packets overtook each other");
        let came: std::collections::HashSet<u64> = came.into_iter().map(|(number, _)| number).collect();
        (0..SENT).filter(|number| !came.contains(number)).collect::<Vec<_>>()
    };
    let lost = lost_numbers(Loss::Random(0.01));
    let (mean, sigma) = (SENT as f64 * 0.01, (SENT as f64 * 0.01 * 0.99).sqrt());
    println!("{} of {SENT} lost, expected {mean} with sigma {sigma:.1}", lost.len());
    assert!((lost.len() as f64 - mean).abs() < 3.0 * sigma);
    assert_eq!(lost_numbers(Loss::Random(0.01)), lost, "the same seed loses the same packets");

    let lost = lost_numbers(Loss::bursts(0.02, 10.0));
    let bursts = 1 + lost.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    let length = lost.len() as f64 / bursts as f64;
    println!("{} lost in {bursts} bursts of {length:.1}", lost.len());
    // 40 bursts of 10 are expected, each length with a standard deviation of about 10.
    assert!((20..=62).contains(&bursts) && (5.0..15.0).contains(&length));
}

/// "IPv4 and IPv6": the same link carries both.
#[test]
fn both_families_cross_a_link() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let one_way = Link::new(Rate::mbit(50), 4 * MS);
    let link = lab.link("a", "b", one_way, one_way).unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    for (from, to) in [
        (lab.address(link.a), lab.address(link.b)),
        (lab.address_v6(link.a).unwrap(), lab.address_v6(link.b).unwrap()),
    ] {
        let (at, echo) = echo(&b, to);
        let times = pings(&a, from, at, 5);
        echo.finish();
        assert_eq!(times.len(), 5, "answers from {at}");
        assert!(times[0] >= 8 * MS, "{times:?}");
        let (at, sink) = tcp_sink(&b, to);
        tcp_source(&a, at, 1 << 20).wait();
        assert_eq!(received(sink), 1 << 20, "over TCP to {at}");
    }
}

/// "Multi-homing": a client with two devices reaches two of one server, each flow through its own pipes, and a third host by
/// the device it is bound to.
#[test]
fn a_host_with_two_devices_uses_both() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let fast = Link::delay(2 * MS);
    let slow = Link::delay(30 * MS);
    let first = lab.link("client", "server", fast, fast).unwrap();
    let second = lab.link("client", "server", slow, slow).unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    assert_eq!(client.addresses().len(), 4);
    for (link, other, least) in [(first, second, 4 * MS), (second, first, 60 * MS)] {
        for (from, to) in [
            (lab.address(link.a), lab.address(link.b)),
            (lab.address_v6(link.a).unwrap(), lab.address_v6(link.b).unwrap()),
        ] {
            lab.reset_stats().unwrap();
            let (at, echo) = echo(&server, to);
            let times = pings(&client, from, at, 3);
            echo.finish();
            assert!(times.len() == 3 && times[0] >= least, "{at}: {times:?}");
            let pipes = lab.stats().unwrap().pipes;
            assert_eq!(
                (pipes[link.up.index()].carried_packets, pipes[link.down.index()].carried_packets),
                (3, 3)
            );
            assert_eq!(
                (pipes[other.up.index()].offered_packets, pipes[other.down.index()].offered_packets),
                (0, 0)
            );
        }
    }
}

/// "Mesh" and "star": who may talk to whom, through what.
#[test]
fn meshes_and_stars_join_everybody() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let names = ["a", "b", "c", "d"];
    let mesh = lab.mesh(&names, |from, to| Link::delay(MS * (1 + from as u32 + to as u32))).unwrap();
    let hosts = names.map(|name| lab.host(name).unwrap());
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            lab.reset_stats().unwrap();
            let (at, echo) = echo(&hosts[to], lab.address(mesh.nics[to]));
            assert_eq!(pings(&hosts[from], lab.address(mesh.nics[from]), at, 1).len(), 1);
            echo.finish();
            let stats = lab.stats().unwrap();
            let used: Vec<usize> =
                (0..stats.pipes.len()).filter(|pipe| stats.pipes[*pipe].offered_packets > 0).collect();
            let mut expected = [mesh.pipe(from, to).unwrap().index(), mesh.pipe(to, from).unwrap().index()];
            expected.sort_unstable();
            assert_eq!(used, expected);
        }
    }
    let access = Access { up: Link::delay(MS), down: Link::delay(2 * MS) };
    let ids = lab.star(&[("hub", access), ("leaf", access), ("other", access)]).unwrap();
    let (leaf, other) = (lab.host("leaf").unwrap(), lab.host("other").unwrap());
    let (at, echo) = echo(&other, lab.address(ids[2].nic));
    let times = pings(&leaf, lab.address(ids[1].nic), at, 2);
    echo.finish();
    assert!(times.len() == 2 && times[0] >= 6 * MS, "{times:?}");
}

/// Links from 200 Mbit/s on get super-packets: all bytes arrive, and pipes count what a real link would have carried.
#[test]
fn super_packets_are_counted_as_their_segments() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    const BYTES: u64 = 64 << 20;
    for link in [Link::UNSHAPED, Link::new(Rate::mbit(1000), MS)] {
        let mut lab = Lab::new().unwrap();
        let ids = lab.link("a", "b", link, link).unwrap();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (at, sink) = tcp_sink(&b, lab.address(ids.b));
        let source = tcp_source(&a, at, BYTES);
        source.wait();
        assert_eq!(received(sink), BYTES);
        let stats = lab.stats().unwrap();
        let pipe = stats.pipes[ids.up.index()];
        // Headers of 52 bytes on payloads of at most 1448; retransmissions and short segments may add a little.
        let ideal = BYTES as f64 * 1500.0 / 1448.0;
        let share = pipe.carried_bytes as f64 / ideal;
        println!(
            "{} packets, {} bytes, {share:.4} of the ideal\n{stats}",
            pipe.carried_packets, pipe.carried_bytes
        );
        assert!((0.999..1.05).contains(&share), "{pipe:?}");
        assert!(pipe.carried_packets >= BYTES / 1448, "super-packets counted as one packet: {pipe:?}");
        assert_eq!(stats.refused_packets, 0);
    }
}

/// Bytes that came over a connection until its end.
fn received(sink: Task<Vec<(u64, std::time::Instant)>>) -> u64 {
    sink.wait().last().map_or(0, |(total, _)| *total)
}

/// A link that starts to lose packets is no longer given super-packets, so that a loss is one packet.
#[test]
fn a_link_that_comes_to_lose_packets_gets_single_ones() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let ids = lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    lab.set(ids.up, dray_lab::Change::Loss(Loss::Random(0.02))).unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (at, sink) = tcp_sink(&b, lab.address(ids.b));
    let source = tcp_source(&a, at, 4 << 20);
    source.wait();
    assert_eq!(received(sink), 4 << 20);
    let pipe = lab.stats().unwrap().pipes[ids.up.index()];
    let mean = pipe.offered_bytes / pipe.offered_packets;
    assert!(mean <= 1500 && pipe.lost_packets > 20, "{pipe:?}");
    let share = pipe.lost_packets as f64 / pipe.offered_packets as f64;
    assert!((0.01..0.03).contains(&share), "{share}");
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

/// Programs run on their host: they see its devices alone, their own processes, and their CPU time is told.
#[test]
fn programs_run_inside_their_host() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    let a = lab.host("a").unwrap();
    let script = "ls /sys/class/net >/dev/null; cut -d: -f1 -s /proc/net/dev; readlink /proc/self/ns/net; \
                  i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo oops >&2; exit 7";
    let ran = a.run(shell(script)).unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let lines: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(lines[..lines.len() - 1], ["lo", "e0"], "{text}");
    assert_ne!(std::fs::read_link("/proc/self/ns/net").unwrap().to_str().unwrap(), lines[lines.len() - 1]);
    assert_eq!((ran.status.code(), ran.stderr.as_slice()), (Some(7), b"oops\n".as_slice()));
    assert!(
        ran.cpu > Duration::ZERO && ran.cpu <= 2 * ran.elapsed + 20 * MS,
        "{:?} of {:?}",
        ran.cpu,
        ran.elapsed
    );
    // Process 1 there is the lab's, and `$$` names the process in the /proc it sees.
    let ran = a.run(shell("cat /proc/1/comm; cat /proc/$$/comm")).unwrap();
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), "cat\nsh\n");
    let missing = a.run(Command::new("/no/such/program")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

/// The end of a lab kills what runs on its hosts, also what has detached itself, and a host made elsewhere is left as it was.
#[test]
fn the_end_of_a_lab_ends_its_programs() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let namespace: OwnedFd = lab
        .host("maker")
        .unwrap()
        .enter(|| std::fs::File::open("/proc/thread-self/ns/net").unwrap())
        .unwrap()
        .into();
    let mut other = Lab::new().unwrap();
    let adopted = other.adopt("adopted", namespace).unwrap();
    assert_eq!(
        other.adopt("adopted", adopted_fd(&adopted)).unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
    let ids = other.link("adopted", "peer", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    let at = other.address(ids.a);
    assert!(adopted.enter(|| UdpSocket::bind((at, 0)).is_ok()).unwrap());

    let marker = format!("1000.{}", std::process::id());
    let mut detached = shell(&format!("setsid nohup sleep {marker} >/dev/null 2>&1 & sleep {marker}"));
    detached.stdin(Stdio::null());
    let mut child = adopted.spawn(detached).unwrap();
    await_that("two programs run", || processes_with(&marker).len() >= 2);
    let started = std::time::Instant::now();
    drop(other);
    assert!(started.elapsed() < Duration::from_secs(4), "the end of a lab waits for no zombie");
    assert_eq!(processes_with(&marker), Vec::<u32>::new());
    assert!(child.wait().unwrap().code().is_none(), "killed by a signal");
    let maker = lab.host("maker").unwrap();
    // The namespace stands, and the device that the other lab put into it goes: with the last process that holds it, which the kernel may still
    // be taking down.
    let devices = || maker.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    await_that("the device has gone", || !devices().contains("e0:"));
    assert!(devices().contains("lo:"), "{}", devices());
}

fn adopted_fd(host: &Host) -> OwnedFd {
    std::fs::File::open(host.namespace_path()).unwrap().into()
}

/// "kill -9 leaves nothing": neither a program on a host, nor one that detached itself, nor a namespace.
#[test]
fn a_killed_lab_leaves_nothing() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let marker = format!("2000.{}", std::process::id());
    let script = format!("setsid nohup sleep {marker} >/dev/null 2>&1 & (sleep {marker} &) ; sleep {marker}");
    let mut victim = Command::new(env!("CARGO_BIN_EXE_lab-run"))
        .args(["--link", "lan", "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    await_that("three programs run", || {
        assert!(victim.try_wait().unwrap().is_none(), "lab-run ended by itself");
        sleeping_with(&marker).len() >= 3
    });
    let inside = sleeping_with(&marker)[0];
    let network = std::fs::read_link(format!("/proc/{inside}/ns/net")).unwrap();
    assert_ne!(network, std::fs::read_link("/proc/self/ns/net").unwrap());
    victim.kill().unwrap();
    victim.wait().unwrap();
    // The kernel needs a moment for what it does; nobody does anything else meanwhile.
    await_that("all programs have gone", || processes_with(&marker).is_empty());
    let holders = all_processes()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|own| own == network));
    assert_eq!(holders.collect::<Vec<_>>(), Vec::<u32>::new());
}

fn all_processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Processes with `marker` in their command line, zombies left out.
fn processes_with(marker: &str) -> Vec<u32> {
    let names = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(marker)
    };
    all_processes().filter(|pid| *pid != std::process::id()).filter(names).collect()
}

fn sleeping_with(marker: &str) -> Vec<u32> {
    let sleeps = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
    };
    processes_with(marker).into_iter().filter(sleeps).collect()
}

/// A pipe of another lab is refused in words, whatever is asked of it.
#[test]
fn a_foreign_pipe_is_refused() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let (mut lab, mut other) = (Lab::new().unwrap(), Lab::new().unwrap());
    let link = other.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    let [a, b] = ["a", "b"].map(|name| lab.nic(name, &[], 1500).unwrap());
    let trace = dray_lab::Trace::steps(vec![(MS, Rate::mbit(1))]);
    let refused = [
        lab.set(link.up, dray_lab::Change::Up(false)),
        lab.play(link.up, trace.unwrap()),
        lab.path(a, b, &[link.up]),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    assert!(lab.stats().is_ok(), "the engine runs");
}

/// A device that takes nothing loses packets that no link is asked to lose: they are counted, and the gate closes.
#[test]
fn what_a_device_refuses_closes_the_gate() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let link = lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (to, sink) = sink(&b, lab.address(link.b));
    assert!(b.run(shell("ip link set e0 down")).unwrap().status.success());
    const SENT: u64 = 50;
    let flood = flood(&a, lab.address(link.a), to, 10e6, SENT);
    await_that("all packets have been refused", || lab.stats().unwrap().refused_packets >= SENT);
    assert_eq!((flood.finish(), sink.finish().len()), (SENT, 0));
    let stats = lab.stats().unwrap();
    assert_eq!(stats.pipes[link.up.index()].lost_packets, 0);
    let why = stats.validity().unwrap_err();
    assert!(why.contains("refused"), "{why}");
    lab.reset_stats().unwrap();
    let stats = lab.stats().unwrap();
    assert_eq!(
        (stats.refused_packets, stats.unrouted_packets, stats.pipes[link.up.index()].offered_packets),
        (0, 0, 0)
    );
}

/// A TCP connection sees an end that goes: nothing in the lab answers for a host.
#[test]
fn a_host_without_a_path_is_silent() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    let ids = lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    let lonely = lab.nic("c", &[], 1500).unwrap();
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let (from, to) = (lab.address(ids.a), lab.address(lonely));
    let _listener = c.enter(|| TcpListener::bind((to, 7)).unwrap()).unwrap();
    let error = a.enter(|| TcpStream::connect_timeout(&(to, 7).into(), 200 * MS).unwrap_err()).unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "from {from}: {error}");
    assert!(lab.stats().unwrap().unrouted_packets > 0);
    // Nobody asks any more: a host's own multicast is over by now, or said again later than that.
    await_that("what was sent in vain is counted from zero", || {
        lab.reset_stats().unwrap();
        lab.stats().unwrap().unrouted_packets == 0
    });
}

/// Issue "a validity gate on every run": how late is too late goes by the shortest delay of all, of those that have one.
#[test]
fn the_shortest_delay_is_told() {
    dray_lab::require!();
    let _turn = Turn::take(false).unwrap();
    let mut lab = Lab::new().unwrap();
    lab.link("a", "b", Link::UNSHAPED, Link::UNSHAPED).unwrap();
    assert_eq!(lab.stats().unwrap().smallest_delay, None);
    let ids = lab.link("a", "c", Link::delay(30 * MS), Link::delay(3 * MS)).unwrap();
    assert_eq!(lab.stats().unwrap().smallest_delay, Some(3 * MS));
    lab.link("b", "c", Link::delay(10 * MS), Link::delay(20 * MS)).unwrap();
    assert_eq!(lab.stats().unwrap().smallest_delay, Some(3 * MS));
    // How late a packet was is counted, and of a later run anew.
    const SENT: u64 = 50;
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let (to, sink) = sink(&c, lab.address(ids.b));
    assert_eq!(flood(&a, lab.address(ids.a), to, 10e6, SENT).wait(), SENT);
    await_that("all packets have come", || lab.stats().unwrap().lateness.events() >= SENT);
    sink.finish();
    lab.reset_stats().unwrap();
    assert!(lab.stats().unwrap().lateness.events() < SENT / 2);
}
