//! Hints: where an object may be had, with the selection rules of DNS SRV (D18, RFC 2782).

use std::fmt;
use std::str::FromStr;

use crate::limits::HINT_URI_BYTES_MAX;
use crate::oid::shorten;
use crate::{Error, ErrorKind, NodeId, Result};

/// One place where an object may be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// How and where, for example `dray://192.0.2.7:4711`.
    pub uri: HintUri,
    /// The node expected to answer there. Without it a `dray:` hint is refused: nothing would pin the peer.
    pub node: Option<NodeId>,
    /// Lower is tried first; the next priority only when every hint of this one has failed.
    pub priority: u16,
    /// Share among hints of equal priority; 0 means rarely.
    pub weight: u16,
}

impl Hint {
    /// A hint with priority 0 and weight 1.
    pub fn new(uri: HintUri, node: Option<NodeId>) -> Hint {
        Hint { uri, node, priority: 0, weight: 1 }
    }
}

/// Text of a hint given by a user: `dray://[NODE@]HOST:PORT`, where NODE is the node id in hex.
impl FromStr for Hint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Hint> {
        let Some(rest) = text.strip_prefix("dray://") else {
            return Ok(Hint::new(text.parse()?, None));
        };
        let Some((node, place)) = rest.split_once('@') else {
            return Ok(Hint::new(text.parse()?, None));
        };
        let node =
            node.parse::<NodeId>().map_err(|error| error.context(format!("hint {:?}", shorten(text))))?;
        Ok(Hint::new(format!("dray://{place}").parse()?, Some(node)))
    }
}

/// Method and place of a hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HintUri {
    /// `dray://host:port`: a node speaking the peer protocol over TCP + TLS.
    Dray {
        /// Host name, IPv4 address, or IPv6 address without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A method that this version does not have. Kept, so that a ticket can be passed on whole.
    Unknown(String),
}

impl HintUri {
    /// The method, for example `dray`.
    pub fn method(&self) -> &str {
        match self {
            HintUri::Dray { .. } => "dray",
            HintUri::Unknown(uri) => uri.split(':').next().unwrap_or(""),
        }
    }
}

impl fmt::Display for HintUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HintUri::Dray { host, port } if host.contains(':') => write!(f, "dray://[{host}]:{port}"),
            HintUri::Dray { host, port } => write!(f, "dray://{host}:{port}"),
            HintUri::Unknown(uri) => f.write_str(uri),
        }
    }
}

impl FromStr for HintUri {
    type Err = Error;

    fn from_str(text: &str) -> Result<HintUri> {
        let bad = |why: &str| {
            Error::new(ErrorKind::Usage, format!("hint {:?} {why}", shorten(text)))
                .advise("a hint looks like dray://host:port or dray://NODE@host:port")
        };
        if text.len() > HINT_URI_BYTES_MAX {
            return Err(bad("is longer than 255 bytes"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad("has spaces, control characters or non-ASCII characters"));
        }
        let (method, rest) = text.split_once(':').ok_or_else(|| bad("names no method"))?;
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        {
            return Err(bad("names no method"));
        }
        if method != "dray" {
            return Ok(HintUri::Unknown(text.to_owned()));
        }
        let place = rest.strip_prefix("//").ok_or_else(|| bad("lacks the // before the host"))?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = place.rsplit_once(':').ok_or_else(|| bad("names no port"))?;
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad("has a bad port"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                let inner = inner.strip_suffix(']').ok_or_else(|| bad("has an unclosed bracket"))?;
                inner.parse::<std::net::Ipv6Addr>().map_err(|_| bad("has a bad IPv6 address"))?;
                inner
            }
            None => host,
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(plain) {
            return Err(bad("has a bad host"));
        }
        if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(bad("has a bad host"));
        }
        Ok(HintUri::Dray { host: host.to_owned(), port })
    }
}

/// The order in which to try `hints`, as indices: ascending priority; inside a priority each next one is drawn with
/// probability proportional to its weight (RFC 2782). `draw(n)` returns a uniform number in `0..=n`.
pub fn selection_order(hints: &[Hint], mut draw: impl FnMut(u32) -> u32) -> Vec<usize> {
    let mut order = Vec::with_capacity(hints.len());
    let mut priorities: Vec<u16> = hints.iter().map(|hint| hint.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    for priority in priorities {
        let mut left: Vec<usize> =
            (0..hints.len()).filter(|index| hints[*index].priority == priority).collect();
        // RFC 2782: those of weight 0 stand first, so that a draw of 0 picks one of them.
        left.sort_by_key(|index| hints[*index].weight != 0);
        while !left.is_empty() {
            let total: u32 = left.iter().map(|index| u32::from(hints[*index].weight)).sum();
            let target = draw(total).min(total);
            let mut running = 0;
            let chosen = left.iter().position(|index| {
                running += u32::from(hints[*index].weight);
                running >= target
            });
            order.push(left.remove(chosen.unwrap_or(0)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(priority: u16, weight: u16) -> Hint {
        Hint { uri: HintUri::Dray { host: "h".into(), port: 1 }, node: None, priority, weight }
    }

    #[test]
    fn uris_round_trip() {
        for text in
            ["dray://host:1", "dray://192.0.2.1:65535", "dray://[2001:db8::1]:4711", "https://x/y?z", "dht:x"]
        {
            assert_eq!(text.parse::<HintUri>().unwrap().to_string(), text);
        }
        assert_eq!("dray://h:9/".parse::<HintUri>().unwrap().to_string(), "dray://h:9");
        let node = NodeId::from_bytes([7; 32]);
        let pinned: Hint = format!("dray://{node}@h:9").parse().unwrap();
        assert_eq!((pinned.node, pinned.uri.to_string()), (Some(node), "dray://h:9".to_string()));
    }

    #[test]
    fn bad_uris_are_named() {
        let long = format!("dray://{}:1", "h".repeat(300));
        for text in [
            "",
            "dray",
            "dray:",
            "dray://",
            "dray://h",
            "dray://h:",
            "dray://h:0",
            "dray://h:65536",
            "dray://:1",
            "dray://[::1:4",
            "dray://[x]:4",
            "dray://h h:1",
            "dray://h\n:1",
            "dray://ü:1",
            "://h:1",
            "dray://a:b:1",
            &long,
        ] {
            let error = text.parse::<HintUri>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
        }
        assert!("dray://77@h:1".parse::<Hint>().is_err());
    }

    /// D18: 10,000 draws match the weights within 3 points, and a later priority never comes first.
    #[test]
    fn draws_follow_the_weights() {
        let hints = [hint(1, 60), hint(1, 30), hint(1, 10), hint(2, 1000)];
        let mut state = 1u64;
        let mut first = [0u32; 4];
        for _ in 0..10_000 {
            let order = selection_order(&hints, |bound| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (((state >> 32) * (u64::from(bound) + 1)) >> 32) as u32
            });
            assert_eq!(order.len(), 4);
            assert_eq!(order[3], 3);
            first[order[0]] += 1;
        }
        for (count, weight) in first.iter().zip([60, 30, 10, 0]) {
            let percent = f64::from(*count) / 100.0;
            assert!((percent - f64::from(weight)).abs() < 3.0, "{first:?}");
        }
    }
}
