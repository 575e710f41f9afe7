//! `dray serve`, and the commands that ask it: `put` where it runs, `ls`, `done`, `status`.

pub(crate) mod directories;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dray_client::types::{IndexState, Info, ShareLine, Shared};
use dray_client::{Client, PutOptions, Session, is_socket_named, while_busy};
use dray_core::text::one_line;
use dray_core::ticket::Ticket;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_node::{Config, Daemon, Event, Observer, Stop};
use serde_json::json;

use crate::aside::Aside;
use crate::output::{Output, bytes, count};
use crate::pasted;

/// A file that is hashed before anybody wonders how long it takes, bytes.
const SMALL_BYTES: u64 = 32 << 20;
/// Standard input is read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// For a daemon that a command can do without to say who it is.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);
/// For one that it cannot do without.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a signal is looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs the daemon until `stop`.
pub(crate) fn serve(output: &Arc<Output>, stop: &Stop, reload: &Stop) -> Result<()> {
    let signals = signals()?;
    let printer: Arc<dyn Observer> = output.clone();
    let aside = Aside::start(printer)?;
    let daemon = Daemon::start(Config::load()?, aside.observer())?;
    let (node, port, socket) =
        (daemon.id().to_string(), daemon.port(), daemon.socket().to_string_lossy().into_owned());
    let (shares, directories) = (daemon.shares(), daemon.directories());
    aside.settle();
    output.told(
        &format!(
            "daemon of node {node}: {shares} objects and {directories} directories shared at TCP port {port}, API at {socket:?}"
        ),
        &json!({
            "event": "ready", "node": node, "port": port, "socket": socket, "shares": shares,
            "directories": directories, "metrics": daemon.metrics().map(|address| address.to_string()),
        }),
    );
    daemon.run(stop, reload, &signals)
}

/// Something to read whenever a signal has come, which does not block: so the daemon sleeps until there is one.
fn signals() -> Result<UnixStream> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed = |error| Error::io("catch signals", error);
    let (reads, writes) = UnixStream::pair().map_err(failed)?;
    reads.set_nonblocking(true).map_err(failed)?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let writes = writes.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, writes).map_err(failed)?;
    }
    Ok(reads)
}

/// The daemon for a command that can do without one; `None`, and a note, where what lies at the usual place cannot be used: another
/// user's daemon, in a folder that came along with the environment, is none of ours. Nor is one that does not answer, which is a
/// warning; who says that it starts or is busy is waited for. One that `DRAY_SOCKET` names is meant.
pub(crate) fn find(config: &Config, output: &Output, stop: &Stop) -> Result<Option<Client>> {
    match found(config, FIRST_PATIENCE, stop) {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        Err(error) if !is_socket_named() => {
            let text = format!("no daemon is used: {}", one_line(&error.to_string()));
            if error.kind() == ErrorKind::Refused && !error.is_retryable() {
                output.note(&text);
            } else {
                let advice = error.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
                output.event(Event::Warning(text + &advice));
            }
            Ok(None)
        }
        found => Ok(found?.map(|(client, _)| client)),
    }
}

/// The daemon that works on the same data directory as this command would, and what it says of itself within `patience`.
fn found(config: &Config, patience: Duration, stop: &Stop) -> Result<Option<(Client, Info)>> {
    let Some(client) = Client::connect()? else { return Ok(None) };
    let info = client.info_within(patience, &|| stop.is_set()).map_err(|error| match error.kind() {
        ErrorKind::Interrupted => error,
        _ => {
            error.context("ask the daemon").or_advise("start it again, or share without it: put --foreground")
        }
    })?;
    let theirs = &info.data_dir;
    let ours = &config.paths.data_dir;
    let is_same = ours.to_string_lossy() == *theirs
        || std::fs::canonicalize(ours)
            .ok()
            .is_some_and(|ours| std::fs::canonicalize(theirs).is_ok_and(|theirs| ours == theirs));
    Ok(is_same.then_some((client, info)))
}

/// The daemon, for a command that is about nothing else. What it warns of is told.
fn required(output: &Output, stop: &Stop) -> Result<(Client, Info)> {
    let (client, info) = found(&Config::load()?, PATIENCE, stop)?.ok_or_else(|| {
        Error::new(ErrorKind::Unreachable, "no daemon runs here").advise("start one: dray serve")
    })?;
    for warning in &info.warnings {
        output.event(Event::Warning(warning.clone()));
    }
    Ok((client, info))
}

/// Shares `path`, or standard input if that is `-`, by the daemon: prints the ticket and leaves.
pub(crate) fn put(
    client: &Client,
    path: &Path,
    options: PutOptions,
    output: &Arc<Output>,
    stop: &Stop,
) -> Result<()> {
    // Its descriptor is all that travels, and nobody needs to be told how far the daemon is with so little.
    let is_small = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= SMALL_BYTES);
    if is_small {
        let file = open(path)?;
        match client.put_file(&file, &options, &|| stop.is_set()) {
            // An older daemon.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            shared => return shown(shared, &options, output, stop),
        }
    }
    let session = while_busy(&|| stop.is_set(), || session_of_put(client, output))?;
    let shared = if path.as_os_str() == "-" {
        stream(&session, &options, output, stop)
    } else {
        let file = open(path)?;
        until(&session, stop, || session.put_file(&file, &options))
    };
    shown(shared, &options, output, stop)
}

/// A session that tells the user how far a put is.
fn session_of_put(client: &Client, output: &Arc<Output>) -> Result<Session> {
    let hears = output.clone();
    Session::open(client, move |event| {
        // Of this put: those about puts are told in their own sessions only.
        if event.name == "warning"
            && event.data["transaction"].as_str().is_some_and(|name| name.starts_with("put-"))
            && let Some(text) = event.data["text"].as_str()
        {
            hears.event(Event::Warning(text.to_owned()));
        }
        if event.name == "hashing"
            && let Some(done_bytes) = event.data["done_bytes"].as_u64()
        {
            hears.event(Event::Hashing { done_bytes, total_bytes: event.data["total_bytes"].as_u64() });
        }
    })
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::file(format!("open {path:?}"), error))
}

fn shown(shared: Result<Shared>, options: &PutOptions, output: &Output, stop: &Stop) -> Result<()> {
    let shared = shared.map_err(|error| match stop.is_set() {
        true => Error::new(ErrorKind::Interrupted, "interrupted before the ticket was made"),
        false => error,
    })?;
    for warning in &shared.warnings {
        output.event(Event::Warning(warning.clone()));
    }
    show(&shared, options.expires_in, output)
}

fn show(shared: &Shared, expires_in: Option<Duration>, output: &Output) -> Result<()> {
    let ticket: Ticket = shared.ticket.parse()?;
    let event = json!({
        "event": "shared", "oid": shared.oid, "size_bytes": shared.size_bytes, "ticket": shared.ticket,
        "addresses": shared.addresses,
    });
    output.ticket(&shared.ticket, &event);
    if ticket.secret.is_none() {
        output.note(&crate::run::without_ticket(&ticket));
    }
    let until = match expires_in {
        Some(_) => "until it expires, or",
        None => "until",
    };
    output.note(&format!(
        "the daemon serves {} {until} dray done TICKET; there: dray get TICKET",
        bytes(shared.size_bytes)
    ));
    Ok(())
}

/// Runs `work`; a signal ends the session, and with it the work.
fn until<T: Send>(session: &Session, stop: &Stop, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (sender, done) = sync_channel::<()>(0);
        scope.spawn(move || {
            // Ends when the sender is dropped.
            while done.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if stop.is_set() {
                    return session.end();
                }
            }
        });
        let result = work();
        drop(sender);
        result
    })
}

/// Standard input as an object. Another thread reads, and is left behind where nobody writes any more.
fn stream(session: &Session, options: &PutOptions, output: &Output, stop: &Stop) -> Result<Shared> {
    let mut put = session.put(options)?;
    let (sender, pieces) = sync_channel(4);
    let read = move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = input.read(&mut piece).map(|length| {
                piece.truncate(length);
                piece
            });
            let is_last = !read.as_ref().is_ok_and(|piece| !piece.is_empty());
            if sender.send(read).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("input".into())
        .spawn(read)
        .map_err(|error| Error::file("start a thread", error))?;
    let mut done_bytes = 0;
    loop {
        // Looked at before the end counts as one: the signal may have ended the program that writes, too.
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted before standard input ended"));
        }
        let piece = match pieces.recv_timeout(INTERVAL) {
            Ok(piece) => piece.map_err(|error| Error::file("read standard input", error))?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => Vec::new(),
        };
        if piece.is_empty() {
            return until(session, stop, || put.commit());
        }
        put.write(&piece)?;
        done_bytes += piece.len() as u64;
        output.event(Event::Hashing { done_bytes, total_bytes: None });
    }
}

/// How to share, as the command line has it.
pub(crate) fn options(
    path: &Path,
    public: bool,
    expires_in: Option<Duration>,
    ticket: Option<&Ticket>,
) -> Result<PutOptions> {
    let name = path.file_name().filter(|_| path.as_os_str() != "-").map(OsString::from);
    Ok(PutOptions { name, public, expires_in, pin: true, ticket: ticket.map(Ticket::to_text).transpose()? })
}

/// `dray ls`.
pub(crate) fn ls(output: &Output, stop: &Stop) -> Result<()> {
    let client = required(output, stop)?.0;
    let (shares, directories) = (client.shares()?, directories::of(&client)?);
    if shares.is_empty() && directories.is_empty() {
        output.note("nothing is shared by the daemon");
    }
    directories::ls(&directories, output)?;
    for share in shares {
        let mut event = serde_json::to_value(&share)
            .map_err(|error| Error::new(ErrorKind::Internal, "a share is no JSON").caused_by(error))?;
        event["event"] = "share".into();
        output.result(&line(&share), &event);
    }
    Ok(())
}

fn line(share: &ShareLine) -> String {
    let without_end = match share.sessions {
        _ if share.pinned => "until done",
        0 => "cached",
        _ => "in session",
    };
    let until = until_when(share.expires_unix_s, without_end);
    let whom = whom(share.public);
    let what = match (&share.path, &share.name) {
        (Some(path), _) => format!("{path:?}"),
        (None, Some(name)) => format!("{name:?} (kept by the daemon)"),
        (None, None) => "from standard input (kept by the daemon)".into(),
    };
    let receivers = receivers(share.receivers);
    format!("{}  {:>10}  {whom}  {until:<12}  {receivers}  {what}", share.oid, bytes(share.size_bytes))
}

/// How long a share lasts, or `without_end`.
fn until_when(expires_unix_s: Option<u64>, without_end: &str) -> String {
    match expires_unix_s {
        Some(end) => format!("{} left", time(end.saturating_sub(now_s()))),
        None => without_end.to_owned(),
    }
}

/// How many were let in since the daemon started, in a column.
fn receivers(count: u64) -> String {
    format!("{count:>4} {:<9}", if count == 1 { "receiver" } else { "receivers" })
}

/// Who may have it.
fn whom(is_public: bool) -> &'static str {
    if is_public { "public" } else { "ticket" }
}

/// `dray done`.
pub(crate) fn done(wanted: &str, output: &Output, stop: &Stop) -> Result<()> {
    if let Some(id) = pasted::directory_id(wanted)? {
        return directories::done(&required(output, stop)?.0, id, output);
    }
    let oid: Oid = match pasted::wanted(wanted)? {
        dray_node::Wanted::Ticket(ticket) => ticket.oid,
        dray_node::Wanted::Oid(oid) => oid,
    };
    required(output, stop)?.0.done(&oid)?;
    output.told(&format!("{oid} is no longer shared"), &json!({"event": "done", "oid": oid.to_string()}));
    Ok(())
}

/// `dray status`.
pub(crate) fn status(output: &Output, stop: &Stop) -> Result<()> {
    let (client, info) = required(output, stop)?;
    // One of another version may have none.
    let index = match client.index() {
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        index => Some(index?),
    };
    let mut event = serde_json::to_value(&info)
        .map_err(|error| Error::new(ErrorKind::Internal, "the status is no JSON").caused_by(error))?;
    event["event"] = "status".into();
    if let Some(index) = &index {
        event["index"] = json!({
            "wanted": index.wanted, "open": index.open, "files": index.files, "disk_bytes": index.disk_bytes,
        });
    }
    let text = told(&info) + &index.map(|index| told_of_index(&index)).unwrap_or_default();
    output.result(&text, &event);
    Ok(())
}

fn told(info: &Info) -> String {
    format!(
        "{} (process {}) runs for {}\nnode          {}\nTCP port      {}\ndata          {:?}\nshared        {}, {}\ncached        {}\nsessions      {}\ntransactions  {}",
        info.agent,
        info.pid,
        time(now_s().saturating_sub(info.started_unix_s)),
        info.node,
        info.port,
        info.data_dir,
        count(info.shares, "object", "objects"),
        count(info.directories, "directory", "directories"),
        bytes(info.cached_bytes),
        info.sessions,
        info.transactions,
    )
}

fn told_of_index(index: &IndexState) -> String {
    let what = match (index.wanted, index.open) {
        (false, _) => "off".to_owned(),
        (true, false) => "on, not open: there was nothing for it yet, or the log says why".to_owned(),
        (true, true) => format!("on, {} files known, {} on disk", index.files, bytes(index.disk_bytes)),
    };
    format!("\nchunk index   {what}")
}

/// A time for people: its largest unit only.
fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 5, `ls`: what, with whom, until when; and nothing that a file name can do to a terminal.
    #[test]
    fn a_share_is_one_line() {
        let share = ShareLine {
            oid: "blake3:00".into(),
            size_bytes: 3 << 20,
            name: Some("a\nb".into()),
            pinned: true,
            receivers: 2,
            ..ShareLine::default()
        };
        let told = line(&share);
        assert_eq!(told.lines().count(), 1, "{told}");
        for words in ["3.00 MiB", "ticket", "until done", "2 receivers", r#""a\nb" (kept"#] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let other = ShareLine { path: Some("/x/y".into()), name: None, public: true, pinned: false, ..share };
        let told = line(&other);
        assert!(told.contains("public") && told.contains("cached") && told.ends_with("\"/x/y\""), "{told}");
    }
}
