//! Requests that need no session.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_core::{Error, ErrorKind, Oid, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::{Connection, Reply};
use crate::types::{Info, Problem, ShareLine, Shares, TransactionLine, Transactions};
use crate::{descriptor, place};

/// For an answer that takes no work.
const PATIENCE: Duration = Duration::from_secs(30);

/// The user's daemon. Each request has a connection of its own, so any number of threads may use one client.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon at [`place::socket_path`]; `None` if none runs there, or if there is no place for it.
    pub fn connect() -> Result<Option<Client>> {
        match place::socket_path() {
            Ok(socket) => Client::connect_to(&socket),
            Err(_) => Ok(None),
        }
    }

    /// The daemon at `socket`; `None` if none runs there. `Refused` if it is another user's.
    pub fn connect_to(socket: &Path) -> Result<Option<Client>> {
        let found = Connection::open(socket)?;
        Ok(found.map(|_| Client { socket: socket.to_owned() }))
    }

    /// Who it is and what it can do.
    pub fn info(&self) -> Result<Info> {
        self.read("GET", "/v1", &[])
    }

    /// What it shares.
    pub fn shares(&self) -> Result<Vec<ShareLine>> {
        Ok(self.read::<Shares>("GET", "/v1/shares", &["shares"])?.shares)
    }

    /// What is going on.
    pub fn transactions(&self) -> Result<Vec<TransactionLine>> {
        Ok(self.read::<Transactions>("GET", "/v1/transactions", &[])?.transactions)
    }

    /// Stops sharing an object (D10). `NotFound` if it was not shared.
    pub fn done(&self, oid: &Oid) -> Result<()> {
        let reply = self.ask("DELETE", &format!("/v1/shares/{oid}"), &["shares"], "", &[], Some(PATIENCE))?;
        checked(reply).map(|_| ())
    }

    /// Hands something open over; the name it has in a request.
    pub(crate) fn hand_over(&self, file: impl AsFd) -> Result<String> {
        descriptor::hand_over(&place::descriptor_socket(&self.socket), file)
    }

    pub(crate) fn connection(&self) -> Result<Connection> {
        Connection::open(&self.socket)?.ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "the daemon has ended").advise("start it again: dray serve")
        })
    }

    /// One request with a document, for a document.
    pub(crate) fn post<A: DeserializeOwned>(
        &self,
        target: &str,
        required: &[&str],
        document: &impl Serialize,
        patience: Option<Duration>,
    ) -> Result<A> {
        let body = serde_json::to_vec(document)
            .map_err(|error| Error::new(ErrorKind::Internal, "a request is no JSON").caused_by(error))?;
        parse(checked(self.ask("POST", target, required, "application/json", &body, patience)?)?)
    }

    fn read<A: DeserializeOwned>(&self, method: &str, target: &str, required: &[&str]) -> Result<A> {
        parse(checked(self.ask(method, target, required, "", &[], Some(PATIENCE))?)?)
    }

    fn ask(
        &self,
        method: &str,
        target: &str,
        required: &[&str],
        content_type: &str,
        body: &[u8],
        patience: Option<Duration>,
    ) -> Result<Reply> {
        let mut connection = self.connection()?;
        connection.set_patience(patience)?;
        connection.ask(method, target, required, content_type, body)
    }
}

/// The reply, unless it is a refusal.
pub(crate) fn checked(reply: Reply) -> Result<Reply> {
    if reply.status < 400 {
        return Ok(reply);
    }
    match serde_json::from_slice::<Problem>(&reply.body) {
        Ok(problem) if !problem.what.is_empty() => Err(problem.into_error()),
        _ => {
            Err(Error::new(ErrorKind::Protocol, format!("the daemon answered with status {}", reply.status)))
        }
    }
}

/// Its document.
pub(crate) fn parse<A: DeserializeOwned>(reply: Reply) -> Result<A> {
    serde_json::from_slice(&reply.body).map_err(|error| {
        Error::new(ErrorKind::Protocol, "the daemon's answer is not the document it should be")
            .caused_by(error)
    })
}
