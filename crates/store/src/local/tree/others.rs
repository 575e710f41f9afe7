//! Files that lie in the destination of a copy already, under whatever name (Y9 to Y11, issue "a file renamed, a directory moved"): what
//! has the size and time of a new entry is likely to be that entry under its older name.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dray_core::limits::TREE_OTHERS_BYTES_MAX;
use rustix::fs::{FileType, Mode, OFlags};

use super::directory::Directory;
use super::place::OlderFile;
use super::write::file_type;

/// Size, and modification time in seconds and nanoseconds.
pub type SizeAndTime = (u64, i64, u32);

/// What an entry of the list takes beside its name, room for more of them included.
const ENTRY_BYTES: usize = 160;
/// How often what was found may be read.
const READ_TIMES: u64 = 2;
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
    /// Bytes that may yet be read of them: who tells a thousand entries of the size and time of one file has it read twice, not a thousand
    /// times.
    left_bytes: u64,
}

impl OthersToFind {
    pub(super) fn new(roots: Vec<Directory>, from_bytes: u64) -> OthersToFind {
        OthersToFind { roots, from_bytes }
    }

    /// Looks for at most `patience`, and remembers a bounded number of files: what is not found costs bytes on the wire, and no more.
    pub fn find(self, patience: Duration) -> Others {
        let others = Others { roots: self.roots, ..Others::default() };
        let until = Instant::now() + patience;
        let mut search = Search { others, from_bytes: self.from_bytes, held: 0, until };
        let roots: Vec<Directory> =
            search.others.roots.iter().filter_map(|root| root.duplicate().ok()).collect();
        if roots.len() < search.others.roots.len() {
            // No descriptors are left: others need them more.
            return Others::default();
        }
        // The first numbers are those of the roots.
        search.others.directories = (0..roots.len() as u32).map(|number| (number, Box::default())).collect();
        for (number, root) in roots.iter().enumerate() {
            let Ok(found) = root.stat_self() else { continue };
            if !search.look(root, number as u32, 0, (found.stx_dev_major, found.stx_dev_minor)) {
                break;
            }
        }
        search.others
    }
}

/// The search on its way.
struct Search {
    others: Others,
    from_bytes: u64,
    /// Bytes that the list takes.
    held: usize,
    until: Instant,
}

impl Search {
    /// Looks through a directory and those below it, of which no more are open at a time than lie below each other; false once it is to end.
    fn look(&mut self, directory: &Directory, number: u32, depth: usize, device: (u32, u32)) -> bool {
        let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return true };
        for entry in entries {
            let Ok(entry) = entry else { return true };
            if Instant::now() > self.until || self.held > TREE_OTHERS_BYTES_MAX {
                return false;
            }
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    directory.stat(name).map_or(FileType::Unknown, |found| file_type(&found))
                }
                kind => kind,
            };
            match kind {
                FileType::Directory if depth < DEPTH_MAX => {
                    let child = directory.child(name).and_then(|child| Ok((child.stat_self()?, child)));
                    let Ok((found, child)) = child else { continue };
                    // Another file system is another place.
                    if (found.stx_dev_major, found.stx_dev_minor) != device {
                        continue;
                    }
                    self.held += ENTRY_BYTES + name.len();
                    // At most as many as the bytes allow.
                    let below = self.others.directories.len() as u32;
                    self.others.directories.push((number, name.into()));
                    if !self.look(&child, below, depth + 1, device) {
                        return false;
                    }
                }
                FileType::RegularFile => {
                    let Ok(found) = directory.stat(name) else { continue };
                    if file_type(&found) == FileType::RegularFile && found.stx_size >= self.from_bytes {
                        self.held += ENTRY_BYTES + name.len();
                        self.others.left_bytes =
                            self.others.left_bytes.saturating_add(found.stx_size.saturating_mul(READ_TIMES));
                        let key = (found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                        self.others.files.entry(key).or_insert((number, name.into()));
                    }
                }
                _ => {}
            }
        }
        true
    }
}

impl Others {
    /// True if there was a file of this size and time, and it may be read.
    pub fn has(&self, key: SizeAndTime) -> bool {
        key.0 <= self.left_bytes && self.files.contains_key(&key)
    }

    /// So many bytes are going to be read of one of them.
    pub fn read(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
    }

    /// The file of this size and time, if it still is one.
    pub fn open(&self, key: SizeAndTime) -> Option<OlderFile> {
        if !self.has(key) {
            return None;
        }
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
        let older = OlderFile::new(directory.open_at(name, flags, Mode::empty()).ok()?.into())?;
        (older.size_bytes == key.0 && older.state.mtime == (key.1, key.2)).then_some(older)
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

    /// Design 17: a sender that tells many entries of the size and time of one file has it read twice, and no more.
    #[test]
    fn no_file_is_read_again_and_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, vec![7; 5000]).unwrap();
        let mut others = find(&[place.path()]);
        for _ in 0..READ_TIMES {
            assert!(others.open(key(&path)).is_some());
            others.read(5000);
        }
        assert!(!others.has(key(&path)) && others.open(key(&path)).is_none());
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
