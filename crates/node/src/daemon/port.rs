//! The TCP port of the daemon: the same one at each start, because tickets name it.

use std::fs::File;
use std::io::{ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Result};
use dray_transfer::direct::Listener;

use crate::Node;

/// How long the port that tickets name is waited for: another program's outgoing connection may have it for a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Where the daemon listens.
pub(super) struct Port {
    pub(super) listener: Listener,
    /// That which it should have and another program has.
    pub(super) missed: Option<Missed>,
}

/// A port that the daemon should have.
#[derive(Debug)]
pub(super) struct Missed {
    pub(super) port: u16,
    /// What users must know meanwhile.
    pub(super) warning: String,
}

impl Missed {
    /// Listens at it, if it is free by now, beside `other`, to which tickets made meanwhile lead.
    pub(super) fn regain(&self, node: &Node, other: &Listener) -> Option<Listener> {
        let listener = Listener::bind(node.tls.clone(), Some(self.port)).ok()?;
        remember(&listener, &file(node)).ok()?;
        Some(listener.beside(other))
    }
}

fn file(node: &Node) -> PathBuf {
    node.config.paths.data_dir.join("daemon.port")
}

/// Listens at the configured port, or at the one of last time, or at any. That of last time is given up only if no ticket names it;
/// otherwise another one serves until that is free.
pub(super) fn listen(node: &Node) -> Result<Port> {
    let bind = |port| Listener::bind(node.tls.clone(), port);
    let file = file(node);
    let Some(port) = node.config.port.map_or_else(|| last(&file), |port| Ok(Some(port)))? else {
        return remembered(bind(None)?, &file);
    };
    let begun = Instant::now();
    let mut is_wanted = node.config.port.map(|_| true);
    loop {
        match bind(Some(port)) {
            Ok(listener) => return remembered(listener, &file),
            Err(error) if error.kind() == ErrorKind::Refused => {}
            // Not for want of that port.
            Err(error) => return Err(error),
        }
        let is_wanted = match is_wanted {
            Some(known) => known,
            None => *is_wanted.insert(is_named_by_tickets(node)?),
        };
        if !is_wanted {
            return remembered(bind(None)?, &file);
        }
        if begun.elapsed() >= PATIENCE {
            break;
        }
        thread::sleep(INTERVAL);
    }
    let listener = bind(None)?;
    let other = listener.port()?;
    let why = match node.config.port {
        Some(_) => "which the configuration names",
        None => "which earlier tickets name",
    };
    let warning = format!(
        "another program has TCP port {port}, {why}: nobody gets anything there until that port is free; tickets made now name port \
         {other}, and work only until the daemon ends"
    );
    Ok(Port { listener, missed: Some(Missed { port, warning }) })
}

/// Whether tickets may be around that name the port of last time.
fn is_named_by_tickets(node: &Node) -> Result<bool> {
    let (retained, unknown) = node.store()?.retained()?;
    let (directories, strange) = node.store()?.directory_records()?;
    // What cannot be read may be shared, too.
    Ok(!unknown.is_empty()
        || !strange.is_empty()
        || !directories.is_empty()
        || retained.iter().any(|kept| kept.retention.share.is_some()))
}

/// The port of last time. Only what a daemon wrote counts as one.
fn last(file: &Path) -> Result<Option<u16>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().parse().ok().filter(|port: &u16| *port > 0)),
        Err(error) if matches!(error.kind(), Io::NotFound | Io::InvalidData) => Ok(None),
        Err(error) => Err(Error::file(format!("read {file:?}"), error)),
    }
}

fn remembered(listener: Listener, file: &Path) -> Result<Port> {
    remember(&listener, file)?;
    Ok(Port { listener, missed: None })
}

/// Notes the port, durably: tickets will name it, and the pins that they belong to outlive a power cut. Also where it is the one of last
/// time, since whoever wrote that may have ended before it was durable.
fn remember(listener: &Listener, file: &Path) -> Result<()> {
    let port = listener.port()?;
    let known = last(file)?;
    let write = || {
        if known == Some(port) {
            File::open(file)?.sync_all()?;
        } else {
            let fresh: PathBuf = file.with_extension("port.new");
            let mut written = File::create(&fresh)?;
            writeln!(written, "{port}")?;
            written.sync_all()?;
            std::fs::rename(&fresh, file)?;
        }
        File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().map_err(|error| Error::file(format!("write {file:?}"), error))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use dray_core::store::{Share, Store};
    use dray_store::local::Retention;

    use super::*;
    use crate::config::{Config, ConfigFile, Paths};

    fn node(dir: &Path) -> Node {
        Node::open(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap()
    }

    fn share_something(node: &Node) {
        let mut writer = node.store().unwrap().put().unwrap();
        writer.write(b"bytes").unwrap();
        let oid = writer.commit().unwrap().oid();
        let share = Share { secret: None, expires_unix_s: None, port: None, name: None };
        node.store()
            .unwrap()
            .retain(&oid, Some(Retention { share: Some(share), ..Retention::default() }))
            .unwrap();
    }

    /// Issue 1, "nor disturb": whoever has the configured port takes nobody's daemon down; another one serves, which is not remembered.
    #[test]
    fn a_configured_port_that_is_taken_stops_no_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind(("::", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let mut config = Config::new(Paths::below(dir.path()), &ConfigFile::default()).unwrap();
        config.port = Some(port);
        let node = Node::open(config).unwrap();
        let instead = listen(&node).unwrap();
        let missed = instead.missed.unwrap();
        assert!(missed.port == port && missed.warning.contains("configuration"), "{missed:?}");
        assert_eq!(last(&file(&node)).unwrap(), None);
        drop(taken);
        assert_eq!(missed.regain(&node, &instead.listener).unwrap().port().unwrap(), port);
    }

    /// Issue, "remembered port": as long as a share counts on it, no other port takes its place, however often the daemon is
    /// started while another program has it; and it is waited for.
    #[test]
    fn a_port_that_tickets_name_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let port = listen(&node).unwrap().listener.port().unwrap();
        // Nobody counts on it yet.
        let other = {
            let _taken = TcpListener::bind(("::", port)).unwrap();
            let other = listen(&node).unwrap();
            assert!(other.missed.is_none());
            other.listener.port().unwrap()
        };
        assert_ne!(other, port);

        share_something(&node);
        let taken = TcpListener::bind(("::", other)).unwrap();
        let begun = Instant::now();
        let instead = listen(&node).unwrap();
        assert!(begun.elapsed() >= PATIENCE);
        assert_ne!(instead.listener.port().unwrap(), other);
        let missed = instead.missed.unwrap();
        assert!(missed.port == other && missed.warning.contains(&format!("port {other},")), "{missed:?}");
        assert!(missed.regain(&node, &instead.listener).is_none(), "it is taken still");
        drop(instead.listener);
        let freeing = thread::spawn(move || {
            thread::sleep(INTERVAL * 4);
            drop(taken);
        });
        let back = listen(&node).unwrap();
        assert!(back.listener.port().unwrap() == other && back.missed.is_none());
        freeing.join().unwrap();
        drop(back.listener);
        let any = Listener::bind(node.tls.clone(), None).unwrap();
        assert_eq!(
            missed.regain(&node, &any).unwrap().port().unwrap(),
            other,
            "free again while another one serves"
        );
    }
}
