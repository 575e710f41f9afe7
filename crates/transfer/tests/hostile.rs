//! Peers that do not behave: each hurts its own connection and nobody else.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dray_core::frame::{FrameHead, FrameKind};
use dray_core::limits::{HELLO_TIMEOUT_MS, REQUESTS_PER_CONNECTION_MAX, UNIT_BYTES};
use dray_core::message::{
    Compare, ComparedSubtree, Copy, CopyRole, Describe, Fetch, Hello, Message, Nodes, ObjectName, Open,
    PROTOCOL_VERSION, Seal,
};
use dray_core::{ErrorKind, Oid};
use dray_testkit::sample;
use dray_testkit::source_conformance::TestObject;
use dray_transfer::transport::CLEAR_PREAMBLE;
use support::receive::{RawReceiver, TestReceiver};
use support::{ProvenHeld, SECRET, TestHolder, hello};

fn holder(units: u64) -> (TestObject, Oid, TestHolder) {
    let object = TestObject::new(sample::bytes((units * UNIT_BYTES) as usize, units));
    let oid = Oid::of(&object.data);
    let holder = TestHolder::of(Arc::new(ProvenHeld::new(&object)), oid, 1, true);
    (object, oid, holder)
}

fn assert_serves(object: &TestObject, oid: Oid, holder: &TestHolder) {
    let receiver = TestReceiver::dial(holder.port, holder.node, oid, object.data.len() as u64, false);
    assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
}

/// A connection on which `object` has been opened.
fn opened(holder: &TestHolder, oid: Oid) -> RawReceiver {
    let mut raw = RawReceiver::connect(holder.port, holder.node);
    let proof = raw.proof(&SECRET, &ObjectName::Oid(oid));
    raw.open(ObjectName::Oid(oid), proof);
    raw
}

fn fetch(request: u32) -> Fetch {
    Fetch { request, handle: 1, start_group: 0, groups: 16, known_depth: 0, recheck: false }
}

/// Design 17, D28: connections that say nothing, say it slowly, or say something else do not keep anybody waiting.
#[test]
fn garbage_and_silence_block_nobody() {
    let (object, oid, holder) = holder(2);
    let mut first_flight = Vec::new();
    let words: [&[u8]; 7] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-x\r\n",
        &[22, 3, 1, 0xff, 0xff],
        &[22, 3, 1, 2, 0, 1, 0, 1],
        b"DRAYCLR1 unknown token",
        &[0; 4096],
    ];
    for word in words.into_iter().cycle().take(70) {
        let mut socket = TcpStream::connect(("127.0.0.1", holder.port)).unwrap();
        socket.write_all(word).unwrap();
        first_flight.push(socket);
    }
    let begun = Instant::now();
    assert_serves(&object, oid, &holder);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // A clear-text connection with a token that nobody granted is closed without an answer.
    let mut socket = TcpStream::connect(("127.0.0.1", holder.port)).unwrap();
    socket.write_all(&[&CLEAR_PREAMBLE[..], &[7; 16]].concat()).unwrap();
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
    drop(first_flight);
}

/// Limits: whoever has not opened an object within the hello timeout gives its place back, however it drips: before
/// TLS, inside TLS without a hello, with a hello and no right.
#[test]
fn whoever_shows_no_right_is_cut_off_in_time() {
    let (object, oid, holder) = holder(1);
    let begun = Instant::now();
    let mut silent = RawReceiver::connect(holder.port, holder.node);
    let mut polite = RawReceiver::connect(holder.port, holder.node);
    polite.say(&[Message::Hello(hello(false))]);
    let mut drip = TcpStream::connect(("127.0.0.1", holder.port)).unwrap();
    let dripping = std::thread::spawn(move || {
        // One byte of a TLS record now and then, until the holder has had enough.
        let record = [&[22, 3, 1, 2, 0][..], &[0; 600]].concat();
        for byte in record {
            if drip.write_all(&[byte]).is_err() {
                return Instant::now();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the holder listens for ever");
    });
    assert_serves(&object, oid, &holder);
    let limit = Duration::from_millis(HELLO_TIMEOUT_MS + 4000);
    for raw in [&mut silent, &mut polite] {
        assert_eq!(raw.fault().0, ErrorKind::TimedOut);
        assert!(raw.message().is_none(), "closed after the fault");
    }
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert!(dripping.join().unwrap() - begun < limit);
}

/// Limits: one request too many ends that connection with a fault that says why; another connection goes on.
#[test]
fn too_many_requests_end_only_that_connection() {
    let (object, oid, holder) = holder(4);
    object.gate.shut(0);
    let mut other = opened(&holder, oid);
    other.say(&[Message::Fetch(fetch(1))]);
    let mut greedy = opened(&holder, oid);
    // One runs, and as many as allowed wait.
    let allowed = 1 + REQUESTS_PER_CONNECTION_MAX as u32;
    let fetches: Vec<Message> = (1..=allowed + 1).map(|request| Message::Fetch(fetch(request))).collect();
    greedy.say(&fetches);
    assert!(object.gate.is_reached(Duration::from_secs(20)));
    object.gate.open();
    let (kind, text) = greedy.fault();
    assert_eq!(kind, ErrorKind::Protocol);
    assert!(text.contains("64 requests"), "{text}");
    assert!(greedy.message().is_none(), "closed after the fault");
    let mut bytes = 0;
    loop {
        let (head, _) = other.frame().expect("the other connection lives");
        match head.kind {
            FrameKind::Data => bytes += head.body_bytes,
            FrameKind::End => break,
            _ => {}
        }
    }
    assert_eq!(bytes as u64, UNIT_BYTES);
    assert_serves(&object, oid, &holder);
}

/// Every message and frame out of place ends its connection with a typed fault, and the holder goes on.
#[test]
fn rule_breakers_are_told_and_cut_off() {
    let (object, oid, holder) = holder(2);
    let name = ObjectName::Oid(oid);
    let head = |bytes: [u8; 8]| bytes.to_vec();
    let frame = |message: Message| {
        let body = message.to_bytes();
        [&FrameHead::new(FrameKind::Control, body.len(), 0).encode()[..], &body].concat()
    };
    let seal = Seal { handle: 1, root: oid };
    let compare = |handle, groups| {
        let subtrees = vec![ComparedSubtree { start_group: 1, groups }];
        frame(Message::Compare(Compare { handle, subtrees }))
    };
    let copy = Copy {
        role: CopyRole::Send,
        path: b"/etc/passwd".to_vec().into(),
        preserve: false,
        fsync: false,
        whole_file: None,
        rate_bytes: None,
        compressed: None,
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("unknown kind", head([9, 0, 0, 0, 0, 0, 0, 0])),
        ("control frame beyond its limit", head([1, 0xff, 0xff, 0xff, 0, 0, 0, 0])),
        ("data from a receiver", [head([3, 0, 0, 4, 0, 0, 0, 1]), vec![0; 4]].concat()),
        ("end from a receiver", head([5, 0, 0, 0, 0, 0, 0, 1])),
        ("control frame with a request", head([1, 0, 0, 1, 0, 0, 0, 1])),
        ("no CBOR", [head([1, 0, 0, 2, 0, 0, 0, 0]), vec![0xff; 2]].concat()),
        ("second hello", frame(Message::Hello(hello(false)))),
        ("handle twice", frame(Message::Open(Open { handle: 1, object: name, proof: None }))),
        ("fetch of nothing open", frame(Message::Fetch(Fetch { handle: 5, ..fetch(1) }))),
        ("fetch of no subtree", frame(Message::Fetch(Fetch { start_group: 1, ..fetch(1) }))),
        ("fetch beyond the end", frame(Message::Fetch(Fetch { start_group: 1 << 50, ..fetch(1) }))),
        ("fetch with too deep knowledge", frame(Message::Fetch(Fetch { known_depth: 9, ..fetch(1) }))),
        ("seal of what has an OID", frame(Message::Seal(seal))),
        ("comparison of no subtree", compare(1, 2)),
        ("comparison of a single group", compare(1, 1)),
        ("comparison of nothing open", compare(5, 2)),
        ("recipe without the feature", frame(Message::Describe(Describe { handle: 1 }))),
        ("nodes without the feature", frame(Message::Nodes(Nodes { handle: 1, ids: vec![] }))),
        ("copy over TLS", frame(Message::Copy(copy))),
    ];
    for (what, bytes) in cases {
        let mut raw = opened(&holder, oid);
        raw.say_bytes(&bytes);
        let (kind, text) = raw.fault();
        assert_eq!(kind, ErrorKind::Protocol, "{what}: {text}");
        assert!(raw.message().is_none(), "{what}: closed after the fault");
    }
    let mut future = RawReceiver::connect(holder.port, holder.node);
    future.say(&[Message::Hello(Hello { version: PROTOCOL_VERSION + 1, ..hello(false) })]);
    let (kind, text) = future.fault();
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains(&format!("version {}", PROTOCOL_VERSION + 1)), "{text}");
    let mut needy = RawReceiver::connect(holder.port, holder.node);
    needy.say(&[Message::Hello(Hello { required: vec!["teleport".into()], ..hello(false) })]);
    assert!(needy.fault().1.contains("teleport"));
    assert_serves(&object, oid, &holder);
}
