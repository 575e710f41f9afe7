//! The grammars in `docs/` against real messages and tickets: what is sent holds, what is damaged does not, and where
//! a grammar can say it, grammar and decoder draw the same line.
#![allow(clippy::unwrap_used)] // Helpers of tests are not seen as tests.

use dray_core::chunker::Profile;
use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::hint::Hint;
use dray_core::message::{Fault, Message, PROTOCOL_VERSION, samples};
use dray_core::recipe::{ChunkDescriptor, RecipeBuilder, RecipeRoot};
use dray_core::rights::Secret;
use dray_core::ticket::{TICKET_PREFIX, Ticket};
use dray_core::{Error, ErrorKind, NodeId, Oid, cbor};
use dray_testkit::cddl::{Cddl, Value};

/// Where something changes: around every limit of a length or a number.
const LENGTHS: [usize; 21] =
    [0, 1, 8, 9, 15, 16, 17, 31, 32, 33, 34, 64, 65, 255, 256, 257, 1024, 1025, 4096, 4097, 32_769];
const NUMBERS: [i128; 17] = [
    -(1 << 64),
    -(1 << 63) - 1,
    -(1 << 63),
    -1,
    0,
    1,
    255,
    256,
    4096,
    65_536,
    1_000_000_000,
    (1 << 32) - 1,
    1 << 32,
    1 << 60,
    (1 << 60) + 1,
    1 << 63,
    (1 << 64) - 1,
];

fn peer() -> Cddl {
    Cddl::parse(include_str!("../../../docs/protocol/peer.cddl")).unwrap()
}

fn ticket_grammar() -> Cddl {
    Cddl::parse(include_str!("../../../docs/format/ticket.cddl")).unwrap()
}

/// Other values for one place of a message.
fn replacements(value: &Value) -> Vec<Value> {
    let mut others =
        vec![Value::Bool(true), Value::Bytes(vec![]), Value::Text("x".into()), Value::Map(vec![])];
    match value {
        Value::Int(_) => others.extend(NUMBERS.map(Value::Int)),
        Value::Bytes(bytes) => others.extend(LENGTHS.map(|len| {
            let mut bytes = bytes.clone();
            bytes.resize(len, 7);
            Value::Bytes(bytes)
        })),
        Value::Text(_) => others.extend(LENGTHS.map(|len| Value::Text("x".repeat(len)))),
        Value::Array(items) => others.extend(
            LENGTHS.iter().filter_map(|len| items.first().map(|item| Value::Array(vec![item.clone(); *len]))),
        ),
        Value::Map(_) | Value::Bool(_) | Value::Null => others.push(Value::Int(0)),
    }
    others
}

/// Design 19: every message, and every fault that a frame carries, is what the grammar says; the grammar has no rule
/// that nothing uses.
#[test]
fn every_message_holds() {
    let peer = peer();
    for (name, message) in samples() {
        let bytes = message.to_bytes();
        peer.validate("message", &bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
        let rule = [
            "-public",
            "-inline",
            "-none",
            "-lane",
            "-cut",
            "-pack",
            "-code-sums",
            "-sums",
            "-masked",
            "-code",
            "-change",
            "-sync",
            "-near",
            "-letters",
            "-listed",
            "-sync-rules",
            "-sync-beside",
            "-sync-fake",
            "-sync-last",
            "-digests",
            "-owner",
            "-again",
            "-brief",
        ]
        .iter()
        .find_map(|variant| name.strip_suffix(variant));
        peer.validate(rule.unwrap_or(name), &bytes).unwrap();
    }
    for kind in [ErrorKind::Internal, ErrorKind::Changed, ErrorKind::Partial] {
        let fault = Fault::from_error(None, &Error::new(kind, "w".repeat(5000)));
        let body = cbor::encode(&fault);
        peer.validate("fault-body", &body).unwrap();
        let head = FrameHead::new(FrameKind::Fault, body.len(), 7).encode();
        assert_eq!(head.len(), FRAME_HEAD_BYTES);
        assert!(peer.validate("message", &body).is_err(), "a fault frame's body is no control message");
        assert_eq!(Fault::from_bytes(&body).unwrap(), fault);
        let whole = Value::decode(&body).unwrap();
        for path in whole.paths() {
            for other in replacements(at(&whole, &path)) {
                let bytes = whole.changed(&path, &|_| Some(other.clone())).encode();
                let (held, decoded) = (peer.validate("fault-body", &bytes), Fault::from_bytes(&bytes));
                assert_eq!(held.is_ok(), decoded.is_ok(), "{other:?}");
            }
        }
    }
    assert_eq!(peer.unused(&["message", "fault-body"]), Vec::<&str>::new());
}

/// Design 19: damage every place of every message in every way above; the grammar and the decoder agree on each
/// result. Keys left out, wrong types and values beyond a limit are thus refused by both, unknown keys by neither.
#[test]
fn grammar_and_decoder_draw_the_same_line() {
    let peer = peer();
    let (mut refused, mut accepted) = (0, 0);
    for (name, message) in samples() {
        let whole = Value::decode(&message.to_bytes()).unwrap();
        let mut damaged = Vec::new();
        for path in whole.paths() {
            // What the grammar cannot state: that an inline file is as long as it says, that pairs come whole, that a recipe
            // is one that can be made (the grammar of recipes has tests of its own).
            let inline = name == "offer-inline" && (path == [1, 1] || path == [1, 6]);
            let pairs = name == "compared" && path == [1, 1];
            let recipe = name == "described" && path.len() > 2;
            // How many sums, and of how many bytes, is a product.
            let sums = name == "sums" && path.len() == 4 && path[3] == 1
                || matches!(name, "pull-sums" | "pull-code-sums") && path.len() == 7 && path[6] == 1;
            // Digests of 16 bytes come whole.
            let digests = matches!(name, "digests" | "digests-owner") && path == [1, 0];
            if inline || pairs || recipe || sums || digests {
                continue;
            }
            damaged.push(whole.changed(&path, &|_| None));
            let others = replacements(at(&whole, &path));
            damaged.extend(others.into_iter().map(|other| whole.changed(&path, &|_| Some(other.clone()))));
        }
        damaged.push(whole.changed(&[1], &|body| match body {
            Value::Map(entries) => {
                let unknown = (Value::Int(99), Value::Text("from the future".into()));
                Some(Value::Map(entries.iter().cloned().chain([unknown]).collect()))
            }
            other => Some(other.clone()),
        }));
        for value in damaged {
            let bytes = value.encode();
            if bytes.len() > dray_core::limits::CONTROL_FRAME_BYTES_MAX {
                continue;
            }
            let decoded = Message::from_bytes(&bytes);
            let held = peer.validate("message", &bytes);
            assert_eq!(decoded.is_ok(), held.is_ok(), "{name}: {value:?}: {decoded:?}, {held:?}");
            if held.is_ok() { accepted += 1 } else { refused += 1 }
        }
    }
    assert!(refused > 1000 && accepted > 200, "{refused} refused, {accepted} accepted");
}

fn at<'a>(value: &'a Value, path: &[usize]) -> &'a Value {
    path.iter().fold(value, |value, at| match value {
        Value::Array(items) => &items[*at],
        Value::Map(entries) => &entries[*at].1,
        other => other,
    })
}

fn tickets() -> Vec<Ticket> {
    let node = NodeId::from_bytes([7; 32]);
    let public = Ticket {
        protocol: PROTOCOL_VERSION,
        oid: Oid::of(b"sample"),
        size_bytes: 1 << 60,
        secret: None,
        expires_unix_s: None,
        hints: vec![],
        repeated_permille: 0,
    };
    let hint =
        |text: &str| Hint { priority: 3, weight: u16::MAX, ..Hint::new(text.parse().unwrap(), Some(node)) };
    let private = Ticket {
        secret: Some(Secret::from_bytes([5; 16])),
        repeated_permille: 1000,
        expires_unix_s: Some(u64::MAX),
        hints: vec![
            hint("dray://192.0.2.7:4711"),
            hint("dray://[2001:db8::7]:4711"),
            Hint::new("future:x".parse().unwrap(), None),
        ],
        ..public.clone()
    };
    vec![public, private]
}

/// The CBOR between prefix and checksum.
fn body(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix(TICKET_PREFIX).unwrap();
    let mut bytes = data_encoding::BASE64URL_NOPAD.decode(digits.as_bytes()).unwrap();
    bytes.truncate(bytes.len() - 4);
    bytes
}

fn printed(mut body: Vec<u8>) -> String {
    let sum = blake3::derive_key("drayman 2026-11-21 ticket 1: checksum", &body);
    body.extend_from_slice(&sum[..4]);
    format!("{TICKET_PREFIX}{}", data_encoding::BASE64URL_NOPAD.encode(&body))
}

/// D5, D18: the body of a ticket is what `docs/format/ticket.cddl` says. What the decoder accepts holds; what lacks a
/// required key or has a wrong type is refused by both.
#[test]
fn tickets_hold_and_damaged_ones_do_not() {
    let grammar = ticket_grammar();
    assert_eq!(grammar.unused(&["ticket"]), Vec::<&str>::new());
    let mut refused = 0;
    for ticket in tickets() {
        let text = ticket.to_text().unwrap();
        let whole = Value::decode(&body(&text)).unwrap();
        grammar.validate("ticket", &body(&text)).unwrap();
        assert_eq!(printed(body(&text)), text);
        let Value::Map(entries) = &whole else { panic!("a ticket is a map") };
        for (index, (key, _)) in entries.iter().enumerate() {
            let without = whole.changed(&[index], &|_| None).encode();
            let is_optional = matches!(key, Value::Int(4 | 5 | 8 | 9));
            assert_eq!(grammar.validate("ticket", &without).is_ok(), is_optional, "without {key:?}");
            assert_eq!(printed(without).parse::<Ticket>().is_ok(), is_optional, "without {key:?}");
        }
        for path in whole.paths() {
            for other in replacements(at(&whole, &path)) {
                let bytes = whole.changed(&path, &|_| Some(other.clone())).encode();
                let (held, decoded) = (grammar.validate("ticket", &bytes), printed(bytes).parse::<Ticket>());
                // The decoder also knows what a grammar cannot say: how a URI looks, and that an index points at something.
                assert!(held.is_ok() || decoded.is_err(), "{path:?} {other:?}: {held:?}");
                refused += usize::from(held.is_err());
            }
        }
        let (first, last): (Vec<_>, Vec<_>) =
            entries.iter().cloned().partition(|(key, _)| !matches!(key, Value::Int(9)));
        let feature = (Value::Int(8), Value::Array(vec![Value::Text("teleport".into())]));
        let with_feature = first.into_iter().chain([feature]).chain(last);
        let bytes = Value::Map(with_feature.collect()).encode();
        grammar.validate("ticket", &bytes).unwrap();
        assert_eq!(printed(bytes).parse::<Ticket>().unwrap_err().kind(), ErrorKind::Unsupported);
        let with_unknown = entries.iter().cloned().chain([(Value::Int(99), Value::Null)]);
        let bytes = Value::Map(with_unknown.collect()).encode();
        grammar.validate("ticket", &bytes).unwrap();
        assert_eq!(printed(bytes).parse::<Ticket>().unwrap(), ticket);
    }
    assert!(refused > 200, "{refused}");
}

/// Design 19: the root of a recipe and its profile are what `docs/format/recipe.cddl` says. What the decoder accepts
/// holds; what lacks a key or has a wrong type or too much is refused by both.
#[test]
fn recipe_roots_hold_and_damaged_ones_do_not() {
    let grammar = Cddl::parse(include_str!("../../../docs/format/recipe.cddl")).unwrap();
    assert_eq!(grammar.unused(&["recipe-root"]), Vec::<&str>::new());
    let mut builder = RecipeBuilder::new(Profile::default());
    for index in 0..300u32 {
        let chunk = ChunkDescriptor { hash: *blake3::hash(&index.to_be_bytes()).as_bytes(), len: 16_384 };
        builder.push(chunk, &mut |_| {}).unwrap();
    }
    let root = builder.finish(&mut |_| {}).to_bytes();
    grammar.validate("recipe-root", &root).unwrap();
    let whole = Value::decode(&root).unwrap();
    let mut refused = 0;
    for path in whole.paths() {
        let without = whole.changed(&path, &|_| None).encode();
        assert!(
            grammar.validate("recipe-root", &without).is_err() && RecipeRoot::from_bytes(&without).is_err()
        );
        for other in replacements(at(&whole, &path)) {
            let bytes = whole.changed(&path, &|_| Some(other.clone())).encode();
            let (held, decoded) = (grammar.validate("recipe-root", &bytes), RecipeRoot::from_bytes(&bytes));
            // The decoder also knows what a grammar cannot say: which averages there are, and which totals fit together.
            assert!(held.is_ok() || decoded.is_err(), "{path:?} {other:?}: {held:?}");
            refused += usize::from(held.is_err());
        }
    }
    assert!(refused > 50, "{refused}");
    let Value::Map(entries) = &whole else { panic!("a root is a map") };
    let with_unknown = entries.iter().cloned().chain([(Value::Int(99), Value::Null)]).collect();
    let bytes = Value::Map(with_unknown).encode();
    grammar.validate("recipe-root", &bytes).unwrap();
    assert_eq!(RecipeRoot::from_bytes(&bytes).unwrap().to_bytes(), root);
}

/// Y1, design 19: entries and nodes of trees are what `docs/format/tree.cddl` says, for every golden vector.
#[test]
fn trees_hold() {
    let grammar = Cddl::parse(include_str!("../../../docs/format/tree.cddl")).unwrap();
    let mut held = 0;
    for line in include_str!("../fixtures/trees.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let rule = match words[0] {
            "entry" => "entry",
            "node" => "tree-node",
            _ => continue,
        };
        let bytes = data_encoding::HEXLOWER.decode(words[2].as_bytes()).unwrap();
        grammar.validate(rule, &bytes).unwrap_or_else(|why| panic!("{line}: {why}"));
        let whole = Value::decode(&bytes).unwrap();
        let Value::Map(mut entries) = whole else { panic!("{line}: no map") };
        entries.push((Value::Int(99), Value::Bool(true)));
        grammar.validate(rule, &Value::Map(entries).encode()).unwrap();
        held += 1;
    }
    assert!(held > 12);
    assert_eq!(grammar.unused(&["entry", "tree-node"]), Vec::<&str>::new());
}
