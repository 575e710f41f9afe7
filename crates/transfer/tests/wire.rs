//! What can and cannot be seen and done on the wire: pinned keys, ciphers, proofs, clear-text data.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameKind};
use dray_core::limits::{GROUP_BYTES, RECIPES_MAKING_MAX, UNIT_BYTES};
use dray_core::message::{ClearAsk, Describe, Fetch, Message, Nodes, ObjectName, Open, Pack, feature};
use dray_core::rights::Secret;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_testkit::sample;
use dray_testkit::source_conformance::TestObject;
use dray_transfer::holder::{Held, Provider, RecipeMaker, RecipeState, RecipeWish};
use dray_transfer::transport::Security;
use support::receive::{RawReceiver, TestReceiver};
use support::relay::{Relay, contains};
use support::{ProvenHeld, SECRET, TestHolder, TestProvider, hello, hello_with_recipe, tls};

/// An object of two units and a bit, and a holder of it.
fn holder(seed: u64, clear: bool) -> (TestObject, Oid, TestHolder) {
    let object = TestObject::new(sample::bytes((2 * UNIT_BYTES + 3 * GROUP_BYTES + 5) as usize, seed));
    let oid = Oid::of(&object.data);
    let holder = TestHolder::of(Arc::new(ProvenHeld::new(&object)), oid, 1, clear);
    (object, oid, holder)
}

/// S23: the key is the node. Somebody else at the address is refused for good, before anything is said.
#[test]
fn another_key_at_the_address_is_refused() {
    let (object, oid, holder) = holder(1, false);
    let relay = Relay::to(holder.port);
    let receiver = TestReceiver::dial(relay.port, tls(9).node(), oid, object.data.len() as u64, false);
    receiver.sink.wait("the end", |got| got.downs.last().is_some_and(|(_, gone)| *gone));
    let got = receiver.sink.got();
    assert_eq!((got.ups, &got.downs[..]), (0, &[(Some(ErrorKind::Refused), true)][..]), "{:?}", got.errors);
    assert!(got.errors[0].contains("another node"), "{:?}", got.errors);
}

/// Design 5, exit codes: a port where another program listens is no refusal of a node; nobody who could be meant is
/// there.
#[test]
fn another_program_at_the_port_is_no_refusal() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let greeting = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut socket, b"SSH-2.0-Other_1.0\r\n").unwrap();
        // Until the other side has had enough.
        let _ = std::io::Read::read_to_end(&mut socket, &mut Vec::new());
    });
    let receiver = TestReceiver::dial(port, tls(9).node(), Oid::of(b"x"), 1, false);
    receiver.sink.wait("the end", |got| got.downs.last().is_some_and(|(_, gone)| *gone));
    let got = receiver.sink.got();
    assert_eq!((got.ups, &got.downs[..]), (0, &[(Some(ErrorKind::Protocol), true)][..]), "{:?}", got.errors);
    assert_eq!(ErrorKind::Protocol.exit_code(), 5);
    assert!(got.errors[0].contains("is not dray"), "{:?}", got.errors);
    greeting.join().unwrap();
}

/// Design 5: AES-128-GCM is what two processors with AES agree on. The witness is the server's hello, which TLS 1.3
/// (RFC 8446 §4.1.3) sends in clear.
#[test]
fn aes_128_gcm_is_negotiated_in_tls_1_3() {
    let (object, oid, holder) = holder(2, false);
    let relay = Relay::to(holder.port);
    let receiver = TestReceiver::dial(relay.port, holder.node, oid, object.data.len() as u64, false);
    assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
    let seen = relay.seen();
    assert_eq!(seen.len(), 1);
    let hello = &seen[0].to_receiver;
    assert_eq!((hello[0], hello[5]), (22, 2), "a handshake record with a server hello");
    // Record head, handshake head, version, random, then the session id with its length.
    let suite = 5 + 4 + 2 + 32 + 1 + usize::from(hello[5 + 4 + 2 + 32]);
    assert_eq!(hello[suite..suite + 2], [0x13, 0x01], "TLS_AES_128_GCM_SHA256");
    // Supported versions, extension 43: TLS 1.3.
    assert!(contains(&hello[suite..200], &[0, 43, 0, 2, 3, 4]));
}

/// Design 14, S21, S25: neither payload nor name nor OID nor secret can be read on the wire, and the secret is not even
/// inside TLS: what crosses is a proof.
#[test]
fn nothing_can_be_read_on_the_wire() {
    let (object, oid, holder) = holder(3, false);
    let relay = Relay::to(holder.port);
    let receiver = TestReceiver::dial(relay.port, holder.node, oid, object.data.len() as u64, false);
    assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
    for traffic in relay.seen() {
        for bytes in [&traffic.to_holder, &traffic.to_receiver] {
            for hidden in [&SECRET.as_bytes()[..], oid.as_bytes(), &object.name, &object.data[..32]] {
                assert!(!contains(bytes, hidden));
            }
        }
    }
}

/// Design 5, S25: with clear-text data the payload can be read, requests and proof cannot; the bytes are right.
#[test]
fn clear_data_shows_the_payload_and_nothing_that_grants_a_right() {
    let (object, oid, holder) = holder(4, true);
    let relay = Relay::to(holder.port);
    let receiver = TestReceiver::dial(relay.port, holder.node, oid, object.data.len() as u64, true);
    assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
    let seen = relay.seen();
    assert_eq!(seen.len(), 2, "one TLS connection and one beside it");
    let (control, data) = (&seen[0], &seen[1]);
    assert_eq!((&data.to_holder[..8], data.to_holder.len()), (&b"DRAYCLR1"[..], 24), "preamble and token");
    assert!(contains(&data.to_receiver, &object.data[..4096]));
    assert!(data.to_receiver.len() > object.data.len());
    assert!(control.to_receiver.len() < 10_000, "no payload in TLS");
    let plain = &data.to_receiver;
    assert!(!contains(plain, &object.name), "what the holder says of the object stays in TLS");
    assert_eq!(plain[0], FrameKind::Parents as u8, "the first frame in clear answers a request");
    for bytes in [&control.to_holder, &control.to_receiver, &data.to_holder, &data.to_receiver] {
        assert!(!contains(bytes, SECRET.as_bytes()));
        assert!(!contains(bytes, oid.as_bytes()));
    }
}

/// S25: one side that does not allow clear-text data is enough to keep everything in TLS.
#[test]
fn clear_data_takes_both_ends() {
    for (holder_allows, receiver_allows) in [(false, true), (true, false)] {
        let (object, oid, holder) = holder(5, holder_allows);
        let relay = Relay::to(holder.port);
        let size = object.data.len() as u64;
        let receiver = TestReceiver::dial(relay.port, holder.node, oid, size, receiver_allows);
        assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
        let seen = relay.seen();
        assert_eq!(seen.len(), 1);
        assert!(!contains(&seen[0].to_receiver, &object.data[..32]));
    }
}

/// Design 5: who may go clear is decided by the session; on the wire, who asks without an agreement, without an open
/// object or in the middle of answers is cut off with a fault, and no byte has left in clear.
#[test]
fn clear_data_out_of_place_is_refused() {
    let ask = || Message::ClearAsk(ClearAsk {});
    for (allows, opens, fetches) in [(false, true, false), (true, false, false), (true, true, true)] {
        let (object, oid, holder) = holder(6, allows);
        object.gate.shut(0);
        let mut raw = RawReceiver::connect(holder.port, holder.node);
        let name = ObjectName::Oid(oid);
        let mut messages = vec![Message::Hello(hello(true))];
        if opens {
            let proof = Some(raw.proof(&SECRET, &name).into());
            messages.push(Message::Open(Open { handle: 1, object: name, proof }));
        }
        if fetches {
            messages.push(Message::Fetch(fetch()));
        }
        messages.push(ask());
        raw.say(&messages);
        object.gate.open();
        let (kind, text) = raw.fault();
        assert_eq!(kind, ErrorKind::Protocol, "{text}");
        assert!(text.contains("clear-text"), "{text}");
    }
}

fn fetch() -> Fetch {
    Fetch { request: 1, handle: 1, start_group: 0, groups: 16, known_depth: 0, recheck: false }
}

/// A provider that remembers the proofs it was shown.
struct Remembering {
    provider: TestProvider,
    shown: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Provider for Remembering {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        self.shown.lock().unwrap().extend(open.proof.as_ref().map(|proof| proof.to_vec()));
        self.provider.open(open, security)
    }
}

/// Design 14, S21: each connection has its own proof, and a proof shown on one is worthless on the next.
#[test]
fn a_proof_is_good_for_one_connection() {
    let object = TestObject::new(sample::bytes(100, 7));
    let oid = Oid::of(&object.data);
    let shown: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let held: Arc<dyn Held> = Arc::new(ProvenHeld::new(&object));
    let holder = TestHolder::start(1, false, |_| Remembering {
        provider: TestProvider {
            held,
            object: ObjectName::Oid(oid),
            holder: tls(1).node(),
            secret: SECRET,
            tokens: None,
        },
        shown: shown.clone(),
    });
    for _ in 0..2 {
        let receiver = TestReceiver::dial(holder.port, holder.node, oid, 100, false);
        assert_eq!(receiver.fetch_all().as_deref(), Ok(&object.data[..]));
    }
    let proofs = shown.lock().unwrap().clone();
    assert_eq!(proofs.len(), 2);
    assert_ne!(proofs[0], proofs[1]);
    for (proof, wanted) in [(proofs[0].clone(), false), (vec![], true)] {
        let mut raw = RawReceiver::connect(holder.port, holder.node);
        let proof = if wanted { raw.proof(&SECRET, &ObjectName::Oid(oid)) } else { proof };
        raw.open(ObjectName::Oid(oid), proof);
        assert!(matches!(raw.message(), Some(Message::Hello(_))));
        match raw.message() {
            Some(Message::Opened(opened)) if wanted => assert_eq!(opened.size_bytes, 100),
            Some(Message::Fault(fault)) if !wanted => {
                assert_eq!((fault.handle, fault.kind), (Some(1), ErrorKind::Refused.wire_code()));
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
}

/// S22: with a wrong secret not one frame of payload leaves the holder, whatever was asked for behind the open.
#[test]
fn a_wrong_secret_gets_no_payload() {
    let (_, oid, holder) = holder(8, false);
    let mut raw = RawReceiver::connect(holder.port, holder.node);
    let name = ObjectName::Oid(oid);
    let proof = raw.proof(&Secret::from_bytes([1; 16]), &name);
    raw.open(name, proof);
    raw.say(&[Message::Fetch(fetch())]);
    let mut kinds = vec![];
    while kinds.last() != Some(&FrameKind::End) {
        kinds.push(raw.frame().expect("an end").0.kind);
    }
    assert_eq!(kinds, [FrameKind::Control, FrameKind::Control, FrameKind::End], "hello, fault, end");
}

/// Design 14, limits: who has nothing open any more but what has ended is told why and closed, also if it asks for nothing: it keeps no
/// place from others.
#[test]
fn who_has_a_right_to_nothing_any_more_is_closed() {
    let object = TestObject::new(sample::bytes(100_000, 11));
    let oid = Oid::of(&object.data);
    let held = ProvenHeld::new(&object);
    let ended = held.ended.clone();
    let holder = TestHolder::of(Arc::new(held), oid, 1, false);
    let mut raw = RawReceiver::connect(holder.port, holder.node);
    let name = ObjectName::Oid(oid);
    let proof = raw.proof(&SECRET, &name);
    raw.open(name, proof);
    assert!(matches!(raw.message(), Some(Message::Hello(_))));
    assert!(matches!(raw.message(), Some(Message::Opened(_))));
    ended.store(true, Ordering::Release);
    assert_eq!(raw.fault(), (ErrorKind::Refused, "it has ended".to_owned()));
    assert!(raw.frame().is_none(), "it is closed");
}

/// Holds an object for each name.
struct Several(Vec<TestProvider>);

impl Provider for Several {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let of_it = self.0.iter().find(|provider| provider.object == open.object);
        of_it.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such object"))?.open(open, security)
    }
}

/// And who has something else open keeps its place: what has ended is refused by itself, and only with the last of it the connection.
#[test]
fn who_has_a_right_to_something_else_stays() {
    let objects = [12, 13].map(|seed| TestObject::new(sample::bytes(100_000, seed)));
    let names = objects.each_ref().map(|object| ObjectName::Oid(Oid::of(&object.data)));
    let held = objects.each_ref().map(|object| Arc::new(ProvenHeld::new(object)));
    let ended = held.each_ref().map(|held| held.ended.clone());
    let providers = std::iter::zip(held, &names).map(|(held, name)| TestProvider {
        held,
        object: *name,
        holder: tls(1).node(),
        secret: SECRET,
        tokens: None,
    });
    let providers = Several(providers.collect());
    let holder = TestHolder::start(1, false, |_| providers);
    let mut raw = RawReceiver::connect(holder.port, holder.node);
    raw.say(&[Message::Hello(hello(false))]);
    for (handle, name) in (1..).zip(&names) {
        let proof = raw.proof(&SECRET, name);
        raw.say(&[Message::Open(Open { handle, object: *name, proof: Some(proof.into()) })]);
    }
    assert!(matches!(raw.message(), Some(Message::Hello(_))));
    for _ in &names {
        assert!(matches!(raw.message(), Some(Message::Opened(_))));
    }
    ended[0].store(true, Ordering::Release);
    // Twice: before the second it has looked what is left.
    for request in [1, 2] {
        raw.say(&[Message::Fetch(Fetch { request, handle: 2, groups: 2, ..fetch() })]);
        while raw.frame().expect("it stays").0.kind != FrameKind::End {}
    }
    ended[1].store(true, Ordering::Release);
    assert_eq!(raw.fault(), (ErrorKind::Refused, "it has ended".to_owned()));
    assert!(raw.frame().is_none(), "it is closed");
}

/// Threat model: whoever asks for a recipe and hangs up, any number of times, has the object read once: the process has no
/// more threads for recipes than it may.
#[test]
fn who_asks_for_recipes_and_hangs_up_leaves_no_threads() {
    let object = TestObject::new(sample::bytes((2 * UNIT_BYTES) as usize, 10));
    let oid = Oid::of(&object.data);
    let (_unmade, gate) = std::sync::mpsc::channel();
    let held = ProvenHeld { recipe_gate: Some(Mutex::new(gate)), ..ProvenHeld::new(&object) };
    let holder = TestHolder::of(Arc::new(held), oid, 1, false);
    for _ in 0..4 * RECIPES_MAKING_MAX {
        let mut raw = RawReceiver::connect(holder.port, holder.node);
        let name = ObjectName::Oid(oid);
        let proof = raw.proof(&SECRET, &name);
        let open = Open { handle: 1, object: name, proof: Some(proof.into()) };
        let describe = Message::Describe(Describe { handle: 1 });
        raw.say(&[
            Message::Hello(hello_with_recipe(false)),
            Message::Open(open),
            describe,
            Message::Fetch(fetch()),
        ]);
        while raw.frame().expect("an end").0.kind != FrameKind::End {}
    }
    let is_recipe = |task: &std::path::Path| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "recipe")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let making = tasks.filter(|task| is_recipe(&task.as_ref().unwrap().path())).count();
    assert!((1..=RECIPES_MAKING_MAX).contains(&making), "{making} threads make recipes");
}

/// A receiver that knows what a recipe is, with the object `oid` open.
fn with_recipe(holder: &TestHolder, oid: Oid) -> RawReceiver {
    let mut raw = RawReceiver::connect(holder.port, holder.node);
    let name = ObjectName::Oid(oid);
    let proof = raw.proof(&SECRET, &name);
    let open = Open { handle: 1, object: name, proof: Some(proof.into()) };
    raw.say(&[Message::Hello(hello_with_recipe(false)), Message::Open(open)]);
    assert!(matches!(raw.message(), Some(Message::Hello(_))));
    assert!(matches!(raw.message(), Some(Message::Opened(_))));
    raw
}

/// Design 9: of an object whose recipe could not be made there is none, and its bytes are to be had all the same; a question for nodes has
/// no recipe begun.
#[test]
fn without_a_recipe_the_object_is_to_be_had() {
    let object = TestObject::new(sample::bytes((2 * UNIT_BYTES) as usize, 12));
    let oid = Oid::of(&object.data);
    let held = ProvenHeld::new(&object);
    let (recipe, mut wish) = (held.recipe.clone(), RecipeWish::default());
    let holder = TestHolder::of(Arc::new(held), oid, 1, false);
    let mut raw = with_recipe(&holder, oid);
    raw.say(&[Message::Nodes(Nodes { handle: 1, ids: vec![[7; 32].into()] })]);
    assert_eq!(raw.fault().0, ErrorKind::NotFound);
    let (begun, is_begun) = std::sync::mpsc::channel();
    let failing = move |_: &mut RecipeMaker| {
        begun.send(()).unwrap();
        Err(Error::new(ErrorKind::Changed, "it changed"))
    };
    assert!(matches!(recipe.ask(&mut wish, failing), RecipeState::Making));
    is_begun.recv().expect("it is not being made already");
    let again = || recipe.ask(&mut RecipeWish::default(), |_| unreachable!("it failed a moment ago"));
    while matches!(again(), RecipeState::Making) {}
    raw.say(&[Message::Describe(Describe { handle: 1 })]);
    match raw.message() {
        Some(Message::Described(described)) => assert!(described.root.is_none()),
        other => panic!("{other:?}"),
    }
    raw.say(&[Message::Fetch(fetch())]);
    while raw.frame().expect("an end").0.kind != FrameKind::End {}
}

/// Design 9: a holder that cuts a large object for its recipe is busy, not dead: it goes on sending, and answers when the
/// recipe is made. One question for it waits at a time.
#[test]
fn a_holder_sends_while_it_makes_a_recipe() {
    let object = TestObject::new(sample::bytes((2 * UNIT_BYTES) as usize, 9));
    let oid = Oid::of(&object.data);
    let (made, gate) = std::sync::mpsc::channel();
    let held = ProvenHeld { recipe_gate: Some(Mutex::new(gate)), ..ProvenHeld::new(&object) };
    let holder = TestHolder::of(Arc::new(held), oid, 1, false);
    for is_twice in [true, false] {
        let mut raw = with_recipe(&holder, oid);
        let describe = || Message::Describe(Describe { handle: 1 });
        raw.say(&[describe(), Message::Fetch(fetch())]);
        let mut kinds = vec![];
        while kinds.last() != Some(&FrameKind::End) {
            kinds.push(raw.frame().expect("an end").0.kind);
        }
        assert!(kinds.contains(&FrameKind::Data) && !kinds.contains(&FrameKind::Control), "{kinds:?}");
        if is_twice {
            raw.say(&[describe()]);
            assert_eq!(raw.fault().0, ErrorKind::Protocol);
        }
        if !is_twice {
            // It is not there before it is made, whatever is asked for.
            raw.say(&[Message::Nodes(Nodes { handle: 1, ids: vec![[7; 32].into()] })]);
            assert_eq!(raw.fault().0, ErrorKind::NotFound);
            made.send(()).unwrap();
            made.send(()).unwrap();
            match raw.message() {
                Some(Message::Described(described)) => {
                    assert_eq!(described.root.unwrap().size_bytes(), 2 * UNIT_BYTES);
                }
                other => panic!("{other:?}"),
            }
            // What is no node of it is not found, and the connection goes on.
            raw.say(&[
                Message::Nodes(Nodes { handle: 1, ids: vec![[7; 32].into()] }),
                Message::Fetch(fetch()),
            ]);
            match raw.message() {
                Some(Message::Fault(fault)) => {
                    assert_eq!((fault.handle, fault.kind), (Some(1), ErrorKind::NotFound.wire_code()));
                }
                other => panic!("{other:?}"),
            }
            while raw.frame().expect("an end").0.kind != FrameKind::End {}
        }
    }
}

/// P6, design 15: data is packed once the receiver has said that it may be, over all frames together, and before that not a byte
/// of it. What does not compress costs a thousandth more at most.
#[test]
fn data_is_packed_where_the_receiver_says_so() {
    let text: Vec<u8> =
        (0..2 * UNIT_BYTES).map(|at| b"0123456789abcdef"[(at * at / 61 % 16) as usize]).collect();
    let noise = sample::bytes(2 * UNIT_BYTES as usize, 5);
    let wire = |data: &[u8], may: bool| {
        let object = TestObject::new(data.to_vec());
        let name = ObjectName::Oid(Oid::of(data));
        let holder = TestHolder::of(Arc::new(ProvenHeld::new(&object)), Oid::of(data), 1, false);
        let mut receiver = RawReceiver::connect(holder.port, holder.node);
        let proof = receiver.proof(&SECRET, &name);
        let mut able = hello(false);
        able.features.push(feature::PACKED.to_owned());
        let open = Open { handle: 1, object: name, proof: Some(proof.into()) };
        receiver.say(&[Message::Hello(able), Message::Open(open), Message::Pack(Pack { may })]);
        receiver.say(&[
            Message::Fetch(fetch()),
            Message::Fetch(Fetch { request: 2, start_group: 16, ..fetch() }),
        ]);
        let (mut bytes, mut packed, mut ends) = (0, 0, 0);
        while ends < 2 {
            let (head, body) = receiver.frame().unwrap();
            bytes += body.len() + FRAME_HEAD_BYTES;
            packed += usize::from(head.kind == FrameKind::Packed);
            ends += usize::from(head.kind == FrameKind::End);
        }
        (bytes, packed)
    };
    let (plain, with) = (wire(&text, false), wire(&text, true));
    assert!(with.0 < plain.0 / 2 && with.1 > 0, "{with:?} of {plain:?}");
    assert_eq!(plain.1, 0);
    let (plain, with) = (wire(&noise, false), wire(&noise, true));
    assert!(with.0 <= plain.0 + plain.0 / 1000, "{with:?} of {plain:?}");
}
