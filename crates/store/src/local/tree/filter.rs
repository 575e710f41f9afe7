//! Rules of what a synchronisation leaves out, protects and hides, in their order, as rsync's filters are; and the files in the directories themselves
//! that hold further ones (`.rsync-filter`, `.gitignore`).
//!
//! The first rule that fits decides. A rule may count for what is sent or for what is deleted alone. Where a rule names a file of rules, those of the
//! directory at hand come first, then those of the directories above it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use dray_core::limits::{SYNC_MERGE_BYTES_MAX, SYNC_RULE_BYTES_MAX};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::FileType;

use super::directory::{Directory, stat_fd};
use super::exclude::Pattern;
use super::write::file_type;

mod local;

use local::Found;
pub(super) use local::Local;

/// For what a rule is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// What is sent.
    Sending,
    /// What is deleted; of what goes with its directory rules that perish there do not count, and where what is left out is deleted, too, rules of
    /// which nobody said a side do not.
    Deleting { goes_with_directory: bool, deletes_left_out: bool },
}

/// One rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    is_exclude: bool,
    is_negated: bool,
    for_sending: bool,
    for_deleting: bool,
    /// It was said for which of both, be it for both.
    has_side: bool,
    perishes: bool,
    pattern: Pattern,
}

/// A file of further rules that each directory may have.
#[derive(Clone, Debug)]
pub(super) struct Merge {
    name: Vec<u8>,
    syntax: Syntax,
    /// Rules of directories above count, too.
    inherits: bool,
    for_sending: bool,
    for_deleting: bool,
    has_side: bool,
    perishes: bool,
}

/// How lines of a file of rules are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Syntax {
    /// Rules as rsync's `--filter` takes them.
    Rules { by_words: bool },
    /// Patterns alone, of what is left out or not.
    Patterns { is_exclude: bool, by_words: bool },
    /// As git has it.
    Git,
}

/// A rule, or a file of them.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Rule(Rule),
    Merge(Merge),
}

impl Step {
    /// A pattern of what is left out, whatever is asked.
    pub(super) fn exclude(pattern: &[u8]) -> Step {
        Step::Rule(Rule::plain(true, pattern))
    }

    /// The file of rules, if it is one.
    pub(super) fn merge(&self) -> Option<&Merge> {
        if let Step::Merge(merge) = self { Some(merge) } else { None }
    }

    /// Whether it may protect anything where what is left out is deleted, too.
    pub(super) fn may_protect(&self) -> bool {
        match self {
            Step::Rule(rule) => rule.is_exclude && rule.for_deleting && rule.has_side,
            // Of rules in a file each may have a side of its own.
            Step::Merge(merge) => {
                let has_sides = matches!(merge.syntax, Syntax::Rules { .. });
                merge.for_deleting && (merge.has_side || has_sides)
            }
        }
    }

    /// Reads what the wire and [`Excludes`](super::Excludes) have: `+` or `-` and a pattern; `=`, modifiers, a space and a pattern; `:`, modifiers, a space
    /// and the name of a file.
    pub(super) fn read(text: &[u8]) -> Result<Step> {
        let wrong = |what: &str| Error::new(ErrorKind::Protocol, format!("a rule {what}"));
        let (kind, rest) = match text {
            [b'-', pattern @ ..] => return Ok(Step::exclude(pattern)),
            [b'+', pattern @ ..] => return Ok(Step::Rule(Rule::plain(false, pattern))),
            [kind @ (b'=' | b':'), rest @ ..] => (*kind, rest),
            _ => return Err(wrong("is neither + nor -, = or :")),
        };
        let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(|| wrong("has no pattern"))?;
        let (modifiers, rest) = (&rest[..space], &rest[space + 1..]);
        let has = |modifier| modifiers.contains(&modifier);
        let known: &[u8] = if kind == b'=' { b"+-!srp" } else { b"+-nwsrpg" };
        if rest.is_empty() || !modifiers.iter().all(|modifier| known.contains(modifier)) {
            return Err(wrong("has an unknown modifier, or no pattern"));
        }
        let (for_sending, for_deleting) = (!has(b'r') || has(b's'), !has(b's') || has(b'r'));
        let has_side = has(b's') || has(b'r');
        if kind == b'=' {
            return Ok(Step::Rule(Rule {
                is_exclude: !has(b'+'),
                is_negated: has(b'!'),
                for_sending,
                for_deleting,
                has_side,
                perishes: has(b'p'),
                pattern: Pattern::new(rest),
            }));
        }
        if rest.len() > 255
            || rest.iter().any(|byte| matches!(byte, b'/' | 0))
            || rest == b"."
            || rest == b".."
        {
            return Err(wrong("names a file of rules that no directory can have"));
        }
        let by_words = has(b'w');
        let syntax = match (has(b'g'), has(b'-'), has(b'+')) {
            (true, ..) => Syntax::Git,
            (_, true, _) => Syntax::Patterns { is_exclude: true, by_words },
            (_, _, true) => Syntax::Patterns { is_exclude: false, by_words },
            _ => Syntax::Rules { by_words },
        };
        let (inherits, perishes) = (!has(b'n'), has(b'p'));
        let name = rest.to_vec();
        Ok(Step::Merge(Merge { name, syntax, inherits, for_sending, for_deleting, has_side, perishes }))
    }
}

impl Rule {
    fn plain(is_exclude: bool, pattern: &[u8]) -> Rule {
        Rule {
            is_exclude,
            is_negated: false,
            for_sending: true,
            for_deleting: true,
            has_side: false,
            perishes: false,
            pattern: Pattern::new(pattern),
        }
    }

    /// Whether it decides of the entry at `path`, of which so many bytes are the directory that the rule is from; true if that is to leave it out.
    pub(super) fn decides(
        &self,
        asked: Asked,
        path: &[u8],
        start: usize,
        is_directory: bool,
    ) -> Option<bool> {
        let counts = match asked {
            Asked::Sending => self.for_sending,
            Asked::Deleting { goes_with_directory, deletes_left_out } => {
                self.for_deleting
                    && !(self.perishes && goes_with_directory)
                    && (self.has_side || !deletes_left_out)
            }
        };
        let fits = || self.pattern.fits_below(path, start, is_directory) != self.is_negated;
        (counts && fits()).then_some(self.is_exclude)
    }
}

impl Merge {
    /// Its name, by which a directory has one file of rules.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// The text of the directory's own file; `None` if there is none.
    pub(super) fn text(&self, directory: &Directory) -> Result<Option<Vec<u8>>> {
        let name = String::from_utf8_lossy(&self.name);
        let failed = |error| Error::file(format!("read the rules in {name:?}"), error);
        let fd = match directory.open_to_read(&self.name) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let found = stat_fd(fd.as_fd()).map_err(failed)?;
        // As git and rsync have it, a directory of that name is nothing.
        if file_type(&found) == FileType::Directory {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        if file_type(&found) == FileType::RegularFile {
            let most = SYNC_MERGE_BYTES_MAX as u64 + 1;
            File::from(fd).take(most).read_to_end(&mut bytes).map_err(failed)?;
        }
        if bytes.len() > SYNC_MERGE_BYTES_MAX || file_type(&found) != FileType::RegularFile {
            let what = format!("{name:?} is no file of rules, or has more than {SYNC_MERGE_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(Some(bytes))
    }

    /// What a file of this text says.
    fn read(&self, text: &[u8]) -> Result<Found> {
        let name = String::from_utf8_lossy(&self.name);
        let wrong = |error: Error| Error::new(ErrorKind::Unsupported, format!("{name:?}: {error}"));
        self.parse(text).map_err(wrong)
    }

    fn parse(&self, bytes: &[u8]) -> Result<Found> {
        let mut found = Found { rules: Vec::new(), is_cut_off: false };
        let is_end = |byte: &u8| match self.syntax {
            Syntax::Rules { by_words: true } | Syntax::Patterns { by_words: true, .. } => {
                byte.is_ascii_whitespace()
            }
            Syntax::Git => *byte == b'\n',
            _ => matches!(byte, b'\n' | b'\r'),
        };
        // Git passes by a mark of UTF-8 at the beginning.
        let is_git = self.syntax == Syntax::Git;
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").filter(|_| is_git).unwrap_or(bytes);
        for line in bytes.split(is_end) {
            if line.len() > SYNC_RULE_BYTES_MAX {
                let what = format!("a rule has more than {SYNC_RULE_BYTES_MAX} bytes");
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            match self.syntax {
                Syntax::Git => found.rules.extend(self.git_rule(line)),
                _ if matches!(line.first(), None | Some(b'#' | b';')) => {}
                _ if line == b"!" || line == b"clear" && matches!(self.syntax, Syntax::Rules { .. }) => {
                    found.rules.clear();
                    found.is_cut_off = true;
                }
                Syntax::Patterns { is_exclude, .. } => {
                    let (is_exclude, pattern) = match line {
                        [b'-', b' ', rest @ ..] => (true, rest),
                        [b'+', b' ', rest @ ..] => (false, rest),
                        line => (is_exclude, line),
                    };
                    found.rules.push(self.rule(is_exclude, Pattern::new(pattern)));
                }
                Syntax::Rules { .. } => {
                    for text in read_rule(line)? {
                        match Step::read(&text)? {
                            Step::Rule(rule) => found.rules.push(Rule {
                                for_sending: rule.for_sending && self.for_sending,
                                for_deleting: rule.for_deleting && self.for_deleting,
                                has_side: rule.has_side || self.has_side,
                                perishes: rule.perishes || self.perishes,
                                ..rule
                            }),
                            Step::Merge(_) => {
                                let what = "a file of rules that names another one is not taken";
                                return Err(Error::new(ErrorKind::Unsupported, what));
                            }
                        }
                    }
                }
            }
        }
        found.rules.shrink_to_fit();
        if is_git {
            // There the last one decides.
            found.rules.reverse();
        }
        Ok(found)
    }

    fn rule(&self, is_exclude: bool, pattern: Pattern) -> Rule {
        let Merge { for_sending, for_deleting, has_side, perishes, .. } = *self;
        Rule { is_exclude, is_negated: false, for_sending, for_deleting, has_side, perishes, pattern }
    }

    /// A line of a `.gitignore`.
    fn git_rule(&self, line: &[u8]) -> Option<Rule> {
        let mut text = line.strip_suffix(b"\r").unwrap_or(line);
        if text.first() == Some(&b'#') {
            return None;
        }
        // Spaces at the end count only behind a backslash.
        while let [rest @ .., b' '] = text {
            if rest.last() == Some(&b'\\') {
                break;
            }
            text = rest;
        }
        let is_exclude = text.first() != Some(&b'!');
        text = if is_exclude { text } else { &text[1..] };
        (!text.is_empty() && text != b"/").then(|| self.rule(is_exclude, Pattern::of_git(text)))
    }
}

/// Reads a rule as rsync's `--filter` takes it, as [`Step::read`] takes it: none for a note, several where one means several. `!` and files that are read
/// once (`merge`) are for the caller.
pub fn read_rule(text: &[u8]) -> Result<Vec<Vec<u8>>> {
    let wrong = |what: &str| {
        let text = String::from_utf8_lossy(text);
        Error::new(ErrorKind::Usage, format!("the rule {text:?} {what}")).advise(
            "a rule is `- PATTERN`, `+ PATTERN`, `P PATTERN` or another of rsync's; docs/sync.md has a list",
        )
    };
    const LONG: [(&[u8], u8); 8] = [
        (b"exclude", b'-'),
        (b"include", b'+'),
        (b"hide", b'H'),
        (b"show", b'S'),
        (b"protect", b'P'),
        (b"risk", b'R'),
        (b"dir-merge", b':'),
        (b"merge", b'.'),
    ];
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'-';
    let word = text.iter().take_while(|byte| is_letter(byte)).count();
    let long = LONG.iter().find(|(name, _)| *name == &text[..word]);
    let (kind, rest) = match (long, text.first()) {
        (Some((_, kind)), _) => (*kind, text[word..].strip_prefix(b",").unwrap_or(&text[word..])),
        (None, Some(kind @ (b'-' | b'+' | b'H' | b'S' | b'P' | b'R' | b':' | b'.'))) => {
            (*kind, text[1..].strip_prefix(b",").unwrap_or(&text[1..]))
        }
        _ => return Err(wrong("is not known")),
    };
    let end =
        rest.iter().position(|byte| matches!(byte, b' ' | b'_')).ok_or_else(|| wrong("has no pattern"))?;
    let (modifiers, pattern) = (&rest[..end], &rest[end + 1..]);
    let has = |modifier| modifiers.contains(&modifier);
    let known: &[u8] = if matches!(kind, b':' | b'.') { b"-+enwsrp" } else { b"!srp" };
    if let Some(other) = modifiers.iter().find(|modifier| !known.contains(modifier)) {
        return Err(wrong(&format!("has the modifier {:?}, which is not taken", char::from(*other))));
    }
    if pattern.is_empty() {
        return Err(wrong("has no pattern"));
    }
    let mut with = modifiers.iter().copied().filter(|modifier| *modifier != b'e').collect::<Vec<u8>>();
    let (sign, side): (u8, Option<u8>) = match kind {
        b'-' => (b'-', None),
        b'+' => (b'+', None),
        b'H' => (b'-', Some(b's')),
        b'S' => (b'+', Some(b's')),
        b'P' => (b'-', Some(b'r')),
        b'R' => (b'+', Some(b'r')),
        b'.' => return Err(wrong("reads a file once, which stands on the command line alone")),
        _ => {
            // rsync looks for it in the directories above the source, too.
            let name = pattern.strip_prefix(b"/").unwrap_or(pattern);
            let merge = [b":", &with[..], b" ", name].concat();
            Step::read(&merge).map_err(|_| wrong("names no file that a directory can have"))?;
            // What the files themselves say of their name comes too late.
            let without = has(b'e').then(|| [b"-", name].concat());
            return Ok(without.into_iter().chain([merge]).collect());
        }
    };
    with.extend(side);
    if with.is_empty() {
        return Ok(vec![[&[sign][..], pattern].concat()]);
    }
    Ok(vec![[b"=", &[sign][..], &with, b" ", pattern].concat()])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::local::tree::Excludes;

    /// Issue "--gitignore: true gitignore syntax": each line stands for what it stands for with git.
    #[test]
    fn patterns_of_git_are_those_of_git() {
        let merge = |text: &str| {
            let Ok(Step::Merge(merge)) = Step::read(b":g .gitignore") else { panic!("a file of rules") };
            merge.parse(text.as_bytes()).unwrap()
        };
        for (text, path, is_directory, is_out) in [
            ("*.o", "a/b.o", false, true),
            ("*.o\n!b.o", "a/b.o", false, false),
            ("!b.o\n*.o", "a/b.o", false, true),
            ("/a", "a", true, true),
            ("/a", "b/a", true, false),
            ("a/b", "a/b", false, true),
            ("a/b", "c/a/b", false, false),
            ("b/", "a/b", false, false),
            ("b/", "a/b", true, true),
            ("**/b", "b", false, true),
            ("**/b", "a/c/b", false, true),
            ("a/**", "a", true, false),
            ("a/**", "a/b/c", false, true),
            ("a/**/b", "a/b", false, true),
            ("a/**/b", "a/x/y/b", false, true),
            ("a/**/b", "a/xb", false, false),
            ("a**b", "a/b", false, false),
            ("a**b", "axxb", false, true),
            ("a*/b", "ax/b", false, true),
            ("# note", "# note", false, false),
            ("\\#x", "#x", false, true),
            ("\\!x", "!x", false, true),
            ("x  ", "x", false, true),
            ("x\\ ", "x ", false, true),
            ("x\r", "x", false, true),
            ("[a-c]?.t", "d/bx.t", false, true),
            ("/", "a", true, false),
            ("", "a", true, false),
        ] {
            let rules = merge(text).rules;
            let asked = Asked::Sending;
            let decided = rules.iter().find_map(|rule| rule.decides(asked, path.as_bytes(), 0, is_directory));
            assert_eq!(decided.unwrap_or(false), is_out, "{text:?} {path}");
            // The same one directory down, where the file is.
            let below = format!("x/{path}");
            let decided =
                rules.iter().find_map(|rule| rule.decides(asked, below.as_bytes(), 2, is_directory));
            assert_eq!(decided.unwrap_or(false), is_out, "{text:?} {below}");
        }
    }

    /// Design 17: what comes over the wire is a rule, or an error.
    #[test]
    fn rules_that_are_none_are_refused() {
        for bad in ["", "x", "= ", "=", "=x a", "=-", ": ", ":g", ": a/b", ": .", ": ..", ":! a", "P a"] {
            assert_eq!(Step::read(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Protocol, "{bad}");
        }
        for good in ["-a", "+a", "=-!srp a b", "=+ a", ":g .gitignore", ":-nwsrp x y"] {
            assert!(Step::read(good.as_bytes()).is_ok(), "{good}");
        }
    }

    /// What cannot be read as rules is an error, not no rules; what is not there is none.
    #[test]
    fn a_file_of_rules_is_read_or_fails() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let excludes = Excludes::of_rules([&b": .r"[..]].into_iter()).unwrap();
        let enter = || Local::default().enter(&excludes.merges(), &directory, 0);
        assert!(enter().is_ok());
        let path = dir.path().join(".r");
        for (text, is_good) in
            [("- a\n", true), ("nonsense\n", false), (". x\n", false), (": x\n", false), ("! \n", false)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(enter().is_ok(), is_good, "{text:?}");
        }
        fs::write(&path, vec![b'\n'; SYNC_MERGE_BYTES_MAX + 1]).unwrap();
        assert!(enter().is_err());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(enter().is_err());
    }

    /// rsync's habit: what is said for a side, be it for both, protects also where what is left out is deleted; what is said for none does not.
    #[test]
    fn a_side_protects_from_deletion() {
        let asked = Asked::Deleting { goes_with_directory: false, deletes_left_out: true };
        for (rule, protects) in
            [("-x", false), ("=-p x", false), ("=-sr x", true), ("=-r x", true), ("=-s x", false)]
        {
            let rules = Excludes::of_rules([rule.as_bytes()].into_iter()).unwrap();
            assert_eq!(rules.leaves_out(asked, b"x", false, &Local::default()), protects, "{rule}");
        }
    }

    /// Git passes by a mark of UTF-8 at the beginning of a file, and rsync knows `clear` in files, too.
    #[test]
    fn files_are_read_as_their_programs_read_them() {
        let parsed = |step: &[u8], text: &[u8]| {
            let Ok(Step::Merge(merge)) = Step::read(step) else { panic!("a file of rules") };
            merge.parse(text).unwrap()
        };
        let found = parsed(b":g .gitignore", b"\xef\xbb\xbfbuild\n");
        assert_eq!(found.rules[0].decides(Asked::Sending, b"build", 0, true), Some(true));
        let found = parsed(b": .r", b"- a\nclear\n- b\n");
        assert!(found.is_cut_off && found.rules.len() == 1);
        let found = parsed(b":- .r", b"clear\n");
        assert_eq!(found.rules[0].decides(Asked::Sending, b"clear", 0, false), Some(true));
    }
}
