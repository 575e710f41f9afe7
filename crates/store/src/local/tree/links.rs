//! Files of several names: which of them came, so that their further names become hard links.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

use dray_core::limits::{TREE_LINK_BYTES_MAX, TREE_LINK_GROUPS_MAX};
use dray_core::tree::{Entry, Kind, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Statx};
use rustix::io::Errno;

use super::backup::Away;
use super::directory::Directory;
use super::opened::{OpenDirectory, Way};
use super::place::{FileTarget, Identity, identity_of, taken};
use super::sync::{Done, How};
use super::temporary::{self, Temporary, replace};
use super::write::{TreeWriter, file_type, is_directory};

/// Directories of first names that stay open for the next link.
const OPEN_MAX: usize = 16;
/// What a group takes beside its name.
const GROUP_BYTES: usize = 160;

type Group = [u8; 16];

/// A file with several names, once it is in place.
#[derive(Clone, Debug)]
pub(super) struct Linked {
    pub(super) way: Option<Rc<Way>>,
    pub(super) name: Name,
    /// Its name for now, while a directory stands in its place.
    waiting: Option<Temporary>,
    pub(super) identity: Identity,
    /// What stood under its name before, where that was made anew: other names of that are nothing new.
    was: Option<Identity>,
}

#[derive(Debug)]
struct Known {
    /// `None` while its content is on its way.
    linked: Option<Linked>,
    /// Names still to come; 0 if nobody said how many there are.
    left: u32,
}

/// The groups of one copy.
#[derive(Debug, Default)]
pub(super) struct LinkTable {
    groups: HashMap<Group, Known>,
    /// Bytes of their names.
    bytes: usize,
    open: VecDeque<(Option<Rc<Way>>, Rc<Directory>)>,
}

impl LinkTable {
    /// True if a name of the group was told before.
    pub(super) fn has(&self, group: &Group) -> bool {
        self.groups.contains_key(group)
    }

    /// True if the first name of the group is in place.
    fn has_come(&self, group: &Group) -> bool {
        self.groups.get(group).is_some_and(|known| known.linked.is_some())
    }

    /// The first name of a group of `names` names, which comes; `way_bytes` are held by ways. False if there is no room: its
    /// further names become files of their own.
    pub(super) fn begin(&mut self, group: Group, names: u32, way_bytes: usize) -> bool {
        let bytes = self.bytes + way_bytes + self.groups.len() * GROUP_BYTES;
        if self.groups.len() >= TREE_LINK_GROUPS_MAX || bytes >= TREE_LINK_BYTES_MAX {
            return false;
        }
        self.groups.insert(group, Known { linked: None, left: names.saturating_sub(1) });
        true
    }

    /// The first name is in place, if it still matters.
    pub(super) fn came(&mut self, group: &Group, linked: Linked) {
        if let Some(known) = self.groups.get_mut(group) {
            self.bytes += linked.name.as_bytes().len();
            if let Some(before) = known.linked.replace(linked) {
                self.bytes -= before.name.as_bytes().len();
            }
        }
    }

    /// The first name will not be in place: the next one that is told takes its role.
    pub(super) fn failed(&mut self, group: &Group) {
        if self.groups.get(group).is_some_and(|known| known.linked.is_none()) {
            self.groups.remove(group);
        }
    }

    /// The file that a further name is one of, if it came. A group whose last name this is is forgotten.
    pub(super) fn take(&mut self, group: &Group) -> Option<Linked> {
        let known = self.groups.get_mut(group)?;
        if known.left != 1 {
            known.left = known.left.saturating_sub(1);
            return known.linked.clone();
        }
        let linked = self.groups.remove(group)?.linked?;
        self.bytes -= linked.name.as_bytes().len();
        Some(linked)
    }

    /// The directory below `base` that `way` leads to, one name at a time.
    pub(super) fn directory(&mut self, base: &Directory, way: Option<&Rc<Way>>) -> io::Result<Rc<Directory>> {
        let is_it = |other: &Option<Rc<Way>>| match (other, way) {
            (Some(other), Some(way)) => Rc::ptr_eq(other, way),
            (None, None) => true,
            _ => false,
        };
        if let Some((_, directory)) = self.open.iter().find(|(other, _)| is_it(other)) {
            return Ok(directory.clone());
        }
        let mut directory = base.duplicate()?;
        for name in Way::names(way) {
            directory = directory.child(name.as_bytes())?;
        }
        let directory = Rc::new(directory);
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((way.cloned(), directory.clone()));
        Ok(directory)
    }

    /// Groups remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }
}

impl TreeWriter {
    pub(super) fn came(
        &mut self,
        group: &[u8; 16],
        directory: &OpenDirectory,
        name: &Name,
        identity: Identity,
    ) {
        let waiting = directory.waiting(name);
        let linked = Linked { way: directory.way.clone(), name: name.clone(), waiting, identity, was: None };
        self.links.came(group, linked);
    }

    /// The same of an entry without content, under whose name `was` stood.
    pub(super) fn made(
        &mut self,
        group: &[u8; 16],
        directory: &OpenDirectory,
        name: &Name,
        identity: Identity,
        was: Option<Identity>,
    ) {
        self.came(group, directory, name, identity);
        if let Some(linked) = self.links.groups.get_mut(group).and_then(|known| known.linked.as_mut()) {
            linked.was = was;
        }
    }

    /// True if the file that `target` is another name of is in place.
    pub fn can_link(&self, target: &FileTarget) -> bool {
        target.metadata.link_group.is_some_and(|group| self.links.has_come(&group))
    }

    /// The content of the group of `target` is to come under this name, because the one it was to come under failed.
    pub fn begin_again(&mut self, target: &FileTarget) {
        if let Some(group) = target.metadata.link_group.filter(|group| !self.links.has(group)) {
            // How many names are still to come nobody counted.
            self.begin_links(group, 0);
        }
    }

    /// The content that was to come under the name of `target` did not; it may still become another name of its group's file.
    pub fn fall_back(&mut self, target: &FileTarget) {
        if let Some(group) = &target.metadata.link_group {
            self.links.failed(group);
        }
    }

    /// Makes `target` another name of the file of its group, which has come.
    pub fn link(&mut self, target: &FileTarget) -> Result<()> {
        let linked = target.metadata.link_group.and_then(|group| self.links.take(&group));
        let linked = linked.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "it is a hard link to a file that could not be written")
        })?;
        let (to, name) = (&target.directory, &target.name);
        if target.is_quiet {
            return self.link_to(&linked, to, name).map(|_| ());
        }
        let kind = Kind::File { size_bytes: target.size_bytes, oid: None };
        self.link_entry(&linked, to, name, &Entry { name: None, kind, metadata: target.metadata.clone() })
    }

    /// Makes `name`, under which `entry` was told, another name of `linked`, and tells of that if it was none.
    pub(super) fn link_entry(
        &mut self,
        linked: &Linked,
        to: &OpenDirectory,
        name: &Name,
        entry: &Entry,
    ) -> Result<()> {
        let found = if to.is_new { None } else { self.settings.stat(&to.directory, name.as_bytes()).ok() };
        let is_known = linked.was.is_some() && found.as_ref().map(identity_of) == linked.was;
        if self.link_to(linked, to, name)? && !is_known {
            let done = to.describe(name, entry, found.as_ref(), How::Linked);
            let link = done.as_ref().map(|_| Way::path(linked.way.as_ref(), Some(&linked.name)));
            self.settings.did(done.map(|done| Done { link, ..done }));
        }
        Ok(())
    }

    /// Makes `name` another name of `linked`; false if it was.
    fn link_to(&mut self, linked: &Linked, to: &OpenDirectory, name: &Name) -> Result<bool> {
        let is_it = |found: &Statx| identity_of(found) == linked.identity;
        let (mut waits, mut replaces) = (false, false);
        if !to.is_new {
            let there = to.directory.stat(name.as_bytes());
            replaces = there.is_ok();
            if replaces {
                to.check_own(name)?;
            }
            if there.as_ref().is_ok_and(&is_it) {
                return Ok(false);
            }
            if there.is_ok_and(|found| file_type(&found) == FileType::Directory) {
                let settings = to.settings();
                if settings.sync().is_none() {
                    return Err(is_directory());
                }
                waits = !settings.make_way(&to.directory, name)?;
            }
        }
        let from = self
            .links
            .directory(&self.landing.base, linked.way.as_ref())
            .map_err(|error| Error::file("find the file that it is a hard link to", error))?;
        let first = linked.waiting.as_ref().map_or(linked.name.as_bytes(), |waiting| &waiting[..]);
        if replaces {
            to.settings().settle_named(&from, first)?;
        }
        let mut make = |name: &[u8]| {
            rustix::fs::linkat(&*from, first, &to.directory, name, AtFlags::empty())?;
            // The name may lead to something else by now, which nobody is to get at through this one.
            if to.directory.stat(name).is_ok_and(|found| is_it(&found)) {
                return Ok(());
            }
            let _ = rustix::fs::unlinkat(&to.directory, name, AtFlags::empty());
            Err(Errno::STALE.into())
        };
        to.touch();
        let made = if waits {
            let made = temporary::make(to, name, &mut |temporary| make(temporary));
            made.and_then(|(temporary, ())| to.wait_for_way(name, &temporary).map(|_| ()))
        } else if to.is_new {
            make(name.as_bytes())
        } else {
            to.back_up(name, Away::Replaced)?;
            replace(to, name, &mut make)
        };
        if made.is_ok() {
            to.note_linked(name, replaces, linked.identity);
        }
        made.map(|()| true).map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::STALE.raw_os_error() => {
                Error::new(ErrorKind::Changed, "the file that it is a hard link to was replaced meanwhile")
            }
            _ => taken(to, name, error, "make a hard link"),
        })
    }

    /// The first name of a group of `names` names comes; 0 if nobody knows how many there are.
    pub(super) fn begin_links(&mut self, group: [u8; 16], names: u32) {
        if !self.links.begin(group, names, self.way_bytes.get()) {
            let what = format!(
                "hard links: more than {TREE_LINK_GROUPS_MAX} files of several names at once, or too long ones"
            );
            *self.settings.told.borrow_mut().failed.entry(what).or_default() += 1;
        }
    }
}
