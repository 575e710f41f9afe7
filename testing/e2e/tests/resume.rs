//! Kills, freezes and restarts of either end: the same command again finishes the work, and little is done twice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_e2e::actions::{self, assert_delivered, assert_not_delivered, await_no_dray, share};
use dray_e2e::data::{self, GIB, MIB, Random};
use dray_e2e::process::Watch;
use dray_e2e::{Host, Lab, Outcome, Running, gate, sweep};
use rustix::process::Signal;

/// Bytes that may cross the wire twice for each kill.
const TWICE_PER_KILL_BYTES: u64 = 16 * MIB;
/// Bytes of the source that may be read beyond what remained.
const READ_AGAIN_BYTES: u64 = 64 * MIB;
/// Slow enough that a moment of a copy can be met on a busy machine: the last 5 % take 0.4 s. What is asserted are bytes.
const RATE_MBIT: u32 = 400;
/// How long a kill's survivor may take to notice.
const NOTICE: Duration = Duration::from_secs(30);

/// Which process is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Sender,
    Receiver,
}

/// Seeded moments: for each end the same number, as ascending shares of the bytes on disk from 5 to 95 %.
fn moments(seed: u64) -> Vec<(f64, End)> {
    let kills = gate::sized(10, 20);
    let mut random = Random::new(seed);
    let mut moments: Vec<(f64, End)> = (0..kills)
        .map(|number| {
            let end = if number % 2 == 0 { End::Sender } else { End::Receiver };
            (random.within(50..950) as f64 / 1000.0, end)
        })
        .collect();
    moments.sort_by(|left, right| left.0.total_cmp(&right.0));
    eprintln!("seed {seed}: {moments:?}");
    moments
}

fn size() -> u64 {
    gate::sized(384 * MIB, 8 * GIB)
}

/// Waits until the unfinished delivery in `dir` has `share` of `size` on disk; false if the command was done before.
fn await_share(running: &Running, dir: &Path, share: f64, size: u64) -> bool {
    let wanted = (share * size as f64) as u64;
    running.wait_until(true, || data::unfinished_bytes(dir) >= wanted)
}

/// One kind of copy, seen from the test: how it is started, and where its two processes are.
struct Copy<'a> {
    local: &'a Host,
    remote: &'a Host,
    source: PathBuf,
    copy: PathBuf,
    is_upload: bool,
}

impl Copy<'_> {
    fn start(&self) -> Running {
        let (local, remote) = (self.local, self.remote);
        let program = if self.is_upload {
            actions::copy_to(local, remote, &self.source, &self.copy)
        } else {
            actions::copy_from(remote, local, &self.source, &self.copy)
        };
        program.time_limit(Duration::from_secs(40)).start()
    }

    /// The process that sshd started for `running`: the youngest, as an earlier one may still be about to end.
    fn far_end(&self, running: &Running) -> u32 {
        let mut far = None;
        running.wait_until(true, || {
            far = self.remote.pids_of("dray").into_iter().max_by_key(|pid| started(*pid));
            far.is_some_and(|far| started(far) > started(running.pid()))
        });
        far.expect("a far end runs")
    }

    fn sender(&self) -> &Host {
        if self.is_upload { self.local } else { self.remote }
    }

    /// Kills one end with SIGKILL and waits for the local command to end.
    fn kill(&self, running: Running, end: End) {
        let local_is_sender = self.is_upload;
        if (end == End::Sender) == local_is_sender {
            running.signal(Signal::KILL);
            running.wait_until(true, || false);
            // Not waited for: its ssh may hold its pipes a little longer, and the user would not wait either.
        } else {
            let far = self.far_end(&running);
            sweep::signal(far, Signal::KILL);
            running.wait().expect(5);
        }
    }
}

/// Kills a copy at each of the seeded moments and repeats it, at once, until it is done.
fn survive_kills_of_a_copy(is_upload: bool, seed: u64) {
    let Some(lab) = Lab::of(2).rate_mbit(RATE_MBIT).build() else { return };
    let (local, remote) = lab.pair();
    let (from, to) = if is_upload { (local, remote) } else { (remote, local) };
    let copy = Copy {
        local,
        remote,
        source: from.file("source"),
        copy: to.directory("there").join("copy"),
        is_upload,
    };
    data::write_random(&copy.source, size(), seed);
    remote.sshd();
    let before = copy.sender().counters();
    let mut kills = 0;
    let dir = copy.copy.parent().unwrap().to_owned();
    for (share, end) in moments(seed) {
        let on_disk = data::unfinished_bytes(&dir);
        let running = copy.start();
        let mut watch = watch_sender(&copy, &running);
        if !await_share(&running, &dir, share, size()) {
            panic!("the copy was done before {share} of it was on disk: {}", running.wait());
        }
        copy.kill(running, end);
        kills += 1;
        assert!(!copy.copy.exists(), "nothing has the final name before it is proven");
        let read = watch.stop().read_chars;
        assert!(read + on_disk <= size() + READ_AGAIN_BYTES, "read {read}, {on_disk} were on disk");
    }
    let on_disk = data::unfinished_bytes(&dir);
    let running = copy.start();
    let mut watch = watch_sender(&copy, &running);
    let outcome = running.wait().expect(0);
    let read = if is_upload { outcome.read_chars } else { watch.stop().read_chars };
    assert_delivered(&copy.source, &copy.copy, None);
    report(&copy.sender().counters().sent_bytes.saturating_sub(before.sent_bytes), kills, read, on_disk);
    await_no_dray(remote, NOTICE);
}

/// Clock ticks from boot to the start of a process (`/proc/PID/stat`); 0 if it is gone.
fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name, in parentheses, may hold anything; the start is field 22, the 20th behind it.
    let fields = stat.rsplit(')').next().unwrap_or("");
    fields.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Watches the process that reads the source: the local command, or the one that sshd starts.
fn watch_sender(copy: &Copy<'_>, running: &Running) -> Watch {
    Watch::start(if copy.is_upload { running.pid() } else { copy.far_end(running) })
}

/// Checks the two bounds of the issue and prints the figures.
#[track_caller]
fn report(sent: &u64, kills: u64, read: u64, on_disk: u64) {
    let allowed = size() + size() / 50 + kills * TWICE_PER_KILL_BYTES;
    eprintln!(
        "{} MiB file, {kills} kills: {} MiB sent (at most {}); last run read {} MiB with {} MiB on disk",
        size() / MIB,
        sent / MIB,
        allowed / MIB,
        read / MIB,
        on_disk / MIB
    );
    assert!(*sent <= allowed, "sent {sent}, at most {allowed} with {kills} kills");
    let remained = size().saturating_sub(on_disk);
    assert!(read <= remained + READ_AGAIN_BYTES, "read {read}, {remained} remained");
}

/// Issue "kill -9 … then the same command again", D15, design 10 and 3, for a copy to the host.
#[test]
fn an_upload_survives_kills_of_either_end() {
    survive_kills_of_a_copy(true, 2601);
}

/// The same for a copy from the host.
#[test]
fn a_download_survives_kills_of_either_end() {
    survive_kills_of_a_copy(false, 2602);
}

/// The same for put and get by ticket: the ticket stays good across restarts of the put.
#[test]
fn put_and_get_survive_kills_of_either_end() {
    let Some(lab) = Lab::of(2).rate_mbit(RATE_MBIT).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, size(), 2603);
    // What is younger than two seconds is hashed again by each put, rightly.
    actions::let_settle(&source);
    let copy = taker.directory("got").join("copy");
    let dir = copy.parent().unwrap().to_owned();
    let mut serving = share(holder, &source);
    let ticket = serving.ticket.clone();
    let before = holder.counters();
    let start =
        |limit: u64| actions::get(taker, &ticket, &copy).time_limit(Duration::from_secs(limit)).start();
    let mut kills = 0;
    for (part, end) in moments(2603) {
        let running = start(300);
        if !await_share(&running, &dir, part, size()) {
            panic!("the get was done before {part} of it was on disk: {}", running.wait());
        }
        kills += 1;
        match end {
            End::Receiver => {
                running.kill();
            }
            End::Sender => {
                serving.process.kill();
                // Nobody serves now, so the get must give up by itself or be found still trying.
                drop(running);
                serving = share(holder, &source);
                assert_eq!(serving.ticket, ticket, "the same file has the same ticket after a restart");
            }
        }
        assert_not_delivered(&copy);
    }
    serving.process.kill();
    let on_disk = data::unfinished_bytes(&dir);
    serving = share(holder, &source);
    start(300).wait().expect(0);
    assert_delivered(&source, &copy, Some(&serving.hash()));
    let sent = holder.counters().sent_bytes - before.sent_bytes;
    report(&sent, kills + 1, serving.end().read_chars, on_disk);
}

/// Design 9: a get outlives a restart of the put that serves it.
#[test]
fn a_get_outlives_a_restart_of_the_put() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 100 * MIB, 5);
    actions::let_settle(&source);
    let serving = share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &serving.ticket, &copy).start();
    assert!(await_share(&running, copy.parent().unwrap(), 0.3, 100 * MIB));
    serving.process.kill();
    let serving = share(holder, &source);
    running.wait().expect(0);
    assert_delivered(&source, &copy, Some(&serving.hash()));
}

/// Design 9: a sender that is there and does nothing is a typed error, within 30 s; thawed, the same command finishes.
#[test]
fn a_frozen_put_is_an_error_in_time() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 60 * MIB, 6);
    let serving = share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &serving.ticket, &copy).start();
    assert!(await_share(&running, copy.parent().unwrap(), 0.2, 60 * MIB));
    serving.process.signal(Signal::STOP);
    let frozen = Instant::now();
    running.wait().expect(5);
    assert!(frozen.elapsed() < Duration::from_secs(30), "{:?}", frozen.elapsed());
    assert_not_delivered(&copy);
    serving.process.signal(Signal::CONT);
    actions::get(taker, &serving.ticket, &copy).run().expect(0);
    assert_delivered(&source, &copy, Some(&serving.hash()));
}

/// The same for the far end of a copy, in both directions.
#[test]
fn a_frozen_far_end_is_an_error_in_time() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (local, remote) = lab.pair();
    for is_upload in [true, false] {
        let (from, to) = if is_upload { (local, remote) } else { (remote, local) };
        let source = from.file(if is_upload { "up" } else { "down" });
        data::write_random(&source, 60 * MIB, 7);
        let dir = to.directory(if is_upload { "there" } else { "back" });
        let copy = Copy { local, remote, source, copy: dir.join("copy"), is_upload };
        let running = copy.start();
        assert!(await_share(&running, &dir, 0.2, 60 * MIB));
        let far = copy.far_end(&running);
        sweep::signal(far, Signal::STOP);
        let frozen = Instant::now();
        let outcome: Outcome = running.wait();
        sweep::signal(far, Signal::CONT);
        outcome.expect(5);
        assert!(frozen.elapsed() < Duration::from_secs(30), "{:?}", frozen.elapsed());
        await_no_dray(remote, NOTICE);
        assert!(!copy.copy.exists());
        copy.start().wait().expect(0);
        assert_delivered(&copy.source, &copy.copy, None);
    }
}

/// Design 5: an interrupted command says so with exit 130, keeps its state, and finishes when repeated.
#[test]
fn interrupted_and_resumed() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 60 * MIB, 8);
    let serving = share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &serving.ticket, &copy).start();
    assert!(await_share(&running, copy.parent().unwrap(), 0.5, 60 * MIB));
    running.interrupt();
    running.wait().expect(130);
    assert_eq!(data::unfinished(copy.parent().unwrap()).len(), 2, "data and map of the unfinished delivery");
    let before = holder.counters();
    actions::get(taker, &serving.ticket, &copy).run().expect(0);
    let sent = (holder.counters() - before).sent_bytes;
    assert!(sent < 46 * MIB, "{sent} bytes for the half that remained");
    assert_delivered(&source, &copy, Some(&serving.hash()));
}

/// Design 5, ssh: whenever a copy to a host is interrupted, also between its login and its first byte, the far end lets go of the file, and the same command goes on.
#[test]
fn interrupted_at_the_beginning_and_resumed() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let source = a.file("source");
    data::write_random(&source, 20 * MIB, 8);
    let copies = b.directory("copies");
    for moment_ms in (100..=500).step_by(50) {
        let copy = copies.join(moment_ms.to_string());
        let cp = || a.dray().arg("cp").args(b.ssh_options()).arg(&source).arg(b.remote(&copy));
        let running = cp().start();
        std::thread::sleep(Duration::from_millis(moment_ms));
        running.interrupt();
        let cut = running.wait();
        assert!(matches!(cut.code(), Some(130 | 0)), "{cut}");
        let again = cp().run();
        assert_eq!(again.code(), Some(0), "cut after {moment_ms} ms: {again}");
        data::assert_same(&source, &copy);
    }
}

/// Design 12: two commands never write one delivery at once; the second says so, or finds the work done.
#[test]
fn one_delivery_has_one_writer() {
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 40 * MIB, 9);
    let serving = share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let first = actions::get(taker, &serving.ticket, &copy).start();
    assert!(await_share(&first, copy.parent().unwrap(), 0.2, 40 * MIB));
    let second = actions::get(taker, &serving.ticket, &copy).run().expect(6);
    assert!(second.stderr_text().contains("receiving"), "{second}");
    first.wait().expect(0);
    assert_delivered(&source, &copy, Some(&serving.hash()));
}

/// S17, design 10: a checkpoint says only what is on the disk: first the data goes there, then the pairs and marks, then the names of both files, and only then the map that says so is
/// written, and goes there, too; and with `--fsync` so do the bytes before the file has its name, and the name after it. As strace sees it: a file system that writes names with their files
/// hides some of these from a loss of power, and the next checkpoint another.
#[test]
fn a_checkpoint_says_what_is_on_the_disk() {
    if !gate::has_tool("strace") {
        return;
    }
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (a, b) = lab.pair();
    let (source, copy, trace) = (a.file("source"), b.directory("there").join("copy"), b.file("trace"));
    // Nearly four seconds; of more than 64 MiB a checkpoint comes after two.
    data::write_random(&source, 72 * MIB, 17);
    let shared = share(a, &source);
    let calls = "trace=fsync,fdatasync,pwrite64,rename,renameat,renameat2,linkat";
    let strace =
        b.program("strace").args(["-f", "-y", "-qq", "--seccomp-bpf", "-e", calls, "-o"]).arg(&trace);
    let get = strace.arg(gate::dray_binary()).args(["get", "--fsync", &shared.ticket, "-o"]).arg(&copy);
    get.env("DRAY_DATA_DIR", b.file("data")).time_limit(Duration::from_secs(60)).run().expect(0);
    assert_delivered(&source, &copy, Some(&shared.hash()));
    let trace = std::fs::read_to_string(&trace).unwrap();
    // `1234 pwrite64(7</path/of/.copy.dray-….state>, "…"..., 9, 8192) = 9`: the map of what is durable begins there.
    let calls: Vec<(&str, &str)> =
        trace.lines().filter_map(|line| line.trim_start().split_once(' ')).collect();
    // Another thread may be traced before it is through: then the line ends in `<unfinished ...>`.
    let is_at_map = |call: &str| call.contains(", 8192)") || call.contains(", 8192 <unfinished");
    let is_map = |call: &str| call.contains("pwrite64(") && call.contains(".state>") && is_at_map(call);
    // The first one is that of an empty file.
    let (thread, _) = calls.iter().rfind(|(_, call)| is_map(call)).expect("a map");
    let step = |call: &str| match call.trim_start() {
        call if is_map(call) => Some("map written"),
        call if call.contains("\"copy\"") => Some("named"),
        call if call.starts_with("fdatasync(") && call.contains(".state>") => Some("state synced"),
        call if call.starts_with("fdatasync(") && call.contains("/.copy.dray-") => Some("data synced"),
        call if call.starts_with("fsync(") && call.contains("/.copy.dray-") => Some("bits synced"),
        call if call.starts_with("fsync(") && call.contains("/there>") => Some("names synced"),
        _ => None,
    };
    let steps_of = |thread: &str| -> Vec<&str> {
        calls.iter().filter(|(of, _)| *of == thread).filter_map(|(_, call)| step(call)).collect()
    };
    let steps = steps_of(thread);
    let checkpoint = ["data synced", "state synced", "names synced", "map written", "state synced"];
    assert_eq!(steps[..checkpoint.len().min(steps.len())], checkpoint, "{steps:?}");
    let (thread, _) = calls.iter().find(|(_, call)| step(call) == Some("named")).expect("a name");
    let steps = steps_of(thread);
    let finish = ["data synced", "bits synced", "named", "names synced"];
    assert!(steps.windows(finish.len()).any(|steps| steps == finish), "{steps:?}");
    shared.end();
}

/// S17, design 10: what a killed command marked is not believed after the machine was started anew; and that these marks are gone is on the disk before the state file says that it is of
/// this boot. Another boot is, here, one whose id the kernel's file does not have.
#[test]
fn marks_of_another_boot_are_gone_before_it_is_this_one() {
    if !gate::has_tool("strace") {
        return;
    }
    let Some(lab) = Lab::of(2).rate_mbit(160).build() else { return };
    let (a, b) = lab.pair();
    let (source, copy, trace) = (a.file("source"), b.directory("there").join("copy"), b.file("trace"));
    data::write_random(&source, 32 * MIB, 18);
    let shared = share(a, &source);
    let running = actions::get(b, &shared.ticket, &copy).start();
    assert!(await_share(&running, copy.parent().unwrap(), 0.3, 32 * MIB));
    running.signal(Signal::KILL);
    running.wait_until(true, || false);
    let id = b.file("boot_id");
    std::fs::write(&id, "00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let there = b.program("unshare").args(["--mount", "sh", "-c", script]).arg(&id);
    let calls = "trace=fsync,fdatasync,pwrite64";
    let strace = there.args(["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", calls, "-o"]).arg(&trace);
    let get = strace.arg(gate::dray_binary()).args(["get", &shared.ticket, "-o"]).arg(&copy);
    let before = a.counters();
    get.env("DRAY_DATA_DIR", b.file("data")).time_limit(Duration::from_secs(60)).run().expect(0);
    let sent = (a.counters() - before).sent_bytes;
    assert!(sent > 32 * MIB, "{sent} bytes: all of it again, as no checkpoint was made");
    assert_delivered(&source, &copy, Some(&shared.hash()));
    let trace = std::fs::read_to_string(&trace).unwrap();
    let of_state = |line: &&str| line.contains(".state>");
    let step = |call: &str| match call {
        call if call.contains("fdatasync(") => "synced",
        call if call.contains(", 128, 0") => "header",
        call if call.contains(", 4096)") || call.contains(", 4096 <") => "marks",
        call if call.contains(", 8192)") || call.contains(", 8192 <") => "map",
        _ => "pairs",
    };
    let steps: Vec<&str> = trace.lines().filter(of_state).map(step).take(4).collect();
    assert_eq!(steps, ["marks", "map", "synced", "header"], "{trace}");
    shared.end();
}
