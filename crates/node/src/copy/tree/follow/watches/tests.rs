//! Changes as the kernel tells of them.

use std::os::unix::fs::symlink;

use super::*;

const SOON: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_millis(150);

struct Bed {
    dir: tempfile::TempDir,
    watches: Watches,
}

impl Bed {
    /// `root/sub/deep`, of which `roots` are watched.
    fn new(roots: &[&str], directories_max: usize) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/sub/deep")).unwrap();
        fs::create_dir(dir.path().join("beside")).unwrap();
        fs::write(dir.path().join("file"), b"old").unwrap();
        let roots = roots.iter().map(|root| dir.path().join(root)).collect();
        let watches = Watches::new(roots, false, directories_max).unwrap();
        Bed { dir, watches }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Whether `change` is told, from a beginning at which nothing else is.
    fn tells(&mut self, change: impl FnOnce(&Bed)) -> bool {
        self.watches.begin(&Stop::new()).unwrap();
        assert_eq!(self.watches.wait(NEVER, &Stop::new()).unwrap(), Waited::TimedOut, "nothing has changed");
        change(self);
        self.has_changed()
    }

    fn has_changed(&mut self) -> bool {
        self.watches.wait(SOON, &Stop::new()).unwrap() == Waited::Changed
    }

    /// The same of what should not be told.
    fn keeps_silent(&mut self, change: impl FnOnce(&Bed)) -> bool {
        self.watches.begin(&Stop::new()).unwrap();
        change(self);
        self.watches.wait(NEVER, &Stop::new()).unwrap() == Waited::TimedOut
    }
}

/// Issue 7, "`--watch` keeps following": whatever changes below a root is told, however deep, also in directories that came later,
/// or were moved; what is read, or lies elsewhere, is not.
#[test]
fn changes_are_told_wherever_they_are() {
    let mut bed = Bed::new(&["root"], 100);
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/deep/a"), b"1").unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/deep/a"), b"2").unwrap()));
    assert!(bed.tells(|bed| fs::set_permissions(bed.path("root/sub"), permissions(0o700)).unwrap()));
    assert!(bed.tells(|bed| fs::remove_file(bed.path("root/sub/deep/a")).unwrap()));
    assert!(bed.tells(|bed| fs::create_dir_all(bed.path("root/new/one")).unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/new/one/b"), b"1").unwrap()));
    assert!(bed.tells(|bed| fs::rename(bed.path("root/new"), bed.path("root/sub/moved")).unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/moved/one/b"), b"2").unwrap()));
    assert!(bed.tells(|bed| fs::create_dir(bed.path("root/sub/moved/one/more")).unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/moved/one/more/c"), b"1").unwrap()));
    assert!(bed.keeps_silent(|bed| drop(fs::read(bed.path("root/sub/moved/one/b")).unwrap())));
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("beside/a"), b"1").unwrap()));
    // What was moved out is no business of this one.
    assert!(bed.tells(|bed| fs::rename(bed.path("root/sub/moved"), bed.path("beside/moved")).unwrap()));
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("beside/moved/one/b"), b"3").unwrap()));
    assert_eq!(bed.watches.directories.len(), 3, "root, sub and deep");
}

fn permissions(bits: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

/// A file that is a root itself is watched, whatever it is replaced by, and not what lies beside it; no link is followed.
#[test]
fn files_and_links_are_roots() {
    let mut bed = Bed::new(&["file", "link", "led/"], 100);
    symlink("beside", bed.path("link")).unwrap();
    symlink("root", bed.path("led")).unwrap();
    assert!(bed.tells(|bed| fs::write(bed.path("file"), b"new").unwrap()));
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("another"), b"1").unwrap()));
    assert!(bed.tells(|bed| fs::rename(bed.path("another"), bed.path("file")).unwrap()));
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("beside/a"), b"1").unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/a"), b"1").unwrap()), "led/ is what it leads to");
}

/// Design 5, "bounded": more directories than the limit are an error, also when they come later, and not a change that is missed.
#[test]
fn directories_are_bounded() {
    let mut bed = Bed::new(&["root"], 2);
    let error = bed.watches.begin(&Stop::new()).unwrap_err();
    assert!(error.to_string().contains("too many to be told of"), "{error}");
    let mut bed = Bed::new(&["root"], 3);
    bed.watches.begin(&Stop::new()).unwrap();
    fs::create_dir(bed.path("root/one")).unwrap();
    let error = bed.watches.wait(SOON, &Stop::new()).unwrap_err();
    assert!(error.to_string().contains("too many to be told of"), "{error}");
}

/// A queue that overflowed has lost the news of directories: all are looked at again.
#[test]
fn what_the_kernel_dropped_is_looked_for() {
    let mut bed = Bed::new(&["root"], 100);
    bed.watches.begin(&Stop::new()).unwrap();
    let queued: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let (one, two) = (bed.path("root/one"), bed.path("root/two"));
    fs::write(&one, b"").unwrap();
    for _ in 0..queued / 4 + 8 {
        fs::rename(&one, &two).unwrap();
        fs::rename(&two, &one).unwrap();
    }
    fs::create_dir(bed.path("root/late")).unwrap();
    assert!(bed.has_changed());
    assert!(bed.watches.is_stale);
    assert!(bed.tells(|bed| fs::write(bed.path("root/late/a"), b"1").unwrap()));
}

/// A root that is another directory than it was, or came back, is watched as the one that it is now.
#[test]
fn roots_are_replaced() {
    let mut bed = Bed::new(&["root"], 100);
    fs::create_dir_all(bed.path("next/sub")).unwrap();
    assert!(bed.tells(|bed| {
        fs::rename(bed.path("root"), bed.path("last")).unwrap();
        fs::rename(bed.path("next"), bed.path("root")).unwrap();
    }));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/a"), b"1").unwrap()));
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("last/sub/a"), b"1").unwrap()));
    assert!(bed.tells(|bed| fs::remove_dir_all(bed.path("root")).unwrap()));
    bed.watches.begin(&Stop::new()).unwrap();
    fs::create_dir_all(bed.path("root/other")).unwrap();
    assert!(bed.tells(|bed| fs::write(bed.path("root/other/a"), b"1").unwrap()));
}

/// A root that was made anew is watched, also where it has the number of the last one, or came after the beginning and before the wait.
#[test]
fn a_root_that_was_made_anew_is_watched() {
    let mut bed = Bed::new(&["root", "beside/file"], 100);
    fs::write(bed.path("beside/file"), b"").unwrap();
    for again in 0..50 {
        let (root, above) = (bed.path("root"), bed.path("beside"));
        assert!(
            bed.tells(|_| fs::remove_dir_all(&root).and_then(|()| fs::create_dir(&root)).unwrap()),
            "{again}"
        );
        assert!(bed.tells(|_| fs::write(root.join("a"), b"").unwrap()), "{again}");
        assert!(
            bed.tells(|_| fs::remove_dir_all(&above).and_then(|()| fs::create_dir(&above)).unwrap()),
            "{again}"
        );
        assert!(bed.tells(|_| fs::write(above.join("file"), b"").unwrap()), "{again}");
    }
    fs::remove_dir_all(bed.path("root")).unwrap();
    bed.watches.begin(&Stop::new()).unwrap();
    assert_eq!(bed.watches.wait(NEVER, &Stop::new()).unwrap(), Waited::TimedOut);
    fs::create_dir(bed.path("root")).unwrap();
    assert!(bed.has_changed());
    // That it came is told once: what waits for quiet has it then.
    assert_eq!(bed.watches.wait(NEVER, &Stop::new()).unwrap(), Waited::TimedOut);
    assert!(bed.tells(|bed| fs::write(bed.path("root/a"), b"").unwrap()));
    fs::write(bed.path("new"), b"").unwrap();
    bed.watches.begin(&Stop::new()).unwrap();
    fs::rename(bed.path("new"), bed.path("beside/file")).unwrap();
    assert!(bed.has_changed());
    assert_eq!(bed.watches.wait(NEVER, &Stop::new()).unwrap(), Waited::TimedOut);
}

/// Issue 7, "`--watch` keeps following": what the kernel tells nobody of is found all the same, once: a link to the root leads elsewhere, or a directory above it was
/// renamed; and what changes there is told then.
#[test]
fn a_root_that_leads_elsewhere_is_noticed() {
    let mut bed = Bed::new(&["current/", "above/root"], 100);
    for release in ["one", "two"] {
        fs::create_dir(bed.path(release)).unwrap();
        fs::create_dir_all(bed.path(&format!("above.{release}/root"))).unwrap();
    }
    symlink("one", bed.path("current")).unwrap();
    fs::rename(bed.path("above.one"), bed.path("above")).unwrap();
    let tells_once = |bed: &mut Bed, change: &dyn Fn(&Bed)| {
        assert!(bed.tells(change));
        bed.watches.begin(&Stop::new()).unwrap();
        let longer = 2 * ROOTS_INTERVAL;
        assert_eq!(bed.watches.wait(longer, &Stop::new()).unwrap(), Waited::TimedOut, "it is told once");
    };
    tells_once(&mut bed, &|bed| {
        symlink("two", bed.path("next")).unwrap();
        fs::rename(bed.path("next"), bed.path("current")).unwrap();
    });
    assert!(bed.tells(|bed| fs::write(bed.path("two/a"), b"1").unwrap()));
    tells_once(&mut bed, &|bed| {
        fs::rename(bed.path("above"), bed.path("above.old")).unwrap();
        fs::rename(bed.path("above.two"), bed.path("above")).unwrap();
    });
    assert!(bed.tells(|bed| fs::write(bed.path("above/root/a"), b"1").unwrap()));
}

/// A directory that may be looked at later is watched from then on, and no link that takes the place of one leads out.
#[test]
fn what_may_be_looked_at_later_is_watched() {
    let mut bed = Bed::new(&["root"], 100);
    bed.watches.begin(&Stop::new()).unwrap();
    // As if it had been refused at first: root may look at everything.
    let number = bed.watches.directories.iter().find(|(_, watched)| watched.path.ends_with("sub/deep"));
    let number = *number.unwrap().0;
    inotify::remove_watch(&bed.watches.queue, number).unwrap();
    assert!(bed.tells(|bed| fs::set_permissions(bed.path("root/sub/deep"), permissions(0o755)).unwrap()));
    assert!(bed.tells(|bed| fs::write(bed.path("root/sub/deep/a"), b"1").unwrap()));
    symlink(bed.path("beside"), bed.path("root/link")).unwrap();
    bed.watches.watch_below(bed.path("root/link"), None, &Stop::new()).unwrap();
    assert!(bed.keeps_silent(|bed| fs::write(bed.path("beside/a"), b"1").unwrap()));
}

/// A stop ends a wait.
#[test]
fn a_stop_ends_the_wait() {
    let mut bed = Bed::new(&["root"], 100);
    bed.watches.begin(&Stop::new()).unwrap();
    let stop = Stop::new();
    stop.set();
    assert_eq!(bed.watches.wait(SOON, &stop).unwrap(), Waited::Stopped);
}
