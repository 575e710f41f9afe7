//! Files elsewhere on the disk that are likely to have most of one that comes, and stand in for its older version ([ADR 26]): which they are
//! is found out on a thread that nobody waits for.
//!
//! [ADR 26]: ../../../../../../../docs/adr/0026-the-receivers-disk-as-a-source.md

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::limits::SEARCH_ENTRIES_MAX;
use dray_store::local::tree::OlderFile;

use super::work::Told;
use crate::search::{Coming, Pressure, Scope, Siblings};

/// How long things may take.
const PATIENCE: Patience = Patience {
    answer: Duration::from_millis(500),
    looking: Duration::from_millis(250),
    waiting: Duration::from_millis(125),
};
/// So many answers may wait as long as they may, before something is found: the others are there at once while the copy writes.
const WAITING_ANSWERS: u32 = 4;
/// It is looked whether the copy has something to write before so many entries of directories, or as long as those of a slow disk take.
const ENTRIES: u32 = 64;
/// How soon it is looked whether the copy still has something to write.
const BUSY: Duration = Duration::from_millis(1);
/// With so many siblings one after the other of which nothing was of use, nothing more is read.
pub(super) const VAIN_MAX: u32 = 8;
/// How often one of them is read of which nothing is of use.
const READ_TIMES: u64 = 2;
/// Bytes that a question takes besides the path.
const QUESTION_BYTES: usize = 128;

/// How long may be waited, and for what.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// For one answer: after that there are none. More than the two others together, so that it takes a disk that hangs.
    answer: Duration,
    /// For looking: an answer is what was found by then.
    looking: Duration,
    /// Of one answer, for what the copy has to write. That is no looking.
    waiting: Duration,
}

/// Looks for one file, and stands back for the copy meanwhile.
struct Turn<'a> {
    pressure: &'a Pressure,
    /// Nobody listens any more.
    gave_up: &'a AtomicBool,
    begun: Instant,
    looking: Duration,
    /// How long it may wait yet, and what all the answers may.
    waiting: Cell<Duration>,
    left: &'a Cell<Duration>,
    waited: Cell<Duration>,
    /// When it was looked last whether it is to wait, and how many entries there were since.
    looked: Cell<Option<(Instant, u32)>>,
    is_over: Cell<bool>,
}

/// The search for siblings of one tree's files.
pub(super) struct Finder {
    scope: Arc<Scope>,
    /// Of what comes.
    pressure: Arc<Pressure>,
    /// Questions to the thread, once there is one.
    questions: Option<mpsc::Sender<(u64, Coming)>>,
    /// What it was asked for, and what it answered.
    asked: BTreeMap<u64, Sibling>,
    /// Bytes that each question takes that is not answered yet, whoever waits for that.
    awaited: BTreeMap<u64, usize>,
    /// Bytes of all of them, and of paths of what was found.
    held: usize,
    /// How many were of no use since the last one that was.
    vain: u32,
    /// Of each file that was read (device and inode), how many bytes of it may be before more is of use: who tells a thousand entries of the size and time of one
    /// has it read twice, not a thousand times.
    left: HashMap<(u32, u32, u64), u64>,
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
        Finder {
            scope: Arc::new(scope),
            pressure,
            questions: None,
            asked: BTreeMap::new(),
            awaited: BTreeMap::new(),
            held: 0,
            vain: 0,
            left: HashMap::new(),
        }
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
        let bytes = coming.path.len() + QUESTION_BYTES;
        let is_asked = questions.send((number, coming)).is_ok();
        if is_asked {
            let before = self.awaited.insert(number, bytes).unwrap_or(0);
            self.held = self.held + bytes - before;
        } else {
            told.cannot();
        }
        self.asked.insert(number, if is_asked { Sibling::Awaited } else { Sibling::None });
    }

    pub(super) fn handle_answer(&mut self, number: u64, found: Option<PathBuf>) {
        self.held -= self.awaited.remove(&number).unwrap_or(0);
        // Whoever was waiting may not be any more.
        if let Some(sibling) = self.asked.get_mut(&number) {
            *sibling = found.map_or(Sibling::None, Sibling::Found);
            self.held += sibling.held();
        }
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.held -= self.asked.remove(&number).map_or(0, |sibling| sibling.held());
    }

    /// Bytes that questions and answers take.
    pub(super) fn held(&self) -> usize {
        self.held
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

    /// False if it was read often enough.
    pub(super) fn may_read(&self, older: &OlderFile) -> bool {
        self.left.get(&older.state.identity()).is_none_or(|left| *left >= older.size_bytes)
    }

    /// It is going to be read.
    pub(super) fn read(&mut self, older: &OlderFile) {
        let identity = older.state.identity();
        if self.left.len() >= SEARCH_ENTRIES_MAX && !self.left.contains_key(&identity) {
            // That many others were read since the first of them.
            self.left.clear();
        }
        let left = self.left.entry(identity).or_insert_with(|| most_read(older));
        *left = left.saturating_sub(older.size_bytes);
    }

    /// What one had in common with what came.
    pub(super) fn had(&mut self, older: &OlderFile, common_bytes: u64) {
        self.vain = if common_bytes > 0 { 0 } else { self.vain.saturating_add(1) };
        if let Some(left) = self.left.get_mut(&older.state.identity()) {
            *left = left.saturating_add(common_bytes).min(most_read(older));
        }
    }

    /// Questions go to who asks for this, and to no thread.
    #[cfg(test)]
    pub(super) fn keep_questions(&mut self) -> mpsc::Receiver<(u64, Coming)> {
        let (questions, asked) = mpsc::channel();
        self.questions = Some(questions);
        asked
    }
}

/// Bytes of it that are read of which none is of use.
fn most_read(older: &OlderFile) -> u64 {
    older.size_bytes.saturating_mul(READ_TIMES)
}

impl Sibling {
    /// Bytes that it takes.
    fn held(&self) -> usize {
        if let Sibling::Found(path) = self { path.as_os_str().len() } else { 0 }
    }
}

/// A thread that finds, and one that waits for that no longer than `patience`: a disk may never answer.
fn start(
    scope: Arc<Scope>,
    pressure: Arc<Pressure>,
    told: Told,
    patience: Patience,
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
        let left = Cell::new(patience.waiting * WAITING_ANSWERS);
        for (coming, begun) in seeking {
            let turn = Turn {
                pressure: &pressure,
                gave_up: &is_over,
                begun,
                looking: patience.looking,
                waiting: Cell::new(patience.waiting),
                left: &left,
                waited: Cell::default(),
                looked: Cell::default(),
                is_over: Cell::default(),
            };
            let sibling = siblings.find(&coming, &|| turn.goes_on());
            if sibling.is_some() {
                left.set(patience.waiting * WAITING_ANSWERS);
            }
            if found.send(sibling).is_err() {
                return;
            }
        }
    });
    let waits = move || {
        let mut is_over = false;
        for (number, coming) in asked {
            let mut sibling = None;
            if !is_over {
                let asked = (coming, Instant::now());
                let answer =
                    sought.send(asked).ok().and_then(|()| answers.recv_timeout(patience.answer).ok());
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

impl Turn<'_> {
    /// Before each entry of a directory: what comes is written first (Y5). False when it is to be answered.
    fn goes_on(&self) -> bool {
        let now = Instant::now();
        let is_late = now.saturating_duration_since(self.begun) >= self.looking + self.waited.get();
        let is_over = self.is_over.get() || is_late || self.gave_up.load(Ordering::Relaxed);
        self.is_over.set(is_over || !self.stands_back(now));
        !self.is_over.get()
    }

    /// False if it would take too long.
    fn stands_back(&self, now: Instant) -> bool {
        if let Some((at, entries)) = self.looked.get()
            && entries < ENTRIES
            && now.saturating_duration_since(at) < BUSY
        {
            self.looked.set(Some((at, entries + 1)));
            return true;
        }
        let mut may_go_on = true;
        while self.pressure.is_high() {
            may_go_on =
                !self.waiting.get().min(self.left.get()).is_zero() && !self.gave_up.load(Ordering::Relaxed);
            if !may_go_on {
                break;
            }
            let since = Instant::now();
            thread::sleep(BUSY);
            let waited = since.elapsed();
            self.waited.set(self.waited.get() + waited);
            self.waiting.set(self.waiting.get().saturating_sub(waited));
            self.left.set(self.left.get().saturating_sub(waited));
        }
        self.looked.set(Some((Instant::now(), 0)));
        may_go_on
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Whoever looks has so much time for each answer, and waits no longer than that for what is to be written.
    fn patience(answer: Duration, waiting: Duration) -> Patience {
        Patience { answer, looking: answer / 2, waiting }
    }

    /// Answers of one search of `dir` to so many questions in each round, before which `begin` is told its number.
    fn answers(
        dir: &std::path::Path,
        patience: Patience,
        pressure: &Arc<Pressure>,
        rounds: &[usize],
        begin: &mut dyn FnMut(usize),
    ) -> Vec<Option<PathBuf>> {
        fs::create_dir_all(dir.join("b")).unwrap();
        let (top, to) = (fs::File::open(dir).unwrap(), fs::File::open(dir.join("b")).unwrap());
        let scope = Scope::new(top.into(), to.as_fd()).unwrap().with_files_from(0);
        let told = Told::to_nobody();
        let questions = start(Arc::new(scope), pressure.clone(), told.another(), patience);
        let path = b"image".to_vec();
        let mut all = Vec::new();
        for (round, asked) in rounds.iter().enumerate() {
            begin(round);
            for number in 0..*asked {
                let coming = Coming { path: path.clone(), size_bytes: 100_000, mtime_s: 0 };
                questions.send((number as u64, coming)).unwrap();
            }
            let so_far = all.len();
            while all.len() < so_far + asked {
                all.extend(told.siblings());
                thread::yield_now();
            }
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
        let older = older(100_000);
        for common_bytes in [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0] {
            finder.had(&older, common_bytes);
            assert!(finder.is_hopeful() && finder.of(1) != Sibling::None);
        }
        finder.had(&older, 0);
        assert!(!finder.is_hopeful() && finder.of(1) == Sibling::None);
    }

    fn older(size_bytes: u64) -> OlderFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size_bytes).unwrap();
        OlderFile::new(file).unwrap()
    }

    /// S77 "no file is read again and again", design 17: a file that stands in for what comes is read twice, and again for as much of it as is of use, by whatever name it
    /// was found; another one for itself. What was read is remembered of a bounded number of files.
    #[test]
    fn a_sibling_is_read_as_often_as_it_is_of_use() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "other"] {
            fs::write(dir.path().join(name), vec![1; 100_000]).unwrap();
        }
        fs::hard_link(dir.path().join("one"), dir.path().join("again")).unwrap();
        let top = || fs::File::open(dir.path()).unwrap();
        let scope = Scope::new(top().into(), top().as_fd()).unwrap().with_files_from(0);
        let mut finder = Finder::new(scope, Arc::default());
        for (number, name) in [(1, "one"), (2, "again"), (3, "other")] {
            finder.asked.insert(number, Sibling::Found(name.into()));
        }
        let [one, again, other] = [1, 2, 3].map(|number| finder.open(number).unwrap());
        for sibling in [&one, &again] {
            assert!(finder.may_read(sibling));
            finder.read(sibling);
        }
        assert!(!finder.may_read(&one) && !finder.may_read(&again) && finder.may_read(&other));
        finder.had(&one, 99_999);
        assert!(!finder.may_read(&one), "less than is read again");
        finder.had(&one, 1);
        assert!(finder.may_read(&one));
        finder.had(&one, u64::MAX);
        for _ in 0..READ_TIMES {
            finder.read(&one);
        }
        assert!(!finder.may_read(&one), "of use once is no right to be read for ever");
        finder.left.extend((0..SEARCH_ENTRIES_MAX as u64).map(|inode| ((u32::MAX, 0, inode), 0)));
        finder.read(&other);
        assert_eq!(finder.left.len(), 1);
    }

    /// Design 17: what is asked is accounted for until it is answered, whoever waits for that, and what was found until nobody does.
    #[test]
    fn questions_are_accounted_for() {
        let dir = tempfile::tempdir().unwrap();
        let top = || fs::File::open(dir.path()).unwrap();
        let mut finder = Finder::new(Scope::new(top().into(), top().as_fd()).unwrap(), Arc::default());
        let asked = finder.keep_questions();
        let told = Told::to_nobody();
        for number in [1, 2, 3] {
            finder.ask(number, Coming { path: vec![b'a'; 1000], size_bytes: 100_000, mtime_s: 0 }, &told);
        }
        assert_eq!((finder.held(), asked.try_iter().count()), (3 * (1000 + QUESTION_BYTES), 3));
        finder.forget(1);
        assert_eq!(finder.held(), 3 * (1000 + QUESTION_BYTES), "it is being looked for");
        finder.handle_answer(1, Some("a/image".into()));
        finder.handle_answer(2, None);
        finder.handle_answer(3, Some("a/image".into()));
        assert_eq!(finder.held(), "a/image".len());
        finder.forget(3);
        assert_eq!(finder.held(), 0);
    }

    /// P7, S96 "what this side does is no silence": what is looked for is under way until the answer has come, and ends nothing else that is.
    #[test]
    fn what_is_looked_for_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let top = || fs::File::open(dir.path()).unwrap();
        let mut finder = Finder::new(Scope::new(top().into(), top().as_fd()).unwrap(), Arc::default());
        let told = Told::to_nobody();
        told.begin();
        let coming = Coming { path: b"image".to_vec(), size_bytes: 100_000, mtime_s: 0 };
        finder.ask(1, coming, &told);
        while told.siblings().is_empty() {
            thread::yield_now();
        }
        assert_eq!(told.under_way(), 1, "what else there is to do");
    }

    /// Y5, ADR 26: while what comes is written, no directory is listed for a sibling, and what was not found by then is not there. After that it is, by the
    /// same search: to wait is no looking.
    #[test]
    fn a_search_for_siblings_stands_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/image"), vec![1; 100_000]).unwrap();
        let pressure = Arc::<Pressure>::default();
        let mut writing = Some(pressure.begin());
        let patience = patience(LONG, Duration::from_millis(300));
        let mut begin = |round| drop(writing.take_if(|_| round == 1));
        let told = answers(dir.path(), patience, &pressure, &[2, 1], &mut begin);
        assert_eq!(told, [None, None, Some(PathBuf::from("a/image"))]);
    }

    /// P7 "never slower", Y5: one answer waits for what is written as long as it may, all of them no longer than that, and then no more; the time of looking
    /// is not used up by that.
    #[test]
    fn waiting_has_its_own_bound() {
        let (pressure, gave_up) = (Pressure::default(), AtomicBool::new(false));
        let left = Cell::new(5 * BUSY);
        let turn = |waiting| Turn {
            pressure: &pressure,
            gave_up: &gave_up,
            begun: Instant::now(),
            looking: LONG,
            waiting: Cell::new(waiting),
            left: &left,
            waited: Cell::default(),
            looked: Cell::default(),
            is_over: Cell::default(),
        };
        let before = turn(3 * BUSY);
        assert!(before.goes_on() && before.waited.get().is_zero(), "there is nothing to wait for");
        let writing = pressure.begin();
        let short = turn(BUSY);
        assert!(!short.goes_on() && short.waiting.get().is_zero() && short.waited.get() >= BUSY);
        while !left.get().is_zero() {
            assert!(!turn(BUSY).goes_on());
        }
        let last = turn(LONG);
        assert!(!last.goes_on() && last.waited.get().is_zero(), "all of them have waited long enough");
        drop(writing);
        assert!(!last.goes_on(), "it was answered");
        assert!(turn(LONG).goes_on());
        let late = Turn { looking: Duration::ZERO, ..turn(LONG) };
        assert!(!late.goes_on());
        late.is_over.set(false);
        late.waited.set(LONG);
        assert!(late.goes_on(), "it has waited, not looked");
    }

    /// Y5, P7: it is not looked at what is to be written before each entry of a directory that is listed fast.
    #[test]
    fn entries_are_many_to_a_look() {
        let (pressure, gave_up, left) = (Pressure::default(), AtomicBool::new(false), Cell::default());
        let turn = Turn {
            pressure: &pressure,
            gave_up: &gave_up,
            begun: Instant::now(),
            looking: LONG,
            waiting: Cell::default(),
            left: &left,
            waited: Cell::default(),
            looked: Cell::default(),
            is_over: Cell::default(),
        };
        assert!(turn.goes_on());
        let _writing = pressure.begin();
        // As if no time passed.
        let now = turn.looked.get().unwrap().0;
        let entries = (0..2 * ENTRIES).take_while(|_| turn.stands_back(now)).count();
        assert_eq!(entries, ENTRIES as usize);
        turn.looked.set(Some((now, 0)));
        assert!(!turn.stands_back(now + BUSY), "a slow disk");
    }

    /// S10: who finds is not waited for longer than is worth it, and then no more at all.
    #[test]
    fn a_search_that_takes_long_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/image"), vec![1; 100_000]).unwrap();
        let found = Some(PathBuf::from("a/image"));
        let pressure = Arc::default();
        let told = answers(dir.path(), patience(LONG, Duration::ZERO), &pressure, &[3], &mut |_| {});
        assert_eq!(told, vec![found; 3]);
        let none = patience(Duration::ZERO, Duration::ZERO);
        assert_eq!(answers(dir.path(), none, &pressure, &[3], &mut |_| {}), vec![None; 3]);
    }
}
