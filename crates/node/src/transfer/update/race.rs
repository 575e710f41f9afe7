//! An older version on a slow disk against a fast network (R12, "never slower"): to cut it costs as much of the disk as what comes has to be
//! written there, so where the network brings more than that disk reads, the older version is left alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dray_core::limits::GROUP_BYTES;
use dray_core::{Error, ErrorKind, Result};

use super::search::{FIRST_GROUPS, MEASURED_BYTES, START_ROUND_TRIPS, VERY_SLOW, rate};
use super::{Plan, Transfer};
use crate::search::scheduled;

/// Who reads from memory is through with a few MiB after so long; until then it is not known what the cut waits for.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// A cut that is done so soon is not worth a question.
const WORTH: Duration = Duration::from_millis(300);
/// The disk is what it waits for if it is for one of so many parts of the time.
const WAITS_PART: u32 = 2;
/// How long nobody is asked to describe the object because the network may be faster than the disk: a holder reads all of it for that.
const MEASURING_TIME: Duration = Duration::from_millis(100);
/// A network that is so many times slower than the disk does not become faster: as far as a moment tells, and where it was looked at for [`LASTING`].
const SLOWER: u64 = 4;
const LASTING_SLOWER: u64 = 2;
const LASTING: Duration = Duration::from_millis(20);
/// By how much it has to be faster each time for more to be asked for.
const GROWS: f64 = 1.25;
/// More than this is not fetched to find out.
const GROUPS_MAX: u64 = 256;

/// The cut of an older version, as others see it go on.
#[derive(Debug)]
pub(super) struct Cut {
    size_bytes: u64,
    begun: OnceLock<Begun>,
    read_bytes: AtomicU64,
    is_done: AtomicBool,
    is_left: AtomicBool,
}

/// When and by which thread it was begun.
#[derive(Debug)]
struct Begun {
    at: Instant,
    thread: i32,
    /// How long that thread had run, or waited for a processor, before.
    busy: Option<Duration>,
}

impl Cut {
    pub(super) fn of(size_bytes: u64) -> Cut {
        Cut {
            size_bytes,
            begun: OnceLock::new(),
            read_bytes: AtomicU64::new(0),
            is_done: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
        }
    }

    /// The calling thread cuts from now on.
    pub(super) fn begin(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let _ = self.begun.set(Begun { at: Instant::now(), thread, busy: busy(thread) });
    }

    /// It has read so much more.
    pub(super) fn has_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Nobody wants it any more.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// True until it is known whether it waits for a disk.
    fn is_new(&self) -> bool {
        !self.is_done() && self.begun.get().is_none_or(|begun| begun.at.elapsed() < FIRST_LOOK)
    }

    /// Bytes a second that the disk reads, if the cut waits for that and will for some time.
    fn disk_bytes_per_s(&self) -> Option<u64> {
        let begun = self.begun.get().filter(|_| !self.is_done())?;
        let elapsed = begun.at.elapsed();
        let busy = busy(begun.thread)?.saturating_sub(begun.busy?);
        disk_rate(self.size_bytes, self.read_bytes.load(Ordering::Relaxed), elapsed, busy)
    }
}

/// Of a cut that has taken so long, in `busy` of which it ran or waited for a processor.
fn disk_rate(size_bytes: u64, read_bytes: u64, elapsed: Duration, busy: Duration) -> Option<u64> {
    if elapsed < FIRST_LOOK || busy > elapsed / WAITS_PART {
        return None;
    }
    let rate = rate(read_bytes, elapsed);
    let left_s = size_bytes.saturating_sub(read_bytes) as f64 / rate.max(1) as f64;
    (left_s >= WORTH.as_secs_f64()).then_some(rate)
}

/// How long the thread has run, or was ready to and waited; `None` where the kernel does not tell.
fn busy(thread: i32) -> Option<Duration> {
    let (ran_ns, waited_ns) = scheduled(&format!("/proc/self/task/{thread}"))?;
    Some(Duration::from_nanos(ran_ns.saturating_add(waited_ns)))
}

/// What the network brought in a moment is held against the disk, more each time until one of both is faster.
#[derive(Debug)]
pub(super) struct Race<'a> {
    cut: &'a Cut,
    groups: u64,
    asked: Option<(Instant, u64)>,
    begun: Option<Instant>,
    /// Bytes a second when it was looked last.
    rate: u64,
    is_over: bool,
}

/// What one look at the network tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It is faster.
    Network,
    /// It is slower.
    Disk,
    /// So little tells nothing yet.
    Open,
}

impl<'a> Race<'a> {
    pub(super) fn new(cut: &'a Cut) -> Race<'a> {
        Race { cut, groups: FIRST_GROUPS, asked: None, begun: None, rate: 0, is_over: false }
    }

    /// True while nothing more can come of it.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || self.cut.is_done()
    }

    /// True while the older version may turn out not to be worth its disk. Until then nobody is asked to describe the object.
    pub(super) fn is_measuring(&self) -> bool {
        let is_soon = |begun: Instant| begun.elapsed() < MEASURING_TIME;
        !self.is_over() && self.begun.map_or_else(|| self.cut.is_new(), is_soon)
    }

    /// How many groups to ask for next, if the cut waits for a disk that reads `disk` bytes a second; none where that is the faster one. `Unsupported` where the
    /// network is.
    fn next(&mut self, disk: Option<u64>, round_trip: Duration) -> Result<Option<u64>> {
        let Some(disk) = disk else { return Ok(None) };
        if let Some((at, bytes)) = self.asked.take() {
            let took = at.elapsed();
            let before = std::mem::replace(&mut self.rate, rate(bytes, took));
            match verdict(disk, bytes, took, round_trip, before) {
                Verdict::Network => {
                    return Err(Error::new(ErrorKind::Unsupported, "the network is faster than the disk"));
                }
                Verdict::Disk => self.is_over = true,
                Verdict::Open => self.is_over = self.groups > GROUPS_MAX,
            }
        }
        if self.is_over {
            return Ok(None);
        }
        let now = Instant::now();
        self.begun.get_or_insert(now);
        let groups = self.groups;
        self.asked = Some((now, groups * GROUP_BYTES));
        self.groups = if groups == FIRST_GROUPS { 3 * FIRST_GROUPS } else { groups.saturating_mul(2).max(8) };
        Ok(Some(groups))
    }
}

/// So many bytes came in that time, after `before` bytes a second, and the disk reads `disk` bytes a second meanwhile. A connection that has just begun takes some round trips for
/// little.
fn verdict(disk: u64, bytes: u64, took: Duration, round_trip: Duration, before: u64) -> Verdict {
    if bytes >= MEASURED_BYTES {
        let network = rate(bytes, took);
        return match network {
            _ if network >= disk => Verdict::Network,
            _ if network as f64 >= before as f64 * GROWS => Verdict::Open,
            _ => Verdict::Disk,
        };
    }
    let trips = if bytes < MEASURED_BYTES / 2 { START_ROUND_TRIPS } else { 1 };
    let network = rate(bytes, took.saturating_sub(round_trip * trips).max(took / 4));
    let slower = match () {
        () if bytes <= FIRST_GROUPS * GROUP_BYTES || round_trip * trips > took / 2 => VERY_SLOW,
        () if took < LASTING => SLOWER,
        () => LASTING_SLOWER,
    };
    if network < disk / slower { Verdict::Disk } else { Verdict::Open }
}

impl Transfer {
    /// Asks for a little of the object while the cut waits for a disk. `Unsupported` if the network brings more than that disk reads.
    pub(super) fn race(&self, plan: &mut Plan<'_>, race: &mut Race<'_>) -> Result<()> {
        if race.is_over() || !self.has_fetched_all() || self.best_source(&[]).is_none() {
            return Ok(());
        }
        if let Some(groups) = race.next(race.cut.disk_bytes_per_s(), self.round_trip())? {
            race.is_over = !plan.probe(groups);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// R12: who reads from memory, or waits for a processor, waits for no disk; nor is what is nearly cut worth a question.
    #[test]
    fn a_cut_that_waits_for_a_disk_is_told_from_others() {
        assert_eq!(disk_rate(1000 * MB, 7 * MB, ms(100), ms(10)), Some(70 * MB));
        assert_eq!(
            disk_rate(1000 * MB, 7 * MB, ms(100), ms(51)),
            None,
            "it has a processor, or waits for one"
        );
        assert_eq!(disk_rate(1000 * MB, 7 * MB, ms(19), ms(1)), None, "too early");
        assert_eq!(disk_rate(27 * MB, 7 * MB, ms(100), ms(10)), None, "done soon");
        assert_eq!(disk_rate(29 * MB, 7 * MB, ms(100), ms(10)), Some(70 * MB));
        assert!(disk_rate(1000 * MB, 0, ms(100), ms(0)).is_some(), "a disk that hangs");
    }

    /// R12, P7 "never slower": a line of 1 Gbit/s is faster than a disk of 70 MB/s once a MiB has come, one of 100 Mbit/s and a T1 line are not, and the
    /// first groups over a long path tell nothing.
    #[test]
    fn the_faster_one_wins() {
        let disk = 70 * MB;
        let look = |groups, took, round_trip, before| {
            verdict(disk, groups * GROUP_BYTES, ms(took), ms(round_trip), before)
        };
        assert_eq!(look(1, 1, 0, 0), Verdict::Open);
        assert_eq!(look(16, 9, 0, 110 * MB), Verdict::Network);
        assert_eq!(look(1, 340, 40, 0), Verdict::Disk);
        assert_eq!(look(3, 16, 0, 12 * MB), Verdict::Disk);
        assert_eq!(look(3, 150, 50, MB), Verdict::Open);
        assert_eq!(look(8, 46, 4, 9 * MB), Verdict::Disk);
        assert_eq!(look(16, 60, 50, 5 * MB), Verdict::Open);
        assert_eq!(look(128, 117, 50, 30 * MB), Verdict::Network);
        assert_eq!(look(16, 20, 0, 30 * MB), Verdict::Open, "it grows");
        assert_eq!(look(32, 40, 0, 50 * MB), Verdict::Disk, "it does not");
    }

    /// A race ends, whoever wins: what is fetched to find out is bounded, and a cut that is done is no longer raced against.
    #[test]
    fn a_race_ends() {
        let cut = Cut::of(1 << 40);
        let mut race = Race::new(&cut);
        assert!(race.is_measuring() && !race.is_over());
        assert_eq!(race.next(None, Duration::ZERO).unwrap(), None, "it is not known what it waits for");
        let mut asked = 0;
        while let Some(groups) = race.next(Some(24 * MB), Duration::ZERO).unwrap() {
            asked += groups;
            // A little faster each time.
            let rate = 13 * MB + groups * MB / 25;
            let took = Duration::from_secs_f64((groups * GROUP_BYTES) as f64 / rate as f64);
            race.rate = 0;
            race.asked = Instant::now().checked_sub(took).map(|at| (at, groups * GROUP_BYTES));
            assert!(asked <= 2 * GROUPS_MAX, "{asked} groups");
        }
        assert!(asked >= GROUPS_MAX / 2 && race.is_over() && !race.is_measuring());
        cut.end();
        assert!(Race::new(&cut).is_over());
        assert_eq!(cut.disk_bytes_per_s(), None);
    }
}
