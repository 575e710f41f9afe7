//! The near end of a copy: what `dray cp` itself does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::message::{self, Copy, CopyRole, Message, ObjectName, Open};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Holder, Receiver, ReceiverInput};
use dray_transfer::direct::is_local;
use dray_transfer::holder::{Held, Provider, serve};
use dray_transfer::transport::{Channel, RateLimit, Security, push_control};

use super::counted::Counted;
use super::direct::HoldingDoor;
use super::far_end::FarEnd;
use super::origin::Origin;
use super::pattern;
use super::receive::Incoming;
use super::remote::{packed, read_control_until, unpacked};
use super::{Copied, CopyOptions, CopyRequest, DIRECT_FROM_BYTES, Location, both_remote};
use crate::explain::{Figures, Role, Snapshot, SourceSnapshot, Watch, nothing_yet};
use crate::{Delivered, Event, Node, Observer, SourceShare, Stop, lock};

/// How long a far end that has spoken may be silent.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(25);
/// The same where the far end waits for its disk.
pub(super) const FSYNC_PATIENCE: Duration = Duration::from_secs(900);

/// How long the far end may be silent at first: longer where ssh can ask the user for a password first.
pub(super) fn patience() -> Duration {
    let can_ask = std::fs::File::open("/dev/tty").is_ok() || std::env::var_os("SSH_ASKPASS").is_some();
    Duration::from_secs(if can_ask { 300 } else { 25 })
}

impl Node {
    /// Copies one file, here to there or there to here; from there also what a pattern stands for.
    pub fn copy(&self, request: &CopyRequest, observer: &dyn Observer, stop: &Stop) -> Result<Copied> {
        let watch = Watch::new(&self.config.paths, "cp");
        let result = self.copy_watched(request, &watch, observer, stop);
        watch.end(&result);
        result
    }

    fn copy_watched(
        &self,
        request: &CopyRequest,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Copied> {
        match (&request.source, &request.destination) {
            (Location::Local(source), Location::Remote { host, path }) => self
                .upload(source, Some(host), path, &request.options, watch, observer, stop)
                .map(Copied::File),
            (Location::Remote { host, path }, Location::Local(destination)) => {
                self.download(host, path, destination, &request.options, watch, observer, stop)
            }
            (Location::Local(source), Location::Local(destination)) => {
                refuse_same_file(source, destination)?;
                if let Some(delivered) =
                    self.copy_shared(source, destination, &request.options, watch, observer, stop)?
                {
                    return Ok(Copied::File(delivered));
                }
                // The far end runs here; a relative path means the same to both.
                self.upload(source, None, destination, &request.options, watch, observer, stop)
                    .map(Copied::File)
            }
            (Location::Remote { .. }, Location::Remote { .. }) => Err(both_remote("cp")),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn upload(
        &self,
        source: &Path,
        host: Option<&std::ffi::OsString>,
        path: &Path,
        options: &CopyOptions,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Delivered> {
        // From the first moment: one that fails is told too.
        let watched_peer = host.map(|host| host.to_string_lossy().into_owned());
        let begin =
            |figures| watch.begin(Role::Sending, &source.to_string_lossy(), watched_peer.as_deref(), figures);
        begin(nothing_yet(0));
        let far_path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        watch.set_far_path(far_path);
        let opened = Origin::open(source, self.id(), &self.config.paths.data_dir);
        let mut origin = opened
            .map_err(|error| if source.is_dir() { error.advise("-r copies directories") } else { error })?;
        origin.stop = stop.clone();
        let origin = Arc::new(origin);
        let offer = origin.offer()?;
        let size_bytes = offer.size_bytes;
        begin(nothing_yet(size_bytes));
        let (mut far, channel) =
            FarEnd::start(host.map(std::ffi::OsString::as_os_str), &options.ssh, observer, stop)?;
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(self.hello()));
        push_control(
            &mut preface,
            &copy_message(CopyRole::Receive, path.as_os_str(), options, host.is_some()),
        );
        push_control(&mut preface, &Message::Offer(offer));
        let is_compressed = options.compress && host.is_some();
        let is_large = size_bytes >= DIRECT_FROM_BYTES && host.is_some() && !is_compressed;
        let limit = options.rate_bytes.map(RateLimit::new);
        let door = if is_large { self.holding_door(&origin, &[], limit.clone(), &mut preface) } else { None };
        let channel = packed(Box::new(channel), is_compressed, limit.as_ref(), &mut preface)?;
        let channel_name = channel_name(host.is_some());
        let provider = NearSender {
            object: origin.object(),
            origin: origin.clone(),
            door: OnceLock::new(),
            is_over: Arc::new(AtomicBool::new(false)),
            heard_ms: AtomicU64::new(0),
            begun: Instant::now(),
            allow_local: host.is_some_and(|host| is_local_host(host)),
            observer,
            size_bytes,
            channel: channel_name,
            channel_bytes: Arc::default(),
            last: Arc::default(),
        };
        if let Some(door) = door {
            let _ = provider.door.set(door);
        }
        begin(sent_figures(provider.last.clone(), channel_name, provider.channel_bytes.clone(), size_bytes));
        observer.event(Event::Started {
            name: Some(far_path.to_owned()),
            total_bytes: size_bytes,
            resumed_bytes: 0,
        });
        // The hello goes with the preface; the session must not say it again.
        let holder =
            Holder::introduced(self.hello()).facing(if host.is_some() { far.host.as_str() } else { "" });
        let patience = patience();
        let is_mute = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let (provider, is_mute, pace) = (&provider, &is_mute, limit);
            let serving = scope.spawn(move || serve(channel, holder, preface, provider, None));
            while !serving.is_finished() {
                watch.tick();
                if stop.is_set() {
                    far.kill();
                }
                let limit = if !provider.is_heard() {
                    patience
                } else if options.fsync {
                    FSYNC_PATIENCE
                } else {
                    SILENCE_MAX
                };
                // A receiver at work says five times a second how far it is.
                // What is sent slowly by order is heard of late.
                let is_slow = pace.as_ref().is_some_and(|pace| pace.idle() < limit);
                if provider.silence() > limit && !is_slow && !provider.origin.is_busy() {
                    is_mute.store(true, Ordering::Release);
                    far.kill();
                }
                thread::sleep(Duration::from_millis(2));
            }
            serving.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")))
        });
        watch.freeze();
        provider.is_over.store(true, Ordering::Release);
        if let Some(door) = provider.door.get() {
            door.door.close();
        }
        let is_heard = provider.is_heard();
        let last = std::mem::take(&mut *lock(&provider.last));
        if let Some(delivered) = last.delivered {
            // The far end must have what we sent, not merely say that it has something.
            if !origin.is_named(&delivered.oid) {
                let what = format!("{} says it has {}, which is not what was sent", far.host, delivered.oid);
                return Err(Error::new(ErrorKind::VerificationFailed, what));
            }
            origin.delivered();
            far.done();
            let target = std::path::PathBuf::from(OsStr::from_bytes(&delivered.path));
            return Ok(Delivered {
                oid: delivered.oid,
                size_bytes,
                path: Some(target),
                resumed_bytes: last.progress.map_or(0, |progress| progress.resumed_bytes),
                // What came with the offer is told of by nothing else.
                sent_bytes: Some(last.progress.map_or(size_bytes, |progress| {
                    ways(&progress, provider.channel, provider.channel_bytes.load(Ordering::Relaxed))
                        .iter()
                        .map(|(_, bytes)| bytes)
                        .sum()
                })),
            });
        }
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted")
                .advise("run the same command again to go on where it stopped"));
        }
        if is_mute.load(Ordering::Acquire) {
            let what = format!("{} said nothing for too long", far.host);
            return Err(Error::new(ErrorKind::TimedOut, what).advise(format!(
                "does `{}` alone reach it? the same command again goes on where this one stopped",
                far.ssh_line()
            )));
        }
        if let Some(failure) = origin.failure() {
            return Err(failure);
        }
        let lost =
            || Error::new(ErrorKind::Unreachable, "the connection ended before the file was confirmed");
        let error = far.explain(result.err().unwrap_or_else(lost), is_heard);
        origin.ended(&error);
        Err(advised(error, host.map(|_| far.host.as_str()), CopyRole::Receive))
    }

    #[allow(clippy::too_many_arguments)]
    fn download(
        &self,
        host: &OsStr,
        path: &Path,
        destination: &Path,
        options: &CopyOptions,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Copied> {
        let asked = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        watch.begin(Role::Receiving, &asked, Some(&far_name(host)), nothing_yet(0));
        watch.set_path(destination);
        let (mut far, mut channel) = FarEnd::start(Some(host), &options.ssh, observer, stop)?;
        let mut receiver = Receiver::new(self.hello(), None, false);
        let mut out = Vec::new();
        push_control(&mut out, &receiver.hello());
        push_control(&mut out, &copy_message(CopyRole::Send, path.as_os_str(), options, true));
        let mut is_heard = false;
        let mut offered = || {
            channel.write_all(&out).map_err(|error| Error::io("connection lost", error))?;
            let deadline = Instant::now() + patience();
            loop {
                let body = read_control_until(&mut channel, deadline, &|| stop.is_set())?;
                if is_heard && let Ok(Message::Sources(found)) = Message::from_bytes(&body) {
                    return Ok(Answer::Several(found));
                }
                match receiver.handle_control(&body)? {
                    ReceiverInput::Agreed(_) => is_heard = true,
                    ReceiverInput::Copy(Message::Offer(offer)) => return Ok(Answer::Offer(offer)),
                    ReceiverInput::Fault(fault) => return Err(fault.to_error(&far_name(host))),
                    _ => return Err(Error::new(ErrorKind::Protocol, "the far end made no offer")),
                }
            }
        };
        let offer = match offered() {
            Ok(Answer::Offer(offer)) => offer,
            Ok(Answer::Several(found)) => {
                return self
                    .download_several(far, channel, found, path, destination, options, observer, stop)
                    .map(Copied::Files);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted && stop.is_set() => {
                far.kill();
                return Err(error);
            }
            Err(error) => {
                // What it said beside is worth telling; then it is to notice, and to end.
                let _ = channel.try_read(&mut [0; 512]);
                drop(channel);
                return Err(advised(far.explain(error, is_heard), Some(&far.host), CopyRole::Send));
            }
        };
        // What the user asked for, not what the far end calls it, unless that is what the pattern asks for.
        let mut name = path.file_name().unwrap_or_default().to_owned();
        if pattern::is_pattern(Path::new(&name)) && pattern::matches(name.as_bytes(), &offer.name) {
            name = OsStr::from_bytes(&offer.name).to_owned();
        }
        let incoming = Incoming {
            peer: far_name(host),
            channel: unpacked(Box::new(channel), options.compress)?,
            receiver,
            preface: Vec::new(),
            offer,
            preserve: options.preserve,
            whole_file: options.whole_file,
            search: options.search.clone(),
            fsync: options.fsync,
            name,
            allow_local: is_local_host(host),
            is_other_host: true,
            seen_as: Vec::new(),
            // The far end said where it listens; ssh may know it under a name that only ssh resolves.
            sees: None,
            is_compressed: options.compress,
            within: None,
        };
        match self.receive(incoming, destination, watch, observer, stop) {
            Ok(delivered) => {
                far.done();
                Ok(Copied::File(delivered))
            }
            Err(error) => Err(advised(far.explain(error, true), Some(&far.host), CopyRole::Send)),
        }
    }
}

/// What the far end says to the wish for one file.
enum Answer {
    Offer(message::Offer),
    /// What the path stands for; their tree follows.
    Several(message::Sources),
}

/// What the far end, which has this role, did not say with its error: what to do. `host` is `None` if that end is here.
pub(super) fn advised(error: Error, host: Option<&str>, role: CopyRole) -> Error {
    let there = host.map_or_else(|| "here".to_owned(), |host| format!("on {host}"));
    match (error.kind(), host) {
        (ErrorKind::NotFound, _)
            if ["stands for several files", "--chown"].iter().any(|it| error.to_string().contains(it)) =>
        {
            error
        }
        (ErrorKind::Refused, _)
            if ["stands for too much", "cannot start there"].iter().any(|it| error.what().contains(it)) =>
        {
            error
        }
        (ErrorKind::NotFound, Some(host)) if matches!(role, CopyRole::Receive) => error.or_advise(format!(
            "make that directory first (`dray sync` does with --mkpath), or correct the path: it is looked up on {host}, a relative one from the \
             home directory there"
        )),
        (ErrorKind::NotFound, Some(host)) => error.or_advise(format!(
            "is the path right, and no symbolic link to nothing? It is looked up on {host}, a relative one from the home directory there"
        )),
        (ErrorKind::NotFound, None) => error.or_advise("is the path right? The directory must be there"),
        // The far end's words, as the store has them; what to do does not cross the wire.
        (ErrorKind::Refused, _) if error.to_string().contains("another dray is receiving") => {
            error.or_advise("wait for it or stop it")
        }
        (ErrorKind::Refused, Some(_))
            if ["this login", "leads out of the directory that may be"].iter().any(|it| error.to_string().contains(it)) =>
        {
            error.or_advise(
                "your key is confined to one directory there: paths are relative to it, and what it may is up to whoever set it up",
            )
        }
        (ErrorKind::Refused, _)
            if ["is a directory", "is not a regular file"].iter().any(|it| error.what().ends_with(it)) =>
        {
            error.or_advise(match role {
                CopyRole::Send => "-r copies directories, and -a devices, fifos and sockets, too",
                CopyRole::Receive => {
                    "no file takes its place: name another destination, or move that away first"
                }
            })
        }
        (ErrorKind::Refused, _)
            if error.what().ends_with("is no directory")
                || ["what is there is no directory", "the destination is no directory", "the destination is a file"]
                    .iter()
                    .any(|it| error.what().contains(it)) =>
        {
            error.or_advise("remove it, or name another destination: no directory takes the place of a file")
        }
        (ErrorKind::Refused, _) if error.to_string().contains("Not a directory") => {
            error.or_advise("something on the way there is a file, and no directory: correct the path")
        }
        (ErrorKind::Refused, _) if error.to_string().contains("only root may") => {
            error.or_advise(format!("log in as root {there}, or leave --chown out"))
        }
        (ErrorKind::Refused, _) if matches!(role, CopyRole::Send) => {
            error.or_advise(format!("does your user {there} have the right to read it?"))
        }
        (ErrorKind::Refused, _) => error.or_advise(format!("choose a place {there} that your user may write to")),
        (ErrorKind::NoSpace, _) => {
            // Who receives is here, unless the words are the other end's.
            let is_here = matches!(role, CopyRole::Send) && !error.to_string().contains(" says: ");
            let place = if is_here { "here" } else { &there };
            error.or_advise(format!("free some space {place}, then the same command again goes on"))
        }
        _ => error,
    }
}

/// `cp` onto itself would replace a file by its own copy; as other programs do, that is called a mistake.
fn refuse_same_file(source: &Path, destination: &Path) -> Result<()> {
    let name = source.file_name().filter(|_| destination.is_dir());
    let target = name.map_or_else(|| destination.to_owned(), |name| destination.join(name));
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    match (identity(source), identity(&target)) {
        (Ok(one), Ok(other)) if one == other => {
            Err(Error::new(ErrorKind::Usage, format!("{source:?} and {target:?} are the same file"))
                .advise("name another destination"))
        }
        _ => Ok(()),
    }
}

/// True if the user named this very machine to ssh.
pub(super) fn is_local_host(host: &OsStr) -> bool {
    let text = host.to_string_lossy();
    let name = text.rsplit('@').next().unwrap_or_default();
    name == "localhost" || name.parse().is_ok_and(is_local)
}

fn far_name(host: &OsStr) -> String {
    host.to_string_lossy().into_owned()
}

fn copy_message(role: CopyRole, path: &OsStr, options: &CopyOptions, is_other_host: bool) -> Message {
    Message::Copy(Copy {
        role,
        or_several: matches!(role, CopyRole::Send).then_some(true),
        path: path.as_bytes().to_vec().into(),
        preserve: options.preserve,
        fsync: options.fsync,
        whole_file: options.whole_file.then_some(true),
        rate_bytes: options.rate_bytes,
        compressed: (options.compress && is_other_host).then_some(true),
    })
}

/// What the channel to the far end is called among the sources of a copy.
pub(super) fn channel_name(is_other_host: bool) -> &'static str {
    if is_other_host { "ssh" } else { "local copy" }
}

/// What `dray cp` serves over ssh while it uploads.
struct NearSender<'a> {
    object: ObjectName,
    origin: Arc<Origin>,
    door: OnceLock<HoldingDoor>,
    is_over: Arc<AtomicBool>,
    allow_local: bool,
    /// When the far end last said something, milliseconds since `begun`; 0 before its first word.
    heard_ms: AtomicU64,
    begun: Instant,
    observer: &'a dyn Observer,
    size_bytes: u64,
    /// What the far end's channel is called.
    channel: &'static str,
    /// Bytes of the file that were given to it.
    channel_bytes: Arc<AtomicU64>,
    last: Arc<Mutex<Last>>,
}

impl NearSender<'_> {
    fn hear(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(now.max(1), Ordering::Release);
    }

    fn is_heard(&self) -> bool {
        self.heard_ms.load(Ordering::Acquire) != 0
    }

    /// Time since the far end's last word.
    fn silence(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Acquire)))
    }
}

/// The receiver's latest words.
#[derive(Default)]
struct Last {
    progress: Option<message::Progress>,
    delivered: Option<message::Delivered>,
}

/// How many of the bytes that are new to the receiver came which way: it says what came directly, and of the others those came from here that
/// were given to the far end's `channel`, which were `channel_bytes`. The rest it took from what it has.
fn ways(progress: &message::Progress, channel: &'static str, channel_bytes: u64) -> [(&'static str, u64); 2] {
    let fresh = progress.done_bytes.saturating_sub(progress.resumed_bytes);
    let direct = progress.direct_bytes.min(fresh);
    [("direct", direct), (channel, channel_bytes.min(fresh - direct))]
}

/// What a sender knows of how far the receiver is: its last words.
fn sent_figures(
    last: Arc<Mutex<Last>>,
    channel: &'static str,
    channel_bytes: Arc<AtomicU64>,
    size_bytes: u64,
) -> Figures {
    Box::new(move || {
        let last = lock(&last);
        let channel_bytes = channel_bytes.load(Ordering::Relaxed);
        let is_there = last.delivered.is_some();
        let (done_bytes, resumed_bytes, ways) = match &last.progress {
            Some(progress) => (
                progress.done_bytes.min(size_bytes),
                progress.resumed_bytes,
                ways(progress, channel, channel_bytes),
            ),
            None => (0, 0, [("direct", 0), (channel, 0)]),
        };
        let sent_bytes: u64 = ways.iter().map(|(_, bytes)| bytes).sum();
        let sources = (0..).zip(ways).map(|(number, (label, delivered_bytes))| SourceSnapshot {
            number,
            label: label.to_owned(),
            share: delivered_bytes as f64 / sent_bytes.max(1) as f64,
            delivered_bytes,
            ..SourceSnapshot::default()
        });
        Some(Snapshot {
            size_bytes,
            done_bytes: if is_there { size_bytes } else { done_bytes },
            resumed_bytes,
            sources: sources.collect(),
            ..Snapshot::default()
        })
    })
}

impl Provider for NearSender<'_> {
    fn open(&self, open: &Open, _: Option<&Security>) -> Result<Arc<dyn Held>> {
        self.hear();
        if open.object == self.object {
            Ok(Arc::new(Counted { origin: self.origin.clone(), sent_bytes: self.channel_bytes.clone() }))
        } else {
            Err(Error::new(ErrorKind::NotFound, "not the file of this copy"))
        }
    }

    fn copy(&self, message: Message) -> Result<()> {
        self.hear();
        let mut last = lock(&self.last);
        match message {
            Message::Direct(theirs) => {
                if let Some(door) = self.door.get() {
                    let is_over = self.is_over.clone();
                    let is_over = Arc::new(move || is_over.load(Ordering::Acquire));
                    door.handle_direct(theirs, None, self.allow_local, is_over)?;
                }
            }
            Message::Progress(progress) => {
                let sources = ways(&progress, self.channel, self.channel_bytes.load(Ordering::Relaxed))
                    .into_iter()
                    .filter(|(_, bytes)| *bytes > 0)
                    .map(|(label, bytes)| SourceShare { label: label.into(), bytes, stalls: 0 })
                    .collect();
                let done_bytes = progress.done_bytes;
                last.progress = Some(progress);
                drop(last);
                self.observer.event(Event::Progress { done_bytes, total_bytes: self.size_bytes, sources });
            }
            Message::Delivered(delivered) => last.delivered = Some(delivered),
            _ => return Err(Error::new(ErrorKind::Protocol, "copy message out of place")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the far end refuses is answered by what it does: who reads there needs the right to read, who writes a place to write to, and who is
    /// confined has neither by itself.
    #[test]
    fn advice_follows_the_direction() {
        let of = |what: &str, host, role| {
            let error = advised(Error::new(ErrorKind::Refused, what), host, role);
            error.advice().unwrap_or_default().to_owned()
        };
        let what = "cannot open \"/root/x\": Permission denied (os error 13)";
        assert_eq!(of(what, Some("h"), CopyRole::Send), "does your user on h have the right to read it?");
        assert_eq!(of(what, Some("h"), CopyRole::Receive), "choose a place on h that your user may write to");
        let chown = "files cannot be given to \"www-data:\": only root may";
        assert_eq!(of(chown, Some("h"), CopyRole::Receive), "log in as root on h, or leave --chown out");
        assert_eq!(of(what, None, CopyRole::Receive), "choose a place here that your user may write to");
        let directory = "destination \"d/x\" is a directory";
        assert!(of(directory, Some("h"), CopyRole::Receive).starts_with("no file takes its place"));
        assert!(of("h says: \"x\" is a directory", Some("h"), CopyRole::Send).starts_with("-r copies"));
        let missing = |role| {
            let error = Error::new(ErrorKind::NotFound, "cannot open directory \"x\"");
            advised(error, Some("h"), role).advice().unwrap_or_default().to_owned()
        };
        assert!(missing(CopyRole::Send).contains("is the path right"));
        assert!(missing(CopyRole::Receive).contains("make that directory first"));
        for (what, role, place) in [
            ("write the file", CopyRole::Send, "here"),
            ("h says: write the file", CopyRole::Send, "on h"),
            ("h says: write the file", CopyRole::Receive, "on h"),
        ] {
            let error = advised(Error::new(ErrorKind::NoSpace, what), Some("h"), role);
            let advice = error.advice().unwrap_or_default();
            assert!(advice.starts_with(&format!("free some space {place},")), "{what}: {advice}");
        }
        for role in [CopyRole::Send, CopyRole::Receive] {
            let confined = of("../x leads out of the directory that may be read", Some("h"), role);
            assert!(confined.starts_with("your key is confined"), "{confined}");
            assert_eq!(of("another dray is receiving this", Some("h"), role), "wait for it or stop it");
        }
    }
}
