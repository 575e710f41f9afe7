//! An object that is fetched for a client: to it piece by piece, or to where it said by a descriptor.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dray_client::types::{Fetched, Mode, NewGet};
use dray_core::hint::Hint;
use dray_core::limits::API_WARNINGS_MAX;
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Result};
use serde_json::json;

use super::State;
use super::desk::{Transaction, alone, given_name, interrupted, name};
use super::hub::Hub;
use super::metrics::Received;
use super::outlet::Outlet;
use crate::get::{Came, Consumer, Memory, Order, Place};
use crate::{Delivered, Event, GetRequest, Observer, Stop, Wanted, lock, log_event, log_outcome};

/// Groups that wait for the client, beside those that wait in the transfer.
const WAITING_GROUPS: usize = 16;
/// How often who waits looks whether it still should.
const INTERVAL: Duration = Duration::from_millis(100);
/// Between two events of one transaction's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// How long a file that is being received already is waited for.
const HELD_PATIENCE: Duration = Duration::from_secs(5);

/// A get under way.
pub(super) struct GetTransaction {
    name: String,
    session: String,
    /// Set when the session ends.
    stop: Stop,
    done_bytes: AtomicU64,
    size_bytes: AtomicU64,
    /// What the client asks for; `None` if it goes elsewhere.
    pieces: Option<Mutex<Pieces>>,
    warnings: Mutex<Vec<String>>,
    outcome: Mutex<Option<Result<Delivered>>>,
    ended: Condvar,
}

/// Bytes for the client.
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    /// Of the whole object.
    pub(super) size_bytes: u64,
}

/// What has come and was not handed on, and what was handed on last.
struct Pieces {
    came: Receiver<Came>,
    /// Taken from there already.
    rest: VecDeque<Came>,
    /// The number of the next piece.
    next: u64,
    /// The piece before that, in case its answer was lost; until the next one is asked for.
    last: Option<Joined>,
}

/// Bytes that follow each other.
struct Joined {
    offset: u64,
    parts: Vec<Came>,
}

impl Joined {
    fn bytes(&self) -> Vec<u8> {
        self.parts.iter().map(|part| part.bytes.as_slice()).collect::<Vec<_>>().concat()
    }
}

impl GetTransaction {
    /// Begins to fetch (D11): to `descriptor` if that was handed over.
    pub(super) fn begin(state: &Arc<State>, wish: NewGet, descriptor: Option<OwnedFd>) -> Result<String> {
        let request = GetRequest {
            wanted: wanted(&wish)?,
            hints: wish.hints.iter().map(|text| text.parse::<Hint>()).collect::<Result<_>>()?,
            allow_local: wish.local,
            whole_file: wish.whole_file,
            search: None,
            fsync: wish.fsync,
        };
        let stop = Stop::new();
        let (place, pieces) = place(&wish, descriptor, &stop)?;
        let name = name("get")?;
        let transaction = Arc::new(GetTransaction {
            name: name.clone(),
            session: wish.session,
            stop,
            done_bytes: AtomicU64::new(0),
            size_bytes: AtomicU64::new(0),
            pieces,
            warnings: Mutex::default(),
            outcome: Mutex::default(),
            ended: Condvar::new(),
        });
        state.desk.open(state, &name, Transaction::Get(transaction.clone()))?;
        let (shared, mine) = (state.clone(), transaction);
        let work = move || mine.work(&shared, &request, place);
        let spawned = thread::Builder::new().name("get".into()).spawn(work);
        if let Err(error) = spawned {
            let _ = state.desk.end(&name);
            return Err(Error::file("start a thread", error));
        }
        Ok(name)
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Bytes come, or are asked for.
    pub(super) fn is_under_way(&self) -> bool {
        lock(&self.outcome).is_none()
    }

    /// Its session has ended, or it is not wanted any more.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    fn work(&self, state: &State, request: &GetRequest, place: Place) {
        let mut ending = Ending { transaction: self, hub: &state.hub, result: None };
        let watching = Watching { transaction: self, state, told: Mutex::new(None), had: Mutex::default() };
        let fetch = || self.fetch(state, request, place, &watching);
        let result = state.hub.metrics.timed("fetch", fetch);
        if let Ok(got) = &result {
            state.shelf.used(&got.oid);
            state.indexing.stir();
        }
        ending.result = Some(result);
    }

    /// Fetches to `place`. A file that somebody else is receiving is waited for a while: it may be the get of a session that has
    /// ended just now, and this one goes on from there.
    fn fetch(
        &self,
        state: &State,
        request: &GetRequest,
        mut place: Place,
        observer: &dyn Observer,
    ) -> Result<Delivered> {
        let (node, begun) = (state.node(), Instant::now());
        let mut has_made_room = false;
        loop {
            let again = match &place {
                Place::Folder { folder, name } => {
                    Some(Place::Folder { folder: folder.again()?, name: name.clone() })
                }
                Place::Consumer { .. } => None,
            };
            let memory = Memory::Shared(&state.memory);
            let result = node.get_to(request, |_| Ok(place), memory, observer, &self.stop);
            match (result, again) {
                (Err(error), Some(again))
                    if error.kind() == ErrorKind::Refused
                        && error.is_retryable()
                        && begun.elapsed() < HELD_PATIENCE
                        && !self.stop.is_set() =>
                {
                    place = again;
                    state.hub.metrics.retried();
                    thread::sleep(INTERVAL);
                }
                // What has come is gone on from. What the cache holds is room only on its own file system.
                (Err(error), Some(again))
                    if error.kind() == ErrorKind::NoSpace
                        && !has_made_room
                        && again.is_on(&node.config.paths.data_dir.join("store"))
                        && state.shelf.drop_all() =>
                {
                    place = again;
                    state.hub.metrics.retried();
                    has_made_room = true;
                }
                (result, _) => return result,
            }
        }
    }

    /// The next piece, of at most `most` bytes (D12); `None` after the last. `number` counts them from 0: the one before
    /// is told again, as after a lost answer.
    pub(super) fn piece(
        &self,
        state: &State,
        number: Option<u64>,
        most: usize,
        is_abandoned: &dyn Fn() -> bool,
    ) -> Result<Option<Piece>> {
        let Some(pieces) = &self.pieces else {
            return Err(Error::new(ErrorKind::Usage, "the bytes of this transaction go to its descriptor")
                .advise("POST …/finish waits until all are there"));
        };
        let mut pieces = alone(pieces)?;
        let piece = |joined: &Joined| Piece {
            offset: joined.offset,
            bytes: joined.bytes(),
            size_bytes: self.size_bytes.load(Ordering::Acquire),
        };
        let next = pieces.next;
        match number {
            Some(number) if number.checked_add(1) == Some(next) => {
                let gone = || Error::new(ErrorKind::Usage, format!("piece {number} is not kept any more"));
                return pieces.last.as_ref().map(|last| Some(piece(last))).ok_or_else(gone);
            }
            Some(number) if number != next => {
                let what = format!("pieces come one by one: the next is {next}, not {number}");
                return Err(Error::new(ErrorKind::Usage, what));
            }
            _ => {}
        }
        // Who asks for the next one has it; its memory may be what the next one waits for.
        pieces.last = None;
        if pieces.fill(most, &|| self.stop.is_set() || is_abandoned())? {
            pieces.last = pieces.take(most);
            pieces.next += 1;
            return Ok(pieces.last.as_ref().map(piece));
        }
        // Whatever came of it, the transaction is over when that was told; should the answer be lost, it is told again.
        let outcome = self.outcome(is_abandoned)?;
        state.desk.settle(&self.name);
        outcome.map(|_| None)
    }

    /// Waits for the end of the transfer; asked again, tells the same.
    pub(super) fn finish(&self, state: &State, is_abandoned: &dyn Fn() -> bool) -> Result<Fetched> {
        if self.pieces.is_some() {
            return Err(Error::new(ErrorKind::Usage, "the bytes of this transaction are asked for here")
                .advise("GET …/data until it answers 204"));
        }
        let outcome = self.outcome(is_abandoned)?;
        state.desk.settle(&self.name);
        let Delivered { oid, size_bytes, path, resumed_bytes, sent_bytes: _ } = outcome?;
        let name = path.as_deref().and_then(std::path::Path::file_name);
        Ok(Fetched {
            oid: oid.to_string(),
            size_bytes,
            name: name.map(|name| name.to_string_lossy().into_owned()),
            resumed_bytes,
            warnings: lock(&self.warnings).clone(),
        })
    }

    /// How the transfer ended. `Interrupted` if nobody waits for that any more.
    fn outcome(&self, is_abandoned: &dyn Fn() -> bool) -> Result<Result<Delivered>> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Some(Ok(delivered)) => return Ok(Ok(delivered.clone())),
                Some(Err(error)) => return Ok(Err(error.duplicate())),
                None if is_abandoned() => return Err(interrupted("get")),
                None => {}
            }
            let waited = self.ended.wait_timeout(outcome, INTERVAL);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Pieces {
    /// Waits until there is something to take; false if nothing more comes.
    fn fill(&mut self, most: usize, is_stopped: &dyn Fn() -> bool) -> Result<bool> {
        while self.rest.is_empty() {
            match self.came.recv_timeout(INTERVAL) {
                Ok(came) => self.rest.push_back(came),
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Err(RecvTimeoutError::Timeout) if is_stopped() => return Err(interrupted("get")),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        // What is there besides, as far as it fits.
        let mut waiting: usize = self.rest.iter().map(|came| came.bytes.len()).sum();
        while waiting < most
            && let Ok(came) = self.came.try_recv()
        {
            waiting += came.bytes.len();
            self.rest.push_back(came);
        }
        Ok(true)
    }

    /// Takes bytes that follow each other.
    fn take(&mut self, most: usize) -> Option<Joined> {
        let first = self.rest.front()?.offset;
        let (mut parts, mut next, end) = (Vec::new(), first, first.saturating_add(most as u64));
        while next < end
            && let Some(mut part) = self.rest.pop_front_if(|came| came.offset == next)
        {
            next += part.bytes.len() as u64;
            if next > end {
                // What is too much of it is at most its length.
                let rest = part.bytes.split_off(part.bytes.len() - (next - end) as usize);
                self.rest.push_front(Came { offset: end, bytes: rest, hold: part.hold.clone() });
            }
            parts.push(part);
        }
        Some(Joined { offset: first, parts })
    }
}

/// Dropped at the end of a get's thread: tells how it ended, also if the thread failed.
struct Ending<'a> {
    transaction: &'a GetTransaction,
    hub: &'a Hub,
    result: Option<Result<Delivered>>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let GetTransaction { name, outcome, ended, .. } = self.transaction;
        let result = self.result.take().unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Internal, "the thread of this get failed")
                .advise("the log of the daemon says how; please report it"))
        });
        self.hub.metrics.got(&result);
        log_outcome(name, result.as_ref().map(drop));
        match &result {
            Ok(got) => self.hub.tell(
                "got",
                &json!({"transaction": name, "oid": got.oid.to_string(), "size_bytes": got.size_bytes}),
            ),
            Err(error) => self.hub.tell(
                "failed",
                &json!({"transaction": name, "kind": error.kind().word(), "what": error.to_string()}),
            ),
        }
        *lock(outcome) = Some(result);
        ended.notify_all();
    }
}

/// Hands groups to whoever answers the client, and waits while it has enough of them.
struct Handing(SyncSender<Came>);

impl Consumer for Handing {
    fn take(&mut self, came: Came) -> io::Result<()> {
        self.0.send(came).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells sessions how far a get is.
struct Watching<'a> {
    transaction: &'a GetTransaction,
    state: &'a State,
    told: Mutex<Option<Instant>>,
    /// Bytes by source, as they were counted.
    had: Mutex<BTreeMap<String, Received>>,
}

impl Observer for Watching<'_> {
    fn event(&self, event: Event) {
        let GetTransaction { name, size_bytes, done_bytes: done, warnings, .. } = self.transaction;
        let hub = &self.state.hub;
        hub.metrics.note(&event);
        log_event(name, &event);
        match event {
            Event::Started { total_bytes, .. } => size_bytes.store(total_bytes, Ordering::Release),
            Event::Progress { done_bytes, total_bytes, sources } => {
                hub.metrics.received(&mut lock(&self.had), &sources);
                let is_news = done.swap(done_bytes, Ordering::Relaxed) != done_bytes;
                let mut told = lock(&self.told);
                let is_due = told.is_none_or(|told| told.elapsed() >= PROGRESS_INTERVAL);
                if is_news && (is_due || done_bytes == total_bytes) {
                    *told = Some(Instant::now());
                    let data =
                        json!({"transaction": name, "done_bytes": done_bytes, "total_bytes": total_bytes});
                    hub.tell("progress", &data);
                }
            }
            Event::SourceUp { label } => {
                hub.tell("source-up", &json!({"transaction": name, "source": label}));
            }
            Event::SourceDown { label, reason, is_barred, .. } => hub.tell(
                "source-down",
                &json!({"transaction": name, "source": label, "reason": reason, "barred": is_barred}),
            ),
            Event::Warning(text) => {
                hub.tell("warning", &json!({"transaction": name, "text": text}));
                let mut warnings = lock(warnings);
                if warnings.len() < API_WARNINGS_MAX {
                    warnings.push(text);
                }
            }
            _ => {}
        }
    }
}

fn wanted(wish: &NewGet) -> Result<Wanted> {
    match (&wish.ticket, &wish.oid) {
        (Some(text), None) => Ok(Wanted::Ticket(text.trim().parse::<Ticket>()?)),
        (None, Some(text)) => Ok(Wanted::Oid(text.parse()?)),
        _ => Err(Error::new(ErrorKind::Usage, "a get names one object: by ticket or by oid")),
    }
}

/// Where the bytes go.
fn place(wish: &NewGet, descriptor: Option<OwnedFd>, stop: &Stop) -> Result<(Place, Option<Mutex<Pieces>>)> {
    let file_name = given_name(wish.name.as_deref(), wish.name_hex.as_deref())?;
    let slip = |what: &str| Err(Error::new(ErrorKind::Usage, what));
    let bytes = wish.from.unwrap_or(0)..wish.to.unwrap_or(u64::MAX);
    let order = match wish.mode {
        Mode::Sequential => Order::Ascending,
        Mode::OutOfOrder => Order::AsTheyCome,
    };
    let outlet = match descriptor {
        Some(descriptor) => Some(Outlet::of(descriptor, stop.clone())?),
        None => None,
    };
    if file_name.is_some() && !matches!(outlet, Some(Outlet::Folder(_))) {
        return slip("a name goes with a directory that is handed over");
    }
    match outlet {
        Some(Outlet::Folder(_)) if bytes != (0..u64::MAX) => slip("a file gets the whole object"),
        Some(Outlet::Folder(folder)) => {
            Ok((Place::Folder { folder, name: file_name.map(OsString::from_vec) }, None))
        }
        Some(Outlet::Through(_)) if order == Order::AsTheyCome => {
            slip("what goes through a descriptor goes in order: mode is sequential")
        }
        Some(Outlet::Through(through)) => {
            Ok((Place::Consumer { consumer: Box::new(through), order, bytes }, None))
        }
        None => {
            let (sender, came) = sync_channel(WAITING_GROUPS);
            let pieces = Pieces { came, rest: VecDeque::new(), next: 0, last: None };
            let consumer = Box::new(Handing(sender));
            Ok((Place::Consumer { consumer, order, bytes }, Some(Mutex::new(pieces))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::Hold;

    /// D12: pieces have at most as many bytes as were asked for, join what follows each other and nothing else, and lose none.
    #[test]
    fn pieces_are_bounded_and_whole() {
        for most in [1, 3, 10, 1000] {
            let (sender, came) = sync_channel(WAITING_GROUPS);
            let mut pieces = Pieces { came, rest: VecDeque::new(), next: 0, last: None };
            for offset in [40, 0, 10, 20, 60] {
                let bytes = (offset as u8..offset as u8 + 10).collect();
                sender.send(Came { offset, bytes, hold: Hold::nothing() }).unwrap();
            }
            drop(sender);
            let mut found = Vec::new();
            while pieces.fill(most, &|| false).unwrap() {
                let joined = pieces.take(most).unwrap();
                let (offset, bytes) = (joined.offset, joined.bytes());
                assert!(!bytes.is_empty() && bytes.len() <= most);
                assert!(bytes.iter().zip(offset..).all(|(byte, at)| u64::from(*byte) == at));
                found.extend(bytes);
            }
            assert_eq!(found, [40..50, 0..30, 60..70].into_iter().flatten().collect::<Vec<u8>>());
        }
        // Whoever waits for what does not come is let go.
        let (_sender, came) = sync_channel(1);
        let mut pieces = Pieces { came, rest: VecDeque::new(), next: 0, last: None };
        assert_eq!(pieces.fill(1, &|| true).unwrap_err().kind(), ErrorKind::Interrupted);
    }

    /// Design 9, "every transfer ends": a get whose thread fails ends with an error for whoever waits for it.
    #[test]
    fn a_thread_that_fails_is_an_end() {
        let transaction = GetTransaction {
            name: "get-0".into(),
            session: "session-0".into(),
            stop: Stop::new(),
            done_bytes: AtomicU64::new(0),
            size_bytes: AtomicU64::new(0),
            pieces: None,
            warnings: Mutex::default(),
            outcome: Mutex::default(),
            ended: Condvar::new(),
        };
        let hub = Hub::new(Arc::new(|_| {}));
        let failing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ending = Ending { transaction: &transaction, hub: &hub, result: None };
            panic!("on purpose");
        }));
        assert!(failing.is_err());
        for _ in 0..2 {
            let outcome = transaction.outcome(&|| false).unwrap();
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Internal);
        }
    }
}
