//! Regular files: which of them are wanted, which stay, and what of those is brought up to date.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use dray_core::tree::{Entry, Finished, Metadata, Name};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, Statx};

use super::attributes;
use super::content::{FileState, hash_content};
use super::directory::{Directory, stat_fd};
use super::fake::Access;
use super::opened::OpenDirectory;
use super::overwrite::{Existing, forget_whole, left_whole};
use super::place::{FileTarget, Identity, Now, There, identity_of};
use super::removing::mark_changed;
use super::settings::{Differences, mtime_of};
use super::sync::{How, Verdict};
use super::write::{Placed, TreeWriter, file_type, is_directory};

impl TreeWriter {
    /// With `-u`: `found` stays, whatever other names the entry has, unless it is neither old nor new.
    pub(super) fn keeps_newer(
        &self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        found: &Statx,
    ) -> bool {
        self.settings.is_newer(entry, found)
            && !(self.settings.may_keep_half(found) && left_whole(parent, name).is_some())
    }

    pub(super) fn place_file(
        &mut self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        entry: &Entry,
        size_bytes: u64,
        looked: Option<Option<Statx>>,
    ) -> Result<Placed> {
        let settings = self.settings.clone();
        let done = |found: Option<&Statx>, how| parent.describe(name, entry, found, how).map(Box::new);
        let target = |there, found: Option<&Statx>| {
            let mut target = Box::new(FileTarget::new(parent.clone(), name.clone(), entry, there));
            target.seen = found.map(identity_of);
            target.existing = found.and_then(|found| Existing::of(&settings, found, &entry.metadata));
            target.done = done(found, How::Comes);
            target
        };
        let found = looked.map_or_else(|| self.found(parent, name), Ok)?;
        let Some(found) = found else {
            return self.place_new(parent, name, entry, size_bytes, There::Nothing);
        };
        parent.check_own(name)?;
        match file_type(&found) {
            FileType::Directory if settings.sync().is_some() => {
                self.place_new(parent, name, entry, size_bytes, There::Directory)
            }
            FileType::Directory => Err(is_directory()),
            FileType::RegularFile => {
                let there = There::File(u32::from(found.stx_mode) & 0o777);
                let (mut gains_powers, mut is_refused) = (false, false);
                let verdict = match settings.verdict(entry, size_bytes, &found) {
                    // Another user may have it open or mapped, and what he writes to it would have them.
                    Verdict::Keep | Verdict::Compare
                        if settings.gains_powers(&parent.directory, name, &entry.metadata, &found) =>
                    {
                        gains_powers = true;
                        Verdict::Want
                    }
                    // It is neither old nor new, whatever its size and time say.
                    Verdict::Pass | Verdict::Keep
                        if settings.may_keep_half(&found) && left_whole(parent, name).is_some() =>
                    {
                        Verdict::Want
                    }
                    // What is read of it proves nothing.
                    Verdict::Compare
                        if settings.distrusts_half(&found) && left_whole(parent, name).is_some() =>
                    {
                        Verdict::Want
                    }
                    // Size and time are those of its other name.
                    Verdict::Keep if settings.changed_elsewhere(&found, &|| parent.path(name)) => {
                        if settings.changes.never_compares { Verdict::Want } else { Verdict::Compare }
                    }
                    // What is compared is to be what its disk has.
                    Verdict::Compare
                        if settings.is_durable() && settings.is_unsure(&parent.directory, name) =>
                    {
                        is_refused = true;
                        Verdict::Want
                    }
                    verdict => verdict,
                };
                if verdict != Verdict::Pass
                    && let Some(placed) = self.place_exact(parent, name, entry, &found, there)?
                {
                    return Ok(placed);
                }
                match verdict {
                    Verdict::Pass => Ok(Placed::Passed),
                    Verdict::Want => {
                        let mut target = target(there, Some(&found));
                        target.gains_powers = gains_powers;
                        target.is_refused = is_refused;
                        Ok(Placed::Wanted(target, None))
                    }
                    Verdict::Keep => {
                        let done = done(Some(&found), How::Stays);
                        let kept = self.keep(parent, name, &entry.metadata, &found);
                        if let Some(group) = &entry.metadata.link_group {
                            let was = identity_of(&found);
                            self.came(group, parent, name, *kept.as_ref().unwrap_or(&was));
                        }
                        kept.map(|_| {
                            forget_whole(parent, name, &found);
                            settings.stays_at(&found, &|| parent.path(name));
                            settings.did(done.map(|done| *done));
                            Placed::Unchanged
                        })
                    }
                    Verdict::Compare => {
                        let mut target = target(there, Some(&found));
                        target.is_quiet_if_same = settings.is_quiet_if_same(entry, size_bytes, &found);
                        if target.is_quiet_if_same {
                            target.done_same = done(Some(&found), How::Stays);
                        }
                        let known = if size_bytes < settings.compares_below.get() {
                            hash_of(&parent.directory, name, size_bytes, self.stop.as_deref())?
                        } else {
                            None
                        };
                        if let Some((_, state)) = known {
                            target.compared(state, found.stx_nlink == 1);
                        }
                        Ok(Placed::Wanted(target, known.map(|(hash, _)| hash)))
                    }
                }
            }
            _ => self.place_new(parent, name, entry, size_bytes, There::Other),
        }
    }

    /// Brings what the copy keeps of a file whose content is right up to date. `Changed` if somebody wrote to it, or put another in its
    /// place, since it was compared: what is there now nobody has compared.
    pub fn keep_same(&mut self, target: &mut FileTarget, finished: &Finished) -> Result<Identity> {
        (target.metadata.mtime_s, target.metadata.mtime_ns) = (finished.mtime_s, finished.mtime_ns);
        if let Some(basis) = target.basis.take() {
            return self.keep_basis(target, *basis);
        }
        let mut found = self.look_at(target)?;
        let now = FileState::of(&found);
        let mut is_exact = target.compared.is_some_and(|compared| compared.is(&now));
        let mut is_held = target.compared.is_none_or(|compared| compared.is(&now));
        if !is_exact && target.may_change_elsewhere() {
            // It may have been changed here under another name, or only what is told of that: no time tells which.
            let stop = self.stop.as_deref();
            let read = hash_of(&target.directory.directory, &target.name, finished.size_bytes, stop)?;
            let state = read.filter(|(hash, _)| *hash == finished.hash).map(|(_, state)| state);
            found = self.look_at(target)?;
            is_exact = state == Some(FileState::of(&found));
            is_held = is_exact;
        }
        if !is_held
            || (!is_exact && self.settings.changed_elsewhere(&found, &|| target.path()))
            || (self.settings.distrusts_half(&found) && left_whole(&target.directory, &target.name).is_some())
            || self.gains_powers(target, &found)
        {
            return Err(Error::new(ErrorKind::Changed, "another program wrote to it while it was compared")
                .advise("copy it again"));
        }
        let kept = self.keep(&target.directory, &target.name, &target.metadata, &found)?;
        if target.is_quiet_if_same {
            target.done = target.done_same.take();
        }
        target.leave_whole(&found);
        self.settings.stays_at(&found, &|| target.path());
        if self.settings.removes_sources() {
            mark_changed(&target.directory.directory, target.name.as_bytes())?;
        }
        Ok(kept)
    }

    /// What stands under the name of `target` now.
    fn look_at(&self, target: &FileTarget) -> Result<Statx> {
        let found = self.settings.stat(&target.directory.directory, target.name.as_bytes());
        found.map_err(|error| Error::file("look at what is there", error))
    }

    /// True if the file in the place of `target`, which `found` tells of, is not to have what is told of that, but a new one is.
    fn gains_powers(&self, target: &FileTarget, found: &Statx) -> bool {
        let directory = &target.directory.directory;
        target.gains_powers || self.settings.gains_powers(directory, &target.name, &target.metadata, found)
    }

    /// Brings what the copy keeps of the file that `found` tells of up to date; which file that is then.
    fn keep(
        &self,
        parent: &Rc<OpenDirectory>,
        name: &Name,
        metadata: &Metadata,
        found: &Statx,
    ) -> Result<Identity> {
        let identity = identity_of(found);
        self.settings.count_lacking(metadata);
        if self.settings.is_shared(found) {
            return Ok(self.renew(parent, name, metadata, found)?.unwrap_or(identity));
        }
        self.keep_in_place(parent, name, metadata, found).map(|()| identity)
    }

    /// What of the file that `found` tells of differs from what is told of it; see [`Settings::differences`].
    pub(super) fn differences(
        &self,
        parent: &OpenDirectory,
        name: &Name,
        metadata: &Metadata,
        found: &Statx,
    ) -> (u32, Differences) {
        let has_xattrs = || {
            let scope = self.settings.attribute_scope();
            parent.directory.reach(name.as_bytes(), |path| attributes::are(path, &metadata.xattrs, scope))
        };
        self.settings.differences(metadata, found, has_xattrs)
    }

    fn keep_in_place(
        &self,
        parent: &OpenDirectory,
        name: &Name,
        metadata: &Metadata,
        found: &Statx,
    ) -> Result<()> {
        let settings = &self.settings;
        let (mode, differences) = self.differences(parent, name, metadata, found);
        if differences.is_none() {
            return Ok(());
        }
        let mode_now = u32::from(found.stx_mode) & 0o7777;
        let failed = |error| Error::file("open the file for its metadata", error);
        let opened = parent.directory.open_to_read(name.as_bytes());
        let (fd, is_path) = match opened {
            Ok(fd) => (fd, false),
            // Its own bits may keep even its owner from reading.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fd = parent.directory.open_at(name.as_bytes(), OFlags::PATH, Mode::empty());
                (fd.map_err(failed)?, true)
            }
            Err(error) => return Err(failed(error)),
        };
        let opened = stat_fd(fd.as_fd()).map_err(failed)?;
        let is_other = |found: &Statx| opened.stx_mode != found.stx_mode && !settings.fakes();
        if opened.stx_ino != found.stx_ino || is_other(found) {
            return Err(Error::new(ErrorKind::Changed, "it was replaced meanwhile"));
        }
        if is_path {
            settings.apply_by_path(&fd, &Access::by_link(fd.as_fd()), metadata, &opened, Some(mode));
        } else {
            let owner = Some((found.stx_uid, found.stx_gid));
            let now = Now { mode: Some(mode_now), owner, mtime: Some(mtime_of(found)), has_no_xattrs: false };
            settings.apply(fd.as_fd(), metadata, &now, mode, false);
        }
        Ok(())
    }
}

/// The hash of the regular file that is there, if it can be read and has the size; nobody needs to know why not. `Interrupted` soon
/// after `stop` is set.
pub(super) fn hash_of(
    directory: &Directory,
    name: &Name,
    size_bytes: u64,
    stop: Option<&AtomicBool>,
) -> Result<Option<([u8; 32], FileState)>> {
    let Ok(fd) = directory.open_to_read(name.as_bytes()) else { return Ok(None) };
    let file = File::from(fd);
    let Ok(found) = stat_fd(file.as_fd()) else { return Ok(None) };
    if file_type(&found) != FileType::RegularFile || found.stx_size != size_bytes {
        return Ok(None);
    }
    let has_holes = found.stx_blocks.saturating_mul(512) < size_bytes;
    let hashed = hash_content(&file, size_bytes, has_holes, &mut || {
        if stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        Ok(())
    });
    match hashed {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        hashed => {
            let whole = hashed.ok().filter(|(_, size)| *size == size_bytes);
            Ok(whole.map(|(hash, _)| (hash, FileState::of(&found))))
        }
    }
}
