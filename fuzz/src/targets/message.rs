//! Target `message`: control messages of the peer protocol.

use dray_core::limits::CONTROL_FRAME_BYTES_MAX;
use dray_core::message::{Fault, Message, samples};
use dray_core::{ErrorKind, cbor};

use crate::{Seed, novelty};

/// What decodes encodes to one deterministic item within a frame's limit, which decodes to the same.
pub fn target(data: &[u8]) {
    if data.len() > CONTROL_FRAME_BYTES_MAX {
        return;
    }
    let message = match Message::from_bytes(data) {
        Ok(message) => message,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            return super::assert_clear(&error);
        }
    };
    novelty::note((std::mem::discriminant(&message), data.len().next_power_of_two()));
    let bytes = message.to_bytes();
    assert_eq!(cbor::check(&bytes), Ok(()));
    assert!(bytes.len() <= CONTROL_FRAME_BYTES_MAX);
    assert_eq!(Message::from_bytes(&bytes).as_ref().ok(), Some(&message));
    assert_eq!(Message::from_bytes(&bytes).map(|again| again.to_bytes()).ok(), Some(bytes));
    if let Message::Fault(fault) = message {
        let error = fault.to_error("peer");
        super::assert_clear(&error);
        // Told on to the next peer, it is again within the limits.
        let relayed = Message::Fault(Fault::from_error(fault.handle, &error.context("relay")));
        assert!(Message::from_bytes(&relayed.to_bytes()).is_ok());
    }
}

/// One of each message.
pub fn seeds() -> Vec<Seed> {
    samples().into_iter().map(|(name, message)| (name.to_owned(), message.to_bytes())).collect()
}
