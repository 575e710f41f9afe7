//! A disk that was promised more room than there is: it takes a write, and refuses it later.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, statvfs, syncfs};

use crate::Host;
use crate::live::tool;

/// A file system on a disk of which the room is somebody else's.
pub struct Thin {
    beneath: PathBuf,
    /// Where it is mounted.
    pub place: PathBuf,
}

impl Thin {
    /// A new one, of which nothing has room but what was written when it was made.
    pub fn new(host: &Host, name: &str, make: &[&str], size_bytes: u64) -> Thin {
        let thin = Thin::with(host, name, make, size_bytes, |_| ());
        tool(&["fstrim", thin.place.to_str().unwrap()]);
        thin
    }

    /// Without a journal. There is room for everything but inodes, of which the first block of each group has some.
    pub fn without_inodes(host: &Host, name: &str) -> Thin {
        let make = ["-b", "4096", "-E", "lazy_itable_init=0", "-O", "^has_journal"];
        let make = [&["mkfs.ext4", "-q", "-F", "-m", "0"], &make[..]].concat();
        Thin::with(host, name, &make, 96 << 20, |image| {
            let groups = tool(&["dumpe2fs", image]);
            let tables = groups.lines().filter_map(|line| line.trim().strip_prefix("Inode table at "));
            let tables: Vec<&str> = tables.filter_map(|table| table.split([' ', ',']).next()).collect();
            assert!(!tables.is_empty(), "{groups}");
            for table in tables {
                let (first, last) = table.split_once('-').unwrap();
                let [first, last]: [u64; 2] = [first, last].map(|block| block.parse().unwrap());
                let (at, len) = (((first + 1) * 4096).to_string(), ((last - first) * 4096).to_string());
                tool(&["fallocate", "--punch-hole", "-o", &at, "-l", &len, image]);
            }
        })
    }

    /// The same once `prepare` had its image.
    pub fn with(host: &Host, name: &str, make: &[&str], size_bytes: u64, prepare: impl Fn(&str)) -> Thin {
        let (beneath, place) = (host.directory(&format!("{name}-beneath")), host.directory(name));
        tool(&["mount", "-t", "tmpfs", "-o", "size=1G", "tmpfs", beneath.to_str().unwrap()]);
        let image = beneath.join("image");
        let image = image.to_str().unwrap();
        fs::File::create(image).unwrap().set_len(size_bytes).unwrap();
        tool(&[make, &[image]].concat());
        // What the file system notes has its room beforehand.
        let whole = fs::read(image).unwrap();
        fs::write(image, whole).unwrap();
        prepare(image);
        tool(&["mount", "-o", "loop", image, place.to_str().unwrap()]);
        let thin = Thin { beneath, place };
        // A loop device takes a write that is cut short for one that is whole: so none is of more than a page.
        let device = tool(&["findmnt", "-n", "-o", "SOURCE", thin.place.to_str().unwrap()]);
        let device = device.trim().trim_start_matches("/dev/");
        fs::write(format!("/sys/block/{device}/queue/max_sectors_kb"), "4").unwrap();
        thin
    }

    /// What is read from now on is what the disk has.
    pub fn forget(&self) {
        self.unmounted(|_| ());
    }

    /// Has its image used while it is not mounted.
    pub fn unmounted(&self, then: impl FnOnce(&str)) {
        let (image, place) = (self.beneath.join("image"), self.place.to_str().unwrap());
        tool(&["umount", place]);
        then(image.to_str().unwrap());
        tool(&["mount", "-o", "loop", image.to_str().unwrap(), place]);
    }

    /// Checks it with e2fsck(8) and mounts it again.
    pub fn check(&self) {
        self.unmounted(|image| {
            let said = std::process::Command::new("e2fsck").args(["-f", "-y", image]).output().unwrap();
            assert!([Some(0), Some(1)].contains(&said.status.code()), "{said:?}");
        });
    }

    /// So much room is there in all, for what it has and what it gets.
    pub fn remount(&self, size_bytes: u64) {
        let size = format!("remount,size={size_bytes}");
        tool(&["mount", "-o", &size, self.beneath.to_str().unwrap()]);
    }

    /// No room for what the file system believes to be free: with a little of it a loop device takes a write that is cut short for one that is whole.
    pub fn take_room(&self) {
        self.take_room_but(0);
    }

    /// The same, but for so much.
    pub fn take_room_but(&self, left_bytes: u64) {
        self.sync();
        tool(&["fstrim", self.place.to_str().unwrap()]);
        self.leave(left_bytes);
    }

    /// So many inodes, and their names in `directory`, have their room: what is refused is data.
    pub fn make_names(&self, directory: &Path, names: usize) {
        let names: Vec<PathBuf> =
            (0..names).map(|at| directory.join(format!("room for a name {at}"))).collect();
        names.iter().for_each(|path| fs::write(path, b"").unwrap());
        self.sync();
        names.iter().for_each(|path| fs::remove_file(path).unwrap());
    }

    /// The same as [`Thin::take_room_but`]; what was given back stays.
    pub fn leave(&self, left_bytes: u64) {
        self.sync();
        let taken = statvfs(&self.beneath).map(|it| (it.f_blocks - it.f_bfree) * it.f_frsize).unwrap();
        self.remount(taken + left_bytes);
    }

    /// All that was written is on it.
    pub fn sync(&self) {
        syncfs(fs::File::open(&self.place).unwrap()).unwrap();
    }
}

/// What the disk has of a file; `None` if it has none.
pub fn on_disk(path: &Path) -> Option<Vec<u8>> {
    let file = fs::File::open(path).ok()?;
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    drop(file);
    fs::read(path).ok()
}
