//! Mangled tickets, hints, hellos and frames: a documented exit code, one clear error, bounded memory, no panic, and a
//! serving put that goes on serving.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hint::{Hint, HintUri};
use dray_core::message::{
    Copy, CopyRole, Delivered, Fault, Hello, Message, ObjectName, Offer, PROTOCOL_VERSION, Progress,
};
use dray_core::ticket::Ticket;
use dray_core::{ErrorKind, NodeId, Oid};
use dray_e2e::actions::{self, assert_delivered, share};
use dray_e2e::data::{self, MIB, Random};
use dray_e2e::gate::Cases;
use dray_e2e::{Host, Lab, Outcome};

/// What refusing a hostile input may take.
const PEAK_BYTES_MAX: u64 = 64 * MIB;
/// Every command ends within 30 s of the last progress.
const HOSTILE_LIMIT: Duration = Duration::from_secs(35);

/// Panics unless the outcome has one of the documented `codes`, one clear error and bounded memory.
#[track_caller]
fn assert_handled(outcome: &Outcome, codes: &[i32], case: &str) {
    assert!(outcome.code().is_some_and(|code| codes.contains(&code)), "{case}: not in {codes:?}: {outcome}");
    outcome.assert_manners();
    assert!(outcome.peak_memory_bytes < PEAK_BYTES_MAX, "{case}: {} bytes", outcome.peak_memory_bytes);
    assert!(outcome.stderr.len() < 1500, "{case}: a clear error is short: {outcome}");
    let is_plain = |byte: &u8| *byte == b'\n' || !byte.is_ascii_control();
    assert!(outcome.stderr.iter().all(is_plain), "{case}: control characters reach the terminal: {outcome}");
}

/// A ticket with this body and the right checksum (`docs/format/ticket.md`), computed by `b3sum`.
fn ticket_of(body: &[u8]) -> String {
    let mut b3sum = Command::new("b3sum")
        .args([
            "--no-names",
            "--raw",
            "--length",
            "4",
            "--derive-key",
            "drayman 2026-11-21 ticket 1: checksum",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    b3sum.stdin.take().unwrap().write_all(body).unwrap();
    let output = b3sum.wait_with_output().unwrap();
    assert_eq!(output.stdout.len(), 4);
    format!("dray:{}", base64url(&[body, &output.stdout].concat()))
}

/// RFC 4648 §5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..=group.len() {
            text.push(char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// The crafted tickets of this file pass the checksum, so that what is behind it gets to see them.
#[test]
fn crafted_tickets_have_the_right_checksum() {
    if !dray_e2e::gate::can_run() {
        return;
    }
    let later = ticket_of(&[0xa1, 0x00, 0x02]).parse::<Ticket>().unwrap_err();
    assert_eq!(later.kind(), ErrorKind::Unsupported, "{later}");
}

/// D18, design 17, design 5: texts that are no ticket. The control is the unmangled one, which works.
#[test]
fn mangled_tickets() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 100_000, 1);
    let share = share(holder, &source);
    let good = share.ticket.clone();
    let middle = good.len() / 2;
    let with = |at: usize, new: &str| format!("{}{new}{}", &good[..at], &good[at + new.len()..]);
    let swapped = if &good[middle..=middle] == "A" { "B" } else { "A" };
    let oid = format!("blake3:{}", "0".repeat(64));
    let usage: [(&str, OsString); 21] = [
        ("empty", "".into()),
        ("prefix alone", "dray:".into()),
        ("not a ticket", "hello".into()),
        ("capital prefix", good.replacen("dray:", "DRAY:", 1).into()),
        ("two prefixes", format!("dray:{good}").into()),
        ("two tickets", format!("{good}{good}").into()),
        ("first half", good[..middle].into()),
        ("second half", good[middle..].into()),
        ("without the last character", good[..good.len() - 1].into()),
        ("with one more", format!("{good}A").into()),
        ("padding in it", with(middle, "==").into()),
        ("one character changed", with(middle, swapped).into()),
        ("a space in it", with(middle, " ").into()),
        ("a line break in it", with(middle, "\n").into()),
        ("standard base64", with(middle, "+/").into()),
        ("an escape sequence", with(middle, "\x1b[2J").into()),
        ("not UTF-8", OsString::from_vec([b"dray:".as_slice(), &[0xff, 0xfe, 0x80]].concat())),
        ("as long as a command line can be", format!("dray:{}", "A".repeat(120_000)).into()),
        ("an empty body", ticket_of(b"").into()),
        ("a body of nested arrays", ticket_of(&[0x81; 700]).into()),
        ("an array of 2^64 elements", ticket_of(&[0x9b, 255, 255, 255, 255, 255, 255, 255, 255]).into()),
    ];
    let named: [(&str, OsString, i32); 10] = [
        ("a later layout", ticket_of(&[0xa1, 0x00, 0x02]).into(), 6),
        ("a map without a version", ticket_of(&[0xa1, 0x01, 0x01]).into(), 2),
        ("keys out of order", ticket_of(&[0xa2, 0x01, 0x01, 0x00, 0x01]).into(), 2),
        ("a version and no more", ticket_of(&[0xa1, 0x00, 0x01]).into(), 2),
        ("an OID of MD5", "md5:d41d8cd98f00b204e9800998ecf8427e".into(), 6),
        ("an OID of SHA-1", "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709".into(), 6),
        ("an OID of the future", "blake4:00".into(), 2),
        ("a short OID", "blake3:0011".into(), 2),
        ("an OID that is no hex", format!("blake3:{}", "x".repeat(64)).into(), 2),
        ("an OID without a hint", oid.into(), 3),
    ];
    let all = usage.into_iter().map(|(case, text)| (case, text, 2)).chain(named);
    let mut cases = Cases::default();
    for (case, text, code) in all {
        cases.check(case, || {
            let copy = taker.file("copy");
            let outcome = taker.dray().arg("get").arg("-o").arg(&copy).arg("--").arg(&text).run();
            assert_handled(&outcome, &[code], case);
            assert!(!copy.exists(), "{case}");
        });
    }
    cases.finish(31);
    let copy = taker.directory("control").join("copy");
    taker.dray().arg("get").arg("-o").arg(&copy).arg("--").arg(&good).run().expect(0);
    assert_delivered(&source, &copy, Some(&share.hash()));
}

/// Design 17: tickets of strangers whose hints lead astray. Local targets are refused however they are written.
#[test]
fn hostile_hints() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 100_000, 2);
    let share = share(holder, &source);
    let ticket = share.parsed();
    let node = ticket.hints[0].node;
    let port = share.port();
    let place = |host: &str| HintUri::Dray { host: host.into(), port };
    let local = [
        "127.0.0.1",
        "127.255.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "localhost",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "169.254.1.1",
        "fe80::1",
        "::ffff:169.254.1.1",
    ];
    // A listener on the taker itself would notice a connection that should not be made.
    let trap = taker.enter(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
    trap.set_nonblocking(true).unwrap();
    for host in local {
        let forged = Ticket { hints: vec![Hint::new(place(host), node)], ..ticket.clone() };
        let outcome = actions::get(taker, &forged.to_text().unwrap(), &taker.file("copy")).run();
        // Not every spelling is an address to every resolver; unresolved is as good as refused.
        assert_handled(&outcome, if host.parse::<std::net::IpAddr>().is_ok() { &[6] } else { &[5, 6] }, host);
        assert!(trap.accept().is_err(), "{host}: somebody connected");
    }
    let there = || place(&holder.address().to_string());
    let others = [
        ("no hints", vec![], vec![3, 5, 6]),
        ("no node", vec![Hint::new(there(), None)], vec![3, 5, 6]),
        ("another node", vec![Hint::new(there(), Some(NodeId::from_bytes([9; 32])))], vec![5, 6]),
        ("unknown methods", vec![Hint::new("teleport:x".parse().unwrap(), node); 8], vec![3, 5, 6]),
        ("no such host", vec![Hint::new(place("no-such-host.invalid"), node)], vec![5]),
        ("broadcast", vec![Hint::new(place("255.255.255.255"), node)], vec![5, 6]),
        ("multicast", vec![Hint::new(place("224.0.0.1"), node)], vec![5, 6]),
        (
            "a closed port",
            vec![Hint::new(HintUri::Dray { host: holder.address().to_string(), port: 1 }, node)],
            vec![5],
        ),
    ];
    for (case, hints, codes) in others {
        let forged = Ticket { hints, ..ticket.clone() };
        let outcome = actions::get(taker, &forged.to_text().unwrap(), &taker.file("copy")).run();
        assert_handled(&outcome, &codes, case);
    }
    let oid = ticket.oid.to_string();
    for hint in [
        "",
        "dray",
        "dray://",
        "dray://h",
        "dray://77@h:1",
        "dray://h:0",
        "dray://h:1\x1b[2J",
        "dray://[::1:4",
    ] {
        let outcome = taker.dray().args(["get", &oid, "--hint", hint]).run();
        assert_handled(&outcome, &[2], hint);
    }
    // The size in a ticket is a claim. A wrong one never delivers, and never fills the disk.
    for (case, size_bytes) in
        [("too small", 99_999), ("too large", 100_001), ("empty", 0), ("a pebibyte", 1 << 50)]
    {
        let forged = Ticket { size_bytes, ..ticket.clone() };
        let dir = taker.directory(case);
        let outcome = actions::get(taker, &forged.to_text().unwrap(), &dir.join("copy")).run();
        assert_handled(&outcome, &[4, 5, 6, 7], case);
        assert!(!dir.join("copy").exists(), "{case}");
    }
    let copy = taker.directory("control").join("copy");
    let mut hints = vec![Hint::new(place("127.0.0.1"), node), Hint::new("teleport:x".parse().unwrap(), node)];
    hints.extend(ticket.hints.clone());
    let mixed = Ticket { hints, ..ticket };
    actions::get(taker, &mixed.to_text().unwrap(), &copy).run().expect(0);
    assert_delivered(&source, &copy, Some(&share.hash()));
}

/// Design 17: `--local` allows what is refused to strangers.
#[test]
fn local_targets_are_allowed_by_a_flag() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let source = host.file("source");
    data::write_random(&source, 100_000, 3);
    let share = share(host, &source);
    let ticket = share.parsed();
    let uri = HintUri::Dray { host: "127.0.0.1".into(), port: share.port() };
    let local = Ticket { hints: vec![Hint::new(uri, ticket.hints[0].node)], ..ticket };
    let copy = host.directory("got").join("copy");
    // As another user, who has not put it.
    let elsewhere = host.directory("elsewhere");
    let get = || actions::get(host, &local.to_text().unwrap(), &copy).env("DRAY_DATA_DIR", &elsewhere);
    get().run().expect(6);
    get().arg("--local").run().expect(0);
    assert_delivered(&source, &copy, None);
}

fn frame(kind: FrameKind, request: u32, body: &[u8]) -> Vec<u8> {
    [FrameHead::new(kind, body.len(), request).encode().as_slice(), body].concat()
}

fn control(message: &Message) -> Vec<u8> {
    frame(FrameKind::Control, 0, &message.to_bytes())
}

fn hello(version: u16, required: &[&str]) -> Vec<u8> {
    control(&Message::Hello(Hello {
        version,
        features: vec![],
        required: required.iter().map(|name| (*name).to_owned()).collect(),
        agent: "hostile/\x1b[2J".into(),
    }))
}

fn offer(object: ObjectName, size_bytes: u64, name: &[u8], inline: Option<&[u8]>) -> Vec<u8> {
    control(&Message::Offer(Offer {
        object,
        size_bytes,
        name: name.to_vec().into(),
        mode: 0o4777,
        mtime_s: i64::MIN,
        mtime_ns: 999_999_999,
        inline: inline.map(|bytes| bytes.to_vec().into()),
    }))
}

/// What a hostile peer says on the ssh channel, and the exit codes that fit.
fn hostile_words() -> Vec<(&'static str, Vec<u8>, Vec<i32>)> {
    let good = hello(PROTOCOL_VERSION, &[]);
    let after = |bytes: Vec<u8>| [good.clone(), bytes].concat();
    let provisional = ObjectName::Provisional([5; 32]);
    let copy = |role, path: &[u8]| {
        control(&Message::Copy(Copy {
            role,
            path: path.to_vec().into(),
            preserve: true,
            fsync: true,
            whole_file: None,
            rate_bytes: None,
            compressed: None,
        }))
    };
    let progress = Progress { done_bytes: u64::MAX, resumed_bytes: u64::MAX, direct_bytes: u64::MAX };
    let fault = Fault {
        handle: None,
        kind: ErrorKind::Refused.wire_code(),
        text: "no\x1b[31m\x07\r\n\n\n\nno".into(),
    };
    let mut noise = vec![0; MIB as usize];
    Random::new(9).fill(&mut noise);
    let any = || vec![4, 5, 6];
    vec![
        ("nothing", vec![], any()),
        ("a greeting for people", b"Welcome to Debian!\nLast login: never\n".to_vec(), any()),
        ("zeros", vec![0; MIB as usize], any()),
        ("ones", vec![0xff; MIB as usize], any()),
        ("noise", noise, any()),
        ("a frame of 16 MiB", vec![1, 0xff, 0xff, 0xff, 0, 0, 0, 0], any()),
        ("half a hello", good[..good.len() / 2].to_vec(), any()),
        ("a hello of version 99", hello(99, &[]), vec![6]),
        ("a hello that wants teleport", hello(PROTOCOL_VERSION, &["teleport"]), vec![6]),
        ("CBOR that is none", frame(FrameKind::Control, 0, &[0xff; 100]), any()),
        ("CBOR nested deep", frame(FrameKind::Control, 0, &[0x81; 60_000]), any()),
        ("an empty control frame", frame(FrameKind::Control, 0, &[]), any()),
        ("two hellos", after(good.clone()), any()),
        ("an offer before the hello", offer(provisional, 5, b"x", None), any()),
        ("a fault with escape sequences", after(control(&Message::Fault(fault))), vec![6]),
        ("data nobody asked for", after(frame(FrameKind::Data, 77, &[1; 5000])), any()),
        ("a hole nobody asked for", after(frame(FrameKind::Hole, 0, &u64::MAX.to_be_bytes())), any()),
        ("an end nobody asked for", after(frame(FrameKind::End, 1, &[])), any()),
        ("parents nobody asked for", after(frame(FrameKind::Parents, 1, &[3; 64])), any()),
        ("an offer of 2^60 bytes", after(offer(provisional, 1 << 60, b"x", None)), vec![4, 5, 6, 7]),
        ("an offer of a path", after(offer(provisional, 5, b"../../evil", None)), vec![2, 4, 5, 6]),
        ("an offer of no name", after(offer(provisional, 5, b"", None)), vec![2, 4, 5, 6]),
        (
            "inline data that are not what they are called",
            after(offer(ObjectName::Oid(Oid::of(b"right")), 5, b"x", Some(b"wrong"))),
            any(),
        ),
        (
            "delivered, says who was not asked",
            after(control(&Message::Delivered(Delivered { oid: Oid::of(b""), path: b"x".to_vec().into() }))),
            any(),
        ),
        ("progress without end", after(control(&Message::Progress(progress)).repeat(20_000)), any()),
        ("a copy to a directory", after(copy(CopyRole::Receive, b"/")), any()),
        ("a copy with a NUL in its path", after(copy(CopyRole::Send, b"a\0b")), vec![2, 3, 4, 5, 6]),
        ("an unknown message", after(frame(FrameKind::Control, 0, &[0x82, 0x18, 0x63, 0xa0])), any()),
    ]
}

/// Design 17: a far end that speaks anything but the protocol, to a copy in either direction.
#[test]
fn a_hostile_far_end() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (local, remote) = lab.pair();
    let source = local.file("source");
    data::write_random(&source, 100_000, 4);
    let into = local.directory("into");
    remote.sshd();
    let mut cases = Cases::default();
    for (number, (case, words, codes)) in hostile_words().into_iter().enumerate() {
        let said = remote.file(format!("said-{number}"));
        fs::write(&said, words).unwrap();
        let script = remote.file(format!("far-end-{number}"));
        // It listens a while, so that the local side is judged by what it hears, not by a broken pipe.
        write_script(
            &script,
            &format!("cat '{}'\nexec 1>&-\nexec timeout 2 cat >/dev/null\n", said.display()),
        );
        let far_end = || [OsStr::new("--remote-dray").to_owned(), script.clone().into_os_string()];
        cases.check(&format!("down: {case}"), || {
            let copy = actions::copy_from(remote, local, Path::new("/x"), &into);
            assert_handled(&copy.args(far_end()).time_limit(HOSTILE_LIMIT).run(), &codes, case);
        });
        cases.check(&format!("up: {case}"), || {
            let copy = actions::copy_to(local, remote, &source, Path::new("/x"));
            assert_handled(&copy.args(far_end()).time_limit(HOSTILE_LIMIT).run(), &codes, case);
        });
        cases.check(&format!("left behind: {case}"), || {
            let left: Vec<_> = data::names(&into);
            assert_eq!(left, data::unfinished(&into), "{case}");
        });
    }
    cases.finish(80);
    assert!(!local.dir().join("evil").exists() && !Path::new("/x").exists());
}

fn write_script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Design 9: a far end that greets, says nothing more, and stays, is an error in time. (Before its first word ssh may be
/// asking a person for a password, so that silence is no failure yet.)
#[test]
fn a_mute_far_end() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (local, remote) = lab.pair();
    let script = remote.file("far-end");
    let greeting = remote.file("greeting");
    fs::write(&greeting, hello(PROTOCOL_VERSION, &[])).unwrap();
    write_script(&script, &format!("cat '{}'\nexec cat >/dev/null\n", greeting.display()));
    let source = local.file("source");
    data::write_random(&source, 100_000, 6);
    let far_end = || [OsStr::new("--remote-dray").to_owned(), script.clone().into_os_string()];
    let down = actions::copy_from(remote, local, Path::new("/x"), &local.file("copy")).args(far_end());
    let up = actions::copy_to(local, remote, &source, Path::new("/x")).args(far_end());
    let both =
        [("down", down.time_limit(HOSTILE_LIMIT).start()), ("up", up.time_limit(HOSTILE_LIMIT).start())];
    let mut cases = Cases::default();
    for (case, running) in both {
        cases.check(case, || {
            let outcome = running.wait();
            assert_handled(&outcome, &[5], case);
            assert!(outcome.elapsed < Duration::from_secs(30), "{outcome}");
        });
    }
    cases.finish(2);
}

/// Design 17: the far end itself hears the same words from a hostile local side, on standard input as sshd gives it.
#[test]
fn a_hostile_near_end() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let before = data::names(&host.home());
    let mut cases = Cases::default();
    for (case, words, _) in hostile_words() {
        cases.check(case, || {
            let remote = host.dray().arg("remote").directory(&host.home()).input(&words);
            let outcome = remote.time_limit(HOSTILE_LIMIT).run();
            // An internal error (1) is not what a peer can cause.
            assert!(matches!(outcome.code(), Some(2..=8)), "{case}: {outcome}");
            assert!(!outcome.stderr_text().contains("panicked"), "{case}: {outcome}");
            assert!(
                outcome.peak_memory_bytes < PEAK_BYTES_MAX,
                "{case}: {} bytes",
                outcome.peak_memory_bytes
            );
        });
    }
    cases.finish(25);
    let after: Vec<_> = data::names(&host.home()).into_iter().filter(|name| !before.contains(name)).collect();
    let after: Vec<_> = after.into_iter().filter(|name| name != "dray-data").collect();
    assert!(after.is_empty(), "{after:?}");
}

/// What strangers send to an open port.
fn hostile_bytes() -> Vec<Vec<u8>> {
    let mut random = Random::new(3);
    let mut noise = |len: usize| {
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        bytes
    };
    // A TLS record head for 16 KiB of handshake, a client hello that says it is 16 MiB long, one cut short.
    let huge = [vec![0x16, 3, 1, 0x40, 0], vec![1, 0xff, 0xff, 0xff], noise(16 * 1024)].concat();
    let cut = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7, 7, 7];
    let mut all = vec![
        vec![],
        vec![0],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"SSH-2.0-x\r\n".to_vec(),
        huge,
        cut,
        vec![0x15, 3, 3, 0, 2, 2, 40],
        vec![0x17; 70_000],
        b"DRAYCLR1".to_vec(),
    ];
    for first in [0x16_u8, b'D', b'd', 0, 0xff] {
        for len in [1, 24, 500, 100_000] {
            let mut bytes = noise(len);
            bytes[0] = first;
            all.push(bytes);
        }
    }
    all
}

/// Issue "raw garbage to a serving put": it survives, its memory stays bounded, and it goes on serving.
#[test]
fn garbage_to_a_serving_put() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, stranger) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 3 * MIB, 5);
    let share = share(holder, &source);
    let address = SocketAddr::from((holder.address(), share.port()));
    let connect = || {
        let stream = stranger.enter(|| TcpStream::connect(address)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        stream
    };
    for bytes in hostile_bytes() {
        let mut stream = connect();
        // The other side may hang up in the middle.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = stream.read(&mut [0; 4096]).unwrap_or(0);
        assert!(answer < 1000, "{answer} bytes for {:02x?}", &bytes[..bytes.len().min(16)]);
    }
    // More idle strangers than a listener takes; the others are turned away.
    let idle: Vec<TcpStream> = (0..400).map(|_| connect()).collect();
    drop(idle);
    fetch_well(holder, stranger, &share.ticket, &source);
    let served = share.end();
    assert!(served.peak_memory_bytes < 2 * PEAK_BYTES_MAX, "{} bytes", served.peak_memory_bytes);
}

fn fetch_well(holder: &Host, taker: &Host, ticket: &str, source: &Path) {
    let copy = taker.directory("good").join("copy");
    let started = Instant::now();
    actions::get(taker, ticket, &copy).run().expect(0);
    assert!(started.elapsed() < Duration::from_secs(20), "{}", holder.namespace());
    assert_delivered(source, &copy, None);
}

/// Design 17: a place that is no holder at all, to a get.
#[test]
fn a_get_from_what_is_no_holder() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (stranger, taker) = lab.pair();
    let listener = stranger.enter(|| TcpListener::bind((stranger.address(), 7100)).unwrap());
    listener.set_nonblocking(true).unwrap();
    let hint = Hint::new(
        HintUri::Dray { host: stranger.address().to_string(), port: 7100 },
        Some(NodeId::from_bytes([1; 32])),
    );
    let ticket = Ticket {
        protocol: PROTOCOL_VERSION,
        oid: Oid::of(b"nobody has this"),
        size_bytes: 1 << 40,
        secret: None,
        expires_unix_s: None,
        hints: vec![hint],
        repeated_permille: 0,
    };
    let text = ticket.to_text().unwrap();
    let later = Ticket { protocol: 99, ..ticket }.to_text().unwrap();
    let outcome = actions::get(taker, &later, &taker.file("copy")).run();
    assert_handled(&outcome, &[6], "a later protocol");
    for bytes in hostile_bytes().into_iter().take(14) {
        let running = actions::get(taker, &text, &taker.file("copy")).start();
        // Every connection of this get gets the same answer, until it gives up.
        running.wait_until(true, || {
            if let Ok((mut stream, _)) = listener.accept() {
                drop(stream.write_all(&bytes));
            }
            running.has_ended()
        });
        assert_handled(&running.wait(), &[5, 6], &format!("{:02x?}", &bytes[..bytes.len().min(8)]));
    }
}
