//! What the daemon keeps and what it drops: whose the bytes are, who is using them, and what else on the machine wants the room, the
//! file or the lock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use dray_core::ticket::Ticket;
use dray_e2e::actions;
use dray_e2e::daemon::{Daemon, await_that, put, read_bytes};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Puts `content` by hand, without a pin; the session ends with the answer.
fn put_cached(daemon: &Daemon, content: &[u8]) -> Value {
    let sessions = || daemon.ask("GET /v1", b"").1["sessions"].clone();
    let before = sessions();
    let (stream, session) = daemon.session();
    let transaction = daemon.begin(&session);
    for piece in content.chunks(MIB as usize) {
        let (status, written) = daemon.ask(&format!("POST /v1/puts/{transaction}/data"), piece);
        assert_eq!(status, 200, "{written}");
    }
    let (status, shared) = daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}");
    assert_eq!(status, 200, "{shared}");
    // It is cache once the daemon has seen the session end.
    drop(stream);
    await_that("the session ends", || sessions() == before);
    shared
}

fn oid(shared: &Value) -> String {
    shared["oid"].as_str().unwrap().to_owned()
}

/// The folder of an object in the data directory of `host`.
fn folder(host: &Host, oid: &str) -> PathBuf {
    let hash = oid.trim_start_matches("blake3:");
    host.data_dir().join("store/objects").join(&hash[..2]).join(hash)
}

fn shared(daemon: &Daemon) -> Vec<String> {
    let found = daemon.ask("GET /v1/shares", b"").1;
    found["shares"].as_array().unwrap().iter().map(oid).collect()
}

/// Design 11, D13: bytes that a command took in are nowhere else, and stay although a program has put the same ones and the cache is
/// full: those that were there before the program's, and those that came after.
#[test]
fn bytes_that_a_command_put_stay() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    host.configure("cache_mib = 0\n");
    let (before, after) = (data::random_bytes(700_000, 1), data::random_bytes(700_000, 2));
    let put_stdin = |bytes: &[u8]| {
        let input = host.file("input");
        fs::write(&input, bytes).unwrap();
        let put = host.dray().args(["put", "--foreground", "-"]).input_file(&input).start();
        let share = actions::Share::of(put);
        let oid = share.parsed().oid.to_string();
        share.end();
        oid
    };
    let first = put_stdin(&before);
    let daemon = Daemon::start(host);
    let second = {
        let (_stream, session) = daemon.session();
        for content in [&before, &after] {
            let transaction = daemon.begin(&session);
            assert_eq!(daemon.ask(&format!("POST /v1/puts/{transaction}/data"), content).0, 200);
            assert_eq!(daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}").0, 200);
        }
        put_stdin(&after)
    };
    let third = oid(&put_cached(&daemon, &data::random_bytes(700_000, 3)));
    await_that("the cache is empty", || shared(&daemon).is_empty() && !folder(host, &third).exists());
    for (oid, bytes) in [(first, before), (second, after)] {
        assert!(fs::read(folder(host, &oid).join("data")).is_ok_and(|kept| kept == bytes), "{oid}");
    }
    daemon.stop();
}

/// D13: what is sent is not dropped until it is. What was used last is dropped last.
#[test]
fn what_is_sent_is_not_dropped() {
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    a.configure("cache_mib = 12\n");
    let daemon = Daemon::start(a);
    let content = [1, 2, 3].map(|seed| data::random_bytes(5 * MIB as usize, seed));
    let sent = put_cached(&daemon, &content[0]);
    let other = oid(&put_cached(&daemon, &content[1]));
    let dir = b.directory("in");
    let get = actions::get(b, sent["ticket"].as_str().unwrap(), &dir.join("copy")).start();
    await_that("some has come", || data::unfinished_bytes(&dir) > MIB);
    get.signal(Signal::STOP);
    // Put first, used last.
    put_cached(&daemon, &content[2]);
    // First from the list, then from the disk.
    await_that("one is dropped", || !folder(a, &other).exists());
    assert!(shared(&daemon).len() == 2 && folder(a, &oid(&sent)).exists());
    // No room for any, and yet.
    a.configure("cache_mib = 0\n");
    daemon.process.signal(Signal::HUP);
    await_that("what is not sent is dropped", || shared(&daemon) == [oid(&sent)]);
    get.signal(Signal::CONT);
    get.wait().expect(0);
    assert!(fs::read(dir.join("copy")).unwrap() == content[0]);
    await_that("then it is, too", || !folder(a, &oid(&sent)).exists());
    daemon.stop();
}

/// Design 11: a file of the user is open as long as somebody fetches it. Then it is given back when it is removed, and so is a stick.
#[test]
fn files_are_given_back() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, 3 * MIB, 1);
    let daemon = Daemon::start(a);
    let ticket = put(a, &file);
    actions::get(b, &ticket, &b.directory("in").join("copy")).run().expect(0);
    let is_open = || {
        let open = fs::read_dir(format!("/proc/{}/fd", daemon.process.pid())).unwrap();
        open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(&file)))
    };
    await_that("the file is closed", || !is_open());
    actions::get(b, &ticket, &b.directory("again").join("copy")).arg("-W").run().expect(0);
    // A program's share of a file ends with its session: nobody is left who could end it.
    let temporary = a.file("temporary");
    data::write_random(&temporary, MIB, 2);
    let (stream, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(&temporary).unwrap()).unwrap();
    let transaction = daemon.transaction("/v1/puts", &json!({"session": session, "descriptor": descriptor}));
    assert_eq!(daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}").0, 200);
    assert_eq!(shared(&daemon).len(), 2);
    drop(stream);
    await_that("the share ends", || shared(&daemon) == [ticket.parse::<Ticket>().unwrap().oid.to_string()]);
    daemon.stop();
}

/// Design 9: a process that holds a lock of the data directory, and is stopped, costs what must have that lock, after a while an error. All
/// else is answered, and the daemon ends when it is told to.
#[test]
fn a_held_lock_stops_no_other() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let daemon = Daemon::start(host);
    let oids = [1, 2].map(|seed| {
        let file = host.file(format!("file-{seed}"));
        data::write_random(&file, 10_000, seed);
        put(host, &file).parse::<Ticket>().unwrap().oid
    });
    let hold = |oid: &str| {
        let lock = File::open(folder(host, oid).parent().unwrap().join("lock")).unwrap();
        lock.lock().unwrap();
        lock
    };
    assert_ne!(oids[0].hex()[..2], oids[1].hex()[..2]);
    let record = || fs::metadata(folder(host, &oids[0].to_string()).join("record")).unwrap().len();
    let pinned_bytes = record();
    let held = hold(&oids[0].to_string());
    let done = host.dray().args(["done", &oids[0].to_string()]).start();
    await_that("it is not shared any more", || shared(&daemon) == [oids[1].to_string()]);
    assert_eq!(daemon.ask("GET /v1", b"").0, 200);
    put_cached(&daemon, b"others go on");
    assert!(!done.has_ended());
    let outcome = done.wait().expect(5);
    assert!(outcome.stderr_text().contains("lock"), "{outcome}");
    assert_eq!(record(), pinned_bytes);
    drop(held);
    await_that("it is written down later", || record() < pinned_bytes);

    let held = hold(&oids[1].to_string());
    let done = host.dray().args(["done", &oids[1].to_string()]).start();
    await_that("it is not shared any more", || !shared(&daemon).contains(&oids[1].to_string()));
    daemon.stop();
    done.wait();
    drop(held);
}

/// Mounts a file system of its own, which the lab unmounts.
fn mount(path: &Path, options: &str) {
    fs::create_dir_all(path).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).status();
    assert!(mounted.unwrap().success());
}

/// D10, D13: a cache is no reason for a full disk: it makes room for what is put and fetched, and where there is nothing to drop, the same
/// piece can be sent again later, and the same commit.
#[test]
fn a_full_disk_makes_room() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    mount(&a.data_dir(), "size=24m");
    let daemon = Daemon::start(a);
    let piece = |seed| data::random_bytes(9 * MIB as usize, seed);
    let oids = [1, 2].map(|seed| oid(&put_cached(&daemon, &piece(seed))));
    assert_eq!(shared(&daemon).len(), 2, "both are kept");
    let third = put_cached(&daemon, &piece(3));
    // The session of the second may have its end a moment later.
    assert!(!folder(a, &oids[0]).exists());

    // A get into a folder there.
    let file = b.file("file");
    data::write_random(&file, 18 * MIB, 4);
    let share = actions::share(b, &file);
    let into = a.data_dir().join("into");
    fs::create_dir(&into).unwrap();
    let (stream, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(&into).unwrap()).unwrap();
    let wish = json!({"session": session, "ticket": share.ticket, "descriptor": descriptor, "name": "copy"});
    let get = daemon.transaction("/v1/gets", &wish);
    let (status, got) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
    assert_eq!(status, 200, "{got}");
    data::assert_same(&file, &into.join("copy"));
    assert!(!folder(a, &oid(&third)).exists());

    // Nothing to drop: said so, and no byte of the transaction is lost.
    let put = daemon.begin(&session);
    let bytes = data::random_bytes(10 * MIB as usize, 5);
    let (mut offset, mut refusals) = (0, 0);
    for piece in bytes.chunks(MIB as usize) {
        let target = format!("POST /v1/puts/{put}/data?offset={offset}");
        let (status, problem) = daemon.ask(&target, piece);
        if status != 200 {
            assert_eq!((status, &problem["kind"]), (507, &"no-space".into()), "{problem}");
            refusals += 1;
            fs::remove_file(into.join("copy")).unwrap();
            assert_eq!(daemon.ask(&target, piece).0, 200);
        }
        offset += piece.len();
    }
    assert_eq!(refusals, 1);
    let filler = a.data_dir().join("filler");
    fs::write(&filler, vec![1; 24 * MIB as usize]).unwrap_err();
    for _ in 0..2 {
        let (status, problem) = daemon.ask(&format!("POST /v1/puts/{put}/commit"), b"{}");
        assert_eq!((status, &problem["kind"]), (507, &"no-space".into()), "{problem}");
    }
    fs::remove_file(&filler).unwrap();
    let (status, again) = daemon.ask(&format!("POST /v1/puts/{put}/commit"), b"{}");
    assert_eq!(status, 200, "{again}");
    assert!(fs::read(folder(a, &oid(&again)).join("data")).unwrap() == bytes);
    drop(stream);
    share.end();
    daemon.stop();
}

/// D10, D13: only where it makes room. A folder on a file system that is full costs nothing of the cache on another one.
#[test]
fn a_full_stick_costs_no_cache() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let stick = a.directory("stick");
    mount(&stick, "size=4m");
    let daemon = Daemon::start(a);
    let cached = oid(&put_cached(&daemon, &data::random_bytes(MIB as usize, 1)));
    let file = b.file("file");
    data::write_random(&file, 8 * MIB, 2);
    let share = actions::share(b, &file);
    let (_stream, session) = daemon.session();
    let descriptor = daemon.hand_over(&File::open(&stick).unwrap()).unwrap();
    let wish = json!({"session": session, "ticket": share.ticket, "descriptor": descriptor, "name": "copy"});
    let get = daemon.transaction("/v1/gets", &wish);
    let (status, problem) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
    assert_eq!((status, &problem["kind"]), (507, &"no-space".into()), "{problem}");
    assert!(folder(a, &cached).exists());
    share.end();
    daemon.stop();
}

/// D13: what is being put and not committed is on the same disk, so what nobody holds makes way for it.
#[test]
fn bytes_on_their_way_in_count() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    host.configure("cache_mib = 4\n");
    let daemon = Daemon::start(host);
    let cached = oid(&put_cached(&daemon, &data::random_bytes(3 * MIB as usize, 1)));
    let (_stream, session) = daemon.session();
    let put = daemon.begin(&session);
    for piece in data::random_bytes(3 * MIB as usize, 2).chunks(MIB as usize) {
        assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/data"), piece).0, 200);
    }
    await_that("it makes way", || !folder(host, &cached).exists());
    let figures = String::from_utf8(daemon.fetch("GET /v1/metrics", b"").body).unwrap();
    assert!(figures.contains(&format!("\ndray_incoming_bytes {}\n", 3 * MIB)), "{figures}");
    assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/commit"), b"{}").0, 200);
    daemon.stop();
}

/// Design 9: an object whose hash tree was lost is hashed once, however many connections and receivers ask for it meanwhile.
#[test]
fn a_lost_hash_tree_is_made_once() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, 48 * MIB, 1);
    let daemon = Daemon::start(a);
    let ticket = put(a, &file);
    let outboard = folder(a, &ticket.parse::<Ticket>().unwrap().oid.to_string()).join("outboard");
    fs::remove_file(&outboard).unwrap();
    let before = read_bytes(daemon.process.pid());
    b.configure("connections = 8\n");
    actions::get(b, &ticket, &b.directory("in").join("copy")).run().expect(0);
    let read = read_bytes(daemon.process.pid()) - before;
    // Once to hash it and once to send it, with the hash tree.
    assert!(read < 112 * MIB, "{read} bytes were read");
    assert!(outboard.exists());
    daemon.stop();
}

/// Design 5: a daemon that nobody asks anything sleeps: a laptop's battery.
#[test]
fn an_idle_daemon_sleeps() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    data::write_random(&file, MIB, 1);
    host.configure("metrics = \"127.0.0.1:0\"\n");
    let daemon = Daemon::start(host);
    put(host, &file);
    let (_stream, _session) = daemon.session();
    let wakes = || -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.process.pid())).unwrap();
        tasks.flatten().map(|task| switches(&task.path())).sum()
    };
    // Whatever there was to do is done in the first seconds.
    await_that("it sleeps", || {
        let before = wakes();
        std::thread::sleep(std::time::Duration::from_secs(3));
        wakes().saturating_sub(before) <= 6
    });
    daemon.stop();
}

/// How often a thread has gone to sleep.
fn switches(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
