//! An object on its way in: bytes piece by piece, or a file that was handed over; then the record of who may have it.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dray_client::types::{NewPut, Shared};
use dray_core::limits::NAME_BYTES_MAX;
use dray_core::store::{Share, Store, StoredObject};
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::{LONG_BYTES, LocalWriter, until_unlocked};
use serde_json::json;

use super::State;
use super::desk::{Transaction, alone, given_name, interrupted, name};
use super::hub::Hub;
use super::shelf::Changing;
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
    },
    File(File),
    /// It was committed, or that failed. The client may ask again, because the answer was lost.
    Over(Result<Shared>),
    Spent,
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
        let transaction = PutTransaction::new(state, wish, Some(file))?;
        let input = std::mem::replace(&mut *alone(&transaction.input)?, Input::Spent);
        let shared = transaction.share(state, input, is_abandoned);
        log_outcome(&transaction.name, shared.as_ref().map(drop));
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
            None => Input::Bytes { writer: Box::new(state.node().store()?.take_in()?), size_bytes: 0 },
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

    /// Its session has ended, or it is not wanted any more.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    /// Appends `bytes` at `offset`, which is where the last ones ended, or where they began if these are they, sent
    /// again (D7). All of them or none.
    pub(super) fn write(&self, state: &State, offset: Option<u64>, bytes: &[u8]) -> Result<u64> {
        let mut input = alone(&self.input)?;
        let Input::Bytes { writer, size_bytes } = &mut *input else {
            let is_file = matches!(*input, Input::File(_));
            let why = if is_file { "has its bytes from a descriptor" } else { "is over" };
            return Err(Error::new(ErrorKind::Usage, format!("this transaction {why}")));
        };
        let offset = offset.unwrap_or(*size_bytes);
        if offset.checked_add(bytes.len() as u64) == Some(*size_bytes) && !bytes.is_empty() {
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
        let again = match &*input {
            Input::Over(shared) => return repeated(shared),
            Input::File(file) => file.try_clone().ok().map(Input::File),
            _ => None,
        };
        let shared = self.share(state, std::mem::replace(&mut *input, Input::Spent), is_abandoned);
        log_outcome(&self.name, shared.as_ref().map(drop));
        let is_passing = shared
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Interrupted || error.is_retryable());
        if let Some(again) = again.filter(|_| is_passing && !self.stop.is_set()) {
            // Only the connection has gone, or somebody holds a lock: the session may ask once more.
            *input = again;
            return shared;
        }
        *input = Input::Over(repeated(&shared));
        state.desk.settle(&self.name);
        shared
    }

    fn share(&self, state: &State, input: Input, is_abandoned: &(dyn Fn() -> bool + Sync)) -> Result<Shared> {
        let is_stopped = || self.stop.is_set() || is_abandoned();
        // Until it is shared nobody else ends or drops the object: what is found to be here already is not gone a moment later.
        let (changing, object) = match input {
            Input::Spent | Input::Over(_) => {
                return Err(Error::new(ErrorKind::Usage, "this transaction is committed, or failed before"));
            }
            Input::File(file) => {
                state.hub.metrics.timed("hash", || self.take_file(state, &file, &is_stopped))?
            }
            Input::Bytes { writer, .. } => {
                if is_stopped() {
                    return Err(interrupted("put"));
                }
                let mut incoming = writer.finish()?;
                let changing = state.shelf.change(&incoming.oid(), &is_stopped)?;
                let mut keep = || state.shelf.with_room(|| incoming.keep());
                let keep = || until_unlocked(&is_stopped, &mut keep);
                let object = state.hub.metrics.timed("store", keep)?;
                (changing, object)
            }
        };
        // What can be had again at once is not waited for.
        let is_over = || (!self.is_taken_in && object.size_bytes() < LONG_BYTES) || is_stopped();
        let keep = || until_unlocked(&is_over, || self.keep(state, &changing, &*object, &is_stopped));
        let shared = state.hub.metrics.timed("record", keep);
        if shared.is_err() {
            state.shelf.discard(&changing);
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
            let ticket = node.ticket(object, &share, state.port, terms.ticket, &observer)?;
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

    /// Puts `file` into the store, and takes its turn.
    fn take_file<'a>(
        &self,
        state: &'a State,
        file: &File,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<(Changing<'a>, Arc<dyn StoredObject>)> {
        let total_bytes = file.metadata().map(|metadata| metadata.len()).ok();
        let told = AtomicU64::new(0);
        let progress = |done_bytes| self.progress(&state.hub, &told, done_bytes, total_bytes);
        let store = state.node().store()?.clone();
        let put = || {
            let file = file.try_clone().map_err(|error| Error::file("use a descriptor", error))?;
            store.put_descriptor(file, &progress, is_stopped)
        };
        let object = state.shelf.with_room(put)?;
        let changing = state.shelf.change(&object.oid(), is_stopped).inspect_err(|_| {
            // What was copied in is known to nobody yet, and whoever has the turn may leave it so.
            state.shelf.look_after(object.oid());
        })?;
        if !matches!(store.share(&object.oid()), Err(error) if error.kind() == ErrorKind::NotFound) {
            return Ok((changing, object));
        }
        // Hashing takes too long to hold everybody else up for it, so it was dropped before its turn came.
        let again = put()?;
        if again.oid() == object.oid() {
            return Ok((changing, again));
        }
        state.shelf.look_after(again.oid());
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
    let link = file.map(|file| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)));
    let path = link.and_then(|link| std::fs::read_link(link).ok());
    let name = path.and_then(|path| Some(path.file_name()?.as_bytes().to_vec()));
    Ok(name.filter(|name| name.len() <= NAME_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::sync::RwLock;
    use std::sync::atomic::AtomicU32;

    use dray_core::Oid;
    use dray_core::permit::Budget;
    use dray_store::local::LocalStore;
    use dray_store::lock_file;

    use super::*;
    use crate::config::{Config, ConfigFile, Paths};
    use crate::daemon::desk;
    use crate::daemon::shelf::Shelf;
    use crate::{Node, Observer};

    /// A daemon without sockets, which waits for no lock.
    fn state(dir: &Path) -> State {
        let mut node = Node::open(Config::new(Paths::below(dir), &ConfigFile::default()).unwrap()).unwrap();
        let store = LocalStore::clone(node.store().unwrap()).with_patience(Duration::ZERO);
        let store = Arc::new(store);
        node.store = Some(store.clone());
        let observer: Arc<dyn Observer> = Arc::new(|_: Event| {});
        let hub = Arc::new(Hub::new(observer));
        let shelf = Arc::new(Shelf::load(store, node.id(), hub.clone(), Arc::default()).unwrap());
        State {
            node: RwLock::new(Arc::new(node)),
            shelf,
            desk: desk::Desk::default(),
            hub,
            memory: Budget::new(1 << 20),
            indexing: Arc::default(),
            serving: Default::default(),
            moved: Default::default(),
            port: 1,
            port_warning: None,
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
        let fan_out = dir.path().join("store/objects").join(&oid.hex()[..2]);
        std::fs::create_dir(&fan_out).unwrap();
        let held = Mutex::new(Some(lock_file::open(&fan_out.join("lock")).unwrap()));
        lock(&held).as_ref().unwrap().lock().unwrap();
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
}
