//! Targets `ticket-text` and `ticket-body`: tickets come from strangers by mail and chat. The text target sees what a
//! person may paste; the body target puts the right checksum on whatever CBOR it is given, as a hostile issuer would.

use dray_core::hint::{Hint, selection_order};
use dray_core::limits::{HINTS_MAX, OBJECT_BYTES_MAX, TICKET_CHARS_MAX};
use dray_core::rights::Secret;
use dray_core::ticket::{AnyTicket, DirectoryId, DirectoryTicket, TICKET_PREFIX, Ticket};
use dray_core::{ErrorKind, NodeId, Oid, Result};

use crate::{Seed, novelty};

/// What the parser looks for.
pub const WORDS: &[&str] = &["dray:", "q", "AA", "_", "-", "=", " ", "\n", "\u{e9}"];

/// BLAKE3 key-derivation context of the checksum (`docs/format/ticket.md`), written again on purpose.
const CHECKSUM_CONTEXT: &str = "drayman 2026-11-21 ticket 1: checksum";

/// Any text is a ticket or a clear refusal.
pub fn text_target(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        judge(text.parse());
    }
}

/// Any CBOR under a right checksum is a ticket or a clear refusal.
pub fn body_target(data: &[u8]) {
    judge(print(data).parse());
}

fn print(body: &[u8]) -> String {
    let sum = blake3::derive_key(CHECKSUM_CONTEXT, body);
    format!("{TICKET_PREFIX}{}", data_encoding::BASE64URL_NOPAD.encode(&[body, &sum[..4]].concat()))
}

fn judge(parsed: Result<AnyTicket>) {
    let ticket = match parsed {
        Ok(AnyTicket::Object(ticket)) => ticket,
        Ok(AnyTicket::Directory(ticket)) => return judge_directory(&ticket),
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Usage | ErrorKind::Unsupported | ErrorKind::Refused),
                "{error}"
            );
            return super::assert_clear(&error);
        }
    };
    novelty::note((ticket.hints.len(), ticket.secret.is_some(), ticket.expires_unix_s.is_some()));
    assert!(ticket.hints.len() <= HINTS_MAX && ticket.size_bytes <= OBJECT_BYTES_MAX);
    // Passing a ticket on changes nothing. Only bare IPv6 hosts, printed with brackets, can make it too long.
    match ticket.to_text() {
        Ok(text) => {
            assert!(text.len() <= TICKET_CHARS_MAX);
            assert_eq!(text.parse::<Ticket>().ok().as_ref(), Some(&ticket));
        }
        Err(error) => assert!(ticket.hints.iter().any(|hint| hint.uri.to_string().contains('[')), "{error}"),
    }
    // D18: whatever the weights and whatever is drawn, every hint has its turn once, by priority.
    for draw in [|_| 0, |bound| bound, |bound| bound / 2, |_| u32::MAX] {
        let order = selection_order(&ticket.hints, draw);
        let mut turns = order.clone();
        turns.sort_unstable();
        assert!(turns.into_iter().eq(0..ticket.hints.len()));
        assert!(order.is_sorted_by_key(|index| ticket.hints[*index].priority));
    }
}

/// Passing a ticket of a directory on changes nothing, and it is none of an object.
fn judge_directory(ticket: &DirectoryTicket) {
    novelty::note((100 + ticket.hints.len(), ticket.secret.is_some(), ticket.expires_unix_s.is_some()));
    assert!(ticket.hints.len() <= HINTS_MAX);
    match ticket.to_text() {
        Ok(text) => {
            assert!(text.len() <= TICKET_CHARS_MAX && text.parse::<Ticket>().is_err());
            assert_eq!(text.parse::<AnyTicket>().ok(), Some(AnyTicket::Directory(ticket.clone())));
        }
        Err(error) => assert!(ticket.hints.iter().any(|hint| hint.uri.to_string().contains('[')), "{error}"),
    }
}

/// Printed tickets.
pub fn text_seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = samples()
        .into_iter()
        .map(|(name, ticket)| (name, ticket.to_text().expect("short").into_bytes()))
        .collect();
    let directory = DirectoryTicket {
        protocol: 1,
        id: DirectoryId::from_bytes([9; 32]),
        secret: Some(Secret::from_bytes([5; 16])),
        expires_unix_s: None,
        hints: vec![Hint::new(
            "dray://192.0.2.7:4711".parse().expect("a sample"),
            Some(NodeId::from_bytes([7; 32])),
        )],
    };
    seeds.push(("directory".into(), directory.to_text().expect("short").into_bytes()));
    seeds
}

/// Bodies of the same tickets, without their checksums.
pub fn body_seeds() -> Vec<Seed> {
    let body = |text: Vec<u8>| {
        let mut bytes = data_encoding::BASE64URL_NOPAD.decode(&text[TICKET_PREFIX.len()..]).expect("printed");
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    let mut seeds: Vec<Seed> = text_seeds().into_iter().map(|(name, text)| (name, body(text))).collect();
    // What a later version may print: one more key, and a feature that this version lacks (key 8).
    let mut later = seeds[0].1.clone();
    if let Some(head) = later.first_mut() {
        *head += 1;
    }
    later.extend_from_slice(b"\x08\x81\x68teleport");
    seeds.push(("unknown-feature".into(), later));
    seeds
}

fn samples() -> Vec<(String, Ticket)> {
    let public = Ticket {
        protocol: 1,
        oid: Oid::of(b"sample"),
        size_bytes: 6,
        secret: None,
        expires_unix_s: None,
        hints: vec![],
        repeated_permille: 0,
    };
    let node = |byte| Some(NodeId::from_bytes([byte; 32]));
    let hint = |text: &str, node| Hint::new(text.parse().expect("a sample"), node);
    let private = Ticket {
        secret: Some(Secret::from_bytes([5; 16])),
        expires_unix_s: Some(1_800_000_000),
        hints: vec![
            hint("dray://192.0.2.7:4711", node(7)),
            Hint { priority: 1, weight: 9, ..hint("dray://[2001:db8::7]:4711", node(7)) },
            Hint { priority: 2, weight: 0, ..hint("future:somewhere", None) },
        ],
        ..public.clone()
    };
    let full = Ticket {
        hints: (0..8).map(|index| hint(&format!("dray://203.113.113.{index}:65535"), node(index))).collect(),
        size_bytes: OBJECT_BYTES_MAX,
        ..private.clone()
    };
    vec![("public".into(), public), ("private".into(), private), ("full".into(), full)]
}
