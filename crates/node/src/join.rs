//! Joining a ticket: sharing an object that somebody else shares, too, under the secret of that ticket, so that one ticket
//! names all who have it ([ADR 6](../../../docs/adr/0006-one-source-for-each-holder.md)).

use dray_core::hint::Hint;
use dray_core::limits::HINTS_MAX;
use dray_core::message::PROTOCOL_VERSION;
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Oid, Result};

use crate::put::unix_s;

/// Refuses a ticket under which nothing can be shared, before anything is hashed. `size_bytes` is that of the file, if
/// known.
pub(crate) fn check(ticket: &Ticket, size_bytes: Option<u64>) -> Result<()> {
    check_version(ticket.protocol)?;
    if ticket.expires_unix_s.is_some_and(|end| end <= unix_s()) {
        return Err(Error::new(ErrorKind::Refused, "the ticket has expired").advise("ask for a new one"));
    }
    match size_bytes.filter(|size_bytes| *size_bytes != ticket.size_bytes) {
        Some(size_bytes) => Err(another_object(format_args!(
            "it has {size_bytes} bytes, and the ticket's object {}",
            ticket.size_bytes
        ))),
        None => Ok(()),
    }
}

/// Refuses a ticket whose sender speaks another version of the protocol.
pub(crate) fn check_version(protocol: u16) -> Result<()> {
    if protocol != PROTOCOL_VERSION {
        let what = format!(
            "the ticket's sender speaks version {protocol} of the protocol, this dray speaks {PROTOCOL_VERSION}"
        );
        return Err(
            Error::new(ErrorKind::Unsupported, what).advise("install the same version of dray at both ends")
        );
    }
    Ok(())
}

/// Refuses an object that is not the ticket's.
pub(crate) fn check_object(ticket: &Ticket, oid: &Oid) -> Result<()> {
    if *oid == ticket.oid {
        return Ok(());
    }
    Err(another_object(format_args!("it is {oid}, and the ticket's object {}", ticket.oid)))
}

fn another_object(why: std::fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::VerificationFailed, format!("the file is not what the ticket is for: {why}"))
        .advise("share it with a ticket of its own: leave --ticket out")
}

/// The ticket with our own hints in it, and how many hints found no room. Each holder keeps one hint before any has two;
/// ours, of which there is at least one, come first.
pub(crate) fn join(ticket: &Ticket, own: Vec<Hint>) -> Result<(Ticket, usize)> {
    let is_own = |hint: &Hint| own.iter().any(|other| other.node == hint.node);
    let mut holders: Vec<Vec<Hint>> = vec![own.clone()];
    for hint in ticket.hints.iter().filter(|hint| !is_own(hint)) {
        match holders.iter_mut().find(|known| known.iter().any(|other| other.node == hint.node)) {
            Some(known) => known.push(hint.clone()),
            None => holders.push(vec![hint.clone()]),
        }
    }
    let rounds = holders.iter().map(Vec::len).max().unwrap_or(0);
    let hints: Vec<Hint> = (0..rounds)
        .flat_map(|round| holders.iter().filter_map(move |hints| hints.get(round)))
        .cloned()
        .collect();
    let all = hints.len();
    let mut joined = Ticket { hints, ..ticket.clone() };
    joined.hints.truncate(HINTS_MAX);
    // Long host names leave room for fewer.
    while joined.hints.len() > 1 && joined.to_text().is_err() {
        joined.hints.pop();
    }
    joined.to_text()?;
    let left_out = all - joined.hints.len();
    Ok((joined, left_out))
}

#[cfg(test)]
mod tests {
    use dray_core::NodeId;
    use dray_core::hint::HintUri;
    use dray_core::rights::Secret;

    use super::*;

    fn hint(node: u8, host: &str) -> Hint {
        let uri = HintUri::Dray { host: host.into(), port: 4711 };
        Hint::new(uri, Some(NodeId::from_bytes([node; 32])))
    }

    fn ticket(hints: Vec<Hint>) -> Ticket {
        Ticket {
            protocol: PROTOCOL_VERSION,
            oid: Oid::of(b"x"),
            size_bytes: 1,
            secret: Some(Secret::from_bytes([3; 16])),
            expires_unix_s: None,
            hints,
            repeated_permille: 0,
        }
    }

    fn hosts(ticket: &Ticket) -> Vec<String> {
        ticket
            .hints
            .iter()
            .map(|hint| hint.uri.to_string().replace("dray://", "").replace(":4711", ""))
            .collect()
    }

    /// D40: one ticket names every holder; our own former hints in it are replaced.
    #[test]
    fn every_holder_keeps_a_hint_before_any_has_two() {
        let given = ticket(vec![hint(1, "a1"), hint(1, "a2"), hint(2, "b1"), hint(9, "old")]);
        let (joined, left_out) = join(&given, vec![hint(9, "own1"), hint(9, "own2")]).unwrap();
        assert_eq!(hosts(&joined), ["own1", "a1", "b1", "own2", "a2"]);
        assert_eq!((left_out, joined.secret, joined.oid), (0, given.secret, given.oid));
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let given = ticket((1..=8).flat_map(|node| [hint(node, "x"), hint(node, "y")]).collect());
        let (joined, left_out) = join(&given, vec![hint(9, "own")]).unwrap();
        assert_eq!((joined.hints.len(), left_out), (8, 9));
        assert_eq!(hosts(&joined)[0], "own");
        let long = "h".repeat(240);
        let given = ticket((1..=7).map(|node| hint(node, &long)).collect());
        let (joined, left_out) = join(&given, vec![hint(9, "own")]).unwrap();
        assert!(joined.to_text().is_ok() && joined.hints.len() > 1);
        assert_eq!(joined.hints.len() + left_out, 8);
    }

    #[test]
    fn what_cannot_be_joined_is_refused() {
        let mut given = ticket(vec![hint(1, "a")]);
        assert!(check(&given, Some(1)).is_ok() && check(&given, None).is_ok());
        assert_eq!(check(&given, Some(2)).unwrap_err().kind(), ErrorKind::VerificationFailed);
        assert_eq!(check_object(&given, &Oid::of(b"y")).unwrap_err().kind(), ErrorKind::VerificationFailed);
        given.expires_unix_s = Some(unix_s() - 1);
        assert_eq!(check(&given, Some(1)).unwrap_err().kind(), ErrorKind::Refused);
        given.protocol += 1;
        assert_eq!(check(&given, Some(1)).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
