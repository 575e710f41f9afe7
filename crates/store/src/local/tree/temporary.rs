//! Names that nobody sees for long: under which something is made before it takes the place of what is there.
//!
//! A file being written has no name at all where the file system can (`O_TMPFILE`), so that nobody else can open it and nothing
//! is left of it by a process that is killed. Only for the moment between giving it a name and renaming that over an older file
//! there is one, and on file systems that cannot. That name follows from the directory and the entry, so that the next run
//! finds what a killed one left; what is found is removed or passed by, never written to.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use dray_core::tree::Name;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::directory::Directory;
use super::opened::OpenDirectory;
use super::overwrite::replacing;
use super::place::{identity_of, rename};

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
    let mut temporary = usual(directory, name);
    let mut result = make(&temporary);
    for attempt in 0..TRIES {
        match result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by a killed run, in the way on purpose, or in use by another run: then another name will do.
                if attempt > 0 || !clear_left(&directory.directory, &temporary) {
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

/// Makes something with `make` and renames it to `name`, to be kept there. The file that `make` writes under a temporary name it locks, as [`make_named`] does, and gives back: until it has its
/// own name it is nobody else's. What another run takes away meanwhile, or puts in its place, is made again.
pub(super) fn keep(
    directory: &Directory,
    name: &[u8],
    make: &mut dyn FnMut(&Temporary) -> io::Result<Option<File>>,
) -> io::Result<()> {
    let usual = beside(directory.stat_self()?.stx_ino, name, b"kept");
    let mut result = Ok(());
    for attempt in 0..TRIES {
        // Seen before anything is copied.
        let temporary = if attempt == 0 && clear_kept(directory, &usual) { usual } else { random()? };
        let _locked = match make(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                result = Err(error);
                continue;
            }
            made => made?,
        };
        let identity = |name: &[u8]| directory.stat(name).map(|found| identity_of(&found)).ok();
        let made = identity(&temporary);
        match rustix::fs::renameat(directory, &temporary[..], directory, name) {
            Err(Errno::NOENT) => result = Err(Errno::NOENT.into()),
            Ok(()) if made.is_none() || made != identity(name) => {
                result = Err(io::Error::other("another run keeps something under the same name"));
            }
            renamed => {
                // Where both are one file already, a rename leaves both names.
                let _ = rustix::fs::unlinkat(directory, &temporary[..], AtFlags::empty());
                return Ok(renamed?);
            }
        }
    }
    result
}

/// Removes what a killed run left of what it was to keep. A further name of a file, which nobody writes under it, may be locked under its own.
fn clear_kept(directory: &Directory, temporary: &Temporary) -> bool {
    match directory.stat(temporary) {
        Ok(found) if found.stx_nlink > 1 => {
            rustix::fs::unlinkat(directory, &temporary[..], AtFlags::empty()).is_ok()
        }
        _ => clear_left(directory, temporary),
    }
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
        lock = fd.open_to_read(temporary).ok();
    }
    if let Some(lock) = &lock
        && rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return false;
    }
    matches!(rustix::fs::unlinkat(fd, &temporary[..], AtFlags::empty()), Ok(()) | Err(Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::super::place::make_named;
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn usual_in(dir: &Path) -> Temporary {
        beside(fs::metadata(dir).unwrap().ino(), b"f~", b"kept")
    }

    fn path(dir: &Path, name: &Temporary) -> std::path::PathBuf {
        dir.join(std::str::from_utf8(name).unwrap())
    }

    fn write(dir: &Directory, name: &Temporary, bytes: &[u8]) -> io::Result<Option<File>> {
        let file = File::from(make_named(dir, name)?);
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
        Ok(Some(file))
    }

    /// "Interrupted runs leave every file either old or new": what a killed run left is gone before anything is made, which is made once; also a further name of a file that is locked.
    #[test]
    fn what_was_left_is_cleared_before_it_is_made() {
        for is_link in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let opened = Directory::open(dir.path()).unwrap();
            let left = path(dir.path(), &usual_in(dir.path()));
            fs::write(dir.path().join("f"), "f").unwrap();
            if is_link {
                fs::hard_link(dir.path().join("f"), &left).unwrap();
            } else {
                fs::write(&left, "half").unwrap();
            }
            let f = File::open(dir.path().join("f")).unwrap();
            rustix::fs::flock(&f, FlockOperation::NonBlockingLockExclusive).unwrap();
            let mut made = 0;
            keep(&opened, b"f~", &mut |name| {
                made += 1;
                write(&opened, name, b"kept")
            })
            .unwrap();
            assert_eq!((made, names(dir.path())), (1, vec!["f".to_owned(), "f~".to_owned()]), "{is_link}");
            assert_eq!(fs::read(dir.path().join("f~")).unwrap(), b"kept");
            assert_eq!(f.metadata().unwrap().nlink(), 1);
        }
    }

    /// The same: of two runs that keep something under one name at once neither takes what the other writes for something left, nor gives it its name.
    #[test]
    fn two_at_once_keep_apart() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Directory::open(dir.path()).unwrap();
        let mut seen = Vec::new();
        keep(&opened, b"f~", &mut |name| {
            let file = write(&opened, name, b"first")?;
            keep(&opened, b"f~", &mut |other| {
                assert_ne!(name, other);
                write(&opened, other, b"second")
            })?;
            seen = names(dir.path());
            Ok(file)
        })
        .unwrap();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert_eq!(fs::read(dir.path().join("f~")).unwrap(), b"first");
        assert_eq!(names(dir.path()), ["f~"]);
    }

    /// The same: a further name that another run took away is made again, under one that nobody takes for something left.
    #[test]
    fn what_was_taken_away_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Directory::open(dir.path()).unwrap();
        fs::write(dir.path().join("f"), "f").unwrap();
        let mut tried = Vec::new();
        keep(&opened, b"f~", &mut |name| {
            rustix::fs::linkat(&opened, "f", &opened, &name[..], AtFlags::empty())?;
            if tried.is_empty() {
                fs::remove_file(path(dir.path(), name)).unwrap();
            }
            tried.push(*name);
            Ok(None)
        })
        .unwrap();
        assert_eq!(tried.len(), 2);
        assert_ne!(tried[0], tried[1]);
        assert_eq!(names(dir.path()), ["f", "f~"]);
    }
}
