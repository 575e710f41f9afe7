//! TCP connections between two hosts, as the kernel lists them, and an end to one of them (`ss -K`).

use std::fs::File;
use std::io::{Read, Seek};
use std::process::Command;

use crate::gate;
use crate::lab::Host;

/// Port of an sshd, of which the other end is an ssh.
const SSH: u16 = 22;
/// How the kernel calls an established connection in its tables.
const ESTABLISHED: &str = "01";

/// A connection between two hosts: the port of each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Connection([u16; 2]);

impl Connection {
    /// Whether it is one of ssh.
    pub(crate) fn is_ssh(self) -> bool {
        self.0.contains(&SSH)
    }
}

/// The connections between two hosts.
#[derive(Debug)]
pub(crate) struct Connections<'a> {
    hosts: [&'a Host; 2],
    /// The tables of each, for IPv4 and IPv6. An open one stays that of the namespace in which it was opened.
    tables: [Vec<File>; 2],
}

impl<'a> Connections<'a> {
    pub(crate) fn between(hosts: [&'a Host; 2]) -> Connections<'a> {
        let open = |host: &Host| {
            let tables = || ["tcp", "tcp6"].map(|name| File::open(format!("/proc/thread-self/net/{name}")));
            // Without IPv6 there is no table of it.
            let tables: Vec<File> = host.enter(tables).into_iter().flatten().collect();
            assert!(!tables.is_empty(), "the kernel has no table of connections");
            tables
        };
        Connections { hosts, tables: hosts.map(open) }
    }

    /// Those that are established at both ends: one that only one end still believes in can not be shut.
    pub(crate) fn now(&self) -> Vec<Connection> {
        let near = established(&self.tables[0]);
        if near.is_empty() {
            return Vec::new();
        }
        let far = established(&self.tables[1]);
        let mut both: Vec<_> = near.into_iter().filter(|&[own, other]| far.contains(&[other, own])).collect();
        both.sort_unstable();
        both.into_iter().map(Connection).collect()
    }

    /// Shuts a connection at the end that is at host `at`, 0 or 1, so that the other end is told; false if it has ended by itself.
    pub(crate) fn shut(&self, connection: Connection, at: usize) -> bool {
        let ss = gate::find_tool("ss").expect("ss is installed");
        let [own, other] = [connection.0[at], connection.0[1 - at]].map(|port| format!(":{port}"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.hosts[at].namespace()]).arg(ss);
        command.args(["-H", "-K", "-t", "-n", "state", "established"]);
        command.args(["sport", "=", &own, "and", "dport", "=", &other]);
        let output = command.output().expect("run ss");
        assert!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
        // It lists what it has shut; a kernel that cannot shut lists nothing at all.
        String::from_utf8_lossy(&output.stdout).contains(&other)
    }
}

/// Own and other port of the established connections in `tables`.
fn established(tables: &[File]) -> Vec<[u16; 2]> {
    let mut all = Vec::new();
    for mut table in tables {
        let mut text = String::new();
        table.rewind().and_then(|()| table.read_to_string(&mut text)).expect("read a table of connections");
        all.extend(text.lines().filter_map(ports));
    }
    all
}

/// Own and other port in a line of a table, if it is that of an established connection.
fn ports(line: &str) -> Option<[u16; 2]> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let mut port = || u16::from_str_radix(words.next()?.rsplit_once(':')?.1, 16).ok();
    let ports = [port()?, port()?];
    (words.next()? == ESTABLISHED).then_some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables are read as the kernel writes them (Linux, `tcp_seq_show`).
    #[test]
    fn established_connections_are_read() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        let listening =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1";
        let open =
            "   1: 0100000A:C350 0200000A:1F90 01 00000000:00000000 00:00000000 00000000     0        0 18 1";
        let six = "   2: 0000000000000000FFFF00000100000A:0016 0000000000000000FFFF00000200000A:C351 01 0:0 0:0 0 0 0 9";
        assert_eq!([head, listening, ""].map(ports), [None; 3]);
        assert_eq!([open, six].map(ports), [Some([50_000, 8080]), Some([22, 50_001])]);
        assert!(Connection([22, 50_001]).is_ssh() && !Connection([8080, 50_000]).is_ssh());
    }
}
