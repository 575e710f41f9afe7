//! R15: a file that the receiver's chunk index knows under another name, on a disk with a head: read chunk by chunk where the index says that each lies, or from end to
//! end.

use std::path::Path;
use std::time::{Duration, Instant};

use super::slow_disk::slow_disk;
use super::{BenchRow, GIB, MIB};
use crate::bench::Bench;
use crate::contenders::Job;
use crate::measure::Ground;
use crate::page::amount;
use crate::pair::Pair;
use crate::site;
use crate::tools::Tool;
use crate::turns::{Entrant, Place, Turn};

/// Those of the paper.
const SIZES: [u64; 4] = [10 * MIB, 50 * MIB, 100 * MIB, 1024 * MIB];
/// Slower than any disk, so that what the disk has comes from the disk.
const LINK: &str = "10M/40ms";
/// The disk holds the file, what comes, and a file system; and an index leaves much of it free.
const ROOM: u64 = 3;
const FREE_BYTES: u64 = 4 * GIB;
/// How long a daemon may take to read a file for its index.
const INDEX_PATIENCE: Duration = Duration::from_secs(120);
const INDEX_PERIOD: Duration = Duration::from_millis(50);

pub(super) const ROW: BenchRow = BenchRow {
    name: "R15",
    about: "a file that the receiver's chunk index knows, on a disk of 70 MB/s with seeks of 8 ms: from end to end, or chunk by chunk",
    run: measure,
};

/// How chunks are read that the index knows.
#[derive(Clone, Copy, Debug)]
struct Reader {
    label: &'static str,
    title: &'static str,
    /// Ranked with what a search finds: from a third of its chunks on, a file is read from end to end.
    searches: bool,
}

const READERS: [Reader; 2] = [
    Reader {
        label: "dray-index-search-pull",
        title: "dray get --search, index = true: from end to end",
        searches: true,
    },
    Reader {
        label: "dray-index-pull",
        title: "dray get, index = true: chunk by chunk (the paper's naive)",
        searches: false,
    },
];

impl Entrant for Reader {
    fn label(&self) -> String {
        self.label.to_owned()
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn tools(&self) -> &'static [Tool] {
        &[]
    }

    fn is_ours(&self) -> bool {
        true
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let link = if bench.options.is_smoke { "100M/4ms" } else { LINK };
    // Of what is smaller nobody asks the index.
    let sizes = if bench.options.is_smoke { vec![8 * MIB] } else { bench.sizes(&SIZES) };
    for bytes in sizes {
        let place = Place { row: "R15", cell: "slow disk", link };
        let Some((disk, home)) = slow_disk(bench, "near", bytes * ROOM + FREE_BYTES, &place)? else {
            return Ok(());
        };
        let source = super::receiver::source(bench, bytes)?;
        let kept = home.join("kept");
        std::fs::copy(&source, &kept).map_err(|error| format!("make {}: {error}", kept.display()))?;
        for between in bench.links(&[link])? {
            let pair = bench.pair(between)?;
            let cell = amount(bytes as f64);
            let place = Place { row: "R15", cell: &cell, link: between.name() };
            bench.rounds(1, bench.pairs(), |bench, round| {
                bench.in_turn(&place, &READERS, round, |bench, turn| {
                    let cool = || disk.cool(&home).map_err(|error| format!("let the disk cool: {error}"));
                    one(bench, &pair, &place, &source, &home, turn, &cool)
                })
            })?;
        }
        site::remove(&source);
    }
    bench.site.write("etc/default.toml", "")?;
    bench.site.forget()
}

fn one(
    bench: &mut Bench,
    pair: &Pair,
    place: &Place<'_>,
    source: &Path,
    home: &Path,
    turn: &Turn<Reader>,
    cool: &dyn Fn() -> Result<(), String>,
) -> Result<(), String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let to = home.join("got");
    site::remove(&to);
    bench.site.write("etc/default.toml", "index = true\n")?;
    // An index in memory, as tmpfs is, would not be filled.
    let (data, on_disk) = (bench.site.root.join("near/data"), home.join("data"));
    site::remove(&on_disk);
    let moved = std::fs::create_dir(&on_disk)
        .and_then(|()| std::fs::remove_dir(&data))
        .and_then(|()| std::os::unix::fs::symlink(&on_disk, &data));
    moved.map_err(|error| format!("keep {} on the disk: {error}", data.display()))?;
    let ground = bench.ground(pair);
    let run = (|| {
        let _daemon = ground.serve_at("near", &words(&["dray", "serve", "--json"]), false)?;
        ground.serve_at("near", &words(&["dray", "put", &text(&home.join("kept"))]), false)?.wait()?;
        await_index(&ground)?;
        let holder = ground.serve(&words(&["dray", "put", &text(source)]), false)?;
        cool()?;
        let mut argv = words(&["dray", "get", &holder.ticket, "-o", &text(&to)]);
        if turn.who.searches {
            argv.splice(2..2, words(&["--search", &text(home)]));
        }
        let run = ground.run_near(&argv, false, turn.round == 1, None)?;
        argv.iter_mut().filter(|word| **word == holder.ticket).for_each(|word| "TICKET".clone_into(word));
        Ok::<_, String>((run, Job { argv, ..Job::default() }))
    })();
    pair.end_leftovers();
    // It is a directory again in the next turn.
    std::fs::remove_file(&data).map_err(|error| format!("remove {}: {error}", data.display()))?;
    let (mut run, job) = run?;
    run.check_arrived(|| site::is_same(source, &to));
    let bytes = source.metadata().map_err(|error| format!("{}: {error}", source.display()))?.len();
    let figures = vec![("MB on the wire, both ways", (run.wire.received + run.wire.sent) as f64 / 1e6)];
    let command = bench.readable(&job, pair);
    bench.tell(place, &run, turn.told(Some(bytes), figures, command))
}

/// Until the near daemon's index knows a file.
fn await_index(ground: &Ground<'_>) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < INDEX_PATIENCE {
        let status = ground.serve_at("near", &["dray", "status", "--json"].map(str::to_owned), false)?;
        let line = status.ticket.clone();
        status.wait()?;
        let told: serde_json::Value =
            serde_json::from_str(&line).map_err(|error| format!("dray status says {line:?}: {error}"))?;
        if told["index"]["files"].as_u64().is_some_and(|files| files > 0) {
            return Ok(());
        }
        std::thread::sleep(INDEX_PERIOD);
    }
    Err(format!("the index knows no file after {} s", INDEX_PATIENCE.as_secs()))
}
