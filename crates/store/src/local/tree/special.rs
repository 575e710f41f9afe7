//! Entries without content: symbolic links, fifos, sockets and devices. They are not opened but for their metadata (`O_PATH`).

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use dray_core::tree::{Entry, Kind, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Statx, Uid};
use rustix::io::Errno;

use super::backup::Away;
use super::basis::{Basis, has_attributes};
use super::directory::{Directory, stat_fd, stat_fd_for};
use super::fake::{Access, Place, is_open_to_others};
use super::opened::OpenDirectory;
use super::overwrite::FACTS;
use super::place::{Identity, Now, identity_of, taken, times_of};
use super::removing::mark_changed;
use super::settings::Settings;
use super::sync::How;
use super::temporary::{self, make_under, replace};
use super::unsynced::is_long_link;
use super::write::{Placed, file_type, is_directory, is_same};

/// Makes the link, fifo, socket or device `entry`, and says what it is then; `basis` is what another directory has of it, where nothing stands here.
pub(super) fn make(
    parent: &Rc<OpenDirectory>,
    name: &Name,
    entry: &Entry,
    basis: Option<&Basis>,
) -> Result<(Placed, Identity)> {
    let (directory, settings) = (&parent.directory, parent.settings());
    let is_device = matches!(entry.kind, Kind::CharacterDevice { .. } | Kind::BlockDevice { .. });
    if is_device && settings.harmless && !settings.fakes() {
        return Err(Error::new(ErrorKind::Refused, "devices are not made of what comes from somebody else"));
    }
    let mut found = if parent.is_new { None } else { settings.stat(directory, name.as_bytes()).ok() };
    if found.is_some() {
        parent.check_own(name)?;
    }
    let mut waits = false;
    if found.as_ref().is_some_and(|found| file_type(found) == FileType::Directory) {
        if settings.sync().is_none() {
            return Err(is_directory());
        }
        waits = !settings.make_way(directory, name)?;
        found = None;
    }
    let mode = settings.mode(entry.metadata.mode, || parent.granted());
    let mut make = |name: &[u8]| match settings.fakes() {
        true => settings.make_stand_in(directory, name, &entry.kind, mode, &entry.metadata),
        false => make_one(directory, name, &entry.kind, mode),
    };
    // Where its source is to go what nobody can ask for is made anew.
    let is_asked_for = |found: &Statx| {
        !settings.removes_sources() || !is_long_link(found) || !settings.tells_of_directories(directory)
    };
    let is_there = |found: &Statx| is_same(settings, directory, name, entry, found) && is_asked_for(found);
    let is_same_there = found.as_ref().is_some_and(is_there);
    let how = if is_same_there { How::Stays } else { How::Made };
    // Other names of it are not to change with it.
    let is_shared =
        |found: &Statx| settings.is_shared(found) && !has_attributes(settings, directory, name, entry, found);
    // Nor is what it says to be what others may have open to write, who could by its bits.
    let is_open =
        || settings.fakes() && directory.stat(name.as_bytes()).is_ok_and(|it| is_open_to_others(&it));
    let is_changed = !is_same_there || found.as_ref().is_some_and(is_shared) || is_open();
    let done = match basis {
        Some(basis) => basis.describe(settings, entry, basis.how(), &|| parent.path(name)),
        None => parent.describe(name, entry, found.as_ref(), how),
    };
    let mut name_now = Cow::Borrowed(name);
    if is_changed {
        parent.touch();
        let made = if waits {
            temporary::make(parent, name, &mut |temporary| make(temporary)).and_then(|(temporary, ())| {
                let waiting = parent.wait_for_way(name, &temporary)?;
                name_now = Name::new(&waiting).map_or(Cow::Borrowed(name), Cow::Owned);
                Ok(())
            })
        } else if found.is_none() && settings.fakes() {
            // It has its name once it has its attribute: a process that is killed leaves nothing that is taken for a file.
            make_under(parent, name, true, &mut make)
        } else if found.is_none() {
            make(name.as_bytes())
        } else {
            if !is_same_there {
                parent.back_up(name, Away::Replaced)?;
            }
            replace(parent, name, &mut make)
        };
        made.map_err(|error| taken(parent, name, error, "make it"))?;
    }
    // Whatever anybody does to the name from here on, this is what is changed.
    let failed = |error| Error::file("open it for its metadata", error);
    let fd = directory.open_at(name_now.as_bytes(), OFlags::PATH, Mode::empty()).map_err(failed)?;
    let real = stat_fd(fd.as_fd()).map_err(failed)?;
    let access =
        Access::to(fd.as_fd(), &real, directory, name_now.as_bytes()).map_err(|error| match error {
            Errno::STALE => Error::new(ErrorKind::Changed, "it was replaced meanwhile"),
            error => failed(error.into()),
        })?;
    let there = settings.seen_at(access.at(), &real);
    if !is_same(settings, directory, &name_now, entry, &there) {
        return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile"));
    }
    if is_changed && !waits {
        parent.note_new(name, found.is_some(), || stat_fd_for(fd.as_fd(), FACTS));
    }
    let mode = match &entry.kind {
        Kind::Symlink { .. } => None,
        _ if settings.modes || is_changed => Some(mode),
        _ => None,
    };
    settings.apply_by_path(&fd, &access, &entry.metadata, &there, mode);
    if !matches!(entry.kind, Kind::Symlink { .. }) {
        settings.count_lacking(&entry.metadata);
    }
    if is_same_there && settings.removes_sources() {
        mark_changed(&parent.directory, name.as_bytes())?;
    }
    settings.did(done);
    let identity = identity_of(&there);
    Ok((if is_same_there { Placed::Unchanged } else { Placed::Done }, identity))
}

/// What stands under `name`, which `found` tells of and which is neither a regular file nor a directory, unless a file stands for it, which is `stand_in`.
pub(super) fn kind_of(
    directory: &Directory,
    name: &[u8],
    found: &Statx,
    stand_in: Option<&Place>,
) -> io::Result<Kind> {
    let (major, minor) = (found.stx_rdev_major, found.stx_rdev_minor);
    Ok(match file_type(found) {
        FileType::Symlink => {
            let target = match stand_in {
                Some(place) => place.target()?,
                None => rustix::fs::readlinkat(directory, name, Vec::new())?.into_bytes(),
            };
            Kind::Symlink { target }
        }
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharacterDevice { major, minor },
        FileType::BlockDevice => Kind::BlockDevice { major, minor },
        _ => return Err(io::ErrorKind::Unsupported.into()),
    })
}

/// Makes something of this kind, for nobody else until it has its owner.
pub(super) fn make_one(directory: &Directory, name: &[u8], kind: &Kind, mode: u32) -> io::Result<()> {
    let (kind, device) = match *kind {
        Kind::Symlink { ref target } => return Ok(rustix::fs::symlinkat(&target[..], directory, name)?),
        Kind::Fifo => (FileType::Fifo, 0),
        Kind::Socket => (FileType::Socket, 0),
        Kind::CharacterDevice { major, minor } => {
            (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
        }
        Kind::BlockDevice { major, minor } => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        Kind::File { .. } | Kind::Directory { .. } => return Err(Errno::INVAL.into()),
    };
    let mode = Mode::from_raw_mode(mode & 0o600);
    Ok(rustix::fs::mknodat(directory, name, kind, mode, device)?)
}

impl Settings {
    /// What [`Settings::apply`] does, for what cannot be opened but as a path: `mode` is what its bits become, if they are set.
    pub(super) fn apply_by_path(
        &self,
        fd: &OwnedFd,
        access: &Access,
        metadata: &Metadata,
        there: &Statx,
        mode: Option<u32>,
    ) {
        let at = access.at();
        let is_link = file_type(there) == FileType::Symlink;
        let mode_now = u32::from(there.stx_mode) & 0o7777;
        let mut mode = mode;
        let mut now = Now { mode: Some(mode_now), ..Now::default() };
        let fakes = self.fakes();
        if fakes && self.xattrs {
            self.open_for_attributes(at, fd.as_fd());
        }
        if self.owners && !fakes {
            let (uid, gid) = self.owner_of(metadata.uid, metadata.gid);
            let mut is_set = true;
            let (uid_to_set, gid_to_set) =
                (uid.filter(|uid| *uid != there.stx_uid), gid.filter(|gid| *gid != there.stx_gid));
            if uid_to_set.is_some() || gid_to_set.is_some() {
                let (uid, gid) = (uid_to_set.map(Uid::from_raw), gid_to_set.map(Gid::from_raw));
                if let Err(error) = rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH) {
                    self.count("owner", error);
                    is_set = false;
                }
                now.mode = None;
            }
            mode = mode.map(|mode| self.without_foreign_powers(mode, metadata, (uid, gid), is_set, false));
        }
        if self.xattrs && !is_link && !metadata.xattrs_unread {
            let mut told = self.told.borrow_mut();
            at.set_attributes(&metadata.xattrs, self.attribute_scope(), &mut told);
        }
        if fakes {
            let (major, minor) = (there.stx_rdev_major, there.stx_rdev_minor);
            let kind = match file_type(there) {
                FileType::Symlink => Kind::Symlink { target: Vec::new() },
                FileType::Fifo => Kind::Fifo,
                FileType::Socket => Kind::Socket,
                FileType::CharacterDevice => Kind::CharacterDevice { major, minor },
                FileType::BlockDevice => Kind::BlockDevice { major, minor },
                _ => Kind::File { size_bytes: 0, oid: None },
            };
            self.apply_fake(at, fd.as_fd(), &kind, mode, metadata);
        } else if let Some(mode) = mode.filter(|mode| now.mode != Some(*mode))
            && let Err(error) = at.set_mode(mode)
        {
            self.count("permissions", error);
        }
        let mtime = (metadata.mtime_s, metadata.mtime_ns);
        if self.keeps_time_of(file_type(there))
            && mtime != (there.stx_mtime.tv_sec, there.stx_mtime.tv_nsec)
            && let Err(error) = rustix::fs::utimensat(fd, "", &times_of(mtime), AtFlags::EMPTY_PATH)
        {
            self.count("modification time", error);
        }
    }
}
