//! What is replaced or deleted is kept (`--backup`): beside its place under another name, or in a directory of its own, which may be on any file
//! system.
//!
//! Nothing is without its name meanwhile: what is to be replaced gets a second name, and only then what replaces it takes the first. Across file systems,
//! and where there are no hard links, it is copied, with its bits, owner, time and attributes.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use dray_core::limits::{NAME_BYTES_MAX, SYNC_BACKUP_NAMES_MAX};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, Statx, Uid};
use rustix::io::Errno;

use super::attributes::{self, AttributeSort, Scope, Told};
use super::beside::Beside;
use super::contested::key;
use super::delete::{Identity, device, identity};
use super::directory::{Directory, stat_fd_for};
use super::overwrite::{FACTS, Which, is_half, replaced};
use super::place::{lacks_unnamed, make_named, times_of};
use super::settings::{Settings, mtime_of};
use super::special;
use super::temporary::{self, is_temporary};
use super::write::file_type;

/// Where what is replaced or deleted is kept.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// Below this directory, under its path in the destination; else beside its place.
    pub directory: Option<Beside>,
    /// What its name ends with; not empty without a directory.
    pub suffix: Vec<u8>,
}

/// What fails where what is there is kept as a copy.
const COPYING: &str = "copy what is there to keep it";

/// Whether what is kept is still needed in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Away {
    /// Until something else takes it.
    Replaced,
    /// This file is about to be written to.
    Changed(Which),
    /// No.
    Deleted,
}

/// What the backups of one run share.
#[derive(Debug, Default)]
pub(super) struct Backups {
    /// Where everything goes; `None` until that is known.
    base: Option<Directory>,
    /// The directory of the backups, once it is open.
    root: Option<Directory>,
    /// The one that the last backup went to: its path below that.
    last: Option<(Vec<u8>, Rc<Directory>)>,
    /// Which directory backups are in already; asked once.
    root_is: Option<Option<Identity>>,
    /// Paths below the destination, as hashes, of entries that were told and have names of backups: the source has those.
    told: HashSet<[u8; 16]>,
    /// There was no room for more of them.
    is_full: bool,
}

impl Settings {
    pub(super) fn backup(&self) -> Option<&BackupOptions> {
        self.sync().and_then(|sync| sync.backup.as_ref())
    }

    /// Relative paths of backups begin here.
    pub(super) fn backups_begin(&self, base: &Directory) -> Result<()> {
        if self.backup().is_some() {
            let base = base.duplicate().map_err(|error| Error::file("open the destination", error))?;
            let mut backups = self.backups.borrow_mut();
            let told = std::mem::take(&mut backups.told);
            *backups = Backups { base: Some(base), told, is_full: backups.is_full, ..Backups::default() };
        }
        Ok(())
    }

    /// The source has an entry of this name, at this path: no backup takes its place.
    pub(super) fn backups_spare(&self, name: &[u8], path: &dyn Fn() -> Vec<u8>) {
        if self.is_backup_name(name) {
            let mut backups = self.backups.borrow_mut();
            match backups.told.len() < SYNC_BACKUP_NAMES_MAX {
                true => drop(backups.told.insert(key(&path()))),
                false => backups.is_full = true,
            }
        }
    }

    /// The name of the backup of `name`, of which `found` tells, at this path, in `directory`: beside its place one that the source has not, with the suffix once more for each that it
    /// has. What is `half` has it once more, too, and for each other thing that is there: it takes the place of nothing.
    fn backup_name(
        &self,
        directory: &Directory,
        (name, found): (&[u8], &Statx),
        path: &dyn Fn() -> Vec<u8>,
        half: bool,
    ) -> Result<Vec<u8>> {
        let Some(backup) = self.backup() else { return Ok(name.to_vec()) };
        let is_beside = backup.directory.is_none();
        let backups = self.backups.borrow();
        let mut path = if is_beside && !backups.told.is_empty() { path() } else { Vec::new() };
        let mut kept = name.to_vec();
        let mut add = |kept: &mut Vec<u8>, suffix: &[u8]| {
            kept.extend_from_slice(suffix);
            path.extend_from_slice(suffix);
            // Of what nobody remembers nobody knows whose it is.
            let is_spared = is_beside
                && (backups.told.contains(&key(&path)) || (backups.is_full && directory.stat(kept).is_ok()));
            let is_taken = || directory.stat(kept).is_ok_and(|there| !is_copy(&there, found));
            is_spared || (half && is_taken())
        };
        let mut goes_on = add(&mut kept, &backup.suffix);
        let again: &[u8] = if backup.suffix.is_empty() { b"~" } else { &backup.suffix };
        if half {
            if backup.suffix.is_empty() {
                add(&mut kept, again);
            }
            goes_on = add(&mut kept, again);
        }
        while goes_on && kept.len() <= NAME_BYTES_MAX {
            goes_on = add(&mut kept, again);
        }
        if half && kept.len() > NAME_BYTES_MAX {
            let what = format!(
                "a run was cut off while it changed the file, and to keep that takes a name of more than {NAME_BYTES_MAX} bytes"
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("move it and its backups away, or run this once without --backup"));
        }
        if kept.len() > NAME_BYTES_MAX {
            let what = format!("its backup would have a name of more than {NAME_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::Unsupported, what).advise("name a --backup-dir"));
        }
        Ok(kept)
    }

    /// True for names of what is kept beside its place.
    pub(super) fn is_backup_name(&self, name: &[u8]) -> bool {
        self.backup().is_some_and(|backup| backup.directory.is_none() && name.ends_with(&backup.suffix))
    }

    /// True if what is deleted stays in its directory, under another name.
    pub(super) fn keeps_beside(&self, name: &[u8]) -> bool {
        self.backup().is_some_and(|backup| backup.directory.is_none()) && !self.is_never_kept(name)
    }

    /// True for names of what is not kept where it is deleted: as with rsync a backup is not kept again; nor is what a run that was cut off left.
    fn is_never_kept(&self, name: &[u8]) -> bool {
        self.is_backup_name(name) || is_temporary(name)
    }

    /// True for the directory of the backups, which is not deleted for lying in the destination.
    pub(super) fn is_backup_directory(&self, found: &Statx) -> bool {
        let Some(directory) = self.backup().and_then(|backup| backup.directory.as_ref()) else {
            return false;
        };
        let mut backups = self.backups.borrow_mut();
        let Some(base) = &backups.base else { return false };
        let look = || directory.open(base).ok().and_then(|it| it.stat_self().ok()).map(|it| identity(&it));
        let root = match backups.root_is {
            Some(root) => root,
            None => look(),
        };
        backups.root_is = Some(root);
        root == Some(identity(found))
    }

    /// Keeps what stands under `name` of `directory`, at this path below the destination, if that is asked for. True if it is not there any more. A copy takes its name, and the place
    /// of an older one, once it is whole and `may_stand`, which hears whether its blocks are those of what it is a copy of, agrees.
    pub(super) fn back_up(
        &self,
        directory: &Directory,
        name: &[u8],
        path: &dyn Fn() -> Vec<u8>,
        away: Away,
        may_stand: &dyn Fn(bool) -> Result<()>,
    ) -> Result<bool> {
        if self.unlinked.borrow().is_some()
            && let Ok(found) = directory.stat(name)
        {
            self.unlinks(&found);
        }
        let Some(backup) = self.backup() else { return Ok(false) };
        if away == Away::Deleted && self.is_never_kept(name) {
            return Ok(false);
        }
        let failed = |error| Error::file("look at it to keep it", error);
        let found = match directory.stat_for(name, FACTS) {
            Ok(found) if is_other(away, &found, directory, name) => return Err(replaced()),
            Ok(found) if file_type(&found) != FileType::Directory => found,
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        let to = match backup.directory {
            None => Rc::new(directory.duplicate().map_err(failed)?),
            Some(_) => self.backup_directory(&path())?,
        };
        // The run that began to change it kept what was there, and a mixture is not to take the place of that.
        let half = is_half(directory, name, &found);
        let kept = self.backup_name(&to, (name, &found), path, half)?;
        let itself = |directory: &Directory| directory.stat_self().map(|found| identity(&found));
        if kept == name && itself(&to).map_err(failed)? == itself(directory).map_err(failed)? {
            let what = "what is replaced would be kept under its own name";
            return Err(Error::new(ErrorKind::Refused, what)
                .advise("name a --backup-dir that is not the destination"));
        }
        let there = self.require_free(&to, &kept)?;
        if !matches!(away, Away::Changed(_))
            && there.is_some_and(|there| identity(&there) == identity(&found))
        {
            // Both are names of one file: it is kept already.
            return Ok(false);
        }
        let kept_at = Place { directory: &to, name: &kept };
        let from = Place { directory, name };
        let moved = match away {
            Away::Deleted => rustix::fs::renameat(directory, name, &*to, &kept[..]).map(|()| true),
            Away::Replaced => match link(&from, identity(&found), &kept_at) {
                Err(Errno::STALE) => return Err(replaced()),
                linked => linked.map(|()| false),
            },
            // Another name would change with it.
            Away::Changed(_) => Err(Errno::XDEV),
        };
        match moved {
            Ok(moved) => Ok(moved),
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.copy_aside(&from, &found, &kept_at, away, may_stand).map(|()| false)
            }
            Err(error) => Err(Error::file("keep what is there", error.into())),
        }
    }

    /// What would be overwritten, which is nothing of this run's sources.
    fn require_free(&self, directory: &Directory, name: &[u8]) -> Result<Option<Statx>> {
        let Ok(found) = directory.stat(name) else { return Ok(None) };
        if file_type(&found) == FileType::Directory {
            let what = "a directory stands where it would be kept";
            return Err(Error::new(ErrorKind::Refused, what).advise("name another --backup-dir or --suffix"));
        }
        if self.is_source(&found) { Err(is_source()) } else { Ok(Some(found)) }
    }

    fn is_source(&self, found: &Statx) -> bool {
        self.sync().is_some_and(|sync| sync.sources.contains(&(device(found), found.stx_ino)))
    }

    /// The directory where what is at `path` below the destination is kept, made like those that it is in there.
    fn backup_directory(&self, path: &[u8]) -> Result<Rc<Directory>> {
        let wanted = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let mut backups = self.backups.borrow_mut();
        if let Some((_, directory)) = backups.last.as_ref().filter(|(last, _)| last == wanted) {
            return Ok(directory.clone());
        }
        let failed = |error| Error::file("make the directory of the backups", error);
        let options = self.backup().and_then(|backup| backup.directory.as_ref());
        let (Some(options), Backups { base: Some(base), root, .. }) = (options, &mut *backups) else {
            return Err(Error::new(ErrorKind::Internal, "a backup before the destination is known"));
        };
        let root = match root {
            Some(root) => root,
            none => {
                let (made, is_new) = options.make(base, self.keeps_time_of(FileType::Directory))?;
                self.require_outside(&made)?;
                if is_new && let Ok(found) = base.stat_self() {
                    // What lies in the destination is no more open there than here.
                    self.keep_like(&made, &found);
                }
                none.insert(made)
            }
        };
        let (mut to, mut twin) = (root.duplicate().map_err(failed)?, base.duplicate().ok());
        for name in wanted.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            twin = twin.and_then(|twin| twin.child(name).ok());
            to = self.child_like(&to, name, twin.as_ref())?;
            if self.is_source(&to.stat_self().map_err(failed)?) {
                return Err(is_source());
            }
        }
        let found = to.stat_self().map_err(failed)?;
        // It is made durable with everything else.
        self.remember_device((found.stx_dev_major, found.stx_dev_minor), &to)?;
        let to = Rc::new(to);
        backups.last = Some((wanted.to_vec(), to.clone()));
        Ok(to)
    }

    /// The directory `name` of `parent`; one that is made has bits, owner and time of its twin in the destination.
    fn child_like(&self, parent: &Directory, name: &[u8], twin: Option<&Directory>) -> Result<Directory> {
        let failed = |error: io::Error| Error::file("make the directory of the backups", error);
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return parent.child(name).map_err(failed),
            Err(error) => return Err(failed(error.into())),
        }
        if self.is_durable() {
            self.make_durable(parent).map_err(|error| failed(error.into()))?;
        }
        let made = parent.child(name).map_err(failed)?;
        if let Some(found) = twin.and_then(|twin| twin.stat_self().ok()) {
            self.keep_like(&made, &found);
        }
        Ok(made)
    }

    /// Gives a directory that was made bits, owner and time of another one.
    fn keep_like(&self, made: &Directory, found: &Statx) {
        // Whoever owns it puts something into it.
        let working = if self.powers.is_root { 0 } else { 0o700 };
        keep_facts(made.as_fd(), found, u32::from(found.stx_mode) & 0o7777 | working);
    }

    /// Copies `from`, which `found` tells of, to `to`. What it is a copy of goes then: it is on disk first where that is deleted, and with `--fsync`.
    fn copy_aside(
        &self,
        from: &Place<'_>,
        found: &Statx,
        to: &Place<'_>,
        away: Away,
        may_stand: &dyn Fn(bool) -> Result<()>,
    ) -> Result<()> {
        let is_last = away == Away::Deleted || self.is_durable();
        if file_type(found) == FileType::RegularFile {
            self.copy_file(from, to, (away, is_last), may_stand)?;
        } else {
            copy_special(from, found, to).map_err(|error| Error::file(COPYING, error))?;
        }
        if is_last {
            // And its name.
            self.make_durable(to.directory)
                .map_err(|error| Error::file("make the copy durable", error.into()).context(COPYING))?;
        }
        Ok(())
    }

    /// Copies a file, which is on disk then if it `is_last`; where a file system tells late that it did not take it, it is asked in any case.
    fn copy_file(
        &self,
        from: &Place<'_>,
        to: &Place<'_>,
        (away, is_last): (Away, bool),
        may_stand: &dyn Fn(bool) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| Error::file("read it", error).context(COPYING);
        let source = from.directory.open_to_read(from.name);
        let source = source.map_err(|error| {
            failed(error).advise("let this user read it, or leave out --inplace or --backup")
        })?;
        let source = File::from(source);
        let found = stat_fd_for(source.as_fd(), FACTS).map_err(failed)?;
        if is_other(away, &found, from.directory, from.name) {
            return Err(replaced().context(COPYING));
        }
        let fill = |made: &File| -> Result<bool> {
            let is_shared = self.copy_content(&source, &found, made)?;
            keep_all(source.as_fd(), made.as_fd(), &found, &mut self.told.borrow_mut());
            let there =
                stat_fd_for(made.as_fd(), FACTS).map_err(|error| Error::file("look at the copy", error))?;
            let device = (there.stx_dev_major, there.stx_dev_minor);
            if is_last || self.fails_late(device, made.as_fd()) {
                self.make_durable(made).map_err(|error| Error::file("write the copy", error.into()))?;
            }
            Ok(is_shared)
        };
        let mut copied = Ok(());
        let made = temporary::keep(to.directory, to.name, &mut |temporary| {
            // Without a name, where there is that, nothing of it is left by who is killed.
            let (made, is_named) = match to.directory.unnamed() {
                Err(error) if lacks_unnamed(&error) => (make_named(to.directory, temporary)?, true),
                unnamed => (unnamed?, false),
            };
            let made = File::from(made);
            // Another run that keeps something there under this name does not take it for something left.
            let _ = rustix::fs::flock(&made, FlockOperation::NonBlockingLockExclusive);
            copied = fill(&made).map_err(|error| error.context(COPYING)).and_then(may_stand);
            if copied.is_err() {
                if is_named {
                    let _ = rustix::fs::unlinkat(to.directory, &temporary[..], AtFlags::empty());
                }
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !is_named {
                self.link_unnamed(made.as_fd(), to.directory, &temporary[..])?;
            }
            Ok(Some(made))
        });
        copied?;
        made.map_err(|error| Error::file("write the copy", error).context(COPYING))
    }

    /// `Refused` if the backups would go into a source of this run.
    fn require_outside(&self, directory: &Directory) -> Result<()> {
        let failed = |error| Error::file("look at the directory of the backups", error);
        if self.sync().is_none_or(|sync| sync.sources.is_empty()) {
            return Ok(());
        }
        let mut at = directory.duplicate().map_err(failed)?;
        let mut found = at.stat_self().map_err(failed)?;
        loop {
            if self.is_source(&found) {
                return Err(is_source());
            }
            let above = match at.above() {
                Ok(above) => above,
                // What it lies in is not ours to read: no run of ours reads it as a source.
                Err(Errno::ACCESS) => return Ok(()),
                Err(error) => return Err(failed(error.into())),
            };
            let found_above = above.stat_self().map_err(failed)?;
            if identity(&found_above) == identity(&found) {
                return Ok(());
            }
            (at, found) = (above, found_above);
        }
    }
}

/// True if `there` may be a copy of what `found` tells of, or another name of it.
fn is_copy(there: &Statx, found: &Statx) -> bool {
    file_type(there) == file_type(found)
        && (there.stx_size, mtime_of(there)) == (found.stx_size, mtime_of(found))
}

/// Whether `found` tells of another file than the one that is about to be written to.
fn is_other(away: Away, found: &Statx, directory: &Directory, name: &[u8]) -> bool {
    matches!(away, Away::Changed(it) if !it.is(found, directory, name))
}

fn is_source() -> Error {
    Error::new(ErrorKind::Refused, "it would be kept in a source of this run")
        .advise("name a --backup-dir that lies elsewhere")
}

/// A name in a directory.
struct Place<'a> {
    directory: &'a Directory,
    name: &'a [u8],
}

/// Makes `to` another name of `from`, in the place of what stands there. `STALE` if that is another file than this one by now: another run has kept that.
fn link(from: &Place<'_>, wanted: Identity, to: &Place<'_>) -> Result<(), Errno> {
    temporary::keep(to.directory, to.name, &mut |temporary| {
        rustix::fs::linkat(from.directory, from.name, to.directory, &temporary[..], AtFlags::empty())?;
        if to.directory.stat(temporary).is_ok_and(|found| identity(&found) != wanted) {
            let _ = rustix::fs::unlinkat(to.directory, &temporary[..], AtFlags::empty());
            return Err(Errno::STALE.into());
        }
        Ok(None)
    })
    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn copy_special(from: &Place<'_>, found: &Statx, to: &Place<'_>) -> io::Result<()> {
    let kind = special::kind_of(from.directory, from.name, found, None)?;
    temporary::keep(to.directory, to.name, &mut |temporary| {
        special::make_one(to.directory, temporary, &kind, u32::from(found.stx_mode) & 0o7777)?;
        let (uid, gid) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let _ = rustix::fs::chownat(to.directory, &temporary[..], Some(uid), Some(gid), flags);
        let _ = rustix::fs::utimensat(to.directory, &temporary[..], &times_of(mtime_of(found)), flags);
        Ok(None)
    })
}

/// Gives a copy of `source`, which `found` tells of, everything that this has besides its content, as far as this process may; attributes, bits and times that it does not
/// get are counted.
///
/// The owner comes first: a change of it takes capabilities and setuid away, whoever makes it. The bits follow the attributes, among which an ACL changes them.
pub(super) fn keep_all(source: BorrowedFd<'_>, made: BorrowedFd<'_>, found: &Statx, told: &mut Told) {
    let mode = keep_owner(made, found, u32::from(found.stx_mode) & 0o7777);
    let scope =
        Scope { is_root: rustix::process::geteuid().is_root(), sort: AttributeSort::All, fakes: false };
    match attributes::read_open(source, scope) {
        Ok(xattrs) => attributes::set(made, &xattrs, scope, told),
        Err(error) => *told.failed.entry(format!("attributes of what is kept: {error}")).or_default() += 1,
    }
    if let Err(error) = keep_bits(made, found, mode) {
        let error = io::Error::from(error);
        *told.failed.entry(format!("bits or times of what is kept: {error}")).or_default() += 1;
    }
}

/// Gives a copy owner, bits and time of what it is a copy of, as far as this process may.
fn keep_facts(fd: BorrowedFd<'_>, found: &Statx, mode: u32) {
    let mode = keep_owner(fd, found, mode);
    let _ = keep_bits(fd, found, mode);
}

/// Gives a copy the owner of what it is a copy of, if this process may; which bits it may have then.
fn keep_owner(fd: BorrowedFd<'_>, found: &Statx, mode: u32) -> u32 {
    let (uid, gid) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
    let is_owned = rustix::fs::fchown(fd, Some(uid), Some(gid)).is_ok();
    // The powers of another owner are not this one's to lend.
    if is_owned { mode } else { mode & 0o1777 }
}

fn keep_bits(fd: BorrowedFd<'_>, found: &Statx, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))
        .and(rustix::fs::futimens(fd, &times_of(mtime_of(found))))
}
