//! `dray serve`: one service for all programs of a user. It shares objects under one port, keeps what is pinned, and takes
//! requests on the local API (`docs/api.md`).
//!
//! Truth stays on disk, in records under locks, so commands that run beside it and know nothing of it disturb nothing; what
//! is in memory here (sessions, transactions, who is connected) ends with the process, and may.

mod desk;
mod directories;
mod getting;
mod hub;
mod indexing;
mod metrics;
mod notify;
mod opening;
mod outlet;
mod port;
mod pulse;
mod putting;
mod routes;
mod shelf;
mod sockets;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dray_api::{Descriptors, Server};
use dray_core::limits::INDEX_FREE_BYTES_MIN;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_engine::session::Holder;
use dray_store::local::LocalStore;
use dray_store::lock_file;
use dray_transfer::direct::Listener;
use dray_transfer::holder::serve_or_leave;
use dray_transfer::transport::{Channel, TlsChannel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::copy::{LiveTrees, OwnDirectories, live_hello};
use crate::elsewhere::Index;
use crate::get::SharedMemory;
use crate::put::unix_s;
use crate::{Config, Event, Node, Observer, Stop, lock};

pub(crate) use desk::given_name;
use directories::Directories;
use hub::Hub;
use indexing::{Indexing, Means, Pace, REST_PER_WORK};
use metrics::Exporter;
use opening::{Attempt, Opening};
use port::{Missed, Port};
use shelf::Shelf;
use sockets::Sockets;

/// How often it is looked whether receivers are still accepted, and whether a port is free that was another's, where no signal comes.
const INTERVAL: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Locked by the daemon as long as it runs. It is tried for a moment, as others look at it.
pub(crate) const LOCK: &str = "daemon.lock";
const LOCK_TRIES: u32 = 10;
const LOCK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a request waits for another process that holds a lock of the data directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(8);

/// The running service.
pub struct Daemon {
    state: Arc<State>,
    sockets: Sockets,
    descriptors: Arc<Descriptors>,
    server: Server,
    /// The first, and that of the port it should have had, once it is free.
    listeners: Vec<Arc<Listener>>,
    exporter: Option<Exporter>,
    /// Where it should be.
    figures_at: Option<SocketAddr>,
    /// Held as long as it runs.
    _lock: File,
}

/// What every thread of the service knows.
struct State {
    /// Replaced when the configuration is read again.
    node: RwLock<Arc<Node>>,
    shelf: Arc<Shelf>,
    directories: Directories,
    desk: desk::Desk,
    hub: Arc<Hub>,
    /// The chunk index.
    indexing: Arc<Indexing>,
    /// Connections of receivers.
    serving: AtomicUsize,
    /// Bytes that transactions had moved when that was last looked at.
    moved: AtomicU64,
    /// For what gets have fetched, or asked for, and their clients have not taken: of all of them together.
    memory: SharedMemory,
    /// That tickets name.
    port: AtomicU16,
    troubles: Mutex<Troubles>,
    started_unix_s: u64,
}

/// What the daemon does not have and tries to get again and again.
#[derive(Default)]
struct Troubles {
    /// The port that it should have: tickets reach nobody there.
    port: Option<Arc<Missed>>,
    /// Why nobody is told figures.
    metrics: Option<String>,
}

impl State {
    fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// What whoever puts must know.
    fn port_warning(&self) -> Option<String> {
        lock(&self.troubles).port.as_ref().map(|missed| missed.warning.clone())
    }

    /// What whoever asks for the state must know.
    fn warnings(&self) -> Vec<String> {
        let metrics = lock(&self.troubles).metrics.clone();
        self.port_warning().into_iter().chain(metrics).collect()
    }

    fn node(&self) -> Arc<Node> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Daemon {
    /// Takes the data directory, the sockets and the port, and begins to serve. `Refused` if another daemon has one of them.
    pub fn start(config: Config, observer: Arc<dyn Observer>) -> Result<Daemon> {
        allow_many_files();
        let mut node = Node::open(config)?;
        node.store = Some(Arc::new(LocalStore::clone(node.store()?).with_patience(LOCK_PATIENCE)));
        let lock = lock_data_dir(&node.config.paths.data_dir)?;
        let indexing = Arc::new(Indexing::default());
        indexing.set_wanted(wanted_mib(&node.config));
        node.index = Index::here(indexing.clone());
        let sockets = Sockets::open()?;
        // What follows may take long, and who asks meanwhile shall know that somebody is there.
        let opening: Arc<Opening> = Arc::default();
        let server = Server::start(sockets.api()?, opening.clone())?;
        let attempt = Attempt(opening);
        let Port { listener, missed } = port::listen(&node)?;
        let port = listener.port()?;
        let listener = Arc::new(listener);
        let hub = Arc::new(Hub::new(observer));
        let shelf =
            Arc::new(Shelf::load(node.store()?.clone(), node.id(), hub.clone(), listener.clear_tokens())?);
        let directories = State::directories(&node, hub.clone())?;
        if let Some(missed) = &missed {
            hub.log(Event::Warning(missed.warning.clone()));
        }
        let memory = SharedMemory::new(node.config.window_bytes);
        let state = Arc::new(State {
            node: RwLock::new(Arc::new(node)),
            shelf,
            directories,
            desk: desk::Desk::default(),
            hub,
            indexing,
            serving: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            memory,
            port: AtomicU16::new(port),
            troubles: Mutex::new(Troubles { port: missed.map(Arc::new), metrics: None }),
            started_unix_s: unix_s(),
        });
        state.shelf.set_clear_data(state.node().config.clear_text_data);
        let figures_at = state.node().config.metrics;
        let exporter = figures_at.and_then(|address| State::export(&state, address));
        let descriptors = Descriptors::start(sockets.descriptors()?)?;
        let routes = routes::Routes { state: state.clone(), descriptors: descriptors.clone() };
        attempt.0.open(routes);
        let listeners = vec![listener];
        Ok(Daemon { state, sockets, descriptors, server, listeners, exporter, figures_at, _lock: lock })
    }

    /// Its node id.
    pub fn id(&self) -> NodeId {
        self.state.node().id()
    }

    /// The TCP port that objects are served at.
    pub fn port(&self) -> u16 {
        self.state.port()
    }

    /// Where it tells its figures to whoever asks, if it does.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.exporter.as_ref().map(Exporter::address)
    }

    /// The socket of the API.
    pub fn socket(&self) -> &Path {
        self.sockets.path()
    }

    /// How many objects it shares.
    pub fn shares(&self) -> usize {
        self.state.shelf.counts().0
    }

    /// How many directories it shares.
    pub fn directories(&self) -> usize {
        self.state.directories.count()
    }

    /// Serves until `stop`; reads the configuration again each time `reload` is set, and unsets it. Both are looked at when there is
    /// something to read from `signals`, which does not block. Then ends what is under way: receivers are cut off and go on when
    /// it runs again, sessions end.
    pub fn run(mut self, stop: &Stop, reload: &Stop, signals: &UnixStream) -> Result<()> {
        let mut accepting = vec![self.accept(&self.listeners[0])?];
        // Never waited for: it may be waiting for a disk, and where it stands is as good an end as any.
        let state = self.state.clone();
        // What programs are putting is on the same disk, and what nobody holds makes way for it.
        let cache_bytes = {
            let state = state.clone();
            move || state.node().config.cache_bytes.saturating_sub(state.desk.caching_bytes())
        };
        let keep_house = move || state.shelf.keep_house(&cache_bytes, &|| state.directories.tick());
        let keeping = thread::Builder::new().name("housekeeping".into()).spawn(keep_house);
        keeping.map_err(|error| Error::file("start a thread", error))?;
        let state = self.state.clone();
        let indexing = thread::Builder::new().name("indexing".into()).spawn(move || state.index());
        indexing.map_err(|error| Error::file("start a thread", error))?;
        notify::ready();
        while !stop.is_set() && !accepting.iter().any(JoinHandle::is_finished) {
            accepting.extend(self.mend());
            if reload.take() {
                notify::reloading();
                self.state.reload();
                notify::ready();
            }
            // The flags are set before there is something to read.
            let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&INTERVAL));
            let _ = (&mut &*signals).read(&mut [0; 64]);
        }
        notify::stopping();
        // New clients first, so that nobody begins what cannot be finished.
        self.sockets.remove();
        self.descriptors.stop();
        // They hear so while the others are told.
        self.state.directories.trees().close();
        drop(self.exporter.take());
        self.state.hub.end();
        self.state.indexing.end();
        self.state.desk.end_all();
        let answered = self.server.stop();
        self.listeners.iter().for_each(|listener| listener.stop());
        for accepting in accepting {
            let _ = accepting.join();
        }
        self.state.directories.trees().wait();
        self.state.shelf.rest();
        self.state.shelf.finish();
        match stop.is_set() {
            true => answered,
            false => Err(Error::new(ErrorKind::Internal, "the thread that accepts receivers failed")),
        }
    }
}

impl Daemon {
    /// A thread that takes receivers in.
    fn accept(&self, listener: &Arc<Listener>) -> Result<JoinHandle<()>> {
        let (listener, state) = (listener.clone(), self.state.clone());
        let serve: Arc<dyn Fn(TlsChannel) + Send + Sync> = Arc::new(move |channel| state.serve(channel));
        let spawned = thread::Builder::new().name("accept".into()).spawn(move || listener.accept_all(serve));
        spawned.map_err(|error| Error::file("start a thread", error))
    }

    /// Gets what others had, if it is free by now; the thread that then takes receivers in beside the first.
    fn mend(&mut self) -> Option<JoinHandle<()>> {
        let state = &self.state;
        if self.exporter.is_none() {
            self.exporter = self.figures_at.and_then(|address| State::export(state, address));
        }
        let missed = lock(&state.troubles).port.clone()?;
        let listener = Arc::new(missed.regain(&state.node(), &self.listeners[0])?);
        // Where there is no thread for it, it is tried again.
        let accepting = self.accept(&listener).ok()?;
        lock(&state.troubles).port = None;
        state.port.store(missed.port, Ordering::Relaxed);
        state.hub.log(Event::Note(format!("TCP port {} is the daemon's again", missed.port)));
        self.listeners.push(listener);
        Some(accepting)
    }
}

impl State {
    /// Tells figures at `address`, if nobody else has it: they are worth a warning, not the service.
    fn export(state: &Arc<State>, address: SocketAddr) -> Option<Exporter> {
        let started = Exporter::start(address, state.clone());
        let warning = started
            .as_ref()
            .err()
            .map(|error| format!("nobody is told figures: {error}; it is tried again every minute"));
        let before = std::mem::replace(&mut lock(&state.troubles).metrics, warning.clone());
        if let Some(text) = warning.filter(|_| before.is_none()) {
            state.hub.log(Event::Warning(text));
        }
        started.ok()
    }

    /// The directories that `node` shares.
    fn directories(node: &Node, hub: Arc<Hub>) -> Result<Directories> {
        let logging = hub.clone();
        let own = OwnDirectories::of(&node.config.paths);
        let trees = LiveTrees::new(node.id(), own, Arc::new(move |event| logging.log(event)));
        Directories::load(node.store()?.clone(), trees, hub)
    }

    /// One connection of a receiver.
    fn serve(&self, channel: TlsChannel) {
        let peer = channel.security().map(|security| security.peer);
        let address = channel.peer_addr().ok().map(|address| address.ip());
        let holder = Holder::new(live_hello(&self.node()));
        let counter = self.shelf.counter();
        self.serving.fetch_add(1, Ordering::Relaxed);
        let _served = Served(&self.serving);
        let error = match serve_or_leave(Box::new(channel), holder, Vec::new(), &counter, None) {
            Ok(None) => return,
            Ok(Some(left)) => {
                // What became of it has been told, but for what was held back.
                if self.directories.trees().give(left, address).is_err() {
                    self.shelf.stir();
                }
                return;
            }
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Protocol {
            self.shelf.turned_away(error.to_string());
        }
        if let Some(peer) = peer {
            counter.lost(peer, &error);
        }
    }

    /// Fills the chunk index, as long as the daemon runs.
    fn index(&self) {
        let node = self.node();
        let Ok(store) = node.store() else { return };
        self.indexing.run(&Means {
            root: node.config.paths.data_dir.join("index"),
            free_bytes: INDEX_FREE_BYTES_MIN,
            store,
            is_busy: &|| self.is_moving(),
            pace: Pace::new(REST_PER_WORK),
            recipe_of: &|oid| self.shelf.recipe_of(oid),
            mounts: &crate::mounts::Mounts::now,
            observer: &|event| self.hub.log(event),
        });
    }

    /// Whether bytes are moved for anybody, or wait to be (Y5): somebody fetches from here, a get is under way, or a put took bytes since
    /// this was last asked.
    fn is_moving(&self) -> bool {
        let (moved, is_getting) = self.desk.moved();
        let has_moved = self.moved.swap(moved, Ordering::Relaxed) != moved;
        has_moved || is_getting || self.serving.load(Ordering::Relaxed) > 0
    }

    /// Reads the configuration again. One that is bad changes nothing.
    fn reload(&self) {
        let now = self.node();
        let config = match Config::load() {
            Ok(config) => config,
            Err(error) => {
                let text = format!("the configuration stays as it was: {error}");
                return self.hub.log(Event::Warning(text));
            }
        };
        if config.port != now.config.port
            || config.metrics != now.config.metrics
            || config.paths.data_dir != now.config.paths.data_dir
        {
            self.hub.log(Event::Warning(
                "another port, data directory or address for metrics counts when the daemon is started again"
                    .into(),
            ));
        }
        self.shelf.set_clear_data(config.clear_text_data);
        let paths = now.config.paths.clone();
        let config = Config { paths, ..config };
        self.indexing.set_wanted(wanted_mib(&config));
        let node = Node {
            config,
            tls: now.tls.clone(),
            secret: now.secret.clone(),
            store: now.store.clone(),
            index: now.index.clone(),
            reserved: now.reserved.clone(),
        };
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(node);
        self.shelf.stir();
        self.hub.log(Event::Note("the configuration was read again".into()));
    }
}

/// MiB that the chunk index may take on disk, if there shall be one.
fn wanted_mib(config: &Config) -> Option<u64> {
    config.index.then_some(config.index_mib)
}

/// One connection of a receiver, until it is dropped.
struct Served<'a>(&'a AtomicUsize);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a daemon serves `data_dir`, as far as its lock tells. It is not asked, nor started.
pub(crate) fn runs_for(data_dir: &Path) -> bool {
    let Ok(file) = File::open(data_dir.join(LOCK)) else { return false };
    // Whoever looks at the same time does not count.
    !matches!(file.try_lock_shared(), Ok(()))
}

/// One daemon for each data directory.
fn lock_data_dir(data_dir: &Path) -> Result<File> {
    lock_by(data_dir, &mut || thread::sleep(LOCK_INTERVAL))
}

/// The same, with `wait` between two tries.
fn lock_by(data_dir: &Path, wait: &mut dyn FnMut()) -> Result<File> {
    let path = data_dir.join(LOCK);
    let failed = |error| Error::file(format!("lock {path:?}"), error);
    let mut file = lock_file::open(&path).map_err(failed)?;
    let mut tries = 1;
    let locked = loop {
        match file.try_lock() {
            // Somebody may be looking whether there is a daemon.
            Err(std::fs::TryLockError::WouldBlock) if tries < LOCK_TRIES => {
                tries += 1;
                wait();
            }
            locked => break locked,
        }
    };
    match locked {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = (&mut file).take(20).read_to_string(&mut pid);
            let what = format!("another daemon (process {}) serves {data_dir:?}", pid.trim());
            return Err(Error::new(ErrorKind::Refused, what)
                .advise("`dray status` asks it; to replace it, stop it first"));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind());
    written.and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

/// Each receiver and each open object costs descriptors; the usual limit is for interactive programs.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Do not start a daemon by asking": whether one runs is seen without asking it, and looking keeps none from starting.
    #[test]
    fn a_daemon_is_seen_by_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!runs_for(dir.path()));
        let lock = lock_data_dir(dir.path()).unwrap();
        assert!(runs_for(dir.path()));
        drop(lock);
        assert!(!runs_for(dir.path()), "its lock is there, and nobody holds it");
        // Whoever looks does so for a moment.
        let looking = |until: u32| {
            let looker = File::open(dir.path().join(LOCK)).unwrap();
            looker.try_lock_shared().unwrap();
            let (mut looker, mut waits) = (Some(looker), 0);
            let locked = lock_by(dir.path(), &mut || {
                waits += 1;
                if waits == until {
                    drop(looker.take());
                }
            });
            (locked.map(drop).map_err(|error| error.kind()), waits)
        };
        assert_eq!(looking(LOCK_TRIES - 1), (Ok(()), LOCK_TRIES - 1));
        assert_eq!(looking(LOCK_TRIES), (Err(ErrorKind::Refused), LOCK_TRIES - 1));
    }
}
