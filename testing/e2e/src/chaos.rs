//! Faults, by a seed: connections that are shut all the while; and, one after the other, packets that vanish in bursts, processes that stand still,
//! a disk that is full for a while, bits that turn over in what is cached.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_lab::{Change, Loss};
use rustix::process::Signal;

use crate::connections::{Connection, Connections};
use crate::data::Random;
use crate::lab::Lab;
use crate::sweep;

/// A connection is shut so often.
const SHUT_EVERY: Duration = Duration::from_millis(250);
/// How often is looked whether there is one: the kernel goes through the table of the whole machine for it, which takes some milliseconds.
const LOOK: Duration = Duration::from_millis(40);

/// How often each fault struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Struck {
    /// Connections shut.
    pub shut: u32,
    /// Connections that were to be shut: so often there was one for 250 ms, those of ssh aside.
    pub turns: u32,
    /// Processes stopped and resumed.
    pub paused: u32,
    /// Bursts of lost packets, and moments without a link.
    pub lost: u32,
    /// Times the disk was full.
    pub filled: u32,
    /// Bits turned over.
    pub flipped: u32,
}

impl std::ops::AddAssign for Struck {
    fn add_assign(&mut self, other: Struck) {
        self.shut += other.shut;
        self.turns += other.turns;
        self.paused += other.paused;
        self.lost += other.lost;
        self.filled += other.filled;
        self.flipped += other.flipped;
    }
}

/// A fault that takes its time, beside connections that are shut all the while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pause,
    Lose,
    Cut,
    Fill,
    Rot,
}

/// What may happen.
#[derive(Debug)]
pub struct Faults {
    /// Processes stand still.
    pauses: bool,
    /// Time between two faults, ms.
    between_ms: std::ops::Range<u64>,
    /// A small disk that is filled up for a moment.
    disk: Option<PathBuf>,
    /// Files whose bits turn over, found anew each time: those below the directory that have one of the names.
    rotting: Option<(PathBuf, Vec<&'static str>)>,
    /// What strikes next, from the end. Each kind has had its turn before one comes again: chance decides the order, not whether.
    deck: Mutex<Vec<Kind>>,
}

impl Faults {
    /// Connections that are shut, processes that stand still, packets that are lost; where there is a `disk` it is full for moments, and
    /// bits of files below the directory of `rotting` turn over that have one of the names.
    pub fn new(disk: Option<PathBuf>, rotting: Option<(PathBuf, Vec<&'static str>)>) -> Faults {
        Faults { pauses: true, between_ms: 5..100, disk, rotting, deck: Mutex::default() }
    }

    /// Faults of the network alone: connections that are shut, and packets that are lost, less often, as a handshake needs a moment without losses.
    pub fn of_the_network() -> Faults {
        Faults { pauses: false, between_ms: 200..1000, disk: None, rotting: None, deck: Mutex::default() }
    }

    /// Lets faults strike the two hosts of `lab`, which are joined by a link, while `body` runs. When it returns the link is whole,
    /// all processes run, and the disk has room.
    pub fn during<T: Send>(
        &self,
        lab: &Lab,
        random: &mut Random,
        body: impl FnOnce() -> T + Send,
    ) -> (T, Struck) {
        let is_over = AtomicBool::new(false);
        let [mut own, mut shutting] = [random.next_word(), random.next_word()].map(Random::new);
        std::thread::scope(|scope| {
            let strikes = scope.spawn(|| self.strike_until(lab, &mut own, &is_over));
            let shuts = scope.spawn(|| shut_until(lab, &mut shutting, &is_over));
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            is_over.store(true, Ordering::Relaxed);
            let mut struck = strikes.join().expect("thread of the faults");
            struck += shuts.join().expect("thread that shuts connections");
            match result {
                Ok(result) => (result, struck),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Panics unless every kind of fault that was asked for is among those that `struck`, and a connection was shut in a quarter of the turns at least, as a busy
    /// machine takes its time: a fault that never strikes proves nothing.
    #[track_caller]
    pub fn assert_all_struck(&self, struck: Struck) {
        assert!(struck.shut > 0, "no connection was shut (is CONFIG_INET_DIAG_DESTROY set?): {struck:?}");
        assert!(struck.shut >= struck.turns / 4, "connections were shut seldom: {struck:?}");
        assert!(!self.pauses || struck.paused > 0, "no process stood still: {struck:?}");
        assert!(struck.lost > 0, "no packet was to be lost: {struck:?}");
        assert!(self.disk.is_none() || struck.filled > 0, "the disk was never full: {struck:?}");
        assert!(self.rotting.is_none() || struck.flipped > 0, "nothing rotted: {struck:?}");
    }

    fn next_kind(&self, random: &mut Random) -> Kind {
        let mut deck = self.deck.lock().expect("one thread strikes");
        if deck.is_empty() {
            deck.extend(self.pauses.then_some(Kind::Pause));
            deck.extend([Kind::Lose, Kind::Lose, Kind::Cut]);
            deck.extend(self.disk.as_ref().map(|_| Kind::Fill));
            deck.extend(self.rotting.as_ref().map(|_| Kind::Rot));
            for last in (1..deck.len()).rev() {
                deck.swap(last, random.within(0..last as u64 + 1) as usize);
            }
        }
        deck.pop().unwrap_or(Kind::Lose)
    }

    fn strike_until(&self, lab: &Lab, random: &mut Random, is_over: &AtomicBool) -> Struck {
        let mut struck = Struck::default();
        while !is_over.load(Ordering::Relaxed) {
            let kind = self.next_kind(random);
            if !self.strike(kind, lab, random, is_over, &mut struck) {
                // There was nothing to strike yet: its turn comes again.
                self.deck.lock().expect("one thread strikes").insert(0, kind);
            }
            sleep_until(
                Instant::now() + Duration::from_millis(random.within(self.between_ms.clone())),
                is_over,
            );
        }
        struck
    }

    /// Lets one fault strike and pass; false if it found nothing.
    fn strike(
        &self,
        kind: Kind,
        lab: &Lab,
        random: &mut Random,
        is_over: &AtomicBool,
        struck: &mut Struck,
    ) -> bool {
        let time = Duration::from_millis(random.within(50..400));
        let pass = |time: Duration| sleep_until(Instant::now() + time, is_over);
        match kind {
            Kind::Pause => {
                let pids = lab.host(random.within(0..2) as usize).pids_of("dray");
                if pids.is_empty() {
                    return false;
                }
                let pid = pids[random.within(0..pids.len() as u64) as usize];
                sweep::signal(pid, Signal::STOP);
                pass(time * 3);
                sweep::signal(pid, Signal::CONT);
                struck.paused += 1;
            }
            Kind::Lose => {
                let (from, to) = if random.within(0..2) == 0 { (0, 1) } else { (1, 0) };
                let loss = Loss::Random(random.within(2..50) as f64 / 100.0);
                lab.change(from, to, Change::Loss(loss));
                pass(time);
                lab.change(from, to, Change::Loss(Loss::None));
                struck.lost += 1;
            }
            Kind::Cut => {
                lab.change(0, 1, Change::Up(false));
                pass(time);
                lab.change(0, 1, Change::Up(true));
                struck.lost += 1;
            }
            Kind::Fill => {
                let Some(disk) = &self.disk else { return true };
                fill(disk);
                pass(time);
                let _ = fs::remove_file(filler(disk));
                struck.filled += 1;
            }
            Kind::Rot => {
                let Some((directory, names)) = &self.rotting else { return true };
                let is_flipped = rot(directory, names, random);
                struck.flipped += u32::from(is_flipped);
                return is_flipped;
            }
        }
        true
    }
}

/// Sleeps, for less long if all is over before.
fn sleep_until(until: Instant, is_over: &AtomicBool) {
    while Instant::now() < until && !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Shuts a connection between the hosts each time that there was one for [`SHUT_EVERY`] in all, whatever else happens meanwhile. Without ssh a copy cannot go on,
/// and that is not all that is to be tried: one of ssh only in one turn of six.
fn shut_until(lab: &Lab, random: &mut Random, is_over: &AtomicBool) -> Struck {
    let connections = Connections::between([lab.host(0), lab.host(1)]);
    let mut shut = 0;
    // Since the last turn there was a connection for so long; and one that is not of ssh in all.
    let (mut waited, mut exposed) = (Duration::ZERO, Duration::ZERO);
    let (mut had, mut looked) = (Vec::new(), Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        let mut all = connections.now();
        let passed = looked.elapsed();
        looked += passed;
        let is_other = |connection: &Connection| !connection.is_ssh();
        if !had.is_empty() && !all.is_empty() {
            waited += passed;
        }
        if had.iter().any(is_other) && all.iter().any(is_other) {
            exposed += passed;
        }
        had.clone_from(&all);
        if waited >= SHUT_EVERY && !all.is_empty() {
            let may_be_ssh = random.within(0..6) == 0;
            all.retain(|connection| may_be_ssh || is_other(connection));
            let is_shut = !all.is_empty() && {
                let connection = all[random.within(0..all.len() as u64) as usize];
                connections.shut(connection, random.within(0..2) as usize)
            };
            // How long that took is no time in which another could be shut.
            looked = Instant::now();
            shut += u32::from(is_shut);
            // One that ended by itself just now is no turn.
            if is_shut || all.is_empty() {
                waited = Duration::ZERO;
            }
        }
        std::thread::sleep(LOOK);
    }
    let turns = exposed.as_millis() / SHUT_EVERY.as_millis();
    Struck { shut, turns: u32::try_from(turns).unwrap_or(u32::MAX), ..Struck::default() }
}

fn filler(disk: &Path) -> PathBuf {
    disk.join("filler")
}

/// Fills the disk to the last block.
fn fill(disk: &Path) {
    let mut filler = File::create(filler(disk)).expect("make a file that fills the disk");
    let mut block = vec![1; 1 << 20];
    while !block.is_empty() {
        match filler.write_all(&block) {
            Ok(()) => {}
            Err(_) => block.truncate(block.len() / 2),
        }
    }
}

/// Turns over a bit of one of the files of these names below `directory`; false if there is none with a byte in it.
fn rot(directory: &Path, names: &[&str], random: &mut Random) -> bool {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            } else if metadata.len() > 0 && names.iter().any(|name| entry.file_name() == *name) {
                found.push((entry.path(), metadata.len()));
            }
        }
    }
    found.sort();
    if found.is_empty() {
        return false;
    }
    let (path, len) = &found[random.within(0..found.len() as u64) as usize];
    flip(path, random.within(0..*len)).is_ok()
}

/// Turns over one bit, unless the file has gone meanwhile.
fn flip(path: &Path, at: u64) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x10], at)
}
