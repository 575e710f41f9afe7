//! P10: a receiver whose disk is slower than the network, and one that gets slow midway.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dray_lab::disk::{SlowDisk, Speed};

use super::receiver::{Around, Bringer, Brought, NO_PRESSURE, RSYNC, SEARCHING, WITHOUT, bring, source};
use super::states::{self, State};
use super::{BenchRow, GIB, MIB};
use crate::bench::Bench;
use crate::pair::Between;
use crate::site;
use crate::turns::Place;

/// That of the paper: 70 MB/s, reading and writing together; and what a jump takes on a disk of 10,000 turns a minute.
pub(super) const SPEED: Speed = Speed { bytes_per_s: 70_000_000, seek: Duration::from_millis(8) };
/// The disk is so much larger than what comes.
const ROOM: u64 = 6;
/// When others begin to write, in shares of the time that the file needs on the line: after 20 of 86 s in the paper.
const LOAD_AFTER: f64 = 20.0 / 86.0;
/// What each of the others writes at once, and how many they are: together they leave less of the disk than the line of 100 Mbit/s carries.
const LOAD_BYTES: usize = 1 << 20;
const LOADERS: usize = 4;
/// How many others write all the time, on the line of 100 Mbit/s (R13).
const LEVELS: [usize; 3] = [1, 2, 4];

pub(super) const ROW: BenchRow = BenchRow {
    name: "P10",
    about: "256 MiB to a disk of 70 MB/s with seeks of 8 ms: at 1 Gbit/s, and at 100 Mbit/s where others begin to write midway, or write all the time",
    run: measure,
};

/// `Useless` shows what files cost that nobody reads: what is written has to go around them.
const STATES: [State; 4] = [State::Empty, State::Useless, State::Similar99, State::Sibling];
/// Where others begin to write midway.
const LOADED_STATES: [State; 3] = [State::Empty, State::Similar99, State::Sibling];
/// Those beside which others write all the time.
const LEVEL_STATES: [State; 2] = [State::Empty, State::Similar99];

const BRINGERS: [Bringer; 4] = [SEARCHING, NO_PRESSURE, WITHOUT, RSYNC];

fn measure(bench: &mut Bench) -> Result<(), String> {
    for bytes in bench.sizes(&[256 * MIB]) {
        let place = Place { row: "P10", cell: "slow disk", link: "lan" };
        let Some((disk, home)) = slow_disk(bench, "far", bytes * ROOM, &place)? else { return Ok(()) };
        let source = source(bench, bytes)?;
        for (link, load) in [("lan", false), ("100M/4ms", true)] {
            for between in bench.links(&[link])? {
                let pair = bench.pair(between)?;
                let after = if load { load_after(between, bytes) } else { None };
                let mut measure = |states: &[State], loaded: &str, all: &[Bringer], mut load: Load<'_>| {
                    bench.rounds_of(1, bench.pairs(), &states::beside(states), |bench, at, round| {
                        let state = states[at];
                        let cell = format!("{}{loaded}", state.name());
                        let homes = [home.as_path(); 2];
                        let task = Brought { row: "P10", cell: &cell, state, round, homes, source: &source };
                        bring(bench, &pair, all, &task, &mut load)
                    })
                };
                let (states, loaded) =
                    if after.is_some() { (&LOADED_STATES[..], ", load midway") } else { (&STATES[..], "") };
                measure(states, loaded, &BRINGERS, Load::new(&disk, after, LOADERS))?;
                for count in LEVELS.into_iter().filter(|_| after.is_some()) {
                    let load = Load::new(&disk, Some(Duration::ZERO), count);
                    measure(&LEVEL_STATES, &format!(", {count} beside"), &[SEARCHING, RSYNC], load)?;
                }
            }
            if bench.options.links.is_some() {
                // The user's links are measured once, without load.
                break;
            }
        }
        site::remove(&source);
        site::remove(&home.join("project"));
    }
    bench.site.forget()
}

/// A slow disk of so many bytes in the home of `end`, and where. Where there can be none, `place` says so. Made before the hosts: what is mounted later they do not see.
pub(super) fn slow_disk(
    bench: &mut Bench,
    end: &str,
    bytes: u64,
    place: &Place<'_>,
) -> Result<Option<(SlowDisk, PathBuf)>, String> {
    let dir = bench.site.root.join(end).join("disk");
    std::fs::create_dir_all(&dir).map_err(|error| format!("make {}: {error}", dir.display()))?;
    let home = bench.site.root.join(end).join("home/slow");
    match SlowDisk::new(&dir, &home, bytes.clamp(64 * MIB, 64 * GIB), SPEED) {
        Ok(disk) => Ok(Some((disk, home))),
        Err(why) => {
            bench.miss(place, "all", "all", &format!("no slow disk: {why}"))?;
            Ok(None)
        }
    }
}

fn load_after(between: Between, bytes: u64) -> Option<Duration> {
    let Between::Link(condition) = between else { return None };
    let rate = condition.up.rate?.bits_per_second();
    Some(Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64 * LOAD_AFTER))
}

/// Others who write to the disk.
struct Load<'a> {
    disk: &'a SlowDisk,
    after: Option<Duration>,
    count: usize,
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Load<'_> {
    fn new(disk: &SlowDisk, after: Option<Duration>, count: usize) -> Load<'_> {
        let (path, is_over) = (disk.path().join("others"), Arc::default());
        Load { disk, after, count, path, is_over, writers: Vec::new() }
    }
}

impl Around for Load<'_> {
    fn before(&mut self) -> Result<(), String> {
        self.disk.cool(self.disk.path()).map_err(|error| format!("let the disk cool: {error}"))
    }

    fn meanwhile(&mut self, elapsed: Duration) {
        if !self.writers.is_empty() || self.after.is_none_or(|after| elapsed < after) {
            return;
        }
        self.is_over.store(false, Ordering::Relaxed);
        for number in 0..self.count {
            let (path, is_over) = (self.path.with_extension(number.to_string()), self.is_over.clone());
            self.writers.push(std::thread::spawn(move || write(&path, &is_over)));
        }
    }

    fn after(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for (number, writer) in self.writers.drain(..).enumerate() {
            let _ = writer.join();
            site::remove(&self.path.with_extension(number.to_string()));
        }
    }
}

/// Writes to `path`, over and over, until `is_over`.
fn write(path: &Path, is_over: &AtomicBool) {
    let block = vec![7; LOAD_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        // A full disk is no less busy.
        let Ok(mut file) = File::create(path) else { return };
        for _ in 0..64 {
            if is_over.load(Ordering::Relaxed) || file.write_all(&block).is_err() {
                break;
            }
            let _ = file.sync_data();
        }
    }
}
