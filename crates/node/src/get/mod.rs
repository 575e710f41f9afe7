//! `dray get`: fetch an object by its ticket, prove it, put it under its name.

mod deliver;
mod holders;
mod stream;

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dray_core::hash_tree::Geometry;
use dray_core::hint::Hint;
use dray_core::limits::UNIT_BYTES;
use dray_core::message::ObjectName;
use dray_core::permit::{Budget, Gauge};
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_transfer::direct::{DialConfig, probe};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::at_hand::AtHand;
use crate::explain::Watch;
use crate::put::unix_s;
use crate::transfer::{Loss, Transfer};
use crate::{Delivered, Event, Node, Observer, SourceShare, Stop, join};

use holders::Others;
use stream::Written;

pub(crate) use deliver::Folder;
#[cfg(test)]
pub(crate) use stream::Hold;
pub(crate) use stream::{Came, Consumer, Order};

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
    /// Follow the ticket's hints to loopback and link-local addresses.
    pub allow_local: bool,
    /// Fetch everything, also where an older version lies at the destination.
    pub whole_file: bool,
    /// Look for parts of the object below this directory (`--search`).
    pub search: Option<PathBuf>,
    /// Make data and name durable before reporting done.
    pub fsync: bool,
}

impl Node {
    /// Fetches, proves and delivers to `output`.
    pub fn get(
        &self,
        request: &GetRequest,
        output: &Output,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        self.get_to(request, |stop| output.open(stop), Memory::Alone, observer, stop)
    }

    /// The same to a place that is opened when it is known that there is something to fetch, with what waits for a consumer in `memory`.
    pub(crate) fn get_to(
        &self,
        request: &GetRequest,
        place: impl FnOnce(&Stop) -> Result<Place>,
        memory: Memory<'_>,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        let watch = Watch::new(&self.config.paths, "get");
        let result = self.fetch(request, place, memory, &watch, observer, stop);
        let result = result.map_err(|error| explain(error, &request.wanted));
        watch.end(&result);
        result
    }

    fn fetch(
        &self,
        request: &GetRequest,
        place: impl FnOnce(&Stop) -> Result<Place>,
        memory: Memory<'_>,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        let (oid, size_bytes, secret) = match &request.wanted {
            Wanted::Ticket(ticket) => (ticket.oid, Some(ticket.size_bytes), ticket.secret),
            Wanted::Oid(oid) => (*oid, None, None),
        };
        if let Wanted::Ticket(ticket) = &request.wanted {
            join::check_version(ticket.protocol)?;
        }
        let at_hand = if request.whole_file { None } else { AtHand::find(self.store()?, &oid, size_bytes) };
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
        let fetch =
            Fetch { node: self, request, oid, geometry, config, at_hand, memory, watch, observer, stop };
        match place(stop)? {
            Place::Folder { folder, name } => fetch.deliver(&folder, name.as_deref()),
            Place::Consumer { consumer, order, bytes } => fetch.stream(consumer, order, bytes),
        }
    }
}

impl Output {
    /// Opens it. A fifo that nobody reads yet is waited for, until `stop`.
    fn open(&self, stop: &Stop) -> Result<Place> {
        let whole = |out: Box<dyn Write + Send>| Place::Consumer {
            consumer: Box::new(Written(out)),
            order: Order::Ascending,
            bytes: 0..u64::MAX,
        };
        let (dir, name) = match self {
            Output::Stdout => return Ok(whole(Box::new(std::io::stdout()))),
            Output::Path(path) if is_stream(path) => return Ok(whole(Box::new(open_stream(path, stop)?))),
            Output::Path(path) if path.is_dir() => (path.as_path(), None),
            Output::Path(path) => {
                let (dir, name) = split(path)?;
                (dir, Some(name.to_owned()))
            }
            Output::Suggested => (Path::new("."), None),
        };
        Ok(Place::Folder { folder: Folder::open(dir)?, name })
    }
}

/// Where the bytes of one fetch go.
pub(crate) enum Place {
    /// Into the file `name` in `folder`, which is replaced; or into one of the name that the sender suggests, where an
    /// existing file is not.
    Folder { folder: Folder, name: Option<OsString> },
    /// To something that takes each byte once: those in `bytes`, as far as the object reaches.
    Consumer { consumer: Box<dyn Consumer>, order: Order, bytes: Range<u64> },
}

impl Place {
    /// Whether it takes room on the same file system as `path`.
    pub(crate) fn is_on(&self, path: &Path) -> bool {
        matches!(self, Place::Folder { folder, .. } if folder.is_on(path))
    }
}

/// What a fetch may have of memory for what its consumer has not taken. What goes into a file waits for nobody.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// Nobody else in this process needs any.
    Alone,
    /// What it shares with others.
    Shared(&'a SharedMemory),
}

/// Memory for what consumers have not taken, of all fetches of a process together.
pub(crate) struct SharedMemory {
    whole: Budget,
    parts: Gauge,
}

impl SharedMemory {
    /// At most `limit_bytes`, and a unit more for each fetch.
    pub(crate) fn new(limit_bytes: u64) -> SharedMemory {
        SharedMemory { whole: Budget::new(limit_bytes), parts: Gauge::default() }
    }

    /// What a fetch may have of it.
    fn part(&self, limit_bytes: u64) -> Budget {
        let part = self.whole.part(UNIT_BYTES, limit_bytes);
        self.parts.watch(&part);
        part
    }

    /// Bytes that all fetches have, their own units included.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.parts.used_bytes()
    }

    /// Those of them that others cannot have meanwhile.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.whole.used_bytes()
    }
}

impl Memory<'_> {
    /// A budget of at most `limit_bytes`. One unit of it is there in any case, so that everybody makes progress.
    fn budget(self, limit_bytes: u64) -> Budget {
        match self {
            Memory::Alone => Budget::new(limit_bytes),
            Memory::Shared(memory) => memory.part(limit_bytes),
        }
    }
}

/// One object to be fetched, and who may have it.
struct Fetch<'a> {
    node: &'a Node,
    request: &'a GetRequest,
    oid: Oid,
    geometry: Geometry,
    config: DialConfig,
    at_hand: Option<AtHand>,
    memory: Memory<'a>,
    watch: &'a Watch,
    observer: &'a dyn Observer,
    stop: &'a Stop,
}

/// Starts the sources of a proven object: what is `at_hand` alone, if something is, otherwise everybody.
fn start_sources(
    node: &Node,
    transfer: &Arc<Transfer>,
    object: ObjectName,
    at_hand: Option<AtHand>,
    config: DialConfig,
) -> Result<Others> {
    let mut others = Others::new(transfer, object, config);
    match at_hand {
        Some(at_hand) => at_hand.start(transfer, &node.hello(), node.id())?,
        None => others.dial(),
    }
    Ok(others)
}

/// Tells the observer how far it is and which sources came and went.
pub(crate) fn report(transfer: &Transfer, observer: &dyn Observer) {
    for (label, why) in transfer.news() {
        observer.event(match why {
            None => Event::SourceUp { label },
            Some(Loss { reason, is_barred, has_lied }) => {
                Event::SourceDown { label, reason, is_barred, has_lied }
            }
        });
    }
    for text in transfer.warnings() {
        observer.event(Event::Warning(text));
    }
    let sources =
        transfer.stats().into_iter().filter(|stats| stats.delivered_bytes > 0 || stats.stalls > 0).map(
            |stats| SourceShare { label: stats.label, bytes: stats.delivered_bytes, stalls: stats.stalls },
        );
    let local = Some(transfer.local_bytes()).filter(|bytes| *bytes > 0);
    let local = local.map(|bytes| SourceShare { label: "older version".into(), bytes, stalls: 0 });
    let others = Some(transfer.other_bytes()).filter(|bytes| *bytes > 0);
    let others = others.map(|bytes| SourceShare { label: "other files".into(), bytes, stalls: 0 });
    let repeated = Some(transfer.repeated_bytes()).filter(|bytes| *bytes > 0);
    let repeated = repeated.map(|bytes| SourceShare { label: "repeats".into(), bytes, stalls: 0 });
    let sources = sources.chain(local).chain(others).chain(repeated).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_split() {
        assert_eq!(split(Path::new("a")).unwrap(), (Path::new("."), OsStr::new("a")));
        assert_eq!(split(Path::new("/x/a")).unwrap(), (Path::new("/x"), OsStr::new("a")));
        assert!(split(Path::new("a/")).is_err());
        assert!(split(Path::new("..")).is_err());
    }
}
