//! A Rust source file as the rules see it: its tokens, which lines are test code, and every path it mentions with
//! its imports resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::lexical::{self, Source, Token};

/// A file read and split.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// Path below the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) source: Source,
    /// True if all of it is test code: a file below `tests/`, or of a module declared under `#[cfg(test)]`.
    pub(super) is_test: bool,
    /// Token ranges of items under `#[cfg(test)]`.
    test_items: Vec<Range<usize>>,
}

/// A path mentioned in code, for example `["std", "fs", "read"]`, imports resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mention {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
    /// True if it ends in `::*`.
    pub(super) glob: bool,
}

impl SourceFile {
    /// Splits `text`; `path` is where it stands below the repository.
    pub(super) fn new(path: PathBuf, text: String) -> SourceFile {
        let source = lexical::lex(&text);
        let test_items = test_items(&source.tokens);
        let below_tests = path.components().any(|part| part.as_os_str() == "tests");
        let named_tests = path.file_name().is_some_and(|name| name == "tests.rs");
        let whole = inner_cfg_test(&source.tokens);
        SourceFile { is_test: below_tests || named_tests || whole, path, text, source, test_items }
    }

    /// Tokens outside test code.
    pub(super) fn shipped_tokens(&self) -> Vec<Token> {
        if self.is_test {
            return Vec::new();
        }
        let in_test = |index: usize| self.test_items.iter().any(|item| item.contains(&index));
        let tokens = self.source.tokens.iter().enumerate();
        tokens.filter(|(index, _)| !in_test(*index)).map(|(_, token)| token.clone()).collect()
    }

    /// Lines outside test code, blank ones and comments included.
    pub(super) fn shipped_lines(&self) -> usize {
        if self.is_test {
            return 0;
        }
        let line_of = |index: usize| self.source.tokens.get(index).map_or(0, |token| token.line);
        let tests: usize = self
            .test_items
            .iter()
            .map(|item| line_of(item.end.saturating_sub(1)) + 1 - line_of(item.start))
            .sum();
        self.text.lines().count().saturating_sub(tests)
    }

    /// Files and folders of modules that this file declares under `#[cfg(test)] mod name;`.
    pub(super) fn test_module_places(&self) -> Vec<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let stem = self.path.file_stem().unwrap_or_default();
        let base = if ["mod", "lib", "main"].iter().any(|name| stem == *name) {
            folder.to_owned()
        } else {
            folder.join(stem)
        };
        let tokens = &self.source.tokens;
        let mut places = Vec::new();
        for item in &self.test_items {
            let words = &tokens[item.clone()];
            for (index, token) in words.iter().enumerate() {
                let name = words.get(index + 1).and_then(Token::word);
                let ends = words.get(index + 2).is_some_and(|token| token.is_mark(';'));
                if let (true, Some(name), true) = (token.is_word("mod"), name, ends) {
                    places.push(base.join(format!("{name}.rs")));
                    places.push(base.join(name));
                }
            }
        }
        places
    }

    /// Every path outside test code. A path that begins with an imported name is given in full.
    pub(super) fn mentions(&self) -> Vec<Mention> {
        let tokens = self.shipped_tokens();
        let mut mentions = Vec::new();
        let mut imported: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        let mut rest: Vec<Mention> = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let precise_capture = tokens.get(at + 1).is_some_and(|token| token.is_mark('<'));
            if tokens[at].is_word("use") && !precise_capture {
                at += 1;
                let mut leaves = Vec::new();
                use_tree(&tokens, &mut at, &[], &mut leaves);
                for (mention, name) in leaves {
                    if let Some(name) = name {
                        imported.entry(name).or_default().insert(mention.segments.clone());
                    }
                    mentions.push(mention);
                }
            } else if tokens[at].word().is_some() {
                rest.push(inline_path(&tokens, &mut at));
            } else {
                at += 1;
            }
        }
        for mention in rest {
            let head = mention.segments.first().and_then(|first| imported.get(first));
            for full in head.into_iter().flatten() {
                let segments = full.iter().chain(&mention.segments[1..]).cloned().collect();
                mentions.push(Mention { segments, ..mention.clone() });
            }
            mentions.push(mention);
        }
        mentions
    }
}

/// Reads `a::b::c` from `at` on.
fn inline_path(tokens: &[Token], at: &mut usize) -> Mention {
    let line = tokens[*at].line;
    let mut segments = Vec::new();
    while let Some(word) = tokens.get(*at).and_then(Token::word) {
        segments.push(word.to_owned());
        *at += 1;
        if !double_colon(tokens, *at) {
            break;
        }
        if tokens.get(*at + 2).and_then(Token::word).is_none() {
            break;
        }
        *at += 2;
    }
    Mention { line, segments, glob: false }
}

fn double_colon(tokens: &[Token], at: usize) -> bool {
    let colon = |at: usize| tokens.get(at).is_some_and(|token| token.is_mark(':'));
    colon(at) && colon(at + 1)
}

/// Reads one tree of a `use` declaration; each leaf comes with the name it binds in this file, if any.
fn use_tree(
    tokens: &[Token],
    at: &mut usize,
    prefix: &[String],
    leaves: &mut Vec<(Mention, Option<String>)>,
) {
    let mut segments = prefix.to_vec();
    let line = tokens.get(*at).map_or(0, |token| token.line);
    loop {
        if double_colon(tokens, *at) {
            *at += 2;
        }
        let Some(token) = tokens.get(*at) else { return };
        if token.is_mark('*') {
            *at += 1;
            leaves.push((Mention { line, segments, glob: true }, None));
            return;
        }
        if token.is_mark('{') {
            *at += 1;
            while let Some(token) = tokens.get(*at) {
                if token.is_mark('}') {
                    *at += 1;
                    return;
                }
                if token.is_mark(',') {
                    *at += 1;
                    continue;
                }
                let before = *at;
                use_tree(tokens, at, &segments, leaves);
                if *at == before {
                    return; // not a use tree; the compiler will say so
                }
            }
            return;
        }
        let Some(word) = token.word() else { return };
        *at += 1;
        if word != "self" || segments.is_empty() {
            segments.push(word.to_owned());
        }
        if double_colon(tokens, *at) {
            continue;
        }
        let mut name = segments.last().cloned();
        if tokens.get(*at).is_some_and(|token| token.is_word("as")) {
            name = tokens.get(*at + 1).and_then(Token::word).map(str::to_owned);
            *at += 2;
        }
        leaves.push((Mention { line, segments, glob: false }, name));
        return;
    }
}

fn inner_cfg_test(tokens: &[Token]) -> bool {
    let starts = |at: usize| {
        tokens.get(at).is_some_and(|token| token.is_mark('#'))
            && tokens.get(at + 1).is_some_and(|token| token.is_mark('!'))
    };
    (0..tokens.len()).filter(|at| starts(*at)).any(|at| {
        let end = group_end(tokens, at + 2);
        attribute_is_cfg_test(&tokens[at + 2..end])
    })
}

/// Ranges of `#[cfg(test)]` and the item after it.
fn test_items(tokens: &[Token]) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !attribute_at(tokens, at) {
            at += 1;
            continue;
        }
        let end = group_end(tokens, at + 1);
        if attribute_is_cfg_test(&tokens[at + 1..end]) {
            let item_end = item_end(tokens, end);
            items.push(at..item_end);
            at = item_end;
        } else {
            at = end;
        }
    }
    items
}

fn attribute_at(tokens: &[Token], at: usize) -> bool {
    tokens.get(at).is_some_and(|token| token.is_mark('#'))
        && tokens.get(at + 1).is_some_and(|token| token.is_mark('['))
}

/// `[cfg(test)]` and `[cfg(all(test, …))]`, but not `[cfg(not(test))]`.
fn attribute_is_cfg_test(attribute: &[Token]) -> bool {
    let has = |word: &str| attribute.iter().any(|token| token.is_word(word));
    attribute.get(1).is_some_and(|token| token.is_word("cfg")) && has("test") && !has("not") && !has("any")
}

/// One past the bracket that closes the one at `open`.
fn group_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if ['(', '[', '{'].iter().any(|mark| token.is_mark(*mark)) {
            depth += 1;
        } else if [')', ']', '}'].iter().any(|mark| token.is_mark(*mark)) {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return index + 1;
            }
        }
    }
    tokens.len()
}

/// One past the item that begins at `start`: its closing brace or semicolon.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    while attribute_at(tokens, at) {
        at = group_end(tokens, at + 1);
    }
    while let Some(token) = tokens.get(at) {
        if token.is_mark(';') {
            return at + 1;
        }
        if token.is_mark('{') {
            return group_end(tokens, at);
        }
        at = if token.is_mark('(') || token.is_mark('[') { group_end(tokens, at) } else { at + 1 };
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile::new("crates/x/src/lib.rs".into(), text.to_owned())
    }

    fn paths(text: &str) -> Vec<String> {
        let mentions = file(text).mentions();
        mentions.iter().map(|m| m.segments.join("::") + if m.glob { "::*" } else { "" }).collect()
    }

    #[test]
    fn imports_are_resolved_through_groups_aliases_and_modules() {
        let found = paths(
            "use std::{fs as disk, time::{self, Duration}, net::*};\n\
             fn f() { disk::read(p); time::Instant::now(); ::std::thread::sleep(d) }",
        );
        for wanted in [
            "std::fs",
            "std::time",
            "std::net::*",
            "std::fs::read",
            "std::time::Instant::now",
            "std::thread::sleep",
        ] {
            assert!(found.iter().any(|path| path == wanted), "{wanted} not in {found:?}");
        }
    }

    #[test]
    fn test_code_is_left_out() {
        let source = file(
            "//! x\nfn shipped() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n#[cfg(not(test))]\nuse std::net::X;\n\
             #[cfg(test)] mod helpers;\n",
        );
        let found: Vec<String> = source.mentions().iter().map(|m| m.segments.join("::")).collect();
        assert!(found.contains(&"std::net::X".to_owned()), "{found:?}");
        assert!(!found.contains(&"std::fs".to_owned()), "{found:?}");
        assert_eq!(source.shipped_lines(), 4);
        let places = source.test_module_places();
        assert!(places.contains(&PathBuf::from("crates/x/src/helpers.rs")), "{places:?}");
        assert!(file("#![cfg(test)]\nuse std::fs;").mentions().is_empty());
    }

    #[test]
    fn odd_syntax_does_not_stop_the_reader() {
        for text in [
            "use",
            "use std::{",
            "use std::{,",
            "use {a, b",
            "#[cfg(test)]",
            "fn f() -> impl use<'a> T",
            "a::",
        ] {
            let _ = paths(text);
        }
    }
}
