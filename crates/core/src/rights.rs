//! Rights: a name is not a right (design decision 14). A private object has a secret; a client proves that it knows
//! it and never sends it.

use std::fmt;

use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::NodeId;
use crate::message::ObjectName;

/// BLAKE3 key-derivation context of the proof. Changing it changes the protocol.
const PROOF_CONTEXT: &str = "drayman 2026-11-21 peer protocol 1: proof of a ticket secret";

/// Secret of a private object, 16 random bytes. Shown by nothing: not by `Debug`, not by an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// A secret from random bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, for a ticket or a record.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl<C> Encode<C> for Secret {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Secret {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Secret, minicbor::decode::Error> {
        let bytes = d.bytes()?.try_into();
        bytes.map(Secret).map_err(|_| minicbor::decode::Error::message("a secret has 16 bytes"))
    }
}

/// Proof that a receiver knows the secret of an object, valid on one TLS connection only.
#[derive(Clone, Copy)]
pub struct Proof([u8; 32]);

/// Everything a proof is bound to, so that it cannot be replayed elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct ProofContext {
    /// Keying material exported from this connection (RFC 8446 §7.5, label `EXPORTER-drayman-proof`).
    pub exporter: [u8; 32],
    /// Node that holds the bytes.
    pub holder: NodeId,
    /// Node that asks for them.
    pub receiver: NodeId,
}

/// TLS exporter label of [`ProofContext::exporter`].
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-drayman-proof";

impl Proof {
    /// MAC over the connection, both nodes, the object and the byte range `start..end` asked for (`u64::MAX` as end:
    /// all of it).
    pub fn new(
        secret: &Secret,
        context: &ProofContext,
        object: &ObjectName,
        range: std::ops::Range<u64>,
    ) -> Proof {
        let key = blake3::derive_key(PROOF_CONTEXT, &secret.0);
        let mut mac = blake3::Hasher::new_keyed(&key);
        mac.update(&context.exporter);
        mac.update(context.holder.as_bytes());
        mac.update(context.receiver.as_bytes());
        mac.update(&object.to_encoded());
        mac.update(&range.start.to_be_bytes());
        mac.update(&range.end.to_be_bytes());
        Proof(*mac.finalize().as_bytes())
    }

    /// The 32 bytes that travel.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// True if `received` is this proof; takes the same time whether or not it is.
    pub fn matches(&self, received: &[u8]) -> bool {
        <[u8; 32]>::try_from(received)
            .is_ok_and(|received| blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(received))
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Oid;

    /// Design 14: the proof depends on every one of its inputs.
    #[test]
    fn proof_is_bound_to_everything() {
        let secret = Secret::from_bytes([1; 16]);
        let context = ProofContext {
            exporter: [2; 32],
            holder: NodeId::from_bytes([3; 32]),
            receiver: NodeId::from_bytes([4; 32]),
        };
        let object = ObjectName::Oid(Oid::of(b"x"));
        let proof = Proof::new(&secret, &context, &object, 0..u64::MAX);
        assert!(proof.matches(proof.as_bytes()));
        let others = [
            Proof::new(&Secret::from_bytes([9; 16]), &context, &object, 0..u64::MAX),
            Proof::new(&secret, &ProofContext { exporter: [9; 32], ..context }, &object, 0..u64::MAX),
            Proof::new(&secret, &ProofContext { holder: context.receiver, ..context }, &object, 0..u64::MAX),
            Proof::new(&secret, &ProofContext { receiver: context.holder, ..context }, &object, 0..u64::MAX),
            Proof::new(&secret, &context, &ObjectName::Oid(Oid::of(b"y")), 0..u64::MAX),
            Proof::new(&secret, &context, &object, 0..1),
            Proof::new(&secret, &context, &object, 1..u64::MAX),
        ];
        for other in others {
            assert!(!proof.matches(other.as_bytes()));
        }
        assert!(!proof.matches(&proof.as_bytes()[..31]));
        assert_eq!(format!("{secret:?}{proof:?}"), "Secret(…)Proof(…)");
    }

    /// Golden vector: the bytes are wire format.
    #[test]
    fn golden_proof() {
        let context = ProofContext {
            exporter: [2; 32],
            holder: NodeId::from_bytes([3; 32]),
            receiver: NodeId::from_bytes([4; 32]),
        };
        let proof =
            Proof::new(&Secret::from_bytes([1; 16]), &context, &ObjectName::Oid(Oid::of(b"")), 0..u64::MAX);
        assert_eq!(
            data_encoding::HEXLOWER.encode(proof.as_bytes()),
            "59ab790f625554b1b544cae8a701c397e3c0ea7b16d0c654bd70cfd9597734ec"
        );
    }
}
