//! Pipes in virtual time: rates, delays, queues, losses and changes come out exactly, without a device or a clock.

use super::*;
use crate::link::{Loss, Queue, Rate};
use crate::packet::HEADER_BYTES;
use crate::stats::PipeStats;

const MS: Time = 1_000_000;

fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

/// An IPv4 packet of `bytes` to host `to`, as a TUN device hands it over, with `mark` in its last byte.
fn packet_to(to: u8, bytes: usize, mark: u8) -> Vec<u8> {
    let mut data = vec![0; HEADER_BYTES + bytes];
    data[HEADER_BYTES] = 0x45;
    data[HEADER_BYTES + 16..HEADER_BYTES + 20].copy_from_slice(&[10, 0, 0, to]);
    *data.last_mut().unwrap() = mark;
    data
}

/// Device 0 sends to device 1 through one pipe per link.
fn line(links: &[Link]) -> Wire {
    let mut wire = Wire::new(7);
    wire.add_device();
    wire.add_device();
    links.iter().for_each(|link| wire.add_pipe(link));
    wire.add_path(0, 1, (0..links.len()).collect(), vec![address(1)]);
    wire
}

/// Runs until `end` or until nothing is left. (time, device, mark) of what came out.
fn run(wire: &mut Wire, end: Time) -> Vec<(Time, usize, u8)> {
    let mut out = Vec::new();
    let mut now = 0;
    loop {
        let next = wire.run(now, &mut |device, packet| out.push((now, device, *packet.data.last().unwrap())));
        match next {
            Some(at) if at <= end => now = at.max(now),
            _ => return out,
        }
    }
}

#[test]
fn packets_come_out_at_the_rate_after_the_delay() {
    // 1250 bytes at 10 Mbit/s take 1 ms.
    let mut wire = line(&[Link::new(Rate::mbit(10), Duration::from_millis(20))]);
    for mark in 0..5 {
        wire.send(0, &packet_to(1, 1250, mark), 0, &mut |_, _| panic!("nothing passes at once"));
    }
    let out = run(&mut wire, Time::MAX);
    let expected: Vec<_> = (0..5).map(|mark| ((21 + Time::from(mark)) * MS, 1, mark)).collect();
    assert_eq!(out, expected);
}

#[test]
fn late_wakeups_cost_no_rate() {
    let mut wire = line(&[Link::new(Rate::mbit(10), Duration::ZERO)]);
    (0..20).for_each(|mark| wire.send(0, &packet_to(1, 1250, mark), 0, &mut |_, _| {}));
    let mut count = 0;
    // Woken 0.9 ms late each time, it has still sent 10 packets at 10 ms.
    for now in [1_900_000, 5_900_000, 10 * MS] {
        wire.run(now, &mut |_, _| count += 1);
    }
    assert_eq!(count, 10);
}

#[test]
fn a_full_queue_drops_what_comes_last_and_says_so() {
    let link = Link::new(Rate::mbit(10), Duration::ZERO).with_queue(Queue::Bytes(3000));
    let mut wire = line(&[link]);
    (0..5).for_each(|mark| wire.send(0, &packet_to(1, 1000, mark), 0, &mut |_, _| {}));
    let marks: Vec<u8> = run(&mut wire, Time::MAX).into_iter().map(|(_, _, mark)| mark).collect();
    assert_eq!(marks, [0, 1, 2]);
    let stats = &wire.pipes()[0].stats;
    assert_eq!((stats.offered_packets, stats.carried_packets, stats.dropped_full), (5, 3, 2));
    assert_eq!((stats.offered_bytes, stats.carried_bytes, stats.queue_bytes_peak), (5000, 3000, 3000));
}

/// Y6: how long a link was in use, and what waited meanwhile.
#[test]
fn what_waits_is_counted_with_its_time() {
    let mut wire = line(&[Link::new(Rate::mbit(10), Duration::ZERO)]);
    // 1250 bytes take 1 ms: two of them wait for 1 ms, then one.
    (0..2).for_each(|mark| wire.send(0, &packet_to(1, 1250, mark), 10 * MS, &mut |_, _| {}));
    run(&mut wire, Time::MAX);
    let pipe = &mut wire.pipes_mut()[0];
    let stats = pipe.counted(100 * MS);
    assert_eq!((stats.busy, stats.queue_bytes_mean()), (Duration::from_millis(2), 1875));
    pipe.forget(100 * MS);
    assert_eq!(pipe.counted(200 * MS), PipeStats::default());
    // What waits goes on waiting when the counts begin anew.
    wire.change(0, Change::Rate(Some(Rate::bits(0))), 200 * MS, &mut |_, _| {});
    wire.send(0, &packet_to(1, 1000, 2), 200 * MS, &mut |_, _| {});
    let pipe = &mut wire.pipes_mut()[0];
    pipe.forget(300 * MS);
    let stats = pipe.counted(305 * MS);
    assert_eq!((stats.busy, stats.queue_bytes_mean()), (Duration::from_millis(5), 1000));
}

#[test]
fn a_shared_pipe_serves_both_senders_in_turn_of_arrival() {
    let mut wire = Wire::new(1);
    (0..3).for_each(|_| wire.add_device());
    wire.add_pipe(&Link::new(Rate::mbit(10), Duration::ZERO));
    wire.add_path(0, 2, vec![0], vec![address(2)]);
    wire.add_path(1, 2, vec![0], vec![address(2)]);
    for mark in 0..4 {
        wire.send(usize::from(mark % 2), &packet_to(2, 1250, mark), 0, &mut |_, _| {});
    }
    let out = run(&mut wire, Time::MAX);
    assert_eq!(out, (0..4).map(|mark| ((1 + Time::from(mark)) * MS, 2, mark)).collect::<Vec<_>>());
}

#[test]
fn a_change_of_rate_keeps_the_bits_already_sent() {
    let mut wire = line(&[Link::new(Rate::mbit(10), Duration::ZERO)]);
    wire.send(0, &packet_to(1, 12_500, 0), 0, &mut |_, _| {});
    // Half of it has gone after 5 ms; the rest takes 50 ms at a tenth.
    wire.change(0, Change::Rate(Some(Rate::mbit(1))), 5 * MS, &mut |_, _| {});
    assert_eq!(run(&mut wire, Time::MAX), [(55 * MS, 1, 0)]);
    // Stopped, and going on.
    wire.send(0, &packet_to(1, 125, 1), 100 * MS, &mut |_, _| {});
    wire.change(0, Change::Rate(Some(Rate::bits(0))), 100 * MS + MS / 2, &mut |_, _| {});
    assert_eq!(run(&mut wire, 1000 * MS), []);
    wire.change(0, Change::Rate(Some(Rate::mbit(1))), 1000 * MS, &mut |_, _| {});
    assert_eq!(run(&mut wire, Time::MAX), [(1000 * MS + MS / 2, 1, 1)]);
    // Without a rate everything that waits goes at once.
    wire.send(0, &packet_to(1, 125, 2), 2000 * MS, &mut |_, _| {});
    let mut passed = 0;
    wire.change(0, Change::Rate(None), 2000 * MS, &mut |_, _| passed += 1);
    wire.send(0, &packet_to(1, 125, 3), 2000 * MS, &mut |_, _| passed += 1);
    assert_eq!((passed, run(&mut wire, Time::MAX)), (2, vec![]));
}

#[test]
fn a_shorter_delay_lets_nothing_overtake() {
    for shorter in [Duration::from_millis(1), Duration::ZERO] {
        let mut wire = line(&[Link::delay(Duration::from_millis(50))]);
        wire.send(0, &packet_to(1, 100, 0), 0, &mut |_, _| {});
        wire.change(0, Change::Delay(shorter), 10 * MS, &mut |_, _| {});
        wire.send(0, &packet_to(1, 100, 1), 10 * MS, &mut |_, _| panic!("it overtakes"));
        assert_eq!(run(&mut wire, Time::MAX), [(50 * MS, 1, 0), (50 * MS, 1, 1)]);
    }
}

/// Nor does it reach the next link sooner than what it stood behind: 125 bytes take 1 ms there, and what was before them finds no room.
#[test]
fn what_waited_behind_another_comes_to_the_next_link_after_it() {
    let narrow = Link::new(Rate::mbit(1), Duration::ZERO).with_queue(Queue::Bytes(200));
    let mut wire = line(&[Link::delay(Duration::from_millis(50)), narrow]);
    wire.send(0, &packet_to(1, 1250, 0), 0, &mut |_, _| {});
    wire.change(0, Change::Delay(Duration::from_millis(1)), 10 * MS, &mut |_, _| {});
    wire.send(0, &packet_to(1, 125, 1), 10 * MS, &mut |_, _| {});
    assert_eq!(run(&mut wire, Time::MAX), [(51 * MS, 1, 1)]);
    assert_eq!(wire.pipes()[1].stats.dropped_full, 1);
}

/// Of 251 packets of 1,250 bytes those that find room, of a line of 100 Mbit/s and 5 ms each way with a queue of one bandwidth-delay product,
/// after a change.
fn find_room(change: Option<Change>) -> usize {
    let link = Link::new(Rate::mbit(100), Duration::from_millis(5)).with_queue(Queue::Bdp(1.0));
    let mut wire = line(&[link]);
    if let Some(change) = change {
        wire.change(0, change, 0, &mut |_, _| {});
    }
    (0..=250).for_each(|mark| wire.send(0, &packet_to(1, 1250, mark), 0, &mut |_, _| {}));
    run(&mut wire, Time::MAX).len()
}

/// A queue of one bandwidth-delay product follows the delay: 125,000 bytes at 100 Mbit/s and 5 ms each way, twice that at 10 ms.
#[test]
fn a_change_of_delay_sizes_the_queue_anew() {
    for (delay_ms, carried) in [(None, 100), (Some(10), 200), (Some(2), 40)] {
        let change = delay_ms.map(|delay_ms| Change::Delay(Duration::from_millis(delay_ms)));
        assert_eq!(find_room(change), carried, "{delay_ms:?}");
    }
}

/// The same follows the rate: 125,000 bytes at 100 Mbit/s, two fifths of that at 40, twice that at 200.
#[test]
fn a_change_of_rate_sizes_the_queue_anew() {
    for (mbit, carried) in [(None, 100), (Some(40), 40), (Some(200), 200)] {
        let change = mbit.map(|mbit| Change::Rate(Some(Rate::mbit(mbit))));
        assert_eq!(find_room(change), carried, "{mbit:?}");
    }
}

#[test]
fn a_link_that_is_down_drops_what_arrives() {
    let mut wire = line(&[Link::delay(Duration::from_millis(5))]);
    wire.send(0, &packet_to(1, 100, 0), 0, &mut |_, _| {});
    wire.change(0, Change::Up(false), 1, &mut |_, _| {});
    wire.send(0, &packet_to(1, 100, 1), 2, &mut |_, _| {});
    wire.change(0, Change::Up(true), 3, &mut |_, _| {});
    wire.send(0, &packet_to(1, 100, 2), 4, &mut |_, _| {});
    let marks: Vec<u8> = run(&mut wire, Time::MAX).into_iter().map(|(_, _, mark)| mark).collect();
    assert_eq!(marks, [0, 2]);
    assert_eq!(wire.pipes()[0].stats.dropped_down, 1);
}

/// Bytes carried in each step of a trace are its rate times its length, also when packets straddle steps.
#[test]
fn a_trace_gives_each_step_its_bytes() {
    let link = Link::new(Rate::mbit(1), Duration::ZERO).with_queue(Queue::Bytes(u64::MAX));
    let mut wire = line(&[link]);
    let step = Duration::from_millis(100);
    let rates = [Rate::mbit(4), Rate::mbit(16), Rate::bits(0)];
    wire.play(0, Trace::steps(rates.map(|rate| (step, rate))).unwrap(), 0);
    (0..2000).for_each(|_| wire.send(0, &packet_to(1, 1500, 0), 0, &mut |_, _| {}));
    let mut carried = [0_u64; 6];
    for (at, ..) in run(&mut wire, 600 * MS) {
        carried[(at.saturating_sub(1) / (100 * MS)) as usize] += 1500;
    }
    for (slot, bytes) in carried.into_iter().enumerate() {
        let ideal = rates[slot % 3].bytes_in(step);
        assert!(bytes.abs_diff(ideal) <= 1500, "step {slot}: {bytes} bytes, not {ideal}");
    }
    // A rate set by hand ends the trace.
    wire.change(0, Change::Rate(Some(Rate::mbit(8))), 600 * MS, &mut |_, _| {});
    let out = run(&mut wire, 1600 * MS);
    assert!((out.len() as u64 * 1500).abs_diff(1_000_000) <= 3000, "{}", out.len());
}

#[test]
fn losses_are_as_many_and_as_bursty_as_asked() {
    let burst = Loss::bursts(0.05, 8.0);
    for (loss, share, mean) in [(Loss::Random(0.05), 0.05, 1.05), (burst, 0.05, 8.0)] {
        let mut wire = line(&[Link::UNSHAPED.with_loss(loss)]);
        let mut arrived = vec![false; 200_000];
        for slot in &mut arrived {
            wire.send(0, &packet_to(1, 100, 0), 0, &mut |_, _| *slot = true);
        }
        let lost = arrived.iter().filter(|came| !**came).count();
        let bursts = arrived.windows(2).filter(|pair| pair[0] && !pair[1]).count();
        let (seen_share, seen_mean) = (lost as f64 / 200_000.0, lost as f64 / bursts as f64);
        assert!((seen_share - share).abs() < 0.2 * share, "{loss:?}: {seen_share}");
        assert!((seen_mean - mean).abs() < 0.1 * mean, "{loss:?}: {seen_mean}");
        assert_eq!(wire.pipes()[0].stats.lost_packets, lost as u64);
    }
}

#[test]
fn pipes_in_a_row_add_their_delays_and_the_slowest_decides() {
    let fast = Link::new(Rate::mbit(100), Duration::from_millis(3));
    let slow = Link::new(Rate::mbit(10), Duration::from_millis(4));
    let mut wire = line(&[fast, slow]);
    (0..3).for_each(|mark| wire.send(0, &packet_to(1, 1250, mark), 0, &mut |_, _| {}));
    let first = MS / 10 + 3 * MS + MS + 4 * MS;
    assert_eq!(run(&mut wire, Time::MAX), [(first, 1, 0), (first + MS, 1, 1), (first + 2 * MS, 1, 2)]);
}

#[test]
fn what_has_no_path_is_counted() {
    let mut wire = line(&[Link::UNSHAPED]);
    let mut out = 0;
    wire.send(0, &packet_to(9, 100, 0), 0, &mut |_, _| out += 1);
    wire.send(0, &[], 0, &mut |_, _| out += 1);
    wire.send(1, &packet_to(1, 100, 0), 0, &mut |_, _| out += 1);
    assert_eq!((out, wire.unrouted_packets), (0, 3));
}

#[test]
fn framing_costs_rate() {
    let link = Link { framing_bytes: 38, ..Link::new(Rate::mbit(10), Duration::ZERO) };
    let mut wire = line(&[link]);
    wire.send(0, &packet_to(1, 1250 - 38, 0), 0, &mut |_, _| {});
    assert_eq!(run(&mut wire, Time::MAX), [(MS, 1, 0)]);
    // A super-packet of four segments (UDP over IPv4, 28 bytes of headers) costs that four times.
    let mut four = packet_to(1, 28 + 4 * (1250 - 28 - 38), 1);
    four[1] = 5;
    four[4..6].copy_from_slice(&(1250_u16 - 28 - 38).to_ne_bytes());
    four[6..8].copy_from_slice(&20_u16.to_ne_bytes());
    wire.send(0, &four, 0, &mut |_, _| {});
    assert_eq!(run(&mut wire, Time::MAX), [(4 * MS, 1, 1)]);
}

/// Without a rate no queue bounds what a flood leaves on its way.
#[test]
fn what_is_on_its_way_is_bounded() {
    let mut wire = line(&[Link::delay(Duration::from_secs(1000))]);
    // Each takes a buffer of 2 KiB.
    const FITTING: u64 = (128 << 20) / 2048;
    let packet = packet_to(1, 1250, 0);
    for _ in 0..FITTING + 1000 {
        wire.send(0, &packet, 0, &mut |_, _| panic!("nothing passes at once"));
    }
    let stats = wire.pipes()[0].stats;
    assert_eq!((stats.carried_packets, stats.dropped_full), (FITTING, 1000));
    assert_eq!(run(&mut wire, Time::MAX / 2).len() as u64, FITTING);
    wire.send(0, &packet, 0, &mut |_, _| panic!("nothing passes at once"));
    assert_eq!(wire.pipes()[0].stats.dropped_full, 1000, "room again");
}
