//! Stands in for whoever shares a directory, and hands on what both sides say: so what a receiver says to a holder that is the real
//! program can be written down.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dray_core::frame::FRAME_HEAD_BYTES;
use dray_core::hint::HintUri;
use dray_core::ticket::DirectoryTicket;
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::direct::{Target, connect_any};
use dray_transfer::transport::{Channel, TlsChannel, TlsConfig};

use crate::Trace;
use crate::trace::proof_in;

/// Bytes that are handed on at a time.
const HANDED_ON_BYTES: usize = 64 * 1024;
/// How long each side in turn is waited for.
const TURN: Duration = Duration::from_millis(1);

/// Hands on what `near`, a receiver, and the first holder of `ticket` that answers say to each other, until one of them has no more
/// to say.
pub(crate) fn hand_on(
    mut near: TlsChannel,
    tls: &TlsConfig,
    ticket: &DirectoryTicket,
    trace: &Arc<Trace>,
) -> Result<()> {
    let mut listening = trace.connected(near.security().as_ref());
    let (mut far, _, _) = connect_any(tls, &targets_of(ticket), &|| false)?;
    let security = far.security();
    let proof = ticket
        .secret
        .zip(security)
        .map(|(secret, security)| *security.prove(&secret, tls.node(), &ticket.id.object()).as_bytes());
    let lost = |error: io::Error| Error::io("connection lost", error);
    let mut bytes = vec![0; HANDED_ON_BYTES];
    loop {
        let heard = near.try_read(&mut bytes).map_err(lost)?;
        for (head, mut body) in listening.hear(&bytes[..heard.unwrap_or(0)]).map_err(lost)? {
            // Bound to the receiver's connection with this node; the holder is shown one of this node's connection with it.
            if let (Some(shown), Some(proof)) = (proof_in(&mut body), proof) {
                if shown.len() != proof.len() {
                    return Err(Error::new(ErrorKind::Protocol, "the receiver showed no proof of 32 bytes"));
                }
                shown.copy_from_slice(&proof);
            }
            let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + body.len());
            frame.extend_from_slice(&head.encode());
            frame.extend_from_slice(&body);
            far.write_all(&frame).map_err(lost)?;
        }
        let answered = far.try_read(&mut bytes).map_err(lost)?;
        near.write_all(&bytes[..answered.unwrap_or(0)]).map_err(lost)?;
        match (heard, answered) {
            (Some(0), _) | (_, Some(0)) => return Ok(()),
            (None, None) => near.wait(None, TURN).map_err(lost)?,
            _ => {}
        }
    }
}

fn targets_of(ticket: &DirectoryTicket) -> Vec<Target> {
    let target = |hint: &dray_core::hint::Hint| match (&hint.uri, hint.node) {
        (HintUri::Dray { host, port }, Some(node)) => Some(Target {
            address: format!("{host}:{port}"),
            node,
            priority: hint.priority,
            allow_local: true,
        }),
        _ => None,
    };
    ticket.hints.iter().filter_map(target).collect()
}
