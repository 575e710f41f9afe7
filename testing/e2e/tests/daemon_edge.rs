//! The daemon's edges: its port, its socket and its log where others are in the way, requests that are sent twice, and clients that
//! do not take what they asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use dray_core::ticket::Ticket;
use dray_e2e::actions::{self, NOBODY, Share};
use dray_e2e::daemon::{Daemon, await_that, put};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Lab, Program, gate};
use rustix::process::Signal;
use serde_json::{Value, json};

/// D9, issue 1, "remembered port": another program has the port when the daemon is started. Tickets name it, so it stays the daemon's: it
/// is waited for, what serves instead is told by everybody who is asked, and it is the daemon's again when it is free.
#[test]
fn a_taken_port_comes_back() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, MIB, 1);
    let daemon = Daemon::start(a);
    let ticket = put(a, &file);
    let port = port_of(&ticket);
    daemon.stop();

    let taken = a.enter(|| TcpListener::bind(("::", port)).unwrap());
    let daemon = Daemon::start(a);
    let info = daemon.ask("GET /v1", b"").1;
    assert_ne!(info["port"], port, "{info}");
    assert!(info["warnings"][0].as_str().unwrap().contains(&format!("port {port},")), "{info}");
    let listed = a.dray().arg("ls").run().expect(0);
    assert!(listed.stderr_text().contains("warning: another program has TCP port"), "{listed}");
    let again = a.dray().arg("put").arg(&file).run().expect(0);
    assert!(again.stderr_text().contains("warning: another program has TCP port"), "{again}");
    let meanwhile = again.stdout_text().trim().to_owned();
    assert_ne!(port_of(&meanwhile), port);

    // Looked for each minute, and at each signal. Tickets of both ports work then.
    drop(taken);
    daemon.process.signal(Signal::HUP);
    await_that("it has its port again", || daemon.ask("GET /v1", b"").1["port"] == port);
    assert_eq!(daemon.ask("GET /v1", b"").1["warnings"], json!([]));
    assert_eq!(port_of(&put(a, &file)), port);
    for (name, ticket) in [("before", &ticket), ("meanwhile", &meanwhile)] {
        let copy = b.directory(name).join("copy");
        actions::get(b, ticket, &copy).arg("-W").run().expect(0);
        data::assert_same(&file, &copy);
    }
    daemon.stop();
    let daemon = Daemon::start(a);
    assert_eq!(daemon.ask("GET /v1", b"").1["port"], port);
    daemon.stop();
}

fn port_of(ticket: &str) -> u16 {
    let uri = ticket.parse::<Ticket>().unwrap().hints[0].uri.to_string();
    uri.rsplit(':').next().unwrap().parse().unwrap()
}

/// Decision 18, "commands behave the same": a folder for sockets that came along with the environment (`su`, `sudo -E`) has another
/// user's daemon, which may not be entered, or turns one away. `put` serves by itself as if there were none; a daemon that is named,
/// or a command about nothing else, is refused.
#[test]
fn a_foreign_daemon_is_no_daemon() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, MIB, 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let ours = Daemon::start(a);
    let home = a.directory("nobody");
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |run: &Path| -> Program<'_> {
        let program = a.dray().user(NOBODY).directory(&home).env("XDG_RUNTIME_DIR", run);
        let program = program.env("HOME", &home).env("DRAY_DATA_DIR", home.join("data"));
        program.env("XDG_CONFIG_HOME", home.join("c"))
    };
    let theirs = Daemon::of(as_nobody(&home), &home);
    let our_run = a.dir().join("run");

    for (number, put) in [
        as_nobody(&our_run).arg("put").arg(&file),
        a.dray().env("XDG_RUNTIME_DIR", &home).arg("put").arg(&file),
    ]
    .into_iter()
    .enumerate()
    {
        let share = Share::of(put.time_limit(Duration::from_secs(120)).start());
        let copy = b.directory(&number.to_string()).join("copy");
        actions::get(b, &share.ticket, &copy).arg("-W").run().expect(0);
        data::assert_same(&file, &copy);
        let outcome = share.end();
        assert!(outcome.stderr_text().contains("no daemon is used"), "{outcome}");
    }
    as_nobody(&our_run).arg("ls").run().expect(6);
    a.dray().env("XDG_RUNTIME_DIR", &home).arg("ls").run().expect(6);
    as_nobody(&home).env("DRAY_SOCKET", &ours.socket).arg("put").arg(&file).run().expect(6);
    a.dray().env("DRAY_SOCKET", &theirs.socket).arg("put").arg(&file).run().expect(6);
    ours.stop();
    theirs.stop();
}

/// Decision 18, "commands behave the same": a daemon that does not answer any more is soon as good as none, with a warning. One that is
/// named is meant, and its silence an error.
#[test]
fn a_stuck_daemon_is_no_daemon() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, MIB, 1);
    let daemon = Daemon::start(a);
    daemon.process.signal(Signal::STOP);
    let share = Share::of(a.dray().arg("put").arg(&file).time_limit(Duration::from_secs(120)).start());
    let copy = b.directory("in").join("copy");
    actions::get(b, &share.ticket, &copy).run().expect(0);
    data::assert_same(&file, &copy);
    let outcome = share.end();
    let told = outcome.stderr_text();
    assert!(told.contains("warning") && told.contains("no daemon is used"), "{outcome}");
    a.dray().env("DRAY_SOCKET", &daemon.socket).arg("put").arg(&file).run().expect(5);
    daemon.process.signal(Signal::CONT);
    put(a, &file);
    daemon.stop();
}

/// Decision 18, "commands behave the same": a daemon that waits for its port is not stuck, and the put that asks it meanwhile is its own.
#[test]
fn a_starting_daemon_is_waited_for() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    data::write_random(&file, MIB, 1);
    let daemon = Daemon::start(host);
    let (port, socket) = (port_of(&put(host, &file)), daemon.socket.clone());
    daemon.stop();
    let taken = host.enter(|| TcpListener::bind(("::", port)).unwrap());
    let process = host.dray().arg("serve").start();
    await_that("its socket listens", || UnixStream::connect(&socket).is_ok());
    let outcome = host.dray().arg("put").arg(&file).time_limit(Duration::from_secs(60)).run().expect(0);
    assert!(!outcome.stderr_text().contains("no daemon is used"), "{outcome}");
    drop(taken);
    process.signal(Signal::TERM);
    process.wait().expect(0);
}

/// Issue 1, "remembered port": it is on disk before the first ticket can name it, with the name of its file.
#[test]
fn the_port_is_durable_before_tickets_name_it() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (run, trace) = (host.directory("runtime"), host.file("trace"));
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    // As the traced process itself: a signal to it is one to the daemon.
    let traced =
        host.program("strace").args(["-D", "-f", "-y", "-e", "trace=fsync,rename,renameat,renameat2", "-o"]);
    let daemon = Daemon::of(traced.arg(&trace).arg("dray").env("XDG_RUNTIME_DIR", &run), &run);
    let data_dir = host.data_dir().to_string_lossy().into_owned();
    let wanted = [
        format!("{data_dir}/daemon.port.new>) = 0"),
        format!("{data_dir}/daemon.port\") = 0"),
        format!("{data_dir}>) = 0"),
    ];
    let mut seen = String::new();
    await_that("it is all written down", || {
        seen = fs::read_to_string(&trace).unwrap();
        seen.contains(&wanted[2])
    });
    let at = wanted.map(|text| seen.lines().position(|line| line.ends_with(&text)));
    assert!(at[0].is_some() && at[0] < at[1] && at[1] < at[2], "{at:?}: {seen}");
    daemon.stop();
}

/// Issue 1, "reload of TOML configuration": the daemon as the unit that is shipped starts it tells its log of a bad file, with its line.
#[test]
fn the_shipped_unit_has_warnings_in_its_log() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let unit = fs::read_to_string(gate::project_file("packaging/systemd/dray.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=dray ")).unwrap();
    let config = host.home().join(".config/dray/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let run = host.dir().join("run");
    fs::create_dir_all(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let process = host.dray().args(line.split(' ')).start();
    let socket = run.join("dray/daemon.sock");
    await_that("it answers", || UnixStream::connect(&socket).is_ok());
    fs::write(&config, "window_mib = 64\ncache_mib = \"none\"\n").unwrap();
    let daemon = Daemon { process, socket };
    let mut stream = daemon.session().0;
    let mut heard = Vec::new();
    // Told to whoever listens, and to the log.
    daemon.process.signal(Signal::HUP);
    while !String::from_utf8_lossy(&heard).contains("event: warning") {
        let mut bytes = [0; 512];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0);
        heard.extend_from_slice(&bytes[..read]);
    }
    let outcome = daemon.process.terminate().expect(0);
    let log = outcome.stderr_text();
    assert!(log.contains("line 2") && log.contains("stays as it was"), "{outcome}");
}

/// D8, D12: whatever answer is lost, the same request has it again, until the session ends; a second commit beside the first one
/// disturbs nothing.
#[test]
fn outcomes_are_told_again() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let (stream, session) = holder.session();
    let sparse = a.file("sparse");
    File::create(&sparse).unwrap().set_len(3 << 30).unwrap();
    let begin = || {
        let descriptor = holder.hand_over(&File::open(&sparse).unwrap()).unwrap();
        holder.transaction("/v1/puts", &json!({"session": session, "descriptor": descriptor}))
    };
    let is_hashing = || holder.transactions().first().is_some_and(|put| put["done_bytes"].as_u64() > Some(0));

    // The connection breaks while the file is hashed; the session does not.
    let transaction = begin();
    let mut leaving = UnixStream::connect(&holder.socket).unwrap();
    let head = format!("POST /v1/puts/{transaction}/commit HTTP/1.1\r\nhost: d\r\ncontent-length: 0\r\n\r\n");
    leaving.write_all(head.as_bytes()).unwrap();
    await_that("hashing begins", is_hashing);
    drop(leaving);
    let target = format!("POST /v1/puts/{transaction}/commit");
    let mut first = (0, Value::Null);
    // The thread that hashes for nobody hears of it within some milliseconds.
    await_that("the commit can be asked for again", || {
        first = holder.ask(&target, b"{}");
        first.0 != 503
    });
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(holder.ask(&target, b""), first);
    holder.ask(&format!("DELETE /v1/shares/{}", first.1["oid"].as_str().unwrap()), b"");

    // Two commits of a file that nobody has hashed.
    File::options().write(true).open(&sparse).unwrap().write_all(b"other").unwrap();
    let transaction = begin();
    let target = format!("POST /v1/puts/{transaction}/commit");
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| holder.ask(&target, b"{}"));
        await_that("hashing begins", is_hashing);
        let second = holder.ask(&target, b"{}");
        assert_eq!((second.0, &second.1["retryable"]), (503, &true.into()), "{}", second.1);
        let first = committing.join().unwrap();
        assert_eq!(first.0, 200, "{}", first.1);
        assert_eq!(holder.ask(&target, b"{}"), first);
    });
    assert_eq!(holder.transactions().len(), 0);
    let misspelt = holder.ask(&target, b"{\"pin\":true}");
    assert_eq!((misspelt.0, &misspelt.1["kind"]), (400, &"usage".into()), "{}", misspelt.1);

    // The end of a get, by descriptor.
    let file = a.file("file");
    data::write_random(&file, MIB, 1);
    let ticket = put(a, &file);
    let (receiving, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(b.directory("in")).unwrap()).unwrap();
    let wish = json!({"session": session, "ticket": ticket, "descriptor": descriptor, "name": "copy"});
    let get = daemon.transaction("/v1/gets", &wish);
    let finish = format!("POST /v1/gets/{get}/finish");
    let fetched = daemon.ask(&finish, b"{}");
    assert_eq!(fetched.0, 200, "{}", fetched.1);
    assert_eq!(daemon.ask(&finish, b""), fetched);
    // And a failure.
    let slip =
        daemon.transaction("/v1/gets", &json!({"session": session, "ticket": ticket, "from": 2 * MIB}));
    let failed = daemon.ask(&format!("GET /v1/gets/{slip}/data"), b"");
    assert_eq!(failed.0, 400, "{}", failed.1);
    assert_eq!(daemon.ask(&format!("GET /v1/gets/{slip}/data"), b""), failed);
    assert_eq!(daemon.ask(&format!("DELETE /v1/transactions/{slip}"), b"").0, 204);
    assert_eq!(daemon.ask(&format!("GET /v1/gets/{slip}/data"), b"").0, 404);
    drop(receiving);
    await_that("it is forgotten with its session", || daemon.ask(&finish, b"").0 == 404);
    drop(stream);
    holder.stop();
    daemon.stop();
}

/// D37, design 17: a wish with a field that this daemon does not know is refused and names it: a misspelt `expires_s` would share for
/// ever.
#[test]
fn misspelt_wishes_are_refused() {
    let Some(lab) = Lab::of(1).build() else { return };
    let daemon = Daemon::start(lab.host(0));
    let (_stream, session) = daemon.session();
    for (path, field) in [("/v1/puts", "expire_s"), ("/v1/puts", "pubic"), ("/v1/gets", "until")] {
        let wish = json!({"session": session, "ticket": "dray:x", field: 5});
        let (status, problem) = daemon.ask(&format!("POST {path}"), wish.to_string().as_bytes());
        assert_eq!((status, &problem["kind"]), (400, &"usage".into()), "{problem}");
        assert!(problem["what"].as_str().unwrap().contains(field), "{problem}");
    }
    assert_eq!(daemon.transactions().len(), 0);
    daemon.stop();
}

/// Design 7, "one memory budget": as many gets as there may be, and nobody takes what comes. They stay within it, another one that is
/// read is served meanwhile, and each has all its bytes when it is read at last.
#[test]
fn gets_that_nobody_reads_stay_within_memory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let file = a.file("file");
    let total = 40 * MIB + 5;
    data::write_random(&file, total, 1);
    let (ticket, bytes) = (put(a, &file), fs::read(&file).unwrap());
    let (_stream, session) = daemon.session();
    let mut unread = Vec::new();
    for number in 0..31 {
        let mode = if number % 2 == 0 { "sequential" } else { "out-of-order" };
        let wish = json!({"session": session, "ticket": ticket, "mode": mode, "whole_file": true});
        unread.push(daemon.transaction("/v1/gets", &wish));
    }
    // As much has come as will.
    let done = || daemon.transactions().iter().map(|get| get["done_bytes"].as_u64().unwrap()).sum::<u64>();
    let (mut last, mut since) = (0, Instant::now());
    await_that("they wait to be read", || {
        let now = done();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        now >= 31 * MIB && since.elapsed() > Duration::from_secs(1)
    });
    // `window_mib` of all, and one MiB of each.
    assert!(last <= (64 + 31) * MIB, "{last} bytes wait");
    let read = |get: &str, take: usize| {
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        while found.len() < take {
            let answer = daemon.fetch(&format!("GET /v1/gets/{get}/data?piece={}", found.len()), b"");
            match (answer.status, answer.range()) {
                (206, Some([first, ..])) => found.push((first, answer.body)),
                (204, _) => break,
                _ => panic!("{}: {:?}", answer.head, answer.json()),
            }
        }
        found.sort();
        found.into_iter().flat_map(|(_, piece)| piece).collect::<Vec<u8>>()
    };
    let busy =
        daemon.transaction("/v1/gets", &json!({"session": session, "ticket": ticket, "whole_file": true}));
    assert!(read(&busy, usize::MAX) == bytes);
    // Their last pieces count, too.
    for get in &unread {
        assert!(!read(get, 1).is_empty());
    }
    for get in &unread {
        let rest = read_from(&daemon, get, 1);
        assert!(rest > 0, "{get}");
    }
    let peak = peak_kb(&daemon);
    // 96 MiB of bytes, the buffers of 64 connections, and what the allocator keeps.
    assert!(peak < 256 * 1024, "{peak} kB, {last} bytes waited");
    holder.stop();
    daemon.stop();
}

/// How many bytes come from the piece `number` on.
fn read_from(daemon: &Daemon, get: &str, mut number: u64) -> usize {
    let mut bytes = 0;
    loop {
        let answer = daemon.fetch(&format!("GET /v1/gets/{get}/data?piece={number}"), b"");
        match answer.status {
            206 => bytes += answer.body.len(),
            204 => return bytes,
            _ => panic!("{}: {:?}", answer.head, answer.json()),
        }
        number += 1;
    }
}

fn peak_kb(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.process.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Design 5, limits.md, "an answer has at most 1 MiB": a long list comes in pages, and `ls` has all of it.
#[test]
fn a_long_list_comes_in_pages() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let daemon = Daemon::start(host);
    let (stream, session) = daemon.session();
    // Who does not take its events is cut off, and with it the session.
    let mut events = stream.try_clone().unwrap();
    let hearing = std::thread::spawn(move || std::io::copy(&mut events, &mut std::io::sink()));
    // Each of these bytes takes six in JSON.
    let name = "01".repeat(255);
    let count = 800_u64;
    for number in 0..count {
        let put = daemon.transaction("/v1/puts", &json!({"session": session, "name_hex": name}));
        assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/data"), &number.to_le_bytes()).0, 200);
        assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/commit"), b"").0, 200);
    }
    let (mut pages, mut found, mut next) = (0, Vec::new(), Value::Null);
    loop {
        let query = next.as_str().map(|oid| format!("?after={oid}")).unwrap_or_default();
        let answer = daemon.fetch(&format!("GET /v1/shares{query}"), b"");
        assert_eq!(answer.status, 200, "{:?}", answer.json());
        assert!(answer.body.len() <= MIB as usize, "{} bytes", answer.body.len());
        let page = answer.json();
        let lines = page["shares"].as_array().unwrap();
        found.extend(lines.iter().map(|line| line["oid"].as_str().unwrap().to_owned()));
        pages += 1;
        next = page["next"].clone();
        if next.is_null() {
            break;
        }
    }
    assert_eq!((pages, found.len() as u64), (2, count));
    assert!(found.is_sorted());
    let listed = host.dray().args(["ls", "--json"]).run().expect(0);
    assert_eq!(listed.stdout_text().lines().count() as u64, count);
    for query in ["?after=x", "?before=y", "?"] {
        let slip = daemon.ask(&format!("GET /v1/shares{query}"), b"");
        assert!(query == "?" || slip.0 >= 400, "{query}: {}", slip.1);
    }
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = hearing.join().unwrap();
    daemon.stop();
}

/// Issue 4, "metrics": a command of the same user that is stopped keeps nobody waiting for the figures.
#[test]
fn a_stopped_command_does_not_hold_up_the_figures() {
    let Some(lab) = Lab::of(2).alone().rate_mbit(20).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let file = a.file("file");
    data::write_random(&file, 40 * MIB, 1);
    let ticket = put(a, &file);
    let get = actions::get(b, &ticket, &b.directory("in").join("copy")).start();
    let explained = || daemon.ask("GET /v1/explain", b"").1["transfers"].as_array().unwrap().len();
    await_that("it tells of itself", || explained() == 1);
    get.signal(Signal::STOP);
    let begun = Instant::now();
    for _ in 0..4 {
        assert_eq!(daemon.ask("GET /v1/metrics", b"").0, 200);
    }
    // Each would wait two seconds for it.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    get.signal(Signal::CONT);
    get.kill();
    holder.stop();
    daemon.stop();
}

/// What the first client sent, byte by byte, before there was `put-at-once`: its requests, with placeholders, and the fields that it
/// reads of each answer. Recorded, never edited: whoever must change this breaks programs that were built with it.
const FIRST_CLIENT: &[(&str, u16, &[&str])] = &[
    (
        "GET /v1 HTTP/1.1\r\nhost: dray\r\ncontent-length: 0\r\n\r\n",
        200,
        &[
            "agent",
            "features",
            "node",
            "port",
            "pid",
            "started_unix_s",
            "data_dir",
            "shares",
            "cached_bytes",
            "sessions",
        ],
    ),
    (
        "POST /v1/puts HTTP/1.1\r\nhost: dray\r\ncontent-length: 142\r\ncontent-type: application/json\r\ndray-require: put,put-descriptor\r\n\r\n{\"session\":\"SESSION\",\"name\":\"file\",\"public\":false,\"pin\":true,\"descriptor\":\"DESCRIPTOR\"}",
        201,
        &["transaction"],
    ),
    (
        "POST /v1/puts/TRANSACTION/commit HTTP/1.1\r\nhost: dray\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}",
        200,
        &["oid", "size_bytes", "ticket", "addresses", "warnings"],
    ),
    (
        "POST /v1/puts HTTP/1.1\r\nhost: dray\r\ncontent-length: 80\r\ncontent-type: application/json\r\ndray-require: put\r\n\r\n{\"session\":\"SESSION\",\"public\":false,\"pin\":true}",
        201,
        &["transaction"],
    ),
    (
        "POST /v1/puts/TRANSACTION/data?offset=0 HTTP/1.1\r\nhost: dray\r\ncontent-length: 5\r\ncontent-type: application/octet-stream\r\n\r\ndata\n",
        200,
        &["size_bytes"],
    ),
    (
        "POST /v1/puts/TRANSACTION/commit HTTP/1.1\r\nhost: dray\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}",
        200,
        &["oid", "size_bytes", "ticket", "addresses", "warnings"],
    ),
    (
        "GET /v1/shares HTTP/1.1\r\nhost: dray\r\ncontent-length: 0\r\ndray-require: shares\r\n\r\n",
        200,
        &["shares"],
    ),
    (
        "DELETE /v1/shares/OID HTTP/1.1\r\nhost: dray\r\ncontent-length: 0\r\ndray-require: shares\r\n\r\n",
        204,
        &[],
    ),
];

/// D37, "old client with new daemon and the reverse, one feature apart": what the first client said is understood, and answered so
/// that it finds what it reads; and today's command works with a daemon that lacks what came since.
#[test]
fn an_older_client_and_an_older_daemon() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    fs::write(&file, "bytes of a file").unwrap();
    let daemon = Daemon::start(a);
    let (_stream, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(&file).unwrap()).unwrap();
    let (mut transaction, mut ticket, mut oid) = (String::new(), String::new(), String::new());
    for (request, status, fields) in FIRST_CLIENT {
        let request = request.replace("SESSION", &session).replace("DESCRIPTOR", &descriptor);
        let request = request.replace("TRANSACTION", &transaction).replace("OID", &oid);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{request}");
        let mut socket = UnixStream::connect(&daemon.socket).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // It reads one answer and closes, which is said here so that the answer can be read to its end.
        socket
            .write_all(request.replacen("host: dray", "host: dray\r\nconnection: close", 1).as_bytes())
            .unwrap();
        let answer = dray_e2e::daemon::answer_of(&mut socket);
        let found = answer.json();
        assert_eq!(answer.status, *status, "{request}: {found}");
        assert!(fields.iter().all(|field| found.get(field).is_some()), "{request}: {found}");
        for (field, kept) in [("transaction", &mut transaction), ("ticket", &mut ticket), ("oid", &mut oid)] {
            if let Some(text) = found[field].as_str() {
                *kept = text.to_owned();
            }
        }
    }
    let listed = daemon.ask("GET /v1/shares", b"").1;
    assert_eq!(listed["shares"][0]["path"], file.to_str().unwrap(), "the other was ended: {listed}");
    daemon.stop();

    // The other way round.
    a.configure("api_without = [\"put-at-once\"]\n");
    let daemon = Daemon::start(a);
    let wish = json!({"descriptor": daemon.hand_over(&File::open(&file).unwrap()).unwrap(), "pin": true});
    let missing = daemon.ask("POST /v1/shares", wish.to_string().as_bytes());
    assert_eq!((missing.0, &missing.1["kind"]), (501, &"unsupported".into()), "{}", missing.1);
    let ticket = put(a, &file);
    let got = b.dray().args(["get", &ticket, "-o", "-"]).run().expect(0);
    assert_eq!(got.stdout_text(), "bytes of a file");
    a.dray().args(["done", &ticket]).run().expect(0);
    daemon.stop();
}

/// D9, "put by descriptor" in one request: as durable as the longer way, bound to a session or pinned, and undone with its connection.
#[test]
fn a_put_at_once() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    fs::write(&file, "bytes of a file").unwrap();
    let daemon = Daemon::start(host);
    let share = |wish: &Value, path: &Path| {
        let mut wish = wish.clone();
        wish["descriptor"] = daemon.hand_over(&File::open(path).unwrap()).unwrap().into();
        daemon.ask("POST /v1/shares", wish.to_string().as_bytes())
    };
    let (status, shared) = share(&json!({"pin": true}), &file);
    assert_eq!(status, 200, "{shared}");
    assert_eq!(shared["oid"], format!("blake3:{}", data::b3sum(&file)));
    assert_eq!(shared["ticket"], put(host, &file), "the same as by the command");
    for (wish, status) in [
        (json!({}), 400),
        (json!({"session": "session-00"}), 404),
        (json!({"pin": true, "pinn": true}), 400),
        (json!({"pin": true, "public": true}), 403),
    ] {
        let (found, problem) = share(&wish, &file);
        assert_eq!(found, status, "{wish}: {problem}");
    }
    assert_eq!(daemon.ask("POST /v1/shares", b"{\"pin\":true}").0, 400, "no descriptor");
    let other = host.file("other");
    fs::write(&other, "other bytes").unwrap();
    let (stream, session) = daemon.session();
    assert_eq!(share(&json!({"session": session}), &other).0, 200);
    let listed = daemon.ask("GET /v1/shares", b"").1;
    let of_session = |listed: &Value| {
        let lines = listed["shares"].as_array().unwrap();
        lines.iter().filter(|line| line["sessions"] == 1).count()
    };
    assert_eq!(of_session(&listed), 1, "{listed}");
    drop(stream);
    await_that("it ends with its session", || of_session(&daemon.ask("GET /v1/shares", b"").1) == 0);

    // Killed while the daemon hashes: nothing is shared. The command takes the longer way for so large a file; by hand it is at once.
    let sparse = host.file("sparse");
    File::create(&sparse).unwrap().set_len(64 << 30).unwrap();
    let before = daemon.ask("GET /v1", b"").1["shares"].clone();
    let wish = json!({"pin": true, "descriptor": daemon.hand_over(&File::open(&sparse).unwrap()).unwrap()});
    let (mut watching, _) = daemon.session();
    let body = wish.to_string();
    let mut leaving = UnixStream::connect(&daemon.socket).unwrap();
    let head = format!("POST /v1/shares HTTP/1.1\r\nhost: d\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    leaving.write_all(head.as_bytes()).unwrap();
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("event: hashing") {
        let mut bytes = [0; 512];
        let read = watching.read(&mut bytes).unwrap();
        assert!(read > 0);
        heard.extend_from_slice(&bytes[..read]);
    }
    drop(leaving);
    await_that("hashing ends", || data::names(&host.data_dir().join("store/tmp")).is_empty());
    assert_eq!(daemon.ask("GET /v1", b"").1["shares"], before);
    daemon.stop();
}
