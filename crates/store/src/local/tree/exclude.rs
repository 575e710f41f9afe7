//! Patterns of what a copy leaves out, as `rsync --exclude` and `--include` read them.
//!
//! A path is that from the transfer's root: it begins with the name under which its source lands. A pattern without a slash
//! stands for a name; with one, for the end of a path; with one in front, for a path from the root; with one at the end, for
//! directories alone. `*` and `?` stop at a slash, `**` does not, `[a-z]` is a class, `/***` at the end means a
//! directory and all that is in it.

use std::collections::HashSet;

use dray_core::{Error, ErrorKind, Result};

use super::filter::{Asked, Local, Merge, Step};

/// What an allocation takes beside what is in it, about.
const ALLOCATION_BYTES: usize = 16;

/// Patterns, ready to be asked in their order: the first that fits decides.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Pattern {
    what: What,
    directories_only: bool,
    /// It began with a slash.
    is_anchored: bool,
    /// Slashes in it, that in front included, one at the end not.
    slashes: usize,
    /// `**` stands somewhere in it.
    crosses: bool,
    /// `**` stands at its beginning.
    crosses_first: bool,
    /// `/***` stands at its end.
    takes_all: bool,
    /// It is read as in a `.gitignore`.
    is_git: bool,
}

#[derive(Clone, Debug)]
enum What {
    Literal(Vec<u8>),
    Wild(Vec<Token>),
}

#[derive(Clone, Debug)]
enum Token {
    Byte(u8),
    /// Any but a slash.
    One,
    /// Any number of anything but slashes.
    Some,
    /// Any number of anything.
    All,
    /// A member of a class, or none.
    Class(Box<Class>),
    /// Any number of directories, each with its slash.
    Directories,
    /// A class without its end, which nothing is in.
    Never,
}

/// Which bytes are members, a bit each.
type Class = [u64; 4];

fn is_member(class: &Class, byte: u8) -> bool {
    class[usize::from(byte / 64)] & (1 << (byte % 64)) != 0
}

fn add_member(class: &mut Class, byte: u8) {
    class[usize::from(byte / 64)] |= 1 << (byte % 64);
}

impl Excludes {
    /// Reads patterns; each is good for something.
    pub fn new(patterns: &[Vec<u8>]) -> Excludes {
        Excludes { steps: patterns.iter().map(|pattern| Step::exclude(pattern)).collect() }
    }

    /// Reads rules: `-` and a pattern of what is left out, or `+` and one of what is not, or what [`read_rule`](super::read_rule) makes of others.
    /// `Protocol` for anything else, or where two rules name the same file in directories: each of them would be read, and kept, again.
    pub fn of_rules<'a>(rules: impl Iterator<Item = &'a [u8]>) -> Result<Excludes> {
        let excludes = Excludes { steps: rules.map(Step::read).collect::<Result<_>>()? };
        let twice = {
            let mut names = HashSet::new();
            let mut all = excludes.merges().into_iter().map(Merge::name);
            all.find(|name| !names.insert(*name)).map(|name| String::from_utf8_lossy(name).into_owned())
        };
        match twice {
            None => Ok(excludes),
            Some(name) => {
                let what = format!("two rules name {name:?} as a file of rules in directories");
                Err(Error::new(ErrorKind::Protocol, what))
            }
        }
    }

    /// True if directories may have rules of their own.
    pub fn reads_files(&self) -> bool {
        self.steps.iter().any(|step| step.merge().is_some())
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the entry at `path` is left out, where no directory has rules of its own.
    pub fn has(&self, path: &[u8], is_directory: bool) -> bool {
        self.leaves_out(Asked::Sending, path, is_directory, &Local::default())
    }

    /// Whether the entry at `path` is not deleted, where no directory has rules of its own.
    pub fn protects(&self, path: &[u8], is_directory: bool, deletes_left_out: bool) -> bool {
        let asked = Asked::Deleting { goes_with_directory: false, deletes_left_out };
        self.leaves_out(asked, path, is_directory, &Local::default())
    }

    /// Whether anything may be kept from being deleted although what is left out is deleted, too.
    pub fn may_protect(&self) -> bool {
        self.steps.iter().any(Step::may_protect)
    }

    /// Files of rules that directories may have.
    pub(super) fn merges(&self) -> Vec<&Merge> {
        self.steps.iter().filter_map(Step::merge).collect()
    }

    /// Whether the entry at `path` is left out, or protected; `local` has what the directories above it say.
    pub(super) fn leaves_out(&self, asked: Asked, path: &[u8], is_directory: bool, local: &Local) -> bool {
        let mut merges = 0..;
        let decided = self.steps.iter().find_map(|step| match step {
            Step::Rule(rule) => rule.decides(asked, path, 0, is_directory),
            Step::Merge(merge) => {
                let index = merges.next().unwrap_or_default();
                local.decides(index, merge, asked, path, is_directory)
            }
        });
        decided.unwrap_or(false)
    }
}

impl Pattern {
    pub(super) fn new(text: &[u8]) -> Pattern {
        let (mut text, mut directories_only) = (text, false);
        if let [rest @ .., b'/'] = text
            && !rest.is_empty()
        {
            (text, directories_only) = (rest, true);
        }
        let is_wild = text.iter().any(|byte| b"*?[".contains(byte));
        let slashes = text.iter().filter(|byte| **byte == b'/').count();
        let (crosses, crosses_first) = (text.windows(2).any(|two| two == b"**"), text.starts_with(b"**"));
        let takes_all = text.ends_with(b"/***");
        let is_anchored = text.first() == Some(&b'/');
        let text = if is_anchored { &text[1..] } else { text };
        let what = if is_wild { What::Wild(tokens(text)) } else { What::Literal(text.to_vec()) };
        Pattern {
            what,
            directories_only,
            is_anchored,
            slashes,
            crosses,
            crosses_first,
            takes_all,
            is_git: false,
        }
    }

    /// A pattern of a `.gitignore`: with a slash that is not its last byte it stands for a path from the directory of that on, else for a name.
    pub(super) fn of_git(text: &[u8]) -> Pattern {
        let (text, directories_only) = match text {
            [rest @ .., b'/'] => (rest, true),
            text => (text, false),
        };
        let is_anchored = text.contains(&b'/');
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let is_wild = text.iter().any(|byte| b"*?[\\".contains(byte));
        let what = if is_wild { What::Wild(git_tokens(text)) } else { What::Literal(text.to_vec()) };
        Pattern {
            what,
            directories_only,
            is_anchored,
            slashes: usize::from(is_anchored),
            crosses: false,
            crosses_first: false,
            takes_all: false,
            is_git: true,
        }
    }

    /// What it takes of memory beside itself, about.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.what {
            What::Literal(text) => text.capacity() + ALLOCATION_BYTES,
            What::Wild(tokens) => {
                let classes = tokens.iter().filter(|token| matches!(token, Token::Class(_))).count();
                tokens.capacity() * size_of::<Token>()
                    + classes * (size_of::<Class>() + ALLOCATION_BYTES)
                    + ALLOCATION_BYTES
            }
        }
    }

    /// The same for a pattern that a directory has, whose path and the slash behind it have `start` bytes.
    pub(super) fn fits_below(&self, path: &[u8], start: usize, is_directory: bool) -> bool {
        let path = if self.is_anchored { path.get(start..).unwrap_or_default() } else { path };
        self.fits(path, is_directory)
    }

    fn fits(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories_only && !is_directory {
            return false;
        }
        let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let is_name = self.slashes == 0 && !self.crosses;
        let tokens = match &self.what {
            What::Literal(text) if is_name => return path[name_at..] == text[..],
            What::Literal(text) if self.is_anchored => return path == &text[..],
            What::Literal(text) => {
                return path
                    .strip_suffix(&text[..])
                    .is_some_and(|before| matches!(before.last(), None | Some(b'/')));
            }
            What::Wild(tokens) if is_name => return wild(tokens, &[&path[name_at..]]),
            What::Wild(tokens) if self.is_git => return wild(tokens, &[path]),
            What::Wild(tokens) => tokens,
        };
        // `**/x` also stands for an x at the root, and `x/***` for x itself.
        let front: &[u8] = if self.crosses_first { b"/" } else { b"" };
        let end: &[u8] = if self.takes_all && is_directory { b"/" } else { b"" };
        let fits_from = |start: usize| wild(tokens, &[front, &path[start..], end]);
        if self.is_anchored || self.crosses_first {
            return fits_from(0);
        }
        let mut starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
        if self.crosses {
            return fits_from(0) || starts.any(fits_from);
        }
        // The last so many components.
        match starts.clone().count().checked_sub(self.slashes) {
            None => false,
            Some(0) => fits_from(0),
            Some(skipped) => starts.nth(skipped - 1).is_some_and(fits_from),
        }
    }
}

/// As git reads them: `**` stands for directories where nothing but slashes is beside it, and else for what `*` stands for.
fn git_tokens(text: &[u8]) -> Vec<Token> {
    let mut out = Vec::new();
    let components: Vec<&[u8]> = text.split(|byte| *byte == b'/').collect();
    let last = components.len() - 1;
    for (index, component) in components.into_iter().enumerate() {
        match component {
            b"**" if index < last => out.push(Token::Directories),
            b"**" if index > 0 => out.push(Token::All),
            component => {
                let some = |token| if matches!(token, Token::All) { Token::Some } else { token };
                out.extend(tokens(component).into_iter().map(some));
                if index < last {
                    out.push(Token::Byte(b'/'));
                }
            }
        }
    }
    out
}

fn tokens(text: &[u8]) -> Vec<Token> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        out.push(match first {
            b'?' => Token::One,
            b'*' if rest.first() == Some(&b'*') => {
                let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = &rest[stars..];
                Token::All
            }
            b'*' => Token::Some,
            b'[' => match class(rest) {
                Some((class, taken)) => {
                    rest = &rest[taken..];
                    Token::Class(class)
                }
                None => Token::Never,
            },
            b'\\' if !rest.is_empty() => {
                let byte = rest[0];
                rest = &rest[1..];
                Token::Byte(byte)
            }
            byte => Token::Byte(*byte),
        });
    }
    out
}

/// The class that begins after `[`, and how long it is; `None` if it has no end.
fn class(text: &[u8]) -> Option<(Box<Class>, usize)> {
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut at = usize::from(is_negated);
    let start = at;
    let mut members: Box<Class> = Box::default();
    // What a range may begin with.
    let mut last: Option<u8> = None;
    loop {
        let byte = *text.get(at)?;
        if byte == b']' && at > start {
            break;
        }
        if byte == b'[' && text.get(at + 1) == Some(&b':') {
            let end = at + 2 + text.get(at + 2..)?.windows(2).position(|two| two == b":]")?;
            let is_named = named_class(&text[at + 2..end])?;
            (0..=u8::MAX).filter(is_named).for_each(|byte| add_member(&mut members, byte));
            (at, last) = (end + 2, None);
            continue;
        }
        let is_range = byte == b'-' && last.is_some() && text.get(at + 1).is_some_and(|next| *next != b']');
        at += 1;
        let escaped = |at: &mut usize| {
            let mut byte = *text.get(*at)?;
            *at += 1;
            if byte == b'\\' {
                byte = *text.get(*at)?;
                *at += 1;
            }
            Some(byte)
        };
        if is_range {
            let end = escaped(&mut at)?;
            let begin = last.take()?;
            (begin..=end).for_each(|byte| add_member(&mut members, byte));
        } else {
            at -= 1;
            let byte = escaped(&mut at)?;
            add_member(&mut members, byte);
            last = Some(byte);
        }
    }
    if is_negated {
        members.iter_mut().for_each(|bits| *bits = !*bits);
    }
    let slash = usize::from(b'/');
    members[slash / 64] &= !(1 << (slash % 64));
    Some((members, at + 1))
}

fn named_class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| byte.is_ascii_whitespace() || *byte == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Whether the tokens stand for all of the text, given in parts. Takes time in the product of both lengths at most.
fn wild(tokens: &[Token], parts: &[&[u8]]) -> bool {
    let mut text = parts.iter().flat_map(|part| part.iter().copied());
    // Tokens before which the text so far fits.
    let mut reached = vec![false; tokens.len() + 1];
    let mut next = reached.clone();
    reached[0] = true;
    let skip_stars = |reached: &mut [bool], is_at_name: bool| {
        for (at, token) in tokens.iter().enumerate() {
            let is_skipped = match token {
                Token::Some | Token::All => true,
                Token::Directories => is_at_name,
                _ => false,
            };
            reached[at + 1] |= reached[at] && is_skipped;
        }
    };
    skip_stars(&mut reached, true);
    for byte in &mut text {
        next.fill(false);
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| reached[*at]) {
            let (stays, goes_on) = match token {
                Token::Byte(same) => (false, *same == byte),
                Token::One => (false, byte != b'/'),
                Token::Some => (byte != b'/', false),
                Token::All | Token::Directories => (true, false),
                Token::Class(members) => (false, is_member(members, byte)),
                Token::Never => (false, false),
            };
            next[at] |= stays;
            next[at + 1] |= goes_on;
        }
        skip_stars(&mut next, byte == b'/');
        if !next.contains(&true) {
            return false;
        }
        std::mem::swap(&mut reached, &mut next);
    }
    reached[tokens.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue `--exclude`: rsync's anchoring; the same patterns are given to rsync end to end.
    #[test]
    fn patterns_are_those_of_rsync() {
        for (pattern, path, is_directory, fits) in [
            ("*.o", "r/a.o", false, true),
            ("*.o", "r/a.oo", false, false),
            ("*.o", "a.o/b", false, false),
            ("build", "r/build", true, true),
            ("build", "r/rebuild", true, false),
            ("build/", "r/build", false, false),
            ("build/", "r/build", true, true),
            ("/build", "r/build", true, false),
            ("/r/build", "r/build", true, true),
            ("sub/build", "r/sub/build", true, true),
            ("sub/build", "r/xsub/build", true, false),
            ("s*/b", "r/sub/b", false, true),
            ("s*/b", "r/sub/c/b", false, false),
            ("s**b", "r/sub/c/b", false, true),
            ("r/**", "r/a/b", false, true),
            ("r/**", "r", true, false),
            ("r/***", "r", true, true),
            ("**/r", "r", true, true),
            ("**/c", "a/b/c", false, true),
            ("/r/s*", "r/sub", true, true),
            ("/r/s*", "r/sub/x", false, false),
            ("?", "r/a", false, true),
            ("[a-c]x", "r/bx", false, true),
            ("[!a-c]x", "r/bx", false, false),
            ("[]-]x", "]x", false, true),
            ("[[:digit:]]*", "r/7up", false, true),
            ("[[:nosuch:]]*", "r/7up", false, false),
            ("[a", "[a", false, false),
            ("a\\*", "r/a\\*", false, false),
            ("a\\*", "r/a*", false, true),
            ("a\\b", "r/a\\b", false, true),
            ("a[/]b", "a/b", false, false),
            ("a[!x]b", "a/b", false, false),
            ("[!a]", "\u{e9}", false, false),
            ("[\u{e9}][\u{e9}]", "\u{e9}", false, true),
            ("[[:upper:]x-z]", "Z", false, true),
            ("[[:upper:]x-z]", "w", false, false),
            ("", "r", true, false),
        ] {
            let excludes = Excludes::new(&[pattern.as_bytes().to_vec()]);
            assert_eq!(excludes.has(path.as_bytes(), is_directory), fits, "{pattern} {path}");
        }
        // The first that fits decides.
        let rules = ["+*/", "+*.c", "-*"].map(str::as_bytes);
        let rules = Excludes::of_rules(rules.into_iter()).unwrap();
        for (path, is_directory, is_out) in
            [("r", true, false), ("r/a.c", false, false), ("r/a.h", false, true), ("r/sub", true, false)]
        {
            assert_eq!(rules.has(path.as_bytes(), is_directory), is_out, "{path}");
        }
        assert!(Excludes::of_rules([&b"x"[..]].into_iter()).is_err());
        // A pattern made to be slow is not.
        let slow = Excludes::new(&[format!("{}b", "*a".repeat(120)).into_bytes()]);
        assert!(!slow.has("a".repeat(4000).as_bytes(), false));
    }
}
