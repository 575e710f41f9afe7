//! `dray get`: fetch an object by its ticket, prove it, put it under its name.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dray_core::hash_tree::{Geometry, PairStore, Verifier};
use dray_core::hint::{Hint, HintUri, selection_order};
use dray_core::limits::{NAME_BYTES_MAX, UNIT_BYTES};
use dray_core::message::ObjectName;
use dray_core::range::RangeSet;
use dray_core::source::{Grade, SourceCapabilities, SourceDescription, SourceId};
use dray_core::store::PartialObject;
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::planner::DeliveryMode;
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions};
use dray_transfer::direct::{DialConfig, Target, dial, probe};
use dray_transfer::lanes::LaneSet;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::at_hand::{self, AtHand};
use crate::explain::{Role, Watch, figures_of};
use crate::put::unix_s;
use crate::transfer::{Loss, OlderVersion, Sink, Start, Stream, Transfer, Truth, short_name};
use crate::{Delivered, Event, Node, Observer, SourceShare, Stop, join, outboard};

/// How far ahead of standard output the sources may be.
const STREAM_WINDOW_BYTES: u64 = 32 << 20;

/// What to fetch.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// By ticket.
    Ticket(Ticket),
    /// By name alone; where comes from [`GetRequest::hints`].
    Oid(Oid),
}

/// Where to put it.
#[derive(Clone, Debug)]
pub enum Output {
    /// Under the name the sender suggests, in the current directory; an existing file is not replaced.
    Suggested,
    /// To this file, which is replaced; or into this directory under the name the sender suggests, where an existing
    /// file is not replaced. Devices and fifos are written through.
    Path(PathBuf),
    /// To standard output, in order.
    Stdout,
}

/// A wish to fetch.
#[derive(Clone, Debug)]
pub struct GetRequest {
    /// What.
    pub wanted: Wanted,
    /// Further places, named by the user.
    pub hints: Vec<Hint>,
    /// Where to.
    pub output: Output,
    /// Follow the ticket's hints to loopback and link-local addresses.
    pub allow_local: bool,
    /// Fetch everything, also where an older version lies at the destination.
    pub whole_file: bool,
    /// Make data and name durable before reporting done.
    pub fsync: bool,
}

impl Node {
    /// Fetches, proves and delivers.
    pub fn get(&self, request: &GetRequest, observer: &dyn Observer, stop: &Stop) -> Result<Delivered> {
        let watch = Watch::new(&self.config.paths, "get");
        let result =
            self.fetch(request, &watch, observer, stop).map_err(|error| explain(error, &request.wanted));
        watch.end(&result);
        result
    }

    fn fetch(
        &self,
        request: &GetRequest,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        let (oid, size_bytes, secret) = match &request.wanted {
            Wanted::Ticket(ticket) => (ticket.oid, Some(ticket.size_bytes), ticket.secret),
            Wanted::Oid(oid) => (*oid, None, None),
        };
        if let Wanted::Ticket(ticket) = &request.wanted {
            join::check_version(ticket)?;
        }
        let at_hand = if request.whole_file { None } else { AtHand::find(&self.store, &oid, size_bytes) };
        let size_bytes = size_bytes.or(at_hand.as_ref().map(AtHand::size_bytes));
        let targets = match self.targets(request) {
            // Nobody is needed.
            Err(_) if at_hand.is_some() => Vec::new(),
            targets => targets?,
        };
        let mut config = DialConfig {
            tls: self.tls.clone(),
            hello: self.hello(),
            targets,
            lanes: self.config.connections,
            secret,
            size_bytes,
            clear_data: self.config.clear_text_data,
            only_way: true,
        };
        let object = ObjectName::Oid(oid);
        if size_bytes.is_none() {
            let opened = probe(&config, object, &|| stop.is_set()).map_err(|error| match stop.is_set() {
                true => Error::new(ErrorKind::Interrupted, "interrupted"),
                false => error,
            })?;
            config.size_bytes = Some(opened.size_bytes);
        }
        let geometry = Geometry::new(config.size_bytes.unwrap_or(0));
        match &request.output {
            Output::Stdout => {
                let out = Box::new(std::io::stdout());
                self.stream(oid, geometry, config, at_hand, out, watch, observer, stop)
            }
            Output::Path(path) if is_stream(path) => {
                let out = open_stream(path, stop)?;
                self.stream(oid, geometry, config, at_hand, Box::new(out), watch, observer, stop)
            }
            Output::Path(path) if path.is_dir() => {
                self.deliver(oid, geometry, config, at_hand, path, None, request, watch, observer, stop)
            }
            Output::Path(path) => {
                let (dir, name) = split(path)?;
                self.deliver(oid, geometry, config, at_hand, dir, Some(name), request, watch, observer, stop)
            }
            Output::Suggested => self.deliver(
                oid,
                geometry,
                config,
                at_hand,
                Path::new("."),
                None,
                request,
                watch,
                observer,
                stop,
            ),
        }
    }

    /// The ticket's hints and the user's, in the order to try them.
    fn targets(&self, request: &GetRequest) -> Result<Vec<Target>> {
        let from_ticket = match &request.wanted {
            Wanted::Ticket(ticket) => ticket.hints.clone(),
            Wanted::Oid(_) => Vec::new(),
        };
        let trusted = self.config.allow_local_targets || request.allow_local;
        let mut targets = Vec::new();
        let mut skipped = Vec::new();
        for (hints, allow_local) in [(&request.hints, true), (&from_ticket, trusted)] {
            for index in selection_order(hints, crate::draw) {
                let hint = &hints[index];
                match (&hint.uri, hint.node) {
                    (HintUri::Dray { host, port }, Some(node)) => {
                        let address = if host.contains(':') {
                            format!("[{host}]:{port}")
                        } else {
                            format!("{host}:{port}")
                        };
                        targets.push(Target { address, node, priority: hint.priority, allow_local });
                    }
                    (HintUri::Dray { .. }, None) => skipped.push(format!("{} names no node", hint.uri)),
                    (HintUri::Unknown(_), _) => skipped.push(format!("{} has an unknown method", hint.uri)),
                }
            }
        }
        if targets.is_empty() {
            let why = if skipped.is_empty() { "there is no hint".to_owned() } else { skipped.join("; ") };
            return Err(Error::new(ErrorKind::NotFound, format!("nobody to ask: {why}"))
                .advise("use a ticket, or --hint dray://NODE@host:port"));
        }
        Ok(targets)
    }

    /// Into a file beside its final place.
    #[allow(clippy::too_many_arguments)]
    fn deliver(
        &self,
        oid: Oid,
        geometry: Geometry,
        config: DialConfig,
        at_hand: Option<AtHand>,
        dir: &Path,
        name: Option<&OsStr>,
        request: &GetRequest,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        let object = ObjectName::Oid(oid);
        // Until the sender has suggested a name, the temporary file carries the object's.
        let working = name.map_or_else(|| OsString::from(&oid.hex()[..16]), OsStr::to_owned);
        let opened =
            Delivery::open(&dir.join(&working), object, geometry.size_bytes(), DeliveryOptions::default());
        let delivery = Arc::new(opened.map_err(|error| match name {
            // The name that the object has for now is none that the user gave.
            None if error.kind() == ErrorKind::Refused && error.is_retryable() => {
                held_in(dir).with_retryable(true)
            }
            _ => error,
        })?);
        let pairs: Arc<dyn PairStore> = delivery.clone();
        let verifier = Verifier::new(geometry, oid, pairs)?;
        let marked = delivery.marked_units();
        // Nothing is looked for where nothing was left: the size may be a lie.
        let intact = match marked.count() {
            0 => Vec::new(),
            _ => verifier.recover(&|unit| marked.contains(unit))?,
        };
        // What an earlier run marked without proving it was put together by an update. Like that run, this one takes it as it
        // is; the root over everything decides.
        let is_unproven =
            (intact.len() as u64) < marked.count() && OlderVersion::is_usual(geometry.size_bytes());
        let mut there = RangeSet::new();
        if is_unproven {
            there = marked.clone();
        } else {
            for unit in &intact {
                there.insert(*unit..*unit + 1);
            }
        }
        let (mut wanted, mut damaged) = (RangeSet::new(), marked);
        wanted.insert(0..geometry.units());
        for units in there.iter() {
            wanted.remove(units.clone());
            damaged.remove(units);
        }
        delivery.unmark_units(&damaged)?;
        let resumed_bytes = resumed(geometry, there.iter().flatten());
        // Where nothing is left to fetch, or all is at hand, nobody would be asked for anything, and so not for a name either.
        let is_nobody_asked = at_hand.is_some() || wanted.is_empty();
        let told_before = match at_hand.as_ref().and_then(AtHand::name) {
            Some(known) => Some(known.to_vec()),
            None if name.is_none() && is_nobody_asked => ask_for_name(&config, object, observer),
            None => None,
        };
        // What an earlier run proved is worth more than what a similar file may have.
        let older = match name {
            Some(name) if !request.whole_file && intact.is_empty() && at_hand.is_none() => {
                OlderVersion::open(rustix::fs::CWD, &dir.join(name), geometry.size_bytes())
            }
            _ => None,
        };
        let repeated_permille = match &request.wanted {
            Wanted::Ticket(ticket) if !request.whole_file && intact.is_empty() && at_hand.is_none() => {
                ticket.repeated_permille
            }
            _ => 0,
        };
        let older = older.or_else(|| OlderVersion::none(geometry.size_bytes(), repeated_permille));
        let truth = match older.is_some() || is_unproven {
            true => Truth::updated(geometry, oid, delivery.clone())?,
            false => Truth::Proven(verifier),
        };
        let start = if older.is_some() { Start::Update } else { Start::Whole };
        let to_fetch = wanted.clone();
        let transfer = Transfer::new(
            truth,
            Sink::Rest(delivery.clone()),
            wanted,
            resumed_bytes,
            self.config.window_bytes,
            DeliveryMode::OutOfOrder,
            start,
        );
        watch.begin(Role::Receiving, &oid.to_string(), None, figures_of(&transfer, resumed_bytes));
        if let Some(name) = name {
            watch.set_path(&dir.join(name));
        }
        observer.event(Event::Started {
            name: name.map(|name| dir.join(name)),
            total_bytes: geometry.size_bytes(),
            resumed_bytes,
        });
        // Who wants everything fetched has a reason to think little of the record that is there.
        let is_remembered =
            at_hand.is_none() && !request.whole_file && at_hand::is_remembered(geometry.size_bytes());
        let mut others = self.start(&transfer, object, at_hand, config)?;
        let final_name = || match name {
            Some(name) => name.to_owned(),
            None => usable_name(transfer.suggested_name().or_else(|| told_before.clone()).as_deref(), &oid),
        };
        let (either, mut is_taken) = (Stop::new(), false);
        let result = transfer.run(older.as_ref(), &to_fetch, &either, &mut || {
            report(&transfer, observer);
            watch.tick();
            others.dial_if_needed(&transfer);
            // Better to refuse as soon as the name is known than when all has come.
            let is_asked = transfer.suggested_name().is_some();
            is_taken = name.is_none() && is_asked && is_there(&dir.join(final_name()));
            if is_taken || stop.is_set() {
                either.set();
            }
        });
        let result = result.and_then(|()| {
            transfer
                .seal(&either, &mut || {
                    report(&transfer, observer);
                    watch.tick();
                    others.dial_if_needed(&transfer);
                    if stop.is_set() {
                        either.set();
                    }
                })
                .map(|_| ())
        });
        report(&transfer, observer);
        if name.is_none() && transfer.suggested_name().is_some() {
            watch.set_path(&dir.join(final_name()));
        }
        let result = if is_taken {
            transfer.keep_last_words();
            transfer.close();
            if resumed_bytes == 0 {
                // What came before the name was known is little, and nobody asked for it to be kept.
                let _ = delivery.discard();
            }
            Err(taken(&dir.join(final_name())))
        } else {
            result
        };
        let result = result.and_then(|()| {
            let final_name = final_name();
            if name.is_none() && is_there(&dir.join(&final_name)) {
                return Err(taken(&dir.join(final_name)));
            }
            let suggested = transfer.suggested_name().or_else(|| told_before.clone());
            if let Some(why) = suggested.filter(|_| name.is_none()).and_then(|name| unusable(&name)) {
                observer.event(Event::Warning(format!(
                    "{why}: saved as {final_name:?}; -o NAME saves under a name of your own"
                )));
            }
            let options = FinishOptions {
                fsync: request.fsync,
                // A name that came from the peer replaces nothing.
                keep_existing: name.is_none(),
                rename_to: Some(final_name.clone()),
                ..FinishOptions::default()
            };
            delivery.finish(options)?;
            let path = dir.join(final_name);
            if is_remembered {
                // Best effort: without it, the object is fetched again some day.
                let _ = self.store.refer_to(&path, &oid, geometry.size_bytes(), &*delivery);
            }
            Ok(path)
        });
        watch.freeze();
        transfer.close();
        if result.is_err() && delivery.marked_units().is_empty() {
            // Nothing to go on from; threads of a source may still hold it, so it is not left to the last of them.
            let _ = delivery.discard();
        }
        let path = result.map_err(|error| error.context(format_args!("get {}", short_name(&object))))?;
        Ok(Delivered { oid, size_bytes: geometry.size_bytes(), path: Some(path), resumed_bytes })
    }

    /// Starts the sources of a proven object: what is `at_hand` alone, if something is, otherwise everybody.
    fn start(
        &self,
        transfer: &Arc<Transfer>,
        object: ObjectName,
        at_hand: Option<AtHand>,
        config: DialConfig,
    ) -> Result<Others> {
        let mut others = Others::new(transfer, object, config);
        match at_hand {
            Some(at_hand) => at_hand.start(transfer, &self.hello(), self.id())?,
            None => others.dial(),
        }
        Ok(others)
    }

    /// In order, to something that takes bytes only once.
    #[allow(clippy::too_many_arguments)]
    fn stream(
        &self,
        oid: Oid,
        geometry: Geometry,
        config: DialConfig,
        at_hand: Option<AtHand>,
        out: Box<dyn Write + Send>,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        let pairs: Arc<dyn PairStore> = outboard::passing(geometry)?;
        let mut wanted = RangeSet::new();
        wanted.insert(0..geometry.units());
        let transfer = Transfer::new(
            Truth::Proven(Verifier::new(geometry, oid, pairs)?),
            Sink::Stream(Stream::default()),
            wanted,
            0,
            self.config.window_bytes,
            DeliveryMode::Sequential { window_bytes: STREAM_WINDOW_BYTES },
            Start::Whole,
        );
        watch.begin(Role::Receiving, &oid.to_string(), None, figures_of(&transfer, 0));
        observer.event(Event::Started { name: None, total_bytes: geometry.size_bytes(), resumed_bytes: 0 });
        let others = self.start(&transfer, ObjectName::Oid(oid), at_hand, config)?;
        let report = || {
            report(&transfer, observer);
            watch.tick();
        };
        let result = pass_on(&transfer, geometry, others, out, &report, stop);
        watch.freeze();
        transfer.close();
        result.map_err(|error| error.context(format_args!("get {}", short_name(&ObjectName::Oid(oid)))))?;
        Ok(Delivered { oid, size_bytes: geometry.size_bytes(), path: None, resumed_bytes: 0 })
    }
}

/// Moves the groups to `out` in order, until the last, an error, or `stop`. The consumer may be slow or stopped for as
/// long as it likes: a thread of its own writes, and is left behind if it hangs in a write when everything else ends.
/// `report` runs about ten times a second.
fn pass_on(
    transfer: &Arc<Transfer>,
    geometry: Geometry,
    mut others: Others,
    mut out: Box<dyn Write + Send>,
    report: &dyn Fn(),
    stop: &Stop,
) -> Result<()> {
    let (is_fed, cannot_write) = (Arc::new(AtomicBool::new(false)), Stop::new());
    let (sender, written) = mpsc::channel();
    let (feed, fed, failed) = (transfer.clone(), is_fed.clone(), cannot_write.clone());
    let writing = move || {
        let result = write_in_order(&feed, geometry, &mut *out, &fed);
        let is_bad = result.is_err();
        let _ = sender.send(result);
        if is_bad {
            failed.set();
        }
    };
    thread::Builder::new()
        .name("output".into())
        .spawn(writing)
        .map_err(|error| Error::file("start a thread", error))?;
    let either = Stop::new();
    let waited = transfer.wait(&either, &mut || {
        report();
        others.dial_if_needed(transfer);
        if stop.is_set() || cannot_write.is_set() {
            either.set();
        }
    });
    is_fed.store(true, Ordering::Release);
    if waited.is_err() {
        // If writing ended first, that is why.
        return written.try_recv().unwrap_or(Ok(())).and(waited);
    }
    loop {
        match written.recv_timeout(Duration::from_millis(100)) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) if stop.is_set() => {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted before all was written"));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => report(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "a thread failed"));
            }
        }
    }
}

/// Writes group after group; ends early if the transfer has ended (`is_fed`) without the next one.
fn write_in_order(
    transfer: &Transfer,
    geometry: Geometry,
    out: &mut dyn Write,
    is_fed: &AtomicBool,
) -> Result<()> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => {
            Error::new(ErrorKind::Interrupted, "the output was closed by its reader before all was written")
        }
        _ => Error::file("write output", error),
    };
    let mut next_group = 0;
    while next_group < geometry.groups() {
        match transfer.take_next(&mut next_group, Duration::from_millis(100)) {
            Some(bytes) => out.write_all(&bytes).map_err(failed)?,
            // The transfer ended without this group: its error says why.
            None if is_fed.load(Ordering::Acquire) && !transfer.has_group(next_group) => break,
            None => {}
        }
    }
    out.flush().map_err(failed)
}

/// The direct sources of a proven object, one for each node that the targets name: all of them are used at once, and the
/// addresses of one node are ways to the same source ([ADR 6](../../../docs/adr/0006-one-source-for-each-holder.md)).
/// The transfer knows them before they are dialled.
struct Others(Vec<(Arc<LaneSet>, DialConfig)>);

impl Others {
    fn new(transfer: &Arc<Transfer>, object: ObjectName, config: DialConfig) -> Others {
        let holders = by_node(&config.targets);
        // More holders do not mean more connections, beyond one each.
        let lanes = config.lanes.div_ceil(holders.len().max(1));
        let mut sources = Vec::new();
        for (number, targets) in holders.into_iter().enumerate() {
            let id = SourceId(u32::try_from(number).unwrap_or(u32::MAX - 1));
            let label = targets.first().map_or_else(String::new, |target| target.address.clone());
            let priority = targets.iter().map(|target| target.priority).min().unwrap_or(0);
            let description = SourceDescription {
                label: format!("direct {label}"),
                // Behind what is at hand.
                priority: priority.saturating_add(1),
                weight: 1,
                capabilities: SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true },
            };
            let set = LaneSet::new(id, object, description, config.size_bytes, transfer.events());
            // All are known before the first is dialled: one that fails must not be taken for the last one.
            transfer.add_source(id, set.clone());
            sources.push((set, DialConfig { targets, lanes, ..config.clone() }));
        }
        Others(sources)
    }

    fn dial(&mut self) {
        for (set, config) in self.0.drain(..) {
            dial(set, config);
        }
    }

    /// Dials, unless that was done, if what is at hand turns out to be of no use.
    fn dial_if_needed(&mut self, transfer: &Transfer) {
        if !self.0.is_empty() && !AtHand::is_of_use(transfer) {
            self.dial();
        }
    }
}

/// Targets of the same node together, nodes and targets in their order.
fn by_node(targets: &[Target]) -> Vec<Vec<Target>> {
    let mut nodes: Vec<Vec<Target>> = Vec::new();
    for target in targets {
        match nodes.iter_mut().find(|known| known.iter().any(|other| other.node == target.node)) {
            Some(known) => known.push(target.clone()),
            None => nodes.push(vec![target.clone()]),
        }
    }
    nodes
}

/// Tells the observer how far it is and which sources came and went.
pub(crate) fn report(transfer: &Transfer, observer: &dyn Observer) {
    for (label, why) in transfer.news() {
        observer.event(match why {
            None => Event::SourceUp { label },
            Some(Loss { reason, is_barred }) => Event::SourceDown { label, reason, is_barred },
        });
    }
    for text in transfer.warnings() {
        observer.event(Event::Warning(text));
    }
    let sources = transfer
        .stats()
        .into_iter()
        .filter(|stats| stats.delivered_bytes > 0)
        .map(|stats| SourceShare { label: stats.label, bytes: stats.delivered_bytes });
    let local = Some(transfer.local_bytes()).filter(|bytes| *bytes > 0);
    let local = local.map(|bytes| SourceShare { label: "older version".into(), bytes });
    let sources = sources.chain(local).collect();
    observer.event(Event::Progress {
        done_bytes: transfer.done_bytes(),
        total_bytes: transfer.size_bytes(),
        sources,
    });
}

/// Bytes of the units that are there already.
pub(crate) fn resumed(geometry: Geometry, units: impl Iterator<Item = u64>) -> u64 {
    units
        .map(|unit| geometry.byte_range(geometry.unit(unit)))
        .map(|range| range.end - range.start)
        .sum::<u64>()
        .min(geometry.size_bytes().max(UNIT_BYTES))
}

/// The name the sender suggests, asked for on a connection of its own. Without an answer the file is there all the
/// same, under the object's name.
fn ask_for_name(config: &DialConfig, object: ObjectName, observer: &dyn Observer) -> Option<Vec<u8>> {
    match probe(config, object, &|| false) {
        Ok(opened) => opened.name.map(|name| name.to_vec()),
        Err(error) => {
            let text = format!("nobody says what the file is called, so it gets the object's name: {error}");
            observer.event(Event::Warning(text));
            None
        }
    }
}

/// Adds what the ticket tells of a failure, and what to do where the holder, which is not asked for advice, did not say.
fn explain(error: Error, wanted: &Wanted) -> Error {
    let expired = match wanted {
        Wanted::Ticket(ticket) => ticket.expires_unix_s.filter(|end| unix_s() >= *end),
        Wanted::Oid(_) => None,
    };
    match (error.kind(), expired) {
        // The holder's clock decides; where it does not answer any more, ours explains why.
        (ErrorKind::Unreachable, Some(end)) => {
            let ago = Duration::from_secs(unix_s() - end);
            Error::new(ErrorKind::Refused, format!("the ticket expired {} ago: {error}", rough(ago)))
                .advise("ask the sender for a new ticket")
        }
        (ErrorKind::Refused, Some(_)) => error.or_advise("ask the sender for a new ticket"),
        (ErrorKind::Refused | ErrorKind::NotFound, None) => {
            error.or_advise("is the ticket whole, and is `dray put` running with that very file?")
        }
        (ErrorKind::Changed | ErrorKind::Damaged, _) => {
            error.or_advise("ask the sender to put the file again, and for the new ticket")
        }
        _ => error,
    }
}

/// A time for people: its largest unit only.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Whether something has this name, be it a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

fn held_in(dir: &Path) -> Error {
    let place = if dir == Path::new(".") { "the current directory".into() } else { format!("{dir:?}") };
    Error::new(ErrorKind::Refused, format!("another dray is receiving this object into {place}"))
        .advise("wait for it or stop it")
}

fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::Refused, format!("{path:?} exists and is not replaced"))
        .advise("move it away, or name the file to write with -o FILE")
}

fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_block_device()
    })
}

/// Opens a fifo or a device to write through. A fifo that nobody reads yet is waited for, until `stop`.
fn open_stream(path: &Path, stop: &Stop) -> Result<File> {
    let failed = |error: std::io::Error| Error::file(format!("write {}", path.display()), error);
    // Without this flag the wait would be in the system call, and no signal would end it.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let out = loop {
        match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Ok(out) => break out,
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path) => {
                if stop.is_set() {
                    let what = format!("interrupted while nobody read {path:?}");
                    return Err(Error::new(ErrorKind::Interrupted, what));
                }
                thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(failed(error)),
        }
    };
    rustix::io::ioctl_fionbio(&out, false).map_err(|error| failed(error.into()))?;
    Ok(out)
}

fn is_fifo(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Directory and name of a destination.
pub(crate) fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    let bad = || Error::new(ErrorKind::Usage, format!("{} names no file", path.display()));
    // `a/` means a directory, which `file_name` would forget.
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Error::new(ErrorKind::NotFound, format!("{} is no directory", path.display()))
            .advise("make it first, or leave the / away to name a file"));
    }
    let name = path.file_name().ok_or_else(bad)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    Ok((dir, name))
}

/// What the sender suggests, if it is one plain component that hides nothing; else the object's own name.
pub(crate) fn usable_name(suggested: Option<&[u8]>, oid: &Oid) -> OsString {
    match suggested.filter(|name| unusable(name).is_none()) {
        Some(name) => OsStr::from_bytes(name).to_owned(),
        None => OsString::from(&oid.hex()[..16]),
    }
}

/// Why a name that a sender suggests is not taken, if it is not.
fn unusable(name: &[u8]) -> Option<String> {
    let told = OsStr::from_bytes(name);
    let is_plain =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/') && !name.contains(&0);
    match is_plain {
        false => Some(format!("the sender calls the file {told:?}, which is no name")),
        true if name.starts_with(b".") => Some(format!(
            "the sender calls the file {told:?}, and a hidden file is made only where you ask for it"
        )),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use dray_core::NodeId;

    use super::*;

    #[test]
    fn a_suggested_name_stays_in_its_directory() {
        let oid = Oid::of(b"x");
        assert_eq!(usable_name(Some(b"a b\n\xff"), &oid), OsStr::from_bytes(b"a b\n\xff"));
        for bad in [&b""[..], b".", b"..", b"../x", b"/etc/passwd", b"a/b", b"a\0b", b".bashrc", &[b'x'; 256]]
        {
            assert_eq!(usable_name(Some(bad), &oid), OsStr::new(&oid.hex()[..16]));
            assert!(unusable(bad).is_some());
        }
    }

    /// D40: each node is a source of its own, however many of its addresses the hints name, in the order of the hints.
    #[test]
    fn hints_of_one_node_are_one_source() {
        let target = |node: u8, address: &str| Target {
            address: address.into(),
            node: NodeId::from_bytes([node; 32]),
            priority: 0,
            allow_local: false,
        };
        let targets =
            [target(2, "b:1"), target(1, "a:1"), target(2, "b:2"), target(3, "c:1"), target(1, "a:2")];
        let nodes = by_node(&targets);
        let addresses: Vec<Vec<&str>> =
            nodes.iter().map(|node| node.iter().map(|target| &*target.address).collect()).collect();
        assert_eq!(addresses, [vec!["b:1", "b:2"], vec!["a:1", "a:2"], vec!["c:1"]]);
        assert!(by_node(&[]).is_empty());
    }

    #[test]
    fn destinations_split() {
        assert_eq!(split(Path::new("a")).unwrap(), (Path::new("."), OsStr::new("a")));
        assert_eq!(split(Path::new("/x/a")).unwrap(), (Path::new("/x"), OsStr::new("a")));
        assert!(split(Path::new("a/")).is_err());
        assert!(split(Path::new("..")).is_err());
    }
}
