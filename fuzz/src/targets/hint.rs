//! Target `hint`: hints and their URIs as a user types them or a ticket carries them (D18).

use dray_core::hint::{Hint, HintUri};
use dray_core::limits::HINT_URI_BYTES_MAX;
use dray_core::{ErrorKind, NodeId};

use crate::{Seed, novelty};

/// What the parser looks for.
pub const WORDS: &[&str] = &[
    "dray:", "//", "@", ":", "[", "]", "/", "::", "0", "+", "65535", "65536", "%", "a", ".", "\n", "\u{e9}",
];

/// What is accepted prints as something that is accepted and means the same.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<HintUri>() {
        Ok(uri) => {
            let printed = uri.to_string();
            novelty::note((uri.method().len().min(8), printed.contains('['), printed == text));
            assert!(text.len() <= HINT_URI_BYTES_MAX);
            assert!(printed.bytes().all(|byte| byte.is_ascii_graphic()), "{printed:?}");
            assert_eq!(printed.parse::<HintUri>().ok().as_ref(), Some(&uri), "{printed:?}");
            if let HintUri::Dray { host, port } = &uri {
                assert!(!host.is_empty() && *port != 0);
                assert!(!host.contains(['[', ']', '@', '/']), "{host:?}");
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Usage);
            super::assert_clear(&error);
        }
    }
    match text.parse::<Hint>() {
        Ok(hint) => novelty::note(("hint", hint.node.is_some())),
        Err(error) => super::assert_clear(&error),
    }
}

/// One of each form.
pub fn seeds() -> Vec<Seed> {
    let node = NodeId::from_bytes([0x44; 32]);
    vec![
        ("name".into(), b"dray://host.example:4711".to_vec()),
        ("ipv4".into(), b"dray://192.0.2.1:65535/".to_vec()),
        ("ipv6".into(), b"dray://[2001:db8::1]:4711".to_vec()),
        ("bare-ipv6".into(), b"dray://2001:db8::1:4711".to_vec()),
        ("pinned".into(), format!("dray://{node}@h:9").into()),
        ("unknown-method".into(), b"https://x/y?z".to_vec()),
        ("no-port".into(), b"dray://host".to_vec()),
    ]
}
