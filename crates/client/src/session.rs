//! A session: the event stream whose end frees what it began (D2, D13), and the puts made in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dray_core::limits::API_BODY_BYTES_MAX;
use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;

use crate::client::{checked, parse};
use crate::http::{Connection, Lines, Reply};
use crate::types::{Begun, Fetched, NewGet, NewPut, Nothing, SessionBegun, Shared, Written};
use crate::{Client, Get, GetOptions};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long the answer to a commit is waited for when its session has ended: the daemon says what became of it, unless it is stuck.
const FAREWELL: Duration = Duration::from_secs(2);

/// An event as the daemon told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its name; those of a later version may be unknown here.
    pub name: String,
    /// Its fields.
    pub data: serde_json::Value,
}

/// A session. Dropped, it ends: what was begun in it and not finished is undone, and what was put in it without a pin
/// stays as long as there is room.
#[derive(Debug)]
pub struct Session {
    client: Client,
    name: String,
    socket: UnixStream,
    reader: Option<JoinHandle<()>>,
    /// When it was ended here.
    ended: OnceLock<Instant>,
}

impl Session {
    /// Opens a session; `on_event` hears every event of the daemon, on a thread of its own.
    pub fn open(client: &Client, mut on_event: impl FnMut(Event) + Send + 'static) -> Result<Session> {
        let connection = client.connection()?;
        let socket = connection.handle()?;
        connection.set_patience(Some(PATIENCE))?;
        let mut lines = match connection.ask_lines("/v1/events")? {
            Ok(lines) => lines,
            Err(reply) => {
                checked(reply)?;
                return Err(Error::new(ErrorKind::Protocol, "the daemon sends no events"));
            }
        };
        let first = next_event(&mut lines)?.filter(|event| event.name == "session");
        let begun = first.and_then(|event| serde_json::from_value::<SessionBegun>(event.data).ok());
        let begun =
            begun.ok_or_else(|| Error::new(ErrorKind::Protocol, "the daemon's events name no session"))?;
        // The daemon is never silent for this long.
        socket.set_read_timeout(Some(2 * PATIENCE)).map_err(|error| Error::file("wait for events", error))?;
        let read = move || {
            while let Ok(Some(event)) = next_event(&mut lines) {
                on_event(event);
            }
        };
        let reader = thread::Builder::new().name("events".into()).spawn(read);
        let reader = reader.map_err(|error| Error::file("start a thread", error))?;
        Ok(Session {
            client: client.clone(),
            name: begun.session,
            socket,
            reader: Some(reader),
            ended: OnceLock::new(),
        })
    }

    /// Its name in requests.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends it, from any thread; what waits for an answer to a commit hears that it was interrupted.
    pub fn end(&self) {
        let _ = self.ended.set(Instant::now());
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Asks for what takes as long as it takes, until the session is ended here: a daemon that is stopped or stuck keeps nobody.
    fn finish<A: DeserializeOwned>(&self, target: &str) -> Result<A> {
        let is_over = || self.ended.get().is_some_and(|ended| ended.elapsed() >= FAREWELL);
        self.client.post_until(target, &Nothing {}, &is_over)
    }

    /// Begins to put bytes that are written piece by piece (D6).
    pub fn put(&self, options: &PutOptions) -> Result<Put<'_>> {
        let begun: Begun =
            self.client.post("/v1/puts", &["put"], &options.new_put(&self.name, None), Some(PATIENCE))?;
        Ok(Put { session: self, connection: None, transaction: begun.transaction, size_bytes: 0 })
    }

    /// Puts a file without reading it here: its descriptor goes to the daemon (D9). Takes as long as it takes to hash the file;
    /// events `hashing` say how far it is. To a daemon that takes no descriptors its bytes are sent, and the daemon
    /// keeps a copy (D37).
    pub fn put_file(&self, file: &File, options: &PutOptions) -> Result<Shared> {
        match self.put_descriptor(file, options) {
            Err(error) if error.kind() == ErrorKind::Unsupported => self.send_file(file, options, error),
            result => result,
        }
    }

    fn send_file(&self, file: &File, options: &PutOptions, missing: Error) -> Result<Shared> {
        let failed = |error: io::Error| Error::file("read the file to put", error);
        if !self.client.info()?.features.iter().any(|feature| feature == "put")
            || !file.metadata().map_err(failed)?.is_file()
        {
            return Err(missing);
        }
        let mut put = self.put(options)?;
        let (mut piece, mut offset) = (vec![0; API_BODY_BYTES_MAX], 0);
        loop {
            match file.read_at(&mut piece, offset).map_err(failed)? {
                0 => return put.commit(),
                length => {
                    put.write(&piece[..length])?;
                    offset += length as u64;
                }
            }
        }
    }

    fn put_descriptor(&self, file: &File, options: &PutOptions) -> Result<Shared> {
        let descriptor = self.client.hand_over(file)?;
        let new_put = options.new_put(&self.name, Some(descriptor));
        let begun: Begun =
            self.client.post("/v1/puts", &["put", "put-descriptor"], &new_put, Some(PATIENCE))?;
        self.finish(&format!("/v1/puts/{}/commit", begun.transaction))
    }

    /// Begins to fetch the object of a ticket, or a public one by its id (D11); its bytes come piece by piece.
    pub fn get(&self, wanted: &str, options: &GetOptions) -> Result<Get<'_>> {
        let begun = self.begin_get(wanted, options, NewGet::default())?;
        Ok(Get::new(self, begun.transaction))
    }

    /// Fetches to `out`, something open for writing, from where it stands: no byte passes this process. Returns when all are
    /// written.
    pub fn get_through(&self, wanted: &str, out: impl AsFd, options: &GetOptions) -> Result<Fetched> {
        let descriptor = Some(self.client.hand_over(out)?);
        self.finish_get(wanted, options, NewGet { descriptor, ..NewGet::default() })
    }

    /// Fetches into the file `name` in `directory`, which is replaced when all of it is proven; without a name, into one that the
    /// sender suggests, where nothing is replaced. What a killed get left there is used by the same one again.
    pub fn get_into(
        &self,
        wanted: &str,
        directory: impl AsFd,
        name: Option<&OsStr>,
        options: &GetOptions,
    ) -> Result<Fetched> {
        let descriptor = Some(self.client.hand_over(directory)?);
        let (name, name_hex) = named(name);
        self.finish_get(wanted, options, NewGet { descriptor, name, name_hex, ..NewGet::default() })
    }

    fn finish_get(&self, wanted: &str, options: &GetOptions, wish: NewGet) -> Result<Fetched> {
        let begun = self.begin_get(wanted, options, wish)?;
        self.finish(&format!("/v1/gets/{}/finish", begun.transaction))
    }

    fn begin_get(&self, wanted: &str, options: &GetOptions, wish: NewGet) -> Result<Begun> {
        let (ticket, oid) = match wanted.trim() {
            text if text.starts_with("dray:") => (Some(text.to_owned()), None),
            text => (None, Some(text.to_owned())),
        };
        let required: &[&str] = if wish.descriptor.is_some() { &["get", "get-descriptor"] } else { &["get"] };
        let wish = NewGet {
            session: self.name.clone(),
            ticket,
            oid,
            hints: options.hints.clone(),
            local: options.local,
            whole_file: options.whole_file,
            fsync: options.fsync,
            mode: options.mode,
            from: options.from,
            to: options.to,
            ..wish
        };
        self.client.post("/v1/gets", required, &wish, Some(PATIENCE))
    }

    /// A request that may be sent twice: over `connection` if that is still good, otherwise over a new one, which is kept
    /// there. The daemon closes one that was idle for long.
    pub(crate) fn ask(
        &self,
        connection: &mut Option<Connection>,
        method: &str,
        target: &str,
        body: &[u8],
        patience: Option<Duration>,
    ) -> Result<Reply> {
        let ask = |connection: &mut Connection| {
            connection.set_patience(patience)?;
            let content_type = if body.is_empty() { "" } else { "application/octet-stream" };
            connection.ask(method, target, &[], content_type, body)
        };
        let mut reply = None;
        if let Some(mut kept) = connection.take() {
            reply = ask(&mut kept).ok().map(|reply| (kept, reply));
        }
        let (kept, reply) = match reply {
            Some(done) => done,
            None => {
                let mut fresh = self.client.connection()?;
                let reply = ask(&mut fresh)?;
                (fresh, reply)
            }
        };
        if !reply.closes {
            *connection = Some(kept);
        }
        checked(reply)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
        if let Some(reader) = self.reader.take()
            && reader.thread().id() != thread::current().id()
        {
            let _ = reader.join();
        }
    }
}

/// How to share what is put.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PutOptions {
    /// File name to suggest to receivers: one component, any bytes.
    pub name: Option<std::ffi::OsString>,
    /// Without a secret.
    pub public: bool,
    /// How long the ticket is good for.
    pub expires_in: Option<Duration>,
    /// Until it is said otherwise ([`Client::done`]), instead of until the session ends.
    pub pin: bool,
    /// Somebody else's ticket for the same object, to share under.
    pub ticket: Option<String>,
}

impl PutOptions {
    pub(crate) fn new_put(&self, session: &str, descriptor: Option<String>) -> NewPut {
        let (name, name_hex) = named(self.name.as_deref());
        NewPut {
            session: session.to_owned(),
            name,
            name_hex,
            public: self.public,
            expires_s: self.expires_in.map(|time| time.as_secs().max(1)),
            pin: self.pin,
            ticket: self.ticket.clone(),
            descriptor,
        }
    }
}

/// A file name as text, or in hex digits if it is none.
fn named(name: Option<&OsStr>) -> (Option<String>, Option<String>) {
    match name.map(|name| name.to_str().ok_or(name)) {
        None => (None, None),
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(odd)) => (None, Some(hex(odd.as_bytes()))),
    }
}

/// Bytes on their way into an object. Dropped without commit, they are forgotten when the session ends.
#[derive(Debug)]
pub struct Put<'a> {
    session: &'a Session,
    connection: Option<Connection>,
    transaction: String,
    size_bytes: u64,
}

impl Put<'_> {
    /// Appends all of `bytes` (D7).
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(API_BODY_BYTES_MAX) {
            let target = format!("/v1/puts/{}/data?offset={}", self.transaction, self.size_bytes);
            // The offset makes it harmless to send a piece twice.
            let reply = self.session.ask(&mut self.connection, "POST", &target, piece, Some(PATIENCE))?;
            self.size_bytes = parse::<Written>(reply)?.size_bytes;
        }
        Ok(())
    }

    /// Ends the object and shares it (D8).
    pub fn commit(self) -> Result<Shared> {
        let target = format!("/v1/puts/{}/commit", self.transaction);
        self.session.finish(&target)
    }
}

impl io::Write for Put<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Put::write(self, bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Server-sent events: `event:` and `data:` lines, ended by an empty one; comments begin with a colon.
fn next_event(lines: &mut Lines) -> Result<Option<Event>> {
    let mut event = Event { name: String::new(), data: serde_json::Value::Null };
    while let Some(line) = lines.next()? {
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event.name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            event.data = serde_json::from_str(data).map_err(|error| {
                Error::new(ErrorKind::Protocol, "an event of the daemon is no JSON").caused_by(error)
            })?;
        } else if line.is_empty() && !event.name.is_empty() {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers requests of one connection, as a daemon that gets stuck when a put is committed.
    fn answer(mut socket: UnixStream) {
        let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = socket.read(&mut piece) {
            seen.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&seen).into_owned();
            let answer = if text.starts_with("GET /v1/events ") {
                let event = "event: session\ndata: {\"session\":\"s\"}\n\n";
                format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
                    event.len()
                )
            } else if text.starts_with("POST /v1/puts ") && text.ends_with('}') {
                let begun = "{\"transaction\":\"p\"}";
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{begun}", begun.len())
            } else {
                continue;
            };
            seen.clear();
            let _ = socket.write_all(answer.as_bytes());
        }
    }

    /// Issue, "130 interrupted": the end of a session ends what waits in it, also where the daemon is stopped or stuck and says nothing.
    #[test]
    fn the_end_of_a_session_waits_for_no_stuck_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for socket in listener.incoming() {
                thread::spawn(move || answer(socket.unwrap()));
            }
        });
        let client = Client::connect_to(&path).unwrap().unwrap();
        let session = Session::open(&client, drop).unwrap();
        let put = session.put(&PutOptions::default()).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| put.commit());
            session.end();
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
        });
    }
}
