//! `dray explain`: its figures against the counters of the holders' devices, and its words against what was done to the
//! sources (design 9, "explain's figures agree with the interface counters within 5 %").
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::path::Path;
use std::time::{Duration, Instant};

use dray_e2e::actions::{self, NOBODY, Share, assert_delivered, let_settle};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Host, Lab, Running};
use rustix::process::Signal;
use serde_json::Value;

/// What `dray explain --json` prints on `host`.
fn explained(host: &Host) -> Vec<Value> {
    let outcome = host.dray().args(["explain", "--json"]).run().expect(0);
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let told: Vec<Value> = outcome.stdout_text().lines().map(read).collect();
    assert!(told.iter().all(|transfer| transfer["event"] == "transfer"), "{outcome}");
    told
}

/// What it says as a page of at most 80 columns.
fn page(host: &Host) -> String {
    let text = host.dray().arg("explain").run().expect(0).stdout_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

/// A page without its line breaks.
fn joined(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The running transfer on `host`, asked for until it `fits`.
fn await_explained(host: &Host, running: &Running, mut fits: impl FnMut(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    running.wait_until(false, || {
        last = explained(host).into_iter().find(|told| told["state"] == "running").unwrap_or_default();
        fits(&last)
    });
    last
}

/// The row of the source whose label contains `label`; `Null` if there is none.
fn row<'a>(told: &'a Value, label: &str) -> &'a Value {
    let rows = told["sources"].as_array();
    let fits = |row: &&Value| row["label"].as_str().is_some_and(|text| text.contains(label));
    rows.and_then(|rows| rows.iter().find(fits)).unwrap_or(&Value::Null)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The same file served by each host; every ticket names one holder more, the last one all.
fn share_one_file<'a>(hosts: impl IntoIterator<Item = &'a Host>, source: &Path) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for host in hosts {
        let put = actions::put(host, source);
        shares.push(match shares.last() {
            None => Share::of(put.start()),
            Some(before) => Share::of(put.arg("--ticket").arg(&before.ticket).start()),
        });
    }
    shares
}

/// A holder that joins `ticket`, and whose own copy is damaged in every MiB from then on.
fn share_damaged(host: &Host, source: &Path, ticket: &str) -> Share {
    let put = host.dray().args(["put", "-", "--ticket", ticket]).input_file(source);
    let share = Share::of(put.time_limit(Duration::from_secs(300)).start());
    let hash = share.hash();
    let dir = host.data_dir().join("store/objects").join(&hash[..2]).join(&hash);
    (0..16).for_each(|mib| data::flip_bit(&dir.join("data"), mib * MIB + 77));
    share
}

/// Issue: three holders at different rates; for each of them bytes and rate, as delivered and as they crossed the socket,
/// agree within 5 % with what its device sent in the same time.
#[test]
fn figures_agree_with_the_interface_counters() {
    const RATES_MBIT: [u32; 3] = [16, 32, 64];
    let Some(lab) = Lab::of(4).alone().build() else { return };
    let taker = lab.host(3);
    for (number, rate) in RATES_MBIT.into_iter().enumerate() {
        lab.host(number).limit_sending(rate);
    }
    let source = lab.host(0).file("source");
    data::write_random(&source, 256 * MIB, 51);
    let_settle(&source);
    let shares = share_one_file((0..3).map(|number| lab.host(number)), &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &shares[2].ticket, &copy).start();
    // Five seconds and more after the beginning rates are of the path as it is, not of how it was found.
    await_explained(taker, &running, |told| told["elapsed_us"].as_u64() > Some(5_500_000));
    let sample = || {
        let counters: Vec<_> = (0..3).map(|number| lab.host(number).counters().sent_bytes).collect();
        let at = Instant::now();
        (at, counters, explained(taker).remove(0))
    };
    let (begun, counters, first) = sample();
    std::thread::sleep(Duration::from_millis(5500));
    let (ended, counters_later, second) = sample();
    assert_eq!((&first["state"], &second["state"]), (&"running".into(), &"running".into()), "{second}");
    let seconds = (ended - begun).as_secs_f64();
    for holder in 0..3 {
        let address = lab.host(holder).address().to_string();
        let (before, after) = (row(&first, &address), row(&second, &address));
        let wire = (counters_later[holder] - counters[holder]) as f64;
        let grown = |key: &str| (number(&after[key]) - number(&before[key])) as f64;
        let told = [
            ("delivered", grown("delivered_bytes") / wire),
            ("received", grown("received_bytes") / wire),
            ("delivered a second", number(&after["rate_bytes_per_s"]) as f64 * seconds / wire),
            ("received a second", number(&after["received_bytes_per_s"]) as f64 * seconds / wire),
        ];
        eprintln!("{address}: {wire:.0} bytes sent in {seconds:.2} s; of that {told:.4?}");
        for (what, part) in told {
            assert!((0.95..=1.05).contains(&part), "{address}: {what} is {part:.3} of the wire\n{second:#}");
        }
    }
    let sum = |told: &Value| -> u64 {
        told["sources"].as_array().unwrap().iter().map(|row| number(&row["delivered_bytes"])).sum()
    };
    for told in [&first, &second] {
        // Something may be written while the rest is counted.
        assert!(number(&told["done_bytes"]).abs_diff(sum(told)) <= MIB, "{told:#}");
        assert_eq!(number(&told["done_bytes"]) + number(&told["left_bytes"]), number(&told["size_bytes"]));
        assert_eq!((&told["bottleneck"], &told["role"]), (&"network".into(), &"receiving".into()));
        let shares: f64 =
            told["sources"].as_array().unwrap().iter().filter_map(|row| row["share"].as_f64()).sum();
        assert!((0.999..1.001).contains(&shares), "{told:#}");
    }
    let text = page(taker);
    assert!(
        text.contains("bottleneck: the network") && joined(&text).contains(copy.to_str().unwrap()),
        "{text}"
    );
    eprintln!("{text}");
}

/// A source that is stopped is called frozen, with what it owes and for how long it has been silent; so it is in the last
/// snapshot of the transfer that the other one ended.
#[test]
fn a_frozen_source_is_called_frozen() {
    let Some(lab) = Lab::of(3).build() else { return };
    let taker = lab.host(2);
    let source = lab.host(0).file("source");
    data::write_random(&source, 32 * MIB, 52);
    let_settle(&source);
    [0, 1].into_iter().for_each(|number| lab.host(number).limit_sending(24));
    let shares = share_one_file((0..2).map(|number| lab.host(number)), &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &shares[1].ticket, &copy).start();
    let frozen = lab.host(0).address().to_string();
    await_explained(taker, &running, |told| told["done_bytes"].as_u64() > Some(2 * MIB));
    shares[0].process.signal(Signal::STOP);
    let told = await_explained(taker, &running, |told| row(told, &frozen)["standing"] == "frozen");
    let its = row(&told, &frozen);
    assert!(number(&its["silent_us"]) >= 1_000_000 && number(&its["queue_requests"]) > 0, "{told:#}");
    let text = page(taker);
    eprintln!("{text}");
    assert!(
        joined(&text).contains("frozen: it owes") && joined(&text).contains("said nothing for"),
        "{text}"
    );
    running.wait().expect(0);
    let last = explained(taker).remove(0);
    assert_eq!((&last["state"], &last["failure"]), (&"done".into(), &Value::Null), "{last:#}");
    assert!(["frozen", "waiting"].map(Value::from).contains(&row(&last, &frozen)["standing"]), "{last:#}");
    shares[0].process.signal(Signal::CONT);
}

/// Issue "the culprit is named by `explain`": a holder that cannot give what it offers is barred, and named with the reason
/// while the transfer runs, after it, by the event, and by a warning. Alone it is the error.
#[test]
fn a_barred_holder_is_named() {
    let Some(lab) = Lab::of(3).build() else { return };
    let (honest, bad, taker) = (lab.host(0), lab.host(1), lab.host(2));
    let source = honest.file("source");
    data::write_random(&source, 16 * MIB, 53);
    let_settle(&source);
    honest.limit_sending(32);
    let honest_share = actions::share(honest, &source);
    let damaged = share_damaged(bad, &source, &honest_share.ticket);
    let address = bad.address().to_string();

    let copy = taker.directory("json").join("copy");
    let running = actions::get(taker, &damaged.ticket, &copy).arg("--json").start();
    let told = await_explained(taker, &running, |told| row(told, &address)["standing"] == "barred");
    let cause = row(&told, &address)["cause"].as_str().unwrap().to_owned();
    assert!(cause.contains("damaged"), "{told:#}");
    assert!(joined(&page(taker)).contains(&format!("barred: {cause}")));
    let outcome = running.wait().expect(0);
    let barred: Vec<Value> = outcome
        .stdout_text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] == "source-down" && event["barred"] == true)
        .collect();
    let [event] = barred.as_slice() else { panic!("one source was barred: {outcome}") };
    assert!(event["source"].as_str().unwrap().contains(&address) && event["reason"] == cause.as_str());
    let last = explained(taker).remove(0);
    assert_eq!((&last["state"], &row(&last, &address)["cause"]), (&"done".into(), &cause.into()), "{last:#}");

    actions::forget(taker);
    let copy = taker.directory("text").join("copy");
    let outcome = actions::get(taker, &damaged.ticket, &copy).run().expect(0);
    let text = outcome.stderr_text();
    assert!(text.contains("warning: direct") && text.contains(&address), "{outcome}");
    assert_delivered(&source, &copy, Some(&damaged.hash()));

    honest_share.end();
    actions::forget(taker);
    let copy = taker.directory("alone").join("copy");
    let outcome = actions::get(taker, &damaged.ticket, &copy).run().expect(4);
    assert!(outcome.stderr_text().contains(&address), "{outcome}");
    let last = explained(taker).remove(0);
    assert_eq!((&last["state"], &last["failure"]["exit_code"]), (&"failed".into(), &4.into()), "{last:#}");
    assert!(last["failure"]["what"].as_str().unwrap().contains(&address), "{last:#}");
    assert!(page(taker).contains("failed") && page(taker).contains("barred: "), "{}", page(taker));
    let all = taker.dray().args(["explain", "--all", "--json"]).run().expect(0);
    assert_eq!(all.stdout_text().lines().count(), 3, "{all}");
}

/// Of a copy with a direct path, ssh is called a spare by the receiving end, wherever that is; the sending end says what it
/// sends to whom.
#[test]
fn the_spare_path_is_called_spare() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (near, far) = lab.pair();
    let source = near.file("source");
    data::write_random(&source, 48 * MIB, 54);
    near.limit_sending(48);
    let is_spare =
        |told: &Value| row(told, "ssh")["idle"] == "spare" && row(told, "direct")["standing"] == "up";

    let copy = far.directory("up").join("copy");
    let running = actions::copy_to(near, far, &source, &copy).start();
    let told = await_explained(far, &running, is_spare);
    assert_eq!((&told["role"], &told["path"]), (&"receiving".into(), &copy.to_str().unwrap().into()));
    assert_eq!(told["peer"], near.address().to_string());
    let told =
        await_explained(near, &running, |told| row(told, "direct")["delivered_bytes"].as_u64() > Some(0));
    assert_eq!((&told["role"], &told["bottleneck"]), (&"sending".into(), &Value::Null));
    assert!(told["peer"].as_str().unwrap().contains(&far.address().to_string()), "{told:#}");
    assert!(told["what"].as_str().unwrap().contains("source") && number(&told["done_bytes"]) > 0, "{told:#}");
    let text = page(near);
    eprintln!("{text}{}", page(far));
    assert!(joined(&text).contains("run `dray explain` there"), "{text}");
    running.wait().expect(0);

    let copy = far.directory("down").join("copy");
    let running = actions::copy_from(near, far, &source, &copy).start();
    let told = await_explained(far, &running, is_spare);
    assert!(told["peer"].as_str().unwrap().contains(&near.address().to_string()), "{told:#}");
    assert!(page(far).contains("idle: a spare"), "{}", page(far));
    running.wait().expect(0);
}

/// S42, operating.md "of those that failed": also a copy that failed before a byte of it came is told, in either direction.
#[test]
fn a_copy_that_never_began_is_told() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (near, far) = lab.pair();
    let last = |code: u64, role: &str, what: &str| {
        let told = explained(near).remove(0);
        assert_eq!(
            (&told["state"], &told["failure"]["exit_code"]),
            (&"failed".into(), &code.into()),
            "{told:#}"
        );
        assert_eq!((&told["role"], &told["command"]), (&role.into(), &"cp".into()), "{told:#}");
        assert!(told["what"].as_str().unwrap().ends_with(what), "{told:#}");
        assert!(told["peer"].as_str().unwrap().contains(&far.address().to_string()), "{told:#}");
        assert!(joined(&page(near)).contains(what) && page(near).contains("failed"), "{}", page(near));
    };
    let missing = far.file("nothing_there");
    near.dray()
        .arg("cp")
        .args(far.ssh_options())
        .arg(far.remote(&missing))
        .arg(near.file("x"))
        .run()
        .expect(3);
    last(3, "receiving", "nothing_there");
    let source = near.file("source");
    data::write_random(&source, MIB, 1);
    let up = near.dray().arg("cp").args(far.ssh_options()).args(["-P", "9"]).arg(&source);
    up.arg(far.remote(Path::new("x"))).run().expect(5);
    last(5, "sending", "source");
}

/// Copies of trees and syncs are told, too, where they were begun: what came so far while they run, and how they ended.
#[test]
fn trees_are_told() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (near, far) = lab.pair();
    far.sshd();
    // A copy of a tree makes none: how it ended is kept where there is one.
    std::fs::create_dir_all(near.data_dir()).unwrap();
    let tree = near.directory("tree");
    (0..12).for_each(|number| data::write_random(&tree.join(format!("{number}")), MIB, 60 + number));
    let came = |told: &Value| told["done_bytes"].as_u64() > Some(0);
    let ssh = far.ssh_command();
    let up = far.directory("up");
    let cp = near.dray().args(["cp", "-r", "--bwlimit=4M"]).args(far.ssh_options());
    let cp = cp.arg(tree.join(".")).arg(far.remote(&up));
    let down = near.directory("down");
    let sync = near.dray().args(["sync", "-a", "--bwlimit=4M", "-e", &ssh]);
    let sync = sync.arg(far.remote(&up.join("."))).arg(&down);
    for (program, command, role, to) in [(cp, "cp", "sending", &up), (sync, "sync", "receiving", &down)] {
        let running = program.start();
        let told = await_explained(near, &running, came);
        assert_eq!((&told["command"], &told["role"]), (&command.into(), &role.into()), "{told:#}");
        assert_eq!((&told["is_tree"], &told["path"]), (&true.into(), &to.to_str().unwrap().into()));
        assert!(told["peer"].as_str().unwrap().contains(&far.address().to_string()), "{told:#}");
        assert!(joined(&page(near)).contains(" came after "), "{}", page(near));
        running.wait().expect(0);
        let told = explained(near).remove(0);
        assert_eq!((&told["state"], &told["done_bytes"]), (&"done".into(), &(12 * MIB).into()), "{told:#}");
    }
    let missing = near.dray().args(["cp", "-r"]).arg(near.file("nothing")).arg(near.file("x"));
    missing.run().expect(3);
    assert_eq!(explained(near)[0]["failure"]["exit_code"], 3);
}

/// With nothing running it says so; another user is told nothing; a killed command leaves nothing that is taken for a
/// running one, and a stopped one is told to be stopped.
#[test]
fn who_is_told_and_what_is_left() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    assert_eq!(page(taker), "no transfer is running, and none is known that ended");
    assert!(explained(taker).is_empty() && data::names(&taker.home()).is_empty(), "asking makes nothing");
    let sockets = taker.dir().join("run/dray");

    let small = holder.file("small");
    data::write_random(&small, 1024, 55);
    let small_share = actions::share(holder, &small);
    let got = actions::get(taker, &small_share.ticket, &taker.file("small-copy")).run().expect(0);
    // What is over in less time than is worth a socket leaves nothing.
    if got.elapsed < Duration::from_millis(200) {
        assert!(!sockets.exists() && !taker.data_dir().join("ended").exists());
    }

    let source = holder.file("source");
    data::write_random(&source, 64 * MIB, 56);
    holder.limit_sending(16);
    let share = actions::share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let running = actions::get(taker, &share.ticket, &copy).start();
    await_explained(taker, &running, |told| told["state"] == "running");
    let other = taker.dray().user(NOBODY).directory(Path::new("/")).arg("explain").run().expect(0);
    assert_eq!(other.stdout_text(), "no transfer is running, and none is known that ended");

    running.signal(Signal::STOP);
    let told = explained(taker).remove(0);
    assert_eq!((&told["state"], &told["pid"]), (&"no-answer".into(), &running.pid().into()), "{told:#}");
    assert!(page(taker).contains(&format!("process {} does not answer", running.pid())));
    running.signal(Signal::CONT);
    await_explained(taker, &running, |told| told["state"] == "running");

    assert_eq!(data::names(&sockets).len(), 1);
    running.kill();
    assert!(explained(taker).iter().all(|told| told["state"] == "done"));
    assert!(data::names(&sockets).is_empty(), "{:?}", data::names(&sockets));

    let running = actions::get(taker, &share.ticket, &copy).start();
    await_explained(taker, &running, |told| told["state"] == "running");
    running.interrupt();
    running.wait().expect(130);
    assert!(page(taker).contains("interrupted") && data::names(&sockets).is_empty(), "{}", page(taker));
}
