//! Transactions: what a session has begun and not finished. They end with their session (D2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dray_client::types::TransactionLine;
use dray_core::limits::{API_GETS_MAX, API_TRANSACTIONS_MAX, NAME_BYTES_MAX};
use dray_core::{Error, ErrorKind, Result};

use super::State;
use super::getting::GetTransaction;
use super::putting::PutTransaction;
use super::shelf::Shelf;
use crate::lock;

/// The open transactions, by name.
#[derive(Default)]
pub(super) struct Desk(Mutex<HashMap<String, Transaction>>);

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
        let mut open = lock(&self.0);
        if open.len() >= API_TRANSACTIONS_MAX {
            return Err(Error::new(ErrorKind::Refused, "too many transactions are open")
                .advise("commit or end some, or end their sessions"));
        }
        let is_get = |transaction: &Transaction| matches!(transaction, Transaction::Get(_));
        if is_get(&transaction) && open.values().filter(|other| is_get(other)).count() >= API_GETS_MAX {
            return Err(Error::new(ErrorKind::Refused, format!("{API_GETS_MAX} objects are being fetched"))
                .with_retryable(true)
                .advise("wait for one of them, or end it"));
        }
        // Looked at under the lock that the end of a session takes afterwards: no transaction is left behind.
        if !state.hub.has(transaction.session()) {
            return Err(no_session(transaction.session()));
        }
        open.insert(name.to_owned(), transaction);
        Ok(())
    }

    /// A session has ended: what it had begun is undone.
    pub(super) fn end_session(&self, shelf: &Shelf, session: &str) {
        // To undo one may take a while: it has files to unlink.
        let ended: Vec<_> =
            lock(&self.0).extract_if(|_, transaction| transaction.session() == session).collect();
        ended.iter().for_each(|(_, transaction)| transaction.stop());
        drop(ended);
        shelf.leave(session);
    }

    /// Every transaction is undone.
    pub(super) fn end_all(&self) {
        let ended: Vec<_> = lock(&self.0).drain().collect();
        ended.iter().for_each(|(_, transaction)| transaction.stop());
    }

    /// Undoes one. `NotFound` if there is none of that name.
    pub(super) fn end(&self, name: &str) -> Result<()> {
        let transaction = lock(&self.0).remove(name).ok_or_else(|| unknown(name))?;
        transaction.stop();
        Ok(())
    }

    /// The put of that name.
    pub(super) fn put(&self, name: &str) -> Result<Arc<PutTransaction>> {
        match lock(&self.0).get(name) {
            Some(Transaction::Put(put)) => Ok(put.clone()),
            _ => Err(unknown(name)),
        }
    }

    /// The get of that name.
    pub(super) fn get(&self, name: &str) -> Result<Arc<GetTransaction>> {
        match lock(&self.0).get(name) {
            Some(Transaction::Get(get)) => Ok(get.clone()),
            _ => Err(unknown(name)),
        }
    }

    /// How many there are of each kind.
    pub(super) fn kinds(&self) -> [(&'static str, u64); 2] {
        let open = lock(&self.0);
        let gets = open.values().filter(|open| matches!(open, Transaction::Get(_))).count() as u64;
        [("get", gets), ("put", open.len() as u64 - gets)]
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.0).len()
    }

    pub(super) fn lines(&self) -> Vec<TransactionLine> {
        lock(&self.0).iter().map(|(name, transaction)| transaction.line(name)).collect()
    }
}

/// A name that nobody guesses or gets by mistake.
pub(super) fn name(kind: &str) -> Result<String> {
    let random = crate::random::<16>()?;
    Ok(format!("{kind}-{}", random.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no transaction {name:?}"))
        .advise("it may have been committed, or its session has ended: begin a new one")
}

fn no_session(session: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no session {session:?}"))
        .advise("open one with GET /v1/events and keep that connection: it names its session first")
}

/// A file name that a client gives, as text or in hex digits: one component of a path.
pub(super) fn given_name(name: Option<&str>, name_hex: Option<&str>) -> Result<Option<Vec<u8>>> {
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

/// Bytes as an even number of hex digits.
pub(super) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| Error::new(ErrorKind::Usage, "bytes are written as an even number of hex digits"))
}
