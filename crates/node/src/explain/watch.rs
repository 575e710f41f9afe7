//! Watches a transfer from within its own process: keeps the figures from which rates are told, answers for it once it
//! has lasted a while, and leaves its last snapshot behind.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dray_core::Result;
use dray_core::limits::SNAPSHOT_SOURCES_MAX;

use super::snapshot::{self, Failure, Role, Snapshot, SourceSnapshot, State, told};
use super::socket::Answering;
use super::{history, socket};
use crate::config::Paths;
use crate::lock;
use crate::transfer::Transfer;

/// A transfer that lasts this long is worth a socket. Most of them are over before.
const WORTH_TELLING: Duration = Duration::from_millis(200);
/// Rates are measured over about this time.
const RATE_SPAN: Duration = Duration::from_secs(5);
/// Figures are kept this often.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Where the figures of a transfer come from: everything of a [`Snapshot`] but what a [`Watch`] knows. `None` once there is
/// nobody to ask.
pub(crate) type Figures = Box<dyn Fn() -> Option<Snapshot> + Send + Sync>;

/// Watches one transfer of this process.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    door: Arc<Door>,
    /// Opens it in time, though nothing comes and nobody calls [`Watch::tick`].
    opener: Mutex<Option<Opener>>,
}

/// Where a transfer is asked about.
struct Door {
    paths: Paths,
    answering: Mutex<Option<Answering>>,
    /// Whether a socket was worth trying; it is tried once.
    is_tried: Mutex<bool>,
}

/// A thread that waits for the moment from which the transfer is worth telling; it ends once the sender is dropped.
struct Opener {
    until: Sender<()>,
    thread: JoinHandle<()>,
}

/// What the thread that answers needs.
struct Shared {
    began: Instant,
    /// What does not change, or changes seldom.
    about: Mutex<Snapshot>,
    figures: Mutex<Option<Figures>>,
    samples: Mutex<VecDeque<Sample>>,
    /// The figures at the end.
    last: Mutex<Option<Snapshot>>,
}

/// What had been delivered at one moment.
struct Sample {
    at: Instant,
    done_bytes: u64,
    sources: Vec<Counted>,
}

struct Counted {
    number: u32,
    delivered_bytes: u64,
    received_bytes: Option<u64>,
}

impl Watch {
    /// For a transfer of `command`, not begun yet: until [`Watch::begin`] there is nothing to tell.
    pub(crate) fn new(paths: &Paths, command: &str) -> Watch {
        let about = Snapshot {
            state: State::Running,
            pid: std::process::id(),
            command: command.to_owned(),
            began_unix_us: unix_us(),
            ..Snapshot::default()
        };
        Watch {
            shared: Arc::new(Shared {
                began: Instant::now(),
                about: Mutex::new(about),
                figures: Mutex::default(),
                samples: Mutex::default(),
                last: Mutex::default(),
            }),
            door: Arc::new(Door {
                paths: paths.clone(),
                answering: Mutex::default(),
                is_tried: Mutex::new(false),
            }),
            opener: Mutex::default(),
        }
    }

    /// The transfer of `what` begins.
    pub(crate) fn begin(&self, role: Role, what: &str, peer: Option<&str>, figures: Figures) {
        let mut about = lock(&self.shared.about);
        about.role = role;
        about.what = told(what);
        about.peer = peer.map(told);
        drop(about);
        *lock(&self.shared.figures) = Some(figures);
        let mut opener = lock(&self.opener);
        if opener.is_none() {
            let (shared, door) = (self.shared.clone(), self.door.clone());
            let (until, ended) = mpsc::channel();
            let open = move || {
                let left = WORTH_TELLING.saturating_sub(shared.began.elapsed());
                if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                    door.open(&shared);
                }
            };
            // Without the thread it is told of once something comes.
            let spawned = thread::Builder::new().name("told".into()).spawn(open);
            *opener = spawned.ok().map(|thread| Opener { until, thread });
        }
    }

    /// Where the bytes go.
    pub(crate) fn set_path(&self, path: &Path) {
        // A relative path means little in another terminal.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.set_far_path(&path);
    }

    /// Where the bytes go on another host.
    pub(crate) fn set_far_path(&self, path: &Path) {
        lock(&self.shared.about).path = Some(told(&path.to_string_lossy()));
    }

    /// To be called some ten times a second while the transfer runs; cheap.
    pub(crate) fn tick(&self) {
        let now = Instant::now();
        if lock(&self.shared.samples).back().is_some_and(|last| now - last.at < SAMPLE_INTERVAL) {
            return;
        }
        if let Some(figures) = self.shared.figures_now() {
            self.shared.sample(now, &figures);
        }
        if self.is_worth_telling() {
            self.door.open(&self.shared);
        }
    }

    /// The transfer is over, and what follows is closing down: the figures are final.
    pub(crate) fn freeze(&self) {
        if let Some(figures) = self.shared.figures_now() {
            lock(&self.shared.last).get_or_insert(figures);
        }
    }

    /// The command ends like this. Leaves the last snapshot behind if somebody may ask for it.
    pub(crate) fn end<T>(self, result: &Result<T>) {
        self.open_no_more();
        self.freeze();
        let Some(last) = lock(&self.shared.last).clone() else { return };
        {
            let mut about = lock(&self.shared.about);
            about.ended_unix_us = Some(unix_us());
            about.elapsed_us = micros(self.shared.began.elapsed());
            about.state = if result.is_ok() { State::Done } else { State::Failed };
            about.failure = result.as_ref().err().map(Failure::of);
        }
        if self.is_worth_telling() || result.is_err() {
            // First this, then the end of the socket: there is always somebody who answers.
            history::keep(&self.door.paths, &self.shared.complete(last, Instant::now()));
        }
        drop(lock(&self.door.answering).take());
    }

    /// From here on nobody opens the door but [`Watch::tick`].
    fn open_no_more(&self) {
        if let Some(Opener { until, thread }) = lock(&self.opener).take() {
            drop(until);
            let _ = thread.join();
        }
    }

    fn is_worth_telling(&self) -> bool {
        self.shared.began.elapsed() >= WORTH_TELLING
    }
}

impl Door {
    /// Answers from now on, if that was not tried yet. Without a socket the transfer goes on, and nobody is told of it while it
    /// runs.
    fn open(&self, shared: &Arc<Shared>) {
        if !std::mem::replace(&mut *lock(&self.is_tried), true) {
            *lock(&self.answering) = socket::answer(&self.paths, shared.answers());
        }
    }
}

impl Shared {
    fn figures_now(&self) -> Option<Snapshot> {
        if let Some(last) = &*lock(&self.last) {
            return Some(last.clone());
        }
        lock(&self.figures).as_ref().and_then(|figures| figures())
    }

    /// What whoever asks is told.
    fn answers(self: &Arc<Shared>) -> socket::Answers {
        let shared = Arc::downgrade(self);
        Box::new(move || {
            let shared: Arc<Shared> = Weak::upgrade(&shared)?;
            let figures = shared.figures_now()?;
            Some(shared.complete(figures, Instant::now()))
        })
    }

    fn sample(&self, at: Instant, figures: &Snapshot) {
        let mut samples = lock(&self.samples);
        // One that is older than the span stays, to measure from.
        while samples.get(1).is_some_and(|second| at - second.at >= RATE_SPAN) {
            samples.pop_front();
        }
        samples.push_back(Sample {
            at,
            done_bytes: figures.done_bytes,
            sources: figures.sources.iter().map(counted).collect(),
        });
    }

    /// The figures with everything that is not among them: who, where, since when, and rates.
    fn complete(&self, figures: Snapshot, now: Instant) -> Snapshot {
        let about = lock(&self.about).clone();
        let mut snapshot = Snapshot {
            state: about.state,
            pid: about.pid,
            command: about.command,
            role: about.role,
            what: about.what,
            path: about.path,
            peer: about.peer,
            began_unix_us: about.began_unix_us,
            ended_unix_us: about.ended_unix_us,
            elapsed_us: about.elapsed_us,
            failure: about.failure,
            left_bytes: figures.size_bytes.saturating_sub(figures.done_bytes),
            ..figures
        };
        if about.ended_unix_us.is_some() {
            snapshot.bottleneck = None;
            let from_start = Sample {
                at: self.began,
                done_bytes: snapshot.resumed_bytes + snapshot.older_version_bytes + snapshot.repeated_bytes,
                sources: Vec::new(),
            };
            rates(&mut snapshot, &from_start, self.began + Duration::from_micros(about.elapsed_us));
        } else {
            snapshot.elapsed_us = micros(self.began.elapsed());
            if let Some(oldest) = lock(&self.samples).front() {
                rates(&mut snapshot, oldest, now);
            }
        }
        snapshot
    }
}

/// Rates since `before`.
fn rates(snapshot: &mut Snapshot, before: &Sample, now: Instant) {
    let span = now.saturating_duration_since(before.at);
    let per_s = |bytes: u64, earlier: u64| {
        let seconds = span.as_secs_f64();
        if seconds > 0.0 { (bytes.saturating_sub(earlier) as f64 / seconds) as u64 } else { 0 }
    };
    snapshot.rate_span_us = micros(span);
    // What an earlier run left may have become known only after the first sample.
    snapshot.rate_bytes_per_s = per_s(snapshot.done_bytes, before.done_bytes.max(snapshot.resumed_bytes));
    for source in &mut snapshot.sources {
        let earlier = before.sources.iter().find(|earlier| earlier.number == source.number);
        source.rate_bytes_per_s = per_s(source.delivered_bytes, earlier.map_or(0, |it| it.delivered_bytes));
        source.received_bytes_per_s = source
            .received_bytes
            .map(|bytes| per_s(bytes, earlier.and_then(|it| it.received_bytes).unwrap_or(0)));
    }
}

fn counted(source: &SourceSnapshot) -> Counted {
    Counted {
        number: source.number,
        delivered_bytes: source.delivered_bytes,
        received_bytes: source.received_bytes,
    }
}

/// The figures of a transfer of which nothing has come yet; the size is 0 while it is not known.
pub(crate) fn nothing_yet(size_bytes: u64) -> Figures {
    Box::new(move || Some(Snapshot { size_bytes, ..Snapshot::default() }))
}

/// The figures of a transfer that receives; `resumed_bytes` were there before. It is not kept alive by them.
pub(crate) fn figures_of(transfer: &Arc<Transfer>, resumed_bytes: u64) -> Figures {
    let transfer = Arc::downgrade(transfer);
    Box::new(move || {
        let transfer = transfer.upgrade()?;
        let explanation = transfer.explain();
        let count = explanation.sources.len();
        let sources = explanation.sources.into_iter().take(SNAPSHOT_SOURCES_MAX).map(|source| {
            let received_bytes = transfer.received_bytes(source.stats.source);
            SourceSnapshot::of(source, received_bytes)
        });
        Some(Snapshot {
            size_bytes: transfer.size_bytes(),
            done_bytes: transfer.done_bytes(),
            resumed_bytes,
            older_version_bytes: transfer.local_bytes(),
            other_files_bytes: transfer.other_bytes(),
            repeated_bytes: transfer.repeated_bytes(),
            unassigned_bytes: explanation.unassigned_bytes,
            duplicate_bytes: explanation.duplicate_bytes,
            budget_used_bytes: explanation.budget_used_bytes,
            budget_limit_bytes: explanation.budget_limit_bytes,
            bottleneck: Some(snapshot::bottleneck(explanation.bottleneck)),
            sources: sources.collect(),
            sources_omitted: count.saturating_sub(SNAPSHOT_SOURCES_MAX) as u64,
            ..Snapshot::default()
        })
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain;

    /// Issue "`dray explain`": a transfer whose other end has not answered is told of, though nothing comes that would call for
    /// it; one that is over, or was given up before it began, is not.
    #[test]
    fn a_transfer_that_waits_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::below(dir.path());
        let begun = |command| {
            let watch = Watch::new(&paths, command);
            watch.begin(Role::Receiving, "x", Some("h"), nothing_yet(0));
            watch
        };
        let (first, second, never) = (begun("cp"), begun("sync"), Watch::new(&paths, "get"));
        let running = || {
            let mut told: Vec<_> = explain::running(&paths).into_iter().map(|told| told.command).collect();
            told.sort_unstable();
            told
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while running() != ["cp", "sync"] {
            assert!(Instant::now() < deadline, "{:?}", running());
            thread::sleep(Duration::from_millis(10));
        }
        first.end(&Ok(()));
        assert_eq!(running(), ["sync"]);
        drop(second);
        never.end(&Ok(()));
        assert!(running().is_empty());
        // For one that is over before it is worth telling no socket is tried.
        let short = begun("cp");
        let door = Arc::clone(&short.door);
        short.end(&Ok(()));
        thread::sleep(WORTH_TELLING * 2);
        assert!(!*lock(&door.is_tried) && running().is_empty());
    }
}
