//! Tickets and object ids as they come out of chats, mails and terminals: in brackets or quotes, with a full stop
//! behind them, broken over lines.

use dray_core::ticket::{TICKET_PREFIX, Ticket};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_node::Wanted;

/// Digits of a BLAKE3 hash, as `b3sum` prints them.
const HASH_DIGITS: usize = 64;

/// What `get` was asked for.
pub(crate) fn wanted(text: &str) -> Result<Wanted> {
    let plain = unwrap(text);
    if plain.starts_with(TICKET_PREFIX) {
        return Ok(Wanted::Ticket(plain.parse::<Ticket>()?));
    }
    if is_hash(&plain) || ["blake3:", "md5:", "sha1:"].iter().any(|prefix| plain.starts_with(prefix)) {
        return Ok(Wanted::Oid(oid(&plain)?));
    }
    Err(Error::new(ErrorKind::Usage, "that is neither a ticket (dray:…) nor an object id (blake3:…)")
        .advise("copy the whole line that `dray put` printed"))
}

/// The ticket to join.
pub(crate) fn ticket(text: &str) -> Result<Ticket> {
    unwrap(text).parse()
}

/// An object id, with or without the name of its algorithm.
pub(crate) fn oid(text: &str) -> Result<Oid> {
    let plain = unwrap(text);
    if is_hash(&plain) { format!("blake3:{plain}").parse() } else { plain.parse() }
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Without what stands around it and white space within: no ticket or id has either, and checksums tell if more than
/// that was lost.
fn unwrap(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let inner =
        text.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).trim_end_matches(|c| !is_part(c));
    inner.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            protocol: 1,
            oid: Oid::of(b"pasted"),
            size_bytes: 6,
            secret: None,
            expires_unix_s: None,
            hints: Vec::new(),
        }
    }

    /// Design 1: a ticket travels over the applications' own channels, which put things around it.
    #[test]
    fn what_stands_around_a_ticket_does_not_matter() {
        let text = ticket().to_text().unwrap();
        let (head, tail) = text.split_at(40);
        for pasted in [
            text.clone(),
            format!("<{text}>"),
            format!("'{text}'"),
            format!("`{text}`."),
            format!("\u{201c}{text}\u{201d},"),
            format!(" ({text})\n"),
            format!("{head}\r\n  {tail}"),
        ] {
            assert_eq!(super::ticket(&pasted).unwrap(), ticket());
            match wanted(&pasted) {
                Ok(Wanted::Ticket(found)) => assert_eq!(found, ticket()),
                other => panic!("{pasted:?}: {other:?}"),
            }
        }
        // What is missing stays missing.
        assert!(wanted(&text[..text.len() - 1]).is_err());
        assert!(wanted(head).is_err() && wanted("").is_err() && wanted("<>").is_err());
    }

    /// The 64 digits that b3sum prints are enough.
    #[test]
    fn a_bare_hash_is_an_object_id() {
        let expected = Oid::of(b"pasted");
        for text in
            [expected.to_string(), expected.hex(), expected.hex().to_uppercase(), format!("<{expected}>")]
        {
            assert_eq!(oid(&text).unwrap(), expected, "{text}");
        }
        assert!(matches!(wanted(&expected.hex()), Ok(Wanted::Oid(found)) if found == expected));
        for bad in ["", "0000", &expected.hex()[1..]] {
            assert_eq!(oid(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
