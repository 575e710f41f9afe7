//! Many holders of one object: every one of them is used, none of them can hold up the others, and a ticket names them
//! all (P12, D40, design 8 and 9).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::time::{Duration, Instant};

use dray_e2e::actions::{self, Share, assert_delivered, assert_not_delivered, let_settle, share};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, Running};
use rustix::process::Signal;

const SIZE: u64 = 100 * MIB;
/// What each holder of a ticket must send to have taken part: far more than a handshake. How much more is up to the links of the moment.
const PART: u64 = SIZE / 50;
/// Bytes that honest holders together may send beyond the object, of which 2 % are headers and proofs.
const TWICE_BYTES: u64 = 16 * MIB;
/// The receiver's own wire, so that holders cannot be the limit and time is known.
const RATE_MBIT: u32 = 160;

/// Shares the same bytes from each host; every ticket names one holder more than the one before, the last one all.
fn share_from_all<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for host in hosts {
        let source = host.file("source");
        data::write_random(&source, SIZE, 31);
        let_settle(&source);
        let put = actions::put(host, &source);
        shares.push(match shares.last() {
            None => Share::of(put.start()),
            Some(before) => Share::of(put.arg("--ticket").arg(&before.ticket).start()),
        });
    }
    shares
}

/// Waits until `share` of the object lies in `dir`.
fn await_share(running: &Running, dir: &std::path::Path, share: f64) {
    let wanted = (share * SIZE as f64) as u64;
    running.wait_until(false, || data::unfinished_bytes(dir) >= wanted);
}

/// D40, design 14: a ticket joined by three holders has one secret and names all three, each of them sends its part, and
/// hardly a byte comes twice. Then P12: with one of them frozen and one killed half-way, the third one ends it, as soon
/// as all three did or within 2 s of that.
#[test]
fn three_holders_one_frozen_one_killed() {
    let Some(lab) = Lab::of(4).alone().rate_mbit(RATE_MBIT).build() else { return };
    let taker = lab.host(3);
    let mut shares = share_from_all((0..3).map(|number| lab.host(number)));
    let ticket = shares[2].ticket.clone();
    let parsed = shares[2].parsed();
    assert_eq!(parsed.hints.len(), 3);
    for (number, hint) in parsed.hints.iter().enumerate() {
        assert!(parsed.hints[..number].iter().all(|other| other.node != hint.node), "one hint a node");
    }
    assert!(shares.iter().all(|share| share.parsed().secret == parsed.secret && parsed.secret.is_some()));

    let before: Vec<_> = (0..3).map(|number| lab.host(number).counters()).collect();
    let copy = taker.directory("healthy").join("copy");
    let healthy = actions::get(taker, &ticket, &copy).run().expect(0);
    assert_delivered(&lab.host(0).file("source"), &copy, Some(&parsed.oid.hex()));
    let sent: Vec<u64> =
        (0..3).map(|number| (lab.host(number).counters() - before[number]).sent_bytes).collect();
    eprintln!("healthy: {:?}, sent {sent:?}", healthy.elapsed);
    assert!(sent.iter().all(|sent| *sent > PART), "each sends its part: {sent:?}");
    assert!(sent.iter().sum::<u64>() <= SIZE + SIZE / 50 + TWICE_BYTES, "{sent:?}");

    let before: Vec<_> = (0..3).map(|number| lab.host(number).counters()).collect();
    actions::forget(taker);
    let copy = taker.directory("hurt").join("copy");
    let dir = copy.parent().unwrap().to_owned();
    let running = actions::get(taker, &ticket, &copy).start();
    await_share(&running, &dir, 0.3);
    shares[0].process.signal(Signal::STOP);
    await_share(&running, &dir, 0.5);
    shares.remove(1).process.kill();
    let hurt = running.wait().expect(0);
    let allowed = (healthy.elapsed.mul_f64(1.1)).max(healthy.elapsed + Duration::from_secs(2));
    let sent: Vec<u64> =
        (0..3).map(|number| (lab.host(number).counters() - before[number]).sent_bytes).collect();
    eprintln!("one frozen, one killed: {:?} (at most {allowed:?}), sent {sent:?}", hurt.elapsed);
    assert!(hurt.elapsed <= allowed, "P12: {:?}, and {:?} with all three", hurt.elapsed, healthy.elapsed);
    assert_delivered(&lab.host(2).file("source"), &copy, Some(&parsed.oid.hex()));
    assert!(sent[2] <= SIZE + SIZE / 50 + TWICE_BYTES, "{sent:?}");
    shares[0].process.signal(Signal::CONT);
}

/// P12, design 9: with all of its holders frozen a get ends within 30 s, and names each of them; thawed, the same
/// command goes on.
#[test]
fn frozen_holders_are_all_named() {
    let Some(lab) = Lab::of(3).rate_mbit(RATE_MBIT).build() else { return };
    let taker = lab.host(2);
    let shares = share_from_all((0..2).map(|number| lab.host(number)));
    let ticket = &shares[1].ticket;
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, ticket, &copy).start();
    await_share(&running, copy.parent().unwrap(), 0.3);
    for share in &shares {
        share.process.signal(Signal::STOP);
    }
    let frozen = Instant::now();
    let outcome = running.wait().expect(5);
    assert!(frozen.elapsed() < Duration::from_secs(30), "{:?}", frozen.elapsed());
    for number in 0..2 {
        let address = lab.host(number).address().to_string();
        assert!(outcome.stderr_text().contains(&address), "{address} is not named: {outcome}");
    }
    assert_not_delivered(&copy);
    for share in &shares {
        share.process.signal(Signal::CONT);
    }
    actions::get(taker, ticket, &copy).run().expect(0);
    assert_delivered(&lab.host(0).file("source"), &copy, Some(&shares[0].hash()));
}

/// S34: a get that is stopped for so long while it dials that the holder hangs up is no get that nobody answers: it dials again.
#[test]
fn a_get_that_is_stopped_while_it_dials_goes_on() {
    let Some(lab) = Lab::of(2).round_trip(Duration::from_millis(2)).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, MIB, 33);
    let shared = share(holder, &source);
    let copy = taker.directory("got").join("copy");
    // Its connection comes up while it is stopped, so that it can say nothing on it.
    lab.change(1, 0, dray_lab::Change::Up(false));
    let running = actions::get(taker, &shared.ticket, &copy).start();
    running.wait_until(false, || has_connection(taker, "syn-sent"));
    running.signal(Signal::STOP);
    lab.change(1, 0, dray_lab::Change::Up(true));
    running.wait_until(false, || has_connection(holder, "established"));
    running.wait_until(false, || !has_connection(holder, "established"));
    running.signal(Signal::CONT);
    running.wait().expect(0);
    assert_delivered(&source, &copy, Some(&shared.hash()));
}

fn has_connection(host: &Host, state: &str) -> bool {
    let listed = host.program("ss").args(["-H", "-t", "-n", "state", state]).run().expect(0);
    !listed.stdout_text().trim().is_empty()
}

/// A ticket is joined only with its own object; what is something else is exit 4, what is no ticket exit 2, and both
/// before anything is served.
#[test]
fn a_ticket_is_joined_by_its_own_object_only() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, other) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 3 * MIB, 32);
    let shared = share(holder, &source);
    for (name, size, seed) in [("shorter", 2 * MIB, 32), ("other", 3 * MIB, 33)] {
        let file = other.file(name);
        data::write_random(&file, size, seed);
        let outcome = actions::put(other, &file).arg("--ticket").arg(&shared.ticket).run().expect(4);
        assert!(outcome.stderr_text().contains("not what the ticket is for"), "{outcome}");
        assert!(outcome.stdout.is_empty(), "{outcome}");
    }
    let file = other.file("same");
    data::write_random(&file, 3 * MIB, 32);
    actions::put(other, &file).args(["--ticket", "dray:nothing"]).run().expect(2);
    let put = actions::put(other, &file).args(["--ticket", &shared.ticket, "--public"]);
    assert_eq!(put.run().code(), Some(2));
    // Whoever joined serves alone, too, also those who have the first ticket's secret only.
    let joined = Share::of(actions::put(other, &file).args(["--ticket", &shared.ticket]).start());
    let ticket = joined.ticket.clone();
    shared.end();
    let copy = holder.directory("got").join("copy");
    actions::get(holder, &ticket, &copy).run().expect(0);
    assert_delivered(&source, &copy, Some(&joined.hash()));
}
