//! Files that lie in the destination of a copy already, under whatever name (Y9 to Y11, issue "a file renamed, a directory moved"): what
//! has the size and time of a new entry is likely to be that entry under its older name.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};

use super::directory::{Directory, stat_fd};
use super::place::OlderFile;
use super::write::file_type;

/// Size, and modification time in seconds and nanoseconds.
pub type SizeAndTime = (u64, i64, u32);

/// Bytes that the list may take.
const LIST_BYTES_MAX: usize = 32 << 20;
/// What an entry of it takes beside its name.
const ENTRY_BYTES: usize = 96;
/// How deep it goes.
const DEPTH_MAX: usize = 128;

/// The directories of the destination that were there before the copy, to be looked through.
#[derive(Debug)]
pub struct OthersToFind {
    roots: Vec<Directory>,
    /// Smaller files are left out.
    from_bytes: u64,
}

/// What was found in them.
#[derive(Debug, Default)]
pub struct Others {
    roots: Vec<Directory>,
    /// Each directory's own: which one it lies in, and its name there. The first ones are the roots.
    directories: Vec<(u32, Box<[u8]>)>,
    files: HashMap<SizeAndTime, (u32, Box<[u8]>)>,
}

impl OthersToFind {
    pub(super) fn new(roots: Vec<Directory>, from_bytes: u64) -> OthersToFind {
        OthersToFind { roots, from_bytes }
    }

    /// Looks for at most `patience`, and remembers a bounded number of files: what is not found costs bytes on the wire, and no more.
    pub fn find(self, patience: Duration) -> Others {
        let until = Instant::now() + patience;
        let mut others = Others::default();
        let mut held = 0;
        let mut stack = Vec::new();
        for root in &self.roots {
            let number = others.directories.len() as u32;
            others.directories.push((number, Box::default()));
            if let (Ok(directory), Ok(found)) = (root.duplicate(), root.stat_self()) {
                stack.push((number, 0, directory, (found.stx_dev_major, found.stx_dev_minor)));
            }
        }
        others.roots = self.roots;
        while let Some((number, depth, directory, device)) = stack.pop() {
            let Ok(names) = names_and_kinds(&directory) else { continue };
            for (name, is_directory) in names {
                if Instant::now() > until || held > LIST_BYTES_MAX {
                    return others;
                }
                if is_directory {
                    let child = directory.child(&name).and_then(|child| Ok((child.stat_self()?, child)));
                    let Ok((found, child)) = child else { continue };
                    // Another file system is another place.
                    if depth >= DEPTH_MAX || (found.stx_dev_major, found.stx_dev_minor) != device {
                        continue;
                    }
                    held += ENTRY_BYTES + name.len();
                    // At most as many as the bytes allow.
                    let below = others.directories.len() as u32;
                    others.directories.push((number, name));
                    stack.push((below, depth + 1, child, device));
                    continue;
                }
                let Ok(found) = directory.stat(&name) else { continue };
                if file_type(&found) == FileType::RegularFile && found.stx_size >= self.from_bytes {
                    held += ENTRY_BYTES + name.len();
                    let key = (found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                    others.files.entry(key).or_insert((number, name));
                }
            }
        }
        others
    }
}

/// The entries of a directory; whether each is one itself. What is neither that nor a file is left out.
fn names_and_kinds(directory: &Directory) -> io::Result<Vec<(Box<[u8]>, bool)>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let kind = match entry.file_type() {
            FileType::Unknown => directory.stat(name).map_or(FileType::Unknown, |found| file_type(&found)),
            kind => kind,
        };
        if name != b"." && name != b".." && matches!(kind, FileType::Directory | FileType::RegularFile) {
            names.push((name.into(), kind == FileType::Directory));
        }
    }
    Ok(names)
}

impl Others {
    /// The file of this size and time, if it still is one.
    pub fn open(&self, key: SizeAndTime) -> Option<OlderFile> {
        let (mut number, name) = self.files.get(&key).map(|(number, name)| (*number, name))?;
        let mut way = Vec::new();
        while number as usize >= self.roots.len() {
            let (parent, name) = self.directories.get(number as usize)?;
            way.push(name);
            number = *parent;
        }
        let mut directory = self.roots.get(number as usize)?.duplicate().ok()?;
        for name in way.into_iter().rev() {
            directory = directory.child(name).ok()?;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(directory.open_at(name, flags, Mode::empty()).ok()?);
        let found = stat_fd(file.as_fd()).ok()?;
        let now = (found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
        let is_it = file_type(&found) == FileType::RegularFile && now == key;
        is_it.then(|| OlderFile::of(file, &found))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};
    use std::path::Path;

    use super::*;

    fn find(roots: &[&Path]) -> Others {
        let roots = roots.iter().map(|root| Directory::open(root).unwrap()).collect();
        OthersToFind::new(roots, 4096).find(Duration::from_secs(60))
    }

    fn key(path: &Path) -> SizeAndTime {
        let found = fs::metadata(path).unwrap();
        (found.len(), found.mtime(), found.mtime_nsec() as u32)
    }

    /// Y10, Y11: files are found wherever they lie below the destination, by size and time, and nowhere else: no link leads out.
    #[test]
    fn files_are_found_by_size_and_time() {
        let place = tempfile::tempdir().unwrap();
        let (inside, outside) = (place.path().join("inside"), place.path().join("outside"));
        fs::create_dir_all(inside.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        let deep = inside.join("a/b/c/deep");
        for (path, len) in [(&deep, 5000), (&inside.join("top"), 6000), (&inside.join("small"), 4095)] {
            fs::write(path, vec![7; len]).unwrap();
        }
        fs::write(outside.join("away"), vec![7; 7000]).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(outside.join("away"), inside.join("file link")).unwrap();
        let others = find(&[&inside.join("a/b"), &inside]);
        let mut bytes = [0; 4];
        let found = others.open(key(&deep)).unwrap();
        found.file.read_exact_at(&mut bytes, 4996).unwrap();
        assert_eq!((found.size_bytes, bytes), (5000, [7; 4]));
        assert!(others.open(key(&inside.join("top"))).is_some());
        for path in [inside.join("small"), outside.join("away")] {
            assert!(others.open(key(&path)).is_none(), "{path:?}");
        }
        // It may have changed since.
        let before = key(&deep);
        fs::write(&deep, b"changed").unwrap();
        assert!(others.open(before).is_none());
        fs::rename(inside.join("a"), inside.join("z")).unwrap();
        assert!(others.open(before).is_none());
    }

    /// Never slower than without: the search ends when its time is over.
    #[test]
    fn the_search_has_an_end() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), vec![7; 5000]).unwrap();
        let roots = vec![Directory::open(place.path()).unwrap()];
        let others = OthersToFind::new(roots, 4096).find(Duration::ZERO);
        assert!(others.files.is_empty());
    }
}
