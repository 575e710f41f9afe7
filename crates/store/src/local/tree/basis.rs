//! Files that need not come because they lie in another directory (`--link-dest`, `--copy-dest`, `--compare-dest`), as with rsync: asked only for what is
//! not in the destination. Several directories are asked in their order; the first that has all of an entry counts, else the first that has the most.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use dray_core::tree::{Entry, Finished, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Statx};
use rustix::io::Errno;

use super::attributes;
use super::backup::Away;
use super::beside::Beside;
use super::content::FileState;
use super::directory::Directory;
use super::fake::is_open_to_others;
use super::opened::OpenDirectory;
use super::overwrite::replacing;
use super::place::{FileTarget, Identity, NewFile, OlderFile, There, identity_of, taken};
use super::regular::hash_of;
use super::settings::Settings;
use super::sync::{Done, How, Verdict, is_of_kind, remove_file};
use super::temporary;
use super::write::{Placed, TreeWriter, file_type, is_same};

/// What becomes of an entry that another directory has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BasisUse {
    /// It is left out, if all of it is there; else what is there is copied.
    Compare,
    /// It is copied from there.
    Copy,
    /// It becomes another name of what is there, if all of it is; else that is copied.
    Link,
}

/// Directories in which files may lie.
#[derive(Clone, Debug)]
pub struct BasisOptions {
    /// Which, in the order in which they are asked.
    pub places: Vec<Beside>,
    /// What for.
    pub usage: BasisUse,
}

/// How much of an entry is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Likeness {
    /// Something of its kind.
    Kind,
    /// Its hash has to tell.
    Unknown,
    /// Its content.
    Content,
    /// All of it.
    Whole,
}

/// What another directory has of an entry.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    directory: Rc<Directory>,
    name: Name,
    pub(super) found: Statx,
    pub(super) likeness: Likeness,
    pub(super) usage: BasisUse,
}

/// The directories of the others that the one at hand would be.
#[derive(Debug, Default)]
pub(super) struct Bases {
    /// Of each level, one for each place.
    levels: Vec<Vec<Option<Rc<Directory>>>>,
}

impl Bases {
    /// A tree begins, below the destination `base`; what is not there has nothing, and is told.
    pub(super) fn begin(&mut self, settings: &Settings, base: &Directory) -> Result<()> {
        self.open(settings, &|place| place.open(base))
    }

    /// A tree begins that is to replace `replaced`, which has all that did not change.
    pub(super) fn begin_beside(&mut self, replaced: Option<Directory>) {
        self.levels = vec![vec![replaced.map(Rc::new)]];
    }

    /// The same where the destination would be made in `above`.
    pub(super) fn begin_above(&mut self, settings: &Settings, above: &Directory) -> Result<()> {
        self.open(settings, &|place| place.open_from_above(above))
    }

    fn open(&mut self, settings: &Settings, open: &dyn Fn(&Beside) -> Result<Directory>) -> Result<()> {
        let Some(options) = settings.sync().and_then(|sync| sync.basis.as_ref()) else { return Ok(()) };
        let open = |place: &Beside| match open(place) {
            Ok(directory) => Ok(Some(Rc::new(directory))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let what =
                    format!("no such directory: {:?}, where files might have been found", place.path());
                settings.told.borrow_mut().left_out.insert(what, 1);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        self.levels = vec![options.places.iter().map(open).collect::<Result<_>>()?];
        Ok(())
    }

    /// How a destination that is made itself is told, beside the first that has all of it, else the first.
    pub(super) fn describe_root(&self, settings: &Settings, entry: &Entry) -> Option<Done> {
        let scope = settings.attribute_scope();
        let wanted = &entry.metadata.xattrs;
        let mut first = None;
        for directory in self.levels.first().into_iter().flatten().flatten() {
            let Ok(found) = directory.stat_self() else { continue };
            let found = settings.seen_directory(directory, &found);
            let has = |sort| {
                scope.of(sort).is_some_and(|scope| attributes::are_open(directory.as_fd(), wanted, scope))
            };
            let done = settings.describe(entry, Some(&found), How::Copied, &has, &Vec::new)?;
            first.get_or_insert(done);
        }
        first.or_else(|| settings.describe(entry, None, How::Made, &|_| false, &Vec::new))
    }

    /// A directory is entered.
    pub(super) fn enter(&mut self, name: &Name) {
        let Some(last) = self.levels.last() else { return };
        let child = |directory: &Option<Rc<Directory>>| {
            directory.as_ref().and_then(|directory| directory.child(name.as_bytes()).ok()).map(Rc::new)
        };
        let children = last.iter().map(child).collect();
        self.levels.push(children);
    }

    /// And left.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
    }

    /// What the others have under the name of an entry of the directory at hand.
    pub(super) fn find(&self, settings: &Settings, name: &Name, entry: &Entry) -> Option<Basis> {
        let usage = settings.sync()?.basis.as_ref()?.usage;
        let mut best: Option<Basis> = None;
        for directory in self.levels.last()?.iter().flatten() {
            let Ok(found) = settings.stat(directory, name.as_bytes()) else { continue };
            if !is_of_kind(entry, &found) {
                continue;
            }
            let likeness = likeness(settings, directory, name, entry, &found);
            if best.as_ref().is_none_or(|best| likeness > best.likeness) {
                best =
                    Some(Basis { directory: directory.clone(), name: name.clone(), found, likeness, usage });
            }
            if likeness == Likeness::Whole {
                break;
            }
        }
        best
    }
}

fn likeness(
    settings: &Settings,
    directory: &Directory,
    name: &Name,
    entry: &Entry,
    found: &Statx,
) -> Likeness {
    // Its bytes are to be proven where they are to have more powers here than there.
    let is_proven = |verdict: Verdict| {
        let is_kept = matches!(verdict, Verdict::Keep | Verdict::Compare);
        is_kept && settings.gains_powers(directory, name, &entry.metadata, found)
    };
    let is_content = match entry.kind {
        Kind::File { size_bytes, .. } if is_proven(settings.verdict(entry, size_bytes, found)) => false,
        Kind::File { size_bytes, .. } => match settings.verdict(entry, size_bytes, found) {
            Verdict::Keep => true,
            Verdict::Compare if settings.keeps_by_hash() => return Likeness::Unknown,
            _ => false,
        },
        Kind::Directory { .. } => true,
        _ => is_same(settings, directory, name, entry, found),
    };
    match is_content {
        false => Likeness::Kind,
        true if has_attributes(settings, directory, name, entry, found) => Likeness::Whole,
        true => Likeness::Content,
    }
}

/// Whether what is there has what the copy keeps of the entry.
pub(super) fn has_attributes(
    settings: &Settings,
    directory: &Directory,
    name: &Name,
    entry: &Entry,
    found: &Statx,
) -> bool {
    let scope = settings.attribute_scope();
    let has_xattrs =
        || directory.reach(name.as_bytes(), |path| attributes::are(path, &entry.metadata.xattrs, scope));
    let now = settings.differences(&entry.metadata, found, has_xattrs).1;
    // A link has no bits and attributes of its own.
    let is_link = matches!(entry.kind, Kind::Symlink { .. });
    !now.owner && !now.time && (is_link || (!now.permissions && !now.attributes))
}

impl Basis {
    /// How the making of `entry` is told, beside what it is made of.
    pub(super) fn describe(
        &self,
        settings: &Settings,
        entry: &Entry,
        how: How,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Option<Done> {
        let scope = settings.attribute_scope();
        let has = |sort| {
            let is = |scope| {
                let wanted = &entry.metadata.xattrs;
                self.directory.reach(self.name.as_bytes(), |path| attributes::are(path, wanted, scope))
            };
            scope.of(sort).is_some_and(is)
        };
        settings.describe(entry, Some(&self.found), how, &has, path)
    }

    /// How something that is no regular file is made beside it.
    pub(super) fn how(&self) -> How {
        if self.likeness >= Likeness::Content { How::Copied } else { How::Made }
    }

    /// It is made here by a link, or need not be made.
    pub(super) fn spares_making(&self) -> bool {
        self.likeness == Likeness::Whole && self.usage != BasisUse::Copy
    }

    /// True if the file may not be on its disk, where what comes is to be.
    pub(super) fn is_unsure(&self, settings: &Settings) -> bool {
        if settings.removes_sources() {
            return settings.is_unsure(&self.directory, &self.name);
        }
        // What is believed for its size and time is so as what is in the destination is.
        let is_read = self.likeness < Likeness::Content;
        settings.durable && settings.may_be_refused(&self.directory, &self.name, is_read)
    }

    /// Nothing is made of it here, because all of it is there.
    pub(super) fn spares(&self) -> bool {
        self.spares_making() && self.usage == BasisUse::Compare
    }

    /// The file itself, to copy from or to differ from.
    pub(super) fn older(&self) -> Option<OlderFile> {
        OlderFile::new(self.open().ok()?)
    }

    fn open(&self) -> io::Result<File> {
        Ok(self.directory.open_to_read(self.name.as_bytes())?.into())
    }

    fn identity(&self) -> Identity {
        identity_of(&self.found)
    }

    /// Makes `name` in `parent` another name of it, be it in the place of something else; false where that cannot be, and a copy is needed.
    pub(super) fn link(&self, parent: &OpenDirectory, name: &Name, replaces: bool) -> Result<bool> {
        // Who may write to it by the name that it has there would say what it stands for here.
        let is_open = |found: &Statx| parent.settings().fakes() && is_open_to_others(found);
        if self.directory.stat(self.name.as_bytes()).is_ok_and(|found| is_open(&found)) {
            return Ok(false);
        }
        let make = |name: &[u8]| {
            let from = self.name.as_bytes();
            rustix::fs::linkat(&*self.directory, from, &parent.directory, name, AtFlags::empty())?;
            let made = parent.directory.stat(name)?;
            let is_it = FileState::of(&made).is_but_for_links(&FileState::of(&self.found));
            if is_it && !is_open(&made) {
                return Ok(());
            }
            // What was looked at is what is meant, not what took its name since.
            let _ = rustix::fs::unlinkat(&parent.directory, name, AtFlags::empty());
            Err(Errno::STALE.into())
        };
        parent.touch();
        let made = if replaces {
            parent.back_up(name, Away::Replaced)?;
            temporary::replace(parent, name, &mut |temporary| make(temporary))
        } else {
            make(name.as_bytes())
        };
        let Err(error) = made else {
            parent.note_linked(name, replaces, self.identity());
            return Ok(true);
        };
        match Errno::from_io_error(&error) {
            Some(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Some(Errno::STALE) => Err(changed()),
            _ => Err(taken(parent, name, error, "make a hard link")),
        }
    }

    /// Fills `new` with it.
    fn fill(&self, settings: &Settings, new: &mut NewFile) -> Result<()> {
        let failed = |error| Error::file("copy it from the other directory", error);
        let file = self.open().map_err(failed)?;
        settings.copy_content(&file, &self.found, new.file()).map_err(|error| match error.kind() {
            ErrorKind::Changed => changed(),
            _ => error,
        })?;
        new.filled(self.found.stx_size);
        Ok(())
    }
}

fn changed() -> Error {
    Error::new(ErrorKind::Changed, "what another directory has of it was replaced meanwhile")
        .advise("run it again")
}

impl TreeWriter {
    /// Places a regular file where none stands; `there` is what does.
    pub(super) fn place_new(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        size_bytes: u64,
        mut there: There,
    ) -> Result<Placed> {
        let settings = self.settings.clone();
        let mut basis = self.basis(name, entry);
        if let (There::Directory, Some(found)) = (there, &basis) {
            // One that is not empty makes way at the end; by then this is a file that came.
            let is_free =
                found.likeness >= Likeness::Content && settings.make_way(&parent.directory, name)?;
            (there, basis) = if is_free { (There::Nothing, basis) } else { (there, None) };
        }
        let mut target = Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
        let Some(basis) = basis else {
            target.done = parent.describe(name, entry, None, How::Comes).map(Box::new);
            return Ok(Placed::Wanted(target, None));
        };
        let describe = |how| basis.describe(&settings, entry, how, &|| parent.path(name)).map(Box::new);
        let known = match basis.likeness {
            Likeness::Content | Likeness::Whole => {
                target.done = describe(How::Copied);
                self.place_from(&mut target, &basis)?;
                return Ok(Placed::Unchanged);
            }
            Likeness::Unknown => hash_of(&basis.directory, name, size_bytes, self.stop.as_deref())?,
            Likeness::Kind => None,
        };
        target.done = describe(How::Comes);
        target.done_same = describe(How::Copied).filter(|_| known.is_some());
        target.basis = Some(Box::new(basis));
        Ok(Placed::Wanted(target, known.map(|(hash, _)| hash)))
    }

    /// Places a regular file where another one stands, if another directory has all of it and it is not to be a copy, as rsync has it; `None` if not.
    pub(super) fn place_exact(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        found: &Statx,
        there: There,
    ) -> Result<Option<Placed>> {
        let Some(basis) = self.basis(name, entry).filter(Basis::spares_making) else {
            return Ok(None);
        };
        let is_there = |other: &Statx| identity_of(other) == basis.identity();
        if is_there(found)
            || likeness(&self.settings, &parent.directory, name, entry, found) == Likeness::Whole
        {
            return Ok(None);
        }
        let mut target = Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
        self.place_from(&mut target, &basis)?;
        Ok(Some(Placed::Unchanged))
    }

    /// Places what another directory has, the sender having found it the same; what its name leads to then.
    pub(super) fn keep_basis(&mut self, target: &mut FileTarget, mut basis: Basis) -> Result<Identity> {
        target.done = target.done_same.take();
        let entry = Entry {
            name: None,
            kind: Kind::File { size_bytes: target.size_bytes, oid: None },
            metadata: target.metadata.clone(),
        };
        let is_whole = has_attributes(&self.settings, &basis.directory, &basis.name, &entry, &basis.found);
        basis.likeness = if is_whole { Likeness::Whole } else { Likeness::Content };
        self.take_from(target, &basis)
    }

    /// Places a file from a basis that has its content, and settles it.
    fn place_from(&mut self, target: &mut Box<FileTarget>, basis: &Basis) -> Result<()> {
        let group = target.metadata.link_group;
        if basis.spares() {
            if !matches!(target.there, There::Nothing) {
                let (directory, name) = (&target.directory, &target.name);
                replacing(directory, name, || match directory.back_up(name, Away::Deleted)? {
                    true => Ok(()),
                    false => {
                        directory.touch();
                        remove_file(&directory.directory, name)
                    }
                })?;
            }
            if !matches!(target.there, There::Nothing) {
                self.settings.did(Some(Done { letters: None, path: target.path(), link: None }));
            }
            // It has no place here that another name could lead to.
            group.iter().for_each(|group| self.links.failed(group));
            target.directory.settle();
            return Ok(());
        }
        let placed = self.take_from(target, basis);
        if let (Ok(identity), Some(group)) = (&placed, &group) {
            let (directory, name) = (target.directory.clone(), target.name.clone());
            self.came(group, &directory, &name, *identity);
        }
        target.directory.settle();
        placed.map(|_| self.settings.did(target.done.take().map(|done| *done)))
    }

    /// Links or copies a file.
    fn take_from(&mut self, target: &FileTarget, basis: &Basis) -> Result<Identity> {
        let is_linked = basis.spares_making() && basis.usage == BasisUse::Link;
        if is_linked {
            self.settings.count_lacking(&target.metadata);
        }
        if is_linked
            && basis.link(&target.directory, &target.name, !matches!(target.there, There::Nothing))?
        {
            return Ok(basis.identity());
        }
        let mut new = target.create()?;
        basis.fill(&self.settings, &mut new)?;
        let Metadata { mtime_s, mtime_ns, .. } = target.metadata;
        let finished = Finished { hash: [0; 32], size_bytes: basis.found.stx_size, mtime_s, mtime_ns };
        target.finish(new, &finished)
    }

    /// True if something other than a regular file was made by a link, or need not be made.
    pub(super) fn place_special_from(
        &self,
        parent: &OpenDirectory,
        name: &Name,
        basis: &Basis,
    ) -> Result<bool> {
        match basis.usage {
            _ if !basis.spares_making() || file_type(&basis.found) == FileType::Directory => Ok(false),
            // A confined login gets no device, be it a name of one that is there.
            _ if self.settings.harmless
                && !self.settings.fakes()
                && matches!(file_type(&basis.found), FileType::CharacterDevice | FileType::BlockDevice) =>
            {
                Ok(false)
            }
            BasisUse::Compare => Ok(true),
            _ => basis.link(parent, name, false),
        }
    }
}
