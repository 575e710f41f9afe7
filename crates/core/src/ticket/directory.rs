//! Ticket of a directory that is shared as it is: whoever has it fetches what is in it then, and later what has changed.

use std::fmt;
use std::str::FromStr;

use super::{TICKET_VERSION, Ticket, Wire, print, read, wire_hints};
use crate::hint::Hint;
use crate::message::{ObjectName, feature};
use crate::rights::Secret;
use crate::text::from_hex;
use crate::{Error, ErrorKind, Oid, Result};

/// Name of a shared directory: random, and no hash of anything, as what is in it changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirectoryId([u8; 32]);

impl DirectoryId {
    /// From 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> DirectoryId {
        DirectoryId(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What a receiver opens, and what its proof of the secret is bound to.
    pub fn object(&self) -> ObjectName {
        ObjectName::Provisional(self.0)
    }
}

/// What stands in front of the 64 hex digits.
const ID_PREFIX: &str = "directory:";

impl fmt::Display for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ID_PREFIX}{}", data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl FromStr for DirectoryId {
    type Err = Error;

    fn from_str(text: &str) -> Result<DirectoryId> {
        let bytes = text.strip_prefix(ID_PREFIX).and_then(from_hex);
        let id = bytes.and_then(|bytes| bytes.try_into().ok()).map(DirectoryId);
        id.ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("{text:?} is no id of a directory"))
                .advise("it is directory: and 64 hex digits, as `dray ls` shows it")
        })
    }
}

/// Name, secret and hints of a shared directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryTicket {
    /// Version of the peer protocol the issuer speaks.
    pub protocol: u16,
    /// Name of the directory.
    pub id: DirectoryId,
    /// Secret of a private directory; `None` if it is public.
    pub secret: Option<Secret>,
    /// When the right ends, in seconds since 1970. The holder enforces it; here it serves messages.
    pub expires_unix_s: Option<u64>,
    /// Where to ask, at most eight.
    pub hints: Vec<Hint>,
}

impl DirectoryTicket {
    /// The printed form. Fails if there are too many hints or the text would be longer than 1,024 characters.
    pub fn to_text(&self) -> Result<String> {
        let (nodes, hints) = wire_hints(&self.hints)?;
        print(&Wire {
            version: TICKET_VERSION,
            protocol: self.protocol,
            // In the form of an OID, so that programs that know none of this read on to what is required, and refuse it by name.
            oid: Oid::from_blake3(self.id.0),
            size_bytes: 0,
            secret: self.secret.map(|secret| secret.as_bytes().to_vec().into()),
            expires_unix_s: self.expires_unix_s,
            nodes,
            hints,
            required: Some(vec![feature::LIVE_TREE.to_owned()]),
            repeated_permille: None,
        })
    }
}

/// A ticket of either sort.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnyTicket {
    /// Of an object.
    Object(Ticket),
    /// Of a directory.
    Directory(DirectoryTicket),
}

impl FromStr for AnyTicket {
    type Err = Error;

    fn from_str(text: &str) -> Result<AnyTicket> {
        let wire = read(text)?;
        if !wire.is_of_directory() {
            return wire.object().map(AnyTicket::Object);
        }
        Ok(AnyTicket::Directory(DirectoryTicket {
            protocol: wire.protocol,
            id: DirectoryId(*wire.oid.as_bytes()),
            secret: wire.secret()?,
            expires_unix_s: wire.expires_unix_s,
            hints: wire.hints()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    fn sample() -> DirectoryTicket {
        DirectoryTicket {
            protocol: 1,
            id: DirectoryId::from_bytes([9; 32]),
            secret: Some(Secret::from_bytes([5; 16])),
            expires_unix_s: Some(1_800_000_000),
            hints: vec![Hint {
                uri: "dray://192.0.2.7:4711".parse().unwrap(),
                node: Some(NodeId::from_bytes([7; 32])),
                priority: 0,
                weight: 1,
            }],
        }
    }

    /// Issue "daemon to daemon by ticket": the two sorts are told apart, and who wants an object hears what the ticket is for.
    #[test]
    fn a_ticket_of_a_directory_is_no_ticket_of_an_object() {
        let text = sample().to_text().unwrap();
        assert_eq!(text.parse::<AnyTicket>().unwrap(), AnyTicket::Directory(sample()));
        let public = DirectoryTicket { secret: None, expires_unix_s: None, ..sample() };
        assert_eq!(
            public.to_text().unwrap().parse::<AnyTicket>().unwrap(),
            AnyTicket::Directory(public.clone())
        );
        let error = text.parse::<Ticket>().unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("directory"), "{error}");
        let object = Ticket {
            protocol: 1,
            oid: Oid::of(b"x"),
            size_bytes: 1,
            secret: None,
            expires_unix_s: None,
            hints: Vec::new(),
            repeated_permille: 0,
        };
        assert_eq!(object.to_text().unwrap().parse::<AnyTicket>().unwrap(), AnyTicket::Object(object));
    }

    /// ADR 29: programs that know no such tickets read as far as the feature that it requires, which they name. What they read is written
    /// again here, as it was before there were any.
    #[test]
    fn older_programs_refuse_it_by_name() {
        let text = sample().to_text().unwrap();
        let bytes = data_encoding::BASE64URL_NOPAD.decode(&text.as_bytes()[5..]).unwrap();
        let mut decoder = minicbor::Decoder::new(&bytes[..bytes.len() - 4]);
        assert_eq!(decoder.map().unwrap(), Some(9));
        assert_eq!((decoder.u8().unwrap(), decoder.u16().unwrap()), (0, 1));
        assert_eq!((decoder.u8().unwrap(), decoder.u16().unwrap()), (1, 1));
        assert_eq!(decoder.u8().unwrap(), 2);
        assert!(Oid::from_encoded(decoder.bytes().unwrap()).is_ok());
        for key in 3..8 {
            assert_eq!(decoder.u8().unwrap(), key);
            decoder.skip().unwrap();
        }
        assert_eq!((decoder.u8().unwrap(), decoder.array().unwrap()), (8, Some(1)));
        assert_eq!(decoder.str().unwrap(), "live-tree");
    }

    /// `dray ls` shows ids, and `dray done` takes them: each form of one is read, and nothing else is.
    #[test]
    fn an_id_is_read_as_it_is_told() {
        let id = DirectoryId::from_bytes([0xab; 32]);
        assert_eq!(id.to_string().parse::<DirectoryId>().unwrap(), id);
        for bad in ["", "directory:", "directory:ab", &id.to_string()[10..], &format!("{id}00"), "blake3:00"]
        {
            let error = bad.parse::<DirectoryId>().unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.advice().is_some(), "{bad}");
        }
    }

    /// Golden vector: the text is what applications store.
    #[test]
    fn golden_ticket_of_a_directory() {
        assert_eq!(
            sample().to_text().unwrap(),
            concat!(
                "dray:qQABAQECWCEBCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkDAARQBQUFBQUFBQUFBQUFBQUFBQUaa0nSAAaBWCAHBwcHBwcH",
                "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBweBpAB1ZHJheTovLzE5Mi4wLjIuNzo0NzExAQACAAMBCIFpbGl2ZS10cmVlB0feUw"
            )
        );
    }
}
