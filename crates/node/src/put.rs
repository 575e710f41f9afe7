//! `dray put`: refer to a file (or take in a stream), print a ticket, serve it in the foreground.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dray_core::hint::{Hint, HintUri};
use dray_core::limits::HINTS_MAX;
use dray_core::message::PROTOCOL_VERSION;
use dray_core::rights::Secret;
use dray_core::store::{Share, Store, StoredObject};
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_engine::session::Holder;
use dray_transfer::direct::{Listener, is_local};
use dray_transfer::holder::serve;
use dray_transfer::transport::Channel;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::admission::{Doorkeeper, Notices};
use crate::{Event, Node, Observer, Stop, join};

/// How long a share that has expired still tells its receivers so before `put` ends.
pub(crate) const FAREWELL_S: u64 = 30;

/// What to share.
#[derive(Clone, Debug)]
pub enum PutSource {
    /// A regular file, referred to in place.
    Path(PathBuf),
    /// Standard input, taken into the store.
    Stdin,
}

/// How to share it.
#[derive(Clone, Debug)]
pub struct PutRequest {
    /// What.
    pub source: PutSource,
    /// Without a secret: whoever knows the OID and an address gets it.
    pub public: bool,
    /// How long the ticket is good for.
    pub expires_in: Option<Duration>,
    /// A ticket under which somebody else shares the same object: its secret and its end count, `public` and
    /// `expires_in` do not, and our ticket names its holders, too.
    pub ticket: Option<Ticket>,
}

/// Who may have an object.
pub(crate) struct Terms<'a> {
    /// See [`PutRequest::public`].
    pub(crate) public: bool,
    /// See [`PutRequest::expires_in`].
    pub(crate) expires_in: Option<Duration>,
    /// See [`PutRequest::ticket`].
    pub(crate) ticket: Option<&'a Ticket>,
}

/// An object that can be had as long as [`Shared::serve`] runs.
pub struct Shared {
    /// The ticket.
    pub ticket: Ticket,
    /// The ticket's text.
    pub text: String,
    object: Arc<dyn StoredObject>,
    share: Share,
    listener: Arc<Listener>,
    node: Arc<NodeFacts>,
}

/// What the serving threads need to know of the node.
struct NodeFacts {
    id: NodeId,
    hello: dray_core::message::Hello,
    clear_data: bool,
}

impl Node {
    /// Hashes what is not hashed yet, begins to listen and makes the ticket. `Interrupted`, with nothing shared, if
    /// `stop` is set meanwhile.
    pub fn put(&self, request: &PutRequest, observer: &dyn Observer, stop: &Stop) -> Result<Shared> {
        if let Some(ticket) = &request.ticket {
            let size_bytes = match &request.source {
                PutSource::Path(path) => std::fs::metadata(path).map(|metadata| metadata.len()).ok(),
                PutSource::Stdin => None,
            };
            join::check(ticket, size_bytes)?;
        }
        let (object, name) = match &request.source {
            PutSource::Path(path) => {
                let total = std::fs::metadata(path).map(|metadata| metadata.len()).ok();
                let hashing = |done_bytes| observer.event(Event::Hashing { done_bytes, total_bytes: total });
                let object = self.store()?.put_file_until(path, &hashing, &|| stop.is_set())?;
                (object, path.file_name().map(|name| name.as_bytes().to_vec()))
            }
            PutSource::Stdin => (self.take_in(observer, stop)?, None),
        };
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted before the ticket was made"));
        }
        let oid = object.oid();
        if let Some(ticket) = &request.ticket {
            join::check_object(ticket, &oid)?;
        }
        let terms =
            Terms { public: request.public, expires_in: request.expires_in, ticket: request.ticket.as_ref() };
        let mut share = self.record_share(&oid, &terms, name, None, &|_| Ok(()))?;
        let listener = self.listen(&share)?;
        let port = listener.port()?;
        if share.port != Some(port) {
            share.port = Some(port);
            let mine = share.clone();
            self.store()?
                .update_share(&oid, &mut |now| Ok(now.map(|now| Share { port: mine.port, ..now })))?;
        }
        let ticket = self.ticket(&*object, &share, port, terms.ticket, observer)?;
        let text = ticket.to_text()?;
        let node = NodeFacts { id: self.id(), hello: self.hello(), clear_data: self.config.clear_text_data };
        Ok(Shared { ticket, text, object, share, listener: Arc::new(listener), node: Arc::new(node) })
    }

    /// Writes down who may have `oid` from now on, under the file name `name`, unless `check` objects. `in_force` is the share that
    /// a daemon serves it under.
    pub(crate) fn record_share(
        &self,
        oid: &Oid,
        terms: &Terms<'_>,
        name: Option<Vec<u8>>,
        in_force: Option<&Share>,
        check: &dyn Fn(&Share) -> Result<()>,
    ) -> Result<Share> {
        let expires_unix_s =
            terms.expires_in.map(|duration| unix_s().saturating_add(duration.as_secs().max(1)));
        let fresh = Secret::from_bytes(crate::random()?);
        let share = self.store()?.update_share(oid, &mut |old| {
            let old = in_force.cloned().or(old);
            let name = name.clone().map(Into::into);
            let share = if let Some(Ticket { secret, expires_unix_s, .. }) = terms.ticket {
                let (secret, expires_unix_s) = (*secret, *expires_unix_s);
                Share { secret, expires_unix_s, port: old.and_then(|old| old.port), name }
            } else {
                // The same file shared the same way again keeps its ticket; a right that ended never comes back.
                let kept = old.filter(|old| {
                    old.expires_unix_s.is_none()
                        && expires_unix_s.is_none()
                        && old.secret.is_none() == terms.public
                });
                let port = kept.as_ref().and_then(|old| old.port);
                let secret = kept.and_then(|old| old.secret).or((!terms.public).then_some(fresh));
                Share { secret, expires_unix_s, port, name }
            };
            check(&share)?;
            Ok(Some(share))
        })?;
        share.ok_or_else(|| Error::new(ErrorKind::Internal, "the share was not recorded"))
    }

    /// The ticket of an object that is served at `port`; with `joined`, one that names its holders, too.
    pub(crate) fn ticket(
        &self,
        object: &dyn StoredObject,
        share: &Share,
        port: u16,
        joined: Option<&Ticket>,
        observer: &dyn Observer,
    ) -> Result<Ticket> {
        let hints = self.hints(port, observer);
        let Some(ticket) = joined else {
            return Ok(Ticket {
                protocol: PROTOCOL_VERSION,
                oid: object.oid(),
                size_bytes: object.size_bytes(),
                secret: share.secret,
                expires_unix_s: share.expires_unix_s,
                hints,
                repeated_permille: object.repeated_permille(),
            });
        };
        let (joined, left_out) = join::join(ticket, hints)?;
        if left_out > 0 {
            observer
                .event(Event::Warning(format!("the new ticket has no room for {left_out} of the addresses")));
        }
        Ok(joined)
    }

    fn take_in(&self, observer: &dyn Observer, stop: &Stop) -> Result<Arc<dyn StoredObject>> {
        let mut writer = self.store()?.put()?;
        let input = std::io::stdin();
        let mut buffer = vec![0; 1 << 20];
        let mut done_bytes = 0;
        loop {
            // Looked at before the end counts as one: the signal may have ended the program that writes, too.
            if stop.is_set() {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted before standard input ended"));
            }
            let failed = |error: Errno| Error::file("read standard input", error.into());
            let mut fds = [PollFd::new(&input, PollFlags::IN)];
            let patience = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match poll(&mut fds, Some(&patience)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(failed(error)),
            }
            match rustix::io::read(input.as_fd(), &mut buffer) {
                Ok(0) if stop.is_set() => {}
                Ok(0) => return writer.commit(),
                Ok(n) => {
                    writer.write(&buffer[..n])?;
                    done_bytes += n as u64;
                    observer.event(Event::Hashing { done_bytes, total_bytes: None });
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The configured port, or the one this object had last time, or any.
    fn listen(&self, share: &Share) -> Result<Listener> {
        if let Some(port) = self.config.port {
            return Listener::bind(self.tls.clone(), Some(port));
        }
        match share.port {
            Some(port) => Listener::bind(self.tls.clone(), Some(port))
                .or_else(|_| Listener::bind(self.tls.clone(), None)),
            None => Listener::bind(self.tls.clone(), None),
        }
    }

    /// One hint for each address of this machine that others may reach; loopback only if there is no other.
    pub(crate) fn hints(&self, port: u16, observer: &dyn Observer) -> Vec<Hint> {
        let all: Vec<IpAddr> = match if_addrs::get_if_addrs() {
            Ok(interfaces) => interfaces.into_iter().map(|interface| interface.ip()).collect(),
            Err(error) => {
                observer.event(Event::Warning(format!("cannot list this machine's addresses: {error}")));
                Vec::new()
            }
        };
        let mut addresses: Vec<IpAddr> = all.into_iter().filter(|address| !is_local(*address)).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        addresses.truncate(HINTS_MAX);
        if addresses.is_empty() {
            observer.event(Event::Warning(
                "this machine has no address that others can reach; the ticket works here only, with --local"
                    .into(),
            ));
            addresses.push(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let hint = |address: IpAddr| Hint {
            uri: HintUri::Dray { host: address.to_string(), port },
            node: Some(self.id()),
            priority: 0,
            weight: 1,
        };
        addresses.into_iter().map(hint).collect()
    }
}

impl Shared {
    /// `host:port` of every hint.
    pub fn addresses(&self) -> Vec<String> {
        self.ticket.hints.iter().map(|hint| hint.uri.to_string()).collect()
    }

    /// Serves until `stop`, or until the share has expired and its receivers had time to hear so.
    pub fn serve(&self, stop: &Stop, observer: &Arc<dyn Observer>) -> Result<()> {
        observer.event(Event::Shared {
            oid: self.ticket.oid,
            size_bytes: self.ticket.size_bytes,
            ticket: self.text.clone(),
            addresses: self.addresses(),
        });
        let notices = Arc::new(Notices::new(observer.clone()));
        let provider = Arc::new(Doorkeeper {
            recipe: Arc::default(),
            object: self.object.clone(),
            share: self.share.clone(),
            node: self.node.id,
            tokens: self.node.clear_data.then(|| self.listener.clear_tokens()),
            notices: notices.clone(),
            ended: Arc::default(),
        });
        let hello = self.node.hello.clone();
        let accept: Arc<dyn Fn(dray_transfer::transport::TlsChannel) + Send + Sync> =
            Arc::new(move |channel| {
                let peer = channel.security().map(|security| security.peer);
                let result =
                    serve(Box::new(channel), Holder::new(hello.clone()), Vec::new(), &*provider, None);
                let Err(error) = result else { return };
                if error.kind() == ErrorKind::Protocol {
                    provider.notices.turned_away(error.to_string());
                }
                if let Some(peer) = peer {
                    provider.notices.lost(peer, &error);
                }
            });
        let listener = self.listener.clone();
        let accepting = thread::spawn(move || listener.accept_all(accept));
        let end = self.share.expires_unix_s.map(|end| end.saturating_add(FAREWELL_S));
        while !stop.is_set() {
            if end.is_some_and(|end| unix_s() >= end) {
                notices.warn("the ticket has expired; nothing is served any more".into());
                break;
            }
            notices.tick();
            thread::sleep(Duration::from_millis(50));
        }
        self.listener.stop();
        let _ = accepting.join();
        notices.finish();
        Ok(())
    }
}

/// Seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
