//! An older version on a slow disk against a fast network (R12, "never slower"): to cut it costs as much of the disk as what comes has to be
//! written there, so where the network brings more than that disk reads, the older version is left alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dray_core::limits::{GROUP_BYTES, UNIT_BYTES};
use dray_core::{Error, ErrorKind, Result};

use super::search::{FIRST_GROUPS, MEASURED_BYTES, VERY_SLOW, first_rate, rate};
use super::{Plan, Transfer};
use crate::search::{busy, waits_for_disk};

/// Who reads from memory is through with a few MiB after so long; until then it is not known what the cut waits for.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// A disk that spins up, or has others' writes to do first, says nothing by its first moments: so much is read, or so long it has read at least a little,
/// before its rate counts.
const DISK_BYTES: u64 = 4 << 20;
const DISK_TIME: Duration = Duration::from_millis(500);
const DISK_BYTES_MIN: u64 = 1 << 20;
/// A cut that is done so soon is not worth a question.
const WORTH: Duration = Duration::from_millis(300);
/// How long nobody is asked to describe the object because the network may be faster than the disk: a holder reads all of it for that.
const MEASURING_TIME: Duration = Duration::from_millis(100);
/// A network that is so many times slower than the disk does not become faster: as far as a moment tells, and where it was looked at for [`LASTING`].
const SLOWER: u64 = 4;
const LASTING_SLOWER: u64 = 2;
const LASTING: Duration = Duration::from_millis(20);
/// What was faster still is if it brings no more than one part in so many less.
const MARGIN: u64 = 4;
/// A disk that read so many times less than since its beginning was held up by others.
const STALLED: u64 = 4;
/// It has to be so in so many looks.
const LOOKS: u32 = 2;
/// By how much it has to be faster each time for more to be asked for.
const GROWS: f64 = 1.25;
/// More than this is not fetched to find out, in all, before it was faster.
const GROUPS_MAX: u64 = 256;
/// For so long the network has to be faster: a line that is slow lets a few MiB through at once.
const LASTS: Duration = Duration::from_millis(100);
/// What a network that was faster is asked for at once: what the disk reads meanwhile, so that little is in vain if it is so no longer.
const AT_ONCE: Duration = Duration::from_millis(50);

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
        let _ = self.begun.set(Begun { at: Instant::now(), thread, busy: busy(&directory_of(thread)) });
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

    /// True until it is known whether it waits for a disk, and for how fast a one, for [`MEASURING_TIME`] at most.
    fn is_new(&self) -> bool {
        let is_new = |begun: &Begun| {
            let elapsed = begun.at.elapsed();
            elapsed < FIRST_LOOK
                || elapsed < MEASURING_TIME
                    && self.read_bytes.load(Ordering::Relaxed) < DISK_BYTES
                    && begun.busy().is_some_and(|busy| waits_for_disk(elapsed, busy))
        };
        !self.is_done() && self.begun.get().is_none_or(is_new)
    }

    /// What the disk reads, if the cut waits for that and will for some time.
    fn disk(&self) -> Option<Disk> {
        let begun = self.begun.get().filter(|_| !self.is_done())?;
        let (elapsed, read_bytes) = (begun.at.elapsed(), self.read_bytes.load(Ordering::Relaxed));
        let bytes_per_s = disk_rate(self.size_bytes, read_bytes, elapsed, begun.busy()?)?;
        Some(Disk { bytes_per_s, read_bytes })
    }
}

impl Begun {
    /// How long the thread has run since, or was ready to and waited; `None` where the kernel does not tell.
    fn busy(&self) -> Option<Duration> {
        Some(busy(&directory_of(self.thread))?.saturating_sub(self.busy?))
    }
}

/// A disk that a cut waits for: what it reads, and has read, since that was begun.
#[derive(Clone, Copy, Debug)]
struct Disk {
    bytes_per_s: u64,
    read_bytes: u64,
}

/// What the network brought in some time, and the disk read meanwhile.
#[derive(Clone, Copy, Default, Debug)]
struct Look {
    took: Duration,
    came_bytes: u64,
    read_bytes: u64,
}

impl Look {
    fn add(&mut self, other: Look) {
        self.took += other.took;
        self.came_bytes = self.came_bytes.saturating_add(other.came_bytes);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
    }
}

/// Where the kernel tells of a thread.
fn directory_of(thread: i32) -> String {
    format!("/proc/self/task/{thread}")
}

/// Of a cut that has taken so long, in `busy` of which it ran or waited for a processor.
fn disk_rate(size_bytes: u64, read_bytes: u64, elapsed: Duration, busy: Duration) -> Option<u64> {
    let is_known = read_bytes >= DISK_BYTES || read_bytes >= DISK_BYTES_MIN && elapsed >= DISK_TIME;
    if !is_known || elapsed < FIRST_LOOK || !waits_for_disk(elapsed, busy) {
        return None;
    }
    let rate = rate(read_bytes, elapsed);
    let left_s = size_bytes.saturating_sub(read_bytes) as f64 / rate.max(1) as f64;
    (left_s >= WORTH.as_secs_f64()).then_some(rate)
}

/// What the network brought in a moment is held against the disk, more each time until one of both is faster, and for a while.
#[derive(Debug)]
pub(super) struct Race<'a> {
    cut: &'a Cut,
    /// To be asked for next.
    groups: u64,
    /// Asked for so far.
    asked_groups: u64,
    /// When the last ones were asked for, and what the network had brought, and the disk read, by then.
    asked: Option<(Instant, u64, u64)>,
    begun: Option<Instant>,
    /// Bytes a second when it was looked last.
    rate: u64,
    /// Since it has been faster.
    faster: Look,
    /// In so many looks.
    looks: u32,
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
        Race {
            cut,
            groups: FIRST_GROUPS,
            asked_groups: 0,
            asked: None,
            begun: None,
            rate: 0,
            faster: Look::default(),
            looks: 0,
            is_over: false,
        }
    }

    /// None: the older version is wanted however slow its disk is.
    pub(super) fn none(cut: &'a Cut) -> Race<'a> {
        Race { is_over: true, ..Race::new(cut) }
    }

    /// True if nothing more can come of it.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || self.cut.is_done()
    }

    /// True while the older version may turn out not to be worth its disk. Until then nobody is asked to describe the object.
    pub(super) fn is_measuring(&self) -> bool {
        let is_soon = |begun: Instant| begun.elapsed() < MEASURING_TIME;
        !self.is_over() && self.begun.map_or_else(|| self.cut.is_new(), is_soon)
    }

    /// How many groups to ask for next, if the cut waits for a disk and the network has brought `came` bytes in all; none where the disk is the faster one.
    /// `Unsupported` where the network is.
    ///
    /// Both are compared over the same time: what comes is often written to the disk that the older version is read from, and the two then share it.
    fn next(&mut self, disk: Option<Disk>, came: u64, round_trip: Duration) -> Result<Option<u64>> {
        let Some(disk) = disk else { return Ok(None) };
        if let Some((at, came_before, read_before)) = self.asked.take() {
            let look = Look {
                took: at.elapsed(),
                came_bytes: came.saturating_sub(came_before),
                read_bytes: disk.read_bytes.saturating_sub(read_before),
            };
            let rate_before = std::mem::replace(&mut self.rate, rate(look.came_bytes, look.took));
            match verdict(disk.bytes_per_s, look, self.faster, round_trip, rate_before) {
                Verdict::Network => {
                    self.faster.add(look);
                    self.looks += 1;
                }
                Verdict::Disk => self.is_over = true,
                Verdict::Open => (self.faster, self.looks) = (Look::default(), 0),
            }
            if self.faster.took >= LASTS && self.looks >= LOOKS {
                return Err(left_alone());
            }
        }
        let groups = match self.faster.took.is_zero() {
            true => self.groups.min(GROUPS_MAX.saturating_sub(self.asked_groups)),
            false => {
                let at_once = (disk.bytes_per_s as f64 * AT_ONCE.as_secs_f64()) as u64;
                self.groups.min(at_once.max(MEASURED_BYTES) / GROUP_BYTES)
            }
        };
        self.is_over |= groups == 0;
        Ok((!self.is_over).then_some(groups))
    }

    /// So many groups are asked for now, when so much has come and was read.
    fn goes_out(&mut self, groups: u64, came: u64, read: u64) {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        self.asked = Some((now, came, read));
        self.asked_groups = self.asked_groups.saturating_add(groups);
        self.groups = match self.groups {
            FIRST_GROUPS => 3 * FIRST_GROUPS,
            before => before.saturating_mul(2).max(8),
        };
    }
}

fn left_alone() -> Error {
    Error::new(ErrorKind::Unsupported, "the network is faster than the disk")
}

/// What a look tells after `before` bytes a second, `earlier` of which the network was faster, where the disk reads `disk` bytes a second if nothing else is
/// done with it. A connection that has just begun takes some round trips for little, and one for what it is asked for alone.
fn verdict(disk: u64, look: Look, earlier: Look, round_trip: Duration, before: u64) -> Verdict {
    let Look { took, came_bytes: bytes, .. } = look;
    if bytes < GROUP_BYTES {
        // Zeros cross in no time.
        return Verdict::Open;
    }
    if bytes >= MEASURED_BYTES {
        let mut all = earlier;
        all.add(look);
        let network = rate(all.came_bytes, all.took.saturating_sub(round_trip).max(all.took / 2));
        // What is being read counts as read; and one that stood still for a moment is no slow disk.
        let disk = disk.min(rate(all.read_bytes + UNIT_BYTES, all.took)).max(disk / STALLED);
        // What was faster by far waits for the disk once what came has to be written there.
        let enough = if earlier.took.is_zero() { disk } else { disk - disk / MARGIN };
        return match rate(bytes, took.saturating_sub(round_trip).max(took / 2)) {
            _ if network >= enough => Verdict::Network,
            now if now as f64 >= before as f64 * GROWS => Verdict::Open,
            _ => Verdict::Disk,
        };
    }
    let (network, start) = first_rate(bytes, took, round_trip);
    let slower = match () {
        () if bytes <= FIRST_GROUPS * GROUP_BYTES || start > took / 2 => VERY_SLOW,
        () if took < LASTING => SLOWER,
        () => LASTING_SLOWER,
    };
    if network < disk / slower { Verdict::Disk } else { Verdict::Open }
}

impl Transfer {
    /// Asks for a little of the object while the cut waits for a disk. `Unsupported` if the network brings more than that disk reads, or has brought all.
    pub(super) fn race(&self, plan: &mut Plan<'_>, race: &mut Race<'_>) -> Result<()> {
        if race.is_over() || !self.has_fetched_all() || self.best_source(&[]).is_none() {
            return Ok(());
        }
        let came = self.brought_bytes.load(Ordering::Acquire);
        let disk = race.cut.disk();
        if let Some(groups) = race.next(disk, came, self.round_trip())? {
            match plan.probe(groups) {
                0 => return Err(left_alone()),
                groups => race.goes_out(groups, came, disk.map_or(0, |disk| disk.read_bytes)),
            }
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
        assert_eq!(disk_rate(1000 * MB, 3 * MB, ms(400), ms(0)), None, "it has just begun");
        assert!(disk_rate(1000 * MB, 3 * MB, ms(500), ms(0)).is_some(), "it is slow");
        assert_eq!(disk_rate(1000 * MB, 0, ms(8000), ms(0)), None, "it spins up");
    }

    /// R12, P7 "never slower": a line of 1 Gbit/s is faster than a disk of 70 MB/s once a MiB has come, one of 100 Mbit/s and a T1 line are not, and the
    /// first groups over a long path tell nothing.
    #[test]
    fn the_faster_one_wins() {
        let disk = 70 * MB;
        let of = |groups: u64, took, read_bytes| Look {
            took: ms(took),
            came_bytes: groups * GROUP_BYTES,
            read_bytes,
        };
        let look = |groups, took, round_trip, before| {
            let look = of(groups, took, disk * took / 1000);
            verdict(disk, look, Look::default(), ms(round_trip), before)
        };
        assert_eq!(look(1, 1, 0, 0), Verdict::Open);
        assert_eq!(look(16, 9, 0, 110 * MB), Verdict::Network);
        assert_eq!(look(1, 340, 40, 0), Verdict::Disk);
        assert_eq!(look(3, 16, 0, 12 * MB), Verdict::Disk);
        assert_eq!(look(3, 150, 50, MB), Verdict::Open);
        assert_eq!(look(8, 46, 4, 9 * MB), Verdict::Disk);
        assert_eq!(look(16, 60, 50, 5 * MB), Verdict::Open);
        assert_eq!(look(128, 117, 50, 30 * MB), Verdict::Network);
        assert_eq!(look(107, 110, 50, 30 * MB), Verdict::Network, "a round trip is none of its doing");
        assert_eq!(look(107, 330, 50, 22 * MB), Verdict::Disk);
        assert_eq!(look(16, 20, 0, 30 * MB), Verdict::Open, "it grows");
        assert_eq!(look(32, 40, 0, 50 * MB), Verdict::Disk, "it does not");
        // Where what comes is written to the same disk, both get what there is of it; the network might bring more.
        let shared = |read| verdict(disk, of(16, 30, read), Look::default(), ms(0), 100 * MB);
        assert_eq!(shared(0), Verdict::Network);
        assert_eq!(shared(MB), Verdict::Disk);
        // A disk that was held up for a while is as fast as before after it.
        assert_eq!(verdict(disk, of(16, 200, 0), Look::default(), ms(100), 100 * MB), Verdict::Disk);
        // A write that waits for the disk does not show how fast the network is.
        let wait = |earlier| verdict(disk, of(16, 60, 2 * MB), earlier, ms(0), 100 * MB);
        assert_eq!(wait(Look::default()), Verdict::Disk);
        assert_eq!(wait(of(112, 63, 3 * MB)), Verdict::Network);
        assert_eq!(wait(of(32, 15, MB)), Verdict::Network, "three quarters of what is read");
        assert_eq!(wait(of(16, 15, 3 * MB)), Verdict::Disk);
    }

    /// A race in which each group takes `per_group` microseconds on the network, as long as it lasts; how many were asked for, and whether the network won.
    fn run(disk: u64, per_group: impl Fn(u64) -> f64) -> (u64, bool) {
        let cut = Cut::of(1 << 40);
        let mut race = Race::new(&cut);
        assert!(race.is_measuring() && !race.is_over());
        assert_eq!(race.next(None, 0, Duration::ZERO).unwrap(), None, "it is not known what it waits for");
        let (mut asked, mut came, mut read_bytes) = (0, 0, 0);
        loop {
            let disk_now = Disk { bytes_per_s: disk, read_bytes };
            let groups = match race.next(Some(disk_now), came, Duration::ZERO) {
                Ok(Some(groups)) => groups,
                Ok(None) => break,
                Err(_) => return (asked, true),
            };
            let took_s = (asked..asked + groups).map(&per_group).sum::<f64>() / 1e6;
            race.goes_out(groups, came, read_bytes);
            let at = Instant::now().checked_sub(Duration::from_secs_f64(took_s));
            race.asked = at.map(|at| (at, came, read_bytes));
            (asked, came) = (asked + groups, came + groups * GROUP_BYTES);
            read_bytes += (disk as f64 * took_s) as u64;
            assert!(asked <= 8 * GROUPS_MAX, "{asked} groups");
        }
        assert!(race.is_over() && !race.is_measuring());
        (asked, false)
    }

    /// Microseconds that a group takes at so many MB/s.
    fn at(mb_per_s: f64) -> f64 {
        GROUP_BYTES as f64 / mb_per_s
    }

    /// R12: a race ends, whoever wins, and what is fetched to find out is bounded. A line that lets a few MiB through at once is no fast one.
    #[test]
    fn a_race_ends() {
        let (asked, is_network) = run(70 * MB, |_| at(115.0));
        assert!(is_network && asked < 2 * GROUPS_MAX, "{asked}");
        assert!(run(70 * MB, |_| at(75.0)).1);
        let (asked, is_network) = run(70 * MB, |_| at(12.0));
        assert!(!is_network && asked <= 12, "{asked}");
        let (asked, is_network) = run(70 * MB, |_| at(40.0));
        assert!(!is_network && asked <= 28, "{asked}");
        let (asked, is_network) = run(70 * MB, |group| if group < 96 { at(115.0) } else { at(6.0) });
        assert!(!is_network && asked <= GROUPS_MAX, "{asked}");
        let cut = Cut::of(1 << 40);
        cut.end();
        assert!(Race::new(&cut).is_over());
        assert!(cut.disk().is_none());
    }

    /// R12: zeros cross in no time, which says nothing of the network.
    #[test]
    fn zeros_are_no_fast_network() {
        let cut = Cut::of(1 << 40);
        let mut race = Race::new(&cut);
        let mut asked = 0;
        let disk = Disk { bytes_per_s: 70 * MB, read_bytes: 0 };
        while let Some(groups) = race.next(Some(disk), 0, Duration::ZERO).unwrap() {
            race.goes_out(groups, 0, 0);
            asked += groups;
        }
        assert!(race.is_over() && asked <= GROUPS_MAX, "{asked}");
    }
}
