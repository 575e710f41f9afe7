//! Who may have the bytes: holders of the whole ticket, nobody else, and the secret stays off the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dray_core::rights::Secret;
use dray_core::ticket::Ticket;
use dray_e2e::actions::{self, Share, assert_delivered, assert_not_delivered, share};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, capture};

/// What a refusal may cost: handshake, hello and the word no.
const REFUSAL_BYTES_MAX: u64 = 8 * 1024;

/// Fetches with `ticket` and expects exit 6, nothing delivered, and no payload from the holder.
#[track_caller]
fn assert_refused(holder: &Host, taker: &Host, ticket: &Ticket, dir: &str) {
    actions::forget(taker);
    let copy = taker.directory(dir).join("copy");
    let before = holder.counters();
    actions::get(taker, &ticket.to_text().unwrap(), &copy).run().expect(6);
    let sent = holder.counters() - before;
    assert!(sent.sent_packets > 0, "the holder was asked: {sent:?}");
    assert!(sent.sent_bytes < REFUSAL_BYTES_MAX, "{sent:?}");
    assert_not_delivered(&copy);
}

/// Issue "the same third host is served with the ticket and refused with a wrong, cut or expired secret", design 14.
#[test]
fn a_third_host_needs_the_whole_ticket() {
    let Some(lab) = Lab::of(3).build() else { return };
    let (holder, second, third) = (lab.host(0), lab.host(1), lab.host(2));
    let source = holder.file("source");
    data::write_random(&source, MIB, 1);
    let share = share(holder, &source);
    for (host, dir) in [(second, "first"), (third, "first")] {
        let copy = host.directory(dir).join("copy");
        actions::get(host, &share.ticket, &copy).run().expect(0);
        assert_delivered(&source, &copy, Some(&share.hash()));
    }
    let ticket = share.parsed();
    let secret = *ticket.secret.expect("a ticket is private unless told otherwise").as_bytes();
    let mut other = secret;
    other[15] ^= 1;
    for (dir, secret) in [("wrong", Some(other)), ("zero", Some([0; 16])), ("cut", None)] {
        let forged = Ticket { secret: secret.map(Secret::from_bytes), ..ticket.clone() };
        assert_refused(holder, third, &forged, dir);
    }
    // After all those refusals the right ticket still works.
    actions::forget(third);
    let copy = third.directory("again").join("copy");
    actions::get(third, &share.ticket, &copy).run().expect(0);
    share.end();
}

/// Design 14: the holder, not the ticket, knows when a right ends; a ticket with a later end changes nothing.
#[test]
fn an_expired_ticket_is_refused() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, MIB, 2);
    let share = Share::of(actions::put(holder, &source).args(["--expire", "2s"]).start());
    let ticket = share.parsed();
    let end = UNIX_EPOCH + Duration::from_secs(ticket.expires_unix_s.expect("the ticket says when it ends"));
    // The end of a right is the matter of this test, so it waits for it.
    std::thread::sleep(
        end.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(1100),
    );
    let expired = actions::get(taker, &share.ticket, &taker.directory("expired").join("copy")).run();
    expired.expect(6);
    let forged = Ticket { expires_unix_s: None, ..ticket.clone() };
    assert_refused(holder, taker, &forged, "endless");
    let forged = Ticket { expires_unix_s: ticket.expires_unix_s.map(|end| end + 1_000_000), ..ticket };
    assert_refused(holder, taker, &forged, "later");
}

/// Design 14: knowing the OID is not a right.
#[test]
fn the_name_of_a_private_object_is_not_a_right() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, MIB, 3);
    let share = share(holder, &source);
    let ticket = share.parsed();
    let node = ticket.hints[0].node.expect("a hint pins its node");
    let hint = format!("dray://{node}@{}:{}", holder.address(), share.port());
    let copy = taker.directory("got").join("copy");
    let before = holder.counters();
    let get = taker.dray().args(["get", &ticket.oid.to_string(), "--hint", &hint, "-o"]).arg(&copy);
    get.run().expect(6);
    assert!((holder.counters() - before).sent_bytes < REFUSAL_BYTES_MAX);
    assert_not_delivered(&copy);
}

/// Design 14, issue "the secret never crosses the wire", even where data may go in clear text. The same search finds
/// the file's own bytes when they do, so it can find.
#[test]
fn the_secret_never_crosses_the_wire() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    for clear in [false, true] {
        let name = if clear { "clear" } else { "encrypted" };
        if clear {
            for host in [holder, taker] {
                allow_clear_text(&host.home());
            }
        }
        let source = holder.file(name);
        data::write_random(&source, 6 * MIB, 4);
        let share = share(holder, &source);
        let recording = holder.capture();
        let copy = taker.directory(name).join("copy");
        actions::get(taker, &share.ticket, &copy).run().expect(0);
        let forged = Ticket { secret: Some(Secret::from_bytes([7; 16])), ..share.parsed() };
        actions::forget(taker);
        actions::get(taker, &forged.to_text().unwrap(), &taker.file("refused")).run().expect(6);
        let packets = recording.stop();
        assert_delivered(&source, &copy, Some(&share.hash()));

        assert!(capture::payload_bytes(&packets) > 6 * MIB, "the capture saw the transfer");
        let known = std::fs::read(&source).unwrap();
        assert_eq!(
            capture::contains(&packets, &known[3_000_000..3_000_032]),
            clear,
            "{name}: the file's own bytes"
        );
        let secret = *share.parsed().secret.unwrap().as_bytes();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!capture::contains(&packets, &secret));
        assert!(!capture::contains(&packets, hex.as_bytes()));
        assert!(!capture::contains(&packets, share.ticket.as_bytes()));
        share.end();
    }
}

fn allow_clear_text(home: &Path) {
    let dir = home.join(".config/dray");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), "clear_text_data = true\n").unwrap();
}
