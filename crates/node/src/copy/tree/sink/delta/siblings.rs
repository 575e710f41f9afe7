//! Files elsewhere on the disk that are likely to have most of one that comes, and stand in for its older version ([ADR 26]): which they are
//! is found out on a thread that nobody waits for.
//!
//! [ADR 26]: ../../../../../../../docs/adr/0026-the-receivers-disk-as-a-source.md

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_store::local::tree::OlderFile;

use super::work::Told;
use crate::search::{Coming, Pressure, Scope, Siblings};

/// How long one answer is waited for: after that there are none.
const PATIENCE: Duration = Duration::from_millis(500);
/// This part of that is for looking: an answer is what was found by then.
const LOOKING_PART: u32 = 2;
/// How soon it is looked whether the copy still has something to write.
const BUSY: Duration = Duration::from_millis(1);
/// With so many siblings one after the other of which nothing was of use, nothing more is read.
const VAIN_MAX: u32 = 8;

/// The search for siblings of one tree's files.
pub(super) struct Finder {
    scope: Arc<Scope>,
    /// Of what comes.
    pressure: Arc<Pressure>,
    /// Questions to the thread, once there is one.
    questions: Option<mpsc::Sender<(u64, Coming)>>,
    /// What it was asked for, and what it answered.
    asked: BTreeMap<u64, Sibling>,
    /// How many were of no use since the last one that was.
    vain: u32,
}

/// What is known of a sibling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Sibling {
    /// It is looked for.
    Awaited,
    /// There is none.
    None,
    /// Its path from the top of the scope.
    Found(PathBuf),
}

impl Finder {
    pub(super) fn new(scope: Scope, pressure: Arc<Pressure>) -> Finder {
        Finder { scope: Arc::new(scope), pressure, questions: None, asked: BTreeMap::new(), vain: 0 }
    }

    /// Whether more of them are worth looking for.
    pub(super) fn is_hopeful(&self) -> bool {
        self.vain < VAIN_MAX
    }

    /// Has a sibling looked for, of which `told` hears.
    pub(super) fn ask(&mut self, number: u64, coming: Coming, told: &Told) {
        let start = || start(self.scope.clone(), self.pressure.clone(), told.another(), PATIENCE);
        let questions = self.questions.get_or_insert_with(start);
        told.begin();
        let is_asked = questions.send((number, coming)).is_ok();
        if !is_asked {
            told.cannot();
        }
        self.asked.insert(number, if is_asked { Sibling::Awaited } else { Sibling::None });
    }

    pub(super) fn handle_answer(&mut self, number: u64, found: Option<PathBuf>) {
        // Whoever was waiting may not be any more.
        if let Some(sibling) = self.asked.get_mut(&number) {
            *sibling = found.map_or(Sibling::None, Sibling::Found);
        }
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.asked.remove(&number);
    }

    /// Of a file that was not asked about, there is none.
    pub(super) fn of(&self, number: u64) -> Sibling {
        match self.asked.get(&number) {
            Some(sibling) if self.is_hopeful() => sibling.clone(),
            _ => Sibling::None,
        }
    }

    /// Opens what was found.
    pub(super) fn open(&self, number: u64) -> Option<OlderFile> {
        let Sibling::Found(path) = self.of(number) else { return None };
        OlderFile::new(self.scope.file(&path)?)
    }

    /// What one had in common with what came.
    pub(super) fn had(&mut self, common_bytes: u64) {
        self.vain = if common_bytes > 0 { 0 } else { self.vain + 1 };
    }
}

/// A thread that finds, and one that waits for that no longer than `patience`: a disk may never answer.
fn start(
    scope: Arc<Scope>,
    pressure: Arc<Pressure>,
    told: Told,
    patience: Duration,
) -> mpsc::Sender<(u64, Coming)> {
    let (questions, asked) = mpsc::channel::<(u64, Coming)>();
    let (sought, seeking) = mpsc::channel::<(Coming, Instant)>();
    let (found, answers) = mpsc::channel();
    // Nobody listens any more.
    let gave_up = Arc::new(AtomicBool::new(false));
    let is_over = gave_up.clone();
    // They end with the sink, which drops the other end. If one cannot begin, nothing is found.
    let _ = thread::Builder::new().name("tree-search".into()).spawn(move || {
        let mut siblings = Siblings::new(&scope);
        for (coming, deadline) in seeking {
            // Before each entry of a directory: what comes is written first (Y5).
            let goes_on = || {
                while !is_over.load(Ordering::Relaxed) && Instant::now() < deadline {
                    if !pressure.is_high() {
                        return true;
                    }
                    thread::sleep(BUSY);
                }
                false
            };
            if found.send(siblings.find(&coming, &goes_on)).is_err() {
                return;
            }
        }
    });
    let waits = move || {
        let mut is_over = false;
        for (number, coming) in asked {
            let mut sibling = None;
            if !is_over {
                let asked = (coming, Instant::now() + patience / LOOKING_PART);
                let answer = sought.send(asked).ok().and_then(|()| answers.recv_timeout(patience).ok());
                is_over = answer.is_none();
                gave_up.store(is_over, Ordering::Relaxed);
                sibling = answer.flatten();
            }
            told.sibling(number, sibling);
        }
        gave_up.store(true, Ordering::Relaxed);
    };
    let _ = thread::Builder::new().name("tree-search-wait".into()).spawn(waits);
    questions
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    /// Answers of a search of `dir`, one for each number, with so much patience.
    fn answers(dir: &std::path::Path, patience: Duration, numbers: u64) -> Vec<Option<PathBuf>> {
        answers_beside(dir, patience, numbers, &Arc::default())
    }

    /// The same while there is something to do for `pressure`.
    fn answers_beside(
        dir: &std::path::Path,
        patience: Duration,
        numbers: u64,
        pressure: &Arc<Pressure>,
    ) -> Vec<Option<PathBuf>> {
        fs::create_dir_all(dir.join("b")).unwrap();
        let (top, to) = (fs::File::open(dir).unwrap(), fs::File::open(dir.join("b")).unwrap());
        let scope = Scope::new(top.into(), to.as_fd()).unwrap().with_files_from(0);
        let told = Told::to_nobody();
        let questions = start(Arc::new(scope), pressure.clone(), told.another(), patience);
        let path = vec![b"image".to_vec()];
        for number in 0..numbers {
            let coming = Coming { path: path.clone(), size_bytes: 100_000, mtime_s: 0 };
            questions.send((number, coming)).unwrap();
        }
        let mut all = Vec::new();
        while (all.len() as u64) < numbers {
            all.extend(told.siblings());
            thread::yield_now();
        }
        all
    }

    /// P7 "never slower": with some siblings in a row that had nothing of what came, what was found counts no more, and nothing is looked for; one that had
    /// something makes up for those before it.
    #[test]
    fn siblings_in_vain_end_the_search() {
        let dir = tempfile::tempdir().unwrap();
        let top = || fs::File::open(dir.path()).unwrap();
        let mut finder = Finder::new(Scope::new(top().into(), top().as_fd()).unwrap(), Arc::default());
        finder.asked.insert(1, Sibling::Found("a/image".into()));
        for common_bytes in [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0] {
            finder.had(common_bytes);
            assert!(finder.is_hopeful() && finder.of(1) != Sibling::None);
        }
        finder.had(0);
        assert!(!finder.is_hopeful() && finder.of(1) == Sibling::None);
    }

    /// P7, S96 "what this side does is no silence": what is looked for is under way until the answer has come, and ends nothing else that is.
    #[test]
    fn what_is_looked_for_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let top = || fs::File::open(dir.path()).unwrap();
        let mut finder = Finder::new(Scope::new(top().into(), top().as_fd()).unwrap(), Arc::default());
        let told = Told::to_nobody();
        told.begin();
        let coming = Coming { path: vec![b"image".to_vec()], size_bytes: 100_000, mtime_s: 0 };
        finder.ask(1, coming, &told);
        while told.siblings().is_empty() {
            thread::yield_now();
        }
        assert_eq!(told.under_way(), 1, "what else there is to do");
    }

    /// Y5: while what comes is written, no directory is listed for a sibling; what was not found by then is not there. After that it is.
    #[test]
    fn a_search_for_siblings_stands_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/image"), vec![1; 100_000]).unwrap();
        let pressure = Arc::<Pressure>::default();
        let writing = pressure.begin();
        let shortly = Duration::from_millis(500);
        assert_eq!(answers_beside(dir.path(), shortly, 2, &pressure), vec![None; 2]);
        drop(writing);
        let found = Some(PathBuf::from("a/image"));
        assert_eq!(answers_beside(dir.path(), Duration::from_secs(60), 1, &pressure), vec![found]);
    }

    /// S10: who finds is not waited for longer than is worth it, and then no more at all.
    #[test]
    fn a_search_that_takes_long_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/image"), vec![1; 100_000]).unwrap();
        let found = Some(PathBuf::from("a/image"));
        assert_eq!(answers(dir.path(), Duration::from_secs(60), 3), vec![found; 3]);
        assert_eq!(answers(dir.path(), Duration::ZERO, 3), vec![None; 3]);
    }
}
