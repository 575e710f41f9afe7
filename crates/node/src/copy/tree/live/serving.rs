//! The holder's side: who may have which directory, and the tree for whoever may.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use dray_core::limits::{HELLO_TIMEOUT_MS, LIVE_TREE_RECEIVERS_MAX};
use dray_core::message::{Message, ObjectName, Tree, feature};
use dray_core::store::Share;
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, NodeId, Result};
use dray_store::local::tree::{
    DigestOptions, DirectoryKey, Guard, Origin, Pulse, SharedDirectory, WalkOptions, directory_key, touches,
};
use dray_transfer::holder::Left;
use dray_transfer::transport::{Duplex, RateLimit};
use dray_transfer::tree::{Batch, Removes, TreeSource, send};

use super::super::super::remote::{packed, read_control_until, tell};
use super::super::digests::{Telling, digest_options};
use super::super::source::WalkSource;
use super::super::sync::deletes;
use super::super::walk_options;
use super::places::{DISK_PATIENCE, Place, Places};
use super::wish;
use crate::admission::{Notices, Right, admit};
use crate::config::Paths;
use crate::{Event, Observer, lock};

/// How long a receiver may be silent: it says at least once in each second that it lives.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long, and how much of it, a receiver is heard that was refused: what nobody reads would cost it the answer.
const HEARD_OUT: Duration = Duration::from_secs(2);
const HEARD_OUT_BYTES: usize = 1 << 20;
/// How long the last words to those who are fetching may take: they are stopped within 200 ms, and have 2 s to hear why.
const FAREWELL: Duration = Duration::from_millis(2200);

/// A directory, and who may have what is in it.
struct LiveTree {
    id: DirectoryId,
    directory: SharedDirectory,
    share: Share,
    /// Set when it is not shared any more.
    ended: Arc<AtomicBool>,
    /// Hears who comes and goes.
    observer: Arc<dyn Observer>,
    /// And why it cannot be given.
    notices: Notices,
}

/// The directories that a process shares.
pub(crate) struct LiveTrees {
    node: NodeId,
    /// Of this node, never given to anybody.
    own: OwnDirectories,
    trees: Mutex<HashMap<DirectoryId, Arc<LiveTree>>>,
    places: Arc<Places>,
    /// Of those who are turned away.
    notices: Notices,
    /// Set when this process ends.
    closing: AtomicBool,
}

/// Directories of this node's own: whoever has what is in them is this node, or has all that it shares.
pub(crate) struct OwnDirectories {
    paths: Vec<PathBuf>,
    /// What they were when this was made, wherever they are moved to.
    keys: Vec<DirectoryKey>,
}

impl OwnDirectories {
    pub(crate) fn of(paths: &Paths) -> OwnDirectories {
        let config = paths.config_file.parent().filter(|folder| folder.ends_with("dray"));
        // Its sockets; the directory itself may be `/tmp`.
        let runtime = paths.runtime_dir.as_ref().map(|dir| dir.join("dray"));
        let all = [Some(paths.data_dir.clone()), runtime, config.map(PathBuf::from)];
        let paths: Vec<PathBuf> = all.into_iter().flatten().collect();
        OwnDirectories { keys: paths.iter().filter_map(|own| directory_key(own)).collect(), paths }
    }

    /// What they were, and what they are now.
    fn keys(&self) -> Arc<[DirectoryKey]> {
        let now = self.paths.iter().filter_map(|own| directory_key(own));
        now.chain(self.keys.iter().copied()).collect()
    }

    /// `Usage` if `directory` is, holds or lies in one of them.
    pub(crate) fn require_foreign(&self, directory: &SharedDirectory) -> Result<()> {
        let path = directory.path();
        let Some(own) = self.paths.iter().find(|own| touches(path, own)) else { return Ok(()) };
        let what = format!(
            "{path:?} is not shared: {own:?}, where dray keeps its keys and secrets, is or lies in it, or around it"
        );
        Err(Error::new(ErrorKind::Usage, what)
            .advise("share a directory that has nothing to do with that one"))
    }
}

impl LiveTrees {
    /// None so far, with as many places as a process has. `observer` hears who is turned away.
    pub(crate) fn new(node: NodeId, own: OwnDirectories, observer: Arc<dyn Observer>) -> LiveTrees {
        LiveTrees::among(Places::of(LIVE_TREE_RECEIVERS_MAX), node, own, observer)
    }

    /// The same, with these places.
    pub(super) fn among(
        places: Arc<Places>,
        node: NodeId,
        own: OwnDirectories,
        observer: Arc<dyn Observer>,
    ) -> LiveTrees {
        LiveTrees {
            node,
            own,
            trees: Mutex::default(),
            places,
            notices: Notices::new(observer),
            closing: AtomicBool::new(false),
        }
    }

    /// True for the sort of name that directories have.
    pub(crate) fn is_name(object: &ObjectName) -> bool {
        matches!(object, ObjectName::Provisional(_))
    }

    /// Which directories are not shared by this node.
    pub(crate) fn own(&self) -> &OwnDirectories {
        &self.own
    }

    /// Shares a directory from now on; nothing is looked at before a receiver asks. `observer` hears who fetches it.
    pub(crate) fn add(
        &self,
        id: DirectoryId,
        directory: SharedDirectory,
        share: Share,
        observer: Arc<dyn Observer>,
    ) {
        let notices = Notices::new(observer.clone());
        let tree = LiveTree { id, directory, share, ended: Arc::default(), observer, notices };
        lock(&self.trees).insert(id, Arc::new(tree));
    }

    /// One that is this directory at this path, and shared as `is_wanted` says.
    pub(crate) fn same(
        &self,
        directory: &SharedDirectory,
        is_wanted: &dyn Fn(&Share) -> bool,
    ) -> Option<DirectoryId> {
        let trees = lock(&self.trees);
        let mut trees = trees.values();
        trees.find(|tree| tree.directory.is_same(directory) && is_wanted(&tree.share)).map(|tree| tree.id)
    }

    /// Shares it no longer; who is fetching it is cut off.
    pub(crate) fn end(&self, id: DirectoryId) {
        if let Some(tree) = lock(&self.trees).remove(&id) {
            tree.ended.store(true, Ordering::Release);
        }
        self.places.end(id);
    }

    /// Gives nothing any more, since this process ends: who is fetching hears that the same command goes on later.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.places.end_all();
    }

    /// Waits until those have gone who were stopped, or their time for last words is over.
    pub(crate) fn wait(&self) {
        self.places.wait(FAREWELL);
    }

    /// To be called now and then: tells what was held back; false if there is something left to tell.
    pub(crate) fn tick(&self) -> bool {
        self.notices.tick()
    }

    /// `TimedOut` once this process ends, by which the receiver knows that it may come again.
    fn check_open(&self) -> Result<()> {
        if !self.closing.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::TimedOut, "the holder stops")
            .advise("the same command again goes on where this one stopped, once the holder runs again"))
    }

    /// Goes on with a connection whose receiver opened what may be a shared directory; where it comes from. An error has been told to it.
    pub(crate) fn give(&self, left: Left, address: Option<IpAddr>) -> Result<()> {
        let Left { mut channel, open, agreed, preface, sent_bytes } = left;
        let refuse = |channel: &mut dyn Duplex, preface, error: Error| {
            let error = tell(channel, preface, error);
            hear_out(channel);
            Err(error)
        };
        let Some(security) = channel.security() else {
            let error = Error::new(ErrorKind::Refused, "this channel proves nobody");
            return refuse(&mut *channel, preface, error);
        };
        let ObjectName::Provisional(id) = open.object else {
            return Err(Error::new(ErrorKind::Internal, "an object was taken for a directory"));
        };
        let tree = lock(&self.trees).get(&DirectoryId::from_bytes(id)).cloned();
        let shared = tree.as_ref().map(|tree| (tree.id.object(), &tree.share));
        let admitted = admit(shared, self.node, &open, &security);
        let (Some(tree), Ok(())) = (&tree, &admitted) else {
            let answer = match admitted {
                Err(refusal) => {
                    self.notices.turned_away(refusal.reason);
                    refusal.answer
                }
                Ok(()) => Error::new(ErrorKind::Internal, "nothing was found to admit to"),
            };
            return refuse(&mut *channel, preface, answer);
        };
        let deadline = Instant::now() + Duration::from_millis(HELLO_TIMEOUT_MS);
        let asked =
            read_control_until(&mut *channel, deadline, &|| false).and_then(
                |body| match Message::from_bytes(&body)? {
                    Message::Tree(asked) => wish::check(&asked).map(|()| asked),
                    Message::Fault(fault) => Err(fault.to_error("the receiver")),
                    _ => Err(Error::new(
                        ErrorKind::Protocol,
                        "receiver did not say what it wants of the directory",
                    )),
                },
            );
        let begun = asked.and_then(|asked| {
            // In this order: whoever has a place when all are stopped is stopped.
            let place = self.places.take(tree.id, address)?;
            self.check_open()?;
            Ok((place, asked))
        });
        let (place, asked) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.notices.turned_away(error.to_string());
                return refuse(&mut *channel, preface, error);
            }
        };
        channel.keep_place();
        let node = security.peer.to_string();
        tree.observer.event(Event::ServingDirectory { node: node.clone() });
        let digests = agreed.has(feature::TREE_DIGESTS);
        let result = self.send(channel, preface, tree, &place, &asked, digests);
        let lost = result.as_ref().err().map(ToString::to_string);
        let sent_bytes = sent_bytes.load(Ordering::Relaxed);
        tree.observer.event(Event::ServedDirectory { node, sent_bytes, lost });
        result
    }

    /// Sends what was asked for.
    fn send(
        &self,
        mut channel: Box<dyn Duplex>,
        mut preface: Vec<u8>,
        tree: &Arc<LiveTree>,
        place: &Place,
        asked: &Tree,
        digests: bool,
    ) -> Result<()> {
        let names = [Vec::new()];
        let opened = self.own.require_foreign(&tree.directory).and_then(|()| tree.directory.open());
        let opened = opened.and_then(|within| Ok((within, walk_options(asked, &names)?)));
        let (within, options) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tree.notices.trouble(&error);
                // Nobody waits for it to hear why.
                place.leaving()();
                let error = tell(&mut *channel, preface, for_strangers(error.kind()));
                hear_out(&mut *channel);
                return Err(error);
            }
        };
        place.opened();
        let never = self.own.keys();
        let pulse = Arc::new(Pulse::new(place.stop.flag()));
        let guard = Guard { never, pulse: pulse.clone() };
        let limit = asked.rate_bytes.map(RateLimit::new);
        let channel = packed(channel, false, limit.as_ref(), &mut preface)?;
        let (origin, paths) = (Origin::Within(within), vec![PathBuf::from(".")]);
        let options = WalkOptions { guard: Some(guard.clone()), ..options };
        let source = WalkSource::new(paths.clone(), options, false, place.stop.clone())
            .at(origin.clone())
            .telling_listed(deletes(asked))
            .among(LIVE_TREE_RECEIVERS_MAX);
        let alike = digest_options(asked, &names).filter(|_| digests);
        let alike = alike.map(|options| DigestOptions { guard: Some(guard), ..options });
        let source = Telling::new(source, asked, alike, paths, place.stop.clone()).at(origin);
        let mut source = Guarded { source, place };
        let right = Right { end: tree.share.expires_unix_s, ended: tree.ended.clone() };
        // A right that ends, a place that is taken, and the end of this process are no trouble of the directory's.
        let check = || {
            right.check()?;
            self.check_open()?;
            if !place.stop.is_set() {
                return Ok(());
            }
            Err(Error::new(ErrorKind::TimedOut, "others fetch from the holder, who had their turn")
                .advise("the same command again goes on where this one stopped"))
        };
        let (mut is_cut_off, mut said_at) = (false, Instant::now());
        let mut heard = |message: Option<Message>| match message {
            None => {
                place.passes();
                check().inspect_err(|_| is_cut_off = true)?;
                if pulse.hangs_for() > DISK_PATIENCE {
                    return Err(Error::new(ErrorKind::TimedOut, "the holder's disk does not answer"));
                }
                Ok(())
            }
            Some(Message::Progress(_) | Message::EntryFailed(_) | Message::Planned(_)) => {
                said_at = Instant::now();
                Ok(())
            }
            Some(Message::Fault(fault)) => {
                Err(Error::new(ErrorKind::Interrupted, fault.to_error("the receiver").to_string()))
            }
            Some(_) => Err(Error::new(ErrorKind::Protocol, "message out of place")),
        };
        let sent = send(channel, preface, &mut source, None, &mut heard, &|| PATIENCE);
        match &sent {
            Ok(_) => tree.notices.well(),
            Err(error) if is_of_the_disk(error, is_cut_off, said_at) => tree.notices.trouble(error),
            Err(_) => {}
        }
        sent.map(|_| ())
    }
}

/// Whether a tree broke off for what was read here: not for its receiver, who `said` something last then, nor because it was `cut_off`.
fn is_of_the_disk(error: &Error, cut_off: bool, said: Instant) -> bool {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Protocol | ErrorKind::Interrupted => false,
        ErrorKind::TimedOut => !cut_off && said.elapsed() < PATIENCE,
        _ => !cut_off,
    }
}

/// What a receiver is told of a directory that cannot be had: the kind, and no path.
fn for_strangers(kind: ErrorKind) -> Error {
    match kind {
        ErrorKind::Changed | ErrorKind::NotFound | ErrorKind::Usage => {
            Error::new(ErrorKind::Changed, "the directory that was shared is not at its place")
                .advise("the same command again works once it is; otherwise ask for it to be put again, and for the new ticket")
        }
        ErrorKind::Unsupported => Error::new(kind, "the holder cannot share directories"),
        _ => Error::new(ErrorKind::Refused, "the holder cannot read the directory")
            .advise("ask whoever runs `dray put` what it says"),
    }
}

/// Reads what a refused receiver still says, for a moment.
fn hear_out(channel: &mut dyn Duplex) {
    let deadline = Instant::now() + HEARD_OUT;
    let (mut unheard, mut left) = (vec![0; 16 * 1024], HEARD_OUT_BYTES);
    while left > 0 && Instant::now() < deadline {
        match channel.try_read(&mut unheard) {
            Ok(None) => {
                if channel.wait(None, Duration::from_millis(100)).is_err() {
                    return;
                }
            }
            Ok(Some(0)) | Err(_) => return,
            Ok(Some(count)) => left = left.saturating_sub(count),
        }
    }
}

/// The tree of one receiver, which ends when that leaves.
struct Guarded<'a> {
    source: Telling,
    place: &'a Place,
}

impl TreeSource for Guarded<'_> {
    fn listen(&mut self, words: mpsc::Receiver<Message>) {
        self.source.listen(words);
    }

    fn next_batch(&mut self) -> Option<Batch> {
        self.source.next_batch()
    }

    fn removes(&self) -> Option<Arc<dyn Removes>> {
        None
    }

    fn on_end(&self) -> Option<Box<dyn Fn() + Send + Sync>> {
        Some(self.place.leaving())
    }

    fn hears_out(&self) -> bool {
        true
    }

    fn hold(&self) -> Option<Box<dyn Send>> {
        Some(self.place.hold())
    }

    fn batches_ahead(&self) -> usize {
        self.source.batches_ahead()
    }
}
