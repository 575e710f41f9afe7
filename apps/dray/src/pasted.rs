//! Tickets and object ids as they come out of chats, mails and terminals: in brackets or quotes, with a full stop
//! behind them, broken over lines.

use dray_core::hint::{Hint, HintUri};
use dray_core::ticket::{AnyTicket, DirectoryId, DirectoryTicket, TICKET_PREFIX, Ticket};
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
    let advice = if text.contains("://") {
        "copy the whole line that `dray put` printed; URLs are not fetched"
    } else if text.contains(':') {
        "copy the whole line that `dray put` printed; `dray cp HOST:FILE DST` fetches over ssh"
    } else {
        "copy the whole line that `dray put` printed; where a daemon runs, `dray ls` has the ids of what it shares"
    };
    Err(Error::new(ErrorKind::Usage, "that is neither a ticket (dray:…) nor an object id (blake3:…)")
        .advise(advice))
}

/// The ticket of a directory; `None` if it is one of an object, or none.
pub(crate) fn directory(text: &str) -> Result<Option<DirectoryTicket>> {
    let plain = unwrap(text);
    if !plain.starts_with(TICKET_PREFIX) {
        return Ok(None);
    }
    Ok(match plain.parse()? {
        AnyTicket::Directory(ticket) => Some(ticket),
        AnyTicket::Object(_) => None,
    })
}

/// The directory that a ticket is for, or that is named by its id; `None` if it is neither.
pub(crate) fn directory_id(text: &str) -> Result<Option<DirectoryId>> {
    let plain = unwrap(text);
    if plain.starts_with("directory:") {
        return plain.parse().map(Some);
    }
    Ok(directory(text)?.map(|ticket| ticket.id))
}

/// True for what can hardly be anything but a ticket, or the first part of one, where a host called `dray` may be meant, too.
pub(crate) fn may_be_ticket(text: &str) -> bool {
    /// Fewer characters than any ticket has.
    const CHARS_MIN: usize = 60;
    /// What all of them have behind the number of their fields: versions of ticket and protocol.
    const BEGINNING: &str = "ABAQEC";
    let plain = unwrap(text);
    let rest = plain.strip_prefix(TICKET_PREFIX).unwrap_or_default();
    // A path, as advice has it written.
    let is_path = text.starts_with(['.', '/']);
    !is_path
        && (rest.len() >= CHARS_MIN || rest.get(2..).is_some_and(|rest| rest.starts_with(BEGINNING)))
        && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The ticket to join.
pub(crate) fn ticket(text: &str) -> Result<Ticket> {
    unwrap(text).parse()
}

/// A further place to ask: only a hint that names the node can be followed.
pub(crate) fn hint(text: &str) -> Result<Hint> {
    const FORM: &str =
        "write dray://NODE@host:port; the holder's `dray doctor` prints its NODE, 64 hex digits";
    let bad = |what: String| Error::new(ErrorKind::Usage, what).advise(FORM);
    let hint: Hint = text.trim().parse().map_err(|error: Error| bad(error.to_string()))?;
    match (&hint.uri, hint.node) {
        (HintUri::Dray { .. }, Some(_)) => Ok(hint),
        (HintUri::Dray { .. }, None) => Err(bad(format!("hint {text:?} names no node"))),
        (HintUri::Unknown(_), _) => Err(bad(format!("hint {text:?} does not begin with dray://"))),
    }
}

/// An object id, with or without the name of its algorithm.
pub(crate) fn oid(text: &str) -> Result<Oid> {
    let plain = unwrap(text);
    if plain.starts_with(TICKET_PREFIX)
        && let Ok(ticket) = plain.parse::<Ticket>()
    {
        let what = format!("that is a ticket: its object id is {}", ticket.oid);
        return Err(Error::new(ErrorKind::Usage, what).advise("give that id instead"));
    }
    // As long as it is nothing but digits, it is a hash, of whatever length.
    let is_bare = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_bare { format!("blake3:{plain}").parse() } else { plain.parse() }
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
            repeated_permille: 0,
        }
    }

    /// Half a ticket is none of a host called `dray`: whatever of it is left, and whatever stands behind that.
    #[test]
    fn a_part_of_a_ticket_is_known_as_one() {
        let id: DirectoryId = format!("directory:{}", "07".repeat(32)).parse().unwrap();
        let shared =
            DirectoryTicket { protocol: 1, id, secret: None, expires_unix_s: None, hints: Vec::new() };
        let secret = Some(dray_core::rights::Secret::from_bytes([9; 16]));
        let private = Ticket { secret, expires_unix_s: Some(1), repeated_permille: 3, ..ticket() };
        for whole in [ticket().to_text().unwrap(), private.to_text().unwrap(), shared.to_text().unwrap()] {
            for len in 13..whole.len() {
                assert!(may_be_ticket(&whole[..len]), "{}", &whole[..len]);
                assert!(may_be_ticket(&format!("{}...", &whole[..len])));
                assert!(directory(&whole[..len]).is_err());
            }
            assert!(!may_be_ticket(&format!("./{whole}")));
        }
        for path in
            ["dray:backup", "dray:ABAQEC", "dray:my_backup_of_everything_2026", "dray:/srv/pwABAQEC", "dray:"]
        {
            assert!(!may_be_ticket(path), "{path}");
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

    /// A hint is followed only to the node that it names: every other form is answered with the one that works.
    #[test]
    fn a_hint_names_its_node() {
        let node = "7".repeat(64);
        assert!(hint(&format!("dray://{node}@192.0.2.1:5")).is_ok());
        for bad in [
            "192.0.2.1:5",
            "localhost:5",
            "dray://192.0.2.1:5",
            "dray://nonode@h:1",
            "dray://@h:1",
            "nonode@h:1",
        ] {
            let error = hint(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
            assert!(error.advice().unwrap().contains("dray://NODE@host:port"), "{bad}");
        }
    }

    /// Where an object id is wanted, a ticket is answered with the id in it.
    #[test]
    fn the_id_in_a_ticket_is_told() {
        let error = oid(&ticket().to_text().unwrap()).unwrap_err();
        assert!(error.to_string().contains(&Oid::of(b"pasted").to_string()), "{error}");
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
        assert!(oid("1234").unwrap_err().to_string().contains("has 4 digits, not 64"));
        // What is wrong with a ticket is said in words, not in those of base64.
        assert!(wanted("dray:xyz").unwrap_err().to_string().contains("missing or changed at its end"));
        assert!(wanted("dray:x!yz").unwrap_err().to_string().contains("character 7 is none"));
    }
}
