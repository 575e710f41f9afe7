//! As much of HTTP/1.1 as the client of one known server needs: a request at a time, an answer with a length or in chunks.

use std::io::ErrorKind as Io;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dray_core::limits::{API_BODY_BYTES_MAX, API_DOCUMENT_BYTES_MAX, API_HEAD_BYTES_MAX, API_HEADERS_MAX};
use dray_core::{Error, ErrorKind, Result};
use rustix::net::SocketType;

use crate::dial::dial;

/// A body that is copied behind its head.
const SMALL_BYTES: usize = 4096;
/// How often who waits for an answer asks whether it still should.
const INTERVAL: Duration = Duration::from_millis(50);
/// One line of an event stream.
const LINE_BYTES_MAX: u64 = API_BODY_BYTES_MAX as u64;

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
}

/// An answer without its body.
struct Head {
    status: u16,
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    range: Option<(u64, u64)>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// The daemon takes no further request on this connection.
    pub(crate) closes: bool,
    /// Where a part of an object begins, and the size of the object.
    pub(crate) range: Option<(u64, u64)>,
}

fn lost(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::InvalidData => broken(&error.to_string()),
        _ => Error::new(ErrorKind::Unreachable, "the daemon does not answer any more")
            .caused_by(error)
            .advise("is it still running? `dray status` says"),
    }
}

fn broken(how: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("what answers at the daemon's socket is no dray daemon: {how}"))
}

impl Connection {
    /// `None` if nobody listens at `path`. `Refused` if another user does, `TimedOut` if nobody takes the connection within `patience`.
    pub(crate) fn open(path: &Path, patience: Duration) -> Result<Option<Connection>> {
        let Some(socket) = dial(path, SocketType::STREAM, patience)? else { return Ok(None) };
        Ok(Some(Connection { stream: BufReader::new(socket.into()) }))
    }

    /// Reads fail after this long without a byte; `None` waits for as long as it takes.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> Result<()> {
        self.stream.get_ref().set_read_timeout(patience).map_err(lost)
    }

    /// A second handle on the socket, to shut it down from elsewhere.
    pub(crate) fn handle(&self) -> Result<UnixStream> {
        self.stream.get_ref().try_clone().map_err(lost)
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        required: &[&str],
        content_type: &str,
        body: &[u8],
    ) -> Result<Reply> {
        self.send(method, target, required, content_type, body)?;
        self.read_reply()
    }

    /// Waits for an answer to begin, for as long as it takes. `Interrupted` soon after `is_stopped` says so.
    pub(crate) fn await_answer(&mut self, is_stopped: &dyn Fn() -> bool) -> Result<()> {
        self.set_patience(Some(INTERVAL))?;
        loop {
            match self.stream.fill_buf() {
                Err(error) if matches!(error.kind(), Io::WouldBlock | Io::TimedOut | Io::Interrupted) => {}
                // The end of the stream is what reading the answer finds, too.
                begun => return begun.map(|_| ()).map_err(lost),
            }
            if is_stopped() {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted before the daemon answered"));
            }
        }
    }

    /// Reads the whole answer.
    pub(crate) fn read_reply(&mut self) -> Result<Reply> {
        let head = self.read_head()?;
        self.read_rest(&head)
    }

    /// Sends a request whose answer is a stream of lines; `Err` holds what the daemon answered instead.
    pub(crate) fn ask_lines(mut self, target: &str) -> Result<Result<Lines, Reply>> {
        self.send("GET", target, &[], "", &[])?;
        let head = self.read_head()?;
        if head.status != 200 || !head.is_chunked {
            return self.read_rest(&head).map(Err);
        }
        Ok(Ok(Lines { stream: BufReader::new(Chunks { stream: self.stream, left: 0, is_first: true }) }))
    }

    /// Sends a request.
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        required: &[&str],
        content_type: &str,
        body: &[u8],
    ) -> Result<()> {
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nhost: dray\r\ncontent-length: {}\r\n", body.len());
        if !content_type.is_empty() {
            head.push_str(&format!("content-type: {content_type}\r\n"));
        }
        if !required.is_empty() {
            head.push_str(&format!("dray-require: {}\r\n", required.join(",")));
        }
        head.push_str("\r\n");
        let mut head = head.into_bytes();
        let stream = self.stream.get_mut();
        let sent = match body.len() {
            // In one piece: one wake-up of the daemon.
            0..=SMALL_BYTES => {
                head.extend_from_slice(body);
                stream.write_all(&head)
            }
            _ => stream.write_all(&head).and_then(|()| stream.write_all(body)),
        };
        match sent {
            // Who refuses a request need not read all of it: the answer may say why.
            Err(error) if matches!(error.kind(), Io::BrokenPipe | Io::ConnectionReset) => Ok(()),
            written => written.map_err(lost),
        }
    }

    fn read_head(&mut self) -> Result<Head> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let left = (API_HEAD_BYTES_MAX - bytes.len()) as u64;
            let read = (&mut self.stream).take(left).read_until(b'\n', &mut bytes).map_err(lost)?;
            if read == 0 {
                return Err(match bytes.len() {
                    API_HEAD_BYTES_MAX.. => broken("its answer has no end of headers"),
                    _ => lost(std::io::ErrorKind::UnexpectedEof.into()),
                });
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; API_HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            _ => return Err(broken("it does not speak HTTP")),
        }
        let find = |name: &str| {
            let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            header.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        Ok(Head {
            status: response.code.unwrap_or(0),
            length: find("content-length").and_then(|text| text.trim().parse().ok()),
            is_chunked: find("transfer-encoding")
                .is_some_and(|text| text.trim().eq_ignore_ascii_case("chunked")),
            range: find("content-range").and_then(part),
            closes: find("connection").is_some_and(|text| text.trim().eq_ignore_ascii_case("close")),
        })
    }

    /// What comes behind its head.
    fn read_rest(&mut self, head: &Head) -> Result<Reply> {
        let body = self.read_body(head)?;
        Ok(Reply { status: head.status, body, closes: head.closes, range: head.range })
    }

    fn read_body(&mut self, head: &Head) -> Result<Vec<u8>> {
        let length = match head {
            Head { status: 204 | 304, .. } => 0,
            Head { length: Some(length), .. } => *length,
            _ => return Err(broken("its answer has no length")),
        };
        if length > API_DOCUMENT_BYTES_MAX as u64 {
            return Err(broken("its answer is too long"));
        }
        let mut body = Vec::new();
        (&mut self.stream).take(length).read_to_end(&mut body).map_err(lost)?;
        match body.len() as u64 == length {
            true => Ok(body),
            false => Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// First byte and size of `bytes FIRST-LAST/SIZE` (RFC 9110 §14.4).
fn part(text: &str) -> Option<(u64, u64)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
}

/// Lines of an answer that comes bit by bit.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: BufReader<Chunks>,
}

impl Lines {
    /// The next line without its end; `None` at the end of the answer.
    pub(crate) fn next(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(lost)?;
        if read == 0 {
            return Ok(None);
        }
        if line.pop() != Some(b'\n') {
            return Err(broken("an event has no end"));
        }
        String::from_utf8(line).map(Some).map_err(|_| broken("an event is not UTF-8"))
    }
}

/// The content of a chunked body (RFC 9112 §7.1).
#[derive(Debug)]
struct Chunks {
    stream: BufReader<UnixStream>,
    left: u64,
    is_first: bool,
}

impl Read for Chunks {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            if !std::mem::replace(&mut self.is_first, false) {
                let mut end = [0; 2];
                self.stream.read_exact(&mut end)?;
            }
            let mut line = Vec::new();
            (&mut self.stream).take(64).read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.left = match httparse::parse_chunk_size(&line) {
                Ok(httparse::Status::Complete((_, size))) => size,
                _ => {
                    return Err(std::io::Error::new(
                        std::io::ErrorKind::InvalidData,
                        "a chunk has no length",
                    ));
                }
            };
            if self.left == 0 {
                // The last chunk; what comes after belongs to nobody.
                self.is_first = true;
                return Ok(0);
            }
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let read = self.stream.read(&mut out[..most])?;
        if read == 0 && most > 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::dial::PATIENCE;

    /// What a client makes of an answer: `respond` writes it, whatever was asked.
    fn with<T>(respond: impl FnOnce(UnixStream) + Send + 'static, ask: impl FnOnce(Connection) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || respond(listener.accept().unwrap().0));
        let result = ask(Connection::open(&path, PATIENCE).unwrap().unwrap());
        server.join().unwrap();
        result
    }

    fn asked(answer: &'static [u8]) -> Result<Reply> {
        let respond = move |mut stream: UnixStream| drop(stream.write_all(answer));
        with(respond, |mut connection| connection.ask("GET", "/v1", &[], "", &[]))
    }

    /// Nobody there is no error; a file that is no socket is one.
    #[test]
    fn nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api");
        assert!(Connection::open(&path, PATIENCE).unwrap().is_none());
        drop(UnixListener::bind(&path).unwrap());
        assert!(Connection::open(&path, PATIENCE).unwrap().is_none(), "a dead daemon's name");
    }

    /// D35, design 17: what is no daemon, or ends in the middle, is an error in time and memory.
    #[test]
    fn odd_answers_are_errors() {
        assert_eq!(asked(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap().body, b"{}");
        assert!(asked(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap().closes);
        for (answer, kind) in [
            (&b""[..], ErrorKind::Unreachable),
            (b"HTTP/1.1 200 OK\r\n", ErrorKind::Unreachable),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", ErrorKind::Unreachable),
            (b"SSH-2.0-OpenSSH\r\n\r\n", ErrorKind::Protocol),
            (b"HTTP/1.1 200 OK\r\n\r\n{}", ErrorKind::Protocol),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}", ErrorKind::Protocol),
        ] {
            let error = asked(answer).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}: {:?}", String::from_utf8_lossy(answer));
        }
        let endless =
            |mut stream: UnixStream| while stream.write_all(b"x: yyyyyyyyyyyyyyyyyyyy\r\n").is_ok() {};
        let ask = |mut connection: Connection| connection.ask("GET", "/v1", &[], "", &[]).map(drop);
        assert_eq!(with(endless, ask).unwrap_err().kind(), ErrorKind::Protocol);
    }

    /// RFC 9112 §7.1: lines come whole, however they were cut into chunks; a stream that breaks off is an error, one that ends is
    /// not.
    #[test]
    fn lines_come_out_of_chunks() {
        const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let lines = |body: &'static [u8]| {
            let respond = move |mut stream: UnixStream| drop(stream.write_all(&[HEAD, body].concat()));
            with(respond, |connection| {
                let mut lines = connection.ask_lines("/v1/events").unwrap().unwrap();
                let mut found = Vec::new();
                loop {
                    match lines.next() {
                        Ok(Some(line)) => found.push(line),
                        Ok(None) => return (found, None),
                        Err(error) => return (found, Some(error.kind())),
                    }
                }
            })
        };
        let whole = vec!["event: a".to_owned(), "data: {}".to_owned(), String::new()];
        assert_eq!(lines(b"3\r\neve\r\n10\r\nnt: a\ndata: {}\n\n\r\n0\r\n\r\n"), (whole.clone(), None));
        assert_eq!(lines(b"13\r\nevent: a\ndata: {}\n\n\r\n"), (whole.clone(), Some(ErrorKind::Unreachable)));
        assert_eq!(lines(b"2\r\nx\n\r\nzz\r\n"), (vec!["x".into()], Some(ErrorKind::Protocol)));
    }
}
