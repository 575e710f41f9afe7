//! The receiving end of a copy, the same on either side of ssh.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Collector, Geometry, PairStore};
use dray_core::message::{self, Fault, Message, ObjectName, Offer};
use dray_core::range::RangeSet;
use dray_core::source::{Grade, SourceCapabilities, SourceDescription, SourceId};
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::planner::DeliveryMode;
use dray_engine::session::Receiver;
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions, new_file_mode};
use dray_transfer::lanes::{LaneSet, LaneStart, Opening};
use dray_transfer::transport::{Channel, push_control};
use rustix::fs::{Mode, OFlags};

use super::DIRECT_FROM_BYTES;
use super::direct::{Door, ReceivingDoor, ssh_connection};
use super::local::channel_name;
use super::reach::{Confinement, Target, confined_target};
use crate::elsewhere::{Elsewhere, Prospect, up_to_home};
use crate::explain::{Figures, Role, Snapshot, Watch, figures_of, nothing_yet};
use crate::get::{report, resumed, split};
use crate::search::{self, Scope};
use crate::transfer::{OlderVersion, Sink, Start, Transfer, Truth};
use crate::{Delivered, Event, Node, Observer, SearchPolicy, Stop};

const SSH: SourceId = SourceId(0);
const DIRECT: SourceId = SourceId(1);
/// Bytes that OpenSSH lets be under way in a channel (`CHAN_SES_WINDOW_DEFAULT`), and takes from whoever sends whether the line carries
/// them or not.
const SSH_WINDOW_BYTES: u64 = 2 << 20;
/// How long an earlier run may take to let go of its files.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often the sending side is told how far we are.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Everything the receiving end was told before the first byte.
pub(super) struct Incoming {
    /// What to call the other side in messages.
    pub(super) peer: String,
    /// The ssh channel, hellos exchanged.
    pub(super) channel: Box<dyn Channel>,
    /// Session state of the channel.
    pub(super) receiver: Receiver,
    /// Frames to send first.
    pub(super) preface: Vec<u8>,
    /// What comes.
    pub(super) offer: Offer,
    /// Keep mode and modification time.
    pub(super) preserve: bool,
    /// Fetch everything, whatever lies at the destination.
    pub(super) whole_file: bool,
    /// Search for parts of it below this directory.
    pub(super) search: Option<PathBuf>,
    /// Make data and name durable.
    pub(super) fsync: bool,
    /// Name of the file in a directory: from the user's own words, or the far end's choice among the names that the user's
    /// pattern stands for.
    pub(super) name: OsString,
    /// Direct connections to loopback and link-local addresses are all right: ssh went there too.
    pub(super) allow_local: bool,
    /// There is a network between the two ends, so a direct connection is worth trying.
    pub(super) is_other_host: bool,
    /// Addresses under which the other side sees us.
    pub(super) seen_as: Vec<IpAddr>,
    /// Address under which we see the other side.
    pub(super) sees: Option<IpAddr>,
    /// What comes is compressed, and goes one way alone.
    pub(super) is_compressed: bool,
    /// The directory that this login must not leave.
    pub(super) within: Option<Arc<Confinement>>,
}

impl Incoming {
    /// `watch` tells of it from now on.
    fn begin(&self, watch: &Watch, figures: Figures) {
        let (what, peer) = (self.name.to_string_lossy(), self.watched_peer());
        watch.begin(Role::Receiving, &what, peer.as_deref(), figures);
    }

    /// The other host, for whoever asks what runs here; `None` if it is this one.
    fn watched_peer(&self) -> Option<String> {
        match self.sees {
            // At the far end the peer's name is what it does, and its address is known.
            Some(address) => Some(address.to_string()),
            None => self.is_other_host.then(|| self.peer.clone()),
        }
    }
}

/// Where the file goes: `wish` itself, or `name` in it if it is a directory.
pub(super) fn destination(wish: &Path, name: &OsStr, within: Option<&Confinement>) -> Result<Target> {
    let bytes = name.as_bytes();
    let is_plain =
        !bytes.is_empty() && name != "." && name != ".." && !bytes.iter().any(|b| matches!(b, b'/' | 0));
    let no_name = || {
        Error::new(ErrorKind::Usage, format!("{name:?} is no name for a file in {wish:?}"))
            .advise("name the destination file")
    };
    if let Some(within) = within {
        return if is_plain { confined_target(within, wish, name) } else { Err(no_name()) };
    }
    let path = if !wish.as_os_str().is_empty() && !wish.is_dir() {
        let (dir, name) = split(wish)?;
        dir.join(name)
    } else if !is_plain {
        return Err(no_name());
    } else if wish.as_os_str().is_empty() {
        name.into()
    } else {
        wish.join(name)
    };
    Ok(Target::anywhere(path))
}

/// Opens the delivery. A killed command's far end may need a moment to notice and let go of the same file.
fn open_delivery(target: &Target, object: ObjectName, size_bytes: u64) -> Result<Delivery> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match open_delivery_once(target, object, size_bytes) {
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50))
            }
            result => return result,
        }
    }
}

pub(super) fn open_delivery_once(target: &Target, object: ObjectName, size_bytes: u64) -> Result<Delivery> {
    let options = DeliveryOptions::default();
    let Some(directory) = target.folder() else {
        return Delivery::open(&target.path, object, size_bytes, options);
    };
    let directory = directory.try_clone().map_err(|error| Error::io("open the destination", error))?;
    Delivery::open_in(directory, &target.path, object, size_bytes, options)
}

impl Node {
    /// Receives one file. The other side hears of success or failure before this returns.
    pub(super) fn receive(
        &self,
        incoming: Incoming,
        wish: &Path,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        incoming.begin(watch, nothing_yet(incoming.offer.size_bytes));
        let target = match destination(wish, &incoming.name, incoming.within.as_deref()) {
            Ok(target) => target,
            Err(error) => return Err(refuse(incoming, error)),
        };
        watch.set_path(&target.own_path());
        let finish = finish_options(&incoming.offer, &target, incoming.preserve, incoming.fsync);
        if let Some(bytes) = incoming.offer.inline.clone() {
            return receive_inline(incoming, &bytes, &target, finish, watch, observer);
        }
        let scope = match self.scope_for(&target, &incoming) {
            Ok(scope) => scope,
            Err(error) => return Err(refuse(incoming, error)),
        };
        self.config.search_policy.tell_if_off(incoming.search.as_deref(), observer);
        let geometry = Geometry::new(incoming.offer.size_bytes);
        let object = incoming.offer.object;
        let delivery = match open_delivery(&target, object, geometry.size_bytes()) {
            Ok(delivery) => Arc::new(delivery),
            Err(error) => return Err(refuse(incoming, error)),
        };
        let mut marked = delivery.marked_units();
        if geometry.groups() == 1 {
            // Its only value has no place in the outboard; one group is sooner fetched than remembered.
            marked = RangeSet::new();
        }
        let mut wanted = RangeSet::new();
        wanted.insert(0..geometry.units());
        for range in marked.iter() {
            wanted.remove(range);
        }
        let resumed_bytes = resumed(geometry, marked.iter().flatten());
        let pairs: Arc<dyn PairStore> = delivery.clone();
        let budget = self.budget();
        // Between two ends of one machine reading twice costs more than it saves.
        let older = if incoming.whole_file || !incoming.is_other_host {
            None
        } else {
            let older = OlderVersion::open(target.directory(), target.name(), geometry.size_bytes());
            // What an earlier run received is worth more than what a similar file may have.
            let elsewhere = marked.is_empty().then(|| self.others(&target, &incoming)).flatten();
            let older = OlderVersion::beside(older, elsewhere);
            let disk = self.search_in(scope, older.as_ref(), &budget, |older| search::Target {
                name: target.path.file_name().unwrap_or_default().as_bytes().to_vec(),
                size_bytes: geometry.size_bytes(),
                mtime_s: Some(incoming.offer.mtime_s),
                older,
            });
            // Whoever is logged in here without bounds may read the home that is searched (design 16).
            let may_read = incoming.search.is_none() && incoming.sees.is_some() && incoming.within.is_none();
            let older = OlderVersion::searching(older, disk);
            older.map(|older| older.shared_with(&delivery).told_to_the_sender(may_read))
        };
        let to_fetch = wanted.clone();
        let transfer = Transfer::new(
            Truth::Vouched(Collector::new(geometry, pairs)),
            Sink::Rest(delivery.clone()),
            wanted,
            resumed_bytes,
            budget,
            DeliveryMode::OutOfOrder,
            if older.is_some() { Start::Update } else { Start::Whole },
        );
        incoming.begin(watch, figures_of(&transfer, resumed_bytes));
        observer.event(Event::Started {
            name: Some(target.path.clone()),
            total_bytes: geometry.size_bytes(),
            resumed_bytes,
        });
        let lanes = self.start_lanes(&transfer, incoming, object, geometry);
        let mut told = Instant::now();
        let mut tick = || {
            report(&transfer, observer);
            watch.tick();
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                lanes.ssh.say(progress(&transfer, resumed_bytes));
            }
        };
        let result = transfer
            .run(older.as_ref(), &to_fetch, stop, &mut tick)
            .and_then(|()| transfer.seal(stop, &mut tick))
            .and_then(|oid| delivery.finish(finish).map(|()| oid));
        let is_changed = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Changed);
        if is_changed || (result.is_err() && delivery.marked_units().is_empty()) {
            // Nobody will go on from here: another state of the file has another name, or nothing came at all.
            let _ = delivery.discard();
        }
        report(&transfer, observer);
        lanes.ssh.say(progress(&transfer, resumed_bytes));
        lanes.ssh.say(match &result {
            Ok(oid) => delivered_message(*oid, &target),
            Err(error) => Message::Fault(Fault::from_error(None, error)),
        });
        watch.freeze();
        transfer.close();
        lanes.end();
        let oid = result?;
        Ok(Delivered {
            oid,
            size_bytes: geometry.size_bytes(),
            path: Some(target.path),
            resumed_bytes,
            sent_bytes: None,
        })
    }

    /// Other files with parts of what comes: up to the home for whoever may log in here and thus read them all, unless that is confined; below
    /// the destination's directory for a far end.
    fn others(&self, target: &Target, incoming: &Incoming) -> Option<Elsewhere> {
        let directory = directory_of(target)?;
        let search = |directory: &OwnedFd| {
            let name = target.path.file_name().map(OsStr::as_bytes);
            self.elsewhere(directory.as_fd(), incoming.offer.size_bytes, name)
        };
        let below = search(&directory);
        if incoming.within.is_some() || incoming.sees.is_none() || matches!(below, Prospect::Mute) {
            return below.files();
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let widest = up_to_home(directory.as_fd(), home.as_deref());
        widest.and_then(|widest| search(&widest).files()).or_else(|| below.files())
    }

    /// Where the disk is searched for parts of what comes: below the directory that the user of this command named, or up to the home for
    /// whoever may log in here and thus read it all, unless that is confined (design 16). An end that was logged in to sends to somebody who
    /// trusts it with this one file: for it, nothing is searched that was not named. An error is about what was named.
    fn scope_for(&self, target: &Target, incoming: &Incoming) -> Result<Option<Scope>> {
        let is_confined = incoming.within.is_some();
        if incoming.search.is_none() && !searches_home(self.config.search, incoming.sees, is_confined) {
            return Ok(None);
        }
        // Where there is none, the delivery says so.
        let Some(directory) = directory_of(target) else { return Ok(None) };
        if let Some(named) = &incoming.search {
            return Scope::named(named, directory.as_fd()).map(Some);
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let top = up_to_home(directory.as_fd(), home.as_deref());
        Ok(top.and_then(|top| Scope::new(top, directory.as_fd()).ok()))
    }

    /// Where the disk is searched for what may stand in for older versions of a tree's files, for whoever logged in here (design 16).
    pub(super) fn scope_for_tree(&self, base: BorrowedFd<'_>, is_confined: bool) -> Option<Scope> {
        let sees = ssh_connection().map(|(sees, _)| sees);
        if self.config.search_policy == SearchPolicy::NoDisk
            || !searches_home(self.config.search, sees, is_confined)
        {
            return None;
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Scope::new(up_to_home(base, home.as_deref())?, base).ok()
    }

    /// The ssh channel as a source, and a second one for what comes beside it.
    fn start_lanes(
        &self,
        transfer: &Arc<Transfer>,
        mut incoming: Incoming,
        object: ObjectName,
        geometry: Geometry,
    ) -> Lanes {
        let describe = |label: &str, priority, under_way_bytes| SourceDescription {
            label: label.into(),
            priority,
            weight: 1,
            capabilities: SourceCapabilities {
                grade: Grade::Vouched,
                cancel: true,
                holes: true,
                under_way_bytes,
            },
        };
        let (peer, size_bytes) = (incoming.peer.clone(), Some(geometry.size_bytes()));
        let add_source = |id, label, priority, under_way_bytes| {
            let description = describe(label, priority, under_way_bytes);
            let set = LaneSet::facing(peer.clone(), id, object, description, size_bytes, transfer.events());
            transfer.add_source(id, set.clone());
            set
        };
        let ssh = add_source(SSH, channel_name(incoming.is_other_host), 1, SSH_WINDOW_BYTES);
        let mut door = None;
        if geometry.size_bytes() >= DIRECT_FROM_BYTES
            && incoming.is_other_host
            && !incoming.is_compressed
            // A confined login makes us neither listen nor dial, nor hear our addresses.
            && incoming.within.is_none()
            // Without a listening socket, ssh carries everything.
            && let Ok(opened) = Door::open(self, &incoming.seen_as)
        {
            push_control(&mut incoming.preface, &Message::Direct(opened.invitation.clone()));
            let direct = add_source(DIRECT, "direct", 0, 0);
            door = Some(Arc::new(ReceivingDoor::new(self, opened, direct, geometry.size_bytes())));
        }
        let (lane, knocking, sees, allow_local) =
            (ssh.clone(), door.clone(), incoming.sees, incoming.allow_local);
        let start = LaneStart {
            receiver: incoming.receiver,
            preface: incoming.preface,
            secret: None,
            node: self.id(),
            round_trip_us: None,
            opening: Opening::ToAsk,
        };
        let channel = incoming.channel;
        let thread = thread::spawn(move || {
            let hook = |message: Message| {
                // Other messages mean nothing here, and neither does an invitation that we cannot follow.
                if let (Message::Direct(theirs), Some(door)) = (message, &knocking) {
                    door.handle_direct(theirs, sees, allow_local)?;
                }
                Ok(())
            };
            let ended = lane.run(channel, start, Some(&hook));
            lane.give_up(ended.err());
            // ssh is the control: when the other end is gone from there, the copy is over.
            if let Some(door) = &knocking {
                door.close();
            }
        });
        Lanes { ssh, door, thread }
    }
}

/// Whether the home is searched for what comes: if the configuration says so, for whoever logged in here, which shows in that this end sees
/// it, and is not confined to a directory.
fn searches_home(is_on: bool, sees: Option<IpAddr>, is_confined: bool) -> bool {
    is_on && sees.is_some() && !is_confined
}

/// The directory that the file goes to.
fn directory_of(target: &Target) -> Option<OwnedFd> {
    match target.folder() {
        Some(folder) => folder.try_clone().ok(),
        None => {
            let (parent, _) = split(&target.path).ok()?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(parent, flags, Mode::empty()).ok()
        }
    }
}

struct Lanes {
    ssh: Arc<LaneSet>,
    door: Option<Arc<ReceivingDoor>>,
    thread: thread::JoinHandle<()>,
}

impl Lanes {
    /// After the sources were closed: waits until the last message has left.
    fn end(self) {
        if let Some(door) = &self.door {
            door.close();
        }
        let _ = self.thread.join();
    }
}

fn progress(transfer: &Transfer, resumed_bytes: u64) -> Message {
    let direct = transfer.stats().into_iter().find(|stats| stats.source == DIRECT);
    Message::Progress(message::Progress {
        done_bytes: transfer.done_bytes(),
        resumed_bytes,
        direct_bytes: direct.map_or(0, |stats| stats.delivered_bytes),
    })
}

fn delivered_message(oid: Oid, target: &Target) -> Message {
    let mut bytes = target.told_path().as_os_str().as_bytes().to_vec();
    bytes.truncate(dray_core::limits::PATH_BYTES_MAX);
    Message::Delivered(message::Delivered { oid, path: bytes.into() })
}

/// Tells the other side before anything began.
fn refuse(mut incoming: Incoming, error: Error) -> Error {
    push_control(&mut incoming.preface, &Message::Fault(Fault::from_error(None, &error)));
    let _ = incoming.channel.write_all(&incoming.preface);
    error
}

pub(super) fn finish_options(offer: &Offer, target: &Target, preserve: bool, fsync: bool) -> FinishOptions {
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let is_new = rustix::fs::statat(target.directory(), target.name(), flags).is_err();
    FinishOptions {
        mode: mode_for(offer.mode, preserve, is_new),
        mtime: preserve.then_some((offer.mtime_s, offer.mtime_ns)),
        fsync,
        ..FinishOptions::default()
    }
}

/// The mode that the file gets; `None` for that of the file it replaces. The other side says who may read, write and
/// run it, and no more: a program that runs with its owner's rights would have another owner here.
fn mode_for(offered: u32, preserve: bool, is_new: bool) -> Option<u32> {
    if preserve {
        Some(offered & 0o777)
    } else if is_new {
        // As cp and scp do: the source's bits, less the umask.
        Some(offered & (new_file_mode() | (new_file_mode() & 0o444) >> 2))
    } else {
        None
    }
}

/// A file that came whole with its offer.
fn receive_inline(
    mut incoming: Incoming,
    bytes: &[u8],
    target: &Target,
    finish: FinishOptions,
    watch: &Watch,
    observer: &dyn Observer,
) -> Result<Delivered> {
    let size_bytes = bytes.len() as u64;
    let oid = Oid::of(bytes);
    let deliver = || {
        if incoming.offer.object != ObjectName::Oid(oid) {
            return Err(Error::new(
                ErrorKind::VerificationFailed,
                "the sender's bytes are not those it named",
            ));
        }
        let delivery = open_delivery_once(target, incoming.offer.object, size_bytes)?;
        delivery.write_data(0, bytes)?;
        delivery.finish(finish)
    };
    let result = deliver();
    if result.is_ok() {
        let all = Snapshot { size_bytes, done_bytes: size_bytes, ..Snapshot::default() };
        incoming.begin(watch, Box::new(move || Some(all.clone())));
    }
    let answer = match &result {
        Ok(()) => delivered_message(oid, target),
        Err(error) => Message::Fault(Fault::from_error(None, error)),
    };
    push_control(&mut incoming.preface, &answer);
    let told = incoming.channel.write_all(&incoming.preface);
    result?;
    told.map_err(|error| Error::io("tell the sender", error))?;
    observer.event(Event::Started {
        name: Some(target.path.clone()),
        total_bytes: size_bytes,
        resumed_bytes: 0,
    });
    observer.event(Event::Progress { done_bytes: size_bytes, total_bytes: size_bytes, sources: Vec::new() });
    Ok(Delivered { oid, size_bytes, path: Some(target.path.clone()), resumed_bytes: 0, sent_bytes: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S91: for a login that is confined to a directory, as for a host that was logged in to, no home is searched.
    #[test]
    fn the_home_is_searched_for_free_logins_alone() {
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        for is_on in [false, true] {
            assert_eq!(searches_home(is_on, client, false), is_on);
            assert!(!searches_home(is_on, client, true));
            assert!(!searches_home(is_on, None, false));
            assert!(!searches_home(is_on, None, true));
        }
    }

    /// S28: a peer cannot make a program run here with the rights of its owner or group.
    #[test]
    fn a_mode_from_elsewhere_gives_no_rights_but_access() {
        for offered in [0o4755, 0o2755, 0o1755, 0o7755, 0o755] {
            assert_eq!(mode_for(offered, true, true), Some(0o755));
            assert_eq!(mode_for(offered, true, false), Some(0o755));
            assert_eq!(mode_for(offered, false, true).unwrap() & 0o7000, 0);
            assert_eq!(mode_for(offered, false, false), None);
        }
    }
}
