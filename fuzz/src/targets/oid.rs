//! Target `oid`: object ids as text and as bytes (D5), and node ids, which have the same form without a name.

use dray_core::{ErrorKind, NodeId, Oid};

use crate::{Seed, novelty};

/// What the parser looks for.
pub const WORDS: &[&str] =
    &["blake3:", "md5:", "sha1:", "blake4:", ":", "0", "af", "AF", "\u{e9}", "\u{1b}[0m"];

/// What is accepted prints as itself; what is not is refused with a line that says why.
pub fn target(data: &[u8]) {
    if let Ok(oid) = Oid::from_encoded(data) {
        assert_eq!(oid.to_encoded(), data, "binary form");
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Oid>() {
        Ok(oid) => {
            novelty::note("accepted");
            assert_eq!(oid.to_string(), text.to_ascii_lowercase());
            assert_eq!(Oid::from_encoded(&oid.to_encoded()).ok(), Some(oid));
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Usage | ErrorKind::Refused | ErrorKind::Unsupported));
            super::assert_clear(&error);
        }
    }
    match text.parse::<NodeId>() {
        Ok(node) => {
            novelty::note("node");
            assert_eq!(node.to_string(), text.to_ascii_lowercase());
            assert_eq!(NodeId::from_spki(&node.to_spki()), Some(node));
        }
        Err(error) => super::assert_clear(&error),
    }
    let _ = NodeId::from_spki(data);
}

/// Good ids and the refusals of D5.
pub fn seeds() -> Vec<Seed> {
    let oid = Oid::of(b"sample");
    vec![
        ("text".into(), oid.to_string().into()),
        ("upper-case".into(), format!("blake3:{}", oid.hex().to_uppercase()).into()),
        ("binary".into(), oid.to_encoded().into()),
        ("node".into(), NodeId::from_bytes([0x44; 32]).to_string().into()),
        ("spki".into(), NodeId::from_bytes([0x44; 32]).to_spki().into()),
        ("md5".into(), b"md5:d41d8cd98f00b204e9800998ecf8427e".to_vec()),
        ("unknown-algorithm".into(), b"blake4:00".to_vec()),
    ]
}
