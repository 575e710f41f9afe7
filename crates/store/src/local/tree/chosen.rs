//! The entries that a list names (`--files-from`): paths below a source, sorted as a walk goes, so that of each directory only what the list
//! names is looked at.

use std::ops::Range;

use dray_core::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, SYNC_LIST_BYTES_MAX, SYNC_LIST_MAX};
use dray_core::{Error, ErrorKind, Result};

use super::listing::Listing;

/// What a list names; in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    bytes: Vec<u8>,
    /// Where each line begins, and its length.
    lines: Vec<(u32, u32)>,
    /// The source itself is named.
    names_all: bool,
    /// A line begins with `./`, which names the source as a directory on the way.
    passes_root: bool,
}

/// How much of a directory is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All that is in it; what these lines name has to be there.
    Whole(Range<usize>),
    /// All names in it, but of directories among them only as much as these lines name.
    Names(Range<usize>),
    /// What these lines name.
    Lines(Range<usize>),
}

impl Chosen {
    /// Adds a line: a path below the source, `/` or `./` in front count for nothing; what it comes to. `None` for one without a name, `Usage` for
    /// one that leads up, or that is too long or too much.
    pub fn add(&mut self, line: &[u8]) -> Result<()> {
        let refused = |what: &str| {
            let line = String::from_utf8_lossy(line);
            Error::new(ErrorKind::Usage, format!("{line:?} in the list {what}"))
        };
        if line.is_empty() {
            return Ok(());
        }
        if line.len() > PATH_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("a line of the list has more than {PATH_BYTES_MAX} bytes"),
            ));
        }
        let start = self.bytes.len();
        let mut is_first = true;
        for name in line.split(|byte| *byte == b'/') {
            match name {
                b"" => continue,
                b".." => return Err(refused("leads up with ..").advise("name what is below SRC")),
                // At the end it means what a slash means.
                b"." if is_first
                    || line.ends_with(b"/.") && !line.windows(3).any(|three| three == b"/./") => {}
                b"." => return Err(refused("has /./ in it").advise("leave that out")),
                name if name.len() > NAME_BYTES_MAX || name.contains(&0) => {
                    return Err(refused("has a name in it that no file can have"));
                }
                name => {
                    if self.bytes.len() > start {
                        self.bytes.push(b'/');
                    }
                    self.bytes.extend_from_slice(name);
                }
            }
            self.passes_root |= is_first && name == b".";
            is_first = false;
        }
        let too_many = || {
            let what = format!("the list has more than {SYNC_LIST_MAX} lines or {SYNC_LIST_BYTES_MAX} bytes");
            Error::new(ErrorKind::Usage, what).advise("bring it over in several commands")
        };
        // As many as are told.
        let has_room = |names_all: bool| self.lines.len() + usize::from(names_all) < SYNC_LIST_MAX;
        if self.bytes.len() == start {
            if !self.names_all && !has_room(false) {
                return Err(too_many());
            }
            self.names_all = true;
            return Ok(());
        }
        let has_room = has_room(self.names_all);
        if line.ends_with(b"/") || line.ends_with(b"/.") {
            self.bytes.push(b'/');
        }
        if !has_room || self.bytes.len() > SYNC_LIST_BYTES_MAX {
            return Err(too_many());
        }
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        self.lines.push((place(start), place(self.bytes.len() - start)));
        Ok(())
    }

    /// To be called after the last line.
    pub fn sort(&mut self) {
        // What is below an entry follows it at once: nothing sorts before a slash.
        let key = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        let Chosen { bytes, lines, .. } = self;
        let of = |place: &(u32, u32)| slice(bytes, *place);
        lines.sort_unstable_by(|one, other| of(one).iter().map(key).cmp(of(other).iter().map(key)));
        lines.dedup_by(|one, other| of(one) == of(other));
    }

    /// The lines as they are to be told to another host.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let all = self.names_all.then_some(&b"."[..]).into_iter();
        all.chain((0..self.lines.len()).map(|index| self.line(index)))
    }

    /// True if the source itself is named, be it as a directory on the way.
    pub fn names_root(&self) -> bool {
        self.names_all || self.passes_root
    }

    fn line(&self, index: usize) -> &[u8] {
        slice(&self.bytes, self.lines[index])
    }

    /// What of the source itself is looked at.
    pub(super) fn root(&self, is_recursive: bool) -> Reach {
        let all = 0..self.lines.len();
        match (self.names_all, is_recursive) {
            (true, true) => Reach::Whole(all),
            (true, false) => Reach::Names(all),
            (false, _) => Reach::Lines(all),
        }
    }

    /// Of `lines`, all of which are below one directory whose path has so many bytes, those that name `name` in it or something below that; and
    /// whether that itself is named.
    fn below(&self, lines: &Range<usize>, path_len: usize, name: &[u8]) -> (Range<usize>, bool) {
        let at = if path_len == 0 { 0 } else { path_len + 1 };
        let component = |index: usize| {
            let rest = self.line(index).get(at..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            &rest[..end]
        };
        let first = |reached: &dyn Fn(&[u8]) -> bool| {
            let (mut low, mut high) = (lines.start, lines.end);
            while low < high {
                let middle = low + (high - low) / 2;
                if reached(component(middle)) { high = middle } else { low = middle + 1 }
            }
            low
        };
        let start = first(&|found| found >= name);
        let end = first(&|found| found > name);
        let is_named = start < end && self.line(start).len() == at + name.len();
        (start..end, is_named)
    }

    /// How much of the entry `name`, at `path_len` bytes of path, is looked at, and whether the list names it itself.
    pub(super) fn reach(
        &self,
        reach: &Reach,
        path_len: usize,
        name: &[u8],
        is_recursive: bool,
    ) -> (Reach, bool) {
        let lines = match reach {
            Reach::Whole(lines) if lines.is_empty() => return (Reach::Whole(0..0), true),
            Reach::Whole(lines) | Reach::Names(lines) | Reach::Lines(lines) => lines,
        };
        let (mut below, mut is_named) = self.below(lines, path_len, name);
        let mut is_slashed = false;
        let whole = path_len + usize::from(path_len > 0) + name.len();
        if is_named {
            below.start += 1;
        }
        if !below.is_empty() && self.line(below.start).len() == whole + 1 {
            (is_slashed, is_named) = (true, true);
            below.start += 1;
        }
        is_named |= matches!(reach, Reach::Whole(_));
        let reach = match is_named && is_recursive {
            true => Reach::Whole(below),
            false if is_slashed => Reach::Names(below),
            false => Reach::Lines(below),
        };
        (reach, is_named)
    }

    /// How many lines name something below what is looked at so.
    pub(super) fn count(reach: &Reach) -> usize {
        let (Reach::Whole(lines) | Reach::Names(lines) | Reach::Lines(lines)) = reach;
        lines.len()
    }

    /// The names that the list has in a directory of which more is looked at, and that are not in its listing.
    pub(super) fn missing(&self, reach: &Reach, path_len: usize, listing: &Listing) -> Vec<Vec<u8>> {
        let (Reach::Whole(lines) | Reach::Names(lines) | Reach::Lines(lines)) = reach;
        let wanted = self.listing(lines, path_len);
        let names = (0..).map_while(|index| wanted.get(index));
        names.filter(|name| !listing.has(name)).map(<[u8]>::to_vec).collect()
    }

    /// The names in a directory that `lines` lead to.
    pub(super) fn listing(&self, lines: &Range<usize>, path_len: usize) -> Listing {
        let at = if path_len == 0 { 0 } else { path_len + 1 };
        let names = lines.clone().map(|index| {
            let rest = self.line(index).get(at..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            &rest[..end]
        });
        Listing::of(names)
    }
}

fn slice(bytes: &[u8], (start, len): (u32, u32)) -> &[u8] {
    &bytes[start as usize..start as usize + len as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(lines: &[&str]) -> Chosen {
        let mut chosen = Chosen::default();
        lines.iter().for_each(|line| chosen.add(line.as_bytes()).unwrap());
        chosen.sort();
        chosen
    }

    /// Issue "--files-from": lines are paths below the source, each once, and what leads up is refused.
    #[test]
    fn lines_are_paths_below_the_source() {
        let list = chosen(&["b/", "/a//b", "./c", "a-b", "a", "a/b", "b/.", ".", "", "a/b/c"]);
        let lines: Vec<_> = list.lines().map(|line| std::str::from_utf8(line).unwrap()).collect();
        assert!(list.names_root() && chosen(&["./a"]).names_root() && !chosen(&["a", "/b/."]).names_root());
        assert_eq!(lines, [".", "a", "a/b", "a/b/c", "a-b", "b/", "c"]);
        for bad in ["..", "a/../b", "../a", "a/./b", "a/..", &"x".repeat(256), "a\0b"] {
            let error = Chosen::default().add(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
        }
    }

    /// Of each directory the lines below it are found, whatever sorts between a name and what is below it.
    #[test]
    fn what_is_below_a_directory_is_found() {
        let list = chosen(&["a/b/c", "a/b-c", "a", "a!", "a/b/", "d"]);
        let root = list.root(false);
        let names = |reach: &Reach, path_len| match reach {
            Reach::Lines(lines) | Reach::Names(lines) => {
                let listing = list.listing(lines, path_len);
                let names = (0..).map_while(|index| listing.get(index).map(<[u8]>::to_vec));
                names.map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
            }
            Reach::Whole(_) => panic!("whole"),
        };
        assert_eq!(names(&root, 0), ["a", "a!", "d"]);
        let (a, is_named) = list.reach(&root, 0, b"a", false);
        assert!(is_named && matches!(a, Reach::Lines(_)));
        assert_eq!(names(&a, 1), ["b", "b-c"]);
        let (b, is_named) = list.reach(&a, 1, b"b", false);
        assert!(is_named && matches!(b, Reach::Names(_)), "{b:?}");
        assert_eq!(names(&b, 3), ["c"]);
        let whole = list.reach(&root, 0, b"a", true).0;
        assert_eq!(Chosen::count(&whole), 3, "{whole:?}");
        let there = Listing::of([&b"b"[..], b"x"].into_iter());
        assert_eq!(list.missing(&whole, 1, &there), [b"b-c"]);
        assert_eq!(list.reach(&whole, 1, b"x", true), (Reach::Whole(4..4), true));
        assert_eq!(list.reach(&root, 0, b"e", true), (Reach::Lines(6..6), false), "{:?}", list.root(true));
    }

    /// A list is as long at the other end, where the source itself is a line, too.
    #[test]
    fn the_source_itself_counts_as_a_line() {
        let full = || Chosen { lines: vec![(0, 0); SYNC_LIST_MAX - 1], ..Chosen::default() };
        let mut list = full();
        assert!(list.add(b"a").is_ok() && list.add(b".").is_err() && list.add(b"b").is_err());
        let mut list = full();
        assert!(list.add(b".").is_ok() && list.add(b".").is_ok() && list.add(b"a").is_err());
        assert_eq!(list.lines().count(), SYNC_LIST_MAX);
    }
}
