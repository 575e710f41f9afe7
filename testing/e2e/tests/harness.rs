//! The witnesses themselves: before a test believes a counter, a capture, a delay or a kill, each is shown to see
//! what is there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dray_e2e::daemon::await_that;
use dray_e2e::data::{self, MIB};
use dray_e2e::power::{Disk, FileSystem, is_isolated};
use dray_e2e::{Host, Lab, capture, gate, power, sweep};
use dray_lab::disk::{SlowDisk, Speed};
use rustix::process::Signal;

/// Sends `bytes` over a plain TCP connection from one host to the other.
fn send_plain(from: &Host, to: &Host, bytes: &[u8]) -> Duration {
    let address = SocketAddr::from((to.address(), 7000));
    let listener = to.enter(|| TcpListener::bind(address).unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            got
        });
        let started = Instant::now();
        let mut stream = from.enter(|| TcpStream::connect(address).unwrap());
        let elapsed = started.elapsed();
        stream.write_all(bytes).unwrap();
        drop(stream);
        assert!(reader.join().unwrap() == bytes);
        elapsed
    })
}

/// Counters count what crosses and a capture finds a text known to cross: the positive control of every test that
/// says "no payload on the wire" or "the secret is not on the wire".
#[test]
fn counters_and_captures_see_what_crosses_the_wire() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let mut bytes = data::random_bytes(3 * MIB as usize, 1);
    let known = b"a secret that is not one";
    bytes[2_000_000..2_000_000 + known.len()].copy_from_slice(known);
    let before = (a.counters(), b.counters());
    let recording = b.capture();
    send_plain(a, b, &bytes);
    let packets = recording.stop();
    let (sent, received) = (a.counters() - before.0, b.counters() - before.1);
    for bytes in [sent.sent_bytes, received.received_bytes] {
        assert!((3 * MIB..3 * MIB + MIB / 4).contains(&bytes), "{sent:?} {received:?}");
    }
    assert!(sent.received_bytes < MIB / 4, "{sent:?}");
    // TCP may send some of it again on a busy machine.
    let payload = capture::payload_bytes(packets.iter().filter(|packet| packet.from.0 == a.address()));
    assert!((3 * MIB..3 * MIB + MIB / 4).contains(&payload), "{payload} bytes");
    assert!(capture::contains(&packets, known));
    assert!(!capture::contains(&packets, b"a secret that was not sent"));
}

/// A delayed wire carries everything, and a connection takes no less than one round trip to open; that it takes no more is for the calibration
/// of the lab.
#[test]
fn a_delayed_wire_delays_and_loses_nothing() {
    let Some(lab) = Lab::of(2).round_trip(Duration::from_millis(100)).build() else { return };
    let (a, b) = lab.pair();
    let opening = send_plain(a, b, &data::random_bytes(2 * MIB as usize, 2));
    assert!(opening >= Duration::from_millis(100), "{opening:?}");
}

/// A limited wire is no faster than it says.
#[test]
fn a_limited_wire_limits() {
    let Some(lab) = Lab::of(2).rate_mbit(80).build() else { return };
    let (a, b) = lab.pair();
    let started = Instant::now();
    send_plain(a, b, &data::random_bytes(5 * MIB as usize, 3));
    let elapsed = started.elapsed().as_millis();
    assert!(elapsed >= 430, "{elapsed} ms");
}

/// The sshd of a host is real: scp and rsync work through it, and a session sees that host's home and addresses.
#[test]
fn sshd_serves_scp_and_a_session_of_its_host() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let (source, copy) = (a.file("source"), b.file("copy"));
    data::write_random(&source, 2 * MIB, 4);
    let scp = a.program("scp").arg("-O").args(b.ssh_options()).arg(&source).arg(b.remote(&copy)).run();
    assert_eq!(scp.code(), Some(0), "{scp}");
    data::assert_same(&source, &copy);
    let command = "pwd; ip -brief -4 addr show e0; command -v dray";
    let session =
        a.program("ssh").args(b.ssh_options()).arg(format!("root@{}", b.address())).arg(command).run();
    let text = session.stdout_text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), b.home().to_str(), "{session}");
    assert!(lines.next().is_some_and(|line| line.contains(&b.address().to_string())), "{session}");
    assert!(lines.next().is_some_and(|line| line.starts_with(b.dir().to_str().unwrap())), "{session}");
}

/// A program past its limit is killed and fails its test; memory, reads, output and signals are as they were.
#[test]
fn programs_are_measured_and_limited() {
    let Some(lab) = Lab::of(1).build() else { return };
    let host = lab.host(0);
    let file = host.file("read");
    data::write_random(&file, 40 * MIB, 5);
    let script =
        "echo ready; cat >/dev/null; dd if=read of=/dev/null bs=32M 2>/dev/null; echo trouble >&2; exit 9";
    let outcome = host.program("sh").args(["-c", script]).input(b"some input").run();
    assert_eq!(outcome.code(), Some(9));
    assert_eq!((outcome.stdout_text().as_str(), outcome.stderr_text().as_str()), ("ready", "trouble\n"));
    let dd = host.program("dd").args(["if=read", "of=/dev/null", "bs=32M", "status=none"]).run();
    assert!((40 * MIB..41 * MIB).contains(&dd.read_chars), "{}", dd.read_chars);

    let cat = host.program("cat").arg("/dev/zero").output_file(&host.file("null")).start();
    cat.wait_until(false, || host.pids_of("cat") == [cat.pid()]);
    assert_eq!(cat.kill().signal(), Some(Signal::KILL.as_raw()));
    assert!(host.pids_of("cat").is_empty());

    let sleep = host.program("sleep").arg("30").time_limit(Duration::from_millis(50)).start();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sleep.wait()));
    assert!(failed.is_err());
}

/// "kill -9 leaves nothing", of the hosts with names, too: neither programs, nor namespaces, mounts or files.
#[test]
fn a_killed_test_leaves_nothing() {
    const VICTIM: &str = "DRAY_E2E_VICTIM";
    if std::env::var_os(VICTIM).is_some() {
        let lab = Lab::of(2).build().unwrap();
        let (host, other) = lab.pair();
        let disk = host.directory("disk");
        assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&disk).status().unwrap().success());
        other.sshd();
        let sleeping = host.program("sleep").arg("1000").start();
        // On a line of its own: libtest begins one.
        println!("\nvictim {} {}", lab.dir().display(), sleeping.pid());
        std::thread::sleep(Duration::from_secs(1000));
    }
    if !gate::can_run() {
        return;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "a_killed_test_leaves_nothing", "--nocapture"]).env(VICTIM, "1");
    let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.into_iter().find_map(|line| line.strip_prefix("victim ").map(str::to_owned)).unwrap();
    let (dir, pid) = told.split_once(' ').unwrap();
    let tag = Path::new(dir).file_name().unwrap().to_str().unwrap().to_owned();
    let namespaces = || data::names(Path::new("/run/netns")).into_iter();
    let left = || {
        let named = namespaces().filter(|name| name.to_str().is_some_and(|name| name.starts_with(&tag)));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let runs = Path::new("/proc").join(pid).exists();
        (named.count(), mounts.matches(dir).count(), Path::new(dir).exists(), runs)
    };
    let before = left();
    assert!(before.0 >= 2 && before.1 >= 1 && before.2 && before.3, "{before:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while left() != (0, 0, false, false) {
        assert!(Instant::now() < deadline, "namespaces, mounts, files, program: {:?}", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two labs at once do not see each other, and a lab leaves nothing when it goes.
#[test]
fn labs_are_apart_and_leave_nothing() {
    let Some(first) = Lab::of(2).build() else { return };
    let Some(second) = Lab::of(2).build() else { return };
    assert_eq!(first.host(0).address(), second.host(0).address());
    let listener = first.host(1).enter(|| TcpListener::bind((first.host(1).address(), 7001)).unwrap());
    let attempt = second.host(0).enter(|| TcpStream::connect((second.host(1).address(), 7001)));
    assert_eq!(attempt.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    drop(listener);
    let (dir, namespace) = (first.dir().to_owned(), Path::new("/run/netns").join(first.host(0).namespace()));
    assert!(dir.exists() && namespace.exists());
    drop(first);
    assert!(!dir.exists() && !namespace.exists());
}

/// Where the victim below says which process it is.
const VICTIM: &str = "DRAY_E2E_VICTIM";

/// Waits for a slow disk that it serves itself, until it is killed.
#[test]
#[ignore = "the victim of `a_killed_user_of_a_slow_disk_leaves_nothing`"]
fn waits_for_its_own_disk() {
    let Some(dir) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    let speed = Speed { bytes_per_s: 200_000, seek: Duration::ZERO };
    let disk = SlowDisk::new(&dir, &dir.join("mounted"), 64 << 20, speed).unwrap();
    fs::write(dir.join("pid"), std::process::id().to_string()).unwrap();
    loop {
        let file = fs::File::create(disk.path().join("file")).unwrap();
        (&file).write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
    }
}

/// Whether a loop device has the file that it had, by whatever name: the kernel counts each attachment.
fn is_attached(device: &sweep::LoopDevice) -> bool {
    let is_same = |now: &sweep::LoopDevice| (&now.name, &now.sequence) == (&device.name, &device.sequence);
    sweep::loop_devices().iter().any(is_same)
}

/// Issue "kill -9 of a test leaves nothing": not even where the one that is killed waits at that moment for a disk that it serves itself, and which by then nobody serves.
#[test]
fn a_killed_user_of_a_slow_disk_leaves_nothing() {
    if !gate::can_run() {
        return;
    }
    let dir = std::env::temp_dir().join(sweep::own_prefix() + "victim");
    fs::create_dir_all(&dir).unwrap();
    let mut victim = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount --make-rprivate / && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "waits_for_its_own_disk", "--ignored", "--nocapture"])
        .env(VICTIM, &dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let named = dir.join("pid");
    await_that("the disk is there", || {
        assert!(victim.try_wait().unwrap().is_none(), "it ended by itself");
        fs::read_to_string(&named).is_ok_and(|pid| !pid.is_empty())
    });
    let pid: u32 = fs::read_to_string(&named).unwrap().parse().unwrap();
    let waits = |pid: u32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads
            .filter_map(|it| fs::read_to_string(it.ok()?.path().join("stat")).ok())
            .any(|it| it.contains(") D "))
    };
    await_that("it waits for its disk", || waits(pid));
    let of_it = |device: &sweep::LoopDevice| device.file == dir.join("slow.disk");
    let device = sweep::loop_devices().into_iter().find(of_it).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL)
        .unwrap();
    await_that("it is gone", || victim.try_wait().unwrap().is_some());
    await_that("its device is gone", || !is_attached(&device));
    // A limit stays with the number of the device.
    if let Ok(numbers) = fs::read_to_string(format!("/sys/class/block/{}/dev", device.name)) {
        let folder = PathBuf::from(format!("/sys/class/bdi/{}", numbers.trim()));
        for (name, value) in [("min_bytes", "0"), ("max_ratio", "100"), ("strict_limit", "0")] {
            let _ = fs::write(folder.join(name), value);
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// Has a disk that can lose its power, mounted or, as after a loss, not, until it is killed.
#[test]
#[ignore = "the victim of `a_killed_test_of_power_cuts_leaves_no_loop_device`"]
fn waits_with_a_disk_that_can_lose_its_power() {
    let Some(told) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    if !is_isolated("waits_with_a_disk_that_can_lose_its_power") {
        return;
    }
    let lab = Lab::of(1).build().unwrap();
    let host = lab.host(0);
    let mut disk = Disk::new(FileSystem::Ext4, &host.file("images"), &host.file("disk"), 64 * MIB, 6);
    let disturbance = told.ends_with("mounted").then(|| disk.disturb(true));
    if disturbance.is_none() {
        disk.stop();
    }
    let written = told.with_extension("new");
    fs::write(&written, lab.dir().to_str().unwrap()).unwrap();
    fs::rename(written, told).unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

/// Issue "kill -9 of a test leaves nothing": of one that cuts the power of disks no loop device either, of which the kernel tells no name once the file below it
/// is unmounted. Devices are known by the kernel's number of each attachment, so that one which lost its name is seen, and one that somebody else has by now is not taken for it.
#[test]
fn a_killed_test_of_power_cuts_leaves_no_loop_device() {
    if !power::can_run() {
        return;
    }
    for state in ["mounted", "unmounted"] {
        let dir = std::env::temp_dir().join(format!("{}victim-{state}", sweep::own_prefix()));
        fs::create_dir_all(&dir).unwrap();
        let told = dir.join(state);
        let before = sweep::loop_devices();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "waits_with_a_disk_that_can_lose_its_power", "--ignored", "--nocapture"])
            .env(VICTIM, &told)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        await_that("the disk is there", || {
            assert!(victim.try_wait().unwrap().is_none(), "it ended by itself");
            told.exists()
        });
        let lab = PathBuf::from(fs::read_to_string(&told).unwrap());
        let mut its = sweep::loop_devices();
        its.retain(|device| device.file.starts_with(&lab));
        assert!(
            its.len() == 1 && is_attached(&its[0]) && !before.contains(&its[0]),
            "{its:?}, before {before:?}"
        );
        victim.kill().unwrap();
        victim.wait().unwrap();
        await_that("its files are gone", || !lab.exists());
        await_that(&format!("{its:?} is gone"), || !is_attached(&its[0]));
        fs::remove_dir_all(&dir).unwrap();
    }
}
