//! Asking a running command about its transfer: each answers for itself on a Unix socket of its own.
//!
//! Who connects is sent one snapshot and the end of the stream; nothing is read from it, so an asker that says nothing, or
//! too much, costs nothing. Sockets lie in folders that are their user's alone. Each has a name that is never used again and
//! that it gets only when it can be connected to, so a name nobody answers to belongs to a dead process and may be removed by
//! whoever finds it.

use std::fs::DirBuilder;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dray_core::limits::{SNAPSHOT_BYTES_MAX, SNAPSHOTS_ASKED_MAX};
use dray_core::text::hex;
use dray_store::local::boot_id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::snapshot::{Snapshot, State};
use crate::config::Paths;

/// How long one asker may take to read its answer.
const READER_PATIENCE: Duration = Duration::from_secs(1);
/// A socket of another boot is left alone for so long: it may be of another machine, where neither has an id.
const OTHER_BOOT_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Between two answers, so that asking without end does not take the CPU from the transfer.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(10);
/// How long all that are asked may take to answer, together.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// A socket that was never given its final name is removed after this long.
const UNFINISHED_AFTER: Duration = Duration::from_secs(60);

const ENDING: &str = ".sock";
/// Beginning of names of sockets that cannot be connected to yet.
const UNFINISHED: &str = ".new-";

/// Makes the answer; `None` once there is nothing to tell.
pub(super) type Answers = Box<dyn Fn() -> Option<Snapshot> + Send>;

/// A thread that answers. Dropped, it stops and its socket is gone; an answer that is being read is left to its own end.
pub(super) struct Answering {
    dir: Arc<OwnedFd>,
    name: String,
    /// Closed to stop.
    _alive: UnixStream,
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&*self.dir, &self.name, AtFlags::empty());
    }
}

/// Begins to answer in the first folder that can be had; `None` if none can.
pub(super) fn answer(paths: &Paths, answers: Answers) -> Option<Answering> {
    let (dir, name, listener) =
        folders(paths).iter().find_map(|path| listen(&make_folder(path).ok()?).ok())?;
    let (alive, ended) = UnixStream::pair().ok()?;
    let answering = Answering { dir, name, _alive: alive };
    let thread = std::thread::Builder::new().name("explain".into());
    thread.spawn(move || answer_all(&listener, &ended, &answers)).ok()?;
    Some(answering)
}

/// Asks every running command of this user. Sockets of dead processes are removed on the way.
pub(super) fn ask_all(paths: &Paths) -> Vec<Snapshot> {
    ask_those(paths, |_| true)
}

/// Asks this process alone: another one that is stopped keeps nobody waiting.
pub(super) fn ask_ourselves(paths: &Paths) -> Vec<Snapshot> {
    let us = std::process::id();
    ask_those(paths, |pid| pid == us)
}

fn ask_those(paths: &Paths, is_wanted: impl Fn(u32) -> bool) -> Vec<Snapshot> {
    let mut asked = Vec::new();
    for folder in folders(paths) {
        let Ok(dir) = open_folder(&folder) else { continue };
        for name in names(&dir).into_iter().filter(|name| pid(name).is_some_and(&is_wanted)) {
            if asked.len() < SNAPSHOTS_ASKED_MAX {
                asked.extend(ask(&dir, &name));
            }
        }
    }
    // All of them have been connected to, so they answer beside each other while the first is read.
    let deadline = Instant::now() + ANSWER_PATIENCE;
    asked.into_iter().filter_map(|asked| asked.hear(deadline)).collect()
}

/// Where sockets may lie, best first: two commands of one user may see different environments.
fn folders(paths: &Paths) -> Vec<PathBuf> {
    let runtime = paths.runtime_dir.as_ref().map(|dir| dir.join("dray"));
    runtime.into_iter().chain([paths.data_dir.join("run")]).collect()
}

/// Opens a folder of this user alone, making it first where it is missing: not in a folder of somebody else, where it
/// would be in that user's way.
fn make_folder(path: &Path) -> io::Result<Arc<OwnedFd>> {
    let above = path.parent().ok_or(io::ErrorKind::NotFound)?;
    if std::fs::metadata(above)?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => open_folder(path),
    }
}

/// Opens a folder. Nobody else may be able to look into it, or to put something there.
fn open_folder(path: &Path) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&dir)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(Arc::new(dir))
}

/// A path to `name` in `dir` that is short enough for the address of a socket, whatever the folder's own path.
fn path_in(dir: &OwnedFd, name: &str) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

/// A socket in `dir` that can be connected to, and its name.
fn listen(dir: &Arc<OwnedFd>) -> io::Result<(Arc<OwnedFd>, String, UnixListener)> {
    let random = hex(&crate::random::<8>().map_err(io::Error::other)?);
    let name = format!("{}-{}-{random}{ENDING}", tag(), std::process::id());
    let unfinished = format!("{UNFINISHED}{name}");
    let listener = UnixListener::bind(path_in(dir, &unfinished))?;
    let finish = || {
        listener.set_nonblocking(true)?;
        rustix::fs::chmodat(dir, &unfinished, Mode::from_bits_truncate(0o600), AtFlags::empty())?;
        // Not onto another one, should the name be there against all odds.
        rustix::fs::renameat_with(dir, &unfinished, dir, &name, RenameFlags::NOREPLACE)
            .map_err(io::Error::from)
    };
    if let Err(error) = finish() {
        let _ = rustix::fs::unlinkat(dir, &unfinished, AtFlags::empty());
        return Err(error);
    }
    Ok((dir.clone(), name, listener))
}

/// Answers one asker after the other, until the other end of `ended` is closed or there is nothing to tell.
fn answer_all(listener: &UnixListener, ended: &UnixStream, answers: &Answers) {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if let Ok((asker, _)) = listener.accept()
            && is_same_user(asker.as_fd())
        {
            let Some(snapshot) = answers() else { return };
            if let Ok(json) = snapshot.to_json() {
                // Who does not read has gone, or does not want to know.
                let _ = tell(asker, &json);
            }
        }
        std::thread::sleep(BETWEEN_ANSWERS);
    }
}

/// Writes all of `json`, for [`READER_PATIENCE`] at most.
fn tell(mut asker: UnixStream, mut json: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + READER_PATIENCE;
    asker.set_nonblocking(false)?;
    while !json.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        asker.set_write_timeout(Some(left))?;
        let written = asker.write(json)?;
        json = &json[written..];
    }
    Ok(())
}

/// True if the process at the other end runs as our user.
fn is_same_user(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// What the names of this machine's sockets begin with: the machine, and which boot of it, for machines that have no id of
/// their own are all alike.
fn tag() -> String {
    crate::identity::machine() + &hex(&boot_id().unwrap_or_default()[..4])
}

/// Names of sockets in `dir` that belong to this machine; those never finished are removed once they are old.
fn names(dir: &OwnedFd) -> Vec<String> {
    let Ok(entries) = Dir::read_from(dir) else { return Vec::new() };
    let (machine, ours) = (crate::identity::machine(), format!("{}-", tag()));
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        if !name.ends_with(ENDING) {
            continue;
        }
        if let Some(unfinished) = name.strip_prefix(UNFINISHED) {
            if unfinished.starts_with(&machine) && is_older(dir, name, UNFINISHED_AFTER) {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
        } else if name.starts_with(&ours) {
            // Another machine's sockets, in a home directory that both share, cannot be judged from here.
            names.push(name.to_owned());
        } else if name.starts_with(&machine) && is_older(dir, name, OTHER_BOOT_AFTER) {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
    }
    names
}

fn is_older(dir: &OwnedFd, name: &str, age: Duration) -> bool {
    let Ok(found) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(found.st_mtime).is_ok_and(|made| made + age.as_secs() < now.as_secs())
}

/// Somebody who was asked.
struct Asked {
    pid: u32,
    /// `None` if it has so many askers that it takes no more.
    socket: Option<UnixStream>,
}

/// The process in the name of a socket.
fn pid(name: &str) -> Option<u32> {
    name.split('-').nth(1)?.parse().ok()
}

/// Connects to `name`; removes it if its process is dead.
fn ask(dir: &OwnedFd, name: &str) -> Option<Asked> {
    let pid = pid(name)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new(path_in(dir, name)).ok()?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) if is_same_user(&socket) => Some(Asked { pid, socket: Some(UnixStream::from(socket)) }),
        // It lives and has no room for another asker.
        Err(Errno::AGAIN) => Some(Asked { pid, socket: None }),
        Err(Errno::CONNREFUSED) => {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            None
        }
        _ => None,
    }
}

impl Asked {
    /// What it says by `deadline`; `None` if it ended meanwhile.
    fn hear(self, deadline: Instant) -> Option<Snapshot> {
        let silent = || Some(Snapshot { state: State::NoAnswer, pid: self.pid, ..Snapshot::default() });
        let Some(mut socket) = self.socket else { return silent() };
        let mut json = Vec::new();
        let mut chunk = [0; 8192];
        loop {
            match socket.read(&mut chunk) {
                Ok(0) => return Snapshot::from_json(&json),
                Ok(n) if json.len() + n > SNAPSHOT_BYTES_MAX => return None,
                Ok(n) => json.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let timeout = Timespec::try_from(left).ok()?;
                    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
                    match poll(&mut fds, Some(&timeout)) {
                        Ok(0) => return silent(),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(_) => return None,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It ended while it answered; what it left says the rest.
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
