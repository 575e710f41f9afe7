//! Fetching through the daemon's API: piece by piece in either order, through a descriptor, into a directory, and what is left
//! when the client or the daemon is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;

use dray_client::aio::AsyncSession;
use dray_client::types::Mode;
use dray_client::{Client, Event, GetOptions, Piece, PutOptions, Session};
use dray_core::ErrorKind;
use dray_core::ticket::Ticket;
use dray_e2e::actions::assert_alone;
use dray_e2e::daemon::{Daemon, await_that, event, put};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, gate};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Asks for pieces of at most `size` bytes until the last; offset and bytes of each.
fn pieces(daemon: &Daemon, get: &str, size: u64, total: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let number = found.len();
        let answer = daemon.fetch(&format!("GET /v1/gets/{get}/data?size={size}&piece={number}"), b"");
        if answer.status == 204 {
            return found;
        }
        let [first, last, whole] =
            answer.range().unwrap_or_else(|| panic!("{}: {:?}", answer.head, answer.json()));
        assert_eq!((answer.status, whole, last + 1 - first), (206, total, answer.body.len() as u64));
        assert!(answer.body.len() as u64 <= size && !answer.body.is_empty());
        found.push((first, answer.body));
    }
}

/// A file of random bytes on `host`, put by its daemon: the bytes and the ticket.
fn shared(host: &Host, name: &str, size_bytes: u64, seed: u64) -> (Vec<u8>, String) {
    let file = host.file(name);
    data::write_random(&file, size_bytes, seed);
    (fs::read(&file).unwrap(), put(host, &file))
}

/// D11, D12, "Table 1 exercised": by hand, in pieces of any size, offsets increase strictly in sequential mode, bodies are
/// bounded, the last piece is told again when its answer was lost, a part of the object can be asked for, and 204 says
/// that there is no more. Out of order each byte comes once.
#[test]
fn the_get_calls_by_hand() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let total = 5 * MIB + 777;
    let (bytes, ticket) = shared(a, "file", total, 1);
    let (stream, session) = daemon.session();
    let begin = |more: Value| {
        let mut wish = json!({"session": session, "ticket": ticket});
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        daemon.transaction("/v1/gets", &wish)
    };

    for size in [700_001, 50_000_000] {
        let get = begin(json!({}));
        let found = pieces(&daemon, &get, size.min(MIB), total);
        let number = found.len();
        let mut next = 0;
        for (offset, piece) in &found {
            assert_eq!(*offset, next, "offsets increase without a gap");
            next += piece.len() as u64;
        }
        assert_eq!(found.into_iter().flat_map(|(_, piece)| piece).collect::<Vec<u8>>(), bytes);
        // The end is told again, should the answer have been lost.
        for query in ["".to_owned(), format!("?piece={number}")] {
            assert_eq!(daemon.ask(&format!("GET /v1/gets/{get}/data{query}"), b"").0, 204);
        }
    }

    let get = begin(json!({"mode": "out-of-order"}));
    let mut found = pieces(&daemon, &get, MIB, total);
    found.sort();
    let mut next = 0;
    for (offset, piece) in &found {
        assert_eq!(*offset, next, "each byte comes once");
        next += piece.len() as u64;
    }
    assert_eq!(found.into_iter().flat_map(|(_, piece)| piece).collect::<Vec<u8>>(), bytes);

    // A part, in either order; the first piece twice.
    for mode in ["sequential", "out-of-order"] {
        let (from, to) = (MIB + 5, 3 * MIB + 70_000);
        let get = begin(json!({"from": from, "to": to, "mode": mode}));
        let first = daemon.fetch(&format!("GET /v1/gets/{get}/data?size=1000&piece=0"), b"");
        let again = daemon.fetch(&format!("GET /v1/gets/{get}/data?size=5&piece=0"), b"");
        assert_eq!((first.range(), &first.body), (again.range(), &again.body));
        let wrong = daemon.ask(&format!("GET /v1/gets/{get}/data?piece=7"), b"");
        assert_eq!((wrong.0, &wrong.1["kind"]), (400, &"usage".into()), "{}", wrong.1);
        let mut found = vec![(first.range().unwrap()[0], first.body)];
        loop {
            let answer = daemon.fetch(&format!("GET /v1/gets/{get}/data"), b"");
            if answer.status == 204 {
                break;
            }
            found.push((answer.range().unwrap()[0], answer.body));
        }
        found.sort();
        assert_eq!(found[0].0, from, "{mode}");
        let joined: Vec<u8> = found.into_iter().flat_map(|(_, piece)| piece).collect();
        assert_eq!(joined, bytes[from as usize..to as usize], "{mode}");
    }

    // Nothing is nothing, and so is the end of it.
    let (_, empty) = shared(a, "empty", 0, 1);
    for wish in [json!({"ticket": empty}), json!({"ticket": ticket, "from": total})] {
        let mut wish = wish;
        wish["session"] = session.clone().into();
        let get = daemon.transaction("/v1/gets", &wish);
        assert_eq!(daemon.fetch(&format!("GET /v1/gets/{get}/data"), b"").status, 204, "{wish}");
    }

    let read_only = daemon.hand_over(&File::open(a.file("file")).unwrap()).unwrap();
    let opened = File::open(b.directory("in")).unwrap();
    let folder = || daemon.hand_over(&opened).unwrap();
    for (wish, status) in [
        (json!({"session": session}), 400),
        (json!({"session": session, "ticket": "dray:xx"}), 400),
        (json!({"session": "session-00", "ticket": ticket}), 404),
        (json!({"session": session, "ticket": ticket, "mode": "random"}), 400),
        (json!({"session": session, "ticket": ticket, "name": "x"}), 400),
        (json!({"session": session, "ticket": ticket, "descriptor": read_only}), 400),
        (json!({"session": session, "ticket": ticket, "descriptor": folder(), "name": "../x"}), 400),
        (json!({"session": session, "ticket": ticket, "descriptor": folder(), "name": ".."}), 400),
        (json!({"session": session, "ticket": ticket, "descriptor": folder(), "from": 5}), 400),
    ] {
        let (found, problem) = daemon.ask("POST /v1/gets", wish.to_string().as_bytes());
        assert_eq!(found, status, "{wish}: {problem}");
    }
    // Beyond the end; and what nobody has any more: the error is the transfer's.
    let beyond = begin(json!({"from": total + 1}));
    assert_eq!(daemon.ask(&format!("GET /v1/gets/{beyond}/data"), b"").0, 400);
    a.dray().args(["done", &ticket]).run().expect(0);
    let gone = begin(json!({"whole_file": true}));
    let (status, problem) = daemon.ask(&format!("GET /v1/gets/{gone}/data"), b"");
    assert_eq!((status, &problem["kind"]), (403, &"refused".into()), "{problem}");
    assert_eq!(daemon.transactions().len(), 0);
    drop(stream);
    holder.stop();
    daemon.stop();
}

/// D12: "OOO returns first bytes sooner when chunk 0 is on the slow source". The slow source is asked first, for the first
/// bytes, and then frozen. Out of order, megabytes of the others are handed on meanwhile; in order, they wait in the daemon.
#[test]
fn out_of_order_does_not_wait_for_a_slow_source() {
    let Some(lab) = Lab::of(3).build() else { return };
    let (slow, fast, b) = (lab.host(0), lab.host(1), lab.host(2));
    slow.limit_sending(1);
    fast.limit_sending(60);
    let total = 24 * MIB;
    let (bytes, ticket) = shared_by_two(slow, fast, total);
    let daemon = Daemon::start(b);
    for mode in ["out-of-order", "sequential"] {
        let (holder, other) = (Daemon::start(slow), Daemon::start(fast));
        // Comes up after the slow one was asked.
        other.process.signal(Signal::STOP);
        let (_stream, session) = daemon.session();
        let wish = json!({"session": session, "ticket": ticket, "mode": mode, "whole_file": true});
        let get = daemon.transaction("/v1/gets", &wish);
        holder.process.line_with(|line| event(line) == "serving");
        holder.process.signal(Signal::STOP);
        other.process.signal(Signal::CONT);
        // Bytes handed on in order, bytes handed on before their turn, and what the daemon had when 2 MiB were handed on.
        let mut had: Vec<(u64, Vec<u8>)> = Vec::new();
        let (mut handed, mut ahead_most, mut fetched) = (0, 0, None);
        loop {
            let answer = daemon.fetch(&format!("GET /v1/gets/{get}/data"), b"");
            if answer.status == 204 {
                break;
            }
            let range = answer.range().unwrap_or_else(|| panic!("{}: {:?}", answer.head, answer.json()));
            handed += answer.body.len() as u64;
            had.push((range[0], answer.body));
            had.sort();
            let mut prefix = 0;
            for (offset, piece) in &had {
                prefix += if *offset == prefix { piece.len() as u64 } else { 0 };
            }
            ahead_most = ahead_most.max(handed - prefix);
            if handed >= 2 * MIB {
                let open = daemon.transactions();
                let done = open.first().and_then(|get| get["done_bytes"].as_u64());
                fetched.get_or_insert(done.unwrap_or(total));
            }
        }
        match mode {
            "sequential" => assert!(ahead_most == 0 && fetched >= Some(8 * MIB), "{fetched:?} {ahead_most}"),
            _ => assert!(ahead_most >= 4 * MIB && fetched < Some(8 * MIB), "{fetched:?} {ahead_most}"),
        }
        assert!(had.into_iter().flat_map(|(_, piece)| piece).eq(bytes.iter().copied()));
        holder.process.signal(Signal::CONT);
        holder.stop();
        other.stop();
    }
    daemon.stop();
}

/// The same file shared by two daemons, in one ticket.
fn shared_by_two(a: &Host, b: &Host, size_bytes: u64) -> (Vec<u8>, String) {
    let (one, two) = (Daemon::start(a), Daemon::start(b));
    let (bytes, ticket) = shared(a, "file", size_bytes, 9);
    let file = b.file("file");
    fs::write(&file, &bytes).unwrap();
    let joined = b.dray().arg("put").arg(&file).args(["--ticket", &ticket]).run().expect(0);
    one.stop();
    two.stop();
    (bytes, joined.stdout_text().trim().to_owned())
}

/// D9 on the way in, design 13, "a get may pass the destination's descriptor": through a pipe and into a file where it stands; into a
/// directory under a name, where a link is replaced and nothing outside touched; under the sender's name, where nothing is
/// replaced. No data crosses the API.
#[test]
fn a_get_goes_where_its_descriptor_leads() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let total = 9 * MIB + 1;
    let (bytes, ticket) = shared(a, "file", total, 2);
    let (stream, session) = daemon.session();
    let get = |file: &File, more: Value| {
        let descriptor = daemon.hand_over(file).unwrap();
        let mut wish = json!({"session": session, "ticket": ticket, "descriptor": descriptor});
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let get = daemon.transaction("/v1/gets", &wish);
        daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}")
    };

    let (mut reader, writer) = std::io::pipe().unwrap();
    let reading = std::thread::spawn(move || {
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        heard
    });
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let (status, fetched) = get(&writer, json!({"from": 10}));
    drop(writer);
    assert_eq!((status, &fetched["size_bytes"]), (200, &total.into()), "{fetched}");
    assert_eq!(reading.join().unwrap(), bytes[10..]);

    let path = b.file("appended");
    fs::write(&path, b"before ").unwrap();
    let (status, fetched) = get(&File::options().append(true).open(&path).unwrap(), json!({}));
    assert_eq!(status, 200, "{fetched}");
    assert_eq!(fs::read(&path).unwrap(), [b"before ", &bytes[..]].concat());

    let outside = b.file("outside");
    fs::write(&outside, b"others").unwrap();
    let folder = b.directory("in");
    std::os::unix::fs::symlink(&outside, folder.join("copy")).unwrap();
    let opened = File::open(&folder).unwrap();
    let (status, fetched) = get(&opened, json!({"name": "copy", "whole_file": true}));
    assert_eq!((status, &fetched["name"]), (200, &"copy".into()), "{fetched}");
    assert!(!folder.join("copy").is_symlink() && fs::read(folder.join("copy")).unwrap() == bytes);
    assert_eq!(fs::read(&outside).unwrap(), b"others");
    assert_alone(&folder.join("copy"));

    let (status, fetched) = get(&opened, json!({}));
    assert_eq!((status, &fetched["name"]), (200, &"file".into()), "{fetched}");
    let (status, problem) = get(&opened, json!({}));
    assert_eq!((status, &problem["kind"]), (403, &"refused".into()), "{problem}");

    // The directory is the one that was handed over, whatever has its name by now.
    let moved = b.directory("moved");
    let opened = File::open(&moved).unwrap();
    fs::rename(&moved, b.file("elsewhere")).unwrap();
    let (status, fetched) = get(&opened, json!({"name": "copy"}));
    assert_eq!(status, 200, "{fetched}");
    assert_eq!(fs::read(b.file("elsewhere").join("copy")).unwrap(), bytes);
    assert!(!moved.exists());
    drop(stream);
    holder.stop();
    daemon.stop();
}

/// Issue, "kill -9 of a client, of the daemon in mid-get": the transaction is freed, what came is kept beside the destination, no file
/// under its name; the same wish again goes on, in the same daemon or the next one, and what came piece by piece goes on where the
/// client says.
#[test]
fn a_killed_get_goes_on() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let total = 48 * MIB;
    let (bytes, ticket) = shared(a, "file", total, 3);
    let folder = b.directory("in");
    let opened = File::open(&folder).unwrap();
    let begin = |daemon: &Daemon, session: &str| {
        let descriptor = daemon.hand_over(&opened).unwrap();
        let wish = json!({"session": session, "ticket": ticket, "descriptor": descriptor, "name": "copy"});
        daemon.transaction("/v1/gets", &wish)
    };

    // The end of a session is all that the daemon hears of a client that was killed.
    let (stream, session) = daemon.session();
    begin(&daemon, &session);
    await_that("some has come", || data::unfinished_bytes(&folder) > 8 * MIB);
    drop(stream);
    await_that("the transaction is freed", || daemon.transactions().is_empty());
    assert!(!folder.join("copy").exists());

    let (_stream, session) = daemon.session();
    begin(&daemon, &session);
    await_that("more has come", || data::unfinished_bytes(&folder) > 20 * MIB);
    let piece_wise = daemon.transaction("/v1/gets", &json!({"session": session, "ticket": ticket}));
    let mut had = Vec::new();
    while had.len() < 3_000_000 {
        had.extend(daemon.fetch(&format!("GET /v1/gets/{piece_wise}/data?size=500000"), b"").body);
    }
    daemon.process.kill();
    assert!(!folder.join("copy").exists());

    let daemon = Daemon::start(b);
    let (_stream, session) = daemon.session();
    let get = begin(&daemon, &session);
    let (status, fetched) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
    assert_eq!(status, 200, "{fetched}");
    assert!(fetched["resumed_bytes"].as_u64().unwrap() > 19 * MIB, "{fetched}");
    assert!(fs::read(folder.join("copy")).unwrap() == bytes);
    assert_alone(&folder.join("copy"));
    let wish = json!({"session": session, "ticket": ticket, "from": had.len()});
    let rest = daemon.transaction("/v1/gets", &wish);
    had.extend(pieces(&daemon, &rest, MIB, total).into_iter().flat_map(|(_, piece)| piece));
    assert!(had == bytes);
    assert_eq!(ticket.parse::<Ticket>().unwrap().oid.hex(), data::b3sum(&folder.join("copy")));
    holder.stop();
    daemon.stop();
}

/// Issue 4, "events with a checked schema": an event is one that docs/api.md lists, with the fields that it has there.
#[track_caller]
fn check_event(event: &Event) {
    let page = fs::read_to_string(gate::project_file("docs/api.md")).unwrap();
    let table = page.split("| event | fields | says |").nth(1).unwrap();
    let quoted =
        |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = table.lines().take_while(|line| line.is_empty() || line.starts_with('|'));
    let cells: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
    let row = cells.iter().find(|row| quoted(row[0]).contains(&event.name));
    let row = row.unwrap_or_else(|| panic!("docs/api.md has no {event:?}"));
    let always = quoted(row[1].split("sometimes").next().unwrap().split("and for").next().unwrap());
    let fields: Vec<&String> = event.data.as_object().unwrap().keys().collect();
    assert!(fields.iter().all(|field| quoted(row[1]).contains(field)), "{event:?}: {row:?}");
    assert!(always.iter().all(|field| fields.contains(&field)), "{event:?}: {row:?}");
}

/// Issue 4: figures for Prometheus where the configuration says, and nothing else there; what a get had, and from where; and
/// what a running get waits for, as `dray explain` has it.
#[test]
fn figures_are_told() {
    let Some(lab) = Lab::of(2).rate_mbit(50).build() else { return };
    let (a, b) = lab.pair();
    b.configure("metrics = \"127.0.0.1:9464\"\n");
    // Somebody else has the address: that costs the figures, as long as it is so, and nothing else.
    let taken = b.enter(|| TcpListener::bind("127.0.0.1:9464").unwrap());
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let warnings = || daemon.ask("GET /v1", b"").1["warnings"].clone();
    assert!(warnings()[0].as_str().unwrap().contains("127.0.0.1:9464"), "{}", warnings());
    drop(taken);
    daemon.process.signal(Signal::HUP);
    await_that("the address is the daemon's", || warnings() == json!([]));
    let total = 20 * MIB;
    let (_, ticket) = shared(a, "file", total, 5);
    let (_stream, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(b.directory("in")).unwrap()).unwrap();
    let wish = json!({"session": session, "ticket": ticket, "descriptor": descriptor, "name": "copy"});
    let get = daemon.transaction("/v1/gets", &wish);
    let mut seen = Value::Null;
    await_that("the get is explained", || {
        seen = daemon.ask("GET /v1/explain", b"").1["transfers"][0].clone();
        seen["sources"][0]["standing"] == "up"
    });
    assert_eq!((&seen["size_bytes"], &seen["pid"]), (&total.into(), &daemon.process.pid().into()), "{seen}");
    assert_eq!(daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}").0, 200);
    let scrape = |path: &str| {
        let curl =
            b.program("curl").args(["--silent", &format!("http://127.0.0.1:9464{path}")]).run().expect(0);
        curl.stdout_text()
    };
    let page = scrape("/metrics");
    for line in [
        format!("dray_received_bytes_total{{source=\"direct\"}} {total}"),
        "dray_gets_total{outcome=\"done\"} 1".into(),
        "dray_transactions{kind=\"get\"} 0".into(),
        "dray_sessions 1".into(),
        "dray_sources_barred_total 0".into(),
        "dray_verification_failures_total 0".into(),
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    assert!(page.lines().all(|line| line.starts_with("# ") || line.starts_with("dray_")), "{page}");
    assert_eq!(scrape("/v1").trim_end(), "GET /metrics");
    assert!(!page.contains("10.") && !page.contains("copy"), "{page}");
    holder.stop();
    daemon.stop();
}

/// Issue 4, "stalls": a source that owes data and is silent is counted as one, and the get goes on when it does.
#[test]
fn a_frozen_source_is_counted() {
    let Some(lab) = Lab::of(2).rate_mbit(20).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let (bytes, ticket) = shared(a, "file", 20 * MIB, 5);
    let (_stream, session) = daemon.session();
    let into = b.directory("in");
    let descriptor = daemon.hand_over(&File::open(&into).unwrap()).unwrap();
    let wish = json!({"session": session, "ticket": ticket, "descriptor": descriptor, "name": "copy"});
    let get = daemon.transaction("/v1/gets", &wish);
    let stalls = || {
        let page = String::from_utf8(daemon.fetch("GET /v1/metrics", b"").body).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("dray_stalls_total{source=\"direct\"} "));
        line.and_then(|count| count.parse::<u64>().ok())
    };
    await_that("bytes come", || stalls() == Some(0));
    holder.process.signal(Signal::STOP);
    await_that("its silence is counted", || stalls() >= Some(1));
    holder.process.signal(Signal::CONT);
    let (status, got) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
    assert_eq!(status, 200, "{got}");
    assert!(fs::read(into.join("copy")).unwrap() == bytes);
    holder.stop();
    daemon.stop();
}

/// Issue 4: each figure of the metrics is one that docs/operating.md explains.
#[test]
fn every_figure_is_explained() {
    let Some(lab) = Lab::of(1).build() else { return };
    let daemon = Daemon::start(lab.host(0));
    let page = String::from_utf8(daemon.fetch("GET /v1/metrics", b"").body).unwrap();
    daemon.stop();
    let explained = fs::read_to_string(gate::project_file("docs/operating.md")).unwrap();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE dray_")?.split(' ').next());
    let figures: Vec<&str> = types.collect();
    assert!(figures.len() > 20, "{page}");
    for figure in figures {
        let is_explained = ["`", "{"].iter().any(|end| explained.contains(&format!("`{figure}{end}")));
        assert!(is_explained, "docs/operating.md does not say what {figure} is");
    }
}

/// D6-D12, D35: the client in Rust does the same: what is put in pieces is read in order, as it comes, through a pipe and into a
/// directory; errors keep their kind; nobody listening is no error but no client.
#[test]
fn the_client_puts_and_gets() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    assert!(Client::connect_to(&b.dir().join("run/dray/daemon.sock")).unwrap().is_none());
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let (near, far) =
        [&holder, &daemon].map(|daemon| Client::connect_to(&daemon.socket).unwrap().unwrap()).into();
    let session = Session::open(&near, |_| {}).unwrap();
    let bytes = data::random_bytes(3_300_001, 4);
    let mut put =
        session.put(&PutOptions { name: Some("odd\u{e9}".into()), ..PutOptions::default() }).unwrap();
    bytes.chunks(700_000).for_each(|piece| put.write(piece).unwrap());
    let shared = put.commit().unwrap();
    assert_eq!(shared.size_bytes, bytes.len() as u64);

    let (sender, events) = std::sync::mpsc::channel();
    let receiving = Session::open(&far, move |event| drop(sender.send(event))).unwrap();
    let mut heard = Vec::new();
    receiving.get(&shared.ticket, &GetOptions::default()).unwrap().read_to_end(&mut heard).unwrap();
    assert!(heard == bytes);
    let mut told = Vec::new();
    for event in &events {
        let is_last = event.name == "got";
        told.push(event);
        if is_last {
            break;
        }
    }
    assert_eq!(told.last().unwrap().data["size_bytes"], bytes.len());
    assert!(told.iter().any(|event| event.name == "source-up"), "{told:?}");
    told.iter().for_each(check_event);

    let options =
        GetOptions { mode: Mode::OutOfOrder, from: Some(5), to: Some(2_000_000), ..GetOptions::default() };
    let mut get = receiving.get(&shared.ticket, &options).unwrap();
    let mut pieces: Vec<Piece> = std::iter::from_fn(|| get.piece().unwrap()).collect();
    pieces.sort_by_key(|piece| piece.offset);
    assert_eq!(pieces[0].size_bytes, bytes.len() as u64);
    assert!(pieces.into_iter().flat_map(|piece| piece.bytes).eq(bytes[5..2_000_000].iter().copied()));

    let out = b.file("out");
    let fetched = receiving.get_through(&shared.ticket, File::create(&out).unwrap(), &GetOptions::default());
    assert_eq!(fetched.unwrap().oid, shared.oid);
    assert!(fs::read(&out).unwrap() == bytes);
    let folder = b.directory("in");
    let opened = File::open(&folder).unwrap();
    let fetched = receiving.get_into(&shared.ticket, &opened, None, &GetOptions::default()).unwrap();
    assert_eq!(fetched.name.as_deref(), Some("odd\u{e9}"));
    assert!(fs::read(folder.join("odd\u{e9}")).unwrap() == bytes);
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(&b"\xff"[..]);
    receiving.get_into(&shared.ticket, &opened, Some(odd), &GetOptions::default()).unwrap();
    assert!(fs::read(folder.join(odd)).unwrap() == bytes);

    // Without a pin it ends with its session's wish; the holder refuses, and the kind arrives here.
    near.done(&shared.oid.parse().unwrap()).unwrap();
    let options = GetOptions { whole_file: true, ..GetOptions::default() };
    let refused = receiving.get_into(&shared.ticket, &opened, None, &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    let slip = receiving.get("neither", &GetOptions::default()).unwrap_err();
    assert_eq!(slip.kind(), ErrorKind::Usage, "{slip}");
    drop((session, receiving));
    holder.stop();
    daemon.stop();
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Issue 3, "async read and write, progress stream", on an executor that knows nothing of us.
#[test]
fn the_async_client_puts_and_gets() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (holder, daemon) = (Daemon::start(a), Daemon::start(b));
    let [near, far] = [&holder, &daemon].map(|daemon| Client::connect_to(&daemon.socket).unwrap().unwrap());
    let bytes = data::random_bytes(2_100_000, 4);
    block_on(async {
        let session = AsyncSession::open(&near).await.unwrap();
        let mut put = session.put(PutOptions::default()).await.unwrap();
        for piece in bytes.chunks(900_000) {
            put.write(piece.to_vec()).await.unwrap();
        }
        let shared = put.commit().await.unwrap();
        let receiving = AsyncSession::open(&far).await.unwrap();
        let mut get = receiving.get(&shared.ticket, GetOptions::default()).await.unwrap();
        let mut heard = Vec::new();
        while let Some(piece) = get.piece().await.unwrap() {
            assert_eq!(piece.offset, heard.len() as u64);
            heard.extend(piece.bytes);
        }
        assert!(heard == bytes);
        let mut last = None;
        while let Some(event) = receiving.event().await {
            check_event(&event);
            if event.name == "got" {
                break;
            }
            last = Some(event).filter(|event| event.name == "progress").or(last);
        }
        assert_eq!(last.unwrap().data["done_bytes"], bytes.len());
        let slip = receiving.get("neither", GetOptions::default()).await.unwrap_err();
        assert_eq!(slip.kind(), ErrorKind::Usage);
        // The daemon ends: so does the stream, and what is asked after that has an error.
        daemon.stop();
        while receiving.event().await.is_some() {}
        assert!(receiving.put(PutOptions::default()).await.is_err());
    });
    holder.stop();
}

/// D37, "one feature apart": a client and a daemon that has one feature less, as an older one has, work with what both have, or the
/// missing part is named; what a client does not know of an answer is left aside, what a daemon does not know of a wish is refused.
#[test]
fn one_feature_apart() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let config = host.home().join(".config/dray/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let file = host.file("file");
    data::write_random(&file, 1_200_000, 6);
    let daemon_without = |names: &str| {
        fs::write(&config, format!("api_without = [{names}]\n")).unwrap();
        Daemon::start(host)
    };

    // Without descriptors the bytes are sent: the ticket is as good, and the daemon has a copy of its own.
    let daemon = daemon_without("\"put-descriptor\", \"get-descriptor\"");
    let ticket: Ticket = put(host, &file).parse().unwrap();
    assert_eq!(ticket.oid.hex(), data::b3sum(&file));
    assert_eq!(daemon.ask("GET /v1/shares", b"").1["shares"][0]["path"], Value::Null);
    let client = Client::connect_to(&daemon.socket).unwrap().unwrap();
    let session = Session::open(&client, |_| {}).unwrap();
    let mut heard = Vec::new();
    session.get(&ticket.to_text().unwrap(), &GetOptions::default()).unwrap().read_to_end(&mut heard).unwrap();
    assert!(heard == fs::read(&file).unwrap());
    let out = File::create(host.file("out")).unwrap();
    let missing = session.get_through(&ticket.to_text().unwrap(), &out, &GetOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unsupported);
    assert!(missing.to_string().contains("get-descriptor"), "{missing}");
    drop(session);
    daemon.stop();

    // Without both, the command says what is missing and what to do; by itself it serves as ever.
    let daemon = daemon_without("\"put\", \"put-descriptor\", \"put-at-once\"");
    let outcome = host.dray().arg("put").arg(&file).run();
    assert_ne!(outcome.code(), Some(0));
    assert!(outcome.stderr_text().contains("put"), "{outcome}");
    let features = daemon.ask("GET /v1", b"").1["features"].clone();
    let others = ["get", "get-descriptor", "shares", "directories", "explain", "metrics", "index"];
    assert_eq!(features, json!(others));
    // An older client asks for nothing by name and sends no field that is new. A newer one may send more, and hears of it.
    let (_stream, session) = daemon.session();
    let mut wish = json!({"session": session, "ticket": ticket.to_text().unwrap()});
    let get = daemon.transaction("/v1/gets", &wish);
    wish["colour"] = json!([1, {"x": null}]);
    let (status, problem) = daemon.ask("POST /v1/gets", wish.to_string().as_bytes());
    assert_eq!((status, &problem["kind"]), (400, &"usage".into()), "{problem}");
    assert!(problem["what"].as_str().unwrap().contains("colour"), "{problem}");
    let found = pieces(&daemon, &get, MIB, 1_200_000);
    assert_eq!(found.iter().map(|(_, piece)| piece.len()).sum::<usize>(), 1_200_000);
    let (status, problem) = daemon.ask("POST /v1/puts", b"{}");
    assert_eq!((status, &problem["kind"]), (501, &"unsupported".into()), "{problem}");
    daemon.stop();
}
