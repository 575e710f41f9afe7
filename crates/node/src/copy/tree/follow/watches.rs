//! Watches on all directories below some roots (inotify).

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::Waited;
use crate::Stop;

/// How often a stop is looked for.
pub(super) const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// How often all roots are looked at. The kernel tells neither of a directory above that was renamed, nor of a link to a root that leads elsewhere, nor of what was
/// mounted over one.
const ROOTS_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of events that are read at once.
const EVENTS_BYTES: usize = 64 << 10;

/// What is a change: not that something was read.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// Watches on directories.
pub(super) struct Watches {
    queue: OwnedFd,
    /// By the kernel's numbers.
    directories: HashMap<i32, Watched>,
    directories_max: usize,
    roots: Vec<PathBuf>,
    /// What each root was when it was looked at last; `None` if it was not there.
    known: Vec<Option<(u64, u64)>>,
    /// When all of them were looked at last, since the beginning.
    looked_at: Option<Instant>,
    /// Stays on the file system of each root.
    one_file_system: bool,
    /// Not all that is there is watched.
    is_stale: bool,
    /// A directory on which something was mounted, which is gone.
    pub(super) unmounted: Option<PathBuf>,
}

struct Watched {
    path: PathBuf,
    /// Only what has one of these names counts: the directory is there for files that are roots themselves.
    only: Option<Vec<OsString>>,
}

impl Watches {
    /// Nothing is watched before [`Watches::begin`].
    pub(super) fn new(roots: Vec<PathBuf>, one_file_system: bool, directories_max: usize) -> Result<Watches> {
        Ok(Watches {
            queue: queue()?,
            directories: HashMap::new(),
            directories_max,
            known: vec![None; roots.len()],
            looked_at: None,
            roots,
            one_file_system,
            is_stale: true,
            unmounted: None,
        })
    }

    /// Forgets what changed until now, and watches all that is there.
    pub(super) fn begin(&mut self, stop: &Stop) -> Result<()> {
        self.read(stop)?;
        self.has_other_roots(true);
        self.looked_at = None;
        if std::mem::take(&mut self.is_stale) {
            // What was watched before may be elsewhere by now.
            self.queue = queue()?;
            self.directories.clear();
            for root in self.roots.clone() {
                self.watch_root(&root, stop)?;
            }
        }
        Ok(())
    }

    /// Whether a root came or, if `all` are looked at, was replaced or went: the next beginning takes nothing for watched then.
    fn has_other_roots(&mut self, all: bool) -> bool {
        let mut has_other = false;
        for (root, known) in
            self.roots.iter().zip(&mut self.known).filter(|(_, known)| all || known.is_none())
        {
            let now = identity(root);
            has_other |= std::mem::replace(known, now) != now;
        }
        self.is_stale |= has_other;
        has_other
    }

    /// The next beginning takes nothing for watched.
    pub(super) fn look_again(&mut self) {
        self.is_stale = true;
    }

    /// Waits for a change, for `patience` at most.
    pub(super) fn wait(&mut self, patience: Duration, stop: &Stop) -> Result<Waited> {
        let until = Instant::now() + patience;
        loop {
            if stop.is_set() {
                return Ok(Waited::Stopped);
            }
            // At once, too: a root may have been replaced between the beginning's look at it and its watch.
            let all = self.looked_at.is_none_or(|at| at.elapsed() >= ROOTS_INTERVAL);
            if all {
                self.looked_at = Some(Instant::now());
            }
            if self.has_other_roots(all) | self.read(stop)? {
                return Ok(Waited::Changed);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            let time = Timespec { tv_sec: 0, tv_nsec: left.min(STOP_INTERVAL).subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.queue, PollFlags::IN)], Some(&time)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io("wait for changes", errno.into())),
            }
        }
    }

    /// Takes in what was told; whether something changed.
    fn read(&mut self, stop: &Stop) -> Result<bool> {
        let mut room = vec![MaybeUninit::uninit(); EVENTS_BYTES];
        let (mut has_changed, mut arrived, mut gone) = (false, Vec::new(), HashSet::new());
        let mut reader = Reader::new(&self.queue, &mut room);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("hear of changes", errno.into())),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                // Which directories are new was lost with it.
                (has_changed, self.is_stale) = (true, true);
                continue;
            }
            if event.events().contains(ReadFlags::IGNORED) {
                // One that is made anew in the place of a root may have its number.
                self.is_stale |= self
                    .directories
                    .remove(&event.wd())
                    .is_some_and(|watched| watched.only.is_some() || self.roots.contains(&watched.path));
                continue;
            }
            if event.events().contains(ReadFlags::UNMOUNT) {
                (has_changed, self.is_stale) = (true, true);
                let watched = self.directories.get(&event.wd());
                self.unmounted = self.unmounted.take().or(watched.map(|watched| watched.path.clone()));
                continue;
            }
            let Some(watched) = self.directories.get(&event.wd()) else { continue };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            if let Some(only) = &watched.only {
                has_changed |= name.is_none_or(|name| only.iter().any(|root| root == name));
                continue;
            }
            has_changed = true;
            let Some(path) = name.map(|name| watched.path.join(name)) else { continue };
            if event.events().contains(ReadFlags::ISDIR) {
                if event.events().contains(ReadFlags::MOVED_FROM) {
                    gone.insert(path);
                } else if !event.events().contains(ReadFlags::DELETE) {
                    // It came, or may be looked at from now on.
                    arrived.push(path);
                }
            }
        }
        if !gone.is_empty() {
            self.forget(&gone);
        }
        for path in arrived {
            let device = self.one_file_system.then(|| device(path.parent().unwrap_or(&path))).flatten();
            self.watch_below(path, device, stop)?;
        }
        Ok(has_changed)
    }

    fn watch_root(&mut self, root: &Path, stop: &Stop) -> Result<()> {
        // A link is followed as the copy follows it: if what it leads to is meant.
        let is_followed = root.as_os_str().as_bytes().ends_with(b"/");
        let found = if is_followed { fs::metadata(root) } else { fs::symlink_metadata(root) };
        let Ok(found) = found else { return Ok(()) };
        if found.is_dir() {
            let device = self.one_file_system.then(|| found.dev());
            return self.watch_below(root.to_owned(), device, stop);
        }
        let Some(name) = root.file_name() else { return Ok(()) };
        let above = root.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(number) = self.add(above, WatchFlags::empty())? else { return Ok(()) };
        match self.directories.get_mut(&number) {
            // Watched for all that is in it.
            Some(Watched { only: None, .. }) => {}
            Some(Watched { only: Some(only), .. }) => only.push(name.to_owned()),
            None => {
                let watched = Watched { path: above.to_owned(), only: Some(vec![name.to_owned()]) };
                self.directories.insert(number, watched);
            }
        }
        Ok(())
    }

    /// Watches a directory and all below it, unless it is watched. Each is watched before it is listed, so that what comes meanwhile is
    /// found or told.
    fn watch_below(&mut self, top: PathBuf, on: Option<u64>, stop: &Stop) -> Result<()> {
        let mut left = vec![top];
        while let Some(path) = left.pop() {
            if stop.is_set() {
                self.is_stale = true;
                return Ok(());
            }
            if on.is_some_and(|on| device(&path) != Some(on)) {
                continue;
            }
            let Some(number) = self.add(&path, WatchFlags::DONT_FOLLOW)? else { continue };
            let watched = Watched { path: path.clone(), only: None };
            let before = self.directories.insert(number, watched);
            if before.is_some_and(|before| before.only.is_none() && before.path == path) {
                continue;
            }
            // One that cannot be listed is the copy's to tell of.
            if let Ok(entries) = fs::read_dir(&path) {
                let directories = entries
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path());
                left.extend(directories);
            }
        }
        Ok(())
    }

    /// The kernel's number of a directory's watch; `None` if it is gone, or may not be looked at.
    fn add(&mut self, path: &Path, how: WatchFlags) -> Result<Option<i32>> {
        let too_many = || {
            let what = format!("{} directories are too many to be told of changes", self.directories.len());
            Error::new(ErrorKind::Unsupported, what)
        };
        match inotify::add_watch(&self.queue, path, CHANGES | how) {
            Ok(number) if self.directories.contains_key(&number) => Ok(Some(number)),
            Ok(_) if self.directories.len() >= self.directories_max => Err(too_many()),
            Ok(number) => Ok(Some(number)),
            // The user's limit: fs.inotify.max_user_watches.
            Err(Errno::NOSPC | Errno::NOMEM) => Err(too_many()),
            Err(_) => Ok(None),
        }
    }

    /// Directories were moved away: what is in them counts no longer, or is told anew from where they went.
    fn forget(&mut self, gone: &HashSet<PathBuf>) {
        let queue = &self.queue;
        self.directories.retain(|number, watched| {
            let is_below = watched.path.ancestors().any(|above| gone.contains(above));
            if is_below {
                let _ = inotify::remove_watch(queue, *number);
            }
            !is_below
        });
    }
}

fn queue() -> Result<OwnedFd> {
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    queue.map_err(|errno| Error::io("watch directories", errno.into()))
}

/// Which directory or file a root is; a link is one itself, unless the path ends with a slash.
fn identity(root: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(root).ok().map(|found| (found.dev(), found.ino()))
}

fn device(path: &Path) -> Option<u64> {
    identity(path).map(|(device, _)| device)
}

#[cfg(test)]
mod tests;
