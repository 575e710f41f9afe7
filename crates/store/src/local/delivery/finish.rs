//! The end of a delivery: mode, times and name, in an order in which every step that can fail comes before the one that
//! cannot be taken back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;

use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::checkpoint::lock;
use super::files::{OWN_MODE, new_file_mode};
use super::{Delivery, Shared};

/// How a delivery ends.
#[derive(Clone, Debug, Default)]
pub struct FinishOptions {
    /// Permission bits. `None` keeps those of the file that is replaced, or follows the umask for a new one.
    pub mode: Option<u32>,
    /// Modification time, seconds since 1970 and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// Whether the file and its name are durable before `finish` returns.
    pub fsync: bool,
    /// Another name in the same directory than the one the delivery was opened with: a sender suggests its name only
    /// while bytes already arrive. One plain component.
    pub rename_to: Option<OsString>,
    /// `Refused` if there is a file of that name already.
    pub keep_existing: bool,
}

impl Delivery {
    /// Gives the file its mode, times and name, and removes the state. The caller has proven every byte. If it
    /// fails, data and state stay for another attempt. What interrupted deliveries of other objects left for the same
    /// name is removed too, if nobody is at work on it.
    pub fn finish(&self, options: FinishOptions) -> Result<()> {
        let Shared { destination, data, marks, .. } = &*self.shared;
        let name = options.rename_to.as_ref().unwrap_or(&destination.name);
        if name.as_bytes().contains(&b'/') || name == "." || name == ".." {
            return Err(Error::new(ErrorKind::Usage, format!("{name:?} is no file name")));
        }
        self.shared.stop();
        if options.fsync {
            // Its error would be reported to it, and not again to the sync below.
            self.shared.wait_for_checkpoint();
        }
        lock(marks).check_failure()?;
        let mode = self.mode_for(name, &options)?;
        let failed = |error: io::Error| destination.failed("finish", error);
        if let Some((seconds, nanoseconds)) = options.mtime {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.min(999_999_999).into() },
            };
            rustix::fs::futimens(data, &times).map_err(|error| failed(error.into()))?;
            self.shared.note();
        }
        if options.fsync {
            self.synced(File::sync_data)?;
        }
        self.check_name()?;
        // From here on another process could not open the file for writing, so a failure takes the mode back.
        let renamed = self.set_mode(mode).and_then(|()| {
            if options.fsync {
                self.synced(File::sync_all)?;
            }
            self.rename(name, options.keep_existing)
        });
        if let Err(error) = renamed {
            let _ = self.set_mode(OWN_MODE);
            return Err(error);
        }
        lock(marks).is_over = true;
        destination.unlink(&self.state_name)?;
        self.remove_leftovers(name);
        if options.fsync {
            rustix::fs::fsync(&destination.directory).map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }

    /// The mode that the file gets as `name`.
    fn mode_for(&self, name: &OsStr, options: &FinishOptions) -> Result<Mode> {
        let destination = &self.shared.destination;
        if options.keep_existing && destination.look(name)?.is_some() {
            return Err(exists(name));
        }
        let existing = destination.existing_mode(name)?;
        let mode = options.mode.or(existing).unwrap_or_else(new_file_mode);
        Ok(Mode::from_raw_mode(mode & 0o7777))
    }

    fn set_mode(&self, mode: Mode) -> Result<()> {
        let Shared { destination, data, .. } = &*self.shared;
        let set = rustix::fs::fchmod(data, mode).map_err(|error| destination.failed("finish", error));
        self.shared.note();
        set
    }

    /// Makes the data durable by `sync`, whose error nothing else will report again.
    fn synced(&self, sync: fn(&File) -> io::Result<()>) -> Result<()> {
        sync(&self.shared.data).map_err(|error| {
            let error = self.shared.destination.failed("finish", error);
            self.shared.fall_back(&error);
            error
        })
    }

    /// Whether what is about to be renamed is what was written.
    fn check_name(&self) -> Result<()> {
        let Shared { destination, data, .. } = &*self.shared;
        if destination.is_still(&self.data_name, data)? {
            return Ok(());
        }
        let what = format!("the temporary file beside {:?} was replaced by another", destination.path);
        Err(Error::new(ErrorKind::Refused, what).advise("find out who writes in that directory"))
    }

    pub(super) fn rename(&self, name: &OsString, keep_existing: bool) -> Result<()> {
        let destination = &self.shared.destination;
        let directory = &destination.directory;
        let from = &self.data_name;
        let failed = |error: Errno| destination.failed("finish", error);
        if keep_existing {
            match rustix::fs::renameat_with(directory, from, directory, name, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => return Err(exists(name)),
                // A file system that cannot do both in one step.
                Err(Errno::INVAL | Errno::NOSYS) if destination.look(name)?.is_none() => {}
                Err(Errno::INVAL | Errno::NOSYS) => return Err(exists(name)),
                Err(error) => return Err(failed(error)),
            }
        }
        rustix::fs::renameat(directory, from, directory, name).map_err(failed)
    }
}

fn exists(name: &OsStr) -> Error {
    Error::new(ErrorKind::Refused, format!("{name:?} exists and is not replaced"))
        .advise("name the output with -o, or move the file away; what arrived is kept for the next run")
}
