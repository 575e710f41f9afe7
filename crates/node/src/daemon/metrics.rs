//! Figures for Prometheus (text format 0.0.4): on the API, and on a TCP address where the configuration names one.
//!
//! That address answers one question, to one asker at a time, with what everybody who reaches it may know: numbers, no
//! names of files, objects or nodes.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dray_core::limits::METRICS_HEAD_BYTES_MAX;
use dray_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::State;
use crate::explain::{self, Standing};
use crate::{Event, SourceShare, lock};

/// For an asker to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Askers at once.
const ASKERS_MAX: usize = 8;

/// What is counted since the daemon started.
#[derive(Default)]
pub(super) struct Metrics {
    receivers: AtomicU64,
    sent_bytes: AtomicU64,
    turned_away: AtomicU64,
    hashed_bytes: AtomicU64,
    /// Bytes that gets had from each kind of source, and how often one of that kind was set aside for its silence.
    received: Mutex<BTreeMap<&'static str, Received>>,
    /// Gets by how they ended.
    gets: Mutex<BTreeMap<String, u64>>,
    /// Time that puts and gets have spent, by what they did, over all of them.
    stages: Mutex<BTreeMap<&'static str, Duration>>,
    /// Gets that began anew where they had stood.
    retries: AtomicU64,
    /// Sources lost on the way, and those barred for what they did.
    sources_lost: AtomicU64,
    sources_barred: AtomicU64,
    /// Of those, for bytes that are not of the object.
    verification_failures: AtomicU64,
}

/// Of one kind of source, or of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Received {
    bytes: u64,
    stalls: u64,
}

impl Metrics {
    /// Something that receivers did.
    pub(super) fn note(&self, event: &Event) {
        let add = |counter: &AtomicU64, count| {
            counter.fetch_add(count, Ordering::Relaxed);
        };
        match event {
            Event::Serving { .. } | Event::ServingDirectory { .. } => add(&self.receivers, 1),
            Event::Served { sent_bytes, .. } | Event::ServedDirectory { sent_bytes, .. } => {
                add(&self.sent_bytes, *sent_bytes);
            }
            Event::TurnedAway { .. } => add(&self.turned_away, 1),
            Event::SourceDown { is_barred: true, has_lied, .. } => {
                add(&self.sources_barred, 1);
                add(&self.verification_failures, u64::from(*has_lied));
            }
            Event::SourceDown { .. } => add(&self.sources_lost, 1),
            _ => {}
        }
    }

    /// A get has so much of each source; `before` is what it had when this was last called for it.
    pub(super) fn received(&self, before: &mut BTreeMap<String, Received>, sources: &[SourceShare]) {
        let mut received = lock(&self.received);
        for SourceShare { label, bytes, stalls } in sources {
            let now = Received { bytes: *bytes, stalls: *stalls };
            let had = before.insert(label.clone(), now).unwrap_or_default();
            let sum = received.entry(kind(label)).or_default();
            sum.bytes += now.bytes.saturating_sub(had.bytes);
            sum.stalls += now.stalls.saturating_sub(had.stalls);
        }
    }

    /// Does `work`, which counts as time of `stage`.
    pub(super) fn timed<T>(&self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        *lock(&self.stages).entry(stage).or_default() += begun.elapsed();
        done
    }

    /// A get begins anew where it stood.
    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// A get has ended.
    pub(super) fn got<T>(&self, result: &Result<T>) {
        let how = result.as_ref().err().map_or("done", |error| error.kind().word());
        *lock(&self.gets).entry(how.to_owned()).or_default() += 1;
    }

    /// Bytes were hashed to be put.
    pub(super) fn hashed(&self, bytes: u64) {
        self.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The kind of source behind a label that is for people.
fn kind(label: &str) -> &'static str {
    match label {
        "own copy" => "own-copy",
        "older version" => "older-version",
        "other files" => "other-files",
        "repeats" => "repeats",
        _ if label.starts_with("direct ") => "direct",
        _ => "other",
    }
}

/// All figures, as text.
pub(super) fn page(state: &State) -> String {
    let metrics = &state.hub.metrics;
    let (shares, cached_bytes) = state.shelf.counts();
    let ours = explain::running_here(&state.node().config.paths);
    let sources = || ours.iter().flat_map(|transfer| &transfer.sources);
    let frozen = sources().filter(|source| source.standing == Some(Standing::Frozen)).count();
    let received = lock(&metrics.received).clone();
    let gets = lock(&metrics.gets).clone();
    let stages = lock(&metrics.stages).clone();
    let index = state.indexing.state();
    let reserved = dray_transfer::reserved();
    let mut page = Page::default();
    for (name, help, value) in [
        ("shares", "Objects shared.", shares as u64),
        ("directories", "Directories shared.", state.directories.count() as u64),
        ("cached_bytes", "Bytes kept that nobody holds.", cached_bytes),
        ("incoming_bytes", "Bytes of puts that are not committed yet.", state.desk.incoming_bytes()),
        ("sessions", "Open sessions.", state.hub.sessions() as u64),
        ("connections", "Connections of receivers of objects.", state.serving.load(Ordering::Relaxed) as u64),
        ("index_files", "Files in the chunk index.", index.files),
        ("index_chunks", "Chunks in the chunk index.", index.chunks),
        ("index_disk_bytes", "Bytes that the chunk index takes on disk.", index.disk_bytes),
        ("frozen_sources", "Sources of gets under way that owe data and are silent.", frozen as u64),
        (
            "queue_bytes",
            "Bytes that sources of gets under way owe.",
            sources().filter_map(|source| source.queue_bytes).sum(),
        ),
        // These count what is reserved, not what is under way: what was not given back stays in them.
        (
            "reserved_bytes",
            "Bytes of memory reserved for what was asked for and has not come, and by searches.",
            state.node().reserved.used_bytes(),
        ),
        (
            "unread_bytes",
            "Bytes of memory reserved for what clients have not taken.",
            state.memory.used_bytes(),
        ),
        (
            "unread_shared_bytes",
            "Bytes of memory reserved for what clients have not taken, of what all gets share.",
            state.memory.shared_bytes(),
        ),
        ("packing_bytes", "Bytes of memory reserved for packing data.", reserved.packing_bytes),
        ("unpacking_streams", "Connections whose data is unpacked.", reserved.unpacking_streams),
        ("recipe_bytes", "Bytes of memory that recipes of objects take.", reserved.recipe_bytes),
    ] {
        page.one(name, "gauge", help, value);
    }
    for (name, help, counter) in [
        ("receivers_total", "Receivers let in.", &metrics.receivers),
        ("turned_away_total", "Refusals told; of a flood not all.", &metrics.turned_away),
        ("sent_bytes_total", "Bytes sent to receivers that have gone.", &metrics.sent_bytes),
        ("hashed_bytes_total", "Bytes hashed to be put.", &metrics.hashed_bytes),
        ("sources_lost_total", "Sources of gets lost on the way.", &metrics.sources_lost),
        (
            "sources_barred_total",
            "Sources of gets not used any more: they lied, broke the protocol, or did not have the object.",
            &metrics.sources_barred,
        ),
        (
            "verification_failures_total",
            "Sources of gets that sent what is not of the object; each is barred.",
            &metrics.verification_failures,
        ),
        (
            "get_retries_total",
            "Gets that began anew where they stood: others held the file, or room was made.",
            &metrics.retries,
        ),
    ] {
        page.one(name, "counter", help, counter.load(Ordering::Relaxed));
    }
    let read = index.read_bytes;
    page.one("index_read_bytes_total", "counter", "Bytes read to fill the chunk index.", read);
    page.many("transactions", "gauge", "Open transactions.", "kind", state.desk.kinds());
    page.many(
        "received_bytes_total",
        "counter",
        "Bytes that gets had, by kind of source.",
        "source",
        received.iter().map(|(source, sum)| (*source, sum.bytes)),
    );
    page.many(
        "stalls_total",
        "counter",
        "How often a source owed data and was silent for 10 s, so that others were asked for it, by kind of source.",
        "source",
        received.iter().map(|(source, sum)| (*source, sum.stalls)),
    );
    let gets = gets.iter().map(|(how, count)| (how.as_str(), *count));
    page.many("gets_total", "counter", "Gets that ended, by how.", "outcome", gets);
    page.many(
        "stage_seconds_total",
        "counter",
        "Time of puts and gets, by what they did.",
        "stage",
        stages.iter().map(|(stage, time)| (*stage, format!("{:.6}", time.as_secs_f64()))),
    );
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, sort: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP dray_{name} {help}\n# TYPE dray_{name} {sort}");
    }

    fn one(&mut self, name: &str, sort: &str, help: &str, value: u64) {
        self.head(name, sort, help);
        let _ = writeln!(self.0, "dray_{name} {value}");
    }

    fn many<'a, V: Display>(
        &mut self,
        name: &str,
        sort: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        self.head(name, sort, help);
        for (of, value) in values {
            let _ = writeln!(self.0, "dray_{name}{{{label}=\"{of}\"}} {value}");
        }
    }
}

/// Answers at a TCP address until it is dropped.
pub(super) struct Exporter {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    /// An event: this is the end.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens at `address`. `Refused` if that is taken or not ours.
    pub(super) fn start(address: SocketAddr, state: Arc<State>) -> Result<Exporter> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Refused, format!("cannot listen at {address} for metrics"))
                .caused_by(error)
                .advise("name another address in the configuration (metrics), or leave the line out")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let ended: Arc<AtomicBool> = Arc::default();
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let wake = Arc::new(wake);
        let (end, woken) = (ended.clone(), wake.clone());
        let asking: Arc<AtomicUsize> = Arc::default();
        let run = move || {
            while !end.load(Ordering::Acquire) {
                let mut fds = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&*woken, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                match listener.accept() {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Ok((asker, _)) => answer_aside(asker, &state, &asking),
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            }
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(run).map_err(failed)?;
        Ok(Exporter { address, ended, wake, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers on a thread of its own, so that who is silent holds up nobody; with [`ASKERS_MAX`] of them the next is dropped. Who asks amiss, or
/// goes away, is no business of anybody else.
fn answer_aside(asker: TcpStream, state: &Arc<State>, asking: &Arc<AtomicUsize>) {
    if asking.fetch_add(1, Ordering::AcqRel) >= ASKERS_MAX {
        asking.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let (state, asked) = (state.clone(), Asked(asking.clone()));
    let work = move || {
        let _asked = asked;
        drop(answer(asker, &state));
    };
    // Where no thread can be had, nobody is answered.
    let _ = thread::Builder::new().name("asker".into()).spawn(work);
}

/// One asker, as long as this is there.
struct Asked(Arc<AtomicUsize>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn answer(mut asker: TcpStream, state: &State) -> std::io::Result<()> {
    asker.set_nonblocking(false)?;
    asker.set_write_timeout(Some(PATIENCE))?;
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut piece) = (Vec::new(), [0; 512]);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > METRICS_HEAD_BYTES_MAX {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        asker.set_read_timeout(Some(left))?;
        match asker.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&piece[..length]),
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => ("200 OK", page(state)),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    asker.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 4, "verification failures": a lie is one, and what else a source is barred for is none.
    #[test]
    fn lies_are_counted_by_themselves() {
        let metrics = Metrics::default();
        for (is_barred, has_lied) in [(true, true), (true, false), (false, false)] {
            let (label, reason) = ("direct a:1".to_owned(), String::new());
            metrics.note(&Event::SourceDown { label, reason, is_barred, has_lied });
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = [&metrics.sources_lost, &metrics.sources_barred, &metrics.verification_failures];
        assert_eq!(counts.map(count), [1, 2, 1]);
    }

    /// Issue 4, "bytes by source kind": what a transfer tells again and again is counted once, and no label of a host reaches
    /// the page.
    #[test]
    fn bytes_are_counted_once_by_kind() {
        let (metrics, mut before) = (Metrics::default(), BTreeMap::new());
        let share = |label: &str, bytes, stalls| SourceShare { label: label.into(), bytes, stalls };
        metrics.received(&mut before, &[share("direct a:1", 5, 0)]);
        let now = [share("direct a:1", 9, 1), share("direct b:1", 1, 0), share("own copy", 2, 0)];
        metrics.received(&mut before, &now);
        metrics.received(&mut before, &[share("direct a:1", 9, 1)]);
        metrics.received(&mut BTreeMap::new(), &[share("direct a:1", 3, 2), share("x\"\n", 1, 0)]);
        let found = lock(&metrics.received).clone();
        let sum = |bytes, stalls| Received { bytes, stalls };
        assert_eq!(
            found,
            BTreeMap::from([("direct", sum(13, 3)), ("other", sum(1, 0)), ("own-copy", sum(2, 0))])
        );
    }
}
