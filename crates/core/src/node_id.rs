//! Node id: the ed25519 public key a node proves in every TLS handshake.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::{Error, ErrorKind};

/// DER prefix of an ed25519 SubjectPublicKeyInfo (RFC 8410 §4); the 32 bytes of the key follow.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Public key of a node; its text is 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId([u8; 32]);

impl NodeId {
    /// The node whose ed25519 public key is `key`.
    pub const fn from_bytes(key: [u8; 32]) -> NodeId {
        NodeId(key)
    }

    /// The 32 bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The raw public key as TLS carries it (RFC 7250): a 44-byte SubjectPublicKeyInfo.
    pub fn to_spki(&self) -> [u8; 44] {
        let mut spki = [0; 44];
        spki[..12].copy_from_slice(&SPKI_PREFIX);
        spki[12..].copy_from_slice(&self.0);
        spki
    }

    /// The node of a SubjectPublicKeyInfo, if that is an ed25519 key.
    pub fn from_spki(spki: &[u8]) -> Option<NodeId> {
        let key = spki.strip_prefix(&SPKI_PREFIX[..])?;
        Some(NodeId(key.try_into().ok()?))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", &data_encoding::HEXLOWER.encode(&self.0)[..16])
    }
}

impl FromStr for NodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<NodeId, Error> {
        let mut key = [0; 32];
        let decoded = text.len() == 64
            && data_encoding::HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut key).is_ok();
        if decoded {
            Ok(NodeId(key))
        } else {
            Err(Error::new(
                ErrorKind::Usage,
                format!("node id {:?} is not 64 hex digits", crate::oid::shorten(text)),
            ))
        }
    }
}

impl<C> Encode<C> for NodeId {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for NodeId {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<NodeId, minicbor::decode::Error> {
        let key = d.bytes()?.try_into();
        key.map(NodeId).map_err(|_| minicbor::decode::Error::message("a node id has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spki_and_text_round_trip() {
        let node = NodeId::from_bytes(*blake3::hash(b"node").as_bytes());
        assert_eq!(NodeId::from_spki(&node.to_spki()), Some(node));
        assert_eq!(node.to_string().parse::<NodeId>().unwrap(), node);
        assert_eq!(NodeId::from_spki(&node.to_spki()[..43]), None);
        assert!("00".parse::<NodeId>().is_err());
    }
}
