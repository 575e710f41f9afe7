//! When this user's copies wrote files that nobody has made durable. After a loss of power such a file may have its name, size and
//! times but not its bytes: the file system writes them in an order of its own. Until a copy has compared its bytes once, it is not
//! taken for whole because of its size and times ([ADR 19](../../../../docs/adr/0019-what-was-never-synced.md)).
//!
//! A run that writes leaves an empty file in a folder of the store. All there is to say is its name:
//! `<boot>-<since>-<until>-<random>`, in hex digits (`docs/format/object.md`). It is durable before the first file has its name,
//! and there are no locks, as no name is written by two.

use std::cell::{Cell, RefCell};
use std::fs::{DirBuilder, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::boot::{self, BootId};

/// Name of the folder.
const FOLDER: &str = "unsynced";
/// Change times are taken from a clock that ticks coarsely, and not from ours.
const MARGIN: Duration = Duration::from_secs(2);
/// Runs that are told apart; beyond, the two oldest become one.
const RUNS_MAX: usize = 64;
/// Names looked at.
const NAMES_MAX: usize = 4096;

/// Change times, nanoseconds since 1970.
type Times = RangeInclusive<u64>;

/// What the name of a file in the folder says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    boot: BootId,
    /// `u64::MAX` at its end while the run lasts, or if it was killed.
    times: Times,
    random: u32,
}

impl Run {
    fn name(&self) -> String {
        let boot = u128::from_be_bytes(self.boot);
        format!("{boot:032x}-{:016x}-{:016x}-{:08x}", self.times.start(), self.times.end(), self.random)
    }

    fn parse(name: &str) -> Option<Run> {
        let number = |range: std::ops::Range<usize>| u128::from_str_radix(name.get(range)?, 16).ok();
        let run = Run {
            boot: number(0..32)?.to_be_bytes(),
            times: u64::try_from(number(33..49)?).ok()?..=u64::try_from(number(50..66)?).ok()?,
            random: u32::try_from(number(67..75)?).ok()?,
        };
        (run.name() == name).then_some(run)
    }
}

/// What earlier boots wrote and may have lost, and the run that writes now.
#[derive(Debug)]
pub struct Unsynced {
    folder: PathBuf,
    boot: BootId,
    /// Of runs of other boots.
    doubtful: Vec<Times>,
    /// This run, once it writes.
    own: RefCell<Option<Run>>,
    has_begun: Cell<bool>,
}

impl Unsynced {
    /// What is known in the store at `root`, which need not be there before something is written. Whatever cannot be read or written
    /// there is not known: a copy does not fail for it.
    pub fn open(root: &Path) -> Unsynced {
        Unsynced::open_at(root, boot::current(), now_ns())
    }

    pub(super) fn open_at(root: &Path, boot: BootId, now_ns: u64) -> Unsynced {
        let folder = root.join(FOLDER);
        let mut doubtful = Vec::new();
        for run in runs(&folder) {
            if run.boot == boot && boot != boot::UNKNOWN {
                continue;
            }
            let mut times = run.times.clone();
            if *times.end() == u64::MAX {
                // Its process died with the machine, so it wrote nothing from now on.
                times = *times.start()..=now_ns;
                let ended = Run { times: times.clone(), ..run.clone() };
                let _ = std::fs::rename(folder.join(run.name()), folder.join(ended.name()));
            }
            doubtful.push(times);
        }
        Unsynced { folder, boot, doubtful, own: RefCell::new(None), has_begun: Cell::new(false) }
    }

    /// True if a file with this change time may have lost bytes.
    pub fn doubts(&self, ctime_s: i64, ctime_ns: u32) -> bool {
        let ctime_ns =
            u64::try_from(ctime_s).unwrap_or(0).saturating_mul(1_000_000_000) + u64::from(ctime_ns);
        self.doubtful.iter().any(|times| times.contains(&ctime_ns))
    }

    /// From now on files are written. Returns when that is durable; does nothing when called again.
    pub fn begin(&self) {
        if self.has_begun.replace(true) {
            return;
        }
        self.bound();
        let since = now_ns().saturating_sub(MARGIN.as_nanos() as u64);
        let random = random();
        let run = Run { boot: self.boot, times: since..=u64::MAX, random };
        let is_made = !self.folder.exists();
        // Where that fails, so does the file.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        if File::create_new(self.folder.join(run.name())).is_err() {
            return;
        }
        let parent = self.folder.parent().filter(|_| is_made);
        for directory in std::iter::once(self.folder.as_path()).chain(parent) {
            let _ = File::open(directory).and_then(|directory| directory.sync_all());
        }
        *self.own.borrow_mut() = Some(run);
    }

    /// What this run wrote is durable.
    pub fn synced(&self) {
        if let Some(run) = self.own.take() {
            let _ = std::fs::remove_file(self.folder.join(run.name()));
        }
        self.has_begun.set(false);
    }

    /// Makes one of the two oldest runs until one more finds room. What comes of it is in doubt for longer, never for less: one that still
    /// lasts does not find its file, and so has no end; of two boots the earlier one counts.
    fn bound(&self) {
        let mut all = runs(&self.folder);
        all.sort_by_key(|run| *run.times.start());
        while all.len() >= RUNS_MAX {
            let (first, second) = (all.remove(0), all.remove(0));
            let times = *first.times.start()..=*first.times.end().max(second.times.end());
            let boot = if first.boot == self.boot { second.boot } else { first.boot };
            let both = Run { boot, times, random: first.random };
            let path = |run: &Run| self.folder.join(run.name());
            // The first may say it all; then its file stays.
            if both == first {
                let _ = std::fs::remove_file(path(&second));
            } else if std::fs::rename(path(&second), path(&both)).is_ok() {
                let _ = std::fs::remove_file(path(&first));
            }
            all.insert(0, both);
        }
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        if let Some(run) = self.own.take() {
            let until = now_ns().saturating_add(MARGIN.as_nanos() as u64);
            let ended = Run { times: *run.times.start()..=until, ..run.clone() };
            let _ = std::fs::rename(self.folder.join(run.name()), self.folder.join(ended.name()));
        }
    }
}

/// The runs that the folder tells of; what else lies there is passed over.
fn runs(folder: &Path) -> Vec<Run> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(NAMES_MAX).flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Run::parse(&name)).collect()
}

/// Tells two runs of one moment apart; if the system has no random numbers, the process does.
fn random() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_be_bytes(bytes),
        Err(_) => std::process::id(),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: BootId = [1; 16];
    const SECOND: BootId = [2; 16];
    /// Long after these tests.
    const LATER_NS: u64 = 1 << 62;

    fn now() -> (i64, u32) {
        let now = now_ns();
        ((now / 1_000_000_000) as i64, (now % 1_000_000_000) as u32)
    }

    fn names(root: &Path) -> Vec<Run> {
        let mut found = runs(&root.join(FOLDER));
        found.sort_by_key(|run| *run.times.start());
        found
    }

    /// S17: what a run wrote is in doubt after another boot, until the run ended; before, in between and where nothing was written
    /// it is not.
    #[test]
    fn what_other_boots_wrote_is_in_doubt() {
        let dir = tempfile::tempdir().unwrap();
        drop(Unsynced::open_at(dir.path(), FIRST, now_ns()));
        assert!(!dir.path().join(FOLDER).exists(), "nothing was written, so nothing is noted");
        let run = Unsynced::open_at(dir.path(), FIRST, now_ns());
        run.begin();
        run.begin();
        assert_eq!(names(dir.path()).len(), 1);
        let (s, ns) = now();
        drop(run);
        assert!(!Unsynced::open_at(dir.path(), FIRST, LATER_NS).doubts(s, ns), "the page cache has it");
        let after = Unsynced::open_at(dir.path(), SECOND, LATER_NS);
        assert!(after.doubts(s, ns));
        assert!(!after.doubts(s - 10, ns) && !after.doubts(s + 10, ns) && !after.doubts(-1, 0));
        // A system without boots tells nothing.
        assert!(Unsynced::open_at(dir.path(), boot::UNKNOWN, LATER_NS).doubts(s, ns));
    }

    /// A run that was killed ends, at the latest, when the next boot looks; what is written after that is not in doubt.
    #[test]
    fn a_killed_run_ends_with_its_boot() {
        let dir = tempfile::tempdir().unwrap();
        let run = Unsynced::open_at(dir.path(), FIRST, now_ns());
        run.begin();
        run.own.take();
        drop(run);
        let (s, ns) = now();
        let looked_ns = now_ns() + 3_000_000_000;
        assert!(Unsynced::open_at(dir.path(), SECOND, looked_ns).doubts(s, ns));
        let again = Unsynced::open_at(dir.path(), SECOND, LATER_NS);
        assert!(again.doubts(s, ns) && !again.doubts(s + 10, ns));
        assert_eq!(*names(dir.path())[0].times.end(), looked_ns);
    }

    /// What was made durable is in no doubt.
    #[test]
    fn what_was_synced_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let run = Unsynced::open_at(dir.path(), FIRST, now_ns());
        run.begin();
        run.synced();
        assert_eq!(names(dir.path()), []);
        run.begin();
        drop(run);
        assert_eq!(names(dir.path()).len(), 1);
    }

    /// Design "a limit on every queue": many runs become few, and none is forgotten.
    #[test]
    fn many_runs_become_few() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FOLDER)).unwrap();
        for number in 0..200 {
            let run = Run { boot: FIRST, times: number * 100..=number * 100 + 50, random: 7 };
            File::create(dir.path().join(FOLDER).join(run.name())).unwrap();
        }
        File::create(dir.path().join(FOLDER).join("something else")).unwrap();
        let run = Unsynced::open_at(dir.path(), FIRST, now_ns());
        run.begin();
        assert_eq!(names(dir.path()).len(), RUNS_MAX);
        let after = Unsynced::open_at(dir.path(), SECOND, LATER_NS);
        for number in 0..200 {
            assert!(after.doubts(0, number * 100 + 50), "run {number}");
        }
        assert!(!after.doubts(0, 199 * 100 + 60));
    }

    /// What is in doubt stays so, though runs of this boot are put together with it, and runs that were killed count, too.
    #[test]
    fn runs_that_become_one_stay_in_doubt() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FOLDER)).unwrap();
        let make = |boot, times: Times| {
            let run = Run { boot, times, random: 7 };
            File::create(dir.path().join(FOLDER).join(run.name())).unwrap();
        };
        make(FIRST, 100..=150);
        for number in 2..200 {
            make(SECOND, number * 100..=u64::MAX);
        }
        let run = Unsynced::open_at(dir.path(), SECOND, 100_000);
        assert!(run.doubts(0, 120) && !run.doubts(0, 220));
        run.begin();
        assert_eq!(names(dir.path()).len(), RUNS_MAX);
        assert!(Unsynced::open_at(dir.path(), SECOND, 100_000).doubts(0, 120));
        drop(run);
        let third = Unsynced::open_at(dir.path(), [3; 16], 100_000);
        assert!((2..200).all(|number| third.doubts(0, number * 100 + 1)));
    }
}
