//! Direct connections beside the ssh of a tree copy ([ADR 18]): once much is to come, both ends listen, tell each other where over
//! ssh, and dial. Which of them dials is independent of which sends.
//!
//! [ADR 18]: ../../../../../docs/adr/0018-contents-of-trees-over-lanes.md

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_LANES_MAX;
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
        run: &Run,
    ) {
        let mut dialling = Dialling::new(self.targets(theirs), self.lanes);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            while !is_over() && !dialling.every.is_empty() {
                while let Some(targets) = dialling.next(Instant::now(), up()) {
                    let tell = tell.clone();
                    // One by every way is enough; another beside none is too little.
                    let is_first = up() == 0;
                    let is_useless = move || is_over() || (up() == 0) != is_first;
                    scope.spawn(move || self.dial(&targets, &is_useless, run, &tell));
                }
                if let Ok(told) = told.recv_timeout(LOOK) {
                    dialling.handle(told, Instant::now(), up());
                }
            }
        });
    }

    fn dial(
        &self,
        targets: &[Target],
        is_useless: &dyn Fn() -> bool,
        run: &Run,
        tell: &mpsc::Sender<Dialled>,
    ) {
        // Nobody hears it once the copy is over.
        let tell = |told| drop(tell.send(told));
        let Ok((channel, target, _)) = connect_any(&self.tls, targets, is_useless) else {
            return tell(Dialled::Failed);
        };
        tell(Dialled::Connected(target));
        let (begun, is_up) = (Instant::now(), Cell::new(false));
        run(channel, &|| {
            is_up.set(true);
            tell(Dialled::Up);
        });
        tell(if is_up.get() { Dialled::Lost(begun.elapsed()) } else { Dialled::HungUp });
    }
}

/// Runs a connection until it ends; calls the function when the other end has greeted.
type Run<'a> = dyn Fn(TlsChannel, &dyn Fn()) + Send + Sync + 'a;

/// What becomes of a connection that is dialled.
enum Dialled {
    Failed,
    Connected(Target),
    /// The other end has greeted.
    Up,
    /// It ended, which did or did not greet before; after so long.
    HungUp,
    Lost(Duration),
}

/// When to dial, and where.
struct Dialling {
    /// Every way there is, and the one that led there.
    every: Vec<Target>,
    way: Option<Target>,
    /// Connections that may be up here, and as far as is known there.
    most: usize,
    wanted: usize,
    /// Those that are dialled and not up.
    coming: usize,
    /// What cannot be had, or ends at once, is tried less and less often.
    rest: Duration,
    rests_since: Option<Instant>,
}

impl Dialling {
    fn new(every: Vec<Target>, lanes: usize) -> Dialling {
        let most = lanes.min(TREE_LANES_MAX);
        let (way, rests_since) = (None, None);
        Dialling { every, way, most, wanted: most, coming: 0, rest: HOLDER_RETRY, rests_since }
    }

    /// What is to be dialled now, with so many connections up. To be asked until it is nothing.
    fn next(&mut self, now: Instant, up: usize) -> Option<Vec<Target>> {
        let rest = if up == 0 { HOLDER_RETRY } else { self.rest };
        if self.rests_since.is_some_and(|since| now.saturating_duration_since(since) < rest) {
            return None;
        }
        let targets = match &self.way {
            _ if up == 0 && self.coming == 0 => {
                self.wanted = self.most;
                self.every.clone()
            }
            Some(way) if up > 0 && up + self.coming < self.wanted => vec![way.clone()],
            _ => return None,
        };
        self.coming += 1;
        Some(targets)
    }

    fn handle(&mut self, dialled: Dialled, now: Instant, up: usize) {
        let mut is_steady = false;
        match dialled {
            Dialled::Connected(target) => return self.way = Some(target),
            Dialled::Up => return self.coming -= 1,
            Dialled::Failed => self.coming -= 1,
            Dialled::HungUp => {
                self.coming -= 1;
                // The other end has enough, unless it has none.
                if up > 0 {
                    self.wanted = self.wanted.min(up + self.coming);
                }
            }
            Dialled::Lost(after) => is_steady = after > self.rest,
        }
        if is_steady {
            self.rest = HOLDER_RETRY;
        } else if up > 0 {
            self.rest = (2 * self.rest).min(RETRY_MAX);
        }
        self.rests_since = Some(now);
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

fn take_over(channel: TlsChannel, node: &Facts, lanes: &TakeLanes, secret: &Secret, came_up: &dyn Fn()) {
    // One that breaks is reported to the sink, which asks for what it owed elsewhere.
    let _ = lanes.run(Box::new(channel), &node.hello, node.id, secret, node.lanes, came_up);
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
                take_over(channel, &node, &lanes, &theirs.secret, &|| {});
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
            let run = |channel: TlsChannel, came_up: &dyn Fn()| {
                take_over(channel, &node, &lanes, &theirs.secret, came_up);
            };
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
        let run = Arc::new(move |channel: TlsChannel, came_up: &dyn Fn()| {
            let expected = |shown| shown == peer;
            // What breaks here the receiver notices, and asks over another way.
            let _ = lanes.serve(Box::new(channel), &node.hello, node.id, &secret, &expected, came_up);
        });
        let serving = run.clone();
        door.accept(Arc::new(move |channel| serving(channel, &|| {})));
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

    use dray_core::NodeId;

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
            let config = Config::new(paths, &ConfigFile::default()).unwrap();
            // As many, whatever the machine.
            Node::open(Config { connections: 3, ..config }).unwrap()
        };
        let seen = Seen {
            seen_as: Some(std::net::Ipv4Addr::LOCALHOST.into()),
            allow_local: true,
            ..Seen::default()
        };
        let (dialling, listening) = (Facts::new(&node("one"), seen), Facts::new(&node("other"), seen));
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
            let run = |channel: TlsChannel, came_up: &dyn Fn()| {
                counted.fetch_add(1, Ordering::AcqRel);
                came_up();
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

    fn target(address: &str) -> Target {
        let node = NodeId::from_bytes([1; 32]);
        Target { address: address.into(), node, priority: 0, allow_local: true }
    }

    /// Where each of what is dialled now leads; "every" if that is every way.
    fn dialled(dialling: &mut Dialling, now: Instant, up: usize) -> Vec<String> {
        std::iter::from_fn(|| dialling.next(now, up))
            .map(|targets| if targets.len() > 1 { "every".into() } else { targets[0].address.clone() })
            .collect()
    }

    /// Issue 4 "direct paths join": what is missing is dialled as long as it is, however many of the dials before failed or were lost.
    #[test]
    fn what_is_missing_is_dialled() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut dialling = Dialling::new(vec![target("one"), target("two")], 16);
        assert_eq!(dialled(&mut dialling, at(0), 0), ["every"]);
        dialling.handle(Dialled::Connected(target("two")), at(0), 0);
        assert!(dialled(&mut dialling, at(0), 0).is_empty(), "one is coming");
        dialling.handle(Dialled::Up, at(0), 1);
        // No more than a copy may have, whatever is configured.
        assert_eq!(dialled(&mut dialling, at(0), 1), ["two"; TREE_LANES_MAX - 1]);
        // The first dial of one of the others fails.
        dialling.handle(Dialled::Up, at(0), 2);
        dialling.handle(Dialled::Failed, at(0), 2);
        dialling.handle(Dialled::Up, at(0), 3);
        assert!(dialled(&mut dialling, at(1), 3).is_empty(), "too soon");
        assert_eq!(dialled(&mut dialling, at(2), 3), ["two"]);
        dialling.handle(Dialled::Up, at(2), 4);
        // All are lost at once, and one comes up before the others are looked at.
        (0..4).for_each(|_| dialling.handle(Dialled::Lost(LONG), at(60), 0));
        assert_eq!(dialled(&mut dialling, at(61), 0), ["every"]);
        dialling.handle(Dialled::Connected(target("one")), at(61), 0);
        dialling.handle(Dialled::Up, at(61), 1);
        assert_eq!(dialled(&mut dialling, at(62), 1), ["one"; 3]);
        // While none is up, often; a second beside it may wait.
        (0..3).for_each(|_| dialling.handle(Dialled::Failed, at(62), 1));
        (0..9).for_each(|_| dialling.handle(Dialled::Lost(Duration::ZERO), at(62), 1));
        assert!(dialled(&mut dialling, at(91), 1).is_empty());
        assert_eq!(dialled(&mut dialling, at(63), 0), ["every"]);
    }

    /// The other end hangs up on what is more than it wants: it is not dialled again, but what is lost of the others is.
    #[test]
    fn who_has_enough_is_left_alone() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut dialling = Dialling::new(vec![target("one"), target("two")], 4);
        assert_eq!(dialled(&mut dialling, at(0), 0), ["every"]);
        dialling.handle(Dialled::Connected(target("two")), at(0), 0);
        dialling.handle(Dialled::Up, at(0), 1);
        assert_eq!(dialled(&mut dialling, at(0), 1).len(), 3);
        dialling.handle(Dialled::HungUp, at(0), 1);
        dialling.handle(Dialled::Up, at(0), 2);
        dialling.handle(Dialled::HungUp, at(0), 2);
        assert!((0..3600).all(|second| dialled(&mut dialling, at(second), 2).is_empty()));
        dialling.handle(Dialled::Lost(LONG), at(3600), 1);
        assert_eq!(dialled(&mut dialling, at(3630), 1), ["two"]);
        dialling.handle(Dialled::Up, at(3630), 2);
        // Another path, another other end perhaps.
        (0..2).for_each(|_| dialling.handle(Dialled::Lost(LONG), at(4000), 0));
        assert_eq!(dialled(&mut dialling, at(4001), 0), ["every"]);
        dialling.handle(Dialled::Up, at(4001), 1);
        assert_eq!(dialled(&mut dialling, at(4030), 1).len(), 3);
    }
}
