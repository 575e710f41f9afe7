//! Patterns in the names of remote sources, as in a shell: `*`, `?`, `[a-z]`, `[!a-z]`, and a backslash before a character
//! that means itself. A dot at the beginning of a name is matched by a dot alone.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Result};
use rustix::io::Errno;

/// Matches that are worth naming.
pub(super) const MATCHES_MAX: usize = 4;
/// Entries of directories that are looked at for one pattern: links in a circle could make it any number.
const ENTRIES_MAX: usize = 80_000;
/// Time for one pattern.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Whether a path may be meant as a pattern.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| b"*?[\\".contains(byte))
}

/// Opens a directory; `None` if nothing of it is to be looked at.
pub(super) type Open<'a> = dyn Fn(&Path) -> Result<Option<OwnedFd>> + 'a;

/// Up to `max` paths that `pattern` stands for, and one more to show that there are. What `open` fails with is the error of the whole, and so is
/// that of a directory that cannot be listed. `Refused` if too much would have to be looked at, `Interrupted` soon after `is_stopped` says yes.
pub(super) fn expand(
    pattern: &Path,
    max: usize,
    open: &Open<'_>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<PathBuf>> {
    let components: Vec<Component<'_>> = pattern.components().collect();
    let deadline = Instant::now() + TIME_MAX;
    let mut search = Search { pattern, max, open, is_stopped, deadline, found: Vec::new(), entries: 0 };
    search.descend(PathBuf::new(), &components)?;
    search.found.sort();
    Ok(search.found)
}

struct Search<'a> {
    pattern: &'a Path,
    max: usize,
    open: &'a Open<'a>,
    is_stopped: &'a dyn Fn() -> bool,
    deadline: Instant,
    found: Vec<PathBuf>,
    entries: usize,
}

impl Search<'_> {
    fn descend(&mut self, at: PathBuf, rest: &[Component<'_>]) -> Result<()> {
        let Some((first, rest)) = rest.split_first() else {
            self.found.push(at);
            return Ok(());
        };
        let name = first.as_os_str();
        if !matches!(first, Component::Normal(_)) || (!is_pattern(Path::new(name)) && !rest.is_empty()) {
            return self.descend(at.join(name), rest);
        }
        let dir = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
        let Some(opened) = (self.open)(dir)? else { return Ok(()) };
        let failed = |error: Errno| Error::file(format!("list {dir:?} for the pattern"), error.into());
        for entry in rustix::fs::Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if self.found.len() > self.max {
                return Ok(());
            }
            self.count()?;
            let entry = entry.file_name().to_bytes();
            if entry != b"." && entry != b".." && matches(name.as_bytes(), entry) {
                self.descend(at.join(OsStr::from_bytes(entry)), rest)?;
            }
        }
        Ok(())
    }

    /// One more entry is looked at, if that is not too much.
    fn count(&mut self) -> Result<()> {
        self.entries += 1;
        if (self.is_stopped)() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        if self.entries <= ENTRIES_MAX && Instant::now() < self.deadline {
            return Ok(());
        }
        // What to do does not cross the wire, so it stands here.
        Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{:?} stands for too much: after {} names it was not done; give more of the file's path",
                self.pattern,
                self.entries - 1
            ),
        ))
    }
}

/// Whether `pattern` stands for `name`. Takes time in the product of both lengths at most: of several stars only the
/// last one that was passed is tried again.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') && !pattern.starts_with(b"\\.") {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to go on if what follows the last star fits only later.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
            continue;
        }
        let fits = match name.get(n) {
            None if p == pattern.len() => return true,
            None => None,
            Some(byte) => one(&pattern[p..], *byte),
        };
        match (fits, &mut retry) {
            (Some(taken), _) => (p, n) = (p + taken, n + 1),
            (None, Some((after, from))) if *from < name.len() => {
                *from += 1;
                (p, n) = (*after, *from);
            }
            _ => return false,
        }
    }
}

/// How much of the beginning of `pattern` stands for `byte`; `None` if it does not.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => match in_set(set, byte) {
            Some((true, taken)) => Some(1 + taken),
            Some((false, _)) => None,
            // Without its end it is a bracket.
            None => (byte == b'[').then_some(1),
        },
        [same, ..] => (*same == byte).then_some(1),
    }
}

/// Whether `byte` is in the set that begins after `[`, and how long that is; `None` if it has no end.
fn in_set(set: &[u8], byte: u8) -> Option<(bool, usize)> {
    let is_negated = matches!(set.first(), Some(b'!' | b'^'));
    let start = usize::from(is_negated);
    // A bracket that comes first is a member.
    let end = start + 1 + set.get(start + 1..)?.iter().position(|byte| *byte == b']')?;
    let (mut members, mut is_in) = (&set[start..end], false);
    while let [first, rest @ ..] = members {
        if let [b'-', last, rest @ ..] = rest {
            is_in |= (*first..=*last).contains(&byte);
            members = rest;
        } else {
            is_in |= *first == byte;
            members = rest;
        }
    }
    Some((is_in != is_negated, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, name, fits) in [
            ("*.iso", "a.iso", true),
            ("*.iso", ".iso", false),
            (".*", ".iso", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3d", false),
            ("?", "x", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("*", "", true),
            ("**", "anything", true),
            ("a\\", "a", false),
            ("[a-]", "-", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
        // A pattern made to be slow is not.
        assert!(!matches("*a".repeat(2000).as_bytes(), "a".repeat(1500).as_bytes()));
    }

    #[test]
    fn paths_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one/x.txt", "two/y.txt", "two/x.txt", "two/x[1]"] {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let open = |path: &Path| {
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok())
        };
        let found = |pattern: &str| expand(&dir.path().join(pattern), MATCHES_MAX, &open, &|| false).unwrap();
        assert_eq!(found("*/y*"), [dir.path().join("two/y.txt")]);
        assert_eq!(found("*/x.txt"), [dir.path().join("one/x.txt"), dir.path().join("two/x.txt")]);
        assert_eq!(found("tw?/x\\[*"), [dir.path().join("two/x[1]")]);
        assert!(found("*/none").is_empty() && found("none/*").is_empty());
        for number in 0..20 {
            std::fs::write(dir.path().join(format!("many-{number}")), b"").unwrap();
        }
        assert_eq!(found("many-*").len(), MATCHES_MAX + 1);
    }

    /// S28: a pattern is no way to keep a host busy, whatever whoever may write there has put in its way.
    #[test]
    fn a_pattern_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "d", "e", "f"] {
            std::os::unix::fs::symlink(".", dir.path().join(name)).unwrap();
        }
        let opened = std::cell::Cell::new(0);
        let open = |path: &Path| {
            opened.set(opened.get() + 1);
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok())
        };
        let pattern = dir.path().join("*/".repeat(30) + "none");
        let error = expand(&pattern, MATCHES_MAX, &open, &|| false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("too much"), "{error}");
        assert!((1..=ENTRIES_MAX).contains(&opened.get()));
        opened.set(0);
        let error = expand(&pattern, MATCHES_MAX, &open, &|| opened.get() == 10).unwrap_err();
        assert_eq!((error.kind(), opened.get()), (ErrorKind::Interrupted, 10));
    }
}
