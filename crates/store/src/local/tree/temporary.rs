//! Names that nobody sees for long: under which something is made before it takes the place of what is there.
//!
//! A file being written has no name at all where the file system can (`O_TMPFILE`), so that nobody else can open it and nothing
//! is left of it by a process that is killed. Only for the moment between giving it a name and renaming that over an older file
//! there is one, and on file systems that cannot. That name follows from the directory and the entry, so that the next run
//! finds what a killed one left; what is found is removed or passed by, never written to.

use std::io;
use std::os::fd::AsFd;

use dray_core::tree::Name;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::directory::Directory;
use super::opened::OpenDirectory;
use super::overwrite::replacing;
use super::place::rename;

pub(super) const TEMPORARY_BYTES: usize = 22;
/// A name of that sort.
pub(super) type Temporary = [u8; TEMPORARY_BYTES];

/// Names tried before something is given up.
const TRIES: usize = 8;

fn with_digits(digits: &str) -> Temporary {
    let mut out = *b".dray-0000000000000000";
    out[6..].copy_from_slice(&digits.as_bytes()[..16]);
    out
}

/// Whether a name is of that sort.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    name.len() == TEMPORARY_BYTES
        && name.starts_with(b".dray-")
        && name[6..].iter().all(u8::is_ascii_hexdigit)
}

/// The name for `name` in `directory`. It depends on the very directory, so an entry of a source that bears the name of
/// something left there does not bear one of ours.
pub(super) fn usual(directory: &OpenDirectory, name: &Name) -> Temporary {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&directory.inode.to_be_bytes()).update(name.as_bytes());
    with_digits(&hasher.finalize().to_hex())
}

/// That under which what came of `name` before a run was cut off waits for the next one.
pub(super) fn kept(directory: &OpenDirectory, name: &Name) -> Temporary {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&usual(directory, name)).update(name.as_bytes());
    with_digits(&hasher.finalize().to_hex())
}

/// That of something beside `name` in the directory of this inode, for one of several uses: none of those for an entry, as no name has a slash.
pub(super) fn beside(inode: u64, name: &[u8], usage: &[u8]) -> Temporary {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&inode.to_be_bytes()).update(name).update(b"/").update(usage);
    with_digits(&hasher.finalize().to_hex())
}

/// A name that nobody can foresee.
fn random() -> io::Result<Temporary> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(with_digits(&format!("{:016x}", u64::from_be_bytes(bytes))))
}

/// The same as [`make`] where no name follows from anything.
pub(super) fn make_random(make: &mut dyn FnMut(&Temporary) -> io::Result<()>) -> io::Result<Temporary> {
    let mut left = TRIES;
    loop {
        let temporary = random()?;
        left -= 1;
        match make(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && left > 0 => {}
            result => return result.map(|()| temporary),
        }
    }
}

/// Makes something with `make`, which fails with `EEXIST` where something is, under a temporary name; which one.
pub(super) fn make<T>(
    directory: &OpenDirectory,
    name: &Name,
    make: &mut dyn FnMut(&Temporary) -> io::Result<T>,
) -> io::Result<(Temporary, T)> {
    make_first(&directory.directory, usual(directory, name), make)
}

/// The same under this name, if it can be had.
fn make_first<T>(
    directory: &Directory,
    mut temporary: Temporary,
    make: &mut dyn FnMut(&Temporary) -> io::Result<T>,
) -> io::Result<(Temporary, T)> {
    let mut result = make(&temporary);
    for attempt in 0..TRIES {
        match result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by a killed run, in the way on purpose, or in use by another run: then another name will do.
                if attempt > 0 || !clear_left(directory, &temporary) {
                    temporary = random()?;
                }
                result = make(&temporary);
            }
            result => return result.map(|made| (temporary, made)),
        }
    }
    result.map(|made| (temporary, made))
}

/// Makes something with `make` and renames it over what stands under `name`.
pub(super) fn replace(
    directory: &OpenDirectory,
    name: &Name,
    make_it: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    replacing(directory, name, || make_under(directory, name, false, make_it))
}

/// Makes something with `make` and gives it its name when it is whole; nothing may stand under that if it `must_be_free`.
pub(super) fn make_under(
    directory: &OpenDirectory,
    name: &Name,
    must_be_free: bool,
    make_it: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut result = Ok(());
    directory.touch();
    for _ in 0..TRIES {
        let (temporary, ()) = make(directory, name, &mut |temporary| make_it(temporary))?;
        result = match rename(directory, &temporary, name, must_be_free) {
            // Another run took it for something left.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(error) => {
                remove(directory, &temporary);
                return Err(error);
            }
            Ok(()) => return Ok(()),
        };
    }
    result
}

/// Makes something with `make` and renames it over the file that stands under `name`, which no run writes otherwise, to be kept there.
pub(super) fn keep(
    directory: &Directory,
    name: &[u8],
    make: &mut dyn FnMut(&Temporary) -> io::Result<()>,
) -> io::Result<()> {
    let first = beside(directory.stat_self()?.stx_ino, name, b"kept");
    let mut result = Ok(());
    for _ in 0..TRIES {
        let (temporary, ()) = make_first(directory, first, make)?;
        result = rustix::fs::renameat(directory, &temporary[..], directory, name);
        if result == Err(Errno::NOENT) {
            // Another run took it for something left.
            continue;
        }
        // Where both are one file already, a rename leaves both names.
        let _ = rustix::fs::unlinkat(directory, &temporary[..], AtFlags::empty());
        break;
    }
    Ok(result?)
}

/// Gives what this run made under a temporary name another one, which nobody can foresee.
pub(super) fn set_aside(directory: &OpenDirectory, made: &Temporary) -> io::Result<Temporary> {
    let fd = &directory.directory;
    let result = random().and_then(|other| {
        rustix::fs::renameat(fd, &made[..], fd, &other[..])?;
        Ok(other)
    });
    result.inspect_err(|_| remove(directory, made))
}

/// Removes what this run made.
pub(super) fn remove(directory: &OpenDirectory, temporary: &Temporary) {
    // What cannot be removed now the next run finds.
    let _ = rustix::fs::unlinkat(&directory.directory, &temporary[..], AtFlags::empty());
}

/// Removes what a killed run left. False if it is in use, or not to be removed.
fn clear_left(fd: &Directory, temporary: &Temporary) -> bool {
    let Ok(found) = fd.stat(temporary) else { return true };
    let mut lock = None;
    if found.stx_mode & 0o170_000 == 0o100_000 {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        lock = fd.open_at(temporary, flags, Mode::empty()).ok();
    }
    if let Some(lock) = &lock
        && rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return false;
    }
    matches!(rustix::fs::unlinkat(fd, &temporary[..], AtFlags::empty()), Ok(()) | Err(Errno::NOENT))
}
