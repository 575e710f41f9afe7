//! Direct connections beside ssh: both ends listen, both are told where the other listens, both dial.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::HINTS_MAX;
use dray_core::message::{Direct, ObjectName, Open};
use dray_core::rights::Secret;
use dray_core::source::{Source, SourceCall};
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::{Holder, Receiver};
use dray_transfer::direct::{DialConfig, Listener, Target, connect_any, dial, is_local};
use dray_transfer::holder::{Held, Provider, serve};
use dray_transfer::lanes::{LaneSet, LaneStart, Opening};
use dray_transfer::transport::{Channel, LimitedChannel, RateLimit, Security, TlsChannel, TlsConfig};

use crate::{Node, lock};

/// The holder lets the receiver's dialling win where both ways work: one handshake less.
pub(super) const HOLDER_DELAY: Duration = Duration::from_millis(400);

/// A holder whom nobody reaches tries again this often to reach the receiver: a path that went may come back.
pub(super) const HOLDER_RETRY: Duration = Duration::from_secs(1);
/// How often it looks whether the copy is over.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// How long whoever dialled waits for what is said about it over ssh, which may be on its way still.
const WORD_PATIENCE: Duration = Duration::from_secs(5);

/// Something the other side says over ssh, once.
#[derive(Debug)]
pub(super) struct Word<T> {
    said: Mutex<Option<T>>,
    arrived: Condvar,
}

impl<T: Clone> Word<T> {
    pub(super) fn new() -> Word<T> {
        Word { said: Mutex::new(None), arrived: Condvar::new() }
    }

    pub(super) fn say(&self, word: T) {
        *lock(&self.said) = Some(word);
        self.arrived.notify_all();
    }

    /// The word, waited for at most [`WORD_PATIENCE`].
    pub(super) fn hear(&self) -> Option<T> {
        let waiting = |said: &mut Option<T>| said.is_none();
        let heard = self.arrived.wait_timeout_while(lock(&self.said), WORD_PATIENCE, waiting);
        heard.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// This side's door.
pub(super) struct Door {
    listener: Arc<Listener>,
    /// What we tell the other side.
    pub(super) invitation: Direct,
}

impl Door {
    /// Listens and describes where. `seen_as` are addresses under which the other side is known to see us.
    pub(super) fn open(node: &Node, seen_as: &[IpAddr]) -> Result<Door> {
        Door::at(&node.tls, node.id(), seen_as)
    }

    pub(super) fn at(tls: &TlsConfig, id: NodeId, seen_as: &[IpAddr]) -> Result<Door> {
        let listener = Listener::bind(tls.clone(), None)?;
        let port = listener.port()?;
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let mut addresses: Vec<IpAddr> = seen_as.to_vec();
        addresses.extend(interfaces.iter().map(if_addrs::Interface::ip).filter(|ip| !is_local(*ip)));
        let mut told: Vec<String> = Vec::new();
        for address in addresses {
            let text = std::net::SocketAddr::new(address, port).to_string();
            if !told.contains(&text) && told.len() < HINTS_MAX {
                told.push(text);
            }
        }
        let invitation = Direct { node: id, addresses: told, secret: Secret::from_bytes(crate::random()?) };
        Ok(Door { listener: Arc::new(listener), invitation })
    }

    /// Stops listening.
    pub(super) fn close(&self) {
        self.listener.stop();
    }

    pub(super) fn accept(&self, serve: Arc<dyn Fn(TlsChannel) + Send + Sync>) {
        let listener = self.listener.clone();
        thread::spawn(move || listener.accept_all(serve));
    }
}

/// Targets an invitation means. `seen_as` adds where ssh itself found the other end. Loopback and link-local addresses
/// only if ssh went there too: an invitation must not make us knock at our own services.
pub(super) fn targets(theirs: &Direct, seen_as: Option<IpAddr>, allow_local: bool) -> Vec<Target> {
    let port = theirs
        .addresses
        .first()
        .and_then(|address| address.rsplit_once(':'))
        .and_then(|(_, port)| port.parse().ok());
    let found = seen_as.zip(port).map(|(address, port)| std::net::SocketAddr::new(address, port).to_string());
    let mut addresses: Vec<String> = found.into_iter().collect();
    for address in &theirs.addresses {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    let target = |address| Target { address, node: theirs.node, priority: 0, allow_local };
    addresses.into_iter().map(target).collect()
}

/// The receiver's side: brings lanes to `set` from both directions.
pub(super) struct ReceivingDoor {
    pub(super) door: Door,
    set: Arc<LaneSet>,
    node: Arc<Facts>,
    /// The holder, once it has said who it is.
    holder: Arc<Word<Direct>>,
    invited: AtomicBool,
}

/// What threads need of the node.
struct Facts {
    tls: TlsConfig,
    hello: dray_core::message::Hello,
    lanes: usize,
    size_bytes: u64,
    /// What a holder may send, over all paths together.
    limit: Option<Arc<RateLimit>>,
}

impl ReceivingDoor {
    /// Begins to accept.
    pub(super) fn new(node: &Node, door: Door, set: Arc<LaneSet>, size_bytes: u64) -> ReceivingDoor {
        let facts = Arc::new(Facts {
            tls: node.tls.clone(),
            hello: node.hello(),
            lanes: node.config.connections,
            size_bytes,
            limit: None,
        });
        let holder = Arc::new(Word::<Direct>::new());
        let (adopting, expected, shared) = (set.clone(), holder.clone(), facts.clone());
        door.accept(Arc::new(move |channel| {
            let Some(theirs) = expected.hear() else { return };
            let peer = channel.security().map(|security| security.peer);
            if peer != Some(theirs.node) || adopting.lanes() >= shared.lanes || adopting.is_closed() {
                return;
            }
            let geometry = dray_core::hash_tree::Geometry::new(shared.size_bytes);
            let start = LaneStart {
                receiver: Receiver::new(shared.hello.clone(), Some(geometry), false),
                preface: Vec::new(),
                secret: Some(theirs.secret),
                node: shared.tls.node(),
                round_trip_us: None,
                opening: Opening::ToAsk,
            };
            // A lane that breaks is reported through the source's events.
            let _ = adopting.run(Box::new(channel), start, None);
        }));
        ReceivingDoor { door, set, node: facts, holder, invited: AtomicBool::new(false) }
    }

    /// The holder said where it listens.
    pub(super) fn handle_direct(
        &self,
        theirs: Direct,
        seen_as: Option<IpAddr>,
        allow_local: bool,
    ) -> Result<()> {
        once(&self.invited)?;
        let config = DialConfig {
            tls: self.node.tls.clone(),
            hello: self.node.hello.clone(),
            targets: targets(&theirs, seen_as, allow_local),
            lanes: self.node.lanes,
            secret: Some(theirs.secret),
            size_bytes: Some(self.node.size_bytes),
            clear_data: false,
            only_way: false,
        };
        self.holder.say(theirs);
        dial(self.set.clone(), config);
        Ok(())
    }

    /// The copy is over: no lane, no listening.
    pub(super) fn close(&self) {
        self.set.call(SourceCall::Close);
        // Nobody may have dialled yet, who would do it.
        self.set.give_up(None);
        self.door.close();
    }
}

/// The holder's side: serves connections that the receiver opened, or that we opened to it.
pub(super) struct HoldingDoor {
    pub(super) door: Door,
    provider: Arc<DirectProvider>,
    node: Arc<Facts>,
    serving: Arc<AtomicUsize>,
    invited: AtomicBool,
}

struct DirectProvider {
    held: Arc<dyn Held>,
    object: ObjectName,
    holder: NodeId,
    secret: Secret,
    /// The receiver, once it has said who it is.
    receiver: Word<NodeId>,
}

impl Provider for DirectProvider {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let refused = || Error::new(ErrorKind::Refused, "not the other end of this copy");
        let security = security.ok_or_else(refused)?;
        let proof = security.expected_proof(&self.secret, self.holder, &self.object);
        let is_proven = open.proof.as_ref().is_some_and(|shown| proof.matches(shown));
        // Its secret came over ssh, so what else ssh says of it is not far.
        if open.object == self.object && is_proven && self.receiver.hear() == Some(security.peer) {
            Ok(self.held.clone())
        } else {
            Err(refused())
        }
    }
}

impl HoldingDoor {
    /// Begins to accept.
    pub(super) fn new(
        node: &Node,
        door: Door,
        held: Arc<dyn Held>,
        object: ObjectName,
        limit: Option<Arc<RateLimit>>,
    ) -> HoldingDoor {
        let facts = Arc::new(Facts {
            tls: node.tls.clone(),
            hello: node.hello(),
            lanes: node.config.connections,
            size_bytes: held.geometry().size_bytes(),
            limit,
        });
        let provider = Arc::new(DirectProvider {
            held,
            object,
            holder: node.id(),
            secret: door.invitation.secret,
            receiver: Word::new(),
        });
        let serving = Arc::new(AtomicUsize::new(0));
        let (providing, shared, count) = (provider.clone(), facts.clone(), serving.clone());
        door.accept(Arc::new(move |channel| serve_one(channel, &shared, &providing, &count)));
        HoldingDoor { door, provider, node: facts, serving, invited: AtomicBool::new(false) }
    }

    /// The receiver said who it is and where it listens. If it does not reach us, we try to reach it.
    pub(super) fn handle_direct(
        &self,
        theirs: Direct,
        seen_as: Option<IpAddr>,
        allow_local: bool,
        is_over: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<()> {
        once(&self.invited)?;
        self.provider.receiver.say(theirs.node);
        let (provider, node, serving) = (self.provider.clone(), self.node.clone(), self.serving.clone());
        thread::spawn(move || {
            thread::sleep(HOLDER_DELAY);
            let found = targets(&theirs, seen_as, allow_local);
            while !is_over() && !found.is_empty() {
                if serving.load(Ordering::Acquire) == 0 {
                    reach(&node, &provider, &serving, &found, &*is_over);
                }
                let until = Instant::now() + HOLDER_RETRY;
                while Instant::now() < until && !is_over() {
                    thread::sleep(LOOK);
                }
            }
        });
        Ok(())
    }
}

/// Dials the receiver and serves it until the first connection ends.
fn reach(
    node: &Arc<Facts>,
    provider: &Arc<DirectProvider>,
    serving: &Arc<AtomicUsize>,
    found: &[Target],
    is_over: &dyn Fn() -> bool,
) {
    let stopped = || is_over() || serving.load(Ordering::Acquire) > 0;
    let Ok((first, target, _)) = connect_any(&node.tls, found, &stopped) else { return };
    for _ in 1..node.lanes {
        let (provider, node, serving, target) =
            (provider.clone(), node.clone(), serving.clone(), target.clone());
        thread::spawn(move || {
            if let Ok((channel, _, _)) = connect_any(&node.tls, std::slice::from_ref(&target), &|| false) {
                serve_one(channel, &node, &provider, &serving);
            }
        });
    }
    serve_one(first, node, provider, serving);
}

/// One invitation a copy: every further one would be threads and connections at a peer's will.
pub(super) fn once(invited: &AtomicBool) -> Result<()> {
    if invited.swap(true, Ordering::AcqRel) {
        return Err(Error::new(ErrorKind::Protocol, "the other side said twice where it listens"));
    }
    Ok(())
}

fn serve_one(channel: TlsChannel, node: &Facts, provider: &DirectProvider, serving: &AtomicUsize) {
    serving.fetch_add(1, Ordering::AcqRel);
    // What breaks here the receiver notices, and asks over another way.
    let channel = LimitedChannel::wrap(Box::new(channel), node.limit.as_ref());
    let _ = serve(channel, Holder::new(node.hello.clone()), Vec::new(), provider, None);
    serving.fetch_sub(1, Ordering::AcqRel);
}

/// What ssh says about the addresses of both ends (`SSH_CONNECTION`: client address and port, server address and
/// port), at the far end.
pub(super) fn ssh_connection() -> Option<(IpAddr, IpAddr)> {
    let text = std::env::var("SSH_CONNECTION").ok()?;
    let mut words = text.split(' ');
    let client = words.next()?.parse().ok()?;
    let server = words.nth(1)?.parse().ok()?;
    Some((client, server))
}

#[cfg(test)]
mod tests {
    use dray_core::Oid;
    use dray_core::source::{
        Flow, Grade, SourceCapabilities, SourceDescription, SourceEvent, SourceEvents, SourceId,
    };

    use super::*;
    use crate::{Config, ConfigFile, Paths};

    /// What was heard of a source that went.
    #[derive(Default)]
    struct Heard(Mutex<Vec<bool>>);

    impl SourceEvents for Heard {
        fn event(&self, _: SourceId, event: SourceEvent<'_>) -> Flow {
            if let SourceEvent::Down { gone, .. } = event {
                lock(&self.0).push(gone);
            }
            Flow::Continue
        }
    }

    /// Design 5: ssh ended before the holder said where it listens. Nobody dials then, and nobody is waited for: the file is let go of at once.
    #[test]
    fn a_door_that_closes_is_waited_for_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let node =
            Node::open(Config::new(Paths::below(dir.path()), &ConfigFile::default()).unwrap()).unwrap();
        let description = SourceDescription {
            label: "direct".into(),
            priority: 0,
            weight: 1,
            capabilities: SourceCapabilities {
                grade: Grade::Vouched,
                cancel: true,
                holes: true,
                under_way_bytes: 0,
            },
        };
        let heard = Arc::<Heard>::default();
        let object = ObjectName::Oid(Oid::of(b"door"));
        let (id, size) = (SourceId(1), 1 << 20);
        let set = LaneSet::facing("peer".into(), id, object, description, Some(size), heard.clone());
        let door = ReceivingDoor::new(&node, Door::open(&node, &[]).unwrap(), set, size);
        door.close();
        door.close();
        assert_eq!(*lock(&heard.0), [true]);
    }
}
