//! P14: an object of 1 TiB that is holes but for a few MiB. What counts is memory, and that a hole costs neither wire nor disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::SeekFrom;

use super::BenchRow;
use crate::bench::Bench;
use crate::contenders::{self, Contender, Mover, Task, Way};
use crate::measure::Ground;
use crate::pair::Pair;
use crate::site::{self, Random, What};
use crate::tools::Tool;
use crate::turns::{Entrant, Place, Turn};

const TIB: u64 = 1 << 40;
/// So much is data, at each of three places.
const ISLAND_BYTES: u64 = 4 << 20;
/// rsync reads and writes every zero; up to this size it takes part.
const RIVAL_BYTES_MAX: u64 = 8 << 30;

/// Slower than this, a run has failed.
const BYTES_PER_S_MIN: u64 = 512 << 20;

pub(super) const ROW: BenchRow = BenchRow {
    name: "P14",
    about: "memory: an object of 1 TiB, holes but for 12 MiB (some six minutes); the same at 8 GiB beside rsync -S",
    run: measure,
};

fn measure(bench: &mut Bench) -> Result<(), String> {
    let pair = bench.pair(crate::pair::Between::Nothing)?;
    let sizes = match bench.options.is_smoke {
        true => vec![64 << 20],
        false => bench.options.sizes.clone().unwrap_or_else(|| vec![RIVAL_BYTES_MAX, TIB]),
    };
    for bytes in sizes {
        let from = bench.site.root.join("far/in/holes");
        make(&from, bytes, bench.options.seed)
            .map_err(|error| format!("make {}: {error}", from.display()))?;
        // Reading a hole of 1 TiB takes minutes of a core; once says what there is to say.
        let pairs = if bytes > RIVAL_BYTES_MAX { 1 } else { bench.pairs() };
        let takes_part = |contender: &&Contender| {
            contender.way == Way::Pull
                && match contender.mover {
                    Mover::DrayPutGet | Mover::DrayCp => true,
                    Mover::RsyncSsh => bytes <= RIVAL_BYTES_MAX,
                    _ => false,
                }
        };
        let all: Vec<Bringer> =
            contenders::ALL.iter().filter(takes_part).map(|contender| Bringer(*contender)).collect();
        let cell = format!("holes-{bytes}");
        let place = Place { row: "P14", cell: &cell, link: pair.between.name() };
        bench.rounds(1, pairs, |bench, round| {
            bench.in_turn(&place, &all, round, |bench, turn| one(bench, &pair, &place, &from, bytes, turn))
        })?;
        site::remove(&from);
    }
    Ok(())
}

/// A contender that looks for holes.
#[derive(Clone, Copy, Debug)]
struct Bringer(Contender);

impl Entrant for Bringer {
    fn label(&self) -> String {
        self.0.label()
    }

    fn title(&self) -> String {
        let option = if self.is_ours() { "" } else { " -S" };
        format!("{}{option}", self.0.title)
    }

    fn tools(&self) -> &'static [Tool] {
        self.0.tools()
    }

    fn is_ours(&self) -> bool {
        self.0.is_ours()
    }
}

fn one(
    bench: &mut Bench,
    pair: &Pair,
    place: &Place<'_>,
    from: &Path,
    bytes: u64,
    turn: &Turn<Bringer>,
) -> Result<(), String> {
    let to = bench.site.root.join("near/out/holes");
    let task = Task { what: What::File { bytes }, from: from.to_owned(), to: to.clone(), syncs: false };
    let mut job = contenders::job(&turn.who.0, &task, &bench.site, pair);
    if !turn.who.is_ours() {
        job.argv.insert(1, "-S".into());
    }
    let ground = bench.ground(pair);
    let patience = ground.patience.max(Duration::from_secs(bytes / BYTES_PER_S_MIN));
    let mut run = Ground { patience, ..ground }.run(&job, turn.round == 1, None)?;
    run.check_arrived(|| is_same(from, &to).unwrap_or(false));
    let disk = to.metadata().map_or(f64::NAN, |metadata| metadata.blocks() as f64 * 512.0);
    let command = bench.readable(&job, pair);
    let figures = vec![("MiB on disk", disk / f64::from(1 << 20))];
    bench.tell(place, &run, turn.told(Some(bytes), figures, command))
}

fn make(path: &Path, bytes: u64, seed: u64) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes)?;
    let island = path.with_extension("island");
    Random::new(seed, "islands").write_file(&island, ISLAND_BYTES)?;
    let data = std::fs::read(&island)?;
    std::fs::remove_file(&island)?;
    for at in [0, bytes / 2, bytes - ISLAND_BYTES] {
        file.write_all_at(&data, at)?;
    }
    Ok(())
}

/// Compares what either file has as data; where both have holes they are equal.
fn is_same(a: &Path, b: &Path) -> io::Result<bool> {
    let (a, b) = (File::open(a)?, File::open(b)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for file in [&a, &b] {
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at)? {
            let mut place = start;
            while place < end {
                let part = (end - place).min(1 << 20) as usize;
                let [left, right] = &mut buffers;
                a.read_exact_at(&mut left[..part], place)?;
                b.read_exact_at(&mut right[..part], place)?;
                if left[..part] != right[..part] {
                    return Ok(false);
                }
                place += part as u64;
            }
            at = end;
        }
    }
    Ok(true)
}

/// The next piece of data from `at` on; `None` if the rest is a hole.
fn next_data(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The comparison must see a difference in what only one of the two has as data.
    #[test]
    fn a_byte_in_a_hole_is_a_difference() {
        let folder = std::env::temp_dir().join(format!("dray-bench-holes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.join(name));
        for path in [&a, &b] {
            make(path, 64 << 20, 7).unwrap();
        }
        assert!(is_same(&a, &b).unwrap());
        File::options().write(true).open(&b).unwrap().write_all_at(b"x", 20 << 20).unwrap();
        assert!(!is_same(&a, &b).unwrap());
        assert!(!is_same(&b, &a).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
