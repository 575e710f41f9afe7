//! The daemon: sharing without a command that waits, one service for a user's programs, and what becomes of it when one of
//! them is killed, greedy or hostile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::ticket::Ticket;
use dray_e2e::actions::{self, NOBODY, assert_delivered};
use dray_e2e::daemon::{Daemon, answer, await_that, event, put, read_bytes};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Lab, Running, gate};
use rustix::process::Signal;
use serde_json::Value;

/// Issue 1 and 4, D9, D10, D14: a put by the daemon ends at once and is served until `done`, across a restart of the daemon, at
/// the same port; the second put of the unchanged file reads nothing of it; the file's bytes do not pass the command.
#[test]
fn a_put_is_kept_by_the_daemon() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (file, trace) = (a.file("file"), a.file("trace"));
    data::write_random(&file, 33 * MIB + 5, 1);
    actions::let_settle(&file);
    let daemon = Daemon::start(a);
    let traced = a
        .program("strace")
        .args(["-f", "-e", "trace=read,pread64,sendto,sendmsg,write,sendfile", "-o"])
        .args([trace.as_os_str(), "dray".as_ref(), "put".as_ref(), file.as_os_str()])
        .run()
        .expect(0);
    let ticket = traced.stdout_text().trim_end().to_owned();
    let trace = fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("SCM_RIGHTS"), "{trace}");
    let most = trace.lines().filter_map(|line| line.rsplit("= ").next()?.trim().parse::<u64>().ok()).max();
    assert!(most.unwrap() < 100_000, "the command moved data itself: {trace}");

    let before = read_bytes(daemon.process.pid());
    assert_eq!(put(a, &file), ticket, "the same file has the same ticket");
    let read = read_bytes(daemon.process.pid()) - before;
    assert!(read < 100_000, "the second put read {read} bytes");
    // D13: in another way it would take away what was promised.
    a.dray().args(["put", "--public"]).arg(&file).run().expect(6);

    let copy = b.directory("first").join("copy");
    actions::get(b, &ticket, &copy).run().expect(0);
    assert_delivered(&file, &copy, Some(&ticket.parse::<Ticket>().unwrap().oid.hex()));
    daemon.stop();

    let daemon = Daemon::start(a);
    // From the daemon, although the first copy is at hand.
    let copy = b.directory("second").join("copy");
    actions::get(b, &ticket, &copy).arg("-W").run().expect(0);
    assert_delivered(&file, &copy, None);
    let listed = a.dray().args(["ls", "--json"]).run().expect(0);
    let share: Value = serde_json::from_str(listed.stdout_text().trim()).unwrap();
    assert_eq!((&share["pinned"], &share["receivers"]), (&true.into(), &1.into()), "{share}");

    a.dray().args(["done", &ticket]).run().expect(0);
    actions::get(b, &ticket, &b.directory("third").join("copy")).arg("-W").run().expect(6);
    a.dray().args(["done", &ticket]).run().expect(3);
    assert_eq!(a.dray().arg("ls").run().expect(0).stdout_text(), "");
    daemon.stop();
    // Without a daemon: said so; and the file is as it was.
    a.dray().arg("status").run().expect(5);
    assert_eq!(data::b3sum(&file), ticket.parse::<Ticket>().unwrap().oid.hex());
}

/// Issue, "put of an unchanged 8 GiB file through the daemon the second time takes no reading of it (/proc/PID/io)". The file is of that
/// size, and each of its bytes is hashed the first time; most are a hole, so that it takes little of the disk.
#[test]
fn an_unchanged_file_of_8_gib_is_not_read_again() {
    const SIZE: u64 = 8 << 30;
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("file");
    let large = fs::File::create(&file).unwrap();
    large.set_len(SIZE).unwrap();
    for (at, seed) in [(0, 1), (SIZE / 2, 2), (SIZE - MIB, 3)] {
        large.write_all_at(&data::random_bytes(MIB as usize, seed), at).unwrap();
    }
    actions::let_settle(&file);
    let daemon = Daemon::start(host);
    let figure = || -> u64 {
        let page = String::from_utf8(daemon.fetch("GET /v1/metrics", b"").body).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("dray_hashed_bytes_total "));
        line.unwrap().parse().unwrap()
    };
    let ticket = put(host, &file);
    assert_eq!(figure(), SIZE);
    let before = read_bytes(daemon.process.pid());
    assert_eq!(put(host, &file), ticket);
    let read = read_bytes(daemon.process.pid()) - before;
    assert!(read < 100_000, "the second put read {read} bytes");
    assert_eq!(figure(), SIZE, "nothing is hashed again");
    daemon.stop();
}

/// D6-D8, D13: the put calls by hand. Any split of writes gives the OID that `b3sum` prints; the object outlives its session
/// as cache; a wrong transaction or offset is an error and changes nothing.
#[test]
fn the_put_calls_by_hand() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, 2 * MIB + 333, 3);
    let bytes = fs::read(&file).unwrap();
    let daemon = Daemon::start(a);
    let mut tickets = Vec::new();
    for split in [65_536, 1_000_003, 1 << 20] {
        let (stream, session) = daemon.session();
        let transaction = daemon.begin(&session);
        let mut offset = 0;
        for piece in bytes.chunks(split) {
            let target = format!("POST /v1/puts/{transaction}/data?offset={offset}");
            offset += piece.len();
            // The second is the first again, as after a lost answer.
            for _ in 0..2 {
                let (status, written) = daemon.ask(&target, piece);
                assert_eq!((status, &written["size_bytes"]), (200, &offset.into()), "{written}");
            }
        }
        // Neither a piece out of order, nor another one in the place of the last.
        let mut other = bytes.chunks(split).last().unwrap().to_vec();
        other[0] ^= 1;
        for (offset, piece) in [(1, &b"xyz"[..]), (offset - other.len(), &other)] {
            let wrong = daemon.ask(&format!("POST /v1/puts/{transaction}/data?offset={offset}"), piece);
            assert_eq!((wrong.0, &wrong.1["kind"]), (400, &"usage".into()), "{}", wrong.1);
        }
        let (status, shared) = daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}");
        assert_eq!(status, 200, "{shared}");
        assert_eq!(shared["oid"], format!("blake3:{}", data::b3sum(&file)));
        tickets.push(shared["ticket"].as_str().unwrap().to_owned());
        let again = daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}");
        assert_eq!(again, (200, shared), "told again, should the answer have been lost");
        drop(stream);
    }
    assert!(tickets.iter().all(|ticket| *ticket == tickets[0]), "shared the same way, the same ticket");
    await_that("sessions end", || daemon.ask("GET /v1", b"").1["sessions"] == 0);
    let copy = b.directory("in").join("copy");
    actions::get(b, &tickets[0], &copy).run().expect(0);
    data::assert_same(&file, &copy);

    for (request, body, status) in [
        ("POST /v1/puts/put-00/data", "x", 404),
        ("POST /v1/puts/put-00/commit", "{}", 404),
        ("POST /v1/puts", "{\"session\":\"session-00\"}", 404),
        ("POST /v1/puts", "{", 400),
        ("POST /v1/puts", "{\"session\":7}", 400),
        ("POST /v1/puts", "{\"session\":\"x\",\"descriptor\":\"00\"}", 400),
        ("POST /v1/puts", "{\"session\":\"x\",\"descriptor\":\"00112233445566778899aabbccddeeff\"}", 404),
        ("DELETE /v1/shares/md5:00", "", 403),
        ("GET /v1/../etc/passwd", "", 404),
        ("PUT /v1", "", 405),
    ] {
        let (found, problem) = daemon.ask(request, body.as_bytes());
        assert_eq!(found, status, "{request} {body}: {problem}");
        assert!(problem["what"].as_str().is_some_and(|what| !what.is_empty()), "{problem}");
    }
    // D37: what is missing is named; the rest of the line is the end of a further header.
    let (status, problem) = daemon.ask("GET /v1 HTTP/1.1\r\ndray-require: put, teleport\r\nx:", b"");
    assert_eq!((status, &problem["kind"]), (501, &"unsupported".into()), "{problem}");
    assert!(problem["what"].as_str().unwrap().contains("teleport"), "{problem}");
    daemon.stop();
}

/// Issue 2, "documented with curl examples that are run as tests": all of `docs/api.md`, in its order.
#[test]
fn the_examples_of_the_api_work() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let daemon = Daemon::start(a);
    let page = fs::read_to_string(gate::project_file("docs/api.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut script = String::from("set -euo pipefail\n");
    for (number, block) in blocks.enumerate() {
        script.push_str(&format!("echo \"== {number}\"\n{block}\necho\n"));
    }
    // What is put stays after the script: its pin.
    script.push_str("echo \"ticket $ticket\"\n");
    let outcome = a.program("bash").args(["-c", &script]).run();
    assert_eq!(outcome.code(), Some(0), "{outcome}");
    let text = outcome.stdout_text();
    let blocks: Vec<&str> = text.split("== ").skip(1).collect();
    assert_eq!(blocks.len(), 11, "{outcome}");
    assert!(blocks[0].contains("\"features\":[\"put\""), "{outcome}");
    assert!(blocks[2].contains("{\"size_bytes\":13}") && blocks[2].contains("\"kind\":\"put\""), "{outcome}");
    assert!(blocks[3].contains("\"size_bytes\":16") && blocks[3].contains("\"ticket\":\"dray:"), "{outcome}");
    assert!(blocks[4].contains("\"size_bytes\":16") && blocks[4].contains("\"ticket\":\"dray:"), "{outcome}");
    assert!(blocks[5].contains("hello, world"), "{outcome}");
    assert!(blocks[6].contains("\"name\":\"copy\"") && blocks[6].contains("hello, world"), "{outcome}");
    assert!(blocks[7].contains("greeting.txt") && blocks[7].contains("\"pinned\":true"), "{outcome}");
    assert!(
        blocks[8].contains("\"id\":\"directory:") && blocks[8].contains("/folder\",\"public\":false"),
        "{outcome}"
    );
    assert!(blocks[9].contains("{\"transfers\":[]}") && blocks[9].contains("dray_shares 1"), "{outcome}");
    assert_eq!(blocks[10].matches("\"hopeful\":false,\"files\":[],\"found\":[]").count(), 2, "{outcome}");
    assert!(blocks[10].contains("\"read_bytes\":0"), "{outcome}");
    let left = daemon.ask("GET /v1/shares", b"").1;
    assert_eq!(left["shares"].as_array().unwrap().len(), 1, "{left}");
    // The share of the greeting was ended; the file's is there.
    let ended = text.lines().find_map(|line| line.strip_prefix("ticket ")).unwrap();
    actions::get(b, ended, &b.directory("ended").join("copy")).run().expect(6);
    let ticket = blocks[3].split("\"ticket\":\"").nth(1).unwrap().split('"').next().unwrap();
    let got = b.dray().args(["get", ticket, "-o", "-"]).run().expect(0);
    assert_eq!(got.stdout_text(), "bytes of a file");
    daemon.stop();
}

/// Hands two listening sockets over as systemd does, the sibling first, and becomes the daemon.
const ACTIVATE: &str = "
import os, socket, sys
path = sys.argv[1]
api = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sibling = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
for made, name in [(api, path), (sibling, path + '.fd')]:
    made.bind(name)
    made.listen(16)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')
a, b = os.dup(sibling.fileno()), os.dup(api.fileno())
# Not over each other: both are above 4 by now, or become so.
a, b = (os.dup2(fd, 20 + n) for n, fd in enumerate([a, b]))
os.dup2(20, 3)
os.dup2(21, 4)
os.execvp('dray', ['dray', 'serve', '--json'])
";

/// Issue 1, systemd: sockets are taken over and left where they are, and each step is told (sd_notify(3)).
#[test]
fn systemd_hands_over_sockets_and_hears_each_step() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let (socket, heard) = (host.file("api"), host.file("notify"));
    let notify = UnixDatagram::bind(&heard).unwrap();
    notify.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hear = || {
        let mut bytes = [0; 256];
        let length = notify.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let process = host
        .program("python3")
        .args(["-c", ACTIVATE])
        .arg(&socket)
        .env("DRAY_SOCKET", &socket)
        .env("NOTIFY_SOCKET", &heard)
        .start();
    assert_eq!(hear(), "READY=1");
    let file = host.file("file");
    data::write_random(&file, 1000, 1);
    host.dray().arg("put").arg(&file).env("DRAY_SOCKET", &socket).run().expect(0);
    process.signal(Signal::HUP);
    let reloading = hear();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(hear(), "READY=1");
    process.signal(Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    process.wait().expect(0);
    assert!(socket.exists(), "systemd's socket is systemd's");
    // Not two of the right kind: said so, and not another place taken instead.
    let wrong = ACTIVATE.replace("LISTEN_FDS='2'", "LISTEN_FDS='1'");
    let other = host.file("other");
    let outcome = host.program("python3").args(["-c", &wrong]).arg(&other).env("DRAY_SOCKET", &other).run();
    outcome.expect(2);
}

/// Issue 1, units: what a package installs is what systemd understands, where systemd is there to say so.
#[test]
fn the_units_are_understood() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    if gate::find_tool("systemd-analyze").is_none() {
        return;
    }
    let units = gate::project_file("packaging/systemd");
    for name in ["dray.service", "dray.socket"] {
        let unit = fs::read_to_string(units.join(name)).unwrap();
        // Not installed here, and a unit's program must be.
        let here = unit.replace("ExecStart=dray ", "ExecStart=/bin/true ");
        assert!(name == "dray.socket" || here != unit, "{unit}");
        fs::write(host.file(name), here).unwrap();
    }
    let verify = host.program("systemd-analyze").arg("verify");
    let outcome = verify.args([host.file("dray.service"), host.file("dray.socket")]).run();
    assert_eq!((outcome.code(), outcome.stderr_text().as_str()), (Some(0), ""), "{outcome}");
}

/// D2: a client that is killed in the middle of a put leaves nothing: no transaction, no temporary file, no object.
#[test]
fn a_killed_client_leaves_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let daemon = Daemon::start(host);
    let temporary = || data::names(&host.data_dir().join("store/tmp")).len();

    // Standard input that never ends.
    let input = host.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &input, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let mut writer = fs::File::options().read(true).write(true).open(&input).unwrap();
    let put = host.dray().args(["put", "-"]).input_file(&input).start();
    writer.write_all(&[7; 40_000]).unwrap();
    await_that("the transaction begins", || daemon.transactions().len() == 1 && temporary() == 2);
    put.kill();
    await_that("the transaction is freed", || daemon.transactions().is_empty() && temporary() == 0);

    // A file whose hashing takes a while: holes are hashed, too.
    let sparse = host.file("sparse");
    fs::File::create(&sparse).unwrap().set_len(64 << 30).unwrap();
    let put = host.dray().arg("put").arg(&sparse).start();
    await_that("hashing begins", || {
        daemon.ask("GET /v1/transactions", b"").1["transactions"][0]["done_bytes"].as_u64().unwrap_or(0) > 0
    });
    put.kill();
    await_that("hashing ends", || daemon.transactions().is_empty() && temporary() == 0);
    assert_eq!(daemon.ask("GET /v1", b"").1["shares"], 0);

    // Interrupted by hand, it says so.
    let put = host.dray().arg("put").arg(&sparse).start();
    await_that("hashing begins again", || daemon.transactions().len() == 1);
    put.interrupt();
    put.wait().expect(130);
    await_that("hashing ends again", || daemon.transactions().is_empty() && temporary() == 0);
    daemon.stop();
}

/// Issue, "kill -9 of the daemon in mid-get": the same port and the pins come back, and the get goes on by itself.
#[test]
fn a_get_outlives_a_kill_of_the_daemon() {
    let Some(lab) = Lab::of(2).rate_mbit(200).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, 48 * MIB, 5);
    let daemon = Daemon::start(a);
    let ticket = put(a, &file);
    let dir = b.directory("in");
    let get = actions::get(b, &ticket, &dir.join("copy")).start();
    await_that("some has come", || data::unfinished_bytes(&dir) > 8 * MIB);
    daemon.process.kill();
    let daemon = Daemon::start(a);
    get.wait().expect(0);
    assert_delivered(&file, &dir.join("copy"), None);
    daemon.stop();
}

/// Design 12, issue "eight embedded commands": a daemon that starts while commands of the same user work disturbs none of them; those that come later use it.
#[test]
fn a_daemon_starts_among_commands() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let files: Vec<PathBuf> = (0..8)
        .map(|number| {
            let file = a.file(format!("file-{number}"));
            data::write_random(&file, (number + 1) * 3 * MIB + 1, 20 + number);
            file
        })
        .collect();
    // Five that share files, one that shares what it reads, one that fetches, one that copies.
    let theirs = b.file("theirs");
    data::write_random(&theirs, 25 * MIB + 1, 40);
    let holder = actions::share(b, &theirs);
    let (got, copied) = (a.directory("got").join("copy"), b.directory("copied").join("copy"));
    let mut puts: Vec<Running> =
        files[..5].iter().map(|file| actions::put(a, file).arg("--foreground").start()).collect();
    puts.push(actions::put(a, Path::new("-")).arg("--foreground").input_file(&files[5]).start());
    let get = actions::get(a, &holder.ticket, &got).start();
    let copy = actions::copy_to(a, b, &files[7], &copied).start();
    let daemon = Daemon::start(a);
    // The same daemon twice: the second says so.
    a.dray().arg("serve").run().expect(6);
    let shares: Vec<actions::Share> = puts.into_iter().map(actions::Share::of).collect();
    for (share, file) in shares.iter().zip(&files) {
        assert!(!share.process.has_ended());
        let copy = b.directory(&format!("{}-in", share.hash())).join("copy");
        actions::get(b, &share.ticket, &copy).run().expect(0);
        assert_delivered(file, &copy, Some(&share.hash()));
    }
    get.wait().expect(0);
    data::assert_same(&theirs, &got);
    copy.wait().expect(0);
    data::assert_same(&files[7], &copied);
    holder.end();
    assert_eq!(daemon.ask("GET /v1", b"").1["shares"], 0, "what commands share is theirs");
    let later = put(a, &files[0]);
    for share in shares {
        share.end();
    }
    let copy = b.directory("later").join("copy");
    actions::get(b, &later, &copy).arg("-W").run().expect(0);
    data::assert_same(&files[0], &copy);
    daemon.stop();
}

/// Design 13: two users of one host, each with a daemon. Neither gets into the other's, not even where the file system
/// would let it; and a file that a user cannot read is refused to that user by name.
#[test]
fn two_users_have_two_daemons() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let ours = Daemon::start(host);
    let home = host.directory("nobody");
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = || {
        let program = host.dray().user(NOBODY).directory(&home).env("XDG_RUNTIME_DIR", &home);
        program
            .env("HOME", &home)
            .env("DRAY_DATA_DIR", home.join("data"))
            .env("XDG_CONFIG_HOME", home.join("c"))
    };
    let theirs = Daemon::of(as_nobody(), &home);
    for (daemon, owner) in [(&ours, 0), (&theirs, NOBODY)] {
        for name in ["daemon.sock", "daemon.sock.fd"] {
            let found = fs::metadata(daemon.socket.with_file_name(name)).unwrap();
            assert_eq!((found.mode() & 0o777, found.uid()), (0o600, owner), "{name}");
        }
    }

    // Root may enter everywhere, and is turned away by the daemon itself.
    let (status, problem) = theirs.ask("GET /v1", b"");
    assert_eq!((status, &problem["kind"]), (403, &"refused".into()), "{problem}");
    host.dray().arg("status").env("DRAY_SOCKET", &theirs.socket).run().expect(6);
    let outcome = as_nobody().arg("status").env("DRAY_SOCKET", &ours.socket).run();
    assert_ne!(outcome.code(), Some(0), "{outcome}");

    let secret = host.file("secret");
    data::write_random(&secret, 100, 2);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    as_nobody().arg("put").arg(&secret).run().expect(6);
    put(host, &secret);
    assert_eq!(as_nobody().args(["ls"]).run().expect(0).stdout_text(), "");
    ours.stop();
    theirs.stop();
}

/// Issue, "bounded and answered": endless headers, bodies that are too long, slow or never come, a thousand connections that
/// say nothing; all the while somebody else is answered, within bounded memory.
#[test]
fn hostile_clients_are_bounded() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let daemon = Daemon::start(host);
    let connect = || {
        let socket = UnixStream::connect(&daemon.socket).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    };
    let lives = || assert_eq!(daemon.ask("GET /v1", b"").0, 200);

    let mut endless = connect();
    endless.write_all(b"GET /v1 HTTP/1.1\r\n").unwrap();
    let line = [b"x: ".to_vec(), vec![b'y'; 8000], b"\r\n".to_vec()].concat();
    let mut sent = 0;
    while endless.write_all(&line).is_ok() {
        sent += line.len();
        assert!(sent < 4 << 20, "nobody stops an endless head");
    }
    assert_eq!(answer(&mut endless).0, 431);

    let mut long = connect();
    long.write_all(b"POST /v1/puts HTTP/1.1\r\nhost: d\r\ncontent-length: 10000000000\r\n\r\n").unwrap();
    assert_eq!(answer(&mut long).0, 413);
    let mut chunked = connect();
    chunked.write_all(b"POST /v1/puts HTTP/1.1\r\nhost: d\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = [b"10000\r\n".to_vec(), vec![0; 0x10000], b"\r\n".to_vec()].concat();
    let mut chunks = 0;
    while chunked.write_all(&chunk).is_ok() {
        chunks += 1;
        assert!(chunks < 100, "nobody stops an endless body");
    }
    assert_eq!(answer(&mut chunked).0, 413);
    let mut garbage = connect();
    garbage.write_all(b"\x16\x03\x01 no http at all\r\n\r\n").unwrap();
    assert_eq!(answer(&mut garbage).0, 400);
    lives();

    // A head and a body that never end, and a client that says nothing: each has 10 s. No other connection is there meanwhile whose
    // coming could end them.
    let begun = Instant::now();
    let (mut slow_head, mut slow_body, mut silent) = (connect(), connect(), connect());
    // Not even one that says a little all the time.
    let mut dripping = connect();
    dripping.write_all(b"GET /v1 HTTP/1.1\r\nho").unwrap();
    let dripping = std::thread::spawn(move || {
        while dripping.write_all(b"o").is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody stops a slow head");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    slow_head.write_all(b"GET /v1 HTTP/1.1\r\nho").unwrap();
    slow_body.write_all(b"POST /v1/puts HTTP/1.1\r\nhost: d\r\ncontent-length: 9\r\n\r\n{").unwrap();
    lives();
    for slow in [&mut slow_head, &mut silent] {
        assert_eq!(slow.read_to_end(&mut Vec::new()).unwrap(), 0, "its connection is closed");
    }
    assert_eq!(answer(&mut slow_body).0, 408);
    dripping.join().unwrap();
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(9) && waited < Duration::from_secs(25), "{waited:?}");
    let mut idle: Vec<UnixStream> = Vec::new();
    for _ in 0..1000 {
        idle.push(connect());
    }
    lives();

    // Sessions and transactions have limits, and come back.
    let (stream, session) = daemon.session();
    let mut begun = 0;
    let refused = loop {
        let (status, text) = daemon.ask("POST /v1/puts", format!("{{\"session\":\"{session}\"}}").as_bytes());
        if status != 201 {
            break (status, text);
        }
        begun += 1;
        assert!(begun < 1000, "nobody stops transactions");
    };
    assert_eq!((refused.0, begun, &refused.1["retryable"]), (503, 128, &true.into()), "{}", refused.1);
    drop(stream);
    await_that("transactions are freed", || daemon.transactions().is_empty());
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.process.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 256 * 1024, "{peak} kB");
    daemon.stop();
}

/// Issue 1, TOML configuration: SIGHUP reads it again; a bad file is told with its line, and what was in force stays. D10, D13:
/// what nobody holds goes when there is no room, pins and the user's files stay.
#[test]
fn the_configuration_is_read_again() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let config = host.home().join(".config/dray/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let daemon = Daemon::start(host);
    let put_cached = |content: &[u8]| {
        let (_stream, session) = daemon.session();
        let transaction = daemon.begin(&session);
        assert_eq!(daemon.ask(&format!("POST /v1/puts/{transaction}/data"), content).0, 200);
        daemon.ask(&format!("POST /v1/puts/{transaction}/commit"), b"{}").1
    };
    let mut oids = Vec::new();
    for number in 0..3_u8 {
        oids.push(put_cached(&vec![number; 1_000_000])["oid"].as_str().unwrap().to_owned());
    }
    let (pinned, borrowed) = (host.file("pinned"), host.file("borrowed"));
    data::write_random(&pinned, 3 * MIB, 1);
    data::write_random(&borrowed, 3 * MIB, 2);
    put(host, &borrowed);
    let kept = host.dray().args(["put", "-"]).input_file(&pinned).run().expect(0);
    let kept: Ticket = kept.stdout_text().trim().parse().unwrap();
    let shares = || {
        let found = daemon.ask("GET /v1/shares", b"").1;
        let lines = found["shares"].as_array().unwrap().clone();
        lines.iter().map(|line| line["oid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shares().len(), 5);

    fs::write(&config, "window_mib = 64\ncache_mib = \"none\"\n").unwrap();
    daemon.process.signal(Signal::HUP);
    let told = daemon.process.line_with(|line| event(line) == "warning");
    assert!(told.contains("line 2") && told.contains("stays as it was"), "{told}");
    assert_eq!(shares().len(), 5);

    fs::write(&config, "cache_mib = 0\n").unwrap();
    daemon.process.signal(Signal::HUP);
    await_that("the cache is dropped", || shares().len() == 2);
    let left = shares();
    assert!(left.contains(&kept.oid.to_string()) && oids.iter().all(|oid| !left.contains(oid)), "{left:?}");
    assert_eq!(data::b3sum(&pinned), kept.oid.hex());
    assert!(borrowed.exists());
    daemon.stop();
}
