//! Deleting what was noted, entry by entry: what is being emptied is a stack of open directories, so that a directory of any size is
//! deleted in steps between which others get a turn.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::limits::{TREE_CONTESTED_MAX, TREE_DEPTH_MAX};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Statx};
use rustix::io::Errno;

use super::super::backup::Away;
use super::super::contested::key;
use super::super::directory::Directory;
use super::super::filter::Asked;
use super::super::listing::Listing;
use super::super::overwrite::awaited_in;
use super::super::place::times_of;
use super::super::settings::{Settings, mtime_of};
use super::super::sync::{DeleteOptions, Done, SyncOptions};
use super::super::temporary::{Temporary, is_temporary};
use super::super::write::file_type;
use super::notes::{Note, Notes, Reader, Stamp, made_at};
use super::protected::{By, Protected};
use super::ruling::Ruling;
use super::steps::{
    Widened, is_in_use, is_switching, narrow, open, open_widened, remove_made, take_place, widen,
    widen_by_path,
};
use super::{Failed, Identity, Since, device, identity, is_since, push_name, time};

/// Entries that are looked at before others get a turn.
const STEP: usize = 64;

/// What a deletion goes by.
pub(in super::super) struct Orders<'a> {
    pub(super) settings: &'a Settings,
    pub(super) base: &'a Directory,
    pub(super) options: DeleteOptions,
    /// Nothing is deleted, only said.
    pub(super) is_dry: bool,
    /// It is ours: nothing is said of it.
    pub(super) is_unsaid: bool,
    pub(super) stop: Option<&'a AtomicBool>,
}

impl<'a> Orders<'a> {
    /// As `settings` have it; `None` if nothing is to be deleted.
    pub(in super::super) fn of(
        settings: &'a Settings,
        base: &'a Directory,
        is_dry: bool,
        stop: Option<&'a AtomicBool>,
    ) -> Option<Orders<'a>> {
        let options = settings.sync().and_then(|sync| sync.delete)?;
        Some(Orders { settings, base, options, is_dry, is_unsaid: false, stop })
    }

    /// For what this program made, or put under a name of its own: all of it goes, and nobody hears of it.
    pub(in super::super) fn unsaid(
        settings: &'a Settings,
        base: &'a Directory,
        stop: Option<&'a AtomicBool>,
    ) -> Orders<'a> {
        let options = DeleteOptions { excluded: true, max: None };
        Orders { settings, base, options, is_dry: false, is_unsaid: true, stop }
    }

    /// True if directories may have files of rules.
    fn reads_rules(&self) -> bool {
        self.settings.sync().is_some_and(|sync| sync.rules.reads_files())
    }

    /// True for the name of such a file.
    fn is_of_rules(&self, name: &[u8]) -> bool {
        let merges = self.settings.sync().map(|sync| sync.rules.merges());
        merges.is_some_and(|merges| merges.iter().any(|merge| merge.name() == name))
    }

    /// Deletes some of `doomed`, which is gone once all is: false then.
    pub(in super::super) fn carry_out(
        &self,
        doomed: &mut Option<Doomed>,
        failed: &mut Vec<Failed>,
    ) -> Result<bool> {
        let Some(left) = doomed else { return Ok(false) };
        let goes_on = left.step(self, failed)?;
        if !goes_on {
            *doomed = None;
            failed.extend(self.settings.spared_error());
        }
        Ok(goes_on)
    }
}

/// What is to be deleted, in the order in which it was found.
#[derive(Debug)]
pub(in super::super) struct Doomed {
    notes: Reader,
    /// Of several sources: what one of them has, and what was looked at.
    told: Option<HashSet<[u8; 16]>>,
    /// When the run began: what was made later is not deleted.
    begun: Since,
    /// The directory that the notes at hand are of, and what is being emptied in it.
    directory: Option<Holding>,
    emptied: Vec<Emptied>,
    /// Of the innermost of these.
    path: Vec<u8>,
    /// What the rules protect.
    protected: RefCell<Protected>,
    /// Files of rules that the source has not.
    ruling: Ruling,
    /// The directory that goes was renamed, so that its own change says nothing of what came into it: if this is not its time, something did.
    renamed: Option<(i64, u32)>,
    /// Files that had further names when this run removed one, which changed them.
    unlinked: HashSet<Identity>,
    /// What waits in this directory for files there.
    awaited: RefCell<Option<(Identity, HashSet<Temporary>)>>,
}

/// Of how many such files is known: the further names of others stay, and are told, where somebody changed their directory meanwhile.
const UNLINKED_MAX: usize = 65_536;

/// A directory in which something is deleted; its bits and its time are what they were when that is over.
#[derive(Debug)]
struct Holding {
    directory: Directory,
    found: Statx,
    is_widened: bool,
    keeps_time: bool,
    /// What had to be widened to come to it.
    _way: Widened,
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.is_widened {
            narrow(&self.directory, &self.found);
        }
        if self.keeps_time {
            let _ = rustix::fs::futimens(self.directory.as_fd(), &times_of(mtime_of(&self.found)));
        }
    }
}

/// A directory of which everything is being deleted.
#[derive(Debug)]
struct Emptied {
    directory: Directory,
    found: Statx,
    listing: Listing,
    next: usize,
    name: Vec<u8>,
    is_widened: bool,
    /// Something was put into it or taken out of it since the run began.
    is_recent: bool,
    /// Something of it stays, and would without a limit, too.
    is_kept: bool,
    /// Something of it stays because no more may be deleted.
    is_spared: bool,
    /// Files of rules in it, as many as there are names of such: they come last.
    rules: Vec<Vec<u8>>,
    /// Names of our own, which come after those.
    ours: Vec<Vec<u8>>,
    /// Something in it, or below, is protected by rules of files.
    protects: bool,
    /// It makes way for what was made under this name; in a dry run nothing was.
    way: Option<Option<Temporary>>,
}

impl Drop for Emptied {
    fn drop(&mut self) {
        if self.is_widened {
            narrow(&self.directory, &self.found);
        }
    }
}

impl Doomed {
    /// `fills_base` says whether entries of a source went into the destination itself.
    pub(super) fn new(
        notes: Reader,
        told: Option<HashSet<[u8; 16]>>,
        begun: Since,
        fills_base: bool,
    ) -> Doomed {
        let protected = RefCell::new(Protected::new(fills_base));
        Doomed {
            notes,
            told,
            begun,
            directory: None,
            emptied: Vec::new(),
            path: Vec::new(),
            protected,
            ruling: Ruling::default(),
            renamed: None,
            unlinked: HashSet::new(),
            awaited: RefCell::default(),
        }
    }

    /// Of the directory `name` in `parent` alone, as long as it is this: it was renamed to that. What came into it after `since` stays, if it had the time `mtime` then.
    pub(in super::super) fn of_one(
        parent: &Directory,
        name: &[u8],
        stamp: Stamp,
        since: (i64, u32),
        mtime: (i64, u32),
    ) -> Result<Doomed> {
        let found = parent.stat_self().map_err(|error| Error::file("look at where it is", error))?;
        let mut notes = Notes::default();
        notes.directory(b"", identity(&found));
        notes.name(name, stamp);
        let since = Since::by_own_clock(since);
        Ok(Doomed { renamed: Some(mtime), ..Doomed::new(notes.read(), None, since, false) })
    }

    /// Looks at so many entries, and deletes what is to be; false once all are done. `Interrupted` soon after the stop.
    fn step(&mut self, orders: &Orders<'_>, failed: &mut Vec<Failed>) -> Result<bool> {
        for _ in 0..STEP {
            if orders.stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
            }
            if let Some(emptied) = self.emptied.last_mut() {
                match emptied.listing.get(emptied.next).map(<[u8]>::to_vec) {
                    Some(name) => {
                        emptied.next += 1;
                        if is_temporary(&name) {
                            emptied.ours.push(name);
                        } else {
                            self.visit(orders, name, Sort::Inner, failed);
                        }
                    }
                    None => {
                        let rules = emptied.rules.pop().map(|name| (name, Sort::Rules));
                        match rules.or_else(|| emptied.ours.pop().map(|name| (name, Sort::Inner))) {
                            Some((name, sort)) => self.visit(orders, name, sort, failed),
                            None => self.leave(orders, failed),
                        }
                    }
                }
                continue;
            }
            match self.notes.next()? {
                None => match self.ruling.end(orders.base)? {
                    Some(notes) => self.notes = notes,
                    None => {
                        self.directory = None;
                        return Ok(false);
                    }
                },
                Some(Note::Directory(wanted, path)) => self.enter(orders, wanted, path, failed)?,
                Some(Note::Name(name, stamp)) => self.candidate(orders, name, stamp, failed),
                Some(Note::Way(name, stamp, made)) if self.directory.is_some() => {
                    self.visit(orders, name, Sort::Way(stamp, made), failed);
                }
                Some(Note::Way(name, ..)) => self.no_way(&name, failed),
                Some(Note::KeepRules(count)) => self.protected.get_mut().keep_before(count),
                Some(Note::Rules(index, path_len, text)) => {
                    if let Some(sync) = orders.settings.sync() {
                        self.protected.get_mut().add_before(&sync.rules, index, path_len, &text);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Undoes what waits for a deletion, which does not come.
    pub(in super::super) fn abandon(
        mut self,
        settings: &Settings,
        base: &Directory,
        failed: &mut Vec<Failed>,
    ) -> Result<()> {
        for emptied in std::mem::take(&mut self.emptied) {
            if let (Some(Some(made)), Some(holding)) = (emptied.way, &self.directory) {
                remove_made(settings, &holding.directory, &made);
            }
        }
        while let Some(note) = self.notes.next()? {
            match note {
                Note::Directory(wanted, path) => {
                    let opened = open(base, &path, wanted).ok();
                    self.directory = opened.map(|(directory, found)| Holding {
                        directory,
                        found,
                        is_widened: false,
                        keeps_time: false,
                        _way: Widened::default(),
                    });
                    self.path = path;
                }
                Note::Way(name, _, made) => {
                    if let (Some(made), Some(holding)) = (made, &mut self.directory) {
                        holding.is_widened |= widen(settings, &holding.directory, &holding.found);
                        holding.keeps_time = settings.keeps_time_of(FileType::Directory);
                        remove_made(settings, &holding.directory, &made);
                    }
                    self.no_way(&name, failed);
                }
                Note::Name(..) | Note::KeepRules(_) | Note::Rules(..) => {}
            }
        }
        Ok(())
    }

    /// The entry at hand stays as it is, and that is told; what was made for its place goes.
    fn give_up_way(
        &self,
        settings: &Settings,
        made: Option<&Temporary>,
        error: Error,
        failed: &mut Vec<Failed>,
    ) {
        if let (Some(made), Some(parent)) = (made, self.innermost()) {
            remove_made(settings, parent, made);
        }
        failed.push((self.path.clone(), error));
    }

    /// What was to come in the place of a directory does not.
    fn no_way(&mut self, name: &[u8], failed: &mut Vec<Failed>) {
        let mut path = self.path.clone();
        push_name(&mut path, name);
        failed.push((path, not_empty()));
    }

    /// The notes that follow are of this directory.
    fn enter(
        &mut self,
        orders: &Orders<'_>,
        wanted: (u64, u64),
        path: Vec<u8>,
        failed: &mut Vec<Failed>,
    ) -> Result<()> {
        self.directory = None;
        self.path = path;
        if orders.reads_rules() {
            self.ruling.enter(orders.base, &self.path, wanted)?;
        }
        let opened = match open(orders.base, &self.path, wanted) {
            Err(error) if orders.is_unsaid && error.io_kind() == Some(io::ErrorKind::PermissionDenied) => {
                open_widened(orders.settings, orders.base, &self.path, wanted)
            }
            opened => opened.map(|(directory, found)| (directory, found, Widened::default())),
        };
        let opened = opened.and_then(|(directory, found, way)| {
            // One that was removed and made again may have the same number. Of several sources one may have made it.
            let is_another =
                self.told.is_none() && made_at(&found).is_some_and(|made| is_since(made, self.begun));
            if is_another { Err(replaced()) } else { Ok((directory, found, way)) }
        });
        match opened {
            Ok((directory, found, way)) => {
                let is_widened = !orders.is_dry && widen(orders.settings, &directory, &found);
                // Of what is beside a destination the time is its own.
                let keeps_time = orders.settings.keeps_time_of(FileType::Directory)
                    && !orders.is_dry
                    && self.renamed.is_none();
                self.directory = Some(Holding { directory, found, is_widened, keeps_time, _way: way });
            }
            // Somebody else deleted it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => failed.push((self.path.clone(), error)),
        }
        Ok(())
    }

    /// A name that the source has not.
    fn candidate(&mut self, orders: &Orders<'_>, name: Vec<u8>, stamp: Stamp, failed: &mut Vec<Failed>) {
        if self.directory.is_none() {
            return;
        }
        let mut path = self.path.clone();
        push_name(&mut path, &name);
        // With files of rules there is one source, and nothing is told twice.
        if let Some(told) = &mut self.told {
            let key = key(&path);
            if told.contains(&key) {
                return;
            }
            // Each source that lacks it noted it: once is enough.
            if told.len() < TREE_CONTESTED_MAX {
                told.insert(key);
            }
        }
        self.visit(orders, name, Sort::Candidate(stamp), failed);
    }

    /// The directory that is at hand.
    fn innermost(&self) -> Option<&Directory> {
        let inner = self.emptied.last().map(|emptied| &emptied.directory);
        inner.or(self.directory.as_ref().map(|holding| &holding.directory))
    }

    /// Something of the directory that is being emptied stays.
    fn keep(&mut self) {
        if let Some(emptied) = self.emptied.last_mut() {
            emptied.is_kept = true;
        }
    }

    /// One more entry stays because no more may be deleted, and so does the directory that it is in.
    fn spare(&mut self, settings: &Settings) {
        settings.spared.set(settings.spared.get() + 1);
        if let Some(emptied) = self.emptied.last_mut() {
            emptied.is_spared = true;
        }
    }

    /// Deletes `name` in the directory at hand, or begins to empty it, unless it is to stay.
    fn visit(&mut self, orders: &Orders<'_>, name: Vec<u8>, sort: Sort, failed: &mut Vec<Failed>) {
        let len = self.path.len();
        push_name(&mut self.path, &name);
        match self.look(orders, &name, sort) {
            Ok(Next::Gone) => {}
            Ok(Next::Stays) => {
                if let Sort::Way(_, made) = sort {
                    self.give_up_way(orders.settings, made.as_ref(), not_empty(), failed);
                }
                self.keep();
            }
            Ok(Next::Protected) => {
                self.ruling.protects();
                self.emptied.iter_mut().for_each(|emptied| emptied.protects = true);
                self.keep();
            }
            Ok(Next::Delete(..)) if orders.is_of_rules(&name) && self.wait(&name, sort) => {}
            Ok(Next::Delete(file, names)) => {
                self.delete(orders, &name, false, failed);
                if names <= 1 {
                    // Its number is free for another one.
                    self.unlinked.remove(&file);
                } else if self.unlinked.len() < UNLINKED_MAX {
                    self.unlinked.insert(file);
                }
            }
            Ok(Next::Empty(mut emptied)) => {
                emptied.name = name;
                self.emptied.push(*emptied);
                return;
            }
            Err(error) => {
                let made = if let Sort::Way(_, made) = sort { made } else { None };
                self.give_up_way(orders.settings, made.as_ref(), error, failed);
                self.keep();
            }
        }
        self.path.truncate(len);
    }

    /// A file of rules that nothing else protects waits until all that it may protect was looked at; false if that was.
    fn wait(&mut self, name: &[u8], sort: Sort) -> bool {
        match (sort, self.emptied.last_mut()) {
            (Sort::Candidate(stamp), _) => self.ruling.wait(name, stamp),
            (Sort::Inner, Some(emptied)) => {
                emptied.rules.push(name.to_vec());
                true
            }
            _ => false,
        }
    }

    /// What is to be done with a name.
    fn look(&self, orders: &Orders<'_>, name: &[u8], sort: Sort) -> Result<Next> {
        let failed = |error| Error::file("look at it to delete it", error);
        let way = if let Sort::Way(_, made) = sort { Some(made) } else { None };
        let Some(parent) = self.innermost() else { return Ok(Next::Gone) };
        let found = match parent.stat_for(name, Stamp::FACTS) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound && way.is_none() => return Ok(Next::Gone),
            Err(error) => return Err(failed(error)),
        };
        let is_directory = file_type(&found) == FileType::Directory;
        let sync = orders.settings.sync();
        if matches!(sort, Sort::Rules) && self.emptied.last().is_some_and(|emptied| emptied.protects) {
            return Ok(Next::Stays);
        }
        // Of files of rules that come again that was asked.
        let is_asked = way.is_some() || matches!(sort, Sort::Rules) || self.ruling.is_last();
        if let Some(sync) = sync.filter(|_| !is_asked) {
            let asked = Asked::Deleting {
                goes_with_directory: matches!(sort, Sort::Inner),
                deletes_left_out: orders.options.excluded,
            };
            let mut protected = self.protected.borrow_mut();
            match protected.by(&sync.rules, orders.base, asked, &self.path, is_directory)? {
                Some(By::Files) => return Ok(Next::Protected),
                Some(By::Command) => return Ok(Next::Stays),
                None => {}
            }
        }
        // Of several sources the later ones find what the first one's backups made.
        if is_directory && orders.settings.is_backup_directory(&found) {
            return Ok(Next::Stays);
        }
        let is_another = match sort {
            Sort::Candidate(stamp) | Sort::Way(stamp, _) => Stamp::of(&found) != stamp,
            // Of what is inside nothing was noted; where this run put a backup, that has just been renamed.
            Sort::Inner | Sort::Rules => {
                orders.settings.is_backup_name(name) && is_since(time(&found.stx_ctime), self.begun)
            }
        };
        if is_another && orders.settings.is_backup_name(name) {
            // What this run kept took the place of an older backup.
            return Ok(Next::Stays);
        }
        if is_another || (way.is_some() && !is_directory) || self.is_later(&found) {
            let what = "it was made or replaced after this run began: it stays";
            return Err(Error::new(ErrorKind::Changed, what));
        }
        if !is_directory {
            return if is_in_use(parent, name, &found) {
                Err(Error::new(ErrorKind::Refused, "another run is writing it"))
            } else if self.is_awaited(orders, parent, name).map_err(failed)? {
                Ok(Next::Stays)
            } else {
                Ok(Next::Delete(identity(&found), found.stx_nlink))
            };
        }
        // The one that goes by itself this run holds.
        let is_own = self.renamed.is_some() && self.emptied.is_empty();
        if !is_own && is_switching(parent, name) {
            return Err(Error::new(ErrorKind::Refused, "another run is writing it"));
        }
        let is_source = |sync: &SyncOptions| sync.sources.contains(&(device(&found), found.stx_ino));
        if sync.is_some_and(is_source) {
            let what = "it is a source of this run, which lies in the destination";
            return Err(Error::new(ErrorKind::Refused, what).advise("name another destination"));
        }
        self.begin(orders, parent, name, found, way).map(|emptied| emptied.map_or(Next::Gone, Next::Empty))
    }

    /// True if a file there is neither old nor new until a run with `--inplace` gives it what waits under this name.
    fn is_awaited(&self, orders: &Orders<'_>, parent: &Directory, name: &[u8]) -> io::Result<bool> {
        let Ok(waiting) = Temporary::try_from(name) else { return Ok(false) };
        if orders.is_unsaid || !is_temporary(name) {
            return Ok(false);
        }
        let at = identity(&parent.stat_self()?);
        let mut awaited = self.awaited.borrow_mut();
        if awaited.as_ref().is_none_or(|(known, _)| *known != at) {
            let goes_on = || !orders.stop.is_some_and(|stop| stop.load(Ordering::Acquire));
            *awaited = Some((at, awaited_in(parent, &goes_on)?));
        }
        Ok(awaited.as_ref().is_some_and(|(_, names)| names.contains(&waiting)))
    }

    /// True if it came after the run began, as far as times tell.
    fn is_later(&self, found: &Statx) -> bool {
        let may_have_come = self.emptied.last().is_some_and(|emptied| emptied.is_recent)
            && !self.unlinked.contains(&identity(found));
        has_come(found, may_have_come, self.begun)
    }

    /// Opens the directory `name`, all of which is to be deleted; `None` if it is gone.
    fn begin(
        &self,
        orders: &Orders<'_>,
        parent: &Directory,
        name: &[u8],
        found: Statx,
        way: Option<Option<Temporary>>,
    ) -> Result<Option<Box<Emptied>>> {
        if self.emptied.len() >= TREE_DEPTH_MAX {
            let what = format!("what is in it lies more than {TREE_DEPTH_MAX} directories deep");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let failed = |error| Error::file("list it to delete it", error);
        let mut is_widened = false;
        let opened = parent.child_here(name).or_else(|error| {
            // Its own bits may keep even its owner from reading.
            is_widened = error.kind() == io::ErrorKind::PermissionDenied
                && !orders.is_dry
                && widen_by_path(parent, name, &found);
            if is_widened { parent.child_here(name) } else { Err(error) }
        });
        let directory = match opened {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound && way.is_none() => return Ok(None),
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                let what = "a file system is mounted there, which is not deleted";
                return Err(Error::new(ErrorKind::Refused, what).advise("unmount it first, or exclude it"));
            }
            Err(error) => return Err(failed(error)),
        };
        // A name may lead elsewhere by now: what is deleted is what was looked at.
        let now = directory.stat_self().map_err(failed)?;
        if identity(&now) != identity(&found) {
            return Err(replaced());
        }
        let mut emptied = Box::new(Emptied {
            directory,
            found,
            listing: Listing::default(),
            next: 0,
            name: Vec::new(),
            is_widened,
            is_recent: false,
            is_kept: false,
            is_spared: false,
            rules: Vec::new(),
            ours: Vec::new(),
            protects: false,
            way,
        });
        emptied.listing = Listing::read(&emptied.directory, &mut Vec::new(), &|| true).map_err(failed)?;
        // After that, so that whatever is listed and came since shows; but what was widened this run itself has changed.
        let now = if is_widened { found } else { emptied.directory.stat_self().map_err(failed)? };
        let renamed = self.renamed.filter(|_| self.emptied.is_empty());
        emptied.is_recent = has_changed(&now, renamed, self.begun);
        emptied.is_widened |= !orders.is_dry && widen(orders.settings, &emptied.directory, &emptied.found);
        Ok(Some(emptied))
    }

    /// True if what was emptied, in the directory at hand, still bears its name.
    fn is_still(&self, emptied: &Emptied) -> bool {
        let named = self.innermost().and_then(|parent| parent.stat(&emptied.name).ok());
        named.is_some_and(|named| identity(&named) == identity(&emptied.found))
    }

    /// Everything in the innermost directory was looked at.
    fn leave(&mut self, orders: &Orders<'_>, failed: &mut Vec<Failed>) {
        let Some(emptied) = self.emptied.pop() else { return };
        let end = self.path.len().saturating_sub(emptied.name.len());
        // Without the slash before the name.
        let parent_end = end.saturating_sub(1);
        match emptied.way {
            None if emptied.is_kept => self.keep(),
            None if emptied.is_spared => self.spare(orders.settings),
            None if self.renamed.is_some() && self.emptied.is_empty() && !self.is_still(&emptied) => {
                failed.push((self.path.clone(), replaced()));
            }
            None => self.delete(orders, &emptied.name, true, failed),
            Some(made) => {
                let parent = self.directory.as_ref().map(|holding| &holding.directory);
                let result = match made.zip(parent) {
                    _ if emptied.is_kept || emptied.is_spared => Err(None),
                    Some((made, parent)) => take_place(parent, &emptied.name, &made),
                    None => Ok(()),
                };
                if let Err(error) = result {
                    if let Some((made, parent)) = made.zip(parent) {
                        remove_made(orders.settings, parent, &made);
                    }
                    failed.push((self.path.clone(), error.unwrap_or_else(not_empty)));
                }
            }
        }
        self.path.truncate(parent_end);
    }

    /// Removes one entry of the directory at hand, or keeps it elsewhere; false if it is gone already.
    fn remove(&self, orders: &Orders<'_>, name: &[u8], is_directory: bool) -> Result<bool> {
        let Some(parent) = self.innermost().filter(|_| !orders.is_dry) else { return Ok(true) };
        if !is_directory
            && orders.settings.back_up(parent, name, &|| self.path.clone(), Away::Deleted, &|_| Ok(()))?
        {
            return Ok(true);
        }
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(parent, name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::file("delete it", error.into())),
        }
    }

    /// Deletes one entry of the directory at hand, whose path is at hand, too.
    fn delete(&mut self, orders: &Orders<'_>, name: &[u8], is_directory: bool, failed: &mut Vec<Failed>) {
        let settings = orders.settings;
        let stays_beside = !is_directory && settings.keeps_beside(name);
        if orders.options.max.is_some_and(|max| settings.deleted.get() >= max) {
            if stays_beside {
                // Its directory would not be empty either if it went.
                self.keep();
            }
            return self.spare(settings);
        }
        match self.remove(orders, name, is_directory) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                failed.push((self.path.clone(), error));
                return self.keep();
            }
        }
        if stays_beside {
            // Its directory is not empty.
            self.keep();
        }
        if orders.is_unsaid {
            return;
        }
        settings.deleted.set(settings.deleted.get() + 1);
        let mut path = self.path.clone();
        if is_directory {
            path.push(b'/');
        }
        settings.did(Some(Done { letters: None, path, link: None }));
    }
}

/// True if an entry came after `since`, as far as times tell, into a directory that has changed since, or has not.
pub(in super::super) fn has_come(found: &Statx, has_changed: bool, since: Since) -> bool {
    let is_made = made_at(found).is_some_and(|made| is_since(made, since));
    // Nothing came into a directory that did not change; where something did, what was moved there changed, too.
    is_made || (has_changed && is_since(time(&found.stx_ctime), since))
}

/// True if something was put into a directory, or taken out of it, since then. Of one that was `renamed` its own change says nothing, but the time that it had then.
pub(in super::super) fn has_changed(found: &Statx, renamed: Option<(i64, u32)>, since: Since) -> bool {
    match renamed {
        Some(mtime) => mtime_of(found) != mtime,
        None => is_since(time(&found.stx_ctime), since),
    }
}

/// Why a name is looked at.
#[derive(Clone, Copy)]
enum Sort {
    /// The source has it not, and it was this.
    Candidate(Stamp),
    /// It is in a directory of which everything is deleted.
    Inner,
    /// So is this file of rules, the others having been looked at.
    Rules,
    /// It was this, and makes way.
    Way(Stamp, Option<Temporary>),
}

/// What is to be done with a name.
enum Next {
    Gone,
    Stays,
    /// The same, because of rules in a file.
    Protected,
    /// It is no directory; which file, and how many names it has.
    Delete(Identity, u32),
    Empty(Box<Emptied>),
}

pub(super) fn not_empty() -> Error {
    let what = "a directory stands there that is not empty, and not all in it was deleted";
    Error::new(ErrorKind::Refused, what)
}

pub(super) fn replaced() -> Error {
    Error::new(ErrorKind::Changed, "it was replaced meanwhile: nothing is deleted in it")
}
