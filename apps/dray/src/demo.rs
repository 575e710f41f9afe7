//! `dray demo FILE`: a sender and a receiver, two processes with TCP and TLS between them, and a check at the end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Result};
use dray_node::{Config, GetRequest, Node, Output as Destination, Stop, Wanted};
use serde_json::json;

use crate::output::{Output, bytes};
use crate::run::own_program;

pub(crate) fn run(file: &Path, output: &Arc<Output>, stop: &Stop) -> Result<()> {
    if file.is_dir() {
        let what = format!("{file:?} is a directory; demo takes a file");
        return Err(Error::new(ErrorKind::Usage, what).advise("name a file in it"));
    }
    let place = Scratch::new()?;
    let begun = Instant::now();
    let mut sender = Sender::start(file, &place)?;
    let ticket = sender.ticket(stop)?;
    let hashed = begun.elapsed();
    let mut config = Config::load()?;
    config.paths.data_dir = place.0.join("receiver");
    let node = Node::open(config)?;
    let target = place.0.join("received");
    let request = GetRequest {
        wanted: Wanted::Ticket(ticket.clone()),
        hints: Vec::new(),
        // Both ends are on this machine, and this process made the ticket.
        allow_local: true,
        whole_file: true,
        search: None,
        fsync: false,
    };
    let got = Instant::now();
    let delivered = node.get(&request, &Destination::Path(target.clone()), &**output, stop)?;
    let elapsed = got.elapsed();
    // Not the receiver's word: read what was written and hash it again.
    Node::verify(&target, &ticket.oid, &|_| {}, stop)?;
    let rate = delivered.size_bytes as f64 / elapsed.as_secs_f64().max(1e-6);
    let text = format!(
        "sent       {file:?}, {} (hashed in {:.2} s)\nreceived   in {:.2} s over TCP + TLS 1.3, {}/s, two processes\nproven     {}\ncompare    b3sum prints the same: {}",
        bytes(delivered.size_bytes),
        hashed.as_secs_f64(),
        elapsed.as_secs_f64(),
        bytes(rate as u64),
        ticket.oid,
        ticket.oid.hex(),
    );
    output.result(
        &text,
        &json!({
            "event": "demo", "oid": ticket.oid.to_string(), "size_bytes": delivered.size_bytes,
            "hash_seconds": hashed.as_secs_f64(), "get_seconds": elapsed.as_secs_f64(),
        }),
    );
    Ok(())
}

/// The sending process; ended when this is dropped.
struct Sender(Child);

impl Sender {
    fn start(file: &Path, place: &Scratch) -> Result<Sender> {
        let failed = |error| Error::io("start the sender", error);
        let file = std::path::absolute(file).map_err(failed)?;
        let child = Command::new(own_program()?)
            .args(["put", "--quiet", "--expire", "1h", "--until-stdin-closes", "--"])
            .arg(file)
            .env("DRAY_DATA_DIR", place.0.join("sender"))
            // Held open by this process alone: the sender ends with it, however that is.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        child.map(Sender).map_err(failed)
    }

    /// The one line it prints.
    fn ticket(&mut self, stop: &Stop) -> Result<Ticket> {
        let stdout = self.0.stdout.take();
        let (sender, printed) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.map_or(Ok(0), |stdout| {
                BufReader::new(std::io::Read::take(stdout, 4096)).read_line(&mut line)
            });
            let _ = sender.send(read.map(|_| line));
        });
        let line = loop {
            match printed.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => break line.map_err(|error| Error::file("read the sender's ticket", error))?,
                Err(mpsc::RecvTimeoutError::Timeout) if stop.is_set() => {
                    return Err(Error::new(ErrorKind::Interrupted, "interrupted while the file was hashed"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, "a thread failed"));
                }
            }
        };
        if line.is_empty() {
            let code = self.0.wait().ok().and_then(|status| status.code());
            let kind = match code {
                Some(2) => ErrorKind::Usage,
                Some(3) => ErrorKind::NotFound,
                Some(6) => ErrorKind::Refused,
                Some(130) => ErrorKind::Interrupted,
                _ => ErrorKind::Internal,
            };
            return Err(Error::new(kind, "the sender could not share the file; its message stands above"));
        }
        line.parse()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory of its own, removed at the end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let base = std::env::temp_dir();
        for attempt in 0..100 {
            let path = base.join(format!("dray-demo-{}-{attempt}", std::process::id()));
            let made =
                std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&path);
            match made {
                Ok(()) => return Ok(Scratch(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(format!("make {}", path.display()), error)),
            }
        }
        Err(Error::new(ErrorKind::Refused, format!("{} is full of dray-demo directories", base.display())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
