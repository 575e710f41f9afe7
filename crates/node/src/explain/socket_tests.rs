//! Askers and answerers of every sort, in one process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::explain::SourceSnapshot;

fn told(what: &str) -> Answers {
    let snapshot = Snapshot { what: what.to_owned(), pid: std::process::id(), ..Snapshot::default() };
    Box::new(move || Some(snapshot.clone()))
}

fn names_told(paths: &Paths) -> Vec<String> {
    let mut names: Vec<String> = ask_all(paths).into_iter().map(|snapshot| snapshot.what).collect();
    names.sort_unstable();
    names
}

fn sockets(paths: &Paths) -> usize {
    fs::read_dir(paths.data_dir.join("run")).map_or(0, Iterator::count)
}

/// A listening socket with a name of ours that nobody answers on.
fn mute(paths: &Paths) -> UnixListener {
    let dir = make_folder(&paths.data_dir.join("run")).unwrap();
    listen(&dir).unwrap().2
}

/// Everybody who answers is told, in both folders, from sockets that are their user's alone; nothing is left of those that
/// stopped.
#[test]
fn everybody_is_asked() {
    let (data, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let below = Paths::below(data.path());
    let paths = Paths { runtime_dir: Some(runtime.path().to_owned()), ..below.clone() };
    assert!(ask_all(&paths).is_empty());
    let first = answer(&paths, told("first")).unwrap();
    let second = answer(&below, told("second")).unwrap();
    assert_eq!(names_told(&paths), ["first", "second"]);
    assert_eq!(names_told(&below), ["second"]);
    for dir in [runtime.path().join("dray"), data.path().join("run")] {
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let socket = fs::read_dir(&dir).unwrap().next().unwrap().unwrap();
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    drop(first);
    assert_eq!(names_told(&paths), ["second"]);
    drop(second);
    assert!(ask_all(&paths).is_empty());
    assert_eq!((sockets(&below), fs::read_dir(runtime.path().join("dray")).unwrap().count()), (0, 0));
}

/// The socket of a killed process is removed by whoever finds it, and no other file is.
#[test]
fn dead_sockets_are_removed() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    let _alive = answer(&paths, told("alive")).unwrap();
    drop(mute(&paths));
    let run = data.path().join("run");
    fs::write(run.join("note"), b"").unwrap();
    // Of another machine that shares the home directory, of one without an id as this may be, and one not finished yet.
    let other_boot = run.join(format!("{}00000000-1-aa.sock", crate::identity::machine()));
    for path in [
        run.join("000000000000000000000000-1-aa.sock"),
        other_boot.clone(),
        run.join(format!(".new-{}-1-aa.sock", tag())),
    ] {
        drop(UnixListener::bind(path).unwrap());
    }
    assert_eq!(sockets(&paths), 6);
    assert_eq!(names_told(&paths), ["alive"]);
    assert_eq!(sockets(&paths), 5, "only the dead one is gone");
    // Nobody's after a week: left by an earlier boot.
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let week = Timespec { tv_sec: i64::try_from(unix.as_secs()).unwrap() - 8 * 86_400, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: week, last_modification: week };
    rustix::fs::utimensat(rustix::fs::CWD, &other_boot, &times, AtFlags::empty()).unwrap();
    assert_eq!(names_told(&paths), ["alive"]);
    assert_eq!((sockets(&paths), other_boot.exists()), (4, false));
}

/// Whoever answers is found, however many others come, go and look for dead ones meanwhile.
#[test]
fn a_live_socket_is_never_taken_for_a_dead_one() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    let (is_over, found) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    found.fetch_add(ask_all(&paths).len() as u64, Ordering::AcqRel);
                }
            });
        }
        for round in 0..50 {
            drop(mute(&paths));
            let what = format!("round {round}");
            let answering = answer(&paths, told(&what)).unwrap();
            // A busy machine may keep it from answering in time, but nobody from seeing that it is there.
            let found = ask_all(&paths);
            let is_it = |told: &Snapshot| told.what == what || told.state == State::NoAnswer;
            assert!(found.iter().any(is_it), "{what}: {found:?}");
            while names_told(&paths) != [what.as_str()] {}
            drop(answering);
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(ask_all(&paths).is_empty());
    assert_eq!(sockets(&paths), 0);
}

/// A process that is stopped is told, and keeps nobody waiting for the others.
#[test]
fn who_does_not_answer_is_told() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    let _mute = [mute(&paths), mute(&paths)];
    let _alive = answer(&paths, told("alive")).unwrap();
    let begun = Instant::now();
    let found = ask_all(&paths);
    assert!(begun.elapsed() >= ANSWER_PATIENCE);
    let silent = found.iter().filter(|snapshot| snapshot.state == State::NoAnswer);
    assert_eq!(silent.map(|snapshot| snapshot.pid).collect::<Vec<_>>(), [std::process::id(); 2]);
    assert_eq!(found.iter().filter(|snapshot| snapshot.what == "alive").count(), 1);
}

/// Askers that never read, never leave, or talk without end cost one answer each, and the next one is answered.
#[test]
fn slow_askers_hold_nobody() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    // More than a socket takes at once.
    let source = SourceSnapshot { cause: Some("x".repeat(4000)), ..SourceSnapshot::default() };
    let large = Snapshot { what: "large".into(), sources: vec![source; 60], ..Snapshot::default() };
    assert!(large.to_json().unwrap().len() < SNAPSHOT_BYTES_MAX);
    let _answering = answer(&paths, Box::new(move || Some(large.clone()))).unwrap();
    let dir = open_folder(&data.path().join("run")).unwrap();
    let name = names(&dir).remove(0);
    let mut askers: Vec<UnixStream> =
        (0..3).map(|_| UnixStream::connect(path_in(&dir, &name)).unwrap()).collect();
    for asker in &mut askers {
        asker.set_nonblocking(true).unwrap();
        while asker.write(&[b'?'; 4096]).is_ok() {}
    }
    while names_told(&paths) != ["large"] {}
}

/// What answers with garbage, or without end, is left out.
#[test]
fn strange_answers_are_bounded() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    let listener = mute(&paths);
    listener.set_nonblocking(false).unwrap();
    let strange = std::thread::spawn(move || {
        let sent = |words: &[u8], times: usize| {
            let (mut asker, _) = listener.accept().unwrap();
            (0..times).take_while(|_| asker.write_all(words).is_ok()).count()
        };
        (sent(b"no json", 1), sent(&[b' '; 1 << 16], 1 << 20))
    });
    assert!(ask_all(&paths).is_empty());
    assert!(ask_all(&paths).is_empty());
    let (_, endless) = strange.join().unwrap();
    assert!(endless < 100, "{endless} times 64 KiB were taken");
}

/// A folder into which others can look, or that is none, is not used; the transfer goes on without.
#[test]
fn an_open_folder_is_not_used() {
    let data = tempfile::tempdir().unwrap();
    let paths = Paths::below(data.path());
    let run = data.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o711)).unwrap();
    assert!(answer(&paths, told("never")).is_none());
    fs::remove_dir(&run).unwrap();
    fs::write(&run, b"").unwrap();
    assert!(answer(&paths, told("never")).is_none());
    fs::remove_file(&run).unwrap();
    std::os::unix::fs::symlink(data.path(), &run).unwrap();
    assert!(answer(&paths, told("never")).is_none() && ask_all(&paths).is_empty());
    let nowhere = Paths::below(&data.path().join("missing"));
    assert!(answer(&nowhere, told("never")).is_none() && ask_all(&nowhere).is_empty());
}
