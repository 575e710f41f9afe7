//! An object on its way in: bytes piece by piece, or a file that was handed over; then the record of who may have it.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use dray_client::types::{NewPut, Shared};
use dray_core::limits::NAME_BYTES_MAX;
use dray_core::store::{Share, Store, StoredObject};
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::LocalWriter;
use serde_json::json;

use super::State;
use super::desk::{Transaction, given_name, name};
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
        let input = std::mem::replace(&mut *transaction.input()?, Input::Spent);
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

    /// Its session has ended, or it is not wanted any more.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    /// Appends `bytes` at `offset`, which is where the last ones ended, or where they began if these are they, sent
    /// again (D7). All of them or none.
    pub(super) fn write(&self, state: &State, offset: Option<u64>, bytes: &[u8]) -> Result<u64> {
        let mut input = self.input()?;
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
        Ok(*size_bytes)
    }

    /// Ends the object, records who may have it, and shares it (D8, D9); asked again, tells the same. Stops early if nobody
    /// waits for it.
    pub(super) fn commit(&self, state: &State, is_abandoned: &(dyn Fn() -> bool + Sync)) -> Result<Shared> {
        // Held to the end: a second commit beside this one is refused, and disturbs nothing.
        let mut input = self.input()?;
        let again = match &*input {
            Input::Over(shared) => return repeated(shared),
            Input::File(file) => file.try_clone().ok().map(Input::File),
            _ => None,
        };
        let shared = self.share(state, std::mem::replace(&mut *input, Input::Spent), is_abandoned);
        log_outcome(&self.name, shared.as_ref().map(drop));
        let is_lost = shared.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        if let Some(again) = again.filter(|_| is_lost && !self.stop.is_set()) {
            // Only the connection has gone, and the session may ask over another one.
            *input = again;
            return shared;
        }
        log_outcome(&self.name, shared.as_ref().map(drop));
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
                    return Err(interrupted());
                }
                let mut incoming = writer.finish()?;
                let changing = state.shelf.change(&incoming.oid(), &is_stopped)?;
                let keep = || state.shelf.with_room(|| incoming.keep());
                let object = state.hub.metrics.timed("store", keep)?;
                (changing, object)
            }
        };
        let keep = || self.keep(state, &changing, &*object, &is_stopped);
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
            return Err(interrupted());
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

    fn input(&self) -> Result<std::sync::MutexGuard<'_, Input>> {
        match self.input.try_lock() {
            Ok(input) => Ok(input),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Error::new(ErrorKind::Refused, "another request for this transaction is being answered")
                    .with_retryable(true)
                    .advise("one request of a transaction at a time"))
            }
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the session of this put has ended")
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
