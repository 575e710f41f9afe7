//! How likely a file has a chunk of another one, by what is known of both without reading them (Y15):
//! `p = pmc * pfs * pss * ptm * ppc`.
//!
//! The constants are those of dsync's paper. Of the variants that its code has, these are taken: the squares of matches of the path that do
//! not reach its end. Not taken: prefixes and suffixes of names by `~`, `.bak` and `#` alone, likeness of sizes from 0.95 to 4.45 times, and the
//! term for paths that come together again.

/// What is known of a file without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata<'a> {
    /// Name in its directory.
    pub name: &'a [u8],
    /// Size.
    pub size_bytes: u64,
    /// Modification time in seconds since 1970; `None` if nobody tells.
    pub mtime_s: Option<i64>,
}

/// Of what does not tell anything.
const ELSE: f64 = 0.1;

/// All of it but the path.
pub(super) fn of_file(candidate: Metadata<'_>, source: Metadata<'_>) -> f64 {
    of_count(candidate.size_bytes, source.size_bytes)
        * of_names(candidate.name, source.name)
        * of_sizes(candidate.size_bytes, source.size_bytes)
        * of_times(candidate.mtime_s, source.mtime_s)
}

/// `pmc`: a smaller file cannot have more than its share.
fn of_count(candidate: u64, source: u64) -> f64 {
    match source {
        0 => 0.0,
        _ => candidate.min(source) as f64 / source as f64,
    }
}

/// `pfs`. A prefix or suffix counts from half of the longer name on: `a` says nothing of `archive.tar`.
fn of_names(candidate: &[u8], source: &[u8]) -> f64 {
    let (short, long) =
        if candidate.len() <= source.len() { (candidate, source) } else { (source, candidate) };
    let is_part = long.starts_with(short) || long.ends_with(short);
    if candidate == source {
        1.0
    } else if is_part && short.len() * 2 >= long.len() {
        0.7
    } else if extension(candidate).is_some_and(|known| Some(known) == extension(source)) {
        0.5
    } else {
        ELSE
    }
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    // A dot in front hides a name and ends none.
    name.get(dot + 1..).filter(|extension| dot > 0 && !extension.is_empty())
}

/// `pss`: equal, or from 0.9 down to 0.5 within a tenth.
fn of_sizes(candidate: u64, source: u64) -> f64 {
    let difference = candidate.abs_diff(source) as f64 / source.max(1) as f64;
    match difference {
        _ if candidate == source => 1.0,
        near if near <= 0.1 => 0.9 - 4.0 * near,
        _ => ELSE,
    }
}

/// `ptm`: equal, or from 1 down to 0.9 within 10 s.
fn of_times(candidate: Option<i64>, source: Option<i64>) -> f64 {
    let seconds = candidate.zip(source).map(|(candidate, source)| candidate.abs_diff(source));
    match seconds {
        Some(near @ 0..=10) => 1.0 - near as f64 / 100.0,
        _ => 0.7,
    }
}

/// Where the names of a directory's path match those of the destination's, brought up to date a name at a time.
#[derive(Clone, Debug)]
pub(super) struct PathMatch {
    /// For each name of the destination, how many up to it are the last ones of this path.
    runs: Box<[u8]>,
    /// Names of this path, how many of its first ones are the destination's (which is how far apart they lie), and the longest match anywhere.
    names: u8,
    left: u8,
    longest: u8,
}

impl PathMatch {
    /// Of the top of the scope, which is the first name of both.
    pub(super) fn top(destination: &[Vec<u8>]) -> PathMatch {
        let mut runs = vec![0; destination.len() + 1].into_boxed_slice();
        runs[0] = 1;
        PathMatch { runs, names: 1, left: 1, longest: 1 }
    }

    /// Of the directory `name` in it; `None` if that is too deep to tell.
    pub(super) fn below(&self, name: &[u8], destination: &[Vec<u8>]) -> Option<PathMatch> {
        let names = self.names.checked_add(1)?;
        let mut runs = vec![0; self.runs.len()].into_boxed_slice();
        for (at, wanted) in destination.iter().enumerate() {
            if wanted == name {
                runs[at + 1] = self.runs[at].saturating_add(1);
            }
        }
        let is_left = self.left == self.names
            && destination.get(usize::from(self.names) - 1).is_some_and(|wanted| wanted == name);
        let longest = runs.iter().copied().max().unwrap_or(0).max(self.longest);
        Some(PathMatch { runs, names, left: if is_left { names } else { self.left }, longest })
    }

    /// Names at the end of the destination's path that this one has not; none below the destination.
    pub(super) fn apart(&self) -> u8 {
        u8::try_from(self.runs.len().saturating_sub(usize::from(self.left))).unwrap_or(u8::MAX)
    }

    /// `ppc`: the longest run of equal names by the length of the longer path; its square unless the run is the end of both.
    pub(super) fn likeness(&self) -> f64 {
        let all = self.runs.len().max(usize::from(self.names)) as f64;
        let share = |run: u8| f64::from(run) / all;
        let right = share(self.runs.last().copied().unwrap_or(0));
        let elsewhere = share(self.longest);
        right.max(elsewhere * elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size_bytes: u64, mtime_s: i64) -> Metadata<'_> {
        Metadata { name: name.as_bytes(), size_bytes, mtime_s: Some(mtime_s) }
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    /// Y15, each factor alone.
    #[test]
    fn likeness_is_that_of_the_paper() {
        let source = file("report.txt", 1000, 100);
        let of = |name: &str, size, time| of_file(file(name, size, time), source);
        assert_near(of("report.txt", 1000, 100), 1.0);
        assert_near(of("report.txt.bak", 1000, 100), 0.7);
        assert_near(of("old-report.txt", 1000, 100), 0.7);
        assert_near(of("notes.txt", 1000, 100), 0.5);
        assert_near(of("t", 1000, 100), 0.1);
        assert_near(of("image.iso", 1000, 100), 0.1);
        assert_near(of("report.txt", 1000, 105), 0.95);
        assert_near(of("report.txt", 1000, 111), 0.7);
        assert_near(of("report.txt", 1050, 100), 0.7);
        assert_near(of("report.txt", 1101, 100), 0.1);
        // A file of 95 % of the size cannot have more than that.
        assert_near(of("report.txt", 950, 100), 0.95 * 0.7);
        assert_near(of("report.txt", 0, 100), 0.0);
        assert_near(of_file(Metadata { mtime_s: None, ..source }, source), 0.7);
        assert_near(of_names(b".profile", b".other.profile"), 0.7);
        assert_near(of_names(b".bashrc", b".zbashrc"), 0.1);
        assert_near(of_names(b".bashrc", b"copy-of-mine.bashrc"), 0.1);
        assert_near(of_names(b"one.", b"another."), 0.1);
        assert_near(of_file(source, file("report.txt", 0, 100)), 0.0);
    }

    /// Y15: runs that end both paths count as they are, others as squares.
    #[test]
    fn paths_are_alike_as_far_as_they_go() {
        let destination: Vec<Vec<u8>> = ["proj", "b", "out"].map(|name| name.as_bytes().to_vec()).into();
        let of = |names: &[&str]| {
            let top = PathMatch::top(&destination);
            let path = names.iter().fold(top, |at, name| at.below(name.as_bytes(), &destination).unwrap());
            path.likeness()
        };
        assert_near(of(&["proj", "b", "out"]), 1.0);
        assert_near(of(&[]), 1.0 / 16.0);
        assert_near(of(&["proj"]), 4.0 / 16.0);
        assert_near(of(&["proj", "a", "x"]), 4.0 / 16.0);
        // The end of both: three quarters are the other tree's, and count as they are.
        assert_near(of(&["old", "proj", "b", "out"]), 3.0 / 5.0);
        assert_near(of(&["old", "proj", "b", "x"]), 4.0 / 25.0);
        let deep = vec!["x"; 254];
        assert_near(of(&deep), 1.0 / (255.0 * 255.0));
        let top = PathMatch::top(&destination);
        let deepest = deep.iter().fold(top, |at, name| at.below(name.as_bytes(), &destination).unwrap());
        assert!(deepest.below(b"x", &destination).is_none());
    }
}
