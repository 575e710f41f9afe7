//! How the command ends: at the first signal, when its reader or parent goes away, and on a ticket that lies about
//! its size. The built program is run as a person would run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dray_core::hint::{Hint, HintUri};
use dray_core::limits::{CONNECTIONS_MAX, OBJECT_BYTES_MAX};
use dray_core::message::PROTOCOL_VERSION;
use dray_core::ticket::Ticket;
use dray_core::{NodeId, Oid};
use rustix::process::{Pid, Signal, kill_process};

/// Long enough for a loaded machine; a program that does not end fails the test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(60);

fn dray(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dray"));
    command
        .env("DRAY_DATA_DIR", dir.join("data"))
        .env("XDG_CONFIG_HOME", dir)
        .env_remove("DRAY_CONFIG")
        .current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command as another user has it, to whom nothing is at hand that the first one shares.
fn elsewhere(dir: &Path) -> Command {
    let mut command = dray(dir);
    command.env("DRAY_DATA_DIR", dir.join("elsewhere"));
    command
}

/// SIGTERM, because whoever runs the tests may have chosen to ignore SIGINT.
fn signal(child: &Child) {
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
}

/// Exit code, standard output and standard error.
fn end(mut child: Child) -> (Option<i32>, String, String) {
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the command did not end");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut out).unwrap();
    }
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (status.code(), out, err)
}

/// A sparse file that takes minutes to hash.
fn endless(dir: &Path) {
    File::create(dir.join("big")).unwrap().set_len(1 << 40).unwrap();
}

/// Reads JSON events until one that contains `word`.
fn until_event(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "no {word} event");
    }
}

/// Issue, "130 interrupted": a put or verify that is hashing ends at the first signal; nothing is shared.
#[test]
fn the_first_signal_ends_hashing() {
    let dir = tempfile::tempdir().unwrap();
    endless(dir.path());
    let oid = Oid::of(b"").to_string();
    for arguments in [vec!["put", "big", "--json"], vec!["verify", "big", &oid, "--json"]] {
        let mut child = dray(dir.path()).args(&arguments).spawn().unwrap();
        until_event(&mut child, "hashing");
        signal(&child);
        let (code, _, err) = end(child);
        assert_eq!(code, Some(130), "{arguments:?}: {err}");
        assert!(err.contains("interrupted"), "{err}");
    }
    let objects = dir.path().join("data/store/objects");
    let kept = std::fs::read_dir(objects).map_or(0, Iterator::count);
    assert_eq!(kept, 0);
}

/// Issue, "130 interrupted": a put that waits for standard input ends at the first signal, without a ticket.
#[test]
fn the_first_signal_ends_waiting_for_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = dray(dir.path()).args(["put", "-", "--json"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"some bytes").unwrap();
    until_event(&mut child, "hashing");
    signal(&child);
    let (code, out, err) = end(child);
    assert_eq!((code, out.as_str()), (Some(130), ""), "{err}");
    drop(input);
}

/// A demo that is killed leaves no sender behind: the sender ends when its standard input closes.
#[test]
fn a_child_ends_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let put = ["put", "file", "--until-stdin-closes", "--json"];
    let mut child = dray(dir.path()).args(put).stdin(Stdio::piped()).spawn().unwrap();
    until_event(&mut child, "shared");
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    assert_eq!(end(child).0, Some(0));
}

/// Design 17: a ticket that claims the largest size ends in an error of the network, not in an abort for want of
/// memory, wherever the bytes should go.
#[test]
fn a_lie_about_the_size_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let uri = HintUri::Dray { host: "127.0.0.1".into(), port: 1 };
    let node = Some(NodeId::from_bytes(*Oid::of(b"nobody").as_bytes()));
    // A file system may hold no file of 64 TiB, however sparse: then it is exit code 6.
    let cases: [(u64, &str, &[i32]); 4] = [
        (OBJECT_BYTES_MAX, "-", &[5]),
        (1 << 46, "-", &[5]),
        (1 << 46, "out", &[5, 6]),
        (OBJECT_BYTES_MAX, "out", &[6]),
    ];
    for (size_bytes, output, expected) in cases {
        let ticket = Ticket {
            protocol: PROTOCOL_VERSION,
            oid: Oid::of(b"x"),
            size_bytes,
            secret: None,
            expires_unix_s: None,
            hints: vec![Hint { uri: uri.clone(), node, priority: 0, weight: 1 }],
            repeated_permille: 0,
        };
        let text = ticket.to_text().unwrap();
        let child = dray(dir.path()).args(["get", "--local", "-o", output, &text]).spawn().unwrap();
        let (code, _, err) = end(child);
        assert!(
            code.is_some_and(|code| expected.contains(&code)),
            "{size_bytes} to {output}: {code:?} {err}"
        );
    }
}

/// A ticket for `path`, and the program that serves it.
struct Share(Child, String);

impl Share {
    fn of(dir: &Path, path: &str) -> Share {
        let mut child = dray(dir).args(["put", path]).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Share(child, line.trim().to_owned())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Design 5: a ticket or verdict that cannot be printed is an error. Nothing is served for a ticket that nobody has.
#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let oid = Oid::of(b"bytes").to_string();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for (arguments, what) in [
        (&["put", "file"][..], "cannot print the ticket"),
        (&["put", "file", "--quiet"], "cannot print the ticket"),
        (&["put", "file", "--json"], "cannot print the ticket"),
        (&["verify", "file", &oid], "cannot print the result"),
        (&["verify", "file", &oid, "--json"], "cannot print the result"),
        (&["--version"], "cannot write standard output"),
        (&["--help"], "cannot write standard output"),
        (&["man"], "cannot write standard output"),
        (&["completions", "bash"], "cannot write standard output"),
        (&["sync", "--list-only", "file"], "cannot print the list"),
        (&["sync", "-ain", "file", "copy"], "cannot print the list"),
        (&["sync", "-a", "--stats", "file", "copy"], "cannot print the list"),
    ] {
        let (code, _, err) = end(dray(dir.path()).args(arguments).stdout(full()).spawn().unwrap());
        assert_eq!(code, Some(1), "{arguments:?}: {err}");
        assert!(err.contains(what) && err.contains("No space left"), "{arguments:?}: {err}");
    }
    // What it finds bad is an error of its own.
    let (code, _, err) = end(dray(dir.path()).arg("doctor").stdout(full()).spawn().unwrap());
    assert!(matches!(code, Some(1 | 8)), "{err}");
    for json in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let put = dray(dir.path()).args(["put", "file"]).args(json).stdout(writer).spawn().unwrap();
        let (code, _, err) = end(put);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("cannot print the ticket"), "{err}");
    }
    // What was to be done is done all the same.
    assert_eq!(std::fs::read(dir.path().join("copy")).unwrap(), b"bytes");
    // Who reads the beginning of a page (`| head`) has what he wants.
    for page in [
        &["--help"][..],
        &["cp", "--help"],
        &["--version"],
        &["man"],
        &["completions", "bash"],
        &["sync", "--list-only", "file"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, _, err) = end(dray(dir.path()).args(page).stdout(writer).spawn().unwrap());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{page:?}");
    }
    // What is found is told all the same.
    std::fs::create_dir(dir.path().join("dray")).unwrap();
    std::fs::write(dir.path().join("dray/config.toml"), "no_such_key = 1").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (code, _, err) = end(dray(dir.path()).arg("doctor").stdout(writer).spawn().unwrap());
    assert_eq!(code, Some(8), "{err}");
    assert!(err.contains("not as it should be: ") && !err.contains("cannot print"), "{err}");
}

/// A configuration that cannot be read is one finding of `doctor` and does not hide the others; a link to nothing is told as one.
#[test]
fn what_is_wrong_is_told_beside_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("dray")).unwrap();
    std::fs::write(dir.path().join("dray/config.toml"), "no_such_key = 1").unwrap();
    let (code, out, err) = end(dray(dir.path()).arg("doctor").spawn().unwrap());
    assert_eq!(code, Some(8), "{err}");
    assert!(out.starts_with("BAD  configuration") && out.contains("no_such_key"), "{out}");
    assert!(out.contains("ok   data directory") && out.contains("ok   CPU"), "{out}");
    std::fs::remove_file(dir.path().join("dray/config.toml")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    for arguments in [&["put", "link"][..], &["cp", "link", "copy"]] {
        let (code, _, err) = end(dray(dir.path()).args(arguments).spawn().unwrap());
        assert_eq!(code, Some(3), "{err}");
        assert!(err.contains("a symbolic link to \"nowhere\""), "{err}");
    }
}

/// `get -o - | head`: the reader's leaving is no trouble of the network, and a reader that does not read does not
/// keep the command from ending at a signal.
#[test]
fn the_reader_of_a_stream_may_leave_or_sleep() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), vec![3; 3 << 20]).unwrap();
    let share = Share::of(dir.path(), "file");
    let get = ["get", "--local", "-o", "-", &share.1];
    let mut left = elsewhere(dir.path()).args(get).spawn().unwrap();
    drop(left.stdout.take());
    let (code, _, err) = end(left);
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("closed by its reader"), "{err}");
    let mut asleep = elsewhere(dir.path()).args(get).spawn().unwrap();
    let mut output = asleep.stdout.take().unwrap();
    output.read_exact(&mut [0; 10]).unwrap();
    signal(&asleep);
    assert_eq!(end(asleep).0, Some(130));
}

/// A name that came from the peer replaces nothing: neither in the current directory nor in one named with -o, and
/// the file can be had under its name, also when all its bytes had come before (a refused run keeps them).
#[test]
fn a_suggested_name_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![4; 3 << 20];
    std::fs::write(dir.path().join("file"), &bytes).unwrap();
    let share = Share::of(dir.path(), "file");
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("file"), b"precious").unwrap();
    let in_directory =
        || dray(dir.path()).args(["get", "--local", "-o", "target", &share.1]).spawn().unwrap();
    let by_default =
        || dray(dir.path()).args(["get", "--local", &share.1]).current_dir(&target).spawn().unwrap();
    for start in [&in_directory as &dyn Fn() -> Child, &by_default] {
        let (code, _, err) = end(start());
        assert_eq!(code, Some(6), "{err}");
        assert!(err.contains("move it away"), "{err}");
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"precious");
    }
    std::fs::remove_file(target.join("file")).unwrap();
    let (code, _, err) = end(in_directory());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(target.join("file")).unwrap(), bytes);
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
}

/// Design 5: every error is an event with --json, a command line that cannot be read too; standard output has that one
/// line and nothing else.
#[test]
fn an_unreadable_command_line_is_an_event_too() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, advice) in
        [(&["gte", "--json", "x"][..], "dray get"), (&["--json", "cp", "-B", "a", "h:"], "BatchMode")]
    {
        let (code, out, err) = end(dray(dir.path()).args(arguments).spawn().unwrap());
        assert_eq!((code, out.lines().count()), (Some(2), 1), "{out}{err}");
        let event = out.trim();
        assert!(event.starts_with('{') && event.ends_with('}'), "{event}");
        for part in ["\"event\":\"error\"", "\"kind\":\"usage\"", "\"exit_code\":2", advice] {
            assert!(event.contains(part), "{part}: {event}");
        }
    }
}

/// As with cp and scp, a file is not copied onto itself, by whatever name; a copy of it is another file.
#[test]
fn a_file_is_not_copied_onto_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("file"), b"bytes").unwrap();
    std::fs::hard_link(path("file"), path("link")).unwrap();
    std::fs::create_dir(path("sub")).unwrap();
    for same in ["file", "./file", ".", "sub/../file", "link"] {
        let (code, _, err) = end(dray(dir.path()).args(["cp", "file", same]).spawn().unwrap());
        assert_eq!(code, Some(2), "{same}: {err}");
        assert!(err.contains("are the same file"), "{err}");
    }
    let (code, _, err) = end(dray(dir.path()).args(["cp", "file", "sub"]).spawn().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(path("sub/file")).unwrap(), b"bytes");
}

/// --quiet says nothing where nothing is wrong, and no less where something is. The digits alone name an object.
#[test]
fn quiet_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let right = Oid::of(b"bytes").hex();
    for arguments in [&["-q", "demo", "file"][..], &["-q", "verify", "file", &right]] {
        let ended = end(dray(dir.path()).args(arguments).spawn().unwrap());
        assert_eq!(ended, (Some(0), String::new(), String::new()), "{arguments:?}");
    }
    let wrong = Oid::of(b"other").to_string();
    let (code, out, err) = end(dray(dir.path()).args(["-q", "verify", "file", &wrong]).spawn().unwrap());
    assert_eq!((code, out.as_str()), (Some(4), ""));
    assert!(err.contains("not that object") && err.contains("->"), "{err}");
}

/// Design 5: what failed, why, what to do: an expired ticket is refused and says so, whether its holder still answers
/// or not.
#[test]
fn an_expired_ticket_says_so_when_nobody_answers() {
    let dir = tempfile::tempdir().unwrap();
    let ticket = Ticket {
        repeated_permille: 0,
        protocol: PROTOCOL_VERSION,
        oid: Oid::of(b"x"),
        size_bytes: 1,
        secret: None,
        expires_unix_s: Some(1_000_000_000),
        hints: vec![Hint {
            uri: HintUri::Dray { host: "127.0.0.1".into(), port: 1 },
            node: Some(NodeId::from_bytes(*Oid::of(b"nobody").as_bytes())),
            priority: 0,
            weight: 1,
        }],
    };
    let text = format!("<{}>", ticket.to_text().unwrap());
    let (code, _, err) = end(dray(dir.path()).args(["get", "--local", &text]).spawn().unwrap());
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("expired") && err.contains("ask the sender for a new ticket"), "{err}");
}

/// The next event of `kind`, as it was printed.
fn next_event(lines: &mut impl BufRead, kind: &str) -> String {
    let mut line = String::new();
    while !line.contains(&format!("\"event\":\"{kind}\"")) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "no {kind} event");
    }
    line
}

/// The text between `before` and the next comma or brace.
fn field<'a>(event: &'a str, before: &str) -> &'a str {
    let rest = event.split_once(before).unwrap_or_else(|| panic!("no {before} in {event}")).1;
    rest.split([',', '}']).next().unwrap()
}

/// What `put` says of a receiver is what it knows: the whole object was sent to one that came to its end, and not to
/// one that was killed before, although both just closed their connections.
#[test]
fn a_killed_receiver_is_not_said_to_have_all() {
    let dir = tempfile::tempdir().unwrap();
    let size_bytes = 128 << 20;
    std::fs::write(dir.path().join("file"), vec![5; size_bytes]).unwrap();
    let mut put = Share(
        dray(dir.path()).args(["put", "file", "--json"]).stderr(Stdio::null()).spawn().unwrap(),
        String::new(),
    );
    let mut events = BufReader::new(put.0.stdout.take().unwrap());
    let shared = next_event(&mut events, "shared");
    let ticket = field(&shared, "\"ticket\":\"").trim_end_matches('"');
    let whole = elsewhere(dir.path())
        .args(["get", "--local", "-o", "-", ticket])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(end(whole).0, Some(0));
    let served = next_event(&mut events, "served");
    assert!(field(&served, "\"sent_bytes\":").parse::<usize>().unwrap() >= size_bytes, "{served}");
    // The consumer reads nothing more, so the sender is at most a window ahead when the receiver is killed.
    let mut killed = elsewhere(dir.path()).args(["get", "--local", "-o", "-", ticket]).spawn().unwrap();
    let mut output = killed.stdout.take().unwrap();
    output.read_exact(&mut [0; 10]).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let served = next_event(&mut events, "served");
    let sent: usize = field(&served, "\"sent_bytes\":").parse().unwrap();
    assert!(sent > 0 && sent < size_bytes, "{served}");
    // Who is still there when the sharing ends is told of, too.
    let mut asleep = elsewhere(dir.path()).args(["get", "--local", "-o", "-", ticket]).spawn().unwrap();
    let mut output = asleep.stdout.take().unwrap();
    output.read_exact(&mut [0; 10]).unwrap();
    signal(&put.0);
    let served = next_event(&mut events, "served");
    assert!(served.contains("sharing ended"), "{served}");
    let warning = next_event(&mut events, "warning");
    assert!(warning.contains("1 receiver was cut off"), "{warning}");
    signal(&asleep);
    assert_eq!(end(asleep).0, Some(130));
}

/// `nohup dray put`: a signal that was ignored when the command began does not end it, another one does.
#[test]
fn an_ignored_signal_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let mut shell = Command::new("sh");
    let begin = ["-c", "trap '' HUP; trap - TERM; exec \"$0\" put file --json", env!("CARGO_BIN_EXE_dray")];
    shell.args(begin).env("DRAY_DATA_DIR", dir.path().join("data")).env("XDG_CONFIG_HOME", dir.path());
    shell.env_remove("DRAY_CONFIG").current_dir(dir.path());
    let mut put = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(put.stdout.take().unwrap());
    let shared = next_event(&mut events, "shared");
    let ticket = field(&shared, "\"ticket\":\"").trim_end_matches('"');
    kill_process(Pid::from_child(&put), Signal::HUP).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", put.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    let is_caught = |signal: Signal| caught >> (signal.as_raw() - 1) & 1 == 1;
    assert!(!is_caught(Signal::HUP) && is_caught(Signal::TERM), "{caught:x}");
    let get = dray(dir.path()).args(["get", "--local", "-o", "out", ticket]).spawn().unwrap();
    assert_eq!(end(get).0, Some(0), "it still serves");
    signal(&put);
    assert_eq!(end(put).0, Some(0));
}

/// A fifo that nobody reads yet is waited for: its reader gets everything, and a signal ends the wait.
#[test]
fn a_fifo_waits_for_its_reader() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![6; 3 << 20];
    std::fs::write(dir.path().join("file"), &bytes).unwrap();
    let share = Share::of(dir.path(), "file");
    let fifo = dir.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let get = || dray(dir.path()).args(["get", "--local", "-o", "fifo", &share.1]).spawn().unwrap();
    let read = get();
    let received = std::fs::read(&fifo).unwrap();
    assert_eq!(end(read).0, Some(0));
    assert!(received == bytes, "{} bytes", received.len());
    let unread = get();
    // From then on the signal counts, whether the fifo has been reached or not.
    let begun = Instant::now();
    let is_ready = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", unread.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        u64::from_str_radix(&caught, 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    while !is_ready() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&unread);
    let (code, _, err) = end(unread);
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("nobody read"), "{err}");
}

/// Threat model, limits: as many idle connections as a listener takes keep nobody waiting.
#[test]
fn idle_connections_keep_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let share = Share::of(dir.path(), "file");
    let ticket: Ticket = share.1.parse().unwrap();
    let HintUri::Dray { port, .. } = ticket.hints[0].uri else { panic!("no address") };
    let idle: Vec<_> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let get = ["get", "--local", "-o", "copy", &share.1];
    let (code, _, err) = end(dray(dir.path()).args(get).spawn().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(dir.path().join("copy")).unwrap(), b"bytes");
    drop(idle);
}

/// S8: a hidden file is not made because a sender says so, and the user hears what it is called instead; and a file of
/// `/proc`, which tells of no bytes and has some, is not shared as an empty one.
#[test]
fn a_hidden_name_is_not_taken_unsaid() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".hidden"), b"bytes").unwrap();
    let share = Share::of(dir.path(), ".hidden");
    let there = tempfile::tempdir().unwrap();
    let (code, _, err) = end(dray(there.path()).args(["get", "--local", &share.1]).spawn().unwrap());
    let name = &Oid::of(b"bytes").hex()[..16];
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("\".hidden\"") && err.contains("warning") && err.contains(name), "{err}");
    assert_eq!(std::fs::read(there.path().join(name)).unwrap(), b"bytes");
    let (code, _, err) = end(dray(dir.path()).args(["put", "/proc/version"]).spawn().unwrap());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("no ordinary file"), "{err}");
}

/// Design 5: a port or a data directory that this machine does not give is refused, exit code 6.
#[test]
fn what_the_machine_refuses_is_exit_6() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"bytes").unwrap();
    let busy =
        std::net::TcpListener::bind("[::]:0").or_else(|_| std::net::TcpListener::bind("0.0.0.0:0")).unwrap();
    std::fs::create_dir(dir.path().join("dray")).unwrap();
    let port = format!("port = {}\n", busy.local_addr().unwrap().port());
    std::fs::write(dir.path().join("dray/config.toml"), port).unwrap();
    let (code, _, err) = end(dray(dir.path()).args(["put", "file"]).spawn().unwrap());
    assert!(code == Some(6) && err.contains("another program has it"), "{code:?} {err}");
    let mut nowhere = dray(dir.path());
    nowhere.env("DRAY_DATA_DIR", dir.path().join("file/below"));
    let (code, _, err) = end(nowhere.args(["put", "file"]).spawn().unwrap());
    assert!(code == Some(6) && err.contains("DRAY_DATA_DIR"), "{code:?} {err}");
}
