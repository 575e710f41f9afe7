//! Ticket: what applications pass to each other on their own channel. Printable, checksummed, versioned, bounded.
//!
//! `dray:` and base64url (no padding) of a CBOR map followed by 4 bytes of checksum. `docs/format/ticket.md` has the
//! table. A ticket is for an object ([`Ticket`]) or for a directory that is shared as it is ([`DirectoryTicket`]).

mod directory;

use std::fmt;
use std::str::FromStr;

use data_encoding::{DecodeError, DecodeKind};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::hint::Hint;
use crate::limits::{FEATURE_BYTES_MAX, FEATURES_MAX, HINTS_MAX, OBJECT_BYTES_MAX, TICKET_CHARS_MAX};
use crate::message::feature::LIVE_TREE;
use crate::rights::Secret;
use crate::{Error, ErrorKind, NodeId, Oid, Result, cbor};

pub use directory::{AnyTicket, DirectoryId, DirectoryTicket};

/// Text in front of every ticket.
pub const TICKET_PREFIX: &str = "dray:";
/// Version of the ticket's own layout.
pub const TICKET_VERSION: u16 = 1;
const CHECKSUM_CONTEXT: &str = "drayman 2026-11-21 ticket 1: checksum";
const CHECKSUM_BYTES: usize = 4;

/// OID, size, secret and hints of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Version of the peer protocol the issuer speaks.
    pub protocol: u16,
    /// Name of the object.
    pub oid: Oid,
    /// Size of the object.
    pub size_bytes: u64,
    /// Secret of a private object; `None` if it is public.
    pub secret: Option<Secret>,
    /// When the right ends, in seconds since 1970. The holder enforces it; here it serves messages.
    pub expires_unix_s: Option<u64>,
    /// Where to ask, at most eight.
    pub hints: Vec<Hint>,
    /// Of a thousand bytes, how many stand in the object before: the issuer's guess, at most 1,000, and 0 if it has none.
    pub repeated_permille: u16,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Wire {
    #[n(0)]
    version: u16,
    #[n(1)]
    protocol: u16,
    #[n(2)]
    oid: Oid,
    #[n(3)]
    size_bytes: u64,
    #[n(4)]
    secret: Option<ByteVec>,
    #[n(5)]
    expires_unix_s: Option<u64>,
    /// Nodes named by the hints, each once.
    #[n(6)]
    nodes: Vec<NodeId>,
    #[n(7)]
    hints: Vec<WireHint>,
    /// Names of features without which this ticket cannot be used.
    #[n(8)]
    required: Option<Vec<String>>,
    #[n(9)]
    repeated_permille: Option<u16>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct WireHint {
    #[n(0)]
    uri: String,
    #[n(1)]
    node: Option<u8>,
    #[n(2)]
    priority: u16,
    #[n(3)]
    weight: u16,
}

/// Why what follows the prefix is no base64url, for people.
fn undecodable(error: DecodeError) -> String {
    match error.kind {
        DecodeKind::Symbol => {
            format!("character {} is none that a ticket has", TICKET_PREFIX.len() + error.position + 1)
        }
        DecodeKind::Length | DecodeKind::Trailing | DecodeKind::Padding => {
            "characters are missing or changed at its end".into()
        }
    }
}

fn mangled(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Usage, format!("ticket is mangled: {why}"))
        .advise("copy the whole line that `dray put` printed, from `dray:` to its last character")
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::derive_key(CHECKSUM_CONTEXT, body);
    [hash[0], hash[1], hash[2], hash[3]]
}

impl Ticket {
    /// The printed form. Fails if there are too many hints or the text would be longer than 1,024 characters.
    pub fn to_text(&self) -> Result<String> {
        let (nodes, hints) = wire_hints(&self.hints)?;
        print(&Wire {
            version: TICKET_VERSION,
            protocol: self.protocol,
            oid: self.oid,
            size_bytes: self.size_bytes,
            secret: self.secret.map(|secret| secret.as_bytes().to_vec().into()),
            expires_unix_s: self.expires_unix_s,
            nodes,
            hints,
            required: None,
            repeated_permille: Some(self.repeated_permille.min(1000)).filter(|permille| *permille > 0),
        })
    }
}

/// Nodes, each once, and hints that name them by their place.
fn wire_hints(hints: &[Hint]) -> Result<(Vec<NodeId>, Vec<WireHint>)> {
    if hints.len() > HINTS_MAX {
        return Err(Error::new(ErrorKind::Usage, format!("a ticket holds at most {HINTS_MAX} hints")));
    }
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut printed = Vec::with_capacity(hints.len());
    for hint in hints {
        let node = hint.node.map(|node| {
            nodes.iter().position(|known| *known == node).unwrap_or_else(|| {
                nodes.push(node);
                nodes.len() - 1
            })
        });
        printed.push(WireHint {
            uri: hint.uri.to_string(),
            node: node.map(|index| index as u8),
            priority: hint.priority,
            weight: hint.weight,
        });
    }
    Ok((nodes, printed))
}

fn print(wire: &Wire) -> Result<String> {
    let mut body = cbor::encode(wire);
    let sum = checksum(&body);
    body.extend_from_slice(&sum);
    let text = format!("{TICKET_PREFIX}{}", data_encoding::BASE64URL_NOPAD.encode(&body));
    if text.len() > TICKET_CHARS_MAX {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("ticket would be longer than {TICKET_CHARS_MAX} characters"),
        )
        .advise("give fewer or shorter hints"));
    }
    Ok(text)
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Ticket> {
        match text.parse()? {
            AnyTicket::Object(ticket) => Ok(ticket),
            AnyTicket::Directory(_) => {
                Err(Error::new(ErrorKind::Usage, "the ticket is for a directory, not for an object").advise(
                    "dray get TICKET -o DIR fetches it, dray sync -a TICKET DIR brings DIR up to date",
                ))
            }
        }
    }
}

/// Reads the text of a ticket as far as all sorts of tickets are the same. Features that it requires are known.
fn read(text: &str) -> Result<Wire> {
    let text = text.trim();
    if text.len() > TICKET_CHARS_MAX {
        return Err(mangled(format_args!("longer than {TICKET_CHARS_MAX} characters")));
    }
    let digits = text.strip_prefix(TICKET_PREFIX).ok_or_else(|| mangled("it does not begin with dray:"))?;
    let bytes = data_encoding::BASE64URL_NOPAD
        .decode(digits.as_bytes())
        .map_err(|error| mangled(undecodable(error)))?;
    let (body, sum) = bytes
        .len()
        .checked_sub(CHECKSUM_BYTES)
        .and_then(|at| bytes.split_at_checked(at))
        .ok_or_else(|| mangled("it is too short"))?;
    if checksum(body) != sum {
        return Err(mangled("its checksum is wrong, so a character is missing or changed"));
    }
    // From here on the text is as its issuer wrote it; what is wrong now is the issuer's doing.
    cbor::check(body).map_err(mangled)?;
    let version = leading_version(body).ok_or_else(|| mangled("it names no version"))?;
    if version != TICKET_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("ticket has version {version}, this dray knows {TICKET_VERSION}"),
        )
        .advise("install a newer dray"));
    }
    let wire: Wire = minicbor::decode(body).map_err(|error| mangled(error.to_string()))?;
    let required = wire.required.as_deref().unwrap_or_default();
    if required.len() > FEATURES_MAX || required.iter().any(|name| name.len() > FEATURE_BYTES_MAX) {
        return Err(mangled("its feature list is too long"));
    }
    if let Some(feature) = required.iter().find(|name| *name != LIVE_TREE) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("ticket needs the feature {feature:?}, which this dray lacks"),
        )
        .advise("install a newer dray"));
    }
    if wire.size_bytes > OBJECT_BYTES_MAX {
        return Err(mangled("its size is beyond any object"));
    }
    if wire.hints.len() > HINTS_MAX || wire.nodes.len() > HINTS_MAX {
        return Err(mangled(format_args!("it has more than {HINTS_MAX} hints")));
    }
    Ok(wire)
}

impl Wire {
    fn is_of_directory(&self) -> bool {
        self.required.as_ref().is_some_and(|required| !required.is_empty())
    }

    fn hints(&self) -> Result<Vec<Hint>> {
        let mut hints = Vec::with_capacity(self.hints.len());
        for hint in &self.hints {
            let node = match hint.node {
                None => None,
                Some(index) => Some(
                    *self
                        .nodes
                        .get(usize::from(index))
                        .ok_or_else(|| mangled("a hint names a node that is not there"))?,
                ),
            };
            let uri = hint.uri.parse().map_err(|error: Error| mangled(error.what()))?;
            hints.push(Hint { uri, node, priority: hint.priority, weight: hint.weight });
        }
        Ok(hints)
    }

    /// A right that was cut is no right, whoever cut it.
    fn secret(&self) -> Result<Option<Secret>> {
        let Some(bytes) = &self.secret else { return Ok(None) };
        let cut = || {
            Error::new(ErrorKind::Refused, format!("the ticket's secret has {} bytes, not 16", bytes.len()))
                .advise("ask for a whole ticket")
        };
        <[u8; 16]>::try_from(&bytes[..]).map(|bytes| Some(Secret::from_bytes(bytes))).map_err(|_| cut())
    }

    fn object(&self) -> Result<Ticket> {
        let (hints, secret) = (self.hints()?, self.secret()?);
        let repeated_permille = self.repeated_permille.unwrap_or(0);
        if repeated_permille > 1000 {
            return Err(mangled("more than all of the object stands in it before"));
        }
        Ok(Ticket {
            protocol: self.protocol,
            oid: self.oid,
            size_bytes: self.size_bytes,
            secret,
            expires_unix_s: self.expires_unix_s,
            hints,
            repeated_permille,
        })
    }
}

/// The version, key 0 of the map, read before the rest so that a later layout is named and not called mangled.
fn leading_version(body: &[u8]) -> Option<u16> {
    let mut decoder = minicbor::Decoder::new(body);
    decoder.map().ok()??;
    (decoder.u8().ok()? == 0).then(|| decoder.u16().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Ticket {
        Ticket {
            protocol: 1,
            oid: Oid::of(b"sample"),
            size_bytes: 6,
            secret: Some(Secret::from_bytes([5; 16])),
            expires_unix_s: Some(1_800_000_000),
            hints: vec![
                Hint {
                    uri: "dray://192.0.2.7:4711".parse().unwrap(),
                    node: Some(NodeId::from_bytes([7; 32])),
                    priority: 0,
                    weight: 1,
                },
                Hint {
                    uri: "dray://[2001:db8::7]:4711".parse().unwrap(),
                    node: Some(NodeId::from_bytes([7; 32])),
                    priority: 1,
                    weight: 1,
                },
                Hint { uri: "future:somewhere".parse().unwrap(), node: None, priority: 2, weight: 0 },
            ],
            repeated_permille: 0,
        }
    }

    #[test]
    fn round_trip_and_bound() {
        let ticket = sample();
        let text = ticket.to_text().unwrap();
        assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
        assert_eq!(format!("  {text}\n").parse::<Ticket>().unwrap(), ticket);
        // Eight hints on eight nodes with ordinary addresses fit; nine hints do not.
        let mut full = sample();
        full.hints = (0..8)
            .map(|index| Hint {
                uri: format!("dray://203.113.113.{}:65535", 100 + index).parse().unwrap(),
                node: Some(NodeId::from_bytes([index; 32])),
                priority: 0,
                weight: 1,
            })
            .collect();
        let text = full.to_text().unwrap();
        assert!(text.len() <= TICKET_CHARS_MAX, "{}", text.len());
        assert_eq!(text.parse::<Ticket>().unwrap(), full);
        full.hints.push(full.hints[0].clone());
        assert_eq!(full.to_text().unwrap_err().kind(), ErrorKind::Usage);
    }

    /// Golden vector: the text is what applications store.
    #[test]
    fn golden_ticket() {
        assert_eq!(
            sample().to_text().unwrap(),
            concat!(
                "dray:qAABAQECWCEBFdYcacvoaLzed201ClYQL9gSjUBBWo_vpQilPpuL9tkDBgRQBQUFBQUFBQUFBQUFBQUFBQUaa0nSAAaBWCAHBwcH",
                "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBweDpAB1ZHJheTovLzE5Mi4wLjIuNzo0NzExAQACAAMBpAB4GWRyYXk6Ly9bMjAwMTpk",
                "Yjg6OjddOjQ3MTEBAAIBAwGjAHBmdXR1cmU6c29tZXdoZXJlAgIDALsFpSU"
            )
        );
    }

    #[test]
    fn future_versions_and_features_are_refused_by_name() {
        let print = |body: &[u8]| {
            let mut body = body.to_vec();
            let sum = checksum(&body);
            body.extend_from_slice(&sum);
            format!("{TICKET_PREFIX}{}", data_encoding::BASE64URL_NOPAD.encode(&body))
        };
        let error = print(&[0xa1, 0x00, 0x02]).parse::<Ticket>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2"), "{error}");
        let mut wire = Wire {
            version: 1,
            protocol: 1,
            oid: Oid::of(b""),
            size_bytes: 0,
            secret: None,
            expires_unix_s: None,
            nodes: vec![],
            hints: vec![],
            required: Some(vec!["teleport".into()]),
            repeated_permille: None,
        };
        let error = print(&cbor::encode(&wire)).parse::<Ticket>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("teleport"), "{error}");
        wire.required = None;
        // A cut secret is a right that is refused (exit 6), not a mangled text.
        wire.secret = Some(vec![5; 8].into());
        assert_eq!(print(&cbor::encode(&wire)).parse::<Ticket>().unwrap_err().kind(), ErrorKind::Refused);
        wire.secret = None;
        wire.size_bytes = u64::MAX;
        assert!(print(&cbor::encode(&wire)).parse::<Ticket>().is_err());
        wire.size_bytes = 0;
        wire.hints = vec![WireHint { uri: "dray://h:1".into(), node: Some(3), priority: 0, weight: 0 }];
        assert!(print(&cbor::encode(&wire)).parse::<Ticket>().is_err());
        // Unknown keys are ignored: the same map with one more.
        wire.hints.clear();
        let mut body = cbor::encode(&wire);
        body[0] += 1;
        body.extend_from_slice(&[0x18, 0x63, 0x01]);
        assert!(print(&body).parse::<Ticket>().is_ok());
    }

    proptest! {
        /// One changed character is always noticed; no text panics.
        #[test]
        fn a_changed_character_is_noticed(at in any::<prop::sample::Index>(), with in "[A-Za-z0-9_-]", noise in ".{0,60}") {
            let text = sample().to_text().unwrap();
            let at = TICKET_PREFIX.len() + at.index(text.len() - TICKET_PREFIX.len());
            let mut changed = text.clone();
            changed.replace_range(at..=at, &with);
            if changed != text {
                prop_assert!(changed.parse::<Ticket>().is_err());
            }
            prop_assert!(text[..at].parse::<Ticket>().is_err());
            let _ = noise.parse::<Ticket>();
            let _ = format!("dray:{noise}").parse::<Ticket>();
        }
    }
}
