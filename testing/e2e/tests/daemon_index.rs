//! The chunk index of the daemon: what lies in files of other names is not fetched, within the scope of design 16; and whatever happens
//! to those files, or to the index, the right bytes arrive (issue 5 part 5, Y2, Y3, Y8).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dray_e2e::actions::{self, Share, share};
use dray_e2e::daemon::{Daemon, await_that};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Bytes of the file.
const SIZE: u64 = 16 * MIB;
/// What may come before the sender's recipe does, and what differs.
const DIFFERENCE: u64 = 8 * MIB;

/// Of the link, in Mbit/s, where something is to be found: then the recipe is there long before much has come, also on a busy machine.
const SLOW: u32 = 10;
/// Where all is fetched, or it counts what arrives and not what it costs.
const FAST: u32 = 80;

fn lab() -> Option<Lab> {
    Lab::of(2).rate_mbit(FAST).build()
}

/// Does `work`, by which something is to be found, on a slow link.
fn slowly<T>(lab: &Lab, work: impl FnOnce() -> T) -> T {
    lab.limit_rate(SLOW);
    let done = work();
    lab.limit_rate(FAST);
    done
}

/// The index of a daemon.
fn state(daemon: &Daemon) -> Value {
    let (status, state) = daemon.ask("GET /v1/index", b"");
    assert_eq!(status, 200, "{state}");
    state
}

/// Waits until the daemon has taken in as many files.
#[track_caller]
fn await_files(daemon: &Daemon, files: u64) {
    await_that("the index is filled", || state(daemon)["files"] == files);
}

/// A daemon that keeps an index.
fn start(host: &Host) -> Daemon {
    host.configure("index = true\n");
    Daemon::start(host)
}

/// Two versions of a file, shared by a host.
struct Versions {
    old: PathBuf,
    first: Share,
    second: Share,
}

fn versions(from: &Host) -> Versions {
    let (old, new) = (from.file("old"), from.file("new"));
    data::write_random(&old, SIZE, 401);
    fs::copy(&old, &new).unwrap();
    let file = File::options().write(true).open(&new).unwrap();
    file.write_all_at(&data::random_bytes(100_000, 402), SIZE / 2 + 5).unwrap();
    file.write_all_at(b"and something behind the end", SIZE).unwrap();
    Versions { first: share(from, &old), second: share(from, &new), old }
}

/// Fetches `share` to `path` and removes it again; the bytes on the wire.
#[track_caller]
fn cost(what: &str, to: &Host, share: &Share, path: &Path) -> u64 {
    let bytes = to.carried(what, || {
        let got = actions::get(to, &share.ticket, path).time_limit(Duration::from_secs(120)).run();
        got.expect(0).assert_manners();
    });
    assert_eq!(data::b3sum(path), share.hash(), "{what}");
    fs::remove_file(path).unwrap();
    bytes
}

/// A daemon whose index knows `old` as `mine`.
fn daemon_with(to: &Host, old: &Path, mine: &Path) -> Daemon {
    let daemon = start(to);
    fs::copy(old, mine).unwrap();
    dray_e2e::daemon::put(to, mine);
    await_files(&daemon, 1);
    daemon
}

/// Puts a file and waits until it was read for the index.
#[track_caller]
fn put_and_await(daemon: &Daemon, host: &Host, path: &Path) {
    let read = || state(daemon)["read_bytes"].as_u64().unwrap();
    let before = read();
    dray_e2e::daemon::put(host, path);
    await_that("it is taken in", || read() >= before + SIZE && state(daemon)["waiting"] == 0);
}

/// Y8, the issue's own scenario: a file that was fetched is renamed beside the destination, its sender edits it, and a get of the new version
/// under a third name fetches the difference; so it does when the file was moved into a folder below. Without the index, and with
/// the file outside the destination's directory (design 16), everything is fetched.
#[test]
fn what_lies_under_another_name_is_not_fetched() {
    let Some(lab) = lab() else { return };
    let (from, to) = lab.pair();
    let versions = versions(from);
    let daemon = start(to);
    let dir = to.directory("in");
    actions::get(to, &versions.first.ticket, &dir.join("a"))
        .time_limit(Duration::from_secs(120))
        .run()
        .expect(0);
    await_files(&daemon, 1);
    fs::rename(dir.join("a"), dir.join("b")).unwrap();
    let cost = |what: &str, path: &Path| {
        let bytes = cost(what, to, &versions.second, path);
        // What was fetched would be at hand the next time.
        actions::forget(to);
        bytes
    };
    let found = |what: &str| slowly(&lab, || cost(what, &dir.join("c")));
    let renamed = found("renamed");
    assert!(renamed <= DIFFERENCE, "{renamed}");
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    fs::rename(dir.join("b"), below.join("b")).unwrap();
    // Where it is now is seen when something is fetched to there.
    let moved = slowly(&lab, || cost("moved", &below.join("c")));
    assert!(moved <= DIFFERENCE, "{moved}");
    let from_above = found("from above");
    assert!(from_above <= DIFFERENCE, "{from_above}");

    let aside = cost("outside", &to.directory("other").join("c"));
    assert!(aside > SIZE, "{aside}");
    to.configure("index = false\n");
    daemon.process.signal(Signal::HUP);
    await_that("the index is closed", || state(&daemon)["open"] == false);
    let off = cost("index = false", &dir.join("c"));
    assert!(off > SIZE, "{off}");
    daemon.stop();
    // What it had is gone: it is made anew, of what is there as it was put.
    let daemon = start(to);
    let mine = dir.join("mine");
    fs::rename(below.join("b"), &mine).unwrap();
    put_and_await(&daemon, to, &mine);
    let again = found("on again");
    assert!(again <= DIFFERENCE, "{again}");
    daemon.stop();
}

/// Y27: the daemon's own gets use it as well, to a directory that was handed over; and what is shared is in it, not only what was fetched.
#[test]
fn gets_of_the_daemon_use_it() {
    let Some(lab) = lab() else { return };
    let (from, to) = lab.pair();
    let versions = versions(from);
    let dir = to.directory("in");
    let daemon = daemon_with(to, &versions.old, &dir.join("mine"));
    let (_stream, session) = daemon.session();
    let folder = daemon.hand_over(&File::open(&dir).unwrap()).unwrap();
    let wish =
        json!({"session": session, "ticket": versions.second.ticket, "descriptor": folder, "name": "got"});
    lab.limit_rate(SLOW);
    let bytes = to.carried("a get of the daemon", || {
        let get = daemon.transaction("/v1/gets", &wish);
        let (status, got) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
        assert_eq!((status, &got["size_bytes"]), (200, &(SIZE + 28).into()), "{got}");
    });
    assert_eq!(data::b3sum(&dir.join("got")), versions.second.hash());
    assert!(bytes <= DIFFERENCE, "{bytes}");
    let figures = String::from_utf8(daemon.fetch("GET /v1/metrics", b"").body).unwrap();
    let line = figures
        .lines()
        .find_map(|line| line.strip_prefix("dray_received_bytes_total{source=\"other-files\"} "));
    let from_here: u64 = line.and_then(|number| number.parse().ok()).unwrap();
    assert!(
        from_here + bytes >= SIZE && from_here <= SIZE,
        "{from_here} bytes from here, {bytes} on the wire"
    );
    daemon.stop();
}

/// Y8, Y9: what the index knows below the destination's directory is found with a search, too, wherever that begins.
#[test]
fn a_search_has_what_the_index_knows() {
    let Some(lab) = lab() else { return };
    let (from, to) = lab.pair();
    let versions = versions(from);
    let dir = to.directory("in");
    let mine = dir.join("deep");
    fs::create_dir(&mine).unwrap();
    let daemon = daemon_with(to, &versions.old, &mine.join("mine"));
    for search in [&dir, &mine] {
        let bytes = slowly(&lab, || {
            to.carried("with a search", || {
                let mut get = actions::get(to, &versions.second.ticket, &dir.join("c"));
                get = get.arg("--search").arg(search).time_limit(Duration::from_secs(120));
                get.run().expect(0).assert_manners();
            })
        });
        assert_eq!(data::b3sum(&dir.join("c")), versions.second.hash());
        fs::remove_file(dir.join("c")).unwrap();
        actions::forget(to);
        assert!(bytes <= DIFFERENCE, "{search:?}: {bytes}");
    }
    daemon.stop();
}

/// Design 16: a copy to here by somebody who may log in here finds what lies beside the destination's directory, in that account, too; a copy
/// from there to here only what lies below it, and with `-W` nothing is looked for.
#[test]
fn copies_over_ssh_use_it() {
    let Some(lab) = lab() else { return };
    let (from, to) = lab.pair();
    let versions = versions(from);
    to.sshd();
    let beside = to.directory("beside");
    let daemon = daemon_with(to, &versions.old, &beside.join("mine"));
    let new = from.file("new");
    for dir in ["up", "up-whole", "beside/down"] {
        to.directory(dir);
    }
    let cost = |what: &str, dir: &str, is_upload: bool, flags: &[&str]| {
        let copy = to.file(dir).join("copy");
        let program = match is_upload {
            true => actions::copy_to(from, to, &new, &copy),
            false => actions::copy_from(from, to, &new, &copy),
        };
        let bytes = to.carried(what, || {
            program.args(flags).time_limit(Duration::from_secs(120)).run().expect(0);
        });
        assert_eq!(data::b3sum(&copy), versions.second.hash());
        bytes
    };
    assert!(slowly(&lab, || cost("upload", "up", true, &[])) <= DIFFERENCE);
    assert!(cost("upload -W", "up-whole", true, &["-W"]) > SIZE);
    assert!(cost("download to above it", "beside/down", false, &[]) > SIZE);
    fs::rename(beside.join("mine"), to.file("beside/down/mine")).unwrap();
    let copy = to.file("beside/down/copy");
    fs::remove_file(&copy).unwrap();
    assert!(slowly(&lab, || cost("download to beside it", "beside/down", false, &[])) <= DIFFERENCE);
    daemon.stop();
}

/// Adversaries: beside a file that gives hope, the one with the chunks is overwritten, also so that nobody sees it, cut short, a link to a file
/// outside, a fifo or a device by the time they are asked for; the daemon hangs; the index was altered, or left by a daemon that was
/// killed while it filled it. The right bytes arrive each time, and of what is no longer there nothing is taken.
#[test]
fn whatever_happens_the_right_bytes_arrive() {
    let Some(lab) = lab() else { return };
    let (from, to) = lab.pair();
    let versions = versions(from);
    let dir = to.directory("in");
    let (copy, hope) = (dir.join("copy"), dir.join("hope"));
    let mut daemon = start(to);
    let get = |what: &str| cost(what, to, &versions.second, &copy);
    data::write_random(&hope, SIZE, 411);
    put_and_await(&daemon, to, &hope);
    let changes =
        ["nothing", "overwritten", "overwritten in secret", "cut short", "a link", "a fifo", "a device"];
    for (number, what) in changes.into_iter().enumerate() {
        let mine = dir.join(format!("mine{number}"));
        fs::copy(&versions.old, &mine).unwrap();
        put_and_await(&daemon, to, &mine);
        match what {
            "nothing" => {}
            "overwritten" => data::write_random(&mine, SIZE, 409),
            "overwritten in secret" => {
                let file = File::options().write(true).open(&mine).unwrap();
                let modified = file.metadata().unwrap().modified().unwrap();
                let step = 4 * MIB;
                for at in (0..SIZE).step_by(step as usize) {
                    file.write_all_at(&data::random_bytes(step as usize, 409 + at), at).unwrap();
                }
                file.set_modified(modified).unwrap();
            }
            "cut short" => File::options().write(true).open(&mine).unwrap().set_len(SIZE / 3).unwrap(),
            _ => {
                fs::rename(&mine, to.file("outside")).unwrap();
                plant(what, &mine, &to.file("outside"));
            }
        }
        let bytes = if what == "nothing" { slowly(&lab, || get(what)) } else { get(what) };
        assert_eq!(bytes < SIZE / 2, what == "nothing", "{what}: {bytes}");
        fs::remove_file(&mine).unwrap();
    }
    daemon.process.signal(Signal::STOP);
    get("a daemon that hangs");
    daemon.process.signal(Signal::CONT);
    drop(daemon.process.kill());
    let mut altered = 0;
    each_file(&to.data_dir().join("index"), &mut |path| {
        let mut bytes = fs::read(path).unwrap();
        bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
        altered += usize::from(!bytes.is_empty());
        fs::write(path, bytes).unwrap();
    });
    assert!(altered > 2, "{altered} files were altered");
    daemon = start(to);
    let mine = dir.join("mine");
    fs::copy(&versions.old, &mine).unwrap();
    put_and_await(&daemon, to, &mine);
    let anew = slowly(&lab, || get("an altered index"));
    assert!(anew < SIZE / 2, "{anew}");
    for _ in 0..3 {
        data::write_random(&to.file("more"), SIZE, 410);
        dray_e2e::daemon::put(to, &to.file("more"));
        let before = state(&daemon)["read_bytes"].as_u64().unwrap();
        await_that("it reads", || {
            state(&daemon)["read_bytes"].as_u64().unwrap() > before || state(&daemon)["waiting"] == 0
        });
        drop(daemon.process.kill());
        daemon = start(to);
    }
    await_that("it is filled in the end", || {
        let now = state(&daemon);
        now["files"].as_u64().is_some_and(|files| files >= 3) && now["waiting"] == 0
    });
    let killed = slowly(&lab, || get("a daemon that was killed"));
    assert!(killed < SIZE / 2, "{killed}");
    daemon.stop();
}

/// Puts something that is no file at `path`.
fn plant(what: &str, path: &Path, aim: &Path) {
    let node = |kind, device| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).unwrap();
    };
    match what {
        "a link" => std::os::unix::fs::symlink(aim, path).unwrap(),
        "a fifo" => node(rustix::fs::FileType::Fifo, 0),
        "a device" => node(rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 5)),
        other => panic!("{other}"),
    }
}

/// Calls `work` with every file below `dir`.
fn each_file(dir: &Path, work: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => each_file(&path, work),
            path => work(&path),
        }
    }
}
