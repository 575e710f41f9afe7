//! Transactions: what a session has begun and not finished. They end with their session (D2).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use dray_client::types::TransactionLine;
use dray_core::limits::{API_GETS_MAX, API_OUTCOMES_MAX, API_TRANSACTIONS_MAX, NAME_BYTES_MAX};
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};

use super::State;
use super::getting::GetTransaction;
use super::putting::PutTransaction;
use super::shelf::Shelf;
use crate::{from_hex, lock};

/// The transactions.
#[derive(Default)]
pub(super) struct Desk(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Those under way, by name.
    open: HashMap<String, Transaction>,
    /// Those whose outcome was told, the oldest first: the answer may have been lost.
    settled: VecDeque<(String, Transaction)>,
}

impl Table {
    fn find(&self, name: &str) -> Option<&Transaction> {
        let settled = || self.settled.iter().find(|(known, _)| known == name).map(|(_, found)| found);
        self.open.get(name).or_else(settled)
    }
}

/// One of them.
#[derive(Clone)]
pub(super) enum Transaction {
    /// An object on its way in.
    Put(Arc<PutTransaction>),
    /// An object that is fetched.
    Get(Arc<GetTransaction>),
}

impl Transaction {
    fn session(&self) -> &str {
        match self {
            Transaction::Put(put) => put.session(),
            Transaction::Get(get) => get.session(),
        }
    }

    fn stop(&self) {
        match self {
            Transaction::Put(put) => put.stop(),
            Transaction::Get(get) => get.stop(),
        }
    }

    fn line(&self, name: &str) -> TransactionLine {
        let (kind, done_bytes) = match self {
            Transaction::Put(put) => ("put", put.done_bytes()),
            Transaction::Get(get) => ("get", get.done_bytes()),
        };
        TransactionLine {
            transaction: name.to_owned(),
            session: self.session().to_owned(),
            kind: kind.into(),
            done_bytes,
        }
    }
}

impl Desk {
    /// Takes a transaction in. `Refused` if there are too many, `NotFound` if its session is not open.
    pub(super) fn open(&self, state: &State, name: &str, transaction: Transaction) -> Result<()> {
        let open = &mut lock(&self.0).open;
        if open.len() >= API_TRANSACTIONS_MAX {
            return Err(Error::new(ErrorKind::Refused, "too many transactions are open")
                .with_retryable(true)
                .advise("commit or end some, or end their sessions"));
        }
        let is_get = |transaction: &Transaction| matches!(transaction, Transaction::Get(_));
        if is_get(&transaction) && open.values().filter(|other| is_get(other)).count() >= API_GETS_MAX {
            return Err(Error::new(ErrorKind::Refused, format!("{API_GETS_MAX} objects are being fetched"))
                .with_retryable(true)
                .advise("wait for one of them, or end it"));
        }
        // Looked at under the lock that the end of a session takes afterwards: no transaction is left behind.
        state.hub.check(transaction.session())?;
        open.insert(name.to_owned(), transaction);
        Ok(())
    }

    /// A session has ended: what it had begun is undone.
    pub(super) fn end_session(&self, shelf: &Shelf, session: &str) {
        // To undo one may take a while: it has files to unlink.
        let ended: Vec<_> = {
            let mut table = lock(&self.0);
            table.settled.retain(|(_, transaction)| transaction.session() != session);
            table.open.extract_if(|_, transaction| transaction.session() == session).collect()
        };
        ended.iter().for_each(|(_, transaction)| transaction.stop());
        drop(ended);
        shelf.leave(session);
    }

    /// Every transaction is undone.
    pub(super) fn end_all(&self) {
        let table = std::mem::take(&mut *lock(&self.0));
        for transaction in table.open.values() {
            transaction.stop();
        }
    }

    /// Undoes one. `NotFound` if there is none of that name.
    pub(super) fn end(&self, name: &str) -> Result<()> {
        let ended = {
            let mut table = lock(&self.0);
            let at = table.settled.iter().position(|(settled, _)| settled == name);
            let settled = at.and_then(|at| table.settled.remove(at)).map(|(_, transaction)| transaction);
            settled.or_else(|| table.open.remove(name))
        };
        ended.ok_or_else(|| unknown(name))?.stop();
        Ok(())
    }

    /// Its outcome is known: it counts no more, and tells that once more if it is asked.
    pub(super) fn settle(&self, name: &str) {
        let mut table = lock(&self.0);
        let Some(transaction) = table.open.remove(name) else { return };
        table.settled.push_back((name.to_owned(), transaction));
        let oldest = if table.settled.len() > API_OUTCOMES_MAX { table.settled.pop_front() } else { None };
        drop(table);
        drop(oldest);
    }

    /// The put of that name.
    pub(super) fn put(&self, name: &str) -> Result<Arc<PutTransaction>> {
        match lock(&self.0).find(name) {
            Some(Transaction::Put(put)) => Ok(put.clone()),
            _ => Err(unknown(name)),
        }
    }

    /// The get of that name.
    pub(super) fn get(&self, name: &str) -> Result<Arc<GetTransaction>> {
        match lock(&self.0).find(name) {
            Some(Transaction::Get(get)) => Ok(get.clone()),
            _ => Err(unknown(name)),
        }
    }

    /// Bytes that all of them have moved, and whether a get is under way.
    pub(super) fn moved(&self) -> (u64, bool) {
        let open = &lock(&self.0).open;
        let moved = open.values().map(|transaction| match transaction {
            Transaction::Put(put) => (put.done_bytes(), false),
            Transaction::Get(get) => (get.done_bytes(), get.is_under_way()),
        });
        moved.fold((0, false), |(sum, is_any), (bytes, is_one)| (sum.wrapping_add(bytes), is_any || is_one))
    }

    /// How many there are of each kind.
    pub(super) fn kinds(&self) -> [(&'static str, u64); 2] {
        let open = &lock(&self.0).open;
        let gets = open.values().filter(|open| matches!(open, Transaction::Get(_))).count() as u64;
        [("get", gets), ("put", open.len() as u64 - gets)]
    }

    /// Bytes on disk of puts that are not committed.
    pub(super) fn incoming_bytes(&self) -> u64 {
        self.sum(PutTransaction::incoming_bytes)
    }

    /// Those of them that will be cache.
    pub(super) fn caching_bytes(&self) -> u64 {
        self.sum(PutTransaction::caching_bytes)
    }

    fn sum(&self, bytes: impl Fn(&PutTransaction) -> u64) -> u64 {
        let open = lock(&self.0);
        let puts = open.open.values().filter_map(|open| match open {
            Transaction::Put(put) => Some(bytes(put)),
            Transaction::Get(_) => None,
        });
        puts.sum()
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.0).open.len()
    }

    pub(super) fn lines(&self) -> Vec<TransactionLine> {
        lock(&self.0).open.iter().map(|(name, transaction)| transaction.line(name)).collect()
    }
}

/// What only one request of a transaction at a time works with. `Refused` if another one does.
pub(super) fn alone<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::Refused, "another request for this transaction is being answered")
                .with_retryable(true)
                .advise("one request of a transaction at a time"))
        }
    }
}

/// What is told of a transaction whose session, or the connection of whoever waits for it, has ended.
pub(super) fn interrupted(kind: &str) -> Error {
    Error::new(ErrorKind::Interrupted, format!("the session of this {kind}, or the connection, has ended"))
}

/// A name that nobody guesses or gets by mistake.
pub(super) fn name(kind: &str) -> Result<String> {
    Ok(format!("{kind}-{}", hex(&crate::random::<16>()?)))
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no transaction {name:?}"))
        .advise("it was ended, or its session was, or it was over long ago: begin a new one")
}

/// A file name that a client gives, as text or in hex digits: one component of a path.
pub(crate) fn given_name(name: Option<&str>, name_hex: Option<&str>) -> Result<Option<Vec<u8>>> {
    let name = match (name, name_hex) {
        (Some(_), Some(_)) => {
            return Err(Error::new(ErrorKind::Usage, "name and name_hex say the same thing: send one"));
        }
        (Some(name), None) => name.as_bytes().to_vec(),
        (None, Some(hex)) => from_hex(hex)?,
        (None, None) => return Ok(None),
    };
    let is_name = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b"..";
    match is_name {
        true => Ok(Some(name)),
        false => Err(Error::new(ErrorKind::Usage, "the name is not one component of a path")),
    }
}
