//! Requests that need no session.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Oid, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::{Connection, Reply};
use crate::types::{
    IndexAnswer, IndexQuestion, IndexState, Info, Problem, ShareLine, Shared, Shares, TransactionLine,
    Transactions,
};
use crate::{PutOptions, descriptor, dial, place};

/// For an answer that takes no work.
const PATIENCE: Duration = Duration::from_secs(30);

/// For the daemon to take a descriptor.
const HANDING_PATIENCE: Duration = Duration::from_secs(10);
/// The same where it can be done without: it takes one at once, whatever else it does.
const SHORT_HANDING_PATIENCE: Duration = Duration::from_millis(500);
/// For a daemon that says that it starts, ends or is busy, and how often it is asked again meanwhile.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// A connection is used again only if it was used just now: the daemon closes those that are idle.
const FRESH: Duration = Duration::from_secs(1);

/// The user's daemon. Requests that are under way at once have connections of their own, so any number of threads may use one
/// client.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// The connection of the last request.
    kept: Arc<Mutex<Option<(Connection, Instant)>>>,
}

impl Client {
    /// The daemon at [`place::socket_path`]; `None` if none runs there, or if there is no place for it.
    pub fn connect() -> Result<Option<Client>> {
        match place::socket_path() {
            Ok(socket) => Client::connect_to(&socket),
            Err(_) => Ok(None),
        }
    }

    /// The same for what can be done without: `TimedOut` if it has not taken the connection after `patience`.
    pub fn connect_within(patience: Duration) -> Result<Option<Client>> {
        match place::socket_path() {
            Ok(socket) => Client::connect_to_within(&socket, patience),
            Err(_) => Ok(None),
        }
    }

    /// The daemon at `socket`; `None` if none runs there. `Refused` if it is another user's.
    pub fn connect_to(socket: &Path) -> Result<Option<Client>> {
        Client::connect_to_within(socket, dial::PATIENCE)
    }

    fn connect_to_within(socket: &Path, patience: Duration) -> Result<Option<Client>> {
        let Some(connection) = Connection::open(socket, patience)? else { return Ok(None) };
        let client = Client { socket: socket.to_owned(), kept: Arc::default() };
        client.keep(connection);
        Ok(Some(client))
    }

    /// Who it is and what it can do.
    pub fn info(&self) -> Result<Info> {
        self.info_within(PATIENCE, &|| false)
    }

    /// The same of a daemon that may be stopped or stuck: `TimedOut` if it is silent for `patience`. One that says that it starts,
    /// ends or is busy is asked again, for half a minute. `Interrupted` soon after `is_stopped` says so.
    pub fn info_within(&self, patience: Duration, is_stopped: &dyn Fn() -> bool) -> Result<Info> {
        while_busy(is_stopped, || self.info_once(patience, is_stopped))
    }

    fn info_once(&self, patience: Duration, is_stopped: &dyn Fn() -> bool) -> Result<Info> {
        let mut connection = self.connection()?;
        let deadline = Instant::now() + patience;
        connection.send("GET", "/v1", &[], "", &[])?;
        self.await_answer(&mut connection, deadline, patience, is_stopped)?;
        connection.set_patience(Some(patience))?;
        let reply = connection.read_reply()?;
        if !reply.closes {
            self.keep(connection);
        }
        parse(checked(reply)?)
    }

    /// What it shares.
    pub fn shares(&self) -> Result<Vec<ShareLine>> {
        paged(|after| {
            let page: Shares = self.read("GET", &format!("/v1/shares{after}"), &["shares"])?;
            Ok((page.shares, page.next))
        })
    }

    /// What is going on.
    pub fn transactions(&self) -> Result<Vec<TransactionLine>> {
        Ok(self.read::<Transactions>("GET", "/v1/transactions", &[])?.transactions)
    }

    /// Stops sharing an object (D10). `NotFound` if it was not shared.
    pub fn done(&self, oid: &Oid) -> Result<()> {
        self.delete(&format!("/v1/shares/{oid}"), "shares")
    }

    /// Shares a file without a session, in one request: its descriptor goes to the daemon, which pins it, so `options.pin` must be
    /// set. Nobody hears how far hashing is. `Interrupted` soon after `is_stopped` says so: then nothing is shared. `Unsupported`
    /// if the daemon cannot do that (D37).
    pub fn put_file(
        &self,
        file: &File,
        options: &PutOptions,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Shared> {
        let wish = options.new_put("", Some(self.hand_over(file)?));
        self.post_required("/v1/shares", &["put", "put-descriptor", "put-at-once"], &wish, is_stopped)
    }

    /// What the chunk index has.
    pub fn index(&self) -> Result<IndexState> {
        self.read("GET", "/v1/index", &["index"])
    }

    /// Asks the chunk index about what is below the open `directory`, whose name in `question` is set here. `TimedOut` or
    /// `Unreachable` if there is no answer within about `patience`, connecting and all: what is asked for here saves work and can be done
    /// without. `Interrupted` soon after `is_stopped` says so.
    pub fn ask_index(
        &self,
        directory: impl AsFd,
        mut question: IndexQuestion,
        patience: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<IndexAnswer> {
        let deadline = Instant::now() + patience;
        let left = || deadline.saturating_duration_since(Instant::now()).max(descriptor::MOMENT);
        let socket = place::descriptor_socket(&self.socket);
        question.descriptor = descriptor::hand_over(&socket, directory, left().min(SHORT_HANDING_PATIENCE))?;
        let mut connection = self.connection_within(left())?;
        connection.send("POST", "/v1/index", &["index"], "application/json", &json(&question)?)?;
        self.await_answer(&mut connection, deadline, patience, is_stopped)?;
        connection.set_patience(Some(left()))?;
        let reply = connection.read_reply()?;
        if !reply.closes {
            self.keep(connection);
        }
        parse(checked(reply)?)
    }

    /// Waits for an answer to begin.
    fn await_answer(
        &self,
        connection: &mut Connection,
        deadline: Instant,
        patience: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<()> {
        let is_over = || is_stopped() || Instant::now() >= deadline;
        connection.await_answer(&is_over).map_err(|error| match error.kind() {
            ErrorKind::Interrupted if is_stopped() => stopped(),
            ErrorKind::Interrupted => {
                let what = format!("the daemon at {:?} has not answered for {patience:?}", self.socket);
                Error::new(ErrorKind::TimedOut, what)
                    .advise("it is stopped or stuck: let it go on, or end it and start it again")
            }
            _ => error,
        })
    }

    /// Hands something open over; the name it has in a request.
    pub(crate) fn hand_over(&self, file: impl AsFd) -> Result<String> {
        descriptor::hand_over(&place::descriptor_socket(&self.socket), file, HANDING_PATIENCE)
    }

    /// A connection that nobody uses.
    pub(crate) fn connection(&self) -> Result<Connection> {
        self.connection_within(dial::PATIENCE)
    }

    fn connection_within(&self, patience: Duration) -> Result<Connection> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((connection, _)) = kept.filter(|(_, since)| since.elapsed() < FRESH) {
            return Ok(connection);
        }
        Connection::open(&self.socket, patience)?.ok_or_else(|| {
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
        parse(checked(self.ask("POST", target, required, "application/json", &json(document)?, patience)?)?)
    }

    /// The same for an answer that may take as long as it likes, until `is_stopped`.
    pub(crate) fn post_until<A: DeserializeOwned>(
        &self,
        target: &str,
        document: &impl Serialize,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<A> {
        self.post_required(target, &[], document, is_stopped)
    }

    /// The same of a daemon that has all that is `required`.
    pub(crate) fn post_required<A: DeserializeOwned>(
        &self,
        target: &str,
        required: &[&str],
        document: &impl Serialize,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<A> {
        let body = json(document)?;
        let mut connection = self.connection()?;
        connection.send("POST", target, required, "application/json", &body)?;
        connection.await_answer(is_stopped)?;
        connection.set_patience(Some(PATIENCE))?;
        let reply = connection.read_reply()?;
        if !reply.closes {
            self.keep(connection);
        }
        parse(checked(reply)?)
    }

    /// Ends what `target` names.
    pub(crate) fn delete(&self, target: &str, required: &str) -> Result<()> {
        checked(self.ask("DELETE", target, &[required], "", &[], Some(PATIENCE))?).map(|_| ())
    }

    pub(crate) fn read<A: DeserializeOwned>(
        &self,
        method: &str,
        target: &str,
        required: &[&str],
    ) -> Result<A> {
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
        let reply = connection.ask(method, target, required, content_type, body)?;
        if !reply.closes {
            self.keep(connection);
        }
        Ok(reply)
    }

    fn keep(&self, connection: Connection) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection, Instant::now()));
    }
}

/// Asks a daemon that says that it starts, ends or is busy (or has too many sessions) again, for half a minute. `Interrupted` soon
/// after `is_stopped` says so.
pub fn while_busy<T>(is_stopped: &dyn Fn() -> bool, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(error) if is_passing(&error) && begun.elapsed() < BUSY_PATIENCE => {
                if is_stopped() {
                    return Err(stopped());
                }
                std::thread::sleep(BUSY_INTERVAL);
            }
            result => return result,
        }
    }
}

/// Whether the daemon refused only for now. One that ended before it answered may be followed by another one.
fn is_passing(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused && error.is_retryable()
}

/// A list that comes in pages: `page` is asked with the end of its target, and tells what is on it and the name after which the next begins.
pub(crate) fn paged<A>(mut page: impl FnMut(&str) -> Result<(Vec<A>, Option<String>)>) -> Result<Vec<A>> {
    let (mut all, mut next) = page("")?;
    while let Some(last) = next {
        let (mut more, after) = page(&format!("?after={last}"))?;
        if more.is_empty() {
            break;
        }
        all.append(&mut more);
        next = after;
    }
    Ok(all)
}

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted before the daemon answered")
}

fn json(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(document)
        .map_err(|error| Error::new(ErrorKind::Internal, "a request is no JSON").caused_by(error))
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Decision 18: a daemon that takes connections and answers nothing costs what is said, and not half a minute.
    #[test]
    fn a_stuck_daemon_is_an_error_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        let _silent = UnixListener::bind(&path).unwrap();
        let client = Client::connect_to(&path).unwrap().unwrap();
        let error = client.info_within(Duration::from_millis(20), &|| false).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.advice().is_some(), "{error}");
        let error = client.info_within(Duration::from_secs(600), &|| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "who waits may stop that");
    }

    /// Design 9: what can be done without is given up in time, whether the daemon takes no more connections or answers none, however many of
    /// those who gave up still stand in its queue.
    #[test]
    fn what_can_be_done_without_is_not_waited_for() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        let silent = |path: &Path, kind| {
            let listener =
                rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
            rustix::net::listen(&listener, 3).unwrap();
            listener
        };
        let _api = silent(&path, SocketType::STREAM);
        let _descriptors = silent(&place::descriptor_socket(&path), SocketType::SEQPACKET);
        let patience = Duration::from_millis(10);
        for attempt in 0..10 {
            let asked = Client::connect_to_within(&path, patience).and_then(|client| {
                let directory = File::open(dir.path()).unwrap();
                client.unwrap().ask_index(directory, IndexQuestion::default(), patience, &|| false)
            });
            let kind = asked.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::Unreachable), "{attempt}: {kind:?}");
        }
    }

    /// Decision 18: who says that it is starting or busy is not stuck, and is asked until it answers.
    #[test]
    fn a_busy_daemon_is_asked_again() {
        const BUSY: &str = r#"{"kind":"refused","what":"starting","advice":null,"retryable":true}"#;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let info = serde_json::to_string(&Info { port: 7, ..Info::default() }).unwrap();
            for (status, body) in [("503 Busy", BUSY), ("503 Busy", BUSY), ("200 OK", &info)] {
                // One that was opened long ago is not used any more.
                let mut stream = loop {
                    let mut stream = listener.accept().unwrap().0;
                    if stream.read(&mut [0; 1024]).is_ok_and(|length| length > 0) {
                        break stream;
                    }
                };
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                stream.write_all((head + body).as_bytes()).unwrap();
            }
        });
        let client = Client::connect_to(&path).unwrap().unwrap();
        assert_eq!(client.info_within(Duration::from_secs(60), &|| false).unwrap().port, 7);
        server.join().unwrap();
    }
}
