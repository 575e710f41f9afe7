//! `dray serve` on a host, and its API asked by hand: no client of ours stands between a test and what the daemon answers.

use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::ticket::Ticket;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};
use serde_json::Value;

use crate::{Host, Program, Running};

/// A daemon on a host, and the socket of its API.
#[derive(Debug)]
pub struct Daemon {
    /// It.
    pub process: Running,
    /// Where it answers.
    pub socket: PathBuf,
}

/// An answer of the API.
#[derive(Debug)]
pub struct Answer {
    /// Its status; 0 if there was none.
    pub status: u16,
    /// Its first line and headers, in lower case.
    pub head: String,
    /// Its body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// First byte, last byte and size of `Content-Range: bytes A-B/SIZE`.
    pub fn range(&self) -> Option<[u64; 3]> {
        let text = self.head.lines().find_map(|line| line.strip_prefix("content-range: bytes "))?;
        let numbers: Vec<u64> =
            text.split(['-', '/']).map_while(|number| number.trim().parse().ok()).collect();
        numbers.try_into().ok()
    }
}

impl Daemon {
    /// The daemon of `host`.
    pub fn start(host: &Host) -> Daemon {
        let run = host.dir().join("run");
        if !run.exists() {
            fs::create_dir(&run).expect("a folder for sockets can be made");
        }
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).expect("its mode can be set");
        Daemon::of(host.dray(), &run)
    }

    /// The daemon that `program`, a `dray`, becomes, whose `XDG_RUNTIME_DIR` is `run`.
    pub fn of(program: Program<'_>, run: &Path) -> Daemon {
        let process = program.args(["serve", "--json"]).time_limit(Duration::from_secs(300)).start();
        process.line_with(|line| event(line) == "ready");
        Daemon { process, socket: run.join("dray/daemon.sock") }
    }

    /// One request. Without a daemon the status is 0.
    pub fn fetch(&self, request: &str, body: &[u8]) -> Answer {
        fetch(&self.socket, request, body)
    }

    /// One request: status and body.
    pub fn ask(&self, request: &str, body: &[u8]) -> (u16, Value) {
        let answer = self.fetch(request, body);
        (answer.status, answer.json())
    }

    /// A session, which lasts as long as what is returned.
    pub fn session(&self) -> (UnixStream, String) {
        let mut socket = UnixStream::connect(&self.socket).expect("the daemon listens");
        socket.write_all(b"GET /v1/events HTTP/1.1\r\nhost: d\r\n\r\n").expect("it takes a request");
        let mut heard = Vec::new();
        let text = loop {
            let mut bytes = [0; 512];
            let read = socket.read(&mut bytes).expect("it answers");
            assert!(read > 0, "no session: {:?}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&bytes[..read]);
            let text = String::from_utf8_lossy(&heard).into_owned();
            if text.contains("\"}\n\n") {
                break text;
            }
        };
        let from = text.find("session-").expect("a session has a name");
        (socket, text[from..].split('"').next().unwrap_or_default().to_owned())
    }

    /// Begins to put.
    pub fn begin(&self, session: &str) -> String {
        self.transaction("/v1/puts", &serde_json::json!({"session": session}))
    }

    /// Begins a transaction as `wish` says, at `/v1/puts` or `/v1/gets`.
    #[track_caller]
    pub fn transaction(&self, path: &str, wish: &Value) -> String {
        let (status, begun) = self.ask(&format!("POST {path}"), wish.to_string().as_bytes());
        assert_eq!(status, 201, "{begun}");
        begun["transaction"].as_str().expect("a transaction has a name").to_owned()
    }

    /// The open transactions.
    pub fn transactions(&self) -> Vec<Value> {
        let listed = self.ask("GET /v1/transactions", b"").1;
        listed["transactions"].as_array().expect("transactions are a list").clone()
    }

    /// Hands `file` over and returns the name it has in requests; `None` if it was not taken.
    pub fn hand_over(&self, file: &File) -> Option<String> {
        let mut path = self.socket.clone().into_os_string();
        path.push(".fd");
        let nonce = nonce();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&*path).ok()?).ok()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(&socket, &[IoSlice::new(&nonce)], &mut control, SendFlags::NOSIGNAL).ok()?;
        let mut answer = [0; 1];
        let heard = rustix::net::recv(&socket, &mut answer, RecvFlags::empty());
        matches!(heard, Ok((_, 1))).then(|| nonce.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Ends it as a service manager does.
    pub fn stop(self) {
        self.process.terminate().expect(0);
    }
}

/// One request to the daemon at `socket`. Without one the status is 0.
pub fn fetch(socket: &Path, request: &str, body: &[u8]) -> Answer {
    let Ok(mut socket) = UnixStream::connect(socket) else {
        return Answer { status: 0, head: String::new(), body: Vec::new() };
    };
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit can be set");
    let head = format!(
        "{request} HTTP/1.1\r\nhost: d\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // Who is turned away may hear so before all is sent.
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body));
    answer_of(&mut socket)
}

fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.expect("the kernel gives random bytes");
    bytes
}

/// The word after `"event":` in a line of `--json`.
pub fn event(line: &str) -> String {
    let value: Value = serde_json::from_str(line).unwrap_or_default();
    value["event"].as_str().unwrap_or("").to_owned()
}

/// An answer that ends with the connection.
pub fn answer_of(socket: &mut UnixStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    let body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body }
}

/// Its status and JSON body.
pub fn answer(socket: &mut UnixStream) -> (u16, Value) {
    let answer = answer_of(socket);
    (answer.status, answer.json())
}

/// Waits until `condition` holds; panics if it does not in time.
#[track_caller]
pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The ticket that a `put` by the daemon prints.
#[track_caller]
pub fn put(host: &Host, path: &Path) -> String {
    let put = host.dray().arg("put").arg(path).run().expect(0);
    let ticket = put.stdout_text().trim_end().to_owned();
    assert!(ticket.parse::<Ticket>().is_ok(), "{put}");
    ticket
}

/// Bytes that a process has read from files and elsewhere so far.
pub fn read_bytes(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("its figures can be read");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|number| number.parse().ok()).expect("the kernel counts what it reads")
}
