//! Files that lie in the destination of a copy already, under whatever name (Y9 to Y11, issue "a file renamed, a directory moved"): what
//! has the size and time of a new entry is likely to be that entry under its older name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray_core::limits::TREE_OTHERS_BYTES_MAX;
use rustix::fs::{FileType, StatxAttributes};

use super::directory::Directory;
use super::place::OlderFile;
use super::write::file_type;

/// Size, and modification time in seconds and nanoseconds.
pub type SizeAndTime = (u64, i64, u32);

/// What an entry of the list takes beside its name, room for more of them included.
const ENTRY_BYTES: usize = 160;
/// How often what was found may be read.
const READ_TIMES: u64 = 2;
/// How many of one size and time are remembered, to be told apart by name.
const ALIKE_MAX: usize = 16;
/// How deep it goes.
const DEPTH_MAX: usize = 128;

/// The directories of the destination that were there before the copy, to be looked through.
#[derive(Debug)]
pub struct OthersToFind {
    roots: Vec<Directory>,
    /// Smaller files are left out.
    from_bytes: u64,
}

/// One of those of one size and time.
#[derive(Debug)]
struct Alike {
    directory: u32,
    inode: u64,
    name: Box<[u8]>,
}

/// What was found in them.
#[derive(Debug, Default)]
pub struct Others {
    roots: Vec<Directory>,
    /// Each directory's own: which one it lies in, and its name there. The first ones are the roots.
    directories: Vec<(u32, Box<[u8]>)>,
    /// Of each size and time: some of them, the first ones that were found.
    files: HashMap<SizeAndTime, Vec<Alike>>,
    /// Bytes that may yet be read of them: who tells a thousand entries of the size and time of one file has it read twice, not a thousand
    /// times.
    left_bytes: u64,
}

impl OthersToFind {
    pub(super) fn new(roots: Vec<Directory>, from_bytes: u64) -> OthersToFind {
        OthersToFind { roots, from_bytes }
    }

    /// Looks for at most `patience`, and remembers a bounded number of files: what is not found costs bytes on the wire, and no more.
    /// It ends soon once `stop` is set; a file system that does not answer holds it for as long as it likes.
    pub fn find(self, patience: Duration, stop: &AtomicBool) -> Others {
        let others = Others { roots: self.roots, ..Others::default() };
        let until = Instant::now() + patience;
        let mut search = Search { others, from_bytes: self.from_bytes, held: 0, until, stop };
        let roots: Vec<Directory> =
            search.others.roots.iter().filter_map(|root| root.duplicate().ok()).collect();
        if roots.len() < search.others.roots.len() {
            // No descriptors are left: others need them more.
            return Others::default();
        }
        // The first numbers are those of the roots.
        search.others.directories = (0..roots.len() as u32).map(|number| (number, Box::default())).collect();
        for (number, root) in roots.iter().enumerate() {
            if !search.look(root, number as u32, 0) {
                break;
            }
        }
        search.others
    }
}

/// The search on its way.
struct Search<'a> {
    others: Others,
    from_bytes: u64,
    /// Bytes that the list takes.
    held: usize,
    until: Instant,
    stop: &'a AtomicBool,
}

impl Search<'_> {
    /// Looks through a directory and those below it, of which no more are open at a time than lie below each other; false once it is to end.
    fn look(&mut self, directory: &Directory, number: u32, depth: usize) -> bool {
        let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return true };
        for entry in entries {
            let Ok(entry) = entry else { return true };
            let is_over = Instant::now() > self.until || self.stop.load(Ordering::Acquire);
            if is_over || self.held > TREE_OTHERS_BYTES_MAX {
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
                    // What is mounted is another place, which may not answer.
                    let Ok(child) = directory.child_unmounted(name) else { continue };
                    self.held += ENTRY_BYTES + name.len();
                    // At most as many as the bytes allow.
                    let below = self.others.directories.len() as u32;
                    self.others.directories.push((number, name.into()));
                    if !self.look(&child, below, depth + 1) {
                        return false;
                    }
                }
                FileType::RegularFile => {
                    let Ok(found) = directory.stat(name) else { continue };
                    let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
                    let is_file = file_type(&found) == FileType::RegularFile && !is_mount;
                    if is_file && found.stx_size >= self.from_bytes {
                        let key = (found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                        let alike = self.others.files.entry(key).or_insert_with(|| Vec::with_capacity(1));
                        // One file may have two names, and a root may lie in another.
                        let is_known = alike.iter().any(|file| file.inode == found.stx_ino);
                        if alike.len() < ALIKE_MAX && !is_known {
                            alike.push(Alike { directory: number, inode: found.stx_ino, name: name.into() });
                            self.held += ENTRY_BYTES + name.len();
                            let bytes = found.stx_size.saturating_mul(READ_TIMES);
                            self.others.left_bytes = self.others.left_bytes.saturating_add(bytes);
                        }
                    }
                }
                _ => {}
            }
        }
        true
    }
}

impl Others {
    /// True if there was a file of this size and time that is likely to be the one of this name, and it may be read.
    pub fn has(&self, key: SizeAndTime, name: &[u8]) -> bool {
        key.0 <= self.left_bytes && self.likely(key, name).is_some()
    }

    /// The only one of its size and time, whatever its name; of several, as where all files have one time, the one of the same name.
    fn likely(&self, key: SizeAndTime, name: &[u8]) -> Option<&Alike> {
        let alike = self.files.get(&key)?;
        match alike.as_slice() {
            [one] => Some(one),
            alike => alike.iter().find(|file| &file.name[..] == name),
        }
    }

    /// So many bytes are going to be read of one of them.
    pub fn read(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
    }

    /// That file, if it still has this size and time.
    pub fn open(&self, key: SizeAndTime, name: &[u8]) -> Option<OlderFile> {
        if !self.has(key, name) {
            return None;
        }
        let (mut number, name) = self.likely(key, name).map(|file| (file.directory, &file.name))?;
        let mut way = Vec::new();
        while number as usize >= self.roots.len() {
            let (parent, name) = self.directories.get(number as usize)?;
            way.push(name);
            number = *parent;
        }
        let mut directory = self.roots.get(number as usize)?.duplicate().ok()?;
        for name in way.into_iter().rev() {
            directory = directory.child_unmounted(name).ok()?;
        }
        let older = OlderFile::new(directory.file_unmounted(name).ok()?.into())?;
        (older.size_bytes == key.0 && older.state.mtime == (key.1, key.2)).then_some(older)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};
    use std::path::Path;
    use std::process::Command;

    use super::super::tests::mounting::run_with_mounts;
    use super::*;

    fn find(roots: &[&Path]) -> Others {
        let roots = roots.iter().map(|root| Directory::open(root).unwrap()).collect();
        OthersToFind::new(roots, 4096).find(Duration::from_secs(60), &AtomicBool::new(false))
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
        let found = others.open(key(&deep), b"new").unwrap();
        found.file.read_exact_at(&mut bytes, 4996).unwrap();
        assert_eq!((found.size_bytes, bytes), (5000, [7; 4]));
        assert!(others.open(key(&inside.join("top")), b"new").is_some());
        for path in [inside.join("small"), outside.join("away")] {
            assert!(others.open(key(&path), b"new").is_none(), "{path:?}");
        }
        // It may have changed since.
        let before = key(&deep);
        fs::write(&deep, b"changed").unwrap();
        assert!(others.open(before, b"new").is_none());
        fs::rename(inside.join("a"), inside.join("z")).unwrap();
        assert!(others.open(before, b"new").is_none());
    }

    /// Never slower than without: where many files have one size and time, only a name tells which is meant.
    #[test]
    fn files_that_are_alike_are_told_apart_by_name() {
        let place = tempfile::tempdir().unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        for number in 0..ALIKE_MAX as u8 {
            let path = place.path().join(format!("{number}"));
            fs::write(&path, vec![number; 5000]).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        let others = find(&[place.path()]);
        let key = (5000, 1, 0);
        assert!(!others.has(key, b"new") && others.open(key, b"new").is_none());
        for number in 0..ALIKE_MAX as u8 {
            let mut byte = [255];
            let found = others.open(key, format!("{number}").as_bytes()).unwrap();
            found.file.read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(byte, [number]);
        }
    }

    /// Design 17: a sender that tells many entries of the size and time of one file has it read twice, and no more.
    #[test]
    fn no_file_is_read_again_and_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, vec![7; 5000]).unwrap();
        let mut others = find(&[place.path()]);
        for _ in 0..READ_TIMES {
            assert!(others.open(key(&path), b"new").is_some());
            others.read(5000);
        }
        assert!(!others.has(key(&path), b"new") && others.open(key(&path), b"new").is_none());
    }

    /// Never slower than without: the search ends when its time is over, and when the copy does.
    #[test]
    fn the_search_has_an_end() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), vec![7; 5000]).unwrap();
        for (patience, stop) in [(Duration::ZERO, false), (Duration::from_secs(60), true)] {
            let roots = vec![Directory::open(place.path()).unwrap()];
            let others = OthersToFind::new(roots, 4096).find(patience, &AtomicBool::new(stop));
            assert!(others.files.is_empty());
        }
    }

    /// Design 16: what is mounted below the destination is another place, also if it is the same file system once more; it is neither
    /// searched nor read, before or after.
    #[test]
    fn what_is_mounted_is_left_alone() {
        const PLACE: &str = "DRAY_TEST_MOUNTS";
        let name = "local::tree::others::tests::what_is_mounted_is_left_alone";
        if let Some(place) = std::env::var_os(PLACE) {
            return mounts_are_left_alone(Path::new(&place));
        }
        let place = tempfile::tempdir().unwrap();
        for directory in ["outside", "inside", "inside/bound", "inside/other", "inside/later"] {
            fs::create_dir(place.path().join(directory)).unwrap();
        }
        for (file, len) in [("outside/a", 5000), ("b", 6000), ("inside/file", 100), ("inside/later/c", 7000)]
        {
            fs::write(place.path().join(file), vec![7; len]).unwrap();
        }
        let mount = "cd \"$DRAY_TEST_MOUNTS\" && mount --bind outside inside/bound && mount -t tmpfs none inside/other \
             && cp b inside/other/d && mount --bind b inside/file";
        run_with_mounts(name, (PLACE, place.path()), mount);
    }

    fn mounts_are_left_alone(place: &Path) {
        let inside = place.join("inside");
        let others = find(&[&inside]);
        let later = inside.join("later/c");
        let before = key(&later);
        assert_eq!(others.files.keys().copied().collect::<Vec<_>>(), [before]);
        assert!(others.open(before, b"new").is_some());
        // The same file once more, but mounted meanwhile.
        let mount = |what: &Path| Command::new("mount").arg("--bind").args([what, what]).status().unwrap();
        assert!(mount(&later).success());
        assert!(others.open(before, b"new").is_none());
        assert!(Command::new("umount").arg(&later).status().unwrap().success());
        assert!(others.open(before, b"new").is_some());
        assert!(mount(&inside.join("later")).success());
        assert!(others.open(before, b"new").is_none());
    }
}
