//! An object on its way in: bytes piece by piece, or a file that was handed over; then the record of who may have it.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dray_client::types::{NewPut, Shared};
use dray_core::limits::NAME_BYTES_MAX;
use dray_core::store::{Share, Store, StoredObject};
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::{Incoming, LONG_BYTES, Landing, LocalWriter};
use serde_json::json;

use super::State;
use super::desk::{Transaction, alone, given_name, interrupted, name};
use super::hub::Hub;
use super::shelf::{Changing, Shelf};
use crate::put::Terms;
use crate::{Event, Stop, join, lock, log_outcome};

/// Between two events of one transaction's progress, bytes.
const PROGRESS_BYTES: u64 = 16 << 20;

/// An object on its way in.
pub(super) struct PutTransaction {
    name: String,
    session: String,
    file_name: Option<Vec<u8>>,
    public: bool,
    expires_in: Option<Duration>,
    pin: bool,
    ticket: Option<Ticket>,
    /// Its bytes come over the API.
    is_taken_in: bool,
    /// Set when the session ends.
    stop: Stop,
    done_bytes: AtomicU64,
    input: Mutex<Input>,
}

enum Input {
    Bytes {
        writer: Box<LocalWriter>,
        size_bytes: u64,
        /// Hash of the last piece, for one that is sent again.
        last: [u8; 32],
    },
    File(File),
    /// All bytes came, and a commit of them failed for a reason that passes.
    Finished(Box<Finished>),
    /// It was committed, or that failed. The client may ask again, because the answer was lost.
    Over(Result<Shared>),
    Spent,
}

/// All bytes of an object. They may be in the store already: then they go again when this is dropped, unless they are shared.
struct Finished {
    incoming: Incoming,
    shelf: Arc<Shelf>,
}

impl Drop for Finished {
    fn drop(&mut self) {
        if !self.incoming.is_whole() {
            self.shelf.look_after(self.incoming.oid());
        }
    }
}

impl PutTransaction {
    /// Begins a put (D6); of `file` if that was handed over.
    pub(super) fn begin(state: &State, wish: NewPut, file: Option<File>) -> Result<String> {
        let transaction = Arc::new(PutTransaction::new(state, wish, file)?);
        let name = transaction.name.clone();
        state.desk.open(state, &name, Transaction::Put(transaction))?;
        Ok(name)
    }

    /// All of it at once, for whoever waits for the answer.
    pub(super) fn at_once(
        state: &State,
        wish: NewPut,
        file: File,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Result<Shared> {
        match wish.session.as_str() {
            "" if wish.pin => {}
            "" => {
                return Err(Error::new(ErrorKind::Usage, "what is shared without a session is pinned")
                    .advise("set pin, or name the session that it is shared with"));
            }
            session => state.hub.check(session)?,
        }
        let transaction = Arc::new(PutTransaction::new(state, wish, Some(file))?);
        let name = &transaction.name;
        // Held to the end: nobody else commits it.
        let mut input = alone(&transaction.input)?;
        let is_in_session = !transaction.session.is_empty();
        if is_in_session {
            // Whose end ends it.
            state.desk.open(state, name, Transaction::Put(transaction.clone()))?;
        }
        let shared =
            transaction.share(state, std::mem::replace(&mut *input, Input::Spent), is_abandoned, &mut None);
        if is_in_session {
            // Not there any more where the session has ended.
            let _ = state.desk.end(name);
        }
        log_outcome(name, shared.as_ref().map(drop));
        shared
    }

    fn new(state: &State, wish: NewPut, file: Option<File>) -> Result<PutTransaction> {
        let ticket = match &wish.ticket {
            None => None,
            Some(text) => Some(text.trim().parse::<Ticket>()?),
        };
        if let Some(ticket) = &ticket {
            join::check(ticket, file.as_ref().and_then(|file| Some(file.metadata().ok()?.len())))?;
        }
        state.shelf.check_room()?;
        let file_name = file_name(&wish, file.as_ref())?;
        let is_taken_in = file.is_none();
        let input = match file {
            Some(file) => Input::File(file),
            None => Input::Bytes {
                writer: Box::new(state.node().store()?.take_in()?),
                size_bytes: 0,
                last: *blake3::hash(&[]).as_bytes(),
            },
        };
        Ok(PutTransaction {
            name: name("put")?,
            session: wish.session,
            file_name,
            public: wish.public,
            expires_in: wish.expires_s.map(Duration::from_secs),
            pin: wish.pin,
            ticket,
            is_taken_in,
            stop: Stop::new(),
            done_bytes: AtomicU64::new(0),
            input: Mutex::new(input),
        })
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that came over the API and are no object yet. A file that was handed over is its owner's.
    pub(super) fn incoming_bytes(&self) -> u64 {
        if self.is_taken_in { self.done_bytes() } else { 0 }
    }

    /// Those of them that will be cache: what is pinned shall not cost others theirs as long as the disk has room.
    pub(super) fn caching_bytes(&self) -> u64 {
        if self.pin { 0 } else { self.incoming_bytes() }
    }

    /// Its session has ended, or it is not wanted any more.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    /// Appends `bytes` at `offset`, which is where the last ones ended, or where they began if these are they, sent
    /// again (D7). All of them or none.
    pub(super) fn write(&self, state: &State, offset: Option<u64>, bytes: &[u8]) -> Result<u64> {
        let mut input = alone(&self.input)?;
        let Input::Bytes { writer, size_bytes, last } = &mut *input else {
            let is_file = matches!(*input, Input::File(_));
            let why = if is_file { "has its bytes from a descriptor" } else { "is over" };
            return Err(Error::new(ErrorKind::Usage, format!("this transaction {why}")));
        };
        let offset = offset.unwrap_or(*size_bytes);
        let hash = *blake3::hash(bytes).as_bytes();
        if offset.checked_add(bytes.len() as u64) == Some(*size_bytes) && !bytes.is_empty() {
            if hash != *last {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("other bytes came for offset {offset} before"),
                )
                .advise("a piece that is sent again is the same piece"));
            }
            return Ok(*size_bytes);
        }
        if offset != *size_bytes {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("bytes come in order: the next offset is {size_bytes}, not {offset}"),
            ));
        }
        state.hub.metrics.timed("hash", || state.shelf.with_room(|| writer.write(bytes)))?;
        *size_bytes += bytes.len() as u64;
        if !bytes.is_empty() {
            *last = hash;
        }
        self.done_bytes.store(*size_bytes, Ordering::Relaxed);
        state.hub.metrics.hashed(bytes.len() as u64);
        state.shelf.stir();
        Ok(*size_bytes)
    }

    /// Ends the object, records who may have it, and shares it (D8, D9); asked again, tells the same. Stops early if nobody
    /// waits for it.
    pub(super) fn commit(&self, state: &State, is_abandoned: &(dyn Fn() -> bool + Sync)) -> Result<Shared> {
        // Held to the end: a second commit beside this one is refused, and disturbs nothing.
        let mut input = alone(&self.input)?;
        let mut again = match &*input {
            Input::Over(shared) => return repeated(shared),
            Input::File(file) => file.try_clone().ok().map(Input::File),
            _ => None,
        };
        let shared =
            self.share(state, std::mem::replace(&mut *input, Input::Spent), is_abandoned, &mut again);
        log_outcome(&self.name, shared.as_ref().map(drop));
        let is_passing = shared.as_ref().is_err_and(|error| {
            // What the disk or the system says is internal, too.
            let kinds = [ErrorKind::Interrupted, ErrorKind::NoSpace, ErrorKind::Internal];
            kinds.contains(&error.kind()) || error.is_retryable()
        });
        if let Some(again) = again.filter(|_| is_passing && !self.stop.is_set()) {
            // Only the connection has gone, somebody holds a lock, or the disk is full or fails: the session may ask once more.
            *input = again;
            return shared;
        }
        *input = Input::Over(repeated(&shared));
        state.desk.settle(&self.name);
        shared
    }

    /// `again` gets back bytes that came over the API and are not shared.
    fn share(
        &self,
        state: &State,
        input: Input,
        is_abandoned: &(dyn Fn() -> bool + Sync),
        again: &mut Option<Input>,
    ) -> Result<Shared> {
        let is_stopped = || is_abandoned() || self.stop.is_set();
        let tell = |error: &Error| {
            let text =
                format!("the put goes on when it can: {error}; it waits for 10 minutes at the longest");
            state.hub.warn_of(&self.session, &self.name, text);
        };
        let landing = Landing::new(&tell);
        // Until it is shared nobody else ends or drops the object: what is found to be here already is not gone a moment later.
        let mut finished: Option<Box<Finished>> = None;
        let taken = match input {
            Input::Spent | Input::Over(_) => {
                return Err(Error::new(ErrorKind::Usage, "this transaction is committed, or failed before"));
            }
            Input::File(file) => {
                let take = || self.take_file(state, &file, &is_stopped, &landing);
                state.hub.metrics.timed("hash", take).inspect_err(|_| {
                    // What was copied in is known to nobody yet, and whoever has its turn may leave it so.
                    landing.taken_in().into_iter().for_each(|oid| state.shelf.look_after(oid));
                })
            }
            Input::Bytes { .. } if is_stopped() => {
                *again = Some(input);
                return Err(interrupted("put"));
            }
            Input::Bytes { writer, .. } => {
                let incoming = writer.finish()?;
                let bytes = Box::new(Finished { incoming, shelf: state.shelf.clone() });
                self.take_bytes(state, finished.insert(bytes), &is_stopped, &landing)
            }
            Input::Finished(bytes) => self.take_bytes(state, finished.insert(bytes), &is_stopped, &landing),
        };
        let (changing, object) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // They may be in their place already, and only could not be opened.
                if let Some(bytes) = finished {
                    *again = Some(Input::Finished(bytes));
                }
                return Err(error);
            }
        };
        // What can be had again at once is not waited for.
        let is_over = || (!self.is_taken_in && object.size_bytes() < LONG_BYTES) || is_stopped();
        let keep = || state.shelf.with_room(|| self.keep(state, &changing, &*object, &is_stopped));
        let shared = state.hub.metrics.timed("record", || landing.until_unlocked(&is_over, keep));
        if shared.is_err() {
            match finished {
                // In the store they are, and shared they may be the next time.
                Some(bytes) => *again = Some(Input::Finished(bytes)),
                None => state.shelf.discard(&changing),
            }
        }
        shared
    }

    /// Shares `object`, which is in the store.
    fn keep(
        &self,
        state: &State,
        changing: &Changing<'_>,
        object: &dyn StoredObject,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Shared> {
        let (node, oid) = (state.node(), object.oid());
        if let Some(ticket) = &self.ticket {
            join::check_object(ticket, &oid)?;
        }
        if is_stopped() {
            return Err(interrupted("put"));
        }
        let warnings = Mutex::new(Vec::new());
        let observer = |event| {
            if let Event::Warning(text) = event {
                lock(&warnings).push(text);
            }
        };
        let terms = Terms { public: self.public, expires_in: self.expires_in, ticket: self.ticket.as_ref() };
        let mut made = None;
        let record = |in_force: Option<&Share>, check: &dyn Fn(&Share) -> Result<()>| {
            let share = node.record_share(&oid, &terms, self.file_name.clone(), in_force, check)?;
            // Before it is kept: nothing is pinned whose ticket nobody has.
            let ticket = node.ticket(object, &share, state.port(), terms.ticket, &observer)?;
            made = Some((ticket.to_text()?, ticket.hints));
            Ok(share)
        };
        state.shelf.keep(changing, record, self.pin, &self.session)?;
        let (ticket, hints) = made.unwrap_or_default();
        if !state.hub.has(&self.session) {
            state.shelf.leave(&self.session);
        }
        let size_bytes = object.size_bytes();
        state.hub.tell("shared", &json!({"oid": oid.to_string(), "size_bytes": size_bytes}));
        Ok(Shared {
            oid: oid.to_string(),
            size_bytes,
            ticket,
            addresses: hints.iter().map(|hint| hint.uri.to_string()).collect(),
            warnings: warnings.into_inner().unwrap_or_default(),
        })
    }

    /// Puts bytes that came over the API into the store, and takes their turn.
    fn take_bytes<'a>(
        &self,
        state: &'a State,
        bytes: &mut Finished,
        is_stopped: &(dyn Fn() -> bool + Sync),
        landing: &Landing<'_>,
    ) -> Result<(Changing<'a>, Arc<dyn StoredObject>)> {
        let changing = state.shelf.change(&bytes.incoming.oid(), is_stopped)?;
        let mut keep = || state.shelf.with_room(|| bytes.incoming.keep());
        let keep = || landing.until_unlocked(is_stopped, &mut keep);
        let kept = state.hub.metrics.timed("store", keep)?;
        Ok((changing, kept))
    }

    /// Puts `file` into the store, and takes its turn.
    fn take_file<'a>(
        &self,
        state: &'a State,
        file: &File,
        is_stopped: &(dyn Fn() -> bool + Sync),
        landing: &Landing<'_>,
    ) -> Result<(Changing<'a>, Arc<dyn StoredObject>)> {
        let total_bytes = file.metadata().map(|metadata| metadata.len()).ok();
        let told = AtomicU64::new(0);
        let progress = |done_bytes| self.progress(&state.hub, &told, done_bytes, total_bytes);
        let store = state.node().store()?.clone();
        let put = || {
            let file = file.try_clone().map_err(|error| Error::file("use a descriptor", error))?;
            store.put_descriptor(file, &progress, is_stopped, landing)
        };
        let object = state.shelf.with_room(put)?;
        let changing = state.shelf.change(&object.oid(), is_stopped)?;
        if !matches!(store.share(&object.oid()), Err(error) if error.kind() == ErrorKind::NotFound) {
            return Ok((changing, object));
        }
        // Hashing takes too long to hold everybody else up for it, so it was dropped before its turn came.
        let again = put()?;
        if again.oid() == object.oid() {
            return Ok((changing, again));
        }
        Err(Error::new(ErrorKind::Changed, "the file was changed while it was put")
            .advise("put it again when nobody writes to it"))
    }

    fn progress(&self, hub: &Hub, told: &AtomicU64, done_bytes: u64, total_bytes: Option<u64>) {
        let before = self.done_bytes.fetch_max(done_bytes, Ordering::Relaxed);
        hub.metrics.hashed(done_bytes.saturating_sub(before));
        let last = told.load(Ordering::Relaxed);
        let is_news = done_bytes >= last.saturating_add(PROGRESS_BYTES) || Some(done_bytes) == total_bytes;
        if is_news && told.compare_exchange(last, done_bytes, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let name = &self.name;
            hub.tell(
                "hashing",
                &json!({"transaction": name, "done_bytes": done_bytes, "total_bytes": total_bytes}),
            );
        }
    }
}

/// An outcome once more.
fn repeated(shared: &Result<Shared>) -> Result<Shared> {
    match shared {
        Ok(shared) => Ok(shared.clone()),
        Err(error) => Err(error.duplicate()),
    }
}

/// The file name to suggest: as the client says, else that of the file handed over.
fn file_name(wish: &NewPut, file: Option<&File>) -> Result<Option<Vec<u8>>> {
    if let Some(name) = given_name(wish.name.as_deref(), wish.name_hex.as_deref())? {
        return Ok(Some(name));
    }
    let name = file.and_then(own_name);
    Ok(name.filter(|name| name.len() <= NAME_BYTES_MAX))
}

/// The name that leads to `file`. One in memory, or without a name any more, has what looks like one and is none.
fn own_name(file: &File) -> Option<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let path = std::fs::read_link(link).ok()?;
    let (named, open) = (std::fs::metadata(&path).ok()?, file.metadata().ok()?);
    let is_it = (named.dev(), named.ino()) == (open.dev(), open.ino());
    Some(path.file_name().filter(|_| is_it)?.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicU16, AtomicU32};

    use dray_core::Oid;
    use dray_store::local::LocalStore;
    use dray_store::lock_file;

    use super::*;
    use crate::config::{Config, ConfigFile, Paths};
    use crate::daemon::desk;
    use crate::get::SharedMemory;
    use crate::{Node, Observer};

    /// A daemon without sockets, which waits for no lock.
    fn state(dir: &Path) -> State {
        state_heard_by(dir, Arc::new(|_: Event| {}))
    }

    fn state_heard_by(dir: &Path, observer: Arc<dyn Observer>) -> State {
        let mut node = Node::open(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap();
        let store = LocalStore::clone(node.store().unwrap()).with_patience(Duration::ZERO);
        let store = Arc::new(store);
        node.store = Some(store.clone());
        let hub = Arc::new(Hub::new(observer));
        let shelf = Arc::new(Shelf::load(store, node.id(), hub.clone(), Arc::default()).unwrap());
        let directories = State::directories(&node, hub.clone()).unwrap();
        State {
            node: RwLock::new(Arc::new(node)),
            shelf,
            directories,
            desk: desk::Desk::default(),
            hub,
            memory: SharedMemory::new(1 << 20),
            indexing: Arc::default(),
            serving: Default::default(),
            moved: Default::default(),
            port: AtomicU16::new(1),
            troubles: Mutex::default(),
            started_unix_s: 0,
        }
    }

    fn has(state: &State, oid: &Oid) -> bool {
        state.node().store().unwrap().share(oid).is_ok()
    }

    /// D2, D13: a file in memory is copied; if its put is interrupted before its turn, the copy is not left behind, unknown to everybody.
    #[test]
    fn what_was_copied_in_for_nothing_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let mut file = File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"bytes of nobody").unwrap();
        let oid = Oid::of(b"bytes of nobody");
        let turn = state.shelf.change(&oid, &|| true).unwrap();
        let wish = NewPut { pin: true, ..NewPut::default() };
        let error = PutTransaction::at_once(&state, wish, file, &|| has(&state, &oid)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert!(has(&state, &oid));
        drop(turn);
        state.shelf.tick(u64::MAX);
        assert!(!has(&state, &oid));
    }

    /// Design 9: the bytes of a long put are not lost to a process that holds a lock longer than a request waits.
    #[test]
    fn a_commit_waits_for_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let put = PutTransaction::new(&state, NewPut::default(), None).unwrap();
        put.write(&state, None, b"hours of bytes").unwrap();
        let oid = Oid::of(b"hours of bytes");
        let held = Mutex::new(Some(held(dir.path(), &oid)));
        let asked = AtomicU32::new(0);
        let is_abandoned = || {
            if asked.fetch_add(1, Ordering::Relaxed) == 3 {
                lock(&held).take();
            }
            false
        };
        let shared = put.commit(&state, &is_abandoned).unwrap();
        assert_eq!((shared.oid, lock(&held).is_none()), (oid.to_string(), true));
    }

    /// The lock of `oid`, held.
    fn held(dir: &Path, oid: &Oid) -> File {
        let fan_out = dir.join("store/objects").join(&oid.hex()[..2]);
        std::fs::create_dir_all(&fan_out).unwrap();
        let file = lock_file::open(&fan_out.join("lock")).unwrap();
        file.lock().unwrap();
        file
    }

    /// D2, D13: where the record of a put cannot be written for a held lock, and its client goes, the bytes that were taken in are not forgotten:
    /// they go as soon as the lock is free.
    #[test]
    fn what_fails_at_its_record_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let put = PutTransaction::new(&state, NewPut::default(), None).unwrap();
        put.write(&state, None, b"bytes of a client that goes").unwrap();
        let oid = Oid::of(b"bytes of a client that goes");
        let taken = Mutex::new(None);
        // Somebody takes the lock when the bytes are in their place.
        let is_abandoned = || {
            let mut taken = lock(&taken);
            if taken.is_none() && has(&state, &oid) {
                *taken = Some(held(dir.path(), &oid));
            }
            taken.is_some()
        };
        put.commit(&state, &is_abandoned).unwrap_err();
        let taken = lock(&taken).take();
        assert!(taken.is_some(), "the lock was taken in the middle");
        drop((taken, put));
        assert!(has(&state, &oid));
        state.shelf.tick(u64::MAX);
        assert!(!has(&state, &oid));
    }

    /// D7, D8: bytes that came over the API are not lost where the last step of their commit fails, be it that the client went in the
    /// middle or that the data directory takes no more: asked again it succeeds; the housekeeping leaves them alone until then, and takes them
    /// when the transaction is over.
    #[test]
    fn a_commit_that_failed_at_its_record_can_be_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let temporary = dir.path().join("store/tmp");
        let away = dir.path().join("away");
        for (round, is_disk) in [(1, false), (2, true), (3, false)] {
            let wish = NewPut { pin: true, ..NewPut::default() };
            let put = PutTransaction::new(&state, wish, None).unwrap();
            let bytes = [round; 5000];
            put.write(&state, None, &bytes).unwrap();
            let oid = Oid::of(&bytes);
            // Looked at between the steps of the commit: then its bytes are in their place.
            let is_abandoned = || {
                let is_there = has(&state, &oid);
                if is_there && is_disk && temporary.is_dir() {
                    std::fs::rename(&temporary, &away).unwrap();
                    // A link to itself where a directory is expected: no error that the user could have asked for.
                    std::os::unix::fs::symlink(&temporary, &temporary).unwrap();
                }
                is_there && !is_disk
            };
            let error = put.commit(&state, &is_abandoned).unwrap_err();
            let kind = if is_disk { ErrorKind::Internal } else { ErrorKind::Interrupted };
            assert_eq!(error.kind(), kind, "{error}");
            if is_disk {
                std::fs::remove_file(&temporary).unwrap();
                std::fs::rename(&away, &temporary).unwrap();
            }
            state.shelf.tick(u64::MAX);
            assert!(has(&state, &oid), "round {round}");
            if round < 3 {
                assert_eq!(put.commit(&state, &|| false).unwrap().oid, oid.to_string());
                drop(put);
                state.shelf.tick(u64::MAX);
                assert!(has(&state, &oid));
            } else {
                drop(put);
                state.shelf.tick(u64::MAX);
                assert!(!has(&state, &oid));
            }
        }
    }

    /// Design 9: who waits for a lock says so, and an end of the same object is in force at once and answered in time.
    #[test]
    fn a_put_that_waits_says_so_and_holds_up_no_end() {
        let dir = tempfile::tempdir().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = told.clone();
        let state = state_heard_by(dir.path(), Arc::new(move |event| lock(&hears).push(event)));
        let bytes = b"hours of bytes";
        let oid = Oid::of(bytes);
        let put = || {
            let put = PutTransaction::new(&state, NewPut { pin: true, ..NewPut::default() }, None).unwrap();
            put.write(&state, None, bytes).unwrap();
            put
        };
        put().commit(&state, &|| false).unwrap();
        let (second, is_over) = (put(), Stop::new());
        let lock_file = held(dir.path(), &oid);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| second.commit(&state, &|| is_over.is_set()));
            while !lock(&told).iter().any(|event| matches!(event, Event::Warning(_))) {
                std::thread::yield_now();
            }
            let error = state.shelf.done(&oid, &|| false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("not shared any more"), "{error}");
            is_over.set();
            waiting.join().unwrap().unwrap_err();
        });
        drop(lock_file);
        let warnings = lock(&told).iter().filter(|event| matches!(event, Event::Warning(_))).count();
        assert_eq!(warnings, 1, "told once");
        state.shelf.tick(u64::MAX);
        assert!(state.node().store().unwrap().share(&oid).unwrap().is_none(), "the end is written down");
    }

    /// D2: a put in one request belongs to its session as any other does: with that it ends, though its connection is there.
    #[test]
    fn a_put_at_once_ends_with_its_session() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let (sender, _events) = dray_api::events();
        state.hub.join("session-1".into(), sender).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 300_000]).unwrap();
        let wish = NewPut { session: "session-1".into(), pin: true, ..NewPut::default() };
        // Asked while it works: then the session ends.
        let is_abandoned = || {
            state.hub.leave("session-1");
            state.desk.end_session(&state.shelf, "session-1");
            false
        };
        let put = PutTransaction::at_once(&state, wish, File::open(&path).unwrap(), &is_abandoned);
        assert_eq!(put.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!((state.desk.count(), state.shelf.counts().0), (0, 0));
    }

    /// D13: only bytes that will be cache make the rest of it make way.
    #[test]
    fn pinned_bytes_on_their_way_in_cost_no_cache() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(dir.path());
        let (sender, _events) = dray_api::events();
        state.hub.join("session-1".into(), sender).unwrap();
        for pin in [true, false] {
            let wish = NewPut { session: "session-1".into(), pin, ..NewPut::default() };
            let put = PutTransaction::begin(&state, wish, None).unwrap();
            state.desk.put(&put).unwrap().write(&state, None, &[1; 1000]).unwrap();
        }
        assert_eq!((state.desk.incoming_bytes(), state.desk.caching_bytes()), (2000, 1000));
    }

    /// D9: a file is suggested under its own name, and one without a name under none.
    #[test]
    fn no_name_is_made_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        let file = File::create(&path).unwrap();
        let name = |file: &File| file_name(&NewPut::default(), Some(file)).unwrap();
        assert_eq!(name(&file).as_deref(), Some(&b"name"[..]));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(name(&file), None);
        let memory = File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(name(&memory), None);
    }
}
