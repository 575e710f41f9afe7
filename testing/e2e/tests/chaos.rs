//! Everything goes wrong at once: a connection is shut each time that there was one for 250 ms in all, meanwhile processes stand still, packets vanish in bursts, the
//! disk is full for a moment, and what is cached rots. Each run ends with the right bytes or with a typed error, the same command
//! again goes on, and in the end nothing is left over: files, descriptors, threads, sockets. Where nothing but the network is broken, a transfer
//! that has begun comes to its end all the same.
//!
//! `DRAY_E2E_SEED=N` repeats the faults of a seed, as far as the machine does; with `DRAY_E2E_FULL=1` each test takes ten seeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_client::{Client, GetOptions, Session};
use dray_core::ErrorKind;
use dray_e2e::actions::{self, Share, assert_delivered, assert_same_tree, await_no_dray};
use dray_e2e::chaos::{Faults, Struck};
use dray_e2e::daemon::{self, Daemon};
use dray_e2e::data::{self, MIB, Random};
use dray_e2e::{Host, Lab, Outcome, Program, gate};
use dray_lab::conditions::Condition;
use dray_lab::{Link, Rate};

/// Slow enough that a transfer meets many faults.
const LINK: Link = Link::new(Rate::mbit(160), Duration::from_millis(5));
const CONDITION: Condition = Condition { name: "chaos", up: LINK, down: LINK, why: "long enough a transfer" };
/// Runs under faults before one is left in peace.
const RUNS_MAX: usize = 6;
/// Room on the small disk, beside what is delivered there.
const SIZE: u64 = 32 * MIB;
/// How long the ends of broken connections may take to notice (S10).
const NOTICE: Duration = Duration::from_secs(30);

/// The seeds of this run.
fn seeds() -> Vec<u64> {
    let first = match std::env::var("DRAY_E2E_SEED") {
        Ok(seed) => seed.parse().expect("DRAY_E2E_SEED is a number"),
        Err(_) => 20_261_122,
    };
    (first..first + gate::sized(1, 10)).collect()
}

/// Runs `scenario` with the faults of each seed between two hosts, and panics unless nothing is left of it at either.
fn for_each_seed(scenario: impl Fn(&Lab, &mut Random, u64)) {
    for seed in seeds() {
        let Some(lab) = Lab::of(2).condition(CONDITION).build() else { return };
        eprintln!("DRAY_E2E_SEED={seed}");
        scenario(&lab, &mut Random::new(seed), seed);
        let (near, far) = lab.pair();
        for host in [near, far] {
            assert_over(host);
            assert_tidy(host);
        }
    }
}

/// What a process holds: names of what its descriptors are, and the number of its threads.
fn held_by(pid: u32) -> (Vec<String>, usize) {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let mut held: Vec<_> = links
        .filter_map(|link| Some(fs::read_link(link.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    // Numbers of sockets and pipes tell nothing.
    held.iter_mut().for_each(|name| name.truncate(name.find(":[").unwrap_or(name.len())));
    held.sort();
    (held, fs::read_dir(format!("/proc/{pid}/task")).unwrap().count())
}

/// Sockets that process `pid` has open.
fn sockets_of(pid: u32) -> usize {
    held_by(pid).0.iter().filter(|name| *name == "socket").count()
}

/// Panics unless process `pid` soon holds no more than `before`.
#[track_caller]
fn assert_holds_no_more(pid: u32, before: &(Vec<String>, usize)) {
    assert_soon(|| {
        let now = held_by(pid);
        let is_as_before = now.0.len() <= before.0.len() && now.1 <= before.1;
        if is_as_before { Ok(()) } else { Err(format!("holds {now:?}, held {before:?}")) }
    });
}

/// Gauges of a daemon that are zero while nothing is under way. Each counts what is held itself: those that are made of the list of running transfers
/// (`queue_bytes`, `frozen_sources`) would be zero whatever was forgotten. Nothing is put or packed under chaos, so the last three stay zero unless something is wrong.
const GAUGES: [&str; 9] = [
    "sessions",
    "transactions",
    "connections",
    "reserved_bytes",
    "unread_bytes",
    "unread_shared_bytes",
    "incoming_bytes",
    "packing_bytes",
    "unpacking_streams",
];

/// What the daemon at `socket` tells of each of [`GAUGES`], summed over its labels; nothing if it does not answer.
fn gauges(socket: &Path) -> BTreeMap<&'static str, u64> {
    let page = String::from_utf8_lossy(&daemon::fetch(socket, "GET /v1/metrics", b"").body).into_owned();
    let mut found = BTreeMap::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("dray_")) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.split('{').next().unwrap();
        if let Some(gauge) = GAUGES.iter().find(|gauge| **gauge == name) {
            *found.entry(*gauge).or_default() += value.parse::<u64>().unwrap();
        }
    }
    found
}

/// Panics unless the gauges of a daemon are soon at rest, and it holds no more than `before`.
#[track_caller]
fn assert_gauges_at_rest(daemon: &Daemon, before: &(Vec<String>, usize)) {
    assert_soon(|| {
        let found = gauges(&daemon.socket);
        assert_eq!(found.len(), GAUGES.len(), "some are not told: {found:?}");
        let used: Vec<_> = found.into_iter().filter(|(_, value)| *value > 0).collect();
        if used.is_empty() { Ok(()) } else { Err(format!("not at rest: {used:?}")) }
    });
    assert_holds_no_more(daemon.process.pid(), before);
}

/// Does `work`, and adds to `seen` which of their gauges the daemons at `sockets` meanwhile showed in use.
fn watching_gauges<T>(
    sockets: &[PathBuf; 2],
    seen: &mut [BTreeSet<&'static str>; 2],
    work: impl FnOnce() -> T,
) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watches = std::array::from_fn::<_, 2, _>(|at| {
            let (socket, is_over) = (&sockets[at], &is_over);
            scope.spawn(move || {
                let mut seen = BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    seen.extend(
                        gauges(socket).into_iter().filter(|(_, value)| *value > 0).map(|(name, _)| name),
                    );
                    std::thread::sleep(Duration::from_millis(50));
                }
                seen
            })
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        for (seen, watch) in seen.iter_mut().zip(watches) {
            seen.extend(watch.join().unwrap());
        }
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Panics unless what is looked at is soon as it should be.
#[track_caller]
fn assert_soon(mut look: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + NOTICE;
    while let Err(what) = look() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Panics unless `outcome` is a success or a typed error: one event that says kind, cause and exit code.
#[track_caller]
fn assert_typed(outcome: &Outcome, allowed: &[i32]) {
    let code = outcome.code().unwrap_or_else(|| panic!("ended by a signal: {outcome}"));
    assert!(code == 0 || allowed.contains(&code), "exit code {code}, not in {allowed:?}: {outcome}");
    let events: Vec<serde_json::Value> = outcome
        .stdout_text()
        .lines()
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}: {outcome}"))
        })
        .collect();
    let errors: Vec<_> = events.iter().filter(|event| event["event"] == "error").collect();
    assert_eq!(errors.len(), usize::from(code != 0), "errors told: {outcome}");
    for error in errors {
        assert_eq!(error["exit_code"], code, "{outcome}");
        assert!(error["kind"].is_string() && error["what"].is_string(), "{outcome}");
        assert_ne!(error["kind"], "internal", "{outcome}");
    }
    for word in ["panicked", "RUST_BACKTRACE", "overflow"] {
        assert!(!outcome.stderr_text().contains(word), "{word}: {outcome}");
    }
}

/// Runs a command under faults, again and again until it is done, the last time in peace.
fn until_done<'a>(
    lab: &Lab,
    random: &mut Random,
    faults: &Faults,
    allowed: &[i32],
    start: impl Fn() -> Program<'a> + Sync,
    after: impl Fn(&Outcome),
) -> Struck {
    let mut struck = Struck::default();
    for run in 0..RUNS_MAX {
        let (outcome, hits) = faults.during(lab, random, || start().arg("--json").run());
        struck += hits;
        eprintln!("run {run}: exit {:?} after {:.1?}, {hits:?}", outcome.code(), outcome.elapsed);
        eprint!("{}", outcome.stderr_text());
        assert_typed(&outcome, allowed);
        after(&outcome);
        if outcome.code() == Some(0) {
            return struck;
        }
    }
    // The far end of the run before may still hold its files until it notices.
    let begun = Instant::now();
    let outcome = loop {
        let outcome = start().arg("--json").run();
        let is_held =
            outcome.code() == Some(6) && outcome.stderr_text().contains("another dray is receiving");
        if !is_held || begun.elapsed() > NOTICE {
            break outcome;
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    assert_typed(&outcome, &[]);
    struck
}

/// Panics unless nothing is left of what ran on `host`, once a command that has nothing to do has tidied up.
#[track_caller]
fn assert_tidy(host: &Host) {
    await_no_dray(host, NOTICE);
    // Temporary files of dead processes are removed by the next command that uses the store.
    let empty = host.file("empty");
    fs::write(&empty, b"").unwrap();
    Share::of(actions::put(host, &empty).start()).end();
    let store = host.data_dir().join("store/tmp");
    assert_eq!(data::names(&store), Vec::<std::ffi::OsString>::new(), "temporary files of the store");
    for place in [host.data_dir().join("run"), host.dir().join("run/dray"), host.data_dir().join("origins")] {
        let mut left = if place.exists() { data::names(&place) } else { Vec::new() };
        // A daemon leaves the file whose lock it held.
        left.retain(|name| name != "daemon.sock.lock");
        assert!(left.is_empty(), "left in {}: {left:?}", place.display());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("dray-fuse"), "{mounts}");
}

/// Panics unless all transfers of `host` are known to have ended, and those that are done lack nothing. Of their memory budget they tell what
/// was used when they ended, duplicates of the end game included; that it all comes back is for the simulator to see.
#[track_caller]
fn assert_over(host: &Host) {
    let told = host.dray().args(["explain", "--all", "--json"]).run();
    for line in told.stdout_text().lines() {
        let transfer: serde_json::Value = serde_json::from_str(line).unwrap();
        if transfer["event"] == "transfer" {
            assert_ne!(transfer["state"], "running", "{line}");
            assert!(transfer["state"] == "failed" || transfer["left_bytes"] == 0, "{line}");
        }
    }
}

/// A tmpfs on `host` with room for twice the file and a little.
fn small_disk(host: &Host, name: &str) -> PathBuf {
    let place = host.directory(name);
    let size = format!("size={}", 2 * SIZE + 8 * MIB);
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&place).status();
    assert!(mounted.unwrap().success());
    place
}

/// Issue "chaos", S2, S10, S14, S18: a `get` from a holder whose cached outboards rot.
#[test]
fn a_get_survives_chaos() {
    for_each_seed(|lab, random, seed| {
        let (holder, taker) = lab.pair();
        let source = holder.file("source");
        data::write_random(&source, SIZE, seed);
        actions::let_settle(&source);
        let share = actions::share(holder, &source);
        let disk = small_disk(taker, "small");
        let place = disk.join("there");
        fs::create_dir(&place).unwrap();
        actions::get(taker, &share.ticket, &place.join("first")).run().expect(0);
        fs::remove_file(place.join("first")).unwrap();
        actions::forget(taker);
        let at_rest = held_by(share.process.pid());
        let rotting = (holder.data_dir().join("store/objects"), vec!["outboard"]);
        let faults = Faults::new(Some(disk.clone()), Some(rotting));
        let copy = place.join("copy");
        // Nobody there in time; no room. A mangled outboard is mended without a word.
        let struck =
            until_done(lab, random, &faults, &[5, 7], || actions::get(taker, &share.ticket, &copy), |_| {});
        faults.assert_all_struck(struck);
        assert_delivered(&source, &copy, Some(&share.hash()));
        assert_holds_no_more(share.process.pid(), &at_rest);
        share.end();
    });
}

/// Connections that must have been shut before a transfer has come to its end.
const SHUT_MIN: u32 = 8;

/// Issue "chaos", S10, S2: a transfer that goes on while connections are shut when there were some for 250 ms in all and packets vanish, as a lost connection is replaced: it comes to its end in
/// one go and with the right bytes, under faults to the last. Those begin when bytes have come: nobody who does not answer at first is asked again.
#[test]
fn transfers_come_to_their_end_under_chaos() {
    for_each_seed(|lab, random, seed| {
        let (holder, taker) = lab.pair();
        let source = holder.file("source");
        data::write_random(&source, 3 * SIZE, seed);
        actions::let_settle(&source);
        let share = actions::share(holder, &source);
        let place = taker.directory("there");
        let copy = place.join("copy");
        actions::get(taker, &share.ticket, &place.join("first")).run().expect(0);
        fs::remove_file(place.join("first")).unwrap();
        actions::forget(taker);
        let at_rest = held_by(share.process.pid());
        let faults = Faults::of_the_network();
        let get = actions::get(taker, &share.ticket, &copy)
            .arg("--json")
            .time_limit(Duration::from_secs(200))
            .start();
        get.wait_until(false, || data::unfinished_bytes(&place) > 0);
        let (outcome, struck) = faults.during(lab, random, || get.wait());
        eprintln!("exit {:?} after {:.1?}, {struck:?}", outcome.code(), outcome.elapsed);
        assert_typed(&outcome, &[]);
        faults.assert_all_struck(struck);
        assert!(struck.shut >= SHUT_MIN, "connections were shut before the end: {struck:?}");
        assert_delivered(&source, &copy, Some(&share.hash()));
        assert_holds_no_more(share.process.pid(), &at_rest);
        share.end();
    });
}

/// Issue "chaos", S6: bytes that the store owns rot while they are served. The error says so, and the same bytes put again mend it.
#[test]
fn owned_bytes_that_rot_are_found_under_chaos() {
    for_each_seed(|lab, random, seed| {
        let (holder, taker) = lab.pair();
        let source = holder.file("source");
        data::write_random(&source, SIZE, seed);
        let put = || {
            let program = holder.dray().args(["put", "-"]).input_file(&source);
            Share::of(program.time_limit(Duration::from_secs(600)).start())
        };
        let copy = taker.directory("there").join("copy");
        let rotting = (holder.data_dir().join("store/objects"), vec!["outboard", "data"]);
        let faults = Faults::new(None, Some(rotting));
        let mut struck = Struck::default();
        let mut is_done = false;
        for run in 0..RUNS_MAX {
            let share = put();
            let at_rest = sockets_of(share.process.pid());
            let (outcome, hits) =
                faults.during(lab, random, || actions::get(taker, &share.ticket, &copy).arg("--json").run());
            struck += hits;
            eprintln!("run {run}: exit {:?} after {:.1?}, {hits:?}", outcome.code(), outcome.elapsed);
            assert_typed(&outcome, &[4, 5]);
            assert_soon(|| {
                let now = sockets_of(share.process.pid());
                if now <= at_rest { Ok(()) } else { Err(format!("{now} sockets, {at_rest} at rest")) }
            });
            let ended = share.process.terminate();
            assert_eq!(ended.code(), Some(0), "{ended}");
            is_done = outcome.code() == Some(0);
            if is_done {
                break;
            }
        }
        if !is_done {
            let share = put();
            actions::get(taker, &share.ticket, &copy).run().expect(0);
            share.end();
        }
        faults.assert_all_struck(struck);
        assert_delivered(&source, &copy, None);
    });
}

/// What a fetch may end with: nobody there in time, no room.
const TYPED: [ErrorKind; 3] = [ErrorKind::Unreachable, ErrorKind::TimedOut, ErrorKind::NoSpace];

/// Issue "chaos", "every gauge", S2, S10, S14: programs fetch through a daemon from another one, into a file and piece by piece. In the end both daemons, which
/// lived through it all, hold nothing that they did not hold before: no descriptor, thread, permit or buffer, each of which they were seen to hold.
#[test]
fn daemons_survive_chaos() {
    for_each_seed(|lab, random, seed| {
        let (holder, taker) = lab.pair();
        let source = holder.file("source");
        data::write_random(&source, SIZE, seed);
        actions::let_settle(&source);
        let disk = small_disk(taker, "small");
        let place = disk.join("there");
        fs::create_dir(&place).unwrap();
        let daemons = [holder, taker].map(Daemon::start);
        let [small, streamed] = ["small", "streamed"].map(|name| holder.file(name));
        data::write_random(&small, MIB, seed + 1);
        let bytes = data::random_bytes(SIZE as usize / 2, seed + 2);
        fs::write(&streamed, &bytes).unwrap();
        let [ticket, other, piecemeal] = [&source, &small, &streamed].map(|file| daemon::put(holder, file));
        let sockets = daemons.each_ref().map(|daemon| daemon.socket.clone());
        let open = || -> dray_core::Result<Session> {
            Session::open(&Client::connect_to(&sockets[1])?.expect("the daemon runs"), drop)
        };
        let fetch = |ticket: &str, name: &str| -> dray_core::Result<()> {
            let into = File::open(&place).unwrap();
            open()?.get_into(ticket, into, Some(OsStr::new(name)), &GetOptions::default()).map(drop)
        };
        let read = |ticket: &str, bytes: &[u8]| -> dray_core::Result<()> {
            let session = open()?;
            let mut get = session.get(ticket, &GetOptions { whole_file: true, ..GetOptions::default() })?;
            let mut read = 0;
            while let Some(piece) = get.piece()? {
                let place = piece.offset as usize..piece.offset as usize + piece.bytes.len();
                assert!(bytes.get(place) == Some(&piece.bytes), "a piece at {} is wrong", piece.offset);
                read += piece.bytes.len();
            }
            assert_eq!(read, bytes.len(), "bytes that were read to the end");
            Ok(())
        };
        // What a daemon opens once, it keeps.
        fetch(&other, "other").unwrap();
        fs::remove_file(place.join("other")).unwrap();
        read(&other, &fs::read(&small).unwrap()).unwrap();
        let at_rest = daemons.each_ref().map(|daemon| held_by(daemon.process.pid()));
        let faults = Faults::new(Some(disk.clone()), None);
        let mut struck = Struck::default();
        let mut seen = <[BTreeSet<_>; 2]>::default();
        let mut is_done = false;
        for run in 0..RUNS_MAX {
            let both = || {
                std::thread::scope(|scope| {
                    let reading = scope.spawn(|| read(&piecemeal, &bytes));
                    let fetched = fetch(&ticket, "copy");
                    [fetched, reading.join().unwrap()]
                })
            };
            let (results, hits) = faults.during(lab, random, || watching_gauges(&sockets, &mut seen, both));
            struck += hits;
            eprintln!("run {run}: {results:?}, {hits:?}");
            for (daemon, before) in daemons.iter().zip(&at_rest) {
                assert_gauges_at_rest(daemon, before);
            }
            is_done = results[0].is_ok();
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                assert!(TYPED.contains(&error.kind()), "{error:?}");
            }
            if is_done {
                break;
            }
        }
        if !is_done {
            fetch(&ticket, "copy").unwrap();
        }
        faults.assert_all_struck(struck);
        // One that is always zero says nothing of what was given back.
        let used = [
            &GAUGES[2..3],
            &["sessions", "transactions", "reserved_bytes", "unread_bytes", "unread_shared_bytes"],
        ];
        for (seen, used) in seen.iter().zip(used) {
            assert!(used.iter().all(|gauge| seen.contains(gauge)), "never in use: {used:?} of {seen:?}");
        }
        read(&piecemeal, &bytes).unwrap();
        assert_delivered(&source, &place.join("copy"), None);
        for daemon in daemons {
            assert!(!daemon.process.has_ended());
            daemon.stop();
        }
    });
}

/// Exit codes of a copy over ssh whose connections are shut: unreachable, or what ssh says of a login that was cut off (6); no room.
const COPY_CODES: [i32; 3] = [5, 6, 7];

/// Issue "chaos", S3, S10, S14, S18: `cp` to a host and from it.
#[test]
fn copies_survive_chaos() {
    for_each_seed(|lab, random, seed| {
        let (near, far) = lab.pair();
        // Mounted before sshd starts, which does not see what is mounted later.
        let disks = [near, far].map(|host| small_disk(host, "small"));
        for is_upload in [true, false] {
            let from = if is_upload { near } else { far };
            let source = from.file(format!("source-{is_upload}"));
            data::write_random(&source, SIZE, seed);
            let disk = disks[usize::from(is_upload)].clone();
            let copy = disk.join("there/copy");
            fs::create_dir(copy.parent().unwrap()).unwrap();
            let faults = Faults::new(Some(disk), None);
            let start = || match is_upload {
                true => actions::copy_to(near, far, &source, &copy),
                false => actions::copy_from(far, near, &source, &copy),
            };
            let wait = |_: &Outcome| await_no_dray(far, NOTICE);
            let struck = until_done(lab, random, &faults, &COPY_CODES, start, wait);
            faults.assert_all_struck(struck);
            assert_delivered(&source, &copy, None);
        }
    });
}

/// Issue "chaos", S53, S54: `cp -r` of a tree, in which each file is old or new.
#[test]
fn a_tree_survives_chaos() {
    for_each_seed(|lab, random, seed| {
        let (near, far) = lab.pair();
        let tree = near.directory("tree");
        for number in 0..40 {
            let dir = tree.join(format!("d{}", number % 7));
            fs::create_dir_all(&dir).unwrap();
            data::write_random(
                &dir.join(format!("f{number}")),
                random.within(0..2 * SIZE / 40),
                seed + number,
            );
        }
        let disk = small_disk(far, "small");
        let faults = Faults::new(Some(disk.clone()), None);
        let copy = disk.join("copy");
        fs::create_dir(&copy).unwrap();
        let start = || {
            near.dray().args(["cp", "-a"]).args(far.ssh_options()).arg(tree.join(".")).arg(far.remote(&copy))
        };
        let allowed = [&COPY_CODES[..], &[8]].concat();
        let wait = |_: &Outcome| {
            await_no_dray(far, NOTICE);
            assert_whole_files(&tree, &copy);
        };
        let struck = until_done(lab, random, &faults, &allowed, start, wait);
        faults.assert_all_struck(struck);
        assert_same_tree(far, &tree, &copy, None);
    });
}

/// Panics unless each file in `copy` that has its name already is that of `tree`.
#[track_caller]
fn assert_whole_files(tree: &Path, copy: &Path) {
    for dir in data::names(copy) {
        for name in data::names(&copy.join(&dir)) {
            if !data::is_ours(&name) {
                data::assert_same(&tree.join(&dir).join(&name), &copy.join(&dir).join(&name));
            }
        }
    }
}
