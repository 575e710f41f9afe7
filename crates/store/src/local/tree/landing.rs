//! Where the trees of a copy go, from the destination that the user named and the names of the sources.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dray_core::tree::{Entry, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, Statx};
use rustix::io::Errno;

use super::contested::Contested;
use super::directory::Directory;
use super::origin::Origin;
use super::place::identity_of;
use super::settings::Settings;
use super::stage::{Whole, is_mount};
use super::sync::Done;
use super::unfinished;
use super::write::{IS_FILE, NO_DESTINATION};

/// Of a directory above the destination.
const MAKE_PATH: &str = "make it first, or let the directories above the destination be made: --mkpath";

/// What becomes of directories above a destination that are not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Above {
    /// They are not made: that is an error.
    IsThere,
    /// They are made at once.
    IsMade,
    /// They would be made, but this is a dry run.
    WouldBeMade,
}

/// Where the trees of a copy go, as they stood when it began.
#[derive(Debug)]
pub struct Places {
    base: Directory,
    names: Vec<Option<Name>>,
}

impl Places {
    /// What stands where the tree of each source goes, if that is a directory. Each is opened when it is asked for: there may be more of
    /// them than files that may be open.
    pub fn directories(&self) -> impl ExactSizeIterator<Item = Option<Directory>> {
        self.names.iter().map(|name| match name {
            Some(name) => self.base.child(name.as_bytes()).ok(),
            None => self.base.duplicate_for_listing().ok(),
        })
    }
}

/// Adds `advice` to what is not there.
fn missing(advice: &'static str) -> impl Fn(Error) -> Error {
    move |error| if error.kind() == ErrorKind::NotFound { error.or_advise(advice) } else { error }
}

/// The name of a destination, which the user wrote.
fn own_name(name: &OsStr) -> Result<Name> {
    Name::new(name.as_bytes())
        .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()).advise("name another destination"))
}

fn directory(origin: &Origin, path: &Path) -> Result<Directory> {
    origin.directory(if path.as_os_str().is_empty() { Path::new(".") } else { path })
}

/// The directory at `path`, made with those above it.
fn made(origin: &Origin, path: &Path) -> Result<Directory> {
    let error = match directory(origin, path) {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        opened => return opened,
    };
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(error) };
    let above = made(origin, above)?;
    let failed = |error| Error::file(format!("make the directory {path:?}"), error);
    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed(error.into())),
    }
    above.child(name.as_bytes()).map_err(failed)
}

/// The last directory on the way to `path` that is there, and the first name below it that is not; `name` if all is there.
fn first_missing(origin: &Origin, path: &Path, name: Name) -> Result<(Directory, Name)> {
    match directory(origin, path) {
        Err(error) if error.kind() == ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            (Some(above), Some(missing)) => first_missing(origin, above, own_name(missing)?),
            _ => Err(error),
        },
        opened => Ok((opened?, name)),
    }
}

/// Where the trees of a copy go: a directory, and the name of each tree in it.
#[derive(Debug)]
pub struct Landing {
    pub(super) base: Directory,
    /// `None`: the tree's entries go into the directory itself.
    pub(super) names: Vec<Option<Name>>,
    /// What is to be made in it first: see [`Landing::resolve_sync`].
    pub(super) make: Option<Name>,
    /// A file stands where everything goes.
    is_file: bool,
    /// The only source, which is no directory, takes the destination's own name, and has this one.
    told_as: Option<Name>,
    /// The only source takes the destination's own name, under which nothing was.
    pub(super) is_renamed: bool,
    /// The only source, or what is in it, goes under the destination's own name, where no directory was.
    pub(super) has_own_name: bool,
    /// It ends with a slash, and was not there: it is to be a directory.
    is_slashed: bool,
    /// Hashes that know the only source: the first is the mark's, others are believed, too.
    pub(super) sources: Vec<[u8; 32]>,
    /// Where the only source goes instead if it is a directory: an earlier copy of it made that and was cut off.
    again: Option<(Directory, Name)>,
    /// It is switched as a whole for a tree that is made beside it.
    pub(super) whole: Option<Whole>,
}

impl Landing {
    /// As `cp` and `scp` have it: into `path` if that is a directory, under the `names` of the sources; else a single source
    /// takes the path's own name. An empty name means that the entries go into the directory itself.
    pub fn resolve(path: &Path, names: &[Vec<u8>], must_be_directory: bool) -> Result<Landing> {
        Landing::resolve_at(&Origin::Anywhere, path, names, must_be_directory)
    }

    /// The same for a copy whose only source has hashes that know it among all, that of its mark first: a directory goes on where an
    /// earlier copy of it that was cut off made the destination.
    pub fn of_source(
        mut self,
        origin: &Origin,
        path: &Path,
        sources: impl IntoIterator<Item = [u8; 32]>,
    ) -> Landing {
        self.sources = sources.into_iter().collect();
        if let ([Some(_)], false) = (&self.names[..], self.is_renamed)
            && unfinished::is_of(&self.base, &self.sources)
        {
            self.again = self.way_to_base(origin, path);
        }
        self
    }

    /// The directory above the one at `path`, which everything would go into, and its name there; nothing if a link leads to it.
    fn way_to_base(&self, origin: &Origin, path: &Path) -> Option<(Directory, Name)> {
        let text = path.as_os_str().as_bytes();
        let end = text.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let start = text[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let name = Name::new(&text[start..end]).ok()?;
        let parent = if start == 0 { Path::new(".") } else { Path::new(OsStr::from_bytes(&text[..start])) };
        let parent = origin.directory(parent).ok()?;
        let (named, base) = (parent.stat(name.as_bytes()).ok()?, self.base.stat_self().ok()?);
        (identity_of(&named) == identity_of(&base)).then_some((parent, name))
    }

    /// The same destination, at `path`, to be switched as a whole for a tree that is made beside it. `Refused` where that cannot be.
    pub fn as_a_whole(mut self, origin: &Origin, path: &Path) -> Result<Landing> {
        let failed = |error| Error::file("look at the destination", error);
        // What to do does not cross the wire, so it stands in what is said.
        let refused = |what: &str| Err(Error::new(ErrorKind::Refused, format!("--atomic: {path:?} {what}")));
        if self.names.len() != 1 || self.names[0].is_some() || self.is_file {
            return refused(
                "is switched for what is in one directory: end SRC with a slash, and name a directory",
            );
        }
        if let Some(name) = self.make.clone() {
            let parent = self.base.duplicate().map_err(failed)?;
            self.whole = Some(Whole { parent, name, replaced: None });
            return Ok(self);
        }
        let Some((parent, name)) = self.way_to_base(origin, path) else {
            return refused(
                "is a symbolic link, or has no name in a directory that may be written to: name the directory itself",
            );
        };
        let (found, above) = (self.base.stat_self().map_err(failed)?, parent.stat_self().map_err(failed)?);
        let device = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor);
        if is_mount(&found) || device(&found) != device(&above) {
            return refused(
                "is mounted, or a file system of its own, which cannot be switched: name a directory in it",
            );
        }
        let replaced = Some(self.base.duplicate().map_err(failed)?);
        self.whole = Some(Whole { parent, name, replaced });
        Ok(self)
    }

    /// True if what comes goes below a directory of which `is_it`, by device and inode; false where nobody can tell. One that is the very directory that a tree without a name goes
    /// into is not meant.
    pub fn lies_in(&self, is_it: impl Fn(u64, u64) -> bool) -> bool {
        let Ok(whole) = std::fs::read_link(OsStr::from_bytes(&Directory::path_of(self.base.as_fd()))) else {
            return false;
        };
        let is_base = self.make.is_none() && self.names.iter().all(Option::is_none);
        let is_above =
            |path: &Path| std::fs::metadata(path).is_ok_and(|found| is_it(found.dev(), found.ino()));
        whole.ancestors().skip(usize::from(is_base)).any(is_above)
    }

    /// True if a directory goes on where an earlier copy of it was cut off, and not under its own name.
    pub fn may_go_on(&self) -> bool {
        self.again.is_some()
    }

    /// Where the trees of the sources go; `None` if there is nothing that both ends could have alike, or where a tree goes is decided by its root.
    pub fn places(&self) -> Option<Places> {
        let is_open = self.make.is_some() || self.is_file || self.is_renamed || self.again.is_some();
        // What an earlier run left beside it is to go, whatever is alike.
        let is_open = is_open || self.whole.as_ref().is_some_and(Whole::has_left);
        if is_open || Contested::new(&self.names).is_possible() {
            return None;
        }
        let places = Places { base: self.base.duplicate().ok()?, names: self.names.clone() };
        let has_any = places.directories().flatten().any(|directory| directory.has_names());
        has_any.then_some(places)
    }

    /// The root of the only tree comes: whether it goes on there.
    pub(super) fn go_on(&mut self, root: &Entry) -> bool {
        let Some((parent, name)) = self.again.take().filter(|_| root.is_directory()) else { return false };
        (self.base, self.names) = (parent, vec![Some(name)]);
        true
    }

    /// The same for a path that begins at `origin`.
    pub fn resolve_at(
        origin: &Origin,
        path: &Path,
        names: &[Vec<u8>],
        must_be_directory: bool,
    ) -> Result<Landing> {
        let parse = |name: &Vec<u8>| {
            if name.is_empty() {
                return Ok(None);
            }
            let advice = "name the destination file";
            Name::new(name)
                .map(Some)
                .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()).advise(advice))
        };
        match origin.directory(path) {
            Ok(base) => Ok(Landing::into(base, names.iter().map(parse).collect::<Result<_>>()?)),
            Err(error) if origin.forbids(&error) => Err(error),
            Err(_) if (must_be_directory || names.len() != 1) && origin.is_file(path) => {
                Err(Error::new(ErrorKind::Refused, format!("{path:?} is no directory"))
                    .advise("several sources go into a directory"))
            }
            Err(error) if must_be_directory || names.len() != 1 => {
                Err(error.or_advise("several sources go into a directory: make it first"))
            }
            Err(error) => {
                let text = path.as_os_str().as_bytes();
                let trimmed = text.strip_suffix(b"/").unwrap_or(text);
                let is_there = origin.kind(Path::new(OsStr::from_bytes(trimmed))).is_ok();
                if is_there && text.ends_with(b"/") {
                    return Err(error);
                }
                let path = Path::new(OsStr::from_bytes(trimmed));
                let Some(name) = path.file_name() else { return Err(error) };
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let base =
                    origin.directory(parent.unwrap_or(Path::new("."))).map_err(missing("make it first"))?;
                // What is in a directory goes into the destination whether that is there or not.
                let is_renamed = names.iter().any(|name| !name.is_empty());
                let names = vec![Some(own_name(name)?)];
                let is_slashed = text.ends_with(b"/");
                Ok(Landing { is_renamed, has_own_name: true, is_slashed, ..Landing::into(base, names) })
            }
        }
    }

    fn into(base: Directory, names: Vec<Option<Name>>) -> Landing {
        Landing {
            base,
            names,
            make: None,
            is_file: false,
            told_as: None,
            is_renamed: false,
            has_own_name: false,
            is_slashed: false,
            sources: Vec::new(),
            again: None,
            whole: None,
        }
    }

    /// As rsync has it: the destination is a directory, which is made when the first entry comes if it is not there; but a single
    /// source that is a file may take its name.
    pub fn resolve_sync(origin: &Origin, path: &Path, names: &[Vec<u8>]) -> Result<Landing> {
        Landing::resolve_sync_below(origin, path, names, Above::IsThere)
    }

    /// The same, and what is to become of directories above the destination that are not there.
    pub fn resolve_sync_below(
        origin: &Origin,
        path: &Path,
        names: &[Vec<u8>],
        above: Above,
    ) -> Result<Landing> {
        let parse = |name: &Vec<u8>| if name.is_empty() { Ok(None) } else { Name::new(name).map(Some) };
        let names: Vec<Option<Name>> = names.iter().map(parse).collect::<Result<_>>()?;
        let error = match origin.directory(path) {
            Ok(base) => return Ok(Landing::into(base, names)),
            Err(error) if origin.forbids(&error) => return Err(error),
            Err(error) => error,
        };
        let text = path.as_os_str().as_bytes();
        let end = text.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let trimmed = Path::new(OsStr::from_bytes(&text[..end]));
        let is_there = origin.kind(trimmed).is_ok();
        if is_there && (end < text.len() || names.len() != 1 || names[0].is_none() || !origin.is_file(path)) {
            return Err(error.or_advise("the destination has to be a directory"));
        }
        let Some(name) = trimmed.file_name() else { return Err(error) };
        let name = own_name(name)?;
        let parent = trimmed.parent().unwrap_or(Path::new(""));
        let (base, name) = match above {
            Above::IsThere => (directory(origin, parent).map_err(missing(MAKE_PATH))?, name),
            Above::IsMade => (made(origin, parent)?, name),
            Above::WouldBeMade => first_missing(origin, parent, name)?,
        };
        Ok(match is_there {
            true => {
                let mut landing = Landing { is_file: true, ..Landing::into(base, names) };
                landing.rename(name);
                landing
            }
            false => Landing { make: Some(name), ..Landing::into(base, names) },
        })
    }

    /// The only source takes the destination's own name.
    pub(super) fn rename(&mut self, name: Name) {
        self.told_as = self.names.first().cloned().flatten();
        self.names = vec![Some(name)];
    }

    /// What was done, as it is told: as with rsync, a source that takes another name is told by its own one. What is deleted there has the other.
    pub(super) fn told(&self, mut all: VecDeque<Done>) -> VecDeque<Done> {
        if let Some(name) = &self.told_as {
            all.iter_mut()
                .filter(|done| done.letters.is_some())
                .for_each(|done| done.path = name.as_bytes().to_vec());
        }
        all
    }

    /// The first entry comes: whether the destination is made, as a directory, for it.
    pub(super) fn makes_directory(&self, entry: &Entry, settings: &Settings) -> Result<Option<Name>> {
        if self.is_file && entry.is_directory() {
            return Err(Error::new(ErrorKind::Refused, format!("{IS_FILE}, the source a directory"))
                .advise("name another destination"));
        }
        if self.is_slashed && !entry.is_directory() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{NO_DESTINATION}, and its name ends with a /"),
            )
            .advise("make it first, or leave the / away to name a file"));
        }
        let must = settings.sync().is_some_and(|sync| sync.into_directory);
        Ok(self.make.clone().filter(|_| must || entry.is_directory() || self.names.len() > 1))
    }
}
