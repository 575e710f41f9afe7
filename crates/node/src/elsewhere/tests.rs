//! What is searched, and an index that lies.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, PoisonError};

use dray_client::types::IndexAnswer;
use dray_store::index::IndexLimits;

use super::*;
use crate::config::{Config, ConfigFile, Paths};

/// An index, asked in this process.
#[derive(Debug)]
pub(crate) struct Indexed(pub(crate) ChunkIndex);

impl Hints for Indexed {
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
        Question::of(directory, question)?.answer(&self.0, true).map(|(answer, _)| answer)
    }
}

impl Indexed {
    /// An empty one in `dir`.
    pub(crate) fn new(dir: &Path) -> Arc<Indexed> {
        Arc::new(Indexed(ChunkIndex::open(&dir.join("index"), IndexLimits::default()).unwrap().0))
    }

    /// Writes a file and takes it in.
    pub(crate) fn take_in(&self, path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self.0.cut(path, &mut |_, _| true).unwrap();
    }
}

/// A node that asks `index`.
pub(crate) fn node(dir: &Path, index: Arc<dyn Hints>) -> Node {
    let file = ConfigFile { index: Some(true), ..ConfigFile::default() };
    let config = Config::new(Paths::below(&dir.join("data")), &file).unwrap();
    let mut node = Node::open(config).unwrap();
    node.index = Index::here(index);
    node
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_be_bytes()).finalize_xof().fill(&mut out);
    out
}

fn chunks(bytes: &[u8]) -> Vec<ChunkDescriptor> {
    let mut found = Vec::new();
    let mut take = |chunk: &[u8]| found.push(ChunkDescriptor::of(chunk));
    let mut chunker = Profile::for_size(bytes.len() as u64).unwrap().chunker();
    chunker.push(bytes, &mut take);
    chunker.finish(&mut take);
    found
}

fn directory(path: &Path) -> OwnedFd {
    fs::create_dir_all(path).unwrap();
    File::open(path).unwrap().into()
}

const SIZE: usize = 5 << 20;

/// Design 16: for a ticket only what is below the destination's directory counts; what is elsewhere changes nothing, so that whoever
/// guesses at it sees the same as without it. What is below counts, in whatever folder; without the index nothing does.
#[test]
fn only_what_is_below_the_directory_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = random(SIZE, 1);
    let index = Indexed::new(dir.path());
    let mut node = node(dir.path(), index.clone());
    let to = directory(&dir.path().join("to"));
    let search = |node: &Node| node.elsewhere(to.as_fd(), SIZE as u64, Some(b"a")).files();
    assert!(search(&node).is_none(), "nothing is there");
    for outside in ["a", "tox/a", "from/to/a"] {
        index.take_in(&dir.path().join(outside), &bytes);
        assert!(search(&node).is_none(), "{outside}");
    }
    std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("to/a")).unwrap();
    assert!(search(&node).is_none(), "a link leads out");
    index.take_in(&dir.path().join("to/deep/er/b"), &bytes);
    let found = search(&node).unwrap();
    let all = chunks(&bytes);
    assert_eq!(found.find(&all, &|| false).len(), all.len());
    let opened =
        fs::read_link(format!("/proc/self/fd/{}", lock(&found.files).opened[0].0.as_raw_fd())).unwrap();
    assert!(opened.ends_with("to/deep/er/b") && lock(&found.files).opened.len() == 1);
    assert!(found.is_unchanged() && !found.is_vain());
    // What was read of a file that is written to proves nothing against who told the recipe.
    let later = std::time::SystemTime::now() + Duration::from_secs(9);
    let file = File::options().write(true).open(dir.path().join("to/deep/er/b")).unwrap();
    file.set_modified(later).unwrap();
    assert!(!found.is_unchanged());
    node.config.index = false;
    assert!(search(&node).is_none());
}

/// Design 16, "for an ssh peer of the same user the destination's ancestors up to the home or mount".
#[test]
fn a_search_goes_up_to_the_home() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let deep = directory(&home.join("a/b"));
    let path = |home: Option<&Path>| {
        let found = up_to_home(deep.as_fd(), home).unwrap();
        fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap()
    };
    let real = |path: &Path| fs::canonicalize(path).unwrap();
    assert_eq!(path(Some(&home)), real(&home));
    assert_eq!(path(Some(&home.join("a/b"))), real(&home.join("a/b")));
    // Without one, or beside it, up to the mount.
    let mount = path(None);
    assert!(real(dir.path()).starts_with(&mount));
    assert_eq!(path(Some(&dir.path().join("nowhere"))), mount);
    let proc = File::open("/proc/self").unwrap();
    let found = up_to_home(proc.as_fd(), None).unwrap();
    assert_eq!(fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap(), Path::new("/proc"));
}

/// Y11: a file that was moved into the directory is found there without having been cut again.
#[test]
fn a_file_that_was_moved_here_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = random(SIZE, 2);
    let index = Indexed::new(dir.path());
    let node = node(dir.path(), index.clone());
    index.take_in(&dir.path().join("from/a"), &bytes);
    let to = directory(&dir.path().join("to"));
    fs::rename(dir.path().join("from/a"), dir.path().join("to/\u{fc}\u{1}b")).unwrap();
    let found = node.elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    assert_eq!(found.find(&chunks(&bytes), &|| false).len(), chunks(&bytes).len());
}

/// Says that every chunk lies in each of the files it was told, at an offset.
#[derive(Debug)]
struct Lying {
    files: Vec<IndexFile>,
    offset: u64,
    /// Chunks and files that there are not.
    is_wild: bool,
}

impl Hints for Lying {
    fn ask(&self, _: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
        let wild = if self.is_wild { u32::MAX } else { 0 };
        let (chunks, files) = (question.chunks.len() as u32, self.files.len() as u32);
        let found = (0..chunks).flat_map(|chunk| (0..files).map(move |file| (chunk, file)));
        let found = found.map(|(chunk, file)| (chunk ^ wild, file ^ wild, self.offset, 9)).collect();
        Ok(IndexAnswer { hopeful: true, files: self.files.clone(), found })
    }
}

/// Y3 "entries are hints": an index that leads out of the directory, to what is no file, or to other bytes, is of no use and does no harm.
#[test]
fn what_an_index_says_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, to) = (random(SIZE, 3), dir.path().join("to"));
    let all = chunks(&bytes);
    let opened = directory(&to);
    fs::write(dir.path().join("outside"), &bytes).unwrap();
    fs::write(to.join("file"), &bytes).unwrap();
    fs::write(to.join("short"), &bytes[..1000]).unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), to.join("link")).unwrap();
    std::os::unix::fs::symlink(dir.path(), to.join("up")).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, to.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let outside = dir.path().join("outside").to_string_lossy().into_owned();
    let paths = [
        "../outside",
        &outside,
        "link",
        "up/outside",
        "fifo",
        "",
        ".",
        "nowhere",
        "short",
        "/dev/zero",
        "a\0b",
    ];
    let mut files: Vec<IndexFile> =
        paths.iter().map(|path| IndexFile { path: Some((*path).to_owned()), path_hex: None }).collect();
    files.push(IndexFile { path: None, path_hex: Some("xyz".into()) });
    files.push(IndexFile { path: Some("file".into()), path_hex: Some("00".into()) });
    files.push(IndexFile::default());
    let search = |lying: Lying| {
        let node = node(dir.path(), Arc::new(lying));
        node.elsewhere(opened.as_fd(), SIZE as u64, None).files().unwrap()
    };
    let found = search(Lying { files: files.clone(), offset: 0, is_wild: false });
    assert!(found.find(&all, &|| false).is_empty());
    let right = vec![IndexFile { path: Some("file".into()), path_hex: None }];
    for (offset, is_wild) in [(1, false), (u64::MAX, false), (0, true)] {
        assert!(
            search(Lying { files: right.clone(), offset, is_wild }).find(&all, &|| false).is_empty(),
            "{offset}"
        );
    }
    // The one that is there where it is said to be.
    let found = search(Lying { files: right.clone(), offset: 0, is_wild: false });
    assert_eq!(
        found.find(&all, &|| false).into_iter().collect::<Vec<_>>(),
        [(key(&all[0]), Spot { by: Finder::Index, file: 0, offset: 0 })]
    );
    // However many files it names, few are opened.
    for number in 0..2 * INDEX_SOURCE_FILES_MAX {
        fs::write(to.join(format!("f{number}")), b"x").unwrap();
        files.push(IndexFile { path: Some(format!("f{number}")), path_hex: None });
    }
    let found = search(Lying { files, offset: 0, is_wild: false });
    assert!(found.find(&all, &|| false).is_empty());
    assert!(lock(&found.files).opened.len() <= INDEX_SOURCE_FILES_MAX);
}

/// A search that finds nothing ends, and an index that does not answer is asked once.
#[test]
fn a_search_in_vain_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (index, to) = (Indexed::new(dir.path()), directory(&dir.path().join("to")));
    index.take_in(&dir.path().join("to/a"), &random(SIZE, 4));
    let found = node(dir.path(), index).elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    let strange: Vec<ChunkDescriptor> =
        (0..VAIN_CHUNKS).map(|number| ChunkDescriptor::of(&number.to_be_bytes())).collect();
    assert!(found.find(&strange[1..], &|| false).is_empty() && !found.is_vain());
    assert!(found.find(&strange[..1], &|| false).is_empty() && found.is_vain());

    #[derive(Debug, Default)]
    struct Mute(AtomicU64);
    impl Hints for Mute {
        fn ask(&self, _: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match question.size_bytes {
                Some(_) => Ok(IndexAnswer { hopeful: true, ..IndexAnswer::default() }),
                None => Err(Error::new(ErrorKind::TimedOut, "no answer")),
            }
        }
    }
    let mute = Arc::new(Mute::default());
    let found = node(&dir.path().join("mute"), mute.clone());
    let found = found.elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    (0..3).for_each(|_| assert!(found.find(&strange, &|| false).is_empty()));
    assert_eq!(mute.0.load(Ordering::Relaxed), 2);
}

/// A question that is malformed, or too long, is refused before anything is looked at.
#[test]
fn malformed_questions_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let index = Indexed::new(dir.path());
    let to = directory(&dir.path().join("to"));
    let file = File::open("/dev/null").unwrap();
    let ask = |fd: BorrowedFd<'_>, question: IndexQuestion| {
        index.ask(fd, &question).map(drop).map_err(|error| error.kind())
    };
    let chunks = |chunks: Vec<String>| IndexQuestion { chunks, ..IndexQuestion::default() };
    let right = "00112233445566778899aabbccddeeff".to_owned();
    assert_eq!(ask(to.as_fd(), chunks(vec![right.clone(); INDEX_CHUNKS_ASKED_MAX])), Ok(()));
    for wrong in [
        chunks(vec![right.clone(); INDEX_CHUNKS_ASKED_MAX + 1]),
        chunks(vec![right[1..].to_owned()]),
        chunks(vec![right[2..].to_owned()]),
        chunks(vec![right.clone() + "00"]),
        chunks(vec!["\u{fc}".repeat(16)]),
        IndexQuestion { name: Some("a/b".into()), ..IndexQuestion::default() },
    ] {
        assert_eq!(ask(to.as_fd(), wrong), Err(ErrorKind::Usage));
    }
    assert_eq!(ask(file.as_fd(), chunks(vec![right])), Err(ErrorKind::Usage));
}

/// An index that answers questions about chunks only when it is let.
#[derive(Debug)]
pub(crate) struct Gated {
    inner: Arc<dyn Hints>,
    /// Of questions about chunks: how many were asked, how many may be answered.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Gated {
    pub(crate) fn new(inner: Arc<dyn Hints>) -> Arc<Gated> {
        Arc::new(Gated { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits until so many questions were asked.
    pub(crate) fn await_asked(&self, count: usize) {
        let state = self.changed.wait_timeout_while(lock(&self.state), LONG, |state| state.0 < count);
        assert!(!state.unwrap_or_else(PoisonError::into_inner).1.timed_out(), "{count} were not asked");
    }

    /// Lets so many questions be answered.
    pub(crate) fn answer(&self, count: usize) {
        lock(&self.state).1 = count;
        self.changed.notify_all();
    }

    pub(crate) fn asked(&self) -> usize {
        lock(&self.state).0
    }
}

impl Hints for Gated {
    fn ask(&self, directory: BorrowedFd<'_>, question: &IndexQuestion) -> Result<IndexAnswer> {
        if question.size_bytes.is_none() {
            let mut state = lock(&self.state);
            state.0 += 1;
            let number = state.0;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.1 < number));
        }
        self.inner.ask(directory, question)
    }
}

/// For what happens soon, on however busy a machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Nothing ends because of the time it takes.
pub(crate) const ENDLESS: Patience = Patience { answer: AN_HOUR, idle: AN_HOUR, all: AN_HOUR };
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Design 9: whoever wants the search to end is not kept by an index that hangs, nor by files that are read slowly: it ends while the
/// question is open, and after any chunk.
#[test]
fn a_search_ends_when_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = random(SIZE, 5);
    let index = Indexed::new(dir.path());
    let to = directory(&dir.path().join("to"));
    index.take_in(&dir.path().join("to/a"), &bytes);
    let gated = Gated::new(index.clone());
    let found = node(dir.path(), gated.clone()).elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    let (found, all) = (Arc::new(found.with_patience(ENDLESS)), chunks(&bytes));
    let is_over = Arc::new(AtomicBool::new(false));
    let (sender, ended) = std::sync::mpsc::channel();
    let (searched, over, wanted) = (found.clone(), is_over.clone(), all.clone());
    std::thread::spawn(move || sender.send(searched.find(&wanted, &|| over.load(Ordering::Relaxed)).len()));
    gated.await_asked(1);
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(ended.recv_timeout(LONG).unwrap(), 0);
    gated.answer(usize::MAX);
    // What was not answered for is asked no more; another search goes on after its third chunk no longer.
    let found = node(dir.path(), index).elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    assert_eq!(found.find(&all, &|| found.found.load(Ordering::Relaxed) >= 3).len(), 3);
}

/// "A budget of time": a search that finds nothing for so long is over, one that finds as much as it is worth goes on.
#[test]
fn a_search_that_is_not_worth_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = random(SIZE, 6);
    let index = Indexed::new(dir.path());
    let to = directory(&dir.path().join("to"));
    index.take_in(&dir.path().join("to/a"), &bytes);
    let node = node(dir.path(), index);
    let search = |all| {
        let found = node.elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
        found.with_patience(Patience { all, ..ENDLESS })
    };
    let (strange, all) = ([ChunkDescriptor::of(b"nowhere")], chunks(&bytes));
    let slow = search(Duration::ZERO);
    assert!(slow.find(&strange, &|| false).is_empty() && slow.is_vain());
    let worth_it = search(LONG);
    assert!(worth_it.find(&strange, &|| false).is_empty() && !worth_it.is_vain());
    assert_eq!(worth_it.find(&all, &|| false).len(), all.len());
    // The more was found, the longer the network may wait.
    let patience = Patience { idle: Duration::ZERO, ..ENDLESS };
    assert!(worth_it.with_patience(patience).idle_patience() > Duration::ZERO);
}

/// Design 9, "a daemon that hangs or is not there means: no index": one that takes nothing costs what was said, however many gets there are and
/// however many of their connections wait in its queue.
#[test]
fn a_daemon_that_hangs_is_no_index() {
    let dir = tempfile::tempdir().unwrap();
    let to = directory(&dir.path().join("to"));
    #[derive(Debug)]
    struct Hanging(Arc<AtomicU64>);
    impl Hints for Hanging {
        fn ask(&self, _: BorrowedFd<'_>, _: &IndexQuestion) -> Result<IndexAnswer> {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::thread::park();
            Err(Error::new(ErrorKind::Internal, "never"))
        }
    }
    let asked = Arc::new(AtomicU64::new(0));
    let node = node(dir.path(), Arc::new(Hanging(asked.clone())));
    let search = || matches!(node.elsewhere(to.as_fd(), SIZE as u64, None), Prospect::Mute);
    std::thread::scope(|scope| {
        let searches: Vec<_> = (0..100).map(|_| scope.spawn(search)).collect();
        assert!(searches.into_iter().all(|search| search.join().unwrap()));
    });
    // Few of them are left waiting inside.
    assert!(asked.load(Ordering::Relaxed) <= door::ASKING_MAX as u64);
}

/// A file whose opening hangs, as on a disk that hangs, hangs for who opens it and for nobody else: what was found before is read meanwhile.
#[test]
fn nobody_waits_for_an_opening() {
    let dir = tempfile::tempdir().unwrap();
    let (index, to) = (Indexed::new(dir.path()), directory(&dir.path().join("to")));
    let bytes = random(SIZE, 6);
    index.take_in(&dir.path().join("to/a"), &bytes);
    fs::write(dir.path().join("to/b"), &bytes).unwrap();
    let found = node(dir.path(), index).elsewhere(to.as_fd(), SIZE as u64, None).files().unwrap();
    let first = found.open_by("a".into(), &|path| found.open_regular(path)).unwrap();
    let hanging = found.open_by("b".into(), &|path| {
        assert!(found.files.try_lock().is_ok(), "whoever reads waits for this");
        let mut read = [0; 9];
        found.read_at(first, 7, &mut read).unwrap();
        assert_eq!(read[..], bytes[7..16]);
        // Another one opens the same file meanwhile: it is open once.
        let other = found.open_by("b".into(), &|path| found.open_regular(path));
        assert_eq!(other, Some(first + 1));
        found.open_regular(path)
    });
    assert_eq!((hanging, lock(&found.files).opened.len()), (Some(first + 1), 2));
}

/// "A get starts no daemon": a socket that may start one is not touched where no daemon has the lock of the data directory. In a process of
/// its own, which has that socket in its environment.
#[test]
fn a_socket_without_a_daemon_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "elsewhere::tests::a_socket_and_no_daemon", "--ignored"]);
    child.env("INDEX_SOCKET", dir.path()).env("DRAY_SOCKET", dir.path().join("socket"));
    let ran = child.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// What [`a_socket_without_a_daemon_is_not_touched`] has done in another process, and nothing without it.
#[test]
#[ignore = "a part of another test"]
fn a_socket_and_no_daemon() {
    let Some(dir) = std::env::var_os("INDEX_SOCKET").map(PathBuf::from) else { return };
    let socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let (index, to) = (Indexed::new(&dir), directory(&dir.join("to")));
    let mut node = node(&dir, index);
    node.index = Index::Daemon;
    let data_dir = node.config.paths.data_dir.clone();
    let is_touched = || {
        let prospect = node.elsewhere(to.as_fd(), SIZE as u64, Some(b"a"));
        node.tell_index(to.as_fd(), SIZE as u64);
        (matches!(prospect, Prospect::Mute), socket.accept().is_ok())
    };
    assert_eq!(is_touched(), (false, false));
    let daemon = File::create(data_dir.join(crate::daemon::LOCK)).unwrap();
    assert_eq!(is_touched(), (false, false), "a lock that nobody has");
    daemon.lock().unwrap();
    assert_eq!(is_touched(), (true, true), "a daemon that is silent");
}
