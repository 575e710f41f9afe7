//! The rows of the tables, by name.

mod faults;
mod holes;
mod home;
mod indexed;
mod receiver;
mod roofline;
mod slow_disk;
mod states;
mod update;

#[cfg(test)]
pub(crate) use faults::labels as fault_labels;
pub(crate) use home::{FOUND, HASHES, PAPER_HASHES, PAPER_STATS, STATS};

use crate::bench::Bench;
use crate::cell::Cell;
use crate::contenders::Mover::{self, *};
use crate::contenders::Way::{self, Pull, Push};
use crate::pair::Between;
use crate::site::What;

const BOTH: &[Way] = &[Pull, Push];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What a small file has.
const SMALL_FILE: u64 = 4 * KIB;
/// From this size on a run over a slow link takes minutes.
const SLOW_BYTES: u64 = 256 * MIB;

/// A row.
pub(crate) struct BenchRow {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Bench) -> Result<(), String>,
}

/// All rows, in the order of the page.
pub(crate) const ALL: &[BenchRow] = &[
    BenchRow {
        name: "P1",
        about: "one file of 2 GiB and one of 1 KiB between two namespaces, unshaped; all rivals",
        run: p1,
    },
    BenchRow {
        name: "P2",
        about: "50,000 files of 4 KiB, in folders of 250 and in one flat folder, unshaped",
        run: p2,
    },
    BenchRow { name: "P3", about: "the same again with nothing changed, round trip 50 ms", run: p3 },
    BenchRow {
        name: "P4",
        about: "512 MiB at 1 Gbit/s x 50 ms and 100 Mbit/s x 132 ms, lossless and with 0.1 % loss",
        run: p4,
    },
    BenchRow {
        name: "floor",
        about: "{1 KiB, 2 GiB, 10,000 and 50,000 files} x {direct, only ssh, daemons} x {unshaped, 100 Mbit/s 132 ms} against rsync over ssh, also with daemons at both ends",
        run: floor,
    },
    update::ROW,
    receiver::ROW,
    slow_disk::ROW,
    indexed::ROW,
    home::ROW,
    faults::FROZEN,
    faults::KILLED,
    holes::ROW,
    roofline::ROW,
];

fn p1(bench: &mut Bench) -> Result<(), String> {
    const MOVERS: &[Mover] = &[
        DrayGet,
        DrayGetClear,
        DrayPutGet,
        DrayCp,
        DraySsh,
        RsyncDaemon,
        RsyncSsh,
        RsyncGcm,
        Scp,
        ScpGcm,
        Curl,
        CurlB3sum,
        Wget,
        Aria2,
        Rclone,
        Syq,
        Sendme,
        Bittorrent,
    ];
    for between in bench.links(&["unshaped"])? {
        let pair = bench.pair(between)?;
        for bytes in bench.sizes(&[2 * GIB, KIB]) {
            let what = What::File { bytes };
            let pairs = bench.pairs();
            bench.cell(
                &pair,
                &Cell { row: "P1", what, is_again: false, movers: MOVERS, ways: BOTH, warms_up: true, pairs },
            )?;
            bench.site.remove(what);
        }
    }
    Ok(())
}

fn p2(bench: &mut Bench) -> Result<(), String> {
    trees(
        bench,
        "P2",
        &["unshaped"],
        false,
        &[DrayCp, DraySsh, DraySync, DrayDaemonSync, RsyncDaemon, RsyncSsh, Scp, Syq, Sendme],
    )
}

fn p3(bench: &mut Bench) -> Result<(), String> {
    let link = if bench.options.is_smoke { "1G/2ms" } else { "1g-50ms" };
    let movers = &[DrayCp, DraySsh, DraySync, DrayDaemonSync, Find, RsyncDaemon, RsyncSsh, RsyncInc];
    trees(bench, "P3", &[link], true, movers)
}

fn trees(
    bench: &mut Bench,
    row: &'static str,
    links: &[&str],
    is_again: bool,
    movers: &[Mover],
) -> Result<(), String> {
    for between in bench.links(links)? {
        let pair = bench.pair(between)?;
        for files in bench.files(&[50_000]) {
            for is_flat in [false, true] {
                if is_flat && is_again {
                    continue;
                }
                let what = What::Tree { files, bytes_each: SMALL_FILE, is_flat };
                let pairs = bench.pairs();
                bench
                    .cell(&pair, &Cell { row, what, is_again, movers, ways: BOTH, warms_up: true, pairs })?;
                bench.site.remove(what);
            }
        }
    }
    Ok(())
}

fn p4(bench: &mut Bench) -> Result<(), String> {
    let links: &[&str] =
        if bench.options.is_smoke { &["100M/4ms"] } else { &["1g-50ms", "100m-132ms", "100m-132ms-lossy"] };
    for between in bench.links(links)? {
        let pair = bench.pair(between)?;
        for bytes in bench.sizes(&[512 * MIB]) {
            let what = What::File { bytes };
            let movers = &[DrayGet, DrayCp, DraySsh, RsyncDaemon, RsyncSsh];
            let pairs = bench.pairs();
            let cell = Cell { row: "P4", what, is_again: false, movers, ways: BOTH, warms_up: false, pairs };
            bench.cell(&pair, &cell)?;
            bench.site.remove(what);
        }
    }
    Ok(())
}

fn floor(bench: &mut Bench) -> Result<(), String> {
    let links: &[&str] =
        if bench.options.is_smoke { &["unshaped", "100M/4ms"] } else { &["unshaped", "100m-132ms"] };
    for between in bench.links(links)? {
        let pair = bench.pair(between)?;
        let files = bench.sizes(&[KIB, 2 * GIB]).into_iter().map(|bytes| What::File { bytes });
        let trees = bench.files(&[10_000, 50_000]);
        let trees =
            trees.into_iter().map(|files| What::Tree { files, bytes_each: SMALL_FILE, is_flat: false });
        for what in files.chain(trees) {
            let is_slow = between != Between::Nothing && what.bytes() >= SLOW_BYTES;
            let mut movers = vec![DrayCp, DraySsh, DrayDaemonCp, RsyncSsh];
            // Where the cipher is what counts, the rival has ours, too.
            if between == Between::Nothing && what.bytes() >= SLOW_BYTES {
                movers.push(RsyncGcm);
            }
            // scp needs minutes for a tree over a long link, and nobody doubts it.
            if !what.is_tree() && !is_slow {
                movers.push(Scp);
            }
            // What a daemon costs is seen where nothing else takes time.
            if between == Between::Nothing && !what.is_tree() {
                movers.extend([DrayPutGet, DrayDaemonPutGet]);
            }
            let pairs = bench.pairs();
            let cell = Cell {
                row: "floor",
                what,
                is_again: false,
                movers: &movers,
                ways: BOTH,
                warms_up: !is_slow,
                pairs,
            };
            bench.cell(&pair, &cell)?;
            bench.site.remove(what);
        }
    }
    Ok(())
}
