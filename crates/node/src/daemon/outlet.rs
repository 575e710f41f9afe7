//! Where the bytes of a get go that somebody else has opened: a directory, a file, a pipe, a socket. What was handed over
//! is used as it is: its owner may use the same open file at the same time, so its flags are left alone.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use dray_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::Stop;
use crate::get::{Came, Consumer, Folder};

/// Who has written to a pipe may wait in the kernel for its reader, unless it is this little at a time and there is room
/// (pipe(7), PIPE_BUF).
const PIPE_BYTES: usize = 4096;
/// How often the end of the session is looked for.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What a client handed over to write to.
pub(super) enum Outlet {
    Folder(Folder),
    Through(Through),
}

impl Outlet {
    /// `Usage` if it cannot be written to.
    pub(super) fn of(descriptor: OwnedFd, stop: Stop) -> Result<Outlet> {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let path = std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(&link));
        let failed = |error: Errno| Error::file(format!("look at {path:?}"), error.into());
        let bad = |what: &str| {
            Err(Error::new(ErrorKind::Usage, format!("{path:?} {what}"))
                .advise("hand over a directory, or something that is open for writing"))
        };
        let flags = rustix::fs::fcntl_getfl(&descriptor).map_err(failed)?;
        if flags.contains(OFlags::PATH) {
            return bad("is open by its path only");
        }
        let stat = rustix::fs::fstat(&descriptor).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Ok(Outlet::Folder(Folder::of(descriptor, path)));
        }
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return bad("is not open for writing");
        }
        Ok(Outlet::Through(Through { file: File::from(descriptor), kind, stop }))
    }
}

/// Something that is written through, in order, from where it stands.
pub(super) struct Through {
    file: File,
    kind: FileType,
    stop: Stop,
}

impl Through {
    /// Writes some of `bytes`, without waiting for a reader longer than the session lasts.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.kind == FileType::RegularFile || self.kind == FileType::BlockDevice {
            return self.file.write(bytes);
        }
        loop {
            if self.stop.is_set() {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the session has ended"));
            }
            let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut fds, Some(&INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let written = match self.kind {
                FileType::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    rustix::net::send(self.file.as_fd(), bytes, flags)
                }
                _ => rustix::io::write(&self.file, &bytes[..bytes.len().min(PIPE_BYTES)]),
            };
            match written {
                Err(Errno::AGAIN | Errno::INTR) => {}
                written => return written.map_err(Into::into),
            }
        }
    }
}

impl Consumer for Through {
    fn take(&mut self, came: Came) -> io::Result<()> {
        let mut rest = &came.bytes[..];
        while !rest.is_empty() {
            match self.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
