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
    /// Of the bytes in both directions, those of ssh (port 22).
    pub ssh_bytes: u64,
}

impl Counters {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.received_bytes + self.sent_bytes
    }

    /// Bytes in both directions that ssh did not carry.
    pub fn other_bytes(&self) -> u64 {
        // Rules are counted one after the other.
        self.bytes().saturating_sub(self.ssh_bytes)
    }
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            received_bytes: self.received_bytes - earlier.received_bytes,
            received_packets: self.received_packets - earlier.received_packets,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            sent_packets: self.sent_packets - earlier.sent_packets,
            ssh_bytes: self.ssh_bytes - earlier.ssh_bytes,
        }
    }
}

const RULES: &str = r#"table inet e2e {
    counter received { }
    counter sent { }
    counter ssh { }
    chain in { type filter hook input priority -300; iifname "e0" counter name "received"; iifname "e0" tcp sport 22 counter name "ssh"; iifname "e0" tcp dport 22 counter name "ssh"; }
    chain out { type filter hook output priority 300; oifname "e0" counter name "sent"; oifname "e0" tcp sport 22 counter name "ssh"; oifname "e0" tcp dport 22 counter name "ssh"; }
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
            Some("ssh") => counters.ssh_bytes = number("bytes"),
            _ => {}
        }
    }
    counters
}
