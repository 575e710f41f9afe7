//! What a copy would do: entries are compared with what is there, and nothing is made or changed (`cp --dry-run`).

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use dray_core::limits::TREE_LINK_GROUPS_MAX;
use dray_core::tree::{Entry, Kind, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Statx};

use super::attributes;
use super::contested::Contested;
use super::directory::Directory;
use super::opened::Mark;
use super::place::Identity;
use super::settings::{Changes, Differences, Settings, WriteOptions};
use super::write::{Landing, file_type, is_directory, is_same};

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

/// Compares the trees of one copy with what is there. Entries come in the order of the stream.
#[derive(Debug)]
pub struct Preview {
    settings: Settings,
    base: Directory,
    names: Vec<Option<Name>>,
    contested: Contested,
    /// Of the first name of a file with several that was told: what it would be another name of, if that is there.
    groups: HashMap<[u8; 16], Option<Identity>>,
    /// The directories entered; `None` for those that would be made.
    stack: Vec<Option<Directory>>,
    way: Vec<Name>,
    skipping: usize,
}

impl Preview {
    /// Of a copy to `landing`.
    pub fn new(landing: Landing, options: WriteOptions, changes: Changes) -> Preview {
        let (base, names) = landing.into_parts();
        let mut settings = Settings::new(options);
        settings.change(changes);
        Preview {
            settings,
            base,
            contested: Contested::new(&names),
            names,
            groups: HashMap::new(),
            stack: Vec::new(),
            way: Vec::new(),
            skipping: 0,
        }
    }

    /// The sender's name for an owner.
    pub fn add_owner(&mut self, is_group: bool, id: u32, name: &[u8]) {
        self.settings.add_owner(is_group, id, name);
    }

    /// The root of the tree of source `index`.
    pub fn root(&mut self, index: usize, entry: &Entry) -> Result<Planned> {
        let entry = &self.settings.changed(entry);
        self.way.clear();
        self.stack.clear();
        self.contested.begin(index);
        let failed = |error| Error::file("open the destination", error);
        let base = self.base.duplicate().map_err(failed)?;
        let planned = match self.names.get(index).cloned().flatten() {
            Some(name) => self.place(Some(&base), &name, entry),
            None if entry.is_directory() => {
                let planned = base.stat_self().map(|found| self.directory(&base, entry, &found));
                self.stack.push(Some(base));
                planned.map_err(failed)
            }
            None => Err(Error::new(ErrorKind::Usage, "the source is a file, not a directory")),
        };
        self.skipping = usize::from(planned.is_err() && entry.is_directory());
        planned
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
        self.skipping = usize::from(planned.is_err() && entry.is_directory());
        Some(planned)
    }

    /// The innermost directory has no more entries.
    pub fn leave(&mut self) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        self.stack.pop();
        self.way.pop();
    }

    /// Path below the destination of the entry that came last; a directory has been entered by then.
    pub fn path_of(&self, index: Option<usize>, entry: &Entry) -> Vec<u8> {
        let last = match index {
            Some(index) => self.names.get(index).and_then(Option::as_ref),
            None => entry.name.as_ref(),
        };
        let is_entered = entry.is_directory() && self.skipping == 0;
        let last = last.filter(|_| !is_entered);
        self.way.iter().chain(last).map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
    }

    fn place(&mut self, parent: Option<&Directory>, name: &Name, entry: &Entry) -> Result<Planned> {
        let found = match parent.map(|parent| parent.stat(name.as_bytes())) {
            None => None,
            Some(Ok(found)) => Some(found),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(Err(error)) => return Err(Error::file("look at what is there", error)),
        };
        if entry.is_directory() {
            let inner = match (parent, &found) {
                (Some(parent), Some(found)) if file_type(found) == FileType::Directory => {
                    let opened = parent.child(name.as_bytes());
                    Some(opened.map_err(|error| Error::file("open the directory", error))?)
                }
                (_, Some(_)) => {
                    return Err(Error::new(
                        ErrorKind::Refused,
                        "what is there is no directory, and links are not followed",
                    ));
                }
                _ => None,
            };
            let planned = match (&inner, &found) {
                (Some(inner), Some(found)) => self.directory(inner, entry, found),
                _ => Planned::Create,
            };
            self.stack.push(inner);
            self.way.push(name.clone());
            return Ok(planned);
        }
        self.contested
            .claim(|| self.way.iter().chain([name]).map(Name::as_bytes).collect::<Vec<_>>().join(&b'/'))?;
        let there = parent.zip(found.as_ref());
        if there.is_some_and(|(_, found)| file_type(found) == FileType::Directory) {
            return Err(is_directory());
        }
        let identity = found.as_ref().map(|found| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino));
        if let Some(first) = entry.metadata.link_group.and_then(|group| self.groups.get(&group)) {
            // It becomes another name of the first, whatever it is now.
            return Ok(match identity {
                None => Planned::Create,
                Some(_) if identity == *first => Planned::Keep,
                Some(_) => Planned::Replace,
            });
        }
        let planned = there.map_or(Planned::Create, |(parent, found)| self.file(parent, name, entry, found));
        if let Some(group) = entry.metadata.link_group.filter(|_| self.groups.len() < TREE_LINK_GROUPS_MAX) {
            let stays = !matches!(planned, Planned::Create | Planned::Replace);
            self.groups.insert(group, identity.filter(|_| stays));
        }
        Ok(planned)
    }

    /// What would become of something other than a directory, with something other than a directory in its place.
    fn file(&self, parent: &Directory, name: &Name, entry: &Entry, found: &Statx) -> Planned {
        let settings = &self.settings;
        let has_xattrs = || {
            let sets_all = settings.sets_all();
            parent.reach(name.as_bytes(), |path| attributes::are(path, &entry.metadata.xattrs, sets_all))
        };
        let differences = || settings.differences(&entry.metadata, found, has_xattrs).1;
        match (&entry.kind, file_type(found)) {
            (Kind::File { size_bytes, .. }, FileType::RegularFile) => {
                let mtime = super::settings::mtime_of(found);
                let is_timed = settings.times && mtime == (entry.metadata.mtime_s, entry.metadata.mtime_ns);
                let is_whole = settings.whole_file || settings.changes.never_compares;
                match (found.stx_size == *size_bytes, is_timed) {
                    (true, true) if !settings.whole_file => Planned::stays(differences()),
                    (true, false) if !is_whole => Planned::Compare,
                    _ => Planned::Replace,
                }
            }
            _ if is_same(parent, name, entry, found) => {
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
        let sets_all = settings.sets_all();
        let metadata = &entry.metadata;
        let has_xattrs = || attributes::are_open(directory.as_fd(), &metadata.xattrs, sets_all);
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
