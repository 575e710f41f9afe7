//! What a copy would do: entries are compared with what is there, and nothing is made or changed (`cp --dry-run`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;

use dray_core::limits::{TREE_LINK_BYTES_MAX, TREE_LINK_GROUPS_MAX};
use dray_core::tree::{Entry, Kind, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Statx};

use super::attributes;
use super::basis::{Bases, Basis, Likeness};
use super::contested::Contested;
use super::delete::{Candidates, Doomed, Orders, Stamp, There, Way, identity};
use super::directory::Directory;
use super::landing::Landing;
use super::listing::Listing;
use super::opened::Mark;
use super::overwrite::is_left_half;
use super::place::{Identity, identity_of, same_name};
use super::settings::{Changes, Differences, Settings, WriteOptions};
use super::sync::{Done, How, Verdict, in_the_way};
use super::unfinished::Landed;
use super::write::{file_type, is_directory, is_same, no_directory};

/// Path below the destination of what `way` leads to, or of `name` in it.
fn path_to(way: &[Name], name: Option<&Name>) -> Vec<u8> {
    way.iter().chain(name).map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
}

/// What would become of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// It would be made.
    Create,
    /// It would take the place of what is there.
    Replace,
    /// What is there has its size: it would be compared, and replaced if it differs.
    Compare,
    /// It stays, and this of it would be brought up to date.
    Change(Differences),
    /// It is there already.
    Keep,
}

impl Planned {
    /// Of what stays.
    fn stays(differences: Differences) -> Planned {
        if differences.is_none() { Planned::Keep } else { Planned::Change(differences) }
    }
}

/// The first name of a file with several that was told.
#[derive(Debug)]
struct First {
    /// What further ones would be other names of, if that is there.
    identity: Option<Identity>,
    path: Vec<u8>,
}

/// Compares the trees of one copy with what is there. Entries come in the order of the stream.
#[derive(Debug)]
pub struct Preview {
    settings: Settings,
    landing: Landing,
    /// The destination is not there, and would be made.
    is_missing: bool,
    /// The entry at hand is passed by, with all that is below it.
    is_passed: bool,
    landed: Landed,
    /// What would be deleted: while entries come, and once all have come.
    candidates: Option<Candidates>,
    doomed: Option<Doomed>,
    contested: Contested,
    /// Files with several names of which one was told.
    groups: HashMap<[u8; 16], First>,
    /// What their paths take.
    groups_bytes: usize,
    /// The directories entered; `None` for those that would be made.
    stack: Vec<Option<Directory>>,
    way: Vec<Name>,
    skipping: usize,
    bases: Bases,
}

impl Preview {
    /// Of a copy to `landing`.
    pub fn new(landing: Landing, options: WriteOptions, changes: Changes) -> Preview {
        let mut settings = Settings::new(options);
        settings.change(changes);
        let contested = Contested::new(&landing.names);
        let deletes = settings.sync().is_some_and(|sync| sync.delete.is_some());
        let mut candidates =
            deletes.then(|| Candidates::new(contested.is_possible(), landing.names.len() > 1));
        if landing.whole.is_some() {
            candidates.iter_mut().for_each(Candidates::trust_clock);
        }
        Preview {
            settings,
            candidates,
            doomed: None,
            contested,
            landing,
            is_missing: false,
            is_passed: false,
            landed: Landed::default(),
            groups: HashMap::new(),
            groups_bytes: 0,
            stack: Vec::new(),
            way: Vec::new(),
            skipping: 0,
            bases: Bases::default(),
        }
    }

    /// The sender's name for an owner.
    pub fn add_owner(&mut self, is_group: bool, id: u32, name: &[u8]) {
        self.settings.add_owner(is_group, id, name);
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Planned> {
        self.settings.check_root(entry)?;
        let entry = &self.settings.changed(entry);
        self.way.clear();
        self.stack.clear();
        self.contested.begin(index);
        if self.landing.go_on(entry) {
            self.landed = Landed::Again;
        }
        let planned = self.place_root(index, entry);
        self.skipping = usize::from((planned.is_err() || self.is_passed) && entry.is_directory());
        planned
    }

    /// Where the tree of the only source would land, as far as it would go on there.
    pub fn landed(&self) -> Landed {
        self.landed
    }

    fn place_root(&mut self, index: usize, entry: &Entry) -> Result<Planned> {
        let failed = |error| Error::file("open the destination", error);
        self.is_passed = false;
        let into = self.landing.names.get(index).cloned().flatten();
        self.settings.require_attributes(&self.landing.base, into.as_ref().map(Name::as_bytes), false)?;
        if self.landing.makes_directory(entry, &self.settings)?.is_some() {
            self.is_missing = true;
        } else if let Some(make) = self.landing.make.clone() {
            self.landing.rename(make);
        }
        self.landing.make = None;
        let name = self.landing.names.get(index).cloned().flatten();
        if let Some(candidates) = &mut self.candidates {
            candidates.begin(name.as_ref());
        }
        if self.is_missing {
            self.bases.begin_above(&self.settings, &self.landing.base)?;
        } else {
            self.settings.backups_begin(&self.landing.base)?;
            self.bases.begin(&self.settings, &self.landing.base)?;
        }
        let base = if self.is_missing { None } else { Some(self.landing.base.duplicate().map_err(failed)?) };
        match (name, base) {
            (Some(name), base) => self.place(base.as_ref(), &name, entry),
            (None, _) if !entry.is_directory() => {
                Err(Error::new(ErrorKind::Usage, "the source is a file, not a directory"))
            }
            (None, base) if self.settings.sync().is_some_and(|sync| sync.roots_stay) => {
                let found = base.as_ref().map(|base| base.stat_self().map_err(failed)).transpose()?;
                self.enter(None, base, found.as_ref());
                Ok(Planned::Keep)
            }
            (None, None) => {
                self.settings.did(self.bases.describe_root(&self.settings, entry));
                self.enter(None, None, None);
                Ok(Planned::Create)
            }
            (None, Some(base)) => {
                let found = base.stat_self().map_err(failed)?;
                let found = self.settings.seen_directory(&base, &found);
                let planned = self.directory(&base, entry, &found);
                let scope = self.settings.attribute_scope();
                let wanted = &entry.metadata.xattrs;
                let is = |scope| attributes::are_open(base.as_fd(), wanted, scope);
                let has = |sort| scope.of(sort).is_some_and(is);
                self.settings.did(self.settings.describe(entry, Some(&found), How::Stays, &has, &Vec::new));
                self.enter(None, Some(base), Some(&found));
                Ok(planned)
            }
        }
    }

    /// A directory is entered, which may not be there.
    fn enter(&mut self, name: Option<&Name>, directory: Option<Directory>, found: Option<&Statx>) {
        if let (Some(candidates), Some(sync)) = (&mut self.candidates, self.settings.sync()) {
            let there = directory.as_ref().zip(found);
            let there = there.map(|(directory, found)| There { directory, found, is_new: false });
            candidates.enter(name, there, sync);
        }
        name.into_iter().for_each(|name| self.bases.enter(name));
        self.stack.push(directory);
    }

    /// What the sender did not look into is the directory begun last.
    pub fn unlisted(&mut self) {
        if let Some(candidates) = self.candidates.as_mut().filter(|_| self.skipping == 0) {
            candidates.unlisted();
        }
    }

    /// Nothing would be deleted, because the sender has not listed everything.
    pub fn delete_nothing(&mut self, failed: &mut Vec<(Vec<u8>, Error)>) -> bool {
        let Some(candidates) = self.candidates.take() else { return false };
        candidates.abandon(&self.settings, &self.landing.base, failed);
        true
    }

    /// To be called once everything has come: says some of what would be deleted. False once all is.
    pub fn delete_some(&mut self, failed: &mut Vec<(Vec<u8>, Error)>) -> Result<bool> {
        if let Some(candidates) = self.candidates.take() {
            self.stack.clear();
            self.doomed = Some(candidates.doom(&self.settings, &self.landing.base, failed)?);
        }
        let orders = Orders::of(&self.settings, &self.landing.base, true, None);
        orders.map_or(Ok(false), |orders| orders.carry_out(&mut self.doomed, failed))
    }

    /// What would be done, since this was last called, for who wants to hear of each entry.
    pub fn take_done(&mut self) -> VecDeque<Done> {
        self.landing.told(self.settings.done.take())
    }

    /// An entry of the innermost directory; `None` if it is passed over because one above it could not be entered.
    pub fn entry(&mut self, entry: &Entry) -> Option<Result<Planned>> {
        if self.skipping > 0 {
            self.skipping += usize::from(entry.is_directory());
            return None;
        }
        let Some(name) = &entry.name else {
            return Some(Err(Error::new(ErrorKind::Protocol, "an entry without a name")));
        };
        let Some(parent) = self.stack.pop() else {
            return Some(Err(Error::new(ErrorKind::Protocol, "an entry outside a directory")));
        };
        let depth = self.stack.len();
        let planned = self.place(parent.as_ref(), name, &self.settings.changed(entry));
        self.stack.insert(depth, parent);
        self.skipping = usize::from((planned.is_err() || self.is_passed) && entry.is_directory());
        Some(planned)
    }

    /// The innermost directory has no more entries.
    pub fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        let directory = self.stack.pop().flatten();
        self.bases.leave();
        self.way.pop();
        if let Some(candidates) = &mut self.candidates {
            // What would be made has no candidates.
            candidates.leave(directory.as_ref().unwrap_or(&self.landing.base));
            candidates.spill(&self.landing.base);
        }
    }

    /// Path below the destination of the entry that came last; a directory has been entered by then.
    pub fn path_of(&self, index: Option<usize>, entry: &Entry) -> Vec<u8> {
        let last = match index {
            Some(index) => self.landing.names.get(index).and_then(Option::as_ref),
            None => entry.name.as_ref(),
        };
        let is_entered = entry.is_directory() && self.skipping == 0;
        let last = last.filter(|_| !is_entered);
        path_to(&self.way, last)
    }

    fn place(&mut self, parent: Option<&Directory>, name: &Name, entry: &Entry) -> Result<Planned> {
        let found = match parent.map(|parent| self.settings.stat(parent, name.as_bytes())) {
            None => None,
            Some(Ok(found)) => Some(found),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(Err(error)) => return Err(Error::file("look at what is there", error)),
        };
        let is_sync = self.settings.sync().is_some();
        if let (Some(candidates), Some(parent)) = (&mut self.candidates, parent)
            && !candidates.told(name, parent)
            && found.is_some()
        {
            candidates.folds();
            return Err(same_name());
        }
        self.is_passed = self.settings.passes(entry, found.as_ref());
        if self.is_passed {
            return Ok(Planned::Keep);
        }
        if entry.is_directory() {
            let path = || path_to(&self.way, Some(name));
            self.contested.claim_directory(path)?;
        }
        // What is of another kind makes way.
        let is_directory_there = found.as_ref().is_some_and(|found| file_type(found) == FileType::Directory);
        let are_both = |found: &Statx| (file_type(found) == FileType::Directory) == entry.is_directory();
        let found = found.filter(|found| !is_sync || are_both(found));
        if entry.is_directory() {
            let inner = match (parent, &found) {
                (Some(parent), Some(found)) if file_type(found) == FileType::Directory => {
                    let opened = parent.child(name.as_bytes());
                    Some(opened.map_err(|error| Error::file("open the directory", error))?)
                }
                (_, Some(_)) => {
                    return Err(no_directory(self.landing.has_own_name && self.way.is_empty()));
                }
                _ => None,
            };
            let planned = match (&inner, &found) {
                (Some(inner), Some(found)) => self.directory(inner, entry, found),
                _ => Planned::Create,
            };
            match self.basis(name, entry, inner.is_none()) {
                Some(basis) => self.say_beside(&basis, name, entry, How::Copied),
                None => {
                    let how = if inner.is_some() { How::Stays } else { How::Made };
                    self.say(parent, name, entry, found.as_ref(), how);
                }
            }
            self.enter(Some(name), inner, found.as_ref());
            self.way.push(name.clone());
            return Ok(planned);
        }
        self.contested.claim(|| path_to(&self.way, Some(name)))?;
        let mut is_free = true;
        if is_directory_there
            && is_sync
            && let Some(parent) = parent
        {
            is_free = self.make_way(parent, name)?;
        }
        let there = parent.zip(found.as_ref());
        if there.is_some_and(|(_, found)| file_type(found) == FileType::Directory) {
            return Err(is_directory());
        }
        if there.is_some_and(|(parent, found)| {
            self.settings.is_newer(entry, found) && !self.is_half(parent, name, found)
        }) {
            self.is_passed = true;
            return Ok(Planned::Keep);
        }
        let identity = found.as_ref().map(identity_of);
        if let Some(first) = entry.metadata.link_group.and_then(|group| self.groups.get(&group)) {
            // It becomes another name of the first, whatever it is now.
            let planned = match identity {
                None => Planned::Create,
                Some(_) if identity == first.identity => Planned::Keep,
                Some(_) => Planned::Replace,
            };
            // What another directory has of it is nothing new.
            let is_known =
                || self.basis(name, entry, found.is_none()).is_some_and(|basis| basis.spares_making());
            if planned != Planned::Keep && !is_known() {
                let done = self.described(parent, name, entry, found.as_ref(), How::Linked);
                self.settings.did(done.map(|done| Done { link: Some(first.path.clone()), ..done }));
            }
            return Ok(planned);
        }
        let planned = match there {
            Some((parent, found)) => self.file(parent, name, entry, found),
            None => Planned::Create,
        };
        let is_file = matches!(entry.kind, Kind::File { .. });
        let how = match planned {
            Planned::Keep | Planned::Change(_) => How::Stays,
            _ if is_file => How::Comes,
            _ => How::Made,
        };
        let is_other = |found: &Statx| file_type(found) != FileType::RegularFile;
        let basis = match &found {
            None => self.basis(name, entry, is_free),
            Some(found) if is_file && is_other(found) => self.basis(name, entry, true),
            Some(_) => self
                .basis(name, entry, is_file)
                .filter(|basis| basis.spares_making() && !matches!(planned, Planned::Keep)),
        };
        if found.is_some() && basis.as_ref().is_some_and(Basis::spares) {
            // What is there goes, as with rsync.
            let path = path_to(&self.way, Some(name));
            self.settings.did(Some(Done { letters: None, path, link: None }));
        }
        let is_spared = basis.as_ref().is_some_and(Basis::spares);
        match basis {
            Some(basis) if !is_file && basis.spares_making() => {}
            Some(basis) if is_file && basis.likeness < Likeness::Content => {
                self.say_beside(&basis, name, entry, How::Comes);
            }
            Some(basis) => self.say_beside(&basis, name, entry, basis.how()),
            None => self.say(parent, name, entry, found.as_ref(), how),
        }
        // What is left out has no place that another name could lead to.
        if let Some(group) = entry.metadata.link_group.filter(|_| !is_spared) {
            let stays = !matches!(planned, Planned::Create | Planned::Replace);
            let path = path_to(&self.way, Some(name));
            let bytes = self.groups_bytes + path.len();
            if self.groups.len() < TREE_LINK_GROUPS_MAX && bytes < TREE_LINK_BYTES_MAX {
                self.groups_bytes = bytes;
                self.groups.insert(group, First { identity: identity.filter(|_| stays), path });
            }
        }
        Ok(planned)
    }

    /// The directory `name` would make way: at the end, with all that is in it and not protected, or because it is empty: true then.
    fn make_way(&mut self, parent: &Directory, name: &Name) -> Result<bool> {
        let failed = |error| Error::file("look at what is there", error);
        let is_empty =
            parent.child(name.as_bytes()).and_then(|it| Listing::read(&it, &mut Vec::new(), &|| true));
        let is_empty = is_empty.map(|listing| listing.get(0).is_none());
        let Some(candidates) = self.candidates.as_mut().filter(|_| !matches!(is_empty, Ok(true))) else {
            return if is_empty.map_err(failed)? { Ok(true) } else { Err(in_the_way()) };
        };
        let stamp = Stamp::of(&parent.stat_for(name.as_bytes(), Stamp::FACTS).map_err(failed)?);
        let path = path_to(&self.way, None);
        let identity = identity(&parent.stat_self().map_err(failed)?);
        let standing = candidates.standing().cloned();
        let name = name.as_bytes().to_vec();
        if !candidates.make_way(&Way { path, identity, name, stamp, made: None, standing }) {
            return Err(in_the_way());
        }
        candidates.spill(&self.landing.base);
        Ok(false)
    }

    /// What another directory has of an entry that is not there.
    fn basis(&self, name: &Name, entry: &Entry, is_free: bool) -> Option<Basis> {
        if is_free { self.bases.find(&self.settings, name, entry) } else { None }
    }

    /// Tells of an entry that would be made, beside what another directory has of it.
    fn say_beside(&self, basis: &Basis, name: &Name, entry: &Entry, how: How) {
        let path = || path_to(&self.way, Some(name));
        self.settings.did(basis.describe(&self.settings, entry, how, &path));
    }

    /// Tells of an entry, if its changes are to be told.
    fn say(&self, parent: Option<&Directory>, name: &Name, entry: &Entry, found: Option<&Statx>, how: How) {
        self.settings.did(self.described(parent, name, entry, found, how));
    }

    fn described(
        &self,
        parent: Option<&Directory>,
        name: &Name,
        entry: &Entry,
        found: Option<&Statx>,
        how: How,
    ) -> Option<Done> {
        let scope = self.settings.attribute_scope();
        let wanted = &entry.metadata.xattrs;
        let has = |sort| {
            let is = |scope, parent: &Directory| {
                parent.reach(name.as_bytes(), |path| attributes::are(path, wanted, scope))
            };
            scope.of(sort).zip(parent).is_some_and(|(scope, parent)| is(scope, parent))
        };
        let path = || path_to(&self.way, Some(name));
        let mut done = self.settings.describe(entry, found, how, &has, &path);
        // Contents are not read for a plan, so nobody knows yet.
        if let Some(letter) =
            done.as_mut().and_then(|done| done.letters.as_mut()).map(|letters| &mut letters[2])
            && *letter == b'c'
            && how == How::Comes
            && found.is_some_and(
                |found| matches!(entry.kind, Kind::File { size_bytes, .. } if size_bytes == found.stx_size),
            )
        {
            *letter = b'?';
        }
        done
    }

    /// True if a run that was cut off left the file neither old nor new, whatever its size and time say.
    fn is_half(&self, parent: &Directory, name: &Name, found: &Statx) -> bool {
        self.settings.may_keep_half(found) && is_left_half(&self.settings, parent, name)
    }

    /// What would become of something other than a directory, with something other than a directory in its place.
    fn file(&self, parent: &Directory, name: &Name, entry: &Entry, found: &Statx) -> Planned {
        let settings = &self.settings;
        let has_xattrs = || {
            let scope = settings.attribute_scope();
            parent.reach(name.as_bytes(), |path| attributes::are(path, &entry.metadata.xattrs, scope))
        };
        let differences = || settings.differences(&entry.metadata, found, has_xattrs).1;
        match (&entry.kind, file_type(found)) {
            (Kind::File { size_bytes, .. }, FileType::RegularFile) => {
                match settings.verdict(entry, *size_bytes, found) {
                    Verdict::Keep | Verdict::Compare
                        if settings.gains_powers(parent, name, &entry.metadata, found) =>
                    {
                        Planned::Replace
                    }
                    Verdict::Pass | Verdict::Keep if self.is_half(parent, name, found) => Planned::Replace,
                    Verdict::Pass => Planned::Keep,
                    Verdict::Keep => Planned::stays(differences()),
                    Verdict::Compare => Planned::Compare,
                    Verdict::Want => Planned::Replace,
                }
            }
            _ if is_same(settings, parent, name, entry, found) => {
                let is_link = matches!(entry.kind, Kind::Symlink { .. });
                let now = differences();
                // A link has no bits and attributes of its own.
                let (permissions, attributes) = (now.permissions && !is_link, now.attributes && !is_link);
                Planned::stays(Differences { permissions, attributes, ..now })
            }
            _ => Planned::Replace,
        }
    }

    /// What would become of a directory that is there.
    fn directory(&self, directory: &Directory, entry: &Entry, found: &Statx) -> Planned {
        let settings = &self.settings;
        let scope = settings.attribute_scope();
        let metadata = &entry.metadata;
        let has_xattrs = || attributes::are_open(directory.as_fd(), &metadata.xattrs, scope);
        let (_, differences) = settings.differences(metadata, found, has_xattrs);
        let now = u32::from(found.stx_mode) & 0o7777;
        let mark = if found.stx_uid == settings.powers.uid { Mark::read(directory) } else { None };
        let was = match mark {
            Some(Mark::Was(bits)) => now & (bits | 0o7000),
            _ => now,
        };
        let granted = || 0o777 & !settings.umask;
        let mode = settings.directory_mode(metadata.mode, granted, now, was, mark == Some(Mark::New));
        Planned::stays(Differences { permissions: mode != now, ..differences })
    }
}
