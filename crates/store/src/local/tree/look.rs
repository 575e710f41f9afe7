//! Holds a tree against the one that is to replace it: what would be gone, whether anything differs, and whether somebody else changed it meanwhile.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use dray_core::limits::TREE_DEPTH_MAX;
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Statx, StatxTimestamp};
use rustix::io::Errno;

use super::attributes;
use super::delete::{self, Since, Stamp, made_at};
use super::directory::Directory;
use super::listing::Listing;
use super::place::{Identity, identity_of};
use super::settings::{Settings, mtime_of};
use super::stage::is_mount;
use super::sync::Done;
use super::write::file_type;
use crate::local::file_systems::{OVERLAY, lies_on};

/// Entries that are looked at before others get a turn.
const STEP: usize = 64;

/// A comparison on its way.
#[derive(Debug)]
pub(super) struct Look {
    pairs: Vec<Pair>,
    /// Of the innermost directory, and of the entry at hand.
    path: Vec<u8>,
    /// Entries that the new tree has not.
    pub(super) gone: u64,
    /// Something differs, or is new. The two directories themselves are held against each other once they have what they are to have.
    pub(super) differs: bool,
    /// The first that its own bits keep even its owner from looking into.
    closed: Option<Vec<u8>>,
    /// The trees have changed places: what came into the old one after the first moment stays, and is not told; and the time that it had then.
    since: Option<((i64, u32), (i64, u32))>,
    /// On a file system that changes directories of its own accord.
    is_overlay: bool,
    /// Files that this run took a name from, and so changed; `None` if nobody knows.
    unlinked: Option<HashSet<Identity>>,
}

/// A directory of the old tree, and the same in the new one.
#[derive(Debug)]
struct Pair {
    old: Directory,
    new: Option<Directory>,
    names: Listing,
    next: usize,
    others: Listing,
    path_len: usize,
    /// It goes, and something of it counts.
    is_gone: bool,
    /// Something came into the old one since.
    is_recent: bool,
    /// Something in the old one stays.
    keeps: bool,
}

impl Look {
    /// Of an old tree, and the new one; `unlinked` are the files that this run took a name from, if that is known.
    pub(super) fn of(
        old: &Directory,
        new: Option<&Directory>,
        unlinked: Option<HashSet<Identity>>,
    ) -> Result<Look> {
        Look { unlinked, ..Look::of_nothing() }.begin(old, new)
    }

    fn begin(mut self, old: &Directory, new: Option<&Directory>) -> Result<Look> {
        let old = old.duplicate_for_listing().map_err(|error| failed(b"", error))?;
        let new =
            new.map(Directory::duplicate_for_listing).transpose().map_err(|error| failed(b"", error))?;
        self.is_overlay = is_overlay(&old);
        self.push(old, new, 0, false)?;
        Ok(self)
    }

    /// The same to tell what goes: all but what came after `since`, when the old tree had the time `mtime`.
    pub(super) fn to_tell(
        old: &Directory,
        new: &Directory,
        since: (i64, u32),
        mtime: (i64, u32),
    ) -> Result<Look> {
        Look { since: Some((since, mtime)), ..Look::of_nothing() }.begin(old, Some(new))
    }

    /// Of a tree that is not there.
    pub(super) fn of_nothing() -> Look {
        Look {
            pairs: Vec::new(),
            path: Vec::new(),
            gone: 0,
            differs: false,
            closed: None,
            since: None,
            is_overlay: false,
            unlinked: None,
        }
    }

    /// `Refused` if more would be gone than these, or nobody knows.
    pub(super) fn require_at_most(&self, max: u64) -> Result<()> {
        let what = match &self.closed {
            _ if self.gone > max => {
                format!("{} entries would be deleted, and --max-delete allows {max}", self.gone)
            }
            Some(path) => {
                let path = OsStr::from_bytes(path);
                format!(
                    "what is in {path:?} cannot be counted for --max-delete: its bits keep its owner from reading it"
                )
            }
            None => return Ok(()),
        };
        Err(Error::new(ErrorKind::Refused, what))
    }

    fn push(&mut self, old: Directory, new: Option<Directory>, path_len: usize, is_gone: bool) -> Result<()> {
        if self.pairs.len() > TREE_DEPTH_MAX {
            let what = format!("{:?} lies more than {TREE_DEPTH_MAX} directories deep", self.shown());
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let read = |directory: &Directory| {
            Listing::read(directory, &mut Vec::new(), &|| true).map_err(|error| self.failed(error))
        };
        let names = read(&old)?;
        let others = new.as_ref().map_or_else(|| Ok(Listing::default()), read)?;
        self.differs |= new.is_some() && names.len() != others.len();
        let is_recent = match self.since {
            None => false,
            Some((since, mtime)) => {
                let renamed = self.pairs.is_empty().then_some(mtime);
                let found = old.stat_self().map_err(|error| self.failed(error))?;
                delete::has_changed(&found, renamed, Since::by_own_clock(since))
            }
        };
        self.pairs.push(Pair {
            old,
            new,
            names,
            next: 0,
            others,
            path_len,
            is_gone,
            is_recent,
            keeps: false,
        });
        Ok(())
    }

    /// Looks at some entries; false once all were looked at. With `begun`, when the run began, what others did meanwhile is an error, and what would be gone is
    /// counted; without, that is told.
    pub(super) fn step(&mut self, settings: &Settings, begun: Option<(i64, u32)>) -> Result<bool> {
        for _ in 0..STEP {
            let is_root = self.pairs.len() == 1;
            let Some(pair) = self.pairs.last_mut() else { return Ok(false) };
            let Some(name) = pair.names.get(pair.next).map(<[u8]>::to_vec) else {
                self.leave(settings, begun)?;
                continue;
            };
            if pair.next == 0 && begun.is_some() && !is_root {
                self.differs |= pair.new.as_ref().is_some_and(|new| is_another(settings, &pair.old, new));
            }
            let Some(pair) = self.pairs.last_mut() else { return Ok(false) };
            pair.next += 1;
            let len = self.path.len();
            delete::push_name(&mut self.path, &name);
            if !self.visit(settings, begun, &name, len)? {
                self.path.truncate(len);
            }
        }
        Ok(true)
    }

    /// Looks at one entry; true if it is a directory that was entered.
    fn visit(
        &mut self,
        settings: &Settings,
        begun: Option<(i64, u32)>,
        name: &[u8],
        path_len: usize,
    ) -> Result<bool> {
        let Some(pair) = self.pairs.last() else { return Ok(false) };
        let found = match pair.old.stat_for(name, Stamp::FACTS) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.differs = true;
                return Ok(false);
            }
            Err(error) => return self.pass_closed(settings, &pair.old.stat_self(), path_len, error),
        };
        let other = match &pair.new {
            Some(new) if pair.others.has(name) => match new.stat(name) {
                Ok(other) => Some(other),
                Err(error) => return self.pass_closed(settings, &new.stat_self(), path_len, error),
            },
            _ => None,
        };
        let is_directory = |found: &Statx| file_type(found) == FileType::Directory;
        if let Some(begun) = begun {
            self.require_unchanged(settings, begun, (&pair.old, name), &found, other.as_ref())?;
        }
        let has_come = |since| delete::has_come(&found, pair.is_recent, Since::by_own_clock(since));
        if self.since.is_some_and(|(since, _)| has_come(since)) {
            self.keep();
            return Ok(false);
        }
        if !is_directory(&found) {
            match other {
                None => self.count(settings, begun, false),
                Some(other) => self.differs |= identity_of(&other) != identity_of(&found),
            }
            return Ok(false);
        }
        let stays = other.as_ref().is_some_and(is_directory);
        self.differs |= !stays;
        let old = match pair.old.child_here(name) {
            Ok(old) => old,
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                return Err(self.mounted());
            }
            Err(error) => {
                let passed = self.pass_closed(settings, &Ok(found), self.path.len(), error)?;
                if let Some(begun) = begun {
                    self.require_untouched(&found, begun)?;
                }
                if other.is_none() {
                    self.count(settings, begun, true);
                }
                return Ok(passed);
            }
        };
        let new = match pair.new.as_ref().filter(|_| stays).map(|new| new.child(name)).transpose() {
            Ok(new) => new,
            Err(error) => {
                let new = pair.new.as_ref().map_or(Ok(found), |new| new.stat(name));
                return self.pass_closed(settings, &new, self.path.len(), error);
            }
        };
        // A directory in whose place something else comes does not count, as elsewhere.
        self.push(old, new, path_len, other.is_none())?;
        Ok(true)
    }

    /// What bits that a directory of this user's has itself keep from being looked at is passed by, and counts as something that differs: bits of a destination are not
    /// touched. Anything else is an error.
    fn pass_closed(
        &mut self,
        settings: &Settings,
        found: &io::Result<Statx>,
        path_len: usize,
        error: io::Error,
    ) -> Result<bool> {
        let is_own = found.as_ref().is_ok_and(|found| {
            file_type(found) == FileType::Directory && found.stx_uid == settings.powers.uid
        });
        if error.kind() != io::ErrorKind::PermissionDenied || !is_own {
            return Err(self.failed(error));
        }
        self.differs = true;
        self.closed.get_or_insert_with(|| self.path[..path_len].to_vec());
        Ok(false)
    }

    /// All in the innermost directory was looked at.
    fn leave(&mut self, settings: &Settings, begun: Option<(i64, u32)>) -> Result<()> {
        let Some(pair) = self.pairs.pop() else { return Ok(()) };
        if let Some(begun) = begun {
            let found = pair.old.stat_self().map_err(|error| self.failed(error))?;
            self.require_untouched(&found, begun)?;
        }
        if begun.is_some() && pair.next == 0 && !self.pairs.is_empty() {
            // It is empty.
            self.differs |= pair.new.as_ref().is_some_and(|new| is_another(settings, &pair.old, new));
        }
        match (pair.keeps, pair.is_gone) {
            (true, _) => self.keep(),
            (false, true) => self.count(settings, begun, true),
            (false, false) => {}
        }
        self.path.truncate(pair.path_len);
        Ok(())
    }

    /// What is at hand stays, and so does the directory that it is in.
    fn keep(&mut self) {
        if let Some(pair) = self.pairs.last_mut() {
            pair.keeps = true;
        }
    }

    /// `Changed` if something was put into the directory at hand, or taken out of it, since the run began. What is moved or linked keeps its own times, and no run changes the
    /// directories of a destination.
    fn require_untouched(&self, found: &Statx, begun: (i64, u32)) -> Result<()> {
        if !is_since(&found.stx_ctime, begun) {
            return Ok(());
        }
        let which = match self.path.is_empty() {
            true => "the destination".to_owned(),
            false => format!("the directory {:?} of the destination", self.shown()),
        };
        let what = match self.is_overlay {
            true => format!(
                "{which} changed meanwhile: another program changed it, or the overlay file system copied it up from its lower layer, as it does when a file in it is linked"
            ),
            false => format!("another program changed {which} meanwhile"),
        };
        Err(Error::new(ErrorKind::Changed, what).advise("run it again"))
    }

    /// The entry at hand is not in the new tree.
    fn count(&mut self, settings: &Settings, begun: Option<(i64, u32)>, is_directory: bool) {
        self.gone += 1;
        if begun.is_none() {
            let mut path = self.path.clone();
            if is_directory {
                path.push(b'/');
            }
            settings.did(Some(Done { letters: None, path, link: None }));
        }
    }

    /// `Changed` if somebody else made or changed the entry at hand since the run began, `Refused` if it is not to go.
    fn require_unchanged(
        &self,
        settings: &Settings,
        begun: (i64, u32),
        (old, name): (&Directory, &[u8]),
        found: &Statx,
        other: Option<&Statx>,
    ) -> Result<()> {
        if is_mount(found) {
            return Err(self.mounted());
        }
        let is_source = (delete::device(found), found.stx_ino);
        if settings.sync().is_some_and(|sync| sync.sources.contains(&is_source)) {
            let what = format!("{:?} is a source of this run, which lies in the destination", self.shown());
            return Err(Error::new(ErrorKind::Refused, what).advise("name another destination"));
        }
        if delete::is_held(old, name, found) {
            let what = format!("another run of dray is at work on {:?} in the destination", self.shown());
            return Err(Error::new(ErrorKind::Refused, what).advise("run it again when that is over"));
        }
        let is_same = other.is_some_and(|other| identity_of(other) == identity_of(found));
        let is_directory = file_type(found) == FileType::Directory;
        // A directory changes its times when something in it goes; a file may have any time, but changes when it is written to. It also does when it gets or loses a name, as by this run.
        let is_changed = is_since(&found.stx_ctime, begun);
        let is_written =
            !is_directory && is_changed && (mtime_of(found) > begun || self.has_only_name(found));
        let is_made = made_at(found).is_some_and(|made| delete::is_since(made, Since::by_own_clock(begun)));
        let stays = is_same || (is_directory && other.is_some());
        if !stays && (is_made || is_written) {
            let what =
                format!("another program made or changed {:?} in the destination meanwhile", self.shown());
            return Err(Error::new(ErrorKind::Changed, what).advise("run it again"));
        }
        Ok(())
    }

    /// True for a file that has one name, and that this run took no other one from.
    fn has_only_name(&self, found: &Statx) -> bool {
        let is_unlinked = |files: &HashSet<Identity>| files.contains(&identity_of(found));
        let is_known = self.unlinked.as_ref().is_some_and(|files| !is_unlinked(files));
        is_known && file_type(found) == FileType::RegularFile && found.stx_nlink == 1
    }

    fn mounted(&self) -> Error {
        let what = format!(
            "something is mounted on {:?} in the destination, and would go with the old tree",
            self.shown()
        );
        Error::new(ErrorKind::Refused, what).advise("unmount it first, or leave out --atomic")
    }

    fn failed(&self, error: io::Error) -> Error {
        failed(&self.path, error)
    }

    fn shown(&self) -> &OsStr {
        OsStr::from_bytes(&self.path)
    }
}

/// Whether something got this stamp since the run began.
fn is_since(stamp: &StatxTimestamp, begun: (i64, u32)) -> bool {
    delete::is_since(delete::time(stamp), Since::by_own_clock(begun))
}

/// Whether a directory differs from the one that is to take its place in what a run would bring; what cannot be read differs.
pub(super) fn is_another(settings: &Settings, old: &Directory, new: &Directory) -> bool {
    let (Ok(found), Ok(now)) = (old.stat_self(), new.stat_self()) else { return true };
    let facts = |found: &Statx| (found.stx_mode, found.stx_uid, found.stx_gid);
    let is_timed = settings.keeps_time_of(FileType::Directory);
    if facts(&found) != facts(&now) || (is_timed && mtime_of(&found) != mtime_of(&now)) {
        return true;
    }
    if !settings.xattrs {
        return false;
    }
    let scope = settings.attribute_scope();
    let wanted = attributes::read_open(old.as_fd(), scope);
    wanted.map_or(true, |wanted| !attributes::are_open(new.as_fd(), &wanted, scope))
}

/// True on an overlay: directories of its lower layer change when something in them is linked.
pub(super) fn is_overlay(directory: &Directory) -> bool {
    lies_on(directory, &[OVERLAY])
}

fn failed(path: &[u8], error: io::Error) -> Error {
    let which =
        if path.is_empty() { "the destination".into() } else { format!("{:?}", OsStr::from_bytes(path)) };
    Error::file(format!("hold {which} against the new tree"), error)
}
