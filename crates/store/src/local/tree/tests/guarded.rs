//! Trees read for others than their user.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mounting::run_with_mounts;
use super::*;

/// What a walk says of `root`, entry by entry; contents of files, too.
fn told(root: &Path, guard: Guard) -> Vec<String> {
    let within = crate::local::Within::new(Directory::open(root).unwrap().into()).unwrap();
    let options = WalkOptions { recursive: true, guard: Some(guard), ..WalkOptions::default() };
    let mut walker = Walker::new(vec![".".into()], options).at(Origin::Within(within));
    let mut told = Vec::new();
    while let Some(step) = walker.step() {
        told.push(match step {
            Walked::Entry(entry, file) => {
                let name = entry.name.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
                let mut text = String::from_utf8(name).unwrap();
                if let Some(file) = file {
                    text.push('=');
                    file.open().unwrap().file.read_to_string(&mut text).unwrap();
                }
                text
            }
            Walked::Leave => "leave".into(),
            Walked::Unlisted => "unlisted".into(),
            Walked::Missing => "missing".into(),
            Walked::Failed(path, error) => format!("{path:?}: {:?}", error.kind()),
        });
    }
    told
}

/// ADR 29: a directory that is never to be shared is told, and not looked into, so that nothing in its place is deleted; it has no digest.
#[test]
fn a_directory_that_is_spared_is_not_looked_into() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    for name in ["a", "keys/deep", "z"] {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), name).unwrap();
    }
    let never: Arc<[DirectoryKey]> = [directory_key(&root.join("keys")).unwrap()].into();
    let guard = Guard { never, ..Guard::default() };
    assert_eq!(
        told(root, guard.clone()),
        ["", "a", "file=a", "leave", "keys", "unlisted", "leave", "z", "file=z", "leave", "leave"]
    );
    let scanned = |guard: Option<Guard>| {
        let options = DigestOptions { guard, names: vec![Vec::new()], ..DigestOptions::default() };
        let scan = Scan::new(&options, None, &|_| false);
        let told = scan.sources(&Origin::Anywhere, &[root.join(".")], false).unwrap().tell();
        told.map(|told| told.has_roots)
    };
    // Small trees are not worth digests.
    for number in 0..200 {
        fs::write(root.join(format!("a/{number}")), b"x").unwrap();
    }
    assert_eq!(scanned(None), Some(true));
    assert_eq!(scanned(Some(Guard::default())), Some(true));
    assert_ne!(scanned(Some(guard)), Some(true), "it would say that all of it is known");
}

/// ADR 29: of what is told in the place of a directory that is spared its owner alone has anything, and what attributes it has is not known: what
/// a receiver keeps there gets no wider, and loses none.
#[test]
fn what_is_spared_widens_nothing() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    fs::create_dir(root.join("keys")).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o7777)).unwrap();
    let never: Arc<[DirectoryKey]> = [directory_key(&root.join("keys")).unwrap()].into();
    let guard = Some(Guard { never, ..Guard::default() });
    for xattrs in [true, false] {
        let guard = guard.clone();
        let options = WalkOptions { recursive: true, xattrs, guard, ..WalkOptions::default() };
        let mut walker = Walker::new(vec![root.join(".")], options);
        let mut told = std::iter::from_fn(|| walker.step()).filter_map(|step| match step {
            Walked::Entry(entry, _) => entry.name.is_some().then_some(entry.metadata),
            _ => None,
        });
        let metadata = told.next().unwrap();
        assert_eq!((metadata.mode, metadata.xattrs_unread), (0o700, xattrs), "{:o}", metadata.mode);
    }
}

/// Threat model: a walk ends soon after nobody waits for it, and says nothing more, be it of names of which nothing would be told.
#[test]
fn a_walk_ends_when_nobody_waits() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::write(place.path().join(number.to_string()), b"x").unwrap();
    }
    let stop: Arc<AtomicBool> = Arc::default();
    let guard = Guard { pulse: Arc::new(Pulse::new(stop.clone())), ..Guard::default() };
    let options = WalkOptions {
        recursive: true,
        excludes: Excludes::of_rules([&b"- *"[..]].into_iter()).unwrap(),
        guard: Some(guard.clone()),
        ..WalkOptions::default()
    };
    let mut walker = Walker::new(vec![place.path().join(".")], options);
    assert!(matches!(walker.step(), Some(Walked::Entry(..))));
    stop.store(true, Ordering::Release);
    assert!(walker.step().is_none());
    assert_eq!(guard.pulse.hangs_for(), std::time::Duration::ZERO, "between steps nothing hangs");
}

/// Threat model "a disk that does not answer": a directory that takes long to be listed shows that it is being read, and hears a stop.
#[test]
fn a_large_directory_has_a_pulse() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..5000 {
        fs::write(place.path().join(format!("a name of some length {number:010}")), b"").unwrap();
    }
    let guard = Guard::default();
    let options = WalkOptions { recursive: true, guard: Some(guard.clone()), ..WalkOptions::default() };
    let mut walker = Walker::new(vec![place.path().join(".")], options);
    assert!(matches!(walker.step(), Some(Walked::Entry(..))));
    assert!(guard.pulse.steps.swap(0, Ordering::Relaxed) > 3);
    let options =
        DigestOptions { guard: Some(guard.clone()), names: vec![Vec::new()], ..DigestOptions::default() };
    let scan = Scan::new(&options, None, &|_| false);
    assert!(scan.sources(&Origin::Anywhere, &[place.path().join(".")], false).is_some());
    assert!(guard.pulse.steps.load(Ordering::Relaxed) > 5003);
    // Nobody waits any more.
    let stopped = Guard { pulse: Arc::new(Pulse::new(Arc::new(AtomicBool::new(true)))), ..guard };
    let options = DigestOptions { guard: Some(stopped.clone()), ..options };
    let scan = Scan::new(&options, None, &|_| false);
    let told =
        scan.sources(&Origin::Anywhere, &[place.path().join(".")], false).map(|scanned| scanned.tell());
    assert!(told.flatten().is_none());
    assert!(stopped.pulse.steps.load(Ordering::Relaxed) < 3);
}

/// ADR 29: what is mounted in a tree is not read for others: a directory is told, and not looked into, a file fails.
#[test]
fn what_is_mounted_is_not_read_for_others() {
    const PLACE: &str = "DRAY_TEST_GUARDED";
    if let Some(root) = std::env::var_os(PLACE) {
        let root = Path::new(&root);
        assert!(root.join("mount/secret").exists() && fs::read(root.join("file")).unwrap() == b"secret");
        assert_eq!(
            told(root, Guard::default()),
            ["", "\"./file\": Refused", "mount", "unlisted", "leave", "plain=x", "leave"]
        );
        // What is mounted between telling and opening.
        let guard = Some(Guard::default());
        let options = WalkOptions { recursive: true, guard, ..WalkOptions::default() };
        let mut walker = Walker::new(vec![root.join(".")], options);
        let file = std::iter::from_fn(|| walker.step()).find_map(|step| match step {
            Walked::Entry(_, file) => file,
            _ => None,
        });
        let file = file.unwrap();
        assert_eq!(file.open().unwrap().size_bytes, 1);
        let mounted = std::process::Command::new("mount")
            .args(["--bind", "mount/secret", "plain"])
            .current_dir(root)
            .status();
        assert!(mounted.unwrap().success());
        assert!(file.open().is_err(), "it is another file");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("mount")).unwrap();
    for (name, content) in [("plain", "x"), ("file", "y")] {
        fs::write(place.path().join(name), content).unwrap();
    }
    let mount = format!(
        "cd \"${PLACE}\" && mount -t tmpfs tmpfs mount && printf secret > mount/secret && mount --bind mount/secret file"
    );
    let name = "local::tree::tests::guarded::what_is_mounted_is_not_read_for_others";
    run_with_mounts(name, (PLACE, place.path()), &mount);
}

/// ADR 29: what was shared is known again, and nothing else is taken for it: another directory, one over it, a link to it.
#[test]
fn a_shared_directory_is_known_again() {
    const PLACE: &str = "DRAY_TEST_SHARED";
    if let Some(root) = std::env::var_os(PLACE) {
        let root = Path::new(&root);
        let disk = root.join("disk");
        let shared = SharedDirectory::of(&disk).unwrap();
        shared.open().unwrap();
        let run = |script: &str| {
            let done = std::process::Command::new("sh").args(["-c", script]).current_dir(root).status();
            assert!(done.unwrap().success(), "{script}");
        };
        let is_changed = || shared.open().is_err_and(|error| error.kind() == ErrorKind::Changed);
        // Each has the same inode and a device number that is given out again.
        run("umount disk && mount -t tmpfs tmpfs disk");
        assert!(is_changed(), "another disk");
        run("mount -t tmpfs tmpfs disk");
        assert!(is_changed(), "one over it");
        run("umount disk && umount disk");
        assert!(is_changed(), "none");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir_all(at("one/below")).unwrap();
    symlink("one", at("link")).unwrap();
    let shared = SharedDirectory::of(&at("link/below")).unwrap();
    assert_eq!(shared.path(), fs::canonicalize(at("one/below")).unwrap());
    shared.open().unwrap();
    // The link was followed once.
    fs::remove_file(at("link")).unwrap();
    shared.open().unwrap();
    let changed = |kind| assert_eq!(shared.open().err().map(|error| error.kind()), Some(kind));
    fs::rename(at("one"), at("two")).unwrap();
    changed(ErrorKind::NotFound);
    symlink("two", at("one")).unwrap();
    changed(ErrorKind::Changed);
    fs::remove_file(at("one")).unwrap();
    fs::create_dir_all(at("one/below")).unwrap();
    changed(ErrorKind::Changed);
    fs::remove_dir_all(at("one")).unwrap();
    fs::rename(at("two"), at("one")).unwrap();
    shared.open().unwrap();
    assert!(SharedDirectory::of(&at("none")).is_err());
    fs::create_dir(at("disk")).unwrap();
    let mount = format!("cd \"${PLACE}\" && mount -t tmpfs tmpfs disk");
    let name = "local::tree::tests::guarded::a_shared_directory_is_known_again";
    run_with_mounts(name, (PLACE, place.path()), &mount);
}

/// ADR 31: what was handed over is known again by a later process, wherever its disk is mounted by then, and nothing else is taken for it.
#[test]
fn what_is_handed_over_is_known_again() {
    const PLACE: &str = "DRAY_TEST_HANDED";
    if let Some(root) = std::env::var_os(PLACE) {
        let root = Path::new(&root);
        let disk = root.join("disk");
        let handed = OwnedFd::from(fs::File::open(disk.join("one")).unwrap());
        let shared = SharedDirectory::of_opened(&handed).unwrap();
        drop(handed);
        let lasting = shared.lasting();
        assert!(lasting.is_some(), "tmpfs tells");
        let again = || SharedDirectory::again(shared.path().to_owned(), lasting);
        let kind = || again().open().err().map(|error| error.kind());
        let run = |script: &str| {
            let done = std::process::Command::new("sh").args(["-ec", script]).current_dir(root).status();
            assert!(done.unwrap().success(), "{script}");
        };
        assert!(kind().is_none() && again().is_same(&shared));
        // Each part of what it is known by counts: none of them alone tells it from others.
        let known = lasting.unwrap();
        let others = [
            LastingIdentity { kind: known.kind ^ 1, ..known },
            LastingIdentity { file_system: known.file_system ^ 1, ..known },
            LastingIdentity { inode: known.inode ^ 1, ..known },
            LastingIdentity { born_s: known.born_s ^ 1, ..known },
            LastingIdentity { born_ns: known.born_ns ^ 1, ..known },
        ];
        for other in others {
            let other = SharedDirectory::again(shared.path().to_owned(), Some(other));
            assert_eq!(other.open().unwrap_err().kind(), ErrorKind::Changed, "{other:?}");
            assert!(!other.is_same(&shared));
        }
        // Another mount of the same disk.
        run("mkdir other; mount --bind disk other; umount disk; mount --bind other disk");
        assert!(kind().is_none() && shared.open().is_ok());
        run("mv disk/one disk/two; mkdir disk/one");
        assert_eq!(kind(), Some(ErrorKind::Changed), "another directory");
        run("rmdir disk/one");
        assert_eq!(kind(), Some(ErrorKind::NotFound));
        run("ln -s two disk/one");
        assert_eq!(kind(), Some(ErrorKind::Changed), "a link to it");
        run("rm disk/one; mv disk/two disk/one");
        assert!(kind().is_none(), "it is back");
        run("umount disk; mount -t tmpfs tmpfs disk; mkdir disk/one");
        assert_eq!(kind(), Some(ErrorKind::Changed), "another disk, on which the inodes are alike");
        // Of which nobody knows for sure.
        let unknown = SharedDirectory::again(shared.path().to_owned(), None);
        assert_eq!(unknown.open().unwrap_err().kind(), ErrorKind::Changed);
        assert!(!unknown.is_same(&unknown), "whatever stands there");
        // What is mounted over it is in the way of the path.
        let handed = OwnedFd::from(fs::File::open(disk.join("one")).unwrap());
        run("mount -t tmpfs tmpfs disk/one");
        assert_eq!(SharedDirectory::of_opened(&handed).unwrap_err().kind(), ErrorKind::Usage);
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, b"x").unwrap();
    let removed = place.path().join("removed");
    fs::create_dir(&removed).unwrap();
    let gone = OwnedFd::from(fs::File::open(&removed).unwrap());
    fs::remove_dir(&removed).unwrap();
    fs::create_dir(&removed).unwrap();
    let by_path = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let by_path = rustix::fs::open(place.path(), by_path, rustix::fs::Mode::empty()).unwrap();
    for handed in [gone, OwnedFd::from(fs::File::open(&file).unwrap()), by_path] {
        let error = SharedDirectory::of_opened(&handed).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.advice().is_some(), "{error}");
    }
    fs::create_dir(place.path().join("disk")).unwrap();
    let mount = format!("cd \"${PLACE}\" && mount -t tmpfs tmpfs disk && mkdir disk/one");
    let name = "local::tree::tests::guarded::what_is_handed_over_is_known_again";
    run_with_mounts(name, (PLACE, place.path()), &mount);
}

/// ADR 29: a directory is, holds or lies in another by whatever names.
#[test]
fn directories_that_touch() {
    let place = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(place.path()).unwrap();
    fs::create_dir_all(root.join("home/data/store")).unwrap();
    fs::create_dir_all(root.join("home2")).unwrap();
    symlink("home/data", root.join("link")).unwrap();
    for path in ["", "home", "home/data", "home/data/store"] {
        assert!(touches(&root.join(path), &root.join("link")), "{path}");
    }
    assert!(!touches(&root.join("home2"), &root.join("link")));
    assert!(!touches(&root.join("home2"), &root.join("none")));
}
