//! The server against clients over real sockets: what is answered, what is refused, and what ends with whom.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dray_api::{Answer, Answering, EventSender, Question, Server, events};
use dray_core::limits::{API_CONNECTIONS_MAX, API_HEADERS_MAX, API_QUESTIONS_MAX};

/// Answers `/echo` with the body, `/events` with a stream whose end it tells, `/wait` when the client has gone, `/hold` when it is
/// let, whoever has gone, and fails at `/panic`.
struct Answers {
    senders: Mutex<Vec<EventSender>>,
    told: Mutex<Sender<&'static str>>,
    /// Until then `/hold` answers nobody.
    may_go_on: AtomicBool,
}

struct Told(Sender<&'static str>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send("stream ended");
    }
}

impl Answering for Answers {
    #[allow(clippy::panic)]
    fn answer(&self, question: Question) -> Answer {
        let told = self.told.lock().unwrap().clone();
        match question.path.as_str() {
            "/echo" => Answer::part(3, question.body, 100),
            "/query" => {
                Answer::json(200, format!("{:?}", (question.method, question.query, question.required)))
            }
            "/events" => {
                let (sender, receiver) = events();
                sender.send("first", "{}");
                self.senders.lock().unwrap().push(sender);
                Answer::events(receiver, Box::new(Told(told)))
            }
            "/wait" => {
                told.send("waiting").unwrap();
                while !question.is_abandoned() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                told.send("abandoned").unwrap();
                Answer::empty()
            }
            "/hold" => {
                told.send("holding").unwrap();
                while !self.may_go_on.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Answer::empty()
            }
            "/panic" => panic!("on purpose"),
            _ => Answer::empty(),
        }
    }
}

struct Bed {
    dir: tempfile::TempDir,
    server: Server,
    answers: Arc<Answers>,
    told: Receiver<&'static str>,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("api")).unwrap();
        let (sender, told) = channel();
        let (senders, told_by) = (Mutex::default(), Mutex::new(sender));
        let answers = Arc::new(Answers { senders, told: told_by, may_go_on: AtomicBool::new(false) });
        Bed { server: Server::start(listener, answers.clone()).unwrap(), dir, answers, told }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(self.dir.path().join("api")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    }

    /// All that comes in answer to `request`, which asks for the connection to be closed.
    fn ask(&self, request: &str) -> String {
        let mut socket = self.connect();
        let _ = socket.write_all(request.as_bytes());
        let mut text = Vec::new();
        let _ = socket.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    fn hear(&self) -> &'static str {
        self.told.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

/// D12: a body comes back as the part it is, by length and in chunks; queries and required features arrive.
#[test]
fn requests_are_answered() {
    let bed = Bed::new();
    for request in [
        "POST /echo HTTP/1.1\r\nhost: d\r\nconnection: close\r\ncontent-length: 5\r\n\r\nabcde",
        "POST /echo HTTP/1.1\r\nhost: d\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n",
    ] {
        let answer = bed.ask(request);
        assert!(answer.starts_with("HTTP/1.1 206") && answer.ends_with("\r\n\r\nabcde"), "{answer}");
        assert!(answer.contains("content-range: bytes 3-7/100\r\n"), "{answer}");
    }
    let answer =
        bed.ask("DELETE /query?a=b HTTP/1.1\r\nhost: d\r\nconnection: close\r\ndray-require: x, y\r\n\r\n");
    assert!(answer.ends_with(r#"(Delete, "a=b", "x, y")"#), "{answer}");
}

/// Design 17: what is too long, no HTTP or a method nobody knows is refused in the form of all errors, and a handler that fails
/// takes nobody with it.
#[test]
fn what_is_wrong_is_refused() {
    let bed = Bed::new();
    let many: String = (0..=API_HEADERS_MAX).map(|number| format!("h{number}: x\r\n")).collect();
    for (request, status) in [
        ("PATCH / HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n".to_owned(), 405),
        ("POST /echo HTTP/1.1\r\nhost: d\r\ncontent-length: 1048577\r\n\r\n".to_owned(), 413),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(17_000)), 431),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
        ("HELLO\r\n\r\n".to_owned(), 400),
        (
            "POST /echo HTTP/1.1\r\nhost: d\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde"
                .to_owned(),
            400,
        ),
        ("GET /panic HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n".to_owned(), 500),
        ("GET / HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n".to_owned(), 204),
    ] {
        let answer = bed.ask(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
        assert!(![405, 413, 500].contains(&status) || answer.contains("\"kind\":"), "{answer}");
    }
}

/// D2: a stream ends with its client, and whoever works for a client that has gone is told.
#[test]
fn what_a_client_leaves_ends() {
    let bed = Bed::new();
    let mut stream = bed.connect();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    drop(stream);
    assert_eq!(bed.hear(), "stream ended");

    let mut waiting = bed.connect();
    waiting.write_all(b"GET /wait HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
    assert_eq!(bed.hear(), "waiting");
    drop(waiting);
    assert_eq!(bed.hear(), "abandoned");
}

/// Issue, "1,000 idle connections": the one idle longest gives way; one whose stream is open does not.
#[test]
fn idle_connections_give_way() {
    let bed = Bed::new();
    let mut stream = bed.connect();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    let idle: Vec<UnixStream> = (0..2 * API_CONNECTIONS_MAX).map(|_| bed.connect()).collect();
    let answer = bed.ask("GET / HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    for mut gone in idle.iter().take(API_CONNECTIONS_MAX) {
        assert_eq!(gone.read(&mut [0]).unwrap(), 0, "the oldest have given way");
    }
    bed.answers.senders.lock().unwrap()[0].send("second", "{}");
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("event: second\ndata: {}\n\n") {
        let mut bytes = [0; 256];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "the stream has ended: {:?}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&bytes[..read]);
    }
}

/// Issue, "1,000 idle connections": who gives way is the one that has asked nothing for longest, and not the one that came first.
#[test]
fn who_is_in_use_does_not_give_way() {
    let bed = Bed::new();
    let ask = |socket: &mut UnixStream| {
        socket.write_all(b"GET / HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            assert_eq!(socket.read(&mut byte).unwrap(), 1, "it has given way");
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 204"));
    };
    let mut connections: Vec<UnixStream> = (0..API_CONNECTIONS_MAX).map(|_| bed.connect()).collect();
    // They are let in one after the other: once the last is answered, all are there.
    ask(&mut connections[API_CONNECTIONS_MAX - 1]);
    ask(&mut connections[0]);
    for longest in 1..4 {
        let mut late = bed.connect();
        ask(&mut late);
        connections.push(late);
        // Sooner than one that says nothing is closed for that.
        connections[longest].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(connections[longest].read(&mut [0]).unwrap(), 0, "{longest}");
        ask(&mut connections[0]);
    }
}

/// Design 5, "bounded": work for clients that have gone counts, and with all places taken the next one is told so at once.
#[test]
fn work_for_nobody_counts() {
    let bed = Bed::new();
    for _ in 0..API_QUESTIONS_MAX {
        let mut leaving = bed.connect();
        leaving.write_all(b"GET /hold HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
        assert_eq!(bed.hear(), "holding");
    }
    let ask = || bed.ask("GET / HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n");
    let refused = ask();
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("\"retryable\":true"), "{refused}");
    bed.answers.may_go_on.store(true, Ordering::Release);
    let begun = std::time::Instant::now();
    while !ask().starts_with("HTTP/1.1 204") {
        assert!(begun.elapsed() < Duration::from_secs(30), "places never come back");
    }
}

/// Issue 1, "clean shutdown": an answer under way is finished, streams end when their senders do, and nobody is served after.
#[test]
fn it_ends_in_order() {
    let mut bed = Bed::new();
    let mut stream = bed.connect();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    bed.answers.senders.lock().unwrap().clear();
    bed.server.stop().unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "the stream ends as HTTP says: {rest}");
    assert!(UnixStream::connect(bed.dir.path().join("api")).is_err());
}

/// Decision 18: the socket may be somebody's who hands it to the next service. Who comes while this one finishes what it answers is told
/// so, and not left in silence.
#[test]
fn who_comes_while_it_ends_is_told() {
    let Bed { dir, mut server, answers, told } = Bed::new();
    let connect = || UnixStream::connect(dir.path().join("api")).unwrap();
    let mut held = connect();
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n").unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), "holding");
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop());
        loop {
            let mut socket = connect();
            let _ = socket.write_all(b"GET / HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n");
            let mut text = Vec::new();
            let _ = socket.read_to_end(&mut text);
            let text = String::from_utf8(text).unwrap();
            if text.contains("ending") {
                assert!(text.starts_with("HTTP/1.1 503") && text.contains("\"retryable\":true"), "{text}");
                break;
            }
        }
        answers.may_go_on.store(true, Ordering::Release);
        stopping.join().unwrap().unwrap();
    });
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "what was being answered still is: {answer}");
}

/// Issue, "a client that asks gets its own refusal": who is turned away is told, also by a client that asks before it reads.
#[test]
fn who_is_turned_away_is_told() {
    let bed = Bed::new();
    let mut busy: Vec<UnixStream> = (0..API_CONNECTIONS_MAX).map(|_| bed.connect()).collect();
    for socket in &mut busy {
        socket.write_all(b"GET /hold HTTP/1.1\r\nhost: d\r\n\r\n").unwrap();
        assert_eq!(bed.hear(), "holding");
    }
    for _ in 0..20 {
        let socket = bed.dir.path().join("api");
        let curl =
            Command::new("curl").args(["-sS", "-m", "20", "http://d/", "--unix-socket"]).arg(socket).output();
        let curl = curl.expect("curl is one of the packages of the tests");
        let text = String::from_utf8_lossy(&curl.stdout);
        assert!(text.contains("too many connections"), "{text} {}", String::from_utf8_lossy(&curl.stderr));
    }
    bed.answers.may_go_on.store(true, Ordering::Release);
}
