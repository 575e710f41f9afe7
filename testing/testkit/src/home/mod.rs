//! A home to search in that is no file at all: names, sizes and times of 445,355 files in 37,157 directories, as many as in table 3 of dsync's
//! paper (R16), so that a search of all of them takes seconds and no disk.
//!
//! What the paper tells of its tree is the same here. How many directories and bytes lie below `s` and `s/y` follows from its column
//! "BFS", which lists all of a subtree before its parent. What it does not tell comes from a seed: directories are added one after the other
//! below one that is there, as likely as it has subdirectories, and two (Agrawal, Bolosky, Douceur, Lorch: "A five-year study of file-system
//! metadata", FAST 2007); sizes are lognormal, as there, and brought to the sum that is known.

mod grow;
mod walk;

pub use walk::{Found, Walk, walk};

/// Bytes of a MB in the paper's table.
pub const MB: u64 = 1 << 20;
/// What the paper's home has.
pub const DIRECTORIES: usize = 37_157;
/// The same of files; without the useful one.
pub const FILES: usize = 445_355;
const BYTES: u64 = 76_000 * MB;
/// Below `s`, itself included: breadth-first has listed these and the top before the useful file at the top is read.
const DIRECTORIES_OF_S: usize = 6_961;
const FILES_OF_S: usize = 51_127;
const BYTES_OF_S: u64 = 3_990 * MB;
/// Below `s/y`, of 364 that are listed before the useful file in `s/y-old/n/c/test` is read, with it and the five on the way to it.
const DIRECTORIES_OF_Y: usize = 358;
const FILES_OF_Y: usize = 3_203;
const BYTES_OF_Y: u64 = 127 * MB;
/// Of those in the destination's directory, in units of 10 kB: seven files of 58 MB, one of them with nearly the size of what is looked for.
const SIZES_OF_TEST: [u64; 7] = [1_203, 1_000, 900, 800, 750, 650, 502];

/// Where the file goes, from the top.
pub const DESTINATION: [&str; 5] = ["s", "y", "n", "c", "test"];
/// Its name, and what it has.
pub const NAME: &str = "a.out";
/// Its size.
pub const SIZE_BYTES: u64 = 12 * MB;
/// Its modification time, seconds since 1970.
pub const MTIME_S: i64 = 1_190_000_000;

/// A file.
#[derive(Clone, Debug)]
pub struct File {
    /// Name in its directory.
    pub name: Box<str>,
    /// Size.
    pub size_bytes: u64,
    /// Modification time in seconds since 1970.
    pub mtime_s: i64,
}

/// A directory.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Name in the one above.
    pub name: Box<str>,
    /// Directories in it, by number.
    pub below: Vec<usize>,
    /// Files in it.
    pub files: Vec<File>,
}

/// The home: the first directory is its top.
#[derive(Clone, Debug)]
pub struct Home {
    /// All of them.
    pub directories: Vec<Directory>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Names from the top to the directory with the file that is of use.
    pub directory: &'static [&'static str],
    /// That file's name.
    pub name: &'static str,
    /// True if it has all of what is looked for; otherwise it is an old version, of which a ninth is the same, with 12.1 MB.
    pub is_same: bool,
    /// Directories that the paper's dsync listed before it read the useful file.
    pub stats: u64,
    /// Files that it read, that one included.
    pub hashes: u64,
}

const OLD: &[&str] = &["s", "y-old", "n", "c", "test"];

/// Table 3 of the paper.
pub const TABLE: [Row; 9] = [
    row(&DESTINATION, NAME, true, (1, 1)),
    row(&DESTINATION, NAME, false, (1, 1)),
    row(&DESTINATION, "diff", true, (373, 1)),
    row(OLD, NAME, true, (879, 2)),
    row(OLD, NAME, false, (879, 2)),
    row(OLD, "diff", true, (2_225, 2)),
    row(&[], NAME, true, (6_038, 3)),
    row(&[], NAME, false, (6_038, 3)),
    row(&[], "diff", true, (37_157, 227)),
];

const fn row(
    directory: &'static [&'static str],
    name: &'static str,
    is_same: bool,
    (stats, hashes): (u64, u64),
) -> Row {
    Row { directory, name, is_same, stats, hashes }
}

impl Row {
    /// How much of what is looked for the useful file has, in percent.
    pub fn share(&self) -> u32 {
        if self.is_same { 100 } else { 11 }
    }

    /// The file that is of use. What was copied under another name was written at another time.
    fn useful(&self) -> File {
        let is_untouched = self.is_same && self.name == NAME;
        File {
            name: self.name.into(),
            size_bytes: if self.is_same { SIZE_BYTES } else { SIZE_BYTES + MB / 10 },
            mtime_s: if is_untouched { MTIME_S } else { MTIME_S - 8_640_000 },
        }
    }
}

impl Home {
    /// The same for the same seed, on any machine.
    pub fn grown(seed: u64) -> Home {
        grow::grown(seed)
    }

    /// The directory below the top that `names` lead to.
    pub fn find<'a>(&self, names: impl IntoIterator<Item = &'a [u8]>) -> Option<usize> {
        names.into_iter().try_fold(0, |at, name| {
            let below = &self.directories.get(at)?.below;
            below.iter().copied().find(|at| self.directories[*at].name.as_bytes() == name)
        })
    }

    /// With the file of use where `row` has it, after the others of that directory; the number of the directory.
    pub fn place(&mut self, row: &Row) -> Option<usize> {
        let at = self.find(row.directory.iter().map(|name| name.as_bytes()))?;
        self.directories[at].files.push(row.useful());
        Some(at)
    }

    /// Without it.
    pub fn take_away(&mut self, at: usize) {
        self.directories[at].files.pop();
    }
}
