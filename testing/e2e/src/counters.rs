//! Packet and byte counters of a host's network device, kept by nftables: a witness of what crossed the wire that
//! neither end can talk to.

use crate::lab::{Host, run_tool};

/// What one device carried since the lab stands. Bytes are those of IP packets, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that came in.
    pub received_bytes: u64,
    /// Packets that came in.
    pub received_packets: u64,
    /// Bytes that went out.
    pub sent_bytes: u64,
    /// Packets that went out.
    pub sent_packets: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            received_bytes: self.received_bytes - earlier.received_bytes,
            received_packets: self.received_packets - earlier.received_packets,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            sent_packets: self.sent_packets - earlier.sent_packets,
        }
    }
}

const RULES: &str = r#"table inet e2e {
    counter received { }
    counter sent { }
    chain in { type filter hook input priority -300; iifname "e0" counter name "received"; }
    chain out { type filter hook output priority 300; oifname "e0" counter name "sent"; }
}"#;

/// Starts counting in the namespace.
pub(crate) fn install(namespace: &str) {
    run_tool(&["ip", "netns", "exec", namespace, "nft", RULES]);
}

/// Reads the counters of `host`.
pub(crate) fn read(host: &Host) -> Counters {
    let text = run_tool(&[
        "ip",
        "netns",
        "exec",
        host.namespace(),
        "nft",
        "-j",
        "list",
        "counters",
        "table",
        "inet",
        "e2e",
    ]);
    let json: serde_json::Value = serde_json::from_slice(&text).expect("nft prints JSON");
    let mut counters = Counters::default();
    for entry in json["nftables"].as_array().expect("nft prints a list") {
        let counter = &entry["counter"];
        let number = |key: &str| counter[key].as_u64().unwrap_or(0);
        match counter["name"].as_str() {
            Some("received") => {
                (counters.received_bytes, counters.received_packets) = (number("bytes"), number("packets"));
            }
            Some("sent") => {
                (counters.sent_bytes, counters.sent_packets) = (number("bytes"), number("packets"))
            }
            _ => {}
        }
    }
    counters
}
