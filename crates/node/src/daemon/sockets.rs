//! The daemon's two sockets: inherited from systemd, or made, in a place that is this user's. A name that a dead daemon left
//! is taken over; a lock beside it says who is alive.

use std::fs::{DirBuilder, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use dray_client::{descriptor_socket, socket_path};
use dray_core::limits::API_WAITING_MAX;
use dray_core::{Error, ErrorKind, Result};
use dray_store::lock_file;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

/// First inherited descriptor (sd_listen_fds(3)).
const FIRST_INHERITED: i32 = 3;

/// The sockets, listening.
pub(super) struct Sockets {
    path: PathBuf,
    api: OwnedFd,
    descriptors: OwnedFd,
    /// Of sockets of our own, as long as their names are there.
    lock: Option<File>,
}

impl Sockets {
    /// Takes what systemd hands over (`LISTEN_FDS`), or makes them where clients look for them.
    pub(super) fn open() -> Result<Sockets> {
        let path = socket_path()?;
        match inherited()? {
            Some((api, descriptors)) => Ok(Sockets { path, api, descriptors, lock: None }),
            None => Sockets::make(path),
        }
    }

    fn make(path: PathBuf) -> Result<Sockets> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        make_folder(folder)?;
        for name in [&path, &descriptor_socket(&path)] {
            require_no_file(name)?;
        }
        let lock = lock_name(&path)?;
        let api = listen(&path, SocketType::STREAM)?;
        let descriptors = listen(&descriptor_socket(&path), SocketType::SEQPACKET)?;
        Ok(Sockets { path, api, descriptors, lock: Some(lock) })
    }

    /// Where clients find the API.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of the API.
    pub(super) fn api(&self) -> Result<UnixListener> {
        copy(&self.api).map(UnixListener::from)
    }

    /// Its sibling for descriptors.
    pub(super) fn descriptors(&self) -> Result<OwnedFd> {
        copy(&self.descriptors)
    }

    /// Removes the names, if they are ours: nobody new finds us.
    pub(super) fn remove(&mut self) {
        if self.lock.is_some() {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(descriptor_socket(&self.path));
        }
        self.lock = None;
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

fn copy(socket: &OwnedFd) -> Result<OwnedFd> {
    socket.try_clone().map_err(|error| Error::file("use a socket", error))
}

/// A folder for sockets, made if only it is missing. One that others may write into is not used: they could put a socket
/// of theirs in our place.
fn make_folder(folder: &Path) -> Result<()> {
    let failed = |error| {
        Error::file(format!("make the folder {folder:?} for the daemon's socket"), error)
            .advise("set XDG_RUNTIME_DIR or DRAY_SOCKET to a place of yours")
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = std::fs::metadata(folder).map_err(failed)?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    match found.is_dir() && is_ours {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Refused,
            format!("the folder {folder:?} of the daemon's socket is not yours alone"),
        )
        .advise("set DRAY_SOCKET to a path in a folder that is yours and that only you may write to")),
    }
}

fn lock_name(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |error| Error::file(format!("lock {name:?}"), error);
    let file = lock_file::open(Path::new(&name)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::Refused, format!("another daemon listens at {path:?}")).advise(
                "`dray status` asks it; set DRAY_SOCKET to run a second one with another data directory",
            ))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Whatever is at `path` and is no socket is not a dead daemon's, and not ours to remove.
fn require_no_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Error::new(
            ErrorKind::Refused,
            format!("{path:?}, where the daemon is to listen, is there and is no socket"),
        )
        .advise("set DRAY_SOCKET to a path where nothing is; if this is not wanted any more, remove it")),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file(format!("listen at {path:?}"), error))
        }
        _ => Ok(()),
    }
}

/// A listening socket at `path`. The caller holds the lock, so what is there is of a dead daemon.
fn listen(path: &Path, kind: SocketType) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| Error::file(format!("listen at {path:?}"), error);
    require_no_file(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|error| {
        failed(error.into()).advise("a socket's path has at most 107 bytes: set DRAY_SOCKET to a shorter one")
    })?;
    let made = || {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, API_WAITING_MAX)?;
        Ok(socket)
    };
    let socket = made().map_err(|error: rustix::io::Errno| failed(error.into()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(socket)
}

/// Two sockets of a socket unit, whatever their order.
fn inherited() -> Result<Option<(OwnedFd, OwnedFd)>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<i32>().ok());
    let us = rustix::process::getpid();
    if number("LISTEN_PID") != Some(us.as_raw_nonzero().get()) {
        return Ok(None);
    }
    let count = number("LISTEN_FDS").unwrap_or(0);
    let bad = |why: &str| {
        Error::new(ErrorKind::Usage, format!("the sockets handed over by LISTEN_FDS cannot be used: {why}"))
            .advise("the socket unit lists one ListenStream= and one ListenSequentialPacket= of Unix sockets")
    };
    if count != 2 {
        return Err(bad(&format!("there are {count}, not 2")));
    }
    // A descriptor that is only a number is taken from ourselves as from another process: no `unsafe`.
    let take = |number: i32| {
        let ourselves = rustix::process::pidfd_open(us, PidfdFlags::empty())?;
        rustix::process::pidfd_getfd(&ourselves, number, PidfdGetfdFlags::empty())
    };
    let (mut api, mut descriptors) = (None, None);
    for number in FIRST_INHERITED..FIRST_INHERITED + count {
        let socket = take(number).map_err(|error| bad(&std::io::Error::from(error).to_string()))?;
        let domain = sockopt::socket_domain(&socket);
        let listens = sockopt::socket_acceptconn(&socket);
        if domain != Ok(AddressFamily::UNIX) || listens != Ok(true) {
            return Err(bad("one is no listening Unix socket"));
        }
        match sockopt::socket_type(&socket) {
            Ok(SocketType::STREAM) => api = Some(socket),
            Ok(SocketType::SEQPACKET) => descriptors = Some(socket),
            _ => return Err(bad("one is of another type")),
        }
    }
    match (api, descriptors) {
        (Some(api), Some(descriptors)) => Ok(Some((api, descriptors))),
        _ => Err(bad("both are of the same type")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Design 11: what is at the place of a socket and is none is the user's, and stays; only what a dead daemon left is taken over.
    #[test]
    fn only_a_socket_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results");
        for name in [path.clone(), descriptor_socket(&path)] {
            std::fs::write(&name, b"weeks of work").unwrap();
            let error = Sockets::make(path.clone()).err().unwrap();
            assert!(error.kind() == ErrorKind::Refused && error.advice().is_some(), "{error}");
            assert_eq!(std::fs::read(&name).unwrap(), b"weeks of work");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
            std::fs::remove_file(&name).unwrap();
        }
        // Left by a daemon that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let sockets = Sockets::make(path.clone()).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(sockets);
        assert!(!path.exists());
    }
}
