//! Peak memory of each side stays below 256 MiB, however large the object.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::path::Path;
use std::time::Duration;

use dray_e2e::actions::{self, assert_delivered, share};
use dray_e2e::data::{self, GIB, MIB};
use dray_e2e::process::Watch;
use dray_e2e::{Host, Lab, gate};

const PEAK_BYTES_MAX: u64 = 256 * MIB;
const LONG: Duration = Duration::from_secs(1800);

/// Puts, gets and copies `source` and checks the peak memory of the four processes.
fn measure(a: &Host, b: &Host, source: &Path, what: &str) {
    let share = share(a, source);
    let copy = b.directory(&format!("{what}-get")).join("copy");
    let got = actions::get(b, &share.ticket, &copy).time_limit(LONG).run().expect(0);
    assert_delivered(source, &copy, None);
    std::fs::remove_file(&copy).unwrap();
    let served = share.end();

    let copy = b.directory(&format!("{what}-cp")).join("copy");
    let running = actions::copy_to(a, b, source, &copy).time_limit(LONG).start();
    let mut far = None;
    running.wait_until(true, || {
        far = b.pids_of("dray").first().copied();
        far.is_some()
    });
    let mut far = Watch::start(far.expect("a far end runs"));
    let copied = running.wait().expect(0);
    assert_delivered(source, &copy, None);
    std::fs::remove_file(&copy).unwrap();

    let peaks = [
        ("put", served.peak_memory_bytes),
        ("get", got.peak_memory_bytes),
        ("cp", copied.peak_memory_bytes),
        ("far end", far.stop().peak_memory_bytes),
    ];
    for (process, peak) in peaks {
        eprintln!("{what}: VmHWM of {process} {} MiB", peak / MIB);
        assert!(peak > 0 && peak <= PEAK_BYTES_MAX, "{what}: {process} took {peak} bytes");
    }
}

/// Issue "a 64 GiB sparse and a 16 GiB incompressible object: VmHWM of each side at most 256 MiB" (these sizes with
/// `DRAY_E2E_FULL=1`).
#[test]
fn memory_is_bounded() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let sparse = a.file("sparse");
    data::write_sparse(&sparse, gate::sized(2 * GIB, 64 * GIB), 12, 1);
    measure(a, b, &sparse, "sparse");
    std::fs::remove_file(&sparse).unwrap();
    let dense = a.file("dense");
    data::write_random(&dense, gate::sized(GIB / 4, 16 * GIB), 2);
    measure(a, b, &dense, "dense");
}

/// P14: a thousand holders of one object, each of which is asked: the receiver keeps to its budget. Who is asked is seen by the connections that its host has.
#[test]
fn a_thousand_sources_fit_into_memory() {
    const SOURCES: usize = 1000;
    let Some(lab) = Lab::of(2).rate_mbit(400).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("of many");
    data::write_random(&file, gate::sized(GIB / 2, 4 * GIB), 3);
    let ticket = {
        let share = share(a, &file);
        let mut ticket = share.parsed();
        share.end();
        ticket.hints.clear();
        ticket.to_text().unwrap()
    };
    let holders = actions::liar(a, &file, &ticket, "none", 1).args(["--nodes", &SOURCES.to_string()]).start();
    let ticket = holders.first_line();
    let mut hints: Vec<String> = Vec::new();
    holders.line_with(|line| {
        // Each look begins with the ticket.
        if line == ticket {
            hints.clear()
        } else {
            hints.push(line.to_owned())
        }
        hints.len() == SOURCES - 1
    });
    let copy = b.directory("from-many").join("copy");
    let get = hints.iter().fold(actions::get(b, &ticket, &copy), |get, hint| get.args(["--hint", hint]));
    let running = get.time_limit(LONG).start();
    let table = format!("/proc/{}/net/tcp", running.pid());
    let mut connections = 0;
    running.wait_until(true, || {
        // The state of each stands fourth.
        let is_up = |line: &&str| line.split_whitespace().nth(3) == Some("01");
        let up = std::fs::read_to_string(&table).map_or(0, |table| table.lines().filter(is_up).count());
        connections = connections.max(up);
        running.has_ended()
    });
    let got = running.wait().expect(0);
    assert_delivered(&file, &copy, None);
    let peak = got.peak_memory_bytes;
    eprintln!("{SOURCES} sources: {connections} connections, VmHWM {} MiB", peak / MIB);
    assert!(connections >= SOURCES, "{connections} connections");
    assert!(peak > 0 && peak <= PEAK_BYTES_MAX, "{peak} bytes");
}
