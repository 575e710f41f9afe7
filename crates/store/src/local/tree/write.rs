//! Writing trees: the stream of entries becomes directories, links and files, each below the directory it belongs to.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dray_core::limits::{TREE_DEPTH_MAX, TREE_HELD_BYTES_MAX};
use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, Statx};
use rustix::io::Errno;

use super::attributes;
use super::backup::Away;
use super::basis::{Bases, Basis};
use super::contested::Contested;
use super::delete::{self, Candidates, Doomed, Orders};
use super::directory::{Directory, raise_open_files, stat_fd_for};
use super::fake::target_of;
use super::landing::Landing;
use super::links::LinkTable;
use super::opened::{Bits, Listed, Mark, OpenDirectory, Opening, Way};
use super::others::OthersToFind;
use super::overwrite::{FACTS, replacing};
use super::place::{FileTarget, Identity, There, identity_of, taken};
use super::settings::{Changes, Settings, WriteOptions};
use super::special;
use super::stage::Stage;
use super::sync::{Done, How, remove_file};
use super::unfinished::Marks;

/// Roots that are looked through for files under other names.
const OLD_ROOTS_MAX: usize = 64;

/// How the error of a destination begins that could not be made.
const MAKE_DESTINATION: &str = "make the destination";
/// How that of any other directory does.
const MAKE_DIRECTORY: &str = "make the directory";
/// How that of a file in the place of the destination begins.
pub(super) const IS_FILE: &str = "the destination is a file";
/// How that of something else there does.
pub(super) const NO_DESTINATION: &str = "the destination is no directory";
/// How that of something else in the place of another directory begins.
const NO_DIRECTORY: &str = "what is there is no directory";

/// Something else stands where a directory is to go: in the place of the destination, or of another one.
pub(super) fn no_directory(is_destination: bool) -> Error {
    let what = if is_destination { NO_DESTINATION } else { NO_DIRECTORY };
    Error::new(ErrorKind::Refused, format!("{what}, and links are not followed"))
        .advise("remove it, or name another destination")
}

/// Which directory the words of an error tell that a writer, here or elsewhere, could not make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmade {
    /// The one that everything goes into.
    Destination,
    /// That of an entry.
    Entry,
}

impl Unmade {
    /// Of these words; the version of who wrote them may be another.
    pub fn of(reason: &str) -> Option<Unmade> {
        let words = [
            (MAKE_DESTINATION, Unmade::Destination),
            (IS_FILE, Unmade::Destination),
            (NO_DESTINATION, Unmade::Destination),
            (MAKE_DIRECTORY, Unmade::Entry),
            (NO_DIRECTORY, Unmade::Entry),
        ];
        // That of the backups is told as "the directory of the backups".
        let is_it = |words: &str| reason.strip_prefix(words).is_some_and(|rest| !rest.starts_with(" of "));
        words.into_iter().find(|(words, _)| is_it(words)).map(|(_, unmade)| unmade)
    }
}

/// What became of an entry.
#[derive(Debug)]
pub enum Placed {
    /// It is in place.
    Done,
    /// It was in place before: nothing has to come.
    Unchanged,
    /// Its content is wanted, unless it has the hash.
    Wanted(Box<FileTarget>, Option<[u8; 32]>),
    /// It is another name of a file whose content may be on its way: to be linked when that has come.
    Link(Box<FileTarget>),
    /// It is left alone, and all that is below it.
    Passed,
}

/// What a copy could not keep.
#[derive(Debug)]
pub struct NotKept {
    /// Attributes, owners, bits and times that failed, with the reason, and on how many entries.
    pub attributes: BTreeMap<String, u64>,
    /// What this user cannot have here and nobody would expect, and on how many entries. That is no failure.
    pub left_out: BTreeMap<String, u64>,
    /// Directories that could not be finished: path below the destination and why.
    pub directories: Vec<(Vec<u8>, Error)>,
}

impl NotKept {
    /// With what could not be kept later.
    pub fn add(&mut self, later: NotKept) {
        let sum = |to: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>| {
            for (what, entries) in more {
                *to.entry(what).or_default() += entries;
            }
        };
        sum(&mut self.attributes, later.attributes);
        sum(&mut self.left_out, later.left_out);
        self.directories.extend(later.directories);
    }
}

/// Writes the trees of one copy. Entries come in the order of the stream.
#[derive(Debug)]
pub struct TreeWriter {
    pub(super) settings: Rc<Settings>,
    pub(super) landing: Landing,
    /// Of the root that came last.
    root_name: Option<Name>,
    pub(super) stack: Vec<Rc<OpenDirectory>>,
    /// Bytes of the ways to directories that something is remembered of.
    pub(super) way_bytes: Rc<Cell<usize>>,
    /// Levels below one that could not be made: their entries are passed over.
    skipping: usize,
    pub(super) links: LinkTable,
    contested: Contested,
    /// Names in the directory that roots go into, as it was before the first of them, or after one without a name; and of those that came since.
    base_listed: Option<Option<Rc<Listed>>>,
    /// Roots of trees that were there before.
    old_roots: Vec<Directory>,
    /// Roots that carry the mark of a tree that was cut off, and where the last one landed.
    pub(super) marks: Marks,
    /// Set once nobody waits for the copy any more.
    pub(super) stop: Option<Arc<AtomicBool>>,
    open: Rc<Cell<usize>>,
    open_max: usize,
    /// Other directories that may have what is to come.
    pub(super) bases: Bases,
    /// What is to be deleted: while entries come, and once all have come.
    candidates: Option<Candidates>,
    doomed: Option<Doomed>,
    /// The tree is made beside the destination.
    pub(super) stage: Option<Stage>,
}

impl TreeWriter {
    /// Writes to `landing`.
    pub fn new(landing: Landing, options: WriteOptions) -> TreeWriter {
        let contested = Contested::new(&landing.names);
        let open_max = raise_open_files() / 2;
        let mut settings = Settings::new(options);
        (settings.roots_meet, settings.held_max) = (contested.is_possible(), open_max / 2);
        TreeWriter {
            settings: Rc::new(settings),
            contested,
            landing,
            root_name: None,
            base_listed: None,
            old_roots: Vec::new(),
            marks: Marks::default(),
            stop: None,
            stack: Vec::new(),
            way_bytes: Rc::new(Cell::new(0)),
            skipping: 0,
            links: LinkTable::default(),
            open: Rc::new(Cell::new(0)),
            open_max,
            bases: Bases::default(),
            candidates: None,
            doomed: None,
            stage: None,
        }
    }

    /// The same with `changes`; to be called before the first entry.
    pub fn with_changes(mut self, changes: Changes) -> TreeWriter {
        if let Some(settings) = Rc::get_mut(&mut self.settings) {
            settings.change(changes);
        }
        if self.settings.removes_sources() {
            self.contested.be_strict();
        }
        if self.settings.sync().is_some_and(|sync| sync.basis.is_some()) {
            // What waits may hold a directory of another place open, too.
            self.open_max /= 3;
        }
        if self.settings.sync().is_some_and(|sync| sync.delete.is_some()) {
            let has_several = self.landing.names.len() > 1;
            self.candidates = Some(Candidates::new(self.contested.is_possible(), has_several));
        }
        self
    }

    /// The same; where the landing is switched as a whole, the tree is made beside it from here on, and goes on as an earlier run left it. With `fsync` it is
    /// on disk before it is switched. To be called before the first entry, and after [`TreeWriter::with_changes`].
    pub fn staged(mut self, fsync: bool) -> Result<TreeWriter> {
        let Some(whole) = self.landing.whole.take() else { return Ok(self) };
        let stage = Stage::open(whole, &self.settings, fsync)?;
        let failed = |error| Error::file("open the directory beside the destination", error);
        (self.landing.base, self.landing.make) = (stage.directory().map_err(failed)?, None);
        if let Some(settings) = Rc::get_mut(&mut self.settings) {
            settings.link_unchanged();
        }
        self.candidates.iter_mut().for_each(Candidates::trust_clock);
        // What waits may hold a directory of the old tree open, too.
        self.open_max /= 2;
        self.stage = Some(stage);
        Ok(self)
    }

    /// What is said where a destination is not switched as a whole; nothing where it is not to be.
    pub fn unswitched(&self) -> Option<String> {
        self.stage.as_ref().map(Stage::outcome)
    }

    /// The error of a run that ends with it; with what became of a destination that is to be switched as a whole.
    pub fn last_error(&mut self, error: Error) -> Error {
        let error = self.with_left(error);
        self.with_outcome(error)
    }

    /// Says what becomes of a tree beside the destination.
    pub(super) fn with_outcome(&self, error: Error) -> Error {
        let outcome = self.outcome().filter(|outcome| !error.what().contains(&outcome[..]));
        outcome.into_iter().fold(error, Error::context)
    }

    /// What becomes of a tree beside the destination, if there is one.
    pub fn outcome(&self) -> Option<String> {
        self.stage.as_ref().map(Stage::outcome)
    }

    /// What may lie in the destination under another name, from `from_bytes` on: nothing if no directory that entries went into so far
    /// was there before, or times are not kept.
    pub fn others_to_find(&self, from_bytes: u64) -> Option<OthersToFind> {
        if !self.settings.times || self.old_roots.is_empty() {
            return None;
        }
        let roots = self.old_roots.iter().filter_map(|root| root.duplicate().ok()).collect();
        Some(OthersToFind::new(roots, from_bytes))
    }

    /// True if there may be something.
    pub fn may_have_others(&self) -> bool {
        self.settings.times && !self.old_roots.is_empty()
    }

    /// True if a file of the right size may be right whatever its time is, and is to stay then.
    pub fn compares_by_hash(&self) -> bool {
        self.settings.keeps_by_hash()
    }

    /// True if what was just placed waits for a directory to make way.
    pub fn has_waiting(&self) -> bool {
        !self.settings.ways.borrow().is_empty()
    }

    /// Files that had come, and for which no directory made way in the end, since this was last asked.
    pub fn take_unplaced(&self) -> u64 {
        self.settings.unplaced.take()
    }

    /// How many entries so far lack something that was to be kept of them.
    pub fn troubles(&self) -> u64 {
        self.settings.told.borrow().failed.values().sum()
    }

    /// Files of `size_bytes` and more are wanted without being hashed here: the caller compares them.
    pub fn compare_below(&mut self, size_bytes: u64) {
        self.settings.compares_below.set(size_bytes);
    }

    /// Once `stop` is set, what takes long ends with `Interrupted`.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.settings.stop.replace(Some(stop.clone()));
        self.stop = Some(stop);
    }

    /// The directory that everything goes into.
    pub fn base(&self) -> &Directory {
        &self.landing.base
    }

    /// True if so much waits for contents, directories or bytes of memory, that the next entries had better wait too.
    pub fn is_full(&self) -> bool {
        self.open.get() > self.open_max.saturating_sub(self.stack.len())
            || self.settings.held.get() > TREE_HELD_BYTES_MAX
    }

    /// How many files may be open for what the writer does not do itself: a part of those that it leaves to others.
    pub fn files_beside(&self) -> usize {
        self.open_max / 16
    }

    /// The sender's name for an owner.
    pub fn add_owner(&mut self, is_group: bool, id: u32, name: &[u8]) {
        self.settings.add_owner(is_group, id, name);
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        self.settings.check_root(entry)?;
        self.contested.begin(index);
        let goes_on = self.landing.go_on(entry);
        let mut placed = self.place_root(index, &self.settings.clone().changed(entry));
        if matches!(placed, Ok(Placed::Done))
            && entry.is_directory()
            && let Err(error) = self.note_root(goes_on)
        {
            self.stack.clear();
            placed = Err(error);
        }
        self.note_ways();
        self.skipping = usize::from(!matches!(placed, Ok(Placed::Done)) && entry.is_directory());
        placed
    }

    /// What the sender did not look into is the directory begun last.
    pub fn unlisted(&mut self) {
        self.stage.iter_mut().for_each(Stage::unlisted);
        if let Some(candidates) = self.candidates.as_mut().filter(|_| self.skipping == 0) {
            candidates.unlisted();
        }
    }

    /// True if something may have to be deleted at the end.
    pub fn will_delete(&self) -> bool {
        self.candidates.is_some()
    }

    /// Nothing is deleted, because not everything was listed, or not everything was done; false if nothing was to be. What waits for a
    /// directory to make way fails.
    pub fn delete_nothing(&mut self, failed: &mut Vec<(Vec<u8>, Error)>) -> bool {
        self.note_ways();
        let Some(candidates) = self.candidates.take() else { return false };
        candidates.abandon(&self.settings, &self.landing.base, failed);
        true
    }

    /// Takes note of what was made for places that directories stand in.
    fn note_ways(&mut self) {
        let ways = self.settings.ways.take();
        let Some(candidates) = self.candidates.as_mut().filter(|_| !ways.is_empty()) else { return };
        for way in ways {
            if !candidates.make_way(&way) {
                let (path, error) = way.give_up(&self.settings, &self.landing.base);
                self.settings.fail(path, error);
            }
        }
        candidates.spill(&self.landing.base);
    }

    /// To be called once everything has come, and the sender has listed all: deletes some of what the source has not; what could not
    /// be deleted goes to `failed`. False once all is.
    pub fn delete_some(&mut self, failed: &mut Vec<(Vec<u8>, Error)>) -> Result<bool> {
        let deleted = self.delete_more(failed);
        deleted.map_err(|error| self.last_error(error))
    }

    fn delete_more(&mut self, failed: &mut Vec<(Vec<u8>, Error)>) -> Result<bool> {
        self.note_ways();
        if let Some(candidates) = self.candidates.take() {
            self.stack.clear();
            self.doomed = Some(candidates.doom(&self.settings, &self.landing.base, failed)?);
        }
        let Some(stage) = &mut self.stage else {
            let orders = Orders::of(&self.settings, &self.landing.base, false, self.stop.as_deref());
            return orders.map_or(Ok(false), |orders| orders.carry_out(&mut self.doomed, failed));
        };
        // What an earlier run brought and the source has not any more.
        let orders = Orders::unsaid(&self.settings, &self.landing.base, self.stop.as_deref());
        let before = failed.len();
        if orders.carry_out(&mut self.doomed, failed)? {
            stage.note(&failed[before..]);
            return Ok(true);
        }
        stage.note(&failed[before..]);
        stage.go_on(&self.settings, self.stop.as_deref(), failed)
    }

    /// What was done since this was last called, for who wants to hear of each entry.
    pub fn take_done(&mut self) -> VecDeque<Done> {
        self.landing.told(self.settings.done.take())
    }

    fn place_root(&mut self, index: usize, entry: &Entry) -> Result<Placed> {
        let failed = |error| Error::file("open the destination", error);
        let mut is_new = false;
        let into = self.landing.names.get(index).cloned().flatten();
        self.settings.require_attributes(&self.landing.base, into.as_ref().map(Name::as_bytes), true)?;
        if let Some(make) = self.landing.makes_directory(entry, &self.settings)? {
            let mode = Mode::from_raw_mode(0o777 & !self.settings.umask);
            match rustix::fs::mkdirat(&self.landing.base, make.as_bytes(), mode) {
                Ok(()) => is_new = true,
                Err(Errno::EXIST) => {}
                Err(error) => {
                    // There is nothing in it that could be deleted.
                    self.candidates = None;
                    return Err(Error::file(MAKE_DESTINATION, error.into()));
                }
            }
            self.landing.base = self.landing.base.child(make.as_bytes()).map_err(failed)?;
        } else if let Some(make) = self.landing.make.clone() {
            self.landing.rename(make);
        }
        self.landing.make = None;
        let name = self.landing.names.get(index).cloned().flatten();
        self.root_name.clone_from(&name);
        self.settings.backups_begin(&self.landing.base)?;
        if let Some(stage) = &mut self.stage {
            is_new = stage.begin_root(&self.settings, self.stop.as_deref())?;
            self.bases.begin_beside(stage.replaced().map_err(failed)?);
            // What was moved in it is found there.
            self.old_roots.extend(stage.replaced().map_err(failed)?);
        } else {
            self.bases.begin(&self.settings, &self.landing.base)?;
        }
        let found = self.landing.base.stat_self().map_err(failed)?;
        is_new &= found.stx_uid == self.settings.powers.uid;
        self.settings.remember_device((found.stx_dev_major, found.stx_dev_minor), &self.landing.base)?;
        self.settings.require_on_disk_from_above(&self.landing.base)?;
        if let Some(candidates) = &mut self.candidates {
            candidates.begin(name.as_ref());
        }
        if name.is_none() {
            // What comes with it comes into this very directory.
            self.base_listed = None;
        }
        match name {
            Some(name) => {
                // The directory that the user named is none of ours to finish.
                let directory = self.landing.base.duplicate().map_err(failed)?;
                let opening = Opening {
                    directory,
                    found: &found,
                    is_new: false,
                    way: None,
                    metadata: Metadata::default(),
                    bits: Bits::default(),
                    is_marked: false,
                    parent: None,
                    standing: None,
                };
                let base = OpenDirectory::new(&self.settings, opening, &self.open);
                match &self.base_listed {
                    Some(listed) => base.know(listed.clone()),
                    None => {
                        base.list_if_folding();
                        self.base_listed = Some(base.listed());
                    }
                }
                self.stack = vec![Rc::new(base)];
                let placed = self.place(&name, entry);
                if let (Ok(_), Some(Some(listed))) = (&placed, &self.base_listed) {
                    listed.add(&name);
                }
                // What it leads to is on the stack now, without the base, which stays for its files alone.
                self.stack.remove(0);
                placed
            }
            None if entry.is_directory() && self.settings.sync().is_some_and(|sync| sync.roots_stay) => {
                let directory = self.landing.base.duplicate().map_err(failed)?;
                let metadata = Metadata { mode: u32::from(found.stx_mode) & 0o7777, ..Metadata::default() };
                let entry = Entry { name: None, kind: entry.kind.clone(), metadata };
                self.push_directory(directory, None, is_new, None, &entry, &found);
                self.stack.last().into_iter().for_each(|root| root.stays());
                Ok(Placed::Done)
            }
            None if entry.is_directory() => {
                let directory = self.landing.base.duplicate().map_err(failed)?;
                let scope = self.settings.attribute_scope();
                let wanted = &entry.metadata.xattrs;
                let has = |sort| {
                    scope.of(sort).is_some_and(|scope| attributes::are_open(directory.as_fd(), wanted, scope))
                };
                let done = if is_new || self.stage.is_some() {
                    self.bases.describe_root(&self.settings, entry)
                } else {
                    let found = self.settings.seen_directory(&directory, &found);
                    self.settings.describe(entry, Some(&found), How::Stays, &has, &Vec::new)
                };
                self.push_directory(directory, None, is_new, None, entry, &found);
                if let (Some(stage), Some(root)) = (&mut self.stage, self.stack.last()) {
                    stage.hold(root.clone());
                }
                self.settings.did(done);
                Ok(Placed::Done)
            }
            None => Err(Error::new(ErrorKind::Usage, "the source is a file, not a directory")),
        }
    }

    /// An entry of the innermost directory.
    pub fn entry(&mut self, entry: &Entry) -> Result<Placed> {
        if self.skipping > 0 {
            self.skipping += usize::from(entry.is_directory());
            return Ok(Placed::Unchanged);
        }
        self.note_ways();
        match &entry.name {
            Some(name) => self.place(&name.clone(), &self.settings.clone().changed(entry)),
            None => Err(Error::new(ErrorKind::Protocol, "an entry without a name")),
        }
    }

    /// True while entries are passed over because a directory above them could not be made.
    pub fn is_skipping(&self) -> bool {
        self.skipping > 0
    }

    /// The innermost directory has no more entries.
    pub fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        self.note_ways();
        if let Some(directory) = self.stack.pop() {
            self.bases.leave();
            if let Some(candidates) = &mut self.candidates {
                candidates.leave(&directory.directory);
                candidates.spill(&self.landing.base);
            }
            directory.leave();
        }
    }

    /// A target's content has come and it is in place, or it will not be.
    pub fn settle(&mut self, mut target: FileTarget, identity: Option<Identity>) {
        if identity.is_some() {
            self.settings.did(target.done.take().map(|done| *done));
        }
        if let Some(group) = &target.metadata.link_group {
            match identity {
                Some(identity) => self.came(group, &target.directory, &target.name, identity),
                None => self.links.failed(group),
            }
        }
        if identity.is_none() && target.metadata.link_group.is_none() {
            self.contested.release(|| target.path());
        }
        target.directory.settle();
        self.note_ways();
    }

    /// What may have to be deleted.
    #[cfg(test)]
    pub(super) fn candidates(&mut self) -> Option<&mut Candidates> {
        self.candidates.as_mut()
    }

    /// Files of several names that are remembered.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.links.len()
    }

    /// What could not be kept: attributes with the number of entries, and directories that could not be finished.
    pub fn failures(&mut self) -> NotKept {
        let settings = &self.settings;
        let mut told = settings.told.take();
        told.failed.extend(self.contested.take_lost());
        NotKept { attributes: told.failed, left_out: told.left_out, directories: settings.failed.take() }
    }

    /// Path below the destination of an entry of the innermost directory, or of the root that came last; empty for one whose entries
    /// go into the destination itself.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        let way = self.stack.last().and_then(|directory| directory.way.as_ref());
        match &entry.name {
            Some(name) => Way::path(way, Some(name)),
            None => self.root_name.as_ref().map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
        }
    }

    fn place(&mut self, name: &Name, entry: &Entry) -> Result<Placed> {
        let Some(parent) = self.stack.last().cloned() else {
            return Err(Error::new(ErrorKind::Protocol, "an entry outside a directory"));
        };
        self.settings.backups_spare(name.as_bytes(), &|| parent.path(name));
        let looked = self.look(&parent, name);
        if entry.is_directory() {
            let placed = looked.and_then(|looked| self.place_directory(&parent, name, entry, looked));
            self.skipping = usize::from(!matches!(placed, Ok(Placed::Done)));
            return placed;
        }
        let looked = looked?;
        if looked.as_ref().is_some_and(|found| self.settings.passes(entry, found.as_ref())) {
            return Ok(Placed::Passed);
        }
        self.contested.claim(|| parent.path(name))?;
        let target = |there| Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
        let Kind::File { size_bytes, .. } = entry.kind else {
            return self.place_special(&parent, name, entry, looked.flatten().as_ref().map(identity_of));
        };
        if let Some(group) = entry.metadata.link_group {
            if self.links.has(&group) {
                let there = looked.as_ref().and_then(|found| found.as_ref());
                if there.is_some_and(|found| self.keeps_newer(&parent, name, entry, found)) {
                    return Ok(Placed::Passed);
                }
                let mut target = target(There::Nothing);
                let basis =
                    looked.is_some_and(|found| found.is_none()).then(|| self.basis(name, entry)).flatten();
                target.is_quiet = basis.is_some_and(|basis| basis.spares_making());
                return Ok(Placed::Link(target));
            }
            self.begin_links(group, entry.metadata.link_names);
        }
        let placed = self.place_file(&parent, name, entry, size_bytes, looked);
        if let (Err(_) | Ok(Placed::Passed), Some(group)) = (&placed, &entry.metadata.link_group) {
            self.links.failed(group);
        }
        placed
    }

    /// What stands under the name of an entry that is told; asked only where that decides. `Refused` if nothing of that name was there
    /// when the directory was listed: it is another one, which the file system takes for the same, or somebody just made it.
    fn look(&mut self, parent: &OpenDirectory, name: &Name) -> Result<Option<Option<Statx>>> {
        let was_there = self.candidates.as_mut().is_none_or(|it| it.told(name, &parent.directory));
        if self.settings.sync().is_none() {
            return Ok(None);
        }
        let found = self.found(parent, name)?;
        let is_new_here = || !was_there && !self.is_backup(parent, name);
        if found.is_some()
            && is_new_here()
            && let Some(candidates) = &mut self.candidates
        {
            candidates.folds();
            return Err(parent.not_ours(name));
        }
        Ok(Some(found))
    }

    /// True for what this run may have kept under this very name.
    fn is_backup(&self, parent: &OpenDirectory, name: &Name) -> bool {
        self.settings.is_backup_name(name.as_bytes()) && parent.directory.lists(name.as_bytes())
    }

    /// What another directory has of an entry of the innermost one.
    pub(super) fn basis(&self, name: &Name, entry: &Entry) -> Option<Basis> {
        let basis = self.bases.find(&self.settings, name, entry)?;
        // What another directory has is to be on its disk where what comes is.
        let is_unsure = matches!(entry.kind, Kind::File { .. }) && basis.is_unsure(&self.settings);
        (!is_unsure).then_some(basis)
    }

    /// What stands under a name.
    pub(super) fn found(&self, parent: &OpenDirectory, name: &Name) -> Result<Option<Statx>> {
        if parent.is_new {
            return Ok(None);
        }
        match self.settings.stat(&parent.directory, name.as_bytes()) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("look at what is there", error)),
        }
    }

    fn place_directory(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        looked: Option<Option<Statx>>,
    ) -> Result<Placed> {
        let mut done = None;
        if looked.as_ref().is_some_and(|found| self.settings.passes(entry, found.as_ref())) {
            return Ok(Placed::Passed);
        }
        // Before anything makes way.
        self.contested.claim_directory(|| parent.path(name))?;
        if let Some(found) = looked {
            let is_other = |found: &Statx| file_type(found) != FileType::Directory;
            let there = found.as_ref().filter(|found| !is_other(found));
            let how = if there.is_some() { How::Stays } else { How::Made };
            done = match there.map_or_else(|| self.basis(name, entry), |_| None) {
                Some(basis) => basis.describe(&self.settings, entry, How::Copied, &|| parent.path(name)),
                None => parent.describe(name, entry, there, how),
            };
            if found.as_ref().is_some_and(is_other) {
                parent.check_own(name)?;
                parent.touch();
                replacing(parent, name, || match parent.back_up(name, Away::Deleted)? {
                    true => Ok(()),
                    false => remove_file(&parent.directory, name),
                })?;
            }
        }
        self.enter(parent, name, entry)?;
        self.settings.did(done);
        Ok(Placed::Done)
    }

    /// Places a symbolic link, fifo, socket or device.
    fn place_special(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        was: Option<Identity>,
    ) -> Result<Placed> {
        let basis = if was.is_none() { self.basis(name, entry) } else { None };
        if let Some(basis) = &basis
            && self.place_special_from(parent, name, basis)?
        {
            // What another directory has is nothing that is here.
            return Ok(if basis.spares() { Placed::Passed } else { Placed::Unchanged });
        }
        let Some(group) = entry.metadata.link_group else {
            return special::make(parent, name, entry, basis.as_ref()).map(|(placed, _)| placed);
        };
        if self.links.has(&group) {
            // Without content there is nothing to wait for, unless a sender mixes files and links in one group.
            if let Some(linked) = self.links.take(&group) {
                return self.link_entry(&linked, parent, name, entry).map(|()| Placed::Done);
            }
        } else {
            self.begin_links(group, entry.metadata.link_names);
        }
        match special::make(parent, name, entry, basis.as_ref()) {
            Ok((placed, identity)) => {
                self.made(&group, parent, name, identity, was);
                Ok(placed)
            }
            Err(error) => {
                self.links.failed(&group);
                Err(error)
            }
        }
    }

    fn enter(&mut self, parent: &Rc<OpenDirectory>, name: &Name, entry: &Entry) -> Result<()> {
        if self.stack.len() > TREE_DEPTH_MAX {
            let what = format!("it lies more than {TREE_DEPTH_MAX} directories deep");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let is_destination = self.landing.has_own_name && parent.way.is_none();
        let opened = |error: io::Error| {
            let is_other = error.kind() == io::ErrorKind::NotADirectory
                || error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
            if is_other { no_directory(is_destination) } else { Error::file("open the directory", error) }
        };
        // What is there is used; whether it is there need not be asked of a directory that this copy made.
        let there = if parent.is_new { None } else { Some(self.open_there(parent, name)) };
        let (directory, mut is_new) = match there {
            Some(Ok(directory)) => {
                parent.check_own(name)?;
                self.settings.require_on_disk(&directory)?;
                (directory, false)
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(opened(error)),
            _ => {
                parent.touch();
                // Nobody else puts anything into it before it has its owner and its bits.
                let mode = self.settings.mode(entry.metadata.mode, || parent.granted());
                let mode = self.settings.real_directory_bits(mode) & 0o755 | 0o700;
                let what = if is_destination { MAKE_DESTINATION } else { MAKE_DIRECTORY };
                rustix::fs::mkdirat(&parent.directory, name.as_bytes(), Mode::from_raw_mode(mode))
                    .map_err(|error| taken(parent, name, error.into(), what))?;
                let made = parent.directory.child(name.as_bytes()).map_err(opened)?;
                parent.note_new(name, false, || stat_fd_for(made.as_fd(), FACTS));
                (made, true)
            }
        };
        let found = directory.stat_self().map_err(|error| Error::file("look at the directory", error))?;
        self.settings.remember_device((found.stx_dev_major, found.stx_dev_minor), &directory)?;
        // Another one may stand there by now: then it is one that was there.
        is_new &= found.stx_uid == self.settings.powers.uid;
        let way = Way::below(parent.way.as_ref(), name, &self.way_bytes);
        self.push_directory(directory, Some(way), is_new, Some(parent), entry, &found);
        Ok(())
    }

    /// Opens the directory `name`; one that an earlier run made beside the destination whatever its own bits are.
    fn open_there(&self, parent: &OpenDirectory, name: &Name) -> io::Result<Directory> {
        let name = name.as_bytes();
        parent.directory.child(name).or_else(|error| {
            let is_closed = self.stage.is_some() && error.kind() == io::ErrorKind::PermissionDenied;
            let found = if is_closed { parent.directory.stat(name).ok() } else { None };
            match found.is_some_and(|found| delete::widen_by_path(&parent.directory, name, &found)) {
                true => parent.directory.child(name),
                false => Err(error),
            }
        })
    }

    fn push_directory(
        &mut self,
        directory: Directory,
        way: Option<Rc<Way>>,
        is_new: bool,
        parent: Option<&OpenDirectory>,
        entry: &Entry,
        found: &Statx,
    ) {
        let settings = &self.settings;
        let granted = || parent.map_or(0o777 & !settings.umask, OpenDirectory::granted);
        let mut now = u32::from(found.stx_mode) & 0o7777;
        let is_mine = found.stx_uid == settings.powers.uid;
        let mark = if is_new || !is_mine { None } else { Mark::read(&directory) };
        let was = match mark {
            Some(Mark::Was(bits)) => now & (bits | 0o7000),
            _ => now,
        };
        // What is beside a destination a run of this program made, and its bits count for nothing.
        let is_staged = self.stage.is_some();
        let is_unfinished = is_new || is_staged || mark == Some(Mark::New);
        let seen = settings.seen_directory(&directory, found);
        let finally = match seen.stx_mode == found.stx_mode {
            true => settings.directory_mode(entry.metadata.mode, granted, now, was, is_unfinished),
            false => {
                let seen = u32::from(seen.stx_mode) & 0o7777;
                settings.directory_mode(entry.metadata.mode, granted, seen, seen, is_unfinished)
            }
        };
        let mut abandoned = if is_unfinished { settings.real_directory_bits(finally) } else { was };
        let mut is_marked = mark.is_some();
        // Entries go into it; its own bits come when it is left.
        // Root needs no bits for that.
        let working = if is_mine && !settings.powers.is_root { now | 0o700 } else { now };
        if working != now && rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(working)).is_ok() {
            now = working;
        }
        if is_staged && entry.name.is_none() {
            // It is this user's alone until it is switched.
            abandoned = now;
        }
        // The mark needs the bits; who is killed between the two leaves them.
        if now & 0o777 != abandoned & 0o777 && is_mine && !is_marked {
            is_marked = match (is_unfinished, settings.modes) {
                // The next run sets the bits in any case.
                (true, true) => false,
                (true, false) if is_staged => false,
                (true, false) => Mark::New.write(&directory),
                (false, _) => Mark::Was(was & 0o777).write(&directory),
            };
        }
        let mut opening = Opening {
            directory,
            found,
            is_new,
            way,
            metadata: entry.metadata.clone(),
            bits: Bits { now, finally, abandoned },
            is_marked,
            parent,
            standing: None,
        };
        if let (Some(candidates), Some(sync)) = (&mut self.candidates, settings.sync()) {
            let there = delete::There { directory: &opening.directory, found, is_new };
            candidates.enter(opening.way.as_ref().map(|way| way.name()), Some(there), sync);
            opening.standing = candidates.standing().cloned();
        }
        let opened = OpenDirectory::new(settings, opening, &self.open);
        opened.way.iter().for_each(|way| self.bases.enter(way.name()));
        opened.list_if_folding();
        // The root of a tree is pushed onto nothing, or onto the directory that the user named.
        if entry.name.is_none()
            && !is_new
            && self.old_roots.len() < OLD_ROOTS_MAX
            && let Ok(root) = opened.directory.duplicate()
        {
            self.old_roots.push(root);
        }
        self.stack.push(Rc::new(opened));
    }
}

impl Drop for TreeWriter {
    /// A run that ends early leaves nothing under a temporary name.
    fn drop(&mut self) {
        self.sync_left();
        self.delete_nothing(&mut Vec::new());
        if let Some(doomed) = self.doomed.take() {
            let _ = doomed.abandon(&self.settings, &self.landing.base, &mut Vec::new());
        }
    }
}

pub(super) fn file_type(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

pub(super) fn is_directory() -> Error {
    Error::new(ErrorKind::Refused, "what is there is a directory")
        .advise("remove it, or name another destination")
}

/// Whether what is found is the link, fifo, socket or device that the entry is.
pub(super) fn is_same(
    settings: &Settings,
    directory: &Directory,
    name: &Name,
    entry: &Entry,
    found: &Statx,
) -> bool {
    let fakes = settings.fakes();
    // What is no file cannot have the attribute, and becomes one.
    let is_stand_in = || {
        let real = directory.stat(name.as_bytes());
        real.is_ok_and(|real| file_type(&real) == FileType::RegularFile)
    };
    if fakes && !is_stand_in() {
        return false;
    }
    let device = (found.stx_rdev_major, found.stx_rdev_minor);
    match (&entry.kind, file_type(found)) {
        (Kind::Symlink { target }, FileType::Symlink) if fakes => {
            target_of(directory, name.as_bytes()).is_ok_and(|there| there == *target)
        }
        (Kind::Symlink { target }, FileType::Symlink) => {
            rustix::fs::readlinkat(directory, name.as_bytes(), Vec::new())
                .is_ok_and(|there| there.as_bytes() == &target[..])
        }
        (Kind::Fifo, FileType::Fifo) | (Kind::Socket, FileType::Socket) => true,
        (Kind::CharacterDevice { major, minor }, FileType::CharacterDevice)
        | (Kind::BlockDevice { major, minor }, FileType::BlockDevice) => device == (*major, *minor),
        _ => false,
    }
}
