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
