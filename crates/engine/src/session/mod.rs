//! State machines of the peer protocol (`docs/protocol/peer.md`), one for each role of a connection.
//!
//! They see frame heads and control messages and say what may follow; bulk bytes never pass through them, so the
//! transport reads straight into the buffer where a group is proven. Every rule that a hostile peer could break is
//! enforced here: order, lengths, counts.

mod holder;
mod receiver;
mod tree;

pub use holder::{Holder, HolderInput, Job};
pub use receiver::{Body, Piece, Receiver, ReceiverInput};
pub use tree::{Owed, PathId, Rest, TreeLanes, TreeReceiver, TreeSender, TreeSent, Wanted, part_bytes};

use dray_core::message::{Hello, PROTOCOL_VERSION};
use dray_core::{Error, ErrorKind, Result};

/// What both sides agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Features that both sides have, ascending.
    pub features: Vec<String>,
    /// The peer's program and version, printable characters only.
    pub agent: String,
}

impl Negotiated {
    /// True if both sides have `feature`.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }
}

/// Compares two hellos: same version, every required feature known to the other; the common features are used (D37).
pub fn negotiate(ours: &Hello, theirs: &Hello) -> Result<Negotiated> {
    if ours.version != theirs.version {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "peer speaks version {} of the protocol, this dray speaks {PROTOCOL_VERSION}",
                theirs.version
            ),
        )
        .advise("install the same version of dray at both ends"));
    }
    let missing =
        |required: &[String], have: &[String]| required.iter().find(|name| !have.contains(name)).cloned();
    if let Some(feature) = missing(&theirs.required, &ours.features) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("peer needs the feature {feature:?}, which this dray lacks"),
        )
        .advise("install a newer dray here, or change the peer's configuration"));
    }
    if let Some(feature) = missing(&ours.required, &theirs.features) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("peer lacks the feature {feature:?}, which is required here"),
        )
        .advise("install a newer dray there, or change the configuration here"));
    }
    let mut features: Vec<String> =
        ours.features.iter().filter(|name| theirs.features.contains(name)).cloned().collect();
    features.sort();
    features.dedup();
    let agent = dray_core::text::one_line(&theirs.agent);
    Ok(Negotiated { features, agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: u16, features: &[&str], required: &[&str]) -> Hello {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Hello { version, features: list(features), required: list(required), agent: "test\n/1".into() }
    }

    /// D37: two versions fall back to the common subset; what cannot be had is refused by name.
    #[test]
    fn common_subset_or_a_named_refusal() {
        let agreed = negotiate(&hello(1, &["b", "a"], &[]), &hello(1, &["c", "b"], &[])).unwrap();
        assert_eq!(agreed.features, ["b"]);
        assert!(agreed.has("b") && !agreed.has("a"));
        assert_eq!(agreed.agent, "test /1");
        let version = negotiate(&hello(1, &[], &[]), &hello(2, &[], &[])).unwrap_err();
        assert_eq!(version.kind(), ErrorKind::Unsupported);
        assert!(version.to_string().contains("version 2"));
        for (ours, theirs) in
            [(hello(1, &[], &[]), hello(1, &[], &["zip"])), (hello(1, &[], &["zip"]), hello(1, &[], &[]))]
        {
            let error = negotiate(&ours, &theirs).unwrap_err();
            assert!(error.to_string().contains("zip"), "{error}");
        }
    }
}
