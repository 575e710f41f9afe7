//! A working directory of one thread's own, for calls that take a path and no directory: Linux reads extended attributes of what
//! is not open only by path, before 6.13. Through `/proc/self/fd` that costs five times as much as by a plain name, which is a
//! third of a walk that reads attributes.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::fchdir;

use super::directory::Directory;

/// Where a thread stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// In the working directory of the process, which it must not change.
    Shared,
    /// In that too, but could go elsewhere.
    Start,
    /// In the directory of this number.
    In(u64),
}

thread_local! {
    static STAND: Cell<Stand> = const { Cell::new(Stand::Shared) };
    static START: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Gives this thread a working directory of its own, if the system lets it. To be called by a thread that does nothing but walk or
/// write trees: only the paths that those open are still relative to the working directory of the process.
pub fn own_directory() {
    if STAND.get() != Stand::Shared {
        return;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(start) = rustix::fs::open(".", flags, Mode::empty()) else { return };
    #[expect(
        deprecated,
        reason = "what it warns of is sharing descriptors no more, which is not asked for here"
    )]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::FS);
    // Who may not come back had better stay.
    if unshared.is_ok() && fchdir(&start).is_ok() {
        START.set(Some(start));
        STAND.set(Stand::Start);
    }
}

/// Makes `directory` the working directory of this thread; false if it has none of its own, or may not go there.
pub(super) fn enter(directory: &Directory) -> bool {
    match STAND.get() {
        Stand::Shared => false,
        Stand::In(number) if number == directory.number() => true,
        _ => {
            let is_there = fchdir(directory).is_ok();
            if is_there {
                STAND.set(Stand::In(directory.number()));
            }
            is_there
        }
    }
}

/// Before a path of the user's is opened: where the process is.
pub(super) fn back() {
    if let Stand::In(_) = STAND.get() {
        let is_back = START.with_borrow(|start| start.as_ref().is_some_and(|start| fchdir(start).is_ok()));
        if is_back {
            STAND.set(Stand::Start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Only the thread itself stands elsewhere; it finds a name in the directory it goes to, and the user's relative paths after.
    #[test]
    fn one_thread_stands_elsewhere_alone() {
        let here = std::env::current_dir().unwrap();
        let place = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(place.path().join(name)).unwrap();
            fs::write(place.path().join(name).join("f"), name).unwrap();
        }
        let (there, is_there) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let path = place.path().to_owned();
        let walking = thread::spawn(move || {
            let [one, two] = ["one", "two"].map(|name| Directory::open(&path.join(name)).unwrap());
            assert!(!enter(&one), "it has none of its own yet");
            own_directory();
            // Where the system does not let it, everything works as before.
            let has_own = STAND.get() != Stand::Shared;
            for (directory, content) in [(&one, "one"), (&two, "two"), (&two, "two"), (&one, "one")] {
                let read = directory
                    .reach(b"f", |path| fs::read_to_string(std::str::from_utf8(path).unwrap()).unwrap());
                assert_eq!(read, content);
            }
            there.send(()).unwrap();
            may_leave.recv().unwrap();
            Directory::open(Path::new("src")).unwrap();
            assert_eq!(STAND.get() == Stand::Start, has_own);
        });
        is_there.recv().unwrap();
        assert_eq!(std::env::current_dir().unwrap(), here);
        leave.send(()).unwrap();
        walking.join().unwrap();
        assert_eq!(std::env::current_dir().unwrap(), here);
    }
}
