//! `dray put DIR` in the foreground: a ticket for a directory, which is served as long as the command runs.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dray_core::limits::LIVE_TREE_RECEIVERS_MAX;
use dray_core::message::{Hello, Open, PROTOCOL_VERSION, feature};
use dray_core::rights::Secret;
use dray_core::store::Share;
use dray_core::ticket::{DirectoryId, DirectoryTicket};
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::Holder;
use dray_store::local::tree::SharedDirectory;
use dray_transfer::direct::Listener;
use dray_transfer::holder::{Held, Provider, serve_or_leave};
use dray_transfer::transport::{Security, TlsChannel};

use super::places::Places;
use super::serving::{LiveTrees, OwnDirectories};
use crate::admission::admit;
use crate::put::{FAREWELL_S, unix_s};
use crate::{Event, Node, Observer, Stop};

/// A directory that can be had as long as [`SharedTree::serve`] runs.
pub struct SharedTree {
    /// The ticket.
    pub ticket: DirectoryTicket,
    /// The ticket's text.
    pub text: String,
    directory: SharedDirectory,
    own: OwnDirectories,
    share: Share,
    listener: Arc<Listener>,
    node: Node,
}

/// Lets nobody have any object.
struct NoObjects(NodeId);

impl Provider for NoObjects {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let security =
            security.ok_or_else(|| Error::new(ErrorKind::Refused, "this channel proves nobody"))?;
        match admit(None, self.0, open, security) {
            Err(refusal) => Err(refusal.answer),
            Ok(()) => Err(Error::new(ErrorKind::Internal, "nothing was found to admit to")),
        }
    }

    fn is_other(&self, open: &Open) -> bool {
        LiveTrees::is_name(&open.object)
    }
}

/// The hello of a node that shares directories, or fetches one.
pub(crate) fn live_hello(node: &Node) -> Hello {
    let mut hello = node.hello();
    hello.features.push(feature::LIVE_TREE.to_owned());
    hello
}

impl Node {
    /// Begins to listen for those who are to have the directory at `path`, and makes the ticket: a new one each time.
    pub fn put_directory(
        self,
        path: &Path,
        public: bool,
        expires_in: Option<Duration>,
        observer: &dyn Observer,
    ) -> Result<SharedTree> {
        let directory = SharedDirectory::of(path)?;
        let own = OwnDirectories::of(&self.config.paths);
        own.require_foreign(&directory)?;
        // Said here rather than to the first receiver.
        directory.open()?;
        let id = DirectoryId::from_bytes(crate::random()?);
        let secret = if public { None } else { Some(Secret::from_bytes(crate::random()?)) };
        let expires_unix_s = expires_in.map(|duration| unix_s().saturating_add(duration.as_secs().max(1)));
        let listener = Listener::bind(self.tls.clone(), self.config.port)?;
        let hints = self.hints(listener.port()?, observer);
        let share = Share { secret, expires_unix_s, ..Share::default() };
        let ticket = DirectoryTicket { protocol: PROTOCOL_VERSION, id, secret, expires_unix_s, hints };
        let text = ticket.to_text()?;
        Ok(SharedTree { ticket, text, directory, own, share, listener: Arc::new(listener), node: self })
    }
}

impl SharedTree {
    /// Serves until `stop`, or until the share has expired and its receivers had time to hear so.
    pub fn serve(self, stop: &Stop, observer: &Arc<dyn Observer>) -> Result<()> {
        self.serve_among(Places::of(LIVE_TREE_RECEIVERS_MAX), stop, observer)
    }

    /// The same, with these places for receivers.
    pub(super) fn serve_among(
        self,
        places: Arc<Places>,
        stop: &Stop,
        observer: &Arc<dyn Observer>,
    ) -> Result<()> {
        let SharedTree { ticket, text, directory, own, share, listener, node } = self;
        let path = directory.path().to_owned();
        let trees = Arc::new(LiveTrees::among(places, node.id(), own, observer.clone()));
        trees.add(ticket.id, directory, share.clone(), observer.clone());
        let addresses = ticket.hints.iter().map(|hint| hint.uri.to_string()).collect();
        observer.event(Event::SharedDirectory { path, ticket: text, addresses });
        let (hello, id) = (live_hello(&node), node.id());
        let giving = trees.clone();
        let accept: Arc<dyn Fn(TlsChannel) + Send + Sync> = Arc::new(move |channel| {
            let address = channel.peer_addr().ok().map(|address| address.ip());
            let holder = Holder::new(hello.clone());
            let left = serve_or_leave(Box::new(channel), holder, Vec::new(), &NoObjects(id), None);
            // What became of it the observer has heard, as far as it showed a right.
            if let Ok(Some(left)) = left {
                let _ = giving.give(left, address);
            }
        });
        let accepting = {
            let listener = listener.clone();
            thread::spawn(move || listener.accept_all(accept))
        };
        let end = share.expires_unix_s.map(|end| end.saturating_add(FAREWELL_S));
        while !stop.is_set() {
            if end.is_some_and(|end| unix_s() >= end) {
                observer.event(Event::Warning("the ticket has expired; nothing is served any more".into()));
                break;
            }
            trees.tick();
            thread::sleep(Duration::from_millis(50));
        }
        trees.end(ticket.id);
        listener.stop();
        let _ = accepting.join();
        // So that whoever is fetching hears why that ends.
        trees.wait();
        Ok(())
    }
}
