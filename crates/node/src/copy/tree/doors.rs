//! Direct connections beside the ssh of a tree copy ([ADR 18]): once much is to come, both ends listen, tell each other where over
//! ssh, and dial. Which of them dials is independent of which sends.
//!
//! [ADR 18]: ../../../../../docs/adr/0018-contents-of-trees-over-lanes.md

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::message::{Direct, Hello, Message};
use dray_core::rights::Secret;
use dray_core::{NodeId, Result};
use dray_transfer::direct::{Target, connect_any};
use dray_transfer::transport::{Channel, TlsChannel, TlsConfig};
use dray_transfer::tree::{SendLanes, TakeLanes};

use super::super::direct::{Door, HOLDER_DELAY, HOLDER_RETRY, LOOK, Word, once, targets};
use super::sink::Doors;
use crate::{Node, lock};

/// The longest rest between two dials for one lost connection while others live.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Where ssh itself goes: under which address the other end sees us, and at which we see it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) seen_as: Option<IpAddr>,
    pub(super) sees: Option<IpAddr>,
    /// Loopback and link-local addresses may be dialled: ssh goes there, too.
    pub(super) allow_local: bool,
}

/// What threads need of the node.
struct Facts {
    tls: TlsConfig,
    hello: Hello,
    id: NodeId,
    lanes: usize,
    seen: Seen,
}

impl Facts {
    fn new(node: &Node, seen: Seen) -> Arc<Facts> {
        let (tls, hello) = (node.tls.clone(), node.hello());
        Arc::new(Facts { tls, hello, id: node.id(), lanes: node.config.connections, seen })
    }

    fn door(&self) -> Result<Door> {
        let seen_as: Vec<IpAddr> = self.seen.seen_as.into_iter().collect();
        Door::at(&self.tls, self.id, &seen_as)
    }

    fn targets(&self, theirs: &Direct) -> Vec<Target> {
        targets(theirs, self.seen.sees, self.seen.allow_local)
    }

    /// Dials, again and again: every way while no connection is up, and the one that led there while fewer are than may be. `up` says how
    /// many there are, whoever dialled; each goes to `run`, which ends with it.
    fn keep_dialling(
        &self,
        theirs: &Direct,
        up: &(dyn Fn() -> usize + Sync),
        is_over: &(dyn Fn() -> bool + Sync),
        run: &(dyn Fn(TlsChannel) + Sync),
    ) {
        let found = self.targets(theirs);
        while !is_over() && !found.is_empty() {
            let is_enough = || is_over() || up() > 0;
            if up() == 0
                && let Ok((first, target, _)) = connect_any(&self.tls, &found, &is_enough)
            {
                let target = std::slice::from_ref(&target);
                thread::scope(|scope| {
                    for _ in 1..self.lanes {
                        scope.spawn(|| {
                            if let Ok((channel, _, _)) = connect_any(&self.tls, target, is_over) {
                                self.keep_up(channel, target, up, is_over, run);
                            }
                        });
                    }
                    self.keep_up(first, target, up, is_over, run);
                });
            }
            pause(HOLDER_RETRY, is_over);
        }
    }

    /// Runs `channel`, and when that is lost another to `target`, while others live. Without any every way is to be tried again.
    fn keep_up(
        &self,
        channel: TlsChannel,
        target: &[Target],
        up: &(dyn Fn() -> usize + Sync),
        is_over: &(dyn Fn() -> bool + Sync),
        run: &(dyn Fn(TlsChannel) + Sync),
    ) {
        let is_last = || is_over() || up() == 0;
        let (mut next, mut rest) = (Some(channel), HOLDER_RETRY);
        loop {
            let begun = Instant::now();
            if let Some(channel) = next.take() {
                run(channel);
            }
            // What cannot be had, or ends at once, is tried less and less often.
            rest = if begun.elapsed() > rest { HOLDER_RETRY } else { (2 * rest).min(RETRY_MAX) };
            pause(rest, &is_last);
            // The other end may have dialled: then there are enough.
            while !is_last() && up() >= self.lanes {
                pause(HOLDER_RETRY, &is_last);
            }
            if is_last() {
                return;
            }
            next = connect_any(&self.tls, target, &is_last).ok().map(|(channel, _, _)| channel);
        }
    }
}

/// The receiver's side.
pub(super) struct TakingDoors {
    node: Arc<Facts>,
    door: Mutex<Option<Door>>,
    pub(super) lanes: Arc<TakeLanes>,
    /// The sender, once it has said who it is.
    sender: Arc<Word<Direct>>,
    is_invited: AtomicBool,
}

impl TakingDoors {
    pub(super) fn new(node: &Node, seen: Seen) -> TakingDoors {
        TakingDoors {
            node: Facts::new(node, seen),
            door: Mutex::default(),
            lanes: TakeLanes::new(),
            sender: Arc::new(Word::new()),
            is_invited: AtomicBool::new(false),
        }
    }

    /// The copy is over: no lane, no listening.
    pub(super) fn close(&self) {
        self.lanes.close();
        if let Some(door) = lock(&self.door).take() {
            door.close();
        }
    }
}

impl Drop for TakingDoors {
    fn drop(&mut self) {
        self.close();
    }
}

fn take_over(channel: TlsChannel, node: &Facts, lanes: &TakeLanes, secret: &Secret) {
    // One that breaks is reported to the sink, which asks for what it owed elsewhere.
    let _ = lanes.run(Box::new(channel), &node.hello, node.id, secret, node.lanes);
}

impl Doors for TakingDoors {
    fn invite(&self) -> Option<Direct> {
        let door = self.node.door().ok()?;
        let invitation = door.invitation.clone();
        let (node, lanes, sender) = (self.node.clone(), self.lanes.clone(), self.sender.clone());
        door.accept(Arc::new(move |channel: TlsChannel| {
            let Some(theirs) = sender.hear() else { return };
            if channel.security().map(|security| security.peer) == Some(theirs.node) {
                channel.keep_place();
                take_over(channel, &node, &lanes, &theirs.secret);
            }
        }));
        *lock(&self.door) = Some(door);
        Some(invitation)
    }

    fn handle_direct(&self, theirs: Direct) -> Result<()> {
        once(&self.is_invited)?;
        self.sender.say(theirs.clone());
        let (node, lanes) = (self.node.clone(), self.lanes.clone());
        thread::spawn(move || {
            let run = |channel| take_over(channel, &node, &lanes, &theirs.secret);
            node.keep_dialling(&theirs, &|| lanes.count(), &|| lanes.is_closed(), &run);
        });
        Ok(())
    }
}

/// The sender's side.
pub(super) struct GivingDoors {
    node: Arc<Facts>,
    door: Mutex<Option<Door>>,
    pub(super) lanes: Arc<SendLanes>,
    is_invited: AtomicBool,
}

impl GivingDoors {
    pub(super) fn new(node: &Node, seen: Seen) -> Result<GivingDoors> {
        Ok(GivingDoors {
            node: Facts::new(node, seen),
            door: Mutex::default(),
            lanes: SendLanes::new()?,
            is_invited: AtomicBool::new(false),
        })
    }

    /// The receiver said where it listens: so do we, and dial it if it does not reach us. Where we cannot listen, ssh carries
    /// everything.
    pub(super) fn handle_direct(&self, theirs: Direct) -> Result<()> {
        once(&self.is_invited)?;
        let Ok(door) = self.node.door() else { return Ok(()) };
        self.lanes.say(Message::Direct(door.invitation.clone()));
        let (node, lanes) = (self.node.clone(), self.lanes.clone());
        let (secret, peer) = (door.invitation.secret, theirs.node);
        let run = move |channel: TlsChannel| {
            // What breaks here the receiver notices, and asks over another way.
            let _ = lanes.serve(Box::new(channel), &node.hello, node.id, &secret, &|shown| shown == peer);
        };
        let run = Arc::new(run);
        door.accept(run.clone());
        *lock(&self.door) = Some(door);
        let (node, lanes) = (self.node.clone(), self.lanes.clone());
        thread::spawn(move || {
            pause(HOLDER_DELAY, &|| lanes.is_closed());
            node.keep_dialling(&theirs, &|| lanes.count(), &|| lanes.is_closed(), &*run);
        });
        Ok(())
    }
}

impl Drop for GivingDoors {
    fn drop(&mut self) {
        self.lanes.close();
        if let Some(door) = lock(&self.door).take() {
            door.close();
        }
    }
}

fn pause(time: Duration, is_over: &dyn Fn() -> bool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !is_over() {
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::Config;
    use crate::config::{ConfigFile, Paths};

    const LONG: Duration = Duration::from_secs(60);

    /// Issue 4 "direct paths join": one of several connections that is lost is dialled again while the others live.
    #[test]
    fn a_connection_that_is_lost_is_dialled_again_beside_others() {
        let place = tempfile::tempdir().unwrap();
        let node = |name: &str| {
            let paths = Paths::below(&place.path().join(name));
            Node::open(Config::new(paths, &ConfigFile::default()).unwrap()).unwrap()
        };
        let seen = Seen {
            seen_as: Some(std::net::Ipv4Addr::LOCALHOST.into()),
            allow_local: true,
            ..Seen::default()
        };
        let (dialling, listening) = (Facts::new(&node("one"), seen), Facts::new(&node("other"), seen));
        assert!(dialling.lanes > 1, "there are no others");
        let lanes = dialling.lanes;
        let door = listening.door().unwrap();
        let theirs = door.invitation.clone();
        door.accept(Arc::new(|mut channel: TlsChannel| {
            while !matches!(channel.try_read(&mut [0; 64]), Ok(Some(0)) | Err(_)) {
                let _ = channel.wait(None, LOOK);
            }
        }));
        let (up, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (tell, told) = mpsc::channel();
        let (counted, ended) = (up.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            let run = |channel: TlsChannel| {
                counted.fetch_add(1, Ordering::AcqRel);
                let (lose, lost) = mpsc::channel::<()>();
                tell.send(lose).unwrap();
                // Until the test drops the other end.
                let _ = lost.recv();
                drop(channel);
                counted.fetch_sub(1, Ordering::AcqRel);
            };
            let up = || counted.load(Ordering::Acquire);
            dialling.keep_dialling(&theirs, &up, &|| ended.load(Ordering::Acquire), &run);
        });
        let next = || told.recv_timeout(LONG).expect("a connection is missing");
        let mut running: Vec<_> = (0..lanes).map(|_| next()).collect();
        running.pop();
        running.push(next());
        assert_eq!(up.load(Ordering::Acquire), lanes);
        is_over.store(true, Ordering::Release);
        drop(running);
        thread.join().unwrap();
        door.close();
    }
}
