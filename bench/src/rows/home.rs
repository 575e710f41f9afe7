//! P11: what a search of a home of 445,355 files lists and reads before it comes across the file that is of use, and how long it takes to
//! rank many files. No file is touched: the figures are counts, and the times are those of the engine alone.

use std::time::Instant;

use dray_engine::search::{EntryId, Floors, Metadata, Policy, Search, SearchConfig, Wanted};
use dray_testkit::home::{Found, Home, MB, Row, TABLE, walk};

use super::BenchRow;
use crate::bench::Bench;
use crate::measure::Run;
use crate::telling::Told;
use crate::turns::Place;

/// Average bytes of a chunk, and the factor of a directory's cost, as a search of the product has them.
const CHUNK_BYTES: u32 = 16 << 10;
const STAT_WEIGHT: f64 = 5.0;
/// What is ranked (Y18).
const CHUNKS: u64 = 1_000_000;
const CANDIDATES: u64 = 10_000;
/// The same all over again, of which the fastest counts.
const RANKINGS: u64 = 20;

pub(super) const ROW: BenchRow = BenchRow {
    name: "P11",
    about: "a search in 445,355 files, by what it lists and reads (no file is touched), and the time of ranking 10,000 files",
    run: measure,
};

const POLICIES: [(&str, &str, Policy); 3] = [
    ("dray-cost", "by cost per chunk", Policy::Cost),
    ("dray-breadth-first", "breadth-first", Policy::BreadthFirst),
    ("dray-all-stats", "all directories first", Policy::AllStats),
];

fn measure(bench: &mut Bench) -> Result<(), String> {
    let mut home = Home::grown(bench.options.seed);
    for (number, row) in (1..).zip(&TABLE) {
        let cell =
            format!("{number}. /{} with {} %", [row.directory, &[row.name]].concat().join("/"), row.share());
        let at = home.place(row).ok_or_else(|| format!("the home has no {}", row.directory.join("/")))?;
        let floors = [("", Floors::NONE), ("-floors", Floors::default())];
        for (label, title, policy) in POLICIES {
            for (suffix, floors) in floors {
                let is_usual = floors == Floors::default();
                if is_usual && policy != Policy::Cost {
                    continue;
                }
                let title = if is_usual { format!("{title}, as it comes") } else { title.to_owned() };
                let config =
                    SearchConfig { policy, stat_weight: STAT_WEIGHT, chunk_bytes: CHUNK_BYTES, floors };
                let begun = Instant::now();
                let found = walk(&home, row, config);
                let told = told(format!("{label}{suffix}"), title, row, found);
                tell(bench, &cell, begun.elapsed().as_secs_f64(), told)?;
            }
        }
        home.take_away(at);
    }
    for round in 1..=bench.pairs() {
        let seconds = ranking();
        let figures = vec![("ms", seconds * 1e3)];
        let title = "ranking everything again".to_owned();
        let told = Told {
            is_ours: true,
            label: "dray-ranking".into(),
            title,
            round,
            bytes: None,
            figures,
            command: String::new(),
        };
        tell(bench, &format!("{CHUNKS} chunks, {CANDIDATES} files"), seconds, told)?;
    }
    Ok(())
}

fn told(label: String, title: String, row: &Row, found: Found) -> Told {
    let (walk, is_found) = match found {
        Found::Useful(walk) => (walk, 1.0),
        Found::Nothing(walk) => (walk, 0.0),
    };
    let figures = vec![
        (FOUND, is_found),
        (STATS, walk.stats as f64),
        (HASHES, walk.hashes as f64),
        ("MB read", walk.hashed_bytes as f64 / MB as f64),
        ("s on the paper's disk", walk.took_us as f64 / 1e6),
        (PAPER_STATS, row.stats as f64),
        (PAPER_HASHES, row.hashes as f64),
    ];
    Told { is_ours: true, label, title, round: 1, bytes: None, figures, command: String::new() }
}

/// What the page compares.
pub(crate) const FOUND: &str = "found";
pub(crate) const STATS: &str = "directories listed";
pub(crate) const HASHES: &str = "files read";
pub(crate) const PAPER_STATS: &str = "listed by dsync";
pub(crate) const PAPER_HASHES: &str = "read by dsync";

fn tell(bench: &mut Bench, cell: &str, seconds: f64, told: Told) -> Result<(), String> {
    let run = Run { status: "ok".into(), seconds, load: crate::measure::load(), ..Run::default() };
    bench.tell(&Place { row: "P11", cell, link: "" }, &run, told)
}

/// Seconds for ranking everything that is known once more, at best.
fn ranking() -> f64 {
    let wanted = Wanted {
        name: b"image".to_vec(),
        size_bytes: CHUNKS * u64::from(CHUNK_BYTES),
        mtime_s: None,
        chunks: CHUNKS,
    };
    let config = SearchConfig {
        policy: Policy::Cost,
        stat_weight: STAT_WEIGHT,
        chunk_bytes: CHUNK_BYTES,
        floors: Floors::NONE,
    };
    let mut search = Search::new(config, Some(Vec::new()), vec![wanted]);
    for number in 0..CANDIDATES {
        let name = format!("image.{number}");
        let size_bytes = (CHUNKS - number) * u64::from(CHUNK_BYTES);
        let _ =
            search.found_file(EntryId::TOP, Metadata { name: name.as_bytes(), size_bytes, mtime_s: None });
    }
    let mut best = f64::INFINITY;
    for ranking in 1..=RANKINGS {
        // More than a tenth has changed, and all the time in the world has passed.
        search.want(0, if ranking % 2 == 0 { CHUNKS } else { CHUNKS / 2 });
        let begun = Instant::now();
        std::hint::black_box(search.next(&mut || u64::MAX));
        best = best.min(begun.elapsed().as_secs_f64());
    }
    best
}
