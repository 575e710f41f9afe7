//! R15: a file that the receiver's chunk index knows under another name, on a disk with a head: read chunk by chunk where the index says that each lies, or from end to
//! end.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_lab::disk::SlowDisk;

use super::slow_disk::{SPEED, slow_disk};
use super::{BenchRow, GIB, MIB};
use crate::bench::Bench;
use crate::contenders::Job;
use crate::measure::{Ground, Run, Serving};
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
const INDEX_REST: Duration = Duration::from_secs(1);

pub(super) const ROW: BenchRow = BenchRow {
    name: "R15",
    about: "a file that the receiver's chunk index knows, on a disk of 70 MB/s with seeks of 8 ms: from end to end, or chunk by chunk",
    run: measure,
};

/// How chunks are read that the index knows. A search may come upon the same file by itself: that reads it from end to end, too.
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
    Reader { label: "dray-index-pull", title: "dray get, index = true: chunk by chunk", searches: false },
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
        let ends = Ends { source: &source, home: &home, disk: &disk };
        ends.keep().map_err(|error| format!("make {}: {error}", ends.kept().display()))?;
        for between in bench.links(&[link])? {
            let pair = bench.pair(between)?;
            let cell = amount(bytes as f64);
            let place = Place { row: "R15", cell: &cell, link: between.name() };
            bench.rounds(1, bench.pairs(), |bench, round| {
                bench.in_turn(&place, &READERS, round, |bench, turn| one(bench, &pair, &place, &ends, turn))
            })?;
        }
        site::remove(&source);
    }
    bench.site.write("etc/default.toml", "")?;
    bench.site.forget()
}

/// What comes, and what is there.
#[derive(Clone, Copy, Debug)]
struct Ends<'a> {
    source: &'a Path,
    home: &'a Path,
    disk: &'a SlowDisk,
}

impl Ends<'_> {
    /// The file that the index knows: below the destination's directory.
    fn kept(&self) -> PathBuf {
        self.home.join("mine/kept")
    }

    /// Makes it: what comes, and a little more, as the very object would be at hand without an index.
    fn keep(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.home.join("mine"))?;
        std::fs::copy(self.source, self.kept())?;
        File::options().append(true).open(self.kept())?.write_all(b"and something behind the end")
    }
}

fn one(
    bench: &mut Bench,
    pair: &Pair,
    place: &Place<'_>,
    ends: &Ends<'_>,
    turn: &Turn<Reader>,
) -> Result<(), String> {
    let to = ends.home.join("got");
    site::remove(&to);
    bench.site.write("etc/default.toml", "index = true\n")?;
    // An index in memory, as tmpfs is, would not be filled.
    let (data, on_disk) = (bench.site.root.join("near/data"), ends.home.join("data"));
    site::remove(&on_disk);
    let moved = std::fs::create_dir(&on_disk)
        .and_then(|()| std::fs::remove_dir(&data))
        .and_then(|()| std::os::unix::fs::symlink(&on_disk, &data));
    moved.map_err(|error| format!("keep {} on the disk: {error}", data.display()))?;
    let ground = bench.ground(pair);
    let (mut servers, mut argv) = (Vec::new(), Vec::new());
    let run = read(&ground, ends, &to, turn, &mut servers, &mut argv);
    pair.end_leftovers();
    servers.into_iter().for_each(Serving::end);
    // It is a directory again in the next turn.
    std::fs::remove_file(&data).map_err(|error| format!("remove {}: {error}", data.display()))?;
    let mut run = run.unwrap_or_else(|why| Run { status: why, exit_code: -1, ..Run::default() });
    run.check_arrived(|| site::is_same(ends.source, &to));
    let bytes = ends.source.metadata().map_err(|error| format!("{}: {error}", ends.source.display()))?.len();
    // On the faster line of a smoke test it may.
    if run.status == "ok" && !bench.options.is_smoke && run.wire.received > bytes / 2 {
        run.status = "it came over the network, not from the disk".into();
    }
    let figures = vec![("MB on the wire, both ways", (run.wire.received + run.wire.sent) as f64 / 1e6)];
    let command = bench.readable(&Job { argv, ..Job::default() }, pair);
    bench.tell(place, &run, turn.told(Some(bytes), figures, command))
}

/// A daemon whose index knows what is kept, and then the command with the clock on.
fn read(
    ground: &Ground<'_>,
    ends: &Ends<'_>,
    to: &Path,
    turn: &Turn<Reader>,
    servers: &mut Vec<Serving>,
    argv: &mut Vec<String>,
) -> Result<Run, String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    servers.push(ground.serve_at("near", &words(&["dray", "serve", "--json"]), false)?);
    let put = ground.serve_at("near", &words(&["dray", "put", &text(&ends.kept())]), false)?;
    put.wait(ground.patience)?;
    await_index(ground, ends.source.metadata().map_or(0, |metadata| metadata.len()))?;
    let holder = ground.serve(&words(&["dray", "put", &text(ends.source)]), false)?;
    let ticket = holder.ticket.clone();
    servers.push(holder);
    ends.disk.cool(&ends.home.join("mine")).map_err(|error| format!("let the disk cool: {error}"))?;
    *argv = words(&["dray", "get", &ticket, "-o", &text(to)]);
    if turn.who.searches {
        argv.splice(2..2, words(&["--search", &text(ends.home)]));
    }
    ground.run_near(argv, false, turn.round == 1, None)
}

/// Until the near daemon's index knows a file of `bytes`, and some more, as it writes that down afterwards.
fn await_index(ground: &Ground<'_>, bytes: u64) -> Result<(), String> {
    // It rests ten times as long as it reads.
    let patience = INDEX_PATIENCE.max(Duration::from_secs(15 * bytes / SPEED.bytes_per_s));
    let begun = Instant::now();
    while begun.elapsed() < patience {
        let status = ground.serve_at("near", &["dray", "status", "--json"].map(str::to_owned), false)?;
        let line = status.ticket.clone();
        status.wait(ground.patience)?;
        let told: serde_json::Value =
            serde_json::from_str(&line).map_err(|error| format!("dray status says {line:?}: {error}"))?;
        if told["index"]["files"].as_u64().is_some_and(|files| files > 0) {
            std::thread::sleep(INDEX_REST);
            return Ok(());
        }
        std::thread::sleep(INDEX_PERIOD);
    }
    Err(format!("the index knows no file after {} s", patience.as_secs()))
}
